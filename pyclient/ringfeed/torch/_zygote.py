"""Starts the warm parents of a loader whose workers are spawned, without a new interpreter each.

A spawned process takes seconds: Python, torch, and whatever the trainer's program and the dataset's
module import. So a loader spawns one, the zygote, which imports all that and has no job. For each
iterator it forks a process, which then does what a spawned one does once it has been prepared: it
unpickles the process object, as it is now, and runs it.

    trainer                              zygote                       warm parent
    pickles the process object
    order, with that, descriptors, ----> imports modules that are
    and one end of a socket pair         new to it, forks ----------> unpickles, runs
    knows the process number,      <---- pid and a pidfd ---------
    waits by the pidfd, kills by it
    knows the exit status          <---- status                  <--- ends

The socket pair of an order is the life of its process: if the trainer shuts it, the process is
killed, or not even forked. A zygote that dies leaves its processes alone, and has a successor when
one is needed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import itertools
import multiprocessing
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from multiprocessing import context, popen_fork, process, reduction, spawn, util
from typing import Any, NoReturn

from . import _life as life
from .._core import standard
from ..worker import module

_ORDER = struct.Struct("<3Q")  # offsets of the process and of the modules; descriptors
_STARTED = struct.Struct("<q")  # a process number, with its pidfd; and later the status
_FDS_MAX = 200  # in a packet, of which the kernel takes 253
_STATUS_MS = 1000
_ENDS_S = 0.2
_FINE = (context.SpawnContext, context.ForkServerContext)


def starter(real: Any, old: Any) -> Any:
    """What starts processes for a loader: a context of multiprocessing, or a Zygote over it.

    Args:
        real: The context that the loader would use.
        old: What this returned before, for the same loader; None: nothing.
    """
    below = real
    if type(real) is context.DefaultContext:
        below = real.get_context()
    if type(below) not in _FINE:  # fork, or a context of the user's own
        return real
    if isinstance(old, Zygote) and old.real is below:
        return old
    return Zygote(below)


class Zygote:
    """Stands for a context of multiprocessing; its processes are forks of one that it spawns.

    Once nothing refers to it, its zygote ends.
    """

    def __init__(self, real: Any) -> None:
        self.real = real
        self._begin()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._changing = threading.Lock()
        # The end of this object cannot refer to it.
        self._parts: dict[str, Any] = {"owner": self._owner, "process": None, "link": None}
        self._parts["left"] = []  # those that end when their processes have ended
        self._around: Any = None
        weakref.finalize(self, _end, self._parts)

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of a loader has its own

    def Process(self, target: Callable[..., Any], args: tuple[Any, ...]) -> Any:  # noqa: N802
        """A process, as of multiprocessing."""
        return _WarmParent(self, target, args)

    def send(self, head: bytes, fds: list[int]) -> Any:
        """Passes an order on to the zygote, which is started if it has to be.

        Returns:
            The zygote's process.
        """
        if os.getpid() != self._owner:  # a fork of the trainer has no zygote
            self._begin()
        with self._changing:
            try:
                self._start()
                self._send(head, fds)
            except (BrokenPipeError, ConnectionResetError):  # it has died just now
                self._leave()
                self._start()
                self._send(head, fds)
            return self._parts["process"]

    def _send(self, head: bytes, fds: list[int]) -> None:
        for at in range(0, len(fds), _FDS_MAX):
            socket.send_fds(
                self._parts["link"], [head], fds[at : at + _FDS_MAX], socket.MSG_NOSIGNAL
            )

    def _start(self) -> None:
        around = _surroundings()
        running = self._parts["process"]
        if running is not None and running.is_alive() and around == self._around:
            return
        self._leave()
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fresh = self.real.Process(target=serve, args=(theirs, os.getpid()))
            # PyTorch's loader has no such process: the next one has its number.
            internals: Any = process
            internals._process_counter = itertools.count(fresh._identity[-1])
            fresh.name = "ringfeed zygote"
            fresh.daemon = True
            try:
                fresh.start()
            except BaseException:
                link.close()
                raise
        self._parts.update(process=fresh, link=link)
        self._around = around

    def _leave(self) -> None:
        parts = self._parts
        left = [*parts["left"], *filter(None, [parts["process"]])]
        if parts["link"] is not None:
            _shut(parts["link"])
        # Whether it is alive is asked of each: that buries those that are not.
        parts.update(process=None, link=None, left=[one for one in left if one.is_alive()])


def _surroundings() -> Any:
    """What a spawned process takes from the trainer, and no order says: if it differs, a new
    zygote is spawned.
    """
    standard = []
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(fd)
            standard.append((fd, status.st_dev, status.st_ino))
    limits = [
        resource.getrlimit(getattr(resource, name))
        for name in sorted(dir(resource))
        if name.startswith("RLIMIT_")
    ]
    return (
        *(dict(os.environ), spawn.get_executable(), standard, limits),
        *(os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0), os.getresuid()),
    )


def _shut(link: socket.socket) -> None:
    """Also for forks of this process, which have it as well."""
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    link.close()


def _end(parts: dict[str, Any]) -> None:
    if os.getpid() != parts["owner"]:
        return
    if parts["link"] is not None:
        _shut(parts["link"])
    for one in filter(None, [*parts["left"], parts["process"]]):
        one.kill()
        one.join()


# ---- the trainer's side of a process


class _WarmParent(process.BaseProcess):
    def __init__(self, zygote: Zygote, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__(target=target, args=args)
        self._start_method = zygote.real.get_start_method()  # it is the default one there
        self.zygote: Zygote | None = zygote

    @staticmethod
    def _Popen(starting: Any) -> Any:  # noqa: N802
        return _Popen(starting)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "zygote": None}


class _Naming(reduction.ForkingPickler):
    """Notes the modules that whoever unpickles will import."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.modules: dict[str, None] = {}

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type) or callable(thing):
            name = getattr(thing, "__module__", None)
        else:
            name = type(thing).__module__
        if isinstance(name, str):
            self.modules[name] = None
        return NotImplemented


class _Inherited:
    """A descriptor in a pickle: its place among those that came with the order."""

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        return _inherited[self._place]


_inherited: list[int] = []


class _Popen(popen_fork.Popen):
    """A process as multiprocessing sees it, that is no child of this one."""

    method = "spawn"
    DupFd = _Inherited

    def __init__(self, starting: Any) -> None:
        self._owner = os.getpid()
        self._fds: list[int] = []
        self._pid = 0
        self._pidfd: list[int] = []
        self._looking = threading.RLock()
        super().__init__(starting)

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)
        return len(self._fds) - 1

    def _launch(self, starting: Any) -> None:
        zygote, starting.zygote = starting.zygote, None
        memory = os.memfd_create("ringfeed-job", os.MFD_CLOEXEC)
        with os.fdopen(memory, "wb") as file:
            popen: Any = self
            context.set_spawning_popen(popen)
            try:
                reduction.dump(spawn.get_preparation_data(starting.name), file)
                at_process = file.tell()
                pickler = _Naming(file)
                pickler.dump(starting)
            finally:
                context.set_spawning_popen(None)
            at_modules = file.tell()
            pickle.dump(list(pickler.modules), file)
            file.flush()
            self._order, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.finalizer = util.Finalize(self, _forget, (self._order, self._pidfd))
            self.sentinel = self._order.fileno()
            fds = [memory, theirs.fileno(), *self._fds]
            with theirs:
                self._zygote = zygote.send(_ORDER.pack(at_process, at_modules, len(fds)), fds)
        self._fds.clear()

    @property
    def pid(self) -> int:  # type: ignore[override]
        """Waits until the process has been forked; 0: it has not been, and will not."""
        with self._looking:
            while self._pid == 0 and self.returncode is None:
                self._look(None)
            return self._pid

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        return self.wait(0.0 if flag == os.WNOHANG else None)

    def wait(self, timeout: float | None = None) -> int | None:
        milliseconds = None if timeout is None else max(0.0, 1000 * timeout)
        if os.getpid() != self._owner:
            return None
        with self._looking:
            while self.returncode is None and self._look(milliseconds):
                pass
            return self.returncode

    def _look(self, milliseconds: float | None) -> bool:
        """Has there been something new? Waits so long for it."""
        if self._pidfd:
            if not _readable(self._pidfd[0], milliseconds):
                return False
            # Its end is certain. The zygote knows how, if it lives.
            said = b""
            if _readable(self._order.fileno(), _STATUS_MS):
                said = self._received()[0]
            if said:
                self.returncode = os.waitstatus_to_exitcode(_STARTED.unpack(said)[0])
            else:
                self.returncode = -signal.SIGKILL
            return True
        if not _readable(self._order.fileno(), milliseconds):
            return False
        said, fds = self._received()
        if said and fds:
            (self._pid,) = _STARTED.unpack(said)
            self._pidfd += fds
        elif said:
            self.returncode = os.waitstatus_to_exitcode(_STARTED.unpack(said)[0])
        else:
            # The zygote has died, by its imports or by somebody, or cannot fork.
            self._zygote.join(_STATUS_MS / 1000)
            self.returncode = self._zygote.exitcode or -signal.SIGKILL
        return True

    def _received(self) -> tuple[bytes, list[int]]:
        try:
            said, fds, _, _ = socket.recv_fds(self._order, _STARTED.size, 1)
        except ConnectionResetError:
            return b"", []
        return said, list(fds)

    def _send_signal(self, number: int) -> None:
        if os.getpid() != self._owner:  # a fork that ends is not to end its parent's
            return
        with self._looking:
            if self.poll() is not None:
                return
            if self._pidfd:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd[0], number)
            else:
                with contextlib.suppress(OSError):
                    self._order.shutdown(socket.SHUT_RDWR)
                self.returncode = -number


def _forget(order: socket.socket, pidfd: list[int]) -> None:
    _shut(order)
    while pidfd:
        os.close(pidfd.pop())


def _readable(fd: int, milliseconds: float | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(milliseconds))


# ---- the zygote


def serve(link: socket.socket, trainer: int) -> None:
    """The zygote: until its trainer ends or shuts the link, and then until its processes have."""
    standard.reserve()
    life.leave_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        owner = os.pidfd_open(trainer)
    except ProcessLookupError:
        return
    parent = multiprocessing.parent_process()
    if parent is None or not parent.is_alive():  # whoever has its number now is another
        return
    from . import _own_feed, _worker, _workers  # noqa: F401  what every job needs

    with contextlib.suppress(Exception):  # whoever needs it says what is wrong
        os.environ.update(_own_feed.environment())
        module.load()
    gc.collect()
    gc.freeze()  # what is there from here on is shared with the processes
    _Zygote(link, owner).run()


class _Zygote:
    def __init__(self, link: socket.socket, trainer: int) -> None:
        self._link: socket.socket | None = link
        self._trainer = trainer
        self._children: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
        self._orders: dict[int, int] = {}  # process numbers, by the descriptor of the order
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._poll.register(trainer, select.POLLIN)

    def run(self) -> None:
        while self._link is not None or self._children:
            for fd, _ in self._poll.poll():
                if fd == self._trainer:
                    return  # its processes see that themselves
                if fd in self._children:
                    self._bury(fd)
                elif fd in self._orders:
                    # A trainer that ends closes it, too, a moment before it has ended.
                    if select.select([self._trainer], [], [], _ENDS_S)[0]:
                        return
                    # Nobody wants it any more. Its end comes by its pidfd.
                    os.kill(self._orders.pop(fd), signal.SIGKILL)
                    self._poll.unregister(fd)
                elif self._link is not None and fd == self._link.fileno():
                    self._obey(self._link)

    def _bury(self, pidfd: int) -> None:
        pid, order = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        if self._orders.pop(order.fileno(), None) is not None:
            self._poll.unregister(order)
        with order, contextlib.suppress(OSError):
            order.send(_STARTED.pack(status), socket.MSG_NOSIGNAL)

    def _obey(self, link: socket.socket) -> None:
        try:
            head, fds = _received(link)
        except (OSError, EOFError):
            self._poll.unregister(link)
            link.close()
            self._link = None
            return
        at_process, at_modules, _ = _ORDER.unpack(head)
        memory, theirs, *inherited = fds
        order = socket.socket(fileno=theirs)
        try:
            with os.fdopen(memory, "rb") as file:
                if not _is_shut(order):
                    _import(file, at_modules)
                if not _is_shut(order):
                    self._fork(file, at_process, order, inherited)
        except OSError:
            traceback.print_exc()  # no room for a process: the trainer tries again
        finally:
            if order.fileno() not in self._orders:
                order.close()
            for fd in inherited:
                os.close(fd)

    def _fork(self, file: Any, at: int, order: socket.socket, inherited: list[int]) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        pid = os.fork()
        if pid == 0:
            self._become(file, at, order, inherited)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[pidfd] = pid, order
        self._orders[order.fileno()] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._poll.register(order, 0)  # POLLHUP comes unasked

    def _become(self, file: Any, at: int, order: socket.socket, inherited: list[int]) -> NoReturn:
        code = 1
        try:
            # By itself: if the zygote dies just now, the trainer has to know all the same.
            own = os.pidfd_open(os.getpid())
            try:
                socket.send_fds(order, [_STARTED.pack(os.getpid())], [own], socket.MSG_NOSIGNAL)
            except (BrokenPipeError, ConnectionResetError):
                os._exit(0)  # nobody wants it any more
            os.close(own)
            # Of the zygote's: nothing stays but memory.
            order.close()
            for fd in (self._trainer, *self._children):
                os.close(fd)
            for _, other in self._children.values():
                other.close()
            if self._link is not None:
                self._link.close()
            code = _run(file, at, inherited)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(code)


def _received(link: socket.socket) -> tuple[bytes, list[int]]:
    """An order, and all its descriptors."""
    fds: list[int] = []
    while True:
        head, more, _, _ = socket.recv_fds(link, _ORDER.size, _FDS_MAX)
        if not head:
            raise EOFError
        fds += more
        if len(fds) >= _ORDER.unpack(head)[2]:
            return head, fds


def _is_shut(order: socket.socket) -> bool:
    poll = select.poll()
    poll.register(order, 0)
    return bool(poll.poll(0))


def _import(file: io.BufferedReader, at_modules: int) -> None:
    """What the process will need. If there is something wrong, it will say so."""
    try:
        with _preparing():
            file.seek(0)  # whoever wrote it is at its end
            spawn.prepare(pickle.load(file))
            file.seek(at_modules)
            for name in pickle.load(file):
                if name not in sys.modules:
                    with contextlib.suppress(BaseException):
                        importlib.import_module(name)
        gc.freeze()
    except Exception:
        pass


@contextlib.contextmanager
def _preparing() -> Any:
    """As in a spawned process: what is imported may not start processes."""
    current: Any = process.current_process()
    current._inheriting = True
    try:
        yield
    finally:
        del current._inheriting


def _run(file: io.BufferedReader, at: int, inherited: list[int]) -> int:
    """The life of a process, from where a spawned one begins it; returns its exit status."""
    _inherited[:] = inherited
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # as `random`, which does so by itself
    parent = process.parent_process()
    assert parent is not None
    with file, _preparing():
        file.seek(0)
        spawn.prepare(pickle.load(file))
        file.seek(at)
        started: Any = pickle.load(file)
    status: int = started._bootstrap(parent_sentinel=os.dup(parent.sentinel))
    return status
