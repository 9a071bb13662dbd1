"""What a trainer and its workers agree on: the job, requests, and the heads of batches."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
from dataclasses import dataclass
from typing import Any

from ._batches import Memory

# What a request asks for.
END, FETCH, RESUME, NOTHING, BEGAN = range(5)
SPILT = 16  # or'ed: the bytes are the path of a file with the request
# What a batch is.
DATA, ACK, EMPTY, RESUMED = range(1, 5)
HEAD = struct.Struct("<16Q")
TOGETHER = 0x3FFFFF


@dataclass
class Job:
    """What all workers of a loader have in common."""

    dataset: Any
    kind: int  # torch.utils.data._DatasetKind
    auto_collation: bool
    collate_fn: Any
    drop_last: bool
    base_seed: int
    init_fn: Any
    workers: int
    shared_seed: int | None
    requests: Memory
    bulk: Memory
    stride: int
    skips: bool  # a sample that kills is left out
    socket_path: str
    trainer: int  # its process
    environment: dict[str, str]
    begin: list[bytes | None]  # the state that each worker begins with


def kill_workers(requests: Memory, workers: int) -> None:
    """Kills those of a loader that still run, whoever has forked them."""
    at = requests.size - 16 * workers
    for pid in struct.unpack_from(f"<{workers}Q", requests.map, at):
        with contextlib.suppress(ProcessLookupError):
            # Each has a group of its own, in the trainer's session: else it is another process.
            if pid and os.getpgid(pid) == pid and os.getsid(pid) == os.getsid(0):
                os.kill(pid, signal.SIGKILL)
