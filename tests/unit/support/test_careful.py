"""A signal of a test never reaches the runner: tests.support.rig.careful."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("call", ["kill(0, 9)", "kill(-1, 0)", "kill(1, 0)", "killpg(0, 9)"])
def test_a_signal_for_a_whole_group_is_an_error_of_the_test(call: str) -> None:
    """In a group of its own, so that a test without the guard ends that one."""
    done = subprocess.run(
        [sys.executable, "-c", f"import tests.conftest, os; os.{call}"],
        cwd=ROOT,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "which is no " in done.stderr, done


def test_signals_for_one_process_arrive() -> None:
    for send in (os.kill, os.killpg):
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        send(child.pid, signal.SIGTERM)
        assert child.wait(60) == -signal.SIGTERM
