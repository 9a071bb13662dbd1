"""The planner of a feed: its place, its weights, and how to continue from a saved state."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import secrets
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._core import control, messages
from ..batch import Batch
from ..errors import FeedRefused, FeedTimeout, InvalidRequest
from ..feed import Feed, FeedStats
from .samples import (
    _FIRST_STAND_IN,
    _STAND_IN,
    _position,
)

_ANSWER_S = 30.0
# Seconds between two questions whether a planner knows its directions: first, and most.
_AGAIN_S = 0.05
_AGAIN_MOST_S = 1.0
# The same for the plan of an epoch, and how long to wait for it by default.
_PLAN_AGAIN_S = 0.005
_PLAN_S = 600.0
_Request = messages.EpochPlannerControlRequest
_Seek = messages.EpochPlannerControlRequest.Seek
_Response = messages.EpochPlannerControlResponse


@dataclass(frozen=True)
class PlannerState:
    """The place of an ``epoch_planner``: ahead of the trainers by the batches in the feed.

    Attributes:
        stage: Its name.
        epoch: The current epoch, or after a state was loaded the coming one; from 1.
        batch: The next batch of the epoch, over all ranks, from 0.
        batches: Batches of the epoch, over all ranks, without stand-ins; 0: its plan is being made.
        generation: Generation of the next batch; grows with every state that is loaded.
        world_size: Number of ranks.
        from_batch: After weights were set: the batch before which the epoch ends.
        sentences_left: After weights were set: sentences of the epoch that will not be read.
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
    """Ask the planner of a feed for its place.

    Args:
        feed: The feed.
        stage: Name of the planner; None: the only one.
        timeout_s: Longest wait for the answer in seconds; None: 30.
    Raises:
        InvalidRequest: The feed has no planner, or several; the text lists them.
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
    """Make a feed continue where a state was saved; batches before that are passed over.

    The planner outputs the batch of the state next, and continues as if it had come there by
    itself; nothing is read to get there. Batches that it had output before still come, and this
    feed object passes over them. Every rank calls this with the same state, and it takes effect
    once.

    Args:
        feed: A member of the group that will read on.
        state: A state as fairseq saves it (``extra_state["train_iterator"]``: version 2, epoch,
            iterations_in_epoch, shuffle), where iterations are batches of one rank; or from
            EpochIterator.state_dict(), which has more. ``shuffle`` is ignored: the order is the
            feed's own.
        world_size: Number of ranks from now on; None: that of the feed's group if it is ranked,
            else that of the planner.
        exact: True: continue as if the run had not been interrupted. A state of an EpochIterator
            then continues at its batch, whatever the number of ranks now. False: as fairseq does.
            It keeps the position of each rank, so that another number of ranks skips or repeats
            batches, and it plans the epoch without its history. None: True for a state of an
            EpochIterator, False for fairseq's.
        timeout_s: Longest wait in seconds for each of the planner's answers; None: 30. Also the
            longest wait for the plan of the state's epoch, which tells whether the epoch has such a
            batch; None: 600.
        attempt: A number or text that is the same on all ranks and was not used before with this
            state and this run of the feed. None: for a single rank, or with torch.distributed:
            every process must then call this, and rank 0 draws one for all.
        stage: Name of the planner; None: the only one.
    Returns:
        The planner's place; its ``generation`` is that of the coming batches.
    Raises:
        InvalidRequest: The state is not of version 2; the feed has other batches; several ranks
            without an attempt. Nothing has changed. Later the feed raises it too, if the first
            batch that is not passed over is not that of the state: this attempt was used before, or
            somebody else has moved the feed on.
        FeedRefused: The planner cannot go there; the text is its reason, for example that the epoch
            has no such batch. Nothing has changed.
        FeedTimeout: The planner does not know its directions, or has not made the plan of the
            epoch yet. Nothing has changed.
        FeedIOError: The supervisor does not answer; the call may or may not have taken effect.
            Calling again with the same attempt is safe.
    """
    saved = _Saved.of(state)
    stats = feed.stats()
    _check_arrays(feed, ("position",))
    number = _common_number(feed, stats, attempt)
    # It also has its own number: a planner remembers few answers, and there may be many ranks.
    planner = _ask(feed, stats, b"", stage, number, timeout_s)
    own = saved.own
    if own is not None and (own.weights or own.coming) or stats.kind != "ranked":
        planner = _wait_for_directions(feed, stats, planner, number, timeout_s)
    if world_size is None:
        world_size = stats.world if stats.kind == "ranked" else planner.world_size
    if exact is None:
        exact = saved.own is not None
    start = _start(saved, world_size, exact)
    body = _directions(saved, start.batch, world_size, exact)
    if start.batch > 0 and not (own is not None and own.weights):
        batches = _batches_of_epoch(feed, stats, body, planner.stage, number, timeout_s)
        # Where all ranks together had their last batches, they had stand-ins too.
        end = batches if own is not None and exact else -(-batches // world_size) * world_size
        if start.batch >= end:
            raise FeedRefused(
                f"feed {feed.name}, stage {planner.stage}: the state continues with batch "
                f"{start.batch} of epoch {saved.epoch}, which has {batches}: it belongs to other "
                "data, other settings, or another number of ranks; load no state to start over"
            )
    for later in own.coming[1:] if own is not None else ():
        warnings.warn(
            f"feed {feed.name}: the state has weights that come into effect at batch "
            f"{later.from_batch} of epoch {later.epoch}, after others that do so earlier: call "
            "set_weights() again when that epoch comes",
            RuntimeWarning,
            stacklevel=2,
        )
    seek = control.bytes_field(_Request.seek, body)
    there = _ask(feed, stats, seek, planner.stage, number, timeout_s)
    feed._passes = _Arrival(feed.name, there.generation, saved.epoch, start.batch, stats)
    if feed._ahead and feed._passes(feed._ahead[0][0]):
        feed._ahead.clear()
    return there


def _directions(saved: _Saved, batch: int, world_size: int, exact: bool) -> bytes:
    """The message that makes a planner continue where the state was saved."""
    own = saved.own
    body = control.number_field(_Seek.epoch, saved.epoch)
    body += control.number_field(_Seek.batch, batch)
    body += control.number_field(_Seek.world_size, world_size)
    body += control.number_field(_Seek.forgetful, int(not exact))
    if own is None:
        return body
    if exact:
        body += control.number_field(_Seek.chain_epoch, own.chain[0])
        body += control.number_field(_Seek.chain_pass, own.chain[1])
        body += control.number_field(_Seek.configured_weights, int(own.weights is None))
        if own.updates_from is not None:
            body += control.number_field(_Seek.updates_from_batch, own.updates_from)
    body += _weights(_Seek.weights, own.weights or {})
    if own.coming:
        body += _weights(_Seek.coming_weights, own.coming[0].weights)
        body += control.number_field(_Seek.coming_epoch, own.coming[0].epoch)
        body += control.number_field(_Seek.coming_from_batch, own.coming[0].from_batch)
    return body


def set_weights(
    feed: Feed,
    weights: Mapping[str, float],
    from_batch: int | None = None,
    timeout_s: float | None = None,
    *,
    attempt: int | str | None = None,
    stage: str | None = None,
) -> PlannerState:
    """Give the directions other weights from a batch on: there the epoch ends and the next begins.

    The rest of the epoch is not read. Only planners with ``compat: NONE`` support this. Call it on
    one rank, or on every rank with the same arguments. With an EpochIterator use its own
    set_weights(), so that it knows the epoch's end in advance.

    Args:
        feed: A member of the group.
        weights: The weights of all directions: key ("main:eng_Latn-tur_Latn"; without a category it
            means "main") to weight, from 0 on. Only their ratios count.
        from_batch: A batch of the planner's current epoch, over all ranks, from 0. None, and if
            that batch was output already: the first that was not.
        timeout_s, attempt, stage: As for load_state().
    Returns:
        The planner's place; ``from_batch`` and ``sentences_left`` say how the epoch ends.
    Raises:
        InvalidRequest: There are no weights, or one is below 0; several ranks without an attempt.
        FeedRefused: The planner refuses them; the text is its reason. Nothing has changed.
        FeedIOError: As load_state().
    """
    if not weights:
        raise InvalidRequest("set_weights: no weights are given: name all directions")
    for key, weight in weights.items():
        if not (weight >= 0 and math.isfinite(weight)):
            raise InvalidRequest(
                f"set_weights: the weight of {key} is {weight}: weights are at least 0"
            )
    stats = feed.stats()
    number = _common_number(feed, stats, attempt)
    planner = _ask(feed, stats, b"", stage, number, timeout_s)
    stage = _wait_for_directions(feed, stats, planner, number, timeout_s).stage
    message = _weights(_Request.weights, weights)
    if from_batch is not None:
        message += control.number_field(_Request.from_batch, from_batch)
    return _ask(feed, stats, message, stage, number, timeout_s)


def _wait_for_directions(
    feed: Feed, stats: FeedStats, planner: PlannerState, number: str, timeout_s: float | None
) -> PlannerState:
    """The planner's answer once it knows its directions; weights cannot be checked before.

    Questions are numbered, so that a rank that asks later gets the same answers and the same
    result, whatever the planner does by then.
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
    """Batches of the epoch that a seek goes to, once its plan has been made; nothing moves.

    Questions are numbered as in _wait_for_directions().
    """
    request = control.bytes_field(_Request.seek, seek + control.number_field(_Seek.only_look, 1))
    deadline = time.monotonic() + (_PLAN_S if timeout_s is None else timeout_s)
    pause_s = _PLAN_AGAIN_S
    for question in itertools.count(1):
        told = f"{number} plan {question}"
        _, answer = _answer_of(feed, stats, request, stage, told, timeout_s)
        batches = answer.get(_Response.epoch_batches)
        if isinstance(batches, int):
            return batches
        if time.monotonic() > deadline:
            break
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _AGAIN_MOST_S)
    raise FeedTimeout(
        f"feed {feed.name}, stage {stage}: the plan of the epoch of the state has not been made "
        "yet; nothing has changed: try again, with a larger timeout_s"
    )


def _ask(
    feed: Feed,
    stats: FeedStats,
    request: bytes,
    stage: str | None,
    number: str,
    timeout_s: float | None,
) -> PlannerState:
    """The planner's place, from its answer to a request."""
    return _planner_state(*_answer_of(feed, stats, request, stage, number, timeout_s))


def _answer_of(
    feed: Feed,
    stats: FeedStats,
    request: bytes,
    stage: str | None,
    number: str,
    timeout_s: float | None,
) -> tuple[str, dict[int, int | bytes]]:
    """The planner's name and answer. A request takes effect once, however often it is sent with
    this number.
    """
    if feed._socket_path is None:
        raise InvalidRequest(f"feed {feed.name}: its supervisor cannot be reached")
    told = "\n".join((stats.feed_id.hex(), stage or "", number, "")).encode() + request
    key = int.from_bytes(hashlib.sha256(told).digest()[:8], "little") | 1
    message = control.bytes_field(messages.StageControlRequest.epoch_planner_request, request)
    patience_s = _ANSWER_S if timeout_s is None else timeout_s
    answers = control.stage_control(feed._socket_path, message, stage, patience_s, key)
    found = []
    for name, response in answers:
        for field, body in control.fields(response):
            planner = field == messages.StageControlResponse.epoch_planner_response
            if planner and isinstance(body, bytes):
                found.append((name, dict(control.fields(body))))
    if not found:
        where = f"feed {feed.name}" if stage is None else f"stage {stage} of feed {feed.name}"
        raise InvalidRequest(
            f"{where}: no epoch_planner answers: either there is none, or it has nothing left to "
            "plan (all its epochs are planned, or no epoch gives a batch; the log says so). With "
            "`epochs: 0`, where trainers decide when to stop, it always answers. To start a feed "
            "at a given place, set start_epoch and start_batch"
        )
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise InvalidRequest(
            f"feed {feed.name} has several planners: name one with stage=: {names}"
        )
    name, answer = found[0]
    error = answer.get(_Response.error)
    if isinstance(error, bytes) and error:
        raise FeedRefused(f"feed {feed.name}, stage {name}: {error.decode(errors='replace')}")
    return name, answer


def _planner_state(stage: str, answer: Mapping[int, int | bytes]) -> PlannerState:
    def number(field: int) -> int:
        value = answer.get(field, 0)
        return value if isinstance(value, int) else 0

    return PlannerState(
        stage=stage,
        epoch=number(_Response.epoch),
        batch=number(_Response.batch),
        batches=number(_Response.batches),
        generation=number(_Response.generation),
        world_size=number(_Response.world_size),
        from_batch=number(_Response.from_batch),
        sentences_left=number(_Response.sentences_left),
    )


def _weights(field: int, weights: Mapping[str, float]) -> bytes:
    out = b""
    for key, weight in weights.items():
        body = control.bytes_field(messages.SamplingWeight.key, key.encode())
        out += control.bytes_field(
            field, body + control.double_field(messages.SamplingWeight.weight, weight)
        )
    return out


def _common_number(feed: Feed, stats: FeedStats, attempt: int | str | None) -> str:
    """A number that is the same for all ranks that make a call together, and new for the next
    call."""
    if attempt is not None:
        return json.dumps(attempt)
    if max(stats.world, stats.members) <= 1:
        return secrets.token_hex(16)
    told = None
    if "torch" in sys.modules:  # as it is where a process group has been made
        from .._core import torch_bridge as bridge

        told = bridge.told_by_rank_0(secrets.token_hex(16))
    if told is None:
        raise InvalidRequest(
            f"feed {feed.name}, group {feed.group}: there are several ranks but no "
            "torch.distributed: pass attempt=, a number that is the same on all ranks and "
            "different each time"
        )
    return told


def _check_arrays(feed: Feed, names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in feed.schema]
    if missing:
        raise InvalidRequest(
            f"feed {feed.name} has no {', '.join(missing)} in its batches "
            f"({', '.join(feed.schema)}): this works only for feeds whose last stage is a "
            "bitext_collator"
        )


@dataclass(frozen=True)
class _Coming:
    """Weights that have been set, end an epoch, and take effect after that."""

    weights: dict[str, float]
    epoch: int
    from_batch: int


@dataclass(frozen=True)
class _Own:
    """What a state of an EpochIterator has in addition."""

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
                f"the state has version {state.get('version')}, this ringfeed reads 2, as "
                "fairseq writes it (extra_state['train_iterator'])"
            )
        try:
            own = None
            if (told := state.get("ringfeed")) is not None:
                if told["version"] != 1:
                    raise InvalidRequest(
                        f"the state comes from another ringfeed (version {told['version']}, this "
                        "one "
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
            raise InvalidRequest(
                f"this is not the state of an epoch iterator: {error!r}"
            ) from error
        if saved.epoch < 1 or saved.iterations < 0:
            raise InvalidRequest(
                f"the state is at epoch {saved.epoch}, iteration {saved.iterations}: epochs count "
                "from 1, iterations from 0"
            )
        return saved


class _Start(NamedTuple):
    """Where an epoch continues."""

    iterations: int  # of each rank, done
    batch: int  # over all ranks, the next one


def _start(saved: _Saved, world: int, exact: bool) -> _Start:
    if saved.own is not None and exact:
        return _Start(-(-saved.own.batch // world), saved.own.batch)
    return _Start(saved.iterations, saved.iterations * world)


class _Arrival:
    """Passes over the batches before those of a state, and checks the first of these."""

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
            # Nothing was left of the epoch: with more ranks, fairseq drops more at its end, and
            # drops whole epochs that have less than a batch for each rank.
            begins = self._stats.rank if self._stats.kind == "ranked" else 0
            here = position.batch == begins
            if position.kind == _STAND_IN:
                here = begins >= position.batches
        elif position.kind == _STAND_IN:
            here = here and own >= position.batches
        elif self._stats.kind == "ranked":
            here = here and position.batch == own
        else:
            here = here and position.batch >= own
        if not here:
            raise InvalidRequest(
                f"feed {self._name}: the state continues with batch {own} of epoch {self._epoch}, "
                f"but the feed with batch {position.batch} of epoch {position.epoch}: this "
                "attempt was already made, or another trainer has moved the feed; load the state "
                "again, with another attempt if you pass one"
            )
        self._arrived = True
        return False
