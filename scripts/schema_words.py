"""Words in which the JSON schemas of the command line are written (schema_verbs.py).

Every property has a description, and every number that measures something a unit: `x-unit`, which
is a keyword of ours that readers of schemas pass over. A number without one is a name: of a
process, a line, a seed.
"""

from typing import Any

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
# Of the JSON, as `ringfeed version --json` says it: 1 is also that of /api/v1.
VERSION = 1


def text(said: str) -> Schema:
    return {"description": said, "type": "string"}


def choice(said: str, *values: str) -> Schema:
    return {"description": said, "type": "string", "enum": list(values)}


def flag(said: str) -> Schema:
    return {"description": said, "type": "boolean"}


def whole(said: str, unit: str, least: int | None = 0) -> Schema:
    schema = {"description": said, "type": "integer", "x-unit": unit}
    return schema if least is None else {**schema, "minimum": least}


def real(said: str, unit: str) -> Schema:
    return {"description": said, "type": "number", "x-unit": unit}


def share(said: str) -> Schema:
    return {**real(said, "share"), "minimum": 0, "maximum": 1}


def name_number(said: str, least: int | None = 0) -> Schema:
    """A number that names something."""
    schema = {"description": said, "type": "integer"}
    return schema if least is None else {**schema, "minimum": least}


def or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def many(said: str, items: Schema) -> Schema:
    return {"description": said, "type": "array", "items": items}


def texts(said: str) -> Schema:
    return many(said, {"type": "string"})


def a(name: str) -> Schema:
    """What $defs has by this name."""
    return {"$ref": f"#/$defs/{name}"}


def one(said: str, name: str) -> Schema:
    return {"description": said, **a(name)}


def one_or_null(said: str, name: str) -> Schema:
    return {"description": said, "anyOf": [a(name), {"type": "null"}]}


class Maybe(dict[str, Any]):
    """A member that may be absent."""


def record(said: str, members: Schema | None = None, /, **more: Schema) -> Schema:
    """An object that has these members and no others."""
    all_members = {**(members or {}), **more}
    return {
        "description": said,
        "type": "object",
        "properties": {name: dict(schema) for name, schema in all_members.items()},
        "required": [name for name, one in all_members.items() if not isinstance(one, Maybe)],
        "additionalProperties": False,
    }


def table(said: str, values: Schema) -> Schema:
    """An object whose members are named after what there is."""
    return {"description": said, "type": "object", "additionalProperties": values}


def names_in(schema: Any) -> set[str]:
    """The names in $defs that it refers to."""
    if isinstance(schema, list):
        return set().union(*map(names_in, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    found = names_in(list(schema.values()))
    target = schema.get("$ref")
    return found | {target.removeprefix("#/$defs/")} if isinstance(target, str) else found


def document(name: str, title: str, schema: Schema, shared: dict[str, Schema]) -> Schema:
    """A schema that stands alone: with those of `shared` that it needs, and they need."""
    needed: set[str] = set()
    queue = names_in(schema)
    while queue:
        needed |= queue
        queue = names_in([shared[one] for one in queue]) - needed
    made = {
        "$schema": DRAFT,
        "$id": f"urn:ringfeed:json:{VERSION}:{name}",
        "title": title,
        **schema,
    }
    if needed:
        made["$defs"] = {one: shared[one] for one in sorted(needed)}
    return made


FEED = text("Name of the feed.")
STATES = ("STARTING", "WARMING", "RUNNING", "DRAINING", "ENDED", "FAILED")
