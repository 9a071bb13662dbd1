"""`ringfeed scale`: stages get more and fewer lanes while they run, and the batches stay the
same.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import ringfeed

from tests.support.feeds.feed_run import DEFAULTS, FeedRun, wait_until
from tests.support.feeds.scenes import GROUPS, kill_everything, kill_supervisor, next_batches
from tests.support.feeds.trainer import digest_of
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]

ROOM = (
    *("--set", "stages.unpacker.max_threads=4"),
    *("--set", "stages.pool.max_threads=3"),
    *("--set", "stages.loader.max_threads=2"),
)

# What a change is answered with that comes too late.
ENDS = ("its input has ended", "is ending", "the run is over", "no feed 'lc0' runs")


def scaled(run: FeedRun, stage: str, lanes: int) -> subprocess.CompletedProcess[str]:
    return run.command("scale", "lc0", stage, str(lanes))


def lanes_at_work(run: FeedRun, stage: str) -> dict[str, int]:
    """Records that each lane of a stage has output, of those that are not spare."""
    status = run.status() or {"stages": []}
    for entry in status["stages"]:
        if entry["name"] == stage:
            return {
                lane["name"]: lane["records_out"]
                for lane in entry["lanes"]
                if lane["state"] != "SPARE"
            }
    return {}


@pytest.mark.parametrize("deaths", [False, True], ids=["undisturbed", "with_deaths"])
def test_scaling_up_and_down_changes_no_batch(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    deaths: bool,
) -> None:
    run = make_run(epochs=2, extra=GROUPS).start(*ROOM)
    trainer = run.trainer_after(2, pause_ms=60, positions=0)
    done = 0
    for number, (stage, lanes) in enumerate(
        [("unpacker", 4), ("pool", 3), ("unpacker", 2), ("pool", 1), ("unpacker", 1), ("pool", 2)]
    ):
        at = trainer.batches()
        answer = scaled(run, stage, lanes)
        if answer.returncode != 0:
            assert any(end in answer.stderr for end in ENDS), answer.stderr
            break
        assert f"stage '{stage}' now has {lanes} lane" in answer.stdout
        done += 1
        workers = run.workers()
        if deaths and (group := ("mix", "pool")[number % 2]) in workers:
            os.kill(workers[group], signal.SIGKILL)
        wait_until(lambda: trainer.batches() > at or trainer.process.poll() is not None, "more")
    assert done > 0, run.text()
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()


def test_lanes_that_were_added_work_and_those_that_were_taken_rest(make_run: MakeRun) -> None:
    run = make_run(epochs=0, extra=GROUPS).start(*ROOM)
    run.trainer_after(2, pause_ms=10, positions=0)
    assert list(lanes_at_work(run, "unpacker")) == ["unpacker.0"]
    assert scaled(run, "unpacker", 3).returncode == 0
    wait_until(
        lambda: all(records > 0 for records in lanes_at_work(run, "unpacker").values())
        and len(lanes_at_work(run, "unpacker")) == 3,
        "three lanes that output records",
    )
    assert scaled(run, "unpacker", 1).returncode == 0
    again = scaled(run, "unpacker", 1)
    assert again.returncode == 0 and "already has 1 lane" in again.stdout
    wait_until(lambda: list(lanes_at_work(run, "unpacker")) == ["unpacker.0"], "two to rest")
    text = run.command("status", "lc0").stdout
    assert text.count(" spare ") >= 3, text


def test_what_cannot_be_scaled_is_refused_with_what_can_be_done(make_run: MakeRun) -> None:
    run = make_run(epochs=0, extra=GROUPS).start(*ROOM)
    run.trainer_after(2, batches=20, positions=0)
    for stage, lanes, text in (
        ("sampler", 2, "the state of its lanes depends on their number: set threads"),
        ("tensors", 2, "the state of its lanes depends on their number"),
        ("unpacker", 5, "1 to 4 lanes are possible"),
        ("unpacker", 0, "1 to 4 lanes are possible"),
        ("unpakcer", 2, "there is no stage 'unpakcer': the stages are provider, loader, pool"),
    ):
        refused = scaled(run, stage, lanes)
        assert refused.returncode == 1 and text in refused.stderr, refused.stderr
    assert run.command("scale", "lc0", "unpacker", "two").returncode == 2
    other = run.command("scale", "lc1", "unpacker", "2")
    assert other.returncode == 4 and "no feed 'lc1' runs" in other.stderr


def test_a_change_waits_for_the_one_before_and_says_so_when_that_takes_long(
    make_run: MakeRun,
) -> None:
    run = make_run(epochs=0, extra=GROUPS, groups='groups { name: "default" }').start(*ROOM)

    def used() -> int:
        (output,) = (run.status() or {}).get("outputs", [{}])
        return int(output.get("slots_used", 0))

    wait_until(lambda: used() == 6, "a full feed")
    assert scaled(run, "unpacker", 4).returncode == 0
    busy = scaled(run, "unpacker", 2)  # nobody takes batches
    assert busy.returncode == 1
    assert "lanes still have work from before the last change" in busy.stderr
    run.trainer_after(40, batches=500, positions=0)
    assert scaled(run, "unpacker", 2).returncode == 0


def test_another_lane_count_in_the_configuration_is_taken_over(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    run = make_run(epochs=2, extra=GROUPS).start(*ROOM)
    trainer = run.trainer_after(3, pause_ms=30, positions=0)
    kill_supervisor(run)
    run.start(*ROOM, "--set", "stages.unpacker.threads=3", "--set", "restart.max_restarts=7")
    wait_until(
        lambda: "stage_scaled feed=lc0 stage=unpacker lanes=3 before=1" in run.text(), "that"
    )
    kill_supervisor(run)
    # What is laid out cannot change.
    more = run.command("run", str(run.config), *ROOM, "--set", "stages.unpacker.max_threads=8")
    assert more.returncode == 3
    assert "max_threads: 4 -> 8" in more.stderr and "threads: 1" not in more.stderr
    # The configuration has the last word.
    run.start(*ROOM)
    wait_until(lambda: "stage=unpacker lanes=1 before=3" in run.text(), "one lane again")
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()


def test_a_snapshot_goes_on_with_another_lane_count(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = make_run(epochs=2, extra=GROUPS).start(*ROOM)
    run.trainer_after(3, pause_ms=30, positions=0)
    assert scaled(run, "unpacker", 4).returncode == 0
    saved = tmp_path / "saved"
    assert run.command("snapshot", "lc0", str(saved)).returncode == 0
    kill_everything(run)
    run.start(*ROOM, "--set", "stages.unpacker.threads=2", "--resume", str(saved))
    # The lanes become fewer between two units, so batches have to be taken: the next one when the
    # lanes have done all they can without.
    got: list[int] = []
    expected = undisturbed[next_batches(saved)["default"] - 1 :]
    done = "stage_scaled feed=lc0 stage=unpacker lanes=2 before=4"
    with ringfeed.attach("lc0", socket_dir=run.sockets, timeout_s=60, attach_timeout_s=60) as feed:
        for batch in feed:
            got.append(digest_of(batch))
            full = min(batch.seq + DEFAULTS["slots"], len(undisturbed))
            batch.release()
            wait_until(
                lambda full=full: done in run.text() or feed.stats().published >= full,
                "a batch in each slot",
            )
    assert np.array_equal(got, expected)
    assert run.wait() == 0, run.text()
    assert done in run.text()


def test_max_threads_below_threads_is_refused(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = make_run(epochs=2, unpackers=3)
    done = run.command("check", str(run.config), "--set", "stages.unpacker.max_threads=2")
    assert done.returncode == 3
    assert "max_threads is 2, which is less than threads, 3" in done.stderr
    done = run.command("check", str(run.config), "--set", "stages.unpacker.max_threads=5")
    assert done.returncode == 0 and "3 (up to 5)" in done.stdout
