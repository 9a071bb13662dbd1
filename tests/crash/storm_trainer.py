"""A trainer of the storm: appends a line per batch to a file, and may be killed at any moment.

Line: time, number, tries, rows, checksum of the batch's bytes; written when the batch has been
worked on and before its slot goes back.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import ringfeed


def checksum_of(batch: ringfeed.Batch) -> int:
    """Of the bytes of all its arrays."""
    checksum = 0
    for name in sorted(batch):
        checksum = zlib.crc32(np.ascontiguousarray(batch[name]).data, checksum)
    return checksum


def main(words: Sequence[str] | None = None, pace: Callable[[], float] | None = None) -> int:
    """`pace` gives the work per batch in ms, anew for each one, in place of --pause-ms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feed", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pause-ms", type=float, default=0.0)
    parser.add_argument("--times", type=float, default=1.0, help="of that pause, or of the pace")
    parser.add_argument("--policy")
    parser.add_argument("--stall-ms", type=int)
    parser.add_argument("--rejoin-ms", type=int)
    arguments = parser.parse_args(words)
    while True:
        try:
            feed = ringfeed.attach(
                arguments.feed,
                group=arguments.group,
                rank=arguments.rank,
                world=arguments.world,
                start="oldest",
                policy=arguments.policy,
                stall_ms=arguments.stall_ms,
                rejoin_ms=arguments.rejoin_ms,
                timeout_s=120.0,
                attach_timeout_s=120.0,
            )
            break
        except (ringfeed.FeedIOError, ringfeed.FeedTimeout):
            time.sleep(0.01)  # the supervisor died meanwhile
    with feed, arguments.out.open("a", buffering=1) as out:
        for batch in feed:
            checksum = checksum_of(batch)
            pause_ms = arguments.pause_ms if pace is None else pace()
            if pause_ms:
                time.sleep(arguments.times * pause_ms / 1000)
            out.write(f"{time.monotonic():.6f} {batch.seq} {batch.tries} {batch.rows} {checksum}\n")
        out.write("end\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
