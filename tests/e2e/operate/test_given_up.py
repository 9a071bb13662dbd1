"""Requests whose clients give up are withdrawn, and `stop` returns when all is over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ringfeed
from ringfeed._core import control

from tests.support.feeds.feed_run import FeedRun, stop, wait_until
from tests.support.feeds.sample_feeds import STAGES, TEXT
from tests.support.feeds.scenes import kill_supervisor

POLL = "7"  # the system call's number


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FeedRun]:
    """A small feed that is full, and never ends."""
    (tmp_path / "data").mkdir()
    lines = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(500))
    (tmp_path / "data" / "a.jsonl").write_text(lines)
    values: dict[str, Any] = {"readers": 1, "source": "", "batch": TEXT, "epochs": 0}
    values["slots"] = '2 groups { name: "eval" }'  # which never comes
    made = FeedRun(tmp_path, tmp_path / "data", feed="small", pipeline=STAGES, **values)
    made.start("--report", str(tmp_path / "report.html"))
    wait_until(lambda: " first_batch " in made.text(), "the first batch")
    yield made
    made.close()


def wait_for_request(asked: subprocess.Popen[str]) -> None:
    """Until it waits for the answer, or has waited."""
    state = Path(f"/proc/{asked.pid}/syscall")
    wait_until(
        lambda: asked.poll() is not None or state.read_text().split()[0] == POLL, "the request"
    )


def go_on(run: FeedRun, pid: int) -> None:
    """The supervisor goes on, and has come to all that was sent before."""
    os.kill(pid, signal.SIGCONT)
    for _ in range(2):
        assert run.status() is not None


def unchanged(run: FeedRun, workers: dict[str, int]) -> None:
    status = run.status()
    assert status is not None and status["state"] in ("WARMING", "RUNNING"), status
    assert run.workers() == workers
    assert run.command("log", run.feed).stdout == "info\n"
    assert not (run.work / "saved").exists()


def test_what_its_client_has_given_up_is_not_done(run: FeedRun) -> None:
    workers = run.workers()
    assert run.process is not None
    pid = run.process.pid
    stop(pid)
    verbs = (
        ("restart", run.feed, "source"),
        ("snapshot", run.feed, str(run.work / "saved")),
        ("log", run.feed, "debug"),
        ("stop", run.feed),
        ("stop", run.feed, "--now"),
    )
    for verb in verbs:
        asked = run.command_later(*verb)
        wait_for_request(asked)
        asked.send_signal(signal.SIGINT)
        asked.communicate()
    go_on(run, pid)
    unchanged(run, workers)


def test_whoever_gives_up_hears_that_nothing_comes_of_it(run: FeedRun) -> None:
    workers = run.workers()
    assert run.process is not None
    pid = run.process.pid
    socket = run.sockets / f"{run.feed}.sock"
    stop(pid)
    asked = [
        run.command_later(*words) for words in (("stop", run.feed), ("log", run.feed, "debug"))
    ]
    with pytest.raises(ringfeed.FeedIOError, match="is withdrawn, and nothing was changed"):
        control.stop(socket, now=True, timeout_s=0.1)
    with pytest.raises(ringfeed.FeedIOError, match="is withdrawn, and nothing was changed"):
        control.snapshot(socket, str(run.work / "saved"), timeout_s=0.1)
    for one in asked:
        said = one.communicate(timeout=300)[1]
        assert one.returncode == 1 and "withdrawn: nothing was changed" in said, said
    go_on(run, pid)
    unchanged(run, workers)


def test_stop_returns_when_the_report_is_there(run: FeedRun) -> None:
    assert run.process is not None
    assert run.command("stop", run.feed, "--now").returncode == 0
    assert (run.work / "report.html").exists()
    assert run.process.wait(60) == 0


def test_stop_tells_of_a_supervisor_that_was_killed_on_the_way(run: FeedRun) -> None:
    asked = run.command_later("stop", run.feed)
    assert asked.stderr is not None
    assert "drains" in asked.stderr.readline()
    kill_supervisor(run)
    said = asked.communicate(timeout=300)[1]
    assert asked.returncode == 5 and "orphaned: its supervisor" in said, said
    assert run.command("stop", run.feed, "--now").returncode == 0
