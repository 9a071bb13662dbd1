"""A feed for PyTorch: tensors, devices, pinned memory, datasets, loaders, ranks.

The feed is real shared memory (tests/support/fakes/fake_feed.py). What needs a CUDA device is tested with
doubles of the few calls that reach one, and says so; nothing here has seen a GPU.
"""

# flake8: noqa: F811

from __future__ import annotations

import contextlib
import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tests.support.fakes.fake_feed import (  # noqa: E402, F401
    PATIENCE_S,
    ROOT,
    FakeFeed,
    MakeFeed,
    make_feed,
    rows_of,
    run_python,
)
from tests.support.loaders.ranks import resting_at_exit  # noqa: E402
from tests.support.makers.compact_tokens import compact_batch, wide_batch  # noqa: E402

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

import ringfeed  # noqa: E402
import ringfeed.torch as bridge  # noqa: E402
import torch.distributed  # noqa: E402
import torch.utils.data  # noqa: E402
from ringfeed._core import states  # noqa: E402
from ringfeed._core import torch_bridge  # noqa: E402
from ringfeed.torch import FeedDataset, FeedLoader  # noqa: E402

# As PATIENCE_S, for programs that import PyTorch, which takes a while on a busy machine.
PROGRAM_S = 10 * PATIENCE_S


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def loader_of(fake: FakeFeed, **options: Any) -> FeedLoader:
    settings: dict[str, Any] = {"timeout_s": PATIENCE_S, "socket_dir": fake.directory}
    settings.update(options)
    return FeedLoader(fake.name, **settings)


def ids(batches: Any) -> list[int]:
    return [int(batch["id"][0]) for batch in batches]


# ---- tensors ----


def test_tensors_of_a_private_batch_share_its_memory_and_may_be_changed(
    make_feed: MakeFeed,
) -> None:
    fake = make_feed("--slots", "1", "--max-hold", "1")
    fake.tell("publish 5")
    with fake.attach(view="private") as feed:
        for seq in range(1, 6):
            batch = feed.next()
            tensors = batch.torch()
            assert list(tensors) == ["x", "id", "flags"]
            assert [t.dtype for t in tensors.values()] == [torch.float32, torch.int64, torch.uint8]
            assert tensors["x"].data_ptr() == batch["x"].ctypes.data
            np.testing.assert_array_equal(tensors["x"].numpy(), rows_of(seq, 4))
            tensors["x"].mul_(0).add_(seq)
            assert float(batch["x"].sum()) == 12 * seq
            del batch, tensors


def test_tensors_hold_the_slot_while_they_live(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "3", "--max-hold", "3")
    fake.tell("publish 20")
    fake.tell("close")
    with fake.attach(view="private") as feed:
        batch = feed.next()
        kept = batch.torch()["x"][1:].T
        batch.release()
        del batch
        assert feed.stats().held == 1
        kept.neg_()
        assert [other.seq for other in feed] == list(range(2, 21))
        np.testing.assert_array_equal(kept.numpy(), -rows_of(1, 4)[1:].T)
        del kept
        assert feed.stats().held <= 1, "what the loop has left"


def test_tensors_of_a_read_only_batch_are_copies(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach() as feed:
        batch = feed.next()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tensors = batch.torch()
        tensors["x"].zero_()
        np.testing.assert_array_equal(batch["x"], rows_of(1, 4))
        del batch
        assert feed.stats().held == 0, "copies hold nothing"


def test_sharing_read_only_memory_is_refused_with_what_to_do(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach() as feed:
        with pytest.raises(ringfeed.InvalidRequest, match='attach with view="private"'):
            feed.next().torch(copy=False)


def test_copies_are_made_of_a_private_batch_if_asked_for(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach(view="private") as feed:
        batch = feed.next()
        tensor = batch.torch(copy=True)["x"]
        assert tensor.data_ptr() != batch["x"].ctypes.data
        assert batch.torch(copy=False)["x"].data_ptr() == batch["x"].ctypes.data


def test_tensors_of_a_copied_batch_share_the_copy(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach(view="copy") as feed:
        batch = feed.next()
        assert batch.torch()["x"].data_ptr() == batch["x"].ctypes.data
        assert feed.stats().held == 0


def test_a_released_batch_has_no_tensors(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach(view="private") as feed:
        batch = feed.next()
        batch.release()
        with pytest.raises(ringfeed.BatchReleased):
            batch.torch()
        with pytest.raises(ringfeed.BatchReleased):
            batch.to("cpu")


@pytest.mark.parametrize("view", ["readonly", "private", "copy"])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_tensors_on_a_device_have_memory_of_their_own(
    make_feed: MakeFeed, view: str, non_blocking: bool
) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach(view=view) as feed:
        batch = feed.next()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tensors = batch.to("cpu", non_blocking=non_blocking)
        assert tensors["x"].data_ptr() != batch["x"].ctypes.data
        tensors["x"].zero_()
        np.testing.assert_array_equal(batch["x"], rows_of(1, 4))
        del batch
        assert feed.stats().held == 0


# ---- batches of tokens ----


@pytest.mark.parametrize("variations", [False, True])
def test_tokens_are_widened(variations: bool) -> None:
    compact = {k: torch.from_numpy(array) for k, array in compact_batch(variations).items()}
    wanted = wide_batch(variations)
    widened = bridge.widen_tokens(compact)
    assert list(widened) == list(wanted)
    for name, array in wanted.items():
        assert widened[name].numpy().dtype == array.dtype, name
        np.testing.assert_array_equal(widened[name].numpy(), array)
        if compact[name].dtype == widened[name].dtype:
            assert widened[name] is compact[name], "nothing is copied that need not be"
    again = bridge.widen_tokens(widened)
    assert all(again[name] is widened[name] for name in wanted)


def test_what_is_no_batch_of_tokens_is_not_widened() -> None:
    compact = {name: torch.from_numpy(array) for name, array in compact_batch(True).items()}
    with pytest.raises(ValueError, match="this one has .'planes'"):
        bridge.widen_tokens({"planes": compact["wl_targets"]})
    for name in ("input_ids", "board_target_ids", "variation_epoch"):
        for wrong in (torch.float32, torch.uint8):
            with pytest.raises(ValueError, match=f"takes {name} as torch.int.*, not {wrong}"):
                bridge.widen_tokens({**compact, name: compact[name].to(wrong)})


# ---- devices that read by themselves ----


class Event:
    """A double of torch.cuda.Event: comes when the test says so, or when it is waited for."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name, self.come = log, name, False

    def query(self) -> bool:
        return self.come

    def synchronize(self) -> None:
        self.log.append(f"waited for {self.name}")
        self.come = True


class Gpu:
    """A double of a CUDA device: copies are noted and made on the CPU, events are Event."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.events: list[Event] = []
        self.copies: list[tuple[torch.device, bool]] = []
        self.full_after: int | None = None
        monkeypatch.setattr(torch_bridge, "_copied", self.copied)
        monkeypatch.setattr(torch_bridge, "_reached", self.reached)

    def copied(self, source: Any, device: Any, non_blocking: bool) -> Any:
        if self.full_after is not None and len(self.copies) == self.full_after:
            raise RuntimeError("CUDA out of memory")
        self.copies.append((device, non_blocking))
        return source.clone()

    def reached(self, device: Any) -> Event:
        self.events.append(Event(self.log, f"event {len(self.events)}"))
        return self.events[-1]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_a_slot_stays_claimed_until_the_device_has_read_it(make_feed: MakeFeed, gpu: Gpu) -> None:
    """With a double of the device."""
    fake = make_feed("--slots", "4", "--max-hold", "4")
    fake.tell("publish 4")
    with fake.attach() as feed:
        for held in (1, 2):
            feed.next().to("cuda:0", non_blocking=True)
            assert feed.stats().held == held, "nobody has the batch, but the device reads"
        assert gpu.copies == [(torch.device("cuda:0"), True)] * 6
        gpu.events[0].come = True
        batch = feed.next()
        assert (batch.seq, feed.stats().held) == (3, 2)
        batch.release()
        del batch
        assert feed.stats().held == 1 and gpu.log == []


def test_a_blocking_copy_holds_nothing(make_feed: MakeFeed, gpu: Gpu) -> None:
    """With a double of the device."""
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach() as feed:
        feed.next().to("cuda")
        assert feed.stats().held == 0 and gpu.events == []
        assert gpu.copies == [(torch.device("cuda"), False)] * 3


def test_devices_whose_end_of_reading_is_not_known_are_copied_to_at_once(
    make_feed: MakeFeed, gpu: Gpu
) -> None:
    """With a double of the device."""
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach() as feed:
        feed.next().to("mps", non_blocking=True)
        assert gpu.copies == [(torch.device("mps"), False)] * 3 and feed.stats().held == 0


def test_when_the_slots_are_used_up_the_oldest_copy_is_waited_for(
    make_feed: MakeFeed, gpu: Gpu
) -> None:
    """With a double of the device."""
    fake = make_feed("--slots", "2", "--max-hold", "2")
    fake.tell("publish 5")
    with fake.attach() as feed:
        for _ in range(5):
            feed.next().to("cuda", non_blocking=True)
        assert gpu.log == ["waited for event 0", "waited for event 1", "waited for event 2"]


def test_copies_are_waited_for_before_the_memory_goes_away(make_feed: MakeFeed, gpu: Gpu) -> None:
    """With a double of the device."""
    fake = make_feed()
    fake.tell("publish 2")
    with fake.attach() as feed:
        feed.next().to("cuda", non_blocking=True)
    assert gpu.log == ["waited for event 0"]
    assert int(fake.tell("members")) == 0
    # Without close(): with the last that knows of them.
    feed = fake.attach()
    batch = feed.next()
    batch.to("cuda", non_blocking=True)
    del feed
    assert gpu.log == ["waited for event 0"]
    del batch
    gc.collect()
    assert gpu.log == ["waited for event 0", "waited for event 1"]
    fake.wait_until_members(0)


def test_a_copy_that_fails_half_way_is_waited_for_as_well(make_feed: MakeFeed, gpu: Gpu) -> None:
    """With a double of the device."""
    fake = make_feed()
    fake.tell("publish 1")
    gpu.full_after = 2
    with fake.attach() as feed:
        with pytest.raises(RuntimeError, match="out of memory"):
            feed.next().to("cuda", non_blocking=True)
        gc.collect()
        assert feed.stats().held == 1
    assert gpu.log == ["waited for event 0"]


def test_a_forked_child_does_not_wait_for_its_parents_device(make_feed: MakeFeed, gpu: Gpu) -> None:
    """With a double of the device."""
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach() as feed:
        feed.next().to("cuda", non_blocking=True)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                feed.close()
                feed._transfers.forget_finished()
                status = 0 if gpu.log == [] and len(feed._transfers) == 1 else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert feed.stats().held == 1
    assert gpu.log == ["waited for event 0"]


# ---- pinned memory ----


class Runtime:
    """A double of torch.cuda.cudart(): notes what is registered, refuses the flags it is told to."""

    def __init__(self, log: list[str], *refused: int) -> None:
        self.log, self.refused = log, refused
        self.registered: tuple[int, int] | None = None

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.log.append(f"register with {flags}")
        if flags in self.refused:
            return 801  # cudaErrorNotSupported
        assert self.registered is None
        self.registered = (address, size)
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        assert self.registered is not None and self.registered[0] == address
        assert permissions_at(address) == "r--s", "still mapped"
        self.log.append("unregister")
        self.registered = None
        return 0


def permissions_at(address: int) -> str | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= address < high:
            return line.split()[1]
    return None


MakeRuntime = Callable[..., Runtime]


@pytest.fixture
def make_runtime(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> MakeRuntime:
    def make(*refused: int) -> Runtime:
        runtime = Runtime(gpu.log, *refused)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
        monkeypatch.setattr(
            torch_bridge, "forget_last_cuda_error", lambda: gpu.log.append("forget the error")
        )
        return runtime

    return make


def test_pin_registers_the_payload_as_read_only_until_close(
    make_feed: MakeFeed, make_runtime: MakeRuntime, gpu: Gpu
) -> None:
    """With a double of the runtime: there is no GPU where this runs."""
    fake = make_feed("--slots", "3")
    fake.tell("publish 3")
    runtime = make_runtime()
    with fake.attach() as feed:
        assert not feed.pinned
        feed.pin()
        feed.pin()
        assert feed.pinned and gpu.log == ["register with 8"]
        assert runtime.registered is not None
        start, size = runtime.registered
        assert start % 4096 == 0 and permissions_at(start) == "r--s"
        for _ in range(3):
            batch = feed.next()
            address = batch["x"].ctypes.data
            assert start <= address and address + batch.nbytes <= start + size
            batch.to("cuda", non_blocking=True)
            del batch
            gpu.events[-1].come = True
        gpu.events[-1].come = False
    assert gpu.log == ["register with 8", "waited for event 2", "unregister"]
    assert not feed.pinned
    feed.close()
    assert permissions_at(start) is None


def test_an_array_that_outlives_the_feed_is_only_no_longer_pinned(
    make_feed: MakeFeed, make_runtime: MakeRuntime, gpu: Gpu
) -> None:
    """With a double of the runtime: there is no GPU where this runs."""
    fake = make_feed()
    fake.tell("publish 1")
    make_runtime()
    with fake.attach() as feed:
        feed.pin()
        array = feed.next()["x"]
    assert gpu.log == ["register with 8", "unregister"]
    np.testing.assert_array_equal(array, rows_of(1, 4))


def test_a_pinned_feed_that_is_dropped_is_unregistered_before_it_is_unmapped(
    make_feed: MakeFeed, make_runtime: MakeRuntime, gpu: Gpu
) -> None:
    """With a double of the runtime: there is no GPU where this runs."""
    fake = make_feed()
    fake.tell("publish 1")
    runtime = make_runtime()
    feed = fake.attach()
    feed.pin()
    assert runtime.registered is not None
    start = runtime.registered[0]
    feed.next().to("cuda", non_blocking=True)
    del feed
    gc.collect()
    assert gpu.log == ["register with 8", "waited for event 0", "unregister"]
    fake.wait_until_members(0)
    assert permissions_at(start) is None


def test_memory_that_cannot_be_registered_as_read_only_is_registered_without_and_that_is_said(
    make_feed: MakeFeed, make_runtime: MakeRuntime, gpu: Gpu
) -> None:
    """With a double of the runtime: there is no GPU where this runs."""
    fake = make_feed()
    runtime = make_runtime(8)
    with fake.attach() as feed:
        with pytest.warns(RuntimeWarning, match="refuses to register memory as read-only"):
            feed.pin()
        assert feed.pinned and runtime.registered is not None
    assert gpu.log == ["register with 8", "forget the error", "register with 0", "unregister"]


def test_memory_that_cannot_be_registered_at_all_is_an_error_and_the_feed_goes_on(
    make_feed: MakeFeed, make_runtime: MakeRuntime, gpu: Gpu
) -> None:
    """With a double of the runtime: there is no GPU where this runs."""
    fake = make_feed()
    fake.tell("publish 1")
    make_runtime(8, 0)
    with fake.attach() as feed:
        with pytest.raises(ringfeed.FeedIOError, match="error 801 as read-only.*continue without"):
            feed.pin()
        assert not feed.pinned and feed.next().seq == 1
    assert "unregister" not in gpu.log and gpu.log.count("forget the error") == 2


@pytest.mark.parametrize(("view", "why"), [("private", "are copies"), ("copy", "are not in")])
def test_only_the_feeds_own_memory_is_pinned(
    make_feed: MakeFeed, make_runtime: MakeRuntime, gpu: Gpu, view: str, why: str
) -> None:
    """With a double of the runtime: there is no GPU where this runs."""
    fake = make_feed()
    make_runtime()
    with fake.attach(view=view) as feed:
        with pytest.raises(ringfeed.InvalidRequest, match=why):
            feed.pin()
    assert gpu.log == []


def test_pin_without_a_device_says_so(make_feed: MakeFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    fake = make_feed()
    with fake.attach() as feed:
        with pytest.raises(ringfeed.InvalidRequest, match="PyTorch sees none"):
            feed.pin()
    with pytest.raises(ringfeed.FeedDetached):
        feed.pin()


# ---- FeedDataset ----


def test_a_dataset_goes_through_torchs_own_loader(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "3")
    fake.tell("publish 10")
    fake.tell("close")
    dataset = FeedDataset("fake", socket_dir=fake.directory, timeout_s=PATIENCE_S)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)
    seen = []
    for batch in loader:
        seen.append(int(batch["id"][0]))
        np.testing.assert_array_equal(batch["x"].numpy(), rows_of(seen[-1], 4))
        batch["x"].zero_()
    assert seen == list(range(1, 11))
    assert ids(loader) == [], "the feed has ended"
    dataset.feed.close()


def test_a_dataset_goes_on_where_it_was_left(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "3")
    fake.tell("publish 4")
    fake.tell("close")
    with fake.attach() as feed:
        dataset = FeedDataset(feed)
        assert int(next(iter(dataset))["id"][0]) == 1
        assert ids(dataset) == [2, 3, 4]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_are_refused_with_the_reason(make_feed: MakeFeed, method: str) -> None:
    fake = make_feed()
    fake.tell("publish 4")
    with fake.attach() as feed:
        loader = torch.utils.data.DataLoader(
            FeedDataset(feed), batch_size=None, num_workers=2, multiprocessing_context=method
        )
        with pytest.raises(ringfeed.InvalidRequest, match="use num_workers=0: the proc"):
            next(iter(loader))
        assert feed.stats().taken == 0
        assert feed.next().seq == 1, "the feed is unharmed"


def test_a_dataset_is_not_pickled(make_feed: MakeFeed) -> None:
    fake = make_feed()
    with fake.attach() as feed:
        with pytest.raises(ringfeed.InvalidRequest, match="num_workers=0"):
            pickle.dumps(FeedDataset(feed))


# ---- FeedLoader ----


def test_a_loader_yields_host_tensors_that_may_be_changed(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "2")
    fake.tell("publish 10")
    fake.tell("close")
    with loader_of(fake) as loader:
        assert loader.device is None and loader.feed.view == "private"
        seen = []
        for batch in loader:
            seen.append(int(batch["id"][0]))
            np.testing.assert_array_equal(batch["x"].numpy(), rows_of(seen[-1], 4))
            batch["x"].zero_()
        assert seen == list(range(1, 11))
    assert loader.feed.closed


def test_a_loop_holds_what_its_body_holds_and_no_batch_more(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "2")
    fake.tell("publish 5")
    fake.tell("close")
    with loader_of(fake) as loader:
        for batch in loader:
            assert loader.feed.stats().held == 1
            del batch
            assert loader.feed.stats().held == 0


def test_a_loader_of_a_device_moves_batches_there(make_feed: MakeFeed, gpu: Gpu) -> None:
    """With a double of the device."""
    fake = make_feed()
    fake.tell("publish 3")
    fake.tell("close")
    with loader_of(fake, device="cuda:1") as loader:
        assert loader.feed.view == "readonly"
        assert ids(loader) == [1, 2, 3]
    assert gpu.copies == [(torch.device("cuda:1"), True)] * 9


def test_a_loader_pins_its_feed(make_feed: MakeFeed, make_runtime: MakeRuntime, gpu: Gpu) -> None:
    """With a double of the runtime: there is no GPU where this runs."""
    fake = make_feed()
    make_runtime()
    with loader_of(fake, device="cuda", pin=True) as loader:
        assert loader.feed.pinned
    assert gpu.log == ["register with 8", "unregister"]
    with pytest.raises(ringfeed.InvalidRequest, match="give one"):
        loader_of(fake, pin=True)
    fake.wait_until_members(0)


def test_a_rank_pins_with_its_own_device(
    make_feed: MakeFeed, make_runtime: MakeRuntime, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a double of the runtime: there is no GPU where this runs."""

    @contextlib.contextmanager
    def current(device: Any) -> Any:
        gpu.log.append(f"use {device}")
        yield
        gpu.log.append("use the other again")

    fake = make_feed()
    make_runtime()
    monkeypatch.setattr(torch.cuda, "device", current)
    with loader_of(fake, device="cuda:3", pin=True) as loader:
        loader.feed
        assert gpu.log == ["use cuda:3", "register with 8", "use the other again"]


def test_the_cpu_as_a_device_means_host_tensors_without_copies(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with loader_of(fake, device="cpu") as loader:
        batch = next(iter(loader))
        assert loader.feed.stats().held == 1
        assert permissions_at(batch["x"].data_ptr()) == "rw-p"


def test_the_length_is_that_of_an_iteration(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "4")
    fake.tell("publish 10")
    fake.tell("close")
    with loader_of(fake, batches=4) as loader:
        assert len(loader) == 4
        assert ids(loader) == [1, 2, 3, 4]
        assert ids(loader) == [5, 6, 7, 8], "the next iteration goes on"
        assert ids(loader) == [9, 10], "and the feed may end before"
        assert ids(loader) == []
    with pytest.raises(ringfeed.InvalidRequest, match="at least 1"):
        loader_of(fake, batches=0)


def test_a_stream_has_no_length(make_feed: MakeFeed) -> None:
    fake = make_feed()
    with loader_of(fake) as loader:
        with pytest.raises(TypeError, match="has no length"):
            len(loader)
        fake.tell("publish 1")
        fake.tell("close")
        assert len(list(loader)) == 1


def test_an_iteration_that_was_left_is_not_gone_on_with(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "8")
    fake.tell("publish 8")
    with loader_of(fake, batches=3) as loader:
        for batch in loader:
            break
        del batch
        assert ids(loader) == [2, 3, 4]


def test_a_loader_over_an_attached_feed_leaves_it_open(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "3")
    fake.tell("publish 3")
    with fake.attach(view="copy") as feed:
        with FeedLoader(feed, batches=2) as loader:
            assert ids(loader) == [1, 2]
        assert not feed.closed and feed.next().seq == 3
        for options in ({"group": "other"}, {"ranked": True}, {"max_hold": 3}):
            with pytest.raises(ringfeed.InvalidRequest, match="is already attached"):
                FeedLoader(feed, **options)


# ---- ranks ----


def test_the_launchers_environment_says_which_rank_this_is(
    make_feed: MakeFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make_feed("--slots", "8")
    fake.tell("publish 8")
    fake.tell("close")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loaders = []
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        loaders.append(loader_of(fake))
        stats = loaders[-1].feed.stats()
        assert (stats.kind, stats.rank, stats.world) == ("ranked", rank, 2)
    assert [ids(loader) for loader in loaders] == [[1, 3, 5, 7], [2, 4, 6, 8]]
    for loader in loaders:
        loader.close()


def test_arguments_win_over_the_environment(
    make_feed: MakeFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    fake = make_feed()
    with loader_of(fake, group="a", rank=2, world=4) as loader:
        assert (loader.feed.stats().rank, loader.feed.stats().world) == (2, 4)
    with loader_of(fake, group="b", ranked=False) as loader:
        assert loader.feed.stats().kind == "shared"


@pytest.mark.parametrize(
    "environment", [{"RANK": "1"}, {"WORLD_SIZE": "2"}, {"RANK": "a", "WORLD_SIZE": "2"}]
)
def test_half_a_launchers_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    loader = FeedLoader("feed", socket_dir=tmp_path)
    with pytest.raises(ringfeed.InvalidRequest, match="set both to numbers or neither"):
        next(iter(loader))


def test_a_ranked_loader_without_ranks_is_refused(tmp_path: Path) -> None:
    loader = FeedLoader("feed", ranked=True, socket_dir=tmp_path)
    with pytest.raises(ringfeed.InvalidRequest, match="give rank and world"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("local", "asked", "got"),
    [
        ("1", "cuda", "cuda:1"),
        ("1", "cuda:0", "cuda:0"),
        ("5", "cuda", "cuda"),  # the launcher shows each process its own device alone
        (None, "cuda", "cuda"),
        ("1", "cpu", None),
        ("1", None, None),
    ],
)
def test_of_several_devices_a_rank_takes_its_own(
    monkeypatch: pytest.MonkeyPatch, local: str | None, asked: str | None, got: str | None
) -> None:
    """With a double of the number of devices."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    assert bridge.loader._own_device(asked) == (None if got is None else torch.device(got))


# ---- positions ----


def test_a_state_is_plain_and_survives_the_ways_it_is_saved(
    make_feed: MakeFeed, tmp_path: Path
) -> None:
    fake = make_feed("--slots", "4")
    fake.tell("publish 4")
    with loader_of(fake, batches=10) as loader:
        loader.set_epoch(3)
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
        assert (state["last"], state["next"], state["epoch"], state["at"]) == (2, 3, 3, 2)
        assert state["feed_id"] == loader.feed.stats().feed_id.hex()
        assert json.loads(json.dumps(state)) == state
        torch.save(state, tmp_path / "state.pt")
        assert torch.load(tmp_path / "state.pt", weights_only=True) == state
        assert copy.deepcopy(state) == state


def crashed_trainer(fake: FakeFeed, batches: int, *options: str) -> dict[str, Any]:
    """Takes so many batches, saves its state with the last one in its hands, and is killed."""
    child = run_python(
        f"""
        import json, os, sys
        from ringfeed.torch import FeedLoader
        loader = FeedLoader("fake", socket_dir=sys.argv[1], timeout_s=30, {', '.join(options)})
        loader.set_epoch(2)
        for batch in loader:
            if int(batch["id"][0]) >= {batches}:
                print(json.dumps(loader.state_dict()), flush=True)
                os.kill(os.getpid(), 9)
        """,
        str(fake.directory),
    )
    out, err = child.communicate(timeout=PROGRAM_S)
    assert child.returncode == -signal.SIGKILL, err
    state: dict[str, Any] = json.loads(out)
    fake.wait_until_members(0)
    return state


def test_a_restarted_trainer_goes_on_with_the_batch_that_follows_its_state(
    make_feed: MakeFeed,
) -> None:
    fake = make_feed("--slots", "6")
    fake.tell("publish 10")
    fake.tell("close")
    state = crashed_trainer(fake, 3, "batches=5")
    assert state["held"] == [3]
    with loader_of(fake, batches=5) as loader:
        assert loader.feed.stats().next == 3, "what the dead one held comes again"
        loader.load_state_dict(state)
        assert loader.epoch == 2 and len(loader) == 5
        assert ids(loader) == [4, 5], "the rest of the iteration, nothing twice"
        assert ids(loader) == [6, 7, 8, 9, 10]


def test_a_rank_goes_on_with_its_own_batches(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "8")
    fake.tell("publish 9")
    fake.tell("close")
    state = crashed_trainer(fake, 3, "rank=0", "world=2", "max_hold=4")
    assert (state["last"], state["next"], state["held"]) == (3, 5, [3])
    with loader_of(fake, rank=0, world=2, even=False) as loader:
        loader.load_state_dict(state)
        assert ids(loader) == [5, 7, 9]


def test_frameworks_save_the_state_of_one_rank_for_all(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "8")
    fake.tell("publish 8")
    fake.tell("close")
    state = crashed_trainer(fake, 3, "rank=0", "world=2")
    with loader_of(fake, rank=1, world=2) as loader:
        with pytest.raises(ringfeed.InvalidRequest, match="belongs to rank 0, this is rank 1"):
            loader.load_state_dict({**state, "last": 5, "next": 7})
        loader.load_state_dict(state)
        assert ids(loader) == [6, 8], "the round after the one of batch 3"
    with loader_of(fake, group="other", rank=0, world=3) as loader:
        other = loader.state_dict()
    with loader_of(fake, rank=1, world=2) as loader:
        with pytest.raises(ringfeed.InvalidRequest, match="rank 0 of 3, this is rank 1 of 2"):
            loader.load_state_dict({**other, "group": "default"})


# ---- the end for ranks ----


@pytest.mark.parametrize("slots", ["2", "8"])
def test_ranks_end_evenly(make_feed: MakeFeed, slots: str) -> None:
    """Also where there are fewer slots than ranks that wait for each other."""
    fake = make_feed("--slots", slots)
    seen: dict[int, list[int]] = {}
    loaders = [loader_of(fake, rank=rank, world=3) for rank in range(3)]
    for loader in loaders:
        loader.feed  # all of them are there before the first batch

    def run(rank: int) -> None:
        seen[rank] = [int(batch["id"][0]) for batch in loaders[rank]]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    fake.tell("publish 10")
    fake.tell("close")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert seen == {0: [1, 4, 7], 1: [2, 5, 8], 2: [3, 6, 9]}
    assert [loader.dropped for loader in loaders] == [1, 0, 0]
    for loader in loaders:
        loader.close()


# ---- when the feed is attached ----


def test_a_loader_is_made_before_anybody_knows_the_rank(
    make_feed: MakeFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make_feed("--slots", "4")
    fake.tell("publish 4")
    fake.tell("close")
    loader, dataset = loader_of(fake), FeedDataset("fake", socket_dir=fake.directory)
    copied = pickle.loads(pickle.dumps(loader))
    fake.wait_until_members(0)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ids(loader) == [2, 4]
    assert loader.feed.stats().rank == 1
    copied.close()
    dataset._source.close()
    with pytest.raises(ringfeed.FeedDetached, match="was closed"):
        next(iter(copied))
    loader.close()


def test_what_frameworks_ask_of_a_loader_is_there(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "4", "--rows", "4")
    fake.tell("publish 3")
    fake.tell("close")
    with loader_of(fake, batches=3) as loader:
        assert (loader.batch_size, loader.sampler, loader.num_workers) == (4, None, 0)
        assert isinstance(loader.dataset, torch.utils.data.IterableDataset)
        assert ids(loader.dataset) == [1, 2, 3], "the same feed"


# ---- what is kept ----


def test_batches_that_are_kept_are_copies_before_the_feed_stands_still(
    make_feed: MakeFeed,
) -> None:
    fake = make_feed("--slots", "3", "--max-hold", "3")
    with loader_of(fake) as loader:
        loader.feed
        fake.tell("publish 20")
        fake.tell("close")
        kept = list(loader)
        assert ids(kept) == list(range(1, 21))
        for number, batch in enumerate(kept, 1):
            np.testing.assert_array_equal(batch["x"].numpy(), rows_of(number, 4))
        assert loader.feed.stats().held == 2


def test_an_epoch_that_was_over_is_followed_by_a_whole_one(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "8")
    fake.tell("publish 20")
    with loader_of(fake, batches=3) as loader:
        loader.set_epoch(0)
        assert ids(loader) == [1, 2, 3]
        state = loader.state_dict()
    with loader_of(fake, batches=3) as loader:
        loader.load_state_dict(state)
        assert ids(loader) == [4, 5, 6]
        for batch in loader:
            state = loader.state_dict()
            break
        del batch
    with loader_of(fake, batches=3) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert ids(loader) == [8, 9, 10], "another epoch than the saved one is not its rest"


def test_a_state_from_before_the_first_batch_is_a_position_too(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "4")
    with loader_of(fake) as loader:
        state = loader.state_dict()
    fake.tell("publish 3")
    fake.tell("close")
    with loader_of(fake) as loader:
        loader.load_state_dict(state)
        assert ids(loader) == [1, 2, 3]


def test_a_position_to_which_the_group_cannot_be_put_back_is_refused(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "4")
    fake.tell("publish 8")
    with loader_of(fake, batches=2) as loader:
        ids(loader)
        state = loader.state_dict()
        ids(loader)
        with pytest.raises(
            ringfeed.InvalidRequest,
            match="batches from 3 on have been used.*the next one is 5.*needs a snapshot",
        ):
            loader.load_state_dict(state)
        assert ids(loader) == [5, 6], "nothing has changed"


def test_what_comes_before_a_position_ahead_of_the_group_is_passed_over(
    make_feed: MakeFeed,
) -> None:
    fake = make_feed("--slots", "4")
    fake.tell("publish 10")
    fake.tell("close")
    with loader_of(fake) as loader:
        state = loader.state_dict()
        # Of a trainer that had come further, before the feed was resumed from an earlier snapshot.
        loader.load_state_dict(states.sealed({**state, "last": 7, "next": 8}))
        assert ids(loader) == [8, 9, 10]


def test_a_state_of_another_run_or_group_or_kind_is_refused(make_feed: MakeFeed) -> None:
    fake = make_feed()
    with loader_of(fake) as loader:
        state = loader.state_dict()
        with pytest.raises(ringfeed.InvalidRequest, match="has version 9, this ringfeed reads 1"):
            loader.load_state_dict({**state, "version": 9})
    with loader_of(fake, group="other") as loader:
        with pytest.raises(ringfeed.InvalidRequest, match="the state belongs to group default"):
            loader.load_state_dict(state)
    other = make_feed(name="other")
    with loader_of(other) as loader:
        with pytest.raises(ringfeed.InvalidRequest, match="the state belongs to feed fake"):
            loader.load_state_dict(state)
        with pytest.raises(ringfeed.InvalidRequest, match="another run of this feed"):
            loader.load_state_dict({**state, "feed": "other"})


# ---- distributed training ----

TRAINER = """
import sys
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ringfeed.torch import FeedLoader

def loss_of(model, batch):
    wanted = torch.stack([batch["id"], batch["flags"].sum(1)], 1) / 10
    return ((model(batch["x"].double() / 1000) - wanted) ** 2).mean()

def make_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)
    ).double()

def train(model, batches, gradients, numbers):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in batches:
        numbers.append(batch["id"][0].item())
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).numpy())
        optimizer.step()

if __name__ == "__main__":
    dist.init_process_group("gloo")
    gradients, numbers = [], []
    with FeedLoader("fake", group="ranks", socket_dir=sys.argv[1], timeout_s=60) as loader:
        train(DistributedDataParallel(make_model()), loader, gradients, numbers)
    np.savez(f"{sys.argv[2]}/rank{dist.get_rank()}.npz", gradients=gradients, numbers=numbers)
    dist.barrier()
    dist.destroy_process_group()
"""


def test_two_ranks_on_halves_make_the_gradients_of_one_on_the_whole(
    make_feed: MakeFeed, tmp_path: Path
) -> None:
    """Two processes under torchrun, torch.distributed with gloo, DistributedDataParallel."""
    fake = make_feed("--slots", "16", "--rows", "6")
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    with fake.attach(group="whole") as feed:
        fake.tell("publish 12")
        fake.tell("close")
        run = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
            + [str(script), str(fake.directory), str(tmp_path)],
            env=resting_at_exit(
                dict(os.environ, PYTHONPATH=str(ROOT / "pyclient"), OMP_NUM_THREADS="1")
            ),
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
        )
        assert run.returncode == 0, run.stderr
        ranks = [np.load(tmp_path / f"rank{rank}.npz") for rank in (0, 1)]
        assert ranks[0]["numbers"].tolist() == [1, 3, 5, 7, 9, 11]
        assert ranks[1]["numbers"].tolist() == [2, 4, 6, 8, 10, 12]
        assert np.array_equal(ranks[0]["gradients"], ranks[1]["gradients"])

        # The same by one process, with two batches for each step.
        space: dict[str, Any] = {"__name__": "trainer"}
        exec(compile(textwrap.dedent(TRAINER), "trainer", "exec"), space)

        def whole() -> Any:
            for one in feed:
                halves = (one.torch(copy=True), feed.next().torch(copy=True))
                yield {name: torch.cat([half[name] for half in halves]) for name in one}

        gradients: list[Any] = []
        numbers: list[int] = []
        space["train"](space["make_model"](), whole(), gradients, numbers)
        assert numbers == [1, 3, 5, 7, 9, 11]
        np.testing.assert_allclose(gradients, ranks[0]["gradients"], rtol=1e-9, atol=1e-12)
        assert np.abs(gradients).max() > 1e-3


def test_a_process_group_says_which_rank_this_is(
    make_feed: MakeFeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "7")  # of another job around this one
    monkeypatch.setenv("WORLD_SIZE", "9")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        assert bridge.rank_and_world() == (0, 1)
        fake = make_feed()
        with loader_of(fake) as loader:
            assert (loader.feed.stats().kind, loader.feed.stats().world) == ("ranked", 1)
    finally:
        torch.distributed.destroy_process_group()
    assert bridge.rank_and_world() == (7, 9)
