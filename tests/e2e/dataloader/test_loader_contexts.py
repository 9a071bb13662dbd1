"""Start methods: fork, spawn, forkserver, by name, as an object and as the default; what cannot be pickled."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from tests.support.feeds.feed_run import runs, wait_until  # noqa: E402
from tests.support.loaders import own_data as data  # noqa: E402
from tests.support.loaders.own_data import (  # noqa: E402
    Augmented,
    Reference,
    Shards,
    Squares,
    Whoami,
    same,
)


@pytest.fixture
def mark() -> Iterator[None]:
    """Memory of the trainer that only a fork of it sees."""
    data.MARK.append("seen by forks")
    yield
    data.MARK.clear()


@pytest.fixture
def fork_server() -> Iterator[None]:
    """Python's fork server ends with the test."""
    yield
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture
def start_method() -> Iterator[Any]:
    """Sets the default start method for this test."""
    before = multiprocessing.get_start_method(allow_none=True)
    yield lambda name: multiprocessing.set_start_method(name, force=True)
    multiprocessing.set_start_method(before, force=True)


CONTEXTS = {
    "fork": lambda: "fork",
    "spawn": lambda: "spawn",
    "forkserver": lambda: "forkserver",
    "a context of multiprocessing": lambda: multiprocessing.get_context("spawn"),
    "a context of its": lambda: torch.multiprocessing.get_context("fork"),
}


@pytest.mark.parametrize("case", CONTEXTS)
def test_contexts(Loader: Any, mark: None, fork_server: None, case: str) -> None:
    loader = Loader(
        Whoami(5),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=CONTEXTS[case](),
        worker_init_fn=data.note_worker,
        persistent_workers=True,
    )
    samples = list(loader)
    forks = loader.multiprocessing_context.get_start_method() == "fork"
    assert [sample["index"] for sample in samples] == list(range(5))
    assert [sample["mark"] for sample in samples] == [["seen by forks"] if forks else []] * 5
    assert [sample["note"] for sample in samples] == [f"worker {i % 2}" for i in range(5)]
    same(list(loader), samples)
    pids = [sample["pid"] for sample in samples]
    del loader
    data.gone(pids)


def test_spawned_workers_draw_the_same(Loader: Any) -> None:
    def run(L: Any, context: str) -> Any:
        data.seed_all()
        loader = L(
            Augmented(8), batch_size=2, shuffle=True, num_workers=1, multiprocessing_context=context
        )
        return list(loader), data.states()

    same(run(Loader, "spawn"), run(Reference, "fork"))


def test_a_spawned_stream(Loader: Any) -> None:
    loader = Loader(Shards(9), batch_size=2, num_workers=2, multiprocessing_context="spawn")
    same(list(loader), list(Reference(Shards(9), batch_size=2, num_workers=2)))


def test_the_default_start_method_counts(Loader: Any, start_method: Any, mark: None) -> None:
    start_method("spawn")
    [sample] = Loader(Whoami(1), batch_size=None, num_workers=1)
    assert sample["mark"] == []
    start_method("fork")
    [sample] = Loader(Whoami(1), batch_size=None, num_workers=1)
    assert sample["mark"] == ["seen by forks"]


class Unpicklable(Squares):
    def __init__(self) -> None:
        super().__init__(4)
        self.function = lambda: 0


class Refuses(Squares):
    def __getstate__(self) -> Any:
        raise data.OfTheirOwn("I stay here")


WRONG = {
    "dataset": lambda L: L(Unpicklable(), num_workers=1, multiprocessing_context="spawn"),
    "collate_fn": lambda L: L(
        Squares(4),
        num_workers=1,
        collate_fn=lambda samples: samples,
        multiprocessing_context="spawn",
    ),
    "worker_init_fn": lambda L: L(
        Squares(4),
        num_workers=1,
        worker_init_fn=lambda worker: None,
        multiprocessing_context="forkserver",
    ),
    "a dataset that refuses": lambda L: L(
        Refuses(4), num_workers=1, multiprocessing_context="spawn"
    ),
}


@pytest.mark.filterwarnings("ignore:Got pickle error")
@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_pickled_is_refused_alike(Loader: Any, fork_server: None, case: str) -> None:
    error = data.raised(lambda: iter(WRONG[case](Loader)))
    due = data.raised(lambda: iter(WRONG[case](Reference)))
    assert type(error) is type(due) and str(error).split(" 0x")[0] == str(due).split(" 0x")[0]
    same([numbers.tolist() for _, numbers in Loader(Squares(2), num_workers=1)], [[0], [1]])


def test_what_cannot_be_pickled_warns_of_it(Loader: Any) -> None:
    with pytest.warns(UserWarning, match="not picklable"):
        data.raised(lambda: iter(WRONG["dataset"](Loader)))


def test_nothing_is_pickled_by_fork(Loader: Any) -> None:
    loader = Loader(
        Refuses(4),
        num_workers=2,
        collate_fn=lambda samples: samples[0][1],
        worker_init_fn=lambda w: None,
    )
    assert list(loader) == [0, 1, 2, 3]


def test_a_worker_that_cannot_load_its_dataset_is_an_error(Loader: Any) -> None:
    def act() -> None:
        list(Loader(data.UnloadableSquares(4), num_workers=1, multiprocessing_context="spawn"))

    error = data.raised(act)
    assert type(error) is RuntimeError, error


def test_a_script_without_a_main_guard_is_told(loader_name: str, tmp_path: Path) -> None:
    """By spawn the workers import the script, which would start workers again."""
    body = "print(len(list(DataLoader(data.Squares(4), num_workers=1, multiprocessing_context='spawn'))))"
    process = data.script(loader_name, body, tmp_path, guarded=False)
    out, errors = process.communicate(timeout=100)
    assert process.returncode != 0 and "bootstrapping phase" in errors and "4" not in out, (
        out,
        errors,
    )


def test_a_trainer_that_was_spawned_itself(Loader: Any) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=data.loop_in_process, args=(Loader, queue))
    process.start()
    assert queue.get() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    process.join()
    assert process.exitcode == 0
    queue.close()


def test_a_daemonic_process_may_not_have_workers(Loader: Any) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=data.loop_in_process, args=(Loader, queue), daemon=True)
    process.start()
    assert queue.get() == (AssertionError, "daemonic processes are not allowed to have children")
    process.join()
    queue.close()


def test_workers_of_an_ended_loop_are_no_zombies(Loader: Any) -> None:
    pids = [sample["pid"] for sample in Loader(Whoami(2), batch_size=None, num_workers=2)]
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "workers to be reaped"
    )
    assert not any(map(runs, pids))
