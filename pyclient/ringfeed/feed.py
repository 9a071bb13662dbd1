"""Membership in a consumer group of a feed."""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from . import _native
from ._transfers import Transfers
from .batch import Batch
from .errors import FeedEnd, FeedTimeout, InvalidRequest
from .schema import Schema

# Longest stay in C, in milliseconds, before Python may run signal handlers. Data is not delayed by
# it: the wait in C ends when a batch comes, and with a signal.
_SLICE_MS = 100


@dataclass(frozen=True)
class FeedStats:
    """Where a member, its group and the feed stand; read while they run.

    Attributes:
        phase: "starting", "running", "draining", "ended" or "failed".
        published: Newest batch of the feed, 0 before the first.
        taken, done: Batches that this member has claimed, and of these released.
        lag: Published batches that the group has not finished; at most 256.
        start: First batch that the group is entitled to.
        wait_ns, waits: Time asleep for want of a batch, in nanoseconds, and how often.
        held, max_hold: Batches that this member holds, and may hold.
        slots, lanes: Of the feed: room for batches, and lanes that write them.
        group_index, member, members: Places in the tables, and live members of the group.
        kind, rank, world: "shared" or "ranked"; rank of this member of world.
        supervisor_pid: Process that serves the feed.
        ordered: Do batches come in one fixed order?
        feed_id: 16 random bytes, another for each start of a feed.
        feed, group: Names.
        next: Lowest batch that the group has not finished; in a ranked group, of this rank's.
    """

    phase: str
    published: int
    taken: int
    done: int
    lag: int
    start: int
    wait_ns: int
    waits: int
    held: int
    max_hold: int
    slots: int
    lanes: int
    group_index: int
    member: int
    members: int
    kind: str
    rank: int
    world: int
    supervisor_pid: int
    ordered: bool
    feed_id: bytes
    feed: str
    group: str
    next: int


class Feed:
    """A member of a consumer group: an iterator of batches, and a context manager.

    Attributes: ``name``, ``group``, ``timeout_s`` and ``view``, as given to ``attach``.

    Made by ``attach``. May be used by several threads. Not usable in a forked child
    (ForkedFeed): attach there.
    """

    def __init__(
        self,
        handle: _native.Handle,
        name: str,
        group: str,
        timeout_s: float | None = None,
        on_wait: Callable[[], None] | None = None,
        view: str = "readonly",
    ) -> None:
        self._handle = handle
        self._transfers = Transfers()
        self._unpin: Callable[[], object] | None = None
        self.name = name
        self.group = group
        self.timeout_s = timeout_s
        self.view = view
        self._on_wait = on_wait
        try:
            self._schema = Schema.of(handle)
        except BaseException:
            handle.close(finished=False)
            raise

    @property
    def schema(self) -> Schema:
        """Name, dtype, shape and place of every array of a batch; fixed for the feed's life."""
        return self._schema

    @property
    def closed(self) -> bool:
        """Has close() been called?"""
        return self._handle.closed

    def next(self, timeout_s: float | None = None) -> Batch:
        """Claim the next batch for this member and map it without copying.

        Shapes: as in ``feed.schema``, with ``batch.rows`` rows.
        Args:
            timeout_s: Longest wait in seconds; None: the timeout_s given to attach(), and if that
                is None as well, until a batch comes or the feed ends.
        Returns:
            Name to array, read-only unless another view was asked for. The slot stays claimed
            while an array lives or until release().
        Raises:
            FeedTimeout: Nothing came in time; nothing is claimed, calling again is safe.
            FeedEnd: The feed is closed and this group has had every batch.
            SlotsExhausted: This member holds as many batches as it may, or all that the lanes
                could write into; release one first.
            FeedFailed: The feed has stopped; the text is its reason.
            FeedDetached: The group has left the feed, or this feed was closed.
            ForkedFeed: Called in a child of the process that attached.
            KeyboardInterrupt: Ctrl-C while waiting; nothing is claimed.
        Source: slot of the payload segment named by the batch's descriptor.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = None if limit_s is None else time.monotonic() + limit_s
        collected = False
        self._transfers.forget_finished()
        while True:
            left_ms = _left_ms(deadline)
            slice_ms = min(_SLICE_MS, left_ms) if left_ms >= 0 else _SLICE_MS
            status, text, lease = self._handle.next(slice_ms)
            if lease is not None:
                return Batch(lease, self._schema, self.view, self._transfers)
            if status == _native.TIMEOUT:
                if _left_ms(deadline) == 0:
                    raise FeedTimeout(f"{text} (waited {limit_s:g} s)")
                if self._on_wait is not None:
                    self._on_wait()
            elif status == _native.END:
                raise FeedEnd(f"feed {self.name}: closed, group {self.group} has had every batch")
            elif status == _native.SLOTS_EXHAUSTED and self._transfers.wait_for_oldest():
                pass  # a slot that only the device still read from may have gone back
            elif status == _native.SLOTS_EXHAUSTED and not collected:
                # Arrays that only a reference cycle keeps alive are no one's any more.
                collected = True
                gc.collect()
            elif status != _native.INTERRUPTED:
                raise _native.error_for(status, text)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        try:
            return self.next()
        except FeedEnd:
            raise StopIteration from None

    def stats(self) -> FeedStats:
        """Numbers of this member, its group and the feed, as they are now."""
        return FeedStats(**self._handle.stats())

    @property
    def pinned(self) -> bool:
        """Is the payload registered with CUDA?"""
        return self._unpin is not None

    def pin(self) -> None:
        """Register the feed's memory with CUDA: copies to a device start from the slot itself.

        Without it the driver copies a batch to memory of its own first, and ``non_blocking=True``
        waits for that. It takes a moment for each gigabyte, once; the memory is unregistered by
        close(). Registered memory is read-only for the device; where the driver cannot do that and
        registers it nevertheless, a RuntimeWarning says so. Calling again is harmless.

        Copy with ``batch.to(device, non_blocking=True)``: it keeps the slot until the device has
        read it. With a tensor's own ``.to(..., non_blocking=True)`` that is the caller's business.

        Raises:
            InvalidRequest: PyTorch sees no CUDA device, or the view is not "readonly": pages of
                a private view are copied when they are registered, and copies are not in the feed.
            FeedIOError: The driver refuses; the text is its reason. Nothing has changed.
            FeedDetached: The feed was closed.
            ImportError: PyTorch is not installed.
        """
        if self._unpin is None:
            from . import torch as bridge

            self._unpin = bridge.pin(self, self._handle, self._transfers)

    def _let_devices_go(self) -> None:
        """Waits for copies under way and unregisters what is pinned: the memory may go away."""
        self._transfers.wait()
        if self._unpin is not None:
            self._unpin()
            self._unpin = None

    def close(self) -> None:
        """Leave the group.

        Batches whose arrays still live stay claimed and readable until the last array is gone, or
        this process ends normally; only then the supervisor is told. Threads waiting in next() get
        FeedDetached. The end of a ``with`` block does the same; if an exception ends it, batches
        that are held when the process ends count as not worked on and are delivered again.
        Copies to a device are waited for, and pinned memory is unregistered.
        """
        if not self.closed:
            self._let_devices_go()
        self._handle.close()

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self.closed:
                self._let_devices_go()
        finally:
            # After an exception the work on a batch may have stopped half-way.
            self._handle.close(finished=error is None)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"Feed({self.name!r}, group={self.group!r}{state})"


def attach(
    feed: str,
    group: str = "default",
    *,
    rank: int | None = None,
    world: int | None = None,
    start: str = "oldest",
    timeout_s: float | None = None,
    attach_timeout_s: float | None = 10.0,
    socket_dir: str | os.PathLike[str] | None = None,
    socket_path: str | os.PathLike[str] | None = None,
    policy: str | None = None,
    stall_ms: int | None = None,
    redeliver: bool | None = None,
    max_tries: int | None = None,
    max_hold: int | None = None,
    rejoin_ms: int | None = None,
    view: str = "readonly",
) -> Feed:
    """Become a member of a consumer group of a running feed.

    A group sees every batch; inside it each batch goes to one member. A group that does not exist
    is made with the settings given; of one that exists they must agree, and None always does.

    Args:
        feed: Name of the feed.
        group: Name of the consumer group.
        rank, world: Given together, the group is ranked: member ``rank`` of ``world`` takes the
            batches s with ``(s - 1) % world == rank``, s from 1. Else it is shared: each member
            takes the lowest batch that nobody has.
        start: Where a new group begins: "oldest" batch that is still held, or "newest": the next.
        timeout_s: Longest wait of next() and of loops over the feed; None: no limit.
        attach_timeout_s: Longest wait for the feed to appear and to answer; trainers may be
            started before the feed. None: no limit.
        socket_dir: Directory of control sockets; None: $RINGFEED_SOCKET_DIR, else
            $XDG_RUNTIME_DIR/ringfeed, else /run/ringfeed.
        socket_path: The control socket itself.
        policy: When the group lags and all slots are held: "block" the feed, "skip" the oldest
            batches, or "detach" the group after stall_ms.
        redeliver: Does a batch whose member died go to another one (True), or is it closed?
        max_tries: Deliveries of one batch before it is closed.
        max_hold: Batches that one member may hold at once. A loop over the feed needs 2: the one
            of the last round lives until the next one has come.
        rejoin_ms: Milliseconds that the group waits for members to come back.
        view: What the arrays of a batch are. "readonly": the feed's own memory. "private": the
            same, and what this process writes into it is seen by nobody else and is gone with the
            batch; a page that is written (usually 4 KiB) is copied first. "copy": arrays of their
            own; the slot goes back before next() returns.
    Returns:
        The member: iterate over it, or call next().
    Raises:
        NoSuchFeed: Nobody serves this name within attach_timeout_s.
        FeedTimeout: The supervisor is there but has not answered.
        FeedRefused: The group has other settings, its rank is taken, or no place is free.
        IncompatibleFeed: Another version of ringfeed serves the feed.
        FeedPermission: Another user's feed.
        FeedFailed: The feed has failed, or is about to end.
        InvalidRequest: Arguments that contradict each other.
        KeyboardInterrupt: Ctrl-C while waiting; nothing is attached.
    """
    return _attach(
        feed,
        group,
        rank=rank,
        world=world,
        start=start,
        timeout_s=timeout_s,
        attach_timeout_s=attach_timeout_s,
        socket_dir=socket_dir,
        socket_path=socket_path,
        policy=policy,
        stall_ms=stall_ms,
        redeliver=redeliver,
        max_tries=max_tries,
        max_hold=max_hold,
        rejoin_ms=rejoin_ms,
        view=view,
        on_wait=None,
    )


def _left_ms(deadline: float | None) -> int:
    """Milliseconds to a time.monotonic(), rounded up; -1 for None."""
    if deadline is None:
        return -1
    left_s = deadline - time.monotonic()
    return min(2**31 - 1, math.ceil(left_s * 1000)) if left_s > 0 else 0


def choice(name: str, value: str | None, known: dict[str, int]) -> None:
    if value is not None and value not in known:
        raise InvalidRequest(f"attach: {name}={value!r} is none of {', '.join(known)}")


def _attach(
    feed: str,
    group: str,
    *,
    rank: int | None,
    world: int | None,
    start: str,
    timeout_s: float | None,
    attach_timeout_s: float | None,
    socket_dir: str | os.PathLike[str] | None,
    socket_path: str | os.PathLike[str] | None,
    policy: str | None,
    stall_ms: int | None,
    redeliver: bool | None,
    max_tries: int | None,
    max_hold: int | None,
    rejoin_ms: int | None,
    view: str,
    on_wait: Callable[[], None] | None,
) -> Feed:
    if (rank is None) != (world is None):
        raise InvalidRequest("attach: rank and world are given together or not at all")
    if rank is not None and world is not None and not 0 <= rank < world <= 16:
        raise InvalidRequest(
            f"attach: rank {rank} of world {world}: world is 1 to 16, rank is 0 to world - 1"
        )
    choice("start", start, _native.STARTS)
    choice("policy", policy, _native.POLICIES)
    choice("view", view, _native.VIEWS)
    deadline = None if attach_timeout_s is None else time.monotonic() + attach_timeout_s
    while True:
        # The wait for a missing feed comes in slices; that for an answer is one, which a signal
        # ends: a supervisor that is slow to answer is not asked over and over again.
        left_ms = _left_ms(deadline)
        wait_ms = min(_SLICE_MS, left_ms) if left_ms >= 0 else _SLICE_MS
        status, text, handle = _native.Handle.attach(
            feed=feed,
            group=group,
            timeout_ms=wait_ms,
            answer_ms=left_ms,
            socket_dir=socket_dir,
            socket_path=socket_path,
            client=os.path.basename(sys.argv[0] or "python") if sys.argv else "python",
            kind="ranked" if rank is not None else None,
            rank=rank,
            world=world,
            start=start,
            policy=policy,
            redeliver=redeliver,
            max_tries=max_tries,
            max_hold=max_hold,
            stall_ms=stall_ms,
            rejoin_ms=rejoin_ms,
            view=view,
        )
        if handle is not None:
            return Feed(handle, feed, group, timeout_s, on_wait, view)
        error = _native.error_for(status, text)
        if status == _native.INTERRUPTED:
            continue
        if status != _native.NO_SUCH_FEED or _left_ms(deadline) == 0:
            raise error
        if on_wait is not None:
            on_wait()
