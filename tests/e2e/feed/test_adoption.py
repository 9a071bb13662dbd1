"""The supervisor is killed: stages and trainers go on, and the next one takes the feed over."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ringfeed
from tests.support.feeds.feed_run import FeedRun, runs, stop, wait_until
from tests.support.feeds.feed_watch import segments_of
from tests.support.feeds.scenes import (
    GROUPS,
    all_links_are_back,
    assert_exact,
    kill_supervisor,
    kill_supervisor_and_workers,
)
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]


def test_nobody_notices_when_the_supervisor_is_killed_and_started_again(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    run = make_run(
        epochs=2, extra=GROUPS, groups='groups { name: "default" } groups { name: "few" }'
    ).start()
    trainer = run.trainer(pause_ms=20)
    enough = run.work / "enough"
    leaving = run.trainer(group="few", until=enough, pause_ms=20)
    wait_until(lambda: trainer.batches() >= 5 and leaving.batches() >= 2, "both to work")
    workers = run.workers()
    kill_supervisor(run)
    at = trainer.batches()
    wait_until(lambda: trainer.batches() >= at + 5, "batches without a supervisor")
    # However long it takes to come back, the feed waits for this one.
    stop(leaving.process.pid)
    run.start()
    wait_until(lambda: all_links_are_back(run, 1), "the feed to be taken over")
    wait_until(lambda: run.text().count("supervisor_found") >= 1, "a worker's log to come again")
    # What is adopted is restarted as what was started.
    os.kill(workers["mix"], signal.SIGKILL)
    wait_until(lambda: "worker_restarted feed=lc0 group=mix" in run.text(), "its successor")
    enough.touch()
    os.kill(leaving.process.pid, signal.SIGCONT)
    leaving.result()
    wait_until(lambda: "trainer_left feed=lc0 group=few" in run.text(), "its wish to be heard")
    assert "trainer_rejoined feed=lc0 group=few" in run.text()
    following = run.trainer(group="few")
    result = trainer.result()
    following.result()
    assert_exact(result["hashes"], games, times=2)
    assert np.array_equal(result["digests"], undisturbed), "byte for byte as if nobody had died"
    assert run.wait() == 0, run.text()
    assert not list(run.sockets.iterdir()), "nothing is left behind"


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("failed", [False, True])
def test_who_leaves_as_the_supervisor_dies_and_goes_on_living_holds_up_nobody(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    heard: bool,
    failed: bool,
) -> None:
    """What it says is lost with the supervisor, which is gone or has read nothing more."""
    run = make_run(epochs=2, extra=GROUPS, groups='groups { name: "default" }').start()
    trainer = run.trainer_after(1, pause_ms=20)
    # Without a wish of its own the group of one who has done his work goes at once.
    feed = ringfeed.attach(
        "lc0",
        "guest",
        socket_dir=run.sockets,
        attach_timeout_s=60,
        rejoin_ms=100 if failed else None,
    )
    with contextlib.suppress(ZeroDivisionError), feed:
        feed.next(timeout_s=60).release()
        assert run.process is not None
        if heard:
            stop(run.process.pid)
        else:
            kill_supervisor(run)
        if failed:
            raise ZeroDivisionError
    if heard:
        kill_supervisor(run)
    run.start()
    wait_until(lambda: "trainer_left feed=lc0 group=guest" in run.text(), "its place to be free")
    wait_until(lambda: "group_left feed=lc0 group=guest" in run.text(), "its group's end")
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()


def test_workers_and_trainers_that_die_without_a_supervisor_are_seen_to_by_the_next(
    make_run: MakeRun, games: lc0_data.Manifest
) -> None:
    run = make_run(epochs=2, extra=GROUPS, groups='groups { name: "pair" }').start()
    dying = run.trainer(group="pair", pause_ms=20)
    staying = run.trainer(group="pair", pause_ms=20)
    wait_until(lambda: dying.batches() >= 2 and staying.batches() >= 2, "both to work")
    workers = run.workers()
    kill_supervisor(run)
    for name in ("pool", "mix"):
        os.kill(workers[name], signal.SIGKILL)
    dying.process.kill()
    dying.process.wait()
    run.start()
    result = staying.result()
    assert run.wait() == 0, run.text()
    # Each batch number once over both members; those the dead one had finished are not known.
    numbers = list(result["numbers"])
    assert len(set(numbers)) == len(numbers)
    assert max(result["tries"]) == 1, "what the dead member held came to the other"
    assert "trainer_died" in run.text()


@pytest.mark.parametrize("seed", range(3))
def test_any_processes_killed_at_random_change_no_batch(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
    seed: int,
) -> None:
    dice = random.Random(seed)
    run = make_run(
        epochs=2, extra=GROUPS + "restart { max_restarts: 1000 backoff_ms_max: 20 }"
    ).start()
    trainer = run.trainer_after(1, pause_ms=20)
    supervisors = workers = 0
    while trainer.batches() < len(undisturbed) - 20:
        # One of each first: a slow machine does not come to many.
        if not supervisors or (workers and dice.random() < 0.4):
            kill_supervisor(run)
            run.start()
            supervisors += 1
        else:
            # One worker is let live: the memory of a feed all of whose processes die at once is
            # gone.
            pids = [pid for name, pid in run.all_workers().items() if name != "out"]
            if pids:
                with contextlib.suppress(ProcessLookupError):  # it has just done its work
                    os.kill(dice.choice(pids), signal.SIGKILL)
                    workers += 1
        at = trainer.batches()
        wait_until(lambda: trainer.batches() > at, "another batch")
    assert supervisors > 0 and workers > 0
    result = trainer.result()
    assert np.array_equal(result["digests"], undisturbed), "byte for byte as if nobody had died"
    assert run.wait() == 0, run.text()
    assert not list(run.sockets.iterdir())


def waiting_at_its_end(make_run: MakeRun, batches: int, extra: str = GROUPS) -> FeedRun:
    """A feed whose lanes have all finished; its batches wait for group g, one of them in a dead
    trainer's hand.
    """
    run = make_run(epochs=2, extra=extra, slots=batches + 1, groups='groups { name: "g" }').start()
    first = run.trainer(group="g", batches=1, pause_ms=600_000)
    wait_until(lambda: "lanes_finished" in run.text(), "the last lane's end")
    wait_until(lambda: holds_a_batch(run), "a batch in its hand")
    first.process.kill()
    first.process.wait()
    return run


def holds_a_batch(run: FeedRun) -> bool:
    status = run.status() or {}
    return any(
        int(trainer.get("taken", 0)) > int(trainer.get("done", 0))
        for trainer in status.get("trainers", [])
    )


def assert_the_rest_comes(run: FeedRun, undisturbed: np.ndarray) -> None:  # noqa: F811
    result = run.trainer(group="g").result()
    assert run.wait() == 0, run.text()
    assert list(result["numbers"]) == list(range(1, len(undisturbed) + 1))
    assert list(result["tries"]) == [1] + [0] * (len(undisturbed) - 1)
    assert np.array_equal(result["digests"], undisturbed)
    assert run.text().count("feed_started") == 1, "nothing was started anew"
    assert not list(run.sockets.iterdir())


def test_batches_that_wait_at_the_end_of_a_feed_outlive_its_supervisor(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    run = waiting_at_its_end(make_run, len(undisturbed))
    kill_supervisor(run)
    run.start()
    wait_until(lambda: all_links_are_back(run, 1), "the feed to be taken over")
    assert_the_rest_comes(run, undisturbed)


def test_a_feed_that_ends_without_its_supervisor_is_not_begun_anew(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    run = make_run(epochs=2, extra=GROUPS).start()
    trainer = run.trainer_after(2, pause_ms=60, positions=0)
    kill_supervisor(run)
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    run.start()
    assert run.wait() == 0, run.text()
    text = run.text()
    assert text.count("feed_started") == 1 and text.count("feed_adopted") == 1, text
    assert text.count("feed_ended") == 1 and not run.record()


def test_idle_workers_of_a_feed_at_its_end_have_successors_that_hold_its_memory(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    run = waiting_at_its_end(make_run, len(undisturbed))
    everything = segments_of(run.process.pid if run.process else 0, run.feed).keys()
    before = run.all_workers()
    assert len(before) == 4
    for name, pid in before.items():
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: run.all_workers().get(name, pid) != pid, "a successor")
        wait_until(
            lambda: segments_of(run.all_workers().get(name, 0), run.feed).keys() == everything,
            "the memory to come to it",
        )
    after = run.all_workers()
    assert not set(before.values()) & set(after.values())
    kill_supervisor(run)
    # Three of them die while nobody supervises: the last one holds everything.
    for name in ("files", "mix", "out"):
        os.kill(after[name], signal.SIGKILL)
    run.start()
    wait_until(lambda: all_links_are_back(run, 1), "the feed to be taken over")
    assert_the_rest_comes(run, undisturbed)


def test_an_idle_worker_that_dies_too_often_still_has_a_successor(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    rare = GROUPS + "restart { max_restarts: 1 within_s: 1 }"
    run = waiting_at_its_end(make_run, len(undisturbed), rare)
    for _ in range(4):
        pid = run.all_workers()["pool"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: run.all_workers().get("pool", pid) != pid, "a successor")
    assert "restart_in_ms=1000" in run.text()
    assert_the_rest_comes(run, undisturbed)


def test_everything_killed_at_once_goes_on_from_the_files_of_storage_directory(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    run = make_run(
        epochs=2,
        extra=GROUPS + f'storage {{ directory: "{storage}" }}',
        groups='groups { name: "g" }',
    ).start()
    first = run.trainer_after(10, group="g", hold=10)
    stop(first.process.pid)  # nothing is under way in it
    kill_supervisor_and_workers(run)
    first.process.kill()
    first.process.wait()
    done = first.batches()
    run.start()
    second = run.trainer(group="g")
    result = second.result()
    assert run.wait() == 0, run.text()
    # The batch that the dead trainer worked on comes again, with a try more; none is left out.
    # What was given back is noted every 5 ms, so that one more may come again.
    assert result["numbers"][0] in (done - 1, done, done + 1, done + 2)
    assert list(result["numbers"]) == list(range(result["numbers"][0], len(undisturbed) + 1))
    assert np.array_equal(result["digests"], undisturbed[result["numbers"][0] - 1 :])
    assert not list(storage.iterdir()), "a feed that has ended leaves no files"


def test_another_configuration_is_refused_by_name_and_fresh_starts_anew(
    make_run: MakeRun, games: lc0_data.Manifest
) -> None:
    run = make_run(epochs=0, extra=GROUPS).start()
    wait_until(lambda: "first_batch" in run.text(), "the first batch")
    workers = run.all_workers()
    kill_supervisor(run)
    config = run.config.read_text()
    run.config.write_text(
        config.replace("reservoir_size_per_thread: 2000", "reservoir_size_per_thread: 300")
    )
    refused = run.command("run", str(run.config))
    assert refused.returncode == 3
    assert (
        "reservoir_size_per_thread: 2000 -> 300" in refused.stderr and "--fresh" in refused.stderr
    )
    assert all(runs(pid) for pid in workers.values()), "nothing was ended"
    # What only the supervisor follows may change.
    run.config.write_text(config + "restart { max_restarts: 77 }")
    run.start()
    wait_until(lambda: all_links_are_back(run, 1), "the feed to be taken over")
    kill_supervisor(run)
    run.start("--fresh")
    wait_until(lambda: run.text().count("first_batch") == 2, "the first batch of a new feed")
    assert run.stop() == 0


def test_a_trainer_whose_feed_is_dead_for_good_is_told(
    make_run: MakeRun, games: lc0_data.Manifest
) -> None:
    run = make_run(epochs=0, extra=GROUPS).start()
    trainer = run.trainer_after(3, pause_ms=5, positions=0)
    workers = run.all_workers()
    kill_supervisor(run)
    for pid in workers.values():
        os.kill(pid, signal.SIGKILL)
    assert trainer.process.wait(60) == 1
    assert "its supervisor and all its workers are gone" in trainer.log.read_text()
    run.command("clean")
