"""``python -m ringfeed.worker``: runs a stage in Python, or tells what one needs.

``ringfeed`` starts it, through ``ringfeed-worker-python``.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from typing import NoReturn

from .._core import standard
from ..errors import RingfeedError
from . import exits, module, objects, trial, warm
from .awaited import leave
from .batches import Batches
from .calls import Calls
from .output import LogStream
from .sources import Source
from .values import coerce


def _say_as(who: str) -> None:
    """What is printed from now on comes out as lines of the log of `who`."""
    for name, fd, level in (("stdout", 1, "info"), ("stderr", 2, "warning")):
        stream = getattr(sys, name)
        if isinstance(stream, LogStream):
            stream.who = who  # somebody may have it already
        else:
            setattr(sys, name, LogStream(fd, level, who))


def _make(spec: objects.Spec) -> Batches | Calls | Source:
    _say_as(f"{spec['stage']}.{spec['lane']}")
    # A fault's Python stack goes to the log before the native one, and so does that of a lane that
    # is asked where it is.
    faulthandler.enable(2, all_threads=False)
    faulthandler.register(signal.SIGUSR2, 2, all_threads=True, chain=True)
    exits.tell()
    try:
        if spec["batch"]:
            return Batches(spec)
        return Source(spec) if spec["source"] else Calls(spec)
    except BaseException:
        traceback.print_exc()
        raise


def _check(spec: objects.Spec) -> str:
    # The plan goes to the standard output, where nothing else may be.
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        return objects.check(spec)
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def main() -> int:
    standard.reserve()
    try:
        worker = module.load()
        if sys.argv[1:] == ["--plan"]:
            return int(worker.plan(_check))
        if sys.argv[1:] == ["--kinds"]:
            return int(worker.kinds())

        def run(setup_fd: int) -> int:
            return int(worker.run(setup_fd, _make, coerce))

        if len(sys.argv) == 3 and sys.argv[1] == "--setup-fd":
            return run(int(sys.argv[2]))
        if len(sys.argv) == 3 and sys.argv[1] == "--warm-fd":
            spec = worker.spec(int(sys.argv[2]))
            _say_as(spec["stage"])
            return warm.serve(int(sys.argv[2]), spec, run)
        if len(sys.argv) >= 4 and sys.argv[1] == "--try-fd":
            return trial.serve(worker, int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    except (RingfeedError, RuntimeError) as error:
        print(f"ringfeed-worker-python: {error}", file=sys.stderr)
        return 1
    print("ringfeed starts ringfeed.worker: see ringfeed --help", file=sys.stderr)
    return 2


def _end(status: int) -> NoReturn:
    """Ends the process, whatever a stage's code has left in it."""
    if sys.argv[1:] in (["--plan"], ["--kinds"]):
        leave(status)  # all is said
    left = [one.name for one in threading.enumerate() if not one.daemon][1:]
    if left:
        names = ", ".join(left)
        print(f"the process ends without threads that are no daemons: {names}", file=sys.stderr)
        leave(status)
    sys.exit(status)


if __name__ == "__main__":
    _end(main())
