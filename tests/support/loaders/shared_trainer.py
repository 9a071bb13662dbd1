"""A trainer that shares its feed with others: `python shared_trainer.py ARGUMENTS-AS-JSON`.

It prints a line of JSON when it begins, for each batch, as soon as it has it, and at its end.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.utils.data.distributed import DistributedSampler

from ringfeed.errors import FeedFailed
from ringfeed.torch import DataLoader


@dataclass
class Settings:
    """What a trainer does."""

    feed: str = "shared"
    samples: int = 103
    batch_size: int = 8
    shuffle: bool = True
    drop_last: bool = False
    seed: int = 7
    epochs: int = 2
    trainers: int = 1
    workers: int = 2
    context: str = "fork"
    sampler: bool = False  # a DistributedSampler, with set_epoch()
    process_group: str = ""  # a file through which ranks find one another
    break_at: int = 0  # batches of the first epoch, or of each one
    breaks_each: bool = False
    pause_ms: float = 0.0  # for each batch
    holds_at: int = 0  # after so many batches it waits for a file:
    until: str = ""
    ms: float = 0.0  # that a sample takes
    made: str = ""  # a file to which each sample that is made is added
    state: dict[str, int] = field(default_factory=dict)
    raises_at: int = -1
    kills_at: int = -1  # its worker
    on_poison: str = "error"
    writes: bool = True  # into its batches
    first_epoch: int = 0
    keeps: bool = False  # all its batches, and looks at them again at its end
    again: bool = False  # when the feed has failed, it makes the loader again


class Samples(torch.utils.data.Dataset[Any]):
    """Numbers, and something drawn from each generator."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __len__(self) -> int:
        return self.settings.samples

    def __getitem__(self, index: int) -> Any:
        if self.settings.made:
            with open(self.settings.made, "ab") as file:
                file.write(f"{index} {os.getpid()}\n".encode())
        if self.settings.ms:
            time.sleep(self.settings.ms / 1000)
        if index == self.settings.kills_at:
            os.kill(os.getpid(), signal.SIGSEGV)
        if index == self.settings.raises_at:
            raise LookupError(f"no sample {index}")
        drawn = random.random(), float(np.random.random()), float(torch.rand(()))
        return {"index": index, "image": torch.full((64, 64), float(index)), "drawn": drawn}


def loader_of(settings: Settings) -> DataLoader[Any]:
    """Its loader."""
    dataset = Samples(settings)
    sampler = None
    if settings.sampler:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        sampler = DistributedSampler(
            *(dataset, ranks, rank, settings.shuffle, settings.seed, settings.drop_last)
        )
    return DataLoader(
        dataset,
        batch_size=settings.batch_size,
        shuffle=None if settings.sampler else settings.shuffle,
        sampler=sampler,
        num_workers=settings.workers,
        drop_last=settings.drop_last,
        generator=torch.Generator().manual_seed(settings.seed),
        multiprocessing_context=settings.context,
        on_poison=settings.on_poison,
        feed=settings.feed,
        trainers=settings.trainers,
    )


def say(**what: Any) -> None:
    """A line for whoever started this."""
    print(json.dumps(what), flush=True)


def train(settings: Settings) -> None:
    """All its epochs."""
    if settings.process_group:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address = f"file://{settings.process_group}"
        torch.distributed.init_process_group("gloo", address, rank=rank, world_size=ranks)
    kept: list[Any] = []
    loader = loader_of(settings)
    if settings.state:
        loader.load_state_dict(settings.state)
    try:
        loop(settings, loader, kept)
    except FeedFailed as error:
        look_at(kept, settings)
        if not settings.again:
            raise
        say(failed=str(error))
        loader = loader_of(settings)
        loop(settings, loader, kept)
    look_at(kept, settings)
    say(end=len(loader), kept=len(kept))


def look_at(kept: list[Any], settings: Settings) -> None:
    """What was kept has not changed."""
    for batch in kept:
        change = 1000 if settings.writes else 0
        if not bool((batch["image"] == batch["index"].view(-1, 1, 1) + change).all()):
            raise AssertionError(f"batch {batch['index'].tolist()} has changed while it was kept")


def loop(settings: Settings, loader: DataLoader[Any], kept: list[Any]) -> None:
    """The epochs of a loader."""
    had = 0
    say(begin=settings.first_epoch)
    for epoch in range(settings.first_epoch, settings.first_epoch + settings.epochs):
        if settings.sampler:
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        iterator = iter(loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                break
            except (LookupError, RuntimeError) as error:
                say(error=str(error).strip().splitlines()[-1])
                continue
            image = batch["image"]
            same = bool((image == batch["index"].view(-1, 1, 1)).all())
            say(
                epoch=iterator.epoch,
                batch=iterator.batch - 1,
                indices=batch["index"].tolist(),
                drawn=[one.tolist() for one in batch["drawn"]],
                whole=same,
                state=loader.state_dict(),
            )
            if settings.writes:
                image += 1000
            if settings.keeps:
                kept.append(batch)
            if settings.pause_ms:
                time.sleep(settings.pause_ms / 1000)
            had += 1
            while had == settings.holds_at and not os.path.exists(settings.until):
                time.sleep(0.01)
            breaks = settings.break_at and (epoch == 0 or settings.breaks_each)
            if breaks and iterator.batch >= settings.break_at:
                break


if __name__ == "__main__":
    train(Settings(**json.loads(sys.argv[1])))
