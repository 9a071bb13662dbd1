"""Makes chess training data in Parquet: random legal games, and positions with searched variations.

    python tests/support/makers/chess_data.py OUT_DIR --games 2000 --files 4 --variations 500 --seed
    1

    OUT_DIR/games/part-000.parquet, ...        --games, dealt evenly to --files
    OUT_DIR/variations/part-000.parquet, ...   --variations, dealt in the same way

Games are legal play by python-chess with many castlings and promotions; what a search would add is
drawn at random. A row in a few lacks a move or a value, and with ``faults`` some are wrong in the
ways that a loader must survive. What is made depends on the arguments alone: each game has a seed
of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import chess
import pyarrow as pa
import pyarrow.parquet

# Run as a program it has its own folder as the first place of modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


Row = dict[str, Any]

# Columns in the order in which they are written, with their types.
COLUMN_TYPES: dict[str, pa.DataType] = {
    "fen": pa.string(),
    "played_move": pa.string(),
    "best_move": pa.string(),
    "win": pa.float64(),
    "draw": pa.float64(),
    "loss": pa.float64(),
    "game_id": pa.string(),
    "ply": pa.int64(),
    "variations": pa.string(),
    "mcts_action": pa.string(),
    "mcts_value": pa.string(),
}
GAME_COLUMNS = ("fen", "played_move", "best_move", "win", "draw", "loss", "game_id", "ply")

# Where a game may begin, besides the usual position.
_ODD_STARTS = (
    "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1",
    "r3k2r/pppq1ppp/2npbn2/2b1p3/2B1P3/2NPBN2/PPPQ1PPP/R3K2R b Kq - 4 8",
    "4k3/P5P1/8/8/8/8/1p5p/R3K1N1 w - - 0 1",
    "1n2k1n1/P1P3PP/8/8/8/8/pp3p1p/1N2K1N1 b - - 12 1",
    "8/5pk1/6p1/8/8/2B5/5PPP/6K1 w - - 0 40",
    "rnbqkbnr/1pp1pppp/p7/3pP3/8/8/PPPP1PPP/RNBQKBNR w KQkq d6 0 3",
    "bnrkqrnb/pppppppp/8/8/8/8/PPPPPPPP/BNRKQRNB w - - 0 1",
    "4k3/8/8/8/8/8/8/4K2R w K - 99 1",
    "6k1/5Q2/8/8/8/8/8/K6R b - - 3 1",
)


# --- Parquet ------------------------------------------------------------------------------------


def write_parquet(
    rows: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    row_group_size: int | None = None,
    compression: str = "snappy",
    dictionary: bool | Sequence[str] = True,
    large_strings: bool = False,
    float32: bool = False,
    dictionary_typed: Collection[str] = (),
    types: Mapping[str, pa.DataType] | None = None,
    interleave_seed: int | None = None,
    page_bytes: int | None = None,
    page_version: str = "1.0",
) -> Path:
    """Write rows as one Parquet file.

    Args:
        rows: A key that is missing is null, as None is; NaN stays NaN.
        columns: Which to write, in which order; the default is those that some row has.
        row_group_size: Rows in a group; by default pyarrow's, about a million.
        compression: "none", "snappy", "gzip", "zstd", "brotli" or "lz4".
        dictionary: Whether columns are dictionary encoded, or which ones.
        large_strings: Strings with 64-bit offsets; the difference is in the stored schema alone.
        float32: Numbers of floating point are stored as 32 bits.
        dictionary_typed: Columns that have a dictionary as their Arrow type.
        types: Types of further columns, or other ones than usual.
        interleave_seed: Mixes the games' rows as interleaved() does.
        page_bytes, page_version: Size of data pages, and "1.0" or "2.0".
    Returns:
        The path.
    """
    known = {**COLUMN_TYPES, **(types or {})}
    if interleave_seed is not None:
        rows = interleaved(rows, interleave_seed)
    if columns is None:
        present = {column for row in rows for column in row}
        columns = [column for column in known if column in present]
        # Of a type that pyarrow finds out.
        columns += sorted(present - set(columns))
    arrays = []
    for column in columns:
        kind = known.get(column)
        if kind == pa.string() and large_strings:
            kind = pa.large_string()
        elif kind == pa.float64() and float32:
            kind = pa.float32()
        array = pa.array([row.get(column) for row in rows], kind)
        arrays.append(array.dictionary_encode() if column in dictionary_typed else array)
    pyarrow.parquet.write_table(
        pa.table(arrays, names=list(columns)),
        path,
        row_group_size=row_group_size,
        compression=compression,
        use_dictionary=dictionary,
        data_page_size=page_bytes,
        data_page_version=page_version,
    )
    return Path(path)


def interleaved(rows: Sequence[Mapping[str, Any]], seed: int) -> list[Mapping[str, Any]]:
    """Mix the rows of all games; those of a game are not in the order of their plies either."""
    mixed = list(rows)
    random.Random(seed).shuffle(mixed)
    return mixed


# --- Notation -----------------------------------------------------------------------------------


def move_token(board: chess.Board, move: chess.Move) -> str:
    """Name a move as the data does: king takes rook, a knight promotion like a plain move."""
    end = move.to_square
    if board.is_castling(move):
        rook_file = 7 if chess.square_file(end) > chess.square_file(move.from_square) else 0
        end = chess.square(rook_file, chess.square_rank(end))
    promotion = move.promotion if move.promotion != chess.KNIGHT else None
    return chess.Move(move.from_square, end, promotion).uci()


def fen_of(board: chess.Board, *, plain: bool = True) -> str:
    """Write a position; plain without the square of en passant, and with move number 1."""
    if not plain:
        return board.fen()
    turn = "w" if board.turn == chess.WHITE else "b"
    return f"{board.board_fen()} {turn} {board.castling_xfen()} - {board.halfmove_clock} 1"


# --- Random play --------------------------------------------------------------------------------


def _random_move(board: chess.Board, moves: Sequence[chess.Move], rng: random.Random) -> chess.Move:
    """Choose a legal move; castlings and promotions more often than chance would."""
    if rng.random() < 0.4:
        special = [
            move
            for move in moves
            if move.promotion
            or (board.kings & chess.BB_SQUARES[move.from_square] and board.is_castling(move))
        ]
        if special:
            return rng.choice(special)
    return rng.choice(moves)


def _random_wdl(rng: random.Random) -> tuple[float, float, float]:
    """Draw win, draw and loss as they come out of q and d: doubles that sum to about 1."""
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)))
    d = rng.random()
    q = (1 - d) * (2 * rng.random() - 1)
    win, draw, loss = (1 + q - d) / 2, d, (1 - q - d) / 2
    if kind < 0.4:
        return round(win, 4), round(draw, 4), round(loss, 4)
    return win, draw, loss


def random_games(
    count: int,
    seed: int,
    *,
    plies: int = 60,
    first: int = 0,
    missing: bool = True,
    faults: bool = False,
) -> list[Row]:
    """Make the rows of random games, in order of game and ply.

    Args:
        plies: Mean length; a game has 1 to twice as many, fewer if it ends before.
        first: Number of the first game: more games of the same set.
        missing: Some rows lack a played move (null or empty), or a value (null or NaN). No row of
            these is an error.
        faults: Some games have what ends a file: moves that are no tokens, no best move, bad FENs.
    Returns:
        Rows with all GAME_COLUMNS, plies from 1.
    """
    rows: list[Row] = []
    for number in range(first, first + count):
        rng = random.Random(f"game/{seed}/{number}")
        rows.extend(_random_game(f"random-{seed}_{number}", rng, plies, missing, faults))
    return rows


def _random_game(
    game_id: str, rng: random.Random, plies: int, missing: bool, faults: bool
) -> list[Row]:
    odd = rng.random() < 0.15
    board = chess.Board(rng.choice(_ODD_STARTS)) if odd else chess.Board()
    plain_fens = rng.random() < 0.8
    length = max(1, round(rng.triangular(1, 2 * plies, plies)))
    # Most games lack nothing.
    lack = 0.05 if missing and rng.random() < 0.3 else 0.0
    rows: list[Row] = []
    while len(rows) < length:
        moves = list(board.legal_moves)
        if not moves:
            break
        move = _random_move(board, moves, rng)
        best = move if rng.random() < 0.6 else rng.choice(moves)
        win, draw, loss = _random_wdl(rng)
        row: Row = {
            "fen": fen_of(board, plain=plain_fens),
            "played_move": move_token(board, move),
            "best_move": move_token(board, best),
            "win": win,
            "draw": draw,
            "loss": loss,
            "game_id": game_id,
            "ply": len(rows) + 1,
        }
        if rng.random() < lack:
            row["played_move"] = rng.choice((None, ""))
            # Nobody looks at it.
            row["best_move"] = rng.choice((row["best_move"], None, "unknown(0)"))
        if rng.random() < lack:
            for column in rng.choice((("win", "draw", "loss"), ("win",), ("draw",), ("loss",))):
                row[column] = rng.choice((None, math.nan))
        if rng.random() < lack / 5:
            row["fen"] = None
        rows.append(row)
        board.push(move)
    if not rows:
        # The start has no legal move: nothing was played.
        rows.append(
            {
                "fen": fen_of(board, plain=plain_fens),
                "played_move": None,
                "best_move": None,
                "win": 0.0,
                "draw": 0.0,
                "loss": 1.0,
                "game_id": game_id,
                "ply": 1,
            }
        )
    if faults and rng.random() < 0.05:
        column, value = rng.choice(
            (
                ("played_move", "unknown(1857)"),
                ("played_move", "a7a8n"),
                ("best_move", "unknown(12)"),
                ("best_move", None),
                ("best_move", "eos"),
                ("fen", "8/8/8/8/8/8/8 w - - 0 1"),
                ("fen", ""),
            )
        )
        rng.choice(rows)[column] = value
    return rows


# --- Random searches ----------------------------------------------------------------------------


def random_variation_rows(
    count: int,
    seed: int,
    *,
    faults: bool = False,
    variations_max: int = 5,
    nodes_max: int = 20,
) -> list[Row]:
    """Make rows of positions with searched variations, up to eight of a game.

    Now and then a row has no variations (``[]`` or null), a variation no nodes, a key is missing,
    a move has no token. None of these is an error.

    Args:
        faults: Some rows have what costs the row (nulls in the JSON, bad FENs, values of wrong
            length) or the file (malformed JSON).
        variations_max, nodes_max: Most variations of a row, most nodes of a variation.
    """
    rows: list[Row] = []
    game = 0
    while len(rows) < count:
        rng = random.Random(f"search/{seed}/{game}")
        board = chess.Board(rng.choice(_ODD_STARTS)) if rng.random() < 0.5 else chess.Board()
        of_game = rng.randint(1, 8)
        ply = 1
        while of_game and len(rows) < count:
            moves = list(board.legal_moves)
            if not moves:
                break
            if rng.random() < 0.3:
                row = _random_search(board, rng, faults, variations_max, nodes_max)
                rows.append({**row, "game_id": f"search-{seed}_{game}", "ply": ply})
                of_game -= 1
            board.push(_random_move(board, moves, rng))
            ply += 1
        game += 1
    return rows


def _random_search(
    board: chess.Board, rng: random.Random, faults: bool, variations_max: int, nodes_max: int
) -> Row:
    moves = list(board.legal_moves)
    roots = rng.sample(moves, min(len(moves), rng.randint(0, variations_max)))
    special = _random_move(board, moves, rng)
    if roots and special not in roots:
        roots[0] = special
    visits = sorted((rng.randint(1, 400) for _ in roots), reverse=True)
    total = sum(visits) + rng.randint(0, 50)
    variations = [
        _random_variation(board, move, count, total, rng, faults, nodes_max)
        for move, count in zip(roots, visits)
    ]
    if rng.random() < 0.2:
        # Ties, and an order that is not the one by visits.
        for variation in rng.sample(variations, len(variations) // 2):
            variation["visit_count"] = visits[0]
        rng.shuffle(variations)
    action = roots[0] if roots else special
    win, draw, loss = _random_wdl(rng)
    played = move_token(board, action if rng.random() < 0.7 else rng.choice(moves))
    row: Row = {
        "fen": fen_of(board, plain=rng.random() < 0.8),
        "played_move": rng.choice((None, "", "unknown(9)")) if rng.random() < 0.05 else played,
        "best_move": move_token(board, action),
        "win": win,
        "draw": draw,
        "loss": loss,
        "variations": _json_text(variations, rng),
        "mcts_action": None if rng.random() < 0.05 else action.uci(),
        "mcts_value": json.dumps([win, draw, loss]),
    }
    if rng.random() < 0.05:
        row[rng.choice(("win", "draw", "loss"))] = rng.choice((None, math.nan))
    if rng.random() < 0.04:
        row["variations"] = rng.choice((None, "[]", "null"))
    if faults and rng.random() < 0.01:
        text = _json_text(variations, rng)
        row["variations"] = rng.choice((text[:-1], text + "]", "", "[{'root_move': 'e2e4'}]"))
    if faults and rng.random() < 0.02:
        row["fen"] = "8/8/8/8 w - - 0 1"
    return row


def _random_variation(
    board: chess.Board,
    move: chess.Move,
    visits: int,
    total: int,
    rng: random.Random,
    faults: bool,
    nodes_max: int,
) -> Row:
    root_move = move.uci()
    board = board.copy(stack=False)
    board.push(move)
    nodes: list[Row] = []
    length = 0 if rng.random() < 0.05 else rng.randint(1, nodes_max)
    while len(nodes) < length:
        moves = list(board.legal_moves)
        if not moves:
            break
        move = _random_move(board, moves, rng)
        # As a search in single precision stores them.
        wdl = [_float32(value) for value in _random_wdl(rng)]
        count = max(1, visits - rng.randint(0, 20) - len(nodes))
        node: Row = {
            "fen": fen_of(board, plain=rng.random() < 0.5),
            "move": move.uci(),
            "wdl": wdl,
            "visit_count": count,
        }
        if rng.random() < 0.01:
            node["move"] = rng.choice((None, "", "unknown(5)", "0000"))
        if rng.random() < 0.01:
            del node[rng.choice(("move", "wdl", "visit_count"))]
        if faults and rng.random() < 0.003:
            key, value = rng.choice(
                (
                    ("fen", "not a position"),
                    ("wdl", None),
                    ("wdl", [0.5, 0.5]),
                    ("wdl", [0.1, 0.2, 0.3, 0.4]),
                    ("wdl", ["a", "b", "c"]),
                )
            )
            node[key] = value
        nodes.append(node)
        board.push(move)
    variation: Row = {
        "root_move": root_move,
        "visit_count": visits,
        "visit_fraction": visits / total,
        "prior": rng.random(),
        "nodes": nodes,
    }
    if rng.random() < 0.01:
        variation["root_move"] = "unknown(77)"
    if rng.random() < 0.04:
        del variation[rng.choice(("visit_count", "visit_fraction", "prior", "nodes"))]
    if faults and rng.random() < 0.005:
        variation[rng.choice(("visit_count", "nodes"))] = None
    if faults and rng.random() < 0.003:
        variation.pop("root_move")
    return variation


def _float32(value: float) -> float:
    number: float = pa.scalar(value, pa.float32()).as_py()
    return number


def _json_text(variations: Sequence[Row], rng: random.Random) -> str:
    """Write JSON as different programs would: spacing, order of keys, keys that nobody reads."""
    kind = rng.random()
    if kind < 0.6:
        return json.dumps(variations)
    if kind < 0.8:
        return json.dumps(variations, separators=(",", ":"), sort_keys=True)
    if kind < 0.9:
        noted = [
            {**v, "note": 'line 1\n\t"π" \\ é', "more": {"a": [1, -2.5e-3, True, None], "b": {}}}
            for v in variations
        ]
        return json.dumps(noted, ensure_ascii=rng.random() < 0.5, indent=1)
    # Of keys that come twice the last one counts.
    return json.dumps(variations).replace('"visit_count": ', '"visit_count": 7, "visit_count": ')


# --- Command line -------------------------------------------------------------------------------


def _dealt(count: int, parts: int) -> list[int]:
    return [count // parts + (number < count % parts) for number in range(parts)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Make chess training data in Parquet.")
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path)
    parser.add_argument("--games", type=int, default=2000, help="games (2000)")
    parser.add_argument("--variations", type=int, default=0, help="searched positions (0)")
    parser.add_argument("--files", type=int, default=4, help="files of each kind (4)")
    parser.add_argument("--plies", type=int, default=60, help="mean length of a game (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", action="store_true", help="with rows that are wrong")
    options = parser.parse_args(arguments)
    if options.games:
        directory = options.out_dir / "games"
        directory.mkdir(parents=True, exist_ok=True)
        first = 0
        for number, count in enumerate(_dealt(options.games, options.files)):
            rows = random_games(
                count, options.seed, plies=options.plies, first=first, faults=options.faults
            )
            write_parquet(rows, directory / f"part-{number:03}.parquet", columns=GAME_COLUMNS)
            first += count
    if options.variations:
        directory = options.out_dir / "variations"
        directory.mkdir(parents=True, exist_ok=True)
        for number, count in enumerate(_dealt(options.variations, options.files)):
            rows = random_variation_rows(count, options.seed * 1000 + number, faults=options.faults)
            # Written as it comes out of a search: in many small groups.
            path = directory / f"part-{number:03}.parquet"
            write_parquet(rows, path, columns=list(COLUMN_TYPES), row_group_size=128)
    return 0


if __name__ == "__main__":
    sys.exit(main())
