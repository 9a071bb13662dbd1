"""A batch: a lease on one slot of the feed, and the arrays over it."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ._core import native
from ._core.scope import Scope
from ._core.transfers import Transfers
from .errors import BatchReleased, FeedDamaged
from .schema import Schema, Tensor

if TYPE_CHECKING:
    # Not by its own name: in the class below that is a method.
    import torch as pytorch


class _Memory:
    """The base of an array, in NumPy's sense: it keeps the lease while any view of it lives."""

    __slots__ = ("_lease", "__array_interface__")

    def __init__(self, lease: native.Lease, tensor: Tensor, writable: bool) -> None:
        self._lease = lease
        self.__array_interface__ = {
            "data": (lease.data + tensor.offset, not writable),
            "shape": tensor.shape_of(lease.rows, lease.ragged),
            # For a type that NumPy lacks, the bits; a view then gives them their type.
            "typestr": "<u2" if tensor.element == "bfloat16" else tensor.dtype.str,
            "version": 3,
        }


class Batch(Mapping[str, np.ndarray], Scope):
    """Name to array over the shared memory, in the order of the schema; no copies.

    The slot stays claimed while this object or any array from it lives; views, slices and tensors
    made from the arrays count too. The feed never overwrites an array that still exists.

    The feed's ``view`` says whether the arrays may be written. By default they are read-only.
    Private pages may be written; only this process sees that, and it is lost with the batch. Copies
    have their own memory; the slot goes back before the batch is returned.

    ``torch()`` gives tensors, ``to()`` tensors on a device. ``numpy.from_dlpack`` and other
    consumers of DLPack 1 share the memory (NumPy 2.1 or newer). A consumer without DLPack 1 gets
    NumPy's BufferError for read-only arrays: use ``copy()``. Beware of ``torch.from_dlpack`` with
    read-only arrays: PyTorch has no read-only tensors, so the result looks writable, and an
    in-place operation ends the process with SIGSEGV. Do not use arrays in a forked child: they are
    not mapped there.

    Attributes:
        view: "readonly", "private" or "copy".
        seq: Number of the batch in the feed, from 1.
        rows: Rows in it, 0 to ``schema.rows_max``.
        tries: Number of members that died while they held it; 0 for a first delivery.
        nbytes: Bytes in the slot.
        token: Two numbers that tell its origin, as the last stage defines them.
        ragged: 16 numbers: the lengths that vary from batch to batch, see Tensor.shape; unused ones
            are 0.
        slot: Index of the slot.
        crc32c: CRC-32C of the bytes, 0 if the feed computes none; see verify().
        published_ns: CLOCK_MONOTONIC when it was published.
    """

    def __init__(
        self,
        lease: native.Lease,
        schema: Schema,
        view: str = "readonly",
        transfers: Transfers | None = None,
    ) -> None:
        self._lease: native.Lease | None = lease
        self._schema = schema
        self._transfers = Transfers() if transfers is None else transfers
        self._released = False
        self.view = view
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
        if schema.varies:
            self._check_lengths()
        if view == "copy":
            self._copy_out()

    def _copy_out(self) -> None:
        """Become a copy, which holds no slot."""
        self._arrays = {name: np.array(self._mapped(name)) for name in self._schema}
        self._lease = None
        self.view = "copy"

    def _check_lengths(self) -> None:
        """Raises FeedDamaged for lengths that do not fit, so that no array reaches beyond its
        tensor."""
        for tensor in self._schema.values():
            shape = tensor.shape_of(self.rows, self.ragged)
            if not tensor.fits(shape):
                raise FeedDamaged(
                    f"batch {self.seq}: tensor {tensor.name} would have shape {list(shape)}, which "
                    f"does not fit its {tensor.nbytes} bytes; the batch is skipped"
                )

    def _mapped(self, name: str) -> np.ndarray:
        tensor = self._schema[name]
        if self._lease is None:
            raise BatchReleased(
                f"batch {self.seq} was released: take arrays from it before release(), or use "
                "copy()"
            )
        return np.asarray(_Memory(self._lease, tensor, self.view == "private")).view(tensor.dtype)

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = self._mapped(name)
        return array

    def __setitem__(self, name: str, array: np.ndarray) -> None:
        """Allows ``batch[name] *= 2``, which stores the changed array at its end."""
        if array is not self[name]:
            raise TypeError(
                "the arrays of a batch cannot be replaced: write into a writable one, "
                f"batch[{name!r}][...] = value"
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)

    # Batches are compared by identity, not by their values.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def strings(self, name: str) -> list[str]:
        """The rows of a field of text, which lie in the batch one after the other.

        Args:
            name: Of a tensor of uint8; ``NAME_offsets``, int64 [rows + 1], says where each row is.
        Returns:
            A string for each row; copies, which hold no slot.
        Raises:
            KeyError: There is no such tensor, or none with its offsets.
            FeedDamaged: The offsets lead out of it, or a row is no UTF-8.
            BatchReleased: The batch was released before.
        Source: workers/samples/sample_batcher.cc writes them, for fields of dtype text and bytes.
        """
        rows = self.bytes(name)
        try:
            return [row.decode() for row in rows]
        except UnicodeDecodeError as error:
            raise FeedDamaged(
                f"batch {self.seq}: a row of {name} is no UTF-8 ({error}): take bytes({name!r})"
            ) from None

    def bytes(self, name: str) -> list[builtins.bytes]:
        """The rows of a field of bytes, or of text as UTF-8: as strings().

        Returns:
            Bytes for each row; copies, which hold no slot.
        Raises:
            As strings(), but for UTF-8.
        """
        whole, ends = self[name].tobytes(), self[f"{name}_offsets"].tolist()
        if len(ends) != self.rows + 1 or ends[0] < 0 or ends[-1] > len(whole):
            fits = False
        else:
            fits = all(begin <= end for begin, end in itertools.pairwise(ends))
        if not fits:
            raise FeedDamaged(f"batch {self.seq}: the offsets of {name} lead out of it")
        return [whole[begin:end] for begin, end in itertools.pairwise(ends)]

    @property
    def released(self) -> bool:
        """Has release() been called? Arrays taken before it may still hold the slot."""
        return self._released

    def release(self) -> None:
        """Drop this batch's own hold on the slot.

        The slot goes back at once if no array of the batch lives outside it, else with the last
        one. Calling again is harmless. Afterwards ``batch[name]`` raises BatchReleased.
        """
        self._released = True
        self._arrays.clear()
        self._lease = None

    def verify(self) -> None:
        """Compare the batch with the checksum that was computed when it was published.

        Reads the whole batch: 4 ms for 40 MB. The feed must compute checksums: ``checksum: true``
        in its ``feed_output``.

        Raises:
            FeedDamaged: Its bytes have changed: failing memory, a stray write, or a write of this
                process to a private view.
            InvalidRequest: The feed computes no checksums.
            BatchReleased: The batch was released before, or is a copy.
        """
        if self._lease is None:
            raise BatchReleased(
                f"batch {self.seq} has no slot any more: verify it before release(), and not in "
                'view="copy"'
            )
        self._lease.verify()

    def copy(self) -> dict[str, np.ndarray]:
        """Copy every tensor and release the batch: name to a writable array with its own memory.

        Raises:
            BatchReleased: The batch was released before.
        """
        copies = {name: np.array(self[name]) for name in self}
        self.release()
        return copies

    def torch(self, copy: bool | None = None) -> dict[str, pytorch.Tensor]:
        """Name to torch.Tensor for every tensor, in host memory. The batch does not change.

        PyTorch cannot mark a tensor read-only, and an in-place operation on read-only memory would
        end the process. So a tensor shares the slot only if the slot may be written.

        Args:
            copy: None: the tensors share the memory of a private (or copied) view, and are copies
                on a read-only feed. True: always copies. False: never copies.
        Returns:
            Tensors that hold the slot while they live, unless they are copies.
        Raises:
            InvalidRequest: copy=False on a read-only feed: attach with view="private".
            BatchReleased: The batch was released before.
            ImportError: PyTorch is not installed.
        """
        from ._core import torch_bridge as bridge

        return bridge.tensors(self, copy)

    def to(
        self, device: str | int | pytorch.device, non_blocking: bool = False
    ) -> dict[str, pytorch.Tensor]:
        """Name to torch.Tensor on a device, for every tensor. The batch does not change.

        The tensors have their own memory (copies, if the device is the CPU).

        Args:
            device: As for ``torch.Tensor.to``.
            non_blocking: Return before a CUDA device has read everything. The slot stays claimed
                until it has, even if this object is gone. It helps after ``feed.pin()``. Copies to
                other devices are complete on return.
        Raises:
            BatchReleased: The batch was released before.
            ImportError: PyTorch is not installed.
        """
        from ._core import torch_bridge as bridge

        return bridge.to_device(self, device, non_blocking, self._transfers)

    def _leave(self, error: BaseException | None) -> None:
        self.release()

    def __reduce__(self) -> Any:
        raise TypeError("a batch is shared memory and cannot be pickled: pickle batch.copy()")

    def __repr__(self) -> str:
        state = ", released" if self.released else ""
        return f"Batch(seq={self.seq}, rows={self.rows}, {', '.join(self)}{state})"
