"""`ringfeed run --from-batch`: a new feed that begins with a later batch of the same run."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed
from ringfeed.fairseq import load_state, set_weights

from tests.support.feeds import fairseq_feeds as feeds
from tests.support.feeds.fairseq_feeds import Arrays
from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.scenes import kill_a_worker
from tests.support.makers import fairseq_data
from tests.support.oracles.fairseq_reference import Config

MakeBitext = Callable[..., FeedRun]
EPOCHS = 6
# Of an iterator: at the begin of an epoch.
STATE = {
    **{"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True},
    "ringfeed": {
        **{"version": 1, "batch": 0, "chain": [1, 0], "world_size": 1},
        **{"weights": None, "coming": [], "updates_from": None},
    },
}
RANKS = 'groups { name: "ranks" kind: RANKED world: 1 }'
SHARED = 'groups { name: "all" }'


def config_of(directory: Path, **changes: Any) -> Config:
    """About twelve batches an epoch, with stand-ins at its end."""
    corpus = fairseq_data.random_corpus(directory, 1, directions=5, shards=3, sentences=60)
    values: dict[str, Any] = {
        "directory": corpus.directories,
        "lang_pairs": corpus.lang_pairs,
        "sampling_method": "TEMPERATURE",
        "virtual_epoch_size": 120,
        "max_tokens": 150,
        "lineage": True,
    }
    return Config(**{**values, **changes})


def numbered(
    run: FeedRun, world: int, after_turn: Callable[[int], None] = lambda count: None
) -> dict[int, Arrays]:
    """What the ranks of a feed that was started get until it ends, by number.

    after_turn: called when each rank has had its next batch, with how many batches there are.
    """
    got: dict[int, Arrays] = {}
    with feeds.members(run, world) as ranks:
        live = list(ranks)
        while live:
            for rank in list(live):
                try:
                    batch = rank.next()
                except ringfeed.FeedEnd:
                    live.remove(rank)
                    continue
                assert batch.seq not in got
                got[batch.seq] = feeds.arrays_of(batch)
            after_turn(len(got))
    assert run.wait() == 0, run.text()
    return got


def assert_rest(got: dict[int, Arrays], whole: dict[int, Arrays], first: int) -> None:
    assert sorted(got) == list(range(first, max(whole) + 1))
    for seq, arrays in got.items():
        assert list(arrays) == list(whole[seq])
        for name in arrays:
            assert np.array_equal(arrays[name], whole[seq][name]), (seq, name)


@pytest.mark.parametrize("world, threads", [(1, 1), (2, 3), (3, 2)])
def test_batches_and_numbers_are_those_of_the_whole_run(
    make_bitext: MakeBitext, tmp_path: Path, world: int, threads: int
) -> None:
    config = config_of(tmp_path / "data", world_size=world, threads=threads, stand_in_first=True)
    whole = numbered(make_bitext(config, epochs=EPOCHS).start(), world)
    last = max(whole)
    assert sorted(whole) == list(range(1, last + 1)) and last > 40
    for first in (1, 2, 3, 8, last // 2, last - 1, last):
        run = make_bitext(config, epochs=EPOCHS)
        assert_rest(numbered(run.start("--from-batch", str(first)), world), whole, first)


def test_a_feed_that_begins_far_on_fills_its_slots_without_anybody(
    make_bitext: MakeBitext, tmp_path: Path
) -> None:
    """Beyond the descriptors of a feed, of which there are 256 at most."""
    config = config_of(tmp_path / "data", threads=3)
    whole = numbered(make_bitext(config, epochs=60, groups=RANKS).start(), 1)
    first = 300
    assert max(whole) > first + 50
    run = make_bitext(config, epochs=60, groups="").start("--from-batch", str(first))
    slots = 15  # of three lanes
    wait_until(
        lambda: (there := run.status()) and there["outputs"][0]["batches_published"] >= slots,
        "full slots",
    )
    stage = next(s for s in run.status()["stages"] if s["name"] == "batches")
    assert sum(lane["records_out"] for lane in stage["lanes"]) < 2 * slots, "those before are not"
    assert "first_batch" in run.text()
    got: dict[int, Arrays] = {}
    with ringfeed.attach(
        run.feed, group="all", socket_dir=run.sockets, timeout_s=60, start="oldest"
    ) as feed:
        for batch in feed:
            got[batch.seq] = feeds.arrays_of(batch)
    assert run.wait() == 0, run.text()
    assert_rest(got, whole, first)


def test_deaths_change_nothing(make_bitext: MakeBitext, tmp_path: Path) -> None:
    """Of workers, from the first moment on, and of supervisors, which are not told the number
    again."""
    config = config_of(tmp_path / "data", world_size=2, threads=3)
    whole = numbered(make_bitext(config, epochs=EPOCHS).start(), 2)
    often = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: 255 }"
    apart = " ".join(
        f'stage_groups {{ name: "{name}" stages: "{name}" }}'
        for name in ("bitext", "plans", "batches")
    )
    for seed in range(4):
        rng = random.Random(seed)
        first = rng.randint(2, max(whole) - 12)
        run = make_bitext(config, epochs=EPOCHS, extra=f"{often} {apart}", slots=6)
        run.start("--from-batch", str(first))
        for name in ("plans", "batches", "plans"):
            wait_until(lambda name=name: name in run.all_workers(), name)
            kill_a_worker(run, rng, name)

        def strike(count: int, run: FeedRun = run, rng: random.Random = rng) -> None:
            if count in (2, 6):
                assert run.process is not None
                run.process.kill()
                run.process.wait()
                run.start()
                wait_until(run.status, "the successor")
            elif rng.random() < 0.3:
                kill_a_worker(run, rng)

        got = numbered(run, 2, strike)
        assert "dead_letter" not in run.text()
        assert_rest(got, whole, first)


def test_a_trainer_goes_on_where_its_state_is(make_bitext: MakeBitext, tmp_path: Path) -> None:
    """In a feed that begins there, although it is another run; and is told of that way."""
    config = config_of(tmp_path / "data")
    run = make_bitext(config, epochs=EPOCHS, groups=SHARED, slots=4).start()
    with feeds.member(run, None, None, "all") as feed:
        for _ in range(9):
            feed.next().release()
        state = feed.state_dict()
        assert state["next"] == 10 and len(state["lineage"]) == 16
        wanted = feeds.arrays_of(feed.next())
        for _ in range(12):
            feed.next().release()
        with pytest.raises(ringfeed.InvalidRequest, match="--set seed=SEED --from-batch 10`"):
            feed.load_state_dict(state)
    assert run.command("stop", run.feed, "--now").returncode == 0
    assert run.wait() == 0

    # Lanes and queues are no part of what its batches are.
    wider = {"groups": SHARED, "slots": 4, "planner": "queue_capacity: 3"}
    again = make_bitext(replace(config, threads=3), epochs=EPOCHS, **wider)
    again.start("--from-batch", "10")
    with feeds.member(again, None, None, "all") as feed:
        feed.load_state_dict(state)
        batch = feed.next()
        assert batch.seq == 10
        for name in batch:
            assert np.array_equal(batch[name], wanted[name]), name
        batch.release()
        status = again.status()
        assert status["outputs"][0]["batches_published"] <= 7, "none of those before it"
    again.command("stop", again.feed, "--now")

    other = make_bitext(config, epochs=EPOCHS, groups=SHARED, seed=99).start("--from-batch", "10")
    with feeds.member(other, None, None, "all") as feed:
        with pytest.raises(ringfeed.InvalidRequest, match="belongs to another run"):
            feed.load_state_dict(state)
    other.command("stop", other.feed, "--now")


def test_one_that_is_behind_catches_up(make_bitext: MakeBitext, tmp_path: Path) -> None:
    """From a second feed, while the first one holds the batch with which it goes on there."""
    config = config_of(tmp_path / "data")
    whole = numbered(make_bitext(config, epochs=EPOCHS, groups=RANKS).start(), 1)
    live = make_bitext(config, epochs=EPOCHS, groups="", slots=4).start()
    with feeds.member(live, None, None, "ahead") as ahead:
        for _ in range(20):
            ahead.next().release()
        with feeds.member(live, None, None, "late") as feed:
            joins = feed.state_dict()["next"]
            assert joins > 10
            second = make_bitext(config, epochs=EPOCHS, groups=SHARED, feed="again")
            second.start("--from-batch", "5")
            got = {}
            with feeds.member(second, None, None, "all") as behind:
                while len(got) < joins - 5:
                    batch = behind.next()
                    got[batch.seq] = feeds.arrays_of(batch)
            assert second.command("stop", "again", "--now").returncode == 0
            ahead.close()
            for batch in feed:
                got[batch.seq] = feeds.arrays_of(batch)
    assert live.wait() == 0, live.text()
    assert_rest(got, whole, 5)


def test_a_feed_that_was_steered_has_no_lineage(make_bitext: MakeBitext, tmp_path: Path) -> None:
    """Its batches are a function of messages, too."""
    config = config_of(tmp_path / "data")
    run = make_bitext(config, epochs=0, groups=SHARED).start()
    with feeds.member(run, None, None, "all") as feed:
        feed.next().release()
        assert "lineage" in feed.state_dict()
        set_weights(feed, {pair: 2.0 for pair in config.lang_pairs})
        assert "lineage" not in feed.state_dict()
        # The count outlives whoever counted.
        for pid in run.all_workers().values():
            os.kill(pid, signal.SIGKILL)
        feed.next().release()
        assert "lineage" not in feed.state_dict()


def test_ranks_are_told_the_number_of_their_round(make_bitext: MakeBitext, tmp_path: Path) -> None:
    config = config_of(tmp_path / "data", world_size=2)
    run = make_bitext(config, epochs=EPOCHS, slots=4).start()
    with feeds.members(run, 2) as ranks:
        for _ in range(3):
            for rank in ranks:
                rank.next().release()
        state = ranks[1].state_dict()
        assert state["next"] == 8
        for _ in range(9):
            for rank in ranks:
                rank.next().release()
        with pytest.raises(ringfeed.InvalidRequest, match="--set seed=SEED --from-batch 7`"):
            ranks[1].load_state_dict(state)
    run.command("stop", run.feed, "--now")


def test_an_iterator_need_not_wait_for_the_way(make_bitext: MakeBitext, tmp_path: Path) -> None:
    """Where it goes on it says itself, while the planner is still on its way to the batch."""
    config = config_of(tmp_path / "data")
    run = make_bitext(config, epochs=0, groups=SHARED).start("--from-batch", "100000000")
    with feeds.member(run, None, None, "all") as feed:
        there = load_state(feed, {**STATE, "epoch": 3})
        assert there.epoch == 3
        batch = feed.next()
        assert batch.seq == 100000000
        assert feeds.Place.of(feeds.arrays_of(batch)).epoch == 3
        assert "lineage" not in feed.state_dict()
    run.command("stop", run.feed, "--now")


def test_what_cannot_be_is_said(make_bitext: MakeBitext, tmp_path: Path) -> None:
    config = config_of(tmp_path / "data")
    run = make_bitext(config, epochs=1)
    assert run.command("run", str(run.config), "--from-batch", "0").returncode == 2
    both = ("--from-batch", "2", "--resume", str(tmp_path))
    assert run.command("run", str(run.config), *both).returncode == 2
    relaxed = ("--set", "feed_output.dispatch=RELAXED", "--from-batch", "2")
    done = run.command("run", str(run.config), *relaxed)
    assert done.returncode == 3 and "RELAXED batches have no fixed order" in done.stderr

    run.start("--from-batch", "100000")
    assert run.wait() == 1
    assert "from_batch is 100000, but the feed has only" in run.text()

    # What runs without a supervisor goes on; it does not begin anew.
    run = make_bitext(config, epochs=0, groups=SHARED).start("--from-batch", "5")
    wait_until(lambda: "first_batch" in run.text(), "the first batch")
    run.process.kill()
    run.process.wait()
    done = run.command("run", str(run.config), "--from-batch", "7")
    assert done.returncode == 3 and "from_batch" in done.stderr and "--fresh" in done.stderr
    assert run.command("stop", run.feed, "--now").returncode == 0
