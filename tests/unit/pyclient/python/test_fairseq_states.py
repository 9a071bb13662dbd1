"""States of an EpochIterator where PyTorch is not installed."""

# flake8: noqa: F811

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import ringfeed  # noqa: E402
from ringfeed import fairseq  # noqa: E402
from ringfeed.fairseq import EpochIterator, load_state  # noqa: E402

from tests.support.fakes.fake_bitext import Plan, epoch, layout, planner_says, publish  # noqa: E402
from tests.support.fakes.fake_feed import FakeFeed, MakeFeed, make_feed  # noqa: E402, F401

PLAIN = layout()


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("ringfeed.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "ringfeed._core.torch_bridge", raising=False)
    monkeypatch.delattr(ringfeed, "torch", raising=False)
    monkeypatch.delattr(ringfeed._core, "torch_bridge", raising=False)


@pytest.fixture
def fake(make_feed: MakeFeed) -> FakeFeed:
    return make_feed("--slots", "100", "--max-hold", "100", "--rows", "8", *PLAIN.options)


def test_states_need_no_torch(fake: FakeFeed) -> None:
    plans = [*epoch(1, 3), *epoch(2, 4)]
    publish(fake, PLAIN, plans)
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        assert epochs.state_dict()["iterations_in_epoch"] == 0
        assert (epochs.epoch, epochs.next_epoch_idx, len(epochs)) == (1, 1, 3)
        itr = epochs.next_epoch_itr()
        itr.skip(2)
        state = epochs.state_dict()
        assert (state["epoch"], state["iterations_in_epoch"]) == (1, 2)
        assert state["ringfeed"]["batch"] == 2
        itr.skip(1)
        state = epochs.state_dict()
        assert (state["epoch"], state["iterations_in_epoch"]) == (2, 0)
        epochs.next_epoch_itr().skip(1)
        assert epochs.state_dict()["ringfeed"]["batch"] == 1
        with pytest.raises(ImportError):
            next(iter(epochs.next_epoch_itr()))


def test_a_state_is_loaded_without_torch(fake: FakeFeed) -> None:
    state = {"version": 2, "epoch": 1, "iterations_in_epoch": 2, "shuffle": True}
    for answer in (planner_says(), planner_says(epoch_batches=4), planner_says(1, 2, generation=1)):
        fake.answer(("plan", answer))
    publish(fake, PLAIN, epoch(1, 4, 1, generation=1, begin=2))
    with fake.attach() as feed:
        epochs = EpochIterator(feed)
        epochs.load_state_dict(state)
        assert epochs.state_dict()["iterations_in_epoch"] == 2
        itr = epochs.next_epoch_itr()
        assert (itr.n, len(itr)) == (2, 4)
        itr.skip(1)
        assert epochs.state_dict()["iterations_in_epoch"] == 3


@pytest.mark.parametrize("iterations", [4, 5, 1000])
def test_a_place_beyond_the_epoch_is_refused(fake: FakeFeed, iterations: int) -> None:
    """The plan is waited for; then nothing has changed."""
    state: dict[str, Any] = {"version": 2, "epoch": 1, "iterations_in_epoch": iterations}
    # Where it is; that it is still planning, twice; how long the epoch is.
    for answer in (planner_says(), planner_says(), planner_says(), planner_says(epoch_batches=4)):
        fake.answer(("plan", answer))
    publish(fake, PLAIN, [Plan(1, 0, 4)])
    with fake.attach() as feed:
        with pytest.raises(ringfeed.FeedRefused, match=f"batch {iterations} of epoch 1.* has 4"):
            load_state(feed, state)
        calls = fake.calls()
        assert len(calls) == 4
        assert all("only_look: true" in request for _, _, request in calls[1:])
        assert feed.next()["position"][1] == 0


def test_a_plan_is_not_waited_for_for_ever(fake: FakeFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairseq.state, "_PLAN_S", 0.0)
    state = {"version": 2, "epoch": 1, "iterations_in_epoch": 2, "shuffle": True}
    for _ in range(2):
        fake.answer(("plan", planner_says()))
    with fake.attach() as feed, pytest.raises(ringfeed.FeedTimeout, match="nothing has changed"):
        load_state(feed, state)
