"""Lets hostile clients at a running Lc0 feed, whose stages and supervisor die meanwhile, and audits
its honest groups.

    python tests/crash/hostile.py --hostile 60 [--seed 1] [--files] [--json FILE]

A hostile client is a process of the feed's own user that speaks to the control socket and may
attach, as a member of a group of its own (a member that keeps its batches in a group that blocks is
waited for, by the terms of that group, but it does not live long). What it does with what it gets
is drawn from the seed: random bytes and values that look right over everything that it can map for
writing; locks of every kind; truncation, holes, seals and leases; claims that are kept; descriptors
passed by the hundred; halves of messages, false ones, and noise; names that are no names;
connections that say nothing. Some come in the names of others. It asks for nothing that an operator
may ask for (stop, restart, scale, snapshot, messages to stages).

Beside them two honest groups, one member and three ranks, read the feed from its first batch to
its last, and honest guests come for some batches. The audit compares with an undisturbed run:
every batch came to each of the two (else lost), once (else repeated), with the right bytes (else
torn); and after every blow each member got further batches. No process of the feed may have died
but those that were killed here.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import fcntl
import json
import mmap
import os
import random
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # clients are forked, without NumPy's threads

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from members import Crowd, Place  # noqa: E402
from ringfeed._core import control  # noqa: E402
from storm import read_lines, undisturbed  # noqa: E402

from tests.support.fakes.raw_member import (  # noqa: E402
    PAGE,
    SKIP,
    RawMember,
    ask,
    attach_request,
    connect,
)
from tests.support.fakes.scribble import spoil_bytes, spoil_words  # noqa: E402
from tests.support.feeds.feed_run import FeedRun, remains, runs, wait_until  # noqa: E402
from tests.support.makers import lc0_data  # noqa: E402
from tests.support.rig.careful import be_careful  # noqa: E402

HONEST = {"alone": 1, "ranks": 3}
GROUPS = (
    'groups { name: "alone" max_hold: 2 } '
    'groups { name: "ranks" max_hold: 2 kind: RANKED world: 3 } '
)
SETTINGS: dict[str, Any] = {
    "reservoir": 400,
    "batch": 64,
    "unpackers": 2,
    "readers": 2,
    "generators": 2,
    "slots": 40,
    "groups": GROUPS,
}
STAGES = (
    'stage_groups { name: "files" stages: "provider" stages: "loader" }'
    'stage_groups { name: "pool" stages: "pool" }'
    'stage_groups { name: "mix" stages: "unpacker" stages: "sampler" }'
    'stage_groups { name: "out" stages: "tensors" }'
    "restart { max_restarts: 1000 backoff_ms_max: 20 }"
)
AT_ONCE = 3  # hostile clients
BLOCK, DETACH = 0, 2  # ConsumerGroupConfig.Policy
# Requests that an operator may make: stop, messages to stages, restart, snapshot, scale.
ORDERS = frozenset({5, 6, 7, 10, 11})
F_OFD_SETLK, F_SETLEASE, F_ADD_SEALS, F_SETSIG = 37, 1024, 1033, 10
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def is_order(message: bytes) -> bool:
    """Could an operator's order be read in it? Any byte that could begin one counts."""
    return any(field << 3 | 2 | more in message for field in ORDERS for more in (0, 0x80))


class Hostile:
    """One client's life, in a child."""

    def __init__(self, run: FeedRun, number: int, dice: random.Random) -> None:
        self.path = run.sockets / f"{run.feed}.sock"
        self.dice = dice
        self.number = number
        self.member: RawMember | None = None
        self.silent: list[socket.socket] = []
        self.supervisor = run.process.pid if run.process else 1

    def name(self) -> str:
        odd = [
            f"hostile{self.number}",
            f"line\nfeed_failed feed=lc0 {self.number}",
            f"\x1b[2J\x1b]0;{self.number}\a",
            f"alone \u202e{self.number}",
            f"../../{self.number}",
            f"{self.number}".ljust(63, "x"),
            f"{self.number}" + "x" * 200,
            "",
            f"{self.number}\0alone",
            f"%s%n{{}}{self.number}",
        ]
        return self.dice.choice(odd)

    def attach(self) -> None:
        if self.member is not None:
            return
        self.member = RawMember(
            self.path,
            self.name(),
            policy=self.dice.choice([BLOCK, SKIP, SKIP, DETACH]),
            max_hold=1,
            rejoin_ms=self.dice.choice([0, 0, 50]),
        )

    def bytes_at_random(self) -> None:
        if self.member is None:
            return
        for _ in range(self.dice.randrange(1, 200)):
            if self.dice.random() < 0.5:
                spoil_bytes(self.member.memory, self.dice)
            else:
                spoil_words(self.member.memory, self.dice, self.dice.randrange(3000))
        if self.dice.random() < 0.3:
            at = self.dice.randrange(PAGE)
            self.member.memory[at:PAGE] = self.dice.randbytes(PAGE - at)

    def another_name(self) -> None:
        if self.member is None:
            return
        self.member.put(48, self.dice.choice([b"alone\0", b"ranks\0", b"\xff" * 64]))
        self.member.put(8, struct.pack("<II", 0, 1))
        self.member.put(120, b"\1")

    def locks(self) -> None:
        if self.member is None:
            return
        kind = self.dice.choice([fcntl.F_RDLCK, fcntl.F_WRLCK])
        lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, self.dice.choice([0, 1, 8]), 0)
        for fd in self.member.fds.values():
            for command in (fcntl.F_SETLK, F_OFD_SETLK):
                self.quietly(lambda: fcntl.fcntl(fd, command, lock))
            self.quietly(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))

    def files(self) -> None:
        """What the kernel lets one do to a file that one has been given."""
        if self.member is None:
            return
        for fd in self.member.fds.values():
            size = self.dice.choice([0, 1, PAGE, 2 * PAGE + 1, 1 << 40])
            mode = self.dice.choice([0, 1, 3, 0x10, 0x8, 0x20])
            at = self.dice.randrange(3) * PAGE
            self.quietly(lambda: os.ftruncate(fd, size))
            self.quietly(lambda: libc.fallocate(fd, mode, at, PAGE))
            seals = self.dice.choice([1, 2, 4, 8, 16])
            self.quietly(lambda: fcntl.fcntl(fd, F_ADD_SEALS, seals))
            lease = self.dice.choice([fcntl.F_RDLCK, fcntl.F_WRLCK])
            self.quietly(lambda: fcntl.fcntl(fd, F_SETLEASE, lease))
            flags = os.O_APPEND | os.O_NONBLOCK | os.O_ASYNC
            self.quietly(lambda: fcntl.fcntl(fd, fcntl.F_SETOWN, self.supervisor))
            self.quietly(lambda: fcntl.fcntl(fd, F_SETSIG, signal.SIGTERM))
            self.quietly(lambda: fcntl.fcntl(fd, fcntl.F_SETFL, flags))
            self.quietly(lambda: os.pwrite(fd, self.dice.randbytes(64), at))
            self.quietly(lambda: os.lseek(fd, 1 << 40, os.SEEK_SET))
            self.quietly(lambda: mmap.mmap(fd, PAGE).close())

    def keep_batches(self) -> None:
        if self.member is None:
            return
        index = self.dice.randrange(256)
        word = self.member.get(0x800 + 8 * index, "<Q")
        mine = self.member.place.get(7, 0)
        assert isinstance(mine, int)
        batch = (word >> 24) + self.dice.choice([0, 256])
        self.member.put(0x800 + 8 * index, struct.pack("<Q", batch << 24 | mine << 16 | 1))

    def descriptors(self) -> None:
        """Descriptors that nobody asked for, some under the names of the feed's own memory."""
        with connect(self.path) as connection:
            own = []
            for _ in range(self.dice.randrange(1, 40)):
                kind = self.dice.randrange(3)
                if kind == 0:
                    own.append(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
                elif kind == 1:
                    own.append(os.memfd_create(f"lc0_group_{self.dice.randrange(16)}"))
                else:
                    own.extend(os.pipe())
            try:
                message = self.dice.choice([self.request(), self.dice.randbytes(20), b"\x08\x01"])
                if not is_order(message):
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", own))]
                    for _ in range(self.dice.randrange(1, 6)):
                        connection.sendmsg([message], rights)
            finally:
                for fd in own:
                    os.close(fd)

    def request(self) -> bytes:
        """A request that could be right, or is in the name of somebody else."""
        number, text = control.number_field, control.bytes_field
        body, message = self.dice.choice(
            [
                (2, attach_request(self.dice.randrange(4), 7, self.name())),
                (2, text(6, self.name().encode()) + number(8, 2**31) + number(9, 2**32 - 1)),
                (3, number(1, self.dice.randrange(4))),
                (4, b""),
                (
                    8,
                    text(1, self.feed_id())
                    + number(2, self.dice.randrange(20))
                    + number(3, 0)
                    + control.fixed64_field(4, self.dice.randrange(4)),
                ),
                (8, number(6, 2**32 - 1) + number(2, 2**32 - 1)),
                (9, text(1, self.feed_id()) + text(2, self.dice.choice([b"out", b"mix", b"?"]))),
                (12, b""),
                (99, self.dice.randbytes(9)),
            ]
        )
        return number(1, self.dice.choice([0, 1, 2**64 - 1])) + text(body, message)

    def feed_id(self) -> bytes:
        known = self.member.place.get(4, b"") if self.member is not None else b""
        return known if isinstance(known, bytes) and known else self.dice.randbytes(16)

    def messages(self) -> None:
        with connect(self.path) as connection:
            connection.settimeout(0.2)
            for _ in range(self.dice.randrange(1, 20)):
                message = bytearray(self.request())
                how = self.dice.randrange(4)
                if how == 1:
                    del message[self.dice.randrange(len(message)) :]
                elif how == 2:
                    for _ in range(3):
                        message[self.dice.randrange(len(message))] = self.dice.randrange(256)
                elif how == 3:
                    message = bytearray(self.dice.randbytes(self.dice.choice([1, 9, 300, 60_000])))
                if not is_order(message):
                    self.quietly(lambda: connection.send(message))
            if self.dice.random() < 0.5:
                for _ in range(5):
                    self.quietly(lambda: connection.recv(1 << 16))

    def keep_silent(self) -> None:
        if len(self.silent) < 20:
            self.silent.append(connect(self.path))

    def leave(self) -> None:
        """Says goodbye, and keeps what it has been given for the rest of its life."""
        if self.member is not None:
            ask(self.member.connection, 3, b"")

    def quietly(self, deed: Callable[[], object]) -> None:
        try:
            deed()
        except (OSError, ValueError):
            pass

    def live(self) -> None:
        deeds = [
            (self.attach, 6),
            (self.bytes_at_random, 4),
            (self.another_name, 2),
            (self.locks, 2),
            (self.files, 2),
            (self.keep_batches, 3),
            (self.descriptors, 1),
            (self.messages, 2),
            (self.keep_silent, 1),
            (self.leave, 1),
        ]
        names, weights = [deed for deed, _ in deeds], [weight for _, weight in deeds]
        for _ in range(self.dice.randrange(10, 60)):
            try:
                self.dice.choices(names, weights)[0]()
            except (OSError, AssertionError):
                pass  # refused, or nobody is there just now
            time.sleep(self.dice.random() * 0.02)  # a drawn moment: nothing is waited for


class Attack:
    """The feed, its honest members and whoever attacks them."""

    def __init__(self, crowd: Crowd, seed: int) -> None:
        self.crowd = crowd
        self.run = crowd.run
        self.seed = seed
        self.dice = random.Random(seed)
        self.lives = 0
        self.living: set[int] = set()
        self.blows: dict[str, int] = {}
        self.sent_away = 0  # guests

    def begin_life(self) -> None:
        self.lives += 1
        dice = random.Random(f"{self.seed}/{self.lives}")
        hostile = Hostile(self.run, self.lives, dice)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(20)
                hostile.live()
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            if dice.random() < 0.5:
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        self.living.add(pid)

    def reap(self) -> None:
        for pid in list(self.living):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == 0:
                continue
            self.living.remove(pid)
            code = os.waitstatus_to_exitcode(status)
            assert code in (0, -signal.SIGKILL), f"a hostile client ended with {code}"

    def reap_honest(self) -> None:
        try:
            self.crowd.reap()
        except AssertionError as error:
            # Its group may have got a page that a hostile client had before it.
            if "member of guest" not in str(error):
                raise
            self.sent_away += 1

    def counts(self) -> list[int]:
        return [len(read_lines(place.out)) for place in self.crowd.places if not place.guest]

    def visit(self) -> None:
        """An honest guest comes, has batches, and goes, on one way or the other."""
        guest = self.crowd.guest()
        self.crowd.join(guest)
        wait_until(
            lambda: self.crowd.over() or len(read_lines(guest.out)) >= 2 or not runs(guest.pid),
            "a guest's batches",
        )
        os.kill(guest.pid, self.dice.choice([signal.SIGKILL, signal.SIGTERM]))

    def must_go_on(self, what: str) -> None:
        """Every honest member gets further batches, whatever goes on."""
        before = self.counts()
        wait_until(
            lambda: self.crowd.over()
            or all(now > earlier for now, earlier in zip(self.counts(), before)),
            f"a batch to each honest member after {what}",
        )

    def blow(self) -> None:
        assert self.run.process is not None
        workers = self.run.all_workers()
        if self.dice.random() < 0.3 or not workers:
            what = "the supervisor's death"
            self.run.process.kill()
            self.run.process.wait()
            taken = self.run.text().count("feed_adopted")
            time.sleep(self.dice.random() * 0.3)  # so long nobody supervises: drawn, too
            self.run.start()
            wait_until(
                lambda: self.crowd.over() or self.run.text().count("feed_adopted") > taken,
                "the feed to be taken over",
            )
        else:
            what = "a stage's death"
            os.kill(self.dice.choice(sorted(workers.values())), signal.SIGKILL)
        self.blows[what] = self.blows.get(what, 0) + 1
        self.must_go_on(what)

    def all_honest_over(self, places: list[Place]) -> bool:
        self.reap_honest()
        return not any(place.pid for place in places)

    def has_room(self, places: int = 1) -> bool:
        """Whether so many further clients may live: each has 20 s, by its alarm."""
        self.reap()
        return len(self.living) + places <= AT_ONCE

    def go(self, lives: int) -> None:
        while self.lives < lives and not self.crowd.over():
            self.reap()
            while len(self.living) < AT_ONCE and self.lives < lives:
                self.begin_life()
                if self.lives % 6 == 0:
                    self.blow()
                if self.lives % 6 == 3:
                    self.visit()
            wait_until(lambda: self.crowd.over() or self.has_room(), "a client's end")
            self.reap_honest()
        wait_until(lambda: self.has_room(AT_ONCE), "the end of all clients")

    def end(self) -> None:
        for pid in self.living:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.living.clear()


def audit(attack: Attack, expected: dict[int, tuple[int, int]]) -> dict[str, int]:
    found = {"lost": 0, "repeated": 0, "torn": 0, "disorder": 0, "died": 0}
    for group in HONEST:
        lines = [read_lines(place.out) for place in attack.crowd.places if place.group == group]
        numbers = [line.number for member in lines for line in member]
        found["lost"] += len(expected.keys() - set(numbers))
        found["repeated"] += len(numbers) - len(set(numbers))
        for member in lines:
            found["torn"] += sum(line.checksum != expected.get(line.number) for line in member)
            own = [line.number for line in member]
            found["disorder"] += own != sorted(own)
    for out in attack.crowd.work.glob("guest*.lines"):
        lines = read_lines(out)
        numbers = [line.number for line in lines]
        found["torn"] += sum(line.checksum != expected.get(line.number) for line in lines)
        found["disorder"] += any(b != a + 1 for a, b in zip(numbers, numbers[1:]))
    # As many as were killed here, by signal 9; of one that was taken over nobody knows (0).
    deaths = re.findall(r"worker_died .* signal=(\d+) cause=(\w+)", attack.run.text())
    killed = sum(death in (("9", "death"), ("0", "death")) for death in deaths)
    found["died"] = len(deaths) - min(killed, attack.blows.get("a stage's death", 0))
    return found


def main() -> int:
    be_careful()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hostile", type=int, default=60, help="hostile clients in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", action="store_true", help="with storage.directory")
    parser.add_argument("--pause-ms", type=float, default=20.0, help="honest work per batch")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    work = Path(tempfile.mkdtemp(prefix="rf-hostile-"))
    started = time.monotonic()
    try:
        data = lc0_data.make_dataset(work / "data", games=60, tars=3, seed=3, loose=5)
        epochs = max(3, round(arguments.hostile * 0.16))  # of about 95 batches
        storage = work / "storage"
        storage.mkdir()
        extra = STAGES + (f'storage {{ directory: "{storage}" }}' if arguments.files else "")
        reference = {**SETTINGS, "groups": 'groups { name: "alone" }'}
        expected = undisturbed(work / "undisturbed", Path(data.directory), epochs, reference)
        place_dir = work / "honest"
        place_dir.mkdir()
        run = FeedRun(place_dir, Path(data.directory), epochs=epochs, extra=extra, **SETTINGS)
        places = [
            Place(group, number, place_dir / f"{group}-{number}.lines")
            for group, size in HONEST.items()
            for number in range(size)
        ]
        crowd = Crowd(run, place_dir, random.Random(0), arguments.pause_ms, places)
        attack = Attack(crowd, arguments.seed)
        status = -1
        try:
            run.start()
            wait_until((run.sockets / f"{run.feed}.sock").exists, "the feed")
            for place in places:
                crowd.join(place)
            attack.must_go_on("the start")
            attack.go(arguments.hostile)
            attack.must_go_on("the last of them")
            crowd.hurry.touch()
            status = run.wait(300)
            wait_until(lambda: attack.all_honest_over(places), "the end of the honest members")
        finally:
            attack.end()
            crowd.end()
            run.close()
            if status != 0:
                print(run.text()[-4000:], file=sys.stderr)
        found = audit(attack, expected)
        left = remains(run, storage)
        report = {
            "seed": arguments.seed,
            "files": arguments.files,
            "hostile": attack.lives,
            "blows": attack.blows,
            "batches": len(expected),
            "guests": attack.crowd.guests,
            "guests_sent_away": attack.sent_away,
            "groups_barred": run.text().count("damaged="),
            **found,
            "left_behind": left,
            "seconds": round(time.monotonic() - started, 1),
            "exit_status": status,
        }
        print(json.dumps(report, indent=2))
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=2))
        bad = sum(found.values()) + len(left)
        enough = attack.lives >= arguments.hostile
        print(
            f"hostile: {attack.lives} clients, {sum(attack.blows.values())} blows, "
            f"{len(expected)} batches to each of {len(HONEST)} groups: {found['lost']} lost, "
            f"{found['repeated']} repeated, {found['torn']} torn"
            + ("" if enough else "; the feed ended before all of them had come")
        )
        return 0 if status == 0 and bad == 0 and enough else 1
    finally:
        if os.environ.get("RINGFEED_KEEP") != "1":
            shutil.rmtree(work, ignore_errors=True)
        else:
            print(f"kept: {work}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
