"""Lengths that vary from batch to batch, and arrays that have no row for each row of a batch.

    tokens  int32 [rows, ragged 1]     room for 24
    pairs   int64 [ragged 0, 2]        room for 12
    total   int64 [2]

is what batches of these tests look like, unless a test says otherwise.
"""

# flake8: noqa: F811

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import ringfeed  # noqa: E402
from ringfeed import Tensor  # noqa: E402

from tests.support.fakes.fake_feed import (  # noqa: E402, F401
    PATIENCE_S,
    FakeFeed,
    Layout,
    MakeFeed,
    make_feed,
    run_python,
)

LAYOUT = Layout(
    tokens=("int32", (-1, -3), 24),
    pairs=("int64", (-2, 2), 12),
    total=("int64", (2,), 2),
)
# Rows, ragged 0, ragged 1: wide and few, narrow and many, without rows, without width.
SIZES = [(2, 6, 12), (8, 1, 3), (0, 3, 5), (4, 0, 1), (3, 2, 0)]


def arrays_of(rows: int, pairs: int, width: int) -> dict[str, np.ndarray]:
    return {
        "tokens": np.arange(rows * width, dtype=np.int32).reshape(rows, width) + 100,
        "pairs": np.arange(2 * pairs, dtype=np.int64).reshape(pairs, 2) - 5,
        "total": np.array([rows, width], np.int64),
    }


@pytest.fixture
def fake(make_feed: MakeFeed) -> FakeFeed:
    return make_feed("--rows", "8", *LAYOUT.options)


def publish(fake: FakeFeed, sizes: list[tuple[int, int, int]] = SIZES) -> None:
    for rows, pairs, width in sizes:
        fake.publish(LAYOUT, arrays_of(rows, pairs, width), rows, (pairs, width))
    fake.tell("close")


# ---- shapes ----


def test_a_shape_follows_from_the_rows_and_lengths_of_a_batch() -> None:
    tensor = Tensor("t", np.dtype("<i4"), (-1, 3, -4, -2), 0, 4096, "int32")
    assert tensor.shape_of(7, (10, 11, 12)) == (7, 3, 12, 10)
    assert str(tensor) == "t: int32[B, 3, S2, S0]"
    assert tensor.has_rows and tensor.varies
    with pytest.raises(ringfeed.InvalidRequest, match="2 are given: give batch.ragged"):
        tensor.shape_of(7, (10, 11))
    fixed = Tensor("t", np.dtype("<i4"), (6,), 0, 24, "int32")
    assert fixed.shape_of(7) == (6,) and not fixed.has_rows and not fixed.varies


def test_a_schema_says_what_varies(fake: FakeFeed) -> None:
    with fake.attach() as feed:
        assert feed.schema["tokens"].shape == (-1, -3) and feed.schema["total"].shape == (2,)
        assert feed.schema.varies
        assert repr(feed.schema) == (
            "Schema(tokens: int32[B, S1], pairs: int64[S0, 2], total: int64[2]; rows_max=8)"
        )


@pytest.mark.parametrize("view", ["readonly", "private", "copy"])
def test_every_batch_has_arrays_of_its_own_shapes(fake: FakeFeed, view: str) -> None:
    publish(fake)
    with fake.attach(view=view) as feed:
        for batch, (rows, pairs, width) in zip(feed, SIZES, strict=True):
            assert (batch.rows, batch.ragged[:3]) == (rows, (pairs, width, 0))
            for name, expected in arrays_of(rows, pairs, width).items():
                np.testing.assert_array_equal(batch[name], expected, strict=True)
                assert batch[name].flags.writeable == (view != "readonly")
        assert feed.end_reason is not None


def test_copies_have_the_shapes_of_their_batch(fake: FakeFeed) -> None:
    publish(fake)
    with fake.attach() as feed:
        copies = [batch.copy() for batch in feed]
    for copied, sizes in zip(copies, SIZES, strict=True):
        for name, expected in arrays_of(*sizes).items():
            np.testing.assert_array_equal(copied[name], expected, strict=True)


# ---- what does not fit ----


@pytest.mark.parametrize(
    ("sizes", "tensor"), [((3, 0, 9), "tokens"), ((1, 7, 1), "pairs"), ((8, 1, 2**31), "tokens")]
)
def test_a_batch_that_claims_more_than_fits_is_damaged_and_the_next_one_comes(
    fake: FakeFeed, sizes: tuple[int, int, int], tensor: str
) -> None:
    rows, pairs, width = sizes
    fake.publish(LAYOUT, {}, rows, (pairs, width))
    publish(fake)
    with fake.attach() as feed:
        with pytest.raises(ringfeed.FeedDamaged, match=f"batch 1: tensor {tensor} "):
            feed.next()
        assert feed.stats().held == 0
        assert [batch.seq for batch in feed] == [2, 3, 4, 5, 6]


def test_a_dtype_that_the_c_library_does_not_know_is_looked_at_too(make_feed: MakeFeed) -> None:
    layout = Layout(wide=("complex128", (-2,), 4))
    fake = make_feed(*layout.options)
    fake.publish(layout, {}, 1, (5,))
    fake.publish(layout, {"wide": np.full(4, 2j)}, 1, (4,))
    with fake.attach() as feed:
        with pytest.raises(ringfeed.FeedDamaged, match=r"shape \[5\].*64 bytes.*is skipped"):
            feed.next()
        gc.collect()
        np.testing.assert_array_equal(feed.next()["wide"], np.full(4, 2j))
    for shape in ((5,), (-1, 2)):
        fake = make_feed(*Layout(wide=("complex128", shape, 4)).options, name=f"f{shape[0]}")
        with pytest.raises(ringfeed.IncompatibleFeed, match="wide of shape .* does not fit 64 "):
            fake.attach()


@pytest.mark.parametrize("shape", [(-18,), (-2, -1), (2, 2, 7)])
def test_a_schema_that_cannot_be_is_refused(make_feed: MakeFeed, shape: tuple[int, ...]) -> None:
    fake = make_feed(*Layout(t=("int32", shape, 27)).options)
    with pytest.raises(ringfeed.IncompatibleFeed, match="tensor t"):
        fake.attach()


# ---- frameworks ----


@pytest.mark.parametrize("view", ["readonly", "private", "copy"])
def test_tensors_have_the_shapes_of_their_batch(fake: FakeFeed, view: str) -> None:
    torch = pytest.importorskip("torch")
    publish(fake)
    with fake.attach(view=view) as feed:
        for batch, sizes in zip(feed, SIZES, strict=True):
            for tensors in (batch.torch(), batch.torch(copy=True), batch.to("cpu")):
                for name, expected in arrays_of(*sizes).items():
                    assert tensors[name].shape == expected.shape
                    assert torch.equal(tensors[name], torch.from_numpy(expected))


def test_loaders_for_pytorch_give_such_batches(fake: FakeFeed) -> None:
    pytest.importorskip("torch")
    import torch.utils.data
    from ringfeed.torch import FeedDataset, FeedLoader

    options = {"timeout_s": PATIENCE_S, "socket_dir": fake.directory, "ranked": False}
    dataset = FeedDataset("fake", "b", **options)
    loaded = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)
    with FeedLoader("fake", "a", **options) as loader:
        publish(fake, SIZES[:4])
        seen = [{name: t.clone() for name, t in batch.items()} for batch in loader]
    for batch, again, sizes in zip(seen, loaded, SIZES[:4], strict=True):
        for name, expected in arrays_of(*sizes).items():
            assert torch.equal(batch[name], torch.from_numpy(expected))
            assert torch.equal(again[name], batch[name])
    dataset.feed.close()


def test_arrays_of_jax_have_the_shapes_of_their_batch(fake: FakeFeed) -> None:
    pytest.importorskip("jax", reason="no JAX: scripts/test --with-frameworks has it")
    fake.attach(group="b").close()  # it stays, so that it may be read a second time
    publish(fake, SIZES[:4])
    # JAX has threads, and tests of this process fork: a process of its own.
    child = run_python(
        """
        import os, sys
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        import jax, numpy as np, ringfeed
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        from ringfeed.jax import iterate
        sharding = NamedSharding(Mesh(jax.devices(), ("batch",)), PartitionSpec("batch"))
        with ringfeed.attach("fake", "a", socket_dir=sys.argv[1], timeout_s=60) as feed:
            for batch in iterate(feed):
                print([batch[name].shape for name in batch], int(batch["total"].sum()))
        with ringfeed.attach("fake", "b", socket_dir=sys.argv[1], timeout_s=60) as feed:
            batch = next(iterate(feed, device=sharding))
            for array in batch.values():
                print([s.data.shape for s in array.addressable_shards])
            print(int(batch["tokens"][1, 0]), batch["pairs"][0].tolist(), batch["total"].tolist())
        """,
        str(fake.directory),
    )
    out, err = child.communicate(timeout=10 * PATIENCE_S)
    assert child.returncode == 0, err
    lines = out.splitlines()
    for line, (rows, pairs, width) in zip(lines, SIZES[:4]):
        assert line == f"{[(rows, width), (pairs, 2), (2,)]} {rows + width}"
    assert lines[4:] == [
        "[(1, 12), (1, 12)]",
        "[(6, 2), (6, 2)]",
        "[(2,), (2,)]",
        "112 [-5, -4] [2, 12]",
    ]


TEXTS = Layout(text=("uint8", (-2,), 40), text_offsets=("int64", (-3,), 5))
ROWS = ["été", "", "😀 b", "x"]


def texts(offsets: list[int], whole: bytes) -> dict[str, np.ndarray]:
    return {
        "text": np.frombuffer(whole, np.uint8),
        "text_offsets": np.array(offsets, np.int64),
    }


def test_texts_are_what_their_offsets_mean(make_feed: MakeFeed) -> None:
    fake = make_feed("--rows", "4", *TEXTS.options)
    raw = [row.encode() for row in ROWS]
    ends = [0, *np.cumsum([len(row) for row in raw]).tolist()]
    whole = b"".join(raw)
    published = [
        (4, ends, whole),
        (0, [0], b""),
        (1, [1, 3], b"\xffab"),  # what lies before the first one is nobody's
        (1, [0, 1], b"\xff"),
        (1, [0, 2], b"a"),
        (2, [0, 2, 1], b"ab"),
        (1, [-1, 1], b"a"),
    ]
    for rows, offsets, content in published:
        arrays = texts(offsets, content)
        fake.publish(TEXTS, arrays, rows, (len(content), len(offsets)))
    fake.tell("close")
    with fake.attach(timeout_s=PATIENCE_S) as feed:
        batch = next(feed)
        assert batch.strings("text") == ROWS
        assert batch.bytes("text") == raw
        with pytest.raises(KeyError):
            batch.strings("text_offsets")
        assert next(feed).strings("text") == []
        assert next(feed).strings("text") == ["ab"]
        batch = next(feed)
        assert batch.bytes("text") == [b"\xff"]
        with pytest.raises(ringfeed.FeedDamaged, match="no UTF-8"):
            batch.strings("text")
        for _ in range(3):
            with pytest.raises(ringfeed.FeedDamaged, match="lead out of it"):
                next(feed).strings("text")
