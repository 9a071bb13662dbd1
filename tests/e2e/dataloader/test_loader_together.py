"""Drawn at random: datasets, arguments and structures, over two loaders beside each other.

Of each draw, batches of one or two epochs are compared in order, structure, types, dtypes, strides and bits, and the
generators of the trainer as they are afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from torch.utils import data as torch_data  # noqa: E402

from tests.support.loaders import own_data as data  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

GROUPS, DRAWS = 14, 15  # 210 in all
DTYPES = ["uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bool", "complex64"]


# ---- Structures: functions of an index, with draws of their own ----


def _leaf(rng: random.Random) -> Callable[[int], Any]:
    kind = rng.choice(
        ["tensor", "array", "int", "float", "str", "bytes", "bool", "scalar", "drawn", "strided"]
    )
    dtype = rng.choice(DTYPES)
    shape = tuple(rng.choice([0, 1, 2, 3, 5]) for _ in range(rng.randrange(4)))
    if kind == "tensor":
        return lambda i: (torch.arange(int(np.prod(shape))).reshape(shape) + i).to(
            getattr(torch, dtype)
        )
    if kind == "array":
        return lambda i: np.full(shape, i).astype(dtype)
    if kind == "drawn":
        return lambda i: [torch.rand(shape), random.random(), np.random.random(shape)]
    if kind == "strided":
        return lambda i: torch.arange(24).reshape(4, 6)[:: 1 + i % 1, ::2].t()
    return {
        "int": lambda i: i * 3 - 1,
        "float": lambda i: i / 7,
        "str": lambda i: f"text {i}" * (i % 4),
        "bytes": lambda i: bytes([i % 256]) * (i % 5),
        "bool": lambda i: i % 3 == 0,
        "scalar": lambda i: np.dtype(dtype).type(i % 2),
    }[kind]


def _structure(rng: random.Random, depth: int = 2) -> Callable[[int], Any]:
    kind = rng.choice(["leaf", "tuple", "list", "dict", "point", "bag"]) if depth else "leaf"
    if kind == "leaf":
        return _leaf(rng)
    parts = [_structure(rng, depth - 1) for _ in range(2 if kind == "point" else rng.randrange(4))]
    if kind == "tuple":
        return lambda i: tuple(part(i) for part in parts)
    if kind == "list":
        return lambda i: [part(i) for part in parts]
    if kind == "point":
        return lambda i: data.Point(*[part(i) for part in parts])
    made = data.Bag if kind == "bag" else dict
    return lambda i: made((f"key {k}", part(i)) for k, part in enumerate(parts))


# ---- Datasets ----


class _Map(torch_data.Dataset):
    def __init__(self, make: Callable[[int], Any], length: int) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(int(index))


class _Many(_Map):
    def __getitems__(self, indices: Any) -> list[Any]:
        return [self.make(int(index)) for index in reversed(indices)]


class _Stream(torch_data.IterableDataset):
    def __init__(self, make: Callable[[int], Any], lengths: list[int]) -> None:
        self.make, self.lengths = make, lengths

    def __iter__(self) -> Any:
        info = torch_data.get_worker_info()
        worker = info.id if info else 0
        return (self.make(10 * i + worker) for i in range(self.lengths[worker]))


# ---- Collates ----


def _drawing(samples: list[Any]) -> Any:
    return (
        torch_data.default_collate(samples),
        torch.rand(2),
        random.random(),
        np.random.randint(100),
    )


def _sized(samples: list[Any]) -> Any:
    return {"n": len(samples), "some": torch.ones(random.randrange(2000)), "samples": samples}


# ---- A draw ----


def draw(seed: int) -> tuple[str, Callable[[Any], Any]]:
    """A description, and what makes dataset, samplers and loader anew for a class of loaders."""
    rng = random.Random(seed)
    workers = rng.choice([0, 1, 1, 2, 2, 3])
    kind = rng.choice(["map", "map", "many", "stream"])
    length = rng.choice([0, 1, 7, 16, 23])
    structure = _structure(rng)
    lengths = [rng.choice([0, 1, 5, 9]) for _ in range(3)]
    batch = rng.choice([None, 1, 2, 3, 8])
    collate = (
        rng.choice([None, None, None, _drawing, _sized])
        if batch
        else rng.choice([None, data.Thing])
    )
    options: dict[str, Any] = {"num_workers": workers, "collate_fn": collate}
    if workers:
        options["prefetch_factor"] = rng.choice([None, 1, 2, 4])
        options["persistent_workers"] = rng.random() < 0.5
        options["timeout"] = rng.choice([0, 0, 300])
    # Without order the batches of one worker are alike; with several there is nothing to compare.
    options["in_order"] = workers > 1 or rng.random() < 0.8
    generator_seed = rng.choice([None, 1, 2**40])
    order = rng.choice(
        ["plain", "shuffle", "random", "replacement", "weighted", "subset", "batches", "share"]
    )

    def make(L: Any) -> Any:
        own = dict(options, batch_size=batch)
        if generator_seed is not None:
            own["generator"] = torch.Generator().manual_seed(generator_seed)
        if kind == "stream":
            own["drop_last"] = seed % 3 == 0 and batch is not None
            return L(_Stream(structure, lengths), **own)
        dataset = (_Many if kind == "many" else _Map)(structure, length)
        own["drop_last"] = seed % 3 == 0 and batch is not None
        if length == 0 or order == "plain":
            return L(dataset, **own)
        if order == "shuffle":
            return L(dataset, shuffle=True, **own)
        if order == "batches":
            sampler = torch_data.RandomSampler(dataset, generator=own.get("generator"))
            del own["batch_size"], own["drop_last"]
            own["collate_fn"] = None
            return L(
                dataset, batch_sampler=torch_data.BatchSampler(sampler, 4, seed % 2 == 0), **own
            )
        own["sampler"] = {
            "random": lambda: torch_data.RandomSampler(dataset, num_samples=2 * length + 1),
            "replacement": lambda: torch_data.RandomSampler(
                dataset, replacement=True, num_samples=40, generator=own.get("generator")
            ),
            "weighted": lambda: torch_data.WeightedRandomSampler(
                [1 + i % 3 for i in range(length)], 20
            ),
            "subset": lambda: torch_data.SubsetRandomSampler(
                range(0, length, 2), own.get("generator")
            ),
            "share": lambda: torch_data.DistributedSampler(dataset, 2, 1, seed=seed),
        }[order]()
        return L(dataset, **own)

    return f"draw {seed}: {kind} of {length} or {lengths}, {order}, batch {batch}, {options}", make


def _epochs(make: Callable[[Any], Any], L: Any) -> tuple[Any, ...]:
    data.seed_all(11)
    loader = make(L)
    seen = [
        data.events(loader)
        for _ in range(2 if loader.persistent_workers or not loader.num_workers else 1)
    ]
    generator = loader.generator.get_state().tolist() if loader.generator is not None else None
    return seen, generator, data.states()


@pytest.mark.parametrize("group", range(GROUPS))
def test_drawn_loaders_are_alike(Loader: Any, loader_name: str, group: int) -> None:
    # PyTorch's beside itself shows that what is compared is the same each time; a part of them is enough.
    count = DRAWS if loader_name == "ringfeed" else 3
    for seed in range(group * DRAWS, group * DRAWS + count):
        what, make = draw(seed)
        due, generator_due, states_due = _epochs(make, data.Reference)
        seen, generator_seen, states_seen = _epochs(make, Loader)
        data.same(seen, due, what)
        assert generator_seen == generator_due, f"{what}: the generator"
        assert states_seen == states_due, f"{what}: the trainer's own generators"


def test_the_draws_are_worth_it(loader_name: str) -> None:
    """Most of them give batches, few of them errors alone; each choice is among them."""
    drawn = [draw(seed)[0] for seed in range(GROUPS * DRAWS)]
    assert len(drawn) >= 200
    for choice in (
        *(
            "map of",
            "many of",
            "stream of",
            "shuffle,",
            "weighted,",
            "subset,",
            "batches,",
            "share,",
            "replacement,",
        ),
        *("batch None", "batch 8", "'num_workers': 0", "'num_workers': 3", "'prefetch_factor': 4"),
        *("'persistent_workers': True", "'in_order': False", "_drawing", "_sized", "Thing"),
    ):
        assert sum(choice in what for what in drawn) >= 4, choice
