"""What ringfeed's loader has beside PyTorch's: a list that is shared, and what limits a loader."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.utils.data  # noqa: E402
from ringfeed.torch import SharedList  # noqa: E402

ITEMS = [("a", 1), {"b": [2, None]}, "text" * 100, b"", 5.5]


def test_a_shared_list_is_a_sequence_of_its_items() -> None:
    shared = SharedList(iter(ITEMS))
    assert len(shared) == 5 and list(shared) == ITEMS
    assert [shared[i] for i in range(-5, 5)] == ITEMS + ITEMS
    assert shared[1:4] == ITEMS[1:4] and shared[::-2] == ITEMS[::-2]
    assert copy.deepcopy(shared) is shared
    for index in (5, -6):
        with pytest.raises(IndexError, match="of 5"):
            shared[index]


def test_an_empty_shared_list() -> None:
    assert list(SharedList([])) == [] and SharedList([])[:] == []


def test_what_cannot_be_pickled_is_refused() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        SharedList([lambda: None])


class Shared(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.items = SharedList(range(100, 120))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> int:
        return self.items[index]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_have_a_shared_list(Ours: Any, context: str) -> None:
    loader = Ours(Shared(), batch_size=5, num_workers=2, multiprocessing_context=context)
    assert torch.cat(list(loader)).tolist() == list(range(100, 120))


def test_a_loader_says_what_limits_it(Ours: Any) -> None:
    loader = Ours(range(40), batch_size=2, num_workers=2)
    assert "no iteration" in loader.why()
    assert "num_workers" in Ours(range(4)).why()
    for _ in loader:
        pass
    said = loader.why()
    assert "limit" in said and "2 workers" in said and "slowest samples" in said
