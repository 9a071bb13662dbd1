"""A batch: a lease on one slot of the feed, and the arrays over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from . import _native
from .errors import BatchReleased
from .schema import Schema, Tensor


class _Memory:
    """What NumPy calls the base of an array: keeps the lease while any view of it lives."""

    __slots__ = ("_lease", "__array_interface__")

    def __init__(self, lease: _native.Lease, tensor: Tensor) -> None:
        self._lease = lease
        self.__array_interface__ = {
            "data": (lease.data + tensor.offset, True),  # True: read-only
            "shape": tensor.shape_of(lease.rows),
            "typestr": tensor.dtype.str,
            "version": 3,
        }


class Batch(Mapping[str, np.ndarray]):
    """Name to read-only array over the shared memory, in the order of the schema; no copies.

    The slot stays claimed while this object or any array from it lives: views, slices and tensors
    made through DLPack count. An array that still exists can never be overwritten.

    ``torch.from_dlpack(batch["x"])`` and ``numpy.from_dlpack`` share the memory (NumPy 2.1 or
    newer; a consumer that does not speak DLPack 1 gets NumPy's BufferError: use ``copy()``).
    PyTorch has no read-only tensors: a tensor made so looks writable, and writing to it in place
    ends the process with SIGSEGV, because the mapping is read-only. ``.clone()`` or ``.to(device)``
    gives memory of its own. Arrays must not be used in a forked child, where they are not mapped.

    Attributes:
        seq: Number of the batch in the feed, from 1.
        rows: Rows in it, 1 to ``schema.rows_max``.
        tries: How many members died while they held it; 0 for a first delivery.
        nbytes: Bytes in the slot.
        token: Two numbers: what went into it, as the last stage defines it.
        ragged: 16 numbers: lengths of the dimensions that vary, in schema order.
        slot: Index of the slot.
        crc32c: CRC-32C of the bytes, 0 if the feed computes none.
        published_ns: CLOCK_MONOTONIC when it was published.
    """

    def __init__(self, lease: _native.Lease, schema: Schema) -> None:
        self._lease: _native.Lease | None = lease
        self._schema = schema
        self._arrays: dict[str, np.ndarray] = {}
        self.seq: int = lease.seq
        self.rows: int = lease.rows
        self.tries: int = lease.tries
        self.nbytes: int = lease.bytes
        self.token: tuple[int, int] = (lease.token[0], lease.token[1])
        self.ragged: tuple[int, ...] = tuple(lease.ragged)
        self.slot: int = lease.slot
        self.crc32c: int = lease.crc32c
        self.published_ns: int = lease.published_ns

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._arrays.get(name)
        if array is None:
            tensor = self._schema[name]
            if self._lease is None:
                raise BatchReleased(
                    f"batch {self.seq} was released: take arrays from it before release(), or use "
                    "copy()"
                )
            array = np.asarray(_Memory(self._lease, tensor))
            self._arrays[name] = array
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)

    # A batch is itself and not the values in it.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def released(self) -> bool:
        """Has release() been called? Arrays taken before it may still hold the slot."""
        return self._lease is None

    def release(self) -> None:
        """Drop this batch's own hold on the slot.

        The slot goes back at once if no array of the batch lives outside it, else with the last
        one. Calling again is harmless. Afterwards ``batch[name]`` raises BatchReleased.
        """
        self._arrays.clear()
        self._lease = None

    def copy(self) -> dict[str, np.ndarray]:
        """Name to a writable array of its own for every tensor; then release().

        Raises:
            BatchReleased: The batch was released before.
        """
        copies = {name: np.array(self[name]) for name in self}
        self.release()
        return copies

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __reduce__(self) -> Any:
        raise TypeError("a batch is shared memory and cannot be pickled: pickle batch.copy()")

    def __repr__(self) -> str:
        state = ", released" if self.released else ""
        return f"Batch(seq={self.seq}, rows={self.rows}, {', '.join(self)}{state})"
