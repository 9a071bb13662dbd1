"""What needs PyTorch and is not for users: tensors over batches, memory for CUDA, ranks.

Imported when it is first needed.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    import torch
    import torch.distributed
    import torch.utils.data
    from torch.utils.dlpack import from_dlpack
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "ringfeed.torch needs PyTorch, which is not installed here: `pip install torch` (see "
        "https://pytorch.org/get-started for builds with CUDA); NumPy arrays work without it"
    ) from error

from ..errors import FeedIOError, InvalidRequest
from . import native
from .transfers import Event, Transfers

if TYPE_CHECKING:
    from ..batch import Batch
    from ..feed import Feed

Tensors = dict[str, torch.Tensor]
# cudaHostRegisterReadOnly: without it memory that is mapped read-only cannot be registered on most
# systems.
_READ_ONLY = 8


def tensors(batch: Batch, copy: bool | None) -> Tensors:
    """See Batch.torch()."""
    if copy is None:
        copy = batch.view == "readonly"
    if not copy and batch.view == "readonly":
        raise InvalidRequest(
            f"batch {batch.seq} is read-only memory, PyTorch has no read-only tensors, and an "
            'operation in place would end this process: attach with view="private" to share '
            "memory that may be written, or let torch() copy"
        )
    return {
        name: _typed(torch.from_numpy(array.copy() if copy else array), element)
        for name, array, element in _arrays(batch)
    }


def _arrays(batch: Batch) -> Iterator[tuple[str, np.ndarray, str]]:
    """Name, array and type of the elements; the bits of what PyTorch does not take from NumPy."""
    for name in batch:
        array = batch[name]
        element = batch._schema[name].element
        yield name, array.view(np.int16) if element == "bfloat16" else array, element


def _typed(tensor: torch.Tensor, element: str) -> torch.Tensor:
    return tensor.view(torch.bfloat16) if element == "bfloat16" else tensor


def to_device(
    batch: Batch, device: str | int | torch.device, non_blocking: bool, transfers: Transfers
) -> Tensors:
    """See Batch.to()."""
    place = torch.device(device)
    # Of other devices it is not known when they have read.
    asynchronous = non_blocking and place.type == "cuda"
    # Tensors that look writable and are not: they do not leave this function.
    sources = {name: _typed(from_dlpack(array), element) for name, array, element in _arrays(batch)}
    try:
        return {name: _copied(source, place, asynchronous) for name, source in sources.items()}
    finally:
        # Also when one of them fails: those before it are under way.
        if asynchronous:
            transfers.add(_reached(place), tuple(sources.values()))


def _copied(source: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
    return source.to(device, non_blocking=non_blocking, copy=True)


def _reached(device: torch.device) -> Event:
    """An event that comes when the device has done what it has been asked for until now."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


def pin(feed: Feed, handle: native.Handle, transfers: Transfers) -> Callable[[], object]:
    """See Feed.pin(); returns what undoes it. It is also undone when the feed object is gone."""
    if feed.view != "readonly":
        raise InvalidRequest(
            f"feed {feed.name}: pin() needs view='readonly', not {feed.view!r}: "
            + (
                "registered pages of a private view are copies that do not change with the feed"
                if feed.view == "private"
                else "copies are not in the memory of the feed"
            )
        )
    address, size = handle.payload()
    if not torch.cuda.is_available():
        raise InvalidRequest(
            f"feed {feed.name}: pin() needs a CUDA device, but PyTorch sees none: leave pin() out "
            "on this machine"
        )
    runtime = torch.cuda.cudart()
    refused = int(runtime.cudaHostRegister(address, size, _READ_ONLY))
    if refused:
        forget_last_cuda_error()
        status = int(runtime.cudaHostRegister(address, size, 0))
        if status:
            forget_last_cuda_error()
            raise FeedIOError(
                f"feed {feed.name}: CUDA does not register its {size} bytes: error {refused} as "
                f"read-only memory, error {status} without that flag: continue without pin(); "
                "copies then go through memory of the driver"
            )
        warnings.warn(
            f"feed {feed.name}: CUDA refuses to register memory as read-only (error {refused}); "
            "it is registered without this flag",
            RuntimeWarning,
            stacklevel=3,
        )
    # The handle is kept by this until it has run: the memory stays mapped as long as it is
    # registered. CUDA would take whatever is mapped there next for registered memory.
    return weakref.finalize(feed, _unpin, runtime, address, handle, transfers, os.getpid())


def _unpin(
    runtime: Any, address: int, handle: native.Handle, transfers: Transfers, pid: int
) -> None:
    if os.getpid() != pid:
        return  # a forked child has no part in its parent's device
    transfers.wait()
    status = int(runtime.cudaHostUnregister(address))
    if status:
        warnings.warn(
            f"CUDA does not unregister the memory of a feed: error {status}", RuntimeWarning
        )


def forget_last_cuda_error() -> None:
    """A refused call leaves its error where PyTorch's next kernel finds it: let one find it now."""
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError:
        pass


def rank_and_world() -> tuple[int, int] | None:
    """Rank of this process and number of ranks; None outside of distributed training.

    From torch.distributed if a process group has been made, else from RANK and WORLD_SIZE, which
    launchers set.
    Raises:
        InvalidRequest: Only one of them is set, or they are no numbers.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    given = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if not any(given.values()):
        return None
    try:
        rank, world = (int(given[name] or "") for name in ("RANK", "WORLD_SIZE"))
    except ValueError:
        said = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise InvalidRequest(
            f"the launcher's environment has {said}: set both to numbers or neither, or give rank "
            "and world, or ranked=False for a shared group"
        ) from None
    return rank, world


def told_by_rank_0(text: str) -> str | None:
    """What rank 0 of the process group gives to this call, which every process makes.

    None: there is no process group.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    box: list[str] = [text]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]
