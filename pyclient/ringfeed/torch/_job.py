"""What a trainer and its workers agree on: the job, requests, and the heads of batches."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._batches import Memory

if TYPE_CHECKING:
    from ._plan import Plan

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
    plan: Plan | None = None  # of a feed that trainers share
    trainers: int = 1  # with which that one begins
    shown: str = ""  # the link by which people find the feed


def remove_link(shown: str) -> None:
    """Removes what Job.shown says."""
    if shown:
        with contextlib.suppress(OSError):
            os.unlink(shown)


def kill_workers(requests: Memory, workers: int) -> None:
    """Kills those of a loader that still run, whoever has forked them."""
    at = requests.size - 16 * workers
    known = os.fstat(requests.fd).st_ino
    for pid in struct.unpack_from(f"<{workers}Q", requests.map, at):
        # Whoever has this memory is one; else the number is another process's now.
        if pid and _has_memory(pid, known):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _has_memory(pid: int, inode: int) -> bool:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).startswith("/memfd:"):
                    if os.stat(entry.path).st_ino == inode:
                        return True
    return False
