"""The processes of a ``ringfeed.torch.DataLoader``: the warm parent, and the workers it forks.

The trainer starts the warm parent, which has the dataset. It listens on a socket; the feed's
supervisor connects, and orders a process for each worker. The orders come as packets: the word
``fork`` and a group's name, with the descriptors of a new process, which says ``here`` on its
setup socket. If it cannot be made, the answer is ``error`` and a reason. If nothing has been asked
of the worker, it is ``later``, and ``ready`` follows once something has been. ``ended`` tells how
a process has ended.

A worker makes a batch for each request. What it needs to go on in another process, if it dies, is
its state: generators, and how far the dataset is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import logging
import multiprocessing
import os
import pickle
import random
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from os import _exit  # as it was: what a dataset calls says where (exits.py)
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils

from . import _generators
from . import _life as life
from ._batches import Writer
from ._forks import came_through
from ._job import (
    ACK,
    AS_BEFORE,
    BEGAN,
    DATA,
    EMPTY,
    FETCH,
    HEAD,
    LEAVE,
    RESUME,
    RESUMED,
    SPILT,
    TOGETHER,
    WANTED,
    Bond,
    Job,
    is_asked,
    kill_workers,
    remove_link,
)
from ._plan import PlanTable, mark_of
from ._progress import WorkerPlace, restore_worker, worker_state
from ._streams import leave_stderr
from ._successor import Successor
from .._core import places, standard
from ..worker import exits, module

_log = logging.getLogger("ringfeed")

_SUPERVISOR_ENDS_S = 10
_HURRY_S = 0.3  # for workers to come to the end of a sample
_ENDS_S = 2.5  # then, for what is left to do; a supervisor gives them 3 s
_STARTS_MAX = 10
_PAUSE_S = 0.05
_SPARED_MS = 1000  # after which it is looked whether something is asked of those that are spared
_NOTHING = (None, 0, 0, 0, 0, False)  # behind the head of a batch that nobody has asked for
_TIMED_EVERY = 8  # batches: in one of so many each sample is timed


def serve(job: Job) -> None:
    """The warm parent: until its trainer ends."""
    came_through()
    standard.reserve()
    life.leave_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    trainer = _trainer_of(job)
    if trainer is None:
        job.requests.map_anew()
        kill_workers(job.requests, job.workers)  # of an earlier parent
        remove_link(job.shown)
        return places.remove(Path(job.socket_path).parent)
    worker = prepare(job)
    bond = Bond(job.requests, job.workers)
    bond.note_loaded()
    assert job.listener is not None
    Parent(job, worker, job.listener, trainer).run()


def prepare(job: Job) -> ModuleType:
    """All that a process needs to have before it forks workers of the job; the module of these."""
    os.environ.update(job.environment)
    job.requests.map_anew()
    torch.set_num_threads(1)
    worker = module.load()
    # Collections in the children then leave the pages of these objects alone, which are shared.
    gc.freeze()
    return worker


def listen_at(path: str) -> socket.socket:
    """A socket that takes packets there, in place of any that was there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # No longer than that. A supervisor whose trainer has died knows it by the first two letters.
    aside = str(Path(path).with_name(f"p.{os.getpid()}"))
    listener.bind(aside)
    listener.listen(64)
    os.rename(aside, path)  # from here on it is found, whole
    return listener


def accepted(listener: socket.socket) -> socket.socket | None:
    """A connection of the same user; None: there is none, or no descriptor left for it."""
    try:
        link, _ = listener.accept()
    except OSError:
        time.sleep(_PAUSE_S)  # it waits there, and would be seen again at once
        return None
    if user_of(link) != os.getuid():
        link.close()
        return None
    return link


def user_of(link: socket.socket) -> int:
    """Whose process is at the other end."""
    return _credentials(link)[1]


def pid_of(link: socket.socket) -> int:
    """The process at the other end: who connected."""
    return _credentials(link)[0]


def _credentials(link: socket.socket) -> tuple[int, int, int]:
    pid, user, group = struct.unpack(
        "3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return pid, user, group


def _trainer_of(job: Job) -> int | None:
    """A descriptor of the trainer's process; None: it has died, while this one was starting."""
    try:
        trainer = os.pidfd_open(job.trainer)
    except ProcessLookupError:
        return None
    real = multiprocessing.parent_process()
    if real is not None and not real.is_alive():  # whoever has its number now is another
        os.close(trainer)
        return None
    return trainer


class Parent:
    """The warm parent: forks a worker when the supervisor asks for one."""

    def __init__(
        self, job: Job, worker: ModuleType, listener: socket.socket, trainer: int | None
    ) -> None:
        """`trainer`: a pidfd of the process with which this one ends."""
        self._job = job
        self._worker = worker
        self._listener = listener
        self._trainer = trainer
        self._link: socket.socket | None = None
        self._children: dict[int, int] = {}  # by pidfd
        self._spared: dict[int, bytes] = {}  # workers that have no process, for want of work
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        if trainer is not None:
            self._poll.register(trainer, select.POLLIN)
        # Something in it ends the samples under way: a worker looks when it gets SIGTERM.
        self._ending, self._ends = os.pipe()
        # What it is told, as numbers of signals: by SIGTERM to end, for the trainer does not wait
        # for samples that take long; by SIGUSR1 that something has been asked of another worker.
        self._told, told = os.pipe()
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told)
        signal.signal(signal.SIGTERM, lambda *_: None)
        self._poll.register(self._told, select.POLLIN)

    def run(self) -> None:
        """Until the trainer ends, or this process is told to."""
        signal.signal(signal.SIGUSR1, lambda *_: None)
        Bond(self._job.requests, self._job.workers).note_hears(True)
        while True:
            for fd, _ in self._poll.poll(_SPARED_MS if self._spared else None):
                told = os.read(self._told, 64) if fd == self._told else b""
                if fd == self._trainer or signal.SIGTERM in told:
                    self._end()
                    if self._trainer_has_ended():
                        self._clear_up()
                    return
                if fd != self._told:
                    self._see(fd)
            for worker in [one for one in self._spared if self._is_asked(one)]:
                # Each by its name: a fork is ordered for one at a time, and those that still have
                # none would take the turn of it.
                if self._say(b"work " + self._spared[worker]):
                    del self._spared[worker]

    def _is_asked(self, worker: int) -> bool:
        # Of a feed that trainers share, workers know by themselves what to do.
        job = self._job
        return job.plan is not None or is_asked(job.requests, job.workers, worker)

    def _trainer_has_ended(self) -> bool:
        looks = select.poll()
        if self._trainer is not None:
            looks.register(self._trainer, select.POLLIN)
        return bool(looks.poll(0))

    def _see(self, fd: int) -> None:
        if fd in self._children:
            self._bury(fd)
        elif self._link is not None and fd == self._link.fileno():
            self._obey()
        elif fd == self._listener.fileno():
            self._accept()

    def _not_for_workers(self) -> list[int]:
        """Descriptors that only this process needs; nothing of it uses them any more."""
        fds = [self._told, self._ends, self._listener.detach(), *self._children]
        if self._trainer is not None:
            fds.append(self._trainer)
        if self._link is not None:
            fds.append(self._link.detach())
        return fds

    def _end(self) -> None:
        # The supervisor ends those that wait for a request. Who is at a sample is not waited for,
        # and neither is the supervisor. What the dataset has left to be done at the end is done, if
        # it does not take long.
        self._say(b"over")
        self._await(_HURRY_S)
        os.write(self._ends, b"1")
        for pid in self._children.values():
            os.kill(pid, signal.SIGTERM)
        self._await(_ENDS_S)
        for pid in self._children.values():
            os.kill(pid, signal.SIGKILL)
        kill_workers(self._job.requests, self._job.workers)  # of an earlier parent
        self._await(None)

    def _await(self, timeout_s: float | None) -> None:
        """Waits so long for the end of the workers."""
        ended = select.poll()
        for pidfd in self._children:
            ended.register(pidfd, select.POLLIN)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._children:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            for pidfd, _ in ended.poll(None if left_s is None else 1000 * left_s):
                ended.unregister(pidfd)
                self._bury(pidfd)

    def _clear_up(self) -> None:
        """Removes the loader's directory, behind a supervisor that may have been killed as well."""
        remove_link(self._job.shown)
        Path(self._job.socket_path).unlink(missing_ok=True)
        if self._link is not None:
            gone = select.poll()
            gone.register(self._link, select.POLLRDHUP)
            gone.poll(1000 * _SUPERVISOR_ENDS_S)
        places.remove(Path(self._job.socket_path).parent)

    def _accept(self) -> None:
        link = accepted(self._listener)
        if link is None:
            return
        self._drop_link()  # of a supervisor that has died
        self._link = link
        self._poll.register(link, select.POLLIN)
        self._say(b"ready")

    def _drop_link(self) -> None:
        if self._link is not None:
            self._poll.unregister(self._link)
            self._link.close()
            self._link = None

    def _say(self, what: bytes) -> bool:
        """False: nobody hears it; the supervisor asks again, or has gone."""
        try:
            if self._link is not None:
                self._link.send(what, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                return True
        except OSError:
            pass
        return False

    def _bury(self, pidfd: int) -> None:
        pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._say(b"ended %d %d" % (pid, status))

    def _obey(self) -> None:
        assert self._link is not None
        try:
            order, fds, _, _ = socket.recv_fds(self._link, 512, 8)
        except OSError:
            order, fds = b"", []
        if not order:
            return self._drop_link()
        try:
            word, _, group = order.partition(b" ")
            if word != b"fork" or len(fds) < 2:
                self._say(b"error unknown order")
                return
            _, _, number = group.rpartition(b".")
            worker = int(number) if number.isdigit() else 0
            if not self._is_asked(worker):
                self._spared[worker] = group
                self._say(b"later")
                return
            self._spared.pop(worker, None)
            pid = os.fork()
            if pid == 0:
                self._become_worker(fds)
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                os.kill(pid, signal.SIGKILL)  # its end would not be heard of
                os.waitpid(pid, 0)
                raise
            self._children[pidfd] = pid
            self._poll.register(pidfd, select.POLLIN)
        except OSError as error:
            self._say(f"error {error}".encode())
        finally:
            for one in fds:
                os.close(one)

    def _become_worker(self, fds: list[int]) -> NoReturn:
        status = 1
        setup, log, *lock = fds
        try:
            # Not by a socket object: socket.setdefaulttimeout() would change the descriptor.
            os.write(setup, b"here")
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            # Of the parent's: nothing stays but memory.
            for one in self._not_for_workers():
                os.close(one)
            # What is printed goes where the trainer's goes, what a death says to the feed's log.
            log = leave_stderr(log)
            for one in (setup, *lock, *([log] if log != 2 else [])):
                os.set_inheritable(one, False)
            status = run_worker(self._job, self._worker, setup, log, self._ending)
        except BaseException as error:
            os.write(log, f"{type(error).__name__}: {error}\n".encode())
        finally:
            _exit(status)


def run_worker(job: Job, worker: ModuleType, setup: int, log: int, ending: int) -> int:
    """Runs the lane that the supervisor describes over the setup socket.

    Args:
        job: What it works on.
        worker: The module of the runtime.
        setup, log: Descriptors: the socket, and the log.
        ending: A pipe in which there is something when samples are to be left.
    """
    made: list[Worker] = []

    def make(spec: Any) -> Worker:
        # A fault's Python stack goes to the log before the native one, and so does that of a worker
        # that is asked where it is: before the handlers that the runtime has set.
        faulthandler.enable(log, all_threads=False)
        faulthandler.register(signal.SIGUSR2, log, all_threads=True, chain=True)
        exits.tell(log)
        try:
            life.keep_timers()
            life.begin(job.identities[spec["lane"]], job.process_kind)
            made.append(Worker(job, spec["lane"], spec["feed"], worker))
            life.end_when_told(ending, lambda: made[0].is_ending)
            return made[0]
        except BaseException:
            os.write(log, traceback.format_exc().encode(errors="backslashreplace"))
            raise

    elsewhere = () if log == 2 else (log,)
    status = int(worker.run(setup, make, lambda thing: thing, *elsewhere))
    if made:
        made[0].end()
    return status


def _until_told(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of Worker in which it may be told to end: what was under way is not wanted."""

    @functools.wraps(method)
    def call(self: Worker, *words: Any) -> Any:
        try:
            return method(self, *words)
        except life.Ends:
            pass
        self.end()
        _exit(0)

    return call


def seed_generators(base_seed: int, worker: int) -> None:
    """As PyTorch seeds them in its workers."""
    random.seed(base_seed + worker)
    if _has_devices():
        torch.manual_seed(base_seed + worker)
    else:
        torch.default_generator.manual_seed(base_seed + worker)
    try:
        import numpy
    except ModuleNotFoundError:
        return
    state: Any = _utils.worker._generate_state
    numpy.random.seed(state(base_seed, worker))


def _has_devices() -> bool:
    """May there be generators of devices? torch.manual_seed() takes a note for them, with the
    stack, which costs a new process 1.4 ms."""
    accelerator = getattr(torch, "accelerator", None)  # of PyTorch 2.6 and later
    return accelerator is None or accelerator.current_accelerator() is not None


def _seed_for_batch(seed: int) -> None:
    random.seed(seed)
    # Not torch.manual_seed(), which also notes the seed for each device.
    torch.default_generator.manual_seed(seed)
    with contextlib.suppress(ModuleNotFoundError):
        import numpy

        numpy.random.seed([seed & 0xFFFFFFFF, seed >> 32])


class _Named(WorkerPlace):
    """A place whose samples are named before they are touched, and timed now and then."""

    def __init__(self, job: Job, worker: Any, collate: Any) -> None:
        super().__init__(
            *(job.kind, job.dataset, job.auto_collation, collate, job.drop_last),
            dataset_state=job.dataset_state,
        )
        self.collate_fn = job.collate_fn
        self._works_on: Callable[[int], None] = worker.works_on
        self._naming: Callable[[Any], Any] = worker.naming
        self._collate = collate
        self.slowest: tuple[int, Any] = (0, None)  # nanoseconds, index
        self.samples = 0  # of the batch at hand
        # Where its samples are in their request, if some of those are left out.
        self.places: list[int] | None = None

    def fetch(self, index: Any) -> Any:
        self._look()
        self.fetched += 1
        self.slowest = (0, None)
        self.samples = 1
        if self.iterable:
            self._samples += len(index) if self._many else 1
            try:
                return self._next(index)
            except StopIteration:
                self._ended = True
                raise
        if not self._many:
            self._works_on(0)
            return self._collate(self.dataset[index])
        self.samples = len(index)
        if getattr(self.dataset, "__getitems__", None):
            return self._collate(self.dataset.__getitems__(index))
        return self._collate(self._items(index))

    def _items(self, indices: Any) -> list[Any]:
        dataset, works_on = self.dataset, self._works_on
        if self.places is None and (self.fetched - 1) % _TIMED_EVERY:
            data = [dataset[index] for index in self._naming(indices)]
        else:
            data = []
            places = range(len(indices)) if self.places is None else self.places
            began = time.perf_counter_ns()
            for place, index in zip(places, indices):
                works_on(place)
                data.append(dataset[index])
                now = time.perf_counter_ns()
                if now - began > self.slowest[0]:
                    self.slowest = (now - began, index)
                began = now
        works_on(TOGETHER)
        return data

    def _next(self, indices: Any) -> Any:
        fetcher = self.fetcher
        if fetcher.ended:
            raise StopIteration
        if not self._many:
            self._works_on(0)
            return self._collate(next(fetcher.dataset_iter))
        data: list[Any] = []
        for place, _ in enumerate(indices):
            self._works_on(place)
            try:
                data.append(next(fetcher.dataset_iter))
            except StopIteration:
                fetcher.ended = True
                break
        if not data or (self._drop_last and len(data) < len(indices)):
            raise StopIteration
        self.samples = len(data)
        self._works_on(TOGETHER)
        return self._collate(data)


class Worker:
    """Makes batches: what the stage dataset_batcher calls (workers/python/dataset_function.h)."""

    def __init__(
        self,
        job: Job,
        number: int,
        feed: int,
        worker: Any,
    ) -> None:
        """`feed`: its number; `worker`: the module of the runtime."""
        self._gather: Callable[[int, list[int], int], None] = worker.gather
        self.requests = job.requests.map
        at = job.requests.size - 8 * (2 * job.workers - number)
        struct.pack_into("<Q", job.requests.map, at, os.getpid())
        self._job = job
        self._number = number
        self._writer = Writer(job.bulk, number)
        self._collate_ns = 0
        self._share_seed(job.shared_seed)
        self._place = _Named(job, worker, self._collate_of(job.collate_fn))
        self._plan = None if job.plan is None else PlanTable(job.plan, job.requests)
        self._bond = Bond(job.requests, job.workers)
        self._first = job.firsts[number] if job.firsts else 0
        self._feed = feed
        self._init_error: ExceptionWrapper | None = None
        self._end_told = False  # that the iterable dataset has ended
        self._still: Any = None  # the generators, as of the last state that was told
        self._last = 0  # the number of the last batch
        self._successor = Successor(job.generation)
        self.is_ending = False

    def end(self) -> None:
        """As PyTorch's workers end: iterators are closed, then what was left for multiprocessing to
        do at the end is done. Once."""
        if self.is_ending:
            return
        self.is_ending = True
        self._place.fetcher = None
        life.end()

    @_until_told
    def begin(self, state: bytes | None) -> None:
        """As PyTorch's workers begin; and on from there, if this one had predecessors."""
        job = self._job
        if not self._bond.tie(self._feed):
            raise RuntimeError("the feed whose batches the trainer has is gone")
        torch.set_num_threads(1)
        _utils.worker._worker_info = _utils.worker.WorkerInfo(
            id=self._number,
            num_workers=job.workers,
            seed=job.base_seed + self._number,
            dataset=self._place.dataset,
        )
        try:
            left, since = self._successor.read(state or b"")
            if not self._successor.is_over:
                self._begin(left, since)
        except Exception:
            self._init_error = self._wrapped()
        at = job.requests.size - 8 * (job.workers - self._number)
        struct.pack_into("<Q", job.requests.map, at, 0)

    def _begin(self, left: tuple[bool, bytes] | None, since: list[tuple[int, Any, Any]]) -> None:
        job = self._job
        self._count_starts()
        seed_generators(job.base_seed, self._number)
        if job.init_fn is not None:
            job.init_fn(self._number)
        if left is None:
            restore_worker(self._place, job.begin[self._number])
            self._successor.has_state = job.begin[self._number] is not None
        else:
            self._end_told = left[0]
            restore_worker(self._place, left[1])
        for one in since:
            self._do_again(*one)

    def _count_starts(self) -> None:
        """Raises if so many workers have died here, one after the other, before they had begun."""
        at = self._job.requests.size - 8 * (self._job.workers - self._number)
        (starts,) = struct.unpack_from("<Q", self._job.requests.map, at)
        if starts >= _STARTS_MAX:
            raise RuntimeError(
                f"{starts} workers have died in worker_init_fn or iter(dataset), one after the "
                "other: see the log of the loader for how they ended"
            )
        struct.pack_into("<Q", self._job.requests.map, at, starts + 1)

    def _share_seed(self, seed: int | None) -> None:
        from torch.utils.data import IterDataPipe, graph_settings

        dataset = self._place.dataset if hasattr(self, "_place") else self._job.dataset
        if seed is not None and isinstance(dataset, IterDataPipe):
            shared = torch.Generator()
            shared.manual_seed(seed)
            dataset = graph_settings.apply_random_seed(dataset, shared)
            if hasattr(self, "_place"):
                self._place.dataset = dataset
            else:
                self._job.dataset = dataset

    def _wrapped(self) -> ExceptionWrapper:
        wrapper: Any = ExceptionWrapper
        error: ExceptionWrapper = wrapper(where=f"in DataLoader worker process {self._number}")
        if hasattr(error.exc_type, "exceptions"):
            error.exc_type = RuntimeError  # a group cannot be made of its text
        return error

    # ---- batches

    @_until_told
    def run(
        self, number: int, kind: int, request: bytes, slot: int, condemned: tuple[int, ...]
    ) -> tuple[Any, ...]:
        """Makes the batch of a request.

        Returns:
            Its head, what is left to a successor or None, the numbers of samples and of those that
            were left out, nanoseconds in the dataset and in collate, and whether it is an
            exception; and True if what is left is appended to what was.
        """
        if not self._bond.note_made(self._feed):
            exits.say("the memory of the batches is another feed's")
            _exit(1)
        if self._bond.generation != self._job.generation:
            _exit(0)  # its warm parent was killed, and this is asked of the next generation
        if number < self._first:
            return HEAD.pack(EMPTY, *(0,) * 8, self._number, 0, number, *(0,) * 4), *_NOTHING
        wanted, kind = bool(kind & WANTED), kind & ~WANTED
        if kind & SPILT:
            kind ^= SPILT
            request = Path(os.fsdecode(request)).read_bytes()
        self._writer.begin(slot, number)
        if number == self._last:  # the one before was not published
            self._still = None
        self._last = number
        self._collate_ns = 0
        place = self._place
        place.slowest, place.samples, place.places = (0, None), 0, None
        left_out = 0
        began = time.perf_counter_ns()
        data: Any = None
        task = 0
        what = EMPTY
        if kind == BEGAN:
            what, data = ACK, self._init_error
        elif kind == RESUME:
            what = RESUMED
            self._resume(pickle.loads(request))
        elif kind == LEAVE and self._plan is None:
            self.end()
        elif self._plan is not None:
            if (planned := self._plan.place(number)) is not None:
                what, task = DATA, mark_of(*planned)
                _seed_for_batch(self._plan.plan.seed_of(*planned))
                data, left_out = self._fetched_or_raised(self._plan.indices(*planned), condemned)
        elif kind == FETCH and not self._end_told:
            what = DATA
            task, indices = pickle.loads(request)
            data, left_out = self._fetched_or_raised(indices, condemned)
        took = time.perf_counter_ns() - began
        state: bytes | None = None
        kept: bytes | None = None
        if what != EMPTY and self._plan is None:
            begins_known = self._job.begin[self._number] is None and not self._job.snapshots
            wanted |= what == RESUMED or (what == ACK and not begins_known)
            wanted |= self._job.snapshots and self._end_told
            data, state, kept = self._with_state(data, wanted, took, (kind, request, condemned))
        raised = isinstance(data, ExceptionWrapper)
        places = self._write(data) if what != EMPTY else (0, 0, 0, 0)
        del data
        at = 0 if state is None else self._writer.write_bytes(state) if state else AS_BEFORE
        collate = self._collate_ns
        fetch = max(0, took - collate)
        name = self._name_of(place.slowest[1]) if place.slowest[0] else 0
        self._writer.end()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # closed, or replaced by whatever
                pass
        samples = 0 if raised else place.samples
        lane = self._number | self._writer.region + 1 << 32
        head = HEAD.pack(
            *(what | samples << 8, task, *places, at, len(state or b""), self._writer.used),
            *(lane, left_out, number, fetch, collate, place.slowest[0], name),
        )
        if self.is_ending:
            kept = self._successor.over()
        made = (head, kept, samples, left_out, fetch, collate, raised)
        return made if kept is None or not self._successor.appends else (*made, True)

    def _with_state(
        self, data: Any, wanted: bool, took: int, done: tuple[int, bytes, tuple[int, ...]]
    ) -> tuple[Any, bytes | None, bytes | None]:
        """The batch, the state behind it or None, and what is left to a successor or None.

        A state without bytes is the last one: of a map-style dataset only the generators can
        change, and most leave them alone.

        A state that the dataset has a part in costs what it costs: it is asked for if the trainer
        wants it, and now and then.

        Args:
            wanted: By the trainer. If state_dict() raises then, that is in the batch's place.
            took: Nanoseconds for the batch.
            done: The request, with its kind and condemned samples.
        """
        place, successor = self._place, self._successor
        if self._init_error is not None and done[0] != RESUME:
            return data, None, None
        # What kills is not to be done again, neither here nor in a trainer that resumes.
        due = done[0] != BEGAN and (successor.is_due(took) or bool(done[2]))
        still = None
        if not (wanted or due or place.has_state or place.iterable):
            still = _generators.glance()
            if still is not None and still == self._still:
                return data, b"", None
        self._still = still
        if wanted or due or not place.has_state:
            began = time.perf_counter_ns()
            state: bytes | None = None
            try:
                state = worker_state(place)
            except Exception as error:
                if wanted and self._job.snapshots:
                    data = self._wrapped()
                else:
                    state = self._without_datasets(error)
            if state is not None:
                successor.has_state = place.has_state
                cost = time.perf_counter_ns() - began
                return data, state, successor.state(state, self._end_told, cost)
        if done[0] == BEGAN:
            return data, None, None
        return data, None, successor.request(done[0], self._short(done[0], done[1]), done[2])

    def _without_datasets(self, error: Exception) -> bytes | None:
        """What there is of a state if the dataset cannot tell its own; None: nothing new."""
        if self._successor.failed():
            return None
        _log.warning(
            "state_dict() of %s raises %s: %s. Workers that go on for others, and a loader that is "
            "resumed, do without it",
            type(self._place.dataset).__name__,
            type(error).__name__,
            error,
        )
        self._place.do_without()
        return worker_state(self._place)

    def _short(self, kind: int, request: bytes) -> Any:
        """Of a request what _do_again() needs of it."""
        if kind != FETCH or not self._place.iterable:
            return request
        _, indices = pickle.loads(request)
        return len(indices) if self._job.auto_collation else None

    def _do_again(self, kind: int, request: Any, condemned: tuple[int, ...]) -> None:
        """A request that a predecessor has done: nobody gets the batch."""
        if kind == RESUME:
            return self._resume(pickle.loads(request))
        if not self._place.iterable:
            _, indices = pickle.loads(request)
        else:
            indices = None if request is None else [None] * request
        if condemned:
            try:
                indices, _ = self._without(indices, condemned)
            except RuntimeError:
                return  # it was its batch
        if self._place.run_again(indices):
            self._end_told = True

    def _name_of(self, index: Any) -> int:
        text = repr(index).encode(errors="replace")[:200]
        return self._writer.write_bytes(struct.pack("<H", len(text)) + text)

    def _write(self, data: Any) -> tuple[int, int, int, int]:
        try:
            return self._writer.write(data)
        except Exception:
            # As if the batch had not been made: what it wrote means nothing.
            if not isinstance(data, ExceptionWrapper):
                return self._writer.write(self._wrapped())
            data.exc_type = RuntimeError  # nobody else knows the class; its name is in the text
            return self._writer.write(data)

    def _fetched_or_raised(self, indices: Any, condemned: tuple[int, ...]) -> tuple[Any, int]:
        """The batch or what was raised, and how many samples were left out."""
        if self._init_error is not None:
            return self._init_error, 0
        left_out = 0
        try:
            if self._place.has_ended:
                raise StopIteration
            if condemned:
                indices, left_out = self._without(indices, condemned)
            return self._place.fetch(indices), left_out
        except (SystemExit, KeyboardInterrupt) as error:
            # It ends the process, as it does in PyTorch's workers: a death like any other.
            exits.say(f"the dataset raised {type(error).__name__}:")
            _exit(1)
        except Exception as error:
            if isinstance(error, StopIteration) and self._place.iterable:
                self._end_told = True
                return _utils.worker._IterableDatasetStopIteration(self._number), left_out
            return self._wrapped(), left_out

    def _without(self, indices: Any, condemned: tuple[int, ...]) -> tuple[Any, int]:
        """The indices without those whose samples kill; raises unless they may be left out."""
        job = self._job
        bad = sorted(place for place in condemned if place != TOGETHER)
        if job.skips and job.kind == 0 and job.auto_collation and len(bad) == len(condemned):
            self._place.places = [place for place in range(len(indices)) if place not in bad]
            return [indices[place] for place in self._place.places], len(bad)
        if job.kind == 1:
            self._place.end()  # it would only kill again
            what = "a batch of the iterable dataset, which ends with it,"
        elif not job.auto_collation:
            what = f"the sample at index {indices!r}"
        elif not bad:
            what = f"the batch of {indices!r}"
        else:
            what = f"the sample at index {indices[bad[0]]!r}"
        raise RuntimeError(
            f"{what} has killed its worker process again and again: see the log of the loader for "
            "how it ended (on_poison='skip' leaves such samples out)"
        )

    def _resume(self, seed: int | None) -> None:
        self._share_seed(seed)
        self._end_told = False
        if self._init_error is None:
            try:
                self._place.begin_again(self._place.dataset)
            except Exception:
                self._init_error = self._wrapped()

    # ---- straight into the slot

    def _collate_of(self, collate_fn: Any) -> Callable[[Any], Any]:
        standard = collate_fn is _utils.collate.default_collate

        def collate(data: Any) -> Any:
            begin = time.perf_counter_ns()
            try:
                return self._in_place(data) if standard else collate_fn(data)
            finally:
                self._collate_ns += time.perf_counter_ns() - begin

        return collate

    def _in_place(self, data: Any) -> Any:
        """default_collate(), with tensors stacked where the trainer reads them."""
        table = _utils.collate.default_collate_fn_map
        if table.get(torch.Tensor) is _utils.collate.collate_tensor_fn:
            table = {**table, torch.Tensor: self._stacked}
        return _utils.collate.collate(data, collate_fn_map=table)

    def _stacked(self, batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        first = batch[0]
        if (
            type(first) is not torch.Tensor
            or first.layout is not torch.strided
            or first.device.type != "cpu"
            or first.is_nested
            or any(one.shape != first.shape or one.dtype != first.dtype for one in batch)
            or any(one.requires_grad or type(one) is not torch.Tensor for one in batch)
        ):
            stacked: torch.Tensor = _utils.collate.collate_tensor_fn(
                batch, collate_fn_map=collate_fn_map
            )
            return stacked
        out = self._writer.empty((len(batch), *first.shape), first.dtype)
        size = first.numel() * first.element_size()
        if not self._writer.gathers(len(batch), size) or not all(
            one.is_contiguous() for one in batch
        ):
            return torch.stack(batch, 0, out=out)
        self._writer.gather(out, [one.data_ptr() for one in batch], size, self._gather)
        return out
