"""How a feed ends and what it waits for, as its trainers and whoever looks at it are told."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ringfeed

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]


def attach(run: FeedRun, group: str = "default") -> ringfeed.Feed:
    return ringfeed.attach("lc0", group, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60)


@pytest.mark.parametrize("how", ["stop --now", "two signals", "drain_timeout_s"])
def test_a_feed_that_is_cut_off_is_no_end_for_its_trainers(make_run: MakeRun, how: str) -> None:
    run = make_run(epochs=0, extra="shutdown { drain_timeout_s: 1 }").start()
    with attach(run) as feed:
        held = feed.next()
        if how == "stop --now":
            subprocess.Popen([str(run.program), "stop", "lc0", "--now"], env=run.environment).wait(
                60
            )
        else:
            assert run.process is not None
            run.process.terminate()
            if how == "two signals":
                wait_until(lambda: "feed_draining" in run.text(), "the drain")
                run.process.terminate()
            assert run.wait() == 0, run.text()
        del held
        with pytest.raises(ringfeed.FeedStopped, match="stopped by"):
            for _ in feed:
                pass
        assert feed.end_reason is None


def test_a_feed_that_is_drained_ends_and_says_by_whom(make_run: MakeRun) -> None:
    run = make_run(epochs=0).start()
    with attach(run) as feed:
        feed.next()
        assert run.process is not None
        run.process.terminate()
        for _ in feed:
            pass
        assert feed.end_reason is not None and "signal 15" in feed.end_reason
    assert run.wait() == 0, run.text()


def test_a_run_that_is_over_says_so(make_run: MakeRun) -> None:
    run = make_run(epochs=1).start()
    with attach(run) as feed:
        for _ in feed:
            pass
        assert feed.end_reason == "the run is over"
    assert run.wait() == 0, run.text()


def totals(metrics: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By the stage's name what it has counted."""
    found = {}
    for stage in metrics["total"]["stage_metrics"]:
        (own,) = (part for part in stage.values() if isinstance(part, dict))
        found[stage["name"]] = own
    return found


def test_the_totals_of_a_run_outlive_it(
    make_run: MakeRun, games: lc0_data.Manifest, tmp_path: Path
) -> None:
    directory = tmp_path / "games"
    shutil.copytree(games.directory, directory)
    (directory / "damaged.tar").write_bytes(b"no tar")
    run = make_run(directory, epochs=1).start()
    with attach(run) as feed:
        batches = 1
        feed.next().release()
        victim = next(iter(run.workers().values()))
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: "worker_died " in run.text(), "the death")
        for _ in feed:
            batches += 1
        # At once or any time later, with the supervisor or without.
        metrics = feed.metrics()
        assert metrics["deaths"] == 1 and metrics["uptime_ms"] > 0
        stages = totals(metrics)
        assert stages["loader"]["skipped_no_chunks"] + stages["loader"]["skipped_unreadable"] == 1
        assert sum(stages["tensors"].get(name, 0) for name in ("batches", "rows")) > 0
        assert run.wait() == 0, run.text()
        assert feed.metrics() == metrics
    assert feed.metrics() == metrics
    text = run.text().splitlines()
    begins = f"feed lc0: {batches} batches in "
    (first,) = (i for i, line in enumerate(text) if line.startswith(begins))
    assert text[first].endswith(" s, 1 death of a stage")
    assert any(line.startswith("  loader: ") and "skipped_" in line for line in text[first:])


def test_the_totals_of_a_loader_outlive_its_run(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(epochs=1)
    monkeypatch.setenv("RINGFEED_BIN_DIR", str(run.program.parent))
    loader = ringfeed.DataLoader(run.config.read_text(), timeout_s=60)
    with pytest.raises(ringfeed.FeedDetached):
        loader.metrics()
    loader.start()
    batches = sum(1 for _ in loader)
    metrics = loader.metrics()
    (queue,) = (
        stage["output_queue_metrics"][0]
        for stage in metrics["total"]["stage_metrics"]
        if stage["name"] == "tensors"
    )
    assert queue["put_count"] == batches > 0
    loader.stop()
    assert loader.metrics() == metrics


def test_a_timeout_names_the_group_that_holds_up_the_feed(make_run: MakeRun) -> None:
    run = make_run(epochs=0, groups='groups { name: "eval" }').start()
    with attach(run) as feed:

        def told() -> str:
            try:
                feed.next(timeout_s=1.5)
            except ringfeed.FeedTimeout as error:  # on a busy machine of a stage at first
                return str(error) if "group" in str(error).partition(";")[2] else ""
            return ""

        text = wait_until(told, "the group to be named")
        assert "the feed waits for group 'eval': 6 batches behind, no member attached" in text
        shown = run.command("status", "lc0").stdout
        assert "the feed waits for group 'eval': 6 batches behind, no member attached" in shown
    assert run.command("stop", "lc0", "--now").returncode == 0


def test_a_drain_says_whom_it_waits_for(make_run: MakeRun) -> None:
    run = make_run(epochs=0, groups='groups { name: "eval" }').start()
    wait_until(
        lambda: "waits for group 'eval'" in (run.status() or {}).get("reason", ""), "full slots"
    )
    assert run.process is not None
    run.process.terminate()
    wait_until(lambda: "drain_waits feed=lc0" in run.text(), "the log to say so")
    line = next(line for line in run.text().splitlines() if "drain_waits" in line)
    assert "the feed waits for group 'eval': 6 batches behind, no member attached" in line
    reason = (run.status() or {})["reason"]
    assert "stopped by signal 15" in reason and "waits for group 'eval'" in reason
    run.process.terminate()
    assert run.wait() == 0


FAILING = """
import ringfeed, sys
with ringfeed.attach("lc0", timeout_s=60, attach_timeout_s=60) as feed:
    batch = feed.next()
    planes = batch["planes"]
    raise ValueError("the model diverged")
"""


def test_an_exception_inside_with_is_no_death_and_its_batch_comes_again(make_run: MakeRun) -> None:
    run = make_run(epochs=1).start()
    done = subprocess.run(
        [sys.executable, "-c", FAILING],
        env=run.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "the model diverged" in done.stderr
    wait_until(lambda: "trainer_left" in run.text(), "the log to say that it has left")
    assert "trainer_died" not in run.text()
    line = next(line for line in run.text().splitlines() if "trainer_left" in line)
    assert "batches_returned=1" in line
    with attach(run) as feed:
        first = feed.next()
        assert first.seq == 1 and first.tries == 1
        del first
        for _ in feed:
            pass
    assert run.wait() == 0, run.text()


def test_status_says_what_a_stage_does_once(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "later", epochs=0).start()
    note = f"{tmp_path}/later: no such directory"
    shown = wait_until(
        lambda: text if note in (text := run.command("status", "lc0").stdout) else "", "the note"
    )
    assert shown.count(note) == 1
    assert run.stop() == 0, run.text()
