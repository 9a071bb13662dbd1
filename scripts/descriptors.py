"""The messages of proto/ with their comments and options, as protoc describes them.

It needs no package: a descriptor set is a message like any other.
"""

import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

# Numbers of FieldDescriptorProto.type.
TYPES = {
    **{1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32"},
    **{8: "bool", 9: "string", 10: "group", 11: "message", 12: "bytes", 13: "uint32", 14: "enum"},
    **{15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64"},
}
REPEATED = 3
# The options of proto/fields.proto.
RANGE, PATH_USE = 51001, 51002


@dataclass
class Field:
    name: str
    number: int
    type: str
    type_name: str  # of a message or an enum: its full name, with the dot before it
    repeated: bool
    default: str | None
    range: dict[str, float]  # min, max, above
    is_path: bool
    comment: str


@dataclass
class Message:
    name: str
    comment: str
    fields: list[Field] = field(default_factory=list)


@dataclass
class Enum:
    name: str
    values: list[tuple[str, str]]  # name and comment
    numbers: dict[str, int]


@dataclass
class Schema:
    messages: dict[str, Message] = field(default_factory=dict)
    enums: dict[str, Enum] = field(default_factory=dict)


def wire(message):
    """The fields of a serialized message: number and value."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        count = varint() if key & 7 == 2 else (8 if key & 7 == 1 else 4)
        yield key >> 3, message[at : at + count]
        at += count


def varints(data):
    """Packed numbers."""
    numbers, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    return tuple(numbers)


def comments(file):
    """Path of a declaration in its file, as numbers, to the text before or beside it."""
    found = {}
    for info in (value for number, value in wire(file) if number == 9):
        for location in (value for number, value in wire(info) if number == 1):
            parts = dict(wire(location))
            text = parts.get(3, b"").decode() + parts.get(4, b"").decode()
            if text:
                found[varints(parts.get(1, b""))] = joined(text)
    return found


def joined(text):
    """Lines become paragraphs, and items of lists; each is one line."""
    paragraphs = []
    for paragraph in re.split(r"\n[ \t]*\n", text.strip()):
        lines = []
        for line in paragraph.split("\n"):
            if lines and not line.strip().startswith("- "):
                lines[-1] += " " + line.strip()
            else:
                lines.append(line.strip())
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def read_field(descriptor, comment):
    parts = dict(wire(descriptor))
    options = dict(wire(parts.get(8, b"")))
    limits = dict(wire(options.get(RANGE, b"")))
    names = {1: "min", 2: "max", 3: "above"}
    return Field(
        name=parts[1].decode(),
        number=parts[3],
        type=TYPES[parts[5]],
        type_name=parts.get(6, b"").decode(),
        repeated=parts[4] == REPEATED,
        default=parts[7].decode() if 7 in parts else None,
        range={names[number]: struct.unpack("<d", limit)[0] for number, limit in limits.items()},
        is_path=PATH_USE in options,
        comment=comment,
    )


def read_enum(descriptor, prefix, path, texts, schema):
    parts = list(wire(descriptor))
    name = f"{prefix}.{dict(parts)[1].decode()}"
    values = [dict(wire(value)) for number, value in parts if number == 2]
    numbers = {value[1].decode(): value[2] for value in values}
    said = [(value, texts.get((*path, 2, i), "")) for i, value in enumerate(numbers)]
    schema.enums[name] = Enum(name, said, numbers)


def read_message(descriptor, prefix, path, texts, schema):
    """The DescriptorProto and those in it."""
    parts = list(wire(descriptor))
    name = f"{prefix}.{dict(parts)[1].decode()}"
    message = schema.messages[name] = Message(name, texts.get(path, ""))
    at = {2: 0, 3: 0, 4: 0}
    for number, value in parts:
        if number not in at:
            continue
        inner = (*path, number, at[number])
        at[number] += 1
        if number == 2:
            message.fields.append(read_field(value, texts.get(inner, "")))
        elif number == 3:
            read_message(value, name, inner, texts, schema)
        else:
            read_enum(value, name, inner, texts, schema)


def read(root: Path) -> Schema:
    """All messages and enums of proto/, by their full names, which begin with a dot."""
    protos = sorted(str(path.relative_to(root)) for path in (root / "proto").rglob("*.proto"))
    with tempfile.NamedTemporaryFile() as out:
        words = [f"--descriptor_set_out={out.name}", "--include_source_info", f"-I{root}"]
        subprocess.run(["protoc", *words, *protos], check=True, cwd=root)
        files = [value for number, value in wire(Path(out.name).read_bytes()) if number == 1]
    schema = Schema()
    for file in files:
        parts = list(wire(file))
        package = next((value.decode() for number, value in parts if number == 2), "")
        if package != "ringfeed":
            continue
        texts = comments(file)
        at = {4: 0, 5: 0}
        for number, value in parts:
            if number not in at:
                continue
            path = (number, at[number])
            at[number] += 1
            read_one = read_message if number == 4 else read_enum
            read_one(value, f".{package}", path, texts, schema)
    return schema
