"""Kills workers, warm parents, supervisors and trainers of a ringfeed.torch loader, and audits.

    python tests/crash/loader_storm.py --loader 1000 [--seed 1] [--victims LIST] [--json FILE]

Rounds of some dozens of blows. Each has a trainer (loader_trainer.py) over another dataset (by
index, by many indices, iterable with and without a state, each with PyTorch's collate_fn and one of
its own) and other arguments of the loader, which the seed draws. First the trainer runs
undisturbed, over ringfeed's loader and over PyTorch's own or torchdata's. Then it runs in the
storm; its lines have to be the same, byte for byte.

Workers get signals (SIGSTOP is ended by stall_timeout, or by a SIGCONT before), and orders which
they carry out at their next sample or batch: os._exit, a segfault in ctypes, an abort, a loop
without end, an allocation without end. Warm parents and supervisors get SIGKILL, or SIGSTOP for a
while; some while they start others, or with a worker at once. Trainers get SIGKILL, some with their
supervisor at once, and are started again: they go on from their last state.

Three of four blows wait until all is whole again. The feed's memory is gone with the last process
that holds it: a blow that would hit that one waits (--everything: it does not).

After a round no process may be left, and no directory of the loader's.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import storm_stage  # noqa: E402
from python_storm import control_group  # noqa: E402

from tests.support.feeds.feed_run import runs  # noqa: E402
from tests.support.feeds.feed_watch import segments_of  # noqa: E402
from tests.support.rig.careful import be_careful  # noqa: E402

HERE = Path(__file__).resolve().parent
WORKERS = 3
STALL_S = 1.0
HANG_S = 60.0  # a trainer without a new line for so long does not go on by itself
ORPHANS_S = 75.0  # workers without anybody end by themselves after a minute
PATIENT = 0.75  # of the blows wait until all is whole again
BLOWS_A_ROUND = 40
BATCHES_A_BLOW = 5
BATCHES_AN_EPOCH = 115
AHEAD_MS = 200  # work of a trainer for a batch, when the data would not last
FEED = "loader"
PACE = storm_stage.ORDERS - 1  # the byte of the orders with it
ORDERS = {
    "exit": storm_stage.EXIT,
    "segfault": storm_stage.SEGFAULT,
    "abort": storm_stage.ABORT,
    "loop": storm_stage.LOOP,
    "hog": storm_stage.HOG,
}
VICTIMS = {"worker": 6, "parent": 2, "supervisor": 2, "trainer": 1}
BLOWS = {
    "worker": {
        **{"SIGKILL": 30, "SIGSEGV": 5, "SIGBUS": 5, "SIGABRT": 5, "SIGSTOP": 6, "all": 5},
        **{"exit": 10, "segfault": 10, "abort": 5, "loop": 4, "hog": 6},
    },
    # fork: a worker is killed, and then the parent which is to make its successor.
    "parent": {"SIGKILL": 50, "SIGSTOP": 25, "fork": 25},
    # start: one is killed, and its successor while it starts; both: with a worker.
    "supervisor": {"SIGKILL": 50, "SIGSTOP": 20, "start": 15, "both": 15},
    # family: with its supervisor.
    "trainer": {"SIGKILL": 60, "SIGSTOP": 20, "family": 20},
}


@dataclass
class Case:
    """Of a round: the trainer's words."""

    dataset: str
    own_collate: bool
    persistent: bool
    stateful: bool
    context: str
    prefetch: int
    seed: int
    epochs: int

    def words(self) -> list[str]:
        return [
            f"--dataset={self.dataset}",
            f"--seed={self.seed}",
            f"--epochs={self.epochs}",
            f"--context={self.context}",
            f"--prefetch={self.prefetch}",
            *(["--own-collate"] if self.own_collate else []),
            *(["--persistent"] if self.persistent else []),
            *(["--stateful"] if self.stateful else []),
        ]


def case_of(seed: int, number: int, blows: int) -> Case:
    dice = random.Random(f"{seed} case {number}")
    kinds = ["rows", "stream", "items", "kept_stream", "rows", "kept"]
    return Case(
        dataset=kinds[number % len(kinds)],
        own_collate=dice.random() < 0.5,
        persistent=dice.random() < 0.5,
        stateful=dice.random() < 0.5,
        context="spawn" if dice.random() < 0.15 else "fork",
        prefetch=dice.choice((1, 2, 2, 4)),
        seed=dice.randrange(1 << 30),
        epochs=max(2, -(-(blows + 20) * BATCHES_A_BLOW // BATCHES_AN_EPOCH)),
    )


@dataclass
class Seen:
    """One process of /proc."""

    pid: int
    state: str
    ppid: int
    session: int

    def command(self) -> bytes:
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return b""


def all_processes() -> list[Seen]:
    """Those that run."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            words = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if words[0] not in (b"Z", b"X"):
            found.append(Seen(int(name), words[0].decode(), int(words[1]), int(words[3])))
    return found


@dataclass
class Family:
    """A trainer and all that belongs to it."""

    supervisors: list[Seen] = field(default_factory=list)
    parents: list[Seen] = field(default_factory=list)
    workers: list[Seen] = field(default_factory=list)


@dataclass
class Count:
    """Open files and memory of a process, as the storm saw them."""

    first: int
    last: int
    most: int


class Storm:
    """One round."""

    def __init__(self, arguments: argparse.Namespace, number: int, blows: int, work: Path) -> None:
        self.arguments = arguments
        self.number = number
        self.wanted = blows
        self.victims = arguments.victims.split(",")
        self.case = case_of(arguments.seed, number, blows)
        self.work = work
        self.tmp = work / "tmp"
        self.tmp.mkdir(parents=True)
        self.lines = work / "lines"
        self.log = work / "trainer.log"
        self.orders_file = work / "orders"
        self.orders_file.write_bytes(bytes(storm_stage.ORDERS))
        self.orders = storm_stage.mapped(str(self.orders_file))
        self.group = control_group()
        self.process: subprocess.Popen[bytes] | None = None
        self.sessions: list[int] = []  # of all trainers until now
        self.blows: list[tuple[float, str]] = []
        self.struck: set[int] = set()
        self.stopped: dict[int, float] = {}  # pid: when it goes on
        self.hogs: dict[int, int] = {}  # pid: KiB that it had before
        self.segments: dict[str, set[str]] = {}  # of the feed of a supervisor, by its directory
        self.files: dict[tuple[str, int], Count] = {}
        self.abandoned = 0  # loaders of which nobody is left to remove the directory
        self.notes: list[str] = []
        self.grown_s = 0.0
        self.size = -1
        self.next_look_s = 0.0
        self.next_count_s = 0.0
        self.raged = False
        self.longest_s = 0.0  # without a line

    # ---- trainers

    def words(self, *more: str, calm: Path | None = None) -> list[str]:
        words = [sys.executable, str(HERE / "loader_trainer.py"), *self.case.words()]
        place = calm or self.work
        return [
            *words,
            f"--out={place / 'lines'}",
            f"--orders={self.orders_file}",
            f"--stall-s={STALL_S if calm is None else 600}",
            f"--group={self.group or ''}",
            f"--figures={place / 'figures'}",
            *more,
        ]

    def environment(self, place: Path) -> dict[str, str]:
        (place / "tmp").mkdir(exist_ok=True)
        return dict(os.environ, TMPDIR=str(place / "tmp"), OMP_NUM_THREADS="1")

    def start(self) -> None:
        state = [f"--state={self.work / 'state'}"] if self.keeps_state() else []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.words(*state),
                env=self.environment(self.work),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.sessions.append(self.process.pid)
        self.grown_s = time.monotonic()

    def keeps_state(self) -> bool:
        return "trainer" in self.victims

    def undisturbed(self, name: str, *more: str) -> bytes:
        place = self.work / name
        place.mkdir()
        if self.keeps_state() and not more:
            more = (f"--state={place / 'state'}",)
        done = subprocess.run(
            self.words(*more, calm=place),
            env=self.environment(place),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        return (place / "lines").read_bytes()

    # ---- what lives

    @property
    def trainer(self) -> int:
        assert self.process is not None
        return self.process.pid

    def over(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None and self.trainer not in self.struck

    def family(self) -> Family:
        """Of the trainer that lives, without those that are dead already in all but name."""
        found = Family()
        processes = all_processes()
        # Warm parents are the trainer's children, or those of the zygote that it has spawned.
        zygotes = [
            one.pid
            for one in processes
            if one.ppid == self.trainer
            and one.session == self.trainer
            and self.case.context == "spawn"
        ]
        for one in processes:
            if one.pid in (*self.struck, *zygotes, self.trainer):
                continue
            if one.ppid == self.trainer and one.session != self.trainer:
                if os.fsencode(self.tmp) in one.command():
                    found.supervisors.append(one)
            elif one.session == self.trainer:
                if one.ppid not in (self.trainer, *zygotes):
                    found.workers.append(one)
                elif b"resource_tracker" not in one.command():
                    found.parents.append(one)
        return found

    def grew(self) -> bool:
        return self.size > 0 and self.grown_s > (self.blows[-1][0] if self.blows else 0)

    def whole(self) -> bool:
        if self.over():
            return True
        if self.trainer in self.struck or self.stopped or self.orders[: 2 * WORKERS].strip(b"\0"):
            return False
        all_ = self.family()
        return (
            self.grew()
            and len(all_.supervisors) == 1
            and len(all_.parents) == 1
            and len(all_.workers) == WORKERS
        )

    def spared(self, victims: set[int], all_: Family) -> bool:
        """Without these, does somebody go on who has all of the feed's memory?"""
        if self.arguments.everything:
            return True
        if not all_.workers and not has_begun(self.trainer):
            return True
        held = {one.pid: set(segments_of(one.pid, FEED)) for one in all_.workers}
        held |= {one.pid: set(segments_of(one.pid, FEED)) for one in all_.supervisors}
        names = set().union(*held.values())
        return any(
            have >= names for pid, have in held.items() if pid not in victims | set(self.stopped)
        )

    # ---- blows. False: it cannot fall now.

    def note(self, victim: str, how: str) -> None:
        self.blows.append((time.monotonic(), f"{victim} {how}"))

    def kill(self, pids: set[int], sig: int = signal.SIGKILL) -> None:
        for pid in pids:
            self.struck.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)

    def stop(self, pid: int, seconds: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self.stopped[pid] = time.monotonic() + seconds

    def a_worker(self, all_: Family, dice: random.Random) -> int:
        there = [one.pid for one in all_.workers if one.pid not in self.stopped]
        return dice.choice(there) if there else 0

    def strike_worker(self, how: str, dice: random.Random) -> bool:
        all_ = self.family()
        if how in ORDERS:
            return self.order(how, all_, dice)
        if how == "all":
            pids = {one.pid for one in all_.workers}
            if len(pids) < 2 or not self.spared(pids, all_):
                return False
            self.kill(pids)
            return True
        pid = self.a_worker(all_, dice)
        if not pid or not self.spared({pid}, all_):
            return False
        if how == "SIGSTOP":
            self.stop(pid, STALL_S * dice.choice((0.3, 5.0)))
        else:
            self.kill({pid}, getattr(signal, how))
        return True

    def order(self, how: str, all_: Family, dice: random.Random) -> bool:
        if not all_.workers or not self.spared({one.pid for one in all_.workers}, all_):
            return False
        index = dice.randrange(2 * WORKERS if self.case.own_collate else WORKERS)
        before = {one.pid: anonymous_kib(one.pid) for one in all_.workers}
        self.orders[index] = ORDERS[how]
        end = time.monotonic() + 2
        while self.orders[index]:
            self.look_after()
            if time.monotonic() > end or self.over():
                self.orders[index] = 0
                return False
            time.sleep(0.002)
        if how == "hog" and self.group is None:
            self.hogs = before
        return True

    def strike_parent(self, how: str, dice: random.Random) -> bool:
        all_ = self.family()
        there = [one.pid for one in all_.parents if one.pid not in self.stopped]
        if not there:
            return False
        pid = dice.choice(there)
        if how == "SIGSTOP":
            self.stop(pid, 1.2 * dice.random())
            return True
        if how == "fork":
            worker = self.a_worker(all_, dice)
            if not worker or not self.spared({worker}, all_):
                return False
            self.kill({worker})
            time.sleep(0.03 * dice.random())
        self.kill({pid})
        return True

    def strike_supervisor(self, how: str, dice: random.Random) -> bool:
        all_ = self.family()
        there = [one.pid for one in all_.supervisors if one.pid not in self.stopped]
        if not there:
            return False
        pids = {dice.choice(there)}
        if how == "both":
            worker = self.a_worker(all_, dice)
            if not worker:
                return False
            pids.add(worker)
        if not self.spared(pids, all_):
            return False
        if how == "SIGSTOP":
            self.stop(pids.pop(), 0.5 * dice.random())
            return True
        self.kill(pids)
        if how == "start":
            end = time.monotonic() + 3
            while time.monotonic() < end and not self.over():
                after = self.family()
                if after.supervisors:
                    time.sleep(0.06 * dice.random())
                    another = {one.pid for one in after.supervisors}
                    if self.spared(another, after):
                        self.kill(another)
                    break
                time.sleep(0.002)
        return True

    def strike_trainer(self, how: str, dice: random.Random) -> bool:
        pid = self.trainer
        if pid in self.struck or pid in self.stopped or self.over():
            return False
        if how == "SIGSTOP":
            self.stop(pid, 0.5 * dice.random())
            return True
        pids = {pid}
        if how == "family":
            all_ = self.family()
            pids |= {one.pid for one in all_.supervisors}
            self.abandoned += not all_.parents or not serves(pid)
        self.kill(pids)
        return True

    # ---- meanwhile

    def look_after(self) -> None:
        """Whoever was stopped goes on, whoever is dead is replaced, and files are counted."""
        now = time.monotonic()
        for pid, at in list(self.stopped.items()):
            if now >= at or not runs(pid):
                del self.stopped[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        assert self.process is not None
        if self.trainer in self.struck and self.process.poll() is not None:
            self.start()
        if now < self.next_look_s:
            return
        self.next_look_s = now + 0.02
        for pid, before in list(self.hogs.items()):
            if not runs(pid):
                del self.hogs[pid]
            elif anonymous_kib(pid) - before > storm_stage.HOG_BYTES // 1024:
                self.kill({pid})
        size = self.lines.stat().st_size if self.lines.exists() else 0
        if size != self.size:
            if self.size > 0:
                self.longest_s = max(self.longest_s, now - self.grown_s)
            self.size, self.grown_s = size, now
        ahead = self.newest() > BATCHES_A_BLOW * (len(self.blows) + 6)
        self.orders[PACE] = 0 if self.raged else AHEAD_MS if ahead else 3
        if now - self.grown_s > HANG_S:
            raise AssertionError(self.describe(f"no line for {HANG_S:.0f} s"))
        if now >= self.next_count_s:
            self.next_count_s = now + 0.5
            self.count()

    def newest(self) -> int:
        return self.lines.read_bytes().count(b"\n") if self.size > 0 else 0

    def count(self) -> None:
        all_ = self.family()
        pids = [("trainer", self.trainer)] + [("parent", one.pid) for one in all_.parents]
        for kind, pid in pids + [("supervisor", one.pid) for one in all_.supervisors]:
            with contextlib.suppress(OSError):
                files = len(os.listdir(f"/proc/{pid}/fd"))
                one = self.files.setdefault((kind, pid), Count(files, files, files))
                one.last, one.most = files, max(one.most, files)

    def describe(self, what: str) -> str:
        """What went wrong, with all that tells why."""
        pids = [self.trainer, *(one.pid for one in self.family().parents)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1)
        processes = "\n".join(
            f"  {one.pid} of {one.ppid} {one.state} {wait_of(one.pid)} {one.command()[:100]!r}"
            for one in all_processes()
            if one.session in self.sessions or os.fsencode(self.tmp) in one.command()
        )
        logs = "".join(
            f"--- {log}\n{log.read_text(errors='replace')[-5000:]}\n"
            for log in self.tmp.glob("ringfeed-*/supervisor.log")
        )
        logs += "".join(status_of(log) for log in self.tmp.glob("ringfeed-*"))
        logs += requests_of(self.trainer)
        if shutil.which("gdb"):
            for one in self.family().workers:
                words = ["gdb", "-p", str(one.pid), "-batch", "-ex", "thread apply all bt 12"]
                done = subprocess.run(words, capture_output=True, text=True)
                logs += f"--- {one.pid}\n" + "".join(
                    line + "\n" for line in done.stdout.splitlines() if line.startswith("#")
                )
        now = time.monotonic()
        last = [f"{at - now:.2f} {blow}" for at, blow in self.blows[-10:]]
        return (
            f"{what}: round {self.number} {self.case}, {len(self.blows)} blows, the last {last}, "
            f"{self.newest()} lines\n{processes}\n{logs}\n"
            f"--- trainer\n{self.log.read_text(errors='replace')[-6000:]}"
        )

    def until(self, condition: Callable[[], bool]) -> None:
        while not self.over() and not condition():
            self.look_after()
            time.sleep(0.004)

    def rage(self) -> None:
        """All the blows, each drawn from its number."""
        self.until(lambda: self.size > 0)
        due_s = time.monotonic()
        while len(self.blows) < self.wanted and not self.over():
            dice = random.Random(f"{self.arguments.seed} {self.number} {len(self.blows)}")
            victim = dice.choices(self.victims, [VICTIMS[one] for one in self.victims])[0]
            how = dice.choices(list(BLOWS[victim]), list(BLOWS[victim].values()))[0]
            patient = dice.random() < PATIENT
            due_s = max(due_s, time.monotonic() - 0.1) + 2 * dice.random() / self.arguments.rate
            strike = getattr(self, f"strike_{victim}")
            rest = dice.getstate()

            def falls() -> bool:
                if time.monotonic() < due_s or (patient and not self.whole()):
                    return False
                dice.setstate(rest)
                return bool(strike(how, dice))

            self.until(falls)
            if not self.over():
                self.note(victim, how)

    # ---- a round

    def run(self) -> dict[str, Any]:
        """What came of it; "wrong" has all that should not be."""
        began = time.monotonic()
        expected = self.undisturbed("calm")
        wrong = []
        if self.case.stateful and importlib.util.find_spec("torchdata") is None:
            pass  # nothing to compare with
        elif expected != self.undisturbed("pytorch", "--pytorch"):
            wrong.append("undisturbed, it does not give PyTorch's batches")
        raging = time.monotonic()
        try:
            self.start()
            self.rage()
            raged = time.monotonic()
            self.raged = True
            self.until(self.over)
            assert self.process is not None
            if self.process.returncode != 0:
                wrong.append(self.describe(f"the trainer ended with {self.process.returncode}"))
        except AssertionError as error:
            raged = time.monotonic()
            wrong.append(str(error))
        finally:
            left, waited_s = self.end()
        wrong += left
        found = self.lines.read_bytes() if self.lines.exists() else b""
        if found != expected:
            wrong.append(first_difference(expected, found))
        kinds = sorted(blow for _, blow in self.blows)
        figures = self.work / "figures"
        return {
            "case": vars(self.case),
            "blows": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
            "batches": expected.count(b"\n"),
            "equal": found == expected,
            "trainers": len(self.sessions),
            "trainer": json.loads(figures.read_text()) if figures.exists() else None,
            "trainer_calm": json.loads((self.work / "calm" / "figures").read_text()),
            "files": {
                kind: max(
                    (vars(one) for (k, _), one in self.files.items() if k == kind),
                    key=lambda one: int(one["most"]) - int(one["first"]),
                    default=None,
                )
                for kind in ("trainer", "parent", "supervisor")
            },
            "abandoned": self.abandoned,
            "directories_left": len(list(self.tmp.glob("ringfeed-*"))),
            "slow_to_end": self.notes,
            "waited_for_end_s": round(waited_s, 1),
            "longest_without_a_batch_s": round(self.longest_s, 2),
            "seconds": round(time.monotonic() - began, 1),
            "seconds_of_blows": round(raged - raging, 1),
            "wrong": wrong,
        }

    def remaining(self) -> list[Seen]:
        mark = os.fsencode(self.tmp)
        return [
            one
            for one in all_processes()
            if one.session in self.sessions or (one.pid != os.getpid() and mark in one.command())
        ]

    def end(self) -> tuple[list[str], float]:
        """Waits until all is gone; tells what is not."""
        wrong = []
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        began = time.monotonic()
        slow: list[str] = []
        while (left := self.remaining()) and time.monotonic() - began < ORPHANS_S:
            time.sleep(0.05)
            if not slow and time.monotonic() - began > 1:
                slow = [f"{one} {wait_of(one.pid)} {one.command()[:60]!r}" for one in left]
                self.notes += slow
                if self.arguments.verbose:
                    print(self.describe("slow end"))
        waited_s = time.monotonic() - began
        for one in left:
            wrong.append(f"left behind: {one} {one.command()[:200]!r} {wait_of(one.pid)}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        directories = list(self.tmp.glob("ringfeed-*"))
        if len(directories) > self.abandoned:
            wrong.append(f"left behind: {[str(one) for one in directories]}")
        others = [one.name for one in self.tmp.iterdir() if one not in directories]
        if others:
            wrong.append(f"left behind: {others}")
        if self.group is not None:
            with contextlib.suppress(OSError):
                self.group.rmdir()
        return wrong, waited_s


def anonymous_kib(pid: int) -> int:
    """Memory of its own of a process."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s+(\d+)", text)
    return int(found[1]) if found else 0


def serves(trainer: int) -> bool:
    """Has a warm parent of its loaders come so far that it removes what they leave? (_job.Bond)"""
    return any(table[-(16 * WORKERS + 24) + 3] for table in request_tables(trainer))


def wait_of(pid: int) -> str:
    """Where in the kernel it waits."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""


def status_of(directory: Path) -> str:
    """What the supervisor says."""
    program = Path(os.environ.get("RINGFEED_BIN_DIR", "")) / "ringfeed"
    words = [str(program), "status", FEED, "--json"]
    environment = dict(os.environ, RINGFEED_SOCKET_DIR=str(directory))
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=10)
        return f"--- {directory}\n{done.stdout}{done.stderr}\n"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"--- {directory}: {error}\n"


def request_tables(trainer: int) -> list[bytes]:
    """Of its loaders (shm/include/ringfeed/shm/requests.h), with the words behind them."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{trainer}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).startswith("/memfd:ringfeed-requests"):
                    found.append(Path(entry.path).read_bytes())
    return found


def has_begun(trainer: int) -> bool:
    """Has a worker of its feed ever begun? From then on, the feed is lost with its memory."""
    behind = 16 * WORKERS + 16  # from the end: the feed that workers have seen, 0 for none
    return any(table[-behind:][:8].strip(b"\0") for table in request_tables(trainer))


def requests_of(trainer: int) -> str:
    """The newest requests of its loaders: number and kind."""
    text = ""
    for table in request_tables(trainer):
        count = struct.unpack_from("<3Q", table)[1]
        rows = [struct.unpack_from("<4Q", table, 64 + 64 * entry) for entry in range(count)]
        newest = sorted((seq, kind) for seq, _, _, kind in rows)[-24:]
        text += f"--- requests: {newest}\n"
    return text


def first_difference(expected: bytes, found: bytes) -> str:
    rows = zip(expected.splitlines(), found.splitlines())
    for number, (a, b) in enumerate(rows):
        if a != b:
            return f"line {number} is {b!r}, and {a!r} undisturbed"
    there, due = found.count(b"\n"), expected.count(b"\n")
    return f"{there} lines, and {due} undisturbed"


def main() -> int:
    """All rounds; 0: all is as it should be."""
    be_careful()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loader", type=int, default=100, help="blows in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--victims", default=",".join(VICTIMS))
    parser.add_argument("--rate", type=float, default=8.0, help="blows a second at most")
    parser.add_argument("--first-round", type=int, default=0, help="to see one again")
    parser.add_argument("--everything", action="store_true", help="the feed's memory is not spared")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["RINGFEED_PYTHON"] = sys.executable
    work = Path(tempfile.mkdtemp(prefix="rf-ls-"))
    rounds: list[dict[str, Any]] = []
    number, done = arguments.first_round, 0
    began = time.monotonic()
    try:
        while done < arguments.loader:
            # Two rounds at least: a dataset by index, and an iterable one.
            blows = min(BLOWS_A_ROUND, -(-arguments.loader // 2), arguments.loader - done)
            one = Storm(arguments, number, blows, work / str(number)).run()
            rounds.append(one)
            fallen = sum(one["blows"].values())
            done += fallen
            print(json.dumps({**one, "wrong": len(one["wrong"])}), flush=True)
            for what in one["wrong"]:
                print(f"storm: round {number}: {what}", flush=True)
            if not fallen:
                break
            if not one["wrong"]:
                shutil.rmtree(work / str(number), ignore_errors=True)
            number += 1
    finally:
        if os.environ.get("RINGFEED_KEEP") != "1":
            shutil.rmtree(work, ignore_errors=True)
        else:
            print(f"kept: {work}", file=sys.stderr)
    bad = [one for one in rounds if one["wrong"] or not one["equal"]]
    total: dict[str, int] = {}
    for one in rounds:
        for kind, count in one["blows"].items():
            total[kind] = total.get(kind, 0) + count
    report = {
        "seed": arguments.seed,
        "blows": total,
        "rounds": rounds,
        "seconds": round(time.monotonic() - began, 1),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))
    batches = sum(one["batches"] for one in rounds)
    print(
        f"storm: {done} blows over {len(rounds)} loaders, {batches} batches: "
        f"{len(rounds) - len(bad)} runs as undisturbed, {len(bad)} not"
    )
    return 1 if bad or done < arguments.loader else 0


if __name__ == "__main__":
    sys.exit(main())
