"""Configurations of lczero-training: converted, checked, and run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import lc0_data
import numpy as np
import pytest
from conftest import BIN, ROOT

import ringfeed

DATA = ROOT / "tests" / "data" / "lczero"


def ringfeed_command(
    *words: str | Path, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "ringfeed"), *map(str, words)],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )


def small(text: str, directory: str) -> str:
    """A configuration of the size of a test."""
    for old, new in (
        ("/data/lc0", directory),
        ("chunk_pool_size: 50000", "chunk_pool_size: 100"),
        ("reservoir_size_per_thread: 1000000", "reservoir_size_per_thread: 1000"),
        ("position_sampling_rate: 0.03", "position_sampling_rate: 0.25"),
        ("batch_size: 128", "batch_size: 32"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def test_supervised_training_runs(games: lc0_data.Manifest, tmp_path: Path) -> None:
    theirs = tmp_path / "train.textproto"
    theirs.write_text(small((DATA / "supervised.textproto").read_text(), str(games.directory)))
    ours = tmp_path / "ours.textproto"
    done = ringfeed_command("import-lc0", theirs, "-o", ours)
    assert done.returncode == 0 and done.stdout == ""
    assert f"{theirs}:17:7: stage 'loader': frame_format V6TrainingData was left out" in done.stderr
    checked = ringfeed_command("check", ours)
    assert checked.returncode == 0 and checked.stderr == "", checked.stderr
    with ringfeed.DataLoader(ours.read_text(), timeout_s=60) as loader:
        batches = [loader.feed.next() for _ in range(3)]
        assert [batch["planes"].shape for batch in batches] == [(32, 112, 8, 8)] * 3
        assert np.isfinite(batches[0]["policy"]).all()
        assert list(loader.schema) == ["planes", "policy", "values"]


@pytest.mark.parametrize("name", ["reinforcement", "supervised", "validation"])
def test_what_is_converted_passes_check(name: str, tmp_path: Path) -> None:
    converted = ringfeed_command("import-lc0", DATA / f"{name}.textproto")
    assert converted.returncode == 0
    checked = ringfeed_command("check", "-", "--set", 'feed="x"', given=converted.stdout)
    assert checked.returncode == 0, checked.stderr
    # Only the data is not there.
    assert checked.stderr.count("\n") == checked.stderr.count("does not exist")


def test_standard_input_and_mistakes(tmp_path: Path) -> None:
    text = (DATA / "supervised.textproto").read_text()
    from_stdin = ringfeed_command("import-lc0", "-", given=text)
    assert from_stdin.returncode == 0 and 'feed: "lc0-sl"' in from_stdin.stdout
    wrong = ringfeed_command("import-lc0", "-", given=text.replace("threads: 2", "treads: 2"))
    assert wrong.returncode == 3 and wrong.stdout == ""
    assert wrong.stderr.startswith("stdin:16:7: ") and "did you mean 'threads'?" in wrong.stderr
    missing = ringfeed_command("import-lc0", tmp_path / "nothing")
    assert missing.returncode == 1 and "nothing" in missing.stderr
    assert ringfeed_command("import-lc0").returncode == 2
    file = tmp_path / "same.textproto"
    file.write_text(text)
    same = ringfeed_command("import-lc0", file, "-o", file)
    assert same.returncode == 1 and "would be overwritten" in same.stderr
    assert file.read_text() == text
    unwritable = ringfeed_command("import-lc0", file, "-o", tmp_path / "no" / "where")
    assert unwritable.returncode == 1 and "cannot be written" in unwritable.stderr
