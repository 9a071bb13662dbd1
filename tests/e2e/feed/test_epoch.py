"""A finite run delivers every position exactly once, to whoever is entitled to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.feeds.feed_run import FeedRun
from tests.support.feeds.scenes import assert_exact
from tests.support.makers import lc0_data
from tests.support.oracles import lc0_reference

MakeRun = Callable[..., FeedRun]


def test_one_trainer_gets_each_position_once(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = make_run().start()
    result = run.trainer().result()
    assert_exact(result["hashes"], games)
    assert list(result["numbers"]) == list(range(1, len(result["numbers"]) + 1))
    assert all(result["rows"][:-1] == 256), "only the last batch is short"
    assert run.wait() == 0, run.text()


def test_two_groups_get_everything_each(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = make_run(groups='groups { name: "a" } groups { name: "b" }').start()
    a, b = run.trainer(group="a"), run.trainer(group="b")
    first, second = a.result(), b.result()
    assert_exact(first["hashes"], games)
    assert_exact(second["hashes"], games)
    assert np.array_equal(first["digests"], second["digests"]), "both groups see the same batches"
    assert run.wait() == 0, run.text()


def test_two_members_share_one_epoch(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = make_run(groups='groups { name: "pair" }').start()
    members = [run.trainer(group="pair", pause_ms=5) for _ in range(2)]
    results = [member.result() for member in members]
    assert_exact(np.concatenate([result["hashes"] for result in results]), games)
    numbers = np.concatenate([result["numbers"] for result in results])
    assert sorted(numbers) == list(range(1, len(numbers) + 1)), "each batch went to one member"
    assert run.wait() == 0, run.text()


def test_ranked_members_take_turns(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = make_run(groups='groups { name: "ranks" kind: RANKED world: 2 }').start()
    ranks = [run.trainer(group="ranks", rank=rank, world=2) for rank in range(2)]
    results = [rank.result() for rank in ranks]
    assert_exact(np.concatenate([result["hashes"] for result in results]), games)
    for rank, result in enumerate(results):
        assert all((result["numbers"] - 1) % 2 == rank)
    assert run.wait() == 0, run.text()


def test_two_epochs_use_each_position_twice(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = make_run(epochs=2).start()
    assert_exact(run.trainer().result()["hashes"], games, times=2)
    assert run.wait() == 0, run.text()


def test_drop_remainder_drops_less_than_a_batch(
    make_run: MakeRun, games: lc0_data.Manifest
) -> None:
    run = make_run(extra="drop_remainder: true").start()
    result = run.trainer().result()
    assert all(result["rows"] == 256)
    audit = lc0_reference.audit(result["hashes"], games.record_hashes)
    assert not audit.repeated and not audit.unknown
    assert len(audit.missing) == len(games.record_hashes) % 256
    assert run.wait() == 0, run.text()


def test_a_rate_below_one_takes_its_share(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = make_run(rate=0.25, epochs=4).start()
    assert_exact(
        run.trainer().result()["hashes"], games
    )  # four uses of a quarter: each position once
    assert run.wait() == 0, run.text()


def digests(make_run: MakeRun, **settings: object) -> np.ndarray:
    run = make_run(**settings).start()
    result = run.trainer(positions=0).result()
    assert run.wait() == 0, run.text()
    return result["digests"]


def test_same_seed_gives_the_same_bytes_with_any_number_of_lanes(make_run: MakeRun) -> None:
    one = digests(make_run)
    many = digests(make_run, loaders=2, readers=3, unpackers=2, generators=2)
    assert np.array_equal(one, many)


def test_another_seed_gives_another_order(make_run: MakeRun) -> None:
    assert not np.array_equal(digests(make_run), digests(make_run, seed=8))


def test_relaxed_dispatch_delivers_everything(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = make_run(dispatch="RELAXED", readers=2, unpackers=2, generators=2).start()
    assert_exact(run.trainer().result()["hashes"], games)
    assert run.wait() == 0, run.text()


@pytest.mark.parametrize("grouping", ["one", "each"])
def test_grouping_of_stages_changes_nothing(
    make_run: MakeRun, games: lc0_data.Manifest, grouping: str
) -> None:
    names = ["provider", "loader", "pool", "unpacker", "sampler", "tensors"]
    groups = [names] if grouping == "one" else [[name] for name in names]
    extra = "".join(
        f'stage_groups {{ name: "g{i}" ' + "".join(f'stages: "{name}" ' for name in group) + "}"
        for i, group in enumerate(groups)
    )
    run = make_run(extra=extra).start()
    assert_exact(run.trainer().result()["hashes"], games)
    assert run.wait() == 0, run.text()
