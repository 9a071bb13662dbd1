"""The feed behind a DataLoader with workers: processes, requests, and the batches that come back.

What PyTorch's iterator has as queues and processes stands here with the same methods, over a feed:
an index put into a worker's queue is a request, the queue of results gives batches of the feed.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import logging
import os
import pickle
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import _utils

from .._core import native
from .._core.standstill import Standstill
from ..errors import FeedDetached, FeedFailed, RingfeedError
from ._batches import is_plain, read
from ._forks import UNKNOWN, Start
from ._job import (
    ACK,
    AS_BEFORE,
    BEGAN,
    DATA,
    FETCH,
    HEAD,
    LEAVE,
    NAME_BYTES,
    RESUME,
    RESUMED,
    TOGETHER,
    WANTED,
    Job,
    has_begun,
    name_in,
    note_asked,
    process_of,
)
from ._life import identities
from ._own_feed import OwnFeed, environment, give, take
from ._reasons import Reasons

_log = logging.getLogger("ringfeed")

_SLICE_MS = 50  # of a wait, after which processes are looked at
_LOOK_NS = 1_000_000_000  # and that often if there is no wait
_PARENT_S = 5.0  # for a warm parent to end, which waits for its workers
# A batch that takes less is not waited for if it is begun late, and to wake its worker for it alone
# costs as much again.
_CHEAP_NS = 200_000
_CHEAP_BYTES = 1 << 18
PARENTS_MAX = 20
_GROUP = re.compile(r" group=dataset\.(\d+) ")


def process_kind(loader: Any) -> str:
    """What names of the loader's processes begin with, as of PyTorch's."""
    context = loader.multiprocessing_context
    kind = "Process" if context is None else getattr(context.Process, "__name__", "Process")
    return str(kind)


class Workers:
    """The processes of one iterator, and its turn of a feed."""

    def __init__(self, arguments: dict[str, Any], context: Any, settings: dict[str, Any]) -> None:
        """
        Args:
            arguments: Those of PyTorch's worker loop, by name.
            context: The multiprocessing context that starts the warm parent.
            settings: prefetch_factor, stall_timeout (seconds), max_attempts, on_poison,
                dataset_state.
        """
        self._pid = os.getpid()
        self._context = context
        self._settings = settings
        workers = arguments["num_workers"]
        self._local: collections.deque[Any] = collections.deque()
        self._cheap = [False] * workers  # was its last batch made sooner than it is woken?
        self._look_at_ns = time.monotonic_ns() + _LOOK_NS
        self._parents = 0  # warm parents that have died since the last batch
        self._stopped = False
        self._taken = False  # a batch
        self.left_out = 0  # samples
        self.began: dict[int, tuple[bytes | None, Any]] = {}  # state, error
        self.arrived: dict[int, tuple[int, bytes | None, bool]] = {}  # by task; is it an end?
        self.reasons = Reasons(workers)
        self._begin = [settings["begin_with"](worker) for worker in range(workers)]
        self._have(take(workers, settings))
        try:
            self.job = self._job_of(arguments)
            self._start_parent()
        except BaseException:
            self._end_feed()
            raise

    def _have(self, feed: OwnFeed) -> None:
        """Begins a generation of it."""
        workers = feed.workers
        self.feed = feed
        self._is_new = not feed.is_used
        # Requests, while it may be found out that the feed was lost before this iterator had it.
        self._posted: list[tuple[int, int, bytes]] = []
        self._states: list[bytes | None] = [None] * workers  # that have come last
        self._answered = [0] * workers  # requests
        self._asked = [False] * workers  # for anything: who is not has no process
        self.generation, self._firsts = feed.begin()
        begun = functools.partial(has_begun, feed.requests.memory, workers)
        limit_s = self._settings["stall_timeout"]
        asked = self._asked
        self._standstill = Standstill(
            feed.supervisor.socket_path, limit_s, begun, lambda worker: asked[worker]
        )
        # What the end of this object ends, which cannot refer to it.
        self._ends: dict[str, Any] = {"start": None, "feed": feed}
        self._end = weakref.finalize(self, _end, self._ends)

    def _job_of(self, arguments: dict[str, Any]) -> Job:
        return Job(
            dataset=arguments["dataset"],
            kind=arguments["dataset_kind"],
            auto_collation=arguments["auto_collation"],
            collate_fn=arguments["collate_fn"],
            drop_last=arguments["drop_last"],
            base_seed=arguments["base_seed"],
            init_fn=arguments["init_fn"],
            workers=arguments["num_workers"],
            shared_seed=arguments["shared_seed"],
            skips=self._settings["on_poison"] == "skip",
            trainer=self._pid,
            environment=environment(),
            begin=self._begin,
            process_kind=self._settings["process_kind"],
            snapshots=self._settings["snapshots"],
            dataset_state=self._settings["dataset_state"],
            **self._of_feed(),
        )

    def _of_feed(self) -> dict[str, Any]:
        """The fields of a job that are its feed's."""
        feed = self.feed
        return {
            "requests": feed.requests.memory,
            "bulk": feed.bulk,
            "socket_path": feed.socket_path,
            "listener": feed.listener,
            "shown": feed.shown,
            "generation": self.generation,
            "firsts": self._firsts,
        }

    def _start_parent(self) -> None:
        from ._worker import serve  # a child that is spawned finds it there

        parent = self._context.Process(target=serve, args=(self.job,))
        parent.daemon = True
        if not self.job.identities:
            self.job.identities = identities(parent, self.job.workers)
        self.feed.bond.note_hears(False)
        self._start = Start(parent, self._context, self.feed, self._parents)
        self._ends["start"] = self._start

    def _end_feed(self) -> None:
        self._end.detach()
        if (start := self._ends["start"]) is not None:
            start.end(0)
        self.feed.end()

    def _has_begun_anew(self) -> bool:
        """If the feed was lost while no worker had it yet, which is nobody's loss, begins another
        one; False: it was not."""
        if self._is_new or self._taken or self._stopped:
            return False
        posted, asked = self._posted, self._asked
        self._end_feed()
        self._have(OwnFeed(self.job.workers, self._settings))
        self.job = dataclasses.replace(self.job, **self._of_feed())
        self._start_parent()
        for worker in range(self.job.workers):
            if asked[worker]:
                self.ask(worker)
        for one in posted:
            self.post(*one)
        return True

    # ---- requests

    def post(self, worker: int, kind: int, payload: bytes) -> None:
        """Asks a worker for its next batch; never waits."""
        if self._stopped or (kind == LEAVE and not self._asked[worker]):
            return
        self.ask(worker)
        if not self._taken:
            self._posted.append((worker, kind, payload))
        self.feed.post(worker, kind, payload, self._cheap[worker] and kind & ~WANTED == FETCH)

    def ask(self, worker: int) -> None:
        """Has a worker begin, if it has not been asked for anything: till then it is not forked."""
        if self._asked[worker] or self._stopped:
            return
        self._asked[worker] = True
        note_asked(self.feed.requests.memory, self.job.workers, worker)
        self.feed.post(worker, BEGAN, b"")
        if self.feed.bond.hears:
            self._start.wake()

    # ---- batches

    def put_local(self, thing: Any) -> None:
        """The next one that get() gives."""
        self._local.append(thing)

    def get(self, timeout_s: float | None) -> Any:
        """The next batch that is ready, of any worker: (its task, the data).

        Raises:
            queue.Empty: Nothing came in time.
            FeedFailed: The feed has ended; the text is the reason.
        """
        began_ns = time.monotonic_ns()
        found = self._get(None if timeout_s is None else began_ns + 1e9 * timeout_s)
        self.reasons.waits(began_ns)
        return found

    def _get(self, deadline_ns: float | None, begun_by: int | None = None) -> Any:
        while True:
            if begun_by is None and self._local:
                return self._local.popleft()
            if begun_by in self.began:
                return None
            now_ns = time.monotonic_ns()
            if now_ns >= self._look_at_ns:
                self._look_after()
            left_ms = _SLICE_MS
            if deadline_ns is not None and deadline_ns - now_ns < 1_000_000 * _SLICE_MS:
                left_ms = max(0, round(1e-6 * (deadline_ns - now_ns)))
            handle = self.feed.handle or self._attach(left_ms)
            if handle is not None:
                try:
                    status, text, lease = handle.next(left_ms, self.feed.leases.pop())
                except IndexError:  # the first one, or of another thread
                    status, text, lease = handle.next(left_ms)
                if lease is not None:
                    head = lease.take(HEAD.size)
                    self.feed.leases.append(lease)
                    found = self._take(HEAD.unpack(head))
                    if found is not None:
                        return found
                    continue
                if status not in (native.TIMEOUT, native.INTERRUPTED):
                    error = native.error_for(status, text)
                    if self._taken or not isinstance(error, FeedFailed):
                        raise self._failure(error)
                    # A supervisor that was killed before it had workers: the next one begins
                    # anew, and all requests are still there.
                    self.feed.detach()
                    if self._has_begun_anew():
                        continue
            self._look_after()
            if (said := self._standstill.look()) is not None:
                raise FeedFailed(self._stands_still(said))
            if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
                raise queue.Empty

    def _stands_still(self, said: str) -> str:
        asked = [
            f"worker {worker} has been asked for "
            f"{(number - self._firsts[worker]) // self.job.workers} batches, of which "
            f"{self._answered[worker]} are here"
            for worker, number in enumerate(self.feed.next)
        ]
        return (
            f"the loader stands still ({'; '.join(asked)}); {said}. That is a fault of ringfeed: "
            "please report it with this text"
        )

    def _attach(self, timeout_ms: int) -> native.Handle | None:
        if self._stopped:
            raise FeedDetached("the loader's workers were stopped")
        try:
            return self.feed.attach(timeout_ms)
        except RingfeedError as error:
            raise self._failure(error) from None

    def _take(self, words: tuple[Any, ...]) -> Any:
        """What the loader's iterator gets of a batch, by its head; None: nothing."""
        what, task, number = words[0] & 0xFF, words[1], words[11]
        worker, region = words[9] & 0xFFFFFFFF, (words[9] >> 32) - 1
        self.feed.let_go(number)
        if number < self._firsts[(number - 1) % self.job.workers]:
            return None  # of an earlier generation: its region is free
        if not self._taken:
            self._taken = True
            self._posted.clear()
        self._parents = 0
        self._answered[worker] += 1
        state = None
        if words[7]:
            state = self.feed.regions.read(region, words[6], words[7])
            self._states[worker] = state
        elif words[6] == AS_BEFORE:
            state = self._states[worker]
        if what not in (DATA, ACK):
            if region >= 0:
                self.feed.regions.give_back(region)
            if what != RESUMED:
                return None
            self.began[worker] = (state, None)
            return _utils.worker._ResumeIteration(None), None
        self._cheap[worker] = words[12] + words[13] < _CHEAP_NS and words[8] < _CHEAP_BYTES
        self.left_out += words[10]
        self.reasons.add(words[0] >> 8, words[12], words[13])
        if words[14]:
            text = self.feed.regions.read(region, words[15], NAME_BYTES)
            self.reasons.saw(words[14], name_in(text))
        try:
            if is_plain(words[2:6]):
                data = self.feed.regions.load(region, words[2], words[3])
            else:
                slot, copies = self.feed.regions.take(region, words[8])
                data = read(slot, words[2:4], words[4:6], copies)
                del slot
        except Exception:
            # The error of its batch; the next one comes.
            data = ExceptionWrapper(where="in the trainer, loading a batch of a DataLoader worker")
        if what == ACK:
            self.began[worker] = (state, data)
            return None
        self.arrived[task] = (
            worker,
            state,
            isinstance(data, _utils.worker._IterableDatasetStopIteration),
        )
        return task, data

    def wait_begun(self, worker: int) -> tuple[bytes | None, Any]:
        """The state with which a worker has begun, and what it raised or None; waits for it."""
        while worker not in self.began:
            self.ask(worker)
            found = self._get(None, begun_by=worker)
            if found is not None:
                self._local.append(found)
        return self.began[worker]

    # ---- processes

    def _look_after(self) -> None:
        self._look_at_ns = time.monotonic_ns() + _LOOK_NS
        self.tell()
        supervisor, bond = self.feed.supervisor, self.feed.bond
        lost = supervisor.exit_status is not None or bond.is_gone
        if lost and not self._stopped and not self._has_begun_anew():
            if not bond.is_gone:
                raise supervisor.error()
            raise FeedFailed(
                "the loader's supervisor and all its workers are gone at once, and with them the "
                "batches that were not taken: those that are held stay as they are"
            )
        start = self._start
        if start.end_if_stuck():
            _log.warning("the warm parent of the workers hangs in its fork: it is ended")
            start.process.join()
        if start.has_ended() and not self._stopped:
            parent = start.process
            self._parents += 1
            ready = bond.is_loaded
            most = 0 if 0 < parent.exitcode < UNKNOWN else PARENTS_MAX
            if not ready and self._parents > most:
                # It has said why: its dataset, or the trainer's program, cannot be loaded there.
                raise RuntimeError(
                    f"DataLoader worker (pid(s) {parent.pid}) exited unexpectedly, with status "
                    f"{parent.exitcode}, before it had the dataset: see what it wrote"
                )
            _log.warning("the warm parent of the workers has ended: another one is started")
            self._start_parent()

    def tell(self) -> None:
        """Passes on what the feed's log has of warnings, errors and stacks."""
        self.feed.log.pass_on(self._note_event)

    def _note_event(self, event: str, line: str) -> None:
        if event in ("worker_stalled", "worker_died") and (group := _GROUP.search(line)):
            self._tell_index(int(group[1]))

    def _tell_index(self, worker: int) -> None:
        """What a worker that has died or hangs was at."""
        number, place, payload = self.feed.oldest(worker)
        if number < self._firsts[worker] or payload is None:
            return
        try:
            _, indices = pickle.loads(payload)
        except Exception:
            return
        what = f"the batch of {indices!r:.200}"
        if place - 1 != TOGETHER and self.job.kind == 0:
            one = indices[place - 1] if self.job.auto_collation else indices
            what = f"the sample at index {one!r:.200}"
        elif self.job.kind == 1:
            what = f"sample {place} of its next batch"
        _log.warning("worker %d was at %s", worker, what)

    def _failure(self, error: RingfeedError) -> RingfeedError:
        supervisor = self.feed.supervisor
        if supervisor.exit_status is not None and not isinstance(error, FeedFailed):
            return supervisor.error()
        if isinstance(error, FeedFailed):
            self.tell()
            return FeedFailed(self.feed.log.failure or str(error))
        return error

    def rest(self) -> None:
        """An epoch is over: memory that no batch has is given back."""
        if not self._stopped:
            self.feed.rest()

    def pid_of(self, worker: int) -> int:
        """Process number of a worker, 0 before it has one."""
        return process_of(self.feed.requests.memory, self.job.workers, worker)

    def is_alive(self) -> bool:
        """Does it still make batches?"""
        return not self._stopped

    def stop(self) -> None:
        """Ends all processes. Batches that somebody has stay as they are."""
        self._stopped = True
        self._end()


def _end(parts: dict[str, Any]) -> None:
    feed = parts["feed"]
    if os.getpid() != feed.pid:
        return
    if parts["start"] is None or parts["start"].end(_PARENT_S):
        give(feed)
    else:
        feed.end()


# ---- what stands for parts of multiprocessing in PyTorch's iterator


class Context:
    """Stands for a multiprocessing context: queues and processes of one iterator."""

    def __init__(self, real: Any, settings: dict[str, Any], before: Callable[[], None]) -> None:
        """`before` is called once, when the iterator is about to make its queues."""
        self.real = real
        self.settings = settings
        self.workers: Workers | None = None
        self.wanted = False  # a state with the batch that is asked for next
        self._before: Callable[[], None] | None = before

    def Queue(self) -> Queue:  # noqa: N802
        """An index queue or the queue of results; the first process says which."""
        if self._before is not None:
            before, self._before = self._before, None
            before()
        return Queue(self)

    def Event(self) -> threading.Event:  # noqa: N802
        """For the iterator alone."""
        return threading.Event()

    def Process(self, target: Any, args: tuple[Any, ...]) -> Process:  # noqa: N802
        """A worker."""
        return Process(self, _signature(target).bind(*args).arguments)


_signature = functools.cache(inspect.signature)  # it takes half a millisecond


class Queue:
    """Stands for a queue of multiprocessing."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.worker: int | None = None  # of an index queue

    def put(self, thing: Any) -> None:
        """Of an index queue: a task, a new epoch, or the end."""
        workers = self._context.workers
        if workers is None or self.worker is None:
            if workers is not None:
                workers.put_local(thing)
            return
        if thing is None:
            workers.post(self.worker, LEAVE, b"")
        elif isinstance(thing, _utils.worker._ResumeIteration):
            workers.post(self.worker, RESUME, pickle.dumps(thing.seed))
        else:
            kind = FETCH | WANTED if self._context.wanted else FETCH
            workers.post(self.worker, kind, pickle.dumps(thing, 5))

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Of the queue of results."""
        assert self._context.workers is not None
        return self._context.workers.get(timeout if block else 0)

    def cancel_join_thread(self) -> None:
        """Nothing is under way in threads."""

    def close(self) -> None:
        """Goes with the workers."""


class Process:
    """Stands for the process of a worker, whichever it is at the moment."""

    def __init__(self, context: Context, arguments: dict[str, Any]) -> None:
        self._context = context
        self._arguments = arguments
        self._number: int = arguments["worker_id"]
        self.daemon = True
        self.name = f"ringfeed worker {self._number}"
        self.starting = True

    def start(self) -> None:
        """The first one starts them all."""
        context = self._context
        self._arguments["index_queue"].worker = self._number
        if context.workers is None:
            context.workers = Workers(self._arguments, context.real, context.settings)
        self._arguments = {}

    @property
    def pid(self) -> int:
        """Process number at the moment; waits for it, up to ten seconds."""
        workers = self._context.workers
        assert workers is not None
        deadline = time.monotonic()
        if not self.starting:
            deadline += 10
            workers.ask(self._number)
        while (pid := workers.pid_of(self._number)) == 0 and time.monotonic() < deadline:
            time.sleep(0.002)
        return pid

    @property
    def exitcode(self) -> int | None:
        """None: it runs, or has a successor."""
        return None if self.is_alive() else 0

    def is_alive(self) -> bool:
        """Are there workers? One that has died has a successor."""
        return self._context.workers is not None and self._context.workers.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Ends them all."""
        if self._context.workers is not None:
            self._context.workers.stop()

    def terminate(self) -> None:
        """As join()."""
        self.join()

    kill = terminate
