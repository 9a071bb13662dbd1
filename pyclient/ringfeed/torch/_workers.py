"""The feed behind a DataLoader with workers: processes, requests, and the batches that come back.

What PyTorch's iterator has as queues and processes stands here with the same methods, over a feed:
an index put into a worker's queue is a request, the queue of results gives batches of the feed.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import itertools
import logging
import os
import pickle
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import _utils

from .._core import control, native, programs, standard
from .._core.standstill import Standstill
from ..errors import (
    FeedDetached,
    FeedFailed,
    FeedIOError,
    FeedTimeout,
    NoSuchFeed,
    RingfeedError,
)
from ..loader import _FEED, _Supervisor
from ..worker import module
from ._batches import Requests, is_plain, read
from ._bulk import Bulk, check_address_space
from ._forks import UNKNOWN, Start
from ._job import (
    ACK,
    AS_BEFORE,
    BEGAN,
    DATA,
    END,
    FETCH,
    HEAD,
    NAME_BYTES,
    RESUME,
    RESUMED,
    SPILT,
    TOGETHER,
    WANTED,
    Bond,
    Job,
    has_begun,
    kill_workers,
    name_in,
    remove_link,
)
from ._life import identities
from ._reasons import Reasons
from ._regions import Regions, living

_log = logging.getLogger("ringfeed")

_SLICE_MS = 50  # of a wait, after which processes are looked at
_LOOK_NS = 1_000_000_000  # and that often if there is no wait
_HEAP_BYTES = 1 << 18  # of each worker, for its requests
_SLOTS_MAX = 256  # of a feed
# A batch that takes less is not waited for if it is begun late, and to wake its worker for it alone
# costs as much again.
_CHEAP_NS = 200_000
_CHEAP_BYTES = 1 << 18
ANSWER_MS = 10_000
_OTHER_REQUESTS = 8  # of a worker: its beginning, each epoch's, its end
_HURRY_S = 0.3
PARENTS_MAX = 20
_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+ (\w+) supervisor (\w+)|\w+: (?!.*[Ee]rror)")
_GROUP = re.compile(r" group=dataset\.(\d+) ")
_COMES_BACK = (FeedTimeout, NoSuchFeed, FeedIOError)
# What the one member of the feed's one group leaves as it is.
UNSET = (
    *("socket_dir", "kind", "rank", "world", "policy", "redeliver", "max_tries", "max_hold"),
    *("stall_ms", "rejoin_ms"),
)


def config_of(job: Job, slots: int, settings: dict[str, Any], output: str) -> bytes:
    """The configuration of a loader's feed.

    Args:
        job: What its workers do.
        slots: Batches for which it has room.
        settings: stall_timeout (seconds), max_attempts.
        output: More fields of its feed_output.
    """
    planned = "" if job.plan is None else "planned: true"
    return f"""
stages {{
  name: "dataset"
  dataset_batcher {{ processes: {job.workers} parent_socket: "{job.socket_path}" {planned} }}
}}
feed_output {{ slots: {slots} {output} }}
restart {{
  max_restarts: 1000000 backoff_ms_max: 1000 max_attempts: {settings["max_attempts"]}
  stall_ms: {round(1000 * settings["stall_timeout"])}
  dead_letters: "{Path(job.socket_path).parent}"
}}
shutdown {{ orphan_timeout_s: 60 }}
""".encode()


def slots_of_lane(prefetch_factor: int, workers: int) -> int:
    """Batches for which each worker has room."""
    return min(prefetch_factor + 3, max(1, _SLOTS_MAX // workers))


def process_kind(loader: Any) -> str:
    """What names of the loader's processes begin with, as of PyTorch's."""
    context = loader.multiprocessing_context
    kind = "Process" if context is None else getattr(context.Process, "__name__", "Process")
    return str(kind)


class Workers:
    """The processes of one iterator, and its end of their feed."""

    def __init__(self, arguments: dict[str, Any], context: Any, settings: dict[str, Any]) -> None:
        """
        Args:
            arguments: Those of PyTorch's worker loop, by name.
            context: The multiprocessing context that starts the warm parent.
            settings: prefetch_factor, stall_timeout (seconds), max_attempts, on_poison.
        """
        standard.reserve()  # before memory of the feed is made
        self._pid = os.getpid()
        self._context = context
        workers = arguments["num_workers"]
        self._lane_slots = slots_of_lane(settings["prefetch_factor"], workers)
        # When the others have ended, one worker has all that PyTorch's iterator asks for at once.
        entries = workers * settings["prefetch_factor"] + _OTHER_REQUESTS
        self._requests = Requests(workers, entries, _HEAP_BYTES, 16 * workers)
        self._bond = Bond(self._requests.memory, workers)
        # Beside those of slots a lane has some that the loop holds.
        check_address_space()
        self._bulk = Bulk(workers * (self._lane_slots + 3), workers)
        self._regions = Regions(self._bulk)
        self._states: list[bytes | None] = [None] * workers  # that have come last
        self._next = list(range(1, workers + 1))  # of each worker: the number of its next request
        self._answered = [0] * workers  # requests
        self._cheap = [False] * workers  # was its last batch made sooner than it is woken?
        self._spilt: dict[int, Path] = {}
        self._local: collections.deque[Any] = collections.deque()
        self._posting = threading.Lock()
        self._handle: native.Handle | None = None
        self._leases: list[native.Lease] = []  # that claim nothing now
        self._log_at = 0
        self._begun = False  # the feed, as its log says
        self._look_at_ns = time.monotonic_ns() + _LOOK_NS
        self._parents = 0  # warm parents that have died since the last batch
        self._stopped = False
        self._taken = False  # a batch
        self.left_out = 0  # samples
        self.began: dict[int, tuple[bytes | None, Any]] = {}  # state, error
        self.arrived: dict[int, tuple[int, bytes | None, bool]] = {}  # by task; is it an end?
        self.reasons = Reasons(workers)
        self.job = Job(
            dataset=arguments["dataset"],
            kind=arguments["dataset_kind"],
            auto_collation=arguments["auto_collation"],
            collate_fn=arguments["collate_fn"],
            drop_last=arguments["drop_last"],
            base_seed=arguments["base_seed"],
            init_fn=arguments["init_fn"],
            workers=workers,
            shared_seed=arguments["shared_seed"],
            requests=self._requests.memory,
            bulk=self._bulk,
            skips=settings["on_poison"] == "skip",
            socket_path="",
            trainer=self._pid,
            environment=environment(),
            begin=[settings["begin_with"](worker) for worker in range(workers)],
            process_kind=settings["process_kind"],
            snapshots=settings["snapshots"],
        )

        def config(directory: Path) -> bytes:
            self.job.socket_path = str(directory / "parent.sock")
            output = 'dispatch: RELAXED groups { name: "default" }'
            return config_of(self.job, workers * self._lane_slots, settings, output)

        self._supervisor = _Supervisor(config, ".textproto", kept=True, plan=plan_of)
        self.job.shown = _show(self._supervisor.socket_path)
        begun = functools.partial(has_begun, self._requests.memory, workers)
        limit_s = settings["stall_timeout"]
        self._standstill = Standstill(self._supervisor.socket_path, limit_s, begun)
        self._parent: Any = None
        self._end = weakref.finalize(self, _end, self._supervisor, self._parts())
        living.add(self)
        self._start_parent()
        for worker in range(workers):
            self.post(worker, BEGAN, b"")

    def _parts(self) -> dict[str, Any]:
        # What the end of this object ends, which cannot refer to it.
        self._ends: dict[str, Any] = {"parent": None, "handle": None, "pid": self._pid}
        self._ends["workers"] = self.job.workers
        self._ends["shown"] = self.job.shown
        self._ends["memories"] = (self._requests.memory, self._bulk)
        self._ends["regions"] = self._regions
        return self._ends

    def _start_parent(self) -> None:
        from ._worker import serve  # a child that is spawned finds it there

        parent = self._context.Process(target=serve, args=(self.job,))
        parent.daemon = True
        if not self.job.identities:
            self.job.identities = identities(parent, self.job.workers)
        try:
            self._start = Start(parent, self._context, self, self._parents)
        except BaseException:
            self.stop()
            raise
        self._parent = self._ends["parent"] = parent

    # ---- requests

    def post(self, worker: int, kind: int, payload: bytes) -> None:
        """Asks a worker for its next batch; never waits."""
        with self._posting:
            if self._stopped:
                return
            self._post(worker, kind, payload)

    def _post(self, worker: int, kind: int, payload: bytes) -> None:
        number = self._next[worker]
        place = self._requests.room(number, len(payload))
        if place is None:
            path = Path(self.job.socket_path).parent / f"{_FEED}.request-{number}.pickle"
            self._spilt[number] = path
            path.write_bytes(payload)  # if there is no room, the number is still the next one
            payload, kind = os.fsencode(path), kind | SPILT
            place = self._requests.room(number, len(payload), spilt=True)
            assert place is not None
        self._next[worker] += self.job.workers
        memory = self._requests.memory
        memory.map[place : place + len(payload)] = payload
        raw = None if self._handle is None else self._handle.raw
        may_wait = self._cheap[worker] and kind & ~WANTED == FETCH
        try:
            native.ask(
                *(raw, memory.address, memory.size, number, place, len(payload), kind), may_wait
            )
        except FeedDetached:
            pass  # nobody makes batches any more

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
            handle = self._handle or self._attach(left_ms)
            if handle is not None:
                try:
                    status, text, lease = handle.next(left_ms, self._leases.pop())
                except IndexError:  # the first one, or of another thread
                    status, text, lease = handle.next(left_ms)
                if lease is not None:
                    head = lease.take(HEAD.size)
                    self._leases.append(lease)
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
                    with self._posting:
                        self._handle = self._ends["handle"] = None
                    handle.close()
            self._look_after()
            if (said := self._standstill.look()) is not None:
                raise FeedFailed(self._stands_still(said))
            if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
                raise queue.Empty

    def _stands_still(self, said: str) -> str:
        asked = [
            f"worker {worker} has been asked for {(number - 1) // self.job.workers} batches, of "
            f"which {self._answered[worker]} are here"
            for worker, number in enumerate(self._next)
        ]
        return (
            f"the loader stands still ({'; '.join(asked)}); {said}. That is a fault of ringfeed: "
            "please report it with this text"
        )

    def _attach(self, timeout_ms: int) -> native.Handle | None:
        if self._stopped:
            raise FeedDetached("the loader's workers were stopped")
        if not self._supervisor.wait_listening(timeout_ms):
            return None
        self._bond.note_taken()  # before: what has been made may be here the moment after
        unset: Any = dict.fromkeys(UNSET)
        status, text, handle = native.Handle.attach(
            feed=_FEED,
            group="default",
            client="ringfeed.torch.DataLoader",
            timeout_ms=timeout_ms,
            answer_ms=ANSWER_MS,
            socket_path=self._supervisor.socket_path,
            start="oldest",
            view="readonly",
            **unset,
        )
        if handle is None:
            error = native.error_for(status, text)
            # Of a supervisor that is killed while it answers: it has a successor.
            if not isinstance(error, _COMES_BACK) and status != native.INTERRUPTED:
                raise self._failure(error)
            return None
        with self._posting:
            self._handle = self._ends["handle"] = handle
        return handle

    def _take(self, words: tuple[Any, ...]) -> Any:
        """What the loader's iterator gets of a batch, by its head; None: nothing."""
        self._taken = True
        self._parents = 0
        what, task, number = words[0] & 0xFF, words[1], words[11]
        worker, region = words[9] & 0xFFFFFFFF, (words[9] >> 32) - 1
        self._let_go(number)
        state = None
        if words[7]:
            state = self._regions.read(worker, region, words[6], words[7])
            self._states[worker] = state
        elif words[6] == AS_BEFORE:
            state = self._states[worker]
        if what not in (DATA, ACK):
            if region >= 0:
                self._regions.give_back(worker, region)
            if what != RESUMED:
                return None
            self.began[worker] = (state, None)
            return _utils.worker._ResumeIteration(None), None
        self._cheap[worker] = words[12] + words[13] < _CHEAP_NS and words[8] < _CHEAP_BYTES
        self.left_out += words[10]
        self.reasons.add(words[0] >> 8, words[12], words[13])
        if words[14]:
            text = self._regions.read(worker, region, words[15], NAME_BYTES)
            self.reasons.saw(words[14], name_in(text))
        try:
            if is_plain(words[2:6]):
                data = self._regions.load(worker, region, words[2], words[3])
            else:
                slot, copies = self._regions.take(worker, region, words[8])
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
            found = self._get(None, begun_by=worker)
            if found is not None:
                self._local.append(found)
        return self.began[worker]

    def _let_go(self, number: int) -> None:
        with self._posting:
            self._answered[(number - 1) % self.job.workers] += 1
            self._requests.let_go(number)
            spilt = self._spilt.pop(number, None)
        if spilt is not None:
            spilt.unlink(missing_ok=True)

    # ---- processes

    def _look_after(self) -> None:
        self._look_at_ns = time.monotonic_ns() + _LOOK_NS
        self.tell()
        if self._supervisor.exit_status is not None and not self._stopped:
            raise self._supervisor.error()
        if self._bond.is_gone and not self._stopped:
            raise FeedFailed(
                "the loader's supervisor and all its workers are gone at once, and with them the "
                "batches that were not taken: those that are held stay as they are"
            )
        parent = self._parent
        if self._start.end_if_stuck():
            _log.warning("the warm parent of the workers hangs in its fork: it is ended")
            parent.join()
        if parent is not None and self._start.has_ended() and not self._stopped:
            self._parents += 1
            ready = Path(self.job.socket_path).exists()
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
        lines, self._log_at = self._supervisor.lines(self._log_at)
        for line in lines:
            found = _LOG_LINE.match(line)
            if found is None:
                # Of a worker that dies or hangs; before the feed has begun it is the memory table.
                if self._begun:
                    _log.warning("%s", line)
                continue
            level, event = found.groups()
            self._begun = self._begun or event == "feed_started"
            if level in ("warn", "warning", "error"):
                _log.log(logging.ERROR if level == "error" else logging.WARNING, "%s", line)
            if event in ("worker_stalled", "worker_died") and (group := _GROUP.search(line)):
                self._tell_index(int(group[1]))

    def _tell_index(self, worker: int) -> None:
        """What a worker that has died or hangs was at."""
        with self._posting:
            number, place, payload = self._requests.oldest(worker)
        if number == 0 or payload is None:
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
        if self._supervisor.exit_status is not None and not isinstance(error, FeedFailed):
            return self._supervisor.error()
        return error

    def held(self) -> list[Any]:
        """Memory of the batches that somebody has."""
        return self._regions.held()

    def become_copy(self) -> None:
        """In a fork of the trainer: what is held is copied, and nothing is shared any more."""
        self._regions.become_copy()
        for memory in self._ends["memories"]:
            memory.close()

    def pid_of(self, worker: int) -> int:
        """Process number of a worker, 0 before it has one."""
        return self._requests.extra(worker)

    def is_alive(self) -> bool:
        """Does it still make batches?"""
        return not self._stopped

    def stop(self) -> None:
        """Ends all processes. Batches that somebody has stay as they are."""
        with self._posting:
            self._stopped = True
        self._end()


def environment() -> dict[str, str]:
    """Variables that the processes of a loader need."""
    program = programs.find("ringfeed")
    for below in ("lib/ringfeed/_worker.abi3.so", "lib/_worker.abi3.so"):
        place = program.resolve().parent.parent / below
        if place.exists() and "RINGFEED_WORKER_MODULE" not in os.environ:
            return {"RINGFEED_WORKER_MODULE": str(place)}
    return {}


def plan_of(config: bytes) -> bytes:
    """The plan of a feed's configuration, b"" where the module that makes it cannot be loaded.

    Workers need that module too: they are forks of this process, and need not load it once more.
    """
    with contextlib.suppress(Exception):  # whoever needs it says what is wrong
        place = environment().get("RINGFEED_WORKER_MODULE")
        plan: bytes = module.load(place).plan_of(config.decode())
        return plan
    return b""


def _show(socket_path: Path) -> str:
    """A link among the control sockets of feeds, for `ringfeed status`; "": there is none.

    The feed does without it: the directory may be another user's.
    """
    link = control.find_socket(f"loader-{os.getpid()}-{next(_shown)}", None).absolute()
    with contextlib.suppress(OSError):
        link.parent.mkdir(mode=0o700, exist_ok=True)
        if link.is_symlink() and not link.exists():
            link.unlink()  # of a process that had this number
        link.symlink_to(socket_path)
        return str(link)
    return ""


_shown = itertools.count(1)


def _end(supervisor: _Supervisor, parts: dict[str, Any]) -> None:
    if os.getpid() != parts["pid"]:
        return
    remove_link(parts["shown"])
    parent = parts["parent"]
    if parts["handle"] is not None:
        parts["handle"].close()

    def end_others() -> None:
        if parent is not None:
            parent.kill()
            parent.join()
        # If the supervisor had just been killed, nobody else would end them.
        kill_workers(parts["memories"][0], parts["workers"])

    # A worker that is in the middle of a sample is not waited for.
    supervisor.end(10.0, _HURRY_S, None if parent is None else parent.terminate, end_others)
    parts["regions"].end()
    for memory in parts["memories"]:
        memory.close()


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
            workers.post(self.worker, END, b"")
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
        deadline = time.monotonic() + (0 if self.starting else 10)
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
