"""Feeds of files as samples, and what comes out of them."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import ringfeed

from tests.support.feeds.feed_run import FeedRun
from tests.support.feeds.scenes import kill_a_worker

STAGES = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "source" sample_source {{
  input: "provider" threads: {readers} block_bytes: 65536 {source} }} }}
stages {{ name: "batches" sample_batcher {{ input: "source" batch_size: 64 {batch} }} }}
feed_output {{ slots: {slots} }}
{extra}
"""
OFTEN = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: 255 }"
TEXT = 'fields { name: "text" dtype: "text" }'


def sample_feed(work: Path, directory: Path, **settings: Any) -> FeedRun:
    """A feed of the files in a directory, started."""
    values = {"feed": "packed", "pipeline": STAGES, "source": "", "batch": TEXT, **settings}
    work.mkdir()
    return FeedRun(work, directory, **values).start()


def rows_of(run: FeedRun, name: str = "text", kills: int = 0) -> list[Any]:
    """A column, until the feed ends; workers are killed meanwhile."""
    got: list[Any] = []
    rng, left = random.Random(kills), kills
    with ringfeed.attach(
        "packed", socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
    ) as feed:
        for batch in feed:
            if f"{name}_offsets" in batch:
                ends, whole = batch[f"{name}_offsets"], batch[name].tobytes()
                got += [whole[ends[i] : ends[i + 1]] for i in range(batch.rows)]
            else:
                got += batch[name].tolist()
            batch.release()
            if left and kill_a_worker(run, rng):
                left -= 1
    assert run.wait() == 0, run.text()
    return got


def counters(run: FeedRun, stage: str = "source") -> dict[str, int]:
    """What the end of the log says; a counter that is not there is 0."""
    line = re.findall(rf"^ *{stage}: (.*)$", run.text(), re.MULTILINE)[-1]
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}
