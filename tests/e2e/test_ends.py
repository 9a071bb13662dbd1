"""How a feed ends and what it waits for, as its trainers and whoever looks at it are told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FeedRun, wait_until

import ringfeed

MakeRun = Callable[..., FeedRun]


def attach(run: FeedRun, group: str = "default") -> ringfeed.Feed:
    return ringfeed.attach("lc0", group, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60)


@pytest.mark.parametrize("how", ["stop --now", "two signals", "drain_timeout_s"])
def test_a_feed_that_is_cut_off_is_no_end_for_its_trainers(make_run: MakeRun, how: str) -> None:
    run = make_run(epochs=0, extra="shutdown { drain_timeout_s: 1 }").start()
    with attach(run) as feed:
        held = feed.next()
        if how == "stop --now":
            subprocess.Popen([str(run.program), "stop", "lc0", "--now"], env=run.environment).wait(60)
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
        [sys.executable, "-c", FAILING], env=run.environment, capture_output=True, text=True, timeout=60
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
