"""CPU time of remote files beside a bare fetch to the disk: fsspec's own get_file and an fsync.

Both fetch the same objects from a server on loopback, a process of its own, as many at a time: of
HTTP, where each object is named, and of S3 (moto's), where both list the bucket.
Rounds are interleaved; the median of the rounds' ratios is reported. The time is this process's,
user and system, the writing of the copies included. A second pass over a cache that holds all is
reported as well: what a listing and a look at each object take.

    python tests/bench/remote_bench.py [--rounds 7] [--threads 8] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from ringfeed.remote import RemoteFiles

SERVER = """
import http.server, os, sys

class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_):
        pass

os.chdir(sys.argv[1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
S3_SERVER = """
import time
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
time.sleep(3600)  # it is ended before; if nobody is left to do that, it ends by itself
"""


@dataclass(frozen=True)
class Case:
    name: str
    bytes: int  # of an object
    count: int
    s3: bool = False


CASES = [
    Case("64 MiB", 64 << 20, 6),
    Case("16 MiB", 16 << 20, 24),
    Case("1 MiB", 1 << 20, 128),
    Case("100 KB", 100_000, 400),
    Case("S3, 16 MiB", 16 << 20, 12, True),
    Case("S3, 1 MiB", 1 << 20, 128, True),
    Case("S3, 100 KB", 100_000, 400, True),
]


def cpu_s(work: Callable[[], None]) -> float:
    """User and system time of all threads while it runs."""
    before = os.times()
    work()
    after = os.times()
    return after.user + after.system - before.user - before.system


def bare(
    urls: list[str], directory: Path, threads: int, options: dict[str, Any] | None = None
) -> None:
    protocol = urls[0].partition("://")[0]
    fs = fsspec.filesystem(protocol, skip_instance_cache=True, **(options or {}))
    if protocol == "s3":
        urls = fs.find(urls[0])

    def fetch(url: str) -> None:
        path = directory / url.rsplit("/", 1)[1]
        fs.get_file(url, str(path))
        with path.open("rb") as file:
            os.fsync(file.fileno())

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fetch, urls))


def through_cache(
    urls: list[str], directory: Path, threads: int, options: dict[str, Any] | None = None
) -> int:
    """How many objects came."""
    with RemoteFiles(
        urls, cache=directory, cache_bytes=1 << 40, threads=threads, storage_options=options
    ) as files:
        return sum(1 for file, _ in files.read() if file["path"])


def measure(case: Case, work: Path, rounds: int, threads: int) -> dict[str, Any]:
    """The figures of one size of objects."""
    objects = work / "objects"
    objects.mkdir()
    for i in range(case.count):
        (objects / f"{i}").write_bytes(os.urandom(case.bytes))
    server = subprocess.Popen(
        [sys.executable, "-c", S3_SERVER if case.s3 else SERVER, str(objects)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    try:
        root = f"http://127.0.0.1:{int(server.stdout.readline())}"
        urls = [f"{root}/{i}" for i in range(case.count)]
        options: dict[str, Any] = {}
        if case.s3:
            options = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": root}}
            fs = fsspec.filesystem("s3", skip_instance_cache=True, **options)
            fs.mkdir("bucket")
            fs.put(f"{objects}/", "bucket/data/", recursive=True)
            urls = ["s3://bucket/data/"]

        def fetched(directory: Path) -> None:
            count = through_cache(urls, directory, threads, options)
            if count != case.count:
                raise SystemExit(f"{count} of {case.count} objects came")

        times: dict[str, list[float]] = {"bare": [], "cache": [], "again": []}
        # The first round imports what the others find.
        for round_number in range(rounds + 1):
            place = work / f"round-{round_number}"
            plain, cache = place / "bare", place / "cache"
            plain.mkdir(parents=True)
            took = {
                "bare": cpu_s(lambda: bare(urls, plain, threads, options)),
                "cache": cpu_s(lambda: fetched(cache)),
                "again": cpu_s(lambda: fetched(cache)),
            }
            # ext4 looks long for an inode that was not deleted in the last seconds: many files are
            # deleted when all has been measured.
            if len(list(plain.iterdir())) != case.count:
                raise SystemExit("the bare fetch has not got all objects")
            if case.count < 100:
                shutil.rmtree(place)
            for name, seconds in took.items():
                if round_number:
                    times[name].append(seconds)
    finally:
        for place in work.glob("round-*"):
            shutil.rmtree(place)
        server.kill()
        server.wait()
        subprocess.run(["rm", "-r", str(objects)], check=True)
    ratios = [ours / theirs for ours, theirs in zip(times["cache"], times["bare"])]
    each = {name: 1e6 * statistics.median(all_) / case.count for name, all_ in times.items()}
    return {
        "case": case.name,
        "objects": case.count,
        **{f"{name}_us": round(us) for name, us in each.items()},
        "ratio": round(statistics.median(ratios), 2),
        "ratio_min": round(min(ratios), 2),
        "ratio_max": round(max(ratios), 2),
    }


def main() -> int:
    """Prints the table; 0."""
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="rf-remote-", dir=os.environ.get("TMPDIR")) as work:
        for case in CASES:
            found.append(measure(case, Path(work), words.rounds, words.threads))
    print("objects of | CPU µs each: bare   cache  second pass | cache / bare (min, max)")
    for one in found:
        print(
            f"{one['case']:10} | {one['bare_us']:17} {one['cache_us']:7} {one['again_us']:12} |"
            f" {one['ratio']:5} ({one['ratio_min']}, {one['ratio_max']})"
        )
    if words.json:
        words.json.write_text(json.dumps({"load": os.getloadavg(), "remote": found}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
