"""The Python client: what a trainer sees of a feed.

The feed is real shared memory with real producing lanes, in a process of its own
(tests/support/fakes/fake_feed.cc): batch s holds x = 1000 s + place, id = s, flags = s.
"""

# flake8: noqa: F811

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import ringfeed  # noqa: E402

from tests.support.fakes.fake_feed import (  # noqa: E402, F401
    BUILD,
    PATIENCE_S,
    ROOT,
    MakeFeed,
    make_feed,
    rows_of,
    run_python,
)
from tests.support.feeds.feed_run import runs  # noqa: E402

# ---- batches ----


def test_a_finite_feed_is_a_loop_over_every_batch_in_order(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "3", "--rows", "5")
    fake.tell("publish 10")
    fake.tell("close")
    seen = []
    with fake.attach() as feed:
        for batch in feed:
            seen.append(batch.seq)
            assert batch.rows == 5 and batch.tries == 0
            np.testing.assert_array_equal(batch["x"], rows_of(batch.seq, 5))
            np.testing.assert_array_equal(batch["id"], np.full(5, batch.seq, np.int64))
            np.testing.assert_array_equal(batch["flags"], np.full((5, 2), batch.seq, np.uint8))
    assert seen == list(range(1, 11))


def test_a_batch_is_a_mapping_in_schema_order(make_feed: MakeFeed) -> None:
    fake = make_feed("--rows", "2")
    fake.tell("publish 1")
    with fake.attach() as feed:
        assert list(feed.schema) == ["x", "id", "flags"]
        assert feed.schema["x"].shape == (-1, 3) and feed.schema["x"].dtype == np.float32
        assert feed.schema["id"].offset % 64 == 0 and feed.schema.rows_max == 2
        batch = feed.next()
        assert list(batch) == ["x", "id", "flags"] and len(batch) == 3 and "x" in batch
        assert [a.shape for a in batch.values()] == [(2, 3), (2,), (2, 2)]
        assert [a.dtype for a in batch.values()] == [np.float32, np.int64, np.uint8]
        assert batch["x"] is batch["x"]
        assert batch.token == (7, 0) and batch.nbytes > 0 and batch.published_ns > 0
        with pytest.raises(KeyError):
            batch["nothing"]


def test_a_short_batch_has_short_arrays(make_feed: MakeFeed) -> None:
    fake = make_feed("--rows", "8")
    fake.tell("publish 1 3")
    with fake.attach() as feed:
        batch = feed.next()
        assert batch.rows == 3 and batch["x"].shape == (3, 3)
        np.testing.assert_array_equal(batch["x"], rows_of(1, 3))


def test_arrays_are_read_only_and_are_not_copies(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach() as feed:
        batch = feed.next()
        array = batch["x"]
        assert not array.flags.writeable and not array.flags.owndata
        assert array.ctypes.data % 64 == 0
        with pytest.raises(ValueError):
            array[0, 0] = 1
        with pytest.raises(ValueError):
            array.flags.writeable = True
        address = array.ctypes.data
        assert any(
            int(low, 16) <= address < int(high, 16) and permissions == "r--s"
            for low, high, permissions in (
                (*line.split()[0].split("-"), line.split()[1])
                for line in Path("/proc/self/maps").read_text().splitlines()
            )
        )


def test_numpy_dlpack_shares_the_memory_and_holds_the_slot(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 2")
    with fake.attach() as feed:
        shared = np.from_dlpack(feed.next()["x"])
        assert not shared.flags.writeable
        np.testing.assert_array_equal(shared, rows_of(1, 4))
        assert feed.stats().held == 1
        del shared
        assert feed.stats().held == 0


def test_torch_shares_the_memory_and_holds_the_slot(make_feed: MakeFeed) -> None:
    torch = pytest.importorskip("torch")
    fake = make_feed()
    fake.tell("publish 2")
    with fake.attach() as feed:
        batch = feed.next()
        address = batch["x"].ctypes.data
        tensor = torch.from_dlpack(batch["x"])
        assert tensor.data_ptr() == address and tensor.shape == (4, 3)
        batch.release()
        assert feed.stats().held == 1, "the tensor still needs the slot"
        assert float(tensor[1, 2]) == 1005
        del tensor
        assert feed.stats().held == 0


# ---- without frameworks ----


def test_the_package_needs_neither_torch_nor_jax(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    child = run_python(
        """
        import sys
        sys.modules["torch"] = sys.modules["jax"] = None  # as if they were not installed
        import ringfeed
        with ringfeed.attach("fake", socket_dir=sys.argv[1]) as feed:
            batch = feed.next(30)
            print(batch["x"].sum())
            for use in (batch.torch, lambda: batch.to("cpu"), feed.pin):
                try:
                    use()
                except ImportError as error:
                    print(error)
        """,
        str(fake.directory),
    )
    out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0, err
    lines = out.splitlines()
    assert lines[0] == str(float(rows_of(1, 4).sum())) and len(lines) == 4
    assert all("ringfeed.torch needs PyTorch" in line for line in lines[1:])


@pytest.mark.parametrize(("module", "package"), [("torch", "torch"), ("jax", "jax")])
def test_a_module_for_a_framework_that_is_missing_says_what_to_install(
    module: str, package: str
) -> None:
    child = run_python(
        f"""
        import sys
        sys.modules["{module}"] = None
        try:
            import ringfeed.{module}
        except ImportError as error:
            print(type(error).__name__, error)
        """
    )
    out, err = child.communicate(timeout=PATIENCE_S)
    assert out.startswith("ImportError ringfeed."), err
    assert f"`pip install {package}`" in out


def test_importing_the_package_imports_no_framework() -> None:
    child = run_python("import ringfeed, sys; print({'torch', 'jax'} & set(sys.modules))")
    out, err = child.communicate(timeout=PATIENCE_S)
    assert out == "set()\n", err


# ---- leases ----


def test_the_slot_goes_back_with_the_last_view(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach() as feed:
        batch = feed.next()
        view = batch["x"][1:3, ::2].T
        del batch
        assert feed.stats().held == 1
        np.testing.assert_array_equal(view, rows_of(1, 4)[1:3, ::2].T)
        del view
        assert feed.stats().held == 0 and feed.stats().done == 1


def test_release_gives_the_slot_back_at_once_when_no_array_lives(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach() as feed:
        batch = feed.next()
        assert batch["x"][0, 0] == 1000
        batch.release()
        assert batch.released and feed.stats().held == 0
        batch.release()
        assert feed.stats().done == 1
        with pytest.raises(ringfeed.BatchReleased, match="batch 1 was released"):
            batch["x"]


def test_an_array_outlives_release_and_its_memory_is_not_reused(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "2", "--max-hold", "2")
    fake.tell("publish 20")
    fake.tell("close")
    with fake.attach() as feed:
        batch = feed.next()
        kept = batch["x"]
        batch.release()
        # The feed goes on through the other slot, again and again.
        seqs = [other.copy()["id"][0] for other in feed]
        assert seqs == list(range(2, 21))
        np.testing.assert_array_equal(kept, rows_of(1, 4))


def test_copy_is_writable_and_gives_the_slot_back(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach() as feed:
        batch = feed.next()
        copies = batch.copy()
        assert feed.stats().held == 0
        copies["x"][:] = 0
        assert set(copies) == {"x", "id", "flags"} and copies["id"][0] == 1
        with pytest.raises(ringfeed.BatchReleased):
            batch.copy()


def test_a_batch_whose_bytes_are_others_is_told(make_feed: MakeFeed) -> None:
    fake = make_feed("--checksum", "--rows", "3000")
    fake.tell("publish 2")
    with fake.attach(view="private") as feed:
        batch = feed.next()
        batch.verify()
        batch["x"][2999, 2] += 1
        with pytest.raises(ringfeed.FeedDamaged, match="something has written to them"):
            batch.verify()
        batch.release()
        with pytest.raises(ringfeed.BatchReleased, match="before release"):
            batch.verify()
        feed.next().verify()
    plain = make_feed(name="plain")
    plain.tell("publish 1")
    with plain.attach() as feed, pytest.raises(ringfeed.InvalidRequest, match="checksum: true"):
        feed.next().verify()


def test_arrays_survive_the_end_of_the_feed_object(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach() as feed:
        array = feed.next()["x"]
    assert int(fake.tell("members")) == 1, "a member as long as it holds something"
    np.testing.assert_array_equal(array, rows_of(1, 4))
    del array, feed
    assert int(fake.tell("members")) == 0


def test_a_released_slot_lets_the_feed_go_on(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "1", "--max-hold", "1")
    fake.tell("publish 3")
    with fake.attach() as feed:
        for seq in (1, 2, 3):
            batch = feed.next()
            assert batch.seq == seq
            batch.release()


def test_a_batch_is_not_pickled_by_accident(make_feed: MakeFeed) -> None:
    import pickle

    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach() as feed:
        batch = feed.next()
        with pytest.raises(TypeError, match="pickle batch.copy"):
            pickle.dumps(batch)


# ---- refusals ----


def test_hoarding_slots_is_an_exception_and_not_a_deadlock(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "4", "--max-hold", "2")
    fake.tell("publish 4")
    with fake.attach() as feed:
        hoard = [feed.next(), feed.next()]
        with pytest.raises(ringfeed.SlotsExhausted, match=r"holds 2 of 4 slots \(batches 1, 2\)"):
            feed.next()
        hoard.pop(0)
        assert feed.next().seq == 3


def test_all_slots_held_is_an_exception_even_without_max_hold(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "2", "--max-hold", "100")
    fake.tell("publish 3")
    with fake.attach() as feed:
        hoard = [feed.next(), feed.next()]
        with pytest.raises(ringfeed.SlotsExhausted, match="release a batch"):
            feed.next()
        del hoard[:]
        assert feed.next().seq == 3


def test_what_only_a_reference_cycle_holds_does_not_count_as_held(make_feed: MakeFeed) -> None:
    fake = make_feed("--max-hold", "1")
    fake.tell("publish 2")
    gc.disable()
    try:
        with fake.attach() as feed:
            cycle: list = [feed.next()]
            cycle.append(cycle)
            del cycle
            assert feed.next().seq == 2
    finally:
        gc.enable()


def test_a_silent_feed_is_a_timeout_and_nothing_is_claimed(make_feed: MakeFeed) -> None:
    fake = make_feed()
    with fake.attach() as feed:
        with pytest.raises(
            ringfeed.FeedTimeout, match="no batch came in time; the feed is running"
        ):
            feed.next(timeout_s=0.01)
        with pytest.raises(TimeoutError):
            feed.next(timeout_s=0)
        assert feed.stats().taken == 0
        fake.tell("publish 1")
        assert feed.next().seq == 1


def test_the_timeout_of_attach_is_that_of_loops(make_feed: MakeFeed) -> None:
    fake = make_feed()
    with fake.attach(timeout_s=0.01) as feed:
        with pytest.raises(ringfeed.FeedTimeout):
            for _ in feed:
                pytest.fail("nothing was published")


def test_a_failed_feed_delivers_what_it_had_and_then_its_reason(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    fake.wait_until_published(1)
    with fake.attach() as feed:
        fake.tell("fail worker unpack died 11 times: see its log")
        assert feed.next().seq == 1
        with pytest.raises(ringfeed.FeedFailed, match="worker unpack died 11 times: see its log"):
            feed.next()


def test_a_stopped_feed_delivers_what_it_had_and_is_no_end(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    fake.wait_until_published(1)
    with fake.attach() as feed:
        fake.tell("stop stopped by a request of process 7")
        with pytest.raises(ringfeed.FeedStopped, match="stopped by a request of process 7"):
            for batch in feed:
                assert batch.seq == 1
        assert feed.end_reason is None and feed.stats().phase == "stopped"


def test_an_end_has_its_reason(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    fake.tell("close")
    with fake.attach() as feed:
        assert feed.end_reason is None
        assert [batch.seq for batch in feed] == [1]
        assert feed.end_reason == "the run is over"


@pytest.mark.parametrize(
    "given, words", [({"rank": 0}, "rank=0 without world"), ({"world": 4}, "world=4 without rank")]
)
def test_a_rank_without_a_world_is_told_what_is_missing(
    make_feed: MakeFeed, given: dict[str, int], words: str
) -> None:
    with pytest.raises(ringfeed.InvalidRequest, match=words):
        make_feed().attach(**given)


def test_an_unknown_feed_is_named_with_the_place_that_was_looked_at(tmp_path: Path) -> None:
    with pytest.raises(ringfeed.NoSuchFeed, match=f"feed absent: nobody serves {tmp_path}/absent"):
        ringfeed.attach("absent", socket_dir=tmp_path, attach_timeout_s=0)


def test_a_trainer_may_start_before_its_feed(make_feed: MakeFeed, tmp_path: Path) -> None:
    fake = make_feed()
    attached: list[ringfeed.Feed] = []
    thread = threading.Thread(
        target=lambda: attached.append(
            ringfeed.attach("late", socket_dir=fake.directory, attach_timeout_s=PATIENCE_S)
        )
    )
    thread.start()
    assert not attached
    make_feed(name="late")
    thread.join(PATIENCE_S)
    assert [feed.name for feed in attached] == ["late"]
    attached.pop().close()


@pytest.mark.parametrize(
    ("code", "exception"),
    [
        (1, ringfeed.InvalidRequest),
        (2, ringfeed.IncompatibleFeed),
        (3, ringfeed.FeedPermission),
        (5, ringfeed.FeedRefused),
        (6, ringfeed.FeedRefused),
        (8, ringfeed.FeedFailed),
    ],
)
def test_the_supervisors_refusal_is_an_exception_with_its_sentence(
    make_feed: MakeFeed, code: int, exception: type[Exception]
) -> None:
    fake = make_feed()
    fake.tell(f"refuse {code} the reason is this: do that")
    with pytest.raises(exception, match="^the reason is this: do that$"):
        fake.attach()


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 0},
        {"world": 2},
        {"rank": 2, "world": 2},
        {"rank": 0, "world": 17},
        {"start": "middle"},
        {"policy": "drop"},
    ],
)
def test_arguments_that_contradict_each_other_are_refused(options: dict, tmp_path: Path) -> None:
    with pytest.raises(ringfeed.InvalidRequest):
        ringfeed.attach("feed", socket_dir=tmp_path, **options)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 65])
def test_a_feed_name_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ringfeed.InvalidRequest, match="is not a feed name"):
        ringfeed.attach(name, socket_dir=tmp_path)


def test_a_closed_feed_says_so(make_feed: MakeFeed) -> None:
    fake = make_feed()
    feed = fake.attach()
    feed.close()
    feed.close()
    assert feed.closed
    with pytest.raises(ringfeed.FeedDetached, match="detached by this process"):
        feed.next()
    with pytest.raises(ringfeed.FeedDetached):
        feed.stats()


def test_a_group_that_has_left_the_feed_says_so(make_feed: MakeFeed) -> None:
    fake = make_feed()
    with fake.attach() as feed:
        fake.tell("drain 0")
        with pytest.raises(ringfeed.FeedDetached, match="attach again"):
            feed.next()


# ---- groups ----


def test_every_group_sees_every_batch(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "4")
    with fake.attach(group="a") as a, fake.attach(group="b") as b:
        fake.tell("publish 6")
        fake.tell("close")
        seen = [(x.seq, y.seq) for x, y in zip(a, b)]
    assert seen == [(s, s) for s in range(1, 7)]


def test_members_of_a_shared_group_share_the_batches(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "4")
    seen: list[list[int]] = [[], []]

    def train(member: int) -> None:
        with fake.attach(group="pair") as feed:
            for batch in feed:
                seen[member].append(batch.seq)

    threads = [threading.Thread(target=train, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    fake.wait_until_members(2)
    fake.tell("publish 200")
    fake.tell("close")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(seen[0] + seen[1]) == list(range(1, 201))


def test_ranks_take_their_class_of_batches(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "6")
    seen: list[list[int]] = [[], [], []]

    def train(rank: int) -> None:
        with fake.attach(group="ranks", rank=rank, world=3) as feed:
            assert feed.stats().kind == "ranked" and feed.stats().rank == rank
            seen[rank] = [batch.seq for batch in feed]

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    fake.wait_until_members(3)
    fake.tell("publish 31")
    fake.tell("close")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert seen == [list(range(1 + rank, 32, 3)) for rank in range(3)]


def test_start_newest_begins_with_the_next_batch(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "4")
    fake.tell("publish 2")
    fake.wait_until_published(2)
    with fake.attach(group="late", start="newest") as feed:
        fake.tell("publish 1")
        assert feed.next().seq == 3
    with fake.attach(group="all", start="oldest") as feed:
        assert feed.next().seq == 1


def test_stats_tell_what_happened(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "4", "--lanes", "2")
    fake.tell("publish 3")
    with fake.attach(group="g") as feed:
        kept = feed.next()
        feed.next().release()
        stats = feed.stats()
        assert (stats.taken, stats.done, stats.held) == (2, 1, 1)
        assert (stats.slots, stats.lanes, stats.max_hold, stats.members) == (4, 2, 2, 1)
        assert (stats.feed, stats.group, stats.phase) == ("fake", "g", "running")
        assert len(stats.feed_id) == 16 and stats.ordered and stats.kind == "shared"
        assert kept.seq == 1


# ---- processes and signals ----


def test_ctrl_c_ends_a_wait(make_feed: MakeFeed) -> None:
    fake = make_feed()
    child = run_python(
        """
        import sys, threading, ringfeed

        def tell(feed):
            while feed.stats().waits == 0:
                pass
            print("waiting", flush=True)

        with ringfeed.attach("fake", socket_dir=sys.argv[1]) as feed:
            try:
                threading.Thread(target=tell, args=(feed,)).start()
                feed.next()
            except KeyboardInterrupt:
                print("interrupted, taken", feed.stats().taken, flush=True)
        """,
        str(fake.directory),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (out, child.returncode) == ("interrupted, taken 0\n", 0), err


def test_ctrl_c_ends_a_wait_for_a_feed_that_is_not_there(tmp_path: Path) -> None:
    child = run_python(
        """
        import sys, ringfeed
        try:
            print("waiting", flush=True)
            ringfeed.attach("absent", socket_dir=sys.argv[1], attach_timeout_s=None)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
        str(tmp_path),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (out, child.returncode) == ("interrupted\n", 0), err


def test_ctrl_c_at_any_moment_loses_no_claim(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "4")
    fake.tell("publish 100000")
    with fake.attach() as feed:
        before = signal.getsignal(signal.SIGALRM)

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        interrupted = 0
        try:
            while interrupted < 200:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.00001 * interrupted)
                    while True:
                        feed.next().release()
                except KeyboardInterrupt:
                    interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        gc.collect()
        stats = feed.stats()
        assert stats.held == 0 and stats.taken == stats.done > 0


def test_waiting_lets_other_threads_run(make_feed: MakeFeed) -> None:
    fake = make_feed()
    with fake.attach() as feed:
        got: list[int] = []
        waiter = threading.Thread(target=lambda: got.append(feed.next().seq))
        waiter.start()
        # This thread needs the interpreter to tell the feed to publish: were the GIL held, never.
        fake.tell("publish 1")
        waiter.join(PATIENCE_S)
        assert got == [1]


def test_close_wakes_threads_that_wait(make_feed: MakeFeed) -> None:
    fake = make_feed()
    feed = fake.attach(timeout_s=None)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            feed.next()
        except ringfeed.RingfeedError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while feed.stats().waits == 0:
        pass
    feed.close()
    waiter.join(PATIENCE_S)
    assert [type(error) for error in raised] == [ringfeed.FeedDetached]


def test_a_forked_child_has_no_part_in_the_feed_and_releases_nothing(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 2")
    with fake.attach() as feed:
        batch = feed.next()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                feed.next()
            except ringfeed.ForkedFeed:
                batch.release()
                feed.close()
                del batch, feed
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert feed.stats().held == 1 and feed.stats().done == 0
        np.testing.assert_array_equal(batch["x"], rows_of(1, 4))
        assert feed.next().seq == 2


def test_a_killed_trainers_batch_comes_again_with_a_try_more(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 2")
    fake.tell("close")
    child = run_python(
        """
        import os, sys, ringfeed
        feed = ringfeed.attach("fake", socket_dir=sys.argv[1])
        batch = feed.next()
        print(batch.seq, flush=True)
        os.kill(os.getpid(), 9)
        """,
        str(fake.directory),
    )
    out, _ = child.communicate(timeout=PATIENCE_S)
    assert (out, child.returncode) == ("1\n", -signal.SIGKILL)
    fake.wait_until_members(0)
    with fake.attach() as feed:
        assert [(batch.seq, batch.tries) for batch in feed] == [(1, 1), (2, 0)]


@pytest.mark.parametrize(
    ("body", "again"),
    [
        # The last batch is still in a variable when the program ends; it has been worked on.
        ("for batch in feed: pass", []),
        ("batch = feed.next(); feed.next().release()", [(3, 0)]),
        # An exception ended the work on it.
        ("batch = feed.next(); raise SystemExit(0)", [(1, 1), (2, 0), (3, 0)]),
    ],
)
def test_what_a_finished_program_held_is_not_delivered_again(
    make_feed: MakeFeed, body: str, again: list[tuple[int, int]]
) -> None:
    fake = make_feed("--slots", "4")
    fake.tell("publish 3")
    fake.tell("close")
    fake.wait_until_published(3)
    child = run_python(
        f"""
        import sys, ringfeed
        with ringfeed.attach("fake", socket_dir=sys.argv[1]) as feed:
            {body}
        """,
        str(fake.directory),
    )
    _, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0, err
    fake.wait_until_members(0)
    with fake.attach() as feed:
        got = [(batch.seq, batch.tries) for batch in feed]
    assert got == again


# ---- the loader ----


class FakeProgram:
    """A `ringfeed` that notes its arguments and does what a test says."""

    def __init__(self, directory: Path, body: str) -> None:
        program = directory / "ringfeed"
        program.write_text("#!/bin/sh\n" + textwrap.dedent(body))
        program.chmod(0o755)


@pytest.fixture
def program_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RINGFEED_BIN_DIR", str(tmp_path))
    return tmp_path


# Serves a fake feed under the private name, in the private directory, like `ringfeed run FILE
# --set feed=loader --set control.directory=DIR`.
SERVE = f"""
cp "$2" "$(dirname "$0")/given-$(basename "$2")"
directory=${{6#control.directory=}}
mkfifo "$directory/commands"
(echo publish 3; echo close) > "$directory/first"
exec 3<>"$directory/commands"
cat "$directory/first" >&3
exec {BUILD}/bin/fake_feed --dir "$directory" --feed "${{4#feed=}}" <&3
"""


def test_a_loader_starts_a_private_feed_and_ends_it(program_dir: Path) -> None:
    FakeProgram(program_dir, SERVE)
    loader = ringfeed.DataLoader("seed: 7", timeout_s=PATIENCE_S)
    loader.add_stage('name: "a"')
    loader.start(timeout_s=PATIENCE_S)
    assert list(loader.schema) == ["x", "id", "flags"]
    pid = loader.feed.stats().supervisor_pid
    seen = [int(number[0]) for _, number, _ in loader]
    assert seen == [1, 2, 3]
    with pytest.raises(ringfeed.FeedEnd):
        loader.get_next()
    loader.stop()
    loader.stop()
    assert not runs(pid)
    assert (program_dir / "given-loader.textproto").read_text() == 'seed: 7\nstages {\nname: "a"\n}'
    with pytest.raises(ringfeed.FeedDetached):
        loader.get_next()


def test_a_refused_configuration_is_an_exception_with_all_that_was_said(program_dir: Path) -> None:
    FakeProgram(program_dir, "echo \"a:1:1: stage 'x': wrong; do this\" >&2; exit 3")
    loader = ringfeed.DataLoader("feed: 'x'")
    with pytest.raises(ringfeed.InvalidConfiguration, match="stage 'x': wrong; do this"):
        loader.start(timeout_s=PATIENCE_S)


def test_a_supervisor_that_dies_is_a_failed_feed(program_dir: Path) -> None:
    FakeProgram(program_dir, "echo no memory >&2; exit 1")
    with pytest.raises(ringfeed.FeedFailed, match="status 1: no memory"):
        ringfeed.DataLoader("feed: 'x'").start(timeout_s=PATIENCE_S)


def test_a_loader_takes_bytes_and_json(program_dir: Path) -> None:
    FakeProgram(program_dir, SERVE)
    with ringfeed.DataLoader(b"\x58\x07", timeout_s=PATIENCE_S) as loader:
        loader.get_next()
    assert (program_dir / "given-loader.binpb").read_bytes() == b"\x58\x07"
    loader = ringfeed.DataLoader('{"seed": 7, "stages": [{"name": "a"}]}', timeout_s=PATIENCE_S)
    loader.add_stage('{"name": "b"}')
    with loader:
        loader.get_next()
    given = (program_dir / "given-loader.json").read_text()
    assert '"seed": 7' in given and given.index('"a"') < given.index('"b"')


def test_serialized_stages_become_field_1_of_the_whole(program_dir: Path) -> None:
    loader = ringfeed.DataLoader(b"\x58\x07")
    loader.add_stage(b"\x0a\x01a")
    assert loader._config_file() == (b"\x58\x07\x0a\x03\x0a\x01a", ".binpb")


def test_serialized_pieces_that_are_cut_short_are_refused_where_they_are_added() -> None:
    loader = ringfeed.DataLoader(b"\x58\x07")
    # A stage's field that claims two bytes more: it would take them from the stage behind it.
    with pytest.raises(
        ringfeed.InvalidConfiguration, match="9 bytes are not a serialized DataLoaderConfig"
    ):
        loader.add_stages(b"\x58\x07\x0a\x07\x0a\x03abc")
    with pytest.raises(ringfeed.InvalidConfiguration, match="not a serialized StageConfig"):
        loader.add_stage(b"\x0a\x05abc")
    assert loader._config_file() == (b"\x58\x07", ".binpb"), "what was refused is not kept"


def test_configurations_of_different_forms_are_not_mixed() -> None:
    loader = ringfeed.DataLoader("seed: 7")
    loader.add_stage(b"\x0a\x01a")
    with pytest.raises(ringfeed.InvalidConfiguration, match="as bytes and as text"):
        loader.start()
    with pytest.raises(ringfeed.InvalidConfiguration, match="not a int"):
        loader.add_stage(7)
    with pytest.raises(ringfeed.InvalidConfiguration, match="no stages"):
        ringfeed.DataLoader().start()


def test_python_m_ringfeed_is_the_program(program_dir: Path) -> None:
    FakeProgram(program_dir, 'echo "$@"; exit 3')
    child = run_python("import runpy; runpy.run_module('ringfeed', run_name='__main__')")
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (out, child.returncode) == ("\n", 3), err
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "pyclient"))
    run = subprocess.run(
        [sys.executable, "-m", "ringfeed", "run", "a b"], env=environment, capture_output=True
    )
    assert (run.stdout, run.returncode) == (b"run a b\n", 3)
