"""Snapshots of a feed with a large reservoir under load: pause, time, and the way back.

Beside them, from the same run, what a plain copy costs: the memory copied once (that is how long
the stages would stand still if they were stopped for it), and written to the same disk.

    python tests/bench/snapshot_bench.py --data DIR --room DIR [--reservoir 1700000] [--rounds 3]

How much changes while it is copied decides how long the pause is, so there are two trainers: one
that takes batches as fast as it can, and one with a step of 100 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import ringfeed  # noqa: E402

from tests.support.feeds.feed_run import FeedRun, wait_until  # noqa: E402

CHUNK = 16 << 20


def plain_copy(bytes_: int, room: Path) -> tuple[float, float]:
    """Seconds to copy so many bytes in memory, and to write and sync them as one file."""
    source = np.full(bytes_, 7, np.uint8)
    target = np.zeros_like(source)  # both touched before the clock runs
    target[:] = 1
    start = time.monotonic()
    target[:] = source
    memory_s = time.monotonic() - start
    del target
    file = room / "plain"
    start = time.monotonic()
    with open(file, "wb") as out:
        for at in range(0, bytes_, CHUNK):
            out.write(source[at : at + CHUNK].data)
        os.fsync(out.fileno())
    disk_s = time.monotonic() - start
    file.unlink()
    return memory_s, disk_s


def take(run: FeedRun, step_ms: float) -> subprocess.Popen[bytes]:
    """A trainer that takes a batch each step."""
    program = ROOT / "tests" / "bench" / "bench_trainer.py"
    words = ["--feed=lc0", "--group=default", f"--count={run.work / 'count'}"]
    words.append(f"--step-ms={step_ms}")
    return subprocess.Popen(
        [sys.executable, str(program), *words], env=run.environment, stdout=subprocess.DEVNULL
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--room", type=Path, required=True, help="directory on the disk to write to"
    )
    parser.add_argument("--reservoir", type=int, default=1_700_000)
    parser.add_argument("--rounds", type=int, default=3, help="for each trainer")
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[0, 100])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    work = arguments.room / "snapshot-bench"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    rows = []
    run = FeedRun(
        work,
        arguments.data,
        epochs=0,
        pool=2000,
        reservoir=arguments.reservoir,
        batch=1024,
        slots=8,
    )
    try:
        run.start()
        os.environ["RINGFEED_SOCKET_DIR"] = str(run.sockets)
        taker = take(run, 0)
        wait_until(lambda: (run.status() or {}).get("state") == "RUNNING", "a full reservoir", 600)
        for number in range(arguments.rounds * len(arguments.steps_ms)):
            step_ms = arguments.steps_ms[number % len(arguments.steps_ms)]
            taker.kill()
            taker.wait()
            taker = take(run, step_ms)
            time.sleep(4)
            done = run.command("snapshot", "lc0", str(work / "saved"), "--json")
            assert done.returncode == 0, done.stderr
            taken = json.loads(done.stdout)
            memory_s, disk_s = plain_copy(taken["bytes"], work)
            taker.kill()
            taker.wait()
            run.close()
            start = time.monotonic()
            run.start("--resume", str(work / "saved"))
            with ringfeed.attach("lc0", attach_timeout_s=60, timeout_s=60) as feed:
                feed.next().release()
                first_s = time.monotonic() - start
            taker = take(run, 0)
            rows.append(
                {
                    "step_ms": step_ms,
                    "bytes": taken["bytes"],
                    "pause_s": taken["pause_us"] / 1e6,
                    "total_s": taken["total_ms"] / 1e3,
                    "resume_to_batch_s": first_s,
                    "memory_copy_s": memory_s,
                    "disk_copy_s": disk_s,
                }
            )
            print(
                f"round {number}, step {step_ms:.0f} ms: {taken['bytes'] / 2**30:.2f} GiB, pause {rows[-1]['pause_s']:.3f} s "
                f"({rows[-1]['pause_s'] / memory_s:.2f} x copied in memory), total "
                f"{rows[-1]['total_s']:.1f} s ({rows[-1]['total_s'] / disk_s:.2f} x written), resume "
                f"to first batch {first_s:.1f} s",
                flush=True,
            )
        taker.kill()
        taker.wait()
    finally:
        run.close()
        shutil.rmtree(work, ignore_errors=True)
    medians = []
    for step_ms in arguments.steps_ms:
        these = [row for row in rows if row["step_ms"] == step_ms]
        median = {name: statistics.median(row[name] for row in these) for name in these[0]}
        medians.append(median)
        print(
            f"median of {len(these)}, step {step_ms:.0f} ms: pause {1e3 * median['pause_s']:.0f} ms, "
            f"a memory copy {1e3 * median['memory_copy_s']:.0f} ms; total {median['total_s']:.1f} s, "
            f"a disk copy {median['disk_copy_s']:.1f} s; resume to first batch "
            f"{median['resume_to_batch_s']:.1f} s"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": rows, "medians": medians}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
