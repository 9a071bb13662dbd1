"""Makes batches: calls the object of a stage with samples and the memory of a batch."""

from __future__ import annotations

import gc
import inspect
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import stage as stages
from . import exits, objects
from .calls import Failure, Failures
from .chance import Generators
from .values import coerce

_Array = np.ndarray[Any, Any]
_TEXTS = {"text": str, "bytes": bytes}


class _Fault(Exception):
    """What was made is not as a field says. `name` is one of kBatchFaults (batch_function.h)."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


@dataclass(frozen=True)
class _Column:
    name: str
    dtype: str
    shape: tuple[int, ...]  # of a row
    bytes_max: int  # of text and bytes: of all rows together

    @property
    def is_text(self) -> bool:
        return self.dtype in _TEXTS

    def array(self, rows: int, view: memoryview | None) -> _Array:
        """The array of so many rows in this memory, or of zeros in some of its own."""
        dtype = np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)
        shape = (rows, *self.shape)
        return np.zeros(shape, dtype) if view is None else np.ndarray(shape, dtype, buffer=view)

    def shown(self, array: _Array) -> _Array:
        """The array as the object sees it."""
        if self.dtype != "bfloat16":
            return array
        import ml_dtypes

        return array.view(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class _Batch:
    """What `ctx` is about."""

    seed: int
    lineage: str


class Batches:
    """An object of a stage, ready to be called."""

    def __init__(self, spec: objects.Spec) -> None:
        self._process = os.getpid()
        self._generators = Generators(spec["key"])
        self._function = objects.make(spec)
        objects.check_shape(spec, self._function)
        self._context = stages.Context(spec["stage"], spec["lane"], spec["lanes"])
        self._columns = [
            _Column(name, dtype, tuple(shape), bytes_max)
            for name, dtype, shape, bytes_max in json.loads(spec["fields"])
        ]
        self.zero_copy = stages._wants_views(self._function)
        named = objects.batch_parameters(spec, inspect.signature(self._function))
        self._wants_out = "out" in named
        self._wants_context = "ctx" in named

    def run(self, samples: list[Any], seed: int, views: list[memoryview] | None) -> Failure | None:
        """Makes a batch of the samples.

        Args:
            seed: What random numbers follow from.
            views: Memory of each column; of text and bytes two, for the bytes and the offsets.
                None: the batch is only tried.
        """
        try:
            self._run(samples, seed, views)
        except _Fault as fault:
            return Failure(fault.name, str(fault))
        except BaseException as error:  # also SystemExit: it is the samples'
            # In full each time: the stage says which of the calls it tells of.
            return Failures().of(error)
        finally:
            exits.end_child(self._process)
        return None

    def _run(self, samples: list[Any], seed: int, views: list[memoryview] | None) -> None:
        rows = len(samples)
        parts: Iterator[memoryview | None] = itertools.repeat(None)
        if views is not None:
            parts = iter(views)
        texts: dict[str, tuple[memoryview | None, memoryview | None]] = {}
        arrays: dict[str, _Array] = {}
        for column in self._columns:
            if column.is_text:
                texts[column.name] = (next(parts), next(parts))
            else:
                arrays[column.name] = column.array(rows, next(parts))
        out: dict[str, Any] = {}
        if self._wants_out:
            for column in self._columns:
                if not column.is_text:
                    out[column.name] = column.shown(arrays[column.name])
        # What the object sees may be a view of a view.
        handed = [*arrays.items()]
        handed += [(name, seen) for name, seen in out.items() if seen is not arrays[name]]
        before = _references(handed)
        made = self._call(samples, seed, out)
        self._check_names(made)
        made = _unaliased(made, out)
        for column in self._columns:
            if column.name not in made:
                raise _Fault("missing_field", f"there is no field '{column.name}'")
            value = made[column.name]
            if column.is_text:
                _write_texts(column, value, rows, *texts[column.name])
            elif value is not out.get(column.name):
                _write_array(column, value, arrays[column.name])
        del made, value
        _check_kept(handed, before)

    def _call(self, samples: list[Any], seed: int, out: dict[str, Any]) -> Any:
        named: dict[str, Any] = {"ctx": self._context} if self._wants_context else {}
        batch = _Batch(seed, samples[0].lineage)
        while True:
            # Once a batch this costs nothing; so they are not watched, as they are for samples.
            present = self._generators.present
            self._generators.restart(seed)
            self._context._about(batch)
            given = dict(out)  # the object may set others
            for array in out.values():
                array.fill(0)  # whatever was there: what is done again begins with the same
            if self._wants_out:
                named["out"] = given
            made = self._function(list(samples), **named)
            exits.end_child(self._process)  # before it writes to what its parent writes to
            if self._generators.present == present:
                return given if made is None and self._wants_out else made
            # A library that the call has imported drew as it liked.
            for sample in samples:
                sample._reset()

    def _check_names(self, made: Any) -> None:
        names = [column.name for column in self._columns]
        if not isinstance(made, Mapping):
            way = "return a mapping from the names of the fields to arrays"
            also = "" if self._wants_out else ", or take a parameter `out` and write to its arrays"
            raise TypeError(f"a batch is a {type(made).__name__}; {way}{also}")
        for name in made:
            if name not in names:
                raise TypeError(f"{name!r} is no field of the batch, which has {', '.join(names)}")


def _references(handed: list[tuple[str, _Array]]) -> list[int]:
    return [sys.getrefcount(array) for _, array in handed]


def _check_kept(handed: list[tuple[str, _Array]], before: list[int]) -> None:
    """Whoever keeps an array could write to a batch that is with the trainers."""
    if _references(handed) == before:
        return
    gc.collect()
    after = _references(handed)
    kept = {repr(name): None for (name, _), old, new in zip(handed, before, after) if new > old}
    if kept:
        raise TypeError(
            f"the object keeps {', '.join(kept)} of `out` behind its call: the memory is that of "
            "the batch; keep a copy"
        )


def _unaliased(made: Mapping[str, Any], out: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with copies of what lies in the memory of another field, which is written first."""
    copies = {
        name: np.copy(value)
        for name, value in made.items()
        if isinstance(value, np.ndarray)
        and value is not out.get(name)
        and any(np.may_share_memory(value, one) for one in out.values())
    }
    return {**made, **copies} if copies else made


def _write_array(column: _Column, value: Any, to: _Array) -> None:
    try:
        dtype, array = coerce(value)
    except TypeError as error:
        raise _Fault("wrong_type", f"field '{column.name}': {error}") from None
    if dtype != column.dtype:
        raise _Fault("wrong_type", f"field '{column.name}' is {dtype}, not {column.dtype}")
    if array.shape != to.shape:
        got, want = list(array.shape), list(to.shape)
        raise _Fault("wrong_shape", f"field '{column.name}' has shape {got}, not {want}")
    np.copyto(to, array.view(to.dtype), casting="no")


def _write_texts(
    column: _Column,
    value: Any,
    rows: int,
    view: memoryview | None,
    offsets_view: memoryview | None,
) -> None:
    kind = _TEXTS[column.dtype]
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise _Fault(
            "wrong_type",
            f"field '{column.name}' is a {type(value).__name__}, not a list of {kind.__name__}",
        )
    if len(value) != rows:
        raise _Fault("wrong_shape", f"field '{column.name}' has {len(value)} rows, not {rows}")
    encode: Callable[[Any], bytes] = str.encode if kind is str else bytes
    for row, one in enumerate(value):
        if not isinstance(one, kind):
            raise _Fault(
                "wrong_type",
                f"field '{column.name}' is in row {row} a {type(one).__name__}, not "
                f"{kind.__name__}",
            )
    parts = [encode(one) for one in value]
    total = sum(map(len, parts))
    if total > column.bytes_max:
        raise _Fault(
            "too_large",
            f"field '{column.name}' has {total} bytes, a batch has room for {column.bytes_max}: "
            "raise bytes_max",
        )
    if view is None or offsets_view is None:
        return
    view[:total] = b"".join(parts)
    offsets = np.ndarray(rows + 1, np.int64, buffer=offsets_view)
    offsets[0] = 0
    np.cumsum([len(part) for part in parts], out=offsets[1:])
