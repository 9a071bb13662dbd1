"""What the arrays of a batch are: read-only, private or copies, and that none of them is ever
overwritten by the feed, nor the feed by them."""

# flake8: noqa: F811

from __future__ import annotations

import gc
import random
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import ringfeed  # noqa: E402

from tests.support.fakes import try_to_write  # noqa: E402
from tests.support.fakes.fake_feed import (  # noqa: E402, F401
    PATIENCE_S,
    ROOT,
    FakeFeed,
    MakeFeed,
    make_feed,
    rows_of,
    run_python,
)

# Rows that fill several pages, so that some of a slot's pages are written and some are not.
WIDE = 2000


# ---- private ----


def test_private_arrays_may_be_written_and_share_the_memory(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach(view="private") as feed:
        assert feed.view == "private"
        batch = feed.next()
        assert batch.view == "private"
        x = batch["x"]
        assert x.flags.writeable and not x.flags.owndata and x.ctypes.data % 64 == 0
        x *= 2
        np.testing.assert_array_equal(batch["x"], 2 * rows_of(1, 4))
        assert feed.stats().held == 1
        del batch, x
        assert feed.stats().held == 0


def test_a_batch_is_changed_in_place_and_its_arrays_are_not_replaced(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 2")
    with fake.attach(view="private") as feed:
        batch = feed.next()
        array = batch["x"]
        batch["x"] *= 2
        assert batch["x"] is array
        np.testing.assert_array_equal(array, 2 * rows_of(1, 4))
        with pytest.raises(
            TypeError, match=r"write into a writable one.*batch\['x'\]\[\.\.\.\] = value"
        ):
            batch["x"] = np.zeros(3)
    with fake.attach() as feed:
        batch = feed.next()
        with pytest.raises(ValueError, match="read-only"):
            batch["x"] *= 2


def test_what_a_trainer_writes_is_seen_by_no_other(make_feed: MakeFeed) -> None:
    fake = make_feed("--rows", str(WIDE))
    fake.tell("publish 1")
    with (
        fake.attach(group="writer", view="private") as writer,
        fake.attach(group="other", view="private") as other,
        fake.attach(group="reader") as reader,
    ):
        written, untouched, read = writer.next(), other.next(), reader.next()
        for array in written.values():
            array[:] = 0
        other_x = untouched["x"]
        other_x[0, 0] = -1
        assert written["x"][0, 0] == 0
        np.testing.assert_array_equal(other_x[1:], rows_of(1, WIDE)[1:])
        np.testing.assert_array_equal(read["x"], rows_of(1, WIDE))
        np.testing.assert_array_equal(read["id"], np.ones(WIDE, np.int64))
    # Another process too.
    child = run_python(
        """
        import sys, ringfeed
        with ringfeed.attach("fake", "child", socket_dir=sys.argv[1]) as feed:
            batch = feed.next(30)
            print(float(batch["x"][0, 0]), float(batch["x"].sum()))
        """,
        str(fake.directory),
    )
    out, err = child.communicate(timeout=PATIENCE_S)
    assert out == f"1000.0 {float(rows_of(1, WIDE).sum())}\n", err


@pytest.mark.parametrize("places", [slice(None), slice(700, 701)], ids=["all", "a row"])
def test_a_later_batch_in_the_same_slot_shows_its_own_bytes(
    make_feed: MakeFeed, places: slice
) -> None:
    fake = make_feed("--slots", "1", "--max-hold", "1", "--rows", str(WIDE))
    fake.tell("publish 30")
    with fake.attach(view="private") as feed:
        for seq in range(1, 31):
            batch = feed.next()
            assert (batch.seq, batch.slot) == (seq, 0)
            np.testing.assert_array_equal(batch["x"], rows_of(seq, WIDE))
            np.testing.assert_array_equal(batch["id"], np.full(WIDE, seq))
            batch["x"][places] = -seq
            batch["id"][places] = -seq
            np.testing.assert_array_equal(batch["x"][places], -seq)
            del batch


def test_a_private_array_that_lives_keeps_what_was_written(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "3", "--max-hold", "3", "--rows", str(WIDE))
    fake.tell("publish 50")
    fake.tell("close")
    with fake.attach(view="private") as feed:
        batch = feed.next()
        kept = batch["x"]
        kept += 1
        batch.release()
        assert [other.seq for other in map(written_over, feed)] == list(range(2, 51))
        np.testing.assert_array_equal(kept, rows_of(1, WIDE) + 1)


def written_over(batch: ringfeed.Batch) -> ringfeed.Batch:
    np.testing.assert_array_equal(batch["x"], rows_of(batch.seq, batch.rows))
    batch["x"][:] = -1
    return batch


def test_copy_of_a_private_batch_is_of_what_was_written(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    with fake.attach(view="private") as feed:
        batch = feed.next()
        batch["x"][:] = 5
        copies = batch.copy()
        assert feed.stats().held == 0
        np.testing.assert_array_equal(copies["x"], np.full((4, 3), 5, np.float32))
        np.testing.assert_array_equal(copies["id"], np.ones(4, np.int64))


# ---- copy ----


def test_copied_batches_own_their_memory_and_give_the_slot_back_at_once(
    make_feed: MakeFeed,
) -> None:
    fake = make_feed("--slots", "1", "--max-hold", "1")
    fake.tell("publish 10")
    fake.tell("close")
    with fake.attach(view="copy") as feed:
        batches = []
        for batch in feed:
            batches.append(batch)
            assert feed.stats().held == 0
        assert [batch.seq for batch in batches] == list(range(1, 11))
        for batch in batches:
            assert all(array.flags.owndata and array.flags.writeable for array in batch.values())
            np.testing.assert_array_equal(batch["x"], rows_of(batch.seq, 4))
            batch["x"][:] = 0
        assert list(batches[0]) == ["x", "id", "flags"] and not batches[0].released
        batches[0].release()
        assert batches[0].released
        with pytest.raises(ringfeed.BatchReleased):
            batches[0]["x"]


def test_a_short_batch_is_copied_short(make_feed: MakeFeed) -> None:
    fake = make_feed("--rows", "8")
    fake.tell("publish 1 3")
    with fake.attach(view="copy") as feed:
        assert [array.shape for array in feed.next().values()] == [(3, 3), (3,), (3, 2)]


# ---- asking for one ----


def test_a_view_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ringfeed.InvalidRequest, match="'shared' is not one of readonly, private, copy"
    ):
        ringfeed.attach("feed", socket_dir=tmp_path, view="shared")
    with pytest.raises(ringfeed.InvalidRequest, match="view='writable'"):
        ringfeed.DataLoader("feed: 'x'", view="writable")


# ---- no array that lives is overwritten ----


class Kept:
    """Something over a batch's memory that a trainer still has, and what it must hold."""

    def __init__(self, chance: random.Random, batch: ringfeed.Batch) -> None:
        name = chance.choice(list(batch))
        array = batch[name]
        if chance.random() < 0.3:
            self.thing: object = array
        elif chance.random() < 0.5:
            self.thing = array[chance.randrange(len(array)) :: chance.randint(1, 3)].T
        elif chance.random() < 0.5:
            self.thing = np.from_dlpack(array)
        else:
            self.thing = memoryview(array)
        if array.flags.writeable and chance.random() < 0.5:
            start = chance.randrange(len(array))
            array[start : start + chance.randint(1, len(array))] = chance.randrange(100)
        self.name = f"batch {batch.seq}, {name}"
        self.wanted = np.array(self.thing)
        # Beside what it held when it was taken: what the feed says that it holds.
        if not array.flags.writeable:
            np.testing.assert_array_equal(array, expected(batch, name))

    def check(self) -> None:
        np.testing.assert_array_equal(np.asarray(self.thing), self.wanted, self.name)


def expected(batch: ringfeed.Batch, name: str) -> np.ndarray:
    if name == "x":
        return rows_of(batch.seq, batch.rows)
    shape = {"id": (batch.rows,), "flags": (batch.rows, 2)}[name]
    return np.full(shape, batch.seq).astype(batch[name].dtype)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_slot_is_never_rewritten_while_anything_over_it_lives(
    make_feed: MakeFeed, seed: int, lanes: int
) -> None:
    """Two groups, few slots, whatever is kept is kept for a random time; all of it is looked at
    after each batch. Private batches are written to as well."""
    chance = random.Random(seed)
    fake = make_feed("--slots", "6", "--lanes", str(lanes), "--rows", "400")
    fake.tell("publish 600")
    fake.tell("close")
    views = ("readonly", "private")
    feeds = [fake.attach(group=view, view=view, max_hold=2) for view in views]
    kept: list[list[Kept]] = [[], []]
    seen: list[list[int]] = [[], []]
    for seq in range(1, 601):
        for i, feed in enumerate(feeds):
            # One slot at least is free for the next batch: what is kept is of one batch.
            while feed.stats().held > 1:
                kept[i].pop(chance.randrange(len(kept[i])))
            batch = feed.next()
            seen[i].append(batch.seq)
            assert batch.seq == seq
            for name in batch:
                np.testing.assert_array_equal(batch[name], expected(batch, name))
            for _ in range(chance.randint(0, 3)):
                kept[i].append(Kept(chance, batch))
            del batch
            if kept[i] and chance.random() < 0.5:
                kept[i].pop(chance.randrange(len(kept[i])))
        # Later writes to a private batch change what was kept of it before.
        for thing in kept[0]:
            thing.check()
    assert seen == [list(range(1, 601))] * 2
    for feed in feeds:
        feed.close()


@pytest.mark.parametrize("seed", range(2))
def test_what_was_written_into_a_private_batch_stays_while_it_lives(
    make_feed: MakeFeed, seed: int
) -> None:
    chance = random.Random(seed)
    fake = make_feed("--slots", "4", "--rows", "400", "--max-hold", "4")
    fake.tell("publish 600")
    fake.tell("close")
    with fake.attach(view="private") as feed:
        alive: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = []
        for seq in range(1, 601):
            while len(alive) == 4:
                alive.pop(chance.randrange(len(alive)))
            batch = feed.next()
            assert batch.seq == seq
            arrays = dict(batch)
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, expected(batch, name))
                if chance.random() < 0.7:
                    start = chance.randrange(len(array))
                    array[start : start + chance.randint(1, len(array))] = chance.randrange(100)
            alive.append((arrays, {name: array.copy() for name, array in arrays.items()}))
            del batch, arrays, array
            if chance.random() < 0.4:
                alive.pop(chance.randrange(len(alive)))
            for arrays, wanted in alive:
                for name, array in arrays.items():
                    np.testing.assert_array_equal(array, wanted[name])
            # What the loop above has left in its variables would hold a slot.
            arrays = wanted = array = None
        alive.clear()


def test_arrays_are_safe_from_collections_of_cycles_too(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "3", "--max-hold", "2", "--rows", "400")
    fake.tell("publish 15")
    fake.tell("close")
    with fake.attach() as feed:
        for batch in feed:
            cycle: list = [batch["x"]]
            cycle.append(cycle)
            view = cycle[0][::2]
            del cycle
            gc.collect()
            np.testing.assert_array_equal(view, rows_of(batch.seq, 400)[::2])


# ---- the kernel refuses ----


def test_a_trainer_cannot_write_to_the_feeds_memory(make_feed: MakeFeed) -> None:
    fake = make_feed()
    fake.tell("publish 1")
    fake.wait_until_published(1)
    with fake.attach(group="witness") as feed:
        batch = feed.next()
        try_to_write.assert_all_refused(fake.name, fake.directory / f"{fake.name}.sock")
        np.testing.assert_array_equal(batch["x"], rows_of(1, 4))
