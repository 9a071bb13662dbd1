"""Packed lines of drawn layouts with drawn damage, beside Python's gzip, bz2 and lzma: every row
comes, or its loss is counted by name.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.feeds.feed_run import FeedRun
from tests.support.feeds.sample_feeds import OFTEN, counters, rows_of
from tests.support.makers.packed_files import (
    PACK,
    packed_file,
    reference_raises,
    skippable_frame,
    zstd_frame,
)

MakeFeed = Callable[..., FeedRun]


def lines(draw: random.Random, file: int, count: int) -> bytes:
    return b"".join(
        b"file %d line %d %s\n" % (file, i, draw.randbytes(draw.randrange(30)).hex().encode())
        for i in range(count)
    )


def cut_up(draw: random.Random, content: bytes) -> list[bytes]:
    """Pieces, cut anywhere, some of them empty."""
    cuts = sorted(draw.randrange(len(content) + 1) for _ in range(draw.randrange(5)))
    return [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]


def one_round(make_feed: MakeFeed, directory: Path, seed: int, files: int, **settings: Any) -> None:
    draw = random.Random(seed)
    directory.mkdir()
    want, doubts, damaged, trailing = [], 0, 0, 0
    before = "BEFORE" in settings.get("source", "")
    for number in range(files):
        ending = draw.choice(sorted(PACK))
        content = lines(draw, number, draw.choice([0, 1, 3, 100, 900]))
        pieces = cut_up(draw, content)
        packed = packed_file(draw, ending, pieces, draw.choice(["", "", "flip", "cut", "rubbish"]))
        # A name that does not say it is no matter.
        name = f"{number:04}.txt" + draw.choice([f".{ending}", ""])
        (directory / name).write_bytes(packed.data)
        damaged += packed.damaged
        trailing += packed.trailing
        if ending == "gz" and not packed.trailing:
            assert reference_raises(ending, packed.data) == packed.damaged, (seed, number)
        if packed.damaged and before:
            continue
        right = content.splitlines()
        want.append((number, right, packed.whole.count(b"\n"), packed.damaged))
    run = make_feed(directory, **settings)
    got = rows_of(run)
    count = counters(run)
    assert count["samples"] == len(got)
    by_file: dict[int, list[bytes]] = {}
    for row in got:
        by_file.setdefault(int(row.split()[1]), []).append(row)
    assert list(by_file) == sorted(by_file), f"seed {seed}"
    for number, right, whole, is_damaged in want:
        mine = by_file.pop(number, [])
        # Before a cut there may be more than whole members; and nothing wrong in either case.
        least = whole if is_damaged else len(right)
        assert len(mine) >= least and mine == right[: len(mine)], (seed, number)
        doubts += len(mine) - whole if is_damaged else 0
    assert not by_file, f"seed {seed}: rows of files that are damaged"
    assert count.get("skipped_damaged", 0) == damaged, f"seed {seed}"
    assert count.get("skipped_trailing", 0) == trailing, f"seed {seed}"
    assert count.get("samples_in_doubt", 0) == doubts, f"seed {seed}"


def test_drawn_layouts_and_damage(make_feed: MakeFeed, tmp_path: Path) -> None:
    # Some hundred files in the gate; RINGFEED_HOURS for longer.
    end = time.monotonic() + 3600 * float(os.environ.get("RINGFEED_HOURS", "0"))
    seed = 0
    while seed < 2 or time.monotonic() < end:
        one_round(make_feed, tmp_path / f"a{seed}", 2 * seed, 150, readers=1 + seed % 2)
        one_round(
            make_feed, tmp_path / f"b{seed}", 2 * seed + 1, 60, source="verify: BEFORE", readers=2
        )
        seed += 1


def test_rows_that_went_out_before_a_checksum_are_counted(
    make_feed: MakeFeed, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    draw = random.Random(12)
    plain = b"".join(
        b"line %06d of the file, with some words behind it\n" % i for i in range(20000)
    )
    whole = gzip.compress(plain, mtime=0)
    for number in range(12):
        spoilt = bytearray(whole)
        spoilt[draw.randrange(20, len(whole) - 9)] ^= 1 << draw.randrange(8)
        (data / f"flip{number:02}.txt.gz").write_bytes(spoilt)
    # A short member that is right, and a long one whose checksum alone is wrong.
    wrong_sum = bytearray(whole)
    wrong_sum[-6] ^= 1
    (data / "sum.txt.gz").write_bytes(gzip.compress(b"first\nsecond\n") + wrong_sum)
    for kills in (0, 6):
        run = make_feed(data, extra=OFTEN, slots=2)
        got = rows_of(run, kills=kills)
        count = counters(run)
        assert count["skipped_damaged"] == 13
        assert got.count(b"first") == 1
        assert count["samples_in_doubt"] == len(got) - 2 > 100
    assert "CRC-32" in run.text() or "not valid" in run.text()
    # A feed without a single batch is a failure.
    (data / "zz.txt").write_bytes(b"last\n")
    run = make_feed(data, source="verify: BEFORE", readers=2)
    assert rows_of(run) == [b"last"]
    assert counters(run)["skipped_damaged"] == 13
    assert "samples_in_doubt" not in counters(run)


def test_lengths_of_windows_and_their_limit(make_feed: MakeFeed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    # Its window is all of it, as it is longer; and frames of pzstd's.
    text = [b"%d " % i + random.Random(i).randbytes(500).hex().encode() for i in range(5000)]
    (data / "long.txt.zst").write_bytes(zstd_frame(b"\n".join(text), 1, 27))
    pair = skippable_frame(b"1234") + zstd_frame(b"one\n")
    (data / "pzstd.txt.zst").write_bytes(2 * pair)
    assert rows_of(make_feed(data)) == [*text, b"one", b"one"]
    run = make_feed(data, source="window_bytes_max: 1048576")
    assert rows_of(run) == [b"one", b"one"]
    assert counters(run)["skipped_unsupported"] == 1 and "skipped_damaged" not in counters(run)
    assert "raise window_bytes_max" in run.text()


def test_zip_checksums_of_stored_and_deflated_arrays(make_feed: MakeFeed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    x = np.arange(60000, dtype=np.int64)
    np.savez(data / "a.npz", x=x)
    np.savez_compressed(data / "b.npz", x=x)
    for name in ("a.npz", "b.npz"):
        packed = bytearray((data / name).read_bytes())
        at = packed.index(b"PK\x01\x02")
        if name == "a.npz":
            packed[len(packed) // 2] ^= 1  # a number is another
        else:
            packed[at + 16] ^= 1  # the checksum is
        (data / f"spoilt-{name}").write_bytes(packed)
    batch = 'fields { name: "x" dtype: "int64" }'
    for kills in (0, 4):
        run = make_feed(data, batch=batch, readers=2, extra=OFTEN, slots=2)
        got = rows_of(run, "x", kills)
        count = counters(run)
        assert count["samples"] == len(got)
        assert got[: 2 * len(x)] == 2 * x.tolist()
        assert count["skipped_damaged"] == 2 and count["samples_in_doubt"] == 2 * len(x)
    run = make_feed(data, batch=batch, source="verify: BEFORE")
    assert rows_of(run, "x") == 2 * x.tolist()
    assert counters(run)["skipped_damaged"] == 2
    assert "checksum" in run.text()


def test_what_is_named_packed_and_is_not(make_feed: MakeFeed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "plain.txt.gz").write_bytes("été\nzwei\n".encode())
    for number, (ending, pack) in enumerate(sorted(PACK.items())):
        packed = bytearray(pack(random.Random(1), lines(random.Random(2), 1, 50)))
        packed[1] ^= 4
        (data / f"{number}.txt.{ending}").write_bytes(packed)
    (data / "list.jsonl").write_bytes(gzip.compress(json.dumps({"text": "three"}).encode()))
    run = make_feed(data)
    assert rows_of(run) == [b"three", "été".encode(), b"zwei"]
    assert counters(run)["skipped_damaged"] == len(PACK)
