"""Membership in a consumer group of a feed."""

from __future__ import annotations

import copy
import gc
import logging
import math
import os
import shlex
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ._core import control, messages, native, standard, states
from ._core.feed_log import FeedLog
from ._core.scope import Scope
from ._core.transfers import Transfers
from .batch import Batch
from .errors import (
    FeedEnd,
    FeedFailed,
    FeedIOError,
    FeedTimeout,
    InvalidRequest,
    RingfeedError,
)
from .schema import Schema

# Longest stay in C, in milliseconds, before Python may run signal handlers. It does not delay data:
# the wait in C ends when a batch comes, and with a signal.
_SLICE_MS = 100
# A member that has waited in vain for this many seconds asks the supervisor why.
_ASK_S = 1.0
# Longest wait for the totals at the end of a feed, in seconds.
_TOTALS_S = 1.0
# The same for its supervisor to say that it has failed, and how often that is looked for.
_VERDICT_S, _LOOK_S = 2.0, 0.001


_log = logging.getLogger("ringfeed")

# As supervisor/feed/losses.cc: sums of others, and files that were not meant to be read; and losses
# by another name.
_SKIPPED = "skipped_"
_NO_LOSSES = ("skipped_files", "skipped_extension")
_LOSSES = (
    *("chunks_damaged", "directions_missing", "frames_skipped", "plans_damaged"),
    *("rows_damaged", "rows_too_large", "sequences_skipped", "tar_problems"),
)


def losses_in(totals: dict[str, Any]) -> tuple[int, list[tuple[str, str, int]]]:
    """Rows in batches, and what was left out: stage, reason, how many; the most frequent first.

    Args:
        totals: Of Feed.metrics().
    """
    rows = 0
    reasons = []
    for stage in totals["total"]["stage_metrics"]:
        counters = {one["name"]: one.get("value", 0) for one in stage.get("other_counters", ())}
        for own in stage.values():
            if isinstance(own, dict):
                counters |= {name: value for name, value in own.items() if type(value) is int}
        if "batches" in counters:
            rows += counters.get("rows", 0)
        reasons += [
            (stage["name"], name.removeprefix(_SKIPPED), value)
            for name, value in counters.items()
            if name in _LOSSES or (name.startswith(_SKIPPED) and name not in _NO_LOSSES)
            if value
        ]
    return rows, sorted(reasons, key=lambda one: -one[2])


@dataclass(frozen=True)
class FeedStats:
    """The state of a member, its group and the feed; read while they run.

    Attributes:
        phase: "starting", "running", "draining", "ended", "failed" or "stopped".
        published: Newest batch of the feed. Before the first one 0, or N - 1 in a feed that begins
            with batch N.
        taken, done: Batches that this member has claimed, and how many of these it has released.
        lag: Published batches that the group has not finished; at most 256.
        start: First batch that the group is entitled to.
        wait_ns, waits: Time spent waiting for a batch, in nanoseconds, and the number of waits.
        held, max_hold: Batches that this member holds, and may hold.
        slots, lanes: The feed's room for batches, and the lanes that write them.
        group_index, member, members: Places in the feed's tables, and live members of the group.
        kind, rank, world: "shared" or "ranked"; rank of this member of world.
        supervisor_pid: Process that serves the feed.
        ordered: Do batches come in one fixed order?
        feed_id: 16 random bytes, different for each start of a feed.
        feed, group: Names.
        next: Lowest batch that the group has not finished; in a ranked group, the lowest of this
        rank.
        socket: Path of the supervisor's control socket.
        output: Alias of the output that the batches come from, "" if it has none.
        closed: Nothing will be published after ``published``.
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
    socket: str
    output: str
    closed: bool


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that was taken.

    Attributes:
        directory: Where it is.
        bytes: Bytes of the feed's memory in it.
        newest_batch: Number of the newest batch in it, of the feed's first output; 0 before the
            first.
        pause_s: How long the stages stood still, in seconds.
        total_s: How long it took until the snapshot was safe on disk, in seconds.
    """

    directory: Path
    bytes: int
    newest_batch: int
    pause_s: float
    total_s: float


@dataclass(frozen=True)
class Bottleneck:
    """What limits the batches of an output of a feed.

    Attributes:
        kind: "stage", "trainers", "files", "machine", "queue", "gives_nothing", "leaves_out", or
            "unknown": see the sentence.
        sentence: What, why and what to do, with numbers.
        stage: Name of the stage; for "machine", of the slowest one; for "queue", of the one that
            fills it; "" otherwise.
        part: Part of the stage ("read" of a pool); "": the stage itself.
        output: Alias of the output, "" if it has none.
        seconds: The time that it is based on.
        lanes, lanes_max: Number of lanes of the stage, and the most it may be scaled to while it
            runs; 0: it cannot be scaled.
        batches_per_s: Batches of the output, now.
        batches_per_s_next: The same with one more lane of the stage; None if that would not help.
        next: What limits then.
        shares: For each stage or part of a stage: its lanes, and the shares of their time in which
            they are busy, starved, blocked, and, while busy, on a processor (cpu) or ready without
            one (core_wait).
    """

    kind: str
    sentence: str
    stage: str
    part: str
    output: str
    seconds: float
    lanes: int
    lanes_max: int
    batches_per_s: float
    batches_per_s_next: float | None
    next: str
    shares: dict[str, dict[str, float]]


class Feed(Scope):
    """A member of a consumer group: an iterator of batches, and a context manager.

    Attributes: ``name``, ``group``, ``timeout_s`` and ``view``, as given to ``attach``;
    ``observes``: it is no member, see ``attach(observe=True)``; ``end_reason``: why the feed ended
    ("the run is over", or who drained it), None before that.

    ``attach`` makes it. Several threads may use it. A forked child cannot use it (ForkedFeed):
    attach there.
    """

    def __init__(
        self,
        handle: native.Handle,
        name: str,
        group: str,
        timeout_s: float | None = None,
        on_wait: Callable[[], None] | None = None,
        view: str = "readonly",
        attach_at: Callable[[int], native.Handle] | None = None,
        socket_path: Path | None = None,
        observes: bool = False,
    ) -> None:
        self._handle = handle
        self.observes = observes
        self._attach_at = attach_at
        self._socket_path = socket_path
        self._last = 0  # number of the last batch that was returned
        self._leases: list[tuple[int, weakref.ref[Any]]] = []
        self._again: set[int] = set()  # batches that may come again and have been seen
        # Says whether to pass over a batch, unseen; None: pass over none.
        self._passes: Callable[[Batch], bool] | None = None
        # The next batch, claimed and looked at but not returned yet. At most one, of one thread.
        self._ahead: deque[tuple[Batch, weakref.ref[Any]]] = deque()
        self._transfers = Transfers()
        self._unpin: Callable[[], object] | None = None
        self.name = name
        self.group = group
        self.timeout_s = timeout_s
        self.view = view
        self.end_reason: str | None = None
        self._totals: dict[str, Any] | None = None  # as the supervisor had them at the end
        self._on_wait = on_wait
        self._log: FeedLog | None = None  # of a feed that this process has started
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

        Shapes: as in ``feed.schema``, with ``batch.rows`` rows and the lengths of ``batch.ragged``.
        Args:
            timeout_s: Longest wait in seconds; None: the timeout_s given to attach(), and if that
                is None too, until a batch comes or the feed ends.
        Returns:
            Name to array, read-only unless another view was asked for. The slot stays claimed
            while an array lives or until release().
        Raises:
            FeedTimeout: Nothing came in time; nothing is claimed, calling again is safe.
            FeedEnd: The feed is closed and this group has had every batch.
            SlotsExhausted: This member holds as many batches as it may, or all slots that the lanes
                could write; release one first.
            FeedFailed: The feed has stopped; the text is its reason.
            FeedStopped: The feed was stopped before its end; the text says by whom.
            FeedDetached: The group has left the feed, or this feed was closed.
            FeedDamaged: A batch contradicts the schema; it is skipped, calling again is safe.
            ForkedFeed: Called in a child of the process that attached.
            KeyboardInterrupt: Ctrl-C while waiting; nothing is claimed.
        Source: slot of the payload segment named by the batch's descriptor.
        """
        batch, lease = self._ahead.popleft() if self._ahead else self._claim(timeout_s)
        self._note(batch.seq, lease)
        return batch

    def _peek(self) -> Batch:
        """The batch that next() will return; for one thread, which is also that of next()."""
        if not self._ahead:
            self._ahead.append(self._claim(None))
        return self._ahead[0][0]

    def _claim(self, timeout_s: float | None) -> tuple[Batch, weakref.ref[Any]]:
        """As next(), but does not record the batch. Returns the batch and its lease."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = None if limit_s is None else time.monotonic() + limit_s
        collected = False
        self._handle.reads_log = self._log is not None
        self._transfers.forget_finished()
        while True:
            left_ms = _left_ms(deadline)
            slice_ms = min(_SLICE_MS, left_ms) if left_ms >= 0 else _SLICE_MS
            status, text, lease = self._handle.next(slice_ms)
            if self._log is not None:
                self._log.pass_on()
            if lease is not None:
                batch = Batch(lease, self._schema, self.view, self._transfers)
                if batch.seq in self._again:
                    self._again.discard(batch.seq)
                    batch.release()
                    continue
                if self._passes is not None and self._passes(batch):
                    batch.release()
                    continue
                return batch, weakref.ref(lease)
            if status == native.TIMEOUT:
                if _left_ms(deadline) == 0:
                    # Do not ask after a mere poll.
                    waits = self._waits_for() if (limit_s or 0.0) >= _ASK_S else ""
                    raise FeedTimeout(
                        f"{text} (waited {limit_s:g} s){'; ' + waits if waits else ''}"
                    )
                if self._on_wait is not None:
                    self._on_wait()
            elif status == native.END:
                if self.end_reason is None:
                    self._keep_totals()
                    if self._has_failed_at_the_end():
                        continue
                    self._tell_losses()
                self.end_reason = text
                raise FeedEnd(
                    f"feed {self.name}: closed, group {self.group} has had every batch: {text}"
                )
            elif status == native.SLOTS_EXHAUSTED and self._transfers.wait_for_oldest():
                pass  # a slot that only the device was still reading may be free now
            elif status == native.SLOTS_EXHAUSTED and not collected:
                # Collect arrays that only a reference cycle keeps alive.
                collected = True
                gc.collect()
            elif status != native.INTERRUPTED:
                error = native.error_for(status, text)
                if isinstance(error, FeedFailed) and self._log is not None:
                    # Shared memory has room for the beginning and the end of a long one.
                    raise FeedFailed(self._log.failure or text)
                raise error

    def _note(self, seq: int, lease: weakref.ref[Any]) -> None:
        self._last = seq
        self._leases = [(held, alive) for held, alive in self._leases if alive() is not None]
        self._leases.append((seq, lease))

    @cached_property
    def _shape(self) -> FeedStats:
        """Numbers that stay: lanes, slots, world, rank, max_hold."""
        return self.stats()

    @property
    def _world(self) -> int:
        return 1 if self.observes else self._shape.world

    def _holds_many(self, batch: Batch) -> bool:
        """For a batch that was just taken: if it is kept, may one of the next two not come?

        A loop holds two at most: the last batch lives until it has the next one.
        """
        if self.observes:
            return False
        shape = self._shape
        held = [seq for seq, lease in self._leases if lease() is not None]
        same_lane = sum(seq % shape.lanes == batch.seq % shape.lanes for seq in held)
        return (
            len(held) > 2
            or len(held) >= shape.max_hold
            or same_lane >= shape.slots // shape.lanes
            # If all ranks hold as many.
            or len(held) * shape.world >= shape.slots
        )

    def _round_is_whole(self, batch: Batch) -> bool:
        """In a ranked group: is there a batch for each rank? Waits until that is known.

        Holds no slot meanwhile, if the feed may need it for the batches of the other ranks.
        """
        shape = self._shape
        last = batch.seq - shape.rank + shape.world - 1
        pause_s = 0.0005
        while True:
            stats = self.stats()
            # What a feed that fails has published is delivered; next() gives the reason.
            if stats.published >= last or stats.phase in ("failed", "stopped"):
                return True
            if stats.closed:
                return False
            if batch._lease is not None and 2 * shape.world > shape.slots:
                batch._copy_out()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)

    def _waits_for(self) -> str:
        """What the feed waits for, as the supervisor says; "" if it says nothing."""
        try:
            return control.waits_for(self.stats().socket)
        except RingfeedError:
            return ""

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

    def snapshot(
        self, directory: str | os.PathLike[str], timeout_s: float | None = None
    ) -> Snapshot:
        """Save the whole feed, so that ``ringfeed run --resume`` can continue from there.

        The feed continues meanwhile; it pauses for some milliseconds only. Take the snapshot
        before state_dict(): batches that are returned between the two are then passed over after a
        resume.

        Args:
            directory: A directory on the supervisor's machine. It is made complete or not at all; a
                snapshot in its place is replaced.
            timeout_s: Longest wait in seconds; None: until it is done.
        Raises:
            FeedRefused: The snapshot could not be taken; the text is the reason.
                The feed continues.
            FeedIOError: The supervisor does not answer in time, or is gone. The text says whether
                the request is withdrawn, or the snapshot is still being taken.
        """
        path = Path(directory).absolute()
        if self._socket_path is None:
            raise InvalidRequest(f"feed {self.name}: its supervisor cannot be reached")
        facts = control.snapshot(self._socket_path, str(path), timeout_s)
        return Snapshot(
            directory=path,
            bytes=facts.get(messages.SnapshotReply.bytes, 0),
            newest_batch=facts.get(messages.SnapshotReply.newest_batch, 0),
            pause_s=facts.get(messages.SnapshotReply.pause_us, 0) / 1e6,
            total_s=facts.get(messages.SnapshotReply.total_ms, 0) / 1e3,
        )

    def control(self, message: Any, stage: str | None = None) -> list[tuple[str, Any]]:
        """Pass a message to one stage, or to all stages that understand it; it takes effect exactly
        once.

        Args:
            message: A StageControlRequest (proto/control.proto), as a message or serialized.
            stage: Name of the stage; None: every stage.
        Returns:
            (name of the stage, StageControlResponse) for each answer; the response is a message if
            a message was given, else bytes.
        Raises:
            FeedRefused: There is no such stage, or it has not answered.
            FeedIOError: The supervisor does not answer.
        """
        if self._socket_path is None:
            raise InvalidRequest(f"feed {self.name}: its supervisor cannot be reached")
        return control.pass_on(self._socket_path, message, stage)

    def metrics(self) -> dict[str, Any]:
        """Numbers of the whole feed: totals, and those of the last 1, 10 and 60 seconds.

        Returns:
            A MetricsReply (proto/metrics.proto) as dictionaries, lists and numbers, by the names of
            its fields: ``["total"]["stage_metrics"][i]``, and ``["windows"][w]`` with
            ``seconds_covered`` and ``metrics``. Fields without a value are left out. After the end
            of the feed, the numbers of the moment when next() raised FeedEnd.
        Raises:
            FeedIOError: The supervisor does not answer, and did not at the end of the feed.
        """
        if self._socket_path is None:
            raise InvalidRequest(f"feed {self.name}: its supervisor cannot be reached")
        if self._totals is None:
            return control.metrics(self._socket_path)
        if not self._is_over():  # another output may go on
            try:
                self._totals = control.metrics(self._socket_path)
            except FeedIOError:
                pass
        return copy.deepcopy(self._totals)

    def _is_over(self) -> bool:
        """For a member that has reached the end: is the whole feed over, with all its outputs?"""
        try:
            stats = self.stats()
        except RingfeedError:
            return True
        return stats.output == "" or stats.phase == "ended"

    def _keep_totals(self) -> None:
        """Keep the last numbers: the supervisor waits a moment for this question and then ends."""
        if self._socket_path is None:
            return
        try:
            self._totals = control.metrics(self._socket_path, _TOTALS_S)
        except RingfeedError:
            pass  # it has ended already: metrics() says so

    def _has_failed_at_the_end(self) -> bool:
        """Waits until the supervisor says what the end of the lanes was: they close before it has
        looked at what was left out. Not long: it may be hanging."""
        # One that does not answer has said it, or has been killed.
        deadline = time.monotonic() + (_VERDICT_S if self._totals is not None else 0)
        while (phase := self.stats().phase) in ("starting", "running"):
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        if self._log is not None:
            self._log.pass_on()
        return phase == "failed"

    def _tell_losses(self) -> None:
        """Says what the run has left out, of a feed whose log is somebody else's."""
        if self._log is not None or self._totals is None:
            return
        rows, reasons = losses_in(self._totals)
        left_out = sum(count for _, _, count in reasons)
        if left_out:
            _log.warning(
                "feed %s: the run is over: %d rows came, %d samples were left out: %s",
                *(self.name, rows, left_out),
                ", ".join(f"{stage}: {count} {name}" for stage, name, count in reasons),
            )

    def why(self) -> list[Bottleneck]:
        """What limits the feed, for each of its outputs, over the last ten seconds at most.

        Raises:
            FeedIOError: The supervisor does not answer.
        """
        return [_bottleneck(found) for found in self.metrics()["bottlenecks"]]

    def state_dict(self) -> dict[str, Any]:
        """The place of this member, to be saved with the model: plain numbers, strings and
        lists.

        ``"snapshot"`` is the directory of the newest snapshot of the feed that leads to this place,
        if there is one: ``ringfeed run --resume`` continues there, and the state is good for that.
        ``"lineage"`` names the batches of a feed that can begin with any of them (translation): the
        state is good for every run of the same configuration and seed.

        Raises:
            InvalidRequest: An observer has no place.
        """
        self._must_be_member("has no place that could be saved")
        stats = self.stats()
        following = self._next_batch(stats)
        state = states.sealed(
            {
                "version": states.VERSION,
                **_place(stats),
                "last": self._last,
                "next": following,
                # Returned and still held: these come again if this process dies now.
                "held": [seq for seq, lease in self._leases if lease() is not None],
            }
        )
        snapshot, lineage = self._beginnings(following, stats)
        if snapshot is not None:
            state["snapshot"] = snapshot["directory"]
        return {**state, "lineage": lineage} if lineage else state

    def _beginnings(self, batch: int, stats: FeedStats) -> tuple[dict[str, Any] | None, str]:
        """The newest snapshot of this run from which this group still gets the batch, and the
        feed's lineage, if it has one; as far as its supervisor answers."""
        try:
            found, lineage = control.snapshots(stats.socket)
        except RingfeedError:
            return None, ""
        place = stats.group, stats.output
        fitting = [one for one in found if 0 < one["places"].get(place, 0) <= batch]
        return (fitting[-1] if fitting else None), lineage

    def _elsewhere(self, batch: int, stats: FeedStats) -> str:
        """What to do about a batch that the feed does not hold any more."""
        snapshot, lineage = self._beginnings(batch, stats)
        if lineage:
            world = max(stats.world, 1)
            first = (batch - 1) // world * world + 1  # of the round, for all ranks
            return (
                f"to get there, note the seed that `ringfeed status {stats.feed}` shows, then "
                f"`ringfeed stop {stats.feed}`, then `ringfeed run CONFIG --set seed=SEED "
                f"--from-batch {first}`; {_OR_GO_ON}"
            )
        if snapshot is None:
            return _ELSEWHERE
        directory = snapshot["directory"]
        return (
            f"the snapshot {directory} ({snapshot['bytes'] / 2**20:.1f} MiB, up to batch "
            f"{snapshot['newest_batch']}) leads there: `ringfeed stop {stats.feed}`, then "
            f"`ringfeed run --resume {shlex.quote(directory)}`; {_OR_GO_ON}"
        )

    def _must_be_member(self, why_not: str) -> None:
        if self.observes:
            raise InvalidRequest(f"feed {self.name}: an observer {why_not}: attach as a member")

    def _next_batch(self, stats: FeedStats) -> int:
        """Number of the batch that is returned next; one may have been claimed already."""
        if self._last:
            return self._last + stats.world
        return self._ahead[0][0].seq if self._ahead else stats.next

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was saved: the next batch is the one that would have come then.

        Batches that had been returned by then and would come again (because this process died, or
        the feed was resumed from an earlier snapshot) are passed over. If the group has gone on
        since, it is put back. For that, the feed must still hold the batches, and no member of the
        group may hold one; every rank of a ranked group does it for itself. In a shared group of
        several members, a member has no position of its own: the batches that this member held are
        passed over when they come again. The state of another rank of the same group names the
        same round of batches, because ranks train in step.

        A position that the feed has not reached is accepted only if the state is, field for field,
        what state_dict() made: then the feed was resumed from an earlier snapshot, and will reach
        it.

        Raises:
            InvalidRequest: This is not a state, or it is damaged. It belongs to another feed, group
                or rank, or to another run that does not have the same lineage. Or the feed no
                longer holds that batch: then start the feed from the snapshot that was taken with
                the state, or with ``--from-batch`` if its states have a lineage. Nothing has
                changed.
        """
        self._must_be_member("has no place that could be changed")
        stats = self.stats()
        where = f"feed {stats.feed}, group {stats.group}"
        place = _place(stats)
        if isinstance(state, Mapping) and state.get("feed_id") != place["feed_id"]:
            # Another run, but perhaps of the same batches.
            lineage = self._beginnings(0, stats)[1]
            if lineage and state.get("lineage") == lineage:
                place["feed_id"] = state.get("feed_id")
        saved = states.read(state, place, where, _ELSEWHERE)
        if saved.next > stats.published + stats.world and not saved.is_whole:
            raise InvalidRequest(
                f"{where}: the state's next batch is {saved.next}, the newest one of the feed is "
                f"{stats.published}, and the state differs from what state_dict() made: "
                f"{_ELSEWHERE}"
            )
        ahead = self._ahead[0][0].seq if self._ahead else 0
        if stats.kind == "shared" and stats.members > 1:
            self._again = set(saved.held)
            if ahead in self._again:
                self._ahead.clear()
        elif (ahead or stats.next) <= saved.next:
            self._handle.pass_over(saved.next)
            if ahead < saved.next:
                self._ahead.clear()
        else:
            self._put_back(saved.next, where)
        self._last = saved.last

    def _put_back(self, position: int, where: str) -> None:
        """Become a member that starts with an earlier batch; if that is refused, nothing changes.

        The new place is taken before the old one is left, because a group may end with its last
        member.
        """
        if self._ahead:
            # It is claimed, although nobody holds it. A copy stays the next batch if this fails.
            batch, lease = self._ahead[0]
            held = lease()
            if held is not None:
                self._ahead[0] = (Batch(held, self._schema, "copy", self._transfers), lease)
            del batch, held
        stats = self.stats()
        if stats.held:
            raise InvalidRequest(
                f"{where}: release the {stats.held} batches that this member holds before going "
                f"back to batch {position}"
            )
        if self._attach_at is None:
            raise InvalidRequest(
                f"{where}: batches from {position} on have been used since the state was saved, "
                f"the next one is {stats.next}: {self._elsewhere(position, stats)}"
            )
        try:
            handle = self._attach_at(position)
        except RingfeedError as error:
            if isinstance(error, FeedTimeout) or _MOVED in str(error):
                self._follow(stats)
            leads = any(self._beginnings(position, stats))
            more = f"; {self._elsewhere(position, stats)}" if leads else ""
            raise InvalidRequest(f"{where}: {error}{more}") from error
        goes_on_with = handle.stats()["next"]
        if goes_on_with > position:
            handle.pass_over(stats.next)  # as if nothing had been asked
        pinned = self.pinned
        self._let_devices_go()
        old, self._handle = self._handle, handle
        old.close()
        if pinned:
            self.pin()
        if goes_on_with > position:
            raise InvalidRequest(
                f"{where}: batches from {position} on have been used since the state was saved, "
                f"the next one is {goes_on_with}: {self._elsewhere(position, stats)}"
            )
        self._ahead.clear()

    def _follow(self, stats: FeedStats) -> None:
        """Check whether the group has moved although the new place was refused in the end. If so,
        follow it and pass over what this member has had."""
        status, _, lease = self._handle.next(0)
        if lease is not None:
            batch = Batch(lease, self._schema, self.view, self._transfers)
            self._ahead.append((batch, weakref.ref(lease)))
        elif status == native.DETACHED and self._attach_at is not None:
            handle = self._attach_at(stats.next)
            self._let_devices_go()
            old, self._handle = self._handle, handle
            old.close()

    @property
    def pinned(self) -> bool:
        """Is the payload registered with CUDA?"""
        return self._unpin is not None

    def pin(self) -> None:
        """Register the feed's memory with CUDA, so that copies to a device start from the slot
        itself.

        Without it the driver first copies a batch to its own memory, and ``non_blocking=True``
        waits for that. Registering takes a moment for each gigabyte, once; close() unregisters.
        Registered memory is read-only for the device. If the driver cannot do that and registers
        the memory all the same, a RuntimeWarning says so. Calling again is harmless.

        Copy with ``batch.to(device, non_blocking=True)``: it keeps the slot until the device has
        read it. With a tensor's own ``.to(..., non_blocking=True)`` the caller must do that.

        Raises:
            InvalidRequest: PyTorch sees no CUDA device, or the view is not "readonly": registering
                copies the pages of a private view, and the arrays of view="copy" are not in the
                feed.
            FeedIOError: The driver refuses; the text is its reason. Nothing has changed.
            FeedDetached: The feed was closed.
            ImportError: PyTorch is not installed.
        """
        if self._unpin is None:
            from ._core import torch_bridge as bridge

            self._unpin = bridge.pin(self, self._handle, self._transfers)

    def _let_devices_go(self) -> None:
        """Waits for copies in progress and unregisters pinned memory, so that the memory may go
        away."""
        self._transfers.wait()
        if self._unpin is not None:
            self._unpin()
            self._unpin = None

    def close(self) -> None:
        """Leave the group.

        Batches whose arrays still live stay claimed and readable until the last array is gone, or
        this process ends normally; only then is the supervisor told. Threads waiting in next() get
        FeedDetached. The end of a ``with`` block does the same. If an exception ends the block,
        batches that are held when the process ends count as not used and are delivered again.
        close() waits for copies to a device and unregisters pinned memory.
        """
        self._ahead.clear()
        if not self.closed:
            self._let_devices_go()
        self._handle.close()

    def _leave(self, error: BaseException | None) -> None:
        if error is None:
            self._ahead.clear()
        try:
            if not self.closed:
                self._let_devices_go()
        finally:
            # After an exception the work on a batch may be incomplete.
            self._handle.close(finished=error is None)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"Feed({self.name!r}, group={self.group!r}{state})"


def _place(stats: FeedStats) -> dict[str, Any]:
    """The fields of a state that must agree."""
    return {
        "feed": stats.feed,
        "feed_id": stats.feed_id.hex(),
        "group": stats.group,
        "output": stats.output,
        "rank": stats.rank,
        "world": stats.world,
    }


def _bottleneck(found: Mapping[str, Any]) -> Bottleneck:
    return Bottleneck(
        kind=found["kind"].lower(),
        sentence=found["sentence"],
        stage=found.get("stage", ""),
        part=found.get("part", ""),
        output=found.get("output", ""),
        seconds=found.get("seconds_covered", 0.0),
        lanes=found.get("lanes", 0),
        lanes_max=found.get("lanes_max", 0),
        batches_per_s=found["batches_per_s"],
        batches_per_s_next=found.get("batches_per_s_next"),
        next=found.get("next", ""),
        shares={
            share["name"]: {name: value for name, value in share.items() if name != "name"}
            for share in found["shares"]
        },
    )


# Words of rf_attach's message if a batch was given up between the supervisor's answer and the
# admission.
_MOVED = "the group begins with"
_OR_GO_ON = "without load_state_dict() training continues with the next batch"
_ELSEWHERE = (
    "this needs a snapshot of the feed saved together with the model (ringfeed run --resume); "
    f"{_OR_GO_ON}"
)


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
    output: str | None = None,
    observe: bool = False,
) -> Feed:
    """Become a member of a consumer group of a running feed.

    A group sees every batch; inside it each batch goes to one member. A group that does not exist
    is made with the given settings. If it exists, the settings must agree; None always agrees.

    Args:
        feed: Name of the feed.
        group: Name of the consumer group.
        rank, world: Give both for a ranked group: member ``rank`` of ``world`` takes the batches s
            with ``(s - 1) % world == rank``, s from 1. Without them the group is shared: each
            member takes the lowest batch that nobody has.
        start: Where a new group begins: "oldest": the oldest batch that is still held; "newest":
        the next batch.
        timeout_s: Longest wait of next() and of loops over the feed; None: no limit.
        attach_timeout_s: Longest wait for the feed to appear and to answer, in seconds, so that
            trainers may start before the feed. None: no limit.
        socket_dir: Directory of control sockets; None: $RINGFEED_SOCKET_DIR, else
            $XDG_RUNTIME_DIR/ringfeed, else /run/ringfeed.
        socket_path: The control socket itself.
        policy: When the group lags and all slots are held: "block" the feed, "skip" the oldest
            batches, or "detach" the group after stall_ms.
        redeliver: When this member dies, its batches go to another member (True), or they are
            closed, so that no batch ever comes twice (False). None: the setting of the group, which
            is True unless the configuration, or the member that made the group, says otherwise.
        max_tries: Deliveries of one batch before it is closed.
        max_hold: Batches that one member may hold at once. A loop over the feed needs 2: the last
            batch lives until the next one has come.
        rejoin_ms: Milliseconds that the group waits for members to come back; 0: not at all.
        view: What the arrays of a batch are. "readonly": the feed's own memory. "private": the
            same, but this process may write; nobody else sees that, it is lost with the batch, and
            a page that is written (usually 4 KiB) is copied first. "copy": copies; the slot goes
            back before next() returns.
        output: Alias of the output to read, for a feed with several ("train", "validation"); None:
            its first one. Each output has its own consumer groups.
        observe: Only look, for notebooks, dashboards and debugging: next() gives the newest batch
            that it has not given before, as a copy. An observer is in no group, takes nothing from
            anybody and holds nothing up; batches that come faster than it asks pass it by. All
            arguments about a group must be left out.
    Returns:
        The member: iterate over it, or call next().
    Raises:
        NoSuchFeed: No supervisor serves this name within attach_timeout_s.
        FeedTimeout: The supervisor is there but has not answered.
        FeedRefused: The group has other settings, its rank is taken, or no place is free.
        IncompatibleFeed: A different version of ringfeed serves the feed.
        FeedPermission: The feed belongs to another user, or does not see this process.
        FeedFailed: The feed has failed, or is about to end.
        InvalidRequest: The arguments contradict each other; the feed has no such output (the text
            lists those it has); or the output cannot have this policy.
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
        output=output,
        observe=observe,
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
        raise InvalidRequest(f"attach: {name}={value!r} is not one of {', '.join(known)}")


def _check_observer(group: str, **about_group: object) -> None:
    names = [name for name, value in about_group.items() if value is not None]
    if group != "default":
        names.insert(0, "group")
    if names:
        raise InvalidRequest(f"attach: an observer is in no group: leave out {', '.join(names)}")


def _check_rank(rank: int | None, world: int | None) -> None:
    if (rank is None) != (world is None):
        given, missing = ("rank", "world") if world is None else ("world", "rank")
        raise InvalidRequest(
            f"attach: {given}={rank if world is None else world} without {missing}: give both "
            "rank and world (world: number of ranks, 1 to 16; rank: 0 to world - 1), or neither "
            "for a shared group"
        )
    if rank is not None and world is not None and not 0 <= rank < world <= 16:
        raise InvalidRequest(
            f"attach: rank {rank} of world {world}: world must be 1 to 16, rank 0 to world - 1"
        )


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
    output: str | None,
    on_wait: Callable[[], None] | None,
    observe: bool = False,
) -> Feed:
    if observe:
        _check_observer(
            group,
            rank=rank,
            world=world,
            policy=policy,
            stall_ms=stall_ms,
            redeliver=redeliver,
            max_tries=max_tries,
            max_hold=max_hold,
            rejoin_ms=rejoin_ms,
        )
    _check_rank(rank, world)
    choice("start", start, native.STARTS)
    choice("policy", policy, native.POLICIES)
    choice("view", view, native.VIEWS)
    standard.reserve()

    def attach_at(position: int) -> native.Handle:
        deadline = None if attach_timeout_s is None else time.monotonic() + attach_timeout_s
        while True:
            # The wait for a missing feed is cut into slices. The wait for an answer is not; a
            # signal ends it. So a slow supervisor is not asked over and over again.
            left_ms = _left_ms(deadline)
            wait_ms = min(_SLICE_MS, left_ms) if left_ms >= 0 else _SLICE_MS
            status, text, handle = native.Handle.attach(
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
                position=position,
                output=output,
                observe=observe,
            )
            if handle is not None:
                return handle
            error = native.error_for(status, text)
            if status == native.INTERRUPTED:
                continue
            if status != native.NO_SUCH_FEED or _left_ms(deadline) == 0:
                raise error
            if on_wait is not None:
                on_wait()

    place = Path(socket_path) if socket_path else control.find_socket(feed, socket_dir)
    return Feed(
        attach_at(0),
        feed,
        "" if observe else group,
        timeout_s,
        on_wait,
        view,
        attach_at,
        place,
        observes=observe,
    )
