"""The feed of a loader's own, which iterators that follow one another have in turn.

A supervisor, its memory and the trainer's membership cost more than the batches of a short epoch.
So the feed of an iterator that has ended is kept for a moment (`take`, `give`). Each iterator is a
*generation* of it: it forks a warm parent and workers of its own, which have the dataset as it is
then. The warm parent of the one before has told the supervisor that its workers end by order, and
it has ended with them. Numbers of requests and batches go on: what was asked for in an earlier
generation is answered with nothing, and what it had made is dropped.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from .._core import control, native, programs, standard
from .._core.feed_log import FeedLog
from ..errors import FeedDetached, FeedIOError, FeedTimeout, NoSuchFeed
from ..loader import _FEED, _Supervisor
from ..worker import module
from ._batches import Requests
from ._bulk import Bulk, check_address_space
from ._job import SPILT, Bond, kill_workers, remove_link, words_bytes
from ._regions import Regions, living

_HEAP_BYTES = 1 << 18  # of each worker, for its requests
_SLOTS_MAX = 256  # of a feed
ANSWER_MS = 10_000
_OTHER_REQUESTS = 8  # of a worker: its beginning, each epoch's, its end
_END_S = 10.0
_IDLE_S = 1.0  # that a feed is kept for another iterator
_IDLE_MAX = 4
_HELD_MAX = 2  # batches of a lane that somebody has, beside which its feed is kept
_COMES_BACK = (FeedTimeout, NoSuchFeed, FeedIOError)
# What the one member of the feed's one group leaves as it is.
UNSET = (
    *("socket_dir", "kind", "rank", "world", "policy", "redeliver", "max_tries", "max_hold"),
    *("stall_ms", "rejoin_ms"),
)
# Variables that a supervisor goes by.
_VARIABLES = ("TMPDIR", "XDG_RUNTIME_DIR", "PATH", "LD_LIBRARY_PATH")


def config_of(
    workers: int,
    socket_path: str,
    slots: int,
    settings: dict[str, Any],
    output: str,
    planned: bool = False,
) -> bytes:
    """The configuration of a loader's feed.

    Args:
        workers: How many.
        socket_path: Where their warm parent listens.
        slots: Batches for which it has room.
        settings: stall_timeout (seconds), max_attempts.
        output: More fields of its feed_output.
        planned: Workers know by themselves what a batch is made of.
    """
    return f"""
stages {{
  name: "dataset"
  dataset_batcher {{
    processes: {workers} parent_socket: "{socket_path}" {"planned: true" if planned else ""}
  }}
}}
feed_output {{ slots: {slots} {output} }}
restart {{
  max_restarts: 1000000 backoff_ms_max: 1000 max_attempts: {settings["max_attempts"]}
  stall_ms: {round(1000 * settings["stall_timeout"])}
  dead_letters: "{Path(socket_path).parent}"
}}
shutdown {{ orphan_timeout_s: 60 }}
""".encode()


def slots_of_lane(prefetch_factor: int, workers: int) -> int:
    """Batches for which each worker has room."""
    return min(prefetch_factor + 3, max(1, _SLOTS_MAX // workers))


class OwnFeed:
    """A feed with its supervisor, and a trainer's end of it."""

    def __init__(self, workers: int, settings: dict[str, Any]) -> None:
        """
        Args:
            workers: How many lanes it has.
            settings: prefetch_factor, stall_timeout (seconds), max_attempts.
        """
        standard.reserve()  # before memory of the feed is made
        self.pid = os.getpid()
        self.key = key_of(workers, settings)
        self.workers = workers
        lane_slots = slots_of_lane(settings["prefetch_factor"], workers)
        # When the others have ended, one worker has all that PyTorch's iterator asks for at once.
        self._most = workers * settings["prefetch_factor"] + _OTHER_REQUESTS
        # Twice that: an earlier generation may have left as many.
        self.requests = Requests(workers, 2 * self._most, _HEAP_BYTES, words_bytes(workers))
        self.bond = Bond(self.requests.memory, workers)
        # Beside those of slots a lane has some that the loop holds.
        check_address_space()
        waiting = workers * settings["prefetch_factor"]
        self.bulk = Bulk(workers * (lane_slots + 3), workers, waiting)
        self.regions = Regions(self.bulk)
        self.next = list(range(1, workers + 1))  # of each worker: the number of its next request
        self.handle: native.Handle | None = None
        self.leases: list[native.Lease] = []  # that claim nothing now
        self._spilt: dict[int, Path] = {}
        self._posting = threading.Lock()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def config(directory: Path) -> bytes:
            # It is there before anybody looks: warm parents inherit it, one after the other.
            self.socket_path = str(directory / "parent.sock")
            self.listener.bind(self.socket_path)
            self.listener.listen(64)
            output = 'dispatch: RELAXED groups { name: "default" }'
            return config_of(workers, self.socket_path, workers * lane_slots, settings, output)

        try:
            self.supervisor = _Supervisor(config, ".textproto", kept=True, plan=plan_of)
        except BaseException:
            self.listener.close()
            raise
        self.log = FeedLog(self.supervisor.lines)
        self.shown = ""
        self._idle_child = 0  # the supervisor, as of when it was put by
        # What the end of this object ends, which cannot refer to it.
        self._ends: dict[str, Any] = {"handle": None, "pid": self.pid, "workers": workers}
        self._ends["memory"], self._ends["bulk"] = self.requests.memory, self.bulk
        self._ends |= {"regions": self.regions, "shown": "", "listener": self.listener}
        self.end = weakref.finalize(self, _end, self.supervisor, self._ends)
        living.add(self)

    # ---- generations

    def begin(self) -> tuple[int, list[int]]:
        """Begins another generation: its number, and of each worker that of its first request."""
        self.bond.begin()
        self.shown = self._ends["shown"] = _show(self.supervisor.socket_path)
        return self.bond.generation, list(self.next)

    @property
    def is_used(self) -> bool:
        """Has there been a generation before?"""
        return self.bond.generation > 0

    def put_by(self) -> bool:
        """No worker is left. Can the feed be of use to another iterator?"""
        # With the warm parent that would remove it has gone, should this process be killed.
        remove_link(self.shown)
        if self.handle is None or self.supervisor.exit_status is not None or self.bond.is_gone:
            return False
        if self.requests.most_open() > self._most or self.regions.most_held() > _HELD_MAX:
            return False
        self.regions.end(for_good=False)
        self._idle_child = self.supervisor.child
        return True

    def is_as_it_was(self) -> bool:
        """Nobody has ended it meanwhile; a supervisor without workers has no feed to take over."""
        child = self.supervisor.child
        return self.supervisor.exit_status is None and child == self._idle_child

    # ---- requests

    def post(self, worker: int, kind: int, payload: bytes, may_wait: bool = False) -> None:
        """Asks a worker for its next batch; never waits.

        `may_wait`: it is not woken for it alone.
        """
        with self._posting:
            number = self.next[worker]
            place = self.requests.room(number, len(payload))
            if place is None:
                path = Path(self.socket_path).parent / f"{_FEED}.request-{number}.pickle"
                self._spilt[number] = path
                path.write_bytes(payload)  # if there is no room, the number is still the next one
                payload, kind = os.fsencode(path), kind | SPILT
                place = self.requests.room(number, len(payload), spilt=True)
                assert place is not None
            self.next[worker] += self.workers
            self.regions.asked(worker, number)
            memory = self.requests.memory
            memory.map[place : place + len(payload)] = payload
            raw = None if self.handle is None else self.handle.raw
            try:
                native.ask(
                    *(raw, memory.address, memory.size, number, place, len(payload), kind), may_wait
                )
            except FeedDetached:
                pass  # nobody makes batches any more

    def let_go(self, number: int) -> None:
        """The batch of that request is here."""
        with self._posting:
            self.requests.let_go(number)
            self.regions.answered()
            spilt = self._spilt.pop(number, None)
        if spilt is not None:
            spilt.unlink(missing_ok=True)

    def rest(self) -> None:
        """An epoch is over: memory that no batch has is given back."""
        with self._posting:
            self.regions.rest()

    def oldest(self, worker: int) -> tuple[int, int, bytes | None]:
        """As Requests.oldest()."""
        with self._posting:
            return self.requests.oldest(worker)

    # ---- batches

    def attach(self, timeout_ms: int) -> native.Handle | None:
        """The trainer's end; None: not yet.

        Raises:
            RingfeedError: There will be none.
        """
        if not self.supervisor.wait_listening(timeout_ms):
            return None
        self.bond.note_taken()  # before: what has been made may be here the moment after
        unset: Any = dict.fromkeys(UNSET)
        status, text, handle = native.Handle.attach(
            feed=_FEED,
            group="default",
            client="ringfeed.torch.DataLoader",
            timeout_ms=timeout_ms,
            answer_ms=ANSWER_MS,
            socket_path=self.supervisor.socket_path,
            start="oldest",
            view="readonly",
            **unset,
        )
        if handle is None:
            error = native.error_for(status, text)
            # Of a supervisor that is killed while it answers: it has a successor.
            if not isinstance(error, _COMES_BACK) and status != native.INTERRUPTED:
                raise error
            return None
        with self._posting:
            handle.reads_log = True
            self.handle = self._ends["handle"] = handle
        return handle

    def detach(self) -> None:
        """The feed of that handle is no more; another one begins in its place."""
        with self._posting:
            handle, self.handle = self.handle, None
            self.leases.clear()
            self._ends["handle"] = None
        if handle is not None:
            handle.close()

    # ---- forks of the trainer

    def held(self) -> list[Any]:
        """Memory of the batches that somebody has."""
        return self.regions.held()

    def become_copy(self) -> None:
        """In a fork of the trainer: what is held is copied, and nothing is shared any more."""
        self.regions.become_copy()
        self.requests.memory.close()
        self.bulk.close()
        self.listener.close()


def key_of(workers: int, settings: dict[str, Any]) -> Any:
    """What feeds have in common that stand for one another."""
    names = ("prefetch_factor", "stall_timeout", "max_attempts")
    variables = [(name, os.environ.get(name)) for name in _VARIABLES]
    own = [one for one in os.environ.items() if one[0].startswith("RINGFEED_")]
    return (os.getpid(), workers, *(settings[name] for name in names), *variables, *sorted(own))


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
    if parts["handle"] is not None:
        parts["handle"].close()
    # If the supervisor had just been killed, nobody else would end them.
    supervisor.end(_END_S, others=lambda: kill_workers(parts["memory"], parts["workers"]))
    parts["listener"].close()
    parts["regions"].end()
    parts["memory"].close()
    parts["bulk"].close()


# ---- feeds between two iterators


class _Idle:
    """Feeds that no iterator has, with when they end; and who ends them."""

    def __init__(self) -> None:
        self.changing = threading.Condition()  # its lock: a finalizer may come, and give one
        self.feeds: list[tuple[float, OwnFeed]] = []  # the next to end first
        self.runs = False  # a thread that ends them

    def take(self, key: Any) -> OwnFeed | None:
        """One with this key; None: there is none."""
        with self.changing:
            fitting = [one for one in self.feeds if one[1].key == key]
            if not fitting:
                return None
            self.feeds.remove(fitting[-1])
            return fitting[-1][1]

    def give(self, feed: OwnFeed) -> list[OwnFeed]:
        """Keeps it for a moment; those that there is no room for."""
        with self.changing:
            self.feeds.append((time.monotonic() + _IDLE_S, feed))
            if not self.runs:
                try:
                    threading.Thread(target=self._run, name="ringfeed-idle", daemon=True).start()
                except RuntimeError:  # no thread can be started
                    return self.all()
                self.runs = True
            over = []
            while len(self.feeds) > _IDLE_MAX:
                over.append(self.feeds.pop(0)[1])
            return over

    def all(self) -> list[OwnFeed]:
        """All of them, which are kept no more."""
        with self.changing:
            feeds = [feed for _, feed in self.feeds]
            self.feeds.clear()
            self.changing.notify_all()
        return feeds

    def _run(self) -> None:
        while True:
            with self.changing:
                if not self.feeds:
                    self.runs = False
                    return
                left_s = self.feeds[0][0] - time.monotonic()
                if left_s > 0:
                    self.changing.wait(left_s)
                    continue
                feed = self.feeds.pop(0)[1]
            feed.end()
            del feed


_idle = _Idle()


def _forget() -> None:
    global _idle
    _idle = _Idle()


os.register_at_fork(after_in_child=_forget)  # they are the parent's


def take(workers: int, settings: dict[str, Any]) -> OwnFeed:
    """A feed for an iterator: one that was kept, or a new one."""
    while (feed := _idle.take(key_of(workers, settings))) is not None:
        if feed.is_as_it_was():
            return feed
        feed.end()
    return OwnFeed(workers, settings)


def give(feed: OwnFeed) -> None:
    """An iterator has ended, and all that it has started."""
    if not feed.put_by():
        feed.end()
        return
    for other in _idle.give(feed):
        other.end()
