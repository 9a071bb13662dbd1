"""No function of product or scripts has more than 100 lines. Known longer ones stand in known.toml
with their lines: [lengths].

A function counts from the first line of its signature to its closing brace, the lambdas in it
included.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.lint import cpp
from tests.lint.tree import CPP, Problem, Tree

KNOWN = "tests/lint/known.toml"
LINES_MAX = 100
# Written by scripts/reference: a call and a long text.
GENERATED = tuple(f"pyclient/ringfeed/pipeline/{name}.py" for name in ("stage", "_methods"))
PRODUCT = ("shm", "workers", "supervisor", "pyclient", "proto")

_TEMPLATE = re.compile(r"\btemplate\s*<")
_SCOPE = re.compile(
    r"^(?:\[\[.*?\]\]\s*)?(?:inline\s+)?(?:namespace|class|struct|union|enum|extern\s*\")"
)
_NAME = re.compile(r"([~\w:]+|operator\s*[^\s(]+)\s*\(")
_INITIALISERS = re.compile(r"\)\s*(?:const\s*)?(?:noexcept\s*(?:\([^()]*\)\s*)?)?:(?!:)")


@dataclass(frozen=True)
class Function:
    name: str
    first: int
    last: int

    @property
    def lines(self) -> int:
        return self.last - self.first + 1


def _matching(text: str, start: int) -> int:
    """Where the brace at `start` is closed; the end of the text if it is not."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    return len(text)


def _without_template(head: str) -> str:
    """The head without its leading template<...>."""
    while match := _TEMPLATE.match(head):
        depth, end = 1, match.end()
        while depth and end < len(head):
            depth += {"<": 1, ">": -1}.get(head[end], 0)
            end += 1
        head = head[end:].lstrip()
    return head


def cpp_functions(text: str) -> Iterator[Function]:
    """Functions with a body, in namespaces and classes. `text` is code without comments and
    literals.
    """
    # Preprocessor lines have braces of their own kind.
    text = re.sub(
        r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
        lambda m: re.sub(r"[^\n]", " ", m.group()),
        text,
        flags=re.M,
    )
    start = at = 0
    stops = re.compile(r"[{};]|\b(?:public|private|protected)\s*:(?!:)")
    while match := stops.search(text, at):
        at = match.end()
        if match.group() != "{":
            start = at
            continue
        head = text[start : match.start()]
        lead = len(head) - len(head.lstrip())
        bare = _without_template(head.strip())
        if _SCOPE.match(bare) and not bare.endswith("="):
            start = at
            continue
        end = _matching(text, match.start())
        called = _NAME.search(bare)
        is_value = called is None or re.search(
            r"(?<![=!<>+\-*/%&|^])=(?!=)", bare[: called.start() + 1]
        )
        before = head.rstrip()[-1:]
        if is_value or (_INITIALISERS.search(bare) and (before.isalnum() or before in "_>")):
            at = end + 1  # an initialiser in braces: the head goes on behind it
            continue
        first = text.count("\n", 0, start + lead) + 1
        yield Function(called.group(1).strip(), first, text.count("\n", 0, end) + 1)
        start = at = end + 1


def python_functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            yield Function(node.name, first, node.end_lineno or first)


def functions(tree: Tree, path: str) -> Iterator[Function]:
    text = tree.text(path)
    if path.endswith(CPP):
        yield from cpp_functions(cpp.code(text))
    elif path.endswith(".py"):
        yield from python_functions(text)


def check(tree: Tree) -> list[Problem]:
    known: dict[str, int] = tree.toml(KNOWN).get("lengths", {})
    problems: list[Problem] = []
    long: set[str] = set()
    for path in (*tree.below(*PRODUCT, ends=(*CPP, ".py")), *tree.below("scripts", ends=(".py",))):
        if path in GENERATED or tree.text(path).count("\n") <= LINES_MAX:
            continue
        for function in functions(tree, path):
            if function.lines <= LINES_MAX:
                continue
            key = f"{path} {function.name}"
            long.add(key)
            if function.lines > known.get(key, 0):
                most = known.get(key, LINES_MAX)
                text = f"{function.name} has {function.lines} lines: {most} are allowed"
                problems.append(Problem(path, function.first, text))
    for key in sorted(known.keys() - long):
        problems.append(Problem(KNOWN, 0, f'"{key}" is mended: take its line out'))
    return problems
