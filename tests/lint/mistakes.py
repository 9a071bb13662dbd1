"""The patches of tests/crash/mistakes fit the sources that they change."""

from __future__ import annotations

import re
import subprocess

from tests.lint.tree import Problem, Tree

FOLDER = "tests/crash/mistakes"


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
    return problems
