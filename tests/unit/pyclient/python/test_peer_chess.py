"""The peer of the chess benchmark gives what the reference gives: else it would measure nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TESTS.parent))
sys.path.insert(0, str(TESTS / "bench"))

pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

import peer_chess  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from tests.support.makers import chess_data  # noqa: E402
from tests.support.oracles import chess_reference as reference  # noqa: E402


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("chess")
    for kind in ("games", "variations"):
        (root / kind).mkdir()
    for number in range(3):
        games = chess_data.random_games(12, 4, first=12 * number, plies=12, faults=number == 1)
        chess_data.write_parquet(games, root / "games" / f"{number}.parquet", interleave_seed=1)
        rows = chess_data.random_variation_rows(12, number, faults=number == 1)
        chess_data.write_parquet(rows, root / "variations" / f"{number}.parquet")
    return root


def assert_same_batches(
    made: Iterator[Mapping[str, Any]], wanted: Iterator[reference.Sample]
) -> None:
    count = 0
    for one, other in zip(made, wanted, strict=True):
        assert set(one) == set(other)
        for name, array in other.items():
            assert one[name].numpy().dtype == array.dtype, name
            np.testing.assert_array_equal(one[name].numpy(), array, err_msg=name)
        count += 1
    assert count > 3


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_games_are_those_of_the_reference(data: Path, workers: int) -> None:
    dataset = peer_chess.ChessDataset(data / "games", None, 300, 0.3, seed=9)
    dataset.epoch = 1
    loader = DataLoader(dataset, batch_size=5, num_workers=workers)
    wanted = reference.pretrain_batches(
        reference.parquet_files(data / "games"),
        300,
        5,
        seed=9,
        epoch=1,
        num_workers=max(1, workers),
        skip_board_prob=0.3,
    )
    assert_same_batches(iter(loader), wanted)


@pytest.mark.parametrize("length", [512, 1200])
def test_fine_tuning_batches_are_those_of_the_reference(data: Path, length: int) -> None:
    games, variations = data / "games", data / "variations"
    dataset = peer_chess.ChessDataset(games, variations, length, variation_ratio=0.6, seed=3)
    wanted = reference.finetune_batches(
        reference.parquet_files(games),
        reference.parquet_files(variations),
        length,
        4,
        seed=3,
        variation_ratio=0.6,
    )
    assert_same_batches(iter(DataLoader(dataset, batch_size=4)), wanted)


def test_the_command_line_prints_one_object(data: Path) -> None:
    program = TESTS / "bench" / "peer_chess.py"
    directories = ["--games", str(data / "games"), "--variations", str(data / "variations")]
    done = subprocess.run(
        [sys.executable, str(program), "finetune", *directories]
        + ["--samples", "40", "--batch-size", "8"],
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    assert result["samples"] >= 40 and result["cpu_s"] > 0 and result["peak_rss_bytes"] > 2**20
