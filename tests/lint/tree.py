"""The tree as the checks see it: the files that git knows or would take, each read once."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CPP = (".cc", ".h", ".c", ".hpp")
# In which order an include is looked for, after the includer's own folder.
INCLUDE_ROOTS = ("", "shm/include/", "workers/include/", "pyclient/include/", "pyclient/src/")


@dataclass(frozen=True, order=True)
class Problem:
    """What is wrong where. Line 0 is the file as a whole."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


class Tree:
    """A folder with the files named, or with those that git lists: tracked ones, and new ones that
    it does not ignore.
    """

    def __init__(self, root: Path, files: Iterable[str] | None = None) -> None:
        self.root = root
        if files is None:
            listed = subprocess.run(
                ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                cwd=root,
                capture_output=True,
                check=True,
            ).stdout.decode()
            files = (name for name in listed.split("\0") if name and (root / name).is_file())
        self.files = sorted(set(files))
        self.known = frozenset(self.files)
        self.folders = frozenset(
            str(folder)
            for name in self.files
            for folder in Path(name).parents
            if str(folder) != "."
        )
        self._texts: dict[str, str] = {}

    def text(self, name: str) -> str:
        """A file's text; bytes that are no UTF-8 are replaced."""
        if name not in self._texts:
            self._texts[name] = (self.root / name).read_text(encoding="utf-8", errors="replace")
        return self._texts[name]

    def lines(self, name: str) -> list[str]:
        return self.text(name).split("\n")

    def below(self, *folders: str, ends: tuple[str, ...] = ()) -> Iterator[str]:
        """The files below any of the folders, with one of these endings."""
        starts = tuple(f"{folder.rstrip('/')}/" for folder in folders)
        for name in self.files:
            if (not starts or name.startswith(starts)) and (not ends or name.endswith(ends)):
                yield name

    def toml(self, name: str) -> dict[str, Any]:
        return tomllib.loads(self.text(name)) if name in self.known else {}


def shrinking(
    found: Mapping[str, list[Problem]], known: Iterable[str], list_name: str
) -> list[Problem]:
    """The problems that the list does not know, and each of its lines that is no problem any
    more.
    """
    listed = set(known)
    problems = [one for key, ones in found.items() if key not in listed for one in ones]
    for key in sorted(listed - found.keys()):
        problems.append(Problem(list_name, 0, f'"{key}" is mended: take its line out'))
    return problems
