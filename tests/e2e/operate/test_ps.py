"""ringfeed ps: the feeds of a machine, with those that have no supervisor or one that is silent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.feeds.feed_run import FeedRun, processes_of, wait_until
from tests.support.feeds.scenes import kill_supervisor

MakeRun = Callable[..., FeedRun]
MEMBERS = ["feed", "state", "reason", "directory", "uptime_ms", "supervisor_pid", "processes",
           "batches_per_s", "trainers", "memory_bytes", "config_file"]  # fmt: skip
HEADS = ["feed", "state", "uptime", "pid", "processes", "batches/s", "trainers", "memory",
         "configuration"]  # fmt: skip


def listed(run: FeedRun) -> dict[str, dict[str, Any]]:
    """By name."""
    done = run.command("ps", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert list(answer) == ["feeds", "unreadable"] and answer["unreadable"] == []
    assert all(list(feed) == MEMBERS for feed in answer["feeds"])
    return {feed["feed"]: feed for feed in answer["feeds"]}


def table(run: FeedRun) -> dict[str, dict[str, str]]:
    """The rows by name; columns are two spaces apart."""
    done = run.command("ps", env={**run.environment, "LC_ALL": "C.UTF-8"})
    assert done.returncode == 0 and "\x1b" not in done.stdout, done.stderr
    head, *rows = [re.split(r" {2,}", line) for line in done.stdout.splitlines()]
    assert head == HEADS and all(len(row) == len(HEADS) for row in rows), done.stdout
    return {row[0]: dict(zip(HEADS, row, strict=True)) for row in rows}


def runs_now(run: FeedRun) -> bool:
    return (run.status() or {}).get("state") == "RUNNING"


def test_no_feed(make_run: MakeRun) -> None:
    run = make_run()
    for made in (False, True):
        if made:
            run.sockets.mkdir()
        done = run.command("ps")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == f"no feed runs in {run.sockets}\n"
        assert listed(run) == {}


def test_three_feeds(make_run: MakeRun) -> None:
    """Each with what its own status says."""
    run = make_run(epochs=0, groups='groups { name: "default" }')
    feeds = [run] + [make_run(epochs=0, feed=name) for name in ("a-feed", "z.feed")]
    for feed in feeds:
        feed.environment = run.environment
        feed.start()
    for feed in feeds:
        wait_until(lambda feed=feed: runs_now(feed), f"{feed.feed} to run")
    trainer = run.trainer(positions=0)
    wait_until(lambda: trainer.batches() > 2, "batches")
    found = wait_until(lambda: with_rate(listed(run)), "a rate of batches")
    assert list(found) == ["a-feed", "lc0", "z.feed"]
    for feed in feeds:
        one, status = found[feed.feed], feed.status()
        assert status is not None and feed.process is not None
        assert one["state"] == "RUNNING" and one["supervisor_pid"] == feed.process.pid
        assert one["memory_bytes"] == int(status["memory_bytes"])
        assert one["config_file"] == str(feed.config) and one["directory"] == str(run.sockets)
        assert one["processes"] == 1 + len(feed.workers())
        assert one["trainers"] == (1 if feed is run else 0)
    rows = table(run)
    assert list(rows) == list(found)
    assert rows["lc0"]["state"] == "running" and rows["lc0"]["trainers"] == "1"
    assert rows["lc0"]["pid"] == str(found["lc0"]["supervisor_pid"])
    assert rows["z.feed"]["configuration"] == str(feeds[2].config)


def with_rate(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
    return found if (found["lc0"]["batches_per_s"] or 0) > 0 else None


def test_an_orphan(run: FeedRun) -> None:
    assert run.process is not None
    pid, workers = run.process.pid, run.all_workers()
    kill_supervisor(run)
    one = listed(run)["lc0"]
    assert one["state"] == "ORPHANED" and one["processes"] == len(workers)
    assert f"process {pid}" in one["reason"] and "`ringfeed stop lc0 --now`" in one["reason"]
    assert [one[name] for name in ("uptime_ms", "supervisor_pid", "trainers")] == [None] * 3
    row = table(run)["lc0"]
    assert row["state"] == "orphaned" and row["pid"] == row["uptime"] == "-"
    assert "takes it over" in run.command("ps").stderr
    assert run.command("stop", "lc0", "--now").returncode == 0
    wait_until(lambda: not processes_of(run), "its end")
    assert listed(run) == {}


def test_a_supervisor_that_does_not_answer(make_run: MakeRun) -> None:
    """It is listed as such, and the others as they are."""
    run = make_run(epochs=0).start()
    other = make_run(epochs=0, feed="other")
    other.environment = run.environment
    other.start()
    wait_until(lambda: runs_now(run) and runs_now(other), "both to run")
    assert run.process is not None
    run.process.send_signal(signal.SIGSTOP)
    try:
        found = listed(run)
        assert found["lc0"]["state"] == "NO_ANSWER" and found["other"]["state"] == "RUNNING"
        assert found["lc0"]["supervisor_pid"] == run.process.pid
        row = table(run)["lc0"]
        assert row["state"] == "no answer" and row["memory"] == "-"
        assert "feed lc0: " in run.command("ps").stderr
    finally:
        run.process.send_signal(signal.SIGCONT)
    wait_until(lambda: listed(run)["lc0"]["state"] == "RUNNING", "its answer")


def test_names_that_are_no_feeds(run: FeedRun) -> None:
    """What else lies in the directory is not listed, and neither holds it up nor is followed."""
    (run.sockets / "text.sock").write_text("no socket")
    (run.sockets / "dir.sock").mkdir()
    (run.sockets / "link.sock").symlink_to("/nowhere")
    (run.sockets / "a\x1b[31mb\n.sock").write_text("")
    os.mkfifo(run.sockets / "pipe.lock")
    assert list(listed(run)) == ["lc0"] == list(table(run))
    assert "\x1b" not in run.command("ps").stderr


def test_a_directory_that_cannot_be_read(run: FeedRun, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    done = run.command("ps", "--json", "--socket-dir", str(place))
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer["feeds"] == []
    assert [one["directory"] for one in answer["unreadable"]] == [str(place)]
    assert str(place) in done.stderr


def test_output_that_nobody_takes(run: FeedRun) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [str(run.program), "ps"], env=run.environment, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 1 and b"standard output" in done.stderr
