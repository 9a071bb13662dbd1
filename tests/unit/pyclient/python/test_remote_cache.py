"""The cache of remote files: for processes that die, within its limit, on a full disk."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="no fsspec: scripts/requirements.txt has it")
pytest.importorskip("aiohttp", reason="no aiohttp: scripts/requirements.txt has it")

from ringfeed.remote import (  # noqa: E402
    Cache,
    Fetcher,
    Outcome,
    Patience,
    RemoteError,
    RemoteFiles,
)  # noqa: E402
from ringfeed.remote.cache import hash_of  # noqa: E402
from ringfeed.remote.names import RemoteObject, name_of  # noqa: E402
from ringfeed.remote.stores import Stores  # noqa: E402

from tests.support.fakes.fickle_server import (  # noqa: E402
    Cut,
    FickleServer,
    Stall,
    Status,
    Truncate,
    serving,
)
from tests.support.feeds.feed_run import WAIT_S  # noqa: E402

QUICK = Patience(attempts=6, first_s=0.005, longest_s=0.02, stall_s=20)
# Children find what these tests find.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
KILLS = int(os.environ.get("RINGFEED_REMOTE_KILLS", "40"))


@pytest.fixture
def server() -> Iterator[FickleServer]:
    with serving() as server:
        yield server


def test_a_file_system_without_nanoseconds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No copy would be known there for what it is, and each would be fetched for ever."""
    utime = os.utime

    def to_100_ns(path: Any, *, ns: tuple[int, int]) -> None:
        utime(path, ns=(ns[0] // 100 * 100, ns[1] // 100 * 100))

    monkeypatch.setattr(os, "utime", to_100_ns)
    with pytest.raises(RemoteError, match="to the nanosecond"):
        Cache(tmp_path / "cache", 1 << 20)


def wait_until(condition: Callable[[], Any]) -> None:
    """The test's own limit of time ends it if that never comes."""
    while not condition():
        time.sleep(0.005)


def item_of(url: str) -> RemoteObject:
    return RemoteObject(url, url, name_of(url, "http"), None, None, None)


class Scene:
    """A cache of objects of 100,000 bytes (102,400 on the disk), fetched one after the other."""

    def __init__(self, server: FickleServer, directory: Path, bytes_max: int = 1 << 20) -> None:
        self.server = server
        self.cache = Cache(directory, bytes_max)
        self.fetcher = Fetcher(self.cache, Stores({}, 20), 2, QUICK)
        self.items: dict[int, RemoteObject] = {}

    def item(self, i: int) -> RemoteObject:
        if i not in self.items:
            self.items[i] = item_of(self.server.put(f"{i}.bin", content(i)))
        return self.fetcher.known(self.items[i].name) or self.items[i]

    def fetch(self, *numbers: int) -> None:
        for i in numbers:
            outcome, reason = self.fetcher.fetch(self.item(i))
            assert outcome in (Outcome.FETCHED, Outcome.HERE), (outcome, reason)

    def path(self, i: int) -> Path:
        return self.cache.path(self.item(i))

    def there(self) -> list[int]:
        return sorted(i for i in self.items if self.path(i).exists())

    def disk_bytes(self) -> int:
        with self.cache._locks.accounts():  # nobody makes room meanwhile
            files = [p for p in self.cache.objects.rglob("*") if p.is_file()]
            return sum(p.stat().st_blocks * 512 for p in files)


@pytest.fixture
def scene(server: FickleServer, tmp_path: Path) -> Scene:
    return Scene(server, tmp_path / "cache")


def content(i: int) -> bytes:
    return random.Random(i).randbytes(100_000)


def command(cache: Path, urls: list[str], *words: str) -> list[str]:
    own = [sys.executable, "-m", "ringfeed.remote", "--cache", str(cache), "--threads", "3"]
    return [*own, *words, *urls]


# ---- one download for all


def test_two_processes_fetch_each_object_once(server: FickleServer, tmp_path: Path) -> None:
    urls = [server.put(f"{i}", content(i)) for i in range(12)]
    server.faults["0"] = [Stall(1000)]

    def start() -> subprocess.Popen[bytes]:
        words = command(tmp_path / "cache", urls, "--counts")
        return subprocess.Popen(words, stdout=subprocess.PIPE, env=ENVIRONMENT)

    # The second meets the first at an object, passes by, and fetches others.
    both = [start()]
    server.stalled.wait()
    both.append(start())
    wait_until(lambda: len(list((tmp_path / "cache" / "objects").rglob("[0-9]"))) >= 9)
    server.release()
    lines = [process.communicate()[0].decode().splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    paths, counts = [one[:-1] for one in lines], [json.loads(one[-1]) for one in lines]
    assert paths[0] == paths[1] and len(paths[0]) == 12
    assert sum(one.get("fetched", 0) for one in counts) == 12
    # An answer is cut off, and asked for again, where the other has the accounts at that moment.
    assert all(1 <= len(server.gets(f"{i}")) <= 2 for i in range(12))


def test_threads_of_one_process_fetch_each_object_once(scene: Scene) -> None:
    scene.server.faults["1.bin"] = [Stall(1000)]
    other = Fetcher(scene.cache, Stores({}, 20), 2, QUICK)
    item = scene.item(1)
    thread = threading.Thread(target=lambda: scene.fetcher.fetch(item))
    thread.start()
    scene.server.stalled.wait()
    assert other.fetch(item)[0] is Outcome.ELSEWHERE
    scene.server.release()
    thread.join()
    assert other.fetch(item)[0] is Outcome.HERE
    assert len(scene.server.gets("1.bin")) == 1


# ---- deaths


def test_killed_at_any_time_it_leaves_nothing_that_blocks_or_is_believed(
    server: FickleServer, tmp_path: Path
) -> None:
    seed = int(os.environ.get("RINGFEED_REMOTE_SEED", str(random.randrange(1 << 30))))
    print(f"RINGFEED_REMOTE_SEED={seed}")
    draw = random.Random(seed)
    count = 30
    data = {f"{i}": random.Random(i).randbytes(draw.randrange(1, 600_000)) for i in range(count)}
    urls = [server.put(name, one) for name, one in data.items()]
    cache = tmp_path / "cache"

    def assert_all_that_is_there_is_whole() -> int:
        there = [p for p in (cache / "objects").rglob("*") if p.is_file()]
        for path in there:
            assert path.read_bytes() == data[path.name]
        return len(there)

    killed = 0
    for _ in range(KILLS):
        for name in draw.sample(list(data), 6):
            server.faults[name] = [Truncate(draw.randrange(600_000)), Cut(draw.randrange(600_000))]
        both = [
            subprocess.Popen(
                command(cache, urls),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=ENVIRONMENT,
            )
            for _ in range(draw.choice([1, 1, 2]))
        ]
        # Somewhere between its start and its end, by what it has done and not by the clock alone.
        lines = draw.randrange(count // 2)
        for process in both:
            assert process.stdout is not None
            for _ in range(lines):
                process.stdout.readline()
            time.sleep(draw.uniform(0, 0.02))
            process.kill()
            process.stdout.close()
            killed += process.wait() == -signal.SIGKILL
        if cache.exists():
            assert_all_that_is_there_is_whole()
            if draw.random() < 0.5 and (cache / "objects").exists():
                for path in list((cache / "objects").rglob("*")):
                    if path.is_file() and draw.random() < 0.7:
                        path.unlink()
    assert killed >= KILLS // 2
    words = command(cache, urls, "--counts")
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, env=ENVIRONMENT)
    assert assert_all_that_is_there_is_whole() == count
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts.get("given_up", 0) == 0
    # Whatever the accounts have missed, they say too much and not too little.
    used = Cache(cache, 1 << 30).used_bytes()
    assert used >= sum(p.stat().st_blocks * 512 for p in cache.rglob("objects/**/*") if p.is_file())
    assert not list((cache / "partial").iterdir())


FORKS = """
import os, sys, threading
from ringfeed.remote import RemoteFiles
files = RemoteFiles(sys.argv[1], cache=sys.argv[2], cache_bytes=1 << 20)
next_one = threading.Thread(target=lambda: list(files.read()), daemon=True)
next_one.start()
sys.stdin.readline()  # it is in the middle of the object
child = os.fork()
if child == 0:
    sys.stdin.readline()
    os._exit(0)
print(child, flush=True)
sys.stdin.readline()
"""


def test_a_lock_ends_with_its_process_though_a_child_lives_on(
    server: FickleServer, tmp_path: Path
) -> None:
    url = server.put("one", content(1))
    server.faults["one"] = [Stall(1000)]
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS, url, str(tmp_path / "cache")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    server.stalled.wait()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    child = int(process.stdout.readline())
    with RemoteFiles(url, cache=tmp_path / "cache", cache_bytes=1 << 20, patience=QUICK) as files:
        assert files.fetcher.fetch(item_of(url))[0] is Outcome.ELSEWHERE
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives, with all descriptors of its parent
        assert files.fetcher.fetch(item_of(url))[0] is Outcome.FETCHED
    process.stdin.close()
    server.release()


def test_what_a_dead_fetcher_has_begun_is_gone_on_with(scene: Scene) -> None:
    scene.server.faults["1.bin"] = [Truncate(60_000), *[Status(503)] * 20]
    impatient = Fetcher(scene.cache, Stores({}, 20), 1, QUICK)
    item = scene.item(1)
    discard = scene.cache.discard
    scene.cache.discard = lambda partial: None  # type: ignore[method-assign]
    assert impatient.fetch(item)[0] is Outcome.GIVEN_UP
    scene.cache.discard = discard  # type: ignore[method-assign]
    scene.server.faults["1.bin"] = []
    scene.fetch(1)
    assert scene.server.gets("1.bin")[-1].first_byte == 60_000
    assert scene.path(1).read_bytes() == content(1)


@pytest.mark.parametrize("etags", [True, False])
def test_what_was_begun_of_another_version_is_not_gone_on_with(
    tmp_path: Path, etags: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(etags=etags) as server:
        scene = Scene(server, tmp_path / "cache")
        server.faults["1.bin"] = [Truncate(60_000), *[Status(503)] * 20]
        item = scene.item(1)
        with monkeypatch.context() as dying:
            dying.setattr(scene.cache, "discard", lambda partial: None)
            assert scene.fetcher.fetch(item)[0] is Outcome.GIVEN_UP
        server.faults["1.bin"] = []
        server.put("1.bin", content(2))
        again = Fetcher(scene.cache, Stores({}, 20), 1, QUICK)
        assert again.fetch(item)[0] is Outcome.FETCHED
        assert server.gets("1.bin")[-1].first_byte == 0
        assert scene.path(1).read_bytes() == content(2)


def test_what_somebody_has_begun_makes_room_when_nobody_goes_on(scene: Scene) -> None:
    scene.fetch(0)
    partial = scene.cache.partial(scene.item(0)).with_name(f"{'ab' * 10}-{'cd' * 10}-0-900000")
    assert scene.cache.reserve(partial)
    partial.write_bytes(b"1234")
    os.utime(partial, (1, 1))
    scene.fetch(*range(1, 10))
    assert not partial.exists()
    assert scene.there() == list(range(10))


# ---- the limit, and who goes first


def test_what_was_not_used_longest_goes_first(scene: Scene) -> None:
    scene.fetch(*range(10))  # ten times 102,400 bytes fill 1 MiB
    assert scene.there() == list(range(10))
    for i in (0, 2):
        scene.cache.touch(scene.item(i))
    scene.fetch(10, 11, 12)
    assert not {1, 3, 4} & set(scene.there())
    assert {0, 2, 10, 11, 12} <= set(scene.there())
    assert scene.disk_bytes() <= scene.cache.bytes_max


def test_the_limit_holds_all_the_time(server: FickleServer, tmp_path: Path) -> None:
    scene = Scene(server, tmp_path / "cache")
    urls = [server.put(f"{i}", content(i)) for i in range(40)]
    most = 0
    with RemoteFiles(urls, cache=tmp_path / "cache", cache_bytes=1 << 20, ahead=3) as files:
        for file, _ in files.read():
            most = max(most, scene.disk_bytes(), files.fetcher.cache.used_bytes())
            if file["path"]:
                assert Path(file["path"]).read_bytes() == content(int(file["url"].rsplit("/")[-1]))
    assert 900_000 < most <= 1 << 20


@pytest.mark.parametrize("mapped", [False, True])
def test_what_is_open_or_mapped_stays(scene: Scene, mapped: bool) -> None:
    scene.fetch(*range(10))
    files = [scene.path(i).open("rb") for i in range(4)]
    maps = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files] if mapped else []
    if mapped:
        for file in files:
            file.close()
    scene.fetch(*range(10, 15))
    assert scene.cache.leases
    assert set(range(4)) <= set(scene.there())
    for held in (*maps, *files):
        held.close()
    scene.fetch(*range(15, 20))
    assert not set(range(4)) & set(scene.there())


def test_readers_see_whole_files_or_none_while_others_are_removed(
    server: FickleServer, tmp_path: Path
) -> None:
    scene = Scene(server, tmp_path / "cache")
    for i in range(14):
        scene.item(i)
    stop = threading.Event()
    seen = {"whole": 0, "gone": 0, "not now": 0}
    wrong: list[int] = []

    def read(flags: int) -> None:
        draw = random.Random(flags)
        while not stop.is_set():
            i = draw.randrange(14)
            try:
                fd = os.open(scene.path(i), os.O_RDONLY | flags)
            except FileNotFoundError:
                seen["gone"] += 1
                continue
            except BlockingIOError:
                seen["not now"] += 1
                continue
            with open(fd, "rb") as file:
                if file.read() != content(i):
                    wrong.append(i)
            seen["whole"] += 1

    threads = [threading.Thread(target=read, args=(flags,)) for flags in (0, os.O_NONBLOCK)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + WAIT_S
    fetched = 0
    # Until both have been seen; the readers may be late.
    while fetched < 150 or (not (seen["whole"] and seen["gone"]) and time.monotonic() < end):
        scene.fetcher.fetch(scene.item(fetched % 14))
        fetched += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and seen["whole"] > 0 and seen["gone"] > 0, seen


def test_an_object_larger_than_the_cache_is_given_up_with_both_numbers(scene: Scene) -> None:
    url = scene.server.put("big", bytes(2 << 20))
    outcome, reason = scene.fetcher.fetch(item_of(url))
    assert outcome is Outcome.GIVEN_UP and "2097152" in reason and "1048576" in reason


def test_accounts_that_are_lost_are_made_anew(scene: Scene) -> None:
    scene.fetch(0, 1, 2)
    (scene.cache.root / "accounts").write_bytes(b"nonsense")
    assert Cache(scene.cache.root, 1 << 20).used_bytes() == 3 * 102_400
    (scene.cache.root / "accounts").unlink()
    assert scene.cache.used_bytes() == 3 * 102_400
    scene.path(0).unlink()  # by hand
    scene.fetch(*range(3, 12))
    assert scene.disk_bytes() <= 1 << 20


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RemoteError, match=r"thesis\.tex"):
        Cache(tmp_path, 1 << 20)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ringfeed-cache").write_text("ringfeed cache 3\n")
    with pytest.raises(RemoteError, match="ringfeed cache 3"):
        Cache(tmp_path / "other", 1 << 20)
    with pytest.raises(RemoteError, match="1048576"):
        Cache(tmp_path / "small", 1)


def test_a_cache_of_the_layout_before_is_taken_over(scene: Scene) -> None:
    scene.fetch(1)
    os.utime(scene.path(1), ns=(1, 5 * 10**9 + scene.item(1).version.mtime_ns % 10**9))
    (scene.cache.root / "ringfeed-cache").write_text("ringfeed cache 1\n")
    again = Cache(scene.cache.root, 1 << 20)
    assert (again.root / "ringfeed-cache").read_text() == "ringfeed cache 2\n"
    assert not again.holds(scene.item(1))
    scene.fetch(1)
    assert again.holds(scene.item(1)) and len(scene.server.gets("1.bin")) == 2


# ---- a clock that is set


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock, for this process and the times that it gives files: by so many seconds."""
    jumped = 0.0
    real_time, real_ns = time.time, time.time_ns

    def jump(seconds: float) -> None:
        nonlocal jumped
        jumped += seconds

    monkeypatch.setattr(time, "time", lambda: real_time() + jumped)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(jumped * 1e9))
    return jump


YEARS_S = 10 * 365 * 86400.0


@pytest.mark.parametrize("by", [YEARS_S, -YEARS_S, 7200.0, -7200.0])
def test_a_clock_that_is_set_takes_no_wish_away(
    scene: Scene, clock: Callable[[float], None], by: float
) -> None:
    scene.fetch(*range(10))
    for i in range(8):
        scene.cache.ask(scene.item(i).name)
    other = Cache(scene.cache.root, scene.cache.bytes_max)
    other.list_wishes([scene.item(8).name])
    assert len(scene.cache.wishes()) == 9  # as whoever looks every 50 ms
    clock(by)
    scene.cache.drop_old_wishes()
    assert len(scene.cache.wishes()) == 9
    assert scene.fetcher.fetch(scene.item(10))[0] is Outcome.FETCHED
    assert scene.there() == [*range(9), 10]


def test_what_was_used_before_the_clock_was_set_back_goes_first(
    scene: Scene, clock: Callable[[float], None]
) -> None:
    clock(YEARS_S)
    scene.fetch(*range(5))
    clock(-YEARS_S)
    scene.fetch(*range(5, 11), 11, 12)
    assert scene.there() == [*range(3, 13)]
    # And what is only fetched ahead finds room.
    job = scene.fetcher.queue(scene.item(13))
    scene.fetcher.start()
    assert scene.fetcher.wait(job)[0] is Outcome.FETCHED
    assert 12 in scene.there() and 3 not in scene.there()
    scene.fetcher.close()


@pytest.mark.parametrize("by", [YEARS_S, -YEARS_S])
def test_what_is_fetched_ahead_under_a_clock_that_is_set_leaves_what_was_used_since(
    scene: Scene, clock: Callable[[float], None], by: float
) -> None:
    clock(by)
    scene.fetch(*range(10))
    job = scene.fetcher.queue(scene.item(10))
    scene.fetcher.start()
    wait_until(lambda: job.no_room_since is not None or job.ready.is_set())
    assert scene.there() == list(range(10)), "all was used since the fetcher began"
    scene.fetcher.close()


# ---- names that come from outside


@pytest.mark.parametrize(
    "name",
    [
        "../outside/a",
        "http/../../outside/a",
        "http/h/../../../outside/a",
        "/absolute",
        "..",
        ".",
        "http//a",
        "http/linked/a",
        "http/h/" + "x" * 4096,
    ],
)
def test_no_copy_is_made_outside_of_the_cache(scene: Scene, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("precious")
    name = f"{outside}/a" if name == "/absolute" else name
    (scene.cache.objects / "http").mkdir()
    (scene.cache.objects / "http" / "linked").symlink_to(outside)
    url = scene.server.put("a", content(1))
    item = RemoteObject(url, url, name, None, None, None)
    outcome, reason = scene.fetcher.fetch(item)
    assert outcome is Outcome.GIVEN_UP, reason
    assert [path.name for path in outside.iterdir()] == ["a"]
    assert (outside / "a").read_text() == "precious"
    assert not list((scene.cache.root / "partial").iterdir()), "nothing is left of it"


def test_the_query_of_a_url_stays_in_its_cache(server: FickleServer, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "authorized_keys").write_text("precious")
    for up in range(12):
        url = server.put(f"authorized_keys?{'../' * up}{home.relative_to('/')}", content(1))
        with RemoteFiles(
            url, cache=tmp_path / "cache", cache_bytes=1 << 22, patience=QUICK
        ) as files:
            found = [sample for sample, _ in files.read() if sample["path"]]
        assert [Path(sample["path"]).read_bytes() for sample in found] == [content(1)]
        below = Path(found[0]["path"]).resolve().relative_to(tmp_path / "cache" / "objects")
        assert ".." not in below.parts
    assert (home / "authorized_keys").read_text() == "precious"


def test_what_has_a_link_in_its_way_is_given_up_and_says_so(scene: Scene, tmp_path: Path) -> None:
    item = scene.item(1)
    place = scene.cache.objects / item.name.split("/")[0]
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    outcome, reason = scene.fetcher.fetch(item)
    assert outcome is Outcome.GIVEN_UP and f"{scene.path(1)}" in reason and "a link" in reason
    assert not list((tmp_path / "elsewhere").iterdir())


# ---- what is done to a cache behind its back


def cut(path: Path) -> None:
    os.truncate(path, 5000)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def written_to(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"xxxx")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    aside = path.parent.parent / "aside"
    path.rename(aside)
    path.symlink_to(aside)


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


DAMAGES = [cut, emptied, grown, written_to, directory, fifo, link, dangling]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_copy_that_was_damaged_is_fetched_again(
    scene: Scene, damage: Callable[[Path], None]
) -> None:
    scene.fetch(1, 2)
    damage(scene.path(1))
    used = scene.cache.used_bytes()
    scene.fetch(1, 2)
    assert scene.path(1).read_bytes() == content(1) and not scene.path(1).is_symlink()
    assert [len(scene.server.gets(f"{i}.bin")) for i in (1, 2)] == [2, 1]
    assert scene.cache.used_bytes() >= scene.disk_bytes() and used


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_reader_waits_for_a_damaged_copy(scene: Scene, damage: Callable[[Path], None]) -> None:
    scene.fetch(1)
    damage(scene.path(1))
    scene.fetcher.start()
    scene.cache.ask(scene.item(1).name)
    wait_until(lambda: scene.cache.holds(scene.item(1)))
    assert scene.path(1).read_bytes() == content(1)
    scene.fetcher.close()


@pytest.mark.parametrize("damage", [directory, fifo, link])
def test_a_partial_copy_that_is_no_file_is_begun_anew(
    scene: Scene, damage: Callable[[Path], None]
) -> None:
    scene.server.faults["1.bin"] = [Cut(5000)]
    item = scene.fetcher._stores.of(scene.server.url).look(scene.item(1))
    partial = scene.cache.partial(item)
    partial.write_bytes(b"x")
    damage(partial)
    scene.fetch(1)
    assert scene.path(1).read_bytes() == content(1)


@pytest.mark.parametrize("name", ["ringfeed-cache", "lock", "objects", "partial", "wanted"])
def test_a_cache_that_is_not_one_any_more_is_refused_by_name(tmp_path: Path, name: str) -> None:
    Cache(tmp_path / "cache", 1 << 20)
    path = tmp_path / "cache" / name
    path.rmdir() if path.is_dir() else path.unlink()
    os.mkfifo(path)
    command = [sys.executable, "-c", REFUSED, str(tmp_path / "cache")]
    done = subprocess.run(command, env=ENVIRONMENT, timeout=WAIT_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert name in done.stdout and str(tmp_path / "cache") in done.stdout


# In a process of its own: a FIFO that is opened waits without an end, and no signal of Python's
# test framework would come through.
REFUSED = """
import sys
from ringfeed.remote import Cache, RemoteError
try:
    Cache(sys.argv[1], 1 << 20)
except RemoteError as error:
    print(error)
else:
    sys.exit("it was taken")
"""


def test_accounts_wishes_and_failures_that_are_no_files_are_passed_over(scene: Scene) -> None:
    scene.fetch(1)
    root = scene.cache.root
    (root / "accounts").unlink()
    os.mkfifo(root / "accounts")
    os.mkfifo(root / "wanted" / "list-1-abc")
    os.mkfifo(root / "failed" / hash_of(scene.item(2).name))
    scene.fetch(1, 2)
    assert scene.cache.wishes() == [] and scene.cache.failure(scene.item(2).name) is None
    assert scene.cache.used_bytes() >= scene.disk_bytes()


def test_objects_that_were_moved_and_linked_are_used(scene: Scene, tmp_path: Path) -> None:
    scene.fetch(1)
    scene.cache.objects.rename(tmp_path / "moved")
    scene.cache.objects.symlink_to(tmp_path / "moved")
    again = Cache(scene.cache.root, 1 << 20)
    assert again.holds(scene.item(1))
    scene.fetch(1, 2)
    assert len(list((tmp_path / "moved").rglob("*.bin"))) == 2
    assert again.used_bytes() >= scene.disk_bytes() > 200_000


def test_objects_on_another_file_system_are_refused_by_name(scene: Scene, tmp_path: Path) -> None:
    elsewhere = Path(f"/dev/shm/ringfeed-test-{os.getpid()}")
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("all is one file system")
    elsewhere.mkdir()
    try:
        scene.cache.objects.rmdir()
        scene.cache.objects.symlink_to(elsewhere)
        with pytest.raises(RemoteError, match=rf"{elsewhere} is on another file system"):
            Cache(scene.cache.root, 1 << 20)
    finally:
        elsewhere.rmdir()


# ---- wishes of readers


def test_a_wish_brings_back_what_was_removed(scene: Scene) -> None:
    scene.fetch(*range(10), 10, 11, 12)
    assert 0 not in scene.there()
    scene.fetcher.start()
    scene.cache.ask(scene.item(0).name)
    wait_until(lambda: 0 in scene.there())
    assert scene.path(0).read_bytes() == content(0)
    # The reader has not come yet: others do not take its place.
    scene.fetch(*range(20, 40))
    assert 0 in scene.there()
    scene.fetcher.close()
    scene.cache.drop_wish(scene.item(0).name)
    others = Fetcher(scene.cache, Stores({}, 20), 1, QUICK)
    for i in range(40, 52):
        assert others.fetch(scene.item(i))[0] is Outcome.FETCHED
    assert 0 not in scene.there()


def test_a_wish_that_cannot_be_met_is_answered_with_the_reason(scene: Scene) -> None:
    item = scene.item(3)
    scene.fetcher.know([item])
    scene.server.objects.clear()
    scene.fetcher.start()
    scene.cache.ask(item.name)
    wait_until(lambda: scene.cache.failure(item.name))
    assert "404" in (scene.cache.failure(item.name) or "")
    assert scene.cache.wishes() == []
    # It is there again, and somebody asks again.
    scene.server.put("3.bin", content(3))
    scene.cache.ask(item.name)
    wait_until(lambda: scene.path(3).exists() and scene.cache.failure(item.name) is None)
    scene.fetcher.close()


def test_who_asks_again_as_soon_as_he_is_told_is_not_forgotten(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = scene.item(3).name
    cache, drop_wish = scene.cache, scene.cache.drop_wish
    asked_again = False

    def ask_again_once_told() -> None:
        nonlocal asked_again
        if not asked_again and cache.failure(name):
            cache.ask(name)
            asked_again = True

    def drop_when_the_reader_has_looked(name: str) -> None:
        ask_again_once_told()
        drop_wish(name)

    monkeypatch.setattr(cache, "drop_wish", drop_when_the_reader_has_looked)
    cache.ask(name)
    cache.tell_failure(name, "it is gone")
    ask_again_once_told()
    assert asked_again and [wish for _, wish, _ in cache.wishes()] == [name]


def test_a_reader_that_waits_comes_before_what_is_fetched_ahead(scene: Scene) -> None:
    scene.server.faults["0.bin"] = [Stall(10)]
    fetcher = Fetcher(scene.cache, Stores({}, 20), 1, QUICK)
    fetcher.know([scene.item(i) for i in range(6)])
    fetcher.start()
    for i in range(5):
        fetcher.queue(scene.item(i))
    scene.server.stalled.wait()
    scene.cache.ask(scene.item(4).name, ahead=True)
    scene.cache.ask(scene.item(5).name)
    wait_until(lambda: len(fetcher._wishes) == 2)
    scene.server.release()
    wait_until(lambda: len(scene.there()) == 6)
    fetcher.close()
    order = [r.path[1] for r in scene.server.requests if r.method == "GET"]
    assert order == ["0", "5", "4", "1", "2", "3"]


def test_a_wish_goes_beyond_the_limit_when_all_else_is_held(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfeed.remote.fetch._WISHED_ROOM_S", 0.1)
    scene.fetch(*range(10))
    held = [scene.path(i).open("rb") for i in range(10)]
    scene.fetcher.know([scene.item(10)])
    scene.fetcher.start()
    scene.cache.ask(scene.item(10).name)
    wait_until(lambda: 10 in scene.there())
    assert scene.there() == list(range(11))
    assert scene.fetcher.counts["beyond_limit"] == 1
    scene.fetcher.close()
    for file in held:
        file.close()


def test_a_reader_that_waits_takes_the_room_of_what_is_only_for_later(scene: Scene) -> None:
    scene.fetch(*range(10))
    for i in range(10):
        scene.cache.ask(scene.item(i).name, ahead=True)
        wish = scene.cache.root / "wanted" / f"1-{hash_of(scene.item(i).name)}"
        os.utime(wish, (time.time() - 50 + i,) * 2, follow_symlinks=False)
    assert scene.fetcher.fetch(scene.item(10))[0] is Outcome.NO_ROOM
    assert scene.fetcher.fetch(scene.item(10), urgent=True)[0] is Outcome.FETCHED
    assert scene.there() == [*range(9), 10]


def test_what_is_on_a_list_of_wishes_stays(scene: Scene) -> None:
    scene.fetch(*range(10))
    other = Cache(scene.cache.root, scene.cache.bytes_max)
    other.list_wishes(scene.item(i).name for i in range(9))
    assert scene.fetcher.fetch(scene.item(10))[0] is Outcome.FETCHED
    assert scene.there() == [*range(9), 10]
    other.list_wishes(scene.item(i).name for i in (3, 4))
    assert [name for _, name, _ in scene.cache.wishes()] == [scene.item(i).name for i in (3, 4)]
    # Whoever has not said for long that he is there is not; he says so again.
    (file,) = (scene.cache.root / "wanted").iterdir()
    os.utime(file, (time.time() - 1000,) * 2)
    scene.cache.drop_old_wishes()
    assert scene.cache.wishes() == []
    other.renew_list()
    assert len(scene.cache.wishes()) == 2
    other.drop_list()
    assert list((scene.cache.root / "wanted").iterdir()) == []


def test_a_wish_that_no_listing_knows_is_asked_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfeed.remote.fetch._NOBODYS_S", 0.0)
    scene.fetch(0)  # so that the store is in use
    scene.fetcher.start()
    there, gone = scene.item(1), item_of(f"{scene.server.url}/none")
    for item in (there, gone):
        scene.cache.ask(item.name)
    wait_until(lambda: scene.path(1).exists() and scene.cache.failure(gone.name))
    assert "404" in (scene.cache.failure(gone.name) or "")
    scene.fetcher.close()


def test_what_is_fetched_ahead_takes_no_room_from_what_was_used_since(scene: Scene) -> None:
    scene.fetcher.start()
    jobs = [scene.fetcher.queue(scene.item(i)) for i in range(14)]
    wait_until(lambda: len(scene.there()) == 10)
    held = scene.there()
    wait_until(lambda: any(job.no_room_since is not None for job in jobs))
    assert scene.there() == held
    scene.fetcher.close()


def test_hashes_are_those_of_fnv_1a() -> None:
    assert hash_of("") == "cbf29ce484222325" and hash_of("foobar") == "85944171f73967e8"


# ---- a full disk

FULL_DISK = """
import hashlib, json, logging, subprocess, sys, threading
from ringfeed.remote import Patience, RemoteFiles

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
place, holds, *urls = sys.argv[1:]
if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]).returncode != 0:
    sys.exit(77)
held = []

def let_go():
    sys.stdin.readline()
    for file in held:
        file.close()

threading.Thread(target=let_go, daemon=True).start()
patience = Patience(first_s=0.01, longest_s=0.05)
settings = {"cache": f"{place}/cache", "cache_bytes": 1 << 30, "patience": patience}
with RemoteFiles(urls, ahead=1, threads=2, **settings) as files:
    for file, _ in files.read():
        if file["path"]:
            opened = open(file["path"], "rb")
            # A handler writes whole lines, whatever threads of the fetcher log beside it.
            logging.info("FILE %s %s", file["url"], hashlib.sha256(opened.read()).hexdigest())
            held.append(opened)
            if holds == "none":
                held.pop().close()
    logging.info("COUNTS %s", json.dumps(files.counts.all()))
"""


@pytest.mark.parametrize("holds", ["none", "all"])
def test_on_a_full_disk_it_makes_room_or_waits_and_says_so(
    server: FickleServer, tmp_path: Path, holds: str
) -> None:
    urls = [server.put(f"{i}", content(i)) for i in range(16)]
    process = subprocess.Popen(
        ["unshare", "--mount", "--map-root-user", sys.executable, "-c", FULL_DISK]
        + [str(tmp_path), holds, *urls],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    found = []
    counts = {}
    said = False
    for line in process.stdout:
        word, _, rest = line.strip().partition(" ")
        if word == "FILE":
            found.append(tuple(rest.split()))
        elif word == "COUNTS":
            counts = json.loads(rest)
        elif word == "disk_full" and not said:
            said = True
            process.stdin.write("\n")  # readers let go of what they hold
            process.stdin.flush()
    process.stdin.close()
    if process.wait() == 77:
        pytest.fail("this test mounts a tmpfs: run it as root")
    assert process.returncode == 0
    whole = [(url, hashlib.sha256(content(i)).hexdigest()) for i, url in enumerate(urls)]
    assert found == whole
    # A full disk may take one that was fetched ahead, and it is fetched again.
    assert counts["fetched"] >= 16 and "given_up" not in counts
    assert said or holds == "none"  # whoever reads slowly may be waited for
