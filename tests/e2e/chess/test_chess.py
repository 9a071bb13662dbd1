"""Feeds of chess games and searched positions against the reference, bit for bit."""

from __future__ import annotations

import functools
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ringfeed

from tests.support.feeds.chess_feeds import batches_of, chess_run, stacked
from tests.support.feeds.feed_run import ROOT, FeedRun, wait_until
from tests.support.feeds.scenes import kill_a_worker
from tests.support.makers import chess_data
from tests.support.oracles import chess_draws
from tests.support.oracles import chess_reference as reference

MakeFeed = Callable[..., FeedRun]
Batches = list[dict[str, np.ndarray]]

DATA = ROOT / "tests" / "data" / "chess"
EXACT = "order: EXACT"
SEED = 7  # of every feed that is not told another

# Most positions come many times.
reference.fen_tokens = functools.cache(reference.fen_tokens)


def shared(name: str) -> Any:
    return json.loads((DATA / name).read_text())


@pytest.fixture
def make_feed(tmp_path: Path) -> Iterator[MakeFeed]:
    runs: list[FeedRun] = []

    def make(directory: Path, searched: Path | None = None, **settings: Any) -> FeedRun:
        runs.append(chess_run(tmp_path / f"run{len(runs)}", directory, searched, **settings))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def all_of(run: FeedRun) -> Batches:
    """The batches of a feed from its start to its end."""
    got = batches_of(run.start())
    assert run.wait() == 0, run.text()
    return got


def rows_of(batches: Batches) -> int:
    return sum(len(batch["input_ids"]) for batch in batches)


def counted(run: FeedRun, rows: int) -> tuple[Batches, dict[str, dict[str, Any]]]:
    """All batches of a feed that has so many rows, and what each stage has counted at its end."""
    got: Batches = []
    with ringfeed.attach(
        run.start().feed, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
    ) as feed:
        for batch in feed:
            got.append({name: np.array(batch[name]) for name in batch})
            if rows_of(got) < rows:
                batch.release()
                continue
            # The last batch is still in hand, so the feed is still there.
            metrics = feed.metrics()
            batch.release()
            break
    assert run.wait() == 0, run.text()
    found = {}
    for stage in metrics["total"]["stage_metrics"]:
        (kind,) = set(stage) - {"name", "output_queue_metrics", "other_counters"}
        found[stage["name"]] = stage[kind]
    return got, found


def assert_same(got: Batches, want: Sequence[reference.Sample]) -> None:
    """The same batches: arrays in the same order, of the same types, with the same numbers."""
    assert [len(batch["input_ids"]) for batch in got] == [len(batch["input_ids"]) for batch in want]
    for number, (one, other) in enumerate(zip(got, want)):
        assert list(one) == list(other)
        for name, array in other.items():
            assert one[name].dtype == array.dtype and one[name].shape == array.shape, name
            assert np.array_equal(one[name], array), (number, name)


def assert_samples(got: Batches, want: Sequence[dict[str, Any]], types: dict[str, type]) -> None:
    """Rows as they stand in the shared data, where a bool is 0 or 1."""
    assert rows_of(got) == len(want)
    have = stacked(got)
    assert {name: array.dtype for name, array in have.items()} == {
        name: np.dtype(kind) for name, kind in types.items()
    }
    assert list(have) == list(types)
    for number, sample in enumerate(want):
        for name, values in sample.items():
            expected = np.asarray(values).astype(types[name])
            assert np.array_equal(have[name][number], expected), (number, name)


def write_files(directory: Path, files: dict[str, list[dict[str, Any]]]) -> Path:
    directory.mkdir(parents=True)
    for name, rows in files.items():
        chess_data.write_parquet(rows, directory / name)
    return directory


# --- The worked examples ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number, source, games",
    [
        (0, "shuffle_files: false", "shuffle_games: false window_start: FIRST_PLY"),
        (1, "", "skip_board_probability: 0.2"),
    ],
)
def test_a_directory_of_games_as_the_original_reads_it(
    make_feed: MakeFeed, tmp_path: Path, number: int, source: str, games: str
) -> None:
    data = shared("pretrain_directory_runs.json")
    directory = write_files(tmp_path / "games", data["files"])
    got = all_of(make_feed(directory, seed=1, source=source, games=f"{EXACT} {games}"))
    want = [emitted["sample"] for emitted in data["runs"][number]["emitted"]]
    assert_samples(got, want, reference.PRETRAIN_TENSORS)


def test_a_mixed_stream_as_the_original_makes_it(make_feed: MakeFeed, tmp_path: Path) -> None:
    data = shared("finetune_mixed_runs.json")
    (of_run,) = data["runs"]
    got = all_of(
        make_feed(
            write_files(tmp_path / "games", data["pretrain_files"]),
            write_files(tmp_path / "searched", data["variation_files"]),
            seed=of_run["python_random_seed"],
            length=of_run["max_seq_len"],
            ratio=of_run["variation_ratio"],
            games=f"{EXACT} skip_board_probability: {of_run['skip_board_prob']}",
            variations=EXACT,
            mixer=EXACT,
        )
    )
    want = [emitted["sample"] for emitted in of_run["emitted"]]
    # It was stopped after so many, unless it ended.
    got = [{name: array[: len(want)] for name, array in stacked(got).items()}]
    assert_samples(got, want, reference.FINETUNE_TENSORS)


def examples() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shared("pretrain_examples.json")["examples"]
    return found


def skip_of(example: dict[str, Any]) -> float:
    """A probability under which the example's boards can be drawn."""
    return 0.0 if all(example["include_board"]) else 0.5


def test_each_example_of_a_game_comes_out_of_better_order(
    make_feed: MakeFeed, tmp_path: Path
) -> None:
    """What is drawn for a game follows from its file's name: one is looked for that fits."""
    games = shared("pretrain_games.json")["games"]
    kinds = [(e["max_seq_len"], skip_of(e)) for e in examples()]
    for kind in dict.fromkeys(kinds):
        length, skip = kind
        files, want = {}, {}
        for example in (e for e, of in zip(examples(), kinds) if of == kind):
            rows = sorted(games[example["game"]], key=lambda row: row["ply"])
            moved = [chess_draws.has_move(row) for row in rows]
            included = [bool(flag) for flag in example["include_board"]]
            for number in itertools.count():
                name = f"{example['game']}-{number}.parquet"
                draws = chess_draws.draws_of(SEED, "games", 0, name, 0)
                choice = chess_draws.game_choice(moved, draws, skip)
                if choice.included == included and name not in files:
                    if "sample" not in example or choice.start == example["start_idx"]:
                        break
            files[name] = games[example["game"]]
            # Faults outside the window do no harm, so a bad game is not always one.
            sample = example.get("sample")
            if sample is None:
                sample, _ = chess_draws.game_sample(rows, choice, length, overwrite_values=True)
            if sample is not None:
                want[name] = sample
        directory = write_files(tmp_path / f"games-{length}-{skip}", files)
        got = stacked(
            all_of(
                make_feed(
                    directory,
                    length=length,
                    games=f"skip_board_probability: {skip} overwrite_values: true",
                    batcher="lineage: true",
                )
            )
        )
        names = [sorted(files)[number] for number in got.pop("lineage")[:, 0]]
        assert sorted(names) == sorted(want)
        for row, name in enumerate(names):
            for array, values in want[name].items():
                assert np.array_equal(got[array][row], np.asarray(values)), (name, array)


def forced() -> list[Any]:
    """Examples whose draws can be forced by settings, with these, and the bad ones."""
    found = []
    for example in examples():
        boards = example["include_board"]
        if example["start_choice"] == 0 and (all(boards) or not any(boards[1:])):
            probability = 0 if all(boards) else 1
            found.append(pytest.param(example, probability, id=example["name"]))
    return found


@pytest.mark.parametrize("length", sorted({e.values[0]["max_seq_len"] for e in forced()}))
def test_the_examples_that_settings_can_force_in_exact_order(
    make_feed: MakeFeed, tmp_path: Path, length: int
) -> None:
    games = shared("pretrain_games.json")["games"]
    for probability in (0, 1):
        chosen = [
            e.values[0]
            for e in forced()
            if e.values[0]["max_seq_len"] == length and e.values[1] == probability
        ]
        if not chosen:
            continue
        # Where the file of a bad game ends, the next one begins.
        files = {f"{n:03}.parquet": games[e["game"]] for n, e in enumerate(chosen)}
        settings = f"window_start: FIRST_PLY skip_board_probability: {probability}"
        run = make_feed(
            write_files(tmp_path / f"games-{probability}", files),
            length=length,
            source="shuffle_files: false",
            games=f"{EXACT} {settings}",
        )
        want = [e["sample"] for e in chosen if "sample" in e]
        assert_samples(all_of(run), want, reference.PRETRAIN_TENSORS)
        told = [name for name in files if f"/{name} " in run.text()]
        bad = [name for name, e in zip(files, chosen) if "sample" not in e]
        # Of more than two the log shows fewer and fewer.
        assert told[:2] == bad[:2] and set(told) <= set(bad), run.text()


def test_no_board_but_the_first(make_feed: MakeFeed, tmp_path: Path) -> None:
    """Values over values: as the reference writes the shared games without their boards."""
    files = {}
    for name, rows in shared("pretrain_games.json")["games"].items():
        files[f"{name}.parquet"] = rows
    directory = write_files(tmp_path / "games", files)
    settings = f"{EXACT} window_start: FIRST_PLY skip_board_probability: 1"
    got = all_of(make_feed(directory, games=settings))
    want = reference.pretrain_batches(
        reference.parquet_files(directory), 256, 16, seed=SEED, skip_board_prob=1, start_first=True
    )
    assert_same(got, list(want))


@pytest.mark.parametrize("order", ["", "order: EXACT shuffle_games: false"])
def test_values_of_the_played_move(make_feed: MakeFeed, tmp_path: Path, order: str) -> None:
    (tmp_path / "games").mkdir()
    rows = chess_data.random_games(20, 11, plies=12, missing=False)
    asked = []
    for number, row in enumerate(rows):
        row["played_q"] = None if number % 7 == 3 else number % 11 / 8 - 0.5
        row["played_d"] = None if number % 5 == 2 else number % 3 / 4
        known = row["played_q"] is not None and row["played_d"] is not None
        # Only both together are worth something; q is what win less loss would be.
        wdl = (row["played_q"], row["played_d"], 0.0) if known else (None, None, None)
        asked.append({**row, **dict(zip(("win", "draw", "loss"), wdl))})
    chess_data.write_parquet(
        rows,
        tmp_path / "games" / "a.parquet",
        columns=[*chess_data.GAME_COLUMNS, "played_q", "played_d"],
        types={"played_q": pa.float64(), "played_d": pa.float64()},
    )
    got = stacked(
        all_of(
            make_feed(
                tmp_path / "games",
                games=f"value_columns: PLAYED_Q_D window_start: FIRST_PLY {order}",
                batcher="lineage: true",
            )
        )
    )
    assert len(got["input_ids"]) == 20
    ids = reference.game_ids(asked)
    for number, (_, game, start, _) in enumerate(got["lineage"]):
        sequence = reference.game_tokens(reference.game_rows(asked, ids[game]), lambda _: True)
        want = reference.game_sample(sequence, int(start), 256, overwrite_values=bool(order))
        for name, array in want.items():
            assert np.array_equal(got[name][number], array), (name, game)


def test_positions_as_tokens(make_feed: MakeFeed, tmp_path: Path) -> None:
    positions = [position for position in shared("fen_tokens.json") if "ids" in position]
    rows = [
        {
            **{"fen": position["fen"], "played_move": "e2e4", "best_move": "e2e4"},
            **{"win": 0.5, "draw": 0.3, "loss": 0.2, "game_id": f"g{number}", "ply": 1},
        }
        for number, position in enumerate(positions)
    ]
    directory = write_files(tmp_path / "games", {"a.parquet": rows})
    got = stacked(all_of(make_feed(directory, length=68, games=f"{EXACT} shuffle_games: false")))
    assert got["input_ids"].tolist() == [position["ids"] for position in positions]
    again = stacked(all_of(make_feed(directory, length=68, batcher="lineage: true")))
    order = np.argsort(again["lineage"][:, 1])
    assert again["input_ids"][order].tolist() == [position["ids"] for position in positions]


def game_of(name: str, plies: int = 1) -> list[dict[str, Any]]:
    """A game whose values tell which one it is."""
    return [
        {
            **{"fen": "8/8/8/8/8/8/8/K6k w - - 0 1", "played_move": "a1a2", "best_move": "a1a2"},
            **{"win": 0.0, "draw": int(name) / 64, "loss": 0.0, "game_id": name, "ply": ply},
        }
        for ply in range(plies)
    ]


def test_files_are_dealt_to_workers_as_the_original_deals_them(
    make_feed: MakeFeed, tmp_path: Path
) -> None:
    for case in shared("sharding.json"):
        if case["files"] not in (1, 5, 7, 10) or case["num_workers"] not in (1, 2, 3, 4, 8):
            continue
        names = [f"{number:03}" for number in range(case["files"])]
        directory = tmp_path / f"games-{case['files']}-{case['num_workers']}"
        write_files(directory, {f"{name}.parquet": game_of(name) for name in names})
        settings = f"{EXACT} workers: {case['num_workers']}"
        run = make_feed(
            directory, batch=2, length=71, source="shuffle_files: false", games=settings
        )
        got = [(64 * batch["d_targets"][:, 70]).astype(int).tolist() for batch in all_of(run)]
        parts = [list(range(*part)) for part in case["ranges"]]
        want = []
        while any(parts):
            for part in parts:
                if part:
                    want.append(part[:2])
                    del part[:2]
        assert got == want, case


def test_each_example_of_a_searched_position(make_feed: MakeFeed, tmp_path: Path) -> None:
    """Those of one attempt; longer chains of draws are looked at with random data."""
    rows = shared("finetune_rows.json")["rows"]
    kinds: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    names = ("max_seq_len", "max_variations", "max_depth", "tau_base", "tau_alpha")
    for example in shared("finetune_examples.json")["examples"]:
        if len(example["attempts"]) <= 1:
            kinds.setdefault(tuple(example[name] for name in names), []).append(example)
    compared = 0
    for number, (kind, chosen) in enumerate(kinds.items()):
        length, lines, depth, tau_base, tau_alpha = kind
        search = reference.Search(lines, depth, tau_base, tau_alpha)
        files, want = {}, {}
        for example in chosen:
            row = rows[example["row"]]
            for attempt in itertools.count():
                name = f"{example['row']}-{attempt}.parquet"
                draws = chess_draws.draws_of(SEED, "searched", 0, name, 0)
                sample = chess_draws.variation_sample(row, draws, length, search)
                if name in files:
                    continue
                if sample is None or "sample" not in example:
                    assert sample is None and "sample" not in example, example["name"]
                    break
                if sample["input_ids"].tolist() == example["sample"]["input_ids"]:
                    break
            files[name] = [row]
            if "sample" in example:
                want[name] = example["sample"]
        run = make_feed(
            write_files(tmp_path / f"searched-{number}", files),
            pipeline=VARIATIONS,
            length=length,
            variations=f"max_variations: {lines} max_depth: {depth} "
            f"tau_base: {tau_base} tau_alpha: {tau_alpha}",
            batcher="lineage: true",
        )
        if not want:
            continue
        got = stacked(all_of(run))
        found = [sorted(files)[of] for of in got.pop("lineage")[:, 0]]
        assert sorted(found) == sorted(want)
        for at, name in enumerate(found):
            for array, values in want[name].items():
                expected = np.asarray(values).astype(got[array].dtype)
                assert np.array_equal(got[array][at], expected), (name, array)
            compared += 1
    assert compared >= 10


VARIATIONS = """
feed: "chess"
seed: {seed}
epochs: {epochs}
stages {{ name: "rows" parquet_source {{ directory: "{directory}" {source} }} }}
stages {{ name: "searched" chess_variations {{ input: "rows" length_max: {length} {variations} }} }}
stages {{ name: "batches" sequence_batcher {{ input: "searched" batch_size: {batch} {batcher} }} }}
feed_output {{ slots: {slots} dispatch: {dispatch} {groups} }}
{extra}
"""


# --- Random data --------------------------------------------------------------------------------


@dataclass
class RandomData:
    """Directories of random data, and what is in their files."""

    games: Path
    searched: Path
    few_games: Path
    few_searched: Path
    rows: dict[Path, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)

    def files(self, directory: Path) -> dict[str, list[dict[str, Any]]]:
        if directory not in self.rows:
            self.rows[directory] = {
                name: reference.complete_rows(reference.read_rows(path))
                for name, path in reference.parquet_files(directory).items()
            }
        return self.rows[directory]

    @functools.cache
    def games_of(self, directory: Path) -> list[list[list[reference.Row]]]:
        """Rows of each game of each file."""
        found = []
        for rows in self.files(directory).values():
            games: dict[Any, list[reference.Row]] = {name: [] for name in reference.game_ids(rows)}
            for row in rows:
                if not reference.is_missing(row["game_id"]):
                    games[row["game_id"]].append(row)
            found.append([reference.game_rows(game, name) for name, game in games.items()])
        return found

    __hash__ = object.__hash__


PHYSICAL: list[dict[str, Any]] = [
    {},
    {"row_group_size": 100, "interleave_seed": 1},
    {"dictionary_typed": ("game_id", "played_move", "best_move", "fen"), "page_version": "2.0"},
    {"float32": True, "row_group_size": 700, "compression": "zstd"},
    {"large_strings": True, "dictionary": False, "page_bytes": 4096, "compression": "gzip"},
    {"interleave_seed": 2, "compression": "none", "row_group_size": 1},
]


@pytest.fixture(scope="module")
def random_data(tmp_path_factory: pytest.TempPathFactory) -> RandomData:
    """2,000 games, those of every third file with faults, and 300 searched positions."""
    top = tmp_path_factory.mktemp("chess")
    data = RandomData(*(top / name for name in ("games", "searched", "few", "few-searched")))
    for directory in (data.games, data.searched, data.few_games, data.few_searched):
        directory.mkdir()
    for number in range(20):
        rows = chess_data.random_games(100, 3, plies=20, first=100 * number, faults=number % 3 == 0)
        if number % 5 == 0:
            # What belongs to no game, a game of which nothing is known but its name, and plies
            # without a number.
            rows[10]["game_id"] = None
            rows[20]["ply"] = rows[21]["ply"] = None
            rows.append({**rows[0], "game_id": rows[-1]["game_id"], "ply": -1})
        options = dict(PHYSICAL[number % len(PHYSICAL)])
        if options.get("row_group_size") == 1:
            rows = rows[:300]
        name = f"part-{number}.parquet"
        chess_data.write_parquet(rows, data.games / name, **options)
    searched = chess_data.random_variation_rows(300, 4, faults=True)
    for number in range(6):
        path = data.searched / f"part-{number:03}.parquet"
        options = {**PHYSICAL[number], "row_group_size": 16}
        chess_data.write_parquet(searched[number::6], path, **options)
    rows = chess_data.random_games(240, 8, plies=8)
    names = reference.game_ids(rows)
    for number in range(6):
        mine = set(names[number::6])
        part = [row for row in rows if row["game_id"] in mine]
        chess_data.write_parquet(part, data.few_games / f"{number}.parquet", row_group_size=50)
    for number in range(3):
        path = data.few_searched / f"{number}.parquet"
        chess_data.write_parquet(searched[number:90:3], path, row_group_size=8)
    return data


@pytest.mark.parametrize("length, workers, skip", [(70, 0, 0.2), (256, 3, 0.2), (1024, 3, 0.0)])
def test_random_games_in_exact_order(
    make_feed: MakeFeed, random_data: RandomData, length: int, workers: int, skip: float
) -> None:
    settings = f"{EXACT} skip_board_probability: {skip} workers: {workers}"
    got = all_of(make_feed(random_data.games, epochs=2, length=length, games=settings))
    log: list[str] = []
    want = [
        batch
        for epoch in range(2)
        for batch in reference.pretrain_batches(
            random_data.files(random_data.games),
            *(length, 16),
            seed=SEED,
            epoch=epoch,
            num_workers=max(workers, 1),
            skip_board_prob=skip,
            log=log,
        )
    ]
    assert_same(got, want)
    assert len(log) >= 4 and rows_of(got) > 2000, "faults ended files"


@pytest.mark.parametrize("length, workers, ratio", [(256, 0, 0.4), (1024, 3, 0.2), (160, 2, 0.5)])
def test_a_random_mix_in_exact_order(
    make_feed: MakeFeed, random_data: RandomData, length: int, workers: int, ratio: float
) -> None:
    """In 160 tokens there is room for one line of one position, which is the last to be tried."""
    got = all_of(
        make_feed(
            random_data.games,
            random_data.searched,
            epochs=2,
            length=length,
            ratio=ratio,
            games=f"{EXACT} skip_board_probability: 0.2",
            variations=f"{EXACT} max_variations: 4",
            mixer=f"{EXACT} workers: {workers}",
        )
    )
    want = [
        batch
        for epoch in range(2)
        for batch in reference.finetune_batches(
            random_data.files(random_data.games),
            random_data.files(random_data.searched),
            *(length, 16),
            seed=SEED,
            epoch=epoch,
            num_workers=max(workers, 1),
            variation_ratio=ratio,
            skip_board_prob=0.2,
            search=reference.Search(max_variations=4),
        )
    ]
    assert_same(got, want)
    assert got[-1]["variation_epoch"].max() > 0


# --- Order BETTER -------------------------------------------------------------------------------


def outcomes(
    data: RandomData, directory: Path, epoch: int, length: int, skip: float, **options: Any
) -> tuple[dict[tuple[int, int], tuple[int, reference.Sample]], Counter[str]]:
    """Start and sample of each game, by file and game, and how many have which fault."""
    samples, faults = {}, Counter[str]()
    for file, (name, games) in enumerate(zip(data.files(directory), data.games_of(directory))):
        for number, rows in enumerate(games):
            draws = chess_draws.draws_of(options.get("seed", SEED), "games", epoch, name, number)
            choice = chess_draws.game_choice([chess_draws.has_move(r) for r in rows], draws, skip)
            sample, fault = chess_draws.game_sample(rows, choice, length)
            if sample is None:
                faults[fault] += 1
            else:
                samples[file, number] = (choice.start, sample)
    return samples, faults


def assert_outcomes(
    rows: dict[str, np.ndarray], want: dict[tuple[int, int], tuple[int, reference.Sample]]
) -> None:
    """Every sample once, each as it was drawn."""
    found = [(int(file), int(game)) for file, game in rows["lineage"][:, :2]]
    assert len(found) == len(set(found)) and set(found) == set(want)
    for number, place in enumerate(found):
        start, sample = want[place]
        assert rows["lineage"][number, 2] == start, place
        for name, array in sample.items():
            assert np.array_equal(rows[name][number], array), (place, name)


@pytest.mark.parametrize("length, skip", [(256, 0.3), (90, 0.0)])
def test_each_game_comes_once_an_epoch_as_it_was_drawn(
    make_feed: MakeFeed, random_data: RandomData, length: int, skip: float
) -> None:
    epochs = [outcomes(random_data, random_data.games, e, length, skip) for e in range(2)]
    wanted = [len(samples) for samples, _ in epochs]
    run = make_feed(
        random_data.games,
        epochs=2,
        length=length,
        batch=64,
        games=f"skip_board_probability: {skip}",
        batcher="lineage: true",
    )
    got, counters = counted(run, sum(wanted))
    rows = stacked(got)
    first = {name: array[: wanted[0]] for name, array in rows.items()}
    second = {name: array[wanted[0] :] for name, array in rows.items()}
    assert_outcomes(first, epochs[0][0])
    assert_outcomes(second, epochs[1][0])
    assert not np.array_equal(first["lineage"][:100], second["lineage"][:100])
    starts = [{place: start for place, (start, _) in samples.items()} for samples, _ in epochs]
    assert starts[0] != starts[1], "windows are drawn anew"
    # What did not come is counted, by its fault.
    faults = epochs[0][1] + epochs[1][1]
    of_games = counters["games"]
    for column in ("fen", "played_move", "best_move"):
        assert of_games[f"skipped_{column}"] == faults[column], column
        assert faults[column] > 0
    games = sum(len(games) for games in random_data.games_of(random_data.games))
    assert of_games["games"] == 2 * games == of_games["sequences"] + sum(faults.values())
    assert of_games["sequences"] == counters["batches"]["rows"] == sum(wanted)
    without_game = sum(
        reference.is_missing(row["game_id"])
        for rows_of_file in random_data.files(random_data.games).values()
        for row in rows_of_file
    )
    assert of_games["rows_without_game"] == 2 * without_game > 0
    tokens = int((rows["input_ids"] != reference.PAD).sum())
    assert counters["batches"]["tokens"] == tokens


def in_order(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows ordered by file and game."""
    order = np.lexsort((rows["lineage"][:, 1], rows["lineage"][:, 0]))
    return {name: array[order] for name, array in rows.items()}


def assert_equal_rows(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert list(one) == list(other)
    for name in one:
        assert np.array_equal(one[name], other[name]), name


def test_threads_change_nothing(make_feed: MakeFeed, random_data: RandomData) -> None:
    settings = "skip_board_probability: 0.2 pool_size: 100"
    plain = all_of(make_feed(random_data.games, games=settings, batcher="lineage: true"))
    for source, games, batcher in (
        ("threads: 4", f"{settings} threads: 4", "lineage: true"),
        ("", f"{settings} threads: 3", "lineage: true threads: 2"),
    ):
        run = make_feed(random_data.games, source=source, games=games, batcher=batcher)
        got = all_of(run)
        assert len(got) == len(plain)
        for one, other in zip(got, plain):
            assert_equal_rows(one, other)


def test_another_seed_decides_otherwise(make_feed: MakeFeed, random_data: RandomData) -> None:
    seeds = (SEED, 8)
    got = []
    for seed in seeds:
        run = make_feed(random_data.few_games, seed=seed, batcher="lineage: true")
        got.append(stacked(all_of(run)))
        want, _ = outcomes(random_data, random_data.few_games, 0, 256, 0.0, seed=seed)
        assert_outcomes(got[-1], want)
    assert not np.array_equal(got[0]["lineage"], got[1]["lineage"])
    one, other = (in_order(rows)["lineage"] for rows in got)
    assert np.array_equal(one[:, :2], other[:, :2])
    assert np.mean(one[:, 2] != other[:, 2]) > 0.5


def test_small_types_hold_the_same(make_feed: MakeFeed, random_data: RandomData) -> None:
    extras = "lineage: true limit_masks: true"
    directories = (random_data.games, random_data.searched)
    wide, compact = (
        stacked(all_of(make_feed(*directories, length=1024, batcher=f"{extras} {more}")))
        for more in ("", "compact: true")
    )
    types = {name: array.dtype.name for name, array in compact.items()}
    assert list(wide) == list(compact)
    assert types == {
        **dict.fromkeys(wide, "bool"),
        **{"input_ids": "int16", "board_target_ids": "int8", "move_target_ids": "int16"},
        **{"wl_targets": "float32", "d_targets": "float32", "block_id": "int16"},
        **{"variation_epoch": "int32", "lineage": "int32"},
    }
    assert_equal_rows(
        wide, {name: array.astype(wide[name].dtype) for name, array in compact.items()}
    )


def test_machines_share_the_samples_of_one_seed(
    make_feed: MakeFeed, random_data: RandomData
) -> None:
    whole = stacked(all_of(make_feed(random_data.few_games, epochs=3, batcher="lineage: true")))
    for rank in range(3):
        batcher = f"lineage: true rank: {rank} world_size: 3"
        part = stacked(all_of(make_feed(random_data.few_games, epochs=3, batcher=batcher)))
        assert_equal_rows(part, {name: array[rank::3] for name, array in whole.items()})


def test_machines_share_the_files(make_feed: MakeFeed, random_data: RandomData) -> None:
    files = list(random_data.files(random_data.few_games).items())
    for rank in range(4):
        source = f"rank: {rank} world_size: 4"
        part = rows_of(all_of(make_feed(random_data.few_games, source=source)))
        assert part == sum(len(reference.game_ids(rows)) for _, rows in files[rank::4])


def test_searched_positions_are_written_as_was_drawn(
    make_feed: MakeFeed, random_data: RandomData
) -> None:
    """Each row that can be used, in each epoch, with the masks of limits."""
    directory, length = random_data.searched, 600
    search = reference.Search(max_variations=4, max_depth=6, tau_base=0.5, tau_alpha=0.7)
    want = []
    for epoch in range(2):
        samples = {}
        for file, (name, rows) in enumerate(random_data.files(directory).items()):
            for number, row in enumerate(rows):
                draws = chess_draws.draws_of(SEED, "searched", epoch, name, number)
                sample = chess_draws.variation_sample(row, draws, length, search)
                if sample is not None:
                    samples[file, number] = sample
        want.append(samples)
    run = make_feed(
        directory,
        pipeline=VARIATIONS,
        epochs=2,
        length=length,
        variations="max_variations: 4 max_depth: 6 tau_base: 0.5 tau_alpha: 0.7 threads: 2",
        batcher="lineage: true limit_masks: true",
    )
    got, counters = counted(run, sum(len(samples) for samples in want))
    rows = stacked(got)
    assert len(rows["input_ids"]) == sum(len(samples) for samples in want)
    at = 0
    for samples in want:
        lineage = rows["lineage"][at : at + len(samples)]
        found = [(int(file), int(number)) for file, number in lineage[:, :2]]
        assert sorted(found) == sorted(samples)
        for number, place in enumerate(found, at):
            for name, array in samples[place].items():
                if name != "variation_epoch":
                    assert np.array_equal(rows[name][number], array), (place, name)
        at += len(samples)
    for name in ("end_var_max_depth_mask", "end_think_max_var_mask", "first_is_not_best"):
        assert 0 < rows[name].sum() < rows[name].size, name
    of_rows = counters["searched"]
    skipped = sum(value for name, value in of_rows.items() if name.startswith("skipped_"))
    assert of_rows["sequences"] + skipped + of_rows["rows_without_variations"] == of_rows["rows"]
    assert of_rows["rows"] == 600 and of_rows["tried_again"] > 20
    assert of_rows["skipped_json"] > 0 and of_rows["skipped_fen"] > 0


def searched_row(**changes: Any) -> dict[str, Any]:
    """A searched position of two lines, with other values in the first one."""
    row = dict(shared("finetune_rows.json")["rows"]["two_var"])
    lines = json.loads(row["variations"])
    lines[0].update(changes)
    return {**row, "variations": json.dumps(lines)}


@pytest.mark.parametrize(
    "changes, kept",
    [({"nodes": []}, True), ({"nodes": None}, False), ({"visit_count": None}, False)],
    ids=["no_nodes", "null_nodes", "null_visits"],
)
def test_a_null_in_a_line_costs_its_row(
    make_feed: MakeFeed, tmp_path: Path, changes: dict[str, Any], kept: bool
) -> None:
    rows = [searched_row(), searched_row(**changes), searched_row()]
    directory = write_files(tmp_path / "searched", {"a.parquet": rows})
    run = make_feed(directory, pipeline=VARIATIONS, length=512, batcher="lineage: true")
    numbers = sorted(stacked(all_of(run))["lineage"][:, 1].tolist())
    assert numbers == ([0, 1, 2] if kept else [0, 2])


# --- Mixes in order BETTER ----------------------------------------------------------------------

THINKS = reference.ID_OF["start_think"]


def is_searched(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Which rows are searched positions."""
    return (rows["input_ids"][:, :69] == THINKS).any(axis=1)


def test_the_share_of_variations(make_feed: MakeFeed, random_data: RandomData) -> None:
    run = make_feed(
        random_data.games,
        random_data.searched,
        length=256,
        ratio=0.3,
        source="threads: 2",
        variations="max_variations: 2 max_depth: 2 pool_size: 30",
        batcher="lineage: true",
    )
    games, _ = outcomes(random_data, random_data.games, 0, 256, 0.0)
    rows = stacked(all_of(run))
    searched = is_searched(rows)
    # Each game once, whatever is between.
    mine = {name: array[~searched] for name, array in rows.items()}
    assert_outcomes({n: a for n, a in mine.items() if n != "thinking_move_mask"}, games)
    for name in ("thinking_move_mask", "first_is_not_best", "new_variation_mask"):
        assert not mine[name].any()
    # About 2,800 draws: five standard deviations.
    total = len(searched)
    assert abs(searched.mean() - 0.3) < 5 * (0.3 * 0.7 / total) ** 0.5
    # They begin again and again, drawn anew each time, and each row comes once in between.
    epochs = rows["variation_epoch"]
    assert epochs[0] == 0 and epochs[-1] >= 2 and set(np.diff(epochs)) == {0, 1}
    assert np.array_equal(rows["lineage"][:, 3], epochs)
    search = reference.Search(max_variations=2, max_depth=2)
    files = list(random_data.files(random_data.searched).items())
    seen = Counter[int]()
    for number in np.flatnonzero(searched):
        file, row, start, epoch = (int(word) for word in rows["lineage"][number])
        name, of_file = files[file]
        draws = chess_draws.draws_of(SEED, "variations", epoch, name, row)
        sample = chess_draws.variation_sample(of_file[row], draws, 256, search)
        assert sample is not None and start == 0
        for array in reference.FINETUNE_TENSORS:
            if array != "variation_epoch":
                assert np.array_equal(rows[array][number], sample[array]), (name, row, array)
        seen[epoch] += 1
    places = {tuple(place) for place in rows["lineage"][searched][:, [0, 1, 3]].tolist()}
    assert len(places) == searched.sum()
    assert len({seen[epoch] for epoch in range(int(epochs[-1]))}) <= 2


@pytest.mark.parametrize("searched", ["no_files", "no_rows", "no_variations"])
@pytest.mark.parametrize("order", ["", EXACT])
def test_a_mix_without_variations_is_its_games(
    make_feed: MakeFeed, random_data: RandomData, tmp_path: Path, searched: str, order: str
) -> None:
    directory = tmp_path / "searched"
    rows = chess_data.random_variation_rows(20, 9)
    for row in rows:
        row["variations"] = "[]"
    columns = list(chess_data.COLUMN_TYPES)
    directory.mkdir()
    if searched != "no_files":
        kept = rows if searched == "no_variations" else []
        chess_data.write_parquet(kept, directory / "a.parquet", columns=columns)
        chess_data.write_parquet(kept, directory / "b.parquet", columns=columns)
    run = make_feed(
        random_data.few_games,
        directory,
        epochs=2,
        ratio=0.5,
        **{"games": order, "variations": order, "mixer": order},
    )
    got = all_of(run)
    assert rows_of(got) == 480 and not is_searched(stacked(got)).any()


# --- Deaths -------------------------------------------------------------------------------------

OFTEN = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: 255 }"
STAGES = ("rows", "games", "searched", "variations", "mixer", "batches")
APART = " ".join(f'stage_groups {{ name: "{name}" stages: "{name}" }}' for name in STAGES)


def killed(run: FeedRun, kills: int, supervisor_at: int | None, seed: int) -> Batches:
    """The batches of a feed whose workers are killed while a trainer reads."""
    rng = random.Random(seed)
    got: Batches = []
    victims = Counter[str]()
    with ringfeed.attach(
        run.start().feed, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
    ) as feed:
        for batch in feed:
            got.append({name: np.array(batch[name]) for name in batch})
            batch.release()
            if len(got) == supervisor_at:
                run.process.kill()
                run.process.wait()
                run.start()
                wait_until(lambda: "feed_adopted" in run.text() and run.status(), "the successor")
            elif len(got) % 4 == 3 and victims.total() < kills:
                wait_until(run.all_workers, "a worker")
                # Each in its turn while it lives, so that all are among them.
                if name := kill_a_worker(run, rng, STAGES[victims.total() % len(STAGES)]):
                    victims[name] += 1
    assert run.wait() == 0, run.text()
    assert victims.total() == kills and len(victims) >= 4, victims
    assert "dead_letter" not in run.text()
    return got


@pytest.mark.parametrize("order", ["", EXACT], ids=["better", "exact"])
def test_a_mix_whose_workers_are_killed_is_the_same(
    make_feed: MakeFeed, random_data: RandomData, order: str
) -> None:
    better = not order
    small = "queue_capacity: 4"
    settings = {
        "epochs": 3,
        "batch": 8,
        "slots": 4,
        "length": 400,
        "ratio": 0.4,
        "source": small,
        "variation_source": small,
        "games": f"{order} {small} skip_board_probability: 0.2"
        + (" pool_size: 50 threads: 2" if better else ""),
        "variations": f"{order} {small}" + (" pool_size: 20" if better else ""),
        "mixer": f"{order} {small}" + ("" if better else " workers: 2"),
        "batcher": "lineage: true",
    }
    directories = (random_data.few_games, random_data.few_searched)
    calm = all_of(make_feed(*directories, **settings))
    assert len(calm) > 100
    for seed, supervisor_at in ((1, None), (2, 30)):
        run = make_feed(*directories, **settings, extra=f"{OFTEN} {APART}")
        got = killed(run, 18, supervisor_at, seed)
        assert len(got) == len(calm)
        for one, other in zip(got, calm):
            assert_equal_rows(one, other)


# --- Bad input ----------------------------------------------------------------------------------


def bad_directory(directory: Path) -> int:
    """A directory with a good file among bad ones; its number of games."""
    directory.mkdir()
    rows = chess_data.random_games(40, 5, plies=10)
    chess_data.write_parquet(rows, directory / "f-good.parquet")
    whole = (directory / "f-good.parquet").read_bytes()
    (directory / "a-cut.parquet").write_bytes(whole[: len(whole) // 2])
    (directory / "b-text.parquet").write_text("fen,played_move\nno,Parquet\n" * 50)
    (directory / "c-empty.parquet").write_bytes(b"")
    some = [name for name in chess_data.GAME_COLUMNS if name != "best_move"]
    chess_data.write_parquet(rows, directory / "d-column.parquet", columns=some)
    numbers = [{**row, "fen": 3} for row in rows]
    chess_data.write_parquet(numbers, directory / "e-type.parquet", types={"fen": pa.int64()})
    # No files of the feed.
    (directory / ".hidden.parquet").write_bytes(whole)
    (directory / "other.parq").write_bytes(whole)
    (directory / "below.parquet").mkdir()
    return len(reference.game_ids(rows))


@pytest.mark.parametrize("order", ["BETTER", "EXACT"])
def test_columns_of_one_name_are_refused_by_name(
    make_feed: MakeFeed, tmp_path: Path, order: str
) -> None:
    """As sample_source refuses them; of names that nobody asks for there may be several."""
    directory = tmp_path / "games"
    directory.mkdir()
    rows = chess_data.random_games(9, 5, plies=10)
    games = len(reference.game_ids(rows))
    for name, column in (("a", "fen"), ("b", "comment")):
        chess_data.write_parquet(rows, directory / f"{name}.parquet")
        table = pq.read_table(directory / f"{name}.parquet")
        for _ in range(2 if column == "comment" else 1):
            table = table.append_column(column, pa.array(["8/8 w - -"] * table.num_rows))
        pq.write_table(table, directory / f"{name}.parquet")
    source = "" if order == "EXACT" else "shuffle_files: false"
    run = make_feed(directory, source=source, games=f"order: {order}")
    got, counters = counted(run, games)
    assert rows_of(got) == games
    assert counters["rows"]["skipped_wrong_type"] == 1
    assert "a.parquet offset=0: it has 2 columns 'fen', and nothing says which" in run.text()


def test_bad_files_are_counted_and_named(make_feed: MakeFeed, tmp_path: Path) -> None:
    games = bad_directory(tmp_path / "games")
    run = make_feed(tmp_path / "games", source="shuffle_files: false", batcher="lineage: true")
    got, counters = counted(run, games)
    assert rows_of(got) == games
    assert set(stacked(got)["lineage"][:, 0]) == {5}
    source = counters["rows"]
    assert (source["files_found"], source["files_read"]) == (6, 1)
    assert source["skipped_unreadable"] == 3
    assert source["skipped_missing_column"] == 1
    assert source["skipped_wrong_type"] == 1
    text = run.text()
    # The third of a kind is counted alone.
    for name in ("a-cut", "b-text", "d-column", "e-type"):
        lines = [line for line in text.splitlines() if f"{name}.parquet" in line]
        assert lines and any("skipped stage=rows" in line for line in lines), (name, text)
    (line,) = [line for line in text.splitlines() if "d-column.parquet" in line]
    assert "missing: best_move" in line and "played_move" in line
    (line,) = [line for line in text.splitlines() if "e-type.parquet" in line]
    assert "column fen" in line and "text" in line


def test_bad_files_in_exact_order(make_feed: MakeFeed, tmp_path: Path) -> None:
    games = bad_directory(tmp_path / "games")
    run = make_feed(tmp_path / "games", source="shuffle_files: false", games=EXACT)
    got, counters = counted(run, games)
    assert rows_of(got) == games
    assert counters["games"]["files_given_up"] == 5
    for name in ("a-cut", "b-text", "d-column", "e-type"):
        assert f"{name}.parquet" in run.text()


def test_a_directory_that_is_missing_or_empty(make_feed: MakeFeed, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    directories = {"nowhere": "does not exist", "empty": "no *.parquet files"}
    runs = [make_feed(tmp_path / name).start() for name in directories]
    for run, (name, what) in zip(runs, directories.items()):
        assert run.wait() == 1
        assert what in run.text()
        assert f"without a single batch: rows: {tmp_path / name}: " in run.text()


def refused(run: FeedRun) -> str:
    """What is said of a configuration that is not begun with."""
    assert run.start().wait() not in (0, None)
    assert not run.record()
    return run.text()


@pytest.mark.parametrize("stage", ["games", "variations", "mixer"])
def test_exact_order_in_one_stage_alone_is_refused(
    make_feed: MakeFeed, random_data: RandomData, stage: str
) -> None:
    run = make_feed(random_data.few_games, random_data.few_searched, **{stage: EXACT})
    text = refused(run)
    assert "order" in text and stage in text and "EXACT" in text + " EXACT", text


def test_lengths_that_do_not_fit_are_refused(make_feed: MakeFeed, random_data: RandomData) -> None:
    text = refused(make_feed(random_data.few_games, length=256, batcher="length: 255"))
    assert "batches" in text and "256" in text and "255" in text
    text = refused(make_feed(random_data.few_games, batcher="limit_masks: true"))
    assert "stage 'batches': limit_masks: no variations arrive here" in text
    text = refused(make_feed(random_data.few_games, batcher="rank: 2 world_size: 2"))
    assert "stage 'batches': rank: 2 is not one of 2 machines" in text


def test_longer_rows_are_padded(make_feed: MakeFeed, random_data: RandomData) -> None:
    plain, padded = (
        stacked(all_of(make_feed(random_data.few_games, length=100, batcher=f"{more}")))
        for more in ("", "length: 130")
    )
    assert np.array_equal(padded["input_ids"][:, :100], plain["input_ids"])
    assert (padded["input_ids"][:, 100:] == reference.PAD).all()
    assert np.array_equal(padded["block_id"][:, :100], plain["block_id"])


# --- Training -----------------------------------------------------------------------------------


def test_a_model_learns_from_a_feed(make_feed: MakeFeed, random_data: RandomData) -> None:
    torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")
    sys.path.insert(0, str(ROOT / "docs" / "examples"))
    import chess_pretrain

    run = make_feed(random_data.few_games, epochs=0, length=71, batch=8).start()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = chess_pretrain.ChessModel(71, width=48, layers=1, heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    losses = []
    with ringfeed.attach(
        run.feed, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
    ) as feed:
        for batch in itertools.islice(feed, 150):
            loss = chess_pretrain.loss_of(model, batch.to("cpu"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    first, last = sum(losses[:20]) / 20, sum(losses[-20:]) / 20
    assert last < 0.7 * first, (first, last)
    assert run.stop() == 0, run.text()
