"""Chess pipelines: samples per CPU second of the whole tree, beside a plain pandas and PyTorch
loader of the same rules.

Rounds of both are interleaved and medians reported; with `perf` on the machine also which part of
the feed the time goes to, by the function that was running.

    python tests/bench/chess_bench.py --bin build/bench/bin --data DIR [--rounds 3] [--seconds 6]
    [--json FILE]

DIR has `games` and `variations` (tests/support/makers/chess_data.py).
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from feed_bench import ROOT, Feed, median, run_json, tree

GAMES = """
feed: "bench"
seed: 1
stages {{ name: "rows" parquet_source {{ directory: "{data}/games" }} }}
stages {{ name: "games" chess_games {{
  input: "rows" length_max: {length} skip_board_probability: {skip} pool_size: 2000 }} }}
"""
BATCHES = """
stages {{ name: "batches" sequence_batcher {{ input: "{last}" batch_size: {batch} }} }}
feed_output {{ slots: 8 }}
"""
VARIATIONS = """
stages {{ name: "searched" parquet_source {{ directory: "{data}/variations" repeat: true }} }}
stages {{ name: "variations" chess_variations {{ input: "searched" length_max: {length} pool_size: 500 }} }}
stages {{ name: "mixer" variation_mixer {{ input: "games" variations: "variations" variation_ratio: 0.2 }} }}
"""
MODES = {
    "pretrain": {
        "pipeline": GAMES + BATCHES,
        "length": 256,
        "batch": 64,
        "skip": 0.2,
        "last": "games",
    },
    "finetune": {
        "pipeline": GAMES + VARIATIONS + BATCHES,
        "length": 1024,
        "batch": 16,
        "skip": 0.0,
        "last": "mixer",
    },
}
PEER_SAMPLES = {"pretrain": 600, "finetune": 400}
# What must be reached: samples per CPU second, as a multiple of the peer's.
GOALS = {"pretrain": 200, "finetune": 40}

# By the name of the function, the first that fits.
PARTS = [
    ("Parquet", r"arrow|parquet|snappy|[Pp]arquet|RowFile|formats::.*Column::|ByteArray"),
    ("transport", r"ringfeed::shm|LaneRuntime|ringfeed::Step|InputPort|OutputPort|futex|bell"),
    ("batches", r"write_tokens|SequenceBatcher"),
    (
        "tokens",
        r"read_fen|find_token|GameTokens|GameSequences|board_id|read_variations|VariationRows|nlohmann|Variation",
    ),
    ("games", r"ChessGames|GameIndex|FileRows|RowBatch|game_row|philox|Random"),
    ("pool", r"SequencePool|PlacePool"),
    ("copying", r"mem(move|cpy|set)"),
]


def measure(arguments: argparse.Namespace, mode: str, trainers: int) -> dict[str, float]:
    feed = Feed(arguments, trainers, **MODES[mode])
    try:
        got = feed.measure(arguments.seconds)
    finally:
        feed.close()
    return {
        "samples_per_s": got["positions_per_s"],
        "samples_per_cpu_s": got["positions_per_cpu_s"],
        "switches_per_sample": got["switches_per_position"],
        "memory_bytes": got["memory_bytes"],
    }


def peer(arguments: argparse.Namespace, mode: str) -> dict[str, float]:
    settings = MODES[mode]
    got = run_json(
        [
            sys.executable,
            str(ROOT / "tests" / "bench" / "peer_chess.py"),
            mode,
            f"--games={arguments.data}/games",
            f"--variations={arguments.data}/variations",
            f"--length={settings['length']}",
            f"--batch-size={settings['batch']}",
            f"--skip-board-prob={settings['skip']}",
            f"--samples={PEER_SAMPLES[mode]}",
        ]
    )
    return {
        "samples_per_cpu_s": got["samples"] / got["cpu_s"],
        "memory_bytes": got["peak_rss_bytes"],
    }


def profile(arguments: argparse.Namespace, mode: str) -> dict[str, float]:
    """Shares of the workers' CPU time, by part; of what is copied, by who asked for it where perf
    can tell.
    """
    feed = Feed(arguments, 1, **MODES[mode])
    data = feed.work / "perf.data"
    try:
        feed.measure(1.0)
        workers = [pid for pid in tree(feed.supervisor.pid) if pid != feed.supervisor.pid]
        subprocess.run(
            ["perf", "record", "-q", "-e", "cpu-clock", "-F", "999", "-o", str(data)]
            + ["-p", ",".join(map(str, workers)), "--", "sleep", str(arguments.seconds)],
            check=True,
            stderr=subprocess.DEVNULL,
        )
    finally:
        feed.close()
    done = subprocess.run(
        ["perf", "report", "-i", str(data), "--sort", "dso,symbol", "--stdio"],
        capture_output=True,
        text=True,
        check=True,
    )
    shares: collections.Counter[str] = collections.Counter()
    for line in done.stdout.splitlines():
        found = re.match(r"\s*([0-9.]+)%\s+(.*)", line)
        if found:
            part = next((name for name, names in PARTS if re.search(names, found[2])), None)
            kernel = "kernel" if "[k]" in found[2] else "other"
            shares[part or kernel] += float(found[1]) / 100
    return dict(shares.most_common())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {}
    print(
        f"{'':12}{'samples/s':>12}{'per CPU s':>12}{'peer':>8}{'ratio':>8}{'goal':>6}{'memory':>10}{'2 trainers':>12}{'peer':>8}"
    )
    for mode in MODES:
        rounds = [
            {
                "one": measure(arguments, mode, 1),
                "peer": peer(arguments, mode),
                "two": measure(arguments, mode, 2),
            }
            for _ in range(arguments.rounds)
        ]
        result = {who: median([r[who] for r in rounds]) for who in rounds[0]}
        ratios = [r["one"]["samples_per_cpu_s"] / r["peer"]["samples_per_cpu_s"] for r in rounds]
        ratio = sorted(ratios)[len(ratios) // 2]
        print(
            f"{mode:12}{result['one']['samples_per_s']:12,.0f}{result['one']['samples_per_cpu_s']:12,.0f}"
            f"{result['peer']['samples_per_cpu_s']:8.1f}{ratio:7.0f}x{GOALS[mode]:5}x"
            f"{result['one']['memory_bytes'] / 1e6:7.0f} MB{result['two']['memory_bytes'] / 1e6:9.0f} MB"
            f"{result['peer']['memory_bytes'] / 1e6:5.0f} MB",
            flush=True,
        )
        results[mode] = {**result, "ratios": ratios, "goal": GOALS[mode]}
        if shutil.which("perf"):
            results[mode]["profile"] = profile(arguments, mode)
            shares = ", ".join(f"{k} {100 * v:.0f} %" for k, v in results[mode]["profile"].items())
            print(f"{'':12}where the workers' time goes: {shares}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
