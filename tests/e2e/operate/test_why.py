"""`ringfeed why` on twenty pipelines with a bottleneck that was put there: 19 are named right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ringfeed

from tests.support.feeds.feed_run import BIN, FeedRun, wait_until
from tests.support.makers import lc0_data

RIGHT_MIN = 19
# Looked at for at least so long; warming up does not count.
SECONDS = 2.0
WINDOW_S = 10.0  # that is looked at, at most

TRAINER = """
import sys, time, ringfeed
with ringfeed.attach("lc0", sys.argv[2], attach_timeout_s=60, timeout_s=120) as feed:
    for batch in feed:
        time.sleep(float(sys.argv[1]))
"""


@dataclass(frozen=True)
class Case:
    """A pipeline, and who limits it: kind, stage and part."""

    kind: str
    lanes: str = ""  # "unpacker", "pool.read"
    how: str = ""  # of a slow stage: compute or wait
    us: int = 0  # microseconds more for each step
    pause_s: tuple[float, ...] = (0.0,)  # of each trainer, in a group of its own
    settings: dict[str, Any] = field(default_factory=dict)
    data: str = "games"
    batches: bool = True  # does it give any?

    def __str__(self) -> str:
        words = [self.kind, self.lanes, self.how, *self.settings]
        words += [] if self.kind != "TRAINERS" else [str(self.pause_s)]
        return " ".join(word for word in words if word)


COMPUTES = [
    Case("STAGE", "pool.read", "compute", 30_000),
    Case("STAGE", "unpacker", "compute", 20_000),
    Case("STAGE", "sampler", "compute", 500),
    Case("STAGE", "tensors", "compute", 20_000),
    Case("STAGE", "loader", "compute", 60_000, data="loose", batches=False),
    Case("MACHINE", "tensors", "compute", 20_000),
]
WAITS = [
    Case("STAGE", "provider", "wait", 100_000, data="loose", batches=False),
    Case("STAGE", "loader", "wait", 100_000, data="loose", batches=False),
    Case("STAGE", "pool", "wait", 50_000),
    Case("STAGE", "pool.read", "wait", 50_000),
    Case("STAGE", "pool.read", "wait", 100_000, settings={"readers": 2}),
    Case("STAGE", "unpacker", "wait", 50_000),
    Case("STAGE", "unpacker", "wait", 100_000, settings={"unpackers": 3}),
    Case("STAGE", "sampler", "wait", 1_000),
    Case("STAGE", "tensors", "wait", 30_000),
    Case("TRAINERS", pause_s=(0.1,)),
    Case("TRAINERS", pause_s=(0.5, 0.05)),
    Case("TRAINERS", pause_s=()),
    Case("FILES", data="nothing", batches=False),
    Case("FILES", data="missing", batches=False),
]
TOGETHER = 5  # they hardly need a processor


@pytest.fixture(scope="module")
def data(
    tmp_path_factory: pytest.TempPathFactory, games: lc0_data.Manifest
) -> Iterator[dict[str, Path]]:
    directory = tmp_path_factory.mktemp("why")
    lc0_data.make_dataset(directory / "loose", 0, 0, seed=8, loose=300, variants=30, hashes=False)
    (directory / "nothing").mkdir()
    programs = directory / "bin"
    programs.mkdir()
    shutil.copy2(BIN / "ringfeed", programs / "ringfeed")
    shutil.copy2(BIN / "slow_worker", programs / "ringfeed-worker")
    yield {
        "programs": programs,
        "games": Path(games.directory),
        "loose": directory / "loose",
        "nothing": directory / "nothing",
        "missing": directory / "missing",
    }
    shutil.rmtree(directory, ignore_errors=True)


def cpu_of_others(found: dict[str, Any]) -> float:
    """Processors that are busy with something else than the lanes of the feed."""
    return float(found["cores"] - found["cores_busy"] - found["cores_idle"])


def right(case: Case, found: dict[str, Any]) -> bool:
    place = found.get("stage", "") + ("." + found["part"] if "part" in found else "")
    if case.kind in ("TRAINERS", "FILES"):
        return bool(found["kind"] == case.kind)
    if case.how == "compute" and found["kind"] == "MACHINE" and case.kind == "STAGE":
        # True if somebody else needs the machine just now: this is no test's own machine.
        return place == case.lanes and cpu_of_others(found) > 0.4
    return (found["kind"], place) == (case.kind, case.lanes)


def look_at(case: Case, data: dict[str, Path], work: Path) -> tuple[bool, str]:
    work.mkdir()
    settings: dict[str, Any] = {"epochs": 0, "reservoir": 300, "batch": 128, **case.settings}
    run = FeedRun(work, data[case.data], programs=data["programs"], **settings)
    run.environment.update(
        RINGFEED_SLOW=case.lanes, RINGFEED_SLOW_HOW=case.how, RINGFEED_SLOW_US=str(case.us)
    )
    others: list[subprocess.Popen[bytes]] = []
    trainers: list[subprocess.Popen[bytes]] = []
    try:
        if case.kind == "MACHINE":
            for _ in range(2 * (os.cpu_count() or 1)):
                others.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        run.start()
        for number, pause in enumerate(case.pause_s):
            words = [sys.executable, "-c", TRAINER, str(pause), f"group{number}"]
            trainers.append(subprocess.Popen(words, env=run.environment))

        def everybody_takes() -> int:
            """Since when, in milliseconds of the feed."""
            status = run.status() or {}
            taking = [one for one in status.get("trainers", []) if int(one.get("taken", 0))]
            return int(status.get("uptime_ms", 0)) if len(taking) == len(trainers) else 0

        def asked() -> dict[str, Any] | None:
            done = run.command("why", "lc0", "--json")
            if done.returncode != 0:
                return None
            (found,) = json.loads(done.stdout)["bottlenecks"]
            return dict(found)

        if case.batches:
            # Before they come nobody takes batches, and that is what limits: most of the window that
            # is looked at has to lie behind.
            came_ms = wait_until(everybody_takes, "all trainers")
            idle_s = wait_until(asked, "an answer")["seconds_covered"]
            wait_until(
                lambda: (run.status() or {}).get("uptime_ms", 0)
                > came_ms + 1000 * min(2 * idle_s, WINDOW_S),
                "what it was before to be the lesser part",
            )

        def answer() -> dict[str, Any] | None:
            found = asked()
            if found is None or found["seconds_covered"] < SECONDS:
                return None
            return found if found["batches_per_s"] > 0 or not flows else None

        # Without a trainer the slots fill up, and then nothing flows either.
        flows = case.batches and bool(case.pause_s)
        found = wait_until(answer, f"an answer about {case}")
        return right(case, found), f"{case}: {found['sentence']}"
    finally:
        for process in (*others, *trainers):
            process.kill()
            process.wait()
        run.command("stop", "lc0", "--now")
        run.close()


def test_the_bottleneck_is_named_in_nineteen_of_twenty_pipelines(
    data: dict[str, Path], tmp_path: Path
) -> None:
    cases = [*WAITS, *COMPUTES]
    assert len(cases) == 20

    def look(number: int) -> tuple[bool, str]:
        case = cases[number]
        return look_at(case, data, tmp_path / f"case{number}")

    with ThreadPoolExecutor(TOGETHER) as together:
        answers = list(together.map(look, range(len(WAITS))))
    answers += [look(len(WAITS) + number) for number in range(len(COMPUTES))]
    for was_right, text in answers:
        print("right" if was_right else "WRONG", text)
    assert sum(was_right for was_right, _ in answers) >= RIGHT_MIN, "\n".join(
        text for was_right, text in answers if not was_right
    )


def test_from_python_and_for_people(
    make_run: Callable[..., FeedRun],
) -> None:
    run = make_run(epochs=0).start()
    with ringfeed.attach("lc0", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        batch = feed.next()
        held = [feed.next() for _ in range(2)]

        def names_the_trainers() -> Any:
            (found,) = feed.why()
            blocked = found.shares.get("tensors", {}).get("blocked", 0)
            named = found.kind == "trainers" and found.seconds > 1 and blocked > 0.5
            return found if named else None

        # Nothing is given back, so the slots fill up.
        found = wait_until(names_the_trainers, "the trainers to be named")
        assert "the trainers are the bottleneck (group default)" in found.sentence
        assert found.stage == "" and found.batches_per_s_next is None
        assert found.shares["pool.read"]["lanes"] == 1
        text = run.command("why", "lc0").stdout
        assert found.sentence.split(":")[0] in text
        for word in ("starved", "pool.read", "processors: "):
            assert word in text, text
        del batch, held
