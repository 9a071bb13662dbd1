"""Says where a stage's code ends its process."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from typing import NoReturn

_log = 2


def say(why: str) -> None:
    """A line in the log, and below it where this thread is.

    Nobody may be there to read it: between a supervisor's death and the next one the pipe has no
    other end. Then the words are lost, and nothing else.
    """
    with contextlib.suppress(OSError):
        os.write(_log, f"{why}\n".encode())
    faulthandler.dump_traceback(_log, all_threads=False)


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
