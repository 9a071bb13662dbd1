"""ringfeed.lc0_compat: that project's calls, on a real feed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lc0_data
import lc0_reference
import numpy as np
import pytest
from conftest import ROOT, wait_until
from test_import_lc0 import DATA, small

from ringfeed import _control, lc0_compat
from ringfeed.lc0_compat import DataLoader, make_dataloader

Arrays = tuple[np.ndarray, ...]


@pytest.fixture
def text(games: lc0_data.Manifest) -> str:
    return small((DATA / "supervised.textproto").read_text(), str(games.directory))


@pytest.fixture
def config(text: str, tmp_path: Path) -> Path:
    file = tmp_path / "train.textproto"
    file.write_text(text)
    return file


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    yield
    gc.collect()
    for loader in list(lc0_compat._running):
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
    with pytest.raises(RuntimeError, match="started already"):
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
    file.write_text(text.replace("chunk_loading_threads: 4", "chunk_loading_threads: 400"))
    with pytest.raises(RuntimeError, match="threads is 400"):
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
    reset = request(chunk_pool_request={"reset_chunk_anchor": True}).SerializeToString()
    ((_, data),) = loader.send_control_message(reset)
    assert isinstance(data, bytes)
    ((_, pool),) = list(_control.fields(data))
    assert dict(_control.fields(pool)) == {1: files[-1].encode(), 2: 1}  # type: ignore[arg-type]
    loader.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        loader.send_control_message(query)


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
