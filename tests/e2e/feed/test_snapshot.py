"""A running feed is saved, dies, and goes on elsewhere with the batch that would have come next."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed

from tests.support.feeds.feed_run import FeedRun, stop, wait_until
from tests.support.feeds.scenes import GROUPS, kill_everything, kill_supervisor, next_batches

MakeRun = Callable[..., FeedRun]
TWO_GROUPS: dict[str, Any] = {
    "epochs": 2,
    "extra": GROUPS,
    "groups": 'groups { name: "default" } groups { name: "slow" }',
}
ONE_GROUP = {**TWO_GROUPS, "groups": 'groups { name: "default" }'}


def attach(run: FeedRun, group: str = "default", **options: Any) -> ringfeed.Feed:
    return ringfeed.attach(
        "lc0", group, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60, **options
    )


def snapshot(run: FeedRun, directory: Path) -> dict[str, Any]:
    done = run.command("snapshot", run.feed, str(directory), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def bytes_in(directory: Path) -> int:
    """What the files of a snapshot take; 0 if it is not there, or just gets its name."""
    try:
        return sum(file.stat().st_blocks * 512 for file in directory.iterdir())
    except FileNotFoundError:
        return 0


def follow(run: FeedRun, undisturbed: np.ndarray, expected: dict[str, int]) -> None:  # noqa: F811
    """Trainers of both groups get what an undisturbed run gives from their next batch on."""
    # A group that has had every batch ends with the feed, which may be over before anybody comes.
    expected = {group: first for group, first in expected.items() if first <= len(undisturbed)}
    trainers = {group: run.trainer(group=group, positions=0) for group in expected}
    for group, first in expected.items():
        result = trainers[group].result()
        assert list(result["numbers"]) == list(range(first, len(undisturbed) + 1)), group
        assert np.array_equal(result["digests"], undisturbed[first - 1 :]), group
    assert run.wait() == 0, run.text()


def test_a_killed_feed_goes_on_from_its_snapshot_for_every_group(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = make_run(**TWO_GROUPS).start()
    quick = run.trainer(pause_ms=5, positions=0)
    slow = run.trainer(group="slow", pause_ms=20, positions=0)
    wait_until(lambda: quick.batches() >= 6 and slow.batches() >= 4, "both to work")
    saved = snapshot(run, tmp_path / "saved")
    assert saved["newest_batch"] >= 6
    at = quick.batches()
    wait_until(lambda: quick.batches() >= at + 4, "the feed to go on after it was saved")
    kill_everything(run)

    resumed = make_run(**TWO_GROUPS)
    resumed.start("--resume", str(tmp_path / "saved"))
    expected = next_batches(tmp_path / "saved")
    assert set(expected) == {"default", "slow"} and expected["default"] >= 6
    follow(resumed, undisturbed, expected)
    assert "feed_resumed" in resumed.text()


def test_a_snapshot_needs_nothing_of_the_feed_that_it_was_taken_of(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = make_run(**TWO_GROUPS).start()
    run.trainer_after(3, pause_ms=5, positions=0)
    snapshot(run, tmp_path / "saved")
    shutil.move(tmp_path / "saved", tmp_path / "moved")
    kill_everything(run)
    shutil.rmtree(run.sockets)

    storage = tmp_path / "storage"
    storage.mkdir()
    resumed = make_run(**{**TWO_GROUPS, "extra": f'{GROUPS} storage {{ directory: "{storage}" }}'})
    # The configuration comes from the snapshot, and is completed for this place.
    with open(resumed.log, "ab") as log:
        resumed.process = subprocess.Popen(
            [
                *(str(resumed.program), "run", "--resume", str(tmp_path / "moved")),
                *("--set", f'storage.directory="{storage}"'),
            ],
            env=resumed.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    wait_until(lambda: list(storage.iterdir()), "the segments in their files")
    follow(resumed, undisturbed, next_batches(tmp_path / "moved"))
    assert not list(storage.iterdir())


def test_the_next_run_after_everybody_died_takes_the_newest_snapshot_by_itself(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = make_run(**TWO_GROUPS).start()
    trainer = run.trainer_after(2, pause_ms=5, positions=0)
    saved = tmp_path / "saved"
    snapshot(run, saved)
    wait_until(lambda: trainer.batches() >= 5, "more of them")
    snapshot(run, saved)  # takes the place of the first
    kill_everything(run)
    run.start()
    follow(run, undisturbed, next_batches(saved))
    assert f"snapshot={saved}" in run.text()
    assert "resumes from the snapshot of" in run.text()
    # A feed that has ended leaves nothing that the next one would go on from.
    assert not list(run.sockets.iterdir())
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_a_resumed_feed_may_be_killed_and_saved_again(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = make_run(**ONE_GROUP).start()
    saved = tmp_path / "saved"
    for number in range(3):
        trainer = run.trainer(pause_ms=100, positions=0)
        wait_until(lambda at=trainer: at.batches() >= 3, "some batches")
        snapshot(run, saved)
        if number == 1:
            os.kill(run.all_workers()["mix"], signal.SIGKILL)
        kill_everything(run)
        run.start("--resume", str(saved))
    follow(run, undisturbed, next_batches(saved))


def test_snapshots_of_a_feed_whose_stages_die_are_right(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = make_run(**ONE_GROUP).start()
    trainer = run.trainer(pause_ms=100, positions=0)
    taken = []
    for number, group in enumerate(("pool", "mix", "out", "pool", "mix")):
        if trainer.batches() > len(undisturbed) - 20:
            break  # a slow machine: the feed must not end while one is taken
        wait_until(lambda at=4 * number: trainer.batches() >= 2 + at, "more batches")
        saved = tmp_path / f"saved{number}"
        pid = run.workers().get(group)
        with run.command_later("snapshot", run.feed, str(saved)) as command:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
            _, errors = command.communicate()
            assert command.returncode == 0, errors
        taken.append(saved)
    assert len(taken) >= 2
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()
    for saved in taken:
        resumed = make_run(**TWO_GROUPS)
        shutil.copy(run.config, resumed.config)
        resumed.start("--resume", str(saved))
        follow(resumed, undisturbed, next_batches(saved))


def test_a_supervisor_that_dies_while_it_takes_one_leaves_no_lane_standing_still(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = make_run(**ONE_GROUP).start()
    trainer = run.trainer(pause_ms=200, positions=0)
    saved = tmp_path / "saved"
    wait_until(lambda: trainer.batches() >= 1, "the feed to run")
    snapshot(run, saved)
    total = bytes_in(saved)
    kills = 0
    for percent in (1, 10, 25, 40, 55, 70, 85, 95, 100):
        if trainer.batches() > len(undisturbed) - 20:
            break  # a slow machine: the feed must not end between two supervisors
        wait_until(lambda: run.status() is not None, "the supervisor to answer")
        with run.command_later("snapshot", run.feed, str(saved)) as command:
            # At all moments of its way: copying, lanes parked, saving.
            wait_until(
                lambda n=percent, at=command: at.poll() is not None
                or bytes_in(tmp_path / ".saved.partial") >= total * n / 100,
                f"{percent} % of it",
            )
            kill_supervisor(run)
        kills += 1
        at = trainer.batches()
        wait_until(lambda n=at: trainer.batches() > n + 1, "batches without a supervisor")
        # Of a snapshot there is the one before or the new one, and it is whole.
        assert next_batches(saved)
        run.start()
    assert kills > 0
    result = trainer.result()
    assert np.array_equal(result["digests"], undisturbed)
    assert run.wait() == 0, run.text()
    resumed = make_run(**ONE_GROUP).start("--resume", str(saved))
    follow(resumed, undisturbed, next_batches(saved))


def refused(run: FeedRun, directory: Path) -> str:
    done = run.command("run", str(run.config), "--resume", str(directory))
    assert done.returncode != 0
    assert not list(run.sockets.glob("*.sock"))
    return done.stderr


def test_a_damaged_or_foreign_snapshot_is_refused_with_what_is_wrong(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(**TWO_GROUPS).start()
    run.trainer_after(3, pause_ms=5, positions=0)
    good = tmp_path / "good"
    snapshot(run, good)
    manifest = (good / "manifest.textproto").read_text()
    kill_everything(run)
    name, file = re.findall(
        r'name: "(lc0/arena sampler[^"]*)".*?file: "(\S+)"', manifest, re.DOTALL
    )[0]

    def copy(label: str) -> Path:
        shutil.copytree(good, tmp_path / label)
        return tmp_path / label

    other = make_run(**TWO_GROUPS)
    assert "is not a snapshot" in refused(other, tmp_path / "nothing")
    flipped = copy("flipped")
    with open(flipped / file, "r+b") as segment:
        segment.seek(100_000)
        byte = segment.read(1)
        segment.seek(100_000)
        segment.write(bytes([byte[0] ^ 1]))
    assert f"is damaged: {file} (segment {name}) fails its checksum" in refused(other, flipped)
    short = copy("short")
    os.truncate(short / file, 4096)
    assert "fails its checksum" in refused(other, short)
    long = copy("long")
    os.truncate(long / file, (long / file).stat().st_size + (1 << 30))
    assert "should have" in refused(other, long)
    gone = copy("gone")
    (gone / file).unlink()
    assert file in refused(other, gone)
    edited = copy("edited")
    (edited / "manifest.textproto").write_text(manifest.replace("seed: 7", "seed: 8"))
    assert "manifest.textproto fails its checksum" in refused(other, edited)

    for name, says in (("manifest.textproto", "cannot be read"), (file, "is damaged")):
        fifo = copy(f"fifo {name}")
        (fifo / name).unlink()
        os.mkfifo(fifo / name)
        text = refused(other, fifo)
        assert says in text and "it is a FIFO, not a regular file" in text

    another = make_run(**{**TWO_GROUPS, "reservoir": 3000})
    text = refused(another, good)
    assert "another configuration" in text and "reservoir_size_per_thread" in text


def test_a_run_does_not_begin_anew_where_a_snapshot_or_a_living_feed_could_be_meant(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(**ONE_GROUP).start()
    run.trainer_after(2, pause_ms=50, positions=0)
    saved = tmp_path / "saved"
    snapshot(run, saved)
    kill_supervisor(run)
    done = run.command("run", "--resume", str(saved))
    assert done.returncode == 1 and "is running without a supervisor: take it over" in done.stderr
    for pid in run.all_workers().values():
        with contextlib.suppress(ProcessLookupError):  # it had done its work
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not run.all_workers(), "everybody's end")
    manifest = saved / "manifest.textproto"
    manifest.write_text(manifest.read_text() + "\n")
    done = run.command("run", str(run.config))
    assert done.returncode == 1
    assert "its newest snapshot cannot be used" in done.stderr and "--fresh" in done.stderr
    done = run.command("run")
    assert done.returncode == 2 and "CONFIG" in done.stderr


def test_a_snapshot_that_cannot_be_written_changes_nothing(
    make_run: MakeRun,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = make_run(**ONE_GROUP).start()
    trainer = run.trainer_after(3, pause_ms=5, positions=0)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    done = run.command("snapshot", "lc0", str(precious))
    assert done.returncode == 1 and "is not a snapshot" in done.stderr
    assert (precious / "file").read_text() == "kept"
    done = run.command("snapshot", "lc0", str(tmp_path / "no" / "such" / "place"))
    assert done.returncode == 1 and "No such file or directory" in done.stderr
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()


def test_one_that_was_given_up_leaves_the_next_one_its_place(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """A lane that does not come to the end of its step: that one is refused, and no other."""
    run = make_run(epochs=0, groups='groups { name: "default" }').start()
    run.trainer_after(2, positions=0, pause_ms=20)
    pid = run.workers()[sorted(run.workers())[0]]
    stop(pid)
    try:
        late = run.command("snapshot", run.feed, str(tmp_path / "late"))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert late.returncode != 0 and "has not finished its step" in late.stderr, late.stderr
    assert not list(tmp_path.glob("late*"))
    # What the first one has copied is put away before.
    wait_until(
        lambda: run.command("snapshot", run.feed, str(tmp_path / "saved")).returncode == 0,
        "another one",
    )
    run.stop(signal.SIGQUIT)


def taken(run: FeedRun) -> list[str]:
    """Directories of the snapshots that the log says were taken."""
    return re.findall(r" snapshot_taken .*directory=(\S+)", run.text())


def test_a_feed_takes_snapshots_by_itself_and_a_state_names_the_one_that_leads_to_it(
    make_run: MakeRun, tmp_path: Path
) -> None:
    place = tmp_path / "snapshots"
    settings: dict[str, Any] = {
        "epochs": 0,
        "batch": 32,
        "extra": f'snapshot {{ directory: "{place}" every_batches: 30 keep: 2 }}',
    }
    run = make_run(**settings).start()
    somebody_elses = place / "lc0-000000000001"
    somebody_elses.mkdir(parents=True)
    (somebody_elses / "thesis.txt").write_text("not a snapshot")
    with attach(run, group="run-a", rejoin_ms=60_000) as feed:
        old = feed.state_dict()
        assert "snapshot" not in old, "there is none yet"

        def goes_on() -> int:
            feed.next(timeout_s=60).release()
            return len(taken(run))

        wait_until(lambda: goes_on() >= 4, "four snapshots")
        wait_until(
            lambda: len(list(place.glob("lc0-*/manifest.textproto"))) == 2
            and not list(place.glob(".*")),
            "older ones to go",
        )
        assert (somebody_elses / "thesis.txt").exists()
        state = feed.state_dict()
        newest = Path(state["snapshot"])
        assert str(newest) == taken(run)[-1] and (newest / "manifest.textproto").exists()
        for _ in range(20):
            following = feed.next(timeout_s=60)
            if following.seq == state["next"]:
                wanted = following.copy()
            following.release()
        # Of a batch that is gone it says who has it; of one that nobody has it says that.
        with pytest.raises(ringfeed.InvalidRequest) as told:
            feed.load_state_dict(state)
        for words in (str(newest), "MiB, up to batch", f"ringfeed run --resume {newest}"):
            assert words in str(told.value)
        with pytest.raises(ringfeed.InvalidRequest) as told:
            feed.load_state_dict(old)
        assert str(place) not in str(told.value)
    kill_everything(run)
    resumed = make_run(**settings)
    resumed.start("--resume", str(newest))
    with attach(resumed, group="run-a", rejoin_ms=60_000) as feed:
        feed.load_state_dict(state)
        batch = feed.next(timeout_s=60)
        assert batch.seq == state["next"]
        for name, array in wanted.items():
            np.testing.assert_array_equal(batch[name], array)
    assert resumed.command("stop", "lc0", "--now").returncode == 0


def test_a_snapshot_for_which_there_is_no_room_is_not_begun_and_said(
    make_run: MakeRun, tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the directory would be")
    run = make_run(
        epochs=0,
        batch=32,
        extra=f'snapshot {{ directory: "{blocked}/here" every_batches: 5 }}',
    ).start()
    with attach(run) as feed:

        def told() -> bool:
            feed.next(timeout_s=60).release()
            return "snapshots cannot be written to" in run.text()

        wait_until(told, "the log to say so")
        problems = (run.status() or {})["problems"]
        assert any(f"snapshots cannot be written to {blocked}/here" in one for one in problems)
        feed.next(timeout_s=60)
    assert run.command("stop", "lc0", "--now").returncode == 0
