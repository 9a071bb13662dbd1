"""How a batch of any structure lies in memory that a trainer shares with its workers.

Batches lie in one file in memory, a region for each slot of the feed. A worker writes the arrays of
a batch one after the other, each at a multiple of 64 bytes, and behind them the structure: a pickle
in which an array is a place. The trainer makes arrays of these places, without copying them. Small
arrays are copied all the same, so that a program that keeps the labels of an epoch does not keep
its images.
"""

from __future__ import annotations

import copyreg
import ctypes
import io
import mmap
import os
import pickle
import resource
import struct
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

from ..errors import FeedMemoryError

_ALIGN = 64
_UNRESERVED = getattr(mmap, "MAP_NORESERVE", 0x4000)
_SMALL_BYTES = 4096  # copied, so that it keeps nothing else
_ENTRY_BYTES = 64
_SPILT_BYTES = 512  # of a path
TABLE_MAGIC = 0x3130_7365_7571_6572  # of a table of requests
TABLE_HEAD = struct.Struct("<3Q")
_DTYPES = [
    *(torch.float32, torch.int64, torch.uint8, torch.float64, torch.int32, torch.bool),
    *(torch.float16, torch.bfloat16, torch.int16, torch.int8, torch.complex64, torch.complex128),
]
_DTYPES += [
    getattr(torch, name)
    for name in ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex32")
    if hasattr(torch, name)
]
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


class Memory:
    """A file in memory, mapped: as long as somebody refers to the mapping.

    It can be pickled while a process is started (`multiprocessing`), and is the same memory there.
    """

    private = False

    def __init__(self, name: str, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | getattr(os, "MFD_ALLOW_SEALING", 2))
        try:
            os.ftruncate(self.fd, size)
            self._map()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(cls, fd: int, size: int) -> Memory:
        """The memory of another process's Memory, whose descriptor has come from there."""
        memory = cls.__new__(cls)
        memory.size, memory.fd = size, fd
        memory._map()
        return memory

    def _map(self) -> None:
        # Unreserved: pages that nobody has written take no memory.
        flags = mmap.MAP_SHARED | _UNRESERVED
        self.map = mmap.mmap(self.fd, self.size, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def map_anew(self) -> None:
        """For a process that was forked: what it has inherited of the mapping may be its own."""
        self._map()

    def close(self) -> None:
        """The descriptor goes; the mapping stays as long as something refers to it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size, "fd": reduction.DupFd(self.fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.size = state["size"]
        self.fd = state["fd"].detach()
        self._map()


class PrivateMemory:
    """The memory of another process's Memory, mapped so that what is written here stays here."""

    private = True

    def __init__(self, fd: int, size: int) -> None:
        """`fd` stays the caller's."""
        self.fd = os.dup(fd)
        self.size = size
        flags = mmap.MAP_PRIVATE | _UNRESERVED
        try:
            self.map = mmap.mmap(self.fd, size, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:
            os.close(self.fd)
            raise
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    close = Memory.close
    __del__ = Memory.__del__


class Part:
    """A part of a Memory, mapped once more; as long as somebody refers to the mapping."""

    def __init__(self, memory: Memory | PrivateMemory, offset: int, size: int) -> None:
        flags = (mmap.MAP_PRIVATE if memory.private else mmap.MAP_SHARED) | _UNRESERVED
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        self.map = mmap.mmap(memory.fd, size, flags, protection, offset=offset)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


def bulk(slots: int) -> tuple[Memory, int]:
    """Memory for so many batches, and how much each may take, which is about the machine's memory.

    Raises:
        FeedMemoryError: Not even a little can be mapped.
    """
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    stride = 1 << (pages - 1).bit_length()
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        stride = min(stride, 1 << (max(limit // (8 * slots), 1).bit_length() - 1))
    least = 1 << 20
    while stride >= least:
        try:
            return Memory("ringfeed-batches", slots * stride), stride
        except (OSError, ValueError, OverflowError):
            stride //= 4
    raise FeedMemoryError(
        f"no address space for {slots} batches of {least} bytes: raise the limit (ulimit -v), or "
        "lower prefetch_factor"
    )


class TooLarge(RuntimeError):
    """A batch exceeds what the address space allows."""


class Writer:
    """A worker's side: writes one batch after the other, each into the region of a slot."""

    def __init__(self, memory: Memory, stride: int) -> None:
        self._memory = memory
        self._stride = stride
        self._whole = (ctypes.c_char * memory.size).from_address(memory.address)
        self._reserved: dict[int, int] = {}
        self._base = 0
        self._used = 0
        self._slot = 0
        self._shipped: dict[int, list[tuple[int, int, int]]] = {}  # by storage: begin, end, place
        outer = self

        class BatchPickler(pickle.Pickler):
            dispatch_table = copyreg.dispatch_table | {
                torch.Tensor: outer._reduced,
                np.ndarray: outer._array,
            }

        # What `multiprocessing` can pickle beside that (locks, connections) makes no sense here,
        # but what users have registered there does.
        extra = {
            kind: function
            for kind, function in getattr(ForkingPickler, "_extra_reducers", {}).items()
            if kind.__module__.split(".")[0] not in ("torch", "multiprocessing", "builtins")
        }
        BatchPickler.dispatch_table.update(extra)
        self._pickler = BatchPickler

    def begin(self, slot: int) -> None:
        """The next batch goes into this slot, which no other batch has."""
        self._slot = slot
        self._base = slot * self._stride
        self._used = 0
        self._shipped.clear()

    @property
    def used(self) -> int:
        """Bytes of the batch until now."""
        return self._used

    def _room(self, size: int) -> int:
        """Offset in the slot of so many bytes, which have memory."""
        at = self._used
        end = at + size
        if end > self._stride:
            raise TooLarge(
                f"a batch of more than {self._stride} bytes does not fit: lower batch_size"
                + ("" if self._stride > 1 << 34 else ", or raise the address space (ulimit -v)")
            )
        if end > self._reserved.get(self._slot, 0):
            self._reserve(end)
        self._used = (end + _ALIGN - 1) & -_ALIGN
        return at

    def _reserve(self, end: int) -> None:
        # With room above, so that batches that differ a little do not ask each time.
        rather = min((end + end // 8 + 0xFFFF) & ~0xFFFF, self._stride)
        for size in (rather, end):
            try:
                os.posix_fallocate(self._memory.fd, self._base, size)
                self._reserved[self._slot] = size
                return
            except OSError as error:
                why = error
        raise MemoryError(f"no memory for a batch of {end} bytes: {why}")

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in the slot, not initialised; ordinary memory if it has no elements."""
        count = 1
        for length in shape:
            count *= length
        if count == 0 or dtype not in _CODES:
            return torch.empty(shape, dtype=dtype)
        at = self._base + self._room(count * dtype.itemsize)
        flat = torch.frombuffer(self._whole, dtype=dtype, count=count, offset=at)
        return flat.view(shape)

    def _reduced(self, tensor: torch.Tensor) -> Any:
        if tensor.requires_grad and not tensor.is_leaf:
            reduce_tensor(tensor)  # PyTorch's, which refuses it with the reason
        if (
            tensor.layout is not torch.strided
            or tensor.device.type != "cpu"
            or tensor.requires_grad
            or tensor.is_quantized
            or tensor.is_nested
            or tensor.is_conj()
            or tensor.is_neg()
            or tensor.dtype not in _CODES
            or tensor.numel() == 0
            or tensor.__dict__
        ):
            return tensor.__reduce_ex__(5)
        dtype, shape = tensor.dtype, tuple(int(length) for length in tensor.shape)
        inside = tensor.data_ptr() - self._memory.address - self._base
        if tensor.is_contiguous():
            size = tensor.numel() * dtype.itemsize
            if 0 <= inside and inside + size <= self._used:
                return _tensor, (inside, _CODES[dtype], shape)
        strides = tuple(int(stride) for stride in tensor.stride())
        # What the elements span, from the first to the last; strides are never negative.
        span = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides))
        first = int(tensor.storage_offset()) * dtype.itemsize
        end = first + span * dtype.itemsize
        shipped = self._shipped.setdefault(tensor.untyped_storage().data_ptr(), [])
        for begin, behind, at in shipped:
            if begin <= first and end <= behind and (first - begin) % dtype.itemsize == 0:
                # Two tensors over the same elements stay so.
                return _part, (at, first - begin, _CODES[dtype], shape, strides)
        at = self._room(span * dtype.itemsize)
        flat = torch.frombuffer(self._whole, dtype=dtype, count=span, offset=self._base + at)
        flat.copy_(tensor.as_strided((span,), (1,)))
        shipped.append((first, end, at))
        if tensor.is_contiguous():
            return _tensor, (at, _CODES[dtype], shape)
        return _strided, (at, _CODES[dtype], shape, strides, span)

    @staticmethod
    def _array(array: np.ndarray[Any, Any]) -> Any:
        # Of another byte order: it is swapped when it is read, as elsewhere.
        return array.__reduce_ex__(5) if array.dtype.isnative else array.__reduce__()

    def write(self, thing: Any) -> tuple[int, int, int, int]:
        """Writes the batch; returns the places of its structure and of the table of its buffers.

        (offset, bytes) of the pickle, (offset, count) of the table, both in the slot.
        """
        buffers: list[tuple[int, int]] = []

        def aside(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _SMALL_BYTES:
                return True
            at = self._room(raw.nbytes)
            self._copy(at, raw)
            buffers.append((at, raw.nbytes))
            return False

        file = io.BytesIO()
        self._pickler(file, 5, buffer_callback=aside).dump(thing)
        structure = file.getbuffer()
        at = self._bytes(structure)
        table = struct.pack(f"<{2 * len(buffers)}Q", *(n for pair in buffers for n in pair))
        return at, structure.nbytes, self._bytes(memoryview(table)), len(buffers)

    def _copy(self, at: int, raw: memoryview) -> None:
        begin = self._base + at
        memoryview(self._memory.map)[begin : begin + raw.nbytes] = raw.cast("B")

    def _bytes(self, raw: memoryview) -> int:
        at = self._room(raw.nbytes)
        self._copy(at, raw)
        return at

    def write_bytes(self, raw: bytes) -> int:
        """Writes bytes; returns their offset in the slot."""
        return self._bytes(memoryview(raw))


def _tensor(at: int, code: int, shape: tuple[int, ...]) -> torch.Tensor:
    raise pickle.UnpicklingError("a tensor of a batch is made by its reader")


def _strided(at: int, code: int, shape: Any, strides: Any, span: int) -> torch.Tensor:
    raise pickle.UnpicklingError("a tensor of a batch is made by its reader")


def _part(at: int, skip: int, code: int, shape: Any, strides: Any) -> torch.Tensor:
    raise pickle.UnpicklingError("a tensor of a batch is made by its reader")


class _Maker:
    """Makes tensors of places in a slot. Not the unpickler itself, which keeps what it calls."""

    def __init__(self, slot: Any, copies: bool) -> None:
        self._slot = slot
        self._copies = copies
        self._made: dict[int, torch.Tensor] = {}

    def _flat(self, at: int, code: int, count: int) -> torch.Tensor:
        dtype = _DTYPES[code]
        flat = torch.frombuffer(self._slot, dtype=dtype, count=count, offset=at)
        if self._copies or count * dtype.itemsize < _SMALL_BYTES:
            flat = flat.clone()
        self._made[at] = flat
        return flat

    def _tensor(self, at: int, code: int, shape: tuple[int, ...]) -> torch.Tensor:
        count = 1
        for length in shape:
            count *= length
        return self._flat(at, code, count).view(shape)

    def _strided(self, at: int, code: int, shape: Any, strides: Any, span: int) -> torch.Tensor:
        return self._flat(at, code, span).as_strided(shape, strides)

    def _part(self, at: int, skip: int, code: int, shape: Any, strides: Any) -> torch.Tensor:
        dtype = _DTYPES[code]
        storage = self._made[at].untyped_storage()
        part = torch.empty(0, dtype=dtype)
        return part.set_(storage, skip // dtype.itemsize, shape, strides)


class _Reader(pickle.Unpickler):
    def __init__(self, structure: bytes, maker: _Maker, buffers: list[Any]) -> None:
        super().__init__(io.BytesIO(structure), buffers=buffers)
        self._maker = maker

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__:
            return getattr(self._maker, name)
        return super().find_class(module, name)


def read(slot: Any, structure: tuple[int, int], table: tuple[int, int], copies: bool) -> Any:
    """What a Writer wrote, with arrays in the same memory.

    Args:
        slot: The slot's memory, an object that may be written and lives as long as an array.
        structure, table: What Writer.write() returned.
        copies: All arrays are ordinary memory.
    """
    whole = memoryview(slot)
    at, size = structure
    places = struct.unpack_from(f"<{2 * table[1]}Q", whole, table[0])
    buffers: list[Any] = []
    for i in range(table[1]):
        part = whole[places[2 * i] : places[2 * i] + places[2 * i + 1]]
        buffers.append(bytearray(part) if copies else part)
    return _Reader(bytes(whole[at : at + size]), _Maker(slot, copies), buffers).load()


class Requests:
    """The trainer's side of a table of requests (shm/include/ringfeed/shm/requests.h).

    Requests are let go in the order in which they were made.
    """

    def __init__(self, entries: int, heap_bytes: int, extra_bytes: int) -> None:
        head = 64 + _ENTRY_BYTES * entries
        # Two words first: which feed is it? (_job.Bond)
        self._extra = head + 2 * heap_bytes + 16
        self.memory = Memory("ringfeed-requests", self._extra + extra_bytes)
        TABLE_HEAD.pack_into(self.memory.map, 0, TABLE_MAGIC, entries, self.memory.size)
        self._entries = entries
        self._first = head
        self._heap = heap_bytes
        self._head = 0  # bytes that have ever been taken, with what was left free at the end
        self._tail = 0  # of these, let go
        self._ends: dict[int, int] = {}  # by number: where the heap was behind it
        self._gone: set[int] = set()

    def extra(self, number: int) -> int:
        """A word behind the table that worker `number` writes: its process number."""
        return int(struct.unpack_from("<Q", self.memory.map, self._extra + 8 * number)[0])

    def room(self, number: int, size: int, spilt: bool = False) -> int | None:
        """Offset for the bytes of a request; None: there is no room now.

        `spilt`: it lies elsewhere, and these are the few bytes that say where: a place of its own.
        """
        if spilt:
            return self._first + self._heap + number % (self._heap // _SPILT_BYTES) * _SPILT_BYTES
        size = (size + _ALIGN - 1) & -_ALIGN
        at = self._head % self._heap
        begin = self._head if at + size <= self._heap else self._head + self._heap - at
        if begin + size - self._tail > self._heap:
            return None
        self._head = begin + size
        self._ends[number] = self._head
        return self._first + begin % self._heap

    def oldest(self, worker: int, workers: int) -> tuple[int, int, bytes | None]:
        """The oldest request of a worker whose batch is not here, as (number, place, bytes).

        0: there is none with a sample at hand. Place: 1 + that of the sample, as the worker says.
        """
        for number in self._ends:
            if (number - 1) % workers != worker or number in self._gone:
                continue
            at = 64 + _ENTRY_BYTES * (number & (self._entries - 1))
            _, offset, size, _, place = struct.unpack_from("<5Q", self.memory.map, at)
            if place == 0:
                return 0, 0, None
            return number, place, bytes(self.memory.map[offset : offset + size])
        return 0, 0, None

    def let_go(self, number: int) -> None:
        """Its batch is here."""
        if number not in self._ends:
            return
        self._gone.add(number)
        while self._ends:
            oldest = next(iter(self._ends))
            if oldest not in self._gone:
                return
            self._gone.remove(oldest)
            self._tail = self._ends.pop(oldest)
