"""Where the programs are that come with the package, and what they need."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import RingfeedError


def find(name: str) -> Path:
    """Path of "ringfeed" or "ringfeed-worker".

    Looked for in $RINGFEED_BIN_DIR, in the package, and in $PATH.
    Raises:
        RingfeedError: It is in none of them.
    """
    given = os.environ.get("RINGFEED_BIN_DIR")
    places = [Path(given)] if given else []
    places.append(Path(__file__).parents[1] / "bin")
    for place in places:
        program = place / name
        if os.access(program, os.X_OK):
            return program
    for directory in os.get_exec_path():
        program = Path(directory) / name
        if os.access(program, os.X_OK):
            return program
    raise RingfeedError(
        f"the program {name} is neither in {' nor in '.join(str(p) for p in places)} nor in PATH: "
        "reinstall the package ringfeed, or set RINGFEED_BIN_DIR"
    )


def check_proc() -> None:
    """A supervisor asks /proc which processes live, and opens memory there.

    Raises:
        RingfeedError: /proc is not mounted, or is that of other processes.
    """
    try:
        own = os.readlink("/proc/self")
    except OSError as error:
        wrong = f"is not mounted here ({error.strerror})"
    else:
        if own == str(os.getpid()):
            return
        wrong = f"is of another pid namespace: there this process {os.getpid()} is {own}"
    raise RingfeedError(
        f"/proc {wrong}, and without it a supervisor cannot watch its processes: mount it "
        "(mount -t proc proc /proc, unshare --mount-proc, bwrap --proc /proc)"
    )
