"""A loader for training loops and a dataset for PyTorch's DataLoader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.utils.data

from .._core import states
from .._core.scope import Scope
from .._core.torch_bridge import Tensors, rank_and_world
from ..batch import Batch
from ..errors import FeedDetached, FeedEnd, InvalidRequest
from ..feed import Feed, attach


class _Source:
    """The feed of a loader or dataset, attached when it is first needed.

    A launcher may say which rank this is only after the loader was made: Lightning's ``Trainer``
    makes the process group in ``fit()``.

    Attributes:
        name: Name of the feed.
        is_own: It is attached, and left, here.
    """

    def __init__(
        self, feed: str | Feed, group: str, ranked: bool | None, options: dict[str, Any], view: str
    ) -> None:
        self.is_own = not isinstance(feed, Feed)
        self.name = feed.name if isinstance(feed, Feed) else feed
        self._feed = feed if isinstance(feed, Feed) else None
        if self._feed is not None and (options or ranked is not None or group != "default"):
            raise InvalidRequest(
                f"feed {self.name} is already attached: group, ranked and other options belong to "
                "attach()"
            )
        self._group = group
        self._ranked = ranked
        self._options = {"view": view, **options}
        self._closed = False
        self.on_attach: Callable[[Feed], None] | None = None

    @property
    def attached(self) -> Feed | None:
        return self._feed

    @property
    def feed(self) -> Feed:
        """The feed; attaches to it if that has not been done."""
        if self._feed is None:
            if self._closed:
                raise FeedDetached(f"feed {self.name}: the loader was closed")
            options: dict[str, Any] = {**self._options, **self._place()}
            feed = attach(self.name, self._group, **options)
            try:
                if self.on_attach is not None:
                    self.on_attach(feed)
            except BaseException:
                feed.close()
                raise
            self._feed = feed
        return self._feed

    def _place(self) -> dict[str, int]:
        """Rank and world of this process, if a launcher says them."""
        given = self._options.get("rank"), self._options.get("world")
        if given != (None, None) or self._ranked is False:
            return {}
        launched = rank_and_world()
        if launched is not None:
            for name in ("rank", "world"):
                self._options.pop(name, None)
            return {"rank": launched[0], "world": launched[1]}
        if self._ranked:
            raise InvalidRequest(
                "ranked=True, but neither torch.distributed nor RANK and WORLD_SIZE say which rank "
                "this is: give rank and world"
            )
        return {}

    def close(self, error: BaseException | None = None) -> None:
        """Leave the group, if the feed was attached here; as the end of a ``with`` block."""
        self._closed = True
        if self.is_own and self._feed is not None:
            self._feed._leave(error)

    def __getstate__(self) -> dict[str, Any]:
        # Processes that are spawned before the first batch get the dataset or loader pickled; the
        # loader sets on_attach again.
        if self._feed is not None:
            raise _no_workers(self.name)
        return {**self.__dict__, "on_attach": None}

    def tensors(self, batch: Batch, copy: bool | None) -> Tensors:
        """A batch that was just taken, in host memory.

        With ``copy=None`` the tensors share its memory, unless that could keep the feed from going
        on: frameworks keep batches, and slots are few.
        """
        if copy is None and batch.view == "private" and self.feed._holds_many(batch):
            copy = True
        return batch.torch(copy)


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

    Each iteration continues where the last one stopped, until the feed ends. The feed is attached
    when the first iteration begins, as the rank that is known then.

    Attributes:
        feed: The ringfeed.Feed; attaches to it if that has not been done.
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
            copy: As for Batch.torch(); with None, batches are copied as soon as three are alive,
                because the feed needs their slots.
            ranked: None: a ranked group if a launcher gives the rank. False: a shared group.
            options: Other arguments of ringfeed.attach(); view is "private" if not given.
        """
        super().__init__()
        self._source = _Source(feed, group, ranked, options, "private")
        self._copy = copy

    @classmethod
    def _of(cls, source: _Source, copy: bool | None) -> FeedDataset:
        dataset = cls.__new__(cls)
        super(FeedDataset, dataset).__init__()
        dataset._source = source
        dataset._copy = copy
        return dataset

    @property
    def feed(self) -> Feed:
        """The ringfeed.Feed; attaches to it if that has not been done."""
        return self._source.feed

    def __iter__(self) -> Iterator[Tensors]:
        if torch.utils.data.get_worker_info() is not None:
            raise _no_workers(self._source.name)
        while True:
            try:
                yield self._source.tensors(self.feed.next(), self._copy)
            except FeedEnd:
                return

    def state_dict(self) -> dict[str, Any]:
        """The place of this dataset: see Feed.state_dict(). torchdata's StatefulDataLoader saves
        it."""
        return self.feed.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was saved: see Feed.load_state_dict()."""
        self.feed.load_state_dict(state)


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

    The feed is attached when it is first needed (an iteration, ``feed``, a state), as the rank that
    is known then. Frameworks make the process group after the loader.

    Attributes:
        feed: The ringfeed.Feed; attaches to it if that has not been done.
        batches: Number of batches of one iteration; None: all.
        device: Where the tensors are; None: host memory.
        epoch: As set by set_epoch().
        dropped: Batches at the end of the feed that this rank did not return, see ``even``.
        dataset, batch_size, sampler, num_workers: As a DataLoader has them, for frameworks.
    """

    sampler = None
    num_workers = 0

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
        even: bool = True,
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
            copy: For host tensors, as for Batch.torch(); with None, batches are copied as soon as
                three are alive, because the feed needs their slots.
            ranked: None: a ranked group if a launcher gives the rank. False: a shared group.
            even: In a ranked group, all ranks get the same number of batches: at the end of the
                feed the last ones are left out if there is not one for each rank. A rank with one
                batch more would wait for the others for ever. False: every batch is returned.
            options: Other arguments of ringfeed.attach(); view, if not given, is "private" for host
                tensors and "readonly" for a device.
        Raises:
            InvalidRequest: The arguments contradict each other. What attach() and Feed.pin() raise
                comes when the feed is attached.
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
        self.dropped = 0
        self._asked_device = device
        self._non_blocking = non_blocking
        self._pin = pin
        self._copy = copy
        self._even = even
        view = "private" if self.device is None else "readonly"
        self._source = _Source(feed, group, ranked, options, view)
        self._at = 0  # batches of the iteration that have been returned
        self._resumed = False
        self._source.on_attach = self._attached
        if not self._source.is_own:
            self._attached(self.feed)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._source.on_attach = self._attached

    def _attached(self, feed: Feed) -> None:
        self.device = _own_device(self._asked_device)  # the launcher may have said LOCAL_RANK since
        if self._pin:
            with _current(self.device):
                feed.pin()

    @property
    def feed(self) -> Feed:
        """The ringfeed.Feed; attaches to it if that has not been done."""
        return self._source.feed

    @property
    def dataset(self) -> FeedDataset:
        """The same feed as a dataset; it shares this loader's place."""
        return FeedDataset._of(self._source, self._copy)

    @property
    def batch_size(self) -> int:
        """Rows of a full batch."""
        return self.feed.schema.rows_max

    def __len__(self) -> int:
        """Batches of one iteration.

        Raises:
            TypeError: It is not known, because a feed is a stream: give ``batches``.
        """
        if self.batches is None:
            raise TypeError(
                f"feed {self._source.name} is a stream and has no length: FeedLoader(..., "
                "batches=N) makes iterations of N batches"
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
        """The next batch; FeedEnd also if there is not one for each rank."""
        feed = self.feed
        batch = feed.next()
        while self._even and feed._world > 1 and not feed._round_is_whole(batch):
            self.dropped += 1
            batch.release()
            batch = feed.next()  # the end: nothing can follow
        self._at += 1
        if self.device is not None:
            return batch.to(self.device, self._non_blocking)
        return self._source.tensors(batch, self._copy)

    def set_epoch(self, epoch: int) -> None:
        """Notes the number of the epoch, for state_dict(). It does not change the order: a feed
        always shuffles anew, from its own seed. After load_state_dict() an epoch other than the
        saved one begins with a whole iteration, not with the rest of the saved one."""
        self._resumed = self._resumed and int(epoch) == self.epoch
        self.epoch = int(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place of this loader, to be saved with the model: plain numbers, strings and
        lists."""
        # A loop over `batches` may end without asking for one more.
        at = 0 if self._at == self.batches else self._at
        return {**self.feed.state_dict(), "epoch": self.epoch, "at": at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was saved, also in the middle of an iteration, as
        Feed.load_state_dict() does.

        Raises:
            InvalidRequest: That is not possible; the text says why. Nothing has changed.
        """
        if not isinstance(state, Mapping):
            raise InvalidRequest(
                f"feed {self._source.name}: a state is what state_dict() returned, not a "
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
        self._source.close()

    def _leave(self, error: BaseException | None) -> None:
        self._source.close(error)

    def __repr__(self) -> str:
        length = "" if self.batches is None else f", batches={self.batches}"
        feed = self._source.attached or repr(self._source.name)
        return f"FeedLoader({feed}, device={self.device}{length})"
