"""A list that all processes of a host share."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

from ._batches import Memory

_T = TypeVar("_T")


class SharedList(Sequence[_T]):
    """A sequence of picklable items, kept once in memory for all processes that have it.

    Whoever reads an item of a Python list writes its reference count. So the pages of a list that a
    dataset holds are copied into each worker, one by one, until every worker has all of them. Here
    the items are bytes in one piece of memory, which nobody writes; reading one unpickles it.

        class Images(torch.utils.data.Dataset):
            def __init__(self, samples):
                self.samples = SharedList(samples)      # (path, label), millions of them

    It cannot be changed. It goes to processes that fork, and to those that `multiprocessing` spawns
    while it starts them, without a copy. Items take what `pickle.dumps` makes of them, and 8 bytes.
    """

    def __init__(self, items: Iterable[_T]) -> None:
        """
        Args:
            items: What it has; read once.
        Raises:
            pickle.PicklingError, TypeError, AttributeError: An item cannot be pickled.
            FeedMemoryError: A file may not be that large (ulimit -f).
            OSError: There is no memory for them.
        """
        ends: list[int] = []
        parts: list[bytes] = []
        total = 0
        for item in items:
            part = pickle.dumps(item, 5)
            parts.append(part)
            total += len(part)
            ends.append(total)
            if len(parts) % 65536 == 0:
                parts = [b"".join(parts)]
        self._count = len(ends)
        self._memory = Memory("ringfeed-list", max(1, 8 * self._count + total))
        if ends:
            struct.pack_into(f"<{self._count}Q", self._memory.map, 0, *ends)
        at = 8 * self._count
        for part in parts:
            self._memory.map[at : at + len(part)] = part
            at += len(part)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> _T: ...

    @overload
    def __getitem__(self, index: slice) -> list[_T]: ...

    def __getitem__(self, index: int | slice) -> _T | list[_T]:
        if isinstance(index, slice):
            return [self._item(i) for i in range(*index.indices(self._count))]
        number = index.__index__()
        if not -self._count <= number < self._count:
            raise IndexError(f"index {number} of a SharedList of {self._count}")
        return self._item(number % self._count)

    def __iter__(self) -> Iterator[_T]:
        return (self._item(i) for i in range(self._count))

    def _item(self, number: int) -> _T:
        data = self._memory.map
        if number == 0:
            begin, end = 0, struct.unpack_from("<Q", data, 0)[0]
        else:
            begin, end = struct.unpack_from("<2Q", data, 8 * (number - 1))
        first = 8 * self._count
        item: _T = pickle.loads(memoryview(data)[first + begin : first + end])
        return item

    def __repr__(self) -> str:
        return f"SharedList of {self._count} items, {self._memory.size} bytes"

    def __copy__(self) -> SharedList[_T]:
        return self

    def __deepcopy__(self, _: Any) -> SharedList[_T]:
        return self  # nobody can change it
