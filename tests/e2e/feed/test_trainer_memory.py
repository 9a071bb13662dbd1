"""What a trainer can do to the memory of a real feed: read it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from tests.support.feeds.feed_run import ROOT, FeedRun

sys.path.insert(0, str(ROOT))

import ringfeed  # noqa: E402

from tests.support.fakes import try_to_write  # noqa: E402

MakeRun = Callable[..., FeedRun]


def test_the_supervisors_descriptors_do_not_let_a_trainer_write(make_run: MakeRun) -> None:
    run = make_run(epochs=0, batch=64).start()
    socket_path = run.sockets / f"{run.feed}.sock"
    with ringfeed.attach(
        run.feed, "witness", socket_path=socket_path, attach_timeout_s=60, timeout_s=60
    ) as feed:
        batch = feed.next()
        before = {name: array.copy() for name, array in batch.items()}
        try_to_write.assert_all_refused(run.feed, socket_path)
        for name, array in batch.items():
            np.testing.assert_array_equal(array, before[name])
    assert run.stop() == 0, run.text()


def test_private_batches_of_a_real_feed_are_as_their_stage_wrote_them(make_run: MakeRun) -> None:
    """One group writes all over its batches, the other audits; both see the same feed."""
    run = make_run(batch=64, slots=6).start()
    options = {
        "socket_path": run.sockets / f"{run.feed}.sock",
        "attach_timeout_s": 60,
        "timeout_s": 60,
        "max_hold": 2,
    }
    with (
        ringfeed.attach(run.feed, "writer", view="private", **options) as writer,
        ringfeed.attach(run.feed, "auditor", **options) as auditor,
    ):
        count = 0
        for mine, theirs in zip(writer, auditor):
            assert mine.seq == theirs.seq
            for name in mine:
                np.testing.assert_array_equal(mine[name], theirs[name])
                mine[name][:] = -7
                assert not np.array_equal(mine[name], theirs[name])
            count += 1
    assert count > 100, "each slot was used many times"
    assert run.wait() == 0, run.text()
