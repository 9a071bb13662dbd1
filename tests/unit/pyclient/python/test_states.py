"""States of feeds: what state_dict() made, and whatever else a file may hold instead."""

# flake8: noqa: F811

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import ringfeed  # noqa: E402

from tests.support.fakes.fake_feed import MakeFeed, make_feed, rows_of  # noqa: E402, F401

MUTATIONS = 3000
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 7, 2**31, 2**40 - 1, 2**40, 2**63 - 1, 2**63, 2**64, 10**30),
    *(1.0, 3.5, float("nan"), float("inf"), "", "3", "default", "fake", "x" * 5000, "\x1b[2J\n"),
    *(b"3", [], [1], [None], ["1"], [2**63], [-1], {}, {"a": 1}, (3,), {1}, object(), 1j),
)


def mutated(state: dict[str, Any], draw: random.Random) -> Any:
    if draw.random() < 0.02:
        return draw.choice([*ODD, list(state.items()), json.dumps(state)])
    state = copy.deepcopy(state)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        key = draw.choice([*state, "more"])
        change = draw.random()
        if change < 0.2:
            state.pop(key, None)
        elif change < 0.6 or key not in state:
            state[key] = draw.choice(ODD)
        elif change < 0.7:
            state[key] = copy.copy(state[draw.choice(list(state))])
        elif isinstance(state[key], int):
            state[key] += draw.choice([-1, 1, 2, 256, 1 << draw.randrange(70)])
        elif isinstance(state[key], str):
            state[key] = state[key][1:] + draw.choice("0aä\n")
    if draw.random() < 0.5:
        state.pop("check", None)
    return state


def where(feed: ringfeed.Feed) -> tuple[object, ...]:
    stats = feed.stats()
    return feed.state_dict(), stats.held, stats.done, stats.taken, stats.group_index


def test_a_mutated_state_is_refused_or_is_a_place_that_the_feed_has_reached(
    make_feed: MakeFeed,
) -> None:
    fake = make_feed()
    fake.tell("publish 2")
    fake.wait_until_published(2)
    draw = random.Random(20)
    refused = taken = 0
    with fake.attach() as feed:
        feed.next().release()
        feed.next().release()
        state = json.loads(json.dumps(feed.state_dict()))
        before = where(feed)
        for number in range(MUTATIONS):
            wrong = mutated(state, draw)
            try:
                feed.load_state_dict(wrong)
            except ringfeed.InvalidRequest as error:
                assert len(str(error)) < 700 and "\x1b" not in str(error), (number, wrong)
                assert where(feed) == before, (number, wrong)
                refused += 1
            else:
                assert 1 <= wrong["next"] <= 3, (number, wrong)
                assert feed.state_dict()["next"] == wrong["next"], (number, wrong)
                feed.load_state_dict(state)
                before = where(feed)
                taken += 1
        assert refused > MUTATIONS / 2 and taken > 0
        fake.tell("publish 1")
        assert feed.next().seq == 3


@pytest.mark.parametrize("seq", [5, 1000, 2**40 - 1, 2**40, 2**63, 2**64])
def test_a_position_that_the_feed_has_not_reached_is_refused(make_feed: MakeFeed, seq: int) -> None:
    fake = make_feed()
    fake.tell("publish 3")
    fake.wait_until_published(3)
    with fake.attach() as feed:
        feed.next().release()
        state = feed.state_dict()
        for check in (state["check"], "00000000", None, 7):
            with pytest.raises(ringfeed.InvalidRequest):
                feed.load_state_dict({**state, "last": seq - 1, "next": seq, "check": check})
        assert [feed.next().seq for _ in range(2)] == [2, 3]


def unchecked(state: dict[str, Any]) -> dict[str, Any]:
    del state["check"]
    return state


def without_output(state: dict[str, Any]) -> dict[str, Any]:
    del state["check"], state["output"]
    return state


@pytest.mark.parametrize("older", [unchecked, without_output])
def test_states_of_older_versions_are_read(
    make_feed: MakeFeed, older: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    fake = make_feed()
    fake.tell("publish 3")
    fake.wait_until_published(3)
    with fake.attach() as feed:
        feed.next().release()
        feed.load_state_dict(older(feed.state_dict()))
        assert feed.next().seq == 2


def test_a_position_that_no_batch_can_have_is_refused_in_c_too(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 2")
    fake.wait_until_published(2)
    with fake.attach() as feed:
        for position in (2**40, 2**63, 2**64 - 1):
            with pytest.raises(ringfeed.InvalidRequest, match="from 1 to 1099511627775"):
                feed._handle.pass_over(position)
            with pytest.raises(ringfeed.InvalidRequest, match="from 1 to 1099511627775"):
                assert feed._attach_at is not None
                feed._attach_at(position)
        assert feed.next().seq == 1


# A batch that was looked at beforehand is claimed, and in nobody's hands.
def test_a_batch_that_was_looked_at_is_kept_unless_the_state_passes_over_it(
    make_feed: MakeFeed,
) -> None:
    fake = make_feed()
    fake.tell("publish 2")
    with fake.attach() as feed:
        feed.next().release()
        early = feed.state_dict()
        feed.next().release()
        state = feed.state_dict()
        fake.tell("publish 3")
        assert feed._peek().seq == 3
        with pytest.raises(ringfeed.InvalidRequest):
            feed.load_state_dict(early)
        assert feed.state_dict() == state
        with feed.next() as batch:
            assert batch.seq == 3
            np.testing.assert_array_equal(batch["x"], rows_of(3, batch.rows))
        state = feed.state_dict()
        assert feed._peek().seq == 4
        feed.load_state_dict(state)
        assert feed._peek().seq == 4
        feed.load_state_dict({**state, "last": 4, "next": 5})
        assert feed.next().seq == 5
