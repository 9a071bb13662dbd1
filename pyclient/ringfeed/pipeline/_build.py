"""Pipelines, outputs and feeds, and the configuration that they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _call, _code, _text
from ._fields import Group, InvalidArgument, fields_of, shown
from ._methods import FeedMethods, PipelineMethods
from ._schema import KINDS

if TYPE_CHECKING:
    from ._run import Loader, Report

DEFAULT_PORT = "output"
STAGES_MAX = 1024  # of a feed, as the supervisor has it
TOO_DEEP = "more stages behind each other than Python's stack has room for"
_FEED_OUTPUT = "feed_output"


def valid_name(name: Any) -> bool:
    """Is it a name of a stage?"""
    return isinstance(name, str) and re.fullmatch(r"(?!-)[A-Za-z0-9_-]{1,64}", name) is not None


def valid_feed_name(name: Any) -> bool:
    return isinstance(name, str) and re.fullmatch(r"(?![.-])[A-Za-z0-9_.-]{1,64}", name) is not None


class Node(NamedTuple):
    """A stage: what was called, its settings without its inputs, and its inputs.

    A setting that names one of the inputs is that Pipeline. ``called``: settings that the call has
    under other names.
    """

    method: str
    kind: str
    settings: tuple[tuple[str, Any], ...]
    inputs: tuple[tuple[str, tuple[Pipeline, ...]], ...]
    name: str | None
    suggested: str
    called: dict[str, str]


class Pipeline(PipelineMethods):
    """Stages up to an output of one of them. It never changes: each method gives a new one.

    Several stages may read from one pipeline; each then has stages of its own, which read the data
    for themselves, because an output of a stage feeds one input. Two pipelines are equal if they
    are the same configuration.
    """

    __slots__ = ("_node", "_port")
    _node: Node
    _port: str

    def __init__(self, node: Node, port: str = DEFAULT_PORT) -> None:
        object.__setattr__(self, "_node", node)
        object.__setattr__(self, "_port", port)

    def __reduce__(self) -> tuple[type[Pipeline], tuple[Node, str]]:
        return Pipeline, (self._node, self._port)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a pipeline does not change: its methods give new ones")

    def __getitem__(self, port: str) -> Pipeline:
        """Another output of the last stage, by its name; `output` is the one without asking.

        The outputs of a stage, read by different names, are those of one stage.
        """
        if not valid_name(port):
            text = f"it is {shown(port)}; give the name of an output of the stage"
            raise InvalidArgument(self._node.method, "[]", text)
        return Pipeline(self._node, port)

    def then(self, kind: str, /, **settings: Any) -> Pipeline:
        """Add a stage of any kind, by its name in a configuration.

        ``stage`` has a function for each kind, which editors complete and check.
        Args:
            kind: E.g. "chunk_unpacker"; `ringfeed stages` lists them.
            settings: Its settings, and ``name``.
        Raises:
            InvalidArgument: There is no such kind, or a setting cannot be.
        """
        return _call.then(self, kind, settings)

    def is_at(self, other: Pipeline) -> bool:
        """Is it the same output of the same stage?"""
        return self._node is other._node and self._port == other._port

    def graph(self) -> str:
        """The stages as text, and what each reads from."""
        return _drawn(_lay_out([self]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and _of_pipeline(other) == _of_pipeline(self)

    def __hash__(self) -> int:
        return hash(_of_pipeline(self))

    def __repr__(self) -> str:
        return f"<Pipeline {_chain(_lay_out([self]))}>"


class Output(FeedMethods):
    """Batches that trainers read, with the settings of that output. It never changes."""

    __slots__ = ("_pipeline", "_settings")
    _pipeline: Pipeline
    _settings: Group

    def __init__(self, pipeline: Pipeline, settings: Group) -> None:
        object.__setattr__(self, "_pipeline", pipeline)
        object.__setattr__(self, "_settings", settings)

    def __reduce__(self) -> tuple[type[Output], tuple[Pipeline, Group]]:
        return Output, (self._pipeline, self._settings)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an output does not change: make another one")

    def __eq__(self, other: object) -> bool:
        mine = (self._pipeline, self._settings)
        return isinstance(other, Output) and (other._pipeline, other._settings) == mine

    def __hash__(self) -> int:
        return hash((self._pipeline, self._settings))

    def __repr__(self) -> str:
        return f"<Output of {self._pipeline!r}>"


class Feed:
    """A whole configuration. It never changes; feeds are equal if their configurations are."""

    __slots__ = ("_outputs", "_settings", "_laid")
    _outputs: tuple[Output, ...]
    _settings: Group
    _laid: Layout

    def __init__(self, outputs: tuple[Output, ...], settings: Group) -> None:
        object.__setattr__(self, "_outputs", outputs)
        object.__setattr__(self, "_settings", settings)
        object.__setattr__(self, "_laid", _lay_out([one._pipeline for one in outputs]))

    def __reduce__(self) -> tuple[type[Feed], tuple[tuple[Output, ...], Group]]:
        return Feed, (self._outputs, self._settings)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a feed does not change: make another one")

    @property
    def name(self) -> str:
        """The name by which trainers attach."""
        return str(dict(self._settings.values).get("feed", ""))

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages, in the order of the configuration."""
        return tuple(stage.name for stage in self._laid.stages)

    def text(self) -> str:
        """The configuration in text format, as save() writes it.

        Objects that cannot be imported are stored by save() alone; here they are named.
        """
        return _text.write(self._config(), _code.named_by_digest)

    def save(self, path: Path | str) -> None:
        """Write the configuration into a file that `ringfeed run` takes.

        Objects that cannot be imported are written into files beside it, `NAME.STAGE.….pickle`,
        which only their owner can read; the configuration names them by their absolute paths.
        Args:
            path: A file, in text format, so that its name should end with .textproto. It is
                replaced.
        Raises:
            OSError: It cannot be written; what was there is as it was.
        """
        file = Path(path)
        text = _text.write(self._config(), _code.keeper(file.parent, file.stem))
        aside = file.with_name(f".{file.name}.new")
        try:
            aside.write_text(text, encoding="utf-8")
            aside.replace(file)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def check(self) -> Report:
        """Have `ringfeed check` look at it.

        Returns:
            What the feed would be: its batches, its memory, and what to look out for.
        Raises:
            InvalidConfiguration: It cannot be; the text lists the mistakes, each with the method
                and the argument, and ``problems`` has them one by one.
            RingfeedError: A program that it needs is missing.
        """
        from . import _run

        return _run.check(self)

    def start(
        self, timeout_s: float | None = None, *, wait_s: float | None = None, view: str = "readonly"
    ) -> Loader:
        """Start the feed beside this process, and attach to it.

        It is this process's own: it ends with the ``with`` block, with stop(), or with this
        process, and leaves nothing behind. For trainers in other processes, save() it and use
        `ringfeed run`.

            with feed.start() as loader:
                for batch in loader:                 # name -> array

        Args:
            timeout_s: Longest wait for the start, in seconds; None: no limit.
            wait_s: Longest wait for a batch, in seconds; None: no limit.
            view: "readonly", "private" or "copy" arrays, as for ringfeed.attach().
        Raises:
            InvalidConfiguration: As check().
            FeedFailed: It has ended at once; the text is what it said.
            FeedTimeout: It did not start in time; it has been stopped again.
        """
        from . import _run

        return _run.start(self, timeout_s, wait_s, view)

    def graph(self) -> str:
        """The stages as text, and what each reads from."""
        return f"{self.name}: {_drawn(self._laid)}"

    def _config(self) -> Group:
        """The DataLoaderConfig, with objects to store as they are."""
        outputs = []
        for one, (stage, port) in zip(self._outputs, self._laid.ends):
            values = one._settings.values
            # Otherwise it is the one output that no stage reads.
            if len(self._outputs) > 1 or port != DEFAULT_PORT:
                values = (*values, ("stage", _reference(stage, port)))
            if values:
                outputs.append(Group("FeedOutputConfig", values))
        return Group(
            "DataLoaderConfig",
            (
                ("stages", tuple(_stage(stage) for stage in self._laid.stages)),
                *self._settings.values,
                *([(_FEED_OUTPUT, tuple(outputs))] if outputs else []),
            ),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Feed) and other._config() == self._config()

    def __hash__(self) -> int:
        return hash(self._config())

    def __repr__(self) -> str:
        return f"<Feed {self.name}: {_chain(self._laid)}>"


# ---- from pipelines to stages


@dataclass(eq=False)
class Stage:
    """A stage of a configuration."""

    node: Node
    inputs: list[tuple[str, list[tuple[Stage, str]]]]
    name: str = ""

    @property
    def references(self) -> Iterator[tuple[Pipeline, str]]:
        """Each pipeline that it reads from, and how its settings call that."""
        for (_, pipelines), (_, made) in zip(self.node.inputs, self.inputs):
            for pipeline, (stage, port) in zip(pipelines, made):
                yield pipeline, _reference(stage, port)


class Layout(NamedTuple):
    stages: list[Stage]  # each behind those that it reads from
    ends: list[tuple[Stage, str]]


def _reference(stage: Stage, port: str) -> str:
    return stage.name if port == DEFAULT_PORT else f"{stage.name}.{port}"


@dataclass
class _Laying:
    """Gives each reader of an output a stage of its own, with stages of its own before it.

    The first reader of each output of a stage shares one copy of it, the second ones the next.
    """

    stages: list[Stage] = field(default_factory=list)
    copies: dict[tuple[int, int], Stage] = field(default_factory=dict)
    readers: dict[tuple[int, str], int] = field(default_factory=dict)
    open: int = 0  # stages whose inputs are under way

    def place(self, pipeline: Pipeline) -> tuple[Stage, str]:
        node = pipeline._node
        reader = self.readers.get((id(node), pipeline._port), 0)
        self.readers[id(node), pipeline._port] = reader + 1
        stage = self.copies.get((id(node), reader))
        if stage is None:
            if len(self.copies) + self.open >= STAGES_MAX:
                why = "each reader of a pipeline has stages of its own"
                raise InvalidArgument(node.method, "", f"more than {STAGES_MAX} stages: {why}")
            # Loops, so that a stage costs one level of Python's stack.
            made: list[tuple[str, list[tuple[Stage, str]]]] = []
            self.open += 1
            for name, read in node.inputs:
                made.append((name, []))
                for one in read:
                    made[-1][1].append(self.place(one))
            self.open -= 1
            stage = self.copies[id(node), reader] = Stage(node, made)
            self.stages.append(stage)
        return stage, pipeline._port


def _lay_out(pipelines: Sequence[Pipeline]) -> Layout:
    laying = _Laying()
    try:
        ends = [laying.place(pipeline) for pipeline in pipelines]
    except RecursionError as error:
        raise InvalidArgument(pipelines[0]._node.method, "", TOO_DEEP) from error
    first_of: dict[str, Stage] = {}
    for stage in laying.stages:
        wanted = stage.node.name
        if wanted is None:
            continue
        first = first_of.setdefault(wanted, stage)
        if first is stage:
            stage.name = wanted
        elif first.node is not stage.node:
            text = f"{first.node.method}() already gives a stage this name, {wanted!r}"
            raise InvalidArgument(stage.node.method, "name", text)
    taken = set(first_of)
    for stage in laying.stages:
        if not stage.name:
            wanted = stage.node.name or stage.node.suggested or stage.node.kind
            stage.name = _free(re.sub(r"[^A-Za-z0-9_-]+", "_", wanted).strip("_")[:50], taken)
            taken.add(stage.name)
    return Layout(laying.stages, ends)


def _free(wanted: str, taken: set[str]) -> str:
    wanted = wanted or "stage"
    if wanted not in taken:
        return wanted
    return next(name for i in range(2, len(taken) + 3) if (name := f"{wanted}_{i}") not in taken)


def _stage(stage: Stage) -> Group:
    """The StageConfig of a stage."""
    settings = dict(stage.node.settings)
    for name, value in settings.items():
        if isinstance(value, Pipeline):
            settings[name] = next(said for one, said in stage.references if one.is_at(value))
    for name, made in stage.inputs:
        said = tuple(_reference(*one) for one in made)
        repeated = fields_of(KINDS[stage.node.kind])[name].repeated
        settings[name] = said if repeated else said[0]
    # What it reads from stands first, what many stages have last; else as in the schema.
    names = [name for name, _ in stage.inputs]
    rest = [name for name in fields_of(KINDS[stage.node.kind]) if name not in names]
    names += sorted(rest, key=lambda name: name in fields_of("CommonFields"))
    values = tuple((name, settings[name]) for name in names if name in settings)
    made_group = Group(KINDS[stage.node.kind], values)
    return Group("StageConfig", (("name", stage.name), (stage.node.kind, made_group)))


def _of_pipeline(pipeline: Pipeline) -> tuple[Any, ...]:
    laid = _lay_out([pipeline])
    return tuple(_stage(stage) for stage in laid.stages), pipeline._port


# ---- as text


def _chain(laid: Layout) -> str:
    names = [stage.name for stage in laid.stages]
    straight = all(
        [one.name for _, made in stage.inputs for one, _ in made] == names[max(0, i - 1) : i]
        for i, stage in enumerate(laid.stages)
    )
    return (" -> " if straight else ", ").join(names)


def _drawn(laid: Layout) -> str:
    rows = []
    keep: Callable[[str, _code.Code], str] = _code.named_by_digest
    for stage in laid.stages:
        group = _text._with_names(_stage(stage), keep)
        settings = Group(KINDS[stage.node.kind], dict(group.values)[stage.node.kind].values)
        inputs = [said for _, said in stage.references]
        kept = tuple(one for one in settings.values if one[0] not in dict(stage.inputs))
        said = " ".join(line.strip() for line in _text._lines(Group(settings.of, kept), ""))
        rows.append((stage.name, stage.node.kind, ", ".join(inputs), said))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{len(rows)} stages" if len(rows) > 1 else "1 stage"]
    for name, kind, inputs_text, said in rows:
        arrow = "<-" if inputs_text else "  "
        line = (
            f"  {name:{widths[0]}}  {kind:{widths[1]}}  {arrow} {inputs_text:{widths[2]}}  {said}"
        )
        lines.append(line.rstrip())
    lines.append("  trainers <= " + ", ".join(_reference(*end) for end in laid.ends))
    return "\n".join(lines) + "\n"
