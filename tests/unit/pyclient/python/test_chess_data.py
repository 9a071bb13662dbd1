"""The maker of chess data: legal, varied, the same for the same seed, and written as asked."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tests.support.makers import chess_data  # noqa: E402
from tests.support.oracles import chess_reference as reference  # noqa: E402

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def games() -> Rows:
    return chess_data.random_games(150, 7, plies=40)


@pytest.fixture(scope="module")
def searches() -> Rows:
    return chess_data.random_variation_rows(200, 7)


def same(one: Any, other: Any) -> bool:
    both_nan = all(isinstance(value, float) and math.isnan(value) for value in (one, other))
    return both_nan or one == other


def assert_same_rows(made: Any, wanted: Any) -> None:
    assert len(made) == len(wanted)
    for one, other in zip(made, wanted):
        for key in set(one) | set(other):
            assert same(one.get(key), other.get(key)), (key, one, other)


def test_the_same_seed_makes_the_same_rows_and_another_one_others(games: Rows) -> None:
    assert_same_rows(chess_data.random_games(150, 7, plies=40), games)
    assert chess_data.random_games(150, 8, plies=40) != games
    # A game does not depend on those before it.
    later = chess_data.random_games(1, 7, plies=40, first=149)
    assert_same_rows(later, [row for row in games if row["game_id"] == "random-7_149"])
    rows = chess_data.random_variation_rows(20, 3)
    assert_same_rows(chess_data.random_variation_rows(20, 3), rows)


def test_games_have_everything_that_a_reader_must_know(games: Rows) -> None:
    played = {row["played_move"] for row in games}
    assert played & {"e1h1", "e1a1"} and played & {"e8h8", "e8a8"}
    assert any(move and move[4:] == "q" for move in played)
    assert {None, ""} <= played
    assert any(row["win"] is None for row in games)
    assert any(isinstance(row["draw"], float) and math.isnan(row["draw"]) for row in games)
    assert any(row["fen"] is None for row in games)
    first = [row for row in games if row["ply"] == 1]
    assert len(first) == 150 and any(" b " in (row["fen"] or "") for row in first)


def test_games_are_no_errors_unless_asked_for(games: Rows) -> None:
    log: list[str] = []
    draws = reference.Draws(0, 0)
    files = {"a.parquet": games}
    assert (
        len(list(reference.emitted_games(files, draws, 256, skip_board_prob=0.2, log=log))) == 150
    )
    assert log == []
    faulty = {f"{n}.parquet": chess_data.random_games(20, n, faults=True) for n in range(10)}
    made = list(reference.emitted_games(faulty, draws, 256, log=log))
    assert log and 0 < len(made) < 200


def test_searched_positions_have_everything_that_a_reader_must_know(searches: Rows) -> None:
    texts = [row["variations"] for row in searches]
    assert None in texts and "[]" in texts
    parsed = [json.loads(text) for text in texts if text]
    variations = [variation for value in parsed if value for variation in value]
    assert any(not v.get("nodes") for v in variations)
    assert max(len(v.get("nodes", [])) for v in variations) == 20
    assert any(len(v["root_move"]) == 5 and v["root_move"][4] == "n" for v in variations)
    assert {v["root_move"] for v in variations} & {"e1g1", "e1c1", "e8g8", "e8c8"}
    for key in ("visit_count", "visit_fraction", "nodes"):
        assert any(key not in v for v in variations), key


def test_searched_positions_are_no_errors_unless_asked_for(searches: Rows) -> None:
    log: list[str] = []
    draws = reference.Draws(0, 0)
    made = list(reference.emitted_variations({"a.parquet": searches}, draws, 1024, log=log))
    assert log == [] and len(made) > 60
    faulty = {
        f"{n}.parquet": chess_data.random_variation_rows(60, n, faults=True) for n in range(6)
    }
    list(reference.emitted_variations(faulty, draws, 1024, log=log))
    assert any(".parquet" in line for line in log)
    assert any(line.startswith("row skipped") for line in log)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"row_group_size": 17},
        {"compression": "none", "dictionary": False},
        {"compression": "zstd", "page_version": "2.0", "page_bytes": 512},
        {"compression": "gzip", "dictionary": ["game_id"]},
        {"large_strings": True},
        {"dictionary_typed": ["game_id", "played_move", "best_move"]},
        {"types": {"ply": pa.int32()}},
    ],
    ids=str,
)
def test_rows_come_back_as_they_were_written(
    options: dict[str, Any], games: Rows, tmp_path: Path
) -> None:
    path = chess_data.write_parquet(games[:500], tmp_path / "a.parquet", **options)
    rows = reference.read_rows(path)
    assert_same_rows(rows, games[:500])
    file = pyarrow.parquet.ParquetFile(path)
    wanted = options.get("row_group_size")
    assert file.num_row_groups == (math.ceil(500 / wanted) if wanted else 1)


def test_numbers_of_32_bits_are_those_nearest(games: Rows, tmp_path: Path) -> None:
    path = chess_data.write_parquet(games[:50], tmp_path / "a.parquet", float32=True)
    assert pyarrow.parquet.read_schema(path).field("win").type == pa.float32()
    for row, wanted in zip(reference.read_rows(path), games):
        if wanted["win"] is not None and not math.isnan(wanted["win"]):
            assert abs(row["win"] - wanted["win"]) < 1e-7


def test_missing_keys_are_null_and_columns_can_be_left_out(tmp_path: Path) -> None:
    rows: Rows = [{"game_id": "a", "ply": 1}, {"game_id": "a", "fen": None, "extra": [1, 2]}]
    path = chess_data.write_parquet(rows, tmp_path / "a.parquet")
    assert reference.read_rows(path) == [
        {"fen": None, "game_id": "a", "ply": 1, "extra": None},
        {"fen": None, "game_id": "a", "ply": None, "extra": [1, 2]},
    ]
    path = chess_data.write_parquet(rows, tmp_path / "a.parquet", columns=["ply"])
    assert reference.read_rows(path) == [{"ply": 1}, {"ply": None}]


def test_interleaved_games_give_the_same_samples(tmp_path: Path) -> None:
    rows = chess_data.random_games(8, 2, plies=10)
    path = chess_data.write_parquet(rows, tmp_path / "a.parquet", interleave_seed=1)
    mixed = reference.read_rows(path)
    assert [row["ply"] for row in mixed] != [row["ply"] for row in rows]

    def starts(files: reference.Files) -> dict[str, list[int]]:
        stream = reference.emitted_games(files, reference.Draws(0, 0), 128, start_first=True)
        return {e.game_id: e.sample["input_ids"].tolist() for e in stream}

    assert starts({"a.parquet": mixed}) == starts({"a.parquet": rows})


def test_the_command_line_deals_games_to_files(tmp_path: Path) -> None:
    arguments = ["--games", "7", "--files", "3", "--plies", "4", "--variations", "5"]
    assert chess_data.main([str(tmp_path), *arguments]) == 0
    files = reference.parquet_files(tmp_path / "games")
    ids = [reference.game_ids(reference.read_rows(path)) for path in files.values()]
    assert [len(names) for names in ids] == [3, 2, 2] and len(set(sum(ids, []))) == 7
    searched = reference.parquet_files(tmp_path / "variations")
    assert [len(reference.read_rows(path)) for path in searched.values()] == [2, 2, 1]
