"""Where a trainer has the batches that workers made: slots that are held, copied and given back.

Also what a fork of the trainer does with them: workers go on writing, so the child gets copies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import weakref
from typing import Any

import numpy as np

from .._core import native
from ._batches import Part
from ._forks import starting
from ._streams import renew

_OLD = 100  # batches after which one that is kept is copied
_PAGE = mmap.PAGESIZE
_FIXED = 0x10  # flags of mmap that Python does not name
_UNRESERVED = 0x4000
_DONTNEED = 4  # of madvise
_COPIES_MS = 2000  # for a child's copies; then the loop goes on without the slots of these batches
# Of an entry of /proc/self/pagemap: it is in memory or swapped; it is the file's.
_THERE, _OF_FILE = 3 << 62, 1 << 61

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Regions:
    """The memory of a feed's batches, a region for each slot."""

    def __init__(self, memory: Any, stride: int, lanes: int, free: int, old: int = _OLD) -> None:
        """
        Args:
            memory: A Memory, or a PrivateMemory: then what is written into a batch stays here.
            stride: Bytes of a region.
            lanes: Lanes of the feed.
            free: Batches of a lane that may be held; further ones are copied.
            old: Batches after which one that is still held becomes a copy.
        """
        self._old = old
        self.memory = memory
        self._stride = stride
        self._free = free
        members = {"__del__": _drop_changes} if memory.private else {}
        self._type: Any = type("Slot", (ctypes.c_char * stride,), members)
        self._moved: dict[int, Part] = {}  # by slot: where it is mapped, if not in its place
        self._held: list[list[weakref.ref[Any]]] = [[] for _ in range(lanes)]

    def address(self, slot: int) -> int:
        """Where the region of a slot begins."""
        moved = self._moved.get(slot)
        return self.memory.address + slot * self._stride if moved is None else moved.address

    def take(self, lease: native.Lease, lane: int, used: int) -> tuple[Any, bool]:
        """The region of a batch that has come, and whether it is to be copied.

        If not, it holds the lease as long as somebody refers to it.
        """
        if _copying:
            _look_at_copies()
        slot = self._type.from_address(self.address(lease.slot))
        held = self._held[lane] = [one for one in self._held[lane] if one() is not None]
        slot.used = used
        if len(held) >= self._free:
            return slot, True
        slot.lease = lease
        slot.memory = self._moved.get(lease.slot, self.memory).map
        held.append(weakref.ref(slot))
        return slot, False

    def let_old_go(self, lane: int, newest: int) -> None:
        """Gives back batches that somebody keeps for so long that their lane has to go past them.

        A lane describes so many batches and no more. What is kept becomes a copy, at the same
        address, and the slot is mapped elsewhere.

        Args:
            lane: Of the batch that has come.
            newest: Its number.
        """
        self._let_go(self._held[lane], newest)

    def _let_go(self, row: list[weakref.ref[Any]], newest: int) -> None:
        for one in list(row):
            slot = one()
            if slot is None or newest - slot.lease.seq < self._old:
                continue
            address = ctypes.addressof(slot)
            data = ctypes.string_at(address, slot.used)
            moved = Part(self.memory, slot.lease.slot * self._stride, self._stride)
            self._own(address)
            ctypes.memmove(address, data, len(data))
            self._moved[slot.lease.slot] = moved
            row.remove(one)
            del slot.lease

    def let_all_go(self) -> None:
        """Gives back all batches: what somebody keeps of them becomes a copy."""
        for row in self._held:
            self._let_go(row, 1 << 62)

    def _own(self, address: int) -> None:
        """Nothing is shared there any more."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED | _UNRESERVED
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        _libc.mmap(address, self._stride, protection, flags, -1, 0)

    def held(self) -> list[Any]:
        """Regions of the batches that somebody has."""
        return [slot for row in self._held for one in row if (slot := one()) is not None]

    def become_copy(self) -> None:
        """In a fork of the trainer: what is held is copied, and nothing is shared any more."""
        slots = self.held()
        kept = [ctypes.string_at(ctypes.addressof(slot), slot.used) for slot in slots]
        for slot in range(self.memory.size // self._stride):
            self._own(self.address(slot))
        for slot, data in zip(slots, kept):
            ctypes.memmove(ctypes.addressof(slot), data, len(data))


# ---- what a trainer has written into a batch that is not its own alone

_pagemap: tuple[int, int] = (0, -1)  # process, descriptor


def _drop_changes(slot: Any) -> None:
    """Before the slot goes back: the next batch is to be seen there, and no changes of this one."""
    address = ctypes.addressof(slot)
    pages = -(-slot.used // _PAGE)
    if _has_changes(address // _PAGE, pages):
        _libc.madvise(address, pages * _PAGE, _DONTNEED)


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
