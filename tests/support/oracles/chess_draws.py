"""What the chess stages draw with `order: BETTER`, and the samples that follow: in plain Python.

Which boards of a game are left out, where its window starts, in which order and how deep the lines
of a searched position are written: all of it follows from the feed's seed, the stage's name, the
epoch, the file's name and the number of the game or row in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.oracles import chess_reference as reference

_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1


def mix(first: int, *others: int) -> int:
    """Mix 64-bit numbers into one."""
    value = (first + 0x9E3779B97F4A7C15) & _U64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _U64
    value ^= value >> 31
    return mix(value ^ others[0], *others[1:]) if others else value


def mix_text(text: str) -> int:
    """Mix the bytes of a text (FNV-1a 64)."""
    number = 0xCBF29CE484222325
    for byte in text.encode():
        number = ((number ^ byte) * 0x100000001B3) & _U64
    return mix(number)


def philox(key: int, counter: int) -> tuple[int, int]:
    """Philox 4x32 with 10 rounds: two 64-bit numbers for each value of the counter."""
    x0, x1, x2, x3 = counter & _U32, counter >> 32, 0, 0
    k0, k1 = key & _U32, key >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = (b >> 32) ^ x1 ^ k0, b & _U32, (a >> 32) ^ x3 ^ k1, a & _U32
        k0, k1 = (k0 + 0x9E3779B9) & _U32, (k1 + 0xBB67AE85) & _U32
    return x1 << 32 | x0, x3 << 32 | x2


class Random:
    """The sequence of numbers that a key names; also what reference.VariationDraws asks for."""

    def __init__(self, key: int) -> None:
        self._key = key
        self._counter = 0
        self._numbers = (0, 0)

    def next(self) -> int:
        if self._counter % 2 == 0:
            self._numbers = philox(self._key, self._counter // 2)
        self._counter += 1
        return self._numbers[(self._counter - 1) % 2]

    def below(self, bound: int) -> int:
        while True:
            product = self.next() * bound
            if product & _U64 >= (1 << 64) % bound:
                return product >> 64

    def unit(self) -> float:
        return (self.next() >> 11) * 2.0**-53

    def gumbel(self, count: int) -> Sequence[float]:
        numbers: list[float] = []
        while len(numbers) < count:
            value = 1.0 - self.unit()
            if value < 1.0:
                numbers.append(-math.log(-math.log(value)))
        return numbers

    def depth(self, highest: int) -> int:
        return 1 + self.below(highest)


def draws_of(seed: int, stage: str, epoch: int, file: str, number: int) -> Random:
    """Give the numbers that a stage draws for one game, or one row, of a file."""
    key = mix(mix(seed, mix_text(stage)), epoch)
    return Random(mix(key, mix(mix_text(Path(file).name), number)))


# --- Games --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What is drawn for a game: the rows that come with their boards, and its first token."""

    included: list[bool]
    start: int


def has_move(row: reference.Row) -> bool:
    """Tell whether the row has a move, be it a token or not."""
    played = row.get("played_move")
    return not reference.is_missing(played) and played != ""


def _places(
    moved: Sequence[bool], included: Sequence[bool]
) -> tuple[list[int], list[int | None], list[int]]:
    """Lay rows out: where each begins, where its move is, and where samples may start."""
    begins, moves, ends = [], [], [0]
    at = 0
    for moves_here, board_here in zip(moved, included):
        begins.append(at)
        at += 68 if board_here else 0
        moves.append(at if moves_here else None)
        at += 3 if moves_here else 0
        if moves_here:
            ends.append(at)
    return begins, moves, ends[:-1] if len(ends) > 1 else ends


def game_choice(
    moved: Sequence[bool], draws: Random, skip: float = 0.0, first_ply: bool = False
) -> Choice:
    """Draw for a game, given which of its rows have a move."""
    included = [number == 0 or skip == 0 or draws.unit() >= skip for number in range(len(moved))]
    starts = _places(moved, included)[2]
    return Choice(included, starts[0 if first_ply else draws.below(len(starts))])


def _readable(fen: str | None) -> bool:
    try:
        reference.fen_tokens(fen)
    except ValueError:
        return False
    return True


def _is_move(move: Any) -> bool:
    return reference.ID_OF.get(move, reference.MOVE_COUNT) < reference.MOVE_COUNT


def game_sample(
    rows: Sequence[reference.Row], choice: Choice, length: int, *, overwrite_values: bool = False
) -> tuple[reference.Sample | None, str]:
    """Cut the chosen sample out of a game, or tell which column has a fault inside it."""
    begins, moves, _ = _places([has_move(row) for row in rows], choice.included)
    end = choice.start + length
    usable: list[dict[str, Any]] = []
    for row, begin, move, board in zip(rows, begins, moves, choice.included):
        faults = {
            "fen": board and not _readable(row["fen"]),
            "played_move": move is not None and row.get("played_move") not in reference.ID_OF,
            "best_move": move is not None and not _is_move(row["best_move"]),
        }
        # A row lies in the window, or before it, or behind it; the window's end may cut it.
        inside = {
            "fen": choice.start <= begin < end,
            "played_move": move is not None and choice.start <= begin and move < end,
            "best_move": move is not None and choice.start <= begin and move + 2 < end,
        }
        for column, fault in faults.items():
            if fault and inside[column]:
                return None, column
        harmless = {"fen": None, "played_move": "e2e4", "best_move": "e2e4"}
        usable.append({**row, **{name: harmless[name] for name, bad in faults.items() if bad}})
    sequence = reference.game_tokens(usable, choice.included.__getitem__)
    assert choice.start in reference.start_candidates(sequence)
    sample = reference.game_sample(
        sequence, choice.start, length, overwrite_values=overwrite_values
    )
    return sample, ""


# --- Searched positions -------------------------------------------------------------------------


def variation_sample(
    row: reference.Row, draws: Random, length: int, search: reference.Search = reference.Search()
) -> reference.Sample | None:
    """Make the sample of a searched position with its masks of limits; None if it is skipped."""
    attempts = [(search.max_variations, search.max_depth)]
    for lines in range(search.max_variations - 1, 0, -1):
        attempts += [(lines, depth) for depth in range(search.max_depth, 0, -1)]
    tau = (search.tau_base, search.tau_alpha)
    try:
        if reference.is_missing(row["variations"]) or not json.loads(row["variations"]):
            return None
        for lines, depth in attempts:
            sequence = reference.variation_tokens(row, draws, lines, depth, *tau)
            if len(sequence.ids) <= length:
                break
        else:
            return None
        if sequence.final is None:
            return None
        sample = reference.variation_sample(sequence, length)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    names = [reference.TOKENS[token] for token in sequence.ids]
    for mask in ("end_var_max_depth_mask", "end_think_max_var_mask"):
        sample[mask] = np.zeros(length, np.bool_)
    boards = 0
    for position, name in enumerate(names):
        boards += name == "start_pos"
        if name in ("start_think", "end_var"):
            if name == "end_var" and boards == depth:
                sample["end_var_max_depth_mask"][position - 1] = True
            boards = 0
        if name == "end_think" and names.count("end_var") == lines:
            sample["end_think_max_var_mask"][position - 1] = True
    return sample
