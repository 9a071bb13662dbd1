"""Iterators that follow one another have one feed: its supervisor stays, all others are new."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ringfeed.torch import DataLoader, _own_feed, _workers
from tests.support.feeds.feed_run import runs, wait_until


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However slow the machine is, a feed is kept for the next epoch."""
    idle = _own_feed._Idle()
    monkeypatch.setattr(_own_feed, "_idle", idle)
    monkeypatch.setattr(_own_feed, "_IDLE_S", 600.0)
    yield
    for feed in idle.all():
        feed.end()


class Marked(torch.utils.data.Dataset[torch.Tensor]):
    """Each sample with what the dataset was, and the process that made it."""

    def __init__(self, length: int) -> None:
        self.mark = 0
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, self.mark, os.getpid()])


class Wide(Marked):
    """Batches of it are not small, so they are not copied."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index).repeat(1000)


def supervisor_of(iterator: Any) -> int:
    found: int = iterator._feed.feed.supervisor.child
    return found


def epoch(loader: Any) -> tuple[int, list[list[int]]]:
    """The supervisor, and all samples."""
    iterator = iter(loader)
    supervisor = supervisor_of(iterator)
    return supervisor, [row for batch in iterator for row in batch.tolist()]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_each_epoch_has_workers_of_its_own_and_the_dataset_as_it_is(context: str) -> None:
    data = Marked(24)
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=context)
    pids: set[int] = set()
    supervisors = set()
    for mark in range(3):
        data.mark = mark
        supervisor, rows = epoch(loader)
        supervisors.add(supervisor)
        assert [row[:2] for row in rows] == [[index, mark] for index in range(24)]
        mine = {row[2] for row in rows}
        assert not mine & pids and not any(map(runs, mine))
        pids |= mine
    assert len(supervisors) == 1
    ((_, idle),) = _own_feed._idle.feeds

    def log() -> str:
        return "\n".join(idle.supervisor.lines(0)[0])

    # What it counts as a death it would say. Lines are written behind what they tell of.
    wait_until(lambda: log().count("worker_dismissed") == 6, "the last line")
    assert log().count("worker_started") == 6
    assert "worker_died" not in log() and "worker_restarted" not in log()


def test_what_an_iterator_has_not_taken_is_in_no_later_one() -> None:
    data = Marked(4000)
    loader = DataLoader(data, batch_size=4, num_workers=3, prefetch_factor=4)
    for mark in range(20):
        data.mark = mark
        iterator = iter(loader)
        for number in range(mark % 7):
            rows = next(iterator).tolist()
            assert [row[:2] for row in rows] == [[4 * number + i, mark] for i in range(4)]
        del iterator


def test_loaders_alike_have_one_feed_and_others_their_own() -> None:
    first, _ = epoch(DataLoader(Marked(8), batch_size=4, num_workers=2))
    other, rows = epoch(DataLoader(Marked(6), batch_size=2, num_workers=2, shuffle=True))
    assert other == first and sorted(row[0] for row in rows) == list(range(6))
    assert epoch(DataLoader(Marked(8), batch_size=4, num_workers=1))[0] != first


def test_two_iterators_at_once_have_two_feeds() -> None:
    loader = DataLoader(Marked(12), batch_size=4, num_workers=2)
    for _ in range(2):
        one, two = iter(loader), iter(loader)
        assert supervisor_of(one) != supervisor_of(two)
        pairs = [(a.tolist(), b.tolist()) for a, b in zip(one, two)]
        assert len(pairs) == 3
        assert all([x[0] for x in a] == [x[0] for x in b] for a, b in pairs)
        del one, two


def test_batches_of_an_earlier_epoch_stay_as_they_are() -> None:
    data = Wide(40)
    loader = DataLoader(data, batch_size=4, num_workers=2)
    kept, due = [], []
    for mark in range(5):
        data.mark = mark
        for batch in loader:
            last = batch
        kept.append(last)
        due.append(last.clone())
    assert all(torch.equal(a, b) for a, b in zip(kept, due))


def test_whoever_keeps_an_epoch_gets_a_new_feed_for_the_next_one() -> None:
    """Else the regions of these batches would be missing there."""
    data = Wide(40)
    loader = DataLoader(data, batch_size=4, num_workers=2)
    kept = []
    supervisors = []
    for mark in range(3):
        data.mark = mark
        iterator = iter(loader)
        supervisors.append(supervisor_of(iterator))
        kept.append(list(iterator))
    assert len(set(supervisors)) == 3
    for mark, batches in enumerate(kept):
        rows = [row[:2] for batch in batches for row in batch.tolist()]
        assert rows == [[index, mark] for index in range(40)]


def test_a_supervisor_that_is_killed_between_two_epochs_is_missed_by_nobody() -> None:
    loader = DataLoader(Marked(12), batch_size=4, num_workers=2)
    before, _ = epoch(loader)
    os.kill(before, signal.SIGKILL)
    # Perhaps before anybody knows.
    assert [row[0] for row in epoch(loader)[1]] == list(range(12))


def begins(monkeypatch: pytest.MonkeyPatch, then: Callable[[Any], None]) -> None:
    """Calls that once, when another generation of a feed has a warm parent, and no worker yet."""
    real = _workers.Start

    def start(process: Any, context: Any, feed: Any, attempt: int = 0) -> Any:
        monkeypatch.setattr(_workers, "Start", real)
        os.kill(feed.supervisor.child, signal.SIGSTOP)  # it gives no worker the memory
        found = real(process, context, feed, attempt)
        then(feed)
        return found

    monkeypatch.setattr(_workers, "Start", start)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_feed_that_is_lost_before_an_epoch_has_it_is_replaced(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Nobody but its supervisor has the memory then. Not even the requests are lost."""
    data = Marked(12)
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=method)
    before, _ = epoch(loader)
    killed = []

    def kill(feed: Any) -> None:
        killed.append(feed.supervisor.child)
        os.kill(feed.supervisor.child, signal.SIGKILL)
        wait_until(lambda: feed.supervisor.child != killed[0], "its successor")

    data.mark = 1
    begins(monkeypatch, kill)
    rows = [row for batch in loader for row in batch.tolist()]
    assert killed == [before]
    assert [row[:2] for row in rows] == [[index, 1] for index in range(12)]
    assert [row[0] for row in epoch(loader)[1]] == list(range(12))


def test_a_warm_parent_that_is_killed_takes_its_feed_along() -> None:
    """Its workers may live on for a moment: nothing is asked of them any more."""
    data = Marked(400)
    loader = DataLoader(data, batch_size=4, num_workers=2)
    for mark in range(4):
        data.mark = mark
        iterator = iter(loader)
        assert [row[:2] for row in next(iterator).tolist()] == [[i, mark] for i in range(4)]
        os.kill(iterator._feed._start.process.pid, signal.SIGKILL)
        del iterator
    assert [row[0] for row in epoch(loader)[1]] == list(range(400))


def test_an_idle_feed_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_own_feed, "_IDLE_S", 0.1)
    supervisor, _ = epoch(DataLoader(Marked(4), batch_size=4, num_workers=1))
    wait_until(lambda: not runs(supervisor), "its end")
    assert not _own_feed._idle.feeds


def test_not_more_than_some_feeds_are_kept() -> None:
    supervisors = []
    for workers in range(1, 8):
        supervisors.append(epoch(DataLoader(Marked(4), num_workers=workers))[0])
        assert len(_own_feed._idle.feeds) <= _own_feed._IDLE_MAX
    assert len(set(supervisors)) == 7


def test_an_iterable_dataset_begins_anew_in_each_epoch() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            info = torch.utils.data.get_worker_info()
            assert info is not None
            yield from range(info.id, 20, info.num_workers)

    loader = DataLoader(Stream(), batch_size=3, num_workers=3)
    due = [batch.tolist() for batch in torch.utils.data.DataLoader(Stream(), 3, num_workers=3)]
    for _ in range(4):
        assert [batch.tolist() for batch in loader] == due
