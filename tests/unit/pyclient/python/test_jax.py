"""A feed for JAX: arrays that share the slot where JAX can, and hold it while they live.

The feed is real shared memory (tests/support/fakes/fake_feed.py). JAX runs on the CPU here, where it makes
arrays over host memory without copying: the case in which a slot could be rewritten under an array.
"""

# flake8: noqa: F811

from __future__ import annotations

import gc
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tests.support.fakes.fake_feed import (  # noqa: E402, F401
    PATIENCE_S,
    ROOT,
    MakeFeed,
    make_feed,
    rows_of,
    run_python,
)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax", reason="no JAX: scripts/test --with-frameworks has it")

import jax.numpy as jnp  # noqa: E402
import ringfeed  # noqa: E402
from ringfeed.jax import expand_planes, expand_policy, iterate, widen_tokens  # noqa: E402

from tests.support.makers.compact_tokens import compact_batch, wide_batch  # noqa: E402

# As PATIENCE_S, for programs that import JAX, which takes a while on a busy machine.
PROGRAM_S = 10 * PATIENCE_S
VIEWS = ["readonly", "private", "copy"]


def held(feed: ringfeed.Feed) -> int:
    """Slots that are held once JAX has let go of what nobody has any more."""
    gc.collect()
    return feed.stats().held


def planes_of(bits: np.ndarray) -> np.ndarray:
    """What expand_planes() must give, a square at a time."""
    planes = np.zeros((len(bits), 112, 8, 8), np.float32)
    for row, plane, rank, file in np.ndindex(*planes.shape):
        planes[row, plane, rank, file] = int(bits[row, plane]) >> (8 * rank + 7 - file) & 1
    planes[:, 109] = bits[:, 109].astype(np.uint32).view(np.float32)[:, None, None]
    return planes


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_planes_are_made_of_bits(dtype: Any) -> None:
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2**64, (3, 112), dtype=np.uint64)
    bits[:, 109] = (np.arange(3, dtype=np.float32) / np.float32(99)).view(np.uint32)
    wanted = jnp.asarray(planes_of(bits)).astype(dtype)
    assert (expand_planes(bits, dtype) == wanted).all()
    halves = jnp.asarray(bits.view(np.uint32).reshape(3, 112, 2))
    inside = jax.jit(lambda words: expand_planes(words, dtype))(halves)
    assert inside.dtype == dtype and (inside == wanted).all()
    with jax.enable_x64(True):
        assert (expand_planes(jnp.asarray(bits), dtype) == wanted).all()
    for wrong in (bits.astype(np.uint32), bits[:, :100], halves[:, :, 0]):
        with pytest.raises(ValueError, match="takes uint64"):
            expand_planes(wrong)


def test_policy_is_made_of_its_entries() -> None:
    rng = np.random.default_rng(3)
    dense = np.full((4, 1858), -1, np.float32)
    dense[3] = 0
    indices = np.full((4, 30), 1858, np.int16)
    values = np.repeat(dense[:, :1], 30, axis=1)
    for row, entries in enumerate((30, 0, 17, 5)):
        moves = np.sort(rng.choice(1858, entries, replace=False))
        indices[row, :entries] = moves
        values[row, :entries] = dense[row, moves] = rng.random(entries, np.float32)
    filler = dense[:, 0] * 0 + np.array([-1, -1, -1, 0], np.float32)
    got = jax.jit(expand_policy)(indices, values, filler)
    assert np.asarray(got).tobytes() == dense.tobytes()


@pytest.mark.parametrize("variations", [False, True])
def test_tokens_are_widened(variations: bool) -> None:
    compact, wanted = compact_batch(variations), wide_batch(variations)

    def check(widened: dict[str, Any]) -> None:
        assert set(widened) == set(wanted)
        for name, array in wanted.items():
            dtype = np.int32 if array.dtype == np.int64 and not jax.config.jax_enable_x64 else None
            assert isinstance(widened[name], jax.Array)
            assert widened[name].dtype == (dtype or array.dtype), name
            np.testing.assert_array_equal(widened[name], array)

    for x64 in (False, True):
        with jax.enable_x64(x64):
            arrays = {name: jnp.asarray(array) for name, array in compact.items()}
            check(widen_tokens(compact))
            check(widen_tokens(arrays))
            check(jax.jit(widen_tokens)(arrays))
            check(widen_tokens(wanted))


def test_what_is_no_batch_of_tokens_is_not_widened() -> None:
    compact = compact_batch(True)
    with pytest.raises(ValueError, match="this one has .'planes'"):
        widen_tokens({"planes": compact["wl_targets"]})
    for name in ("input_ids", "board_target_ids", "variation_epoch"):
        with pytest.raises(ValueError, match=f"takes {name} as int.*, not float32"):
            widen_tokens({**compact, name: compact[name].astype(np.float32)})


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("copy", [False, True])
def test_batches_are_dictionaries_of_arrays(make_feed: MakeFeed, view: str, copy: bool) -> None:
    fake = make_feed("--slots", "3")
    fake.tell("publish 20")
    fake.tell("close")
    with fake.attach(view=view) as feed:
        seen = []
        for batch in iterate(feed, copy=copy):
            assert list(batch) == ["x", "id", "flags"]
            assert all(isinstance(array, jax.Array) for array in batch.values())
            assert [a.dtype for a in batch.values()] == [jnp.float32, jnp.int32, jnp.uint8]
            seen.append(int(batch["id"][0]))
            np.testing.assert_array_equal(batch["x"], rows_of(seen[-1], 4))
        assert seen == list(range(1, 21))
        del batch
        assert held(feed) == 0


@pytest.mark.parametrize("view", ["readonly", "private"])
def test_an_array_over_the_slot_holds_it(make_feed: MakeFeed, view: str) -> None:
    fake = make_feed("--slots", "3", "--max-hold", "3")
    fake.tell("publish 30")
    fake.tell("close")
    with fake.attach(view=view) as feed:
        batches = iterate(feed)
        kept = next(batches)["x"]
        start, size = 0, 0
        if view == "readonly":
            start, size = feed._handle.payload()
            assert start <= kept.unsafe_buffer_pointer() < start + size, "no copy was made"
        assert held(feed) == 1
        assert [int(batch["id"][0]) for batch in batches] == list(range(2, 31))
        np.testing.assert_array_equal(kept, rows_of(1, 4))
        del kept
        assert held(feed) == 0


def test_a_copied_batch_gives_its_slot_back_at_once(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "1", "--max-hold", "1")
    fake.tell("publish 5")
    fake.tell("close")
    with fake.attach() as feed:
        kept = []
        for batch in iterate(feed, copy=True):
            assert feed.stats().held == 0
            kept.append(batch["x"])
        for seq, array in enumerate(kept, 1):
            np.testing.assert_array_equal(array, rows_of(seq, 4))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("view", ["readonly", "private"])
def test_a_slot_is_never_rewritten_while_an_array_over_it_lives(
    make_feed: MakeFeed, seed: int, view: str
) -> None:
    """Arrays, slices, results and NumPy views of arrays are kept for random times; all that is kept
    is looked at after each batch."""
    chance = random.Random(seed)
    fake = make_feed("--slots", "4", "--max-hold", "4", "--rows", "400")
    fake.tell("publish 200")
    fake.tell("close")
    twice = jax.jit(lambda x: x * 2)
    kept: list[tuple[Any, np.ndarray]] = []
    seen = []
    with fake.attach(view=view) as feed:
        batches = iterate(feed)
        while True:
            while len(kept) > 2:
                kept.pop(chance.randrange(len(kept)))
            batch = next(batches, None)
            if batch is None:
                break
            seq = int(batch["id"][0])
            seen.append(seq)
            wanted = rows_of(seq, 400)
            if chance.random() < 0.5:
                kept.append((batch["x"], wanted))
            if chance.random() < 0.3:
                kept.append((np.asarray(batch["x"])[::2], wanted[::2]))
            if chance.random() < 0.3:
                kept.append((twice(batch["x"]), wanted * 2))
            if chance.random() < 0.3:
                kept.append((batch["flags"], np.full((400, 2), seq % 256, np.uint8)))
            del batch
            for thing, now in kept:
                np.testing.assert_array_equal(thing, now)
            thing = None
        kept.clear()
    assert seen == list(range(1, 201))


def test_work_that_nobody_waits_for_is_no_hoard(make_feed: MakeFeed) -> None:
    """Each batch is dropped while computations on it may be under way."""
    fake = make_feed("--slots", "2", "--max-hold", "2", "--rows", "400")
    fake.tell("publish 60")
    fake.tell("close")

    @jax.jit
    def long_work(x: jax.Array) -> jax.Array:
        square = x @ x.T
        return jax.lax.fori_loop(0, 5, lambda _, y: y @ square * 1e-12 + square, square).sum()

    with fake.attach() as feed:
        results = [long_work(batch["x"]) for batch in iterate(feed)]
        assert len(results) == 60
        for seq in (1, 60):
            expected = long_work(jnp.asarray(rows_of(seq, 400)))
            np.testing.assert_allclose(results[seq - 1], expected, rtol=1e-5)


def test_hoarding_arrays_is_an_exception(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "2", "--max-hold", "2")
    fake.tell("publish 5")
    with fake.attach() as feed:
        hoard = []
        with pytest.raises(ringfeed.SlotsExhausted, match="holds 2 of 2 slots"):
            for batch in iterate(feed):
                hoard.append(batch["x"])
        assert len(hoard) == 2
        hoard.clear()
        del batch
        assert int(next(iterate(feed))["id"][0]) == 3


def test_giving_a_shared_array_away_for_reuse_harms_nobody(make_feed: MakeFeed) -> None:
    """donate_argnums lets XLA write results into an argument's memory; here it is a feed's."""
    fake = make_feed("--slots", "2", "--rows", "400")
    fake.tell("publish 1")
    fake.wait_until_published(1)
    with fake.attach(group="witness") as feed:
        batch = feed.next()
        child = run_python(
            """
            import sys, warnings, jax, ringfeed
            from ringfeed.jax import iterate
            warnings.simplefilter("ignore")  # that some were not usable
            give_away = jax.jit(lambda x: x + 1, donate_argnums=0)
            with ringfeed.attach("fake", "giver", socket_dir=sys.argv[1]) as feed:
                x = next(iterate(feed))["x"]
                print(float(give_away(x)[1, 1]))
            """,
            str(fake.directory),
        )
        out, err = child.communicate(timeout=PROGRAM_S)
        assert (out, child.returncode) == ("1005.0\n", 0), err
        np.testing.assert_array_equal(batch["x"], rows_of(1, 400))


def test_batches_go_to_the_device_or_the_sharding_that_is_asked_for(make_feed: MakeFeed) -> None:
    fake = make_feed("--rows", "8")
    fake.tell("publish 4")
    child = run_python(
        """
        import os, sys
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        import jax, numpy as np, ringfeed
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        from ringfeed.jax import iterate
        rows = np.arange(24, dtype=np.float32).reshape(8, 3)
        with ringfeed.attach("fake", socket_dir=sys.argv[1]) as feed:
            x = next(iterate(feed, device=jax.devices()[2]))["x"]
            print(x.devices() == {jax.devices()[2]})
            sharding = NamedSharding(Mesh(jax.devices(), ("batch",)), PartitionSpec("batch"))
            x = next(iterate(feed, device=sharding))["x"]
            print(x.sharding == sharding, [s.data.shape for s in x.addressable_shards])
            print(np.array_equal(x, rows + 2000), feed.stats().held)
        """,
        str(fake.directory),
    )
    out, err = child.communicate(timeout=PROGRAM_S)
    assert child.returncode == 0, err
    assert out.splitlines()[:2] == ["True", "True [(2, 3), (2, 3), (2, 3), (2, 3)]"]
    assert out.splitlines()[2].startswith("True ")


def test_a_training_step_learns_from_a_feed(make_feed: MakeFeed) -> None:
    fake = make_feed("--slots", "3", "--rows", "32")
    fake.tell("publish 60")
    fake.tell("close")

    def loss(weights: Any, batch: Any) -> jax.Array:
        x = (batch["x"] - 1000.0 * batch["id"][:, None]) / 100
        return ((x @ weights - x.sum(1)) ** 2).mean()

    @jax.jit
    def step(weights: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, batch)
        return weights - 0.2 * gradient, value

    weights, values = jnp.zeros(3), []
    with fake.attach() as feed:
        for batch in iterate(feed):
            weights, value = step(weights, batch)
            values.append(float(value))
    assert len(values) == 60 and values[-1] < 0.05 * values[0]
