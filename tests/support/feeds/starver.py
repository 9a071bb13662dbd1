"""What a program asks the system for is refused, one call at a time (fakes/starve.c)."""

from __future__ import annotations

import errno
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.feeds.feed_run import BIN, FeedRun, wait_until

# As tests/support/fakes/starve.c numbers them, with what the system says when it refuses.
KINDS = {
    "mmap": (1, errno.ENOMEM),
    "open": (2, errno.EMFILE),
    "eventfd": (3, errno.EMFILE),
    "pthread_create": (4, errno.EAGAIN),
    "write": (5, errno.ENOSPC),
    "malloc": (6, errno.ENOMEM),
    "epoll_ctl": (7, errno.ENOMEM),
    "socketpair": (8, errno.EMFILE),
    "pipe2": (9, errno.EMFILE),
    "posix_spawn": (10, errno.EAGAIN),
    "accept4": (11, errno.EMFILE),
    "memfd_create": (12, errno.ENOMEM),
    # They do not fail: they hang until stop().
    "hung pwrite": (13, 0),
    "hung posix_spawn": (14, 0),
    "hung pread": (15, 0),
}


class Starver:
    """The page that tells the processes of a program which of their calls fail."""

    def __init__(self, path: Path, program: str = "ringfeed") -> None:
        path.write_bytes(bytes(4096))
        self._file = path.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), 4096)
        self.environment = {
            "LD_PRELOAD": str(BIN.parent / "lib" / "libstarve.so"),
            "RF_STARVE": str(path),
            "RF_STARVE_PROGRAM": program,
        }

    def refuse(self, kind: str, skip: int, count: int) -> None:
        """After `skip` calls of this kind the next `count` fail."""
        number, error = KINDS[kind]
        struct.pack_into("=IiiiI", self._page, 0, 0, skip, count, error, 0)
        struct.pack_into("=I", self._page, 0, number)

    def hangs(self) -> bool:
        """Whether a call of a hung kind waits, or something was refused."""
        return self.failed() != 0

    def failed(self) -> int:
        """How many calls have failed since refuse()."""
        return int(struct.unpack_from("=I", self._page, 16)[0])

    def let(self, count: int) -> None:
        """So many hung calls go on."""
        struct.pack_into("=i", self._page, 4, count)

    def stop(self) -> int:
        """Nothing fails any more. How many calls have failed."""
        struct.pack_into("=I", self._page, 0, 0)
        return self.failed()

    def calls(self, kind: str) -> int:
        return struct.unpack_from("=Q", self._page, 64 + 8 * KINDS[kind][0])[0]


def starved_feed(
    make_run: Callable[..., FeedRun],
    tmp_path: Path,
    program: str = "ringfeed",
    start: tuple[str, ...] = (),
    **settings: Any,
) -> tuple[FeedRun, Starver]:
    """A feed that has been started; the test's own commands are refused nothing."""
    starver = Starver(tmp_path / "starve", program)
    run = make_run(**settings)
    own = dict(run.environment)
    run.environment = {**own, **starver.environment}
    run.start(*start)
    run.environment = own
    wait_until(lambda: starver.calls("malloc") > 0, "the shim")
    return run, starver
