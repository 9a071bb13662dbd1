"""Tables, graphs, lists and rulers in comments stand as they were written, and layouts are what the
compiler is asserted.

clang-format leaves lines of comments alone that begin with two spaces (CommentPragmas) and runs all
others together. So a table, a picture or a list is indented by two; a ruler is one line; and the
cells of a layout stand below its head.
"""

from __future__ import annotations

import re
from collections import defaultdict

from tests.lint.tree import CPP, Problem, Tree

_COMMENT = re.compile(r"^\s*//(.*)$")
# Three spaces and more between words are columns; what is quoted is text, and "a.  B" the end of a
# sentence.
_COLUMNS = re.compile(r"[^\s.:;!?] {3,}\S")
_ITEM = re.compile(r"(?:[-*+•]|\d{1,2}[.)]) \S")
_PICTURE = re.compile(r"--+>|<--+|[│├└┌─▼▲]|\+--+")
_RULER = re.compile(r"-{2,}")
_WHOLE_RULER = re.compile(r"-{4,} \S")
_HEAD = re.compile(r"^ {2,}offset +size +\S")
_ASSERTED = re.compile(r"offsetof\(\s*(\w+)\s*,\s*(\w+?)_?\s*\)\s*==\s*(0x[0-9a-f]+|\d+)")
_SIZE_ASSERTED = re.compile(r"sizeof\(\s*(\w+)\s*\)\s*==\s*(0x[0-9a-f]+|\d+)")
_SIZE_SAID = re.compile(r"^ (\w+) \((\d+) bytes")


def comment_problems(path: str, lines: list[str]) -> list[Problem]:
    problems = []
    for number, line in enumerate(lines, 1):
        match = _COMMENT.match(line)
        if match is None:
            continue
        content = match.group(1)
        text = content.strip()
        if _RULER.match(text) and not content.startswith("  ") and not _WHOLE_RULER.match(text):
            problems.append(Problem(path, number, 'a ruler is one line: "// ---- name"'))
        if not text or content.startswith("  ") or not content.startswith(" "):
            continue
        bare = re.sub(r'"[^"]*"', lambda found: "x" * len(found.group()), text)
        if _ITEM.match(bare):
            what = "a list"
        elif _COLUMNS.search(bare):
            what = "a table"
        elif _PICTURE.search(bare) and not _RULER.match(bare):
            what = "a picture"
        else:
            continue
        problems.append(
            Problem(
                path,
                number,
                f"{what} in a comment is indented by two spaces, or the formatter breaks it",
            )
        )
    return problems


def layout_problems(path: str, lines: list[str]) -> list[Problem]:
    """Cells below their heads; offsets and sizes as asserted in the same file."""
    problems: list[Problem] = []
    offsets: dict[str, set[int]] = defaultdict(set)
    sizes: dict[str, int] = {}
    starts: list[int] = []
    for number, line in enumerate(lines, 1):
        match = _COMMENT.match(line)
        content = match.group(1).rstrip() if match else ""
        if said := _SIZE_SAID.match(content):
            sizes[said.group(1)] = int(said.group(2))
        if _HEAD.match(content):
            starts = [one.start() for one in re.finditer(r"(?<= {2})\S", content)]
            continue
        if not starts:
            continue
        if not content.startswith("  "):
            starts = []
            continue
        if not content.lstrip()[:1].isdigit():
            continue
        # Offsets and sizes are set right: what counts is where the field and what follows it begin.
        for start in starts[2:]:
            if len(content) > start and content[start - 1] != " ":
                text = f"this cell runs across column {start + 3}, where its head begins"
                problems.append(Problem(path, number, text))
        cells = content.split()
        if len(cells) >= 3 and re.fullmatch(r"0x[0-9a-f]+|\d+", cells[0]):
            offsets[cells[2].rstrip(",")].add(int(cells[0], 0))
    for number, line in enumerate(lines, 1):
        for structure, field, value in _ASSERTED.findall(line):
            if field in offsets and int(value, 0) not in offsets[field]:
                table = ", ".join(map(str, sorted(offsets[field])))
                text = f"{structure}.{field} is asserted at {value}, the table above says {table}"
                problems.append(Problem(path, number, text))
        for structure, value in _SIZE_ASSERTED.findall(line):
            if sizes.get(structure, int(value, 0)) != int(value, 0):
                said_here = sizes[structure]
                text = f"{structure} has {value} bytes, the comment above says {said_here}"
                problems.append(Problem(path, number, text))
    return problems


def check(tree: Tree) -> list[Problem]:
    problems = []
    for path in tree.below(ends=CPP):
        lines = tree.lines(path)
        problems += comment_problems(path, lines)
        if path.endswith(".h") and "offset" in tree.text(path):
            problems += layout_problems(path, lines)
    return problems
