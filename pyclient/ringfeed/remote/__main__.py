"""Fetches objects into a cache and prints the paths of their copies."""

from __future__ import annotations

import argparse
import json
import logging
import sys

from . import Patience, RemoteError, RemoteFiles


def main() -> int:
    """The exit status: 1 if an object was given up."""
    parser = argparse.ArgumentParser(prog="python -m ringfeed.remote", description=__doc__)
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--cache", required=True, help="directory of the cache")
    parser.add_argument("--cache-bytes", type=int, default=100 << 30, help="its limit, in bytes")
    parser.add_argument("--storage-options", type=json.loads, default={}, help="for fsspec, JSON")
    parser.add_argument("--threads", type=int, default=8, help="objects at a time")
    parser.add_argument("--attempts", type=int, default=8, help="without a byte, then give up")
    parser.add_argument("--counts", action="store_true", help="print what has happened, as JSON")
    words = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        with RemoteFiles(
            words.urls,
            cache=words.cache,
            cache_bytes=words.cache_bytes,
            storage_options=words.storage_options,
            threads=words.threads,
            patience=Patience(attempts=words.attempts),
        ) as files:
            for file, _ in files.read():
                if file["path"]:
                    print(file["path"], flush=True)
            if words.counts:
                print(json.dumps(files.counts.all()), flush=True)
            return 1 if files.counts["given_up"] else 0
    except RemoteError as error:
        print(f"ringfeed.remote: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
