"""Reference writer of chess token batches: what a chess feed must deliver, in plain Python.

It turns rows of games and of searched positions into the samples that a feed of tokens carries:
slowly, one rule after the other, with python-chess for the positions and with Python's and NumPy's
own generators for the draws. It shares nothing with the C++ stages but the rules.

    files = parquet_files("games")
    for sample in pretrain_samples(files, draws=Draws(1, 1), length=256, skip_board_prob=0.2):
        sample["input_ids"]                     # int64 [256]

A file is a list of rows, a row a dict of column name to value; a value that is null, or a NaN, or
whose column only other rows have, is missing. Times and places of errors follow the rules too: an
error in a game ends its file, and the draws made before it stay made.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import chess
import numpy as np
from numpy.typing import NDArray

Row = Mapping[str, Any]
Sample = dict[str, NDArray[Any]]
# What a directory holds: name of a file to its rows, or to where they are read from.
Files = Mapping[str, Sequence[Row] | Path]

IGNORE = -100
MOVE_COUNT = 1924

# Tensors of a game's sample: name to type; each has the shape [length].
PRETRAIN_TENSORS: dict[str, type] = {
    "input_ids": np.int64,
    "board_target_ids": np.int64,
    "move_target_ids": np.int64,
    "move_mask": np.bool_,
    "wl_positions": np.bool_,
    "d_positions": np.bool_,
    "wl_targets": np.float32,
    "d_targets": np.float32,
    "wdl_valid": np.bool_,
    "block_id": np.int64,
}

# Tensors of fine-tuning, in order; those in _SCALARS have the shape [].
FINETUNE_TENSORS: dict[str, type] = {
    "input_ids": np.int64,
    "board_target_ids": np.int64,
    "move_target_ids": np.int64,
    "move_mask": np.bool_,
    "thinking_move_mask": np.bool_,
    "wl_positions": np.bool_,
    "d_positions": np.bool_,
    "wl_targets": np.float32,
    "d_targets": np.float32,
    "wdl_valid": np.bool_,
    "block_id": np.int64,
    "first_is_not_best": np.bool_,
    "continue_var_mask": np.bool_,
    "new_variation_mask": np.bool_,
    "variation_epoch": np.int64,
}
_SCALARS = ("first_is_not_best", "variation_epoch")


# --- Vocabulary ---------------------------------------------------------------------------------


def _move_tokens() -> list[str]:
    """List the 1924 moves: queen lines and knight jumps, then promotions without the knight's."""
    moves = []
    for start in chess.SQUARES:
        for end in chess.SQUARES:
            files = abs(chess.square_file(start) - chess.square_file(end))
            ranks = abs(chess.square_rank(start) - chess.square_rank(end))
            line = files == 0 or ranks == 0 or files == ranks
            if start != end and (line or {files, ranks} == {1, 2}):
                moves.append(chess.square_name(start) + chess.square_name(end))
    for start_rank, end_rank in ((7, 8), (2, 1)):
        for start_file in range(8):
            for end_file in range(max(0, start_file - 1), min(7, start_file + 1) + 1):
                for piece in "qrb":
                    start_name = f"{chess.FILE_NAMES[start_file]}{start_rank}"
                    moves.append(f"{start_name}{chess.FILE_NAMES[end_file]}{end_rank}{piece}")
    return moves


_PIECES = ("king", "queen", "rook", "bishop", "knight", "pawn")
_PIECE_TOKENS = [f"{color}_{piece}" for color in ("white", "black") for piece in _PIECES]
_MARKS_OF_BOARDS = ["start_pos", "end_pos", "white_to_move", "black_to_move", "empty"]
_CASTLING_TOKENS = (
    "K Q k q KQ Kk Kq Qk Qq kq KQk KQq Kkq Qkq KQkq no_castling_rights".split()  # fmt: skip
)
_THINKING_TARGETS = ["end_var", "continue_var", "new_variation", "generic_move"]

TOKENS: list[str] = [
    *_move_tokens(),
    *_PIECE_TOKENS,
    *_MARKS_OF_BOARDS,
    *("pad", "bos", "eos", "wl_value", "d_value", "start_think", "end_think"),
    *_CASTLING_TOKENS,
    *_THINKING_TARGETS,
]
ID_OF: dict[str, int] = {token: number for number, token in enumerate(TOKENS)}
assert len(TOKENS) == len(ID_OF) == 1968

# Tokens of the head that predicts boards; the last two stand the other way round than in TOKENS.
BOARD_TOKENS: list[str] = [
    *_PIECE_TOKENS,
    *_MARKS_OF_BOARDS,
    *("wl_value", "d_value"),
    *_CASTLING_TOKENS,
    *_THINKING_TARGETS,
    *("end_think", "start_think"),
]
BOARD_ID_OF: dict[str, int] = {token: number for number, token in enumerate(BOARD_TOKENS)}
assert len(BOARD_TOKENS) == 41

PAD = ID_OF["pad"]
GENERIC_MOVE = BOARD_ID_OF["generic_move"]

# Standard notation of castling to king takes rook. Whatever moves from e1 to g1 becomes e1h1.
_CASTLING_MOVES = {"e1g1": "e1h1", "e1c1": "e1a1", "e8g8": "e8h8", "e8c8": "e8a8"}


def move_id(move: Any) -> int:
    """Number a move for the head that predicts moves.

    Raises:
        KeyError: It is missing, no token, or a token that is not a move.
    """
    number = ID_OF[move]
    if number >= MOVE_COUNT:
        raise KeyError(move)
    return number


# --- Positions ----------------------------------------------------------------------------------


def fen_tokens(fen: str | None) -> list[int]:
    """Write a position as 68 tokens: start, a1 to h8, end, castling rights, side to move.

    Args:
        fen: None is an empty board without rights, white to move.
    Raises:
        ValueError: python-chess refuses it.
    """
    board = chess.Board(fen)
    tokens = ["start_pos"]
    for square in chess.SQUARES:
        piece = board.piece_at(square)
        if piece is None:
            tokens.append("empty")
        else:
            color = "white" if piece.color == chess.WHITE else "black"
            tokens.append(f"{color}_{chess.piece_name(piece.piece_type)}")
    tokens.append("end_pos")
    rights = ""
    for letter, side, has_right in (
        ("K", chess.WHITE, board.has_kingside_castling_rights),
        ("Q", chess.WHITE, board.has_queenside_castling_rights),
        ("k", chess.BLACK, board.has_kingside_castling_rights),
        ("q", chess.BLACK, board.has_queenside_castling_rights),
    ):
        if has_right(side):
            rights += letter
    tokens.append(rights or "no_castling_rights")
    tokens.append("white_to_move" if board.turn == chess.WHITE else "black_to_move")
    return [ID_OF[token] for token in tokens]


# --- Rows ---------------------------------------------------------------------------------------


def is_missing(value: Any) -> bool:
    """Tell whether a value is null or a NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def or_zero(value: Any) -> float:
    """Give a number, 0.0 for a missing one."""
    return 0.0 if is_missing(value) else float(value)


def complete_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Give each row every column that some row of the file has, as a table would."""
    columns = dict.fromkeys(column for row in rows for column in row)
    return [{column: row.get(column) for column in columns} for row in rows]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a Parquet file as rows, in file order; NaN stays NaN, null is None."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        rows: list[dict[str, Any]] = file.read().to_pylist()
    return rows


def parquet_files(directory: str | Path) -> dict[str, Path]:
    """List ``*.parquet`` of a directory, hidden ones left out: full path to path, sorted."""
    paths = (path for path in Path(directory).glob("*.parquet") if not path.name.startswith("."))
    return {str(path): path for path in sorted(paths, key=str)}


def game_ids(rows: Sequence[Row]) -> list[Any]:
    """List the games of a file in order of their first row; rows without a game are left out.

    Raises:
        KeyError: There is no column game_id.
    """
    return list(dict.fromkeys(row["game_id"] for row in rows if not is_missing(row["game_id"])))


def game_rows(rows: Sequence[Row], game_id: Any) -> list[Row]:
    """Collect a game's rows, sorted by ply, those without a ply last; ties stay in file order.

    Raises:
        KeyError: There is no column ply.
    """
    chosen = [row for row in rows if row["game_id"] == game_id]
    return sorted(chosen, key=lambda row: (is_missing(row["ply"]), or_zero(row["ply"])))


# --- A game as tokens ---------------------------------------------------------------------------


@dataclass
class MoveRecord:
    """A move that is to be predicted: where its token stands, and the wanted move."""

    position: int
    wanted: Any


@dataclass
class ValueRecord:
    """A pair of values: where its tokens stand, and what they say."""

    wl_position: int
    d_position: int
    wl: float
    d: float
    valid: bool


@dataclass
class TokenSequence:
    """Tokens with what is known of them; positions count from its first token.

    Attributes:
        ids: Full ids.
        moves, values: Records in the order of the tokens.
        blocks: Boards, [start, end); those whose ply has no move are not listed.
    """

    ids: list[int] = field(default_factory=list)
    moves: list[MoveRecord] = field(default_factory=list)
    values: list[ValueRecord] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)


def game_tokens(rows: Sequence[Row], includes_board: Callable[[int], bool]) -> TokenSequence:
    """Write a whole game as tokens.

    Args:
        rows: Of one game, sorted.
        includes_board: Asked once for each row in turn, row 0 included.
    Raises:
        ValueError: The FEN of a board that is included is bad. Later rows have not been asked for.
        KeyError: A column is missing, or a move is no token. Moves are looked up last.
    """
    sequence = TokenSequence()
    tokens: list[int | str] = []
    for number, row in enumerate(rows):
        included = includes_board(number)
        start = len(tokens)
        if included:
            tokens.extend(fen_tokens(row["fen"]))
        played: Any = row.get("played_move")
        if is_missing(played) or played == "":
            continue
        position = len(tokens)
        tokens.append(played)
        if included:
            sequence.blocks.append((start, position))
        tokens.extend(["wl_value", "d_value"])
        win, draw, loss = row["win"], row["draw"], row["loss"]
        sequence.moves.append(MoveRecord(position, row["best_move"]))
        sequence.values.append(
            ValueRecord(
                position + 1,
                position + 2,
                or_zero(win) - or_zero(loss),
                or_zero(draw),
                not (is_missing(win) or is_missing(draw) or is_missing(loss)),
            )
        )
    sequence.ids = [ID_OF[token] if isinstance(token, str) else token for token in tokens]
    return sequence


def start_candidates(sequence: TokenSequence) -> list[int]:
    """List where a sample of a game may begin: at 0 and after each ply but the last."""
    return [0] + [value.d_position + 1 for value in sequence.values[:-1]]


def cut(sequence: TokenSequence, start: int, length: int) -> TokenSequence:
    """Drop the first ``start`` tokens, keep ``length`` of the rest, and the records to them."""
    ids = sequence.ids[start:][:length]
    values = [
        ValueRecord(v.wl_position - start, v.d_position - start, v.wl, v.d, v.valid)
        for v in sequence.values
        if v.d_position >= start and v.d_position - start < length
    ]
    # A ply whose values do not fit has no move to predict either.
    kept = {value.wl_position - 1 for value in values}
    moves = [
        MoveRecord(move.position - start, move.wanted)
        for move in sequence.moves
        if move.position >= start and move.position - start in kept
    ]
    blocks = [
        (begin - start, min(end - start, len(ids)))
        for begin, end in sequence.blocks
        if end > start and begin - start < len(ids)
    ]
    return TokenSequence(ids, moves, values, blocks)


def _tensors(sequence: TokenSequence, length: int, types: Mapping[str, type]) -> Sample:
    """Make a sample's arrays with what games and variations have in common filled in."""
    sample: Sample = {
        name: np.zeros([] if name in _SCALARS else [length], dtype) for name, dtype in types.items()
    }
    ids = sequence.ids
    sample["input_ids"][:] = PAD
    sample["input_ids"][: len(ids)] = ids
    sample["board_target_ids"][:] = IGNORE
    sample["move_target_ids"][:] = IGNORE
    for position, following in enumerate(ids[1:]):
        target = BOARD_ID_OF.get(TOKENS[following], IGNORE)
        sample["board_target_ids"][position] = target
    sample["block_id"][:] = np.arange(length) + len(sequence.blocks)
    for number, (start, end) in enumerate(sequence.blocks):
        sample["block_id"][start:end] = number
    return sample


def _put_values(sample: Sample, value: ValueRecord) -> None:
    sample["wl_positions"][value.wl_position] = True
    sample["wl_targets"][value.wl_position] = np.float32(value.wl)
    sample["wdl_valid"][value.wl_position] = value.valid
    sample["d_positions"][value.d_position] = True
    sample["d_targets"][value.d_position] = np.float32(value.d)
    sample["wdl_valid"][value.d_position] = value.valid


def game_sample(
    sequence: TokenSequence, start: int, length: int, *, overwrite_values: bool = True
) -> Sample:
    """Cut a sample out of a game.

    Args:
        start: One of start_candidates().
        length: Tokens in the sample; padded if the game has fewer.
        overwrite_values: A ply without a board writes its values to the position before its move
            even if that is the d_value of the ply before, whose own values are lost there.
    Raises:
        KeyError: A best_move that is kept is missing or not a move.
    """
    window = cut(sequence, start, length)
    sample = _tensors(window, length, PRETRAIN_TENSORS)
    for move in window.moves:
        number = move_id(move.wanted)
        before = move.position - 1
        if before >= 0:
            sample["board_target_ids"][before] = GENERIC_MOVE
            sample["move_target_ids"][before] = number
            sample["move_mask"][before] = True
    for value in window.values:
        _put_values(sample, value)
        before = value.wl_position - 2
        if before < 0 or (not overwrite_values and sample["d_positions"][before]):
            continue
        sample["wl_targets"][before] = np.float32(value.wl)
        sample["d_targets"][before] = np.float32(value.d)
        sample["wdl_valid"][before] = value.valid
    return sample


# --- A searched position as tokens --------------------------------------------------------------


class VariationDraws(Protocol):
    """What the conversion of a searched position draws."""

    def gumbel(self, count: int) -> Sequence[float]:
        """Draw Gumbel(0, 1) numbers."""

    def depth(self, highest: int) -> int:
        """Draw from 1..highest."""


@dataclass
class VariationSequence(TokenSequence):
    """A searched position as tokens; ``values`` ends with those of the root.

    Attributes:
        thinking: Moves that are considered: the position before each, and the move.
        final: The position before the final move and that move; None if there is none.
        first_is_not_best: Whether the first variation's move differs from the final one.
        ranking: Numbers of the variations, from 1 by visits, in the order that was drawn.
    """

    thinking: list[MoveRecord] = field(default_factory=list)
    final: MoveRecord | None = None
    first_is_not_best: bool = False
    ranking: list[int] = field(default_factory=list)


def king_takes_rook(move: Any) -> Any:
    """Rename castling from standard notation; anything else stays as it is."""
    return _CASTLING_MOVES.get(move, move)


def variation_tokens(
    row: Row,
    draws: VariationDraws,
    max_variations: int = 3,
    max_depth: int = 5,
    tau_base: float = 0.3,
    tau_alpha: float = 1.0,
) -> VariationSequence:
    """Write a searched position as tokens: root, variations, final move, root's values.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: The row is unusable; draws made until then
            stay made.
    """
    variations = json.loads(row["variations"])
    # A null visit_count cannot be negated, which is an error even if there is nothing to sort.
    variations = sorted(variations, key=lambda variation: -variation.get("visit_count", 0))
    variations = variations[:max_variations]
    win, draw, loss = or_zero(row["win"]), or_zero(row["draw"]), or_zero(row["loss"])
    ranking = list(range(1, len(variations) + 1))
    if len(variations) > 1:
        variance = (win + loss) - (win - loss) ** 2
        tau = tau_base * (1 + tau_alpha * variance)
        noise = draws.gumbel(len(variations))
        scores = [
            variation.get("visit_fraction", 0) / tau + float(amount)
            for variation, amount in zip(variations, noise)
        ]
        ranking.sort(key=lambda number: -scores[number - 1])
        variations = [variations[number - 1] for number in ranking]

    out = VariationSequence(ranking=ranking)
    out.ids.extend(fen_tokens(row["fen"]))
    out.blocks.append((0, len(out.ids)))
    out.ids.append(ID_OF["start_think"])
    for variation in variations:
        nodes = variation.get("nodes", [])
        depth_max = min(max_depth, len(nodes))
        if depth_max == 0:
            continue
        depth = draws.depth(depth_max)
        move = king_takes_rook(variation["root_move"])
        if move not in ID_OF:
            continue
        out.thinking.append(MoveRecord(len(out.ids) - 1, move))
        out.ids.append(ID_OF[move])
        for number, node in enumerate(nodes[:depth]):
            node_win, node_draw, node_loss = node.get("wdl", [0.0, 0.0, 0.0])
            _append_values(out, node_win - node_loss, 0.0 + node_draw, True)
            start = len(out.ids)
            out.ids.extend(fen_tokens(node["fen"]))
            out.blocks.append((start, len(out.ids)))
            if number == depth - 1:
                break
            move = king_takes_rook(node.get("move"))
            if move in ID_OF:
                out.thinking.append(MoveRecord(len(out.ids) - 1, move))
                out.ids.append(ID_OF[move])
        out.ids.append(ID_OF["end_var"])
    out.ids.append(ID_OF["end_think"])

    final = king_takes_rook(row["mcts_action"])
    if final not in ID_OF:
        final = king_takes_rook(row["played_move"] if "played_move" in row else row["best_move"])
        if is_missing(final) or final == "":
            final = None
    if final in ID_OF:
        out.final = MoveRecord(len(out.ids) - 1, final)
        out.ids.append(ID_OF[final])
    valid = not any(is_missing(row[name]) for name in ("win", "draw", "loss"))
    _append_values(out, win - loss, draw, valid)
    if variations and final is not None:
        out.first_is_not_best = king_takes_rook(variations[0]["root_move"]) != final
    return out


def _append_values(out: TokenSequence, wl: float, d: float, valid: bool) -> None:
    position = len(out.ids)
    out.ids.extend([ID_OF["wl_value"], ID_OF["d_value"]])
    out.values.append(ValueRecord(position, position + 1, wl, d, valid))


def variation_sample(sequence: VariationSequence, length: int) -> Sample:
    """Make the sample of a searched position that has a final move and fits.

    Raises:
        KeyError: One of its moves is a token but not a move.
    """
    assert sequence.final is not None and len(sequence.ids) <= length
    sample = _tensors(sequence, length, FINETUNE_TENSORS)
    for move in sequence.thinking:
        sample["move_target_ids"][move.position] = move_id(move.wanted)
        sample["thinking_move_mask"][move.position] = True
        before = TOKENS[sequence.ids[move.position]]
        if before == "start_think":
            sample["board_target_ids"][move.position] = GENERIC_MOVE
        elif before == "end_var":
            sample["board_target_ids"][move.position] = BOARD_ID_OF["new_variation"]
            sample["new_variation_mask"][move.position] = True
        else:
            sample["board_target_ids"][move.position] = BOARD_ID_OF["continue_var"]
            sample["continue_var_mask"][move.position] = True
    end = sequence.final.position
    sample["move_target_ids"][end] = move_id(sequence.final.wanted)
    sample["move_mask"][end] = True
    sample["board_target_ids"][end] = GENERIC_MOVE
    for value in sequence.values:
        _put_values(sample, value)
    root = sequence.values[-1]
    sample["wl_targets"][end] = np.float32(root.wl)
    sample["d_targets"][end] = np.float32(root.d)
    sample["wdl_valid"][end] = root.valid
    sample["first_is_not_best"][()] = sequence.first_is_not_best
    return sample


@dataclass(frozen=True)
class Search:
    """Parameters of searched positions."""

    max_variations: int = 3
    max_depth: int = 5
    tau_base: float = 0.3
    tau_alpha: float = 1.0


def fitting_variation(
    row: Row, draws: VariationDraws, length: int, search: Search, log: list[str] | None = None
) -> VariationSequence | None:
    """Convert a searched position, with fewer and shorter variations until it fits.

    Returns:
        None if the row is to be skipped: no variations, unusable, too long, or no final move.
    Raises:
        ValueError, KeyError, TypeError, AttributeError: The file is to be ended: the JSON is
            malformed, or the row has become unusable in a later attempt.
    """
    text: Any = row.get("variations")
    if is_missing(text) or not json.loads(text):
        return None
    tau = (search.tau_base, search.tau_alpha)
    try:
        sequence = variation_tokens(row, draws, search.max_variations, search.max_depth, *tau)
    except Exception as error:
        if log is not None:
            log.append(f"row skipped: {error!r}")
        return None
    for variations in range(search.max_variations - 1, 0, -1):
        for depth in range(search.max_depth, 0, -1):
            if len(sequence.ids) > length:
                sequence = variation_tokens(row, draws, variations, depth, *tau)
    if len(sequence.ids) > length or sequence.final is None:
        return None
    return sequence


# --- Streams ------------------------------------------------------------------------------------


class Draws:
    """The two generators of a stream, as Python and NumPy have them."""

    def __init__(self, python_seed: int, numpy_seed: int) -> None:
        self.python = random.Random(python_seed)
        self.numpy = np.random.RandomState(numpy_seed)

    def gumbel(self, count: int) -> Sequence[float]:
        return [float(number) for number in self.numpy.gumbel(size=count)]

    def depth(self, highest: int) -> int:
        return self.python.randint(1, highest)


def epoch_draws(seed: int, epoch: int = 0, worker: int = 0, rank: int = 0) -> Draws:
    """Make the generators of one worker's epoch."""
    mixed = seed + 100003 * epoch + 997 * worker + 7919 * rank
    return Draws(mixed, mixed % 2**32)


def shard(names: Sequence[str], worker: int, num_workers: int) -> list[str]:
    """Give a worker's part of the sorted names; trailing workers may have none."""
    part = -(-len(names) // num_workers)
    return list(names[worker * part : min((worker + 1) * part, len(names))])


@dataclass(frozen=True)
class Emitted:
    """A sample and where it comes from.

    Attributes:
        file, game_id: Of the row or rows.
        start: First token of the sample in the game; 0 for a searched position.
        total: Tokens of the whole game or searched position.
    """

    file: str
    game_id: Any
    start: int
    total: int
    sample: Sample


@dataclass(frozen=True)
class Part:
    """Which files a stream reads, and in which order."""

    worker: int = 0
    num_workers: int = 1
    rank: int = 0
    world: int = 1
    shuffle_files: bool = True

    def names(self, files: Files, draws: Draws) -> list[str]:
        names = shard(sorted(files)[self.rank :: self.world], self.worker, self.num_workers)
        if self.shuffle_files:
            draws.python.shuffle(names)
        return names


def _open(rows: Sequence[Row] | Path) -> list[dict[str, Any]]:
    return complete_rows(read_rows(rows) if isinstance(rows, Path) else rows)


def emitted_games(
    files: Files,
    draws: Draws,
    length: int,
    *,
    skip_board_prob: float = 0.0,
    shuffle_games: bool = True,
    start_first: bool = False,
    overwrite_values: bool = True,
    part: Part = Part(),
    log: list[str] | None = None,
) -> Iterator[Emitted]:
    """Yield one sample of each game; an error ends its file, what it had yielded stays.

    Args:
        start_first: Every sample begins at token 0, and no start is drawn.
        log: Gets one line for each file that an error has ended.
    """

    def includes_board(number: int) -> bool:
        return number == 0 or draws.python.random() > skip_board_prob

    for name in part.names(files, draws):
        try:
            rows = _open(files[name])
            games = game_ids(rows)
            if shuffle_games:
                draws.numpy.shuffle(games)
            for game_id in games:
                sequence = game_tokens(game_rows(rows, game_id), includes_board)
                candidates = start_candidates(sequence)
                start = 0 if start_first else draws.python.choice(candidates)
                sample = game_sample(sequence, start, length, overwrite_values=overwrite_values)
                yield Emitted(name, game_id, start, len(sequence.ids), sample)
        except Exception as error:
            if log is not None:
                log.append(f"{name}: {error!r}")


def emitted_variations(
    files: Files,
    draws: Draws,
    length: int,
    *,
    search: Search = Search(),
    shuffle_rows: bool = True,
    part: Part = Part(),
    log: list[str] | None = None,
) -> Iterator[Emitted]:
    """Yield the samples of searched positions; an error ends its file unless it skips a row."""
    for name in part.names(files, draws):
        try:
            rows = _open(files[name])
            order = list(range(len(rows)))
            if shuffle_rows:
                draws.python.shuffle(order)
            for number in order:
                sequence = fitting_variation(rows[number], draws, length, search, log)
                if sequence is not None:
                    sample = variation_sample(sequence, length)
                    game_id = rows[number].get("game_id")
                    yield Emitted(name, game_id, 0, len(sequence.ids), sample)
        except Exception as error:
            if log is not None:
                log.append(f"{name}: {error!r}")


def emitted_mixed(
    game_files: Files,
    variation_files: Files,
    draws: Draws,
    length: int,
    *,
    variation_ratio: float = 0.2,
    skip_board_prob: float = 0.0,
    search: Search = Search(),
    shuffle_games: bool = True,
    shuffle_rows: bool = True,
    overwrite_values: bool = True,
    part: Part = Part(),
    log: list[str] | None = None,
) -> Iterator[Emitted]:
    """Yield fine-tuning samples: each game once, searched positions among them again and again.

    The stream ends with its games, or with neither games nor searched positions.
    """

    def new_variations() -> Iterator[Emitted]:
        return emitted_variations(
            variation_files,
            draws,
            length,
            search=search,
            shuffle_rows=shuffle_rows,
            part=part,
            log=log,
        )

    games = emitted_games(
        game_files,
        draws,
        length,
        skip_board_prob=skip_board_prob,
        shuffle_games=shuffle_games,
        overwrite_values=overwrite_values,
        part=part,
        log=log,
    )
    variations = new_variations()
    variation_epoch = 0
    while True:
        emitted = None
        if draws.python.random() < variation_ratio:
            emitted = next(variations, None)
            if emitted is None:
                variation_epoch += 1
                variations = new_variations()
                emitted = next(variations, None)
        if emitted is None:
            emitted = next(games, None)
        if emitted is None:
            return
        sample: Sample = {}
        for name, dtype in FINETUNE_TENSORS.items():
            shape = [] if name in _SCALARS else [length]
            # What a game's sample lacks is false there.
            sample[name] = emitted.sample.get(name, np.zeros(shape, dtype))
        sample["variation_epoch"] = np.array(variation_epoch, np.int64)
        yield Emitted(emitted.file, emitted.game_id, emitted.start, emitted.total, sample)


def pretrain_samples(files: Files, draws: Draws, length: int, **options: Any) -> Iterator[Sample]:
    """Yield the samples of emitted_games()."""
    return (emitted.sample for emitted in emitted_games(files, draws, length, **options))


def finetune_samples(
    game_files: Files, variation_files: Files, draws: Draws, length: int, **options: Any
) -> Iterator[Sample]:
    """Yield the samples of emitted_mixed()."""
    mixed = emitted_mixed(game_files, variation_files, draws, length, **options)
    return (emitted.sample for emitted in mixed)


# --- Batches ------------------------------------------------------------------------------------


def _batches_of(samples: Iterator[Sample], batch_size: int) -> Iterator[Sample]:
    rows: list[Sample] = []
    for sample in samples:
        rows.append(sample)
        if len(rows) == batch_size:
            yield stack(rows)
            rows = []
    if rows:
        yield stack(rows)


def stack(samples: Sequence[Sample]) -> Sample:
    """Stack samples: name to array [samples, ...]."""
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def batches(workers: Iterable[Iterator[Sample]], batch_size: int) -> Iterator[Sample]:
    """Yield whole batches of the workers in turn; the last one of each may be short."""
    running = [_batches_of(samples, batch_size) for samples in workers]
    while running:
        going_on = []
        for worker in running:
            batch = next(worker, None)
            if batch is not None:
                going_on.append(worker)
                yield batch
        running = going_on


def pretrain_batches(
    files: Files,
    length: int,
    batch_size: int,
    *,
    seed: int,
    epoch: int = 0,
    num_workers: int = 1,
    rank: int = 0,
    world: int = 1,
    shuffle_files: bool = True,
    **options: Any,
) -> Iterator[Sample]:
    """Yield the batches of one epoch of games; options are those of emitted_games()."""
    return batches(
        [
            pretrain_samples(
                files,
                epoch_draws(seed, epoch, worker, rank),
                length,
                part=Part(worker, num_workers, rank, world, shuffle_files),
                **options,
            )
            for worker in range(num_workers)
        ],
        batch_size,
    )


def finetune_batches(
    game_files: Files,
    variation_files: Files,
    length: int,
    batch_size: int,
    *,
    seed: int,
    epoch: int = 0,
    num_workers: int = 1,
    rank: int = 0,
    world: int = 1,
    shuffle_files: bool = True,
    **options: Any,
) -> Iterator[Sample]:
    """Yield the batches of one epoch of fine-tuning; options are those of emitted_mixed()."""
    return batches(
        [
            finetune_samples(
                game_files,
                variation_files,
                epoch_draws(seed, epoch, worker, rank),
                length,
                part=Part(worker, num_workers, rank, world, shuffle_files),
                **options,
            )
            for worker in range(num_workers)
        ],
        batch_size,
    )
