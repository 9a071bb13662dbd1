"""Whoever dies, hangs or fails at a named place of the source: every batch comes, as if nothing had
been.

The places (RF_FAILPOINT in shm/include/ringfeed/shm/failpoint.h) are asked of the binaries, so a
new one is covered the day it is written: it is armed with `kill`, with `stop` and, where it can
fail, with `error`, in a run of its own. The first process that passes it dies, hangs or is refused
there: a worker, the supervisor or a trainer. Whoever has died is started again, as people would.

The run: a small finite feed. A guest reads, leaves, comes again at an earlier position and leaves;
a snapshot is taken; a trainer that follows everything reads to the end, beside one whose group
skips what it is too slow for; meanwhile the test kills a worker and the supervisor once, so that
restart and adoption happen in every run. A place that nobody passes in it is tried with records
that kill their stage, and then with stages in Python, whose map is killed when its warm parent is
there. If nobody passes it there either, the test fails: then the run needs another act.

Needs binaries with failpoints (preset failpoints): RINGFEED_BIN_DIR, RINGFEED_LIBRARY.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import storm_stage  # noqa: E402
from storm import Line, read_lines  # noqa: E402

from tests.support.feeds.feed_run import (  # noqa: E402
    BIN,
    ROOT,
    FeedRun,
    processes_of,
    remains,
    wait_until,
)
from tests.support.makers import lc0_data  # noqa: E402

# Runs wait a good deal (for stall_ms, for processes to start), so several are under way at a time.
AT_ONCE = 6
RUN_S = 90.0
# A stopped supervisor or trainer goes on after this long; a worker is for the supervisor to
# replace.
STOPPED_S = 0.4
TAILS = {"slow": "--pause-ms=25", "all": "--pause-ms=6"}

SETTINGS: dict[str, Any] = {
    "epochs": 4,
    "batch": 64,
    "reservoir": 300,
    "unpackers": 2,
    "slots": 12,
    "groups": 'groups { name: "all" } groups { name: "slow" policy: SKIP }',
    "extra": """
stage_groups { name: "files" stages: "provider" stages: "loader" }
stage_groups { name: "pool" stages: "pool" }
stage_groups { name: "mix" stages: "unpacker" stages: "sampler" }
stage_groups { name: "out" stages: "tensors" }
restart { max_restarts: 1000 within_s: 1 backoff_ms_max: 20 stall_ms: 400 max_attempts: 2
  dead_letters: "LETTERS" }
""",
}


# Stages in Python, with what the supervisor asks of their warm parents; and a page.
PYTHON = """
feed: "{feed}"
seed: {seed}
epochs: 1
stages {{ name: "rows" python_source {{
  object: "storm_stage:Rows" python_path: "{modules}" options: '{options}' }} }}
stages {{ name: "work" python {{ input: "rows"
  object: "storm_stage:Work" python_path: "{modules}" options: '{options}'
  processes: 2 batch: 8 }} }}
stages {{ name: "out" sample_batcher {{
  input: "work" batch_size: 64
  fields {{ name: "id" dtype: "int64" }}
  fields {{ name: "drawn" dtype: "float64" shape: 3 }} }} }}
stage_groups {{ name: "rows" stages: "rows" }}
stage_groups {{ name: "work" stages: "work" }}
stage_groups {{ name: "out" stages: "out" }}
feed_output {{ slots: 12 {groups} }}
http {{ listen: "127.0.0.1:0" }}
restart {{ max_restarts: 1000 within_s: 1 backoff_ms_max: 20 stall_ms: 400 max_attempts: 255 }}
"""


def places_of(command: list[str]) -> dict[str, bool]:
    """Name of each place of a binary: can it fail?"""
    done = subprocess.run(
        command,
        env={**os.environ, "RINGFEED_FAILPOINT": "list"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    places = {}
    for line in done.stdout.splitlines():
        words = line.split()
        places[words[0]] = words[1:] == ["error"]
    return places


def all_places() -> dict[str, bool]:
    load = "import ctypes, os; ctypes.CDLL(os.environ['RINGFEED_LIBRARY'])"
    if "RINGFEED_LIBRARY" not in os.environ:
        return {}
    return {
        **places_of([str(BIN / "ringfeed")]),
        **places_of([str(BIN / "ringfeed-worker")]),
        **places_of([sys.executable, "-c", load]),
    }


PLACES = all_places()
CASES = [
    (place, action)
    for place, fails in sorted(PLACES.items())
    for action in (["kill", "stop", "error"] if fails else ["kill", "stop"])
]
if "supervisor.worker.set_up" in PLACES:
    # The second worker has just got its memory; the first has little to do.
    CASES.append(("supervisor.worker.set_up", "kill@2"))


@dataclass
class Scene:
    """One run, with one place armed or none."""

    run: FeedRun
    place: str = ""
    action: str = ""
    trainers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    stopped_since: float = 0.0
    refused_starts: int = 0
    asking: subprocess.Popen[bytes] | None = None  # `ringfeed snapshot`

    @property
    def once(self) -> Path:
        return self.run.work / "once"

    def out(self, name: str) -> Path:
        return self.run.work / f"{name}.lines"

    def lines(self, name: str) -> list[Line]:
        return read_lines(self.out(name))

    def start_trainer(self, name: str) -> None:
        program = "points_guest.py" if name == "guest" else "storm_trainer.py"
        words = [] if name == "guest" else [f"--group={name}", TAILS[name]]
        with self.out(name).with_suffix(".log").open("ab") as log:
            self.trainers[name] = subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "tests" / "crash" / program),
                    f"--feed={self.run.feed}",
                    f"--out={self.out(name)}",
                    *words,
                ],
                env=self.run.environment,
                stdout=log,
                stderr=log,
            )

    def done(self, name: str) -> bool:
        # A feed ends when everybody has had everything: one that died as it left would wait in
        # vain.
        assert self.run.process is not None
        return self.trainers[name].poll() == 0 or self.run.process.poll() == 0

    def over(self) -> bool:
        """Is the supervisor gone, and nobody there whom another one could take over?"""
        assert self.run.process is not None
        if self.run.process.poll() is None:
            return False
        return bool(self.lines("all")) and not self.living_workers()

    def living_workers(self) -> dict[str, int]:
        return self.run.all_workers()

    def look_after(self) -> None:
        """Starts again who has died, and lets a stopped one go on whom nobody replaces."""
        assert self.run.process is not None
        status = self.run.process.poll()
        if status not in (None, 0) and not self.over():
            if status != -signal.SIGKILL:
                # Refused by the system, as the place was told to: said, and tried again.
                assert self.action == "error" and self.refused_starts == 0, self.words(status)
                assert "a test wants" in self.run.text(), self.words(status)
                self.refused_starts += 1
            self.run.start()
        for name, process in self.trainers.items():
            if process.poll() is None or self.done(name):
                continue
            assert process.returncode == -signal.SIGKILL, self.words(process.returncode)
            self.start_trainer(name)
        if self.action == "stop" and self.once.exists() and self.once.read_text().endswith("\n"):
            pid = int(self.once.read_text())
            for process in (self.run.process, *self.trainers.values()):
                if process.pid != pid or process.poll() is not None:
                    continue
                self.stopped_since = self.stopped_since or time.monotonic()
                if time.monotonic() - self.stopped_since > STOPPED_S:
                    process.send_signal(signal.SIGCONT)

    def words(self, status: object) -> str:
        logs = [path.read_text()[-3000:] for path in sorted(self.run.work.glob("*.log"))]
        return f"{self.place}={self.action}: ended with {status}\n" + "\n----\n".join(logs)

    def until(self, condition: object, what: str) -> None:
        assert callable(condition)
        end = time.monotonic() + RUN_S
        while not condition():
            self.look_after()
            assert time.monotonic() < end, self.words(f"nothing: waited {RUN_S:.0f} s for {what}")
            time.sleep(0.02)

    def has_done(self, *words: str) -> bool:
        """Asks the feed again until it has done so; does not wait, because it may be for us to wake
        the supervisor.
        """
        if self.asking is None:
            with (self.run.work / f"{words[0]}.log").open("ab") as log:
                self.asking = subprocess.Popen(
                    [str(self.run.program), words[0], self.run.feed, *words[1:]],
                    env=self.run.environment,
                    stdout=log,
                    stderr=log,
                )
        status = self.asking.poll()
        if status is not None:
            self.asking = None
        return status == 0

    @property
    def saved(self) -> Path:
        return self.run.work / "saved"

    def warm(self, stage: str) -> bool:
        """Is a warm parent of the stage ready?"""
        said = [line for line in self.run.text().splitlines() if f" stage={stage} " in line]
        last = [line for line in said if " parent_ready " in line or " parent_died " in line]
        return bool(last) and " parent_ready " in last[-1]

    def play_python(self) -> None:
        self.saved.mkdir()
        self.run.start()
        self.until(lambda: self.warm("work"), "the warm parent")
        self.start_trainer("slow")
        self.start_trainer("all")
        self.until(lambda: len(self.lines("all")) >= 5, "batch 5")
        for _ in range(2):
            self.until(lambda: self.warm("work") or self.done("all"), "the warm parent")
            pid = self.living_workers().get("work.1")
            if pid is not None:
                kill(pid)
                self.until(
                    lambda: self.living_workers().get("work.1") not in (None, pid)
                    or self.done("all"),
                    "work.1",
                )
        self.end_play()

    def play(self) -> None:
        self.saved.mkdir()
        self.run.start()
        # While there are stages that have not finished.
        message = "chunk_pool_request { reset_chunk_anchor: true }"
        self.until(lambda: self.has_done("control", message), "the answer to a message")
        self.start_trainer("guest")
        self.until(lambda: self.done("guest"), "the guest")
        self.until(lambda: self.has_done("snapshot", str(self.saved / "snapshot")), "the snapshot")
        self.until(lambda: self.has_done("scale", "unpacker", "1"), "one lane")
        self.until(lambda: self.has_done("restart", "mix"), "a fresh process")
        self.start_trainer("slow")
        self.start_trainer("all")
        self.until(lambda: len(self.lines("all")) >= 10, "batch 10")
        pid = self.living_workers().get("mix")
        if pid is not None:
            kill(pid)
        self.until(lambda: len(self.lines("all")) >= 20 or self.done("all"), "batch 20")
        assert self.run.process is not None
        if self.living_workers():
            self.run.process.kill()
            self.run.process.wait()
            self.run.start()
        self.end_play()

    def end_play(self) -> None:
        self.until(lambda: self.done("all") and self.done("slow"), "the trainers")
        assert self.run.process is not None
        self.until(lambda: self.run.process.poll() is not None, "the end")
        for process in self.trainers.values():
            process.kill()
            process.wait()

    def end(self) -> None:
        if self.run.process is not None and self.run.process.poll() is None:
            self.run.process.kill()
            self.run.process.wait()
        for process in [*self.trainers.values(), *([self.asking] if self.asking else [])]:
            process.kill()
            process.wait()
        for pid in processes_of(self.run):
            kill(pid)


def kill(pid: int) -> None:
    """Unless it has just died at the place."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


ACTS = ("plain", "poison", "python")


class Stage:
    """Plays scenes, several at a time."""

    def __init__(self, work: Path, cases: list[tuple[str, str]]) -> None:
        self.work = work
        self.data = lc0_data.make_dataset(work / "data", games=40, tars=2, seed=3)
        self.pool = ThreadPoolExecutor(AT_ONCE)
        self.poisoned = work / "bin"
        self.poisoned.mkdir()
        shutil.copy2(BIN / "ringfeed", self.poisoned / "ringfeed")
        shutil.copy2(BIN / "poison_worker", self.poisoned / "ringfeed-worker")
        self.expected = {act: self.pool.submit(self.undisturbed, act) for act in ACTS}
        self.results = {case: self.pool.submit(self.judge, *case) for case in cases}

    def scene(self, act: str, name: str, place: str = "", action: str = "") -> Scene:
        work = self.work / f"{name}-{act}"
        work.mkdir()
        programs = self.poisoned if act == "poison" else BIN
        extra = SETTINGS["extra"].replace("LETTERS", f"{work}/letters")
        settings = {**SETTINGS, "extra": extra, "programs": programs}
        if act == "python":
            (work / "orders").write_bytes(bytes(storm_stage.ORDERS))
            settings["pipeline"] = PYTHON
            settings["modules"] = ROOT / "tests" / "crash"
            settings["options"] = f'{{"orders": "{work}/orders", "group": ""}}'
        scene = Scene(FeedRun(work, Path(self.data.directory), **settings), place, action)
        environment = scene.run.environment
        environment["RINGFEED_PYTHON"] = sys.executable
        environment.update(RINGFEED_POISON="exit", RINGFEED_POISON_EVERY="20")
        if place:
            environment["RINGFEED_FAILPOINT"] = f"{place}={action}"
            environment["RINGFEED_FAILPOINT_ONCE"] = str(scene.once)
        return scene

    def undisturbed(self, act: str) -> dict[int, tuple[int, int]]:
        scene = self.scene(act, "undisturbed")
        try:
            scene.run.start()
            scene.start_trainer("slow")
            scene.start_trainer("all")
            assert scene.trainers["all"].wait(RUN_S) == 0, scene.words("no success")
            assert scene.trainers["slow"].wait(RUN_S) == 0 and scene.run.wait() == 0
            return {line.number: line.checksum for line in scene.lines("all")}
        finally:
            scene.end()

    def judge(self, place: str, action: str) -> str:
        """What is wrong with the run in which that happened; empty: nothing."""
        for act in ACTS:
            scene = self.scene(act, f"{place}-{action}", place, action)
            try:
                if act == "python":
                    scene.play_python()
                else:
                    scene.play()
                passed = scene.once.exists()
                if passed:
                    return self.compare(scene, self.expected[act].result())
            except AssertionError as error:
                return str(error)
            finally:
                scene.end()
                shutil.rmtree(scene.run.work, ignore_errors=True)
        return f"nobody passes {place} in any run of this test: it needs another act"

    def compare(self, scene: Scene, expected: dict[int, tuple[int, int]]) -> str:
        wrong = []
        for name in ("all", "slow", "guest"):
            seen: dict[int, list[int]] = {}
            for line in scene.lines(name):
                if line.checksum != expected.get(line.number):
                    wrong.append(f"{name}: batch {line.number} is another one")
                seen.setdefault(line.number, []).append(line.tries)
            if name == "all" and (missing := sorted(expected.keys() - seen.keys())):
                wrong.append(f"{name}: batches {missing} did not come")
            for number, tries in seen.items():
                if name != "guest" and len(tries) != len(set(tries)):
                    wrong.append(f"{name}: batch {number} came {len(tries)} times, tries {tries}")
        if scene.run.process is not None and scene.run.process.returncode != 0:
            scene.run.command("clean")  # it died when everything had been delivered
        wrong += remains(scene.run)
        if left := [path.name for path in scene.saved.iterdir() if path.name != "snapshot"]:
            wrong.append(f"left behind beside the snapshot: {left}")
        return scene.words("; ".join(wrong)) if wrong else ""


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Future[str]]]:
    work = tmp_path_factory.mktemp("points")
    selected = [getattr(item, "callspec", None) for item in request.session.items]
    cases = [(spec.params["place"], spec.params["action"]) for spec in selected if spec]
    stage = Stage(work, cases)
    yield stage.results
    stage.pool.shutdown(cancel_futures=True)
    shutil.rmtree(work, ignore_errors=True)


def test_the_binaries_have_places_in_every_part() -> None:
    parts = {name.rpartition(".")[0] for name in PLACES}
    for part in (
        "shm.journal",
        "shm.feed",
        "shm.arena",
        "runtime.lane",
        "runtime.worker",
        "supervisor.worker",
        "supervisor.adoption",
        "client.next",
    ):
        assert part in parts, f"no {part}.*: build preset failpoints, set RINGFEED_LIBRARY"


def test_a_supervisor_that_dies_while_it_replaces_the_dead_leaves_out_none_who_live(
    tmp_path: Path,
) -> None:
    """Else the next one would not know whom to ask for the memory, and begin the feed anew."""
    data = lc0_data.make_dataset(tmp_path / "data", games=40, tars=2, seed=3)
    extra = SETTINGS["extra"].replace("LETTERS", f"{tmp_path}/letters")
    run = FeedRun(tmp_path, Path(data.directory), **{**SETTINGS, "extra": extra, "epochs": 0})
    try:
        run.start()
        wait_until(lambda: " first_batch " in run.text(), "the first batch")
        workers = run.all_workers()
        assert run.process is not None
        run.process.kill()
        run.process.wait()
        for name in ("files", "pool"):
            os.kill(workers[name], signal.SIGKILL)
        wait_until(lambda: len(run.all_workers()) == 2, "their end")
        # It has started one of the two, and dies with the other one's start.
        run.environment["RINGFEED_FAILPOINT"] = "supervisor.worker.spawned=kill@2"
        run.start()
        assert run.wait() == -signal.SIGKILL, run.text()
        del run.environment["RINGFEED_FAILPOINT"]
        living = run.all_workers()
        assert living.items() >= {name: workers[name] for name in ("mix", "out")}.items()
        for name in living.keys() - {"out"}:
            os.kill(living[name], signal.SIGKILL)
        wait_until(lambda: run.all_workers().keys() == {"out"}, "their end")
        run.start()
        wait_until(lambda: run.status(), "the next supervisor")
        assert run.all_workers()["out"] == workers["out"]
        assert run.text().count(" feed_started ") == 1, "nothing was started anew"
        assert run.stop() == 0, run.text()
    finally:
        run.close()


@pytest.mark.parametrize(("place", "action"), CASES)
def test_every_batch_is_delivered_as_if_nothing_had_been(
    results: dict[tuple[str, str], Future[str]], place: str, action: str
) -> None:
    wrong = results[place, action].result(600)
    assert not wrong, wrong
