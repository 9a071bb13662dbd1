"""Which objects there are: patterns, lists, what a store says of one, and its name in a cache."""

from __future__ import annotations

import hashlib
import itertools
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from ..errors import RingfeedError

# What a cached file's time is made of where the store gives none: 2001.
_SOME_TIME_S = 1_000_000_000
_NAME_BYTES_MAX = 200
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
    last change) and the size; so a look at the file says whether it is this version, and nothing
    has to be kept beside it.
    """

    size: int  # bytes
    mtime_ns: int

    def is_of(self, status: os.stat_result) -> bool:
        """Whether a file is this version. Seconds do not count: listings round them differently."""
        return (
            status.st_size == self.size
            and (status.st_mtime_ns - self.mtime_ns) % 1_000_000_000 == 0
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
        return Version(self.size, seconds_of(self.changed) * 1_000_000_000 + nanoseconds)

    def is_version_of(self, other: RemoteObject) -> bool:
        """Whether the two are the same object, unchanged."""
        return (
            self.size is not None
            and self.size == other.size
            and (self.etag or self.changed) == (other.etag or other.changed)
        )


def seconds_of(changed: str | None) -> int:
    """A time of a store, in seconds since 1970; one that cannot be read is some time."""
    if not changed:
        return _SOME_TIME_S
    for read in (datetime.fromisoformat, parsedate_to_datetime, _of_number):
        try:
            time = read(
                changed.replace("Z", "+00:00") if read is datetime.fromisoformat else changed
            )
        except (ValueError, TypeError, IndexError, OverflowError, OSError):
            continue
        if time.tzinfo is None:
            time = time.replace(tzinfo=timezone.utc)
        return max(0, min(int(time.timestamp()), 1 << 33))
    return _SOME_TIME_S


def _of_number(text: str) -> datetime:
    return datetime.fromtimestamp(float(text), timezone.utc)


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
    names.
    """
    split = urlsplit(url)
    if split.scheme in ("http", "https"):
        parts = [split.netloc, *split.path.lstrip("/").split("/")]
        if split.query:
            parts.insert(-1, "?" + split.query)
    else:
        parts = url.split("://", 1)[-1].lstrip("/").split("/")
    return "/".join([_component(place), *map(_component, parts)])


def _component(name: str) -> str:
    # A path has neither of these as a name, and "%" is what they are written with.
    plain = name.replace("%", "%25").replace("\0", "%00").replace("\n", "%0A")
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
    parts = [
        "" if part == "%" else part.replace("%2E", ".").replace("%0A", "\n").replace("%00", "\0")
        for part in rest.split("/")
    ]
    parts = [part.replace("%25", "%") for part in parts]
    query = ""
    if protocol in ("http", "https") and len(parts) > 2 and parts[-2].startswith("?"):
        query = parts.pop(-2)
    url = f"{protocol}://" + "/".join(parts) + query
    return url if name_of(url, place) == name else None


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
