"""Includes and imports point only where rooms.toml allows it; what headers and modules may never
take stands there too.
"""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from tests.lint.tree import CPP, INCLUDE_ROOTS, Problem, Tree

RULES = "tests/lint/rooms.toml"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+(["<])([^">]+)[">]', re.MULTILINE)


@dataclass(frozen=True)
class Import:
    """A module that a line of Python names; lazy ones are in functions, or in a try."""

    line: int
    module: str  # "a/b" for one of the tree, "torch" for another
    ours: bool
    lazy: bool


def room_of(path: str, rooms: Mapping[str, list[str]]) -> str | None:
    """The room with the longest name that is the file's own, without its ending, or that of a
    folder above it.
    """
    pure = PurePosixPath(path)
    for name in (str(pure.with_suffix("")), *(str(folder) for folder in pure.parents)):
        if name in rooms:
            return name
    return None


def allowed(source: str, target: str, rooms: Mapping[str, list[str]]) -> bool:
    return source == target or any(fnmatch.fnmatch(target, rule) for rule in rooms[source])


def included(tree: Tree, path: str, name: str) -> str | None:
    """The file of the tree that an include names; a generated header is named by its message
    file.
    """
    beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
    for candidate in (beside, *(root + name for root in INCLUDE_ROOTS)):
        if candidate in tree.known:
            return candidate
    return name.removesuffix(".pb.h") if name.startswith("proto/") else None


def imports(tree: Tree, path: str) -> Iterator[Import]:
    """What a module of the package imports, in functions too, but for what is for type checkers
    alone.
    """

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            children: list[ast.AST] = list(node.orelse)
        else:
            children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name.replace(".", "/")
                ours = name.split("/")[0] == "ringfeed"
                yield Import(node.lineno, f"pyclient/{name}" if ours else name, ours, lazy)
        if isinstance(node, ast.ImportFrom):
            yield from imported_from(node, lazy)
        inner = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try)
        for child in children:
            yield from walk(child, inner)

    def imported_from(node: ast.ImportFrom, lazy: bool) -> Iterator[Import]:
        module = (node.module or "").replace(".", "/")
        if node.level:
            base = PurePosixPath(path)
            for _ in range(node.level):
                base = base.parent
            module = str(base / module) if module else str(base)
        elif module.split("/")[0] == "ringfeed":
            module = "pyclient/" + module
        else:
            yield Import(node.lineno, module, False, lazy)
            return
        for alias in node.names:
            inner = f"{module}/{alias.name}"
            ours = inner if f"{inner}.py" in tree.known or inner in tree.folders else module
            yield Import(node.lineno, ours, True, lazy)

    yield from walk(ast.parse(tree.text(path)), False)


def check(tree: Tree) -> list[Problem]:
    rules = tree.toml(RULES)
    rooms: dict[str, list[str]] = rules["rooms"]
    exceptions: dict[str, str] = rules.get("exceptions", {})
    needed: set[str] = set()
    problems: list[Problem] = []

    def excepted(key: str) -> bool:
        rules = [rule for rule in exceptions if fnmatch.fnmatch(key, rule)]
        needed.update(rules)
        return bool(rules)

    def judge(path: str, line: int, target: str, what: str) -> None:
        source = room_of(path, rooms)
        aim = target if target.startswith("proto/") and target not in tree.known else None
        aim = aim or room_of(target, rooms) or os.path.dirname(target)
        if source is None:
            text = f"no room of {RULES} holds this file: give its folder a line there"
            problems.append(Problem(path, 0, text))
        elif not allowed(source, aim, rooms):
            if not excepted(f"{path} -> {target}"):
                text = f"{source} may not include {aim} ({what}): its line in {RULES} allows "
                problems.append(Problem(path, line, text + (", ".join(rooms[source]) or "nothing")))

    for path in tree.below(ends=CPP):
        header = path.endswith((".h", ".hpp"))
        text = tree.text(path)
        for match in INCLUDE.finditer(text):
            line = text.count("\n", 0, match.start(2)) + 1
            quoted, name = match.group(1) == '"', match.group(2)
            if quoted:
                target = included(tree, path, name)
                if target is None:
                    problems.append(Problem(path, line, f'"{name}": no file of the tree'))
                else:
                    judge(path, line, target, name)
            for never in rules.get("never", []):
                if header >= never["headers"] and name.startswith(tuple(never["what"])):
                    if not path.startswith(tuple(f"{folder}/" for folder in never["below"])):
                        continue
                    if not excepted(f"{path} -> {name}"):
                        problems.append(Problem(path, line, f"{name}: {never['why']}"))

    for path in tree.below("pyclient/ringfeed", ends=(".py",)):
        for one in imports(tree, path):
            if one.ours:
                judge(path, one.line, one.module, one.module)
                continue
            package = one.module.split("/")[0]
            room = room_of(path, rules["packages"])
            takes = rules["packages"].get(room, []) + rules["packages"]["*"]
            if not one.lazy and package not in sys.stdlib_module_names and package not in takes:
                text = f"import {package}: in a function or a try alone; {RULES} [packages] allows "
                problems.append(Problem(path, one.line, text + ", ".join(takes)))

    for key in sorted(exceptions.keys() - needed):
        problems.append(
            Problem(RULES, 0, f'exception "{key}" is needed no more: take its line out')
        )
    return sorted(set(problems))
