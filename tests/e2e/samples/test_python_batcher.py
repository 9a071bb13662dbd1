"""Batches made by functions in Python, whole: real interpreters, their faults, their deaths."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfeed
from tests.support.feeds.feed_run import FeedRun
from tests.support.feeds.scenes import kill_a_worker

# Of a batch: the ids of its rows, and all its arrays as bytes.
Batch = tuple[list[int], bytes]

STAGES = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
{feed_settings}
stages {{ name: "files" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{
  input: "files" fields {{ name: "id" dtype: "int64" }} fields {{ name: "text" }} }} }}
stages {{ name: "batches" python_batcher {{
  input: "lines" object: "{object}" python_path: "{modules}" batch_size: 16 lineage: true
  fields {{ name: "id" dtype: "int64" }}
  fields {{ name: "square" dtype: "float32" shape: [2, 3] }}
  fields {{ name: "text" dtype: "text" bytes_max: 4096 }}
  {python} }} }}
feed_output {{ slots: 3 }}
restart {{ max_restarts: {restarts} backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: {attempts}
  {restart} }}
"""

AS_MAP = """
feed: "{feed}"
epochs: {epochs}
stages {{ name: "files" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{ input: "files" }} }}
stages {{ name: "mapped" python {{
  input: "lines" object: "{object}" python_path: "{modules}" {python} }} }}
stages {{ name: "batches" sample_batcher {{
  input: "mapped" batch_size: 16 fields {{ name: "id" dtype: "int64" }} }} }}
"""

MODULE = '''
import ctypes, os, random, time
import numpy as np
from ringfeed import stage


@stage.batch
def returns(samples):
    """Copied into the slot: an array, a list, a list of text."""
    square = np.array([[[one["id"]] * 3] * 2 for one in samples], np.float32)
    return {"id": [int(one["id"]) for one in samples], "square": square,
            "text": [one["text"] for one in samples]}


class Fills(stage.Batch):
    """Written to the slot; zeros are there before."""

    def __init__(self, factor=1):
        self.factor = factor

    def __call__(self, samples, out):
        assert not out["square"].any() and not out["id"].any()
        for row, one in enumerate(samples):
            out["id"][row] = one["id"]
            out["square"][row] += one["id"] * self.factor
        out["text"] = [one["text"] for one in samples]


@stage.batch
def noisy(samples, out, ctx):
    """Draws from everything that there is, is slow, and trusts to what was in the slot."""
    for row, one in enumerate(samples):
        out["id"][row] = one["id"]
        out["square"][row, 0] += random.random(), np.random.random(), ctx.rng.random()
        out["square"][row, 1] += row
        time.sleep(0.0005)
    return {**out, "text": [f"{one['text']} {ctx.seed} {random.random()}" for one in samples]}


def checked(samples):
    made = returns(samples)
    ids = made["id"]
    if any(i % 40 == 3 for i in ids):
        raise ValueError("no threes, please")
    if len(ids) > 1 and 100 in ids:
        raise RuntimeError("a hundred in company")
    if 50 in ids:
        made["square"] = made["square"][:, :, :2]
    if 51 in ids:
        made["square"] = made["square"].astype(np.float64)
    if 52 in ids:
        del made["text"]
    if 53 in ids:
        made["text"][ids.index(53)] = b"bytes"
    if 54 in ids:
        made["text"][ids.index(54)] = "x" * 5000
    if 55 in ids:
        made["texts"] = made["text"]
    if 56 in ids:
        return made["id"]
    if 57 in ids:
        made["id"] = [{} for _ in ids]
    return made


checked = stage.batch(checked)


@stage.batch
def torchs(samples):
    from torch.utils.data import default_collate

    made = default_collate(samples)
    square = made["id"][:, None, None].expand(-1, 2, 3).float()
    return {"square": square, **made}


@stage.batch
def too_many(samples):
    made = returns(samples)
    return {**made, "id": np.zeros(16, np.int64)}


@stage.batch
def deadly(samples):
    ids = [int(one["id"]) for one in samples]
    if 50 in ids:
        ctypes.string_at(0)
    if 150 in ids:
        os._exit(7)
    return returns(samples)


@stage.batch
def deadly_together(samples):
    if len(samples) > 1 and any(one["id"] == 50 for one in samples):
        ctypes.string_at(0)
    return returns(samples)


@stage.batch
def always_deadly(samples):
    ctypes.string_at(0)


@stage.batch
def never_together(samples):
    if len(samples) > 1:
        ctypes.string_at(0)
    return returns(samples)


@stage.batch
def endless(samples):
    while any(one["id"] == 60 for one in samples):
        time.sleep(0.01)
    return returns(samples)


@stage.map
def a_map(sample):
    return sample


def plain(samples):
    return returns(samples)


@stage.batch(zero_copy=True)
def views(samples):
    texts = [one["text"] for one in samples]
    return {**returns(samples), "text": texts}
'''

Make = Callable[..., FeedRun]


@pytest.fixture
def make_feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("RINGFEED_PYTHON", sys.executable)
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "data").mkdir()
    runs: list[FeedRun] = []

    def make(name: str, rows: int = 200, **settings: Any) -> FeedRun:
        with open(tmp_path / "data" / "rows.jsonl", "w") as file:
            for i in range(rows):
                file.write(json.dumps({"id": i, "text": f"row {i}"}) + "\n")
        values = {
            "feed": "batched",
            "pipeline": STAGES,
            "feed_settings": "",
            "object": f"mine:{name}",
            "modules": str(tmp_path),
            "python": "",
            "attempts": 3,
            "restarts": 2000,
            "restart": "",
            **settings,
        }
        work = tmp_path / f"run{len(runs)}"
        work.mkdir()
        runs.append(FeedRun(work, tmp_path / "data", **values))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def whole(batch: ringfeed.Batch) -> Batch:
    names = ("id", "square", "text", "text_offsets", "lineage")
    return batch["id"].tolist(), b"".join(batch[name].tobytes() for name in names)


def batches_of(run: FeedRun, disturb: Callable[[], None] | None = None) -> list[Batch]:
    got = []
    with ringfeed.attach(
        run.feed, socket_dir=run.sockets, attach_timeout_s=120, timeout_s=60
    ) as feed:
        for batch in feed:
            got.append(whole(batch))
            batch.release()
            if disturb:
                disturb()
    assert run.wait() == 0, run.text()
    return got


def ids_of(run: FeedRun) -> list[list[int]]:
    return [ids for ids, _ in batches_of(run)]


def in_batches(ids: list[int]) -> list[list[int]]:
    return [ids[i : i + 16] for i in range(0, len(ids), 16)]


def counters(run: FeedRun) -> dict[str, int]:
    """Of the stage, from what the feed says at its end."""
    line = next(line for line in run.text().splitlines() if line.startswith("  batches:"))
    pairs = (pair.split("=") for pair in line.split(":", 1)[1].replace(",", "").split())
    return {name: int(value) for name, value in pairs}


@pytest.mark.parametrize("name", ["returns", "Fills", "views"])
def test_arrays_are_those_of_the_samples(make_feed: Make, tmp_path: Path, name: str) -> None:
    factor = 2 if name == "Fills" else 1
    python = "options: '{\"factor\": 2}'" if name == "Fills" else ""
    run = make_feed(name, 200, python=python).start()
    seen: list[int] = []
    with ringfeed.attach(run.feed, socket_dir=run.sockets, attach_timeout_s=120) as feed:
        for batch in feed:
            ids = batch["id"]
            assert batch.rows == len(ids) == min(16, 200 - len(seen))
            want = np.broadcast_to(np.float32(ids * factor)[:, None, None], (len(ids), 2, 3))
            assert np.array_equal(batch["square"], want)
            text, offsets = batch["text"].tobytes(), batch["text_offsets"]
            rows = [text[offsets[i] : offsets[i + 1]].decode() for i in range(batch.rows)]
            assert rows == [f"row {i}" for i in ids]
            origins = list(ringfeed.lineage(batch["lineage"], tmp_path / "data"))
            assert [origin.number for origin in origins] == [i + 1 for i in ids]
            seen += ids.tolist()
            batch.release()
    assert seen == list(range(200)) and run.wait() == 0
    run = make_feed(name, 200, python=python, feed_settings="drop_remainder: true").start()
    assert ids_of(run) == in_batches(list(range(192)))


def test_default_collate_of_pytorch_makes_batches(make_feed: Make) -> None:
    pytest.importorskip("torch")
    assert batches_of(make_feed("torchs", 40).start()) == batches_of(
        make_feed("returns", 40).start()
    )


def test_kills_change_nothing(make_feed: Make) -> None:
    want = batches_of(make_feed("noisy", 1600, attempts=255).start())
    assert len({made for _, made in want}) == len(want) == 100
    run = make_feed("noisy", 1600, attempts=255).start()
    rng = random.Random(4)
    kills = 0

    def disturb() -> None:
        nonlocal kills
        if rng.random() < 0.7 and kill_a_worker(run, rng):
            kills += 1

    assert batches_of(run, disturb) == want
    assert kills > 20 and "group=batches.0 signal=9" in run.text()


def test_what_raises_alone_is_left_out(make_feed: Make) -> None:
    run = make_feed("checked", 140).start()
    left = [i for i in range(140) if i % 40 != 3 and not 50 <= i <= 57]
    # What raises only in company goes with all of its batch.
    whole_batches = [ids for ids in in_batches(left) if 100 not in ids]
    assert ids_of(run) == whole_batches
    counted = counters(run)
    assert counted["skipped_ValueError"] == 4
    assert counted["skipped_RuntimeError"] == 16
    assert counted["skipped_wrong_shape"] == 1
    assert counted["skipped_wrong_type"] == 3  # 51, 53, 57
    assert counted["skipped_missing_field"] == 1
    assert counted["skipped_too_large"] == 1
    assert counted["skipped_TypeError"] == 2  # 55, 56
    assert counted["rows"] == sum(map(len, whole_batches))
    text = run.text()
    for said in (
        "field 'square' has shape [1, 2, 2], not [1, 2, 3]",
        "field 'square' is float64, not float32",
        "there is no field 'text'",
        "field 'text' has 5000 bytes, a batch has room for 4096: raise bytes_max",
        "'texts' is no field of the batch, which has id, square, text",
    ):
        assert said in text, said
    assert text.count('raise ValueError("no threes, please")') == 1


def test_wrong_rows_are_an_error(make_feed: Make) -> None:
    run = make_feed("too_many", 40).start()
    assert ids_of(run) == [[0] * 16] * 2  # and not of the last eight
    assert counters(run)["skipped_wrong_shape"] == 8
    assert "field 'id' has shape [16], not [1]" in run.text()


def test_an_exception_can_end_the_feed(make_feed: Make) -> None:
    run = make_feed("checked", python="on_error: STOP").start()
    with pytest.raises(ringfeed.FeedFailed, match="(?s)ValueError for the batch.*no threes"):
        batches_of(run)
    assert run.wait() != 0


def test_a_sample_that_kills_is_set_aside(make_feed: Make, tmp_path: Path) -> None:
    letters = tmp_path / "letters"
    run = make_feed("deadly", restart=f'dead_letters: "{letters}"').start()
    assert ids_of(run) == in_batches([i for i in range(200) if i not in (50, 150)])
    text = run.text()
    assert text.count("record_quarantined") == 2
    assert "Fatal Python error: Segmentation fault" in text and "in deadly" in text
    assert counters(run)["dead_letters"] == 2
    kept = sorted(letters.glob("*.record"))
    assert [path.name for path in kept] == [
        "batches-input-0.0-150.record",
        "batches-input-0.0-50.record",
    ]
    done = run.command("dead-letters", "--replay", str(kept[1]))
    assert done.returncode == 6 and "signal 11" in done.stdout, done.stdout + done.stderr


def test_a_batch_that_kills_is_set_aside_whole(make_feed: Make) -> None:
    run = make_feed("deadly_together").start()
    batches = in_batches(list(range(200)))
    assert ids_of(run) == [ids for ids in batches if 50 not in ids]
    assert run.text().count("record_quarantined") == 1
    assert "batch_set_aside stage=batches samples=16" in run.text()
    assert counters(run)["dead_letters"] == 16


def test_a_stage_that_always_dies_ends_the_feed(make_feed: Make) -> None:
    # More records than a batch has.
    run = make_feed("always_deadly", restarts=18).start()
    with pytest.raises(ringfeed.FeedFailed, match="set aside 19 records in a row"):
        batches_of(run)
    assert run.wait() != 0


def test_a_stage_that_never_makes_a_batch_ends_the_feed(make_feed: Make) -> None:
    run = make_feed("never_together", restarts=4).start()
    with pytest.raises(ringfeed.FeedFailed, match="set aside 5 batches in a row"):
        batches_of(run)
    assert run.wait() != 0 and run.text().count("record_quarantined") == 5


def test_a_hang_is_ended_and_says_where(make_feed: Make) -> None:
    run = make_feed("endless", 100, restart="stall_ms: 2000").start()
    assert ids_of(run) == in_batches([i for i in range(100) if i != 60])
    text = run.text()
    assert text.count("worker_stalled") == 4  # the batch, then the sample, three times
    assert "in endless" in text


def test_a_snapshot_keeps_the_batch_under_way(make_feed: Make, tmp_path: Path) -> None:
    want = batches_of(make_feed("noisy", 400).start())
    run = make_feed("noisy", 400).start()
    got = 0
    with ringfeed.attach(run.feed, socket_dir=run.sockets, attach_timeout_s=120) as feed:
        for _ in range(5):
            feed.next().release()
            got += 1
        feed.snapshot(tmp_path / "saved")
    run.command("stop", run.feed, "--now")
    run.wait()
    again = make_feed("noisy", 400).start("--resume", str(tmp_path / "saved"))
    assert batches_of(again) == want[got:]


def test_check_finds_objects_of_another_kind(make_feed: Make) -> None:
    def said(run: FeedRun) -> str:
        done = run.command("check", str(run.config))
        assert done.returncode == 3, done.stdout + done.stderr
        return done.stderr

    for name in ("a_map", "plain"):
        text = said(make_feed(name))
        assert f"mine:{name} is a map: a stage python calls it" in text
        assert "marked @ringfeed.stage.batch" in text
    for name in ("returns", "Fills"):
        text = said(make_feed(name, pipeline=AS_MAP))
        assert f"mine:{name} makes batches: a stage python_batcher calls it" in text
    text = said(make_feed("Fills", python="options: '{\"fctor\": 2}'"))
    assert "unexpected keyword argument 'fctor'" in text
    text = said(make_feed("returns", python='fields { name: "id" dtype: "int64" }'))
    assert "two arrays of a batch would be named 'id'" in text
