"""Records of versions 3 to 7 and of every input_format, and the tensors that a feed must make of
them.

The second, slow and obvious writer of what workers/formats does in C++; it shares nothing with it.

    data = as_version(records, 4)              # version 6 records as those of version 4
    tensors = decode_any(data)                 # name -> array, as a feed delivers them
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.oracles.lc0_reference import POLICY_SIZE, RECORD_V6, Records

INPUT_FORMATS = (1, 2, 3, 4, 5, 132, 133)
VERSIONS = (3, 4, 5, 6, 7)

_HEAD: dict[int, list[Any]] = {
    3: [("version", "<u4")],
    4: [("version", "<u4")],
    5: [("version", "<u4"), ("input_format", "<u4")],
}
_BODY: list[Any] = [
    ("probabilities", "<f4", (POLICY_SIZE,)),
    ("planes", "<u8", (104,)),
    *[(name, "u1") for name in RECORD_V6.names[4:11]],
    ("result", "i1"),
]
_VALUES: dict[int, list[Any]] = {
    3: [],
    4: [(name, "<f4") for name in ("root_q", "best_q", "root_d", "best_d")],
    5: [
        (name, "<f4")
        for name in ("root_q", "best_q", "root_d", "best_d", "root_m", "best_m", "plies_left")
    ],
}
RECORDS: dict[int, np.dtype] = {
    **{version: np.dtype(_HEAD[version] + _BODY + _VALUES[version]) for version in (3, 4, 5)},
    6: RECORD_V6,
    7: np.dtype(
        [(name, *RECORD_V6.fields[name][:1]) for name in RECORD_V6.names]  # type: ignore[index]
        + [
            ("d_st", "<f4"),
            ("opp_played_idx", "<u2"),
            ("next_played_idx", "<u2"),
            ("reserved", "<f4", (8,)),
        ]
    ),
}
assert [RECORDS[version].itemsize for version in VERSIONS] == [8276, 8292, 8308, 8356, 8396]


def as_version(
    records: Records, version: int, input_format: int = 1, rng: np.random.Generator | None = None
) -> bytes:
    """Version 6 records as those of another version, and of another input_format.

    Fields that both have are taken over. Castling, en passant and invariance_info of other input
    formats are drawn at random, d_st too.
    """
    rng = rng or np.random.default_rng(0)
    out = np.zeros(len(records), RECORDS[version])
    for name in out.dtype.names or ():
        if name in (RECORD_V6.names or ()):
            out[name] = records[name]
    out["version"] = version
    if version < 6:
        out["result"] = np.sign(records["result_q"]).astype(np.int8)
    if version == 3:
        out["probabilities"] = np.maximum(out["probabilities"], 0)
    if version == 7:
        out["q_st"] = rng.uniform(-1, 1, len(out))
        out["d_st"] = rng.uniform(0, 1, len(out))
    if version >= 5:
        out["input_format"] = input_format
        if input_format != 1:
            for name in ("castling_us_ooo", "castling_us_oo", "castling_them_ooo"):
                out[name] = 1 << rng.integers(0, 8, len(out))
            if input_format > 2:
                out["side_to_move"] = 1 << rng.integers(0, 8, len(out))
            out["invariance_info"] = rng.integers(0, 256, len(out))
    return out.tobytes()


def decode_any(data: bytes) -> dict[str, NDArray[np.float32]]:
    """planes [n, 112, 8, 8], policy [n, 1858], values [n, 6, 3] of whole records of one version."""
    (version,) = struct.unpack_from("<I", data)
    records = np.frombuffer(data, RECORDS[version])
    rows = [_decode(record, version) for record in records]
    return {
        name: np.stack([row[i] for row in rows]).astype(np.float32, copy=False)
        for i, name in enumerate(("planes", "policy", "values"))
    }


def _decode(record: np.void, version: int) -> tuple[NDArray[np.float32], ...]:
    input_format = int(record["input_format"]) if version >= 5 else 1
    planes = np.zeros((112, 8, 8), np.float32)
    for plane in range(104):
        bits = int(record["planes"][plane])
        for rank in range(8):
            for file in range(8):
                planes[plane, rank, file] = (bits >> (8 * rank + 7 - file)) & 1
    castling = [
        int(record[f"castling_{who}_{side}"]) for who in ("us", "them") for side in ("ooo", "oo")
    ]
    side = int(record["side_to_move"])
    if input_format == 1:
        for i, value in enumerate(castling):
            planes[104 + i] = value
    else:
        for i, (ours, theirs) in enumerate(zip(castling[:2], castling[2:])):
            for file in range(8):
                planes[104 + i, 0, file] = ours >> file & 1
                planes[104 + i, 7, file] = theirs >> file & 1
    if input_format in (1, 2):
        planes[108] = side
    else:
        for file in range(8):
            planes[108, 7, file] = side >> file & 1
    scale = 100 if input_format in (4, 5, 132, 133) else 99
    planes[109] = np.float32(int(record["rule50_count"])) / np.float32(scale)
    if input_format in (132, 133):
        planes[110] = int(record["invariance_info"]) >= 128
    planes[111] = 1

    def value(name: str) -> float:
        return float(record[name]) if name in (record.dtype.names or ()) else 0.0

    nan = float("nan")
    if version < 6:
        result = int(record["result"])
        first = (float(result), 1.0 if result == 0 else 0.0, value("plies_left"))
        orig = (nan, nan, nan)
    else:
        first = (value("result_q"), value("result_d"), value("plies_left"))
        orig = (value("orig_q"), value("orig_d"), value("orig_m"))
    values = np.array(
        [
            first,
            [value("best_q"), value("best_d"), value("best_m")],
            [value("played_q"), value("played_d"), value("played_m")],
            orig,
            [value("root_q"), value("root_d"), value("root_m")],
            [value("q_st"), value("d_st"), nan],
        ],
        np.float32,
    )
    return planes, np.array(record["probabilities"], np.float32), values


def shares(values: NDArray[np.float32], row: int) -> NDArray[np.float32]:
    """Win, draw and loss [n, 3] of one row of values [n, 6, 3]."""
    one, two = np.float32(1), np.float32(2)
    q = np.clip(values[:, row, 0], -one, one)
    d = np.clip(values[:, row, 1], np.float32(0), one - np.abs(q))
    return np.stack([(one + q - d) / two, d, (one - q - d) / two], axis=1)
