"""A directory of this host that holds copies of objects, with a limit in bytes, for all processes.

  DIRECTORY/
    ringfeed-cache   says what the directory is, and its layout
    objects/         whole copies, by name (names.py): `s3/bucket/data/part-0.jsonl.zst`
    partial/         copies under way: URL-VERSION-BOOT-BYTES, digests of what they belong to, and
                     the size that they will have
    wanted/          links that readers make: 0-HASH for a file that somebody waits for, 1-HASH for
                     one that will be read soon; each points to the name below objects/, and goes
                     when the reader has opened the file. list-PID-RANDOM: names, one a line, that a
                     fetcher has fetched or will fetch for its own reader
    failed/          HASH: why a wanted file does not come
    lock             locks of single bytes: byte 0 for the accounts, others for objects by digest of
                     their URL
    accounts         the boot that it is of, bytes in use

Whoever dies leaves nothing that counts. Locks are the kernel's and end with their process, also
with one that has forked. A copy below objects/ is there whole or not at all, and its size and time
say which version it is; what somebody has cut, written to or put in its place since is none, and is
fetched again. A partial copy is gone on with by whoever wants that version next, or makes
room like any other file. The accounts may only say too much then, and are made anew from the
directory before anything is removed for their sake.

What has not been used longest goes first: whoever opens a copy to read sets its access time. A copy
that anybody has open or mapped stays: the kernel refuses a write lease on it (fcntl, F_SETLEASE).
Where a file system has no leases it may go; whoever has it open reads it to its end all the same.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import os
import signal
import stat
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .beneath import directory_beneath, open_regular, read_regular
from .names import RemoteError, RemoteObject, Version, fnv_1a, is_whole

MARKER = "ringfeed-cache"
_MARKER_TEXT = "ringfeed cache 2\n"
# Times of its copies do not tell what was damaged: they are fetched again.
_MARKER_BEFORE = "ringfeed cache 1\n"
_BLOCK = 4096
_ACCOUNTS = struct.Struct("<16sq")
_OBJECT_LOCKS = 1 << 20  # their first byte; below it is room for others
# Room is made for some time, not for one file: looking through the directory is dear.
_SPARE_PART = 50
# A wish that nobody has renewed for so long is nobody's.
WISH_S = 120.0
# What has been used so much later than now was used before the clock was set back.
_AHEAD_OF_CLOCK_S = 60.0


def on_disk(size: int) -> int:
    """Bytes that a file of this size takes, as the accounts have it."""
    return -(-size // _BLOCK) * _BLOCK


@functools.lru_cache(4096)
def hash_of(name: str) -> str:
    """FNV-1a of a name, 16 digits: its name in wanted/ and failed/. workers/kit has the same."""
    return f"{fnv_1a(os.fsencode(name)):016x}"


def _boot() -> str:
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        text = ""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class _Locks:
    """Locks of bytes of a file: kept by the kernel between processes, by this between threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._held: set[int] = set()
        self._mutex = threading.Lock()
        self._accounts = threading.Lock()
        self._pid = os.getpid()

    def _file(self) -> int:
        # Never closed while a lock is held: closing any descriptor of the file gives up all locks
        # of the process.
        if self._fd >= 0 and not self._held:
            with suppress(OSError):
                now = os.stat(self._path)
                mine = os.fstat(self._fd)
                if (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino):
                    return self._fd
            os.close(self._fd)
            self._fd = -1
        if self._fd < 0:
            self._fd = open_regular(self._path, os.O_RDWR | os.O_CREAT)
        return self._fd

    def try_lock(self, byte: int) -> bool:
        with self._mutex:
            if byte in self._held:
                return False
            try:
                fcntl.lockf(self._file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    return False
                raise
            self._held.add(byte)
            return True

    def unlock(self, byte: int) -> None:
        with self._mutex:
            self._held.discard(byte)
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)

    @contextmanager
    def accounts_if_free(self) -> Iterator[bool]:
        """accounts(), without waiting; False: somebody else has them."""
        if not self._accounts.acquire(blocking=False):
            yield False
            return
        try:
            mine = self.try_lock(0)
            try:
                yield mine
            finally:
                if mine:
                    self.unlock(0)
        finally:
            self._accounts.release()

    @contextmanager
    def accounts(self) -> Iterator[None]:
        with self._accounts:
            with self._mutex:
                fd = self._file()
                self._held.add(0)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)
                yield
            finally:
                self.unlock(0)


_tables: dict[Path, _Locks] = {}
_tables_mutex = threading.Lock()


def _locks_of(root: Path) -> _Locks:
    """One table a directory and process: the kernel does not tell threads apart."""
    with _tables_mutex:
        if root not in _tables:
            _tables[root] = _Locks(root / "lock")
        return _tables[root]


def _forget_tables() -> None:
    # A child holds none of its parent's locks.
    global _tables_mutex
    _tables_mutex = threading.Lock()
    _tables.clear()


os.register_at_fork(after_in_child=_forget_tables)


def _bytes_of(partial: Path | str) -> int:
    """That a partial copy will have."""
    return int(os.fspath(partial).rsplit("-", 1)[1])


class _WishList:
    """A file of names. It is written in place: who reads it meanwhile finds some of both lists."""

    def __init__(self, directory: Path) -> None:
        self.pid = os.getpid()
        # Others of this number may be in other containers.
        self._path = directory / f"list-{self.pid}-{os.urandom(6).hex()}"
        self._fd = -1
        self._text = b""

    def write(self, names: Iterable[str]) -> None:
        before, self._text = self._text, os.fsencode("".join(f"{name}\n" for name in names))
        # A list that cannot be kept, on a full disk, protects nothing.
        with suppress(OSError):
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
                self._fd = os.open(self._path, flags, 0o666)
            os.pwrite(self._fd, self._text, 0)
            if len(self._text) < len(before):
                os.ftruncate(self._fd, len(self._text))

    def renew(self) -> None:
        try:
            os.utime(self._path)
        except OSError:
            # Somebody took it for one of the dead.
            names = os.fsdecode(self._text).split("\n")
            self.close()
            self.write(name for name in names if name)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with suppress(OSError):
            os.unlink(self._path)


@dataclass
class _Copy:
    path: str
    name: str  # below objects/; "": a partial copy
    bytes: int
    used_at: float
    lock: int  # of a partial copy


class Cache:
    """A cache directory; any number of processes and threads may have one of their own on it.

    Args:
        directory: Made if it is not there. One that holds something else is refused.
        bytes_max: The limit, in bytes. Processes with different limits keep to their own, so the
            lowest counts.
    Raises:
        RemoteError: The directory cannot be used; the text says why.
    """

    def __init__(self, directory: str | os.PathLike[str], bytes_max: int) -> None:
        if bytes_max < 1 << 20:
            raise RemoteError(f"a cache of {bytes_max} bytes: give at least 1048576")
        self.bytes_max = bytes_max
        self.evicted = 0  # copies removed by this process
        self.evicted_bytes = 0
        self.leases = True  # False: the file system has none
        root = Path(directory)
        try:
            root.mkdir(parents=True, exist_ok=True)
            self.root = root.resolve()
            self._prepare()
        except RemoteError:
            raise
        except OSError as error:
            of = f" ({error.filename})" if error.filename is not None else ""
            raise RemoteError(f"cache {root}: {error.strerror or error}{of}") from error
        self.objects = self.root / "objects"
        self._partial = self.root / "partial"
        self._wanted = self.root / "wanted"
        self._failed = self.root / "failed"
        self._accounts = f"{self.root}/accounts"
        self._boot = _boot()
        self._locks = _locks_of(self.root)
        self._list: _WishList | None = None
        # Entries of wanted/: the time that they had when they were seen, and since when that is.
        self._seen: dict[str, tuple[int, float]] = {}
        try:
            with self._locks.accounts():
                if self._read_accounts() is None:
                    self._write_accounts(self._count(self._look_through()))
        except OSError as error:
            raise RemoteError(f"cache {root}: lock: {error.strerror or error}") from error

    def _prepare(self) -> None:
        marker = self.root / MARKER
        if not os.path.lexists(marker):
            others = [name for name in os.listdir(self.root) if not name.startswith(".")]
            if others and not os.path.lexists(marker):
                raise RemoteError(
                    f"cache {self.root}: it holds {others[0]!r} and is no cache; name an empty "
                    "directory, or one that is not there yet"
                )
            self._mark(marker)
        text = read_regular(marker).decode(errors="replace")
        if text == _MARKER_BEFORE:
            self._mark(marker)
        elif text != _MARKER_TEXT:
            raise RemoteError(
                f"cache {self.root}: its layout is {text[:40]!r}, and this is ringfeed cache 2"
            )
        for name in ("objects", "partial", "wanted", "failed"):
            (self.root / name).mkdir(exist_ok=True)
        # A copy gets its name when it is whole, in one step.
        if os.stat(self.root / "objects").st_dev != os.stat(self.root / "partial").st_dev:
            raise RemoteError(
                f"cache {self.root}: {(self.root / 'objects').resolve()} is on another file system "
                "than its directory partial: move or link the cache as a whole"
            )
        self._try_times()

    def _try_times(self) -> None:
        """By its time, to the nanosecond, a copy is told from one that was damaged since."""
        probe = self.root / f".time-{os.getpid()}-{threading.get_ident()}"
        wanted = 1_234_567_890_123_456_789
        try:
            os.close(open_regular(probe, os.O_WRONLY | os.O_CREAT))
            os.utime(probe, ns=(wanted, wanted))
            kept = os.stat(probe).st_mtime_ns
            probe.unlink()
        except OSError:
            return  # a full disk, or one for reading: what is there can be read
        if kept != wanted:
            raise RemoteError(
                f"cache {self.root}: its file system does not keep the times of files to the "
                "nanosecond, by which whole copies are told from damaged ones: name a directory on "
                "another one"
            )

    def _mark(self, marker: Path) -> None:
        aside = self.root / f".{MARKER}-{os.getpid()}-{threading.get_ident()}"
        aside.unlink(missing_ok=True)
        with open(open_regular(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
            file.write(_MARKER_TEXT)
        aside.rename(marker)

    # ---- whole copies

    def path(self, item: RemoteObject) -> Path:
        """Where the copy of an object is, or will be."""
        return self.objects / item.name

    def holds(self, item: RemoteObject) -> bool:
        """Whether the copy is there, of just this version, and as it was fetched."""
        try:
            return item.version.is_of(os.lstat(f"{self.objects}/{item.name}"))
        except OSError:
            return False

    def touch(self, item: RemoteObject) -> None:
        """It has been used: others go first."""
        with suppress(OSError):
            path = f"{self.objects}/{item.name}"
            os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))

    # ---- copies under way

    @contextmanager
    def fetching(self, item: RemoteObject) -> Iterator[bool]:
        """Holds the object's lock; False: another process or thread has it."""
        byte = self._lock_of(self._digest(item.url))
        if not self._locks.try_lock(byte):
            yield False
            return
        try:
            yield True
        finally:
            self._locks.unlock(byte)

    def partial(self, item: RemoteObject) -> Path:
        """Where the copy of this version grows. Only for who holds the object's lock."""
        return Path(self.partial_path(item))

    def partial_path(self, item: RemoteObject) -> str:
        """The same as text: a Path takes longer to make than a file."""
        token = f"{item.etag or item.changed}\0{item.size}"
        name = f"{self._digest(item.url)}-{self._digest(token)}-{self._boot}-{item.size}"
        return f"{self.root}/partial/{name}"

    def discard(self, partial: Path | str) -> None:
        """Removes a copy that nothing will come of, with its place in the accounts."""
        try:
            os.unlink(partial)
        except OSError:
            return
        self.give_back(_bytes_of(partial))

    @staticmethod
    def clear_away(path: str) -> None:
        """Removes what is no file and has the name of one; of directories only an empty one."""
        with suppress(OSError):
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode):
                os.rmdir(path)
            elif not stat.S_ISREG(mode):
                os.unlink(path)

    def finish(self, item: RemoteObject, fd: int, partial: Path | str) -> None:
        """Makes the partial copy the whole one. It is on the disk before it has its name."""
        os.utime(fd, ns=(time.time_ns(), item.version.mtime_ns))
        os.fsync(fd)
        replaced = 0
        for _ in range(100):
            try:
                directory, name = directory_beneath(str(self.objects), item.name)
            except FileNotFoundError:
                continue  # somebody has tidied it away
            try:
                replaced = self._put(partial, name, directory)
                break
            except FileNotFoundError:
                if not os.path.lexists(partial):
                    raise
            finally:
                os.close(directory)
        else:
            raise OSError(errno.ENOENT, "its directory vanishes again and again", item.name)
        with suppress(OSError):
            os.unlink(f"{self.root}/failed/{hash_of(item.name)}")
        if replaced:
            self.give_back(replaced)

    @staticmethod
    def _put(partial: Path | str, name: str, directory: int) -> int:
        """Gives the partial copy its name. Returns the bytes of the copy that had it before."""
        replaced = 0
        with suppress(OSError):
            before = os.stat(name, dir_fd=directory, follow_symlinks=False)
            # What was damaged may have any size; the accounts have that which it had.
            replaced = before.st_size if is_whole(before) else 0
        try:
            os.rename(partial, name, dst_dir_fd=directory)
        except IsADirectoryError:
            # One with objects in it stays: in a store "a" and "a/b" may both be objects.
            with suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=directory)
            os.rename(partial, name, dst_dir_fd=directory)
        return replaced

    # ---- room

    def used_bytes(self) -> int:
        """What the accounts say; never less than what is there."""
        with self._locks.accounts():
            used = self._read_accounts()
            return used if used is not None else self._count(self._look_through())

    def reserve(
        self,
        partial: Path | str,
        older_than: float | None = None,
        urgent: bool = False,
        beyond: bool = False,
    ) -> bool:
        """Takes room for a copy, and removes others for it as far as they may go.

        Args:
            partial: Of the copy. It is made, empty: from then on all see the room that it takes.
            older_than: Only what has not been used since this time makes room (seconds since 1970,
                as the clock is now).
            urgent: Also what is wished for only for later makes room, the last wish first.
            beyond: Take it even if nothing may go: somebody waits who cannot go on without it.
        Returns:
            False: there is no room within the limit; nothing is taken.
        Raises:
            OSError: It cannot be made; nothing is taken.
        """
        need = on_disk(_bytes_of(partial))
        with self._locks.accounts():
            used = self._read_accounts()
            if used is None or used + need > self.bytes_max:
                copies = self._look_through()
                used = self._count(copies)
                excess = used + need - self.bytes_max
                if excess > 0:
                    excess += self.bytes_max // _SPARE_PART
                    used -= self._evict(copies, excess, older_than, urgent)
            fits = used + need <= self.bytes_max or beyond
            if not fits:
                self._write_accounts(used)
                return False
            # Whoever dies between these two has the accounts say too much, and never too little.
            self._write_accounts(used + need)
            try:
                os.close(open_regular(partial, os.O_WRONLY | os.O_CREAT))
            except OSError:
                self._write_accounts(used)
                raise
            return True

    def reserve_now(self, partial: Path | str) -> bool:
        """reserve() of a new copy, if it need not wait and nothing has to be removed for it.

        Returns:
            False: nothing is taken; reserve() has to see to it.
        """
        need = on_disk(_bytes_of(partial))
        with self._locks.accounts_if_free() as mine:
            used = self._read_accounts() if mine else None
            if used is None or used + need > self.bytes_max:
                return False
            self._write_accounts(used + need)
            try:
                os.close(open_regular(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            except OSError:
                self._write_accounts(used)
                return False
            return True

    def give_back(self, size: int) -> None:
        """Of a copy that was given up."""
        with self._locks.accounts():
            used = self._read_accounts()
            if used is not None:
                self._write_accounts(max(0, used - on_disk(size)))

    def make_room_on_disk(self, size: int) -> int:
        """On a full disk: removes copies of this size together, as far as they may go.

        Returns:
            Bytes that came free.
        """
        with self._locks.accounts():
            copies = self._look_through()
            used = self._count(copies)
            freed = self._evict(copies, on_disk(size), None, True)
            self._write_accounts(used - freed)
            return freed

    def _look_through(self) -> list[_Copy]:
        copies: list[_Copy] = []
        # Partial copies first: one that becomes whole meanwhile is counted twice, and never left
        # out.
        with suppress(OSError), os.scandir(self._partial) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    words = entry.name.split("-")
                    known = len(words) == 4 and words[3].isdecimal()
                    size = int(words[3]) if known else 0
                    lock = self._lock_of(words[0]) if known else 1
                    kept = on_disk(max(size, status.st_size))
                    copies.append(_Copy(entry.path, "", kept, status.st_mtime, lock))
        directories = [str(self.objects)]
        while directories:
            directory = directories.pop()
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            directories.append(entry.path)
                            continue
                        with suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            name = entry.path[len(str(self.objects)) + 1 :]
                            copies.append(
                                _Copy(entry.path, name, on_disk(status.st_size), status.st_atime, 0)
                            )
            except OSError:
                continue  # gone meanwhile
        return copies

    @staticmethod
    def _count(copies: list[_Copy]) -> int:
        return sum(copy.bytes for copy in copies)

    def _evict(
        self, copies: list[_Copy], excess: int, older_than: float | None, urgent: bool
    ) -> int:
        fresh = time.monotonic() - WISH_S
        wanted = {}  # name: since when only for later; None: somebody waits
        for ahead, name, since in reversed(self.wishes()):
            if since > fresh:
                wanted[name] = since if ahead else None
        latest = time.time() + _AHEAD_OF_CLOCK_S
        for copy in copies:
            if copy.used_at > latest:
                copy.used_at = -1 / copy.used_at  # before all others, in their order
        old = (copy for copy in copies if copy.name not in wanted)
        queue = [
            copy
            for copy in sorted(old, key=lambda copy: copy.used_at)
            if older_than is None or copy.used_at < older_than
        ]
        if urgent:
            later = [(wanted[copy.name], copy) for copy in copies if wanted.get(copy.name)]
            queue += [copy for _, copy in sorted(later, key=lambda pair: -(pair[0] or 0.0))]
        freed = 0
        for copy in queue:
            if freed >= excess:
                break
            gone = self._remove_copy(copy.path) if copy.name else self._remove_partial(copy)
            if gone:
                freed += copy.bytes
                self.evicted += 1
                self.evicted_bytes += copy.bytes
        return freed

    def _remove_copy(self, path: str) -> bool:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            # Whoever opens it from here on waits until the file is removed, or is told EWOULDBLOCK.
            # The signal that tells this process of him is one that does nothing.
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            try:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    return False  # somebody has it open, or mapped
                self.leases = False
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError:
                return False
        finally:
            os.close(fd)
        with suppress(OSError):
            directory = os.path.dirname(path)
            while directory != str(self.objects):
                os.rmdir(directory)
                directory = os.path.dirname(directory)
        return True

    def _remove_partial(self, copy: _Copy) -> bool:
        if not self._locks.try_lock(copy.lock):
            return False  # it is growing
        try:
            os.unlink(copy.path)
        except OSError:
            return False
        finally:
            self._locks.unlock(copy.lock)
        return True

    # ---- accounts

    def _read_accounts(self) -> int | None:
        """None: they are of before the last start of the machine, or damaged."""
        try:
            boot, used = _ACCOUNTS.unpack(read_regular(self._accounts))
        except (OSError, struct.error):
            return None
        return int(used) if boot == self._boot.encode() and used >= 0 else None

    def _write_accounts(self, used: int) -> None:
        try:
            fd = open_regular(self._accounts, os.O_RDWR | os.O_CREAT)
            try:
                # One write in place: whoever dies has written all of it or nothing.
                os.pwrite(fd, _ACCOUNTS.pack(self._boot.encode(), used), 0)
            finally:
                os.close(fd)
        except OSError:
            # No room for 24 bytes: without accounts the directory is looked through each time.
            with suppress(OSError):
                os.unlink(self._accounts)

    # ---- what readers wish for

    def ask(self, name: str, ahead: bool = False) -> None:
        """Wishes for a file by its name below objects/, as a reader does that cannot find it."""
        with suppress(FileExistsError):
            os.symlink(name, self._wanted / f"{int(ahead)}-{hash_of(name)}")

    def wishes(self) -> list[tuple[bool, str, float]]:
        """(whether it is only for later, name, since when), the most urgent first.

        Since when is on the clock that nobody sets (time.monotonic): what has been seen before is
        as old as that is long ago.
        """
        found: list[tuple[bool, float, str]] = []
        seen: dict[str, tuple[int, float]] = {}
        try:
            with os.scandir(self._wanted) as entries:
                for entry in entries:
                    with suppress(OSError):
                        renewed_ns = entry.stat(follow_symlinks=False).st_mtime_ns
                        before_ns, since = self._seen.get(entry.name, (None, 0.0))
                        if renewed_ns != before_ns:
                            age_s = max(0.0, time.time() - renewed_ns / 1e9)
                            since = time.monotonic() - age_s
                        seen[entry.name] = renewed_ns, since
                        if entry.is_symlink():
                            name = os.readlink(entry.path)
                            found.append((not entry.name.startswith("0-"), since, name))
                        elif entry.name.startswith("list-"):
                            names = os.fsdecode(read_regular(entry.path)).split("\n")
                            # The last of a list is the last that was wished for.
                            found += [
                                (True, since + 1e-6 * i, name)
                                for i, name in enumerate(names)
                                if name
                            ]
        except OSError:
            return []
        self._seen = seen
        return [(ahead, name, since) for ahead, since, name in sorted(found)]

    def drop_wish(self, name: str) -> None:
        """Nobody waits for it any more, or it cannot be had."""
        for urgency in "01":
            with suppress(OSError):
                os.unlink(self._wanted / f"{urgency}-{hash_of(name)}")

    def renew_wish(self, name: str) -> None:
        """Somebody still waits for it."""
        for urgency in "01":
            with suppress(OSError):
                os.utime(self._wanted / f"{urgency}-{hash_of(name)}", follow_symlinks=False)

    def list_wishes(self, names: Iterable[str]) -> None:
        """What is wished for, for later, by who has this object, in place of the list before.

        It is one file for all: with links, each object would have one made and removed.
        """
        if self._list is None or self._list.pid != os.getpid():
            self._list = _WishList(self._wanted)
        self._list.write(names)

    def renew_list(self) -> None:
        """These wishes still stand."""
        if self._list is not None:
            self._list.renew()

    def drop_list(self) -> None:
        """Nobody wishes for them any more."""
        if self._list is not None and self._list.pid == os.getpid():
            self._list.close()
        self._list = None

    def drop_old_wishes(self) -> None:
        """Those of readers that are gone."""
        wishes = self.wishes()
        stale = time.monotonic() - WISH_S
        for entry, (_, since) in list(self._seen.items()):
            if entry.startswith("list-") and since < stale:
                with suppress(OSError):
                    os.unlink(self._wanted / entry)
        for _, name, since in wishes:
            if since < stale:
                self.drop_wish(name)

    def tell_failure(self, name: str, reason: str) -> None:
        """Answers a wish: the file does not come, and why. It stands until somebody asks again."""
        path = self._failed / hash_of(name)
        aside = self._failed / f".{hash_of(name)}-{os.getpid()}-{threading.get_ident()}"
        # The wish goes first: whoever asks again once he has read the answer makes a new one.
        self.drop_wish(name)
        text = os.fsencode(name) + b"\n" + reason.encode(errors="backslashreplace") + b"\n"
        with suppress(OSError):
            with open(open_regular(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
                file.write(text)
            aside.rename(path)

    def failure(self, name: str) -> str | None:
        """Why a wanted file does not come; None: nothing is known against it."""
        with suppress(OSError):
            text = os.fsdecode(read_regular(self._failed / hash_of(name)))
            told, _, reason = text.partition("\n")
            if told == name:
                return reason.strip()
        return None

    # ---- digests

    @staticmethod
    def _digest(text: str) -> str:
        return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=10).hexdigest()

    @staticmethod
    def _lock_of(digest: str) -> int:
        try:
            number = int(digest, 16) % (1 << 60)
        except ValueError:
            number = 0
        return _OBJECT_LOCKS + number


__all__ = ["Cache", "Version", "hash_of", "on_disk"]
