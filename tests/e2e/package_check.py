"""The installed wheel alone: its files, its command, its programs, feeds. Run by scripts/wheel
--check.

RINGFEED_CHECK_WHEEL   the wheel
RINGFEED_CHECK_DATA    lc0/ and chess/games/
RINGFEED_CHECK_WHEELS  wheels of pyarrow: of the oldest that is to live beside it, of the newest, and of one between
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import ringfeed

WHEEL = Path(os.environ["RINGFEED_CHECK_WHEEL"])
DATA = Path(os.environ["RINGFEED_CHECK_DATA"])
WHEELS = Path(os.environ["RINGFEED_CHECK_WHEELS"])
PYARROWS = sorted(one.name.split("-")[1] for one in WHEELS.glob("pyarrow-*.whl"))
PIP = f"{sys.executable} -m pip --disable-pip-version-check"
VERSION = ringfeed.__version__
PACKAGE = Path(ringfeed.__file__).parent
PIPELINES = PACKAGE / "share" / "ringfeed" / "pipelines"
COMMAND = Path(sys.prefix) / "bin" / "ringfeed"
POSITIONS = 133 + 89 + 26 + 76
MB = 1 << 20

# What is no Python. {version} and hashes as they come.
FILES = """
ringfeed/bin/ringfeed
ringfeed/bin/ringfeed-worker
ringfeed/bin/ringfeed-worker-python
ringfeed/include/ringfeed.h
ringfeed/include/ringfeed.hpp
ringfeed/lib/cmake/ringfeed/ringfeedConfig.cmake
ringfeed/lib/cmake/ringfeed/ringfeedConfigVersion.cmake
ringfeed/lib/cmake/ringfeed/ringfeedTargets-relwithdebinfo.cmake
ringfeed/lib/cmake/ringfeed/ringfeedTargets.cmake
ringfeed/lib/cmake/ringfeed/ringfeedWorkerTargets-relwithdebinfo.cmake
ringfeed/lib/cmake/ringfeed/ringfeedWorkerTargets.cmake
ringfeed/lib/libringfeed.so.1
ringfeed/lib/libringfeed_worker.so.{version}
ringfeed/lib/pkgconfig/ringfeed.pc
ringfeed/lib/ringfeed/_worker.abi3.so
ringfeed/lib/ringfeed/libringfeed_arrow.so
ringfeed/py.typed
ringfeed/share/ringfeed/grafana/ringfeed.json
ringfeed/share/ringfeed/licenses/arrow/LICENSE.txt
ringfeed/share/ringfeed/licenses/arrow/NOTICE.txt
ringfeed/share/ringfeed/pipelines/chess_finetune.textproto
ringfeed/share/ringfeed/pipelines/chess_pretrain.textproto
ringfeed/share/ringfeed/pipelines/fairseq_nllb.textproto
ringfeed/share/ringfeed/pipelines/lc0.textproto
ringfeed/share/ringfeed/prometheus/ringfeed.rules.yml
ringfeed/share/ringfeed/proto/config.desc
ringfeed/share/ringfeed/proto/config.proto
ringfeed/share/ringfeed/proto/fields.proto
ringfeed/share/ringfeed/proto/stages.proto
ringfeed/share/ringfeed/proto/stages/bitext.proto
ringfeed/share/ringfeed/proto/stages/chess.proto
ringfeed/share/ringfeed/proto/stages/files.proto
ringfeed/share/ringfeed/proto/stages/lc0.proto
ringfeed/share/ringfeed/proto/stages/plugin.proto
ringfeed/share/ringfeed/proto/stages/python.proto
ringfeed/share/ringfeed/proto/stages/rows.proto
ringfeed/share/ringfeed/proto/stages/samples.proto
ringfeed/share/ringfeed/systemd/system/ringfeed-web.service
ringfeed/share/ringfeed/systemd/system/ringfeed@.service
ringfeed/share/ringfeed/systemd/sysusers.d/ringfeed.conf
ringfeed/share/ringfeed/systemd/tmpfiles.d/ringfeed.conf
ringfeed/share/ringfeed/systemd/user/ringfeed@.service
ringfeed-{version}.data/data/share/bash-completion/completions/ringfeed
ringfeed-{version}.data/data/share/fish/vendor_completions.d/ringfeed.fish
ringfeed-{version}.data/data/share/zsh/vendor-completions/_ringfeed
ringfeed-{version}.data/scripts/ringfeed
ringfeed-{version}.dist-info/METADATA
ringfeed-{version}.dist-info/RECORD
ringfeed-{version}.dist-info/WHEEL
ringfeed-{version}.dist-info/entry_points.txt
ringfeed-{version}.dist-info/sboms/auditwheel.cdx.json
ringfeed.libs/libarrow.so
ringfeed.libs/libfmt.so
ringfeed.libs/libisal.so
ringfeed.libs/libparquet.so
ringfeed.libs/libprotobuf.so
ringfeed.libs/libsimdjson.so
ringfeed.libs/libspdlog.so
"""
# Of the system, by the rules for manylinux; libz for libprotobuf, the last three for Arrow.
SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2", "linux-vdso.so.1", "libz.so.1",
          "libdl.so.2", "libpthread.so.0", "librt.so.1"}  # fmt: skip
LC0 = ["lc0.textproto", f"stages.provider.directory={DATA}/lc0", "stages.pool.chunk_pool_size=100",
       "stages.tensors.batch_size=32"]  # fmt: skip
CHESS = ["chess_pretrain.textproto", f"stages.rows.directory={DATA}/chess/games"]


def said(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=120
    )


def is_elf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


@contextmanager
def feed(tmp_path: Path, pipeline: str, *settings: str) -> Iterator[ringfeed.Feed]:
    """A pipeline of the package, run once over its data by the command."""
    words = [str(COMMAND), "run", str(PIPELINES / pipeline), "--set", "epochs=1"]
    for setting in settings:
        words += ["--set", setting]
    environment = {**os.environ, "RINGFEED_SOCKET_DIR": str(tmp_path)}
    running = subprocess.Popen(words, env=environment)
    try:
        with ringfeed.attach(
            Path(pipeline).stem, socket_dir=str(tmp_path), attach_timeout_s=30, timeout_s=60
        ) as given:
            yield given
        assert running.wait(60) == 0
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGKILL)
        running.wait()


def test_this_is_the_wheel_and_nothing_else() -> None:
    assert str(PACKAGE).startswith(sys.prefix)
    assert not [
        name for name in os.environ if name in ("PYTHONPATH", "LD_LIBRARY_PATH", "RINGFEED_BIN_DIR")
    ]
    assert not [name for name in ("cc", "gcc", "c++", "g++", "clang", "ld") if shutil.which(name)]
    assert importlib.util.find_spec("pyarrow") is None


def test_the_wheel_has_these_files_and_this_size() -> None:
    with zipfile.ZipFile(WHEEL) as wheel:
        names = [re.sub(r"-[0-9a-f]{8}\.so[.0-9]*$", ".so", name) for name in wheel.namelist()]
    found = {name for name in names if not name.endswith(("/", ".py"))}
    # All headers that plug-ins may include; plugin_check.py compiles with them.
    headers = {name for name in found if re.fullmatch(r"ringfeed/include/ringfeed/.*\.h", name)}
    assert {"ringfeed/include/ringfeed/worker/main.h", "ringfeed/include/ringfeed/shm/ring.h"} <= (
        headers
    )
    # A manual page for each verb: those of the environment are the same.
    manual = f"ringfeed-{VERSION}.data/data/share/man/man1/"
    pages = {name for name in found if name.startswith(manual)}
    assert {Path(page).name for page in pages} == manual_pages()
    # A schema for each verb that has --json, and for what only the web has.
    schemas = {name for name in found if name.startswith("ringfeed/share/ringfeed/schemas/")}
    with_json = {
        verb
        for verb in (page.removeprefix("ringfeed-").removesuffix(".1") for page in manual_pages())
        if verb != "ringfeed" and "  --json" in said(COMMAND, verb, "--help").stdout
    }
    assert {Path(name).name.removesuffix(".schema.json") for name in schemas} == (
        with_json | {"web-feeds", "web-events", "web-error"}
    )
    assert found - headers - pages - schemas == set(FILES.format(version=VERSION).split())
    assert "ringfeed/__init__.py" in names and "ringfeed/_core/native.py" in names
    print(f"{WHEEL.name}: {WHEEL.stat().st_size / MB:.1f} MB")
    # Five programs and libraries have the stages in them, each as a whole, with liblzma since xz files
    # are read (15.2 MB of 16); the command has its page.
    assert WHEEL.stat().st_size <= 36 * MB
    assert re.fullmatch(
        rf"ringfeed-{re.escape(VERSION)}-py3-none-manylinux_2_\d+_x86_64\.whl", WHEEL.name
    )


def manual_pages() -> set[str]:
    lines = said(COMMAND, "--help").stdout.splitlines()
    verbs = lines[lines.index("Subcommands:") + 1 :]
    names = {verb[1] for line in verbs if (verb := re.match(r"  (\S+)", line))}
    return {"ringfeed.1", *(f"ringfeed-{name}.1" for name in names)}


def test_man_and_the_shells_find_what_is_theirs() -> None:
    share = Path(sys.prefix) / "share"
    assert {path.name for path in (share / "man" / "man1").glob("ringfeed*")} == manual_pages()
    for shell, place in (
        ("bash", "bash-completion/completions/ringfeed"),
        ("zsh", "zsh/vendor-completions/_ringfeed"),
        ("fish", "fish/vendor_completions.d/ringfeed.fish"),
    ):
        assert (share / place).read_text() == said(COMMAND, "completion", shell).stdout


def test_the_command_is_a_program_and_no_script() -> None:
    assert is_elf(COMMAND)
    assert said(COMMAND, "--version").stdout.startswith(f"ringfeed {VERSION}")
    assert (
        said(COMMAND, "version").stdout == said(sys.executable, "-m", "ringfeed", "version").stdout
    )
    wrong = said(COMMAND, "chek")
    assert wrong.returncode == 2 and "did you mean 'check'" in wrong.stderr


def test_every_library_is_found() -> None:
    programs = list((PACKAGE / "bin").iterdir())
    assert len(programs) == 3 and all(os.access(program, os.X_OK) for program in programs)
    libraries = [*(PACKAGE / "lib").rglob("*.so*"), *(PACKAGE.parent / "ringfeed.libs").iterdir()]
    for file in [COMMAND, *programs, *libraries]:
        told = subprocess.run(
            ["/usr/bin/ldd", str(file)],
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        missing = re.findall(r"(\S+) => not found", told)
        assert missing == [], told
        for line in told.splitlines():
            name, _, place = line.strip().partition(" => ")
            if place.startswith("/") and Path(name).name not in SYSTEM:
                assert str(Path(place.split(" (")[0]).resolve()).startswith(
                    str(PACKAGE.parent.resolve())
                ), line
    # The library itself needs libc alone.
    (library,) = (PACKAGE / "lib").glob("libringfeed.so*")
    assert library.name == "libringfeed.so.1" and b"libringfeed.so.1\0" in library.read_bytes()


def test_the_library_has_its_soname() -> None:
    told = said("/usr/bin/readelf", "-d", PACKAGE / "lib" / "libringfeed.so.1").stdout
    assert re.findall(r"\(SONAME\).*\[(.*)\]", told) == ["libringfeed.so.1"]
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", told) == ["libc.so.6"]


# A package of another version lies in the same tree, for another Python; a directory's name looks
# like a pattern.
def test_the_command_takes_the_package_of_its_version(tmp_path: Path) -> None:
    prefix = tmp_path / "a [b]*"
    (prefix / "bin").mkdir(parents=True)
    command = Path(shutil.copy(COMMAND, prefix / "bin"))
    none = said(command, "version")
    assert none.returncode == 1 and "reinstall it" in none.stderr
    for place, version in (
        ("lib/python3.10/site-packages", "0.0.1"),
        ("lib/python3.11/site-packages", VERSION),
        ("lib/python3/dist-packages", "0.0.2"),
    ):
        program = prefix / place / "ringfeed" / "bin" / "ringfeed"
        program.parent.mkdir(parents=True)
        (prefix / place / f"ringfeed-{version}.dist-info").mkdir()
        program.write_text(f'#!/bin/sh\necho "{version} $$ $*"\nexit 7\n')
        program.chmod(0o755)
    running = subprocess.Popen([command, "status", "a b"], stdout=subprocess.PIPE, text=True)
    told, _ = running.communicate(timeout=60)
    assert told == f"{VERSION} {running.pid} status a b\n" and running.returncode == 7


def test_the_command_finds_a_package_installed_with_target(tmp_path: Path) -> None:
    pip = said(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        tmp_path,
        WHEEL,
    )
    assert pip.returncode == 0, pip.stderr
    assert said(tmp_path / "bin" / "ringfeed", "version").stdout == said(COMMAND, "version").stdout
    shutil.rmtree(tmp_path / "ringfeed")
    assert "is neither below" in said(tmp_path / "bin" / "ringfeed", "version").stderr


def test_the_module_says_where_it_looked_for_its_programs(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ringfeed import __main__; from ringfeed._core "
        "import programs; "
        "programs.__file__ = str(Path(sys.argv.pop(1)) / 'package' / '_core' / 'programs.py'); "
        "sys.exit(__main__.main())"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "version"],
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 1 and "the program ringfeed is neither in" in told.stderr


def test_the_lc0_pipeline_delivers_the_real_games(tmp_path: Path) -> None:
    with feed(tmp_path, *LC0) as given:
        rows = 0
        for batch in given:
            policy = batch["policy"]
            assert batch["planes"].shape[1:] == (112, 8, 8) and batch["values"].shape[1:] == (6, 3)
            assert np.allclose(np.where(policy >= 0, policy, 0).sum(axis=1), 1, atol=1e-4)
            rows += batch.rows
            del policy
    assert rows == POSITIONS


def test_a_data_loader_delivers_them_too() -> None:
    text = (PIPELINES / "lc0.textproto").read_text()
    for old, new in (
        ("epochs: 0", "epochs: 1"),
        ("chunk_pool_size: 100000", "chunk_pool_size: 100"),
        ('directory: "data/lc0"', f'directory: "{DATA}/lc0"'),
    ):
        assert old in text
        text = text.replace(old, new)
    loader = ringfeed.DataLoader(text)
    loader.start()
    rows = 0
    while True:
        try:
            planes, policy, values = loader.get_next()
        except (ringfeed.FeedEnd, StopIteration):
            break
        rows += len(planes)
        del planes, policy, values
    loader.stop()
    assert rows == POSITIONS


def test_the_chess_pipeline_delivers_games_out_of_parquet_files(tmp_path: Path) -> None:
    assert importlib.util.find_spec("pyarrow") is None
    with feed(tmp_path, *CHESS) as given:
        rows = 0
        for batch in given:
            assert (
                batch["input_ids"].shape == (batch.rows, 256)
                and int(batch["input_ids"].max()) < 1968
            )
            rows += batch.rows
    assert rows > 0
    (first, *_) = sorted((DATA / "chess" / "games").glob("*.parquet"))
    assert "a Parquet file with" in said(COMMAND, "inspect", first).stdout


# The first commands of the README.
def test_a_stage_in_python_runs_in_this_environment(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import sys\n\n\ndef mark(sample):\n"
        "    return {'id': sample['index'], 'where': sys.prefix}\n"
    )
    config = f"""
feed: "mine" epochs: 1
stages {{ name: "items" index_source {{ count: 50 }} }}
stages {{ name: "marked" python {{ input: "items" object: "mine:mark" python_path: "{tmp_path}" }} }}
stages {{ name: "batches" sample_batcher {{ input: "marked" batch_size: 10
  fields {{ name: "id" dtype: "int64" }} fields {{ name: "where" dtype: "text" }} }} }}
"""
    (tmp_path / "mine.textproto").write_text(config)
    env = dict(os.environ, RINGFEED_SOCKET_DIR=str(tmp_path))
    run = subprocess.Popen([str(COMMAND), "run", str(tmp_path / "mine.textproto")], env=env)
    with ringfeed.attach("mine", socket_dir=tmp_path, attach_timeout_s=60, timeout_s=60) as feed:
        batches = [(batch["id"].tolist(), batch["where"].tobytes()) for batch in feed]
    assert run.wait(60) == 0
    assert sum((ids for ids, _ in batches), []) == list(range(50))
    assert {where for _, where in batches} == {sys.prefix.encode() * 10}


@pytest.fixture(params=PYARROWS)
def other_pyarrow(request: pytest.FixtureRequest) -> Iterator[str]:
    """One that is in this environment meanwhile."""
    assert len(PYARROWS) >= 2
    version = str(request.param)
    install = f"{PIP} install --quiet --no-deps --no-index --find-links {WHEELS} pyarrow=={version}"
    subprocess.run(install, shell=True, check=True)
    yield version
    subprocess.run(f"{PIP} uninstall --quiet --yes pyarrow", shell=True, check=True)


def test_tables_are_read_beside_any_pyarrow(other_pyarrow: str, tmp_path: Path) -> None:
    """The stage in Python, which imports that one, is of the process that reads the files."""
    (tmp_path / "mine.py").write_text(
        "import importlib.metadata\n\n\ndef mark(sample):\n"
        "    version = importlib.metadata.version('pyarrow')\n"
        "    if int(version.split('.')[0]) >= 16:  # the first for NumPy 2\n"
        "        import pyarrow.parquet\n"
        "        assert pyarrow.__version__ == version\n"
        "    return {'ply': sample['ply'], 'version': version}\n"
    )
    config = f"""
feed: "mine" epochs: 1
stages {{ name: "files" file_path_provider {{ directory: "{DATA}/chess/games" }} }}
stages {{ name: "rows" sample_source {{ input: "files" }} }}
stages {{ name: "marked" python {{ input: "rows" object: "mine:mark" python_path: "{tmp_path}" }} }}
stages {{ name: "batches" sample_batcher {{ input: "marked" batch_size: 10
  fields {{ name: "ply" dtype: "int64" }} fields {{ name: "version" dtype: "text" }} }} }}
stage_groups {{ name: "one" stages: "files" stages: "rows" stages: "marked" }}
stage_groups {{ name: "rest" stages: "batches" }}
"""
    (tmp_path / "mine.textproto").write_text(config)
    env = dict(os.environ, RINGFEED_SOCKET_DIR=str(tmp_path))
    run = subprocess.Popen([str(COMMAND), "run", str(tmp_path / "mine.textproto")], env=env)
    with ringfeed.attach("mine", socket_dir=tmp_path, attach_timeout_s=60, timeout_s=60) as feed:
        batches = [(batch.rows, set(batch.strings("version"))) for batch in feed]
    assert run.wait(60) == 0
    shown = [said(COMMAND, "inspect", "--json", file) for file in (DATA / "chess/games").iterdir()]
    total = sum(json.loads(told.stdout)["rows"]["rows"] for told in shown)
    assert sum(rows for rows, _ in batches) == total > 0
    assert {version for _, versions in batches for version in versions} == {other_pyarrow}


@pytest.mark.parametrize("data, name", [("lc0", "lc0"), ("chess/games", "chess_pretrain")])
def test_what_init_writes_delivers_batches(data: str, name: str, tmp_path: Path) -> None:
    config = tmp_path / f"{name}.textproto"
    told = said(COMMAND, "init", DATA / data, "--output", config)
    assert told.returncode == 0 and f"ringfeed run {config}" in told.stdout, told.stderr
    with feed(tmp_path, str(config)) as given:
        rows = sum(batch.rows for batch in given)
    assert rows == POSITIONS if name == "lc0" else rows > 0


def of_the_doctor(check: str, program: Path = COMMAND) -> list[dict[str, str]]:
    """Its findings of this check that are not fine."""
    shown = json.loads(said(program, "doctor", "--json").stdout)
    return [
        one
        for one in shown["findings"]
        if (one["check"], one["severity"] == "fine") == (check, False)
    ]


def test_the_doctor_mends_programs_and_libraries_of_this_environment(tmp_path: Path) -> None:
    """Its commands run as they are printed, with the wheels that are here."""
    pip = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEEL.parent)}
    pip["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    run = f"{sys.executable} -m pip"
    faults = {
        f"/bin/rm {PACKAGE}/lib/ringfeed/libringfeed_arrow.so": "libringfeed_arrow.so is not there",
        f"/bin/rm {PACKAGE}/bin/ringfeed-worker": "ringfeed-worker was not found",
    }
    assert of_the_doctor("workers") == []
    for plant, what in faults.items():
        subprocess.run(plant, shell=True, check=True, env=pip)
        (finding, *_) = of_the_doctor("workers")
        assert re.search(what, finding["what"]), finding
        subprocess.run(finding["mend"], shell=True, check=True, env=pip)
        assert of_the_doctor("workers") == []
    # A package that no environment is around.
    place = tmp_path / "a place"
    subprocess.run(
        f"{run} install --no-deps --target '{place}' {WHEEL}", shell=True, check=True, env=pip
    )
    program = place / "ringfeed" / "bin" / "ringfeed"
    (place / "ringfeed" / "bin" / "ringfeed-worker").unlink()
    (finding, *_) = of_the_doctor("workers", program)
    assert f"--target '{place}' " in finding["mend"]
    subprocess.run(finding["mend"], shell=True, check=True, env=pip)
    assert of_the_doctor("workers", program) == []


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
