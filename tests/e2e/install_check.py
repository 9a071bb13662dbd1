"""A tree that `cmake --install` has made, $RINGFEED_CHECK_PREFIX: found, linked with, run. Run by
scripts/package-check.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PREFIX = Path(os.environ["RINGFEED_CHECK_PREFIX"])
EXAMPLE = ROOT / "docs" / "examples" / "own_trainer"
DATA = ROOT / "tests" / "data" / "lc0"
POSITIONS = 133 + 89 + 26 + 76


def said(*words: str | Path, **settings: object) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        **settings,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The example's trainers, built against the prefix alone."""
    build = tmp_path_factory.mktemp("own_trainer")
    strict = "-Wall -Wextra -Wpedantic -Wshadow -Werror"
    said("cmake", "-G", "Ninja", "-S", EXAMPLE, "-B", build, f"-Dringfeed_ROOT={PREFIX}",
         f"-DCMAKE_C_FLAGS={strict}", f"-DCMAKE_CXX_FLAGS={strict}", "-DCMAKE_BUILD_TYPE=Release")  # fmt: skip
    said("cmake", "--build", build)
    return [build / "c_trainer", build / "cpp_trainer"]


def test_trainers_of_ones_own_read_a_feed(trainers: list[Path], tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "RINGFEED_SOCKET_DIR": str(tmp_path)}
    pipeline = (PREFIX / "share" / "ringfeed" / "pipelines" / "lc0.textproto").read_text()
    assert "feed_output {" in pipeline
    config = tmp_path / "lc0.textproto"
    # Both groups are there before their trainers, so that both see everything.
    groups = 'groups { name: "c_trainer" } groups { name: "cpp_trainer" }'
    config.write_text(pipeline.replace("feed_output {", "feed_output { " + groups))
    feed = subprocess.Popen(
        [PREFIX / "bin" / "ringfeed", "run", config, "--set", f"stages.provider.directory={DATA}",
         "--set", "epochs=1", "--set", "stages.pool.chunk_pool_size=100", "--set", "stages.tensors.batch_size=32"],
        env=environment,
    )  # fmt: skip
    try:
        running = [
            subprocess.Popen(
                [trainer, "lc0", "values"], env=environment, stdout=subprocess.PIPE, text=True
            )
            for trainer in trainers
        ]
        told = [trainer.communicate(timeout=60)[0] for trainer in running]
        assert [trainer.returncode for trainer in running] == [0, 0]
        assert told[0] == told[1] and told[0].startswith(f"{POSITIONS} rows, mean of values "), told
        assert feed.wait(60) == 0
    finally:
        feed.kill()
        feed.wait()


def test_pkg_config_finds_the_library_wherever_the_tree_is(tmp_path: Path) -> None:
    environment = {**os.environ, "PKG_CONFIG_PATH": str(PREFIX / "lib" / "pkgconfig")}
    flags = said("pkg-config", "--cflags", "--libs", "ringfeed", env=environment).split()
    program = tmp_path / "c_trainer"
    said("cc", "-std=c99", EXAMPLE / "trainer.c", "-o", program, *flags)
    [found] = re.findall(r"libringfeed\.so\.1 => (\S+)", said("ldd", program))
    assert Path(found).resolve() == (PREFIX / "lib" / "libringfeed.so.1").resolve()


def test_the_library_has_its_links() -> None:
    lib = PREFIX / "lib"
    assert os.readlink(lib / "libringfeed.so") == "libringfeed.so.1"
    assert os.readlink(lib / "libringfeed.so.1").startswith("libringfeed.so.1.")
    assert "[libringfeed.so.1]" in said("readelf", "-d", lib / "libringfeed.so")


def test_man_and_the_shells_find_what_is_theirs() -> None:
    program, share = PREFIX / "bin" / "ringfeed", PREFIX / "share"
    shown = said(program, "--help").split("Subcommands:\n")[1].split("\n\n")[0]
    verbs = [line.split()[0] for line in shown.splitlines() if line[2] != " "]
    pages = {path.name for path in (share / "man" / "man1").iterdir()}
    assert pages == {"ringfeed.1", *(f"ringfeed-{verb}.1" for verb in verbs)}
    assert "run" in verbs and "version" in verbs
    for shell, place in (
        ("bash", "bash-completion/completions/ringfeed"),
        ("zsh", "zsh/vendor-completions/_ringfeed"),
        ("fish", "fish/vendor_completions.d/ringfeed.fish"),
    ):
        assert (share / place).read_text() == said(program, "completion", shell)


def test_each_verb_with_json_has_its_schema() -> None:
    program = PREFIX / "bin" / "ringfeed"
    schemas = {
        path.name.removesuffix(".schema.json"): json.loads(path.read_text())
        for path in (PREFIX / "share" / "ringfeed" / "schemas").iterdir()
    }
    shown = said(program, "--help").split("Subcommands:\n")[1].split("\n\n")[0]
    verbs = [line.split()[0] for line in shown.splitlines() if line[2] != " "]
    with_json = {verb for verb in verbs if "  --json" in said(program, verb, "--help")}
    assert with_json == {name for name in schemas if not name.startswith("web-")}
    version = json.loads(said(program, "version", "--json"))
    assert set(version) == set(schemas["version"]["properties"])


def test_the_descriptor_set_knows_every_field_and_its_comment(tmp_path: Path) -> None:
    share = PREFIX / "share" / "ringfeed"
    # The set alone reads a pipeline, and the files alone make the set.
    pipeline = share / "pipelines" / "lc0.textproto"
    wire = tmp_path / "wire"
    with pipeline.open() as text, wire.open("wb") as out:
        subprocess.run(
            ["protoc", f"--descriptor_set_in={share}/proto/config.desc", "--encode=ringfeed.DataLoaderConfig",
             "proto/config.proto"],
            stdin=text, stdout=out, check=True,
        )  # fmt: skip
    assert wire.stat().st_size > 100
    made = tmp_path / "config.desc"
    said("protoc", f"--descriptor_set_out={made}", "--include_imports", "--include_source_info", "-I", share,
         "proto/config.proto")  # fmt: skip
    assert made.read_bytes() == (share / "proto" / "config.desc").read_bytes()


# Whoever includes one needs no other before it, nor anything but the tree.
def test_every_header_stands_alone(tmp_path: Path) -> None:
    include = PREFIX / "include"
    headers = [path.relative_to(include) for path in sorted(include.rglob("*.h*"))]
    assert {"ringfeed.h", "ringfeed.hpp", "ringfeed/shm/ring.h", "ringfeed/worker/stage.h"} <= {
        *map(str, headers)
    }
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{include}"]
    sources = []
    for number, header in enumerate(headers):
        sources.append(tmp_path / f"header{number}.cc")
        # Twice, so that its guard is there too.
        sources[-1].write_text(f"#include <{header}>\n" * 2)
    said("c++", "-std=c++20", *strict, *sources)
    (tmp_path / "header.c").write_text("#include <ringfeed.h>\n" * 2)
    said("cc", "-std=c99", *strict, tmp_path / "header.c")


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
