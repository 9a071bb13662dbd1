"""What batches take of memory: those that are kept are where the worker wrote them, and what is given back has none."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from tests.support.feeds.feed_run import wait_until  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

# Bytes of a sample, of which a batch has eight.
SIZES = [12_500, 125_000, 1_500_000, 3_000_000]
BATCH = 8
# What a worker reserves beside a batch, and the table of regions.
MORE_BYTES = 1 << 20


class Sentinels(torch.utils.data.Dataset[Any]):
    """Samples that are full of their index; the worker's process number comes with them."""

    def __init__(self, batches: int, size: int) -> None:
        self.length, self.size = BATCH * batches, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.size,), index % 251, dtype=torch.uint8), os.getpid()


def file_bytes() -> int:
    """Memory that the batches of this process's one loader have."""
    found = set()
    for entry in os.scandir("/proc/self/fd"):
        if os.readlink(entry.path).startswith("/memfd:ringfeed-batches"):
            found.add((os.stat(entry.path).st_ino, 512 * os.stat(entry.path).st_blocks))
    ((_, size),) = found
    return size


def mapped() -> list[range]:
    """Addresses where this process has the file of batches, and shares it."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    parts = [re.match(r"(\w+)-(\w+) rw-s .*/memfd:ringfeed-batches ", line) for line in lines]
    return [range(int(part[1], 16), int(part[2], 16)) for part in parts if part]


def full_of(batch: Any, number: int) -> bool:
    wanted = torch.arange(BATCH * number, BATCH * (number + 1)) % 251
    return bool((batch.amin(1) == wanted).all() and (batch.amax(1) == wanted).all())


@pytest.mark.parametrize("size", SIZES)
def test_batches_that_are_kept_are_not_copied(Ours: Any, size: int) -> None:
    """Also when the workers have ended: others wrote them, where they are."""
    kept = [batch for batch in Ours(Sentinels(20, size), BATCH, num_workers=2)]
    places = mapped()
    for number, (batch, pids) in enumerate(kept):
        assert full_of(batch, number)
        assert os.getpid() not in pids.tolist()
        first, last = batch.data_ptr(), batch.data_ptr() + batch.nbytes - 1
        assert any(first in place and last in place for place in places), "it is a copy"
    # They are the memory of one another's neighbours, and no two share any.
    starts = sorted(batch.data_ptr() for batch, _ in kept)
    assert all(b - a >= BATCH * size for a, b in zip(starts, starts[1:]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("workers, prefetch", [(1, 1), (2, 2), (4, 3)])
def test_what_is_dropped_has_no_memory(Ours: Any, size: int, workers: int, prefetch: int) -> None:
    """Behind an epoch: there is memory for what is kept, and when nothing is kept for nothing."""
    loader = Ours(
        Sentinels(16, size),
        BATCH,
        num_workers=workers,
        prefetch_factor=prefetch,
        persistent_workers=True,
    )
    each = BATCH * size
    room = each + min(each // 8, 1 << 20) + (1 << 16)
    for _ in range(2):
        kept = [batch for batch, _ in loader]
        for left in (16, 7, 1, 0):
            del kept[left:]
            assert left * each <= file_bytes() <= left * room + MORE_BYTES
            assert all(full_of(batch, number) for number, batch in enumerate(kept))


@pytest.mark.parametrize("size", SIZES)
def test_behind_an_epoch_nothing_is_free(Ours: Any, size: int) -> None:
    """What the loop has left holds its last batch."""
    loader = Ours(Sentinels(16, size), BATCH, num_workers=4, persistent_workers=True)
    for _ in range(2):
        for batch, _ in loader:
            pass
        assert full_of(batch, 15)
        assert file_bytes() <= 2 * batch.nbytes + MORE_BYTES
        del batch
        assert file_bytes() <= MORE_BYTES


class Allowed(Sentinels):
    """Begins a batch when the loop allows it, and notes each sample: by the sizes of two files."""

    def __init__(self, batches: int, size: int, place: Path) -> None:
        super().__init__(batches, size)
        self.allowed, self.asked = place / "allowed", place / "asked"
        self.allowed.touch()
        self.asked.touch()

    def __getitem__(self, index: int) -> Any:
        wait_until(lambda: self.allowed.stat().st_size > index // BATCH, "the loop to allow it")
        found = super().__getitem__(index)
        with open(self.asked, "ab", 0) as file:
            file.write(b"x")
        return found


@pytest.mark.parametrize("size", SIZES[2:])
def test_large_memory_goes_to_the_worker_that_needs_it(
    Ours: Any, size: int, tmp_path: Path
) -> None:
    """A loop that holds one batch, and drops it before the last one that it has asked for is begun."""
    workers, count = 4, 24
    data = Allowed(count, size, tmp_path)
    data.allowed.write_bytes(b"x" * workers)
    each = BATCH * size
    most = (workers + 1) * (each + (1 << 20) + (1 << 16)) + MORE_BYTES
    iterator = iter(
        Ours(data, BATCH, num_workers=workers, prefetch_factor=1, persistent_workers=True)
    )
    regions = iterator._feed.feed.regions
    for number, (batch, _) in enumerate(iterator):
        made = min(count, number + workers + 1)
        data.allowed.write_bytes(b"x" * made)
        wait_until(lambda: data.asked.stat().st_size == BATCH * made, "batches")
        # Else what is dropped next may be lent to a lane that is about to take memory of its own.
        wait_until(lambda: list(regions._found) == regions._asked, "their memory")
        assert full_of(batch, number)
        # Those that are made, and the one at hand. No worker has memory besides.
        assert file_bytes() <= most
