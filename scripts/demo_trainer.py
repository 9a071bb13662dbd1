"""One of the demo's two trainers: takes batches from the feed and says what it sees, until it is
told to stop.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

import numpy as np

import ringfeed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feed", default="demo")
    parser.add_argument("--group", required=True)
    arguments = parser.parse_args()
    stop = False

    def on_signal(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, on_signal)
    batches = positions = 0
    longest_ms = 0.0
    said = last = time.monotonic()
    with ringfeed.attach(arguments.feed, group=arguments.group, attach_timeout_s=60) as feed:
        print(f"trainer {arguments.group} (pid {os.getpid()}) attached; {feed.schema}", flush=True)
        for batch in feed:
            now = time.monotonic()
            if batches:
                longest_ms = max(longest_ms, 1000 * (now - last))
            planes, policy = batch["planes"], batch["policy"]
            assert not planes.flags.writeable and not planes.flags.owndata  # shared memory itself
            # A little work on the data, in place of a network: pieces on the board, legal moves.
            pieces = float(planes[::64, :12].sum()) / len(planes[::64])
            legal = float(np.count_nonzero(policy[::64] >= 0)) / len(policy[::64])
            batches += 1
            positions += batch.rows
            if now - said >= 1.0:
                print(
                    f"trainer {arguments.group}: batch {batch.seq:5d}, "
                    f"{positions / 1e3:7.0f} thousand positions, "
                    f"{pieces:.1f} pieces and {legal:.1f} legal moves on average, "
                    f"longest wait {longest_ms:.0f} ms",
                    flush=True,
                )
                said, longest_ms = now, 0.0
            last = time.monotonic()
            if stop:
                break
    print(
        f"trainer {arguments.group}: done after {batches} batches, {positions} positions",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
