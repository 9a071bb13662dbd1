"""The patches of tests/crash/mistakes fit the sources that they change, and these are compiled
alone, so that the linker can take the changed ones in their place.
"""

from __future__ import annotations

import re
import subprocess

from tests.lint.tree import Problem, Tree

FOLDER = "tests/crash/mistakes"
PLANTED = "tests/crash/CMakeLists.txt"
_PLANTED = re.compile(r"^planted_mistake\((\w+)((?:\s+\S+?)+)\)", re.MULTILINE)
_ALONE = re.compile(r"\bALONE\s+((?:[\w/.]+\s*)+)\)")


def alone(tree: Tree) -> set[str]:
    """The sources named behind ALONE; a domain names its stages without .cc."""
    found: set[str] = set()
    for path in tree.below(ends=("CMakeLists.txt",)):
        folder = path.rpartition("/")[0]
        for match in _ALONE.finditer(tree.text(path)):
            names = (name.removesuffix(".cc") for name in match.group(1).split())
            found.update(f"{folder}/{name}.cc" for name in names)
    return found


def check(tree: Tree) -> list[Problem]:
    problems: list[Problem] = []
    for path in tree.below(FOLDER, ends=(".patch",)):
        # As tests/crash/CMakeLists.txt applies them.
        command = ["patch", "--dry-run", "--force", "--fuzz=0", "-p1", "-i", tree.root / path]
        done = subprocess.run(command, cwd=tree.root, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = " ".join(re.findall(r"Hunk #\d+ FAILED at \d+\.", done.stdout))
            said = said or (done.stdout + done.stderr).strip()
            problems.append(Problem(path, 0, f"does not fit its source any more: {said}"))
    separate = alone(tree)
    for match in _PLANTED.finditer(tree.text(PLANTED) if PLANTED in tree.known else ""):
        for source in match.group(2).split():
            if source not in separate:
                text = f"{source} carries the mistake {match.group(1)}: name it behind ALONE"
                problems.append(Problem(PLANTED, 0, text))
    return problems
