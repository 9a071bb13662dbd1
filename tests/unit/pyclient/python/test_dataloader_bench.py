"""tests/bench/dataloader_*.py: each dataset comes whole through each loader that is at hand."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

BENCH = Path(__file__).resolve().parents[3] / "bench"


def cell(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(BENCH / "dataloader_cell.py"), *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("work", ["ready", "tiny", "ragged", "jpeg", "rows", "special"])
@pytest.mark.parametrize("peer", ["torch", "torch-0"])
def test_all_batches_come(peer: str, work: str) -> None:
    if work == "jpeg" and importlib.util.find_spec("PIL") is None:
        pytest.skip("no Pillow: scripts/bench dataloader has it")
    found = cell("cost", peer, work, "--batches=4")
    assert found["batches"] == 4 and found["cpu_ms"] > 0 and found["keeps_workers"]


def test_limits_are_measured_like_loaders() -> None:
    assert cell("cost", "copy", "ready", "--batches=4")["cpu_ms"] > 0
    assert cell("cost", "stack", "ready", "--batches=4")["cpu_ms"] > 0


def test_the_first_batch_and_memory() -> None:
    assert cell("first", "torch")["first_ms"] > 0
    found = cell("memory", "torch", "--gigabytes=0.02")
    assert found["pss_mb"] > found["array_mb"] > 16


def test_the_memory_of_large_batches() -> None:
    found = cell("large", "torch", "--batches=4")
    # Those that wait are in memory that no process has mapped.
    assert found["whole_mb"] > found["pss_mb"] > 51 and found["cpu_ms"] > 0


def test_a_state_is_resumed_where_it_was() -> None:
    pytest.importorskip("torchdata", reason="scripts/test --with-frameworks has it")
    assert cell("resume", "stateful", "--sample=1000")["resumed_ms"] > 0


def test_four_trainers_are_measured_together() -> None:
    assert cell("trainers", "torch", "tiny", "--batches=4")["cpu_ms"] > 0
