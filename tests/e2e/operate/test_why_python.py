"""`ringfeed why` on samples, Python and queues: it names what was put there, and what it advises
brings what it says.

The functions wait or compute for a time that makes all else small, and rates are compared of one
feed after the other.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.feeds.feed_run import BIN, FeedRun, wait_until

Found = dict[str, Any]
SECONDS = 2.0  # that an answer covers
BRINGS = 1.25  # times as many batches, at least, that following an advice brings

MODULE = '''
import time
from ringfeed import stage


def computes(sample):
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        pass
    return sample


def waits(sample):
    time.sleep(0.01)
    return sample


def at_times(sample):
    """Long once in 16 samples."""
    if sample["id"] % 16 == 0:
        time.sleep(0.16)
    return sample


def raises(sample):
    raise ValueError(f"sample {sample['id']} is none of mine")


def raises_mostly(sample):
    if sample["id"] % 4:
        raise LookupError("this one is not there")
    time.sleep(0.001)
    return sample


class Source:
    def __iter__(self):
        for number in range(10**9):
            time.sleep(0.005)
            yield {"id": number}


class Slowly(stage.Batch):
    def __call__(self, samples):
        time.sleep(0.08)
        return {"id": [sample["id"] for sample in samples]}
'''
TRAINER = """
import sys, time, ringfeed
hold = float(sys.argv[1])
with ringfeed.attach("why", attach_timeout_s=60, timeout_s=600) as feed:
    for batch in feed:
        time.sleep(hold)
        batch.release()
"""


class Feeds:
    """Feeds of 4,096 lines, each with a trainer that holds a batch for a time."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.data = work / "data"
        self.data.mkdir()
        (work / "slow.py").write_text(MODULE)
        with open(self.data / "a.jsonl", "w") as lines:
            for number in range(4096):
                lines.write(json.dumps({"id": number, "text": "x" * 8000}) + "\n")
        self.runs: list[FeedRun] = []
        self.trainers: list[subprocess.Popen[bytes]] = []

    def mapped(self, call: str, own: str = "", of: str = "lines", name: str = "mapped") -> str:
        return (
            f'stages {{ name: "{name}" python {{ input: "{of}" object: "slow:{call}" batch: 1 '
            f'python_path: "{self.work}" {own} }} }}'
        )

    def batched(self, of: str = "mapped", own: str = "") -> str:
        return (
            f'stages {{ name: "batches" sample_batcher {{ input: "{of}" batch_size: 8 '
            f'fields {{ name: "id" dtype: "int64" }} {own} }} }}'
        )

    def start(self, *stages: str, hold_s: float = 0.0) -> FeedRun:
        text = [
            'feed: "why" seed: 1 epochs: 0',
            f'stages {{ name: "files" file_path_provider {{ directory: "{self.data}" }} }}',
            'stages { name: "lines" sample_source { input: "files" } }',
            *stages,
        ]
        if "python_source" in stages[0]:
            del text[1:3]
        pipeline = "\n".join(text).replace("{", "{{").replace("}", "}}")
        work = self.work / f"run{len(self.runs)}"
        work.mkdir()
        run = FeedRun(work, self.data, feed="why", pipeline=pipeline)
        self.runs.append(run)
        run.start()
        words = [sys.executable, "-c", TRAINER, str(hold_s)]
        self.trainers.append(subprocess.Popen(words, env=run.environment))
        return run

    def end(self, run: FeedRun) -> None:
        run.command("stop", "why", "--now")
        run.close()

    def close(self) -> None:
        for run in self.runs:
            self.end(run)
        for trainer in self.trainers:
            trainer.kill()
            trainer.wait()


@pytest.fixture
def feeds(tmp_path: Path) -> Iterator[Feeds]:
    made = Feeds(tmp_path)
    yield made
    made.close()


def why(run: FeedRun, flows: bool = True) -> Found:
    """The answer about the first whole seconds in which the feed is as it will be."""

    def answer() -> Found | None:
        done = run.command("why", "why", "--json")
        if done.returncode != 0:
            return None
        (found,) = json.loads(done.stdout)["bottlenecks"]
        if found["seconds_covered"] < SECONDS or (flows and found["batches_per_s"] <= 0):
            return None
        return dict(found)

    found: Found = wait_until(answer, "an answer")
    return found


def place(found: Found) -> tuple[str, str]:
    return found["kind"], found.get("stage", "")


def share(found: Found, name: str) -> Found:
    (one,) = [one for one in found["shares"] if one["name"] == name]
    return dict(one)


def test_a_function_that_computes_is_seen_to_compute(feeds: Feeds) -> None:
    found = why(feeds.start(feeds.mapped("computes"), feeds.batched()))
    assert found["stage"] == "mapped", found["sentence"]
    busy = share(found, "mapped")
    # What it does not get of a processor it waits for; for nothing else.
    assert busy["cpu"] + busy["core_wait"] > 0.8, found
    assert "waiting for files" not in found["sentence"]
    assert "cannot be shared" not in found["sentence"]
    if found["kind"] == "STAGE" and found["cores_idle"] > 1:
        assert "set processes: 2" in found["sentence"]


def test_another_process_brings_what_why_says(feeds: Feeds) -> None:
    run = feeds.start(feeds.mapped("waits"), feeds.batched())
    before = why(run)
    assert place(before) == ("STAGE", "mapped"), before["sentence"]
    assert "the rest waiting for files or similar" in before["sentence"]
    assert "set processes: 2 (in Python .map(..., processes=2))" in before["sentence"]
    feeds.end(run)
    after = why(feeds.start(feeds.mapped("waits", "processes: 2"), feeds.batched()))
    assert after["batches_per_s"] > BRINGS * before["batches_per_s"], after["sentence"]


def test_a_stage_that_may_have_more_processes_is_scaled_by_the_line_that_why_gives(
    feeds: Feeds,
) -> None:
    run = feeds.start(feeds.mapped("waits", "max_processes: 4"), feeds.batched())
    before = why(run)
    line = re.search(r"`ringfeed (scale why mapped \d+)`", before["sentence"])
    assert line is not None, before["sentence"]
    assert run.command(*line[1].split()).returncode == 0

    def more() -> bool:
        # The window begins anew when the lanes change.
        return bool(why(run)["batches_per_s"] > BRINGS * before["batches_per_s"])

    wait_until(more, "more batches")


@pytest.mark.parametrize("bound", ["queue_capacity", "queue_bytes"])
def test_a_queue_that_is_too_small_is_named_and_a_larger_one_brings_more(
    feeds: Feeds, bound: str
) -> None:
    small = {"queue_capacity": "queue_capacity: 1", "queue_bytes": "queue_bytes: 65536"}[bound]

    def start(own: str) -> FeedRun:
        first = feeds.mapped("at_times", own, name="first")
        return feeds.start(first, feeds.mapped("at_times", of="first"), feeds.batched())

    run = start(small)
    before = why(run)
    assert place(before) == ("QUEUE", "first"), before["sentence"]
    assert before["setting"] == bound
    assert "the queue between 'first' and 'mapped' is too small" in before["sentence"]
    feeds.end(run)
    after = why(start(f"{bound}: {before['setting_useful']}"))
    assert after["batches_per_s"] > BRINGS * before["batches_per_s"], after["sentence"]


def test_too_few_slots_are_named_and_more_of_them_bring_more(feeds: Feeds) -> None:
    def start(slots: int) -> FeedRun:
        collated = (
            f'stages {{ name: "batches" python_batcher {{ input: "lines" object: "slow:Slowly" '
            f'python_path: "{feeds.work}" batch_size: 8 queue_capacity: {slots} '
            f'fields {{ name: "id" dtype: "int64" }} }} }}'
        )
        return feeds.start(collated, hold_s=0.08)

    run = start(1)
    before = why(run)
    assert place(before) == ("QUEUE", "batches"), before["sentence"]
    assert "the slots are too few" in before["sentence"]
    assert (before["setting"], before["setting_now"]) == ("queue_capacity", 1)
    feeds.end(run)
    after = why(start(before["setting_useful"]))
    assert after["batches_per_s"] > BRINGS * before["batches_per_s"], after["sentence"]


def test_trainers_that_are_merely_slower_are_told_to_end_nothing(feeds: Feeds) -> None:
    run = feeds.start(feeds.batched("lines"), hold_s=0.2)
    found = why(run)
    assert found["kind"] == "TRAINERS", found["sentence"]
    assert "kill" not in found["sentence"] and "ringfeed.attach" not in found["sentence"]


def test_what_leaves_out_everything_is_the_headline(feeds: Feeds) -> None:
    run = feeds.start(feeds.mapped("raises"), feeds.batched())
    found = why(run, flows=False)
    assert place(found) == ("LEAVES_OUT", "mapped"), found["sentence"]
    assert found["left_out"] == 1
    for part in ("leaves out 100 % of what it gets", "ValueError", "is none of mine"):
        assert part in found["sentence"]
    # So hears whoever asks, or waits for a batch.
    wait_until(
        lambda: "% of all samples are left out" in (run.status() or {}).get("reason", ""),
        "status to say so",
    )
    waiting = (
        'import ringfeed\nwith ringfeed.attach("why", "other", attach_timeout_s=60) as feed:\n'
        "    try: feed.next(timeout_s=2)\n    except ringfeed.FeedTimeout as late: print(late)"
    )
    done = subprocess.run(
        [sys.executable, "-c", waiting], env=run.environment, capture_output=True, text=True
    )
    assert "% of all samples are left out" in done.stdout, done


def test_what_leaves_out_more_than_half_is_the_headline_too(feeds: Feeds) -> None:
    found = why(feeds.start(feeds.mapped("raises_mostly"), feeds.batched()))
    assert place(found) == ("LEAVES_OUT", "mapped"), found["sentence"]
    assert 0.7 < found["left_out"] < 0.8
    assert "LookupError" in found["sentence"]


def test_a_slow_source_in_python_is_told_what_can_be_done(feeds: Feeds) -> None:
    source = (
        'stages { name: "source" python_source { object: "slow:Source" '
        f'python_path: "{feeds.work}" batch: 1 }} }}'
    )
    found = why(feeds.start(source, feeds.batched("source")))
    assert place(found) == ("STAGE", "source"), found["sentence"]
    assert "in a stage `python` behind it" in found["sentence"]


LOADER = """
import sys, time
import torch.utils.data
from ringfeed.torch import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        time.sleep(float(sys.argv[1]))
        return i

for batch in DataLoader(Slow(), batch_size=4, num_workers=int(sys.argv[3])):
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Found]]:
    pytest.importorskip("torch")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    started: list[subprocess.Popen[bytes]] = []

    def told(sample_s: float, hold_s: float, workers: int = 1) -> Found:
        """What `ringfeed why` says of a loader."""
        words = [sys.executable, "-c", LOADER, str(sample_s), str(hold_s), str(workers)]
        one = subprocess.Popen(words, env=environment)
        started.append(one)

        def answer() -> Found | None:
            listed = ringfeed_command("ps", "--json")
            names = [feed["feed"] for feed in listed["feeds"] if f"-{one.pid}-" in feed["feed"]]
            if not names:
                return None
            (found,) = ringfeed_command("why", names[0], "--json")["bottlenecks"]
            covers = found["seconds_covered"] >= SECONDS and found["batches_per_s"] > 0
            return dict(found) if covers else None

        found: Found = wait_until(answer, "an answer about the loader")
        one.kill()
        one.wait()
        return found

    def ringfeed_command(*words: str) -> Any:
        done = subprocess.run([str(BIN / "ringfeed"), *words], env=environment, capture_output=True)
        return json.loads(done.stdout)

    yield told
    for one in started:
        one.kill()
        one.wait()


def test_a_loader_is_told_of_its_workers_and_more_of_them_bring_more(
    load: Callable[..., Found],
) -> None:
    before = load(0.01, 0)
    assert before["kind"] == "STAGE" and "num_workers=2" in before["sentence"], before["sentence"]
    assert load(0.01, 0, 2)["batches_per_s"] > BRINGS * before["batches_per_s"]


def test_a_loader_whose_trainer_is_slower_is_not_short_of_files(
    load: Callable[..., Found],
) -> None:
    found = load(0, 0.1)
    assert found["kind"] == "TRAINERS", found["sentence"]
    assert "to be asked for a batch" in found["sentence"]
