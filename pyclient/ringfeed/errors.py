"""One exception class per kind of failure; the text is a sentence that says what to do."""

from __future__ import annotations


class RingfeedError(Exception):
    """Anything that goes wrong with a feed."""


class FeedTimeout(RingfeedError, TimeoutError):
    """Nothing came in time. Nothing is claimed; calling again is safe."""


class FeedEnd(RingfeedError):
    """The feed is closed and this group has had every batch. Loops over a feed end with it."""


class FeedFailed(RingfeedError):
    """The feed has stopped; the text is the reason. Every published batch was delivered before."""


class FeedStopped(RingfeedError):
    """The feed was stopped before its end: batches in progress are lost.

    Every published batch was delivered before. The cause is `ringfeed stop --now`, a second signal,
    or a drain that took too long. A drained feed ends with FeedEnd.
    """


class SlotsExhausted(RingfeedError):
    """This member holds too many batches for the next one to come: release one first.

    Arrays hold their batch, and so do views, tensors made from them, and references in tracebacks.
    """


class FeedDetached(RingfeedError):
    """This process is no longer a member of its group: attach again."""


class NoSuchFeed(RingfeedError, LookupError):
    """No supervisor serves a feed of this name in the directory that was searched."""


class IncompatibleFeed(RingfeedError):
    """Supervisor and trainer have different versions."""


class FeedRefused(RingfeedError):
    """The supervisor refuses: the group has other settings, or no place is free."""


class ForkedFeed(RingfeedError):
    """The feed belongs to the parent process: attach in the child."""


class FeedPermission(RingfeedError, PermissionError):
    """The feed belongs to another user, or does not see this process (another pid namespace)."""


class FeedMemoryError(RingfeedError, MemoryError):
    """Too little memory or address space in this process to map the feed."""


class FeedIOError(RingfeedError, OSError):
    """The system refused a call, or the connection broke."""


class FeedDamaged(RingfeedError):
    """Shared memory or a message contradicts itself."""


class InvalidRequest(RingfeedError, ValueError):
    """The call asks for something impossible."""


class BatchReleased(RingfeedError, ValueError):
    """The batch was given back, so its arrays are no longer available."""


class InvalidConfiguration(RingfeedError, ValueError):
    """The supervisor refuses the configuration; the text lists every mistake in it."""
