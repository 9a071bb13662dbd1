"""The stage remote_files, whole: feeds whose files are objects of a web server and of S3."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfeed
from tests.support.fakes.fickle_server import Cut, FickleServer, Status, serving
from tests.support.feeds.feed_run import PIPELINE, FeedRun, processes_of, wait_until
from tests.support.feeds.scenes import kill_supervisor

from tests.support.makers import lc0_data

STAGES = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "files" {files} }}
stages {{ name: "lines" sample_source {{
  input: "files" threads: 2 block_bytes: 65536 shuffle_files: true queue_capacity: 8
  fields {{ name: "id" dtype: "int64" }} }} }}
stages {{ name: "batches" sample_batcher {{
  input: "lines" batch_size: 50 fields {{ name: "id" dtype: "int64" }} }} }}
feed_output {{ slots: 2 }}
restart {{ max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: 255 }}
{extra}
"""
FILES, ROWS = 16, 400
GAMES = PIPELINE.replace(
    'file_path_provider {{ directory: "{directory}" queue_capacity: 64 }}', "{files}"
)


def texts() -> dict[str, bytes]:
    """Objects of JSON lines by their names, 260 KB each."""
    rng = random.Random(1)
    made = {}
    for i in range(FILES):
        lines = [
            json.dumps({"id": ROWS * i + row, "pad": "x" * rng.randrange(1300)}) + "\n"
            for row in range(ROWS)
        ]
        made[f"data/{i:02}.jsonl"] = "".join(lines).encode()
    return made


Runs = Callable[..., FeedRun]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Runs]:
    """Starts a feed with this stage of files."""
    made: list[FeedRun] = []

    def begin(files: str, feed: str = "remote", **settings: Any) -> FeedRun:
        work = tmp_path / f"run{len(made)}"
        work.mkdir()
        values = {"feed": feed, "pipeline": STAGES, "epochs": 1, "extra": "", **settings}
        made.append(FeedRun(work, work, files=files, **values).start())
        return made[-1]

    yield begin
    for run in made:
        run.close()


def remote(urls: str | list[str], cache: Path, cache_bytes: int, more: str = "") -> str:
    named = " ".join(f'url: "{url}"' for url in ([urls] if isinstance(urls, str) else urls))
    return f'remote_files {{ {named} cache: "{cache}" cache_bytes: {cache_bytes} {more} }}'


def ids_of(run: FeedRun, each: Callable[[], None] = lambda: None) -> list[int]:
    """What a trainer gets to the end; `each` is called behind each batch."""
    got: list[int] = []
    with ringfeed.attach(
        run.feed, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
    ) as feed:
        for batch in feed:
            got += np.array(batch["id"]).tolist()
            batch.release()
            each()
    assert run.wait() == 0, run.text()
    return got


def local_ids(start: Runs, tmp_path: Path, epochs: int) -> list[int]:
    """The same of files of this host."""
    for name, data in texts().items():
        path = tmp_path / "local" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    stage = f'file_path_provider {{ directory: "{tmp_path / "local" / "data"}" }}'
    ids = ids_of(start(stage, feed="local", epochs=epochs))
    assert sorted(ids) == sorted(list(range(FILES * ROWS)) * epochs)
    return ids


def puts(server: FickleServer) -> str:
    """All objects, and the pattern that names them."""
    for name, data in texts().items():
        server.put(name, data)
    return f"{server.url}/data/{{00..{FILES - 1:02}}}.jsonl"


def cached_bytes(cache: Path) -> int:
    total = 0
    for path in (cache / "objects").rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def test_batches_are_those_of_local_files_though_all_processes_die(
    start: Runs, tmp_path: Path
) -> None:
    expected = local_ids(start, tmp_path, epochs=2)
    rng = random.Random(3)
    batches = 0
    killed: list[str] = []
    with serving() as server:
        pattern = puts(server)
        for name in list(server.objects)[::3]:
            server.faults[name] = [Cut(1000), Status(503)]
        cache = tmp_path / "cache"
        # Room for four of sixteen.
        run = start(remote(pattern, cache, 1_200_000), epochs=2)

        def disturb() -> None:
            nonlocal batches
            batches += 1
            if batches % 12:
                return
            assert run.process is not None
            if len(killed) % 8 == 3:
                kill_supervisor(run)
                run.start()
                # What it asks programs before it is one may not be killed.
                wait_until(run.status, "the next supervisor")
                killed.append("supervisor")
                return
            processes = processes_of(run)
            processes.pop(run.process.pid, None)
            # That of the files first, as long as it has something to do.
            files = [pid for pid, name in processes.items() if name.startswith("rf-files")]
            victims = files if files and not killed else sorted(processes)
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                victim = rng.choice(victims)
                os.kill(victim, signal.SIGKILL)
                killed.append(processes[victim])

        assert ids_of(run, disturb) == expected
        gets = sum(len(server.gets(name)) for name in server.objects)
    assert "supervisor" in killed
    assert any(name.startswith("rf-files") for name in killed), killed
    assert gets > 2 * FILES, "the cache has never forgotten anything"


def test_two_feeds_share_one_download(start: Runs, tmp_path: Path) -> None:
    expected = local_ids(start, tmp_path, epochs=1)
    with serving() as server:
        stage = remote(puts(server), tmp_path / "cache", 64 << 20)
        feeds = [start(stage, feed=name) for name in ("one", "two")]
        got: dict[str, list[int]] = {}

        def take(run: FeedRun) -> None:
            got[run.feed] = ids_of(run)

        threads = [threading.Thread(target=take, args=(run,)) for run in feeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gets = {name: len(server.gets(name)) for name in server.objects}
    assert got == {"one": expected, "two": expected}
    assert set(gets.values()) == {1}, gets


def test_a_directory_of_s3_is_a_directory(
    start: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3fs = pytest.importorskip("s3fs", reason="no s3fs: scripts/requirements.txt has it")
    moto = pytest.importorskip("moto.server", reason="no moto: scripts/requirements.txt has it")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    expected = local_ids(start, tmp_path, epochs=2)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"endpoint_url": f"http://{host}:{port}"}
        fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
        fs.mkdir("games")
        for name, data in texts().items():
            fs.pipe_file(f"games/{name}", data)
        cache = tmp_path / "cache"
        run = start(
            f'file_path_provider {{ directory: "s3://games/data" cache: "{cache}" '
            f"cache_bytes: 1200000 storage_options: '{json.dumps(options)}' }}",
            epochs=2,
        )
        most = 0

        def look() -> None:
            nonlocal most
            most = max(most, cached_bytes(cache))

        assert ids_of(run, look) == expected
        assert 0 < most <= 1_200_000 or "cache_limit_exceeded" in run.text(), most
    finally:
        server.stop()


def test_an_endless_run_finds_what_comes_later(start: Runs, tmp_path: Path) -> None:
    with serving() as server:
        for name, data in list(texts().items())[:2]:
            server.put(name, data)
        listed = server.put("list", b"data/00.jsonl\ndata/01.jsonl\n")
        stage = (
            f'remote_files {{ list: "{listed}" cache: "{tmp_path / "cache"}" '
            "cache_bytes: 67108864 look_again_s: 0.2 }"
        )
        run = start(stage, epochs=0)
        late = json.dumps({"id": -1}) + "\n"
        with ringfeed.attach(
            run.feed, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
        ) as feed:
            seen: set[int] = set()
            for number, batch in enumerate(feed):
                seen.update(np.array(batch["id"]).tolist())
                batch.release()
                if number == 4:
                    server.put("data/99.jsonl", late.encode())
                    server.put("list", b"data/00.jsonl\ndata/01.jsonl\ndata/99.jsonl\n")
                if number == 8:
                    os.kill(run.all_workers()["files.0"], signal.SIGKILL)
                if -1 in seen and number > 20:
                    break
        assert run.stop() == 0
        assert seen >= set(range(2 * ROWS))
        # Each once, though the one that has named them has died.
        assert "files: files_found=3\n" in run.text()


@pytest.mark.parametrize("copies", ["from before", "between epochs"])
def test_copies_that_were_damaged_are_fetched_again(
    start: Runs, tmp_path: Path, copies: str
) -> None:
    """Cut, emptied, grown, or replaced by what is no file: the store still has the object."""
    cache = tmp_path / "cache"
    damaged = 0

    def damage() -> None:
        nonlocal damaged
        paths = sorted(path for path in (cache / "objects").rglob("*.jsonl") if path.is_file())
        for number, path in enumerate(paths[:12]):
            damaged += 1
            if number % 6 == 0:
                os.truncate(path, 1000)
            elif number % 6 == 1:
                os.truncate(path, 0)
            elif number % 6 == 2:
                with path.open("ab") as file:
                    file.write(b'{"id": -1}\n')
            else:
                path.unlink()
                if number % 6 == 3:
                    path.mkdir()
                elif number % 6 == 4:
                    os.mkfifo(path)
                else:
                    path.symlink_to(tmp_path / "nothing")

    with serving() as server:
        stage = remote(puts(server), cache, 64 << 20)
        expected = ids_of(start(stage, epochs=2))
        assert sorted(expected) == sorted(list(range(FILES * ROWS)) * 2)
        if copies == "from before":
            damage()
        batches = 0

        def each() -> None:
            nonlocal batches
            batches += 1
            # Of what is read ahead of the trainer some is open, and all of it is named.
            if copies == "between epochs" and batches == FILES * ROWS // 50 // 2:
                damage()

        run = start(stage, epochs=2)
        got = ids_of(run, each)
    assert damaged == 12
    if copies == "from before":
        assert got == expected
        assert "skipped_" not in run.text()
    else:
        # What is cut while it is read ends there, and is counted; the second epoch has all of it.
        assert set(got) == set(range(FILES * ROWS))


def test_a_store_that_lists_nothing_ends_a_run_with_the_reason(start: Runs, tmp_path: Path) -> None:
    with serving() as server:
        run = start(
            f'remote_files {{ list: "{server.url}/none" cache: "{tmp_path / "cache"}" '
            "cache_bytes: 67108864 }"
        )
        with pytest.raises(ringfeed.FeedFailed, match="the objects cannot be listed"):
            ids_of(run)
        assert run.wait() != 0


@pytest.mark.parametrize("status", [503, 403])
def test_a_store_that_is_away_for_too_long_fails_the_feed_with_the_reason(
    start: Runs, tmp_path: Path, status: int
) -> None:
    with serving() as server:
        urls = [server.put(name, data) for name, data in texts().items()]
        server.always["data/03.jsonl"] = Status(status)
        run = start(remote(urls, tmp_path / "cache", 64 << 20, "give_up_after_s: 0.5"))
        with pytest.raises(ringfeed.FeedFailed) as raised:
            ids_of(run)
        assert "has been away for" in str(raised.value)
        assert f"answers {status}" in str(raised.value) and urls[3] in str(raised.value)
        assert run.wait() == 1


def test_a_store_that_is_away_for_a_while_loses_nothing(start: Runs, tmp_path: Path) -> None:
    with serving() as server:
        urls = [server.put(name, data) for name, data in texts().items()]
        server.always["data/03.jsonl"] = Status(503)
        run = start(remote(urls, tmp_path / "cache", 64 << 20))
        waits = threading.Thread(
            target=lambda: (
                wait_until(lambda: "store_away" in run.text(), "the notice"),
                server.always.clear(),
            )
        )
        waits.start()
        rows = ids_of(run)
        waits.join()
        assert sorted(rows) == list(range(FILES * ROWS))
        assert "skipped_vanished" not in run.text()


def test_check_says_what_is_missing(tmp_path: Path) -> None:
    def said(files: str) -> str:
        work = tmp_path / "check"
        work.mkdir(exist_ok=True)
        run = FeedRun(work, work, files=files, feed="remote", pipeline=STAGES, epochs=1, extra="")
        done = run.command("check", str(run.config))
        return done.stdout + done.stderr

    assert "cache_bytes is not set" in said('file_path_provider { directory: "s3://b/d" }')
    fine = remote("s3://b/d/", tmp_path / "cache", 1 << 20)
    if_s3 = said(fine)
    try:
        import s3fs  # noqa: F401

        assert "s3fs" not in if_s3
    except ImportError:
        assert "pip install s3fs" in if_s3
    assert "Protocol not known" in said(remote("s4://b/d/", tmp_path / "cache", 1 << 20))


def test_a_process_that_answers_readers_comes_back_when_its_lane_is_over(
    start: Runs, tmp_path: Path
) -> None:
    with serving() as server:
        run = start(remote(puts(server), tmp_path / "cache", 1_100_000), epochs=3)
        wait_until(
            lambda: "worker_finished feed=remote group=files.0" in run.text(),
            "the end of the listing",
        )
        first = run.all_workers()["files.0"]
        os.kill(first, signal.SIGKILL)
        got = ids_of(run)
        assert sorted(got) == sorted(list(range(FILES * ROWS)) * 3)
    assert "idle_worker_died feed=remote group=files.0" in run.text()


def test_games_of_a_store_are_those_of_a_directory(
    start: Runs, games: lc0_data.Manifest, tmp_path: Path
) -> None:
    directory = Path(games.directory)
    with serving() as server:
        urls = []
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            data = path.read_bytes()
            urls.append(server.put(str(path.relative_to(directory)), data))
        provider = f'file_path_provider {{ directory: "{directory}" }}'
        cache = tmp_path / "cache"
        got = []
        for files in (provider, remote(urls, cache, 2_200_000)):
            run = start(files, pipeline=GAMES, epochs=2, feed=f"games{len(got)}")
            batches = []
            with ringfeed.attach(
                run.feed, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
            ) as feed:
                for batch in feed:
                    batches.append({name: np.array(batch[name]).tobytes() for name in batch})
                    batch.release()
            assert run.wait() == 0, run.text()
            got.append(batches)
        gets = sum(len(server.gets(name)) for name in server.objects)
    assert got[0] == got[1]
    assert gets > len(urls), "the cache has never forgotten anything"
