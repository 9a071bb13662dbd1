"""`ringfeed check` looks at the first of the data, and says what would be left out and why."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ringfeed.pipeline as rp

from tests.support.feeds.feed_run import BIN, FeedRun
from tests.support.feeds.sample_feeds import counters, rows_of, sample_feed

FEED = """
feed: "looked"
epochs: 1
stages {{ name: "files" file_path_provider {{ {files} }} }}
stages {{ name: "source" sample_source {{ input: "files" {source} }} }}
stages {{ name: "shuffled" sample_shuffler {{ input: "source" size: 9 }} }}
stages {{ name: "batches" sample_batcher {{ input: "shuffled" batch_size: 4 {batch} }} }}
"""
ID = 'fields { name: "id" dtype: "int64" }'
# As FEED, and what becomes of the samples is not known.
PYTHON = FEED.replace(
    'sample_shuffler {{ input: "source" size: 9 }}',
    'python {{ input: "source" object: "own:same" python_path: "{here}" }}',
)
Check = Callable[..., dict[str, Any]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """What `check --json` finds; the texts of its warnings are `texts`, its one look is `look`."""

    def run(source: str = "", files: str = "", feed: str = FEED, batch: str = ID) -> dict[str, Any]:
        config = tmp_path / "looked.textproto"
        files = files or f'directory: "{tmp_path / "data"}"'
        config.write_text(feed.format(files=files, source=source, batch=batch, here=tmp_path))
        words = [str(BIN / "ringfeed"), "check", str(config)]
        done = subprocess.run([*words, "--json"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done
        found: dict[str, Any] = json.loads(done.stdout)
        found["texts"] = [warning["text"] for warning in found["warnings"]]
        (found["look"],) = found["data"] or ({},)
        shown = subprocess.run(words, capture_output=True, text=True, timeout=60)
        for text in found["texts"]:
            assert text in shown.stderr
        found["stdout"] = shown.stdout
        return found

    (tmp_path / "data").mkdir()
    return run


def lines(path: Path, *rows: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    packed = path.suffix == ".gz"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


def test_samples_that_would_be_left_out(check: Check, tmp_path: Path) -> None:
    rows = [{"id": i, "label": i} if i not in (7, 9, 70) else {"id": i} for i in range(100)]
    lines(tmp_path / "data" / "train.jsonl", *rows)
    lines(tmp_path / "data" / "a" / "more.jsonl.gz", *rows[:5], '{"id": 5, "lab')
    found = check('fields { name: "id" } fields { name: "label" dtype: "int8" }')
    first = sum(len(json.dumps(row)) + 1 for row in rows[:7])
    assert (
        "train.jsonl: 2 of the first 64 samples would be left out: it has no field 'label' "
        f"(first at byte {first})" in found["texts"]
    )
    assert any(
        text.startswith("a/more.jsonl.gz: 1 of its 6 samples would be left out: ")
        for text in found["texts"]
    )
    assert {warning["stage"] for warning in found["warnings"]} == {"source"}
    assert found["look"] == {
        "stage": "source",
        "files": 2,
        "files_are_more": False,
        "files_passed_over": 0,
        "files_looked_at": 2,
        "samples": 70,
        "samples_left_out": 3,
    }
    assert (
        "source  2 files  looked at the first samples of 2: 3 of 70 would be left out"
        in found["stdout"]
    )


def test_of_many_files_one_warning_for_a_reason(check: Check, tmp_path: Path) -> None:
    for number in range(200):
        lines(tmp_path / "data" / f"{number:03}.jsonl", {"id": number}, {"id": number})
    found = check('fields { name: "id" } fields { name: "label" }')
    assert found["texts"] == [
        "000.jsonl and 63 other files: 128 of the 128 samples would be left out: it has no field "
        "'label' (first at byte 0 of 000.jsonl)"
    ]
    assert found["look"]["files"] == 200 and found["look"]["files_looked_at"] == 64
    assert check('fields { name: "id" }')["texts"] == []


def test_files_that_are_passed_over(check: Check, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number in range(2):
        lines(data / f"{number}.jsonl", {"id": number})
    for name in ("README.md", "LICENSE", "SHA256SUMS", "a.csv.old", "notes.pdf"):
        (data / name).write_text("no data\n")
    (data / "0.jsonl~").write_text("no data\n")
    (data / "infos.json").write_text('{"rows": 2}')
    (data / ".cache").mkdir()
    (data / ".cache" / "0.jsonl").write_text("no data\n")
    texts = check()["texts"]
    assert len(texts) == 3
    assert any(
        text.startswith("5 of 9 files are not read: LICENSE, README.md, SHA256SUMS and 2 more: ")
        and "`format`" in text
        for text in texts
    )
    assert any(text.startswith("1 of 9 files is not read: 0.jsonl~: ") for text in texts)
    assert any(text.startswith("1 of 9 files is not read: infos.json: ") for text in texts)


def test_nothing_found_is_said(check: Check, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (text,) = check()["texts"]
    assert text.startswith(f"directory {data} has no files yet")
    (text,) = check(files=f'directory: "{tmp_path / "gone"}" pattern: "*.tar"')["texts"]
    assert text.startswith(f"directory {tmp_path / 'gone'} does not exist")
    (data / "README.md").write_text("no data\n")
    assert check()["texts"][-1] == (
        "there is nothing to read: none of the files found (1) is data: a finite run then has no "
        "data"
    )
    (text,) = check(files=f'pattern: "{data}/*.tar"')["texts"]
    assert text.startswith("there is nothing to read: none of the files there (1) matches pattern")
    (data / "list.txt").write_text("gone.jsonl\n")
    texts = check(files=f'list: "{data}/list.txt"')["texts"]
    assert any(text.endswith("gone.jsonl: it would be left out: No such file or directory")
               for text in texts)  # fmt: skip
    assert any("list.txt names no file that is there" in text for text in texts)


def test_data_that_is_elsewhere_is_left_alone(check: Check, tmp_path: Path) -> None:
    urls = check(
        files=f'directory: "file://{tmp_path}/data" cache: "{tmp_path}/cache" cache_bytes: 1000000000'
    )
    assert urls["texts"] == [] and urls["data"] == []


@pytest.mark.parametrize("other, types", [(2.5, "float64"), ("text", "text"), (True, "bool")])
def test_types_that_files_disagree_on(check: Check, tmp_path: Path, other: Any, types: str) -> None:
    lines(tmp_path / "data" / "a.jsonl", {"id": 1, "price": 1, "empty": []})
    lines(tmp_path / "data" / "b.jsonl", {"id": 2, "price": other, "empty": [1.5]})
    wanted = {"bool": "int64"}.get(types, types)
    conflict = (
        f"field 'price' has no declared type, and is int64 in a.jsonl (byte 0) and {types} in "
        f'b.jsonl (byte 0): say which in the source, fields {{ name: "price" dtype: "{wanted}" }}'
    )
    (tmp_path / "own.py").write_text("def same(sample):\n    return sample\n")
    # Somebody's function may take either.
    assert check(feed=PYTHON)["texts"] == [conflict]
    assert check('fields { name: "id" } fields { name: "price" }')["texts"] == [conflict]
    # No batch has it.
    assert check()["texts"] == []
    declared = f'fields {{ name: "price" dtype: "{wanted}" }} fields {{ name: "id" }}'
    assert check(declared)["texts"] == [] and check(declared, feed=PYTHON)["texts"] == []
    # A batch takes what does not change.
    for dtype in ("int64", "float64", "bool", "text"):
        found = check(batch=f'fields {{ name: "price" dtype: "{dtype}" }}')
        misfits = {
            "int64": types in ("float64", "text"),
            "float64": types in ("text", "bool"),
            "bool": True,
            "text": True,
        }[dtype]
        said = [text.partition(": say")[0] for text in found["texts"]]
        assert (conflict.partition(": say")[0] in said) == misfits, (dtype, found["texts"])
        assert bool(found["look"]["samples_left_out"]) == misfits


def test_what_a_batch_does_not_take(check: Check, tmp_path: Path) -> None:
    rows: list[Any] = [{"id": i, "v": [1, 2], "t": "abc"} for i in range(20)]
    rows[3]["v"] = [1]
    rows[5]["id"] = "five"
    rows[7]["id"] = 1.5
    rows[9]["t"] = "x" * 2000
    del rows[11]["v"]
    lines(tmp_path / "data" / "a.jsonl", *rows)
    found = check(
        batch=ID + ' fields { name: "v" dtype: "int64" shape: 2 } fields { name: "t" dtype: "text" '
        "bytes_max: 1024 }"
    )
    head = "a.jsonl: 1 of its 20 samples would be left out by stage 'batches': "
    for said in (
        "field 'v' has shape [1], not [2] (first at byte ",
        "field 'id' is text, not int64: say dtype: \"int64\" of it in the source (first at byte ",
        "field 'id' is float64, not int64, which does not hold its value as it is: say dtype: ",
        "field 't' has 2000 bytes, a batch has room for 1024: raise bytes_max (first at byte ",
        "it has no field 'v' (first at byte ",
    ):
        assert any(text.startswith(head + said) for text in found["texts"]), (said, found["texts"])
    assert found["look"]["samples_left_out"] == 5


def test_files_of_other_formats(check: Check, tmp_path: Path) -> None:
    data = tmp_path / "data"
    np.save(data / "object.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    np.savez(data / "short.npz", a=np.zeros(3), b=np.zeros(4))
    (data / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"id": 1}\n' * 10)[:-9])
    (data / "packed.jsonl.gz").write_bytes(bytes(range(256)))
    with tarfile.open(data / "a.tar", "w") as tar:
        for name in ("README", "1.id", "2.txt", "1.txt", "2.id"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"5"))
    texts = check()["texts"]
    for said in (
        "object.npy: nothing of it would be read: its elements are |O: pickled objects",
        "short.npz: nothing of it would be read: array 'a' has 3 rows, array 'b' has 4",
        "cut.jsonl.gz: what follows byte ",
        "packed.jsonl.gz: nothing of it would be read: its name says that it is packed",
        "a.tar: 1 thing that would be passed over, and counted: member 'README'",
        "a.tar: 2 samples of a key that has come before: ",
    ):
        assert any(text.startswith(said) for text in texts), (said, texts)


def test_tables(check: Check, tmp_path: Path) -> None:
    for number in range(2):
        ids: list[Any] = [1, None, 3] if number else [4, 5, 6]
        pq.write_table(pa.table({"id": ids}), tmp_path / "data" / f"{number}.parquet")
    found = check('format: PARQUET fields { name: "id" }')
    assert found["texts"] == [
        "1.parquet: 1 of its 3 samples would be left out: column 'id' is null (first at row 1)"
    ]
    assert found["look"]["samples"] == 6


def test_a_look_is_bounded(check: Check, tmp_path: Path) -> None:
    rows = [json.dumps({"id": i, "text": "x" * 100_000}) for i in range(30)]
    lines(tmp_path / "data" / "long.jsonl", *rows, "no JSON")
    found = check()
    assert found["texts"] == [] and found["look"]["samples"] == 11  # 1 MiB and what it ends in
    # What never ends is not waited for.
    os.mkfifo(tmp_path / "data" / "pipe.jsonl")
    assert check()["look"]["files"] == 1


def test_a_worker_that_cannot_look_is_a_warning(check: Check, tmp_path: Path) -> None:
    lines(tmp_path / "data" / "a.jsonl", {"id": 1})
    worker = tmp_path / "worker"
    real = BIN / "ringfeed-worker"
    worker.write_text(f'#!/bin/sh\n[ "$1" = --look ] && echo woe >&2 && exit 3\nexec {real} "$@"\n')
    worker.chmod(worker.stat().st_mode | stat.S_IXUSR)
    (text,) = check(feed=FEED + f'worker: "{worker}"\n')["texts"]
    assert text.startswith("the data was not looked at: ") and "exit status 3" in text


def test_python_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lines(tmp_path / "data" / "a.jsonl", {"id": 1}, {})
    lines_of = rp.files(tmp_path / "data" / "*.jsonl").jsonl(fields={"id": "int64"})
    feed = rp.feed("looked", lines_of.batch(4, fields={"id": "int64"}), epochs=1)
    (warning,) = feed.check().warnings
    assert "a.jsonl: 1 of its 2 samples would be left out: it has no field 'id'" in warning


@pytest.mark.parametrize("seed", range(8))
def test_what_is_said_is_what_is_left_out(check: Check, tmp_path: Path, seed: int) -> None:
    """Of drawn files that a look reads to their ends, a run leaves out as many."""
    rng = random.Random(seed)
    data = tmp_path / "data"

    def row() -> Any:
        return rng.choice(
            (
                {"id": rng.choice((1, 2.0, "3", 2.5, None, [1], 1 << 70, -1, True)), "text": "x"},
                {"id": rng.randrange(200), "text": rng.choice(("a", "b\u00e9", 7, None))},
                {"id": rng.randrange(200)},
                {"text": "y"},
                '{"id": 1, "text": ',
                "[1]",
                "",
                "nothing",
            )
        )

    for number in range(rng.randrange(1, 6)):
        ending = rng.choice(("jsonl", "ndjson", "jsonl.gz"))
        lines(data / f"{number}.{ending}", *[row() for _ in range(rng.randrange(60))])
    (data / "README").write_text("no data\n")
    source = rng.choice(
        (
            'fields { name: "id" dtype: "uint8" } fields { name: "text" dtype: "text" }',
            'fields { name: "id" on_missing: LEAVE_OUT }',
            "",
        )
    )
    batch = rng.choice((ID, 'fields { name: "id" dtype: "uint8" }'))
    lines(data / "good.jsonl", {"id": 1, "text": "a run has a row at least"})
    look = check(source, batch=batch)["look"]
    run: FeedRun = sample_feed(tmp_path / "run", data, source=source, batch=batch)
    try:
        rows = rows_of(run, "id")
        counted = counters(run)
        at_batch = counters(run, "batches")
    finally:
        run.close()
    skipped = sum(
        count
        for stage in (counted, at_batch)
        for name, count in stage.items()
        if name.startswith("skipped_")
    )
    assert look["samples_left_out"] == skipped
    assert look["samples"] == skipped + len(rows)
    assert look["files_passed_over"] == counted["files_passed_over"] == 1
