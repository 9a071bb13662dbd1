"""Feeds of lines of JSON, shuffled and batched, beside what Python reads."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed
import ringfeed.pipeline as rp

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.scenes import kill_a_worker

STAGES = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{ input: "provider" threads: {readers} block_bytes: 65536 }} }}
stages {{ name: "shuffled" sample_shuffler {{ input: "lines" size: {size} }} }}
stages {{ name: "batches" sample_batcher {{
  input: "shuffled" batch_size: 32
  fields {{ name: "id" dtype: "int64" }}
  fields {{ name: "text" dtype: "text" }}
  fields {{ name: "vector" dtype: "float64" shape: 3 }} }} }}
feed_output {{ slots: {slots} }}
{extra}
"""
MakeSamples = Callable[..., FeedRun]
Row = tuple[int, str, tuple[float, ...]]


def write(directory: Path, count: int) -> list[Row]:
    """Files of each kind, and their rows in the order of the files' names."""
    directory.mkdir()
    rng = random.Random(1)
    rows: list[Row] = [
        (i, "é" * rng.randrange(200), (i + 0.5, rng.random(), -1.5)) for i in range(count)
    ]
    lines = [json.dumps({"vector": v, "text": t, "id": i}) + "\n" for i, t, v in rows]
    third = count // 3
    (directory / "a.jsonl").write_text("".join(lines[:third]))
    (directory / "b.jsonl.gz").write_bytes(
        gzip.compress("".join(lines[third : 2 * third]).encode())
    )
    (directory / "c.ndjson").write_text("".join(lines[2 * third :]) + "no json\n")
    return rows


@pytest.fixture
def make_samples(tmp_path: Path) -> Iterator[MakeSamples]:
    runs: list[FeedRun] = []

    def make(directory: Path, **settings: Any) -> FeedRun:
        values = {"feed": "samples", "pipeline": STAGES, "size": 100, **settings}
        work = tmp_path / f"run{len(runs)}"
        work.mkdir()
        runs.append(FeedRun(work, directory, **values))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def rows_of(batch: ringfeed.Batch) -> list[Row]:
    offsets = batch["text_offsets"]
    text = batch["text"].tobytes()
    assert offsets[0] == 0 and offsets[-1] == len(text) and len(offsets) == batch.rows + 1
    return [
        (
            int(batch["id"][i]),
            text[offsets[i] : offsets[i + 1]].decode(),
            tuple(batch["vector"][i].tolist()),
        )
        for i in range(batch.rows)
    ]


def all_rows(run: FeedRun, kills: int = 0) -> list[Row]:
    """What a trainer gets until the feed ends; workers are killed meanwhile."""
    rng = random.Random(kills)
    got: list[Row] = []
    left = kills
    with ringfeed.attach(
        "samples", socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
    ) as feed:
        for batch in feed:
            got += rows_of(batch)
            batch.release()
            if left and kill_a_worker(run, rng):
                left -= 1
    assert run.wait() == 0, run.text()
    return got


def test_every_row_comes_once_an_epoch(make_samples: MakeSamples, tmp_path: Path) -> None:
    rows = write(tmp_path / "data", 900)
    run = make_samples(tmp_path / "data", epochs=2).start()
    got = all_rows(run)
    assert sorted(got) == sorted(rows + rows)
    assert got[: len(rows)] != rows
    assert "reason=skipped_no_json" in run.text()


def test_one_order_whatever_the_lanes_and_deaths(make_samples: MakeSamples, tmp_path: Path) -> None:
    write(tmp_path / "data", 1500)
    often = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: 255 }"
    want = all_rows(make_samples(tmp_path / "data", epochs=2).start())
    assert all_rows(make_samples(tmp_path / "data", epochs=2, readers=3).start()) == want
    for kills in (10, 25):
        run = make_samples(tmp_path / "data", epochs=2, readers=2, slots=2, extra=often)
        assert all_rows(run.start(), kills) == want


def test_a_snapshot_goes_on_in_the_middle(make_samples: MakeSamples, tmp_path: Path) -> None:
    write(tmp_path / "data", 900)
    want = all_rows(make_samples(tmp_path / "data", slots=2).start())
    run = make_samples(tmp_path / "data", slots=2).start()
    got = []
    with ringfeed.attach("samples", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        for _ in range(9):
            batch = feed.next()
            got += rows_of(batch)
            batch.release()
        feed.snapshot(tmp_path / "saved")
    run.command("stop", "samples", "--now")
    wait_until(lambda: run.process and run.process.poll() is not None, "the end")
    again = make_samples(tmp_path / "data", slots=2).start("--resume", str(tmp_path / "saved"))
    assert got + all_rows(again) == want


MIXED = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "shards" file_path_provider {{
  directory: "{directory}" pattern: "shard-{{00..03}}.tar" }} }}
stages {{ name: "pictures" sample_source {{
  input: "shards"
  fields {{ name: "cls" as: "id" dtype: "int64" }}
  fields {{ name: "txt" as: "text" dtype: "text" }} }} }}
stages {{ name: "listed" file_path_provider {{ list: "{directory}/list" }} }}
stages {{ name: "lines" sample_source {{
  input: "listed" fields {{ name: "id" dtype: "int64" }} fields {{ name: "text" }} }} }}
stages {{ name: "mixed" sample_mixer {{
  input: "pictures" input: "lines" weight: 1 weight: 2 end: LAST }} }}
stages {{ name: "batches" sample_batcher {{
  input: "mixed" batch_size: 16 lineage: true
  fields {{ name: "id" dtype: "int64" }}
  fields {{ name: "text" dtype: "text" }} }} }}
feed_output {{ slots: {slots} }}
{extra}
"""


def add_member(shard: tarfile.TarFile, name: str, content: str) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content.encode())
    shard.addfile(info, io.BytesIO(content.encode()))


def test_tars_and_listed_lines_are_mixed(make_samples: MakeSamples, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(4):
        with tarfile.open(data / f"shard-{number:02}.tar", "w") as shard:
            for i in range(50):
                key = 50 * number + i
                add_member(shard, f"{key:06}.cls", f"{key}\n")
                add_member(shard, f"{key:06}.txt", f"picture {key}")
    with tarfile.open(data / "shard-99.tar", "w") as other:
        add_member(other, "1.cls", "-1")
    lines = [json.dumps({"id": 1000 + i, "text": f"line {i}"}) for i in range(300)]
    (data / "lines.jsonl").write_text("\n".join(lines))
    (data / "list").write_text("lines.jsonl\n")

    got: list[tuple[int, str]] = []
    origins: set[tuple[int, int]] = set()
    run = make_samples(data, pipeline=MIXED).start()
    with ringfeed.attach("samples", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        for batch in feed:
            offsets, text = batch["text_offsets"], batch["text"].tobytes()
            got += [
                (int(batch["id"][i]), text[offsets[i] : offsets[i + 1]].decode())
                for i in range(batch.rows)
            ]
            origins |= {tuple(row) for row in batch["lineage"].tolist()}
            batch.release()
    assert run.wait() == 0, run.text()
    pictures = [(key, f"picture {key}") for key in range(200)]
    assert [row for row in got if row[0] < 1000] == pictures
    assert [row for row in got if row[0] >= 1000] == [(1000 + i, f"line {i}") for i in range(300)]
    assert got[:500] != sorted(got)
    assert len(origins) == 500


def test_arrays_and_numbers(make_samples: MakeSamples, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    np.save(data / "rows.npy", rows)
    pipeline = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "rows" sample_source {{ input: "provider" threads: {readers} }} }}
stages {{ name: "batches" sample_batcher {{
  input: "rows" batch_size: 64 fields {{ name: "data" dtype: "float32" shape: 3 }} }} }}
feed_output {{ slots: {slots} }}
{extra}
"""
    for readers in (1, 3):
        run = make_samples(data, pipeline=pipeline, readers=readers).start()
        with ringfeed.attach("samples", socket_dir=run.sockets, attach_timeout_s=60) as feed:
            got = np.concatenate([np.array(batch["data"]) for batch in feed])
        assert np.array_equal(got, rows)
    weights = tmp_path / "weights.npy"
    np.save(weights, np.array([0.0, 1.0, 3.0]))
    numbers = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "items" index_source {{
  count: 3 samples: 4000 order: WEIGHTED weights: "{directory}" }} }}
stages {{ name: "batches" sample_batcher {{
  input: "items" batch_size: 100 fields {{ name: "index" dtype: "int64" }} }} }}
feed_output {{ slots: {slots} }}
{extra}
"""
    run = make_samples(weights, pipeline=numbers).start()
    with ringfeed.attach("samples", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        drawn = np.concatenate([np.array(batch["index"]) for batch in feed])
    assert set(drawn.tolist()) == {1, 2}
    assert 0.7 < (drawn == 2).mean() < 0.8


def test_check_says_what_is_wrong(make_samples: MakeSamples, tmp_path: Path) -> None:
    write(tmp_path / "data", 9)
    run = make_samples(tmp_path / "data")
    checked = run.command("check", str(run.config))
    assert checked.returncode == 0, checked.stderr
    for line in ("id int64 [rows]", "text uint8 [S0]", "text_offsets int64 [S1]"):
        assert line in checked.stdout
    assert "vector float64 [rows, 3]" in checked.stdout
    wrong = run.command("check", str(run.config), "--set", "stages.batches.fields[0].dtype=integer")
    assert (
        wrong.returncode == 3 and 'dtype is "integer"; give one as NumPy names it' in wrong.stderr
    )


def test_a_batch_has_no_more_arrays_than_a_trainer_can_map(tmp_path: Path) -> None:
    """What started with more could not be attached to."""
    names = [f"x{i}" for i in range(64)]
    (tmp_path / "a.jsonl").write_text(json.dumps(dict.fromkeys(names, 1)) + "\n")
    for lineage in ("false", "true"):
        fields = "".join(f'fields {{ name: "{name}" dtype: "int64" }} ' for name in names)
        (tmp_path / "wide.textproto").write_text(
            f"""feed: "wide" epochs: 1
            stages {{ name: "files" file_path_provider {{ directory: "{tmp_path}" }} }}
            stages {{ name: "lines" sample_source {{ input: "files" }} }}
            stages {{ name: "batches" sample_batcher {{
              input: "lines" batch_size: 4 lineage: {lineage} {fields} }} }}"""
        )
        if lineage == "true":
            with pytest.raises(ringfeed.InvalidConfiguration, match="a batch has at most 64"):
                rp.load(tmp_path / "wide.textproto").start(wait_s=60)
            return
        with rp.load(tmp_path / "wide.textproto").start(wait_s=60) as feed:
            assert [len(list(batch)) for batch in feed] == [64]
