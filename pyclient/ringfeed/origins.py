"""Where the rows of a batch came from: from ``batch["lineage"]`` to files and places in them."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import importlib
import json
import lzma
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from .errors import InvalidRequest

_MASK = (1 << 64) - 1
# As workers/samples/sample_file.cc has them.
_MARKS = (
    *((b"PAR1", 0, "PARQUET"), (b"\x93NUMPY", 0, "NPY")),
    *((b"ARROW1", 0, "ARROW"), (b"FEA1", 0, "ARROW")),
    *((b"PK\x03\x04", 0, "NPZ"), (b"ustar", 257, "TAR")),
)
# Formats whose places are rows: the files need not be read.
_ROWS = {
    **{".npz": "NPZ", ".parquet": "PARQUET", ".pq": "PARQUET", ".csv": "CSV", ".tsv": "CSV"},
    **{".arrow": "ARROW", ".feather": "ARROW", ".ipc": "ARROW"},
}
_OTHERS = ((".tar", "TAR"), (".tgz", "TAR"), (".npy", "NPY"))
_HEAD_BYTES = 64 * 1024
_FORMATS = ("JSONL", "TEXT", "TAR", "NPY", "NPZ", "PARQUET", "JSON", "ARROW", "CSV", "WHOLE_FILE")
_READ_BYTES = 1 << 20
_HEADER_BYTES = 1 << 20  # as workers/io/npy_file.h has it


@dataclass(frozen=True)
class Origin:
    """A place in a file, from which a ``sample_source`` has made a sample.

    ``str()`` of it is for people: ``/data/a.jsonl, line 17``.
    """

    path: str
    """The file."""
    place: int
    """As the lineage says it: of lines, tars and ``.npy`` files the byte of the file as it is
    unpacked; of ``.npz`` files and tables the row, from 0."""
    unit: str
    """What ``number`` counts: ``"line"``, from 1; ``"row"``, from 0; ``"sample"`` of a tar,
    ``"element"`` of a document of JSON and a whole ``"file"`` have none."""
    number: int | None
    """Which line or row; None: the file cannot be read now, or does not have the place any more."""
    member: str | None = None
    """Of a tar: the name of the first member of the sample; None as above."""

    def __str__(self) -> str:
        if self.unit == "file":
            return self.path
        if self.unit == "sample" and self.member is not None:
            return f"{self.path}, member {self.member}"
        if self.number is not None:
            return f"{self.path}, {self.unit} {self.number}"
        return f"{self.path}, byte {self.place}"


def lineage(
    rows: Any,
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: str | None = None,
) -> list[Origin | None]:
    """Say of rows of a batch which file each came from, and where in it that is.

    The lineage of a sample of ``sample_source`` is a hash of the file's path, and a place in it.
    So the paths must be given; a feed need not run. Files are opened only to count lines and to
    name members: once for all rows of a file, as far as the last of these.

    Args:
        rows: ``batch["lineage"]`` (``sample_batcher`` with ``lineage: true``), uint64 [rows, 2], or
            some of its rows; or a text or texts as logs and ``ringfeed.stage`` write them,
            ``"8f0c…:456"``.
        paths: Files, and directories of files at any depth, as the feed's configuration names them.
        format: As the stage's ``format``, such as ``"JSONL"``; None: each file says it, as it says
            it to the stage.
    Returns:
        One for each row, in their order; None: the row came from none of these files.
    Raises:
        InvalidRequest: The rows are no lineage, or there is no such format.
    Source: workers/samples/sample_source.cc gives each sample its lineage.
    """
    if format is not None and format not in _FORMATS:
        raise InvalidRequest(f"format is {format!r}; give one of {', '.join(_FORMATS)}")
    wanted = _pairs(rows)
    found = _find({identity for identity, _ in wanted}, paths)
    places: dict[str, set[int]] = {}
    for identity, place in wanted:
        if identity in found:
            places.setdefault(found[identity], set()).add(place)
    origins: dict[tuple[str, int], Origin] = {}
    for path, some in places.items():
        for origin in _origins(path, format or _format_of(path), sorted(some)):
            origins[path, origin.place] = origin
    return [origins.get((found.get(identity, ""), place)) for identity, place in wanted]


def _pairs(rows: Any) -> list[tuple[int, int]]:
    if isinstance(rows, str):
        rows = [rows]
    if not isinstance(rows, np.ndarray) and all(isinstance(row, str) for row in rows):
        try:
            texts = [row.split(":") for row in rows]
            return [(int(identity, 16), int(place)) for identity, place in texts]
        except ValueError as error:
            raise InvalidRequest(
                "a lineage is 16 hexadecimal digits, a colon and a number"
            ) from error
    array = np.asarray(rows)
    if array.dtype != np.uint64 and array.size:
        try:
            array = np.array(rows, dtype=np.uint64)
        except (OverflowError, TypeError, ValueError) as error:
            raise InvalidRequest("lineage is an array of uint64 [rows, 2]") from error
    if array.ndim == 1 and array.size == 2:
        array = array.reshape(1, 2)
    if array.size and (array.ndim != 2 or array.shape[1] != 2):
        raise InvalidRequest(f"lineage has the shape {list(array.shape)}; it must be [rows, 2]")
    return [(int(row[0]), int(row[1])) for row in array]


def _identity(path: str) -> int:
    """As mix(std::string_view) of ringfeed/worker/random.h has it."""
    value = 0xCBF29CE484222325
    for byte in os.fsencode(path):
        value = (value ^ byte) * 0x100000001B3 & _MASK
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def _files(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    given: Sequence[str | os.PathLike[str]] = (
        [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    )
    for one in given:
        path = os.fspath(one)
        if not os.path.isdir(path):
            yield path
            continue
        for directory, _, names in os.walk(path, followlinks=True):
            for name in names:
                yield os.path.join(directory, name)


def _find(
    identities: set[int], paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
) -> dict[int, str]:
    found: dict[int, str] = {}
    for path in _files(paths):
        # A feed makes the paths of its configuration absolute.
        for name in {path, os.path.abspath(path)}:
            identity = _identity(name)
            if identity in identities:
                found[identity] = name
        if len(found) == len(identities):
            break
    return found


def _format_of(path: str) -> str:
    """By its bytes, or by its name; lines of JSON and of text are looked up in the same way."""
    head = b""
    with contextlib.suppress(Exception), _unpacked(path) as file:  # as _origins() has it
        head = b"".join(_pieces(file, _HEAD_BYTES))[:_HEAD_BYTES]
    for mark, at, kind in _MARKS:
        if head.startswith(mark, at):
            return kind
    if head.startswith(b"\xff\xff\xff\xff") and head[7:8] < b"\x10":  # the bytes of a schema
        return "ARROW"
    name = path.lower()
    for packed in (".gz", ".zst", ".bz2", ".xz"):
        name = name.removesuffix(packed)
    if name.endswith(".json") and _is_document(head):
        return "JSON"
    kinds = (*_ROWS.items(), *_OTHERS)
    return next((kind for ending, kind in kinds if name.endswith(ending)), "TEXT")


def _is_document(head: bytes) -> bool:
    first, found, _ = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n").partition(b"\n")
    if not first.startswith(b"{") or not found:
        return first.startswith(b"[")
    try:
        json.loads(first)
    except ValueError:
        return True
    return False


def _origins(path: str, kind: str, places: list[int]) -> list[Origin]:
    if kind in _ROWS.values():
        return [Origin(path, place, "row", place) for place in places]
    if kind == "WHOLE_FILE":
        return [Origin(path, place, "file", None) for place in places]
    if kind == "JSON":
        return [Origin(path, place, "element", None) for place in places]
    look: dict[str, Callable[[str, list[int]], list[Origin]]] = {"TAR": _members, "NPY": _rows}
    try:
        return look.get(kind, _lines)(path, places)
    except Exception:  # of a damaged file: each packing's reader and tarfile raise their own
        unit = {"TAR": "sample", "NPY": "row"}.get(kind, "line")
        return [Origin(path, place, unit, None) for place in places]


def _unpacked(path: str) -> BinaryIO:
    file: Any = open(path, "rb")  # noqa: SIM115: the caller closes it
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(file)  # type: ignore[return-value]
    if magic == b"\xfd7zX":
        return lzma.LZMAFile(file)  # type: ignore[return-value]
    skippable = magic[1:] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50
    if magic == b"\x28\xb5\x2f\xfd" or skippable:
        unpacked: BinaryIO
        try:
            unpacked = importlib.import_module("compression.zstd").ZstdFile(file)
        except ImportError:  # before Python 3.14
            zstandard = importlib.import_module("zstandard")
            unpacked = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return unpacked
    plain: BinaryIO = file
    return plain


def _pieces(file: BinaryIO, least: int | None = None) -> Iterator[bytes]:
    """What there is of a file, as far as it can be read, or until there is so much."""
    given = 0
    while least is None or given < least:
        try:
            piece = (getattr(file, "read1", None) or file.read)(_READ_BYTES)
        except Exception:  # what is damaged, or rubbish behind the last member
            return
        if not piece:
            return
        given += len(piece)
        yield piece


def _lines(path: str, places: list[int]) -> list[Origin]:
    origins: list[Origin] = []
    with _unpacked(path) as file:
        line, begin, last = 1, 0, b"\n"
        pieces = _pieces(file)
        block = next(pieces, b"")
        for place in places:
            while block and place > begin + len(block):
                line += block.count(b"\n")
                begin += len(block)
                last = block[-1:]
                block = next(pieces, b"")
            at = place - begin
            there = at < len(block) and (block[at - 1 : at] if at else last) == b"\n"
            number = line + block.count(b"\n", 0, at) if there else None
            origins.append(Origin(path, place, "line", number))
    return origins


def _rows(path: str, places: list[int]) -> list[Origin]:
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python 2's numbers
            shape, _, dtype = read(file, max_header_size=_HEADER_BYTES)
        begin = file.tell()
    row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
    origins = []
    for place in places:
        row, rest = divmod(place - begin, row_bytes) if row_bytes else (0, 1)
        there = rest == 0 and 0 <= row < shape[0]
        origins.append(Origin(path, place, "row", row if there else None))
    return origins


def _members(path: str, places: list[int]) -> list[Origin]:
    import tarfile

    names: dict[int, str] = {}
    with (
        _unpacked(path) as file,
        contextlib.suppress(Exception),  # behind what is damaged no member is named
        tarfile.open(fileobj=file, mode="r:", ignore_zeros=True) as archive,  # joined ones too
    ):
        at = 0
        for member in archive:
            # Of a sparse one the map may lie between the place and the data.
            while at < len(places) and places[at] <= member.offset_data:
                if places[at] > member.offset:
                    names[places[at]] = member.name
                at += 1
            if at == len(places):
                break
    return [Origin(path, place, "sample", None, names.get(place)) for place in places]
