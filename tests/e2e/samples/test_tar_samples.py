"""Tars of drawn layouts with drawn damage as samples, beside Python's tarfile: every sample comes
whole, or its loss is counted by name.
"""

from __future__ import annotations

import dataclasses
import io
import os
import random
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.feeds.feed_run import FeedRun
from tests.support.feeds.sample_feeds import OFTEN, counters, rows_of
from tests.support.makers.packed_files import PACK

MakeFeed = Callable[..., FeedRun]
ID = 'fields { name: "id" dtype: "int64" }'
TWO = f'{ID} fields {{ name: "txt" }}'
BATCH = ID
FORMATS = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}


def add(tar: tarfile.TarFile, name: str, content: bytes, type_: bytes = tarfile.REGTYPE) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = type_, len(content), "0.id"
    tar.addfile(member, io.BytesIO(content))


@dataclasses.dataclass
class Drawn:
    """A tar: its bytes; ids of its samples; headers, each of a sample; members of no sample."""

    data: bytes
    ids: list[int]
    headers: list[tuple[int, int, int]]  # offset, behind the member, id
    others: int


def drawn_tar(draw: random.Random, begin: int, count: int) -> Drawn:
    out = io.BytesIO()
    ids, others = list(range(begin, begin + count)), 0
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[draw.choice(sorted(FORMATS))]) as tar:
        for number in ids:
            kind = draw.random()
            if kind < 0.1:
                add(tar, "a-directory", b"", tarfile.DIRTYPE)
            elif kind < 0.2:
                add(tar, "README", b"no dot")
                others += 1
            elif kind < 0.3:
                add(tar, f"link{number}.id", b"", draw.choice([tarfile.SYMTYPE, tarfile.LNKTYPE]))
                others += 1
            where = "a-long-directory/" * draw.choice([0, 0, 1, 5])
            key = f"{where}{number:06}"
            add(tar, f"{key}.id", b"%d\n" % number)
            add(tar, f"{key}.txt", draw.randbytes(draw.choice([0, 1, 511, 512, 513, 3000])))
            if draw.random() < 0.3:
                add(tar, f"{key}.json", b"{}")
    data = out.getvalue()
    headers = []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            if member.isfile() and "." in member.name:
                behind = member.offset_data + (member.size + 511) // 512 * 512
                number = int(member.name.rsplit("/", 1)[-1].split(".")[0])
                headers.append((member.offset_data - 512, behind, number))
    return Drawn(data, ids, headers, others)


def one_round(make_feed: MakeFeed, directory: Path, seed: int, tars: int) -> None:
    draw = random.Random(seed)
    directory.mkdir()
    want, whole, others, trailing = [], 0, 0, 0
    for number in range(tars):
        data = b""
        packing = draw.choice(["", "", *sorted(PACK)])
        for joined in range(draw.choice([1, 1, 2, 3])):
            # Tars that are joined may have the same keys.
            tar = drawn_tar(draw, 1000 * number, draw.choice([1, 5, 40]))
            piece = bytearray(tar.data)
            lost: set[int] = set()
            for at, _, key in draw.sample(
                tar.headers, min(len(tar.headers), draw.choice([0, 0, 1, 2]))
            ):
                if any(abs(key - other) < 2 for other in lost):
                    continue
                # The checksum, so that the name is as it was; or the size.
                spot = draw.choice([at + 148 + draw.randrange(6), at + 124 + draw.randrange(11)])
                piece[spot] ^= 1
                lost.add(key)
            data += piece
            others += tar.others
            whole += len(tar.ids)
            want += [key for key in tar.ids if key not in lost]
            ids = reference(bytes(tar.data))
            assert ids == tar.ids, seed
        # Where the last header is damaged, the search for the next one goes through it.
        if draw.random() < 0.3 and not lost:
            data += b"rubbish" * 100
            trailing += 1
        packed = PACK[packing](draw, data) if packing else data
        (directory / f"{number:04}.tar{'.' * bool(packing)}{packing}").write_bytes(packed)
    run = make_feed(directory, source=TWO, batch=BATCH)
    got = rows_of(run, "id")
    count = counters(run)
    assert got == want, f"seed {seed}"
    assert len(got) + count.get("skipped_damaged", 0) == whole, f"seed {seed}: {count}"
    assert count.get("skipped_members", 0) == others, f"seed {seed}"
    assert count.get("skipped_trailing", 0) == trailing, f"seed {seed}"
    assert count.get("keys_again", 0) == 0, f"seed {seed}"


def reference(data: bytes) -> list[int]:
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as tar:
        return [
            int(tar.extractfile(member).read())  # type: ignore[union-attr]
            for member in tar
            if member.isfile() and member.name.endswith(".id")
        ]


def test_drawn_tars(make_feed: MakeFeed, tmp_path: Path) -> None:
    # Some hundred tars in the gate; RINGFEED_HOURS for longer.
    end = time.monotonic() + 3600 * float(os.environ.get("RINGFEED_HOURS", "0"))
    seed = 0
    while seed < 2 or time.monotonic() < end:
        one_round(make_feed, tmp_path / f"t{seed}", seed, 60)
        seed += 1


def shard(path: Path, names: list[str], **options: Any) -> None:
    with tarfile.open(path, "w", **options) as tar:
        for name in names:
            add(tar, name, name.split(".")[0].rsplit("/", 1)[-1].encode())


def test_members_that_do_not_follow_each_other(make_feed: MakeFeed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    names = [f"{i}.{field}" for field in ("id", "txt") for i in range(300)]
    shard(data / "a.tar", names)
    (data / "b.tar.gz").write_bytes(PACK["gz"](random.Random(1), (data / "a.tar").read_bytes()))
    # A feed without a single batch is a failure.
    shard(data / "zz.tar", ["-1.id", "-1.txt"])
    run = make_feed(data, source=TWO, batch=BATCH)
    assert rows_of(run, "id") == [-1]
    count = counters(run)
    assert count["keys_again"] == 600 and count["skipped_missing_field"] == 1200
    assert "group: BY_KEY" in run.text()
    for kills in (0, 4):
        run = make_feed(data, source=f"{TWO} group: BY_KEY", batch=BATCH, extra=OFTEN, slots=2)
        assert rows_of(run, "id", kills) == [*2 * list(range(300)), -1]
        assert "keys_again" not in counters(run)
    run = make_feed(data, source=f"{TWO} group: BY_KEY group_window: 200", batch=BATCH)
    assert rows_of(run, "id") == [-1]
    assert counters(run)["keys_again"] == 600 and "raise group_window" in run.text()


def test_a_half_sample_does_not_go_out(make_feed: MakeFeed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    names = [f"{i}.{field}" for i in range(10) for field in ("id", "txt")]
    shard(data / "a.tar", names)
    whole = (data / "a.tar").read_bytes()
    # Header and data of member n take two blocks. Its sum; its name; its name and the next one's.
    for letter, n, places in (
        ("b", 7, [150]),
        ("c", 8, [150]),
        ("d", 7, [0]),
        ("e", 7, [150, 1174]),
    ):
        spoilt = bytearray(whole)
        for place in places:
            spoilt[1024 * n + place] ^= 1
        (data / f"{letter}.tar").write_bytes(spoilt)
    (data / "f.tar").write_bytes(whole[: 1024 * 7 + 512])
    run = make_feed(data, batch='fields { name: "id" dtype: "bytes" }')
    got = rows_of(run, "id")
    ids = [str(i).encode() for i in range(10)]
    without = lambda *lost: [i for i in ids if int(i) not in lost]  # noqa: E731
    assert got == [*ids, *without(3), *without(4), *without(3, 4), *without(3, 4), *ids[:3]]
    assert counters(run)["skipped_damaged"] == 7


def test_sparse_members_come_with_their_holes(make_feed: MakeFeed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    want = []
    for number, pieces in enumerate(
        ([], [(5000, b"a")], [(0, b"a" * 5000), (100000, b"b"), (900000, b"c" * 700)])
    ):
        with open(tmp_path / f"{number}.bin", "wb") as holes:
            for place, content in pieces:
                holes.seek(place)
                holes.write(content)
            holes.truncate(1_000_000)
        want.append((tmp_path / f"{number}.bin").read_bytes())
    names = [f"{number}.bin" for number in range(3)]
    formats = (
        ["gnu"],
        ["posix", "--sparse-version=0.0"],
        ["posix", "--sparse-version=0.1"],
        ["posix", "--sparse-version=1.0"],
    )
    for letter, (format_, *options) in zip("abcd", formats, strict=True):
        command = [
            "tar",
            f"--format={format_}",
            *options,
            "--sparse",
            "-cf",
            str(data / f"{letter}.tar"),
            *names,
        ]
        subprocess.run(command, cwd=tmp_path, check=True)
        assert (data / f"{letter}.tar").stat().st_size < 100_000
        packed = PACK["zst"](random.Random(1), (data / f"{letter}.tar").read_bytes())
        (data / f"{letter}.tar.zst").write_bytes(packed)
    run = make_feed(data, batch='fields { name: "bin" dtype: "bytes" bytes_max: 67108864 }')
    assert rows_of(run, "bin") == 8 * want
    assert "skipped" not in "".join(counters(run))


@pytest.mark.parametrize("packing", ["", *sorted(PACK)])
def test_deaths_change_nothing(make_feed: MakeFeed, tmp_path: Path, packing: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    draw = random.Random(4)
    tar = drawn_tar(draw, 0, 1500)
    spoilt = bytearray(tar.data)
    for at, _, _ in tar.headers[100::200]:
        spoilt[at + 150] ^= 1
    whole = bytes(spoilt) + tar.data
    name = f"a.tar{'.' * bool(packing)}{packing}"
    (data / name).write_bytes(PACK[packing](draw, whole) if packing else whole)
    lost = {number for _, _, number in tar.headers[100::200]}
    want = [number for number in tar.ids if number not in lost] + tar.ids
    for kills in (0, 8):
        run = make_feed(data, source=TWO, batch=BATCH, extra=OFTEN, slots=2)
        assert rows_of(run, "id", kills) == want
        assert counters(run)["skipped_damaged"] == len(lost)
