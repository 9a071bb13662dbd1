"""A running feed seen from outside: who holds its memory, and how soon struck lanes are back."""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.feeds.feed_run import FeedRun, runs

# Of shm/include/ringfeed/shm/abi.h and lane_page.h, whose assertions hold them.
PAGE = 4096
GEOMETRY = 0x70  # of the control segment: [0] is the number of lanes
PID, INCARNATION, STATE, PROGRESS_NS, STEPS = 0x180, 0x184, 0x19C, 0x1A0, 0x400
FINISHED = 2


def segments_of(pid: int, feed: str) -> dict[str, str]:
    """The segments of the feed that the process holds, by name: where each can be opened."""
    found = {}
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            name = Path(os.readlink(entry.path).removesuffix(" (deleted)")).name
            name = name.removeprefix("memfd:")
            if name.startswith(f"{feed}_"):
                found[name] = entry.path
    except OSError:
        pass  # it has just ended, and holds nothing
    return found


@dataclass
class Return:
    """A stage group whose process was struck, until its lanes work again. Times in seconds."""

    group: str
    how: str
    pid: int
    lanes: list[int]
    struck_s: float
    steps: dict[int, int] = field(default_factory=dict)  # by lane, when it was dead
    died_s: float = 0.0  # 0: it has not yet
    attached_s: float = 0.0
    stepped_s: float = 0.0
    again: bool = False  # its successor was struck before it had done a step


class LaneWatch:
    """Reads the lanes' pages of a feed. `look()` often: things are timed when they are noticed.

    A first step is timed by the lane itself (`progress_ns`); if it has made more than one since the
    last look the later one is taken.
    """

    def __init__(self, run: FeedRun, holder: int) -> None:
        self.run = run
        held = segments_of(holder, run.feed)
        self.names = set(held)
        fd = os.open(held[f"{run.feed}_control"], os.O_RDONLY)
        try:
            self.memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self.lanes = range(self.word(GEOMETRY))
        self.away: dict[str, Return] = {}  # by group
        self.back: list[Return] = []
        self.missed = 0  # of whom that could not be told

    def word(self, offset: int) -> int:
        return int(struct.unpack_from("<I", self.memory, offset)[0])

    def lane(self, index: int, offset: int) -> int:
        return self.word(PAGE * (1 + index) + offset)

    def lane64(self, index: int, offset: int) -> int:
        return int(struct.unpack_from("<Q", self.memory, PAGE * (1 + index) + offset)[0])

    def lanes_of(self, pid: int) -> list[int]:
        return [lane for lane in self.lanes if self.lane(lane, PID) == pid]

    def finished(self, lane: int) -> bool:
        return self.lane(lane, STATE) == FINISHED

    def holds_everything(self, pid: int) -> bool:
        return self.names <= set(segments_of(pid, self.run.feed))

    def struck(self, group: str, pid: int, how: str) -> None:
        """The process is about to be sent what it dies of. One that has no lanes yet is no news."""
        if group in self.away:
            self.away[group].again = True
            return
        lanes = [lane for lane in self.lanes_of(pid) if not self.finished(lane)]
        if lanes:
            self.away[group] = Return(group, how, pid, lanes, time.monotonic())

    def look(self) -> None:
        for group, one in list(self.away.items()):
            if one.died_s == 0:
                if runs(one.pid):
                    continue
                one.died_s = time.monotonic()
                one.steps = {lane: self.lane64(lane, STEPS) for lane in one.lanes}
                if any(self.lane(lane, PID) != one.pid for lane in one.lanes):
                    # The look came too late to tell the last step of the dead from the first.
                    self.missed += 1
                    del self.away[group]
            elif one.attached_s == 0:
                if all(self.lane(lane, PID) != one.pid for lane in one.lanes):
                    one.attached_s = time.monotonic()
            else:
                # The count is stored before the time, so a time from before the death is not its.
                stepped = [
                    at
                    for lane, steps in one.steps.items()
                    if self.lane64(lane, STEPS) != steps
                    and (at := self.lane64(lane, PROGRESS_NS) / 1e9) > one.died_s
                ]
                if not stepped:
                    continue
                one.stepped_s = min(stepped)
                del self.away[group]
                self.back.append(one)


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else 0.0


def spread(values: list[float]) -> dict[str, float]:
    """Of times in seconds: how many, and p50, p99 and max in ms."""
    return {
        "count": len(values),
        "p50_ms": round(1000 * quantile(values, 0.5), 1),
        "p99_ms": round(1000 * quantile(values, 0.99), 1),
        "max_ms": round(1000 * max(values, default=0.0), 1),
    }
