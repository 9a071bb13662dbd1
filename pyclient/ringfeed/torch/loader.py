"""A loader for training loops and a dataset for PyTorch's DataLoader."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.utils.data

from .._core import states
from .._core.scope import Scope
from .._core.torch_bridge import Tensors, rank_and_world
from ..errors import FeedEnd, InvalidRequest
from ..feed import Feed, attach


def _attached(feed: str | Feed, group: str, ranked: bool | None, options: dict[str, Any]) -> Feed:
    if isinstance(feed, Feed):
        if options or ranked is not None or group != "default":
            raise InvalidRequest(
                f"feed {feed.name} is already attached: group, ranked and other options belong to "
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
    """The requested device; for "cuda" with several devices, that of LOCAL_RANK. None: host
    memory."""
    if device is None:
        return None
    place = torch.device(device)
    if place.type == "cpu":
        return None
    local = os.environ.get("LOCAL_RANK", "")
    if place.type != "cuda" or place.index is not None or not local.isdigit():
        return place
    # LOCAL_RANK may be too large: a launcher may show each process only one device.
    return torch.device("cuda", int(local)) if int(local) < torch.cuda.device_count() else place


def _current(device: torch.device | None) -> AbstractContextManager[Any]:
    """Makes a CUDA device the current one, so that a rank does not use another rank's device."""
    if device is None or device.index is None:
        return nullcontext()
    return torch.cuda.device(device)


class FeedDataset(torch.utils.data.IterableDataset[Tensors]):
    """A feed as a dataset: batches, name to tensor, in the feed's order.

        loader = DataLoader(FeedDataset("lc0", group="run-a"), batch_size=None, num_workers=0)

    The feed makes and shuffles batches in its own processes, so DataLoader needs no batch_size and
    no workers. With worker processes iteration raises InvalidRequest. FeedLoader does everything
    that DataLoader does for a feed, and also knows its length and position.

    Each iteration continues where the last one stopped, until the feed ends.
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
            feed: Name of the feed, or an attached Feed.
            group: Name of the consumer group.
            copy: As for Batch.torch().
            ranked: None: a ranked group if a launcher gives the rank. False: a shared group.
            options: Other arguments of ringfeed.attach(); view is "private" if not given.
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
                # Without a name, so that a loop holds only what its body holds.
                yield self.feed.next().torch(self._copy)
            except FeedEnd:
                return

    def __reduce__(self) -> Any:
        # Spawned workers get the dataset pickled.
        raise _no_workers(self.feed.name)


def _no_workers(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"feed {name}: use num_workers=0: the processes of the feed do the loading, its memory is "
        "mapped in the process that attached, and a worker could only copy batches back through "
        "a pipe"
    )


class FeedLoader(Scope):
    """A loader for training loops: batches, name to tensor.

        loader = FeedLoader("lc0", group="run-a", batches=1000, device="cuda")
        for epoch in range(10):
            loader.set_epoch(epoch)
            for batch in loader: ...

    Also a context manager; close() leaves the group.

    Host tensors (no device, or "cpu") share a private view of the feed's memory: they may be
    changed in place, which nobody else sees, and they hold their slot while they live. Tensors on a
    device have their own memory.

    Attributes:
        feed: The ringfeed.Feed.
        batches: Number of batches of one iteration; None: all.
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
            feed: Name of the feed, or an attached Feed. close() closes only a feed that this loader
            attached.
            group: Name of the consumer group.
            batches: Batches that this process takes in one iteration (its length); the next
                iteration continues with those that follow. None: until the feed ends.
            device: Target device; "cuda" means that of LOCAL_RANK if a launcher sets it. None: host
            memory.
            non_blocking: As for Batch.to().
            pin: Register the feed's memory with CUDA, see Feed.pin(); needs a device.
            copy: For host tensors, as for Batch.torch().
            ranked: None: a ranked group if a launcher gives the rank. False: a shared group.
            options: Other arguments of ringfeed.attach(); view, if not given, is "private" for host
                tensors and "readonly" for a device.
        Raises:
            InvalidRequest: The arguments contradict each other. And what attach() and Feed.pin()
            raise.
        """
        if batches is not None and batches < 1:
            raise InvalidRequest(
                f"FeedLoader: batches={batches}: must be at least 1, or None for all"
            )
        if pin and _own_device(device) is None:
            raise InvalidRequest("FeedLoader: pin=True needs a CUDA device to copy to: give one")
        self.batches = batches
        self.device = _own_device(device)
        self.epoch = 0
        self._non_blocking = non_blocking
        self._copy = copy
        self._owner = not isinstance(feed, Feed)
        if self._owner:
            options.setdefault("view", "private" if self.device is None else "readonly")
        self.feed = _attached(feed, group, ranked, options)
        self._at = 0  # batches of the iteration that have been returned
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
            TypeError: It is not known, because a feed is a stream: give ``batches``.
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
                # Without a name, so that a loop holds only what its body holds.
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
        always shuffles anew, from its own seed. After load_state_dict() an epoch other than the
        saved one begins with a whole iteration, not with the rest of the saved one."""
        self._resumed = self._resumed and int(epoch) == self.epoch
        self.epoch = int(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place of this loader, to be saved with the model: plain numbers, strings and
        lists."""
        return {**self.feed.state_dict(), "epoch": self.epoch, "at": self._at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was saved, also in the middle of an iteration, as
        Feed.load_state_dict() does.

        Raises:
            InvalidRequest: That is not possible; the text says why. Nothing has changed.
        """
        if not isinstance(state, Mapping):
            raise InvalidRequest(
                f"feed {self.feed.name}: a state is what state_dict() returned, not a "
                f"{type(state).__name__}"
            )
        where = f"feed {self.feed.name}, group {self.feed.group}"
        at, epoch = (states.number(state, key, where) for key in ("at", "epoch"))
        self.feed.load_state_dict(state)
        self._at = at
        self._resumed = True
        self.epoch = epoch

    def close(self) -> None:
        """Leave the group, if the feed was attached here."""
        if self._owner:
            self.feed.close()

    def _leave(self, error: BaseException | None) -> None:
        if self._owner:
            self.feed._leave(error)

    def __repr__(self) -> str:
        length = "" if self.batches is None else f", batches={self.batches}"
        return f"FeedLoader({self.feed!r}, device={self.device}{length})"
