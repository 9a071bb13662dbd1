"""Remote files over HTTP: whatever happens on the way, a copy is the object or is not there."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="no fsspec: scripts/requirements.txt has it")
pytest.importorskip("aiohttp", reason="no aiohttp: scripts/requirements.txt has it")

from ringfeed.remote import Patience, RemoteError, RemoteFiles  # noqa: E402
from ringfeed.remote.names import expand_braces, name_of, time_of, url_of  # noqa: E402
from ringfeed.remote.stores import Failed, Progress  # noqa: E402

from tests.support.fakes.fickle_server import (  # noqa: E402
    Change,
    Cut,
    FickleServer,
    Longer,
    Stall,
    Status,
    Truncate,
    WrongLength,
    WrongRange,
    serving,
)

QUICK = Patience(attempts=6, first_s=0.005, longest_s=0.02, stall_s=20)


@pytest.fixture
def server() -> Iterator[FickleServer]:
    with serving() as server:
        yield server


def some_bytes(count: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(count)


def files_of(cache: Path, urls: Any, **settings: Any) -> RemoteFiles:
    settings = {"cache_bytes": 64 << 20, "patience": QUICK, **settings}
    return RemoteFiles(urls, cache=cache, **settings)


def read_all(files: RemoteFiles, cursor: bytes | None = None) -> dict[str, bytes]:
    """The bytes of every file that is named, by the last part of its URL."""
    found = {}
    with files:
        for file, _ in files.read(cursor):
            if file["path"]:
                data = Path(file["path"]).read_bytes()
                assert len(data) == file["size"]
                found[file["url"].rsplit("/", 1)[1]] = data
    return found


def names_below(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    "faults, count",
    [
        ([], ""),
        ([Status(429)], "retries_status_429"),
        ([Status(500)], "retries_status_500"),
        ([Status(502), Status(504)], "retries_status_504"),
        ([Status(503, retry_after_s=0.01)] * 4, "retries_status_503"),
        ([Cut(0)], "retries"),
        ([Cut(250_000), Cut(10_000)], "retries"),
        ([Truncate(0), Truncate(200_000)], "retries_truncated"),
        ([WrongLength(5)], ""),
        ([Longer(5)], "changed"),
        ([Truncate(100_000), WrongRange()], "retries"),
        ([Status(503), Cut(1000), Truncate(1000), Status(429), Cut(1000)], "retries"),
    ],
)
def test_what_comes_is_the_object_whatever_happens_on_the_way(
    server: FickleServer, tmp_path: Path, faults: list[Any], count: str
) -> None:
    data = some_bytes(300_001)
    url = server.put("one.jsonl", data)
    server.faults["one.jsonl"] = list(faults)
    files = files_of(tmp_path / "cache", url)
    assert read_all(files) == {"one.jsonl": data}
    assert not server.faults["one.jsonl"], "a fault that nobody met"
    assert files.counts["fetched"] == 1 and files.counts["given_up"] == 0
    assert not count or files.counts[count] > 0, files.counts.all()
    assert names_below(tmp_path / "cache" / "partial") == []


def test_a_connection_that_is_cut_goes_on_where_it_was(
    server: FickleServer, tmp_path: Path
) -> None:
    data = some_bytes(900_000)
    url = server.put("one", data)
    server.faults["one"] = [Cut(500_000, held=True)]

    def cut_when_it_has_come() -> None:
        partial = tmp_path / "cache" / "partial"
        while not (
            partial.is_dir() and any(p.stat().st_size == 500_000 for p in partial.iterdir())
        ):
            time.sleep(0.01)
        server.release()

    cutter = threading.Thread(target=cut_when_it_has_come)
    cutter.start()
    files = files_of(tmp_path / "cache", url)
    assert read_all(files) == {"one": data}
    cutter.join()
    assert [request.first_byte for request in server.gets("one")] == [0, 500_000]
    assert server.sent_bytes == 900_000


def test_a_connection_that_brings_nothing_is_given_up(server: FickleServer, tmp_path: Path) -> None:
    data = some_bytes(300_000)
    url = server.put("one", data)
    server.faults["one"] = [Stall(100_000)]
    files = files_of(tmp_path / "cache", url, patience=Patience(first_s=0.01, stall_s=2))
    assert read_all(files) == {"one": data}
    assert files.counts["retries_stalled"] >= 1


@pytest.mark.parametrize("etags", [True, False])
@pytest.mark.parametrize("size", [300_000, 200_000, 400_000])
def test_an_object_that_changes_under_way_is_fetched_anew(
    tmp_path: Path, etags: bool, size: int
) -> None:
    with serving(etags=etags) as server:
        url = server.put("one", some_bytes(300_000))
        new = some_bytes(size, seed=2)
        server.faults["one"] = [Change(150_000, new)]
        files = files_of(tmp_path / "cache", url)
        assert read_all(files) == {"one": new}
        assert files.counts["changed"] == 1
        assert names_below(tmp_path / "cache" / "partial") == []


@pytest.mark.parametrize("etags", [True, False])
def test_a_partial_copy_of_another_version_is_not_gone_on_with(tmp_path: Path, etags: bool) -> None:
    with serving(etags=etags) as server:
        url = server.put("one", some_bytes(300_000))
        files = files_of(tmp_path / "cache", url, patience=replace(QUICK, attempts=10_000))
        server.faults["one"] = [Truncate(150_000)]
        server.always["one"] = Status(503)  # until it is another one
        new = some_bytes(300_000, seed=2)
        with files:
            found = files.read()

            def change_it() -> None:
                while len(server.gets("one")) < 2:
                    time.sleep(0.005)
                server.put("one", new)
                del server.always["one"]

            changer = threading.Thread(target=change_it)
            changer.start()
            file, _ = next(found)
            changer.join()
            assert Path(file["path"]).read_bytes() == new


def test_an_object_that_is_never_the_same_is_given_up(server: FickleServer, tmp_path: Path) -> None:
    url = server.put("one", some_bytes(1000))
    server.faults["one"] = [Change(500, some_bytes(1000, seed=i)) for i in range(2, 40)]
    files = files_of(tmp_path / "cache", url)
    assert read_all(files) == {}
    assert files.counts["given_up_changing"] == 1


@pytest.mark.parametrize(
    "fault, reason, asked",
    [(Status(503), "status_503", 6), (Status(403), "denied", 1), (Status(404), "missing", 1)],
)
def test_what_does_not_come_is_given_up_and_the_others_come(
    server: FickleServer, tmp_path: Path, fault: Status, reason: str, asked: int
) -> None:
    urls = [server.put(f"{i}", some_bytes(1000, seed=i)) for i in range(5)]
    server.faults["2"] = [fault] * 100
    files = files_of(tmp_path / "cache", urls)
    assert sorted(read_all(files)) == ["0", "1", "3", "4"]
    assert files.counts["given_up"] == files.counts[f"given_up_{reason}"] == 1
    assert len(server.gets("2")) == asked


WAITS = replace(QUICK, attempts=None)


@pytest.mark.parametrize("fault", [Status(503), Status(403), Status(401), Cut(0)])
def test_a_store_that_is_away_is_waited_for(
    server: FickleServer, tmp_path: Path, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    urls = [server.put(f"{i}", some_bytes(1000, seed=i)) for i in range(5)]
    server.faults["2"] = [fault] * 40
    files = files_of(tmp_path / "cache", urls, patience=WAITS)
    assert sorted(read_all(files)) == ["0", "1", "2", "3", "4"]
    assert files.counts["given_up"] == 0
    assert "store_away url=" in caplog.text and "it is waited for" in caplog.text


@pytest.mark.parametrize("status", [404, 410])
def test_what_a_store_says_is_gone_is_not_waited_for(
    server: FickleServer, tmp_path: Path, status: int
) -> None:
    urls = [server.put(f"{i}", some_bytes(1000, seed=i)) for i in range(3)]
    server.faults["1"] = [Status(status)] * 3
    files = files_of(tmp_path / "cache", urls, patience=WAITS)
    assert sorted(read_all(files)) == ["0", "2"]
    assert files.counts["given_up_missing"] == 1


@pytest.mark.parametrize("status", [503, 403])
def test_a_store_that_is_away_for_too_long_ends_it_with_the_reason(
    server: FickleServer, tmp_path: Path, status: int
) -> None:
    urls = [server.put(f"{i}", some_bytes(1000, seed=i)) for i in range(3)]
    server.always["1"] = Status(status)
    lost: list[str] = []
    patience = replace(WAITS, give_up_after_s=0.3)
    with files_of(tmp_path / "cache", urls, patience=patience, on_lost=lost.append) as files:
        with pytest.raises(RemoteError, match=f"has been away for .*answers {status}"):
            for _ in files.read():
                pass
    assert len(lost) == 1 and urls[1] in lost[0]


def test_a_store_that_is_down_when_it_is_asked_for_the_object_is_not_one_without_it(
    server: FickleServer, tmp_path: Path
) -> None:
    url = server.put("one", some_bytes(1000))
    # fsspec asks with GET when HEAD has failed, and calls it "not found" when that fails too.
    server.head_faults["one"] = [Status(503), Status(503)]
    server.faults["one"] = [Status(503), Status(503)]
    files = files_of(tmp_path / "cache", url)
    assert sorted(read_all(files)) == ["one"]
    assert files.counts["retries_status_503"] == 2


def test_a_server_that_is_not_there_is_not_one_without_the_object(tmp_path: Path) -> None:
    with serving() as server:
        url = server.put("one", b"1")
    files = files_of(tmp_path / "cache", url)
    assert read_all(files) == {}
    assert files.counts["given_up_connection"] == 1


@pytest.mark.parametrize("etags, times", [(False, True), (False, False)])
def test_a_server_that_knows_no_ranges_and_no_versions(
    tmp_path: Path, etags: bool, times: bool
) -> None:
    with serving(ranges=False, etags=etags, times=times) as server:
        data = some_bytes(700_000)
        url = server.put("one", data)
        server.faults["one"] = [Truncate(300_000), Truncate(500_000)]
        assert read_all(files_of(tmp_path / "cache", url)) == {"one": data}


def test_an_object_without_a_size_is_refused(tmp_path: Path) -> None:
    with serving(lengths=False, ranges=False) as server:
        files = files_of(tmp_path / "cache", server.put("one", b"12345"))
        assert read_all(files) == {}
        assert files.counts["given_up_no_size"] == 1


def test_an_object_without_bytes_is_a_file_without_bytes(
    server: FickleServer, tmp_path: Path
) -> None:
    assert read_all(files_of(tmp_path / "cache", server.put("one", b""))) == {"one": b""}


def test_a_second_pass_reads_the_cache(server: FickleServer, tmp_path: Path) -> None:
    urls = [server.put(f"{i}.txt", some_bytes(5000, seed=i)) for i in range(20)]
    first = read_all(files_of(tmp_path / "cache", urls))
    before = server.sent_bytes
    files = files_of(tmp_path / "cache", urls)
    assert read_all(files) == first and len(first) == 20
    assert server.sent_bytes == before
    assert files.counts["here"] == 20 and files.counts["fetched"] == 0


def test_a_copy_of_an_older_version_is_replaced(server: FickleServer, tmp_path: Path) -> None:
    url = server.put("one", some_bytes(5000))
    read_all(files_of(tmp_path / "cache", url))
    new = some_bytes(5000, seed=2)
    server.put("one", new)
    files = files_of(tmp_path / "cache", url)
    assert read_all(files) == {"one": new}
    assert files.fetcher.cache.used_bytes() == 8192


def test_patterns_braces_and_lists_name_objects_in_order(
    server: FickleServer, tmp_path: Path
) -> None:
    for name in ["b-2.txt", "b-1.txt", "a-07.bin", "a-08.bin", "a-09.bin", ".hidden"]:
        server.put(name, name.encode())
    server.put("files.list", b"# those of today\nb-2.txt\n\n" + f"{server.url}/a-08.bin\n".encode())

    def names(urls: Any, **settings: Any) -> list[str]:
        return list(read_all(files_of(tmp_path / "cache", urls, **settings)))

    assert names(f"{server.url}/b-*.txt") == ["b-1.txt", "b-2.txt"]
    assert names(f"{server.url}/a-{{07..08}}.bin") == ["a-07.bin", "a-08.bin"]
    assert names([], lists=f"{server.url}/files.list") == ["b-2.txt", "a-08.bin"]
    both = names(f"{server.url}/[ab]-*", lists=f"{server.url}/files.list")
    assert both == ["b-2.txt", "a-08.bin", "a-07.bin", "a-09.bin", "b-1.txt"]


def test_a_listing_that_fails_says_why(server: FickleServer, tmp_path: Path) -> None:
    files = files_of(tmp_path / "cache", [], lists=f"{server.url}/nothing.list")
    with pytest.raises(RemoteError, match=r"nothing\.list"):
        read_all(files)


@pytest.mark.parametrize("wait", [True, False])
def test_a_cursor_goes_on_behind_its_file(server: FickleServer, tmp_path: Path, wait: bool) -> None:
    urls = [server.put(f"{i:02}", bytes([i])) for i in range(8)]
    with files_of(tmp_path / "cache", urls, wait=wait) as files:
        whole = list(files.read())
    assert [file["url"] for file, _ in whole] == [*urls, ""]
    assert all(len(cursor) <= 4096 for _, cursor in whole)
    for i, (_, cursor) in enumerate(whole[:-1]):
        with files_of(tmp_path / "cache", urls, wait=wait) as files:
            assert [file["url"] for file, _ in files.read(cursor)] == [*urls[i + 1 :], ""]
    with files_of(tmp_path / "cache", urls) as files, pytest.raises(RemoteError, match="no cursor"):
        next(files.read(b"{"))


def test_new_and_changed_objects_are_named_by_the_next_listing(
    server: FickleServer, tmp_path: Path
) -> None:
    server.put("a.txt", b"1")
    with files_of(tmp_path / "cache", f"{server.url}/*.txt", look_again_s=0.02) as files:
        found = files.read()
        assert [next(found)[0]["url"][-5:], next(found)[0]["url"]] == ["a.txt", ""]
        server.put("c.txt", b"3")
        assert next(found)[0]["url"].endswith("c.txt")
        assert next(found)[0]["url"] == ""
        server.put("a.txt", b"2")
        file = next(found)[0]
        assert file["url"].endswith("a.txt") and Path(file["path"]).read_bytes() == b"2"


def test_names_in_the_cache_are_those_of_the_store_and_never_the_same_for_two() -> None:
    assert name_of("s3://bucket/data/x/a.tar", "s3") == "s3/bucket/data/x/a.tar"
    assert name_of("https://h/d/a.gz?key=1", "https") == "https/h/d/?key=1/a.gz"
    urls = ["s3://b/a/../c", "s3://b/c", "s3://b/a//c", "s3://b/a/c", "s3://b/a/%2E%2E/c"]
    urls += ["s3://b/" + "x" * 300 + ".tar.gz", "s3://b/" + "x" * 301 + ".tar.gz", "s3://b/a/./c"]
    names = [name_of(url, "s3") for url in urls]
    assert len(set(names)) == len(urls)
    for name in names:
        parts = name.split("/")
        assert not {"", ".", ".."} & set(parts) and all(len(os.fsencode(p)) < 256 for p in parts)
    assert names[5].endswith(".tar.gz")
    for url, name in zip(urls, names):
        assert url_of(name, "s3", "s3") == (None if len(url) > 200 else url)
        assert url_of(name, "s3", "s3@12345678") is None
    for web in ("https://h/d/100%25%2E/a.gz?key=1&b=/", "https://h/d/a.gz?key=1"):
        assert url_of(name_of(web, "https"), "https", "https") == web


@pytest.mark.parametrize(
    "url",
    [
        "http://h/authorized_keys?../../../../home/me/.ssh",
        "http://h/a?/etc/x",
        "http://h/a?..",
        "http://h/..?/..",
        "http://../a/../../b",
        "http://h/a?%2e%2e/%2F..",
        "http://h//etc/passwd",
        "http://h/a\0b\nc?\0/../\n",
        "s3:///../../etc/x",
        "s3://b/" + "../" * 1300 + "x",
        "s3://b/" + "/".join(["y" * 190] * 20) + "/x",
        "http://h/" + "z" * 4096 + "?" + "/.." * 1300,
        "file:///../../etc/passwd",
    ],
)
def test_no_url_gives_a_name_that_leaves_the_cache(url: str) -> None:
    place = url.split(":", 1)[0]
    name = name_of(url, place)
    parts = name.split("/")
    assert not {"", ".", ".."} & set(parts) and not {"\0", "\n"} & set(name)
    assert all(len(os.fsencode(part)) < 256 for part in parts) and len(os.fsencode(name)) < 3000
    assert url_of(name, place, place) in (url, None)


def test_braces_and_times() -> None:
    assert expand_braces("a{1,22}b{08..10}") == [
        f"a{x}b{y}" for x in (1, 22) for y in ("08", "09", "10")
    ]
    assert expand_braces("{x}") == ["{x}"] and expand_braces("{3..1}") == ["3", "2", "1"]
    # As C++ has them.
    assert time_of(0, 0) == 1489852503 and time_of(1 << 40, 999_999_999) == 1024920791


def test_a_connection_that_brings_nothing_does_not_hold_up_the_end(
    server: FickleServer, tmp_path: Path
) -> None:
    url = server.put("one", some_bytes(300_000))
    server.faults["one"] = [Stall(1000)]
    # It would be given up after ten minutes: longer than this test may take.
    files = files_of(tmp_path / "cache", url, patience=Patience(stall_s=600), wait=False)
    list(files.read())
    server.stalled.wait()
    files.close()
    assert not [one for one in threading.enumerate() if one in files.fetcher._threads]
    assert names_below(tmp_path / "cache" / "objects") == []


def test_stores_without_ranges_to_stream_are_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfeed.remote.stores._BLOCK_BYTES", 1000)
    place = tmp_path / "store"
    place.mkdir()
    for i, size in enumerate((0, 1, 999, 1000, 1001, 54_321)):
        (place / f"{i}.bin").write_bytes(some_bytes(size, seed=i))
    found = read_all(files_of(tmp_path / "cache", f"file://{place}/*.bin"))
    assert found == {path.name: path.read_bytes() for path in place.iterdir()}


def test_an_object_that_changes_between_two_blocks_is_fetched_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfeed.remote.stores._BLOCK_BYTES", 1000)
    path = tmp_path / "one.bin"
    path.write_bytes(some_bytes(3000))
    new = some_bytes(3000, seed=2)
    files = files_of(tmp_path / "cache", f"file://{tmp_path}/*.bin")
    fs = files._stores.of("file:///")._fs
    plain = fs.cat_file

    def changing(*words: Any, **named: Any) -> bytes:
        data = bytes(plain(*words, **named))
        if named["start"] == 1000 and path.read_bytes() != new:
            path.write_bytes(new)
            os.utime(path, (5, 5))
        return data

    fs.cat_file = changing
    assert read_all(files) == {"one.bin": new}
    assert files.counts["changed"] == 1


def test_what_is_missing_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    real = importlib.import_module

    def without(name: str, *words: Any) -> Any:
        if name == "fsspec":
            raise ImportError("No module named 'fsspec'")
        return real(name, *words)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(RemoteError, match=r"pip install 'ringfeed\[remote\]'"):
        files_of(tmp_path, "http://127.0.0.1/x")
    monkeypatch.undo()
    with pytest.raises(RemoteError, match="nosuch"):
        files_of(tmp_path, "nosuch://x/y")


def test_what_is_over_is_not_written_to(tmp_path: Path) -> None:
    progress = Progress()
    with (tmp_path / "file").open("wb") as file:
        assert progress.begin(file.fileno) == file.fileno()
        progress.take(file.fileno(), b"some")
        progress.end()
        with pytest.raises(Failed, match="given up"):
            progress.take(file.fileno(), b" more")
        assert progress.begin(file.fileno) is None
    assert progress.bytes == 4 and (tmp_path / "file").read_bytes() == b"some"
