"""Lets trainers of a running Lc0 feed join, leave and die at random, and audits their groups.

    python tests/crash/members.py --members 1000 [--seed 1] [--json FILE]

Four groups stay for the whole feed: one member alone, up to four that share, three ranks, and two
that share with `redeliver: false`. Besides, guests: groups of one member that come with the
newest batch and are gone with it (`rejoin_ms` 0). Each event is a join, a leave (between two
batches) or a `kill -9`; which one when depends on the seed, where it hits on the machine. A group
without members holds the feed until somebody joins.

The audit compares with an undisturbed run of the same feed. Of the first three groups: every
batch came (else lost), with the right bytes (else torn), a second time only with another `tries`
(else repeated). Of the group without redelivery: no batch twice, and no more lost than its killed
members can have had in hand. Of a guest: batches without a gap from its first one on, with the
right bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # members are forked, without NumPy's threads

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402
import ringfeed  # noqa: E402
from storm import Line, read_lines, undisturbed  # noqa: E402

from tests.support.feeds.feed_run import FeedRun, wait_until  # noqa: E402
from tests.support.feeds.pace import Pace  # noqa: E402
from tests.support.makers import lc0_data  # noqa: E402
from tests.support.rig.careful import be_careful  # noqa: E402

HOLD = 2  # batches that a member has in hand at most: the last one and the next
# A batch whose members are killed again and again is delivered again and again.
GROUPS = (
    f'groups {{ name: "alone" max_hold: {HOLD} max_tries: 255 }} '
    f'groups {{ name: "share" max_hold: {HOLD} max_tries: 255 }} '
    f'groups {{ name: "ranks" max_hold: {HOLD} max_tries: 255 kind: RANKED world: 3 }} '
    f'groups {{ name: "once" max_hold: {HOLD} redeliver: false }}'
)
SIZES = {"alone": 1, "share": 4, "ranks": 3, "once": 2}
SETTINGS: dict[str, Any] = {
    "reservoir": 400,
    "batch": 64,
    "unpackers": 2,
    "readers": 2,
    "generators": 2,
    "slots": 12,
    "groups": GROUPS,
}


@dataclass
class Place:
    """Room for one member, again and again."""

    group: str
    number: int
    out: Path
    pid: int = 0  # of the member that is there, 0: none
    leaving: bool = False

    @property
    def guest(self) -> bool:
        return self.group.startswith("guest")


def train(run: FeedRun, place: Place, pace: Pace) -> None:
    """A member's life, in a child: a line per batch, written before its slot goes back."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    options: dict[str, Any] = {}
    if place.group == "ranks":
        options = {"rank": place.number, "world": SIZES["ranks"]}
    if place.guest:
        options = {"start": "newest", "rejoin_ms": 0, "max_hold": HOLD}
    while True:
        if not (run.sockets / f"{run.feed}.sock").exists():
            return  # the feed has ended meanwhile
        try:
            feed = ringfeed.attach(
                run.feed, place.group, socket_dir=run.sockets, attach_timeout_s=1, **options
            )
            break
        except ringfeed.FeedRefused as error:
            # The end of the last guest has not been seen yet.
            if not place.guest or "groups" not in str(error):
                raise
        except (ringfeed.FeedFailed, ringfeed.FeedIOError, ringfeed.NoSuchFeed):
            pass  # it has ended, or is about to
        except ringfeed.FeedTimeout:
            pass  # it is busy
        time.sleep(0.005)
    with feed, place.out.open("a", buffering=1) as out:
        while not asked:
            try:
                batch = feed.next(0.05)
            except ringfeed.FeedTimeout:
                continue
            except ringfeed.FeedEnd:
                break
            checksum = 0
            for name in ("planes", "policy", "values"):
                checksum = zlib.crc32(np.ascontiguousarray(batch[name]).data, checksum)
            pace.work()
            out.write(f"{time.monotonic():.6f} {batch.seq} {batch.tries} {batch.rows} {checksum}\n")


@dataclass
class Crowd:
    run: FeedRun
    work: Path
    dice: random.Random
    pause_ms: float
    places: list[Place]
    guests: int = 0
    events: dict[str, int] = field(default_factory=dict)
    killed: dict[str, int] = field(default_factory=dict)  # by group

    @property
    def hurry(self) -> Path:
        """Made when nothing more is done to the feed: the members hurry then."""
        return self.work / "hurry"

    def note(self, what: str) -> None:
        self.events[what] = self.events.get(what, 0) + 1

    def total(self) -> int:
        return sum(self.events.values())

    def join(self, place: Place) -> None:
        # What is buffered here must not come out of the child as well.
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until the child can take it
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                train(self.run, place, Pace(self.pause_ms / 1000, self.hurry))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        place.pid, place.leaving = pid, False

    def reap(self) -> None:
        for place in self.places:
            if place.pid == 0:
                continue
            pid, status = os.waitpid(place.pid, os.WNOHANG)
            if pid != 0:
                place.pid = 0
                code = os.waitstatus_to_exitcode(status)
                assert code in (0, -signal.SIGKILL), f"a member of {place.group} ended with {code}"
        self.places = [place for place in self.places if place.pid or not place.guest]

    def guest(self) -> Place:
        self.guests += 1
        place = Place(f"guest{self.guests}", 0, self.work / f"guest{self.guests}.lines")
        self.places.append(place)
        return place

    def event(self) -> None:
        self.reap()
        if self.dice.random() < 0.15 and sum(place.guest for place in self.places) < 2:
            self.join(self.guest())
            return self.note("join of a guest")
        place = self.dice.choice(self.places)
        if place.pid == 0:
            self.join(place)
            return self.note("join")
        if self.dice.random() < 0.4:
            if place.leaving:
                return
            os.kill(place.pid, signal.SIGTERM)
            place.leaving = True
            return self.note("leave")
        os.kill(place.pid, signal.SIGKILL)  # a child that has not been waited for: it is there
        os.waitpid(place.pid, 0)
        place.pid = 0
        self.killed[place.group] = self.killed.get(place.group, 0) + 1
        self.note("kill -9")

    def over(self) -> bool:
        assert self.run.process is not None
        return self.run.process.poll() is not None

    def fill(self) -> None:
        """Every place of the groups that stay has a member."""
        self.reap()
        for place in self.places:
            if place.pid == 0 and not place.guest and not self.over():
                self.join(place)

    def end(self) -> None:
        for place in self.places:
            if place.pid:
                try:
                    os.kill(place.pid, signal.SIGKILL)
                    os.waitpid(place.pid, 0)
                except (ProcessLookupError, ChildProcessError):
                    pass
                place.pid = 0


def audit(crowd: Crowd, expected: dict[int, tuple[int, int]]) -> dict[str, int]:
    found = {"lost": 0, "repeated": 0, "torn": 0, "gaps": 0, "redelivered": 0, "lost_in_hand": 0}
    lines_of: dict[str, list[Line]] = {}
    for out in sorted(crowd.work.glob("*.lines")):
        lines_of.setdefault(out.stem.split("-")[0], []).extend(read_lines(out))
    for group, lines in lines_of.items():
        numbers = [line.number for line in lines]
        found["torn"] += sum(line.checksum != expected.get(line.number) for line in lines)
        if group.startswith("guest"):
            first = numbers[0] if numbers else 1  # killed before its first batch
            found["gaps"] += numbers != list(range(first, first + len(numbers)))
            continue
        tries = {(line.number, line.tries) for line in lines}
        missing = expected.keys() - set(numbers)
        if group == "once":
            found["repeated"] += len(lines) - len(set(numbers))
            found["lost_in_hand"] = len(missing)
            found["lost"] += max(0, len(missing) - HOLD * crowd.killed.get(group, 0))
        else:
            # The same batch twice with the same count of tries: two members were given it.
            found["repeated"] += len(lines) - len(tries)
            found["redelivered"] += len(tries) - len(set(numbers))
            found["lost"] += len(missing)
    return found


def main() -> int:
    be_careful()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=100, help="joins, leaves and kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause-ms", type=float, default=3.0, help="work of a member per batch")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    work = Path(tempfile.mkdtemp(prefix="rf-members-"))
    started = time.monotonic()
    try:
        data = lc0_data.make_dataset(work / "data", games=60, tars=3, seed=3, loose=5)
        epochs = max(4, round(arguments.members * 0.06))  # of about 95 batches
        reference = {**SETTINGS, "groups": 'groups { name: "alone" }'}
        expected = undisturbed(work / "undisturbed", Path(data.directory), epochs, reference)
        place_dir = work / "members"
        place_dir.mkdir()
        run = FeedRun(place_dir, Path(data.directory), epochs=epochs, **SETTINGS)
        places = [
            Place(group, number, place_dir / f"{group}-{number}.lines")
            for group, size in SIZES.items()
            for number in range(size)
        ]
        crowd = Crowd(run, place_dir, random.Random(arguments.seed), arguments.pause_ms, places)
        try:
            run.start()
            socket = run.sockets / f"{run.feed}.sock"
            wait_until(socket.exists, "the feed")
            crowd.fill()
            wait_until(lambda: read_lines(places[0].out), "the first batch")
            while crowd.total() < arguments.members and not crowd.over():
                crowd.event()
                time.sleep(crowd.dice.random() * 0.04)
            crowd.hurry.touch()
            end = time.monotonic() + 300
            while not crowd.over() and time.monotonic() < end:
                crowd.fill()
                time.sleep(0.02)
            status = run.wait(30)
            while any(place.pid for place in crowd.places) and time.monotonic() < end:
                crowd.reap()
                time.sleep(0.01)
        finally:
            crowd.end()
            run.close()
        if status != 0:
            print(run.text()[-4000:], file=sys.stderr)
        found = audit(crowd, expected)
        left = [str(path) for path in run.sockets.iterdir()]
        report = {
            "seed": arguments.seed,
            "events": crowd.events,
            "batches": len(expected),
            "guests": crowd.guests,
            **found,
            "left_behind": left,
            "seconds": round(time.monotonic() - started, 1),
            "exit_status": status,
        }
        print(json.dumps(report, indent=2))
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=2))
        bad = sum(found[name] for name in ("lost", "repeated", "torn", "gaps")) + len(left)
        enough = crowd.total() >= arguments.members
        print(
            f"members: {crowd.total()} joins, leaves and kills, {len(expected)} batches to "
            f"4 groups and {crowd.guests} guests: {found['lost']} lost, "
            f"{found['repeated']} repeated, {found['torn']} torn, {found['gaps']} with gaps"
            + ("" if enough else "; the feed ended before all events had happened")
        )
        return 0 if status == 0 and bad == 0 and enough else 1
    finally:
        if os.environ.get("RINGFEED_KEEP") != "1":
            shutil.rmtree(work, ignore_errors=True)
        else:
            print(f"kept: {work}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
