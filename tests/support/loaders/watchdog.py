"""Nobody waits while nobody works: a process that looks at all feeds below a directory.

`python watchdog.py PID DIRECTORY REPORT LIMIT`: when a member of a feed there has waited for LIMIT seconds in which
every worker slept and nothing moved, it writes what everybody does into the file REPORT and sends SIGNAL to PID. It
ends with that process. No thread and no descriptor of it is in the process whose tests it watches, which may fork.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringfeed._core import control, standstill
from ringfeed.errors import RingfeedError

SIGNAL = signal.SIGRTMIN + 7
LIMIT_S = 30.0
_PAUSE_MS_MAX = 1000
_DEPTH_MAX = 6


class StandsStill(AssertionError):
    """A trainer waits, and nobody works."""


@contextlib.contextmanager
def watching(directory: str, report: Path, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Raises StandsStill in the main thread, wherever that is, when a feed below a directory stands still."""

    def found(*_: Any) -> None:
        with contextlib.suppress(FileNotFoundError):  # of another one, with another limit
            text = report.read_text()
            report.unlink()
            raise StandsStill(text)

    before = signal.signal(SIGNAL, found)
    pid = os.getpid()
    # A grandchild, which is nobody's here.
    program = [sys.executable, __file__, str(pid), directory, str(report), str(limit_s)]
    nowhere = subprocess.DEVNULL
    subprocess.run(
        program, check=True, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
    )
    try:
        yield
    finally:
        # It ends with the file that it has to write, or with this process.
        report.with_suffix(".over").touch()
        signal.signal(SIGNAL, signal.SIG_IGN)
        if callable(before):
            signal.signal(SIGNAL, before)


class _Feed:
    """What was seen of a feed."""

    def __init__(self) -> None:
        self.before: control.Standing | None = None
        self.since = 0.0

    def look(self, socket: Path) -> float:
        """For how long it has stood still, in seconds."""
        now = time.monotonic()
        before, self.before = self.before, None
        try:
            seen = self.before = control.standing(socket)
        except (RingfeedError, ValueError):
            return 0.0
        if before is None or standstill.moved(seen, before) or not _waits_in_vain(seen, before):
            self.since = now
        return now - self.since


def _waits_in_vain(seen: control.Standing, before: control.Standing) -> bool:
    somebody = any(new > old for new, old in zip(seen.waited_ns, before.waited_ns))
    # A worker that is asked for nothing has no process.
    sleep = standstill.all_sleep(lane for lane in seen.lanes if lane.pid)
    return somebody and sleep and not standstill.waits(seen, before)


def _sockets(directory: str) -> Iterator[Path]:
    for at, below, names in os.walk(directory):
        if at.count("/") - directory.count("/") >= _DEPTH_MAX:
            below.clear()
        yield from (Path(at, name) for name in names if name.endswith(".sock"))


def _watch(pid: int, directory: str, report: Path, limit_s: float) -> None:
    owner = os.pidfd_open(pid)
    feeds: dict[Path, _Feed] = {}
    while not select.select([owner], [], [], min(limit_s / 8, _PAUSE_MS_MAX / 1000))[0]:
        if report.with_suffix(".over").exists():
            return
        there = set(_sockets(directory))
        feeds = {path: feeds.get(path, _Feed()) for path in there}
        for path, feed in feeds.items():
            stood_s = feed.look(path)
            if stood_s >= limit_s and feed.before is not None:
                feed.since = time.monotonic()
                aside = report.with_suffix(".part")
                aside.write_text(
                    f"{path}: for {stood_s:.0f} s a trainer has waited while nobody worked: "
                    f"{standstill.told(feed.before)}"
                )
                aside.rename(report)
                signal.pidfd_send_signal(owner, SIGNAL)


if __name__ == "__main__":
    if os.fork() == 0:
        _watch(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))
