"""Random configurations, corpora and interruptions: real feeds beside the reference, bit for bit.

    python tests/support/oracles/fairseq_random.py --first 1 --count 300 --work DIR [--jobs 2]

Each number is a case of its own: what is drawn depends on the number alone. A case is one of
    run        a feed from its start to its end, by all of its ranks
    killed     the same, while workers and the supervisor are killed
    states     a feed that is moved to random places by states, of fairseq and of EpochIterator; by
               some beyond the end of an epoch, which are refused and change nothing
    snapshot   a feed that is saved, killed, and resumed from what was saved
A case that disagrees is printed with its configuration, and its files stay in DIR. The exit status
is 1 if any does.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[3])]

import ringfeed  # noqa: E402
from ringfeed.fairseq import load_state  # noqa: E402

from tests.support.feeds import fairseq_feeds as feeds  # noqa: E402
from tests.support.feeds.fairseq_feeds import (  # noqa: E402
    Arrays,
    Own,
    assert_batch,
    assert_batches,
    given,
)
from tests.support.feeds.feed_run import FeedRun, wait_until  # noqa: E402
from tests.support.makers import fairseq_data  # noqa: E402
from tests.support.oracles.fairseq_reference import (  # noqa: E402
    Batch,
    Config,
    Epoch,
    Reference,
    Refused,
)

FOLDS = ["train", "train_mining", "train_mmt_bt", "train_smt_bt"]
KINDS = ("run", "killed", "states", "snapshot")
STAGES = ("bitext", "plans", "batches")
APART = " ".join(f'stage_groups {{ name: "{name}" stages: "{name}" }}' for name in STAGES)
# Deaths of one record are no reason to set it aside here: the killing is the test's.
OFTEN = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: 255 }"
BROADCAST = 'groups { name: "all" }'
EPOCHS = 5


# --- What is drawn ------------------------------------------------------------------------------


def draw_config(directory: Path, draw: random.Random, compat: str) -> Config:
    """A corpus, and a configuration that fits it; the reference may still refuse it."""

    def chance(share: float) -> bool:
        return draw.random() < share

    nllb, main = compat == "NLLB", compat == "MAIN"
    validation = chance(0.3)
    concat = validation or chance(0.35)
    folds = FOLDS[: draw.randint(1, 4)] if not main else ["train"]
    combine = main and chance(0.5)
    corpus = fairseq_data.random_corpus(
        directory,
        draw.randrange(1 << 30),
        directions=draw.choice([1, 1, 2, 3, 5, 7]),
        shards=draw.choice([1, 1, 2, 3, 4]),
        folds=[*folds, "train1"] if combine else folds,
        sentences=draw.choice([8, 20, 60, 120]),
        valid=draw.choice([1, 9, 40, 90]),
        longest=draw.choice([6, 24]),
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
        "max_tokens": draw.choice([None, 60, 120, 300]),
        "batch_size": draw.choice([None, None, 5, 17, 24, 40]),
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
        "lang_tok_replacing_bos_eos": chance(0.25),
    }
    if values["max_tokens"] is None and values["batch_size"] is None:
        values["batch_size"] = 17
    if values["truncate_source"] and values["encoder_langtok"] != "NO_LANGTOK":
        values["max_source_positions"] = values["truncate_source"] + draw.choice([1, 2])
    if values["lang_tok_replacing_bos_eos"]:
        values["left_pad_target"] = False
    if chance(0.25):
        values["pad_to_fixed_length"] = True
        for side in ("source", "target"):
            if values[f"max_{side}_positions"] > 30 or chance(0.5):
                values[f"fixed_{side}_length"] = draw.choice([5, 18, 30])
    if compat != "NONE":
        values["update_ordered_indices_seed"] = chance(0.5)
    if nllb:
        values["epoch_remainder_batch"] = chance(0.5)
        values["use_local_shard_size"] = chance(0.3)
        values["single_direction"] = validation and len(corpus.lang_pairs) == 1 and chance(0.5)
    if main and concat and chance(0.5):
        values["sampling_method"] = "ROUND_ROBIN"
    if not validation:
        values["update_freq"] = draw.choice([[], [2], [1, 3]])
        if not concat:
            values["sampling_method"] = draw.choice(["TEMPERATURE", "TEMPERATURE", "UNIFORM"])
            values["sampling_temperature"] = draw.choice([1.0, 1.5, 5.0])
            if chance(0.3):
                weights = {key: draw.choice([0.25, 1.0, 3.0]) for key in corpus.lang_pairs}
                values["sampling_weights"] = weights
            values["virtual_data_size"] = draw.choice([None, None, 90, 200])
        if values.get("sampling_method") != "ROUND_ROBIN":
            values["virtual_epoch_size"] = draw.choice([None, 50, 111])
    return Config(**values)


@dataclass
class Case:
    """A case that has an answer."""

    number: int
    kind: str
    config: Config
    draw: random.Random  # for all that is drawn from now on
    want: list[Batch]  # of its first EPOCHS epochs

    def __str__(self) -> str:
        plain = Config()
        told = [
            f"{entry.name}={getattr(self.config, entry.name)!r}"
            for entry in fields(Config)
            if getattr(self.config, entry.name) != getattr(plain, entry.name)
        ]
        return f"case {self.number} ({self.kind}): {', '.join(told)}"


def expected(config: Config, epochs: int) -> list[Batch]:
    """What a feed of this configuration gives."""
    if config.compat == "NONE":
        own = Own(config)
        return [batch for n in range(1, epochs + 1) for batch in given(own.epoch(n, (1, 0)))]
    run = Reference(config)
    return [batch for epoch in run.epochs(epochs) for batch in given(epoch)]


def draw_case(number: int, work: Path) -> Case:
    """The case of this number; its data are made in `work`."""
    draw = random.Random(f"case {number}")
    kind = KINDS[number % len(KINDS)]
    for attempt in itertools.count():
        # States of what is imitated are what is compared with most.
        compat = draw.choice(["NLLB", "NLLB", "MAIN", "NONE" if kind != "states" else "MAIN"])
        directory = work / f"data{attempt}"
        config = draw_config(directory, draw, compat)
        try:
            want = expected(config, EPOCHS)
        except Refused:
            want = []
        if want and (kind != "snapshot" or len(want) > 4 * config.world_size):
            return Case(number, kind, config, draw, want)
        shutil.rmtree(directory)
    raise AssertionError


# --- What is done -------------------------------------------------------------------------------


@contextlib.contextmanager
def feed_of(case: Case, work: Path, name: str, **settings: Any) -> Iterator[FeedRun]:
    """A feed of the case, which is over afterwards."""
    run = feeds.bitext_run(work / name, case.config, **settings)
    try:
        yield run
    finally:
        if run.process is not None and run.process.poll() is None:
            run.command("stop", run.feed, "--now")
        run.close()


def check_run(case: Case, work: Path) -> None:
    """From the start to the end."""
    with feed_of(case, work, "run", epochs=EPOCHS) as run:
        assert_batches(feeds.all_of(run, case.config.world_size), case.want, case.config)


def strike(run: FeedRun, name: str, pid: int) -> None:
    """Kill a worker, and wait until it is gone; its successor may be there already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: run.all_workers().get(name) != pid, f"the end of {name}")


def check_killed(case: Case, work: Path) -> None:
    """The same while processes die."""
    draw, world = case.draw, case.config.world_size
    count = len(case.want)
    at = {draw.randrange(count) for _ in range(6)}
    supervisor_at = {draw.randrange(count)} if draw.random() < 0.4 else set()
    extra = f"{OFTEN} {APART}"
    # With little room everybody is in the middle of something.
    narrow: dict[str, Any] = {"slots": 2 * world + 2, "planner": "queue_capacity: 2"}
    adoptions = 0
    with feed_of(case, work, "run", epochs=EPOCHS, extra=extra, **narrow) as run:
        run.start()
        got: list[Arrays] = []
        with feeds.members(run, world) as ranks:
            for arrays in feeds.in_turn(ranks):
                if len(got) in supervisor_at and run.all_workers():
                    run.process.kill()
                    run.process.wait()
                    run.start()
                    adoptions += 1
                    wait_until(
                        lambda: run.text().count("feed_adopted") >= adoptions
                        or run.process.poll() is not None,
                        "the successor",
                    )
                elif len(got) in at:
                    living = sorted(run.all_workers().items())
                    if living:
                        strike(run, *draw.choice(living))
                got.append(arrays)
        assert run.wait() == 0, run.text()
        assert_batches(got, case.want, case.config)


def check_snapshot(case: Case, work: Path) -> None:
    """Saved in the middle, and gone on with by other processes."""
    world = case.config.world_size
    turns = len(case.want) // world
    before = case.draw.randrange(1, max(2, turns - 1)) * world
    want = case.want
    with feed_of(case, work, "saved", epochs=EPOCHS) as run:
        run.start()
        with feeds.members(run, world) as ranks:
            got = list(itertools.islice(feeds.in_turn(ranks), before))
            assert_batches(got, want[:before], case.config)
            states = [feed.state_dict() for feed in ranks]
            ranks[0].snapshot(work / "snapshot")
        workers = run.all_workers()
        run.process.kill()
        run.process.wait()
        for pid in workers.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not run.all_workers(), "everybody's end")
    with feed_of(case, work, "resumed", epochs=EPOCHS) as run:
        run.start("--resume", str(work / "snapshot"))
        with feeds.members(run, world) as ranks:
            for feed, state in zip(ranks, states, strict=True):
                feed.load_state_dict(state)
            got = list(feeds.in_turn(ranks))
        assert run.wait() == 0, run.text()
        assert_batches(got, want[before:], case.config)


def own_state(epoch: int, batch: int, world: int) -> dict[str, Any]:
    """A state as an EpochIterator of so many ranks saves it at a batch over all of them."""
    own = {"version": 1, "batch": batch, "chain": [1, 0], "world_size": world}
    own |= {"weights": None, "coming": [], "updates_from": None}
    return {**fairseq_state(epoch, -(-batch // world)), "ringfeed": own}


def fairseq_state(epoch: int, iterations: int) -> dict[str, Any]:
    """A state as fairseq saves it."""
    return {"version": 2, "epoch": epoch, "iterations_in_epoch": iterations, "shuffle": True}


@dataclass
class Place:
    """Where a feed goes on, and what it gives from there."""

    epochs: list[Epoch]
    begin: int  # batch of the first of them, over all ranks
    world: int
    generation: int
    chain: tuple[int, int]

    def batches(self) -> Iterator[Batch]:
        """What comes, as far as the epochs go."""
        begin = self.begin
        for epoch in self.epochs:
            yield from feeds.rest_of(
                epoch, begin, self.world, generation=self.generation, chain=self.chain
            )
            begin = 0


def check_states(case: Case, work: Path) -> None:
    """A feed of one reader for all ranks is moved to places of an undisturbed run."""
    config, draw = case.config, case.draw
    whole = Reference(config)
    coming: Iterator[Batch] = iter(case.want)
    moved = refused = 0
    with feed_of(case, work, "run", epochs=0, groups=BROADCAST) as run:
        run.start()
        with feeds.member(run, None, None, "all") as feed:
            for turn in range(12):
                # Some come right behind the start, or right behind each other.
                for want in itertools.islice(coming, draw.choice([0, 1, 7, 30]) if turn else 0):
                    assert_batch(feeds.arrays_of(feed.next()), want, config)
                world = draw.choice([config.world_size, config.world_size, 1, 2, 3, 5])
                number = draw.randint(1, 6)
                kind = draw.choice(["fairseq", "fairseq", "exact", "own"])
                there, state, begin = place_of(whole, draw, kind, number, world)
                if there is None:
                    continue
                exact = None if kind == "own" else kind == "exact"
                batches = len(there.epoch(number).shuffled)
                end = batches if kind == "own" else -(-batches // world) * world
                if 0 < begin and begin >= end:
                    try:
                        load_state(feed, state, world, exact=exact)
                    except (ringfeed.InvalidRequest, ringfeed.FeedRefused):
                        refused += 1
                        continue
                    raise AssertionError(f"batch {begin} of epoch {number} is not refused: {state}")
                moved += 1
                # One that comes before the last was carried out takes its place and number.
                try:
                    generation = load_state(feed, state, world, exact=exact).generation
                except ringfeed.InvalidRequest:
                    # fairseq goes round for ever where no epoch gives a batch, and the feed ends.
                    # The log may come behind the answer.
                    wait_until(lambda: "no batch in any shard" in run.text(), "the reason")
                    assert any(not feeds.handed_out(whole.epoch(n)) for n in range(1, EPOCHS))
                    break
                assert 0 < generation <= moved
                chain = (number, 0) if kind == "fairseq" else (1, 0)
                epochs = [there.epoch(number + n) for n in range(4)]
                coming = Place(epochs, begin, world, generation, chain).batches()
                # Of some epochs without a batch the feed says that there are none, and waits for
                # another message, where fairseq comes to one with a batch at last.
                barren = begin >= feeds.handed_out(epochs[0])
                for want in itertools.islice(coming, draw.choice([1, 3, 20])):
                    try:
                        batch = feed.next(10.0 if barren else None)
                    except ringfeed.FeedTimeout as error:
                        assert barren and "no batch in any shard" in str(error), error
                        coming = iter(())
                        break
                    barren = False
                    assert_batch(feeds.arrays_of(batch), want, replace(config))
    assert moved + refused > 0


def place_of(
    whole: Reference, draw: random.Random, kind: str, number: int, world: int
) -> tuple[Reference | None, dict[str, Any], int]:
    """The run that goes on at an epoch, the state that says so, and the batch; None: there is
    none.
    """
    config = whole.config
    try:
        epoch = whole.epoch(number)
        if kind == "own":
            # A place of any number of ranks.
            begin = draw.randrange(len(epoch.shuffled) + (draw.random() < 0.3) * 2 * world)
            own = Reference(replace(config, world_size=world))
            own.epochs(number + 4)
            return own, own_state(number, begin, config.world_size), begin
        most = epoch.per_rank + (draw.random() < 0.3) * 3
        iterations = draw.choice([0, draw.randrange(max(1, most))])
        begin = iterations * world
        state = fairseq_state(number, iterations)
        if kind == "exact":
            own = Reference(replace(config, world_size=world))
            own.epochs(number + 4)
            return own, state, begin
        there = whole.resumed(number, 0, world_size=world)
        if 0 < iterations < there.epoch(number).per_rank:
            there = whole.resumed(number, iterations, world_size=world)
        there.epochs(4)
        return there, state, begin
    except (Refused, ValueError):
        return None, {}, 0


CHECKS = {
    "run": check_run,
    "killed": check_killed,
    "states": check_states,
    "snapshot": check_snapshot,
}


def check(number: int, work: Path) -> Case:
    """Draw a case and do it. AssertionError: the feed and the reference disagree."""
    case = draw_case(number, work)
    try:
        CHECKS[case.kind](case, work)
    except BaseException as error:
        error.add_note(str(case))
        raise
    return case


# --- At length ----------------------------------------------------------------------------------


def _checked(number: int, top: Path) -> tuple[int, str, str]:
    """Number, kind, and what is wrong; "": nothing."""
    work = top / f"case{number}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        case = check(number, work)
    except Exception:
        return number, KINDS[number % len(KINDS)], traceback.format_exc()
    shutil.rmtree(work, ignore_errors=True)
    return number, f"{case.kind} {case.config.compat}", ""


def main() -> int:
    """Many cases, some at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    begin = time.monotonic()
    done: collections.Counter[str] = collections.Counter()
    wrong = []
    with ProcessPoolExecutor(options.jobs) as pool:
        numbers = range(options.first, options.first + options.count)
        for found in as_completed(pool.submit(_checked, n, options.work) for n in numbers):
            number, kind, problem = found.result()
            done[kind] += 1
            if problem:
                wrong.append(number)
                print(f"--- case {number} disagrees\n{problem}", flush=True)
    for kind, count in sorted(done.items()):
        print(f"{kind}: {count}")
    print(
        f"{done.total() - len(wrong)} of {done.total()} cases agree, "
        f"{time.monotonic() - begin:.0f} s; others: {sorted(wrong)}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
