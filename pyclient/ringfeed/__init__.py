"""Training data from a ringfeed feed, without copying it.

    with ringfeed.attach("lc0", group="run-a") as feed:
        for batch in feed:                   # name -> read-only array over the shared memory
            step(batch["planes"], batch["policy"], batch["values"])

``attach`` joins a feed that a supervisor serves (``ringfeed run``); ``DataLoader`` starts its own
feed. Other modules must be imported by name: ``ringfeed.torch`` has loaders for PyTorch,
``ringfeed.jax`` arrays for JAX, ``ringfeed.fairseq`` epochs and samples for fairseq's trainer, and
``ringfeed.lc0_compat`` lczero-training's data loader on top of a feed. ``python -m ringfeed`` is
the command line of the supervisor.
"""

try:
    import numpy  # noqa: F401
except ImportError as error:
    import sys

    raise ImportError(
        f"ringfeed needs NumPy, which {sys.executable} does not have ({error}): install it there "
        "(python -m pip install numpy), or use another Python"
    ) from None

from .bar import Progress, progress
from .batch import Batch
from .errors import (
    BatchReleased,
    FeedDamaged,
    FeedDetached,
    FeedEnd,
    FeedFailed,
    FeedIOError,
    FeedMemoryError,
    FeedPermission,
    FeedRefused,
    FeedStopped,
    FeedTimeout,
    ForkedFeed,
    IncompatibleFeed,
    InvalidConfiguration,
    InvalidRequest,
    NoSuchFeed,
    RingfeedError,
    SlotsExhausted,
)
from .feed import Bottleneck, Feed, FeedStats, Snapshot, attach
from .origins import Origin, lineage
from .loader import DataLoader
from .schema import Schema, Tensor

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BatchReleased",
    "Bottleneck",
    "DataLoader",
    "Feed",
    "FeedDamaged",
    "FeedDetached",
    "FeedEnd",
    "FeedFailed",
    "FeedIOError",
    "FeedMemoryError",
    "FeedPermission",
    "FeedRefused",
    "FeedStats",
    "FeedStopped",
    "FeedTimeout",
    "ForkedFeed",
    "IncompatibleFeed",
    "InvalidConfiguration",
    "InvalidRequest",
    "NoSuchFeed",
    "Origin",
    "Progress",
    "RingfeedError",
    "Schema",
    "SlotsExhausted",
    "Snapshot",
    "Tensor",
    "attach",
    "lineage",
    "progress",
]
