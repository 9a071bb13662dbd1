"""What a process and all below it have used: processor time and memory.

Time is kept by everybody who ever ran below the process, whether it still lives or was waited for:
the sum over the tree only grows, and the difference of two sums is what was used in between. An
orphan must stay in the tree for that, so call adopt_orphans() before anything is started.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """From now on what loses its parent below this process becomes its child."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def below(pid: int) -> list[int]:
    """All processes below this one, those that nobody has waited for included."""
    found: list[int] = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return found
    for task in tasks:  # each thread has the children that it started
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            found.append(child)
            found += below(child)
    return found


def _stat(pid: int) -> list[int]:
    """Ticks of itself in user and system, and of those that it has waited for; zeros if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except OSError:
        return [0, 0, 0, 0]
    return [int(field) for field in fields[11:15]]


def _own_s(pid: int) -> float:
    """Processor time of a process without those below it: in nanoseconds, while it lives."""
    try:
        # The processor-time clock of another process (clock_getcpuclockid(3)): ticks are 10 ms.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        user, system, _, _ = _stat(pid)
        return (user + system) * _TICK_S


def cpu_s() -> float:
    """Processor time, user and system, of this process and of all that ever ran below it."""
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + waited.ru_utime + waited.ru_stime
    for pid in below(os.getpid()):
        _, _, user, system = _stat(pid)
        total += _own_s(pid) + (user + system) * _TICK_S
    return total


def pss_bytes() -> int:
    """Memory of this process and all below it; a page that several have counts once altogether."""
    return _pss_bytes("Pss:")


def memory_bytes() -> int:
    """As pss_bytes(), with all of the files in memory that they have, which need not be mapped."""
    return _pss_bytes("Pss_Anon:", "Pss_File:") + sum(_files_in_memory().values())


def _pss_bytes(*kinds: str) -> int:
    total = 0
    for pid in [os.getpid(), *below(os.getpid())]:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it has ended
        total += sum(int(line.split()[1]) for line in lines if line.startswith(kinds)) * 1024
    return total


def _files_in_memory() -> dict[tuple[int, int], int]:
    """Their bytes, by file: of those that are open or mapped (that only root can see)."""
    found: dict[tuple[int, int], int] = {}
    for pid in [os.getpid(), *below(os.getpid())]:
        for place in ("fd", "map_files"):
            try:
                entries = list(Path(f"/proc/{pid}/{place}").iterdir())
            except OSError:
                continue
            for entry in entries:
                try:
                    if str(entry.readlink()).startswith(("/memfd:", "/dev/shm/")):
                        file = entry.stat()
                        found[file.st_dev, file.st_ino] = 512 * file.st_blocks
                except OSError:
                    continue
    return found
