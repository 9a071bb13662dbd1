"""Subjects of new commits read "room: what changed" in at most 72 characters."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.lint.tree import Problem, Tree

# Older commits are as they are.
BASE = "69f349c"
LENGTH_MAX = 72
ROOMS = (
    "shm",
    "proto",
    "workers",
    "supervisor",
    "pyclient",
    "tests",
    "docs",
    "scripts",
    "cmake",
    "tree",
)
_SUBJECT = re.compile(rf"({'|'.join(ROOMS)})(, ({'|'.join(ROOMS)}))*: \S.*[^.\s]")


def git(root: Path, *words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def fault(subject: str) -> str | None:
    """What is wrong with a subject."""
    if len(subject) > LENGTH_MAX:
        return f"{len(subject)} characters: {LENGTH_MAX} at most"
    if not _SUBJECT.fullmatch(subject):
        return f'not "room: what changed"; rooms are {", ".join(ROOMS)}'
    return None


def new_commits(root: Path) -> list[tuple[str, str]]:
    """Number and subject of what came after BASE. Where BASE is not in the history, a shallow
    clone's is all newer than it; another one's has been written anew, and then its newest commit
    alone is looked at.
    """
    known = git(root, "merge-base", "--is-ancestor", BASE, "HEAD") is not None
    if known:
        span = [f"{BASE}..HEAD"]
    else:
        span = (
            ["HEAD"]
            if git(root, "rev-parse", "--is-shallow-repository") == "true"
            else ["-1", "HEAD"]
        )
    listed = git(root, "log", "--no-merges", "--format=%h %s", *span) or ""
    return [(line.split(" ", 1)[0], line.partition(" ")[2]) for line in listed.split("\n") if line]


def base_of(root: Path) -> str:
    """Since when files count as changed: since the commit that main of the origin has, where that
    is another one; else since 20 commits ago, or as far as the history goes.
    """
    head = git(root, "rev-parse", "HEAD")
    for name in ("origin/main", "main"):
        base = git(root, "merge-base", name, "HEAD")
        if base and base != head:
            return base
    for back in (20, 10, 5, 1):
        if base := git(root, "rev-parse", "--verify", "--quiet", f"HEAD~{back}"):
            return base
    return "HEAD"


def check(tree: Tree) -> list[Problem]:
    problems = []
    for number, subject in new_commits(tree.root):
        if text := fault(subject):
            problems.append(Problem(f"commit {number}", 0, f'"{subject}": {text}'))
    return problems
