"""Surroundings that fail: signals, a log that nobody reads, a directory that goes, no descriptors,
a crowd.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.scenes import GROUPS
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]


def started(make_run: MakeRun, trainer_pause_ms: int = 10) -> tuple[FeedRun, object]:
    run = make_run(epochs=2, extra=GROUPS, groups='groups { name: "default" }').start()
    trainer = run.trainer_after(2, pause_ms=trainer_pause_ms, positions=0)
    return run, trainer


def kill_stage(run: FeedRun, name: str = "mix") -> None:
    """Its process is replaced when this returns."""
    before = run.workers()[name]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: run.workers().get(name, before) != before, "its successor")


def assert_undisturbed(run: FeedRun, trainer: object, batches: np.ndarray) -> None:
    result = trainer.result()  # type: ignore[attr-defined]
    assert np.array_equal(result["digests"], batches), "byte for byte as if nothing had happened"
    assert run.wait() == 0, run.text()
    assert not list(run.sockets.iterdir()), "nothing is left behind"


def test_signals_that_warn_end_no_process(
    make_run: MakeRun, undisturbed: np.ndarray  # noqa: F811
) -> None:
    run, trainer = started(make_run)
    assert run.process is not None
    workers = run.workers()
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        for pid in workers.values():
            os.kill(pid, number)
        run.process.send_signal(number)
        wait_until(
            lambda: f"signal_ignored feed=lc0 signal={int(number)} " in run.text(),
            f"a line of {number}",
        )
    for pid in workers.values():
        os.kill(pid, signal.SIGQUIT)
    assert run.workers() == workers
    assert_undisturbed(run, trainer, undisturbed)


def test_a_directory_that_is_removed_and_covered_ends_nothing(
    make_run: MakeRun, undisturbed: np.ndarray  # noqa: F811
) -> None:
    run, trainer = started(make_run, trainer_pause_ms=100)  # the feed outlives what is done to it
    shutil.rmtree(run.sockets)
    kill_stage(run)
    kill_stage(run, "pool")
    wait_until(run.status, "the feed to be found again")
    assert (run.sockets.stat().st_mode & 0o777) == 0o700
    wait_until(lambda: "worker" in run.record(), "its record")
    for pid in run.all_workers().values():
        assert pid in run.workers().values()
    with covered(run.sockets) as mounted:
        if mounted:
            kill_stage(run)
            wait_until(run.status, "the feed to be found in a full directory")

            def is_told() -> bool:
                problems = (run.status() or {}).get("problems", [])
                return any("record" in one and "No space left" in one for one in problems)

            wait_until(is_told, "the reason")
            kill_stage(run, "pool")
            (run.sockets / "filler").unlink()
            wait_until(lambda: not (run.status() or {"problems": 1}).get("problems"), "room")
    wait_until(run.status, "the feed to be found where it was")
    assert_undisturbed(run, trainer, undisturbed)


@contextmanager
def covered(directory: Path) -> Iterator[bool]:
    """A full tmpfs over the directory, where that may be mounted."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "tmpfs", str(directory)],
        capture_output=True,
    )
    if done.returncode != 0:
        yield False
        return
    try:
        with open(directory / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass
        yield True
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_supervisor_without_descriptors_waits_for_them(
    make_run: MakeRun, undisturbed: np.ndarray  # noqa: F811
) -> None:
    run, trainer = started(make_run, trainer_pause_ms=30)
    assert run.process is not None
    pid = run.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    os.kill(run.workers()["mix"], signal.SIGKILL)
    waiting = subprocess.Popen(  # in the queue of the socket, which nobody can take from
        [str(run.program), "status", "lc0", "--json"],
        env=run.environment,
        stdout=subprocess.PIPE,
    )
    wait_until(lambda: "worker_starved feed=lc0 group=mix times=8 " in run.text(), "eight tries")
    wait_until(lambda: "problem feed=lc0 of=connections times=4 " in run.text(), "four rests")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert waiting.wait(60) == 0, "who waited is answered"
    assert waiting.stdout is not None
    waiting.stdout.close()
    wait_until(lambda: "worker_starved_no_more" in run.text(), "the stage's process")
    assert "deaths=2" not in run.text(), "nothing but the one death is counted"
    assert_undisturbed(run, trainer, undisturbed)


CROWD = """
import socket, sys, time
path, count = sys.argv[1], int(sys.argv[2])
held = []
for _ in range(count):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(path)
    held.append(one)
print("held", flush=True)
sys.stdin.read()
"""


GREEDY = """
import socket, sys
import ringfeed
held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(64)]
for one in held:
    one.connect(sys.argv[1])
try:
    ringfeed.attach("lc0")
except ringfeed.RingfeedError as error:
    print(error)
"""


def test_silent_connections_shut_nobody_out(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = make_run(epochs=0, extra=GROUPS).start()
    wait_until(run.status, "the feed")
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", CROWD, str(run.sockets / "lc0.sock"), "60"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(10)
    ]
    try:
        for process in crowd:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
        assert run.status() is not None, "an operator is answered"
        trainer = run.trainer(batches=3, positions=0)
        trainer.result()
        # One process that takes all that it can is told that it has its share.
        greedy = subprocess.run(
            [sys.executable, "-c", GREEDY, str(run.sockets / "lc0.sock")],
            env=run.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "already has 64 connections to feed 'lc0'" in greedy.stdout, greedy.stderr
    finally:
        for process in crowd:
            process.kill()
            process.communicate()
    assert run.stop(signal.SIGQUIT) == 0


def test_a_log_that_nobody_reads_holds_nobody_up(
    make_run: MakeRun, undisturbed: np.ndarray  # noqa: F811
) -> None:
    run = make_run(epochs=2, extra=GROUPS, groups='groups { name: "default" }')
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, bytes(4096))
    except BlockingIOError:
        os.set_blocking(writer, True)
    run.process = subprocess.Popen(
        [str(run.program), "run", str(run.config)],
        env=run.environment,
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    trainer = run.trainer_after(2, pause_ms=60, positions=0)
    kill_stage(run)
    kill_stage(run, "pool")
    status = run.status()
    assert status and "standard error accepts no lines" in status["problems"][0]
    assert_undisturbed(run, trainer, undisturbed)
    os.close(reader)


def test_a_feed_whose_standard_streams_are_closed_writes_into_nothing_of_its_own(
    make_run: MakeRun, undisturbed: np.ndarray  # noqa: F811
) -> None:
    run = make_run(epochs=2, extra=GROUPS, groups='groups { name: "default" }')
    run.process = subprocess.Popen(
        ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', str(run.program), "run", str(run.config)],
        env=run.environment,
    )
    trainer = run.trainer_after(2, pause_ms=60, positions=0)
    kill_stage(run)
    assert_undisturbed(run, trainer, undisturbed)
