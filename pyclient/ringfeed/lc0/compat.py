"""The data loader of lczero-training, on top of a feed.

    from ringfeed.lc0_compat import make_dataloader      # in place of that project's own module

    loader = make_dataloader(config.data_loader)          # their DataLoaderConfig
    planes, policy, values = loader.get_next()

The configuration is that project's: a DataLoaderConfig as a message or serialized, or the path of a
file with one or with a RootConfig. ``ringfeed import-lc0`` converts it; its notes on fields without
an equivalent are in ``DataLoader.notes`` and are logged. Their generated modules are not needed:
any object with ``SerializeToString()`` is a message.

As there, arrays are float32 copies by default, writable, and belong to the caller. With
``view="readonly"`` they are the feed's own memory: nothing is copied, and an array that is kept
holds its batch's slot.

This module can replace that project's compiled one, so that its programs run unchanged: see
install(), and ``python -m ringfeed.lc0_compat --help``.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import json
import logging
import math
import os
import re
import runpy
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._core import control, messages, native, programs
from .._core.feed_log import FeedLog
from ..errors import (
    FeedDetached,
    FeedEnd,
    FeedRefused,
    FeedStopped,
    FeedTimeout,
    InvalidConfiguration,
    RingfeedError,
)
from ..feed import Feed, _attach, choice
from ..loader import _FEED, _Supervisor
from . import metrics as lc0_metrics

__all__ = ["DataLoader", "TensorBase", "install", "make_dataloader"]

_log = logging.getLogger("ringfeed.lc0_compat")
# Exit status of `ringfeed import-lc0` for a configuration that it refuses.
_STATUS_INVALID = 3
# The default for loaders: are planes 104 to 110 made as there?
_raw_planes = False
# Longest wait between two looks at the supervisor.
_LOOK_S = 0.5
_PoolRequest = messages.ShufflingChunkPoolControlRequest
_PoolResponse = messages.ShufflingChunkPoolControlResponse
# Periods of get_bucket_metrics() that are not powers of two.
_NO_TIME = -128
_ALL_TIME = 127


class DataLoader:
    """That project's loader: construct, start(), get_next() for ever, stop().

    Several threads may use it; a call during another thread's start() or stop() waits for that. A
    loader without references is stopped, and a Feed from feed() ends with it.

    Attributes:
        notes: Sentences on what has no equivalent here, and what was done instead.
        config: The converted configuration, as text.
    """

    def __init__(
        self, config: Any, *, view: str = "copy", as_lczero_training: bool | None = None
    ) -> None:
        """
        Args:
            config: Their DataLoaderConfig (a message, or serialized), or a path.
            view: "copy", "readonly" or "private" arrays, as for ringfeed.attach().
            as_lczero_training: Make planes 104 to 110 of input formats other than 1 as there, for
                nets that were trained with them (proto/config.proto); None: as the command line of
                this module says, by default no.
        Raises:
            RuntimeError: The configuration is wrong; the text lists every mistake.
        """
        choice("view", view, native.VIEWS)
        self._view = view
        self._raw_planes = _raw_planes if as_lczero_training is None else as_lczero_training
        self._given: list[Any] = []
        self._supervisor: _Supervisor | None = None
        self._log: FeedLog | None = None
        self._started = False
        # Both are reentrant: a signal handler may call stop() at any point.
        self._lock = threading.RLock()  # held by start() and stop() until they are through
        self._attaching = threading.RLock()  # of _feeds; taken after _lock, if both are
        self._feeds: dict[str, Feed] = {}
        self._stopping = threading.Event()
        self._stop_when_dropped: weakref.finalize[..., DataLoader] | None = None
        self._anchor: str | None = None
        self.notes: list[str] = []
        self.config = ""
        self.add_stages(config)

    def add_stages(self, config: Any) -> None:
        """Add the stages of another DataLoaderConfig before start(); its outputs do not count.

        Raises:
            RuntimeError: The loader runs, or the whole is not a valid configuration; nothing has
            changed.
        """
        with self._lock:
            if self._started:
                raise RuntimeError("the loader was already started: add stages before start()")
            given = [*self._given, config]
            config_text, notes = _convert(given)
            self.config = _with_raw_planes(config_text) if self._raw_planes else config_text
            for note in notes:
                if note not in self.notes:
                    _log.info("%s", note)
            self._given, self.notes = given, notes

    @property
    def aliases(self) -> list[str]:
        """The aliases of the outputs, in their order; "" is the output without a name."""
        outputs = re.findall(r"^feed_output \{\n(.*?)^\}", self.config, re.M | re.S)
        found = [re.search(r'^  alias: "(.*)"$', output, re.M) for output in outputs]
        return [alias.group(1) if alias else "" for alias in found] or [""]

    def start(self) -> None:
        """Start the feed; returns when its first output can be read.

        Raises:
            RuntimeError: It was already started, or it does not start; the text is the reason.
        """
        with self._lock:
            if self._started:
                raise RuntimeError("the loader was already started")
            self._started = True
            config = self.config
            if self._anchor is not None:
                config = _with_anchor(config, self._anchor)
            try:
                supervisor = self._supervisor = _Supervisor(config.encode(), ".textproto")
                self._log = FeedLog(supervisor.lines)
                _running.add(self)
                self._stop_when_dropped = weakref.finalize(self, _end_feed, self._feeds, supervisor)
                self._attach(self.aliases[0], supervisor)
            except RingfeedError as error:
                self._end()
                raise RuntimeError(str(error)) from error
            except BaseException:
                self._end()
                raise

    def stop(self) -> None:
        """Stop the feed and its processes; arrays that still live stay readable. Calling again is
        harmless."""
        with self._lock:
            self._started = True
            self._end()

    def _end(self) -> None:
        self._supervisor = None
        self._stopping.set()
        with self._attaching:  # who attaches just now gives up
            if self._stop_when_dropped is not None:
                self._stop_when_dropped()  # now, and never again
        _running.discard(self)

    def _running_supervisor(self) -> _Supervisor | None:
        """The supervisor; None before start() and after stop(). Waits for a start or stop in
        progress."""
        with self._lock:
            return self._supervisor

    def _attach(self, alias: str, supervisor: _Supervisor) -> Feed:
        """The member that reads this output; made when it is first asked for."""
        with self._attaching:
            feed = self._feeds.get(alias)
            if feed is not None:
                return feed
            if self._stopping.is_set():
                raise FeedDetached("the loader was stopped")
            waiting = threading.Event()
            waiting.set()
            try:
                feed = _attach(
                    _FEED,
                    "default",
                    rank=None,
                    world=None,
                    start="oldest",
                    timeout_s=None,
                    attach_timeout_s=None,
                    socket_dir=None,
                    socket_path=supervisor.socket_path,
                    policy=None,
                    stall_ms=None,
                    redeliver=None,
                    max_tries=None,
                    max_hold=None,
                    rejoin_ms=None,
                    view=self._view,
                    # Named only if there is a choice.
                    output=alias or None,
                    on_wait=_look_at(supervisor, waiting, self._stopping),
                )
            except RingfeedError as error:
                if not self._stopping.is_set() and _gone(supervisor):
                    raise supervisor.error() from error
                raise
            waiting.clear()
            if self._stopping.is_set():
                feed.close()
                raise FeedDetached("the loader was stopped")
            feed._log = self._log
            self._feeds[alias] = feed
            return feed

    def feed(self, alias: str = "") -> Feed:
        """The Feed that reads an output, for all other methods of a Feed."""
        if alias not in self.aliases:
            known = ", ".join(f'"{name}"' for name in self.aliases)
            raise RuntimeError(f'there is no output "{alias}": there are {known}')
        supervisor = self._running_supervisor()
        if supervisor is None:
            raise FeedDetached("the loader is not running: call start() first")
        return self._attach(alias, supervisor)

    def _next(self, alias: str, timeout_s: float | None) -> tuple[np.ndarray, ...]:
        feed = self.feed(alias)
        while True:
            supervisor = self._supervisor
            died = supervisor is not None and supervisor.exit_status is not None
            try:
                batch = feed.next(_LOOK_S if timeout_s is None else timeout_s)
                return tuple(batch[name] for name in batch)
            except FeedTimeout:
                if timeout_s is not None and not died:
                    raise
                if died and supervisor is not None:
                    raise supervisor.error() from None

    def get_next(self, alias: str = "") -> tuple[np.ndarray, ...]:
        """Wait for the next batch of an output: planes, policy, values.

        planes [B, 112, 8, 8], policy [B, 1858], values [B, 6, 3], float32.

        Raises:
            RuntimeError: No output has this alias (the text lists the existing ones), or it is
                closed: stopped, failed, or at its end.
        """
        try:
            return self._next(alias, None)
        except (FeedEnd, FeedStopped, FeedDetached) as error:
            raise RuntimeError(f"Queue is closed: {error}") from error
        except RingfeedError as error:
            raise RuntimeError(str(error)) from error

    def maybe_get_next(self, alias: str = "") -> tuple[np.ndarray, ...] | None:
        """The next batch if there is one now; None if not, and if the output is closed.

        Raises:
            RuntimeError: No output has this alias, or the feed has failed.
        """
        try:
            return self._next(alias, 0.0)
        except (FeedEnd, FeedStopped, FeedDetached, FeedTimeout):
            return None
        except RingfeedError as error:
            raise RuntimeError(str(error)) from error

    def send_control_message(self, request: Any) -> list[tuple[str, Any]]:
        """Send a StageControlRequest to every stage; returns (name of the stage, response) for each
        answer.

        The response is a StageControlResponse from the file that defines the request's class, or
        bytes if the request was given as bytes or has no descriptor. Before start() an anchor can
        be set and asked for: the pool then starts with it.

        Raises:
            RuntimeError: The feed does not answer.
        """
        with self._lock:
            supervisor = self._supervisor
            if supervisor is None and not self._started:
                return self._answer_before_start(request)
        if supervisor is None:
            raise RuntimeError("the loader was stopped")
        message = request if hasattr(request, "DESCRIPTOR") else _serialized(request)
        try:
            return control.pass_on(supervisor.socket_path, message, None)
        except FeedRefused as error:
            if "answers chunk_pool_request" in str(error) or "message is empty" in str(error):
                return []  # for no stage that the feed has: there nobody answers then
            raise RuntimeError(str(error)) from error
        except RingfeedError as error:
            raise RuntimeError(str(error)) from error

    def get_bucket_metrics(self, period: int, include_pending: bool = False) -> tuple[bytes, float]:
        """Metrics of the last 2**period seconds (0: 1 s, 6: about a minute); 127: all time.

        Returns:
            A serialized DataLoaderMetricsProto, and the seconds that it covers. Before start() and
            after stop() empty bytes and 0.0.

        The feed has the windows of Feed.metrics(), 1, 10 and 60 s, and the totals. The result is
        the smallest window that is long enough (60 s is enough for 64); in a young feed it covers
        less. All windows end now, so include_pending changes nothing.

        Stages are those of `config`, by their names there. These numbers differ a little:

        - load_seconds is the time in which lanes were busy, total_seconds the time in which they
          were busy or asleep. Time in which they stood still for a snapshot is not included, and
          what a lane is doing now is counted when it is done. The pool's lane that owns the window
          and draws is its source_ingestion; the lanes that read are its chunk_loading.
        - A queue is called "output", whatever its name was, except for a splitter's. Its numbers
          and its capacity are those of all lanes together; its fullness is sampled every 250 ms.
          The queue of the tensors has batches in slots: put when published, got when the slot is
          free again.
        - hanse_rejected counts chunks rejected by length or by weight. cache_hits and cache_misses
          count uses of games that the store had or did not have. The smallest and the largest
          chunk_weight are of all time, in millionths, of the draws that were decided.
        - failed_rescores counts the chunks that the rescorer, or the validator that comes with it,
          has not passed on.
        - Counters that only ringfeed has keep their names in Feed.metrics(), and appear once they
          are not 0. last_chunk_key and the position cache are missing.

        Raises:
            RuntimeError: The feed has failed, or does not answer.
        """
        if period == _NO_TIME:
            return b"", 0.0
        return self._metrics(math.inf if period == _ALL_TIME else 2.0**period)

    def get_aggregate_ending_now(
        self, seconds: float, include_pending: bool = False
    ) -> tuple[bytes, float]:
        """The same for any number of seconds; math.inf, and anything over a minute: all time.

        Raises:
            RuntimeError: As get_bucket_metrics().
        """
        return self._metrics(seconds)

    def _metrics(self, seconds: float) -> tuple[bytes, float]:
        supervisor = self._running_supervisor()
        if supervisor is None:  # nobody answers yet, or any more
            return b"", 0.0
        try:
            reply = control.metrics(supervisor.socket_path, describe=True)
            return lc0_metrics.of_last(seconds, reply)
        except RingfeedError as error:
            if self._supervisor is None:
                return b"", 0.0
            reason = supervisor.error() if _gone(supervisor) else error
            raise RuntimeError(str(reason)) from error

    def _answer_before_start(self, request: Any) -> list[tuple[str, Any]]:
        found = [
            dict(control.fields(value))
            for number, value in control.fields(_serialized(request))
            if number == messages.StageControlRequest.chunk_pool_request
            and isinstance(value, bytes)
        ]
        if not found:
            return []
        asked = found[-1]
        # A reset takes the newest file's name; there is none yet, so the anchor stays.
        anchor = asked.get(_PoolRequest.set_chunk_anchor)
        if not asked.get(_PoolRequest.reset_chunk_anchor) and isinstance(anchor, bytes):
            self._anchor = anchor.decode()
        answer = control.bytes_field(_PoolResponse.chunk_anchor, (self._anchor or "").encode())
        answer += control.number_field(_PoolResponse.chunks_since_anchor, 0)
        response = control.bytes_field(messages.StageControlResponse.chunk_pool_response, answer)
        made = (
            control._response_to(request, response) if hasattr(request, "DESCRIPTOR") else response
        )
        return [(name, made) for name in _pools(self.config)]


def make_dataloader(
    config: Any, *, view: str = "copy", as_lczero_training: bool | None = None
) -> DataLoader:
    """A started loader of this configuration."""
    loader = DataLoader(config, view=view, as_lczero_training=as_lczero_training)
    loader.start()
    return loader


class TensorBase:
    """An array as that project's module describes one; get_next() returns NumPy arrays.

    Attributes:
        shape, strides: Lengths of the dimensions; strides in bytes.
        element_size: Bytes of one element.
        py_format: "f", "d", "i" or "q", as in the module struct.
    """

    def __init__(self, array: np.ndarray) -> None:
        """
        Raises:
            TypeError: The elements are not float32, float64, int32 or int64.
        """
        array = np.asarray(array)
        formats = {"float32": "f", "float64": "d", "int32": "i", "int64": "q"}
        if array.dtype.name not in formats:
            raise TypeError(f"{array.dtype} is not supported: use one of {', '.join(formats)}")
        self._array = array
        self.shape: list[int] = list(array.shape)
        self.strides: list[int] = list(array.strides)
        self.element_size: int = array.itemsize
        self.py_format: str = formats[array.dtype.name]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype=dtype, copy=copy)


def install(*names: str) -> None:
    """Make this module replace that project's compiled one, in this process.

    From now on imports of these full names, such as "package.module", find this module. Call it
    before that project's modules are imported; packages around it are theirs.

    Raises:
        ImportError: One of the names was already imported, and is another module.
    """
    own = importlib.import_module("ringfeed.lc0_compat")
    for name in names:
        there = sys.modules.get(name, own)
        if there is not own:
            raise ImportError(f"{name} is already imported: call install() earlier", name=name)
    for name in names:
        sys.modules[name] = own


# Running loaders: a normal end of the process stops them and removes their directories.
_running: weakref.WeakSet[DataLoader] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for loader in list(_running):
        loader.stop()


def _end_feed(feeds: dict[str, Feed], supervisor: _Supervisor) -> None:
    """Ends what a loader has started, also after the loader is gone."""
    for feed in feeds.values():
        feed.close()
    supervisor.end(10.0)


def _look_at(
    supervisor: _Supervisor, waiting: threading.Event, stopping: threading.Event
) -> Callable[[], None]:
    """Ends a wait to attach that cannot succeed any more. Holds no reference, so that the loader
    can be dropped."""

    def look() -> None:
        # Later the feed itself says why it ended; see _next().
        if not waiting.is_set():
            return
        if stopping.is_set():
            raise FeedDetached("the loader was stopped")
        if supervisor.exit_status is not None:
            raise supervisor.error()

    return look


def _gone(supervisor: _Supervisor, timeout_s: float = 2.0) -> bool:
    """Has it ended? The connection breaks a moment before the child can be reaped."""
    ended = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if supervisor.exit_status is not None:
            return True
        ended.wait(0.01)
    return False


def _serialized(message: Any) -> bytes:
    if hasattr(message, "SerializeToString"):
        data: bytes = message.SerializeToString()
        return data
    if isinstance(message, (bytes, bytearray, memoryview)):
        return bytes(message)
    raise TypeError(f"a protobuf message or its bytes are needed, not a {type(message).__name__}")


def _convert(given: list[Any]) -> tuple[str, list[str]]:
    """Our configuration from theirs, and the differences."""
    with tempfile.TemporaryDirectory(prefix="ringfeed-") as directory:
        files = []
        for number, config in enumerate(given):
            if isinstance(config, (str, os.PathLike)):
                files.append(os.fspath(config))
                continue
            file = Path(directory, f"config{number}.binpb")
            file.write_bytes(_serialized(config))
            files.append(str(file))
        words = [str(programs.find("ringfeed")), "import-lc0", files[0]]
        for added in files[1:]:
            words += ["--add", added]
        run = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        said = run.stderr.replace(f"{directory}{os.sep}", "").strip()
        text = run.stdout.replace(f"{directory}{os.sep}", "")
    if run.returncode != 0:
        kind = InvalidConfiguration if run.returncode == _STATUS_INVALID else RingfeedError
        raise RuntimeError(said) from kind(said)
    return text, said.splitlines()


def _pools(config: str) -> list[str]:
    """Names of the pools of a converted configuration."""
    return re.findall(r'^stages \{\n  name: "(.*)"\n  shuffling_chunk_pool \{$', config, re.M)


def _with_anchor(config: str, anchor: str) -> str:
    """The same, with pools that start with this anchor."""
    line = f"  shuffling_chunk_pool {{\n    chunk_anchor: {json.dumps(anchor, ensure_ascii=False)}"
    return re.sub(r"^  shuffling_chunk_pool \{$", lambda _: line, config, flags=re.M)


def _with_raw_planes(config: str) -> str:
    """The same, with tensors whose last planes are made as there."""
    line = "  tensor_generator {\n    as_lczero_training: true"
    return re.sub(r"^  tensor_generator \{$", line, config, flags=re.M)


_SHIM = '''"""Stands for the compiled module of lczero-training: the loader of ringfeed."""

from ringfeed.lc0_compat import DataLoader, TensorBase, make_dataloader

__all__ = ["DataLoader", "TensorBase", "make_dataloader"]
'''


def _main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m ringfeed.lc0_compat",
        description="Runs a program of lczero-training with this loader in place of its own, "
        "or writes a module that replaces the compiled one.",
        usage="%(prog)s --as NAME [--as-lczero-training] (-m MODULE | FILE) [ARGUMENT ...]\n"
        "       %(prog)s --write FILE",
    )
    parser.add_argument(
        "--as",
        dest="names",
        action="append",
        default=[],
        metavar="NAME",
        help="full name of the module to replace, such as "
        "lczero_training._lczero_training; may be given several times",
    )
    parser.add_argument(
        "--as-lczero-training",
        action="store_true",
        help="make planes 104 to 110 of input formats other than 1 as lczero-training "
        "does, for nets that were trained that way",
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        help="write a module to import from now on, such as "
        "lczero_training/_lczero_training.py; a compiled one beside it would take "
        "precedence",
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="the program: a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program: a file")
    given = parser.parse_args(arguments)
    if given.write is not None:
        if given.names or given.module or given.program:
            parser.error("--write takes no other arguments")
        with open(given.write, "x", encoding="utf-8") as file:
            file.write(_SHIM)
        return
    command = given.module or given.program
    if not given.names or not command:
        parser.error("give --as NAME and a program, or --write FILE")
    install(*given.names)
    global _raw_planes
    _raw_planes = given.as_lczero_training
    sys.argv = list(command)
    if given.module:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(command[0]).resolve().parent)
        runpy.run_path(command[0], run_name="__main__")
