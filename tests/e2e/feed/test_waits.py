"""A trainer that does nothing holds up the others: they hear who it is, and it hears that they wait.

And who holds nobody up: a group whose trainer has left, and an observer.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed

from tests.support.feeds.feed_run import FeedRun, wait_until

MakeRun = Callable[..., FeedRun]


def attach(run: FeedRun, group: str = "default", **options: Any) -> ringfeed.Feed:
    return ringfeed.attach(
        "lc0", group, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60, **options
    )


# Takes a batch, keeps it, and does what it is told, line by line.
IDLE = """
import sys, ringfeed
feed = ringfeed.attach("lc0", group="idle", timeout_s=60, attach_timeout_s=60)
batch = feed.next()
print("idle", flush=True)
for line in sys.stdin:
    batch = None
    exec(line)
    print("done", flush=True)
"""


class Idle:
    """A trainer in another process that does nothing until it is told to."""

    def __init__(self, run: FeedRun) -> None:
        self.log = run.work / "idle.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", IDLE],
                env=run.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.heard()

    def heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.heard() == "done\n"

    def end(self) -> tuple[int, str]:
        self.process.communicate(timeout=60)
        return self.process.returncode, self.log.read_text()


@pytest.fixture
def idle() -> Iterator[Callable[[FeedRun], Idle]]:
    made: list[Idle] = []

    def make(run: FeedRun) -> Idle:
        made.append(Idle(run))
        return made[-1]

    yield make
    for trainer in made:
        trainer.process.kill()
        trainer.process.wait()


def group_names(run: FeedRun) -> set[str]:
    return {group["name"] for group in (run.status() or {}).get("groups", [])}


def take_until_it_stands(feed: ringfeed.Feed, heard: Callable[[], Any]) -> str:
    """Takes batches until the feed gives none, and waits until something is heard of that."""

    def waits() -> str | None:
        try:
            feed.next(timeout_s=2).release()
        except ringfeed.FeedTimeout as error:
            return str(error) if heard() else None
        return None

    text: str = wait_until(waits, "a word on why nothing comes")
    return text


def test_who_waits_hears_for_whom_and_the_other_hears_that_it_was_waited_for(
    make_run: MakeRun, idle: Callable[[FeedRun], Idle], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="ringfeed")
    run = make_run(epochs=0, batch=32).start()
    other = idle(run)
    with attach(run, group="busy") as feed:
        text = take_until_it_stands(feed, lambda: caplog.messages)
        told = caplog.messages[0]
        pid = other.process.pid
        for part in (
            "feed lc0: group busy has had no batch for",
            f"because of group 'idle': member 0 (process {pid}: {Path(sys.executable).name})",
            "last took or gave back a batch",
            "and holds batch",
        ):
            assert part in told
        # Nobody is told to kill what works, and what it was started with is nobody's business.
        assert "kill" not in told and "import" not in told
        assert f"member 0 (process {pid}:" in text, "the exception says the same"
        assert f"process {pid}" in run.command("status", "lc0").stdout
        assert "group_holds_up feed=lc0 group=idle member=0" in run.text()
        # `why` speaks of the last seconds, in which the feed must have stood still.
        wait_until(
            lambda: f"group 'idle': member 0 (process {pid}" in run.command("why", "lc0").stdout,
            "`why` to name it",
        )
        assert len(caplog.messages) == 1, "the next line comes a minute later"
        other.tell("feed.next()")
        wait_until(lambda: "group_goes_on feed=lc0 group=idle" in run.text(), "the log's end of it")

        def has_been_told() -> bool:
            feed.next(timeout_s=60)
            other.tell("feed.next()")  # with one of these the answer has come
            return "waited for this trainer" in other.log.read_text()

        wait_until(has_been_told, "it to hear that it was waited for")
        # A program that is done: its group goes soon, and holds up nobody.
        status, said = other.end()
        assert status == 0, said
        assert "group 'busy' member 0 (process " in said
        assert "waited for this trainer (group 'idle', member 0) for" in said
        wait_until(lambda: "idle" not in group_names(run), "the group to go")
    assert run.command("stop", "lc0", "--now").returncode == 0


LEAVES = """
import sys, ringfeed
feed = ringfeed.attach("lc0", group=sys.argv[1], timeout_s=60, attach_timeout_s=60)
batch = feed.next()
"""


@pytest.mark.parametrize(
    "way", ["sys.exit(0)", "pass", "feed.close()", "import os; feed.close(); os._exit(9)"]
)
def test_a_group_goes_soon_after_its_trainer_has_left(make_run: MakeRun, way: str) -> None:
    run = make_run(epochs=0).start()
    # One that failed, and left before: it is waited for.
    for group, end in (("failed", "raise ValueError"), ("left", way)):
        subprocess.run(
            [sys.executable, "-c", f"{LEAVES}\n{end}", group],
            env=run.environment,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
    assert "failed" in group_names(run)
    wait_until(lambda: "left" not in group_names(run), "the group to go")
    assert "failed" in group_names(run)
    assert run.command("stop", "lc0", "--now").returncode == 0


@pytest.mark.parametrize(
    "end",
    [
        "raise ValueError",
        "sys.exit(3)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "with feed: raise ValueError",
    ],
)
def test_a_group_stays_after_the_failure_of_its_trainer(make_run: MakeRun, end: str) -> None:
    run = make_run(epochs=0).start()
    for group, how in (("failed", end), ("left", "sys.exit(0)")):
        subprocess.run(
            [sys.executable, "-c", f"{LEAVES}\n{how}", group],
            env=run.environment,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
    wait_until(lambda: "left" not in group_names(run), "the other group to go")
    assert "failed" in group_names(run)
    with attach(run, group="failed") as feed:
        assert feed.next(timeout_s=60).seq == 1, "what it held comes again"
    assert run.command("stop", "lc0", "--now").returncode == 0


def test_an_observer_sees_the_newest_batch_and_nobody_notices(make_run: MakeRun) -> None:
    run = make_run(epochs=0, batch=32).start()
    with ringfeed.attach(
        "lc0", observe=True, timeout_s=60, attach_timeout_s=60, socket_dir=run.sockets
    ) as eye:
        first = eye.next()
        assert group_names(run) == set(), "it is in no group"
        with attach(run, group="train", start="oldest") as feed:
            seen: dict[int, dict[str, Any]] = {}
            for _ in range(40):
                batch = feed.next()
                seen[batch.seq] = batch.copy()
            if first.seq in seen:
                for name, array in seen[first.seq].items():
                    np.testing.assert_array_equal(first[name], array)
            # It keeps what it has seen, and holds nobody up.
            kept = [first]
            for _ in range(40):
                feed.next().release()
                kept.append(eye.next())
            numbers = [batch.seq for batch in kept]
            assert numbers == sorted(set(numbers)), "each is newer than the one before"
            assert [group["members"] for group in (run.status() or {})["groups"]] == [1]
            stats = eye.stats()
            assert (stats.group, stats.members, stats.held) == ("", 0, len(kept))
        with pytest.raises(ringfeed.InvalidRequest, match="observer"):
            eye.state_dict()
    with pytest.raises(ringfeed.InvalidRequest, match="leave out group, rank"):
        ringfeed.attach("lc0", "train", observe=True, rank=0, world=1)
    assert run.command("stop", "lc0", "--now").returncode == 0


def test_what_an_observer_sees_is_what_was_published(make_run: MakeRun) -> None:
    run = make_run(epochs=0, batch=32, slots=4, groups="checksum: true").start()
    with (
        attach(run, group="fast") as feed,
        ringfeed.attach("lc0", observe=True, timeout_s=60, socket_dir=run.sockets) as eye,
    ):
        looked = 0
        for batch in feed:
            batch.release()
            try:
                eye.next(timeout_s=0).verify()
                looked += 1
            except ringfeed.FeedTimeout:
                pass
            if batch.seq >= 3000 and looked >= 50:
                break
    assert run.command("stop", "lc0", "--now").returncode == 0


def test_an_observer_of_a_feed_that_ends_ends(make_run: MakeRun) -> None:
    run = make_run(epochs=1).start()
    with (
        ringfeed.attach(
            "lc0", observe=True, timeout_s=60, attach_timeout_s=60, socket_dir=run.sockets
        ) as eye,
        attach(run) as feed,
    ):
        last = 0
        for batch in feed:
            last = batch.seq
        seen = [batch.seq for batch in eye]
        assert seen in ([], [last]) and eye.end_reason == "the run is over"
    assert run.wait() == 0
