"""Feeds with several outputs: training and validation out of the same games."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.scenes import kill_a_worker
from tests.support.makers import lc0_data
from tests.support.oracles import lc0_reference

MakeRun = Callable[..., FeedRun]

TWO = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" queue_capacity: 64 }} }}
stages {{ name: "loader" chunk_source_loader {{ input: "provider" }} }}
stages {{ name: "split" chunk_source_splitter {{
  input: "loader" outputs {{ name: "train" weight: 9 }} outputs {{ name: "rest" weight: 1 }} }} }}
stages {{ name: "pool" shuffling_chunk_pool {{ input: "split.train" threads: {readers} {in_pool} }} }}
stages {{ name: "unpacker" chunk_unpacker {{ input: "pool" {unpack} queue_capacity: 512 }} }}
stages {{ name: "sampler" shuffling_frame_sampler {{
  input: "unpacker" reservoir_size_per_thread: {reservoir} queue_capacity: 512 }} }}
stages {{ name: "tensors" tensor_generator {{ input: "sampler" batch_size: {batch} }} }}
stages {{ name: "extract" simple_chunk_extractor {{ input: "split.rest" threads: {readers} }} }}
stages {{ name: "unpack_rest" chunk_unpacker {{ input: "extract" position_sampling_rate: 1 }} }}
stages {{ name: "tensors_rest" tensor_generator {{
  input: "unpack_rest" batch_size: 64 {tensors} }} }}
feed_output {{ stage: "tensors" slots: {slots} }}
feed_output {{ stage: "tensors_rest" alias: "validation" slots: {slots} {groups} }}
{extra}
"""


def test_every_position_is_in_one_of_the_two(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = make_run(pipeline=TWO).start()
    train, rest = run.trainer(), run.trainer(output="validation")
    seen = [train.result(), rest.result()]
    assert run.wait() == 0, run.text()
    together = np.concatenate([result["hashes"] for result in seen])
    audit = lc0_reference.audit(together, games.record_hashes)
    assert audit.exact, str(audit)
    share = seen[1]["hashes"].size / together.size
    assert 0.03 < share < 0.2, "about a tenth of 125 games"


@pytest.mark.parametrize("kills", [0, 6])
def test_the_split_and_the_order_are_the_same_in_every_run(make_run: MakeRun, kills: int) -> None:
    restarts = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 }"
    digests = []
    for readers in (1, 2):
        run = make_run(pipeline=TWO, readers=readers, epochs=3, extra=restarts).start()
        trainers = [
            run.trainer(positions=0, pause_ms=3),
            run.trainer(positions=0, pause_ms=3, output="validation"),
        ]
        for number in range(kills if readers == 2 else 0):
            wait_until(lambda number=number: trainers[0].batches() > 8 * number, "batches")
            assert kill_a_worker(run, random.Random(number)) or number
        digests.append([trainer.result()["digests"] for trainer in trainers])
        assert run.wait() == 0, run.text()
    for one, two in zip(*digests, strict=True):
        assert np.array_equal(one, two)


def test_validation_that_nobody_reads_does_not_stop_training(make_run: MakeRun) -> None:
    keep = "overflow_behavior: KEEP_NEWEST"
    run = make_run(pipeline=TWO, tensors=keep, batch=64, slots=4).start()
    train = run.trainer(positions=0)
    assert train.result()["numbers"].size > 100
    # Nobody has ever come for the other one: the feed does not wait for him.
    assert run.wait() == 0, run.text()


def test_who_comes_late_gets_the_newest_and_stops_nobody(make_run: MakeRun) -> None:
    run = make_run(
        pipeline=TWO, tensors="overflow_behavior: KEEP_NEWEST", batch=64, slots=6, epochs=0
    ).start()
    train = run.trainer(batches=200, positions=0)
    with ringfeed.attach(
        run.feed, output="validation", socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
    ) as late:
        assert late.stats().output == "validation"
        status = wait_until(run.status, "the feed")
        aliases = [output.get("alias", "") for output in status["outputs"]]
        assert aliases == ["", "validation"]
        first = late.next()
        assert first.rows == 64
        # It keeps its batch for as long as it likes.
        train.result()
        kept = np.array(first["planes"])
        first.release()
        del first
        assert kept.shape == (64, 112, 8, 8)
        with pytest.raises(ringfeed.InvalidRequest, match="leave out the policy"):
            ringfeed.attach(
                run.feed, "b", output="validation", policy="block", socket_dir=run.sockets
            )
    with pytest.raises(
        ringfeed.InvalidRequest, match="has no output 'test'; it has '', 'validation'"
    ):
        ringfeed.attach(run.feed, output="test", socket_dir=run.sockets)


def test_trainers_of_both_survive_the_supervisor(make_run: MakeRun) -> None:
    run = make_run(pipeline=TWO, epochs=0, batch=64).start()
    enough = run.work / "enough"
    trainers = [
        run.trainer(until=enough, positions=0, pause_ms=30),
        run.trainer(until=enough, positions=0, pause_ms=150, output="validation"),
    ]
    wait_until(lambda: all(trainer.batches() > 1 for trainer in trainers), "batches of both")
    assert run.process is not None
    run.process.kill()
    run.process.wait()
    run.start()
    wait_until(lambda: run.text().count(" trainer_adopted ") == 2, "both to be adopted")
    enough.touch()
    for trainer in trainers:
        result = trainer.result()
        assert np.array_equal(result["numbers"], np.arange(1, result["numbers"].size + 1))
    assert run.text().count(" trainer_adopted ") == 2, run.text()
    assert run.stop() == 0, run.text()


def test_a_snapshot_holds_both(make_run: MakeRun, tmp_path: Path) -> None:
    def until(run: FeedRun, output: str | None, batches: int = 0) -> Any:
        options = {} if output is None else {"output": output}
        return run.trainer(positions=0, batches=batches, **options)

    whole = make_run(pipeline=TWO, epochs=2, batch=64).start()
    expected = [until(whole, None).result(), until(whole, "validation").result()]
    assert whole.wait() == 0, whole.text()

    run = make_run(pipeline=TWO, epochs=2, batch=64).start()
    early = [until(run, None, 20).result(), until(run, "validation", 3).result()]
    saved = tmp_path / "saved"
    done = run.command("snapshot", run.feed, str(saved))
    assert done.returncode == 0, done.stderr
    run.stop()
    run.close()
    run.start("--resume", str(saved))
    late = [until(run, None).result(), until(run, "validation").result()]
    assert run.wait() == 0, run.text()
    for want, before, after in zip(expected, early, late, strict=True):
        got = dict(zip(before["numbers"], before["digests"], strict=True))
        got.update(zip(after["numbers"], after["digests"], strict=True))
        assert got == dict(zip(want["numbers"], want["digests"], strict=True))


JOINED = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "p1" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "l1" chunk_source_loader {{ input: "p1" }} }}
stages {{ name: "pool" shuffling_chunk_pool {{ input: "l1" threads: {readers} {in_pool} }} }}
stages {{ name: "u1" chunk_unpacker {{ input: "pool" {unpack} queue_capacity: 512 }} }}
stages {{ name: "p2" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "l2" chunk_source_loader {{ input: "p2" }} }}
stages {{ name: "extract" simple_chunk_extractor {{ input: "l2" threads: {readers} }} }}
stages {{ name: "u2" chunk_unpacker {{
  input: "extract" position_sampling_rate: 1 queue_capacity: 512 }} }}
stages {{ name: "join" join_positions {{ input: "u1" input: "u2" queue_capacity: 512 }} }}
stages {{ name: "tensors" tensor_generator {{
  input: "join" threads: {generators} batch_size: {batch} {tensors} }} }}
feed_output {{ slots: {slots} {groups} }}
{extra}
"""


def test_two_streams_are_joined(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    restarts = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 }"
    results = []
    for lanes in (1, 2):
        run = make_run(pipeline=JOINED, readers=lanes, generators=lanes, extra=restarts).start()
        trainer = run.trainer(pause_ms=3)
        for number in range(5 * (lanes - 1)):
            wait_until(lambda number=number: trainer.batches() > 6 * number, "batches")
            assert kill_a_worker(run, random.Random(number)) or number
        results.append(trainer.result())
        assert run.wait() == 0, run.text()
    audit = lc0_reference.audit(results[0]["hashes"], games.record_hashes, times=2)
    assert audit.exact, str(audit)
    assert np.array_equal(results[0]["digests"], results[1]["digests"])


def test_the_newest_are_kept_whoever_is_killed(make_run: MakeRun) -> None:
    run = make_run(
        pipeline=TWO,
        tensors="overflow_behavior: KEEP_NEWEST",
        batch=64,
        slots=6,
        epochs=4,
        extra="restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 }",
    ).start()
    train = run.trainer(positions=0, pause_ms=2)
    late = run.trainer(positions=0, pause_ms=50, output="validation")
    for number in range(8):
        wait_until(lambda number=number: train.batches() > 10 * number, "batches")
        assert kill_a_worker(run, random.Random(number)) or number
    numbers = train.result()["numbers"]
    assert np.array_equal(numbers, np.arange(1, numbers.size + 1))
    seen = late.result()["numbers"]
    assert np.array_equal(seen, np.unique(seen)), "in order, none twice"
    assert run.wait() == 0, run.text()


def test_the_loader_gives_batches_by_alias(games: lc0_data.Manifest, tmp_path: Path) -> None:
    config = TWO.format(
        feed="x", seed=1, epochs=1, directory=games.directory, readers=1, in_pool="",
        unpack="position_sampling_rate: 1", reservoir=500, batch=128, slots=6, groups="",
        tensors="overflow_behavior: KEEP_NEWEST", extra="",
    )  # fmt: skip
    with ringfeed.DataLoader(config, timeout_s=60) as loader:
        planes, policy, values = loader.get_next()
        assert planes.shape == (128, 112, 8, 8)
        planes, policy, values = loader.get_next("validation")
        assert planes.shape == (64, 112, 8, 8) and policy.shape == (64, 1858)
        with pytest.raises(ringfeed.InvalidRequest, match="no output 'test'"):
            loader.get_next("test")
        del planes, policy, values
        count = sum(1 for _ in loader)
        assert count > 50
        while loader.maybe_get_next("validation") is not None:
            pass
        assert loader.maybe_get_next() is None


def test_batches_can_be_verified(make_run: MakeRun) -> None:
    run = make_run(
        pipeline=TWO.replace('feed_output {{ stage: "tensors" slots: {slots} }}\n', ""),
        tensors="overflow_behavior: KEEP_NEWEST",
        slots=4,
        extra='feed_output { stage: "tensors" checksum: true }',
    ).start()
    settings: dict[str, Any] = {"socket_dir": run.sockets, "attach_timeout_s": 60, "timeout_s": 60}
    with ringfeed.attach("lc0", output="validation", **settings) as feed:
        with pytest.raises(ringfeed.InvalidRequest, match="checksum: true"):
            feed.next().verify()
    verified = 0
    with ringfeed.attach("lc0", **settings) as feed:
        for batch in feed:
            batch.verify()
            verified += 1
    assert run.wait() == 0, run.text()
    assert verified > 3
