"""Warm parents that are forked: those that never get through their fork are ended.

A fork copies one thread, and every lock as it was. If another thread of the trainer, in C and
without the interpreter's lock, holds a lock that CPython takes in the child before any Python runs
(it does in 3.11: gloo's threads as they enter Python), the child waits for ever in os.fork().
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import time
from typing import Any

_PATIENCE_S = 10.0
UNKNOWN = 256  # in place of the exit status of a process

starting: list[Any] = []  # those whose warm parent is being forked: it has everything as it is
_through: dict[int, int] = {}  # by the process object: where the child says that it has come


class Start:
    """The start of a process, and whether it has got through its fork."""

    def __init__(self, process: Any, context: Any, owner: Any, attempt: int = 0) -> None:
        """Starts it.

        Args:
            process: Of the multiprocessing context; its target calls came_through() first.
            context: That one.
            owner: Whose process it is, for `starting`.
            attempt: How many before it have not been of use: this one gets more time.
        """
        self.process = process
        self._patience_s = _PATIENCE_S * (1 + attempt)
        self._pipe = theirs = -1
        self._forks = getattr(context, "get_start_method", str)() == "fork"
        if self._forks:
            self._pipe, theirs = os.pipe()
            _through[id(process)] = theirs
        starting.append(owner)
        try:
            process.start()
        except BaseException:
            self._close()
            raise
        finally:
            starting.remove(owner)
            if theirs >= 0:
                del _through[id(process)]
                os.close(theirs)
        self._began = time.monotonic()

    def has_ended(self) -> bool:
        """Also where nobody learns how: this process ignores SIGCHLD, or a handler of its own waits
        for all children. Then the exit status is UNKNOWN, and not for ever None."""
        if self.process.exitcode is None and self._forks:
            try:
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:
                self.process._popen.returncode = UNKNOWN
        return self.process.exitcode is not None

    def wake(self) -> None:
        """Has it look again at what is asked of its workers; only one that expects it.

        Where it cannot be told, it looks by itself after a second.
        """
        if not self.has_ended():
            with contextlib.suppress(OSError, AttributeError):
                self.process._popen._send_signal(signal.SIGUSR1)

    def end(self, timeout_s: float) -> bool:
        """Ends it, by force after timeout_s. True: it had time for what it does at its end."""
        if not self.has_ended() and timeout_s > 0:
            self.process.terminate()
            self._await(timeout_s)
        if not self.has_ended():
            self.process.kill()
        self.process.join()
        # Whom the signal itself has ended had not begun.
        return self.process.exitcode in (0, -signal.SIGTERM)

    def _await(self, timeout_s: float) -> None:
        # Not by what join() waits for: others that it has forked may have that, too.
        try:
            ends = os.pidfd_open(self.process.pid)
        except OSError:
            return
        try:
            waits = select.poll()
            waits.register(ends, select.POLLIN)
            waits.poll(1000 * timeout_s)
        finally:
            os.close(ends)

    def end_if_stuck(self) -> bool:
        """Kills it if it had time enough to get through and has not."""
        if self._pipe < 0:
            return False
        waits = select.poll()
        waits.register(self._pipe, select.POLLIN)
        if waits.poll(0):
            self._close()
        elif time.monotonic() - self._began > self._patience_s:
            self._close()
            self.process.kill()
            return True
        return False

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def __del__(self) -> None:
        self._close()


def came_through() -> None:
    """The first thing that a process does which was started so."""
    own = _through.pop(id(multiprocessing.current_process()), -1)
    if own >= 0:
        with contextlib.suppress(OSError):  # nobody waits for it any more
            os.write(own, b"1")
        os.close(own)
    for other in _through.values():  # of threads that started one at the same moment
        os.close(other)
    _through.clear()
