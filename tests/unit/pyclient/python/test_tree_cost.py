"""tests/bench/tree_cost.py: nobody's time is lost, and none is counted twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
BURN = """
import os, subprocess, sys, time
import tree_cost

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
"""


def told(program: str) -> dict[str, float]:
    """What a program in a process of its own has put out."""
    done = subprocess.run(
        [sys.executable, "-c", BURN + program],
        env={"PYTHONPATH": str(BENCH)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, float] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("end", ["lives", "waited for", "zombie", "orphan"])
def test_time_of_a_child_counts_once(end: str) -> None:
    """The child uses 0.3 s itself. What Python needs to start is far below that."""
    found = told(
        f"""
end = {end!r}
tree_cost.adopt_orphans()
before = tree_cost.cpu_s()
reading, writing = os.pipe()
staying, leaving = os.pipe()
child = os.fork()
if child == 0:
    os.close(leaving)
    if end == "orphan" and os.fork() != 0:
        os._exit(0)
    burn(0.3)
    if end == "lives":
        os.write(writing, b"1")
        os.read(staying, 1)
    os._exit(0)
os.close(writing)
if end == "orphan":
    os.waitpid(child, 0)
os.read(reading, 1)  # a byte, or the end of all that could write one
if end == "waited for":
    os.waitpid(child, 0)
after = tree_cost.cpu_s()
below = len(tree_cost.below(os.getpid()))
os.close(leaving)
print('{{"used": %f, "below": %d}}' % (after - before, below))
"""
    )
    assert 0.29 < found["used"] < 0.59, "less than twice"
    # The orphan, or the zombie, is in the tree as long as nobody waits for it.
    assert found["below"] == (0 if end == "waited for" else 1)


def test_memory_that_two_share_counts_once() -> None:
    found = told(
        """
data = bytearray(64 << 20)
alone = tree_cost.pss_bytes()
reading, writing = os.pipe()
staying, leaving = os.pipe()
if os.fork() == 0:
    os.close(leaving)
    sum(data[::4096])
    os.write(writing, b"1")
    os.read(staying, 1)
    os._exit(0)
os.read(reading, 1)
both = tree_cost.pss_bytes()
os.close(leaving)
os.wait()
print('{"alone": %d, "both": %d}' % (alone, both))
"""
    )
    assert found["alone"] > 64 << 20
    assert found["both"] < found["alone"] + (32 << 20)
