"""What the storm over loaders has found: batches that raise, ends of iterable datasets, deaths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.utils.data  # noqa: E402
from ringfeed.torch import DataLoader  # noqa: E402


def given(iterator: Any) -> Iterator[Any]:
    """What a loop gets that goes on behind errors."""
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except (ValueError, RuntimeError) as error:
            yield str(error).strip().splitlines()[-1]


def plain(batches: Any) -> list[Any]:
    return [one.tolist() if isinstance(one, torch.Tensor) else one for one in batches]


class Walk:
    """Some numbers raise; at one of them the process ends itself, once."""

    def __init__(self, once: Path) -> None:
        self.once, self.at = once, 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> float:
        self.at += 1
        if self.at == 11 and not self.once.exists():
            self.once.touch()
            os._exit(3)
        if self.at % 5 == 3:
            raise ValueError(f"nobody likes {self.at}")
        if self.at > 20:
            raise StopIteration
        return self.at + float(torch.rand(()))


class Stream(torch.utils.data.IterableDataset[float]):
    def __init__(self, once: Path) -> None:
        self.once = once

    def __iter__(self) -> Walk:
        return Walk(self.once)


def drawing(samples: list[float]) -> torch.Tensor:
    return torch.tensor([*samples, float(torch.rand(()))])


def test_a_stream_that_raises_is_run_forward_to_where_it_was(tmp_path: Path) -> None:
    dataset = Stream(tmp_path / "once")
    found = []
    for kind in (DataLoader, torch.utils.data.DataLoader):
        generator = torch.Generator().manual_seed(1)
        loader = kind(dataset, 2, num_workers=1, collate_fn=drawing, generator=generator)
        found.append(plain(given(iter(loader))))
    assert found[0] == found[1]
    assert sum(isinstance(one, str) for one in found[0]) == 4
    assert dataset.once.exists()


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = torch.rand(())
        if index == 7:
            raise ValueError("nobody likes 7")
        return index + drawn


def test_a_state_behind_a_batch_that_raised_is_exact() -> None:
    def loader() -> Any:
        generator = torch.Generator().manual_seed(1)
        return DataLoader(Rows(), 2, num_workers=2, generator=generator)

    calm = plain(given(iter(loader())))
    first = loader()
    batches = given(iter(first))
    for _ in range(5):  # the fourth raises
        next(batches)
    second = loader()
    second.load_state_dict(first.state_dict())
    assert plain(given(iter(second))) == calm[5:]


class Short(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def test_a_loader_resumed_behind_a_last_part_of_a_batch_ends() -> None:
    first = DataLoader(Short(), 2, num_workers=1)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    second = DataLoader(Short(), 2, num_workers=1)
    second.load_state_dict(first.state_dict())
    assert plain(second) == []


class Kills(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        for number in range(6):
            if number == 3:
                os._exit(9)
            yield number


def test_a_stream_that_kills_ends_with_an_error() -> None:
    found = plain(given(iter(DataLoader(Kills(), 2, num_workers=1))))
    assert found[0] == [0, 1] and len(found) == 2
    assert "has killed its worker process again and again" in found[1]
