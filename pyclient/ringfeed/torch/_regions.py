"""Where a trainer has the batches that workers made: regions that are held, copied and given back.

Also what a fork of the trainer does with them: workers go on writing, so the child gets copies.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import pickle
import select
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

from .._core import native
from ._bulk import (
    EMPTY,
    FIXED,
    FREE,
    GIVEN,
    LENT,
    MAPPED_BYTES_MIN,
    Bulk,
    empty,
    leave,
    lent_region,
    lent_word,
    map_pages,
    slot_of,
)
from ._forks import starting
from ._streams import renew

_LARGE_BYTES = 8 << 20  # a batch of which no more is free than workers need
_LENDS_MIN = 1024  # regions of a lane, from which on some may be lent to others
_LOOP_HOLDS = 4  # batches of a lane, beyond which memory that becomes free is given back
_KEPT_MAX = 1 << 14  # batches that are not copied: a process may have 65,530 mappings
_PAGE = mmap.PAGESIZE
_COPIES_MS = 2000  # for a child's copies; then the loop goes on without the slots of these batches
# Of an entry of /proc/self/pagemap: it is in memory or swapped; it is the file's.
_THERE, _OF_FILE = 3 << 62, 1 << 61


class _Regions:
    """What a trainer has mapped of the memory of batches."""

    def __init__(self, bulk: Bulk, *, private: bool) -> None:
        self._bulk = bulk
        self._private = private
        self._mapped: dict[int, Any] = {}  # by region

    def _mapping(self, region: int, used: int) -> Any:
        """So many bytes of a region, which holds no other batch that is in use."""
        found = self._mapped.get(region)
        if found is None or len(found) < used:
            self._mapped.pop(region, None)
            make = functools.partial(self._bulk.map, region, used, private=self._private)
            try:
                found = make()
            except MemoryError:
                self._mapped.clear()  # what nobody holds
                found = make()
            self._mapped[region] = found
        return found

    def held(self) -> list[Any]:
        """Regions of the batches that somebody has."""
        raise NotImplementedError

    def become_copy(self) -> None:
        """In a fork of the trainer: what is held is copied, and nothing is shared any more."""
        for slot in self.held():
            _become_copy(slot)
        self._mapped.clear()


class Regions(_Regions):
    """The regions of a loader's own feed. A batch has one until nobody refers to it any more."""

    def __init__(self, bulk: Bulk) -> None:
        """`bulk`: where they are, with a table."""
        super().__init__(bulk, private=False)
        self._pid = os.getpid()
        table = bulk.table()
        self._table, self._found, self._ends = table.regions, table.found, table.ends
        self._lent = [table.lent[lane] for lane in range(bulk.lanes)]
        self._of_lane = bulk.regions // bulk.lanes
        # A worker always has regions left, and a process mappings.
        self._held_max = min(self._of_lane // 2, _KEPT_MAX // bulk.lanes)
        self._over = False
        self._held: list[dict[int, weakref.ref[Any]]] = [{} for _ in range(bulk.lanes)]
        self._asked = [0] * bulk.lanes  # of each: the number of its last request
        self._under_way = 0  # requests
        self._large: dict[int, int] = {}  # by region: bytes that have memory
        # With their mappings: those that became free, and the one that waits for a request.
        self._freed: deque[tuple[int, Any]] = deque()
        self._spare: deque[tuple[int, Any]] = deque()
        self._settling = threading.RLock()
        self._is_settling = False

    def asked(self, lane: int, number: int) -> None:
        """A lane is about to be asked for a batch."""
        self._under_way += 1
        self._asked[lane] = number
        if self._spare:
            with contextlib.suppress(IndexError):
                self._freed.append(self._spare.pop())
            self._settle()

    def answered(self) -> None:
        """A batch that was asked for is here."""
        self._under_way -= 1

    def take(self, region: int, used: int) -> tuple[Any, bool]:
        """The memory of a batch that has come, and whether it is to be copied.

        The region is the batch's as long as somebody refers to what is returned.

        Args:
            region: Which one.
            used: Bytes of the batch.
        Raises:
            MemoryError: There is no address space for it; the region is given back.
        """
        if _copying:
            _look_at_copies()
        if used >= _LARGE_BYTES and used > self._large.get(region, 0):
            self._large[region] = used
        try:
            mapping = self._mapping(region, used)
        except BaseException:
            self.give_back(region)
            raise
        slot = slot_of(len(mapping), _give_back).from_buffer(mapping)
        slot.mapping, slot.owner, slot.region, slot.used = mapping, self, region, used
        held = self._held[region // self._of_lane]
        held[region] = weakref.ref(slot)
        return slot, len(held) > self._held_max

    def read(self, region: int, at: int, size: int) -> bytes:
        """A copy of some bytes of a region."""
        return self._bulk.read(region, at, size)

    def load(self, region: int, at: int, size: int) -> Any:
        """What a pickle makes that is all of a batch that has come; its region is given back."""
        if _copying:
            _look_at_copies()
        try:
            mapping = self._mapping(region, at + size)
            return pickle.loads(memoryview(mapping)[at : at + size])
        finally:
            self.give_back(region)

    def give_back(self, region: int, mapping: Any = None) -> None:
        """Nobody refers to the batch any more."""
        if os.getpid() != self._pid:
            return  # in a fork: it is the parent's
        held = self._held[region // self._of_lane]
        held.pop(region, None)
        if region in self._large:
            self._freed.append((region, mapping))
            self._settle()
        elif self._over or len(held) >= _LOOP_HOLDS or self._is_idle(mapping):
            self._empty(region, mapping)
        else:
            self._table[region] = FREE

    def _is_idle(self, mapping: Any) -> bool:
        return self._under_way <= 0 and mapping is not None and len(mapping) > MAPPED_BYTES_MIN

    def _settle(self) -> None:
        with self._settling:
            # A batch may end in the middle of it, by a garbage collection: then it goes on here.
            if self._is_settling:
                return
            self._is_settling = True
            try:
                while self._freed:
                    self._lend(*self._freed.popleft())
            finally:
                self._is_settling = False

    def _lend(self, region: int, mapping: Any) -> None:
        """Memory of a large batch goes to a lane that has none for its next one."""
        size = self._large.get(region)
        if size is None:
            return  # it has been given back with all others
        lane = -1 if self._over else self._wanting()
        if lane < 0 and (self._over or self._spare or self._under_way <= 0):
            return self._empty(region, mapping)
        if mapping is not None and size > self._bulk.large_bytes:
            leave(ctypes.addressof(mapping), len(mapping))
        self._table[region] = GIVEN
        if lane < 0:
            self._spare.append((region, mapping))
        else:
            lent = self._lent[lane]
            lent[lent[:].index(0)] = lent_word(region, size)

    def _wanting(self) -> int:
        """A lane with a request for which it has no region yet, of the oldest one; -1: none."""
        # Under a limit of the file's size lanes have no more regions than they need.
        if self._of_lane < _LENDS_MIN:
            return -1
        found, oldest = -1, 0
        for lane, asked in enumerate(self._asked):
            at = self._found[lane]
            if at < asked:
                lent = LENT - self._lent[lane][:].count(0)
                at += len(self._asked) * lent
                if at < asked and lent < LENT and (found < 0 or at < oldest):
                    found, oldest = lane, at
        return found

    def _empty(self, region: int, mapping: Any = None) -> None:
        self._mapped.pop(region, None)
        self._large.pop(region, None)
        if self._bulk.empty(region):
            self._table[region] = EMPTY
        else:
            if mapping is not None:
                empty(mapping)
            self._table[region] = FREE

    def rest(self) -> None:
        """Between epochs no memory is free, but for that of small batches."""
        if self._under_way > 0 or self._over:
            return  # workers may be at it
        for lane, places in enumerate(self._lent):
            for place, lent in enumerate(places):
                if lent:
                    places[place] = 0
                    self._empty(lent_region(lent))
            first = lane * self._of_lane
            for region in range(first, first + self._ends[lane]):
                if self._table[region] == FREE:
                    mapping = self._mapped.get(region)
                    if mapping is None or len(mapping) > MAPPED_BYTES_MIN:
                        self._empty(region)
        with contextlib.suppress(IndexError):
            self._freed.append(self._spare.pop())
        self._settle()

    def end(self, for_good: bool = True) -> None:
        """No worker is left. What batches do not have of their memory is given back.

        `for_good`: nor will there be one. Else all regions but those of held batches are free.
        """
        with self._settling:
            before, self._is_settling = self._is_settling, True
            try:
                self._end(for_good)
            finally:
                self._is_settling = before
        self._settle()

    def _end(self, for_good: bool) -> None:
        self._over = for_good
        if os.getpid() != self._pid or (for_good and not any(self._held)):
            return  # nothing is left when the file is closed
        for region in np.flatnonzero(np.frombuffer(self._table, np.uint64)).tolist():
            held = self._held[region // self._of_lane].get(region)
            slot = None if held is None else held()
            self._bulk.empty(region, first=0 if slot is None else -(-slot.used // _PAGE) * _PAGE)
            if slot is None and not for_good:
                self._table[region] = EMPTY
                self._large.pop(region, None)
        self._mapped.clear()
        self._spare.clear()
        for lane, places in enumerate(self._lent):
            places[:] = [0] * LENT
            self._found[lane] = self._asked[lane]

    def most_held(self) -> int:
        """Of the lane with the most of them: batches that somebody has."""
        return max(map(len, self._held))

    def held(self) -> list[Any]:
        every = [one() for row in self._held for one in list(row.values())]
        return [slot for slot in every if slot is not None]


def _give_back(slot: Any) -> None:
    slot.owner.give_back(slot.region, slot.mapping)


class SharedRegions(_Regions):
    """The regions of a feed that trainers share, one for each slot."""

    def __init__(self, bulk: Bulk, old: int) -> None:
        """
        Args:
            bulk: Where the regions are. What is written into a batch stays in this process.
            old: Batches after which one that is still held becomes a copy.
        """
        super().__init__(bulk, private=True)
        self._old = old
        self._held: list[weakref.ref[Any]] = []

    def take(self, lease: native.Lease, lane: int, used: int) -> Any:
        """The region of a batch that has come: it holds the lease as long as somebody refers to it.

        Raises:
            MemoryError: There is no address space for it.
        """
        if _copying:
            _look_at_copies()
        mapping = self._mapping(lease.slot, used)
        slot = slot_of(len(mapping), _drop_changes).from_buffer(mapping)
        self._held = [one for one in self._held if one() is not None]
        slot.mapping, slot.lane, slot.used, slot.lease = mapping, lane, used, lease
        self._held.append(weakref.ref(slot))
        return slot

    def let_old_go(self, lane: int, newest: int) -> None:
        """Gives back batches that somebody keeps for so long that their lane has to go past them.

        A lane describes so many batches and no more. What is kept becomes a copy, at the same
        address, and the slot is mapped elsewhere.

        Args:
            lane: Of the batch that has come.
            newest: Its number.
        """
        for slot in self.held():
            if slot.lane == lane and newest - slot.lease.seq >= self._old:
                self._let_go(slot)

    def let_all_go(self) -> None:
        """Gives back all batches: what somebody keeps of them becomes a copy."""
        for slot in self.held():
            self._let_go(slot)

    def _let_go(self, slot: Any) -> None:
        _become_copy(slot)
        self._mapped.pop(slot.lease.slot, None)
        self._held = [
            one for one in self._held if (found := one()) is not None and found is not slot
        ]
        del slot.lease

    def held(self) -> list[Any]:
        return [slot for one in self._held if (slot := one()) is not None]


def _become_copy(slot: Any) -> None:
    """At the same address, of memory that nobody else has."""
    address = ctypes.addressof(slot)
    data = ctypes.string_at(address, slot.used)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED
    map_pages(address, ctypes.sizeof(slot), flags, -1, 0)
    ctypes.memmove(address, data, len(data))


# ---- what a trainer has written into a batch that is not its own alone

_pagemap: tuple[int, int] = (0, -1)  # process, descriptor


def _drop_changes(slot: Any) -> None:
    """Before the slot goes back: the next batch is to be seen there, and no changes of this one."""
    address = ctypes.addressof(slot)
    pages = -(-slot.used // _PAGE)
    if _has_changes(address // _PAGE, pages):
        leave(address, pages * _PAGE)


def _has_changes(first: int, pages: int) -> bool:
    global _pagemap
    try:
        if _pagemap[0] != os.getpid():
            _pagemap = (os.getpid(), os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC))
        found = np.frombuffer(os.pread(_pagemap[1], 8 * pages, 8 * first), np.uint64)
    except OSError:
        return True  # it is not known
    there, of_file = np.uint64(_THERE), np.uint64(_OF_FILE)
    return len(found) < pages or bool(((found & there != 0) & (found & of_file == 0)).any())


# ---- forks of the trainer

living: weakref.WeakSet[Any] = weakref.WeakSet()  # with held() and become_copy()
_forking: list[int] = []  # a pipe, while this process forks with batches in its hands
_copying: list[tuple[int, list[Any]]] = []  # children that take long: pipe, and these batches


def _before_fork() -> None:
    if any(one.held() for one in list(living)):
        _forking[:] = os.pipe()


def _after_fork_in_parent() -> None:
    """Gives no batch back before the child has copies of them."""
    if _forking:
        read, write = _forking
        _forking.clear()
        os.close(write)
        _copying.append((read, [slot for one in list(living) for slot in one.held()]))
        _look_at_copies(_COPIES_MS)


def _look_at_copies(timeout_ms: int = 0) -> None:
    """A child that has copies has closed its end of the pipe, and one that has died, too."""
    for one in list(_copying):
        waits = select.poll()
        waits.register(one[0], select.POLLIN)
        if waits.poll(timeout_ms):
            _copying.remove(one)
            os.close(one[0])


def _after_fork_in_child() -> None:
    """Batches that the parent had become copies, at the same addresses: workers go on writing."""
    if starting:
        renew()
    for one in list(living):
        if one not in starting:
            one.become_copy()
    for fd in [*_forking, *(pipe for pipe, _ in _copying)]:
        os.close(fd)
    _forking.clear()
    _copying.clear()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
