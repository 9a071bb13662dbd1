"""Batches as fairseq's samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..batch import Batch

Sample = dict[str, Any]
# Kinds of batches.
_STAND_IN, _FIRST_STAND_IN = 1, 2
_ARRAYS = ("id", "src_tokens", "src_lengths", "prev_output_tokens", "target", "ntokens")
_TOKENS = ("src_tokens", "prev_output_tokens", "target")


class _Position(NamedTuple):
    """The array ``position`` of a batch."""

    epoch: int  # from 1
    batch: int  # of the epoch, over all ranks, from 0
    batches: int  # of the epoch, over all ranks
    kind: int
    generation: int
    world_size: int
    chain_epoch: int  # the epoch with which the chain of this epoch began
    chain_pass: int


def _position(batch: Batch) -> _Position:
    return _Position(*batch["position"].tolist())


def sample(batch: Batch, *, copy: bool | None = None, widen: bool = True) -> Sample:
    """A batch in the form that fairseq's collater gives.

    Shapes, for B sentences, S tokens of the longest source and T of the longest target:
        id                            int64  [B]     number of the sentence in its direction
        nsentences                    int            B
        ntokens                       int            tokens of the targets, without padding
        net_input.src_tokens          int64  [B, S]
        net_input.src_lengths         int64  [B]     tokens of the source, without padding
        net_input.prev_output_tokens  int64  [B, T]
        net_input.src_lang_id         int64  [B, 1]  of feeds with enable_lang_ids
        target                        int64  [B, T]
        tgt_lang_id                   int64  [B, 1]  of feeds with enable_lang_ids
        direction                     int32  [B]     of feeds with lineage
    Args:
        batch: A batch of the feed; it does not change.
        copy: As for Batch.torch(): None: tensors share the memory of a private or copied view and
            are copies on a read-only feed; True: copies; False: never copies.
        widen: True: tokens that the feed has as int32 (``compact: true``) become int64, which
            fairseq's losses need; these are copies. False: they stay int32.
    Returns:
        A dictionary whose tensors hold the slot while they live, unless they are copies.
    Raises:
        InvalidRequest: copy=False on a read-only feed.
        BatchReleased: The batch was released before.
        ImportError: PyTorch is not installed.
    Source: the arrays of the same names.
    """
    return _sample_of(
        batch.torch(copy), int(batch["nsentences"][0]), int(batch["ntokens"][0]), widen
    )


def _sample_of_arrays(arrays: Mapping[str, np.ndarray], widen: bool) -> Sample:
    """As sample(), from arrays that nobody else uses."""
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    sentences, tokens = (int(arrays[name][0]) for name in ("nsentences", "ntokens"))
    return _sample_of(tensors, sentences, tokens, widen)


def _sample_of(tensors: dict[str, Any], nsentences: int, ntokens: int, widen: bool) -> Sample:
    if widen:
        for name in _TOKENS:
            tensors[name] = tensors[name].long()
    net_input = {name: tensors[name] for name in ("src_tokens", "src_lengths")}
    net_input["prev_output_tokens"] = tensors["prev_output_tokens"]
    if "src_lang_id" in tensors:
        net_input["src_lang_id"] = tensors["src_lang_id"]
    out: Sample = {
        "id": tensors["id"],
        "nsentences": nsentences,
        "ntokens": ntokens,
        "net_input": net_input,
        "target": tensors["target"],
    }
    for name in ("tgt_lang_id", "direction"):
        if name in tensors:
            out[name] = tensors[name]
    return out
