"""The example trainer of docs/examples learns from the batches that a chess feed delivers."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TESTS.parent))
sys.path.insert(0, str(TESTS.parent / "docs" / "examples"))

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

import chess_pretrain  # noqa: E402

from tests.support.makers import chess_data  # noqa: E402
from tests.support.oracles import chess_reference as reference  # noqa: E402

LENGTH = 142  # two plies with their boards


def batches() -> Iterator[dict[str, Any]]:
    files = {"a.parquet": chess_data.random_games(16, 1, plies=8, missing=False)}
    for epoch in itertools.count():
        for batch in reference.pretrain_batches(files, LENGTH, 8, seed=1, epoch=epoch):
            yield {name: torch.from_numpy(array) for name, array in batch.items()}


def test_the_loss_falls_far() -> None:
    torch.manual_seed(0)
    model = chess_pretrain.ChessModel(LENGTH, width=48, layers=2, heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    losses = []
    for batch in itertools.islice(batches(), 160):
        loss = chess_pretrain.loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    first, last = sum(losses[:20]) / 20, sum(losses[-20:]) / 20
    assert last < 0.5 * first, (first, last)


def test_a_board_sees_all_of_itself_and_nothing_that_follows_it() -> None:
    torch.manual_seed(0)
    model = chess_pretrain.ChessModel(LENGTH, width=32, layers=2, heads=2).eval()
    batch = next(batches())
    ids, blocks = batch["input_ids"][:1], batch["block_id"][:1]
    assert blocks[0, :68].tolist() == 68 * [0]

    def differing(changed_place: int) -> list[int]:
        changed = ids.clone()
        changed[0, changed_place] = 7
        with torch.no_grad():
            before, after = model(ids, blocks)[0], model(changed, blocks)[0]
        return [i for i, amount in enumerate((before - after).abs().amax(-1)[0]) if amount > 1e-6]

    assert differing(30)[:68] == list(range(68))
    assert differing(68)[0] == 68


def test_a_batch_without_any_target_has_a_loss_of_zero() -> None:
    model = chess_pretrain.ChessModel(4, width=8, layers=1, heads=1)
    batch = {
        name: torch.zeros(1, 4, dtype=torch.from_numpy(np.zeros(1, dtype)).dtype)
        for name, dtype in reference.PRETRAIN_TENSORS.items()
    }
    batch["board_target_ids"] -= 100
    batch["move_target_ids"] -= 100
    assert chess_pretrain.loss_of(model, batch).item() == 0.0


def test_the_program_trains_on_a_feed_for_as_many_steps_as_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    made = (SimpleNamespace(to=lambda device, tensors=tensors: tensors) for tensors in batches())

    def attach(name: str, group: str) -> Any:
        asked.append((name, group))
        return nullcontext(made)

    # In the place of the package, which needs a feed that runs.
    monkeypatch.setitem(sys.modules, "ringfeed", SimpleNamespace(attach=attach))
    monkeypatch.setattr(sys, "argv", ["chess_pretrain.py", "--steps", "2", "--group", "b"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    chess_pretrain.main()
    assert asked == [("chess_pretrain", "b")]
    assert capsys.readouterr().out.startswith("step 0: loss ")
