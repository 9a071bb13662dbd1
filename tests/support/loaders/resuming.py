"""What the tests of ``state_dict()`` share: torchdata's loader, datasets and samplers with states, and loops that are stopped and go on."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tests.support.loaders.own_data import epochs_of

try:
    from torchdata.stateful_dataloader import StatefulDataLoader as Torchdatas
except ImportError:
    Torchdatas = None

beside_torchdata = pytest.mark.skipif(Torchdatas is None, reason="torchdata is not installed")
# Of machines with few processors, and of trainers with threads.
no_warnings = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


def as_they_are(samples: Any) -> Any:
    return samples


def share(sizes: list[int]) -> range:
    """This worker's samples; without workers all of them."""
    info = get_worker_info()
    if info is None:
        return range(sum(sizes))
    begin = sum(sizes[: info.id])
    return range(begin, begin + sizes[info.id])


# ---- datasets


class Numbers(Dataset):
    """Map-style; counts what is asked of it."""

    def __init__(self, count: int = 40) -> None:
        self.count = count
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        return index


class DrawsWithState(Numbers):
    """Its samples are drawn, and its state is the generator's."""

    def __getitem__(self, index: int) -> Any:
        return index, int(torch.randint(1 << 30, ()))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["generator"])


class Augmented(Numbers):
    """Draws from all three generators and keeps no state."""

    def __getitem__(self, index: int) -> Any:
        return index, float(torch.randn(())), random.gauss(0, 1), numpy.random.standard_normal()


class StatefulIterator(Iterator):
    def __init__(self, samples: range) -> None:
        self.samples = samples
        self.at = 0

    def __next__(self) -> int:
        if self.at >= len(self.samples):
            raise StopIteration
        self.at += 1
        return self.samples[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"inner": {"at": self.at}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["inner"]["at"]


class OverIterator(IterableDataset):
    """iter() gives an iterator with a state."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[int]:
        return StatefulIterator(share(self.sizes))


class OverGenerator(IterableDataset):
    """The dataset has a state, its iterator is a generator; each pass is another epoch."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.passed = 0
        self.go_on_at: int | None = None
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.passed, self.go_on_at = self.go_on_at or 0, None
        samples = share(self.sizes)
        for sample in samples[self.passed :]:
            self.passed += 1
            yield sample, self.epoch
        self.passed = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"passed": self.passed, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.go_on_at = state["passed"]
        self.epoch = state["epoch"]


class IsItsIterator(IterableDataset, StatefulIterator):
    """The dataset is its own iterator. One pass: the second is empty."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.at = 0

    def __iter__(self) -> IsItsIterator:
        self.samples = share(self.sizes)
        return self


class Stateless(IterableDataset):
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[int]:
        yield from share(self.sizes)


class CountsIter(IterableDataset):
    """Its state tells how often iter() has been called."""

    def __init__(self) -> None:
        self.calls = 0

    def __iter__(self) -> Iterator[int]:
        self.calls += 1
        return iter(range(30))

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class GrowingState(IterableDataset, StatefulIterator):
    """Its state changes in place, and has more keys with each sample."""

    def __init__(self) -> None:
        self.samples = range(50)
        self.at = 0
        self.state: dict[Any, Any] = {}

    def __iter__(self) -> GrowingState:
        return self

    def __next__(self) -> int:
        sample = super().__next__()
        self.state[sample] = {sample: torch.tensor(sample)}
        return sample

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "seen": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.state = state["at"], state["seen"]


# ---- samplers of the user's


class Evens:
    """Without any state."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.begun = 0

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        return iter(range(0, self.count, 2))

    def __len__(self) -> int:
        return (self.count + 1) // 2


class ByIterator(Evens):
    """Its iterator has a state."""

    def __iter__(self) -> Iterator[int]:
        return StatefulIterator(range(0, self.count, 2))


class BySampler(Evens):
    """The sampler has a state; its iterator is a generator."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.at = 0
        self.go_on_at: int | None = None
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        if self.go_on_at is not None:
            self.at, self.go_on_at = self.go_on_at, None
        for index in range(self.at, self.count):
            self.at += 1
            yield (index + self.epoch) % self.count
        self.at = 0
        self.epoch += 1

    def __len__(self) -> int:
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.go_on_at, self.epoch = state["at"], state["epoch"]


class Shuffles(Evens):
    """Draws its order from the global generators, at the first next()."""

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.count).tolist()
        random.shuffle(order)
        numpy.random.shuffle(order)
        yield from order

    def __len__(self) -> int:
        return self.count


# ---- loops


def through_json(state: Any) -> Any:
    """The state as a file of text gives it back."""
    return json.loads(json.dumps(state))


def take(batches: Iterator[Any], count: int) -> list[Any]:
    """The next ones; there have to be so many."""
    return [next(batches) for _ in range(count)]


def stopped(loader: Any, stop: int | None) -> tuple[Any, Iterator[Any]]:
    """The state of a loop behind so many batches, and an iterator that has the rest.

    None: behind a whole epoch; the iterator has the next one.
    """
    if stop is None:
        list(loader)
        return loader.state_dict(), iter(loader)
    iterator = iter(loader)
    take(iterator, stop)
    return loader.state_dict(), iterator


def resumed(loader: Any, state: Any) -> Any:
    """The loader, with a state."""
    loader.load_state_dict(state)
    return loader


def same(left: Any, right: Any) -> bool:
    """Equal, tensors too; a tuple may have become a list, as in JSON."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def assert_rest_comes(
    make: Callable[[], Any], stop: int | None, *, of: Callable[[], Any] | None = None
) -> None:
    """A new loader with the state of one that was stopped gives what that one still gives.

    Args:
        make: Makes the dataset, the sampler and the loader, all anew.
        stop: Batches before it, or None, as for stopped().
        of: Makes the one that is stopped, if that is another one.
    """
    made = (of or make)()
    state, iterator = stopped(made, stop)
    rest = list(iterator)
    assert same(list(resumed(make(), state)), rest)


def assert_goes_on(
    make: Callable[[], Any], stop: int | None, *, through: Callable[[Any], Any] = copy.deepcopy
) -> None:
    """As assert_rest_comes(); behind a part of an epoch the next one comes, too.

    Args:
        through: What becomes of the state meanwhile.
    """
    made = make()
    state, iterator = stopped(made, stop)
    state = through(state)
    due = [list(iterator)] if stop is None else [list(iterator), list(made)]
    assert same(epochs_of(resumed(make(), state), len(due)), due)
