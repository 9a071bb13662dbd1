"""What Python's own readers make of a file of samples: json, csv, tarfile, gzip, bz2, lzma, NumPy,
pyarrow. For comparison with what a feed makes of it.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import dataclasses
import gzip
import io
import json
import lzma
import re
import subprocess
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

Sample = dict[str, Any]
MARK = b"\xef\xbb\xbf"
MARKS = (
    (b"PAR1", 0, "PARQUET"),
    (b"ARROW1", 0, "ARROW"),
    (b"FEA1", 0, "ARROW"),
    (b"\x93NUMPY", 0, "NPY"),
    (b"PK\x03\x04", 0, "NPZ"),
    (b"ustar", 257, "TAR"),
)
NAMES = {
    "JSONL": (".jsonl", ".jsonlines", ".ndjson"),
    "JSON": (".json",),
    "TEXT": (".txt", ".text"),
    "TAR": (".tar", ".tgz"),
    "NPY": (".npy",),
    "NPZ": (".npz",),
    "PARQUET": (".parquet", ".pq"),
    "ARROW": (".arrow", ".feather", ".ipc"),
    "CSV": (".csv", ".tsv"),
}
PACKED = (".gz", ".zst", ".bz2", ".xz")


@dataclasses.dataclass
class Reference:
    """What there is in a file.

    Attributes:
        format: As `format` of sample_source says it.
        samples: Those that can be had.
        faults: What is left out or damaged, a line for each; which may go with some samples.
    """

    format: str
    samples: list[Sample]
    faults: list[str]


def unpacked(data: bytes) -> tuple[bytes, list[str]]:
    """All that can be had of a packed file, and why not more."""
    if data.startswith(b"\x1f\x8b"):
        return _piecewise(gzip.GzipFile(fileobj=io.BytesIO(data)))
    if data.startswith(b"BZh"):
        return _piecewise(bz2.BZ2File(io.BytesIO(data)))
    if data.startswith(b"\xfd7zXZ\0"):
        return _piecewise(lzma.LZMAFile(io.BytesIO(data)))
    skippable = data[1:4] == b"\x2a\x4d\x18" and data[0] >> 4 == 5
    if data.startswith(b"\x28\xb5\x2f\xfd") or skippable:
        done = subprocess.run(["zstd", "-dcq", "--long=31"], input=data, capture_output=True)
        return done.stdout, [done.stderr.decode(errors="replace").strip()] * bool(done.returncode)
    return data, []


def _piecewise(stream: Any) -> tuple[bytes, list[str]]:
    whole = b""
    try:
        while piece := stream.read1(1 << 16):
            whole += piece
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        return whole, [f"{type(error).__name__}: {error}"]
    return whole, []


def format_of(name: str, head: bytes) -> str | None:
    """Of a file, by its first bytes, unpacked, and its name; None: it is none of data."""
    for mark, at, kind in MARKS:
        if head[at:].startswith(mark):
            return kind
    if head[:4] == b"\xff" * 4 and len(head) >= 8:
        return "ARROW"
    name = name.lower()
    for ending in PACKED:
        name = name.removesuffix(ending)
    for kind, endings in NAMES.items():
        if name.endswith(endings):
            return kind
    return None


def read(path: Path, format_: str | None = None) -> Reference | None:
    """None: the file is none of data."""
    raw = path.read_bytes()
    data, faults = unpacked(raw)
    kind = format_ or format_of(path.name, data)
    if kind is None:
        return None
    try:
        samples, more = READERS[kind](data)
    except Exception as error:  # whatever those readers raise
        samples, more = [], [f"{type(error).__name__}: {error}"]
    return Reference(kind, samples, faults + more)


def _text(data: bytes) -> tuple[list[Sample], list[str]]:
    samples, faults = [], []
    for line in _lines(data):
        try:
            samples.append({"text": line.decode()})
        except UnicodeDecodeError as error:
            faults.append(str(error))
    return samples, faults


def _lines(data: bytes) -> list[bytes]:
    lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    return [line for line in (one.removeprefix(MARK) for one in lines) if line]


def _object(value: Any) -> Sample:
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def _json_lines(data: bytes) -> tuple[list[Sample], list[str]]:
    samples, faults = [], []
    for line in _lines(data):
        if not line.strip(b" \t\r"):
            continue
        try:
            samples.append(_object(json.loads(line.decode())))
        except (ValueError, RecursionError) as error:
            faults.append(str(error))
    return samples, faults


def _json(data: bytes) -> tuple[list[Sample], list[str]]:
    if not data.removeprefix(MARK).strip(b" \t\r\n"):
        return [], []
    try:
        whole = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        samples, faults = _json_lines(data)
        return samples, faults or [str(error)]
    if isinstance(whole, dict):
        return [whole], []
    if not isinstance(whole, list):
        return [], ["no object"]
    samples = [one for one in whole if isinstance(one, dict)]
    return samples, ["no object"] * (len(whole) - len(samples))


def _tar(data: bytes) -> tuple[list[Sample], list[str]]:
    samples: list[Sample] = []
    faults: list[str] = []
    with (
        contextlib.suppress(tarfile.ReadError),  # which is raised for a member that is cut, too
        tarfile.open(fileobj=io.BytesIO(data), mode="r:", ignore_zeros=True) as tar,
    ):
        for member in tar:
            if member.isdir():
                continue
            directory, slash, base = member.name.rpartition("/")
            if not member.isfile() or "." not in base:
                faults.append(f"{member.name}: of no sample")
                continue
            name, _, field = base.partition(".")
            if not name:
                faults.append(f"{member.name}: of no sample")
                continue
            key = directory + slash + name
            try:
                content = tar.extractfile(member).read()  # type: ignore[union-attr]
            except tarfile.ReadError:
                faults.append(f"{member.name}: cut")
                continue
            if not samples or samples[-1]["__key__"] != key:
                samples.append({"__key__": key})
            samples[-1][field.lower()] = content
    return samples, faults


def _rows(columns: dict[str, Any], count: int) -> list[Sample]:
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


def _npy(data: bytes) -> tuple[list[Sample], list[str]]:
    array = np.load(io.BytesIO(data), allow_pickle=False)
    if array.dtype.names:
        return _rows({name: array[name] for name in array.dtype.names}, len(array)), []
    return _rows({"data": array}, len(array)), []


def _npz(data: bytes) -> tuple[list[Sample], list[str]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    counts = {len(column) for column in columns.values()}
    if len(counts) > 1:
        raise ValueError("arrays of several lengths")
    return _rows(columns, next(iter(counts), 0)), []


def _csv(data: bytes) -> tuple[list[Sample], list[str]]:
    text = data.decode("utf-8-sig")
    first = re.match(r'(?:[^"\r\n]|"[^"]*(?:"|$))*', text.lstrip("\r\n"))
    outside = re.sub(r'"[^"]*(?:"|$)', "", first[0] if first else "")
    delimiter = next((one for one in ",\t;|" if one in outside), ",")
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]
    if not rows:
        return [], []
    # A column without a name has its place.
    names = [name or f"f{i}" for i, name in enumerate(rows[0])]
    samples, faults = [], []
    for row in rows[1:]:
        if len(row) != len(names):
            faults.append(f"{len(row)} cells")
        else:
            samples.append(dict(zip(names, row, strict=True)))
    return samples, faults


def _parquet(data: bytes) -> tuple[list[Sample], list[str]]:
    import pyarrow.parquet as pq

    return pq.read_table(io.BytesIO(data)).to_pylist(), []


def _arrow(data: bytes) -> tuple[list[Sample], list[str]]:
    import pyarrow as pa
    import pyarrow.feather

    if data.startswith((b"ARROW1", b"FEA1")):
        return pa.feather.read_table(io.BytesIO(data)).to_pylist(), []
    with pa.ipc.open_stream(io.BytesIO(data)) as reader:
        return reader.read_all().to_pylist(), []


READERS = {
    "TEXT": _text,
    "JSONL": _json_lines,
    "JSON": _json,
    "TAR": _tar,
    "NPY": _npy,
    "NPZ": _npz,
    "CSV": _csv,
    "PARQUET": _parquet,
    "ARROW": _arrow,
}


# ---- what a feed has, beside that


def difference(format_: str, row: Sample, want: Sample) -> str:
    """Between a sample of a feed and the reference's; "": it is the same. A null is no field."""
    want = {name: value for name, value in want.items() if value is not None}
    if format_ == "CSV":
        # What stands for nothing is no field of a column of numbers.
        nothing = ("", "NA", "N/A", "n/a", "#N/A", "#NA", "NULL", "null", "None", "<NA>")
        want = {n: v for n, v in want.items() if n in row or v.strip(" \t") not in nothing}
    if set(row) != set(want):
        return f"fields {sorted(row)}, not {sorted(want)}"
    for name, value in want.items():
        if not _is_same(row[name], value):
            return f"{name} is {row[name]!r:.100}, not {value!r:.100}"
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        # Dates and times are whole numbers in their unit.
        return _plain(value.astype("i8").tolist() if value.dtype.kind in "mM" else value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return "NaN" if value != value else value


def _is_same(got: Any, want: Any) -> bool:
    if isinstance(want, (list, dict)) and isinstance(got, str):
        got = json.loads(got)
    if isinstance(want, str) and isinstance(got, (float, np.floating)):
        return bool(_plain(float(want)) == _plain(got))
    got, want = _plain(got), _plain(want)
    if got == want:
        return True
    if isinstance(want, int) and isinstance(got, str):
        return got == str(want)
    if isinstance(want, str) and isinstance(got, bytes):
        # Halves of surrogate pairs, and names of no UTF-8.
        return got in (
            want.encode("utf-8", "surrogatepass"),
            want.encode("utf-8", "surrogateescape"),
        )
    if isinstance(want, str) and isinstance(got, bool):
        return want.strip().lower() == str(got).lower()
    if isinstance(want, str) and not isinstance(got, str):
        return bool(int(want) == got)
    return False
