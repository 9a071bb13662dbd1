"""C++ without what a reader skips: comments and literals blanked, every line where it was."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"//[^\n]*(?:\\\n[^\n]*)*"  # a comment to the line's end
    r"|/\*.*?\*/"
    r'|R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",  # no digit separator: 10'000
    re.DOTALL,
)
_BLANK = re.compile(r"[^\n]")


def code(text: str, literals: bool = False) -> str:
    """The text with comments, and literals unless they are asked for, as spaces."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        if found.startswith(("//", "/*")):
            return _BLANK.sub(" ", found)
        return found if literals else found[0] + _BLANK.sub(" ", found[1:-1]) + found[-1]

    return _TOKEN.sub(blank, text)
