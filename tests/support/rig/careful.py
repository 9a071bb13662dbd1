"""Signals go to one process, never to the runner's own group.

Who asks for the process of something that has just gone may be told 0, and to kill(2) 0 is the caller's whole
process group: the test, the runner, and the shell that called it, which then ends without a word. -1 is everybody.
"""

from __future__ import annotations

import os

_kill, _killpg = os.kill, os.killpg


def kill(pid: int, number: int) -> None:
    """Like os.kill(). ValueError where `pid` is no process of a test's."""
    if pid <= 1:
        raise ValueError(f"a signal {number} for process {pid}, which is no process of a test's")
    _kill(pid, number)


def killpg(group: int, number: int) -> None:
    """Like os.killpg(). ValueError for the caller's own group, and where `group` is no group of a test's."""
    if group <= 1 or group == os.getpgrp():
        raise ValueError(f"a signal {number} for group {group}, which is no group of a test's")
    _killpg(group, number)


def be_careful() -> None:
    """From here on os.kill() and os.killpg() of this process are those above."""
    os.kill, os.killpg = kill, killpg
