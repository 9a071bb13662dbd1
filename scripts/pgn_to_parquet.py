#!/usr/bin/env python3
"""Makes a data set of chess games in Parquet from PGN files, for the chess pipelines.

    scripts/pgn_to_parquet.py OUT_DIR games.pgn more.pgn.gz --games-per-file 10000
    scripts/pgn_to_parquet.py OUT_DIR games.pgn --engine stockfish --nodes 20000 --variations 3

Writes OUT_DIR/part-00000.parquet and so on, one row for each position that a move was played from,
with the columns fen, played_move, best_move, win, draw, loss, game_id and ply (from 1). A move is
written as its two squares and a letter for a promotion, castling as king takes rook (e1h1), a
promotion to a knight without a letter (a7a8).

With a UCI engine, from --engine or an installed stockfish, each position is analysed: best_move is
the engine's, and win, draw and loss are what it expects for the side to move. Without an engine
best_move is the played move, and the values are the result of the game, if it has one.

--variations N writes a second data set, by default to OUT_DIR-variations: up to
--positions-per-game positions of a game with the engine's N best lines as variations. An engine has
no visits like those of a tree search; they are derived from the lines:

    weight of line r (from 1)   (win + draw / 2 + 0.01) / r
    visit_fraction              its part of all weights; visit_count is 1000 times that, rounded
    prior                       1 / number of legal moves
    wdl of a node               the line's value, seen by who is to move there

Needs python-chess and pyarrow. Memory does not grow with the size of the input.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import chess
import chess.engine
import chess.pgn
import pyarrow as pa
import pyarrow.parquet

Row = dict[str, Any]

GAME_SCHEMA = pa.schema(
    [
        ("fen", pa.string()),
        ("played_move", pa.string()),
        ("best_move", pa.string()),
        ("win", pa.float64()),
        ("draw", pa.float64()),
        ("loss", pa.float64()),
        ("game_id", pa.string()),
        ("ply", pa.int64()),
    ]
)
VARIATION_SCHEMA = pa.schema(
    [
        *GAME_SCHEMA,
        ("variations", pa.string()),
        ("mcts_action", pa.string()),
        ("mcts_value", pa.string()),
    ]
)

# Where Debian puts it, which the PATH of root leaves out.
_STOCKFISH = "/usr/games/stockfish"

_RESULTS = {"1-0": (1.0, 0.0, 0.0), "1/2-1/2": (0.0, 1.0, 0.0), "0-1": (0.0, 0.0, 1.0)}

_NODES_MAX = 20  # of a variation
_VISITS = 1000  # of a position, to be shared among its variations


class ConversionError(RuntimeError):
    """Why nothing more can be converted; the message says what to do."""


# --- Writing ------------------------------------------------------------------------------------


class PartWriter:
    """Writes rows to files of a number of games each; a file appears when it is complete."""

    def __init__(
        self, directory: Path, schema: pa.Schema, games_per_file: int, rows_per_group: int
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.glob("*.parquet")):
            raise ConversionError(
                f"{directory} already holds Parquet files: name a directory that has none"
            )
        self.directory = directory
        self.file_count = 0
        self.row_count = 0
        self._schema = schema
        self._games_per_file = games_per_file
        self._rows_per_group = rows_per_group
        self._rows: list[Row] = []
        self._games_in_file = 0
        self._writer: pyarrow.parquet.ParquetWriter | None = None

    def add_game(self, rows: Sequence[Row]) -> None:
        """Add the rows of a game, which are never parted among files."""
        if self._games_in_file == self._games_per_file:
            self.close()
        self._games_in_file += 1
        self._rows.extend(rows)
        self.row_count += len(rows)
        while len(self._rows) >= self._rows_per_group:
            self._write(self._rows[: self._rows_per_group])
            del self._rows[: self._rows_per_group]

    def close(self) -> None:
        """Complete the file under way."""
        if self._rows:
            self._write(self._rows)
            self._rows = []
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._unfinished().rename(self.directory / f"part-{self.file_count:05}.parquet")
            self.file_count += 1
        self._games_in_file = 0

    def abandon(self) -> None:
        """Remove the file under way; those that are complete stay."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._unfinished().unlink()

    def _write(self, rows: Sequence[Row]) -> None:
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(self._unfinished(), self._schema)
        self._writer.write_table(pa.Table.from_pylist(list(rows), schema=self._schema))

    def _unfinished(self) -> Path:
        # With a dot in front, so that no loader takes it for a file of the data set.
        return self.directory / f".part-{self.file_count:05}.unfinished"


# --- Positions ----------------------------------------------------------------------------------


def move_token(board: chess.Board, move: chess.Move) -> str:
    """Name a legal move: king takes rook for castling, no suffix for a knight."""
    end = move.to_square
    if board.is_castling(move):
        kingside = chess.square_file(end) > chess.square_file(move.from_square)
        end = chess.square(7 if kingside else 0, chess.square_rank(end))
    promotion = move.promotion if move.promotion != chess.KNIGHT else None
    return chess.Move(move.from_square, end, promotion).uci()


@dataclass(frozen=True)
class Line:
    """A line of play that an engine has found, its value for who is to move before it."""

    moves: list[chess.Move]
    wdl: tuple[float, float, float]


class Analyst:
    """A UCI engine that gives the best lines of positions."""

    def __init__(self, path: str, limit: chess.engine.Limit, options: Mapping[str, str]) -> None:
        self._limit = limit
        self._game: object = None
        try:
            self._engine = chess.engine.SimpleEngine.popen_uci(path, timeout=60)
        except (OSError, chess.engine.EngineError) as error:
            raise ConversionError(f"{path} does not run as a UCI engine: {error}") from error
        known = dict(options)
        if "UCI_ShowWDL" in self._engine.options:
            known["UCI_ShowWDL"] = "true"
        try:
            self._engine.configure(known)
        except chess.engine.EngineError as error:
            self._engine.close()
            raise ConversionError(f"{path}: {error}") from error

    def __enter__(self) -> Analyst:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._engine.close()

    def new_game(self) -> None:
        self._game = object()

    def lines(self, board: chess.Board, count: int) -> list[Line]:
        """Analyse a position that has a legal move.

        Returns:
            At least one line, the best first; fewer than ``count`` if there are fewer moves.
        Raises:
            ConversionError: The engine has died, or answers with less.
        """
        try:
            found = self._engine.analyse(board, self._limit, multipv=count, game=self._game)
        except (chess.engine.EngineError, TimeoutError) as error:
            raise ConversionError(f"the engine failed at {board.fen()}: {error!r}") from error
        lines = []
        for info in found:
            if "wdl" in info:
                wdl = info["wdl"].relative
            elif "score" in info:
                # An engine that knows centipawns alone: as Stockfish would read them.
                wdl = info["score"].wdl(ply=board.ply()).relative
            else:
                continue
            total = wdl.total()
            if info.get("pv"):
                values = (wdl.wins / total, wdl.draws / total, wdl.losses / total)
                lines.append(Line(info["pv"], values))
        if not lines:
            raise ConversionError(f"the engine gave no line at {board.fen()}")
        return lines


def variations_of(board: chess.Board, lines: Sequence[Line]) -> list[Row]:
    """Write lines as variations; visits are made up as the module says."""
    weights = [
        (line.wdl[0] + line.wdl[1] / 2 + 0.01) / rank for rank, line in enumerate(lines, start=1)
    ]
    moves_count = board.legal_moves.count()
    variations = []
    for line, weight in zip(lines, weights):
        fraction = weight / sum(weights)
        visits = max(1, round(_VISITS * fraction))
        variations.append(
            {
                "root_move": line.moves[0].uci(),
                "visit_count": visits,
                "visit_fraction": fraction,
                "prior": 1 / moves_count,
                "nodes": _nodes_of(board, line, visits),
            }
        )
    return sorted(variations, key=lambda variation: -variation["visit_count"])


def _nodes_of(board: chess.Board, line: Line, visits: int) -> list[Row]:
    nodes: list[Row] = []
    after = board.copy(stack=False)
    win, draw, loss = line.wdl
    for number, move in enumerate(line.moves[:_NODES_MAX]):
        after.push(move)
        if after.is_game_over():
            break
        win, loss = loss, win
        node: Row = {"fen": after.fen(), "wdl": [win, draw, loss], "visit_count": visits}
        if number + 1 < len(line.moves):
            node["move"] = line.moves[number + 1].uci()
        nodes.append(node)
    return nodes


# --- Games --------------------------------------------------------------------------------------


def open_pgn(path: Path) -> TextIO:
    """Open a PGN file, which may be gzipped; bytes that are no UTF-8 are replaced."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return open(path, encoding="utf-8-sig", errors="replace")


def games_of(path: Path, skipped: Counter[str]) -> Iterator[chess.pgn.Game]:
    """Yield the games of a file that can be used; the others are counted by reason.

    Raises:
        ConversionError: The file cannot be read.
    """
    try:
        with open_pgn(path) as file:
            while (game := chess.pgn.read_game(file)) is not None:
                if game.errors:
                    skipped["with moves that cannot be read"] += 1
                elif game.board().chess960 or type(game.board()) is not chess.Board:
                    skipped["of another variant"] += 1
                elif not game.board().is_valid():
                    skipped["from an impossible position"] += 1
                elif game.next() is None:
                    skipped["without moves"] += 1
                else:
                    yield game
    except (OSError, EOFError) as error:
        raise ConversionError(f"{path}: {error}") from error


def result_of(game: chess.pgn.Game) -> tuple[float, float, float] | None:
    """Give win, draw and loss of white, None for a game without a result."""
    return _RESULTS.get(game.headers.get("Result", "*"))


@dataclass
class Converter:
    """Turns games into rows.

    Attributes:
        variations: Lines of a sampled position; 0 for no second data set.
    """

    analyst: Analyst | None
    variations: int
    positions_per_game: int
    seed: int

    def rows_of(self, game: chess.pgn.Game, game_id: str) -> tuple[list[Row], list[Row]]:
        """Give the rows of a game, and those of its positions with variations."""
        moves = list(game.mainline_moves())
        result = result_of(game)
        sampled: set[int] = set()
        if self.variations:
            count = min(self.positions_per_game, len(moves))
            sampled = set(random.Random(f"{self.seed}/{game_id}").sample(range(len(moves)), count))
        if self.analyst is not None:
            self.analyst.new_game()
        board = game.board()
        rows: list[Row] = []
        searched: list[Row] = []
        for number, move in enumerate(moves):
            played = move_token(board, move)
            best = played
            values: tuple[float | None, ...] = (None, None, None)
            lines: list[Line] = []
            if self.analyst is not None:
                wanted = self.variations if number in sampled else 1
                lines = self.analyst.lines(board, wanted)
                best = move_token(board, lines[0].moves[0])
                values = lines[0].wdl
            elif result is not None:
                values = result if board.turn == chess.WHITE else result[::-1]
            row: Row = dict(zip(("win", "draw", "loss"), values))
            row |= {"fen": board.fen(), "played_move": played, "best_move": best}
            row |= {"game_id": game_id, "ply": number + 1}
            rows.append(row)
            if number in sampled:
                searched.append(
                    row
                    | {
                        "variations": json.dumps(variations_of(board, lines)),
                        "mcts_action": lines[0].moves[0].uci(),
                        "mcts_value": json.dumps(values),
                    }
                )
            board.push(move)
        return rows, searched


def find_engine(wanted: str | None) -> str | None:
    """Find the engine: the one asked for, or a stockfish that is installed.

    Raises:
        ConversionError: The one asked for is not there.
    """
    if wanted is None:
        return shutil.which("stockfish") or shutil.which(_STOCKFISH)
    found = shutil.which(wanted)
    if found is None:
        raise ConversionError(f"--engine {wanted}: there is no such program")
    return found


def convert(options: argparse.Namespace) -> dict[str, Any]:
    """Convert all files.

    Returns:
        games, positions, searched (positions), files: written; skipped: games, by reason.
    Raises:
        ConversionError: It cannot go on; complete files stay.
    """
    missing = [str(path) for path in options.pgn if not path.is_file()]
    if missing:
        raise ConversionError(f"{', '.join(missing)}: no such file")
    skipped: Counter[str] = Counter()
    game_count = 0
    engine = None if options.no_engine else find_engine(options.engine)
    if engine is None:
        if options.variations:
            raise ConversionError("--variations needs an engine: install stockfish or name another")
        if not options.no_engine:
            print(
                "pgn_to_parquet: no engine found: best_move is the played move, and win, draw and "
                "loss are the result of the game",
                file=sys.stderr,
            )
    writers = [PartWriter(options.out_dir, GAME_SCHEMA, options.games_per_file, 1 << 16)]
    if options.variations:
        directory = options.variations_dir
        if directory is None:
            directory = options.out_dir.with_name(options.out_dir.name + "-variations")
        writers.append(PartWriter(directory, VARIATION_SCHEMA, options.games_per_file, 128))
    with contextlib.ExitStack() as at_end:
        for writer in writers:
            at_end.callback(writer.abandon)
        analyst = None
        if engine is not None:
            time_s = None if options.time_ms is None else options.time_ms / 1000
            limit = chess.engine.Limit(nodes=options.nodes, time=time_s)
            analyst = at_end.enter_context(Analyst(engine, limit, dict(options.engine_option)))
        converter = Converter(analyst, options.variations, options.positions_per_game, options.seed)
        for path in options.pgn:
            for game in games_of(path, skipped):
                game_id = f"{path.name.split('.')[0]}_{game_count}"
                for writer, rows in zip(writers, converter.rows_of(game, game_id)):
                    writer.add_game(rows)
                game_count += 1
        for writer in writers:
            writer.close()
    return {
        "games": game_count,
        "positions": writers[0].row_count,
        "searched": sum(writer.row_count for writer in writers[1:]),
        "files": sum(writer.file_count for writer in writers),
        "skipped": dict(skipped),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: what was done goes to stderr."""
    parser = argparse.ArgumentParser(description="Make chess data in Parquet from PGN files.")
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path)
    parser.add_argument("pgn", metavar="PGN", type=Path, nargs="+", help=".pgn or .pgn.gz")
    parser.add_argument("--games-per-file", type=int, default=10_000, help="games (10000)")
    parser.add_argument("--engine", help="UCI engine (stockfish, if it is installed)")
    parser.add_argument(
        "--no-engine", action="store_true", help="use no engine, even if one is installed"
    )
    parser.add_argument(
        "--engine-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=lambda text: tuple(text.split("=", 1)),
        help="option of the engine, such as Threads=2",
    )
    parser.add_argument("--nodes", type=int, help="nodes a position (20000)")
    parser.add_argument("--time-ms", type=float, help="milliseconds a position (no limit)")
    parser.add_argument("--variations", type=int, default=0, help="lines a position (0)")
    parser.add_argument("--variations-dir", type=Path, help="where (OUT_DIR-variations)")
    parser.add_argument("--positions-per-game", type=int, default=8, help="with variations (8)")
    parser.add_argument("--seed", type=int, default=0, help="chooses these positions (0)")
    options = parser.parse_args(arguments)
    if options.games_per_file < 1 or options.variations < 0 or options.positions_per_game < 1:
        parser.error(
            "--games-per-file and --positions-per-game must be at least 1, --variations at least 0"
        )
    if any(len(option) != 2 for option in options.engine_option):
        parser.error("--engine-option must be NAME=VALUE")
    if options.nodes is None and options.time_ms is None:
        options.nodes = 20_000
    try:
        done = convert(options)
    except ConversionError as error:
        print(f"pgn_to_parquet: {error}", file=sys.stderr)
        return 1
    skipped = "".join(f"; skipped {count} {why}" for why, count in sorted(done["skipped"].items()))
    searched = f", {done['searched']} with variations" if options.variations else ""
    print(
        f"pgn_to_parquet: {done['games']} games, {done['positions']} positions{searched}, "
        f"{done['files']} files{skipped}",
        file=sys.stderr,
    )
    if not done["games"]:
        print("pgn_to_parquet: no game could be used: are these PGN files?", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
