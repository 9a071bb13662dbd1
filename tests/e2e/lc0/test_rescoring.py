"""Games are validated and rescored between pool and unpacker: what comes out, whoever dies
meanwhile.
"""

from __future__ import annotations

import gzip
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import ringfeed
from numpy.typing import NDArray

from tests.support.feeds.feed_run import ROOT, FeedRun, wait_until
from tests.support.feeds.scenes import kill_a_worker
from tests.support.makers import lc0_data
from tests.support.oracles import lc0_reference

MakeRun = Callable[..., FeedRun]
Floats = NDArray[np.float64]

SAMPLE = ROOT / "tests" / "data" / "lc0" / "lc0-data-sample.tar"
VALIDATOR = (
    'stages {{ name: "validator" chunk_validator {{ input: "pool" threads: {threads} {checks} }} }}'
)
RESCORER = """stages {{ name: "rescorer" chunk_rescorer {{
  input: "{source}" threads: {threads} {settings} }} }}"""
TEMPERATURE, OFFSET, THRESHOLD, WIDTH, THETA = 1.35, 0.001, 0.1, 0.06, 0.75
SETTINGS = f"""policy_temperature: {TEMPERATURE} policy_offset: {OFFSET} deblunder_threshold: {THRESHOLD}
  deblunder_width: {WIDTH} st_q_theta: {THETA}"""


def between(threads: int = 1, settings: str = SETTINGS, checks: str = "") -> dict[str, str]:
    stages = VALIDATOR.format(threads=threads, checks=checks)
    stages += "\n" + RESCORER.format(source="validator", threads=threads, settings=settings)
    return {"between": stages, "chunks_from": "rescorer"}


def damaged(records: lc0_reference.Records, **fields: tuple[int, float]) -> bytes:
    """The game with one record changed: field=(record, value)."""
    changed = records.copy()
    for name, (record, value) in fields.items():
        changed[name][record] = value
    return gzip.compress(changed.tobytes(), 1)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real games, games played at random, and three of which a record is damaged."""
    directory = tmp_path_factory.mktemp("mixed")
    lc0_data.make_dataset(directory / "made", games=16, tars=2, seed=8, loose=4)
    shutil.copy2(SAMPLE, directory / "real.tar")
    game = next(lc0_reference.read_games(SAMPLE)).records
    (directory / "rule50.gz").write_bytes(damaged(game, rule50_count=(3, 120)))
    (directory / "nan.gz").write_bytes(damaged(game, best_q=(5, np.nan)))
    other = int(np.flatnonzero(game["probabilities"][9] >= 0)[0])
    if other == game["played_idx"][9]:
        other = int(np.flatnonzero(game["probabilities"][9] >= 0)[1])
    (directory / "played.gz").write_bytes(damaged(game, played_idx=(9, other)))
    return directory


def all_games(directory: Path) -> list[lc0_reference.Records]:
    bad = {"rule50.gz", "nan.gz", "played.gz"}
    files = sorted(
        p for p in directory.rglob("*") if p.suffix in (".gz", ".tar") and p.name not in bad
    )
    return [game.records for file in files for game in lc0_reference.read_games(file)]


# --- What the numbers should be, as the format's description has them -----------------------------


def reference(game: lc0_reference.Records) -> tuple[Floats, Floats, Floats]:
    """Policy [n, 1858], result (q, d, plies left) [n, 3] and short-term (q, d) [n, 2] of a game."""
    count = len(game)
    ply = np.arange(count)
    sign = 1.0 - 2.0 * (ply % 2)  # what the first mover thinks of it

    policy = game["probabilities"].astype(np.float64)
    legal = policy >= 0
    raised = np.where(legal, np.maximum(policy + OFFSET, 0), 0) ** (1 / TEMPERATURE)
    policy = np.where(legal, raised / raised.sum(axis=1, keepdims=True), policy)

    # In the first mover's view the target stays the same from one blunder to the one before it: the
    # value of the game's end, and the ply at which it is reached.
    plies_left = game["plies_left"].astype(np.float64)
    plies_left = np.where(plies_left == 0, count - ply, plies_left)
    result = np.stack([game["result_q"], game["result_d"], plies_left], axis=1).astype(np.float64)
    target = np.array([sign[-1] * result[-1, 0], result[-1, 1], result[-1, 2] + count - 1])
    lost = game["best_q"].astype(np.float64) - game["played_q"].astype(np.float64)
    blundered = False
    for i in reversed(range(count)):
        best_q, played_q = game["best_q"][i], game["played_q"][i]
        proven = best_q == 1 and game["invariance_info"][i] & 8
        if best_q > -1 and played_q < 1 and (proven or played_q == -1):
            weight = 1.0
        elif lost[i] > THRESHOLD - WIDTH / 2:
            weight = min(1.0, (lost[i] - THRESHOLD) / WIDTH + 0.5)
        else:
            weight = 0.0
        best = np.array([sign[i] * best_q, game["best_d"][i], game["best_m"][i] + i])
        target = (1 - weight) * target + weight * best
        blundered |= weight > 0
        if blundered:
            result[i] = sign[i] * target[0], target[1], target[2] - i

    # Each later record weighs theta less than the one before it, the last has all that is left.
    short = np.zeros((count, 2))
    for i in range(count):
        later = np.arange(i, count)
        weights = (1 - THETA) * THETA ** (later - i)
        weights[-1] = THETA ** (count - 1 - i)
        short[i] = (
            (weights * sign[later] * sign[i] * game["root_q"][later]).sum(),
            (weights * game["root_d"][later]).sum(),
        )
    return policy, result, short


def rows(run: FeedRun) -> dict[str, np.ndarray]:
    parts: dict[str, list[np.ndarray]] = {}
    with ringfeed.attach(
        "lc0", socket_dir=run.sockets, timeout_s=60.0, attach_timeout_s=60.0
    ) as feed:
        for batch in feed:
            for name in batch:
                parts.setdefault(name, []).append(np.array(batch[name]))
            batch.release()
    assert run.wait() == 0, run.text()
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def unchanged(values: NDArray[np.float32]) -> list[bytes]:
    """Best, played, orig and root of each row: by these it is found among the others."""
    return [row.tobytes() for row in np.ascontiguousarray(values[:, 1:5])]


def test_numbers_are_those_of_another_program(make_run: MakeRun, mixed: Path) -> None:
    got = rows(make_run(mixed, batch=64, **between(threads=2)).start())
    at = {name: i for i, name in enumerate(unchanged(got["values"]))}
    assert len(at) == len(got["values"])
    blunders = 0
    games = all_games(mixed)
    assert len(games) == 24
    for game in games:
        planes, _, values = lc0_reference.decode(game)
        order = [at.pop(name) for name in unchanged(values)]
        policy, result, short = reference(game)
        blunders += int((result[:, 0] != game["result_q"]).sum())
        assert np.array_equal(got["planes"][order], planes)
        assert np.allclose(got["policy"][order], policy, rtol=1e-5, atol=1e-7)
        assert np.array_equal(got["policy"][order] == -1, game["probabilities"] == -1)
        assert np.allclose(got["values"][order, 0], result, rtol=1e-5, atol=1e-5)
        assert np.allclose(got["values"][order, 5, :2], short, rtol=1e-5, atol=1e-6)
    assert not at, "nothing of the damaged games"
    assert blunders > 100, "the data has blunders to correct"


# --- The feed as a whole --------------------------------------------------------------------------


def digests(run: FeedRun) -> np.ndarray:
    result = run.start().trainer(positions=0).result()
    assert run.wait() == 0, run.text()
    return result["digests"]


def test_validating_changes_nothing_of_what_is_valid(
    make_run: MakeRun, games: lc0_data.Manifest
) -> None:
    settings = {"epochs": 4, "rate": 0.3, "batch": 64, "reservoir": 500}
    plain = digests(make_run(**settings))
    stage = {"between": VALIDATOR.format(threads=1, checks=""), "chunks_from": "validator"}
    assert np.array_equal(plain, digests(make_run(**settings, **stage)))


GROUPS = """
stage_groups { name: "source" stages: "provider" stages: "loader" stages: "pool" }
stage_groups { name: "check" stages: "validator" }
stage_groups { name: "rescore" stages: "rescorer" }
stage_groups { name: "batches" stages: "unpacker" stages: "sampler" stages: "tensors" }
restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 }
"""


def test_same_batches_with_any_lanes_and_deaths(make_run: MakeRun, mixed: Path) -> None:
    settings = {"epochs": 12, "batch": 64, "reservoir": 500, "rate": 0.5, "extra": GROUPS}
    alone = digests(make_run(mixed, **settings, **between()))
    assert len(alone) > 60
    assert np.array_equal(alone, digests(make_run(mixed, **settings, **between(threads=2))))

    run = make_run(mixed, **settings, **between(threads=2)).start()
    trainer = run.trainer(positions=0, pause_ms=5)
    killed: dict[str, int] = {}
    for kill in range(1, 13):
        wait_until(lambda: trainer.batches() > 4 * kill, "batches")
        group = "check" if kill % 2 else "rescore"
        if group in run.all_workers():
            group = kill_a_worker(run, random.Random(kill), group)
            killed[group] = killed.get(group, 0) + 1
    result = trainer.result()
    assert run.wait() == 0, run.text()
    assert {"check", "rescore"} <= set(killed), "both have died"
    assert np.array_equal(alone, result["digests"])


def counters(run: FeedRun, stage: str) -> dict[str, int]:
    stages = (run.status() or {"stages": []})["stages"]
    return {c["name"]: c["value"] for s in stages if s["name"] == stage for c in s["counters"]}


def test_what_is_rejected_is_counted_by_its_reason(make_run: MakeRun, mixed: Path) -> None:
    run = make_run(mixed, epochs=0, batch=64, **between()).start()
    run.trainer(batches=80, positions=0).result()
    seen = counters(run, "validator")
    rejected = {name[9:]: n for name, n in seen.items() if name.startswith("rejected_") and n}
    assert set(rejected) == {"rule50", "values", "played_moves"}
    passes = seen["chunks"] / 24
    assert all(abs(n - passes) <= 1 for n in rejected.values()), (rejected, passes)
    log = run.text()
    assert "rule50_count is 120" in log and "best_q is nan" in log
    assert log.count("reason=rejected_rule50") <= int(np.log2(rejected["rule50"])) + 1
    assert counters(run, "rescorer")["blunders"] > 0
    assert run.stop() == 0


def test_a_check_that_is_off_lets_its_flaw_pass(make_run: MakeRun, mixed: Path) -> None:
    checks = "check_rule50: false check_played_moves: false check_values: false"
    plain = rows(make_run(mixed, batch=64, **between(settings="", checks=checks)).start())
    records = sum(len(game) for game in all_games(mixed))
    game = next(lc0_reference.read_games(SAMPLE)).records
    assert len(plain["values"]) == records + 3 * len(game)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('syzygy_paths: "/tables"', "endgame tables are not supported"),
        ('gaviota_paths: "/tables"', "endgame tables are not supported"),
        ("deblunder_threshold: 0.1", "without deblunder_width"),
        ("deblunder_width: 0.1", "without deblunder_threshold"),
        ("policy_temperature: 0", "policy_temperature"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    make_run: MakeRun, settings: str, problem: str
) -> None:
    run = make_run(**between(settings=settings))
    done = run.command("check", str(run.config))
    assert done.returncode != 0
    assert problem in done.stderr and "rescorer" in done.stderr
