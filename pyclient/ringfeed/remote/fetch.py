"""Brings objects into a cache: several at a time, each once for all processes, over all faults."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from .beneath import open_regular
from .cache import Cache
from .names import RemoteObject
from .stores import Changed, Clash, Denied, DiskFull, Failed, Missing, Stores, is_disk_full

_log = logging.getLogger("ringfeed.remote")

_LOOK_FOR_WISHES_S = 0.05
_TIDY_S = 20.0
_NOBODYS_S = 2.0  # a wish that nobody has met for so long is taken up by whoever has its store
_ELSEWHERE_S = (0.05, 1.0)  # how soon an object that somebody else fetches is looked at again
_CHANGES_MAX = 16  # an object that is never the same twice is given up
_WISHED_ROOM_S = 5.0  # after so long without room a file that a reader waits for comes all the same
_AWAY_ATTEMPTS = 4  # after so many it is said that a store is away
_FULL_S = 5.0  # a cache that had no room for an object is taken for full so long
# A name that a copy cannot have, however often it is tried.
_NO_NAME = frozenset(
    (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP)
    + (errno.EXDEV, errno.ENAMETOOLONG, errno.EINVAL)
)


class Outcome(Enum):
    """What became of one attempt to have an object in the cache."""

    HERE = "here"  # it was there already
    FETCHED = "fetched"
    ELSEWHERE = "elsewhere"  # another process or thread is fetching it
    NO_ROOM = "no_room"  # nothing within the limit may go
    GIVEN_UP = "given_up"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Patience:
    """How often something is tried again, and how long that takes.

    Without limits a store that is away, or lets nobody in, is waited for. What it says is not there
    is given up at once.
    """

    attempts: int | None = None  # in a row without a byte more; then the object is passed over
    give_up_after_s: float | None = None  # without a byte more; then nothing is fetched any more
    first_s: float = 0.1
    longest_s: float = 30.0
    stall_s: float = 60.0  # a connection that brings nothing for so long is given up

    def is_over(self, attempt: int, for_s: float) -> bool:
        """Is the object given up, after so many attempts in a row and so long?"""
        if self.attempts is not None and attempt >= self.attempts:
            return True
        return self.give_up_after_s is not None and for_s >= self.give_up_after_s

    def wait_s(self, attempt: int, after_s: float) -> float:
        """Before attempt 1, 2, ...: twice as long each time, and a random part of that."""
        longest = min(self.longest_s, self.first_s * 2.0 ** min(attempt, 30))
        return max(random.uniform(longest / 4, longest), min(after_s, self.longest_s))


class Counts:
    """What has happened so far, by name; any thread may count.

    fetched, fetched_bytes, here, retries, retries_REASON, changed, given_up, given_up_REASON,
    disk_full (occasions of waiting for a full disk), beyond_limit (files that a reader could not do
    without), resumed, resumed_bytes.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, name: str, by: int = 1) -> int:
        """Counts, and gives the sum."""
        with self._mutex:
            self._counts[name] = self._counts.get(name, 0) + by
            return self._counts[name]

    def __getitem__(self, name: str) -> int:
        with self._mutex:
            return self._counts.get(name, 0)

    def all(self) -> dict[str, int]:
        """A copy."""
        with self._mutex:
            return dict(self._counts)


@dataclass
class Job:
    """An object that is to be fetched; of the Fetcher alone, but for what wait() tells of it."""

    item: RemoteObject
    ready: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None
    reason: str = ""  # of a job that was given up
    busy: bool = False
    again_at: float = 0.0  # monotonic: not before
    waits: int = 0  # times that it was put off
    no_room_since: float | None = None
    wished: bool = False


class Fetcher:
    """Fetches objects into a cache, and answers the wishes of those who read it.

    Threads start with start(); fetch() alone needs none.

    Args:
        cache: Where to.
        stores: Where from.
        threads: Objects that are fetched at the same time.
        patience: For stores that fail.
        on_lost: Called once when a store has been away for `give_up_after_s`, with the reason.
    """

    def __init__(
        self,
        cache: Cache,
        stores: Stores,
        threads: int = 8,
        patience: Patience | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self.cache = cache
        self.counts = Counts()
        self._stores = stores
        self._patience = patience or Patience()
        self._threads_wanted = threads
        self._threads: list[threading.Thread] = []
        self._stop = stores.stop
        self._change = threading.Condition()
        self._catalogue: dict[str, RemoteObject] = {}
        self._jobs: dict[str, Job] = {}  # under way or waiting
        self._queue: deque[str] = deque()  # names that are fetched ahead, in order
        self._wishes: list[tuple[bool, str]] = []
        self._own_wishes: dict[str, None] = {}  # in their order
        self._listed_too_much = False  # some that are not in _own_wishes any more
        self._asked: set[str] = set()  # for which wait() has made a wish
        self._full_until = 0.0  # until then nothing is fetched that has to find room by itself
        self._began = time.monotonic()
        self._on_lost = on_lost
        self.lost = ""  # why nothing is fetched any more

    # ---- one object

    def fetch(
        self,
        item: RemoteObject,
        older_than: float | None = None,
        urgent: bool = False,
        beyond: bool = False,
    ) -> tuple[Outcome, str]:
        """Has the object in the cache, in this thread. Only FETCHED and HERE mean that it is there.

        Args:
            item: What to fetch; if it has changed since, the new one is fetched.
            older_than, urgent, beyond: Cache.reserve().
        Returns:
            What came of it, and of GIVEN_UP the reason as a sentence.
        """
        if item.size is not None and self.cache.holds(item):
            self.counts.add("here")
            return Outcome.HERE, ""
        with self.cache.fetching(item) as mine:
            if not mine:
                return Outcome.ELSEWHERE, ""
            return self._fetch_locked(item, older_than, urgent, beyond)

    def _fetch_locked(
        self, item: RemoteObject, older_than: float | None, urgent: bool, beyond: bool
    ) -> tuple[Outcome, str]:
        attempt = 0
        since = 0.0  # when it failed first, without a byte more since
        changes = 0
        asked = item.size is not None
        first = True
        while not self._stop.is_set():
            before = self._size_of_partial(item) if item.size is not None else 0
            try:
                if not asked:
                    if first and self._comes_at_once(item):
                        first = False
                        told: list[RemoteObject] = []
                        try:
                            if self._at_once(item, told):
                                return Outcome.FETCHED, ""
                        finally:
                            # What was begun is gone on with.
                            if told:
                                item, asked = told[0], True
                                with self._change:
                                    self._catalogue[item.name] = item
                    item = self._stores.of(item.url).look(item)
                    asked = True
                    with self._change:
                        self._catalogue[item.name] = item
                if item.size is None:
                    return self._give_up(item, "no_size", "the store does not say its size")
                if self.cache.holds(item):
                    self.counts.add("here")
                    return Outcome.HERE, ""
                if on_its_own := self._too_large(item):
                    return self._give_up(item, "too_large", on_its_own)
                if not self._pour(item, older_than, urgent, beyond):
                    return Outcome.NO_ROOM, ""
                return Outcome.FETCHED, ""
            except Missing as error:
                return self._give_up(item, "missing", str(error))
            except Clash as error:
                return self._give_up(item, "denied", str(error))
            except Changed as error:
                changes += 1
                self.counts.add("changed")
                _log.info("object_changed url=%s: %s; beginning anew", item.url, error)
                if item.size is not None:
                    self.cache.discard(self.cache.partial_path(item))
                asked = False
                if changes >= _CHANGES_MAX:
                    return self._give_up(item, "changing", f"it changed {changes} times under way")
                if changes > 1:
                    self._stop.wait(self._patience.wait_s(changes, 0.0))
            except DiskFull as error:
                if not self._wait_for_disk(item, str(error)):
                    return Outcome.STOPPED, ""
            except (Failed, Denied) as error:
                reason = error.reason if isinstance(error, Failed) else "denied"
                after_s = error.after_s if isinstance(error, Failed) else 0.0
                now = self._size_of_partial(item) if item.size is not None else 0
                attempt = attempt + 1 if now <= before else 1
                if attempt == 1:
                    since = time.monotonic()
                self.counts.add("retries")
                self.counts.add(f"retries_{reason}")
                text = f"{error} ({attempt} attempts)"
                # A number of attempts is for those that go on without the object. It does not help
                # to ask again then, where a store lets nobody in.
                if reason == "denied" and self._patience.attempts is not None:
                    return self._give_up(item, reason, str(error))
                for_s = time.monotonic() - since
                if self._patience.is_over(attempt, for_s):
                    if self._patience.attempts is None:
                        self._lose(item, text, for_s)
                    return self._give_up(item, reason, text)
                if attempt >= _AWAY_ATTEMPTS and self._says(attempt):
                    _log.warning(
                        "store_away url=%s for_s=%.0f attempts=%d reason=%s: %s; it is waited for",
                        *(item.url, for_s, attempt, reason, error),
                    )
                pause_s = self._patience.wait_s(attempt, after_s)
                if self._patience.give_up_after_s is not None:
                    pause_s = min(pause_s, max(0.0, self._patience.give_up_after_s - for_s))
                self._stop.wait(pause_s)
        return Outcome.STOPPED, ""

    def _lose(self, item: RemoteObject, text: str, for_s: float) -> None:
        with self._change:
            if self.lost:
                return
            self.lost = f"{item.url}: the store has been away for {for_s:.0f} s: {text}"
        if self._on_lost is not None:
            self._on_lost(self.lost)

    def _too_large(self, item: RemoteObject) -> str | None:
        assert item.size is not None
        if item.size <= self.cache.bytes_max:
            return None
        return (
            f"it has {item.size} bytes, and the cache may have {self.cache.bytes_max}: "
            "raise the limit of the cache"
        )

    def _size_of_partial(self, item: RemoteObject) -> int:
        try:
            return os.stat(self.cache.partial_path(item)).st_size
        except OSError:
            return 0

    def _pour(
        self, item: RemoteObject, older_than: float | None, urgent: bool, beyond: bool
    ) -> bool:
        """Whether the object's copy is whole now; False: there is no room for it."""
        assert item.size is not None
        partial = self.cache.partial_path(item)
        try:
            if not os.path.exists(partial) and not self.cache.reserve(partial, older_than, urgent):
                if not beyond:
                    return False
                self.cache.reserve(partial, beyond=True)
                if self._says(self.counts.add("beyond_limit")):
                    _log.warning(
                        "cache_limit_exceeded count=%d url=%s bytes=%d limit=%d: readers hold or "
                        "wait for all the rest; raise the limit of the cache",
                        self.counts["beyond_limit"],
                        item.url,
                        item.size,
                        self.cache.bytes_max,
                    )
            fd = open_regular(partial, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            self.cache.clear_away(partial)
            raise self._of_disk(error) from error
        try:
            offset = os.lseek(fd, 0, os.SEEK_END)
            if offset > item.size:
                raise Changed(f"{offset} bytes were there of {item.size}")
            if offset:
                self.counts.add("resumed")
                self.counts.add("resumed_bytes", offset)
            self._stores.of(item.url).pour(item, fd, offset)
            self._complete(item, fd, partial)
        finally:
            os.close(fd)
        return True

    def _comes_at_once(self, item: RemoteObject) -> bool:
        """Whether an object of unknown version is fetched without a question before."""
        if not self._stores.of(item.url).fetches_at_once():
            return False
        # An answer that is cut off for want of room costs a connection.
        if time.monotonic() < self._full_until:
            return False
        # A copy may be that of the version that is there now.
        return not os.path.lexists(f"{self.cache.objects}/{item.name}")

    def _at_once(self, item: RemoteObject, told: list[RemoteObject]) -> bool:
        """Whether the object's copy is whole now. `told`: gets the object as it is, if a copy of it
        has been begun.

        False: there is something to wait for, or to go on with; nothing has been done.
        """
        fds: list[int] = []

        def begin(found: RemoteObject) -> int | None:
            partial = self.cache.partial_path(found)
            if self._too_large(found):
                return None
            if not self.cache.reserve_now(partial):
                self._full_until = time.monotonic() + _FULL_S
                return None
            try:
                fds.append(open_regular(partial, os.O_RDWR))
            except OSError:
                return None  # it is gone on with, as any that somebody has begun
            told.append(found)
            return fds[0]

        try:
            found = self._stores.of(item.url).fetch_at_once(item, begin)
            if found is None:
                return False
            self._complete(found, fds[0], self.cache.partial_path(found))
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _complete(self, item: RemoteObject, fd: int, partial: str) -> None:
        """All bytes have come: the partial copy becomes the whole one."""
        assert item.size is not None
        size = os.fstat(fd).st_size
        if size != item.size:
            raise Changed(f"{size} bytes came of {item.size}")
        try:
            self.cache.finish(item, fd, partial)
        except OSError as error:
            if error.errno not in _NO_NAME:
                raise self._of_disk(error) from error
            self.cache.discard(partial)
            # In a store "a" and "a/b" may both be objects.
            raise Clash(
                f"its copy cannot be {self.cache.path(item)} ({error.strerror}): another object, a "
                "link or a mount is in the way there"
            ) from error
        self.counts.add("fetched")
        self.counts.add("fetched_bytes", item.size)

    @staticmethod
    def _of_disk(error: OSError) -> Exception:
        if is_disk_full(error):
            return DiskFull(str(error))
        return Failed("disk", f"{type(error).__name__}: {error}")

    def _wait_for_disk(self, item: RemoteObject, text: str) -> bool:
        """Makes room on a full disk, or waits until somebody does. False: stopped."""
        assert item.size is not None
        left = item.size - self._size_of_partial(item)
        if self.cache.make_room_on_disk(max(left, 1 << 20)) >= max(left, 1):
            return True
        if self._says(self.counts.add("disk_full")):
            _log.warning(
                "disk_full count=%d cache=%s: %s; %s needs %d bytes more; waiting until there is "
                "room",
                self.counts["disk_full"],
                self.cache.root,
                text,
                item.url,
                left,
            )
        return not self._stop.wait(self._patience.wait_s(min(self.counts["disk_full"], 5), 0.0))

    def _give_up(self, item: RemoteObject, reason: str, text: str) -> tuple[Outcome, str]:
        if item.size is not None:
            self.cache.discard(self.cache.partial_path(item))
        self.counts.add(f"given_up_{reason}")
        if self._says(self.counts.add("given_up")):
            _log.warning(
                "given_up count=%d reason=%s url=%s: %s",
                self.counts["given_up"],
                reason,
                item.url,
                text,
            )
        return Outcome.GIVEN_UP, f"{item.url}: {text}"

    @staticmethod
    def _says(count: int) -> bool:
        return count & (count - 1) == 0

    # ---- many, in the background

    def know(self, items: Iterable[RemoteObject]) -> None:
        """From now on wishes for these are answered."""
        with self._change:
            for item in items:
                self._catalogue[item.name] = item

    def known(self, name: str) -> RemoteObject | None:
        """What is known of an object now, by its name in the cache."""
        with self._change:
            return self._catalogue.get(name)

    def start(self) -> None:
        """Starts the threads; they fetch what is queued and what readers wish for."""
        if self._threads:
            return
        targets = [self._attend] + [self._work] * self._threads_wanted
        for i, target in enumerate(targets):
            thread = threading.Thread(target=target, name=f"ringfeed-remote-{i}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Stops the threads. What was under way stays as a partial copy, for whoever goes on."""
        self._stop.set()
        with self._change:
            self._change.notify_all()
        for thread in self._threads:
            thread.join(10)
        self._threads = []
        for name in self._asked:
            self.cache.drop_wish(name)
        self.cache.drop_list()

    def queue(self, item: RemoteObject, wished: bool = False) -> Job:
        """Fetches it ahead, in the order of these calls.

        Without `wished` only what nobody has used since the start of this fetcher makes room for
        it. With it, all makes room for it that is not wished for itself, and it stays until
        release().
        """
        with self._change:
            self._catalogue.setdefault(item.name, item)
            job = self._jobs.get(item.name)
            if job is None:
                job = self._jobs[item.name] = Job(self._catalogue[item.name])
                self._queue.append(item.name)
                self._change.notify()
            job.wished = job.wished or wished
            if wished and item.name not in self._own_wishes:
                self._own_wishes[item.name] = None
                self._list_wishes()
            return job

    def _list_wishes(self) -> None:
        self._listed_too_much = False
        self.cache.list_wishes(self._own_wishes)

    def wait(self, job: Job) -> tuple[Outcome, str]:
        """Until what was queued is in the cache or has been given up."""
        while not job.ready.wait(0.2):
            if self._stop.is_set():
                return Outcome.STOPPED, ""
            if job.no_room_since is not None:
                self._asked.add(job.item.name)
                self.cache.ask(job.item.name)
        assert job.outcome is not None
        return job.outcome, job.reason

    def release(self, item: RemoteObject) -> None:
        """What was queued and wished for has been read, and may go."""
        if item.name in self._asked:
            self._asked.discard(item.name)
            self.cache.drop_wish(item.name)
        with self._change:
            # The list says so with the next object, or a little later.
            self._own_wishes.pop(item.name, None)
            self._listed_too_much = True
            if self._wishes:
                self._wishes = [wish for wish in self._wishes if wish[1] != item.name]
            for job in self._jobs.values():
                if job.no_room_since is not None:
                    job.again_at, job.waits = 0.0, 0
                    self._change.notify()

    def _attend(self) -> None:
        """Looks for wishes."""
        tidied = time.monotonic()
        while not self._stop.wait(_LOOK_FOR_WISHES_S):
            with self._change:  # so that one that release() drops is not taken for one that stands
                if self._listed_too_much:
                    self._list_wishes()
                wishes = self.cache.wishes()
                if wishes or self._wishes:
                    self._wishes = [
                        (ahead, name)
                        for ahead, name, since in wishes
                        if self._takes(ahead, name, since)
                    ]
                    if self._wishes:
                        self._change.notify_all()
            if time.monotonic() - tidied > _TIDY_S:
                tidied = time.monotonic()
                with self._change:
                    self.cache.renew_list()
                for name in list(self._asked):
                    self.cache.renew_wish(name)
                self.cache.drop_old_wishes()

    def _takes(self, ahead: bool, name: str, since: float) -> bool:
        """Whether something is to be done about a wish."""
        if ahead and name in self._own_wishes:
            return False  # it is queued
        item = self._catalogue.get(name)
        if item is None:
            return self._adopts(name, since)
        return item.size is None or not self.cache.holds(item)

    def _adopts(self, name: str, since: float) -> bool:
        """Whether a file that no listing has named is of a store of ours: then it is asked for."""
        if time.monotonic() - since < _NOBODYS_S:
            return False  # somebody else may know it
        item = self._stores.object_named(name)
        if item is None:
            return False
        self._catalogue[name] = item
        return True

    def _next(self) -> tuple[Job, bool, bool] | None:
        """A job to do now, whether somebody waits for it, whether it is wished for at all."""
        now = time.monotonic()
        for ahead, name in self._wishes:
            job = self._jobs.get(name)
            if job is None:
                job = self._jobs[name] = Job(self._catalogue[name])
            if not job.busy and job.again_at <= now:
                return job, not ahead, True
        for _ in range(len(self._queue)):
            name = self._queue[0]
            queued = self._jobs.get(name)
            if queued is None or queued.busy:
                self._queue.popleft()
                continue
            if queued.again_at <= now:
                self._queue.popleft()
                return queued, False, False
            # Objects ahead wait for the first that cannot come now only if it is for want of room.
            if queued.no_room_since is not None:
                return None
            self._queue.rotate(-1)
        return None

    def _work(self) -> None:
        while not self._stop.is_set():
            with self._change:
                found = self._next()
                if found is None:
                    self._change.wait(_LOOK_FOR_WISHES_S)
                    continue
                job, urgent, wished = found
                # What an earlier try has learned of it: then nothing is asked again.
                job.item = self._catalogue.get(job.item.name, job.item)
                job.busy = True
                wished = wished or job.wished
            beyond = False
            if urgent and job.no_room_since is not None:
                beyond = time.monotonic() - job.no_room_since > _WISHED_ROOM_S
            try:
                began = time.time() - (time.monotonic() - self._began)
                outcome, reason = self.fetch(job.item, None if wished else began, urgent, beyond)
            except Exception as error:  # a fault of ours must not end the thread
                _log.exception("fetch_failed url=%s", job.item.url)
                outcome, reason = Outcome.GIVEN_UP, f"{job.item.url}: {error!r}"
                self.counts.add("given_up")
                self.counts.add("given_up_fault")
            self._settle(job, outcome, reason, wished)

    def _settle(self, job: Job, outcome: Outcome, reason: str, wished: bool) -> None:
        name = job.item.name
        if outcome is Outcome.GIVEN_UP:
            self.cache.tell_failure(name, reason)
        with self._change:
            job.busy = False
            if outcome in (Outcome.ELSEWHERE, Outcome.NO_ROOM):
                job.waits += 1
                shortest, longest = _ELSEWHERE_S
                job.again_at = time.monotonic() + min(longest, shortest * 2 ** min(job.waits, 10))
                if outcome is Outcome.NO_ROOM and job.no_room_since is None:
                    job.no_room_since = time.monotonic()
                if name not in self._queue:
                    self._queue.appendleft(name)
            else:
                job.outcome, job.reason = outcome, reason
                self._jobs.pop(name, None)
                if self._wishes:
                    self._wishes = [wish for wish in self._wishes if wish[1] != name]
                job.ready.set()


__all__ = ["Counts", "Fetcher", "Job", "Outcome", "Patience"]
