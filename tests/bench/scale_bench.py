"""What a whole Lc0 feed takes: each step beside its limit, two cores against one, the way to the
first batch, memory over millions of positions.

python tests/bench/scale_bench.py --bin build/bench/bin --data DIR [--rounds 3] [--seconds 6]
[--json FILE]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feed_bench import Feed, median, memory_bytes, run_json, tree

TARS, GAMES_PER_TAR = 100, 200
POSITIONS = 10_000_000
RESERVOIR = 1_000_000


@contextmanager
def only_cores(count: int) -> Iterator[None]:
    """Everything that is started in here runs on so many of this process's cores."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(mine)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def cores(arguments: argparse.Namespace) -> dict[str, float]:
    """Positions per second of wall clock, in turn: on one core, on two, on two with a second
    reading lane; and what two of lc0_bound do beside each other, which is the machine's own share.
    """
    tars = sorted(str(path) for path in arguments.data.glob("*.tar"))
    bound = [str(arguments.bin / "lc0_bound"), "--seconds", "3", *tars]
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)
        print(f"  {name}: {value:,.0f}/s", file=sys.stderr)

    for _ in range(2 * arguments.rounds):
        for name, count, pool in (
            ("one core", 1, ""),
            ("two cores", 2, ""),
            ("two cores, two readers", 2, "threads: 2"),
        ):
            with only_cores(count):
                feed = Feed(arguments, 1, pool=pool)
            try:
                note(name, feed.measure(arguments.seconds)["positions_per_s"])
            finally:
                feed.close()
        note("one bound", float(run_json(bound)["positions_per_cpu_s"]))
        pair = [subprocess.Popen(bound, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        each = [json.loads(process.communicate()[0])["positions_per_cpu_s"] for process in pair]
        note("two bounds", float(sum(each)))
    result = {f"{name}, positions/s": statistics.median(row) for name, row in rows.items()}
    middle = {name: statistics.median(row) for name, row in rows.items()}
    for name in ("two cores", "two cores, two readers"):
        result[f"{name} / one core"] = middle[name] / middle["one core"]
    result["two bounds / one bound"] = middle["two bounds"] / middle["one bound"]
    return result


def many_tars(arguments: argparse.Namespace) -> Path:
    """20,000 games in 100 tars: those of the data, over and over, under names of their own."""
    directory: Path = arguments.data.parent / f"{arguments.data.name}-{TARS}-tars"
    if directory.exists():
        return directory
    games = []
    for path in sorted(arguments.data.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                if member.name.endswith(".gz") and file is not None:
                    games.append(file.read())
    unfinished = directory.with_suffix(".unfinished")
    unfinished.mkdir(exist_ok=True)
    for tar in range(TARS):
        with tarfile.open(unfinished / f"training-{tar:03}.tar", "w") as archive:
            for i in range(GAMES_PER_TAR):
                number = tar * GAMES_PER_TAR + i
                data = games[number % len(games)]
                info = tarfile.TarInfo(f"training-{tar:03}/training.{number}.gz")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    unfinished.rename(directory)
    return directory


def forget_pages(directory: Path) -> None:
    """Out of the page cache, as far as the kernel does what it is asked for."""
    os.sync()
    for path in directory.glob("*.tar"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


START = """
feed: "start"
seed: 1
stages {{ name: "provider" file_path_provider {{ directory: "{data}" queue_capacity: 64 }} }}
stages {{ name: "loader" chunk_source_loader {{ input: "provider" {index} }} }}
stages {{ name: "pool" shuffling_chunk_pool {{ input: "loader" frames {{ }} }} }}
stages {{ name: "sampler" shuffling_frame_sampler {{
  input: "pool" reservoir_size_per_thread: {reservoir} queue_capacity: 4096 }} }}
stages {{ name: "tensors" tensor_generator {{ input: "sampler" batch_size: 1024 }} }}
"""


def first_batch_s(arguments: argparse.Namespace, data: Path, index: str, reservoir: int) -> float:
    """From the start of `ringfeed run` to a batch in a trainer's hands."""
    work = Path(tempfile.mkdtemp(prefix="ringfeed-bench-"))
    config = work / "start.textproto"
    config.write_text(START.format(data=data, index=index, reservoir=reservoir))
    environment = {
        **os.environ,
        "RINGFEED_SOCKET_DIR": str(work / "sockets"),
        "RINGFEED_LIBRARY": str(arguments.bin.parent / "lib" / "libringfeed.so"),
    }
    os.environ.update(environment)
    import ringfeed

    forget_pages(data)
    with open(work / "log", "w") as log:
        begun = time.monotonic()
        supervisor = subprocess.Popen(
            [str(arguments.bin / "ringfeed"), "run", str(config)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            with ringfeed.attach(
                "start", socket_dir=work / "sockets", attach_timeout_s=60, timeout_s=300
            ) as feed:
                feed.next().release()
            return time.monotonic() - begun
        finally:
            supervisor.terminate()
            supervisor.terminate()
            supervisor.wait(60)


def start(arguments: argparse.Namespace) -> dict[str, float]:
    data = many_tars(arguments)
    rows: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for reservoir in (1024, 100_000):
            with tempfile.TemporaryDirectory(prefix="ringfeed-index-") as index:
                for name in ("cold", "with the index"):
                    words = f'cache_directory: "{index}"'
                    row = rows.setdefault(f"first batch, reservoir {reservoir}, {name}, s", [])
                    row.append(first_batch_s(arguments, data, words, reservoir))
                    print(f"  reservoir {reservoir}, {name}: {row[-1]:.2f} s", file=sys.stderr)
    return {name: statistics.median(row) for name, row in rows.items()}


def memory(arguments: argparse.Namespace) -> dict[str, float]:
    """Memory with a reservoir of a million frames, from its filling on: of supervisor and workers
    with all that is shared, and of the trainer's own process, which has Python and NumPy in it."""
    feed = Feed(arguments, 1, reservoir=RESERVOIR)
    try:
        feed.measure(1)
        first = feed.counts()[0][0]
        sizes = []
        own = tree(feed.supervisor.pid)
        trainers = [pid for trainer in feed.trainers for pid in tree(trainer.pid)]
        while not sizes or sizes[-1][0] < POSITIONS:
            positions = feed.counts()[0][0] - first
            sizes.append((positions, memory_bytes(own), memory_bytes(trainers)))
            print(
                f"  {positions:,}: {sizes[-1][1] / 1e6:,.0f} MB, "
                f"trainer {sizes[-1][2] / 1e6:,.0f} MB",
                file=sys.stderr,
            )
            time.sleep(2)
        parts = subprocess.run(
            [feed.program, "check", str(feed.work / "bench.textproto")],
            capture_output=True,
            text=True,
        ).stdout
        print(parts[parts.find("memory") :], file=sys.stderr)
        early = [size for at, size, _ in sizes if at < POSITIONS / 10]
        late = [size for at, size, _ in sizes if at > POSITIONS * 9 / 10]
        return {
            "largest, GB": max(size for _, size, _ in sizes) / 1e9,
            "with the trainer's process, GB": max(a + b for _, a, b in sizes) / 1e9,
            "first tenth, GB": statistics.median(early) / 1e9,
            "last tenth, GB": statistics.median(late) / 1e9,
        }
    finally:
        feed.close()


def steps(arguments: argparse.Namespace) -> dict[str, float]:
    """CPU time of each stage per position, on one core, beside the two limits."""
    tars = sorted(str(path) for path in arguments.data.glob("*.tar"))
    rows: list[dict[str, float]] = []

    def bound() -> dict[str, float]:
        found = run_json([str(arguments.bin / "lc0_bound"), "--seconds", "3", *tars])
        return {
            "limit: libdeflate alone, us": float(found["inflate_us"]),
            "the feed's inflater alone, us": float(found["own_inflate_us"]),
            "limit: memset of the tensors, us": float(found["store_us"]),
            "lc0_bound, us": 1e6 / float(found["positions_per_cpu_s"]),
        }

    for _ in range(arguments.rounds):
        # Before and after the feed: machines change their pace within seconds.
        with only_cores(1):
            bounds = [bound()]
            feed = Feed(arguments, 1)
        try:
            whole = feed.measure(11)  # the window of 10 s is then one of steady work
            done = subprocess.run(
                [feed.program, "metrics", "bench", "--json"],
                env=feed.environment,
                capture_output=True,
                text=True,
                check=True,
            )
        finally:
            feed.close()
        with only_cores(1):
            bounds.append(bound())
        row = {name: statistics.mean(each[name] for each in bounds) for name in bounds[0]}
        window = next(w for w in json.loads(done.stdout)["windows"] if w["seconds_wanted"] == 10)
        positions = whole["positions_per_s"] * float(window["seconds_covered"])
        for stage in window["metrics"]["stage_metrics"]:
            for own in stage.values():
                for load in own.get("loads", []) if isinstance(own, dict) else []:
                    part = "" if load["name"] == "load" else f".{load['name']}"
                    row[f"{stage['name']}{part}, us"] = 1e6 * load.get("cpu_seconds", 0) / positions
        row["whole tree, us"] = 1e6 / whole["positions_per_cpu_s"]
        row["whole tree / libdeflate"] = row["whole tree, us"] / row["limit: libdeflate alone, us"]
        rows.append(row)
        print("  " + ", ".join(f"{k} {v:.2f}" for k, v in row.items()), file=sys.stderr)
    return median(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("parts", nargs="*", default=[])
    arguments = parser.parse_args()
    parts: dict[str, Any] = {"steps": steps, "cores": cores, "start": start, "memory": memory}
    result = {}
    for name in arguments.parts or parts:
        print(name, file=sys.stderr)
        result[name] = parts[name](arguments)
        for what, value in result[name].items():
            print(f"{what}: {value:,.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
