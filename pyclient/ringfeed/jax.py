"""A feed for JAX: batches as dictionaries of jax.Array.

with ringfeed.attach("lc0", group="run-a") as feed:
    for batch in ringfeed.jax.iterate(feed):     # name -> jax.Array
        state = update(state, batch)
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ImportError(
        "ringfeed.jax needs JAX, which is not installed here: `pip install jax` (see "
        "https://docs.jax.dev for builds with accelerators); NumPy arrays work without it"
    ) from error

from .batch import Batch
from .errors import FeedEnd, SlotsExhausted
from .feed import Feed
from .schema import Schema

__all__ = ["expand_planes", "expand_policy", "iterate", "widen_tokens"]

# How long, and how often, to look for a slot that only a running computation seems to hold. By then
# the results that are still waited for are there.
_PATIENCE_S = 5.0
_LOOK_S = 0.001


def iterate(
    feed: Feed,
    *,
    device: jax.Device | jax.sharding.Sharding | None = None,
    copy: bool = False,
) -> Iterator[dict[str, jax.Array]]:
    """Batches of a feed, name to jax.Array, until the feed ends.

    Dtypes are those of JAX: without ``jax_enable_x64`` int64 becomes int32, and uint64, which holds
    bits, becomes uint32 with one more dimension: (lower half, upper half).

    On the CPU JAX makes arrays over the slot itself if it can. The slot then stays claimed until
    the last of them is gone and the computations that read it are done. For other devices the slot
    stays claimed until JAX has copied it.

    Args:
        feed: The feed. It may be used in other ways too, and stays open.
        device: The target: a device or a sharding; None: JAX's default. If the sharding spans
            processes, each process gives its own batch as its part
            (jax.make_array_from_process_local_data); lengths that vary must then be equal in all of
            them. Arrays without a row for each row of the batch (``Tensor.has_rows``) are whole on
            each device of this process.
        copy: Copy each batch first, and give its slot back at once.
    Raises:
        SlotsExhausted: Too many batches have arrays that still live: let them go, or use copy=True.
        And what Feed.next() raises.
    """
    handed_out = _HandedOut()
    while True:
        try:
            # Without a name, so that a loop holds only what its body holds.
            yield _place(handed_out.next(feed), feed.schema, device, copy, handed_out)
        except FeedEnd:
            return


def _place(
    batch: Batch,
    schema: Schema,
    device: jax.Device | jax.sharding.Sharding | None,
    copy: bool,
    handed_out: _HandedOut,
) -> dict[str, jax.Array]:
    arrays = batch.copy() if copy else batch
    spread, whole = False, device
    if isinstance(device, jax.sharding.Sharding):
        spread, whole = not device.is_fully_addressable, _whole(device)
    placed = {}
    for name in arrays:
        array = arrays[name]
        if array.dtype == np.uint64 and not jax.config.jax_enable_x64:
            array = _halves(array)
        if not schema[name].has_rows:
            placed[name] = jax.device_put(array, whole)
        elif spread:
            placed[name] = jax.make_array_from_process_local_data(device, array)
        else:
            placed[name] = jax.device_put(array, device)
    handed_out.add(batch, placed)
    return placed


def _whole(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
    """A sharding with the whole array on each of this process's devices."""
    devices = np.array(sorted(sharding.addressable_devices, key=lambda device: device.id))
    mesh = jax.sharding.Mesh(devices, ("all",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def _halves(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint32).reshape(*array.shape, 2)


def expand_planes(bits: jax.Array | np.ndarray, dtype: Any = jnp.float32) -> jax.Array:
    """Input planes from their bits (``planes: PLANES_BITS``); may be called inside jax.jit.

    The numbers are those of the feed's own float32 planes, rounded to ``dtype``.

    Args:
        bits: uint64 [rows, 112], or uint32 [rows, 112, 2] as iterate() gives them without
            ``jax_enable_x64``.
        dtype: Dtype of the planes.
    Returns:
        [rows, 112, 8, 8]: rank 1 to 8 of the mover's view, file a to h.
    Raises:
        ValueError: ``bits`` has another shape or dtype.
    """
    if bits.dtype == np.uint64 and bits.ndim == 2:
        words = (
            _halves(np.ascontiguousarray(bits))
            if isinstance(bits, np.ndarray)
            else jax.lax.bitcast_convert_type(bits, jnp.uint32)
        )
    else:
        words = bits
    if words.dtype != np.uint32 or words.ndim != 3 or words.shape[1:] != (112, 2):
        raise ValueError(
            "expand_planes takes uint64 [rows, 112] or uint32 [rows, 112, 2], not "
            f"{bits.dtype} {list(bits.shape)}"
        )
    words = jnp.asarray(words)
    ranks = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(len(words), 112, 8, 1)
    # File a is the highest bit of a rank.
    planes = ((ranks >> jnp.arange(7, -1, -1, dtype=jnp.uint8)) & 1).astype(dtype)
    # The plane of the 50-move rule: a float32 in the lower half of its word.
    rule50 = jax.lax.bitcast_convert_type(words[:, 109, 0], jnp.float32)
    return planes.at[:, 109].set(rule50.astype(dtype)[:, None, None])


def expand_policy(indices: jax.Array, values: jax.Array, filler: jax.Array) -> jax.Array:
    """The policy from its entries (``policy: POLICY_SPARSE``); may be called inside jax.jit.

    Args:
        indices: int16 [rows, entries]: moves 0 to 1857, then 1858 after the last one.
        values: float32 [rows, entries].
        filler: float32 [rows]: the value of moves that are not listed.
    Returns:
        [rows, 1858], the dtype of ``values``: bit for bit what the feed's float32 policy has.
    """
    dense = jnp.repeat(jnp.asarray(filler, values.dtype)[:, None], 1859, axis=1)
    rows = jnp.arange(len(values))[:, None]
    return dense.at[rows, jnp.asarray(indices, jnp.int32)].set(values)[:, :1858]


# The dtypes with `compact: true` of the arrays that are int64 without it.
_COMPACT = {
    "input_ids": np.int16,
    "board_target_ids": np.int8,
    "move_target_ids": np.int16,
    "block_id": np.int16,
    "variation_epoch": np.int32,
}


def widen_tokens(batch: Mapping[str, jax.Array | np.ndarray]) -> dict[str, jax.Array]:
    """Widen a batch of tokens (``compact: true``) to the types that it has without ``compact``; may
    be called inside jax.jit.

    The types are those that iterate() gives for the feed's own int64 arrays: int64 with
    ``jax_enable_x64``; without it int32, which holds all of these numbers.

    Args:
        batch: Name to array, L places a row, as the feed or iterate() gives them:
            input_ids         int16  [rows, L]
            board_target_ids  int8   [rows, L]  -100: no target
            move_target_ids   int16  [rows, L]  -100: no target
            block_id          int16  [rows, L]
            variation_epoch   int32  [rows]     of feeds with variations
            and any others. These may also be int32 or int64 already.
    Returns:
        A new dictionary: these arrays with the wide type, the others (masks, values, lineage)
        unchanged.
    Raises:
        ValueError: There is no input_ids, or one of these arrays has another dtype.
    """
    if "input_ids" not in batch:
        raise ValueError(f"widen_tokens takes a batch of tokens; this one has {list(batch)}")
    wide = jax.dtypes.canonicalize_dtype(np.int64)
    widened = {}
    for name, array in batch.items():
        if name not in _COMPACT:
            widened[name] = jnp.asarray(array)
            continue
        if array.dtype not in (_COMPACT[name], np.int32, np.int64):
            compact = np.dtype(_COMPACT[name])
            raise ValueError(f"widen_tokens takes {name} as {compact}, not {array.dtype}")
        widened[name] = jnp.asarray(array).astype(wide)
    return widened


class _HandedOut:
    """Tells which slots are held by live arrays, and which only by running computations.

    JAX runs computations in the background, and holds what they read until they are done, even if
    the program has dropped the arrays. Such slots become free with time.
    """

    def __init__(self) -> None:
        self._batches: list[tuple[weakref.ref[Any], list[weakref.ref[jax.Array]]]] = []

    def add(self, batch: Batch, placed: dict[str, jax.Array]) -> None:
        lease = batch._lease
        if lease is not None:
            arrays = [weakref.ref(array) for array in placed.values()]
            self._batches.append((weakref.ref(lease), arrays))

    def next(self, feed: Feed) -> Batch:
        try:
            return feed.next()
        except SlotsExhausted:
            pass
        jax.block_until_ready([array for array in jax.live_arrays() if not array.is_deleted()])
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return feed.next()
            except SlotsExhausted:
                if not self._some_held_by_computations() or time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_S)

    def _some_held_by_computations(self) -> bool:
        self._batches = [entry for entry in self._batches if entry[0]() is not None]
        return any(all(array() is None for array in arrays) for _, arrays in self._batches)
