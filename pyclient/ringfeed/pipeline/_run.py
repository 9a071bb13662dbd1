"""A feed's configuration and the program `ringfeed`: checked, and started beside this process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import loader as private
from .._core import places, programs
from .._core.scope import Scope
from ..batch import Batch
from ..errors import InvalidConfiguration, RingfeedError
from ..feed import Feed as AttachedFeed
from ..schema import Schema
from . import _code, _text
from ._fields import Group, InvalidArgument, fields_of

if TYPE_CHECKING:
    from ._build import Feed, Stage

_FILE = "feed"  # its name, without the ending
_INVALID = 3  # exit status of `ringfeed check` for a configuration that it refuses


@dataclass(frozen=True)
class Report:
    """What a feed would be.

    Attributes: ``warnings``: what to look out for; ``batches``: a line for each output, with the
    arrays; ``memory_bytes``: shared memory of the whole feed; ``details``: all of `ringfeed check
    --json`.
    """

    warnings: tuple[str, ...]
    batches: tuple[str, ...]
    memory_bytes: int
    details: dict[str, Any]

    def __str__(self) -> str:
        lines = [*self.batches, f"memory {self.memory_bytes / 2**20:.1f} MiB"]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


class RefusedConfiguration(InvalidConfiguration):
    """`ringfeed check` has found mistakes. ``problems``: each of them, as an InvalidArgument."""

    def __init__(self, problems: list[InvalidArgument], left_out: int = 0) -> None:
        rest = [f"... and {left_out} more"] if left_out else []
        super().__init__("\n".join([*(str(problem) for problem in problems), *rest]))
        self.problems = tuple(problems)


def _here(config: Group) -> Group:
    """The same, with this process's Python where stages are written in Python and say none, and
    with the directories in which it has found their modules.
    """
    fields = fields_of(config.of)
    if "interpreter" in fields and any(fields[name].use == "code" for name, _ in config.values):
        values = dict(config.values)
        places = [one.place for one in values.values() if isinstance(one, _code.Importable)]
        if sys.executable:
            values.setdefault("interpreter", sys.executable)
        if places and places[0]:
            values["python_path"] = (*values.get("python_path", ()), places[0])
        return Group(config.of, tuple(values.items()))
    return Group(config.of, tuple((name, _inside(value)) for name, value in config.values))


def _inside(value: Any) -> Any:
    if isinstance(value, Group):
        return _here(value)
    return tuple(map(_inside, value)) if type(value) is tuple else value


def _text_in(feed: Feed, directory: Path, stem: str) -> str:
    """The configuration for a directory, with what it needs written beside it."""
    return _text.write(_here(feed._config()), _code.keeper(directory, stem))


def _argument(path: str, stage: Stage) -> str:
    """The argument of a call that a path inside of a stage's settings is."""
    setting = re.split(r"[.\[]", path, maxsplit=1)[0]
    argument = stage.node.called.get(setting, setting)
    return "" if argument == "self" else argument + path[len(setting) :]


def _problem(feed: Feed, problem: dict[str, Any]) -> InvalidArgument:
    """What `ringfeed check` says of a path, as the call that it comes from."""
    path, text = str(problem.get("path", "")), str(problem["text"])
    if match := re.match(r"stages\[(\d+)\](?:\.(.*))?$", path, re.S):
        stages = feed._laid.stages
        if int(match.group(1)) < len(stages):
            stage = stages[int(match.group(1))]
            inside = (match.group(2) or "").removeprefix(stage.node.kind).lstrip(".")
            label = stage.node.method
            # Several calls of a method are told apart by the names of their stages.
            if sum(one.node.method == label for one in stages) > 1:
                text = f"stage {stage.name!r}: {text}"
            return InvalidArgument(label, _argument(inside, stage), text)
    if match := re.match(r"feed_output(?:\[\d+\])?\.?(.*)$", path, re.S):
        return InvalidArgument("output", match.group(1), text)
    argument = {"feed": "name", "stages": ""}.get(path, path)
    return InvalidArgument("feed", argument, text)


def check(feed: Feed) -> Report:
    directory = places.make()
    with places.removing(directory):
        file = directory / f"{_FILE}.textproto"
        file.write_text(_text_in(feed, directory, _FILE), encoding="utf-8")
        command = [str(programs.find("ringfeed")), "check", "--json", str(file)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    try:
        found = json.loads(done.stdout)
    except json.JSONDecodeError:
        found = None
    if done.returncode not in (0, _INVALID) or not isinstance(found, dict):
        # Not the configuration's fault: a program is missing, a directory cannot be used.
        problems = found.get("problems", []) if isinstance(found, dict) else []
        # What the program itself has said may be the reason of it.
        said = [done.stderr.strip(), *(problem["text"] for problem in problems)]
        text = "\n".join(filter(None, said)) or f"it ended with status {done.returncode}"
        raise RingfeedError(text)
    if not found["ok"]:
        refused = [_problem(feed, problem) for problem in found["problems"]]
        raise RefusedConfiguration(refused, found.get("problems_left_out", 0))
    return Report(
        warnings=tuple(str(_problem(feed, warning)) for warning in found["warnings"]),
        batches=tuple(map(_batches, found["batches"])),
        memory_bytes=found["memory_bytes"],
        details=found,
    )


def _batches(output: dict[str, Any]) -> str:
    tensors = []
    for tensor in output["tensors"]:
        sizes = ("rows" if n == -1 else str(n) if n >= 0 else f"S{-2 - n}" for n in tensor["shape"])
        tensors.append(f"{tensor['name']} {tensor['dtype']}[{', '.join(sizes)}]")
    name = f"{output['alias']}: " if output["alias"] else ""
    return f"{name}up to {output['rows_max']} rows: {', '.join(tensors)}"


# ---- running


class _Private(private.DataLoader):
    """A private feed whose configuration needs files beside it."""

    def __init__(self, feed: Feed, wait_s: float | None, view: str) -> None:
        super().__init__(feed.text(), timeout_s=wait_s, view=view)
        self._pipeline = feed

    def _config_file(self) -> tuple[private._Config, str]:
        def written(directory: Path) -> bytes:
            return _text_in(self._pipeline, directory, private._FEED).encode()

        return written, ".textproto"


class Loader(Scope):
    """A feed that runs beside this process: a context manager, and an iterator of batches."""

    def __init__(self, running: private.DataLoader) -> None:
        self._running = running

    @property
    def feed(self) -> AttachedFeed:
        """The first output, as ringfeed.attach() gives it."""
        return self._running.feed

    def output(self, alias: str) -> AttachedFeed:
        """An output by its alias, attached when it is first asked for."""
        return self._running._attached(alias)

    @property
    def schema(self) -> Schema:
        """Name, dtype and shape of the arrays of the first output's batches."""
        return self._running.schema

    def next(self, timeout_s: float | None = None) -> Batch:
        """The next batch of the first output, as Feed.next()."""
        return self.feed.next(timeout_s)

    def __iter__(self) -> Iterator[Batch]:
        """Batches of the first output until its end, as those of Feed."""
        return iter(self.feed)

    def metrics(self) -> dict[str, Any]:
        """Numbers of the whole feed, as Feed.metrics()."""
        return self._running.metrics()

    def status(self) -> dict[str, Any]:
        """What `ringfeed status --json` says."""
        return self._running.status()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the feed and its processes; arrays that still live stay readable."""
        self._running.stop(timeout_s)

    def __enter__(self) -> Loader:
        return self

    def _leave(self, error: BaseException | None) -> None:
        self.stop()


def start(feed: Feed, timeout_s: float | None, wait_s: float | None, view: str) -> Loader:
    running = _Private(feed, wait_s, view)
    try:
        running.start(timeout_s)
    except InvalidConfiguration:
        check(feed)  # says the same by method and argument
        raise
    return Loader(running)
