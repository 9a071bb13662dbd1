"""`ringfeed restart`: a fresh process, or another program, takes over a stage group's lanes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.feeds.feed_run import BIN, FeedRun, wait_until
from tests.support.feeds.scenes import GROUPS

MakeRun = Callable[..., FeedRun]


def program_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/exe")


def runs_program(run: FeedRun, group: str, program: Path) -> bool:
    pid = run.workers().get(group)
    try:
        return pid is not None and program_of(pid) == str(program)
    except OSError:  # it has just ended
        return False


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_every_group_is_replaced_under_load_and_nothing_is_lost(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    run = make_run(epochs=2, extra=GROUPS).start()
    trainer = run.trainer_after(3, pause_ms=20, positions=0)
    for group in ("out", "mix", "pool", "mix"):
        before = run.workers().get(group)
        if before is None:
            continue  # it has done its work
        done = run.command("restart", "lc0", group)
        if done.returncode != 0:
            assert "cannot be replaced now" in done.stderr  # it has just ended
            continue
        now = run.workers().get(group)
        assert now != before
        assert f"stage group '{group}' now runs in process" in done.stdout
    assert run.text().count("worker_restarted") >= 2
    assert "worker_died" not in run.text(), "a replacement is no death"
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()


def test_a_new_program_takes_over_the_rings_and_arenas_of_the_old_one(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    newer = tmp_path / "newer-worker"
    shutil.copy(BIN / "ringfeed-worker", newer)
    run = make_run(epochs=2, extra=GROUPS).start()
    trainer = run.trainer_after(3, pause_ms=20, positions=0)
    done = run.command("restart", "lc0", "out", "--binary", str(newer))
    assert done.returncode == 0, done.stderr
    workers = run.workers()
    assert program_of(workers["out"]) == str(newer)
    assert all(program_of(pid) != str(newer) for name, pid in workers.items() if name != "out")
    # It stays the group's program.
    os.kill(workers["out"], 9)
    wait_until(lambda: run.workers().get("out") not in (None, workers["out"]), "the next one")
    wait_until(lambda: runs_program(run, "out", newer), "its program")
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()


def test_a_program_that_cannot_take_over_is_refused_or_given_up(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = make_run(epochs=2, extra=GROUPS)
    run.environment["RINGFEED_TEST_STATE_VERSION"] = "77"  # for the worker made for tests
    run.start()
    trainer = run.trainer_after(3, pause_ms=300, positions=0)
    before = run.workers()

    def refused(binary: Path, group: str = "out", tries: int = 8) -> str:
        for _ in range(tries):
            done = run.command("restart", "lc0", group, "--binary", str(binary))
            assert done.returncode == 1, done.stdout
            if "has not answered within" not in done.stderr:
                break  # else a machine so slow that its five seconds were over
        return done.stderr

    # Before anything is stopped.
    text = refused(BIN / "poison_worker")
    assert "lays out the memory of stage 'tensors' differently" in text
    assert "state_version: 2 -> 77" in text
    talks = script(
        tmp_path / "talks",
        "unset RINGFEED_TEST_STATE_VERSION\nexport RINGFEED_TEST_ANSWERS=chunk_pool_request\n"
        f'exec {BIN / "poison_worker"} "$@"',
    )
    text = refused(talks)
    assert "stage 'tensors' declares other facts or wishes, or answers other messages" in text
    assert 'answers[0]: "chunk_pool_request"' in text
    assert "exit status 1" in refused(Path("/bin/false"))
    assert "are not a plan" in refused(Path("/bin/echo"))
    slow = script(tmp_path / "slow", "exec sleep 100")
    assert "has not answered within" in refused(slow, tries=1)
    assert "there is no stage group 'other'" in refused(BIN / "ringfeed-worker", "other")
    done = run.command("restart", "lc0", "out", "--binary", str(tmp_path / "missing"))
    assert done.returncode == 2 and "missing" in done.stderr
    assert run.workers()["out"] == before["out"]

    # It plans like the old one, and then does not start: the old program goes on.
    real = BIN / "ringfeed-worker"
    broken = script(
        tmp_path / "broken", f'[ "$1" = --plan ] && exec {real} "$@"\necho woe >&2\nexit 3'
    )
    text = refused(broken)
    assert "ended with exit status 3 before it was ready: woe" in text
    wait_until(lambda: runs_program(run, "out", real), "the old program")
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()
