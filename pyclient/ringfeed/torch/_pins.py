"""Memory of batches that a device reads as it lies: registered with CUDA, not copied."""

from __future__ import annotations

import os
import weakref
from typing import Any

import torch

from .._core.torch_bridge import forget_last_cuda_error
from ._batches import Memory

_PAGE = 4096


class Pins:
    """Registers what batches have of their memory, slot by slot, as they grow.

    Then `tensor.pin_memory()` of a batch is the tensor itself. What CUDA refuses to register is
    copied by PyTorch, as elsewhere.
    """

    def __init__(self, memory: Memory) -> None:
        self._runtime = torch.cuda.cudart()
        self._address = memory.address
        self._sizes: dict[int, int] = {}  # by offset
        self._refused = False
        # As long as it is mapped, CUDA may have it. At the end of the process the driver lets go.
        end = weakref.finalize(
            memory.map, _let_go, self._runtime, self._address, self._sizes, os.getpid()
        )
        end.atexit = False

    def pin(self, offset: int, size: int) -> bool:
        """Makes sure that so many bytes are registered; no batch of the slot is in use."""
        known = self._sizes.get(offset, 0)
        if size <= known:
            return True
        if self._refused:
            return False
        # With room above, so that batches that differ a little are registered once.
        size = (size + size // 8 + _PAGE - 1) & -_PAGE
        if known:
            self._runtime.cudaHostUnregister(self._address + offset)
            del self._sizes[offset]
        if int(self._runtime.cudaHostRegister(self._address + offset, size, 0)):
            self._refused = True
            forget_last_cuda_error()
            return False
        self._sizes[offset] = size
        return True


def _let_go(runtime: Any, address: int, sizes: dict[int, int], pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has no part in its parent's device
    for offset in sizes:
        runtime.cudaHostUnregister(address + offset)
