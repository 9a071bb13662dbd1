"""ringfeed-web without memory and descriptors: a request may be lost, the server and the feed not."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.starver import Starver
from tests.support.feeds.web import Web

TREES = (
    "/api/v1/feeds",
    *(f"/api/v1/feeds/lc0/{what}" for what in ("status", "why", "graph")),
)
PATHS = ("/", "/metrics", "/readyz", "/api/v1/feeds/lc0/metrics", *TREES)
FRESH_MS = 900  # older answers are asked for again


@pytest.fixture
def starved(run: FeedRun, tmp_path: Path) -> Iterator[tuple[Web, Starver]]:
    """A server whose calls can be refused; the feed's are not."""
    starver = Starver(tmp_path / "starve")
    own = dict(run.environment)
    run.environment = {**own, **starver.environment}
    web = Web(run)
    run.environment = own
    yield web, starver
    web.close()


def status(web: Web, path: str) -> int | None:
    """Of an answer that came whole; None: whoever asked was disconnected."""
    try:
        return web.get(path)[0]
    except (http.client.HTTPException, ConnectionError):
        return None


def events(web: Web, count: int) -> int:
    """So many, or as many as came before the server ended the stream."""
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\n\r\n"
    got = b""
    with contextlib.suppress(ConnectionError), web.connect() as link:
        link.sendall(request.encode())
        while got.count(b"\ndata: ") < count and (more := link.recv(65536)):
            got += more
    return got.count(b"\ndata: ")


def descriptors(web: Web) -> int:
    return len(os.listdir(f"/proc/{web.process.pid}/fd"))


def grows_old(web: Web, run: FeedRun) -> None:
    """What the server knows, until the next request makes it ask the feed."""
    known = web.json("/api/v1/feeds/lc0/status")["uptime_ms"]
    wait_until(lambda: (run.status() or {}).get("uptime_ms", 0) > known + FRESH_MS, "an old answer")


def serves(web: Web) -> None:
    """As if nothing had been."""
    for path in PATHS:
        assert web.get(path)[0] == 200, path
    assert events(web, 2) == 2


@pytest.mark.parametrize("kind", ["malloc", "epoll_ctl"])
def test_a_refused_call_costs_a_request_at_most(
    run: FeedRun, starved: tuple[Web, Starver], kind: str
) -> None:
    """One after the other, alone and with all that follow."""
    web, starver = starved
    serves(web)
    before = descriptors(web)
    refused = 0

    def refuse(skip: int, count: int, ask: Callable[[], object]) -> None:
        nonlocal refused
        starver.refuse(kind, skip, count)
        ask()
        refused += starver.stop()
        assert web.process.poll() is None, web.log.read_text()

    for path in PATHS:
        # Trees of JSON bear one refusal: then memory is given up for them, and there is some.
        many = 1 if kind == "malloc" and path in TREES else 20
        made = starver.calls(kind)
        web.get(path)
        made = starver.calls(kind) - made
        for skip in sorted({*range(min(8, made)), *range(0, made, 1 + made // 25)}):
            refuse(skip, 1, lambda: status(web, path))  # noqa: B023
            refuse(skip, many, lambda: status(web, path))  # noqa: B023
    # What asks the feeds, too.
    grows_old(web, run)
    made = starver.calls(kind)
    web.get("/metrics")
    made = starver.calls(kind) - made
    for skip in range(0, made, 1 + made // 12):
        grows_old(web, run)
        refuse(skip, 20, lambda: status(web, "/metrics"))
    for skip in range(0, made, 1 + made // 4):
        for many in (1, 20):
            refuse(skip, many, lambda: events(web, 2))
    assert refused > 10
    serves(web)
    wait_until(lambda: descriptors(web) <= before, "no descriptor more than before")


@pytest.mark.parametrize("kind", ["malloc", "epoll_ctl"])
def test_a_connection_that_cannot_be_kept_is_the_only_one_lost(
    starved: tuple[Web, Starver], kind: str
) -> None:
    """Each is one more than there ever were, so that the server needs memory for it."""
    web, starver = starved
    serves(web)
    refused = 0
    calls = 30 if kind == "malloc" else 3  # for such a connection and the request behind it
    with contextlib.ExitStack() as links:
        for number in range(90):
            starver.refuse(kind, number % calls, 1 + number // 30)
            links.enter_context(web.connect()).sendall(b"GET / HT")
            status(web, "/healthz")
            refused += starver.stop()
            assert web.get("/healthz")[0] == 200, number
    assert refused > 10


@pytest.mark.parametrize("kind", ["malloc", "epoll_ctl"])
def test_what_a_request_is_refused_is_not_the_answer_of_the_next(
    run: FeedRun, starved: tuple[Web, Starver], kind: str
) -> None:
    """What the feeds are asked for one request is known to the others for a second. What could not be
    asked is not."""
    web, starver = starved
    path = "/api/v1/feeds/lc0/status"
    answers = []
    for skip in range(0, 75, 5) if kind == "malloc" else range(2):
        grows_old(web, run)
        starver.refuse(kind, skip, 2)  # memory that is kept for it bears one
        answers.append(status(web, path))
        starver.stop()
        assert web.get(path)[0] == 200, f"after the answer {answers[-1]}"
    assert None in answers or 503 in answers, answers


def test_no_memory_is_an_answer_and_no_end(run: FeedRun, serve: Callable[..., Web]) -> None:
    """Real want, of more and of less memory: whoever asks gets an answer, 503 or the end of the
    connection.
    """
    # What is freed goes back to the system, so that each answer has to ask for memory again.
    tunables = "glibc.malloc.mmap_threshold=4096:glibc.malloc.trim_threshold=0"
    run.environment = {**run.environment, "GLIBC_TUNABLES": tunables}
    web = serve()
    serves(web)
    before = descriptors(web)
    pages = int(Path(f"/proc/{web.process.pid}/statm").read_text().split()[0])
    size = pages * resource.getpagesize()
    answers: set[int | None] = set()
    for spare in (0, 64 << 10, 256 << 10, 1 << 20):
        resource.prlimit(
            web.process.pid, resource.RLIMIT_AS, (size + spare, resource.RLIM_INFINITY)
        )
        # Each holds memory of the server for as long as it lives.
        with contextlib.ExitStack() as links:
            for _ in range(100):
                link = links.enter_context(web.connect())
                link.sendall(b"GET / HT")
            for path in PATHS * 3:
                answers.add(status(web, path))
                assert web.process.poll() is None, web.log.read_text()
        resource.prlimit(
            web.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
        serves(web)
    assert answers <= {200, 503, None} and len(answers) > 1, answers
    wait_until(lambda: descriptors(web) <= before, "no descriptor more than before")
