"""A trainer that does nothing but take batches and give them back; prints what it got as JSON at
the end.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time

import ringfeed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feed", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument(
        "--count", required=True, help="file to which the positions so far are written"
    )
    parser.add_argument("--step-ms", type=float, default=0, help="for which each batch is held")
    parser.add_argument("--rank", type=int, help="of --world members of a ranked group")
    parser.add_argument("--world", type=int)
    parser.add_argument("--read", nargs="*", default=[], help="tensors that are summed up")
    arguments = parser.parse_args()
    stop = False

    def on_signal(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, on_signal)
    positions = batches = 0
    said = 0.0
    checksum = 0
    member = {"rank": arguments.rank, "world": arguments.world}
    with ringfeed.attach(
        arguments.feed, group=arguments.group, attach_timeout_s=120, **member
    ) as feed:
        with open(arguments.count, "w", buffering=1) as count:
            while not stop:
                try:
                    batch = feed.next(timeout_s=1.0)
                except ringfeed.FeedTimeout:
                    continue
                except ringfeed.FeedEnd:
                    break
                positions += batch.rows
                batches += 1
                for name in arguments.read:
                    checksum += int(batch[name].sum())
                if arguments.step_ms:
                    time.sleep(arguments.step_ms / 1000)
                batch.release()
                del batch
                now = time.monotonic()
                if now - said > 0.02:
                    count.seek(0)
                    count.write(f"{positions:016d} {batches:010d}\n")
                    said = now
    json.dump({"positions": positions, "batches": batches, "checksum": checksum}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
