"""A feed process for tests of the Python client, and what its batches hold.

The feed is real shared memory with real producing lanes, in a process of its own (fake_feed.cc):
batch s holds x = 1000 s + place, id = s, flags = s; or, with a Layout, what the test says. Test
modules import the fixture make_feed.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("RINGFEED_BUILD_DIR", ROOT / "build" / "release"))
os.environ.setdefault("RINGFEED_LIBRARY", str(BUILD / "lib" / "libringfeed.so"))
sys.path.insert(0, str(ROOT / "pyclient"))

import ringfeed  # noqa: E402

# Longest wait for what must happen; a test that needs it has failed.
PATIENCE_S = 120.0


class Layout:
    """Tensors of a feed whose batches a test makes: name to (dtype, shape, items of the largest).

    Shapes as in Tensor.shape.
    """

    def __init__(self, **tensors: tuple[str, tuple[int, ...], int]) -> None:
        self._offsets: dict[str, int] = {}
        self.options: list[str] = []  # of make_feed
        self._bytes = 0
        for name, (dtype, shape, items) in tensors.items():
            size = items * np.dtype(dtype).itemsize
            lengths = ",".join(map(str, shape))
            self.options += ["--tensor", f"{name}:{dtype}:{lengths}:{self._bytes}:{size}"]
            self._offsets[name] = self._bytes
            self._bytes += (size + 63) // 64 * 64
        self.options += ["--slot-bytes", str(self._bytes)]

    def slot(self, arrays: Mapping[str, np.ndarray]) -> bytes:
        """The bytes of a batch; where no array lies they are 0xa5."""
        slot = bytearray(b"\xa5" * self._bytes)
        for name, array in arrays.items():
            data = array.tobytes()
            slot[self._offsets[name] : self._offsets[name] + len(data)] = data
        assert len(slot) == self._bytes, "an array is larger than its place"
        return bytes(slot)


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

    def publish(
        self,
        layout: Layout,
        arrays: Mapping[str, np.ndarray],
        rows: int,
        ragged: Sequence[int] = (),
    ) -> None:
        """Publishes one batch of these arrays as soon as there is room."""
        file = self.directory / f"{self.name}.batch"
        file.write_bytes(layout.slot(arrays))
        lengths = ",".join(map(str, ragged)) or "-"
        assert self.tell(f"batch {rows} {lengths} {file}") == "ok"

    def answer(self, *answers: tuple[str, bytes]) -> None:
        """Lays the answers to the next message ready: stage and StageControlResponse of each."""
        words = " ".join(f"{stage} {response.hex() or '-'}" for stage, response in answers)
        assert self.tell(f"answer {words}") == "ok"

    def calls(self) -> list[tuple[str | None, int, str]]:
        """Messages to stages until now: stage, key, StageControlRequest as text."""
        found = []
        for call in filter(None, self.tell("calls").split("\t")):
            stage, key, request = call.split(" ", 2)
            found.append((None if stage == "-" else stage, int(key), request.strip()))
        return found

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
