"""Functions and sources whose forked children come back into the stage's loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ringfeed
from tests.support.feeds.feed_run import FeedRun, processes_of, wait_until

STAGES = """
feed: "forks"
seed: 5
epochs: 1
stages {{ name: "files" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{ input: "files" fields {{ name: "id" dtype: "int64" }} }} }}
stages {{ name: "mine" python {{
  input: "lines" object: "mine:{name}" python_path: "{modules}" }} }}
stages {{ name: "batches" sample_batcher {{
  input: "mine" batch_size: 10 fields {{ name: "id" dtype: "int64" }} }} }}
feed_output {{ slots: 4}}
"""
ROWS = 200


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., FeedRun]]:
    """Starts a feed with this module and function."""
    made: list[FeedRun] = []

    def begin(module: str, name: str, pipeline: str = STAGES) -> FeedRun:
        data, modules = tmp_path / "data", tmp_path / "modules"
        data.mkdir()
        modules.mkdir()
        (data / "a.jsonl").write_text("".join(f'{{"id": {i}}}\n' for i in range(ROWS)))
        (modules / "mine.py").write_text(module)
        run = FeedRun(tmp_path, data, feed="forks", pipeline=pipeline, modules=modules, name=name)
        made.append(run.start())
        return run

    yield begin
    for run in made:
        run.close()


def ids_of(run: FeedRun) -> list[int]:
    with ringfeed.attach(
        "forks", socket_dir=run.sockets, attach_timeout_s=120, timeout_s=120
    ) as feed:
        ids = [int(i) for batch in feed for i in np.array(batch["id"])]
    assert run.wait() == 0, run.text()
    wait_until(lambda: not processes_of(run), f"the end of {processes_of(run)}", 60)
    return sorted(ids)


# Three times: whoever lets children go on has eight processes, and no more.
FORKING = '''
import os
from ringfeed import stage

def forks(sample):
    return os.fork() if sample["id"] in (3, 77, 150) else 1

def returns(sample):
    forks(sample)
    return sample

def raises(sample):
    if forks(sample) == 0:
        raise ValueError("in the child")
    return sample

def exits(sample):
    if forks(sample) == 0:
        raise SystemExit(0)
    return sample

@stage.map_batch
def many(samples):
    for sample in samples:
        forks(sample)
    return samples

@stage.flat_map
def several(sample):
    forks(sample)
    yield sample

def wild(sample):
    """A fork that no hook of Python's hears of."""
    import ctypes
    if sample["id"] in (3, 77, 150):
        ctypes.CDLL(None).fork()
    return sample
'''


@pytest.mark.parametrize("name", ["returns", "raises", "exits", "many", "several", "wild"])
def test_a_child_that_comes_back_does_not_do_the_work_once_more(
    start: Callable[..., FeedRun], name: str
) -> None:
    run = start(FORKING, name)
    assert ids_of(run) == list(range(ROWS))
    text = run.text()
    assert text.count("has come back from there, and ends") == 1, text
    assert f"mine: inputs={ROWS}, samples={ROWS}\n" in text, text
    assert "left_out=0" in text


SOURCE = """
import os

class Rows:
    def read(self, cursor):
        for i in range(int(cursor or 0), 200):
            if i in (3, 77, 150):
                os.fork()
            yield {"id": i}, b"%d" % (i + 1)

class Plain:
    def __iter__(self):
        for i in range(200):
            if i in (3, 77, 150):
                os.fork()
            yield {"id": i}
"""


@pytest.mark.parametrize("name", ["Rows", "Plain"])
def test_a_child_of_a_source_does_not_read_on(start: Callable[..., FeedRun], name: str) -> None:
    text = re.sub(r'stages \{\{ name: "(files|lines)".*\n(  .*\n)*', "", STAGES)
    text = text.replace("python {{", "python_source {{").replace('input: "lines" object', "object")
    run = start(SOURCE, name, text)
    assert ids_of(run) == list(range(ROWS)), run.text()
