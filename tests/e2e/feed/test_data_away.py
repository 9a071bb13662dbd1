"""The data directory of an endless feed goes away for a while and comes back as it was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]

# So that reading lanes meet the files, and no store has them.
SMALL = {"epochs": 0, "groups": 'groups { name: "default" }', "reservoir": 200, "batch": 64}
WEIGHTED = "position_sampling { default_weight: 1 } weighted_sampling_gamma: 0.5"


@contextmanager
def renamed(directory: Path) -> Iterator[None]:
    away = directory.with_name("away")
    directory.rename(away)
    yield
    away.rename(directory)


@contextmanager
def covered(directory: Path) -> Iterator[None]:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "none", str(directory)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.fail(f"this test mounts: run it as root: {done.stderr.strip()}")
    yield
    subprocess.run(["umount", str(directory)], check=True)


@contextmanager
def removed(directory: Path) -> Iterator[None]:
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)  # with the times of the files
    shutil.rmtree(directory)
    yield
    copy.rename(directory)


def assert_nothing_is_given_up(run: FeedRun) -> None:
    status = run.status()
    assert status is not None
    counters = {
        counter["name"]: counter["value"]
        for stage in status["stages"]
        for counter in stage["counters"]
        if stage["name"] == "pool"
    }
    assert (
        counters.get("chunks_dropped", 0) == 0 and counters.get("gives_nothing", 0) == 0
    ), counters


@pytest.mark.parametrize("pool", ["", WEIGHTED], ids=["uniform", "weighted"])
@pytest.mark.parametrize("away", [renamed, covered, removed], ids=lambda away: away.__name__)
def test_a_directory_that_comes_back_brings_its_chunks_back(
    make_run: MakeRun, games: lc0_data.Manifest, tmp_path: Path, away: Any, pool: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(games.directory, data)
    run = make_run(data, in_pool=pool, **SMALL).start()
    trainer = run.trainer_after(5, positions=0)
    for times in (1, 2):
        with away(data):
            wait_until(
                lambda times=times: run.text().count(" window_unusable ") == times,
                "nothing to be left",
            )
            # A stage that dies meanwhile knows it as well.
            if times == 2:
                pid = run.workers()["pool"]
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda pid=pid: run.workers().get("pool") not in (None, pid), "the pool")
        before = trainer.batches()
        wait_until(
            lambda before=before: trainer.batches() > before + 150, "batches again"
        )  # more than were on their way
    # The provider looks for itself, every second or so.
    said = ("no such directory", "waiting for")
    wait_until(lambda: not any(word in str(run.status()) for word in said), "no word of it")
    assert_nothing_is_given_up(run)
    run.stop(signal.SIGQUIT)


def test_a_tar_that_is_copied_back_brings_its_chunks_back_as_it_grows(
    make_run: MakeRun, games: lc0_data.Manifest, tmp_path: Path
) -> None:
    """As `cp -p` does it: the time is that of the original before the last byte is there."""
    data = tmp_path / "data"
    data.mkdir()
    name = sorted(Path(games.directory).glob("*.tar"))[0].name
    shutil.copy2(Path(games.directory) / name, data / name)
    stored = (data / name).read_bytes()
    times = (data / name).stat()
    run = make_run(data, **SMALL).start()
    trainer = run.trainer_after(5, positions=0)
    (data / name).unlink()
    wait_until(lambda: " window_unusable " in run.text(), "nothing to be left")
    descriptor = os.open(data / name, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, stored[: len(stored) // 2])
        os.utime(descriptor, ns=(times.st_atime_ns, times.st_mtime_ns))
        before = trainer.batches()
        wait_until(lambda: trainer.batches() > before + 50, "batches of its first half")
        os.write(descriptor, stored[len(stored) // 2 :])
        os.utime(descriptor, ns=(times.st_atime_ns, times.st_mtime_ns))
    finally:
        os.close(descriptor)
    before = trainer.batches()
    wait_until(lambda: trainer.batches() > before + 150, "batches again")
    assert_nothing_is_given_up(run)
    run.stop(signal.SIGQUIT)
