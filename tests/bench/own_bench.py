"""Samples and stages in Python beside their limits: what a Python stage adds to a sample, how fast
lines of JSON are read, and how soon a stage whose import takes seconds is back after its death.

    own_bench.py --bin build/bench/bin [--rounds 5] [--seconds 5] [--deaths 60] [--only NAME...]
    [--json FILE]

Names: map, json, deaths. Rounds are interleaved, and each ratio and difference is taken inside of a
round; the table has the medians, and the rounds in brackets. CPU time is that of the whole tree:
supervisor, workers, warm parents and the trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from feed_bench import Feed, cpu_s, run_json, tree

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

ROW_BYTES = 1024
BATCH = 64
IMPORT_S = 3.0
BETWEEN_S = 0.15

MODULE = '''
"""Stages of the measurements."""

import ringfeed.stage


def nothing(sample):
    return sample


def touch(sample):
    sample["data"]
    return sample


@ringfeed.stage.map_batch
def nothing_batch(samples):
    return samples
'''
SLOW = f'''
"""A stage whose import takes as long as that of a large framework."""

import time

time.sleep({IMPORT_S})


def nothing(sample):
    return sample


def spawned(sample):
    return sample


spawned.__ringfeed_start__ = "spawn"
'''

# 1 KB of float32 as a row of an array: nothing is parsed, so the stage in Python stands alone.
ROWS = """
feed: "bench"
seed: 1
stages {{ name: "files" file_path_provider {{ directory: "{data}" }} }}
stages {{ name: "rows" sample_source {{ input: "files" }} }}
{python}
stages {{ name: "batches" sample_batcher {{
  input: "{last}" batch_size: 256
  fields {{ name: "data" dtype: "float32" shape: 256 }} }} }}
feed_output {{ slots: 8 }}
{extra}
"""
STAGE = """
stages {{ name: "mapped" python {{
  input: "rows" object: "{object}" python_path: "{modules}" batch: {batch} }} }}
"""
# Nothing of the line but one number goes further than the reader's queue.
LINES = """
feed: "bench"
seed: 1
stages {{ name: "files" file_path_provider {{ directory: "{data}" }} }}
stages {{ name: "lines" sample_source {{ input: "files" {fields} }} }}
stages {{ name: "batches" sample_batcher {{
  input: "lines" batch_size: 1024 fields {{ name: "id" dtype: "int64" }} }} }}
stage_groups {{ name: "read" stages: "files" stages: "lines" }}
stage_groups {{ name: "batch" stages: "batches" }}
feed_output {{ slots: 8 }}
{extra}
"""


def stage(name: str, modules: Path, batch: int = BATCH) -> str:
    return STAGE.format(object=name, modules=modules, batch=batch)


def wait_for(condition: Callable[[], Any], log: Path, what: str, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {timeout_s:.0f} s for {what}:\n{log.read_text()[-4000:]}")
        time.sleep(0.02)


# ---- a stage that does nothing


def write_rows(directory: Path) -> None:
    directory.mkdir()
    rng = np.random.default_rng(1)
    for number in range(4):
        rows = rng.standard_normal((16384, ROW_BYTES // 4), np.float32)
        np.save(directory / f"rows-{number}.npy", rows)


def bare_loop_us(seconds: float) -> float:
    """CPU microseconds a sample of the same function in a loop over a list."""
    samples = [{"data": np.zeros(ROW_BYTES // 4, np.float32)} for _ in range(BATCH)]
    names: dict[str, Any] = {}
    exec(compile(MODULE, "stages", "exec"), names)
    nothing = names["nothing"]
    count = 0
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        for _ in range(100):
            out = []
            for sample in samples:
                out.append(nothing(sample))
        count += 100 * len(out)
    return 1e6 * (time.process_time() - begun) / count


def tree_us(arguments: argparse.Namespace, python: str) -> float:
    """CPU microseconds a sample of the whole tree; `python`: a stage between source and batcher."""
    last = "mapped" if python else "rows"
    feed = Feed(arguments, 1, pipeline=ROWS, python=python, last=last)
    try:
        if python:
            log = feed.work / "log"
            wait_for(lambda: "parent_ready" in log.read_text(), log, "the warm parent")
        return feed.measure(arguments.seconds, warm_batches=64)["cpu_s_per_million"]
    finally:
        feed.close()
        shutil.rmtree(feed.work, ignore_errors=True)


def measure_map(arguments: argparse.Namespace, work: Path) -> dict[str, list[float]]:
    data, modules = work / "rows", work / "modules"
    write_rows(data)
    modules.mkdir()
    (modules / "stages.py").write_text(MODULE)
    arguments.data = data
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)
        print(f"  {name}: {value:.3f} us", file=sys.stderr)

    for _ in range(arguments.rounds):
        loop = bare_loop_us(min(1.0, arguments.seconds))
        note("the function in a loop over a list", loop)
        without = tree_us(arguments, "")
        note("whole tree without the stage", without)
        for name, object_name, batch in (
            ("map", "stages:nothing", BATCH),
            ("map that reads the array", "stages:touch", BATCH),
            ("map_batch", "stages:nothing_batch", BATCH),
            ("map, batch 1", "stages:nothing", 1),
        ):
            whole = tree_us(arguments, stage(object_name, modules, batch))
            note(f"whole tree with {name}", whole)
            note(f"{name}: more than the bare loop", whole - without - loop)
    return found


# ---- lines of JSON


def write_lines(directory: Path, text_bytes: int) -> None:
    """64 MB: an id, a text with escapes and other alphabets in it, an address and numbers."""
    directory.mkdir()
    rng = random.Random(1)
    words = ["the", "of", "Übung", "data", 'a "quoted"', "back\\slash", "línea", "naïve", "end."]
    written = number = 0
    with (directory / "lines.jsonl").open("w") as file:
        while written < 64_000_000:
            text = ""
            while len(text) < text_bytes:
                text += rng.choice(words) + rng.choice((" ", " ", " ", "\n"))
            line = {
                "id": number,
                "text": text,
                "url": f"https://example.org/{rng.randrange(10**9)}/{number}",
                "score": rng.random(),
                "label": rng.randrange(10),
            }
            number += 1
            written += file.write(json.dumps(line, ensure_ascii=number % 8 == 0) + "\n")


def write_numbers(directory: Path) -> None:
    """16 MB: rows of 32 numbers."""
    directory.mkdir()
    rng = random.Random(1)
    with (directory / "numbers.jsonl").open("w") as file:
        for number in range(24_000):
            row = [round(rng.gauss(0, 1), 6) for _ in range(32)]
            file.write(json.dumps({"id": number, "row": row}) + "\n")


def read_lines(arguments: argparse.Namespace, data: Path, fields: str) -> dict[str, float]:
    """Bytes of lines per CPU second of the process that reads, and of the whole tree."""
    arguments.data = data
    feed = Feed(arguments, 1, pipeline=LINES, fields=fields)
    lines = sum(path.read_bytes().count(b"\n") for path in data.iterdir())
    line_bytes = sum(path.stat().st_size for path in data.iterdir()) / lines
    try:
        log = feed.work / "log"
        wait_for(lambda: min(batches for _, batches in feed.counts()) >= 8, log, "batches")
        supervisor = feed.supervisor.pid
        reader = [
            pid
            for pid in tree(supervisor)
            if Path(f"/proc/{pid}/comm").read_text().strip() == "rf-read"
        ]
        assert len(reader) == 1, reader
        everybody = [*tree(supervisor), *(trainer.pid for trainer in feed.trainers)]

        def look() -> tuple[int, float, float]:
            return feed.counts()[0][0], cpu_s(reader), cpu_s(everybody)

        before = look()
        time.sleep(arguments.seconds)
        after = look()
        read = (after[0] - before[0]) * line_bytes
        return {
            "reader": read / max(after[1] - before[1], 1e-9),
            "tree": read / max(after[2] - before[2], 1e-9),
        }
    finally:
        feed.close()
        shutil.rmtree(feed.work, ignore_errors=True)


def measure_json(arguments: argparse.Namespace, work: Path) -> dict[str, list[float]]:
    write_lines(work / "texts of 1 KB", 900)
    write_lines(work / "texts of 200 B", 120)
    write_numbers(work / "rows of 32 numbers")
    found: dict[str, list[float]] = {}

    def note(name: str, value: float, unit: str = "") -> None:
        found.setdefault(name, []).append(value)
        print(f"  {name}: {value:.3f} {unit}", file=sys.stderr)

    for _ in range(arguments.rounds):
        for data in ("texts of 1 KB", "texts of 200 B", "rows of 32 numbers"):
            files = sorted(str(path) for path in (work / data).iterdir())
            bound = run_json([str(arguments.bin / "json_bound"), "--seconds", "1", *files])
            assert bound["lines_refused"] == 0, bound
            one = 'fields { name: "text" } ' if "text" in data else 'fields { name: "row" } '
            for fields, which in (("", "all fields"), (f'fields {{ name: "id" }} {one}', "two")):
                read = read_lines(arguments, work / data, fields)
                alone = float(bound["parse_bytes_per_cpu_s"])
                name = f"{data}, {which}"
                note(f"{name}: reader, GB per CPU second", read["reader"] / 1e9)
                note(f"{name}: reader / library", read["reader"] / alone)
                note(f"{name}: tree / library", read["tree"] / alone)
            for kind in ("parse", "values", "many"):
                note(f"{data}: library, {kind}, GB/s", bound[f"{kind}_bytes_per_cpu_s"] / 1e9)
    return found


# ---- deaths


def measure_deaths(
    arguments: argparse.Namespace, work: Path, name: str, deaths: int
) -> dict[str, Any]:
    """From the blow until the stage's first committed step, when its import takes seconds; beside
    it a stage in C++ of the same feed, which is killed in turn with it.
    """
    os.environ.setdefault("RINGFEED_BIN_DIR", str(arguments.bin))
    from tests.support.feeds.feed_run import FeedRun
    from tests.support.feeds.feed_watch import LaneWatch, spread

    place = work / name
    place.mkdir(parents=True)
    (place / "slow_stages.py").write_text(SLOW)
    data = place / "data"
    write_rows(data)
    run = FeedRun(
        place,
        data,
        feed="bench",
        programs=arguments.bin,
        pipeline=ROWS.replace("{data}", "{directory}"),
        python=stage(f"slow_stages:{name}", place),
        last="mapped",
        extra="restart { max_restarts: 100000 within_s: 1 }",
    )
    run.start()
    trainer = None
    try:
        wait_for((run.sockets / "bench.sock").exists, run.log, "the feed")
        trainer = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "tests" / "bench" / "bench_trainer.py"),
                "--feed=bench",
                "--group=default",
                f"--count={place}/count",
            ],
            env=run.environment,
            stdout=subprocess.DEVNULL,
        )
        said = "parent_ready" if name == "nothing" else "parent_not_wanted"
        wait_for(lambda: said in run.text(), run.log, said)
        assert run.process is not None
        watch = LaneWatch(run, run.process.pid)
        for number in range(2 * deaths):
            time.sleep(BETWEEN_S)
            group = ("mapped.0", "batches")[number % 2]
            pid = run.all_workers()[group]
            watch.struck(group, pid, "SIGKILL")
            os.kill(pid, signal.SIGKILL)
            end = time.monotonic() + 60
            while watch.away:
                watch.look()
                assert time.monotonic() < end, run.text()[-4000:]
                time.sleep(0.0003)
        restarted = run.text().count("parent_died")
    finally:
        if trainer is not None:
            trainer.kill()
            trainer.wait()
        run.stop(signal.SIGQUIT)
        run.close()
    found: dict[str, Any] = {"not_told": watch.missed, "warm_parents_died": restarted}
    for group, which in (("mapped.0", "in Python"), ("batches", "in C++")):
        back = [one for one in watch.back if one.group == group]
        found[which] = {
            "gone": spread([one.died_s - one.struck_s for one in back]),
            "attached": spread([one.attached_s - one.struck_s for one in back]),
            "first_step": spread([one.stepped_s - one.struck_s for one in back]),
        }
    return found


def shown(values: list[float]) -> str:
    rounds = ", ".join(f"{value:.2f}" for value in values)
    return f"{statistics.median(values):.2f} ({rounds})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--deaths", type=int, default=60, help="with a warm parent")
    parser.add_argument("--spawned-deaths", type=int, default=5, help="without one")
    parser.add_argument("--only", nargs="*", choices=("map", "json", "deaths"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.bin = arguments.bin.resolve()
    wanted = arguments.only or ["map", "json", "deaths"]
    # Stages in Python run in this one.
    os.environ["RINGFEED_PYTHON"] = sys.executable
    report: dict[str, Any] = {}
    work = Path(tempfile.mkdtemp(prefix="ringfeed-own-"))
    try:
        if "map" in wanted:
            report["map"] = measure_map(arguments, work)
        if "json" in wanted:
            report["json"] = measure_json(arguments, work)
        if "deaths" in wanted:
            report["deaths"] = {
                "warm parent": measure_deaths(arguments, work, "nothing", arguments.deaths),
                "spawn": measure_deaths(arguments, work, "spawned", arguments.spawned_deaths),
            }
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for part, unit in (("map", "us a sample"), ("json", "")):
        for name, values in report.get(part, {}).items():
            print(f"{name}: {shown(values)} {unit}".rstrip())
    for name, times in report.get("deaths", {}).items():
        for which in ("in Python", "in C++"):
            first = times[which]["first_step"]
            print(
                f"import of {IMPORT_S:g} s, {name}, stage {which}: first step after p50 "
                f"{first['p50_ms']} ms, p99 {first['p99_ms']} ms, longest {first['max_ms']} ms "
                f"of {first['count']}"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
