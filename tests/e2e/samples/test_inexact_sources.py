"""Sources whose states are not exact, in whole feeds whose processes are killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ringfeed
from tests.support.feeds.feed_run import FeedRun, wait_until

pytest.importorskip("datasets")
pytest.importorskip("torchdata")

ROWS = 4000

MODULE = """
import random
import threading

import datasets
import torchdata.nodes as nodes
import tqdm

# Its lock is shared by processes, and stays locked for ever if one is killed that has it.
tqdm.tqdm.monitor_interval = 0
tqdm.tqdm.set_lock(threading.RLock())


def numbers(count=4000, first=0):
    rows = {"id": list(range(first, first + count)), "more": ["x" * 100] * count}
    return datasets.Dataset.from_dict(rows).to_iterable_dataset(num_shards=4)


def shuffled():
    return numbers().shuffle(seed=3, buffer_size=1000)


def interleaved():
    parts = [numbers(2000).shuffle(seed=1, buffer_size=500), numbers(2000, 2000)]
    return datasets.interleave_datasets(parts, stopping_strategy="all_exhausted")


def tensors():
    return shuffled().with_format("torch")


def wrapped():
    return nodes.Prefetcher(nodes.IterableWrapper(shuffled()), prefetch_factor=8)


class Own:
    def __init__(self):
        self.read, self.rng = 0, random.Random(5)

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]

    def __iter__(self):
        held = []
        while self.read < 4000:
            held.append(self.read)
            self.read += 1
            if len(held) > 300:
                yield {"id": held.pop(self.rng.randrange(len(held))), "more": "x" * 100}
        for one in held:
            yield {"id": one, "more": "x" * 100}
"""

PIPELINE = """
feed: "{feed}"
seed: 5
epochs: 1
stages {{ name: "items" python_source {{
  object: "streams:{name}" python_path: "{modules}" queue_bytes: 65536 batch: 8 {state} }} }}
stages {{ name: "batches" sample_batcher {{
  input: "items" batch_size: 16 fields {{ name: "id" dtype: "int64" }} }} }}
feed_output {{ slots: 3 }}
restart {{ max_restarts: 100 backoff_ms_min: 1 backoff_ms_max: 5 }}
"""


@pytest.fixture(name="start")
def started(tmp_path: Path) -> Iterator[Callable[[str, str], FeedRun]]:
    started: list[FeedRun] = []
    (tmp_path / "streams.py").write_text(MODULE)

    def start(name: str, state: str) -> FeedRun:
        work = tmp_path / f"run{len(started)}"
        work.mkdir()
        started.append(
            FeedRun(
                *(work, tmp_path),
                **{"feed": "streams", "pipeline": PIPELINE, "name": name, "state": state},
                modules=str(tmp_path),
            )
        )
        return started[-1].start()

    yield start
    for run in started:
        run.close()


def ids_of(run: FeedRun, kills: set[int]) -> list[int]:
    """What comes, while the source's process is killed at these batches.

    Its queue holds some hundred samples, so it has not ended then.
    """
    got: list[int] = []
    with ringfeed.attach(
        run.feed, socket_dir=run.sockets, attach_timeout_s=120, timeout_s=60
    ) as feed:
        for number, batch in enumerate(feed):
            got += batch["id"].tolist()
            batch.release()
            if number in kills:
                pid = run.all_workers()["items.0"]
                os.kill(pid, signal.SIGKILL)
                wait_until(
                    lambda: run.all_workers().get("items.0") not in (pid, None),  # noqa: B023
                    "a new process",
                )
    assert run.wait() == 0, run.text()
    return got


@pytest.mark.parametrize(
    "name, state",
    [
        *(("shuffled", ""), ("interleaved", ""), ("tensors", ""), ("wrapped", ""), ("Own", "")),
        ("Own", "state: RUN_FORWARD"),
    ],
)
def test_four_deaths_lose_nothing(
    start: Callable[[str, str], FeedRun], name: str, state: str
) -> None:
    draw = random.Random(name)
    kills = set(draw.sample(range(10, 160), 4))
    run = start(name, state)
    got = ids_of(run, kills)
    assert sorted(set(got)) == list(range(ROWS))
    if name != "interleaved":  # which takes some of one part twice
        assert len(got) == ROWS
    assert run.text().count("worker_died") == 4
    # One that is killed before it has begun says nothing.
    assert 1 <= run.text().count("samples are read again to come to where it was") <= 4
