"""The progress of an epoch in fairseq's words, and to fairseq's loggers."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "pyclient"))

import ringfeed  # noqa: E402
from ringfeed.fairseq import progress_bar  # noqa: E402


class Epoch:
    """As GroupedIterator: 400 groups, 249 of them before a resume."""

    n = 249

    def __len__(self) -> int:
        return 400

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n, 400))


class Meter:
    avg = 1.5


STATS = {"loss": 2.346, "nll_loss": 1.23456, "num_updates": 300, "lr": 0.0005, "wall": Meter()}


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.name, record.message) for record in caplog.records]


def test_simple_lines_are_those_of_fairseq(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bar = progress_bar(Epoch(), "simple", 100, epoch=2, prefix="")
    assert len(bar) == 400 and bar.n == 249
    for sample in bar:
        bar.log(STATS, tag="train_inner", step=299)
        bar.log(STATS, tag="train_inner", step=300)
        break
    bar.print(STATS, tag="train", step=300)
    (inner, epoch) = lines(caplog)
    assert sample == 249
    assert inner[0] == "train_inner" and inner[1].startswith(
        "epoch 002:    250 / 400 loss=2.346, nll_loss=1.23456, num_updates=300, lr=0.0005, "
        "wall=1.500, feed_wait="
    )
    assert epoch == (
        "train",
        "epoch 002 | loss 2.346 | nll_loss 1.23456 | num_updates 300 | lr 0.0005 | wall 1.500",
    )


def test_json_lines_have_the_place_and_strings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bar = progress_bar(Epoch(), "json", 100, epoch=2)
    next(iter(bar))
    bar.log(STATS, tag="train_inner", step=300)
    bar.print({"loss": 2.3456789}, tag="valid", step=300)
    inner, epoch = (json.loads(text) for _, text in lines(caplog))
    assert (inner["epoch"], inner["update"], inner["loss"]) == (2, 1.625, "2.346")
    assert 0 <= float(inner["feed_wait"]) <= 1
    assert epoch == {"epoch": 2, "valid_loss": "2.34568"}


def test_none_says_nothing_and_other_formats_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bar = progress_bar(Epoch(), "none", 1)
    next(iter(bar))
    bar.log(STATS, step=1)
    bar.print(STATS)
    assert lines(caplog) == []
    with pytest.raises(ringfeed.InvalidRequest, match="not one of json, none, simple, tqdm"):
        progress_bar(Epoch(), "yaml")
    with pytest.raises(ringfeed.InvalidRequest, match="azureml_logging"):
        progress_bar(Epoch(), "none", azureml_logging=True)
    progress_bar(Epoch(), "none", azureml_logging=False, aim_repo=None)


def test_lines_go_to_a_file_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bar = progress_bar(Epoch(), "simple", 1, log_file=str(tmp_path / "log"), epoch=1)
    bar.print({"loss": 1}, tag="train")
    assert (tmp_path / "log").read_text().endswith(" | INFO | train | epoch 001 | loss 1\n")


def test_without_a_terminal_tqdm_is_simple(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bar = progress_bar(Epoch(), None, 1, epoch=1)
    bar.log({"loss": 1}, tag="train_inner", step=7)
    assert lines(caplog)[0][1].startswith("epoch 001:    249 / 400 loss=1, feed_wait=")


def test_weights_and_biases_get_numbers_by_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    wandb = ModuleType("wandb")
    wandb.init = lambda **options: seen.append(options)  # type: ignore[attr-defined]
    wandb.log = lambda values, step: seen.append((values, step))  # type: ignore[attr-defined]

    class Config:
        def update(self, values: dict[str, Any], allow_val_change: bool) -> None:
            seen.append(values)

    wandb.config = Config()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    bar = progress_bar(Epoch(), "none", 1, wandb_project="mt", wandb_run_name="run-a")
    bar.update_config({"lr": 0.1})
    bar.print({"loss": 1.5, "words": "no number"}, tag="valid", step=9)
    assert seen == [
        {"project": "mt", "name": "run-a", "reinit": False},
        {"lr": 0.1},
        ({"valid/loss": 1.5}, 9),
    ]
