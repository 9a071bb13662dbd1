"""Remote files of an S3 server: moto's, on loopback."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("s3fs", reason="no s3fs: scripts/requirements.txt has it")
moto_server = pytest.importorskip("moto.server", reason="no moto: scripts/requirements.txt has it")

import s3fs  # noqa: E402
from ringfeed.remote import Patience, RemoteFiles  # noqa: E402
from ringfeed.remote.stores import Store  # noqa: E402

KEYS = {"key": "test", "secret": "test"}


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    yield {**KEYS, "client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
    server.stop()


@pytest.fixture
def bucket(options: dict[str, Any], request: pytest.FixtureRequest) -> tuple[Any, str]:
    """A file system to put objects with, and a bucket of the test's own."""
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True, use_listings_cache=False)
    name = "b" + format(abs(hash(request.node.name)), "x")
    fs.mkdir(name)
    return fs, name


def files_of(tmp_path: Path, urls: Any, options: dict[str, Any], **settings: Any) -> RemoteFiles:
    return RemoteFiles(
        urls,
        cache=tmp_path / "cache",
        cache_bytes=64 << 20,
        storage_options=options,
        patience=Patience(attempts=3, first_s=0.01, longest_s=0.05),
        **settings,
    )


def read_all(files: RemoteFiles) -> dict[str, bytes]:
    with files:
        return {
            file["url"]: Path(file["path"]).read_bytes() for file, _ in files.read() if file["path"]
        }


def test_objects_of_a_pattern_come_as_they_are(
    bucket: tuple[Any, str],
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fs, name = bucket
    stored = {}
    for key, size in [("a/1.jsonl", 10), ("a/b/2.jsonl", 0), ("a/b/c/3.jsonl", 2_000_003)]:
        stored[f"s3://{name}/data/{key}"] = random.Random(size).randbytes(size)
        fs.pipe_file(f"{name}/data/{key}", stored[f"s3://{name}/data/{key}"])
    fs.pipe_file(f"{name}/data/a/other.txt", b"no")
    fs.pipe_file(f"{name}/data/.hidden.jsonl", b"no")
    files = files_of(tmp_path, f"s3://{name}/data/**/*.jsonl", options)
    looks: list[str] = []
    look = Store.look
    monkeypatch.setattr(
        Store, "look", lambda self, item: (looks.append(item.url), look(self, item))[1]
    )
    found = read_all(files)
    assert looks == [], "a listing and the requests themselves say which version it is"
    assert found == stored and list(found) == sorted(stored)
    again = files_of(tmp_path, f"s3://{name}/data/a/", options)
    assert len(read_all(again)) == 4
    assert again.counts["here"] == 3 and again.counts["fetched"] == 1


def test_an_object_that_is_put_anew_is_fetched_anew(
    bucket: tuple[Any, str], options: dict[str, Any], tmp_path: Path
) -> None:
    fs, name = bucket
    url = f"s3://{name}/one"
    for data in (b"x" * 1000, b"y" * 1000, b"z" * 500):
        fs.pipe_file(f"{name}/one", data)
        assert read_all(files_of(tmp_path, url, options)) == {url: data}


def test_an_object_that_changes_between_listing_and_fetching_is_the_new_one(
    bucket: tuple[Any, str], options: dict[str, Any], tmp_path: Path
) -> None:
    fs, name = bucket
    fs.pipe_file(f"{name}/d/one", b"x" * 1000)
    files = files_of(tmp_path, f"s3://{name}/d/*", options)
    find = files._stores.find

    def changes_after(*words: Any) -> Any:
        found = list(find(*words))
        fs.pipe_file(f"{name}/d/one", b"y" * 900)
        return iter(found)

    files._stores.find = changes_after  # type: ignore[method-assign]
    with files:
        file, _ = next(files.read())
        assert (Path(file["path"]).read_bytes(), file["size"]) == (b"y" * 900, 900)
    assert files.counts["changed"] == 1


def test_a_partial_copy_is_gone_on_with(
    bucket: tuple[Any, str], options: dict[str, Any], tmp_path: Path
) -> None:
    fs, name = bucket
    data = random.Random(1).randbytes(500_000)
    fs.pipe_file(f"{name}/d/one", data)
    files = files_of(tmp_path, f"s3://{name}/d/*", options)
    (item,) = files._stores.find([f"s3://{name}/d/*"], [])
    files.fetcher.cache.partial(item).write_bytes(data[:200_000])
    assert read_all(files) == {item.url: data}
    assert files.counts["resumed_bytes"] == 200_000


def test_what_is_not_there_is_given_up_with_its_reason(
    bucket: tuple[Any, str],
    options: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs, name = bucket
    fs.pipe_file(f"{name}/one", b"1")
    files = files_of(tmp_path, [f"s3://{name}/none", f"s3://{name}/one"], options)
    assert read_all(files) == {f"s3://{name}/one": b"1"}
    assert files.counts["given_up_missing"] == 1
    for nothing in (f"s3://{name}/x*", "s3://no-such-bucket-here/x/*"):
        assert read_all(files_of(tmp_path, nothing, options)) == {}
        assert f"nothing_found url={nothing}" in caplog.text


def test_a_name_that_is_a_file_and_a_directory_is_given_up(
    bucket: tuple[Any, str], options: dict[str, Any], tmp_path: Path
) -> None:
    fs, name = bucket
    fs.pipe_file(f"{name}/d/a", b"file")
    fs.pipe_file(f"{name}/d/a/b", b"below it")
    files = files_of(tmp_path, [f"s3://{name}/d/a/b", f"s3://{name}/d/a"], options, threads=1)
    assert list(read_all(files)) == [f"s3://{name}/d/a/b"]
    assert files.counts["given_up_denied"] == 1
    assert list((tmp_path / "cache" / "partial").iterdir()) == []


def test_two_stores_of_one_protocol_do_not_share_names(
    bucket: tuple[Any, str], options: dict[str, Any], tmp_path: Path
) -> None:
    fs, name = bucket
    fs.pipe_file(f"{name}/one", b"1")
    with files_of(tmp_path, f"s3://{name}/one", options) as files:
        here = next(files.read())[0]["path"]
    with files_of(tmp_path, f"s3://{name}/one", KEYS, wait=False) as files:
        assert next(files.read())[0]["path"] != here
