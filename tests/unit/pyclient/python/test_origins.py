"""From the lineage of a batch back to files and places, beside the files themselves."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import ringfeed
from ringfeed.origins import _identity


def row(path: Path, place: int) -> tuple[int, int]:
    return _identity(str(path)), place


def test_an_identity_is_that_of_the_stages() -> None:
    # mix("a") and mix("/data/a.jsonl") of ringfeed/worker/random.h.
    assert _identity("a") == 0x5F29C2AADD9B8527
    assert _identity("/data/a.jsonl") == 0xB6F529828662F7CD


def test_lines_are_counted(tmp_path: Path) -> None:
    lines = [f"{'x' * (i % 700)}\n".encode() for i in range(5000)]
    begins = [0, *np.cumsum([len(line) for line in lines]).tolist()]
    packings: dict[str, Callable[[bytes], bytes]] = {
        "a.jsonl": bytes,
        "b.txt.gz": gzip.compress,
        "c.txt.bz2": bz2.compress,
        "d.jsonl.xz": lzma.compress,
    }
    wanted = [4999, 0, 17, 3000, 17]
    for name, pack in packings.items():
        path = tmp_path / name
        path.write_bytes(pack(b"".join(lines)))
        rows = np.array([row(path, begins[i]) for i in wanted], np.uint64)
        found = ringfeed.lineage(rows, tmp_path)
        assert [str(origin) for origin in found] == [f"{path}, line {i + 1}" for i in wanted]
        # No line begins there, or the file is shorter now.
        for place in (begins[17] + 1, begins[-1] + 5):
            other = np.array([row(path, place)], np.uint64)
            assert str(ringfeed.lineage(other, tmp_path)[0]) == f"{path}, byte {place}"


def test_rows_and_members_are_named(tmp_path: Path) -> None:
    array = tmp_path / "a.npy"
    np.save(array, np.zeros((10, 3), np.float32))
    begin = array.stat().st_size - 120
    shard = tmp_path / "b.tar"
    with tarfile.open(shard, "w") as tar:
        for name in ("k/1.txt", "k/1.cls", "k/2.txt"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    rows = [
        row(array, begin + 12 * 7),
        row(array, begin + 1),
        row(shard, 512),
        row(shard, 2048 + 512),
        row(tmp_path / "c.npz", 5),
        row(tmp_path / "d.parquet", 6),
        row(tmp_path / "gone.jsonl", 3),
        (1, 2),
    ]
    paths = [tmp_path, tmp_path / "c.npz", tmp_path / "d.parquet", tmp_path / "gone.jsonl"]
    found = ringfeed.lineage(np.array(rows, np.uint64), paths)
    assert [origin and str(origin).removeprefix(f"{tmp_path}/") for origin in found] == [
        "a.npy, row 7",
        f"a.npy, byte {begin + 1}",
        "b.tar, member k/1.txt",
        "b.tar, member k/2.txt",
        "c.npz, row 5",
        "d.parquet, row 6",
        "gone.jsonl, byte 3",
        None,
    ]


def test_texts_of_logs_and_other_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.weird"
    path.write_text("one\ntwo\n")
    text = f"{_identity(str(path)):016x}:4"
    assert str(ringfeed.lineage(text, path)[0]) == f"{path}, line 2"
    assert str(ringfeed.lineage([text], [path], format="PARQUET")[0]) == f"{path}, row 4"
    monkeypatch.chdir(tmp_path)
    assert str(ringfeed.lineage(text, "a.weird")[0]) == f"{path}, line 2"
    assert ringfeed.lineage([], path) == []


def test_what_is_no_lineage_is_refused(tmp_path: Path) -> None:
    for wrong in ("text", ["12:x"], np.zeros((2, 3), np.uint64), [[-1, 2]]):
        with pytest.raises(ringfeed.InvalidRequest, match="lineage"):
            ringfeed.lineage(wrong, tmp_path)
    with pytest.raises(ringfeed.InvalidRequest, match="format"):
        ringfeed.lineage([], tmp_path, format="PDF")


def tar_of(*names: str) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    return sink.getvalue()


def test_members_of_packed_and_joined_tars_are_named(tmp_path: Path) -> None:
    first = tar_of("1.txt", "2.txt")
    whole = first + tar_of("3.txt")
    packings: dict[str, Callable[[bytes], bytes]] = {
        "a.tar": bytes,
        "b.tar.gz": gzip.compress,
        "c.tar.xz": lzma.compress,
    }
    for name, pack in packings.items():
        path = tmp_path / name
        path.write_bytes(pack(whole))
        rows = [row(path, 512), row(path, 1536), row(path, len(first) + 512)]
        found = ringfeed.lineage(np.array(rows, np.uint64), tmp_path)
        assert [origin and origin.member for origin in found] == ["1.txt", "2.txt", "3.txt"]


def test_damaged_files_are_named_as_far_as_they_go(tmp_path: Path) -> None:
    lines = b"".join(b"line %d\n" % i for i in range(1000))
    packed = {
        "cut.txt.gz": gzip.compress(lines)[:-4],
        "rubbish.txt.gz": gzip.compress(lines) + b"rubbish",
        "joined.txt.xz": lzma.compress(lines) + b"rubbish",
    }
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
        rows = np.array([row(tmp_path / name, 7)], np.uint64)
        assert str(ringfeed.lineage(rows, tmp_path)[0]) == f"{tmp_path / name}, line 2"
    tar = tar_of("1.txt", "2.txt")
    (tmp_path / "cut.tar").write_bytes(tar[:1500])
    (tmp_path / "bad.tar.gz").write_bytes(gzip.compress(tar)[:60] + bytes(50))
    for name in ("cut.tar", "bad.tar.gz"):
        rows = np.array([row(tmp_path / name, 512), row(tmp_path / name, 5120)], np.uint64)
        found = ringfeed.lineage(rows, tmp_path)
        assert [origin and origin.unit for origin in found] == ["sample", "sample"], name
        assert found[1] and found[1].member is None
        assert name != "cut.tar" or (found[0] and found[0].member == "1.txt")


def test_heads_of_any_length_are_read(tmp_path: Path) -> None:
    many = np.zeros(3, [(f"a rather long name {i}", "u1") for i in range(1000)])
    np.save(tmp_path / "many.npy", many)
    begin = (tmp_path / "many.npy").stat().st_size - many.nbytes
    rows = np.array([row(tmp_path / "many.npy", begin + 1000)], np.uint64)
    assert str(ringfeed.lineage(rows, tmp_path)[0]) == f"{tmp_path}/many.npy, row 1"
