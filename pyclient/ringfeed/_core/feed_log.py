"""What the log of a feed says that this process has started, passed on to Python's ``logging``."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable

_log = logging.getLogger("ringfeed")

# "time level process event values", or what a stage has printed: "time level process | text".
_LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+ (debug|info|warning|error) \S+ (\w+|\|)")
_LEVELS = {"debug": logging.DEBUG, "warning": logging.WARNING, "error": logging.ERROR}
_FAILURE_BYTES_MAX = 16384


class FeedLog:
    """Passes on the lines: warnings and errors as such, what happens once at the level INFO.

    Any thread may call its methods.
    """

    def __init__(self, read: Callable[[int], tuple[list[str], int]]) -> None:
        """`read`: the whole lines behind a place of the log, and the place behind them."""
        self._read = read
        self._at = 0
        self._has_begun = False
        self._failure: list[str] | None = None  # the lines of why the feed has failed
        self._failure_ends = False
        self._is_over = False
        self._passing = threading.Lock()

    def pass_on(self, on_event: Callable[[str, str], None] | None = None) -> None:
        """What has come since.

        Args:
            on_event: Called with the name of an event and its line, when that has been passed on.
        """
        if not self._passing.acquire(blocking=False):
            return  # another thread does it
        try:
            lines, self._at = self._read(self._at)
            for line in lines:
                event = self._pass(line)
                if event and on_event is not None:
                    on_event(event, line)
        finally:
            self._passing.release()

    @property
    def failure(self) -> str:
        """Why the feed has failed, in full: with the first problems, and tracebacks; "": it has
        not."""
        return "\n".join(self._failure or [])[:_FAILURE_BYTES_MAX]

    def _pass(self, line: str) -> str:
        """The name of the event; "": it is none."""
        level, event = _event_of(line)
        if not event:
            self._pass_words(line)
            return ""
        self._failure_ends = self._failure is not None
        self._has_begun = self._has_begun or event == "feed_started"
        if event != "feed_failed":  # it is raised
            _log.log(level, "%s", line)
        return event

    def _pass_words(self, line: str) -> None:
        """What is said to people, or printed by a process that dies."""
        if self._failure is None and re.match(r"feed '[^']*' has failed: ", line):
            self._failure = []
        if self._failure is not None and not self._failure_ends:
            self._failure.append(line)
            return
        # The totals of the end; what the feed waits for. Before it has begun: the memory table.
        self._is_over = self._is_over or re.match(r"feed \S+: \d+ batches in ", line) is not None
        if self._is_over or not self._has_begun:
            _log.debug("%s", line)
        elif re.match(r"\w+: (?!.*[Ee]rror)", line):
            _log.info("%s", line)
        else:
            _log.warning("%s", line)


def _event_of(line: str) -> tuple[int, str]:
    """Level and name; "": it is no event."""
    if line.startswith("{"):  # with log { format: JSON }
        try:
            fields = json.loads(line)
            level, event = fields["level"], fields["event"]
        except (ValueError, TypeError, KeyError):
            return 0, ""
        return _LEVELS.get(level, logging.INFO), str(event)
    found = _LINE.match(line)
    if found is None:
        return 0, ""
    return _LEVELS.get(found[1], logging.INFO), found[2]
