"""What the batches of a feed that several trainers share are made of: known without asking anybody.

A *plan* says which samples batch k of an epoch has, for each rank. An *iteration* is an epoch, or
the rest of one, in the feed's numbers: it begins at batch `start` of the feed with batch `first` of
its epoch, and then the ranks of this host take turns. The warm parent begins iterations, when
trainers ask for them; it is the only writer of the table. Workers read it.

    table    offset 0      a table of requests with one entry (ringfeed/shm/requests.h): its seq is
                           the last batch of the feed that is wanted
             128           how many iterations have been begun
             4096          of each: start, epoch, first, 0
             end           words of the workers (_worker.py)
"""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import os
import platform
import struct
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from .._core import native
from .._core.torch_bridge import rank_and_world
from ..errors import InvalidRequest
from ._batches import TABLE_HEAD, TABLE_MAGIC, Memory
from ._job import FETCH

ITERATIONS_MAX = 1 << 20
_COUNT_AT, _FIRST_AT = 128, 4096
_ITERATION = struct.Struct("<4Q")
_RANKS_MAX = 16  # of a host
_RANKS_COME_S = 300.0


@dataclass(frozen=True)
class Plan:
    """The order of the samples, the same in all processes that share a feed.

    It is that of `torch.utils.data.DistributedSampler`, of one rank or of many.
    """

    samples: int  # of the dataset
    batch_size: int | None  # None: batches are single samples
    drop_last: bool  # a last batch that is not full
    shuffle: bool
    seed: int
    ranks: int = 1  # of the job
    local_ranks: int = 1  # of them on this host
    first_rank: int = 0  # of these
    cuts: bool = False  # so that ranks have equally many: some samples are left out, or come twice

    @property
    def samples_of_rank(self) -> int:
        """Samples of each rank in an epoch."""
        n, ranks = self.samples, self.ranks
        if self.cuts and n % ranks:
            n -= ranks
        return -(-n // ranks) if n > 0 else 0

    @property
    def batches(self) -> int:
        """Batches of each rank in an epoch."""
        size = self.batch_size or 1
        whole, rest = divmod(self.samples_of_rank, size)
        return whole + (1 if rest and not self.drop_last else 0)

    def order(self, epoch: int) -> torch.Tensor | None:
        """A permutation of all samples, int64 [samples]; None: they come as they are."""
        if not self.shuffle:
            return None
        generator = torch.Generator()
        seed = self.seed + epoch
        generator.manual_seed(seed if seed < 1 << 64 else seed - (1 << 64))
        return torch.randperm(self.samples, generator=generator)

    def indices(self, order: torch.Tensor | None, batch: int, local_rank: int) -> Any:
        """What a batch is made of: a list of indices, or one."""
        size = self.batch_size or 1
        begin = batch * size
        end = min(begin + size, self.samples_of_rank)
        places = torch.arange(begin, end) * self.ranks + self.first_rank + local_rank
        places %= self.samples  # what is missing for the last ones comes from the beginning
        found: list[int] = (places if order is None else order[places]).tolist()
        return found if self.batch_size is not None else found[0]

    def seed_of(self, epoch: int, batch: int, local_rank: int) -> int:
        """Of the generators while that batch is made, whoever makes it."""
        seed = self.seed & ((1 << 64) - 1)
        key = struct.pack("<Q3q", seed, epoch, batch, self.first_rank + local_rank)
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 2

    def differences(self, other: dict[str, Any]) -> list[str]:
        """What another plan, as a dictionary, has otherwise."""
        return [
            f"{name}={other.get(name)!r} in place of {value!r}"
            for name, value in dataclasses.asdict(self).items()
            if other.get(name) != value
        ]


def mark_of(epoch: int, batch: int, rank: int) -> int:
    """What workers write on a batch, so that no trainer takes it for another one."""
    return (epoch << 40 | batch << 4 | rank) & ((1 << 64) - 1)


def shareable(loader: Any) -> tuple[Any, int | None, bool]:
    """Sampler, batch size and drop_last of a DataLoader with `feed`.

    Raises:
        ValueError: Its arguments do not say which batches all trainers get.
    """
    whole, batch_size, drop_last = loader.batch_sampler, None, False
    sampler = loader.sampler
    if type(whole) is BatchSampler:
        sampler, batch_size, drop_last = whole.sampler, whole.batch_size, whole.drop_last
    if (
        loader._dataset_kind != 0
        or type(whole) not in (BatchSampler, type(None))
        or type(sampler) not in (SequentialSampler, RandomSampler, DistributedSampler)
        or getattr(sampler, "replacement", False)
        or getattr(sampler, "_num_samples", None) is not None
    ):
        raise ValueError(
            f"feed={loader.feed!r}: the batches of a shared feed are the same for all trainers: it "
            "takes a map-style dataset, batch_size, and shuffle=True, plain order or a "
            "DistributedSampler. Leave feed out for other samplers and for iterable datasets"
        )
    return sampler, batch_size, drop_last


def plan_of(loader: Any, directory: Path | None) -> tuple[Plan, int]:
    """The plan of a DataLoader with `feed`, and the rank of this process on its host.

    Args:
        directory: Of the feed's socket, which is there: ranks that share it are on one host. None:
            of the plan only its length is wanted.
    Raises:
        ValueError: As of shareable().
        InvalidRequest: Its ranks cannot be told.
    """
    sampler, batch_size, drop_last = shareable(loader)
    generator: Any = loader.generator
    seed = 0 if generator is None else int(generator.initial_seed())
    shuffle = type(sampler) is RandomSampler
    cuts = False
    if type(sampler) is DistributedSampler:
        rank, ranks, cuts = sampler.rank, sampler.num_replicas, sampler.drop_last
        shuffle, seed = sampler.shuffle, sampler.seed
    else:
        rank, ranks = rank_and_world() or (0, 1)
    first, local = (rank, 1) if directory is None else _local(rank, ranks, directory)
    if local > _RANKS_MAX:
        raise ValueError(f"feed={loader.feed!r}: a host may have {_RANKS_MAX} ranks, not {local}")
    plan = Plan(
        samples=len(loader.dataset),
        batch_size=batch_size,
        drop_last=drop_last,
        shuffle=shuffle,
        seed=seed,
        ranks=ranks,
        local_ranks=local,
        first_rank=first,
        cuts=cuts,
    )
    return plan, rank - first


def _local(rank: int, ranks: int, directory: Path) -> tuple[int, int]:
    """The first rank of this host, and how many it has."""
    try:
        local_rank = int(os.environ["LOCAL_RANK"])
        local = int(os.environ["LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError):
        # Not every launcher says it: SLURM and Lightning do not.
        here = _ranks_here(rank, ranks, directory)
        if here != list(range(here[0], here[0] + len(here))):
            raise InvalidRequest(
                f"ranks {here} are on this host: those of one host have to follow one another"
            ) from None
        return here[0], len(here)
    if not 0 <= local_rank < local or local > ranks or local_rank > rank:
        raise InvalidRequest(
            f"LOCAL_RANK={local_rank} and LOCAL_WORLD_SIZE={local} do not fit rank {rank} of "
            f"{ranks}"
        )
    return rank - local_rank, local


def _ranks_here(rank: int, ranks: int, directory: Path) -> list[int]:
    """Ranks that share the directory, as they tell one another; without a process group: all."""
    if ranks == 1 or not torch.distributed.is_available():
        return list(range(ranks))
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() != ranks:
        return list(range(ranks))
    store = torch.distributed.distributed_c10d._get_default_store()
    try:
        host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # /proc may show processes alone
        host = platform.node()
    status = directory.stat()
    here = f"{host} {status.st_dev} {status.st_ino}"
    keys = [f"ringfeed/host/{one}" for one in range(ranks)]
    store.set(keys[rank], here)
    try:
        store.wait(keys, timedelta(seconds=_RANKS_COME_S))
    except RuntimeError as error:  # DistStoreError
        raise InvalidRequest(
            f"not all {ranks} ranks have begun to iterate over their loaders within "
            f"{_RANKS_COME_S:.0f} s: {error}"
        ) from None
    return [one for one, key in enumerate(keys) if store.get(key).decode() == here]


class PlanTable:
    """The iterations of a feed that have been begun."""

    def __init__(self, plan: Plan, memory: Memory) -> None:
        self.plan = plan
        self.memory = memory
        self._last: tuple[int, Any] = (-1, None)  # epoch, order

    @classmethod
    def create(cls, plan: Plan, extra_bytes: int) -> PlanTable:
        """A new one; `extra_bytes` behind it are the workers'."""
        size = _FIRST_AT + ITERATIONS_MAX * _ITERATION.size + extra_bytes
        memory = Memory("ringfeed-plan", size)
        TABLE_HEAD.pack_into(memory.map, 0, TABLE_MAGIC, 1, size, 1)
        return cls(plan, memory)

    @property
    def count(self) -> int:
        """Iterations that have been begun."""
        return int(struct.unpack_from("<Q", self.memory.map, _COUNT_AT)[0])

    def iteration(self, number: int) -> tuple[int, int, int]:
        """Its start, epoch and first batch."""
        at = _FIRST_AT + number * _ITERATION.size
        start, epoch, first, _ = _ITERATION.unpack_from(self.memory.map, at)
        return start, epoch, first

    def behind(self, number: int) -> int:
        """The number of the feed's batch behind an iteration that nothing has cut short."""
        start, _, first = self.iteration(number)
        return start + max(0, self.plan.batches - first) * self.plan.local_ranks

    # ---- the warm parent's side

    def begin(self, start: int, epoch: int, first: int) -> int:
        """Begins another iteration, and returns its number.

        Raises:
            InvalidRequest: There have been too many.
        """
        number = self.count
        if number >= ITERATIONS_MAX:
            raise InvalidRequest(f"a feed has at most {ITERATIONS_MAX} epochs: start it anew")
        _ITERATION.pack_into(
            self.memory.map, _FIRST_AT + number * _ITERATION.size, start, epoch, first, 0
        )
        struct.pack_into("<Q", self.memory.map, _COUNT_AT, number + 1)
        self.publish()
        return number

    def drop_from(self, start: int) -> None:
        """Forgets iterations that begin there or later, of which nothing has been made."""
        struct.pack_into("<Q", self.memory.map, _COUNT_AT, self.find(start - 1) + 1)

    def publish(self) -> None:
        """Tells workers how far the newest iteration goes."""
        if self.count:
            wanted = self.behind(self.count - 1) - 1
            if wanted:
                native.ask(None, self.memory.address, self.memory.size, wanted, 0, 0, FETCH)

    # ---- a worker's side

    def find(self, seq: int) -> int:
        """The last iteration that begins at or before a batch of the feed; -1: none does."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.iteration(middle)[0] <= seq:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def place(self, seq: int) -> tuple[int, int, int] | None:
        """Epoch, batch and local rank of a batch of the feed; None: it belongs to no iteration."""
        number = self.find(seq)
        if number < 0:
            return None
        start, epoch, first = self.iteration(number)
        batch, rank = divmod(seq - start, self.plan.local_ranks)
        return (epoch, first + batch, rank) if first + batch < self.plan.batches else None

    def indices(self, epoch: int, batch: int, rank: int) -> Any:
        """What a batch is made of."""
        if self._last[0] != epoch:
            self._last = (epoch, self.plan.order(epoch))
        return self.plan.indices(self._last[1], batch, rank)


_bell: list[Memory] = []


def ring(feed: Any) -> None:
    """Workers look at once for what they are to do; `feed`: the raw handle of a trainer."""
    if not _bell:
        memory = Memory("ringfeed-bell", mmap.PAGESIZE)
        TABLE_HEAD.pack_into(memory.map, 0, TABLE_MAGIC, 1, memory.size, 1)
        _bell.append(memory)
    # A table that nobody reads: who writes into it rings.
    native.ask(feed, _bell[0].address, _bell[0].size, 1, 0, 0, FETCH)
