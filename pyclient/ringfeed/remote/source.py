"""The source of a pipeline whose files are objects of a store."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .beneath import open_regular
from .cache import Cache
from .fetch import Fetcher, Job, Outcome, Patience
from .names import RemoteError, RemoteObject
from .stores import Denied, Failed, Missing, Stores

_log = logging.getLogger("ringfeed.remote")

CURSOR_BYTES_MAX = 4096
_FIRST_ATTEMPTS = 8  # to list a store that has never answered: its address may be wrong


class RemoteFiles:
    """Names the files of a store, and brings them into a cache of this host that all feeds share.

    Args:
        urls: What fsspec reads: objects (`s3://bucket/a.jsonl.zst`), patterns
            (`s3://bucket/data/**/*.jsonl.zst`, `https://host/part-{000..146}.tar`) or directories,
            with "/" at the end. One, or a list.
        cache: Directory of the cache; made if it is not there.
        cache_bytes: Its limit, in bytes.
        lists: URLs or paths of text files with a URL in each line; their objects come first.
        storage_options: What fsspec passes to the file system; with several protocols by protocol:
            `{"s3": {...}, "https": {...}}`. Keys rather stand where the libraries look for them.
        threads: Objects that are fetched at the same time.
        wait: True: a file is named when it is in the cache, and stays at least until the next one
            is taken; anything may read it. False: at once; then whoever reads must wish for what
            is not there, as ringfeed's stages do.
        ahead: With `wait`: objects that are fetched or being fetched beyond the one named next.
        look_again_s: Seconds until the store is asked for new objects, again and again; None: it
            is asked once, and read() ends.
        patience: For a store that fails.
        on_lost: Called once, by any thread, when objects have not come for
            `patience.give_up_after_s`, with the reason. read() raises it.
    Raises:
        RemoteError: fsspec or what it needs for a protocol is missing, or the cache cannot be used.
    """

    def __init__(
        self,
        urls: str | Sequence[str] = (),
        *,
        cache: str | os.PathLike[str],
        cache_bytes: int,
        lists: str | Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        threads: int = 8,
        wait: bool = True,
        ahead: int = 16,
        look_again_s: float | None = None,
        patience: Patience | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._urls = [urls] if isinstance(urls, str) else list(urls)
        self._lists = [lists] if isinstance(lists, str) else list(lists)
        if not self._urls and not self._lists:
            raise RemoteError("no URL is given: give urls or lists")
        self._patience = patience or Patience()
        self._stores = Stores(storage_options, self._patience.stall_s)
        for url in self._urls + self._lists:
            self._stores.of(url)  # what is missing is said now
        self._wait = wait
        self._ahead = max(1, ahead)
        self._look_again_s = look_again_s
        self._closed = threading.Event()
        self.fetcher = Fetcher(
            Cache(cache, cache_bytes), self._stores, threads, self._patience, on_lost
        )
        self.counts = self.fetcher.counts

    def __enter__(self) -> RemoteFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends read() and all fetching. Copies stay in the cache, partial ones too."""
        self._closed.set()
        self.fetcher.close()

    def read(self, cursor: bytes | None = None) -> Iterator[tuple[dict[str, Any], bytes]]:
        """The files, each with the cursor behind it; read(cursor) goes on from there.

        Each is a mapping:
            path  str  of the copy in the cache
            url   str  of the object
            size  int  bytes; 0 without `wait` if the store's listing does not tell it
        When all objects of a listing have been named, there is one whose path is "". The first
        listing is in the order of names, pattern by pattern: an object that has come before the
        cursor meanwhile is named by the next listing. Later listings name what is new or has
        changed; after a restart also what was named before.

        Readers' wishes are answered until close(), also when this has ended.
        Raises:
            RemoteError: A listing fails for good, the store has been away for longer than
                `give_up_after_s`, or the cursor is not of this class.
        """
        place = _Place.of(cursor)
        self.fetcher.start()
        named: dict[str, _Token] = {}
        while not self._closed.is_set():
            yield from self._one_pass(place, named)
            if self._look_again_s is None or self._closed.wait(self._look_again_s):
                return

    def listing(self, named: dict[str, Any]) -> list[RemoteObject]:
        """Lists the store once: objects that are new or have changed since earlier calls.

        Wishes for them are answered from now on, after `fetcher.start()`.
        Args:
            named: What earlier calls have given; empty at first. It is brought up to date.
        Raises:
            RemoteError: The listing fails for good. If there was one before, it is tried for ever.
        """
        objects = self._listed(retry=bool(named))
        self.fetcher.know(objects)
        new = self._news(objects, named)
        for item in new:
            named[item.name] = _token(item)
        return new

    def _path(self, item: RemoteObject) -> str:
        return f"{self.fetcher.cache.objects}/{item.name}"

    def _one_pass(
        self, place: _Place, named: dict[str, _Token]
    ) -> Iterator[tuple[dict[str, Any], bytes]]:
        objects = self._listed(retry=bool(named))
        self.fetcher.know(objects)
        new = self._news(objects, named)
        start = 0
        if place.passes == 0:
            start = place.begin(new)
            # A restart: what was named before is not new.
            for item in new[:start]:
                named[item.name] = _token(item)
        elif not new:
            return
        window: deque[tuple[int, RemoteObject, Job]] = deque()
        following = iter(range(start, len(new)))
        while True:
            while len(window) <= (self._ahead if self._wait else 1 << 40):
                i = next(following, None)
                if i is None:
                    break
                window.append((i, new[i], self.fetcher.queue(new[i], wished=self._wait)))
            if not window:
                break
            i, item, job = window.popleft()
            held = -1
            while self._wait and held < 0:
                outcome, _ = self.fetcher.wait(job)
                if self.fetcher.lost:
                    raise RemoteError(self.fetcher.lost)
                if outcome in (Outcome.STOPPED, Outcome.GIVEN_UP):
                    break
                item = self.fetcher.known(item.name) or item
                if outcome is not Outcome.FETCHED:  # that has just been used
                    self.fetcher.cache.touch(item)
                held = _opened(self._path(item))
                if held < 0:  # a full disk has taken it between the two
                    job = self.fetcher.queue(item, wished=True)
            if self._wait and held < 0:
                if outcome is Outcome.STOPPED:
                    return
                self.fetcher.release(item)
                continue
            named[item.name] = _token(item)
            sample = {
                "path": self._path(item),
                "url": item.url,
                "size": item.size or 0,
            }
            try:
                yield sample, place.behind(i, item)
            finally:
                if self._wait:
                    os.close(held)
                    self.fetcher.release(item)
        yield {"path": "", "url": "", "size": 0}, place.next_pass()

    def _news(self, objects: list[RemoteObject], named: dict[str, _Token]) -> list[RemoteObject]:
        """Those that have not been named as they are now."""
        # What a listing says nothing of but the name is asked for by itself.
        known = [item for item in objects if item.size is None and item.name in named]
        if known:
            with ThreadPoolExecutor(8, "ringfeed-remote-look") as pool:
                looked = dict(zip((item.name for item in known), pool.map(self._now, known)))
            objects = [looked.get(item.name, item) for item in objects]
            self.fetcher.know(objects)
        new = []
        for item in objects:
            before = named.get(item.name)
            if before == (None, None):
                named[item.name] = _token(item)  # it was named before anybody knew its version
            elif before != _token(item) and not (before and item.size is None):
                new.append(item)
        return new

    def _now(self, item: RemoteObject) -> RemoteObject:
        """The object as it is now; as it was, if the store does not answer."""
        try:
            return self._stores.of(item.url).look(item)
        except (Missing, Denied, Failed):
            return item

    def _listed(self, retry: bool) -> list[RemoteObject]:
        attempt = 0
        since = time.monotonic()
        most = self._patience.attempts or _FIRST_ATTEMPTS
        while True:
            try:
                return list(self._stores.find(self._urls, self._lists))
            except Failed as error:
                attempt += 1
                self.counts.add("retries")
                self.counts.add(f"retries_{error.reason}")
                if self._patience.give_up_after_s is not None:
                    last = self._patience.is_over(0, time.monotonic() - since)
                else:
                    last = not retry and attempt >= most
                if last or self._closed.wait(self._patience.wait_s(attempt, error.after_s)):
                    raise RemoteError(
                        f"the objects cannot be listed: {error} ({attempt} attempts)"
                    ) from error
            except (Missing, Denied) as error:
                raise RemoteError(f"the objects cannot be listed: {error}") from error


_Token = tuple[str | None, int | None]


def _opened(path: os.PathLike[str] | str) -> int:
    """A descriptor that keeps the copy from being evicted; -1: it is not there."""
    try:
        return open_regular(path, os.O_RDONLY)
    except OSError as error:
        # Or it is none any more: it is fetched again.
        if error.errno in (errno.ENOENT, errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.EAGAIN):
            return -1
        raise


def _token(item: RemoteObject) -> _Token:
    return item.etag or item.changed, item.size


class _Place:
    """Where a reader is: listings that are complete, and the last object of the first one."""

    def __init__(self, passes: int, number: int, name: str) -> None:
        self.passes = passes
        self._number = number  # objects of this listing that have been named
        self._name = name

    @staticmethod
    def of(cursor: bytes | None) -> _Place:
        if cursor is None:
            return _Place(0, 0, "")
        try:
            passes, number, name = json.loads(cursor)
            return _Place(int(passes), int(number), str(name))
        except (ValueError, TypeError) as error:
            raise RemoteError(f"this is no cursor of RemoteFiles: {cursor[:60]!r}") from error

    def begin(self, objects: list[RemoteObject]) -> int:
        """The first object that is still to be named."""
        if not self._name:
            return 0
        for i, item in enumerate(objects):
            if _short(item.name) == self._name:
                return i + 1
        return min(self._number, len(objects))

    def behind(self, i: int, item: RemoteObject) -> bytes:
        self._number, self._name = i + 1, _short(item.name)
        return self._text()

    def next_pass(self) -> bytes:
        self.passes, self._number, self._name = self.passes + 1, 0, ""
        return self._text()

    def _text(self) -> bytes:
        text = json.dumps([self.passes, self._number, self._name]).encode()
        assert len(text) <= CURSOR_BYTES_MAX, len(text)
        return text


def _short(name: str) -> str:
    """A name of at most 600 characters, which take up to 3,600 bytes in a cursor."""
    if len(name) <= 600:
        return name
    from .cache import hash_of

    return f"{hash_of(name)}{name[-500:]}"


__all__ = ["RemoteFiles"]
