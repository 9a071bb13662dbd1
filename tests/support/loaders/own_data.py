"""What the tests of data loaders share: datasets that a spawned process can import, the comparison of batches,
the same loop over two loaders, and what a loader may leave behind (nothing).
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import random
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data

from ringfeed._core import control
from tests.support.feeds.feed_run import ROOT, runs, wait_until

Reference = torch.utils.data.DataLoader
IMPORTS = {
    "torch": "from torch.utils.data import DataLoader",
    "ringfeed": "from ringfeed.torch import DataLoader",
}

# Set in the trainer's process alone: a worker that comes by fork sees it, one that imports does not.
MARK: list[str] = []


# ---- Comparison ------------------------------------------------------------------------------------------------


def _bits(tensor: torch.Tensor) -> bytes:
    """The elements in their order, bit for bit: of numbers that are not equal to themselves too."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    # Not contiguous(): a single element may have any stride.
    dense = torch.empty(flat.shape, dtype=flat.dtype).copy_(flat)
    return dense.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _same_tensor(got: torch.Tensor, want: torch.Tensor, at: str) -> None:
    for fact in ("dtype", "shape", "layout", "device", "requires_grad", "is_leaf"):
        seen, due = getattr(got, fact), getattr(want, fact)
        assert seen == due, f"{at}: {fact} is {seen}, not {due}"
    if want.layout is torch.strided:
        assert got.stride() == want.stride(), f"{at}: strides {got.stride()}, not {want.stride()}"
        assert _bits(got) == _bits(want), f"{at}: {got} is not {want}"
        if want.is_quantized:
            assert torch.equal(got, want), f"{at}: {got} is not {want}"
    elif want.layout is torch.sparse_coo:
        assert got.is_coalesced() == want.is_coalesced(), f"{at}: coalesced"
        same(got._indices(), want._indices(), f"{at}.indices")
        same(got._values(), want._values(), f"{at}.values")
    else:
        by_row = want.layout in (torch.sparse_csr, torch.sparse_bsr)
        names = ("crow_indices", "col_indices") if by_row else ("ccol_indices", "row_indices")
        for name in names:
            same(getattr(got, name)(), getattr(want, name)(), f"{at}.{name}")
        same(got.values(), want.values(), f"{at}.values")
    # PyTorch's workers pass on what the user's classes have, and drop it of its own.
    if type(want) not in (torch.Tensor, torch.nn.Parameter):
        same(vars(got), vars(want), f"{at}.__dict__")


def same(got: Any, want: Any, at: str = "batch") -> None:
    """Are both alike in types, order, dtypes, shapes, strides and bits? The first difference is named."""
    assert type(got) is type(want), f"{at}: {type(got)}, not {type(want)}"
    if isinstance(want, torch.Tensor):
        _same_tensor(got, want, at)
    elif isinstance(want, np.ndarray):
        facts = [
            (
                *(array.dtype, array.shape, array.strides, array.flags.writeable),
                *(array.flags.c_contiguous, array.flags.f_contiguous),
            )
            for array in (got, want)
        ]
        assert facts[0] == facts[1], f"{at}: {facts[0]}, not {facts[1]}"
        if want.dtype.hasobject:
            same(got.tolist(), want.tolist(), at)
        else:
            assert got.tobytes() == want.tobytes(), f"{at}: {got} is not {want}"
        same(np.ma.getmask(got), np.ma.getmask(want), f"{at}.mask")
    elif isinstance(want, np.generic):
        assert (
            got.dtype == want.dtype and got.tobytes() == want.tobytes()
        ), f"{at}: {got!r}, not {want!r}"
    elif isinstance(want, float):
        assert struct.pack("d", got) == struct.pack("d", want), f"{at}: {got}, not {want}"
    elif isinstance(want, Mapping):
        assert list(got) == list(want), f"{at}: keys {list(got)}, not {list(want)}"
        for key in want:
            same(got[key], want[key], f"{at}[{key!r}]")
        same(getattr(got, "__dict__", None), getattr(want, "__dict__", None), f"{at}.__dict__")
    elif isinstance(want, Sequence) and not isinstance(want, (str, bytes)):
        assert len(got) == len(want), f"{at}: {len(got)} items, not {len(want)}"
        for i, (one, other) in enumerate(zip(got, want)):
            same(one, other, f"{at}[{i}]")
        same(getattr(got, "__dict__", None), getattr(want, "__dict__", None), f"{at}.__dict__")
    elif dataclasses.is_dataclass(want) and not isinstance(want, type):
        for field in dataclasses.fields(want):
            same(getattr(got, field.name), getattr(want, field.name), f"{at}.{field.name}")
    elif type(want).__eq__ is object.__eq__ and getattr(want, "__dict__", None) is not None:
        same(vars(got), vars(want), f"{at}.__dict__")
    else:
        assert got == want, f"{at}: {got!r}, not {want!r}"


# ---- The same loop over two loaders ----------------------------------------------------------------------------


def seed_all(seed: int = 7) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def states() -> tuple[Any, ...]:
    """Of the trainer's own three generators."""
    name, keys, *rest = np.random.get_state()
    return random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state().tolist()


def epochs_of(loader: Any, epochs: int = 1) -> list[list[Any]]:
    return [list(loader) for _ in range(epochs)]


def alike(
    Loader: type, make: Callable[[type], Any], epochs: int = 1, seed: int = 7
) -> list[list[Any]]:
    """The batches of `make(Loader)`: those of `make(torch's)` and as many draws of the trainer's generators.

    Args:
        make: Makes the dataset, the samplers and the loader, all anew.
    """
    seen = []
    for loader_class in (Reference, Loader):
        seed_all(seed)
        loader = make(loader_class)
        batches = epochs_of(loader, epochs)
        generator = loader.generator.get_state() if loader.generator is not None else None
        del loader
        gc.collect()
        seen.append((batches, generator, states()))
    (want, generator_due, states_due), (got, generator_seen, states_seen) = seen
    assert len(want) == epochs
    for epoch in range(epochs):
        same(got[epoch], want[epoch], f"epoch {epoch}")
    same(generator_seen, generator_due, "generator")
    assert states_seen == states_due, "the trainer's generators stand elsewhere"
    return got


def events(loader: Any, limit: int = 100) -> list[Any]:
    """Batches and exceptions of one epoch in their order; after an exception the loop asks again.

    An exception is its type, and its text's first line. Nothing is left out: the loop ends at StopIteration.
    """
    seen: list[Any] = []
    try:
        iterator = iter(loader)
    except Exception as error:
        return [("iter", type(error), first_line(frameless(error)))]
    while len(seen) < limit:
        try:
            seen.append(next(iterator))
        except StopIteration as error:
            frameless(error)
            return seen
        except Exception as error:
            seen.append((type(error), first_line(frameless(error))))
    raise AssertionError(f"no end after {limit} batches: {seen[-3:]}")


def frameless(error: BaseException) -> BaseException:
    """The exception without its frames: these keep the iterator in a cycle, and PyTorch's workers, where garbage
    collection ends them, are waited for 5 seconds each.
    """
    below: BaseException | None = error
    while below is not None:
        below.__traceback__ = None
        below = below.__context__
    return error


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def raised(act: Callable[[], Any]) -> BaseException:
    """What `act` raises, without its frames."""
    try:
        act()
    except Exception as error:
        return frameless(error)
    raise AssertionError("nothing was raised")


def outcome(act: Callable[[], Any]) -> tuple[type, str]:
    """The type and the text of what `act` raises."""
    error = raised(act)
    return type(error), str(error)


# ---- Datasets --------------------------------------------------------------------------------------------------


class Squares(torch.utils.data.Dataset):
    """Sample i: a tensor (i, i * i), and i."""

    def __init__(self, length: int = 20) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.length:
            raise IndexError(f"{index} of {self.length}")
        return torch.tensor([index, index * index]), int(index)


class Made(torch.utils.data.Dataset):
    """Sample i is what a function makes of i."""

    def __init__(self, make: Callable[[int], Any], length: int = 6) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Plain:
    """No subclass of anything: what has a length and items is a dataset."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return index * 3


class Keyed(torch.utils.data.Dataset):
    """Samples under any key: (type's name, representation)."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: Any) -> tuple[str, str]:
        return type(key).__name__, repr(key)


class ManyAtOnce(torch.utils.data.Dataset):
    """Has __getitems__: samples say how many were asked for together."""

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, 1

    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        return [(index, len(indices)) for index in indices]


class Augmented(torch.utils.data.Dataset):
    """Sample i with what torch, random and NumPy draw."""

    def __init__(self, length: int = 20) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "torch": torch.rand(3),
            "random": random.random(),
            "numpy": np.random.random(2),
            "many": [
                torch.randint(1000, ()),
                random.randrange(10**6),
                int(np.random.randint(10**6)),
            ],
        }


class Uneven(torch.utils.data.IterableDataset):
    """Of worker w, (w, i) for each i below sizes[w]."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[tuple[int, int]]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return iter([(info.id, i) for i in range(self.sizes[info.id])])


class AwaitsFile(torch.utils.data.Dataset):
    """Numbers below `length`; the one at `slow` comes when there is a file at `path`.

    Which process waits for that stands in the file beside it, with the suffix .pid.
    """

    def __init__(self, length: int, slow: int, path: Path) -> None:
        self.length, self.slow, self.path = length, slow, path

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.slow:
            said = self.path.with_suffix(".new")
            said.write_text(str(os.getpid()))
            said.rename(self.path.with_suffix(".pid"))
            wait_until(self.path.exists, f"{self.path}")
        return index


class Shards(torch.utils.data.IterableDataset):
    """The numbers below `length`, worker w has those that are w modulo the number of workers.

    Args:
        lengths: Instead: how many samples each worker has, whose numbers are 100 * worker + i.
        draws: With a number of each generator.
        said: What len() says.
    """

    def __init__(
        self,
        length: int = 20,
        lengths: Sequence[int] | None = None,
        draws: bool = False,
        said: int | None = None,
    ) -> None:
        self.length, self.lengths, self.draws, self.said = length, lengths, draws, said

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        worker, count = (info.id, info.num_workers) if info else (0, 1)
        numbers = range(worker, self.length, count)
        if self.lengths is not None:
            numbers = range(100 * worker, 100 * worker + self.lengths[worker])
        for number in numbers:
            if self.draws:
                yield number, torch.rand(2), random.random(), np.random.random()
            else:
                yield number


class SizedShards(Shards):
    def __len__(self) -> int:
        return self.said if self.said is not None else self.length


class Whoami(torch.utils.data.Dataset):
    """Sample i: what get_worker_info() says, the process and its threads."""

    def __init__(self, length: int = 8) -> None:
        self.length, self.note = length, "as made"

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = torch.utils.data.get_worker_info()
        return {
            "index": index,
            "pid": os.getpid(),
            "parent": os.getppid(),
            "threads": torch.get_num_threads(),
            "note": self.note,
            "mark": list(MARK),
            "info": (
                None
                if info is None
                else (info.id, info.num_workers, info.seed, info.dataset is self)
            ),
        }


class Fails(torch.utils.data.Dataset):
    """Sample i is i; at some indices it raises what `error` makes."""

    def __init__(
        self, error: Callable[[], BaseException], at: Sequence[int] = (5,), length: int = 16
    ) -> None:
        self.error, self.at, self.length = error, at, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index in self.at:
            raise self.error()
        return index


class FailsOnce(torch.utils.data.IterableDataset):
    """Its iterator raises at one of the samples and then goes on."""

    def __init__(self, at: int = 3, length: int = 12, place: str = "next") -> None:
        self.at, self.length, self.place, self.position = at, length, place, 0

    def __iter__(self) -> FailsOnce:
        if self.place == "iter":
            raise ConnectionError("the store is away")
        self.position = 0
        return self

    def __next__(self) -> int:
        self.position += 1
        if self.position == self.at:
            raise ValueError(f"number {self.at} is bad")
        if self.position > self.length:
            raise StopIteration
        return self.position


class Counting(torch.utils.data.Dataset):
    """Counts in shared memory how many samples were made: `made[worker]`; `ahead` of what was `received`, at most."""

    def __init__(self, length: int, workers: int) -> None:
        self.length = length
        self.made = torch.zeros(workers, dtype=torch.int64).share_memory_()
        self.ahead = torch.zeros(workers, dtype=torch.int64).share_memory_()
        self.received = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        worker = torch.utils.data.get_worker_info().id
        self.made[worker] += 1
        self.ahead[worker] = max(int(self.ahead[worker]), int(self.made.sum() - self.received))
        return index


class Acts:
    """What datasets do at some indices besides making samples; how often is counted in shared memory.

    Args:
        acts: Index to what is called, in the worker.
        times: How often for each index; None: always.
    """

    def __init__(self, acts: Mapping[int, Callable[[], Any]], times: int | None = 1) -> None:
        self.acts, self.times = dict(acts), times
        self.done = torch.zeros(1 + max(self.acts, default=0), dtype=torch.int64).share_memory_()

    def __call__(self, index: int) -> None:
        act = self.acts.get(index)
        if act is not None and (self.times is None or self.done[index] < self.times):
            self.done[index] += 1
            act()


def _drawn(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "torch": torch.rand(2),
        "random": random.random(),
        "numpy": float(np.random.random()),
    }


class Flagged(torch.utils.data.Dataset):
    """Sample i is i with draws; before it, `act(i)`. Where workers run is told in shared memory: `pids`."""

    def __init__(self, act: Callable[[int], Any] | None = None, length: int = 40) -> None:
        self.act, self.length = act, length
        self.pids = torch.zeros(8, dtype=torch.int64).share_memory_()
        self.parents = torch.zeros(8, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        self.pids[info.id], self.parents[info.id] = os.getpid(), os.getppid()
        if self.act is not None:
            self.act(index)
        return _drawn(index)


class FlaggedStream(torch.utils.data.IterableDataset):
    """The numbers below `length` with draws, dealt to the workers; before each, `act(number)`."""

    def __init__(self, act: Callable[[int], Any] | None = None, length: int = 40) -> None:
        self.act, self.length = act, length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        for number in range(info.id, self.length, info.num_workers):
            if self.act is not None:
                self.act(number)
            yield _drawn(number)


class UnloadableSquares(Squares):
    """Can be pickled, and not be loaded."""

    def __reduce__(self) -> Any:
        return _refuse, ("not in this process",)


def _refuse(text: str) -> Any:
    raise OfTheirOwn(text)


def note_worker(worker: int) -> None:
    """A worker_init_fn that can be imported."""
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.note = f"worker {worker}"


def loop_in_process(loader_class: Any, queue: Any) -> None:
    """Puts the numbers of Squares(12), or the error's type and text."""
    try:
        queue.put(
            [batch[1].tolist() for batch in loader_class(Squares(12), batch_size=3, num_workers=2)]
        )
    except Exception as error:
        queue.put((type(error), str(error)))


def put_sum(queue: Any, batch: Any) -> None:
    queue.put(int(batch[1].sum()))


class Waits:
    """A function for Made: i, and from index `first` on it waits until the gate opens."""

    def __init__(self, gate: torch.Tensor, first: int) -> None:
        self.gate, self.first = gate, first

    def __call__(self, index: int) -> int:
        if index >= self.first:
            wait_until(lambda: self.gate[0] == 1, "the gate", timeout_s=100)
        return index


# ---- Samplers --------------------------------------------------------------------------------------------------


class Yields(torch.utils.data.Sampler):
    """Yields what it was given, and counts; raises at `fails_at`."""

    def __init__(self, items: Sequence[Any], fails_at: int | None = None) -> None:
        self.items, self.fails_at, self.yielded = items, fails_at, 0

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        for i, item in enumerate(self.items):
            if i == self.fails_at:
                raise LookupError(f"no item {i} today")
            self.yielded += 1
            yield item


class Endless(torch.utils.data.Sampler):
    """0, 1, ... length - 1, 0, ... for ever; without a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from range(self.length)


# ---- Types of samples and batches ------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    name: str
    values: Any


class Thing:
    """An object that is no container."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Bag(dict):  # type: ignore[type-arg]
    """A mapping with an attribute of its own."""

    note = "none"


class Row(list):  # type: ignore[type-arg]
    """A list with an attribute of its own."""


class Frozen(Mapping):  # type: ignore[type-arg]
    """A mapping that cannot be changed, and is made of a mapping."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Stubborn(Mapping):  # type: ignore[type-arg]
    """A mapping that cannot be made of a mapping."""

    def __init__(self, first: int, second: int) -> None:
        self._items = {"first": first, "second": second}

    def __getitem__(self, key: str) -> int:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Boxes(torch.Tensor):
    """A tensor that has attributes."""


class Pinned:
    """A batch of a type of one's own with the method that pin_memory looks for."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value, self.pinned = value, False

    def pin_memory(self) -> Pinned:
        self.pinned = True
        return self


class TwoArguments(Exception):
    """Cannot be made of a text alone."""

    def __init__(self, code: int, place: str) -> None:
        super().__init__(f"code {code} at {place}")
        self.code, self.place = code, place


class WithMessage(Exception):
    """Has a field `message` and is made by it."""

    message = "a message"

    def __init__(self, message: str = "none") -> None:
        super().__init__(message)
        self.message = message


class OfTheirOwn(ValueError):
    """An exception of the user's module."""


# ---- Processes and what is left --------------------------------------------------------------------------------


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def descendants(pid: int | None = None) -> list[int]:
    """All processes below one (default: this one) that run; not those that wait to be reaped."""
    # Without it (a kernel without CONFIG_PROC_CHILDREN) nothing would ever be left behind.
    assert Path("/proc/thread-self/children").exists()
    found, parents = [], [pid or os.getpid()]
    while parents:
        below = [child for child in _children(parents.pop()) if runs(child)]
        found += below
        parents += below
    return sorted(found)


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    return ""


def gone(pids: Sequence[int], what: str = "processes that should be gone") -> None:
    """Waits until none of them runs."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not any(map(runs, pids)), what, timeout_s=45)
    left = {pid: command_of(pid) for pid in pids if runs(pid)}
    assert not left, f"{what}: {left}"


# Of Python's multiprocessing: they stay with the process that first needed them.
LASTING = ("resource_tracker", "forkserver")


def _is_anothers(name: str, below: Sequence[int]) -> bool:
    """Is it a tensor's memory (torch_PID_…) of a process that has nothing to do with this one?

    Those of processes that have died count as another's: PyTorch's workers leave them when they are killed, in tests
    that run beside this one, and ringfeed's make none.
    """
    maker = name.split("_")[1] if name.startswith("torch_") else ""
    return maker.isdigit() and int(maker) not in (os.getpid(), *below)


def _links() -> set[Path]:
    """Those by which `ringfeed status` finds the loaders of these tests."""
    found = set()
    for link in control.find_socket("feed", None).parent.glob("loader-*.sock"):
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(tempfile.gettempdir()):
                found.add(link)
    return found


class Belongings:
    """What this process has: children, descriptors, threads, directories of feeds, mapped segments."""

    def __init__(self) -> None:
        gc.collect()
        below = descendants()
        self.children = {
            pid for pid in below if not any(word in command_of(pid) for word in LASTING)
        }
        self.descriptors = set()
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                self.descriptors.add((int(entry), os.readlink(f"/proc/self/fd/{entry}")))
        self.threads = {thread for thread in threading.enumerate() if "pytest" not in thread.name}
        self.directories = set(Path(tempfile.gettempdir()).glob("ringfeed-*")) | _links()
        self.shared = {
            name
            for name in os.listdir("/dev/shm")
            if name.startswith(("torch_", "ringfeed")) and not _is_anothers(name, below)
        }
        self.maps = sum(
            "memfd:" in line for line in Path("/proc/self/maps").read_text().splitlines()
        )

    def left(self, before: Belongings) -> dict[str, Any]:
        return {
            "processes": {pid: command_of(pid) for pid in self.children - before.children},
            "descriptors": sorted(self.descriptors - before.descriptors),
            "threads": sorted(thread.name for thread in self.threads - before.threads),
            "directories": sorted(map(str, self.directories - before.directories)),
            "shared memory": sorted(self.shared - before.shared),
            "mapped segments": max(0, self.maps - before.maps),
        }


def nothing_left(before: Belongings, by_pytorch: bool = False) -> None:
    """Waits until this process has no more than it had.

    Args:
        by_pytorch: Of its loaders, what they leave besides processes is not looked at.
    """
    look: dict[str, Any] = {}

    def is_clean() -> bool:
        nonlocal look
        look = Belongings().left(before)
        if by_pytorch:
            look = {"processes": look["processes"]}
        return not any(look.values())

    with contextlib.suppress(AssertionError):
        wait_until(is_clean, "all to be given back", timeout_s=45)
    assert not any(look.values()), {name: left for name, left in look.items() if left}


def forked(act: Callable[[], Any]) -> int:
    """The pid of a fork of this process that calls `act` and ends with status 0, or 99 if it raised."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(99)
    return pid


def status_of(pid: int) -> int:
    """Waits for the child: its exit status, or minus its signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def script(
    name: str, body: str, directory: Path, guarded: bool = True, words: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """A Python program of its own, with `DataLoader`, `torch`, `os`, `sys` and `data` (this module).

    Args:
        name: "torch" or "ringfeed": whose DataLoader.
        guarded: The body is not run by a process that imports the program.
        words: Its arguments.
    """
    path = directory / "train.py"
    head = (
        "import os, signal, sys\nimport torch\n"
        # A shell lets what it runs in the background ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"{IMPORTS[name]}\n"
        "from tests.support.loaders import own_data as data\n"
        "def main():\n"
    )
    tail = '\nif __name__ == "__main__":\n    main()\n' if guarded else "\nmain()\n"
    path.write_text(head + textwrap.indent(textwrap.dedent(body), "    ") + tail)
    paths = [str(ROOT), *filter(None, (entry for entry in sys.path if "pyclient" in entry))]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    }
    return subprocess.Popen(
        [sys.executable, str(path), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
