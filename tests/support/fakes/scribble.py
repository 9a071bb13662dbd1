"""A member that spoils its group's page, the one part of a feed that it may write, until it is
killed.

    scribble.py FEED SOCKET_PATH GROUP HOW SEED

HOW is "bytes": random bytes all over the page; "words": values that could be right, in places
where they mean something (states, policies, starts, claims on batches to come or in hand, members
that are not there). Prints "spoiling" when it has begun, and goes on as fast as it can.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import socket
import struct
import sys

import ringfeed
from ringfeed._core import control

PAGE = 4096  # the page of the group stands behind the segment's header
WORDS = 0x800  # claim words: state, tries, member (8 bits each), number of the batch
MEMBERS = 0x100
ABI_OFFSET, LAYOUT_OFFSET = 8, 16  # of a segment's header


def group_page(feed: ringfeed.Feed, socket_path: str, group: str) -> mmap.mmap:
    """The page, writable, as the supervisor gives it to a member."""
    header, _ = feed._handle.payload()
    abi = ctypes.c_uint32.from_address(header + ABI_OFFSET).value
    layout = ctypes.c_uint64.from_address(header + LAYOUT_OFFSET).value
    request = (
        control.number_field(1, abi)
        + bytes([3 << 3 | 1])
        + layout.to_bytes(8, "little")
        + control.number_field(4, os.getpid())
        + control.bytes_field(5, b"scribble")
        + control.bytes_field(6, group.encode())
    )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(socket_path)
    connection.send(control.number_field(1, 1) + control.bytes_field(2, request))
    reply, fds, _, _ = socket.recv_fds(connection, 1 << 16, 8)
    if len(fds) != 4:
        raise SystemExit(f"no descriptors came: {reply!r}")
    connection.detach()  # open until the end of the process
    return mmap.mmap(fds[2], 2 * PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def spoil_bytes(page: mmap.mmap, dice: random.Random) -> None:
    at = dice.randrange(PAGE - 256)
    page[PAGE + at : PAGE + at + 256] = dice.randbytes(256)


def spoil_words(page: mmap.mmap, dice: random.Random, published: int) -> None:
    near = max(0, published + dice.randrange(-260, 300))
    kind = dice.randrange(4)
    # Of the head: state, kind, policy, epoch, start, max_hold to world, stall_ms, name, rejoin_ms,
    # low and bell.
    if kind == 0:
        offset, value = dice.choice(
            [
                (0, struct.pack("<I", dice.randrange(6))),
                (4, struct.pack("<I", dice.randrange(3))),
                (8, struct.pack("<I", dice.randrange(4))),
                (16, struct.pack("<Q", dice.choice([0, 1, 2, 2**32, 2**64 - 1]))),
                (24, struct.pack("<Q", dice.choice([0, 1, near, 2**64 - 1]))),
                (32, struct.pack("<III", 0, 0, 0)),
                (44, struct.pack("<I", dice.choice([0, 2**32 - 1]))),
                (48, b"other\0"),
                (112, struct.pack("<Q", dice.choice([0, 2**64 - 1]))),
                (128, struct.pack("<QI", near, dice.randrange(2**32))),
            ]
        )
        page[PAGE + offset : PAGE + offset + len(value)] = value
    elif kind == 1:  # a member: state, pid, start time
        offset = PAGE + MEMBERS + 64 * dice.randrange(16)
        value = struct.pack("<IIQ", dice.randrange(5), dice.choice([0, 1, os.getppid()]), 0)
        page[offset : offset + 16] = value
    else:
        word = near << 24 | dice.randrange(18) << 16 | dice.randrange(256) << 8 | dice.randrange(6)
        offset = PAGE + WORDS + 8 * dice.randrange(256)
        page[offset : offset + 8] = struct.pack("<Q", word)


def main() -> None:
    name, socket_path, group, how, seed = sys.argv[1:]
    os.environ.pop("RINGFEED_SOCKET_DIR", None)
    dice = random.Random(int(seed))
    feed = ringfeed.attach(name, group, socket_path=socket_path)
    page = group_page(feed, socket_path, group)
    print("spoiling", flush=True)
    published = 0
    while True:
        if dice.randrange(100) == 0:
            with contextlib.suppress(ringfeed.RingfeedError):  # as the page says now
                published = feed.stats().published
        if how == "bytes":
            spoil_bytes(page, dice)
        else:
            spoil_words(page, dice, published)


if __name__ == "__main__":
    main()
