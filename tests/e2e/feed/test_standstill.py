"""A wait that is given up says what each process of its feed does, and what their memory says."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

import pytest

from tests.support.feeds.feed_run import FeedRun, stop, wait_until


def given_up(what: str) -> str:
    """The words of a wait for what never comes."""
    with pytest.raises(AssertionError) as told:
        wait_until(lambda: False, what, 0)
    return str(told.value)


def test_a_wait_that_is_given_up_says_who_stands_still(make_run: Callable[..., FeedRun]) -> None:
    run = make_run(epochs=0, groups='groups { name: "default" }').start()
    trainer = run.trainer_after(1, positions=0)
    group, pid = sorted(run.workers().items())[0]
    stop(pid)
    text = given_up("what never comes")
    os.kill(pid, signal.SIGCONT)
    assert run.process is not None
    assert "waited 0 s for what never comes" in text
    assert f"its supervisor {run.process.pid} runs" in text
    assert re.search(rf"process {pid} \(rf-{group}\): 0 ticks", text), text
    assert re.search(rf"{pid} rf-{group}: T, in ", text), text
    assert f"trainer 0 (process {trainer.process.pid}) lives" in text
    # The trainer's own words: where its Python is.
    assert "trainer.py" in text.partition("its log:")[2].partition("process ")[0], text
    assert re.search(rf"lane \d+: process {pid}, state", text), text
    assert "group_0 'default': ACTIVE" in text
    assert f"member 0: live, process {trainer.process.pid}, took" in text
    assert "ringfeed status:\n" in text and "ringfeed why:\n" in text
    assert "feed_running" in text.partition("the end of its log:")[2]


def test_who_has_ended_is_named(make_run: Callable[..., FeedRun]) -> None:
    run = make_run(epochs=0, groups='groups { name: "default" }').start()
    trainer = run.trainer_after(1, positions=0)
    trainer.process.kill()
    trainer.process.wait()
    run.stop(signal.SIGQUIT)
    text = given_up("batches")
    assert "has ended with 0" in text
    assert f"trainer 0 (process {trainer.process.pid}) has ended with -9, " in text
    run.close()
    assert given_up("nothing") == "waited 0 s for nothing\n"
