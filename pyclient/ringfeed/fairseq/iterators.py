"""A feed of translation batches for fairseq's trainer: epochs, samples, states, weights.

    feed = ringfeed.attach("mt", group="run-a", rank=rank, world=world, view="private")
    epochs = EpochIterator(feed)
    while epochs.next_epoch_idx <= max_epoch:
        updates = GroupedIterator(epochs.next_epoch_itr(), update_freq)
        for samples in updates:              # fairseq's samples: dictionaries of torch tensors
            trainer.train_step(samples)
    epochs.state_dict()                      # as fairseq saves it, and what it forgets

The feed is one whose batches a ``bitext_collator`` makes out of the plans of an ``epoch_planner``.
Each rank is a member of a ranked group of as many members as the planner's ``world_size`` says.
Samples need PyTorch; states, weights and questions to the planner do not.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import secrets
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import _control
from .batch import Batch
from .errors import FeedEnd, FeedRefused, FeedTimeout, InvalidRequest
from .feed import Feed, FeedStats

__all__ = [
    "BatchIterator",
    "EpochIterator",
    "GroupedIterator",
    "PlannerState",
    "load_state",
    "planner_state",
    "sample",
    "set_weights",
]

Sample = dict[str, Any]

_ANSWER_S = 30.0
# Between two questions whether a planner knows its directions, in seconds: at first, and at most.
_AGAIN_S = 0.05
_AGAIN_MOST_S = 1.0
# The same for the plan of an epoch, and how long it is waited for unless somebody says.
_PLAN_AGAIN_S = 0.005
_PLAN_S = 600.0
# StageControlRequest and StageControlResponse: what is a planner's in them.
_PLANNER = 30
# EpochPlannerControlRequest, its Seek, and SamplingWeight.
_SEEK, _WEIGHTS, _FROM_BATCH = 1, 2, 3
_SEEK_EPOCH, _SEEK_BATCH, _SEEK_WORLD, _SEEK_FORGETFUL, _SEEK_WEIGHTS = 1, 2, 3, 4, 5
_SEEK_CHAIN_EPOCH, _SEEK_CHAIN_PASS, _SEEK_CONFIGURED_WEIGHTS = 6, 7, 8
_SEEK_COMING_WEIGHTS, _SEEK_COMING_EPOCH, _SEEK_COMING_FROM_BATCH = 9, 10, 11
_SEEK_UPDATES_FROM, _SEEK_ONLY_LOOK = 12, 13
_WEIGHT_KEY, _WEIGHT = 1, 2
# EpochPlannerControlResponse.
_ERROR, _EPOCH_BATCHES = 1, 11
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
    chain_epoch: int  # with which the chain of epochs began that this one is of
    chain_pass: int


def _position(batch: Batch) -> _Position:
    return _Position(*batch["position"].tolist())


# ---- samples ----


def sample(batch: Batch, *, copy: bool | None = None, widen: bool = True) -> Sample:
    """A batch as fairseq's collater gives it.

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
        batch: Of the feed; it stays as it is.
        copy: As for Batch.torch(): None: tensors share the memory of a private or copied view and
            are copies on a read-only feed; True: copies; False: never copies.
        widen: Tokens that the feed has as int32 (``compact: true``) become int64, as fairseq's
            losses want them; these are copies. False: they stay int32.
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
    """As sample(), of arrays that are nobody else's."""
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


# ---- messages to the planner ----


@dataclass(frozen=True)
class PlannerState:
    """Where an ``epoch_planner`` is. It is ahead of the trainers by what the feed holds ready.

    Attributes:
        stage: Its name.
        epoch: At hand, or, after a state was loaded, the one to come; from 1.
        batch: Of the epoch, over all ranks, from 0: the next one.
        batches: Of the epoch, over all ranks, without stand-ins; 0: its plan is being made.
        generation: Of the next batch; grows with every state that is loaded.
        world_size: Ranks.
        from_batch: After weights were set: the batch before which the epoch ends.
        sentences_left: After weights were set: sentences of the epoch that are not read.
    """

    stage: str
    epoch: int
    batch: int
    batches: int
    generation: int
    world_size: int
    from_batch: int
    sentences_left: int


def planner_state(
    feed: Feed, *, stage: str | None = None, timeout_s: float | None = None
) -> PlannerState:
    """Ask the planner of a feed where it is.

    Args:
        feed: The feed.
        stage: Name of the planner; None: the only one.
        timeout_s: Longest wait for the answer in seconds; None: 30.
    Raises:
        InvalidRequest: There is none, or there are several; the text lists them.
        FeedRefused, FeedIOError: As Feed.control().
    """
    return _ask(feed, feed.stats(), b"", stage, secrets.token_hex(16), timeout_s)


def load_state(
    feed: Feed,
    state: Mapping[str, Any],
    world_size: int | None = None,
    exact: bool | None = None,
    timeout_s: float | None = None,
    *,
    attempt: int | str | None = None,
    stage: str | None = None,
) -> PlannerState:
    """Have a feed go on where a state was saved; batches that come before that are passed over.

    The planner puts out the batch of the state next, and from there on goes on as if it had come
    there by itself; nothing is read to get there. What it had put out before still comes, and this
    feed object passes over it. Every rank calls this with the same state, and it takes effect once.

    Args:
        feed: A member of the group that is to read on.
        state: As fairseq saves it (``extra_state["train_iterator"]``: version 2, epoch,
            iterations_in_epoch, shuffle), where iterations are batches of one rank; or of
            EpochIterator.state_dict(), which says more. The order is the feed's own: ``shuffle`` is
            not looked at.
        world_size: Ranks from now on; None: as many as the feed's group has, if it is ranked, else
            as many as the planner has now.
        exact: True: go on as if the run had not been interrupted. With a state of an EpochIterator
            that is the batch at which it was, whatever the number of ranks now. False: as fairseq
            does it, which keeps the position of each rank, so that another number of ranks skips
            or repeats batches, and plans the epoch without what came before. None: True for a
            state of an EpochIterator, False for fairseq's.
        timeout_s: Longest wait for each of the planner's answers in seconds; None: 30. Also for the
            plan of the state's epoch, of which it is known only then whether it has such a batch;
            None: 600.
        attempt: A number or text that all ranks give alike and that was not given before with this
            state and this run of the feed. None: one rank alone, or torch.distributed, in which
            then every process must call this: rank 0 draws one for all.
        stage: Name of the planner; None: the only one.
    Returns:
        Where the planner is: its ``generation`` is that of the batches to come.
    Raises:
        InvalidRequest: No state of version 2; a feed of other batches; several ranks without an
            attempt. Nothing has changed. And from then on from the feed, if the first batch that
            is not passed over is not that of the state: this attempt was used before, or somebody
            else has moved the feed on.
        FeedRefused: The planner cannot go there; the text is its reason: the epoch has no such
            batch, as with fairseq, for example. Nothing has changed.
        FeedTimeout: The planner does not know its directions, or has not made the plan of the
            epoch yet. Nothing has changed.
        FeedIOError: The supervisor does not answer; whether it has taken effect is not known.
            Calling again with the same attempt is safe.
    """
    saved = _Saved.of(state)
    stats = feed.stats()
    _check_arrays(feed, ("position",))
    number = _common_number(feed, stats, attempt)
    # With a number of its own too: a planner remembers few answers, and there may be many ranks.
    planner = _ask(feed, stats, b"", stage, number, timeout_s)
    own = saved.own
    if own is not None and (own.weights or own.coming) or stats.kind != "ranked":
        planner = _wait_for_directions(feed, stats, planner, number, timeout_s)
    if world_size is None:
        world_size = stats.world if stats.kind == "ranked" else planner.world_size
    if exact is None:
        exact = saved.own is not None
    start = _start(saved, world_size, exact)
    weights = saved.own.weights if saved.own is not None else None
    body = _control.number_field(_SEEK_EPOCH, saved.epoch)
    body += _control.number_field(_SEEK_BATCH, start.batch)
    body += _control.number_field(_SEEK_WORLD, world_size)
    body += _control.number_field(_SEEK_FORGETFUL, int(not exact))
    if saved.own is not None and exact:
        body += _control.number_field(_SEEK_CHAIN_EPOCH, saved.own.chain[0])
        body += _control.number_field(_SEEK_CHAIN_PASS, saved.own.chain[1])
        body += _control.number_field(_SEEK_CONFIGURED_WEIGHTS, int(weights is None))
        if saved.own.updates_from is not None:
            body += _control.number_field(_SEEK_UPDATES_FROM, saved.own.updates_from)
    body += _weights(_SEEK_WEIGHTS, weights or {})
    coming = own.coming if own is not None else ()
    if coming:
        body += _weights(_SEEK_COMING_WEIGHTS, coming[0].weights)
        body += _control.number_field(_SEEK_COMING_EPOCH, coming[0].epoch)
        body += _control.number_field(_SEEK_COMING_FROM_BATCH, coming[0].from_batch)
    if start.batch > 0 and not weights:
        batches = _batches_of_epoch(feed, stats, body, planner.stage, number, timeout_s)
        # Where all ranks together had their last batches they had stand-ins too.
        end = batches if own is not None and exact else -(-batches // world_size) * world_size
        if start.batch >= end:
            raise FeedRefused(
                f"feed {feed.name}, stage {planner.stage}: the state goes on with batch "
                f"{start.batch} of epoch {saved.epoch}, which has {batches}: it is of other data, "
                "other settings, or another number of ranks; load none to begin anew"
            )
    for later in coming[1:]:
        warnings.warn(
            f"feed {feed.name}: the state has weights that come into effect at batch "
            f"{later.from_batch} of epoch {later.epoch}, after others that do before: call "
            "set_weights() again when that epoch is at hand",
            RuntimeWarning,
            stacklevel=2,
        )
    seek = _control.bytes_field(_SEEK, body)
    there = _ask(feed, stats, seek, planner.stage, number, timeout_s)
    feed._passes = _Arrival(feed.name, there.generation, saved.epoch, start.batch, stats)
    if feed._ahead and feed._passes(feed._ahead[0][0]):
        feed._ahead.clear()
    return there


def set_weights(
    feed: Feed,
    weights: Mapping[str, float],
    from_batch: int | None = None,
    timeout_s: float | None = None,
    *,
    attempt: int | str | None = None,
    stage: str | None = None,
) -> PlannerState:
    """Give the directions other weights, from a batch on: there the epoch ends and the next begins.

    What was not read of the epoch is not read. Only planners with ``compat: NONE`` do it. One rank
    alone calls this, or every rank with the same arguments. With an EpochIterator use its own
    set_weights(), so that it knows the epoch's end beforehand.

    Args:
        feed: A member of the group.
        weights: Of all directions: key ("main:eng_Latn-tur_Latn"; without a category "main" is
            meant) to weight, from 0 on. Only their ratios count.
        from_batch: Of the epoch that the planner has at hand, over all ranks, from 0. None, and
            where it has been put out already: the first that has not.
        timeout_s, attempt, stage: As for load_state().
    Returns:
        Where the planner is; ``from_batch`` and ``sentences_left`` say what becomes of the epoch.
    Raises:
        InvalidRequest: No weights, or one below 0; several ranks without an attempt.
        FeedRefused: The planner does not take them; the text is its reason. Nothing has changed.
        FeedIOError: As load_state().
    """
    if not weights:
        raise InvalidRequest("set_weights: no weights are given: name all directions")
    for key, weight in weights.items():
        if not (weight >= 0 and math.isfinite(weight)):
            raise InvalidRequest(f"set_weights: the weight of {key} is {weight}: from 0 on")
    stats = feed.stats()
    number = _common_number(feed, stats, attempt)
    planner = _ask(feed, stats, b"", stage, number, timeout_s)
    stage = _wait_for_directions(feed, stats, planner, number, timeout_s).stage
    message = _weights(_WEIGHTS, weights)
    if from_batch is not None:
        message += _control.number_field(_FROM_BATCH, from_batch)
    return _ask(feed, stats, message, stage, number, timeout_s)


def _wait_for_directions(
    feed: Feed, stats: FeedStats, planner: PlannerState, number: str, timeout_s: float | None
) -> PlannerState:
    """The planner's answer once it knows its directions: no weights can be told of before.

    Questions are numbered, so that a rank that asks later gets the same answers, and comes to the
    same end, whatever the planner does by then.
    """
    deadline = time.monotonic() + (_ANSWER_S if timeout_s is None else timeout_s)
    pause_s = _AGAIN_S
    for question in itertools.count(1):
        if planner.world_size != 0:
            break
        if time.monotonic() > deadline:
            raise FeedTimeout(f"feed {feed.name}: the planner does not know its directions yet")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _AGAIN_MOST_S)
        planner = _ask(feed, stats, b"", planner.stage, f"{number} {question}", timeout_s)
    return planner


def _batches_of_epoch(
    feed: Feed, stats: FeedStats, seek: bytes, stage: str, number: str, timeout_s: float | None
) -> int:
    """Batches of the epoch that a seek goes to, once its plan has been made; nothing is moved.

    Questions are numbered as in _wait_for_directions().
    """
    request = _control.bytes_field(_SEEK, seek + _control.number_field(_SEEK_ONLY_LOOK, 1))
    deadline = time.monotonic() + (_PLAN_S if timeout_s is None else timeout_s)
    pause_s = _PLAN_AGAIN_S
    for question in itertools.count(1):
        told = f"{number} plan {question}"
        _, answer = _answer_of(feed, stats, request, stage, told, timeout_s)
        batches = answer.get(_EPOCH_BATCHES)
        if isinstance(batches, int):
            return batches
        if time.monotonic() > deadline:
            break
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _AGAIN_MOST_S)
    raise FeedTimeout(
        f"feed {feed.name}, stage {stage}: the plan of the epoch that the state is of has not been "
        "made yet; nothing has changed: try again, with a larger timeout_s"
    )


def _ask(
    feed: Feed,
    stats: FeedStats,
    request: bytes,
    stage: str | None,
    number: str,
    timeout_s: float | None,
) -> PlannerState:
    """Where the planner is, by its answer to a request."""
    return _planner_state(*_answer_of(feed, stats, request, stage, number, timeout_s))


def _answer_of(
    feed: Feed,
    stats: FeedStats,
    request: bytes,
    stage: str | None,
    number: str,
    timeout_s: float | None,
) -> tuple[str, dict[int, int | bytes]]:
    """The planner's name and answer. A request takes effect once, whoever sends it with this number."""
    if feed._socket_path is None:
        raise InvalidRequest(f"feed {feed.name}: its supervisor cannot be asked")
    told = "\n".join((stats.feed_id.hex(), stage or "", number, "")).encode() + request
    key = int.from_bytes(hashlib.sha256(told).digest()[:8], "little") | 1
    message = _control.bytes_field(_PLANNER, request)
    patience_s = _ANSWER_S if timeout_s is None else timeout_s
    answers = _control.stage_control(feed._socket_path, message, stage, patience_s, key)
    found = []
    for name, response in answers:
        for field, body in _control.fields(response):
            if field == _PLANNER and isinstance(body, bytes):
                found.append((name, dict(_control.fields(body))))
    if not found:
        where = f"feed {feed.name}" if stage is None else f"stage {stage} of feed {feed.name}"
        raise InvalidRequest(
            f"{where}: no epoch_planner answers: there is none, or it has nothing more to plan (all "
            "its epochs are planned, or none gives a batch: then the log says so); with `epochs: 0` "
            "(trainers stop when they like) it can be asked at any time, and a feed can be started "
            "at a place (start_epoch, start_batch)"
        )
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise InvalidRequest(
            f"feed {feed.name} has several planners: name one with stage=: {names}"
        )
    name, answer = found[0]
    error = answer.get(_ERROR)
    if isinstance(error, bytes) and error:
        raise FeedRefused(f"feed {feed.name}, stage {name}: {error.decode(errors='replace')}")
    return name, answer


def _planner_state(stage: str, answer: Mapping[int, int | bytes]) -> PlannerState:
    def number(field: int) -> int:
        value = answer.get(field, 0)
        return value if isinstance(value, int) else 0

    return PlannerState(
        stage=stage,
        epoch=number(2),
        batch=number(3),
        batches=number(4),
        generation=number(5),
        world_size=number(6),
        from_batch=number(7),
        sentences_left=number(8),
    )


def _weights(field: int, weights: Mapping[str, float]) -> bytes:
    out = b""
    for key, weight in weights.items():
        body = _control.bytes_field(_WEIGHT_KEY, key.encode())
        out += _control.bytes_field(field, body + _control.double_field(_WEIGHT, weight))
    return out


def _common_number(feed: Feed, stats: FeedStats, attempt: int | str | None) -> str:
    """The same for all ranks that make a call together, and another one for the next call."""
    if attempt is not None:
        return json.dumps(attempt)
    if max(stats.world, stats.members) <= 1:
        return secrets.token_hex(16)
    told = None
    if "torch" in sys.modules:  # as it is where a process group has been made
        from . import torch as bridge

        told = bridge.told_by_rank_0(secrets.token_hex(16))
    if told is None:
        raise InvalidRequest(
            f"feed {feed.name}, group {feed.group}: there are several ranks and no "
            "torch.distributed: give attempt=, a number that all ranks give alike and that is "
            "another one each time"
        )
    return told


def _check_arrays(feed: Feed, names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in feed.schema]
    if missing:
        raise InvalidRequest(
            f"feed {feed.name} has no {', '.join(missing)} in its batches "
            f"({', '.join(feed.schema)}): this is for feeds whose last stage is a bitext_collator"
        )


# ---- states ----


@dataclass(frozen=True)
class _Coming:
    """Weights that have been set and are not in effect before the end of an epoch, which they end."""

    weights: dict[str, float]
    epoch: int
    from_batch: int


@dataclass(frozen=True)
class _Own:
    """What a state of an EpochIterator says besides."""

    batch: int  # of the epoch, over all ranks: the next one
    chain: tuple[int, int]  # epoch and pass with which the chain of epochs began
    weights: dict[str, float] | None
    coming: tuple[_Coming, ...]  # by their epochs
    updates_from: int | None  # batch from which fairseq counts updates, after a state of its own


@dataclass(frozen=True)
class _Saved:
    """A state, read."""

    epoch: int
    iterations: int
    shuffle: bool
    own: _Own | None

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> _Saved:
        if state.get("version") != 2:
            raise InvalidRequest(
                f"the state is of version {state.get('version')}, this ringfeed reads 2, as "
                "fairseq writes it (extra_state['train_iterator'])"
            )
        try:
            own = None
            if (told := state.get("ringfeed")) is not None:
                if told["version"] != 1:
                    raise InvalidRequest(
                        f"the state is of another ringfeed (version {told['version']}, this one "
                        "reads 1)"
                    )
                coming = tuple(_Coming(**one) for one in told["coming"])
                chain_epoch, chain_pass = map(int, told["chain"])
                own = _Own(
                    int(told["batch"]),
                    (chain_epoch, chain_pass),
                    told["weights"],
                    coming,
                    told["updates_from"],
                )
            saved = cls(
                int(state["epoch"]),
                int(state.get("iterations_in_epoch", 0)),
                bool(state.get("shuffle", True)),
                own,
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InvalidRequest):
                raise
            raise InvalidRequest(f"this is no state of an epoch iterator: {error!r}") from error
        if saved.epoch < 1 or saved.iterations < 0:
            raise InvalidRequest(
                f"the state is of epoch {saved.epoch}, iteration {saved.iterations}: epochs count "
                "from 1, iterations from 0"
            )
        return saved


class _Start(NamedTuple):
    """Where an epoch is gone on with."""

    iterations: int  # of each rank, done
    batch: int  # over all ranks, the next one


def _start(saved: _Saved, world: int, exact: bool) -> _Start:
    if saved.own is not None and exact:
        return _Start(-(-saved.own.batch // world), saved.own.batch)
    return _Start(saved.iterations, saved.iterations * world)


class _Arrival:
    """Passes over the batches before those of a state, and looks at the first of these."""

    def __init__(self, name: str, generation: int, epoch: int, batch: int, stats: FeedStats):
        self._name = name
        self._generation = generation
        self._epoch = epoch
        self._batch = batch
        self._stats = stats
        self._arrived = False

    def __call__(self, batch: Batch) -> bool:
        position = _position(batch)
        if position.generation < self._generation:
            return True
        if self._arrived or position.kind == _FIRST_STAND_IN:
            return False
        here = position.generation == self._generation and position.epoch == self._epoch
        own = self._batch + self._stats.rank
        if position.epoch > self._epoch and position.generation == self._generation:
            # Nothing was left of the epoch: fairseq drops more at its end where there are more
            # ranks, and whole epochs that have less than a batch for each.
            here = position.batch == (self._stats.rank if self._stats.kind == "ranked" else 0)
        elif position.kind == _STAND_IN:
            here = here and own >= position.batches
        elif self._stats.kind == "ranked":
            here = here and position.batch == own
        else:
            here = here and position.batch >= own
        if not here:
            raise InvalidRequest(
                f"feed {self._name}: the state goes on with batch {own} of epoch {self._epoch}, "
                f"and the feed with batch {position.batch} of epoch {position.epoch}: this attempt "
                "was made before, or another trainer has moved the feed on; load the state again, "
                "with another attempt if you give one"
            )
        self._arrived = True
        return False


# ---- epochs ----


class EpochIterator:
    """Epochs of a feed, for what fairseq's trainer asks of its own EpochBatchIterator.

    A task gives it to the trainer from ``get_batch_iterator()``, the same object for every epoch:

        def get_batch_iterator(self, dataset, *args, **kwargs):
            return self.epochs if dataset is self.dataset("train") else super().get_…

    The feed is read by this object alone, and by one thread. It is a stream: an epoch comes once,
    in the order of the planner, whatever ``shuffle`` says, and is as long as the planner says. To
    know how long it is its first batch is claimed before it is asked for.

    Attributes:
        feed: The feed.
        shuffle: As given to next_epoch_itr(), for the state.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        epoch: int | None = None,
        copy: bool | None = None,
        widen: bool = True,
        empty: str = "dict",
        stage: str | None = None,
    ) -> None:
        """
        Args:
            feed: A member of a ranked group with one member for each rank; or of a group that has
                no other member.
            epoch: The epoch to begin with, from 1; None: that which the feed is in.
            copy, widen: Of samples, see sample(). With copy=None and a private view samples share
                the feed's memory: a loop over a GroupedIterator then holds the slots of two updates
                (``max_hold``).
            empty: What a stand-in is given as, which a rank gets that has no batch left at the end
                of an epoch: "dict": an empty dictionary, as fairseq's own; its trainer then runs
                ``first_batch`` and ignores the loss. "stand_in": a sample with ``"ignore": True``
                besides. A batch of which no sentence could be read is given as one too.
            stage: Name of the planner, of a feed that has several.
        Raises:
            InvalidRequest: A feed of other batches, or another value of ``empty``.
        """
        if empty not in ("dict", "stand_in"):
            raise InvalidRequest(f"EpochIterator: empty={empty!r} is none of dict, stand_in")
        _check_arrays(feed, (*_ARRAYS, "nsentences", "position"))
        self.feed = feed
        self.shuffle = True
        self._copy = copy
        self._widen = widen
        self._empty = empty
        self._stage = stage
        stats = feed.stats()
        self._rank = stats.rank if stats.kind == "ranked" else 0
        self._world = stats.world if stats.kind == "ranked" else 1
        self._group = feed.group
        self._epoch = epoch
        self._current: BatchIterator | None = None
        self._chain = (1, 0)  # of the state that was loaded
        self._start: _Start | None = None  # of the epoch to come; None: wherever the feed is
        self._generation: int | None = None
        self._first: Sample = {}
        self._first_arrays: dict[str, np.ndarray] = {}  # those that it is still to be made of
        self._first_of: tuple[int, int] | None = None  # its generation and epoch
        self._weights: dict[str, float] | None = None
        self._coming: dict[int, _Coming] = {}  # by their epochs
        # Of the epoch that a state was of: from which batch on fairseq counts updates.
        self._updates_from: tuple[int, int] | None = None

    # ---- what the trainer asks

    @property
    def epoch(self) -> int:
        """The epoch at hand, or the one to come before the first; from 1."""
        return self._look().epoch if self._epoch is None else self._epoch

    @property
    def next_epoch_idx(self) -> int:
        """The epoch that next_epoch_itr() will give."""
        return self.epoch + 1 if self.end_of_epoch() else self.epoch

    def next_epoch_itr(
        self,
        shuffle: bool = True,
        fix_batches_to_gpus: bool = False,
        set_dataset_epoch: bool = True,
    ) -> BatchIterator:
        """The next epoch, or, in the middle of one, what is left of it.

        Waits for the first batch. What an epoch was cut short by (take()) is passed over.

        Args:
            shuffle: Noted for the state; the order is the feed's.
            fix_batches_to_gpus, set_dataset_epoch: Of no effect.
        Raises:
            InvalidRequest: The feed is in another epoch, or its epochs are made for another number
                of ranks: load a state.
            FeedEnd: The feed has no more epochs.
            And what Feed.next() raises.
        """
        self.shuffle = shuffle
        current = self._current
        if current is not None and current.has_next():
            return current
        position = self._reach(self.next_epoch_idx)
        # A state at the end of an epoch, of which more ranks get nothing: the next one begins.
        saved = self._start if position.epoch == self._epoch else None
        start = saved or _start_at(position, self._rank, self._world)
        self._start = None
        self._epoch = position.epoch
        self._weights, self._coming = self._weights_in(position.epoch)
        self._current = BatchIterator(self, position, start)
        return self._current

    def end_of_epoch(self) -> bool:
        """Has the epoch at hand given all of its batches?"""
        return self._current is not None and not self._current.has_next()

    @property
    def iterations_in_epoch(self) -> int:
        """Batches of this rank that the epoch at hand has given, those before a state included."""
        if self._current is not None:
            return self._current.n
        return 0 if self._start is None else self._start.iterations

    @property
    def n(self) -> int:
        """As iterations_in_epoch."""
        return self.iterations_in_epoch

    def __len__(self) -> int:
        """Batches of this rank in the epoch at hand, or in the one to come before the first."""
        if self._current is not None:
            return len(self._current)
        position = self._look()
        start = self._start or _start_at(position, self._rank, self._world)
        return _iterations(start, position.batches, self._world)

    @property
    def first_batch(self) -> Sample:
        """A sample for ranks that have no batch left, in memory of its own.

        The feed's stand-in (the epoch's shortest sentences) if it begins epochs with it
        (``stand_in_first``), else a copy of this rank's first batch of the epoch. Before an epoch
        has begun its first batch is waited for; behind the last epoch it is that of the last.
        """
        if self._current is None or self.end_of_epoch():
            try:
                self._look()
            except FeedEnd:
                if not self._first_sample():
                    raise
        return self._first_sample()

    def state_dict(self) -> dict[str, Any]:
        """Where the ranks are, to be saved with the model; the same on each of them.

        fairseq's own record (version 2, epoch, iterations_in_epoch, shuffle; at the end of an epoch
        the next one and 0), and under "ringfeed" what it forgets: the batch over all ranks, their
        number, where the chain of epochs began, weights that hold and that are to come, and, after
        a state of fairseq's, from which batch it counts updates.
        """
        over = self.end_of_epoch()
        epoch = self.epoch + 1 if over else self.epoch
        weights, coming = self._weights_in(epoch)
        if over:
            batch = 0
        elif self._current is not None:
            batch = self._current.next_batch
        else:
            batch = (self._start or _start_at(self._look(), self._rank, self._world)).batch
        updates_from = None
        if self._updates_from is not None and self._updates_from[0] == epoch:
            updates_from = self._updates_from[1]
        return {
            "version": 2,
            "epoch": epoch,
            "iterations_in_epoch": 0 if over else self._iterations_done(),
            "shuffle": self.shuffle,
            "ringfeed": {
                "version": 1,
                "batch": batch,
                "chain": self._chain_of(epoch),
                "world_size": self._world,
                "weights": weights,
                "coming": [dict(vars(one)) for one in coming.values()],
                "updates_from": updates_from,
            },
        }

    def _weights_in(self, epoch: int) -> tuple[dict[str, float] | None, dict[int, _Coming]]:
        """The weights that hold in an epoch, None if none were set, and those to come then."""
        weights = self._weights
        for one in self._coming.values():
            if one.epoch < epoch:
                weights = one.weights
        return weights, {end: one for end, one in self._coming.items() if end >= epoch}

    def _chain_of(self, epoch: int) -> list[int]:
        """Where the chain began that an epoch is of: the one at hand or the one behind it."""
        if self._current is None and self._start is not None:
            return list(self._chain)
        if self._current is None or any(end < epoch for end in self._coming):
            # Other weights have begun another one: the next batch says which.
            try:
                position = self._look()
            except FeedEnd:
                if self._current is None:
                    raise
                position = self._current.position
        else:
            position = self._current.position
        return [position.chain_epoch, position.chain_pass]

    def _iterations_done(self) -> int:
        if self._current is None and self._start is None:
            return _start_at(self._look(), self._rank, self._world).iterations
        return self.iterations_in_epoch

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        *,
        exact: bool | None = None,
        attempt: int | str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Go on where a state was saved, by state_dict() or by fairseq, as load_state() does it.

        The ranks from now on are those of the feed's group.

        Args:
            state, exact, attempt, timeout_s: As for load_state().
        Raises:
            As load_state().
        """
        saved = _Saved.of(state)
        there = load_state(
            self.feed,
            state,
            self._world,
            exact,
            timeout_s,
            attempt=attempt,
            stage=self._stage,
        )
        self._current = None
        self._epoch = saved.epoch
        self._generation = there.generation
        exact = saved.own is not None if exact is None else exact
        self._start = _start(saved, self._world, exact)
        self._chain = (1, 0) if exact else (saved.epoch, 0)
        if saved.own is not None and exact:
            self._chain = saved.own.chain
        self.shuffle = saved.shuffle
        self._weights = saved.own.weights if saved.own is not None else None
        updates_from = self._start.batch
        if saved.own is not None and exact:
            updates_from = saved.own.updates_from
        self._updates_from = None if updates_from is None else (saved.epoch, updates_from)
        coming = saved.own.coming[:1] if saved.own is not None else ()
        self._coming = {one.epoch: one for one in coming}

    def set_weights(
        self,
        weights: Mapping[str, float],
        from_batch: int | None = None,
        *,
        attempt: int | str | None = None,
        timeout_s: float | None = None,
    ) -> PlannerState:
        """As the function set_weights(), by every rank: the epoch's length follows from it."""
        there = set_weights(
            self.feed, weights, from_batch, timeout_s, attempt=attempt, stage=self._stage
        )
        # Instead of what was to come at the same place or later.
        self._coming = {end: one for end, one in self._coming.items() if end < there.epoch}
        self._coming[there.epoch] = _Coming(dict(weights), there.epoch, there.from_batch)
        return there

    # ---- reading

    def _look(self) -> _Position:
        """Where the next batch is; it is claimed, and the stand-ins before it are kept."""
        while True:
            batch = self.feed._peek()
            position = _position(batch)
            self._note_first(batch, position)
            if position.kind != _FIRST_STAND_IN:
                return position
            del batch
            self.feed.next().release()

    def _reach(self, epoch: int) -> _Position:
        """Where the first batch of an epoch is; what is left of the one before is passed over."""
        position = self._look()
        while position.epoch == epoch - 1:
            self.feed.next().release()
            position = self._look()
        self._check(position)
        # An epoch without a single batch does not come.
        skipped = self._current is not None or bool(self._coming)
        if position.epoch < epoch or (position.epoch > epoch and not skipped):
            raise InvalidRequest(
                f"feed {self.feed.name} is in epoch {position.epoch}, and epoch {epoch} is asked "
                "for: begin with load_state_dict(), or start the feed anew"
            )
        return position

    def _check(self, position: _Position) -> None:
        if position.world_size != self._world:
            raise InvalidRequest(
                f"feed {self.feed.name}: its epochs are made for {position.world_size} ranks, and "
                f"group {self._group} has {self._world}: set world_size of the epoch_planner, or "
                "begin with load_state_dict()"
            )
        if self._generation is not None and position.generation != self._generation:
            raise InvalidRequest(
                f"feed {self.feed.name}: somebody else has moved it to batch {position.batch} of "
                f"epoch {position.epoch}: load a state with load_state_dict()"
            )
        self._generation = position.generation

    def _note_first(self, batch: Batch, position: _Position) -> None:
        """Keeps what is first_batch from now on, if this is it."""
        of = (position.generation, position.epoch)
        if of == self._first_of or batch.rows == 0:
            return
        # As arrays: states need no PyTorch.
        self._first_arrays = {name: np.array(batch[name]) for name in batch}
        self._first_of = of

    def _first_sample(self) -> Sample:
        """first_batch, as a sample."""
        if self._first_arrays:
            self._first = _sample_of_arrays(self._first_arrays, self._widen)
            self._first_arrays = {}
        return self._first

    def _end_of(self, epoch: int) -> int | None:
        """The batch before which an epoch ends because of weights that were set."""
        coming = self._coming.get(epoch)
        return None if coming is None else coming.from_batch

    def _sample(self, batch: Batch, position: _Position) -> Sample:
        if position.kind != _STAND_IN and batch.rows > 0:
            return sample(batch, copy=self._copy, widen=self._widen)
        if self._empty == "dict":
            batch.release()
            return {}
        if batch.rows > 0:
            return {**sample(batch, copy=self._copy, widen=self._widen), "ignore": True}
        batch.release()
        first = self._first_sample()
        return {**first, "ignore": True} if first else {}

    def __repr__(self) -> str:
        at = "" if self._epoch is None else f", epoch {self._epoch}"
        return f"EpochIterator({self.feed!r}, rank {self._rank} of {self._world}{at})"


def _start_at(position: _Position, rank: int, world: int) -> _Start:
    """Where the ranks are whose member ``rank`` gets the batch at this position next."""
    batch = position.batch - rank
    if position.kind == _STAND_IN:
        batch = (max(position.batches, 1) - 1) // world * world
    batch = max(batch, 0)
    return _Start(-(-batch // world), batch)


def _iterations(start: _Start, batches: int, world: int) -> int:
    """Batches of each rank in an epoch that is gone on with; those done before included."""
    return start.iterations + max(0, -(-(batches - start.batch) // world))


class BatchIterator:
    """The samples of one epoch for this rank; made by EpochIterator.next_epoch_itr().

    Attributes:
        n: Samples given until now, those before a state included.
        total: Samples of the epoch, likewise.
    """

    def __init__(self, owner: EpochIterator, position: _Position, start: _Start) -> None:
        self._owner = owner
        self.position = position
        self._epoch = position.epoch
        self._start = start
        self._batches = position.batches
        self._most: int | None = None  # as take() says
        self._over = False
        self.n = start.iterations

    @property
    def total(self) -> int:
        if self._over:
            return self.n
        batches = self._batches
        end = self._owner._end_of(self._epoch)
        if end is not None:
            batches = min(batches, end)
        total = _iterations(self._start, batches, self._owner._world)
        return total if self._most is None else min(total, self._most)

    @property
    def next_batch(self) -> int:
        """Of the epoch, over all ranks, from 0: the next one that a rank gets."""
        done = (self.n - self._start.iterations) * self._owner._world
        return min(self._start.batch + done, self._batches)

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Sample]:
        return self

    def __next__(self) -> Sample:
        found = self._advance()
        if found is None:
            raise StopIteration
        # Not by a name beyond this: a loop holds what its body holds, and no batch more.
        return self._owner._sample(*found)

    def _advance(self) -> tuple[Batch, _Position] | None:
        owner = self._owner
        if owner._current is not self or not self.has_next():
            return None
        position = owner._look()
        while position.epoch < self._epoch:
            owner.feed.next().release()
            position = owner._look()
        owner._check(position)
        if position.epoch > self._epoch:
            # Weights have ended it, set by somebody else.
            self._over = True
            return None
        batch = owner.feed.next()
        self._batches = position.batches
        if position.kind == _STAND_IN:
            self.n += 1
        else:
            ahead = position.batch - owner._rank - self._start.batch
            self.n = self._start.iterations + ahead // owner._world + 1
        return batch, position

    def has_next(self) -> bool:
        """Is there another one? Not waited for: it is known from the epoch's length."""
        return self.n < self.total

    def skip(self, count: int) -> BatchIterator:
        """Passes over so many samples, or as many as there are; returns itself."""
        for _ in range(count):
            found = self._advance()
            if found is None:
                break
            found[0].release()
        return self

    def take(self, total: int) -> BatchIterator:
        """Makes it end once ``n`` is ``total``, at the latest; returns itself."""
        self._most = total if self._most is None else min(self._most, total)
        return self


class GroupedIterator:
    """The samples of an iterator in lists of ``chunk_size``, the last one perhaps shorter: updates.

    Both numbers count lists, also those before a state: an iterator that has given p samples begins
    with n = ⌈p / chunk_size⌉ of them.

    Attributes:
        n: Lists given until now.
        total: Lists of the epoch.
        chunk_size: Samples of a list.
    """

    def __init__(self, itr: BatchIterator, chunk_size: int) -> None:
        """
        Args:
            itr: What next_epoch_itr() gives.
            chunk_size: Batches of each rank that make an update (fairseq's ``update_freq``).
        Raises:
            InvalidRequest: It is below 1.
        """
        if chunk_size < 1:
            raise InvalidRequest(f"GroupedIterator: chunk_size={chunk_size}: at least 1")
        self.chunk_size = chunk_size
        self._itr = itr
        self.n = -(-itr.n // chunk_size)

    @property
    def total(self) -> int:
        # Nothing is left over where a state was saved in the middle of a list.
        return self.n + -(-max(0, len(self._itr) - self._itr.n) // self.chunk_size)

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[list[Sample]]:
        return self

    def __next__(self) -> list[Sample]:
        samples = []
        for found in self._itr:
            samples.append(found)
            if len(samples) == self.chunk_size:
                break
        if not samples:
            raise StopIteration
        self.n += 1
        return samples

    def has_next(self) -> bool:
        """Is there another one?"""
        return self._itr.has_next()

    def skip(self, count: int) -> GroupedIterator:
        """Passes over so many lists, or as many as there are; returns itself."""
        for _ in range(count):
            if not self.has_next():
                break
            self._itr.skip(self.chunk_size)
            self.n += 1
        return self

    def take(self, total: int) -> GroupedIterator:
        """Makes it end once ``n`` is ``total``, at the latest, and the iterator with it; returns
        itself."""
        self._itr.take(self._itr.n + max(0, total - self.n) * self.chunk_size)
        return self
