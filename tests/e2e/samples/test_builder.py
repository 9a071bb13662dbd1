"""Feeds that ringfeed.pipeline has made: the same batches as from the file, several outputs, nothing
left behind; and the programs of docs/pipeline_builder.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ringfeed
import ringfeed.pipeline as rp
from ringfeed import stage

from tests.support.feeds.feed_run import BIN, ROOT, wait_until

PAGE = ROOT / "docs" / "pipeline_builder.md"
PROGRAM_S = 120.0  # longest that one may take; a test that needs it has failed
FIELDS = {"id": "int64", "text": "text"}
ROWS = 900


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    for part in range(3):
        ids = range(ROWS // 3 * part, ROWS // 3 * (part + 1))
        lines = [json.dumps({"id": i, "text": f"line {i}"}) for i in ids]
        (directory / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return directory


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary directories are made. Short: sockets lie below it."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def shuffled(data: Path) -> rp.Pipeline:
    lines = rp.files(data / "*.jsonl").jsonl(fields=FIELDS, threads=2)
    return lines.shuffle(100).batch(32, fields=FIELDS)


def processes_of(place: Path) -> set[str]:
    """Names of the other processes that have it as their TMPDIR."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                if f"TMPDIR={place}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.add((entry / "comm").read_text().strip())
        except OSError:
            continue  # it has ended, or is not ours
    return found


def test_what_is_started_gives_what_the_file_gives(data: Path, tmp_path: Path, place: Path) -> None:
    feed = shuffled(data).feed("own", seed=7, epochs=2)
    with feed.start(timeout_s=60, wait_s=60) as loader:
        assert loader.schema["id"].shape == (-1,) and processes_of(place)
        assert loader.status()["state"]  # it looks twice in half a second: not at the end
        got = [batch["id"].tolist() for batch in loader]
        assert loader.metrics()["feed"]
    wait_until(lambda: not processes_of(place) and not list(place.iterdir()), "the end of it")
    ids = sorted(i for batch in got for i in batch)
    assert ids == sorted(2 * list(range(ROWS))) and got[0] != list(range(32))

    feed.save(tmp_path / "own.textproto")
    environment = {**os.environ, "RINGFEED_SOCKET_DIR": str(place / "sockets")}
    command = [str(BIN / "ringfeed"), "run", str(tmp_path / "own.textproto")]
    run = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    try:
        where = {"socket_dir": place / "sockets", "attach_timeout_s": 60, "timeout_s": 60}
        with ringfeed.attach("own", **where) as attached:  # type: ignore[arg-type]
            assert [batch["id"].tolist() for batch in attached] == got
        assert run.wait(60) == 0
    finally:
        run.kill()
        run.wait()


def test_one_source_has_two_consumers(data: Path, place: Path) -> None:
    lines = rp.files(directory=data).jsonl(fields=FIELDS)
    feed = rp.feed(
        "both",
        lines.shuffle(50).batch(30, fields=FIELDS).output("train"),
        lines.batch(10, fields=FIELDS).output("plain", slots=2),
        seed=1,
        epochs=1,
    )
    with feed.start(timeout_s=60, wait_s=60) as loader:
        plain = [i for batch in loader.output("plain") for i in batch["id"].tolist()]
        train = [i for batch in loader for i in batch["id"].tolist()]
    assert plain == list(range(ROWS)) and sorted(train) == plain and train != plain


def test_a_function_of_this_program_makes_batches(data: Path, place: Path) -> None:
    pytest.importorskip("cloudpickle")

    @stage.batch
    def doubled(samples: Any, out: Any) -> None:
        for row, sample in enumerate(samples):
            out["id"][row] = 2 * sample["id"]

    lines = rp.files(directory=data).jsonl(fields=FIELDS)
    feed = lines.collate(doubled, batch_size=100, fields={"id": "int64"}).feed("own", epochs=1)
    with feed.start(timeout_s=60, wait_s=60) as loader:
        got = [i for batch in loader for i in batch["id"].tolist()]
    assert got == list(range(0, 2 * ROWS, 2))


def test_a_block_that_is_left_by_an_error_leaves_nothing(data: Path, place: Path) -> None:
    with pytest.raises(ValueError, match="enough"):
        with shuffled(data).feed("own").start(timeout_s=60, wait_s=60) as loader:
            loader.next()
            raise ValueError("enough")
    wait_until(lambda: not processes_of(place) and not list(place.iterdir()), "the end of it")


def test_what_cannot_start_says_so_and_leaves_nothing(data: Path, place: Path) -> None:
    wrong = rp.files(data / "*").shuffle(10).batch(8, fields=FIELDS).feed("own")
    with pytest.raises(ringfeed.InvalidConfiguration, match=r"^shuffle\(\): files.output carries"):
        wrong.start(timeout_s=60)
    small = shuffled(data).feed("own", storage={"memory_budget_bytes": "1 MiB"})
    with pytest.raises(ringfeed.RingfeedError, match="memory_budget_bytes"):
        small.start(timeout_s=60)
    nothing = rp.files(data / "*.txt").text().batch(8, fields={"text": "text"})
    with pytest.raises(ringfeed.RingfeedError, match="txt"):
        with nothing.feed("own", epochs=1).start(timeout_s=60, wait_s=60) as loader:
            loader.next()
    wait_until(lambda: not processes_of(place) and not list(place.iterdir()), "the end of it")


# What a feed with stored objects has beside its configuration; its batches need none of them.
KILLED = """
import os, signal, sys
import ringfeed.pipeline as rp
from ringfeed import loader

class Beside(loader.DataLoader):
    def _config_file(self):
        def written(directory):
            (directory / "loader.map.0123.pickle").write_bytes(b"an object")
            return feed.text().encode()
        return written, ".textproto"

feed = rp.indices(100).batch(2, fields={"index": "int64"}).feed("own")
running = Beside(feed.text())
running.start()
running.get_next()
print(running._supervisor.directory, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_stored_objects_go_with_a_process_that_is_killed(place: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        directory = Path(process.stdout.readline().strip())
        assert (directory / "loader.map.0123.pickle").exists()
        process.stdin.write("\n")
    wait_until(lambda: not processes_of(place) and not list(place.iterdir()), "the end of it")


SCRIPT = """
import ringfeed.pipeline as rp

factor = 10

def times(sample):
    return {"id": sample["id"] * factor}

lines = rp.files("data/*.jsonl").jsonl(fields={"id": "int64"})
feed = lines.map(times, processes=2).batch(8, fields={"id": "int64"}).feed("own", epochs=1)
with feed.start(timeout_s=60, wait_s=60) as loader:
    print([i for batch in loader for i in batch["id"].tolist()])
"""


def test_a_function_of_a_script_is_a_stage(data: Path, place: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=data.parent,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [10 * i for i in range(ROWS)]
    wait_until(lambda: not processes_of(place) and not list(place.iterdir()), "the end of it")


def programs() -> list[tuple[int, str]]:
    """The programs of the page, with their lines."""
    page = PAGE.read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", page, re.M | re.S)
    return [(page[: match.start()].count("\n") + 1, match.group(1)) for match in found]


def test_the_page_has_programs() -> None:
    assert len(programs()) >= 5 and 2 * len(programs()) == PAGE.read_text().count("```")


@pytest.mark.parametrize(
    "text", [p for _, p in programs()], ids=[f"line_{n}" for n, _ in programs()]
)
def test_a_program_of_the_page_runs(text: str, data: Path, place: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", text],
        cwd=data.parent,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert run.returncode == 0, run.stderr
    # What a comment beside a print says is what comes out, as far as it goes.
    for said in re.findall(r"^ *print\(error\) +# (.*)$", text, re.M):
        assert said in run.stdout
    for said in re.findall(r"^    # (\w+\(.*)$", text, re.M):
        assert said.removesuffix(" ...") in run.stdout


BESIDE = """
import sys
import ringfeed.pipeline as rp
import {module} as helper

lines = rp.files(sys.argv[1] + "/*.jsonl").jsonl(fields=["text"])
feed = lines.map(helper.shout).batch(32, fields={{"text": "text"}}).feed("beside", epochs=1)
feed.check()
with feed.start() as loader:
    texts = [text for batch in loader for text in batch.strings("text")]
print(len(texts), texts[-1])
"""


@pytest.mark.parametrize("module", ["helper", "package.inner.helper"])
def test_a_module_beside_the_script_is_found_from_anywhere(
    data: Path, place: Path, tmp_path: Path, module: str
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    file = project.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True)
    for directory in {file.parent, file.parent.parent} - {project, tmp_path}:
        (directory / "__init__.py").touch()
    file.write_text("def shout(sample):\n    return {'text': str(sample['text']).upper()}\n")
    script = project / "script.py"
    script.write_text(BESIDE.format(module=module))
    run = subprocess.run(
        [sys.executable, script, data],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{ROWS} LINE {ROWS - 1}\n"
