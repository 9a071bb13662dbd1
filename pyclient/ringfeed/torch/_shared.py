"""A trainer's end of a feed that several trainers share: ``DataLoader(..., feed="name")``.

The first trainer starts the feed: the warm parent, which has the dataset and is nobody's child, and
a supervisor. Others find them by the feed's name. Any trainer starts again what has died; one at a
time, with a lock. They outlive the trainer that has started them, and end when nobody is connected
to the warm parent any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import functools
import gc
import itertools
import json
import os
import select
import signal
import socket
import time
import warnings
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import IO, Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils

from .._core import control, native, programs, standard
from .._core.standstill import Standstill
from ..errors import (
    FeedEnd,
    FeedFailed,
    FeedIOError,
    FeedRefused,
    FeedTimeout,
    InvalidRequest,
    NoSuchFeed,
    RingfeedError,
)
from ._batches import GivenMemory, Memory, read
from ._bulk import Bulk, check_address_space, opened_anew
from ._forks import UNKNOWN, Start
from ._job import DATA, HEAD, NAME_BYTES, Bond, Job, has_begun, name_in, words_bytes
from ._life import identities
from ._own_feed import ANSWER_MS, UNSET, config_of, environment, slots_of_lane
from ._plan import Plan, PlanTable, mark_of, plan_of, ring
from ._reasons import Reasons
from ._regions import SharedRegions, living
from ._shared_parent import (
    FAILED,
    LOADER,
    PACKET_BYTES,
    RANKS,
    STARTS_S,
    Place,
    detach,
    end_feed,
    end_supervisor,
    has_ended,
    listens,
    start_supervisor,
    trainers_of,
)
from ._worker import pid_of, user_of
from ._workers import PARENTS_MAX, process_kind

_SLICE_MS = 50
_LOOK_S = 1.0
_SAID_BYTES = 4000
_STOPPED_S = 10.0  # a warm parent, while somebody waits for its answer
_NONE = -1
_OF_LOADER = (
    *("dataset", "collate_fn", "drop_last", "worker_init_fn", "prefetch_factor", "timeout"),
    *("pin_memory", "stall_timeout", "max_attempts", "on_poison", "trainers", "_auto_collation"),
)
_COMES_BACK = (FeedTimeout, NoSuchFeed, FeedIOError)


class Course:
    """An epoch of a shared feed, or the rest of one: which of the feed's batches it has."""

    def __init__(self, plan: Plan, iteration: int, start: int, epoch: int, first: int) -> None:
        """The feed's batch `start` is batch `first` of the epoch, of the first rank here."""
        self._plan = plan
        self.number = iteration
        self.epoch = epoch
        self.batch = first  # the next one
        self._start = start
        self._first = first
        self.samples_left_out = 0

    @property
    def end(self) -> int:
        """The number of the feed's batch behind it."""
        return self._start + max(0, self._plan.batches - self._first) * self._plan.local_ranks

    def begin_with(self, batch: int) -> int:
        """Passes over what is before a batch of the epoch; returns the feed's batch."""
        self.batch = max(batch, self._first)
        return self._start + (self.batch - self._first) * self._plan.local_ranks

    def batch_from(self, seq: int, rank: int) -> int:
        """The first of the epoch's batches that a rank can still get, from `seq` on."""
        return self._first + max(0, -((self._start + rank - seq) // self._plan.local_ranks))


class Iteration:
    """An iterator over the batches of a Course."""

    def __init__(self, shared: Shared, course: Course) -> None:
        # The other one does not know of this one: with a cycle, a loader that nobody has any more
        # would keep its place in the feed, and so hold up others, until the next collection.
        self._shared = shared
        self._course = course

    @property
    def epoch(self) -> int:
        """The epoch, from 0 on."""
        return self._course.epoch

    @property
    def batch(self) -> int:
        """The epoch's next batch."""
        return self._course.batch

    @property
    def samples_left_out(self) -> int:
        """Samples that its batches lack, because they killed their workers."""
        return self._course.samples_left_out

    def __iter__(self) -> Iteration:
        return self

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._shared.plan.batches

    def state_dict(self) -> dict[str, Any]:
        """As the loader's."""
        return self._shared.state_dict()

    def __next__(self) -> Any:
        if self._shared.course is not self._course:
            raise RuntimeError("another iteration of this loader has begun: one feed has one place")
        return self._shared.next()


class Shared:
    """What a DataLoader has of a shared feed: its place there, from one iteration to the next."""

    def __init__(self, loader: Any) -> None:
        """Attaches; starts what is not there."""
        standard.reserve()
        # Not the loader itself: an iteration may be all that is left of it.
        self._loader = SimpleNamespace(**{name: getattr(loader, name) for name in _OF_LOADER})
        self._loader.process_kind = process_kind(loader)
        self._place = Place(control.find_socket(loader.feed, None).parent.absolute(), loader.feed)
        self._make_directory()
        self.plan, self.rank = plan_of(loader, self._place.directory)
        self._workers = loader.num_workers
        self._context = loader.multiprocessing_context or torch.multiprocessing.get_context()
        self._ends: dict[str, Any] = {"pid": os.getpid(), "handle": None, "link": None}
        self._ends["regions"] = None
        self._end = weakref.finalize(self, _leave, self._ends)
        self._bulk: Bulk | None = None  # what is there, to be read alone
        self._table: GivenMemory | None = None
        self._pins = loader.pin_memory and getattr(torch, "accelerator", torch.cuda).is_available()
        self.course: Course | None = None
        self.reasons = Reasons(self._workers)
        self._look_at = 0.0
        self.handle: native.Handle
        self._enter()
        living.add(self)

    def _enter(self) -> None:
        """Connects and attaches to what is there, or starts it."""
        for _ in range(PARENTS_MAX):
            try:
                self._begin_with_others()
                self._map_batches()
                self.handle = self._attach()
                return
            except FeedFailed:
                if self._table is None or not self._bond.is_gone:
                    raise
                self._forget_feed()
        raise self._failed("all its processes are killed again and again")

    def _map_batches(self) -> None:
        assert self._bulk is not None
        # What a trainer keeps must not keep others waiting: with so few recent batches held, each
        # worker has room for its next one.
        slots = self._bulk.regions
        self._regions = SharedRegions(self._bulk, max(1, slots - 2 * self._workers))
        self._ends["regions"] = self._regions
        assert self._table is not None
        begun = functools.partial(has_begun, self._table, self._workers)
        limit_s = self._loader.stall_timeout
        self._standstill = Standstill(self._place.control, limit_s, begun)

    def _forget_feed(self) -> None:
        """It was gone before this process had a batch of it: another one is begun."""
        self._drop_link()
        self._bulk = self._table = None
        self._ends["regions"] = None

    # ---- processes

    def _make_directory(self) -> None:
        try:
            self._place.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._cannot_be_written(error) from None

    def _cannot_be_written(self, error: OSError) -> FeedIOError:
        return FeedIOError(
            f"feed {self._place.feed}: {self._place.directory} cannot be written ({error}): "
            "set RINGFEED_SOCKET_DIR to a directory of yours"
        )

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        """Nobody else starts or ends a part of the feed."""
        try:
            lock: IO[bytes] = self._place.lock.open("ab")
        except OSError as error:
            raise self._cannot_be_written(error) from None
        with lock:
            deadline = time.monotonic() + STARTS_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise FeedTimeout(
                            f"feed {self._place.feed}: another trainer has been starting it for "
                            f"{STARTS_S:.0f} s: see {self._place.log}"
                        ) from None
                    time.sleep(0.02)
            try:
                yield
            finally:
                # Also for a fork of this process, made meanwhile, that has the descriptor too.
                fcntl.flock(lock, fcntl.LOCK_UN)

    def _begin_with_others(self) -> None:
        """The feed is there, and this process is connected."""
        deadline = time.monotonic() + STARTS_S
        while True:
            with self._starting():
                if self._connect() or not (others := self._orphans()):
                    self._make_sure()
                    return
            # They have its memory, so one of them starts another warm parent.
            if time.monotonic() > deadline:
                raise FeedFailed(
                    f"feed {self._place.feed}: the process that has the dataset has died, and its "
                    f"trainers, which start another one when they next want a batch, have not done "
                    f"so for {STARTS_S:.0f} s: processes {others}"
                )
            time.sleep(_SLICE_MS / 1000)

    def _orphans(self) -> list[int]:
        """Trainers of a feed that has no warm parent. A feed without any is ended."""
        place, why = self._place, ""
        for _ in range(PARENTS_MAX):
            if not listens(place.control):
                if has_ended(place) or not place.config.exists():
                    return []
                with contextlib.suppress(RingfeedError):
                    start_supervisor(place)  # in place of one that was killed: it knows them
                if not listens(place.control):
                    return []
            elif not place.config.exists():
                raise InvalidRequest(
                    f"feed {place.feed} runs already, and is none of a DataLoader: give another "
                    "name"
                )
            try:
                found = trainers_of(place)
            except RingfeedError as error:
                why = str(error)
                continue
            if not found:
                end_supervisor(place)  # of trainers that have all been killed
            return found
        raise self._failed(f"its supervisor does not answer ({why})")

    def _make_sure(self) -> None:
        """Warm parent and supervisor are there, and this process is connected.

        Raises:
            FeedFailed: They cannot be started, or the feed whose batches lie in the memory is gone.
        """
        connected = self._ends["link"] is not None or self._connect()
        if connected or self._table is not None and self._place.config.exists():
            self._make_sure_of_supervisor()  # first: it knows whether the feed is still there
        if connected:
            return
        for attempt in range(PARENTS_MAX):
            if self._start_parent(attempt) and self._connect():
                return self._make_sure_of_supervisor()
        raise self._failed("the process that has the dataset is killed again and again")

    def _make_sure_of_supervisor(self) -> None:
        if not listens(self._place.control):
            try:
                is_another = start_supervisor(self._place)
            except RingfeedError as error:
                raise self._failed(str(error)) from None
            if is_another and self._bond.is_in_use:
                assert self._table is not None
                Bond(self._table.writable(), self._workers).note_gone()
        if self._bond.is_gone:
            self._end_parent()
            end_feed(self._place)
            raise self._gone()

    def _end_parent(self) -> None:
        link = self._ends["link"]
        if link is None:
            return
        parent = select.poll()
        parent.register(link, select.POLLRDHUP)
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid_of(link), how)
            if parent.poll(1000 * _STOPPED_S):
                break
        self._drop_link()

    @property
    def _bond(self) -> Bond:
        assert self._table is not None
        return Bond(self._table, self._workers)

    def _gone(self) -> FeedFailed:
        return FeedFailed(
            f"feed {self._place.feed}: its supervisor and all its workers are gone at once, and "
            "with them the batches that were not taken: make the loader again (those that are held "
            "stay as they are)"
        )

    def _start_parent(self, attempt: int) -> bool:
        """False: it was killed before it was ready."""
        bulk, table = self._memory()
        loader = self._loader
        job = Job(
            dataset=loader.dataset,
            kind=0,
            auto_collation=loader._auto_collation,
            collate_fn=loader.collate_fn,
            drop_last=loader.drop_last,
            base_seed=self.plan.seed,
            init_fn=loader.worker_init_fn,
            workers=self._workers,
            shared_seed=None,
            requests=table,
            bulk=bulk,
            skips=loader.on_poison == "skip",
            socket_path=str(self._place.parent),
            listener=None,
            trainer=0,
            environment=environment(),
            begin=[None] * self._workers,
            plan=self.plan,
            trainers=loader.trainers,
            process_kind=loader.process_kind,
        )
        settings = {name: getattr(loader, name) for name in ("stall_timeout", "max_attempts")}
        ranks = self.plan.local_ranks
        group = f'groups {{ name: "{RANKS}" kind: RANKED world: {ranks} }}' if ranks > 1 else ""
        try:
            config = config_of(
                self._workers, job.socket_path, bulk.regions, settings, group, planned=True
            )
            self._place.config.write_bytes(config)
        except OSError as error:
            self._place.config.unlink(missing_ok=True)  # not a part of one
            raise FeedIOError(f"feed {self._place.feed}: {error}") from None
        parent = self._context.Process(target=detach, args=(job, self._place))
        parent.daemon = True
        job.identities = identities(parent, self._workers)
        start = Start(parent, self._context, parent, attempt)
        while not start.has_ended():
            parent.join(_SLICE_MS / 1000)
            start.end_if_stuck()
        parent.join()  # multiprocessing forgets it, and with it two descriptors
        if parent.exitcode == FAILED:
            raise self._failed("the dataset cannot be loaded in a process of its own")
        return parent.exitcode in (0, UNKNOWN)

    def _memory(self) -> tuple[Bulk, Memory]:
        """That of batches and table, for processes that write there; a new one if there is none."""
        if self._bulk is not None:
            assert self._table is not None
            return self._bulk.reopened(os.O_RDWR), self._table.writable()
        each = slots_of_lane(self._loader.prefetch_factor, self._workers)
        check_address_space()
        programs.check_proc()
        bulk = Bulk(self._workers * each)
        table = PlanTable.create(self.plan, words_bytes(self._workers)).memory
        Bond(table, self._workers).note_taken()  # by whoever gets it
        self._table = GivenMemory(opened_anew(table.fd, os.O_RDONLY), table.size)
        self._bulk = bulk.reopened(os.O_RDONLY)
        return bulk, table

    def _failed(self, what: str) -> FeedFailed:
        said = ""
        with contextlib.suppress(OSError):
            with self._place.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _SAID_BYTES))
                said = log.read().decode(errors="replace").strip()
        return FeedFailed(f"feed {self._place.feed}: {what}: {said}")

    def _connect(self) -> bool:
        """To the warm parent, if it is there."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            link.connect(os.fspath(self._place.trainers))
        except OSError:
            link.close()
            return False
        if user_of(link) != os.getuid():
            link.close()
            raise FeedRefused(
                f"feed {self._place.feed} is another user's: its batches are pickled objects"
            )
        self._ends["link"] = link
        hello = {
            "plan": dataclasses.asdict(self.plan),
            "workers": self._workers,
            "rank": self.rank,
            "iteration": _NONE if self.course is None else self.course.number,
        }
        answer, fds = self._exchange(hello)
        if answer is None:
            return False
        what = ""
        if self._bulk is None:
            self._bulk = Bulk.of(fds.pop(0), answer["slots"], answer["stride"])
            self._table = GivenMemory(fds.pop(0), answer["table"])
        elif fds and not os.path.samestat(os.fstat(fds[0]), os.fstat(self._bulk.fd)):
            self._drop_link()
            what = "has been started anew by others, and has other batches"
        for fd in fds:
            os.close(fd)
        if what:
            raise FeedFailed(f"feed {self._place.feed} {what}: make the loader again")
        return True

    def _exchange(self, question: dict[str, Any]) -> tuple[Any, list[int]]:
        """The warm parent's answer, with descriptors; None: it has gone."""
        link: socket.socket = self._ends["link"]
        try:
            link.send(json.dumps(question).encode(), socket.MSG_NOSIGNAL)
            waits = select.poll()
            waits.register(link, select.POLLIN)
            since = time.monotonic()
            parent = pid_of(link)
            while not waits.poll(_SLICE_MS):  # signals are handled
                if not _is_stopped(parent):
                    since = time.monotonic()
                elif time.monotonic() - since > _STOPPED_S:
                    os.kill(parent, signal.SIGKILL)  # it has a successor
            said, fds, _, _ = socket.recv_fds(link, PACKET_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            said, fds = b"", []
        if not said:
            self._drop_link()
            return None, []
        answer = json.loads(said)
        if "error" in answer:
            raise InvalidRequest(f"feed {self._place.feed}: {answer['error']}")
        return answer, list(fds)

    def _drop_link(self) -> None:
        link, self._ends["link"] = self._ends["link"], None
        if link is not None:
            link.close()

    def _look_after(self) -> None:
        """Starts again what has died.

        Raises:
            FeedFailed: It cannot be, or the feed is gone.
        """
        self._look_at = time.monotonic() + _LOOK_S
        if self._bond.is_gone:
            raise self._gone()
        link = self._ends["link"]
        if link is not None:
            try:
                if not link.recv(1, socket.MSG_DONTWAIT):
                    self._drop_link()
            except BlockingIOError:
                pass
            except OSError:
                self._drop_link()
        if self._ends["link"] is not None and listens(self._place.control):
            return
        with self._starting():
            if self._ends["handle"] is None or not has_ended(self._place):
                self._make_sure()
        if self._bond.is_gone:  # as whoever has ended it says
            raise self._gone()

    # ---- the feed

    def _attach(self) -> native.Handle:
        ranked: dict[str, Any] = {}
        if self.plan.local_ranks > 1:
            ranked = {"kind": "ranked", "rank": self.rank, "world": self.plan.local_ranks}
            group = RANKS
        else:
            # Nobody else has its place, and nobody comes back to it.
            ranked = {"rejoin_ms": 0}
            group = f"{LOADER}{os.getpid()}-{next(_numbers)}"
        unset: Any = dict.fromkeys(name for name in UNSET if name not in ranked)
        while True:
            status, text, handle = native.Handle.attach(
                feed=self._place.feed,
                group=group,
                client="ringfeed.torch.DataLoader",
                timeout_ms=round(1000 * _LOOK_S),
                answer_ms=ANSWER_MS,
                socket_path=self._place.control,
                start="oldest",
                view="readonly",
                **{**unset, **ranked},
            )
            if handle is not None:
                self._ends["handle"] = handle
                return handle
            error = native.error_for(status, text)
            if not isinstance(error, _COMES_BACK) and status != native.INTERRUPTED:
                raise error
            self._look_after()

    def begin(self, epoch: int | None, first: int) -> Iteration:
        """The next iteration: of that epoch, from that batch on; None: as it comes.

        Raises:
            InvalidRequest: The trainers that share the feed are elsewhere.
            FeedFailed: Somebody has stopped the feed.
        """
        if self._loader.pin_memory and not self._pins:
            warnings.warn("pin_memory=True pins nothing: no accelerator is found", stacklevel=4)
        after = _NONE if self.course is None else self.course.number
        while True:
            at = int(self.handle.stats()["next"])
            answer = None
            if self._ends["link"] is not None:
                question = {"after": after, "next": at, "epoch": epoch, "first": first}
                answer, _ = self._exchange(question)
            if answer is None:
                self._look_after()
                if self._ends["link"] is None:
                    raise FeedFailed(f"feed {self._place.feed} was stopped: see {self._place.log}")
                continue
            course = Course(self.plan, **answer)
            if after != _NONE or at < course.end or course.batch >= self.plan.batches:
                break
            after = course.number  # the others have had all of it
        self.course = course
        reached = course.batch_from(at, self.rank)
        if first and reached > first:
            raise InvalidRequest(
                f"feed {self._place.feed} has passed batch {first} of epoch {course.epoch} and "
                f"is at {reached}: batches that others have had do not come again"
            )
        self.handle.pass_over(course.begin_with(max(first, reached)))
        ring(self.handle.raw)
        return Iteration(self, course)

    def next(self) -> Any:
        """The next batch of the iteration.

        Raises:
            StopIteration: It is over.
            FeedFailed: The feed is; the text is the reason.
        """
        course = self.course
        assert course is not None
        if course.batch >= self.plan.batches:
            raise StopIteration
        began_ns = time.monotonic_ns()
        words, data = self._take(self._lease())
        self.reasons.waits(began_ns)
        course.samples_left_out += words[10]
        if isinstance(data, ExceptionWrapper):
            data.reraise()
        if self._pins:
            data = _utils.pin_memory.pin_memory(data)
        return data

    def _lease(self) -> native.Lease:
        timeout = self._loader.timeout
        began = time.monotonic()
        deadline = began + timeout if timeout > 0 else None
        drops_others = False
        while True:
            if time.monotonic() >= self._look_at:
                self._look_after()
            if not drops_others and time.monotonic() - began > _LOOK_S:
                drops_others = True
                self._drop_others()
            status, text, lease = self.handle.next(_SLICE_MS)
            if lease is not None:
                return lease
            if status not in (native.TIMEOUT, native.INTERRUPTED):
                error = native.error_for(status, text)
                # A loop over epochs knows no end of a feed: to it that is a failure.
                raise FeedFailed(text) if isinstance(error, FeedEnd) else error
            if (said := self._standstill.look()) is not None:
                assert self.course is not None
                raise FeedFailed(
                    f"feed {self._place.feed} stands still, and this trainer waits for batch "
                    f"{self.course.batch} of epoch {self.course.epoch}: {said}. That is a fault of "
                    "ringfeed: please report it with this text"
                )
            if deadline is not None and time.monotonic() >= deadline:
                raise RuntimeError(f"DataLoader timed out after {timeout} seconds")

    def _drop_others(self) -> None:
        """Loaders of this process that nobody has any more, but for cycles, hold this one up."""
        if any(isinstance(one, Shared) and one._place == self._place for one in living - {self}):
            gc.collect()

    def _take(self, lease: native.Lease) -> tuple[tuple[int, ...], Any]:
        course = self.course
        assert course is not None
        awaited = mark_of(course.epoch, course.batch, self.rank)
        words = HEAD.unpack(ctypes.string_at(lease.data, HEAD.size))
        self._regions.let_old_go(words[9], lease.seq)
        if words[14]:
            assert self._bulk is not None
            text = self._bulk.read(lease.slot, words[15], NAME_BYTES)
            self.reasons.saw(words[14], name_in(text))
        self.reasons.add(words[0] >> 8, words[12], words[13])
        if words[0] & 0xFF != DATA or words[1] != awaited:
            raise FeedFailed(
                f"feed {self._place.feed}: its batch {lease.seq} is not batch {course.batch} of "
                f"epoch {course.epoch}, so it cannot go on: start the trainers anew"
            )
        course.batch += 1
        try:
            slot = self._regions.take(lease, words[9], words[8])
            return words, read(slot, words[2:4], words[4:6], copies=False)
        except Exception:
            # The error of its batch; the next one comes.
            return words, ExceptionWrapper(where="in the trainer, loading a batch of a shared feed")

    # ---- states and forks

    def state_dict(self) -> dict[str, Any]:
        """Where it is: epoch, and the next batch of it."""
        course = self.course
        if course is None:
            return {}
        if course.batch >= self.plan.batches:
            return {"epoch": course.epoch + 1, "batch": 0}
        return {"epoch": course.epoch, "batch": course.batch}

    def held(self) -> list[Any]:
        """Memory of the batches that somebody has."""
        return self._regions.held()

    def become_copy(self) -> None:
        """In a fork of the trainer: its place is the parent's alone."""
        self._regions.become_copy()
        self._drop_link()


def _is_stopped(pid: int) -> bool:
    """By SIGSTOP or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def place_in(state: dict[str, Any]) -> tuple[int, int]:
    """Epoch and batch of a state.

    Raises:
        ValueError: It is no state of a shared feed.
    """
    try:
        epoch, batch = state["epoch"], state["batch"]
        if type(epoch) is int and type(batch) is int and epoch >= 0 and batch >= 0:
            return epoch, batch
    except KeyError:
        pass
    raise ValueError(f"the state {state!r:.200} is none of a loader with feed=: has it no feed?")


_numbers = itertools.count(1)  # of the groups of this process


def _leave(ends: dict[str, Any]) -> None:
    if os.getpid() != ends["pid"]:
        return
    if ends["regions"] is not None:
        ends["regions"].let_all_go()
    if ends["handle"] is not None:
        ends["handle"].close()
    if ends["link"] is not None:
        ends["link"].close()
