"""Fixtures of the end-to-end tests: generated games, and feeds that end with their test."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402

from tests.support.feeds import fairseq_feeds  # noqa: E402
from tests.support.feeds.feed_run import FeedRun  # noqa: E402
from tests.support.feeds.scenes import GROUPS  # noqa: E402
from tests.support.makers import lc0_data  # noqa: E402
from tests.support.oracles.fairseq_reference import Config  # noqa: E402


@pytest.fixture(scope="session")
def with_torch() -> None:
    """For a test that needs PyTorch somewhere below it: skipped where there is none."""
    pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")


@pytest.fixture(scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lc0_data.Manifest]:
    """About 11,000 positions in 120 games in three tars, and five loose files."""
    directory = tmp_path_factory.mktemp("games")
    yield lc0_data.make_dataset(directory / "data", games=120, tars=3, seed=3, loose=5)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def make_run(tmp_path: Path, games: lc0_data.Manifest) -> Iterator[Callable[..., FeedRun]]:
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


@pytest.fixture
def make_bitext(tmp_path: Path) -> Iterator[Callable[..., FeedRun]]:
    """Makes feeds of translation batches; each has a directory of its own."""
    made: list[FeedRun] = []

    def make(config: Config, **settings: Any) -> FeedRun:
        made.append(fairseq_feeds.bitext_run(tmp_path / f"run{len(made)}", config, **settings))
        return made[-1]

    yield make
    for run in made:
        if run.process is not None and run.process.poll() is None:
            # Draining would wait for groups whose members have left.
            run.command("stop", run.feed, "--now")
        run.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, games: lc0_data.Manifest) -> np.ndarray:
    """The digests of the batches of GROUPS over the games twice, when nobody dies."""
    run = FeedRun(
        tmp_path_factory.mktemp("undisturbed"), Path(games.directory), epochs=2, extra=GROUPS
    )
    try:
        result = run.start().trainer(positions=0).result()
        assert run.wait() == 0, run.text()
        return result["digests"]
    finally:
        run.close()
