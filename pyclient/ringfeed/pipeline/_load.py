"""A configuration that somebody has written becomes a Feed again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import InvalidConfiguration
from . import _code, _text
from ._build import DEFAULT_PORT, STAGES_MAX, TOO_DEEP, Feed, Node, Output, Pipeline
from ._build import valid_feed_name, valid_name
from ._fields import Field, Group, InvalidArgument, Where, canonical, did_you_mean, fields_of
from ._schema import ENUMS

_TRUE, _FALSE = ("true", "True", "t", "1"), ("false", "False", "f", "0")


class _Binder:
    """Makes messages of a tree, and says where it cannot."""

    def __init__(self, file: str) -> None:
        self._file = file

    def error(self, place: Any, text: str) -> InvalidConfiguration:
        at = f":{place.line}:{place.column}" if place.line else ""
        return InvalidConfiguration(f"{self._file}{at}: {text[:_text.ERROR_MAX]}")

    def group(self, of: str, entries: Iterable[_text.Entry]) -> Group:
        fields = fields_of(of)
        found: dict[str, list[Any]] = {}
        for entry in entries:
            name = entry.name
            if name not in fields:
                near = did_you_mean(name, fields, "it has")
                raise self.error(entry, f"unknown field {name!r} in {of}{near}")
            field = fields[name]
            if name in found and not field.repeated:
                raise self.error(entry, f"{name} is given twice; keep one")
            values = entry.value.inside if entry.value.kind == "list" else (entry.value,)
            if entry.value.kind == "list" and not field.repeated:
                raise self.error(entry.value, f"{name} is a list; give one value")
            found.setdefault(name, []).extend(self._value(field, value) for value in values)
        kept = []
        for name, field in fields.items():
            if found.get(name):
                kept.append((name, tuple(found[name]) if field.repeated else found[name][0]))
        return Group(of, tuple(kept))

    def _value(self, field: Field, value: _text.Value) -> Any:
        if field.type == "message":
            if value.kind != "message":
                names = ", ".join(fields_of(field.of))
                raise self.error(value, f"{field.name} is a message, {{ ... }}, with {names}")
            return self.group(field.of, value.inside)
        plain = self._plain(field, value)
        try:
            return canonical(field._replace(repeated=False), plain, Where("", field.name))
        except InvalidArgument as error:
            said = str(error).partition("): ")[2].removeprefix("it ")
            raise self.error(value, f"{field.name} {said}") from None

    def _plain(self, field: Field, value: _text.Value) -> Any:
        """The value as Python has it; what cannot be is left to be refused."""
        if value.kind == "text" and field.type in ("text", "uint64"):
            return value.text
        if value.kind in ("word", "number"):
            text = value.text
            if field.type == "bool" and text in _TRUE + _FALSE:
                return text in _TRUE
            if field.type == "enum":
                numbers = {str(number): name for name, number in ENUMS[field.of].items()}
                return numbers.get(text, text)
            if field.type == "float" and (number := _real(text)) is not None:
                return number
            if field.type not in ("bool", "text", "float") and value.kind == "number":
                return _whole(text)
        shown = value.text if value.kind != "message" else "a message"
        if value.kind == "text" and field.type == "enum" and shown in ENUMS[field.of]:
            raise self.error(value, f'{field.name} is "{shown}"; write {shown} without quotes')
        if field.type == "text":
            raise self.error(value, f"{field.name} is {shown}; give a text in double quotes")
        return shown


def _real(text: str) -> float | None:
    try:
        return float(
            text.removesuffix("f").removesuffix("F")
            if text[-1:] in "fF" and (text[-2:-1].isdigit() or text[-2:-1] == ".")
            else text
        )
    except ValueError:
        return None


def _whole(text: str) -> int | str:
    digits = text.removeprefix("-")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if len(digits) > 1 and digits[0] == "0" else 10
    try:
        return int(text, base)
    except ValueError:
        return text


# ---- JSON


def _snake(name: str, known: Iterable[str]) -> str:
    """The name of the field; JSON may have it in camel case."""
    made = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return made if made in known else name


def _from_json(value: Any, field: Field | None, of: str) -> _text.Value:
    def leaf(kind: str, text: str, inside: tuple[Any, ...] = ()) -> _text.Value:
        return _text.Value(kind, text, inside, 0, 0)

    if isinstance(value, dict):
        fields = fields_of(of)
        entries = []
        for key, one in value.items():
            name = _snake(key, fields)
            if one is None:
                continue
            inner = fields.get(name)
            known = inner.of if inner is not None and inner.type == "message" else "CommonFields"
            entries.append(_text.Entry(name, _from_json(one, inner, known), 0, 0))
        return leaf("message", "", tuple(entries))
    if isinstance(value, list):
        return leaf("list", "", tuple(_from_json(one, field, of) for one in value))
    if isinstance(value, bool):
        return leaf("word", "true" if value else "false")
    if isinstance(value, (int, float)):
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 9e15
        return leaf("number", str(int(value)) if whole else repr(value))
    # JSON has words and large numbers as text.
    text = str(value)
    if field is not None and field.type in ("enum", "float"):
        return leaf("word", text)
    number = field is not None and field.type not in ("text", "message")
    return leaf("number" if number and text.lstrip("-").isdigit() else "text", text)


# ---- stages


def _with_code(group: Group, file: Path) -> Group:
    """Objects that are stored beside the configuration, read."""
    fields = fields_of(group.of)
    values = []
    for name, value in group.values:
        if fields[name].use == "code" and value.startswith(_code.STORED):
            path = Path(value.removeprefix(_code.STORED))
            try:
                data = path.read_bytes()
            except OSError as error:
                text = f"{name} is stored in {path}, which cannot be read: {error.strerror}"
                raise InvalidConfiguration(f"{file}: {text}") from error
            value = _code.Code(data, "mapped")
        values.append((name, value))
    return Group(group.of, tuple(values))


class _Stages:
    """The stages by name, and what each reads from."""

    def __init__(self, config: Group, file: Path) -> None:
        self._file = file
        self._groups: dict[str, tuple[str, Group]] = {}
        self._nodes: dict[str, Node] = {}
        self._taken: dict[str, str] = {}
        self._open: list[str] = []
        self.read: set[str] = set()
        stages = dict(config.values).get("stages", ())
        if len(stages) > STAGES_MAX:
            raise self._error(f"it has {len(stages)} stages; {STAGES_MAX} at most")
        for i, stage in enumerate(stages):
            values = dict(stage.values)
            name = values.pop("name", None)
            if not valid_name(name):
                raise self._error(
                    f"stages[{i}] has no name of the letters A-Z a-z 0-9 _ -, no - first"
                )
            if name in self._groups:
                raise self._error(f"two stages have the name {name!r}")
            if len(values) != 1:
                kinds = " and ".join(values) or "nothing"
                raise self._error(f"stage {name!r} is {kinds}; give exactly one kind")
            ((kind, group),) = values.items()
            self._groups[name] = (kind, _with_code(group, file))
        try:
            for name in self._groups:
                self.node(name)
        except RecursionError as error:
            raise self._error(TOO_DEEP) from error

    def _error(self, text: str) -> InvalidConfiguration:
        return InvalidConfiguration(f"{self._file}: {text}")

    @property
    def ends(self) -> list[str]:
        """Stages that no stage reads from."""
        return [name for name in self._groups if name not in self.read]

    def pipeline(self, said: str, by: str, use: str = "stage") -> Pipeline:
        """What "stage" or "stage.port" is; ``by`` is who says it, ``use`` what it is for him."""
        name, _, port = said.partition(".")
        if name in self._groups and use == "stage":
            whole = f"{name}.{port or DEFAULT_PORT}"
            if whole in self._taken:
                both = f"{self._taken[whole]} and by {by}"
                raise self._error(f"{whole} is read by {both}: an output feeds one input")
            self._taken[whole] = by
        if name not in self._groups:
            near = did_you_mean(name, self._groups, "there are")
            raise self._error(f"{by} names {said!r}, but there is no stage {name!r}{near}")
        return Pipeline(self.node(name), port or DEFAULT_PORT)

    def node(self, name: str) -> Node:
        if name in self._nodes:
            return self._nodes[name]
        if name in self._open:
            raise self._error(f"stages read from each other: {' <- '.join([*self._open, name])}")
        self._open.append(name)
        kind, group = self._groups[name]
        fields = fields_of(group.of)
        inputs, settings = [], []
        for setting, value in group.values:
            use = fields[setting].use
            if use == "stage":
                said = value if isinstance(value, tuple) else (value,)
                self.read |= {one.partition(".")[0] for one in said}
                pipelines = []
                for one in said:
                    pipelines.append(self.pipeline(one, name))
                inputs.append((setting, tuple(pipelines)))
            else:
                settings.append((setting, value))
        for i, (setting, value) in enumerate(settings):
            if fields[setting].use != "input":
                continue
            pipeline = self.pipeline(value, name, "input")
            if not any(pipeline.is_at(one) for _, read in inputs for one in read):
                raise self._error(f"{setting} of {name} is {value!r}, which is none of its inputs")
            settings[i] = (setting, pipeline)
        self._open.pop()
        node = Node(f"stage.{kind}", kind, tuple(settings), tuple(inputs), name, "", {})
        self._nodes[name] = node
        return node


def _outputs(config: Group, stages: _Stages, file: Path) -> tuple[Output, ...]:
    given = []
    for settings in dict(config.values).get("feed_output", ()):
        values = dict(settings.values)
        said = values.pop("stage", None)
        if said is None:
            if len(stages.ends) != 1:
                raise InvalidConfiguration(
                    f"{file}: a feed_output without stage, but {len(stages.ends)} stages that "
                    "nobody reads from: give it"
                )
            said = stages.ends[0]
        pipeline = stages.pipeline(said, "feed_output")
        given.append(Output(pipeline, Group(settings.of, tuple(values.items()))))
    named = {one._pipeline._node.name for one in given}
    rest = [name for name in stages.ends if name not in named]
    given += [
        Output(stages.pipeline(name, "the feed"), Group("FeedOutputConfig", ())) for name in rest
    ]
    return tuple(given)


def load(path: Path | str) -> Feed:
    """Read a configuration, as save() or a person has written it.

    Objects that save() has stored are read as they are, and not run. Comments are not kept.
    Args:
        path: A file in text format, or JSON if its name ends with .json.
    Returns:
        The same pipeline: saved again, it is the same configuration.
    Raises:
        InvalidConfiguration: It is no configuration; the text says where, and what is expected.
        OSError: It cannot be read.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidConfiguration(
            f"{file}: it is not text; `ringfeed check --part {file}` prints a serialized "
            "configuration as text"
        ) from error
    if file.suffix == ".json":
        try:
            tree = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InvalidConfiguration(f"{file}: it is no JSON: {error}") from error
        if not isinstance(tree, dict):
            raise InvalidConfiguration(f"{file}: it is JSON, but no object")
        try:
            entries = _from_json(tree, None, "DataLoaderConfig").inside
        except RecursionError as error:
            raise InvalidConfiguration(f"{file}: messages lie too deep in each other") from error
    else:
        entries = _text.parse(text, str(file))
    config = _Binder(str(file)).group("DataLoaderConfig", entries)
    values = dict(config.values)
    name = values.get("feed", file.stem)
    if not valid_feed_name(name):
        raise InvalidConfiguration(f"{file}: the name of the feed is {name!r}; give another one")
    if not values.get("stages"):
        raise InvalidConfiguration(f"{file}: it has no stages")
    stages = _Stages(config, file)
    settings = {"feed": name, **values}
    settings.pop("stages")
    settings.pop("feed_output", None)
    order = [field for field in fields_of("DataLoaderConfig") if field in settings]
    group = Group("DataLoaderConfig", tuple((key, settings[key]) for key in order))
    return Feed(_outputs(config, stages, file), group)
