"""States of which nobody knows whether they are exact: ``dataset_state="verify"``.

What is kept is a state of some samples before, and the digest of those that have come since.
Whoever goes on from there has these come once more, and compares.
"""

from __future__ import annotations

import pickle
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from . import _generators
from ._samplers import count, mapping
from ..worker.exact import digest

_COMPARED = 32  # samples behind a state, at least, as soon as an epoch has so many
_SHARE = 50  # one of so many nanoseconds may be spent on states that nobody has asked for


class Base:
    """A state, and what has come behind it."""

    def __init__(self, plain: dict[str, Any], trail: int = 0) -> None:
        """`plain`: dataset, iterator, fetched, samples and generators, as of then."""
        self.plain = plain
        self.trail = trail
        self.given = 0  # samples


class Watched:
    """An iterator of samples, which notes what it gives."""

    def __init__(self, samples: Iterator[Any], first: Any, before: bytes | None) -> None:
        """
        Args:
            first: The dataset's state at the beginning of the epoch; None: it has none.
            before: The generators then.
        """
        self.samples = samples
        self.whole = 0  # the digest of all that have come in the epoch
        self.bases: list[Base] = []
        self.is_compared = False  # with what had come behind the only base
        self._first = pickle.dumps(first)
        self._before = before
        self._taken, self._cost = time.monotonic(), 0.0  # the last base: when, and its seconds

    def __iter__(self) -> Watched:
        return self

    def __next__(self) -> Any:
        sample = next(self.samples)
        own = b"%d" % digest(sample)
        self.whole = zlib.crc32(own, self.whole)
        for base in self.bases:
            base.given += 1
            base.trail = zlib.crc32(own, base.trail)
        return sample

    def take(self, here: Callable[[], dict[str, Any]], is_asked: bool) -> None:
        """Another state, as of now, if enough has come behind the last one.

        `is_asked`: somebody wants one, whatever it costs.
        """
        if self.is_compared or self.bases[-1].given < _COMPARED:
            return
        began = time.monotonic()
        if is_asked or began - self._taken >= _SHARE * self._cost:
            self.add(here())
            self._taken = time.monotonic()
            self._cost = self._taken - began

    def add(self, plain: dict[str, Any]) -> None:
        """A state, as of now: what it is made of may change."""
        self._forget()
        self.bases.append(Base(pickle.loads(pickle.dumps(plain))))

    def _forget(self) -> None:
        while len(self.bases) > 1 and self.bases[1].given >= _COMPARED:
            del self.bases[0]

    def behind(self) -> dict[str, Any]:
        """What a state is made of."""
        self._forget()
        base = self.bases[0]
        return {
            "base": base.plain,
            "trail": base.trail,
            "whole": self.whole,
            "first": pickle.loads(self._first),
            "before": self._before,
        }


def opened(behind: dict[str, Any] | None) -> dict[str, Any]:
    """As it lies in state_dict()."""
    if behind is None:
        return {}
    base = behind["base"]
    return {
        "behind": {
            **behind,
            "before": _generators.text(behind["before"]),
            "base": {**base, "generators": _generators.text(base["generators"])},
        }
    }


def closed(state: dict[str, Any]) -> dict[str, Any] | None:
    """Back from there; None: it is another kind of state.

    Raises:
        ValueError: It is damaged.
    """
    if state.get("behind") is None:
        return None
    behind = mapping(state["behind"], "behind")
    base = mapping(behind.get("base"), "base")
    if behind.get("before") is None or base.get("generators") is None:
        raise ValueError("the state is damaged: behind lacks the generators")
    return {
        "base": {
            "dataset": base.get("dataset"),
            "iterator": base.get("iterator"),
            "fetched": count(base, "fetched"),
            "samples": count(base, "samples"),
            "generators": _generators.untext(base.get("generators")),
        },
        "trail": count(behind, "trail"),
        "whole": count(behind, "whole"),
        "first": behind.get("first"),
        "before": _generators.untext(behind.get("before")),
    }
