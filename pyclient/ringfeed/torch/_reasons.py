"""What limits a loader: the dataset, collate, or the loop itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

_SLOWEST = 5
_FEW_PERCENT = 5.0


@dataclass
class Reasons:
    """Where the time of one iterator goes."""

    workers: int
    began_ns: int = 0  # when the loop asked for the first batch
    ready_ns: int = 0  # when it got it
    last_ns: int = 0  # when it got the last one
    waited_ns: int = 0  # since the first batch
    batches: int = 0
    samples: int = 0
    fetch_ns: int = 0
    collate_ns: int = 0
    slowest: list[tuple[int, str]] = field(default_factory=list)  # nanoseconds, index

    def waits(self, since_ns: int) -> None:
        """The loop has waited since then (time.monotonic_ns()) for what it has now."""
        now = time.monotonic_ns()
        if self.ready_ns:
            self.waited_ns += now - since_ns
        else:
            self.began_ns, self.ready_ns = since_ns, now
        self.last_ns = now

    def add(self, samples: int, fetch_ns: int, collate_ns: int) -> None:
        """A batch has come that took so long."""
        self.batches += 1
        self.samples += samples
        self.fetch_ns += fetch_ns
        self.collate_ns += collate_ns

    def saw(self, nanoseconds: int, index: str) -> None:
        """A sample took so long."""
        if len(self.slowest) == _SLOWEST and nanoseconds <= self.slowest[-1][0]:
            return
        known = [one for one in self.slowest if one[1] != index]
        known += [max([(nanoseconds, index)] + [one for one in self.slowest if one[1] == index])]
        self.slowest = sorted(known, reverse=True)[:_SLOWEST]

    def text(self) -> str:
        """A few sentences for people."""
        if self.batches < 2:
            return "It is too early to say: fewer than two batches have come."
        passed = max(1, self.last_ns - self.ready_ns)
        waits = 100 * self.waited_ns / passed
        busy = 100 * (self.fetch_ns + self.collate_ns) / (self.workers * passed)
        fetch = self.fetch_ns / 1e6 / max(1, self.samples)
        collate = self.collate_ns / 1e6 / self.batches
        if waits < _FEW_PERCENT:
            what = "The loop itself limits: batches wait for it. Fewer workers would do."
        elif self.fetch_ns >= self.collate_ns:
            what = "The dataset limits: make its samples faster, or raise num_workers."
        else:
            what = "collate_fn limits: make it faster, or raise num_workers."
        lines = [
            what,
            f"The loop waits for batches in {waits:.0f} % of its time.",
            f"A sample takes {fetch:.3g} ms in the dataset, a batch {collate:.3g} ms in "
            f"collate_fn; {self.workers} workers are busy in {min(busy, 100):.0f} % of their time.",
        ]
        if self.slowest:
            seen = ", ".join(f"{index} ({ns / 1e6:.3g} ms)" for ns, index in self.slowest)
            lines.append(f"The slowest samples that were timed: index {seen}.")
        return "\n".join(lines)
