"""Calls a stage's object with the samples that the runtime has."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable
from typing import Any

from .. import stage as stages
from . import exits, objects
from .chance import Generators


class Failure:
    """Stands in the list of outcomes for a sample whose call raised."""

    def __init__(self, error: str, trace: str) -> None:
        self.error = error
        self.traceback = trace


class Failures:
    """Makes them of exceptions; of each type only the first has its traceback in full."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def of(self, error: BaseException) -> Failure:
        """The outcome of a sample for which this was raised."""
        name = type(error).__name__
        if name in self._told:
            return Failure(name, f"{name}: {error}")
        self._told.add(name)
        # Without this package's own calls, which tell nobody anything.
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(
            "ringfeed.worker"
        ):
            trace = trace.tb_next
        lines = traceback.format_exception(type(error), error, trace)
        return Failure(name, "".join(lines).rstrip())


class Calls:
    """An object of a stage, ready to be called.

    `run` takes a list of samples and returns a list as long: for each a sample, None, a list of
    samples, or a Failure.
    """

    def __init__(self, spec: objects.Spec) -> None:
        self._process = os.getpid()
        self._generators = Generators(spec["key"])
        self._function = objects.make(spec)
        self._context = stages.Context(spec["stage"], spec["lane"], spec["lanes"])
        self.failure = Failure
        self.zero_copy = stages._wants_views(self._function)
        self.failed = Failures().of
        call = self._with_context()
        shape = objects.check_shape(spec, self._function)
        self._one: Callable[[Any], Any] = call
        if shape == "flat_map":
            self._one = lambda sample: stages._samples_of(call(sample))
        self._many = call if shape == "map_batch" else None
        self.takes_many = self._many is not None
        self._singly = False  # of those that are called with many
        self._is_map = shape == "map"
        self._generators.watch()

    def _with_context(self) -> Callable[[Any], Any]:
        """The object, called with the sample, and with the context if it asks for that."""
        function, context = self._function, self._context
        try:
            wanted = "ctx" in inspect.signature(function).parameters
        except (TypeError, ValueError):  # built in
            wanted = False
        self._wants_context = wanted
        if not wanted:
            return function

        def call(sample: Any) -> Any:
            if not isinstance(sample, list):
                context._about(sample)
            elif sample:
                context._about(sample[0])
            return function(sample, ctx=context)

        return call

    def run(self, samples: list[Any]) -> list[Any]:
        """One outcome for each sample, in their order."""
        outcomes = self._run(samples)
        while self._generators.drawn():
            for sample in samples:
                sample._reset()
            outcomes = self._run(samples)
        return outcomes

    def _run(self, samples: list[Any]) -> list[Any]:
        if self._many is not None:
            return self._run_many(samples)
        one = self._one
        seeds = self._generators.used
        outcomes: list[Any] = []
        for sample in samples:
            try:
                if seeds:
                    self._generators.begin(sample)
                outcomes.append(one(sample))
            except BaseException as error:  # also SystemExit: it is the sample's
                outcomes.append(self.failed(error))
            exits.end_child(self._process)
        if self._is_map:
            for i, outcome in enumerate(outcomes):
                if type(outcome) is list:
                    outcomes[i] = self.failed(
                        TypeError("a map returned a list; say @ringfeed.stage.flat_map")
                    )
        return outcomes

    def _run_many(self, samples: list[Any]) -> list[Any]:
        assert self._many is not None
        if len(samples) > 1 and (self._singly or self._generators.used):
            return [outcome for sample in samples for outcome in self._run_many([sample])]
        try:
            if self._generators.used:
                self._generators.begin(samples[0])
            made = list(self._many(list(samples)))
            if len(samples) > 1 and self._context._asked:
                # What follows from one sample is no other's: they come one at a time from now on.
                self._singly = True
                for sample in samples:
                    sample._reset()
                return self._run_many(samples)
            if len(made) != len(samples):
                raise ValueError(
                    f"a map_batch returned {len(made)} for {len(samples)} samples; return as many"
                )
            return made
        except BaseException as error:
            if len(samples) == 1:
                return [self.failed(error)]
        finally:
            exits.end_child(self._process)
        # One by one, so that only what is to blame is left out.
        outcomes = []
        for sample in samples:
            sample._reset()
            outcomes += self._run_many([sample])
        return outcomes
