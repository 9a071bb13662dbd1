"""Workers that do not go on side by side: some have ended long ago, one takes long for a sample."""

from __future__ import annotations

import importlib
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from tests.support.feeds.feed_run import wait_until  # noqa: E402
from tests.support.loaders.own_data import AwaitsFile, Uneven  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SEED = int(os.environ.get("RINGFEED_UNEVEN_SEED", "1"))
# Of a worker alone, more than a feed describes batches (256), and its share of them.
SIZES = [
    [25, 0, 100, 37],
    [0, 300],
    [600, 1],
    [0, 0, 0, 300],
    [3, 200, 90],
    [0, 700, 0, 400, 0],
]
SIZES += [[random.Random(SEED + i).choice([0, 1, 70, 500]) for _ in range(2 + i)] for i in range(4)]


def names(sizes: list[int]) -> str:
    return "-".join(map(str, sizes))


@pytest.mark.parametrize("sizes", SIZES, ids=names)
@pytest.mark.parametrize("in_order", [True, False], ids=["in_order", "as_ready"])
def test_each_worker_has_as_many_as_it_has(Loader: Any, sizes: list[int], in_order: bool) -> None:
    loader = Loader(Uneven(sizes), batch_size=None, num_workers=len(sizes), in_order=in_order)
    seen = [(worker, item) for worker, item in loader]
    for worker, size in enumerate(sizes):
        assert [item for one, item in seen if one == worker] == list(range(size))
    assert len(seen) == sum(sizes)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_also_where_workers_are_spawned(Loader: Any, context: str) -> None:
    sizes = [0, 400, 20]
    loader = Loader(
        Uneven(sizes),
        batch_size=3,
        num_workers=3,
        multiprocessing_context=context,
        timeout=300,
    )
    assert sum(len(items) for _, items in loader) == sum(sizes)


def test_over_epochs_of_the_same_workers(Loader: Any) -> None:
    sizes = [500, 2, 90]
    loader = Loader(Uneven(sizes), batch_size=None, num_workers=3, persistent_workers=True)
    for _ in range(3):
        counts = Counter(worker for worker, _ in loader)
        assert counts == dict(enumerate(sizes))


@pytest.mark.parametrize("stop", [1, 40, 350])
def test_a_state_of_uneven_workers_goes_on(stop: int) -> None:
    stateful = importlib.import_module("ringfeed.torch").StatefulDataLoader
    sizes = [10, 400, 0]

    def loader() -> Any:
        return stateful(Uneven(sizes), batch_size=None, num_workers=3)

    whole = list(loader())
    first = loader()
    taken = iter(first)
    begun = [next(taken) for _ in range(stop)]
    state = first.state_dict()
    del taken
    second = loader()
    second.load_state_dict(state)
    assert begun + list(second) == whole


def test_a_stream_of_one_shard_leaves_workers_without_work(Loader: Any) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"i": list(range(900))}).to_iterable_dataset(num_shards=1)
    seen = [row["i"] for row in Loader(rows, batch_size=None, num_workers=4)]
    assert seen == list(range(900))


@pytest.mark.parametrize("workers", [2, 3])
def test_one_slow_sample_keeps_no_other_from_the_loop(
    Loader: Any, tmp_path: Path, workers: int
) -> None:
    """With in_order=False. The sample is done when all others have come."""
    go_on = tmp_path / "go-on"
    length, slow = 3000, 10
    dataset = AwaitsFile(length, slow, go_on)
    loader = Loader(dataset, batch_size=1, num_workers=workers, in_order=False)
    seen = []
    for batch in loader:
        seen.append(batch.item())
        # The slow worker has some batches behind that one.
        if len(seen) == length - 2 * workers - 2:
            assert slow not in seen
            go_on.touch()
    assert sorted(seen) == list(range(length))


def test_a_slow_worker_may_die_and_nothing_changes(Ours: Any, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    loader = Ours(AwaitsFile(800, 5, go_on), batch_size=1, num_workers=2, in_order=False)
    iterator = iter(loader)
    seen = [next(iterator).item() for _ in range(700)]
    assert 5 not in seen
    before = int(go_on.with_suffix(".pid").read_text())
    slow = next(one for one in iterator._workers if one.pid == before)
    os.kill(before, 9)
    wait_until(lambda: slow.pid not in (0, before), "the slow worker's successor")
    go_on.touch()
    seen += [batch.item() for batch in iterator]
    assert sorted(seen) == list(range(800))
