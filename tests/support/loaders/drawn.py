"""Drawn loaders: a dataset and the arguments of a DataLoader, made of a seed."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

Pair = collections.namedtuple("Pair", ["number", "text"])
_DTYPES = (torch.float32, torch.int64, torch.uint8, torch.bool, torch.float16, torch.complex64)


@dataclasses.dataclass
class Record:
    number: int
    row: Any


def _tensor(draw: random.Random, index: int) -> torch.Tensor:
    shape = draw.choice([(), (1,), (3,), (2, 5), (0,), (40, 40), (3, 64, 64)])
    dtype = draw.choice(_DTYPES)
    return (torch.arange(int(np.prod(shape))) + index).reshape(shape).to(dtype)


def _structure(draw: random.Random, draws: bool, depth: int = 0) -> Callable[[int], Any]:
    """What makes sample `index`; all samples of a dataset have the same form."""
    kinds = ["tensor", "array", "int", "float", "text", "bytes", "numpy scalar", "view", "none"]
    if depth < 2:
        kinds += ["tuple", "list", "dict", "pair", "record", "tensors"]
    kind, seed = draw.choice(kinds), draw.random()
    if kind in ("tuple", "list", "dict", "pair"):
        parts = [_structure(draw, draws, depth + 1) for _ in range(draw.randrange(1, 4))]
        if kind == "tuple":
            return lambda index: tuple(part(index) for part in parts)
        if kind == "list":
            return lambda index: [part(index) for part in parts]
        if kind == "pair":
            return lambda index: Pair(index, parts[0](index))
        return lambda index: {f"key {i}": part(index) for i, part in enumerate(parts)}
    return {
        "tensor": lambda index: _tensor(random.Random(seed), index),
        "array": lambda index: np.arange(index, index + 6, dtype=np.int32).reshape(2, 3),
        "int": lambda index: index,
        "float": lambda index: index / 3,
        "text": lambda index: f"text {index} " * (index % 5),
        "bytes": lambda index: bytes([index % 256]) * 3,
        "numpy scalar": lambda index: np.float32(index),
        "view": lambda index: torch.arange(600.0).reshape(20, 30)[index % 20, ::2],
        "none": lambda index: None,
        "record": lambda index: Record(index, torch.full((2,), index)),
        "tensors": lambda index: [torch.rand(3), torch.randn(2), np.random.rand(), random.random()],
        "still": lambda index: [torch.full((3,), float(index)), index],
    }[kind if draws or kind != "tensors" else "still"]


class Drawn(torch.utils.data.Dataset):
    """Samples of one form; at some indices an error."""

    def __init__(self, seed: int, length: int, errors: tuple[int, ...], draws: bool) -> None:
        self.seed, self.length, self.errors, self.draws = seed, length, errors, draws
        self._make: Callable[[int], Any] | None = None

    def __len__(self) -> int:
        return self.length

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_make": None}

    def __getitem__(self, index: int) -> Any:
        if index in self.errors:
            raise ValueError(f"sample {index} is bad")
        self._make = self._make or _structure(random.Random(self.seed), self.draws)
        return self._make(index)


class Many(Drawn):
    """The same, which is asked for a whole batch."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(torch.utils.data.IterableDataset):
    """The same as a stream; each worker has its own share, or all of it."""

    def __init__(self, inner: Drawn, shares: list[int] | None) -> None:
        self.inner, self.shares = inner, shares

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        share = len(self.inner)
        if info is not None and self.shares is not None:
            share = self.shares[info.id % len(self.shares)]
        for index in range(share):
            yield self.inner[index]


def as_it_is(samples: Any) -> Any:
    return samples


@dataclasses.dataclass
class Plan:
    """What is drawn: arguments of a loader, and what is done with it."""

    seed: int
    iterable: bool
    many: bool
    length: int
    errors: tuple[int, ...]
    shares: list[int] | None
    weighted: bool
    arguments: dict[str, Any]
    epochs: int
    takes: int | None  # batches of an epoch, then it is left; None: all
    generator: int | None
    draws: bool = True  # samples may, from the generators of whoever makes them

    def dataset(self) -> Any:
        inner = (Many if self.many else Drawn)(self.seed, self.length, self.errors, self.draws)
        return Stream(inner, self.shares) if self.iterable else inner

    def loader(self, loader_class: Any, **more: Any) -> Any:
        arguments = {**self.arguments, **more}
        dataset = self.dataset()
        if self.generator is not None:
            arguments["generator"] = torch.Generator().manual_seed(self.generator)
        if self.weighted:
            weights = torch.ones(self.length)
            arguments["sampler"] = torch.utils.data.WeightedRandomSampler(weights, self.length)
        return loader_class(dataset, **arguments)


def drawn(seed: int) -> Plan:
    """The plan of a seed."""
    draw = random.Random(seed)
    iterable = draw.random() < 0.35
    length = draw.choice([0, 1, 2, 7, 16, 33])
    batch_size = draw.choice([None, 1, 2, 3, 8, 50])
    workers = draw.choice([1, 1, 2, 2, 3, 5])
    arguments: dict[str, Any] = {
        "batch_size": batch_size,
        "num_workers": workers,
        "prefetch_factor": draw.choice([None, 1, 2, 4]),
        "persistent_workers": draw.random() < 0.3,
    }
    weighted = not iterable and length > 0 and draw.random() < 0.15
    if not iterable and not weighted and length:
        arguments["shuffle"] = draw.random() < 0.5
    if batch_size is not None:
        arguments["drop_last"] = draw.random() < 0.3
    if draw.random() < 0.3:
        arguments["collate_fn"] = as_it_is
    errors = tuple(draw.sample(range(length), min(length, 2))) if draw.random() < 0.25 else ()
    shares = [draw.choice([0, 1, 5, 12]) for _ in range(workers)] if draw.random() < 0.7 else None
    return Plan(
        seed=seed,
        iterable=iterable,
        many=draw.random() < 0.2,
        length=length,
        errors=errors,
        shares=None if shares is None else [min(one, length) for one in shares],
        weighted=weighted,
        arguments=arguments,
        epochs=draw.choice([1, 1, 2]),
        takes=draw.choice([None, None, None, 1, 3]),
        generator=draw.choice([None, 11]),
    )
