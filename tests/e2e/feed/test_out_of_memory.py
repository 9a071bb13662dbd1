"""A stage's memory cannot grow: the feed stands still and says so, until there is room again."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.scenes import GROUPS, assert_exact, counter
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]


class SmallRoom:
    """A tmpfs that holds what a feed needs at its start and `spare_bytes` more."""

    def __init__(self, path: Path) -> None:
        if os.geteuid() != 0:
            pytest.fail("this test mounts a small tmpfs: run it as root")
        self.path = path
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)], check=True)

    def resize(self, byte_count: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={byte_count}", str(self.path)], check=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[SmallRoom]:
    room = SmallRoom(tmp_path / "room")
    yield room
    room.close()


def bytes_at_start(run: FeedRun) -> int:
    """What the feed says that it needs, from the refusal that it gives in a room without any."""
    done = run.command("run", str(run.config))
    assert done.returncode == 1
    found = re.search(r"in total +([0-9.]+) ([MG])iB", done.stderr)
    assert found is not None, done.stderr
    # Rounded to a tenth.
    return round((float(found[1]) + 0.05) * (1 << 20 if found[2] == "M" else 1 << 30))


def test_a_stage_whose_memory_cannot_grow_waits_and_goes_on_when_there_is_room(
    make_run: MakeRun, games: lc0_data.Manifest, room: SmallRoom
) -> None:
    run = make_run(
        extra=GROUPS + f'storage {{ directory: "{room.path}" }} restart {{ stall_ms: 3000 }}'
    )
    size = bytes_at_start(run)
    room.resize(size + (256 << 10))  # the pool's window grows by at least 1 MiB
    run.start()
    trainer = run.trainer()
    wait_until(
        lambda: counter(run, "pool", "growths_refused") > 20, "the pool to be refused memory"
    )
    assert run.text().count("no_memory lane=pool") == 1, "said once, however often it was refused"
    notes = str(run.status())
    assert "waits for memory" in notes, notes
    assert trainer.batches() == 0
    # One that comes back finds no more room than the one before it.
    pid = run.workers()["pool"]
    os.kill(pid, 9)
    wait_until(lambda: run.text().count("no_memory lane=pool") == 2, "its successor to be refused")
    room.resize(4 * size)
    assert_exact(trainer.result()["hashes"], games)
    assert run.wait() == 0, run.text()
    log = run.text()
    assert "memory_found lane=pool" in log
    assert (
        log.count("worker_died") == 1 and "worker_stalled" not in log
    ), "nobody died of it (no SIGBUS)"
    assert not list(room.path.iterdir())
