"""Kills processes of a running Lc0 feed at random, and audits what its trainers got.

    python tests/crash/storm.py --kills 300 [--seed 1] [--everything] [--json FILE]

Six trainers in four groups (alone, two sharing, two ranks, and one that is slow) read a finite feed
with small rings. Victims: workers (SIGKILL, SIGSEGV from outside, SIGSTOP for longer than stall_ms),
trainers (SIGKILL, SIGSTOP for a while) and the supervisor (SIGKILL; then started again). Killed
trainers are started again. What is killed when depends on the seed; when it hits, on the machine.

With --everything all processes are killed at once, trainers, workers and supervisor in any order, again
and again, and everybody is started again with the same words; the feed goes on from the files of
its storage.directory.

At the end nothing may be left behind: no process, no file in the directory of sockets or of
segments, nothing for `ringfeed clean` to do.

The audit compares with an undisturbed run of the same feed. Per group: every batch came (else lost);
its bytes are those of the undisturbed run (else torn); it came a second time only with `tries` that
say so, because its trainer died with it in hand (else repeated); each trainer's numbers ascend,
but for those that came back from a dead one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import lc0_data  # noqa: E402
from feed_run import ROOT, FeedRun, remains, wait_until  # noqa: E402

STALL_MS = 400
GROUPS = (
    'groups { name: "alone" } groups { name: "pair" } groups { name: "slow" } '
    'groups { name: "ranks" kind: RANKED world: 2 }'
)
EXTRA = f"""
stage_groups {{ name: "files" stages: "provider" stages: "loader" }}
stage_groups {{ name: "pool" stages: "pool" }}
stage_groups {{ name: "mix" stages: "unpacker" stages: "sampler" }}
stage_groups {{ name: "out" stages: "tensors" }}
restart {{ max_restarts: 100000 within_s: 1 backoff_ms_max: 20 stall_ms: {STALL_MS} }}
"""
SETTINGS: dict[str, Any] = {
    "reservoir": 400,
    "batch": 64,
    "unpackers": 2,
    "readers": 2,
    "slots": 12,
    "groups": GROUPS,
    "extra": EXTRA,
}


@dataclass
class Member:
    """A trainer's place: whoever has it is started again when it has been killed."""

    name: str
    words: list[str]
    out: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self, run: FeedRun) -> None:
        self.starts += 1
        with self.out.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "tests" / "crash" / "storm_trainer.py"),
                    f"--feed={run.feed}",
                    f"--out={self.out}",
                    *self.words,
                ],
                env=run.environment,
                stdout=log,
                stderr=log,
            )

    @property
    def done(self) -> bool:
        return self.process is not None and self.process.poll() == 0

    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None


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


def members_of(work: Path, pause_ms: float) -> list[Member]:
    def member(name: str, group: str, *words: str) -> Member:
        return Member(name, [f"--group={group}", *words], work / f"{name}.lines")

    pause = f"--pause-ms={pause_ms}"
    return [
        member("alone", "alone", pause),
        member("pair-0", "pair", pause),
        member("pair-1", "pair", pause),
        member("slow", "slow", f"--pause-ms={2 * pause_ms}"),
        member("ranks-0", "ranks", "--rank=0", "--world=2", pause),
        member("ranks-1", "ranks", "--rank=1", "--world=2", pause),
    ]


@dataclass
class Storm:
    run: FeedRun
    members: list[Member]
    dice: random.Random
    victims: list[str]
    kills: dict[str, int] = field(default_factory=dict)
    deaths_of_stages: list[float] = field(default_factory=list)
    stopped: dict[int, float] = field(default_factory=dict)  # pid: when it goes on
    starts: int = 0  # after everything had been killed

    def note(self, what: str) -> None:
        self.kills[what] = self.kills.get(what, 0) + 1

    def total(self) -> int:
        return sum(self.kills.values())

    def kill_supervisor(self) -> None:
        assert self.run.process is not None
        if self.run.process.poll() is not None:
            return
        self.run.process.kill()
        self.run.process.wait()
        self.note("supervisor SIGKILL")
        if self.dice.random() < 0.3:
            time.sleep(self.dice.random() * 0.3)  # for a while nobody supervises
        self.run.start()

    def kill_worker(self) -> None:
        # "out" is let live through SIGKILL: if all workers died while nobody supervises, the memory
        # would be gone with them.
        pids = {n: p for n, p in self.run.all_workers().items() if p not in self.stopped}
        if not pids:
            return
        name = self.dice.choice(sorted(pids))
        pid = pids[name]
        how = self.dice.choices(["SIGKILL", "SIGSEGV", "SIGSTOP"], [6, 3, 1])[0]
        try:
            os.kill(pid, getattr(signal, how))
        except ProcessLookupError:
            return
        self.note(f"worker {how}")
        self.deaths_of_stages.append(time.monotonic())
        # Somebody must see to it before the next blow can fall on the last who holds the memory.
        if how != "SIGSTOP":
            wait_until(
                lambda: self.run.all_workers().get(name) != pid or self.over(),
                f"{name} to be replaced",
            )

    def kill_trainer(self) -> None:
        alive = [m for m in self.members if m.lives()]
        if not alive:
            return
        member = self.dice.choice(alive)
        assert member.process is not None
        if self.dice.random() < 0.25:
            member.process.send_signal(signal.SIGSTOP)
            self.stopped[member.process.pid] = time.monotonic() + 0.2 * self.dice.random()
            self.note("trainer SIGSTOP")
        else:
            member.process.kill()
            self.note("trainer SIGKILL")

    def kill_everything(self) -> None:
        """Nobody is left who knows anything: all that goes on is in the files."""
        assert self.run.process is not None
        if self.over():
            return
        pids = [("supervisor", self.run.process.pid)]
        pids += [("worker", pid) for pid in self.run.all_workers().values()]
        pids += [("trainer", m.process.pid) for m in self.members if m.process and m.lives()]
        self.dice.shuffle(pids)
        for what, pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # a worker that had just done its part
            self.note(f"{what} SIGKILL")
        self.run.process.wait()
        self.run.start()
        # Unaided: with the same words as ever, and all members get batches again (who dies with the
        # same one in hand max_tries times would not get it). At its end there are none left to get.
        before = {m.name: m.out.stat().st_size if m.out.exists() else 0 for m in self.members}

        def goes_on() -> bool:
            self.look_after()
            return self.over() or all(
                m.done or (m.out.exists() and m.out.stat().st_size > before[m.name])
                for m in self.members
            )

        try:
            wait_until(goes_on, f"batches after start {self.starts + 1}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.run.text()[-6000:]}") from error
        self.starts += 1

    def over(self) -> bool:
        assert self.run.process is not None
        return self.run.process.poll() is not None

    def look_after(self) -> None:
        now = time.monotonic()
        for pid, until in list(self.stopped.items()):
            if now >= until:
                del self.stopped[pid]
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass
        for member in self.members:
            if member.process is not None and member.process.poll() not in (None, 0):
                if member.process.returncode not in (-signal.SIGKILL,):
                    raise AssertionError(
                        f"trainer {member.name} ended with {member.process.returncode}: "
                        f"{member.out.with_suffix('.log').read_text()[-2000:]}\n"
                        f"after {self.total()} kills: {self.run.text()[-6000:]}"
                    )
                if not self.over():
                    member.start(self.run)

    def blow(self) -> None:
        weights = {"worker": 6, "trainer": 2, "supervisor": 2}
        if self.victims == ["everything"]:
            return self.kill_everything()
        what = self.dice.choices(self.victims, [weights[victim] for victim in self.victims])[0]
        {
            "worker": self.kill_worker,
            "trainer": self.kill_trainer,
            "supervisor": self.kill_supervisor,
        }[what]()


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
            line.checksum != expected.get(number) for number, lines in seen.items() for line in lines
        )
        for lines in seen.values():
            again = sorted(line.tries for line in lines)
            # The same batch twice with the same count of tries: two members were given it.
            found["repeated"] += len(again) - len(set(again))
            found["redelivered"] += len(set(again)) - 1
    return found


def gaps_ms(members: list[Member], deaths: list[float]) -> list[float]:
    """Per death of a stage: the longest time between two batches of the quickest group in the second after it."""
    times = sorted(
        line.at_s for member in members if member.name == "alone" for line in read_lines(member.out)
    )
    gaps = []
    for death in deaths:
        around = [t for t in times if death - 0.5 <= t <= death + 1.0]
        after = [b - a for a, b in zip(around, around[1:]) if b > death]
        if after:
            gaps.append(1000 * max(after))
    return gaps


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else 0.0


def undisturbed(
    work: Path, data: Path, epochs: int, settings: dict[str, Any]
) -> dict[int, tuple[int, int]]:
    """What each batch of such a feed is, by number, when nobody dies."""
    work.mkdir()
    run = FeedRun(work, data, epochs=epochs, **settings)
    member = Member("alone", ["--group=alone"], work / "alone.lines")
    try:
        run.start()
        member.start(run)
        assert member.process is not None
        assert member.process.wait(600) == 0, member.out.with_suffix(".log").read_text()
        assert run.wait() == 0, run.text()
    finally:
        run.close()
    return {line.number: line.checksum for line in read_lines(member.out)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause-ms", type=float, default=4.0, help="work of a trainer per batch")
    parser.add_argument(
        "--victims",
        default="worker,trainer,supervisor",
        help="some of worker, trainer, supervisor; a gap that a trainer sees after a stage's death "
        "is told only by workers alone: a dead trainer holds up the others' feed until it is back",
    )
    parser.add_argument(
        "--everything", action="store_true", help="all processes at once, instead of one at a time"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    work = Path(tempfile.mkdtemp(prefix="rf-storm-"))
    started = time.monotonic()
    try:
        data = lc0_data.make_dataset(work / "data", games=60, tars=3, seed=3, loose=5)
        # About 95 batches an epoch; long enough for all the kills, about ten a second.
        epochs = max(3, round(arguments.kills * (0.03 if arguments.everything else 0.1)))
        reference = {**SETTINGS, "groups": 'groups { name: "alone" }'}
        expected = undisturbed(work / "undisturbed", Path(data.directory), epochs, reference)
        storm_dir = work / "storm"
        storm_dir.mkdir()
        settings = dict(SETTINGS)
        segments: Path | None = None
        if arguments.everything:
            segments = storm_dir / "segments"
            segments.mkdir()
            settings["extra"] += f'storage {{ directory: "{segments}" }}'
        run = FeedRun(storm_dir, Path(data.directory), epochs=epochs, **settings)
        storm = Storm(
            run,
            members_of(storm_dir, arguments.pause_ms),
            random.Random(arguments.seed),
            ["everything"] if arguments.everything else arguments.victims.split(","),
        )
        try:
            run.start()
            for member in storm.members:
                member.start(run)
            wait_until(lambda: read_lines(storm.members[0].out), "the first batch")
            while storm.total() < arguments.kills and not storm.over():
                storm.blow()
                storm.look_after()
                time.sleep(storm.dice.random() * 0.1)
            while not all(member.done for member in storm.members):
                storm.look_after()
                if storm.over() and not any(member.lives() for member in storm.members):
                    break
                time.sleep(0.01)
            status = run.wait(120)
            text = run.text()
        finally:
            for member in storm.members:
                if member.lives():
                    assert member.process is not None
                    member.process.kill()
                    member.process.wait()
            run.close()
        if status != 0:
            print(text[-4000:], file=sys.stderr)
        found = audit(storm.members, expected)
        gaps = gaps_ms(storm.members, storm.deaths_of_stages)
        left = remains(run, segments)
        report = {
            "seed": arguments.seed,
            "kills": storm.kills,
            "batches": len(expected),
            "groups": 4,
            "trainer_starts": sum(member.starts for member in storm.members),
            **found,
            "dead_letters": text.count("dead_letter "),
            "started_anew": text.count(" feed_started ") - 1,
            "starts_after_everything": storm.starts,
            "gap_ms_p50": round(quantile(gaps, 0.5), 1),
            "gap_ms_p99": round(quantile(gaps, 0.99), 1),
            "left_behind": left,
            "seconds": round(time.monotonic() - started, 1),
            "exit_status": status,
        }
        print(json.dumps(report, indent=2))
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=2))
        bad = found["lost"] + found["repeated"] + found["torn"] + found["out_of_order"] + len(left)
        enough = storm.total() >= arguments.kills
        print(
            f"storm: {storm.total()} kills, {len(expected)} batches to 4 groups: {found['lost']} lost, "
            f"{found['repeated']} repeated, {found['torn']} torn, {found['out_of_order']} out of order, "
            f"{len(left)} left behind"
            + ("" if enough else "; the feed ended before all kills were made")
        )
        bad += report["dead_letters"] + report["started_anew"]
        return 0 if status == 0 and bad == 0 and enough else 1
    finally:
        if os.environ.get("RINGFEED_KEEP") != "1":
            shutil.rmtree(work, ignore_errors=True)
        else:
            print(f"kept: {work}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
