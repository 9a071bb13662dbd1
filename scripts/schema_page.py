"""docs/reference/json.md: which schema is whose, and what may be relied on."""

import textwrap

from schema_verbs import VERBS, WEB
from schema_words import Schema

WIDTH = 118
WHAT = (
    "What `--json` prints, and what `ringfeed web` answers, has a schema (JSON Schema, draft "
    "2020-12) for each verb. Each file stands alone. It describes each member, with the unit of "
    "each number that measures something (`x-unit`). The package has the files in "
    "`share/ringfeed/schemas`."
)
RULES = (
    "**One object** goes to standard output; all other words go to standard error. `status` and "
    "`top --once` print one object for each feed, `dead-letters` one for each record, one after "
    "the other (`jq` reads such streams).",
    "**Units are in the names**: `_bytes`, `_ns`, `_us`, `_ms`, `_s`, `_per_s`, `_share` (0 to 1).",
    "**Numbers are numbers**, also those of 64 bits. Whoever holds them as floating point, as "
    "JavaScript does, loses the last digits above 2⁵³: of a seed, of a checksum.",
    '**Absent and null**: a member that does not apply is absent, or `""` where its schema says '
    "so. One whose value is not known is null.",
    "**Names of files** need not be UTF-8; what is not becomes U+FFFD.",
    "**A failure** has an exit status, and usually a sentence on standard error in place of an "
    "object. `check`, `doctor` and `inspect` print their object whatever they have found.",
)
PROMISE = (
    "`ringfeed version --json` and `ringfeed graph --json` say the version of the JSON as "
    "`json_version`; that of `/api/v1` is in the path. Within a version members may be added, also "
    "to objects that a schema calls closed, and so may enumerators; none is taken away, renamed, "
    "or given another type, unit or meaning. So a reader passes over members that it does not "
    "know. A schema describes its own release exactly: it is for tests, and for whoever generates "
    "code."
)
PLAIN = (
    "`/readyz`, and what is refused before it is understood (400, 405, 413, 431, and 503 for too "
    "many streams), is plain text."
)


def wrapped(text: str, first: str = "", indent: str = "") -> str:
    filled = textwrap.fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled + "\n"


def page(made: dict[str, Schema]) -> str:
    def rows(names: dict[str, str]) -> str:
        out = "| | schema | |\n|---|---|---|\n"
        for shown, name in names.items():
            said = made[name]["description"]
            out += f"| {shown} | [{name}.schema.json](schemas/{name}.schema.json) | {said} |\n"
        return out

    verbs = {f"`{name}`": name for name in VERBS}
    web = {f"`{path}`": name for path, name in WEB.items()}
    return (
        "# JSON\n\n"
        + wrapped(WHAT)
        + "\n"
        + "".join(wrapped(rule, "- ", "  ") for rule in RULES)
        + "\n## What may be relied on\n\n"
        + wrapped(PROMISE)
        + "\n## Verbs\n\n"
        + rows(verbs)
        + "\n## HTTP\n\n`F` is the name of a feed. `events` are server-sent events.\n\n"
        + rows({**web, "`application/json` with a status from 400 on": "web-error"})
        + "\n"
        + wrapped(PLAIN)
    )
