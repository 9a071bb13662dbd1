"""A trainer of the storm over a loader: a line for each batch, and its state every few batches.

Line: epoch, number in the epoch, digest of the batch or of its error. The state is that of the
loader, with the length of the file then. A trainer that is started again loads it, cuts the file
there, and goes on. It may be killed at any moment.

Datasets obey orders (storm_stage.py), a byte for each worker at its next sample, and one for each
when it makes a batch of its samples.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import mmap
import os
import pickle
import random
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data

import ringfeed.torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import storm_stage  # noqa: E402

WORKERS = 3
ROWS = 480  # of an epoch
BATCH = 4
RAISES_EVERY = 41  # samples
SETTLED = 30  # batches after which a trainer's memory and files are counted first
SAVED_EVERY = 7  # batches


class Orders:
    """What the storm wants of this process; mapped when it is first looked at."""

    def __init__(self, path: str, group: str) -> None:
        self.path, self.group = path, group
        self._map: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "group": self.group, "_map": None}

    def obey(self, together: bool = False) -> None:
        """Ends this process, if that is what stands there."""
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return
        if self._map is None:
            self._map = storm_stage.mapped(self.path)
        index = worker.id + (WORKERS if together else 0)
        if self._map[index]:
            storm_stage.obey(self._map, index, self.group)


def sample(number: int) -> dict[str, Any]:
    """Draws from every generator that there is; some samples raise, always the same ones."""
    if number % RAISES_EVERY == 5:
        raise ValueError(f"nobody likes {number}")
    drawn = random.random()
    return {
        "id": number,
        "image": torch.rand(2000) + number,
        "drawn": np.random.random(5),
        "few": torch.randint(0, 100, (3,), dtype=torch.int32),
        "text": f"row {number} {drawn}",
        "pair": (number % 7, [drawn, float(number)]),
    }


class Rows(torch.utils.data.Dataset[Any]):
    """By index."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.orders.obey()
        return sample(index)


class Items(Rows):
    """By many indices at once."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        self.orders.obey()
        return [sample(index) for index in indices]


class _Walk:
    """Goes through a worker's share, mixed in a buffer."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        worker = torch.utils.data.get_worker_info()
        first, self.step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self.at = first
        self.buffer: list[int] = []

    def __iter__(self) -> _Walk:
        return self

    def __next__(self) -> dict[str, Any]:
        self.orders.obey()
        while self.at < ROWS and len(self.buffer) < 16:
            self.buffer.append(self.at)
            self.at += self.step
        if not self.buffer:
            raise StopIteration
        return sample(self.buffer.pop(random.randrange(len(self.buffer))))


class _KeptWalk(_Walk):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "buffer": list(self.buffer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.buffer = state["at"], list(state["buffer"])


class Stream(torch.utils.data.IterableDataset[Any]):
    """Has no state: a successor of a worker runs it forward."""

    walk = _Walk

    def __init__(self, orders: Orders) -> None:
        self.orders = orders

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.walk(self.orders)


class KeptStream(Stream):
    """Its iterator has a state."""

    walk = _KeptWalk


class Kept(torch.utils.data.IterableDataset[Any]):
    """It has a state itself, and begins anew when it has ended."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.at = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while first + self.at * step < ROWS:
            self.orders.obey()
            number = first + self.at * step
            self.at += 1
            if number % RAISES_EVERY != 5:  # a generator that raises is at its end
                yield sample(number)
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


DATASETS = {"rows": Rows, "items": Items, "stream": Stream, "kept_stream": KeptStream, "kept": Kept}


class Collate:
    """A collate_fn of the user's own, which draws, raises and falls ill as well."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        self.orders.obey(together=True)
        ids = [one["id"] for one in samples]
        if sum(ids) % RAISES_EVERY == 7:
            raise KeyError(f"nobody likes {ids} together")
        batch = torch.utils.data.default_collate(samples)
        return {**batch, "noise": torch.randn(3), "ragged": [np.arange(one % 5) for one in ids]}


def digest_of(thing: Any) -> str:
    """Of the whole structure: types, shapes and bytes."""
    digest = hashlib.sha256()

    def add(one: Any) -> None:
        digest.update(type(one).__name__.encode() + b" ")
        if isinstance(one, torch.Tensor):
            digest.update(f"{one.dtype} {tuple(one.shape)} ".encode() + one.numpy().tobytes())
        elif isinstance(one, np.ndarray):
            digest.update(f"{one.dtype} {one.shape} ".encode() + one.tobytes())
        elif isinstance(one, dict):
            for key, value in one.items():
                add(key)
                add(value)
        elif isinstance(one, (list, tuple)):
            for value in one:
                add(value)
            digest.update(b"end ")
        else:
            digest.update(repr(one).encode() + b" ")

    add(thing)
    return digest.hexdigest()[:24]


def used() -> dict[str, int]:
    """Open files and KiB of memory of its own of this process."""
    status = Path("/proc/self/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return {"files": len(os.listdir("/proc/self/fd")), "kib": int(rss.split()[1])}


def loader_of(arguments: argparse.Namespace) -> Any:
    """The loader that the command line says."""
    orders = Orders(str(arguments.orders), arguments.group)
    dataset = DATASETS[arguments.dataset](orders)
    kind: Any
    more: dict[str, Any] = {}
    if not arguments.pytorch:
        more = {"stall_timeout": arguments.stall_s, "max_attempts": 255}
        kind = (
            ringfeed.torch.StatefulDataLoader if arguments.stateful else ringfeed.torch.DataLoader
        )
    elif arguments.stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader as kind
    else:
        kind = torch.utils.data.DataLoader
    if isinstance(dataset, Rows):
        more["shuffle"] = True
    if arguments.own_collate:
        more["collate_fn"] = Collate(orders)
    return kind(
        dataset,
        batch_size=BATCH,
        num_workers=WORKERS,
        generator=torch.Generator().manual_seed(arguments.seed),
        prefetch_factor=arguments.prefetch,
        persistent_workers=arguments.persistent,
        multiprocessing_context=arguments.context,
        **more,
    )


def save(path: Path, thing: Any) -> None:
    """The file is the old one or the new one, never a part."""
    aside = path.with_suffix(".new")
    aside.write_bytes(pickle.dumps(thing))
    os.replace(aside, path)


def run(arguments: argparse.Namespace) -> None:
    """All epochs, from where the state is."""
    loader = loader_of(arguments)
    orders = storm_stage.mapped(str(arguments.orders))
    epoch = number = batches = 0
    out = os.open(arguments.out, os.O_RDWR | os.O_CREAT, 0o644)
    size = 0
    if arguments.state is not None and arguments.state.exists():
        epoch, number, size, state = pickle.loads(arguments.state.read_bytes())
        loader.load_state_dict(state)
    os.ftruncate(out, size)
    os.lseek(out, size, os.SEEK_SET)

    def kept() -> None:
        if arguments.state is not None:
            at = os.lseek(out, 0, os.SEEK_CUR)
            save(arguments.state, (epoch, number, at, loader.state_dict()))

    first: dict[str, int] = {}
    while epoch < arguments.epochs:
        batches_of = iter(loader)
        while True:
            raised = False
            try:
                digest = digest_of(next(batches_of))
            except StopIteration:
                break
            except (ValueError, KeyError) as error:
                raised = True
                digest = type(error).__name__ + str(error).strip().rsplit("nobody", 1)[-1]
            os.write(out, f"{epoch} {number} {digest}\n".encode())
            number += 1
            batches += 1
            if batches == SETTLED:
                first = used()
            if number % SAVED_EVERY == 0 and not raised:  # what has raised would come again
                kept()
            time.sleep(orders[storm_stage.ORDERS - 1] / 1000)  # work, as the storm likes it
        epoch, number = epoch + 1, 0
        kept()
    if arguments.figures is not None:
        arguments.figures.write_text(json.dumps({"first": first, "last": used(), "n": batches}))


def main() -> None:
    """As the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--orders", type=Path, required=True)
    parser.add_argument("--group", default="", help="a control group for hogs")
    parser.add_argument("--dataset", choices=list(DATASETS), required=True)
    parser.add_argument("--own-collate", action="store_true")
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--context", default=None)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--stall-s", type=float, default=1.0)
    parser.add_argument("--state", type=Path, help="is loaded from there and saved there")
    parser.add_argument("--figures", type=Path, help="of its memory and files, at the end")
    parser.add_argument("--stateful", action="store_true", help="StatefulDataLoader")
    parser.add_argument("--pytorch", action="store_true", help="PyTorch's own loader, torchdata's")
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
