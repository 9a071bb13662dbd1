"""The warm parent of a feed that several trainers share: nobody's child, as long as one is there.

It has the dataset of the trainer that came first. Trainers connect to its second socket, and keep
the connection. Each packet is JSON.

    to it     {"plan": …, "workers": …, "rank": …, "iteration": …}   who comes, and where it is
    from it   {"stride": …, "slots": …}        and descriptors that read batches and table
    to it     {"after": …, "next": …, "epoch": …, "first": …}   the next iteration is wanted
    from it   {"iteration": …, "start": …, "epoch": …, "first": …}
    from it   {"error": …}                               in place of either

It ends the feed some seconds after the last trainer has gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from .._core import control, programs, standard
from ..errors import FeedFailed, FeedIOError, RingfeedError
from . import _life as life
from ._bulk import opened_anew
from ._forks import came_through
from ._job import Bond, Job
from ._plan import PlanTable
from ._worker import Parent, accepted, listen_at, pid_of, prepare

GRACE_S = 5.0
FAILED, KILLED = 1, 2  # how a warm parent has ended before it was ready
PACKET_BYTES = 1 << 16
RANKS, LOADER = "ranks", "loader-"  # groups in which trainers attach: all, or one each
_HELLO_S = 10.0  # in which whoever connects has to say who it is
_STRANGERS_MAX = 16  # that have not
_TRAINERS_MAX = 64  # more than a feed has room for
_NUMBER_MAX = 1 << 62
_ENDS_S, _ENDS_LOOKS = 10.0, 20
_LOOK_MS = 500
_NONE = -1
_SUPERVISORS_MAX = 20  # that are killed while they start
STARTS_S = 120.0  # for a supervisor, and for a lock that somebody else has
_supervisors: list[subprocess.Popen[bytes]] = []  # of this process: it notes how they end


@dataclass(frozen=True)
class Place:
    """The files of a shared feed, beside its control socket."""

    directory: Path
    feed: str

    def file(self, what: str) -> Path:
        """``FEED.what``; of what is only a DataLoader's, ``FEED.loader-what``."""
        return self.directory / f"{self.feed}.{what}"

    @property
    def control(self) -> Path:
        """The supervisor's socket."""
        return self.file("sock")

    @property
    def parent(self) -> Path:
        """Where the supervisor finds the warm parent."""
        return self.file("loader-parent")

    @property
    def trainers(self) -> Path:
        """Where trainers find it."""
        return self.file("loader-trainers")

    @property
    def lock(self) -> Path:
        """Whoever starts or ends a part of the feed has it."""
        return self.file("loader-lock")

    @property
    def config(self) -> Path:
        """The feed's configuration."""
        return self.file("loader-config.textproto")

    @property
    def log(self) -> Path:
        """What all its processes say."""
        return self.file("loader-log")


def detach(job: Job, place: Place) -> NoReturn:
    """Starts the warm parent, and ends when that is ready, with status 0, or has ended: FAILED, or
    KILLED."""
    came_through()
    standard.reserve()
    life.leave_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    read, write = os.pipe()
    if child := os.fork():
        os.close(write)
        if os.read(read, 1):
            os._exit(0)
        os._exit(KILLED if os.WIFSIGNALED(os.waitpid(child, 0)[1]) else FAILED)
    status = 1
    try:
        os.close(read)
        os.setsid()
        _leave_trainer(place, {write, job.bulk.fd, job.requests.fd})
        _serve(job, place, write)
        status = 0
    except BaseException:
        import traceback

        with contextlib.suppress(Exception):
            traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


def _leave_trainer(place: Place, own: set[int]) -> None:
    """Gives up what a process that outlives the trainer must not keep: its terminal, sockets,
    and devices."""
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    unused = {log, null}
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        at = log if fd else null
        if not standard.lead(fd, at):  # it is a file of the trainer's, which the dataset may read
            unused.discard(at)
        else:
            at = fd
        mode = "w" if fd else "r"
        setattr(sys, name, open(at, mode, buffering=1, errors="backslashreplace", closefd=False))
    for at in unused:
        os.close(at)
    lock = os.stat(place.lock)
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            left = target.startswith(("socket:", "/dev/nvidia", "/dev/kfd"))
            # The lock is the trainer's, who has it while this process starts. Its path may have
            # links in it, so names do not tell.
            if fd not in own and (left or os.path.samestat(os.fstat(fd), lock)):
                os.close(fd)


def _serve(job: Job, place: Place, ready: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    worker = prepare(job)
    parent = listen_at(str(place.parent))
    _SharedParent(job, worker, parent, listen_at(str(place.trainers)), place, ready).run()


@dataclass
class _Trainer:
    """A trainer that is connected."""

    link: socket.socket
    since: float  # monotonic seconds, of its last word before it attached
    known: bool = False  # it has said who it is
    attached: bool = False  # as the supervisor says
    rank: int = 0  # on this host
    iteration: int = _NONE  # in which it is
    asked: dict[str, Any] | None = None  # that has no answer yet


class _SharedParent(Parent):
    def __init__(
        self,
        job: Job,
        worker: ModuleType,
        listener: socket.socket,
        trainers: socket.socket,
        place: Place,
        ready: int,
    ) -> None:
        super().__init__(job, worker, listener, None)
        assert job.plan is not None
        self._where = place
        self._table = PlanTable(job.plan, job.requests)
        self._bond = Bond(job.requests, job.workers)
        self._table.publish()  # of one that has died, perhaps in between
        self._took_over = self._table.count > 0
        self._door = trainers
        self._trainers: dict[int, _Trainer] = {}  # by descriptor
        self._alone_since = time.monotonic()
        self._look_at = 0.0
        self._had_link = False  # to a supervisor
        self._ranks_seen: set[int] = set()  # that have been in an iteration
        self._poll.register(trainers, select.POLLIN)
        self._slots = job.bulk.regions
        # Trainers read what all of them share, and nothing else.
        self._for_trainers = tuple(
            opened_anew(memory.fd, os.O_RDONLY) for memory in (job.bulk, job.requests)
        )
        os.write(ready, b"1")
        os.close(ready)

    def run(self) -> None:
        while True:
            for fd, _ in self._poll.poll(_LOOK_MS):
                if fd == self._told:
                    return self._end()
                self._see(fd)
            if self._look_at < time.monotonic() or self._bond.is_gone:
                self._look_at = time.monotonic() + _LOOK_MS / 1000
                self._send_strangers_away()
                self._send_idlers_away()
                try:
                    over = self._look_after()
                except OSError:  # no descriptor is left: those of strangers go first
                    self._send_strangers_away(0)
                    continue
                if over:
                    return None

    def _look_after(self) -> bool:
        """Starts a supervisor in place of one that has died; or ends all. True: it is over."""
        alone = self._bond.is_gone or (
            not any(trainer.known for trainer in self._trainers.values())
            and time.monotonic() - self._alone_since > GRACE_S
            and not self._has_absent()
        )
        if not alone and (self._link is not None or listens(self._where.control)):
            return False
        if not alone and not self._had_link:
            return False  # the trainer that has started this process starts one
        if not alone and not listens(self._where.control) and _state_of(self._where).is_held:
            return False  # it starts, or it ends: looked at again
        alone = alone or has_ended(self._where)  # somebody has stopped it
        with self._where.lock.open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False  # somebody else does
            if not alone and not listens(self._where.control):
                # A trainer tells why it does not come up.
                with contextlib.suppress(RingfeedError, OSError):
                    if start_supervisor(self._where) and self._bond.is_in_use:
                        self._bond.note_gone()
                        alone = True
            if alone:
                end_feed(self._where)
                self._end()
        return alone

    def _has_absent(self, timeout_s: float = 0.5) -> bool:
        """Are there trainers that this process has not seen: an earlier one's, busy since?

        Where the supervisor does not say so in `timeout_s`, there may be some.
        """
        there = Counter(pid_of(one.link) for one in self._trainers.values() if one.known)
        try:
            all_of_them = trainers_of(self._where, timeout_s)
        except FeedIOError:
            return listens(self._where.control)
        except RingfeedError:
            return False
        return bool(Counter(all_of_them) - there)

    def _accept(self) -> None:
        super()._accept()
        self._had_link = self._had_link or self._link is not None

    def _not_for_workers(self) -> list[int]:
        fds = super()._not_for_workers()
        fds += [self._door.detach(), *self._for_trainers]
        return fds + [trainer.link.detach() for trainer in self._trainers.values()]

    def _see(self, fd: int) -> None:
        if fd == self._door.fileno():
            self._admit()
        elif fd in self._trainers:
            self._hear(fd)
        else:
            super()._see(fd)

    def _admit(self) -> None:
        link = accepted(self._door)
        if link is None:
            return self._send_strangers_away(0)
        link.setblocking(False)
        self._trainers[link.fileno()] = _Trainer(link, time.monotonic())
        self._poll.register(link, select.POLLIN)
        self._send_strangers_away(_STRANGERS_MAX)

    def _send_strangers_away(self, most: int | None = None) -> None:
        """Those that have been silent for too long, and the oldest of more than `most`."""
        strangers = [fd for fd, one in self._trainers.items() if not one.known]
        many = 0 if most is None else max(0, len(strangers) - most)
        for place, fd in enumerate(strangers):
            if place < many or time.monotonic() - self._trainers[fd].since > _HELLO_S:
                self._part(fd)

    def _send_idlers_away(self, is_full: bool = False) -> None:
        """Those that have said who they are and then have not attached. A trainer that was only
        slow comes back. `is_full`: also the oldest one, however new, for somebody waits."""
        late = time.monotonic() - _HELLO_S
        known = {fd: one for fd, one in self._trainers.items() if one.known}
        if not is_full and all(one.attached or one.since > late for one in known.values()):
            return
        try:
            there = Counter(trainers_of(self._where))
        except RingfeedError:
            return
        for fd, one in known.items():
            pid = pid_of(one.link)
            there[pid] -= 1
            one.attached = there[pid] >= 0
            if not one.attached and (one.since < late or is_full):
                is_full = False
                self._part(fd)

    def _part(self, fd: int) -> None:
        trainer = self._trainers.pop(fd)
        self._poll.unregister(fd)
        trainer.link.close()
        if trainer.known:
            self._alone_since = time.monotonic()

    def _hear(self, fd: int) -> None:
        trainer = self._trainers[fd]
        try:
            said = trainer.link.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            return self._part(fd)
        try:
            asked = json.loads(said)
            if trainer.known:
                epoch = None if asked["epoch"] is None else _number(asked, "epoch", 0)
                trainer.asked = {
                    "after": _number(asked, "after", _NONE),
                    "next": _number(asked, "next", 0),
                    "first": _number(asked, "first", 0),
                    "epoch": epoch,
                }
            else:
                self._greet(trainer, asked)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._answer(trainer, {"error": f"what was asked cannot be read: {error!r:.500}"})
            return self._part(fd)
        waiting = [one for one in self._trainers.values() if one.asked is not None]
        if self._table.count == 0 and len(waiting) < self._job.trainers:
            return  # they begin together
        for one in waiting:
            self._begin(one)

    def _answer(self, trainer: _Trainer, answer: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        with contextlib.suppress(OSError):  # it has gone, which is seen next
            socket.send_fds(trainer.link, [json.dumps(answer).encode()], list(fds))

    def _greet(self, trainer: _Trainer, asked: dict[str, Any]) -> None:
        job = self._job
        assert job.plan is not None
        wrong = job.plan.differences(asked["plan"])
        if asked["workers"] != job.workers:
            wrong.append(f"num_workers={asked['workers']} in place of {job.workers}")
        if wrong:
            return self._answer(
                trainer,
                {"error": f"other trainers share it, and this one has {', '.join(wrong)}"},
            )
        iteration, rank = _number(asked, "iteration", _NONE), _number(asked, "rank", 0)
        if self._known() >= _TRAINERS_MAX:
            self._send_idlers_away(is_full=True)
        if self._known() >= _TRAINERS_MAX:
            return self._answer(trainer, {"error": f"it has {_TRAINERS_MAX} trainers already"})
        trainer.known, trainer.iteration, trainer.rank = True, iteration, rank
        trainer.since = time.monotonic()
        if trainer.iteration != _NONE:
            self._ranks_seen.add(trainer.rank)
        self._answer(
            trainer,
            {"stride": job.bulk.stride, "slots": self._slots, "table": job.requests.size},
            self._for_trainers,
        )

    def _known(self) -> int:
        return sum(one.known for one in self._trainers.values())

    # ---- iterations

    def _begin(self, trainer: _Trainer) -> None:
        asked, trainer.asked = trainer.asked, None
        assert asked is not None
        try:
            number = self._iteration_for(trainer, asked)
            start, epoch, first = self._table.iteration(number)
        except RingfeedError as error:
            return self._answer(trainer, {"error": str(error)})
        except ValueError as error:
            return self._answer(trainer, {"error": str(error)})
        trainer.iteration = number
        self._ranks_seen.add(trainer.rank)
        self._answer(trainer, {"iteration": number, "start": start, "epoch": epoch, "first": first})

    def _iteration_for(self, trainer: _Trainer, asked: dict[str, Any]) -> int:
        table = self._table
        newest = table.count - 1
        after, epoch, first = asked["after"], asked["epoch"], asked["first"]
        if after > newest:
            raise ValueError(f"iteration {after} has not begun")
        # One that is in an earlier iteration has the newest one still before him.
        others = any(
            one is not trainer and one.known and one.iteration != _NONE
            for one in self._trainers.values()
        )
        new_rank = table.plan.local_ranks > 1 and trainer.rank not in self._ranks_seen
        # Trainers of an earlier warm parent come back when they next want a batch.
        others = others or self._took_over and self._has_absent(_HELLO_S / 2)
        if after == _NONE and (newest == _NONE or not (others or new_rank)):
            return self._next(epoch or 0, first, made_to=self._made_to(asked["next"]))
        if after == newest:
            follows = table.iteration(newest)[1] + 1
            follows = follows if epoch is None else epoch
            made_to = self._made_to(max(asked["next"], table.iteration(newest)[0]))
            return self._next(follows, first, made_to=None if others else made_to)
        # What the others have begun. Who comes late goes on where his batches are.
        number = table.find(asked["next"]) if after == _NONE else after + 1
        _, known, begins = table.iteration(number)
        if epoch not in (None, known) or first and first < begins:
            raise ValueError(
                f"epoch {epoch} from batch {first} on is wanted, and the trainers that share the "
                f"feed are in epoch {known}: let all of them use the same epochs"
            )
        return number

    def _made_to(self, at: int) -> int:
        """The first batch that cannot have been made yet, if the only trainer is at `at`."""
        return at + self._slots + self._job.workers

    def _next(self, epoch: int, first: int, *, made_to: int | None) -> int:
        """Begins an iteration behind the newest one; with `made_to`, no later than there: nobody
        wants the rest."""
        table, ranks = self._table, self._table.plan.local_ranks
        start = table.behind(table.count - 1) if table.count else 1
        if made_to is not None:
            start = min(start, made_to)
        start += -(start - 1) % ranks
        if made_to is not None:
            table.drop_from(start)
        return table.begin(start, epoch, first)


def _number(asked: Any, name: str, least: int) -> int:
    value = asked[name]
    if type(value) is not int or not least <= value < _NUMBER_MAX:
        raise ValueError(f"{name} is {value!r:.100}, not a number from {least} on")
    return value


def start_supervisor(place: Place) -> bool:
    """Starts a supervisor, and waits until it listens. The caller has the lock.

    Returns:
        Has it begun another feed? If nobody has the memory of the one that was there, because all
        its processes have died, it cannot go on with that.
    Raises:
        FeedFailed: It has ended, does not come up, or is killed again and again.
    """
    deadline = time.monotonic() + STARTS_S
    before = _state_of(place).feed_id
    for _ in range(_SUPERVISORS_MAX):
        _supervisors[:] = [one for one in _supervisors if one.poll() is None]
        supervisor = _begin_supervisor(place)
        _supervisors.append(supervisor)
        while not listens(place.control) and supervisor.poll() is None:
            if time.monotonic() > deadline:
                raise FeedFailed("its supervisor does not come up")
            time.sleep(0.002)
        # One that was killed has not failed: its successor finds all as it was.
        if supervisor.returncode is None:
            now = _state_of(place).feed_id
            return before != "" != now != before
        if supervisor.returncode > 0:  # 0: nobody knows, for this process ignores SIGCHLD
            raise FeedFailed(f"its supervisor ended with status {supervisor.returncode}")
    raise FeedFailed("its supervisor is killed again and again")


def _begin_supervisor(place: Place) -> subprocess.Popen[bytes]:
    with place.log.open("ab") as log:
        return subprocess.Popen(
            [
                *(str(programs.find("ringfeed")), "run", str(place.config)),
                *("--set", f"feed={place.feed}"),
                *("--set", f"control.directory={place.directory}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "RINGFEED_SOCKET_DIR": str(place.directory),
                "RINGFEED_PYTHON": sys.executable or "",
            },
            cwd=place.directory,
            start_new_session=True,
        )


def end_supervisor(place: Place) -> None:
    """Stops a supervisor if there is one, and waits for its end."""
    deadline = time.monotonic() + _ENDS_S
    with contextlib.suppress(RingfeedError):
        control.stop(place.control, now=True, timeout_s=_ENDS_S)
    while listens(place.control) or _state_of(place).is_held:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)


def end_feed(place: Place) -> None:
    """Ends what is there of a feed but its warm parent, and removes its files. The caller has the
    lock."""
    for path in (place.trainers, place.parent):
        path.unlink(missing_ok=True)
    end_supervisor(place)
    place.config.unlink(missing_ok=True)
    # Of a supervisor that was killed. One that takes long to end removes its own.
    if not listens(place.control) and not _state_of(place).is_held:
        for path in (place.control, place.file("state")):
            path.unlink(missing_ok=True)


def trainers_of(place: Place, timeout_s: float = 0.5) -> list[int]:
    """The processes that have attached, once for each loader.

    Raises:
        FeedIOError: The supervisor has gone, or does not answer in `timeout_s`.
        RingfeedError: It says no, or nothing that makes sense.
    """
    # A supervisor that has adopted them does not know what they call themselves.
    members = control.trainers(place.control, timeout_s)
    return [pid for group, pid in members if group == RANKS or group.startswith(LOADER)]


def has_ended(place: Place) -> bool:
    """Has the supervisor ended in good order? One that was killed leaves its state.

    One that ends gives up its socket first, waits for its workers, and gives up its state last.
    """
    deadline = time.monotonic() + _ENDS_S
    looks = 0
    while not listens(place.control) and (state := _state_of(place)).exists:
        # From another PID namespace it is not seen to run: what it does last takes little time.
        if looks >= _ENDS_LOOKS and (not state.is_held or time.monotonic() > deadline):
            return state.is_over and not state.is_held
        looks += 1
        time.sleep(0.02)
    return not listens(place.control)


class _State(NamedTuple):
    """What the record of a feed says, which its supervisor keeps (control::LockRecord)."""

    exists: bool
    is_over: bool = False
    is_held: bool = False  # the supervisor that has written it runs
    feed_id: str = ""  # hexadecimal; it may not say so


def _state_of(place: Place) -> _State:
    try:
        lines = place.file("state").read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return _State(exists=False)
    except OSError:
        return _State(exists=True)
    is_over = "over" in lines
    feed_id = next((line.split()[1] for line in lines if line.startswith("feed_id ")), "")
    try:
        _, pid, ticks = next(line for line in lines if line.startswith("supervisor ")).split()
        stat = Path(f"/proc/{int(pid)}/stat").read_text(errors="replace")
    except (OSError, StopIteration, ValueError):
        return _State(exists=True, is_over=is_over, feed_id=feed_id)
    fields = stat.rpartition(")")[2].split()
    # The first of its threads is a zombie while others still end, with its files and locks.
    runs = fields[0] not in ("Z", "X") or int(fields[17]) > 1
    is_held = runs and fields[19] == ticks
    return _State(exists=True, is_over=is_over, is_held=is_held, feed_id=feed_id)


def listens(path: Path) -> bool:
    """Does somebody listen there?"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.settimeout(1.0)
        try:
            link.connect(os.fspath(path))
        except (TimeoutError, BlockingIOError):
            return True  # it is busy: as many wait already as it lets wait
        except OSError:
            return False
        return True
