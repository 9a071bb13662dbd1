"""A fake feed of translation batches, and a planner that answers what the test says.

A batch's sentences follow from its epoch and number, so that a test knows what it must hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from ringfeed._core import control

from tests.support.fakes.fake_feed import FakeFeed, Layout

ROWS, WIDTH = 8, 8


def layout(*, tokens: str = "int64", lang_ids: bool = False, lineage: bool = False) -> Layout:
    """The arrays that a bitext_collator gives."""
    tensors: dict[str, tuple[str, tuple[int, ...], int]] = {
        "id": ("int64", (-1,), ROWS),
        "src_tokens": (tokens, (-1, -2), ROWS * WIDTH),
        "src_lengths": ("int64", (-1,), ROWS),
        "prev_output_tokens": (tokens, (-1, -3), ROWS * WIDTH),
        "target": (tokens, (-1, -3), ROWS * WIDTH),
        "ntokens": ("int64", (1,), 1),
        "nsentences": ("int64", (1,), 1),
        "position": ("int64", (8,), 8),
    }
    if lang_ids:
        tensors["src_lang_id"] = tensors["tgt_lang_id"] = ("int64", (-1, 1), ROWS)
    if lineage:
        tensors["direction"] = ("int32", (-1,), ROWS)
    return Layout(**tensors)


@dataclass(frozen=True)
class Plan:
    """What becomes one batch of the feed; kind 1 is a stand-in, 2 a first stand-in."""

    epoch: int
    batch: int
    batches: int
    kind: int = 0
    generation: int = 0
    world: int = 1
    rows: int | None = None
    chain: tuple[int, int] = (1, 0)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, width of the source and of the target."""
        number = 0 if self.kind else self.batch
        rows = 1 + (self.epoch + number) % ROWS if self.rows is None else self.rows
        return rows, 2 + number % 5, 1 + number % 7

    @property
    def ids(self) -> list[int]:
        """Of its sentences."""
        first = 1000 * self.epoch + 10 * (0 if self.kind else self.batch)
        return list(range(first, first + self.shape[0]))

    def arrays(self, tokens: str = "int64") -> dict[str, np.ndarray]:
        """All arrays that there can be."""
        rows, source, target = self.shape
        ids = np.array(self.ids, np.int64)
        out = ids[:, None] * 10 + np.arange(target)
        return {
            "id": ids,
            "src_tokens": (ids[:, None] + np.arange(source)).astype(tokens),
            "src_lengths": np.full(rows, source, np.int64),
            "prev_output_tokens": (out - 1).astype(tokens),
            "target": out.astype(tokens),
            "ntokens": np.array([rows * target], np.int64),
            "nsentences": np.array([rows], np.int64),
            "position": np.array(
                [
                    *(self.epoch, self.batch, self.batches, self.kind, self.generation),
                    *(self.world, *self.chain),
                ],
                np.int64,
            ),
            "src_lang_id": np.full((rows, 1), 3, np.int64),
            "tgt_lang_id": np.full((rows, 1), 4, np.int64),
            "direction": np.arange(rows, dtype=np.int32),
        }


def epoch(
    number: int,
    batches: int,
    world: int = 1,
    *,
    generation: int = 0,
    first: bool = False,
    begin: int = 0,
    end: int | None = None,
) -> list[Plan]:
    """An epoch as the planner puts it out: from a batch on, with stand-ins up to a multiple."""
    plan = Plan(number, 0, batches, 0, generation, world)
    plans = [dataclasses.replace(plan, kind=2)] * (world if first else 0)
    last = batches if end is None else end
    plans += [dataclasses.replace(plan, batch=batch) for batch in range(begin, last)]
    missing = -(last - begin) % world
    return plans + [dataclasses.replace(plan, batch=batches, kind=1)] * missing


def publish(fake: FakeFeed, of: Layout, plans: Iterable[Plan], tokens: str = "int64") -> None:
    """Publishes these batches, each as soon as there is room."""
    names = {option.split(":")[0] for option in of.options if ":" in option}
    for plan in plans:
        arrays = {name: array for name, array in plan.arrays(tokens).items() if name in names}
        rows, source, target = plan.shape
        fake.publish(of, arrays, rows, (source, target))


def planner_says(
    epoch: int = 1,
    batch: int = 0,
    batches: int = 0,
    generation: int = 0,
    world: int = 1,
    from_batch: int = 0,
    sentences_left: int = 0,
    *,
    error: str = "",
    epoch_batches: int | None = None,
) -> bytes:
    """A StageControlResponse of a planner."""
    body = control.bytes_field(1, error.encode()) if error else b""
    for field, number in enumerate(
        (epoch, batch, batches, generation, world, from_batch, sentences_left), 2
    ):
        body += control.number_field(field, number)
    if epoch_batches is not None:
        body += control.number_field(11, epoch_batches)
    return control.bytes_field(30, body)
