"""One batch of tokens twice: with the types of a feed with `compact: true`, and without it."""

from __future__ import annotations

import numpy as np

# Arrays that change, with their compact types and the numbers that they can have at most. The
# largest block id is that of the longest row.
_IDS = {
    "input_ids": (np.int16, 0, 1967),
    "board_target_ids": (np.int8, -100, 40),
    "move_target_ids": (np.int16, -100, 1923),
    "block_id": (np.int16, 0, 32470),
}
_MASKS = ("move_mask", "wl_positions", "d_positions", "wdl_valid")
_VARIATION_MASKS = ("thinking_move_mask", "continue_var_mask", "new_variation_mask")


def compact_batch(variations: bool, rows: int = 3, length: int = 50) -> dict[str, np.ndarray]:
    """A batch as `compact: true` gives it; both ends of each range occur in it."""
    rng = np.random.default_rng(5)
    batch: dict[str, np.ndarray] = {}
    for name, (dtype, least, most) in _IDS.items():
        batch[name] = rng.integers(least, most, (rows, length), endpoint=True).astype(dtype)
        batch[name][0, :2] = least, most
    for name in _MASKS + (_VARIATION_MASKS if variations else ()):
        batch[name] = rng.random((rows, length)) < 0.5
    for name in ("wl_targets", "d_targets"):
        batch[name] = rng.uniform(-1, 1, (rows, length)).astype(np.float32)
    if variations:
        batch["first_is_not_best"] = rng.random(rows) < 0.5
        batch["variation_epoch"] = np.array([0, 7, 2**31 - 1], np.int32)[:rows]
    batch["lineage"] = rng.integers(0, 2**31, (rows, 4)).astype(np.int32)
    return batch


def wide_batch(variations: bool) -> dict[str, np.ndarray]:
    """The same as the feed gives it without `compact`."""
    wide = (*_IDS, "variation_epoch")
    return {
        name: array.astype(np.int64) if name in wide else array
        for name, array in compact_batch(variations).items()
    }
