"""The peer of the benchmark of parallel text: the same plans from NumPy, the same batches from
PyTorch.

    python tests/bench/peer_fairseq.py plan DIR --temperature 1.5
    python tests/bench/peer_fairseq.py batches DIR --batches 1000

DIR is a corpus as tests/support/makers/fairseq_data.py makes them: one shard, one fold, mapped
token files.

This is how such a loader is usually written. The plan is made by NumPy on whole arrays: draws and
permutation by RandomState, lengths by fancy indexing, two stable sorts, a mask for the limits. The
loop that cuts an order into batches is not counted: in Python it would take most of the time, and
nobody would leave it there. Batches come from a Dataset that finds a sentence in a memory-mapped
file and makes tensors of it, a collate function that copies row after row, and a DataLoader that
calls both in this process; which sentences are in which batch they are told. A test compares plans
and batches with those of tests/support/oracles/fairseq_reference.py.

Prints one JSON object: see measure_plan() and measure_batches().
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.oracles.fairseq_reference import batch_lengths  # noqa: E402

PAD = 1
EOS = 2
HEAD_BYTES = 26  # of an index, before the sizes
TOKEN_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
# Of the set of virtual sentences: fairseq's name for it, hashed.
SET_SEED = 1944279108


class TokenFile:
    """PREFIX.bin and PREFIX.idx, mapped."""

    def __init__(self, prefix: str | Path) -> None:
        index = np.memmap(f"{prefix}.idx", mode="r")
        code = int(index[17])
        count = int(index[18:HEAD_BYTES].view("<u8")[0])
        middle = HEAD_BYTES + 4 * count
        self.sizes = np.asarray(index)[HEAD_BYTES:middle].view("<i4")
        self.offsets = np.asarray(index)[middle : middle + 8 * count].view("<i8")
        # The base class: slices of a np.memmap are several times as slow.
        self.tokens = np.asarray(np.memmap(f"{prefix}.bin", TOKEN_TYPES[code], "r"))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> np.ndarray:
        first = int(self.offsets[number]) // self.tokens.itemsize
        return self.tokens[first : first + int(self.sizes[number])]


@dataclass
class Direction:
    """Both sides of a direction, and the token that stands before each sentence of a side."""

    source: TokenFile
    target: TokenFile
    source_token: int
    target_token: int


def open_directions(directory: str | Path, lang_pairs: Sequence[str]) -> list[Direction]:
    """Open the files of these directions; tokens of languages follow the dictionary."""
    directory = Path(directory)
    languages = sorted({language for pair in lang_pairs for language in pair.split("-")})
    with open(directory / f"dict.{languages[0]}.txt", encoding="utf-8") as lines:
        words = 4 + sum(1 for _ in lines)
    found = []
    for pair in lang_pairs:
        source, target = pair.split("-")
        found.append(
            Direction(
                TokenFile(directory / f"train.{pair}.{source}"),
                TokenFile(directory / f"train.{pair}.{target}"),
                words + languages.index(source),
                words + languages.index(target),
            )
        )
    return found


def lang_pairs_in(directory: str | Path) -> list[str]:
    """The directions of a corpus, in the order of their names' other language."""
    pairs = {path.name.split(".")[1] for path in Path(directory).glob("train.*.idx")}
    return sorted(pairs, key=lambda pair: (sorted(pair.split("-")), pair))


# --- Plans --------------------------------------------------------------------------------------


@dataclass
class Plan:
    """An epoch's virtual sentences, and the order of those that are kept."""

    ends: np.ndarray  # of the directions in the virtual sentences
    indices: list[np.ndarray]  # of the sentences of each direction
    source_sizes: np.ndarray  # of the virtual sentences
    target_sizes: np.ndarray
    order: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    seconds: dict[str, float] = field(default_factory=dict)  # of each step

    def rows(self, virtual: Iterable[int]) -> list[tuple[int, int]]:
        """Virtual sentences as (direction, number in it)."""
        numbers = np.asarray(virtual)
        directions = np.searchsorted(self.ends, numbers, side="right")
        begins = np.concatenate(([0], self.ends))
        return [(int(d), int(self.indices[d][x - begins[d]])) for d, x in zip(directions, numbers)]


def draw(sizes: Sequence[int], temperature: float | None, epoch: int) -> list[np.ndarray]:
    """Draw the sentences of each direction; all of them, without a temperature."""
    if temperature is None:
        return [np.arange(size) for size in sizes]
    total = sum(sizes)
    ratios = np.array([pow(size / total, 1 / temperature) for size in sizes])
    largest = int(np.argmax(sizes))
    virtual = int(min(sum(ratios / ratios[largest] * sizes[largest]), 1.5 * total))
    random = np.random.RandomState([SET_SEED, 2, epoch])
    shares = ratios / ratios.sum()
    counts = (virtual * shares).astype(np.int64)
    missing = virtual - counts.sum()
    np.add.at(counts, random.choice(len(sizes), missing, p=shares), 1)
    return [
        random.choice(size, count, replace=bool(count > size))
        for size, count in zip(sizes, counts, strict=True)
    ]


def make_plan(
    directions: Sequence[Direction],
    temperature: float | None,
    *,
    positions: int = 512,
    seed: int = 1,
    epoch: int = 1,
) -> Plan:
    """Draw, order and filter an epoch."""
    clock = [time.perf_counter()]
    seconds = {}

    def done(step: str) -> None:
        clock.append(time.perf_counter())
        seconds[step] = clock[-1] - clock[-2]

    indices = draw([len(direction.source) for direction in directions], temperature, epoch)
    done("draw")
    ends = np.cumsum([len(own) for own in indices])
    source_sizes = np.empty(ends[-1], np.int32)
    target_sizes = np.empty(ends[-1], np.int32)
    for direction, own, end in zip(directions, indices, ends, strict=True):
        at = slice(end - len(own), end)
        source_sizes[at] = direction.source.sizes[own] + 1  # with the language's token
        target_sizes[at] = direction.target.sizes[own] + 1
    plan = Plan(ends, indices, source_sizes, target_sizes, seconds=seconds)
    done("sizes")
    order = np.random.RandomState(seed).permutation(len(source_sizes))
    done("permutation")
    order = order[np.argsort(target_sizes[order], kind="mergesort")]
    order = order[np.argsort(source_sizes[order], kind="mergesort")]
    done("sorts")
    short = (source_sizes[order] <= positions) & (target_sizes[order] <= positions)
    plan.order = order[short]
    done("filter")
    return plan


def cut_batches(plan: Plan, max_tokens: int) -> list[np.ndarray]:
    """Cut the order into batches of virtual sentences."""
    costs = np.maximum(plan.source_sizes[plan.order], plan.target_sizes[plan.order])
    lengths = batch_lengths(costs.tolist(), max_tokens, None, 8)
    return np.split(plan.order, np.cumsum(lengths)[:-1])


def own_bytes() -> int:
    """Memory of this process that is no file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("no RssAnon in /proc/self/status")


def measure_plan(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds from closed files to the order of an epoch; memory is watched by who started this."""
    pairs = lang_pairs_in(options.directory)
    gc.collect()
    before = own_bytes()
    started, cpu = time.perf_counter(), time.process_time()
    directions = open_directions(options.directory, pairs)
    opened = time.perf_counter() - started
    plan = make_plan(directions, options.temperature)
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - started
    result = {
        "seconds": seconds,
        "cpu_s": cpu,
        "steps": {"open": opened, **plan.seconds},
        "sentences": int(plan.ends[-1]),
        "kept": len(plan.order),
        "bytes_before": before,
    }
    if options.cut:
        result["batches"] = len(cut_batches(plan, options.max_tokens))
    return result


# --- Batches ------------------------------------------------------------------------------------


def collate_functions() -> tuple[Any, Any]:
    """The Dataset and its collate function; PyTorch is imported here, plans do without it."""
    import torch
    from torch.utils.data import Dataset

    class ParallelText(Dataset):  # type: ignore[type-arg]
        """Sentences by (direction, number): tensors that begin with the languages' tokens."""

        def __init__(self, directions: Sequence[Direction]) -> None:
            self.directions = directions
            self.first = [
                (torch.tensor([d.source_token]), torch.tensor([d.target_token])) for d in directions
            ]

        def __getitem__(self, row: tuple[int, int]) -> dict[str, Any]:
            number, index = row
            direction = self.directions[number]
            source_first, target_first = self.first[number]
            source = torch.from_numpy(direction.source[index].astype(np.int64))
            target = torch.from_numpy(direction.target[index].astype(np.int64))
            return {
                "id": index,
                "source": torch.cat([source_first, source]),
                "target": torch.cat([target_first, target]),
            }

    def padded(rows: list[torch.Tensor], left: bool) -> torch.Tensor:
        width = max(len(row) for row in rows)
        out = torch.full((len(rows), width), PAD)
        for row, to in zip(rows, out, strict=True):
            (to[width - len(row) :] if left else to[: len(row)]).copy_(row)
        return out

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        samples.sort(key=lambda sample: len(sample["source"]), reverse=True)
        target = padded([sample["target"] for sample in samples], left=False)
        previous = torch.full_like(target, PAD)
        previous[:, 0] = EOS
        for sample, to in zip(samples, previous, strict=True):
            to[1 : len(sample["target"])].copy_(sample["target"][:-1])
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "src_tokens": padded([sample["source"] for sample in samples], left=True),
            "src_lengths": torch.tensor([len(sample["source"]) for sample in samples]),
            "prev_output_tokens": previous,
            "target": target,
            "ntokens": sum(len(sample["target"]) for sample in samples),
            "nsentences": len(samples),
        }

    return ParallelText, collate


def loader(directions: Sequence[Direction], batches: Sequence[Sequence[tuple[int, int]]]) -> Any:
    """Make a DataLoader of these batches, in this process."""
    from torch.utils.data import DataLoader

    dataset, collate = collate_functions()
    return DataLoader(dataset(directions), batch_sampler=batches, collate_fn=collate)


def measure_batches(options: argparse.Namespace) -> dict[str, Any]:
    """Sentences per second and CPU second: read, collated, looked at. Planning is not counted."""
    directions = open_directions(options.directory, lang_pairs_in(options.directory))
    for direction in directions:
        for side in (direction.source, direction.target):
            side.tokens.max(initial=0)  # into the page cache
    plan = make_plan(directions, None)
    cut = cut_batches(plan, options.max_tokens)
    np.random.RandomState(2).shuffle(cut)
    warm = min(len(cut) // 2, 20)
    batches = [plan.rows(batch) for batch in cut[: warm + options.batches]]
    del plan, cut
    gc.collect()
    made = iter(loader(directions, batches))
    sentences = tokens = count = checksum = 0
    for _ in range(warm):
        next(made)
    started, cpu = time.perf_counter(), time.process_time()
    for batch in made:
        for name in ("src_tokens", "prev_output_tokens", "target"):
            checksum += int(batch[name].sum())
        sentences += batch["nsentences"]
        tokens += batch["ntokens"]
        count += 1
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - started
    return {
        "sentences": sentences,
        "target_tokens": tokens,
        "batches": count,
        "seconds": seconds,
        "cpu_s": cpu,
        "sentences_per_s": sentences / seconds,
        "sentences_per_cpu_s": sentences / cpu,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: the result on stdout."""
    parser = argparse.ArgumentParser(description="Measure a loader of parallel text in Python.")
    parser.add_argument("what", choices=("plan", "batches"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--temperature", type=float, help="default: every sentence once")
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--batches", type=int, default=1000, help="that are measured (1000)")
    parser.add_argument("--cut", action="store_true", help="also count the plan's batches: slow")
    options = parser.parse_args(arguments)
    print(json.dumps((measure_plan if options.what == "plan" else measure_batches)(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
