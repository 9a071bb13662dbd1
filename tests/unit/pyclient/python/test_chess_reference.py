"""The chess reference against worked examples: what everything else is compared with must be right.

The examples lie in tests/data/chess; each file says in ``about`` how to read it. Floats are
compared as the float32 values that they are, so every tensor has to agree in every bit.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[3]
DATA = TESTS / "data" / "chess"
sys.path.insert(0, str(TESTS.parent))

from tests.support.oracles import chess_reference as reference  # noqa: E402
from tests.support.oracles.chess_reference import Draws, Part, Search  # noqa: E402


def load(name: str) -> Any:
    return json.loads((DATA / name).read_text())


PRETRAIN = load("pretrain_examples.json")["examples"]
FINETUNE = load("finetune_examples.json")["examples"]
DIRECTORY = load("pretrain_directory_runs.json")
MIXED = load("finetune_mixed_runs.json")


def assert_same(sample: Mapping[str, np.ndarray], wanted: Mapping[str, Any]) -> None:
    """Compare a sample with one of an example, which may leave tensors out but not add any."""
    assert set(wanted) <= set(sample)
    for name, values in wanted.items():
        array = sample[name]
        # Through double, so that a value that no float32 has is seen.
        np.testing.assert_array_equal(
            array.astype(np.float64), np.array(values, np.float64), err_msg=name
        )


def by_name(examples: Sequence[Mapping[str, Any]]) -> Any:
    return pytest.mark.parametrize("example", examples, ids=[e["name"] for e in examples])


class ScriptedDraws:
    """Gives the draws of an example back, and wants to be asked for them in their order."""

    def __init__(self, draws: Sequence[Sequence[Any]]) -> None:
        self.left = list(draws)

    def gumbel(self, count: int) -> list[float]:
        kind, noise = self.left.pop(0)
        assert kind == "gumbel" and len(noise) == count
        return list(noise)

    def depth(self, highest: int) -> int:
        kind, low, high, value = self.left.pop(0)
        assert (kind, low, high) == ("depth", 1, highest)
        return int(value)


# --- Vocabulary and positions -------------------------------------------------------------------


def test_the_vocabulary_is_the_one_in_the_file() -> None:
    assert (DATA / "vocabulary.txt").read_text().split() == reference.TOKENS
    digest = hashlib.sha256("".join(f"{token}\n" for token in reference.TOKENS).encode())
    assert digest.hexdigest() == "2f4d04a125f308891f1c6878f0d13302c9102642711e7b7b6ba827a559c50e6c"


def test_anchors_of_the_vocabulary() -> None:
    assert [reference.ID_OF[m] for m in ("e2e4", "e1g1", "e1h1", "e8h8")] == [322, 102, 103, 1719]
    assert reference.PAD == 1941
    assert reference.BOARD_ID_OF["generic_move"] == 38
    assert (reference.BOARD_ID_OF["end_think"], reference.BOARD_ID_OF["start_think"]) == (39, 40)


@pytest.mark.parametrize("example", load("fen_tokens.json"), ids=lambda e: str(e["fen"]))
def test_fens_are_read_or_refused_as_in_the_examples(example: Mapping[str, Any]) -> None:
    if "ids" in example:
        assert reference.fen_tokens(example["fen"]) == example["ids"]
    else:
        with pytest.raises(ValueError):
            reference.fen_tokens(example["fen"])


# --- Games --------------------------------------------------------------------------------------


@by_name(PRETRAIN)
def test_games_become_the_samples_of_the_examples(example: Mapping[str, Any]) -> None:
    rows = load("pretrain_games.json")["games"][example["game"]]
    rows = reference.game_rows(rows, rows[0]["game_id"])
    included = example["include_board"]

    def sample() -> tuple[reference.TokenSequence, int, reference.Sample]:
        sequence = reference.game_tokens(rows, lambda number: bool(included[number]))
        start = reference.start_candidates(sequence)[example["start_choice"]]
        return sequence, start, reference.game_sample(sequence, start, example["max_seq_len"])

    if "sample" not in example:
        with pytest.raises((KeyError, ValueError)):
            sample()
        return
    sequence, start, made = sample()
    assert reference.start_candidates(sequence) == example["valid_starts"]
    assert start == example["start_idx"]
    assert_same(made, example["sample"])
    if "game_tokens" in example:
        tokens = example["game_tokens"]
        assert sequence.ids == tokens["ids"]
        assert [list(block) for block in sequence.blocks] == tokens["block_boundaries"]
        assert [[m.position, m.wanted] for m in sequence.moves] == [m[:2] for m in tokens["moves"]]
        assert [
            [v.wl_position, v.d_position, v.wl, v.d, v.valid] for v in sequence.values
        ] == tokens["value_data"]


def three_plies(included: Sequence[bool]) -> reference.TokenSequence:
    rows = load("pretrain_games.json")["games"]["three_ply"]
    return reference.game_tokens(rows, lambda number: included[number])


def test_a_ply_without_a_board_overwrites_the_values_of_the_ply_before_it() -> None:
    sample = reference.game_sample(three_plies([True, False, True]), 0, 256)
    assert sample["d_targets"][70] == np.float32(0.45)
    assert sample["wl_targets"][70] == np.float32(0.25 - 0.3)
    assert sample["board_target_ids"][70] == 38 and sample["move_target_ids"][70] == 1440


def test_without_overwriting_only_these_values_differ() -> None:
    sequence = three_plies([True, False, True])
    kept = reference.game_sample(sequence, 0, 256, overwrite_values=False)
    assert kept["d_targets"][70] == np.float32(0.5) and kept["wl_targets"][70] == 0.0
    overwritten = reference.game_sample(sequence, 0, 256)
    for name in kept:
        differing = np.flatnonzero(kept[name] != overwritten[name]).tolist()
        assert differing == ([70] if name in ("d_targets", "wl_targets") else []), name


def test_without_skipped_boards_nothing_is_overwritten() -> None:
    sequence = three_plies([True, True, True])
    kept = reference.game_sample(sequence, 71, 128, overwrite_values=False)
    assert_same(kept, reference.game_sample(sequence, 71, 128))


# --- Searched positions -------------------------------------------------------------------------


@by_name(FINETUNE)
def test_searched_positions_become_the_samples_of_the_examples(example: Mapping[str, Any]) -> None:
    row = load("finetune_rows.json")["rows"][example["row"]]
    scripted = [draw for attempt in example["attempts"] for draw in attempt["draws"]]
    draws = ScriptedDraws(scripted + example.get("draws_before_failure", []))
    search = Search(
        example["max_variations"], example["max_depth"], example["tau_base"], example["tau_alpha"]
    )
    sequence = reference.fitting_variation(row, draws, example["max_seq_len"], search)
    assert draws.left == []
    if "sample" not in example:
        assert sequence is None
        return
    assert sequence is not None
    last = example["attempts"][-1]
    assert (len(sequence.ids), sequence.ranking) == (last["length"], last["ranking"])
    tokens = example["tokens"]
    assert sequence.ids == tokens["ids"]
    assert [[m.position, m.wanted] for m in sequence.thinking] == tokens["thinking_moves"]
    assert sequence.final is not None
    assert [sequence.final.position, sequence.final.wanted] == tokens["final_move"]
    assert [list(block) for block in sequence.blocks] == tokens["block_boundaries"]
    assert [[v.wl_position, v.d_position, v.wl, v.d, v.valid] for v in sequence.values] == tokens[
        "value_data"
    ]
    made = reference.variation_sample(sequence, example["max_seq_len"])
    assert_same(made, example["sample"])


# --- Draws and files ----------------------------------------------------------------------------


@pytest.mark.parametrize("vector", load("rng_vectors.json"), ids=lambda v: f"seed{v['seed']}")
def test_generators_draw_the_vectors(vector: Mapping[str, Any]) -> None:
    draws = Draws(vector["seed"], vector["seed"])
    wanted = vector["python"]
    assert [draws.python.random() for _ in range(3)] == wanted["random"]
    assert [draws.python.getrandbits(32) for _ in range(3)] == wanted["getrandbits32"]
    numbers = list(range(10))
    draws.python.shuffle(numbers)
    assert numbers == wanted["shuffle"]
    assert [draws.python.choice(range(n)) for n in (1, 2, 3, 7, 8, 9, 100)] == wanted["choice"]
    assert [draws.depth(n) for n in range(1, 6)] == wanted["randint"]
    wanted = vector["numpy_legacy"]
    numbers = list(range(10))
    draws.numpy.shuffle(numbers)
    assert numbers == wanted["shuffle"]
    # The logarithm of another library may differ in its last bit.
    np.testing.assert_allclose(draws.gumbel(3), wanted["gumbel"], rtol=1e-15)
    assert draws.numpy.random_sample(2).tolist() == wanted["random_sample"]


def test_seeds_of_an_epoch_mix_worker_and_rank() -> None:
    draws = reference.epoch_draws(42, epoch=3, worker=2, rank=1)
    mixed = 42 + 3 * 100003 + 2 * 997 + 7919
    assert draws.python.random() == random.Random(mixed).random()
    assert draws.numpy.random_sample() == np.random.RandomState(mixed).random_sample()
    large = reference.epoch_draws(2**32 + 5)
    assert large.numpy.random_sample() == np.random.RandomState(5).random_sample()
    assert large.python.random() == random.Random(2**32 + 5).random()


@pytest.mark.parametrize(
    "case", load("sharding.json"), ids=lambda c: f"{c['files']}over{c['num_workers']}"
)
def test_files_are_dealt_to_workers_as_in_the_table(case: Mapping[str, Any]) -> None:
    names = [f"part-{number:03}" for number in range(case["files"])]
    for worker, (start, end) in enumerate(case["ranges"]):
        assert reference.shard(names, worker, case["num_workers"]) == names[start:end]


def test_ranks_take_every_other_file_before_workers_share_them() -> None:
    files = {f"{number}.parquet": [] for number in range(7)}
    draws = Draws(0, 0)
    parts = [
        Part(worker, 2, rank, 2, shuffle_files=False).names(files, draws)
        for rank in range(2)
        for worker in range(2)
    ]
    assert [[int(name[0]) for name in part] for part in parts] == [[0, 2], [4, 6], [1, 3], [5]]


def test_files_of_a_directory_are_sorted_by_code_point(tmp_path: Path) -> None:
    for name in ("part-2.parquet", "part-010.parquet", ".hidden.parquet", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "part-0.parquet").touch()
    names = [Path(name).name for name in reference.parquet_files(tmp_path)]
    assert names == ["part-010.parquet", "part-2.parquet"]


# --- Streams ------------------------------------------------------------------------------------


def test_a_directory_in_order_gives_the_run_of_the_example() -> None:
    run = next(r for r in DIRECTORY["runs"] if r["name"] == "directory_no_shuffle_start0")
    log: list[str] = []
    emitted = list(
        reference.emitted_games(
            DIRECTORY["files"],
            Draws(0, 0),
            run["max_seq_len"],
            skip_board_prob=run["skip_board_prob"],
            shuffle_games=run["shuffle_games"],
            start_first=True,
            part=Part(shuffle_files=run["shuffle_files"]),
            log=log,
        )
    )
    assert [(e.file, e.game_id) for e in emitted] == [
        (e["file"], e["game_id"]) for e in run["emitted"]
    ]
    for made, wanted in zip(emitted, run["emitted"]):
        assert_same(made.sample, wanted["sample"])
    assert len(log) == 1 and "part-001.parquet" in log[0]


def test_a_seeded_directory_gives_the_run_of_the_example() -> None:
    run = next(r for r in DIRECTORY["runs"] if r["name"] == "directory_seeded_1")
    emitted = list(
        reference.emitted_games(
            DIRECTORY["files"],
            Draws(run["python_random_seed"], run["numpy_seed"]),
            run["max_seq_len"],
            skip_board_prob=run["skip_board_prob"],
        )
    )
    assert [(e.file, e.game_id, e.start, e.total) for e in emitted] == [
        (e["file"], e["game_id"], e["start_idx"], e["game_len"]) for e in run["emitted"]
    ]
    for made, wanted in zip(emitted, run["emitted"]):
        assert_same(made.sample, wanted["sample"])


@by_name(MIXED["runs"])
def test_mixed_streams_give_the_runs_of_the_examples(example: Mapping[str, Any]) -> None:
    stream = reference.emitted_mixed(
        {name: MIXED["pretrain_files"][name] for name in example["pretrain_files"]},
        {name: MIXED["variation_files"][name] for name in example["variation_files"]},
        Draws(example["python_random_seed"], example["numpy_seed"]),
        example["max_seq_len"],
        variation_ratio=example["variation_ratio"],
        skip_board_prob=example["skip_board_prob"],
        search=Search(
            example["max_variations"],
            example["max_depth"],
            example["tau_base"],
            example["tau_alpha"],
        ),
    )
    for wanted in example["emitted"]:
        made = next(stream)
        kind = "variation" if made.file in MIXED["variation_files"] else "game"
        assert [kind, made.game_id] == wanted["source"]
        assert list(made.sample) == list(reference.FINETUNE_TENSORS)
        assert_same(made.sample, wanted["sample"])
    if example["ended"]:
        assert next(stream, None) is None


def test_without_searched_positions_a_mixed_stream_is_its_games() -> None:
    files = {n: rows for n, rows in DIRECTORY["files"].items() if n != "part-001.parquet"}
    samples = list(reference.finetune_samples(files, {}, Draws(1, 1), 64, variation_ratio=0.5))
    assert len(samples) == 9
    # One more after each attempt that found none.
    epochs = [int(sample["variation_epoch"]) for sample in samples]
    assert epochs == sorted(epochs) and 0 < epochs[-1] <= 9


# --- Errors -------------------------------------------------------------------------------------


def game(name: str, **first_row: Any) -> list[dict[str, Any]]:
    rows = [dict(row, game_id=name) for row in load("pretrain_games.json")["games"]["three_ply"]]
    rows[0].update(first_row)
    return rows


def emitted_names(files: reference.Files, draws: Draws, log: list[str]) -> list[str]:
    return [
        e.game_id for e in reference.emitted_games(files, draws, 256, skip_board_prob=0.5, log=log)
    ]


@pytest.mark.parametrize(
    ("fault", "draws_before"),
    [
        # A FEN is read as its row comes: row 0 needs no draw.
        ({"fen": "8/8 w - - 0 1"}, 0),
        # A played move is looked up when all rows have been through, and before the start is drawn.
        ({"played_move": "unknown(7)"}, 2),
    ],
    ids=["fen", "played_move"],
)
def test_an_error_ends_its_file_and_keeps_the_draws_made_before(
    fault: dict[str, Any], draws_before: int
) -> None:
    draws, same = Draws(3, 3), Draws(3, 3)
    log: list[str] = []
    rows = game("bad", **fault)
    assert emitted_names({"a.parquet": rows}, draws, log) == []
    assert len(log) == 1 and log[0].startswith("a.parquet: ")
    same.python.shuffle([0])
    for _ in range(draws_before):
        same.python.random()
    assert draws.python.getstate() == same.python.getstate()


@pytest.mark.parametrize("seed", range(6))
def test_a_best_move_is_looked_up_after_the_start_was_drawn(seed: int) -> None:
    draws, same = Draws(seed, seed), Draws(seed, seed)
    files = {"a.parquet": game("bad", best_move="unknown(1)")}
    made = list(reference.emitted_games(files, draws, 256, part=Part(shuffle_files=False)))
    for _ in range(2):
        same.python.random()
    # A sample that begins after the bad ply does without its move.
    chosen = same.python.choice([0, 71, 142])
    assert [e.start for e in made] == ([chosen] if chosen else [])
    assert draws.python.getstate() == same.python.getstate()


@pytest.mark.parametrize("column", ["fen", "best_move", "win", "draw", "loss", "game_id", "ply"])
def test_a_file_without_a_column_gives_nothing_and_the_next_one_goes_on(column: str) -> None:
    rows = [{k: v for k, v in row.items() if k != column} for row in game("bad")]
    log: list[str] = []
    files = {"a.parquet": rows, "b.parquet": game("good")}
    assert emitted_names(files, Draws(0, 0), log) == ["good"]
    assert len(log) == 1 and column in log[0]


def test_a_file_without_played_moves_gives_boards_alone() -> None:
    rows = [{k: v for k, v in row.items() if k != "played_move"} for row in game("quiet")]
    (emitted,) = reference.emitted_games({"a.parquet": rows}, Draws(0, 0), 256)
    assert emitted.total == 3 * 68 and emitted.start == 0
    assert not emitted.sample["move_mask"].any()
    assert emitted.sample["block_id"].tolist() == list(range(256))


def variation_row(**values: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict(load("finetune_rows.json")["rows"]["two_var"])
    return {**row, **values}


def emitted_rows(*rows: Mapping[str, Any], length: int = 1024, **options: Any) -> list[Any]:
    files = {"a.parquet": [dict(row, game_id=number) for number, row in enumerate(rows)]}
    stream = reference.emitted_variations(files, Draws(0, 0), length, shuffle_rows=False, **options)
    return [e.game_id for e in stream]


@pytest.mark.parametrize("text", [None, "[]", "null", "{}"])
def test_a_row_without_variations_is_passed_over(text: str | None) -> None:
    assert emitted_rows(variation_row(), variation_row(variations=text), variation_row()) == [0, 2]


@pytest.mark.parametrize("text", ["[{", "", "[1, 2"])
def test_malformed_variations_end_the_file(text: str) -> None:
    assert emitted_rows(variation_row(), variation_row(variations=text), variation_row()) == [0]


@pytest.mark.parametrize(
    "changes",
    [
        {"visit_count": None},
        {"visit_fraction": None},
        {"nodes": None},
        {"nodes": [{"fen": "8/8 w - - 0 1", "move": "e2e4", "wdl": [0, 1, 0]}]},
        {"nodes": [{"fen": None, "move": "e2e4", "wdl": None}]},
        {"nodes": [{"fen": None, "move": "e2e4", "wdl": [0, 1]}]},
        {"nodes": [{"move": "e2e4", "wdl": [0, 1, 0]}]},
    ],
    ids=lambda c: json.dumps(c)[:40],
)
def test_an_unusable_variation_costs_its_row_alone(changes: Mapping[str, Any]) -> None:
    variations = json.loads(variation_row()["variations"])
    variations[0].update(changes)
    bad = variation_row(variations=json.dumps(variations))
    assert emitted_rows(variation_row(), bad, variation_row()) == [0, 2]


def test_a_token_that_is_no_move_ends_the_file() -> None:
    bad = variation_row(mcts_action="bos")
    assert emitted_rows(variation_row(), bad, variation_row()) == [0]


# --- Batches ------------------------------------------------------------------------------------


def test_workers_give_whole_batches_in_turn_and_end_with_short_ones() -> None:
    def samples(worker: int, count: int) -> Any:
        return iter([{"n": np.array(10 * worker + number)} for number in range(count)])

    made = reference.batches([samples(0, 5), samples(1, 0), samples(2, 2), samples(3, 3)], 2)
    assert [batch["n"].tolist() for batch in made] == [
        [0, 1],
        [20, 21],
        [30, 31],
        [2, 3],
        [32],
        [4],
    ]


def test_an_epoch_has_every_game_once_whatever_the_workers() -> None:
    good = {n: rows for n, rows in DIRECTORY["files"].items() if n != "part-001.parquet"}
    for workers in (1, 2, 3, 8):
        made = list(reference.pretrain_batches(good, 64, 2, seed=5, num_workers=workers))
        assert sum(len(batch["input_ids"]) for batch in made) == 9
        for name, dtype in reference.PRETRAIN_TENSORS.items():
            assert made[0][name].dtype == dtype and made[0][name].shape == (2, 64)


def test_fine_tuning_batches_have_all_tensors_in_order() -> None:
    games, variations = MIXED["pretrain_files"], MIXED["variation_files"]
    made = list(reference.finetune_batches(games, variations, 512, 4, seed=1, variation_ratio=0.5))
    for name, dtype in reference.FINETUNE_TENSORS.items():
        assert made[0][name].dtype == dtype
        scalar = name in ("first_is_not_best", "variation_epoch")
        assert made[0][name].shape == ((4,) if scalar else (4, 512))
    assert list(made[0]) == list(reference.FINETUNE_TENSORS)
