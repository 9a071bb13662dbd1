"""Kills processes of a running Lc0 feed at random, and audits what its trainers got.

    python tests/crash/storm.py --kills 300 [--seed 1] [--everything] [--json FILE]

Six trainers in four groups (alone, two sharing, two ranks, and one that is slow) read a finite
feed with small rings. Blows: workers get SIGKILL (the OOM killer's as well), SIGSEGV, SIGBUS,
SIGABRT (an allocation that failed) or a SIGSTOP for longer than stall_ms; trainers SIGKILL, or
SIGSTOP for a while; the supervisor SIGKILL, SIGSEGV, or SIGSTOP for a while. Dead trainers and
supervisors are started again, the latter sometimes only after a while. What blow comes n-th depends
on the seed and n alone; when it hits, on the machine.

Most blows wait until the feed is whole again after those before; one of four does not, so that
successors are hit while they start and several die in a row, also without a supervisor. But the
memory of such a feed is gone with the last process that holds it: the blow that would hit that one
waits for another holder, whom the kernel knows (/proc/PID/fd).

With --everything all processes are killed at once, trainers, workers and supervisor in any order,
again and again, and everybody is started again with the same words; the feed goes on from the files
of its storage.directory.

At the end nothing may be left behind: no process, no file in the directory of sockets or of
segments, nothing for `ringfeed clean` to do. A feed that is not whole, or gives nobody a batch, for
a minute is a failure of its own.

The audit compares with an undisturbed run of the same feed. Per group: every batch came (else
lost); its bytes are those of the undisturbed run (else torn); it came a second time only with
`tries` that say so, because its trainer died with it in hand (else repeated); each trainer's
numbers ascend, but for those that came back from a dead one.

Two figures: the longest time between two batches of the trainer alone, after the death of a stage
and before the next blow, and the time from a blow to new lanes and to their first step (which waits
for room, if the trainers are slow).
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # trainers are forked, without NumPy's threads

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import storm_trainer  # noqa: E402

from tests.support.feeds.feed_run import (  # noqa: E402
    ROOT,
    FeedRun,
    processes_of,
    remains,
    runs,
    wait_until,
)
from tests.support.feeds.feed_watch import LaneWatch, spread  # noqa: E402
from tests.support.makers import lc0_data  # noqa: E402
from tests.support.rig.careful import be_careful  # noqa: E402

STALL_MS = 400
HANG_S = 60.0  # a feed that is not whole, or gives no batch, for so long does not go on by itself
PATIENT = 0.75  # of the blows wait until the feed is whole again
# A batch whose trainers are killed again and again is delivered again and again.
GROUPS = (
    'groups { name: "alone" max_tries: 255 } groups { name: "pair" max_tries: 255 } '
    'groups { name: "slow" max_tries: 255 } '
    'groups { name: "ranks" max_tries: 255 kind: RANKED world: 2 }'
)
EXTRA = """
stage_groups {{ name: "files" stages: "provider" stages: "loader" }}
stage_groups {{ name: "pool" stages: "pool" }}
stage_groups {{ name: "mix" stages: "unpacker" stages: "sampler" }}
stage_groups {{ name: "out" stages: "tensors" }}
restart {{ max_restarts: 100000 within_s: 1 backoff_ms_max: 20 stall_ms: {stall_ms} }}
"""


class Scene:
    """The feed over which a storm rages: positions of Lc0."""

    # How often each is struck; "files" has soon done its part, and then only holds memory.
    stage_groups = {"files": 1, "pool": 3, "mix": 3, "out": 3}
    victims = {"worker": 6, "trainer": 2, "supervisor": 2}
    blows = {
        "worker": {"SIGKILL": 50, "SIGSEGV": 15, "SIGBUS": 10, "SIGABRT": 15, "SIGSTOP": 10},
        "trainer": {"SIGKILL": 75, "SIGSTOP": 25},
        "supervisor": {"SIGKILL": 75, "SIGSEGV": 10, "SIGSTOP": 15},
    }
    batches_an_epoch = 190
    ahead_ms = 40.0  # work of a trainer per batch, when the feed would not last
    settings: dict[str, Any] = {
        "reservoir": 400,
        "batch": 32,
        "unpackers": 2,
        "readers": 2,
        "slots": 12,
        "groups": GROUPS,
    }

    def __init__(self, work: Path, stall_ms: int) -> None:
        data = lc0_data.make_dataset(work / "data", games=60, tars=3, seed=3, loose=5)
        self.data = Path(data.directory)
        self.extra = EXTRA.format(stall_ms=stall_ms)

    def settings_in(self, work: Path) -> dict[str, Any]:
        """Of a feed that runs in that folder."""
        del work
        return {**self.settings, "extra": self.extra}

    def close(self) -> None:
        """The storm is over."""

    def wrong(self, undisturbed: str, disturbed: str) -> list[str]:
        """What the logs of both runs tell that should be the same and is not."""
        del undisturbed, disturbed
        return []


class Pace:
    """What trainers take for a batch; the storm sets it, for the feed is to last for all the blows
    and not much longer."""

    def __init__(self, fixed_ms: float | None) -> None:
        self.memory = mmap.mmap(-1, 8)  # shared with whoever is forked
        self.fixed_ms = fixed_ms
        self.set(4.0)

    def set(self, ms: float) -> None:
        struct.pack_into("<d", self.memory, 0, ms if self.fixed_ms is None else self.fixed_ms)

    def get(self) -> float:
        return float(struct.unpack_from("<d", self.memory, 0)[0])


class ForkedTrainer:
    """A trainer that has all imports behind it: its successor is there in no time. As a Popen."""

    def __init__(self, run: FeedRun, words: list[str], log: Path, pace: Pace | None) -> None:
        self.returncode: int | None = None
        # What is buffered here must not come out of the child as well.
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid != 0:
            return
        status = 1
        try:
            with log.open("ab") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            os.environ["RINGFEED_SOCKET_DIR"] = str(run.sockets)
            status = storm_trainer.main(words, pace.get if pace else None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout_s: float = HANG_S) -> int:
        wait_until(lambda: self.poll() is not None, f"trainer {self.pid} to end", timeout_s)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:  # not waited for yet: nobody else's number
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass
class Member:
    """A trainer's place: whoever has it is started again when it has been killed."""

    name: str
    words: list[str]
    out: Path
    process: subprocess.Popen[bytes] | ForkedTrainer | None = None
    starts: int = 0
    pace: Pace | None = None  # of a trainer that is forked

    def start(self, run: FeedRun) -> None:
        self.starts += 1
        words = [f"--feed={run.feed}", f"--out={self.out}", *self.words]
        if self.pace is not None:
            self.process = ForkedTrainer(run, words, self.out.with_suffix(".log"), self.pace)
            return
        with self.out.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "crash" / "storm_trainer.py"), *words],
                env=run.environment,
                stdout=log,
                stderr=log,
            )

    @property
    def done(self) -> bool:
        return self.process is not None and self.process.poll() == 0

    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def newest(self) -> int:
        """Number of the last batch noted; 0: none."""
        if not self.out.exists():
            return 0
        with self.out.open("rb") as out:
            out.seek(max(0, out.seek(0, os.SEEK_END) - 256))
            words = out.read().split(b"\n")[-2:-1]
        return int(words[0].split()[1]) if words and words[0] != b"end" else 0


@dataclass
class Line:
    at_s: float
    number: int
    tries: int
    checksum: tuple[int, int]  # rows and the checksum of the bytes


def read_lines(out: Path) -> list[Line]:
    lines = []
    if not out.exists():
        return lines
    for text in out.read_text().splitlines():
        words = text.split()
        if len(words) == 5:  # a line that was being written at a death is short
            lines.append(
                Line(float(words[0]), int(words[1]), int(words[2]), (int(words[3]), int(words[4])))
            )
    return lines


def members_of(work: Path, pace: Pace) -> list[Member]:
    def member(name: str, group: str, *words: str) -> Member:
        return Member(name, [f"--group={group}", *words], work / f"{name}.lines", pace=pace)

    return [
        member("alone", "alone"),
        member("pair-0", "pair"),
        member("pair-1", "pair"),
        member("slow", "slow", "--times=2"),
        member("ranks-0", "ranks", "--rank=0", "--world=2"),
        member("ranks-1", "ranks", "--rank=1", "--world=2"),
    ]


@dataclass
class Blow:
    at_s: float
    victim: str  # worker, trainer or supervisor
    how: str


@dataclass
class Storm:
    scene: Scene
    run: FeedRun
    members: list[Member]
    seed: int
    victims: list[str]
    rate: float  # blows a second at most
    batches_a_blow: float
    stall_ms: int
    pace: Pace
    watch: LaneWatch | None = None
    blows: list[Blow] = field(default_factory=list)
    struck: set[int] = field(default_factory=set)  # pids that are dead, or will be
    stopped: dict[int, float] = field(default_factory=dict)  # pid: when it goes on
    supervisor_due_s: float = 0.0  # when the next one is started; 0: there is one
    starts: int = 0  # after everything had been killed
    raged: bool = False  # all blows have fallen
    newest_s: float = 0.0  # when a member's file was last seen to grow
    sizes: int = 0
    next_look_s: float = 0.0

    def note(self, victim: str, how: str) -> None:
        self.blows.append(Blow(time.monotonic(), victim, how))

    def total(self) -> int:
        return len(self.blows)

    def kills(self) -> dict[str, int]:
        kinds = sorted(f"{blow.victim} {blow.how}" for blow in self.blows)
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    # What lives.

    def over(self) -> bool:
        """The feed has ended by itself (status 0), or failed."""
        assert self.run.process is not None
        return self.supervisor_due_s == 0 and self.run.process.poll() is not None

    def supervisor(self) -> int:
        """Pid of the one that serves; 0: there is none yet."""
        assert self.run.process is not None
        pid = self.run.process.pid
        if self.supervisor_due_s or pid in self.stopped or self.run.process.poll() is not None:
            return 0
        return pid if f"supervisor {pid} " in self.run.record() else 0

    def strikable(self) -> dict[str, int]:
        """Workers that are neither dying nor stopped, by stage group."""
        workers = self.run.all_workers()
        return {n: p for n, p in workers.items() if p not in self.struck and p not in self.stopped}

    def spared(self, victim: int) -> bool:
        """Without the victim, does a process go on that holds all the memory? A worker that is
        stopped is no such process: the supervisor is about to kill it."""
        assert self.run.process is not None and self.watch is not None
        others = set(self.strikable().values())
        if self.supervisor_due_s == 0:
            others.add(self.run.process.pid)
        return any(self.watch.holds_everything(pid) for pid in others - self.struck - {victim})

    def whole(self) -> bool:
        """Everybody is there who should be, but for those that are stopped."""
        if self.over():
            return True
        assert self.watch is not None
        if not self.supervisor() or not all(m.lives() or m.done for m in self.members):
            return False
        workers = self.run.all_workers()
        if any(pid in self.struck for pid in workers.values()):
            return False
        for group in self.scene.stage_groups:
            pid = workers.get(group, 0)
            if pid not in self.stopped and not self.watch.lanes_of(pid):
                return False
        return True

    # Blows. False: it cannot fall now.

    def strike_supervisor(self, how: str, dice: random.Random) -> bool:
        assert self.run.process is not None
        pid = self.run.process.pid
        if self.supervisor_due_s or pid in self.stopped or not self.spared(pid):
            return False
        if self.run.process.poll() is not None:
            return False
        self.run.process.send_signal(getattr(signal, how))
        self.note("supervisor", how)
        if how == "SIGSTOP":
            self.stopped[pid] = time.monotonic() + 0.3 * dice.random()
            return True
        self.struck.add(pid)
        self.run.process.wait()
        # Sometimes nobody supervises for a while.
        pause_s = 0.5 * dice.random() if dice.random() < 0.3 else 0.0
        self.supervisor_due_s = time.monotonic() + pause_s
        return True

    def strike_worker(self, how: str, dice: random.Random) -> bool:
        assert self.watch is not None
        there = self.strikable()
        groups = self.scene.stage_groups
        group = dice.choices(list(groups), list(groups.values()))[0]
        if group not in there or not self.spared(there[group]):
            return False
        pid = there[group]
        self.watch.struck(group, pid, how)
        try:
            os.kill(pid, getattr(signal, how))
        except ProcessLookupError:
            return False
        self.note("worker", how)
        if how == "SIGSTOP":
            # By then it has been replaced, unless its lanes have finished: such a one may sleep.
            self.stopped[pid] = time.monotonic() + 5 * self.stall_ms / 1000
        else:
            self.struck.add(pid)
        return True

    def strike_trainer(self, how: str, dice: random.Random) -> bool:
        member = self.members[dice.randrange(len(self.members))]
        if not member.lives():
            return False
        assert member.process is not None
        if member.process.pid in self.stopped:
            return False
        member.process.send_signal(getattr(signal, how))
        if how == "SIGSTOP":
            self.stopped[member.process.pid] = time.monotonic() + 0.2 * dice.random()
        self.note("trainer", how)
        return True

    def look_after(self) -> None:
        """Starts again what is dead and lets go on what was stopped."""
        now = time.monotonic()
        for pid, until in list(self.stopped.items()):
            if not runs(pid):
                del self.stopped[pid]
            elif now >= until:
                del self.stopped[pid]
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass
        if self.watch is not None:
            self.watch.look()
        if self.supervisor_due_s and now >= self.supervisor_due_s:
            self.run.start()
            self.supervisor_due_s = 0.0
        if self.over():
            assert self.run.process is not None
            assert self.run.process.returncode == 0, self.state("the feed has failed")
        for member in self.members:
            if member.process is not None and member.process.poll() not in (None, 0):
                assert member.process.returncode == -signal.SIGKILL, self.state(
                    f"trainer {member.name} ended with {member.process.returncode}: "
                    f"{member.out.with_suffix('.log').read_text()[-2000:]}"
                )
                if not self.over():
                    member.start(self.run)
        if now < self.next_look_s:
            return
        self.next_look_s = now + 0.05
        sizes = sum(m.out.stat().st_size for m in self.members if m.out.exists())
        if sizes != self.sizes or self.over():
            self.sizes, self.newest_s = sizes, now
            ahead = self.members[0].newest() > self.batches_a_blow * (self.total() + 10)
            self.pace.set(0.0 if self.raged else self.scene.ahead_ms if ahead else 4.0)
        assert now - self.newest_s < HANG_S, self.state(f"no batch for {HANG_S:.0f} s")

    def until(self, condition: Any, what: str) -> None:
        end = time.monotonic() + HANG_S
        while not condition() and not self.over():
            self.look_after()
            assert time.monotonic() < end, self.state(f"waited {HANG_S:.0f} s for {what}")
            time.sleep(0.002)

    def state(self, what: str) -> str:
        """What went wrong, with all that tells why."""
        status = ""
        try:
            status = self.run.command("status", self.run.feed, "--json").stdout[-4000:]
        except subprocess.TimeoutExpired:
            status = "the supervisor does not answer"
        last = [f"{blow.at_s:.3f} {blow.victim} {blow.how}" for blow in self.blows[-12:]]
        return (
            f"{what}; after {self.total()} blows, the last {last}; now {time.monotonic():.3f}; "
            f"processes {processes_of(self.run)}; status {status}; log {self.run.text()[-6000:]}"
        )

    def rage(self, kills: int) -> None:
        """All the blows, each drawn from its number."""
        assert self.run.process is not None
        self.watch = LaneWatch(self.run, self.run.process.pid)
        weights = self.scene.victims
        due_s = time.monotonic()
        while self.total() < kills and not self.over():
            dice = random.Random(f"{self.seed} {self.total()}")
            victim = dice.choices(self.victims, [weights[victim] for victim in self.victims])[0]
            kinds = self.scene.blows[victim]
            how = dice.choices(list(kinds), list(kinds.values()))[0]
            patient = dice.random() < PATIENT
            due_s = max(due_s, time.monotonic() - 1 / self.rate) + 2 * dice.random() / self.rate
            strike = getattr(self, f"strike_{victim}")
            rest = dice.getstate()

            def falls() -> bool:
                if time.monotonic() < due_s or (patient and not self.whole()):
                    return False
                dice.setstate(rest)
                return strike(how, dice)

            self.until(falls, f"blow {self.total() + 1}, {how} of a {victim}")

    def kill_everything(self, dice: random.Random) -> None:
        """Nobody is left who knows anything: all that goes on is in the files."""
        assert self.run.process is not None
        if self.over():
            return
        pids = [("supervisor", self.run.process.pid)]
        pids += [("worker", pid) for pid in self.run.all_workers().values()]
        pids += [("trainer", m.process.pid) for m in self.members if m.process and m.lives()]
        dice.shuffle(pids)
        for what, pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # a worker that had just done its part
            self.note(what, "SIGKILL")
        self.run.process.wait()
        self.run.start()
        # Unaided: with the same words as ever, and all members get batches again (who dies with the
        # same one in hand max_tries times would not get it). At its end there are none left to get.
        before = {m.name: m.out.stat().st_size if m.out.exists() else 0 for m in self.members}

        def goes_on() -> bool:
            return all(
                m.done or (m.out.exists() and m.out.stat().st_size > before[m.name])
                for m in self.members
            )

        self.until(goes_on, f"batches after start {self.starts + 1}")
        self.starts += 1


def audit(members: list[Member], expected: dict[int, tuple[int, int]]) -> dict[str, int]:
    found = {"lost": 0, "repeated": 0, "torn": 0, "out_of_order": 0, "redelivered": 0}
    for group in sorted({member.name.split("-")[0] for member in members}):
        seen: dict[int, list[Line]] = {}
        for member in members:
            if member.name.split("-")[0] != group:
                continue
            last = 0
            for line in read_lines(member.out):
                seen.setdefault(line.number, []).append(line)
                if line.number < last and line.tries == 0:
                    found["out_of_order"] += 1
                last = max(last, line.number)
        found["lost"] += len(expected.keys() - seen.keys())
        found["torn"] += sum(
            line.checksum != expected.get(line.number) for lines in seen.values() for line in lines
        )
        for lines in seen.values():
            again = sorted(line.tries for line in lines)
            # The same batch twice with the same count of tries: two members were given it.
            found["repeated"] += len(again) - len(set(again))
            found["redelivered"] += len(set(again)) - 1
    return found


def gaps(members: list[Member], blows: list[Blow]) -> dict[str, dict[str, float]]:
    """Per death of a stage: the longest time between two batches of the member alone that ended
    after it and began before the next blow, at most a second later. Apart: of stages that were
    stopped, and of those that died less than a second after such a one."""
    times = sorted(
        line.at_s for member in members if member.name == "alone" for line in read_lines(member.out)
    )
    found: dict[str, list[float]] = {"killed": [], "stopped": []}
    stopped_s = -1.0
    for blow, following in zip(blows, [*blows[1:], None]):
        if blow.victim != "worker":
            continue
        if blow.how == "SIGSTOP":
            stopped_s = blow.at_s
        until = min(blow.at_s + 1.0, following.at_s if following else blow.at_s + 1.0)
        first = max(0, bisect.bisect_right(times, blow.at_s) - 1)
        after = []
        for before, next_one in zip(times[first:], times[first + 1 :]):
            if before >= until:
                break
            after.append(next_one - before)
        if after:
            stops = blow.at_s - stopped_s < 1.0
            found["stopped" if stops else "killed"].append(max(after))
    found["between any two"] = [b - a for a, b in zip(times, times[1:])]
    return {name: spread(values) for name, values in found.items()}


def returns(watch: LaneWatch | None, groups: Iterable[str]) -> dict[str, dict[str, float]]:
    """From the blow to new lanes and to their first step, of groups not struck again before."""
    back = [one for one in watch.back if not one.again] if watch is not None else []
    found = {}
    for name, ones in {
        "killed": [one for one in back if one.how != "SIGSTOP"],
        "stopped": [one for one in back if one.how == "SIGSTOP"],
    }.items():
        found[f"{name}, attached"] = spread([one.attached_s - one.struck_s for one in ones])
        found[f"{name}, first step"] = spread([one.stepped_s - one.struck_s for one in ones])
    for group in groups:
        ones = [one for one in back if one.group == group and one.how != "SIGSTOP"]
        found[f"{group}, first step"] = spread([one.stepped_s - one.struck_s for one in ones])
    return found


def undisturbed(
    work: Path, data: Path, epochs: int, settings: dict[str, Any]
) -> dict[int, tuple[int, int]]:
    """What each batch of such a feed is, by number, when nobody dies."""
    work.mkdir(exist_ok=True)
    run = FeedRun(work, data, epochs=epochs, **settings)
    member = Member("alone", ["--group=alone"], work / "alone.lines")
    try:
        run.start()
        member.start(run)
        assert member.process is not None
        assert member.process.wait(3600) == 0, member.out.with_suffix(".log").read_text()
        assert run.wait() == 0, run.text()
    finally:
        run.close()
    return {line.number: line.checksum for line in read_lines(member.out)}


def arguments_of(scene: type[Scene]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=sys.modules[scene.__module__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--pause-ms",
        type=float,
        help="work of a trainer per batch; default: as the storm likes, so that the feed lasts",
    )
    parser.add_argument(
        "--victims",
        default=",".join(scene.victims),
        help=f"some of {', '.join(scene.victims)}; a gap that a trainer sees after a stage's death "
        "is told only by workers alone: a dead trainer holds up the others' feed until it is back",
    )
    parser.add_argument("--rate", type=float, default=12.0, help="blows a second at most")
    parser.add_argument("--stall-ms", type=int, default=STALL_MS)
    parser.add_argument(
        "--batches-per-kill",
        type=float,
        default=5.0,
        help="how long the feed is: with --pause-ms it must last for all the kills",
    )
    parser.add_argument(
        "--everything", action="store_true", help="all processes at once, instead of one at a time"
    )
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def strike(storm: Storm, arguments: argparse.Namespace) -> tuple[float, int, str]:
    """All the blows, and then the feed's end: the seconds that the blows took, the exit status of
    the supervisor and what it said.
    """
    run = storm.run
    try:
        run.start()
        for member in storm.members:
            member.start(run)
        wait_until(lambda: read_lines(storm.members[0].out), "the first batch")
        began = storm.newest_s = time.monotonic()
        if arguments.everything:
            while storm.total() < arguments.kills and not storm.over():
                dice = random.Random(f"{arguments.seed} {storm.total()}")
                storm.kill_everything(dice)
                time.sleep(dice.random() * 0.1)
        else:
            storm.rage(arguments.kills)
        raged_s = time.monotonic() - began
        storm.raged = True
        # The last blow may have been the supervisor's: somebody has to end the feed.
        while storm.supervisor_due_s or not all(member.done for member in storm.members):
            storm.look_after()
            if storm.over() and not any(member.lives() for member in storm.members):
                break
            time.sleep(0.01)
        return raged_s, run.wait(120), run.text()
    finally:
        for member in storm.members:
            if member.lives():
                assert member.process is not None
                member.process.kill()
                member.process.wait()
        run.close()


def storm_in(
    work: Path,
    arguments: argparse.Namespace,
    scene_type: type[Scene],
    storm_type: type[Storm],
) -> int:
    """The storm in a folder of its own. 0: nothing was lost, repeated or left behind."""
    started = time.monotonic()
    scene = scene_type(work, arguments.stall_ms)
    per_kill = arguments.batches_per_kill / (4 if arguments.everything else 1)
    # Trainers slow down when they are ten blows ahead; the last blows may take long to fall.
    epochs = max(3, math.ceil((arguments.kills + 60) * per_kill / scene.batches_an_epoch))
    calm = work / "undisturbed"
    reference = {**scene.settings_in(calm), "groups": 'groups { name: "alone" }'}
    expected = undisturbed(calm, scene.data, epochs, reference)
    prepared_s = time.monotonic() - started
    storm_dir = work / "storm"
    storm_dir.mkdir()
    settings = scene.settings_in(storm_dir)
    segments: Path | None = None
    if arguments.everything:
        segments = storm_dir / "segments"
        segments.mkdir()
        settings["extra"] += f'storage {{ directory: "{segments}" }}'
    run = FeedRun(storm_dir, scene.data, epochs=epochs, **settings)
    pace = Pace(arguments.pause_ms)
    storm = storm_type(
        scene,
        run,
        members_of(storm_dir, pace),
        arguments.seed,
        arguments.victims.split(","),
        arguments.rate,
        per_kill,
        arguments.stall_ms,
        pace,
    )
    raged_s, status, text = strike(storm, arguments)
    if status != 0:
        print(text[-4000:], file=sys.stderr)
    found = audit(storm.members, expected)
    left = remains(run, segments)
    scene.close()
    wrong = scene.wrong((calm / f"{run.feed}.log").read_text(errors="replace"), text)
    report = {
        "seed": arguments.seed,
        "kills": storm.kills(),
        "kills_a_second": round(storm.total() / raged_s, 1),
        "batches": len(expected),
        "groups": 4,
        "trainer_starts": sum(member.starts for member in storm.members),
        **found,
        "dead_letters": text.count("dead_letter "),
        "started_anew": text.count(" feed_started ") - 1,
        "adoptions": text.count(" feed_adopted "),
        "starts_after_everything": storm.starts,
        "gaps": gaps(storm.members, storm.blows),
        "returns": returns(storm.watch, scene.stage_groups),
        "left_behind": left,
        "wrong": wrong,
        "seconds": round(time.monotonic() - started, 1),
        "seconds_undisturbed": round(prepared_s, 1),
        "seconds_of_blows": round(raged_s, 1),
        "exit_status": status,
    }
    print(json.dumps(report, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))
    bad = found["lost"] + found["repeated"] + found["torn"] + found["out_of_order"] + len(left)
    enough = storm.total() >= arguments.kills
    print(
        f"storm: {storm.total()} kills, {len(expected)} batches to 4 groups: "
        f"{found['lost']} lost, {found['repeated']} repeated, {found['torn']} torn, "
        f"{found['out_of_order']} out of order, {len(left)} left behind"
        + ("" if enough else "; the feed ended before all kills were made")
    )
    for sentence in wrong:
        print(f"storm: {sentence}")
    bad += report["dead_letters"] + report["started_anew"] + len(wrong)
    return 0 if status == 0 and bad == 0 and enough else 1


def main(scene: type[Scene] = Scene, storm: type[Storm] = Storm) -> int:
    """One storm, as the command line says; its exit status."""
    be_careful()
    arguments = arguments_of(scene)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # thousands of them would fill the disk
    work = Path(tempfile.mkdtemp(prefix="rf-storm-"))
    try:
        return storm_in(work, arguments, scene, storm)
    finally:
        if os.environ.get("RINGFEED_KEEP") != "1":
            shutil.rmtree(work, ignore_errors=True)
        else:
            print(f"kept: {work}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
