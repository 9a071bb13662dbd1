"""What a stage makes of samples, shown at a terminal: the foreground half of `ringfeed try`.

`ringfeed` (supervisor/feed/trial.h) writes records into a pipe, each behind four numbers of 64
bits: its length, its two tags, and whether it came out of the stage, which none here does. Over the
socket of the setup it is told where the stage is: ``at sample 3 (lineage …)`` before each call, and
``done 0``, with its exit status, when this process has come to its end. An end without that is a
death of the stage.
"""

from __future__ import annotations

import bdb
import faulthandler
import io
import os
import pdb
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, BinaryIO

from . import exits, objects
from .calls import Calls, Failure
from .sources import Source
from .values import coerce

_HEAD = struct.Struct("<QQQQ")
_INTERRUPTED = 130
# Frames that are no user's.
_OWN = ("ringfeed.worker", "ringfeed.stage")


@dataclass(frozen=True)
class Options:
    """What was said on the command line."""

    samples: int = 1
    pdb: bool = False
    step: bool = False
    """Stop at the first line of the stage's function."""

    @staticmethod
    def of(words: list[str]) -> Options:
        """From the words behind the descriptors."""
        given: dict[str, Any] = {}
        for word in words:
            name, _, value = word.removeprefix("--").partition("=")
            given[name] = int(value) if value else True
        return Options(**given)


@dataclass(frozen=True)
class _Record:
    number: int
    data: bytes
    tag: tuple[int, int]

    @property
    def name(self) -> str:
        return f"sample {self.number} (lineage {self.tag[0]:016x}:{self.tag[1]})"


def _records(pipe: BinaryIO) -> Iterator[_Record]:
    number = 0
    while head := pipe.read(_HEAD.size):
        number += 1
        size, first, second, _ = _HEAD.unpack(head)
        yield _Record(number, pipe.read(size), (first, second))


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is not this package's."""
    while trace is not None and _is_own(trace):
        trace = trace.tb_next
    return trace


def _is_own(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).startswith(_OWN)


class _Quit(Exception):
    """The user has had enough."""


_STOPS = (KeyboardInterrupt, _Quit, bdb.BdbQuit)


class _Debugger:
    """pdb at the terminal."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def look(self, error: BaseException) -> None:
        """Post mortem, where the stage's code raised.

        Raises:
            _Quit: `q`, or the end of the standard input.
        """
        trace = _of_user(error.__traceback__)
        if not self._options.pdb or trace is None:
            return
        sys.stdout.flush()
        debugger = pdb.Pdb(nosigint=True)
        debugger.reset()
        debugger.cmdqueue = _to_user(trace)
        debugger.interaction(None, trace)
        if getattr(debugger, "quitting", False):
            raise _Quit

    def call(self, function: Callable[[], Any]) -> Any:
        """Calls it, and stops at the first line that is not this package's if that was asked."""
        if not self._options.step:
            return function()
        sys.stdout.flush()
        debugger = pdb.Pdb(nosigint=True, skip=[f"{name}*" for name in _OWN])
        return debugger.runcall(function)


def _to_user(trace: TracebackType) -> list[str]:
    """Commands of pdb that go from the last frame to the last one of the user's own code."""
    up = 0
    frames = []
    place: TracebackType | None = trace
    while place is not None:
        frames.append(place.tb_frame.f_code.co_filename)
        place = place.tb_next
    for up, file in enumerate(reversed(frames)):
        if not _is_installed(file):
            break
    else:
        up = 0  # all of it is somebody else's
    return [f"up {up}"] if up else []


def _is_installed(file: str) -> bool:
    """Is it a file of a library, or of none?"""
    if file.startswith("<"):
        return True
    return f"{os.sep}site-packages{os.sep}" in file or file.startswith(
        os.path.dirname(os.__file__) + os.sep
    )


class _Raised(Failure):
    """A failure with its exception."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__, "")
        self.exception = error

    @staticmethod
    def by(error: BaseException) -> _Raised:
        """Raises what is no fault of the stage: Ctrl-C, and `q` of the debugger."""
        if isinstance(error, _STOPS):
            raise error
        return _Raised(error)


class _Calls(Calls):
    def __init__(self, spec: objects.Spec) -> None:
        super().__init__(spec)
        self.failed = _Raised.by


class _Source(Source):
    def __init__(self, spec: objects.Spec) -> None:
        super().__init__(spec)
        self.failed = _Raised.by


class Trial:
    """Shows samples, one after the other."""

    def __init__(
        self,
        worker: ModuleType,
        spec: objects.OwnSpec,
        options: Options,
        tell: Callable[[str], None],
    ) -> None:
        self._worker = worker
        self._spec = spec
        self._options = options
        self._tell = tell
        self._debugger = _Debugger(options)
        self._given = 0
        self._out = 0
        self._raised = 0
        self._taken_s = 0.0

    def run(self, pipe: BinaryIO) -> int:
        """Shows all that comes; the exit status."""
        try:
            if self._spec["source"]:
                self._show_source()
            else:
                self._show_calls(pipe)
        except _STOPS as stop:
            print()
            self._sum_up()
            return _INTERRUPTED if isinstance(stop, KeyboardInterrupt) else self._status()
        self._sum_up()
        return self._status()

    def _status(self) -> int:
        return 1 if self._raised else 0

    def _made(self, make: Callable[[objects.Spec], Any]) -> Any:
        started = time.perf_counter()
        try:
            made = make(self._spec)
        except _STOPS:
            raise
        except BaseException as error:  # also SystemExit
            print(f"{self._spec['object']} cannot be made:")
            self._raised += 1
            self._show_error(error)
            return None
        print(f"{self._spec['object']} was made in {_time(time.perf_counter() - started)}\n")
        return made

    # ---- a stage of samples

    def _show_calls(self, pipe: BinaryIO) -> None:
        calls = self._made(_Calls)
        if calls is None:
            return
        many = self._spec["at_once"] if calls.takes_many else 1
        records = _records(pipe)
        while batch := [one for _, one in zip(range(min(many, self._left())), records)]:
            self._show_batch(calls, batch)

    def _left(self) -> int:
        return self._options.samples - self._given

    def _show_batch(self, calls: _Calls, batch: list[_Record]) -> None:
        self._given += len(batch)
        samples = [
            self._worker.sample(one.data, *one.tag, self._spec["key"], calls.zero_copy)
            for one in batch
        ]
        for record in batch:
            self._print_sample(record.name, "in ", record.data)
        names = batch[0].name
        if len(batch) > 1:
            names = f"samples {batch[0].number} to {batch[-1].number}"
            print(f"{names} together")
        sys.stdout.flush()
        self._tell(f"at {names}")
        started = time.perf_counter()
        outcomes = self._debugger.call(lambda: calls.run(samples))
        taken = time.perf_counter() - started
        self._taken_s += taken
        for record, outcome in zip(batch, outcomes):
            if len(batch) > 1:
                print(record.name)
            self._show_outcome(outcome)
        each = f", {_time(taken / len(batch))} a sample" if len(batch) > 1 else ""
        print(f"  {_time(taken)}{each}\n")

    def _show_outcome(self, outcome: Any) -> None:
        if isinstance(outcome, _Raised):
            self._raised += 1
            self._show_error(outcome.exception)
            return
        if outcome is None or outcome == []:
            print("  out  nothing: it is left out")
            return
        made = outcome if type(outcome) is list else [outcome]
        for i, one in enumerate(made):
            self._show_made(one, f"out{i + 1}" if len(made) > 1 else "out")

    def _show_made(self, made: Any, label: str) -> None:
        try:
            record = self._worker.encoded(made, coerce)
        except Exception as error:
            self._raised += 1
            self._show_error(error)
            return
        self._out += 1
        self._print_sample(None, label, record)

    # ---- a source

    def _show_source(self) -> None:
        source = self._made(_Source)
        if source is None:
            return
        source.begin(0, b"", 0)
        while self._given < self._options.samples:
            sys.stdout.flush()
            self._tell(f"at sample {self._given + 1}")
            started = time.perf_counter()
            found, end, failure = self._debugger.call(lambda: source.next(1))
            self._taken_s += time.perf_counter() - started
            for sample, cursor in found:
                self._given += 1
                print(f"sample {self._given}, cursor {cursor!r:.60}")
                self._show_made(sample, "out")
                print(f"  {_time(time.perf_counter() - started)}\n")
            if failure is not None:
                self._raised += 1
                self._show_error(failure.exception)
                return
            if end:
                print(f"that is the end of its epoch, after {self._given} samples")
                return
            if not found:
                time.sleep(0.05)

    # ---- what is printed

    def _print_sample(self, name: str | None, label: str, record: bytes) -> None:
        if name is not None:
            print(name)
        for line in self._worker.sample_text(record) or ["no fields"]:
            print(f"  {label:4} {line}")
            label = ""

    def _show_error(self, error: BaseException) -> None:
        trace = _of_user(error.__traceback__)
        text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
        print("  raised")
        for line in text.splitlines():
            print(f"       {line}")
        self._debugger.look(error)

    def _sum_up(self) -> None:
        if self._spec["source"]:
            print(f"{self._spec['stage']}: {self._given} samples out", end="")
        else:
            print(f"{self._spec['stage']}: {self._given} samples in, {self._out} out", end="")
        if self._raised:
            print(f", {self._raised} raised", end="")
        print(f", {_time(self._taken_s / self._given)} a sample" if self._given else "")


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3f} ms"


def serve(worker: ModuleType, setup_fd: int, records_fd: int, words: list[str]) -> int:
    """What ``--try-fd`` means: shows the stage that the setup names; the exit status."""
    for fd in (setup_fd, records_fd):
        os.set_inheritable(fd, False)
    faulthandler.enable(2, all_threads=False)
    exits.tell()
    spec: objects.OwnSpec = worker.spec(setup_fd)
    link = socket.socket(fileno=setup_fd)

    def tell(what: str) -> None:
        try:
            link.send(what.encode())
        except OSError:  # nobody listens: then this process ends with its parent
            pass

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    trial = Trial(worker, spec, Options.of(words), tell)
    try:
        status = trial.run(os.fdopen(records_fd, "rb"))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 1
    tell(f"done {status}")
    return status


__all__ = ["Options", "Trial", "serve"]
