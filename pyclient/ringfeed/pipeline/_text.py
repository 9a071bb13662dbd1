"""Configurations in text format: written as people write them, and read as a tree.

The supervisor has its own reader (supervisor/config/tree.h); this one takes the same forms. Neither
is protobuf's, which takes no sizes with a unit.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import InvalidConfiguration
from ._code import Code
from ._fields import Field, Group, fields_of

_WIDTH = 100
ERROR_MAX = 1000  # letters of an error: a word may be a whole pasted file
HEAD = "# proto-file: proto/config.proto\n# proto-message: ringfeed.DataLoaderConfig\n"
# What a person writes first; then come the stages, and the rest.
_FIRST = ("feed", "seed", "epochs", "drop_remainder", "from_batch")


# ---- writing


def _quoted(text: str) -> str:
    out = []
    for byte_or_letter in text:
        known = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
        if byte_or_letter in known:
            out.append(known[byte_or_letter])
        elif byte_or_letter.isprintable():
            out.append(byte_or_letter)
        else:
            raw = byte_or_letter.encode("utf-8", "surrogateescape")
            out.append("".join(f"\\{byte:03o}" for byte in raw))
    return '"' + "".join(out) + '"'


def _scalar(field: Field, value: Any) -> str:
    if field.type == "bool":
        return "true" if value else "false"
    if field.type == "enum":
        return str(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


def _lines(group: Group, indent: str) -> list[str]:
    lines: list[str] = []
    fields = fields_of(group.of)
    for name, value in group.values:
        field = fields[name]
        values = value if field.repeated else (value,)
        if field.type == "message":
            for one in values:
                inside = _lines(one, indent + "  ")
                flat = f"{indent}{name} {{ {' '.join(line.strip() for line in inside)} }}"
                nested = any(fields_of(one.of)[key].type == "message" for key, _ in one.values)
                if not inside:
                    lines.append(f"{indent}{name} {{}}")
                # The settings of a stage stand below each other.
                elif len(flat) <= _WIDTH and not nested and len(indent) >= 4:
                    lines.append(flat)
                else:
                    lines += [f"{indent}{name} {{", *inside, f"{indent}}}"]
        elif len(values) > 1 and field.type != "text":
            lines.append(f"{indent}{name}: [{', '.join(_scalar(field, one) for one in values)}]")
        else:
            lines += [f"{indent}{name}: {_scalar(field, one)}" for one in values]
    return lines


def _with_names(group: Group, keep: Callable[[str, Code], str], stage: str = "") -> Group:
    """The same, with what stored objects are called in their place."""
    stage = dict(group.values).get("name", stage) if group.of == "StageConfig" else stage

    def one(value: Any) -> Any:
        if isinstance(value, Group):
            return _with_names(value, keep, stage)
        return keep(stage, value) if isinstance(value, Code) else value

    values = tuple(
        (name, tuple(map(one, value)) if type(value) is tuple else one(value))
        for name, value in group.values
    )
    return Group(group.of, values)


def write(config: Group, keep: Callable[[str, Code], str]) -> str:
    """A DataLoaderConfig as text. ``keep`` stores an object in it and says what it is called."""
    values = dict(_with_names(config, keep).values)
    stages = values.pop("stages", ())
    first = [(name, values.pop(name)) for name in _FIRST if name in values]
    blocks = [_lines(Group(config.of, tuple(first)), "")]
    blocks += [_lines(Group(config.of, (("stages", (stage,)),)), "") for stage in stages]
    outputs = {name: values.pop(name) for name in ("feed_output",) if name in values}
    rest = [*outputs.items(), *values.items()]
    blocks += [_lines(Group(config.of, (one,)), "") for one in rest]
    return HEAD + "\n" + "\n".join("\n".join(lines) + "\n" for lines in blocks if lines)


# ---- reading


class Value(NamedTuple):
    """``kind``: "text", "word", "number", "message" (``inside`` are its entries) or "list"."""

    kind: str
    text: str
    inside: tuple[Any, ...]
    line: int
    column: int


class Entry(NamedTuple):
    name: str
    value: Value
    line: int
    column: int


_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r\n\f\v]+|\#[^\n]*)+)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>-?[ \t]*(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?)(?![\w.]))
    |(?P<word>-?[ \t]*[A-Za-z_]\w*)
    |(?P<mark>[{}<>\[\]:,;])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.S)
_LETTERS = {
    **{bytes([letter]): bytes([letter]) for letter in b"\\\"'?"},
    **{b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"},
}
_CLOSING = {"{": "}", "<": ">", "[": "]"}
_DEPTH_MAX = 100


def _unquoted(token: str) -> str:
    def one(match: re.Match[bytes]) -> bytes:
        escape = match.group(1)
        if escape[:1] in b"01234567":
            return bytes([int(escape, 8) & 0xFF])
        if escape[:1] == b"x" and len(escape) > 1:
            return bytes([int(escape[1:], 16)])
        if escape[:1] in b"uU" and len(escape) > 1:
            return chr(int(escape[1:], 16)).encode("utf-8", "surrogatepass")
        if escape not in _LETTERS:
            raise ValueError
        return _LETTERS[escape]

    raw = _ESCAPE.sub(one, token[1:-1].encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "surrogateescape")


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._at = 0
        self._depth = 0
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._next()

    def _place(self, at: int) -> tuple[int, int]:
        line = bisect.bisect_right(self._line_starts, at)
        return line, at - self._line_starts[line - 1] + 1

    def error(self, text: str, at: int | None = None) -> InvalidConfiguration:
        line, column = self._place(self.start if at is None else at)
        return InvalidConfiguration(f"{self._file}:{line}:{column}: {text[:ERROR_MAX]}")

    def _next(self) -> None:
        """To the next token: ``kind``, ``token``, and where it starts."""
        while True:
            self.start = self._at
            if self._at == len(self._text):
                self.kind = self.token = ""
                return
            match = _TOKEN.match(self._text, self._at)
            if match is None:
                raise self.error(f"{self._text[self._at]!r} is no part of a configuration here")
            self._at = match.end()
            self.kind, self.token = str(match.lastgroup), match.group()
            if self.kind != "space":
                return

    def _take(self, token: str) -> bool:
        if self.kind != "mark" or self.token != token:
            return False
        self._next()
        return True

    def entries(self, closing: str, opened: int = 0) -> tuple[Entry, ...]:
        found: list[Entry] = []
        while True:
            while self._take(",") or self._take(";"):
                pass
            if (self.token == closing and self.kind == "mark") or not (self.kind or closing):
                break
            if not self.kind:
                raise self.error(f"{closing!r} is missing for what begins here", opened)
            if self.kind != "word" or self.token.startswith("-"):
                raise self.error(f"the name of a field is expected, not {self.token!r}")
            name, (line, column) = self.token, self._place(self.start)
            self._next()
            colon = self._take(":")
            if not colon and self.token not in ("{", "<"):
                raise self.error(f"':' is missing after {name}")
            found.append(Entry(name, self._value(), line, column))
        self._next()
        return tuple(found)

    def _value(self) -> Value:
        opened = self.start
        line, column = self._place(opened)
        kind, token = self.kind, self.token
        if kind == "mark" and token in _CLOSING:
            self._depth += 1
            if self._depth > _DEPTH_MAX:
                raise self.error(f"more than {_DEPTH_MAX} messages in each other")
            self._next()
            if token == "[":
                value = Value("list", "", self._items(), line, column)
            else:
                inside = self.entries(_CLOSING[token], opened)
                value = Value("message", "", inside, line, column)
            self._depth -= 1
            return value
        if kind not in ("text", "number", "word"):
            raise self.error(
                f"a value is expected, not {token!r}" if token else "a value is missing"
            )
        self._next()
        if kind != "text":
            return Value(kind, re.sub(r"[ \t]", "", token), (), line, column)
        parts = [token]
        while self.kind == "text":
            parts.append(self.token)
            self._next()
        try:
            return Value("text", "".join(map(_unquoted, parts)), (), line, column)
        except (ValueError, OverflowError) as error:
            text = "an unknown escape in a text; write \\\\ for a backslash"
            raise self.error(text, opened) from error

    def _items(self) -> tuple[Value, ...]:
        items: list[Value] = []
        while not self._take("]"):
            if items and not self._take(","):
                raise self.error("',' or ']' is missing")
            items.append(self._value())
        return tuple(items)


def parse(text: str, file: str) -> tuple[Entry, ...]:
    """The fields of a configuration. ``file`` is what errors call it.

    Raises:
        InvalidConfiguration: It is no text format; the text says where, and what is expected.
    """
    return _Reader(text, file).entries("")
