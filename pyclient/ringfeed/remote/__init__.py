"""Files of S3, GCS, Azure, HTTP and whatever else fsspec reads, through a cache on this host.

    files = RemoteFiles("s3://bucket/**/*.jsonl.zst", cache="/data/cache", cache_bytes=200 << 30)
    for file, cursor in files.read():
        print(file["path"], file["url"], file["size"])

All processes of the host may use one cache: an object is fetched once. fsspec and what it needs for
a protocol are installed with `pip install 'ringfeed[remote]' s3fs`; they are imported when they are
needed.
"""

from __future__ import annotations

from .cache import Cache
from .fetch import Counts, Fetcher, Outcome, Patience
from .names import RemoteError, RemoteObject
from .source import RemoteFiles

__all__ = [
    "Cache",
    "Counts",
    "Fetcher",
    "Outcome",
    "Patience",
    "RemoteError",
    "RemoteFiles",
    "RemoteObject",
]
