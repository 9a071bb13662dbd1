"""What is held for the length of a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

_Held = TypeVar("_Held", bound="Scope")


class Scope:
    """Base of what a ``with`` block holds; ``_leave`` says what ends with the block."""

    __slots__ = ()

    def __enter__(self: _Held) -> _Held:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        """End what the block has held; ``error`` is the exception that leaves the block, if any."""
        raise NotImplementedError
