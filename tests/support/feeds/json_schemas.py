"""The schemas of docs/reference/schemas: what fits them, and which of their members were seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema

from tests.support.feeds.feed_run import ROOT

SCHEMAS = ROOT / "docs" / "reference" / "schemas"


def read_all() -> dict[str, Any]:
    """By the names of the files without the ending."""
    return {
        path.name.removesuffix(".schema.json"): json.loads(path.read_text())
        for path in sorted(SCHEMAS.glob("*.schema.json"))
    }


def objects_of(text: str) -> Iterator[Any]:
    """The objects of a stream, whatever is between them."""
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        found, end = decoder.raw_decode(text)
        yield found
        text = text[end:]


class Schemas:
    def __init__(self) -> None:
        self.all = read_all()
        self.used: set[str] = set()
        self.seen: set[str] = set()

    def check(self, name: str, value: Any) -> None:
        """Fails if it does not fit, with the place."""
        schema = self.all[name]
        validator = jsonschema.Draft202012Validator(schema)
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
        assert error is None, f"{name}: {error.json_path}: {error.message}\n{value!r:.2000}"
        self.used.add(name)
        self._walk(name, schema, schema, value)

    def _walk(self, place: str, schema: Any, whole: Any, value: Any) -> None:
        if "$ref" in schema:
            # Parts that several have are named after themselves: seen in one, seen in all.
            place = schema["$ref"].rpartition("/")[2]
            self._walk(place, whole["$defs"][place], whole, value)
        for number, branch in enumerate(schema.get("anyOf", [])):
            there = {**branch, "$defs": whole.get("$defs", {})}
            if jsonschema.Draft202012Validator(there).is_valid(value):
                self._walk(f"{place}|{number}", branch, whole, value)
        if isinstance(value, list):
            for item in value:
                self._walk(place, schema.get("items", {}), whole, item)
        if not isinstance(value, dict):
            return
        known = schema.get("properties", {})
        for name, inner in value.items():
            if name in known:
                self.seen.add(f"{place}.{name}")
                self._walk(f"{place}.{name}", known[name], whole, inner)
            elif isinstance(schema.get("additionalProperties"), dict):
                self._walk(f"{place}.*", schema["additionalProperties"], whole, inner)

    def members(self) -> dict[str, Any]:
        """All that there are, as `seen` names them."""
        found: dict[str, Any] = {}

        def collect(place: str, schema: Any) -> None:
            for name, inner in schema.get("properties", {}).items():
                found[f"{place}.{name}"] = inner
                collect(f"{place}.{name}", inner)
            for number, branch in enumerate(schema.get("anyOf", [])):
                collect(f"{place}|{number}", branch)
            if isinstance(schema.get("items"), dict):
                collect(place, schema["items"])
            if isinstance(schema.get("additionalProperties"), dict):
                collect(f"{place}.*", schema["additionalProperties"])

        for name, schema in self.all.items():
            collect(name, schema)
            for part, of_part in schema.get("$defs", {}).items():
                collect(part, of_part)
        return found
