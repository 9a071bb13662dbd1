"""Trainers that share one feed: real processes, which come late, leave, and die.

What each batch is made of is compared with PyTorch's own samplers, and what was drawn for it with a run of one trainer
that nobody disturbed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from torch.utils.data import BatchSampler  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from ringfeed._core import control, programs  # noqa: E402
from ringfeed.torch import DataLoader  # noqa: E402
from ringfeed.torch._plan import Plan  # noqa: E402
from ringfeed.torch._shared_parent import (  # noqa: E402
    GRACE_S,
    Place,
    _SharedParent,
    has_ended,
    listens,
)
from ringfeed.torch._workers import environment  # noqa: E402
from tests.support.feeds.feed_run import WAIT_S, wait_until  # noqa: E402
from tests.support.loaders.ranks import resting_at_exit  # noqa: E402
from tests.support.loaders.shared_trainer import Settings  # noqa: E402

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "loaders" / "shared_trainer.py"


class Trainer:
    """A process that trains, and what it has said."""

    def __init__(self, home: Path, settings: dict[str, Any], environment: dict[str, str]) -> None:
        self.home = home
        self.out = home / f"trainer-{time.monotonic_ns()}.out"
        with self.out.open("wb") as out, self.out.with_suffix(".err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(settings)],
                stdout=out,
                stderr=err,
                env=resting_at_exit(
                    {**os.environ, "RINGFEED_SOCKET_DIR": str(home / "s"), **environment}
                ),
            )

    def lines(self) -> list[dict[str, Any]]:
        """What it has said until now."""
        text = self.out.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def begins(self) -> bool:
        """Whether all is imported, and the first epoch asked for."""
        return any("begin" in line for line in self.lines())

    def batches(self, epoch: int | None = None) -> list[dict[str, Any]]:
        """The batches it has had."""
        return [
            line
            for line in self.lines()
            if "batch" in line and (epoch is None or line["epoch"] == epoch)
        ]

    def ends(self) -> list[dict[str, Any]]:
        """Waits for its end, which is a good one, and returns its batches."""
        try:
            status = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it hangs after {self.lines()[-1:]}: {self.said()}") from None
        assert status == 0, self.said()
        found = self.batches()
        assert all(one["whole"] for one in found), "somebody else's changes"
        return found

    def said(self) -> str:
        """Its errors, and the feed's log."""
        logs = sorted((self.home / "s").glob("*.loader-log"))
        return "\n".join(
            path.read_text(errors="replace")[-3000:]
            for path in (self.out.with_suffix(".err"), *logs)
        )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    """Starts trainers; at the end nothing of them or of their feed is left."""
    # Paths of sockets are short.
    found: list[Trainer] = []

    def trainer(environment: dict[str, str] | None = None, **settings: Any) -> Trainer:
        found.append(Trainer(tmp_path, settings, environment or {}))
        return found[-1]

    yield trainer
    for one in found:
        one.process.kill()
        one.process.wait()
    wait_until(lambda: not processes(tmp_path), "processes of the feed end", timeout_s=90)
    left = sorted(path.name for path in (tmp_path / "s").glob("*"))
    assert [name for name in left if not name.endswith(("lock", "-log"))] == []


def processes(home: Path) -> dict[int, str]:
    """Those of feeds below a directory: by number, what each is."""
    found = {}
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            environment = (directory / "environ").read_bytes()
            command = (directory / "cmdline").read_bytes()
            name = (directory / "comm").read_text().strip()
        except OSError:
            continue
        if f"RINGFEED_SOCKET_DIR={home}".encode() in environment and command:
            is_trainer = str(PROGRAM).encode() in command and not name.startswith("rf-")
            found[int(directory.name)] = "trainer" if is_trainer else name
    return found


def pid_of(home: Path, what: str) -> int:
    """Number of a worker ("rf-…"), or of whoever listens as warm parent or as supervisor; 0: it is not there."""
    place = Place(home / "s", "shared")
    if what not in ("parent", "supervisor"):
        return next((pid for pid, name in processes(home).items() if name.startswith(what)), 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        try:
            link.connect(str(place.trainers if what == "parent" else place.control))
        except OSError:
            return 0
        peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", peer)[0])


def pids_of(home: Path, *names: str) -> list[int]:
    """The same of several, when all of them are there at once."""

    def found() -> list[int]:
        pids = [pid_of(home, name) for name in names]
        return pids if all(pids) else []

    return list(wait_until(found, f"{' and '.join(names)} to be there")) if names else []


def kill(*pids: int, how: signal.Signals = signal.SIGKILL) -> None:
    """Whoever of them is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def expected(epoch: int, rank: int = 0, ranks: int = 1, **settings: Any) -> list[list[int]]:
    """What PyTorch's samplers give for an epoch."""
    one = Settings(**settings)
    sampler: DistributedSampler[int] = DistributedSampler(
        range(one.samples), ranks, rank, one.shuffle, one.seed, one.drop_last  # type: ignore[arg-type]
    )
    sampler.set_epoch(epoch)
    return list(BatchSampler(sampler, one.batch_size, one.drop_last))


def indices(batches: list[dict[str, Any]], epoch: int) -> list[list[int]]:
    """Of the batches of an epoch, in the order in which they came."""
    return [one["indices"] for one in batches if one["epoch"] == epoch]


def drawn(batches: list[dict[str, Any]]) -> dict[tuple[int, int], Any]:
    """What was drawn for each batch, by epoch and number."""
    return {(one["epoch"], one["batch"]): one["drawn"] for one in batches}


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_one_trainer(start: Callable[..., Trainer], context: str, shuffle: bool) -> None:
    """All batches of all epochs, in the order of the samplers."""
    if not shuffle and context != "fork":
        pytest.skip("the order does not depend on how the warm parent starts")
    batches = start(context=context, shuffle=shuffle).ends()
    for epoch in range(2):
        assert indices(batches, epoch) == expected(epoch, shuffle=shuffle)
    assert len({str(one["drawn"]) for one in batches}) == len(batches)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_drawn_depends_on_no_number_of_workers(
    start: Callable[..., Trainer], workers: int
) -> None:
    """The same augmentations for the same batch of the same epoch."""
    alone = start(feed="alone").ends()
    other = start(feed="other", workers=workers).ends()
    assert drawn(alone) == drawn(other)


def test_four_trainers_have_the_same_batches_made_once(
    start: Callable[..., Trainer], tmp_path: Path
) -> None:
    """Each sample is made once in each epoch, however many train on it; changes are one's own."""
    made = tmp_path / "made"
    found = [start(trainers=4, made=str(made)) for _ in range(4)]
    batches = [one.ends() for one in found]
    for epoch in range(2):
        assert indices(batches[0], epoch) == expected(epoch)
    assert batches[1:] == 3 * batches[:1]
    counts = Counter(line.split()[0] for line in made.read_text().splitlines())
    assert set(counts.values()) == {2} and len(counts) == 103


def test_a_late_one_has_the_rest(start: Callable[..., Trainer], tmp_path: Path) -> None:
    """Of the epoch that is under way; then whole epochs with the others."""
    late = tmp_path / "late"
    first = start(epochs=3, samples=400, holds_at=4, until=str(late))
    wait_until(lambda: len(first.batches()) == 4, "the first trainer trains")
    second = start(epochs=3, samples=400)
    wait_until(second.batches, "the second one has a batch")
    late.touch()
    ours, theirs = first.ends(), second.ends()
    assert [len(indices(ours, epoch)) for epoch in range(3)] == [50, 50, 50]
    assert 0 < len(indices(theirs, 0)) < 50
    assert drawn(theirs).items() <= drawn(ours).items()
    assert len(indices(theirs, 1)) == len(indices(theirs, 2)) == 50


def test_an_epoch_that_is_left_is_not_made(start: Callable[..., Trainer], tmp_path: Path) -> None:
    """After break the next epoch comes, whole; and workers leave the old one."""
    made = tmp_path / "made"
    batches = start(samples=4000, break_at=3, epochs=2, batch_size=40, made=str(made)).ends()
    assert indices(batches, 0) == expected(0, samples=4000, batch_size=40)[:3]
    assert indices(batches, 1) == expected(1, samples=4000, batch_size=40)
    assert len(made.read_text().splitlines()) < 4000 + 40 * 30


def test_one_leaves_an_epoch_and_the_other_does_not(start: Callable[..., Trainer]) -> None:
    """Who stays gets all of it."""
    both = [start(trainers=2, break_at=at, samples=400) for at in (3, 0)]
    left, stayed = [one.ends() for one in both]
    assert len(indices(left, 0)) == 3
    for epoch in range(2):
        assert indices(stayed, epoch) == expected(epoch, samples=400)
    assert indices(left, 1) == indices(stayed, 1)


def test_one_leaves_every_epoch_ahead_of_the_other(start: Callable[..., Trainer]) -> None:
    """Who is behind has all of the epochs that the other has left before he came to them."""
    slow = start(trainers=2, epochs=3, samples=160, pause_ms=30)
    fast = start(trainers=2, epochs=3, samples=160, break_at=3, breaks_each=True)
    batches = slow.ends()
    assert [indices(batches, epoch) for epoch in range(3)] == [
        expected(epoch, samples=160) for epoch in range(3)
    ]
    assert len(fast.ends()) == 9


def test_a_feed_that_began_anew(start: Callable[..., Trainer], tmp_path: Path) -> None:
    """Everything but the warm parent was killed: the next trainer's epoch is made, and no earlier one."""
    made = tmp_path / "made"
    settings = {"samples": 2000, "batch_size": 20, "made": str(made)}
    one = start(epochs=2, **settings)
    wait_until(lambda: one.batches(1), "the second epoch")
    victims = [pid for pid, name in processes(tmp_path).items() if name.startswith("rf-")]
    one.process.kill()
    kill(*pids_of(tmp_path, "supervisor"), *victims)
    one.process.wait()
    made.write_bytes(b"")
    batches = start(epochs=1, **settings).ends()
    assert indices(batches, 0) == expected(0, samples=2000, batch_size=20)
    assert len(made.read_text().splitlines()) < 2000 + 20 * 30


def kill_at_once(home: Path, *names: str) -> None:
    """The supervisor, all workers and these, so that none of them sees another one's end."""
    [parent] = pids_of(home, "parent")
    victims = pids_of(home, "supervisor", *names)
    os.kill(parent, signal.SIGSTOP)
    victims += [pid for pid, name in processes(home).items() if name.startswith("rf-")]
    kill(*victims, how=signal.SIGSTOP)
    kill(*victims)
    wait_until(lambda: not set(victims) & set(processes(home)), "their ends")
    kill(parent, how=signal.SIGCONT)


@pytest.mark.parametrize("victims", [[], ["parent"]], ids=["workers", "parent"])
@pytest.mark.parametrize("comes", ["waits", "late", "nobody"])
def test_memory_that_is_held_is_no_other_feeds(
    start: Callable[..., Trainer], tmp_path: Path, victims: list[str], comes: str
) -> None:
    """Supervisor and workers die at once. Who holds batches keeps them as they are, whoever begins again where."""
    go = tmp_path / "go"
    settings = {"samples": 800, "epochs": 1, "workers": 1}
    # What it has written into would not be seen to change: those pages are its own.
    writes = comes == "nobody"
    holds = start(keeps=True, writes=writes, holds_at=4, until=str(go), **settings)
    wait_until(lambda: len(holds.batches()) == 4, "it holds batches")
    waits = start(again=True, **settings) if comes == "waits" else None
    if waits is not None:
        wait_until(waits.batches, "the other one trains")
    kill_at_once(tmp_path, *victims)
    late = waits if comes != "late" else start(**settings)
    if waits is not None:
        wait_until(
            lambda: any("failed" in line for line in waits.lines()), "the other one hears of it"
        )
    if late is not None:
        # All of a new feed, whose batches go through all slots many times.
        batches = late.ends()
        begun = [line.get("batch") for line in late.lines() if "batch" in line or "failed" in line]
        whole = batches[begun.index(None) :] if waits is not None else batches
        assert indices(whole, 0) == expected(0, samples=800)
    go.touch()
    assert holds.process.wait(WAIT_S) == 1
    assert "FeedFailed: feed shared" in holds.said() and "changed" not in holds.said()


@pytest.mark.parametrize("victim", ["parent", "supervisor", "rf-", "both", "first"])
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_who_dies_has_a_successor(
    start: Callable[..., Trainer], tmp_path: Path, victim: str, context: str
) -> None:
    """The warm parent, the supervisor, a worker, the first two together, the trainer that began."""
    if context == "spawn" and victim in ("supervisor", "rf-"):
        pytest.skip("the same processes, however the warm parent starts")
    settings = {"samples": 400, "trainers": 2, "context": context}
    undisturbed = [start(feed="calm", **settings) for _ in range(2)][0].ends()
    first = start(pause_ms=40, ms=0.2, **settings)
    wait_until(lambda: listens(Place(tmp_path / "s", "shared").trainers), "the feed has begun")
    second = start(pause_ms=40, ms=0.2, **settings)
    both = [first, second]
    victims = {"both": ["parent", "supervisor"], "first": []}.get(victim, [victim])
    for at in (5, 15, 25):
        wait_until(lambda: len(second.batches()) >= at, f"{at} batches")
        kill(*pids_of(tmp_path, *victims))
    if victim == "first":
        first.process.kill()
    if victim == "first":
        both.remove(first)
    for one in both:
        assert drawn(one.ends()) == drawn(undisturbed)
        assert [indices(one.batches(), epoch) for epoch in range(2)] == [
            expected(epoch, samples=400) for epoch in range(2)
        ]


def test_a_warm_parent_that_is_stopped_has_a_successor(
    start: Callable[..., Trainer], tmp_path: Path
) -> None:
    """Nobody lets it go on. The trainer that wants another epoch ends it after some seconds."""
    stopped = tmp_path / "stopped"
    one = start(samples=160, holds_at=3, until=str(stopped))
    wait_until(one.batches, "it trains")
    [parent] = pids_of(tmp_path, "parent")
    os.kill(parent, signal.SIGSTOP)
    stopped.touch()
    batches = one.ends()
    assert [indices(batches, epoch) for epoch in range(2)] == [
        expected(epoch, samples=160) for epoch in range(2)
    ]
    assert parent not in processes(tmp_path)


def test_supervisors_that_are_killed_while_they_start(
    start: Callable[..., Trainer], tmp_path: Path
) -> None:
    """Five of them, one after another: the sixth one runs the feed."""
    program = tmp_path / "bin" / "ringfeed"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
if [ "$1" = run ] && [ "$(ls {tmp_path}/killed.* 2>/dev/null | wc -l)" -lt 5 ]; then
  : >{tmp_path}/killed.$$
  kill -9 $$
fi
exec {programs.find("ringfeed")} "$@"
"""
    )
    program.chmod(0o700)
    batches = start({**environment(), "RINGFEED_BIN_DIR": str(program.parent)}).ends()
    assert indices(batches, 0) == expected(0)
    assert len(list(tmp_path.glob("killed.*"))) == 5


def strike(home: Path, chance: random.Random) -> None:
    """Kills a process of the feed, or two, or stops one for a moment."""
    victims = chance.choice(
        [["parent"], ["supervisor"], ["rf-"], ["rf-"], ["parent", "supervisor"]]
    )
    # Drawn whatever is there, so that the next blows do not depend on it.
    stops, stopped_s = chance.random() < 0.3, chance.uniform(0.05, 0.45)
    needed = "rf-" if "supervisor" in victims else "supervisor" if victims == ["rf-"] else ""
    if needed and not pid_of(home, needed):
        return  # a feed whose supervisor and workers are all dead is over
    pids = [pid for what in victims if (pid := pid_of(home, what))]
    kill(*pids, how=signal.SIGSTOP if stops else signal.SIGKILL)
    if stops:
        time.sleep(stopped_s)
        kill(*pids, how=signal.SIGCONT)


def test_a_storm(start: Callable[..., Trainer], tmp_path: Path) -> None:
    """Forty blows, also to one of three trainers, which comes again: the others have each batch once, in order."""
    chance = random.Random(21)
    settings = {"samples": 2400, "epochs": 3}
    calm = drawn(start(feed="calm", **settings).ends())
    assert len(calm) == 900
    wait_until(lambda: not processes(tmp_path), "the end of that feed")
    settings |= {"pause_ms": 25, "ms": 0.2}
    found = [start(**settings, trainers=3) for _ in range(3)]
    stay, others = found[:2], found[2:]
    wait_until(lambda: all(one.batches() for one in found), "all train")
    for blow in range(40):
        if any(one.process.poll() is not None for one in stay):
            break
        if blow % 10 == 9:

            def comes(one: Trainer = others[-1]) -> bool:
                ended = any(other.process.poll() is not None for other in [one, *stay])
                return ended or bool(one.batches())

            wait_until(comes, "a batch of the one that has come again")
            assert others[-1].process.poll() is None or others[-1].batches(), others[-1].said()
            others[-1].process.kill()
            others.append(start(**settings, trainers=3))
        else:
            strike(tmp_path, chance)
        time.sleep(chance.uniform(0.05, 0.9))
    for one in stay:
        batches = one.ends()
        for epoch in range(3):
            assert indices(batches, epoch) == expected(epoch, samples=2400)
        assert drawn(batches) == calm
    for one in others:
        one.process.kill()
        had = [line for line in one.batches() if line["epoch"] < 3]
        assert drawn(had).items() <= calm.items()
        places = [(line["epoch"], line["batch"]) for line in had]
        assert places == sorted(set(places))
    assert any(one.batches() for one in others[1:]), "none has come again"


@pytest.mark.parametrize("goes", [False, True])
def test_a_busy_trainer_is_one_too(
    start: Callable[..., Trainer], tmp_path: Path, goes: bool
) -> None:
    """It has not noticed the warm parent's death when the other leaves the epoch, or goes: it loses nothing."""
    settings = {"samples": 400, "trainers": 2, "pause_ms": 300}
    busy, other = start(**settings), start(break_at=9, **settings)
    wait_until(lambda: busy.batches() and other.batches(), "both train")
    busy.process.send_signal(signal.SIGSTOP)
    [parent] = pids_of(tmp_path, "parent")
    kill(parent)
    wait_until(lambda: pid_of(tmp_path, "parent") not in (0, parent), "it has a successor")
    assert not other.batches(1)
    if goes:
        other.process.kill()
        time.sleep(GRACE_S + 3)
    else:
        wait_until(lambda: len(other.batches(0)) == 9, "the other leaves the epoch")
        time.sleep(1)
    busy.process.send_signal(signal.SIGCONT)
    batches = busy.ends()
    for epoch in range(2):
        assert indices(batches, epoch) == expected(epoch, samples=400)
    if not goes:
        assert indices(other.ends(), 1) == expected(1, samples=400)
    assert (tmp_path / "s" / "shared.loader-log").read_text().count(" feed_started ") == 1


@pytest.mark.parametrize("victims", [["parent"], ["parent", "supervisor"]])
def test_who_comes_while_there_is_no_warm_parent(
    start: Callable[..., Trainer], tmp_path: Path, victims: list[str]
) -> None:
    """It waits until one of those who have the feed's memory has started another."""
    joined = tmp_path / "joined"
    first = start(samples=1600, pause_ms=10, holds_at=150, until=str(joined))
    wait_until(lambda: len(first.batches()) > 3, "the first one trains")
    first.process.send_signal(signal.SIGSTOP)
    kill(*pids_of(tmp_path, *victims))
    second = start(samples=1600)
    wait_until(second.begins, "the second one begins")
    wait_until(lambda: pid_of(tmp_path, "supervisor"), "a supervisor is there")
    time.sleep(5)
    assert second.process.poll() is None and not second.batches()
    first.process.send_signal(signal.SIGCONT)
    wait_until(second.batches, "it is among them")
    joined.touch()
    ours, theirs = first.ends(), second.ends()
    for epoch in range(2):
        assert indices(ours, epoch) == expected(epoch, samples=1600)
    assert theirs and drawn(theirs).items() <= drawn(ours).items()
    assert len(indices(theirs, 1)) == 200


@pytest.mark.parametrize("own_sampler", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks(start: Callable[..., Trainer], own_sampler: bool, drop_last: bool) -> None:
    """Each rank has its share, as DistributedSampler cuts it, with uneven ends."""
    ranks = [
        start(
            {"RANK": str(rank), "WORLD_SIZE": "3"},
            sampler=own_sampler,
            drop_last=drop_last,
        )
        for rank in range(3)
    ]
    for rank, one in enumerate(ranks):
        batches = one.ends()
        for epoch in range(2):
            wanted = expected(epoch, rank, 3, drop_last=drop_last)
            if not own_sampler and drop_last:
                # As accelerate and Lightning do: only a last batch that is not full is dropped.
                sampler: DistributedSampler[int] = DistributedSampler(
                    range(103), 3, rank, True, 7  # type: ignore[arg-type]
                )
                sampler.set_epoch(epoch)
                wanted = list(BatchSampler(sampler, 8, True))
            assert indices(batches, epoch) == wanted


def test_ranks_of_two_hosts(start: Callable[..., Trainer]) -> None:
    """One feed for each host, which makes the share of its ranks only."""
    found = []
    for rank in range(4):
        host, local = divmod(rank, 2)
        found.append(
            start(
                {
                    **{"RANK": str(rank), "WORLD_SIZE": "4"},
                    **{"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": "2"},
                },
                feed=f"host-{host}",
            )
        )
    for rank, one in enumerate(found):
        assert indices(one.ends(), 1) == expected(1, rank, 4)


def test_ranks_whose_launcher_does_not_say_where_they_are(
    start: Callable[..., Trainer], tmp_path: Path
) -> None:
    """They tell one another through their process group."""
    found = []
    for rank, host in enumerate([0, 0, 0, 1]):
        home = tmp_path / f"s{host or ''}"
        found.append(
            start(
                {"RANK": str(rank), "WORLD_SIZE": "4", "RINGFEED_SOCKET_DIR": str(home)},
                process_group=str(tmp_path / "group"),
            )
        )
    for rank, one in enumerate(found):
        assert indices(one.ends(), 1) == expected(1, rank, 4)
    assert (tmp_path / "s" / "shared.loader-log").exists()
    assert (tmp_path / "s1" / "shared.loader-log").exists()


def test_a_state_goes_on(start: Callable[..., Trainer]) -> None:
    """In the middle of an epoch and at its end, in a feed that was started anew."""
    whole = start(epochs=3).ends()
    for at in (5, 13, 20, 26):
        state = whole[at - 1]["state"]
        rest = start(feed=f"from-{at}", epochs=3 - state["epoch"], state=state).ends()
        assert [one["indices"] for one in rest] == [one["indices"] for one in whole[at:]]
        assert drawn(rest) == drawn(whole[at:])


def test_a_state_goes_on_at_once(start: Callable[..., Trainer]) -> None:
    """The trainer was killed, and comes back while its feed is still there."""
    first = start(epochs=2, pause_ms=5)
    wait_until(lambda: len(first.batches()) >= 5, "five batches")
    first.process.kill()
    first.process.wait()
    had = first.batches()
    state = had[-1]["state"]
    rest = start(epochs=2 - state["epoch"], state=state).ends()
    assert [one["indices"] for one in had + rest] == expected(0) + expected(1)


def test_what_others_have_had_does_not_come_again(start: Callable[..., Trainer]) -> None:
    """Who wants an earlier batch, or another epoch, is told where the feed is."""
    first = start(epochs=2, samples=2000, holds_at=40)
    wait_until(lambda: len(first.batches()) == 40, "forty batches")  # it stays there
    for state in ({"epoch": 0, "batch": 3}, {"epoch": 5, "batch": 0}):
        late = start(samples=2000, state=state)
        assert late.process.wait(WAIT_S) == 1
        assert "do not come again" in late.said() or "use the same epochs" in late.said()
    first.process.kill()


def test_other_arguments_are_refused(start: Callable[..., Trainer]) -> None:
    """By name, with both values."""
    first = start(samples=2000, holds_at=1)
    wait_until(first.batches, "a batch")  # it stays there
    for settings, text in (
        ({"batch_size": 4}, "batch_size=4 in place of 8"),
        ({"workers": 3}, "num_workers=3 in place of 2"),
        ({"seed": 8}, "seed=8 in place of 7"),
    ):
        other = start(**{"samples": 2000, **settings})
        assert other.process.wait(WAIT_S) == 1
        assert text in other.said()
    first.process.kill()


def test_a_name_that_is_taken(start: Callable[..., Trainer], tmp_path: Path) -> None:
    """By a feed that is none of a DataLoader's."""
    directory = tmp_path / "s"
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(directory / "shared.sock"))
        other.listen(1)
        one = start()
        assert one.process.wait(WAIT_S) == 1
        assert "runs already, and is none of a DataLoader" in one.said()
    (directory / "shared.sock").unlink()


def test_a_directory_by_another_name(start: Callable[..., Trainer], tmp_path: Path) -> None:
    """A link leads to it. The second trainer can join, and the feed ends."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "s").symlink_to("real")
    first = start(epochs=4, pause_ms=20)
    wait_until(first.batches, "the first one trains")
    assert start().ends()
    first.ends()


HELLO = {"plan": asdict(Plan(1600, 8, False, True, 7)), "workers": 2, "rank": 0, "iteration": -1}
QUESTION = {"after": 0, "next": 1, "first": 0, "epoch": None}


def test_nonsense(start: Callable[..., Trainer], tmp_path: Path) -> None:
    """Whatever is said to the warm parent, it goes on, and says what it does not understand."""
    one = start(samples=1600, pause_ms=10)
    wait_until(one.batches, "it trains")
    [parent] = pids_of(tmp_path, "parent")
    for said in (
        [random.Random(3).randbytes(500)],
        [b'{"plan": {'],
        [b"[" * 50_000],
        [b"null"],
        [b"x" * 150_000],
        [b'"' + b"x" * 150_000 + b'"'],
        [{**HELLO, "plan": []}],
        [{**HELLO, "rank": 10**30}],
        [{**HELLO, "rank": None}],
        [HELLO, {**QUESTION, "after": float("inf")}],
        [HELLO, {**QUESTION, "after": -7}],
        [HELLO, {**QUESTION, "next": 1 << 80}],
        [HELLO, {**QUESTION, "after": -1, "next": -1000}],
        [HELLO, {**QUESTION, "epoch": 1 << 80}],
        [HELLO, {**QUESTION, "first": [0]}],
        [HELLO, [QUESTION]],
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(WAIT_S)
            link.connect(str(tmp_path / "s" / "shared.loader-trainers"))
            for number, what in enumerate(said):
                link.send(what if isinstance(what, bytes) else json.dumps(what).encode())
                answer = json.loads(link.recv(1 << 16))
                assert ("error" in answer) == (number == len(said) - 1), said
                assert "stride" in answer or answer["error"]
    # Whoever connects to the other socket takes the supervisor's place, which comes back.
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(str(tmp_path / "s" / "shared.loader-parent"))
            # Unless the supervisor was quicker, and has its place again.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                link.send(b"nonsense")
                link.recv(64)
    assert pid_of(tmp_path, "parent") == parent
    batches = one.ends()
    assert [indices(batches, epoch) for epoch in range(2)] == [
        expected(epoch, samples=1600) for epoch in range(2)
    ]


def test_connections_that_say_nothing(start: Callable[..., Trainer], tmp_path: Path) -> None:
    """Hundreds of them keep nobody out, take no more descriptors, and do not keep the feed alive."""
    joined = tmp_path / "joined"
    one = start(samples=800, holds_at=3, until=str(joined))
    wait_until(one.batches, "it trains")
    [parent] = pids_of(tmp_path, "parent")
    resource.prlimit(parent, resource.RLIMIT_NOFILE, (64, 64))
    with contextlib.ExitStack() as links:
        for _ in range(300):
            link = links.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            link.connect(str(tmp_path / "s" / "shared.loader-trainers"))
        late = start(samples=800)
        wait_until(late.batches, "another one joins")
        assert pid_of(tmp_path, "parent") == parent
        late.process.kill()
        joined.touch()
        assert indices(one.ends(), 1) == expected(1, samples=800)
        wait_until(lambda: not processes(tmp_path), "the feed ends")


def test_connections_that_say_who_they_are_and_nothing_more(
    start: Callable[..., Trainer], tmp_path: Path
) -> None:
    """More than there are places: who comes gets one of theirs, and none is theirs for ever."""
    joined = tmp_path / "joined"
    one = start(samples=1600, holds_at=3, until=str(joined))
    wait_until(one.batches, "it trains")
    with contextlib.ExitStack() as links:
        silent = []
        for _ in range(100):
            link = links.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            link.settimeout(WAIT_S)
            link.connect(str(tmp_path / "s" / "shared.loader-trainers"))
            link.send(json.dumps(HELLO).encode())
            silent.append(link)
            assert b"slots" in link.recv(1 << 16)
        late = start(samples=1600)
        wait_until(late.batches, "another one joins")
        late.process.kill()
        for link in silent:
            assert link.recv(1) == b"", "its place is free"
        joined.touch()
        assert indices(one.ends(), 1) == expected(1, samples=1600)


def test_a_feed_that_is_stopped_stays_so(start: Callable[..., Trainer], tmp_path: Path) -> None:
    """`ringfeed stop` ends it for everybody: nobody starts it again, and trainers are told."""
    both = [start(trainers=2, samples=4000, pause_ms=10) for _ in range(2)]
    wait_until(lambda: all(one.batches() for one in both), "both train")
    ended = subprocess.run(
        [os.environ.get("RINGFEED_BIN_DIR", "build/release/bin") + "/ringfeed", "stop", "shared"],
        env={**os.environ, "RINGFEED_SOCKET_DIR": str(tmp_path / "s")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    for one in both:
        assert one.process.wait(WAIT_S) == 1
        assert "FeedFailed" in one.said()
    wait_until(lambda: not processes(tmp_path), "all processes end")
    assert "feed_started" in (log := (tmp_path / "s" / "shared.loader-log").read_text())
    assert log.count(" feed_started ") == 1


def test_a_supervisor_that_takes_long_to_end_has_not_been_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket goes first, its state last, and its workers in between."""
    place = Place(tmp_path, "shared")
    state = place.file("state")
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    ending = f"record 2\nsupervisor {os.getpid()} {ticks}\nend\n"
    looks = 0

    def look(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 100:
            state.unlink()

    monkeypatch.setattr("ringfeed.torch._shared_parent.time.sleep", look)
    state.write_text(ending)
    assert has_ended(place) and looks == 100
    state.write_text(ending.replace("end\n", "over\nend\n"))
    looks = 0
    assert has_ended(place) and looks == 100, "it says so before it gives up its lock"
    assert has_ended(place), "there is no state"
    state.write_text("record 2\nsupervisor 0 0\nover\nend\n")
    assert has_ended(place)
    # Killed: there is no such process, or its number is another's now.
    for who in ("0 0", f"{2**22} 7", f"{os.getpid()} {int(ticks) + 1}", "", "x y"):
        state.write_text(f"record 2\nsupervisor {who}\nend\n")
        assert not has_ended(place), who
    state.write_text(ending)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as supervisor:
        supervisor.bind(os.fspath(place.control))
        supervisor.listen()
        assert not has_ended(place)


def test_a_supervisor_that_does_not_answer_may_have_trainers(tmp_path: Path) -> None:
    """Of an earlier warm parent: the feed is not ended, nor are batches left out, for want of an answer."""
    parent = _SharedParent.__new__(_SharedParent)
    parent._trainers = {}
    parent._where = place = Place(tmp_path, "shared")
    assert not parent._has_absent(), "there is no supervisor"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as supervisor:
        supervisor.bind(os.fspath(place.control))
        supervisor.listen()
        assert parent._has_absent(), "it is busy"
    assert not parent._has_absent()


def test_a_feed_that_is_stopped_before_it_begins(
    start: Callable[..., Trainer], tmp_path: Path
) -> None:
    """A trainer that waits for others is told as well."""
    one = start(trainers=2)
    socket_path = tmp_path / "s" / "shared.sock"
    wait_until(
        lambda: listens(socket_path) and control.trainers(socket_path, WAIT_S), "it to attach"
    )
    time.sleep(1)
    control.stop(socket_path, now=True)
    assert one.process.wait(WAIT_S) == 1
    assert "FeedFailed: feed shared was stopped" in one.said()


ATTACKS = """
import ctypes, fcntl, json, mmap, os, sys
import torch
from ringfeed.torch import DataLoader

class Samples(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, i): return torch.full((3000,), i)

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
libc.mprotect.argtypes = libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def outcome(attack):
    try:
        found = attack()
    except OSError:
        return "refused"
    return "refused" if found == -1 else "done"

def maps(fd):
    mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()

def on_descriptor(fd):
    return {
        "pwrite": outcome(lambda: os.pwrite(fd, bytes(4096), 0)),
        "mmap": outcome(lambda: maps(fd)),
        "punch": outcome(lambda: libc.fallocate(fd, 3, 0, 1 << 30)),
        "allocate": outcome(lambda: os.posix_fallocate(fd, 0, 1 << 20)),
        "truncate": outcome(lambda: os.ftruncate(fd, 4096)),
        "grow": outcome(lambda: os.ftruncate(fd, os.fstat(fd).st_size + 4096)),
        "seal": outcome(lambda: fcntl.fcntl(fd, 1033, 16)),
    }

def on_size(fd):
    anew = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        return {
            "truncate": outcome(lambda: os.ftruncate(anew, 4096)),
            "grow": outcome(lambda: os.ftruncate(anew, os.fstat(anew).st_size + 4096)),
            "seal": outcome(lambda: fcntl.fcntl(anew, 1033, 16)),
        }
    finally:
        os.close(anew)

def on_mappings(name):
    for line in open("/proc/self/maps"):
        if f"/memfd:{name} " in line:
            first, last = (int(at, 16) for at in line.split()[0].split("-"))
            private = line.split()[1][3] == "p"
            yield "punch", outcome(lambda: libc.madvise(first, last - first, 9))
            if not private:
                yield "protect", outcome(lambda: libc.mprotect(first, last - first, 3))

iterator = iter(DataLoader(Samples(), batch_size=4, num_workers=2, feed="shared"))
first = next(iterator)
found = {}
for name in ("ringfeed-batches", "ringfeed-plan"):
    fds = [int(fd) for fd in os.listdir("/proc/self/fd")
           if os.path.basename(os.path.realpath(f"/proc/self/fd/{fd}")).startswith(f"memfd:{name} ")]
    found[name] = [len(fds), *(on_descriptor(fd) for fd in fds), *(on_size(fd) for fd in fds),
                   {f"{what} {i}": how for i, (what, how) in enumerate(on_mappings(name))}]
print(json.dumps(found), flush=True)
sys.stdin.readline()
for batch in [first, *iterator]:
    begin = int(batch[0, 0])
    assert begin % 4 == 0 and torch.equal(batch, torch.arange(begin, begin + 4)[:, None].expand(4, 3000))
    batch.fill_(-1)
"""


def test_trainers_that_attack_what_all_read(tmp_path: Path) -> None:
    """Whoever began the feed, and whoever came later: they can read it, and nothing else.

    A process of the same user may open the memory anew for writing, as it may stop or change the
    others in other ways. It cannot make it shorter even so, which would end them.
    """
    program = tmp_path / "program.py"
    program.write_text(ATTACKS)
    with contextlib.ExitStack() as ends:
        both = []
        for _ in range(2):
            process = subprocess.Popen(
                [sys.executable, str(program)],
                env={**os.environ, "RINGFEED_SOCKET_DIR": str(tmp_path / "s")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            ends.enter_context(process)
            ends.callback(process.kill)
            both.append(process)
            assert process.stdout is not None
            for name, (descriptors, *attacks) in json.loads(process.stdout.readline()).items():
                assert descriptors and attacks[-1], name
                tried = [attack for one in attacks for attack in one.items()]
                assert [what for what, how in tried if how != "refused"] == [], name
        for process in both:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.wait(WAIT_S) for process in both] == [0, 0]
    wait_until(lambda: not processes(tmp_path), "all processes end")


def test_a_directory_without_room(start: Callable[..., Trainer], tmp_path: Path) -> None:
    """The error says so, and nothing half written is left."""
    (tmp_path / "s").mkdir(mode=0o700)
    (tmp_path / "s" / "shared.loader-config.textproto").symlink_to("/dev/full")
    one = start()
    assert one.process.wait(WAIT_S) == 1
    assert "FeedIOError" in one.said() and "No space left on device" in one.said()


def test_when_everybody_is_gone_at_once(start: Callable[..., Trainer], tmp_path: Path) -> None:
    """Trainers and warm parent are killed: the supervisor ends the feed after some time."""
    one = start(samples=4000, pause_ms=10)
    wait_until(one.batches, "it trains")
    [parent] = pids_of(tmp_path, "parent")
    one.process.kill()
    kill(parent)
    wait_until(lambda: not processes(tmp_path), "all processes end", timeout_s=90)
    # The name is free.
    assert len(indices(start().ends(), 1)) == 13


PROGRAM_OF_A_FORK = """
import gc, os, pickle, sys
import torch
from ringfeed.torch import DataLoader

class Samples(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, i): return torch.full((3000,), i)

kept = []
loader = DataLoader(Samples(), batch_size=4, num_workers=2, feed="shared")
again = pickle.loads(pickle.dumps(loader))
assert again.feed == "shared" and len(again) == 100
for number, batch in enumerate(loader):
    kept.append(batch)
    batch += 1
    if number == 5 and os.fork() == 0:
        # The child keeps what its parent had, whatever comes where that lay.
        sys.stdin.readline()
        good = all(bool((one == torch.arange(4 * i, 4 * i + 4)[:, None] + 1).all())
                   for i, one in enumerate(kept))
        os._exit(0 if good and len(kept) == 6 else 1)
assert all(bool((one == torch.arange(4 * i, 4 * i + 4)[:, None] + 1).all())
           for i, one in enumerate(kept)), "somebody else's batch"
# An iteration is all that is left of its loader. Whoever drops that leaves the feed, without a collection.
del loader, batch, again
gc.disable()
half = iter(DataLoader(Samples(), batch_size=4, num_workers=2, feed="shared"))
next(half)
del half
found = [int(batch[0, 0]) for batch in DataLoader(Samples(), batch_size=4, num_workers=2, feed="shared")]
assert found == list(range(0, 400, 4)), found
print("good", flush=True)
print(os.wait()[1], flush=True)
"""


def test_batches_that_are_kept_and_forked(tmp_path: Path) -> None:
    """A hundred batches in a list, each with changes of the loop's; a child has its parent's."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM_OF_A_FORK)
    with subprocess.Popen(
        [sys.executable, str(program)],
        env={**os.environ, "RINGFEED_SOCKET_DIR": str(tmp_path / "s")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            assert process.stdout.readline() == "good\n"
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "0\n"
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
    wait_until(lambda: not processes(tmp_path), "all processes end")


def test_trainers_that_keep_all_their_batches(start: Callable[..., Trainer]) -> None:
    """Nobody waits for them: what they keep becomes theirs."""
    found = [start(trainers=3, keeps=True, samples=400, writes=number > 0) for number in range(3)]
    batches = [one.ends() for one in found]
    assert batches[1:] == 2 * batches[:1] and len(batches[0]) == 100
    assert [one.lines()[-1]["kept"] for one in found] == [100] * 3


def test_an_error_is_everybodys(start: Callable[..., Trainer]) -> None:
    """The exception of a sample comes in the place of its batch, and the loop can go on."""
    found = [start(trainers=2, raises_at=11, shuffle=False) for _ in range(2)]
    for one in found:
        batches = one.ends()
        assert indices(batches, 0) == [
            batch for batch in expected(0, shuffle=False) if 11 not in batch
        ]
        errors = [line["error"] for line in one.lines() if "error" in line]
        assert errors == ["LookupError: no sample 11"] * 2


@pytest.mark.parametrize("on_poison", ["error", "skip"])
def test_a_sample_that_kills(start: Callable[..., Trainer], on_poison: str) -> None:
    """It is an error that names it, or is left out, for all trainers alike."""
    settings = {"shuffle": False, "kills_at": 11, "on_poison": on_poison, "epochs": 1}
    for one in [start(trainers=2, **settings) for _ in range(2)]:
        found = indices(one.ends(), 0)
        whole = expected(0, shuffle=False)
        if on_poison == "skip":
            assert found == [[i for i in batch if i != 11] for batch in whole]
        else:
            assert found == [batch for batch in whole if 11 not in batch]
            [error] = [line["error"] for line in one.lines() if "error" in line]
            assert "the sample at index 11 has killed its worker process again and again" in error


def test_a_dataset_that_cannot_be_loaded(tmp_path: Path) -> None:
    """The reason is in the error, and nothing is left."""
    text = """
import torch, ringfeed.torch
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 10
    def __getitem__(self, i): return i
    def __setstate__(self, state): raise RuntimeError("no such server")
    def __getstate__(self): return {"a": 1}
if __name__ == "__main__":
    loader = ringfeed.torch.DataLoader(Samples(), num_workers=1, feed="x", multiprocessing_context="spawn")
    list(loader)
"""
    program = tmp_path / "program.py"
    program.write_text(text)
    ended = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "RINGFEED_SOCKET_DIR": str(tmp_path / "s")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 1
    assert "no such server" in ended.stderr and "FeedFailed" in ended.stderr
    wait_until(lambda: not processes(tmp_path), "all processes end")


class Hesitates(torch.utils.data.Dataset[Any]):
    """Its fourth sample takes longer than a trainer wants to wait: until a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            wait_until(self.file.exists, "the trainer has lost its patience")
        return torch.tensor(index)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For feeds of this process, which end with the test."""
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(tmp_path / "s"))
    yield tmp_path
    wait_until(lambda: not processes(tmp_path), "processes of the feed end", timeout_s=90)


def test_a_batch_that_takes_too_long(home: Path) -> None:
    """PyTorch's error, as often as the time is over; then the batch comes, and the rest."""
    goes_on = home / "goes on"
    loader = DataLoader(Hesitates(goes_on), batch_size=2, num_workers=1, timeout=0.25, feed="x")
    found = []
    iterator = iter(loader)
    while len(found) < 4:
        try:
            found.append(next(iterator).tolist())
        except RuntimeError as error:
            assert str(error) == "DataLoader timed out after 0.25 seconds"
            goes_on.touch()
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="is about machines without one")
def test_pinned_memory_without_a_device(home: Path) -> None:
    """A warning, and batches that are not pinned."""
    loader = DataLoader(range(8), batch_size=4, num_workers=1, pin_memory=True, feed="x")
    with pytest.warns(UserWarning, match="no accelerator is found"):
        batches = list(loader)
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert not any(batch.is_pinned() for batch in batches)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a device")
def test_pinned_memory(home: Path) -> None:
    """Batches that are one's own, in memory that the device reads."""
    loader = DataLoader(range(8), batch_size=4, num_workers=1, pin_memory=True, feed="x")
    batches = list(loader)
    assert all(batch.is_pinned() for batch in batches)
    assert [batch.cuda().tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def _loader(**arguments: Any) -> Any:
    return DataLoader(**{"dataset": range(10), "num_workers": 1, "feed": "x", **arguments})


class Endless(torch.utils.data.IterableDataset[int]):
    """Without an order that is known."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": Endless()},
        {"sampler": [1, 2, 3]},
        {"batch_sampler": [[1, 2], [3]]},
        {"sampler": torch.utils.data.RandomSampler(range(10), replacement=True)},
        {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * 10, 10)},
    ],
)
def test_what_cannot_be_shared_is_refused(arguments: dict[str, Any]) -> None:
    """With what can."""
    with pytest.raises(ValueError, match="feed='x': the batches of a shared feed are the same"):
        _loader(**arguments)


def test_refused_arguments() -> None:
    """By name."""
    from ringfeed.torch import StatefulDataLoader

    with pytest.raises(ValueError, match="feed='x' needs workers"):
        _loader(num_workers=0)
    with pytest.raises(ValueError, match="a name has 1 to 64 characters"):
        _loader(feed="../x")
    with pytest.raises(ValueError, match="trainers is 0"):
        _loader(trainers=0)
    with pytest.raises(ValueError, match="StatefulDataLoader has no feed"):
        StatefulDataLoader(range(10), num_workers=1, feed="x")  # type: ignore[arg-type]
    loader = _loader()
    loader.load_state_dict({"_iterator_state": 1})
    with pytest.raises(ValueError, match="is none of a loader with feed="):
        iter(loader)
