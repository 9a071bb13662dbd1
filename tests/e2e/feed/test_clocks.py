"""A wall clock that is set by hours and years under a feed: nothing goes by it."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from tests.support.feeds.feed_run import BIN, FeedRun, wait_until
from tests.support.feeds.scenes import kill_everything

MakeRun = Callable[..., FeedRun]
YEARS_S = 20 * 365 * 86400


class Clock:
    """Of the programs that are started with its environment (fakes/set_clock.c)."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._file.write_bytes(bytes(8))
        self.environment = {
            "LD_PRELOAD": str(BIN.parent / "lib" / "libset_clock.so"),
            "RF_SET_CLOCK": str(file),
        }

    def set(self, seconds: int) -> None:
        """So much later than it is."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", seconds))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


def snapshots(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("by", [-7200, -YEARS_S, YEARS_S])
def test_the_newest_snapshot_stays_and_is_gone_on_with(
    make_run: MakeRun, undisturbed: np.ndarray, tmp_path: Path, clock: Clock, by: int
) -> None:
    saved = tmp_path / "saved"
    series = f'snapshot {{ directory: "{saved}" every_batches: 2 keep: 2 }}'
    run = make_run(extra=series, epochs=2)
    run.environment.update(clock.environment)
    run.start()
    trainer = run.trainer_after(4, pause_ms=20, positions=0)
    wait_until(lambda: run.text().count("snapshot_taken") >= 2, "two snapshots")
    clock.set(by)
    taken = run.text().count("snapshot_taken")
    wait_until(lambda: run.text().count("snapshot_taken") >= taken + 4, "four more")
    assert trainer.process.poll() is None
    kill_everything(run)
    # The newest are there, whatever they say of when they were taken. Of the last one the log may say
    # nothing yet, and that of before the last two may not have been removed.
    named = [
        Path(place).name for place in re.findall(r"snapshot_taken .*?directory=(\S+)", run.text())
    ]
    there = [path.name for path in snapshots(saved)]
    unsaid = set(there) - set(named)
    kept = named[-1:] if unsaid else named[-2:]
    assert len(unsaid) <= 1 and set(kept) <= set(there), (named, there)
    assert set(there) - unsaid <= set(named[-3:]) and len(there) <= 3, (named, there)
    years = {
        datetime.fromisoformat(line.split('"')[1].replace("Z", "+00:00")).year
        for path in snapshots(saved)
        for line in (path / "manifest.textproto").read_text().splitlines()
        if line.startswith("taken_at:")
    }
    if abs(by) == YEARS_S:
        assert abs(min(years) - datetime.now().year) >= 19, "the clock was set"
    # All are dead; the next one goes on from there.
    run.start()
    after = run.trainer(positions=0).result()
    first = int(after["numbers"][0])
    assert first > 4 and list(after["numbers"]) == list(range(first, len(undisturbed) + 1))
    assert np.array_equal(after["digests"], undisturbed[first - 1 :])
    assert run.wait() == 0, run.text()


@pytest.mark.parametrize("by", [-YEARS_S, YEARS_S])
def test_a_feed_goes_on_under_a_clock_that_is_set(
    make_run: MakeRun, undisturbed: np.ndarray, tmp_path: Path, clock: Clock, by: int
) -> None:
    log = tmp_path / "log"
    report = tmp_path / "report.html"
    run = make_run(
        epochs=2,
        extra=f'log {{ file: "{log}" rotate_bytes: 4096 rotate_keep: 3 level: DEBUG }}\n'
        "restart { stall_ms: 20000 }",
    )
    run.environment.update(clock.environment)
    run.start("--report", str(report))
    trainer = run.trainer_after(3, pause_ms=10, positions=0)
    uptime_ms = int((run.status() or {})["uptime_ms"])
    clock.set(by)
    run.command("status", run.feed)
    at = trainer.batches()
    wait_until(lambda: trainer.batches() >= at + 4, "the feed to go on")
    status = run.status() or {}
    assert 0 <= int(status["uptime_ms"]) - uptime_ms < 300_000
    assert not status.get("problems"), status
    clock.set(0)
    result = trainer.result()
    assert np.array_equal(result["digests"], undisturbed)
    assert run.wait() == 0, run.text()
    text = report.read_text()
    assert not re.search(r"\b\d{6,} (s|min|h|days)\b|-\d+ (s|ms|min|h)\b", text)
    said = "".join(path.read_text() for path in tmp_path.glob("log*"))
    assert "worker_died" not in said and "worker_stalled" not in said
    assert len(list(tmp_path.glob("log*"))) <= 4


def test_commands_of_another_time_understand_each_other(
    make_run: MakeRun, clock: Clock, undisturbed: np.ndarray
) -> None:
    run = make_run(epochs=2).start()
    run.trainer_after(2, pause_ms=20, positions=0)
    for by in (-YEARS_S, YEARS_S):
        clock.set(by)
        own = {**run.environment, **clock.environment}
        for words in (["status", run.feed, "--json"], ["ps", "--json"]):
            done = run.command(*words, env=own)
            assert done.returncode == 0, done.stderr
            json.loads(done.stdout)
    assert run.stop() == 0, run.text()
