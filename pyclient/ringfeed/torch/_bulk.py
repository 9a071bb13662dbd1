"""The memory of batches: a file in memory with a region for each, mapped as far as batches go.

Regions lie far apart, so that none can be too small: what nobody has written takes no memory, and
what nobody has mapped no address space. A mapping that is too small for a batch is followed by a
larger one of the same region, elsewhere; whoever still uses the first one keeps it.

In a feed that trainers share, the region of a batch is that of its slot. In a loader's own feed a
worker takes any of its lane's regions that is free, and the trainer has it until nobody refers to
the batch any more. So what a loop keeps is neither copied nor in a worker's way. Whose a region is
says a word of the table at the beginning of the file:

    EMPTY     the worker's; it has no memory
    FREE      the worker's; it has the memory of its last batch
    FREE + s  batch s lies there, or is being made: from its arrival on the trainer's, who writes
              EMPTY, FREE or GIVEN when it is no longer used
    GIVEN     the trainer's, who lends its memory to a lane that is to make a batch

A worker that has died has left FREE + s where it was making batch s, and its successor, which makes
the same batch, goes on with the same region.

Of large batches no region is FREE. What the trainer gets back is lent to a lane that has a request
for which it has no region yet, whosever region it is. So there is no more memory than for the
batches that are asked for and those that are held, and for one more, which waits for a request.
Behind the words of regions each lane has these:

    found  the newest batch that needs no region any more   by the worker
    ends   regions of the lane that it has ever used        by the worker
    lent   LENT words: a region, plus 1, and its pages      by the trainer; by the worker 0
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import mmap
import os
import resource
import threading
from multiprocessing import reduction
from typing import Any

import numpy as np

from ..errors import FeedMemoryError

_REGION_BYTES_MAX = 1 << 46  # 64 TiB: more memory than a machine has
_FILE_BYTES_MAX = 1 << 62
MAPPED_BYTES_MIN = 1 << 16
_WORKER_BYTES = 64 << 20  # of address space, beside the room of its state
_UNRESERVED = 0x4000  # flags of mmap that Python does not name
FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value
_DONTNEED, _REMOVE = 4, 9  # of madvise
_HOLE = 3  # of fallocate: a hole, and the size stays
# Of fcntl, which does not name them in every build: nobody changes the size, nor adds to this.
_ADD_SEALS, _SIZE_SEALS = 1033, 1 | 2 | 4
EMPTY, FREE, GIVEN = 0, 1, 1 << 63
_LANE_REGIONS = 4096
LENT = 8
_ROWS_MAX = 1024  # of pwritev
# Of batches that wait for the trainer. If they may be more than that, workers do not keep them
# mapped: what a process has mapped is what it is seen to use, and killed for.
_MAPPED_BYTES = 80 << 20

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
libc.pwritev.restype = ctypes.c_ssize_t
libc.pwritev.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong]


def map_pages(address: int, size: int, flags: int, fd: int, offset: int) -> None:
    """mmap(), of what is read and written.

    Raises:
        OSError: It cannot be mapped.
    """
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    found = libc.mmap(address, size, protection, flags | _UNRESERVED, fd, offset)
    if found == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _mapped(size: int, flags: int, fd: int, offset: int) -> Any:
    # Unmapped when the last reference goes, and not by a finalizer: a garbage collection runs those
    # of a cycle in any order. mmap.mmap() of the file itself would keep a descriptor.
    place = mmap.mmap(-1, size, mmap.MAP_PRIVATE | _UNRESERVED)
    whole = (ctypes.c_char * size).from_buffer(place)
    map_pages(ctypes.addressof(whole), size, flags | FIXED, fd, offset)
    return whole


@functools.cache
def slot_of(size: int, end: Any) -> Any:
    """A type of so many bytes, for one batch in a mapping; `end` is called when it is given up."""
    return type("Slot", (ctypes.c_char * size,), {} if end is None else {"__del__": end})


def memory_file(name: str, size: int) -> int:
    """A descriptor of a file in memory of so many bytes, of which nothing is there yet.

    Its size stays, whoever opens it: what is mapped and lies behind the end is a bus error.

    Raises:
        FeedMemoryError: It may not be that large (ulimit -f).
        OSError: There is no descriptor.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | getattr(os, "MFD_ALLOW_SEALING", 2))
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        os.close(fd)
        raise FeedMemoryError(
            f"a file in memory of {size} bytes cannot be made ({error}): raise the size that a "
            "file may have (ulimit -f)"
        ) from None
    fcntl.fcntl(fd, _ADD_SEALS, _SIZE_SEALS)
    return fd


def opened_anew(fd: int, mode: int) -> int:
    """Another descriptor of the same file in memory, with a mode of its own."""
    return os.open(f"/proc/self/fd/{fd}", mode | os.O_CLOEXEC)


def empty(mapping: Any) -> None:
    """Gives its memory back to the system."""
    libc.madvise(ctypes.addressof(mapping), ctypes.sizeof(mapping), _REMOVE)


def leave(address: int, size: int) -> None:
    """Pages are mapped no more until they are touched; those of a file keep what is there."""
    libc.madvise(address, size, _DONTNEED)


def check_address_space() -> None:
    """Sees to it that workers, which have what this process has mapped, can begin at all.

    One that cannot is started again and again, for what is short may be there later. Under a limit
    nothing comes later.

    Raises:
        FeedMemoryError: The limit (ulimit -v) leaves too little.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    try:
        with open("/proc/self/statm", "rb") as statm:
            used = int(statm.read().split()[0]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return
    # A lane's state may grow to that (ringfeed/shm/arena.h); libraries and rings take the rest.
    needed = limit // 8 + _WORKER_BYTES
    if limit - used < needed:
        raise FeedMemoryError(
            f"{max(0, limit - used) >> 20} MiB of address space are left, and a worker takes "
            f"{needed >> 20}: raise the limit of {limit >> 20} MiB (ulimit -v)"
        )


def lent_word(region: int, size: int) -> int:
    """What stands among the lent of a lane: a region, of which so many bytes have memory."""
    return -(-size // mmap.PAGESIZE) << 32 | region + 1


def lent_region(word: int) -> int:
    """The region of such a word."""
    return (word & 0xFFFFFFFF) - 1


def lent_bytes(word: int) -> int:
    """Its bytes, with the rest of the last page."""
    return (word >> 32) * mmap.PAGESIZE


@functools.cache
def _table_of(regions: int, lanes: int) -> Any:
    word = ctypes.c_uint64
    fields = {
        "regions": word * regions,
        "found": word * lanes,
        "ends": word * lanes,
        "lent": (word * LENT) * lanes,
    }
    return type("Table", (ctypes.Structure,), {"_fields_": list(fields.items())})


class TooLarge(RuntimeError):
    """A batch exceeds what a region may have."""


class FileInMemory:
    """A file in memory, by its descriptor.

    It can be pickled while a process is started (`multiprocessing`), and is the same file there.
    """

    fd = -1

    def __init__(self, fd: int) -> None:
        self._closing = threading.RLock()  # a descriptor's number is soon another file's
        self.fd = fd

    def close(self) -> None:
        """The descriptor goes; what is mapped stays."""
        with self._closing:
            fd, self.fd = self.fd, -1
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        if self.fd >= 0:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_closing": None, "fd": reduction.DupFd(self.fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _closing=threading.RLock(), fd=state["fd"].detach())


class Bulk(FileInMemory):
    """The file of all regions."""

    def __init__(self, regions: int, lanes: int = 0, waiting: int = 0) -> None:
        """
        Args:
            regions: How many.
            lanes: Of a table of as many regions each, or of more if they cost nothing. 0: there is
                none.
            waiting: Batches that may be made before they are taken. 0: workers have them mapped,
                however large they are.
        Raises:
            FeedMemoryError: Files may not be large enough for them (ulimit -f).
        """
        room = _FILE_BYTES_MAX
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY:
            room = min(room, limit)
        elif lanes:
            regions = lanes * max(regions // lanes, _LANE_REGIONS)
        self.regions = regions
        self.lanes = lanes
        # Of a batch beyond which only its trainer has it mapped.
        self.large_bytes = _MAPPED_BYTES // waiting if waiting else _REGION_BYTES_MAX
        words = regions + (2 + LENT) * lanes
        self._first = -(-8 * words // mmap.PAGESIZE) * mmap.PAGESIZE if lanes else 0
        self.stride = min(_REGION_BYTES_MAX, max(0, room - self._first) // regions) & -mmap.PAGESIZE
        if self.stride == 0:
            raise FeedMemoryError(
                f"a file may have {limit} bytes, which is too little for {regions} batches: raise "
                "the limit (ulimit -f), or lower num_workers or prefetch_factor"
            )
        super().__init__(memory_file("ringfeed-batches", self._first + regions * self.stride))

    @classmethod
    def of(cls, fd: int, regions: int, stride: int) -> Bulk:
        """One without a table, of another process, whose descriptor has come from there."""
        bulk = cls.__new__(cls)
        bulk.regions, bulk.stride, bulk.lanes, bulk._first = regions, stride, 0, 0
        bulk.large_bytes = _REGION_BYTES_MAX
        FileInMemory.__init__(bulk, fd)
        return bulk

    def reopened(self, mode: int) -> Bulk:
        """The same one without a table, by a descriptor of that mode."""
        return Bulk.of(opened_anew(self.fd, mode), self.regions, self.stride)

    def _offset(self, region: int) -> int:
        return self._first + region * self.stride

    def table(self) -> Any:
        """The words of the table, as arrays that can be written: `regions`, and those of lanes."""
        whole = _mapped(self._first, mmap.MAP_SHARED, self.fd, 0)
        return _table_of(self.regions, self.lanes).from_buffer(whole)

    def map(self, region: int, size: int, *, private: bool = False) -> Any:
        """At least the first `size` bytes of a region, as long as somebody refers to them.

        Args:
            region: Its number.
            size: Bytes, of which none is touched here.
            private: What is written there stays in this process.
        Returns:
            An object with a buffer, which may be longer.
        Raises:
            MemoryError: There is no address space for it.
        """
        flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        # By powers of two: batches that differ in size are mapped few times.
        rather = min(self.stride, max(MAPPED_BYTES_MIN, 1 << (size - 1).bit_length()))
        for length in (rather, whole):
            try:
                return _mapped(length, flags, self.fd, self._offset(region))
            except OSError as error:
                why = error
        raise MemoryError(
            f"no address space for a batch of {size} bytes ({why}): raise the limit (ulimit -v), "
            "or lower batch_size"
        )

    def read(self, region: int, at: int, size: int) -> bytes:
        """A copy of some bytes of a region."""
        return os.pread(self.fd, size, self._offset(region) + at)

    def write(self, region: int, at: int, rows: list[int], size: int) -> None:
        """Writes one behind the other, without a mapping: nothing of the region is mapped for it.

        Args:
            at: Where in the region.
            rows: Their addresses.
            size: Bytes of each.
        Raises:
            OSError: There is no memory.
        """
        left = np.empty((len(rows), 2), np.uint64)
        left[:, 0], left[:, 1] = rows, size
        place = self._offset(region) + at
        while len(left):
            count = min(len(left), _ROWS_MAX)
            done = libc.pwritev(self.fd, left.ctypes.data, count, place)
            if done <= 0:
                error = ctypes.get_errno() if done < 0 else errno.ENOSPC
                if error == errno.EINTR:
                    continue
                raise OSError(error, os.strerror(error))
            place += done
            ends = np.cumsum(left[:count, 1])
            whole = int(np.searchsorted(ends, done, side="right"))
            left = left[whole:]
            if whole < count:  # of this one a part
                part = done - (int(ends[whole - 1]) if whole else 0)
                left[0, 0] += np.uint64(part)
                left[0, 1] -= np.uint64(part)

    def reserve(self, region: int, size: int) -> None:
        """Sees to it that the first bytes of a region have memory.

        Raises:
            OSError: There is none.
        """
        os.posix_fallocate(self.fd, self._offset(region), size)

    def empty(self, region: int, size: int = 0, *, first: int = 0) -> bool:
        """Gives memory of a region back to the system; False: the file is closed here.

        Args:
            size: Bytes; 0: all of them.
            first: Where they begin: a multiple of the page.
        """
        with self._closing:
            if self.fd < 0:
                return False
            size = size or self.stride - first
            libc.fallocate(self.fd, _HOLE, self._offset(region) + first, size)
            return True
