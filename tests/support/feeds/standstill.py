"""What the processes and the memory of a test's feeds say, for a wait that was given up."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.feeds.feed_run import FeedRun

LOOK_S = 20.0  # the longest that one question may take
BETWEEN_S = 0.5  # two looks at the processors' time, to tell who works
LINES = 30  # of each log
# Of shm/include/ringfeed/shm/{abi,lane_page,feed,claim}.h, whose assertions hold them.
PAGE = 4096
LANES_AT = 0x70  # of a segment: the first word of its geometry
WAITING, PID, STATE, PROGRESS_NS, WOKE_NS, DESIRED = (
    0x100,
    0x180,
    0x19C,
    0x1A0,
    0x1A8,
    0x200,
)
BARRED, RETIRE, ANSWERS = 0x218, 0x280, 0x290
NAME, LOW, MEMBERS, WORDS = 0x30, 0x80, 0x100, 0x800
GROUP_STATES = ("UNUSED", "JOINING", "ACTIVE", "DRAINING")
MEMBER_STATES = ("free", "live", "at the end", "left")
CLAIM_STATES = ("none", "TAKEN", "DONE", "AVAIL", "SKIPPED")


def named(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"{number}?"


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())


def tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"({error})"
    return "\n".join(line[:400] for line in lines[-LINES:])


def said_by(words: list[str], env: dict[str, str] | None = None) -> str:
    """What a program prints, or why it does not."""
    try:
        done = subprocess.run(
            words,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LOOK_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"
    status = "" if done.returncode == 0 else f"\n(ended with {done.returncode})"
    return done.stdout + done.stderr + status


def ticks_of(pid: int) -> int:
    """Processor time that the process has had, in ticks of the system's clock."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def threads_of(pid: int) -> Iterator[str]:
    """A line for each thread: what it is called, does, and waits for."""
    for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name)):
        words = []
        for name in ("comm", "stat", "wchan", "syscall"):
            try:
                text = (task / name).read_text(errors="replace").strip()
            except OSError as error:
                text = f"({error.strerror})"
            words.append(text.rpartition(") ")[2][:1] if name == "stat" else text)
        yield f"{task.name} {words[0]}: {words[1]}, in {words[2]}, system call {words[3]}"


def ask_for_stacks(pid: int) -> None:
    """Workers, and the trainers of tests, write where they are when SIGUSR2 comes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:") and int(line.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1:
            os.kill(pid, signal.SIGUSR2)


def process(pid: int, name: str, ticks: int) -> str:
    """One process: how much it has worked between two looks, its threads, their stacks."""
    try:
        lines = [f"process {pid} ({name}): {ticks_of(pid) - ticks} ticks of processor time since"]
        lines += [f"  {line}" for line in threads_of(pid)]
    except OSError as error:
        return f"process {pid} ({name}): {error.strerror}"
    gdb = shutil.which("gdb")
    if gdb is not None:
        words = [
            gdb,
            "-nx",
            "-batch",
            "-p",
            str(pid),
            "-ex",
            "thread apply all backtrace 12",
        ]
        stacks = [
            line[:200]
            for line in said_by(words).splitlines()
            if line.startswith(("#", "Thread", "("))
        ]
        lines.append(indented("\n".join(stacks)))
    return "\n".join(lines)


class Memory:
    """Segments of a feed, as the first process that holds them lends them."""

    def __init__(self, pids: list[int], feed: str) -> None:
        self._at: dict[str, str] = {}
        for pid in pids:
            try:
                links = {f.path: os.readlink(f.path) for f in os.scandir(f"/proc/{pid}/fd")}
            except OSError:
                continue
            for path, link in links.items():
                name = Path(link.removesuffix(" (deleted)")).name.removeprefix("memfd:")
                if name.startswith(f"{feed}_"):
                    self._at.setdefault(name.removeprefix(f"{feed}_"), path)

    def names(self) -> list[str]:
        return sorted(self._at)

    def bytes(self, name: str) -> bytes:
        with open(self._at[name], "rb") as segment:
            return segment.read()


def lanes(memory: Memory) -> Iterator[str]:
    control = memory.bytes("control")
    count = struct.unpack_from("<I", control, LANES_AT)[0]
    now_ns = time.monotonic_ns()
    for index in range(count):
        page = PAGE * (1 + index)

        def word(offset: int, form: str = "<I", page: int = page) -> int:
            return int(struct.unpack_from(form, control, page + offset)[0])

        answers = []
        for group in range(16):
            epoch, skipped, first = struct.unpack_from("<IIQ", control, page + ANSWERS + 16 * group)
            if epoch:
                answers.append(f"{group}: epoch {epoch} from {first} skipped {skipped}")
        progress_s, woke_s = (
            (now_ns - word(at, "<Q")) / 1e9 if word(at, "<Q") else float("nan")
            for at in (PROGRESS_NS, WOKE_NS)
        )
        yield (
            f"lane {index}: process {word(PID)}, state {word(STATE)}, desired {word(DESIRED)}, "
            f"{'asleep' if word(WAITING) else 'awake'}, stepped {progress_s:.2f} s ago, looked "
            f"{woke_s:.2f} s ago, retire {word(RETIRE, '<Q')}, barred {word(BARRED):#x}, "
            f"answers [{', '.join(answers)}]"
        )


def batches(memory: Memory) -> Iterator[str]:
    """Each output's published batches, and its groups with what they have not finished."""
    for name in memory.names():
        if not name.startswith("feed_control"):
            continue
        text = memory.bytes(name)
        lanes_, slots, descriptors = struct.unpack_from("<III", text, LANES_AT)
        first = PAGE + 128 * lanes_
        held = [struct.unpack_from("<QI", text, first + 128 * i) for i in range(descriptors)]
        published = sorted((seq, slot) for seq, slot in held if seq)
        newest = published[-1][0] if published else 0
        yield f"{name}: {slots} slots, {descriptors} descriptors, newest batch {newest}"
        yield f"  the last ones (batch: slot): {dict(published[-2 * slots :])}"
        for index in range(16):
            page = f"group_{index}{name.removeprefix('feed_control')}"
            yield from group(page, memory.bytes(page)[PAGE : 2 * PAGE], newest, descriptors)


def group(name: str, page: bytes, newest: int, descriptors: int) -> Iterator[str]:
    state, kind, policy, redeliver, epoch, start = struct.unpack_from("<IIIIQQ", page)
    called = page[NAME : NAME + 64].partition(b"\0")[0].decode(errors="replace")
    if state == 0:
        return
    yield (
        f"  {name} '{called}': {named(GROUP_STATES, state)}, kind {kind}, policy {policy}, "
        f"redeliver {redeliver}, epoch {epoch}, from batch {start}, low "
        f"{struct.unpack_from('<Q', page, LOW)[0]}"
    )
    now_ns = time.monotonic_ns()
    for index in range(16):
        form = "<IIQQQQ"
        is_, pid, _, taken, done, last = struct.unpack_from(form, page, MEMBERS + 64 * index)
        if is_:
            yield (
                f"    member {index}: {named(MEMBER_STATES, is_)}, process {pid}, took {taken}, "
                f"gave back {done}, the last one {(now_ns - last) / 1e9:.2f} s ago"
            )
    for batch in range(max(start, newest - descriptors + 1, 1), newest + 1):
        word = struct.unpack_from("<Q", page, WORDS + 8 * (batch % descriptors))[0]
        seq, member, tries, is_ = (
            word >> 24,
            word >> 16 & 255,
            word >> 8 & 255,
            word & 255,
        )
        if seq > batch or (seq == batch and named(CLAIM_STATES, is_) in ("DONE", "SKIPPED")):
            continue
        if seq < batch:
            yield f"    batch {batch}: nobody's"
        else:
            yield (f"    batch {batch}: {named(CLAIM_STATES, is_)}, member {member}, tries {tries}")


def whole(what: str, lines: Callable[[], Iterator[str]]) -> str:
    """The lines, or as many as there are before something cannot be read."""
    found = []
    try:
        for line in lines():
            found.append(line)
    except (OSError, KeyError, ValueError, struct.error) as error:
        found.append(f"({type(error).__name__}: {error})")
    return f"{what}:\n" + indented("\n".join(found))


def of_feed(run: FeedRun, processes: dict[int, str]) -> str:
    """All that can be seen of one feed and its trainers."""
    assert run.process is not None
    ended = run.process.poll()
    how = "runs" if ended is None else f"has ended with {ended}"
    parts = [f"==== feed '{run.feed}': its supervisor {run.process.pid} {how}"]
    ticks = {}
    for pid in processes:
        try:
            ticks[pid] = ticks_of(pid)
            ask_for_stacks(pid)
        except OSError:
            continue
    time.sleep(BETWEEN_S)
    for number, trainer in enumerate(run.trainers):
        status = trainer.process.poll()
        how = "lives" if status is None else f"has ended with {status}"
        parts.append(
            f"trainer {number} (process {trainer.process.pid}) {how}, {trainer.batches()} batches "
            f"noted; its log:\n{indented(tail(trainer.log))}"
        )
    parts += [process(pid, processes[pid], ticks[pid]) for pid in sorted(ticks)]
    memory = Memory(sorted(processes), run.feed)
    parts.append(whole("lanes", lambda: lanes(memory)))
    parts.append(whole("batches", lambda: batches(memory)))
    for verb in ("status", "why"):
        said = said_by([str(run.program), verb, run.feed], run.environment)
        parts.append(f"ringfeed {verb}:\n{indented(said)}")
    parts.append(f"the end of its log:\n{indented(tail(run.log))}")
    return "\n".join(parts)
