"""The storm over stages in Python: a source, a map in four processes, a shuffle, a batcher.

    python tests/crash/python_storm.py --kills 1000 [--seed 1] [--json FILE]

Blows, trainers and audit are those of storm.py. Beside its signals, a process of Python is told to
end itself in the ways that users' code does (storm_stage.py): os._exit, a segfault in ctypes, an
abort, a loop without end, an allocation without end (which the kernel's OOM killer ends, in a
control group with a limit; where there can be none, the storm kills what has grown so far), and an
exception in the constructor of its successor. Warm parents are struck as well. Some samples raise
in every run; they are left out and counted, and the counts have to be those of the undisturbed run.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import storm
import storm_stage

from tests.support.feeds.feed_run import ROOT, processes_of, runs

PIPELINE = """
feed: "{feed}"
seed: 7
epochs: {epochs}
stages {{ name: "rows" python_source {{
  object: "storm_stage:Rows" python_path: "{modules}" options: '{options}' }} }}
stages {{ name: "work" python {{ input: "rows"
  object: "storm_stage:Work" python_path: "{modules}" options: '{options}'
  processes: 4 batch: 8 }} }}
stages {{ name: "mixed" sample_shuffler {{ input: "work" size: 400 }} }}
stages {{ name: "out" sample_batcher {{
  input: "mixed" batch_size: 32
  fields {{ name: "id" dtype: "int64" }}
  fields {{ name: "drawn" dtype: "float64" shape: 3 }}
  fields {{ name: "text" dtype: "text" }} }} }}
stage_groups {{ name: "rows" stages: "rows" }}
stage_groups {{ name: "work" stages: "work" }}
stage_groups {{ name: "mixed" stages: "mixed" }}
stage_groups {{ name: "out" stages: "out" }}
feed_output {{ slots: 12 {groups} }}
restart {{
  max_restarts: 100000 within_s: 1 backoff_ms_max: 20 stall_ms: {stall_ms} max_attempts: 255 }}
{extra}
"""
ORDERS = {
    "exit": storm_stage.EXIT,
    "segfault": storm_stage.SEGFAULT,
    "abort": storm_stage.ABORT,
    "loop": storm_stage.LOOP,
    "hog": storm_stage.HOG,
}


def control_group() -> Path | None:
    """A new control group of which nobody may have more memory than storm_stage.HOG_BYTES."""
    for parent, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = parent / f"ringfeed-storm-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(storm_stage.HOG_BYTES))
            return group
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
    return None


class PythonScene(storm.Scene):
    """The feed: rows by number, each with what was drawn for it."""

    stage_groups = {
        "rows.0": 2,
        **{f"work.{lane}": 2 for lane in range(4)},
        "mixed": 2,
        "out": 2,
    }
    victims = {"worker": 6, "parent": 1, "trainer": 2, "supervisor": 2}
    blows = {
        **storm.Scene.blows,
        "worker": {
            **{"SIGKILL": 30, "SIGSEGV": 5, "SIGBUS": 5, "SIGABRT": 5, "SIGSTOP": 5},
            **{"exit": 10, "segfault": 10, "abort": 5, "loop": 5, "hog": 10, "raise": 10},
        },
        "parent": {"SIGKILL": 60, "SIGSEGV": 20, "SIGSTOP": 20},
    }
    batches_an_epoch = storm_stage.ROWS // 32
    ahead_ms = 200.0

    def __init__(self, work: Path, stall_ms: int) -> None:
        self.data = work
        self.stall_ms = stall_ms
        self.group = control_group()

    def settings_in(self, work: Path) -> dict[str, Any]:
        work.mkdir(exist_ok=True)
        orders = work / "orders"
        orders.write_bytes(bytes(storm_stage.ORDERS))
        options = f'{{"orders": "{orders}", "group": "{self.group or ""}"}}'
        return {
            "feed": "python",
            "pipeline": PIPELINE,
            "modules": str(ROOT / "tests" / "crash"),
            "options": options,
            "groups": storm.GROUPS,
            "stall_ms": self.stall_ms,
            "extra": "",
        }

    def close(self) -> None:
        if self.group is not None:
            self.group.rmdir()

    def wrong(self, undisturbed: str, disturbed: str) -> list[str]:
        counts = [
            re.findall(r"^  work: .*?skipped_ValueError=(\d+)", text, re.MULTILINE)
            for text in (undisturbed, disturbed)
        ]
        if len(counts[0]) == 1 and counts[0] == counts[1]:
            return []
        return [f"samples that raised: {counts[1]} are counted, {counts[0]} without a storm"]


class PythonStorm(storm.Storm):
    """Strikes as a user's own code does, and warm parents."""

    def __init__(self, scene: PythonScene, *rest: Any) -> None:
        super().__init__(scene, *rest)
        self.orders = storm_stage.mapped(str(self.run.work / "orders"))
        self.kernel_ends_hogs = scene.group is not None
        self.hogs: set[int] = set()

    def strike_worker(self, how: str, dice: random.Random) -> bool:
        if how not in ORDERS and how != "raise":
            return super().strike_worker(how, dice)
        there = self.strikable()
        lanes = ["rows.0", *(f"work.{lane}" for lane in range(4))]
        index = dice.randrange(1 if how == "raise" else 0, len(lanes))
        pid = there.get(lanes[index])
        if pid is None or not self.spared(pid) or self.orders[index]:
            return False
        assert self.watch is not None
        # One that has finished takes no orders.
        if not any(not self.watch.finished(lane) for lane in self.watch.lanes_of(pid)):
            return False
        self.watch.struck(lanes[index], pid, how)
        if how == "raise":
            self.orders[storm_stage.AT_START] = storm_stage.RAISE
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        else:
            self.orders[index] = ORDERS[how]
        if how == "hog" and not self.kernel_ends_hogs:
            self.hogs.add(pid)
        self.struck.add(pid)
        self.note("worker", how)
        return True

    def strike_parent(self, how: str, dice: random.Random) -> bool:
        workers = set(self.run.all_workers().values())
        parents = sorted(
            pid
            for pid in processes_of(self.run)
            if pid not in workers and pid not in self.struck and is_parent(pid)
        )
        if not parents:
            return False
        pid = dice.choice(parents)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, getattr(signal, how))
        if how == "SIGSTOP":
            self.stopped[pid] = time.monotonic() + 0.3 * dice.random()
        else:
            self.struck.add(pid)
        self.note("parent", how)
        return True

    def look_after(self) -> None:
        super().look_after()
        for pid in list(self.hogs):
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                if pages * os.sysconf("SC_PAGE_SIZE") > storm_stage.HOG_BYTES:
                    os.kill(pid, signal.SIGKILL)
            if not runs(pid):
                self.hogs.discard(pid)


def is_parent(pid: int) -> bool:
    """Is it a warm parent, or just being forked from one?"""
    try:
        return b"--warm-fd" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    os.environ["RINGFEED_PYTHON"] = sys.executable
    sys.exit(storm.main(PythonScene, PythonStorm))
