"""Feeds of translation batches for tests: their configurations, what their ranks read, and what
``compat: NONE`` gives, in plain Python.

    python tests/support/feeds/fairseq_feeds.py FEED RANK WORLD OUT    # a rank as a process of its own

It attaches as a member of the group "ranks", reads to the end of the feed, and leaves a pickle of
its batches.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ringfeed

from tests.support.feeds.feed_run import FeedRun
from tests.support.oracles.fairseq_reference import (
    BATCH,
    FIRST_STAND_IN,
    STAND_IN,
    Batch,
    Config,
    Corpus,
    Direction,
    Epoch,
    LegacyRandom,
    Row,
    cut_batches,
    pairwise_sum,
    sort_by_length,
    temperature_ratios,
    to_textproto,
    virtual_size,
)

Arrays = dict[str, np.ndarray]

PIPELINE = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
{stages}
feed_output {{ slots: {slots} {groups} }}
{extra}
"""

SEED = 7  # of a feed that is not told another


def bitext_run(
    work: Path,
    config: Config,
    *,
    epochs: int = 1,
    seed: int = SEED,
    slots: int = 16,
    groups: str | None = None,
    extra: str = "",
    source: str = "",
    planner: str = "",
    collator: str = "",
    feed: str = "mt",
) -> FeedRun:
    """A feed of this configuration whose group "ranks" has one member for each rank.

    What is given for a stage follows its fields; groups: instead of that group.
    """
    work.mkdir(parents=True, exist_ok=True)
    if groups is None:
        groups = f'groups {{ name: "ranks" kind: RANKED world: {config.world_size} }}'
    return FeedRun(
        work,
        work,
        feed=feed,
        pipeline=PIPELINE,
        seed=seed,
        epochs=epochs,
        stages=to_textproto(config, source, planner, collator),
        slots=slots,
        groups=groups,
        extra=extra,
    )


# --- Reading ------------------------------------------------------------------------------------


def member(
    run: FeedRun, rank: int | None, world: int | None, group: str = "ranks"
) -> ringfeed.Feed:
    """A member of a group of a feed that has been started."""
    return ringfeed.attach(
        run.feed,
        group=group,
        rank=rank,
        world=world,
        socket_dir=run.sockets,
        attach_timeout_s=60,
        timeout_s=60,
    )


@contextlib.contextmanager
def members(run: FeedRun, world: int, group: str = "ranks") -> Iterator[list[ringfeed.Feed]]:
    """All ranks of a group."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(member(run, rank, world, group)) for rank in range(world)]


def arrays_of(batch: ringfeed.Batch) -> Arrays:
    """Copies of a batch's arrays; it is released."""
    arrays = {name: np.array(batch[name]) for name in batch}
    batch.release()
    return arrays


def in_turn(feeds: Sequence[ringfeed.Feed]) -> Iterator[Arrays]:
    """What the ranks get, one of each in turn, until the feed ends, for all of them at once."""
    for turn in itertools.count():
        got = []
        for feed in feeds:
            with contextlib.suppress(ringfeed.FeedEnd):
                got.append(arrays_of(feed.next()))
                yield got[-1]
        assert len(got) in (0, len(feeds)), f"{len(got)} of {len(feeds)} ranks have a batch {turn}"
        if not got:
            return


def all_of(run: FeedRun, world: int) -> list[Arrays]:
    """The batches of all ranks of a feed from its start to its end, one of each in turn."""
    run.start()
    with members(run, world) as feeds:
        got = list(in_turn(feeds))
    assert run.wait() == 0, run.text()
    return got


def all_of_processes(run: FeedRun, world: int) -> list[Arrays]:
    """The same, read by a process for each rank."""
    run.start()
    outs = [run.work / f"rank{rank}.pickle" for rank in range(world)]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, run.feed, str(rank), str(world), str(out)],
            env={**run.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for rank, out in enumerate(outs)
    ]
    assert [rank.wait(60) for rank in ranks] == [0] * world
    assert run.wait() == 0, run.text()
    got = [pickle.loads(out.read_bytes()) for out in outs]
    assert len({len(batches) for batches in got}) == 1
    return [batch for turn in zip(*got, strict=True) for batch in turn]


def metrics_of(feed: ringfeed.Feed) -> dict[str, dict[str, Any]]:
    """What each stage has counted."""
    found = {}
    for stage in feed.metrics()["total"]["stage_metrics"]:
        (kind,) = set(stage) - {"name", "output_queue_metrics", "other_counters"}
        found[stage["name"]] = stage[kind]
    return found


# --- What is expected ---------------------------------------------------------------------------


@dataclass
class Place:
    """The array ``position`` of a batch."""

    epoch: int
    batch: int
    batches: int
    kind: int
    generation: int
    world_size: int
    chain_epoch: int
    chain_pass: int

    @classmethod
    def of(cls, arrays: Arrays) -> Place:
        return cls(*arrays["position"].tolist())


def handed_out(epoch: Epoch) -> int:
    """Batches of an epoch that are given out, over all ranks, without stand-ins."""
    return min(len(epoch.shuffled), epoch.taken.stop * epoch.config.world_size)


def rest_of(
    epoch: Epoch,
    begin: int,
    world: int,
    *,
    end: int | None = None,
    generation: int = 0,
    chain: tuple[int, int] = (1, 0),
) -> list[Batch]:
    """What a feed gives of an epoch from a batch over all ranks on, or up to one.

    "position" is that of a batch's place.
    """
    used = handed_out(epoch) if end is None else min(end, handed_out(epoch))

    def placed(batch: Batch, kind: int, number: int) -> Batch:
        place = [epoch.number, number, used, kind, generation, world, *chain]
        return {**batch, "kind": kind, "batch": number, "position": place}

    if begin >= used:
        return []
    stand_in = epoch.stand_in
    assert stand_in is not None
    found = [placed(stand_in, FIRST_STAND_IN, used)] * (world * epoch.config.stand_in_first)
    found += [placed(epoch.batch(number), BATCH, number) for number in range(begin, used)]
    found += [placed(stand_in, STAND_IN, used)] * (-(used - begin) % world)
    return found


def given(epoch: Epoch, **options: Any) -> list[Batch]:
    """What a feed gives of an epoch, from where its run begins."""
    world = epoch.config.world_size
    return rest_of(epoch, epoch.first * world, world, **options)


def assert_batch(got: Arrays, want: Batch, config: Config) -> None:
    """The same arrays in the same order, of the same types, with the same numbers."""
    token = "int32" if config.compact else "int64"
    types = {
        "id": "int64",
        "src_tokens": token,
        "src_lengths": "int64",
        "prev_output_tokens": token,
        "target": token,
        "ntokens": "int64",
        "nsentences": "int64",
        "position": "int64",
    }
    if config.enable_lang_ids:
        types |= {"src_lang_id": "int64", "tgt_lang_id": "int64"}
    if config.lineage:
        types["direction"] = "int32"
    assert got["position"].tolist() == want["position"]
    assert {name: array.dtype.name for name, array in got.items()} == types
    assert list(got) == list(types)
    for name in types:
        values = [want[name]] if name in ("ntokens", "nsentences") else want[name]
        assert got[name].tolist() == values, (name, want["position"])


def assert_batches(got: Sequence[Arrays], want: Sequence[Batch], config: Config) -> None:
    """The same batches in the same order."""
    assert [arrays["position"].tolist() for arrays in got] == [batch["position"] for batch in want]
    for arrays, batch in zip(got, want, strict=True):
        assert_batch(arrays, batch, config)


# --- compat NONE --------------------------------------------------------------------------------


@dataclass
class OwnEpoch(Epoch):
    """An epoch whose rows have the language ids of their own direction."""

    def _made(self, indices: Sequence[int], kind: int, number: int) -> Batch:
        batch = super()._made(indices, kind, number)
        if self.config.enable_lang_ids:
            for name, of in (("src_lang_id", "source_lang_id"), ("tgt_lang_id", "target_lang_id")):
                batch[name] = [[getattr(self.directions[d], of)] for d in batch["direction"]]
        return batch


@dataclass(frozen=True)
class Shape:
    """What an epoch is a slice of."""

    number: int  # of the pass
    shards: list[int]
    ratios: list[float] | None
    size: int  # of the pass
    slices: int
    begin: int
    end: int


class Own:
    """What a feed with ``compat: NONE`` delivers.

    Nothing that is drawn in an epoch depends on what was read before, so an epoch can be asked for
    by itself; chain: epoch and pass with which the present weights began.
    """

    def __init__(self, config: Config, seed: int = SEED) -> None:
        self.config = config
        self.seed = seed if config.seed is None else config.seed
        # Nothing but the choice of shards and the repetition of folds is other than with NLLB.
        self.corpus = Corpus(replace(config, compat="NLLB", allow_missing=False))
        self.keys = [direction[0] for direction in self.corpus.directions]
        self.directories = [
            [k for k, path in enumerate(paths) if self.corpus.folds_of(path, source, target)]
            for _, _, source, target, paths, _ in self.corpus.directions
        ]
        self.sizes = [
            [len(self.open(i, k)) for k in directories]
            for i, directories in enumerate(self.directories)
        ]
        self._known: dict[tuple[int, tuple[int, int], tuple[float, ...]], Epoch] = {}

    def open(self, number: int, directory: int) -> Direction:
        """Open a direction; its first fold counts several times, also where it is the only one."""
        direction = self.corpus.open(number, directory)
        _, _, source, target, paths, _ = self.corpus.directions[number]
        folds = [name for name, _, _ in self.corpus.folds_of(paths[directory], source, target)]
        subsets = self.corpus.subsets
        if folds[0] == subsets[0] and len(subsets) > 1:
            direction.parts[0].repeat = self.config.upsample_primary
        else:
            direction.parts[0].repeat = 1
        return direction

    def random(self, purpose: int, a: int, b: int = 0) -> LegacyRandom:
        """The numbers of one purpose."""
        words = (self.seed, self.seed >> 32, purpose, a, a >> 32, b)
        return LegacyRandom([word & 0xFFFFFFFF for word in words])

    def shape(self, epoch: int, chain: tuple[int, int], weights: Sequence[float] | None) -> Shape:
        """Pass after pass is cut into epochs, from the begin of the chain on."""
        first, number = chain
        while True:
            shards = [number % len(sizes) for sizes in self.sizes]
            local = [sizes[shard] for sizes, shard in zip(self.sizes, shards, strict=True)]
            ratios = self.ratios(local, weights)
            if ratios is not None:
                # A direction that is left out does not count.
                local = [size if ratio else 0 for size, ratio in zip(local, ratios, strict=True)]
            size = virtual_size(ratios, local, self.config.virtual_data_size)
            whole = self.config.virtual_epoch_size is None or self.config.validation
            of_epoch = size if whole else min(self.config.virtual_epoch_size or 0, size)
            slices = -(-size // of_epoch) if size > 0 else 1
            if epoch - first < slices:
                begin = (epoch - first) * of_epoch
                return Shape(
                    number, shards, ratios, size, slices, begin, min(begin + of_epoch, size)
                )
            first += slices
            number += 1

    def ratios(self, local: Sequence[int], weights: Sequence[float] | None) -> list[float] | None:
        """Ratios of the directions; 0 for those of which the shard has nothing."""
        config = self.config
        if weights is None and config.sampling_weights:
            full = {k if ":" in k else f"main:{k}": w for k, w in config.sampling_weights.items()}
            weights = [full[key] for key in self.keys]
        if weights is not None:
            ratios = list(weights)
        elif config.validation or config.sampling_method == "CONCAT":
            return None
        elif config.sampling_method == "UNIFORM":
            ratios = [1.0] * len(local)
        else:
            ratios = temperature_ratios([sum(s) for s in self.sizes], config.sampling_temperature)
        return [ratio if size else 0.0 for ratio, size in zip(ratios, local, strict=True)]

    def counts(self, shape: Shape) -> list[int]:
        """Sentences of the directions in a pass: in proportion, the rest to the largest
        remainders.
        """
        assert shape.ratios is not None
        total = pairwise_sum(shape.ratios)
        if total == 0:
            return [0] * len(shape.ratios)
        exact = [shape.size * (ratio / total) for ratio in shape.ratios]
        counts = [int(share) for share in exact]
        order = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
        for i in order[: shape.size - sum(counts)]:
            counts[i] += 1
        return counts

    def rows(self, shape: Shape) -> list[Row]:
        """The sentences of an epoch, before they are ordered."""
        sizes = [of[shard] for of, shard in zip(self.sizes, shape.shards, strict=True)]
        if shape.ratios is None:
            rows = [(i, x) for i, size in enumerate(sizes) for x in range(size)]
        else:
            rows = []
            for i, count in enumerate(self.counts(shape)):
                order = self.random(1, i, shape.shards[i]).permutation(sizes[i])
                at = shape.number // len(self.sizes[i]) * count
                rows += [(i, order[(at + k) % sizes[i]]) for k in range(count)]
        if shape.slices > 1:
            self.random(2, shape.number).shuffle(rows)
        return rows[shape.begin : shape.end]

    def epoch(
        self, number: int, chain: tuple[int, int] = (1, 0), weights: Sequence[float] | None = None
    ) -> Epoch:
        """An epoch of the chain that began with that epoch and that pass, and has these weights."""
        key = (number, chain, tuple(weights or ()))
        if key not in self._known:
            self._known[key] = self._make(number, chain, weights)
        return self._known[key]

    def _make(self, number: int, chain: tuple[int, int], weights: Sequence[float] | None) -> Epoch:
        config = self.config
        if config.validation:
            shape = self.shape(1, (1, 0), None)
        else:
            shape = self.shape(number, chain, weights)
        directions: list[Direction] = [
            self.open(i, self.directories[i][shard]) for i, shard in enumerate(shape.shards)
        ]
        rows = self.rows(shape)
        sizes = [directions[direction].sizes(x) for direction, x in rows]
        ties = self.random(3, number)
        orders = [list(range(len(rows)))]
        if config.one_dataset_per_batch:
            orders = [[x for x in orders[0] if rows[x][0] == i] for i in range(len(directions))]
        kept: list[list[int]] = []
        for order in orders:
            if not config.validation:
                ties.shuffle(order)
            kept.append([x for x in sort_by_length(order, sizes) if self.fits(sizes[x])])
        frozen = [batch for order in kept for batch in cut_batches(config, order, sizes)]
        shuffled = list(frozen)
        if number > config.curriculum and not config.validation:
            self.random(4, number).shuffle(shuffled)
        everything = [x for order in kept for x in order]
        return OwnEpoch(
            config, number, 0, directions, rows, sizes, [], everything, frozen, shuffled, None
        )

    def fits(self, sizes: tuple[int, int]) -> bool:
        """Is a sentence within the limits?"""
        limits = (self.config.max_source_positions, self.config.max_target_positions)
        most = self.config.max_tokens or max(limits)
        return sizes[0] <= min(limits[0], most) and sizes[1] <= min(limits[1], most)

    def pass_of(self, number: int, chain: tuple[int, int] = (1, 0)) -> int:
        """The number of the pass that an epoch is of."""
        return self.shape(number, chain, None).number


def main() -> None:
    """A rank, as a process of its own."""
    name, rank, world, out = sys.argv[1:]
    with ringfeed.attach(
        name,
        group="ranks",
        rank=int(rank),
        world=int(world),
        attach_timeout_s=60,
        timeout_s=60,
    ) as feed:
        got = [arrays_of(batch) for batch in feed]
    Path(out).write_bytes(pickle.dumps(got))


if __name__ == "__main__":
    main()
