"""Modules of stages that hang, or leave threads and processes, when they are imported."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfeed
from tests.support.feeds.feed_run import FeedRun, processes_of, wait_until

STAGES = """
feed: "imports"
seed: 5
epochs: 1
stages {{ name: "files" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{ input: "files" fields {{ name: "id" dtype: "int64" }} }} }}
stages {{ name: "mine" python {{
  input: "lines" object: "mine:f" python_path: "{modules}" }} }}
stages {{ name: "batches" sample_batcher {{
  input: "mine" batch_size: 10 fields {{ name: "id" dtype: "int64" }} }} }}
feed_output {{ slots: 4 }}
{extra}
"""
ROWS = 200
WHOLE = "\n\ndef f(sample):\n    return sample\n"
# What a module does when it is imported, and is no reason not to run it.
LEFT = {
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(9999,)).start()",
    "a child": "import os, time\nif os.fork() == 0:\n    time.sleep(9999)",
    "a child that comes back": "import os\nos.fork()",
    "a program": 'import subprocess\nsubprocess.Popen(["sleep", "9999"])',
    "a program in a session of its own": (
        'import subprocess\nsubprocess.Popen(["sleep", "9999"], start_new_session=True)'
    ),
    "a child that holds all": (
        "import os, time\nif os.fork() == 0:\n    os.setpgid(0, 0)\n    time.sleep(9999)"
    ),
}
# Waits as long as the file is there that the environment names.
HANGS = """
import os, time
while os.path.exists(os.environ["HANGS"]):
    time.sleep(0.05)
"""


class Scene:
    def __init__(self, work: Path) -> None:
        self.work = work
        data = work / "data"
        data.mkdir(parents=True)
        lines = "".join(f'{{"id": {i}}}\n' for i in range(ROWS))
        (data / "a.jsonl").write_text(lines)
        self.modules = work / "modules"
        self.modules.mkdir()
        self.hangs = work / "hangs"

    def module(self, text: str) -> None:
        (self.modules / "mine.py").write_text(text + WHOLE)

    def feed(self, extra: str = "") -> FeedRun:
        run = FeedRun(
            self.work, self.work / "data", feed="imports", pipeline=STAGES, modules=self.modules,
            extra=extra,
        )  # fmt: skip
        run.environment["HANGS"] = str(self.hangs)
        return run


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    yield Scene(tmp_path / "scene")


def nobody_is_left(run: FeedRun) -> None:
    wait_until(lambda: not processes_of(run), f"the end of {processes_of(run)}", 60)


def later(run: FeedRun, *words: str) -> subprocess.Popen[str]:
    return run.command_later(*words)


@pytest.mark.parametrize("what", LEFT)
def test_what_a_module_leaves_keeps_nobody_waiting(scene: Scene, what: str) -> None:
    scene.module(LEFT[what])
    run = scene.feed()
    done = run.command("check", str(run.config))
    assert done.returncode == 0, done.stderr
    nobody_is_left(run)


@pytest.mark.parametrize("what", list(LEFT)[:4])
def test_what_a_module_leaves_ends_with_the_feed(scene: Scene, what: str) -> None:
    scene.module(LEFT[what])
    run = scene.feed().start()
    with ringfeed.attach(
        "imports", socket_dir=run.sockets, attach_timeout_s=120, timeout_s=120
    ) as feed:
        ids = [int(i) for batch in feed for i in np.array(batch["id"])]
    assert sorted(ids) == list(range(ROWS))
    assert run.wait() == 0, run.text()
    nobody_is_left(run)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("verb", ["check", "run"])
def test_what_is_awaited_is_said_and_ends_with_who_waits(
    scene: Scene, verb: str, end: signal.Signals
) -> None:
    scene.hangs.touch()
    scene.module(HANGS)
    run = scene.feed()
    process = later(run, verb, str(run.config))
    assert process.stderr is not None
    said = ""
    while "module `mine` has been importing for 5 s" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    assert re.search(r"mine\.py:\d+ `.*`", said), said
    process.send_signal(end)
    process.communicate()
    assert process.returncode == -end
    nobody_is_left(run)


def test_what_holds_the_interpreter_is_said_too(scene: Scene) -> None:
    scene.module("import ctypes\nctypes.PyDLL(None).sleep(9999)")
    run = scene.feed()
    process = later(run, "check", str(run.config))
    assert process.stderr is not None
    said = ""
    while "mine.py" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    assert "has not answered for 5 s" in said
    process.send_signal(signal.SIGTERM)
    process.communicate()
    nobody_is_left(run)


def hanging(scene: Scene, extra: str) -> FeedRun:
    """A feed whose module hangs when the stage's process imports it, though not at the plan."""
    scene.module('import sys\nif "--plan" not in sys.argv:\n    exec("""' + HANGS + '""")')
    scene.hangs.touch()
    return scene.feed(extra).start()


def test_a_stage_that_is_not_ready_is_told_to_all_who_wait(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    run = hanging(scene, "")
    text = "stage group 'mine.0' is awaited"

    def problem() -> Any:
        return [one for one in (run.status() or {}).get("problems", []) if text in one]

    (told,) = wait_until(problem, "the problem")
    assert re.search(r"its process \d+ has not been ready for .* s; it has 5 min 0 s", told), told
    wait_until(lambda: "module `mine` has been importing" in run.text(), "the line")
    with ringfeed.attach("imports", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        batches = iter(feed)
        release = []

        def notice(record: Any) -> bool:
            if text in record.getMessage():
                scene.hangs.unlink(missing_ok=True)
                release.append(record.getMessage())
            return True

        caplog.set_level("INFO", "ringfeed")
        caplog.handler.addFilter(notice)
        ids = [int(i) for batch in batches for i in np.array(batch["id"])]
    assert release and sorted(ids) == list(range(ROWS))
    assert run.wait() == 0, run.text()
    assert not problem()


def test_a_stage_that_never_gets_ready_stops_the_feed_with_the_reason(scene: Scene) -> None:
    run = hanging(scene, "restart { ready_ms: 1500 backoff_ms_max: 20 }")
    assert run.wait() == 1
    text = run.text()
    assert text.count("worker_not_ready") == 3, text
    assert (
        "stage group 'mine.0' was not ready within 1 s (restart.ready_ms), 3 times in a row" in text
    )
    nobody_is_left(run)


def test_a_stage_that_gets_ready_late_goes_on(scene: Scene) -> None:
    run = hanging(scene, "restart { ready_ms: 2000 }")
    wait_until(lambda: "worker_not_ready" in run.text(), "the first that is not ready")
    scene.hangs.unlink()
    with ringfeed.attach(
        "imports", socket_dir=run.sockets, attach_timeout_s=120, timeout_s=120
    ) as feed:
        ids = [int(i) for batch in feed for i in np.array(batch["id"])]
    assert sorted(ids) == list(range(ROWS))
    assert run.wait() == 0, run.text()
