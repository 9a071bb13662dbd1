"""Temporary directories of private feeds. None outlives its process.

A supervisor removes that of its feed when its owner has died. Before it runs, and once it is
stopped, only the owner can. A daemon thread may be just there when the interpreter ends, and Python
never lets it go on.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BYTES_MAX = 77  # below it lies /ringfeed-XXXXXXXX/loader.sock, in 107 bytes
_REMOVALS_S = 10.0
_REMOVE_TRIES, _REMOVE_AGAIN_S = 20, 0.02

_changed = threading.Condition()  # what follows; a finalizer may come while a thread has it
_own: set[Path] = set()  # nobody else removes these
_removals = 0  # that are under way
_is_over = False  # of other threads than the main one only daemons are left


def _forget() -> None:
    """In a fork: they are the other process's."""
    global _changed, _removals
    _changed = threading.Condition()
    _own.clear()
    _removals = 0


os.register_at_fork(after_in_child=_forget)


def _base() -> str:
    """With $TMPDIR, unless that has a long path."""
    place = tempfile.gettempdir()
    return place if len(os.fsencode(place)) <= _BYTES_MAX else "/tmp"


def _is_too_late() -> bool:
    return _is_over and threading.current_thread() is not threading.main_thread()


def make() -> Path:
    """A new directory, which is removed at the end of this process.

    A daemon thread that comes when the interpreter ends does not return, as if that had already
    stopped it.

    Raises:
        OSError: No directory can be made in $TMPDIR.
    """
    with _changed:
        if not _is_too_late():
            path = Path(tempfile.mkdtemp(prefix="ringfeed-", dir=_base()))
            _own.add(path)
            return path
    while True:
        threading.Event().wait()


def hand_over(path: Path) -> None:
    """A process was started that removes the directory when this one has ended."""
    with _changed:
        _own.discard(path)


def remove(path: Path) -> None:
    """Removes a directory with all that is in it, as far as that can be removed.

    A process that was killed may still come to the end of the call it was in, and so put something
    there when the rest has gone.
    """
    for _ in range(_REMOVE_TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return
        time.sleep(_REMOVE_AGAIN_S)


@contextmanager
def removing(path: Path) -> Iterator[bool]:
    """The directory is removed at the end of the block. The process waits for it before it ends.

    Gives False to a daemon thread that comes when the interpreter ends. Whoever has the directory
    then removes it: this process, or its supervisor if nobody stops that. Such a thread is not
    held here: a finalizer may have brought it, under any lock.
    """
    global _removals
    with _changed:
        if in_time := not _is_too_late():
            _own.add(path)
            _removals += 1
    if not in_time:
        yield False
        return
    try:
        yield True
    finally:
        remove(path)
        with _changed:
            _own.discard(path)
            _removals -= 1
            _changed.notify_all()


@atexit.register
def _end() -> None:
    global _is_over
    with _changed:
        _is_over = True
        _changed.wait_for(lambda: _removals == 0, _REMOVALS_S)
        left = list(_own)
        _own.clear()
    for path in left:
        remove(path)
