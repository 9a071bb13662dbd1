"""Every program in docs/own_data.md and docs/python_stages.md runs, as it stands there.

The blocks of the section "The files of this page" come before those of each other section. Then a
section's blocks run in their order, in a directory of their own:

    a block whose first line is a name, `# NAME`, is that file
    `ringfeed run CONFIG` is a feed, which has to end by itself, with status 0
    another block of sh or python is a program, whose status has to be 0
    a block of text is what came out before it: in these lines, of a program or in the log of a
        feed, in their order; … stands for anything

`<!-- fails -->` before a feed: its status is not 0.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import ringfeed

from tests.support.feeds.feed_run import BIN, ROOT, wait_until

PAGES = ("own_data", "python_stages")
FIRST = "The files of this page"
PROGRAM_S = 120.0  # longest that one may take; a test that needs it has failed


@dataclass(frozen=True)
class Block:
    line: int
    section: str
    language: str
    text: str
    fails: bool

    @property
    def file(self) -> str | None:
        """Name of the file that this block is."""
        match = re.match(r"# (\S+\.(?:py|textproto|txt))\n", self.text)
        return match.group(1) if match else None

    @property
    def feed(self) -> list[str] | None:
        """The command, if it starts a feed."""
        words = self.text.split()
        return words if words[:2] == ["ringfeed", "run"] and "\n" not in self.text.strip() else None


def page_of(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def blocks_of(page: str) -> list[Block]:
    found = []
    for match in re.finditer(r"^(<!-- fails -->\n)?```(\w*)\n(.*?)^```$", page, re.M | re.S):
        before = page[: match.start(2)]
        section = re.findall(
            r"^## (.*)$", re.sub(r"^```.*?^```$", "", before, flags=re.M | re.S), re.M
        )
        line = before.count("\n") + 1
        found.append(
            Block(line, section[-1], match.group(2), match.group(3), match.group(1) is not None)
        )
    return found


def sections_of(name: str) -> list[str]:
    return list(dict.fromkeys(block.section for block in blocks_of(page_of(name))))


CASES = [(name, section) for name in PAGES for section in sections_of(name) if section != FIRST]


class Place:
    """A directory in which blocks run, and what came of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.feeds: list[tuple[Block, subprocess.Popen[bytes], Path]] = []
        self.said = ""
        package = str(Path(ringfeed.__file__).parents[1])
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
            "RINGFEED_PYTHON": sys.executable,
            "RINGFEED_SOCKET_DIR": str(directory / "sockets"),
            "XDG_STATE_HOME": str(directory / "state"),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, block: Block) -> None:
        if block.file is not None:
            (self.directory / block.file).write_text(block.text)
        elif block.language == "text":
            self.expect(block)
        elif block.feed is not None:
            self.start(block, block.feed)
        else:
            command = {
                "python": [sys.executable, "-c", block.text],
                "sh": ["bash", "-euo", "pipefail", "-c", block.text],
            }[block.language]
            done = subprocess.run(
                command,
                cwd=self.directory,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PROGRAM_S,
            )
            self.said = done.stdout
            where = f"line {block.line}\n{block.text}"
            assert done.returncode == 0, f"{where}\n{self.said}\n{self.logs()}"

    def start(self, block: Block, command: list[str]) -> None:
        path = self.directory / f"feed-{len(self.feeds)}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.feeds.append((block, process, path))

    def expect(self, block: Block) -> None:
        """Its lines are in the output of the last program, or in the logs so far."""
        pattern = "[^\n]*\n(?:.*\n)*?[^\n]*".join(
            ".*?".join(re.escape(part) for part in line.strip().split("…"))
            for line in block.text.strip().splitlines()
        )
        if re.search(pattern, self.said):
            return
        where = f"line {block.line}\n{block.text}"
        wait_until(lambda: re.search(pattern, self.logs()) or self.are_over(), f"the end; {where}")
        assert re.search(pattern, self.logs()), f"{where}\nsaid:\n{self.said}\n{self.logs()}"

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for _, _, path in self.feeds)

    def are_over(self) -> bool:
        return all(process.poll() is not None for _, process, _ in self.feeds)

    def end(self) -> None:
        for block, process, path in self.feeds:
            status = process.wait(PROGRAM_S)
            assert (status != 0) == block.fails, f"line {block.line}: {status}\n{path.read_text()}"

    def close(self) -> None:
        for _, process, _ in self.feeds:
            if process.poll() is None:
                process.terminate()
                process.terminate()
                process.wait(PROGRAM_S)


@pytest.mark.parametrize("name", PAGES)
def test_each_block_of_a_page_is_known(name: str) -> None:
    page, blocks = page_of(name), blocks_of(page_of(name))
    assert page.count("```") == 2 * len(blocks), "a block that is not recognized"
    for block in blocks:
        known = block.language in ("python", "sh", "text") or block.file is not None
        assert known, f"line {block.line}: nothing is done with it"
        assert block.feed is not None or not block.fails
    assert sections_of(name)[0] == FIRST
    assert sum(block.feed is not None for block in blocks) >= 4


@pytest.mark.parametrize(("name", "section"), CASES, ids=lambda text: text.replace(" ", "_"))
def test_a_section_runs(tmp_path: Path, name: str, section: str) -> None:
    place = Place(tmp_path)
    blocks = blocks_of(page_of(name))
    try:
        for block in blocks:
            if block.section in (FIRST, section):
                place.run(block)
        place.end()
    finally:
        place.close()
