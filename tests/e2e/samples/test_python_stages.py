"""Stages in Python, whole: real interpreters, their faults, their deaths."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ringfeed
from tests.support.feeds.feed_run import FeedRun, runs, wait_until
from tests.support.feeds.scenes import kill_a_worker

Row = tuple[int, str]

STAGES = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "files" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{
  input: "files" fields {{ name: "id" dtype: "int64" }} fields {{ name: "text" }} }} }}
stages {{ name: "mapped" python {{
  input: "lines" object: "{object}" python_path: "{modules}" {python} }} }}
stages {{ name: "shuffled" sample_shuffler {{ input: "mapped" size: 200 }} }}
stages {{ name: "batches" sample_batcher {{
  input: "shuffled" batch_size: 16
  fields {{ name: "id" dtype: "int64" }}
  fields {{ name: "text" dtype: "text" }} }} }}
feed_output {{ slots: 4 }}
restart {{ max_restarts: 2000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: {attempts} {restart} }}
"""

MODULE = '''
import ctypes, logging, os, random, signal, time
import numpy as np
from ringfeed import stage


def same(sample):
    return sample


def noisy(sample, ctx):
    """Draws from everything that there is."""
    drawn = random.randrange(10**6), int(np.random.randint(10**6)), int(ctx.rng.integers(10**6))
    sample["text"] += " " + " ".join(map(str, drawn))
    return sample


class Several:
    """Of sample i, i modulo 3 samples; made with an option."""

    def __init__(self, word="x"):
        self.word = word
        self.made = random.randrange(10**6)

    def __call__(self, sample):
        for i in range(sample["id"] % 3):
            yield {"id": sample["id"], "text": f"{self.word} {self.made} {i}"}


Several = stage.flat_map(Several)


class Many(stage.MapBatch):
    def __call__(self, samples):
        texts = [sample["text"].upper() for sample in samples]
        if any(sample["id"] == 77 for sample in samples):
            raise LookupError("77 is nobody's favourite")
        return [{"id": int(one["id"]), "text": text} for one, text in zip(samples, texts)]


def faulty(sample):
    if sample["id"] % 10 == 3:
        raise ValueError(f"no threes, please: {sample['id']}")
    if sample["id"] % 10 == 4:
        return {"id": {}, "text": "a set is no field"}
    if sample["id"] % 10 == 6:
        return None
    return sample


def five(sample):
    return 5 if sample["id"] != 9 else sample


def deadly(sample):
    i = int(sample["id"])
    if i == 50:
        ctypes.string_at(0)
    if i == 150:
        os._exit(7)
    if i == 250:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def endless(sample):
    while sample["id"] == 60:
        time.sleep(0.01)
    return sample


class Needy:
    """Cannot be made while what it needs is away."""

    def __init__(self, away):
        if os.path.exists(away):
            raise ConnectionError("the vocabulary is away")

    def __call__(self, sample):
        return sample


def talks(sample):
    if sample["id"] == 1:
        print("printed by", "me")
        logging.warning("logged by me")
    return sample
'''

SOURCE = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "items" python_source {{
  object: "{object}" python_path: "{modules}" {python} }} }}
stages {{ name: "mapped" python {{
  input: "items" object: "mine:noisy" python_path: "{modules}" processes: 2 batch: 5 }} }}
stages {{ name: "batches" sample_batcher {{
  input: "mapped" batch_size: 16
  fields {{ name: "id" dtype: "int64" }}
  fields {{ name: "text" dtype: "text" }} }} }}
feed_output {{ slots: 4 }}
restart {{ max_restarts: 2000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: {attempts} {restart} }}
"""

SOURCES = '''
import random
import time


class Rows:
    def __init__(self, count=1500, fails_at=-1):
        self.count, self.fails_at = count, fails_at

    def read(self, cursor):
        for i in range(int(cursor or 0), self.count):
            if i == self.fails_at:
                raise ConnectionError("the store is away")
            yield {"id": i, "text": f"row {i}"}, b"%d" % (i + 1)


class Stateful:
    """As datasets that can say where they are."""

    def __init__(self, count=1500):
        self.count, self.place = count, 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]

    def __iter__(self):
        while self.place < self.count:
            self.place += 1
            yield {"id": self.place - 1, "text": f"row {self.place - 1}"}


class Plain:
    """Shuffled by itself; a set is no sample."""

    def __iter__(self):
        numbers = list(range(1500))
        random.shuffle(numbers)
        for i in numbers:
            yield {"id": i, "text": f"row {i}"} if i != 700 else {"id": i, "text": {1, 2}}
'''

Make = Callable[..., FeedRun]


@pytest.fixture
def make_feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    # Another one may be tried: a free-threaded one, or the system's.
    monkeypatch.setenv("RINGFEED_PYTHON", os.environ.get("RINGFEED_TEST_PYTHON", sys.executable))
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "gives.py").write_text(SOURCES)
    (tmp_path / "data").mkdir()
    runs: list[FeedRun] = []

    def make(name: str, rows: int = 400, **settings: Any) -> FeedRun:
        with open(tmp_path / "data" / "rows.jsonl", "w") as file:
            for i in range(rows):
                file.write(json.dumps({"id": i, "text": f"row {i}"}) + "\n")
        values = {
            "feed": "mapped",
            "pipeline": STAGES,
            "object": f"mine:{name}",
            "modules": str(tmp_path),
            "python": "",
            "attempts": 3,
            "restart": "",
            **settings,
        }
        work = tmp_path / f"run{len(runs)}"
        work.mkdir()
        runs.append(FeedRun(work, tmp_path / "data", **values))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def rows_of(run: FeedRun, disturb: Callable[[], None] | None = None) -> list[Row]:
    got: list[Row] = []
    with ringfeed.attach(
        run.feed, socket_dir=run.sockets, attach_timeout_s=120, timeout_s=60
    ) as feed:
        for batch in feed:
            offsets, text = batch["text_offsets"], batch["text"].tobytes()
            got += [
                (int(batch["id"][i]), text[offsets[i] : offsets[i + 1]].decode())
                for i in range(batch.rows)
            ]
            batch.release()
            if disturb:
                disturb()
    assert run.wait() == 0, run.text()
    return got


def lines_of(run: FeedRun) -> list[str]:
    return run.text().splitlines()


def counters(run: FeedRun) -> dict[str, int]:
    """Of the stage, from what the feed says at its end."""
    line = next(line for line in lines_of(run) if line.startswith("  mapped:"))
    pairs = (pair.split("=") for pair in line.split(":", 1)[1].replace(",", "").split())
    return {name: int(value) for name, value in pairs}


@pytest.mark.parametrize("name", ["same", "noisy", "Several", "Many"])
def test_any_number_of_processes_gives_one_order(make_feed: Make, name: str) -> None:
    one = rows_of(make_feed(name).start())
    assert rows_of(make_feed(name, python="processes: 3 batch: 7").start()) == one
    if name == "same":
        assert sorted(one) == [(i, f"row {i}") for i in range(400)]
    if name == "noisy":
        drawn = [text.split()[2:] for _, text in one]
        assert len(drawn) == 400
        for place in range(3):
            assert len({row[place] for row in drawn}) > 390
    if name == "Several":
        assert Counter(i for i, _ in one) == {i: i % 3 for i in range(400) if i % 3}
    if name == "Many":
        assert 77 not in dict(one) and dict(one)[78] == "ROW 78"


def test_options_are_keyword_arguments(make_feed: Make) -> None:
    settings = 'options: \'{"word": "mine"}\''
    assert {
        text.split()[0] for _, text in rows_of(make_feed("Several", python=settings).start())
    } == {"mine"}
    wrong = make_feed("Several", python="options: '{\"sword\": 1}'")
    checked = wrong.command("check", str(wrong.config))
    assert checked.returncode == 3 and "unexpected keyword argument 'sword'" in checked.stderr


def test_kills_change_nothing(make_feed: Make) -> None:
    processes = "processes: 3 batch: 7"
    want = rows_of(make_feed("noisy", 3000, python=processes, attempts=255).start())
    run = make_feed("noisy", 3000, python=processes, attempts=255).start()
    rng = random.Random(4)
    kills = 0

    def disturb() -> None:
        nonlocal kills
        if rng.random() < 0.5 and kill_a_worker(run, rng):
            kills += 1

    assert rows_of(run, disturb) == want
    assert kills > 20 and "worker_died" in run.text()


@pytest.mark.parametrize("name", ["Rows", "Stateful", "Plain"])
def test_a_source_goes_on_where_it_was(make_feed: Make, name: str) -> None:
    settings = {"object": f"gives:{name}", "pipeline": SOURCE, "epochs": 2, "attempts": 255}
    want = rows_of(make_feed(name, **settings).start())
    numbers = [i for i in range(1500) if name != "Plain" or i != 700]
    assert sorted(i for i, _ in want) == sorted(numbers + numbers)
    half = len(numbers)
    if name == "Plain":
        assert [i for i, _ in want[:half]] != [i for i, _ in want[half:]]
    else:
        assert [i for i, _ in want[:half]] == numbers
    run = make_feed(name, **settings).start()
    rng = random.Random(9)

    def disturb() -> None:
        if rng.random() < 0.3:
            kill_a_worker(run, rng)

    assert rows_of(run, disturb) == want
    assert "worker_died" in run.text()
    if name == "Plain":
        assert "samples are read again" in run.text()


def test_a_source_that_always_raises_ends_the_feed(make_feed: Make) -> None:
    settings = {
        "object": "gives:Rows",
        "pipeline": SOURCE,
        "python": "options: '{\"fails_at\": 40}'",
    }
    run = make_feed("Rows", **settings).start()
    with pytest.raises(ringfeed.FeedFailed, match="(?s)raised ConnectionError 3 times.*is away"):
        rows_of(run)
    assert run.text().count("the store is away") >= 3


def test_a_snapshot_keeps_where_a_source_was(make_feed: Make, tmp_path: Path) -> None:
    settings = {"object": "gives:Stateful", "pipeline": SOURCE}
    want = rows_of(make_feed("Stateful", **settings).start())
    run = make_feed("Stateful", **settings).start()
    got = 0
    with ringfeed.attach(run.feed, socket_dir=run.sockets, attach_timeout_s=120) as feed:
        for _ in range(5):
            batch = feed.next()
            got += batch.rows
            batch.release()
        feed.snapshot(tmp_path / "saved")
    run.command("stop", run.feed, "--now")
    run.wait()
    again = make_feed("Stateful", **settings).start("--resume", str(tmp_path / "saved"))
    assert rows_of(again) == want[got:]


def test_exceptions_are_counted_by_their_type(make_feed: Make) -> None:
    run = make_feed("faulty").start()
    got = rows_of(run)
    assert sorted(i for i, _ in got) == [i for i in range(400) if i % 10 not in (3, 4, 6)]
    counted = counters(run)
    assert counted["skipped_ValueError"] == 40 and counted["skipped_TypeError"] == 40
    text = run.text()
    assert text.count("no threes, please") >= 1 and text.count("raise ValueError(f") == 1
    assert "field 'id': it is a dict; give an array, a number, bytes or str" in text
    run = make_feed("five").start()
    assert rows_of(run) == [(9, "row 9")]
    assert "is no sample but a <class 'int'>" in run.text()


def test_an_exception_can_end_the_feed(make_feed: Make) -> None:
    run = make_feed("faulty", python="on_error: STOP").start()
    with pytest.raises(ringfeed.FeedFailed, match="(?s)ValueError.*no threes, please: 3"):
        rows_of(run)
    assert run.wait() != 0


def test_what_kills_its_process_is_set_aside(make_feed: Make) -> None:
    run = make_feed("deadly", 300, python="processes: 2").start()
    got = sorted(i for i, _ in rows_of(run))
    assert got == [i for i in range(300) if i not in (50, 150, 250)]
    text = run.text()
    assert text.count("record_quarantined") == 3
    # Of the segfault, Python's stack: where the stage was.
    assert "Fatal Python error: Segmentation fault" in text and "in deadly" in text


def test_a_hang_is_ended_and_says_where(make_feed: Make) -> None:
    run = make_feed("endless", 120, restart="stall_ms: 2000").start()
    assert sorted(i for i, _ in rows_of(run)) == [i for i in range(120) if i != 60]
    text = run.text()
    assert text.count("worker_stalled") == 3
    assert "in endless" in text and "end of backtrace" in text


def test_what_cannot_be_made_again_for_a_while_ends_no_feed(
    make_feed: Make, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    settings = {"python": f'options: \'{{"away": "{away}"}}\'', "attempts": 255}
    want = rows_of(make_feed("Needy", 2000, **settings).start())
    run = make_feed("Needy", 2000, **settings).start()
    said = "the vocabulary is away"
    done = False

    def fails(times: int) -> None:
        wait_until(lambda: run.text().count(f"ConnectionError: {said}") >= times, "its failures")

    def disturb() -> None:
        nonlocal done
        if done:
            return
        done = True
        away.touch()
        os.kill(run.all_workers()["mapped.0"], signal.SIGKILL)
        fails(4)
        # Nor does the next supervisor believe that it never could.
        assert run.process is not None
        run.process.kill()
        run.process.wait()
        fails_before = run.text().count(f"ConnectionError: {said}")
        run.start()
        fails(fails_before + 4)
        away.unlink()

    assert rows_of(run, disturb) == want
    away.touch()
    never = make_feed("Needy", 2000, **settings).start()
    assert never.wait() != 0 and said in never.text()
    assert "worker_restarted" not in never.text()


def test_what_is_printed_is_in_the_log(make_feed: Make) -> None:
    run = make_feed("talks", 20).start()
    rows_of(run)
    said = [line for line in lines_of(run) if "by me" in line]
    assert any("info mapped.0 | printed by me" in line for line in said), said
    assert any("mapped.0 | WARNING:root:logged by me" in line for line in said), said


def test_check_finds_what_is_not_there(make_feed: Make) -> None:
    for name, wanted in (
        ("nothing", "module mine has no nothing; it has"),
        ("os", "name a function or a class"),
    ):
        run = make_feed(name)
        done = run.command("check", str(run.config))
        assert done.returncode == 3, done.stdout + done.stderr
        assert "stage 'mapped'" in done.stderr and wanted in done.stderr
    run = make_feed("same", object="elsewhere:same")
    done = run.command("check", str(run.config))
    assert done.returncode == 3 and "No module named 'elsewhere'" in done.stderr
    run = make_feed("same", python='interpreter: "/nowhere/python"')
    done = run.command("check", str(run.config))
    assert done.returncode != 0 and "/nowhere/python cannot be started" in done.stderr


def test_a_warm_parent_brings_a_process_back(make_feed: Make) -> None:
    run = make_feed("same", epochs=0, attempts=255).start()
    with ringfeed.attach(run.feed, socket_dir=run.sockets, attach_timeout_s=120) as feed:
        feed.next().release()
        for parents in range(1, 21):
            wait_until(
                lambda count=parents: run.text().count("parent_ready") >= count, "the warm parent"
            )
            pid = run.all_workers()["mapped.0"]
            os.kill(pid, signal.SIGKILL)
            wait_until(
                lambda pid=pid: run.all_workers().get("mapped.0") not in (pid, None),
                "a new process",
            )
            child = run.all_workers()["mapped.0"]
            if "--warm-fd" in Path(f"/proc/{child}/cmdline").read_text():
                break
            # The warm parent was too slow, on a busy machine, and another one is started.
        parent = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1]
        assert run.process and int(parent) == run.process.pid
        assert "--warm-fd" in Path(f"/proc/{child}/cmdline").read_text()
        for _ in range(50):
            feed.next().release()
    everybody = {int(pid) for pid in re.findall(r" pid=(\d+)", run.text())} - {os.getpid()}
    ready = re.findall(r"parent_ready .* pid=(\d+)", run.text())
    assert ready and runs(int(ready[-1])) and {child, int(ready[-1])} <= everybody
    run.stop()
    wait_until(lambda: not any(runs(pid) for pid in everybody), "the end of all processes")
