"""Whole-feed figures: positions per second and per CPU second, beside the bound and beside private
PyTorch DataLoaders.

Every figure stands beside its reference from the same run; rounds are interleaved and the median is
reported.

    python tests/bench/feed_bench.py --bin build/bench/bin --data DIR [--rounds 3] [--seconds 6]
    [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

CONFIG = """
feed: "bench"
seed: 1
stages {{ name: "provider" file_path_provider {{ directory: "{data}" queue_capacity: 64 }} }}
stages {{ name: "loader" chunk_source_loader {{ input: "provider" }} }}
stages {{ name: "pool" shuffling_chunk_pool {{
  input: "loader" {pool} frames {{ {choice} }} queue_capacity: {frame_queue} }} }}
stages {{ name: "sampler" shuffling_frame_sampler {{
  input: "pool" reservoir_size_per_thread: {reservoir} queue_capacity: {frame_queue} }} }}
stages {{ name: "tensors" tensor_generator {{ input: "sampler" batch_size: 1024 }} }}
feed_output {{ slots: 8 }}
{extra}
"""


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    pids = [pid]
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    for child in children:
        pids += tree(int(child))
    return pids


def cpu_s(pids: list[int]) -> float:
    """User and system time of these processes."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def switches(pids: list[int]) -> int:
    """Context switches of all threads of these processes."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for line in (task / "status").read_text().splitlines():
                if "ctxt_switches" in line:
                    total += int(line.split()[1])
    return total


def memory_bytes(pids: list[int]) -> int:
    """Proportional set size: shared memory is counted once over all processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


class Feed:
    """A running feed with trainers, for one measurement."""

    def __init__(self, arguments: argparse.Namespace, trainers: int, **settings: Any) -> None:
        self.work = Path(tempfile.mkdtemp(prefix="ringfeed-bench-"))
        values = {
            "choice": "position_sampling_rate: 1",
            "pool": "",
            "reservoir": 100000,
            "frame_queue": 4096,
            "extra": "",
        }
        config = self.work / "bench.textproto"
        pipeline = settings.pop("pipeline", CONFIG)
        trainer_words = settings.pop("trainer_words", ["--group=g{i}"])
        config.write_text(pipeline.format(**{**values, "data": arguments.data, **settings}))
        self.environment = {
            **os.environ,
            "RINGFEED_SOCKET_DIR": str(self.work / "sockets"),
            "RINGFEED_LIBRARY": str(arguments.bin.parent / "lib" / "libringfeed.so"),
            "PYTHONPATH": str(ROOT / "pyclient"),
        }
        self.program = str(arguments.bin / "ringfeed")
        self.log = open(self.work / "log", "w")
        self.supervisor = subprocess.Popen(
            [str(arguments.bin / "ringfeed"), "run", str(config)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        self.trainers = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "tests" / "bench" / "bench_trainer.py"),
                    "--feed=bench",
                    f"--count={self.work}/count{i}",
                    *(word.format(i=i) for word in trainer_words),
                ],
                env=self.environment,
                stdout=subprocess.DEVNULL,
            )
            for i in range(trainers)
        ]

    def counts(self) -> list[tuple[int, int]]:
        found = []
        for i in range(len(self.trainers)):
            try:
                positions, batches = (self.work / f"count{i}").read_text().split()
                found.append((int(positions), int(batches)))
            except (FileNotFoundError, ValueError):
                found.append((0, 0))
        return found

    def store_is_warm(self) -> bool:
        """Has the pool's store got nearly all that it is asked for, lately?"""
        seen = []
        for _ in range(2):
            counters = pool_counters(self.environment, self.program)
            seen.append((counters.get("store_hits", 0), counters.get("store_misses", 0)))
            time.sleep(0.5)
        hits, misses = (after - before for before, after in zip(*seen))
        return hits > 0 and misses <= hits / 500

    def measure(
        self, seconds: float, warm_batches: int = 16, warm_store: bool = False
    ) -> dict[str, float]:
        end = time.monotonic() + 600
        while min(batches for _, batches in self.counts()) < warm_batches or (
            warm_store and not self.store_is_warm()
        ):
            if time.monotonic() > end or self.supervisor.poll() is not None:
                raise RuntimeError((self.work / "log").read_text())
            time.sleep(0.05)
        pids = [pid for root in [self.supervisor, *self.trainers] for pid in tree(root.pid)]
        before, cpu, switched, begun = self.counts(), cpu_s(pids), switches(pids), time.monotonic()
        time.sleep(seconds)
        after, cpu_after, switched_after = self.counts(), cpu_s(pids), switches(pids)
        wall = time.monotonic() - begun
        positions = sum(a[0] - b[0] for a, b in zip(after, before))
        batches = sum(a[1] - b[1] for a, b in zip(after, before))
        return {
            "positions_per_s": positions / wall,
            "batches_per_s": batches / wall,
            "cpu_s_per_million": 1e6 * (cpu_after - cpu) / max(positions, 1),
            "positions_per_cpu_s": positions / max(cpu_after - cpu, 1e-9),
            "switches_per_position": (switched_after - switched) / max(positions, 1),
            "memory_bytes": memory_bytes(pids),
        }

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.send_signal(signal.SIGTERM)
        for trainer in self.trainers:
            trainer.wait(30)
        self.supervisor.send_signal(signal.SIGTERM)
        self.supervisor.send_signal(signal.SIGTERM)
        self.supervisor.wait(30)
        self.log.close()


def pool_counters(environment: dict[str, str], program: str) -> dict[str, int]:
    """Counters of the pool."""
    done = subprocess.run(
        [program, "status", "bench", "--json"], env=environment, capture_output=True, text=True
    )
    for stage in json.loads(done.stdout or "{}").get("stages", []):
        if stage["name"] == "pool":
            return {counter["name"]: int(counter["value"]) for counter in stage["counters"]}
    return {}


def many_games(data: Path, copies: int) -> Path:
    """A directory in which every file of the data stands under so many names: as many games."""
    directory = data.parent / f"{data.name}-x{copies}"
    if not directory.exists():
        directory.mkdir()
        for path in data.glob("*.tar"):
            for copy in range(copies):
                os.link(path, directory / f"{path.stem}-{copy:03}.tar")
    return directory


def measure_feed(
    arguments: argparse.Namespace, trainers: int, warm_store: bool = False, **settings: Any
) -> dict[str, float]:
    feed = Feed(arguments, trainers, **settings)
    try:
        return feed.measure(arguments.seconds, warm_store=warm_store)
    finally:
        feed.close()


def run_json(words: list[str]) -> dict[str, Any]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def median(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--peers", action="store_true", help="also measure PyTorch DataLoaders")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    tars = sorted(str(path) for path in arguments.data.rglob("*.tar"))
    rows: dict[str, list[dict[str, float]]] = {}
    many = many_games(arguments.data, 50)

    def note(name: str, row: dict[str, float]) -> None:
        rows.setdefault(name, []).append(row)
        print(f"  {name}: " + ", ".join(f"{k} {v:,.3g}" for k, v in row.items()), file=sys.stderr)

    for _ in range(arguments.rounds):
        bound = run_json([str(arguments.bin / "lc0_bound"), "--seconds", "3", *tars])
        note("bound", {key: float(bound[key]) for key in ("positions_per_cpu_s", "inflate_share")})
        note("rate 1", measure_feed(arguments, 1))
        store = "store_bytes: 1000000000"
        rate: dict[str, Any] = {"choice": "position_sampling_rate: 0.03", "reservoir": 5000}
        note("rate 0.03", measure_feed(arguments, 1, **rate))
        note("rate 0.03, store", measure_feed(arguments, 1, True, pool=store, **rate))
        hanse = {"choice": "position_count: 1", "reservoir": 5000, "data": many}
        sampling = "hanse_sampling_threshold: 250"
        note("hanse", measure_feed(arguments, 1, pool=sampling, **hanse))
        sampling += " store_bytes: 6000000000"
        note("hanse, store", measure_feed(arguments, 1, True, pool=sampling, **hanse))
        for trainers in (2, 4):
            note(f"{trainers} trainers", measure_feed(arguments, trainers))
        if arguments.peers:
            for loaders in (1, 2, 4):
                peer = run_json(
                    [
                        sys.executable,
                        str(ROOT / "tests" / "bench" / "peer_torch.py"),
                        str(arguments.data),
                        f"--loaders={loaders}",
                        "--workers=1",
                        "--batch-size=1024",
                        f"--shuffle-size={100000 // loaders}",
                        f"--seconds={arguments.seconds}",
                    ]
                )
                note(
                    f"{loaders} DataLoaders",
                    {
                        key: float(peer[key])
                        for key in ("positions_per_s", "batches_per_s", "cpu_s_per_million")
                    },
                )
    result = {name: median(values) for name, values in rows.items()}
    ratios = {
        "rate 1: positions per CPU second / bound": result["rate 1"]["positions_per_cpu_s"]
        / result["bound"]["positions_per_cpu_s"],
        # Of a game at rate 0.03 three hundredths of the positions come out, all are inflated.
        "rate 0.03: positions per CPU second / inflating alone": result["rate 0.03"][
            "positions_per_cpu_s"
        ]
        / (0.03 * result["bound"]["positions_per_cpu_s"] / result["bound"]["inflate_share"]),
        "rate 0.03: store / cold": result["rate 0.03, store"]["positions_per_cpu_s"]
        / result["rate 0.03"]["positions_per_cpu_s"],
        "hanse: store / cold": result["hanse, store"]["positions_per_cpu_s"]
        / result["hanse"]["positions_per_cpu_s"],
        "rate 1: switches per position": result["rate 1"]["switches_per_position"],
        "4 trainers / 1: CPU per delivered position": result["4 trainers"]["cpu_s_per_million"]
        / result["rate 1"]["cpu_s_per_million"],
    }
    if arguments.peers:
        ratios["4 trainers / 4 DataLoaders: batches"] = (
            result["4 trainers"]["batches_per_s"] / result["4 DataLoaders"]["batches_per_s"]
        )
    for name, row in result.items():
        print(f"{name:16s} " + "  ".join(f"{key} {value:,.4g}" for key, value in row.items()))
    for name, value in ratios.items():
        print(f"{name}: {value:.3f}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"median": result, "rounds": rows, "ratios": ratios}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
