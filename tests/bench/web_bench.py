"""What it costs to look at a feed with `ringfeed web`, and what an attack on that does to the feed.

    web_bench.py [--seconds 30] [--connections 10000] [--json FILE]

The Lc0 pipeline with many lanes and rings, and one trainer that takes 20 ms for each batch. Three
times as long as each other: nobody looks; Prometheus' text is asked for every second and a page is
open (its stream of events); and connections that ask for nothing, ask slowly, or ask nonsense.

    cpu          of `ringfeed web`, and of the supervisor beyond what it takes when nobody looks;
                 in percent of a core
    gap          between two batches of the trainer: median, 99 %, longest

What is asked of these figures is printed below them: at most half a percent of a core for looking,
and gaps under attack as when nobody looks, in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the trainer is forked, without NumPy's threads

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import ringfeed  # noqa: E402

from tests.support.feeds.feed_run import FeedRun, wait_until  # noqa: E402
from tests.support.feeds.web import Web  # noqa: E402
from tests.support.makers import lc0_data  # noqa: E402

STEP_S = 0.02
AT_ONCE = 400  # connections that are open at a time
REQUESTS = (
    b"",
    b"GET /metr",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n",
    b"GET /?" + b"a" * 9000,
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2000,
    bytes(range(256)),
)
# Many lanes, and rings from each to each.
SHAPE = {"loaders": 4, "readers": 17, "unpackers": 16, "generators": 4}
RECORD = struct.Struct("<d")


def fork_trainer(run: FeedRun, out: Path) -> int:
    """Notes when each batch came, until it is killed."""
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        with out.open("ab", buffering=0) as notes:
            feed = ringfeed.attach(run.feed, "default", socket_dir=run.sockets, attach_timeout_s=60)
            for _ in feed:
                notes.write(RECORD.pack(time.monotonic()))
                time.sleep(STEP_S)
    finally:
        os._exit(0)


def gaps(out: Path, begin: float, end: float) -> dict[str, float]:
    """Of the batches in that interval, in milliseconds."""
    raw = out.read_bytes()
    times = [t for (t,) in RECORD.iter_unpack(raw[: len(raw) // RECORD.size * RECORD.size])]
    times = [t for t in times if begin <= t <= end]
    between = sorted(1000 * (b - a) for a, b in zip(times, times[1:]))
    return {
        "batches": len(times),
        "median_ms": round(statistics.median(between), 2),
        "p99_ms": round(between[int(0.99 * len(between))], 2),
        "longest_ms": round(between[-1], 2),
    }


def cpu_s(pid: int) -> float:
    """To the nanosecond; of all threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def look(web: Web, seconds: float) -> None:
    """A scrape a second, and what an open page asks for."""
    over = threading.Event()

    def page() -> None:
        with web.connect() as link:
            link.settimeout(1)
            request = f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\n\r\n"
            link.sendall(request.encode())
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    if not link.recv(1 << 20):
                        return

    reader = threading.Thread(target=page)
    reader.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert web.get("/metrics")[0] == 200
        time.sleep(1)
    over.set()
    reader.join()


def attack(web: Web, connections: int, seconds: float) -> None:
    """Spread over the time: whoever attacks as fast as it can takes a processor itself."""
    held: list[socket.socket] = []
    begin = time.monotonic()
    for number in range(connections):
        ahead = begin + seconds * number / connections - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        link = socket.create_connection(("127.0.0.1", web.port), timeout=60)
        with contextlib.suppress(OSError):
            link.sendall(REQUESTS[number % len(REQUESTS)])
        held.append(link)
        if len(held) > AT_ONCE:
            held.pop(0).close()
    for link in held:
        link.close()


def measure(work: Path, data: Path, seconds: float, connections: int) -> dict[str, Any]:
    run = FeedRun(work, data, epochs=0, reservoir=2000, batch=64, slots=24, **SHAPE)
    out = work / "times"
    trainer = 0
    web = None
    report: dict[str, Any] = {}
    try:
        run.start()
        wait_until((run.sockets / f"{run.feed}.sock").exists, "the feed")
        trainer = fork_trainer(run, out)
        wait_until(lambda: out.exists() and out.stat().st_size > 50 * RECORD.size, "batches", 600)
        web = Web(run)
        status = run.status()
        assert status is not None and run.process is not None
        report["lanes"] = sum(len(stage["lanes"]) for stage in status["stages"])
        report["rings"] = len(status["rings"])
        pids = {"web": web.process.pid, "supervisor": run.process.pid}

        def phase(name: str, act: Callable[[], None]) -> None:
            before = {who: cpu_s(pid) for who, pid in pids.items()}
            begin = time.monotonic()
            act()
            end = time.monotonic()
            used = {
                who: 100 * (cpu_s(pid) - before[who]) / (end - begin) for who, pid in pids.items()
            }
            report[name] = {
                "seconds": round(end - begin, 1),
                "cpu_web_percent": round(used["web"], 3),
                "cpu_supervisor_percent": round(used["supervisor"], 3),
                "gap": gaps(out, begin, end),
            }

        phase("nobody_looks", lambda: time.sleep(seconds))
        phase("a_scrape_a_second_and_a_page", lambda: look(web, seconds))
        phase(f"{connections}_connections", lambda: attack(web, connections, seconds))
        assert web.get("/healthz")[0] == 200
        phase("nobody_looks_again", lambda: time.sleep(seconds))
    finally:
        if trainer:
            os.kill(trainer, signal.SIGKILL)
            os.waitpid(trainer, 0)
        if web is not None:
            web.close()
        run.close()
    return report


def goals(report: dict[str, Any]) -> list[tuple[str, float, float]]:
    """The claim, the figure (lower is better), the limit."""
    quiet = [report[name]["gap"] for name in ("nobody_looks", "nobody_looks_again")]
    attacked = next(found["gap"] for name, found in report.items() if name.endswith("_connections"))

    def times_quiet(which: str) -> float:
        return attacked[which] / statistics.mean(gap[which] for gap in quiet)

    def cpu(name: str) -> float:
        return report[name]["cpu_web_percent"] + report[name]["cpu_supervisor_percent"]

    quiet_cpu = statistics.mean(cpu(name) for name in ("nobody_looks", "nobody_looks_again"))
    looking = cpu("a_scrape_a_second_and_a_page") - quiet_cpu
    return [
        ("a scrape a second and a page: at most 0.5 % of a core", looking, 0.5),
        ("median gap under attack: at most 1.1 x that without", times_quiet("median_ms"), 1.1),
        ("99 % of gaps under attack: at most 1.5 x that without", times_quiet("p99_ms"), 1.5),
    ]


def main() -> int:
    """Prints the figures; 1 if one is beyond its limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="rf-web-"))
    try:
        data = Path(lc0_data.make_dataset(work / "data", games=400, tars=4, seed=3).directory)
        place = work / "feed"
        place.mkdir()
        report = measure(place, data, arguments.seconds, arguments.connections)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(report, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))
    missed = 0
    for claim, figure, limit in goals(report):
        print(f"{claim}: {figure:.2f}" + ("" if figure <= limit else " (missed)"))
        missed += figure > limit
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
