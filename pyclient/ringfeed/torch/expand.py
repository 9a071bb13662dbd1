"""Widens compact tensors on their device: planes and policies of Lc0, tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .._core.torch_bridge import Tensors


def expand_planes(bits: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Input planes from their bits (``planes: PLANES_BITS``), on the device of ``bits``.

    The numbers are those of the feed's own float32 planes, rounded to ``dtype``.

    Args:
        bits: uint64 (or int64) [rows, 112], as the feed gives them.
        dtype: Dtype of the planes.
    Returns:
        [rows, 112, 8, 8]: rank 1 to 8 of the mover's view, file a to h.
    Raises:
        ValueError: ``bits`` has another shape or dtype.
    """
    if bits.ndim != 2 or bits.shape[1] != 112 or bits.dtype not in (torch.uint64, torch.int64):
        raise ValueError(
            f"expand_planes takes uint64 [rows, 112], not {bits.dtype} {list(bits.shape)}"
        )
    words = bits.contiguous().view(torch.int64)
    ranks = words.view(torch.uint8).reshape(len(bits), 112, 8, 1)
    # File a is the highest bit of a rank.
    files = torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    planes = ((ranks >> files) & 1).to(dtype)
    # The plane of the 50-move rule: a float32 in the lower half of its word.
    rule50 = words[:, 109].contiguous().view(torch.float32)[::2]
    planes[:, 109] = rule50.to(dtype)[:, None, None]
    return planes


def expand_policy(
    indices: torch.Tensor, values: torch.Tensor, filler: torch.Tensor
) -> torch.Tensor:
    """The policy from its entries (``policy: POLICY_SPARSE``), on the device of ``values``.

    Args:
        indices: int16 [rows, entries]: moves 0 to 1857, then 1858 after the last one.
        values: float32 [rows, entries].
        filler: float32 [rows]: the value of moves that are not listed.
    Returns:
        [rows, 1858], the dtype of ``values``: bit for bit what the feed's float32 policy has.
    """
    dense = filler.to(values.dtype)[:, None].repeat(1, 1859)
    return dense.scatter_(1, indices.long(), values)[:, :1858]


# The dtypes with `compact: true` of the arrays that are int64 without it.
_COMPACT = {
    "input_ids": torch.int16,
    "board_target_ids": torch.int8,
    "move_target_ids": torch.int16,
    "block_id": torch.int16,
    "variation_epoch": torch.int32,
}


def widen_tokens(batch: Mapping[str, torch.Tensor]) -> Tensors:
    """Widen a batch of tokens (``compact: true``) to the types that it has without ``compact``, on
    its device.

    The numbers are those of the feed's own int64 arrays.

    Args:
        batch: Name to tensor, L places a row, as the feed gives them: input_ids int16 [rows, L]
            board_target_ids int8 [rows, L] -100: no target move_target_ids int16 [rows, L] -100: no
            target block_id int16 [rows, L] variation_epoch int32 [rows] of feeds with variations
            and any others. A tensor that is already int64 stays the same tensor.
    Returns:
        A new dictionary in the order of ``batch``: these tensors as int64, in their own memory; the
        others (masks, values, lineage) are the same tensors.
    Raises:
        ValueError: There is no input_ids, or one of these tensors has another dtype.
    """
    if "input_ids" not in batch:
        raise ValueError(f"widen_tokens takes a batch of tokens; this one has {list(batch)}")
    wide = {}
    for name, tensor in batch.items():
        compact = _COMPACT.get(name, tensor.dtype)
        if tensor.dtype not in (compact, torch.int64):
            raise ValueError(f"widen_tokens takes {name} as {compact}, not {tensor.dtype}")
        wide[name] = tensor.long() if name in _COMPACT else tensor
    return wide
