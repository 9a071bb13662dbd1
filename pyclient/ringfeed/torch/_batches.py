"""How a batch of any structure lies in memory that a trainer shares with its workers.

Batches lie in one file in memory, a region for each slot of the feed. A worker writes the arrays of
a batch one after the other, each at a multiple of 64 bytes, and behind them the structure: a pickle
in which an array is a place. The trainer makes arrays of these places, without copying them. Small
arrays are copied all the same, so that a program that keeps the labels of an epoch does not keep
its images.
"""

from __future__ import annotations

import bisect
import copyreg
import ctypes
import io
import math
import mmap
import operator
import os
import pickle
import resource
import struct
from collections import deque
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
TABLE_MAGIC = 0x3230_7365_7571_6572  # of a table of requests
TABLE_HEAD = struct.Struct("<4Q")
_WHOLE_BYTES = 65536  # a storage of views with gaps that goes as it is
_GAPS = 4  # a view that spans so many times its elements goes without the gaps
# Integers of the sizes that dtypes have, for copies of elements whatever they are.
_ALIKE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_STORAGES = (torch.UntypedStorage, torch.storage.TypedStorage)


class _Names(dict[torch.dtype, str]):
    """Names of torch's dtypes, of whatever version."""

    def __missing__(self, dtype: torch.dtype) -> str:
        name = self[dtype] = str(dtype).removeprefix("torch.")
        return name


_names = _Names()


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
        self._shipped: dict[int, _Shipped] = {}  # by storage
        table = _Reducers(self)
        self._pickler = type("BatchPickler", (pickle.Pickler,), {"dispatch_table": table})

    def begin(self, slot: int) -> None:
        """The next batch goes into this slot, which no other batch has."""
        self._slot = slot
        self._base = slot * self._stride
        self._used = 0

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
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        at = self._base + self._room(count * dtype.itemsize)
        flat = torch.frombuffer(self._whole, dtype=dtype, count=count, offset=at)
        return flat.view(shape)

    def plain(self, tensor: torch.Tensor) -> Any:
        """Of a tensor that is no subclass's: what it shows is written, and it is a place."""
        if tensor.requires_grad and not tensor.is_leaf:
            reduce_tensor(tensor)  # PyTorch's, which refuses it with the reason
        if (
            tensor.layout is not torch.strided
            or not tensor.is_cpu
            or tensor.requires_grad
            or (tensor.is_quantized and _has_quantizer(tensor))
            or tensor.is_nested
            or tensor.is_conj()
            or tensor.is_neg()
            or tensor.__dict__
        ):
            return self.whole(tensor)
        if tensor._is_zerotensor():
            tensor = tensor.clone()  # it has no memory
        dtype, shape, strides = tensor.dtype, tuple(tensor.shape), tensor.stride()
        size = tensor.nbytes
        dense = size > 0 and tensor.is_contiguous() and not tensor.is_quantized
        if dense and 1 in shape:
            dense = strides == _dense_strides(shape)
        if dense:
            inside = tensor.data_ptr() - self._memory.address - self._base
            if 0 <= inside and inside + size <= self._used:
                return _tensor, (inside, _names[dtype], shape)
        at, whole, skip, strides = self._shown(
            tensor.untyped_storage(), dtype, int(tensor.storage_offset()), shape, strides
        )
        if dense and whole == size:
            return _tensor, (at, _names[dtype], shape)
        return _view, (at, whole, skip, _names[dtype], shape, strides)

    def whole(self, tensor: torch.Tensor) -> Any:
        """Of a tensor with more than that: as it reduces itself, less the rest of its storage."""
        return self._without_rest(tensor.__reduce_ex__(5))

    def _without_rest(self, reduced: Any) -> Any:
        if type(reduced) is not tuple:
            return reduced
        if len(reduced) < 4 or not isinstance(reduced[0], _STORAGES):
            return tuple(map(self._without_rest, reduced))
        # What PyTorch's functions make a tensor of, whoever calls them.
        storage, offset, shape, strides, *more = reduced
        typed = isinstance(storage, torch.storage.TypedStorage)
        untyped = storage._untyped_storage if typed else storage
        dtype = storage.dtype if typed else next((n for n in more if type(n) is torch.dtype), None)
        if untyped.device.type != "cpu" or dtype is None:
            return reduced
        at, size, skip, strides = self._shown(untyped, dtype, offset, tuple(shape), tuple(strides))
        # With a type also where it had none: _rebuild_tensor_v3 wants one.
        part = _StoredPart(at, size, _names[dtype])
        return (part, skip // dtype.itemsize, shape, strides, *more)

    def stored(self, storage: Any) -> Any:
        """Of a storage, which is written once."""
        typed = isinstance(storage, torch.storage.TypedStorage)
        untyped = storage._untyped_storage if typed else storage
        if untyped.device.type != "cpu":
            return storage.__reduce_ex__(5)
        size = untyped.nbytes()
        at, *_ = self._shown(untyped, torch.uint8, 0, (size,), (1,))
        return _storage, (at, size, _names[storage.dtype] if typed else "")

    def _shown(
        self, storage: Any, dtype: torch.dtype, offset: int, shape: Any, strides: Any
    ) -> tuple[int, int, int, Any]:
        """Writes what a view shows, if that is not there: place, bytes, bytes before it, strides.

        The bytes are those of a part of the storage, in which the view may be.
        """
        if 0 in shape:
            return 0, 0, 0, strides
        each = dtype.itemsize
        # What the elements span, from the first to the last; strides are never negative.
        span = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides))
        first, size = offset * each, span * each
        shipped = self._shipped.get(storage._cdata)
        if shipped is None:
            shipped = self._shipped[storage._cdata] = _Shipped(storage)
        found = shipped.find(first, first + size, each)
        if found is not None:
            at, begin, end = found
            return at, end - begin, first - begin, strides
        if size > _SMALL_BYTES and span > (count := _elements(shape, strides)):
            whole = storage.nbytes()
            if whole <= (size + size // 4 if span <= _GAPS * count else _WHOLE_BYTES):
                return self._ship(shipped, 0, whole), whole, first, strides
            if span > _GAPS * count:
                # A column of a large matrix, which spans all of it.
                packed = _packed(shape, strides)
                key = (first, each, shape, strides)
                if key not in shipped.packed:
                    shipped.packed[key] = self._pack(storage, offset, each, shape, strides, packed)
                return shipped.packed[key], count * each, 0, packed
        return self._ship(shipped, first, first + size), size, 0, strides

    def _ship(self, shipped: _Shipped, begin: int, end: int) -> int:
        at = self._room(end - begin)
        place = self._memory.address + self._base + at
        ctypes.memmove(place, shipped.storage.data_ptr() + begin, end - begin)
        shipped.add(begin, end, at)
        return at

    def _pack(
        self, storage: Any, offset: int, each: int, shape: Any, strides: Any, packed: Any
    ) -> int:
        # Once what is expanded.
        shape = [length if stride else 1 for length, stride in zip(shape, packed)]
        count = math.prod(shape)
        at = self._room(count * each)
        alike = _ALIKE[each]
        out = torch.frombuffer(self._whole, dtype=alike, count=count, offset=self._base + at)
        source = torch.empty(0, dtype=alike).set_(storage, offset, shape, strides)
        out.as_strided(shape, packed).copy_(source)
        return at

    def array(self, array: np.ndarray[Any, Any]) -> Any:
        """Of an array: as in PyTorch's workers it may be written, whatever it was."""
        kind, dtype = type(array), array.dtype
        if (
            array.nbytes < _SMALL_BYTES
            or dtype.hasobject
            # Of another byte order: it is swapped when it is read, as elsewhere.
            or not dtype.isnative
            or kind.__reduce_ex__ is not np.ndarray.__reduce_ex__
            or kind.__reduce__ is not np.ndarray.__reduce__
            or kind.__setstate__ is not np.ndarray.__setstate__
            or (dtype.names is not None and not array.flags.forc)  # with bytes between fields
        ):
            return array.__reduce_ex__(4)
        at = self._room(array.nbytes)
        order = "F" if array.flags.fnc else "C"
        if array.flags.forc:
            place = self._memory.address + self._base + at
            ctypes.memmove(place, array.ctypes.data, array.nbytes)
        else:
            whole: Any = self._whole
            np.ndarray(array.shape, dtype, whole, self._base + at)[...] = array
        return _array, (kind, at, dtype, array.shape, order)

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
        try:
            self._pickler(file, 5, buffer_callback=aside).dump(thing)
        finally:
            self._shipped.clear()
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


class _Shipped:
    """Which bytes of a storage are written, and where."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage  # no other one has its place meanwhile
        self.packed: dict[Any, int] = {}  # by what a view shows, place of it without gaps
        # Sorted, none inside of another.
        self._begins: list[int] = []
        self._parts: list[tuple[int, int]] = []  # end, place

    def find(self, begin: int, end: int, each: int) -> tuple[int, int, int] | None:
        """Place of the part in which these bytes are, its begin and end."""
        i = bisect.bisect_right(self._begins, begin) - 1
        # Two tensors over the same elements stay so.
        if i < 0 or end > self._parts[i][0] or (begin - self._begins[i]) % each:
            return None
        return self._parts[i][1], self._begins[i], self._parts[i][0]

    def add(self, begin: int, end: int, at: int) -> None:
        i = j = bisect.bisect_left(self._begins, begin)
        if i > 0 and self._parts[i - 1][0] >= end:
            return
        while j < len(self._parts) and self._parts[j][0] <= end:
            j += 1
        self._begins[i:j] = [begin]
        self._parts[i:j] = [(end, at)]


def _has_quantizer(tensor: torch.Tensor) -> bool:
    try:
        tensor.qscheme()
        return True
    except RuntimeError:
        return False  # as torch.empty() makes them


def _dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * shape[i]
    return tuple(strides)


def _elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements a view has, once what is expanded."""
    return math.prod(length for length, stride in zip(shape, strides) if stride)


def _packed(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of the same order without gaps."""
    packed = list(strides)
    count = 1
    for i in sorted(range(len(shape)), key=lambda i: (strides[i], -i)):
        if strides[i] and shape[i] > 1:
            packed[i] = count
            count *= shape[i]
    return tuple(packed)


class _Reducers(dict[type, Any]):
    """By class, how a batch's pickle has its objects: the dispatch table of a pickler."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self[torch.Tensor] = writer.plain
        self._of_batches = (
            (torch.Tensor, writer.whole),
            (np.ndarray, writer.array),
            (_STORAGES, writer.stored),
        )

    def __missing__(self, kind: type) -> Any:
        if issubclass(kind, type):
            raise KeyError(kind)  # of a class the name
        function = self[kind] = self._registered(kind) or next(
            (one for of, one in self._of_batches if issubclass(kind, of)), _default
        )
        return function

    @staticmethod
    def _registered(kind: type) -> Any:
        # What `multiprocessing` can pickle beside that (locks, connections) makes no sense here,
        # but what users have registered there does.
        if kind.__module__.split(".")[0] not in ("torch", "multiprocessing", "builtins"):
            function = getattr(ForkingPickler, "_extra_reducers", {}).get(kind)
            if function is not None:
                return function
        return copyreg.dispatch_table.get(kind)


_default = operator.methodcaller("__reduce_ex__", 5)


class _StoredPart:
    """A part of a storage, in place of the storage."""

    def __init__(self, *place: Any) -> None:
        self._place = place

    def __reduce__(self) -> Any:
        return _storage, self._place


# Names for what only a reader makes.


def _tensor(at: int, name: str, shape: Any) -> torch.Tensor:
    raise pickle.UnpicklingError("a tensor of a batch is made by its reader")


def _view(at: int, size: int, skip: int, name: str, shape: Any, strides: Any) -> torch.Tensor:
    raise pickle.UnpicklingError("a tensor of a batch is made by its reader")


def _storage(at: int, size: int, name: str) -> Any:
    raise pickle.UnpicklingError("a storage of a batch is made by its reader")


def _array(kind: Any, at: int, dtype: Any, shape: Any, order: Any) -> Any:
    raise pickle.UnpicklingError("an array of a batch is made by its reader")


class _Maker:
    """Makes tensors of places in a slot. Not the unpickler itself, which keeps what it calls."""

    def __init__(self, slot: Any, copies: bool) -> None:
        self._slot = slot
        self._address = ctypes.addressof(slot)
        self._copies = copies
        self._made: dict[int, torch.Tensor] = {}  # by place

    def _flat(self, at: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        size = count * dtype.itemsize
        if self._copies or size < _SMALL_BYTES:
            flat = torch.empty(count, dtype=dtype)
            ctypes.memmove(flat.data_ptr(), self._address + at, size)
        else:
            flat = torch.frombuffer(self._slot, dtype=dtype, count=count, offset=at)
        self._made[at] = flat
        return flat

    def _stored(self, at: int, size: int) -> Any:
        if size == 0:
            return torch.UntypedStorage(0)
        flat = self._made.get(at)
        if flat is None or flat.nbytes < size:
            flat = self._flat(at, size, torch.uint8)
        return flat.untyped_storage()

    def _tensor(self, at: int, name: str, shape: Any) -> torch.Tensor:
        dtype = getattr(torch, name)
        count = math.prod(shape)
        if at in self._made:
            storage = self._stored(at, count * dtype.itemsize)
            return torch.empty(0, dtype=dtype).set_(storage, 0, shape, _dense_strides(shape))
        return self._flat(at, count, dtype).view(shape)

    def _view(
        self, at: int, size: int, skip: int, name: str, shape: Any, strides: Any
    ) -> torch.Tensor:
        dtype = getattr(torch, name)
        view = torch.empty(0, dtype=dtype)
        return view.set_(self._stored(at, size), skip // dtype.itemsize, shape, strides)

    def _storage(self, at: int, size: int, name: str) -> Any:
        storage = self._stored(at, size)
        if not name:
            return storage
        dtype = getattr(torch, name)
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

    def _array(self, kind: Any, at: int, dtype: Any, shape: Any, order: Any) -> Any:
        if not self._copies:
            return np.ndarray.__new__(kind, shape, dtype, self._slot, at, order=order)
        array = np.ndarray.__new__(kind, shape, dtype, order=order)
        ctypes.memmove(array.ctypes.data, self._address + at, array.nbytes)
        return array


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

    Each worker has entries and memory of its own, and its requests are let go in the order in which
    they were made. So none of them waits for what another worker takes long for.
    """

    def __init__(self, workers: int, entries: int, heap_bytes: int, extra_bytes: int) -> None:
        """
        Args:
            workers: How many there are.
            entries: Requests of a worker that may be under way.
            heap_bytes: Memory for the bytes of these.
            extra_bytes: Behind the table: the workers' own words.
        """
        self._workers = workers
        self._entries = entries
        self._heap = heap_bytes
        self._heaps = 64 + _ENTRY_BYTES * workers * entries
        self._spilt = self._heaps + workers * heap_bytes
        # Two words first: which feed is it? (_job.Bond)
        self._extra = self._spilt + workers * entries * _SPILT_BYTES + 16
        self.memory = Memory("ringfeed-requests", self._extra + extra_bytes)
        head = (TABLE_MAGIC, workers * entries, self.memory.size, workers)
        TABLE_HEAD.pack_into(self.memory.map, 0, *head)
        # Of each worker: bytes of its memory that have ever been taken, with what was left free at
        # the end, and how many of these have been let go.
        self._head = [0] * workers
        self._tail = [0] * workers
        # Its requests under way: number, and where its memory was taken up to.
        self._ends: list[deque[tuple[int, int]]] = [deque() for _ in range(workers)]

    def extra(self, number: int) -> int:
        """A word behind the table that worker `number` writes: its process number."""
        return int(struct.unpack_from("<Q", self.memory.map, self._extra + 8 * number)[0])

    def _entry(self, number: int) -> int:
        """Which entry of all a request has."""
        turn, worker = divmod(number - 1, self._workers)
        return worker * self._entries + turn % self._entries

    def room(self, number: int, size: int, spilt: bool = False) -> int | None:
        """Offset for the bytes of a request; None: there is no room now.

        `spilt`: it lies elsewhere, and these are the few bytes that say where: a place of its own.
        """
        worker = (number - 1) % self._workers
        if spilt:
            self._ends[worker].append((number, self._head[worker]))
            return self._spilt + self._entry(number) * _SPILT_BYTES
        head, heap = self._head[worker], self._heap
        size = (size + _ALIGN - 1) & -_ALIGN
        at = head % heap
        begin = head if at + size <= heap else head + heap - at
        if begin + size - self._tail[worker] > heap:
            return None
        self._head[worker] = begin + size
        self._ends[worker].append((number, begin + size))
        return self._heaps + worker * heap + begin % heap

    def oldest(self, worker: int) -> tuple[int, int, bytes | None]:
        """The oldest request of a worker whose batch is not here, as (number, place, bytes).

        0: there is none with a sample at hand. Place: 1 + that of the sample, as the worker says.
        """
        if not self._ends[worker]:
            return 0, 0, None
        number = self._ends[worker][0][0]
        at = 64 + _ENTRY_BYTES * self._entry(number)
        _, offset, size, _, place = struct.unpack_from("<5Q", self.memory.map, at)
        if place == 0:
            return 0, 0, None
        return number, place, bytes(self.memory.map[offset : offset + size])

    def let_go(self, number: int) -> None:
        """Its batch is here, and so are those of all requests before it of the same worker."""
        worker = (number - 1) % self._workers
        ends = self._ends[worker]
        while ends and ends[0][0] <= number:
            self._tail[worker] = ends.popleft()[1]
