"""What PyTorch's profiler sees of a loader: the same as of PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from ringfeed.torch import DataLoader  # noqa: E402
from tests.support.loaders import own_data as data  # noqa: E402


def seen(kind: Any, dataset: Any) -> list[tuple[str, int]]:
    """Names of what a loader's iterator is seen to do, and how often."""
    loader = kind(dataset, batch_size=2, num_workers=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert len(list(loader)) == 4
    return [
        (one.key.split("#")[0], one.count)
        for one in profile.key_averages()
        if one.key.startswith("enumerate(DataLoader)") and one.key.endswith(".__next__")
    ]


@pytest.mark.parametrize("dataset", [data.Squares(8), data.Shards(8)], ids=["map", "iterable"])
def test_the_profiler_sees_each_batch(dataset: Any) -> None:
    expected = seen(torch.utils.data.DataLoader, dataset)
    assert expected and seen(DataLoader, dataset) == expected
