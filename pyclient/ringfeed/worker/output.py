"""What a stage prints comes out as lines of the worker's log."""

from __future__ import annotations

import io
import os
import time


class LogStream(io.TextIOBase):
    """Stands for ``sys.stdout`` and ``sys.stderr``: whole lines, with the time, stage and lane.

    The supervisor reads them from a pipe. If it does not, they are lost: no stage waits for it.
    """

    def __init__(self, fd: int, level: str, who: str) -> None:
        super().__init__()
        self._fd = fd
        self._level = level
        self.who = who
        self._open = ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def write(self, text: str) -> int:
        self._open += text
        *lines, self._open = self._open.split("\n")
        for line in lines:
            self._line(line)
        return len(text)

    def flush(self) -> None:
        if self._open:
            self._line(self._open)
            self._open = ""

    def _line(self, line: str) -> None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
        text = f"{stamp}.{int(now % 1 * 1000):03} {self._level} {self.who} | {line}\n"
        try:
            os.write(self._fd, text.encode("utf-8", "backslashreplace"))
        except OSError:
            pass
