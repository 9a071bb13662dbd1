"""The loaders that are measured: each gives batches of a dataset as its manual says.

A loader that keeps its workers from epoch to epoch is asked for two epochs. Of any other three are
taken in one iteration, so that no start of workers is measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

WORKERS = 2


@dataclass
class Loader:
    """What gives batches of a dataset, and whether its workers stay for the next epoch."""

    epoch: Callable[[], Iterator[Any]]
    keeps_workers: bool = True
    close: Callable[[], None] = lambda: None


def collate_of(dataset: Any) -> Any:
    """The dataset's own, or None."""
    return getattr(dataset, "collate", None)


# ---- Limits: loops without a loader


def bare_copy(dataset: Any) -> Loader:
    """Copies into one buffer that is never left."""
    first = dataset[0]
    buffer = np.zeros((dataset.batch, *first.shape), first.dtype)

    def epoch() -> Iterator[Any]:
        for begin in range(0, len(dataset), dataset.batch):
            for i in range(dataset.batch):
                buffer[i] = dataset[begin + i]
            yield buffer

    return Loader(epoch)


def bare_stack(dataset: Any) -> Loader:
    def epoch() -> Iterator[Any]:
        for begin in range(0, len(dataset), dataset.batch):
            yield np.stack([dataset[begin + i] for i in range(dataset.batch)])

    return Loader(epoch)


# ---- PyTorch's, and what has its arguments


def with_arguments(module: str, name: str, workers: int, dataset: Any, **more: Any) -> Loader:
    import importlib

    kind = getattr(importlib.import_module(module), name)
    if workers:
        more.setdefault("persistent_workers", True)
    loader = kind(
        dataset,
        batch_size=dataset.batch,
        num_workers=workers,
        collate_fn=collate_of(dataset),
        **more,
    )
    return Loader(lambda: iter(loader))


torch_alone = functools.partial(with_arguments, "torch.utils.data", "DataLoader", 0)
torch_workers = functools.partial(with_arguments, "torch.utils.data", "DataLoader", WORKERS)
stateful = functools.partial(
    with_arguments, "torchdata.stateful_dataloader", "StatefulDataLoader", WORKERS
)
ringfeed = functools.partial(with_arguments, "ringfeed.torch", "DataLoader", WORKERS)


# ---- Others


def _grain(dataset: Any) -> Any:
    import grain

    return grain.MapDataset.source(dataset).batch(dataset.batch, batch_fn=collate_of(dataset))


def grain_threads(dataset: Any) -> Loader:
    import grain

    options = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=2 * WORKERS)
    batches = _grain(dataset).to_iter_dataset(options)
    return Loader(lambda: iter(batches), keeps_workers=False)


def grain_processes(dataset: Any) -> Loader:
    import grain
    from absl import flags

    flags.FLAGS(["bench"])  # its processes ask for them
    options = grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=2)
    batches = _grain(dataset).to_iter_dataset().mp_prefetch(options)
    return Loader(lambda: iter(batches), keeps_workers=False)


class _Item:
    """An object that other processes can have, as a lambda is none."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(self, index: int) -> Any:
        return self._dataset[index]


def _spdl(dataset: Any) -> Any:
    from spdl.pipeline import PipelineBuilder

    return (
        PipelineBuilder()
        .add_source(range(len(dataset)))
        .pipe(_Item(dataset), concurrency=WORKERS, output_order="input")
        .aggregate(dataset.batch)
        .pipe(collate_of(dataset) or np.stack, concurrency=WORKERS, output_order="input")
        .add_sink(2 * WORKERS)
    )


def spdl_threads(dataset: Any) -> Loader:
    def epoch() -> Iterator[Any]:
        pipeline = _spdl(dataset).build(num_threads=WORKERS)
        with pipeline.auto_stop():
            yield from pipeline

    return Loader(epoch, keeps_workers=False)


def spdl_process(dataset: Any) -> Loader:
    from spdl.pipeline import run_pipeline_in_subprocess

    batches = run_pipeline_in_subprocess(_spdl(dataset).get_config(), num_threads=WORKERS)
    return Loader(lambda: iter(batches))


def spdl_arena(dataset: Any) -> Loader:
    from spdl.pipeline import SharedMemorySegmentPool, run_pipeline_in_subprocess

    arena = SharedMemorySegmentPool(2 * dataset.batch * dataset[0].nbytes, 4 * WORKERS)
    batches = run_pipeline_in_subprocess(
        _spdl(dataset).get_config(), num_threads=WORKERS, arena=arena
    )
    return Loader(lambda: iter(batches))


def tf_data(dataset: Any) -> Loader:
    import os

    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    import tensorflow as tf

    first = dataset[0]

    def item(index: Any) -> Any:
        (value,) = tf.numpy_function(dataset.__getitem__, [index], [tf.as_dtype(first.dtype)])
        value.set_shape(first.shape)
        return value

    batches = (
        tf.data.Dataset.range(len(dataset))
        .map(item, num_parallel_calls=WORKERS)
        .batch(dataset.batch)
        .prefetch(2 * WORKERS)
    )
    return Loader(batches.as_numpy_iterator)


def ray_data(dataset: Any) -> Loader:
    import logging
    import os

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    import ray
    import ray.data

    ray.init(
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=1 << 30,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    kept = ray.put(dataset)

    def batch_of(indices: dict[str, Any]) -> dict[str, Any]:
        mine = ray.get(kept)
        return {"data": np.stack([mine[index] for index in indices["id"]])}

    def epoch() -> Iterator[Any]:
        # A block is a batch: rows are not cut and put together once more.
        blocks = len(dataset) // dataset.batch
        made = ray.data.range(len(dataset), override_num_blocks=blocks)
        mapped = made.map_batches(batch_of, batch_size=None)
        for batch in mapped.iter_batches(batch_size=dataset.batch, prefetch_batches=2 * WORKERS):
            yield batch["data"]

    return Loader(epoch, close=ray.shutdown)


def hf_datasets(dataset: Any) -> Loader:
    """Arrow files that are mapped; read and stacked in this process."""
    import shutil
    import tempfile

    import datasets

    first = dataset[0]
    place = tempfile.mkdtemp(prefix="ringfeed-bench-")
    row = datasets.Sequence(datasets.Value(str(first.dtype)), length=len(first))
    rows = datasets.Dataset.from_generator(
        lambda: ({"data": dataset[i]} for i in range(len(dataset))),
        features=datasets.Features({"data": row}),
        cache_dir=place,
        writer_batch_size=dataset.batch,
    ).with_format("numpy")

    def epoch() -> Iterator[Any]:
        for batch in rows.iter(batch_size=dataset.batch):
            yield batch["data"]

    return Loader(epoch, close=lambda: shutil.rmtree(place))


@dataclass(frozen=True)
class Peer:
    """A row of the table; `packages` are what it is installed by."""

    shown: str
    make: Callable[..., Loader]
    packages: tuple[str, ...] = ()
    most_batches: int = 1 << 30  # of one that is measured with fewer


TORCH = ("torch", "torchdata", "numpy", "pillow")
PEERS: dict[str, Peer] = {
    "copy": Peer("bare copy into one warm buffer", bare_copy, ("numpy",)),
    "stack": Peer("bare loop with np.stack", bare_stack, ("numpy",)),
    "torch-0": Peer("torch without workers", torch_alone, TORCH),
    "torch": Peer("torch, 2 workers", torch_workers, TORCH),
    "stateful": Peer("StatefulDataLoader, 2 workers", stateful, TORCH),
    "ringfeed": Peer("ringfeed, 2 workers", ringfeed),
    "grain-threads": Peer("Grain, 2 threads", grain_threads, ("grain",)),
    "grain": Peer("Grain, 2 processes", grain_processes, ("grain",)),
    "spdl-threads": Peer("SPDL, 2 threads", spdl_threads, ("spdl-core",)),
    "spdl": Peer("SPDL, a process", spdl_process, ("spdl-core",), 32),
    "spdl-arena": Peer("SPDL, a process, shared memory", spdl_arena, ("spdl-core",)),
    "tf.data": Peer("tf.data, 2 threads", tf_data, ("tensorflow-cpu",)),
    "ray": Peer("Ray Data, 2 workers", ray_data, ("ray[data]",), 32),
    "datasets": Peer("datasets, no workers", hf_datasets, ("datasets",), 16),
}
