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
import struct
from collections import deque
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

from ._bulk import (
    EMPTY,
    FREE,
    GIVEN,
    Bulk,
    FileInMemory,
    TooLarge,
    leave,
    lent_bytes,
    lent_region,
    memory_file,
    opened_anew,
)

_ALIGN = 64
_UNRESERVED = getattr(mmap, "MAP_NORESERVE", 0x4000)
_MORE_BYTES_MAX = 1 << 20
_SMALL_BYTES = 4096  # copied, so that it keeps nothing else
_NOTHING = (ctypes.c_char * 0)()
_BY_FILE_BYTES = 1 << 16  # of what is written without a mapping
_PAST_CACHES_BYTES = 4 << 20  # of a tensor that no cache has to hold until it is read
_MAPPED_MAX = 32  # regions that a worker has mapped
_IDLE = 16  # batches after which a region that is free is emptied
_ENTRY_BYTES = 64
_SPILT_BYTES = 512  # of a path
TABLE_MAGIC = 0x3230_7365_7571_6572  # of a table of requests
TABLE_HEAD = struct.Struct("<4Q")
_PLAIN_BYTES = 1 << 20  # of a structure that is read by itself
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


class Memory(FileInMemory):
    """A file in memory, mapped: as long as somebody refers to the mapping."""

    def __init__(self, name: str, size: int) -> None:
        self.size = size
        super().__init__(memory_file(name, size))
        try:
            self._map()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(cls, fd: int, size: int) -> Memory:
        """The memory of another process's Memory, whose descriptor has come from there."""
        memory = cls.__new__(cls)
        memory.size = size
        FileInMemory.__init__(memory, fd)
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

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "map": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._map()


class GivenMemory(FileInMemory):
    """The memory of another process's Memory, to be read alone."""

    def __init__(self, fd: int, size: int) -> None:
        """`fd` has come from there, and is this object's from here on."""
        super().__init__(fd)
        self.size = size
        self.map = mmap.mmap(fd, size, mmap.MAP_SHARED | _UNRESERVED, mmap.PROT_READ)

    def writable(self) -> Memory:
        """The same, for whoever starts a process that writes there, or ends what is there."""
        return Memory.of(opened_anew(self.fd, os.O_RDWR), self.size)


class FreeRegions:
    """A worker's side of the table of regions (_bulk.py): which of its lane's are free."""

    def __init__(self, bulk: Bulk, lane: int) -> None:
        self._bulk = bulk
        self._lane = lane
        self._count = bulk.regions // bulk.lanes
        self._lane_first = lane * self._count
        table = bulk.table()
        self._table, self._found, self._ends = table.regions, table.found, table.ends
        self._lent = table.lent[lane]
        words = np.frombuffer(self._table, np.uint64)
        self._words = words[self._lane_first : self._lane_first + self._count]
        # What the predecessors of this process were making, or what a feed that is over has made:
        # the same batches are asked of this one.
        self._begun: dict[int, int] = {}
        for other in range(bulk.lanes):
            first = other * self._count
            for one in range(first, first + self._ends[other]):
                number = self._table[one] - FREE
                if self._table[one] != GIVEN and number > 0 and (number - 1) % bulk.lanes == lane:
                    self._begun[number] = one
        for place, lent in enumerate(self._lent):
            if lent and self._table[lent_region(lent)] != GIVEN:
                self._lent[place] = 0  # a predecessor has taken it
        self._used_at: dict[int, int] = {}  # by region: the batch
        self._batches = 0
        self._number = 0
        self.region = -1  # of the batch

    def begin(self, number: int, reserved: dict[int, int]) -> int:
        """The region that a batch has already, -1: none."""
        self._number = number
        self._batches += 1
        self.region = self._begun.pop(number, -1) if self._begun else -1
        if self._batches % _IDLE == 0:
            self._trim(reserved)
        return self.region

    def end(self) -> None:
        """The batch is made, with a region or without one."""
        self._found[self._lane] = self._number

    def find(self, reserved: dict[int, int]) -> int:
        """A region for the batch. What is known of its memory is forgotten if it has none now."""
        table, first = self._table, self._lane_first
        self._found[self._lane] = self._number
        for place, lent in enumerate(self._lent):
            if lent:
                self.region = lent_region(lent)
                table[self.region] = FREE + self._number
                self._lent[place] = 0
                reserved[self.region] = lent_bytes(lent)
                return self.region
        # The first ones are used again and again, so that few have memory; before others those that
        # have it.
        one = -1
        for some in range(min(_IDLE, self._count)):
            word = table[first + some]
            if word == FREE:
                one = some
                break
            if word == EMPTY and one < 0:
                one = some
        if one < 0:
            one = int((self._words <= FREE).argmax())
            if self._words[one] > FREE:
                raise MemoryError(f"all {self._count} regions for batches are in use")
        if table[first + one] == EMPTY:
            reserved.pop(first + one, None)
        if one >= self._ends[self._lane]:
            self._ends[self._lane] = one + 1
        table[first + one] = FREE + self._number
        self._used_at[one] = self._batches
        self.region = first + one
        return self.region

    def _trim(self, reserved: dict[int, int]) -> None:
        """Gives back the memory of regions that have been free for long."""
        used = self._words[: self._ends[self._lane]]
        for one in np.flatnonzero(used == FREE).tolist():
            if self._batches - self._used_at.get(one, 0) > _IDLE:
                region = self._lane_first + one
                self._bulk.empty(region, reserved.pop(region, self._bulk.stride))
                self._words[one] = EMPTY
                self._used_at.pop(one, None)


class Writer:
    """A worker's side: writes one batch after the other, each into a region."""

    def __init__(self, bulk: Bulk, lane: int = 0) -> None:
        """
        Args:
            bulk: Where the regions are; with a table, or each slot has one.
            lane: Whose regions of the table these are.
        """
        self._bulk = bulk
        self._free = FreeRegions(bulk, lane) if bulk.lanes else None
        self._mapped: dict[int, Any] = {}  # by region
        self._reserved: dict[int, int] = {}
        self._whole: Any = _NOTHING  # the region, as far as it is mapped
        self._before: list[Any] = []  # earlier mappings of it that have become too small
        self._used = 0
        self._by_file = False
        self._region = -1
        self._shipped: dict[int, _Shipped] = {}  # by storage
        self._chunks: list[Any] = []  # of the pickle that is being written
        self._buffers: list[tuple[int, int]] = []  # beside it
        self._shows = False  # has the structure places of tensors, if only of empty ones?
        table = _Reducers(self)
        self._kind = type("BatchPickler", (pickle.Pickler,), {"dispatch_table": table})
        self._pickler: Any = None

    def begin(self, slot: int, number: int) -> None:
        """The next batch: its slot, which no other batch has, and its number."""
        self._region = slot if self._free is None else self._free.begin(number, self._reserved)
        self._whole = self._mapped.get(self._region, _NOTHING)
        self._before.clear()
        # Batches are mostly as large as those before them.
        self._by_file = self._used > self._bulk.large_bytes
        self._used = 0

    def end(self) -> None:
        """The batch is made: nothing of a large one is mapped here any more, nor of new memory."""
        if self._by_file and self._used >= _BY_FILE_BYTES:
            for whole in (self._whole, *self._before):
                leave(ctypes.addressof(whole), len(whole))
        if self._free is not None:
            self._free.end()

    @property
    def region(self) -> int:
        """Of the batch; -1: it has none, or that of its slot."""
        return -1 if self._free is None else self._free.region

    @property
    def used(self) -> int:
        """Bytes of the batch until now."""
        return self._used

    def _room(self, size: int) -> int:
        """Offset in the region of so many bytes, which have memory."""
        at = self._used
        end = at + size
        if end > self._bulk.stride:
            raise TooLarge(
                f"a batch of more than {self._bulk.stride} bytes does not fit: lower batch_size, "
                "or raise the size that a file may have (ulimit -f)"
            )
        if self._region < 0:
            self._find()
        if end > self._reserved.get(self._region, 0):
            self._reserve(end)
        if end > len(self._whole):
            self._map(end)
        if end > self._bulk.large_bytes:
            self._by_file = True
        self._used = (end + _ALIGN - 1) & -_ALIGN
        return at

    def _find(self) -> None:
        assert self._free is not None
        self._region = self._free.find(self._reserved)
        # Memory that is new is not soon this worker's again if the loop keeps batches, and written
        # so it takes two thirds of the time.
        if self._region not in self._reserved:
            self._by_file = True
        # The newest one last: it is forgotten last.
        self._whole = self._mapped.pop(self._region, _NOTHING)
        if self._whole is not _NOTHING:
            self._mapped[self._region] = self._whole

    def _reserve(self, end: int) -> None:
        # With room above, so that batches that differ a little do not ask each time.
        more = min(end // 8, _MORE_BYTES_MAX)
        rather = min((end + more + 0xFFFF) & ~0xFFFF, self._bulk.stride)
        for size in (rather, end):
            try:
                self._bulk.reserve(self._region, size)
                self._reserved[self._region] = size
                return
            except OSError as error:
                why = error
        raise MemoryError(f"no memory for a batch of {end} bytes: {why}")

    def _map(self, end: int) -> None:
        # Tensors of this batch may lie in the mapping that has become too small.
        self._before.append(self._whole)
        self._mapped.pop(self._region, None)
        while len(self._mapped) >= _MAPPED_MAX:
            del self._mapped[next(iter(self._mapped))]
        try:
            self._whole = self._bulk.map(self._region, end)
        except MemoryError:
            if not self._mapped:
                raise
            self._mapped.clear()  # of other regions: they are mapped again when it is their turn
            self._whole = self._bulk.map(self._region, end)
        self._mapped[self._region] = self._whole

    def _place(self, address: int, size: int) -> int:
        """Where in the slot these bytes lie, if they were written for this batch; -1: elsewhere."""
        for whole in (self._whole, *self._before):
            inside = address - ctypes.addressof(whole)
            if 0 <= inside and inside + size <= min(self._used, len(whole)):
                return inside
        return -1

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in the slot, not initialised; ordinary memory if it has no elements."""
        count = 1
        for length in shape:
            count *= length
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        at = self._room(count * dtype.itemsize)
        flat = torch.frombuffer(self._whole, dtype=dtype, count=count, offset=at)
        return flat.view(shape)

    def gathers(self, rows: int, size: int) -> bool:
        """Are so many rows of so many bytes each copied by gather()?"""
        if self._by_file:
            return size >= _SMALL_BYTES and rows * size >= _BY_FILE_BYTES
        return rows * size >= _PAST_CACHES_BYTES

    def gather(
        self, to: torch.Tensor, rows: list[int], size: int, gather: Callable[..., None]
    ) -> None:
        """Copies rows into a tensor of empty().

        Args:
            rows: Their addresses.
            size: Bytes of each.
            gather: Does it in memory that is mapped.
        """
        if self._by_file:
            at = to.data_ptr() - ctypes.addressof(self._whole)
            self._bulk.write(self._region, at, rows, size)
        else:
            gather(to.data_ptr(), rows, size)

    def _put(self, at: int, address: int, size: int) -> None:
        if self._by_file and size >= _BY_FILE_BYTES:
            self._bulk.write(self._region, at, [address], size)
        else:
            ctypes.memmove(ctypes.addressof(self._whole) + at, address, size)

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
            inside = self._place(tensor.data_ptr(), size)
            if inside >= 0:
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
        self._shows = True
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
        self._put(at, shipped.storage.data_ptr() + begin, end - begin)
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
        out = torch.frombuffer(self._whole, dtype=alike, count=count, offset=at)
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
            self._put(at, array.ctypes.data, array.nbytes)
        else:
            whole: Any = self._whole
            np.ndarray(array.shape, dtype, whole, at)[...] = array
        return _array, (kind, at, dtype, array.shape, order)

    def write(self, thing: Any) -> tuple[int, int, int, int]:
        """Writes the batch; returns the places of its structure and of the table of its buffers.

        (offset, bytes) of the pickle, (offset, count) of the table, both in the slot: see
        is_plain().
        """
        self._shows = False
        chunks, buffers = self._chunks, self._buffers
        buffers.clear()
        # One pickler for all batches, unless one has raised, or what it noted takes much memory.
        pickler, self._pickler = self._pickler, None
        if pickler is None:
            pickler = self._kind(_Into(chunks), 5, buffer_callback=self._aside)
        try:
            pickler.dump(thing)
            structure = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self._shipped.clear()
            chunks.clear()
        at, size = self.write_bytes(structure), len(structure)
        if size <= _PLAIN_BYTES:
            pickler.clear_memo()
            self._pickler = pickler
        if not buffers:
            # Whatever else it refers to has been written before it.
            plain = at == 0 and not self._shows and size <= _PLAIN_BYTES
            return at, size, 0 if plain else self._used, 0
        count = len(buffers)
        table = struct.pack(f"<{2 * count}Q", *(n for pair in buffers for n in pair))
        return at, size, self.write_bytes(table), count

    def _aside(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _SMALL_BYTES:
            return True
        at = self._room(raw.nbytes)
        self._put(at, np.frombuffer(raw, np.uint8).ctypes.data, raw.nbytes)
        self._buffers.append((at, raw.nbytes))
        return False

    def write_bytes(self, raw: bytes) -> int:
        """Writes bytes; returns their offset in the slot."""
        at = self._room(len(raw))
        if self._by_file and len(raw) >= _BY_FILE_BYTES:
            self._put(at, np.frombuffer(raw, np.uint8).ctypes.data, len(raw))
        else:
            ctypes.memmove(ctypes.addressof(self._whole) + at, raw, len(raw))
        return at


class _Into:
    """What a pickler writes into: its pieces go into a list."""

    def __init__(self, chunks: list[Any]) -> None:
        self.write = chunks.append


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


def is_plain(places: tuple[int, ...]) -> bool:
    """Is the structure all there is, a pickle like any other? `places`: as of Writer.write()."""
    return places[2] == 0


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

    def __init__(self, workers: int, entries: int, heap_bytes: int, words_bytes: int) -> None:
        """
        Args:
            workers: How many there are.
            entries: Requests of a worker that may be under way.
            heap_bytes: Memory for the bytes of these.
            words_bytes: Behind the table (_job.Bond).
        """
        self._workers = workers
        self._entries = entries
        self._heap = heap_bytes
        self._heaps = 64 + _ENTRY_BYTES * workers * entries
        self._spilt = self._heaps + workers * heap_bytes
        size = self._spilt + workers * entries * _SPILT_BYTES + words_bytes
        self.memory = Memory("ringfeed-requests", size)
        head = (TABLE_MAGIC, workers * entries, self.memory.size, workers)
        TABLE_HEAD.pack_into(self.memory.map, 0, *head)
        # Of each worker: bytes of its memory that have ever been taken, with what was left free at
        # the end, and how many of these have been let go.
        self._head = [0] * workers
        self._tail = [0] * workers
        # Its requests under way: number, and where its memory was taken up to.
        self._ends: list[deque[tuple[int, int]]] = [deque() for _ in range(workers)]

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

    def most_open(self) -> int:
        """Of the worker with the most of them: requests whose batches are not here."""
        return max(map(len, self._ends))

    def let_go(self, number: int) -> None:
        """Its batch is here, and so are those of all requests before it of the same worker."""
        worker = (number - 1) % self._workers
        ends = self._ends[worker]
        while ends and ends[0][0] <= number:
            self._tail[worker] = ends.popleft()[1]
