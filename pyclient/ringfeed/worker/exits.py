"""Says where a stage's code ends its process."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from typing import NoReturn


def say(why: str) -> None:
    """A line on standard error, and below it where this thread is.

    Nobody may be there to read it: between a supervisor's death and the next one the pipe has no
    other end. Then the words are lost, and nothing else.
    """
    with contextlib.suppress(OSError):
        os.write(2, f"{why}\n".encode())
    faulthandler.dump_traceback(2, all_threads=False)


def tell() -> None:
    """From now on ``os._exit`` of this process first says on standard error who called it.

    It ends a process without a trace, so a stage that calls it dies for no visible reason.
    Processes that the stage forks end silently, as they do elsewhere.
    """
    leave = os._exit
    process = os.getpid()

    def _exit(status: int) -> NoReturn:
        if os.getpid() == process:
            say(f"os._exit({status}) was called:")
        leave(status)

    os._exit = _exit
