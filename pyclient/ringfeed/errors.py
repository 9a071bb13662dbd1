"""One exception class per kind of failure; the text is a sentence that says what to do."""

from __future__ import annotations


class RingfeedError(Exception):
    """Anything that goes wrong with a feed."""


class FeedTimeout(RingfeedError, TimeoutError):
    """Nothing came in time. Nothing is claimed; calling again is safe."""


class FeedEnd(RingfeedError):
    """The feed is closed and this group has had every batch. Loops over a feed end with it."""


class FeedFailed(RingfeedError):
    """The feed has stopped with a reason. What it had published was delivered before."""


class FeedStopped(RingfeedError):
    """The feed was stopped before its end: batches that were under way are lost.

    What it had published was delivered before. `ringfeed stop --now`, a second signal or a drain
    that took too long does it; a feed that was drained ends as one that is over (FeedEnd).
    """


class SlotsExhausted(RingfeedError):
    """This member holds so many batches that the next cannot come: release one first.

    Arrays hold their batch, and so do views, tensors made from them, and references in tracebacks.
    """


class FeedDetached(RingfeedError):
    """This process is no member of its group any more: attach again."""


class NoSuchFeed(RingfeedError, LookupError):
    """Nobody serves a feed of this name where it was looked for."""


class IncompatibleFeed(RingfeedError):
    """Supervisor and trainer are of different versions."""


class FeedRefused(RingfeedError):
    """The supervisor says no: the group has other settings, or there is no place in it."""


class ForkedFeed(RingfeedError):
    """The feed belongs to the parent process: attach in the child."""


class FeedPermission(RingfeedError, PermissionError):
    """The feed belongs to another user."""


class FeedMemoryError(RingfeedError, MemoryError):
    """Too little memory or address space in this process to map the feed."""


class FeedIOError(RingfeedError, OSError):
    """The system refused a call, or the connection broke."""


class FeedDamaged(RingfeedError):
    """Shared memory or a message contradicts itself."""


class InvalidRequest(RingfeedError, ValueError):
    """The call asks for something impossible."""


class BatchReleased(RingfeedError, ValueError):
    """The batch was given back: its arrays can no longer be had."""


class InvalidConfiguration(RingfeedError, ValueError):
    """The supervisor refuses the configuration; the text is all that is wrong with it."""
