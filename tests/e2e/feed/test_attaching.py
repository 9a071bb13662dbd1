"""Attaching: what is ready is given to the first who asks, without a wait."""

from __future__ import annotations

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
    with ringfeed.attach("lc0", "keeper", **at) as keeper:
        wait_until(lambda: keeper.stats().published == 6, "a batch in each slot")
        for number in range(ATTACHES):
            with ringfeed.attach("lc0", f"group-{number}", rejoin_ms=0, **at) as feed:
                assert feed.next().seq == 1, f"attach {number}"
    assert run.stop() == 0
