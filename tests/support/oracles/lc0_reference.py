"""Reference decoder of Leela Chess Zero training files: what a feed must deliver, in plain NumPy.

It gives the records of a file, the three tensors of a record, and one 64-bit name per delivered
position, so that a test can say "every position, each exactly once" whatever the order. It shares
nothing with the C++ decoder but the format, and knows input_format 1 of version 6 only.

    for game in read_games("training-run1-test80-20240101-0017.tar"):
        planes, policy, values = decode(game.records)
        names = position_hashes(planes, policy, values)
"""

from __future__ import annotations

import gzip
import posixpath
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

POLICY_SIZE = 1858
PLANE_COUNT = 112
RECORD_BYTES = 8356

# One position as it lies in the file: packed, little-endian. The names are those of the format.
RECORD_V6 = np.dtype(
    [
        ("version", "<u4"),
        ("input_format", "<u4"),
        ("probabilities", "<f4", (POLICY_SIZE,)),
        ("planes", "<u8", (104,)),
        ("castling_us_ooo", "u1"),
        ("castling_us_oo", "u1"),
        ("castling_them_ooo", "u1"),
        ("castling_them_oo", "u1"),
        ("side_to_move", "u1"),
        ("rule50_count", "u1"),
        ("invariance_info", "u1"),
        ("dummy", "u1"),
        ("root_q", "<f4"),
        ("best_q", "<f4"),
        ("root_d", "<f4"),
        ("best_d", "<f4"),
        ("root_m", "<f4"),
        ("best_m", "<f4"),
        ("plies_left", "<f4"),
        ("result_q", "<f4"),
        ("result_d", "<f4"),
        ("played_q", "<f4"),
        ("played_d", "<f4"),
        ("played_m", "<f4"),
        ("orig_q", "<f4"),
        ("orig_d", "<f4"),
        ("orig_m", "<f4"),
        ("visits", "<u4"),
        ("played_idx", "<u2"),
        ("best_idx", "<u2"),
        ("policy_kld", "<f4"),
        ("q_st", "<f4"),
    ]
)
assert RECORD_V6.itemsize == RECORD_BYTES

Records = NDArray[np.void]  # dtype RECORD_V6, shape [n]
Tensors = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]

# Rows of the values tensor; None stands for NaN: version 6 has no short-term draw and moves-left.
_VALUE_ROWS: tuple[tuple[str | None, str | None, str | None], ...] = (
    ("result_q", "result_d", "plies_left"),
    ("best_q", "best_d", "best_m"),
    ("played_q", "played_d", "played_m"),
    ("orig_q", "orig_d", "orig_m"),
    ("root_q", "root_d", "root_m"),
    ("q_st", None, None),
)
# The last row is (q_st, d_st, NaN): a version 6 record has no d_st, which then reads as zero.
_ZERO_AT = (5, 1)


class FormatError(ValueError):
    """A file or member that is not a game of version 6 records; the message says which and why."""


@dataclass(frozen=True)
class Game:
    """One game: where it was read and its records, dtype RECORD_V6, in file order."""

    source: str
    records: Records


def records_from_bytes(data: bytes, source: str = "bytes") -> Records:
    """Interpret inflated bytes as version 6 records, without copying.

    Args:
        data: Whole records, nothing before, between or after.
        source: Who to name in an error.
    Returns:
        A read-only array of dtype RECORD_V6 and shape [n], n >= 1, over ``data``.
    Raises:
        FormatError: Nothing, a broken record, another version or another input_format.
    """
    if not data or len(data) % RECORD_BYTES:
        raise FormatError(
            f"{source}: {len(data)} bytes are not a whole number of {RECORD_BYTES}-byte records: "
            "check that the file is complete and of version 6"
        )
    records: Records = np.frombuffer(data, dtype=RECORD_V6)
    for field, wanted in (("version", 6), ("input_format", 1)):
        wrong = np.flatnonzero(records[field] != wanted)
        if wrong.size:
            raise FormatError(
                f"{source}: record {wrong[0]} of {len(records)} has {field} "
                f"{records[field][wrong[0]]}: only {field} {wanted} is decoded here"
            )
    return records


def read_games(path: str | Path) -> Iterator[Game]:
    """Yield the games of one ``.gz`` (one game) or ``.tar`` (one game a member) in file order.

    Directories, ``LICENSE`` and AppleDouble members (``._*``) hold no game and are passed over.

    Raises:
        FormatError: A member is not a game of version 6 records; games before it were yielded.
        OSError, EOFError, tarfile.TarError: The file cannot be read or inflated.
    """
    path = Path(path)
    if path.suffix == ".gz":
        yield Game(str(path), records_from_bytes(gzip.decompress(path.read_bytes()), str(path)))
        return
    if path.suffix != ".tar":
        raise FormatError(f"{path}: neither .gz nor .tar: only these hold games")
    with tarfile.open(path, mode="r:") as archive:
        for member in archive:
            name = posixpath.basename(member.name)
            if not member.isreg() or name == "LICENSE" or name.startswith("._"):
                continue
            file = archive.extractfile(member)
            assert file is not None  # a regular member always has contents
            data = file.read()
            source = f"{path}:{member.name}"
            if name.endswith(".gz"):
                data = gzip.decompress(data)
            yield Game(source, records_from_bytes(data, source))


def game_files(directory: str | Path) -> list[Path]:
    """List every ``.tar`` and ``.gz`` below a directory, hidden names left out, sorted by path."""
    root = Path(directory)
    return sorted(
        path
        for path in root.rglob("*")
        if path.suffix in (".tar", ".gz")
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def decode_planes(records: Records) -> NDArray[np.float32]:
    """Expand the input planes of records: float32 [n, 112, 8, 8], rank 1..8, file a..h."""
    count = len(records)
    planes = np.empty((count, PLANE_COUNT, 8, 8), dtype=np.float32)
    # Byte j of a plane is rank j+1 and its most significant bit is file a, which is the order in
    # which unpackbits yields bits: no reordering is left to do.
    plane_bytes = np.ascontiguousarray(records["planes"]).view(np.uint8).reshape(count, 104, 8, 1)
    planes[:, :104] = np.unpackbits(plane_bytes, axis=-1)
    for plane, field in (
        (104, "castling_us_ooo"),
        (105, "castling_us_oo"),
        (106, "castling_them_ooo"),
        (107, "castling_them_oo"),
        (108, "side_to_move"),
    ):
        planes[:, plane] = records[field].astype(np.float32)[:, None, None]
    # Divided in float32: a double division rounded afterwards would be the same for a byte, a
    # multiplication by 1/99 would not.
    rule50 = records["rule50_count"].astype(np.float32) / np.float32(99)
    planes[:, 109] = rule50[:, None, None]
    planes[:, 110] = 0.0
    planes[:, 111] = 1.0
    return planes


def decode_policy(records: Records) -> NDArray[np.float32]:
    """Copy the policy targets bit for bit: float32 [n, 1858], -1 where a move is illegal."""
    return np.array(records["probabilities"], dtype=np.float32, order="C")


def decode_values(records: Records) -> NDArray[np.float32]:
    """Collect the value targets: float32 [n, 6, 3].

    Rows are result, best, played, orig, root, st; columns q, d, m from the mover's view. Row st
    is (q_st, 0, NaN) with the NaN 0x7fc00000; row orig may hold NaN, copied as it lies.
    """
    values = np.full((len(records), 6, 3), np.nan, dtype=np.float32)
    for row, fields in enumerate(_VALUE_ROWS):
        for column, field in enumerate(fields):
            if field is not None:
                values[:, row, column] = records[field]
    values[:, _ZERO_AT[0], _ZERO_AT[1]] = 0.0
    return values


def decode(records: Records) -> Tensors:
    """Decode records of input_format 1 to the three tensors of a batch.

    Returns:
        planes [n, 112, 8, 8], policy [n, 1858] and values [n, 6, 3], all float32 and new.
    """
    return decode_planes(records), decode_policy(records), decode_values(records)


def position_hashes(planes: Any, policy: Any, values: Any) -> NDArray[np.uint64]:
    """Name each delivered position by its bits: uint64 [n].

    A name is XXH3 (64 bits, seed 0) over the bytes of the planes row, the policy row and the values
    row, in this order. Floats that differ in any bit give another name; NaNs are told apart by their
    bits, too.

    Args:
        planes, policy, values: float32 arrays of n rows; views and read-only arrays will do.
    Raises:
        ValueError: A shape or dtype is not that of a batch, so the names would mean nothing.
    """
    import xxhash  # here, because the demo makes its data without it

    rows = []
    for name, array, shape in (
        ("planes", planes, (PLANE_COUNT, 8, 8)),
        ("policy", policy, (POLICY_SIZE,)),
        ("values", values, (6, 3)),
    ):
        array = np.asarray(array)
        if array.dtype != np.float32 or array.shape[1:] != shape or len(array) != len(planes):
            raise ValueError(
                f"position_hashes: {name} is {array.dtype} {array.shape}, expected float32 "
                f"{(len(planes), *shape)}: pass the arrays of one batch as they were delivered"
            )
        rows.append(np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8))
    names = np.empty(len(planes), dtype="<u8")
    for index, (planes_row, policy_row, values_row) in enumerate(zip(*rows)):
        name = xxhash.xxh3_64(planes_row)
        name.update(policy_row)
        name.update(values_row)
        names[index] = name.intdigest()
    return names


def record_hashes(records: Records) -> NDArray[np.uint64]:
    """Name records by what a feed must deliver for them: position_hashes(*decode(records))."""
    return position_hashes(*decode(records))


def file_hashes(paths: Iterable[str | Path]) -> NDArray[np.uint64]:
    """Name every position of some files, in the order of paths, games and records."""
    parts = [record_hashes(game.records) for path in paths for game in read_games(path)]
    return np.concatenate(parts) if parts else np.empty(0, dtype="<u8")


@dataclass(frozen=True)
class Audit:
    """How delivered positions differ from those expected; each list holds distinct names."""

    missing: list[int]
    repeated: list[int]
    unknown: list[int]

    @property
    def exact(self) -> bool:
        """Whether every expected position came, each once, and nothing else did."""
        return not (self.missing or self.repeated or self.unknown)

    def __str__(self) -> str:
        if self.exact:
            return "every expected position was delivered exactly once"
        parts = []
        for what, names in (
            ("missing", self.missing),
            ("repeated", self.repeated),
            ("unknown", self.unknown),
        ):
            if names:
                shown = " ".join(f"{name:016x}" for name in names[:4])
                parts.append(f"{len(names)} {what} ({shown}{' ...' if len(names) > 4 else ''})")
        return ", ".join(parts)


def audit(delivered: Any, expected: Any, times: int = 1) -> Audit:
    """Compare the names of delivered positions with the expected ones, whatever the order.

    Args:
        delivered: uint64 names from position_hashes, all batches together.
        expected: uint64 names, as in a data set's manifest; must be distinct.
        times: How often each expected position has to come (the number of epochs).
    Raises:
        ValueError: Expected names repeat: then "exactly once" could not be told.
    """
    expected_names, expected_counts = np.unique(np.asarray(expected, "<u8"), return_counts=True)
    if (expected_counts > 1).any():
        raise ValueError(
            f"audit: {(expected_counts > 1).sum()} of {len(expected_names)} expected positions "
            "are not unique: make the data with distinct records"
        )
    names, counts = np.unique(np.asarray(delivered, "<u8"), return_counts=True)
    known = np.isin(names, expected_names)
    complete = names[known & (counts >= times)]
    return Audit(
        missing=[int(name) for name in np.setdiff1d(expected_names, complete)],
        repeated=[int(name) for name in names[known & (counts > times)]],
        unknown=[int(name) for name in names[~known]],
    )


class NaiveLoader:
    """What one writes without a feed: read, inflate, shuffle, decode, batch; in NumPy only.

    Iterating yields batches ``(planes, policy, values)`` of ``batch_size`` positions; the last one
    of an epoch may be shorter. Each position comes once per epoch (at ``sampling_rate`` 1).

    Args:
        paths: Files with games; their order is shuffled anew in each epoch.
        batch_size: Positions in a batch, >= 1.
        shuffle_size: Places in the shuffle buffer, 8,356 bytes each, >= 1.
        sampling_rate: Probability of using a position, 0 < rate <= 1.
        seed: Two loaders with the same arguments yield the same batches.
        epochs: How often to read everything; None never ends.
        part, part_count: Take the games whose number is ``part`` modulo ``part_count``, so that
            the processes of a loader share the work.
    """

    def __init__(
        self,
        paths: Iterable[str | Path],
        batch_size: int = 1024,
        shuffle_size: int = 100_000,
        sampling_rate: float = 1.0,
        seed: int = 0,
        epochs: int | None = 1,
        part: int = 0,
        part_count: int = 1,
    ) -> None:
        self.paths = [Path(path) for path in paths]
        if not self.paths:
            raise ValueError("NaiveLoader: no files: name at least one .tar or .gz")
        if batch_size < 1 or shuffle_size < 1 or not 0 < sampling_rate <= 1:
            raise ValueError(
                f"NaiveLoader: batch_size {batch_size} and shuffle_size {shuffle_size} must be at "
                f"least 1, sampling_rate {sampling_rate} above 0 and at most 1"
            )
        if not 0 <= part < part_count:
            raise ValueError(f"NaiveLoader: part {part} is not within 0..{part_count - 1}")
        self.batch_size = batch_size
        self.shuffle_size = shuffle_size
        self.sampling_rate = sampling_rate
        self.seed = seed
        self.epochs = epochs
        self.part = part
        self.part_count = part_count

    def __iter__(self) -> Iterator[Tensors]:
        epoch = 0
        while self.epochs is None or epoch < self.epochs:
            yield from self._epoch(epoch)
            epoch += 1

    def _games(self, epoch: int) -> Iterator[Records]:
        # One generator for the order of files: all parts must agree on the numbers of games.
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.paths))
        number = 0
        for index in order:
            path = self.paths[index]
            if path.suffix == ".gz":
                if number % self.part_count == self.part:
                    yield next(read_games(path)).records
                number += 1
                continue
            with tarfile.open(path, mode="r:") as archive:
                for member in archive:
                    name = posixpath.basename(member.name)
                    if not member.isreg() or not name.endswith(".gz") or name.startswith("._"):
                        continue
                    if number % self.part_count == self.part:
                        file = archive.extractfile(member)
                        assert file is not None
                        yield records_from_bytes(gzip.decompress(file.read()), member.name)
                    number += 1

    def _epoch(self, epoch: int) -> Iterator[Tensors]:
        rng = np.random.default_rng([self.seed, epoch, self.part + 1])
        places: Records = np.empty(self.shuffle_size, dtype=RECORD_V6)
        batch: Records = np.empty(self.batch_size, dtype=RECORD_V6)
        filled = 0  # places taken
        gathered = 0  # rows of the batch taken
        for records in self._games(epoch):
            if self.sampling_rate < 1.0:
                records = records[rng.random(len(records)) < self.sampling_rate]
            start = 0
            while start < len(records):
                if filled < self.shuffle_size:
                    taken = min(self.shuffle_size - filled, len(records) - start)
                    places[filled : filled + taken] = records[start : start + taken]
                    filled += taken
                    start += taken
                    continue
                # Distinct victims, so that the swap of many records at once loses none.
                taken = min(
                    self.batch_size - gathered, len(records) - start, max(1, self.shuffle_size // 2)
                )
                victims = rng.choice(self.shuffle_size, taken, replace=False, shuffle=False)
                batch[gathered : gathered + taken] = places[victims]
                places[victims] = records[start : start + taken]
                gathered += taken
                start += taken
                if gathered == self.batch_size:
                    yield decode(batch)
                    gathered = 0
        # The end of the epoch: what is still in the buffer goes out in random order.
        order = rng.permutation(filled)
        start = 0
        while start < filled:
            taken = min(self.batch_size - gathered, filled - start)
            batch[gathered : gathered + taken] = places[order[start : start + taken]]
            gathered += taken
            start += taken
            if gathered == self.batch_size:
                yield decode(batch)
                gathered = 0
        if gathered:
            yield decode(batch[:gathered])
