"""Every program in docs/trainers.md runs, as it stands there, against a real feed.

A block of Python is a program. One whose first line is a file name in a comment is only written
there, for the programs and shell commands that follow. `<!-- run twice -->` before a block means
what it says.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import ROOT, FeedRun
from tests.support.loaders.ranks import resting_at_exit

MakeRun = Callable[..., FeedRun]

PAGE = ROOT / "docs" / "trainers.md"
PROGRAM_S = 300.0  # longest that one may take; a test that needs it has failed


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    text: str
    times: int

    @property
    def file(self) -> str | None:
        """Name of the file that this block is."""
        match = re.match(r"# (\S+\.py)\n", self.text)
        return match.group(1) if match else None

    @property
    def needs(self) -> list[str]:
        """Frameworks that it needs."""
        named = re.findall(r"\b(torch|jax|torchrun)\b", self.text)
        return sorted({"torch" if name == "torchrun" else name for name in named})


def blocks() -> list[Block]:
    page = PAGE.read_text()
    found = []
    for match in re.finditer(r"^(<!-- run twice -->\n)?```(\w*)\n(.*?)^```$", page, re.M | re.S):
        line = page[: match.start(2)].count("\n") + 1
        found.append(Block(line, match.group(2), match.group(3), 2 if match.group(1) else 1))
    return found


PROGRAMS = [block for block in blocks() if block.file is None]


def test_the_page_has_programs_of_every_kind() -> None:
    assert PAGE.read_text().count("```") == 2 * len(blocks()), "a block that is not recognized"
    assert {block.language for block in blocks()} == {"python", "sh"}
    assert len(PROGRAMS) >= 9 and len(blocks()) > len(PROGRAMS)
    assert [block.times for block in PROGRAMS].count(2) == 1


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: f"line_{block.line}")
def test_a_program_of_the_page_runs(make_run: MakeRun, tmp_path: Path, block: Block) -> None:
    for framework in block.needs:
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed: scripts/test --with-frameworks installs it")
    for other in blocks():
        if other.file is not None and other.line < block.line:
            (tmp_path / other.file).write_text(other.text)
    run = make_run(epochs=0, batch=64).start()
    command = {
        "python": [sys.executable, "-c", block.text],
        "sh": ["bash", "-euo", "pipefail", "-c", block.text],
    }[block.language]
    environment = {
        **run.environment,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    for _ in range(block.times):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=resting_at_exit(environment),
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}\n{run.text()}"
    assert run.stop() == 0, run.text()
