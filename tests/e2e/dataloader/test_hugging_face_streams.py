"""Streams of Hugging Face's ``datasets`` beside an undisturbed run: deaths and resumes, with shuffle buffers and without."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")

import ringfeed.torch as ours  # noqa: E402
from ringfeed.worker.exact import loses_samples  # noqa: E402
from tests.support.loaders.own_data import Reference  # noqa: E402
from tests.support.loaders.resuming import (  # noqa: E402
    Torchdatas,
    beside_torchdata,
    no_warnings,
    resumed,
    take,
    through_json,
)

# `datasets` takes tqdm's lock for each sample. It is shared by processes, and stays locked for ever
# if a worker is killed while it has it; and the monitor, a thread, may have it during a fork.
tqdm = pytest.importorskip("tqdm")
tqdm.tqdm.monitor_interval = 0
tqdm.tqdm.set_lock(threading.RLock())

pytestmark = [
    *no_warnings,
    pytest.mark.filterwarnings("ignore:To copy construct from a tensor"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


def numbers(first: int, count: int, shards: int) -> Any:
    return datasets.Dataset.from_dict({"x": list(range(first, first + count))}).to_iterable_dataset(
        num_shards=shards
    )


def with_more(example: dict[str, Any]) -> dict[str, Any]:
    return {**example, "more": 1}


def unchanged(example: Any) -> Any:
    return example


def not_all(example: dict[str, Any]) -> bool:
    return not str(example).endswith("3}")


STEPS: dict[str, Callable[[Any, random.Random], Any]] = {
    "map": lambda stream, draw: stream.map(with_more),
    "map of batches": lambda stream, draw: stream.map(
        unchanged, batched=True, batch_size=draw.choice([2, 5])
    ),
    "filter": lambda stream, draw: stream.filter(not_all),
    "batch": lambda stream, draw: stream.batch(draw.choice([2, 3])),
    "interleave": lambda stream, draw: datasets.interleave_datasets(
        [stream, numbers(1000, 40, 3)],
        probabilities=draw.choice([None, [0.3, 0.7]]),
        seed=5,
        stopping_strategy=draw.choice(["first_exhausted", "all_exhausted"]),
    ),
    "concatenate": lambda stream, draw: datasets.concatenate_datasets([stream, numbers(500, 9, 2)]),
    "take": lambda stream, draw: stream.take(33),
    "torch": lambda stream, draw: stream.with_format("torch"),
    "numpy": lambda stream, draw: stream.with_format("numpy"),
}


def drawn(seed: int, shuffles: bool) -> Any:
    """A stream of some of these steps in some order."""
    draw = random.Random(seed)
    stream = numbers(0, draw.choice([7, 40, 60]), draw.choice([2, 4]))
    names = draw.sample(sorted(STEPS), 2)
    at = draw.randrange(3)
    for number, name in enumerate(names):
        if shuffles and number == at:
            stream = stream.shuffle(seed=3, buffer_size=draw.choice([2, 10, 1000]))
        stream = STEPS[name](stream, draw)
    if shuffles and at == 2:
        stream = stream.shuffle(seed=3, buffer_size=draw.choice([2, 10, 1000]))
    return stream


class Wrapped(torch.utils.data.IterableDataset):
    """A dataset of the user's over a stream, whose state is the stream's."""

    def __init__(self, stream: Any) -> None:
        self.streams = {"train": stream}

    def __iter__(self) -> Any:
        return iter(self.streams["train"])

    def state_dict(self) -> Any:
        return self.streams["train"].state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.streams["train"].load_state_dict(state)


def make(loader: Any, stream: Any) -> Any:
    return loader(stream, batch_size=2, num_workers=2, collate_fn=str)


@pytest.mark.parametrize("shuffles", [True, False], ids=["shuffled", "in order"])
@pytest.mark.parametrize("seed", range(8))
def test_stream_goes_on(seed, shuffles):
    """Behind deaths of its workers, and in another loader with the state: nothing is lost, nothing comes twice."""
    draw = random.Random(seed)
    due = list(make(Reference, drawn(seed, shuffles)))
    iterator = iter(make(ours.DataLoader, drawn(seed, shuffles)))
    deaths = {draw.randrange(len(due)) for _ in range(2)}
    got = []
    for number in range(len(due)):
        if number in deaths:
            os.kill(iterator._workers[draw.randrange(2)].pid, signal.SIGKILL)
        got.append(next(iterator))
    assert got == due
    assert list(iterator) == []
    for loader in (ours.StatefulDataLoader, ours.DataLoader):
        stop = draw.randrange(len(due) + 1)
        first = make(loader, drawn(seed, shuffles))
        got = take(iter(first), stop)
        got += list(resumed(make(loader, drawn(seed, shuffles)), through_json(first.state_dict())))
        assert got == due, f"{loader.__name__}, stopped at {stop}"


def test_resume_of_a_shuffled_stream_says_that_it_is_read_again(caplog):
    def made() -> Any:
        return ours.StatefulDataLoader(numbers(0, 40, 2).shuffle(seed=1, buffer_size=9))

    first = made()
    take(iter(first), 6)
    with caplog.at_level(logging.WARNING):
        iter(resumed(made(), first.state_dict()))
    assert "has not the samples in its shuffle buffer: it is read" in caplog.text


def test_state_of_another_epoch_of_a_shuffled_stream_is_refused():
    """It would be read again in another order."""

    def made(epoch: int) -> Any:
        stream = numbers(0, 40, 2).shuffle(seed=1, buffer_size=9)
        stream.set_epoch(epoch)
        return make(ours.StatefulDataLoader, stream)

    first = made(2)
    iterator = iter(first)
    take(iterator, 3)
    state = first.state_dict()
    with pytest.raises(ValueError, match=r"set_epoch\(2\)"):
        iter(resumed(made(0), state))
    assert list(resumed(made(2), state)) == list(iterator)


def test_shuffle_buffers_are_found_where_they_are():
    plain = numbers(0, 40, 2).map(with_more)
    shuffled = numbers(0, 40, 2).shuffle(seed=1, buffer_size=9)
    assert not loses_samples(plain)
    assert not loses_samples(Wrapped(plain))
    assert not loses_samples(range(3))
    assert loses_samples(shuffled.map(with_more).batch(3))
    assert loses_samples(datasets.interleave_datasets([plain, shuffled]))
    assert loses_samples(Wrapped(shuffled.with_format("torch")))


@beside_torchdata
@pytest.mark.parametrize("stop", [0, 5, 11])
@pytest.mark.parametrize("shuffles", [True, False], ids=["shuffled", "in order"])
def test_states_of_torchdatas_loader_are_read(stop, shuffles):
    def made(loader: Any) -> Any:
        stream = numbers(0, 60, 2)
        return make(loader, stream.shuffle(seed=1, buffer_size=9) if shuffles else stream)

    first = made(Torchdatas)
    iterator = iter(first)
    take(iterator, stop)
    state = first.state_dict()
    rest = list(iterator)
    assert list(resumed(made(ours.StatefulDataLoader), state)) == rest
