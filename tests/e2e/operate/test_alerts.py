"""Each shipped alert: provoked, seen firing and seen resolving in Debian's Prometheus.

The rules are the shipped ones, but for their times: minutes are seconds here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.feeds.feed_run import ROOT, FeedRun, stop, wait_until
from tests.support.feeds.prometheus import prometheus_over
from tests.support.feeds.web import Web

RULES = ROOT / "share" / "prometheus" / "ringfeed.rules.yml"

# Of four lines three are none; a trainer that waits for batches, one that is too slow for its group.
BAD = """
feed: "{feed}"
seed: 1
epochs: 0
stages {{ name: "files" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{ input: "files" }} }}
stages {{ name: "batches" sample_batcher {{ input: "lines" batch_size: 2
  fields {{ name: "id" dtype: "int64" }} }} }}
feed_output {{ slots: 8 groups {{ name: "slow" policy: SKIP }} groups {{ name: "fast" }} }}
restart {{ max_restarts: {restarts} within_s: 600 backoff_ms_min: 1 backoff_ms_max: 2 }}
{extra}
"""
TRAINER = """
import sys, ringfeed
with ringfeed.attach(sys.argv[1], sys.argv[2], attach_timeout_s=60, timeout_s=600) as feed:
    held = [feed.next()]
    for line in sys.stdin:
        held.append(feed.next(timeout_s=600))
        held.pop(0).release()
        print(flush=True)
"""


class Scene:
    """Feeds of one socket directory, and what Prometheus says of their alerts."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.data = work / "data"
        self.data.mkdir()
        lines = [json.dumps({"id": i}) if i % 4 == 0 else "none" for i in range(400)]
        (self.data / "a.jsonl").write_text("\n".join(lines))
        self.runs: list[FeedRun] = []
        self.trainers: list[subprocess.Popen[str]] = []
        self.asked: Callable[[str], list[Any]] = lambda query: []

    def start(self, feed: str, restarts: int = 100_000, extra: str = "") -> FeedRun:
        run = FeedRun(self.work, self.data, feed=feed, pipeline=BAD, restarts=restarts, extra=extra)
        self.runs.append(run.start())
        wait_until(lambda: (run.status() or {}).get("state") == "RUNNING", f"{feed} to run")
        return run

    def trainer(self, run: FeedRun, group: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", TRAINER, run.feed, group]
        one = subprocess.Popen(
            words, env=run.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.trainers.append(one)
        return one

    def state(self, alert: str, feed: str) -> str:
        found = self.asked(f'ALERTS{{alertname="{alert}",feed="{feed}"}}')
        return ",".join(sorted(one["metric"]["alertstate"] for one in found))

    def fires(self, alert: str, feed: str) -> None:
        wait_until(lambda: "firing" in self.state(alert, feed), f"{alert} of {feed} to fire")

    def resolves(self, alert: str, feed: str) -> None:
        wait_until(lambda: self.state(alert, feed) == "", f"{alert} of {feed} to be over")

    def close(self) -> None:
        for one in self.trainers:
            one.kill()
            one.wait()
        for run in self.runs:
            run.command("stop", run.feed, "--now")
            run.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def step(trainer: subprocess.Popen[str]) -> None:
    """Lets it take another batch, and waits until it has."""
    assert trainer.stdin is not None and trainer.stdout is not None
    trainer.stdin.write("\n")
    trainer.stdin.flush()
    assert trainer.stdout.readline() == "\n"


def test_each_alert_fires_for_what_it_is_for_and_ends_with_it(scene: Scene, tmp_path: Path) -> None:
    text = re.sub(r"(for: |\[)(\d+)m", r"\g<1>\g<2>s", RULES.read_text())
    rules = tmp_path / "rules.yml"
    rules.write_text(text)
    raised = set(re.findall(r"- alert: (\w+)", text))
    provoked: set[str] = set()

    def fires(alert: str, feed: str) -> None:
        scene.fires(alert, feed)
        provoked.add(alert)

    bad = scene.start("bad")
    web = Web(bad)
    try:
        with prometheus_over(web, tmp_path, rules) as asked:
            scene.asked = asked
            fast, slow = scene.trainer(bad, "fast"), scene.trainer(bad, "slow")

            def goes_on(alert: str) -> None:
                def look() -> bool:
                    for _ in range(20):
                        step(fast)
                    return "firing" in scene.state(alert, "bad")

                wait_until(look, f"{alert} to fire")
                provoked.add(alert)

            # Three of four samples are left out, and the trainer goes on with the others.
            goes_on("RingfeedGroupLosesBatches")
            goes_on("RingfeedProblems")
            goes_on("RingfeedSkips")

            def dies() -> bool:
                # More than once a look: looks may take long, and the alert wants so many in its time.
                for _ in range(12):
                    for pid in bad.workers().values():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                return "firing" in scene.state("RingfeedRestarts", "bad")

            wait_until(dies, "RingfeedRestarts to fire")
            provoked.add("RingfeedRestarts")
            scene.resolves("RingfeedRestarts", "bad")
            scene.resolves("RingfeedSkips", "bad")
            scene.resolves("RingfeedGroupLosesBatches", "bad")

            # Nothing comes any more, and the trainer waits.
            for pid in bad.workers().values():
                stop(pid)
            assert fast.stdin is not None
            for _ in range(100):
                fast.stdin.write("\n")
            fast.stdin.flush()
            fires("RingfeedTrainersStarve", "bad")
            for pid in bad.workers().values():
                os.kill(pid, signal.SIGCONT)
            scene.resolves("RingfeedTrainersStarve", "bad")

            # Its supervisor dies; another takes it over.
            assert bad.process is not None
            bad.process.kill()
            bad.process.wait()
            fires("RingfeedDoesNotAnswer", "bad")
            bad.start()
            scene.resolves("RingfeedDoesNotAnswer", "bad")
            bad.command("stop", "bad", "--now")
            scene.resolves("RingfeedProblems", "bad")
            del slow

            # All processes of a feed die at once: it is recorded, until it is cleaned.
            gone = scene.start("gone")
            workers = gone.workers()
            assert gone.process is not None
            for pid in (gone.process.pid, *workers.values()):
                os.kill(pid, signal.SIGKILL)
            gone.process.wait()
            fires("RingfeedDoesNotAnswer", "gone")
            assert "all its processes have died" in web.get("/readyz")[2]
            [listed] = json.loads(gone.command("ps", "--json").stdout)["feeds"]
            assert listed["state"] == "DEAD"
            gone.command("clean", "--force")
            scene.resolves("RingfeedDoesNotAnswer", "gone")

            # One fails: so does it, and that it has is seen until it is cleaned.
            failed = scene.start("failed", restarts=1)
            trainer = scene.trainer(failed, "fast")

            def fails() -> bool:
                for pid in failed.workers().values():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return failed.process is not None and failed.process.poll() is not None

            wait_until(fails, "the feed to fail")
            assert failed.wait() == 1
            trainer.wait()
            fires("RingfeedFailed", "failed")
            [listed] = json.loads(failed.command("ps", "--json").stdout)["feeds"]
            assert listed["state"] == "FAILED" and "died" in listed["reason"]
            assert "runs no more" in failed.command("status", "failed").stderr
            failed.command("clean")
            scene.resolves("RingfeedFailed", "failed")

            # Little more than it takes.
            full = scene.start("full")
            bytes_now = (full.status() or {})["memory_bytes"]
            full.command("stop", "full", "--now")
            full.wait()
            budget = f"storage {{ memory_budget_bytes: {int(bytes_now * 1.02)} }}"
            full = scene.start("full", extra=budget)
            fires("RingfeedMemoryNearBudget", "full")
            full.command("stop", "full", "--now")
            scene.resolves("RingfeedMemoryNearBudget", "full")
            assert provoked == raised
    finally:
        web.close()
