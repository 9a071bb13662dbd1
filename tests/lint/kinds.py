"""No kind of stage is named outside its domain: not in a literal, not as has_<kind>(), not by a
message of its settings.

Whoever asks for a neighbour's kind has to be changed for every kind that comes. What is left of
that is known.toml's list [kinds]: it may only shrink.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.lint import cpp
from tests.lint.tree import CPP, Problem, Tree, shrinking

KNOWN = "tests/lint/known.toml"
# Where kinds are what it is about: configurations are converted there, and clients of one domain
# live there.
OF_KINDS = (
    *("supervisor/import/", "pyclient/ringfeed/lc0/", "pyclient/ringfeed/fairseq/"),
    # Generated, and what generates it.
    *("pyclient/ringfeed/_core/messages.py", "pyclient/ringfeed/pipeline/_schema.py"),
    *("pyclient/ringfeed/pipeline/_methods.py", "pyclient/ringfeed/pipeline/stage.py"),
    "pyclient/ringfeed/pipeline/settings.py",
    # Starts feeds of one kind of stage, which nobody writes by hand.
    "pyclient/ringfeed/torch/_own_feed.py",
)
# Kinds whose names are common words: only where they can mean nothing else.
PLAIN = frozenset({"plugin", "python"})
_STAGES = re.compile(r"ringfeed_domain\(\s*(\w+)\s+STAGES\s+((?:[a-z0-9_]+\s*)+)")
# An example shows what stands before the stage, of whatever domain.
_EXAMPLE = re.compile(r'R"\(\nstages .*?\)"', re.DOTALL)
_MESSAGE = re.compile(r"^(?:message|enum) (\w+)", re.MULTILINE)


def domains(tree: Tree) -> dict[str, str]:
    """Kind, or message of settings, to its domain: out of the domains' CMakeLists.txt and
    proto/stages.
    """
    found: dict[str, str] = {}
    for path in tree.below("workers", ends=("/CMakeLists.txt",)):
        for match in _STAGES.finditer(tree.text(path)):
            found.update((kind, match.group(1)) for kind in match.group(2).split())
    for path in tree.below("proto/stages", ends=(".proto",)):
        domain = path.rsplit("/", 1)[1].removesuffix(".proto")
        found.update((name, domain) for name in _MESSAGE.findall(tree.text(path)))
    return found


def words(tree: Tree, path: str) -> str:
    """The file's code and literals; for Python without docstrings, which are comments to a
    reader.
    """
    text = tree.text(path)
    if path.endswith(CPP):
        without = _EXAMPLE.sub(lambda example: '""' + "\n" * example.group().count("\n"), text)
        return cpp.code(without, literals=True)
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for line in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[line] = ""
    return re.sub(r"#[^\n'\"]*$", "", "\n".join(lines), flags=re.MULTILINE)


def hits(tree: Tree) -> Iterator[tuple[str, Problem]]:
    domain_of = domains(tree)
    if not domain_of:
        return
    names = "|".join(sorted(domain_of.keys() - PLAIN, key=len, reverse=True)) or "(?!)"
    plain = "|".join(sorted(domain_of.keys() & PLAIN)) or "(?!)"
    pattern = re.compile(
        rf"(?<![A-Za-z0-9])(?:has_|mutable_|set_)?(?P<name>{names})(?:_type)?(?![A-Za-z0-9_])"
        rf"|(?<![A-Za-z0-9])(?:has_|mutable_|set_)(?P<plain>{plain})(?![A-Za-z0-9_])"
    )
    for path in tree.below("shm", "workers", "supervisor", "pyclient", ends=(*CPP, ".py")):
        if path.startswith(OF_KINDS):
            continue
        if not pattern.search(tree.text(path)):
            continue
        text = words(tree, path)
        for match in pattern.finditer(text):
            name = match["name"] or match["plain"]
            domain = domain_of[name]
            if not path.startswith(f"workers/{domain}/"):
                line = text.count("\n", 0, match.start()) + 1
                says = f"{match.group()} belongs to workers/{domain}: ask for a fact of the port"
                yield f"{path} {name}", Problem(path, line, says)


def check(tree: Tree) -> list[Problem]:
    found: dict[str, list[Problem]] = defaultdict(list)
    for key, problem in hits(tree):
        found[key].append(problem)
    return shrinking(found, tree.toml(KNOWN).get("kinds", []), KNOWN)
