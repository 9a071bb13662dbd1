"""Feeds in which somebody else forks the processes of a stage (supervisor/group/given_parent.h)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from ringfeed._core import control, messages

from tests.support.feeds.feed_run import BIN, FeedRun, runs, wait_until
from tests.support.feeds.scenes import GROUPS, all_links_are_back, assert_exact, kill_supervisor
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]
STAGE = "tensors"
LANES = ("tensors.0", "tensors.1")
OFTEN = " restart { max_restarts: 1000 max_attempts: 255 }"


class Parent:
    """A warm parent of the stage."""

    def __init__(self, run: FeedRun, behaviour: str = "serve") -> None:
        self.said = run.work / "parent.log"
        path = run.environment["RINGFEED_GIVEN_SOCKET"]
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                [str(BIN / "fake_parent"), path, str(BIN / "given_worker"), behaviour],
                env=run.environment,
                stdout=said,
                stderr=said,
            )

    def children(self) -> list[int]:
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in task.read_text().split()]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def given(make_run: MakeRun, tmp_path: Path) -> Iterator[tuple[FeedRun, Callable[..., Parent]]]:
    """A feed whose last stage has two lanes of such processes, and what starts their parents."""
    programs = tmp_path / "bin"
    programs.mkdir()
    shutil.copy2(BIN / "ringfeed", programs / "ringfeed")
    shutil.copy2(BIN / "given_worker", programs / "ringfeed-worker")
    run = make_run(epochs=2, generators=2, extra=GROUPS + OFTEN, programs=programs)
    run.environment.update(
        RINGFEED_GIVEN=STAGE, RINGFEED_GIVEN_SOCKET=str(tmp_path / "parent.sock")
    )
    parents: list[Parent] = []

    def begin(behaviour: str = "serve") -> Parent:
        parents.append(Parent(run, behaviour))
        return parents[-1]

    yield run, begin
    run.close()
    for parent in parents:
        parent.end()


def lanes_of(run: FeedRun) -> dict[str, int]:
    return {name: pid for name, pid in run.all_workers().items() if name in LANES}


def test_check_asks_no_program_that_only_the_parent_is(
    given: tuple[FeedRun, Callable[..., Parent]],
) -> None:
    run, _ = given
    done = run.command("check", str(run.config))
    assert done.returncode == 0, done.stderr
    for path, wanted in (
        ("parent.sock", 'the socket of the warm parent is "parent.sock"; give an absolute path'),
        ("/" + 107 * "x", "has 108 bytes, and the system allows 107"),
    ):
        run.environment["RINGFEED_GIVEN_SOCKET"] = path
        done = run.command("check", str(run.config))
        assert done.returncode == 3 and wanted in done.stderr, done.stderr
        assert f"stage '{STAGE}'" in done.stderr


def test_deaths_of_everybody_change_no_batch(
    given: tuple[FeedRun, Callable[..., Parent]], games: lc0_data.Manifest
) -> None:
    run, begin = given
    parent = begin()
    run.start()
    trainer = run.trainer(pause_ms=20)
    wait_until(lambda: trainer.batches() >= 3, "batches")
    before = lanes_of(run)
    assert sorted(before) == sorted(LANES)
    assert set(before.values()) <= set(parent.children()), "the first processes, too"
    # How it died is told soon, or not at all.
    while f"group={LANES[0]} signal=9" not in run.text():
        lanes = lanes_of(run)
        os.kill(lanes[LANES[0]], signal.SIGKILL)
        wait_until(lambda: lanes_of(run).get(LANES[0]) not in (None, lanes[LANES[0]]), "the next")
    # The supervisor: the next one takes over what lives, and connects by itself.
    kill_supervisor(run)
    run.start()
    wait_until(lambda: all_links_are_back(run, 1), "the feed to be taken over")
    lanes = lanes_of(run)
    os.kill(lanes[LANES[1]], signal.SIGKILL)
    wait_until(lambda: lanes_of(run).get(LANES[1]) not in (None, lanes[LANES[1]]), "the next one")
    assert lanes_of(run)[LANES[1]] in parent.children()
    # The parent, then a lane: that waits for the next parent. The other lane goes on.
    parent.end()
    lanes = lanes_of(run)
    os.kill(lanes[LANES[0]], signal.SIGKILL)
    wait_until(
        lambda: any("waits for the warm parent at" in p for p in (run.status() or {})["problems"]),
        "the reason in status",
    )
    parent = begin()
    wait_until(lambda: LANES[0] in lanes_of(run), "its process")
    assert lanes_of(run)[LANES[0]] in parent.children()
    result = trainer.result()
    assert_exact(result["hashes"], games, times=2)
    assert run.wait() == 0, run.text()
    assert "failed" not in run.text()
    wait_until(lambda: not parent.children(), "the end of all processes")
    assert not list(run.sockets.iterdir()), "nothing is left behind"


def test_a_process_without_a_supervisor_ends(given: tuple[FeedRun, Callable[..., Parent]]) -> None:
    """The supervisor dies between the order and the first words of the process."""
    run, begin = given
    parent = begin("slow")
    run.start()
    wait_until(lambda: "asked" in parent.said.read_text(), "the order")
    kill_supervisor(run)
    ended = wait_until(
        lambda: re.findall(r"ended (\d+) (\d+)", parent.said.read_text()), "the process to end"
    )
    assert not any(runs(int(pid)) for pid, _ in ended)
    assert all(os.waitstatus_to_exitcode(int(status)) > 0 for _, status in ended), "by itself"


def test_batches_are_those_of_other_processes(
    given: tuple[FeedRun, Callable[..., Parent]], make_run: MakeRun
) -> None:
    run, begin = given
    begin()
    got = run.start().trainer(positions=0).result()["digests"]
    assert run.wait() == 0, run.text()
    other = make_run(epochs=2, generators=2, extra=GROUPS)
    want = other.start().trainer(positions=0).result()["digests"]
    assert np.array_equal(got, want)


def test_a_question_is_answered_between_the_starts_of_two_processes(
    given: tuple[FeedRun, Callable[..., Parent]],
) -> None:
    """Whom the first process serves already does not wait until all others have been forked."""
    run, _ = given
    children: list[int] = []
    question = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with question, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(run.environment["RINGFEED_GIVEN_SOCKET"])
        listener.listen()
        run.start()
        link, _ = listener.accept()
        try:
            link.send(b"ready")
            orders = [socket.recv_fds(link, 100, 8)]
            question.connect(str(run.sockets / f"{run.feed}.sock"))
            question.send(control.bytes_field(messages.Request.status, b""))
            children.append(_fork_one_that_waits(orders[0][1]))
            # An order that nobody answers is given up after half a second.
            assert question.recv(1 << 20)
            orders.append(socket.recv_fds(link, 100, 8))
            children.append(_fork_one_that_waits(orders[1][1]))
            assert all(order.startswith(b"fork ") for order, *_ in orders)
            with pytest.raises(BlockingIOError):  # it is still connected
                link.recv(1, socket.MSG_DONTWAIT)
        finally:
            link.close()
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _fork_one_that_waits(fds: list[int]) -> int:
    """A process of a stage that never comes to be ready."""
    child = os.fork()
    if child == 0:
        socket.socket(fileno=fds[0]).send(b"here")
        while True:
            signal.pause()
    for fd in fds:
        os.close(fd)
    return child
