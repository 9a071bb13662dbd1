"""Configurations of lczero-training: converted, checked, and run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import ringfeed

from tests.support.feeds.feed_run import BIN
from tests.support.feeds.scenes import LCZERO, small
from tests.support.makers import lc0_data


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


def test_supervised_training_runs(games: lc0_data.Manifest, tmp_path: Path) -> None:
    theirs = tmp_path / "train.textproto"
    theirs.write_text(small((LCZERO / "supervised.textproto").read_text(), str(games.directory)))
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
        stages = loader.metrics()["total"]["stage_metrics"]
        names = [stage["name"] for stage in loader.status()["stages"]]
        assert [stage["name"] for stage in stages] == names


@pytest.mark.parametrize("name", ["reinforcement", "supervised", "validation"])
def test_what_is_converted_passes_check(name: str, tmp_path: Path) -> None:
    converted = ringfeed_command("import-lc0", LCZERO / f"{name}.textproto")
    assert converted.returncode == 0
    checked = ringfeed_command("check", "-", "--set", 'feed="x"', given=converted.stdout)
    assert checked.returncode == 0, checked.stderr
    # Only the data is not there.
    assert checked.stderr.count("\n") == checked.stderr.count("does not exist")


def test_standard_input_and_mistakes(tmp_path: Path) -> None:
    text = (LCZERO / "supervised.textproto").read_text()
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


JOIN = 'stage { name: "join" input: "unpacker" join_positions { output { queue_capacity: 8192 } } }'


# Valid there, and without an equal here: import makes of each something that runs.
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "tensor_generator { threads: 2 output { queue_capacity: 16 } }",
            "tensor_generator { threads: 9 output { overflow_behavior: DROP_NEW } }",
            "DROP_NEW became KEEP_NEWEST",
        ),
        (
            'stage { name: "tensors" input: "join"',
            'stage { name: "sampler" input: "join" shuffling_frame_sampler { threads: 3 } }'
            ' stage { name: "tensors" input: "sampler"',
            "dispatch is RELAXED",
        ),
        (
            f'{JOIN}\nstage {{ name: "tensors" input: "join"',
            'stage { name: "tensors" input: "unpacker"',
            "dispatch is RELAXED",
        ),
        ("chunk_loading_threads: 1", "chunk_loading_threads: 99", "threads 99 became 64"),
        ("chunk_loading_threads: 1", "hanse_sampling_threshold: 9", "(n / largest n seen)^gamma"),
    ],
)
def test_what_has_no_equal_is_changed_and_said(old: str, new: str, said: str) -> None:
    text = (LCZERO / "validation.textproto").read_text()
    assert old in text
    text = text.replace(old, new)
    converted = ringfeed_command("import-lc0", "-", given=text)
    assert converted.returncode == 0, converted.stderr
    assert said in converted.stderr
    checked = ringfeed_command("check", "-", "--set", 'feed="x"', given=converted.stdout)
    assert checked.returncode == 0, checked.stderr


V_OUTPUT = 'batch_size: 4 output { name: "v" }'


# More files for validation than its queues take, before all files for training have come.
def test_validation_that_nobody_reads_does_not_keep_training_waiting(tmp_path: Path) -> None:
    games = lc0_data.make_dataset(
        tmp_path / "data", games=0, tars=1, seed=3, loose=320, variants=80, hashes=False
    )
    text = (LCZERO / "validation.textproto").read_text()
    for old, new in (
        ("/data/lc0", str(games.directory)),
        ("weight: [9, 1]", "weight: [1, 4]"),
        ('name: "train" queue_capacity: 8', 'name: "train" queue_capacity: 1'),
        ('name: "test" queue_capacity: 32', 'name: "test" queue_capacity: 1'),
        ("chunk_loading_threads: 1", "chunk_pool_size: 200"),
        ("position_count: 2", "position_sampling_rate: 1"),
        ("output { queue_capacity: 64 overflow_behavior: KEEP_NEWEST }", ""),
        ('batch_size: 256 output { name: "v" overflow_behavior: KEEP_NEWEST }', V_OUTPUT),
        ("threads: 2 output { queue_capacity: 16 }", "batch_size: 32"),
    ):
        assert old in text, old
        text = text.replace(old, new)
    converted = ringfeed_command("import-lc0", "-", given=text)
    assert converted.returncode == 0, converted.stderr
    assert "behind it, 'extra', drops chunks instead" in converted.stderr
    with ringfeed.DataLoader(converted.stdout, timeout_s=60) as loader:
        # More than there are games for training: the window is full, so the scan is through.
        assert all(loader.get_next()[0].shape == (32, 112, 8, 8) for _ in range(5))
        planes, *_ = loader.get_next("validation")
        assert planes.shape == (4, 112, 8, 8)
        # It is still held, and the others wait behind it.
        assert loader._others["validation"].stats().next == 1, "the oldest has waited"
