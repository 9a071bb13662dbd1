"""A feed for PyTorch: a loader for training loops, a dataset for DataLoader, tensors over a batch.

    from ringfeed.torch import FeedLoader

    with FeedLoader("lc0", group="run-a", device="cuda", pin=True) as loader:
        for batch in loader:                 # name -> tensor on the device
            step(batch["planes"], batch["policy"], batch["values"])

Under torchrun (or any launcher that sets RANK and WORLD_SIZE) each process attaches itself to a
ranked group and gets its own share of the batches.
"""

from .._core.torch_bridge import Tensors, rank_and_world
from .dataloader import DataLoader, StatefulDataLoader
from .expand import expand_planes, expand_policy, widen_tokens
from .loader import FeedDataset, FeedLoader
from .shared_list import SharedList
from .stateful import Stateful

__all__ = [
    "DataLoader",
    "FeedDataset",
    "FeedLoader",
    "SharedList",
    "Stateful",
    "StatefulDataLoader",
    "Tensors",
    "expand_planes",
    "expand_policy",
    "rank_and_world",
    "widen_tokens",
]
