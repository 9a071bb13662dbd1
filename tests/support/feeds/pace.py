"""How long a trainer of a test takes for a batch."""

from __future__ import annotations

import time
from pathlib import Path

_MORE_EACH_TIME = 1.025
_LONGEST_S = 1.0


class Pace:
    """The work that each batch takes: more and more, until somebody waits for the end.

    So a feed does not end while a test still does things to it, however long a slow machine takes
    for them.
    """

    def __init__(self, pause_s: float, hurry: Path | None) -> None:
        """
        Args:
            pause_s: For the first batch.
            hurry: Once this file is there, all take as long as the first. None: they always do.
        """
        self._pause_s = self._first_s = pause_s
        self._hurry = hurry

    def _in_a_hurry(self) -> bool:
        return self._hurry is None or self._hurry.exists()

    def work(self) -> None:
        """Of one batch: it passes time, as a model's step does, and waits for nothing."""
        end = time.monotonic() + self._pause_s
        while (left := end - time.monotonic()) > 0:
            if self._in_a_hurry():
                self._pause_s = self._first_s
                return time.sleep(min(left, self._first_s))
            time.sleep(min(left, 0.05))
        if not self._in_a_hurry():
            self._pause_s = max(self._first_s, min(_LONGEST_S, self._pause_s * _MORE_EACH_TIME))
