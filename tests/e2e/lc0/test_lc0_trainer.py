"""ringfeed.lc0_compat: that project's calls, on a real feed."""

from __future__ import annotations

import gc
import math
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ringfeed._core import control
from ringfeed.lc0 import compat
from ringfeed.lc0_compat import DataLoader, make_dataloader

from tests.support.feeds.feed_run import ROOT, wait_until
from tests.support.feeds.scenes import LCZERO, small
from tests.support.makers import lc0_data
from tests.support.oracles import lc0_reference

Arrays = tuple[np.ndarray, ...]


@pytest.fixture
def text(games: lc0_data.Manifest) -> str:
    return small((LCZERO / "supervised.textproto").read_text(), str(games.directory))


@pytest.fixture
def config(text: str, tmp_path: Path) -> Path:
    file = tmp_path / "train.textproto"
    file.write_text(text)
    return file


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    yield
    gc.collect()
    for loader in list(compat._running):
        loader.stop()


def messages(tmp_path: Path) -> dict[str, Any]:
    """Classes of their messages, made without generated modules."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    out = tmp_path / "set.binpb"
    subprocess.run(
        ["protoc", "-I", str(ROOT), f"--descriptor_set_out={out}", "proto/lczero.proto"], check=True
    )
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"lczero.training.{name}"))
        for name in ("RootConfig", "DataLoaderConfig")
    }


def control_messages() -> Any:
    """StageControlRequest as their file has it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="stage_control.proto", package="lczero")

    def add(name: str, *fields: tuple[str, int, int, str]) -> None:
        message = file.message_type.add(name=name)
        for field, number, kind, type_name in fields:
            message.field.add(
                name=field, number=number, type=kind, label=1, type_name=type_name or None
            )

    add("PoolRequest", ("reset_chunk_anchor", 1, 8, ""), ("set_chunk_anchor", 2, 9, ""))
    add("PoolResponse", ("chunk_anchor", 1, 9, ""), ("chunks_since_anchor", 2, 5, ""))
    add("StageControlRequest", ("chunk_pool_request", 1, 11, ".lczero.PoolRequest"))
    add("StageControlResponse", ("chunk_pool_response", 1, 11, ".lczero.PoolResponse"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("lczero.StageControlRequest"))


def metrics_message() -> Any:
    """DataLoaderMetricsProto as their file has it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="training_metrics.proto", package="lczero")
    kinds = {"double": 1, "int64": 3, "uint64": 4, "string": 9}

    def add(message_name: str, text: str) -> None:
        """Fields as "kind name number"; kinds with a capital are messages, Statistics one each."""
        message = file.message_type.add(name=message_name)
        for kind, name, number in (field.split() for field in text.split(",")):
            field = message.field.add(name=name, number=int(number), label=1)
            if kind in kinds:
                field.type = kinds[kind]
            else:
                field.type, field.type_name = 11, f".lczero.{kind}"
                field.label = 1 if kind.startswith("Statistics") else 3

    add("Load", "string name 1, double load_seconds 2, double total_seconds 3")
    add("Statistics", "int64 min 1, int64 max 2, int64 sum 3, int64 count 4, int64 latest 5")
    counts = "uint64 put_count 2, uint64 get_count 3, uint64 drop_count 4"
    double = "double min 2, double max 3, double sum 4, uint64 count 5, double latest 6"
    add("DoubleStatistics", f"string name 1, {double}")
    add("Queue", f"string name 1, {counts}, Statistics queue_fullness 5, uint64 queue_capacity 6")
    add("Count", "string name 1, uint64 count 2")
    add("Gauge", "string name 1, uint64 value 2, uint64 capacity 3")
    repeated = "Load load_metrics 3, Queue queue_metrics 4, Count count_metrics 5"
    last = "string anchor 9, Gauge gauge_metrics 11, DoubleStatistics statistics_metrics 12"
    add("Stage", f"string name 1, {repeated}, {last}")
    add("DataLoaderMetricsProto", "Stage stage_metrics 1")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    name = "lczero.DataLoaderMetricsProto"
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def check_batch(batch: Arrays, rows: int = 32) -> None:
    planes, policy, values = batch
    assert [a.shape for a in batch] == [(rows, 112, 8, 8), (rows, 1858), (rows, 6, 3)]
    assert all(a.dtype == np.float32 for a in batch)
    assert (planes[:, 111] == 1).all()
    assert policy.clip(0).sum(axis=1) == pytest.approx(np.ones(rows), abs=1e-3)


def test_a_trainer_from_a_file(config: Path, games: lc0_data.Manifest) -> None:
    loader = make_dataloader(config)
    batches = [loader.get_next() for _ in range(40)]
    for batch in batches:
        check_batch(batch)
    known = lc0_reference.file_hashes(lc0_reference.game_files(games.directory))
    for batch in batches[:3]:
        assert np.isin(lc0_reference.position_hashes(*batch), known).all()
    # More than there are slots, all of it still there, and the caller's own.
    assert len({batch[0].tobytes() for batch in batches}) == 40
    batches[0][0][:] = 0
    with pytest.raises(RuntimeError, match="already started"):
        loader.start()
    with pytest.raises(RuntimeError, match='no output "validation": there are ""'):
        loader.get_next("validation")
    with pytest.raises(RuntimeError, match="no output"):
        loader.maybe_get_next("validation")
    assert any("frame_format" in note for note in loader.notes)
    loader.stop()
    loader.stop()
    with pytest.raises(RuntimeError, match="Queue is closed"):
        loader.get_next()
    assert loader.maybe_get_next() is None
    check_batch(batches[1])


def test_a_message_and_its_bytes(text: str, tmp_path: Path) -> None:
    from google.protobuf import text_format

    classes = messages(tmp_path)
    data_loader = text[text.index("data_loader") : text.index("training {")]
    root = text_format.Parse(data_loader, classes["RootConfig"]())
    loader = DataLoader(root.data_loader)
    assert loader.config == DataLoader(root.data_loader.SerializeToString()).config
    with pytest.raises(RuntimeError, match="Queue is closed.*call start"):
        loader.get_next()
    loader.start()
    check_batch(loader.get_next())
    loader.stop()


def test_stages_can_be_added_until_the_start(text: str, tmp_path: Path) -> None:
    from google.protobuf import text_format

    classes = messages(tmp_path)
    whole = text_format.Parse(
        text[text.index("data_loader") : text.index("training {")], classes["RootConfig"]()
    ).data_loader
    first = classes["DataLoaderConfig"]()
    first.stage.extend(whole.stage[:3])
    first.stage.add(name="orphan", file_path_provider={"directory": "/x"})
    with pytest.raises(RuntimeError, match="no stage is a tensor_generator"):
        DataLoader(first)
    del first.stage[3]
    first.stage.extend(whole.stage[5:])
    with pytest.raises(RuntimeError, match="there is no stage 'sampler'"):
        DataLoader(first)
    loader = DataLoader(whole)
    more = classes["DataLoaderConfig"](output=["not counted"])
    more.stage.add(name="tensors 2", input=["p2"], tensor_generator={})
    more.stage.add(name="p2", file_path_provider={"directory": "/x"})
    two = DataLoader(whole)
    two.add_stages(more)
    assert two.aliases == ["", "tensors_2"] and len(two.notes) > len(loader.notes)
    extra = classes["DataLoaderConfig"]()
    extra.stage.add(name="pool", file_path_provider={"directory": "/x"})
    with pytest.raises(RuntimeError, match="another stage has this name"):
        loader.add_stages(extra)
    loader.start()
    with pytest.raises(RuntimeError, match="before start"):
        loader.add_stages(extra)
    loader.stop()


def test_mistakes_come_with_the_constructor(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text().replace("threads: 2", "treads: 2"))
    with pytest.raises(RuntimeError, match=r"train.textproto:16:7: .*did you mean 'threads'"):
        DataLoader(str(config))
    with pytest.raises(RuntimeError, match="nothing"):
        DataLoader(tmp_path / "nothing")
    with pytest.raises(TypeError, match="not a int"):
        DataLoader(3)


def test_a_feed_that_cannot_start_says_why(text: str, tmp_path: Path) -> None:
    file = tmp_path / "train.textproto"
    file.write_text(text.replace("batch_size: 32", "batch_size: 3000000"))
    with pytest.raises(RuntimeError, match="batch_size is 3000000"):
        make_dataloader(file)


def test_anchors_before_and_after_the_start(config: Path, games: lc0_data.Manifest) -> None:
    request = control_messages()
    files = sorted(path.name for path in lc0_reference.game_files(games.directory))
    loader = DataLoader(config)
    set_it = request(chunk_pool_request={"set_chunk_anchor": files[-2]})
    ((name, answer),) = loader.send_control_message(set_it)
    assert name == "pool" and type(answer).__name__ == "StageControlResponse"
    assert answer.chunk_pool_response.chunk_anchor == files[-2]
    assert loader.send_control_message(request()) == []
    loader.start()
    loader.get_next()
    query = request(chunk_pool_request={})
    ((name, answer),) = loader.send_control_message(query)
    assert (name, answer.chunk_pool_response.chunk_anchor) == ("pool", files[-2])
    assert answer.chunk_pool_response.chunks_since_anchor == 1
    assert loader.send_control_message(request()) == []
    reset = request(chunk_pool_request={"reset_chunk_anchor": True}).SerializeToString()
    ((_, data),) = loader.send_control_message(reset)
    assert isinstance(data, bytes)
    ((_, pool),) = list(control.fields(data))
    assert dict(control.fields(pool)) == {1: files[-1].encode(), 2: 1}  # type: ignore[arg-type]
    loader.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        loader.send_control_message(query)


def test_a_start_is_one_act_for_other_threads(config: Path) -> None:
    loader = DataLoader(config)
    query = control_messages()(chunk_pool_request={})
    answers: list[Any] = []
    done = threading.Event()

    def ask() -> None:
        try:
            while not done.is_set():
                answers.append(loader.send_control_message(query))
                loader.get_bucket_metrics(0, False)
        except BaseException as error:
            answers.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: answers, "an answer before the start")
    loader.start()
    seen = len(answers)
    wait_until(lambda: len(answers) > seen + 1 or not asking.is_alive(), "one after it")
    done.set()
    asking.join()
    assert all(isinstance(answer, list) and len(answer) == 1 for answer in answers), answers[-1]
    loader.stop()


def test_a_loader_that_is_dropped_is_stopped(two: Path) -> None:
    loader = make_dataloader(two)
    loader.get_next()
    loader.get_next("validation")
    supervisor = loader._supervisor
    assert supervisor is not None and supervisor.exit_status is None
    del loader
    wait_until(lambda: supervisor.exit_status is not None, "the end of the supervisor")
    assert not supervisor.directory.exists()


def test_views_share_the_memory_of_the_feed(config: Path) -> None:
    loader = make_dataloader(config, view="readonly")
    planes, _, _ = loader.get_next()
    assert not planes.flags.writeable and not planes.flags.owndata
    assert loader.feed().stats().held == 1
    loader.stop()
    check_batch((planes, *loader_free_copy(planes)))


def loader_free_copy(planes: np.ndarray) -> Arrays:
    """Policies and values that pass: what is looked at is that `planes` still is readable."""
    policy = np.zeros((len(planes), 1858), np.float32)
    policy[:, 0] = 1
    return policy, np.zeros((len(planes), 6, 3), np.float32)


def test_what_is_not_there_yet_is_none(
    config: Path, games: lc0_data.Manifest, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    config.write_text(config.read_text().replace(str(games.directory), str(empty)))
    loader = make_dataloader(config)
    assert loader.maybe_get_next() is None
    loader.stop()


def test_a_supervisor_that_dies_ends_the_wait(
    config: Path, tmp_path: Path, games: lc0_data.Manifest
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    config.write_text(config.read_text().replace(str(games.directory), str(empty)))
    loader = make_dataloader(config)
    status = loader.feed().stats()
    os.kill(status.supervisor_pid, signal.SIGTERM)
    wait_until(lambda: loader._supervisor and loader._supervisor.exit_status is not None, "its end")
    with pytest.raises(RuntimeError):
        loader.get_next()
    loader.stop()


@pytest.fixture
def two(games: lc0_data.Manifest, tmp_path: Path) -> Path:
    """Training, and validation out of a fifth of the games, each read once."""
    text = (LCZERO / "validation.textproto").read_text()
    for old, new in (
        ("/data/lc0", str(games.directory)),
        ("weight: [9, 1]", "weight: [4, 1]"),
        ("chunk_loading_threads: 1", "chunk_pool_size: 200 chunk_loading_threads: 1"),
        ("threads: 2 output", "threads: 2 batch_size: 32 output"),
        ("batch_size: 256", "batch_size: 8"),
    ):
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "two.textproto"
    file.write_text(text)
    return file


def test_training_and_validation_by_their_aliases(two: Path, games: lc0_data.Manifest) -> None:
    loader = make_dataloader(two)
    assert loader.aliases == ["", "validation"]
    with pytest.raises(RuntimeError, match='no output "test": there are "", "validation"'):
        loader.maybe_get_next("test")
    # Nobody reads the other one, which keeps its newest.
    train = [loader.get_next() for _ in range(300)]
    validation = [loader.get_next("validation")]
    while (batch := loader.maybe_get_next("validation")) is not None:
        validation.append(batch)
    assert loader.feed("validation").stats().output == "validation"
    for batch in train[:3]:
        check_batch(batch)
    for batch in validation:
        check_batch(batch, rows=8)
    hashes = [
        np.concatenate([lc0_reference.position_hashes(*batch) for batch in batches])
        for batches in (train, validation)
    ]
    known = lc0_reference.file_hashes(lc0_reference.game_files(games.directory))
    assert all(np.isin(found, known).all() for found in hashes)
    assert not np.isin(*hashes).any(), "a game is in one of the two"
    check_batch(loader.get_next(""))
    loader.stop()
    assert loader.maybe_get_next("validation") is None


def test_metrics_in_their_messages(two: Path, games: lc0_data.Manifest) -> None:
    loader = DataLoader(two)
    assert loader.get_bucket_metrics(0, False) == (b"", 0.0)
    loader.start()
    for _ in range(40):
        loader.get_next()
    loader.get_next("validation")
    data, seconds = loader.get_aggregate_ending_now(math.inf, False)
    assert 0 < seconds < 60
    total = metrics_message().FromString(data)
    stages = {stage.name: stage for stage in total.stage_metrics}
    assert list(stages) == re.findall(r'^stages \{\n  name: "(.*)"$', loader.config, re.M)
    total.DiscardUnknownFields()
    assert total.ByteSize() == len(data), "nothing that their message does not have"

    def counts(stage: Any) -> dict[str, int]:
        return {metric.name: metric.count for metric in stage.count_metrics}

    def names(metrics: Any) -> list[str]:
        return [metric.name for metric in metrics]

    pool = stages["pool"]
    assert names(pool.load_metrics) == ["source_ingestion", "chunk_loading"]
    assert 0 < pool.load_metrics[1].load_seconds <= pool.load_metrics[1].total_seconds
    assert counts(pool)["draws"] > 0 and counts(pool)["dropped"] == 0
    assert counts(pool)["hanse_cache_hits"] == counts(pool)["hanse_cache_misses"] == 0
    gauges = {metric.name: metric for metric in pool.gauge_metrics}
    assert 0 < gauges["chunks_current"].value < games.games
    assert gauges["chunks_current"].capacity == 200
    assert gauges["chunks_total"].value == gauges["chunks_since_anchor"].value
    assert not gauges["chunks_total"].HasField("capacity")
    assert pool.HasField("anchor") and pool.anchor == ""
    assert names(stages["splitter"].queue_metrics) == ["train", "test"]
    assert names(pool.queue_metrics) == ["output"]
    assert counts(stages["loader"])["skipped_files"] >= 0
    assert counts(stages["extra"])["sources_processed"] > 0
    (slots,) = stages["tensors"].queue_metrics
    assert (slots.name, slots.queue_capacity) == ("output", 20)
    assert 40 <= slots.put_count <= slots.get_count + 20
    fullness = slots.queue_fullness
    assert 0 <= fullness.min <= fullness.latest <= fullness.max <= 20
    assert fullness.min <= fullness.sum / fullness.count <= fullness.max

    data, covered = loader.get_bucket_metrics(0, True)
    recent = metrics_message().FromString(data)
    assert names(recent.stage_metrics) == list(stages)
    assert covered > 0
    assert loader.get_bucket_metrics(127, False)[1] >= seconds
    assert loader.get_bucket_metrics(-128, False) == (b"", 0.0)
    supervisor = loader._supervisor
    assert supervisor is not None
    control.stop(supervisor.socket_path, now=True)
    wait_until(lambda: supervisor.exit_status is not None, "its end")
    with pytest.raises(RuntimeError, match="the supervisor ended with"):
        loader.get_bucket_metrics(0, False)
    loader.stop()
    assert loader.get_bucket_metrics(0, False) == (b"", 0.0)
