"""Records that kill or hang their stage are set aside; all others are delivered."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.feeds.feed_run import BIN, FeedRun
from tests.support.makers import lc0_data
from tests.support.oracles import lc0_reference

EVERY = 12


@pytest.mark.parametrize("how", ["crash", "abort", "exit", "hang"])
def test_a_data_set_is_delivered_complete_but_for_its_poisoned_records(
    tmp_path: Path, games: lc0_data.Manifest, how: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    shutil.copy2(BIN / "ringfeed", programs / "ringfeed")
    shutil.copy2(BIN / "poison_worker", programs / "ringfeed-worker")
    letters = tmp_path / "letters"
    stall_ms = 400 if how == "hang" else 5000
    run = FeedRun(
        tmp_path,
        Path(games.directory),
        unpackers=2,
        programs=programs,
        extra=f'restart {{ max_attempts: 2 stall_ms: {stall_ms} dead_letters: "{letters}" }}',
    )
    run.environment.update(RINGFEED_POISON=how, RINGFEED_POISON_EVERY=str(EVERY))
    try:
        result = run.start().trainer().result()
        assert run.wait() == 0, run.text()
    finally:
        run.close()

    listed = run.command("dead-letters", run.feed, "--directory", str(letters), "--json")
    assert listed.returncode == 0
    files = [json.loads(line)["file"] for line in listed.stdout.splitlines()]
    assert sorted(files) == sorted(str(path) for path in letters.glob("*.record"))
    poisoned = 0
    for record in letters.glob("*.record"):
        identity, frames = np.frombuffer(record.read_bytes()[:12], "<u8,<u4")[0].tolist()
        assert identity % EVERY == 0, "only what kills is set aside"
        poisoned += frames
        about = json.loads(record.with_suffix(".json").read_text())
        assert about["stage"] == "unpacker" and about["bytes"] == record.stat().st_size
        assert about["deaths"] >= 2
        expected = {
            "crash": "signal 11",
            "abort": "signal 6",
            "exit": "status 9",
            "hang": "stalled",
        }
        assert expected[how] in about["cause"]
        if how == "crash":
            assert "backtrace" in about["cause"] and "poison_worker" not in about["feed"]
    assert poisoned > 0, "the data has poisoned chunks"
    audit = lc0_reference.audit(result["hashes"], games.record_hashes)
    assert not audit.repeated and not audit.unknown, str(audit)
    assert len(audit.missing) == poisoned
    assert run.text().count("record_quarantined") == len(list(letters.glob("*.record")))


def test_a_stage_that_dies_on_every_record_stops_the_feed_with_the_reason(
    tmp_path: Path, games: lc0_data.Manifest
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    shutil.copy2(BIN / "ringfeed", programs / "ringfeed")
    shutil.copy2(BIN / "poison_worker", programs / "ringfeed-worker")
    run = FeedRun(
        tmp_path,
        Path(games.directory),
        programs=programs,
        extra=f'restart {{ max_restarts: 5 dead_letters: "{tmp_path / "letters"}" }}',
    )
    run.environment.update(RINGFEED_POISON="abort", RINGFEED_POISON_EVERY="1")
    try:
        trainer = run.start().trainer()
        assert run.wait() == 1
        assert trainer.process.wait(60) == 1
        assert "its stage is broken, not its data" in trainer.log.read_text()
        assert "has set aside 6 records in a row" in run.text()
    finally:
        run.close()
