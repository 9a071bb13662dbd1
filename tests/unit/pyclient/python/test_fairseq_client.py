"""What fairseq's trainer sees of a feed: epochs, samples, states, weights.

The feed is real shared memory (tests/support/fakes/fake_feed.py) with batches that the test makes
(tests/support/fakes/fake_bitext.py); the planner's answers are those that the test has laid ready.
"""

# flake8: noqa: F811

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tests.support.fakes.fake_bitext import Plan, epoch, layout, planner_says, publish  # noqa: E402
from tests.support.fakes.fake_feed import (  # noqa: E402, F401
    PATIENCE_S,
    ROOT,
    FakeFeed,
    MakeFeed,
    make_feed,
)
from tests.support.loaders.ranks import resting_at_exit  # noqa: E402

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

import ringfeed  # noqa: E402
from ringfeed import fairseq  # noqa: E402
from ringfeed.fairseq import EpochIterator, GroupedIterator  # noqa: E402

PROGRAM_S = 10 * PATIENCE_S
PLAIN = layout()


@pytest.fixture
def fake(make_feed: MakeFeed) -> FakeFeed:
    """Room for everything, so that ranks may be read one after the other."""
    return make_feed("--slots", "100", "--max-hold", "100", "--rows", "8", *PLAIN.options)


Ranks = Callable[..., list[ringfeed.Feed]]


@pytest.fixture
def ranks(fake: FakeFeed) -> Any:
    """Attaches all ranks of a group."""
    feeds: list[ringfeed.Feed] = []

    def make(world: int, **options: Any) -> list[ringfeed.Feed]:
        group = f"of{world}"
        new = [fake.attach(group=group, rank=r, world=world, **options) for r in range(world)]
        feeds.extend(new)
        return new

    yield make
    for feed in feeds:
        feed.close()


def ids(samples: Any) -> list[list[int]]:
    return [sample["id"].tolist() if sample else [] for sample in samples]


def ids_of(*plans: Plan) -> list[list[int]]:
    return [plan.ids if plan.kind == 0 else [] for plan in plans]


def lay_seek_ready(
    fake: FakeFeed, there: bytes, here: bytes | None = None, *, looks: bool = True
) -> None:
    """The planner's answers to the question where it is, and to the order to go elsewhere.

    looks: Before that it is asked how long the epoch is, as with every state of its middle that
    has no weights.
    """
    fake.answer(("plan", planner_says() if here is None else here))
    if looks:
        fake.answer(("plan", planner_says(epoch_batches=1000)))
    fake.answer(("plan", there))


# ---- samples ----


@pytest.mark.parametrize("view", ["readonly", "private", "copy"])
def test_a_sample_is_what_fairseqs_collater_gives(fake: FakeFeed, view: str) -> None:
    plan = Plan(1, 2, 3)
    publish(fake, PLAIN, [plan])
    with fake.attach(view=view) as feed:
        sample = fairseq.sample(feed.next())
        expected = plan.arrays()
        assert list(sample) == ["id", "nsentences", "ntokens", "net_input", "target"]
        assert list(sample["net_input"]) == ["src_tokens", "src_lengths", "prev_output_tokens"]
        rows, _, width = plan.shape
        assert type(sample["nsentences"]) is int and sample["nsentences"] == rows
        assert type(sample["ntokens"]) is int and sample["ntokens"] == rows * width
        tensors = {"id": sample["id"], "target": sample["target"], **sample["net_input"]}
        for name, tensor in tensors.items():
            assert tensor.dtype == torch.int64
            np.testing.assert_array_equal(tensor.numpy(), expected[name], strict=True)
        assert feed.stats().held == (1 if view == "private" else 0)
        sample["target"] += 1  # never the end of the process


def test_a_sample_is_a_copy_if_asked_for(fake: FakeFeed) -> None:
    publish(fake, PLAIN, [Plan(1, 0, 1), Plan(1, 1, 1)])
    with fake.attach(view="private") as feed:
        sample = fairseq.sample(feed.next(), copy=True)
        assert feed.stats().held == 0 and sample["id"].tolist() == Plan(1, 0, 1).ids
    with fake.attach(group="other") as feed:
        with pytest.raises(ringfeed.InvalidRequest, match='view="private"'):
            fairseq.sample(feed.next(), copy=False)


def test_compact_tokens_are_widened_and_other_arrays_have_their_places(
    make_feed: MakeFeed,
) -> None:
    compact = layout(tokens="int32", lang_ids=True, lineage=True)
    fake = make_feed("--rows", "8", *compact.options)
    plan = Plan(1, 3, 9)
    publish(fake, compact, [plan, plan], "int32")
    with fake.attach(view="private") as feed:
        sample = fairseq.sample(feed.next())
        assert list(sample)[-2:] == ["tgt_lang_id", "direction"]
        assert sample["tgt_lang_id"].tolist() == [[4]] * plan.shape[0]
        assert sample["net_input"]["src_lang_id"].tolist() == [[3]] * plan.shape[0]
        assert sample["direction"].tolist() == list(range(plan.shape[0]))
        for name in ("src_tokens", "prev_output_tokens"):
            assert sample["net_input"][name].dtype == torch.int64
            np.testing.assert_array_equal(sample["net_input"][name].numpy(), plan.arrays()[name])
        assert fairseq.sample(feed.next(), widen=False)["target"].dtype == torch.int32


def test_a_feed_of_other_batches_is_refused(make_feed: MakeFeed) -> None:
    with make_feed().attach() as feed:
        with pytest.raises(ringfeed.InvalidRequest, match=r"no src_tokens, .*\(x, id, flags\)"):
            EpochIterator(feed)
        with pytest.raises(ringfeed.InvalidRequest, match="has no position"):
            fairseq.load_state(feed, {"version": 2, "epoch": 1})


# ---- epochs ----


def test_each_rank_has_its_batches_and_as_many_of_them(fake: FakeFeed, ranks: Ranks) -> None:
    feeds = ranks(3)
    first, second = epoch(1, 7, 3), epoch(2, 6, 3)
    publish(fake, PLAIN, first + second)
    for rank, feed in enumerate(feeds):
        epochs = EpochIterator(feed)
        assert (epochs.epoch, epochs.next_epoch_idx, epochs.iterations_in_epoch) == (1, 1, 0)
        assert len(epochs) == 3 and not epochs.end_of_epoch()
        itr = epochs.next_epoch_itr()
        assert (len(itr), itr.total, itr.n, itr.has_next()) == (3, 3, 0, True)
        seen = []
        for number, sample in enumerate(itr, 1):
            seen.append(sample)
            assert itr.n == epochs.n == epochs.iterations_in_epoch == number
            assert itr.has_next() == (number < 3)
        assert ids(seen) == ids_of(*first[rank::3])
        assert epochs.end_of_epoch() and (epochs.epoch, epochs.next_epoch_idx) == (1, 2)
        itr = epochs.next_epoch_itr(shuffle=False)
        assert (epochs.epoch, len(itr), itr.n, epochs.end_of_epoch()) == (2, 2, 0, False)
        assert ids(itr) == ids_of(*second[rank::3])


@pytest.mark.parametrize("numbered", [1, None])
def test_one_rank_alone_needs_no_ranked_group(fake: FakeFeed, numbered: int | None) -> None:
    publish(fake, PLAIN, epoch(1, 4) + epoch(2, 2))
    fake.tell("close")
    with fake.attach() as feed:
        epochs = EpochIterator(feed, epoch=numbered)
        assert ids(epochs.next_epoch_itr()) == ids_of(*epoch(1, 4))
        assert ids(epochs.next_epoch_itr()) == ids_of(*epoch(2, 2))
        with pytest.raises(ringfeed.FeedEnd):
            epochs.next_epoch_itr()


def test_a_loop_holds_what_its_body_holds_and_no_batch_more(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "1", "--max-hold", "1", "--rows", "8", *PLAIN.options)
    publish(fake, PLAIN, epoch(1, 4) + epoch(2, 1))
    with fake.attach(view="private") as feed:
        epochs = EpochIterator(feed)
        itr = epochs.next_epoch_itr()
        for number in range(4):
            sample = next(itr)
            assert feed.stats().held == 1 and sample["id"].tolist() == Plan(1, number, 4).ids
            del sample
            assert feed.stats().held == 0
        assert ids(epochs.next_epoch_itr()) == ids_of(Plan(2, 0, 1))


def test_a_stand_in_may_be_had_with_its_content(fake: FakeFeed, ranks: Ranks) -> None:
    publish(fake, PLAIN, epoch(1, 3, 2))
    first, second = (EpochIterator(feed, empty="stand_in") for feed in ranks(2))
    assert all("ignore" not in sample for sample in first.next_epoch_itr())
    *_, last = second.next_epoch_itr()
    assert last["ignore"] is True and last["id"].tolist() == Plan(1, 0, 3).ids[: len(last["id"])]
    with pytest.raises(ringfeed.InvalidRequest, match="'none' is not dict or stand_in"):
        EpochIterator(first.feed, empty="none")


@pytest.mark.parametrize("empty", ["dict", "stand_in"])
def test_a_batch_without_sentences_is_an_empty_one(fake: FakeFeed, empty: str) -> None:
    plans = [Plan(1, 0, 3), Plan(1, 1, 3, rows=0), Plan(1, 2, 3)]
    publish(fake, PLAIN, plans)
    with fake.attach() as feed:
        one, none, two = EpochIterator(feed, empty=empty).next_epoch_itr()
        assert ids((one, two)) == ids_of(plans[0], plans[2])
        if empty == "dict":
            assert none == {}
        else:
            assert none["ignore"] is True and none["id"].tolist() == plans[0].ids


def test_the_first_batch_is_the_feeds_stand_in_if_it_gives_one(
    fake: FakeFeed, ranks: Ranks
) -> None:
    plans = [*epoch(1, 4, 2, first=True), *epoch(2, 3, 2, first=True)]
    publish(fake, PLAIN, plans)
    fake.tell("close")
    for rank, feed in enumerate(ranks(2)):
        epochs = EpochIterator(feed, epoch=1)
        for number, batches in ((1, 4), (2, 3)):
            stand_in = Plan(number, 0, batches, 2)
            assert epochs.first_batch["id"].tolist() == stand_in.ids
            assert "ignore" not in epochs.first_batch
            itr = epochs.next_epoch_itr()
            assert len(itr) == 2
            assert ids(itr) == ids_of(*epoch(number, batches, 2)[rank::2])
            assert epochs.epoch == number
        # There is no epoch to come: the trainer asks nevertheless, before it ends.
        assert epochs.first_batch["id"].tolist() == Plan(2, 0, 3, 2).ids
        assert feed.stats().held == 0


def test_else_it_is_a_copy_of_the_first_batch_of_this_rank(fake: FakeFeed, ranks: Ranks) -> None:
    publish(fake, PLAIN, epoch(1, 4, 2) + epoch(2, 1, 2))
    for rank, feed in enumerate(ranks(2, view="private")):
        epochs = EpochIterator(feed)
        first = epochs.first_batch
        assert first["id"].tolist() == Plan(1, rank, 4).ids
        first["target"].zero_()  # its own memory
        itr = epochs.next_epoch_itr()
        assert torch.equal(
            next(itr)["target"], torch.from_numpy(Plan(1, rank, 4).arrays()["target"])
        )
        assert epochs.first_batch is first
        assert len(ids(itr)) == 1
        assert epochs.first_batch["id"].tolist() == Plan(2, 0, 1, 1 if rank else 0).ids


def test_skip_and_take(fake: FakeFeed) -> None:
    publish(fake, PLAIN, epoch(1, 6) + epoch(2, 2))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        itr = epochs.next_epoch_itr()
        assert itr.skip(2) is itr and itr.n == 2
        assert itr.take(4) is itr and len(itr) == 4
        assert ids(itr) == ids_of(Plan(1, 2, 6), Plan(1, 3, 6))
        assert epochs.end_of_epoch() and not itr.has_next()
        # What was left of the epoch is passed over.
        assert ids(epochs.next_epoch_itr().skip(1)) == ids_of(Plan(2, 1, 2))
        assert epochs.next_epoch_idx == 3


def test_in_the_middle_of_an_epoch_the_rest_of_it_is_given(fake: FakeFeed) -> None:
    publish(fake, PLAIN, epoch(1, 4))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        next(epochs.next_epoch_itr())
        assert epochs.next_epoch_idx == 1
        itr = epochs.next_epoch_itr()
        assert (itr.n, len(itr)) == (1, 4) and len(ids(itr)) == 3


def test_who_joins_in_the_middle_of_an_epoch_is_there(fake: FakeFeed, ranks: Ranks) -> None:
    publish(fake, PLAIN, epoch(3, 9, 2, begin=4))
    for rank, feed in enumerate(ranks(2)):
        epochs = EpochIterator(feed)
        assert (epochs.epoch, len(epochs)) == (3, 5)
        assert epochs.state_dict()["iterations_in_epoch"] == 2
        itr = epochs.next_epoch_itr()
        assert (itr.n, len(itr)) == (2, 5)
        assert ids(itr) == ids_of(*epoch(3, 9, 2, begin=4)[rank::2])


@pytest.mark.parametrize("asked", [1, 5])
def test_another_epoch_than_the_feeds_is_refused(fake: FakeFeed, asked: int) -> None:
    publish(fake, PLAIN, epoch(3, 2))
    with fake.attach() as feed:
        epochs = EpochIterator(feed, epoch=asked)
        assert epochs.first_batch, "the trainer wants it before it loads a state"
        with pytest.raises(
            ringfeed.InvalidRequest, match=f"in epoch 3, and epoch {asked} was requested"
        ):
            epochs.next_epoch_itr()


def test_an_epoch_without_batches_is_left_out(fake: FakeFeed) -> None:
    publish(fake, PLAIN, epoch(1, 1) + epoch(3, 1))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        list(epochs.next_epoch_itr())
        assert ids(epochs.next_epoch_itr()) == ids_of(Plan(3, 0, 1)) and epochs.epoch == 3


@pytest.mark.parametrize("kind", ["of fairseq", "own, at the end", "own, in the middle"])
def test_a_state_of_an_epoch_without_batches_begins_the_next(
    fake: FakeFeed, ranks: Ranks, kind: str
) -> None:
    """All of them were dropped at its end, here for more ranks than there are batches."""
    done = 4 if kind == "own, in the middle" else 0
    state: dict[str, Any] = {"version": 2, "epoch": 2, "iterations_in_epoch": done // 2}
    own = {"version": 1, "batch": done, "chain": [1, 0], "world_size": 2, "weights": None}
    if kind != "of fairseq":
        state["ringfeed"] = {**own, "coming": [], "updates_from": None}
    want = epoch(4, 5, 8, generation=1)
    lay_seek_ready(fake, planner_says(2, done, generation=1, world=8), looks=done > 0)
    publish(fake, PLAIN, want)
    for rank, feed in enumerate(ranks(8)):
        epochs = EpochIterator(feed)
        epochs.load_state_dict(state, attempt=1)
        again = epochs.state_dict()
        assert (again["epoch"], again["ringfeed"]["batch"]) == (2, done)
        assert (epochs.epoch, len(epochs)) == (2, 1)
        with pytest.warns(RuntimeWarning, match="nothing was left of epoch 2 .* epoch 4 begins"):
            itr = epochs.next_epoch_itr()
        assert (epochs.epoch, itr.n, len(itr)) == (4, 0, 1)
        assert ids(itr) == ids_of(want[rank])
        assert epochs.next_epoch_idx == 5


def test_an_attempt_that_was_made_before_is_refused_in_the_next_epoch(fake: FakeFeed) -> None:
    """Unless nothing of that has come yet, the feed is elsewhere."""
    lay_seek_ready(fake, planner_says(2, 0, generation=1), looks=False)
    publish(fake, PLAIN, epoch(3, 4, generation=1, begin=1))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        epochs.load_state_dict({"version": 2, "epoch": 2, "iterations_in_epoch": 0})
        with pytest.raises(ringfeed.InvalidRequest, match="already made"):
            epochs.next_epoch_itr()


def test_epochs_that_are_made_for_other_ranks_are_refused(fake: FakeFeed, ranks: Ranks) -> None:
    publish(fake, PLAIN, epoch(1, 4, 4))
    epochs = EpochIterator(ranks(2)[0])
    with pytest.raises(ringfeed.InvalidRequest, match="made for 4 ranks, and group of2 has 2"):
        epochs.next_epoch_itr()


def test_a_feed_that_ends_in_an_epoch_is_no_end_of_the_epoch(fake: FakeFeed) -> None:
    publish(fake, PLAIN, epoch(1, 4, end=2))
    fake.tell("close")
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        itr = epochs.next_epoch_itr()
        next(itr), next(itr)
        with pytest.raises(ringfeed.FeedEnd):
            next(itr)
        assert not epochs.end_of_epoch()


# ---- updates ----


def test_updates_are_lists_of_samples(fake: FakeFeed) -> None:
    publish(fake, PLAIN, epoch(1, 5))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        updates = GroupedIterator(epochs.next_epoch_itr(), 2)
        assert (len(updates), updates.total, updates.n) == (3, 3, 0)
        seen = []
        for number, update in enumerate(updates, 1):
            seen += update
            assert len(update) == (1 if number == 3 else 2)
            assert updates.n == number and updates.has_next() == (number < 3)
            assert epochs.iterations_in_epoch == min(2 * number, 5) and len(updates) == 3
        assert ids(seen) == ids_of(*epoch(1, 5)) and epochs.end_of_epoch()


def test_a_loop_over_updates_holds_the_slots_of_two(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "9", "--max-hold", "4", "--rows", "8", *PLAIN.options)
    publish(fake, PLAIN, epoch(1, 9) + epoch(2, 9))
    with fake.attach(view="private") as feed:
        epochs = EpochIterator(feed)
        for _ in range(2):
            for update in GroupedIterator(epochs.next_epoch_itr(), 2):
                assert feed.stats().held == len(update)
    fake = make_feed("--slots", "9", "--max-hold", "3", "--rows", "8", *PLAIN.options, name="less")
    publish(fake, PLAIN, epoch(1, 9))
    with fake.attach(view="private") as feed:
        with pytest.raises(ringfeed.SlotsExhausted):
            for update in GroupedIterator(EpochIterator(feed).next_epoch_itr(), 2):
                pass


def test_updates_may_be_skipped_and_cut(fake: FakeFeed) -> None:
    publish(fake, PLAIN, epoch(1, 9))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        itr = epochs.next_epoch_itr()
        updates = GroupedIterator(itr, 2)
        assert updates.skip(1).n == 1 and updates.take(3).total == 3
        assert [ids(update) for update in updates] == [
            ids_of(Plan(1, 2, 9), Plan(1, 3, 9)),
            ids_of(Plan(1, 4, 9), Plan(1, 5, 9)),
        ]
        assert updates.n == 3 and epochs.end_of_epoch()
        with pytest.raises(ringfeed.InvalidRequest, match="chunk_size=0"):
            GroupedIterator(itr, 0)


@pytest.mark.parametrize(
    ("done", "chunk", "n", "total"), [(4, 2, 2, 4), (3, 2, 2, 5), (6, 4, 2, 3), (1, 1, 1, 8)]
)
def test_updates_after_a_state_count_those_before_it(
    fake: FakeFeed, done: int, chunk: int, n: int, total: int
) -> None:
    lay_seek_ready(fake, planner_says(1, done, generation=1))
    publish(fake, PLAIN, epoch(1, 8, generation=1, begin=done))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        epochs.load_state_dict({"version": 2, "epoch": 1, "iterations_in_epoch": done})
        updates = GroupedIterator(epochs.next_epoch_itr(), chunk)
        assert (updates.n, updates.total) == (n, total)
        assert sum(len(update) for update in updates) == 8 - done
        assert updates.n == total and epochs.end_of_epoch()


# ---- states ----


def test_a_state_is_fairseqs_with_what_it_forgets(fake: FakeFeed, ranks: Ranks) -> None:
    publish(fake, PLAIN, epoch(1, 7, 3))
    for feed in ranks(3):
        epochs = EpochIterator(feed)
        itr = epochs.next_epoch_itr()
        own = {
            "version": 1,
            "chain": [1, 0],
            "world_size": 3,
            "weights": None,
            "coming": [],
            "updates_from": None,
        }
        plain = {"version": 2, "epoch": 1, "shuffle": True}
        state = {**plain, "iterations_in_epoch": 0, "ringfeed": {**own, "batch": 0}}
        assert epochs.state_dict() == state
        next(itr), next(itr)
        state = {**plain, "iterations_in_epoch": 2, "ringfeed": {**own, "batch": 6}}
        assert epochs.state_dict() == state
        assert json.loads(json.dumps(state)) == state
        next(itr)
        over = {**plain, "epoch": 2, "iterations_in_epoch": 0, "ringfeed": {**own, "batch": 0}}
        assert epochs.state_dict() == over


def test_fairseqs_state_keeps_the_position_of_each_rank(fake: FakeFeed, ranks: Ranks) -> None:
    old, new = epoch(2, 12, 2), epoch(3, 11, 2, generation=5, begin=6)
    lay_seek_ready(fake, planner_says(3, 6, generation=5, world=2))
    publish(fake, PLAIN, old[:4] + new)
    state = {"version": 2, "epoch": 3, "iterations_in_epoch": 3, "shuffle": False}
    for rank, feed in enumerate(ranks(2)):
        epochs = EpochIterator(feed, epoch=3)
        assert epochs.first_batch["id"].tolist() == old[rank].ids
        epochs.load_state_dict(state, attempt=1)
        assert (epochs.epoch, epochs.next_epoch_idx, epochs.iterations_in_epoch) == (3, 3, 3)
        assert epochs.state_dict()["ringfeed"]["batch"] == 6 and not epochs.shuffle
        assert feed.stats().held == 0, "what was looked at before"
        itr = epochs.next_epoch_itr()
        assert (itr.n, len(itr)) == (3, 6)
        assert ids(itr) == ids_of(*new[rank::2])
    # Two ranks, and each message took effect once.
    first, look, second, *again = fake.calls()
    assert again == [first, look, second]
    assert (first[0], first[2]) == (None, "epoch_planner_request { }")
    assert (second[0], second[2]) == (
        "plan",
        "epoch_planner_request { seek { epoch: 3 batch: 6 world_size: 2 forgetful: true } }",
    )


@pytest.mark.parametrize(
    ("exact", "iterations", "batch"), [(None, 2, 6), (True, 2, 6), (False, 2, 8)]
)
def test_a_state_of_its_own_is_gone_on_with_by_another_number_of_ranks(
    fake: FakeFeed, ranks: Ranks, exact: bool | None, iterations: int, batch: int
) -> None:
    state = {
        **{"version": 2, "epoch": 1, "iterations_in_epoch": 2, "shuffle": True},
        "ringfeed": {
            **{
                "version": 1,
                "batch": 6,
                "chain": [1, 0],
                "world_size": 3,
                "coming": [],
                "updates_from": None,
            },
            "weights": {"main:a-b": 0.5, "c-d": 2.0},
        },
    }
    lay_seek_ready(fake, planner_says(1, batch, generation=1, world=4), looks=False)
    new = epoch(1, 15, 4, generation=1, begin=batch)
    publish(fake, PLAIN, new)
    for rank, feed in enumerate(ranks(4)):
        epochs = EpochIterator(feed)
        epochs.load_state_dict(state, exact=exact, attempt="a")
        itr = epochs.next_epoch_itr()
        assert itr.n == iterations and len(itr) == iterations + len(new) // 4
        assert ids(itr) == ids_of(*new[rank::4])
        saved = epochs.state_dict()["ringfeed"]
        assert saved["weights"] == state["ringfeed"]["weights"] and saved["world_size"] == 4
    forgetful = "true" if exact is False else "false"
    assert fake.calls()[1][2] == (
        f"epoch_planner_request {{ seek {{ epoch: 1 batch: {batch} world_size: 4 "
        f'forgetful: {forgetful} weights {{ key: "main:a-b" weight: 0.5 }} '
        'weights { key: "c-d" weight: 2 } '
        + ("" if exact is False else "chain_epoch: 1 chain_pass: 0 configured_weights: false ")
        + "} }"
    )


def test_a_state_says_from_where_fairseq_counts_updates(fake: FakeFeed) -> None:
    """After one of its own, in its epoch; and goes on with that."""
    lay_seek_ready(fake, planner_says(1, 3, generation=1))
    publish(fake, PLAIN, epoch(1, 9, generation=1, begin=3) + epoch(2, 2, generation=1))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        epochs.load_state_dict({"version": 2, "epoch": 1, "iterations_in_epoch": 3})
        itr = epochs.next_epoch_itr()
        next(itr), next(itr)
        state = epochs.state_dict()
        assert (state["ringfeed"]["batch"], state["ringfeed"]["updates_from"]) == (5, 3)
        ids(itr)
        assert epochs.state_dict()["ringfeed"]["updates_from"] is None
    lay_seek_ready(fake, planner_says(1, 5, generation=2))
    with fake.attach(group="later") as feed:
        epochs = EpochIterator(feed)
        epochs.load_state_dict(state)
        assert epochs.state_dict()["ringfeed"]["updates_from"] == 3
    assert "updates_from_batch: 3 " in fake.calls()[-1][2]


def test_a_state_that_does_not_fall_on_a_round_of_the_ranks_gives_every_batch_once(
    fake: FakeFeed, ranks: Ranks
) -> None:
    lay_seek_ready(fake, planner_says(1, 5, generation=1, world=3))
    publish(fake, PLAIN, epoch(1, 12, 3, generation=1, begin=5) + epoch(2, 3, 3, generation=1))
    state = {"version": 2, "epoch": 1, "iterations_in_epoch": 5}
    own = {"version": 1, "batch": 5, "chain": [2, 3], "world_size": 1, "weights": None}
    own |= {"coming": [], "updates_from": None}
    for rank, feed in enumerate(ranks(3)):
        epochs = EpochIterator(feed)
        epochs.load_state_dict({**state, "ringfeed": own}, attempt=1)
        itr = epochs.next_epoch_itr()
        assert (itr.n, len(itr)) == (2, 5)
        next(itr), next(itr)
        assert (itr.n, epochs.state_dict()["ringfeed"]["batch"]) == (4, 11)
        assert ids(itr) == (ids_of(Plan(1, 11, 12)) if rank == 0 else [[]])
        assert ids(epochs.next_epoch_itr()) == ids_of(Plan(2, rank, 3))


def test_a_loop_over_the_feed_goes_on_with_the_state_too(fake: FakeFeed) -> None:
    lay_seek_ready(fake, planner_says(4, 1, 9, 7, 1), planner_says(1, 3, 9, 6, 1))
    publish(fake, PLAIN, epoch(1, 3, generation=6) + epoch(4, 3, generation=7, begin=1))
    fake.tell("close")
    with fake.attach() as feed:
        feed.next().release()
        there = fairseq.load_state(feed, {"version": 2, "epoch": 4, "iterations_in_epoch": 1})
        assert there == fairseq.PlannerState("plan", 4, 1, 9, 7, 1, 0, 0)
        assert [batch["position"][:2].tolist() for batch in feed] == [[4, 1], [4, 2]]


def test_without_ranks_the_planners_number_counts(fake: FakeFeed) -> None:
    lay_seek_ready(fake, planner_says(1, 9, generation=1, world=3), planner_says(world=3))
    with fake.attach() as feed:
        fairseq.load_state(feed, {"version": 2, "epoch": 1, "iterations_in_epoch": 3})
    assert "batch: 9 world_size: 3" in fake.calls()[-1][2]


def test_each_attempt_takes_effect_once_and_another_one_anew(fake: FakeFeed, ranks: Ranks) -> None:
    feeds = ranks(2)
    state = {"version": 2, "epoch": 1, "iterations_in_epoch": 0}
    for attempt in ("a", "b"):
        lay_seek_ready(fake, planner_says(1, 0, world=2), looks=False)
        for feed in feeds:
            fairseq.load_state(feed, state, attempt=attempt)
    keys = [key for _, key, _ in fake.calls()]
    assert keys[:2] == keys[2:4] and keys[4:6] == keys[6:] and len(set(keys)) == 4
    # Another state is another order, with the same answer to the question before.
    fake.answer(("plan", planner_says(2, 0, world=2)))
    fairseq.load_state(feeds[0], {**state, "epoch": 2}, attempt="b")
    again, order = (key for _, key, _ in fake.calls()[8:])
    assert again == keys[4] and order not in keys


def test_one_rank_alone_draws_its_own_attempts(fake: FakeFeed) -> None:
    state = {"version": 2, "epoch": 1, "iterations_in_epoch": 0}
    with fake.attach() as feed:
        for _ in range(2):
            lay_seek_ready(fake, planner_says(1, 0), looks=False)
            fairseq.load_state(feed, state)
    assert len({key for _, key, _ in fake.calls()}) == 4


def test_several_ranks_need_an_attempt(fake: FakeFeed, ranks: Ranks) -> None:
    feeds = ranks(2)
    with pytest.raises(ringfeed.InvalidRequest, match="several ranks but no torch.distributed"):
        fairseq.load_state(feeds[0], {"version": 2, "epoch": 1})
    # Also where ranks are only members.
    with fake.attach(group="shared") as one, fake.attach(group="shared"):
        with pytest.raises(ringfeed.InvalidRequest, match="pass attempt="):
            fairseq.set_weights(one, {"a-b": 1.0})
    assert fake.calls() == []


TRAINER = """
import sys
import ringfeed
import torch.distributed as dist
from ringfeed.fairseq import EpochIterator

dist.init_process_group("gloo")
rank = dict(rank=dist.get_rank(), world=2)
feed = ringfeed.attach("fake", "ranks", socket_dir=sys.argv[1], timeout_s=60, **rank)
with open(f"{sys.argv[2]}/rank{dist.get_rank()}", "w") as out:
    for _ in range(2):
        epochs = EpochIterator(feed)
        epochs.load_state_dict({"version": 2, "epoch": 2, "iterations_in_epoch": 1})
        print([sample["id"].tolist() for sample in epochs.next_epoch_itr()], file=out)
feed.close()
dist.barrier()
dist.destroy_process_group()
"""


def test_under_torch_distributed_rank_0_draws_the_attempt_for_all(
    fake: FakeFeed, tmp_path: Path
) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    plans = []
    for generation in (1, 2):
        lay_seek_ready(fake, planner_says(2, 2, generation=generation, world=2))
        plans.append(epoch(2, 6, 2, generation=generation, begin=2))
    publish(fake, PLAIN, plans[0] + plans[1])
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        + [str(script), str(fake.directory), str(tmp_path)],
        env=resting_at_exit(
            dict(os.environ, PYTHONPATH=str(ROOT / "pyclient"), OMP_NUM_THREADS="1")
        ),
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert run.returncode == 0, run.stderr
    for rank in (0, 1):
        seen = (tmp_path / f"rank{rank}").read_text().splitlines()
        assert seen == [str(ids_of(*plans[0][rank::2]))] * 2
    # Two questions and an order for each state, from both ranks with one key.
    assert len(fake.calls()) == 12 and len({key for _, key, _ in fake.calls()}) == 6


@pytest.mark.parametrize("newer", [0, 1], ids=["this generation", "a later one"])
def test_an_attempt_that_was_used_before_is_noticed(fake: FakeFeed, newer: int) -> None:
    lay_seek_ready(fake, planner_says(1, 2, generation=3))
    publish(fake, PLAIN, epoch(1, 8, generation=3 + newer, begin=4))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        epochs.load_state_dict({"version": 2, "epoch": 1, "iterations_in_epoch": 2}, attempt=1)
        # A shared group of one may have lost batches: only what comes later tells it.
        if newer:
            with pytest.raises(ringfeed.InvalidRequest, match="batch 2 of epoch 1.*already made"):
                epochs.next_epoch_itr()
            return
        assert epochs.next_epoch_itr().n == 2
    ranked = fake.attach(group="ranked", rank=0, world=1)
    lay_seek_ready(fake, planner_says(1, 2, generation=3))
    fairseq.load_state(ranked, {"version": 2, "epoch": 1, "iterations_in_epoch": 2}, attempt=2)
    with pytest.raises(ringfeed.InvalidRequest, match="continues with batch 2 of epoch 1, but"):
        ranked.next()
    ranked.close()


def test_who_is_moved_by_somebody_else_is_told(fake: FakeFeed) -> None:
    publish(fake, PLAIN, epoch(1, 4, end=2) + epoch(1, 4, generation=1))
    with fake.attach() as feed:
        itr = EpochIterator(feed).next_epoch_itr()
        next(itr), next(itr)
        with pytest.raises(ringfeed.InvalidRequest, match="moved it to batch 0 of epoch 1"):
            next(itr)


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ({}, "has version None"),
        ({"version": 1, "epoch": 1}, "has version 1, this ringfeed reads 2"),
        ({"version": 2}, "not the state of an epoch iterator: KeyError"),
        ({"version": 2, "epoch": "x"}, "not the state of an epoch iterator: ValueError"),
        ({"version": 2, "epoch": 0}, "at epoch 0, iteration 0: epochs count from 1"),
        ({"version": 2, "epoch": 1, "iterations_in_epoch": -1}, "iteration -1"),
        ({"version": 2, "epoch": 1, "ringfeed": {"version": 2}}, "another ringfeed .version 2"),
        ({"version": 2, "epoch": 1, "ringfeed": {"version": 1}}, "KeyError"),
        ({"version": 2, "epoch": 1, "ringfeed": 7}, "TypeError"),
    ],
)
def test_what_is_no_state_is_refused_and_nothing_is_sent(
    fake: FakeFeed, state: dict[str, Any], what: str
) -> None:
    with fake.attach() as feed:
        with pytest.raises(ringfeed.InvalidRequest, match=what):
            EpochIterator(feed).load_state_dict(state)
    assert fake.calls() == []


def test_the_planners_refusal_is_told_and_nothing_has_changed(fake: FakeFeed) -> None:
    publish(fake, PLAIN, epoch(1, 2))
    lay_seek_ready(fake, planner_says(error="epoch 1 has 2 batches: batch 5 is none of them"))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        with pytest.raises(ringfeed.FeedRefused, match="stage plan: epoch 1 has 2 batches"):
            epochs.load_state_dict({"version": 2, "epoch": 1, "iterations_in_epoch": 5})
        assert ids(epochs.next_epoch_itr()) == ids_of(*epoch(1, 2))


def test_a_feed_without_a_planner_or_with_two_is_told(fake: FakeFeed) -> None:
    with fake.attach() as feed:
        fake.answer()
        with pytest.raises(ringfeed.InvalidRequest, match="feed fake: no epoch_planner answers"):
            fairseq.planner_state(feed)
        fake.answer(("pool", b""), ("train", planner_says()), ("valid", planner_says()))
        with pytest.raises(ringfeed.InvalidRequest, match="name one with stage=: train, valid"):
            fairseq.planner_state(feed)
        fake.answer(("valid", planner_says(2, 3, 4, 5, 6)))
        there = fairseq.planner_state(feed, stage="valid")
        assert there == fairseq.PlannerState("valid", 2, 3, 4, 5, 6, 0, 0)
    assert [stage for stage, _, _ in fake.calls()] == [None, None, "valid"]


# ---- weights ----


def test_weights_end_the_epoch_where_they_begin(fake: FakeFeed, ranks: Ranks) -> None:
    feeds = ranks(2)
    for there in (planner_says(), planner_says(1, 4, 9, 0, 2, 5, 1234)):
        fake.answer(("plan", there))
    publish(fake, PLAIN, epoch(1, 9, 2, end=5) + epoch(2, 3, 2))
    for rank, feed in enumerate(feeds):
        epochs = EpochIterator(feed)
        itr = epochs.next_epoch_itr()
        next(itr)
        assert len(itr) == 5
        there = epochs.set_weights({"main:a-b": 0.25, "c-d": 1}, 5, attempt=1)
        assert (there.from_batch, there.sentences_left, len(itr)) == (5, 1234, 3)
        saved = epochs.state_dict()
        coming = {"weights": {"main:a-b": 0.25, "c-d": 1}, "epoch": 1, "from_batch": 5}
        assert (saved["ringfeed"]["weights"], saved["ringfeed"]["coming"]) == (None, [coming])
        assert json.loads(json.dumps(saved)) == saved
        assert ids(itr) == ids_of(*epoch(1, 9, 2, end=5)[2 + rank :: 2])
        assert epochs.end_of_epoch()
        # From the next epoch on they are what a state says, before and after it has begun.
        over = epochs.state_dict()["ringfeed"]
        assert (over["weights"], over["coming"]) == (coming["weights"], [])
        assert ids(epochs.next_epoch_itr()) == ids_of(*epoch(2, 3, 2)[rank::2])
        assert epochs.state_dict()["ringfeed"]["weights"] == coming["weights"]
    assert fake.calls()[1][2] == (
        'epoch_planner_request { weights { key: "main:a-b" weight: 0.25 } '
        'weights { key: "c-d" weight: 1 } from_batch: 5 }'
    )
    assert len({key for _, key, _ in fake.calls()}) == 2 and len(fake.calls()) == 4


def test_weights_of_several_epochs_to_come_each_end_their_own(fake: FakeFeed) -> None:
    """A planner may be ahead by epochs: what was set first is still to come when it is set again."""
    publish(fake, PLAIN, epoch(1, 3) + epoch(2, 9, end=4) + epoch(3, 9, end=2) + epoch(4, 2))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        itr = epochs.next_epoch_itr()
        for number, end in ((2, 5), (2, 4), (3, 2)):
            for there in (planner_says(), planner_says(number, 0, 9, from_batch=end)):
                fake.answer(("plan", there))
            epochs.set_weights({"a-b": float(number + end)})
        coming = [
            {"weights": {"a-b": 6.0}, "epoch": 2, "from_batch": 4},
            {"weights": {"a-b": 5.0}, "epoch": 3, "from_batch": 2},
        ]
        assert epochs.state_dict()["ringfeed"]["coming"] == coming
        lengths, weights = [], []
        for number in (1, 2, 3, 4):
            lengths.append((len(itr), len(ids(itr))))
            weights.append(epochs.state_dict()["ringfeed"]["weights"])
            if number < 4:
                itr = epochs.next_epoch_itr()
        assert lengths == [(3, 3), (4, 4), (2, 2), (2, 2)]
        # At an epoch's end they are those of the next one.
        assert weights == [None, {"a-b": 6.0}, {"a-b": 5.0}, {"a-b": 5.0}]


@pytest.mark.parametrize("of_epoch", [1, 2])
def test_a_state_from_before_weights_take_effect_brings_them(fake: FakeFeed, of_epoch: int) -> None:
    """In one message with the place: no batch can come in between."""
    end = {1: 9, 2: 8, of_epoch: 4}
    state: dict[str, Any] = {
        **{"version": 2, "epoch": 1, "iterations_in_epoch": 2, "shuffle": True},
        "ringfeed": {
            **{"version": 1, "batch": 2, "world_size": 1, "weights": {"a-b": 1.0}},
            "chain": [1, 0],
            "coming": [{"weights": {"a-b": 3.0}, "epoch": of_epoch, "from_batch": 4}],
            "updates_from": None,
        },
    }
    lay_seek_ready(fake, planner_says(1, 2, generation=1), looks=False)
    of_first = epoch(1, 9, generation=1, begin=2, end=end[1])
    of_second = epoch(2, 8, generation=1, end=end[2])
    publish(fake, PLAIN, of_first + of_second + epoch(3, 1, generation=1))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        epochs.load_state_dict(copy.deepcopy(state))
        assert epochs.state_dict() == state
        itr = epochs.next_epoch_itr()
        assert (itr.n, len(itr)) == (2, end[1])
        assert len(ids(itr)) == end[1] - 2
        itr = epochs.next_epoch_itr()
        assert len(itr) == end[2] and len(ids(itr)) == end[2]
        assert ids(epochs.next_epoch_itr()) == ids_of(Plan(3, 0, 1))
        assert epochs.state_dict()["ringfeed"]["weights"] == {"a-b": 3.0}
    assert [request.split()[2] for _, _, request in fake.calls()[1:]] == ["seek"]
    assert (
        'coming_weights { key: "a-b" weight: 3 } '
        f"coming_epoch: {of_epoch} coming_from_batch: 4 " in fake.calls()[-1][2]
    )


def test_weights_behind_others_that_are_to_come_are_warned_of(fake: FakeFeed) -> None:
    coming = [{"weights": {"a-b": 3.0}, "epoch": e, "from_batch": 4} for e in (2, 3)]
    state = {
        **{"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True},
        "ringfeed": {
            **{"version": 1, "batch": 0, "world_size": 1, "weights": None, "chain": [1, 0]},
            "coming": coming,
            "updates_from": None,
        },
    }
    lay_seek_ready(fake, planner_says(1, 0, generation=1), looks=False)
    publish(fake, PLAIN, epoch(1, 1, generation=1))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        with pytest.warns(RuntimeWarning, match="at batch 4 of epoch 3, after others.*call set_we"):
            epochs.load_state_dict(state)
        assert epochs.state_dict()["ringfeed"]["coming"] == coming[:1]


def test_an_epoch_that_somebody_else_ends_is_over_when_the_next_one_comes(fake: FakeFeed) -> None:
    publish(fake, PLAIN, epoch(1, 9, end=3) + epoch(2, 2))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        itr = epochs.next_epoch_itr()
        assert len(ids(itr)) == 3 and epochs.end_of_epoch() and (itr.n, len(itr)) == (3, 3)
        assert epochs.state_dict()["epoch"] == 2
        assert ids(epochs.next_epoch_itr()) == ids_of(*epoch(2, 2))


@pytest.mark.parametrize("weights", [{}, {"a-b": -1.0}, {"a-b": float("nan")}])
def test_weights_that_are_none_are_refused(fake: FakeFeed, weights: dict[str, float]) -> None:
    with fake.attach() as feed, pytest.raises(ringfeed.InvalidRequest, match="set_weights"):
        fairseq.set_weights(feed, weights)
    assert fake.calls() == []


# ---- the feed itself ----


def test_a_batch_that_was_only_looked_at_is_the_feeds_next_one(fake: FakeFeed) -> None:
    publish(fake, PLAIN, epoch(1, 5))
    with fake.attach() as feed:
        feed.next().release()
        before = feed.state_dict()
        assert EpochIterator(feed).epoch == 1
        assert feed.state_dict() == before and feed.stats().held == 1
        assert feed.next()["position"][1] == 1
        assert EpochIterator(feed).epoch == 1 and feed.stats().held == 1
        # What was looked at and is passed over by a state does not come.
        feed.load_state_dict({**before, "next": 5, "last": 4})
        assert feed.next()["position"][1] == 4
    assert feed.closed


def test_closing_gives_back_what_was_looked_at(fake: FakeFeed) -> None:
    publish(fake, PLAIN, epoch(1, 5))
    feed = fake.attach()
    assert EpochIterator(feed).epoch == 1 and fake.tell("members") == "1"
    feed.close()
    assert fake.tell("members") == "0"
