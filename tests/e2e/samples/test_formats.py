"""NumPy's zips of arrays and Parquet tables as samples, beside what NumPy and pyarrow read."""

from __future__ import annotations

import gzip
import io
import random
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed

from tests.support.feeds.feed_run import FeedRun
from tests.support.feeds.scenes import kill_a_worker

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

STAGES = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "source" sample_source {{
  input: "provider" threads: {readers} block_bytes: 65536 {source} }} }}
stages {{ name: "batches" sample_batcher {{
  input: "source" batch_size: 32 lineage: true {batch} }} }}
feed_output {{ slots: {slots} }}
{extra}
"""
OFTEN = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: 255 }"
ARRAYS = """
  fields { name: "x" dtype: "float32" shape: 3 }
  fields { name: "y" dtype: "int64" }"""
FIELDS = """
  fields { name: "id" dtype: "int64" } fields { name: "text" } fields { name: "raw" }
  fields { name: "vector" dtype: "float32" }"""
TABLE = """
  fields { name: "id" dtype: "int64" }
  fields { name: "text" dtype: "text" }
  fields { name: "raw" dtype: "bytes" }
  fields { name: "vector" dtype: "float32" shape: 3 }"""
MakeFormats = Callable[..., FeedRun]
Columns = dict[str, list[Any]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeFormats]:
    runs: list[FeedRun] = []

    def start(directory: Path, **settings: Any) -> FeedRun:
        values = {"feed": "formats", "pipeline": STAGES, "source": "", **settings}
        work = tmp_path / f"run{len(runs)}"
        work.mkdir()
        runs.append(FeedRun(work, directory, **values))
        return runs[-1].start()

    yield start
    for run in runs:
        run.close()


def columns_of(run: FeedRun, kills: int = 0) -> Columns:
    """What a trainer gets until the feed ends, column by column; workers are killed meanwhile."""
    rng = random.Random(kills)
    got: Columns = {}
    left = kills
    with ringfeed.attach(
        "formats", socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
    ) as feed:
        for batch in feed:
            for name in batch:
                if name.endswith("_offsets"):
                    continue
                rows = batch[name].tolist()
                if f"{name}_offsets" in batch:
                    ends, whole = batch[f"{name}_offsets"], batch[name].tobytes()
                    rows = [whole[ends[i] : ends[i + 1]] for i in range(batch.rows)]
                got.setdefault(name, []).extend(rows)
            batch.release()
            if left and kill_a_worker(run, rng):
                left -= 1
    assert run.wait() == 0, run.text()
    return got


def skipped(run: FeedRun) -> dict[str, str]:
    """By file name, why it or something of it was skipped."""
    found = re.findall(r"reason=(\w+) .* path=\S*/(\S+) offset=\d+: (.*)", run.text())
    return {name: f"{reason}: {text}" for reason, name, text in found}


def arrays(directory: Path, counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Files a.npz (stored), b.npz (deflated), c.npz, ... in turn."""
    directory.mkdir()
    rng = np.random.default_rng(1)
    x = rng.standard_normal((sum(counts), 3)).astype(np.float32)
    y = np.arange(sum(counts), dtype=np.int64)
    begin = 0
    for number, count in enumerate(counts):
        save: Any = np.savez_compressed if number % 2 else np.savez
        end = begin + count
        save(directory / f"{chr(97 + number)}.npz", x=x[begin:end], y=y[begin:end])
        begin = end
    return x, y


def table(count: int) -> Any:
    rng = np.random.default_rng(2)
    return pa.table(
        {
            "id": pa.array(range(count), pa.int32()),
            "text": [f"é{i}" * (i % 50) for i in range(count)],
            "raw": pa.array([bytes([i % 256]) * (i % 30) for i in range(count)], pa.binary()),
            "vector": pa.array(rng.standard_normal((count, 3)).tolist(), pa.list_(pa.float64())),
            "ragged": [list(range(i % 5)) for i in range(count)],
        }
    )


def test_arrays_come_row_by_row_whoever_dies(make: MakeFormats, tmp_path: Path) -> None:
    x, y = arrays(tmp_path / "data", [30000, 12000, 1, 0, 7])
    (tmp_path / "data" / "unequal.npz").touch()
    np.savez(tmp_path / "data" / "unequal.npz", x=x[:5], y=y[:4])
    run = make(tmp_path / "data", batch=ARRAYS)
    want = columns_of(run)
    assert want["y"] == y.tolist()
    assert np.array_equal(np.array(want["x"], np.float32), x)
    assert "array 'x' has 5 rows, array 'y' has 4" in skipped(run)["unequal.npz"]
    lineage = np.array(want["lineage"], np.uint64)
    assert lineage[:30000, 1].tolist() == list(range(30000)) and len(set(lineage[:, 0])) == 4
    for kills in (0, 12, 12):
        run = make(tmp_path / "data", batch=ARRAYS, readers=1 + kills // 6, slots=2, extra=OFTEN)
        assert columns_of(run, kills) == want


def test_fields_choose_and_convert_arrays(make: MakeFormats, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    y = np.arange(-2, 300)
    np.savez(data / "a.npz", y=y, names=np.array(["a", "b"]), f=y.astype(np.float16))
    np.savez(data / "b.npz", z=y)
    np.savez(data / "0.npz", y=y.astype(np.complex64), f=y)
    run = make(
        data,
        source="""fields { name: "y" as: "small" dtype: "uint8" }
                  fields { name: "f" dtype: "float64" }""",
        batch="""fields { name: "small" dtype: "uint8" } fields { name: "f" dtype: "float64" }""",
    )
    got = columns_of(run)
    assert got["small"] == list(range(256)) and got["f"] == [float(i) for i in range(256)]
    why = skipped(run)
    assert "array 'y' in row 286: field 'small' has a number that uint8 cannot hold" in why["a.npz"]
    assert "skipped_missing_field: it has no array 'y'; it has 'z'" in why["b.npz"]
    assert "skipped_wrong_type: array 'y': its elements are complex64, which" in why["0.npz"]
    # Rows, and files for each of their parts.
    assert "skipped_missing_field=1, skipped_wrong_type=47" in run.text()


def test_damaged_zips_are_skipped_and_named(make: MakeFormats, tmp_path: Path) -> None:
    x, y = arrays(tmp_path / "good", [500, 500])
    stored = (tmp_path / "good" / "a.npz").read_bytes()
    deflated = (tmp_path / "good" / "b.npz").read_bytes()
    flipped = bytearray(deflated)
    flipped[len(deflated) // 3] ^= 0x10
    locked = bytearray(stored)
    at = stored.index(b"PK\x01\x02")
    locked[at + 8] |= 1
    moved = bytearray(stored)
    moved[at + 42 : at + 46] = struct.pack("<I", 1)
    made = tmp_path / "made"
    made.mkdir()
    with zipfile.ZipFile(made / "lzma.npz", "w", zipfile.ZIP_LZMA) as packed:
        packed.writestr("x.npy", stored)
    with zipfile.ZipFile(made / "twice.npz", "w") as twice, pytest.warns(UserWarning):
        for _ in range(2):
            twice.writestr("x.npy", b"")
    with zipfile.ZipFile(made / "other.npz", "w") as other:
        other.writestr("x.npy", b"no array")
    np.savez(made / "scalar.npz", x=np.float32(1), y=y)
    np.savez(made / "object.npz", x=np.array([{}], object))
    np.savez(made / "empty.npz")
    damaged = {
        "cut": (stored[:-100], "has no directory at its end"),
        "none": (b"", "has no directory at its end"),
        "text": (b"no zip at all\n" * 10, "has no directory at its end"),
        "flipped": (bytes(flipped), "array '"),
        "locked": (bytes(locked), "array 'x': it is encrypted"),
        "moved": (bytes(moved), "array 'x': its head is not where the directory says"),
    }
    for name, reason in {
        "lzma": "it is packed by method 14",
        "twice": "it has two arrays 'x'",
        "other": "array 'x': it is no .npy file",
        "scalar": "array 'x': it is a single number and has no rows",
        "object": "array 'x': its elements are |O",
        "empty": "it has no arrays",
    }.items():
        damaged[name] = ((made / f"{name}.npz").read_bytes(), reason)
    # A feed for each two: of what repeats, the log has the first and the second.
    names = sorted(damaged)
    for two in zip(names[::2], names[1::2], strict=True):
        data = tmp_path / "-".join(two)
        data.mkdir()
        for name in two:
            (data / f"{name}.npz").write_bytes(damaged[name][0])
        (data / "zz.npz").write_bytes(stored)
        run = make(data, batch=ARRAYS)
        assert columns_of(run)["y"][-500:] == y[:500].tolist()
        why = skipped(run)
        for name in two:
            text = why[f"{name}.npz"]
            reason = "wrong_type" if name in ("object", "scalar") else "damaged"
            assert text.startswith(f"skipped_{reason}: ") and damaged[name][1] in text, (name, text)


def test_tables_come_row_by_row_whoever_dies(make: MakeFormats, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = table(9000)
    pq.write_table(rows.slice(0, 6000), data / "a.parquet", row_group_size=700)
    pq.write_table(rows.slice(6000), data / "b.parquet", compression="zstd", row_group_size=5000)
    run = make(data, batch=TABLE, source=FIELDS)
    want = columns_of(run)
    assert want["id"] == list(range(9000))
    assert want["text"] == [text.encode() for text in rows["text"].to_pylist()]
    assert want["raw"] == rows["raw"].to_pylist()
    assert want["vector"] == np.array(rows["vector"].to_pylist(), np.float32).tolist()
    assert [row[1] for row in want["lineage"]] == [*range(6000), *range(3000)]
    for kills in (0, 12, 12):
        run = make(
            data,
            batch=TABLE,
            source=FIELDS,
            readers=1 + kills // 6,
            slots=2,
            extra=OFTEN,
        )
        assert columns_of(run, kills) == want


def test_columns_of_every_type(make: MakeFormats, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = pa.table(
        {
            "flag": [True, False],
            "small": pa.array([1, 2], pa.uint8()),
            "half": pa.array(np.array([0.5, -2], np.float16)),
            "day": pa.array([3, 4], pa.date32()),
            "word": pa.array(["x", "y"]).dictionary_encode(),
            "large": pa.array(["p", "q"], pa.large_string()),
            "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
            "matrix": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
            "truths": [[True, False], [False, False]],
            "image": [{"bytes": b"\xff\xd8", "path": "i.jpg"}, {"bytes": b"\xff", "path": "j"}],
            "words": [["a", 'b"\n'], []],
            "pairs": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "price": pa.array([1, 2], pa.decimal128(5, 2)),
        }
    )
    pq.write_table(rows, data / "a.bin")
    names = """flag:bool small:uint8 half:float16 day:int32 word:text large:text fixed:bytes
        image.bytes:bytes image.path:text words:text pairs:text price:text"""
    batch = "".join(
        'fields {{ name: "{}" dtype: "{}" }}\n'.format(*field.split(":")) for field in names.split()
    )
    batch += """fields { name: "matrix" dtype: "int64" shape: 2 shape: 2 }
                fields { name: "truths" dtype: "bool" shape: 2 }"""
    got = columns_of(make(data, batch=batch, source="format: PARQUET"))
    got.pop("lineage")
    assert got == {
        "flag": [True, False],
        "small": [1, 2],
        "half": [0.5, -2.0],
        "day": [3, 4],
        "word": [b"x", b"y"],
        "large": [b"p", b"q"],
        "fixed": [b"ab", b"cd"],
        "image.bytes": [b"\xff\xd8", b"\xff"],
        "image.path": [b"i.jpg", b"j"],
        "words": [b'["a","b\\"\\u000a"]', b"[]"],
        "pairs": [b'[{"key":"k","value":1}]', b"[]"],
        "price": [b"1.00", b"2.00"],
        "matrix": rows["matrix"].to_pylist(),
        "truths": rows["truths"].to_pylist(),
    }


def test_nulls_and_ragged_lists_are_told_apart(make: MakeFormats, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = pa.table(
        {
            "id": [1, None, 3, 4, 5, 6],
            "list": [[1, 2], [1, 2], None, [3], [4, None], [5, 6]],
        }
    )
    pq.write_table(rows, data / "a.parquet")
    pq.write_table(pa.table({"id": ["text"]}), data / "0.parquet")
    pq.write_table(pa.table({"id": ["text"], "list": [[1, 2]]}), data / "c.parquet")
    run = make(
        data,
        source="""format: PARQUET fields { name: "id" dtype: "float32" }
                  fields { name: "list" as: "pair" dtype: "int16" }""",
        batch="""fields { name: "id" dtype: "float32" }
                 fields { name: "pair" dtype: "int16" shape: 2 }""",
    )
    got = columns_of(run)
    assert got["id"] == [1.0, 6.0] and got["pair"] == [[1, 2], [5, 6]]
    for text in (
        "column 'id' is null",
        "it has no column 'list'; it has id",
        "column 'list' is text, which cannot be int16",
        "column 'id' is text, which cannot be float32",
    ):
        assert text in run.text()
    assert "skipped_missing_field=3, skipped_wrong_type=2" in run.text()
    assert "stage=batches reason=skipped_wrong_shape" in run.text()


def test_damaged_tables_are_skipped_and_named(make: MakeFormats, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = table(4000)
    pq.write_table(rows, data / "a.parquet", row_group_size=1000, compression="none")
    good = (data / "a.parquet").read_bytes()
    (data / "cut.parquet").write_bytes(good[:-50])
    (data / "none.parquet").write_bytes(b"")
    (data / "text.parquet").write_bytes(b"no table\n" * 50)
    second = pq.read_metadata(data / "a.parquet").row_group(1).column(3)
    hurt = bytearray(good)
    begin = second.dictionary_page_offset or second.data_page_offset
    for at in range(begin, begin + 40):
        hurt[at] ^= 0xFF
    (data / "hurt.parquet").write_bytes(hurt)
    run = make(data, batch=TABLE, source="format: PARQUET" + FIELDS)
    got = columns_of(run)
    assert got["id"][:4000] == list(range(4000))
    left = got["id"][4000:]
    assert left == [i for i in range(4000) if not 1000 <= i < 2000]
    why = skipped(run)
    # The third of them, an empty file, is counted alone; of the row group each row is.
    for name in ("cut", "text"):
        assert "skipped_damaged" in why[f"{name}.parquet"]
    assert "skipped_damaged=1003" in run.text()
    assert "row group 1 from row 1000 on" in why["hurt.parquet"]
    again = make(
        data, batch=TABLE, source="format: PARQUET" + FIELDS, readers=3, slots=2, extra=OFTEN
    )
    assert columns_of(again, 8) == got


def test_lineage_names_the_file_and_the_place(make: MakeFormats, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    lines = [f'{{"id": {i}, "pad": "{"x" * (i % 90)}"}}\n' for i in range(400)]
    (data / "a.jsonl").write_text("\n".join(lines[:200]))  # every other line is empty
    (data / "deep" / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines[200:]).encode()))
    with tarfile.open(data / "c.tar", "w") as shard:
        for i in range(400, 450):
            info = tarfile.TarInfo(f"{i}.id")
            info.size = 3
            shard.addfile(info, io.BytesIO(str(i).encode()))
    np.savez(data / "d.npz", id=np.arange(450, 500))
    (data / "e.csv").write_text("id,pad\n" + "".join(f'{i},"\n"\n' for i in range(500, 520)))
    with pa.OSFile(str(data / "f"), "wb") as file:
        with pa.ipc.new_file(file, pa.schema({"id": pa.int64()})) as sink:
            sink.write_table(pa.table({"id": list(range(520, 530))}))
    (data / "f").rename(data / "f.arrow")
    run = make(
        data,
        source='fields { name: "id" dtype: "int64" }',
        batch='fields { name: "id" dtype: "int64" }',
    )
    got = columns_of(run)
    assert sorted(got["id"]) == list(range(530))
    origins = ringfeed.lineage(np.array(got["lineage"], np.uint64), data)
    for number, origin in zip(got["id"], origins, strict=True):
        if number < 200:
            want = f"a.jsonl, line {2 * number + 1}"
        elif number < 400:
            want = f"deep/b.jsonl.gz, line {number - 199}"
        elif number < 450:
            want = f"c.tar, member {number}.id"
        elif number < 500:
            want = f"d.npz, row {number - 450}"
        elif number < 520:
            want = f"e.csv, row {number - 500}"
        else:
            want = f"f.arrow, row {number - 520}"
        assert str(origin) == f"{data}/{want}"


def test_a_whole_file_is_a_sample(make: MakeFormats, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "cat").mkdir(parents=True)
    whole = {
        "d": b"",
        "e.bin": bytes(range(256)) * 999,
        "cat/b.jpg": b"\xff\xd8\x00",
        "cat/c.json.gz": gzip.compress(b"{}"),
    }
    for name, content in whole.items():
        (data / name).write_bytes(content)
    names = list(whole)
    batch = """fields { name: "data" dtype: "bytes" } fields { name: "path" dtype: "text" }
               fields { name: "folder" dtype: "text" }"""
    run = make(data, source="format: WHOLE_FILE", batch=batch, readers=2)
    got = columns_of(run)
    assert got["data"] == list(whole.values())
    assert got["path"] == [f"{data}/{name}".encode() for name in names]
    assert got["folder"] == [b"data", b"data", b"cat", b"cat"]
    lineage = np.array(got["lineage"], np.uint64)
    assert [str(one) for one in ringfeed.lineage(lineage, data, format="WHOLE_FILE")] == [
        f"{data}/{name}" for name in names
    ]
    # Checksums of what is packed are nobody's business here; a field that no file has is one.
    fields = """format: WHOLE_FILE verify: BEFORE fields { name: "data" as: "x" }
                fields { name: "label" dtype: "int64" default: "7" }"""
    (data / "cat" / "c.json.gz").write_bytes(whole["cat/c.json.gz"][:-1])
    batch = 'fields { name: "x" dtype: "bytes" } fields { name: "label" dtype: "int64" }'
    got = columns_of(make(data, source=fields, batch=batch))
    assert got["x"][3] == whole["cat/c.json.gz"][:-1] and got["label"] == [7, 7, 7, 7]


def test_text_that_is_no_utf_8_costs_its_row_alone(make: MakeFormats, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    texts = pa.array([b"one", b"\xff", b"three"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"text": texts}), data / "a.parquet")
    for source, want in (
        ("format: PARQUET", [b"one", b"three"]),
        ('format: PARQUET fields { name: "text" dtype: "bytes" }', [b"one", b"\xff", b"three"]),
    ):
        dtype = "bytes" if "bytes" in source else "text"
        run = make(data, source=source, batch=f'fields {{ name: "text" dtype: "{dtype}" }}')
        assert columns_of(run)["text"] == want
