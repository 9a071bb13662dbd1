"""The modules of ringfeed.pipeline that are written from the schema: scripts/reference calls this.

What stands here by hand is which methods there are and which kind of stage each of them is. Their
arguments, types, ranges and texts are those of the schema.
"""

import keyword
import re
import textwrap
from dataclasses import dataclass, field

WIDTH = 100
CONFIG, STAGE, COMMON, OUTPUT = (
    f".ringfeed.{name}"
    for name in ("DataLoaderConfig", "StageConfig", "CommonFields", "FeedOutputConfig")
)
# What a setting calls; the schema has it as text.
CODE = {("PythonConfig", "object"), ("PythonBatcherConfig", "object")}
# Text in which paths are written that need not be there.
PATHS = {("FilePathProviderConfig", "pattern")}
WRITTEN = "Written by scripts/reference from proto/, where each setting is explained."
# Arguments that the methods of a feed and of an output do not have: they are what it is called on.
OF_FEED = ("stages", "feed_output", "feed")
OF_OUTPUT = ("stage",)


@dataclass
class Method:
    """A method that is a stage, or a function where a pipeline begins."""

    name: str
    kind: str
    first: str = ""  # the setting that is given without its name
    several: bool = False  # any number of them
    suggested: str = ""  # name of the stage; "": as what it calls
    begins: bool = False
    where: str = ""  # what the text of the stage must say for it
    called: dict[str, str] = field(default_factory=dict)  # settings under other names
    fixed: dict[str, str] = field(default_factory=dict)


SOURCE = "Without an input it is a source"
METHODS = [
    Method("files", "file_path_provider", "pattern", True, "files", begins=True),
    Method("indices", "index_source", "count", suggested="indices", begins=True),
    Method(
        "mix",
        "sample_mixer",
        "input",
        True,
        "mixed",
        begins=True,
        called={"weight": "weights", "input": "inputs"},
    ),
    Method("source", "python", "object", begins=True, where=SOURCE),
    Method("read", "sample_source", suggested="samples"),
    Method("map", "python", "object"),
    Method("shuffle", "sample_shuffler", "size", suggested="shuffled"),
    Method("batch", "sample_batcher", "batch_size", suggested="batches"),
    Method("collate", "python_batcher", "object"),
]
# Each format of sample_source is a method of its own.
FORMATS = ("sample_source", "format", "BY_NAME")


class Writer:
    def __init__(self, schema):
        self.schema = schema
        stage = schema.messages[STAGE]
        self.kinds = {one.name: one.type_name for one in stage.fields if one.type == "message"}
        self.common = {one.name: one for one in schema.messages[COMMON].fields}
        self.messages = self.reached()
        self.methods = [
            one
            for one in [*METHODS, *self.formats()]
            if one.where in schema.messages[self.kinds[one.kind]].comment
        ]

    # ---- what there is

    def reached(self):
        """Messages of a configuration, those of the kinds of stages included."""
        found, queue = [], [CONFIG, OUTPUT, COMMON]
        while queue:
            name = queue.pop(0)
            if name in found:
                continue
            found.append(name)
            queue += [one.type_name for one in self.schema.messages[name].fields if one.type_name]
            queue = [one for one in queue if one in self.schema.messages]
        return found

    def enums(self):
        """Names of the enumerations in these messages."""
        fields = [one for of in self.messages for one in self.fields(of)]
        return sorted({one.type_name for one in fields if one.type == "enum"})

    def formats(self):
        kind, setting, by_name = FORMATS
        of = next(one for one in self.fields(self.kinds[kind]) if one.name == setting)
        suggested = {"JSONL": "lines", "TEXT": "lines", "NPY": "rows"}
        return [
            Method(
                value.lower(),
                kind,
                suggested=suggested.get(value, "samples"),
                fixed={setting: value},
            )
            for value, _ in self.schema.enums[of.type_name].values
            if value != by_name
        ]

    def fields(self, of):
        return self.schema.messages[of].fields

    def shared(self, of, one):
        """The field of CommonFields that a setting of a stage is."""
        return self.common.get(one.name) if of in self.kinds.values() else None

    def comment(self, of, one):
        shared = self.shared(of, one)
        # An input that says itself where it comes from has nothing in common with the others.
        if shared is None or '"stage.port"' in one.comment:
            return one.comment
        return " ".join(text for text in (shared.comment, one.comment) if text)

    def limits(self, of, one):
        shared = self.shared(of, one)
        return one.range or (shared.range if shared else {})

    def use(self, of, one):
        """What a text means: see Field.use."""
        comment = self.comment(of, one)
        if (self.short(of), one.name) in CODE:
            return "code"
        if (self.short(of), one.name) in PATHS:
            return "path"
        if "as JSON writes it" in " ".join(comment.split()):
            return "value"
        if one.type != "string" or of not in self.kinds.values():
            return "path" if one.is_path else ""
        if '"stage.port"' in comment:
            return "stage"
        if "written as in `input`" in comment:
            return "input"
        if "as a JSON object" in comment:
            return "json"
        return "path" if one.is_path else ""

    @staticmethod
    def short(name):
        """SampleSourceConfig, ChunkSourceSplitterConfig.Output."""
        return name.removeprefix(".ringfeed.")

    def public(self, name):
        """What Python calls it: SampleField, ChunkSourceSplitterOutput."""
        return self.short(name).replace("Config", "").replace(".", "")

    # ---- types and texts

    def scalar(self, of, one, prefix):
        use = self.use(of, one)
        if use in ("stage", "input"):
            return "Pipeline"
        if one.type == "message":
            kinds = [f"{prefix}{self.public(one.type_name)}", "Mapping[str, object]"]
            return " | ".join(kinds + ["str"] * self.is_named(one.type_name))
        if one.type == "enum":
            return f"{prefix}{self.public(one.type_name)}"
        if one.type == "uint64" and one.name.endswith("_bytes"):
            return "int | str"
        if one.type == "string":
            text = {"path": "str | PathLike[str]", "json": "Mapping[str, object] | str"}
            text["value"] = "str | float | Iterable[object]"
            return {**text, "code": "str | Callable[..., object]"}.get(use, "str")
        return {"bool": "bool", "double": "float", "float": "float"}.get(one.type, "int")

    def is_named(self, of):
        """Whether a name alone makes such a message."""
        return self.fields(of)[0].name == "name"

    def type(self, of, one, prefix):
        scalar = self.scalar(of, one, prefix)
        if not one.repeated:
            return scalar
        if one.type == "message":
            return f"{prefix}{self.public(one.type_name)}s"
        return f"{scalar} | Sequence[{scalar}]"

    def several(self, of):
        """The type of a setting that has several such messages."""
        one = [self.public(of), "Mapping[str, object]", *["str"] * self.is_named(of)]
        whole = f"Iterable[{' | '.join(one)}]" + " | Mapping[str, object]" * self.is_named(of)
        line = f"{self.public(of)}s: TypeAlias = {whole}"
        return (
            [line]
            if len(line) <= WIDTH
            else [f"{self.public(of)}s: TypeAlias = (", f"    {whole}", ")"]
        )

    def is_required(self, of, one):
        comment = self.comment(of, one)
        if one.name == "input" and SOURCE in self.schema.messages[of].comment:
            return False
        single = re.search(r"\bRequired\.|; required\.?$", comment) or "At least one" in comment
        return bool(single) and self.use(of, one) != "input" and of in self.kinds.values()

    def about(self, of, one):
        """The text of an argument: its range, its default, what it is."""
        facts, shown = [], number_of(one)
        limits = {name: shown(value) for name, value in self.limits(of, one).items()}
        if "above" in limits:
            facts.append(f"above {limits['above']}")
        if "min" in limits:
            facts.append(
                f"{limits['min']} to {limits['max']}"
                if "max" in limits
                else f"from {limits['min']}"
            )
        elif "max" in limits:
            facts.append(f"at most {limits['max']}")
        if one.default is not None:
            facts.append(f"default {python_default(one, shown)}")
        text = self.comment(of, one)
        if one.default is not None:
            text = re.sub(rf"\s*\b[Dd]efault:? {re.escape(one.default)}\.", "", text)
        if "min" in limits and "max" in limits:
            said = re.escape(f"{limits['min']} to {limits['max']}")
            text = re.sub(rf"(?:[;.]|^)\s*{said}\.?$", ".", text).removeprefix(".")
        head = f"({', '.join(facts)}) " if facts else ""
        values = ""
        if one.type == "enum":
            said = [f"{name}: {about}" if about else name for name, about in self.enum(one)]
            values = " " + "; ".join(text.rstrip(".;") for text in said) + "."
        return " ".join((head + text + values).split())

    def enum(self, one):
        return self.schema.enums[one.type_name].values

    def order(self, of):
        """Settings in the order of a call: inputs, its own, those that many stages have."""
        fields = self.fields(of)
        inputs = [one for one in fields if self.use(of, one) == "stage"]
        own = [one for one in fields if one not in inputs and self.shared(of, one) is None]
        return inputs + own + [one for one in fields if one not in inputs and one not in own]

    # ---- modules

    def schema_module(self):
        lines = ['"""The messages of a configuration.', "", WRITTEN, '"""', ""]
        lines += ["from ._fields import Field", ""]
        lines += ["# Kind of stage to the message of its settings.", "KINDS: dict[str, str] = {"]
        lines += [f'    "{kind}": "{self.short(of)}",' for kind, of in self.kinds.items()]
        lines += ["}", "", "# Of each enumeration its names, with their numbers."]
        lines.append("ENUMS: dict[str, dict[str, int]] = {")
        for name in self.enums():
            numbers = self.schema.enums[name].numbers
            values = [f'"{value}": {number}' for value, number in numbers.items()]
            lines += wrapped_call(f'    "{self.short(name)}": ', "{", values, "},")
        lines += ["}", "", "# Of each message its fields."]
        lines.append("MESSAGES: dict[str, tuple[Field, ...]] = {")
        for of in self.messages:
            fields = [f"Field({', '.join(self.field(of, one))})" for one in self.fields(of)]
            if len(fields) == 1:
                lines += wrapped_call(f'    "{self.short(of)}": ', "(", fields, "),")
                continue
            lines.append(f'    "{self.short(of)}": (')
            for one in self.fields(of):
                lines += wrapped_call("        ", "Field(", self.field(of, one), "),")
            lines.append("    ),")
        return module([*lines, "}"])

    def field(self, of, one):
        kind = {"string": "text", "double": "float"}.get(one.type, one.type)
        words = [f'"{one.name}"', f'"{kind}"']
        if one.type_name:
            words.append(f'"{self.short(one.type_name)}"')
        if one.repeated:
            words.append("repeated=True")
        names = {"min": "least", "max": "most", "above": "above"}
        limits = self.limits(of, one)
        words += [f"{name}={number(limits[key])}" for key, name in names.items() if key in limits]
        if use := self.use(of, one):
            words.append(f'use="{use}"')
        return words

    def settings_module(self):
        text = "Messages in the settings of stages and feeds, and the words that settings may have."
        lines = [f'"""{text}', "", WRITTEN, '"""', "", "from __future__ import annotations", ""]
        lines += [
            ABC,
            "from os import PathLike",
        ]
        lines += [
            "from typing import Literal, TypeAlias",
            "",
            "from ._call import Message, checked",
            "",
        ]
        inner = [
            of
            for of in self.messages
            if of not in (CONFIG, STAGE, OUTPUT, COMMON, *self.kinds.values())
        ]
        for name in self.enums():
            values = [f'"{value}"' for value, _ in self.schema.enums[name].values]
            lines += wrapped_call(f"{self.public(name)} = ", "Literal[", values, "]")
        for of in inner:
            args = [(argument(one.name), self.about(of, one)) for one in self.fields(of)]
            text = self.schema.messages[of].comment or f"`{self.short(of)}` of the schema."
            lines += ["", "", f"class {self.public(of)}(Message):", *docstring(text, args, "    ")]
            lines += ["", "    __slots__ = ()", "", "    @checked", "    def __init__("]
            lines.append("        self,")
            for one in self.fields(of):
                name = argument(one.name)
                lines.append(f"        {name}: {self.type(of, one, '')} | None = None,")
            lines += ["    ) -> None:", f'        self._take("{self.short(of)}", locals())']
        lines += ["", "", "# What a setting takes that has several of them."]
        fields = [one for of in self.messages for one in self.fields(of) if one.repeated]
        several = {one.type_name for one in fields if one.type == "message"} & set(inner)
        for of in sorted(several):
            lines += self.several(of)
        return module(lines)

    def stage_module(self):
        lines = [
            '"""A function for every kind of stage, with its settings.',
            "",
            WRITTEN,
            '"""',
            "",
        ]
        lines += [*self.imports(), "    from ._build import Pipeline"]
        for kind, of in self.kinds.items():
            lines += ["", "", "@_call.checked", f"def {kind}("]
            lines += ["    *,", *self.parameters(of, "    ", {}), "    name: str | None = None,"]
            lines.append(") -> Pipeline:")
            lines += self.doc_of(of, self.schema.messages[of].comment, "    ", {}, ())
            lines.append(f'    return _call.stage("stage.{kind}", "{kind}", locals())')
        return module(lines)

    def imports(self):
        return [
            *("from __future__ import annotations", "", ABC),
            *("from os import PathLike", "from typing import TYPE_CHECKING", ""),
            *("from . import _call, settings", "", "if TYPE_CHECKING:"),
        ]

    def parameters(self, of, indent, called, leave_out=(), required_too=True):
        lines, last = [], []
        for one in self.order(of):
            if one.name in leave_out:
                continue
            name = called.get(one.name, argument(one.name))
            kind = self.type(of, one, "settings.")
            if required_too and self.is_required(of, one):
                lines.append(f"{indent}{name}: {kind},")
            else:
                last.append(f"{indent}{name}: {kind} | None = None,")
        return lines + last

    def doc_of(self, of, text, indent, called, leave_out, first=()):
        args = [
            (called.get(one.name, argument(one.name)), self.about(of, one))
            for one in self.order(of)
            if one.name not in leave_out
        ]
        name = ("name", "Name of the stage; default: a sensible one.")
        return docstring(text, [*first, *args, name], indent)

    def methods_module(self):
        lines = ['"""The methods of pipelines, and the functions where they begin.', ""]
        lines += [WRITTEN, '"""', "", *self.imports()]
        lines += ["    from ._build import Feed, Output, Pipeline"]
        begin = sorted(["feed", *(method.name for method in self.methods if method.begins)])
        lines += ["", *wrapped_call("__all__ = ", "[", [f'"{name}"' for name in begin], "]")]
        for method in self.methods:
            if method.begins:
                lines += self.method(method, "")
        lines += ["", "", *self.feed_method("", "*outputs: Pipeline | Output", "outputs")]
        lines += ["", "", "class FeedMethods:", '    """What becomes a feed."""', ""]
        lines += ["    __slots__ = ()", "", *self.feed_method("    ", "self", "(self,)")]
        lines += ["", "", "class PipelineMethods(FeedMethods):"]
        lines += ['    """The stages that can follow."""', "", "    __slots__ = ()"]
        for method in self.methods:
            if not method.begins:
                lines += self.method(method, "    ")
        lines += ["", *self.output_method()]
        return module(lines)

    def method(self, method, indent):
        of = self.kinds[method.kind]
        fields = {one.name: one for one in self.fields(of)}
        wired = [] if method.begins and not method.where else ["input"]
        leave_out = [*method.fixed, *wired, *([method.first] if method.first else [])]
        inside = indent + "    "
        lines = ["", *([""] if method.begins else []), f"{indent}@_call.checked"]
        lines += [f"{indent}def {method.name}(", *([] if method.begins else [f"{inside}self,"])]
        first = []
        if method.first:
            one = fields[method.first]
            name = method.called.get(one.name, argument(one.name))
            if method.several:
                lines.append(f"{inside}*{name}: {self.scalar(of, one, 'settings.')},")
            else:
                missing = "" if self.is_required(of, one) else " | None = None"
                lines.append(f"{inside}{name}: {self.type(of, one, 'settings.')}{missing},")
                lines.append(f"{inside}*,")
            first = [(f"*{name}" if method.several else name, self.about(of, one))]
        else:
            lines.append(f"{inside}*,")
        lines += self.parameters(of, inside, method.called, leave_out)
        lines += [f"{inside}name: str | None = None,", f"{indent}) -> Pipeline:"]
        comment = self.schema.messages[of].comment
        summary, _, rest = comment.partition("\n\n")
        fixed = " and ".join(f"`{name}: {value}`" for name, value in method.fixed.items())
        note = f"A stage `{method.kind}`" + (f" with {fixed}" if fixed else "") + "."
        text = "\n\n".join(part for part in (summary, note, rest) if part)
        lines += self.doc_of(of, text, inside, method.called, leave_out, first)
        words = [f'"{method.name}"', f'"{method.kind}"', "locals()"]
        if method.suggested:
            words.append(f'suggested="{method.suggested}"')
        if method.called:
            pairs = ", ".join(f'"{key}": "{value}"' for key, value in method.called.items())
            words.append(f"called={{{pairs}}}")
        words += [f'{name}="{value}"' for name, value in method.fixed.items()]
        return lines + wrapped_call(inside, "return _call.stage(", words, ")")

    def feed_method(self, indent, first, outputs):
        inside = indent + "    "
        lines = [f"{indent}@_call.checked", f"{indent}def feed("]
        before = [f"{inside}name: str,", f"{inside}{first},"]
        lines += before if first.startswith("*") else [*reversed(before), f"{inside}*,"]
        lines += self.parameters(CONFIG, inside, {}, OF_FEED, required_too=False)
        lines.append(f"{indent}) -> Feed:")
        args = [("name", self.about(CONFIG, self.field_of(CONFIG, "feed")))]
        if first.startswith("*"):
            args.append(
                (
                    "*outputs",
                    "What trainers read: pipelines that end with batches, or output() of them.",
                )
            )
        args += [
            (argument(one.name), self.about(CONFIG, one))
            for one in self.order(CONFIG)
            if one.name not in OF_FEED
        ]
        text = "Make a feed, whose batches trainers read. It can be saved, checked and started."
        lines += docstring(text, args, inside)
        return [*lines, f"{inside}return _call.feed({outputs}, locals())"]

    def output_method(self):
        lines = ["    @_call.checked", "    def output(", "        self,"]
        lines += ["        alias: str | None = None,", "        *,"]
        lines += self.parameters(OUTPUT, "        ", {}, (*OF_OUTPUT, "alias"), required_too=False)
        lines.append("    ) -> Output:")
        names = ["alias", *(one.name for one in self.fields(OUTPUT))]
        names = [name for i, name in enumerate(names) if name not in (*OF_OUTPUT, *names[:i])]
        args = [(name, self.about(OUTPUT, self.field_of(OUTPUT, name))) for name in names]
        text = "Give the batches of the last stage settings of their own, or a name among several."
        lines += docstring(text, args, "        ")
        return [*lines, "        return _call.output(self, locals())"]

    def field_of(self, of, name):
        return next(one for one in self.fields(of) if one.name == name)


# ---- text

ABC = "from collections.abc import "


def module(lines):
    """Its text; of collections.abc it imports what it uses."""
    used = "\n".join(lines)
    names = [
        name
        for name in ("Callable", "Iterable", "Mapping", "Sequence")
        if re.search(rf"\b{name}\[", used)
    ]
    return used.replace(ABC, ABC + ", ".join(names), 1) + "\n"


def argument(name):
    return f"{name}_" if keyword.iskeyword(name) else name


def number(value):
    return str(int(value)) if value == int(value) else repr(value)


def number_of(one):
    """How a number of this field is shown."""

    def shown(value):
        if one.type == "uint64" and one.name.endswith(("_bytes", "bytes_max")):
            for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
                if value >= 1 << shift and value % (1 << shift) == 0:
                    return f"{int(value) >> shift} {unit}"
        return number(value) if abs(value) < 1e15 else f"{value:g}"

    return shown


def python_default(one, shown):
    if one.type == "bool":
        return one.default.capitalize()
    if one.type == "enum":
        return f'"{one.default}"'
    return shown(float(one.default)) if one.type != "string" else repr(one.default)


def wrapped_call(indent, opening, words, closing):
    """On one line, or its words on the next, or each on a line of its own: as black has it."""
    trail = "," if opening == "(" and len(words) == 1 else ""
    line = f"{indent}{opening}{', '.join(words)}{trail}{closing}"
    if len(line) <= WIDTH:
        return [line]
    inside = " " * (len(indent) - len(indent.lstrip(" ")) + 4)
    inner = f"{inside}{', '.join(words)}"
    outside = inside[4:]
    if len(inner) <= WIDTH and opening not in ("(", "{", "Literal["):
        return [f"{indent}{opening}", inner, f"{outside}{closing}"]
    return [f"{indent}{opening}", *(f"{inside}{word}," for word in words), f"{outside}{closing}"]


def docstring(text, args, indent):
    """A docstring of paragraphs, lists and arguments."""
    lines = []
    width = WIDTH - len(indent)

    # The quotes take room of the first line.
    def fill(line, first, rest):
        first = first if lines else 4 * " "
        return textwrap.wrap(
            line,
            width,
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )

    for paragraph in text.split("\n\n") if text else []:
        lines += [""] if lines else []
        for line in paragraph.split("\n"):
            item = line.startswith("- ")
            lines += fill(line.removeprefix("- "), "- " if item else "", "  " if item else "")
    if args:
        lines += ["Args:"] if not lines else ["", "Args:"]
        for name, about in args:
            lines += fill(f"{name}: {about or 'See the schema.'}", "    ", "        ")
    raw = "r" if any("\\" in line for line in lines) else ""
    lines[0] = f'{raw}"""{lines[0].strip()}'
    if len(lines) == 1 and len(lines[0]) + 3 <= width:
        return [f'{indent}{lines[0]}"""']
    return [f"{indent}{line}".rstrip() for line in [*lines, '"""']]


def modules(schema):
    """Name of each module to its text."""
    writer = Writer(schema)
    return {
        "_schema.py": writer.schema_module(),
        "settings.py": writer.settings_module(),
        "stage.py": writer.stage_module(),
        "_methods.py": writer.methods_module(),
    }
