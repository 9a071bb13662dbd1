"""Which objects there are: patterns, lists, what a store says of one, and its name in a cache."""

from __future__ import annotations

import hashlib
import itertools
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import quote, urljoin

from ..errors import RingfeedError

# Copies have times of the years 2001 to 2018: a file that anybody has written to since has not.
_TIMES_FROM_S = 1_000_000_000
_TIMES_S = 1 << 29
_NAME_BYTES_MAX = 200
_PATH_BYTES_MAX = 2000  # of a name with its folders: the cache has a path too
# Options that make one name mean another object.
_PLACES = ("endpoint_url", "endpoint", "account_name", "host", "port", "repo", "project")
_PLACE_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("STORAGE_EMULATOR_HOST",),
}
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}


class RemoteError(RingfeedError, OSError):
    """A library is missing, a listing fails, or a cache cannot be made."""


@dataclass(frozen=True)
class Version:
    """What tells one content of an object from another, and shows in `stat` of its copy.

    The nanoseconds of the copy's time are a digest of the ETag (or, without one, of the time of the
    last change) and the size; the seconds are one of the size and the nanoseconds. So a look at the
    file says whether it is this version, and also to whoever knows no version whether it is as it
    was fetched. Nothing has to be kept beside it.
    """

    size: int  # bytes
    mtime_ns: int

    def is_of(self, status: os.stat_result) -> bool:
        """Whether a file is this version, as it was fetched."""
        return (
            stat.S_ISREG(status.st_mode)
            and status.st_size == self.size
            and status.st_mtime_ns == self.mtime_ns
        )


@dataclass(frozen=True)
class RemoteObject:
    """An object as a listing, or a question for it alone, has shown it."""

    url: str
    path: str  # as its file system names it
    name: str  # below the directory `objects` of a cache
    size: int | None  # bytes; None: not known yet
    etag: str | None
    changed: str | None  # time of the last change, as the store writes it

    @cached_property
    def version(self) -> Version:
        """Of an object whose size is known."""
        assert self.size is not None, self.url
        token = self.etag or self.changed or ""
        digest = hashlib.blake2b(f"{token}\0{self.size}".encode(), digest_size=8).digest()
        nanoseconds = int.from_bytes(digest, "little") % 1_000_000_000
        return Version(self.size, time_of(self.size, nanoseconds) * 1_000_000_000 + nanoseconds)

    def is_version_of(self, other: RemoteObject) -> bool:
        """Whether the two are the same object, unchanged."""
        return (
            self.size is not None
            and self.size == other.size
            and (self.etag or self.changed) == (other.etag or other.changed)
        )


def time_of(size: int, nanoseconds: int) -> int:
    """The seconds of a copy's time. workers/kit/cached_files.cc has the same."""
    return _TIMES_FROM_S + fnv_1a(b"%d %d" % (size, nanoseconds)) % _TIMES_S


def is_whole(status: os.stat_result) -> bool:
    """Whether a file is a copy of some object, as it was fetched."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 1_000_000_000)
    return stat.S_ISREG(status.st_mode) and seconds == time_of(status.st_size, nanoseconds)


def fnv_1a(data: bytes) -> int:
    """A hash of 64 bits that C++ has too."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def object_of(
    url: str, path: str, info: Mapping[str, Any], place: str, name: str | None = None
) -> RemoteObject:
    """What `info` of fsspec says, whatever the store calls it. `name`: if it is known already."""

    def first(*words: str) -> str | None:
        for word in words:
            value = info.get(word)
            if value not in (None, ""):
                return value.isoformat() if isinstance(value, datetime) else str(value)
        return None

    size = info.get("size")
    return RemoteObject(
        url=url,
        path=path,
        name=name or name_of(url, place),
        size=int(size) if size is not None else None,
        etag=first("ETag", "etag", "md5Hash", "content_md5", "checksum"),
        changed=first(
            "LastModified", "last_modified", "Last-Modified", "updated", "mtime", "created"
        ),
    )


def place_of(protocol: str, options: Mapping[str, Any]) -> str:
    """What tells two stores of one protocol apart: "s3", or "s3@" and a digest of where it is."""
    protocol = _ALIASES.get(protocol, protocol)
    where = {name: str(options[name]) for name in _PLACES if options.get(name)}
    client = options.get("client_kwargs")
    if isinstance(client, Mapping) and client.get("endpoint_url"):
        where.setdefault("endpoint_url", str(client["endpoint_url"]))
    if not where:
        for variable in _PLACE_VARIABLES.get(protocol, ()):
            if os.environ.get(variable):
                where["endpoint_url"] = os.environ[variable]
                break
    if not where:
        return protocol
    digest = hashlib.blake2b(repr(sorted(where.items())).encode(), digest_size=4).hexdigest()
    return f"{protocol}@{digest}"


def name_of(url: str, place: str) -> str:
    """The path of an object in a cache: its own names, so that folders, siblings and order stay.

    A query stands before the last name, which keeps its extension. Different URLs have different
    names. A path of very many folders has a digest in their place.
    """
    protocol, _, rest = url.partition("://") if "://" in url else ("", "", url)
    if protocol.lower() in ("http", "https"):
        path, _, query = rest.partition("#")[0].partition("?")
        parts = path.split("/") if "/" in path else [path, ""]
        if query:
            parts.insert(-1, "?" + query)
    else:
        parts = rest.split("/")
    steps = [_component(place), *map(_component, parts)]
    name = "/".join(steps)
    whole = name.encode(errors="surrogateescape")
    if len(whole) <= _PATH_BYTES_MAX:
        return name
    digest = hashlib.blake2b(whole, digest_size=8).hexdigest()
    return "/".join([*steps[:2], f"%~{digest}", steps[-1]])


def _component(name: str) -> str:
    # A query may hold "/". A path has none of these in a name, and "%" is what they are written
    # with.
    plain = name.replace("%", "%25").replace("/", "%2F")
    plain = plain.replace("\0", "%00").replace("\n", "%0A")
    if plain in ("", ".", ".."):
        plain = {"": "%", ".": "%2E", "..": "%2E%2E"}[plain]
    if len(plain.encode(errors="surrogateescape")) <= _NAME_BYTES_MAX:
        return plain
    digest = hashlib.blake2b(plain.encode(errors="surrogateescape"), digest_size=8).hexdigest()
    stem, dot, extension = plain.partition(".")
    tail = (dot + extension) if len(extension) <= 40 and extension.isascii() else ""
    return f"{quote(stem[:60], safe='')[:120]}%~{digest}{tail}"


def url_of(name: str, protocol: str, place: str) -> str | None:
    """The URL whose name in a cache this is; None: it is of another place, or was shortened."""
    head, _, rest = name.partition("/")
    if head != _component(place):
        return None
    parts = ["" if part == "%" else _plain(part) for part in rest.split("/")]
    query = ""
    if protocol in ("http", "https") and len(parts) > 2 and parts[-2].startswith("?"):
        query = parts.pop(-2)
    url = f"{protocol}://" + "/".join(parts) + query
    return url if name_of(url, place) == name else None


def _plain(part: str) -> str:
    for sign, escape in ((".", "%2E"), ("\n", "%0A"), ("\0", "%00"), ("/", "%2F"), ("%", "%25")):
        part = part.replace(escape, sign)
    return part


_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)\Z")


def expand_braces(pattern: str) -> list[str]:
    """`a{b,c}` stands for two patterns, `{008..011}` for four. Braces do not nest."""
    pieces = _BRACES.split(pattern)
    choices: list[list[str]] = []
    for i, piece in enumerate(pieces):
        bounds = _RANGE.match(piece) if i % 2 else None
        if bounds:
            first, last = bounds.groups()
            if abs(int(last) - int(first)) > 10_000_000:
                raise RemoteError(f"{pattern}: {{{piece}}} stands for more than 10,000,000 names")
            step = 1 if int(last) >= int(first) else -1
            width = len(first) if first.startswith("0") else 0
            numbers = range(int(first), int(last) + step, step)
            choices.append([str(number).zfill(width) for number in numbers])
        elif i % 2 and "," in piece:
            choices.append(piece.split(","))
        else:
            choices.append([f"{{{piece}}}" if i % 2 else piece])
    return ["".join(words) for words in itertools.product(*choices)]


def is_pattern(url: str) -> bool:
    """Whether it stands for several objects. In a web address `?` begins a query."""
    magic = "*[" if url.startswith(("http://", "https://")) else "*?["
    return any(sign in url for sign in magic)


def lines_of_list(text: str, url: str) -> Iterator[str]:
    """The URLs in a list; one without a protocol is relative to it. # begins a comment."""
    base = url.rsplit("/", 1)[0] + "/"
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if "://" in line:
            yield line
        elif url.startswith(("http://", "https://")):
            yield urljoin(url, line)
        else:
            yield line if line.startswith("/") else base + posixpath.normpath(line)


def each_once(objects: Iterable[RemoteObject]) -> Iterator[RemoteObject]:
    """Leaves out what two patterns name."""
    seen: set[str] = set()
    for item in objects:
        if item.name not in seen:
            seen.add(item.name)
            yield item
