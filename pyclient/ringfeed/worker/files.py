"""What the stage remote_files reads: objects of a store, as paths of their copies in a cache."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import module
from ..remote import Patience, RemoteFiles, RemoteObject
from ..remote.stores import need_library
from .sources import NOT_YET

_RETRY_S = (1.0, 60.0)  # after the first listing that failed, and at most


def _fail(reason: str) -> None:
    """Ends the feed, whatever the stage is doing."""
    module.load().fail(reason)


class Files:
    """Lists a store, and fetches what readers wish for, from the moment that it is made.

    Both are done by threads of its own: nothing that the stage calls waits for the store. They go
    on when the stage has ended, because those that read the files have not.

    Args:
        urls, lists, cache, cache_bytes, storage_options, threads: As of RemoteFiles.
        look_again_s: Seconds from one listing to the next; None: there is one.
        give_up_after_s: The feed fails when a store has been away for so long; None: it is waited
            for.
    """

    def __init__(
        self,
        urls: Sequence[str],
        lists: Sequence[str],
        cache: str,
        cache_bytes: int,
        storage_options: Mapping[str, Any] | None,
        threads: int,
        look_again_s: float | None,
        give_up_after_s: float | None = None,
    ) -> None:
        self._files = RemoteFiles(
            urls,
            cache=cache,
            cache_bytes=cache_bytes,
            lists=lists,
            storage_options=storage_options,
            threads=threads,
            wait=False,
            patience=Patience(give_up_after_s=give_up_after_s),
            on_lost=_fail,
        )
        self._give_up_after_s = give_up_after_s
        self._look_again_s = look_again_s
        self._found: queue.SimpleQueue[list[RemoteObject] | Exception] = queue.SimpleQueue()
        self._listings = 0  # that have been read
        self._pause = threading.Event()  # never set: what waits can be woken by nothing
        self._files.fetcher.start()
        threading.Thread(target=self._list, name="ringfeed-remote-list", daemon=True).start()

    @staticmethod
    def __ringfeed_check__(**options: Any) -> None:
        """Raises what is wrong with the options, asking no store."""
        for url in [*options["urls"], *options["lists"]]:
            need_library(url)

    def _list(self) -> None:
        named: dict[str, Any] = {}
        failed = 0
        since = 0.0  # when the first of those that failed in a row began
        while True:
            began = time.monotonic()
            try:
                self._found.put(self._files.listing(named))
            except Exception as error:  # whatever a store's library raises
                since = since or began
                limit_s = self._give_up_after_s
                if limit_s is not None and time.monotonic() - since >= limit_s:
                    return _fail(str(error))
                self._found.put(error)
                shortest, longest = _RETRY_S
                self._pause.wait(min(longest, shortest * 2.0 ** min(failed, 10)))
                failed += 1
                continue
            failed, since = 0, 0.0
            if self._look_again_s is None:
                return
            self._pause.wait(self._look_again_s)

    def read(self, cursor: bytes | None) -> Iterator[tuple[Any, bytes]]:
        """The objects, and behind those of each listing one whose path is empty.

        Each is a mapping: ``path``, ``size`` in bytes, and ``version``, a number that another
        version does not have; 0 until the store has said it.

        Args:
            cursor: How many of the first listing a predecessor has given, or b"all": these are not
                fetched ahead.
        Raises:
            Exception: A listing fails; reading on goes on with the next one.
        """
        given = 0 if cursor in (None, b"all") else int(cursor or 0)
        fetcher = self._files.fetcher
        while True:
            try:
                found = self._found.get_nowait()
            except queue.Empty:
                yield NOT_YET, b""
                continue
            if isinstance(found, Exception):
                raise found
            first = self._listings == 0
            self._listings += 1
            for i, item in enumerate(found):
                if not first or (cursor != b"all" and i >= given):
                    fetcher.queue(item)
                item = fetcher.known(item.name) or item
                sample = {
                    "path": os.fsencode(fetcher.cache.path(item)),
                    "size": item.size or 0,
                    # The rest of the time is another one in a listing and in an answer for one.
                    "version": item.version.mtime_ns % 10**9 + 1 if item.size is not None else 0,
                }
                yield sample, b"-"
            yield {"path": b"", "size": 0, "version": 0}, b"-"
            if self._look_again_s is None:
                return


__all__ = ["Files"]
