"""Is the state of a stream exact: does it go on behind the sample after which it was taken?

Some are known not to be. Of others nobody knows before they are used: then the first samples that
come are compared with those that had come.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from typing import Any

_PARTS_MAX = 1000  # in which a dataset is looked for that another one has
_SEEN_MAX = 10_000
# Of each array, text and list so much at both ends: enough to tell samples apart.
_ENDS = 1024
_ITEMS = 32


def loses_samples(dataset: Any) -> bool:
    """Does its state leave out samples that it has read and not yet given?

    Those of Hugging Face's ``datasets`` with a shuffle buffer do (``IterableDataset.state_dict()``
    says so), and whatever has such a one and its state.
    """
    module = sys.modules.get("datasets.iterable_dataset")
    kind = getattr(module, "BufferShuffledExamplesIterable", None)
    if kind is None:
        return False
    seen: dict[int, Any] = {}
    left = [dataset]
    while left and len(seen) < _SEEN_MAX:
        one = left.pop()
        if isinstance(one, kind):
            return True
        if id(one) in seen:
            continue
        seen[id(one)] = one
        left += _parts(one)
    return False


def _parts(one: Any) -> Iterator[Any]:
    """What it has that may be a stream, or have one."""
    for value in getattr(one, "__dict__", {}).values():
        parts = value.values() if isinstance(value, dict) else value
        if not isinstance(value, (list, tuple, dict)) or len(value) > _PARTS_MAX:
            parts = (value,)
        for part in parts:
            # Whatever can be iterated over by Python's own means: no array, no text.
            of = type(part)
            if callable(getattr(of, "state_dict", None)) or (
                hasattr(part, "__dict__") and (hasattr(of, "__iter__") or hasattr(of, "__next__"))
            ):
                yield part


def digest(sample: Any, seed: int = 0) -> int:
    """A number that another sample, or another order of samples, does not have, as good as never.

    The same in every process. Of long parts only the ends are looked at, so it costs some
    microseconds.

    Args:
        seed: That of the samples before.
    """
    if isinstance(sample, dict):
        seed = zlib.crc32(b"{%d" % len(sample), seed)
        for name, value in sample.items():
            seed = digest(value, zlib.crc32(str(name).encode(errors="replace"), seed))
        return seed
    if isinstance(sample, str):
        ends = sample if len(sample) <= 2 * _ENDS else sample[:_ENDS] + sample[-_ENDS:]
        return zlib.crc32(b"'%d:" % len(sample) + ends.encode(errors="replace"), seed)
    if sample is None or isinstance(sample, (bool, int, float, complex)):
        return zlib.crc32(repr(sample).encode(), seed)
    if isinstance(sample, (bytes, bytearray, memoryview)):
        raw = memoryview(sample).cast("B")
        return zlib.crc32(
            raw[-_ENDS:], zlib.crc32(raw[:_ENDS], zlib.crc32(b"b%d" % len(raw), seed))
        )
    if isinstance(sample, (list, tuple)):
        seed = zlib.crc32(b"[%d" % len(sample), seed)
        items = sample if len(sample) <= 2 * _ITEMS else (*sample[:_ITEMS], *sample[-_ITEMS:])
        for value in items:
            seed = digest(value, seed)
        return seed
    try:
        return _digest_of_array(sample, seed)
    except Exception:  # whatever an object does that is no array after all
        return seed


def _digest_of_array(sample: Any, seed: int) -> int:
    seed = zlib.crc32(type(sample).__qualname__.encode(), seed)
    if hasattr(sample, "detach") and hasattr(sample, "cpu"):
        sample = sample.detach().cpu()
        if str(sample.dtype) == "torch.bfloat16":
            sample = sample.float()
        sample = sample.resolve_neg().resolve_conj().numpy()
    if hasattr(sample, "__array__") or hasattr(sample, "__array_interface__"):
        import numpy as np

        array = np.asarray(sample)
        seed = zlib.crc32(f"{array.dtype}{array.shape}".encode(), seed)
        flat = array.reshape(-1)
        if array.dtype == object:
            return digest(flat[: 2 * _ITEMS].tolist(), seed)
        seed = zlib.crc32(flat[:_ENDS].tobytes(), seed)
        return zlib.crc32(flat[-_ENDS:].tobytes(), seed)
    own = getattr(sample, "__dict__", None)
    return digest(own, seed) if isinstance(own, dict) else seed
