"""How a training loop gets on: rate, time spent waiting for the feed, and what limits it."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Generic, TextIO, TypeVar

from .errors import InvalidRequest, RingfeedError
from .feed import Feed

_Item = TypeVar("_Item")
# A bar is drawn at most so often, in seconds: what it says is asked from the supervisor.
_DRAW_S = 1.0


def progress(
    loader: Iterable[_Item],
    *,
    description: str = "",
    total: int | None = None,
    every_s: float = 10.0,
    run: Any = None,
    file: TextIO | None = None,
) -> Progress[_Item]:
    """Wrap the loop over a feed, a loader or any iterable, and show how it gets on.

        for batch in ringfeed.progress(loader):
            step(batch)

    Shows batches per second, the share of the time in which the loop waited for the next batch, the
    epoch, and what limits the feed (``Feed.why()``). On a terminal this is a bar, if tqdm is
    installed; elsewhere it is a line of JSON every ``every_s`` seconds and one at the end.

    Args:
        loader: What the loop reads: a Feed, a FeedLoader, a DataLoader, or any iterable.
        description: Words in front.
        total: Batches of the whole loop; None: ``len(loader)``, if it has one.
        every_s: Seconds between two lines, and between two points in ``run``.
        run: Also sends the numbers there: a Weights & Biases run (anything with ``log(values,
            step=)``) or a TensorBoard writer (``add_scalar(name, value, step)``).
        file: Where lines or bar go; None: standard error.
    Returns:
        An iterable with the length of the loader and its batches, for one loop.
    Raises:
        InvalidRequest: ``run`` is neither, or ``every_s`` is no positive number.
    """
    return Progress(loader, description, total, every_s, run, file)


class Progress(Generic[_Item]):
    """See progress().

    Attributes:
        batches: Batches so far.
        waited_s: Seconds that the loop has waited for them.
    """

    def __init__(
        self,
        loader: Iterable[_Item],
        description: str,
        total: int | None,
        every_s: float,
        run: Any,
        file: TextIO | None,
    ) -> None:
        if not (every_s > 0 and math.isfinite(every_s)):
            raise InvalidRequest(f"progress: every_s={every_s}: must be a positive number")
        if run is not None and not hasattr(run, "log") and not hasattr(run, "add_scalar"):
            raise InvalidRequest(
                f"progress: run is a {type(run).__name__}: give a Weights & Biases run, which has "
                "log(), or a TensorBoard writer, which has add_scalar()"
            )
        self._loader = loader
        self._description = description
        self._total = total
        self._every_s = every_s
        self._run = run
        self._file = sys.stderr if file is None else file
        self.batches = 0
        self.waited_s = 0.0
        self._began = self._said = self._drawn = 0.0  # time.monotonic()

    def __len__(self) -> int:
        if self._total is not None:
            return self._total
        if not isinstance(self._loader, Sized):
            raise TypeError(f"a {type(self._loader).__name__} has no length: give total")
        return len(self._loader)

    def __iter__(self) -> Iterator[_Item]:
        self.batches, self.waited_s = 0, 0.0
        bar = self._bar()
        self._began = self._said = self._drawn = time.monotonic()
        source = iter(self._loader)
        try:
            while True:
                try:
                    # Without a name, so that a loop holds only what its body holds.
                    yield self._take(source, bar)
                except StopIteration:
                    break
        finally:
            self._say(time.monotonic(), bar is None)
            if bar is not None:
                bar.close()

    def _take(self, source: Iterator[_Item], bar: Any) -> _Item:
        asked = time.monotonic()
        item = next(source)
        now = time.monotonic()
        self.waited_s += now - asked
        self.batches += 1
        if bar is not None:
            bar.update()
            if now - self._drawn >= _DRAW_S:
                self._drawn = now
                bar.set_postfix_str(_words(self._numbers(now)))
        if now - self._said >= self._every_s:
            self._say(now, bar is None)
        return item

    def _bar(self) -> Any:
        """A bar of tqdm; None: there is no terminal, or no tqdm."""
        if not self._file.isatty() or importlib.util.find_spec("tqdm") is None:
            return None
        import tqdm

        try:
            total: int | None = len(self)
        except TypeError:
            total = None
        return tqdm.tqdm(total=total, desc=self._description or None, unit="batch", file=self._file)

    def _numbers(self, now: float) -> dict[str, Any]:
        seconds = now - self._began
        numbers: dict[str, Any] = {
            "batches": self.batches,
            "batches_per_s": round(self.batches / seconds, 3) if seconds > 0 else 0.0,
            "waiting_share": round(min(1.0, self.waited_s / seconds), 4) if seconds > 0 else 0.0,
        }
        try:
            numbers["total"] = len(self)
        except TypeError:
            pass
        epoch = getattr(self._loader, "epoch", None)
        if isinstance(epoch, int):
            numbers["epoch"] = epoch
        limit = self._limit()
        if limit:
            numbers["limit"] = limit
        return numbers

    def _limit(self) -> str:
        """What limits the feed; "" if nobody says."""
        loader = self._loader
        feed = loader if isinstance(loader, Feed) else getattr(loader, "feed", loader)
        try:
            why = feed.why() if hasattr(feed, "why") else []
        except RingfeedError:
            return ""  # no supervisor is there to say so
        return "; ".join(found.sentence for found in why)

    def _say(self, now: float, lines: bool) -> None:
        self._said = now
        numbers = self._numbers(now)
        if lines:
            first = {"what": self._description} if self._description else {}
            print(json.dumps({**first, **numbers}), file=self._file, flush=True)
        if self._run is None:
            return
        values = {
            f"feed/{name}": value for name, value in numbers.items() if not isinstance(value, str)
        }
        if hasattr(self._run, "log"):
            self._run.log(values, step=self.batches)
        else:
            for name, value in values.items():
                self._run.add_scalar(name, value, self.batches)


def _words(numbers: dict[str, Any]) -> str:
    words = [f"waits {100 * numbers['waiting_share']:.0f} %"]
    if "epoch" in numbers:
        words.insert(0, f"epoch {numbers['epoch']}")
    if "limit" in numbers:
        words.append(numbers["limit"])
    return ", ".join(words)
