"""Sources whose processes die: streams of other libraries, and some whose states are not exact."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ringfeed.worker import objects, sources
from ringfeed.worker.exact import digest

datasets = pytest.importorskip("datasets")
torch = pytest.importorskip("torch")
nodes = pytest.importorskip("torchdata.nodes")
stateful = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def spec(name: str, state: str = "VERIFY", **options: Any) -> objects.Spec:
    return {
        "object": f"{__name__}:{name}",
        "options": json.dumps(options) if options else "",
        "python_path": [],
        "source": 1,
        "batch": 0,
        "fields": "",
        "state": state,
        "batcher": "python_batcher",
        "stage": "mine",
        "lane": 0,
        "lanes": 1,
        "key": 77,
    }


def numbers(first: int = 0, count: int = 500, shards: int = 4) -> Any:
    return datasets.Dataset.from_dict({"x": list(range(first, first + count))}).to_iterable_dataset(
        num_shards=shards
    )


def in_order() -> Any:
    return numbers().map(lambda one: {"y": 2 * one["x"]})


def shuffled(buffer: int = 100) -> Any:
    return numbers().shuffle(seed=3, buffer_size=buffer)


def unseeded() -> Any:
    return numbers().shuffle(buffer_size=100)


def interleaved() -> Any:
    return datasets.interleave_datasets(
        [shuffled(), numbers(1000)], probabilities=[0.3, 0.7], seed=5
    )


def interleaved_in_order() -> Any:
    return datasets.interleave_datasets(
        [numbers(), numbers(1000, 300)], probabilities=[0.3, 0.7], seed=5
    )


def tensors() -> Any:
    return shuffled().with_format("torch")


def arrays_in_order() -> Any:
    return numbers().with_format("numpy")


def wrapped() -> Any:
    return nodes.IterableWrapper(shuffled())


def prefetched() -> Any:
    node = nodes.IterableWrapper(numbers())
    mapped = nodes.ParallelMapper(node, lambda one: one, num_workers=2, method="thread")
    return nodes.Prefetcher(mapped, prefetch_factor=4)


def out_of_loader() -> Any:
    return nodes.Loader(nodes.IterableWrapper(numbers()))


def stateful_loader() -> Any:
    return stateful.StatefulDataLoader(numbers(), batch_size=None)


def stateful_loader_shuffled() -> Any:
    return stateful.StatefulDataLoader(shuffled(), batch_size=None)


class Own:
    """Has a shuffle buffer of its own, and a state without it."""

    def __init__(self, count: int = 500) -> None:
        self.count, self.read = count, 0
        self.rng = random.Random(5)

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read, "rng": self.rng.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]
        version, words, gauss = state["rng"]
        self.rng.setstate((version, tuple(words), gauss))

    def __iter__(self) -> Iterator[Any]:
        held: list[int] = []
        while self.read < self.count:
            held.append(self.read)
            self.read += 1
            if len(held) > 50:
                yield {"x": held.pop(self.rng.randrange(len(held)))}
        self.rng.shuffle(held)
        for one in held:
            yield {"x": one}
        self.read, self.rng = 0, random.Random(5)


class Elsewhere:
    """Has a stream where nobody finds it."""

    def __init__(self) -> None:
        stream = shuffled()
        self.get = lambda: stream

    def state_dict(self) -> Any:
        return self.get().state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.get().load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())


class Draws:
    """Its place is exact, and what it draws is the process's."""

    def __init__(self, every: int = 1) -> None:
        self.place, self.every = 0, every

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]

    def __iter__(self) -> Iterator[Any]:
        while self.place < 500:
            self.place += 1
            drawn = random.random() if self.place % self.every == 0 else 0.0
            yield {"x": self.place - 1, "drawn": drawn, "noise": np.random.rand(2) * drawn}
        self.place = 0


class CannotSay(Draws):
    def state_dict(self) -> dict[str, int]:
        if self.place:
            raise NotImplementedError("not while it runs")
        return {"place": 0}


def once() -> Iterator[Any]:
    return ({"x": i} for i in range(500))


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def lives(source: Callable[[], sources.Source], epochs: int, draw: random.Random) -> list[Any]:
    """Samples of a feed whose process dies now and then; `draw` without numbers: never."""
    got: list[Any] = []
    for epoch in range(epochs):
        cursor, given, ended = b"", 0, False
        reader = source() if not epoch or draw.random() < 0.5 else reader  # noqa: F821
        while not ended:
            reader.begin(epoch, cursor, given)
            last = draw.randrange(1, 260)
            passed = 0
            while not ended and passed < last:
                pairs, ended, failure = reader.next(draw.randrange(1, 64))
                assert failure is None, failure and failure.traceback
                for sample, cursor in pairs:
                    assert 0 < len(cursor) <= 4096
                    got.append(plain(sample))
                given += len(pairs)
                passed += len(pairs)
            if not ended:
                reader = source()
    return got


class Undisturbed(random.Random):
    def randrange(self, *_: Any) -> int:  # type: ignore[override]
        return 1 << 30

    def random(self) -> float:
        return 1.0


EXACT = ["in_order", "interleaved_in_order", "arrays_in_order", "prefetched", "stateful_loader"]
EXACT += ["out_of_loader"]
NOT_EXACT = [
    *("shuffled", "interleaved", "tensors", "wrapped", "stateful_loader_shuffled", "Own"),
    *("Elsewhere", "Draws", "CannotSay", "once"),
]


@pytest.mark.parametrize("name", EXACT + NOT_EXACT)
def test_deaths_change_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def source() -> sources.Source:
        return sources.Source(spec(name))

    due = lives(source, 2, Undisturbed())
    assert len({str(one) for one in due[: len(due) // 2]}) >= 440
    for seed in range(2):
        caplog.clear()
        assert lives(source, 2, random.Random(seed)) == due
        said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        said = [text for text in said if "samples are read again" in text]
        if name in EXACT:
            assert not said
        if name in NOT_EXACT:
            assert said


@pytest.mark.parametrize("name", ["Own", "Elsewhere", "Draws"])
def test_a_state_that_is_called_exact_is_used(name: str) -> None:
    """Which these are not."""
    due = lives(lambda: sources.Source(spec(name, "EXACT")), 1, Undisturbed())
    got = lives(lambda: sources.Source(spec(name, "EXACT")), 1, random.Random(1))
    assert got != due
    assert lives(lambda: sources.Source(spec(name, "RUN_FORWARD")), 1, random.Random(1)) == due


def test_a_shuffle_buffer_is_never_called_exact() -> None:
    due = lives(lambda: sources.Source(spec("shuffled", "EXACT")), 1, Undisturbed())
    assert lives(lambda: sources.Source(spec("shuffled", "EXACT")), 1, random.Random(1)) == due


def test_an_exact_state_is_not_read_from_the_start(caplog: pytest.LogCaptureFixture) -> None:
    first = sources.Source(spec("in_order"))
    first.begin(0, b"", 0)
    cursor = first.next(400)[0][-1][1]
    other = sources.Source(spec("in_order"))
    other.begin(0, cursor, 400)
    assert len(other.next(1000)[0]) == 100
    assert not caplog.records


def test_what_it_costs_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    first = sources.Source(spec("tensors"))
    first.begin(0, b"", 0)
    cursor = first.next(400)[0][-1][1]
    other = sources.Source(spec("tensors"))
    other.begin(0, cursor, 400)
    other.next(100)
    said = [one.getMessage() for one in caplog.records]
    assert said == [
        "stage mine: the state of its IterableDataset has not the samples in its shuffle buffer: "
        "400 samples are read again to come to where it was"
    ]


def test_a_source_that_never_gives_the_same_is_named(caplog: pytest.LogCaptureFixture) -> None:
    first = sources.Source(spec("unseeded"))
    first.begin(0, b"", 0)
    cursor = first.next(400)[0][-1][1]
    other = sources.Source(spec("unseeded"))
    other.begin(0, cursor, 400)
    other.next(100)
    assert "does not give the same samples when it is read again" in caplog.text


def test_digests_tell_samples_apart() -> None:
    samples = [
        *({}, {"a": 1}, {"a": 1.5}, {"b": 1}, {"a": "1"}, {"a": b"1"}, {"a": None}, {"a": [1]}),
        *({"a": [1, 2]}, {"a": [2, 1]}, {"a": {"b": 1}}, {"a": "x" * 5000}, {"a": "x" * 5001}),
        *({"a": np.arange(3)}, {"a": np.arange(4)}, {"a": np.arange(3, dtype=np.int32)}),
        *({"a": np.arange(3).reshape(3, 1)}, {"a": torch.arange(3)}, {"a": torch.zeros(3)}),
        *({"a": torch.ones(3, dtype=torch.bfloat16)}, {"a": np.array(["x", "y"])}),
        *({"a": np.array([{"x": 1}])}, {"a": np.array([{"x": 2}])}, {"a": np.arange(10**6)}),
        {"a": np.arange(10**6)[::-1]},
    ]
    found = [digest(sample) for sample in samples]
    assert len(set(found)) == len(samples)
    assert found == [digest(sample) for sample in samples]
    assert digest(1, digest(2)) != digest(2, digest(1))
