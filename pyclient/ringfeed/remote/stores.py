"""What is asked of a store: which objects there are, what one is now, its bytes from a place on.

fsspec does it. HTTP and S3 are asked in one request for the rest of an object, which names the
version that is wanted; of other stores it is read in blocks.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from .names import (
    RemoteError,
    RemoteObject,
    each_once,
    expand_braces,
    is_pattern,
    lines_of_list,
    object_of,
    place_of,
    url_of,
)

_T = TypeVar("_T")
_log = logging.getLogger("ringfeed.remote")
_READ_BYTES = 1 << 20
_LOOK_S = 0.25  # how often a request is looked at: does anything come, is it still wanted?
_BLOCK_BYTES = 8 << 20  # of a store that is read in blocks
_LIST_BYTES_MAX = 256 << 20

_EXTRAS = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "http": "aiohttp", "https": "aiohttp"}


class Missing(Exception):
    """There is no such object."""


class Denied(Exception):
    """The store does not let us; trying again gives the same."""


class Clash(Exception):
    """A copy of it cannot have its name here."""


class Changed(Exception):
    """The object is another one now."""


class Failed(Exception):
    """It may go better the next time. `reason` is a short word for a counter."""

    def __init__(self, reason: str, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.reason = reason
        self.after_s = after_s  # the store asks for so much patience


class DiskFull(Exception):
    """There is no room for the bytes that came."""


def fsspec_module() -> Any:
    """fsspec, or an error that says how to get it."""
    try:
        return importlib.import_module("fsspec")
    except ImportError as error:
        raise RemoteError(
            f"remote files are read by fsspec, which cannot be imported ({error}): "
            "pip install 'ringfeed[remote]'"
        ) from error


def protocol_of(url: str) -> str:
    """Of a path: "file"."""
    return url.split("://", 1)[0] if "://" in url else "file"


def need_library(url: str) -> None:
    """Imports what fsspec needs for a URL, and asks no store.

    Raises:
        RemoteError: It is not there, or there is none for this protocol.
    """
    protocol = protocol_of(url)
    try:
        fsspec_module().get_filesystem_class(protocol)
    except ImportError as error:
        extra = _EXTRAS.get(protocol, "the package that fsspec names")
        raise RemoteError(f"{url}: {error}: pip install {extra}") from error
    except ValueError as error:
        raise RemoteError(f"{url}: {error}") from error


def is_disk_full(error: BaseException) -> bool:
    """No room, or no quota: the disk's fault and not the store's."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_all(fd: int, data: bytes) -> None:
    """Writes all of it. Raises DiskFull, with what had room written."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(os.strerror(error.errno or errno.ENOSPC)) from None
            raise Failed("disk", f"the copy cannot be written: {error}") from error


class Progress:
    """What has come of an object. When it is over nothing is written any more: the descriptor may
    be that of another file by then.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._over = False
        self._lock = threading.Lock()

    def begin(self, begin: Callable[[], int | None]) -> int | None:
        """The descriptor that it gives; None: it is over."""
        with self._lock:
            return None if self._over else begin()

    def take(self, fd: int, data: bytes) -> None:
        """Writes the bytes to a file.

        Raises:
            Failed: It is over.
        """
        with self._lock:
            if self._over:
                raise Failed("stalled", "it was given up")
            write_all(fd, data)
            self.bytes += len(data)

    def end(self) -> None:
        """Waits for what is being written."""
        with self._lock:
            self._over = True


class Store:
    """The file system of one protocol, and what is asked of it. Any thread may call.

    Args:
        url: Any URL of the protocol.
        options: What fsspec passes to the file system.
        stall_s: A connection that brings nothing for so long is given up.
        stop: When it is set, requests for bytes are given up.
    Raises:
        RemoteError: The library for the protocol is missing, or the options are wrong.
    """

    def __init__(
        self, url: str, options: Mapping[str, Any], stall_s: float, stop: threading.Event
    ) -> None:
        protocol = protocol_of(url)
        need_library(url)
        try:
            # An instance of our own: its settings are nobody else's.
            fs = fsspec_module().filesystem(protocol, skip_instance_cache=True, **options)
        except ValueError as error:
            raise RemoteError(f"{url}: {error}") from error
        self._fs: Any = fs
        self._stall_s = stall_s
        self._stop = stop
        self.protocol = protocol
        self.place = place_of(protocol, options)
        # Trying again, and how often, is decided in one place: not here as well.
        if hasattr(fs, "retries"):
            fs.retries = 1

    # ---- which objects there are

    def find(self, url: str) -> list[RemoteObject]:
        """The objects that a pattern, a directory ("/" at the end) or a plain URL stands for.

        They come in order of names. Those that begin with a dot are left out, unless the URL names
        them. A plain URL is not asked for: its size is None.
        """
        fs = self._fs
        if not is_pattern(url) and not url.endswith("/"):
            return [object_of(url, self._path(url), {}, self.place)]
        fs.invalidate_cache()
        try:
            path = self._path(url)
            if is_pattern(url):
                found = fs.glob(path, detail=True)
            else:
                found = fs.find(path, detail=True)
        except Exception as error:
            raise self._told(error) from error
        finally:
            fs.invalidate_cache()
        objects = []
        for name, info in sorted(found.items()):
            if info.get("type") == "directory" or name.endswith("/"):
                continue
            if name.rsplit("/", 1)[-1].startswith("."):
                continue
            objects.append(object_of(self._url(name), name, info, self.place))
        return objects

    def read_list(self, url: str) -> str:
        """The text of a list of URLs."""
        try:
            data = self._fs.cat_file(self._path(url))
        except Exception as error:
            raise self._told(error) from error
        if len(data) > _LIST_BYTES_MAX:
            raise RemoteError(f"{url}: a list of more than {_LIST_BYTES_MAX} bytes")
        return bytes(data).decode(errors="surrogateescape")

    def look(self, item: RemoteObject) -> RemoteObject:
        """The object as it is now, asked of the store.

        Raises:
            Missing, Denied, Failed: As the store answers.
        """
        fs = self._fs
        try:
            if self.protocol in ("http", "https"):
                info = self._run(fs._info(item.path), Progress())
            elif self.protocol in ("s3", "s3a"):
                info = fs.info(item.path, refresh=True)
            else:
                fs.invalidate_cache(fs._parent(item.path))
                info = fs.info(item.path)
        except Failed:
            raise
        except Exception as error:
            raise self._told(error) from error
        return self._object(item, info)

    def _object(self, item: RemoteObject, info: Mapping[str, Any]) -> RemoteObject:
        if info.get("type") == "directory":
            raise Missing(f"{item.url} is a directory")
        return object_of(item.url, item.path, info, self.place, item.name)

    # ---- its bytes

    def pour(self, item: RemoteObject, fd: int, offset: int) -> None:
        """Appends the object's bytes from `offset` on to a file. Afterwards all of it is there, and
        it is one version: that which was asked for.

        Whatever is raised, what the file has then is the beginning of that version, as far as the
        store says what it sends. Where it puts objects in place as a whole, and each request names
        the version (S3), that is certain; any other is asked once more what the object is then.
        Raises:
            Missing, Denied, Failed, Changed, DiskFull
        """
        progress = Progress()

        def took(data: bytes) -> None:
            progress.take(fd, data)

        left = self._left(item, offset)
        after: RemoteObject | None = item
        try:
            if self.protocol in ("http", "https"):
                info = self._run(self._pour_http(item, offset, took, progress), progress)
                after = None if info is None else self._object(item, info)
            elif self.protocol in ("s3", "s3a"):
                if left:
                    self._run(self._pour_s3(item, offset, took), progress)
            elif left:
                self._pour_blocks(item, offset, took)
        except (Missing, Denied, Failed, Changed, DiskFull):
            raise
        except Exception as error:
            raise self._told(error) from error
        if progress.bytes < left:
            assert item.size is not None
            raise Failed(
                "truncated", f"it ends after {offset + progress.bytes} of {item.size} bytes"
            )
        if self.protocol not in ("http", "https") and not (
            self.protocol in ("s3", "s3a") and item.etag
        ):
            after = self.look(item)
        self._want_same(item, after)

    def fetches_at_once(self) -> bool:
        """Whether fetch_at_once() is worth trying: an answer tells the version that it brings."""
        return self.protocol in ("http", "https")

    def fetch_at_once(
        self, item: RemoteObject, begin: Callable[[RemoteObject], int | None]
    ) -> RemoteObject | None:
        """Fetches an object of which nothing is known, in one request, and a look at it afterwards.

        Args:
            begin: Is told what the object is, before its bytes come, and gives an empty file for
                them; None: there is none. It runs in fsspec's loop, so it must not wait.
        Returns:
            What the object is: all of it is in the file, and it is one version. None: begin() has
            given no file, or the answer does not say what it brings: look(), then pour().
        Raises:
            Missing, Denied, Failed, Changed, DiskFull: As pour().
        """
        progress = Progress()
        now: list[RemoteObject] = []
        try:
            info = self._run(self._get_at_once(item, begin, now, progress), progress)
            if not now:
                return None
            size = now[0].size or 0
            if progress.bytes < size:
                raise Failed("truncated", f"it ends after {progress.bytes} of {size} bytes")
            self._want_same(now[0], None if info is None else self._object(item, info))
        except (Missing, Denied, Failed, Changed, DiskFull):
            raise
        except Exception as error:
            raise self._told(error) from error
        return now[0]

    async def _get_at_once(
        self,
        item: RemoteObject,
        begin: Callable[[RemoteObject], int | None],
        now: list[RemoteObject],
        progress: Progress,
    ) -> dict[str, Any] | None:
        fs = self._fs
        session = await fs.set_session()
        headers, options = self._http_options()
        async with session.get(fs.encode_url(item.url), headers=headers, **options) as answer:
            if answer.status >= 300:
                raise self._refused(answer.status, answer.reason, answer.headers)
            length = answer.headers.get("Content-Length", "")
            if answer.status != 200 or not length.isdecimal() or _is_packed(answer.headers):
                return None
            said = {name: answer.headers.get(name) for name in ("ETag", "Last-Modified")}
            found = self._object(item, {**said, "size": int(length)})
            fd = progress.begin(lambda: begin(found))
            if fd is None:
                return None
            now.append(found)

            def took(data: bytes) -> None:
                progress.take(fd, data)

            await _take(answer.content.read, 0, int(length), took)
        if progress.bytes < int(length):
            return None
        info: dict[str, Any] = await fs._info(item.path)
        return info

    def _http_options(self) -> tuple[dict[str, str], dict[str, Any]]:
        """The headers and the other settings of a request for bytes as they are."""
        options = dict(self._fs.kwargs)
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
        aiohttp = importlib.import_module("aiohttp")
        options.setdefault("timeout", aiohttp.ClientTimeout(total=None, sock_connect=self._stall_s))
        return headers, options

    @staticmethod
    def _want_same(item: RemoteObject, after: RemoteObject | None) -> None:
        if after is None or not after.is_version_of(item):
            size = None if after is None else after.size
            raise Changed(f"it had {item.size} bytes, and has {size}")

    async def _pour_http(
        self,
        item: RemoteObject,
        offset: int,
        took: Callable[[bytes], None],
        progress: Progress,
    ) -> dict[str, Any] | None:
        """What the object is afterwards, as `info` of fsspec; None: not all has come."""
        if self._left(item, offset):
            await self._get_http(item, offset, took)
            if progress.bytes < self._left(item, offset):
                return None
        info: dict[str, Any] = await self._fs._info(item.path)
        return info

    async def _get_http(
        self, item: RemoteObject, offset: int, took: Callable[[bytes], None]
    ) -> None:
        fs = self._fs
        headers, options = self._http_options()
        if offset:
            headers["Range"] = f"bytes={offset}-"
        if item.etag and not item.etag.startswith("W/"):
            headers["If-Match"] = item.etag
        session = await fs.set_session()
        async with session.get(fs.encode_url(item.url), headers=headers, **options) as answer:
            if answer.status >= 300:
                raise self._refused(answer.status, answer.reason, answer.headers)
            if answer.headers.get("ETag", item.etag) != item.etag and item.etag:
                raise Changed(f"its ETag is {answer.headers.get('ETag')}, and was {item.etag}")
            skip = 0
            if answer.status == 206:
                begin, total = _content_range(answer.headers.get("Content-Range", ""))
                if begin != offset:
                    raise Failed("wrong_range", f"bytes from {begin} came instead of {offset}")
                if total is not None and total != item.size:
                    raise Changed(f"it has {total} bytes, and had {item.size}")
            else:
                # A server that knows no ranges sends all of it.
                skip = offset
                length = answer.headers.get("Content-Length")
                if length and int(length) != item.size and not _is_packed(answer.headers):
                    raise Changed(f"{length} bytes come, and it had {item.size}")
            await _take(answer.content.read, skip, self._left(item, offset), took)

    async def _pour_s3(
        self, item: RemoteObject, offset: int, took: Callable[[bytes], None]
    ) -> None:
        fs = self._fs
        bucket, key, version = fs.split_path(item.path)
        request: dict[str, Any] = {"Bucket": bucket, "Key": key}
        if version:
            request["VersionId"] = version
        if offset:
            request["Range"] = f"bytes={offset}-"
        if item.etag:
            request["IfMatch"] = item.etag
        answer = await fs._call_s3("get_object", **request)
        body = answer["Body"]
        try:
            if item.etag and answer.get("ETag", item.etag) != item.etag:
                raise Changed(f"its ETag is {answer['ETag']}, and was {item.etag}")
            length = answer.get("ContentLength")
            if length is not None and length != self._left(item, offset):
                raise Changed(f"{length} bytes come, and {self._left(item, offset)} are missing")
            await _take(body.read, 0, self._left(item, offset), took)
        finally:
            body.close()

    def _pour_blocks(self, item: RemoteObject, offset: int, took: Callable[[bytes], None]) -> None:
        left = self._left(item, offset)
        while left:
            block = min(left, _BLOCK_BYTES)
            data = self._fs.cat_file(item.path, start=offset, end=offset + block)
            if len(data) > block:
                raise Changed(f"{len(data)} bytes came, and {block} were asked for")
            if not data:
                raise Failed("truncated", f"nothing came from byte {offset} of {item.size}")
            took(data)
            offset += len(data)
            left -= len(data)

    def _path(self, url: str) -> str:
        return str(self._fs._strip_protocol(url))

    def _url(self, path: str) -> str:
        return str(self._fs.unstrip_protocol(path))

    @staticmethod
    def _left(item: RemoteObject, offset: int) -> int:
        assert item.size is not None
        return item.size - offset

    def _run(self, work: Coroutine[Any, Any, _T], progress: Progress) -> _T:
        """Runs it in fsspec's loop, and gives it up when nothing comes any more."""
        future = asyncio.run_coroutine_threadsafe(work, self._fs.loop)
        seen = -1
        since = time.monotonic()
        while True:
            try:
                return future.result(min(_LOOK_S, self._stall_s))
            except concurrent.futures.TimeoutError as error:
                if future.done():
                    try:
                        return future.result()
                    except concurrent.futures.TimeoutError:
                        raise Failed("timeout", f"{error or 'timed out'}") from error
                now = time.monotonic()
                if progress.bytes != seen:
                    seen, since = progress.bytes, now
                if self._stop.is_set() or now - since >= self._stall_s:
                    future.cancel()
                    # The loop may be busy with another request, and come to this one later.
                    progress.end()
                    concurrent.futures.wait([future], _LOOK_S)
                    raise Failed("stalled", f"nothing came for {now - since:.3g} s") from None

    # ---- what went wrong

    def _told(self, error: BaseException) -> Exception:
        """What an exception of fsspec, or of what is below it, means here."""
        causes: list[BaseException] = []
        cause: BaseException | None = error
        while cause is not None and len(causes) < 8:
            causes.append(cause)
            cause = cause.__cause__ or cause.__context__
        # A broken answer has a status too, of aiohttp's own making.
        broken = any(type(cause).__module__ == "aiohttp.http_exceptions" for cause in causes)
        for cause in causes:
            status = _status_of(cause)
            if status is not None and not broken:
                return self._refused(status, str(cause), getattr(cause, "headers", None) or {})
        for cause in causes:
            if is_disk_full(cause):
                return DiskFull(str(cause))
        text = f"{type(error).__name__}: {error}"
        # fsspec says "not found" of whatever kept it from an answer.
        if len(causes) > 1 and isinstance(error, FileNotFoundError):
            for cause in causes[1:]:
                if isinstance(cause, (ConnectionError, TimeoutError, asyncio.TimeoutError)) or (
                    "aiohttp" in type(cause).__module__
                ):
                    return Failed("connection", f"{type(cause).__name__}: {cause}")
        if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            return Missing(text)
        if isinstance(error, PermissionError):
            return Denied(text)
        timeouts = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)
        if isinstance(error, timeouts) or "Timeout" in type(error).__name__:
            return Failed("timeout", text)
        name = type(error).__name__
        if any("Credential" in type(cause).__name__ for cause in causes):  # botocore's, Google's
            return Denied(text)
        if isinstance(error, EOFError) or "Payload" in name or "Incomplete" in name:
            return Failed("truncated", text)
        if isinstance(error, OSError) or "Connect" in name or "Disconnected" in name:
            return Failed("connection", text)
        return Failed("other", text)

    @staticmethod
    def _refused(status: int, text: str, headers: Mapping[str, str]) -> Exception:
        said = f"the store answers {status} {text}".rstrip()
        if status in (404, 410):
            return Missing(said)
        if status in (412, 416):
            return Changed(said)
        if status in (408, 425, 429) or status >= 500:
            try:
                after_s = float(headers.get("Retry-After", "0"))
            except ValueError:
                after_s = 0.0
            return Failed(f"status_{status}", said, after_s)
        return Denied(said)


async def _take(
    read: Callable[[int], Coroutine[Any, Any, bytes]],
    skip: int,
    left: int,
    took: Callable[[bytes], None],
) -> None:
    while data := await read(_READ_BYTES):
        if skip:
            passed = min(skip, len(data))
            data, skip = data[passed:], skip - passed
            if not data:
                continue
        if len(data) > left:
            raise Changed("more bytes come than it had")
        left -= len(data)
        took(data)


def _is_packed(headers: Mapping[str, str]) -> bool:
    return headers.get("Content-Encoding", "identity") not in ("", "identity")


def _content_range(text: str) -> tuple[int | None, int | None]:
    """The first byte and the size in "bytes 5-9/10"."""
    words = text.replace("bytes", "").strip()
    span, _, total = words.partition("/")
    begin = span.partition("-")[0].strip()
    return (
        int(begin) if begin.isdecimal() else None,
        int(total) if total.strip().isdecimal() else None,
    )


def _status_of(error: BaseException) -> int | None:
    """The HTTP status in an exception of aiohttp, botocore, gcsfs or Azure."""
    for name in ("status", "status_code", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int) and 400 <= value < 600:
            return value
        if isinstance(value, str) and value.isdecimal() and 400 <= int(value) < 600:
            return int(value)
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(status, int) and status >= 400:
            return status
    return None


class Stores:
    """The file systems that some URLs need, made when the first URL of their protocol comes."""

    def __init__(self, options: Mapping[str, Any] | None, stall_s: float) -> None:
        self._options = dict(options or {})
        self._stall_s = stall_s
        self._stores: dict[str, Store] = {}
        self.stop = threading.Event()

    def of(self, url: str) -> Store:
        """The file system of a URL."""
        protocol = protocol_of(url)
        if protocol not in self._stores:
            # Options are for all, or by protocol: {"s3": {...}}.
            own = self._options.get(protocol)
            options = own if isinstance(own, Mapping) else self._options
            self._stores[protocol] = Store(url, options, self._stall_s, self.stop)
        return self._stores[protocol]

    def object_named(self, name: str) -> RemoteObject | None:
        """The object of a name in a cache, if it is of one of the file systems in use."""
        for protocol, store in list(self._stores.items()):
            url = url_of(name, protocol, store.place)
            if url is not None:
                return object_of(url, store._path(url), {}, store.place)
        return None

    def find(self, urls: list[str], lists: list[str]) -> Iterator[RemoteObject]:
        """All objects, each once: those of the lists first, then pattern by pattern."""

        def found() -> Iterator[RemoteObject]:
            for url in lists:
                for line in lines_of_list(self.of(url).read_list(url), url):
                    yield from self.of(line).find(line)
            for url in urls:
                for plain in expand_braces(url):
                    objects = self.of(plain).find(plain)
                    if not objects:
                        _log.warning("nothing_found url=%s: no object has such a name", plain)
                    yield from objects

        return each_once(found())
