"""Batches: map-style and iterable datasets, samplers, what collate makes and how it travels."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import functools
import itertools
import pathlib
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from torch.utils import data as torch_data  # noqa: E402

from tests.support.feeds.feed_run import wait_until  # noqa: E402
from tests.support.loaders import own_data as data  # noqa: E402
from tests.support.loaders.own_data import (  # noqa: E402
    Bag,
    Endless,
    Frozen,
    Keyed,
    Made,
    ManyAtOnce,
    Plain,
    Point,
    Record,
    Row,
    Shards,
    Squares,
    Stubborn,
    Thing,
    Yields,
    alike,
    same,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

# ---- Map-style datasets ----


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_sample_comes_once_in_order(Loader: Any, workers: int, drop_last: bool) -> None:
    batches = list(Loader(Squares(11), batch_size=4, num_workers=workers, drop_last=drop_last))
    assert [numbers.tolist() for _, numbers in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]][
        : 2 if drop_last else 3
    ]
    same(batches[1][0], torch.tensor([[4, 16], [5, 25], [6, 36], [7, 49]]))


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_fewer_batches_than_workers(Loader: Any, length: int) -> None:
    loader = Loader(Squares(length), num_workers=3, prefetch_factor=2)
    for _ in range(2):
        assert [numbers.item() for _, numbers in loader] == list(range(length))


def test_drop_last_may_leave_nothing(Loader: Any) -> None:
    assert list(Loader(Squares(3), batch_size=4, num_workers=2, drop_last=True)) == []


@pytest.mark.parametrize(
    "dataset",
    [
        [1.5, 2.5, 3.5],
        (7, 8, 9, 10),
        range(5),
        ["a", "bc", "d"],
        np.arange(12.0).reshape(4, 3),
        torch.arange(12).reshape(4, 3),
        {0: "zero", 1: "one", 2: "two"},
        collections.UserList([1, 2, 3]),
        Plain(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_whatever_has_items_is_a_dataset(Loader: Any, dataset: Any) -> None:
    [batches] = alike(Loader, lambda L: L(dataset, batch_size=2, num_workers=2))
    assert sum(map(len, batches)) == len(dataset)


def test_datasets_that_come_along(Loader: Any) -> None:
    tensors = torch_data.TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
    left, right = torch_data.random_split(tensors, [6, 4], torch.Generator().manual_seed(3))
    for dataset in (
        tensors,
        torch_data.ConcatDataset([right, left]),
        torch_data.StackDataset(a=left, b=torch_data.Subset(tensors, [1, 3, 5, 7, 9, 0])),
    ):
        alike(Loader, lambda L: L(dataset, batch_size=3, num_workers=2))
    chained = torch_data.ChainDataset([Shards(5), Shards(3)])
    alike(Loader, lambda L: L(chained, batch_size=3, num_workers=1))


def test_pipes_are_shuffled_and_dealt_alike(Loader: Any) -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper
    from torch.utils.data.datapipes.map import SequenceWrapper

    def stream(L: Any, persistent: bool) -> Any:
        pipe = IterableWrapper(range(30)).shuffle().sharding_filter()
        return L(pipe, batch_size=4, shuffle=True, num_workers=2, persistent_workers=persistent)

    for persistent in (False, True):
        first, second = alike(Loader, lambda L: stream(L, persistent), epochs=2)
        assert (
            sorted(torch.cat(first).tolist()) == list(range(30))
            and first[0].tolist() != second[0].tolist()
        )
    alike(Loader, lambda L: L(SequenceWrapper(range(9)), batch_size=2, num_workers=2, shuffle=True))


def test_many_items_are_asked_for_at_once_where_they_can_be(Loader: Any) -> None:
    batches = list(Loader(ManyAtOnce(10), batch_size=4, num_workers=2))
    assert [asked.tolist() for _, asked in batches] == [[4] * 4, [4] * 4, [2] * 2]
    assert torch.cat([index for index, _ in batches]).tolist() == list(range(10))
    single = list(Loader(ManyAtOnce(3), batch_size=None, num_workers=2))
    assert single == [[0, 1], [1, 1], [2, 1]]


def test_getitems_that_is_none_is_not_called(Loader: Any) -> None:
    dataset = ManyAtOnce(4)
    dataset.__getitems__ = None  # type: ignore[method-assign, assignment]
    [batch] = Loader(dataset, batch_size=4, num_workers=1)
    assert batch[1].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_without_batches_samples_come_as_they_are(Loader: Any, workers: int) -> None:
    samples = list(Loader(Squares(5), batch_size=None, num_workers=workers))
    same(samples[3], [torch.tensor([3, 9]), 3])
    assert len(samples) == 5


# ---- Iterable datasets ----


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [1, 3, None])
def test_a_stream_is_dealt_in_the_workers_turn(Loader: Any, workers: int, size: int | None) -> None:
    [batches] = alike(Loader, lambda L: L(Shards(20), batch_size=size, num_workers=workers))
    flat = [int(number) for batch in batches for number in (batch if size else [batch])]
    assert sorted(flat) == list(range(20))
    if workers == 2 and size == 3:
        assert flat[:12] == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    "lengths", [(9, 2, 6), (0, 0, 7), (0, 0, 0), (1, 10, 1), (4, 4, 4), (3, 0, 30)]
)
def test_exhausted_workers_are_passed_over(
    Loader: Any, lengths: tuple[int, ...], drop_last: bool
) -> None:
    def make(L: Any) -> Any:
        return L(Shards(lengths=lengths), batch_size=2, num_workers=3, drop_last=drop_last)

    [batches] = alike(Loader, make)
    flat = [int(number) for batch in batches for number in batch]
    due = [
        100 * w + i
        for w in range(3)
        for i in range(lengths[w] // 2 * 2 if drop_last else lengths[w])
    ]
    assert sorted(flat) == due


def test_exhausted_workers_are_back_in_the_next_epoch(Loader: Any) -> None:
    def make(L: Any) -> Any:
        return L(Shards(lengths=(5, 0, 9)), batch_size=2, num_workers=3, persistent_workers=True)

    first, second, third = alike(Loader, make, epochs=3)
    same(second, first)
    assert len(third) == len(first) == 3 + 5


def test_an_unsharded_stream_comes_once_from_each_worker(Loader: Any) -> None:
    stream = Stream([1, 2, 3])
    assert sorted(torch.cat(list(Loader(stream, batch_size=2, num_workers=3))).tolist()) == sorted(
        [1, 2, 3] * 3
    )


class Stream(torch_data.IterableDataset):
    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def test_an_endless_stream_is_left_when_it_is_enough(Loader: Any) -> None:
    stream = Stream(Endless(3))
    numbers = [
        batch.tolist() for batch in itertools.islice(Loader(stream, batch_size=2, num_workers=2), 6)
    ]
    assert numbers == [[0, 1], [0, 1], [2, 0], [2, 0], [1, 2], [1, 2]]


# ---- Samplers ----

NUMBERS = torch.arange(50.0)


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Each makes the keywords of a loader anew.
SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: {"shuffle": True},
    "shuffle, generator": lambda: {"shuffle": True, "generator": generator()},
    "sequential": lambda: {"sampler": torch_data.SequentialSampler(NUMBERS)},
    "random": lambda: {"sampler": torch_data.RandomSampler(NUMBERS, generator=generator())},
    "replacement": lambda: {
        "sampler": torch_data.RandomSampler(
            NUMBERS, replacement=True, num_samples=130, generator=generator()
        )
    },
    "more than there is": lambda: {"sampler": torch_data.RandomSampler(NUMBERS, num_samples=120)},
    "weighted": lambda: {
        "sampler": torch_data.WeightedRandomSampler(
            [i % 5 for i in range(50)], 60, generator=generator()
        )
    },
    "subset": lambda: {
        "sampler": torch_data.SubsetRandomSampler([3, 1, 4, 15, 9, 26], generator=generator())
    },
    "list": lambda: {"sampler": [9, 9, 0, 49, 3]},
    "range": lambda: {"sampler": range(49, 0, -7)},
    "generator of indices": lambda: {"sampler": (i * i for i in range(7))},
    "negative": lambda: {"sampler": [-1, -50, 5]},
    "batches": lambda: {
        "batch_size": 1,
        "batch_sampler": torch_data.BatchSampler(torch_data.RandomSampler(NUMBERS), 7, True),
    },
    "list of batches": lambda: {"batch_size": 1, "batch_sampler": [[1, 2, 3], [4], [5, 6]]},
    "batches as tuples": lambda: {"batch_size": 1, "batch_sampler": Yields([(1, 2, 3), (4,)])},
    "batches as tensors": lambda: {
        "batch_size": 1,
        "batch_sampler": Yields(list(NUMBERS.long().split(9))),
    },
    "batches as arrays": lambda: {
        "batch_size": 1,
        "batch_sampler": Yields(np.arange(50).reshape(10, 5)),
    },
    "batches as ranges": lambda: {
        "batch_size": 1,
        "batch_sampler": Yields([range(3), range(5, 9)]),
    },
    "no batches": lambda: {"batch_size": None, "shuffle": True},
    "distributed": lambda: {
        "sampler": torch_data.DistributedSampler(
            NUMBERS, num_replicas=3, rank=2, shuffle=True, seed=11
        )
    },
    "distributed, no rest": lambda: {
        "sampler": torch_data.DistributedSampler(NUMBERS, num_replicas=3, rank=1, drop_last=True)
    },
}


@pytest.mark.parametrize("case", SAMPLERS)
def test_samplers_give_the_same_order_and_draw_the_same(Loader: Any, case: str) -> None:
    def make(L: Any) -> Any:
        return L(
            torch_data.TensorDataset(NUMBERS),
            num_workers=2,
            **({"batch_size": 4} | SAMPLERS[case]()),
        )

    epochs = alike(Loader, make, epochs=2)
    assert epochs[0]


def test_set_epoch_counts(Loader: Any) -> None:
    sampler = torch_data.DistributedSampler(NUMBERS, num_replicas=2, rank=0)
    loader = Loader(
        torch_data.TensorDataset(NUMBERS), sampler=sampler, num_workers=1, persistent_workers=True
    )
    seen = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen.append([number.item() for [number] in loader])
        assert seen[-1] == [float(index) for index in sampler]
    assert seen[0] != seen[1]


KEYS = {
    "strings": ["one", "zwei", "три", ""],
    "tuples": [(1, "a"), (2, ("b", 3.5)), ()],
    "numpy numbers": [np.int64(3), np.int8(-1), np.float32(2.5)],
    "numbers": [True, 2**80, -7, 2.5],
    "none": [None, None],
    "bytes and paths": [b"abc", pathlib.PurePosixPath("/a/b")],
    "tensors": [torch.tensor(3), torch.arange(3)],
    "slices": [slice(0, 3), slice(None, None, 2)],
    "dictionaries": [{"path": "a", "crop": [1, 2]}, {}],
}


@pytest.mark.parametrize("case", KEYS)
def test_any_key_reaches_the_dataset_with_its_type(Loader: Any, case: str) -> None:
    due = [(type(key).__name__, repr(key)) for key in KEYS[case]]
    loader = Loader(
        Keyed(), sampler=Yields(KEYS[case]), batch_size=None, num_workers=2, collate_fn=tuple
    )
    assert list(loader) == due
    together = Loader(
        Keyed(), sampler=Yields(KEYS[case]), batch_size=3, num_workers=2, collate_fn=list
    )
    assert list(itertools.chain(*together)) == due


def test_a_huge_batch_of_indices(Loader: Any) -> None:
    many = 300_000
    [batch] = Loader(range(many), batch_size=many, num_workers=1, shuffle=True)
    assert sorted(batch.tolist()) == list(range(many))


def test_keys_of_a_megabyte(Loader: Any) -> None:
    keys = [str(i) * 1_000_000 for i in range(6)]
    loader = Loader(Made(len), sampler=Yields(keys), batch_size=2, num_workers=2)
    assert torch.cat(list(loader)).tolist() == [1_000_000] * 6


def test_an_endless_sampler(Loader: Any) -> None:
    loader = Loader(Squares(5), sampler=Endless(5), batch_size=3, num_workers=2)
    numbers = [batch[1].tolist() for batch in itertools.islice(loader, 4)]
    assert numbers == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]


@pytest.mark.parametrize(("workers", "factor"), [(1, 1), (2, 2), (3, 1), (2, None)])
def test_the_sampler_is_asked_for_as_much_as_is_fetched_ahead(
    Loader: Any, workers: int, factor: int | None
) -> None:
    sampler = Yields([[i, i] for i in range(20)])
    loader = Loader(Squares(20), batch_sampler=sampler, num_workers=workers, prefetch_factor=factor)
    iterator = iter(loader)
    ahead = workers * (factor or 2)
    assert sampler.yielded == ahead
    for received in range(1, 9):
        next(iterator)
        assert sampler.yielded == ahead + received


@pytest.mark.parametrize(("workers", "factor"), [(1, 1), (2, 2), (1, 5)])
def test_workers_fetch_ahead_what_prefetch_factor_says(
    Loader: Any, workers: int, factor: int
) -> None:
    dataset = data.Counting(200, workers)
    loader = Loader(dataset, batch_size=4, num_workers=workers, prefetch_factor=factor)
    iterator = iter(loader)
    ahead = workers * factor * 4
    for _ in range(10):
        wait_until(
            lambda: int(dataset.made.sum() - dataset.received) == ahead, "the workers to be ahead"
        )
        # The next request goes out before the batch is here, so there may be one more at a time.
        next(iterator)
        dataset.received += 4
    # A request more goes out as a batch is taken, before `received` counts it.
    assert int(dataset.ahead.max()) <= ahead + 4


# ---- in_order ----


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_out_of_order_every_batch_comes_once(Loader: Any, workers: int) -> None:
    loader = Loader(Squares(40), batch_size=3, num_workers=workers, in_order=False)
    for _ in range(2):
        batches = sorted((batch[1].tolist() for batch in loader), key=lambda numbers: numbers[0])
        assert batches == [list(range(i, min(i + 3, 40))) for i in range(0, 40, 3)]


def test_out_of_order_a_slow_worker_does_not_hold_the_others_up(Loader: Any) -> None:
    gate = torch.zeros(1).share_memory_()
    loader = Loader(
        Made(functools.partial(_wait_at_zero, gate), 12),
        num_workers=2,
        prefetch_factor=1,
        in_order=False,
    )
    seen = []
    for batch in loader:
        seen.append(batch.item())
        if len(seen) == 11:
            gate[0] = 1
    assert seen == [*range(1, 12), 0]


def _wait_at_zero(gate: torch.Tensor, index: int) -> int:
    if index == 0:
        wait_until(lambda: gate[0] == 1, "the gate")
    return index


def test_out_of_order_streams(Loader: Any) -> None:
    loader = Loader(Shards(lengths=(9, 1, 5)), batch_size=2, num_workers=3, in_order=False)
    numbers = [int(number) for batch in loader for number in batch]
    assert sorted(numbers) == [*range(9), 100, *range(200, 205)]
    # Those of one worker keep their order.
    assert [number for number in numbers if number < 100] == list(range(9))


# ---- What default_collate makes ----

NAN = float("nan")


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


DTYPES = [
    *(
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    ),
    *(torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128, torch.float8_e5m2),
]

KINDS: dict[str, Callable[[int], Any]] = {
    "bool": lambda i: i % 2 == 0,
    "int": lambda i: i - 3,
    "big int": lambda i: 2**62 + i,
    "float": lambda i: [NAN, -0.0, float("inf"), 1e-310][i % 4],
    "int enum": lambda i: Colour(i % 2 + 1),
    "str": lambda i: "ä€😀\0\n"[: i + 1],
    "empty str": lambda i: "",
    "bytes": lambda i: bytes(range(i)),
    "long str": lambda i: "x" * (i * 300_000),
    "tuple": lambda i: (i, float(i), str(i)),
    "list": lambda i: [i, [float(i), (str(i),)]],
    "empty tuple": lambda i: (),
    "empty list": lambda i: [],
    "empty dict": lambda i: {},
    "dict": lambda i: {"b": i, "a": [i, "x"], 3: b"q", (1, 2): torch.ones(i % 1 + 2)},
    "ordered dict": lambda i: collections.OrderedDict([("z", i), ("a", float(i))]),
    "default dict": lambda i: collections.defaultdict(list, {"k": i}),
    "counter": lambda i: collections.Counter("aab"),
    "mapping with a note": lambda i: _noted(Bag(a=i), i),
    "frozen mapping": lambda i: Frozen({"a": i, "b": (i, i)}),
    "stubborn mapping": lambda i: Stubborn(i, i + 1),
    "user dict": lambda i: collections.UserDict({"a": i}),
    "named tuple": lambda i: Point(i, Point(torch.full((2,), i), str(i))),
    "list with a note": lambda i: _noted(Row([i, str(i)]), i),
    "range": lambda i: range(i, i + 3),
    "deque": lambda i: collections.deque([i, i + 1]),
    "user list": lambda i: collections.UserList([i, i + 1]),
    "deep": lambda i: functools.reduce(lambda inner, _: [inner], range(30), i),
    "wide": lambda i: [i] * 300,
    "tensor": lambda i: torch.arange(6.0).reshape(2, 3) + i,
    "scalar tensor": lambda i: torch.tensor(i),
    "empty tensor": lambda i: torch.empty(0),
    "tensor without rows": lambda i: torch.empty(3, 0, 2, dtype=torch.int16),
    "transposed": lambda i: (torch.arange(12).reshape(3, 4) + i).t(),
    "expanded": lambda i: torch.tensor([[float(i)]]).expand(3, 4),
    "strided": lambda i: torch.arange(40)[i::3][:5],
    "channels last": lambda i: torch.rand(1, 3, 4, 4, generator=generator(i)).to(
        memory_format=torch.channels_last
    ),
    "parameter": lambda i: torch.nn.Parameter(torch.tensor([1.0, i]), requires_grad=False),
    "array": lambda i: np.arange(6, dtype=np.int16).reshape(2, 3) * i,
    "scalar array": lambda i: np.array(i),
    "array in Fortran's order": lambda i: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "array backwards": lambda i: np.arange(5)[::-1].copy(),
    "read-only array": lambda i: _read_only(np.full(3, i)),
    "numpy float": lambda i: np.float64(i) / 3,
    "numpy half": lambda i: np.float16(i) / 3,
    "numpy int": lambda i: np.int8(i),
    "numpy bool": lambda i: np.bool_(i % 2),
    "numpy complex": lambda i: np.complex64(i + 1j),
    "numpy str": lambda i: np.str_(f"text {i}"),
    "dtypes": lambda i: {str(dtype): (torch.arange(5) + i).to(dtype) for dtype in DTYPES},
}


def _noted(thing: Any, note: int) -> Any:
    thing.note = f"note {note}"
    return thing


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("kind", KINDS)
def test_default_collate_makes_the_same_of_each_kind(Loader: Any, kind: str) -> None:
    def make(L: Any) -> Any:
        return L(Made(KINDS[kind], 7), batch_size=3, num_workers=1)

    [batches] = alike(Loader, make)
    assert len(batches) == 3


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("kind", KINDS)
def test_default_convert_makes_the_same_of_each_kind(Loader: Any, kind: str) -> None:
    [samples] = alike(Loader, lambda L: L(Made(KINDS[kind], 3), batch_size=None, num_workers=1))
    assert len(samples) == 3


# What default_convert leaves as it is, beside the kinds above.
LEFT: dict[str, Callable[[int], Any]] = {
    "object": Thing,
    "none": lambda i: None,
    "set": lambda i: {i, "x"},
    "data class": lambda i: Record("r", np.ones(2)),
    "complex": lambda i: complex(i),
    "array of text": lambda i: np.array(["a", "bc"]),
    "array of objects": lambda i: np.array([None, {}]),
    "ragged": lambda i: [np.ones(i), [np.ones(1)] * i],
    "sparse": lambda i: torch.eye(3).to_sparse(),
    "conjugate": lambda i: torch.tensor([1 + 2j, 3 - i * 1j]).conj(),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", LEFT)
def test_default_convert_leaves_the_same_as_it_is(Loader: Any, kind: str) -> None:
    if kind == "conjugate":
        pytest.skip("PyTorch's workers lose the mark: see test_marks_of_views_arrive")
    [samples] = alike(Loader, lambda L: L(Made(LEFT[kind], 3), batch_size=None, num_workers=1))
    assert len(samples) == 3


# What default_collate refuses, in the worker.
REFUSED: dict[str, tuple[type[Exception], str, Callable[[int], Any]]] = {
    "object": (TypeError, "found <class .*Thing", Thing),
    "none": (TypeError, "found <class 'NoneType'", lambda i: None),
    "set": (TypeError, "found <class 'set'", lambda i: {i}),
    "data class": (TypeError, "found <class .*Record", lambda i: Record("r", i)),
    "complex": (TypeError, "found <class 'complex'", lambda i: complex(i)),
    "date": (TypeError, "found <class 'datetime.date'", lambda i: datetime.date(2026, 1, 1)),
    "decimal": (TypeError, "found <class 'decimal.Decimal'", lambda i: decimal.Decimal(i)),
    "array of text": (TypeError, "found <U1", lambda i: np.array(["a"])),
    "array of objects": (TypeError, "found object", lambda i: np.array([None, {}])),
    "ragged tensors": (RuntimeError, "resize|equal size|shape", lambda i: torch.ones(i + 1)),
    "ragged arrays": (RuntimeError, "resize|equal size|shape", lambda i: np.ones(i + 1)),
    "ragged lists": (
        RuntimeError,
        "each element in list of batch should be of equal size",
        lambda i: [1] * i,
    ),
    "missing keys": (KeyError, "'a'", lambda i: {"a": 1} if i % 3 == 0 else {"b": 1}),
    "mixed": (TypeError, "", lambda i: i if i % 2 == 0 else "text"),
    "sparse": (RuntimeError, "sparse tensors are not", lambda i: torch.eye(3).to_sparse()),
    "compressed": (RuntimeError, "sparse tensors are not", lambda i: torch.eye(3).to_sparse_csr()),
    "with gradients": (RuntimeError, "out=", lambda i: torch.ones(2, requires_grad=True)),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("case", REFUSED)
def test_default_collate_refuses_the_same(Loader: Any, case: str) -> None:
    error, text, make = REFUSED[case]
    loader = Loader(Made(make, 6), batch_size=3, num_workers=2)
    kind, message = data.outcome(lambda: list(loader))
    assert kind is error and re.search(text, message), message
    seen = data.events(loader)
    same(seen, data.events(data.Reference(Made(make, 6), batch_size=3, num_workers=2)))
    assert len(seen) == 2


def test_the_registry_of_collate_functions_counts(
    Loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    monkeypatch.setitem(default_collate_fn_map, Thing, _collate_things)
    monkeypatch.setitem(default_collate_fn_map, (set, frozenset), _collate_sets)

    def sample(i: int) -> Any:
        return {"thing": Thing(i), "sets": [{i}, frozenset([i, "x"])]}

    [batches] = alike(Loader, lambda L: L(Made(sample, 5), batch_size=2, num_workers=2))
    assert batches[1]["thing"].value == [2, 3]
    assert batches[1]["sets"] == [{2, 3}, {2, 3, "x"}]


def _collate_things(things: list[Any], *, collate_fn_map: Any = None) -> Any:
    return Thing([thing.value for thing in things])


def _collate_sets(sets: Any, *, collate_fn_map: Any = None) -> Any:
    return set().union(*sets)


def test_a_collate_function_with_its_own_registry(Loader: Any) -> None:
    from torch.utils.data._utils.collate import collate

    def mine(samples: list[Any]) -> Any:
        return collate(
            samples, collate_fn_map={int: lambda numbers, *, collate_fn_map: max(numbers)}
        )

    [batches] = alike(
        Loader,
        lambda L: L(Made(lambda i: {"n": i}, 5), batch_size=3, num_workers=1, collate_fn=mine),
    )
    assert batches == [{"n": 2}, {"n": 4}]


# ---- What a collate function of the user's makes ----

BASE = torch.arange(24.0).reshape(4, 6)
WIDE = torch.arange(80_000.0).reshape(8, 10_000)
# Of a list of indices, made in the worker.
MADE: dict[str, Callable[[list[int]], Any]] = {
    "none": lambda items: None,
    "number": sum,
    "text": str,
    "nothing in a list": lambda items: [],
    "tuple": tuple,
    "tuple of tensors": lambda items: (torch.tensor(items), (torch.ones(2),)),
    "set": set,
    "frozen set in a dict": lambda items: {"s": frozenset(items)},
    "object": lambda items: Thing(torch.tensor(items)),
    "object of objects": lambda items: Thing([Thing({"a": items}), Record("x", torch.ones(3))]),
    "data class": lambda items: Record(
        "r", {"tensor": torch.tensor(items), "array": np.array(items)}
    ),
    "named tuple": lambda items: Point(torch.tensor(items), Point(items, None)),
    "numbers that are none": lambda items: [
        complex(1, 2),
        Fraction(1, 3),
        decimal.Decimal("0.1"),
        Ellipsis,
    ],
    "dates": lambda items: [datetime.datetime(2026, 11, 26, 1, 2, 3, 4), datetime.timedelta(1)],
    "types": lambda items: [
        int,
        torch.float32,
        torch.Size([1, 2]),
        torch.device("cpu"),
        np.dtype("f4"),
        Thing,
    ],
    "big integers": lambda items: [2**70, -(2**200), True, 0],
    "floats": lambda items: [NAN, -0.0, float("-inf")],
    "arrays": lambda items: [
        np.array(items),
        np.float32(3),
        np.array(["a", "bcd"]),
        np.array([None, {1: 2}]),
    ],
    "array views": lambda items: [
        np.arange(24).reshape(4, 6).T,
        np.arange(10)[::-1],
        np.asfortranarray(BASE.numpy()),
    ],
    "read-only arrays": lambda items: [
        _read_only(np.array(items)),
        np.frombuffer(bytes(range(200)) * 50, np.uint8),
        _read_only(np.asfortranarray(np.arange(4000.0).reshape(2, 2000))),
    ],
    "views of a mapped file": lambda items: list(
        np.memmap(__file__, np.uint8, "r")[:9000].reshape(2, -1)
    ),
    "records": lambda items: np.ones(500, [("a", "i4"), ("b", "f8")]).view(np.recarray),
    "masked": lambda items: np.ma.masked_array(np.arange(900), np.arange(900) % 7 == 0),
    "subclass": lambda items: [_noted(WIDE[i % 8].as_subclass(data.Boxes), i) for i in items],
    "subclass with gradients": lambda items: WIDE[3].as_subclass(data.Boxes).requires_grad_(),
    "views with gradients": lambda items: [WIDE[i % 8].detach().requires_grad_() for i in items],
    "views that are parameters": lambda items: [torch.nn.Parameter(WIDE[i % 8]) for i in items],
    "compressed columns": lambda items: torch.eye(3).to_sparse_csc(),
    "record array": lambda items: np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "array of dates": lambda items: np.array(["2026-01-01"], dtype="datetime64[D]"),
    "array big-endian": lambda items: np.arange(3, dtype=">i4"),
    "masked array": lambda items: np.ma.masked_array([1, 2, 3], [False, True, False]).data,
    "transposed": lambda items: BASE.t() + 0 * items[0],
    "a view of another": lambda items: BASE.clone()[1:3, ::2],
    "expanded": lambda items: torch.tensor([1.0, 2.0]).expand(3, 2),
    "expanded zeros": lambda items: torch.zeros(1).expand(1000, 1000),
    "overlapping": lambda items: torch.arange(10.0).as_strided((4, 3), (2, 1)),
    "offset": lambda items: torch.arange(10)[4:],
    "scalar": lambda items: torch.tensor(3.5),
    "no elements": lambda items: [torch.empty(0), torch.empty(2, 0, 3), torch.empty(0, 5)],
    "odd strides of nothing": lambda items: torch.empty_strided((0, 3), (7, 2)),
    "odd strides of ones": lambda items: torch.ones(4).as_strided((1, 2), (77, 2)),
    "channels last": lambda items: torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "with gradients": lambda items: torch.ones(3, requires_grad=True),
    "parameter": lambda items: torch.nn.Parameter(torch.ones(2)),
    "sparse": lambda items: torch.eye(3).to_sparse(),
    "sparse, not coalesced": lambda items: torch.sparse_coo_tensor(
        [[0, 0]], [1.0, 2.0], (3,), check_invariants=False
    ),
    "compressed": lambda items: torch.eye(3).to_sparse_csr(),
    "bool": lambda items: torch.tensor([True, False]),
    "half": lambda items: torch.tensor([1.5], dtype=torch.bfloat16),
    "keyed by anything": lambda items: {None: 1, (1, "a"): 2, 3.5: torch.ones(1), frozenset(): 4},
    "mapping with a note": lambda items: _noted(Bag(a=torch.ones(1)), 4),
    "list with a note": lambda items: _noted(Row([torch.ones(1)]), 4),
    "default dict": lambda items: collections.defaultdict(int, a=torch.tensor(items)),
    "ordered dict": lambda items: collections.OrderedDict(z=1, a=torch.ones(1)),
    "deque": lambda items: collections.deque([torch.ones(1)], maxlen=3),
    "bytes": lambda items: [bytes(range(256)), bytearray(b"abc"), b""],
    "a function": lambda items: [functools.partial(int, "11"), len, Thing],
    "an exception": lambda items: Thing(repr(ValueError("a value, not raised"))),
    "module": lambda items: torch.nn.Linear(2, 2).requires_grad_(False).state_dict(),
    "path": lambda items: pathlib.PurePosixPath("/a/b"),
    "enum": lambda items: Colour.BLUE,
    "thousand tensors": lambda items: [torch.full((i % 3,), i) for i in range(600)],
    "many strings": lambda items: [f"string {i} {'x' * (i % 50)}" for i in range(5000)],
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", MADE)
def test_whatever_collate_makes_arrives_as_it_was(Loader: Any, kind: str) -> None:
    def make(L: Any) -> Any:
        return L(range(5), batch_size=2, num_workers=1, collate_fn=MADE[kind])

    [batches] = alike(Loader, make)
    assert len(batches) == 3


def test_marks_of_views_arrive(Ours: Any) -> None:
    """PyTorch's workers lose the mark that a tensor is to be read conjugated or negated."""
    loader = Ours(
        range(2),
        num_workers=1,
        collate_fn=lambda items: [
            torch.tensor([1 + 2j]).conj(),
            torch.tensor([1 + 2j]).conj().imag,
        ],
    )
    for conjugate, negated in loader:
        assert conjugate.tolist() == [1 - 2j] and negated.tolist() == [-2.0]


def test_collate_may_call_default_collate(Loader: Any) -> None:
    def mine(samples: list[Any]) -> Any:
        kept = [sample for sample in samples if sample[1] % 3]
        return torch_data.default_collate(kept), len(samples)

    batches = list(Loader(Squares(9), batch_size=4, num_workers=2, collate_fn=mine))
    assert [(batch[1].tolist(), count) for batch, count in batches] == [
        ([1, 2], 4),
        ([4, 5, 7], 4),
        ([8], 1),
    ]


def test_one_tensor_at_two_places_stays_one(Loader: Any) -> None:
    def twice(items: list[int]) -> Any:
        tensor = torch.tensor([float(i) for i in items])
        return {"a": tensor, "b": [tensor], "rest": tensor[1:]}

    for batch in Loader(range(6), batch_size=3, num_workers=2, collate_fn=twice):
        assert batch["a"] is batch["b"][0]
        batch["a"][1] = 77
        assert batch["rest"][0] == 77


def test_one_object_at_two_places_stays_one(Loader: Any) -> None:
    def ring(items: list[int]) -> Any:
        shared = [torch.tensor(items)]
        loop: list[Any] = [shared, {"again": shared}]
        loop.append(loop)
        return loop

    for batch in Loader(range(4), batch_size=2, num_workers=2, collate_fn=ring):
        assert batch[0] is batch[1]["again"] and batch[2] is batch


def test_batches_are_the_loops_own(Loader: Any) -> None:
    """A batch can be written to, and no other changes."""
    batches = list(Loader(Squares(12), batch_size=2, num_workers=2))
    for i, (tensor, numbers) in enumerate(batches):
        tensor.fill_(-i)
        numbers += 1
    for i, (tensor, numbers) in enumerate(batches):
        assert tensor.tolist() == [[-i, -i]] * 2 and numbers.tolist() == [2 * i + 1, 2 * i + 2]


def test_gradients_flow_into_a_batch(Loader: Any) -> None:
    for batch in Loader([1.0, 2.0, 3.0], batch_size=2, num_workers=1):
        batch.requires_grad_()
        (batch**2).sum().backward()
        same(batch.grad, 2 * batch.detach())


def test_a_tensor_of_the_dataset_is_not_changed_by_the_loop(Loader: Any) -> None:
    held = torch.arange(6.0)
    for batch in Loader(
        range(3), batch_size=None, num_workers=1, collate_fn=lambda i: held[2 * i : 2 * i + 2]
    ):
        batch += 100
    for i, batch in enumerate(
        Loader(torch.arange(6.0).reshape(3, 2), batch_size=None, num_workers=0)
    ):
        assert batch.tolist() == held[2 * i : 2 * i + 2].tolist()


SIZES = [3, 0, 1, 100_000, 7, 10_000_000, 1, 0, 65_536, 10_000_000, 2, 300_000, 5]


@pytest.mark.parametrize("workers", [1, 3])
def test_sizes_that_change_from_batch_to_batch(Loader: Any, workers: int) -> None:
    """From nothing to 40 MB and back: in the middle of an epoch nobody knew before."""
    loader = Loader(SIZES, batch_size=None, num_workers=workers, collate_fn=_sized)
    for _ in range(2):
        for size, (tensor, text) in zip(SIZES, loader, strict=True):
            assert tensor.dtype is torch.int32 and len(tensor) == size and len(text) == size % 1000
            if size:
                assert int(tensor[0]) == size and int(tensor[-1]) == size - 1 + size
                assert int(tensor.sum(dtype=torch.int64)) == size * size + size * (size - 1) // 2


def _sized(size: int) -> Any:
    return torch.arange(size, 2 * size, dtype=torch.int32), "x" * (size % 1000)


def test_the_first_batch_is_the_smallest(Loader: Any) -> None:
    sizes = [2**k for k in range(20)]
    seen = [
        len(batch) for batch in Loader(sizes, batch_size=None, num_workers=2, collate_fn=torch.ones)
    ]
    assert seen == sizes


@pytest.mark.filterwarnings("ignore:Sparse")
def test_structures_that_change_from_batch_to_batch(Loader: Any) -> None:
    makers = list(MADE.values())

    def make(L: Any) -> Any:
        return L(
            range(len(makers)), batch_size=None, num_workers=3, collate_fn=lambda i: makers[i]([i])
        )

    [batches] = alike(Loader, make)
    assert len(batches) == len(makers)


def test_many_small_batches(Loader: Any) -> None:
    loader = Loader(range(3000), batch_size=3, num_workers=2)
    assert torch.cat(list(loader)).tolist() == list(range(3000))
