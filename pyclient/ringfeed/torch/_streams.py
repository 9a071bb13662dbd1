"""Text streams in a process that was forked while other threads of its parent used them.

A thread that prints holds the lock of the stream's buffer. It stays in the parent, so in the child
nobody would ever open that lock: the first print() would hang.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from .._core import standard

_BUFFERS = (io.BufferedReader, io.BufferedWriter, io.BufferedRandom)


def renew() -> None:
    """In the child: nobody holds a lock of a standard stream, nor of one of a logging handler."""
    buffers = {}
    for stream in _streams():
        with contextlib.suppress(Exception):  # it is closed, or whatever stands in its place
            if isinstance(stream, io.TextIOWrapper):
                stream = stream.buffer
            if type(stream) in _BUFFERS:
                buffers[id(stream)] = stream
    for buffer in buffers.values():
        # The lock is a new one, and what the parent had not written yet stays the parent's.
        with contextlib.suppress(Exception):
            buffer.__init__(buffer.raw)


def _streams() -> Iterator[Any]:
    yield from (sys.stdin, sys.stdout, sys.stderr)
    yield from (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    for one in [logging.root, *list(logging.root.manager.loggerDict.values())]:
        for handler in getattr(one, "handlers", ()):
            yield getattr(handler, "stream", None)


def leave_stderr(log: int) -> int:
    """In a worker: descriptor 2 becomes the log, and what Python prints goes where it went.

    A descriptor 2 that is no standard stream, but a file of the program's own, stays that.

    Returns:
        The descriptor by which the log is written.
    """
    for stream in filter(None, (sys.stderr, sys.__stderr__)):
        with contextlib.suppress(Exception):
            stream.flush()
    kept = os.dup(2)
    if not standard.lead(2, log):
        os.close(kept)
        return log
    os.close(log)
    # What stands in the place of sys.stderr may write by the one that was there first.
    for stream in (sys.__stderr__, sys.stderr):
        if _descriptor(stream) == 2 and not _redirect(stream, os.dup(kept)):
            if stream is sys.stderr:  # whose own stream nobody can lead elsewhere
                sys.stderr = open(os.dup(kept), "w", buffering=1, errors="backslashreplace")
    os.close(kept)
    return 2


def _descriptor(stream: Any) -> int:
    try:
        return int(stream.fileno())
    except Exception:  # it has none, or is none
        return -1


def _redirect(stream: Any, fd: int) -> bool:
    """Lets a stream, and whoever refers to it, write to another descriptor, which is the stream's
    own from now on. False: it is of another kind."""
    if type(stream) is not io.TextIOWrapper:
        return False
    if type(stream.buffer) is io.BufferedWriter:
        stream.buffer.__init__(io.FileIO(fd, "w"))  # type: ignore[misc]
    elif type(stream.buffer) is io.FileIO:
        stream.buffer.__init__(fd, "w")  # type: ignore[misc]
    else:
        return False
    return True
