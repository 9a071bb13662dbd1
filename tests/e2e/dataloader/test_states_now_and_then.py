"""Datasets whose ``state_dict()`` is called as seldom as may be: what a worker's successor and a resume do without it."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy  # noqa: E402
from ringfeed.torch import _samplers, _successor  # noqa: E402
from torch.utils.data import Dataset, IterableDataset, get_worker_info  # noqa: E402

import ringfeed.torch as ours  # noqa: E402
from tests.support.loaders.own_data import Reference  # noqa: E402
from tests.support.loaders.resuming import (  # noqa: E402
    GrowingState,
    OverGenerator,
    OverIterator,
    Torchdatas,
    as_they_are,
    assert_goes_on,
    beside_torchdata,
    no_warnings,
    resumed,
    same,
    take,
    through_json,
)

pytestmark = [
    *no_warnings,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
HOURS = 1 << 60  # nanoseconds


def die_once(marks: Path, name: str) -> None:
    """Kills this process, if none has been killed under that name."""
    mark = marks / name
    if get_worker_info() is not None and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def note(marks: Path, name: str) -> None:
    """One more byte in the file of that name."""
    with open(marks / name, "a") as file:
        file.write(".")


def noted(marks: Path, name: str) -> int:
    path = marks / name
    return path.stat().st_size if path.exists() else 0


class Counting(Dataset):
    """Each sample tells what the dataset has done before: that is its state. Some are errors, some kill."""

    def __init__(
        self, marks: Path, deaths: tuple[int, ...] = (), errors: tuple[int, ...] = ()
    ) -> None:
        self.marks, self.deaths, self.errors = marks, deaths, errors
        self.asked = 0
        self.sum = 0

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        drawn = float(torch.randn(())), random.random(), float(numpy.random.rand())
        if index in self.deaths:
            die_once(self.marks, f"death-{index}")
        if index in self.errors:
            raise LookupError(index)
        self.sum = (self.sum * 31 + index) % 1_000_003
        return index, self.asked, self.sum, drawn

    def state_dict(self) -> dict[str, Any]:
        note(self.marks, "states")
        return {"asked": self.asked, "sum": self.sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.asked, self.sum = state["asked"], state["sum"]


class CannotTell(Counting):
    def state_dict(self) -> Any:
        raise RuntimeError("no state in the middle")


class WantsArgument(Counting):
    def state_dict(self, prefix: str) -> Any:
        raise AssertionError("it has been called")


class TellsSometimes(Counting):
    def state_dict(self) -> dict[str, Any]:
        if self.asked % 3:
            raise RuntimeError("not now")
        return super().state_dict()


class Passing(IterableDataset):
    """An iterable one; ``kind`` is the same of Counting."""

    def __init__(self, kind: type[Counting], marks: Path, *which: tuple[int, ...]) -> None:
        self.inner = kind(marks, *which)
        self.at = 0
        self.from_at = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        mine = range(60)[info.id :: info.num_workers][: 30 - 7 * info.id]
        self.at, self.from_at = self.from_at, 0
        for index in mine[self.at :]:
            self.at += 1
            yield self.inner[index]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, **self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.from_at = state["at"]
        self.inner.load_state_dict(state)


class PassingCannotTell(Passing):
    def state_dict(self) -> Any:
        raise RuntimeError("no state in the middle")


def epochs(loader: Any, count: int) -> list[Any]:
    """Batches and errors of some epochs."""
    found: list[Any] = []
    for _ in range(count):
        iterator = iter(loader)
        while True:
            try:
                found.append(next(iterator))
            except StopIteration:
                break
            except LookupError as error:
                found.append(str(error).splitlines()[-1])
    return found


# Never of its own accord; behind every batch.
seldom = pytest.mark.parametrize("again_ns", [HOURS, 0], ids=["never", "always"])


@pytest.fixture
def paced(again_ns, monkeypatch):
    monkeypatch.setattr(_successor, "_AGAIN_NS", again_ns)
    monkeypatch.setattr(_successor, "_AGAIN_COSTS", 0)


def loop(kind: Any, loader: Any, marks: Path, deaths: Any, errors: Any, persistent: bool) -> Any:
    torch.manual_seed(4)
    made = loader(
        kind(marks, deaths, errors),
        batch_size=4,
        num_workers=2,
        collate_fn=as_they_are,
        persistent_workers=persistent,
    )
    return epochs(made, 2)


@seldom
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize(
    "kind",
    [
        Counting,
        TellsSometimes,
        lambda *which: Passing(Counting, *which),
        lambda *which: Passing(TellsSometimes, *which),
    ],
    ids=["map", "map-sometimes", "iterable", "iterable-sometimes"],
)
def test_successor_of_the_plain_loader_goes_on(paced, kind, persistent, tmp_path):
    """With whatever state there is, and what was made since made again: no batch is another one for it."""
    errors = (13,) if kind in (Counting, TellsSometimes) else ()
    due = loop(kind, Reference, tmp_path, (), errors, persistent)
    got = loop(kind, ours.DataLoader, tmp_path, (9, 42, 43), errors, persistent)
    assert sum(1 for mark in tmp_path.iterdir() if "death" in mark.name) == 3
    assert same(got, due)


@seldom
@pytest.mark.parametrize("kind", [CannotTell, WantsArgument, PassingCannotTell])
def test_state_dict_of_no_use_is_no_error_of_the_plain_loader(paced, kind, tmp_path):
    """As with PyTorch's, which has no use for it. A successor has the dataset as it was at first."""

    def make(*which):
        return Passing(Counting, *which) if kind is PassingCannotTell else kind(*which)

    def samples(batches):  # of a dataset without a state a successor knows no count
        return [[(one[0], one[3]) for one in batch] for batch in batches]

    real = Passing.state_dict
    due = loop(make, Reference, tmp_path, (), (), False)
    if kind is PassingCannotTell:
        Passing.state_dict = PassingCannotTell.state_dict
    try:
        got = loop(make, ours.DataLoader, tmp_path, (9, 42), (), False)
    finally:
        Passing.state_dict = real
    assert same(samples(got), samples(due))


def test_plain_loader_does_not_ask_for_states(monkeypatch, tmp_path):
    """Not of a run that is shorter than what a state is worth."""
    monkeypatch.setattr(_successor, "_AGAIN_NS", HOURS)
    loop(Counting, ours.DataLoader, tmp_path, (), (), False)
    assert noted(tmp_path, "states") == 0


def test_many_requests_are_worth_a_state(monkeypatch, tmp_path):
    """What a successor does again is bounded by memory, too."""
    monkeypatch.setattr(_successor, "_AGAIN_NS", HOURS)
    monkeypatch.setattr(_successor, "_LOG_BYTES", 300)
    loop(Counting, ours.DataLoader, tmp_path, (), (), False)
    assert 0 < noted(tmp_path, "states") < 30


@seldom
@pytest.mark.parametrize("stop", [0, 1, 7, None])
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("kind", [Counting, Passing])
def test_plain_loader_is_resumed(paced, kind, stop, persistent, tmp_path):
    """Its state is that of the last batch, whenever the dataset was asked."""

    def make():
        torch.manual_seed(6)
        which: Any = (tmp_path,) if kind is Counting else (Counting, tmp_path)
        return ours.DataLoader(
            kind(*which),
            batch_size=4,
            num_workers=2,
            collate_fn=as_they_are,
            persistent_workers=persistent,
        )

    assert_goes_on(make, stop, through=through_json)


@seldom
def test_plain_loader_is_resumed_twice_and_its_worker_dies(paced, tmp_path):
    def make(deaths=()):
        torch.manual_seed(6)
        return ours.DataLoader(
            Counting(tmp_path, deaths, (22,)),
            batch_size=4,
            num_workers=2,
            collate_fn=as_they_are,
        )

    due = epochs(make(), 1)
    first = make()
    got: list[Any] = take(iter(first), 3)
    second = resumed(make(), first.state_dict())
    iterator = iter(second)
    got += take(iterator, 2)
    with pytest.raises(LookupError):
        next(iterator)
    got += ["LookupError: 22", *take(iterator, 2)]
    got += epochs(resumed(make((50,)), second.state_dict()), 1)
    assert (tmp_path / "death-50").exists()
    assert same(got, due)


# ---- snapshot_every_n_steps


def snapshots(loader: Any, dataset: Any, every: Any) -> Any:
    return loader(
        dataset,
        batch_size=2,
        num_workers=3,
        collate_fn=as_they_are,
        snapshot_every_n_steps=every,
    )


DATASETS = {
    "over an iterator": lambda: OverIterator([20, 5, 12]),
    "over a generator": lambda: OverGenerator([8, 20, 0]),
    "growing": GrowingState,
}
drawn = [
    (name, every, stop)
    for name in [*DATASETS, "map"]
    for every, stop in random.Random(name).sample(
        list(itertools.product([0, None, 2, 3, 5, 8], [0, 1, 4, 6, 9, 11])), 4
    )
]


@beside_torchdata
@pytest.mark.parametrize(("name", "every", "stop"), drawn)
def test_snapshots_are_torchdatas(name, every, stop, tmp_path):
    """The same step, the same states, the same rest, whoever took the state and whoever reads it."""

    def make(loader):
        torch.manual_seed(1)
        dataset = Counting(tmp_path) if name == "map" else DATASETS[name]()
        return snapshots(loader, dataset, every)

    def known(batches):
        # torchdata's states have not what the generators give.
        return [[one[:3] for one in batch] for batch in batches] if name == "map" else batches

    due = list(make(Torchdatas))
    stop = min(stop, len(due))
    states = []
    for loader in (Torchdatas, ours.StatefulDataLoader):
        made = make(loader)
        assert same(take(iter(made), stop), due[:stop])
        states.append(made.state_dict())
    theirs, here = states
    for key in ("_snapshot_step", "_last_yielded_worker_id"):
        assert here["_snapshot"][key] == theirs["_snapshot"][key]
    assert here["_steps_since_snapshot"] == theirs["_steps_since_snapshot"]
    for worker, told in theirs["_snapshot"]["_worker_snapshots"].items():
        found = here["_snapshot"]["_worker_snapshots"][worker]
        assert "since" not in found
        assert same({key: found[key] for key in told}, told)
    assert same(list(resumed(make(ours.StatefulDataLoader), here)), due[stop:])
    for loader, state in ((ours.StatefulDataLoader, theirs), (Torchdatas, here)):
        assert same(known(list(resumed(make(loader), state))), known(due[stop:]))


@beside_torchdata
def test_snapshots_ask_for_no_more_states_than_torchdatas(tmp_path):
    asked = []
    for loader in (Torchdatas, ours.StatefulDataLoader):
        marks = tmp_path / loader.__module__
        marks.mkdir()
        list(snapshots(loader, Counting(marks), 10))
        asked.append(noted(marks, "states"))
    assert 0 < asked[1] <= asked[0]


@pytest.mark.parametrize("every", [3, 0])
@pytest.mark.parametrize("stop", [5, 8])
def test_batches_that_raised_are_not_counted_in_steps(every, stop, tmp_path):
    def make():
        torch.manual_seed(6)
        return snapshots(ours.StatefulDataLoader, Counting(tmp_path, (), (4, 9, 20)), every)

    made = make()
    whole = epochs(made, 1)
    assert len([one for one in whole if isinstance(one, str)]) == 3
    made = make()
    iterator = iter(made)
    got: list[Any] = []
    while len([one for one in got if not isinstance(one, str)]) < stop:
        try:
            got.append(next(iterator))
        except LookupError as error:
            got.append(str(error).splitlines()[-1])
    state = made.state_dict()
    assert state["_steps_since_snapshot"] == (stop % every if every else stop)
    assert same(got + epochs(resumed(make(), state), 1), whole)


@pytest.mark.parametrize("every", [2, 7])
def test_snapshots_out_of_order_are_of_the_last_batch(every, tmp_path):
    """Which batches come again is not told by their number there."""

    def make():
        return ours.StatefulDataLoader(
            Counting(tmp_path),
            batch_size=2,
            num_workers=2,
            collate_fn=as_they_are,
            in_order=False,
            snapshot_every_n_steps=every,
        )

    made = make()
    got = take(iter(made), 9)
    state = made.state_dict()
    assert state["_steps_since_snapshot"] == 0
    got += list(resumed(make(), through_json(state)))
    assert sorted(one[0] for batch in got for one in batch) == list(range(60))


@pytest.mark.parametrize("every", [1, 4])
def test_worker_of_a_stateful_loader_dies_between_snapshots(every, tmp_path):
    def run(deaths):
        torch.manual_seed(3)
        return list(snapshots(ours.StatefulDataLoader, Counting(tmp_path, deaths), every))

    assert same(run((11, 30, 51)), run(()))
    assert (tmp_path / "death-51").exists()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_state_dict_that_raises_is_an_error_of_the_stateful_loader(num_workers, tmp_path):
    """As in torchdata's: with workers of iter(), without of state_dict()."""
    loader = ours.StatefulDataLoader(CannotTell(tmp_path), num_workers=num_workers)
    with pytest.raises(RuntimeError, match="no state in the middle"):
        iter(loader)
        loader.state_dict()


# ---- samplers


class Said:
    """A sampler that notes how often it is asked; its order is another one in each epoch, and so is its state."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks
        self.at = self.epoch = 0
        self.from_at = 0

    def __len__(self) -> int:
        return 60

    def __iter__(self) -> Iterator[int]:
        self.at, self.from_at = self.from_at, 0
        while self.at < 60:
            self.at += 1
            yield (7 * (self.at - 1) + self.epoch) % 60
        self.at = 0
        self.epoch += 1

    def state_dict(self) -> Any:
        note(self.marks, "asked")
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        self.from_at, self.epoch = state["at"], state["epoch"]


class NotSaid(Said):
    def state_dict(self) -> Any:
        raise RuntimeError("it is not said")


class DrawsUnsaid(NotSaid):
    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(60).tolist()


class SaysByArgument(Said):
    def state_dict(self, prefix: str) -> Any:
        raise AssertionError("it has been called")


@pytest.mark.parametrize(("num_workers", "batch_size"), [(0, 4), (2, None), (2, 4)])
@pytest.mark.parametrize("stop", [0, 13])
@pytest.mark.parametrize(
    ("kind", "costs"),
    [(Said, 0), (Said, HOURS), (NotSaid, 0), (DrawsUnsaid, HOURS), (SaysByArgument, HOURS)],
)
def test_sampler_of_the_plain_loader_is_asked_seldom(
    monkeypatch, num_workers, batch_size, stop, kind, costs, tmp_path
):
    """And what it raises is nobody's error: a resume runs it forward from the last state there is."""
    monkeypatch.setattr(_samplers, "_ASKING_COSTS", costs)

    def make(loader):
        torch.manual_seed(2)
        return loader(
            range(100), sampler=kind(tmp_path), batch_size=batch_size, num_workers=num_workers
        )

    due = list(make(Reference))
    made = make(ours.DataLoader)
    got = take(iter(made), stop)
    if costs and kind is Said:
        assert noted(tmp_path, "asked") <= 3
    state = through_json(made.state_dict())
    again = resumed(make(ours.DataLoader), state)
    got += list(again)
    assert same(got, due)
    if kind in (Said, SaysByArgument, NotSaid):
        assert len(list(again)) == len(due)
