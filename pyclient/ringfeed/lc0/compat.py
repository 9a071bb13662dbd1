"""The data loader of lczero-training, on top of a feed.

    from ringfeed.lc0_compat import make_dataloader      # in place of that project's own module

    loader = make_dataloader(config.data_loader)          # their DataLoaderConfig
    planes, policy, values = loader.get_next()

A configuration is that project's: a DataLoaderConfig as a message or serialized, or the path of a
file with one or with a RootConfig. ``ringfeed import-lc0`` converts it; what it says of fields that
have no equivalent is in ``DataLoader.notes`` and is logged. Their generated modules are not needed:
any object with ``SerializeToString()`` is a message.

Arrays are copies by default, float32, writable and the caller's for good, as there. With
``view="readonly"`` they are the feed's own memory: nothing is copied, and an array that is kept
keeps its batch's slot.

This module can stand for that project's compiled one, and its programs run unchanged: see
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
# Of loaders that do not say: are planes 104 to 110 made as there?
_raw_planes = False
# Longest wait between two looks at the supervisor.
_LOOK_S = 0.5
_PoolRequest = messages.ShufflingChunkPoolControlRequest
_PoolResponse = messages.ShufflingChunkPoolControlResponse
# Periods of get_bucket_metrics() that are no powers of two.
_NO_TIME = -128
_ALL_TIME = 127


class DataLoader:
    """That project's loader: construct, start(), get_next() for ever, stop().

    May be used by several threads; what is asked while another one is in start() or stop() is
    answered when that is through. One that nobody refers to any more is stopped; a member that
    feed() gave ends with it.

    Attributes:
        notes: What has no equivalent here, and what was done instead; sentences.
        config: The converted configuration, as text.
    """

    def __init__(
        self, config: Any, *, view: str = "copy", as_lczero_training: bool | None = None
    ) -> None:
        """
        Args:
            config: Their DataLoaderConfig (a message, or serialized), or a path.
            view: "copy", "readonly" or "private" arrays, as for ringfeed.attach().
            as_lczero_training: Make planes 104 to 110 of other input formats than 1 as there, for
                nets that were trained so (proto/config.proto); None: as the command line of this
                module says, which is no.
        Raises:
            RuntimeError: The configuration is wrong; the text is all that is.
        """
        choice("view", view, native.VIEWS)
        self._view = view
        self._raw_planes = _raw_planes if as_lczero_training is None else as_lczero_training
        self._given: list[Any] = []
        self._supervisor: _Supervisor | None = None
        self._started = False
        # Both may be entered again: a signal's handler may call stop() in the midst of anything.
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
            RuntimeError: The loader runs, or the whole is no configuration; nothing has changed.
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
        """Of the outputs, in their order; "" is the one that is asked for by no name."""
        outputs = re.findall(r"^feed_output \{\n(.*?)^\}", self.config, re.M | re.S)
        found = [re.search(r'^  alias: "(.*)"$', output, re.M) for output in outputs]
        return [alias.group(1) if alias else "" for alias in found] or [""]

    def start(self) -> None:
        """Start the feed; returns when its first output can be read from.

        Raises:
            RuntimeError: Started before, or it does not come up; the text is the reason.
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
        """Stop the feed and its processes; arrays that live stay readable. Again is harmless."""
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
        """None before start() and after stop(); waits for one that is under way."""
        with self._lock:
            return self._supervisor

    def _attach(self, alias: str, supervisor: _Supervisor) -> Feed:
        """The member that reads this output; made when it is asked for first."""
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
                    # Not named unless there is a choice.
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
            self._feeds[alias] = feed
            return feed

    def feed(self, alias: str = "") -> Feed:
        """The member that reads an output, for what a Feed can do besides."""
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
        """The next batch of an output: planes, policy, values. Waits for it.

        planes [B, 112, 8, 8], policy [B, 1858], values [B, 6, 3], float32.

        Raises:
            RuntimeError: No output has this alias (the text lists those that there are), or it is
                closed: stopped, failed, or at its end.
        """
        try:
            return self._next(alias, None)
        except (FeedEnd, FeedStopped, FeedDetached) as error:
            raise RuntimeError(f"Queue is closed: {error}") from error
        except RingfeedError as error:
            raise RuntimeError(str(error)) from error

    def maybe_get_next(self, alias: str = "") -> tuple[np.ndarray, ...] | None:
        """The next batch if it is there; None if it is not, and when the output is closed.

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
        """Give a StageControlRequest to every stage; (name of the stage, response) of each answer.

        The response is a StageControlResponse from the file in which the request's class was
        defined; bytes, if the request was given as bytes or has no descriptor. Before start() an
        anchor can be set and asked for: the pool then begins with it.

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
            if "is for a stage of kind" in str(error) or "message is empty" in str(error):
                return []  # for no stage that the feed has: there nobody answers then
            raise RuntimeError(str(error)) from error
        except RingfeedError as error:
            raise RuntimeError(str(error)) from error

    def get_bucket_metrics(self, period: int, include_pending: bool = False) -> tuple[bytes, float]:
        """Metrics of the last 2**period seconds (0: 1 s, 6: about a minute); 127: of all time.

        Returns:
            A serialized DataLoaderMetricsProto, and how many seconds it covers. Nothing and 0.0
            before start() and after stop().

        There are the windows of Feed.metrics(), of 1, 10 and 60 s, and the totals: it is the
        smallest that is as long as what was asked for (60 s do for 64), and in a young feed it
        covers less. All of them end now, so that include_pending changes nothing.

        Stages are those of `config`, by their names there. What is only nearly the same:

        - load_seconds are those in which lanes were busy, total_seconds those in which they were
          busy or asleep: without the time in which they stood still for a snapshot, and what a lane
          does now is counted when it is done. The pool's lane that owns the window is its
          source_ingestion, and draws; those that read are its chunk_loading.
        - A queue is called "output", whatever its name was, but for a splitter's. It is over all
          lanes, with the capacity of all; its fullness was looked at every 250 ms. The
          tensors' are batches in slots: put when published, got when the slot is free again.
        - hanse_rejected are those rejected by length or by weight; cache_hits and cache_misses are
          uses of games that the store had or had not. The smallest and the largest chunk_weight
          are of all time, in millionths, of draws that were decided on.
        - failed_rescores are the chunks that the rescorer, or the validator that comes with it, has
          not passed on.
        - What only ringfeed counts has its name in Feed.metrics(), and is there once it is not 0.
          last_chunk_key and the position cache are missing.

        Raises:
            RuntimeError: The feed has failed, or does not answer.
        """
        if period == _NO_TIME:
            return b"", 0.0
        return self._metrics(math.inf if period == _ALL_TIME else 2.0**period)

    def get_aggregate_ending_now(
        self, seconds: float, include_pending: bool = False
    ) -> tuple[bytes, float]:
        """The same for any number of seconds; math.inf, and what is beyond a minute: of all time.

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
        # A reset takes the newest file's name, and there is none yet: the anchor stays.
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
    """A loader of this configuration that has been started."""
    loader = DataLoader(config, view=view, as_lczero_training=as_lczero_training)
    loader.start()
    return loader


class TensorBase:
    """An array as that project's module describes one; what get_next() gives are NumPy arrays.

    Attributes:
        shape, strides: Lengths of the dimensions; strides in bytes.
        element_size: Bytes of one element.
        py_format: "f", "d", "i" or "q", as of the module struct.
    """

    def __init__(self, array: np.ndarray) -> None:
        """
        Raises:
            TypeError: Elements of another type than float32, float64, int32 and int64.
        """
        array = np.asarray(array)
        formats = {"float32": "f", "float64": "d", "int32": "i", "int64": "q"}
        if array.dtype.name not in formats:
            raise TypeError(f"a tensor of {array.dtype}: it is one of {', '.join(formats)}")
        self._array = array
        self.shape: list[int] = list(array.shape)
        self.strides: list[int] = list(array.strides)
        self.element_size: int = array.itemsize
        self.py_format: str = formats[array.dtype.name]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype=dtype, copy=copy)


def install(*names: str) -> None:
    """Have this module stand for that project's compiled one, in this process.

    Imports of these names, whole ones such as "package.module", find this module from now on. Call
    it before that project's modules are imported; packages around it are theirs.

    Raises:
        ImportError: A name has been imported already, and is another module.
    """
    own = importlib.import_module("ringfeed.lc0_compat")
    for name in names:
        there = sys.modules.get(name, own)
        if there is not own:
            raise ImportError(f"{name} is already imported: call install() earlier", name=name)
    for name in names:
        sys.modules[name] = own


# Loaders that run: a normal end of the process stops them and removes their directories.
_running: weakref.WeakSet[DataLoader] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for loader in list(_running):
        loader.stop()


def _end_feed(feeds: dict[str, Feed], supervisor: _Supervisor) -> None:
    """Ends what a loader has, also one that is no more."""
    for feed in feeds.values():
        feed.close()
    supervisor.end(10.0)


def _look_at(
    supervisor: _Supervisor, waiting: threading.Event, stopping: threading.Event
) -> Callable[[], None]:
    """Ends a wait to attach when that cannot be any more. Knows no loader, so that one can go."""

    def look() -> None:
        # Later the feed itself says what ended it; see _next().
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
    """One configuration of ours out of theirs, and what is different."""
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
    """The same, with pools that begin with this anchor."""
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
