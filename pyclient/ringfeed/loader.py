"""A private feed: an object that starts a supervisor and attaches to it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ._core import control, messages, native, places, programs, standard
from ._core.feed_log import FeedLog
from ._core.scope import Scope
from .errors import (
    FeedDamaged,
    FeedDetached,
    FeedEnd,
    FeedFailed,
    FeedIOError,
    FeedTimeout,
    InvalidConfiguration,
    RingfeedError,
)
from .feed import Feed, _attach, choice
from .schema import Schema

_FEED = "loader"
_STATUS_INVALID = 3  # exit status of `ringfeed run` for a configuration that it refuses
_LOG_BYTES_MAX = 8192
_AGAIN_S = 0.1  # for want of what a process needs
_ANSWER_S = 10.0  # for a supervisor to answer an attach
_UNKNOWN = 256  # in place of an exit status
_UNKNOWN_MAX = 5  # supervisors that end so have a successor, as if they had been killed
# A configuration, or what makes it for the directory in which it will be. That may write into the
# directory what else the feed needs, under names that begin with _FEED and end with .pickle.
_Config = bytes | Callable[[Path], bytes]


# A child is started. A process that is forked meanwhile would have the write end of the pipe on
# which Popen waits for the child's exec, and Popen would wait for that process's end.
_starting = threading.Lock()
os.register_at_fork(
    before=_starting.acquire,
    after_in_parent=_starting.release,
    after_in_child=_starting.release,
)


def _has_directory() -> bool:
    """Is the current directory there? Somebody may have removed it."""
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _wait(child: int) -> int:
    """Waits for its end, and returns its exit status, negative for a signal; _UNKNOWN where this
    process ignores SIGCHLD, or a handler of its own waits for all children."""
    try:
        _, status = os.waitpid(child, 0)
    except ChildProcessError:
        return _UNKNOWN
    return os.waitstatus_to_exitcode(status)


class _Supervisor:
    """A `ringfeed run` child with its directory.

    It watches this process and ends with it, however this process dies, and then removes the
    directory. It has its own session, so that Ctrl-C in a terminal reaches only the trainer.
    """

    def __init__(
        self,
        config: _Config,
        suffix: str,
        kept: bool = False,
        plan: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """
        Args:
            config: Of the feed.
            suffix: Of the configuration's file.
            kept: One that is killed has a successor, which takes over the feed.
            plan: Makes the plan of the configuration, while the supervisor is being started; else
                that asks a program for it. b"": it cannot be made here.
        """
        programs.check_proc()
        program = programs.find("ringfeed")
        standard.reserve()
        self._pid = os.getpid()
        self.directory = places.make()
        self.socket_path = self.directory / f"{_FEED}.sock"
        self._log = self.directory / "supervisor.log"
        file = self.directory / f"{_FEED}{suffix}"
        try:
            text = config if isinstance(config, bytes) else config(self.directory)
            file.write_bytes(text)
        except BaseException:
            with places.removing(self.directory):
                raise
        self._command = [
            str(program),
            "run",
            str(file),
            "--set",
            f"feed={_FEED}",
            "--set",
            f"control.directory={self.directory}",
        ]
        self._child: subprocess.Popen[bytes] | None = None
        self._error: BaseException | None = None
        self._status: int | None = None  # of the child, once it has ended
        self._unknown = 0  # how many children have ended nobody knows how
        self._kept = kept
        self._linked = plan is not None
        self._plan: bytes | None = None
        self._link: socket.socket | None = None  # to the newest one
        # Of self._child, self._status, self._kept and those of the link.
        self._changing = threading.Lock()
        self._started = threading.Event()
        self._over = threading.Event()  # the last one has ended
        try:
            threading.Thread(target=self._watch, name="ringfeed-supervisor", daemon=True).start()
            self._started.wait()
        except RuntimeError as error:  # no thread can be started
            self._error = error
        if self._error is not None:
            with places.removing(self.directory):
                raise RingfeedError(f"{program} cannot be started: {self._error}") from self._error
        places.hand_over(self.directory)
        if plan is not None:
            found = plan(text)
            with self._changing:
                self._plan = found
                self._send_plan()

    def _watch(self) -> None:
        try:
            self._run()
        finally:
            self._over.set()

    def _run(self) -> None:
        try:
            self._start()
        except BaseException as error:  # whoever waits for it has to know
            self._error = error
        self._started.set()
        while self._status is None and self._child is not None:
            status = self._child.returncode = _wait(self._child.pid)
            while not self._follow(status):
                time.sleep(_AGAIN_S)

    def _follow(self, status: int) -> bool:
        """The child has ended: it has a successor, or that was the end. False: not yet."""
        with self._changing:
            # Whoever was not killed has said why, and is right.
            was_killed = status < 0
            if status == _UNKNOWN:
                self._unknown += 1
                was_killed = self._unknown <= _UNKNOWN_MAX
            if not self._kept or not was_killed:
                self._status = status
                return True
            try:
                self._start()
            except OSError:
                self._unknown -= status == _UNKNOWN
                return False
            return True

    def _start(self) -> None:
        environment = dict(os.environ, RINGFEED_SOCKET_DIR=str(self.directory))
        if sys.executable:  # a program that has the interpreter inside has none
            environment.setdefault("RINGFEED_PYTHON", sys.executable)  # of stages in Python
        fds = {"--owner-fd": os.pidfd_open(os.getpid())}
        try:
            if self._linked:
                self._unlink()  # from the one that was killed
                self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                fds["--link-fd"] = theirs.detach()
            with self._log.open("ab") as log, _starting:
                self._child = subprocess.Popen(
                    [*self._command, *(f"{option}={fd}" for option, fd in fds.items())],
                    pass_fds=tuple(fds.values()),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env=environment,
                    cwd=None if _has_directory() else self.directory,
                    start_new_session=True,
                )
        finally:
            for fd in fds.values():
                os.close(fd)
        self._send_plan()

    def _send_plan(self) -> None:
        if self._link is not None and self._plan is not None:
            with contextlib.suppress(OSError):  # it has died
                self._link.send(self._plan, socket.MSG_NOSIGNAL)

    def wait_listening(self, timeout_ms: int) -> bool:
        """Waits until it can be attached to, or it is not known when; False: not yet."""
        with self._changing:
            link = self._link
        if link is None:
            return True
        waits = select.poll()
        try:
            waits.register(link, select.POLLIN)
        except ValueError:  # closed just now: there is another one
            return False
        if not waits.poll(timeout_ms):
            return False
        # It has said so, or has died. Of a successor it is not asked again.
        with self._changing:
            if self._link is link:
                self._unlink()
        return True

    def _unlink(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    @property
    def child(self) -> int:
        """The process; it has another number once it was killed and has a successor."""
        with self._changing:
            return 0 if self._child is None else self._child.pid

    @property
    def exit_status(self) -> int | None:
        """Its exit status, negative for a signal, or _UNKNOWN; None while it runs, or has a
        successor."""
        with self._changing:
            return self._status if os.getpid() == self._pid else _UNKNOWN

    def lines(self, begin: int) -> tuple[list[str], int]:
        """The whole lines that it wrote behind this place of its log, and the place behind them."""
        try:
            if os.stat(self._log).st_size <= begin:
                return [], begin
            with self._log.open("rb") as log:
                log.seek(begin)
                text = log.read()
        except OSError:
            return [], begin
        whole = text[: text.rfind(b"\n") + 1]
        return whole.decode(errors="replace").splitlines(), begin + len(whole)

    def said(self) -> str:
        """The end of what it wrote, or why there is nothing."""
        try:
            with self._log.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _LOG_BYTES_MAX))
                text = log.read().decode(errors="replace").strip()
            disk = os.statvfs(self.directory)
        except OSError as error:
            return f"there is no log of it: {error}"
        is_full = disk.f_bavail == 0 or (disk.f_files > 0 and disk.f_favail == 0)
        if not text and is_full:
            return f"{self.directory} is on a disk that is full: make room there, or set TMPDIR"
        return text

    def error(self) -> RingfeedError:
        """Why it has ended."""
        status = self.exit_status
        if status == _STATUS_INVALID:
            return InvalidConfiguration(self.said())
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        if status == _UNKNOWN:
            how = "a status that nobody knows, for SIGCHLD is ignored or others wait for children"
        return FeedFailed(f"the supervisor ended with {how}: {self.said()}")

    def end(self, timeout_s: float, others: Callable[[], None] | None = None) -> None:
        """Stops it and removes its directory. Processes that still run after timeout_s are killed.

        `others` ends processes besides it that write into the directory, before that is removed.

        A process forked from the one that started it does nothing: the feed is not its own.
        """
        if os.getpid() == self._pid:
            with places.removing(self.directory) as in_time:
                if in_time:
                    self._end(timeout_s)
                if others is not None:
                    others()

    def _end(self, timeout_s: float) -> None:
        assert self._child is not None
        with self._changing:
            self._kept = False
            self._unlink()
        if self.exit_status is None:
            try:
                control.stop(self.socket_path, now=True)
            except RingfeedError:
                # Not Popen.terminate: it would take the status.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._child.pid, signal.SIGTERM)
        if not self._over.wait(timeout_s):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)


class DataLoader(Scope):
    """A private feed: configure, start(), get_next() until FeedEnd, stop().

        loader = ringfeed.DataLoader(Path("lc0.textproto").read_text())
        loader.start()
        planes, policy, values = loader.get_next()

    A configuration is a protobuf message, its text format, its JSON (text that begins with a
    brace), or its serialized bytes. Only messages need the package ``protobuf``. Text, JSON and
    bytes cannot be mixed in one loader; messages go with each of them.

    The supervisor is a child process and ends with this one. A loader without references is
    stopped, and the Feed from `feed` ends with it. Also a context manager (start, stop) and an
    iterator of tuples.
    """

    def __init__(
        self, config: Any = None, *, timeout_s: float | None = None, view: str = "readonly"
    ) -> None:
        """
        Args:
            config: A DataLoaderConfig, see add_stages(); None: stages are added later.
            timeout_s: Longest wait of get_next(); None: no limit.
            view: "readonly", "private" or "copy" arrays, as for attach().
        """
        choice("view", view, native.VIEWS)
        self._pieces: list[tuple[bool, Any]] = []
        self._timeout_s = timeout_s
        self._view = view
        self._supervisor: _Supervisor | None = None
        self._feed: Feed | None = None  # of the first output
        self._stopped: Feed | None = None  # the same, after stop()
        self._first_alias = ""
        self._others: dict[str, Feed] = {}  # by alias, attached when first asked for
        self._attaching = threading.Lock()
        self._attached_feeds: list[Feed] = []
        self._stop_when_dropped: weakref.finalize[..., DataLoader] | None = None
        self._looks_after_death = 0
        self._log: FeedLog | None = None
        if config is not None:
            self.add_stages(config)

    def add_stage(self, config: Any) -> None:
        """Add one stage: a StageConfig.

        Raises:
            InvalidConfiguration: It is not a configuration, or the loader was already started.
        """
        self._add(True, config)

    def add_stages(self, config: Any) -> None:
        """Add everything in a DataLoaderConfig: its stages and its settings.

        Raises:
            InvalidConfiguration: It is not a configuration, or the loader was already started.
        """
        self._add(False, config)

    def _add(self, stage: bool, config: Any) -> None:
        if self._supervisor is not None:
            raise InvalidConfiguration("the loader was already started: add stages before start()")
        if not isinstance(config, (str, bytes)) and not hasattr(config, "SerializeToString"):
            raise InvalidConfiguration(
                f"a configuration is a protobuf message, text or serialized bytes, not a "
                f"{type(config).__name__}"
            )
        if isinstance(config, bytes):
            _check_whole(stage, config)
        self._pieces.append((stage, config))

    def _config_file(self) -> tuple[_Config, str]:
        """The whole configuration in one format, and the file name ending of that format."""
        kinds = {_kind(config) for _, config in self._pieces} - {"message"}
        if len(kinds) > 1:
            raise InvalidConfiguration(
                f"configurations were given as {' and as '.join(sorted(kinds))}: give all of them "
                "in one form, or as messages"
            )
        kind = kinds.pop() if kinds else "bytes"
        if kind == "bytes":
            return b"".join(_as_bytes(stage, config) for stage, config in self._pieces), ".binpb"
        if kind == "text":
            text = "\n".join(_as_text(stage, config) for stage, config in self._pieces)
            return text.encode(), ".textproto"
        whole: dict[str, Any] = {"stages": []}
        for stage, config in self._pieces:
            part = _as_json(config)
            whole["stages"] += [part] if stage else part.pop("stages", [])
            for name, value in {} if stage else part.items():
                both = isinstance(value, list) and isinstance(whole.get(name), list)
                whole[name] = whole[name] + value if both else value
        return json.dumps(whole, indent=2).encode(), ".json"

    def start(self, timeout_s: float | None = None) -> None:
        """Start the feed; returns when it can be read.

        Args:
            timeout_s: Longest wait for that, in seconds; None: no limit.
        Raises:
            InvalidConfiguration: The text lists every mistake in the configuration, from a misspelt
                field to a last stage without a port `output` of batches.
            FeedFailed: The supervisor ended; the text is its output.
            FeedTimeout, NoSuchFeed: The feed did not start in time; it has been stopped again.
        """
        if self._supervisor is not None:
            raise InvalidConfiguration("the loader was already started: make another one")
        if not self._pieces:
            raise InvalidConfiguration("the loader has no stages: call add_stage() before start()")
        config, suffix = self._config_file()
        supervisor = self._supervisor = _Supervisor(config, suffix)
        self._log = FeedLog(supervisor.lines)
        _running.add(self)
        self._stop_when_dropped = weakref.finalize(self, _end, self._attached_feeds, supervisor)
        self._stop_when_dropped.atexit = False  # stop() comes then
        try:
            self._feed = self._attach_output(None, timeout_s)
            self._first_alias = self._feed.stats().output
        except BaseException as error:
            # The connection breaks a moment before the child can be reaped.
            if isinstance(error, (FeedIOError, FeedFailed)):
                deadline = time.monotonic() + 2
                while supervisor.exit_status is None and time.monotonic() < deadline:
                    time.sleep(0.005)
            status = supervisor.exit_status
            reason = supervisor.error() if status is not None else None
            self.stop()
            if reason is not None and isinstance(error, FeedIOError):
                raise reason from error
            raise

    def _attach_output(self, output: str | None, timeout_s: float | None) -> Feed:
        supervisor = self._supervisor
        if supervisor is None:
            raise FeedDetached("the loader was stopped")
        me = weakref.ref(self)

        def look() -> None:
            # Holds no reference, so that the loader can be dropped.
            loader = me()
            if loader is not None:
                loader._check_supervisor()

        feed = _attach(
            _FEED,
            "default",
            rank=None,
            world=None,
            start="oldest",
            timeout_s=self._timeout_s,
            attach_timeout_s=timeout_s,
            socket_dir=None,
            socket_path=supervisor.socket_path,
            policy=None,
            stall_ms=None,
            redeliver=None,
            max_tries=None,
            max_hold=None,
            rejoin_ms=None,
            view=self._view,
            output=output,
            on_wait=look,
        )
        feed._log = self._log
        self._attached_feeds.append(feed)
        return feed

    def _check_supervisor(self) -> None:
        """Called while waiting: a supervisor that has ended sends nothing more."""
        if self._supervisor is None or self._supervisor.exit_status is None:
            return
        # Look once more first: the feed's own end or reason may have come with the exit.
        self._looks_after_death += 1
        if self._looks_after_death > 1 or self._feed is None:
            raise self._supervisor.error()

    def _attached(self, alias: str = "", timeout_s: float | None = None) -> Feed:
        feed = self._feed
        if feed is None:
            raise FeedDetached("the loader is not running: call start() first")
        if alias in ("", self._first_alias):
            return feed
        # One thread attaches; the others use the result.
        with self._attaching:
            other = self._others.get(alias)
            if other is None:
                other = self._attach_output(alias, timeout_s)
                if self._feed is not feed:  # stopped meanwhile
                    other.close()
                    raise FeedDetached("the loader was stopped")
                self._others[alias] = other
            return other

    @property
    def schema(self) -> Schema:
        """Name, dtype and shape of the arrays that get_next() returns, in their order."""
        return self._attached().schema

    @property
    def feed(self) -> Feed:
        """The Feed of the first output, with all its methods."""
        return self._attached()

    def get_next(self, alias: str = "", timeout_s: float | None = None) -> tuple[np.ndarray, ...]:
        """The next batch: one array per tensor, in the order of the schema.

        The arrays are read-only, unless another view was asked for. The slot goes back to the feed
        when the last array is gone.
        Args:
            alias: Alias of the output, for a configuration with several (``feed_output``); "": its
                first one. Reading of another output begins with the first call for it; until then
                the output waits, and its stages with it, unless it is KEEP_NEWEST.
            timeout_s: Longest wait in seconds; None: as given to the constructor.
        Raises:
            FeedEnd: A finite run is over.
            FeedTimeout, FeedFailed, SlotsExhausted: As Feed.next().
            InvalidRequest: No output has this alias; the text lists the existing ones.
            FeedDetached: The loader was not started, or was stopped.
        """
        patience_s = self._timeout_s if timeout_s is None else timeout_s
        # Enough time for the supervisor to answer, even without a wait for a batch.
        feed = self._attached(alias, None if patience_s is None else max(patience_s, _ANSWER_S))
        try:
            batch = feed.next(timeout_s)
        except FeedDetached:
            with self._attaching:  # the next call attaches again
                if self._others.get(alias) is feed:
                    del self._others[alias]
                    self._attached_feeds.remove(feed)
            raise
        return tuple(batch[name] for name in batch)

    def maybe_get_next(self, alias: str = "") -> tuple[np.ndarray, ...] | None:
        """As get_next(), but None at once if no batch is ready, or the run is over."""
        try:
            return self.get_next(alias, 0)
        except (FeedEnd, FeedTimeout):
            return None

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        while True:
            try:
                arrays = self.get_next()
            except FeedEnd:
                return
            yield arrays
            # Dropped before the wait for the next batch, so that a loop holds only what its body
            # holds.
            del arrays

    def send_control_message(self, message: Any, stage: str | None = None) -> list[Any]:
        """Pass a message to one stage, or to all stages that understand it.

        Args:
            message: A StageControlRequest, as a message or serialized.
            stage: Name of the stage; None: every stage.
        Returns:
            (name of the stage, StageControlResponse) for each answer; the response is a message
            if a message was given, else bytes.
        Raises:
            FeedRefused: There is no such stage.
            FeedIOError: The supervisor does not answer.
        """
        supervisor = self._supervisor
        if supervisor is None:
            raise FeedDetached("the loader is not running: call start() first")
        return control.pass_on(supervisor.socket_path, message, stage)

    def metrics(self) -> dict[str, Any]:
        """Numbers of the whole feed, as Feed.metrics(): totals, and those of the last seconds.

        Returns:
            A MetricsReply (proto/metrics.proto) as dictionaries, lists and numbers, by the names of
            its fields. When the run is over, also after stop(), the numbers of its end.
        Raises:
            FeedIOError: The supervisor does not answer.
        """
        feed = self._feed or self._stopped
        if feed is None:
            raise FeedDetached("the loader is not running: call start() first")
        return feed.metrics()

    def status(self) -> dict[str, Any]:
        """What `ringfeed status --json` says: stages, lanes, rings, rates, restarts, trainers.

        Raises:
            FeedIOError: The supervisor does not answer.
        """
        supervisor = self._supervisor
        if supervisor is None:
            raise FeedDetached("the loader is not running: call start() first")
        run = subprocess.run(
            [str(programs.find("ringfeed")), "status", _FEED, "--json"],
            env=dict(os.environ, RINGFEED_SOCKET_DIR=str(supervisor.directory)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            raise FeedIOError(
                f"`ringfeed status` ended with status {run.returncode}: {run.stderr.strip()}"
            )
        status: dict[str, Any] = json.loads(run.stdout)
        return status

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the feed and its processes; arrays that still live stay readable.

        Calling again, or before start(), is harmless. Processes that still run after timeout_s are
        killed.
        """
        feed, self._feed = self._feed, None
        self._stopped = feed or self._stopped
        with self._attaching:
            feeds = [*self._others.values(), *([feed] if feed is not None else [])]
            self._others = {}
        supervisor, self._supervisor = self._supervisor, None
        for feed in feeds:
            feed.close()
        if self._log is not None:
            self._log.pass_on()
        if self._stop_when_dropped is not None:
            self._stop_when_dropped.detach()
        self._attached_feeds.clear()
        if supervisor is not None:
            supervisor.end(timeout_s)
        _running.discard(self)

    def __enter__(self) -> DataLoader:
        if self._supervisor is None:
            self.start()
        return self

    def _leave(self, error: BaseException | None) -> None:
        self.stop()


def _end(feeds: list[Feed], supervisor: _Supervisor) -> None:
    """Ends the feeds and the supervisor of a loader that is gone."""
    for feed in feeds:
        feed.close()
    supervisor.end(10.0)


# Running loaders: a normal end of the process stops them and removes their directories.
_running: weakref.WeakSet[DataLoader] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for loader in list(_running):
        loader.stop()


def _kind(config: Any) -> str:
    if isinstance(config, bytes):
        return "bytes"
    if isinstance(config, str):
        return "JSON" if config.lstrip().startswith("{") else "text"
    return "message"


def _check_whole(stage: bool, config: bytes) -> None:
    # Pieces are concatenated: a truncated one would swallow bytes of the next.
    try:
        for _ in control.fields(config):
            pass
    except FeedDamaged as error:
        name = "StageConfig" if stage else "DataLoaderConfig"
        raise InvalidConfiguration(
            f"these {len(config)} bytes are not a serialized {name}: they are truncated or damaged"
        ) from error


def _as_bytes(stage: bool, config: Any) -> bytes:
    data: bytes = config if isinstance(config, bytes) else config.SerializeToString()
    # Serialized messages one after the other are one merged message.
    return control.bytes_field(messages.DataLoaderConfig.stages, data) if stage else data


def _as_text(stage: bool, config: Any) -> str:
    if not isinstance(config, str):
        from google.protobuf import text_format

        config = text_format.MessageToString(config)
    return f"stages {{\n{config}\n}}" if stage else str(config)


def _as_json(config: Any) -> dict[str, Any]:
    if not isinstance(config, str):
        from google.protobuf import json_format

        config = json_format.MessageToJson(config, preserving_proto_field_name=True)
    try:
        value = json.loads(config)
    except json.JSONDecodeError as error:
        raise InvalidConfiguration(f"the configuration is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidConfiguration("the configuration is JSON, but not an object")
    return value
