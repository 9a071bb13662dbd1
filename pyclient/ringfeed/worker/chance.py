"""The generators of ``random``, NumPy and PyTorch, which users' code uses as they are.

Each sample's draws follow from its seed. To seed a generator takes longer than to pass on a sample,
so a generator is left alone until something is seen to draw from it: then what was drawn is taken
back, by running the same samples again, and from then on it is seeded for every sample.
"""

from __future__ import annotations

import random
import sys
from typing import Any


class _Generator:
    used = False

    def present(self) -> bool:
        raise NotImplementedError

    def state(self) -> Any:
        raise NotImplementedError

    def same(self, state: Any) -> bool:
        raise NotImplementedError

    def seed(self, seed: int) -> None:
        raise NotImplementedError


class _Random(_Generator):
    def present(self) -> bool:
        return True

    def state(self) -> Any:
        return random.getstate()

    def same(self, state: Any) -> bool:
        return bool(random.getstate() == state)

    def seed(self, seed: int) -> None:
        random.seed(seed)


class _NumPy(_Generator):
    def present(self) -> bool:
        return "numpy.random" in sys.modules

    def state(self) -> Any:
        _, keys, place, has_gauss, cached = sys.modules["numpy.random"].get_state()
        return keys.tobytes(), place, has_gauss, cached

    def same(self, state: Any) -> bool:
        return bool(self.state() == state)

    def seed(self, seed: int) -> None:
        sys.modules["numpy.random"].seed(seed & 0xFFFFFFFF)


class _Torch(_Generator):
    def present(self) -> bool:
        return hasattr(sys.modules.get("torch"), "get_rng_state")

    def state(self) -> Any:
        return sys.modules["torch"].get_rng_state()

    def same(self, state: Any) -> bool:
        torch = sys.modules["torch"]
        return bool(torch.equal(torch.get_rng_state(), state))

    def seed(self, seed: int) -> None:
        sys.modules["torch"].manual_seed(seed)


class Generators:
    """All that there are in this process."""

    def __init__(self, key: int) -> None:
        self._all = (_Random(), _NumPy(), _Torch())
        self._key = key
        # What a class draws when it is made is the same in every process.
        self._start()

    def _start(self) -> None:
        self._states = []
        for generator in self._all:
            if generator.present() and not generator.used:
                generator.seed(self._key)
                self._states.append((generator, generator.state()))

    def restart(self, key: int) -> None:
        """What is drawn now follows from the key."""
        for generator in self._all:
            if generator.present():
                generator.seed(key)

    def mark(self) -> None:
        """From here on drawn_since_mark() looks."""
        self._marked = [(one, one.state()) for one in self._all if one.present()]

    def drawn_since_mark(self) -> bool:
        """Has anything been drawn? Of a library that has come meanwhile nobody knows."""
        return not all(generator.same(state) for generator, state in self._marked)

    @property
    def present(self) -> int:
        """How many there are."""
        return sum(generator.present() for generator in self._all)

    def watch(self) -> None:
        """From here on what is drawn is drawn for samples."""
        self._states = [
            (generator, generator.state())
            for generator in self._all
            if generator.present() and not generator.used
        ]
        self._used = [generator for generator in self._all if generator.used]

    @property
    def used(self) -> bool:
        """Is any of them seeded for each sample?"""
        return bool(self._used)

    def begin(self, sample: Any) -> None:
        """What is drawn now is drawn for this sample."""
        for generator in self._used:
            generator.seed(sample.seed)

    def drawn(self) -> bool:
        """Has anything been drawn from one that was not seeded? From now on it is."""
        found = False
        for generator, state in self._states:
            if not generator.same(state):
                generator.used = found = True
        # A library that has been imported meanwhile drew as it liked.
        found = found or len(self._states) + len(self._used) != self.present
        if found:
            for generator in self._all:
                if generator.present() and not generator.used:
                    generator.seed(self._key)
            self.watch()
        return found
