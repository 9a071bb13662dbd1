"""What a member does to what it has been given harms its own group alone."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import ringfeed

from tests.support.fakes.raw_member import PAGE, SKIP, RawMember
from tests.support.feeds.feed_run import ROOT, FeedRun, Trainer, wait_until
from tests.support.feeds.scenes import (
    GROUPS,
    all_links_are_back,
    kill_supervisor,
    kill_supervisor_and_workers,
)
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]

HONEST = 'groups { name: "honest" max_hold: 2 }'
F_OFD_SETLKW, F_SETLEASE = 38, 1024
F_ADD_SEALS, F_SEAL_FUTURE_WRITE = 1033, 16
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2


def feed_of_two(make_run: MakeRun, extra: str = "") -> tuple[FeedRun, Trainer, RawMember]:
    """A feed with an honest trainer, and this process as a member of a group that gives way."""
    run = make_run(epochs=2, extra=GROUPS + extra, slots=12, groups=HONEST).start()
    trainer = run.trainer_after(2, group="honest", pause_ms=60, positions=0)
    member = RawMember(
        run.sockets / f"{run.feed}.sock", "hostile", policy=SKIP, max_hold=2, rejoin_ms=0
    )
    return run, trainer, member


def replaced(run: FeedRun, group: str) -> None:
    """The stage group's process is killed, and another one works in its place."""
    pid = run.all_workers()[group]
    ready = run.text().count(f"worker_ready feed=lc0 group={group}")
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: run.text().count(f"worker_ready feed=lc0 group={group}") > ready,
        f"a successor in {group}",
    )


def taken_over(run: FeedRun, member: RawMember) -> None:
    kill_supervisor(run)
    run.start()
    wait_until(lambda: all_links_are_back(run, 1), "the feed to be taken over")
    member.rejoin()


def assert_exact_to_the_end(
    run: FeedRun, trainer: Trainer, undisturbed: np.ndarray  # noqa: F811
) -> None:
    result = trainer.result()
    assert list(result["numbers"]) == list(range(1, len(undisturbed) + 1))
    assert list(result["tries"]) == [0] * len(undisturbed)
    assert np.array_equal(result["digests"], undisturbed)
    assert run.wait() == 0, run.text()


def test_locks_and_leases_of_a_member_are_in_nobodys_way(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    run, trainer, member = feed_of_two(make_run)
    # Whatever somebody else holds there, it is waited for, until he dies.
    for fd in member.fds.values():
        for command in (fcntl.F_SETLKW, F_OFD_SETLKW):
            for byte in range(8):
                lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, byte, 1, 0)
                threading.Thread(target=fcntl.fcntl, args=(fd, command, lock), daemon=True).start()
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.fcntl(fd, F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            pass
    replaced(run, "mix")
    replaced(run, "out")
    taken_over(run, member)
    replaced(run, "pool")
    member.leave()
    assert_exact_to_the_end(run, trainer, undisturbed)
    member.close()


@pytest.mark.parametrize("how", ["written", "punched"])
def test_the_header_before_a_groups_page_is_nobodys_source(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
    how: str,
) -> None:
    run, trainer, member = feed_of_two(make_run)
    if how == "written":
        member.memory[:PAGE] = b"\xff" * PAGE
    else:
        libc = ctypes.CDLL(None, use_errno=True)
        fallocate = libc.fallocate
        fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        assert (
            fallocate(member.fds["group"], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0
        )
    replaced(run, "out")
    taken_over(run, member)
    replaced(run, "out")
    member.leave()
    # Each of the pages is given to a group of its own in turn, that one too.
    for number in range(16):
        with ringfeed.attach(
            run.feed,
            f"later{number}",
            socket_dir=run.sockets,
            policy="skip",
            max_hold=2,
            rejoin_ms=0,
        ):
            pass
    assert_exact_to_the_end(run, trainer, undisturbed)
    member.close()


def test_a_member_cannot_seal_its_page_against_those_who_come_later(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    run, trainer, member = feed_of_two(make_run)
    try:
        fcntl.fcntl(member.fds["group"], F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    except PermissionError:
        pass
    replaced(run, "out")
    taken_over(run, member)
    member.leave()
    assert_exact_to_the_end(run, trainer, undisturbed)
    member.close()


def test_a_groups_page_cannot_be_truncated_also_with_storage_directory(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    run, trainer, member = feed_of_two(make_run, f'storage {{ directory: "{storage}" }}')
    for bytes_ in (0, PAGE, 1 << 20):
        try:
            os.ftruncate(member.fds["group"], bytes_)
        except OSError as error:
            assert error.errno == errno.EPERM
    at = trainer.batches()
    wait_until(lambda: trainer.batches() > at + 2, "more batches")
    replaced(run, "out")
    taken_over(run, member)
    member.leave()
    assert_exact_to_the_end(run, trainer, undisturbed)
    assert "worker_died" not in run.text().replace("worker_died feed=lc0 group=out signal=9", "")
    member.close()


def test_the_supervisors_account_says_whose_a_page_is(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
) -> None:
    run, trainer, member = feed_of_two(make_run)
    kill_supervisor(run)
    # The page of the group "hostile" says that it is that of the group "honest", declared, with a
    # member of process 1, at batch 1, and as many tries as there are.
    member.put(48, b"honest\0\0")
    member.put(8, struct.pack("<II", 0, 1))  # policy, redeliver
    member.put(24, struct.pack("<Q", 1))  # start
    member.put(36, struct.pack("<I", 255))  # max_tries
    member.put(120, b"\1")  # declared
    member.put(0x100 + 64, struct.pack("<IIQ", 1, 1, 1))
    run.start()
    wait_until(lambda: all_links_are_back(run, 1), "the feed to be taken over")
    member.rejoin()
    status = run.status() or {}
    assert [group["name"] for group in status["groups"]].count("honest") == 1
    assert [each["group"] for each in status["trainers"]].count("honest") == 1
    trainer.process.kill()
    trainer.process.wait()
    wait_until(lambda: "trainer_died feed=lc0 group=honest" in run.text(), "its end")
    member.leave()
    # The batches of the group are those of its own page.
    done = trainer.batches()
    result = run.trainer(group="honest", positions=0).result()
    assert result["numbers"][0] in (done, done + 1, done + 2)
    assert list(result["numbers"]) == list(range(result["numbers"][0], len(undisturbed) + 1))
    assert np.array_equal(result["digests"], undisturbed[result["numbers"][0] - 1 :])
    assert run.wait() == 0, run.text()
    member.close()


@pytest.mark.parametrize("where", [[], ["--files"]], ids=["memory", "files"])
def test_hostile_clients_harm_no_honest_group(where: list[str]) -> None:
    """The short form of `scripts/crash --hostile`."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "crash" / "hostile.py"), "--hostile=20", *where],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_trainer_outlives_the_death_of_all_others_with_its_page(
    make_run: MakeRun,
    games: lc0_data.Manifest,
    undisturbed: np.ndarray,  # noqa: F811
    tmp_path: Path,
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    run = make_run(
        epochs=2, extra=GROUPS + f'storage {{ directory: "{storage}" }}', groups=HONEST
    ).start()
    trainer = run.trainer_after(3, group="honest", pause_ms=20, positions=0)
    kill_supervisor_and_workers(run)
    run.start()
    assert_exact_to_the_end(run, trainer, undisturbed)
    assert not list(storage.iterdir())
