"""Feeds of samples for the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.feeds.feed_run import FeedRun
from tests.support.feeds.sample_feeds import sample_feed

MakeFeed = Callable[..., FeedRun]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hours",
        default="",
        help="let drawn tests of samples draw for so long, each (as RINGFEED_HOURS does)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hours", ""):
        os.environ["RINGFEED_HOURS"] = config.getoption("--hours")


@pytest.fixture
def make_feed(tmp_path: Path) -> Iterator[MakeFeed]:
    runs: list[FeedRun] = []

    def start(directory: Path, **settings: Any) -> FeedRun:
        runs.append(sample_feed(tmp_path / f"run{len(runs)}", directory, **settings))
        return runs[-1]

    yield start
    for run in runs:
        run.close()
