"""Sees that a trainer waits for a batch while nobody works, which would be for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from . import control
from ..errors import RingfeedError

_LOOKS = 8  # in the time after which a wait is given up
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 10.0
_GAP_S = 1.0  # between two calls: the loop was elsewhere, or this process was stopped
_PATH_BYTES = 100  # of a process's name


class Standstill:
    """Watches the waits of one trainer.

    Nobody works if every worker lives, is not stopped, and sleeps, in all of some looks between
    which nothing has moved. One that is at a sample, however long that takes, does not sleep
    (stall_timeout ends it), and one that starts or is to be replaced is no reason either; nor is a
    feed whose workers wait for another trainer, which has batches and does not wait itself.
    """

    def __init__(
        self,
        feed: Path,
        limit_s: float,
        begun: Callable[[int, int], bool],
        asked: Callable[[int], bool] = lambda number: True,
    ) -> None:
        """
        Args:
            feed: Its control socket.
            limit_s: After so many seconds a wait is given up; 0: never.
            begun: Is a worker, by its number, that process, and ready for requests?
            asked: Has anything been asked of that worker? If not, it need not be there.
        """
        self._begun = begun
        self._asked = asked
        self._feed = feed
        self._limit_s = limit_s
        self._pause_s = min(max(limit_s / _LOOKS, _PAUSE_S_MIN), _PAUSE_S_MAX)
        self._called = self._look_at = self._since = 0.0
        self._before: control.Standing | None = None

    def look(self) -> str | None:
        """Called again and again in a wait. What everybody does, if this has to be given up."""
        now = time.monotonic()
        if now - self._called > _GAP_S:
            self._before = None
            self._look_at = now + self._pause_s
        self._called = now
        if now < self._look_at or self._limit_s <= 0:
            return None
        self._look_at = now + self._pause_s
        before = self._before
        try:
            seen = control.standing(self._feed)
        except (RingfeedError, ValueError):  # its supervisor is being replaced
            self._before = None
            return None
        self._before = seen
        needed = [one for one in enumerate(seen.lanes) if self._asked(one[0])]
        sleeps = all_sleep(lane for _, lane in needed) and all(
            lane.state == "ended" or self._begun(number, lane.pid) for number, lane in needed
        )
        if before is None or moved(seen, before) or not sleeps or waits(seen, before):
            self._since = now
        elif now - self._since >= self._limit_s:
            return f"for {now - self._since:.1f} s nobody has worked: {told(seen)}"
        return None


def moved(seen: control.Standing, before: control.Standing) -> bool:
    """Has anything come or been taken between two looks?"""
    return seen._replace(waited_ns=()) != before._replace(waited_ns=())


def waits(seen: control.Standing, before: control.Standing) -> bool:
    """Do workers wait for a trainer that is at work with what it has, or for one that comes yet?"""
    lags = {name: lag for name, lag in seen.lags if lag}
    there = {one.group for one in seen.members}
    busy = [
        one.group in lags and now_ns == then_ns
        for one, now_ns, then_ns in zip(seen.members, seen.waited_ns, before.waited_ns)
    ]
    return any(busy) or any(name not in there for name in lags)


def all_sleep(lanes: Iterable[control.Lane]) -> bool:
    """Do all workers of a feed sleep, or have they ended?"""
    # One that was woken and finds no processor free is "R", a stopped one "T".
    states = [lane.state == "ended" or lane.sleeps and _doing(lane.pid) == "S" for lane in lanes]
    return bool(states) and all(states)


def _doing(pid: int) -> str:
    """The letter of the state of a process; "": there is none, or it is not seen from here."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def told(seen: control.Standing) -> str:
    """What everybody does, for people."""
    lanes = ", ".join(
        f"{lane.name} (process {lane.pid}, {_doing(lane.pid) or 'gone'}) is {lane.state} "
        f"after {lane.records_out} batches"
        for lane in seen.lanes
    )
    members = ", ".join(
        f"process {one.pid} ({_name_of(one.pid)}) has taken {one.taken} and given back {one.done}"
        for one in seen.members
    )
    lags = ", ".join(f"{name} lacks {lag}" for name, lag in seen.lags)
    return (
        f"{seen.published} batches are published; {lanes or 'there is no worker'}; "
        f"{members or 'nobody is attached'}; of those that are published {lags or 'none is due'}"
    )


def _name_of(pid: int) -> str:
    if pid == os.getpid():
        return "this one"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (OSError, ValueError):
        return "not seen from here"
    return command[:_PATH_BYTES].strip()
