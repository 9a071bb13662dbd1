"""From PGN to Parquet: notation, values, files, what is skipped; an engine played by a script."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import chess
import pytest

TESTS = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TESTS.parent))
sys.path.insert(0, str(TESTS.parent / "scripts"))

import pgn_to_parquet  # noqa: E402

from tests.support.oracles import chess_reference as reference  # noqa: E402

CASTLING = """[Event "both sides castle"]
[Result "1-0"]

1. e4 e5 2. Nf3 Nc6 3. Bc4 Nf6 {a comment} (3... Bc5) 4. O-O d6 5. d3 Bg4 6. Nc3 Qd7 7. a3 O-O-O 1-0

"""
PROMOTIONS = """[Event "a knight and a queen"]
[FEN "4k3/P5P1/8/8/8/8/1p5p/R3K1N1 w - - 0 1"]
[SetUp "1"]
[Result "1/2-1/2"]

1. a8=N bxa1=Q+ 1/2-1/2

"""
UNFINISHED = """[Event "no result"]
[Result "*"]

1. d4 d5 *

"""
ILLEGAL = """[Event "a move that cannot be"]
[Result "0-1"]

1. e4 e5 2. Ke3 Nc6 0-1

"""
EMPTY = """[Event "nothing played"]
[Result "1-0"]

1-0

"""
KINGLESS = """[Event "a position that cannot be"]
[FEN "8/8/8/8/8/8/P7/4K3 w - - 0 1"]
[SetUp "1"]
[Result "*"]

1. a4 *

"""
CHESS960 = """[Event "another variant"]
[Variant "Chess960"]
[FEN "bnrkqrnb/pppppppp/8/8/8/8/PPPPPPPP/BNRKQRNB w KQkq - 0 1"]
[SetUp "1"]
[Result "*"]

1. e4 *

"""

# Plays the first legal moves by name; the line's rank decides its value. Dies at h2h4, if asked to.
ENGINE = """#!{python}
import sys
import chess

board, lines = chess.Board(), 1
for command in sys.stdin:
    words = command.split()
    if words[0] == "uci":
        print("id name Script")
        print("option name MultiPV type spin default 1 min 1 max 9")
        print("option name UCI_ShowWDL type check default false")
        print("uciok", flush=True)
    elif words[0] == "isready":
        print("readyok", flush=True)
    elif words[:3] == ["setoption", "name", "MultiPV"]:
        lines = int(words[-1])
    elif words[0] == "position":
        moves = words.index("moves") if "moves" in words else len(words)
        board = chess.Board() if words[1] == "startpos" else chess.Board(" ".join(words[2:moves]))
        for move in words[moves + 1 :]:
            board.push_uci(move)
    elif words[0] == "go":
        assert words[1:3] == ["nodes", "77"], words
        if {dies} and board.fullmove_number > 1:
            sys.exit(3)
        best = sorted(move.uci() for move in board.legal_moves)
        for rank, move in enumerate(best[:lines], start=1):
            after, line = board.copy(), []
            while len(line) < 5 and not after.is_game_over():
                line.append(move if not line else min(m.uci() for m in after.legal_moves))
                after.push_uci(line[-1])
            wdl = f"{{600 - 100 * rank}} 300 {{100 + 100 * rank}}"
            print(f"info depth 1 multipv {{rank}} score cp {{-rank}} wdl {{wdl}} pv", *line)
        print("bestmove", best[0], flush=True)
    elif words[0] == "quit":
        break
"""


def make_engine(tmp_path: Path, dies: bool = False) -> Path:
    path = tmp_path / "engine"
    path.write_text(ENGINE.format(python=sys.executable, dies=dies))
    path.chmod(0o755)
    return path


def run(tmp_path: Path, pgn: str, *options: str, status: int = 0) -> list[list[dict[str, Any]]]:
    """Convert games; give the rows of each file."""
    source = tmp_path / "games.pgn"
    source.write_text(pgn)
    arguments = [str(tmp_path / "out"), str(source), *options]
    assert pgn_to_parquet.main(arguments) == status
    return rows_of(tmp_path / "out")


def rows_of(directory: Path) -> list[list[dict[str, Any]]]:
    return [reference.read_rows(path) for path in reference.parquet_files(directory).values()]


def test_castling_is_king_takes_rook_and_plies_count_from_one(tmp_path: Path) -> None:
    (rows,) = run(tmp_path, CASTLING, "--no-engine")
    assert [row["ply"] for row in rows] == list(range(1, 15))
    assert [row["played_move"] for row in rows[6:]] == (
        "e1h1 d7d6 d2d3 c8g4 b1c3 d8d7 a2a3 e8a8".split()
    )
    assert rows[0]["fen"] == chess.STARTING_FEN
    assert {row["game_id"] for row in rows} == {"games_0"}
    assert all(row["best_move"] == row["played_move"] for row in rows)


def test_values_are_the_result_for_the_side_to_move(tmp_path: Path) -> None:
    (rows,) = run(tmp_path, CASTLING + PROMOTIONS + UNFINISHED, "--no-engine")
    values = [(row["win"], row["draw"], row["loss"]) for row in rows]
    assert values[:2] == [(1.0, 0.0, 0.0), (0.0, 0.0, 1.0)]
    assert values[14:] == 2 * [(0.0, 1.0, 0.0)] + 2 * [(None, None, None)]


def test_a_knight_promotion_has_no_suffix(tmp_path: Path) -> None:
    (rows,) = run(tmp_path, PROMOTIONS, "--no-engine")
    assert [row["played_move"] for row in rows] == ["a7a8", "b2a1q"]


def test_games_are_dealt_to_files_and_never_parted(tmp_path: Path) -> None:
    files = run(tmp_path, 5 * UNFINISHED, "--no-engine", "--games-per-file", "2")
    ids = [reference.game_ids(rows) for rows in files]
    assert ids == [["games_0", "games_1"], ["games_2", "games_3"], ["games_4"]]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"part-0000{number}.parquet" for number in range(3)
    ]


def test_what_cannot_be_used_is_skipped_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pgn = ILLEGAL + UNFINISHED + EMPTY + CHESS960 + KINGLESS + ILLEGAL + PROMOTIONS
    (rows,) = run(tmp_path, pgn, "--no-engine")
    assert reference.game_ids(rows) == ["games_0", "games_1"] and len(rows) == 4
    said = capsys.readouterr().err
    assert "2 games, 4 positions" in said
    assert "skipped 2 with moves that cannot be read" in said
    assert "skipped 1 without moves" in said and "skipped 1 of another variant" in said
    assert "skipped 1 from an impossible position" in said


def test_a_gzipped_file_is_read_like_any(tmp_path: Path) -> None:
    source = tmp_path / "old.pgn.gz"
    source.write_bytes(gzip.compress(UNFINISHED.encode()))
    assert pgn_to_parquet.main([str(tmp_path / "out"), str(source), "--no-engine"]) == 0
    assert rows_of(tmp_path / "out")[0][0]["game_id"] == "old_0"


def test_what_was_written_becomes_samples(tmp_path: Path) -> None:
    run(tmp_path, CASTLING + PROMOTIONS + UNFINISHED, "--no-engine")
    log: list[str] = []
    files = reference.parquet_files(tmp_path / "out")
    made = list(reference.emitted_games(files, reference.Draws(0, 0), 256, log=log))
    assert len(made) == 3 and log == []


# --- Engines ------------------------------------------------------------------------------------


def test_without_an_engine_it_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pgn_to_parquet, "_STOCKFISH", str(tmp_path / "stockfish"))
    run(tmp_path, 3 * UNFINISHED)
    assert capsys.readouterr().err.count("no engine found") == 1


def test_a_stockfish_on_the_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_engine(tmp_path).rename(tmp_path / "stockfish")
    monkeypatch.setenv("PATH", str(tmp_path))
    (rows,) = run(tmp_path, UNFINISHED, "--nodes", "77")
    assert rows[0]["best_move"] == "a2a3" and rows[0]["played_move"] == "d2d4"


def test_an_engine_gives_best_moves_and_values(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    (rows,) = run(tmp_path, CASTLING + PROMOTIONS, "--engine", str(engine), "--nodes", "77")
    assert [row["best_move"] for row in rows[:2]] == ["a2a3", "a7a5"]
    assert {(row["win"], row["draw"], row["loss"]) for row in rows} == {(0.5, 0.3, 0.2)}
    assert rows[14]["best_move"] == "a1a2" and rows[15]["best_move"] == "b2a1b"


def test_variations_are_the_best_lines_of_sampled_positions(tmp_path: Path) -> None:
    engine = str(make_engine(tmp_path))
    options = ["--engine", engine, "--nodes", "77", "--variations", "3"]
    (games,) = run(tmp_path, CASTLING + PROMOTIONS, *options, "--positions-per-game", "4")
    (rows,) = rows_of(tmp_path / "out-variations")
    assert [row["game_id"] for row in rows] == 4 * ["games_0"] + 2 * ["games_1"]
    by_ply = {(row["game_id"], row["ply"]): row for row in games}
    for row in rows:
        played = by_ply[row["game_id"], row["ply"]]
        assert all(row[name] == played[name] for name in played)
        variations = json.loads(row["variations"])
        assert len(variations) == 3 and row["mcts_action"] == variations[0]["root_move"]
        visits = [variation["visit_count"] for variation in variations]
        assert visits == sorted(visits, reverse=True)
        assert sum(v["visit_fraction"] for v in variations) == pytest.approx(1.0)
        for rank, variation in enumerate(variations, start=1):
            board = chess.Board(row["fen"])
            move = variation["root_move"]
            for number, node in enumerate(variation["nodes"]):
                board.push_uci(move)
                assert node["fen"] == board.fen()
                mine = [0.6 - 0.1 * rank, 0.3, 0.1 + 0.1 * rank]
                assert node["wdl"] == pytest.approx(mine if number % 2 else mine[::-1])
                move = node.get("move")
            assert len(variation["nodes"]) == 5 and move is None


def test_variations_become_samples(tmp_path: Path) -> None:
    options = ["--engine", str(make_engine(tmp_path)), "--nodes", "77", "--variations", "3"]
    run(tmp_path, CASTLING, *options)
    log: list[str] = []
    files = reference.parquet_files(tmp_path / "out-variations")
    made = list(reference.emitted_variations(files, reference.Draws(0, 0), 1200, log=log))
    assert len(made) == 8 and log == []


def test_a_line_that_ends_the_game_has_no_nodes(tmp_path: Path) -> None:
    board = chess.Board("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1")
    line = pgn_to_parquet.Line([chess.Move.from_uci("a1a8")], (1.0, 0.0, 0.0))
    (variation,) = pgn_to_parquet.variations_of(board, [line])
    assert variation["nodes"] == [] and variation["visit_fraction"] == 1.0


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "/nonexistent/engine"], "there is no such program"),
        (["--engine", "/bin/true"], "does not run as a UCI engine"),
        (["--no-engine", "--variations", "2"], "needs an engine"),
    ],
)
def test_an_engine_that_cannot_be_used_is_an_error(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, UNFINISHED, *options, status=1) == []
    assert said in capsys.readouterr().err


def test_an_engine_that_dies_leaves_complete_files_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--engine", str(make_engine(tmp_path, dies=True)), "--nodes", "77"]
    files = run(tmp_path, 3 * UNFINISHED + CASTLING, *options, "--games-per-file", "2", status=1)
    assert [reference.game_ids(rows) for rows in files] == [["games_0", "games_1"]]
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert "the engine failed" in capsys.readouterr().err


def test_files_that_are_no_pgn_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "not a game\n", "--no-engine", status=1)
    assert "no game could be used" in capsys.readouterr().err
    missing = str(tmp_path / "missing.pgn")
    assert pgn_to_parquet.main([str(tmp_path / "out2"), missing, "--no-engine"]) == 1
    assert "missing.pgn: no such file" in capsys.readouterr().err


def test_a_directory_that_holds_data_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run(tmp_path, UNFINISHED, "--no-engine")
    assert run(tmp_path, PROMOTIONS, "--no-engine", status=1) == before
    assert "already holds" in capsys.readouterr().err
