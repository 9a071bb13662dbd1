"""Which samples the batches of a shared feed have: those of PyTorch's own samplers."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from torch.utils.data import BatchSampler  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from ringfeed.torch._plan import Plan, PlanTable, mark_of  # noqa: E402

LENGTHS = [1, 2, 7, 16, 33]


@pytest.mark.parametrize("ranks, first, local", [(1, 0, 1), (2, 0, 2), (3, 0, 3), (8, 4, 4)])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("cuts", [False, True])
def test_order_is_that_of_distributed_sampler(
    ranks: int, first: int, local: int, shuffle: bool, cuts: bool
) -> None:
    """For each rank, epoch, length and batch size, also where the ends are uneven."""
    compared = 0
    for samples, size, drop_last in itertools.product(LENGTHS, [1, 3, 5], [False, True]):
        if cuts and samples < ranks:
            continue  # PyTorch's own sampler fails
        plan = Plan(samples, size, drop_last, shuffle, 5, ranks, local, first, cuts)
        for epoch, rank in itertools.product(range(3), range(local)):
            sampler: DistributedSampler[int] = DistributedSampler(
                range(samples), ranks, first + rank, shuffle, 5, cuts  # type: ignore[arg-type]
            )
            sampler.set_epoch(epoch)
            expected = list(BatchSampler(sampler, size, drop_last))
            order = plan.order(epoch)
            assert plan.batches == len(expected)
            assert [plan.indices(order, k, rank) for k in range(plan.batches)] == expected
            compared += len(expected)
    assert compared > 100


def test_single_samples() -> None:
    """Without a batch size each batch is one index."""
    plan = Plan(5, None, False, False, 0)
    assert [plan.indices(None, batch, 0) for batch in range(plan.batches)] == [0, 1, 2, 3, 4]


def test_seeds_differ() -> None:
    """Each batch of each epoch and rank has a seed of its own, the same in every process."""
    plan = Plan(100, 10, False, True, 1, 4, 2, 2)
    seeds = [plan.seed_of(*at) for at in itertools.product(range(5), range(10), range(2))]
    assert len(set(seeds)) == 100
    assert plan.seed_of(0, 0, 0) == Plan(7, 1, True, False, 1, 4, 1, 2).seed_of(0, 0, 0)


@pytest.mark.parametrize("seed", [-1, (1 << 64) - 1])
def test_seeds_at_the_ends_of_their_range(seed: int) -> None:
    """Whatever a generator takes as its seed has an order for each epoch."""
    plan = Plan(100, 2, False, True, seed)
    orders = []
    for epoch in range(3):
        order = plan.order(epoch)
        assert order is not None
        orders.append(tuple(order.tolist()))
        assert sorted(orders[-1]) == list(range(100))
        assert plan.seed_of(epoch, 0, 0) >= 0
    assert len(set(orders)) == 3


def test_marks_differ() -> None:
    """No two batches have the same one."""
    places = list(itertools.product(range(3), [0, 1, 15, 16, 1 << 35], range(16)))
    assert len({mark_of(*place) for place in places}) == len(places)


def test_places_in_iterations() -> None:
    """Batches of the feed are those of the iteration that began last, and some belong to none."""
    table = PlanTable.create(Plan(20, 2, False, False, 0, 2, 2, 0), 0)  # 5 batches for each rank
    assert table.place(1) is None
    assert table.begin(1, 3, 2) == 0
    assert [table.place(seq) for seq in range(1, 8)] == [
        *((3, 2, 0), (3, 2, 1), (3, 3, 0), (3, 3, 1), (3, 4, 0), (3, 4, 1)),
        None,
    ]
    # It is cut short.
    assert table.begin(5, 4, 0) == 1
    assert table.place(4) == (3, 3, 1)
    assert table.place(5) == (4, 0, 0)
    assert table.place(14) == (4, 4, 1)
    assert table.place(15) is None
    # Another feed has begun.
    table.drop_from(5)
    assert table.count == 1
    table.drop_from(1)
    assert table.count == 0 and table.place(1) is None
