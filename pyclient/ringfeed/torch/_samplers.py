"""Walks over samplers: what ``iter(sampler)`` gives, and where the walk is, to go on from there.

``walk(sampler)`` hands out what iterating the sampler does: the same indices, the same draws from
the same generators in the same order. ``place()`` says where it is, in constant time, and
``walk(sampler, place)`` goes on there:

    SequentialSampler, DistributedSampler      from the count alone
    RandomSampler, SubsetRandomSampler,        from the generator's state before the draw: indices
    WeightedRandomSampler                      stay a tensor, Python's numbers as they go out
    BatchSampler over any of them              from the place of what it batches
    samplers with state_dict, load_state_dict  by these, of the sampler or of its iterator
    any other                                  run forward by count, with the generators' states
                                               that it began with

A subclass that brings its own ``__iter__`` is of the last two kinds.
"""

from __future__ import annotations

import collections
import copy
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, NamedTuple

import torch
import torch.utils.data
from torch.utils.data.dataloader import _InfiniteConstantSampler
from torch.utils.data.distributed import DistributedSampler

from . import _generators

logger = logging.getLogger(__name__)

# Indices that are made Python numbers at once: enough that the call of tolist() weighs nothing.
_WINDOW = 4096
# As many as PyTorch draws at once with replacement; the order follows from it.
_DRAWN_AT_ONCE = 32
# Of the trainer's time, states of a sampler take at most one part in so many.
_ASKING_COSTS = 50


def stateful(thing: Any) -> bool:
    """Has it ``state_dict()`` and ``load_state_dict()``?"""
    return callable(getattr(thing, "state_dict", None)) and callable(
        getattr(thing, "load_state_dict", None)
    )


def count(state: dict[str, Any], key: str, default: int | None = None) -> int:
    """A number of a state that counts something.

    Raises:
        ValueError: It is missing, or is none.
    """
    value = state.get(key, default)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"the state is damaged: {key} is {value!r:.40}, not a count")
    return int(value)


def mapping(value: Any, key: str) -> dict[str, Any]:
    """A part of a state that is a dictionary; None: an empty one.

    Raises:
        ValueError: It is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"the state is damaged: {key} is {value!r:.40}, not a dictionary")
    return value


class OwnState(dict[str, Any]):
    """A state that a walk of ours made, as against one of the user's.

    Generators' states in it are tensors that nobody changes; ``plain()`` makes them text.
    """

    def plain(self) -> dict[str, Any]:
        return {
            key: (
                value.plain()
                if isinstance(value, OwnState)
                else (
                    _generators.text(value)
                    if isinstance(value, (bytes, torch.Tensor)) and key in _STATES_OF_GENERATORS
                    else value
                )
            )
            for key, value in self.items()
        }


_STATES_OF_GENERATORS = ("generator", "before_iter", "before_next")


class Place(NamedTuple):
    """Where a walk is."""

    yielded: int  # indices, or batches of them, handed out so far
    sampler: Any = None  # what sampler.state_dict() gave, if it has that
    iterator: Any = None  # the walk's own state, or what the user's iterator gave
    behind: int = 0  # what was handed out since these two were given


class Walk(Iterator[Any]):
    """One pass over a sampler.

    ``yielded`` counts what has been handed out since the sampler's first, also before a resume.
    """

    yielded = 0
    asked = False  # has next() been called?
    generator: Any = None  # the generator that it draws from, once it has

    def take(self, wanted: int) -> list[Any]:
        """The next ``wanted``; fewer at the end."""
        raise NotImplementedError

    def place(self) -> Place:
        """Where the walk is now."""
        raise NotImplementedError

    def spot(self) -> Any:
        """Where the walk is now, in few words, for `at()`: there is one for each batch."""
        return self.place()

    def at(self, spot: Any) -> Place:
        """The place of a spot."""
        place: Place = spot
        return place

    def origin(self) -> Place:
        """Where it began, told after it has begun: what it drew at its start is in it."""
        raise NotImplementedError

    def finish(self) -> None:
        """Of a walk resumed at its end: run what the sampler does at its end."""

    def draw_seed(self) -> None:
        """Of a walk that was resumed: draw from the global generator what it drew to come here."""

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        self.asked = True
        items = self.take(1)
        if not items:
            raise StopIteration
        return items[0]


class _Constant(Walk):
    """What iterable datasets get: no index, without an end."""

    def __init__(self, saved: Place | None) -> None:
        self.yielded = saved.yielded if saved else 0
        self._origin = self.yielded

    def take(self, wanted: int) -> list[Any]:
        self.yielded += wanted
        return [None] * wanted

    def place(self) -> Place:
        return Place(self.yielded)

    def origin(self) -> Place:
        return Place(self._origin)


class _Sequence(Walk):
    """Indices that follow from numbers alone: a range, or a tensor made at the first use."""

    def __init__(
        self, facts: dict[str, Any], make: Callable[[dict[str, Any]], Any], saved: Place | None
    ) -> None:
        self._facts = facts
        self._make = make
        self._indices: Any = None
        self._window: list[int] = []
        self._window_from = 0
        if saved is not None:
            self.yielded = saved.yielded
            state = _of_kind(saved, facts["kind"])
            if state is not None:
                self._facts = {key: state.get(key, value) for key, value in facts.items()}
                self.yielded = count(state, "yielded")
                for key in ("seed", "epoch"):
                    if not isinstance(self._facts.get(key, 0), int):
                        raise ValueError(f"the state is damaged: {key} is {self._facts[key]!r:.40}")
            _check_length(self._facts, facts)
        self._origin = self.yielded

    def take(self, wanted: int) -> list[Any]:
        if self._indices is None:
            self._indices = self._make(self._facts)
        at = self.yielded
        if isinstance(self._indices, range):
            taken = list(self._indices[at : at + wanted])
        else:
            taken = []
            while len(taken) < wanted:
                at = self.yielded + len(taken)
                local = at - self._window_from
                if not 0 <= local < len(self._window):
                    self._window = self._indices[at : at + _WINDOW].tolist()
                    self._window_from, local = at, 0
                    if not self._window:
                        break
                taken += self._window[local : local + wanted - len(taken)]
        self.yielded += len(taken)
        return taken

    def place(self) -> Place:
        return self.at(self.yielded)

    def spot(self) -> int:
        return self.yielded

    def at(self, spot: int) -> Place:
        return Place(spot, None, OwnState(self._facts, yielded=spot))

    def origin(self) -> Place:
        return self.at(self._origin)


class _Draws(Walk):
    """Indices drawn from a generator in chunks.

    The state holds the generator's state before the present chunk, and how many indices had gone
    out before it. So to resume takes one draw, wherever the walk was.
    """

    def __init__(
        self,
        kind: str,
        length: int,
        generator: Any,  # the one to draw from, or None: one of its own
        draw: Callable[[int, Any], Any],
        chunk: int,
        total: int,
        *,
        rest: bool,  # PyTorch draws once more for what is left, though it be nothing
        own: Callable[[], Any],  # makes that generator of its own; called at the first draw
        replay: Callable[[], Any] = torch.Generator,  # makes what a saved state is set in
        lookup: Any = None,
        saved: Place | None = None,
    ) -> None:
        self._kind = kind
        self._length = length
        self.generator = generator
        self._shared = generator is not None
        self._draw = draw
        self._chunk = chunk
        self._total = total
        self._rest = rest
        self._own = own
        self._lookup = lookup
        self._before: Any = None  # the generator's state before the present chunk
        self._passed = 0  # indices in the chunks before it
        self._indices: Any = None
        self._window: list[Any] = []
        self._window_from = 0
        self._first: tuple[int, int, Any] | None = None
        if saved is not None:
            self._resume(saved, replay)

    def _resume(self, saved: Place, replay: Callable[[], Any]) -> None:
        state = _of_kind(saved, self._kind)
        yielded = saved.yielded if state is None else count(state, "yielded")
        if state is not None:
            _check_length(state, {"length": self._length})
            before = _generators.untext(state.get("generator"))
            if before is not None:
                if self.generator is None:
                    self.generator = replay()
                try:
                    self.generator.set_state(_generators.as_tensor(before))
                except RuntimeError as error:
                    raise ValueError(f"damaged state of a sampler's generator: {error}") from error
                self._passed = count(state, "passed", 0)
                self._more()
        # One turn, except for a state that doesn't say where its chunk began.
        while self._passed + self._size() < yielded and self._more():
            pass
        if not self._passed <= yielded <= self._passed + self._size():
            raise ValueError(
                f"the state is at index {yielded} of a sampler that has {self._total}: of another"
            )
        self.yielded = yielded
        if self._indices is not None:
            self._first = (yielded, self._passed, self._before)

    def _size(self) -> int:
        return 0 if self._indices is None else len(self._indices)

    def _more(self) -> bool:
        """Draws the next chunk. False where there is none."""
        passed = self._passed + self._size()
        left = self._total - passed
        keep = min(self._chunk, left)
        if self._indices is not None and self._size() < self._chunk:
            return False  # that was the rest
        if left <= 0 and not (self._rest and (self._indices is None or self._size())):
            return False
        if self.generator is None:
            self.generator = self._own()
        self._before = self.generator.get_state()
        if keep or self._shared:
            self._indices = self._draw(keep, self.generator)[:keep]
        else:
            self._indices = torch.empty(0, dtype=torch.int64)  # nobody sees that nothing is drawn
        self._passed = passed
        self._window, self._window_from = [], 0
        if self._first is None:
            self._first = (0, 0, self._before)
        return True

    def take(self, wanted: int) -> list[Any]:
        taken: list[Any] = []
        while len(taken) < wanted:
            at = self.yielded + len(taken) - self._passed
            if at >= self._size():
                if self._more():
                    continue
                break
            local = at - self._window_from
            if not 0 <= local < len(self._window):
                self._window = self._indices[at : at + _WINDOW].tolist()
                self._window_from, local = at, 0
            taken += self._window[local : local + wanted - len(taken)]
        self.yielded += len(taken)
        return taken if self._lookup is None else [self._lookup[index] for index in taken]

    def draw_seed(self) -> None:
        if self._shared or self.generator is None:
            return
        if self._own is _private_generator:
            self._own()
        elif self._indices is not None:  # those were drawn from the global one itself, at once
            self._draw(self._chunk, self._own())

    def draw_now(self) -> None:
        """Draw the first chunk before it is asked for."""
        if self._indices is None:
            self._more()

    def at(self, spot: tuple[int, int, Any]) -> Place:
        yielded, passed, before = spot
        return Place(
            yielded,
            None,
            OwnState(
                kind=self._kind,
                length=self._length,
                yielded=yielded,
                passed=passed,
                generator=before,
            ),
        )

    def place(self) -> Place:
        return self.at(self.spot())

    def spot(self) -> tuple[int, int, Any]:
        return self.yielded, self._passed, self._before

    def origin(self) -> Place:
        return self.at(self._first or self.spot())

    def state_dict(self) -> dict[str, Any]:
        """Where it is, as data that may become JSON."""
        state: OwnState = self.place().iterator
        return state.plain()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another was.

        Raises:
            ValueError: The state is of another sampler.
        """
        self._passed, self._indices, self._first = 0, None, None
        self._window, self._window_from = [], 0
        self._resume(Place(count(state_dict, "yielded"), None, state_dict), torch.Generator)


class _Batches(Walk):
    def __init__(self, sampler: Any, saved: Place | None, seldom: bool) -> None:
        self._size: int = sampler.batch_size
        self._drop_last: bool = sampler.drop_last
        inner = None
        if saved is not None:
            state = mapping(saved.iterator, "_sampler_iter_state")
            inner = Place(
                count(state, "samples_yielded", saved.yielded * self._size),
                state.get("sampler_state"),
                state.get("sampler_place", state.get("sampler_iter_state")),
                count(state, "sampler_behind", 0),
            )
            self.yielded = saved.yielded
        self._origin = self.yielded
        self._inner = walk(sampler.sampler, inner, seldom)

    def __next__(self) -> list[Any]:
        self.asked = True
        batch = self._inner.take(self._size)
        if not batch or (self._drop_last and len(batch) < self._size):
            raise StopIteration
        self.yielded += 1
        return batch

    def take(self, wanted: int) -> list[Any]:
        return list(itertools.islice(self, wanted))

    @staticmethod
    def _at(yielded: int, inner: Place) -> Place:
        state = OwnState(samples_yielded=inner.yielded)
        if inner.sampler is not None:
            state["sampler_state"] = inner.sampler
        if inner.iterator is not None:
            # torchdata's runs a sampler forward that has none of its keys.
            own = isinstance(inner.iterator, OwnState) and "generator" not in inner.iterator
            state["sampler_place" if own else "sampler_iter_state"] = inner.iterator
        if inner.behind:
            state["sampler_behind"] = inner.behind
        return Place(yielded, None, state)

    def place(self) -> Place:
        return self._at(self.yielded, self._inner.place())

    def spot(self) -> tuple[int, Any]:
        return self.yielded, self._inner.spot()

    def at(self, spot: tuple[int, Any]) -> Place:
        return self._at(spot[0], self._inner.at(spot[1]))

    def origin(self) -> Place:
        return self._at(self._origin, self._inner.origin())

    def finish(self) -> None:
        self._inner.finish()

    def draw_seed(self) -> None:
        self._inner.draw_seed()

    @property
    def generator(self) -> Any:
        return self._inner.generator


_unsaid: set[type] = set()  # samplers that cannot tell their state, and it has been said


class _Users(Walk):
    """A sampler of the user's: by its state, or its iterator's, or run forward.

    With ``seldom`` it is asked for its state now and then, and is not to blame if it raises.
    """

    def __init__(self, sampler: Any, saved: Place | None, seldom: bool) -> None:
        self._sampler = sampler
        self._seldom = seldom
        self._known: Place | None = None  # what it said last
        self._asked_ns = self._cost_ns = 0
        self._generator = getattr(sampler, "generator", None)
        if not isinstance(self._generator, torch.Generator):
            self._generator = None
        self._started: OwnState | None = None
        self._begun = False
        iterator = None if saved is None else saved.iterator
        if stateful(sampler) and not (isinstance(iterator, dict) and "before_iter" in iterator):
            self._begin_stateful(saved)
        else:
            self._begin_plain(saved)
        self._origin = self.place()

    def _begin_stateful(self, saved: Place | None) -> None:
        if saved is not None and saved.sampler is not None and stateful(self._sampler):
            self._sampler.load_state_dict(saved.sampler)
        self._before = self._now_before()
        self._iterator = iter(self._sampler)
        if saved is not None:
            self._restore(saved)

    def _restore(self, saved: Place) -> None:
        if saved.iterator is not None and stateful(self._iterator):
            self._iterator.load_state_dict(saved.iterator)
        self._forward(saved.behind)
        self.yielded = saved.yielded

    def _now_before(self) -> OwnState:
        return OwnState(
            kind="counted",
            generator=self._generator.get_state() if self._generator is not None else None,
            before_iter=_generators.capture(),
            before_next=None,
        )

    def _begin_plain(self, saved: Place | None) -> None:
        state = None if saved is None else _of_kind(saved, "counted")
        if state is None or "before_iter" not in state:
            self._before = self._now_before()
            self._iterator = iter(self._sampler)
            if not stateful(self._iterator):
                self._started = self._before
                if saved is not None:
                    self._forward(saved.yielded)
            elif saved is not None:
                self._restore(saved)
            return
        # What it draws from is set back to where it began, and afterwards to where it is now: what
        # the trainer's own code has drawn since is none of this walk's.
        started = OwnState(
            state, **{key: _generators.untext(state.get(key)) for key in _STATES_OF_GENERATORS}
        )
        self._started = self._before = started
        if self._generator is not None and started["generator"] is not None:
            self._generator.set_state(_generators.as_tensor(started["generator"]))
        now = _generators.capture()
        try:
            _generators.restore(started["before_iter"] or b"")
            self._iterator = iter(self._sampler)
            if started["before_next"] is not None:
                _generators.restore(started["before_next"])
            self._begun = bool(count(state, "yielded"))
            self._forward(count(state, "yielded"))
        finally:
            _generators.restore(now)

    def _forward(self, wanted: int) -> None:
        passed = sum(1 for _ in itertools.islice(self._iterator, wanted))
        if passed < wanted:
            raise ValueError(
                f"the sampler has {passed} of the {wanted} that the state has passed: it has "
                "changed since"
            )
        self.yielded = wanted

    def take(self, wanted: int) -> list[Any]:
        if not self._begun and (self._started is not None or self._seldom):
            self._begun = True
            # Between iter() and here the loader may have drawn from the same generator.
            now = _generators.capture()
            if now != self._before["before_iter"]:
                self._before["before_next"] = now
        taken = list(itertools.islice(self._iterator, wanted))
        self.yielded += len(taken)
        return taken

    def place(self) -> Place:
        if self._started is not None:
            return Place(self.yielded, None, OwnState(self._started, yielded=self.yielded))
        if not self._seldom:
            return self._ask()
        now = time.perf_counter_ns()
        if now - self._asked_ns >= _ASKING_COSTS * self._cost_ns:
            try:
                self._known = self._ask()
            except Exception as error:
                if type(self._sampler) not in _unsaid:
                    _unsaid.add(type(self._sampler))
                    logger.warning(
                        "state_dict() of %s raises %s: %s. A resume runs it forward",
                        type(self._sampler).__name__,
                        type(error).__name__,
                        error,
                    )
            self._asked_ns = time.perf_counter_ns()
            self._cost_ns = self._asked_ns - now
        if self._known is None:
            return Place(self.yielded, None, OwnState(self._before, yielded=self.yielded))
        return self._known._replace(yielded=self.yielded, behind=self.yielded - self._known.yielded)

    def _ask(self) -> Place:
        # Copied: what it gives may be what it goes on changing.
        return Place(
            self.yielded,
            copy.deepcopy(self._sampler.state_dict()) if stateful(self._sampler) else None,
            copy.deepcopy(self._iterator.state_dict()) if stateful(self._iterator) else None,
        )

    def origin(self) -> Place:
        if self._started is not None:
            yielded = self._origin.yielded
            return Place(yielded, None, OwnState(self._started, yielded=yielded))
        return self._origin

    def finish(self) -> None:
        if self._started is not None:
            collections.deque(self._iterator, maxlen=0)


def _of_kind(saved: Place, kind: str) -> dict[str, Any] | None:
    """The state of a walk of that kind; None where it can only go by count."""
    state = saved.iterator
    if not isinstance(state, dict) or "yielded" not in state:
        return None
    if state.get("kind", kind) != kind:
        logger.warning(
            "the state is of a sampler of another kind (%s, here %s): run forward by %d",
            state["kind"],
            kind,
            saved.yielded,
        )
        return None
    return state


def _check_length(state: dict[str, Any], facts: dict[str, Any]) -> None:
    if state.get("length", facts["length"]) != facts["length"]:
        raise ValueError(
            f"the state was taken with {state['length']} samples to draw from, and here are "
            f"{facts['length']}: the order can't be the same"
        )


def _permutation(length: int, generator: Any) -> Any:
    """torch.randperm(): the same numbers, in 4 bytes each where they fit.

    The smaller ones are drawn in half the time: a million in 8 ms, and in 23 ms as int64.
    """
    dtype = torch.int32 if length < 1 << 31 else torch.int64
    return torch.randperm(length, generator=generator, dtype=dtype)


def _private_generator() -> Any:
    """As PyTorch's RandomSampler makes one: seeded from the global generator."""
    generator = torch.Generator()
    generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    return generator


def _global_generator() -> Any:
    return torch.default_generator


def _random(sampler: Any, saved: Place | None) -> Walk:
    length = len(sampler.data_source)
    if sampler.replacement:
        return _Draws(
            "replacement",
            length,
            sampler.generator,
            lambda keep, generator: torch.randint(
                high=length, size=(keep,), dtype=torch.int64, generator=generator
            ),
            _DRAWN_AT_ONCE,
            sampler.num_samples,
            rest=True,
            own=_private_generator,
            saved=saved,
        )
    return _Draws(
        "permutation",
        length,
        sampler.generator,
        lambda keep, generator: _permutation(length, generator),
        length,
        sampler.num_samples,
        rest=True,
        own=_private_generator,
        saved=saved,
    )


def _subset(sampler: Any, saved: Place | None) -> Walk:
    length = len(sampler.indices)
    return _Draws(
        "subset",
        length,
        sampler.generator,
        lambda keep, generator: _permutation(length, generator),
        length,
        length,
        rest=False,
        own=_global_generator,
        lookup=sampler.indices,
        saved=saved,
    )


def _weighted(sampler: Any, saved: Place | None) -> Walk:
    return _Draws(
        "weighted",
        len(sampler.weights),
        sampler.generator,
        lambda keep, generator: torch.multinomial(
            sampler.weights, sampler.num_samples, sampler.replacement, generator=generator
        ),
        sampler.num_samples,
        sampler.num_samples,
        rest=False,
        own=_global_generator,
        saved=saved,
    )


def _sequential(sampler: Any, saved: Place | None) -> Walk:
    # A dataset that has grown since goes on to its new end.
    return _Sequence(
        {"kind": "sequential", "length": None},
        lambda facts: range(len(sampler.data_source)),
        saved,
    )


def _distributed(sampler: Any, saved: Place | None) -> Walk:
    length = len(sampler.dataset)

    def indices(facts: dict[str, Any]) -> Any:
        if sampler.shuffle:
            generator = torch.Generator()
            generator.manual_seed(facts["seed"] + facts["epoch"])
            whole = _permutation(length, generator)
        else:
            whole = torch.arange(length)
        missing = sampler.total_size - length
        if not sampler.drop_last and missing > 0:
            whole = torch.cat([whole, whole.repeat(math.ceil(missing / length))[:missing]])
        return whole[sampler.rank : sampler.total_size : sampler.num_replicas]

    return _Sequence(
        {
            "kind": "distributed",
            "length": length,
            "seed": sampler.seed,
            "epoch": sampler.epoch,
        },
        indices,
        saved,
    )


def _own_random(sampler: Any, saved: Place | None) -> Walk:
    return sampler.walk(saved)


def walk(sampler: Any, saved: Place | None = None, seldom: bool = False) -> Walk:
    """What ``iter(sampler)`` gives, as a walk; from a place on, if one is given.

    Args:
        seldom: Ask a sampler of the user's for its state now and then, not for each place.
    Raises:
        ValueError: The place is of another sampler, or is damaged.
    """
    iterate = getattr(type(sampler), "__iter__", None)
    if iterate is RandomSampler.__iter__:
        return _own_random(sampler, saved)
    if isinstance(sampler, _InfiniteConstantSampler):
        return _Constant(saved)
    if not stateful(sampler):
        if iterate is torch.utils.data.BatchSampler.__iter__:
            return _Batches(sampler, saved, seldom)
        maker = _MAKERS.get(iterate)
        if maker is not None and not (maker is _distributed and len(sampler.dataset) == 0):
            return maker(sampler, saved)
    return _Users(sampler, saved, seldom)


_MAKERS: dict[Any, Callable[[Any, Place | None], Walk]] = {
    torch.utils.data.SequentialSampler.__iter__: _sequential,
    torch.utils.data.RandomSampler.__iter__: _random,
    torch.utils.data.SubsetRandomSampler.__iter__: _subset,
    torch.utils.data.WeightedRandomSampler.__iter__: _weighted,
    DistributedSampler.__iter__: _distributed,
}


class RandomSampler(torch.utils.data.RandomSampler):
    """PyTorch's RandomSampler, but its order goes on over epochs from a generator of its own.

    ``StatefulDataLoader(shuffle=True)`` takes it: the state of the one generator is all that the
    next epochs follow from. With the same generator its order is that of torchdata's RandomSampler.

    Args:
        data_source: What is sampled from; only its length counts.
        replacement: Draw with replacement.
        num_samples: How many to draw; None: as many as the data source has.
        generator: None: one seeded from PyTorch's global generator, now.
    Raises:
        TypeError: ``replacement`` is no bool.
        ValueError: ``num_samples`` is not a positive int.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
    ) -> None:
        super().__init__(
            data_source,
            replacement,
            num_samples,
            _private_generator() if generator is None else generator,
        )

    def walk(self, saved: Place | None = None) -> Walk:
        """A walk over it, from a place on, if one is given."""
        length = len(self.data_source)
        if self.replacement:

            def draw(keep: int, generator: Any) -> Any:
                return torch.randint(
                    high=length, size=(_DRAWN_AT_ONCE,), dtype=torch.int64, generator=generator
                )

        else:

            def draw(keep: int, generator: Any) -> Any:
                return _permutation(length, generator)

        drawn = _Draws(
            "replacement of one generator" if self.replacement else "permutation of one generator",
            length,
            self.generator,
            draw,
            _DRAWN_AT_ONCE if self.replacement else length,
            self.num_samples,
            rest=False,
            own=_private_generator,
            saved=saved,
        )
        # At once, as there: from a generator that others share, the order of draws counts.
        drawn.draw_now()
        return drawn

    def __iter__(self) -> Iterator[int]:
        return self.walk()


class Walker:
    """Stands for a sampler: each ``iter()`` is a walk over it, the first one from a place on.

    With ``hold`` that first one is given again until an index is asked of it: PyTorch's iterators
    of workers call ``iter()`` twice before their first epoch, those of a resumed epoch go on once.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        saved: Place | None,
        *,
        hold: bool = False,
        seldom: bool = False,
    ) -> None:
        self.sampler: Any = sampler
        self._seldom = seldom
        self._resumed = walk(sampler, saved, seldom) if hold else None

    def __iter__(self) -> Walk:
        if self._resumed is not None and not self._resumed.asked:
            return self._resumed
        self._resumed = None
        return walk(self.sampler, None, self._seldom)

    def __len__(self) -> int:
        return len(self.sampler)
