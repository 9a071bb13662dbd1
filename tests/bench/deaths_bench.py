"""What a trainer notices of a stage's death, and how soon the stage works again.

    deaths_bench.py [--deaths 25] [--reservoirs 100000,1000000] [--steps-ms 20,0] [--json FILE]

The Lc0 pipeline with the queues, slots and batches of workers/pipelines/lc0.textproto, a process
for each heavy stage, one trainer that takes so long for each batch (0: as fast as it can). Its
reservoir is full; then one worker after the other gets SIGKILL, a second after the one before
works again.

    gap          the longest time between two batches of the trainer from the blow to half a second
                 after the stage's first step; without a death: the same in the half second before
    gone         from the blow until the kernel has taken the process apart, as far as that can be
                 seen: the pages that it has used are counted down one by one
    attached     from the blow until the lanes' successors have their memory
    first step   from the blow to the successors' first committed step
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the trainer is forked, without NumPy's threads

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import ringfeed  # noqa: E402

from tests.support.feeds.feed_run import FeedRun, wait_until  # noqa: E402
from tests.support.feeds.feed_watch import LaneWatch, spread  # noqa: E402
from tests.support.makers import lc0_data  # noqa: E402

BETWEEN_S = 0.5
RECORD = struct.Struct("<d")
STAGE_GROUPS = ["pool", "mix", "out"]  # "files" has soon done its part
EXTRA = """
stage_groups { name: "files" stages: "provider" stages: "loader" }
stage_groups { name: "pool" stages: "pool" }
stage_groups { name: "mix" stages: "unpacker" stages: "sampler" }
stage_groups { name: "out" stages: "tensors" }
restart { max_restarts: 100000 within_s: 1 }
"""


def fork_trainer(run: FeedRun, out: Path, step_s: float) -> int:
    """Notes when each batch came, until it is killed."""
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        with out.open("ab", buffering=0) as notes:
            feed = ringfeed.attach(run.feed, "default", socket_dir=run.sockets, attach_timeout_s=60)
            for _ in feed:
                notes.write(RECORD.pack(time.monotonic()))
                if step_s:
                    time.sleep(step_s)
    finally:
        os._exit(0)


def longest(times: list[float], begin: float, end: float) -> float:
    """Of the times between two batches that reach into that interval."""
    before = [t for t in times if t <= begin]
    after = [t for t in times if begin < t <= end]
    marks = [*before[-1:], *after]
    return max((b - a for a, b in zip(marks, marks[1:])), default=end - begin)


def measure(
    work: Path, data: Path, storage: Path | None, reservoir: int, step_ms: float, deaths: int
) -> dict[str, Any]:
    place = work / f"{reservoir}-{step_ms:g}"
    place.mkdir()
    extra = EXTRA + (f'storage {{ directory: "{storage}" }}' if storage else "")
    run = FeedRun(place, data, epochs=0, reservoir=reservoir, batch=1024, slots=8, extra=extra)
    config = run.config.read_text().replace("queue_capacity: 512", "queue_capacity: 4096")
    run.config.write_text(config)
    run.start()
    out = place / "times"
    trainer = 0
    try:
        wait_until((run.sockets / f"{run.feed}.sock").exists, "the feed")
        trainer = fork_trainer(run, out, step_ms / 1000)
        wait_until(lambda: out.exists() and out.stat().st_size > 50 * RECORD.size, "batches", 600)
        assert run.process is not None
        watch = LaneWatch(run, run.process.pid)
        spans = []
        for number in range(deaths * len(STAGE_GROUPS)):
            group = STAGE_GROUPS[number % len(STAGE_GROUPS)]
            time.sleep(BETWEEN_S)
            pid = run.all_workers()[group]
            watch.struck(group, pid, "SIGKILL")
            begin = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            while watch.away:
                watch.look()
                assert time.monotonic() < begin + 60, run.text()[-4000:]
                time.sleep(0.0003)
            # Once more as long, in which nothing happens.
            time.sleep(BETWEEN_S)
            spans.append((begin, time.monotonic()))
        time.sleep(BETWEEN_S)
    finally:
        if trainer:
            os.kill(trainer, signal.SIGKILL)
            os.waitpid(trainer, 0)
        run.stop(signal.SIGQUIT)
        run.command("clean", "--force")
        run.close()
    raw = out.read_bytes()
    times = [t for (t,) in RECORD.iter_unpack(raw[: len(raw) // RECORD.size * RECORD.size])]
    shutil.rmtree(place, ignore_errors=True)
    return {
        "reservoir": reservoir,
        "step_ms": step_ms,
        "batches_a_second": round(len(times) / (times[-1] - times[0]), 1),
        "gap": spread([longest(times, begin, end) for begin, end in spans]),
        "gap_without_death": spread(
            [longest(times, begin - BETWEEN_S, begin - 0.02) for begin, _ in spans]
        ),
        "gone": spread([one.died_s - one.struck_s for one in watch.back]),
        "attached": spread([one.attached_s - one.struck_s for one in watch.back]),
        "first_step": spread([one.stepped_s - one.struck_s for one in watch.back]),
        "by_group": {
            group: {
                "gone": spread([o.died_s - o.struck_s for o in watch.back if o.group == group]),
                "first_step": spread(
                    [o.stepped_s - o.struck_s for o in watch.back if o.group == group]
                ),
            }
            for group in STAGE_GROUPS
        },
        "not_told": watch.missed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deaths", type=int, default=25, help="of each of three stage groups")
    parser.add_argument("--reservoirs", default="100000,1000000")
    parser.add_argument("--steps-ms", default="20,0")
    parser.add_argument("--storage", type=Path, help="storage.directory; default: memfds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="rf-deaths-"))
    try:
        data = Path(lc0_data.make_dataset(work / "data", games=400, tars=4, seed=3).directory)
        report = [
            measure(work, data, arguments.storage, int(reservoir), float(step_ms), arguments.deaths)
            for reservoir in arguments.reservoirs.split(",")
            for step_ms in arguments.steps_ms.split(",")
        ]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(report, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
