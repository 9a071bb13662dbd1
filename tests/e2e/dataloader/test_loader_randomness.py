"""Random numbers: with the same generator and number of workers, the same draws; worker_init_fn; get_worker_info()."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from torch.utils import data as torch_data  # noqa: E402

from tests.support.loaders import own_data as data  # noqa: E402
from tests.support.loaders.own_data import (  # noqa: E402
    Augmented,
    Shards,
    Squares,
    Whoami,
    alike,
    same,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_augmentation_draws_the_same(Loader: Any, workers: int, persistent: bool) -> None:
    def make(L: Any) -> Any:
        return L(
            Augmented(20),
            batch_size=3,
            shuffle=True,
            num_workers=workers,
            persistent_workers=persistent and workers > 0,
            generator=torch.Generator().manual_seed(2026),
        )

    first, second = alike(Loader, make, epochs=2)
    assert first[0]["torch"].tolist() != second[0]["torch"].tolist()


def test_without_a_generator_the_trainers_own_decides(Loader: Any) -> None:
    def make(L: Any) -> Any:
        return L(Augmented(12), batch_size=2, shuffle=True, num_workers=2)

    [one] = alike(Loader, make, seed=1)
    [two] = alike(Loader, make, seed=2)
    [again] = alike(Loader, make, seed=1)
    same(again, one)
    assert one[0]["torch"].tolist() != two[0]["torch"].tolist()


@pytest.mark.parametrize("factor", [1, 5])
def test_prefetching_changes_no_draw(Loader: Any, factor: int) -> None:
    def make(L: Any) -> Any:
        return L(Augmented(30), batch_size=2, num_workers=2, prefetch_factor=factor)

    alike(Loader, make)


def test_streams_draw_the_same(Loader: Any) -> None:
    def make(L: Any) -> Any:
        return L(
            Shards(23, draws=True),
            batch_size=4,
            num_workers=3,
            persistent_workers=True,
            generator=torch.Generator().manual_seed(1),
        )

    alike(Loader, make, epochs=2)


def test_collate_draws_the_same(Loader: Any) -> None:
    def mine(samples: list[Any]) -> Any:
        random.shuffle(samples)
        return torch_data.default_collate(samples), torch.randn(2), np.random.permutation(5)

    alike(Loader, lambda L: L(Squares(20), batch_size=4, num_workers=2, collate_fn=mine))


def test_a_generator_draws_its_order_and_then_the_seed(Loader: Any) -> None:
    generator = torch.Generator().manual_seed(4)
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
    order = torch.randperm(6, generator=generator).tolist()
    torch.randperm(
        6, generator=generator
    )  # At its end the sampler draws an order of which it takes nothing.
    loader = Loader(
        Whoami(6),
        shuffle=True,
        batch_size=None,
        num_workers=2,
        generator=torch.Generator().manual_seed(4),
    )
    samples = list(loader)
    assert [sample["index"] for sample in samples] == order
    assert [sample["info"] for sample in samples] == [
        [i % 2, 2, seed + i % 2, True] for i in range(6)
    ]
    assert loader.generator.get_state().tolist() == generator.get_state().tolist()


def test_the_loops_draws_do_not_reach_the_workers(Loader: Any) -> None:
    def run(disturb: bool) -> list[Any]:
        data.seed_all(3)
        seen = []
        for batch in Loader(Augmented(20), batch_size=2, num_workers=2):
            seen.append(batch)
            if disturb:
                torch.rand(5), random.random(), np.random.random()
        return seen

    same(run(True), run(False))


def test_the_workers_draws_do_not_reach_the_loop(Loader: Any) -> None:
    data.seed_all(3)
    list(Loader(Squares(20), batch_size=2, num_workers=2))
    due = data.states()
    data.seed_all(3)
    list(Loader(Augmented(20), batch_size=2, num_workers=2))
    assert data.states() == due
    data.seed_all(3)
    assert due[:2] == data.states()[:2], "random and NumPy of the trainer are not drawn from"
    assert due[2] != data.states()[2], "torch's gives the seed"


def test_numpy_draws_differ_between_workers_and_epochs(Loader: Any) -> None:
    loader = Loader(Augmented(4), num_workers=2)
    drawn = [float(batch["numpy"][0, 0]) for _ in range(2) for batch in loader]
    assert len(set(drawn)) == 8


def test_seeds_of_the_users_own_stay(Loader: Any) -> None:
    def seeded(worker: int) -> None:
        torch.manual_seed(100 + worker)
        random.seed(200 + worker)
        np.random.seed(300 + worker)

    [batches] = alike(
        Loader, lambda L: L(Augmented(6), batch_size=None, num_workers=2, worker_init_fn=seeded)
    )
    for worker in range(2):
        seeded(worker)
        due = Augmented()[0]
        same([batches[worker][key] for key in ("random", "torch")], [due["random"], due["torch"]])
    data.seed_all()


def test_a_seed_for_each_sample_stays(Loader: Any) -> None:
    def drawn(index: int) -> Any:
        torch.manual_seed(index)
        np.random.seed(index)
        return (
            torch.rand(2),
            np.random.rand(2),
            torch.rand(1, generator=torch.Generator().manual_seed(index)),
        )

    one, two = (
        list(Loader(data.Made(drawn, 6), batch_size=2, num_workers=workers, worker_init_fn=None))
        for workers in (1, 2)
    )
    same(one, two)


# ---- worker_init_fn ----


def test_worker_init_fn_is_called_once_in_each_worker_before_the_data(Loader: Any) -> None:
    calls = torch.zeros(3, dtype=torch.int64).share_memory_()

    def begin(worker: int) -> None:
        info = torch_data.get_worker_info()
        assert info is not None and info.id == worker and info.num_workers == 3
        calls[worker] += 1
        info.dataset.note = f"worker {worker} at call {int(calls[worker])}"

    loader = Loader(Whoami(6), batch_size=None, num_workers=3, worker_init_fn=begin)
    for epoch in range(1, 3):
        assert [sample["note"] for sample in loader] == [
            f"worker {i % 3} at call {epoch}" for i in range(6)
        ]
    assert calls.tolist() == [2, 2, 2]
    assert loader.dataset.note == "as made"


def test_worker_init_fn_is_called_once_for_persistent_workers(Loader: Any) -> None:
    calls = torch.zeros(2, dtype=torch.int64).share_memory_()

    def begin(worker: int) -> None:
        calls[worker] += 1

    loader = Loader(Squares(6), num_workers=2, worker_init_fn=begin, persistent_workers=True)
    for _ in range(3):
        assert len(list(loader)) == 6
    assert calls.tolist() == [1, 1]


def test_worker_init_fn_may_split_a_stream(Loader: Any) -> None:
    class Span(torch_data.IterableDataset):
        def __init__(self) -> None:
            self.first, self.last = 0, 10

        def __iter__(self) -> Any:
            return iter(range(self.first, self.last))

    def split(worker: int) -> None:
        span = torch_data.get_worker_info().dataset
        span.first, span.last = 5 * worker, 5 * worker + 5

    loader = Loader(Span(), batch_size=5, num_workers=2, worker_init_fn=split)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_worker_init_fn_may_be_any_callable(Loader: Any) -> None:
    def note(text: str, worker: int) -> None:
        torch_data.get_worker_info().dataset.note = f"{text} {worker}"

    class Called:
        def __call__(self, worker: int) -> None:
            note("called", worker)

    for init, text in ((functools.partial(note, "partial"), "partial 0"), (Called(), "called 0")):
        [sample] = Loader(Whoami(1), batch_size=None, num_workers=1, worker_init_fn=init)
        assert sample["note"] == text


def test_worker_init_fn_is_not_called_without_workers(Loader: Any) -> None:
    called: list[int] = []
    assert len(list(Loader(Squares(3), worker_init_fn=called.append))) == 3
    assert called == []


# ---- get_worker_info() ----


def test_there_is_no_worker_info_in_the_trainer(Loader: Any) -> None:
    assert torch_data.get_worker_info() is None
    for sample in Loader(Whoami(3), batch_size=None):
        assert sample["info"] is None
    for _ in Loader(Whoami(3), num_workers=1, batch_size=None):
        assert torch_data.get_worker_info() is None


def test_each_worker_has_a_process_and_one_thread(Loader: Any) -> None:
    samples = list(Loader(Whoami(6), batch_size=None, num_workers=3))
    pids = [sample["pid"] for sample in samples]
    assert len(set(pids[:3])) == 3 and pids[:3] == pids[3:]
    assert {sample["threads"] for sample in samples} == {1}


def test_persistent_workers_keep_process_seed_and_dataset(Loader: Any) -> None:
    loader = Loader(Whoami(4), batch_size=None, num_workers=2, persistent_workers=True)
    first, second = list(loader), list(loader)
    same(second, first)


def test_without_persistent_workers_each_epoch_has_a_new_seed_and_the_trainers_dataset(
    Loader: Any,
) -> None:
    loader = Loader(Whoami(4), batch_size=None, num_workers=2)
    first = list(loader)
    loader.dataset.note = "changed between epochs"
    second = list(loader)
    assert first[0]["info"][2] != second[0]["info"][2]
    assert [sample["note"] for sample in second] == ["changed between epochs"] * 4


def test_what_a_worker_changes_in_its_dataset_stays_in_the_worker(Loader: Any) -> None:
    class Remembers(torch_data.Dataset):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> list[int]:
            self.seen.append(index)
            return list(self.seen)

    for persistent in (False, True):
        dataset = Remembers()
        loader = Loader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
        first = list(loader)
        assert first[4:] == [[0, 2, 4], [1, 3, 5]] and dataset.seen == []
        second = list(loader)
        assert second[0] == ([0, 2, 4, 0] if persistent else [0])


def test_worker_info_is_seen_by_every_function_of_the_worker(Loader: Any) -> None:
    def collate(samples: list[Any]) -> Any:
        info = torch_data.get_worker_info()
        return info.id, info.num_workers, info.seed, info.dataset[1][1], len(samples)

    data.seed_all()
    seen = list(Loader(Squares(8), batch_size=2, num_workers=2, collate_fn=collate))
    assert [one[:2] + one[3:] for one in seen] == [(i % 2, 2, 1, 2) for i in range(4)]
    assert seen[1][2] == seen[0][2] + 1


def test_worker_info_cannot_be_changed(Loader: Any) -> None:
    def change(worker: int) -> None:
        torch_data.get_worker_info().id = 7

    error = data.raised(lambda: list(Loader(Squares(2), num_workers=1, worker_init_fn=change)))
    assert isinstance(error, AttributeError) and "cannot assign to field 'id'" in str(error)
