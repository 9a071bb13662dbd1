"""Packed files as people have them: members, frames, streams, padding and rubbish, and damage."""

from __future__ import annotations

import bz2
import ctypes
import dataclasses
import gzip
import lzma
import random
import struct
import zlib
from collections.abc import Callable

_zstd = ctypes.CDLL("libzstd.so.1")
for _name in ("ZSTD_createCCtx", "ZSTD_compressBound", "ZSTD_compress2", "ZSTD_createDCtx"):
    getattr(_zstd, _name).restype = (
        ctypes.c_void_p if _name.startswith("ZSTD_create") else ctypes.c_size_t
    )
_LEVEL, _WINDOW_LOG, _CHECKSUM = 100, 101, 201


def zstd_frame(content: bytes, level: int = 1, window_log: int = 0) -> bytes:
    """A Zstandard frame with a checksum."""
    context = ctypes.c_void_p(_zstd.ZSTD_createCCtx())
    settings = [(_LEVEL, level), (_CHECKSUM, 1)] + [(_WINDOW_LOG, window_log)] * bool(window_log)
    for setting, value in settings:
        _zstd.ZSTD_CCtx_setParameter(context, setting, value)
    room = ctypes.create_string_buffer(_zstd.ZSTD_compressBound(ctypes.c_size_t(len(content))))
    size = _zstd.ZSTD_compress2(
        context,
        room,
        ctypes.c_size_t(len(room)),
        content,
        ctypes.c_size_t(len(content)),
    )
    _zstd.ZSTD_freeCCtx(context)
    return room.raw[:size]


def skippable_frame(content: bytes) -> bytes:
    """A Zstandard frame that readers pass over, as pzstd writes before each frame."""
    return struct.pack("<II", 0x184D2A50 + len(content) % 16, len(content)) + content


def gzip_member(draw: random.Random, content: bytes) -> bytes:
    """A gzip member with a drawn header: extra field, name, comment, checksum."""
    packed = gzip.compress(content, draw.choice([0, 1, 6, 9]), mtime=draw.randrange(2**31))
    flags = draw.randrange(16) * 2
    head = bytearray(packed[:10])
    head[3] = flags
    if flags & 4:
        extra = draw.randbytes(draw.choice([0, 4, 300]))
        head += struct.pack("<H", len(extra)) + extra
    if flags & 8:
        head += b"a name\0"
    if flags & 16:
        head += b"a comment\0"
    if flags & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    return bytes(head) + packed[10:]


PACK: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "gz": gzip_member,
    "zst": lambda draw, content: zstd_frame(content, draw.choice([1, 3, 9])),
    "bz2": lambda draw, content: bz2.compress(content, draw.choice([1, 9])),
    "xz": lambda draw, content: lzma.compress(
        content, check=draw.choice([lzma.CHECK_CRC32, lzma.CHECK_CRC64, lzma.CHECK_SHA256])
    ),
}


@dataclasses.dataclass
class PackedFile:
    """What was packed, and what has become of it.

    Attributes:
        data: The bytes of the file.
        whole: What the members before the damage hold; all of it, if there is none.
        damaged: Something is wrong with a member.
        trailing: Rubbish follows the last member.
    """

    data: bytes
    whole: bytes
    damaged: bool = False
    trailing: bool = False


def packed_file(
    draw: random.Random, ending: str, pieces: list[bytes], damage: str = ""
) -> PackedFile:
    """Pieces as members. `damage`: flip (of a bit), cut, rubbish (behind them), or none."""
    data, ends = b"", []
    hit = draw.randrange(len(pieces)) if damage in ("flip", "cut") else -1
    for number, piece in enumerate(pieces):
        if ending == "zst" and draw.random() < 0.3:
            data += skippable_frame(draw.randbytes(draw.choice([0, 4, 5000])))
        begin = len(data)
        # Of a header nothing is checked without its own checksum.
        plain = ending == "gz" and number == hit
        data += gzip.compress(piece, 6) if plain else PACK[ending](draw, piece)
        ends.append((begin, len(data)))
        if draw.random() < 0.3:
            # A multiple of four, as xz has it.
            data += bytes(4 * draw.randrange(1, 300))
    if damage == "rubbish":
        rubbish = b"r" + draw.randbytes(draw.randrange(3000))
        return PackedFile(data + rubbish, b"".join(pieces), trailing=True)
    if damage == "":
        return PackedFile(data, b"".join(pieces))
    begin, end = ends[hit]
    whole = b"".join(pieces[:hit])
    if damage == "cut":
        # Behind what tells it from no member.
        return PackedFile(data[: draw.randrange(begin + 12, end)], whole, damaged=True)
    # The first bytes tell what it is. Some bits of each format mean nothing: its own reader says.
    while True:
        spoilt = bytearray(data)
        spoilt[draw.randrange(begin + 12, end)] ^= 1 << draw.randrange(8)
        if ending == "zst" or reference_raises(ending, bytes(spoilt[begin:end])):
            return PackedFile(bytes(spoilt), whole, damaged=True)


def reference_raises(ending: str, data: bytes) -> bool:
    """Does Python's own reader refuse the file?"""
    try:
        {"gz": gzip.decompress, "bz2": bz2.decompress, "xz": lzma.decompress}[ending](data)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
        return True
    return False
