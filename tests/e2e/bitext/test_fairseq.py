"""Feeds of translation batches against the worked examples and the reference, bit for bit."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed
from ringfeed.fairseq import (
    EpochIterator,
    GroupedIterator,
    load_state,
    set_weights,
)

from tests.support.feeds import fairseq_feeds as feeds
from tests.support.feeds.fairseq_feeds import (
    Arrays,
    Own,
    all_of,
    all_of_processes,
    assert_batches,
    given,
)
from tests.support.feeds.feed_run import BIN, FeedRun, wait_until
from tests.support.feeds.scenes import kill_a_worker
from tests.support.makers import fairseq_data
from tests.support.makers.fairseq_examples import EXAMPLES, example, flat, load
from tests.support.oracles import fairseq_reference as reference
from tests.support.oracles.fairseq_reference import Config, Reference, Refused

MakeBitext = Callable[..., FeedRun]

# --- The worked examples ------------------------------------------------------------------------


def digest(arrays: Arrays) -> str:
    """As reference.digest()."""
    sha = hashlib.sha256()
    for name in reference.TENSORS:
        sha.update(np.array(arrays[name].shape, "<i8"))
        sha.update(arrays[name].astype("<i8"))
    return sha.hexdigest()


def assert_is_example(arrays: Arrays, wanted: dict[str, Any]) -> None:
    """Every value that the example has."""
    assert digest(arrays) == wanted["sha256"]
    assert list(arrays["src_tokens"].shape) == wanted["src_shape"]
    assert list(arrays["target"].shape) == wanted["tgt_shape"]
    assert arrays["prev_output_tokens"].shape == arrays["target"].shape
    for name in set(wanted) - {"sha256", "src_shape", "tgt_shape"}:
        values = arrays[name].tolist()
        assert (values[0] if name in ("ntokens", "nsentences") else values) == wanted[name], name


def assert_example(got: Sequence[Arrays], name: str) -> None:
    """All batches of all ranks and epochs."""
    wanted = load(f"outputs/{name}.json")
    batches = iter(got)
    for epoch in wanted["epochs"]:
        of_ranks = [flat(rank["batches"]) for rank in epoch["ranks"]]
        for place, turn in enumerate(zip(*of_ranks, strict=True)):
            for rank, batch in enumerate(turn):
                arrays = next(batches)
                at = feeds.Place.of(arrays)
                assert (at.epoch, at.generation, at.world_size) == (epoch["epoch"], 0, 2)
                if batch is None:
                    assert (at.kind, at.batch) == (reference.STAND_IN, at.batches)
                    assert_is_example(arrays, epoch["dummy_batch"])
                else:
                    assert (at.kind, at.batch) == (reference.BATCH, 2 * place + rank)
                    assert_is_example(arrays, batch)
    assert next(batches, None) is None


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_as_fairseq_gave_it(make_bitext: MakeBitext, name: str, threads: int) -> None:
    epochs = len(load(f"outputs/{name}.json")["epochs"])
    run = make_bitext(example(name, threads=threads), epochs=epochs)
    read = all_of if threads > 1 else all_of_processes
    assert_example(read(run, 2), name)


def test_an_example_in_int32(make_bitext: MakeBitext) -> None:
    got = all_of(make_bitext(example("d_virtual_epochs", compact=True), epochs=7), 2)
    assert_example(got, "d_virtual_epochs")
    for name in ("src_tokens", "prev_output_tokens", "target"):
        assert {arrays[name].dtype.name for arrays in got} == {"int32"}


def test_the_first_stand_in_of_an_example(make_bitext: MakeBitext) -> None:
    """Each rank begins an epoch with what fairseq's trainer keeps for when it has no batch."""
    got = all_of(make_bitext(example("b_nllb", stand_in_first=True), epochs=2), 2)
    wanted = load("outputs/b_nllb.json")["epochs"]
    kinds = [feeds.Place.of(arrays).kind for arrays in got]
    assert kinds.count(reference.FIRST_STAND_IN) == 2 * 2
    firsts = [arrays for arrays, kind in zip(got, kinds) if kind == reference.FIRST_STAND_IN]
    for number, arrays in enumerate(firsts):
        assert_is_example(arrays, wanted[number // 2]["dummy_batch"])
    assert_example([a for a, k in zip(got, kinds) if k != reference.FIRST_STAND_IN], "b_nllb")


# --- Random corpora -----------------------------------------------------------------------------

FOLDS = ["train", "train_mining", "train_mmt_bt", "train_smt_bt"]


def random_config(directory: Path, seed: int, compat: str) -> Config:
    """A corpus, and a configuration that fits it."""
    draw = random.Random(f"{seed} {compat}")
    chance = lambda share: draw.random() < share  # noqa: E731
    nllb, main = compat == "NLLB", compat == "MAIN"
    validation = chance(0.15)
    concat = validation or chance(0.3)
    folds = FOLDS[: draw.randint(1, 4)] if not main else ["train"]
    combine = main and chance(0.5)
    corpus = fairseq_data.random_corpus(
        directory,
        draw.randrange(1 << 30),
        directions=draw.randint(1, 7),
        shards=draw.randint(1, 4),
        folds=[*folds, "train1"] if combine else folds,
        sentences=draw.choice([20, 60]),
        kinds=draw.choice([["mapped"], ["legacy"], ["mapped", "megatron", "legacy"]]),
        # One that is wanted and has nothing is refused by the programs that are imitated.
        empty_shards=concat or compat == "NONE",
    )
    values: dict[str, Any] = {
        "compat": compat,
        "directory": corpus.directories,
        "lang_pairs": corpus.lang_pairs,
        "subsets": ["valid"] if validation else folds,
        "combine": combine and not validation,
        "encoder_langtok": draw.choice(["NO_LANGTOK", "SRC", "TGT"]),
        "decoder_langtok": chance(0.5),
        "lang_tok_style": draw.choice(["MULTILINGUAL", "MBART"]),
        "langs": draw.choice([[], ["xho", *reversed(corpus.langs)]]),
        "add_data_source_prefix_tags": not main and chance(0.5),
        "upsample_primary": draw.choice([1, 1, 3]),
        "truncate_source": draw.choice([None, None, 9, 15]),
        "max_tokens": draw.choice([60, 120, 300]),
        "batch_size": draw.choice([None, None, 5, 17, 24]),
        "required_batch_size_multiple": draw.choice([1, 4, 8]),
        "max_source_positions": draw.choice([14, 20, 1024]),
        "max_target_positions": draw.choice([16, 1024]),
        "seed": draw.choice([None, 0, 5, 4294967000]),
        "curriculum": draw.choice([0, 0, 2]),
        "world_size": draw.randint(1, 5),
        "stand_in_first": chance(0.3),
        "validation": validation,
        "threads": draw.randint(1, 3),
        "left_pad_source": chance(0.7),
        "left_pad_target": chance(0.2),
        "compact": chance(0.3),
        "pad_to_multiple": draw.choice([1, 1, 8]),
        "enable_lang_ids": chance(0.4),
        "lineage": chance(0.7),
        "one_dataset_per_batch": not main and not validation and chance(0.3),
    }
    if values["truncate_source"] and values["encoder_langtok"] != "NO_LANGTOK":
        values["max_source_positions"] = values["truncate_source"] + draw.choice([1, 2])
    if chance(0.2) and (values["encoder_langtok"] != "NO_LANGTOK" or values["decoder_langtok"]):
        values |= {"lang_tok_replacing_bos_eos": True, "left_pad_target": False}
    if values["max_source_positions"] < 30 and values["max_target_positions"] < 30:
        values["pad_to_fixed_length"] = chance(0.5)
    if compat != "NONE":
        values["update_ordered_indices_seed"] = chance(0.5)
    if nllb:
        values["epoch_remainder_batch"] = chance(0.5)
        values["use_local_shard_size"] = chance(0.3)
    if not validation:
        values["update_freq"] = draw.choice([[], [2], [1, 3]])
        if not concat:
            values["sampling_method"] = draw.choice(["TEMPERATURE", "TEMPERATURE", "UNIFORM"])
            values["sampling_temperature"] = draw.choice([1.0, 1.5, 5.0])
            if chance(0.3):
                weights = {key: draw.choice([0.25, 1.0, 3.0]) for key in corpus.lang_pairs}
                values["sampling_weights"] = weights
            values["virtual_data_size"] = draw.choice([None, None, 90, 200])
        values["virtual_epoch_size"] = draw.choice([None, 50, 111])
    return Config(**values)


def expected(config: Config, epochs: int) -> list[reference.Batch]:
    """What a feed of this configuration gives."""
    if config.compat != "NONE":
        run = Reference(config)
        return [batch for epoch in run.epochs(epochs) for batch in given(epoch)]
    own = Own(config)
    chain = (1, 0)
    return [batch for n in range(1, epochs + 1) for batch in given(own.epoch(n, chain))]


def random_case(directory: Path, number: int, compat: str) -> tuple[Config, list[Any]]:
    """A configuration that has an answer, with it."""
    for attempt in itertools.count(number, 1000):
        config = random_config(directory / str(attempt), attempt, compat)
        try:
            found = expected(config, EPOCHS)
        except Refused:
            continue
        if found:
            return config, found
    raise AssertionError


EPOCHS = 6
# Then: the first direction has nothing in a shard, and language ids; these with tokens in the
# places of `</s>`.
CASES = [
    *(("NLLB", n) for n in range(8)),
    *(("MAIN", n) for n in range(4)),
    *(("NLLB", 110), ("MAIN", 136), ("NLLB", 17)),
]


@pytest.mark.parametrize("compat, number", CASES)
def test_a_random_corpus_as_the_reference_reads_it(
    make_bitext: MakeBitext, tmp_path: Path, compat: str, number: int
) -> None:
    config, want = random_case(tmp_path, number, compat)
    got = all_of(make_bitext(config, epochs=EPOCHS), config.world_size)
    assert_batches(got, want, config)


@pytest.mark.parametrize("number", range(6))
def test_a_random_corpus_without_compat(
    make_bitext: MakeBitext, tmp_path: Path, number: int
) -> None:
    config, want = random_case(tmp_path, number, "NONE")
    got = all_of(make_bitext(config, epochs=EPOCHS), config.world_size)
    assert_batches(got, want, config)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_run_that_begins_within_the_curriculum_keeps_the_iterator(
    make_bitext: MakeBitext, tmp_path: Path, shards: int
) -> None:
    """MAIN's of RoundRobin: with one directory no epoch is shuffled, with several the later are."""
    corpus: dict[str, Any] = {"shards": shards, "empty_shards": False}
    settings: dict[str, Any] = {"compat": "MAIN", "sampling_method": "ROUND_ROBIN"}
    config = own_config(tmp_path / "data", corpus=corpus, curriculum=1, **settings)
    want = expected(config, 3)
    got = all_of(make_bitext(config, epochs=3), config.world_size)
    assert_batches(got, want, config)
    shuffled = [epoch.shuffled != epoch.frozen_batches for epoch in Reference(config).epochs(3)]
    assert shuffled == [False, shards > 1, shards > 1]


# --- compat NONE --------------------------------------------------------------------------------


def own_config(directory: Path, seed: int = 1, **changes: Any) -> Config:
    """Directions of different sizes and numbers of shards; each row says which sentence it is."""
    settings = {"directions": 5, "shards": 3, "sentences": 60, **changes.pop("corpus", {})}
    corpus = fairseq_data.random_corpus(directory, seed, **settings)
    values: dict[str, Any] = {
        "directory": corpus.directories,
        "lang_pairs": corpus.lang_pairs,
        "encoder_langtok": "SRC",
        "decoder_langtok": True,
        "max_tokens": 150,
        "required_batch_size_multiple": 4,
        "lineage": True,
    }
    return Config(**{**values, **changes})


def kind_of(arrays: Arrays) -> int:
    return feeds.Place.of(arrays).kind


def sentences(batches: Sequence[Arrays]) -> list[tuple[int, int]]:
    """Direction and number of each row, in order."""
    return [
        pair
        for arrays in batches
        for pair in zip(arrays["direction"].tolist(), arrays["id"].tolist(), strict=True)
    ]


def test_every_sentence_comes_once_an_epoch(make_bitext: MakeBitext, tmp_path: Path) -> None:
    config = own_config(tmp_path / "data", world_size=3, threads=2)
    own = Own(config)
    got = all_of(make_bitext(config, epochs=4), 3)
    for epoch in range(1, 5):
        of_epoch = [a for a in got if feeds.Place.of(a).epoch == epoch]
        real = [a for a in of_epoch if kind_of(a) == reference.BATCH]
        assert len(of_epoch) % 3 == 0 and len(of_epoch) - len(real) < 3
        wanted = [
            (number, x)
            for number, sizes in enumerate(own.sizes)
            for x in range(sizes[(epoch - 1) % len(sizes)])
        ]
        assert sorted(sentences(real)) == wanted
    assert len(got) > 30


def test_ranks_of_any_number_get_one_order(make_bitext: MakeBitext, tmp_path: Path) -> None:
    settings = {"sampling_method": "TEMPERATURE", "virtual_epoch_size": 90}
    orders = []
    for world in (1, 2, 3, 8):
        config = own_config(tmp_path / "data", world_size=world, **settings)
        got = all_of(make_bitext(config, epochs=7), world)
        assert len(got) % world == 0
        order = [arrays for arrays in got if kind_of(arrays) == reference.BATCH]
        for arrays in order:
            assert arrays["position"][5] == world
            arrays["position"][5] = 0
        orders.append(order)
    assert len(orders[0]) > 40
    for order in orders[1:]:
        assert len(order) == len(orders[0])
        for one, other in zip(order, orders[0], strict=True):
            assert_same(one, other)


def assert_same(one: Arrays, other: Arrays) -> None:
    assert list(one) == list(other)
    for name in one:
        assert np.array_equal(one[name], other[name]), name


def test_over_the_epochs_all_sentences_are_seen_equally_often(
    make_bitext: MakeBitext, tmp_path: Path
) -> None:
    """Of a direction that is wanted oftener than it is, and of one of which a part is wanted."""
    config = own_config(
        tmp_path / "data",
        corpus={"directions": 3, "shards": 1, "both_ways": False},
        sampling_method="UNIFORM",
        virtual_data_size=60,
    )
    sizes = [of[0] for of in Own(config).sizes]
    assert min(sizes) == 1 and max(sizes) > 20
    got = all_of(make_bitext(config, epochs=7), 1)
    seen = Counter(sentences(got))
    assert seen.total() == 7 * 60
    for number, size in enumerate(sizes):
        counts = [seen[number, x] for x in range(size)]
        assert sum(counts) == 7 * 20
        assert max(counts) - min(counts) <= 1


def test_a_direction_has_the_shards_that_have_files(
    make_bitext: MakeBitext, tmp_path: Path
) -> None:
    """One that lies in the second and fourth directory has two shards, and each is read."""
    config = own_config(tmp_path / "data", corpus={"shards": 4, "directions": 2}, world_size=1)
    pair = config.lang_pairs[0]
    for shard in (0, 2):
        for path in Path(config.directory[shard]).glob(f"train.{pair}.*"):
            path.unlink()
    config = replace(config, lang_pairs=[pair, "tur-hin"])
    fairseq_data.write_dictionary(f"{config.directory[0]}/dict.hin.txt", 100)
    fairseq_data.write_mapped(f"{config.directory[0]}/train.tur-hin.tur", [[4, 2]] * 7)
    fairseq_data.write_mapped(f"{config.directory[0]}/train.tur-hin.hin", [[5, 2]] * 7)
    own = Own(config)
    assert own.directories == [[1, 3], [0]]
    want = [batch for epoch in range(1, 5) for batch in given(own.epoch(epoch))]
    assert_batches(all_of(make_bitext(config, epochs=4), 1), want, config)


# --- Deaths -------------------------------------------------------------------------------------

OFTEN = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: 255 }"
STAGES = ("bitext", "plans", "batches")
APART = " ".join(f'stage_groups {{ name: "{name}" stages: "{name}" }}' for name in STAGES)
NARROW = {"slots": 6, "planner": "queue_capacity: 2"}


def killed(
    run: FeedRun, world: int, kills: int, supervisor_at: Sequence[int], seed: int
) -> list[Arrays]:
    """What the ranks get while workers are killed: the source as soon as it is there."""
    rng = random.Random(seed)
    victims = Counter[str]()
    run.start()
    for name in STAGES:
        wait_until(lambda name=name: name in run.all_workers(), name)
        assert kill_a_worker(run, rng, name) == name
        victims[name] += 1
    got: list[Arrays] = []
    with feeds.members(run, world) as ranks:
        for arrays in feeds.in_turn(ranks):
            got.append(arrays)
            if len(got) in supervisor_at:
                run.process.kill()
                run.process.wait()
                run.start()
                adopted = sorted(supervisor_at).index(len(got)) + 1
                wait_until(
                    lambda: run.text().count("feed_adopted") == adopted and run.status(),
                    "the successor",
                )
            elif len(got) % 5 == 2 and victims.total() < kills:
                wait_until(run.all_workers, "a worker")
                if name := kill_a_worker(run, rng):
                    victims[name] += 1
    assert run.wait() == 0, run.text()
    assert victims.total() == kills and len(victims) == 3, victims
    assert "dead_letter" not in run.text()
    return got


@pytest.mark.parametrize(
    "name, supervisor_at, seed",
    [("nllb", (), 1), ("nllb", (11, 40), 2), ("own", (), 3), ("own", (23,), 4)],
)
def test_ranks_notice_no_death(
    make_bitext: MakeBitext, tmp_path: Path, name: str, supervisor_at: Sequence[int], seed: int
) -> None:
    if name == "nllb":
        config = example("d_virtual_epochs", threads=2, stand_in_first=True)
        run = Reference(config)
        want = [batch for epoch in run.epochs(7) for batch in given(epoch)]
        epochs = 7
    else:
        config = own_config(
            tmp_path / "data",
            sampling_method="TEMPERATURE",
            virtual_epoch_size=120,
            world_size=2,
            threads=2,
        )
        own = Own(config)
        epochs = 10
        want = [batch for n in range(1, 11) for batch in given(own.epoch(n))]
    assert len(want) > 75
    feed = make_bitext(config, epochs=epochs, extra=f"{OFTEN} {APART}", **NARROW)
    assert_batches(killed(feed, 2, 13, supervisor_at, seed), want, config)


# --- Resuming -----------------------------------------------------------------------------------


def mark(source: Any) -> str:
    """A digest of what a batch or a sample holds, whoever gets it; of an empty sample ""."""
    if not source:
        return ""
    flat_ = {**source, **source.get("net_input", {})}
    sha = hashlib.blake2b(digest_size=12)
    for name in ("direction", "id", *reference.TENSORS):
        array = np.asarray(flat_[name])
        sha.update(np.array(array.shape, "<i8"))
        sha.update(np.ascontiguousarray(array).astype("<i8"))
    return sha.hexdigest()


def by_all(ranks: Sequence[Any], what: Callable[[Any], Any]) -> list[Any]:
    """Have every rank do something at the same time: one may wait for what another one holds."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(what, ranks))


def turns(iterators: Sequence[Any]) -> Iterator[list[Any]]:
    """What all ranks get, turn by turn; they come to their end together."""
    while True:
        got = by_all(iterators, lambda iterator: next(iterator, None))
        ended = [one is None for one in got]
        assert len(set(ended)) == 1, f"some ranks are at their end: {ended}"
        if ended[0]:
            return
        yield got


@dataclass
class Undisturbed:
    """A run of 8 ranks from its first epoch to its last."""

    config: Config
    order: dict[int, list[str]]  # by epoch: the mark of each batch over all ranks
    states: list[dict[str, Any]]  # between two turns: that of each rank
    firsts: dict[int, list[str]]  # by epoch: the first batch of each rank

    def rest(self, epoch: int, batch: int) -> list[tuple[int, int, str]]:
        """Epoch, number and mark of all batches from one on."""
        return [
            (e, n, made)
            for e, of_epoch in self.order.items()
            for n, made in enumerate(of_epoch)
            if (e, n) >= (epoch, batch)
        ]


EPOCHS_OF_RUN = 9


@pytest.fixture(scope="module")
def undisturbed(
    with_torch: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Undisturbed]:
    top = tmp_path_factory.mktemp("undisturbed")
    config = own_config(
        top / "data",
        seed=3,
        corpus={"directions": 6, "sentences": 130},
        sampling_method="TEMPERATURE",
        virtual_epoch_size=220,
        max_tokens=80,
        world_size=8,
    )
    run = feeds.bitext_run(top / "run", config, epochs=EPOCHS_OF_RUN)
    made = Undisturbed(config, {}, [], {})
    try:
        with feeds.members(run.start(), 8) as ranks:
            iterators = [EpochIterator(feed) for feed in ranks]
            for epoch in range(1, EPOCHS_OF_RUN + 1):
                order: list[str] = []
                of_epoch = by_all(iterators, EpochIterator.next_epoch_itr)
                for got in turns(of_epoch):
                    order += [mark(one) for one in got]
                    # What is saved is the same, whoever saves it.
                    states = [iterator.state_dict() for iterator in iterators]
                    assert all(state == states[0] for state in states)
                    made.states.append(states[0])
                made.order[epoch] = [one for one in order if one]
                # What is missing stands at the end.
                assert order == made.order[epoch] + [""] * (-len(made.order[epoch]) % 8)
        assert run.wait() == 0, run.text()
    finally:
        run.close()
    own = Own(config)
    for epoch, order in made.order.items():
        wanted = own.epoch(epoch)
        assert order == [mark(wanted.batch(n)) for n in range(len(wanted.shuffled))]
    passes = {own.pass_of(epoch) for epoch in made.order}
    lengths = {len(order) for order in made.order.values()}
    assert len(passes) >= 4 and min(lengths) < 8 and max(lengths) > 30
    yield made


def plain_state(epoch: int, batch: int) -> dict[str, Any]:
    """A state that says no more than where it is."""
    own = {"version": 1, "batch": batch, "chain": [1, 0], "world_size": 1}
    own |= {"weights": None, "coming": [], "updates_from": None}
    return {
        **{"version": 2, "epoch": epoch, "iterations_in_epoch": 0, "shuffle": True},
        "ringfeed": own,
    }


def random_state(draw: random.Random, made: Undisturbed) -> tuple[dict[str, Any], int, int]:
    """A state of the undisturbed run, and the batch that comes next: of the run's, or any other."""
    if draw.random() < 0.5:
        state = draw.choice(made.states[:-1])
        return state, state["epoch"], state["ringfeed"]["batch"]
    epoch = draw.choice(list(made.order))
    batch = draw.randrange(len(made.order[epoch]))
    return plain_state(epoch, batch), epoch, batch


def assert_goes_on(
    got: Sequence[tuple[int, Arrays]], made: Undisturbed, epoch: int, batch: int, world: int
) -> None:
    """Numbers in the feed and batches: the rest of the run from a batch on, or its begin.

    Each epoch is padded with stand-ins, so that all ranks make equally many steps.
    """
    assert (got[0][0] - 1) % world == 0, "begins with the first rank"
    wanted = iter(made.rest(epoch, batch))
    steps = 0
    at = epoch
    for seq, arrays in got:
        assert seq == got[0][0] + steps
        place = feeds.Place.of(arrays)
        assert place.world_size == world
        if place.epoch != at:
            assert steps % world == 0, "an epoch ends for all ranks at once"
            at = place.epoch
        if place.kind == reference.BATCH:
            assert (place.epoch, place.batch, mark(arrays)) == next(wanted)
        else:
            assert place.kind == reference.STAND_IN and place.batch == place.batches
            assert steps % world != 0, "no more stand-ins than are needed"
        steps += 1


def test_200_resumes_of_a_running_feed(make_bitext: MakeBitext, undisturbed: Undisturbed) -> None:
    draw = random.Random(5)
    shared = 'groups { name: "all" }'
    run = make_bitext(replace(undisturbed.config, world_size=1), epochs=0, groups=shared).start()
    worlds = set()
    with feeds.member(run, None, None, "all") as feed:
        for number in range(200):
            state, epoch, batch = random_state(draw, undisturbed)
            world = draw.randint(1, 8)
            worlds.add(world)
            there = load_state(feed, state, world)
            assert (there.epoch, there.batch, there.world_size) == (epoch, batch, world)
            assert there.generation == number + 1
            rest = undisturbed.rest(epoch, batch)
            # Some to the end of the run, others for some turns.
            count = len(rest) if number % 20 == 0 else min(len(rest), draw.randint(1, 60))
            got: list[tuple[int, Arrays]] = []
            while sum(kind_of(arrays) == reference.BATCH for _, arrays in got) < count:
                one = feed.next()
                got.append((one.seq, feeds.arrays_of(one)))
            # The stand-ins behind them too, if there are any.
            if count == len(rest):
                assert feeds.Place.of(got[-1][1]).epoch == EPOCHS_OF_RUN
            assert all(arrays["position"][4] == number + 1 for _, arrays in got)
            assert_goes_on(got, undisturbed, epoch, batch, world)
    assert worlds == set(range(1, 9))


def assert_ranks_go_on(
    iterators: Sequence[EpochIterator], made: Undisturbed, epoch: int, batch: int
) -> None:
    """All ranks together get the rest of the run, to its end."""
    world = len(iterators)
    while epoch <= EPOCHS_OF_RUN:
        assert {iterator.next_epoch_idx for iterator in iterators} == {epoch}
        of_epoch = by_all(iterators, EpochIterator.next_epoch_itr)
        lengths = {len(iterator) for iterator in of_epoch}
        got = [mark(one) for turn in turns(of_epoch) for one in turn]
        wanted = made.order[epoch][batch:]
        assert got == wanted + [""] * (-len(wanted) % world)
        assert lengths == {-(-batch // world) + len(got) // world}
        epoch, batch = epoch + 1, 0


def test_ranks_of_a_running_feed_go_back(make_bitext: MakeBitext, undisturbed: Undisturbed) -> None:
    """Again and again all ranks load the same state."""
    draw = random.Random(6)
    run = make_bitext(replace(undisturbed.config, world_size=3), epochs=0).start()
    with feeds.members(run, 3) as ranks:
        iterators = [EpochIterator(feed) for feed in ranks]
        for attempt in range(12):
            state, epoch, batch = random_state(draw, undisturbed)
            for iterator in iterators:
                iterator.load_state_dict(state, attempt=attempt)
            if attempt % 4 == 0:
                assert_ranks_go_on(iterators, undisturbed, epoch, batch)
                continue
            for _ in range(draw.randint(0, 20)):
                of_epoch = by_all(iterators, EpochIterator.next_epoch_itr)
                got = [mark(one) for one in next(turns(of_epoch))]
                wanted = undisturbed.order[epoch][batch : batch + 3]
                assert got == wanted + [""] * (3 - len(wanted))
                batch += 3
                if batch >= len(undisturbed.order[epoch]):
                    epoch, batch = epoch + 1, 0
                    if epoch > EPOCHS_OF_RUN:
                        break


@pytest.mark.parametrize("world, seed", [(8, 1), (1, 2), (3, 3), (5, 4)])
def test_a_state_is_loaded_into_a_new_feed(
    make_bitext: MakeBitext, undisturbed: Undisturbed, world: int, seed: int
) -> None:
    state, epoch, batch = random_state(random.Random(seed), undisturbed)
    config = replace(undisturbed.config, world_size=world)
    run = make_bitext(config, epochs=EPOCHS_OF_RUN).start()
    with feeds.members(run, world) as ranks:
        iterators = [EpochIterator(feed) for feed in ranks]
        for iterator in iterators:
            iterator.load_state_dict(state, attempt="first")
            assert (iterator.epoch, iterator.iterations_in_epoch) == (epoch, -(-batch // world))
        assert_ranks_go_on(iterators, undisturbed, epoch, batch)
    assert run.wait() == 0, run.text()


def test_a_rank_that_loads_late_is_answered_by_a_planner_whose_run_is_over(
    make_bitext: MakeBitext, undisturbed: Undisturbed
) -> None:
    config = replace(undisturbed.config, world_size=1)
    run = make_bitext(config, epochs=EPOCHS_OF_RUN, groups='groups { name: "all" }').start()
    state = plain_state(EPOCHS_OF_RUN, len(undisturbed.order[EPOCHS_OF_RUN]) - 3)

    def is_over() -> bool:
        return any(
            (lane["name"], lane["state"]) == ("plans.0", "ENDED")
            for stage in run.status()["stages"]
            for lane in stage["lanes"]
        )

    with feeds.member(run, None, None, "all") as feed:
        there = load_state(feed, state, attempt="same")
        feed.next().release()
        wait_until(is_over, "the planner's end")
        assert load_state(feed, state, attempt="same") == there
        with pytest.raises(ringfeed.InvalidRequest, match="all its epochs are planned"):
            load_state(feed, state, attempt="another")


@pytest.mark.parametrize("world, epoch, batch", [(8, 4, 16), (3, 1, 17), (1, 9, 5)])
def test_a_new_feed_begins_where_it_is_told(
    make_bitext: MakeBitext, undisturbed: Undisturbed, world: int, epoch: int, batch: int
) -> None:
    start = {"start_epoch": epoch, "start_batch": batch}
    config = replace(undisturbed.config, world_size=world, **start)
    got = all_of(make_bitext(config, epochs=EPOCHS_OF_RUN - epoch + 1), world)
    assert_goes_on(list(enumerate(got, 1)), undisturbed, epoch, batch, world)
    real = [arrays for arrays in got if kind_of(arrays) == reference.BATCH]
    assert len(real) == len(undisturbed.rest(epoch, batch))


def test_a_snapshot_is_resumed_by_all_ranks(
    make_bitext: MakeBitext, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Behind it the ranks went on; what they did is done again."""
    run = make_bitext(undisturbed.config, epochs=EPOCHS_OF_RUN).start()
    with feeds.members(run, 8) as ranks:
        before = list(itertools.islice(feeds.in_turn(ranks), 5 * 8))
        states = [feed.state_dict() for feed in ranks]
        ranks[0].snapshot(tmp_path / "saved")
        after = [mark(arrays) for arrays in itertools.islice(feeds.in_turn(ranks), 7 * 8)]
    workers = run.all_workers()
    run.process.kill()
    run.process.wait()
    for pid in workers.values():
        with contextlib.suppress(ProcessLookupError):  # it had done its work
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not run.all_workers(), "everybody's end")
    resumed = make_bitext(undisturbed.config, epochs=EPOCHS_OF_RUN)
    resumed.start("--resume", str(tmp_path / "saved"))
    with feeds.members(resumed, 8) as ranks:
        for feed, state in zip(ranks, states, strict=True):
            feed.load_state_dict(state)
        got = list(feeds.in_turn(ranks))
    assert resumed.wait() == 0, resumed.text()
    assert [mark(arrays) for arrays in got[: 7 * 8]] == after
    real = [mark(arrays) for arrays in before + got if kind_of(arrays) == reference.BATCH]
    assert real == [made for _, _, made in undisturbed.rest(1, 0)]


# --- States of fairseq --------------------------------------------------------------------------


def fairseq_state(epoch: int, iterations: int) -> dict[str, Any]:
    return {"version": 2, "epoch": epoch, "iterations_in_epoch": iterations, "shuffle": True}


FORGETFUL = {
    "temperature": {"sampling_method": "TEMPERATURE"},
    "virtual epochs": {"sampling_method": "TEMPERATURE", "virtual_epoch_size": 90},
    "virtual data": {
        "sampling_method": "TEMPERATURE",
        "virtual_epoch_size": 90,
        "virtual_data_size": 200,
    },
    "local": {"sampling_method": "TEMPERATURE", "use_local_shard_size": True},
    "concat": {},
}


@pytest.mark.parametrize("name", FORGETFUL)
def test_a_state_of_fairseq_is_resumed_as_fairseq_does_it(
    make_bitext: MakeBitext, tmp_path: Path, name: str
) -> None:
    corpus = {"empty_shards": False, "sentences": 100}
    config = own_config(
        tmp_path / "data", corpus=corpus, seed=8, compat="NLLB", world_size=2, **FORGETFUL[name]
    )
    draw = random.Random(name)
    whole = Reference(config)
    run = make_bitext(config, epochs=0, groups='groups { name: "all" }').start()
    differ = 0
    number = 0
    with feeds.member(run, None, None, "all") as feed:
        while number < 12:
            world = draw.choice([2, 2, 1, 3])
            exact = draw.random() < 0.3
            epoch = draw.randint(1, 8)
            iterations = draw.randrange(max(1, whole.epoch(epoch).per_rank))
            there = Reference(replace(config, world_size=world))
            try:
                if not exact:
                    there = whole.resumed(epoch, iterations, world_size=world)
                    there.epoch(epoch)
            except Refused:  # another drawing, or more ranks: it has no such batch
                continue
            number += 1
            chain = (1, 0) if exact else (epoch, 0)
            begins = [iterations * world, 0, 0]
            want = [
                batch
                for n, begin in enumerate(begins)
                for batch in feeds.rest_of(
                    there.epoch(epoch + n), begin, world, generation=number, chain=chain
                )
            ]
            same = [
                batch["id"] == whole.epoch(epoch).batch(batch["batch"])["id"]
                for batch in want
                if (batch["epoch"], batch["kind"]) == (epoch, reference.BATCH)
            ]
            if not same:  # all of them are left out
                number -= 1
                continue
            assert all(same) or not exact
            differ += not all(same)
            load_state(feed, fairseq_state(epoch, iterations), world, exact=exact)
            got = [feeds.arrays_of(feed.next()) for _ in want]
            assert_batches(got, want, config)
    assert (differ > 3) == (name not in ("concat", "local")), differ


# --- Weights ------------------------------------------------------------------------------------


def without_batches(position: Sequence[int]) -> list[int]:
    """A place, without the epoch's length: it changes when weights end the epoch."""
    return [*position[:2], *position[3:]]


def test_weights_that_change_while_the_feed_runs(make_bitext: MakeBitext, tmp_path: Path) -> None:
    config = own_config(
        tmp_path / "data",
        seed=3,
        corpus={"sentences": 130},
        sampling_method="TEMPERATURE",
        virtual_epoch_size=200,
        max_tokens=80,
        world_size=2,
    )
    own = Own(config)
    keys = [pair if number % 2 else f"main:{pair}" for number, pair in enumerate(config.lang_pairs)]
    draw = random.Random(9)
    run = make_bitext(config, epochs=0, slots=4, planner="queue_capacity: 2").start()
    epoch, chain, weights = 1, (1, 0), None
    with feeds.members(run, 2) as ranks:
        stream = feeds.in_turn(ranks)
        for change in range(6):
            wanted = own.epoch(epoch, chain, weights)
            got = list(itertools.islice(stream, 2 * draw.randint(1, 5)))
            new = {key: draw.choice([0, 0.5, 1, 4]) for key in keys} | {keys[-2]: 1.5}
            from_batch = draw.choice([None, 0, 12, 17])
            there = set_weights(ranks[change % 2], new, from_batch, attempt=change)
            # What was on its way still comes.
            assert there.epoch == epoch
            end = there.from_batch
            assert len(got) <= end <= len(wanted.shuffled)
            if (from_batch or 0) > len(got) + 10:
                assert end == from_batch
            left = sum(len(indices) for indices in wanted.shuffled[end:])
            assert there.sentences_left == left
            want = feeds.rest_of(wanted, 0, 2, end=end, chain=chain)
            got += itertools.islice(stream, len(want) - len(got))
            for arrays, batch in zip(got, want, strict=True):
                lengths = {arrays["position"][2], batch["position"][2]}
                assert lengths <= {end, len(wanted.shuffled)}
                place = without_batches(arrays["position"].tolist())
                assert place == without_batches(batch["position"])
                feeds.assert_batch(
                    {**arrays, "position": np.array(batch["position"])}, batch, config
                )
                if batch["kind"] == reference.STAND_IN:
                    assert arrays["position"][1:3].tolist() == [end, end]
            chain = (epoch + 1, own.shape(epoch, chain, weights).number + 1)
            weights = [new.get(key) or new.get(f"main:{key}", 0) for key in config.lang_pairs]
            epoch += 1
            if change % 2:
                whole = feeds.rest_of(own.epoch(epoch, chain, weights), 0, 2, chain=chain)
                assert_batches(list(itertools.islice(stream, len(whole))), whole, config)
                epoch += 1


def test_a_message_that_is_refused_fails_the_command(
    make_bitext: MakeBitext, tmp_path: Path
) -> None:
    config = own_config(tmp_path / "data", max_tokens=80)
    run = make_bitext(config, epochs=0, planner="queue_capacity: 1").start()
    wait_until(lambda: run.status(), "the supervisor")
    weights = " ".join(
        f'weights {{ key: "{pair}" weight: 1 }}' for pair in [*config.lang_pairs[1:], "eng-xyz"]
    )
    message = f"epoch_planner_request {{ {weights} }}"
    shown = run.command("control", "mt", message)
    assert shown.returncode == 1
    assert "plans: epoch_planner_response" in shown.stdout and "error: " in shown.stdout
    of_program = run.command("control", "mt", message, "--json")
    assert of_program.returncode == 1
    assert json.loads(of_program.stdout)["plans"]["epoch_planner_response"]["error"]
    assert run.command("control", "mt", "epoch_planner_request {}").returncode == 0


@pytest.mark.usefixtures("with_torch")
def test_a_state_knows_the_weights(make_bitext: MakeBitext, tmp_path: Path) -> None:
    """Set by all ranks; saved before they are in effect, and after; loaded into new feeds."""
    settings = {"sampling_method": "UNIFORM", "virtual_epoch_size": 200, "max_tokens": 80}
    config = own_config(
        tmp_path / "data", seed=3, corpus={"sentences": 130}, world_size=3, **settings
    )
    new = dict(zip(config.lang_pairs, (1, 0, 2, 3, 0.5), strict=True))
    run = make_bitext(config, epochs=0, slots=4, planner="queue_capacity: 1").start()
    order: list[tuple[int, str]] = []
    saved: list[tuple[dict[str, Any], int]] = []
    with feeds.members(run, 3) as ranks:
        iterators = [EpochIterator(feed) for feed in ranks]
        for _ in range(4):
            of_epoch = by_all(iterators, EpochIterator.next_epoch_itr)
            for turn, got in enumerate(turns(of_epoch)):
                order += [(iterators[0].epoch, mark(one)) for one in got if one]
                if (iterators[0].epoch, turn) == (2, 0):
                    there = by_all(
                        iterators, lambda iterator: iterator.set_weights(new, 22, attempt="a")
                    )
                    assert there == [there[0]] * 3
                    assert (there[0].epoch, there[0].from_batch) == (2, 22)
                if iterators[0].epoch >= 2 and turn % 3 == 0:
                    states = [iterator.state_dict() for iterator in iterators]
                    assert states == [states[0]] * 3
                    saved.append((states[0], len(order)))
    own = Own(config)
    weights = [float(weight) for weight in new.values()]
    chain = (3, own.pass_of(2) + 1)
    wanted = feeds.rest_of(own.epoch(1), 0, 1) + feeds.rest_of(own.epoch(2), 0, 1, end=22)
    for epoch in (3, 4):
        wanted += feeds.rest_of(own.epoch(epoch, chain, weights), 0, 1, chain=chain)
    assert order == [(batch["epoch"], mark(batch)) for batch in wanted]
    kinds = {(s["epoch"], s["ringfeed"]["coming"] == []) for s, _ in saved}
    assert {(2, False), (3, True), (4, True)} <= kinds
    some = [saved[0], saved[1], *saved[2 :: max(1, len(saved) // 4)]]
    for number, (state, done) in enumerate(some):
        world = (3, 2, 1, 4)[number % 4]
        again = make_bitext(replace(config, world_size=world), epochs=0).start()
        with feeds.members(again, world) as ranks:
            iterators = [EpochIterator(feed) for feed in ranks]
            for iterator in iterators:
                iterator.load_state_dict(state, attempt=number)
            rest: list[tuple[int, str]] = []
            while iterators[0].next_epoch_idx <= 4:
                of_epoch = by_all(iterators, EpochIterator.next_epoch_itr)
                for got in turns(of_epoch):
                    rest += [(iterators[0].epoch, mark(one)) for one in got if one]
        assert rest == order[done:], (number, state)


# --- In place of fairseq's iterators ------------------------------------------------------------


def assert_is_sample(got: Any, batch: reference.Batch) -> None:
    """As fairseq's collater gives it; of a stand-in nothing."""
    if batch["kind"] == reference.STAND_IN:
        assert got == {}
        return
    assert list(got) == ["id", "nsentences", "ntokens", "net_input", "target"]
    assert list(got["net_input"]) == ["src_tokens", "src_lengths", "prev_output_tokens"]
    for name in ("src_tokens", "src_lengths", "prev_output_tokens"):
        assert got["net_input"][name].tolist() == batch[name]
    for name in ("id", "target"):
        assert got[name].tolist() == batch[name]
    assert (got["nsentences"], got["ntokens"]) == (batch["nsentences"], batch["ntokens"])
    arrays = [got["id"], got["target"], *got["net_input"].values()]
    assert {str(array.dtype) for array in arrays} == {"torch.int64"}


@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epoch_remainder_batch": True},
        {"update_freq": [3, 1, 2], "epoch_remainder_batch": True, "stand_in_first": True},
        {"update_freq": [5], "world_size": 3, "stand_in_first": True},
        {"update_freq": [4], "world_size": 3, "epoch_remainder_batch": True, "compact": True},
    ],
    ids=["example", "remainder", "list", "world", "compact"],
)
def test_updates_of_an_iterator(make_bitext: MakeBitext, changes: dict[str, Any]) -> None:
    config = example("b_nllb", **changes)
    world = config.world_size
    run = make_bitext(config, epochs=4).start()
    whole = Reference(config)
    with feeds.members(run, world) as ranks:
        iterators = [EpochIterator(feed) for feed in ranks]
        for number in range(1, 5):
            epoch = whole.epoch(number)
            assert {iterator.next_epoch_idx for iterator in iterators} == {number}
            of_epoch = by_all(iterators, EpochIterator.next_epoch_itr)
            assert {len(iterator) for iterator in of_epoch} == {len(epoch.taken)}
            updates = [GroupedIterator(iterator, epoch.update_freq) for iterator in of_epoch]
            assert {len(update) for update in updates} == {len(epoch.groups)}
            if config.stand_in_first:
                for iterator in iterators:
                    assert epoch.stand_in is not None
                    assert_is_sample(iterator.first_batch, {**epoch.stand_in, "kind": 2})
            done = 0
            for group, got in zip(epoch.groups, turns(updates), strict=True):
                for rank, samples in enumerate(got):
                    assert len(samples) == len(group)
                    for sample, place in zip(samples, group, strict=True):
                        assert_is_sample(sample, epoch.batch(place * world + rank))
                done += len(group)
                assert {update.n for update in updates} == {epoch.groups.index(group) + 1}
                for iterator in iterators:
                    state = iterator.state_dict()
                    assert state.pop("ringfeed")["batch"] in (0, *range(done * world + 1))
                    assert state == epoch.state_after(done)
            for iterator in iterators:
                assert iterator.end_of_epoch() and iterator.iterations_in_epoch == done
                state = iterator.state_dict()
                state.pop("ringfeed")
                assert state == epoch.state_at_end
        for iterator in iterators:
            with pytest.raises(ringfeed.FeedEnd):
                iterator.next_epoch_itr()
    assert run.wait() == 0, run.text()


@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize(
    "changes",
    [
        {"epoch_remainder_batch": True, "update_freq": [3]},
        {"update_freq": [3]},
        {"update_freq": [2, 4, 5]},
        {"compat": "MAIN", "update_freq": [3]},
    ],
    ids=["remainder", "dropped", "list", "main"],
)
def test_updates_go_on_behind_a_state(
    make_bitext: MakeBitext, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """With a state of fairseq, in the middle of an epoch, and of an update."""
    corpus = {"sentences": 600, "shards": 1}
    changes = {"compat": "NLLB", "world_size": 2, "lineage": False, **changes}
    config = own_config(tmp_path / "data", corpus=corpus, **changes)
    whole = Reference(config)
    run = make_bitext(config, epochs=0).start()
    draw = random.Random(2)
    middles = 0
    with feeds.members(run, 2) as ranks:
        iterators = [EpochIterator(feed) for feed in ranks]
        for attempt in range(20):
            number = draw.randint(1, 4)
            epoch = whole.epoch(number)
            every = epoch.update_freq
            taken = draw.randrange(1, len(epoch.taken) - 2 * every)
            if attempt % 2:
                taken = -(-taken // every) * every
            middles += taken % every != 0
            state = epoch.state_after(taken)
            assert state["iterations_in_epoch"] == taken
            there = whole.resumed(number, taken).epoch(number)
            for iterator in iterators:
                iterator.load_state_dict(state, attempt=attempt)
                assert iterator.iterations_in_epoch == taken
            of_epoch = by_all(iterators, EpochIterator.next_epoch_itr)
            updates = [GroupedIterator(iterator, every) for iterator in of_epoch]
            # An update that was begun counts.
            assert {update.n for update in updates} == {-(-taken // every)}
            assert {len(update) for update in updates} == {len(epoch.groups)}
            got_of = list(itertools.islice(turns(updates), draw.randrange(len(there.groups))))
            if attempt % 4 < 2:
                # What is gone on with is saved and gone on with in turn, exactly.
                for iterator, own in zip(
                    iterators, [i.state_dict() for i in iterators], strict=True
                ):
                    iterator.load_state_dict(own, attempt=f"{attempt} again")
                of_epoch = by_all(iterators, EpochIterator.next_epoch_itr)
                updates = [GroupedIterator(iterator, every) for iterator in of_epoch]
                assert {update.n for update in updates} == {-(-taken // every) + len(got_of)}
                assert {len(update) for update in updates} == {len(epoch.groups)}
            got_of += turns(updates)
            for group, got in zip(there.groups, got_of, strict=True):
                for rank, samples in enumerate(got):
                    wanted = [there.batch(place * 2 + rank) for place in group]
                    for sample, batch in zip(samples, wanted, strict=True):
                        assert_is_sample(sample, batch)
    assert middles > 3


# --- Bad input ----------------------------------------------------------------------------------


def small(top: Path, shards: int = 2, **changes: Any) -> Config:
    """Four directions in two shards."""
    corpus = {"sentences": 20, "shards": shards, "directions": 4, "both_ways": False}
    corpus |= {"empty_shards": False}
    changes = {"max_tokens": 40, **changes}
    return own_config(top / "data", seed=3, corpus=corpus, **changes)


def in_place_of(path: Path, data: bytes) -> None:
    """Another file of this name; who has opened the former one keeps it."""
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").rename(path)


def patched(config: Config, shard: int, name: str, change: Callable[[bytes], bytes]) -> str:
    """Change a file; its path."""
    path = Path(config.directory[shard]) / name
    path.write_bytes(change(path.read_bytes()))
    return str(path)


def no_files(config: Config) -> tuple[Config, list[str]]:
    changed = replace(config, lang_pairs=[*config.lang_pairs, "eng-jpn", "jpn-tur"])
    fairseq_data.write_dictionary(f"{config.directory[0]}/dict.jpn.txt", 100)
    named = ["main:eng-jpn", "main:jpn-tur", "train.eng-jpn.eng.idx", *config.directory]
    return changed, [*named, "eng-fra, eng-hin", "correct the pair", "allow_missing"]


def cut_index(config: Config) -> tuple[Config, list[str]]:
    path = patched(config, 0, "train.eng-tur.tur.idx", lambda data: data[:-5])
    return config, [f"{path}: offset 18: it claims 16 sentences", "213 bytes", "copy it again"]


def no_index(config: Config) -> tuple[Config, list[str]]:
    path = patched(config, 1, "train.eng-tur.eng.idx", lambda data: b"no index" + data[8:])
    return config, [f"{path}: offset 0: it is not the index", "MMIDIDX and TNTIDX are supported"]


def unknown_code(config: Config) -> tuple[Config, list[str]]:
    change = lambda data: data[:17] + b"\6" + data[18:]  # noqa: E731
    path = patched(config, 1, "train.eng-tur.eng.idx", change)
    return config, [
        f"{path}: offset 17: the code of the token type is 6",
        "binarize the text again",
    ]


def other_version(config: Config) -> tuple[Config, list[str]]:
    change = lambda data: data[:9] + b"\2" + data[10:]  # noqa: E731
    path = patched(config, 0, "train.eng-hin.hin.idx", change)
    return config, [f"{path}: offset 9: it has version 2", "binarize the text again"]


def huffman(config: Config) -> tuple[Config, list[str]]:
    path = patched(config, 0, "train.eng-hin.hin.idx", lambda data: b"HUFFIDX\0" + data[8:])
    return config, [f"{path}: offset 0: it is Huffman-coded", "--dataset-impl mmap"]


def bad_line(config: Config) -> tuple[Config, list[str]]:
    path = patched(config, 0, "dict.tur.txt", lambda data: data.replace(b"w5 1", b"w5 one"))
    return config, [f"{path}: line 6 (offset 25): 'w5 one'", "write it as 'SYMBOL COUNT'"]


def repeated_symbol(config: Config) -> tuple[Config, list[str]]:
    path = patched(config, 0, "dict.tur.txt", lambda data: data.replace(b"w5 1", b"w4 1"))
    return config, [f"{path}: line 6 (offset 25): 'w4' already has id 8", "remove the line"]


def other_dictionary(config: Config) -> tuple[Config, list[str]]:
    path = patched(config, 0, "dict.tur.txt", lambda data: data.replace(b"w5 1", b"x5 1"))
    return config, [path, "id 9 is 'w5' in the first and 'x5' in the second", "--srcdict"]


def unequal_sides(config: Config) -> tuple[Config, list[str]]:
    prefix = f"{config.directory[0]}/train.eng-tur"
    fairseq_data.write_mapped(f"{prefix}.tur", [[4, 2]] * 3)
    return config, [f"{prefix}.eng.idx has 16 sentences and {prefix}.tur.idx 3", "binarize both"]


def wrong_pairs(config: Config) -> tuple[Config, list[str]]:
    pairs = ["eng_tur", *config.lang_pairs, config.lang_pairs[0]]
    return replace(config, lang_pairs=pairs), [
        *("'eng_tur' is not a direction", "give one SRC-TGT per entry"),
        *("'eng-tur' is listed twice", "keep one"),
    ]


def no_tokens(config: Config) -> tuple[Config, list[str]]:
    path = Path(config.directory[0]) / "train.eng-tur.tur.bin"
    path.unlink()
    return config, [f"{path}: there is no such file", "a pair PREFIX.bin and PREFIX.idx"]


def cut_tokens(config: Config) -> tuple[Config, list[str]]:
    path = patched(config, 1, "train.eng-tur.tur.bin", lambda data: data[:-1])
    size = Path(path).stat().st_size
    return config, [f"{path}: offset {size}: it ends there", "copy both files again"]


def no_language(config: Config) -> tuple[Config, list[str]]:
    return replace(config, langs=["eng", "tur"]), [
        *("language hin of main:eng-hin is not among the 2 that have tokens", "add it to langs"),
    ]


def joined_directories(config: Config) -> tuple[Config, list[str]]:
    both = ":".join(config.directory)
    return replace(config, directory=[both]), [
        *(f"{both}: cannot be opened", "a separate entry instead of joined by colons"),
    ]


@pytest.mark.parametrize(
    "spoil",
    [
        *(no_files, cut_index, no_index, unknown_code, other_version, huffman, bad_line),
        *(repeated_symbol, other_dictionary, unequal_sides, wrong_pairs, no_tokens, no_language),
        *(cut_tokens, joined_directories),
    ],
)
def test_what_can_be_seen_before_is_refused(
    make_bitext: MakeBitext,
    tmp_path: Path,
    spoil: Callable[[Config], tuple[Config, list[str]]],
) -> None:
    """With file, place and remedy, and the line of the configuration; by check and by run."""
    config, words = spoil(small(tmp_path))
    run = make_bitext(config)
    checked = run.command("check", str(run.config))
    assert checked.returncode == 3
    lines = checked.stderr.splitlines()
    assert all(line.startswith(f"{run.config}:") and "stage 'bitext': " in line for line in lines)
    for word in words:
        assert word in checked.stderr
    assert run.start().wait() == 3
    assert run.text() == checked.stderr
    assert not run.record()


def test_directions_without_files_are_warned_of_where_they_are_allowed(
    make_bitext: MakeBitext, tmp_path: Path
) -> None:
    """By check and by run, with the line of the configuration; and the feed runs without them."""
    config = small(tmp_path, compat="NLLB", world_size=1)
    want = all_of(make_bitext(config), 1)
    config = replace(config, lang_pairs=[*config.lang_pairs, "eng-jpn"])
    fairseq_data.write_dictionary(f"{config.directory[0]}/dict.jpn.txt", 100)
    run = make_bitext(config)
    checked = run.command("check", str(run.config))
    assert checked.returncode == 0
    (line,) = checked.stderr.splitlines()
    assert line.startswith(f"warning: {run.config}:") and "stage 'bitext': " in line
    for word in ("main:eng-jpn has no token files", "train.eng-jpn.eng.idx", "(compat: NLLB)"):
        assert word in line
    assert len(all_of(run, 1)) == len(want)
    assert line in run.text()


def test_a_stage_that_is_warned_of_can_have_another_program(
    make_bitext: MakeBitext, tmp_path: Path
) -> None:
    config = small(tmp_path, max_tokens=4000)
    run = make_bitext(config, epochs=0, planner="queue_bytes: 65536").start()
    wait_until(lambda: run.status(), "the supervisor")
    assert "a batch plan may take" in run.text()
    newer = tmp_path / "newer-worker"
    shutil.copy(BIN / "ringfeed-worker", newer)
    for stage in run.status()["stages"]:
        if stage["name"] == "plans":
            done = run.command("restart", "mt", stage["group"], "--binary", str(newer))
            assert done.returncode == 0, done.stderr


def test_stages_of_different_compat_are_refused(make_bitext: MakeBitext, tmp_path: Path) -> None:
    run = make_bitext(small(tmp_path), planner="compat: NLLB")
    assert run.start().wait() == 3
    assert (
        "stage 'plans': compat is NLLB, but that of stage bitext is NONE; give both the same"
        in run.text()
    )


def counter(run: FeedRun, stage: str, name: str) -> int:
    """As `ringfeed status` shows it."""
    status = run.status()
    assert status is not None
    (found,) = [entry for entry in status["stages"] if entry["name"] == stage]
    values = [entry["value"] for entry in found.get("counters", []) if entry["name"] == name]
    return int(values[0]) if values else 0


def rows_of(batch: Arrays | reference.Batch) -> Counter[tuple[int, int]]:
    return Counter(zip(map(int, batch["direction"]), map(int, batch["id"]), strict=True))


def outside(config: Config, shard: int, number: int, size: int) -> set[tuple[int, int]]:
    """Sentences of a direction of which a source file of that many bytes lacks something."""
    prefix = f"{config.directory[shard]}/train.{config.lang_pairs[number]}.eng"
    file = reference.TokenFile(prefix)
    width = len(Path(f"{prefix}.bin").read_bytes()) // sum(file.sizes)
    ends = list(itertools.accumulate(file.sizes))
    return {(number, x) for x, end in enumerate(ends) if end * width > size}


@pytest.mark.parametrize("how", ["cut", "gone", "replaced"])
def test_rows_that_cannot_be_read_are_skipped_and_counted(
    make_bitext: MakeBitext, tmp_path: Path, how: str
) -> None:
    """Of a file that was whole when the feed began; the others of its batch come."""
    config = small(tmp_path, threads=2)
    # One that is gone or replaced is waited for when it is planned with again.
    epochs = 4 if how == "cut" else 2
    want = [batch for epoch in range(epochs) for batch in given(Own(config).epoch(1 + epoch))]
    run = make_bitext(config, epochs=epochs, slots=4, planner="queue_capacity: 1").start()
    path = Path(config.directory[1]) / "train.eng-tur.eng.bin"
    data = path.read_bytes()
    size = len(data) // 3 if how == "cut" else 0
    lost = outside(config, 1, 0, size)
    assert len(lost) > 3
    skipped = {"cut": "out_of_bounds", "gone": "unreadable", "replaced": "changed"}[how]
    got: list[Arrays] = []
    with feeds.members(run, 1) as (feed,):
        for batch in feed:
            got.append({name: np.array(batch[name]) for name in batch})
            if len(got) == 1:
                # The second shard has not been read yet: there is no room for that.
                assert want[4 + 1 + 2 + 2]["epoch"] == 1
                wait_until(lambda: "planned epoch=2 " in run.text(), "the plan of both shards")
                if how == "cut":
                    in_place_of(path, data[:size])
                elif how == "gone":
                    path.unlink()
                else:
                    fairseq_data.write_mapped(path.with_suffix(""), [[4, 2]] * 3)
            if len(got) == len(want):
                # The last batch is in hand, so the feed is still there.
                of_collator = feeds.metrics_of(feed)["batches"]
                shown = counter(run, "batches", f"skipped_{skipped}")
                of_line = json.loads(run.command("metrics", "mt", "--json").stdout)
            batch.release()
    assert run.wait() == 0, run.text()
    missing = 0
    for arrays, batch in zip(got, want, strict=True):
        assert arrays["position"].tolist() == batch["position"]
        here = lost if batch["epoch"] % 2 == 0 else set()
        kept = Counter({row: n for row, n in rows_of(batch).items() if row not in here})
        assert rows_of(arrays) == kept
        assert arrays["nsentences"].tolist() == [kept.total()] == [len(arrays["id"])]
        missing += len(batch["id"]) - kept.total()
    assert missing == epochs // 2 * len(lost)
    assert shown == of_collator[f"skipped_{skipped}"] == missing
    stages = of_line["total"]["stage_metrics"]
    (of_line,) = [stage["bitext_collator"] for stage in stages if stage["name"] == "batches"]
    assert int(of_line[f"skipped_{skipped}"]) == missing
    assert of_collator["rows"] == sum(len(batch["id"]) for batch in want) - missing
    assert of_collator["batches"] == len(want)
    said = [line for line in run.text().splitlines() if "stage=batches" in line]
    assert said and all(str(path.with_suffix("")) in line for line in said)
    assert all(" sentence=" in line and " offset=" not in line for line in said)


def test_a_file_that_is_cut_while_it_is_mapped(make_bitext: MakeBitext, tmp_path: Path) -> None:
    """Its reader dies of it; the next one sees how long it is now."""
    config = small(tmp_path)
    config = replace(config, directory=config.directory[:1])
    want = [batch for epoch in range(1, 9) for batch in given(Own(config).epoch(epoch))]
    path = Path(config.directory[0]) / "train.eng-tur.eng.bin"
    with path.open("ab") as file:  # so that it takes more than the page that is there anyhow
        file.write(bytes(3 * 4096))
    lost = outside(config, 0, 0, 0)
    extra = f"{OFTEN} {APART}"
    run = make_bitext(config, epochs=8, slots=4, planner="queue_capacity: 1", extra=extra).start()
    got: list[Arrays] = []
    with feeds.members(run, 1) as (feed,):
        for batch in feed:
            got.append({name: np.array(batch[name]) for name in batch})
            if len(got) == 2:
                os.truncate(path, 0)
            batch.release()
    assert run.wait() == 0, run.text()
    assert [arrays["position"].tolist() for arrays in got] == [b["position"] for b in want]
    for arrays, batch in zip(got, want, strict=True):
        assert rows_of(batch) - rows_of(arrays) <= Counter(dict.fromkeys(lost, 1))
        if batch["epoch"] > 2:
            assert not lost & set(rows_of(arrays))
    assert "worker_died" in run.text() and "dead_letter" not in run.text()


def test_an_index_that_is_another_one_is_waited_for(
    make_bitext: MakeBitext, tmp_path: Path
) -> None:
    """When the next epoch is planned with it; once the former one is back the feed goes on."""
    config = small(tmp_path, shards=3)
    epochs = [given(Own(config).epoch(epoch)) for epoch in range(1, 6)]
    run = make_bitext(config, epochs=5, slots=4, planner="queue_capacity: 1").start()
    path = Path(config.directory[0]) / "train.eng-tur.eng.idx"
    former = path.read_bytes()
    fairseq_data.write_mapped(tmp_path / "other", [[4, 2]] * 3)
    with feeds.members(run, 1) as (feed,):
        stream = feeds.in_turn([feed])
        got = list(itertools.islice(stream, len(epochs[0]) + 1))
        # The first shard is planned with again when the third epoch begins: the second one is
        # longer than what the feed holds.
        assert len(epochs[1]) > 10
        in_place_of(path, (tmp_path / "other.idx").read_bytes())
        got += itertools.islice(stream, len(epochs[1]) - 1 + len(epochs[2]))
        wait_until(lambda: "put the previous file back" in run.text(), "the planner's complaint")
        (line,) = [line for line in run.text().splitlines() if "put the previous" in line]
        assert f"{path}: 3 sentences" in line
        assert "3 sentences" in run.command("status", "mt").stdout
        in_place_of(path, former)
        got += stream
    assert run.wait() == 0, run.text()
    assert_batches(got, [batch for epoch in epochs for batch in epoch], config)
