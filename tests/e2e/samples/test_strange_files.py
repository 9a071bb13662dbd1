"""Files as other programs leave them, in a real feed beside Python's own readers: each row is equal,
or what is lost is counted. RINGFEED_STRANGE_FILES=DIRECTORY: files of anybody's, instead of those
that are made here; RINGFEED_HOURS: drawn for longer.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import random
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed

from tests.support.feeds.feed_run import BIN, FeedRun
from tests.support.feeds.sample_feeds import counters
from tests.support.oracles import sample_reference
from tests.support.oracles.sample_reference import Sample

STAGES = """
feed: "strange"
epochs: 1
stages {{ name: "files" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "source" sample_source {{ input: "files" threads: 2 }} }}
stages {{ name: "batches" python_batcher {{
  input: "source" object: "pickles:collate" python_path: "{modules}" batch_size: 64 lineage: true
  fields {{ name: "row" dtype: "bytes" bytes_max: 67108864 }} }} }}
"""
MODULE = """
import pickle

import numpy as np
from ringfeed import stage


def own(value):
    return value.copy() if isinstance(value, np.ndarray) else value


@stage.batch
def collate(samples):
    rows = [{name: own(value) for name, value in one.items()} for one in samples]
    return {"row": [pickle.dumps(row) for row in rows]}
"""
Rows = dict[Path, list[Sample]]
Read = Callable[[Path], tuple[Rows, FeedRun]]


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """Rows of each file of a directory, as a feed has them."""
    runs: list[FeedRun] = []

    def start(directory: Path) -> tuple[Rows, FeedRun]:
        work = tmp_path / f"run{len(runs)}"
        work.mkdir()
        (work / "pickles.py").write_text(MODULE)
        settings = {"directory": directory, "modules": work, "feed": "strange"}
        run = FeedRun(work, pipeline=STAGES, **settings).start()
        runs.append(run)
        got: Rows = {}
        with ringfeed.attach(
            "strange", socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
        ) as feed:
            for batch in feed:
                ends, whole = batch["row_offsets"], batch["row"].tobytes()
                for i, origin in enumerate(ringfeed.lineage(batch["lineage"], directory)):
                    assert origin is not None
                    row = pickle.loads(whole[ends[i] : ends[i + 1]])
                    got.setdefault(Path(origin.path), []).append(row)
                batch.release()
        assert run.wait() == 0, run.text()
        return got, run

    yield start
    for run in runs:
        run.close()


def inspected(path: Path) -> tuple[int, int]:
    """Samples that `ringfeed inspect` finds, and what it would leave out or cannot read."""
    done = subprocess.run(
        [BIN / "ringfeed", "inspect", "--json", path], capture_output=True, timeout=60
    )
    assert done.returncode in (0, 1), (path, done.stderr)
    report = json.loads(done.stdout or "{}")
    data = report.get("data", {})
    lost = sum(reason["count"] for reason in data.get("reasons", []))
    return data.get("samples", 0), lost + len(report.get("problems", [])) + (not report)


def differences(path: Path, rows: list[Sample]) -> list[str]:
    """What of a file is not as the reference has it, and not counted either."""
    reference = sample_reference.read(path)
    if reference is None:
        return [f"{len(rows)} rows of what is no data"] if rows else []
    samples, lost = inspected(path)
    found = []
    if samples != len(rows):
        found.append(f"{len(rows)} rows, and inspect has {samples}")
    wanted = iter(reference.samples)
    whys = []
    for at, row in enumerate(rows):
        for want in wanted:
            if not (why := sample_reference.difference(reference.format, row, want)):
                break
            whys.append(f"row {at}: {why}")
        else:
            found.append(f"row {at} is not of the reference: {whys[-1:]}")
            break
    if not lost and (reference.faults or len(rows) != len(reference.samples)):
        found.append(
            f"{len(rows)} rows and nothing counted; the reference has {len(reference.samples)}, "
            f"and says {reference.faults[:2]}; {whys[-1:]}"
        )
    return found


def draw_csv(draw: random.Random) -> bytes:
    """As csv writes it, with empty lines anywhere, quotes and ends of lines in names and cells."""
    words = ["a", "b c", "", "é", 'say "so"', "x\r\ny", "1,5", ";", "\t", "|", "0123", "1e5", "nan"]
    columns = draw.randrange(1, 6)
    options: dict[str, Any] = {
        "delimiter": draw.choice(",,\t;|"),
        "quoting": draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
        "lineterminator": draw.choice(["\n", "\r\n", "\r"]),
    }
    text = io.StringIO(newline="")
    writer = csv.writer(text, **options)
    for row in range(draw.randrange(8)):
        text.write(options["lineterminator"] * max(0, draw.randrange(-5, 3)))
        cells = [f"{draw.choice(words)}{'' if row else i}" for i in range(columns)]
        cells = [str(draw.randrange(10**24)) if draw.random() < 0.1 else cell for cell in cells]
        # A name is there once; a row of one cell without anything is an empty line.
        cells = [f"n{i}{cell}" if not row or columns == 1 else cell for i, cell in enumerate(cells)]
        writer.writerow(cells + ["more"] * (draw.random() < 0.05 and row > 0))
    whole = draw.choice(["", "\ufeff"]) + text.getvalue()
    return (whole.rstrip("\r\n") if draw.random() < 0.3 else whole).encode()


def tar_of(names: list[str]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"ab"))
    return sink.getvalue()


def npy(array: np.ndarray) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, **arrays)
    return sink.getvalue()


def made() -> dict[str, bytes]:
    """Files that people have had trouble with, by name."""
    whole = np.arange(6).reshape(3, 2)
    objects = [json.dumps({"a": i}, indent=1) for i in range(3)]
    return {
        "blank.csv": b"\n\na,b\n\n1,2\n",
        "index.csv": b",a,b\n0,x,1\n1,y,2\n",  # as pandas writes it
        "delimiter.csv": b"a,b,\n1,2,\n3,4,\n",
        "carriage.csv": b"a,b\r1,2\r3,4\r",
        "names.csv": b'"a\nb",c\n1,2\n',
        "names-alone.csv": b"a,b\n\n\n",
        "quotes.csv": b'a,b\nx "y" z,1\n"p""q"r,2\n"u" ,3\n "v",4\n',
        "open.csv": b'a,b\n1,"x\n2,y\n',
        "comment.csv": b"# made by hand\na,b\n1,2\n",
        "long.csv": b"id,n\n12345678901234567890123,1\n12345678901234567890124,2\n",
        "zero.csv": b"a,b\n1,x\0y\n2,z\n",
        "utf16.csv": "a,b\n1,2\n".encode("utf-16"),
        "utf16.txt": "hello\nworld\n".encode("utf-16"),
        "utf16.jsonl": '{"a":1}\n{"a":2}\n'.encode("utf-16"),
        "zeros.jsonl": b'{"a":1}\n{"a":2}\n' + bytes(100),
        "sequence.jsonl": b'\x1e{"a":1}\n\x1e{"a":2}\n',
        "separators.jsonl": '{"a":"x\u2028y"}\n{"a":"\x85z"}\n'.encode(),
        "pretty.jsonl": "\n".join(objects).encode(),
        "pretty.json": ("[" + ",\n".join(objects) + "]").encode(),
        "several.jsonl": b'{"a":1}{"a":2}\n',
        "names.tar": tar_of(["k\xe9y.txt", "a.txt", "./._a.txt", "B.TXT", "c .txt", "c.d/e.f.g"]),
        "cut.tar": tar_of(["a.txt", "b.txt", "c.txt"])[:2561],
        "joined.npy": npy(whole) + npy(whole),
        "padded.npz": npz(x=whole) + bytes(100),
        "truths.npy": npy(np.array([0, 1, 2, 255], np.uint8).view(np.bool_)),
        "letters.npy": npy(np.array(["a", "bc"])),
        "wide.npy": npy(np.arange(492.0).reshape(4, 123)),
        "no-rows.npy": npy(np.zeros((0, 3))),
        "no-cells.npy": npy(np.zeros((5, 0))),
    }


def test_what_is_made_here_is_read_as_others_read_it(read: Read, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name, content in made().items():
        (data / name).write_bytes(content)
    rows, run = read(data)
    found = {path.name: differences(path, rows.get(path, [])) for path in sorted(data.iterdir())}
    # What lies behind the array is counted; NumPy says nothing of it.
    assert {name: what for name, what in found.items() if what} == {}
    assert counters(run)["skipped_trailing"] == 2
    assert [row["f0"] for row in rows[data / "index.csv"]] == [0, 1]
    assert rows[data / "long.csv"][0]["id"] == "12345678901234567890123"
    assert rows[data / "names.tar"][0]["__key__"] == b"k\xe9y"


def test_drawn_text_is_read_as_csv_reads_it(read: Read, tmp_path: Path) -> None:
    end = time.monotonic() + 3600 * float(os.environ.get("RINGFEED_HOURS", "0"))
    seed = random.randrange(1 << 30)
    while True:
        data = tmp_path / f"data{seed}"
        data.mkdir()
        draw = random.Random(seed)
        (data / "last.csv").write_text("a\n1\n")  # a run without any row fails
        for number in range(100):
            (data / f"{number:03}.csv").write_bytes(draw_csv(draw))
        rows, run = read(data)
        lost = 0
        for path in sorted(data.iterdir()):
            reference = sample_reference.read(path)
            assert reference is not None
            lost += len(reference.faults)
            got = rows.get(path, [])
            context = (seed, path.read_bytes(), got)
            assert len(got) == len(reference.samples), context
            for row, want in zip(got, reference.samples, strict=True):
                assert not sample_reference.difference("CSV", row, want), context
        assert counters(run).get("skipped_damaged", 0) == lost, seed
        seed += 1
        if time.monotonic() > end:
            return


@pytest.mark.skipif("RINGFEED_STRANGE_FILES" not in os.environ, reason="no files are given")
def test_what_is_given_is_read_as_others_read_it(read: Read) -> None:
    data = Path(os.environ["RINGFEED_STRANGE_FILES"])
    rows, run = read(data)
    found = {}
    for path in sorted(data.rglob("*")):
        if path.is_file() and (what := differences(path, rows.get(path, []))):
            found[str(path.relative_to(data))] = what
    print(json.dumps(found, indent=1), counters(run))
    assert not found
