"""Fixtures of the end-to-end tests: generated games, and feeds that end with their test."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import lc0_data  # noqa: E402
from feed_run import BIN, ROOT, FeedRun, Trainer, runs, wait_until  # noqa: E402

__all__ = ["BIN", "ROOT", "FeedRun", "Trainer", "runs", "wait_until"]


@pytest.fixture(scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lc0_data.Manifest]:
    """About 11,000 positions in 120 games in three tars, and five loose files."""
    directory = tmp_path_factory.mktemp("games")
    yield lc0_data.make_dataset(directory / "data", games=120, tars=3, seed=3, loose=5)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def make_run(
    tmp_path: Path, games: lc0_data.Manifest
) -> Iterator[Callable[..., FeedRun]]:
    runs: list[FeedRun] = []

    def make(directory: Path | None = None, **settings: Any) -> FeedRun:
        work = tmp_path / f"run{len(runs)}"
        work.mkdir()
        run = FeedRun(work, directory or Path(games.directory), **settings)
        runs.append(run)
        return run

    yield make
    for run in runs:
        run.close()
