"""What the generated modules call: arguments become a stage, a message or a feed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ._code import code_of, label_of
from ._fields import Field, Group, InvalidArgument, Where, canonical, did_you_mean, fields_of, group
from ._fields import shown

if TYPE_CHECKING:
    from ._build import Feed, Output, Pipeline

P = ParamSpec("P")
R = TypeVar("R")


def _label(function: Callable[..., Any]) -> str:
    """How errors call it."""
    if function.__name__ == "__init__":
        return function.__qualname__.rpartition(".")[0]
    in_stage = function.__module__.endswith(".stage")
    return f"stage.{function.__name__}" if in_stage else function.__name__


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Arguments that the function does not have, or lacks, are reported with the nearest name."""
    signature = inspect.signature(function)
    named = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.name != "self"
    ]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        label = _label(function)
        for name in kwargs:
            if name not in named:
                near = did_you_mean(name, named, "there are")
                raise InvalidArgument(label, name, f"there is no argument {name!r}{near}")
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            missing = str(error).partition("missing a required argument: ")[2].strip("'")
            text = "it is required" if missing else str(error)
            raise InvalidArgument(label, missing, text) from None
        return function(*args, **kwargs)

    return call


class Message:
    """A message of a configuration. It never changes."""

    __slots__ = ("_group",)
    _group: Group

    def _take(self, of: str, arguments: Mapping[str, Any]) -> None:
        label = type(self).__name__
        values = {name: value for name, value in arguments.items() if name != "self"}
        object.__setattr__(self, "_group", group(of, values, Where(label, "")))

    def __reduce__(self) -> tuple[Callable[..., Message], tuple[type[Message], Group]]:
        return _again, (type(self), self._group)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} does not change: make another one")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and other._group == self._group

    def __hash__(self) -> int:
        return hash(self._group)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._group.values)
        return f"{type(self).__name__}({inside})"


def _again(of: type[Message], group: Group) -> Message:
    made = of.__new__(of)
    object.__setattr__(made, "_group", group)
    return made


def _read_from(value: Any, where: Where) -> Pipeline:
    from ._build import Pipeline

    if isinstance(value, Pipeline):
        return value
    raise where.error(f"it is {shown(value)}; give a pipeline, such as rp.files(...)")


def _inputs(field: Field, value: Any, where: Where) -> tuple[Pipeline, ...]:
    if field.repeated and value in ((), []):
        raise where.error("give at least one pipeline")
    if not field.repeated or not isinstance(value, (list, tuple)):
        return (_read_from(value, where),)
    return tuple(_read_from(one, where.inside(f"[{i}]")) for i, one in enumerate(value))


def stage(
    method: str,
    kind: str,
    arguments: Mapping[str, Any],
    *,
    suggested: str = "",
    called: Mapping[str, str] | None = None,
    **fixed: Any,
) -> Pipeline:
    """A stage out of the arguments of a call.

    Args:
        method: What was called, for errors.
        arguments: By the names of the call: those of the settings, except for ``called``. ``self``
            is the pipeline before it.
        suggested: What the stage is called without ``name``; "": as what it calls, or as its kind.
        called: Settings that the call has under other names.
        fixed: Settings that the call does not have.
    Raises:
        InvalidArgument: It names the argument.
    """
    from ._build import Node, Pipeline, valid_name
    from ._schema import KINDS

    called = dict(called or {})
    of = KINDS[kind]
    given = {name: value for name, value in arguments.items() if name not in ("self", "name")}
    if "self" in arguments:
        called.setdefault("input", "self")
        given["self"] = arguments["self"]
    values: list[tuple[str, Any]] = []
    inputs: list[tuple[str, tuple[Pipeline, ...]]] = []
    for setting, field in fields_of(of).items():
        argument = called.get(setting, f"{setting}_" if f"{setting}_" in given else setting)
        value = fixed.get(setting, given.get(argument))
        where = Where(method, argument)
        if value is None:
            continue
        if field.use == "stage":
            inputs.append((setting, _inputs(field, value, where)))
        elif field.use == "input":
            values.append((setting, _read_from(value, where)))
        elif field.use == "code":
            values.append((setting, code_of(value, where)))
            suggested = suggested or label_of(values[-1][1])
        else:
            value = canonical(field, value, where)
            if value is not None:
                values.append((setting, value))
    for setting, value in values:
        read = [pipeline for _, pipelines in inputs for pipeline in pipelines]
        if isinstance(value, Pipeline) and not any(map(value.is_at, read)):
            raise Where(method, called.get(setting, setting)).error("it is none of the inputs")
    name = arguments.get("name")
    if name is not None and not valid_name(name):
        text = f"it is {shown(name)}; give 1 to 64 of the letters A-Z a-z 0-9 _ -, no - first"
        raise InvalidArgument(method, "name", text)
    return Pipeline(Node(method, kind, tuple(values), tuple(inputs), name, suggested, called))


def then(before: Pipeline, kind: Any, settings: Mapping[str, Any]) -> Pipeline:
    from ._schema import KINDS

    if kind not in KINDS:
        near = did_you_mean(str(kind), KINDS, "there are")
        raise InvalidArgument("then", "kind", f"there is no kind of stage {shown(kind)}{near}")
    known = fields_of(KINDS[kind])
    if "input" not in known:
        raise InvalidArgument("then", "kind", f"a {kind} reads from no stage; use stage.{kind}()")
    for name in settings:
        if name.removesuffix("_") not in [*known, "name"] or name == "input":
            names = ["name", *(one for one in known if one != "input")]
            near = did_you_mean(name, names, "there are")
            raise InvalidArgument("then", name, f"{kind} has no setting {name!r}{near}")
    return stage("then", kind, {"self": before, **settings})


def output(pipeline: object, arguments: Mapping[str, Any]) -> Output:
    from ._build import Output, Pipeline

    assert isinstance(pipeline, Pipeline)
    values = {name: value for name, value in arguments.items() if name != "self"}
    settings = group("FeedOutputConfig", values, Where("output", ""))
    return Output(pipeline, settings)


def feed(outputs: tuple[Any, ...], arguments: Mapping[str, Any]) -> Feed:
    from ._build import Feed, Output, Pipeline, valid_feed_name

    made = []
    for i, one in enumerate(outputs):
        if not isinstance(one, (Output, Pipeline)):
            text = f"it is {shown(one)}; give a pipeline or its output()"
            raise InvalidArgument("feed", f"outputs[{i}]", text)
        made.append(one if isinstance(one, Output) else Output(one, Group("FeedOutputConfig", ())))
    if not made:
        raise InvalidArgument("feed", "outputs", "give at least one pipeline")
    name = arguments["name"]
    if not valid_feed_name(name):
        text = (
            f"it is {shown(name)}; give 1 to 64 of the letters A-Z a-z 0-9 _ . -, no . or - first"
        )
        raise InvalidArgument("feed", "name", text)
    values = {key: arguments[key] for key in arguments if key not in ("self", "outputs", "name")}
    settings = group("DataLoaderConfig", {"feed": name, **values}, Where("feed", ""))
    return Feed(tuple(made), settings)
