"""Every file has its place: sources are built, tests are run, headers are included, scripts can be
run, nothing is left over.
"""

from __future__ import annotations

import re
import stat
from pathlib import PurePosixPath

from tests.lint.rooms import INCLUDE, included
from tests.lint.tree import CPP, Problem, Tree

# Projects of their own, as a user of the installed package would have them.
BUILT_ALONE = ("docs/examples/own_trainer", "docs/examples/own_stage")
TOP = frozenset(
    ".ci .clang-format .clang-tidy .gitignore CMakeLists.txt CMakePresets.json LICENSE README.md"
    " cmake docs proto pyclient scripts share shm supervisor tests workers".split()
)
BUILT = ("shm", "workers", "supervisor", "pyclient", "proto", "tests", "docs/examples")
# What is included by programs of others, or by generated sources.
INCLUDED_ELSEWHERE = ("pyclient/include/", "workers/include/", "/domain.h")
# Files of other people's making, and bytes.
FOREIGN = ("tests/data/", "LICENSE")
BYTES_MAX = 400_000

# systemd asks for the @ in the names of its templates.
_NAME = re.compile(r"[A-Za-z0-9_.@\-]+")
_TODO = re.compile(r"\b(?:TODO|FIXME|XXX)\b(?!\(#\d+\))")
_COMMENT = re.compile(r"(?://|#|<!--)(.*)")
_CONFTEST = re.compile(r"^(?:from|import) conftest\b", re.MULTILINE)
_CONFLICT = re.compile(r"^(?:<{7} |={7}$|>{7} )")


def lists_of(tree: Tree) -> dict[str, str]:
    """Folder to its CMakeLists.txt and *.cmake."""
    lists: dict[str, str] = {}
    for path in tree.below(ends=("CMakeLists.txt", ".cmake")):
        folder = str(PurePosixPath(path).parent)
        lists[folder] = lists.get(folder, "") + tree.text(path)
    return lists


def built(path: str, lists: dict[str, str]) -> bool:
    """Whether a list of its folder or of one above names the source, or takes all tests of the
    folder.
    """
    pure = PurePosixPath(path)
    if any(f"/{path}" in text for text in lists.values()):
        return True
    for folder in pure.parents:
        text = lists.get(str(folder))
        if text is None:
            continue
        inside = str(pure.relative_to(folder))
        names = {inside}
        if "ringfeed_domain(" in text:
            names.add(inside.removesuffix(".cc"))
        if any(
            re.search(rf"(?<![\w.-])(?<![\w.]/){re.escape(name)}(?![\w./-])", text)
            for name in names
        ):
            return True
        if path.endswith("_test.cc"):
            if folder == pure.parent and "ringfeed_mirror(" in text:
                return True
            if "GLOB_RECURSE" in text and "_test.cc" in text:
                return True
        if path.endswith(
            "_fuzz.cc"
        ) and f"ringfeed_fuzz({pure.name.removesuffix('_fuzz.cc')}" in re.sub(r"\(\s+", "(", text):
            return True
    return False


def entered(folder: str, lists: dict[str, str]) -> bool:
    """Whether the nearest list above takes this folder in, by its name or in a loop over names."""
    pure = PurePosixPath(folder)
    for above in pure.parents:
        text = lists.get(str(above))
        if text is not None:
            inside = str(pure.relative_to(above))
            word = rf"(?<![\w/-]){re.escape(inside)}(?![\w/-])"
            if re.search(word, text):
                return True
            # workers/ goes through the domains that the top names.
            return "RINGFEED_DOMAINS" in text and bool(re.search(word, lists.get(".", "")))
    return False


def runs(tree: Tree) -> str:
    """All that starts tests: the scripts, and the lists that ctest is made of."""
    starters = [
        *tree.below("scripts", ".ci"),
        *tree.below("tests", ends=("CMakeLists.txt", ".cmake", "/run")),
    ]
    return "\n".join(tree.text(path) for path in starters)


def check(tree: Tree) -> list[Problem]:
    problems: list[Problem] = []

    def say(path: str, text: str, line: int = 0) -> None:
        problems.append(Problem(path, line, text))

    for path in sorted({name.split("/")[0] for name in tree.files} - TOP):
        say(path, "not one of the agreed entries at the top: tests/lint/sources.py lists them")

    lists = lists_of(tree)
    for folder in sorted(lists.keys() - {".", "cmake", *BUILT_ALONE}):
        if f"{folder}/CMakeLists.txt" in tree.known and not entered(folder, lists):
            say(f"{folder}/CMakeLists.txt", "no add_subdirectory above takes this folder in")
    for path in tree.below(*BUILT, ends=(".cc", ".c")):
        if not built(path, lists):
            say(path, "in no CMakeLists.txt: nothing builds it")
    for path in tree.below("proto", ends=(".proto",)):
        inside = path.removeprefix("proto/").removesuffix(".proto")
        if not re.search(rf"(?<![\w/]){re.escape(inside)}(?![\w/])", lists.get("proto", "")):
            say(path, "proto/CMakeLists.txt does not name it: nothing is generated from it")

    taken = set()
    for path in tree.below(ends=CPP):
        for match in INCLUDE.finditer(tree.text(path)):
            if match.group(1) == '"' and (target := included(tree, path, match.group(2))):
                taken.add(target)
    for path in tree.below(ends=(".h", ".hpp")):
        outside = path.startswith(INCLUDED_ELSEWHERE) or path.endswith(INCLUDED_ELSEWHERE)
        if path not in taken and not outside:
            say(path, "nothing includes it")
        text = tree.text(path)
        if "#pragma once" not in text and not re.search(r"#ifndef (\w+)\n#define \1\b", text):
            say(path, "neither #pragma once nor a guard")

    starters = runs(tree)
    modules: dict[str, str] = {}
    for path in tree.below("tests", ends=(".py",)):
        if match := _CONFTEST.search(tree.text(path)):
            line = 1 + tree.text(path).count("\n", 0, match.start())
            say(path, "takes whichever conftest.py came last: tests.support has names", line)
        pure = PurePosixPath(path)
        names = [path]
        if pure.name.startswith("test_"):
            names += [str(folder) for folder in pure.parents if len(folder.parts) > 1]
            package = f"{pure.parent}/__init__.py" in tree.known
            if not package and (first := modules.setdefault(pure.name, path)) != path:
                say(path, f"pytest takes it for {first}: one run imports a name once")
        elif pure.name == "conftest.py" or not re.search(
            r"^def test_", tree.text(path), re.MULTILINE
        ):
            continue
        if not any(re.search(rf"(?<![\w-]){re.escape(name)}(?!\w)", starters) for name in names):
            say(path, "no script and no list of ctest runs its tests")
    for path in tree.below(
        "tests/unit/workers", "tests/unit/supervisor", "tests/unit/shm", ends=("_test.cc",)
    ):
        room = str(PurePosixPath(path).parent).removeprefix("tests/unit/")
        if room not in tree.folders:
            say(path, f"unit tests lie where their sources lie, and there is no folder {room}")

    for path in tree.files:
        problems += file_problems(tree, path)
    return problems


def file_problems(tree: Tree, path: str) -> list[Problem]:
    problems: list[Problem] = []
    full = tree.root / path
    size = full.stat().st_size
    for part in PurePosixPath(path).parts:
        if not _NAME.fullmatch(part):
            problems.append(
                Problem(path, 0, "a name of letters, digits, _ - @ and . is what every tool takes")
            )
    if path.startswith(FOREIGN):
        return problems
    if size > BYTES_MAX:
        problems.append(
            Problem(path, 0, f"{size} bytes: {BYTES_MAX} at most, and data belongs to tests/data")
        )
        return problems
    if path.startswith("docs/pictures/") and path.endswith(".png"):
        return problems
    text = tree.text(path)
    if "\0" in text or "\ufffd" in text:
        problems.append(Problem(path, 0, "not UTF-8 text: bytes belong to tests/data"))
        return problems
    script = text.startswith("#!")
    if script != bool(full.stat().st_mode & stat.S_IXUSR):
        says = (
            "begins with #! and cannot be executed"
            if script
            else "can be executed and does not begin with #!"
        )
        problems.append(Problem(path, 0, says))
    if text and not text.endswith("\n"):
        problems.append(Problem(path, 0, "does not end with a line's end"))
    patch = path.endswith(".patch")
    tabs = re.search(r"\t", text) and not path.endswith((".patch", ".txt"))
    marks = "TODO" in text or "FIXME" in text or "XXX" in text
    if not (tabs or marks or "<<<<<<<" in text or "\r" in text or " \n" in text):
        return problems
    for number, line in enumerate(text.split("\n"), 1):
        if _CONFLICT.match(line):
            problems.append(Problem(path, number, "a conflict that was not resolved"))
        if line.endswith((" ", "\t", "\r")) and not patch:
            problems.append(Problem(path, number, "ends with a space"))
        if (
            (comment := _COMMENT.search(line))
            and _TODO.search(comment.group(1))
            and '"' not in line
        ):
            problems.append(Problem(path, number, "TODO(#12): carries the number of an issue"))
    return problems
