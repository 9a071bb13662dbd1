"""Where a trainer has the batches that workers made: regions that are held, copied and given back.

Also what a fork of the trainer does with them: workers go on writing, so the child gets copies.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import pickle
import select
import weakref
from typing import Any

import numpy as np

from .._core import native
from ._bulk import EMPTY, FIXED, FREE, Bulk, empty, libc, map_pages, slot_of
from ._forks import starting
from ._streams import renew

_LARGE_BYTES = 8 << 20  # a batch of which no more is free than a worker needs
_LOOKED_AT = 16  # regions of a lane, the first ones: those that workers use again and again
_LOOP_HOLDS = 4  # batches of a lane, beyond which memory that becomes free is given back
_KEPT_MAX = 1 << 14  # batches that are not copied: a process may have 65,530 mappings
_PAGE = mmap.PAGESIZE
_DONTNEED = 4  # of madvise
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
        self._table = bulk.table()
        self._of_lane = bulk.regions // bulk.lanes
        self._over = False
        self._held: list[dict[int, weakref.ref[Any]]] = [{} for _ in range(bulk.lanes)]

    def take(self, lane: int, region: int, used: int) -> tuple[Any, bool]:
        """The memory of a batch that has come, and whether it is to be copied.

        The region is the batch's as long as somebody refers to what is returned.

        Args:
            lane, region: Which one: of the lane's.
            used: Bytes of the batch.
        Raises:
            MemoryError: There is no address space for it; the region is given back.
        """
        if _copying:
            _look_at_copies()
        number = lane * self._of_lane + region
        try:
            mapping = self._mapping(number, used)
        except BaseException:
            self.give_back(lane, region)
            raise
        slot = slot_of(len(mapping), _give_back).from_buffer(mapping)
        slot.mapping, slot.owner, slot.place, slot.used = mapping, self, (lane, region), used
        held = self._held[lane]
        held[region] = weakref.ref(slot)
        # A worker always has regions left, and a process mappings.
        return slot, len(held) > min(self._of_lane // 2, _KEPT_MAX // len(self._held))

    def read(self, lane: int, region: int, at: int, size: int) -> bytes:
        """A copy of some bytes of a region."""
        return self._bulk.read(lane * self._of_lane + region, at, size)

    def load(self, lane: int, region: int, at: int, size: int) -> Any:
        """What a pickle makes that is all of a batch that has come; its region is given back."""
        if _copying:
            _look_at_copies()
        try:
            mapping = self._mapping(lane * self._of_lane + region, at + size)
            return pickle.loads(memoryview(mapping)[at : at + size])
        finally:
            self.give_back(lane, region)

    def give_back(self, lane: int, region: int, mapping: Any = None) -> None:
        """The worker may write there again."""
        if os.getpid() != self._pid:
            return  # in a fork: it is the parent's
        held = self._held[lane]
        held.pop(region, None)
        number = lane * self._of_lane + region
        state = FREE
        if self._over or len(held) >= _LOOP_HOLDS or self._has_room(lane, mapping):
            self._mapped.pop(number, None)
            if self._bulk.empty(number):
                state = EMPTY
            elif mapping is not None:
                empty(mapping)
        self._table[number] = state

    def _has_room(self, lane: int, mapping: Any) -> bool:
        """Of batches so large, has the worker memory for its next one already?"""
        if mapping is None or len(mapping) < _LARGE_BYTES:
            return False
        first = lane * self._of_lane
        return FREE in self._table[first : first + _LOOKED_AT]

    def end(self, for_good: bool = True) -> None:
        """No worker is left. What batches do not have of their memory is given back.

        `for_good`: nor will there be one. Else all regions but those of held batches are free.
        """
        self._over = for_good
        if os.getpid() != self._pid or (for_good and not any(self._held)):
            return  # nothing is left when the file is closed
        for number in np.flatnonzero(np.frombuffer(self._table, np.uint64)).tolist():
            held = self._held[number // self._of_lane].get(number % self._of_lane)
            slot = None if held is None else held()
            self._bulk.empty(number, first=0 if slot is None else -(-slot.used // _PAGE) * _PAGE)
            if slot is None and not for_good:
                self._table[number] = EMPTY
        self._mapped.clear()

    def most_held(self) -> int:
        """Of the lane with the most of them: batches that somebody has."""
        return max(map(len, self._held))

    def held(self) -> list[Any]:
        every = [one() for row in self._held for one in list(row.values())]
        return [slot for slot in every if slot is not None]


def _give_back(slot: Any) -> None:
    slot.owner.give_back(*slot.place, slot.mapping)


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
        libc.madvise(address, pages * _PAGE, _DONTNEED)


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
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
