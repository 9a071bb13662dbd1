"""Real feeds for tests: `ringfeed run` with a directory of its own, and trainers in processes of
their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.feeds import standstill

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(os.environ.get("RINGFEED_BIN_DIR", ROOT / "build" / "release" / "bin"))
WAIT_S = 300.0  # longest wait for anything; a test that needs it has failed
STARTED: list[FeedRun] = []  # and not closed; what a wait that is given up tells of


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """The first true value of `condition`, looked at until then. AssertionError, with what each
    process of the test's feeds does: there was none in time.
    """
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout_s:.0f} s for {what}\n{standing_still()}")
        time.sleep(0.01)


def standing_still() -> str:
    """What can be seen from outside of the feeds that have been started: standstill.py."""
    return "\n".join(standstill.of_feed(run, processes_of(run)) for run in STARTED)


def runs(pid: int) -> bool:
    """Is there such a process, other than as a zombie that whoever adopted it has yet to reap?"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # gone, also between opening and reading
        return False
    fields = stat.rpartition(")")[2].split()
    # The first of its threads is a zombie while others are still ending, with its files and locks.
    return fields[0] not in ("Z", "X") or int(fields[17]) > 1


def stop(pid: int) -> None:
    """SIGSTOP, and waits until each thread stands: the others run on until one of them has the signal."""
    os.kill(pid, signal.SIGSTOP)

    def stands() -> bool:
        tasks = Path(f"/proc/{pid}/task").glob("*/stat")
        return all(one.read_text().rpartition(")")[2].split()[0] == "T" for one in tasks)

    wait_until(stands, f"process {pid} to stand")


PIPELINE = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" queue_capacity: 64 }} }}
stages {{ name: "loader" chunk_source_loader {{ input: "provider" threads: {loaders} }} }}
stages {{ name: "pool" shuffling_chunk_pool {{ input: "loader" chunk_pool_size: {pool} threads: {readers} {in_pool} }} }}
{between}
stages {{ name: "unpacker" chunk_unpacker {{
  input: "{chunks_from}" threads: {unpackers} {unpack} queue_capacity: 512 }} }}
stages {{ name: "sampler" shuffling_frame_sampler {{
  input: "unpacker" reservoir_size_per_thread: {reservoir} queue_capacity: 512 }} }}
stages {{ name: "tensors" tensor_generator {{ input: "sampler" threads: {generators} batch_size: {batch} {tensors} }} }}
feed_output {{ slots: {slots} dispatch: {dispatch} {groups} }}
{extra}
"""

DEFAULTS: dict[str, Any] = {
    "feed": "lc0",
    "seed": 7,
    "epochs": 1,
    "loaders": 1,
    "readers": 1,
    "unpackers": 1,
    "generators": 1,
    "pool": 100000,
    "in_pool": "",
    "between": "",  # stages from pool to unpacker, and the last of them
    "chunks_from": "pool",
    "rate": 1.0,
    "reservoir": 2000,
    "batch": 256,
    "tensors": "",
    "slots": 6,
    "dispatch": "ORDERED",
    "groups": "",
    "extra": "",
}


class FeedRun:
    """One `ringfeed run` with a socket directory of its own."""

    def __init__(self, work: Path, directory: Path, **settings: Any) -> None:
        self.work = work
        self.feed = settings.get("feed", "lc0")
        self.sockets = work / "sockets"
        self.config = work / f"{self.feed}.textproto"
        values = {**DEFAULTS, "directory": directory, **settings}
        values.setdefault("unpack", f"position_sampling_rate: {values['rate']}")
        self.config.write_text(settings.get("pipeline", PIPELINE).format(**values))
        self.log = work / f"{self.feed}.log"
        self.program = Path(settings.get("programs", BIN)) / "ringfeed"
        self.process: subprocess.Popen[bytes] | None = None
        self.trainers: list[Trainer] = []
        self.environment = {**os.environ, "RINGFEED_SOCKET_DIR": str(self.sockets)}

    def command(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs one `ringfeed` command to its end."""
        return subprocess.run(
            [str(self.program), *words],
            **{"env": self.environment, "timeout": WAIT_S, **options},
            capture_output=True,
            text=True,
        )

    def command_later(self, *words: str) -> subprocess.Popen[str]:
        """The same beside the test, which asks for its end with communicate()."""
        return subprocess.Popen(
            [str(self.program), *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self, *words: str) -> FeedRun:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(self.program), "run", str(self.config), *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if self not in STARTED:
            STARTED.append(self)
        return self

    def status(self) -> dict[str, Any] | None:
        """What `ringfeed status --json` says, or None while nobody answers."""
        done = self.command("status", self.feed, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def hurry(self) -> None:
        """The trainers that there are take their batches without more delay: Trainer.hurry()."""
        for trainer in self.trainers:
            trainer.hurry()

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """The supervisor's exit status, when it has come to its end. All trainers hurry."""
        assert self.process is not None
        self.hurry()
        return self.process.wait(timeout_s)

    def stop(self, sig: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(sig)
        return self.wait()

    def workers(self) -> dict[str, int]:
        """Pid of each stage group's worker."""
        assert self.process is not None
        found = {}
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for pid in children.split():
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
            if name.startswith("rf-"):
                found[name[3:]] = int(pid)
        return found

    def record(self) -> str:
        """What the supervisor has written down for the next one; "" when the feed is over."""
        try:
            return (self.sockets / f"{self.feed}.state").read_text()
        except FileNotFoundError:
            return ""

    def all_workers(self) -> dict[str, int]:
        """Pid of each stage group's worker, whoever started it, from the feed's record."""
        found = {}
        for line in self.record().splitlines():
            words = line.split()
            if words[0] == "worker" and runs(int(words[1])):
                found[words[3]] = int(words[1])
        return found

    def trainer(self, **options: Any) -> Trainer:
        trainer = Trainer(self, len(self.trainers), **options)
        self.trainers.append(trainer)
        return trainer

    def trainer_after(self, batches: int, /, **options: Any) -> Trainer:
        """A trainer that has had so many batches."""
        trainer = self.trainer(**options)
        wait_until(lambda: trainer.batches() >= batches, f"{batches} batches")
        return trainer

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def close(self) -> None:
        if self in STARTED:
            STARTED.remove(self)
        for trainer in self.trainers:
            trainer.process.kill()
            trainer.process.wait()
        if self.process is not None and self.process.poll() is None:
            # Not SIGTERM twice: of two that come at once the second is lost, and a drain may take
            # longer.
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process is not None and self.process.returncode == -signal.SIGKILL:
            for pid in processes_of(self):  # whoever goes on without it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def processes_of(run: FeedRun) -> dict[int, str]:
    """Whoever lives with this run's directory in his environment, and what he is called."""
    mark = f"RINGFEED_SOCKET_DIR={run.sockets}\0".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            mine = mark in (entry / "environ").read_bytes() + b"\0"
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if mine and runs(int(entry.name)):
            found[int(entry.name)] = name
    return found


def remains(run: FeedRun, storage: Path | None = None) -> list[str]:
    """What a run that is over has left behind: processes (and with them memory), files, work for
    `clean`.
    """
    found = []
    try:
        wait_until(lambda: not processes_of(run), "the processes to end", 10)
    except AssertionError:
        found += [f"process {pid} ({name})" for pid, name in processes_of(run).items()]
    # Of one that has failed the record stays until it is cleaned.
    record = run.sockets / f"{run.feed}.state"
    if record.exists() and "\nfailed " in record.read_text():
        run.command("clean")
    for directory in (run.sockets, storage):
        if directory is not None:
            found += [str(path) for path in directory.iterdir()]
    cleaned = run.command("clean")
    if "nothing to clean" not in cleaned.stderr:
        found.append(f"ringfeed clean: {cleaned.stdout}{cleaned.stderr}")
    return found


class Trainer:
    """A process that attaches and notes what it gets (trainer.py)."""

    def __init__(self, run: FeedRun, number: int, **options: Any) -> None:
        self._run = run
        self.out = run.work / f"{run.feed}-trainer-{number}.npz"
        self.log = run.work / f"{run.feed}-trainer-{number}.log"
        self.progress = run.work / f"{run.feed}-trainer-{number}.progress"
        self._hurry = run.work / f"{run.feed}-trainer-{number}.hurry"
        options = {"hurry": self._hurry, **options}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "tests" / "support" / "feeds" / "trainer.py"),
                    f"--feed={run.feed}",
                    f"--out={self.out}",
                    f"--progress={self.progress}",
                    *words,
                ],
                env=run.environment,
                stdout=log,
                stderr=log,
            )

    def batches(self) -> int:
        """Batches noted so far."""
        try:
            return int(self.progress.read_text())
        except FileNotFoundError:
            return 0

    def hurry(self) -> None:
        """The test has done all that it does to the feed: its batches take pause_ms each again."""
        self._hurry.touch()

    def result(self, timeout_s: float = WAIT_S) -> Any:
        """What it has noted, when it has come to its end. All trainers of the feed hurry."""
        self._run.hurry()
        status = self.process.wait(timeout_s)
        assert status == 0, f"trainer ended with {status}: {self.log.read_text()}"
        return np.load(self.out)
