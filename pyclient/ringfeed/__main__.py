"""``ringfeed ARGS`` and ``python -m ringfeed ARGS``: the program ``ringfeed`` that comes with the
package.
"""

from __future__ import annotations

import os
import sys

from ._core import programs
from .errors import RingfeedError


def main() -> int:
    """Replaces this process by the program, with the same arguments."""
    try:
        program = programs.find("ringfeed")
    except RingfeedError as error:
        print(f"ringfeed: {error}", file=sys.stderr)
        return 1
    # Of stages in Python: the one that has what this one has.
    os.environ.setdefault("RINGFEED_PYTHON", sys.executable)
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
