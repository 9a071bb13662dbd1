"""pin_memory=True and a device that reads late, while the loop has long dropped the batch.

Nothing here has seen a GPU: a double stands for the device, for its driver and for PyTorch's cache of pinned memory.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from tests.support.loaders.own_data import Made  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
FURTHER = 60  # batches: more than a feed of these loaders has slots
ELEMENTS = 5000


class LateDevice:
    """Copies when it is told to. It has addresses until then, as cudaMemcpyAsync has."""

    def __init__(self) -> None:
        self._registered: dict[int, int] = {}
        self._pinned: dict[int, Any] = {}  # by address, of the cache; the one place that keeps it
        self._asked: list[tuple[int, int]] = []

    # The driver, as torch.cuda.cudart() has it.

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        self._registered[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self._registered[address]
        return 0

    # PyTorch's tensors.

    def pinned(self, tensor: Any) -> Any:
        """`tensor.pin_memory()`: itself, if the driver knows its memory."""
        at = tensor.data_ptr()
        if at in self._pinned or any(
            begin <= at < begin + size for begin, size in self._registered.items()
        ):
            return tensor
        copy = tensor.clone()
        # No block is used again here before the end: the cache waits for the events of copies,
        # and knows them of its own memory only.
        self._pinned[copy.data_ptr()] = copy
        return copy

    def copy(self, tensor: Any) -> None:
        """`tensor.to("cuda", non_blocking=True)`, on whatever stream."""
        assert self.pinned(tensor) is tensor, "not pinned: a copy would not be asynchronous"
        self._asked.append((tensor.data_ptr(), tensor.numel()))

    def has_read(self) -> list[list[float]]:
        """What comes of the copies."""
        return [
            list((ctypes.c_float * count).from_address(address)) for address, count in self._asked
        ]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    late = LateDevice()
    for module, name, value in (
        (torch.accelerator, "is_available", True),
        (torch.accelerator, "current_accelerator", torch.device("cuda")),
        (torch.accelerator, "current_device_index", 0),
        (torch.accelerator, "set_device_index", None),
        (torch.cuda, "is_available", True),
        (torch.cuda, "cudart", late),
    ):
        monkeypatch.setattr(module, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: late.pinned(tensor))
    return late


def _filled(index: int) -> Any:
    return torch.full((ELEMENTS,), float(index))


def _in_place(step: Callable[[], None]) -> None:
    step()


def _in_a_thread(step: Callable[[], None]) -> None:
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()


@pytest.mark.parametrize("how", [_in_place, _in_a_thread])
@pytest.mark.parametrize(("workers", "ahead"), [(1, None), (2, 1), (3, None)])
def test_a_batch_is_there_until_the_device_has_read_it(
    Loader: Any, device: LateDevice, workers: int, ahead: int | None, how: Any
) -> None:
    """A loop drops each batch when it has asked for the copy."""
    loader = Loader(
        Made(_filled, 2 * FURTHER),
        batch_size=2,
        num_workers=workers,
        pin_memory=True,
        prefetch_factor=ahead,
    )
    _read_late(iter(loader), device, how)


def test_a_batch_of_a_shared_feed_is_there_until_the_device_has_read_it(
    Ours: Any, device: LateDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(tmp_path))
    loader = Ours(
        Made(_filled, 2 * FURTHER), batch_size=2, num_workers=2, pin_memory=True, feed="late"
    )
    _read_late(iter(loader), device, _in_place)


def _read_late(batches: Any, device: LateDevice, how: Any) -> None:
    count = 0
    for batch in batches:
        how(functools.partial(device.copy, batch))
        count += 1
        del batch
    assert count == FURTHER
    due = [[float(2 * i)] * ELEMENTS + [float(2 * i + 1)] * ELEMENTS for i in range(FURTHER)]
    wrong = [i for i, (seen, want) in enumerate(zip(device.has_read(), due)) if seen != want]
    assert not wrong, f"the device has read other data: {wrong}"
