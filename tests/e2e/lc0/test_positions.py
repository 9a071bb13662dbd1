"""A trainer's checkpoint: its group goes on where the checkpoint was made, or says why it
cannot.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import ringfeed

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.scenes import kill_everything

MakeRun = Callable[..., FeedRun]


@pytest.fixture
def run(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> Iterator[FeedRun]:
    run = make_run(epochs=3, slots=8).start()
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(run.sockets))
    yield run


def attach(group: str = "default", **options: object) -> ringfeed.Feed:
    return ringfeed.attach("lc0", group=group, timeout_s=60, attach_timeout_s=60, **options)


def take(feed: ringfeed.Feed, count: int) -> dict[int, bytes]:
    """The next batches: first bytes by number."""
    taken = {}
    for _ in range(count):
        with feed.next() as batch:
            taken[batch.seq] = np.ascontiguousarray(batch["values"]).tobytes()
    return taken


def test_a_group_is_put_back_to_a_checkpoint_that_the_feed_still_holds(run: FeedRun) -> None:
    with attach() as feed, attach("other") as other:
        first = take(feed, 5)
        state = json.loads(json.dumps(feed.state_dict()))
        assert len(json.dumps(state)) < 500
        ahead = take(feed, 3)
        assert list(ahead) == [6, 7, 8]
    # The crash: another process, some time later. Nobody has needed the slots meanwhile, because
    # the other group is where it was.
    with attach() as feed:
        assert feed.stats().next == 9
        feed.load_state_dict(state)
        assert feed.stats().next == 6
        again = take(feed, 3)
        assert again == ahead, "the same batches, byte for byte"
        assert first.keys().isdisjoint(again)
        with attach("other") as other:
            seen = take(other, 8)
        assert {seq: seen[seq] for seq in ahead} == ahead
        assert list(take(feed, 2)) == [9, 10]
    wait_until(lambda: "group_left feed=lc0 group=default" in run.text(), "the old page's end")


def test_batches_that_were_seen_are_passed_over_in_a_feed_that_is_behind(run: FeedRun) -> None:
    with attach("late", start="oldest") as late, attach() as feed:
        take(feed, 6)
        late.load_state_dict({**feed.state_dict(), "group": "late"})
        assert list(take(late, 2)) == [7, 8]


def test_a_position_that_the_feed_has_not_reached_is_refused(run: FeedRun) -> None:
    with attach() as feed:
        take(feed, 4)
        state = feed.state_dict()
        for seq in (100, 10**6, 2**40 - 1, 2**63, 2**64):
            with pytest.raises(ringfeed.InvalidRequest):
                feed.load_state_dict({**state, "last": seq - 1, "next": seq})
        assert list(take(feed, 2)) == [5, 6], "nothing has changed"


# What is reached again in a feed that was resumed: the state was saved long after the snapshot.
def test_a_feed_that_was_resumed_comes_to_the_position_of_a_state_as_it_was_saved(
    run: FeedRun, tmp_path: Path
) -> None:
    with attach() as feed:
        take(feed, 2)
        feed.snapshot(tmp_path / "feed")
        take(feed, 40)
        state = json.loads(json.dumps(feed.state_dict()))
        seen = take(feed, 3)
        kill_everything(run)
    run.start("--resume", str(tmp_path / "feed"))
    with attach() as feed:
        assert feed.stats().published < 40
        with pytest.raises(ringfeed.InvalidRequest, match="differs from what state_dict"):
            feed.load_state_dict({**state, "last": 43, "next": 44})
        feed.load_state_dict(state)
        assert take(feed, 3) == seen


# The group of rejoin_ms=0 is gone with its last member: it may not leave before it has a place.
@pytest.mark.parametrize("start", ["oldest", "newest"])
@pytest.mark.parametrize("ranked", [{}, {"rank": 0, "world": 1}])
def test_a_refused_state_changes_nothing_in_a_group_that_waits_for_nobody(
    run: FeedRun, start: str, ranked: dict[str, int]
) -> None:
    with attach(rejoin_ms=0, start=start, **ranked) as feed:
        take(feed, 2)
        state = feed.state_dict()
        take(feed, 30)
        before = feed.stats()
        for _ in range(3):
            with pytest.raises(ringfeed.InvalidRequest, match="is no longer held"):
                feed.load_state_dict(state)
        after = feed.stats()
        assert (after.group_index, after.next, after.held) == (
            *(before.group_index, before.next, 0),
        )
        assert list(take(feed, 3)) == [before.next + i for i in range(3)]


def test_a_group_that_waits_for_nobody_is_put_back(run: FeedRun) -> None:
    with attach("hold"), attach(rejoin_ms=0) as feed:
        state = feed.state_dict()
        first = take(feed, 3)
        for _ in range(3):
            feed.load_state_dict(state)
            assert take(feed, 3) == first


def test_a_batch_that_is_not_held_any_more_is_named(run: FeedRun) -> None:
    with attach() as feed:
        take(feed, 2)
        state = feed.state_dict()
        take(feed, 30)
        at = feed.stats().next
        with pytest.raises(
            ringfeed.InvalidRequest, match=r"batch 3 is no longer held, the oldest one is \d+"
        ):
            feed.load_state_dict(state)
        assert list(take(feed, 1)) == [at], "nothing has changed"


def test_nobody_is_put_back_while_batches_are_in_hand(run: FeedRun) -> None:
    with attach() as feed, attach("other"):
        state = feed.state_dict()
        take(feed, 2)
        batch = feed.next()
        with pytest.raises(ringfeed.InvalidRequest, match="batches that this member holds"):
            feed.load_state_dict(state)
        batch.release()
        feed.load_state_dict(state)
        assert list(take(feed, 2)) == [1, 2]


def test_each_rank_puts_itself_back(run: FeedRun) -> None:
    with attach("hold"):
        ranks = [attach("ranks", rank=rank, world=2) for rank in range(2)]
        for feed in ranks:
            take(feed, 1)
        states = [feed.state_dict() for feed in ranks]
        ahead = [take(feed, 2) for feed in ranks]
        assert [list(batches) for batches in ahead] == [[3, 5], [4, 6]]
        for feed in ranks:
            feed.close()
        ranks = [attach("ranks", rank=rank, world=2) for rank in range(2)]
        for feed, state in zip(ranks, states, strict=True):
            feed.load_state_dict(state)
        assert [take(feed, 2) for feed in ranks] == ahead
        assert [list(take(feed, 1)) for feed in ranks] == [[7], [8]]
        for feed in ranks:
            feed.close()


def test_the_supervisor_may_die_while_a_group_is_put_back(run: FeedRun) -> None:
    with attach("hold"), attach() as feed:
        state = feed.state_dict()
        ahead = take(feed, 3)
        for _ in range(5):
            feed.load_state_dict(state)
            assert run.process is not None
            os.kill(run.process.pid, signal.SIGKILL)
            run.process.wait()
            assert take(feed, 3) == ahead
            adopted = run.text().count("feed_adopted")
            run.start()
            wait_until(lambda n=adopted: run.text().count("feed_adopted") > n, "the next one")
            wait_until(run.status, "it to answer")


@pytest.mark.usefixtures("with_torch")
def test_checkpoint_and_snapshot_together_survive_everybodys_death(
    run: FeedRun, tmp_path: Path
) -> None:
    from ringfeed.torch import FeedLoader

    loader = FeedLoader("lc0", batches=10, timeout_s=60, attach_timeout_s=60)

    def steps(count: int) -> list[bytes]:
        out = []
        for batch in loader:
            out.append(batch["values"].numpy().tobytes())
            if len(out) == count:
                break
        return out

    steps(4)
    taken = loader.feed.snapshot(tmp_path / "feed")
    assert taken.newest_batch >= 4 and taken.bytes > 1 << 20 and 0 < taken.pause_s < taken.total_s
    state = json.loads(json.dumps(loader.state_dict()))
    seen = steps(6)
    loader.close()
    kill_everything(run)
    run.start("--resume", str(tmp_path / "feed"))
    loader = FeedLoader("lc0", batches=10, timeout_s=60, attach_timeout_s=60)
    loader.load_state_dict(state)
    assert steps(6) == seen
    loader.close()
    wait_until(lambda: "feed_resumed" in run.text(), "the log")
