"""Scenes that several end-to-end tests play: who is killed, what must have come, configurations."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
from pathlib import Path

import numpy as np

from tests.support.feeds.feed_run import ROOT, FeedRun, runs, wait_until
from tests.support.makers import lc0_data
from tests.support.oracles import lc0_reference

# The Lc0 pipeline in four processes.
GROUPS = (
    'stage_groups { name: "files" stages: "provider" stages: "loader" }'
    'stage_groups { name: "pool" stages: "pool" }'
    'stage_groups { name: "mix" stages: "unpacker" stages: "sampler" }'
    'stage_groups { name: "out" stages: "tensors" }'
)
# Configurations of lczero-training, and what becomes of them.
LCZERO = ROOT / "tests" / "data" / "lczero"


def small(text: str, directory: str) -> str:
    """A configuration of lczero-training of the size of a test."""
    for old, new in (
        ("/data/lc0", directory),
        ("chunk_pool_size: 50000", "chunk_pool_size: 100"),
        ("reservoir_size_per_thread: 1000000", "reservoir_size_per_thread: 1000"),
        ("position_sampling_rate: 0.03", "position_sampling_rate: 0.25"),
        ("batch_size: 128", "batch_size: 32"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def assert_exact(hashes: np.ndarray, games: lc0_data.Manifest, times: int = 1) -> None:
    """Every position of the games has come that many times, and no other."""
    audit = lc0_reference.audit(hashes, games.record_hashes, times=times)
    assert audit.exact, str(audit)


def counter(run: FeedRun, stage: str, name: str) -> int:
    """One counter of a stage, 0 while it is not there."""
    status = run.status() or {}
    for entry in status.get("stages", []):
        if entry["name"] == stage:
            for found in entry.get("counters", []):
                if found["name"] == name:
                    return int(found["value"])
    return 0


def kill_a_worker(run: FeedRun, rng: random.Random, group: str = "") -> str:
    """Kill the worker of that group while it has one, else one that is drawn, and wait until it is gone.

    Its group; "" when no worker runs. Each call ends a process that lived, so the calls are the deaths.
    """
    while workers := sorted(run.all_workers().items()):
        name, pid = next((one for one in workers if one[0] == group), None) or rng.choice(workers)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has just done its work
            continue
        wait_until(lambda: run.all_workers().get(name) != pid, f"the end of {name}")  # noqa: B023
        return name
    return ""


def kill_supervisor(run: FeedRun) -> None:
    assert run.process is not None
    run.process.kill()
    run.process.wait()


def kill_supervisor_and_workers(run: FeedRun) -> None:
    workers = run.all_workers()
    kill_supervisor(run)
    _kill_workers(run, workers)


def kill_everything(run: FeedRun) -> None:
    """As when the machine goes down: the supervisor, the workers and the trainers."""
    workers = run.all_workers()
    kill_supervisor(run)
    for trainer in run.trainers:
        trainer.process.kill()
        trainer.process.wait()
    _kill_workers(run, workers)


def _kill_workers(run: FeedRun, workers: dict[str, int]) -> None:
    """Those, and any that the supervisor has still started before it was killed."""
    pids = {*workers.values(), *run.all_workers().values()}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it had done its work
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not run.all_workers() and not any(map(runs, pids)), "their end")


def all_links_are_back(run: FeedRun, takeovers: int) -> bool:
    return run.text().count("feed_adopted") == takeovers and run.status() is not None


def next_batches(directory: Path) -> dict[str, int]:
    """The next batch of each group, as the manifest of a snapshot says it."""
    text = (directory / "manifest.textproto").read_text()
    return {
        name: int(batch)
        for name, batch in re.findall(r'groups \{\s*name: "(\w+)"\s*next_batch: (\d+)', text)
    }
