"""A program at a terminal of its own, which a test types into."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE_S = 60.0  # a test that needs it has failed


class Terminal:
    """A program whose standard streams and controlling terminal are a pseudo terminal.

    A context manager, which ends what still runs.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str]
    ) -> None:
        self.said = ""
        self._read = 0  # of it, by expect()
        self._status: int | None = None
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(directory)
                os.execvpe(command[0], list(command), dict(environment))
            finally:
                os._exit(127)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def expect(self, pattern: str) -> re.Match[str]:
        """Reads until this comes, behind what was expected last."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = re.search(pattern, self.said[self._read :])
            if found:
                self._read += found.end()
                return found
            assert time.monotonic() < deadline, f"no {pattern!r} in\n{self.said}"
            assert self._more(1.0), f"it ended without {pattern!r}:\n{self.said}"

    def type(self, text: str) -> None:
        """As typed: a line ends with a carriage return; "\\x03" is Ctrl-C."""
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """Reads to the end; the exit status, or minus the signal."""
        deadline = time.monotonic() + PATIENCE_S
        while self._more(1.0):
            assert time.monotonic() < deadline, f"it does not end:\n{self.said}"
        _, status = os.waitpid(self.pid, 0)
        self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def _more(self, timeout_s: float) -> bool:
        """False: there is nothing more to come."""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return True
        try:
            said = os.read(self._fd, 65536)
        except OSError:  # as Linux says that nobody is left at the other end
            return False
        self.said += said.decode(errors="replace").replace("\r\n", "\n")
        return bool(said)
