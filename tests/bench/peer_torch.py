"""The peer of the benchmark: K trainers, each with a private PyTorch DataLoader on the same files.

    python tests/bench/peer_torch.py DATA_DIR --loaders 4 --workers 1 --batch-size 1024 --seconds 20

This is what a feed replaces: in each trainer a DataLoader whose worker processes read the tars,
inflate, keep a shuffle buffer, decode with NumPy and hand batches of torch tensors to the trainer.
It uses torch as its manual says: an IterableDataset that yields whole batches, split among the
workers by get_worker_info(). A trainer here takes a batch, looks at it, and drops it.

Prints one JSON object: see measure().
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.oracles.lc0_reference import NaiveLoader, game_files  # noqa: E402


def make_loader(
    paths: Sequence[Path],
    workers: int = 1,
    batch_size: int = 1024,
    shuffle_size: int = 100_000,
    sampling_rate: float = 1.0,
    seed: int = 0,
    epochs: int | None = None,
    prefetch: int = 2,
) -> Any:
    """Make a torch DataLoader of batches ``(planes, policy, values)``, float32 tensors.

    The shapes are those of lc0_reference.decode(). Over one epoch its workers deliver each
    position once; each worker may end with a shorter batch.

    Args:
        paths: Files with games.
        workers: Worker processes; 0 loads in the calling process.
        batch_size, sampling_rate, seed, epochs: As for NaiveLoader.
        shuffle_size: Places of all shuffle buffers of this loader together.
        prefetch: Batches that each worker prepares ahead.
    """
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Batches(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[tuple[Any, ...]]:
            info = get_worker_info()
            part, part_count = (info.id, info.num_workers) if info else (0, 1)
            torch.set_num_threads(1)
            loader = NaiveLoader(
                paths,
                batch_size,
                max(1, shuffle_size // part_count),
                sampling_rate,
                seed,
                epochs,
                part,
                part_count,
            )
            for batch in loader:
                yield tuple(torch.from_numpy(array) for array in batch)

    return DataLoader(
        Batches(),
        batch_size=None,  # the data set yields batches: collating rows would copy them once more
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        # A class made in a function cannot be pickled, and a data set of many paths need not be.
        multiprocessing_context="fork" if workers else None,
    )


@dataclass(frozen=True)
class _Report:
    """What one trainer got and used while it was measured, the workers of its loader included."""

    positions: int
    batches: int
    seconds: float
    cpu_s: float
    pss_bytes: int


def _process_ids() -> list[int]:
    return [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]


def _cpu_seconds() -> float:
    """CPU time so far of this process and of its living children."""
    ticks = 0
    for pid in _process_ids():
        # The name of the program stands in brackets and may hold blanks; utime and stime are the
        # 12th and 13th field after it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _pss_bytes() -> int:
    """Memory of this process and of its living children; shared pages count once in all."""
    total = 0
    for pid in _process_ids():
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def _train(options: argparse.Namespace, number: int, start: Any, report: Connection) -> None:
    """One trainer: warm up, meet the others, take batches for a while, report, end."""
    import torch

    torch.set_num_threads(1)
    loader = make_loader(
        game_files(options.data_dir),
        options.workers,
        options.batch_size,
        options.shuffle_size,
        options.sampling_rate,
        options.seed + number,
        prefetch=options.prefetch,
    )
    batches = iter(loader)
    for _ in range(options.warm_up):
        next(batches)
    start.wait()
    cpu_s = _cpu_seconds()
    begun = now = time.monotonic()
    positions = count = 0
    while now < begun + options.seconds:
        planes, policy, values = next(batches)
        # Read, so that a batch counts only when its memory can be read.
        if not (planes[-1, 111, 7, 7] == 1.0 and policy[-1].max() > 0 and values.shape[1] == 6):
            raise RuntimeError(f"trainer {number}: batch {count} is not what the files hold")
        positions += len(planes)
        count += 1
        now = time.monotonic()
    used_s = _cpu_seconds() - cpu_s
    report.send(_Report(positions, count, now - begun, used_s, _pss_bytes()))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trainers and add up what they got.

    Returns:
        loaders, workers (per loader), batch_size, shuffle_size, sampling_rate: as asked;
        positions, batches: taken by all trainers after warming up;
        seconds: how long a trainer was measured, mean;
        positions_per_s, batches_per_s: of all trainers together, each over its own duration;
        cpu_s: of trainers and workers while measured;
        cpu_s_per_million: the same for each million delivered positions;
        pss_bytes: memory of trainers and workers at the end, shared pages once.
    Raises:
        RuntimeError: A trainer died; its message is on stderr. All others have been ended.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(options.loaders)
    trainers = []
    pending: list[Connection] = []
    reports: list[_Report] = []
    try:
        for number in range(options.loaders):
            receiver, sender = context.Pipe(duplex=False)
            trainer = context.Process(target=_train, args=(options, number, start, sender))
            trainer.start()
            # Ours closed, so that the death of the trainer ends the pipe.
            sender.close()
            trainers.append(trainer)
            pending.append(receiver)
        while pending:
            for ready in wait(pending):
                assert isinstance(ready, Connection)
                pending.remove(ready)
                try:
                    reports.append(ready.recv())
                except EOFError:
                    # The others would wait for it at the barrier for ever.
                    raise RuntimeError("a trainer died before it had a result") from None
    except BaseException:
        for trainer in trainers:
            trainer.terminate()
        raise
    finally:
        for trainer in trainers:
            trainer.join()
    positions = sum(report.positions for report in reports)
    cpu_s = sum(report.cpu_s for report in reports)
    return {
        "loaders": options.loaders,
        "workers": options.workers,
        "batch_size": options.batch_size,
        "shuffle_size": options.shuffle_size,
        "sampling_rate": options.sampling_rate,
        "positions": positions,
        "batches": sum(report.batches for report in reports),
        "seconds": sum(report.seconds for report in reports) / len(reports),
        "positions_per_s": sum(report.positions / report.seconds for report in reports),
        "batches_per_s": sum(report.batches / report.seconds for report in reports),
        "cpu_s": cpu_s,
        "cpu_s_per_million": cpu_s / positions * 1e6,
        "pss_bytes": sum(report.pss_bytes for report in reports),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: the result on stdout, talk on stderr."""
    parser = argparse.ArgumentParser(description="Measure K private PyTorch DataLoaders.")
    parser.add_argument("data_dir", metavar="DATA_DIR", type=Path)
    parser.add_argument("--loaders", type=int, default=1, help="trainers, one loader each (1)")
    parser.add_argument("--workers", type=int, default=1, help="workers per loader (1)")
    parser.add_argument("--batch-size", type=int, default=1024, help="positions (1024)")
    parser.add_argument(
        "--shuffle-size", type=int, default=100_000, help="buffered positions per loader (100000)"
    )
    parser.add_argument("--sampling-rate", type=float, default=1.0, help="positions used (1)")
    parser.add_argument("--prefetch", type=int, default=2, help="batches ahead per worker (2)")
    parser.add_argument("--warm-up", type=int, default=2, help="batches before measuring (2)")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time (10)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        import torch
    except ImportError:
        print("peer_torch: torch is missing: pip install torch", file=sys.stderr)
        return 1
    files = game_files(options.data_dir)
    if not files:
        print(
            f"peer_torch: {options.data_dir} holds no .tar and no .gz: make data with "
            "tests/support/makers/lc0_data.py",
            file=sys.stderr,
        )
        return 1
    try:
        result = measure(options)
    except RuntimeError as error:
        print(f"peer_torch: {error}", file=sys.stderr)
        return 1
    result |= {"torch": torch.__version__, "cpus": os.cpu_count()}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
