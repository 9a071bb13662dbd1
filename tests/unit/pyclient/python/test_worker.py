"""What is in Python of a stage in Python: objects, calls, sources, chance, values."""

from __future__ import annotations

import importlib.machinery
import json
import os
import pickle
import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringfeed import stage
from ringfeed.errors import RingfeedError
from ringfeed.worker import module, objects, sources, values
from ringfeed.worker.calls import Calls, Failure
from ringfeed.worker.output import LogStream


class Sample(dict[str, Any]):
    """Stands for the module's own type."""

    def __init__(self, number: int) -> None:
        super().__init__(id=number)
        self.seed = 1000 + number
        self.lineage = f"1:{number}"

    def _reset(self) -> None:
        number = self.seed - 1000
        self.clear()
        self["id"] = number


def spec(name: str, source: int = 0, **options: Any) -> objects.Spec:
    return {
        "object": f"{__name__}:{name}",
        "options": json.dumps(options) if options else "",
        "python_path": [],
        "source": source,
        "stage": "mine",
        "lane": 2,
        "lanes": 4,
        "key": 77,
    }


# ---- what the stages under test are


def same(sample: Any) -> Any:
    return sample


def add(sample: Any, by: int) -> Any:
    return {"id": sample["id"] + by}


def facts(sample: Any, ctx: stage.Context) -> Any:
    return {"who": f"{ctx.stage} {ctx.lane} {ctx.lanes} {ctx.lineage} {ctx.seed}"}


def draws(sample: Any, ctx: stage.Context) -> Any:
    return {"drawn": (random.random(), float(np.random.random()), float(ctx.rng.random()))}


@stage.flat_map
def twice(sample: Any) -> Iterator[Any]:
    yield sample
    yield {"id": -sample["id"]}


@stage.flat_map
def one(sample: Any) -> Any:
    return {"id": 1}


@stage.map_batch(zero_copy=True)
def together(samples: list[Any]) -> list[Any]:
    if any(sample["id"] == 3 for sample in samples):
        raise KeyError("three")
    return [{"of": len(samples)} for _ in samples]


@stage.map_batch
def too_few(samples: list[Any]) -> list[Any]:
    return samples[1:]


@stage.map_batch
def draws_together(samples: list[Any]) -> list[Any]:
    return [{"drawn": random.random()} for _ in samples]


@stage.map_batch
def asks_together(samples: list[Any], ctx: stage.Context) -> list[Any]:
    return [{"drawn": float(ctx.rng.random())} for _ in samples]


@stage.map(start="spawn")
def lonely(sample: Any) -> Any:
    return sample


class Counting:
    def __init__(self, first: int = 0) -> None:
        self.count = first

    def __call__(self, sample: Any) -> Any:
        self.count += 1
        return {"count": self.count}


def raises(sample: Any) -> Any:
    raise SystemExit(3) if sample["id"] == 2 else ValueError(f"of {sample['id']}")


NOT_CALLABLE = 5


def run(name: str, count: int = 4, **options: Any) -> list[Any]:
    return Calls(spec(name, **options)).run([Sample(i) for i in range(count)])


class TestCalls:
    def test_a_function_is_a_map(self) -> None:
        assert run("same") == [{"id": i} for i in range(4)]

    def test_options_are_fixed_arguments_of_a_function(self) -> None:
        assert run("add", by=10)[3] == {"id": 13}

    def test_a_class_is_made_once(self) -> None:
        assert run("Counting", first=5)[-1] == {"count": 9}

    def test_a_context_says_what_the_sample_is(self) -> None:
        assert run("facts")[1] == {"who": "mine 2 4 1:1 1001"}

    def test_a_flat_map_gives_lists(self) -> None:
        assert run("twice", 2) == [[{"id": 0}, {"id": 0}], [{"id": 1}, {"id": -1}]]
        assert "return a list of them" in run("one", 1)[0].traceback

    def test_a_batch_that_raises_is_tried_one_by_one(self) -> None:
        outcomes = run("together", 5)
        assert [getattr(outcome, "error", outcome) for outcome in outcomes] == [
            {"of": 1},
            {"of": 1},
            {"of": 1},
            "KeyError",
            {"of": 1},
        ]
        assert run("together", 3) == [{"of": 3}] * 3
        assert Calls(spec("together")).zero_copy and not Calls(spec("same")).zero_copy
        assert "returned 0 for 1 samples" in run("too_few", 1)[0].traceback

    def test_whatever_is_raised_is_the_samples(self) -> None:
        outcomes = run("raises")
        assert [outcome.error for outcome in outcomes] == [
            "ValueError",
            "ValueError",
            "SystemExit",
            "ValueError",
        ]
        assert "in raises" in outcomes[0].traceback
        assert "ringfeed/worker" not in outcomes[0].traceback
        assert outcomes[3].traceback == "ValueError: of 3", "in full only the first of a type"


class TestChance:
    def test_a_sample_draws_the_same_whatever_came_before(self) -> None:
        whole = run("draws", 6)
        assert len({outcome["drawn"] for outcome in whole}) == 6
        calls = Calls(spec("draws"))
        # Others in front, and all that this process draws elsewhere.
        for i in (5, 3, 0, 1, 2, 4):
            random.random()
            assert calls.run([Sample(i)]) == [whole[i]]

    @pytest.mark.parametrize("name", ["draws_together", "asks_together"])
    def test_a_batch_that_draws_is_called_one_by_one(self, name: str) -> None:
        whole = run(name, 6)
        assert len({outcome["drawn"] for outcome in whole}) == 6
        for together in (1, 2, 4):
            calls = Calls(spec(name))
            samples = [Sample(i) for i in range(6)]
            made = [calls.run(samples[i : i + together]) for i in range(0, 6, together)]
            assert sum(made, []) == whole, together

    def test_who_draws_nothing_is_called_once(self) -> None:
        calls = Calls(spec("Counting"))
        for i in range(3):
            assert calls.run([Sample(i)]) == [{"count": i + 1}]


class TestObjects:
    def test_what_is_wrong_is_said(self) -> None:
        for name, said in (
            ("nothing_here", "has no nothing_here; it has"),
            ("NOT_CALLABLE", "name a function or a class"),
        ):
            assert said in objects.check(spec(name))
        assert objects.check(spec("add", by=1)) == ""
        assert "unexpected keyword argument 'buy'" in objects.check(spec("add", buy=1))
        assert "No module named" in objects.check({**spec("x"), "object": "no_such_module:x"})
        assert "no JSON" in objects.check({**spec("add"), "options": "{"})
        assert "give a JSON object" in objects.check({**spec("add"), "options": "[1]"})
        assert sys.executable in objects.check(spec("nothing_here"))

    def test_a_pickle_that_others_may_write_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "object.pickle"
        path.write_bytes(pickle.dumps(same))
        path.chmod(0o644)
        pickled: objects.Spec = {**spec("x"), "object": f"pickle:{path}"}
        assert "chmod 600" in objects.check(pickled)
        path.chmod(0o600)
        assert objects.check(pickled) == "" and objects.find(pickled) is same


def test_a_start_is_one_of_two() -> None:
    assert getattr(lonely, "__ringfeed_start__") == "spawn"
    with pytest.raises(ValueError, match='give "fork" or "spawn"'):
        stage.map(start="thread")


class TestValues:
    def test_what_has_no_buffer_becomes_an_array(self) -> None:
        assert values.coerce([1, 2, 3])[0] == "int64"
        name, array = values.coerce([[1.5], [2.5]])
        assert name == "float64" and array.shape == (2, 1)
        assert values.coerce(np.arange(6).reshape(2, 3).T)[1].flags.c_contiguous
        assert values.coerce(np.arange(3, dtype=">i4"))[1].dtype == np.dtype("<i4")
        assert values.coerce(2.5 + 1j)[1].shape == ()

    @pytest.mark.parametrize(
        "value",
        [{}, object(), ["a", "b"], [[1], [2, 3]], np.array(["x"]), 2**70],
        ids=["dict", "object", "strings", "ragged", "array of strings", "too large"],
    )
    def test_what_no_sample_holds_is_refused(self, value: Any) -> None:
        with pytest.raises(TypeError, match="give an array, a number, bytes or str"):
            values.coerce(value)


# ---- sources


class Own:
    def __init__(self, count: int = 10) -> None:
        self.count = count

    def read(self, cursor: bytes | None, epoch: int) -> Iterator[tuple[Any, bytes]]:
        for i in range(int(cursor or 0), self.count):
            yield {"id": i, "epoch": epoch}, b"%d" % (i + 1)


class WithState:
    """As Hugging Face's datasets and StatefulDataLoader: the state is the object's."""

    def __init__(self, count: int = 300, weight: int = 0) -> None:
        self.place = 0
        self.count = count
        self.made: list[int] = []
        self.weight = os.urandom(weight)

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "more": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]

    def __iter__(self) -> Iterator[Any]:
        while self.place < self.count:
            self.place += 1
            self.made.append(self.place - 1)
            yield {"id": self.place - 1}


class Node:
    """As torchdata's nodes."""

    def __init__(self, count: int = 100) -> None:
        self.count = count
        self.reset(None)

    def reset(self, state: Any = None) -> None:
        self.place = state["place"] if state else 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def __iter__(self) -> Node:
        return self

    def __next__(self) -> Any:
        if self.place == self.count:
            raise StopIteration
        self.place += 1
        return {"id": self.place - 1}


def plain(count: int = 20) -> Any:
    return [{"id": i} for i in range(count)]


class Shuffled:
    def __iter__(self) -> Iterator[Any]:
        numbers = list(range(20))
        random.shuffle(numbers)
        return iter([{"id": i} for i in numbers])


class Failing:
    def read(self, cursor: bytes | None) -> Iterator[tuple[Any, bytes]]:
        for i in range(int(cursor or 0), 3):
            yield {"id": i}, b"%d" % (i + 1)
        raise ConnectionError("the server is gone")


class BadCursor:
    def read(self, cursor: bytes | None) -> Iterator[Any]:
        yield {"id": 0}, b"1"
        yield {"id": 1}, b"x" * 5000


def all_of(source: sources.Source, most: int = 7) -> list[tuple[Any, bytes]]:
    found = []
    while True:
        pairs, end, failure = source.next(most)
        assert failure is None
        found += pairs
        if end:
            return found


class TestSources:
    @pytest.mark.parametrize("name", ["Own", "WithState", "Node", "plain", "Shuffled"])
    def test_any_cursor_goes_on_in_another_process(self, name: str) -> None:
        first = sources.Source(spec(name, 1))
        first.begin(0, b"", 0)
        whole = all_of(first)
        assert len(whole) in (10, 20, 100, 300)
        assert all(0 < len(cursor) <= 4096 for _, cursor in whole)
        for place in (0, 1, len(whole) // 2, len(whole) - 1):
            other = sources.Source(spec(name, 1))
            other.begin(0, whole[place][1], place + 1)
            assert [sample for sample, _ in all_of(other)] == [one for one, _ in whole[place + 1 :]]

    def test_the_next_epoch_begins_anew(self) -> None:
        for name in ("Own", "WithState", "Node", "plain"):
            source = sources.Source(spec(name, 1))
            counts = []
            for epoch in range(3):
                source.begin(epoch, b"", 0)
                counts.append(len(all_of(source)))
            assert counts == [counts[0]] * 3 and counts[0] > 0, name
        source = sources.Source(spec("Shuffled", 1))
        orders = []
        for epoch in (0, 1, 0):
            source.begin(epoch, b"", 0)
            orders.append([sample["id"] for sample, _ in all_of(source)])
        assert orders[0] != orders[1] and orders[0] == orders[2]

    def test_a_state_is_not_read_from_the_start(self) -> None:
        first = sources.Source(spec("WithState", 1))
        first.begin(0, b"", 0)
        cursor = all_of(first)[250][1]
        other = sources.Source(spec("WithState", 1))
        other.begin(0, cursor, 251)
        all_of(other)
        assert min(other._object.made) >= 251 - 64

    def test_a_state_that_no_cursor_holds_is_replaced_by_a_count(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = sources.Source(spec("WithState", 1, count=30, weight=5000))
        first.begin(0, b"", 0)
        whole = all_of(first)
        assert "the epoch is read again from its start" in caplog.text
        other = sources.Source(spec("WithState", 1, count=30, weight=5000))
        other.begin(0, whole[20][1], 21)
        assert [sample["id"] for sample, _ in all_of(other)] == list(range(21, 30))

    def test_what_is_raised_comes_behind_what_came_before(self) -> None:
        source = sources.Source(spec("Failing", 1))
        source.begin(0, b"", 0)
        pairs, end, failure = source.next(64)
        assert len(pairs) == 3 and not end and failure is None
        pairs, end, failure = source.next(64)
        assert not pairs and not end and isinstance(failure, Failure)
        assert failure.error == "ConnectionError" and "in read" in failure.traceback

    def test_a_cursor_that_is_none_is_refused(self) -> None:
        source = sources.Source(spec("BadCursor", 1))
        source.begin(0, b"", 0)
        assert len(source.next(8)[0]) == 1
        failure = source.next(8)[2]
        assert failure and "a cursor has 5000 bytes; give 1 to 4096" in failure.traceback

    def test_what_is_no_source_is_refused(self) -> None:
        with pytest.raises(TypeError, match="neither read"):
            sources.Source(spec("NOT_CALLABLE", 1))


def test_lines_are_written_whole(capfd: pytest.CaptureFixture[str]) -> None:
    stream = LogStream(1, "info", "mine.0")
    print("one", end="", file=stream)
    print(" line", file=stream)
    print("no end", end="", file=stream)
    stream.flush()
    lines = capfd.readouterr().out.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        "info mine.0 | one line",
        "info mine.0 | no end",
    ]


class TestModule:
    def test_a_free_threaded_python_has_a_module_of_its_own(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        usual = tmp_path / "_worker.abi3.so"
        usual.touch()
        monkeypatch.setenv("RINGFEED_WORKER_MODULE", str(usual))
        assert module._place() == usual
        monkeypatch.setattr(
            sysconfig, "get_config_var", lambda name: int(name == "Py_GIL_DISABLED")
        )
        monkeypatch.setattr(importlib.machinery, "EXTENSION_SUFFIXES", [".cpython-313t.so", ".so"])
        with pytest.raises(
            RingfeedError, match=r"free-threaded.*no .*313t.so: build ringfeed with"
        ):
            module._place()
        own = tmp_path / "_worker.cpython-313t.so"
        own.touch()
        assert module._place() == own

    def test_a_module_that_is_nowhere_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RINGFEED_WORKER_MODULE", "/nowhere/_worker.abi3.so")
        monkeypatch.setattr(module, "_FILE", "_none.so")
        with pytest.raises(RingfeedError, match="not at /nowhere/.* nor .*_none.so: reinstall"):
            module._place()
