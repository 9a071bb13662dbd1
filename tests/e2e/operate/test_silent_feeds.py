"""Feeds on whose sockets nobody answers, also of other users: what every user is told of them."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.feeds.feed_run import FeedRun, runs, wait_until
from tests.support.feeds.patient import STRANGER
from tests.support.feeds.scenes import kill_supervisor

MakeRun = Callable[..., FeedRun]


@pytest.fixture
def orphan(make_run: MakeRun) -> Iterator[FeedRun]:
    """A feed whose supervisor is dead and whose workers live; all may look into its directory."""
    run = make_run(epochs=0, groups='groups { name: "default" }').start()
    wait_until(lambda: (run.status() or {}).get("state") in ("WARMING", "RUNNING"), "it to run")
    run.sockets.chmod(0o755)
    for above in run.sockets.parents:
        if above.owner() == "root" and above.stat().st_mode & 0o5 != 0o5:
            above.chmod(above.stat().st_mode | 0o5)
    kill_supervisor(run)
    yield run
    for name in ("lc0.lock", "lc0.state"):
        if (run.sockets / name).exists():
            os.chown(run.sockets / name, os.geteuid(), os.getegid())


def told(run: FeedRun, user: int) -> dict[str, Any]:
    """What `ringfeed ps` tells a user of the feed."""
    options: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if user else {}
    done = run.command("ps", "--json", **options)
    assert done.returncode == 0, done.stderr
    [feed] = json.loads(done.stdout)["feeds"]
    return dict(feed)


def given_away(run: FeedRun) -> None:
    """Its files are a stranger's."""
    for name in ("lc0.lock", "lc0.state"):
        os.chown(run.sockets / name, STRANGER, STRANGER)


@pytest.mark.parametrize("user", [0, STRANGER], ids=["root looks", "a stranger looks"])
def test_workers_of_another_users_feed_are_seen(orphan: FeedRun, user: int) -> None:
    if user == 0:
        given_away(orphan)
    feed = told(orphan, user)
    assert feed["state"] == "ORPHANED", feed
    assert "as that user" in feed["reason"]
    options: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if user else {}
    for words in (["status"], ["status", "lc0"], ["top", "--once"]) if user == 0 else ():
        done = orphan.command(*words, **options)
        assert done.returncode == 5, (words, done)
        assert "go on" in done.stderr and "no feed runs" not in done.stderr, (words, done.stderr)
    shown = orphan.command("doctor", "--json", **options).stdout
    assert "is dead, and its files are there" not in shown
    assert "go on" in shown


def test_a_record_without_an_end_is_not_read(orphan: FeedRun) -> None:
    """Root looks at files that others have written."""
    given_away(orphan)
    os.truncate(orphan.sockets / "lc0.state", 1 << 40)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    done = orphan.command("ps", "--json", preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    [feed] = json.loads(done.stdout)["feeds"]
    assert feed["state"] == "ORPHANED" and "cannot be seen from here" in feed["reason"], feed


@pytest.mark.parametrize("user", [0, STRANGER], ids=["root looks", "a stranger looks"])
def test_a_feed_of_which_nobody_lives(orphan: FeedRun, user: int) -> None:
    record = (orphan.sockets / "lc0.state").read_text()
    pids = [int(line.split()[1]) for line in record.splitlines() if line.startswith("worker ")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(runs(pid) for pid in pids), "the workers to end")
    if user == 0:
        given_away(orphan)
    feed = told(orphan, user)
    assert feed["state"] == "DEAD" and "as that user" in feed["reason"], feed


def test_a_supervisor_that_does_not_listen_yet(orphan: FeedRun) -> None:
    """It reads a snapshot, say; the record is still the last one's."""
    with (orphan.sockets / "lc0.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for user in (0, STRANGER):
            feed = told(orphan, user)
            # Whoever may not connect does not know that it does not listen.
            assert feed["state"] == ("NO_ANSWER" if user else "STARTING"), feed
            assert user or f"process {os.getpid()}" in feed["reason"]
    assert told(orphan, 0)["state"] == "ORPHANED"
