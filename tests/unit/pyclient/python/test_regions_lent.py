"""The regions of a loader's batches: whose they are and how much memory they have.

Workers and trainer are in this process, one step after the other: drawn ones.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import gc
import mmap
import os
import pickle
import random
import re
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from ringfeed.torch import _batches, _regions  # noqa: E402
from ringfeed.torch._bulk import Bulk, libc  # noqa: E402
from tests.support.loaders.own_data import same  # noqa: E402

SMALLEST, LARGEST = 70_000, 200_000
# What a worker reserves for a batch at most: there is room above.
REGION_BYTES = (LARGEST + LARGEST // 8 + 0xFFFF) & ~0xFFFF


class Feed:
    """Workers, requests and a loop. Each batch is full of one number."""

    def __init__(self, drawn: random.Random, lanes: int, prefetch: int, large_bytes: int) -> None:
        self.drawn = drawn
        self.bulk = Bulk(lanes * (prefetch + 6), lanes, lanes * prefetch)
        self.bulk.large_bytes = large_bytes
        self.regions = _regions.Regions(self.bulk)
        self.writers = [_batches.Writer(self.bulk, lane) for lane in range(lanes)]
        self.prefetch = prefetch
        self.next = list(range(1, lanes + 1))
        self.asked: list[deque[int]] = [deque() for _ in range(lanes)]
        self.made: list[deque[Any]] = [deque() for _ in range(lanes)]
        self.held: list[tuple[int, Any]] = []

    def under_way(self, lane: int) -> int:
        return len(self.asked[lane]) + len(self.made[lane])

    def file_bytes(self) -> int:
        return 512 * os.fstat(self.bulk.fd).st_blocks

    def table_bytes(self) -> int:
        table = self.bulk.table()
        return -(-len(memoryview(table).cast("B")) // mmap.PAGESIZE) * mmap.PAGESIZE

    # ---- steps

    def ask(self, lane: int) -> None:
        if self.under_way(lane) < self.prefetch:
            self.regions.asked(lane, self.next[lane])
            self.asked[lane].append(self.next[lane])
            self.next[lane] += len(self.next)

    def make(self, lane: int) -> None:
        if not self.asked[lane]:
            return
        number = self.asked[lane].popleft()
        size = self.drawn.choice((SMALLEST, LARGEST, LARGEST, LARGEST))
        data = torch.full((size,), number % 251, dtype=torch.uint8)
        lent = self.bulk.table().lent[lane]
        before = lent[:]
        writer = self.writers[lane]
        writer.begin(-1, number)
        places = writer.write(data)
        if self.drawn.random() < 0.2:
            # It dies, with some luck where the region still stands among those that are lent.
            if self.drawn.random() < 0.5:
                lent[:] = before
            region = writer.region
            writer = self.writers[lane] = _batches.Writer(self.bulk, lane)
            writer.begin(-1, number)
            places = writer.write(data)
            assert writer.region == region, "the successor goes on with another region"
        writer.end()
        self.made[lane].append((number, writer.region, places, writer.used))

    def take(self, lane: int) -> None:
        if not self.made[lane]:
            return
        number, region, (at, size, table, count), used = self.made[lane].popleft()
        self.regions.answered()
        slot, copies = self.regions.take(region, used)
        self.held.append((number, _batches.read(slot, (at, size), (table, count), copies)))

    def drop(self) -> None:
        if self.held:
            self.held.pop(self.drawn.randrange(len(self.held)))

    def begin_again(self) -> None:
        """Another iterator has the feed: other workers, and nobody wants what was asked for."""
        self.regions.end(for_good=False)
        for lane in range(len(self.next)):
            for _ in range(self.under_way(lane)):
                self.regions.answered()
            self.asked[lane].clear()
            self.made[lane].clear()
            self.writers[lane] = _batches.Writer(self.bulk, lane)
        assert self.file_bytes() <= self.table_bytes() + len(self.held) * REGION_BYTES

    # ---- what is due

    def check(self) -> None:
        for number, batch in self.held:
            assert bool((batch == number % 251).all()), f"batch {number} has other data"

    def most_bytes(self) -> int:
        """Of the batches that are asked for, those that are held, and of one more."""
        asked = sum(self.under_way(lane) for lane in range(len(self.next)))
        return self.table_bytes() + (asked + len(self.held) + 1) * REGION_BYTES


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_regions, "_LARGE_BYTES", 1)


@pytest.mark.parametrize("large_bytes", [1 << 40, 0], ids=["mapped", "by file"])
@pytest.mark.parametrize("seed", range(12))
def test_no_more_has_memory_than_batches_need(all_large: None, seed: int, large_bytes: int) -> None:
    drawn = random.Random(seed)
    feed = Feed(drawn, drawn.choice((1, 2, 4)), drawn.choice((1, 2, 5)), large_bytes)
    lanes = range(len(feed.writers))
    # The trainer, the workers, or those who keep batches are the faster ones.
    weights = drawn.choice(((4, 4, 4, 4), (4, 1, 4, 4), (4, 4, 1, 4), (4, 4, 4, 1)))
    for number in range(400):
        if number % 150 == 149:
            feed.begin_again()
        step = drawn.choices((feed.ask, feed.make, feed.take, feed.drop), weights)[0]
        if step == feed.drop:
            feed.drop()
        else:
            step(drawn.choice(lanes))
        assert feed.file_bytes() <= feed.most_bytes()
        feed.check()
    for lane in lanes:
        while feed.under_way(lane):
            feed.make(lane)
            feed.take(lane)
    feed.regions.rest()
    feed.check()
    assert feed.file_bytes() <= feed.table_bytes() + len(feed.held) * REGION_BYTES
    while feed.held:
        feed.drop()
        feed.check()
        assert feed.file_bytes() <= feed.table_bytes() + len(feed.held) * REGION_BYTES
    assert not feed.regions.held()


@pytest.mark.parametrize("large", [True, False])
def test_memory_that_is_free_is_used_and_not_made_anew(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that holds one batch, beside two workers that are as fast as can be."""
    if large:
        monkeypatch.setattr(_regions, "_LARGE_BYTES", 1)
    feed = Feed(random.Random(1), 2, 2, 0)
    emptied: list[int] = []
    empty = feed.bulk.empty
    monkeypatch.setattr(feed.bulk, "empty", lambda one: emptied.append(one) or empty(one))
    for lane in (0, 1, 0, 1):
        feed.ask(lane)
    for number in range(100):
        lane = number % 2
        feed.make(lane)
        feed.take(lane)
        feed.ask(lane)
        if number:
            feed.held.pop(0)
        feed.check()
    assert not emptied
    for lane in (0, 1, 0, 1):
        feed.make(lane)
    for lane in (0, 1, 0, 1):
        feed.take(lane)
        feed.held.pop(0)
    feed.regions.rest()
    assert feed.file_bytes() <= feed.table_bytes() + len(feed.held) * REGION_BYTES
    feed.held.clear()
    assert feed.file_bytes() <= feed.table_bytes()


def test_a_batch_that_ends_while_another_one_is_given_back(all_large: None) -> None:
    """A garbage collection in the middle of it: nothing is lost, and nobody waits."""
    feed = Feed(random.Random(1), 1, 5, 0)
    for _ in range(5):
        feed.ask(0)
    for _ in range(5):
        feed.make(0)
        feed.take(0)
    lend = feed.regions._lend

    def with_another(region: int, mapping: Any) -> None:
        if feed.held:
            feed.held.pop()
        lend(region, mapping)

    feed.regions._lend = with_another  # type: ignore[method-assign]
    feed.held.pop()
    assert not feed.held and not feed.regions.held()
    gc.collect()
    assert feed.file_bytes() <= feed.table_bytes()


def resident_bytes() -> int:
    """Of all regions that this process has mapped."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"\w+-\w+ ", line):
            inside = "/memfd:ringfeed-batches" in line
        elif inside and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


@pytest.mark.parametrize("kind", ["stacked", "array", "view", "bytes", "strided"])
def test_a_worker_has_no_large_batch_mapped_when_it_is_made(all_large: None, kind: str) -> None:
    """Nor has the trainer one that it has given back. The table has some pages."""
    samples = [torch.full((100_000,), i, dtype=torch.uint8) for i in range(20)]
    matrix = torch.arange(2_000_000).view(1000, 2000)
    things: dict[str, Any] = {
        "array": np.arange(500_000),
        "view": matrix[10:900],
        "bytes": pickle.PickleBuffer(bytearray(range(250)) * 8000),
        "strided": matrix[:, ::8],
    }

    def written(large_bytes: int, spare: bool = False) -> tuple[int, int, int, Any]:
        gc.collect()  # of others
        bulk = Bulk(8, 1, 1)
        bulk.large_bytes = large_bytes
        most = 0
        regions, writer = _regions.Regions(bulk), _batches.Writer(bulk, 0)
        start = resident_bytes()
        slot = None
        for number in (1, 2):  # of the first one it is not known how large it will be
            if spare:
                slot = None
            regions.asked(0, number)
            before = resident_bytes()
            writer.begin(-1, number)
            thing = things.get(kind)
            if kind == "stacked":
                thing = writer.empty((20, 100_000), torch.uint8)
                rows = [one.data_ptr() for one in samples]
                stack = functools.partial(torch.stack, samples, out=thing)
                writer.gather(thing, rows, 100_000, lambda *_, stack=stack: stack())
            (at, size, *buffers) = writer.write(thing)
            thing = stack = None
            most = resident_bytes() - before
            writer.end()
            resident = resident_bytes() - before
            slot, _ = regions.take(writer.region, writer.used)
            found = _batches.read(slot, (at, size), tuple(buffers), True)
        slot = None
        return most, resident, resident_bytes() - start, found

    some = 8 * mmap.PAGESIZE
    # Memory that it has had before is mapped.
    _, made, given_back, wanted = written(1 << 40, spare=True)
    assert made > 1_000_000 and given_back > 1_000_000
    # What is new is not, however large batches are.
    _, made, _, found = written(1 << 40)
    assert made <= some
    same(found, wanted)
    most, made, given_back, found = written(0)
    assert made <= some and given_back <= some
    assert most <= some or kind == "strided", "it is written where it is mapped"
    same(found, wanted)


def test_rows_are_written_whatever_part_the_system_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(1)
    bulk = Bulk(2)

    def a_part(fd: int, vector: int, count: int, place: int) -> int:
        """As pwritev(): of the bytes of so many rows the first ones."""
        if drawn.random() < 0.1:
            ctypes.set_errno(errno.EINTR)
            return -1
        words = (ctypes.c_uint64 * (2 * count)).from_address(vector)
        whole = b"".join(map(ctypes.string_at, words[::2], words[1::2]))
        return os.pwrite(fd, whole[: drawn.randint(1, len(whole))], place)

    monkeypatch.setattr(libc, "pwritev", a_part)
    for count, size in ((1, 1), (1, 5000), (3, 7), (40, 1000), (2500, 3)):
        rows = [drawn.randbytes(size) for _ in range(count)]
        places = [np.frombuffer(row, np.uint8).ctypes.data for row in rows]
        bulk.write(1, 64, places, size)
        assert bulk.read(1, 64, count * size) == b"".join(rows)
        assert bulk.read(1, 64 + count * size, 1) in (b"", b"\0")
        bulk.empty(1)


def test_a_batch_for_which_there_is_no_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    bulk = Bulk(1)
    monkeypatch.setattr(libc, "pwritev", full)
    with pytest.raises(OSError, match="No space left"):
        bulk.write(0, 0, [np.zeros(8).ctypes.data], 64)
