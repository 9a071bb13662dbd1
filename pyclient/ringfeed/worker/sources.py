"""Reads a source's object: the next samples, each with a cursor from which it can go on."""

from __future__ import annotations

import inspect
import itertools
import logging
import pickle
import zlib
from collections.abc import Iterator
from typing import Any

from . import objects
from .calls import Failure, Failures
from .chance import Generators

_CURSOR_BYTES_MAX = 4096
# A state is taken once for so many samples; those behind it are skipped again after a death.
_SAMPLES_PER_STATE = 64
# What read() yields, with any cursor, when nothing is there now: the stage asks again in a moment.
NOT_YET = object()
# A cursor begins with what kind it is.
_COUNT, _STATE = b"N", b"S"


class Source:
    """An object of a stage, ready to be read."""

    def __init__(self, spec: objects.Spec) -> None:
        self._generators = Generators(spec["key"])
        self._key = spec["key"]
        self._failures = Failures()
        self.failure = Failure
        self.failed = self._failures.of
        self._object = objects.make_source(spec)
        self._read = _reader_of(self._object, spec["stage"])
        self._items: Iterator[tuple[Any, bytes]] = iter(())
        self._pending: Failure | None = None

    def begin(self, epoch: int, cursor: bytes, given: int) -> None:
        """What comes next is this epoch behind the cursor, of which so many samples are known."""
        # What a source draws, for a shuffle of its own, is the same whenever the epoch begins.
        self._generators.restart(self._key + epoch)
        self._pending = None
        self._items = self._read(epoch, cursor, given)

    def next(self, most: int) -> tuple[list[tuple[Any, bytes]], bool, Failure | None]:
        """Up to so many samples with cursors, whether they are the last, and what was raised."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            return [], False, pending
        found: list[tuple[Any, bytes]] = []
        try:
            for sample, cursor in itertools.islice(self._items, most):
                if sample is NOT_YET:
                    return found, False, None
                found.append((sample, _checked(cursor)))
        except BaseException as error:
            failure = self.failed(error)
            if not found:
                return [], False, failure
            self._pending = failure  # what came before it comes first
            return found, False, None
        return found, len(found) < most, None


def _checked(cursor: Any) -> bytes:
    if not isinstance(cursor, bytes):
        raise TypeError(f"a cursor is a {type(cursor).__name__}; yield (sample, bytes)")
    if not 0 < len(cursor) <= _CURSOR_BYTES_MAX:
        raise ValueError(f"a cursor has {len(cursor)} bytes; give 1 to {_CURSOR_BYTES_MAX}")
    return cursor


def _reader_of(source: Any, stage: str) -> Any:
    """A function of epoch, cursor and count that returns an iterator of samples and cursors."""
    if hasattr(source, "read"):
        return _own_reader(source)
    if hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
        return _States(source, _set_dict, stage).read
    if hasattr(source, "state_dict") and hasattr(source, "reset") and hasattr(source, "__next__"):
        return _States(source, _reset_node, stage).read
    if hasattr(source, "__iter__"):
        return _Counts(source, stage).read
    raise TypeError(
        f"a {type(source).__name__} is no source: it has neither read(cursor) nor __iter__"
    )


def _own_reader(source: Any) -> Any:
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


class _Counts:
    """Of an object that can only be iterated over: a cursor is the number of samples."""

    def __init__(self, source: Any, stage: str) -> None:
        self._source = source
        self._stage = stage

    def read(self, epoch: int, cursor: bytes, given: int) -> Iterator[tuple[Any, bytes]]:
        _begin_epoch(self._source, epoch)
        items = iter(self._source)
        if given:
            logging.warning(
                "stage %s: its source has no state_dict(): %d samples are read again to come to "
                "where it was",
                self._stage,
                given,
            )
            next(itertools.islice(items, given, given), None)
        for number, sample in enumerate(items, given + 1):
            yield sample, _COUNT + b"%d" % number


def _set_dict(source: Any, state: Any) -> Iterator[Any]:
    if state is not None:
        source.load_state_dict(state)
    return iter(source)


def _reset_node(source: Any, state: Any) -> Iterator[Any]:
    source.reset(state)
    return iter(source)


class _States:
    """Of an object that can say where it is: a cursor is its state, and how far behind that."""

    def __init__(self, source: Any, restore: Any, stage: str) -> None:
        self._source = source
        self._restore = restore
        self._stage = stage
        self._first: Any = None
        self._large = False

    def read(self, epoch: int, cursor: bytes, given: int) -> Iterator[tuple[Any, bytes]]:
        _begin_epoch(self._source, epoch)
        if self._first is None:
            self._first = pickle.dumps(self._source.state_dict())
        behind = 0
        state = pickle.loads(self._first)
        packed = b""
        if cursor[:1] == _STATE:
            count, _, packed = cursor[1:].partition(b":")
            behind = int(count)
            state = pickle.loads(zlib.decompress(packed))
        elif cursor[:1] == _COUNT:
            behind = given
        items = self._restore(self._source, state)
        next(itertools.islice(items, behind, behind), None)
        number = given
        for sample in items:
            number += 1
            behind += 1
            if behind >= _SAMPLES_PER_STATE or not packed:
                taken = zlib.compress(pickle.dumps(self._source.state_dict()), 1)
                if len(taken) <= _CURSOR_BYTES_MAX - 32:
                    packed, behind = taken, 0
                elif not self._large:
                    self._large = True
                    logging.warning(
                        "stage %s: the state of its source takes %d bytes, packed, and a cursor "
                        "has at most %d: after a death the epoch is read again from its start",
                        self._stage,
                        len(taken),
                        _CURSOR_BYTES_MAX,
                    )
            if self._large:
                yield sample, _COUNT + b"%d" % number
            else:
                yield sample, _STATE + b"%d:" % behind + packed
