"""Datasets whose state leaves out what they hold back: deaths and resumes beside an undisturbed run."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ringfeed.torch as ours  # noqa: E402
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


@pytest.mark.parametrize("seed", range(4))
def test_a_worker_that_dies_changes_nothing(seed: int) -> None:
    due = [batch.tolist() for batch in make(Reference)]
    draw = random.Random(seed)
    deaths = set(draw.sample(range(len(due)), 4))
    iterator = iter(make(ours.DataLoader, dataset_state="run_forward"))
    got = []
    for number in range(len(due)):
        if number in deaths:
            os.kill(iterator._workers[draw.randrange(2)].pid, signal.SIGKILL)
        got.append(next(iterator).tolist())
    assert got == due and list(iterator) == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 7, 20])
def test_a_resume_goes_on_there(workers: int, stop: int, caplog: pytest.LogCaptureFixture) -> None:
    def made(state: str) -> Any:
        dataset = Buffered(120)
        return ours.StatefulDataLoader(
            dataset, batch_size=4, num_workers=workers, dataset_state=state
        )

    due = [batch.tolist() for batch in made("exact")]
    for state, is_exact in (("run_forward", True), ("exact", False)):
        first = made(state)
        got = [batch.tolist() for batch in take(iter(first), stop)]
        with caplog.at_level(logging.WARNING):
            again = resumed(made(state), through_json(first.state_dict()))
            got += [batch.tolist() for batch in again]
        assert (got == due) == is_exact, state
    if workers == 0:
        assert "the state of Buffered is not to be used: it is read again" in caplog.text
