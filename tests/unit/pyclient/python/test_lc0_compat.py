"""What ringfeed.lc0_compat reads out of converted configurations and metrics, without a feed."""

from __future__ import annotations

import importlib
import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringfeed import lc0_compat
from ringfeed._core import control
from ringfeed.lc0 import compat, metrics

ROOT = Path(__file__).resolve().parents[4]

CONFIG = """feed: "x"

# stages {
stages {
  name: "a-pool"
  shuffling_chunk_pool {
    input: "loader"
  }
}

stages {
  name: "b"
  shuffling_chunk_pool {
  }
}

stages {
  name: "tensors"
  tensor_generator {
    input: "b"
  }
}
"""
OUTPUTS = """
feed_output {
  slots: 9
  stage: "tensors"
}

feed_output {
  alias: "validation"
  stage: "v"
}
"""


def answer_bytes(anchor: bytes) -> bytes:
    """A pool's answer before there are chunks."""
    return control.bytes_field(1, anchor) + control.number_field(2, 0)


class Message:
    """A message without a descriptor."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def SerializeToString(self) -> bytes:  # noqa: N802
        return self.data


@pytest.fixture
def make_loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(text: str, **options: bool) -> lc0_compat.DataLoader:
        monkeypatch.setattr(compat, "_convert", lambda given: (text, ["a note"]))
        return lc0_compat.DataLoader(b"", **options)

    return make


def test_outputs_by_alias(make_loader: Any) -> None:
    assert make_loader(CONFIG).aliases == [""]
    loader = make_loader(CONFIG + OUTPUTS)
    assert loader.aliases == ["", "validation"]
    with pytest.raises(RuntimeError, match='no output "test": there are "", "validation"'):
        loader.get_next("test")


def test_an_anchor_goes_into_every_pool(make_loader: Any) -> None:
    loader = make_loader(CONFIG)
    pool_request = control.bytes_field(2, 'file "1".tar'.encode())
    answers = loader.send_control_message(Message(control.bytes_field(1, pool_request)))
    assert [name for name, _ in answers] == ["a-pool", "b"]
    ((number, answer),) = control.fields(answers[0][1])
    assert isinstance(answer, bytes)
    assert number == 1 and dict(control.fields(answer)) == {1: b'file "1".tar', 2: 0}
    text = compat._with_anchor(loader.config, 'file "1".tar')
    assert text.count('  shuffling_chunk_pool {\n    chunk_anchor: "file \\"1\\".tar"\n') == 2
    # A reset before there is a file that it could take leaves it, as does a query.
    for request in (control.number_field(1, 1), b""):
        answers = loader.send_control_message(control.bytes_field(1, request))
        assert answers[1] == ("b", control.bytes_field(1, answer_bytes(b'file "1".tar')))


def test_a_tensor_says_what_it_is() -> None:
    tensor = lc0_compat.TensorBase(np.zeros((2, 3), np.float32))
    assert (tensor.shape, tensor.strides) == ([2, 3], [12, 4])
    assert (tensor.element_size, tensor.py_format) == (4, "f")
    assert np.asarray(tensor).shape == (2, 3)
    assert lc0_compat.TensorBase(np.zeros(1, np.int64)).py_format == "q"
    with pytest.raises(TypeError, match="uint8"):
        lc0_compat.TensorBase(np.zeros(1, np.uint8))


def test_the_module_stands_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "surely_not_installed.compiled"
    monkeypatch.delitem(sys.modules, name, raising=False)
    lc0_compat.install(name)
    lc0_compat.install(name)
    assert importlib.import_module(name) is lc0_compat
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="json is already imported"):
        lc0_compat.install(name, "json")
    assert name not in sys.modules, "all of them or none"


PROGRAM = """
import sys
from trainer._compiled import DataLoader, TensorBase, make_dataloader
print(DataLoader.__module__, *sys.argv[1:])
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    """A package whose compiled module is missing, and its program."""
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "run.py").write_text(PROGRAM)
    return package


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "pyclient"), str(cwd)])
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=dict(os.environ, PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_program_runs_with_this_loader_in_place_of_its_own(trainer: Path) -> None:
    assert python("-m", "trainer.run", cwd=trainer.parent).returncode != 0
    runner = ("-m", "ringfeed.lc0_compat", "--as", "trainer._compiled")
    for program in (("-m", "trainer.run"), (str(trainer / "run.py"),)):
        done = python(*runner, *program, "--epochs", "3", cwd=trainer.parent)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "ringfeed.lc0_compat --epochs 3\n"
    assert "give --as NAME" in python("-m", "ringfeed.lc0_compat", cwd=trainer.parent).stderr


def test_a_module_that_stands_for_the_compiled_one_can_be_written(trainer: Path) -> None:
    write = ("-m", "ringfeed.lc0_compat", "--write", str(trainer / "_compiled.py"))
    assert python(*write, cwd=trainer.parent).returncode == 0
    done = python("-m", "trainer.run", "x", cwd=trainer.parent)
    assert done.stdout == "ringfeed.lc0_compat x\n", done.stderr
    again = python(*write, cwd=trainer.parent)
    assert again.returncode != 0 and "exists" in again.stderr


def test_planes_as_there_are_asked_for_in_every_tensor_generator(
    make_loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "  tensor_generator {\n    as_lczero_training: true\n"
    assert line not in make_loader(CONFIG).config
    assert make_loader(CONFIG, as_lczero_training=True).config.count(line) == 1
    monkeypatch.setattr(compat, "_raw_planes", True)
    assert line in make_loader(CONFIG).config
    assert line not in make_loader(CONFIG, as_lczero_training=False).config


def test_what_is_no_message_is_refused(make_loader: Any) -> None:
    with pytest.raises(TypeError, match="not a int"):
        make_loader(CONFIG).send_control_message(3)


def test_stages_are_not_added_after_a_stop(make_loader: Any) -> None:
    loader = make_loader(CONFIG)
    loader.stop()
    with pytest.raises(RuntimeError, match="before start"):
        loader.add_stages(b"")
    with pytest.raises(RuntimeError, match="already started"):
        loader.start()


# Gauges of these stages, each with the number of the configuration that is its capacity.
GAUGES = {
    **dict.fromkeys(("chunk_sources", "chunks_kept", "chunks_total", "chunks_since_anchor"), ""),
    **dict.fromkeys((f"chunk_weight_{which}_millionths" for which in ("min", "max", "latest")), ""),
    "chunks_current": "chunks_capacity",
    "store_bytes": "store_capacity_bytes",
    "frames_held": "reservoir_size_per_thread",
}


SECONDS = ("busy_seconds", "starved_seconds", "blocked_seconds")


def described(stage: dict[str, Any]) -> dict[str, Any]:
    """The same with what its feed says of its counters when it is asked to describe them."""
    (own,) = (value for value in stage.values() if isinstance(value, dict))
    counters: list[dict[str, Any]] = []
    for name, value in own.items():
        if not isinstance(value, int) or name in GAUGES.values():
            continue
        counter = {"name": name, "value": value}
        if name in GAUGES:
            counter["gauge"] = True
        if capacity := own.get(GAUGES.get(name, "")):
            counter |= {"capacity": capacity, "capacity_name": GAUGES[name]}
            if GAUGES[name].endswith("_per_thread"):
                counter["capacity_each_lane"] = True
        counters.append(counter)
    listed = [{**counter, "listed": True} for counter in stage["other_counters"]]
    return {**stage, "counters": [*counters, *listed]}


def stage(draws: int, **numbers: int) -> dict[str, Any]:
    """A pool as its feed describes it, with a number for what only grows."""
    fullness = {"min": 3, "max": 9, "mean": 5.2, "count": 5, "latest": 4}
    inner = {"name": "read.rejects", "put_count": 0, "get_count": 0, "drop_count": 0}
    out = {"name": "output", "put_count": draws, "get_count": draws - 4, "drop_count": 0}
    times = {"starved_seconds": 0.5, "blocked_seconds": 1.0}
    pool = {
        "name": "a-pool",
        "shuffling_chunk_pool": {
            "loads": [
                {"name": "load", "lanes": 1, "busy_seconds": 0.25, **times},
                {"name": "read", "lanes": 2, "busy_seconds": draws / 8, **times},
            ],
            **{"chunk_sources": 2, "chunks_current": 20, "chunks_kept": 30, "chunks_capacity": 20},
            **{"anchor": "b.tar", "dropped": 0, "draws": draws, "store_bytes": 0},
            **numbers,
        },
        "output_queue_metrics": [
            {**inner, "capacity": 64, "fullness": {**fullness, "count": 0}},
            {**out, "capacity": 16, "fullness": fullness},
        ],
        "other_counters": [{"name": "new", "value": draws // 2}, {"name": "never", "value": 0}],
    }
    return described(pool)


def reply(total: dict[str, Any], recent: dict[str, Any]) -> dict[str, Any]:
    covered = ((1.0, 1.02), (10.0, 10.1), (60.0, 33.0))
    return {
        "uptime_ms": 33500,
        "total": {"stage_metrics": [total]},
        "windows": [
            {
                "seconds_wanted": wanted,
                "seconds_covered": got,
                "metrics": {"stage_metrics": [recent]},
            }
            for wanted, got in covered
        ],
    }


def message(data: int | bytes) -> dict[int, Any]:
    assert isinstance(data, bytes)
    return dict(control.fields(data))


def named(metrics: bytes, field: int) -> dict[str, dict[int, Any]]:
    """Metrics of one kind of the only stage, by their names."""
    stage_of = message(metrics)[1]
    found = [message(value) for number, value in control.fields(stage_of) if number == field]
    return {entry.pop(1).decode(): entry for entry in found}


def double(bits: int) -> float:
    return float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])


def test_metrics_have_their_fields_and_names() -> None:
    rejected = {"hanse_rejected": 3, "weighted_rejected": 4, "store_hits": 1}
    data, seconds = metrics.of_last(math.inf, reply(stage(80, **rejected), stage(8)))
    assert seconds == 33.5
    stage_of = message(message(data)[1])
    assert (stage_of[1], stage_of[9]) == (b"a-pool", b"b.tar")
    loads = named(data, 3)
    assert list(loads) == ["source_ingestion", "chunk_loading"]
    assert (double(loads["chunk_loading"][2]), double(loads["chunk_loading"][3])) == (10.0, 11.5)
    queues = named(data, 4)
    assert list(queues) == ["output"], "others lie inside the stage"
    fullness = message(queues["output"].pop(5))
    assert fullness == {1: 3, 2: 9, 3: 26, 4: 5, 5: 4}
    assert queues["output"] == {2: 80, 3: 76, 4: 0, 6: 16}
    counts = {name: entry[2] for name, entry in named(data, 5).items()}
    always = {"dropped": 0, "hanse_cache_hits": 0, "hanse_cache_misses": 0}
    assert counts == {**always, "draws": 80, "hanse_rejected": 7, "cache_hits": 1, "new": 40}
    assert named(data, 11) == {"chunk_sources": {2: 2}, "chunks_current": {2: 30, 3: 20}}


def test_what_they_show_is_there_at_0_too() -> None:
    zero = dict.fromkeys(("hanse_rejected", "weights_known", "chunks_weighed", "reshuffles"), 0)
    store = {"store_hits": 0, "store_misses": 0}
    data, _ = metrics.of_last(math.inf, reply(stage(8, **zero, **store), stage(8)))
    shown = {"hanse_rejected", "hanse_cache_hits", "hanse_cache_misses", "reshuffles", "dropped"}
    shown |= {"draws", "new"}
    assert set(named(data, 5)) == shown
    with_store = stage(8, **zero, **store, store_capacity_bytes=1 << 24)
    data, _ = metrics.of_last(math.inf, reply(with_store, stage(8)))
    assert set(named(data, 5)) == shown | {"cache_hits", "cache_misses"}
    # A rescorer of theirs is a validator and a rescorer here.
    base = {key: stage(8)[key] for key in ("output_queue_metrics",)}
    validator = {
        "name": "r-validator",
        "chunk_validator": {"loads": [], "rejected_empty": 2, "chunks_damaged": 1, "frames": 9},
        "other_counters": [],
        **base,
    }
    rescorer = {
        "name": "r",
        "chunk_rescorer": {"loads": [], "chunks_damaged": 0, "skipped_too_large": 4},
        "other_counters": [],
        **base,
    }
    for stages, failed in (((validator, rescorer), 7), ((rescorer,), 4)):
        both = {"stage_metrics": [described(one) for one in stages]}
        data, _ = metrics.of_last(math.inf, {**reply(rescorer, rescorer), "total": both})
        *_, (_, last) = control.fields(data)
        assert isinstance(last, bytes)
        assert named(control.bytes_field(1, last), 5)["failed_rescores"] == {2: failed}


def test_weights_of_chunks_are_statistics() -> None:
    weights = {
        "chunk_weights": 4,
        "weights_known": 3,
        **{"chunk_weight_sum_millionths": 10_500_000, "chunk_weight_min_millionths": 250_000},
        **{"chunk_weight_max_millionths": 6_000_000, "chunk_weight_latest_millionths": 1_000_000},
    }
    data, _ = metrics.of_last(math.inf, reply(stage(80, **weights), stage(8)))
    weight = named(data, 12)["chunk_weight"]
    assert weight.pop(5) == 4
    assert [double(weight[field]) for field in (2, 3, 4, 6)] == [0.25, 6.0, 10.5, 1.0]
    assert named(data, 5)["hanse_cache_hits"] == {2: 3}
    assert not any("weight" in name for name in (*named(data, 5), *named(data, 11)))
    data, _ = metrics.of_last(math.inf, reply(stage(80, chunk_weights=0), stage(8)))
    assert named(data, 12) == {}, "none has been weighed"


def test_metrics_of_a_time_are_the_smallest_window_that_covers_it() -> None:
    recent = reply(stage(80, reshuffles=1), stage(8, reshuffles=0))
    for asked, seconds in ((0.25, 1.02), (1, 1.02), (2, 10.1), (16, 33.0), (64, 33.0), (128, 33.5)):
        data, covered = metrics.of_last(asked, recent)
        assert covered == seconds
        counts = {name: entry[2] for name, entry in named(data, 5).items()}
        # What was counted once is there, also if it was not of late.
        always = {"dropped": 0, "hanse_cache_hits": 0, "hanse_cache_misses": 0}
        late = {**always, "draws": 8, "reshuffles": 0, "new": 4}
        ever = {**always, "draws": 80, "reshuffles": 1, "new": 40}
        assert counts == (ever if asked == 128 else late), asked
    # Before the supervisor's first look.
    assert metrics.of_last(1, {"uptime_ms": 20, "windows": []}) == (b"", 0.02)


def test_a_capacity_of_each_lane_is_multiplied() -> None:
    sampler = {
        "name": "s",
        "shuffling_frame_sampler": {
            "loads": [{"name": "load", "lanes": 3, **dict.fromkeys(SECONDS, 0.0)}],
            **{"frames_held": 70, "reservoir_size_per_thread": 50, "frames_skipped": 0},
        },
        "output_queue_metrics": [],
        "other_counters": [],
    }
    one = described(sampler)
    data, _ = metrics.of_last(math.inf, reply(one, one))
    assert named(data, 11) == {"frames_held": {2: 70, 3: 150}}


def test_there_are_no_metrics_before_the_start(make_loader: Any) -> None:
    loader = make_loader(CONFIG)
    assert loader.get_bucket_metrics(0, False) == (b"", 0.0)
    loader.stop()
    assert loader.get_aggregate_ending_now(math.inf, True) == (b"", 0.0)
