"""On the path of trainers under test: Python ends when PyTorch's threads of gloo are at rest.

destroy_process_group() does not end these threads. One that has not yet dropped the tensors of its
last work drops them while the interpreter ends, asks for its lock, and PyTorch aborts the process:
"terminate called without an active exception" (pytorch/pytorch issue 190489, seen with 2.13). On a
busy machine that happened to programs that had done everything they should.
"""

import atexit
import time
from pathlib import Path

LONGEST_S = 10.0


def _is_busy() -> bool:
    """A thread of gloo runs, or would if it had a processor."""
    for thread in Path("/proc/self/task").iterdir():
        try:
            name, _, values = (thread / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # another thread, which has ended
        if "(pt_gloo" in name and values.split()[0] == "R":
            return True
    return False


@atexit.register  # the first that is registered is the last that is called
def _wait_for_gloo() -> None:
    end = time.monotonic() + LONGEST_S
    time.sleep(0.01)  # without Python's lock: a thread that waits for it gets it
    while _is_busy() and time.monotonic() < end:
        time.sleep(0.01)
