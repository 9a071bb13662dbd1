"""A trainer for tests: attaches, notes number, hash and time of what it gets, until the feed
ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import signal
import sys
import time
from pathlib import Path

import numpy as np
import xxhash

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import ringfeed  # noqa: E402

from tests.support.feeds.pace import Pace  # noqa: E402
from tests.support.oracles import lc0_reference  # noqa: E402


def note_progress(path: Path, batches: int) -> None:
    """Note the number of batches so that readers, and a kill at any moment, leave a whole note."""
    new = path.with_suffix(".new")
    new.write_text(str(batches))
    new.replace(path)


def digest_of(batch: ringfeed.Batch) -> int:
    """A number that stands for the batch's three arrays."""
    digest = xxhash.xxh3_64()
    for name in ("planes", "policy", "values"):
        digest.update(np.ascontiguousarray(batch[name]).data)
    return digest.intdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feed", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--progress", type=Path, required=True)
    parser.add_argument("--group", default="default")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world", type=int)
    parser.add_argument("--start", default="oldest")
    parser.add_argument(
        "--batches", type=int, default=0, help="end after so many; 0: with the feed"
    )
    parser.add_argument("--until", type=Path, help="end with a batch when this file is there")
    parser.add_argument("--hold", type=int, default=0, help="take no more than so many, and wait")
    parser.add_argument("--positions", type=int, default=1, help="hash every position")
    parser.add_argument("--pause-ms", type=float, default=0.0, help="work that each batch takes")
    parser.add_argument(
        "--hurry", type=Path, help="until this file is there, each batch takes longer than the last"
    )
    parser.add_argument("--output", help="alias of the output")
    arguments = parser.parse_args()
    faulthandler.register(signal.SIGUSR2)  # asked by standstill.py
    pace = Pace(arguments.pause_ms / 1000, arguments.hurry)

    numbers, tries, rows, digests, times, hashes = [], [], [], [], [], []
    with ringfeed.attach(
        arguments.feed,
        group=arguments.group,
        rank=arguments.rank,
        world=arguments.world,
        start=arguments.start,
        output=arguments.output,
        timeout_s=60.0,
        attach_timeout_s=60.0,
    ) as feed:
        for batch in feed:
            times.append(time.monotonic())
            numbers.append(batch.seq)
            tries.append(batch.tries)
            rows.append(batch.rows)
            digests.append(digest_of(batch))
            if arguments.positions:
                hashes.append(
                    lc0_reference.position_hashes(batch["planes"], batch["policy"], batch["values"])
                )
            pace.work()
            note_progress(arguments.progress, len(numbers))
            if arguments.batches and len(numbers) >= arguments.batches:
                break
            if arguments.until and arguments.until.exists():
                break
            if arguments.hold and len(numbers) >= arguments.hold:
                signal.pause()
    np.savez(
        arguments.out,
        numbers=np.array(numbers, np.int64),
        tries=np.array(tries, np.int64),
        rows=np.array(rows, np.int64),
        digests=np.array(digests, np.uint64),
        times=np.array(times, np.float64),
        hashes=np.concatenate(hashes) if hashes else np.zeros(0, np.uint64),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
