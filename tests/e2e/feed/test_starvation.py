"""The supervisor is refused memory, descriptors, threads and processes, call by call, and the feed
goes on.

RINGFEED_STARVE_ROUNDS (default 24) says how many calls are refused; RINGFEED_STARVE_SEED which.
RINGFEED_STARVE_CALLS (default 5) says how many calls of each kind are refused one by one in each
request, spread over all that it makes; 0: every single one.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ringfeed

from tests.support.feeds.feed_run import BIN, FeedRun, Trainer, wait_until
from tests.support.feeds.starver import KINDS, Starver, starved_feed

ROUNDS = int(os.environ.get("RINGFEED_STARVE_ROUNDS", "24"))
SEED = int(os.environ.get("RINGFEED_STARVE_SEED", "1"))
CALLS = int(os.environ.get("RINGFEED_STARVE_CALLS", "5"))
SETTINGS = {
    "epochs": 8 + ROUNDS // 3,
    "groups": 'groups { name: "default" }',
    "extra": "restart { max_restarts: 1000 }",
}


def test_whatever_the_supervisor_is_refused_the_stream_stays_the_same(
    make_run: Callable[..., FeedRun], tmp_path: Path
) -> None:
    plain = make_run(**SETTINGS, feed="plain").start()
    undisturbed = plain.trainer(positions=0).result(600)["digests"]
    assert plain.wait() == 0, plain.text()

    run, starver = starved_feed(make_run, tmp_path, **SETTINGS)
    trainer = run.trainer_after(2, positions=0, pause_ms=50)

    def kill_a_stage() -> None:
        workers = run.workers()
        if not workers:
            return
        name, pid = random_of.choice(sorted(workers.items()))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: run.workers().get(name, pid) != pid, f"{name} to be replaced")

    def snapshot() -> None:
        run.command("snapshot", run.feed, str(tmp_path / "saved"))

    # With what each of them asks the system for.
    asking = ["accept4", "malloc", "epoll_ctl"]
    saving = ["mmap", "open", "eventfd", "pthread_create", "write", "malloc", "epoll_ctl"]
    starting = ["open", "malloc", "epoll_ctl", "socketpair", "pipe2", "posix_spawn"]
    actions: list[tuple[Callable[[], object], list[str]]] = [
        (snapshot, saving),
        (lambda: run.command("status", run.feed), asking),
        (lambda: run.command("metrics", run.feed), asking),
        (lambda: run.command("control", run.feed, "chunk_pool_request {}"), asking),
        (kill_a_stage, starting),
        (snapshot, saving),
    ]
    random_of = random.Random(SEED)
    refused: dict[str, int] = dict.fromkeys(KINDS, 0)
    assert run.process is not None
    for number in range(ROUNDS):
        action, kinds = actions[number % len(actions)]
        kind = random_of.choice(kinds)
        calls = {"malloc": 1500, "open": 20, "write": 40, "mmap": 20}.get(kind, 2)
        starver.refuse(kind, random_of.randrange(calls), random_of.choice([1, 1, 3]))
        action()
        refused[kind] += starver.stop()
        assert (
            run.process.poll() is None
        ), f"round {number}: {kind} was refused, and the supervisor has ended\n{run.text()[-3000:]}"
        assert run.command("status", run.feed).returncode == 0, run.text()[-3000:]
    assert sum(refused.values()) >= ROUNDS // 2, refused
    assert run.command("snapshot", run.feed, str(tmp_path / "last")).returncode == 0, run.text()[
        -3000:
    ]
    before = trainer.batches()
    wait_until(lambda: trainer.batches() > before, "batches after all that")
    # The rest of the stream is compared as far as it has come.
    run.stop()
    run.stop()
    # The last batch may be what a stopped feed had of it.
    digests = trainer.result()["digests"][:-1]
    assert len(digests) > 10 and np.array_equal(digests, undisturbed[: len(digests)])


def spread(calls: int) -> list[int]:
    """Which of so many calls are refused, one at a time."""
    if CALLS == 0 or calls <= CALLS:
        return list(range(calls))
    return sorted({round(i * (calls - 1) / (CALLS - 1)) for i in range(CALLS)})


def visit(run: FeedRun) -> None:
    """A trainer that attaches, takes a batch and leaves; it may be refused."""
    try:
        at = {"socket_dir": str(run.sockets), "attach_timeout_s": 20, "rejoin_ms": 0}
        with ringfeed.attach(run.feed, "guest", **at) as guest:
            next(iter(guest))
    except ringfeed.RingfeedError:
        pass


def assert_undisturbed(
    make_run: Callable[..., FeedRun], run: FeedRun, trainer: Trainer, settings: dict[str, Any]
) -> None:
    """Ends the feed; every batch that the trainer has had is that of a feed that was refused
    nothing.
    """
    assert run.stop() == 0, run.text()[-3000:]
    # The last batch may be what a stopped feed had of it.
    digests = trainer.result()["digests"][:-1]
    assert len(digests) > 100
    plain = make_run(**settings, feed="plain").start()
    undisturbed = plain.trainer(positions=0, batches=len(digests)).result(600)["digests"]
    plain.stop(signal.SIGQUIT)
    assert np.array_equal(digests, undisturbed)


# With what each kind of call is refused in what request.
REFUSED = [
    "malloc",
    "mmap",
    "open",
    "eventfd",
    "pthread_create",
    "write",
    "epoll_ctl",
    "socketpair",
]
REFUSED += ["pipe2", "posix_spawn", "accept4", "memfd_create"]


def refuse_each_call(
    run: FeedRun,
    starver: Starver,
    name: str,
    action: Callable[[], object],
    alive: Callable[[], bool],
) -> int:
    """Does the action again and again, with another one of its calls refused each time."""
    before = {kind: starver.calls(kind) for kind in REFUSED}
    action()
    made = {kind: starver.calls(kind) - before[kind] for kind in REFUSED}
    refused = 0
    for kind in REFUSED:
        for number in spread(made[kind]):
            starver.refuse(kind, number, 1)
            action()
            refused += starver.stop()
            assert alive(), f"{name}: {kind} {number} was refused\n{run.text()[-3000:]}"
    return refused


def test_each_call_of_each_request_may_fail(
    make_run: Callable[..., FeedRun], tmp_path: Path
) -> None:
    many = "restart { max_restarts: 100000 backoff_ms_min: 1 backoff_ms_max: 1 }"
    settings = {"epochs": 0, "seed": 5, "groups": 'groups { name: "default" }', "extra": many}
    room = ("--set", "stages.unpacker.max_threads=2")
    run, starver = starved_feed(make_run, tmp_path, start=room, **settings)
    # Somebody takes batches for as long as the rest lasts.
    taker = run.trainer_after(2, positions=0, pause_ms=100)
    lanes = iter([2, 1] * 100_000)
    program = str(BIN / "ringfeed-worker")
    group = sorted(run.workers())[0]

    def killed() -> None:
        pid = run.workers().get(group)
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: run.workers().get(group) not in (None, pid), f"{group} to be replaced")

    def alive() -> bool:
        assert run.process is not None
        return run.process.poll() is None and run.command("status", run.feed).returncode == 0

    actions: dict[str, Callable[[], object]] = {
        "status": lambda: run.command("status", run.feed),
        "metrics": lambda: run.command("metrics", run.feed),
        "control": lambda: run.command("control", run.feed, "chunk_pool_request {}"),
        "scale": lambda: run.command("scale", run.feed, "unpacker", str(next(lanes))),
        "snapshot": lambda: run.command("snapshot", run.feed, str(tmp_path / "saved")),
        "restart": lambda: run.command("restart", run.feed, group),
        "new program": lambda: run.command("restart", run.feed, group, "--binary", program),
        "attach": lambda: visit(run),
        "a death": killed,
    }
    refused = {
        name: refuse_each_call(run, starver, name, what, alive) for name, what in actions.items()
    }
    assert all(refused.values()), refused
    # Nobody was left behind, and all of it can be done again.
    wait_until(lambda: "group=guest" not in str(run.status()), "the guests to be gone")
    for name in ("metrics", "control", "scale", "snapshot", "restart", "new program"):
        answers: list[str] = []

        def works(what: Callable[[], Any] = actions[name], answers: list[str] = answers) -> bool:
            done = what()
            answers.append(done.stderr)
            return done.returncode == 0

        wait_until(works, f"{name}: {answers}")
    visit(run)
    before = taker.batches()
    wait_until(lambda: taker.batches() > before + 5, "batches after all that")
    assert "feed_failed" not in run.text()
    assert_undisturbed(make_run, run, taker, settings)


def test_each_call_of_what_is_written_as_json_may_fail(
    make_run: Callable[..., FeedRun], tmp_path: Path
) -> None:
    """Trees of JSON take memory even when they go away, where nobody may be refused any."""
    settings = {
        "epochs": 0,
        "groups": 'groups { name: "default" }',
        "extra": "log { format: JSON } restart { max_restarts: 100000 backoff_ms_min: 1 }",
    }
    run, starver = starved_feed(make_run, tmp_path, **settings)
    taker = run.trainer_after(2, positions=0, pause_ms=100)
    guest = ringfeed.attach(run.feed, socket_dir=run.sockets, observe=True)

    def numbers() -> None:
        with contextlib.suppress(ringfeed.RingfeedError):
            assert guest.metrics()["total"]["stage_metrics"]

    def alive() -> bool:
        assert run.process is not None
        return run.process.poll() is None and run.command("status", run.feed).returncode == 0

    levels = iter(["debug", "info"] * 100_000)
    actions: dict[str, Callable[[], object]] = {
        "metrics": numbers,
        "attach": lambda: visit(run),
        "log": lambda: run.command("log", run.feed, next(levels)),
    }
    refused = {
        name: refuse_each_call(run, starver, name, what, alive) for name, what in actions.items()
    }
    assert all(refused.values()), refused
    assert guest.metrics()["total"]["stage_metrics"]
    guest.close()
    before = taker.batches()
    wait_until(lambda: taker.batches() > before, "batches after all that")


def test_whoever_comes_and_goes_while_there_is_no_memory_holds_up_nobody(
    make_run: Callable[..., FeedRun], tmp_path: Path
) -> None:
    """A group without a member, or a member that has left while its process lives, would be waited
    for by the whole feed, and nobody would see to its end.
    """
    settings = {"epochs": 0, "groups": 'groups { name: "default" }'}
    run, starver = starved_feed(make_run, tmp_path, **settings)
    taker = run.trainer_after(2, positions=0, pause_ms=20)
    at = {"socket_dir": str(run.sockets), "attach_timeout_s": 20.0, "rejoin_ms": 0}

    def come() -> ringfeed.Feed | None:
        with contextlib.suppress(ringfeed.RingfeedError):
            return ringfeed.attach(run.feed, "guest", **at)
        return None

    def go(guest: ringfeed.Feed | None) -> None:
        if guest is not None:
            guest.close()

    def gone() -> bool:
        status = run.status()
        return status is not None and "guest" not in str(status)

    def memory_of(what: Callable[[], object]) -> int:
        before = starver.calls("malloc")
        what()
        return starver.calls("malloc") - before

    go(come())  # from now on somebody who lives has been a member of a page
    for number in range(memory_of(lambda: go(come()))):
        starver.refuse("malloc", number, 1)
        guest = come()
        starver.stop()
        go(guest)
        wait_until(gone, f"the guest that was refused allocation {number} to be gone")
    # Each request is a line of the log.
    assert run.command("log", run.feed, "debug").returncode == 0
    guest = come()
    refusals = [(number, 1 + number % 3) for number in range(memory_of(lambda: go(guest)))]
    # The last: a request is looked at again, as often as it takes.
    for number, count in [*refusals, (0, 1000)]:
        guest = come()
        starver.refuse("malloc", number, count)
        go(guest)

        def over(count: int = count) -> bool:
            return starver.failed() >= count or gone()

        wait_until(over, "memory")
        starver.stop()
        wait_until(gone, f"the guest that left without allocation {number} to be gone")
    before = taker.batches()
    wait_until(lambda: taker.batches() > before + 2, "batches after all that")


def test_a_page_that_cannot_be_watched_is_started_again(
    make_run: Callable[..., FeedRun], tmp_path: Path
) -> None:
    """Its end would not be seen, or what it says would not be read."""
    page = 'http { listen: "127.0.0.1:0" }'
    run, starver = starved_feed(make_run, tmp_path, epochs=0, extra=page)

    def listening() -> list[int]:
        return [int(pid) for pid in re.findall(r" web_listens .* pid=(\d+)", run.text())]

    wait_until(listening, "the page")
    for number in range(2):
        before = listening()
        starver.refuse("epoll_ctl", number, 1)
        os.kill(before[-1], signal.SIGKILL)
        wait_until(starver.failed, "a watch to be refused")
        starver.stop()
        wait_until(lambda before=before: listening() != before, "the page again")
    run.stop(signal.SIGQUIT)


def test_each_call_of_a_takeover_and_of_a_first_request_may_fail(
    make_run: Callable[..., FeedRun], tmp_path: Path
) -> None:
    """A supervisor that is refused something at its start ends, or goes on; the feed goes on."""
    many = "restart { max_restarts: 100000 }"
    settings = {"epochs": 0, "seed": 5, "groups": 'groups { name: "default" }', "extra": many}
    run, starver = starved_feed(make_run, tmp_path, **settings)
    trainer = run.trainer_after(2, positions=0, pause_ms=20)
    workers = run.all_workers()
    own = run.environment
    status_of = "status", run.feed

    def takeover() -> bool:
        assert run.process is not None
        run.process.kill()
        run.process.wait()
        run.environment = {**own, **starver.environment}
        run.start()
        run.environment = own
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if run.process.poll() is not None:
                return False
            if run.command(*status_of).returncode == 0:
                return True
            time.sleep(0.02)
        raise AssertionError(f"neither up nor down\n{run.text()[-3000:]}")

    before = {kind: starver.calls(kind) for kind in REFUSED}
    assert takeover()
    made = {kind: starver.calls(kind) - before[kind] for kind in REFUSED}
    ups = refused = 0
    for kind in REFUSED:
        for number in spread(made[kind]):
            starver.refuse(kind, number, 1)
            up = takeover()
            refused += starver.stop()
            ups += up
            what = f"{kind} {number} was refused\n{run.text()[-3000:]}"
            if not up:
                assert takeover(), what
            assert set(run.all_workers()) == set(workers), what
    assert refused > 10
    assert "feed_started" in run.text() and run.text().count("feed_started") == 1, "started anew"
    before_that = trainer.batches()
    wait_until(lambda: trainer.batches() > before_that + 5, "batches after all that")
    assert_undisturbed(make_run, run, trainer, settings)


def replaced(run: FeedRun, group: str) -> None:
    """Kills the group's process; there is another one afterwards."""
    before = run.workers()[group]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: run.workers().get(group) not in (None, before), f"{group} to be replaced")


def test_a_program_that_cannot_even_be_started_holds_up_nobody(
    make_run: Callable[..., FeedRun], tmp_path: Path
) -> None:
    """As from a file system that hangs: whoever starts it does not come back."""
    run, starver = starved_feed(make_run, tmp_path, epochs=0)
    trainer = run.trainer_after(2, positions=0, pause_ms=20)
    group = sorted(run.workers())[0]
    program = str(BIN / "ringfeed-worker")
    starver.refuse("hung posix_spawn", 0, 0)
    asked = run.command_later("restart", run.feed, group, "--binary", program)
    wait_until(starver.hangs, "the start")
    before = trainer.batches()
    wait_until(lambda: trainer.batches() > before + 2, "batches meanwhile")
    assert run.command("status", run.feed).returncode == 0
    said = asked.communicate(timeout=60)[1]
    assert "has not answered within 5000 ms" in said, said
    # Who asks may also be gone before there is an answer.
    starts = starver.calls("hung posix_spawn")
    gone = run.command_later("restart", run.feed, group, "--binary", program)
    wait_until(lambda: starver.calls("hung posix_spawn") > starts, "the start")
    gone.kill()
    gone.communicate()
    first = run.workers()[group]
    starver.stop()
    wait_until(
        lambda: run.workers().get(group) not in (None, first),
        "what was asked for is done all the same",
    )
    replaced(run, group)
    # Two have asked. While the second replacement starts there can be no third.
    wait_until(
        lambda: run.command("restart", run.feed, group, "--binary", program).returncode == 0,
        "another replacement",
    )
    run.stop(signal.SIGQUIT)
    run.wait()


def test_a_disk_that_hangs_holds_up_a_snapshot_alone(
    make_run: Callable[..., FeedRun], tmp_path: Path
) -> None:
    run, starver = starved_feed(make_run, tmp_path, epochs=0)
    trainer = run.trainer_after(2, positions=0, pause_ms=20)
    starver.refuse("hung pwrite", 0, 0)
    asked = run.command_later("snapshot", run.feed, str(tmp_path / "saved"))
    wait_until(starver.hangs, "the write")
    before = trainer.batches()
    wait_until(lambda: trainer.batches() > before + 2, "batches meanwhile")
    replaced(run, sorted(run.workers())[0])
    workers = run.workers().values()
    assert run.process is not None
    run.process.send_signal(signal.SIGQUIT)
    said = asked.communicate(timeout=60)[1]
    assert "the snapshot was abandoned: " in said, said
    wait_until(
        lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in workers), "the stages' end"
    )
    wait_until(lambda: "snapshot_hangs feed=lc0 " in run.text(), "the word")
    # The feed has ended, and its name is free, though its process cannot end.
    hangs = run.process
    wait_until(lambda: not (run.sockets / "lc0.lock").exists(), "the lock to be gone")
    assert hangs.poll() is None
    again = run.start("--set", "epochs=1").trainer(positions=0)
    again.result()
    assert run.wait() == 0, run.text()
    starver.stop()
    assert hangs.wait(60) == 0
    assert not list(tmp_path.glob("saved*")), "nothing is left"


def test_a_stage_that_gets_no_thread_is_tried_again(
    make_run: Callable[..., FeedRun], tmp_path: Path
) -> None:
    restarts = "restart { max_restarts: 3 within_s: 600 }"
    run, starver = starved_feed(make_run, tmp_path, "ringfeed-worker", epochs=0, extra=restarts)
    trainer = run.trainer_after(2, positions=0, pause_ms=20)
    group, pid = sorted(run.workers().items())[0]
    starver.refuse("pthread_create", 0, 6)
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: f"worker_starved feed=lc0 group={group} times=4 " in run.text(), "four tries"
    )
    assert "the system provides no thread for lane " in run.text()
    wait_until(
        lambda: f"worker_starved_no_more feed=lc0 group={group}" in run.text(), "its threads"
    )
    before = trainer.batches()
    wait_until(lambda: trainer.batches() > before + 5, "batches")
    assert "deaths=2" not in run.text(), "nothing but the one death is counted"
    run.stop(signal.SIGQUIT)
    run.wait()
