"""While a stage's code is imported or made: says where it is when that takes long.

What imports a module has no say in what that does: it may wait for a server that does not answer,
or fork. Whoever has asked for it waits too, and is to be told for what.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from os import _exit  # as it was: what a stage calls says where (exits.py)
from types import FrameType
from typing import Any, NoReturn, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_SAY_AFTER_S = 5.0
_LOOK_S = 0.5
_LOG = 2
_watched = threading.local()


def awaited(function: _Function) -> _Function:
    """Of a function that runs a stage's code: it is said after 5 s, and each time that this has
    doubled, which line is waited for; the process ends if the one that has started it does. A
    child that the code forks, and that comes back, ends instead of doing the same once more.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if getattr(_watched, "by", None) == os.getpid():
            return function(*arguments, **named)
        process = _watched.by = os.getpid()
        over = threading.Event()
        watch = threading.Thread(
            target=_watch, args=(over, threading.get_ident()), name="ringfeed-awaited", daemon=True
        )
        watch.start()
        # What holds the interpreter's lock holds up the thread, and not this.
        faulthandler.dump_traceback_later(2 * _SAY_AFTER_S, file=_LOG)
        try:
            return function(*arguments, **named)
        finally:
            if os.getpid() != process:
                _exit(0)
            _watched.by = None
            faulthandler.cancel_dump_traceback_later()
            over.set()
            watch.join()

    return call  # type: ignore[return-value]


def _watch(over: threading.Event, thread: int) -> None:
    parent = os.getppid()
    began = time.monotonic()
    say_after_s = _SAY_AFTER_S
    while not over.wait(_LOOK_S):
        if os.getppid() != parent:
            leave(1)
        if time.monotonic() - began < say_after_s:
            continue
        faulthandler.cancel_dump_traceback_later()
        if text := _where(thread, say_after_s):
            with contextlib.suppress(OSError):
                os.write(_LOG, f"{text}\n".encode(errors="backslashreplace"))
        say_after_s *= 2


def _where(thread: int, for_s: float) -> str:
    """A sentence that says what the thread does; "": somebody debugs it."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_globals.get("__name__") in ("bdb", "pdb"):
            return ""
        frames.append(frame)
        frame = frame.f_back
    frames.reverse()
    own = [
        frame
        for frame in frames
        if not frame.f_globals.get("__name__", "").startswith(("ringfeed.", "importlib", "runpy"))
        and frame.f_globals.get("__name__") != "__main__"
        and not frame.f_code.co_filename.startswith("<frozen ")
    ]
    if not own:
        return f"a stage's object has been awaited for {for_s:.0f} s"
    first, last = own[0], own[-1]
    name = first.f_globals.get("__name__", "?")
    does = "importing" if first.f_code.co_name == "<module>" else "making a stage's object"
    code = linecache.getline(first.f_code.co_filename, first.f_lineno).strip()
    text = f"module `{name}` has been {does} for {for_s:.0f} s: {_place(first)}"
    text += f" `{code}`" if code else ""
    return text if last is first else f"{text} (now in {_place(last)} {last.f_code.co_name})"


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def leave(status: int) -> NoReturn:
    """Ends the process, and the children that a stage's code has left, whatever their threads do.

    Nobody waits for a thread that is no daemon.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    for child in _children():
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
    _exit(status)


def _children() -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found
