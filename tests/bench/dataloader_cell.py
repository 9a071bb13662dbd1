"""One figure of dataloader_bench.py, in a process of its own: the last line put out is JSON.

dataloader_cell.py cost PEER WORK --batches N       processor time of the whole tree a batch
dataloader_cell.py first PEER                       time to the first batch
dataloader_cell.py start PEER --case NAME           what begins and ends an iterator
dataloader_cell.py memory PEER --gigabytes N        four workers over one array
dataloader_cell.py large PEER --batches N           four workers, batches of 51 MB
dataloader_cell.py trainers PEER --batches N        four trainers
dataloader_cell.py resume PEER --sample N           from load_state_dict() to the next batch
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tree_cost
from dataloader_peers import PEERS, with_arguments
from dataloader_works import ROW_BYTES, WORKS, Large, Rows, Tiny

IMPORT_S = 2.0
TRAINERS = 4
STARTS = 12  # iterators of each case
ENDS_S = 10.0
RESUME_BATCH = 250
RESUME_LENGTH = 2_000_000
RESUMES = 5


def take(batches: Iterator[Any], work: Any, count: int, first: int = 0) -> None:
    """Takes as many batches and looks at each."""
    taken = 0
    for batch in itertools.islice(batches, count):
        work.check(batch, first + taken)
        taken += 1
    if taken != count:
        raise SystemExit(f"{taken} batches came and not {count}")


def cost(words: argparse.Namespace) -> dict[str, Any]:
    """The second epoch, the first has started and warmed all."""
    peer = PEERS[words.peer]
    count = min(words.batches, peer.most_batches)
    kind = WORKS[words.work]
    loader = peer.make(kind(count))
    if loader.keeps_workers:
        work = kind(count)
        take(loader.epoch(), work, count)
        begun, cpu = time.monotonic(), tree_cost.cpu_s()
        batches = loader.epoch()
        take(batches, work, count)
        if next(batches, None) is not None:
            raise SystemExit("the epoch goes on")
        used, wall = tree_cost.cpu_s() - cpu, time.monotonic() - begun
    else:
        work = kind(3 * count)
        loader = peer.make(work)
        batches = loader.epoch()
        take(batches, work, count)
        begun, cpu = time.monotonic(), tree_cost.cpu_s()
        take(batches, work, count, count)
        used, wall = tree_cost.cpu_s() - cpu, time.monotonic() - begun
        take(batches, work, count, 2 * count)
    loader.close()
    return {
        "cpu_ms": 1e3 * used / count,
        "wall_ms": 1e3 * wall / count,
        "batches": count,
        "keeps_workers": loader.keeps_workers,
    }


SLOW = f"""
import time

time.sleep({IMPORT_S})  # as a large framework

from dataloader_works import Tiny


class Slow(Tiny):
    pass
"""


def first(words: argparse.Namespace) -> dict[str, Any]:
    """All imports are behind it, as they are behind the trainer that makes a loader."""
    with tempfile.TemporaryDirectory(prefix="ringfeed-bench-") as place:
        Path(place, "slow_dataset.py").write_text(SLOW)
        sys.path.insert(0, place)
        from slow_dataset import Slow  # type: ignore[import-not-found]

        PEERS[words.peer].make(Slow(1))  # imports; starts nothing before it is iterated over
        work = Slow(64)
        begun = time.monotonic()
        batches = PEERS[words.peer].make(work).epoch()
        batch = next(batches)
        wall = time.monotonic() - begun
        work.check(batch, 0)
        take(batches, work, 63, 1)
    return {"first_ms": 1e3 * wall}


# By peer: those that are made with PyTorch's arguments.
CLASSES = {
    "torch": ("torch.utils.data", "DataLoader"),
    "stateful": ("torchdata.stateful_dataloader", "StatefulDataLoader"),
    "ringfeed": ("ringfeed.torch", "DataLoader"),
}
# By name: workers, batches of an epoch, and whether the iterator is left after the first.
CASES = {
    "epochs": (2, 10, False),
    "epochs-of-one": (2, 1, False),
    "leave-8": (8, 64, True),
    "first-1": (1, 64, True),
    "first-4": (4, 64, True),
}


def start(words: argparse.Namespace) -> dict[str, Any]:
    """Iterators whose workers are not kept: each with its start and its end.

    Processor time is that of the whole tree until nobody is left below this process.
    """
    workers, batches, leaves = CASES[words.case]
    work = Tiny(batches)
    loader = with_arguments(*CLASSES[words.peer], workers, work, persistent_workers=False)
    firsts, leavings = [], []

    def once() -> None:
        begun = time.monotonic()
        iterator = loader.epoch()
        take(iterator, work, 1)
        came = time.monotonic()
        if not leaves:
            take(iterator, work, batches - 1, 1)
            if next(iterator, None) is not None:
                raise SystemExit("the epoch goes on")
        left = time.monotonic()
        del iterator
        firsts.append(came - begun)
        leavings.append(time.monotonic() - left)

    once()  # imports, and what a loader has for good
    firsts.clear()
    leavings.clear()
    begun, cpu = time.monotonic(), tree_cost.cpu_s()
    for _ in range(STARTS):
        once()
    wall = time.monotonic() - begun
    while tree_cost.below(os.getpid()):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        if time.monotonic() > begun + wall + ENDS_S:
            raise SystemExit("processes are left behind")
        time.sleep(0.01)
    used = tree_cost.cpu_s() - cpu
    return {
        "cpu_ms": 1e3 * used / STARTS,
        "wall_ms": 1e3 * wall / STARTS,
        "first_ms": 1e3 * statistics.median(firsts),
        "leave_ms": 1e3 * statistics.median(leavings),
    }


def memory(words: argparse.Namespace) -> dict[str, Any]:
    """The most of three looks in the second epoch."""
    count = int(words.gigabytes * 1e9) // (Rows.batch * ROW_BYTES)
    work = Rows(count)
    loader = with_arguments(*CLASSES[words.peer], 4, work, shuffle=True)
    take(loader.epoch(), work, count)
    batches, seen = loader.epoch(), []
    for _ in range(3):
        take(batches, work, count // 4)
        seen.append(tree_cost.pss_bytes())
    return {"pss_mb": max(seen) / 1e6, "array_mb": work.array.nbytes / 1e6}


def large(words: argparse.Namespace) -> dict[str, Any]:
    """The most of looks in the second half of an epoch; time is that of the second epoch."""
    work = Large(words.batches)
    loader = with_arguments(*CLASSES[words.peer], 4, work)
    seen, whole = [], []
    batches = loader.epoch()
    for number, batch in enumerate(batches):
        work.check(batch, number)
        if number >= words.batches // 2:
            seen.append(tree_cost.pss_bytes())
            whole.append(tree_cost.memory_bytes())
    del batch, batches
    begun, cpu = time.monotonic(), tree_cost.cpu_s()
    take(loader.epoch(), work, words.batches)
    used, wall = tree_cost.cpu_s() - cpu, time.monotonic() - begun
    return {
        "pss_mb": max(seen) / 1e6,
        "whole_mb": max(whole) / 1e6,
        "cpu_ms": 1e3 * used / words.batches,
        "wall_ms": 1e3 * wall / words.batches,
    }


def trainer(words: argparse.Namespace) -> None:
    """One of four: an epoch, a word, and when it is told the second one."""
    work = WORKS[words.work](words.batches)
    more = {"feed": words.feed, "trainers": TRAINERS} if words.feed else {}
    loader = PEERS[words.peer].make(work, **more)
    for word in ("warm", "done"):
        take(loader.epoch(), work, words.batches)
        print(word, flush=True)
        sys.stdin.readline()


def trainers(words: argparse.Namespace) -> dict[str, Any]:
    """Processor time of four trainers, and of all that loads for them, a batch of one."""
    with tempfile.TemporaryDirectory(prefix="ringfeed-bench-") as place:
        command = [sys.executable, __file__, "trainer", words.peer, words.work]
        command.append(f"--batches={words.batches}")
        if words.peer == "ringfeed":
            command.append("--feed=bench")
        running = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "RINGFEED_SOCKET_DIR": place},
            )
            for _ in range(TRAINERS)
        ]

        def all_say(word: str) -> None:
            for one in running:
                assert one.stdout is not None
                if (said := one.stdout.readline().strip()) != word:
                    raise SystemExit(f"a trainer said {said!r} and not {word!r}")

        def tell() -> None:
            for one in running:
                assert one.stdin is not None
                one.stdin.write("go\n")
                one.stdin.flush()

        try:
            all_say("warm")
            cpu = tree_cost.cpu_s()
            tell()
            all_say("done")
            used = tree_cost.cpu_s() - cpu
            tell()
            for one in running:
                if one.wait(60) != 0:
                    raise SystemExit(f"a trainer has ended with {one.returncode}")
        finally:
            for one in running:
                one.kill()
                one.wait()
    return {"cpu_ms": 1e3 * used / words.batches, "batches": words.batches}


class Numbers(Tiny):
    batch = RESUME_BATCH


def _stateful_of(peer: str, work: Any) -> Any:
    """A loader with a state, its workers not kept."""
    module = {"stateful": "torchdata.stateful_dataloader", "ringfeed": "ringfeed.torch"}[peer]
    import importlib

    kind = importlib.import_module(module).StatefulDataLoader
    return kind(work, batch_size=work.batch, num_workers=2)


def state_at(words: argparse.Namespace) -> dict[str, Any]:
    """Writes the state behind so many samples to a file."""
    import torch

    work = Numbers(RESUME_LENGTH // RESUME_BATCH)
    loader = _stateful_of(words.peer, work)
    batches = iter(loader)
    take(batches, work, words.sample // RESUME_BATCH)
    torch.save(loader.state_dict(), words.state)
    return {}


def resume(words: argparse.Namespace) -> dict[str, Any]:
    """From the making of a loader to its batch: of a new one, and of one with the state."""
    import torch

    with tempfile.TemporaryDirectory(prefix="ringfeed-bench-") as place:
        file = Path(place, "state")
        subprocess.run(
            [sys.executable, __file__, "state", words.peer, f"--sample={words.sample}"]
            + [f"--state={file}"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        state = torch.load(file, weights_only=False)
    work = Numbers(RESUME_LENGTH // RESUME_BATCH)
    took: dict[str, list[float]] = {"new_ms": [], "resumed_ms": []}
    for _ in range(RESUMES + 1):
        for name, begin in (("new_ms", 0), ("resumed_ms", words.sample)):
            begun = time.monotonic()
            loader = _stateful_of(words.peer, work)
            if begin:
                loader.load_state_dict(state)
            batches = iter(loader)
            batch = next(batches)
            took[name].append(1e3 * (time.monotonic() - begun))
            work.check(batch, begin // RESUME_BATCH)
            del batches, loader
    # The first of each warms what all need.
    new, resumed = (statistics.median(all_[1:]) for all_ in took.values())
    return {"new_ms": new, "resumed_ms": resumed, "more_ms": resumed - new}


PARTS = {
    "cost": cost,
    "first": first,
    "start": start,
    "memory": memory,
    "large": large,
    "trainer": trainer,
    "trainers": trainers,
    "state": state_at,
    "resume": resume,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("work", choices=WORKS, nargs="?", default="ready")
    parser.add_argument("--batches", type=int, default=128)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--feed", default="")
    parser.add_argument("--sample", type=int, default=1_000_000)
    parser.add_argument("--state", type=Path)
    words = parser.parse_args()
    tree_cost.adopt_orphans()
    found = PARTS[words.part](words)
    if found is not None:
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
