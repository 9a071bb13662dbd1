"""Exceptions in each of the user's functions: type, text, and what the iterator does afterwards; timeouts; Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from torch.utils import data as torch_data  # noqa: E402

from tests.support.feeds.feed_run import wait_until  # noqa: E402
from tests.support.loaders import own_data as data  # noqa: E402
from tests.support.loaders.own_data import (  # noqa: E402
    Fails,
    FailsOnce,
    Made,
    OfTheirOwn,
    Reference,
    Squares,
    TwoArguments,
    WithMessage,
    Yields,
    events,
    raised,
    same,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def cause() -> BaseException:
    """An exception that has one below it."""
    try:
        try:
            raise KeyError("below")
        except KeyError as below:
            raise ValueError("above") from below
    except ValueError as above:
        return above


# What is raised, the type that arrives.
ERRORS: dict[str, tuple[Callable[[], BaseException], type[Exception]]] = {
    "value": (lambda: ValueError("no good"), ValueError),
    "without text": (ZeroDivisionError, ZeroDivisionError),
    "assertion": (AssertionError, AssertionError),
    "index": (lambda: IndexError("out"), IndexError),
    "key": (lambda: KeyError("a key\nof two lines"), KeyError),
    "operating system": (lambda: FileNotFoundError(2, "no such file", "/a/b"), FileNotFoundError),
    "not implemented": (NotImplementedError, NotImplementedError),
    "of their own": (lambda: OfTheirOwn("mine"), OfTheirOwn),
    "two arguments": (lambda: TwoArguments(7, "there"), RuntimeError),
    "json": (lambda: json.JSONDecodeError("bad", "{}", 1), RuntimeError),
    "unicode": (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"), RuntimeError),
    "a field message": (lambda: WithMessage("told"), WithMessage),
    "memory": (lambda: MemoryError("too much"), MemoryError),
    "recursion": (RecursionError, RecursionError),
    "with a cause": (cause, ValueError),
    "of percent signs": (lambda: ValueError("100 % {of} %s \\n"), ValueError),
    "of other scripts": (
        lambda: ValueError("тест 😀 \udc80".encode("utf-8", "replace").decode()),
        ValueError,
    ),
    "long": (lambda: ValueError("x" * 300_000), ValueError),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_exception_of_a_sample_arrives_and_the_loop_can_go_on(Loader: Any, case: str) -> None:
    make, kind = ERRORS[case]

    def loader(L: Any) -> Any:
        return L(Fails(make, at=(5, 6)), batch_size=2, num_workers=2)

    error = raised(lambda: list(loader(Loader)))
    assert type(error) is kind
    text = str(error)
    assert f"Caught {type(make()).__name__} in DataLoader worker process 0." in text
    assert "Original Traceback (most recent call last)" in text
    assert "in __getitem__" in text and "own_data.py" in text and "raise self.error()" in text
    assert str(make().args[0] if make().args else "") in text or isinstance(
        make(), (OSError, UnicodeError, KeyError)
    )
    seen = events(loader(Loader))
    same(seen, events(loader(Reference)))
    assert len(seen) == 8 and [one.tolist() for one in seen if isinstance(one, torch.Tensor)][
        2:4
    ] == [
        [8, 9],
        [10, 11],
    ]


def test_the_text_of_a_key_error_keeps_its_lines(Loader: Any) -> None:
    text = str(raised(lambda: list(Loader(Fails(lambda: KeyError("a"), at=(0,)), num_workers=1))))
    assert len(text.splitlines()) > 5 and text.splitlines()[-1] == "KeyError: 'a'"


def test_the_cause_is_in_the_text(Loader: Any) -> None:
    text = str(raised(lambda: list(Loader(Fails(cause, at=(0,)), num_workers=1))))
    assert "KeyError: 'below'" in text and "direct cause" in text and "ValueError: above" in text


@pytest.mark.parametrize("workers", [1, 3])
def test_every_batch_may_fail(Loader: Any, workers: int) -> None:
    def loader(L: Any) -> Any:
        return L(Fails(lambda: ValueError("all"), at=range(16)), batch_size=2, num_workers=workers)

    seen = events(loader(Loader))
    assert seen == [
        (ValueError, f"Caught ValueError in DataLoader worker process {i % workers}.")
        for i in range(8)
    ]


def test_errors_keep_their_place_and_persistent_workers_live_on(Loader: Any) -> None:
    def loader(L: Any) -> Any:
        return L(
            Fails(lambda: ValueError("no"), at=(0, 7, 15)),
            batch_size=3,
            num_workers=2,
            persistent_workers=True,
        )

    one, other = loader(Loader), loader(Reference)
    for _ in range(2):
        seen = events(one)
        same(seen, events(other))
        assert [isinstance(batch, tuple) for batch in seen] == [
            True,
            False,
            True,
            False,
            False,
            True,
        ]


def test_errors_of_the_trainers_process_are_not_wrapped(Loader: Any) -> None:
    error = raised(lambda: list(Loader(Fails(lambda: TwoArguments(1, "here"), at=(0,)))))
    assert type(error) is TwoArguments and error.code == 1


# ---- The other functions of a dataset ----


class ManyFail(Squares):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        if 4 in indices:
            raise OfTheirOwn("no fours")
        return [self[index] for index in indices]


class TooFew(Squares):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices][1:] if 4 in indices else None


@pytest.mark.parametrize("dataset", [ManyFail(12), TooFew(12)], ids=["raises", "returns nonsense"])
def test_getitems_may_fail(Loader: Any, dataset: Any) -> None:
    seen = events(Loader(dataset, batch_size=3, num_workers=2))
    same(seen, events(Reference(dataset, batch_size=3, num_workers=2)))
    assert len(seen) == 4


@pytest.mark.parametrize("size", [2, None])
def test_a_stream_may_fail_and_go_on(Loader: Any, size: int | None) -> None:
    def loader(L: Any) -> Any:
        return L(FailsOnce(at=5), batch_size=size, num_workers=1)

    seen = events(loader(Loader))
    same(seen, events(loader(Reference)))
    assert sum(isinstance(one, tuple) for one in seen) == 1 and len(seen) > 4


def test_a_stream_whose_iter_raises(Loader: Any) -> None:
    # What comes from the second batch on says in PyTorch that a variable of its own is not set.
    for size in (2, None):
        iterator = iter(Loader(FailsOnce(place="iter"), batch_size=size, num_workers=2))
        for worker in range(2):
            error = raised(lambda: next(iterator))
            assert type(error) is ConnectionError and "the store is away" in str(error)
            assert f"Caught ConnectionError in DataLoader worker process {worker}." in str(error)
            assert "in __iter__" in str(error)


def test_a_stream_of_a_generator_ends_with_its_exception(Loader: Any) -> None:
    class Stream(torch_data.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            yield from range(5)
            raise OSError("the store is away")

    def loader(L: Any) -> Any:
        return L(Stream(), batch_size=2, num_workers=2)

    seen = events(loader(Loader))
    same(seen, events(loader(Reference)))
    assert [kind for one in seen if isinstance(one, tuple) for kind in one[:1]] == [
        OSError,
        OSError,
    ]


def test_a_length_that_raises(Loader: Any) -> None:
    class Bad(Squares):
        def __len__(self) -> int:
            raise OfTheirOwn("no length today")

    for act in (lambda: list(Loader(Bad(), num_workers=1)), lambda: len(Loader(Bad()))):
        error = raised(act)
        assert type(error) is OfTheirOwn and str(error) == "no length today"


def test_an_index_beyond_the_dataset(Loader: Any) -> None:
    def loader(L: Any) -> Any:
        return L(Squares(5), sampler=[1, 9, 2, 3], batch_size=2, num_workers=2)

    seen = events(loader(Loader))
    same(seen, events(loader(Reference)))
    assert seen[0][0] is IndexError and len(seen) == 2


def test_stop_iteration_of_a_sample_ends_the_loop(Loader: Any) -> None:
    def loader(L: Any) -> Any:
        return L(Fails(lambda: StopIteration("done"), at=(6,)), batch_size=2, num_workers=2)

    seen = events(loader(Loader))
    same(seen, events(loader(Reference)))
    assert len(seen) == 3


def test_next_may_be_asked_again_after_the_end(Loader: Any) -> None:
    iterator = iter(Loader(Squares(4), batch_size=2, num_workers=2))
    assert len([*iterator]) == 2
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


# ---- Samplers ----


@pytest.mark.parametrize("fails_at", [0, 1, 3, 4, 5, 9])
def test_an_exception_of_the_sampler_is_the_loops_own(Loader: Any, fails_at: int) -> None:
    def loader(L: Any) -> Any:
        return L(
            Squares(20), batch_sampler=Yields([[i] for i in range(10)], fails_at), num_workers=2
        )

    seen, due = events(loader(Loader)), events(loader(Reference))
    same(seen, due)
    assert any(
        one[-2:] == (LookupError, f"no item {fails_at} today")
        for one in seen
        if isinstance(one, tuple)
    )


@pytest.mark.parametrize("fails_at", [0, 7, 12])
def test_an_exception_of_the_sampler_of_indices(Loader: Any, fails_at: int) -> None:
    def loader(L: Any) -> Any:
        return L(Squares(20), sampler=Yields(range(20), fails_at), batch_size=2, num_workers=2)

    seen = events(loader(Loader))
    same(seen, events(loader(Reference)))
    assert any(one[-2] is LookupError for one in seen if isinstance(one, tuple))


def test_a_sampler_whose_iter_raises(Loader: Any) -> None:
    class Bad(torch_data.Sampler):
        def __iter__(self) -> Any:
            raise OfTheirOwn("no order")

    error = raised(lambda: iter(Loader(Squares(4), batch_sampler=Bad(), num_workers=2)))
    assert type(error) is OfTheirOwn and str(error) == "no order"


def test_batches_that_cannot_be_iterated(Loader: Any) -> None:
    def loader(L: Any) -> Any:
        return L(Squares(9), batch_sampler=[[1, 2], 3, [4]], num_workers=2)

    seen = events(loader(Loader))
    same(seen, events(loader(Reference)))
    assert seen[1][0] is TypeError and len(seen) == 3


# ---- collate_fn and worker_init_fn ----


def _collate(samples: list[Any]) -> Any:
    numbers = [number for _, number in samples]
    if 4 in numbers:
        raise OfTheirOwn("no fours")
    return numbers


def test_collate_may_fail(Loader: Any) -> None:
    def loader(L: Any) -> Any:
        return L(Squares(12), batch_size=3, num_workers=2, collate_fn=_collate)

    seen = events(loader(Loader))
    same(seen, events(loader(Reference)))
    assert seen[1] == (OfTheirOwn, "Caught OfTheirOwn in DataLoader worker process 1.")
    text = str(raised(lambda: list(loader(Loader))))
    assert "in _collate" in text and "no fours" in text


@pytest.mark.parametrize(
    "function", [5, lambda: 0, lambda samples, more: 0], ids=["number", "none", "two"]
)
def test_collate_that_cannot_be_called(Loader: Any, function: Any) -> None:
    def loader(L: Any) -> Any:
        return L(Squares(4), batch_size=2, num_workers=1, collate_fn=function)

    seen = events(loader(Loader))
    same(seen, events(loader(Reference)))
    assert [one[0] for one in seen] == [TypeError] * 2


def _init(worker: int) -> None:
    if worker == 1:
        raise OfTheirOwn("not me")


def test_worker_init_fn_may_fail(Loader: Any) -> None:
    def loader(L: Any) -> Any:
        return L(Squares(12), batch_size=2, num_workers=2, worker_init_fn=_init)

    error = raised(lambda: list(loader(Loader)))
    assert type(error) is OfTheirOwn
    assert "Caught OfTheirOwn in DataLoader worker process 1." in str(error) and "in _init" in str(
        error
    )
    seen = events(loader(Loader))
    # The other worker's batches come; of this one nothing but errors.
    assert [isinstance(one, tuple) and issubclass(one[0], Exception) for one in seen] == [
        False,
        True,
    ] * 3
    due = Reference(Squares(12), batch_sampler=[[0, 1], [4, 5], [8, 9]])
    same([one for one in seen if not isinstance(one[0], type)], list(due))


def test_all_errors_of_one_epoch_together(Loader: Any) -> None:
    """Dataset, collate and sampler fail; the next epoch is whole."""
    switch = torch.ones(1).share_memory_()

    def sample(index: int) -> int:
        if switch[0] and index % 7 == 3:
            raise ValueError(f"sample {index}")
        return index

    def collate(samples: list[int]) -> list[int]:
        if switch[0] and 12 in samples:
            raise LookupError("collate")
        return samples

    loaders = [
        L(
            Made(sample, 30),
            batch_size=4,
            num_workers=3,
            collate_fn=collate,
            persistent_workers=True,
        )
        for L in (Loader, Reference)
    ]
    seen, due = (events(loader) for loader in loaders)
    same(seen, due)
    assert sum(isinstance(one, tuple) for one in seen) == 5
    switch[0] = 0
    for loader in loaders:
        assert sum(list(loader), []) == list(range(30))


# ---- What cannot travel ----


def _lambda(samples: Any) -> Any:
    return lambda: samples


def _lock(samples: Any) -> Any:
    return {"lock": threading.Lock()} if 4 in samples else samples


def _generator(samples: Any) -> Any:
    return (sample for sample in samples)


def _not_a_leaf(samples: Any) -> Any:
    return torch.ones(2, requires_grad=True) * 2


@pytest.mark.parametrize("collate", [_lambda, _lock, _generator, _not_a_leaf])
def test_a_batch_that_cannot_be_pickled_is_an_error_and_no_hang(Ours: Any, collate: Any) -> None:
    """PyTorch prints a traceback in the worker and waits for ever."""
    seen = events(Ours(range(9), batch_size=3, num_workers=2, collate_fn=collate))
    assert len(seen) == 3
    errors = [one for one in seen if isinstance(one, tuple)]
    assert len(errors) == (1 if collate is _lock else 3)
    assert all(
        issubclass(kind, Exception) and "in DataLoader worker process" in text
        for kind, text in errors
    )


class _Unloadable:
    def __reduce__(self) -> Any:
        return _refuse, ("not here",)


def _refuse(text: str) -> Any:
    raise OfTheirOwn(text)


def test_a_batch_that_cannot_be_loaded_is_an_error_and_the_next_one_comes(Ours: Any) -> None:
    """PyTorch raises once, and then waits for the batch that it has lost."""

    def collate(samples: list[int]) -> Any:
        return _Unloadable() if 3 in samples else samples

    seen = events(Ours(range(8), batch_size=2, num_workers=2, collate_fn=collate))
    assert seen[0] == [0, 1] and seen[2:] == [[4, 5], [6, 7]]
    assert issubclass(seen[1][0], Exception) and "loading a batch" in seen[1][1]


def test_an_exception_of_a_class_that_only_the_worker_has(Ours: Any) -> None:
    """PyTorch's worker cannot send it, and the loop waits for ever."""

    class Local(ValueError):
        pass

    error = raised(
        lambda: list(Ours(Fails(lambda: Local("nobody knows me"), at=(0,)), num_workers=1))
    )
    assert (
        isinstance(error, Exception) and "nobody knows me" in str(error) and "Local" in str(error)
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 has groups of exceptions")
def test_a_group_of_exceptions(Ours: Any) -> None:
    """Of PyTorch's loader comes a TypeError about the constructor, and no traceback."""

    def group() -> BaseException:
        return ExceptionGroup("two of them", [ValueError("1"), KeyError("2")])

    error = raised(lambda: list(Ours(Fails(group, at=(0,)), num_workers=1)))
    assert "two of them" in str(error) and "in DataLoader worker process 0" in str(error)


class Mute(ValueError):
    """Has no text."""

    def __str__(self) -> str:
        raise TypeError("no text")


def test_an_exception_that_cannot_be_written_as_text(Loader: Any) -> None:
    error = raised(lambda: list(Loader(Fails(Mute, at=(0,)), num_workers=1)))
    assert type(error) is Mute


# ---- Timeouts ----


def test_a_batch_too_slow_is_an_error(Loader: Any) -> None:
    gate = torch.zeros(1).share_memory_()

    def sample(index: int) -> int:
        if index == 1:
            wait_until(lambda: gate[0] == 1, "the gate")
        return index

    iterator = iter(Loader(Made(sample, 4), num_workers=1, timeout=0.5))
    late = "DataLoader timed out after 0.5 seconds"

    def patient() -> Any:
        """The next batch, when it is late, too, as the worker of a busy machine may be."""
        for _ in range(200):
            try:
                return next(iterator)
            except RuntimeError as error:
                assert str(error) == late
        raise AssertionError("it never comes")

    assert patient().item() == 0
    for _ in range(2):
        error = raised(lambda: next(iterator))
        assert type(error) is RuntimeError and str(error) == late
    gate[0] = 1
    assert [patient().item() for _ in range(3)] == [1, 2, 3]
    with pytest.raises(StopIteration):
        patient()


def test_a_timeout_that_is_long_enough_changes_nothing(Loader: Any) -> None:
    batches = list(Loader(Squares(9), batch_size=2, num_workers=2, timeout=100))
    same(batches, list(Reference(Squares(9), batch_size=2)))


# ---- Ctrl-C ----


@pytest.mark.parametrize("whom", ["group", "trainer"])
def test_ctrl_c_ends_the_loop_with_keyboard_interrupt(
    loader_name: str, tmp_path: Path, whom: str
) -> None:
    body = """
    gate = torch.zeros(1).share_memory_()
    loader = DataLoader(data.Made(data.Waits(gate, 3), 8), num_workers=2)
    iterator = iter(loader)
    try:
        print(next(iterator).item(), flush=True)
        print(list(iterator))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    below = data.descendants()
    del iterator, loader
    data.gone(below)
    print("gone", flush=True)
    """
    process = data.script(loader_name, body, tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        # The loop waits for a sample that does not come.
        wait_until(lambda: len(data.descendants(process.pid)) >= 2, "workers")
        below = data.descendants(process.pid)
        if whom == "group":
            os.killpg(process.pid, signal.SIGINT)
        else:
            os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert out == "interrupted\ngone\n", (out, errors)
        assert process.returncode == 0
        assert "KeyboardInterrupt" not in errors or loader_name == "torch", errors
        data.gone(below)
    finally:
        process.kill()


def test_ctrl_c_that_nobody_catches_leaves_nothing(loader_name: str, tmp_path: Path) -> None:
    body = """
    gate = torch.zeros(1).share_memory_()
    for batch in DataLoader(data.Made(data.Waits(gate, 3), 8), num_workers=2, persistent_workers=True):
        print(batch.item(), flush=True)
    """
    process = data.script(loader_name, body, tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        wait_until(lambda: len(data.descendants(process.pid)) >= 2, "workers")
        below = data.descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert (
            process.returncode in (-signal.SIGINT, 130, 1) and "KeyboardInterrupt" in errors
        ), errors
        data.gone(below)
    finally:
        process.kill()
