"""Whether a generator has been used is seen without asking for its state."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from ringfeed.torch import _generators  # noqa: E402

USES: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "getrandbits": lambda: random.getrandbits(8),
    "shuffle": lambda: random.shuffle([1, 2, 3]),
    "seed": lambda: random.seed(3),
    "rand": numpy.random.rand,
    "numpy bytes": lambda: numpy.random.bytes(2),
    "numpy seed": lambda: numpy.random.seed(1),
    "torch": lambda: torch.rand(1),
    "permutation": lambda: torch.randperm(4),
    "manual_seed": lambda: torch.manual_seed(9),
}


def settled() -> tuple[Any, ...]:
    numpy.random.seed(7)
    _generators.capture()
    seen = _generators.glance()
    assert seen is not None and seen == _generators.glance()
    return seen


@pytest.mark.parametrize("use", USES)
def test_each_use_is_seen(use: str) -> None:
    before = settled()
    USES[use]()
    assert _generators.glance() != before


def test_the_normal_number_to_spare_is_seen() -> None:
    before = settled()
    random.gauss(0, 1)
    first = _generators.glance()
    random.gauss(0, 1)  # the one to spare
    assert len({repr(one) for one in (before, first, _generators.glance())}) == 3


def test_numpys_number_to_spare_cannot_be_seen() -> None:
    settled()
    numpy.random.randn()
    _generators.capture()
    assert _generators.glance() is None
    numpy.random.randn()
    _generators.capture()
    assert _generators.glance() is not None


def test_what_is_set_again_is_the_same_again() -> None:
    before, states = settled(), _generators.capture()
    random.random(), numpy.random.rand(), torch.rand(1)
    _generators.restore(states)
    _generators.capture()
    assert _generators.glance() == before
