"""Pages: links lead somewhere, files that are named exist, a domain's page names its files, no line
of prose is too wide.

Pages that are generated are compared with what the programs say after the build, not here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from tests.lint.tree import Problem, Tree

KNOWN = "tests/lint/known.toml"
WIDTH_MAX = 120
GENERATED = "docs/reference/"
# Whose README.md names every source in it, by its name without the ending; its stages it may leave
# to the reference.
NAMED_WHOLE = tuple(f"workers/{room}" for room in ("files", "rows", "lc0", "chess", "bitext"))

_FENCE = re.compile(r"^\s*(```|~~~)")
_LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")
_CODE = re.compile(r"`([^`\n]+)`")
# A path, or a name whose ending only files of the tree have.
_FILE = re.compile(r"(?:[\w.\-]+/)*[\w\-]+\.(?:cc|hpp|h|py|proto|textproto|cmake|md|toml|pml)")
# Stands for any name.
_ANY = re.compile(r"\b(?:x|y|a|b|NAME_?\w*)\.")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines outside of code blocks."""
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, line


def anchors(text: str) -> set[str]:
    """The names that headings have as targets of links."""
    found: set[str] = set()
    for _, line in prose(text):
        if match := _HEADING.match(line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1))
            name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            count = 0
            while (f"{name}-{count}" if count else name) in found:
                count += 1
            found.add(f"{name}-{count}" if count else name)
    return found


def joined(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs as one line each, so that a link may be wrapped; with the number of their first
    line.
    """
    number, lines = 0, list[str]()
    for at, line in prose(text):
        if line.strip() and lines and not line.startswith(("|", "#")):
            lines.append(line)
            continue
        if lines:
            yield number, " ".join(lines)
        number, lines = at, [line] if line.strip() else []
    if lines:
        yield number, " ".join(lines)


def link_problems(tree: Tree, path: str) -> Iterator[Problem]:
    for number, text in joined(tree.text(path)):
        for target in _LINK.findall(re.sub(r"`[^`]*`", "", text)):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            aim = (
                posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
            )
            if aim not in tree.known and aim not in tree.folders:
                yield Problem(path, number, f"a link to {target}, and there is no {aim}")
            elif anchor and aim.endswith(".md") and anchor not in anchors(tree.text(aim)):
                yield Problem(path, number, f"a link to {target}, and {aim} has no such heading")


def file_problems(tree: Tree, path: str, tails: set[str]) -> Iterator[Problem]:
    """Names of files in back quotes are those of files that exist: below the page, below the root,
    or as somewhere's tail.
    """
    for number, line in prose(tree.text(path)):
        for word in _CODE.findall(line):
            if not _FILE.fullmatch(word) or _ANY.search(word):
                continue
            beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), word))
            if beside not in tree.known and word not in tails:
                yield Problem(path, number, f"`{word}`: there is no such file")


def room_problems(tree: Tree, room: str) -> Iterator[Problem]:
    """Each source of the room is in the table of its page, and nothing else is."""
    page = f"{room}/README.md"
    if page not in tree.known:
        yield Problem(page, 0, "the room has no page")
        return
    named = {
        word.rsplit(".", 1)[0]
        for line in tree.lines(page)
        if line.startswith("| `")
        for word in _CODE.findall(line.split("|")[1])
    }
    stems = {
        path.removeprefix(f"{room}/").rsplit(".", 1)[0]
        for path in tree.below(room, ends=(".cc", ".h"))
        if not path.endswith("/domain.h")
    }
    listed = f"{room}/CMakeLists.txt"
    lists = tree.text(listed) if listed in tree.known else ""
    stages = set(re.findall(r"\w+", lists.partition("STAGES")[2].partition("SOURCES")[0]))
    for stem in sorted(stems - named - stages):
        yield Problem(page, 0, f"its table has no line for `{stem}`")
    for stem in sorted(named - stems):
        yield Problem(page, 0, f"its table has a line for `{stem}`, and there is no such file")


def width_problems(tree: Tree, path: str) -> Iterator[Problem]:
    for number, line in prose(tree.text(path)):
        # What cannot be wrapped: rows of tables, headings, and a single word.
        if (
            len(line) > WIDTH_MAX
            and not line.lstrip().startswith(("|", "#"))
            and " " in line.strip(" -*")
        ):
            yield Problem(path, number, f"{len(line)} columns: prose is wrapped at {WIDTH_MAX}")


def check(tree: Tree) -> list[Problem]:
    rules = tree.toml(KNOWN).get("docs", {})
    wide: set[str] = set(rules.get("wide", []))
    pages = [path for path in tree.below(ends=(".md",)) if not path.startswith("tests/data/")]
    tails = {
        "/".join(parts[at:])
        for parts in (path.split("/") for path in tree.files)
        for at in range(len(parts))
    } | {path.removesuffix(".proto") + ".pb.h" for path in tree.files if path.endswith(".proto")}
    problems: list[Problem] = []
    for path in pages:
        problems += link_problems(tree, path)
        if not path.startswith(("docs/decisions/", "docs/changelog.md")):
            problems += file_problems(tree, path, tails)
        too_wide = list(width_problems(tree, path))
        if path not in wide and not path.startswith(GENERATED):
            problems += too_wide
        elif path in wide and not too_wide:
            problems.append(Problem(KNOWN, 0, f'"{path}" is wrapped: take its line out'))
    problems += [Problem(KNOWN, 0, f'"{path}": no such page') for path in sorted(wide - set(pages))]
    for room in NAMED_WHOLE:
        if room in tree.folders:
            problems += room_problems(tree, room)
    return problems
