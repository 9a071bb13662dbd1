"""Parallel text: plans, batches, the way to the first batch and eight ranks, beside plain NumPy and
PyTorch loaders.

Rounds of both are interleaved and medians reported.

plan     order, filter and batch an epoch: plan_bench beside NumPy (peer_fairseq.py plan), to which the cutting of
         batches is given for free; seconds, and bytes per sentence at the peak
collate  a whole feed beside a Dataset, a collate function and a DataLoader in one process (peer_fairseq.py batches),
         to which the plan is given for free: sentences per CPU second; and collation alone beside a
         memcpy of the same bytes, by formats_bench
start    from `ringfeed run` to the first batch in a trainer's hands, files in the page cache, and its parts
ranks    a trainer that takes all batches, and eight ranks of one feed: memory, and CPU time per batch

    python tests/bench/fairseq_bench.py --bin build/bench/bin --data DIR [plan collate start ranks]
    [--rounds 3]
        [--sentences 40000000] [--text-sentences 3000000] [--seconds 6] [--json FILE]

The corpora are made in DIR when they are not there (2.5 GB with the numbers above; indices of 40
million sentences, with .bin files that take no room).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from feed_bench import ROOT, TICKS_PER_S, Feed, cpu_s, median, tree

sys.path.insert(0, str(ROOT))

from tests.support.makers.fairseq_data import LargeCorpus, large_corpus  # noqa: E402
from tests.support.oracles.fairseq_reference import Config, to_textproto  # noqa: E402

MAX_TOKENS = 4096
POSITIONS = 512
DIRECTIONS = {"plan": 50, "text": 10, "start": 200}
RANKS = 8
TENSORS = ("src_tokens", "prev_output_tokens", "target")
PEER_BATCHES = 1000
PEER = str(ROOT / "tests" / "bench" / "peer_fairseq.py")
CODES = {"8": "uint16", "9": "uint32"}  # of formats_bench
SMALL = "200"
TEMPERATURES = {"concat": None, "temperature 1.5": 1.5}

# What must be reached: of the peer's seconds, bytes per sentence, times the peer's sentences per
# CPU second of the collator's process, times the seconds of a memcpy.
GOALS = {"plan": 1 / 8, "plan_bytes": 16, "collate": 40, "memcpy": 2}

Numbers = dict[str, float]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def corpus_of(arguments: argparse.Namespace, what: str) -> LargeCorpus:
    """One of the corpora, all of it in the page cache."""
    text = what == "text"
    sentences = arguments.text_sentences if text else arguments.sentences
    directions = DIRECTIONS[what]
    corpus = large_corpus(
        arguments.data / f"{what}-{directions}-{sentences}",
        directions=directions,
        sentences=sentences,
        text=text,
    )
    for path in corpus.directory.glob("train.*.bin" if text else "train.*.idx"):
        path.read_bytes()
    for path in corpus.directory.glob("train.*.idx"):
        path.read_bytes()
    return corpus


def feed_text(corpus: LargeCorpus, temperature: float | None, world_size: int = 1) -> str:
    config = Config(
        compat="NLLB",
        directory=[str(corpus.directory)],
        lang_pairs=corpus.lang_pairs,
        encoder_langtok="SRC",
        decoder_langtok=True,
        sampling_method="CONCAT" if temperature is None else "TEMPERATURE",
        sampling_temperature=temperature or 1.0,
        max_tokens=MAX_TOKENS,
        max_source_positions=POSITIONS,
        max_target_positions=POSITIONS,
        world_size=world_size,
    )
    stages = to_textproto(config).replace("{", "{{").replace("}", "}}")
    return f'feed: "bench"\nseed: 1\nepochs: 0\n{stages}feed_output {{{{ slots: 16 }}}}\n'


# --- Plans --------------------------------------------------------------------------------------


def run_watched(words: list[str]) -> dict[str, Any]:
    """What a program prints as JSON, with the peak of its own memory, looked at every 5 ms."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        # One that has just ended has a status without memory.
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                peak = max(peak, 1024 * int(line.split()[1]))
        time.sleep(0.005)
    assert process.stdout is not None
    printed = process.stdout.read()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: exit status {process.returncode}")
    result: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return {**result, "watched_peak_bytes": peak}


def ours_planned(arguments: argparse.Namespace, corpus: LargeCorpus, t: float | None) -> Numbers:
    words = [str(arguments.bin / "plan_bench"), str(corpus.numbered), str(len(corpus.lang_pairs))]
    words += ["--compat=nllb", f"--max-tokens={MAX_TOKENS}", f"--temperature={t or 0}"]
    got = run_watched(words)
    got.pop("watched_peak_bytes")
    got["cpu_s"] = got.pop("cpu_seconds")
    return {**got, "bytes_per_sentence": got["peak_bytes"] / got["sentences"]}


def peer_planned(arguments: argparse.Namespace, corpus: LargeCorpus, t: float | None) -> Numbers:
    words = [sys.executable, PEER, "plan", str(corpus.directory), f"--max-tokens={MAX_TOKENS}"]
    words += [f"--temperature={t}"] if t is not None else []
    # What costs little with few sentences makes sure that both make the same plan.
    words += ["--cut"] if corpus.sentences <= 5_000_000 else []
    got = run_watched(words)
    got["peak_bytes"] = got.pop("watched_peak_bytes") - got.pop("bytes_before")
    got.update({f"{step}_s": seconds for step, seconds in got.pop("steps").items()})
    return {**got, "bytes_per_sentence": got["peak_bytes"] / got["sentences"]}


def plan(arguments: argparse.Namespace) -> dict[str, Any]:
    corpus = corpus_of(arguments, "plan")
    say(f"  {corpus.sentences:,} sentences, {len(corpus.lang_pairs)} directions")
    rounds: dict[str, list[dict[str, Numbers]]] = {name: [] for name in TEMPERATURES}
    for _ in range(arguments.rounds):
        for name, temperature in TEMPERATURES.items():
            ours = ours_planned(arguments, corpus, temperature)
            peer = peer_planned(arguments, corpus, temperature)
            for what in ("sentences", "kept", "batches"):
                if what in peer and ours[what] != peer[what]:
                    raise RuntimeError(f"{name}: {ours[what]} {what}, the peer has {peer[what]}")
            rounds[name].append({"ours": ours, "peer": peer})
            say(f"  {name}: {ours['seconds']:.2f} s, peer {peer['seconds']:.2f} s")
    results: dict[str, Any] = {"corpus_sentences": corpus.sentences, "goal": GOALS["plan"]}
    print(
        f"{'plan':24}{'sentences':>12}{'seconds':>9}{'peer':>8}{'ratio':>8}{'goal':>8}"
        f"{'bytes/sentence':>16}{'goal':>6}{'peer':>7}{'of the corpus':>15}"
    )
    for name, rows in rounds.items():
        result: dict[str, Any] = {who: median([row[who] for row in rows]) for who in rows[0]}
        ratios = [row["ours"]["seconds"] / row["peer"]["seconds"] for row in rows]
        ours, peer = result["ours"], result["peer"]
        of_corpus = ours["peak_bytes"] / corpus.sentences
        print(
            f"{name:24}{ours['sentences']:12,.0f}{ours['seconds']:9.2f}{peer['seconds']:8.2f}"
            f"{statistics.median(ratios):8.3f}{GOALS['plan']:8.3f}{ours['bytes_per_sentence']:16.1f}"
            f"{GOALS['plan_bytes']:6}{peer['bytes_per_sentence']:7.1f}{of_corpus:15.1f}",
            flush=True,
        )
        results[name] = {**result, "ratios": ratios, "bytes_per_corpus_sentence": of_corpus}
        # Without waits for a busy machine.
        results[name]["cpu_ratios"] = [row["ours"]["cpu_s"] / row["peer"]["cpu_s"] for row in rows]
        print(
            f"{'  CPU time of both':24}{'':29}{statistics.median(results[name]['cpu_ratios']):8.3f}"
        )
        results[name]["rounds"] = rows
    return results


# --- Batches ------------------------------------------------------------------------------------


class TextFeed(Feed):
    """A feed of parallel text whose processes are told apart."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        corpus: LargeCorpus,
        ranks: int = 1,
        temperature: float | None = None,
    ) -> None:
        words = ["--read", *TENSORS, "--group=g"]
        words += ["--rank={i}", f"--world={ranks}"] if ranks > 1 else []
        pipeline = feed_text(corpus, temperature, ranks)
        self.sentences = corpus.sentences
        super().__init__(arguments, ranks, pipeline=pipeline, trainer_words=words)

    def processes(self) -> dict[str, list[int]]:
        """Process ids by the stage that runs there; "supervisor" and "trainers" are two more."""
        started = re.findall(
            r" worker_started feed=bench group=(\w+) pid=(\d+)", (self.work / "log").read_text()
        )
        stage_of = {int(pid): stage for stage, pid in started}
        found = {"supervisor": [self.supervisor.pid]}
        # The source has ended: it has nothing more to do.
        for pid in tree(self.supervisor.pid)[1:]:
            found.setdefault(stage_of[pid], []).append(pid)
        found["trainers"] = [pid for trainer in self.trainers for pid in tree(trainer.pid)]
        return found

    def measured(self, seconds: float) -> Numbers:
        """Rates and memory over so many seconds, CPU time by process."""
        self.measure(0.2)
        processes = self.processes()
        before = self.counts(), {name: cpu_s(pids) for name, pids in processes.items()}
        begun = time.monotonic()
        time.sleep(seconds)
        after = self.counts(), {name: cpu_s(pids) for name, pids in processes.items()}
        wall = time.monotonic() - begun
        sentences = sum(a[0] - b[0] for a, b in zip(after[0], before[0]))
        batches = sum(a[1] - b[1] for a, b in zip(after[0], before[0]))
        cpu = {name: after[1][name] - before[1][name] for name in processes}
        feed = sum(seconds for name, seconds in cpu.items() if name != "trainers")
        return {
            "sentences_per_s": sentences / wall,
            "batches_per_s": batches / wall,
            "sentences_per_cpu_s": sentences / sum(cpu.values()),
            "feed_sentences_per_cpu_s": sentences / feed,
            "collator_sentences_per_cpu_s": sentences / max(cpu["batches"], 1 / TICKS_PER_S),
            "feed_cpu_us_per_batch": 1e6 * feed / batches,
            "tree_cpu_us_per_batch": 1e6 * sum(cpu.values()) / batches,
            **{f"{name}_cpu_share": used / sum(cpu.values()) for name, used in cpu.items()},
            **self.largest_memory(processes),
        }

    def largest_memory(self, processes: dict[str, list[int]]) -> Numbers:
        """The largest of what is found within an epoch: a planner needs more while it plans."""
        sizes = []
        begin = sum(sentences for sentences, _ in self.counts())
        while sum(sentences for sentences, _ in self.counts()) < begin + self.sentences:
            if self.supervisor.poll() is not None:
                raise RuntimeError((self.work / "log").read_text())
            sizes.append(self.memory(processes))
            time.sleep(0.02)
        return max(sizes, key=lambda size: size["memory_bytes"])

    @staticmethod
    def memory(processes: dict[str, list[int]]) -> Numbers:
        """Memory of supervisor and stages; what is shared, with the trainers too, counts once."""
        sizes = {"own": 0, "shared": 0, "files": 0, "trainers": 0}
        for name, pids in processes.items():
            for pid in pids:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                part = {m[1]: 1024 * int(m[2]) for m in re.finditer(r"(\w+): +(\d+) kB", rollup)}
                sizes["shared"] += part["Pss_Shmem"]
                trainer = name == "trainers"
                sizes["trainers" if trainer else "own"] += part["Pss_Anon"]
                sizes["trainers" if trainer else "files"] += part["Pss_File"]
        return {
            "memory_bytes": sizes["own"] + sizes["shared"],
            "memory_own_bytes": sizes["own"],
            "memory_shared_bytes": sizes["shared"],
            # Of the page cache: programs, and the token files that are mapped.
            "memory_files_bytes": sizes["files"],
            "trainers_own_bytes": sizes["trainers"],
        }


def measured_feed(arguments: argparse.Namespace, corpus: LargeCorpus, ranks: int) -> Numbers:
    feed = TextFeed(arguments, corpus, ranks)
    try:
        return feed.measured(arguments.seconds)
    finally:
        feed.close()


def peer_batches(corpus: LargeCorpus) -> Numbers:
    words = [sys.executable, PEER, "batches", str(corpus.directory)]
    got = run_watched([*words, f"--max-tokens={MAX_TOKENS}", f"--batches={PEER_BATCHES}"])
    return {**got, "target_tokens_per_sentence": got["target_tokens"] / got["sentences"]}


def beside_memcpy(arguments: argparse.Namespace) -> dict[str, Numbers]:
    """Collation alone: its seconds as a multiple of those of a memcpy of what comes out, and of the
    reads from random places alone; with data that the caches hold ("small"), and more."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run(
            [
                str(arguments.bin / "formats_bench"),
                "--benchmark_filter=^bitext/",
                f"--benchmark_repetitions={max(3, arguments.rounds)}",
                "--benchmark_enable_random_interleaving=true",
                "--benchmark_report_aggregates_only=true",
                f"--benchmark_out={out.name}",
                "--benchmark_out_format=json",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        rows = json.loads(Path(out.name).read_text())["benchmarks"]
    rates = {row["run_name"]: row for row in rows if row["aggregate_name"] == "median"}
    found = {}
    for name, row in rates.items():
        words = name.split("/")
        if words[1] != "collate":
            continue
        tokens, code, sentences = words[2:]
        copy, reads = (rates[f"bitext/{what}/{tokens}"] for what in ("memcpy", "reads"))
        label = f"{tokens} tokens, {CODES[code]}, {'small' if sentences == SMALL else 'large'}"
        found[label] = {
            "sentences_per_s": row["sentences/s"],
            "memcpy": copy["bytes_per_second"] / row["bytes_per_second"],
            "bytes_per_s": row["bytes_per_second"],
            "memcpy_bytes_per_s": copy["bytes_per_second"],
        }
        if sentences != SMALL:  # what is read without a cache is read here
            found[label]["reads"] = reads["sentences/s"] / row["sentences/s"]
    return found


def collate(arguments: argparse.Namespace) -> dict[str, Any]:
    corpus = corpus_of(arguments, "text")
    say(f"  {corpus.sentences:,} sentences, {len(corpus.lang_pairs)} directions")
    rows = []
    for _ in range(arguments.rounds):
        rows.append({"feed": measured_feed(arguments, corpus, 1), "peer": peer_batches(corpus)})
        say("  " + ", ".join(f"{k} {v:,.4g}" for k, v in rows[-1]["feed"].items()))
        say("  peer: " + ", ".join(f"{k} {v:,.4g}" for k, v in rows[-1]["peer"].items()))
    result: dict[str, Any] = {who: median([row[who] for row in rows]) for who in rows[0]}
    print(f"{'sentences per CPU second':32}{'':>12}{'ratio':>8}{'goal':>6}")
    ratios: dict[str, list[float]] = {}
    for what, name in (
        ("collator_sentences_per_cpu_s", "the collator's process"),
        ("feed_sentences_per_cpu_s", "supervisor and stages"),
        ("sentences_per_cpu_s", "with the trainer"),
    ):
        ratios[name] = [row["feed"][what] / row["peer"]["sentences_per_cpu_s"] for row in rows]
        goal = f"{GOALS['collate']:5}x" if name.startswith("the coll") else ""
        ratio = statistics.median(ratios[name])
        print(f"{name:32}{result['feed'][what]:12,.0f}{ratio:7.0f}x{goal}")
    print(f"{'peer':32}{result['peer']['sentences_per_cpu_s']:12,.0f}", flush=True)
    print(
        f"sentences/s {result['feed']['sentences_per_s']:,.0f}, peer {result['peer']['sentences_per_s']:,.0f}"
    )
    alone = beside_memcpy(arguments)
    print(f"{'collation alone':32}{'sentences/s':>12}{'x memcpy':>10}{'goal':>6}{'x reads':>9}")
    for name, row in sorted(alone.items()):
        reads = f"{row['reads']:9.2f}" if "reads" in row else ""
        print(
            f"{name:32}{row['sentences_per_s']:12,.0f}{row['memcpy']:10.2f}{GOALS['memcpy']:6}{reads}",
            flush=True,
        )
    return {**result, "ratios": ratios, "alone": alone, "rounds": rows, "goal": GOALS["collate"]}


# --- Start --------------------------------------------------------------------------------------


def first_batch(arguments: argparse.Namespace, corpus: LargeCorpus) -> Numbers:
    """Seconds from the start of `ringfeed run` to what the log tells, and to a batch in hand."""
    os.environ["RINGFEED_LIBRARY"] = str(arguments.bin.parent / "lib" / "libringfeed.so")
    sys.path.insert(0, str(ROOT / "pyclient"))
    import ringfeed

    with tempfile.TemporaryDirectory(prefix="ringfeed-bench-") as name:
        work = Path(name)
        config = work / "start.textproto"
        config.write_text(feed_text(corpus, 1.5).replace("{{", "{").replace("}}", "}"))
        with open(work / "log", "w") as log:
            begun = time.monotonic()
            supervisor = subprocess.Popen(
                [str(arguments.bin / "ringfeed"), "run", str(config)],
                env={**os.environ, "RINGFEED_SOCKET_DIR": str(work / "sockets")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                with ringfeed.attach(
                    "bench", socket_dir=work / "sockets", attach_timeout_s=60, timeout_s=600
                ) as feed:
                    attached = time.monotonic() - begun
                    with feed.next() as batch:
                        rows = batch.rows
                    seconds = time.monotonic() - begun
                # The supervisor says so when it next looks.
                while " first_batch " not in (work / "log").read_text():
                    if time.monotonic() > begun + seconds + 30:
                        raise RuntimeError((work / "log").read_text())
                    time.sleep(0.05)
            finally:
                # The second one: at once, without a drain.
                supervisor.terminate()
                supervisor.terminate()
                supervisor.wait(60)
        return {
            "attached_s": attached,
            **log_times((work / "log").read_text()),
            "first_batch_s": seconds,
            "rows": rows,
        }


def log_times(log: str) -> Numbers:
    """Seconds from the start of the supervisor to what its log tells of."""

    def when(event: str) -> float:
        found = re.search(rf"^(\S+) \w+ \S+ {event}\b", log, re.MULTILINE)
        if not found:
            raise RuntimeError(f"no {event} in the log:\n{log}")
        return datetime.datetime.fromisoformat(found[1]).timestamp()

    def value(event: str, name: str) -> float:
        return float(re.findall(rf" {event}\b.* {name}=(\S+)", log)[0])

    begun = when("feed_running") - value("feed_running", "after_ms") / 1000
    return {
        "running_s": when("feed_running") - begun,
        "directions_known_s": when("direction") - begun,
        "all_directions_s": when("worker_finished feed=bench group=bitext") - begun,
        "planned_s": when("planned epoch=1") - begun,
        "plan_itself_s": value("planned epoch=1", "seconds"),
        "sentences": value("planned epoch=1", "sentences"),
        "batch_ready_s": value("first_batch", "after_ms") / 1000,
    }


def start(arguments: argparse.Namespace) -> dict[str, Any]:
    corpus = corpus_of(arguments, "start")
    say(f"  {corpus.sentences:,} sentences, {len(corpus.lang_pairs)} directions")
    rows = []
    for _ in range(arguments.rounds):
        rows.append(first_batch(arguments, corpus))
        say("  " + ", ".join(f"{k} {v:,.4g}" for k, v in rows[-1].items()))
    result = median(rows)
    for name, value in result.items():
        print(f"{name:24}{value:12,.3f}", flush=True)
    return {"median": result, "rounds": rows}


# --- Ranks --------------------------------------------------------------------------------------


def ranks(arguments: argparse.Namespace) -> dict[str, Any]:
    corpus = corpus_of(arguments, "text")
    rows = []
    for _ in range(arguments.rounds):
        rows.append({str(n): measured_feed(arguments, corpus, n) for n in (1, RANKS)})
        for n, row in rows[-1].items():
            say(f"  {n}: " + ", ".join(f"{k} {v:,.4g}" for k, v in row.items()))
    result: dict[str, Any] = {n: median([row[n] for row in rows]) for n in rows[0]}
    result["ratios"] = {
        what: [row[str(RANKS)][what] / row["1"][what] for row in rows]
        for what in ("memory_bytes", "feed_cpu_us_per_batch", "tree_cpu_us_per_batch")
    }
    print(
        f"{'ranks':>8}{'feed, MB':>10}{'files, MB':>11}{'CPU us per batch':>18}"
        f"{'with trainers':>15}{'batches/s':>11}"
    )
    for n in ("1", str(RANKS)):
        row = result[n]
        print(
            f"{n:>8}{row['memory_bytes'] / 1e6:10.0f}{row['memory_files_bytes'] / 1e6:11.0f}"
            f"{row['feed_cpu_us_per_batch']:18.0f}{row['tree_cpu_us_per_batch']:15.0f}"
            f"{row['batches_per_s']:11,.0f}"
        )
    for what, ratios in result["ratios"].items():
        print(f"{what}: {RANKS} ranks / 1: {statistics.median(ratios):.3f}", flush=True)
    return {**result, "rounds": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument(
        "--data", type=Path, required=True, help="where the corpora are, or are made"
    )
    parser.add_argument("--sentences", type=int, default=40_000_000, help="of plan and start")
    parser.add_argument(
        "--text-sentences", type=int, default=3_000_000, help="of collate and ranks"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("parts", nargs="*", default=[])
    arguments = parser.parse_args()
    parts: dict[str, Any] = {"plan": plan, "collate": collate, "start": start, "ranks": ranks}
    result: dict[str, Any] = {}
    for name in arguments.parts or parts:
        say(name)
        result[name] = parts[name](arguments)
        result[name]["load"] = os.getloadavg()
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
