"""Where a stage's code ends its process, and where a child of it has to end."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
from os import _exit
from typing import NoReturn

_log = 2
_told = mmap.mmap(-1, 1)  # of children that come back; they write to it too


def say(why: str) -> None:
    """A line in the log, and below it where this thread is.

    Nobody may be there to read it: between a supervisor's death and the next one the pipe has no
    other end. Then the words are lost, and nothing else.
    """
    with contextlib.suppress(OSError):
        os.write(_log, f"{why}\n".encode())
    faulthandler.dump_traceback(_log, all_threads=False)


def end_child(process: int) -> None:
    """Ends this process if it is not the stage's: a child that the stage's code has forked, and
    that has come back from there, would do the stage's work once more beside its parent.

    Args:
        process: The number of the stage's.
    """
    if os.getpid() == process:
        return
    if not _told[0]:
        _told[0] = 1
        with contextlib.suppress(OSError):
            os.write(
                _log,
                b"a child that the stage's code has forked has come back from there, and ends, as "
                b"all of them do: end a child with os._exit()\n",
            )
    _exit(0)


def tell(log: int = 2) -> None:
    """From now on ``os._exit`` of this process first says in the log who called it.

    It ends a process without a trace, so a stage that calls it dies for no visible reason.
    Processes that the stage forks end silently, as they do elsewhere.

    Args:
        log: A descriptor.
    """
    global _log
    _log = log
    leave = os._exit
    process = os.getpid()

    def _exit(status: int) -> NoReturn:
        if os.getpid() == process:
            say(f"os._exit({status}) was called:")
        leave(status)

    os._exit = _exit
