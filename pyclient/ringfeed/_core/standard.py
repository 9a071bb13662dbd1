"""Descriptors 0, 1 and 2: standard streams, unless somebody has closed them.

Whoever opens a file then gets such a number, and all that is printed without looking, by libraries
and by the interpreter as it dies, is written into that file.
"""

from __future__ import annotations

import contextlib
import os
import sys

_FDS = (0, 1, 2)


def reserve() -> None:
    """What is closed of them leads to /dev/null from now on, so that nothing else gets the number.

    A process does so before it opens what others may not write to: memory of a feed, sockets.
    """
    for fd in _FDS:
        if _identity(fd) is not None:
            continue
        with contextlib.suppress(OSError):
            got = os.open(os.devnull, os.O_RDWR)
            if got in _FDS:
                os.set_inheritable(got, True)
            else:  # another thread was faster
                os.close(got)


def lead(fd: int, to: int) -> bool:
    """Lets standard stream `fd` lead where descriptor `to` leads.

    Returns:
        False: It is neither what this process was started with nor /dev/null, so it may be any file
        that was opened when the stream had been closed. It stays that.
    """
    found = _identity(fd)
    if found is not None and found not in (_streams[fd], _identity_of_null()):
        return False
    os.dup2(to, fd)
    _streams[fd] = _identity(fd)
    return True


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _identity_of_null() -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        status = os.stat(os.devnull)
        return status.st_dev, status.st_ino
    return None


# Those that the interpreter has found closed are none.
_streams = [
    _identity(fd) if stream is not None else None
    for fd, stream in zip(_FDS, (sys.__stdin__, sys.__stdout__, sys.__stderr__))
]
