"""What other programs know of Python: flake8 and black over it, mypy over the package.

They take several times as long as all else together, so tests/lint/run runs them only when they are
named. What they found good is not looked at again: its digest stands in build/lint.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass

from tests.lint.tree import Problem, Tree

EVERYTHING = ("pyclient", "tests", "scripts", "docs")
# What mypy's answer depends on beside the sources: without them it knows less.
FRAMEWORKS = ("torch", "jax", "ml_dtypes", "google.protobuf")
# Appended to mypy's settings, it knows as much as where no framework is installed.
BARE = """
[[tool.mypy.overrides]]
module = ["torch.*", "jax.*", "ml_dtypes.*"]
follow_imports = "skip"
"""


@dataclass(frozen=True)
class Tool:
    below: tuple[str, ...]
    words: tuple[str, ...]
    settings: str


TOOLS = {
    "flake8": Tool(EVERYTHING, ("--config", "pyclient/.flake8"), "pyclient/.flake8"),
    "black": Tool(
        EVERYTHING, ("--config", "pyclient/pyproject.toml", "--check"), "pyclient/pyproject.toml"
    ),
    "mypy": Tool(
        ("pyclient/ringfeed",),
        ("--config-file", "pyclient/pyproject.toml", "--cache-dir", "build/lint/mypy_cache"),
        "pyclient/pyproject.toml",
    ),
}


def there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def digest(tree: Tree, name: str, paths: list[str]) -> str:
    tool = TOOLS[name]
    frameworks = [one for one in FRAMEWORKS if there(one)]
    total = hashlib.sha256(
        f"{tool} {importlib.metadata.version(name)} {frameworks} {BARE}".encode()
    )
    for path in (tool.settings, *paths):
        total.update(f"{path}\0{tree.text(path)}\0".encode())
    return total.hexdigest()


def check(tree: Tree, name: str) -> list[Problem]:
    if not there(name):
        text = f"{name} is not installed beside {sys.executable}: scripts/setup does it"
        return [Problem("scripts/requirements.txt", 0, text)]
    tool = TOOLS[name]
    paths = list(tree.below(*tool.below, ends=(".py",)))
    if name != "mypy" and "tests/lint/run" in tree.known:
        paths.append("tests/lint/run")  # Python without the ending
    seen = tree.root / f"build/lint/{name}.digest"
    now = digest(tree, name, paths)
    if seen.is_file() and seen.read_text() == now:
        return []
    seen.parent.mkdir(parents=True, exist_ok=True)
    if name == "mypy":
        problems = types_of(tree, tool.words)
    else:
        problems = run(tree, name, [*tool.words, *paths])
    if not problems:
        seen.write_text(now)
    return problems


def types_of(tree: Tree, words: tuple[str, ...]) -> list[Problem]:
    """What mypy finds, and what it would find without the frameworks that are installed here."""
    package = ["-p", "ringfeed"]
    problems = run(tree, "mypy", [*words, *package])
    if problems or not any(map(there, FRAMEWORKS)):
        return problems
    settings = tree.root / "build/lint/mypy_bare.toml"
    settings.write_text(tree.text("pyclient/pyproject.toml") + BARE)
    places = ["--config-file", str(settings), "--cache-dir", "build/lint/mypy_bare_cache"]
    found = run(tree, "mypy", [*places, *package])
    return [Problem("mypy without frameworks", 0, problem.text) for problem in found]


def run(tree: Tree, name: str, words: list[str]) -> list[Problem]:
    done = subprocess.run(
        [sys.executable, "-m", name, *words],
        cwd=tree.root,
        env={**os.environ, "MYPYPATH": str(tree.root / "pyclient")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return []
    lines = (done.stdout + done.stderr).strip().split("\n")
    return [Problem(name, 0, line) for line in lines if line]
