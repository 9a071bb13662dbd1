"""Tables as text and as Arrow's own files, drawn, in a real feed beside Python's csv and pyarrow:
each row is equal, or counted by its reason. RINGFEED_DRAWS: so many times as many files.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.samples.test_drawn_values import DRAWS, Read, read

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
pq = pytest.importorskip("pyarrow.parquet")

__all__ = ["read"]
PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda plain: plain,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
WORDS = (
    "a",
    "",
    "é 😀",
    'say "so"',
    "a,b",
    "a;b",
    "two\nlines",
    "\ttab",
    "1984",
    " x ",
    "''",
    "\r\n",
)


NAME = "w,o\r\nrd"  # of a column


def fields(**types: str) -> str:
    return "".join(
        f'fields {{ name: "{name}" dtype: "{dtype}" }} ' for name, dtype in types.items()
    )


def text_of(rows: list[list[str]], draw: random.Random, delimiter: str) -> str:
    out = io.StringIO()
    end = draw.choice(["\n", "\r\n", "\r"])
    writer = csv.writer(
        out,
        delimiter=delimiter,
        quoting=draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
        lineterminator=end,
    )
    for row in rows:
        # Empty lines are no rows, before the names neither.
        out.write(end * max(0, draw.randrange(-6, 3)))
        writer.writerow(row)
    out.write(end * max(0, draw.randrange(-6, 3)))
    return out.getvalue()


@pytest.mark.parametrize("seed", range(6 * DRAWS))
def test_text_is_read_as_csv_reads_it(read: Read, tmp_path: Path, seed: int) -> None:
    """Rows of another length are counted; a cell that is no number, too."""
    draw = random.Random(seed)
    data = tmp_path / "data"
    data.mkdir()
    want: dict[str, list[Any]] = {"id": [], "word": [], "real": []}
    short = wrong = 0
    # A run without any row fails.
    (data / "last.csv").write_text(f'real,"{NAME}",id\n0.25,last,8\n', newline="")
    for number in range(draw.randint(1, 5)):
        delimiter = draw.choice([",", ";", "\t", "|"])
        rows = [[NAME, "id", "real"]]
        for _ in range(draw.choice([0, 1, 3, 200, 3000])):
            # One that begins with a delimiter of the header's kind is quoted by csv.
            rows.append(
                [
                    draw.choice(WORDS),
                    (
                        str(draw.randrange(-(2**63), 2**64))
                        if draw.random() < 0.01
                        else str(draw.randrange(99))
                    ),
                    draw.choice(["0.5", "-1e300", "1", "+2.5", "nan", "inf", " 7 ", "1e-400"]),
                ]
            )
            if draw.random() < 0.01:
                draw.choice([rows[-1].pop, lambda last=rows[-1]: last.append("more")])()
            elif draw.random() < 0.01:
                rows[-1][1] = draw.choice(["12a", "0x10", "1,5", "-", "twelve"])
            elif draw.random() < 0.01:
                rows[-1][2] = draw.choice(["half", "1.5.2", "--1"])
        text = text_of(rows, draw, delimiter)
        if draw.random() < 0.3:
            text = text.rstrip("\r\n")
        content = draw.choice(["", "\ufeff"]) + text
        ending = draw.choice(list(PACKINGS))
        path = data / f"{number}{'.tsv' if delimiter == chr(9) else '.csv'}{ending}"
        path.write_bytes(PACKINGS[ending](content.encode()))
        read_by_csv = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        for row in [row for row in read_by_csv if row][1:]:
            if len(row) != 3:
                short += 1
                continue
            try:
                whole, real = int(row[1]), float(row[2])
                if not -(2**63) <= whole < 2**63:
                    raise ValueError
            except ValueError:
                wrong += 1
                continue
            want["word"].append(row[0].encode())
            want["id"].append(whole)
            want["real"].append(real)
    for name, value in (("word", b"last"), ("id", 8), ("real", 0.25)):
        want[name].append(value)
    types = fields(id="int64", real="float64")
    source = types + 'fields { name: "w,o\\r\\nrd" as: "word" dtype: "text" }'
    got, skipped = read(data, source, types + fields(word="text"), lanes=draw.choice([1, 3]))
    for name in ("word", "id"):
        assert list(got.get(name, [])) == want[name], name
    assert repr([float(value) for value in got.get("real", [])]) == repr(want["real"])
    assert (skipped["damaged"], skipped["wrong_type"]) == (short, wrong)


def test_types_are_told_from_the_first_rows(read: Read, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.csv").write_text(
        "whole,real,truth,word,late\n1,2,true,1984,z\n-2,0.5,False,x,\n,,,,\n3,NA,True,,7\n"
    )
    types = fields(whole="int64", real="float64", word="text", late="text")
    got, skipped = read(data, "", types)
    assert got["whole"] == [1, -2] and got["real"] == [2.0, 0.5]
    assert got["word"] == [b"1984", b"x"] and got["late"] == [b"z", b""]
    assert skipped["missing_field"] == 2
    got, _ = read(data, "", fields(word="text", late="text"))
    assert got["word"] == [b"1984", b"x", b"", b""] and got["late"] == [b"z", b"", b"", b"7"]
    # Whole numbers that no integer holds stay as they are; of a column without a name the place is one.
    (data / "a.csv").write_text(f",n,x,\n{10**22},7,1.5,a\n{10**22 + 1},8,{10**22},b\n")
    got, skipped = read(data, "", fields(f0="text", n="int64", x="float64", f3="text"))
    assert got["f0"] == [b"%d" % 10**22, b"%d" % (10**22 + 1)] and got["f3"] == [b"a", b"b"]
    assert got["n"] == [7, 8] and got["x"] == [1.5, 1e22] and not +skipped
    (data / "a.csv").unlink()
    pq.write_table(pa.table([[1, 2], ["a", "b"]], names=["", "t"]), data / "b.parquet")
    got, _ = read(data, "", fields(f0="int64", t="text"))
    assert got["f0"] == [1, 2] and got["t"] == [b"a", b"b"]
    (data / "b.parquet").unlink()
    # What does not fit is named with what helps.
    lines = ["id"] + [str(i) for i in range(300_000)] + ["three", "4.5"]
    (data / "a.csv").write_text("\n".join(lines))
    got, skipped = read(data, "", fields(id="int64"))
    assert got["id"] == list(range(300_000)) and skipped["wrong_type"] == 2


def test_settings_of_text(read: Read, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.csv").write_text("1:2\n3:4\n")
    types = fields(f0="int64", f1="int64")
    got, _ = read(data, 'csv_delimiter: ":" csv_names: false', types)
    assert got == {"f0": [1, 3], "f1": [2, 4]}
    # Of two columns of one name; a long row.
    long = "x" * (3 << 20)
    (data / "a.csv").write_text(f"id,id,t\n1,2,{long}\n3,4,y\n")
    which = 'queue_bytes: 33554432 fields { name: "id#2" as: "id" } fields { name: "t" }'
    got, _ = read(
        data, which, fields(id="int64") + 'fields { name: "t" dtype: "text" bytes_max: 8388608 }'
    )
    assert got["id"] == [2, 4] and got["t"] == [long.encode(), b"y"]
    # No row, no name, no UTF-8.
    for name, content in (("b.csv", b""), ("c.csv", b"\n\n"), ("d.csv", b"id,t\n")):
        (data / name).write_bytes(content)
    (data / "e.csv").write_bytes("id,t\n1,a\n".encode("utf-16"))
    (data / "f.csv").write_bytes(b"id,t\n7,\xff\n8,z\n")
    (data / "a.csv").unlink()
    got, skipped = read(data, "", fields(id="int64", t="text"))
    assert got["id"] == [8] and skipped["wrong_type"] == 2


def test_a_damaged_packed_text_is_counted(read: Read, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    plain = "id\n" + "".join(f"{i}\n" for i in range(200_000))
    whole = bytearray(gzip.compress(plain.encode()))
    whole[-5] ^= 1  # of the length
    (data / "a.csv.gz").write_bytes(whole)
    got, skipped = read(data, "", fields(id="int64"))
    assert skipped["damaged"] == 1 and got["id"] == list(range(len(got["id"])))
    # A row that is cut in its quotes is none.
    noise = random.Random(3)
    cells = "".join(f'{i},"{noise.random()}\n{noise.random()}\nend"\n' for i in range(999))
    packed = gzip.compress(("id,t\n" + cells).encode())
    cut = tmp_path / "cut"
    cut.mkdir()
    for at in range(200, len(packed), len(packed) // 9):
        (cut / f"{at}.csv.gz").write_bytes(packed[:at])
    got, skipped = read(cut, "", fields(id="int64", t="text"))
    assert {text[-4:] for text in got["t"]} == {b"\nend"}
    assert skipped["damaged"] == len(list(cut.iterdir()))
    # Nor is a file that is cut in the names of its columns, or right behind them, an empty one.
    names = tmp_path / "names"
    names.mkdir()
    packed = gzip.compress(b"id,t\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(20)))
    for at in range(12, len(packed)):
        (names / f"{at:03}.csv.gz").write_bytes(packed[:at])
    got, skipped = read(names, "", fields(id="int64", t="int64"))
    assert skipped["damaged"] == len(list(names.iterdir()))
    (data / "b.csv").write_text("id\n-1\n")
    got, skipped = read(data, "verify: BEFORE", fields(id="int64"))
    assert skipped["damaged"] == 1 and got["id"] == [-1]


@pytest.mark.parametrize("seed", range(6 * DRAWS))
def test_arrow_files_are_read_as_pyarrow_reads_them(read: Read, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    data = tmp_path / "data"
    data.mkdir()
    want: dict[str, list[Any]] = {"id": [], "word": [], "list": [], "in.x": []}
    for number in range(draw.randint(2, 5)):
        count = draw.choice([0, 1, 7, 5000]) if number else 3
        words = [draw.choice(WORDS) for _ in range(count)]
        table = pa.table(
            {
                "id": pa.array(range(count), draw.choice([pa.int64(), pa.int16()])),
                "word": draw.choice(
                    [pa.array(words), pa.array(words, pa.large_string()), pa.array(words).dictionary_encode()]
                ) if words else pa.array(words, pa.string()),
                "list": pa.array([[i, -i] for i in range(count)], pa.list_(pa.float32())),
                "in": pa.array([{"x": i, "y": None} for i in range(count)], pa.struct({"x": pa.int64(), "y": pa.int8()})),
            }
        )  # fmt: skip
        kind = draw.choice(["file", "stream", "feather", "parquet"])
        path = data / f"{number}.{'parquet' if kind == 'parquet' else 'arrow'}"
        if kind == "feather":
            feather.write_feather(
                table,
                str(path),
                compression=draw.choice(["zstd", "lz4", "uncompressed"]),
                chunksize=999,
            )
        elif kind == "parquet":
            pq.write_table(table, path, row_group_size=999)
        else:
            start = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
            with pa.OSFile(str(path), "wb") as file, start(file, table.schema) as sink:
                sink.write_table(table, max_chunksize=draw.choice([100, 2000]))
        want["id"] += table["id"].to_pylist()
        want["word"] += [word.encode() for word in words]
        want["list"] += table["list"].to_pylist()
        want["in.x"] += list(range(count))
    batch = fields(id="int64", word="text") + 'fields { name: "list" dtype: "float32" shape: 2 }'
    batch += 'fields { name: "in.x" dtype: "int64" }'
    got, skipped = read(data, "", batch, lanes=draw.choice([1, 3]))
    assert {
        name: [list(v) if name == "list" else v for v in got.get(name, [])] for name in want
    } == want
    assert not +skipped


def test_damaged_arrow_files_are_counted(read: Read, tmp_path: Path) -> None:
    """Whatever is changed: rows that come are of the file, and what is lost is counted."""
    draw = random.Random(7)
    table = pa.table({"id": list(range(3000)), "word": [f"w{i}" for i in range(3000)]})
    for kind in ("file", "stream"):
        sink = io.BytesIO()
        start = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with start(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=500)
        whole = sink.getvalue()
        data = tmp_path / kind
        data.mkdir()
        (data / "good.arrow").write_bytes(whole)
        for number in range(12):
            damaged = bytearray(whole)
            for _ in range(draw.choice([1, 8])):
                damaged[draw.randrange(8, len(damaged))] ^= draw.randrange(1, 256)
            (data / f"damaged{number}.arrow").write_bytes(
                damaged[: draw.choice([len(damaged), draw.randrange(9, len(damaged))])]
            )
        got, _ = read(data, "", fields(id="int64", word="text"))
        assert len(got["id"]) >= 3000
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.feather").write_bytes(b"FEA1" + bytes(64))
    (tmp_path / "old" / "b.csv").write_text("id\n1\n")
    _, skipped = read(tmp_path / "old", "", fields(id="int64"))
    assert skipped["wrong_type"] == 1
