"""From a stage's ``object`` and ``options`` to what is called."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

from .. import stage as stages
from .awaited import awaited

PICKLE = "pickle:"


class Spec(TypedDict):
    """What the module says of a stage (workers/python/interpreter/module.cc)."""

    object: str
    options: str
    python_path: list[str]
    source: int
    batch: int
    fields: str
    state: str  # what states of a source are worth
    batcher: str  # the kind of stage that makes batches
    stage: str
    lane: int
    lanes: int
    key: int
    feed: int  # tells it from all others; of a stage that runs


class OwnSpec(Spec):
    """The same for a process that runs no lane."""

    at_once: int  # samples that the object may get, at most


@awaited
def find(spec: Spec) -> Any:
    """The object that the stage names, not yet made."""
    for place in reversed(spec["python_path"]):
        if place not in sys.path:
            sys.path.insert(0, place)
    name = spec["object"]
    if name.startswith(PICKLE):
        return _unpickled(Path(name.removeprefix(PICKLE)))
    module_name, _, path = name.partition(":")
    found = importlib.import_module(module_name)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise AttributeError(f"module {module_name} has no {path}{_nearest(found)}") from None
    if not callable(found) and not spec["source"]:
        raise TypeError(f"{name} is a {type(found).__name__}; name a function or a class")
    return found


def _nearest(module: Any) -> str:
    names = [
        name
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    return f"; it has {', '.join(sorted(names)[:10])}" if names else ""


def _unpickled(path: Path) -> Any:
    # Only what this user alone could have written is run.
    info = path.stat()
    if info.st_mode & 0o077:
        raise PermissionError(f"{path} may be read or written by others: chmod 600 {path}")
    with contextlib.suppress(ImportError):
        import cloudpickle  # noqa: F401  (what it wrote may need it)
    with path.open("rb") as file:
        return pickle.load(file)


def options(spec: Spec) -> dict[str, Any]:
    """The keyword arguments.

    Raises:
        ValueError: They are no JSON object.
    """
    if not spec["options"]:
        return {}
    try:
        given = json.loads(spec["options"])
    except json.JSONDecodeError as error:
        raise ValueError(f"options are no JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(f"options are a {type(given).__name__}; give a JSON object")
    return given


@awaited
def make(spec: Spec) -> Callable[..., Any]:
    """What is called for each sample: a class is made, options of a function are fixed."""
    found = find(spec)
    given = options(spec)
    if inspect.isclass(found):
        made = found(**given)
        if not callable(made):
            raise TypeError(f"{spec['object']} has no __call__")
        return made
    if not given:
        return found  # type: ignore[no-any-return]

    # Its attributes stay: the decorators' marks are there.
    def call(*arguments: Any, **named: Any) -> Any:
        return found(*arguments, **named, **given)

    call.__dict__.update(getattr(found, "__dict__", {}))
    call.__signature__ = _without(found, given)  # type: ignore[attr-defined]
    return call


def check_shape(spec: Spec, found: Any) -> str:
    """What the stage's object does: "map", "flat_map", "map_batch" or "batch".

    Raises:
        TypeError: The kind of stage calls no such object.
    """
    shape = stages._shape_of(found)
    name = spec["object"]
    if spec["batch"] and shape != "batch":
        raise TypeError(
            f"{name} is a {shape}: a stage python calls it. A stage {spec['batcher']} makes "
            "batches with a function that is marked @ringfeed.stage.batch, or a class that "
            "derives from ringfeed.stage.Batch"
        )
    if not spec["batch"] and shape == "batch":
        raise TypeError(
            f"{name} makes batches: a stage {spec['batcher']} calls it, as the last one. A stage "
            "python gives samples to a map, flat_map or map_batch"
        )
    if shape not in ("map", "flat_map", "map_batch", "batch"):
        raise TypeError(f"{name} is a stage of an unknown shape, {shape}")
    return shape


def batch_parameters(spec: Spec, signature: inspect.Signature) -> list[str]:
    """Which of ``out`` and ``ctx`` are given to what makes batches, by its signature.

    Raises:
        TypeError: It cannot be called with these.
    """
    named = [name for name in ("out", "ctx") if name in signature.parameters]
    try:
        signature.bind([], **dict.fromkeys(named))
    except TypeError as error:
        raise TypeError(
            f"{spec['object']} is called with a list of samples, and with `out` and `ctx` if it "
            f"has parameters of these names: {error}"
        ) from None
    return named


@awaited
def make_source(spec: Spec) -> Any:
    """What is read: a class or function is called with the options, anything else is it."""
    found = find(spec)
    given = options(spec)
    if inspect.isclass(found) or inspect.isroutine(found):
        return found(**given)
    if given:
        raise TypeError(f"{spec['object']} is no class or function: options mean nothing to it")
    return found


def _without(function: Callable[..., Any], given: dict[str, Any]) -> inspect.Signature:
    whole = inspect.signature(function)
    whole.bind_partial(**given)  # a TypeError that names what is unknown
    left = [one for name, one in whole.parameters.items() if name not in given]
    return whole.replace(parameters=left)


def _call_of(found: Any, given: dict[str, Any]) -> inspect.Signature:
    """How it, or what is made of it, is called."""
    if not inspect.isclass(found):
        return _without(found, given)
    whole = inspect.signature(found.__call__)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


@awaited
def check(spec: Spec) -> str:
    """What is wrong with the stage's object, without making it; "": nothing."""
    try:
        found = find(spec)
        given = options(spec)
        with contextlib.suppress(ValueError):  # what has no signature is tried when it is made
            if not callable(found):
                return ""
            signature = inspect.signature(found)
            if inspect.isclass(found) or spec["source"]:
                signature.bind(**given)
            elif given:
                signature.bind_partial(**given)
            if not spec["source"]:
                check_shape(spec, found)
            if spec["batch"]:
                batch_parameters(spec, _call_of(found, given))
            if hasattr(found, "__ringfeed_check__"):
                found.__ringfeed_check__(**given)
    except BaseException as error:  # whatever a module does when it is imported
        return f"{type(error).__name__}: {error} (with {sys.executable})"
    return ""
