"""Where the programs are that come with the package."""

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
