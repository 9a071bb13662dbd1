"""What every batch of a feed looks like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from . import _native
from .errors import IncompatibleFeed


@dataclass(frozen=True)
class Tensor:
    """One array of a batch: row-major, little-endian.

    ``shape`` is that of a batch of any size: -1 stands for its rows. ``offset`` is bytes from the
    start of the slot, ``nbytes`` what it takes with ``rows_max`` rows. ``element`` is the feed's
    name of the elements' type: that of ``dtype``, but for "bfloat16", which NumPy has only with the
    package ml_dtypes; without it ``dtype`` is uint16, the bits.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    element: str = ""

    def shape_of(self, rows: int) -> tuple[int, ...]:
        """Shape in a batch of this many rows."""
        return tuple(rows if size < 0 else size for size in self.shape)


def _dtype(element: str) -> np.dtype:
    if element != "bfloat16":
        return np.dtype(element).newbyteorder("<")
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype("<u2")
    return np.dtype(ml_dtypes.bfloat16)


class Schema(Mapping[str, Tensor]):
    """Name to Tensor, in the order of the feed.

    Attributes: ``rows_max``, rows of a full batch; ``slot_bytes``, bytes of a slot.
    """

    def __init__(self, tensors: list[Tensor], rows_max: int, slot_bytes: int) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self.rows_max = rows_max
        self.slot_bytes = slot_bytes

    @classmethod
    def of(cls, handle: _native.Handle) -> Schema:
        """The schema of an attached feed.

        Raises:
            IncompatibleFeed: A dtype that NumPy does not have, or shapes that do not fit.
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
            items = 1
            for size in known.shape_of(rows_max):
                items *= size
            if any(size < 0 for size in tensor.shape[1:]) or items * dtype.itemsize > tensor.nbytes:
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
        inside = ", ".join(
            f"{t.name}: {t.element}{list(t.shape)}".replace("-1", "B") for t in self.values()
        )
        return f"Schema({inside}; rows_max={self.rows_max})"
