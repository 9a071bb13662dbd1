"""skip_limit of every stage that leaves out data of the files that it reads, with damaged files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ringfeed

from tests.support.feeds.feed_run import FeedRun
from tests.support.makers import chess_data, fairseq_data, lc0_data

MakeRun = Callable[..., FeedRun]

# Data that somebody else made: it is cut, or replaced by nothing.
GAMES = 20
BAD = 4

EXTRACTOR = """
feed: "lc0"
epochs: 1
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "loader" chunk_source_loader {{ input: "provider" }} }}
stages {{ name: "chunks" simple_chunk_extractor {{ input: "loader" {limit} }} }}
stages {{ name: "unpacker" chunk_unpacker {{ input: "chunks" }} }}
stages {{ name: "tensors" tensor_generator {{ input: "unpacker" batch_size: 64 }} }}
"""

CHESS = """
feed: "chess"
epochs: 1
stages {{ name: "rows" parquet_source {{ directory: "{directory}" {of_rows} }} }}
stages {{ name: "made" {kind} {{ input: "rows" {of_sequences} }} }}
stages {{ name: "batches" sequence_batcher {{ input: "made" batch_size: 4 }} }}
"""

BITEXT = """
feed: "mt"
epochs: 1
stages {{ name: "bitext" bitext_source {{
  directory: "{directory}" lang_pairs: "eng-tur" lang_pairs: "eng-kir" lang_pairs: "eng-uig"
  allow_missing: true {limit} }} }}
stages {{ name: "plans" epoch_planner {{ input: "bitext" batch_size: 8 }} }}
stages {{ name: "batches" bitext_collator {{ input: "plans" }} }}
"""


def limit(share: float, after: int) -> str:
    return f"skip_limit {{ share: {share} after: {after} }}"


def ends(run: FeedRun) -> str:
    """Takes all batches: why the feed has failed, "" if it has not."""
    run.start()
    try:
        with ringfeed.attach(
            run.feed, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
        ) as feed:
            for batch in feed:
                batch.release()
    except ringfeed.FeedFailed as failed:
        assert run.wait() == 1, run.text()
        return str(failed)
    assert run.wait() == 0, run.text()
    return ""


def chunks(directory: Path, bad: bytes | None = None) -> Path:
    """Games in files of their own, of which some are cut in the middle, or are `bad`."""
    lc0_data.make_dataset(directory, games=1, tars=1, seed=3, loose=GAMES)
    for tar in directory.glob("*.tar"):
        tar.unlink()
    files = sorted(directory.rglob("*.gz"))
    assert len(files) == GAMES
    for file in files[:BAD]:
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2] if bad is None else bad)
    return directory


@pytest.mark.parametrize("share, fails", [(0.19, True), (0.2, False)])
@pytest.mark.parametrize("stage", ["loader", "pool", "chunks", "feed"])
def test_games_of_lc0(
    make_run: MakeRun, tmp_path: Path, stage: str, share: float, fails: bool
) -> None:
    own = limit(share, GAMES)
    directory = chunks(tmp_path / "games", b"" if stage == "loader" else None)
    settings: dict[str, Any] = {
        "loader": {"loaders": f"1 {own}"},
        "pool": {"in_pool": own},
        "chunks": {"pipeline": EXTRACTOR, "limit": own},
        "feed": {"extra": own},
    }[stage]
    why = ends(make_run(directory, **settings))
    assert bool(why) is fails
    if fails:
        reason = "loader: 4 empty" if stage == "loader" else ": 4 damaged"
        unit = "files" if stage == "loader" else "chunks"
        of = "" if stage == "feed" else f" of stage '{stage}'"
        assert f"4 of 20 {unit}{of} were left out, more than skip_limit allows (19 %)" in why
        assert reason in why and f"the first of 4: {directory}/" in why


@pytest.mark.parametrize("share, fails", [(0.09, True), (0.1, False)])
def test_rows_of_parquet(make_run: MakeRun, tmp_path: Path, share: float, fails: bool) -> None:
    """Files that are cut, or none, count as one each."""
    directory = tmp_path / "games"
    directory.mkdir()
    rows = chess_data.random_games(9, 5, plies=10)[:36]
    for number in range(2):
        chess_data.write_parquet(rows[18 * number :][:18], directory / f"{number}.parquet")
    (directory / "2.parquet").write_bytes((directory / "1.parquet").read_bytes()[:-100])
    for number in range(3, 6):
        (directory / f"{number}.parquet").write_text("fen,played_move\nno,Parquet\n")
    settings = {"kind": "chess_games", "of_rows": limit(share, 40), "of_sequences": ""}
    why = ends(make_run(directory, feed="chess", pipeline=CHESS, **settings))
    assert bool(why) is fails
    if fails:
        assert "4 of 40 samples of stage 'rows' were left out" in why
        assert f"rows: unreadable, the first of 4: {directory}/" in why


@pytest.mark.parametrize("share, fails", [(0.09, True), (0.1, False)])
@pytest.mark.parametrize("kind", ["chess_games", "chess_variations"])
def test_sequences_of_chess(
    make_run: MakeRun, tmp_path: Path, kind: str, share: float, fails: bool
) -> None:
    directory = tmp_path / "rows"
    directory.mkdir()
    if kind == "chess_games":
        rows = chess_data.random_games(20, 5, plies=10)
        reason = "fen"
        bad = sorted({row["game_id"] for row in rows})[:2]
        rows = [{**row, "fen": "nonsense"} if row["game_id"] in bad else row for row in rows]
    else:
        rows = chess_data.random_variation_rows(90, 5, faults=False)
        rows = [row for row in rows if len(row["variations"] or "") > 10][:20]
        reason = "json"
        for row in rows[:2]:
            row["variations"] = row["variations"][:-5]
    assert rows
    chess_data.write_parquet(rows, directory / "a.parquet")
    settings = {"kind": kind, "of_rows": "", "of_sequences": limit(share, 20)}
    why = ends(make_run(directory, feed="chess", pipeline=CHESS, **settings))
    assert bool(why) is fails
    if fails:
        assert "2 of 20 sequences of stage 'made' were left out" in why
        assert f"made: {reason}, the first of 2: " in why


@pytest.mark.parametrize("share, fails", [(0.3, True), (0.4, False)])
def test_directions_of_parallel_text(
    make_run: MakeRun,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    share: float,
    fails: bool,
) -> None:
    directory = tmp_path / "text"
    directory.mkdir()
    sentences = [[4 + i % 5, 6, 2] for i in range(40)]
    for language in ("eng", "tur", "kir", "uig"):
        fairseq_data.write_dictionary(directory / f"dict.{language}.txt", 20)
    for language in ("tur", "uig"):
        for side in ("eng", language):
            fairseq_data.write_mapped(directory / f"train.eng-{language}.{side}", sentences)
    run = make_run(directory, feed="mt", pipeline=BITEXT, limit=limit(share, 3))
    why = ends(run)
    assert bool(why) is fails, run.text()
    if fails:
        assert "1 of 3 directions of stage 'bitext' were left out" in why
    else:
        assert "1 samples were left out: bitext: 1 directions_missing" in caplog.text
