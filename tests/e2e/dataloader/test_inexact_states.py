"""Datasets whose state leaves out what they hold back: deaths and resumes beside an undisturbed run."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ringfeed.torch as ours  # noqa: E402
from ringfeed.torch import _compared  # noqa: E402
from tests.support.loaders.own_data import Reference  # noqa: E402
from tests.support.loaders.resuming import no_warnings, resumed, take, through_json  # noqa: E402

pytestmark = [*no_warnings]


class Buffered(torch.utils.data.IterableDataset):
    """Has a shuffle buffer, and a state without it."""

    def __init__(self, count: int) -> None:
        self.count, self.place = count, 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rng, held = random.Random(worker), []
        while self.place < self.count:
            self.place += 1
            if self.place % workers == worker:
                held.append(self.place)
            if len(held) > 10:
                yield held.pop(rng.randrange(len(held)))
        yield from held
        self.place = 0


def make(loader: Any, **options: Any) -> Any:
    return loader(Buffered(120), batch_size=4, num_workers=2, **options)


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """States cost none."""
    monkeypatch.setattr(_compared, "time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.mark.parametrize("state", ["run_forward", "verify"])
@pytest.mark.parametrize("seed", range(4))
def test_a_worker_that_dies_changes_nothing(seed: int, state: str) -> None:
    due = [batch.tolist() for batch in make(Reference)]
    draw = random.Random(seed)
    deaths = set(draw.sample(range(len(due)), 4))
    iterator = iter(make(ours.DataLoader, dataset_state=state))
    got = []
    for number in range(len(due)):
        if number in deaths:
            os.kill(iterator._workers[draw.randrange(2)].pid, signal.SIGKILL)
        got.append(next(iterator).tolist())
    assert got == due and list(iterator) == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 7, 20])
def test_a_resume_goes_on_there(
    workers: int, stop: int, caplog: pytest.LogCaptureFixture, no_time: None
) -> None:
    def made(state: str) -> Any:
        dataset = Buffered(120)
        return ours.StatefulDataLoader(
            dataset, batch_size=4, num_workers=workers, dataset_state=state
        )

    due = [batch.tolist() for batch in made("exact")]
    for state, is_exact in (("run_forward", True), ("verify", True), ("exact", False)):
        first = made(state)
        got = [batch.tolist() for batch in take(iter(first), stop)]
        with caplog.at_level(logging.WARNING):
            again = resumed(made(state), through_json(first.state_dict()))
            got += [batch.tolist() for batch in again]
        assert (got == due) == is_exact, state
    if workers == 0:
        assert "the state of Buffered is not to be used: it is read again" in caplog.text
        why = "the state of Buffered does not give the samples that had come behind it"
        # That of the beginning is exact.
        assert (f"{why}: it is read again up to where it was, {stop}" in caplog.text) == (stop > 8)
    assert "does not give the same samples" not in caplog.text


class Exact(torch.utils.data.IterableDataset):
    """Its iterator has a state, if its order is not drawn anew each time."""

    def __init__(self, count: int, draws: bool = False) -> None:
        self.count, self.draws = count, draws
        self.read: list[int] = []

    def __iter__(self) -> Exact.Places:
        return Exact.Places(self)

    class Places:
        def __init__(self, of: Exact) -> None:
            self.of, self.place = of, 0
            self.shift = random.SystemRandom().randrange(10**6) if of.draws else 0

        def state_dict(self) -> dict[str, int]:
            return {"place": self.place}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.place = state["place"]

        def __next__(self) -> int:
            if self.place == self.of.count:
                raise StopIteration
            self.of.read.append(self.place)
            self.place += 1
            return self.place - 1 + self.shift

        def __iter__(self) -> Exact.Places:
            return self


@pytest.mark.parametrize("stop", [1, 9, 40, 99])
def test_a_state_that_is_exact_is_used(
    stop: int, caplog: pytest.LogCaptureFixture, no_time: None
) -> None:
    def made() -> Any:
        return ours.StatefulDataLoader(Exact(400), batch_size=4, dataset_state="verify")

    first = made()
    got = [batch.tolist() for batch in take(iter(first), stop)]
    again = made()
    with caplog.at_level(logging.WARNING):
        got += [batch.tolist() for batch in resumed(again, through_json(first.state_dict()))]
        # The state that it has then is one as well.
        third = made()
        rest = take(iter(resumed(third, through_json(first.state_dict()))), 1)
        more = made()
        seen = [batch.tolist() for batch in [*rest, *resumed(more, third.state_dict())]]
    assert [one for batch in got for one in batch] == list(range(400))
    assert [one for batch in seen for one in batch] == list(range(4 * stop, 400))
    # At least 32 samples come once more, and less than twice as many with a batch.
    compared = 4 * stop - again.dataset.read[0]
    assert compared == 4 * stop if stop < 8 else 32 <= compared < 68
    assert caplog.text == ""


def test_an_order_that_nobody_can_have_again(caplog: pytest.LogCaptureFixture) -> None:
    """Is said as an error."""
    first = ours.StatefulDataLoader(Exact(400, True), batch_size=4, dataset_state="verify")
    take(iter(first), 20)
    again = ours.StatefulDataLoader(Exact(400, True), batch_size=4, dataset_state="verify")
    with caplog.at_level(logging.WARNING):
        assert len(list(resumed(again, first.state_dict()))) == 80
    (error,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "Exact does not give the same samples when it is read again" in error.getMessage()


@pytest.mark.parametrize("behind", [7, {"base": 7}, {"base": {"fetched": -1}}, {"base": {}}])
def test_a_damaged_state(behind: Any) -> None:
    first = ours.StatefulDataLoader(Exact(400), batch_size=4, dataset_state="verify")
    take(iter(first), 20)
    state = through_json(first.state_dict())
    state["behind"] = behind
    again = ours.StatefulDataLoader(Exact(400), batch_size=4, dataset_state="verify")
    with pytest.raises(ValueError, match="the state is damaged"):
        again.load_state_dict(state)
        iter(again)
