"""A pool with a store of inflated games: the same feed, whatever is kept, lost, damaged or in the
way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.scenes import kill_a_worker
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]
CHOICES = {
    "rate": "position_sampling_rate: 0.1",
    "one": "position_count: 1",
    "focus": "position_count: 2 position_sampling { diff_focus_q_weight: 6 diff_focus_pol_scale: 3.5 }",
}


def digests(make_run: MakeRun, **settings: object) -> np.ndarray:
    run = make_run(reservoir=200, batch=64, **settings).start()
    result = run.trainer(positions=0).result()
    assert run.wait() == 0, run.text()
    return result["digests"]


def counters(run: FeedRun) -> dict[str, int]:
    status = run.status() or {"stages": []}
    pools = [stage for stage in status["stages"] if stage["name"] == "pool"]
    return {counter["name"]: counter["value"] for pool in pools for counter in pool["counters"]}


@pytest.mark.parametrize("choice", CHOICES)
def test_same_bytes_with_and_without(make_run: MakeRun, tmp_path: Path, choice: str) -> None:
    settings = {"unpack": CHOICES[choice], "epochs": 8}
    without = digests(make_run, **settings)
    memory = digests(make_run, in_pool="store_bytes: 100000000", readers=2, **settings)
    assert np.array_equal(without, memory)
    # A directory, and then the same one in a second run, with files that were damaged in between.
    store = f'store_bytes: 100000000 store_directory: "{tmp_path / "store"}"'
    assert np.array_equal(without, digests(make_run, in_pool=store, **settings))
    kept = sorted((tmp_path / "store").glob("*.games"))
    assert kept
    assert np.array_equal(without, digests(make_run, in_pool=store, readers=2, **settings))
    with open(kept[0], "r+b") as file:
        for offset in range(3000, 200_000, 7000):
            file.seek(offset)
            file.write(b"damaged")
    assert np.array_equal(without, digests(make_run, in_pool=store, **settings))


def test_same_bytes_while_the_pool_is_killed(make_run: MakeRun, tmp_path: Path) -> None:
    settings = {
        "unpack": CHOICES["rate"],
        "epochs": 30,
        "extra": "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 }",
    }
    without = digests(make_run, **settings)
    store = f'store_bytes: 100000000 store_directory: "{tmp_path / "store"}"'
    run = make_run(reservoir=200, batch=64, in_pool=store, readers=2, **settings).start()
    trainer = run.trainer(positions=0, pause_ms=5)
    for kills in range(1, 9):
        wait_until(lambda: trainer.batches() > 8 * kills, "batches")
        pool = next((name for name in run.all_workers() if "pool" in name), None)
        if pool is not None:
            kill_a_worker(run, random.Random(kills), pool)
    assert np.array_equal(without, trainer.result()["digests"])
    assert run.wait() == 0, run.text()


def test_counters_and_a_directory_that_cannot_be_used(
    make_run: MakeRun, games: lc0_data.Manifest, tmp_path: Path
) -> None:
    run = make_run(unpack=CHOICES["one"], epochs=0, in_pool="store_bytes: 100000000").start()
    run.trainer(batches=8, positions=0).result()
    seen = wait_until(lambda: counters(run), "the pool's counters")
    assert seen["store_hits"] > 0 and seen["store_misses"] == seen["store_games"] == 125
    assert 16 << 20 > seen["store_bytes"] >= games.positions * 100
    assert run.stop() == 0

    (tmp_path / "file").write_text("in the way")
    store = f'store_bytes: 100000000 store_directory: "{tmp_path / "file"}"'
    run = make_run(unpack=CHOICES["one"], epochs=0, in_pool=store).start()
    run.trainer(batches=8, positions=0).result()
    assert "games are not stored" in run.text()
    assert run.stop() == 0


def test_a_budget_that_does_not_fit_is_refused(make_run: MakeRun) -> None:
    run = make_run(in_pool="store_bytes: 10000000000000")
    done = run.command("check", str(run.config))
    assert done.returncode != 0
    assert "store of pool" in done.stderr and "lower store_bytes of pool" in done.stderr
