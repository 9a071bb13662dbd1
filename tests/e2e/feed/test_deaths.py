"""Workers are killed under load; no position is lost and none comes twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.feeds.feed_run import BIN, FeedRun, stop, wait_until
from tests.support.feeds.scenes import GROUPS, assert_exact, counter
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]


@pytest.mark.parametrize("group", ["pool", "mix", "out"])
def test_a_killed_group_comes_back_and_nothing_is_lost(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,
    group: str,
    record_property: Callable[[str, object], None],
) -> None:
    run = make_run(epochs=2, extra=GROUPS).start()
    trainer = run.trainer(pause_ms=10)
    kills = []
    for at in (5, 12, 20):
        wait_until(lambda: trainer.batches() >= at, f"batch {at}")
        pid = run.workers().get(group)
        if pid is None:
            continue  # this group has already finished its work
        os.kill(pid, signal.SIGKILL)
        kills.append(pid)
        # A group that has nothing left to do ends right after its restart.
        wait_until(lambda: run.workers().get(group) != pid, f"{group} to be replaced")
    assert kills, "the group was killed at least once"
    result = trainer.result()
    assert_exact(result["hashes"], games, times=2)
    assert np.array_equal(result["digests"], undisturbed), "byte for byte as if nobody had died"
    record_property("gap_ms_max", round(1000 * float(np.max(np.diff(result["times"]))), 1))
    assert run.wait() == 0, run.text()


def test_a_file_that_came_while_the_provider_was_dead_is_found_once(
    make_run: MakeRun, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    lc0_data.make_dataset(data, games=8, tars=2, seed=4)
    run = make_run(data, epochs=0, extra=GROUPS).start()
    wait_until(lambda: counter(run, "loader", "sources") == 2, "both tars")
    other = tmp_path / "other"
    lc0_data.make_dataset(other, games=4, tars=1, seed=5)
    tar = next(other.glob("*.tar"))
    pid = run.workers()["files"]
    stop(pid)
    tar.rename(data / f"new-{tar.name}")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: run.workers().get("files") not in (None, pid), "the provider to be back")
    wait_until(lambda: counter(run, "loader", "sources") == 3, "the new tar")
    wait_until(lambda: counter(run, "pool", "chunks_total") == 12, "its games")
    assert counter(run, "loader", "sources") == 3, "nothing was output twice"
    assert run.stop() == 0, run.text()


def test_a_killed_trainer_leaves_its_batches_to_the_other(
    make_run: MakeRun, games: lc0_data.Manifest
) -> None:
    run = make_run(groups='groups { name: "pair" }').start()
    victim = run.trainer(group="pair", pause_ms=20)
    survivor = run.trainer(group="pair", pause_ms=20)
    wait_until(lambda: victim.batches() >= 2 and survivor.batches() >= 1, "both at work")
    victim.process.kill()
    result = survivor.result()
    # What the victim had finished is gone with it; everything else came to the survivor, once.
    audit_numbers = result["numbers"]
    assert len(set(audit_numbers)) == len(audit_numbers)
    last = int(audit_numbers.max())
    assert len(audit_numbers) >= last - victim.batches() - 1
    assert run.wait() == 0, run.text()


def test_a_worker_that_dies_at_once_for_ever_stops_the_feed_with_the_reason(
    make_run: MakeRun,
) -> None:
    run = make_run(
        extra="restart { max_restarts: 3 within_s: 60 backoff_ms_min: 1 backoff_ms_max: 10 }"
    )
    programs = run.work / "bin"
    programs.mkdir()
    shutil.copy2(BIN / "ringfeed", programs / "ringfeed")
    worker = programs / "ringfeed-worker"
    worker.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --plan ] && exec {BIN}/ringfeed-worker --plan\n'
        'echo "cannot find my marbles" >&2\nkill -SEGV $$\n'
    )
    worker.chmod(0o755)
    run.environment["RINGFEED_WORKER"] = str(worker)
    done = subprocess.run(
        [str(programs / "ringfeed"), "run", str(run.config)],
        env=run.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "cannot find my marbles" in done.stderr


@pytest.mark.parametrize("group", ["pool", "mix", "out"])
def test_a_stopped_worker_is_replaced_after_stall_ms(
    make_run: MakeRun, games: lc0_data.Manifest, undisturbed: np.ndarray, group: str
) -> None:
    """Whether its lanes worked or slept when it was stopped."""
    run = make_run(epochs=2, extra=GROUPS + "restart { stall_ms: 500 }").start()
    trainer = run.trainer_after(5, positions=0, pause_ms=10)
    pid = run.workers()[group]
    stop(pid)
    wait_until(
        lambda: run.workers().get(group) != pid or run.process.poll() is not None,
        f"{group} to be replaced",
    )
    result = trainer.result()
    assert np.array_equal(result["digests"], undisturbed), "byte for byte as if nothing had been"
    assert run.wait() == 0, run.text()
    assert "worker_stalled" in run.text() and "dead_letter " not in run.text()


def test_a_feed_that_was_frozen_as_a_whole_kills_nobody_for_it(
    make_run: MakeRun, undisturbed: np.ndarray
) -> None:
    """As by a machine that sleeps or a container that is paused; the supervisor wakes up first."""
    run = make_run(epochs=2, extra=GROUPS + "restart { stall_ms: 3000 }").start()
    trainer = run.trainer_after(5, positions=0, pause_ms=10)
    workers = run.workers()
    assert run.process is not None
    everyone = [run.process.pid, *workers.values()]
    for _ in range(2):
        for pid in everyone:
            stop(pid)
        time.sleep(4)
        os.kill(run.process.pid, signal.SIGCONT)
        time.sleep(0.3)
        for pid in workers.values():
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
    result = trainer.result()
    assert np.array_equal(result["digests"], undisturbed)
    assert run.wait() == 0, run.text()
    assert "worker_stalled" not in run.text() and "worker_died" not in run.text()
