"""The maker of training data: its games are chess, its records are those of real files.

The encoder is proved on real games: replayed from the moves that their records name, they must
come out with the very planes that the records hold. What has no real counterpart (random games,
drawn visits and values) is checked against python-chess and against the rules of the format.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import chess
import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TESTS.parent))

from tests.support.makers import lc0_data  # noqa: E402
from tests.support.oracles import lc0_reference as reference  # noqa: E402


@pytest.fixture(scope="module")
def real_games() -> list[reference.Game]:
    path = Path(
        os.environ.get("RINGFEED_LC0_SAMPLE", TESTS / "data" / "lc0" / "lc0-data-sample.tar")
    )
    if not path.is_file():
        # Not skipped: without real data nothing here would be proved, and nobody would notice.
        pytest.fail(f"{path} is missing: put the real games there or set RINGFEED_LC0_SAMPLE")
    games = list(reference.read_games(path))
    assert sum(len(game.records) for game in games) == 324
    return games


@functools.cache
def all_moves() -> list[str]:
    """Spell the moves of all policy indices from the mover's view, by the rule of the format."""
    names = [chess.square_name(square) for square in range(64)]
    moves = []
    for start in range(64):
        for end in range(64):
            across = abs(start % 8 - end % 8)
            along = abs(start // 8 - end // 8)
            if start != end and (0 in (across, along) or across == along or across * along == 2):
                moves.append(names[start] + names[end])
    for file in range(8):
        for target in (file - 1, file, file + 1):
            if 0 <= target < 8:
                moves += [names[48 + file] + names[56 + target] + piece for piece in "qrb"]
    assert len(moves) == 1858
    return moves


def spelled(index: int) -> str:
    return all_moves()[index]


def index_of(move: chess.Move, black: bool) -> int:
    return int(lc0_data.policy_indices(np.array([lc0_data.move_code(move)]), np.array([black]))[0])


def replay(played_idx: Sequence[int]) -> lc0_data.Play:
    """Play the moves that a game's records name."""

    def choose(ply: int, moves: Sequence[chess.Move]) -> int:
        indices = [index_of(move, ply % 2 == 1) for move in moves]
        return indices.index(played_idx[ply])

    return lc0_data.play_game(choose, len(played_idx))


# --- The encoder, on real games -----------------------------------------------------------------


def test_policy_indices_are_those_of_the_format() -> None:
    for uci, index in (
        ("a1b1", 0), ("b1a3", 34), ("d2d4", 293), ("e2e4", 322), ("h8g8", 1791),
        ("a7a8q", 1792), ("h7h8b", 1857),
    ):  # fmt: skip
        assert index_of(chess.Move.from_uci(uci), False) == index
        assert spelled(index) == uci
    assert index_of(chess.Move.from_uci("e7e5"), True) == 322  # black sees e2e4
    assert index_of(chess.Move.from_uci("a2a1q"), True) == 1792
    assert spelled(index_of(chess.Move.from_uci("a7a8n"), False)) == "a7a8"


def test_real_games_come_out_of_the_encoder_as_they_went_in(real_games) -> None:
    for game in real_games:
        encoded = lc0_data.encode_positions(replay(game.records["played_idx"].tolist()))
        assert len(encoded) == len(game.records)
        for field in (
            "version", "input_format", "planes", "castling_us_ooo", "castling_us_oo",
            "castling_them_ooo", "castling_them_oo", "side_to_move", "rule50_count",
            "invariance_info", "dummy", "played_idx", "q_st",
        ):  # fmt: skip
            assert np.array_equal(encoded[field], game.records[field]), (game.source, field)


def test_real_games_cover_castling_and_quiet_plies(real_games) -> None:
    # So that the comparison above means something. No real game here repeats a position: what is
    # encoded then is spelled out below.
    records = np.concatenate([game.records for game in real_games])
    castling = index_of(chess.Move.from_uci("e1h1"), False)
    assert (records["played_idx"] == castling).sum() >= 3
    assert records["rule50_count"].max() == 12
    for field in ("us_oo", "us_ooo", "them_oo", "them_ooo"):
        assert set(records[f"castling_{field}"].tolist()) == {0, 1}


def test_legal_moves_of_real_games_are_those_with_a_probability(real_games) -> None:
    for game in real_games:
        play = replay(game.records["played_idx"].tolist())
        ends = np.cumsum(play.legal_counts)
        for record, legal in zip(game.records, np.split(play.legal, ends[:-1])):
            assert np.array_equal(np.flatnonzero(record["probabilities"] >= 0), np.sort(legal))


def encoded(line: str) -> np.ndarray:
    """The records of the game that these moves make."""
    moves = line.split()

    def choose(ply: int, legal: Sequence[chess.Move]) -> int:
        return [move.uci() for move in legal].index(moves[ply])

    return lc0_data.encode_positions(lc0_data.play_game(choose, len(moves)))


def repeated(records: np.ndarray) -> list[list[int]]:
    """The records and history steps whose repetition plane is set: [record, step]."""
    planes = records["planes"].reshape(-1, 8, 13)[:, :, 12]
    assert set(np.unique(planes).tolist()) <= {0, 2**64 - 1}
    return np.argwhere(planes).tolist()


def test_a_repetition_shows_in_its_record_and_in_the_history_of_the_next() -> None:
    # The knights go out and back: record 4 is the start position again. The two records after the
    # pawn moves still have it among their last eight positions.
    records = encoded("g1f3 g8f6 f3g1 f6g8 e2e4 e7e5 g1f3 g8f6 f1c4 f8c5 e1h1 e8h8 d2d3")
    expected = [[record, record - 4] for record in range(4, 12)]
    assert repeated(records) == expected
    assert records["rule50_count"].tolist() == [0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5, 6]


def test_castling_rights_end_for_the_side_that_has_castled() -> None:
    records = encoded("g1f3 g8f6 g2g3 g7g6 f1g2 f8g7 e1h1 e8h8 d2d3")
    assert records["castling_us_oo"].tolist() == [1, 1, 1, 1, 1, 1, 1, 1, 0]
    assert records["castling_them_oo"].tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 0]
    assert records["castling_us_ooo"].tolist() == records["castling_us_oo"].tolist()
    assert records["side_to_move"].tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]


def test_equal_pieces_with_other_castling_rights_are_no_repetition() -> None:
    assert repeated(encoded("e2e4 e7e5 e1e2 e8e7 e2e1 e7e8 d2d3")) == []


def test_a_pawn_that_could_be_taken_in_passing_makes_another_position() -> None:
    # After d7d5 the pawn on e5 could take; four plies later it cannot, so it is the first time
    # that this position occurs. Without such a pawn the double step makes no difference.
    passing = encoded("e2e4 a7a6 e4e5 d7d5 g1f3 g8f6 f3g1 f6g8 g1f3")
    assert repeated(passing) == []
    plain = encoded("e2e4 d7d5 g1f3 g8f6 f3g1 f6g8 g1f3")
    assert repeated(plain) == [[6, 0]]


# --- Made games ---------------------------------------------------------------------------------

SEEDS = [11, 12, 13]


@pytest.fixture(scope="module", params=SEEDS)
def made(request: pytest.FixtureRequest) -> np.ndarray:
    return lc0_data.make_game(request.param, 0)


def test_a_made_game_is_legal_chess_to_its_end(made: np.ndarray) -> None:
    # Independent of the maker: the game is played again from the spelled moves, and in each
    # position the moves with a probability are exactly those that python-chess calls legal.
    board = chess.Board()
    for number, record in enumerate(made):
        legal = set()
        for move in board.legal_moves:
            if board.is_castling(move):
                rook = chess.square(
                    7 if board.is_kingside_castling(move) else 0, chess.square_rank(move.to_square)
                )
                move = chess.Move(move.from_square, rook)
            legal.add(move.uci())
        found = {}
        for index in np.flatnonzero(record["probabilities"] >= 0):
            name = spelled(index)
            if board.turn == chess.BLACK:
                squares = (chess.parse_square(name[:2]), chess.parse_square(name[2:4]))
                mirrored = [chess.square_name(chess.square_mirror(square)) for square in squares]
                name = "".join(mirrored) + name[4:]
            piece = board.piece_type_at(chess.parse_square(name[:2]))
            if piece == chess.PAWN and name[3] in "18" and len(name) == 4:
                name += "n"
            found[name] = index
        assert set(found) == legal, f"position {number}: {board.fen()}"
        assert set(np.unique(record["probabilities"][record["probabilities"] < 0])) <= {-1.0}
        (played,) = [name for name, index in found.items() if index == record["played_idx"]]
        assert record["side_to_move"] == (board.turn == chess.BLACK)
        assert record["rule50_count"] == board.halfmove_clock
        board.push_uci(played)
    assert not board.is_game_over() or made["plies_left"][-1] == 1.0


def test_made_policies_obey_the_rules_of_real_ones(made: np.ndarray) -> None:
    policy = made["probabilities"]
    legal = policy >= 0
    sums = np.where(legal, policy, 0).sum(axis=1, dtype=np.float64)
    assert np.abs(sums - 1).max() < 1e-6
    assert np.array_equal(policy.argmax(axis=1), made["best_idx"])
    assert (np.take_along_axis(policy, made["played_idx"][:, None].astype(int), 1) > 0).all()
    # Visit fractions: whole numbers of visits, the root's own aside.
    visits = policy * (made["visits"][:, None] - 1.0)
    assert np.abs(visits[legal] - np.round(visits[legal])).max() < 1e-3


def test_made_values_obey_the_rules_of_real_ones(made: np.ndarray) -> None:
    for name in ("root", "best", "played", "orig"):
        q, d = made[f"{name}_q"].astype(np.float64), made[f"{name}_d"].astype(np.float64)
        known = ~np.isnan(q)
        assert name == "orig" or known.all()
        assert (np.abs(q[known]) <= 1).all() and (d[known] >= 0).all()
        assert (np.abs(q[known]) + d[known] <= 1 + 1e-6).all()  # win and loss not negative
    same = made["best_idx"] == made["played_idx"]
    assert (made["best_q"][same] == made["played_q"][same]).all()
    assert (made["best_q"] >= made["played_q"]).all()
    assert np.allclose(np.diff(made["plies_left"]), -1)
    assert (made["result_q"][1:] == -made["result_q"][:-1]).all()
    assert ((made["result_d"] == 1) == (made["result_q"] == 0)).all()
    assert (made["policy_kld"] > 0).all()
    assert not made["dummy"].any() and not made["q_st"].any()
    assert (made["invariance_info"] == 32).all()


# --- Data sets ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> lc0_data.Manifest:
    return lc0_data.make_dataset(tmp_path_factory.mktemp("lc0"), 60, 3, seed=5, loose=4)


def file_bytes(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_equal_arguments_give_equal_bytes_with_any_number_of_processes(
    dataset: lc0_data.Manifest, tmp_path: Path
) -> None:
    lc0_data.make_dataset(tmp_path, 60, 3, seed=5, loose=4, processes=2)
    assert file_bytes(tmp_path) == file_bytes(dataset.directory)


def test_another_seed_gives_other_games(dataset: lc0_data.Manifest, tmp_path: Path) -> None:
    other = lc0_data.make_dataset(tmp_path, 6, 1, seed=6)
    assert not np.isin(other.record_hashes, dataset.record_hashes).any()


def test_the_manifest_tells_what_is_in_the_files(dataset: lc0_data.Manifest) -> None:
    assert [file["games"] for file in dataset.files] == [20, 20, 20, 1, 1, 1, 1]
    lengths = []
    for path, file in zip(dataset.paths, dataset.files):
        games = [len(game.records) for game in reference.read_games(path)]
        assert (len(games), sum(games)) == (file["games"], file["positions"])
        lengths += games
    assert lengths == dataset.game_positions
    assert (dataset.games, dataset.positions) == (64, sum(lengths))
    assert sorted(dataset.paths) == reference.game_files(dataset.directory)


def test_the_manifest_names_every_position_in_order(dataset: lc0_data.Manifest) -> None:
    names = reference.file_hashes(dataset.paths)
    assert np.array_equal(names, dataset.record_hashes)
    assert sum(int(name) for name in names) % 2**64 == dataset.hash_sum
    assert np.bitwise_xor.reduce(names) == dataset.hash_xor


def test_a_saved_manifest_reads_back(dataset: lc0_data.Manifest) -> None:
    loaded = lc0_data.Manifest.load(dataset.directory)
    assert np.array_equal(loaded.record_hashes, dataset.record_hashes)
    for name in ("seed", "games", "positions", "files", "game_positions", "hash_sum", "hash_xor"):
        assert getattr(loaded, name) == getattr(dataset, name)


def test_no_two_records_are_alike(dataset: lc0_data.Manifest) -> None:
    assert len(np.unique(dataset.record_hashes)) == dataset.positions


def test_variants_share_moves_but_no_record(tmp_path: Path) -> None:
    made = lc0_data.make_dataset(tmp_path, 8, 1, seed=3, variants=4)
    assert len(np.unique(made.record_hashes)) == made.positions
    games = [game.records for game in reference.read_games(made.paths[0])]
    assert np.array_equal(games[0]["planes"], games[3]["planes"])
    assert len(games[3]) != len(games[4]) or not np.array_equal(
        games[3]["planes"], games[4]["planes"]
    )


def test_files_compress_like_real_ones(dataset: lc0_data.Manifest) -> None:
    # Real games: 38 : 1 to 42 : 1; too compressible data would flatter every loader.
    assert 35 <= dataset.record_bytes_raw / dataset.record_bytes_packed <= 42


def test_game_lengths_lie_around_the_median(dataset: lc0_data.Manifest) -> None:
    assert all(10 <= count <= 300 for count in dataset.game_positions)
    assert 70 <= np.median(dataset.game_positions) <= 110


def test_rare_things_occur(dataset: lc0_data.Manifest) -> None:
    records = np.concatenate(
        [game.records for path in dataset.paths for game in reference.read_games(path)]
    )
    assert (records["probabilities"] == 0).any()  # legal moves without a visit
    assert 0.01 < np.isnan(records["orig_q"]).mean() < 0.1
    assert records["planes"].reshape(-1, 8, 13)[:, 0, 12].any()  # repetitions
    assert (records["played_idx"] >= 1792).any()  # promotions
    assert {-1.0, 0.0, 1.0} == set(records["result_q"].tolist())


def test_tars_are_ustar_with_gzip_members_and_a_licence(dataset: lc0_data.Manifest) -> None:
    path = dataset.paths[0]
    assert path.name == "training-run1-test80-20240101-0017.tar"
    raw = path.read_bytes()
    assert raw[257:265] == b"ustar\x0000"
    with tarfile.open(path) as archive:
        names = archive.getnames()
        assert names[0] == "LICENSE"
        assert names[1] == f"{path.stem}/training.1400000000.gz"
        file = archive.extractfile(names[1])
        assert file is not None and file.read(10).hex() == "1f8b0800000000000003"  # no time


def test_a_directory_that_holds_data_is_left_alone(dataset: lc0_data.Manifest) -> None:
    before = file_bytes(dataset.directory)
    with pytest.raises(FileExistsError, match="holds a data set already"):
        lc0_data.make_dataset(dataset.directory, 1, 1, seed=9)
    assert file_bytes(dataset.directory) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"games": 0},
        {"games": -1},
        {"tars": 0},
        {"tars": 3},
        {"variants": 0},
        {"seed": -1},
        {"plies_median": 5.0},
    ],
)
def test_counts_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict) -> None:
    with pytest.raises(ValueError, match="make_dataset"):
        lc0_data.make_dataset(tmp_path / "out", **({"games": 2, "tars": 1, "seed": 1} | wrong))
    assert not (tmp_path / "out").exists()


def test_the_command_line_makes_the_same_and_prints_the_manifest(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(TESTS / "support" / "makers" / "lc0_data.py"),
        str(tmp_path / "a"),
    ]
    command += "--games 2 --tars 1 --seed 8 --loose 1 --plies-median 30".split()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path / 'a' / 'manifest.json'}\n"
    assert "3 games" in done.stderr
    lc0_data.make_dataset(tmp_path / "b", 2, 1, seed=8, loose=1, plies_median=30)
    assert file_bytes(tmp_path / "a") == file_bytes(tmp_path / "b")
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 1 and "holds a data set already" in again.stderr
