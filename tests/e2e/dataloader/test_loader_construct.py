"""Constructing a loader: arguments, wrong ones and their errors, attributes, lengths, warnings."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from torch.utils import data as torch_data  # noqa: E402

from tests.support.loaders import own_data as data  # noqa: E402
from tests.support.loaders.own_data import Reference, Shards, SizedShards, Squares  # noqa: E402

TEN = torch_data.TensorDataset(torch.arange(10))
ORDER = torch_data.SequentialSampler(TEN)
BATCHES = torch_data.BatchSampler(ORDER, 2, False)
STREAM = Shards(10)


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


def with_(*arguments: Any, **options: Any) -> Callable[[Any], Any]:
    """Makes a loader of any class with these arguments."""
    return lambda L: L(*arguments, **options)


def refused_alike(Loader: Any, act: Callable[[Any], Any]) -> tuple[type, str]:
    """What `act` raises with the loader's class: the same as with PyTorch's."""
    seen = data.outcome(lambda: act(Loader))
    assert seen == data.outcome(lambda: act(Reference))
    return seen


def refuses(
    text: str, *arguments: Any, kind: type[Exception] = ValueError, **options: Any
) -> tuple[type[Exception], str, Callable[[Any], Any]]:
    """Arguments that are refused, and what the message must have."""
    return kind, text, with_(*arguments, **options)


WRONG = {
    "no dataset": refuses("dataset", kind=TypeError),
    "unknown argument": refuses("colour", TEN, kind=TypeError, colour=3),
    "a keyword by position": refuses("positional", TEN, *[None] * 20, kind=TypeError),
    "negative workers": refuses("num_workers.*non-negative", TEN, num_workers=-1),
    "text as workers": refuses("'<' not supported", TEN, kind=TypeError, num_workers="2"),
    "negative timeout": refuses("timeout.*non-negative", TEN, timeout=-1),
    "text as timeout": refuses("'<' not supported", TEN, kind=TypeError, timeout="soon"),
    "prefetch without workers": refuses("prefetch_factor", TEN, prefetch_factor=2),
    "prefetch of none without workers": refuses("prefetch_factor", TEN, prefetch_factor=0),
    "negative prefetch": refuses(
        "prefetch_factor.*non-negative", TEN, num_workers=1, prefetch_factor=-1
    ),
    "persistent without workers": refuses("persistent_workers", TEN, persistent_workers=True),
    "batch of none": refuses("batch_size=0", TEN, batch_size=0),
    "negative batch": refuses("batch_size=-3", TEN, batch_size=-3),
    "half a sample": refuses("batch_size=2.5", TEN, batch_size=2.5),
    "true as a batch size": refuses("batch_size=True", TEN, batch_size=True),
    "text as a batch size": refuses("batch_size=4", TEN, batch_size="4"),
    "text as drop_last": refuses("drop_last=yes", TEN, drop_last="yes"),
    "sampler and shuffle": refuses("exclusive", TEN, sampler=ORDER, shuffle=True),
    "batches and a size": refuses("exclusive", TEN, batch_sampler=BATCHES, batch_size=2),
    "batches and no size": refuses("exclusive", TEN, batch_sampler=BATCHES, batch_size=None),
    "batches and shuffle": refuses("exclusive", TEN, batch_sampler=BATCHES, shuffle=True),
    "batches and a sampler": refuses("exclusive", TEN, batch_sampler=BATCHES, sampler=ORDER),
    "batches and drop_last": refuses("exclusive", TEN, batch_sampler=BATCHES, drop_last=True),
    "no batches and drop_last": refuses("batch_size=None", TEN, batch_size=None, drop_last=True),
    "nothing to shuffle": refuses("num_samples=0", [], shuffle=True),
    "shuffle without a length": refuses("has no len", NoLength(), kind=TypeError, shuffle=True),
    "stream and shuffle": refuses("shuffle=True", STREAM, shuffle=True),
    "stream and odd shuffle": refuses("shuffle=5", STREAM, shuffle=5),
    "stream and a sampler": refuses("unspecified sampler", STREAM, sampler=ORDER),
    "stream and batches": refuses("unspecified batch_sampler", STREAM, batch_sampler=BATCHES),
    "stream, no batches, drop_last": refuses(
        "batch_size=None", STREAM, batch_size=None, drop_last=True
    ),
    "context without workers": refuses("num_workers > 0", TEN, multiprocessing_context="fork"),
    "unknown start method": refuses(
        "valid start method", TEN, num_workers=1, multiprocessing_context="knife"
    ),
    "a context that is none": refuses(
        "valid context", TEN, kind=TypeError, num_workers=1, multiprocessing_context=5
    ),
}
NAME_THE_CONSTRUCTOR = ("no dataset", "unknown argument", "a keyword by position")


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_refused_alike(Loader: Any, case: str) -> None:
    kind, text, make = WRONG[case]
    if case in NAME_THE_CONSTRUCTOR:
        seen = data.outcome(lambda: make(Loader))
    else:
        seen = refused_alike(Loader, make)
    assert seen[0] is kind and re.search(text, seen[1]), seen


# What is refused by the first iteration alone.
LATE: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "a generator that is none": (TypeError, with_(TEN, num_workers=1, generator=5)),
    "a sampler that is none": (TypeError, with_(TEN, num_workers=1, sampler=5)),
    "batches that are none": (TypeError, with_(TEN, num_workers=1, batch_sampler=5)),
    "no length and no sampler": (TypeError, with_(NoLength(), num_workers=1)),
    "nothing at all": (TypeError, with_(None, num_workers=1)),
}


@pytest.mark.parametrize("case", LATE)
def test_what_construction_lets_pass_fails_at_the_iteration(Loader: Any, case: str) -> None:
    kind, make = LATE[case]
    assert refused_alike(Loader, lambda L: list(make(L)))[0] is kind


def test_the_constructor_has_the_same_arguments_in_order(Loader: Any) -> None:
    due = inspect.signature(Reference.__init__).parameters
    seen = inspect.signature(Loader.__init__).parameters
    assert list(seen)[: len(due)] == list(due) or set(due) <= set(seen)
    by_position = [name for name, one in due.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert [
        name for name, one in seen.items() if one.kind is one.POSITIONAL_OR_KEYWORD
    ] == by_position
    for name, parameter in due.items():
        assert seen[name].kind is parameter.kind, name
        assert seen[name].default == parameter.default, name
    more = [
        one for name, one in seen.items() if name not in due and one.kind is not one.VAR_KEYWORD
    ]
    assert all(one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in more)


def test_arguments_by_position_mean_the_same(Loader: Any) -> None:
    before, behind = (TEN, 3, None, None, None, 1, list), (False, True, 7, print, "fork")
    arguments = (*before, *behind, torch.Generator())
    seen, due = Loader(*arguments), Reference(*arguments)
    for name in ("batch_size", "num_workers", "drop_last", "timeout", "pin_memory"):
        assert getattr(seen, name) == getattr(due, name)
    assert seen.collate_fn is list and seen.worker_init_fn is print
    assert seen.generator is arguments[-1]


ATTRIBUTES = """
    dataset batch_size num_workers prefetch_factor pin_memory pin_memory_device timeout in_order
    worker_init_fn drop_last generator collate_fn persistent_workers multiprocessing_context
""".split()
CONTEXT = multiprocessing.get_context("fork")
ARGUMENTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "workers": {"num_workers": 2},
    "all": {
        "num_workers": 1,
        "batch_size": 3,
        "drop_last": True,
        "timeout": 2.5,
        "prefetch_factor": 4,
        "persistent_workers": True,
        "worker_init_fn": print,
        "collate_fn": list,
        "in_order": False,
        "multiprocessing_context": CONTEXT,
        "pin_memory": True,
        "pin_memory_device": "cuda",
        "generator": torch.Generator(),
    },
    "prefetch of none": {"num_workers": 1, "prefetch_factor": 0},
    "batches": {"batch_sampler": BATCHES},
    "sampler": {"sampler": ORDER, "batch_size": 4},
    "no batches": {"batch_size": None},
    "shuffle": {"shuffle": True},
    "shuffle by a number": {"shuffle": 1},
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_attributes_are_the_same(Loader: Any, case: str) -> None:
    seen, due = (make(TEN, **ARGUMENTS[case]) for make in (Loader, Reference))
    for name in ATTRIBUTES:
        assert getattr(seen, name) == getattr(due, name), name
    for name in ("sampler", "batch_sampler"):
        assert type(getattr(seen, name)) is type(getattr(due, name)), name
    assert isinstance(seen, torch_data.DataLoader)


def test_a_streams_sampler_never_ends(Loader: Any) -> None:
    sampler = iter(Loader(STREAM).sampler)
    assert [next(sampler) for _ in range(3)] == [None, None, None]


def test_named_context_becomes_a_context(Loader: Any) -> None:
    loader = Loader(TEN, num_workers=1, multiprocessing_context="spawn")
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    loader.multiprocessing_context = "fork"
    assert loader.multiprocessing_context.get_start_method() == "fork"
    with pytest.raises(ValueError, match="valid start method"):
        loader.multiprocessing_context = "spoon"
    loader.multiprocessing_context = None
    assert loader.multiprocessing_context is None


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_was_decided_cannot_be_set(Loader: Any, name: str) -> None:
    loader = Loader(TEN, num_workers=1)
    before = getattr(loader, name)
    seen = data.outcome(lambda: setattr(loader, name, before))
    assert seen == (
        ValueError,
        f"{name} attribute should not be set after DataLoader is initialized",
    )
    assert getattr(loader, name) is before


def test_the_guard_names_the_subclass(Loader: Any) -> None:
    class Mine(Loader):  # type: ignore[misc]
        pass

    with pytest.raises(ValueError, match="after Mine is initialized"):
        Mine(TEN).batch_size = 3


def test_the_rest_can_be_set_until_the_iteration(Loader: Any) -> None:
    loader = Loader(Squares(8), batch_size=4)
    loader.num_workers, loader.prefetch_factor = 2, 1
    loader.collate_fn = loading_sum
    loader.timeout, loader.mine = 60, "anything"
    assert list(loader) == [0 + 1 + 2 + 3, 4 + 5 + 6 + 7]
    loader.collate_fn = len
    assert list(loader) == [4, 4]
    loader.num_workers, loader.timeout = 0, 0
    assert list(loader) == [4, 4]


def loading_sum(samples: list[Any]) -> int:
    return sum(number for _, number in samples)


def test_a_subclass_may_make_the_arguments_and_the_batches(Loader: Any) -> None:
    class Mine(Loader):  # type: ignore[misc]
        def __init__(self, size: int) -> None:
            super().__init__(Squares(size), batch_size=size, num_workers=1)
            self.seen = 0

        def __iter__(self) -> Any:
            for batch in super().__iter__():
                self.seen += 1
                yield batch[1].tolist()

    mine = Mine(3)
    assert list(mine) == [[0, 1, 2]] and mine.seen == 1 and len(mine) == 1


def test_the_class_takes_a_type(Loader: Any) -> None:
    loader = Loader[int](TEN)
    assert isinstance(loader, Loader) and len(loader) == 10


# ---- Lengths ----


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("length", "size"), [(0, 3), (1, 3), (9, 3), (10, 3), (11, 3), (2, 100)])
def test_length_is_that_of_the_batches(
    Loader: Any, length: int, size: int, drop_last: bool, workers: int
) -> None:
    loader = Loader(Squares(length), batch_size=size, drop_last=drop_last, num_workers=workers)
    assert len(loader) == (length // size if drop_last else -(-length // size))
    stream = Loader(SizedShards(length), batch_size=size, drop_last=drop_last, num_workers=workers)
    assert len(stream) == len(loader)


def test_length_without_batches_is_that_of_the_samples(Loader: Any) -> None:
    assert len(Loader(TEN, batch_size=None)) == 10
    assert len(Loader(TEN, batch_size=None, sampler=[3, 4, 5])) == 3
    assert len(Loader(TEN, batch_sampler=[[1], [2, 3]])) == 2
    assert len(Loader(SizedShards(10), batch_size=None)) == 10


def test_length_of_the_iterator_is_that_of_the_sampler(Loader: Any) -> None:
    iterator = iter(Loader(TEN, batch_size=3, num_workers=1))
    assert len(iterator) == 4
    next(iterator)
    assert len(iterator) == 4
    assert iter(iterator) is iterator


@pytest.mark.parametrize(
    "make",
    [
        with_(Shards(10)),
        with_(TEN, sampler=data.Endless(10)),
        with_(TEN, batch_sampler=(batch for batch in [[1]])),
        with_(TEN, sampler=data.Endless(10), batch_size=None),
    ],
    ids=["stream", "sampler", "batches", "samples"],
)
def test_what_has_no_length_says_so(Loader: Any, make: Callable[[Any], Any]) -> None:
    kind, text = refused_alike(Loader, lambda L: len(make(L)))
    assert kind is TypeError and "has no len()" in text


# ---- Warnings ----


def caught(act: Callable[[], Any]) -> list[tuple[type, str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        act()
    return [(one.category, re.sub("0x[0-9a-f]+", "0x", str(one.message))) for one in seen]


def caught_alike(Loader: Any, act: Callable[[Any], Any]) -> list[tuple[type, str]]:
    """The warnings of `act` with the loader's class: the same as with PyTorch's."""
    due = caught(lambda: act(Reference))
    seen = caught(lambda: act(Loader))
    assert seen == due
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_longer_than_it_said_warns_for_each_batch_beyond(
    Loader: Any, workers: int
) -> None:
    def loop(L: Any) -> None:
        loader = L(SizedShards(12, said=4), batch_size=1, num_workers=workers)
        assert len(loader) == 4
        assert len(list(loader)) == 12

    seen = caught_alike(Loader, loop)
    assert len(seen) == 8
    kind, text = seen[0]
    assert kind is UserWarning and "reported to be 4" in text and "but 5 samples" in text
    assert ("multiprocessing" in text) == bool(workers)


def test_a_stream_whose_length_nobody_asked_for_does_not_warn(Loader: Any) -> None:
    assert caught(lambda: list(Loader(SizedShards(12, said=4), num_workers=1))) == []


def test_a_right_length_does_not_warn(Loader: Any) -> None:
    def act() -> None:
        loader = Loader(SizedShards(8), batch_size=2, num_workers=2)
        assert len(loader) == 4 and len(list(loader)) == 4

    assert caught(act) == []


def test_more_workers_than_processors_warn(Loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})

    seen = caught_alike(Loader, lambda L: list(L(TEN, batch_size=5, num_workers=2)))
    # Once as it is made, once as it starts them.
    assert len(seen) == 2 and seen[0] == seen[1]
    kind, text = seen[0]
    assert kind is UserWarning and "will create 2 worker processes in total" in text
    assert "suggested max number of worker in current system is 1" in text
    assert caught(lambda: Loader(TEN, num_workers=1)) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without one")
@pytest.mark.parametrize("workers", [0, 1])
def test_pin_memory_without_a_device_warns_and_pins_nothing(Loader: Any, workers: int) -> None:
    options: dict[str, Any] = {"pin_memory": True, "pin_memory_device": "cuda"}
    batches = []

    def loop(L: Any) -> None:
        batches.append(list(L(Squares(4), batch_size=2, num_workers=workers, **options)))

    (_, first), (_, second) = caught_alike(Loader, loop)
    assert "pin_memory_device is deprecated" in first and "no accelerator is found" in second
    due, seen = batches
    assert not seen[0][0].is_pinned()
    data.same(seen, due)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_pinned_for_a_device(Loader: Any, workers: int) -> None:
    loader = Loader(
        Squares(8), batch_size=2, num_workers=workers, pin_memory=True, collate_fn=pinnable
    )
    for i, (batch, own, text) in enumerate(loader):
        assert batch["numbers"].is_pinned() and batch["numbers"].tolist() == [2 * i, 2 * i + 1]
        assert type(own) is data.Pinned and own.pinned and text == "text"


def pinnable(samples: list[Any]) -> Any:
    numbers = torch.tensor([number for _, number in samples])
    return {"numbers": numbers}, data.Pinned(numbers.clone()), "text"
