"""A feed for PyTorch: a loader for training loops, a dataset for DataLoader, tensors over a batch.

    from ringfeed.torch import FeedLoader

    with FeedLoader("lc0", group="run-a", device="cuda", pin=True) as loader:
        for batch in loader:                 # name -> tensor on the device
            step(batch["planes"], batch["policy"], batch["values"])

Under torchrun (or any launcher that sets RANK and WORLD_SIZE) each process attaches to a ranked
group by itself and gets its own share of the batches.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

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
        "https://pytorch.org/get-started for builds with CUDA); NumPy arrays need nothing more"
    ) from error

from . import _native, _states
from ._transfers import Event, Transfers
from .batch import Batch
from .errors import FeedEnd, FeedIOError, InvalidRequest
from .feed import Feed, attach

__all__ = [
    "FeedDataset",
    "FeedLoader",
    "expand_planes",
    "expand_policy",
    "rank_and_world",
    "widen_tokens",
]

Tensors = dict[str, torch.Tensor]

# cudaHostRegisterReadOnly: without it memory that is mapped read-only cannot be registered on most
# systems.
_READ_ONLY = 8


# ---- tensors over one batch ----


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
    sources = {
        name: _typed(from_dlpack(array), element) for name, array, element in _arrays(batch)
    }
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


# ---- compact tensors of the Lc0 pipeline, on the device ----


def expand_planes(bits: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Input planes from their bits (``planes: PLANES_BITS``), on the device of ``bits``.

    The same numbers as the feed's own planes have, of float32 rounded to ``dtype``.

    Args:
        bits: uint64 (or int64) [rows, 112], as the feed gives them.
        dtype: Of the planes.
    Returns:
        [rows, 112, 8, 8]: rank 1 to 8 of the mover's view, file a to h.
    Raises:
        ValueError: Another shape or dtype.
    """
    if bits.ndim != 2 or bits.shape[1] != 112 or bits.dtype not in (torch.uint64, torch.int64):
        raise ValueError(
            f"expand_planes takes uint64 [rows, 112], not {bits.dtype} {list(bits.shape)}"
        )
    words = bits.contiguous().view(torch.int64)
    ranks = words.view(torch.uint8).reshape(len(bits), 112, 8, 1)
    # File a is the highest bit of a rank.
    files = torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    planes = ((ranks >> files) & 1).to(dtype)
    # The plane of the 50-move rule: a float32 in the lower half of its word.
    rule50 = words[:, 109].contiguous().view(torch.float32)[::2]
    planes[:, 109] = rule50.to(dtype)[:, None, None]
    return planes


def expand_policy(
    indices: torch.Tensor, values: torch.Tensor, filler: torch.Tensor
) -> torch.Tensor:
    """The policy from its entries (``policy: POLICY_SPARSE``), on the device of ``values``.

    Args:
        indices: int16 [rows, entries]: moves 0 to 1857, 1858 behind the last one.
        values: float32 [rows, entries].
        filler: float32 [rows]: what a move has that is not listed.
    Returns:
        [rows, 1858], the dtype of ``values``: bit for bit what the feed's float32 policy has.
    """
    dense = filler.to(values.dtype)[:, None].repeat(1, 1859)
    return dense.scatter_(1, indices.long(), values)[:, :1858]


# What `compact: true` makes of the arrays that are int64 without it.
_COMPACT = {
    "input_ids": torch.int16,
    "board_target_ids": torch.int8,
    "move_target_ids": torch.int16,
    "block_id": torch.int16,
    "variation_epoch": torch.int32,
}


def widen_tokens(batch: Mapping[str, torch.Tensor]) -> Tensors:
    """A batch of tokens (``compact: true``) with the types that it has without ``compact``, on its
    device.

    The same numbers as the feed's own int64 arrays have.

    Args:
        batch: Name to tensor, L places a row, as the feed gives them:
            input_ids         int16  [rows, L]
            board_target_ids  int8   [rows, L]  -100: no target
            move_target_ids   int16  [rows, L]  -100: no target
            block_id          int16  [rows, L]
            variation_epoch   int32  [rows]     of feeds with variations
            and any others. One that is int64 already stays the same tensor.
    Returns:
        A new dictionary in the order of ``batch``: these as int64, in memory of their own, the
        others (masks, values, lineage) the same tensors.
    Raises:
        ValueError: There is no input_ids, or one of these has another dtype.
    """
    if "input_ids" not in batch:
        raise ValueError(f"widen_tokens takes a batch of tokens; this one has {list(batch)}")
    wide = {}
    for name, tensor in batch.items():
        compact = _COMPACT.get(name, tensor.dtype)
        if tensor.dtype not in (compact, torch.int64):
            raise ValueError(f"widen_tokens takes {name} as {compact}, not {tensor.dtype}")
        wide[name] = tensor.long() if name in _COMPACT else tensor
    return wide


# ---- pinned memory ----


def pin(feed: Feed, handle: _native.Handle, transfers: Transfers) -> Callable[[], object]:
    """See Feed.pin(); returns what undoes it. It is also undone when the feed object is gone."""
    if feed.view != "readonly":
        raise InvalidRequest(
            f"feed {feed.name}: pin() needs view='readonly', not {feed.view!r}: "
            + (
                "registered pages of a private view are copies that do not change with the feed"
                if feed.view == "private"
                else "copies do not lie in the feed's memory"
            )
        )
    address, size = handle.payload()
    if not torch.cuda.is_available():
        raise InvalidRequest(
            f"feed {feed.name}: pin() needs a CUDA device, and PyTorch sees none: leave pin() out "
            "on this machine"
        )
    runtime = torch.cuda.cudart()
    refused = int(runtime.cudaHostRegister(address, size, _READ_ONLY))
    if refused:
        _forget_last_cuda_error()
        status = int(runtime.cudaHostRegister(address, size, 0))
        if status:
            _forget_last_cuda_error()
            raise FeedIOError(
                f"feed {feed.name}: CUDA does not register its {size} bytes: error {refused} as "
                f"read-only memory, error {status} without that: go on without pin(), copies then "
                "go through memory of the driver"
            )
        warnings.warn(
            f"feed {feed.name}: CUDA refuses to register memory as read-only (error {refused}); "
            "it is registered without that",
            RuntimeWarning,
            stacklevel=3,
        )
    # The handle is kept by this until it has run: the memory stays mapped as long as it is
    # registered. CUDA would take whatever is mapped there next for registered memory.
    return weakref.finalize(feed, _unpin, runtime, address, handle, transfers, os.getpid())


def _unpin(
    runtime: Any, address: int, handle: _native.Handle, transfers: Transfers, pid: int
) -> None:
    if os.getpid() != pid:
        return  # a forked child has no part in its parent's device
    transfers.wait()
    status = int(runtime.cudaHostUnregister(address))
    if status:
        warnings.warn(f"CUDA does not unregister a feed's memory: error {status}", RuntimeWarning)


def _forget_last_cuda_error() -> None:
    """A refused call leaves its error where PyTorch's next kernel finds it: let one find it now."""
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError:
        pass


# ---- ranks ----


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
            f"the launcher's environment has {said}: set both to numbers or none, or give rank "
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


def _attached(feed: str | Feed, group: str, ranked: bool | None, options: dict[str, Any]) -> Feed:
    if isinstance(feed, Feed):
        if options or ranked is not None or group != "default":
            raise InvalidRequest(
                f"feed {feed.name} is attached already: group, ranked and other options belong to "
                "attach()"
            )
        return feed
    if options.get("rank") is None and options.get("world") is None and ranked is not False:
        launched = rank_and_world()
        if launched is not None:
            options["rank"], options["world"] = launched
        elif ranked:
            raise InvalidRequest(
                "ranked=True, but neither torch.distributed nor RANK and WORLD_SIZE say which rank "
                "this is: give rank and world"
            )
    return attach(feed, group, **options)


def _own_device(device: str | int | torch.device | None) -> torch.device | None:
    """The device as asked; of several CUDA devices that of LOCAL_RANK. None: host memory."""
    if device is None:
        return None
    place = torch.device(device)
    if place.type == "cpu":
        return None
    local = os.environ.get("LOCAL_RANK", "")
    if place.type != "cuda" or place.index is not None or not local.isdigit():
        return place
    # A launcher that shows each process one device alone counts on anyhow.
    return torch.device("cuda", int(local)) if int(local) < torch.cuda.device_count() else place


def _current(device: torch.device | None) -> AbstractContextManager[Any]:
    """Makes a CUDA device the current one, so that a rank does not begin to use another's."""
    if device is None or device.index is None:
        return nullcontext()
    return torch.cuda.device(device)


# ---- what training loops take ----


class FeedDataset(torch.utils.data.IterableDataset[Tensors]):
    """A feed as a dataset: batches, name to tensor, as they come.

        loader = DataLoader(FeedDataset("lc0", group="run-a"), batch_size=None, num_workers=0)

    The feed has made batches and shuffled them in processes of its own: so no batch_size, no
    workers. With worker processes iteration raises InvalidRequest. FeedLoader does all that
    DataLoader does for a feed, and knows its length and position.

    Each iteration goes on where the last one has stopped, until the feed ends.
    """

    def __init__(
        self,
        feed: str | Feed,
        group: str = "default",
        *,
        copy: bool | None = None,
        ranked: bool | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            feed: Name of the feed, or one that is attached.
            group: Name of the consumer group.
            copy: As for Batch.torch().
            ranked: None: if a launcher says which rank this is. False: a shared group.
            options: Of ringfeed.attach(); view is "private" if not given.
        """
        super().__init__()
        if not isinstance(feed, Feed):
            options.setdefault("view", "private")
        self.feed = _attached(feed, group, ranked, options)
        self._copy = copy

    def __iter__(self) -> Iterator[Tensors]:
        if torch.utils.data.get_worker_info() is not None:
            raise _no_workers(self.feed.name)
        while True:
            try:
                # Not by a name: a loop holds what its body holds, and no batch more.
                yield self.feed.next().torch(self._copy)
            except FeedEnd:
                return

    def __reduce__(self) -> Any:
        # Workers that are spawned get the dataset pickled.
        raise _no_workers(self.feed.name)


def _no_workers(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"feed {name}: use num_workers=0: a feed's own processes do the loading, its memory is "
        "mapped in the process that attached, and a worker could only copy batches back through "
        "a pipe"
    )


class FeedLoader:
    """What a training loop expects of a loader: batches, name to tensor.

        loader = FeedLoader("lc0", group="run-a", batches=1000, device="cuda")
        for epoch in range(10):
            loader.set_epoch(epoch)
            for batch in loader: ...

    Also a context manager; close() leaves the group.

    Host tensors (no device, or "cpu") share a private view of the feed's memory: they may be
    changed in place, nobody else sees it, and they hold their slot while they live. Tensors on a
    device have memory of their own.

    Attributes:
        feed: The ringfeed.Feed.
        batches: Batches of one iteration, None for all.
        device: Where the tensors are; None: host memory.
        epoch: As set by set_epoch().
    """

    def __init__(
        self,
        feed: str | Feed,
        group: str = "default",
        *,
        batches: int | None = None,
        device: str | int | torch.device | None = None,
        non_blocking: bool = True,
        pin: bool = False,
        copy: bool | None = None,
        ranked: bool | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            feed: Name of the feed, or one that is attached; close() closes what is attached here.
            group: Name of the consumer group.
            batches: Batches that this process takes in one iteration (its length); the next
                iteration goes on with those that follow. None: until the feed ends.
            device: Where to; "cuda" is that of LOCAL_RANK if a launcher says it. None: host memory.
            non_blocking: As for Batch.to().
            pin: Register the feed's memory with CUDA, see Feed.pin(); needs a device.
            copy: Of host tensors, as for Batch.torch().
            ranked: None: if a launcher says which rank this is. False: a shared group.
            options: Of ringfeed.attach(); view, if not given, is "private" for host tensors and
                "readonly" if there is a device.
        Raises:
            InvalidRequest: Arguments that contradict each other.
            And what attach() and Feed.pin() raise.
        """
        if batches is not None and batches < 1:
            raise InvalidRequest(f"FeedLoader: batches={batches}: at least 1, or None for all")
        if pin and _own_device(device) is None:
            raise InvalidRequest("FeedLoader: pin=True is for copies to a CUDA device: give one")
        self.batches = batches
        self.device = _own_device(device)
        self.epoch = 0
        self._non_blocking = non_blocking
        self._copy = copy
        self._owner = not isinstance(feed, Feed)
        if self._owner:
            options.setdefault("view", "private" if self.device is None else "readonly")
        self.feed = _attached(feed, group, ranked, options)
        self._at = 0  # batches of the iteration that have been handed out
        self._resumed = False
        try:
            if pin:
                with _current(self.device):
                    self.feed.pin()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Batches of one iteration.

        Raises:
            TypeError: It is not known, as of any stream: give ``batches``.
        """
        if self.batches is None:
            raise TypeError(
                f"feed {self.feed.name} is a stream and has no length: FeedLoader(..., batches=N) "
                "makes iterations of N batches"
            )
        return self.batches

    def __iter__(self) -> Iterator[Tensors]:
        if not self._resumed:
            self._at = 0
        self._resumed = False
        while self.batches is None or self._at < self.batches:
            try:
                # Not by a name: a loop holds what its body holds, and no batch more.
                yield self._hand_out()
            except FeedEnd:
                break
        self._at = 0

    def _hand_out(self) -> Tensors:
        batch = self.feed.next()
        if self.device is None:
            out = batch.torch(self._copy)
        else:
            out = batch.to(self.device, self._non_blocking)
        self._at += 1
        return out

    def set_epoch(self, epoch: int) -> None:
        """Notes the number of the epoch, for state_dict(). It does not change the order: a feed
        shuffles anew all the time, from its own seed. After load_state_dict() another epoch than
        the saved one begins with a whole iteration, and not with the rest of the saved one."""
        self._resumed = self._resumed and int(epoch) == self.epoch
        self.epoch = int(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader is, to be saved with the model: plain numbers, strings and lists."""
        return {**self.feed.state_dict(), "epoch": self.epoch, "at": self._at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was saved, in the middle of an iteration too; as
        Feed.load_state_dict() does it.

        Raises:
            InvalidRequest: That cannot be; the text says why. Nothing has changed.
        """
        if not isinstance(state, Mapping):
            raise InvalidRequest(
                f"feed {self.feed.name}: a state is what state_dict() returned, and not a "
                f"{type(state).__name__}"
            )
        where = f"feed {self.feed.name}, group {self.feed.group}"
        at, epoch = (_states.number(state, key, where) for key in ("at", "epoch"))
        self.feed.load_state_dict(state)
        self._at = at
        self._resumed = True
        self.epoch = epoch

    def close(self) -> None:
        """Leave the group, if the feed was attached here."""
        if self._owner:
            self.feed.close()

    def __enter__(self) -> FeedLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._owner:
            self.feed.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        length = "" if self.batches is None else f", batches={self.batches}"
        return f"FeedLoader({self.feed!r}, device={self.device}{length})"
