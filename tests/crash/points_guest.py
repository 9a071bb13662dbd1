"""A trainer that goes back: reads some batches, leaves, comes again at an earlier position, leaves.

Appends a line per batch as storm_trainer.py does. Killed and started again, it goes on with
whatever of that is left to do.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TextIO

from storm_trainer import checksum_of

import ringfeed

SAVED_AT, LAST = 5, 8  # below the number of slots: another group has yet to read them


def attach(feed: str) -> ringfeed.Feed:
    return ringfeed.attach(
        feed,
        group="guest",
        start="oldest",
        rejoin_ms=100,
        timeout_s=20.0,
        attach_timeout_s=60.0,
    )


def read_to(feed: ringfeed.Feed, last: int, out: TextIO) -> None:
    while feed.stats().next <= last:
        with feed.next() as batch:
            checksum = checksum_of(batch)
            out.write(f"{time.monotonic():.6f} {batch.seq} {batch.tries} {batch.rows} {checksum}\n")


def visit(name: str, out: TextIO) -> None:
    with attach(name) as feed:
        read_to(feed, SAVED_AT, out)
        state = feed.state_dict()
        read_to(feed, LAST, out)
        if state["next"] == SAVED_AT + 1:  # else an earlier life has been here
            feed.load_state_dict(state)
            read_to(feed, LAST, out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feed", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with arguments.out.open("a", buffering=1) as out:
        while True:
            try:
                visit(arguments.feed, out)
                break
            except ringfeed.RingfeedError as error:
                # The supervisor died meanwhile, or the group is just being closed.
                print(f"again after {type(error).__name__}: {error}", flush=True)
                time.sleep(0.02)
        out.write("end\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
