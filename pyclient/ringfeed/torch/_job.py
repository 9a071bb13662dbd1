"""What a trainer and its workers agree on: the job, requests, and the heads of batches."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._batches import GivenMemory, Memory

if TYPE_CHECKING:
    from ._bulk import Bulk
    from ._plan import Plan

# What a request asks for. LEAVE: what the dataset has begun ends, and nothing more is asked.
FETCH, RESUME, BEGAN, LEAVE = range(1, 5)
SPILT = 16  # or'ed: the bytes are the path of a file with the request
WANTED = 32  # or'ed: the trainer wants the worker's state behind that batch
# What a batch is.
DATA, ACK, EMPTY, RESUMED = range(1, 5)
HEAD = struct.Struct("<16Q")
AS_BEFORE = 1  # the place of a state that has no bytes: it is that of the worker's last batch
TOGETHER = 0x3FFFFF
NAME_BYTES = 202  # of a sample's name at most, with its length before it


def name_in(text: bytes) -> str:
    """A sample's name, of bytes that begin with its length."""
    (size,) = struct.unpack_from("<H", text)
    return text[2 : 2 + size].decode(errors="replace")


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
    bulk: Bulk
    skips: bool  # a sample that kills is left out
    socket_path: str
    listener: socket.socket | None  # there; None: the warm parent makes one
    trainer: int  # its process
    environment: dict[str, str]
    begin: list[bytes | None]  # the state that each worker begins with
    dataset_state: str = "exact"  # what states of an iterable dataset are worth
    snapshots: bool = False  # the trainer keeps states, and that of each epoch's beginning
    generation: int = 0  # of the feed (_own_feed.py)
    firsts: list[int] = field(default_factory=list)  # by worker: its first request
    plan: Plan | None = None  # of a feed that trainers share
    trainers: int = 1  # with which that one begins
    shown: str = ""  # the link by which people find the feed
    # Of each worker, as a process of multiprocessing: its number, and what its name begins with.
    identities: list[tuple[int, ...]] = field(default_factory=list)
    process_kind: str = "Process"


class Bond:
    """Which feed the memory of a loader's batches belongs to, and whether that is gone.

    If all processes of a feed die at once, the next supervisor begins another one. Its workers
    would write where batches lie that a trainer has or may still take. So there are three words
    behind the table of requests, before those of the workers:

        byte 0  a trainer may have batches       written by trainers
             1  some have been made              by workers
             2  the feed is gone                 by whoever has found another one in its place
             3  the dataset has been loaded      by the warm parent
             4  the warm parent hears signals    by it, and by the trainer that starts another
             8  the feed: a number of 8 bytes    by workers
            16  its generation, 8 bytes          by the trainer, before it asks for anything
    """

    def __init__(self, requests: Memory | GivenMemory, workers: int) -> None:
        self._memory = requests
        self._workers = workers
        self._at = requests.size - words_bytes(workers)

    def _word(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self._memory.map, self._at + at)[0])

    @property
    def feed(self) -> int:
        """The feed, as a number; 0: no worker has said yet."""
        return self._word(8)

    @property
    def generation(self) -> int:
        """The newest one."""
        return self._word(16)

    def begin(self) -> None:
        """Another generation: no process of it is there yet."""
        words = self._memory.map
        words[self._at + 3] = 0
        struct.pack_into("<Q", words, self._at + 16, self.generation + 1)
        at = self._memory.size - 16 * self._workers
        words[at:] = bytes(16 * self._workers)

    @property
    def is_loaded(self) -> bool:
        """Has a warm parent of this generation had the dataset?"""
        return self._memory.map[self._at + 3] != 0

    def note_loaded(self) -> None:
        """The warm parent has the dataset."""
        self._memory.map[self._at + 3] = 1

    @property
    def hears(self) -> bool:
        """Can the warm parent be told that another worker has something to do?"""
        return self._memory.map[self._at + 4] != 0

    def note_hears(self, whether: bool) -> None:
        """It can; or it is only being started."""
        self._memory.map[self._at + 4] = whether

    def note_taken(self) -> None:
        """From here on a trainer may have batches."""
        self._memory.map[self._at] = 1

    @property
    def is_gone(self) -> bool:
        """Nothing is made there any more."""
        return self._memory.map[self._at + 2] != 0

    def note_gone(self) -> None:
        """Another feed has begun in place of the one whose batches lie there."""
        self._memory.map[self._at + 2] = 1

    @property
    def is_in_use(self) -> bool:
        """Somebody may have batches, or still take some, of a feed that was there before."""
        return self._memory.map[self._at] != 0 and self._memory.map[self._at + 1] != 0

    def tie(self, feed: int) -> bool:
        """Ties the memory to a worker's feed; False: it is another feed's."""
        if self.is_in_use and self.feed != feed:
            self.note_gone()
        if self.is_gone:
            return False
        struct.pack_into("<Q", self._memory.map, self._at + 8, feed)
        return True

    def note_made(self, feed: int) -> bool:
        """A worker of a feed is about to make a batch; False: the memory is another feed's."""
        if self.feed != feed or self.is_gone:
            return False
        self._memory.map[self._at + 1] = 1
        return True


def words_bytes(workers: int) -> int:
    """Of the words behind a table of requests: those of Bond, and two of each worker."""
    return 24 + 16 * workers


def remove_link(shown: str) -> None:
    """Removes what Job.shown says."""
    if shown:
        with contextlib.suppress(OSError):
            os.unlink(shown)


def has_begun(requests: Memory | GivenMemory, workers: int, number: int, pid: int) -> bool:
    """Is worker `number` that process, and has it the dataset ready for batches?"""
    (starts,) = struct.unpack_from("<Q", requests.map, requests.size - 8 * (workers - number))
    return process_of(requests, workers, number) == pid and starts == 0


def process_of(requests: Memory | GivenMemory, workers: int, number: int) -> int:
    """Process number of worker `number`, as it has said; 0: not yet."""
    return _place_of(requests, workers, number) & ~_ASKED


def note_asked(requests: Memory, workers: int, number: int) -> None:
    """Something is asked of worker `number`, which has no process yet.

    The trainer writes the word, once a generation; a process is forked behind that alone, and from
    then on the worker writes it.
    """
    at = requests.size - 16 * workers + 8 * number
    struct.pack_into("<Q", requests.map, at, _ASKED)


def is_asked(requests: Memory, workers: int, number: int) -> bool:
    """Has anything been asked of worker `number`?"""
    return _place_of(requests, workers, number) != 0


def _place_of(requests: Memory | GivenMemory, workers: int, number: int) -> int:
    at = requests.size - 16 * workers + 8 * number
    return int(struct.unpack_from("<Q", requests.map, at)[0])


_ASKED = 1 << 63  # in place of its process number


def kill_workers(requests: Memory, workers: int) -> None:
    """Kills those of a loader that still run, whoever has forked them."""
    at = requests.size - 16 * workers
    known = os.fstat(requests.fd).st_ino
    for pid in struct.unpack_from(f"<{workers}Q", requests.map, at):
        pid &= ~_ASKED
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
