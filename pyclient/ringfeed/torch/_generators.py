"""The states of the three generators of a process: PyTorch's, NumPy's and Python's, as bytes.

Layout (little-endian): four bytes ``RFG1``, then for each of torch, numpy, random a length of 4
bytes and as many bytes:
    torch   as ``torch.get_rng_state()``
    numpy   624 words of key, then position (i32), has_gauss (i32), gauss (f64); nothing where
            NumPy's global generator isn't the Mersenne Twister that it begins with
    random  version (u8), 625 words, has_gauss (u8), gauss (f64)

No pickle: these bytes lie in checkpoints, and a checkpoint must not be able to run code.
"""

from __future__ import annotations

import _random
import base64
import binascii
import ctypes
import hashlib
import random
import struct
from typing import Any

import numpy
import numpy.random  # which NumPy imports late: for each worker anew, but for this
import torch

_MAGIC = b"RFG1"
_NUMPY_TAIL = struct.Struct("<iid")
_RANDOM = struct.Struct("<B625IBd")


# The Mersenne Twisters of NumPy and of Python as they lie in memory: only compared.
_NUMPY_BYTES = 624 * 4 + 4
_HEAD_BYTES = 16  # of a Python object: its references and its type
_RANDOM_BYTES = _random.Random.__basicsize__ - _HEAD_BYTES


class _Seen:
    """What NumPy's and Python's generators were last, and as bytes: most batches leave them alone.

    Asked anew, NumPy's state takes 30 us. What isn't seen: a state of NumPy's with a normal number
    to spare, kept by the user until that number is spent and a batch is over, and then set again.
    """

    memory = b""
    array = b""
    numbers: tuple[Any, ...] = ()
    plain = b""


def _numpy_state() -> bytes:
    generator = numpy.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(generator).__name__ != "MT19937":
        return b""
    memory = ctypes.string_at(generator.ctypes.state_address, _NUMPY_BYTES)
    if memory == _Seen.memory:
        return _Seen.array
    state = numpy.random.get_state(legacy=False)
    assert isinstance(state, dict)
    array: bytes = state["state"]["key"].astype("<u4").tobytes() + _NUMPY_TAIL.pack(
        state["state"]["pos"], state["has_gauss"], state["gauss"]
    )
    # Normal numbers come in pairs: to take the one to spare changes nothing in memory.
    _Seen.memory, _Seen.array = (b"", b"") if state["has_gauss"] else (memory, array)
    return array


def _random_state() -> bytes:
    numbers = random.getstate()
    if numbers != _Seen.numbers:
        version, words, gauss = numbers
        _Seen.plain = _RANDOM.pack(version, *words, gauss is not None, gauss or 0.0)
        _Seen.numbers = numbers
    return _Seen.plain


def capture() -> bytes:
    """The states of this process's generators, some 10 KB."""
    own = torch.get_rng_state().numpy().tobytes()
    parts = (own, _numpy_state(), _random_state())
    return _MAGIC + b"".join(struct.pack("<I", len(part)) + part for part in parts)


def glance() -> tuple[Any, ...] | None:
    """What differs if a generator has been used since, in some 3 us; None: it can't be told."""
    if not _Seen.memory:  # of NumPy's it is not known, or there is a normal number to spare
        return None
    generator = numpy.random.get_bit_generator()  # type: ignore[attr-defined]
    own: Any = random.random.__self__  # type: ignore[attr-defined]
    state = torch.default_generator.get_state()
    return (
        type(generator).__name__ == "MT19937"
        and ctypes.string_at(generator.ctypes.state_address, _NUMPY_BYTES),
        ctypes.string_at(id(own) + _HEAD_BYTES, _RANDOM_BYTES),
        own.gauss_next,
        ctypes.string_at(state.data_ptr(), state.nbytes),
    )


def restore(states: bytes) -> None:
    """Set this process's generators to what ``capture()`` gave.

    Raises:
        ValueError: The bytes are no such states; no generator has changed.
    """
    parts: list[bytes] = []
    at = len(_MAGIC)
    while at < len(states) and len(parts) < 3:
        (length,) = struct.unpack_from("<I", states.ljust(at + 4, b"\0"), at)
        parts.append(states[at + 4 : at + 4 + length])
        at += 4 + length
    sizes = [len(part) for part in parts]
    if (
        states[: len(_MAGIC)] != _MAGIC
        or at != len(states)
        or len(parts) != 3
        or sizes[1] not in (0, 624 * 4 + _NUMPY_TAIL.size)
        or sizes[2] != _RANDOM.size
    ):
        raise ValueError(f"{len(states)} bytes are no states of generators")
    own, array, plain = parts
    version, *words, has_gauss, gauss = _RANDOM.unpack(plain)
    before = random.getstate()
    try:
        random.setstate((version, tuple(words), gauss if has_gauss else None))
        torch.set_rng_state(as_tensor(own))
    except (RuntimeError, TypeError, ValueError) as error:
        random.setstate(before)
        raise ValueError(f"damaged states of generators: {error}") from error
    if array:
        key = numpy.frombuffer(array, dtype="<u4", count=624)
        position, cached, value = _NUMPY_TAIL.unpack_from(array, 624 * 4)
        _Seen.memory = b""  # the number to spare may change, and nothing in memory
        numpy.random.set_state(("MT19937", key, position, cached, value))


def fingerprint() -> str:
    """Of the state of PyTorch's global generator: is it the same again?"""
    return hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=8).hexdigest()


def another_seed(seed: int, step: int) -> int:
    """A seed for workers that go on at some step with generators that nobody has had."""
    key = struct.pack("<QQ", seed & ((1 << 64) - 1), step)
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1


def as_tensor(states: bytes) -> Any:
    """Bytes as the uint8 tensor that a ``torch.Generator`` takes."""
    return torch.frombuffer(bytearray(states), dtype=torch.uint8)


def text(states: Any) -> str | None:
    """Bytes, or a generator's uint8 tensor, as base64 text for a state that may become JSON."""
    if states is None:
        return None
    if isinstance(states, torch.Tensor):
        states = states.numpy().tobytes()
    return base64.b64encode(states).decode("ascii")


def untext(states: Any) -> bytes | None:
    """The bytes of what ``text()`` gave; of a uint8 tensor too, as torchdata keeps states.

    Raises:
        ValueError: It is neither.
    """
    if states is None:
        return None
    if isinstance(states, torch.Tensor):
        return bytes(states.numpy().tobytes())
    if isinstance(states, bytes):
        return states
    try:
        return base64.b64decode(states, validate=True)
    except (TypeError, binascii.Error, ValueError) as error:
        raise ValueError(f"a generator's state must be base64 text, not {states!r:.40}") from error
