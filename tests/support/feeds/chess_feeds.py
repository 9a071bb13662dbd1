"""Feeds of the chess pipelines for tests: their configurations, and all of what they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ringfeed

from tests.support.feeds.feed_run import FeedRun

GAMES = """
feed: "chess"
seed: {seed}
epochs: {epochs}
stages {{ name: "rows" parquet_source {{ directory: "{directory}" {source} }} }}
stages {{ name: "games" chess_games {{ input: "rows" length_max: {length} {games} }} }}
stages {{ name: "batches" sequence_batcher {{ input: "games" batch_size: {batch} {batcher} }} }}
feed_output {{ slots: {slots} dispatch: {dispatch} {groups} }}
{extra}
"""

MIX = """
feed: "chess"
seed: {seed}
epochs: {epochs}
stages {{ name: "rows" parquet_source {{ directory: "{directory}" {source} }} }}
stages {{ name: "games" chess_games {{ input: "rows" length_max: {length} {games} }} }}
stages {{ name: "searched" parquet_source {{
  directory: "{variation_directory}" repeat: true {variation_source} }} }}
stages {{ name: "variations" chess_variations {{ input: "searched" length_max: {length} {variations} }} }}
stages {{ name: "mixer" variation_mixer {{
  input: "games" variations: "variations" variation_ratio: {ratio} {mixer} }} }}
stages {{ name: "batches" sequence_batcher {{ input: "mixer" batch_size: {batch} {batcher} }} }}
feed_output {{ slots: {slots} dispatch: {dispatch} {groups} }}
{extra}
"""

DEFAULTS: dict[str, Any] = {
    "feed": "chess",
    "seed": 7,
    "epochs": 1,
    "source": "",
    "length": 256,
    "games": "",
    "batch": 16,
    "batcher": "",
    "variation_source": "",
    "variations": "",
    "ratio": 0.2,
    "mixer": "",
    "slots": 6,
    "dispatch": "ORDERED",
    "groups": "",
    "extra": "",
}


def chess_run(
    work: Path, directory: Path, variation_directory: Path | None = None, **settings: Any
) -> FeedRun:
    """A feed over a directory of games, or over that and one of searched positions."""
    work.mkdir(parents=True, exist_ok=True)
    values = {**DEFAULTS, "variation_directory": variation_directory, **settings}
    values.setdefault("pipeline", GAMES if variation_directory is None else MIX)
    return FeedRun(work, directory, **values)


def batches_of(run: FeedRun, limit: int | None = None) -> list[dict[str, np.ndarray]]:
    """The batches of a feed that has been started, as copies: all of them, or so many."""
    got: list[dict[str, np.ndarray]] = []
    with ringfeed.attach(
        run.feed, socket_dir=run.sockets, attach_timeout_s=60.0, timeout_s=60.0
    ) as feed:
        for batch in feed:
            got.append({name: np.array(batch[name]) for name in batch})
            batch.release()
            if limit is not None and len(got) == limit:
                break
    return got


def stacked(batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """All rows of the batches, array by array."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
