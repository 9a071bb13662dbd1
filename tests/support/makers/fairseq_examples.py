"""The worked examples of the translation pipeline (tests/data/fairseq): files, and
configurations.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.oracles.fairseq_reference import Config

DATA = Path(__file__).resolve().parents[2] / "data" / "fairseq"
EXAMPLES = ("a_concat", "b_nllb", "d_virtual_epochs", "f_weights")


@functools.cache
def load(name: str) -> Any:
    """A file of the examples."""
    return json.loads((DATA / name).read_text())


def example(name: str, **changes: Any) -> Config:
    """The configuration of a worked example."""
    made = load(f"outputs/{name}.json")
    args, settings = made["args"], made["settings"]
    values: dict[str, Any] = {
        "compat": "NLLB",
        "directory": [str(DATA / path) for path in args["data"].split(":")],
        "lang_pairs": args["lang_pairs"],
        "langs": args["langs"],
        "subsets": args["train_subset"].split(","),
        "encoder_langtok": args["encoder_langtok"].upper(),
        "decoder_langtok": args["decoder_langtok"],
        "add_data_source_prefix_tags": args["add_data_source_prefix_tags"],
        "sampling_method": args["sampling_method"].upper(),
        "sampling_temperature": args["sampling_temperature"],
        "sampling_weights": args["sampling_weights"] or {},
        "virtual_data_size": args["virtual_data_size"],
        "virtual_epoch_size": args["virtual_epoch_size"],
        "use_local_shard_size": args["use_local_shard_size"],
        "max_tokens": settings["max_tokens"],
        "batch_size": settings["max_sentences"],
        "required_batch_size_multiple": settings["mult"],
        "max_source_positions": args["max_source_positions"],
        "max_target_positions": args["max_target_positions"],
        "seed": settings.get("seed", 1),
        "update_freq": [settings["update_freq"]] if "update_freq" in settings else [],
        "epoch_remainder_batch": settings.get("skip") is False,
        "world_size": made["world_size"],
        **changes,
    }
    return Config(**values)


def flat(batches: Sequence[Any]) -> list[Any]:
    """Batches of a rank, those of an update one behind the other."""
    return [one for batch in batches for one in (batch if isinstance(batch, list) else [batch])]
