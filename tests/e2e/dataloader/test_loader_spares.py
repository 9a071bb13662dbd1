"""A worker that is asked for nothing is not forked, and comes as soon as something is asked."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from ringfeed.torch import DataLoader, StatefulDataLoader
from tests.support.feeds.feed_run import wait_until

WORKERS = 4


class Pids(torch.utils.data.Dataset[torch.Tensor]):
    """Each sample with the process that made it; that of index 0 dies at the first try."""

    def __init__(self, length: int, dies: Path | None = None) -> None:
        self.length = length
        self.dies = dies

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0 and self.dies is not None and not self.dies.exists():
            self.dies.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([index, os.getpid()])


class Some(torch.utils.data.Sampler[int]):
    """As many indices as it is told to give."""

    def __init__(self, many: int) -> None:
        self.many = many

    def __iter__(self) -> Any:
        return iter(range(self.many))

    def __len__(self) -> int:
        return self.many


def pids_of(iterator: Any) -> list[int]:
    """Of each worker; 0: it has no process."""
    return [iterator._feed.pid_of(worker) for worker in range(WORKERS)]


def loader_of(dataset: Any, method: str = "fork", kind: Any = DataLoader, **settings: Any) -> Any:
    settings.setdefault("batch_size", 1)
    return kind(dataset, num_workers=WORKERS, multiprocessing_context=method, **settings)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_as_many_processes_as_batches(method: str) -> None:
    loader = loader_of(Pids(2), method)
    for _ in range(3):
        iterator = iter(loader)
        rows = [batch[0].tolist() for batch in iterator]
        assert [index for index, _ in rows] == [0, 1]
        assert [pid for _, pid in rows] == pids_of(iterator)[:2]
        assert pids_of(iterator)[2:] == [0, 0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_later_epoch_asks_more_of_them(method: str) -> None:
    sampler = Some(1)
    loader = loader_of(Pids(100), method, sampler=sampler, persistent_workers=True)
    assert [batch[0][0].item() for batch in loader] == [0]
    sampler.many = 50
    rows = [batch[0].tolist() for batch in loader]
    assert [index for index, _ in rows] == list(range(50))
    assert len({pid for _, pid in rows}) == WORKERS


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_whoever_wants_to_know_its_process_has_one_made(method: str) -> None:
    iterator = iter(loader_of(Pids(1), method))
    assert next(iterator)[0][0] == 0
    assert pids_of(iterator)[1:] == [0, 0, 0]
    pid = iterator._workers[2].pid
    assert pid > 0
    os.kill(pid, 0)
    assert pids_of(iterator)[1] == pids_of(iterator)[3] == 0
    assert next(iterator, None) is None


def test_who_dies_has_a_successor_beside_those_that_are_spared(tmp_path: Path) -> None:
    iterator = iter(loader_of(Pids(1, tmp_path / "died")))
    assert next(iterator)[0][0] == 0
    assert (tmp_path / "died").exists()
    assert pids_of(iterator)[1:] == [0, 0, 0]


def test_the_parent_that_spared_them_dies() -> None:
    iterator = iter(loader_of(Pids(1)))
    assert next(iterator)[0][0] == 0
    parent = iterator._feed._start.process
    parent.kill()
    wait_until(lambda: parent.exitcode is not None, "its end")
    first = iterator._feed._start
    iterator._feed._look_after()  # as a wait for a batch does
    assert iterator._feed._start is not first
    assert iterator._workers[3].pid > 0


def test_states_are_those_of_all_workers() -> None:
    loader = loader_of(Pids(1), kind=StatefulDataLoader)
    iterator = iter(loader)
    state = loader.state_dict()
    assert next(iterator)[0][0] == 0
    fresh = loader_of(Pids(1), kind=StatefulDataLoader)
    fresh.load_state_dict(state)
    assert [batch[0][0].item() for batch in fresh] == [0]


def test_nobody_is_told_that_they_wait(capfd: pytest.CaptureFixture[str]) -> None:
    iterator = iter(loader_of(Pids(1)))
    assert next(iterator)[0][0] == 0
    supervisor = iterator._feed.feed.supervisor

    def log() -> str:
        return "\n".join(supervisor.lines(0)[0])

    wait_until(lambda: " feed_running " in log(), "the feed to run")
    assert "has no work" not in log()
    assert capfd.readouterr().err == ""
