"""What a worker leaves to its successor: a state, and what it was asked for since.

It lies in the lane's arena: the generation that it belongs to (8 bytes), and pickles one behind the
other: first, if there is a state, whether the end has been told to the trainer and the bytes of
``worker_state()``; then each request that has been done since, as ``(kind, request, condemned)``.
A successor begins with the state, or else as the first worker did, and does those once more, for
nobody. One None is what a worker leaves that nothing more is asked of. What is of another
generation means nothing.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

# A successor does at most so much work again, or so many times what the state costs.
_AGAIN_NS = 1_000_000_000
_AGAIN_COSTS = 50
# Requests since the state that are kept, unless it is itself larger.
_LOG_BYTES = 4 << 20
# A dataset that has never told its state is asked so often.
_TRIES = 8


class Successor:
    """When a state is due, and the bytes that are kept meanwhile."""

    def __init__(self, generation: int) -> None:
        self._head = struct.pack("<Q", generation)
        self.appends = False  # what was returned last goes behind what there is
        self._kept = False  # there is something of this generation
        self.is_over = False  # nothing more is asked
        self.has_state = False  # one that the dataset had a part in
        self._failed = 0
        self._cost_ns = 0
        self._spent_ns = 0
        self._state_bytes = 0
        self._log_bytes = 0

    def is_due(self, spent_ns: int) -> bool:
        """After so much work more: is it time for a state?"""
        self._spent_ns += spent_ns
        return self._spent_ns >= max(
            _AGAIN_NS, _AGAIN_COSTS * self._cost_ns
        ) or self._log_bytes >= max(_LOG_BYTES, self._state_bytes)

    def failed(self) -> bool:
        """There is no state to be had now. Is it tried again, as late as if there had been one?"""
        self._failed += 1
        self._spent_ns = 0
        self._state_bytes = max(self._state_bytes, 2 * self._log_bytes)
        return self.has_state or self._failed < _TRIES

    def state(self, state: bytes, told: bool, cost_ns: int) -> bytes:
        """What replaces all that is kept."""
        self._cost_ns = cost_ns
        self._spent_ns = self._log_bytes = 0
        self._state_bytes = len(state)
        return self._first((told, state))

    def over(self) -> bytes:
        """What replaces all that is kept, once nothing more is asked."""
        return self._first(None)

    def _first(self, entry: Any) -> bytes:
        self.appends, self._kept = False, True
        return self._head + pickle.dumps(entry, protocol=pickle.HIGHEST_PROTOCOL)

    def request(self, kind: int, request: Any, condemned: tuple[int, ...]) -> bytes:
        """What is appended for one that has been done."""
        whole = (kind, request, condemned)
        if self._kept:
            entry = pickle.dumps(whole, protocol=pickle.HIGHEST_PROTOCOL)
            self.appends = True
        else:
            entry = self._first(whole)
        self._log_bytes += len(entry)
        return entry

    def read(self, kept: bytes) -> tuple[tuple[bool, bytes] | None, list[tuple[int, Any, Any]]]:
        """The state, if there is one, and the requests since."""
        if not kept.startswith(self._head):
            return None, []
        self._kept = True
        source = io.BytesIO(kept)
        source.seek(len(self._head))
        entries: list[Any] = []
        while source.tell() < len(kept):
            entries.append(pickle.load(source))
        if entries == [None]:
            self.is_over = True
            return None, []
        state = entries.pop(0) if entries and len(entries[0]) == 2 else None
        self.has_state = state is not None
        return state, entries
