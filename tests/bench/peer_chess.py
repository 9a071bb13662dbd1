"""The peer of the chess benchmark: the same batches from pandas, python-chess and a DataLoader.

    python tests/bench/peer_chess.py pretrain --games DIR --length 256 --samples 2000
    python tests/bench/peer_chess.py finetune --games DIR --variations DIR --length 1024

This is how such a loader is usually written: an IterableDataset reads a file with pandas, groups it
by game, goes through the rows of a game, has python-chess read each position, and makes the tensors
of one sample; the DataLoader collates. Its samples are those of
tests/support/oracles/chess_reference.py for the same seed. It is neither slowed down nor tuned:
only the columns that it needs are read, and a game is written out as a whole before a sample is cut
out of it.

Prints one JSON object: see measure().
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.oracles.chess_reference import BOARD_ID_OF, ID_OF, TOKENS  # noqa: E402

Sample = dict[str, torch.Tensor]

GAME_COLUMNS = ["game_id", "ply", "fen", "played_move", "best_move", "win", "draw", "loss"]
VARIATION_COLUMNS = [*GAME_COLUMNS, "variations", "mcts_action"]

PAD = ID_OF["pad"]
IGNORE = -100
# Full id to board id.
BOARD_TARGETS = [BOARD_ID_OF.get(token, IGNORE) for token in TOKENS]
PIECES = {
    piece.symbol(): ID_OF[f"{chess.COLOR_NAMES[piece.color]}_{chess.piece_name(piece.piece_type)}"]
    for piece in (chess.Piece(kind, color) for kind in chess.PIECE_TYPES for color in chess.COLORS)
}
CASTLING = {"e1g1": "e1h1", "e1c1": "e1a1", "e8g8": "e8h8", "e8c8": "e8a8"}


def board_tokens(fen: Any) -> list[int]:
    board = chess.Board(fen if isinstance(fen, str) else None)
    tokens = [ID_OF["start_pos"]]
    for square in chess.SQUARES:
        piece = board.piece_at(square)
        tokens.append(PIECES[piece.symbol()] if piece else ID_OF["empty"])
    tokens.append(ID_OF["end_pos"])
    castling = ""
    if board.has_kingside_castling_rights(chess.WHITE):
        castling += "K"
    if board.has_queenside_castling_rights(chess.WHITE):
        castling += "Q"
    if board.has_kingside_castling_rights(chess.BLACK):
        castling += "k"
    if board.has_queenside_castling_rights(chess.BLACK):
        castling += "q"
    tokens.append(ID_OF[castling or "no_castling_rights"])
    tokens.append(ID_OF["white_to_move" if board.turn else "black_to_move"])
    return tokens


def move_target(move: Any) -> int:
    number = ID_OF[move]
    if number >= 1924:
        raise ValueError(f"{move} is not a move")
    return number


def empty_sample(tokens: Sequence[int], blocks: Sequence[tuple[int, int]], length: int) -> Sample:
    """Make the tensors of a sample with tokens, board targets and blocks filled in."""
    sample = {
        "input_ids": torch.full((length,), PAD, dtype=torch.long),
        "board_target_ids": torch.full((length,), IGNORE, dtype=torch.long),
        "move_target_ids": torch.full((length,), IGNORE, dtype=torch.long),
        "move_mask": torch.zeros(length, dtype=torch.bool),
        "wl_positions": torch.zeros(length, dtype=torch.bool),
        "d_positions": torch.zeros(length, dtype=torch.bool),
        "wl_targets": torch.zeros(length, dtype=torch.float32),
        "d_targets": torch.zeros(length, dtype=torch.float32),
        "wdl_valid": torch.zeros(length, dtype=torch.bool),
        "block_id": torch.arange(length, dtype=torch.long) + len(blocks),
    }
    sample["input_ids"][: len(tokens)] = torch.tensor(tokens, dtype=torch.long)
    for i in range(len(tokens) - 1):
        sample["board_target_ids"][i] = BOARD_TARGETS[tokens[i + 1]]
    for number, (start, end) in enumerate(blocks):
        sample["block_id"][start:end] = number
    return sample


def add_values(sample: Sample, values: Sequence[tuple[int, float, float, bool]]) -> None:
    for wl_position, wl, d, valid in values:
        sample["wl_positions"][wl_position] = True
        sample["wl_targets"][wl_position] = wl
        sample["d_positions"][wl_position + 1] = True
        sample["d_targets"][wl_position + 1] = d
        sample["wdl_valid"][wl_position : wl_position + 2] = valid


class ChessDataset(IterableDataset):  # type: ignore[type-arg]
    """Games, or games mixed with searched positions, one epoch an iteration."""

    def __init__(
        self,
        games: Path,
        variations: Path | None = None,
        length: int = 256,
        skip_board_prob: float = 0.0,
        variation_ratio: float = 0.2,
        max_variations: int = 3,
        max_depth: int = 5,
        tau_base: float = 0.3,
        tau_alpha: float = 1.0,
        seed: int = 42,
    ) -> None:
        self.game_files = sorted(str(path) for path in games.glob("*.parquet"))
        self.mixed = variations is not None
        self.variation_files = (
            sorted(str(path) for path in variations.glob("*.parquet")) if variations else []
        )
        self.length = length
        self.skip_board_prob = skip_board_prob
        self.variation_ratio = variation_ratio
        self.max_variations = max_variations
        self.max_depth = max_depth
        self.tau_base = tau_base
        self.tau_alpha = tau_alpha
        self.seed = seed
        self.epoch = 0

    def __iter__(self) -> Iterator[Sample]:
        info = get_worker_info()
        worker = info.id if info else 0
        seed = self.seed + 100003 * self.epoch + 997 * worker
        random.seed(seed)
        np.random.seed(seed % 2**32)
        return self.finetune_samples() if self.mixed else self.game_samples()

    def own_files(self, files: Sequence[str]) -> list[str]:
        info = get_worker_info()
        own = list(files)
        if info:
            part = -(-len(files) // info.num_workers)
            own = own[info.id * part : (info.id + 1) * part]
        random.shuffle(own)
        return own

    # --- Games ----------------------------------------------------------------------------------

    def game_samples(self) -> Iterator[Sample]:
        for path in self.own_files(self.game_files):
            try:
                frame = pd.read_parquet(path, columns=GAME_COLUMNS)
                groups = frame.groupby("game_id", sort=False)
                game_ids = frame["game_id"].dropna().unique().tolist()
                np.random.shuffle(game_ids)
                for game_id in game_ids:
                    game = groups.get_group(game_id).sort_values("ply", kind="stable")
                    yield self.game_sample(game)
            except Exception as error:
                print(f"error in {path}: {error!r}", file=sys.stderr)

    def game_sample(self, game: pd.DataFrame) -> Sample:
        tokens: list[Any] = []
        blocks = []
        moves = []
        values = []
        for number, (_, row) in enumerate(game.iterrows()):
            included = number == 0 or random.random() > self.skip_board_prob
            start = len(tokens)
            if included:
                tokens.extend(board_tokens(row["fen"]))
            played = row["played_move"]
            if not isinstance(played, str) or not played:
                continue
            position = len(tokens)
            if included:
                blocks.append((start, position))
            tokens.extend([played, ID_OF["wl_value"], ID_OF["d_value"]])
            missing = pd.isna(row["win"]), pd.isna(row["draw"]), pd.isna(row["loss"])
            win, draw, loss = (
                0.0 if lacks else float(row[name])
                for lacks, name in zip(missing, ("win", "draw", "loss"))
            )
            moves.append((position, row["best_move"]))
            values.append((position + 1, win - loss, draw, not any(missing)))
        tokens = [ID_OF[token] if isinstance(token, str) else token for token in tokens]

        start = random.choice([0] + [position + 2 for position, *_ in values[:-1]])
        tokens = tokens[start:][: self.length]
        values = [
            (position - start, wl, d, valid)
            for position, wl, d, valid in values
            if position + 1 >= start and position + 1 - start < self.length
        ]
        kept = {position - 1 for position, *_ in values}
        moves = [
            (position - start, best)
            for position, best in moves
            if position >= start and position - start in kept
        ]
        blocks = [
            (begin - start, min(end - start, len(tokens)))
            for begin, end in blocks
            if end > start and begin - start < len(tokens)
        ]

        sample = empty_sample(tokens, blocks, self.length)
        for position, best in moves:
            target = move_target(best)
            if position > 0:
                sample["board_target_ids"][position - 1] = BOARD_ID_OF["generic_move"]
                sample["move_target_ids"][position - 1] = target
                sample["move_mask"][position - 1] = True
        for value in values:
            add_values(sample, [value])
            position, wl, d, valid = value
            if position >= 2:
                sample["wl_targets"][position - 2] = wl
                sample["d_targets"][position - 2] = d
                sample["wdl_valid"][position - 2] = valid
        return sample

    # --- Searched positions ---------------------------------------------------------------------

    def variation_samples(self) -> Iterator[Sample]:
        for path in self.own_files(self.variation_files):
            try:
                frame = pd.read_parquet(path, columns=VARIATION_COLUMNS)
                order = list(range(len(frame)))
                random.shuffle(order)
                for number in order:
                    sample = self.variation_sample(frame.iloc[number])
                    if sample is not None:
                        yield sample
            except Exception as error:
                print(f"error in {path}: {error!r}", file=sys.stderr)

    def variation_sample(self, row: pd.Series) -> Sample | None:
        if not isinstance(row["variations"], str):
            return None
        variations = json.loads(row["variations"])
        if not variations:
            return None
        try:
            parts = self.variation_parts(row, variations, self.max_variations, self.max_depth)
        except Exception as error:
            print(f"row skipped: {error!r}", file=sys.stderr)
            return None
        if len(parts["tokens"]) > self.length:
            for max_variations in range(self.max_variations - 1, 0, -1):
                for max_depth in range(self.max_depth, 0, -1):
                    parts = self.variation_parts(row, variations, max_variations, max_depth)
                    if len(parts["tokens"]) <= self.length:
                        break
                if len(parts["tokens"]) <= self.length:
                    break
        if len(parts["tokens"]) > self.length or parts["final"] is None:
            return None

        tokens = parts["tokens"]
        sample = empty_sample(tokens, parts["blocks"], self.length)
        thinking_move_mask = torch.zeros(self.length, dtype=torch.bool)
        continue_var_mask = torch.zeros(self.length, dtype=torch.bool)
        new_variation_mask = torch.zeros(self.length, dtype=torch.bool)
        for position, move in parts["thinking"]:
            sample["move_target_ids"][position] = move_target(move)
            thinking_move_mask[position] = True
            if tokens[position] == ID_OF["start_think"]:
                sample["board_target_ids"][position] = BOARD_ID_OF["generic_move"]
            elif tokens[position] == ID_OF["end_var"]:
                sample["board_target_ids"][position] = BOARD_ID_OF["new_variation"]
                new_variation_mask[position] = True
            else:
                sample["board_target_ids"][position] = BOARD_ID_OF["continue_var"]
                continue_var_mask[position] = True
        position, move = parts["final"]
        sample["move_target_ids"][position] = move_target(move)
        sample["move_mask"][position] = True
        sample["board_target_ids"][position] = BOARD_ID_OF["generic_move"]
        add_values(sample, parts["values"])
        _, wl, d, valid = parts["values"][-1]
        sample["wl_targets"][position] = wl
        sample["d_targets"][position] = d
        sample["wdl_valid"][position] = valid
        sample["thinking_move_mask"] = thinking_move_mask
        sample["first_is_not_best"] = torch.tensor(parts["first_is_not_best"])
        sample["continue_var_mask"] = continue_var_mask
        sample["new_variation_mask"] = new_variation_mask
        return sample

    def variation_parts(
        self, row: Any, variations: list[Any], max_variations: int, max_depth: int
    ) -> dict[str, Any]:
        variations = sorted(variations, key=lambda v: -v.get("visit_count", 0))[:max_variations]
        missing = [pd.isna(row[name]) for name in ("win", "draw", "loss")]
        win, draw, loss = (
            0.0 if lacks else float(row[name])
            for lacks, name in zip(missing, ("win", "draw", "loss"))
        )
        if len(variations) > 1:
            variance = (win + loss) - (win - loss) ** 2
            tau = self.tau_base * (1 + self.tau_alpha * variance)
            noise = np.random.gumbel(size=len(variations))
            fractions = [v.get("visit_fraction", 0) for v in variations]
            scores = np.array([fraction / tau for fraction in fractions]) + noise
            variations = [variations[i] for i in np.argsort(-scores, kind="stable")]

        tokens = board_tokens(row["fen"])
        blocks = [(0, 68)]
        thinking = []
        values = []
        tokens.append(ID_OF["start_think"])
        for variation in variations:
            nodes = variation.get("nodes", [])
            if not len(nodes):
                continue
            nodes = nodes[: random.randint(1, min(max_depth, len(nodes)))]
            move = variation["root_move"]
            move = CASTLING.get(move, move)
            if move not in ID_OF:
                continue
            thinking.append((len(tokens) - 1, move))
            tokens.append(ID_OF[move])
            for number, node in enumerate(nodes):
                node_win, node_draw, node_loss = node.get("wdl", [0.0, 0.0, 0.0])
                values.append((len(tokens), node_win - node_loss, float(node_draw), True))
                tokens.extend([ID_OF["wl_value"], ID_OF["d_value"]])
                blocks.append((len(tokens), len(tokens) + 68))
                tokens.extend(board_tokens(node["fen"]))
                if number < len(nodes) - 1:
                    move = node.get("move")
                    move = CASTLING.get(move, move)
                    if move in ID_OF:
                        thinking.append((len(tokens) - 1, move))
                        tokens.append(ID_OF[move])
            tokens.append(ID_OF["end_var"])
        tokens.append(ID_OF["end_think"])

        move = row["mcts_action"]
        move = CASTLING.get(move, move)
        if move not in ID_OF:
            move = row["played_move"]
            move = CASTLING.get(move, move)
            if not isinstance(move, str) or not move:
                move = None
        final = None
        if move in ID_OF:
            final = len(tokens) - 1, move
            tokens.append(ID_OF[move])
        values.append((len(tokens), win - loss, draw, not any(missing)))
        tokens.extend([ID_OF["wl_value"], ID_OF["d_value"]])
        first_is_not_best = False
        if variations and move is not None:
            first = variations[0]["root_move"]
            first_is_not_best = CASTLING.get(first, first) != move
        return {
            "tokens": tokens,
            "blocks": blocks,
            "thinking": thinking,
            "values": values,
            "final": final,
            "first_is_not_best": first_is_not_best,
        }

    # --- Both -----------------------------------------------------------------------------------

    def finetune_samples(self) -> Iterator[Sample]:
        games = self.game_samples()
        variations = self.variation_samples()
        variation_epoch = 0
        while True:
            sample = None
            if random.random() < self.variation_ratio:
                sample = next(variations, None)
                if sample is None:
                    variation_epoch += 1
                    variations = self.variation_samples()
                    sample = next(variations, None)
            if sample is None:
                sample = next(games, None)
                if sample is None:
                    return
                sample["thinking_move_mask"] = torch.zeros(self.length, dtype=torch.bool)
                sample["continue_var_mask"] = torch.zeros(self.length, dtype=torch.bool)
                sample["new_variation_mask"] = torch.zeros(self.length, dtype=torch.bool)
                sample["first_is_not_best"] = torch.tensor(False)
            sample["variation_epoch"] = torch.tensor(variation_epoch)
            yield sample


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Take samples and count what that costs; the data is gone through as often as needed.

    Returns:
        mode, length, batch_size, workers: as asked;
        samples, batches: taken;
        seconds: wall time, from opening the first file;
        samples_per_s: their quotient;
        cpu_s: user and system time in that, workers included;
        peak_rss_bytes: most memory of this process; worker_peak_rss_bytes: of its largest worker.
    Raises:
        RuntimeError: A pass over the data gave no sample.
    """
    torch.set_num_threads(1)
    dataset = ChessDataset(
        options.games,
        options.variations if options.mode == "finetune" else None,
        options.length,
        options.skip_board_prob,
        options.variation_ratio,
        seed=options.seed,
    )

    def cpu_seconds() -> float:
        uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(use.ru_utime + use.ru_stime for use in uses)

    cpu_s = cpu_seconds()
    begun = time.monotonic()
    samples = batch_count = 0
    while samples < options.samples:
        before = samples
        loader = DataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers)
        batches = iter(loader)
        for batch in batches:
            samples += len(batch["input_ids"])
            batch_count += 1
            if samples >= options.samples:
                break
        # Ends the workers, so that what they used is counted.
        del batches
        if samples == before:
            raise RuntimeError(f"{options.games} gives no sample")
        dataset.epoch += 1
    seconds = time.monotonic() - begun
    return {
        "mode": options.mode,
        "length": options.length,
        "batch_size": options.batch_size,
        "workers": options.workers,
        "samples": samples,
        "batches": batch_count,
        "seconds": seconds,
        "samples_per_s": samples / seconds,
        "cpu_s": cpu_seconds() - cpu_s,
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "worker_peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: the result on stdout, talk on stderr."""
    parser = argparse.ArgumentParser(description="Measure a loader of chess data in plain Python.")
    parser.add_argument("mode", choices=("pretrain", "finetune"))
    parser.add_argument("--games", type=Path, required=True, help="directory of game files")
    parser.add_argument("--variations", type=Path, help="directory of searched positions")
    parser.add_argument("--length", type=int, default=256, help="tokens in a sample (256)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples (64)")
    parser.add_argument("--samples", type=int, default=2000, help="samples to take (2000)")
    parser.add_argument("--workers", type=int, default=0, help="processes (0: none but this)")
    parser.add_argument("--skip-board-prob", type=float, default=0.0, help="boards left out (0)")
    parser.add_argument("--variation-ratio", type=float, default=0.2, help="share (0.2)")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(arguments)
    if options.mode == "finetune" and options.variations is None:
        parser.error("finetune needs --variations")
    try:
        print(json.dumps(measure(options)))
    except RuntimeError as error:
        print(f"peer_chess: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
