"""Drawn datasets and arguments, beside PyTorch's loader: the same batches, bit for bit, the same errors and warnings,
and the trainer's generators in the same state.

RINGFEED_DRAWN_ROUNDS (default 25) says how many of each of its eight parts are drawn, RINGFEED_DRAWN_SEED from which
number on.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from tests.support.loaders.drawn import Plan, drawn  # noqa: E402
from tests.support.loaders.own_data import (  # noqa: E402
    Reference,
    events,
    first_line,
    frameless,
    same,
    seed_all,
    states,
)

ROUNDS = int(os.environ.get("RINGFEED_DRAWN_ROUNDS", "25"))
SEED = int(os.environ.get("RINGFEED_DRAWN_SEED", "1"))
PARTS = 8


class _Left:
    """A loader whose iterators are left after so many batches; None: never."""

    def __init__(self, loader: Any, takes: int | None) -> None:
        self.loader, self.takes = loader, takes

    def __iter__(self) -> Any:
        iterator = iter(self.loader)
        if type(self.loader) is Reference:
            iterator = _Patient(iterator)
        return itertools.islice(iterator, self.takes)


class _Hangs(BaseException):
    """A worker of PyTorch's never got through its fork."""


class _Patient:
    """An iterator of PyTorch's loader. This process has threads, also of other tests, and a fork copies their locks as
    they are: ringfeed's loader starts a process that hangs in that again, PyTorch's waits for ever.
    """

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.iterator)
        except RuntimeError as error:
            if "timed out after" in str(error):
                raise _Hangs from error
            raise


def _reference(plan: Plan, **more: Any) -> dict[str, Any]:
    """All that can be seen of PyTorch's."""
    for _ in range(2):
        with contextlib.suppress(_Hangs):
            return _run(plan, Reference, timeout=90, **more)
    return _run(plan, Reference, **more)


def _run(plan: Plan, loader_class: Any, **more: Any) -> dict[str, Any]:
    """All that can be seen of a loader."""
    seed_all(plan.seed)
    seen: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            loader = plan.loader(loader_class, **more)
        except Exception as error:
            return {"refused": (type(error), first_line(frameless(error)))}
        try:
            seen["length"] = len(loader)
        except TypeError as error:
            seen["length"] = first_line(frameless(error))
        given = _Left(loader, plan.takes)
        seen["epochs"] = [events(given, limit=1000) for _ in range(plan.epochs)]
        seen["generator"] = None if loader.generator is None else loader.generator.get_state()
        del loader, given
        gc.collect()
    seen["warnings"] = sorted(
        {(one.category.__name__, first_line(one.message)) for one in said}  # type: ignore[arg-type]
    )
    seen["states"] = states()
    return seen


def _sorted(seen: list[Any]) -> list[Any]:
    """Whoever made them."""
    some = r"process \d+"
    nameless = [
        (
            (one[0], re.sub(some, "process", one[1]))
            if isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], type)
            else one
        )
        for one in seen
    ]
    return sorted(nameless, key=repr)


@pytest.mark.parametrize("part", range(PARTS))
def test_as_pytorchs(Ours: Any, part: int) -> None:
    for seed in range(SEED + part * ROUNDS, SEED + (part + 1) * ROUNDS):
        plan = drawn(seed)
        want, got = _reference(plan), _run(plan, Ours)
        for name in want:
            same(got[name], want[name], f"{plan}: {name}")


@pytest.mark.parametrize("part", range(2))
def test_as_pytorchs_where_batches_come_as_they_are_ready(Ours: Any, part: int) -> None:
    """In which order is nobody's promise: with in_order=False each comes once."""
    for seed in range(SEED + part * ROUNDS, SEED + (part + 1) * ROUNDS):
        plan = drawn(seed)
        # Which worker makes a batch depends on who is ready.
        plan.takes, plan.errors, plan.draws = None, (), False
        want, got = _reference(plan, in_order=False), _run(plan, Ours, in_order=False)
        assert ("refused" in got) == ("refused" in want), f"{plan}"
        if "refused" in want:
            continue
        for mine, theirs in zip(got["epochs"], want["epochs"], strict=True):
            same(_sorted(mine), _sorted(theirs), f"{plan}")
