"""What is in Python of a stage in Python: objects, calls, sources, chance, values."""

from __future__ import annotations

import importlib.machinery
import json
import os
import pickle
import random
import re
import subprocess
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
from ringfeed.worker.batches import Batches
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


Field = tuple[str, str, list[int], int]
FIELDS: list[Field] = [
    ("id", "int64", [], 0),
    ("row", "float32", [2], 0),
    ("text", "text", [], 32),
]


def spec(
    name: str, source: int = 0, fields: list[Field] | None = None, **options: Any
) -> objects.Spec:
    return {
        "object": f"{__name__}:{name}",
        "options": json.dumps(options) if options else "",
        "python_path": [],
        "source": source,
        "batch": int(fields is not None),
        "fields": json.dumps(fields) if fields is not None else "",
        "state": "VERIFY",
        "batcher": "python_batcher",
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


@stage.batch
def returned(samples: Any) -> Any:
    ids = [one["id"] for one in samples]
    return {"text": [f"s{i}" for i in ids], "id": ids, "row": np.float32([[i, i] for i in ids])}


@stage.batch
def filled(samples: Any, out: Any) -> Any:
    for row, one in enumerate(samples):
        out["id"][row] += one["id"]
        out["row"][row] += one["id"]
    out["text"] = [f"s{one['id']}" for one in samples]


@stage.batch
def partly(samples: Any, out: Any) -> Any:
    made = returned(samples)
    out["row"][:, 0] = made["row"][:, 0]
    return {**made, "row": out["row"] + np.float32([[0, 1]]) * made["row"]}


class Drawing(stage.Batch):
    def __call__(self, samples: Any, out: Any, ctx: stage.Context) -> None:
        out["id"][:] = random.randrange(1 << 60), np.random.randint(1 << 60)
        out["row"][:] = ctx.rng.random(2)
        out["text"] = [ctx.lineage, str(ctx.seed)]


class Faulty(stage.Batch):
    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __call__(self, samples: Any) -> Any:
        made = returned(samples)
        rows = len(samples)
        wrong: dict[str, Any] = {
            "none": None,
            "a list": [made],
            "too few rows": {**made, "id": made["id"][1:]},
            "too many texts": {**made, "text": [*made["text"], "one more"]},
            "another shape": {**made, "row": np.zeros((rows, 3), np.float32)},
            "a number": {**made, "row": np.float32(1)},
            "another type": {**made, "row": made["row"].astype(np.float64)},
            "objects": {**made, "id": [{} for _ in samples]},
            "one text": {**made, "text": "one"},
            "bytes": {**made, "text": [b"x" for _ in samples]},
            "too long": {**made, "text": ["x" * 20 for _ in samples]},
            "missing": {"id": made["id"], "row": made["row"]},
            "unknown": {**made, "txt": made["text"]},
        }
        return wrong[self.fault]


FAULTS = {
    "none": ("TypeError", "a batch is a NoneType; return a mapping .* take a parameter `out`"),
    "a list": ("TypeError", "a batch is a list"),
    "too few rows": ("wrong_shape", r"field 'id' has shape \[1\], not \[2\]"),
    "too many texts": ("wrong_shape", "field 'text' has 3 rows, not 2"),
    "another shape": ("wrong_shape", r"field 'row' has shape \[2, 3\], not \[2, 2\]"),
    "a number": ("wrong_shape", r"field 'row' has shape \[\], not \[2, 2\]"),
    "another type": ("wrong_type", "field 'row' is float64, not float32"),
    "objects": ("wrong_type", "field 'id': it is a list of object"),
    "one text": ("wrong_type", "field 'text' is a str, not a list of str"),
    "bytes": ("wrong_type", "field 'text' is in row 0 a bytes, not str"),
    "too long": ("too_large", "field 'text' has 40 bytes, a batch has room for 32"),
    "missing": ("missing_field", "there is no field 'text'"),
    "unknown": ("TypeError", "'txt' is no field of the batch, which has id, row, text"),
}


@stage.batch
def imports(samples: Any, out: Any) -> None:
    """Draws from a generator that is not there before."""
    drawn = random.random()
    sys.modules["torch"] = FakeTorch()  # type: ignore[assignment]
    out["row"][:] = FakeTorch.drawn, drawn
    out["text"] = ["a", "b"]


class Keeping(stage.Batch):
    """Writes to the batch later, or could."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.kept: list[Any] = []

    def __call__(self, samples: Any, out: Any) -> Any:
        if self.how == "a view":
            self.kept = [out["row"][:, 0]]
        if self.how == "the dictionary":
            self.kept = [out]
        if self.how == "a copy":
            self.kept = [out["row"].copy()]
        if self.how == "a cycle":
            cycle: list[Any] = [out]
            cycle.append(cycle)
        return returned(samples)


class FakeTorch:
    drawn = 0.0

    def get_rng_state(self) -> Any:
        return FakeTorch.drawn

    def manual_seed(self, seed: int) -> None:
        FakeTorch.drawn = float(seed % 1000)


@stage.batch
def half(samples: Any, out: Any) -> None:
    assert str(out["x"].dtype) == "bfloat16"
    out["x"][:] = 1.5


HALVES: list[Any] = []


@stage.batch
def half_kept(samples: Any, out: Any) -> None:
    HALVES.append(out["x"])


@stage.batch
def swapped(samples: Any, out: Any) -> Any:
    out["a"][:], out["b"][:] = 1, 2
    return {"a": out["b"], "b": out["a"]}


@stage.batch
def misspelt(samples: Any, output: Any) -> None: ...


class Misspelt(stage.Batch):
    def __call__(self, samples: Any, output: Any) -> None:  # type: ignore[override]
        pass


@stage.batch
def optional(samples: Any, *, factor: int, more: int = 0) -> Any: ...


class TestBatches:
    SEED = 12345

    def made(self, batches: Batches, numbers: list[int], dirt: int = 0xEE) -> list[bytearray]:
        """The memory of the columns of FIELDS behind a run."""
        rows = len(numbers)
        memory = [bytearray([dirt] * size) for size in (8 * rows, 8 * rows, 32, 8 * rows + 8)]
        samples = [Sample(number) for number in numbers]
        failure = batches.run(samples, self.SEED, [memoryview(one) for one in memory])
        assert failure is None, failure.traceback
        return memory

    @pytest.mark.parametrize("name", ["returned", "filled", "partly"])
    def test_a_batch_is_in_the_memory_that_it_is_given(self, name: str) -> None:
        batches = Batches(spec(name, fields=FIELDS))
        for numbers in ([3, 4], [5]):
            ids, rows, text, offsets = self.made(batches, numbers)
            assert np.frombuffer(ids, np.int64).tolist() == numbers
            assert np.frombuffer(rows, np.float32).tolist() == [i for i in numbers for _ in "12"]
            ends = np.frombuffer(offsets, np.int64)
            assert ends.tolist() == [2 * i for i in range(len(numbers) + 1)]
            assert bytes(text[: ends[-1]]).decode() == "".join(f"s{i}" for i in numbers)

    def test_what_was_there_before_means_nothing(self) -> None:
        batches = Batches(spec("filled", fields=FIELDS))
        made = [self.made(batches, [3, 4], dirt) for dirt in (0, 0xEE)]
        for one, other in zip(made[0][:2], made[1][:2]):
            assert one == other

    def test_what_is_drawn_follows_from_the_seed(self) -> None:
        once = self.made(Batches(spec("Drawing", fields=FIELDS)), [3, 4])
        again = Batches(spec("Drawing", fields=FIELDS))
        self.made(again, [7, 8])
        assert self.made(again, [3, 4])[:3] == once[:3]
        assert bytes(once[2]).startswith(b"1:312345")
        self.SEED += 1
        assert self.made(again, [3, 4])[:2] != once[:2]

    def test_a_generator_that_comes_with_the_call_is_seeded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
        FakeTorch.drawn = 0.0
        batches = Batches(spec("imports", fields=FIELDS))
        once = self.made(batches, [3, 4])
        assert np.frombuffer(once[1], np.float32)[0] == self.SEED % 1000
        assert self.made(batches, [3, 4])[:2] == once[:2]

    @pytest.mark.parametrize("fault", FAULTS)
    def test_faults_name_the_field_and_what_was_wanted(self, fault: str) -> None:
        batches = Batches(spec("Faulty", fields=FIELDS, fault=fault))
        for views in (None, [memoryview(bytearray(32)) for _ in range(4)]):
            if views is not None:
                views = [view[:size] for view, size in zip(views, (16, 16, 32, 24))]
            failure = batches.run([Sample(1), Sample(2)], 1, views)
            assert failure is not None
            error, text = FAULTS[fault]
            assert failure.error == error
            assert re.search(text, failure.traceback), failure.traceback

    @pytest.mark.parametrize("how", ["a view", "the dictionary", "a copy", "a cycle"])
    def test_nobody_keeps_the_memory_of_a_batch(self, how: str) -> None:
        batches = Batches(spec("Keeping", fields=FIELDS, how=how))
        for _ in range(3):
            memory = [memoryview(bytearray(size)) for size in (16, 16, 32, 24)]
            failure = batches.run([Sample(1), Sample(2)], 1, memory)
            if how in ("a copy", "a cycle"):
                assert failure is None
            else:
                assert failure is not None and failure.error == "TypeError"
                assert "keeps 'row' of `out`" in failure.traceback.replace("'id', ", "")

    def test_bfloat16_is_that_of_ml_dtypes(self) -> None:
        pytest.importorskip("ml_dtypes")
        batches = Batches(spec("half", fields=[("x", "bfloat16", [2], 0)]))
        memory = bytearray(8)
        assert batches.run([Sample(1), Sample(2)], 1, [memoryview(memory)]) is None
        assert memory == b"\xc0\x3f" * 4

    def test_nor_does_anybody_keep_a_view_as_bfloat16(self) -> None:
        pytest.importorskip("ml_dtypes")
        batches = Batches(spec("half_kept", fields=[("x", "bfloat16", [2], 0)]))
        failure = batches.run([Sample(1), Sample(2)], 1, [memoryview(bytearray(8))])
        HALVES.clear()
        assert failure is not None and "keeps 'x' of `out`" in failure.traceback

    def test_fields_may_be_returned_in_each_others_memory(self) -> None:
        batches = Batches(spec("swapped", fields=[("a", "int8", [], 0), ("b", "int8", [], 0)]))
        memory = [bytearray(2), bytearray(2)]
        views = [memoryview(one) for one in memory]
        assert batches.run([Sample(1), Sample(2)], 1, views) is None
        assert memory == [b"\x02\x02", b"\x01\x01"]

    def test_what_cannot_be_called_with_samples_is_refused(self) -> None:
        for name in ("misspelt", "Misspelt"):
            text = f"{name} is called with a list of samples.*missing .*'output'"
            with pytest.raises(TypeError, match=text):
                Batches(spec(name, fields=FIELDS))
            assert re.search(text, objects.check(spec(name, fields=FIELDS)))
        assert objects.check(spec("optional", fields=FIELDS, factor=2)) == ""
        assert "'factor'" in objects.check(spec("optional", fields=FIELDS))

    def test_objects_of_other_shapes_are_refused(self) -> None:
        for name, shape in (("same", "map"), ("twice", "flat_map"), ("together", "map_batch")):
            text = f"{name} is a {shape}: a stage python calls it"
            with pytest.raises(TypeError, match=text):
                Batches(spec(name, fields=FIELDS))
            assert text in objects.check(spec(name, fields=FIELDS))
        with pytest.raises(TypeError, match="returned makes batches: a stage python_batcher"):
            Calls(spec("returned"))
        assert "Drawing makes batches" in objects.check(spec("Drawing"))
        assert objects.check(spec("Drawing", fields=FIELDS)) == ""


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
        assert min(other._object.made) >= 251 - 64 - 32

    def test_a_state_that_no_cursor_holds_is_replaced_by_a_count(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = sources.Source(spec("WithState", 1, count=130, weight=5000))
        first.begin(0, b"", 0)
        whole = all_of(first)
        assert "the epoch is read again from its start" in caplog.text
        other = sources.Source(spec("WithState", 1, count=130, weight=5000))
        other.begin(0, whole[100][1], 101)
        assert [sample["id"] for sample, _ in all_of(other)] == list(range(101, 130))

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


@pytest.mark.parametrize("full", [False, True])
def test_exit_where_nobody_reads(full: bool) -> None:
    """os._exit ends the process whatever becomes of its words: the supervisor may be dead, or
    stopped."""
    read, write = os.pipe()
    if full:
        os.set_blocking(write, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(write, bytes(1 << 12))
    else:
        os.close(read)
    program = "import os; from ringfeed.worker import exits; exits.tell(); os._exit(7)"
    ended = subprocess.run([sys.executable, "-c", program], stderr=write, check=False, timeout=30)
    assert ended.returncode == 7
    os.close(write)
    if full:
        os.close(read)
