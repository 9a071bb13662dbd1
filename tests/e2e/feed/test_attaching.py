"""Attaching: what is ready is given to the first who asks, without a wait."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.support.feeds.feed_run import FeedRun, wait_until

import ringfeed

ATTACHES = 200


@pytest.mark.parametrize("generators", [1, 3])
def test_the_first_question_is_answered_with_a_batch_that_waits(
    make_run: Callable[..., FeedRun], generators: int
) -> None:
    run = make_run(epochs=0, batch=32, reservoir=500, slots=6, generators=generators).start()
    at = {"socket_dir": str(run.sockets), "timeout_s": 0.0}
    # It holds the feed where it is, and all batches in their slots.
    with ringfeed.attach("lc0", "keeper", attach_timeout_s=60, **at) as keeper:
        wait_until(lambda: keeper.stats().published == 6, "a batch in each slot")
        for number in range(ATTACHES):
            with ringfeed.attach("lc0", f"group-{number}", rejoin_ms=0, **at) as feed:
                assert feed.next().seq == 1, f"attach {number}"
    assert run.stop() == 0


def test_a_trainer_that_the_feed_does_not_see_is_told_so(make_run: Callable[..., FeedRun]) -> None:
    """A feed in a container of its own proves no death of a trainer beside that."""
    run = make_run(epochs=0)
    before = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.fail("this test makes a pid namespace: run it as root")
    with open(run.log, "wb") as log:
        run.process = subprocess.Popen(
            [*before, str(run.program), "run", str(run.config)],
            env=run.environment,
            stdout=log,
            stderr=log,
        )
    trainer = run.trainer()
    assert trainer.process.wait(60) != 0
    assert "share the pid namespace with the feed" in trainer.log.read_text()
