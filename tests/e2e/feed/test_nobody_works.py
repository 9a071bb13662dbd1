"""A feed in which nobody works and somebody waits says so: in its log, its status and to its trainers."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ringfeed

from tests.support.feeds.feed_run import BIN, FeedRun, wait_until

LIMIT_MS = 6000
LINES = 100
PIPELINE = """
feed: "still"
seed: 7
epochs: {epochs}
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{ input: "provider" }} }}
{middle}
stages {{ name: "batches" sample_batcher {{
  input: "{last}" batch_size: 4 fields {{ name: "id" dtype: "int64" }} }} }}
feed_output {{ slots: 4 }}
restart {{ stall_ms: {limit_ms} }}
"""
FORGETFUL = """
stages { name: "middle" plugin { kind: "forgetful" input: "lines" } }
stage_groups { name: "in" stages: ["provider", "lines"] }
stage_groups { name: "own" stages: ["middle", "batches"] }
"""
Make = Callable[..., FeedRun]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text("".join(f"{json.dumps({'id': i})}\n" for i in range(LINES)))
    made: list[FeedRun] = []

    def run(*options: str, **settings: Any) -> FeedRun:
        (tmp_path / "run").mkdir()
        values = {"middle": "", "last": "lines", **settings}
        made.append(
            FeedRun(
                *(tmp_path / "run", data),
                feed="still",
                pipeline=PIPELINE,
                limit_ms=LIMIT_MS,
                **values,
            )
        )
        return made[-1].start(*options)

    yield run
    for one in made:
        one.close()


def attach(run: FeedRun, group: str) -> ringfeed.Feed:
    return ringfeed.attach(
        "still", group=group, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=120
    )


def problems(run: FeedRun) -> list[str]:
    return (run.status() or {}).get("problems", [])


def waited_ms(run: FeedRun, group: str) -> float:
    """How long the trainer of a group has waited for batches, all in all."""
    trainers = (run.status() or {}).get("trainers", [])
    return max(
        (float(one["waited_ns"]) / 1e6 for one in trainers if one["group"] == group), default=0.0
    )


def test_a_stage_that_forgets_to_go_on(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """It is named, and beginning it again helps: nothing is lost."""
    run = make("--worker", str(BIN / "plugin_worker"), middle=FORGETFUL, last="middle")
    got: list[int] = []

    def train() -> None:
        with attach(run, "train") as feed:
            for batch in feed:
                got.extend(batch["id"].tolist())
                batch.release()

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for times in (1, 2):
            wait_until(lambda: problems(run), "it to be a problem of the feed")
            (problem,) = problems(run)
            assert "nobody has worked for" in problem, problem
            assert re.search(r"middle.0 \(process \d+\) sleeps before [1-9]", problem), problem
            assert run.text().count(" feed_stands_still ") == times
            wait_until(lambda: heard(caplog), "the trainer to hear it")
            caplog.clear()
            done = run.command("restart", "still", "own")
            assert done.returncode == 0, done.stderr
            if times == 1:
                wait_until(lambda: " feed_goes_on " in run.text(), "it to go on")
    finally:
        trainer.join()
    assert sorted(got) == list(range(LINES))
    assert run.wait() == 0, run.text()


def heard(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        one.getMessage()
        for one in caplog.records
        if one.levelno == logging.WARNING and "feed still: nobody has worked" in one.getMessage()
    ]


def test_a_trainer_that_works_on_its_batches(make: Make) -> None:
    """The others wait for it, and for nobody of the feed."""
    run = make()
    with attach(run, "slow") as slow, attach(run, "quick") as quick:
        held = [slow.next() for _ in range(4)]
        waits = threading.Thread(target=lambda: [one.release() for one in quick])
        waits.start()
        try:
            wait_until(lambda: waited_ms(run, "quick") > 2 * LIMIT_MS, "the other one waits")
            assert not problems(run)
        finally:
            for batch in held:
                batch.release()
            for batch in slow:
                batch.release()
            waits.join()
    assert "feed_stands_still" not in run.text()


def test_a_source_that_waits_for_files(make: Make, tmp_path: Path) -> None:
    """Others give them, in their time."""
    late = tmp_path / "late.jsonl"
    (tmp_path / "data" / "a.jsonl").rename(late)
    run = make(epochs=0)
    first: list[ringfeed.Batch] = []
    with attach(run, "train") as feed:
        waits = threading.Thread(target=lambda: first.append(feed.next()))
        waits.start()
        try:
            wait_until(lambda: waited_ms(run, "train") > 2 * LIMIT_MS, "it waits")
            assert not problems(run)
        finally:
            late.rename(tmp_path / "data" / "a.jsonl")
            waits.join()
        assert len(first) == 1
        first.pop().release()
    assert "feed_stands_still" not in run.text()
