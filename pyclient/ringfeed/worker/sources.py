"""Reads a source's object: the next samples, each with a cursor from which it can go on."""

from __future__ import annotations

import inspect
import itertools
import logging
import os
import pickle
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from . import exits, objects
from .calls import Failure, Failures
from .chance import Generators
from .exact import digest, loses_samples

_CURSOR_BYTES_MAX = 4096
# A state is taken once for so many samples; those behind it are skipped again after a death.
_SAMPLES_PER_STATE = 64
# So many at least are compared with those that had come, unless the epoch has fewer.
_COMPARED = 32
# What read() yields, with any cursor, when nothing is there now: the stage asks again in a moment.
NOT_YET = object()


class Source:
    """An object of a stage, ready to be read."""

    def __init__(self, spec: objects.Spec) -> None:
        self._process = os.getpid()
        self._generators = Generators(spec["key"])
        self._key = spec["key"]
        self._failures = Failures()
        self.failure = Failure
        self.failed = self._failures.of
        self._spec = spec
        self._object = objects.make_source(spec)
        self._read = self._reader()
        self._items: Iterator[tuple[Any, bytes]] = iter(())
        self._pending: Failure | None = None

    def begin(self, epoch: int, cursor: bytes, given: int) -> None:
        """What comes next is this epoch behind the cursor, of which so many samples are known."""
        self._epoch = epoch
        self.restart()
        self._pending = None
        self._items = self._read(epoch, cursor, given)

    def restart(self) -> None:
        """What a source draws, for a shuffle of its own, is the same whenever the epoch begins."""
        self._generators.restart(self._key + self._epoch)

    def mark(self) -> None:
        """From here on nothing is to be drawn from the generators of the process."""
        self._generators.mark()

    def drawn(self) -> bool:
        """Has anything been drawn since mark()?"""
        return self._generators.drawn_since_mark()

    def again(self) -> Any:
        """The object as it is when it is made; None: there is only this one."""
        self._generators.restart(self._key)
        made = objects.make_source(self._spec)
        self.restart()
        if made is self._object:
            return None
        self._object = made
        _begin_epoch(made, self._epoch)
        return made

    def next(self, most: int) -> tuple[list[tuple[Any, bytes]], bool, Failure | None]:
        """Up to so many samples with cursors, whether they are the last, and what was raised."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            return [], False, pending
        found: list[tuple[Any, bytes]] = []
        try:
            for sample, cursor in itertools.islice(self._items, most):
                exits.end_child(self._process)
                if sample is NOT_YET:
                    return found, False, None
                found.append((sample, _checked(cursor)))
        except BaseException as error:
            failure = self.failed(error)
            if not found:
                return [], False, failure
            self._pending = failure  # what came before it comes first
            return found, False, None
        finally:
            exits.end_child(self._process)
        return found, len(found) < most, None

    def _reader(self) -> Callable[[int, bytes, int], Iterator[tuple[Any, bytes]]]:
        """A function of epoch, cursor and count that returns an iterator of samples and cursors."""
        source = self._object
        if callable(getattr(source, "read", None)):
            return _own_reader(source)
        if hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
            return _Iterated(self, source, _set_dict).read
        if all(hasattr(source, name) for name in ("state_dict", "reset", "__next__")):
            return _Iterated(self, source, _reset_node).read
        if hasattr(source, "__iter__"):
            return _Iterated(self, source, None).read
        raise TypeError(
            f"a {type(source).__name__} is no source: it has neither read(cursor) nor __iter__"
        )

    @property
    def stage(self) -> str:
        """Its name."""
        return self._spec["stage"]

    @property
    def worth(self) -> str:
        """What states of the object are worth, as the stage's settings say."""
        return self._spec["state"]


def _checked(cursor: Any) -> bytes:
    if not isinstance(cursor, bytes):
        raise TypeError(f"a cursor is a {type(cursor).__name__}; yield (sample, bytes)")
    if not 0 < len(cursor) <= _CURSOR_BYTES_MAX:
        raise ValueError(f"a cursor has {len(cursor)} bytes; give 1 to {_CURSOR_BYTES_MAX}")
    return cursor


def _own_reader(source: Any) -> Callable[[int, bytes, int], Iterator[tuple[Any, bytes]]]:
    takes_epoch = "epoch" in inspect.signature(source.read).parameters

    def read(epoch: int, cursor: bytes, _: int) -> Iterator[tuple[Any, bytes]]:
        named = {"epoch": epoch} if takes_epoch else {}
        for pair in source.read(cursor or None, **named):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise TypeError(f"read() yielded a {type(pair).__name__}; yield (sample, cursor)")
            yield pair

    return read


def _begin_epoch(source: Any, epoch: int) -> None:
    if hasattr(source, "set_epoch"):
        source.set_epoch(epoch)


def _set_dict(source: Any, state: Any) -> Iterator[Any]:
    if state is not None:
        source.load_state_dict(state)
    return iter(source)


def _reset_node(source: Any, state: Any) -> Iterator[Any]:
    source.reset(state)
    return iter(source)


class _Place:
    """From which a successor goes on, and the samples that have come behind it.

    As a cursor: ``P``, the number of samples before it, ``:``, the digest of those behind it, ``:``
    and the packed state, which is empty where there is none.
    """

    __slots__ = ("before", "trail", "state", "_prefix")

    def __init__(self, before: int, state: bytes, trail: int = 0) -> None:
        self.before = before
        self.state = state  # b"": there is none, but for the beginning of the epoch
        self.trail = trail
        self._prefix = b"P%d:" % before

    @staticmethod
    def of(cursor: bytes, given: int) -> _Place:
        if not cursor:
            return _Place(0, b"")
        if cursor[:1] != b"P":  # of an earlier version
            return _Place(given, b"")
        before, trail, state = cursor[1:].split(b":", 2)
        return _Place(int(before), state, int(trail))

    def cursor(self) -> bytes:
        return self._prefix + b"%d:" % self.trail + self.state


class _Iterated:
    """Reads an object that can only be iterated over, and may say where it is.

    A state that may not be exact is not used. Then the epoch is read again from its beginning, the
    only other place that is known.
    """

    def __init__(
        self, owner: Source, source: Any, restore: Callable[[Any, Any], Iterator[Any]] | None
    ) -> None:
        """`restore`: sets it to a state, or to its beginning, and iterates; None: it has none."""
        self._owner = owner
        self._source = source
        self._restore = restore
        # A state that follows at once is compared with nothing.
        self._compares = owner.worth == "VERIFY" and restore is not None
        self._why = ""  # no state is used
        if restore is None:
            self._why = "its source has no state_dict()"
        elif owner.worth == "RUN_FORWARD":
            self._why = "the state of its source is not to be used"
        self._first: bytes | None = None  # the state that the object begins with
        self._is_used = False  # the object is not as it was made

    def read(self, epoch: int, cursor: bytes, given: int) -> Iterator[tuple[Any, bytes]]:
        _begin_epoch(self._source, epoch)
        if not self._why and loses_samples(self._source):
            self._why = (
                f"the state of its {type(self._source).__name__} has not the samples in its "
                "shuffle buffer"
            )
        place = _Place.of(cursor, given)
        items = self._come_to(place, given)
        yield from self._go_on(items, place, given)

    # ---- to where it was

    def _begin(self) -> Iterator[Any]:
        """The epoch from its beginning."""
        if self._is_used and self._first is None:
            # What can be iterated over again is the same object in every epoch.
            only_once = self._restore is not None or hasattr(self._source, "__next__")
            made = self._owner.again() if only_once else None
            if made is not None:
                self._source, self._is_used = made, False
            elif self._restore is None and only_once:
                raise TypeError(
                    f"its {type(self._source).__name__} can be read once: name a function or a "
                    "class that makes it"
                )
        if self._restore is None:
            self._is_used = True
            return iter(self._source)
        if not self._is_used:
            self._is_used = True
            if self._restore is _reset_node:
                return _reset_node(self._source, None)
            # Before iter(): torchdata's loaders count with that.
            self._first = self._state()
            return iter(self._source)
        if self._first is None:
            return self._restore(self._source, None)
        return self._restore(self._source, pickle.loads(self._first))

    def _state(self) -> bytes | None:
        try:
            return pickle.dumps(self._source.state_dict())
        except Exception as error:
            self._why = self._why or (
                f"state_dict() of its {type(self._source).__name__} raises "
                f"{type(error).__name__}: {error}"
            )
            return None

    def _come_to(self, place: _Place, given: int) -> Iterator[Any]:
        """The samples behind those that were given. `place` is made what is true of them."""
        if place.state and not self._why and self._restore is not None:
            self._is_used = True
            try:
                state = pickle.loads(zlib.decompress(place.state))
                items = self._restore(self._source, state)
                passed, trail = self._pass(items, given - place.before)
            except Exception as error:
                logging.warning(
                    "stage %s: its source cannot go on from its state: %s: %s",
                    *(self._owner.stage, type(error).__name__, error),
                )
                passed = trail = -1
            if passed == given - place.before and (not self._compares or trail == place.trail):
                return items
            self._why = (
                f"the state of its {type(self._source).__name__} does not give the samples that "
                "had come behind it"
            )
            self._owner.restart()
        items = self._begin()
        if not given:
            return items
        if self._why or place.before:
            logging.warning(
                "stage %s: %s: %d samples are read again to come to where it was",
                *(self._owner.stage, self._why or "its source had no state to go on from", given),
            )
        place.state = b""
        next(itertools.islice(items, place.before, place.before), None)
        passed, trail = self._pass(items, given - place.before)
        if passed == given - place.before and (not self._compares or trail == place.trail):
            return items
        logging.error(
            "stage %s: its source does not give the same samples when it is read again: some may "
            "come twice, and some not at all. Let their order follow from a seed, or give it "
            "read(cursor)",
            self._owner.stage,
        )
        place.trail = trail
        return items

    def _pass(self, items: Iterator[Any], count: int) -> tuple[int, int]:
        """So many samples are passed over: how many there were, and their digest."""
        passed = trail = 0
        for sample in itertools.islice(items, count):
            passed += 1
            if self._compares:
                trail = zlib.crc32(b"%d" % digest(sample), trail)
        return passed, trail

    # ---- on from there

    def _go_on(
        self, items: Iterator[Any], place: _Place, given: int
    ) -> Iterator[tuple[Any, bytes]]:
        compares = self._compares
        if self._restore is None:
            cursor = _Place(0, b"").cursor()
            for sample in items:
                yield sample, cursor
            return
        coming: deque[_Place] = deque()  # of which too little is known to compare
        newest = place.before
        for number, sample in enumerate(items, given + 1):
            if number == given + 1:
                self._owner.mark()  # what begins may draw: PyTorch's loaders do
            if compares:
                own = b"%d" % digest(sample)
                place.trail = zlib.crc32(own, place.trail)
                for one in coming:
                    one.trail = zlib.crc32(own, one.trail)
            if number - newest >= _SAMPLES_PER_STATE:
                newest = number
                coming.append(_Place(number, self._packed()))
            if coming and number - coming[0].before >= (_COMPARED if compares else 0):
                place = coming.popleft()
            yield sample, place.cursor()

    def _packed(self) -> bytes:
        """The state as it is now; b"": none that can be used."""
        if self._why:
            return b""
        if self._compares and self._owner.drawn():
            why = (
                "its source draws from generators of the process, and no cursor holds their places"
            )
        elif (state := self._state()) is None:
            why = self._why
        else:
            packed = zlib.compress(state, 1)
            if len(packed) <= _CURSOR_BYTES_MAX - 64:
                return packed
            why = (
                f"the state of its source takes {len(packed)} bytes, packed, and a cursor has at "
                f"most {_CURSOR_BYTES_MAX}"
            )
        self._why = why
        logging.warning(
            "stage %s: %s: after a death the epoch is read again from its start",
            *(self._owner.stage, why),
        )
        return b""
