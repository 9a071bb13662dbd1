"""What the schema says of a setting, and whether a value is one that it may have.

A value is kept as a configuration has it: True, 8, 0.5 or text; the name of an enumerator; "64 MiB"
as it was written; ``Group`` for a message; a tuple for a setting that may come several times.
"""

from __future__ import annotations

import difflib
import json
import math
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import InvalidConfiguration

_UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *(B|KiB|MiB|GiB|TiB|)")
_SHOWN_MAX = 200  # characters of a value in a message


class Field(NamedTuple):
    """A field of a message.

    ``type``: "bool", "float", "text", "uint32" and its like, "enum" or "message"; ``of``: name of
    the enumeration or message. ``use``: what a text means: "stage" (an input: the stage that it
    reads from), "input" (one of the inputs), "path", "json" (an object, as text), "value" (a number
    or an array, as JSON writes it, or text as it is) or "code" (something to call).
    """

    name: str
    type: str
    of: str = ""
    repeated: bool = False
    least: float | None = None
    most: float | None = None
    above: float | None = None
    use: str = ""

    @property
    def is_size(self) -> bool:
        """May it be written with a unit, "64 MiB"?"""
        return self.type == "uint64" and self.name.endswith("_bytes")


class Group(NamedTuple):
    """A message: its values by name, in the order of the schema. ``of`` is the message's name."""

    of: str
    values: tuple[tuple[str, Any], ...]


class InvalidArgument(InvalidConfiguration):
    """A call of ``ringfeed.pipeline`` with an argument that cannot be.

    Attributes: ``method``: what was called, e.g. "batch"; ``argument``: e.g. "fields[0].dtype", or
    "" if it is about the call as a whole.
    """

    def __init__(self, method: str, argument: str, text: str) -> None:
        super().__init__(f"{method}({argument}): {text}")
        self.method = method
        self.argument = argument


class Where(NamedTuple):
    """The place of a value: the call and the argument."""

    method: str
    argument: str

    def inside(self, name: str) -> Where:
        return Where(self.method, f"{self.argument}{name}" if self.argument else name.lstrip("."))

    def error(self, text: str) -> InvalidArgument:
        return InvalidArgument(self.method, self.argument, text)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """ "; did you mean 'x'?", or the names that there are."""
    names = list(known)
    lower = {other.lower(): other for other in reversed(names)}
    near = difflib.get_close_matches(name.lower(), lower, 1, 0.6)
    near += [lower[one] for one in lower if one.startswith(name.lower())][: not near and 1]
    if near:
        return f"; did you mean {lower.get(near[0], near[0])!r}?"
    return f"; {otherwise} {', '.join(names)}" if names else ""


def shown(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_MAX else f"a {type(value).__name__} of {len(text)} letters"


# ---- numbers


def size_in_bytes(text: str) -> int | None:
    """Bytes of "64 MiB", "1.5 GiB" or "4096"; None: it is no size, or no whole number of bytes."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    whole, _, rest = match.group(1).partition(".")
    number, scale = int(whole + rest) << _UNITS[match.group(2) or "B"], 10 ** len(rest)
    near = (number + scale // 2) // scale
    # As exact as the supervisor wants it.
    return near if abs(number - near * scale) * 1000 <= scale else None


def _bytes(number: float) -> str:
    for unit, shift in reversed(_UNITS.items()):
        if number >= 1 << shift and number % (1 << shift) == 0:
            return f"{number / (1 << shift):.0f} {unit}"
    return f"{number:.0f}"


def allowed(field: Field) -> str:
    """What a number may be: "a whole number from 1 to 64"."""
    kind = "a number" if field.type == "float" else "a whole number"
    show = _bytes if field.is_size else lambda number: f"{number:.15g}"
    least, most = field.least, field.most
    if kind == "a whole number" and field.above is None:
        low, high = _limits(field)
        # Without a range the type itself is one that people know.
        least = low if least is None else least
        most = high if most is None and high < 1 << 40 else most
    words = []
    if field.above is not None:
        words.append(f"above {show(field.above)}")
    if least is not None:
        words.append(f"from {show(least)}" + (" on" if most is None else ""))
    if most is not None:
        words.append(("to " if least is not None else "at most ") + show(most))
    joint = " and " if field.above is not None and len(words) > 1 else " "
    range_text = (" " + joint.join(words)) if words else ""
    if field.is_size:
        return f'a size{range_text}: a number of bytes, or with a unit, such as "64 MiB"'
    return kind + range_text


def _limits(field: Field) -> tuple[int, int]:
    bits = 32 if field.type.endswith("32") else 64
    if field.type.startswith("u"):
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _in_range(field: Field, number: float) -> bool:
    return not (
        math.isnan(number)
        and (field.least, field.most, field.above) != (None, None, None)
        or field.least is not None
        and number < field.least
        or field.most is not None
        and number > field.most
        or field.above is not None
        and number <= field.above
    )


def _whole(field: Field, value: Any, where: Where) -> int | str:
    number: int | None
    if field.is_size and isinstance(value, str):
        number = size_in_bytes(value)
    else:
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
    low, high = _limits(field)
    if number is None or not low <= number <= high or not _in_range(field, number):
        raise where.error(f"it is {shown(value)}; give {allowed(field)}")
    return value if isinstance(value, str) else number


def _real(field: Field, value: Any, where: Where) -> float:
    number = None
    if not isinstance(value, (bool, str, bytes)):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    if number is None or not _in_range(field, number):
        raise where.error(f"it is {shown(value)}; give {allowed(field)}")
    return number


# ---- everything else


def _text(field: Field, value: Any, where: Where) -> str:
    if field.use == "json" and isinstance(value, Mapping):
        try:
            return json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise where.error(f"it cannot be written as JSON: {error}") from error
    if field.use == "value" and not isinstance(value, (str, bytes)):
        try:
            # NaN and infinities are numbers here.
            return json.dumps(value.tolist() if hasattr(value, "tolist") else value)
        except (TypeError, ValueError) as error:
            raise where.error(f"it cannot be written as JSON: {error}") from error
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, bytes) and field.use == "path":
        value = os.fsdecode(value)
    if not isinstance(value, str):
        wanted = {"path": "a path", "json": "a mapping, or JSON as text"}.get(field.use, "text")
        raise where.error(f"it is {shown(value)}; give {wanted}")
    if "\0" in value:
        raise where.error("it has a byte of zero in it")
    return value


def _word(field: Field, value: Any, where: Where) -> str:
    from ._schema import ENUMS

    names = ENUMS[field.of]
    if isinstance(value, str) and value in names:
        return value
    near = did_you_mean(value, names, "") if isinstance(value, str) else ""
    near = near if near.startswith("; did") else ""
    raise where.error(f"it is {shown(value)}; give one of {', '.join(names)}{near}")


def fields_of(of: str) -> dict[str, Field]:
    """The fields of a message, by name."""
    from ._schema import MESSAGES

    return {field.name: field for field in MESSAGES[of]}


def group(of: str, values: Mapping[str, Any], where: Where) -> Group:
    """A message out of its values by name. None is a value that is not given.

    Raises:
        InvalidArgument: It has no such field, or the field cannot have the value.
    """
    fields = fields_of(of)
    # `as` is a keyword of Python, so that it is `as_` there.
    given = {str(name).removesuffix("_"): value for name, value in values.items()}
    for name in given:
        if name not in fields:
            text = f"there is no {name!r}" + did_you_mean(name, fields, "there are")
            raise where.error(text)
    kept = []
    for name, field in fields.items():
        value = canonical(field, given.get(name), where.inside(f".{name}"))
        if value is not None:
            kept.append((name, value))
    return Group(of, tuple(kept))


def _message(field: Field, value: Any, where: Where) -> Group:
    made = getattr(value, "_group", value)
    if isinstance(made, Group) and made.of == field.of:
        return made
    if isinstance(value, Mapping):
        return group(field.of, value, where)
    first = next(iter(fields_of(field.of).values()))
    if isinstance(value, str) and first.name == "name":
        return group(field.of, {"name": value}, where)
    names = ", ".join(fields_of(field.of))
    raise where.error(f"it is {shown(value)}; give a mapping, with {names}")


def _by_name(field: Field, value: Mapping[str, Any], where: Where) -> tuple[Group, ...]:
    """{"id": "int64", "vector": ("float64", 3)}: the values behind each name, in order."""
    names = list(fields_of(field.of))
    found = []
    for name, rest in value.items():
        values = rest if isinstance(rest, tuple) else (rest,)
        at = where.inside(f"[{name!r}]")
        if len(values) >= len(names):
            raise at.error(f"it has {len(values)} values; there are {', '.join(names[1:])}")
        found.append(group(field.of, dict(zip(names, (name, *values))), at))
    return tuple(found)


def canonical(field: Field, value: Any, where: Where) -> Any:
    """The value as a configuration has it; None stays None: not given.

    Raises:
        InvalidArgument: The field cannot have it.
    """
    if value is None:
        return None
    if not field.repeated:
        return _one(field, value, where)
    if field.type == "message" and isinstance(value, Mapping):
        named = next(iter(fields_of(field.of))) == "name"
        if named:
            return _by_name(field, value, where) or None
    single = isinstance(value, (str, bytes, os.PathLike, Mapping, Group)) or not isinstance(
        value, Iterable
    )
    if single and not isinstance(value, Iterable) and field.type == "message":
        if not hasattr(value, "_group"):
            names = ", ".join(fields_of(field.of))
            raise where.error(f"it is {shown(value)}; give a list of mappings, each with {names}")
    values: Sequence[Any] = [value] if single else list(value)
    if single:
        return (_one(field, value, where),)
    made = tuple(_one(field, one, where.inside(f"[{i}]")) for i, one in enumerate(values))
    return made or None


def _one(field: Field, value: Any, where: Where) -> Any:
    if field.type == "message":
        return _message(field, value, where)
    if field.type == "enum":
        return _word(field, value, where)
    if field.type == "bool":
        if type(value).__name__ in ("bool", "bool_"):  # Python's and NumPy's
            return bool(value)
        raise where.error(f"it is {shown(value)}; give True or False")
    if field.type == "text":
        return _text(field, value, where)
    return _real(field, value, where) if field.type == "float" else _whole(field, value, where)
