"""A field's type is given once: where the samples are made, or where they become batches."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed
import ringfeed.pipeline as rp

from tests.support.feeds.feed_run import FeedRun

MakeFeed = Callable[..., FeedRun]

STAGES = """
feed: "{feed}"
epochs: 1
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "source" sample_source {{ input: "provider" {source} }} }}
{between}
stages {{ name: "batches" sample_batcher {{ input: "{last}" batch_size: 64 {batch} }} }}
"""
SHUFFLED = 'stages { name: "shuffled" sample_shuffler { input: "source" size: 2 } }'
MIXED = """stages { name: "files" file_path_provider { directory: "DATA" } }
stages { name: "other" sample_source { input: "files" fields { name: "id" } } }
stages { name: "mixed" sample_mixer { input: "source" input: "other" end: LAST } }
stages { name: "shuffled" sample_shuffler { input: "mixed" size: 2 } }"""
X = 'fields {{ name: "x" dtype: "{}" }}'
TO_SOURCE = {"between": "", "last": "source"}


def lines(directory: Path, rows: list[dict[str, Any]]) -> Path:
    directory.mkdir()
    (directory / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return directory


def columns(run: FeedRun) -> dict[str, np.ndarray]:
    """All rows of a feed, its arrays by name."""
    got: dict[str, list[np.ndarray]] = {}
    with ringfeed.attach(
        "packed", socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
    ) as feed:
        for batch in feed:
            for name in batch:
                got.setdefault(name, []).append(np.array(batch[name]))
            batch.release()
    assert run.wait() == 0, run.text()
    return {name: np.concatenate(parts) for name, parts in got.items()}


ROWS: list[dict[str, Any]] = [
    {"id": 0, "x": 1, "v": [1, 2], "t": "a"},
    {"id": 1, "x": 2.5, "v": [0.5, 1], "t": "b"},
    {"id": 2, "x": 3, "v": [3, 4], "t": "c"},
]
TYPED = """fields { name: "id" dtype: "int16" } fields { name: "x" as: "y" dtype: "float32" }
    fields { name: "v" dtype: "float16" default: "[0, 0]" } fields { name: "t" dtype: "text" }"""
UNTYPED = """fields { name: "id" } fields { name: "x" as: "y" } fields { name: "v" } fields { name: "t" }"""


@pytest.mark.parametrize("between", ["", SHUFFLED, MIXED])
def test_what_the_source_says_need_not_be_said_again(
    make_feed: MakeFeed, tmp_path: Path, between: str
) -> None:
    """Nor the shape, where a default has it."""
    data = lines(tmp_path / "data", ROWS)
    names = UNTYPED.replace('"x" as: ', "") if "other" not in between else 'fields { name: "id" }'
    between = between.replace("DATA", str(data))
    settings = {"between": between, "last": "shuffled" if between else "source"}
    got = columns(make_feed(data, pipeline=STAGES, source=TYPED, batch=names, **settings))
    assert got["id"].dtype == np.int16
    if "other" in between:
        assert sorted(got["id"]) == [0, 0, 1, 1, 2, 2]
        return
    order = np.argsort(got["id"])
    assert got["y"].dtype == np.float32 and got["y"][order].tolist() == [1, 2.5, 3]
    assert got["v"].dtype == np.float16 and got["v"][order].tolist() == [[1, 2], [0.5, 1], [3, 4]]
    assert sorted(got["t"].tobytes()) == [*b"abc"]


@pytest.mark.parametrize("between", ["", SHUFFLED])
@pytest.mark.parametrize("source", ["", UNTYPED])
def test_what_the_batcher_says_need_not_be_said_before(
    make_feed: MakeFeed, tmp_path: Path, between: str, source: str
) -> None:
    data = lines(tmp_path / "data", ROWS)
    x = "y" if source else "x"
    batch = f"""fields {{ name: "id" dtype: "int32" }} fields {{ name: "{x}" dtype: "float32" }}
        fields {{ name: "v" dtype: "float16" shape: 2 }} fields {{ name: "t" dtype: "text" }}"""
    settings = {"between": between, "last": "shuffled" if between else "source"}
    got = columns(make_feed(data, pipeline=STAGES, source=source, batch=batch, **settings))
    order = np.argsort(got["id"])
    assert got[x].dtype == np.float32 and got[x][order].tolist() == [1, 2.5, 3]
    assert got["v"].dtype == np.float16 and len(got["v"]) == 3


def test_numbers_that_a_source_would_round_are_rounded(make_feed: MakeFeed, tmp_path: Path) -> None:
    """A field that the source names goes by the batcher's type as by its own; also as text."""
    rows = [{"x": 2**53 + 1, "t": 1.50}, {"x": 0.1, "t": [1, "a"]}]
    data = lines(tmp_path / "data", rows)
    batch = 'fields { name: "x" dtype: "float64" } fields { name: "t" dtype: "text" }'
    source = 'fields { name: "x" } fields { name: "t" }'
    run = make_feed(data, pipeline=STAGES, source=source, batch=batch, **TO_SOURCE)
    got = columns(run)
    assert got["x"].tolist() == [2.0**53, 0.1] and got["t"].tobytes() == b'1.5[1,"a"]'


def test_numbers_in_a_tar_are_those_of_the_batch(make_feed: MakeFeed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with tarfile.open(data / "a.tar", "w") as tar:
        for key, text in enumerate(("7", " 8\n", "no", "9")):
            for ending, content in (("cls", text), ("txt", f"t{key}")):
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content.encode()))
    batch = 'fields { name: "cls" dtype: "int16" } fields { name: "txt" dtype: "text" }'
    run = make_feed(data, pipeline=STAGES, source="", batch=batch, **TO_SOURCE)
    got = columns(run)
    assert got["cls"].dtype == np.int16 and got["cls"].tolist() == [7, 8, 9]
    assert got["txt"].tobytes() == b"t0t1t3"
    assert "member '2.cls' is not int16" in run.text()


def refused(
    tmp_path: Path, source: str, batch: str, between: str = "", last: str = "source"
) -> str:
    data = tmp_path / "data"
    data.mkdir(exist_ok=True)
    (data / "a.jsonl").write_text('{"x": 1}\n')
    run = FeedRun(
        tmp_path, data, feed="f", pipeline=STAGES, source=source, batch=batch, between=between,
        last=last,
    )  # fmt: skip
    done = run.command("check", str(run.config))
    assert done.returncode in (0, 3), done.stderr
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize(
    "source, batch, fits",
    [
        ("int64", "int64", True),
        ("int8", "int32", True),
        ("uint16", "float32", True),
        ("int32", "float64", True),
        ("float32", "float64", True),
        ("bool", "uint8", True),
        ("text", "bytes", True),
        ("int64", "int32", True),
        ("int64", "float64", True),
        ("float64", "float32", True),
        ("float32", "int64", True),
        ("bool", "text", False),
        ("text", "int64", False),
        ("bytes", "text", False),
    ],
)
def test_types_that_contradict_each_other_are_refused(
    tmp_path: Path, source: str, batch: str, fits: bool
) -> None:
    why = refused(tmp_path, X.format(source), X.format(batch))
    assert (why == "") is fits, why
    if not fits:
        assert "stage 'batches'" in why
        assert f"field 'x' is {batch} here and {source} by fields[0] of stage 'source'" in why


def test_other_contradictions_and_what_nobody_says(tmp_path: Path) -> None:
    typed = 'fields { name: "x" dtype: "float32" default: "[0, 0]" }'
    why = refused(tmp_path, typed, 'fields { name: "x" shape: 3 }')
    assert "shape [3] here" in why and "fields[0] of stage 'source' has [2]" in why
    why = refused(tmp_path, "", 'fields { name: "x" }')
    assert "it has no dtype; give one as NumPy names it" in why
    # Through a shuffler, and of one of the inputs of a mixer.
    why = refused(tmp_path, X.format("text"), X.format("int8"), SHUFFLED, "shuffled")
    assert "text by fields[0] of stage 'source'" in why
    mixed = MIXED.replace('fields { name: "id" }', X.format("text"), 1)
    why = refused(tmp_path, X.format("int8"), 'fields { name: "x" }', mixed, "shuffled")
    assert "field 'x' is int8 here and text by fields[0] of stage 'other'" in why


@pytest.mark.parametrize("dtype, fits", [("", True), ("int32", True), ("text", False)])
def test_numbers_of_items_are_int64_and_may_be_smaller(
    tmp_path: Path, dtype: str, fits: bool
) -> None:
    batch = X.format(dtype) if dtype else 'fields { name: "x" }'
    batch = batch.replace('"x"', '"index"')
    pipeline = """feed: "{feed}" epochs: 1 stages {{ name: "items" index_source {{ count: 4 }} }}
        stages {{ name: "batches" sample_batcher {{ input: "items" batch_size: 4 {batch} }} }}"""
    run = FeedRun(tmp_path, tmp_path, feed="f", pipeline=pipeline, batch=batch)
    done = run.command("check", str(run.config))
    assert done.returncode == (0 if fits else 3), done.stderr
    if not fits:
        assert "field 'index' is text here and int64 by stage 'items'" in done.stderr


def test_a_pipeline_in_python_says_it_once_too(tmp_path: Path) -> None:
    data = lines(tmp_path / "data", ROWS)
    of = rp.files(str(data / "*.jsonl")).jsonl(fields={"id": "int16", "x": "float32"})
    with of.batch(8, fields=["id", "x"]).feed("once", epochs=1).start() as loader:
        batch = loader.next(60)
        assert batch["id"].dtype == np.int16 and batch["x"].dtype == np.float32
        assert batch["x"].tolist() == [1, 2.5, 3]
