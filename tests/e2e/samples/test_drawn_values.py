"""Lines of JSON and NumPy's files that are drawn, in a real feed beside Python's json and NumPy:
each row is equal, or counted by its reason. RINGFEED_DRAWS: so many times as many files.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed

from tests.support.feeds.feed_run import FeedRun

PIPELINE = """
feed: "{feed}"
epochs: 1
stages {{ name: "files" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "source" sample_source {{
  input: "files" threads: {lanes} block_bytes: 65536 {source} }} }}
stages {{ name: "batches" sample_batcher {{ input: "source" batch_size: 64 {batch} }} }}
"""
DRAWS = int(os.environ.get("RINGFEED_DRAWS", "1"))
Read = Callable[..., tuple[dict[str, list[Any]], Counter[str]]]
REFUSED = object()  # a value that the type has not
SHAPED = object()  # an array, which no row of the batch has


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """Runs a feed over the files of a directory: its columns, and what was skipped."""
    runs: list[FeedRun] = []

    def start(
        directory: Path, source: str, batch: str, lanes: int = 1
    ) -> tuple[dict[str, list[Any]], Counter[str]]:
        work = tmp_path / f"run{len(runs)}"
        work.mkdir()
        settings = {"pipeline": PIPELINE, "source": source, "batch": batch, "lanes": lanes}
        runs.append(FeedRun(work, directory, feed="drawn", **settings).start())
        got: dict[str, list[Any]] = {}
        with ringfeed.attach(
            "drawn", socket_dir=runs[-1].sockets, attach_timeout_s=60, timeout_s=60
        ) as feed:
            for rows in feed:
                for name in rows:
                    if name.endswith("_offsets"):
                        continue
                    column: list[Any] = list(rows[name].copy())
                    if f"{name}_offsets" in rows:
                        ends, whole = rows[f"{name}_offsets"], rows[name].tobytes()
                        column = [whole[ends[i] : ends[i + 1]] for i in range(rows.rows)]
                    got.setdefault(name, []).extend(column)
                rows.release()
        assert runs[-1].wait() == 0, runs[-1].text()
        # The last line of each stage has its counters.
        counted = re.findall(r"(?:source|batches): (.*)", runs[-1].text())
        skipped = re.findall(r"skipped_(\w+)=(\d+)", " ".join(counted))
        total: Counter[str] = Counter()
        for reason, count in skipped:
            total[reason] += int(count)
        return got, total

    yield start
    for run in runs:
        run.close()


# ---- lines of JSON


class Number:
    """A number that json has read, and how it was written."""

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def is_beyond(self) -> bool:
        """Finite, and infinite as a float64."""
        return math.isinf(float(self.text)) and self.text not in ("Infinity", "-Infinity")


NUMBERS = (
    *("0", "-0", "1", "-7", "127", "128", "255", "256", "65504", "65520", "70000", "2147483648"),
    *("9007199254740993", "9223372036854775807", "9223372036854775808", "18446744073709551615"),
    *("18446744073709551616", "-9223372036854775809", "123456789012345678901234567890"),
    *("5.0", "-3.00", "2.5", "0.1", "1e2", "12e-1", "1500e-2", "1E+3", "1e18", "1e19", "1e39"),
    *("1e300", "-1e400", "1e400", "1e-400", "9007199254740993.0", "4.9e-324", "3.4028236e38"),
    *("NaN", "Infinity", "-Infinity"),
)
WORDS = (
    "a",
    "é",
    "😀",
    "\\n",
    '\\"',
    "\\u00e9",
    "\\ud83d\\ude00",
    "\\ud83d",
    "\\udc00",
    "\\/",
    " ",
)


def draw_value(rng: random.Random, depth: int = 0) -> str:
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return '"' + "".join(rng.choice(WORDS) for _ in range(rng.randrange(12))) + '"'
    if kind == 5:
        return rng.choice(("true", "false", "null"))
    space = rng.choice(("", " ", "\t"))
    some = [draw_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind < 8:
        return "[" + f",{space}".join(some) + "]"
    return "{" + ", ".join(f'"k{i}"{space}:{space}{one}' for i, one in enumerate(some)) + "}"


def draw_line(rng: random.Random, number: int) -> str:
    members = [f'"id": {number}' if rng.random() < 0.9 else f'"id": {number}.0']
    for name in ("i", "f", "t"):
        if rng.random() < 0.97:
            usual = {"i": ("1", "5.0"), "f": ("0.1", "NaN", "7"), "t": ('"x"', "[]", "1e400")}
            easy = rng.random() < 0.8
            members.append(f'"{name}": ' + (rng.choice(usual[name]) if easy else draw_value(rng)))
    for _ in range(rng.randrange(4)):
        name = rng.choice(("", "other", "i", "t", "\\u0069", "id2", "\\ud800", "n" * 300))
        members.append(f'"{name}": {draw_value(rng)}')
    if rng.random() < 0.5:
        rng.shuffle(members)
    line = "{" + rng.choice((", ", ",", " ,\t")).join(members) + "}"
    if rng.random() < 0.15:
        at = rng.randrange(len(line))
        line = (
            line[:at]
            + rng.choice(("", '"', "\\", "{", "]", ",", "0", "e", "N", " "))
            + line[at + 1 :]
        )
    return line


def whole_of(value: Any, least: int, most: int) -> Any:
    if isinstance(value, Number):
        real = float(value.text)
        if not math.isfinite(real) or not real.is_integer():
            return REFUSED
        # From 2^53 on the text has to be that number.
        if abs(real) >= 2**53 and Decimal(value.text) != int(real):
            return REFUSED
        value = int(real)
    return int(value) if isinstance(value, int) and least <= value <= most else REFUSED


def real_of(value: Any, dtype: type) -> Any:
    if isinstance(value, Number):
        if value.is_beyond:
            return REFUSED
        value = float(value.text)
    if not isinstance(value, (int, float)):
        return REFUSED
    try:
        with np.errstate(over="ignore"):
            narrow = dtype(float(value))
    except OverflowError:
        return REFUSED
    return REFUSED if np.isinf(narrow) and not math.isinf(float(value)) else narrow


def shape_of(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return ()
    inner = {shape_of(one) for one in value}
    if len(inner) > 1 or None in inner:
        return None
    return (len(value), *next((one for one in inner if one), ()))


def leaves(value: Any) -> list[Any]:
    return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list) else [value]


def number_of(value: Any, convert: Callable[[Any], Any]) -> Any:
    """A number, or whether an array of them is one."""
    if not isinstance(value, list):
        return convert(value)
    inside = leaves(value)
    fits = shape_of(value) is not None and len({isinstance(one, bool) for one in inside}) < 2
    return SHAPED if fits and all(convert(one) is not REFUSED for one in inside) else REFUSED


def text_of(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return value.encode()
    except UnicodeEncodeError:
        return REFUSED


CONVERT: dict[str, Callable[[Any], Any]] = {
    "id": lambda value: number_of(value, lambda one: whole_of(one, -(2**63), 2**63 - 1)),
    "i": lambda value: number_of(value, lambda one: whole_of(one, -128, 127)),
    "f": lambda value: number_of(value, lambda one: real_of(one, np.float16)),
    "t": text_of,
}


def sample_of(row: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The fields, or the reason of the first that cannot be."""
    made = {}
    for name, convert in CONVERT.items():
        if row.get(name) is None:
            return {}, "missing_field"
        made[name] = convert(row[name])
        if made[name] is REFUSED:
            return {}, "wrong_type"
    return made, "wrong_shape" if any(value is SHAPED for value in made.values()) else ""


def like(value: Any) -> Any:
    """JSON as what can be compared: NaN is itself, and a number is how it was written."""
    if isinstance(value, Number):
        return ("number", value.text)
    if isinstance(value, list):
        return [like(one) for one in value]
    return {k: like(v) for k, v in value.items()} if isinstance(value, dict) else value


def parsed(text: str | bytes) -> Any:
    return json.loads(text, parse_float=Number, parse_constant=Number)


def test_lines_of_json_are_those_of_pythons_json(read: Read, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    data = tmp_path / "data"
    data.mkdir()
    want: list[dict[str, Any]] = []
    skipped: Counter[str] = Counter()
    number = 0
    for file in range(120 * DRAWS):
        end = rng.choice(("\n", "\r\n"))
        whole = ""
        for _ in range(rng.randrange(30)):
            line = draw_line(rng, number)
            number += 1
            mark = "\ufeff" if rng.random() < 0.05 else ""
            whole += mark + line + end + (end if rng.random() < 0.05 else "")
            try:
                row = parsed(line)
            except ValueError:
                skipped["no_json"] += bool(line)
                continue
            if not isinstance(row, dict):
                skipped["no_json"] += 1
            else:
                made, reason = sample_of(row)
                if reason:
                    skipped[reason] += 1
                else:
                    want.append(made)
        packed = rng.random() < 0.3
        content = whole.encode()
        name = f"{file:05}.jsonl" + (".gz" if packed else "")
        (data / name).write_bytes(gzip.compress(content) if packed else content)
    source = """fields { name: "id" dtype: "int64" } fields { name: "i" dtype: "int8" }
        fields { name: "f" dtype: "float16" } fields { name: "t" dtype: "text" }"""
    got, counted = read(data, source, source, lanes=rng.choice((1, 3)))
    context = f"seed {seed}"
    assert counted == skipped, context
    assert sum(skipped.values()) > 0 and len(want) > 100, context
    assert [int(i) for i in got["id"]] == [row["id"] for row in want], context
    for at, row in enumerate(want):
        assert got["i"][at] == row["i"], (context, row)
        assert np.array_equal(got["f"][at], row["f"], equal_nan=True), (context, row, got["f"][at])
        if isinstance(row["t"], bytes):
            assert got["t"][at] == row["t"], (context, row)
        else:
            assert like(parsed(got["t"][at])) == like(row["t"]), (context, row, got["t"][at])


# ---- arrays

ROW = (2, 3)
KINDS = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


def npy(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    sink = io.BytesIO()
    np.lib.format.write_array(sink, array, version=version)
    return sink.getvalue()


def test_arrays_are_those_of_numpy(read: Read, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    values = np.random.default_rng(seed)
    data = tmp_path / "data"
    data.mkdir()
    want: list[np.ndarray] = []
    skipped: Counter[str] = Counter()
    for file in range(150 * DRAWS):
        rows = rng.randrange(40)
        kind = rng.choice("<>=") + rng.choice(KINDS)
        array = (values.standard_normal((rows, *ROW)) * 100).astype(kind.replace("?", "b1"))
        fortran = rng.random() < 0.4
        whole = npy(
            np.asfortranarray(array) if fortran else array,
            rng.choice(((1, 0), (2, 0), (3, 0))),
        )
        head = len(whole) - array.nbytes
        odd = rng.random()
        if odd < 0.1:
            whole += b"rubbish behind"
            skipped["trailing"] += 1
        elif odd < 0.2 and rows:
            whole = whole[: head + rng.randrange(array.nbytes)]
            lost = head + array.nbytes - len(whole)
            # Of columns first, the last column has the end of each row.
            one = array.itemsize if fortran else array.nbytes // rows
            array = array[: max(0, rows - -(-lost // one))]
            skipped["damaged"] += rows - len(array)
        elif odd < 0.25:
            whole = npy(np.array([{}, {}], object))
            array = array[:0]
            skipped["wrong_type"] += 1
        elif odd < 0.3:
            whole = npy(np.array(3.0))
            array = array[:0]
            skipped["wrong_type"] += 1
        elif odd < 0.35:
            whole = whole[: rng.randrange(head)]
            array = array[:0]
            skipped["damaged"] += 1
        want.extend(array.astype(np.float64))
        (data / f"{file:05}.npy").write_bytes(whole)
    got, counted = read(
        data,
        'fields { name: "data" as: "x" dtype: "float64" }',
        'fields { name: "x" dtype: "float64" shape: 2 shape: 3 }',
        lanes=rng.choice((1, 3)),
    )
    assert counted == skipped, f"seed {seed}"
    assert np.array_equal(got["x"], want), f"seed {seed}"


@pytest.mark.parametrize("zipped", [False, True])
def test_strings_and_records_are_those_of_numpy(read: Read, tmp_path: Path, zipped: bool) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    data = tmp_path / "data"
    data.mkdir()
    want: list[tuple[int, str, bytes, list[float]]] = []
    for file in range(40 * DRAWS):
        order = rng.choice("<>")
        members: list[Any] = [
            ("id", f"{order}i{rng.choice((2, 4, 8))}"),
            ("t", f"{order}U{rng.randrange(1, 9)}"),
            ("b", f"S{rng.randrange(1, 9)}"),
            ("x", f"{order}f8", (3,)),
            ("pad", "u1"),
        ]
        rng.shuffle(members)
        array = np.zeros(rng.randrange(20), np.dtype(members, align=rng.random() < 0.5))
        for row in array:
            row["id"] = len(want)
            row["t"] = "".join(rng.choice("aé😀\0") for _ in range(rng.randrange(9)))
            row["b"] = bytes(rng.randrange(256) for _ in range(rng.randrange(9)))
            row["x"] = [rng.randrange(100) for _ in range(3)]
            want.append((int(row["id"]), str(row["t"]), bytes(row["b"]), row["x"].tolist()))
        if zipped:
            save: Any = rng.choice((np.savez, np.savez_compressed))
            matrix = np.asfortranarray(np.stack([array["x"], array["x"]], 1).astype(np.float64))
            save(data / f"{file:05}.npz", r=array, t=array["t"], m=matrix)
        else:
            (data / f"{file:05}.npy").write_bytes(npy(array))
    before = "r." if zipped else ""
    names = {"id": "int64", "t": "text", "b": "bytes"}
    batch = "".join(f'fields {{ name: "{before}{n}" dtype: "{d}" }}' for n, d in names.items())
    batch += f'fields {{ name: "{before}x" dtype: "float64" shape: 3 }}'
    if zipped:
        batch += """fields { name: "m" dtype: "float64" shape: 2 shape: 3 }
            fields { name: "t" dtype: "text" }"""
    got, counted = read(data, "", batch, lanes=rng.choice((1, 3)))
    assert not counted, (seed, counted)
    assert [int(i) for i in got[f"{before}id"]] == [row[0] for row in want], f"seed {seed}"
    assert got[f"{before}t"] == [row[1].encode() for row in want], f"seed {seed}"
    assert got[f"{before}b"] == [row[2] for row in want], f"seed {seed}"
    assert np.array_equal(got[f"{before}x"], [row[3] for row in want]), f"seed {seed}"
    if zipped:
        assert got["t"] == got["r.t"], f"seed {seed}"
        assert np.array_equal(got["m"], [[row[3]] * 2 for row in want]), f"seed {seed}"
