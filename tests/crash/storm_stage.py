"""What the storm over Python runs: a source, and a map that falls ill when it is told to.

Orders come in a file that both sides map, a byte each: the first is the source's, then one for each
process of the map. Whoever takes an order clears it first, so that his successor is well.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ringfeed import stage

ORDERS = 16  # bytes of the file
AT_START = ORDERS - 1  # for whoever is made next, of the map
EXIT, SEGFAULT, ABORT, LOOP, HOG, RAISE = range(1, 7)
HOG_BYTES = 300 << 20  # a process that grows beyond this is killed
ROWS = 3000  # of an epoch
RAISES_EVERY = 97  # samples


def mapped(path: str) -> mmap.mmap:
    """The file of orders, shared with whoever maps it."""
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), ORDERS)


def obey(orders: mmap.mmap, index: int, group: str) -> None:
    """Does what stands there, which is the end of this process."""
    order, orders[index] = orders[index], 0
    if order == EXIT:
        os._exit(7)
    if order == SEGFAULT:
        ctypes.string_at(0)
    if order == ABORT:
        os.kill(os.getpid(), signal.SIGABRT)
    while order == LOOP:
        pass
    if order == HOG:
        hog(group)
    if order == RAISE:
        raise ConnectionError("the vocabulary is on a server that is away")


def hog(group: str) -> NoReturn:
    """Allocates without end; in a control group, the kernel's OOM killer ends it."""
    if group:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    held = []
    while True:
        held.append(bytearray(b"x") * (1 << 20))


class Rows(stage.Source):
    """Numbers, and bytes to carry."""

    def __init__(self, orders: str, group: str) -> None:
        self.orders, self.group = mapped(orders), group

    def read(self, cursor: bytes | None) -> Iterator[tuple[dict[str, Any], bytes]]:
        for i in range(int(cursor or 0), ROWS):
            if self.orders[0]:
                obey(self.orders, 0, self.group)
            yield {"id": i, "text": f"row {i}"}, b"%d" % (i + 1)


class Work(stage.Map):
    """Draws from every generator that there is; some samples raise, always the same ones."""

    def __init__(self, orders: str, group: str) -> None:
        self.orders, self.group = mapped(orders), group
        if self.orders[AT_START]:
            obey(self.orders, AT_START, group)

    def __call__(self, sample: stage.Sample, ctx: stage.Context) -> stage.Sample:
        if self.orders[1 + ctx.lane]:
            obey(self.orders, 1 + ctx.lane, self.group)
        number = int(sample["id"])
        if number % RAISES_EVERY == 5:
            raise ValueError(f"nobody likes {number}")
        drawn = random.random(), np.random.random(), ctx.rng.random()
        return {"id": number, "drawn": np.array(drawn), "text": f"{sample['text']} {drawn[0]}"}
