"""What values of people's files become: numbers, nulls, names that come twice, byte order marks."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed
import ringfeed.pipeline as rp

from tests.support.feeds.feed_run import FeedRun

PIPELINE = """
feed: "{feed}"
epochs: 1
stages {{ name: "files" file_path_provider {{ directory: "{directory}" {patterns} }} }}
stages {{ name: "source" sample_source {{ input: "files" {source} }} }}
stages {{ name: "batches" sample_batcher {{ input: "source" batch_size: 8 {batch} }} }}
"""
ID = 'fields { name: "id" dtype: "int64" }'
Read = Callable[..., dict[str, list[Any]]]


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """Runs a feed over files, by name, and gives its columns; `log` is what was said meanwhile."""
    runs: list[FeedRun] = []

    def start(
        files: dict[str, str | bytes], batch: str, source: str = "", patterns: str = ""
    ) -> dict[str, list[Any]]:
        work = tmp_path / f"run{len(runs)}"
        data = tmp_path / f"data{len(runs)}"
        work.mkdir()
        data.mkdir()
        for name, content in files.items():
            whole = content.encode() if isinstance(content, str) else content
            (data / name).write_bytes(whole)
        settings = {"pipeline": PIPELINE, "patterns": patterns, "source": source, "batch": batch}
        runs.append(FeedRun(work, data, feed="values", **settings).start())
        got: dict[str, list[Any]] = {}
        with ringfeed.attach(
            "values", socket_dir=runs[-1].sockets, attach_timeout_s=60, timeout_s=60
        ) as feed:
            for rows in feed:
                for name in rows:
                    if name.endswith("_offsets"):
                        continue
                    column: list[Any] = rows[name].tolist()
                    if f"{name}_offsets" in rows:
                        ends, all_bytes = rows[f"{name}_offsets"], rows[name].tobytes()
                        column = [all_bytes[ends[i] : ends[i + 1]] for i in range(rows.rows)]
                    got.setdefault(name, []).extend(column)
                rows.release()
        assert runs[-1].wait() == 0, runs[-1].text()
        got["log"] = [runs[-1].text()]
        return got

    yield start
    for run in runs:
        run.close()


def test_members_that_nobody_asks_for_cost_nothing(read: Read) -> None:
    others = ["NaN", "[-Infinity]", "1e400", "9" * 30, '"\\ud800"', "[" * 2000 + "]" * 2000, "{}"]
    lines = [f'{{"id": {i}, "other": {value}}}' for i, value in enumerate(others)]
    lines += [f'{{"": 1, "id": {len(lines)}}}']
    lines += ["{" + "".join(f'"m{i}": {i}, ' for i in range(1000)) + f'"id": {len(lines)}}}']
    got = read({"a.jsonl": "\n".join(lines)}, ID, ID)
    assert got["id"] == list(range(len(lines)))
    # Without `fields` it is a sample's limit that counts, and the log says what to do.
    got = read({"a.jsonl": "\n".join(lines)}, ID)
    assert got["id"] == list(range(len(lines) - 1))
    assert "say with `fields` which are wanted" in got["log"][0]


def test_numbers_become_what_they_are_or_are_counted(read: Read) -> None:
    lines = [
        '{"id": 0.0, "x": NaN}',
        '{"id": 1.0, "x": -Infinity}',
        '{"id": 2, "x": 65504}',
        '{"id": 3, "x": 1e300}',
        '{"id": 4, "x": 70000}',
        '{"id": 5.5, "x": 1}',
        '{"id": 6, "x": true}',
    ]
    fields = ID + ' fields { name: "x" dtype: "float16" }'
    got = read({"a.jsonl": "\n".join(lines)}, fields, fields)
    assert got["id"] == [0, 1, 2, 6]
    assert np.array_equal(got["x"], [np.nan, -np.inf, 65504, 1], equal_nan=True)
    assert "field 'x' is 1e300, which cannot be float16" in got["log"][0]
    assert "skipped_wrong_type=3" in got["log"][0]
    got = read({"a.jsonl": "\n".join(lines)}, ID, ID + " strict: true")
    assert got["id"] == [2, 3, 4, 6] and "skipped_no_json=2" in got["log"][0]


@pytest.mark.parametrize("packed", [False, True])
def test_byte_order_marks_are_no_content(read: Read, packed: bool) -> None:
    mark = b"\xef\xbb\xbf"
    one = mark + b'{"id": 0, "text": "a"}\r\n{"id": 1, "text": "\xef\xbb\xbfb"}\r\n'
    two = mark + b'{"id": 2, "text": "c"}\n'
    pack: Callable[[bytes], bytes] = gzip.compress if packed else bytes
    ending = ".gz" if packed else ""
    fields = ID + ' fields { name: "text" dtype: "text" }'
    got = read({f"a.jsonl{ending}": pack(one) + pack(two + mark)}, fields)
    assert got["id"] == [0, 1, 2] and got["text"] == [b"a", mark + b"b", b"c"]
    lines = mark + b"first\n" + mark + b"second\n"
    got = read({f"a.txt{ending}": pack(lines)}, 'fields { name: "text" dtype: "text" }')
    assert got["text"] == [b"first", b"second"]


def test_what_is_missing_has_a_default_or_is_left_out(read: Read) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 0, "label": 3, "text": "a", "vector": [1, 2]},
        {"id": 1, "label": None, "text": None, "vector": None},
        {"id": 2},
    ]
    source = """fields { name: "id" }
        fields { name: "label" dtype: "int32" default: "-1" }
        fields { name: "text" dtype: "text" default: "none \\"given\\"" }
        fields { name: "vector" dtype: "float32" default: "[0, NaN]" }
        fields { name: "extra" on_missing: LEAVE_OUT }"""
    batch = """fields { name: "id" dtype: "int64" } fields { name: "label" dtype: "int32" }
        fields { name: "text" dtype: "text" } fields { name: "vector" dtype: "float32" shape: 2 }"""
    files = {"a.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}
    got = read(files, batch, source)
    assert got["id"] == [0, 1, 2] and got["label"] == [3, -1, -1]
    assert got["text"] == [b"a", b'none "given"', b'none "given"']
    vectors = np.array([[1, 2], [0, np.nan], [0, np.nan]])
    assert np.array_equal(got["vector"], vectors, equal_nan=True)


def test_defaults_are_checked(tmp_path: Path) -> None:
    for field, why in (
        ('default: "0"', "needs a dtype"),
        ('default: "none" dtype: "int64"', "which is no int64"),
        ('default: "300" dtype: "uint8"', "which is no uint8"),
    ):
        run = FeedRun(
            tmp_path,
            tmp_path,
            feed="values",
            pipeline=PIPELINE,
            patterns="",
            source=f'fields {{ name: "x" {field} }}',
            batch=ID,
        )
        try:
            run.start()
            assert run.wait() != 0 and why in run.text(), run.text()
        finally:
            run.close()


def test_a_pipeline_takes_defaults_as_values() -> None:
    fields: list[rp.SampleField | Mapping[str, object] | str] = [
        rp.SampleField("label", dtype="int64", default=-1),
        {"name": "vector", "dtype": "float32", "default": np.array([0, np.nan])},
        {"name": "flag", "dtype": "bool", "default": True},
        {"name": "text", "dtype": "text", "default": 'none "given"'},
    ]
    lines = rp.files("*.jsonl").jsonl(fields=fields)
    text = lines.batch(8, fields={"label": "int64"}).feed("values").text()
    for default in ('"-1"', '"[0.0, NaN]"', '"true"', r'"none \"given\""'):
        assert f"default: {default}" in text
    with pytest.raises(ringfeed.InvalidConfiguration, match="cannot be written as JSON"):
        rp.SampleField("x", dtype="int64", default=[object()])


def test_the_last_member_of_a_name_counts(read: Read) -> None:
    lines = [
        '{"id": 0, "x": 1, "id": 5}',
        '{"x": "no", "id": 6, "x": 7}',
        '{"id": "no", "\\u0069d": 7, "x": 2}',
        '{"id": 8, "x": 1, "x": null}',
    ]
    fields = ID + ' fields { name: "x" dtype: "int64" }'
    for source in ("", fields):
        got = read({"a.jsonl": "\n".join(lines)}, fields, source)
        assert got["id"] == [5, 6, 7] and got["x"] == [1, 7, 2]


def test_columns_of_one_name_are_refused_by_name(read: Read) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")

    def file_of(columns: list[Any], names: list[str]) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns, names=names), sink)
        whole: bytes = sink.getvalue().to_pybytes()
        return whole

    numbers = [pa.array([i, i + 1]) for i in range(4)]
    inner = pa.array([{"b": 10, "c": 20}, {"b": 11, "c": 21}])
    good = file_of(numbers[:2], ["id", "x"])
    twice = file_of(numbers[:3], ["id", "x", "x"])
    dotted = file_of([numbers[0], inner, numbers[3]], ["id", "a", "a.b"])
    one = 'fields { name: "x" dtype: "int64" }'
    got = read({"a.parquet": twice, "b.parquet": good}, one, "format: PARQUET")
    assert got["x"] == [1, 2]
    assert "skipped_wrong_type" in got["log"][0] and "damaged" not in got["log"][0]
    assert "it has 2 columns 'x': say in `fields` which, as 'x#1' to 'x#2'" in got["log"][0]
    # Nobody asks for them.
    got = read({"a.parquet": twice, "b.parquet": dotted}, ID, f"format: PARQUET {ID}")
    assert got["id"] == [0, 1, 0, 1]
    which = 'fields {{ name: "{}" as: "x" }}'
    for name, values in (("x#1", [1, 2]), ("x#2", [2, 3])):
        got = read({"a.parquet": twice}, one, "format: PARQUET " + which.format(name))
        assert got["x"] == values
    for name, values in (("a.b#1", [10, 11]), ("a.b#2", [3, 4]), ("a.c", [20, 21])):
        got = read({"a.parquet": dotted}, one, "format: PARQUET " + which.format(name))
        assert got["x"] == values
    both = "format: PARQUET " + which.format("a.b#2") + 'fields { name: "a.c" as: "y" }'
    got = read({"a.parquet": dotted}, one + 'fields { name: "y" dtype: "int64" }', both)
    assert got["x"] == [3, 4] and got["y"] == [20, 21]


def test_nulls_of_tables_have_defaults(read: Read) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")

    def file_of(columns: dict[str, Any]) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink)
        whole: bytes = sink.getvalue().to_pybytes()
        return whole

    wide = {f"c{i}": [i, None] for i in range(1000)}
    files: dict[str, str | bytes] = {
        "a.parquet": file_of({"id": [0, 1, 2], "x": [1.0, None, 3.0]}),
        "b.parquet": file_of({"id": [3, 4], "x": pa.nulls(2)}),
        "c.parquet": file_of({"id": [5, 6]}),
        "d.parquet": file_of({"id": [7, 8], **wide}),
    }
    source = (
        'format: PARQUET fields { name: "id" } fields { name: "x" dtype: "int64" default: "-1" }'
    )
    got = read(files, ID + 'fields { name: "x" dtype: "int64" }', source)
    assert got["id"] == list(range(9)) and got["x"] == [1, -1, 3, -1, -1, -1, -1, -1, -1]


def test_batches_take_numbers_whose_values_do_not_change(read: Read) -> None:
    rows = [
        '{"id": 0, "x": 1, "small": 255, "flag": true, "text": [{"a": 1}]}',
        '{"id": 1.0, "x": 2.5, "small": 3.0, "flag": 0, "text": []}',
        '{"id": 2, "x": 9007199254740993, "small": 1, "flag": 1, "text": "t"}',
        '{"id": 3, "x": 9007199254740992, "small": 256, "flag": 1, "text": "t"}',
        '{"id": 4, "x": 4, "small": 4, "flag": false, "text": [[], []]}',
        '{"id": 5, "x": NaN, "small": 5, "flag": 2, "text": "half \\\\ud800"}',
        '{"id": 6, "x": "1", "small": 6, "flag": 2, "text": ""}',
        '{"id": 7, "x": 7.25, "small": 7.25, "flag": 2, "text": ""}',
    ]
    batch = """fields { name: "id" dtype: "int32" } fields { name: "x" dtype: "float64" }
        fields { name: "small" dtype: "uint8" } fields { name: "flag" dtype: "uint8" }
        fields { name: "text" dtype: "text" }"""
    got = read({"a.jsonl": "\n".join(rows).replace("\\\\", "\\")}, batch)
    assert got["id"] == [0, 1, 4] and got["x"] == [1.0, 2.5, 4.0]
    assert got["small"] == [255, 3, 4] and got["flag"] == [1, 0, 0]
    assert got["text"] == [b'[{"a":1}]', b"[]", b"[[],[]]"]
    log = got["log"][0]
    assert "skipped_wrong_type=5" in log
    assert (
        "field 'x' is int64, not float64, which does not hold its value as it is: "
        'say dtype: "float64" of it in the source' in log
    )
    # Floats are rounded to those of another size, as what is written 0.1 is in any case.
    numbers = '{"x": 1}\n{"x": 2.5}\n{"x": 3}\n{"x": 0.1}\n{"x": 1e300}\n{"x": 16777217}'
    got = read({"a.jsonl": numbers}, 'fields { name: "x" dtype: "float32" }')
    assert got["x"] == [1.0, 2.5, 3.0, float(np.float32(0.1))]
    assert "field 'x' is float64, not float32, which does not hold its value" in got["log"][0]
    assert "skipped_wrong_type=2" in got["log"][0]


def test_arrays_of_all_kinds_are_read_or_refused_by_name(read: Read) -> None:
    def file_of(array: Any) -> bytes:
        sink = io.BytesIO()
        np.save(sink, array)
        return sink.getvalue()

    one = 'fields { name: "data" dtype: "int64" }'
    flat = {"a.npy": file_of(np.arange(5)), "b.npy": file_of(np.arange(5, 7, dtype=">i2"))}
    days = {"c.npy": file_of(np.array(["1970-01-08", "NaT"], "M8[D]"))}
    refused = {
        "d.npy": file_of(np.array([{}], object)),
        "e.npy": file_of(np.array([1], np.longdouble)),
        "f.npy": file_of(np.int64(1)),
        "g.npy": b"",
        "h.npy": file_of(np.zeros(0, np.int64)),
    }
    got = read({**flat, **days, **refused}, one)
    assert got["data"] == [*range(8), -(2**63)]
    log = got["log"][0]
    assert "d.npy offset=0: its elements are |O: pickled objects are not read" in log
    assert "e.npy offset=0: its elements are <f16, which no sample has" in log
    assert "skipped_damaged=1, skipped_wrong_type=3" in log
    # Rows that have no bytes are rows.
    empty = {"a.npy": file_of(np.zeros((3, 0), np.float32)), "b.npy": flat["a.npy"]}
    got = read(empty, 'lineage: true fields { name: "data" dtype: "float32" shape: 0 }')
    assert np.array(got["data"]).shape == (3, 0) and "skipped_wrong_shape=5" in got["log"][0]
    records = np.array(
        [(1, (2, "é")), (3, (4, "x"))], [("a", "<i2"), ("b", [("c", ">f8"), ("d", "U2")])]
    )
    source = """fields { name: "b.c" as: "c" dtype: "int32" }
        fields { name: "e" dtype: "int8" default: "9" }"""
    batch = 'fields { name: "c" dtype: "int32" } fields { name: "e" dtype: "int8" }'
    got = read({"a.npy": file_of(records)}, batch, source)
    assert got["c"] == [2, 4] and got["e"] == [9, 9]
    got = read({"a.npy": file_of(records)}, 'fields { name: "b.d" dtype: "text" }')
    assert got["b.d"] == ["é".encode(), b"x"]
