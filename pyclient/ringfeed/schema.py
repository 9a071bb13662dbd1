"""What every batch of a feed looks like."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ._core import native
from .errors import IncompatibleFeed, InvalidRequest

# Lengths that may vary from batch to batch: those of batch.ragged.
_RAGGED = 16


@dataclass(frozen=True)
class Tensor:
    """One array of a batch: row-major, little-endian.

    In ``shape``, -1 stands for the rows of the batch; only the first number may be -1. -2 - i
    stands for ``batch.ragged[i]``, a length that varies from batch to batch. Other numbers are the
    same in every batch. ``offset`` is in bytes from the start of the slot; ``nbytes`` is the size
    of the largest array. ``element`` is the feed's name for the type of the elements. It is the
    name of ``dtype``, except for "bfloat16": NumPy has it only with the package ml_dtypes; without
    that, ``dtype`` is uint16, the bits.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    element: str = ""

    @property
    def has_rows(self) -> bool:
        """Does the array have one entry for each row of the batch: is the first number of ``shape``
        -1?"""
        return bool(self.shape) and self.shape[0] == -1

    @property
    def varies(self) -> bool:
        """Does a length other than the rows vary?"""
        return any(size < -1 for size in self.shape)

    def shape_of(self, rows: int, ragged: Sequence[int] = ()) -> tuple[int, ...]:
        """Shape in a batch with these rows and lengths (``batch.rows``, ``batch.ragged``).

        Raises:
            InvalidRequest: ``ragged`` lacks a length that varies.
        """
        if any(-2 - size >= len(ragged) for size in self.shape):
            raise InvalidRequest(
                f"tensor {self.name} of shape {list(self.shape)} has lengths that vary from batch "
                f"to batch, but {len(ragged)} are given: give batch.ragged"
            )
        return tuple(
            size if size >= 0 else rows if size == -1 else ragged[-2 - size] for size in self.shape
        )

    def fits(self, shape: Sequence[int]) -> bool:
        """Is there room for an array of this shape?"""
        return math.prod(shape) * self.dtype.itemsize <= self.nbytes

    def __str__(self) -> str:
        lengths = ", ".join(
            str(size) if size >= 0 else "B" if size == -1 else f"S{-2 - size}"
            for size in self.shape
        )
        return f"{self.name}: {self.element}[{lengths}]"


def _dtype(element: str) -> np.dtype:
    if element != "bfloat16":
        little: np.dtype = np.dtype(element).newbyteorder("<")
        return little
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype("<u2")
    bfloat16: np.dtype = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


class Schema(Mapping[str, Tensor]):
    """Name to Tensor, in the order of the feed.

    Attributes: ``rows_max``: rows of a full batch; ``slot_bytes``: bytes of a slot; ``varies``:
    does a tensor have a length that varies, other than the rows?
    """

    def __init__(self, tensors: list[Tensor], rows_max: int, slot_bytes: int) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self.rows_max = rows_max
        self.slot_bytes = slot_bytes
        self.varies = any(tensor.varies for tensor in tensors)

    @classmethod
    def of(cls, handle: native.Handle) -> Schema:
        """The schema of an attached feed.

        Raises:
            IncompatibleFeed: A dtype that NumPy lacks, or shapes that do not fit.
        """
        raw, rows_max, slot_bytes = handle.schema()
        tensors = []
        for tensor in raw:
            try:
                dtype = _dtype(tensor.dtype)
            except TypeError as error:
                raise IncompatibleFeed(
                    f"tensor {tensor.name} has dtype {tensor.dtype!r}, which this NumPy "
                    f"({np.__version__}) does not know"
                ) from error
            known = Tensor(
                tensor.name, dtype, tensor.shape, tensor.offset, tensor.nbytes, tensor.dtype
            )
            if any(size < -1 - _RAGGED for size in tensor.shape) or -1 in tensor.shape[1:]:
                raise IncompatibleFeed(
                    f"tensor {tensor.name} has shape {tensor.shape}, which this ringfeed does not "
                    "know: use the same version for supervisor and trainers"
                )
            # The widest batch may have few rows. With lengths that vary, each batch is checked
            # instead.
            rows = min(1, rows_max) if known.varies else rows_max
            if not known.fits(known.shape_of(rows, (1,) * _RAGGED)):
                raise IncompatibleFeed(
                    f"tensor {tensor.name} of shape {tensor.shape} and dtype {dtype} does not fit "
                    f"{tensor.nbytes} bytes with {rows_max} rows"
                )
            tensors.append(known)
        return cls(tensors, rows_max, slot_bytes)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        inside = ", ".join(str(tensor) for tensor in self.values())
        return f"Schema({inside}; rows_max={self.rows_max})"
