"""The C library as Python sees it: the only module that knows structs, pointers and statuses.

Calls release the GIL. What must not be forgotten, batches and attachments, is given back by weak
references whose callbacks are C functions: no Python code runs in them, so Ctrl-C, which Python
raises between any two of its instructions and drops in a ``__del__``, cannot get in the way.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import errors

_log = logging.getLogger("ringfeed")

OK = 0
TIMEOUT = 1
END = 2
INTERRUPTED = 3
NO_SUCH_FEED = -2
SLOTS_EXHAUSTED = -6
DETACHED = -7

_ERRORS: dict[int, type[errors.RingfeedError]] = {
    TIMEOUT: errors.FeedTimeout,
    END: errors.FeedEnd,
    -1: errors.InvalidRequest,
    NO_SUCH_FEED: errors.NoSuchFeed,
    -3: errors.IncompatibleFeed,
    -4: errors.FeedRefused,
    -5: errors.FeedFailed,
    SLOTS_EXHAUSTED: errors.SlotsExhausted,
    DETACHED: errors.FeedDetached,
    -8: errors.ForkedFeed,
    -9: errors.FeedPermission,
    -10: errors.FeedMemoryError,
    -11: errors.FeedIOError,
    -12: errors.FeedDamaged,
    -13: errors.FeedStopped,
}

KINDS = {"shared": 1, "ranked": 2}
STARTS = {"oldest": 0, "newest": 1}
POLICIES = {"block": 1, "skip": 2, "detach": 3}
# "copy" is Python's own: copies are made from a read-only view.
VIEWS = {"readonly": 0, "private": 1, "copy": 0}
PHASES = ("starting", "running", "draining", "ended", "failed", "stopped")


class _Notice(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("text", ctypes.c_char_p),
    ]


_OnNotice = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Notice))


_NOTICES_LOGGED = (3, 4)  # that are in the feed's log, too: RF_NOTICE_LEFT_OUT, _STANDS_STILL
_calling = threading.local()  # reads_log: of the handle whose rf_next this thread is in


def _tell(_user: Any, notice: Any) -> None:
    if notice.contents.kind not in _NOTICES_LOGGED or not _calling.reads_log:
        _log.warning("%s", notice.contents.text.decode(errors="replace"))


_on_notice = _OnNotice(_tell)


class _AttachOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("timeout_ms", ctypes.c_int32),
        ("feed", ctypes.c_char_p),
        ("group", ctypes.c_char_p),
        ("socket_dir", ctypes.c_char_p),
        ("socket_path", ctypes.c_char_p),
        ("client", ctypes.c_char_p),
        ("kind", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("world", ctypes.c_uint32),
        ("start", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("redeliver", ctypes.c_uint32),
        ("max_tries", ctypes.c_uint32),
        ("max_hold", ctypes.c_uint32),
        ("stall_ms", ctypes.c_uint64),
        ("rejoin_ms", ctypes.c_uint64),
        ("answer_ms", ctypes.c_int32),
        ("view", ctypes.c_uint32),
        ("position", ctypes.c_uint64),
        ("output", ctypes.c_char_p),
        ("on_notice", _OnNotice),
        ("notice_user", ctypes.c_void_p),
        ("observe", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 64),
        ("dtype", ctypes.c_char * 16),
        ("item_bytes", ctypes.c_uint32),
        ("dims", ctypes.c_uint32),
        ("shape", ctypes.c_int64 * 8),
        ("offset", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 4),
    ]


class _Schema(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("tensor_count", ctypes.c_uint32),
        ("rows_max", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("slot_bytes", ctypes.c_uint64),
        ("tensors", ctypes.POINTER(_Tensor)),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
        ("seq", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("token", ctypes.c_uint64 * 2),
        ("tries", ctypes.c_uint32),
        ("slot", ctypes.c_uint32),
        ("crc32c", ctypes.c_uint32),
        ("layout_id", ctypes.c_uint32),
        ("published_ns", ctypes.c_uint64),
        ("ragged", ctypes.c_uint32 * 16),
    ]


class _Stats(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("phase", ctypes.c_uint32),
        ("published", ctypes.c_uint64),
        ("taken", ctypes.c_uint64),
        ("done", ctypes.c_uint64),
        ("lag", ctypes.c_uint64),
        ("start", ctypes.c_uint64),
        ("wait_ns", ctypes.c_uint64),
        ("waits", ctypes.c_uint64),
        ("held", ctypes.c_uint32),
        ("max_hold", ctypes.c_uint32),
        ("slots", ctypes.c_uint32),
        ("lanes", ctypes.c_uint32),
        ("group_index", ctypes.c_uint32),
        ("member", ctypes.c_uint32),
        ("members", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("world", ctypes.c_uint32),
        ("supervisor_pid", ctypes.c_uint32),
        ("ordered", ctypes.c_uint32),
        ("feed_id", ctypes.c_uint8 * 16),
        ("feed", ctypes.c_char * 68),
        ("group", ctypes.c_char * 68),
        ("next", ctypes.c_uint64),
        ("socket", ctypes.c_char * 112),
        ("output", ctypes.c_char * 72),
        ("closed", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


def library_path() -> Path:
    """The shared library: $RINGFEED_LIBRARY, else the one in the package."""
    given = os.environ.get("RINGFEED_LIBRARY")
    return Path(given) if given else Path(__file__).parents[1] / "lib" / "libringfeed.so.1"


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"ringfeed: {path} cannot be loaded ({error}): reinstall the package ringfeed, or set "
            "RINGFEED_LIBRARY to a libringfeed.so"
        ) from error
    feed = ctypes.c_void_p
    library.rf_attach.argtypes = [ctypes.POINTER(_AttachOptions), ctypes.POINTER(feed)]
    library.rf_next.argtypes = [feed, ctypes.c_int64, ctypes.POINTER(_Batch)]
    library.rf_release.argtypes = [feed, ctypes.c_uint64]
    library.rf_release_batch.argtypes = [feed, ctypes.POINTER(_Batch)]
    library.rf_verify.argtypes = [feed, ctypes.POINTER(_Batch)]
    library.rf_stats.argtypes = [feed, ctypes.POINTER(_Stats)]
    library.rf_pass_over.argtypes = [feed, ctypes.c_uint64]
    library.rf_payload.argtypes = [
        feed,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_uint64),
    ]
    library.rf_ask.argtypes = [feed, ctypes.c_void_p, *[ctypes.c_uint64] * 5, ctypes.c_int]
    library.rf_leave.argtypes = [feed]
    library.rf_leave_failed.argtypes = [feed]
    for function in (
        *("rf_attach", "rf_next", "rf_verify", "rf_release", "rf_release_batch", "rf_pass_over"),
        *("rf_ask", "rf_stats", "rf_payload", "rf_leave", "rf_leave_failed"),
    ):
        getattr(library, function).restype = ctypes.c_int
    library.rf_schema.argtypes = [feed]
    library.rf_schema.restype = ctypes.POINTER(_Schema)
    library.rf_last_error.argtypes = [feed]
    library.rf_last_error.restype = ctypes.c_char_p
    library.rf_version.argtypes = []
    library.rf_version.restype = ctypes.c_char_p
    return library


_library = _load()

# With one argument more than the C functions have: the weak reference whose callback they are.
_detach: Any = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object)(
    ("rf_detach", _library)
)
_release_batch: Any = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Batch), ctypes.py_object
)(("rf_release_batch", _library))

# The weak references. Here and not beside what they watch: a reference that dies together with its
# object, in one reference cycle, is not called.
_watched: set[weakref.ref[Any]] = set()


def _watch(thing: Any, callback: Callable[[Any], Any]) -> None:
    """Arranges callback(reference) for the end of a thing."""
    # A copy, made without running Python code: other threads come and go here.
    for reference in tuple(_watched):
        if reference() is None:
            _watched.discard(reference)
    _watched.add(weakref.ref(thing, callback))


@atexit.register
def _settle() -> None:
    """At a normal end of the process: settles what happens to batches that are still held.

    Those of feeds that were closed or have come to their end were worked on, though a variable may
    still hold them; they go back, or else they would be another member's as a dead one's. With
    others the program may have stopped half-way: they stay claimed, so that the supervisor gives
    them to another member when this process is gone.
    """
    for reference in tuple(_watched):
        thing = reference()
        if isinstance(thing, Handle):
            # How the process ends decides, not that the interpreter drops its variables: the C
            # library hears the exit status. What the callback has is empty now.
            held, thing.raw = thing.raw, ctypes.c_void_p(thing.raw.value)
            held.value = None
        if isinstance(thing, Lease):
            if thing.handle.finished:
                _library.rf_release(thing.handle.raw, thing.seq)
            # Nothing is left for the callback to do when the interpreter drops its variables.
            thing.forget()


def version() -> str:
    """Version of the C library."""
    text: bytes = _library.rf_version()
    return text.decode()


def ask(
    feed: ctypes.c_void_p | None,
    table: int,
    table_bytes: int,
    number: int,
    offset: int,
    size: int,
    kind: int,
    may_wait: bool = False,
) -> None:
    """rf_ask."""
    status: int = _library.rf_ask(feed, table, table_bytes, number, offset, size, kind, may_wait)
    if status != OK:
        raise error_for(status, Handle._text(feed))


def error_for(status: int, text: str) -> errors.RingfeedError:
    """The exception for a status of the C library."""
    return _ERRORS.get(status, errors.RingfeedError)(text)


@dataclass(frozen=True)
class RawTensor:
    """One array of the schema; ``shape`` as Tensor.shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Lease:
    """The claim on one batch; given back with its last reference, or before.

    It exists before the claim does, so that an exception at any point (Ctrl-C right after the C
    call) cannot lose one. Attributes: ``handle``, and the fields of rf_batch.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self._batch = _Batch(struct_size=ctypes.sizeof(_Batch))
        self._pointer = ctypes.pointer(self._batch)
        _watch(self, functools.partial(_release_batch, handle.raw, self._pointer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def verify(self) -> None:
        """Raises for what rf_verify says."""
        status = _library.rf_verify(self.handle.raw, ctypes.byref(self._batch))
        if status != 0:
            raise error_for(status, Handle._text(self.handle.raw))

    def take(self, size: int) -> bytes:
        """A copy of the batch's first bytes. It goes back at once, and this may be claimed anew."""
        copy = ctypes.string_at(self._batch.data, size)
        _library.rf_release_batch(self.handle.raw, self._pointer)
        self._batch.seq = 0
        return copy

    def forget(self) -> None:
        """From now on the end of this object gives nothing back."""
        self._batch.seq = 0


def _encoded(text: str | os.PathLike[str] | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


class Handle:
    """Owner of one attachment. All methods may be called by any thread.

    Attributes:
        raw: The rf_feed pointer.
        closed: Has close() been called?
        finished: Closed without an exception, or at the end of the feed.
        reads_log: Somebody passes on the log of the feed, which says what is left out.
    """

    reads_log = False

    def __init__(self) -> None:
        # Filled in by C and owned from that moment on.
        self.raw = ctypes.c_void_p()
        self.closed = False
        self.finished = False
        _watch(self, functools.partial(_detach, self.raw))

    @classmethod
    def attach(
        cls,
        *,
        feed: str,
        group: str,
        timeout_ms: int,
        answer_ms: int,
        socket_dir: str | os.PathLike[str] | None,
        socket_path: str | os.PathLike[str] | None,
        client: str,
        kind: str | None,
        rank: int | None,
        world: int | None,
        start: str,
        policy: str | None,
        redeliver: bool | None,
        max_tries: int | None,
        max_hold: int | None,
        stall_ms: int | None,
        rejoin_ms: int | None,
        view: str,
        position: int = 0,
        output: str | None = None,
        observe: bool = False,
    ) -> tuple[int, str, Handle | None]:
        """One call of rf_attach: (status, text, handle)."""
        options = _AttachOptions(
            struct_size=ctypes.sizeof(_AttachOptions),
            timeout_ms=timeout_ms,
            answer_ms=answer_ms,
            feed=feed.encode(),
            group=group.encode(),
            socket_dir=_encoded(socket_dir),
            socket_path=_encoded(socket_path),
            client=client.encode(),
            kind=KINDS[kind] if kind else 0,
            rank=rank or 0,
            world=world or 0,
            start=STARTS[start],
            policy=POLICIES[policy] if policy else 0,
            redeliver=0 if redeliver is None else (1 if redeliver else 2),
            max_tries=max_tries or 0,
            max_hold=max_hold or 0,
            stall_ms=stall_ms or 0,
            # 0 is the default in C; a group that waits for nobody waits for a millisecond.
            rejoin_ms=0 if rejoin_ms is None else max(1, rejoin_ms),
            view=VIEWS[view],
            position=position,
            output=None if output is None else output.encode(),
            on_notice=_on_notice,
            observe=1 if observe else 0,
        )
        handle = cls()
        status = int(_library.rf_attach(ctypes.byref(options), ctypes.byref(handle.raw)))
        if status != OK:
            return status, cls._text(None), None
        return status, "", handle

    @staticmethod
    def _text(feed: ctypes.c_void_p | None) -> str:
        text: bytes = _library.rf_last_error(feed)
        return text.decode(errors="replace")

    def close(self, finished: bool = True) -> None:
        """Leaves the group; what is held goes back with its last reference.

        ``finished``: what is held has been worked on, and may be given back when the process ends.
        Without it the group waits for a successor.
        """
        self.finished = self.finished or finished
        self.closed = True
        (_library.rf_leave if self.finished else _library.rf_leave_failed)(self.raw)

    def next(self, timeout_ms: int, again: Lease | None = None) -> tuple[int, str, Lease | None]:
        """One call of rf_next: (status, text, lease), in a lease that claims nothing any more."""
        lease = Lease(self) if again is None or again.handle is not self else again
        _calling.reads_log = self.reads_log
        status: int = _library.rf_next(self.raw, timeout_ms, lease._pointer)
        if status != OK:
            self.finished = self.finished or status == END
            return status, self._text(self.raw), None
        return OK, "", lease

    def schema(self) -> tuple[list[RawTensor], int, int]:
        """(tensors, rows_max, slot_bytes)."""
        schema = _library.rf_schema(self.raw)
        if not schema:
            raise errors.ForkedFeed("this feed was attached by the parent: attach in the child")
        tensors = []
        for i in range(schema.contents.tensor_count):
            tensor = schema.contents.tensors[i]
            tensors.append(
                RawTensor(
                    name=tensor.name.decode(),
                    dtype=tensor.dtype.decode(),
                    shape=tuple(tensor.shape[: tensor.dims]),
                    offset=tensor.offset,
                    nbytes=tensor.bytes,
                )
            )
        return tensors, schema.contents.rows_max, schema.contents.slot_bytes

    def payload(self) -> tuple[int, int]:
        """(address, bytes) of the mapped payload."""
        data, size = ctypes.c_void_p(), ctypes.c_uint64()
        status = int(_library.rf_payload(self.raw, ctypes.byref(data), ctypes.byref(size)))
        if status != OK:
            raise error_for(status, self._text(self.raw))
        return data.value or 0, size.value

    def pass_over(self, position: int) -> None:
        """rf_pass_over."""
        status = int(_library.rf_pass_over(self.raw, position))
        if status != OK:
            raise error_for(status, self._text(self.raw))

    def stats(self) -> dict[str, Any]:
        """The fields of rf_stats_info by name."""
        raw = _Stats(struct_size=ctypes.sizeof(_Stats))
        status = int(_library.rf_stats(self.raw, ctypes.byref(raw)))
        if status != OK:
            raise error_for(status, self._text(self.raw))
        values = {field[0]: getattr(raw, field[0]) for field in _Stats._fields_}
        del values["struct_size"], values["reserved"]
        values["closed"] = values["closed"] != 0
        values["feed_id"] = bytes(values["feed_id"])
        values["feed"] = values["feed"].decode()
        values["group"] = values["group"].decode()
        values["output"] = values["output"].decode()
        values["socket"] = os.fsdecode(values["socket"])
        values["phase"] = PHASES[values["phase"]] if values["phase"] < len(PHASES) else "unknown"
        values["kind"] = "ranked" if values["kind"] == KINDS["ranked"] else "shared"
        values["ordered"] = values["ordered"] != 0
        return values
