"""A feed process for tests of the Python client, and what its batches hold.

The feed is real shared memory with real producing lanes, in a process of its own (fake_feed.cc):
batch s holds x = 1000 s + place, id = s, flags = s. Test modules import the fixture make_feed.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RINGFEED_BUILD_DIR", ROOT / "build" / "release"))
os.environ.setdefault("RINGFEED_LIBRARY", str(BUILD / "lib" / "libringfeed.so"))
sys.path.insert(0, str(ROOT / "pyclient"))

import ringfeed  # noqa: E402

# Longest wait for what must happen; a test that needs it has failed.
PATIENCE_S = 30.0


class FakeFeed:
    """Talks to a fake_feed process."""

    def __init__(self, directory: Path, *options: str, name: str = "fake") -> None:
        self.name = name
        self.directory = directory
        command = [str(BUILD / "bin" / "fake_feed"), "--dir", str(directory), "--feed", name]
        self.process = subprocess.Popen(
            [*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, command: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._line()

    def attach(self, **options: object) -> ringfeed.Feed:
        settings: dict = {"timeout_s": PATIENCE_S, "socket_dir": self.directory}
        settings.update(options)
        return ringfeed.attach(self.name, **settings)

    def wait_until_members(self, count: int) -> None:
        while int(self.tell("members")) != count:
            pass

    def wait_until_published(self, count: int) -> None:
        while int(self.tell("newest")) < count:
            pass

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


MakeFeed = Callable[..., FakeFeed]


@pytest.fixture
def make_feed() -> Iterator[MakeFeed]:
    # Short: a socket's path may have 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="rf-"))
    feeds: list[FakeFeed] = []

    def make(*options: str, name: str = "fake") -> FakeFeed:
        feeds.append(FakeFeed(directory, *options, name=name))
        return feeds[-1]

    yield make
    gc.collect()
    for feed in feeds:
        feed.end()
    for left in directory.iterdir():
        left.unlink()
    directory.rmdir()


def rows_of(seq: int, rows: int) -> np.ndarray:
    return (1000 * seq + np.arange(3 * rows, dtype=np.float32)).reshape(rows, 3)


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "pyclient"))
    # Who starts tests in the background may have had Ctrl-C ignored, which children inherit.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    return subprocess.Popen(
        [sys.executable, "-c", heard + textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
