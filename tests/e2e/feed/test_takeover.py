"""A takeover that cannot be done is refused: whoever lives goes on living, what is left stays, and
a later run goes on.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.feeds.feed_run import FeedRun, runs, wait_until
from tests.support.feeds.scenes import (
    GROUPS,
    all_links_are_back,
    kill_supervisor,
    kill_supervisor_and_workers,
)
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]


class Attempt:
    """One more `ringfeed run` of the feed, with a log of its own."""

    def __init__(
        self,
        run: FeedRun,
        *words: str,
        limit: tuple[int, int] | None = None,
        before: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.log = run.work / "attempt.log"

        def lower() -> None:
            if limit is not None:
                resource.setrlimit(limit[0], (limit[1], limit[1]))

        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*before, str(run.program), "run", str(run.config), *words],
                env={**run.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lower,
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def outcome(self, adopted: str = "feed_adopted") -> str:
        """ "adopted" (and killed then), or "refused"."""
        wait_until(
            lambda: self.process.poll() is not None
            or adopted in self.text()
            or "feed_started" in self.text(),
            "the attempt's outcome",
        )
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            return "adopted"
        assert self.process.returncode != 0, self.text()
        return "adopted" if adopted in self.text() else "refused"


def is_untouched(run: FeedRun, workers: dict[str, int], attempt: Attempt) -> None:
    assert "feed_started" not in attempt.text(), "it was started anew: " + attempt.text()
    assert "remains_cleared" not in attempt.text(), attempt.text()
    assert all(runs(pid) for pid in workers.values()), attempt.text()
    assert run.all_workers() == workers, attempt.text()


# Where a takeover opens, maps and watches what is left, and which passing of it is refused.
REFUSALS = [
    (f"supervisor.{place}", passing)
    for place, passings in {
        "adoption.open": (1, 2, 17),
        "memory.map": (1, 2, 17),
        "adoption.watch": (1, 2, 4),  # the trainer, then workers
        "worker.spawn": (1,),
    }.items()
    for passing in passings
]


def test_want_of_descriptors_or_memory_ends_no_feed(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    run = make_run(epochs=2, extra=GROUPS).start()
    trainer = run.trainer_after(1, pause_ms=60)
    workers = run.all_workers()
    kill_supervisor(run)
    outcomes = []
    for count in (6, 12, 20, 30, 44, 52, 64, 96):
        attempt = Attempt(run, limit=(resource.RLIMIT_NOFILE, count))
        outcomes.append(attempt.outcome())
        is_untouched(run, workers, attempt)
    assert "refused" in outcomes and "adopted" in outcomes
    # One of them is to be started anew, too.
    os.kill(workers.pop("mix"), signal.SIGKILL)
    listed = run.command("version", env={**run.environment, "RINGFEED_FAILPOINT": "list"}).stdout
    for place, passing in REFUSALS:
        attempt = Attempt(run, environment={"RINGFEED_FAILPOINT": f"{place}=error@{passing}"})
        outcome = attempt.outcome()
        living = run.all_workers()
        assert workers.items() <= living.items(), attempt.text()
        if place not in listed:  # built without such places: the first run takes it over
            break
        if place == "supervisor.worker.spawn":  # that stage is tried again
            assert outcome == "adopted" and "feed_started" not in attempt.text(), attempt.text()
            continue
        assert outcome == "refused" and "a test wants" in attempt.text(), attempt.text()
        is_untouched(run, workers, attempt)
    run.start()
    wait_until(lambda: all_links_are_back(run, 1), "the feed to be taken over")
    assert np.array_equal(trainer.result()["digests"], undisturbed), "as if nobody had died"
    assert run.wait() == 0, run.text()
    assert not list(run.sockets.iterdir())


def test_a_socket_that_cannot_be_bound_leaves_the_feed_as_it_is(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    run = make_run(epochs=2, extra=GROUPS).start()
    trainer = run.trainer_after(1, pause_ms=60)
    workers = run.all_workers()
    kill_supervisor(run)
    socket = run.sockets / f"{run.feed}.sock"
    socket.unlink()
    (socket / "in the way").mkdir(parents=True)
    attempt = Attempt(run)
    assert attempt.outcome() == "refused"
    is_untouched(run, workers, attempt)
    assert "control socket" in attempt.text()
    shutil.rmtree(socket)
    run.start()
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()


def in_files(make_run: MakeRun, storage: Path) -> FeedRun:
    storage.mkdir()
    return make_run(
        epochs=2,
        extra=GROUPS + f'storage {{ directory: "{storage}" }}',
        groups='groups { name: "g" }',
    )


def test_files_outlive_attempts_that_cannot_open_them(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    storage = tmp_path / "storage"
    run = in_files(make_run, storage).start()
    first = run.trainer_after(4, group="g", hold=4)
    first.process.kill()
    first.process.wait()
    kill_supervisor_and_workers(run)
    files = {path: path.stat().st_ino for path in storage.iterdir()}
    for count in (6, 12, 20, 30, 44):
        attempt = Attempt(run, limit=(resource.RLIMIT_NOFILE, count))
        assert attempt.outcome() == "refused"
        is_untouched(run, {}, attempt)
        assert {path: path.stat().st_ino for path in storage.iterdir()} == files
    # One of them is elsewhere for a while.
    lost = sorted(files)[0]
    lost.rename(tmp_path / "elsewhere")
    attempt = Attempt(run)
    assert attempt.outcome() == "refused"
    assert lost.name in attempt.text() and "--fresh" in attempt.text()
    (tmp_path / "elsewhere").rename(lost)
    # So are all.
    storage.rename(tmp_path / "unmounted")
    storage.mkdir()
    attempt = Attempt(run)
    assert attempt.outcome() == "refused"
    assert "--fresh" in attempt.text()
    storage.rmdir()
    (tmp_path / "unmounted").rename(storage)
    run.start()
    result = run.trainer(group="g").result()
    assert run.wait() == 0, run.text()
    assert list(result["numbers"]) == list(range(result["numbers"][0], len(undisturbed) + 1))
    assert result["numbers"][0] > 1
    assert np.array_equal(result["digests"], undisturbed[result["numbers"][0] - 1 :])
    assert not list(storage.iterdir()), "a feed that has ended leaves no files"


def test_a_damaged_snapshot_takes_nothing_from_what_is_left(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    storage = tmp_path / "storage"
    run = in_files(make_run, storage).start()
    first = run.trainer_after(2, group="g", hold=2)
    saved = tmp_path / "saved"
    assert run.command("snapshot", run.feed, str(saved)).returncode == 0
    first.process.kill()
    first.process.wait()
    kill_supervisor_and_workers(run)
    files = {path: path.stat().st_ino for path in storage.iterdir()}
    record = run.record()
    damaged = max(saved.glob("*.segment"), key=lambda path: path.stat().st_size)
    bytes_ = bytearray(damaged.read_bytes())
    bytes_[len(bytes_) // 2] ^= 1
    damaged.write_bytes(bytes_)
    attempt = Attempt(run, "--resume", str(saved))
    assert attempt.outcome("feed_resumed") == "refused"
    assert "damaged" in attempt.text()
    assert {path: path.stat().st_ino for path in storage.iterdir()} == files
    assert run.record() == record
    bytes_[len(bytes_) // 2] ^= 1
    damaged.write_bytes(bytes_)
    # What is sound replaces what was left.
    run.start("--resume", str(saved))
    result = run.trainer(group="g").result()
    assert run.wait() == 0, run.text()
    assert np.array_equal(result["digests"], undisturbed[result["numbers"][0] - 1 :])
    assert not list(storage.iterdir()), "neither old files nor new ones"


def test_a_recorded_snapshot_that_is_not_there_is_no_new_beginning(
    make_run: MakeRun, games: lc0_data.Manifest, tmp_path: Path
) -> None:
    run = make_run(epochs=0, extra=GROUPS).start()
    trainer = run.trainer_after(3, pause_ms=5, positions=0)
    saved = tmp_path / "saved\nhere, \\ and there"
    assert run.command("snapshot", run.feed, str(saved)).returncode == 0
    trainer.process.kill()
    trainer.process.wait()
    kill_supervisor_and_workers(run)
    saved.rename(tmp_path / "moved")
    attempt = Attempt(run)
    assert attempt.outcome("feed_started") == "refused"
    assert (
        "--fresh" in attempt.text()
        and "--resume" in attempt.text()
        and "and there" in attempt.text()
    )
    (tmp_path / "moved").rename(saved)
    run.start()
    wait_until(lambda: "feed_resumed" in run.text(), "the feed to go on from its snapshot")
    assert run.stop() == 0


@pytest.mark.parametrize("contents", ["", "cut"])
def test_a_record_that_cannot_be_read_is_no_new_beginning(
    make_run: MakeRun, games: lc0_data.Manifest, contents: str
) -> None:
    run = make_run(epochs=0, extra=GROUPS).start()
    wait_until(lambda: "first_batch" in run.text(), "the first batch")
    workers = run.all_workers()
    kill_supervisor(run)
    path = run.sockets / f"{run.feed}.state"
    record = path.read_text()
    path.write_text("" if contents == "" else record[: len(record) // 2])
    attempt = Attempt(run)
    assert attempt.outcome() == "refused"
    assert "feed_started" not in attempt.text() and "--fresh" in attempt.text()
    assert all(runs(pid) for pid in workers.values())
    path.write_text(record)
    run.start()
    wait_until(lambda: all_links_are_back(run, 1), "the feed to be taken over")
    assert run.all_workers() == workers
    assert run.stop() == 0


def with_proc(options: str, *then: str) -> tuple[str, ...]:
    """A command's first words, which give it a /proc of its own."""
    return (
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount -t proc -o {options} proc /proc && exec "$@"',
        "sh",
        *then,
    )


# There is no boot id.
PROCESSES_ONLY = with_proc("subset=pid")
# And not to trace others is not to see them.
HIDES_OTHERS = with_proc(
    "hidepid=ptraceable", "setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"
)


def needs(before: tuple[str, ...], shows: str, wanted: bool) -> None:
    probe = subprocess.run([*before, "test", "-e", shows], capture_output=True, text=True)
    if probe.stderr or (probe.returncode == 0) != wanted:
        pytest.fail(f"this test mounts a /proc of its own: run it as root: {probe.stderr}")


def command_in(
    before: tuple[str, ...], run: FeedRun, *words: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, str(run.program), *words],
        env=run.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


BOOT_ID = "/proc/sys/kernel/random/boot_id"


def test_an_unknown_boot_is_no_other_one(
    make_run: MakeRun, games: lc0_data.Manifest, undisturbed: np.ndarray  # noqa: F811
) -> None:
    needs(PROCESSES_ONLY, BOOT_ID, False)
    run = make_run(epochs=2, extra=GROUPS).start()
    trainer = run.trainer_after(1, pause_ms=60)
    workers = run.all_workers()
    kill_supervisor(run)
    assert "cleaned" not in command_in(PROCESSES_ONLY, run, "clean").stdout
    # The second finds a record without a boot.
    for before in (PROCESSES_ONLY, PROCESSES_ONLY, ()):
        attempt = Attempt(run, before=before)
        assert attempt.outcome() == "adopted"
        is_untouched(run, workers, attempt)
    run.start()
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()


def test_files_of_an_unknown_boot_are_left_as_they_are(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    needs(PROCESSES_ONLY, BOOT_ID, False)
    storage = tmp_path / "storage"
    run = in_files(make_run, storage).start()
    wait_until(lambda: "first_batch" in run.text(), "the first batch")
    kill_supervisor_and_workers(run)
    files = {path: path.stat().st_ino for path in storage.iterdir()}
    attempt = Attempt(run, before=PROCESSES_ONLY)
    assert attempt.outcome() == "refused"
    assert (
        "boot_id" in attempt.text() and "--resume" in attempt.text() and "--fresh" in attempt.text()
    )
    assert "cleaned" not in command_in(PROCESSES_ONLY, run, "clean").stdout
    assert {path: path.stat().st_ino for path in storage.iterdir()} == files
    run.start()
    result = run.trainer(group="g").result()
    assert run.wait() == 0, run.text()
    assert np.array_equal(result["digests"], undisturbed), "and nothing was started anew"


@pytest.mark.parametrize("how", ["hidden", "no record", "no workers in the record"])
def test_workers_that_cannot_be_seen_are_neither_ended_nor_replaced(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
    how: str,
) -> None:
    before: tuple[str, ...] = ()
    if how == "hidden":
        before = HIDES_OTHERS
        needs(before, f"/proc/{os.getpid()}", False)
    run = make_run(epochs=2, extra=GROUPS).start()
    trainer = run.trainer_after(1, pause_ms=60)
    workers = run.all_workers()
    kill_supervisor(run)
    state = run.sockets / f"{run.feed}.state"
    lock = run.sockets / f"{run.feed}.lock"
    record = state.read_text()
    if how == "no record":
        state.unlink()
    elif how != "hidden":
        state.write_text(
            "".join(line for line in record.splitlines(True) if not line.startswith("worker "))
        )
    inode = lock.stat().st_ino
    for words in ((), ("--fresh",), ("--resume", "nothing")):
        attempt = Attempt(run, *words, before=before)
        assert attempt.outcome() == "refused"
        assert "feed_started" not in attempt.text() and "remains_cleared" not in attempt.text()
        if "--resume" not in words:
            assert "cannot be seen from here" in attempt.text() and "fuser" in attempt.text()
    for words in ((), ("--force",)):
        cleaned = command_in(before, run, "clean", *words)
        assert "left as it is" in cleaned.stderr and not cleaned.stdout, cleaned
        assert "cannot be seen from here" in cleaned.stderr
    assert all(runs(pid) for pid in workers.values())
    assert lock.stat().st_ino == inode
    state.write_text(record)
    run.start()
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()


PID_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
TIME_NAMESPACE = ("unshare", "--time", "--boottime", "100000", "--fork", "--kill-child")


@pytest.mark.parametrize("namespace", [PID_NAMESPACE, TIME_NAMESPACE], ids=["pid", "time"])
def test_a_feed_of_another_namespace_is_refused_with_the_reason(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
    namespace: tuple[str, ...],
) -> None:
    probe = subprocess.run([*namespace, "true"], capture_output=True, text=True)
    assert probe.returncode == 0, f"this test needs namespaces of its own: {probe.stderr}"
    run = make_run(epochs=2, extra=GROUPS).start()
    trainer = run.trainer_after(1, pause_ms=60)
    workers = run.all_workers()
    kill_supervisor(run)
    record = run.record()
    for words in ((), ("--resume", "nothing")):
        attempt = Attempt(run, *words, before=namespace)
        assert attempt.outcome() == "refused"
        is_untouched(run, workers, attempt)
        assert run.record() == record
    attempt = Attempt(run, before=namespace)
    assert attempt.outcome() == "refused"
    assert f"some of its workers live in another {namespace[1][2:]} namespace" in attempt.text()
    assert "--fresh" in attempt.text()
    run.start()
    assert np.array_equal(trainer.result()["digests"], undisturbed)
    assert run.wait() == 0, run.text()


def test_a_new_beginning_in_another_namespace_ends_nobody_there(
    make_run: MakeRun, games: lc0_data.Manifest
) -> None:
    run = make_run(epochs=0, extra=GROUPS).start()
    wait_until(lambda: "first_batch" in run.text(), "the first batch")
    workers = run.all_workers()
    kill_supervisor(run)
    attempt = Attempt(run, "--fresh", before=PID_NAMESPACE)
    wait_until(lambda: "first_batch" in attempt.text(), "another feed's first batch")
    assert "remains_cleared" not in attempt.text()
    # They find another feed in the place of theirs.
    wait_until(lambda: not any(runs(pid) for pid in workers.values()), "their own end")
    attempt.process.kill()
    attempt.process.wait()


def test_files_of_a_namespace_that_has_died_are_gone_on_with(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = in_files(make_run, tmp_path / "storage")
    container = Attempt(run, before=PID_NAMESPACE)
    wait_until(lambda: "first_batch" in container.text(), "the first batch")
    # With its first process a pid namespace dies as a whole.
    container.process.kill()
    container.process.wait()

    def adopted() -> bool:
        attempt = Attempt(run)
        return attempt.outcome() == "adopted"

    wait_until(adopted, "the kernel to say that nobody lives there")
    run.start()
    result = run.trainer(group="g").result()
    assert run.wait() == 0, run.text()
    assert np.array_equal(result["digests"], undisturbed), "and nothing was started anew"
