"""A report of `ringfeed run --report` as a test reads it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

# No end tag.
_VOID = frozenset({"meta", "line", "path", "link", "img", "br"})


class ReportPage(HTMLParser):
    """Rows by what their attributes say of them (``data-…``), and the text of the page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.rows: list[dict[str, str]] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self._open: list[str] = []
        self._text: list[str] = []
        self.feed(self.source)
        self.close()
        assert self._open == [], "every element is closed"
        self.text = re.sub(r"\s+", " ", "".join(self._text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        data = {name[5:]: value or "" for name, value in attrs if name.startswith("data-")}
        if data:
            self.rows.append(data)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]
        assert not any(name.startswith("on") for name, _ in attrs), "no scripts"
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> closes what is open"

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self._text.append(data + " ")

    def of(self, **wanted: str) -> list[dict[str, str]]:
        """The rows with these values; an empty value: whatever it is."""
        return [
            row
            for row in self.rows
            if all(name in row and value in ("", row[name]) for name, value in wanted.items())
        ]

    def one(self, **wanted: str) -> dict[str, str]:
        found = self.of(**wanted)
        assert len(found) == 1, (wanted, self.rows)
        return found[0]
