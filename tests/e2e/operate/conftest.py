"""A feed, and servers that show it: fixtures of the tests of ringfeed-web."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.web import Web


@pytest.fixture
def run(make_run: Callable[..., FeedRun], request: pytest.FixtureRequest) -> FeedRun:
    """An endless feed with its first batches; a test may give it settings."""
    run = make_run(epochs=0, **getattr(request, "param", {})).start()
    wait_until(lambda: (run.status() or {}).get("state") == "RUNNING", "the feed to run")
    return run


@pytest.fixture
def serve(run: FeedRun) -> Iterator[Callable[..., Web]]:
    """Starts servers over its directory; they end with the test."""
    found: list[Web] = []

    def start(*words: str, **options: Any) -> Web:
        found.append(Web(run, *words, **options))
        return found[-1]

    yield start
    for web in found:
        web.close()
