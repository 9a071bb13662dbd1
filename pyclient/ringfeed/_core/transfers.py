"""Copies to a device that are under way, and what they read from."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Protocol


class Event(Protocol):
    """What a device's event can do (torch.cuda.Event)."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class Transfers:
    """Keeps the memory that a device still reads: its slot must not go back to the feed.

    Each entry is an event that the device reaches after a copy, and the arrays copied from. All
    methods may be called by any thread.
    """

    def __init__(self) -> None:
        self._entries: deque[tuple[Event, tuple[Any, ...]]] = deque()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, event: Event, sources: tuple[Any, ...]) -> None:
        """Keeps the sources until the event has come."""
        with self._lock:
            self._entries.append((event, sources))

    def forget_finished(self) -> None:
        """Lets go of what has been read."""
        if not self._entries or self._forked():
            return
        with self._lock:
            waiting = [entry for entry in self._entries if not entry[0].query()]
            finished = len(self._entries) - len(waiting)
            if finished:
                self._entries = deque(waiting)

    def wait_for_oldest(self) -> bool:
        """Waits for the oldest copy; False if none is under way."""
        if self._forked():
            return False
        with self._lock:
            if not self._entries:
                return False
            event, _ = self._entries[0]
        # Without the lock: others may add and forget meanwhile.
        event.synchronize()
        self.forget_finished()
        return True

    def wait(self) -> None:
        """Waits for all of them."""
        while self.wait_for_oldest():
            pass

    def __del__(self) -> None:
        # The arrays would go with this object while the device reads from them.
        self.wait()

    def _forked(self) -> bool:
        # A child has no part in its parent's device.
        return os.getpid() != self._pid
