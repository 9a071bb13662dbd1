"""Epochs of a feed, with the interface of fairseq's iterators."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..batch import Batch
from ..errors import FeedEnd, InvalidRequest
from ..feed import Feed
from .samples import (
    _ARRAYS,
    _FIRST_STAND_IN,
    _STAND_IN,
    Sample,
    _Position,
    _position,
    _sample_of_arrays,
    sample,
)
from .state import (
    PlannerState,
    _check_arrays,
    _Coming,
    _Saved,
    _Start,
    _start,
    load_state,
    set_weights,
)


class EpochIterator:
    """Epochs of a feed, with what fairseq's trainer needs of its EpochBatchIterator.

    A task returns it from ``get_batch_iterator()``, the same object for every epoch:

        def get_batch_iterator(self, dataset, *args, **kwargs):
            return self.epochs if dataset is self.dataset("train") else super().get_…

    Only this object, and only one thread, may read the feed. The feed is a stream: an epoch comes
    once, in the planner's order, whatever ``shuffle`` says, and the planner decides its length. To
    learn the length, this object claims the first batch before it is asked for.

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
            feed: A member of a ranked group with one member for each rank; or the only member of a
                group.
            epoch: The epoch to begin with, from 1; None: the feed's current one.
            copy, widen: As for sample(). With copy=None and a private view, samples share the
                feed's memory: a loop over a GroupedIterator then holds the slots of two updates
                (``max_hold``).
            empty: The form of stand-ins, which a rank gets if it has no batch left at the end of an
                epoch. "dict": an empty dictionary, as in fairseq, whose trainer then runs
                ``first_batch`` and ignores the loss. "stand_in": a sample that also has ``"ignore":
                True``. A batch without a readable sentence becomes a stand-in too.
            stage: Name of the planner, for a feed with several.
        Raises:
            InvalidRequest: The feed has other batches, or ``empty`` has another value.
        """
        if empty not in ("dict", "stand_in"):
            raise InvalidRequest(f"EpochIterator: empty={empty!r} is not dict or stand_in")
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
        """The current epoch, or the coming one before the first; from 1."""
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
        """The next epoch, or in the middle of an epoch the rest of it.

        Waits for the first batch. Passes over batches that take() cut off, and over epochs that
        hold nothing; after a state with a RuntimeWarning.

        Args:
            shuffle: Recorded in the state; the order is the feed's.
            fix_batches_to_gpus, set_dataset_epoch: Have no effect.
        Raises:
            InvalidRequest: The feed is in another epoch, or its epochs are for another number of
                ranks: load a state.
            FeedEnd: The feed has no more epochs.
            And what Feed.next() raises.
        """
        self.shuffle = shuffle
        current = self._current
        if current is not None and current.has_next():
            return current
        position = self._reach(self.next_epoch_idx)
        start = self._start_of(position)
        self._start = None
        self._epoch = position.epoch
        self._weights, self._coming = self._weights_in(position.epoch)
        self._current = BatchIterator(self, position, start)
        return self._current

    def end_of_epoch(self) -> bool:
        """Has the current epoch given all its batches?"""
        return self._current is not None and not self._current.has_next()

    @property
    def iterations_in_epoch(self) -> int:
        """Batches of this rank that the current epoch has given, including those before a state."""
        if self._current is not None:
            return self._current.n
        return 0 if self._start is None else self._start.iterations

    @property
    def n(self) -> int:
        """As iterations_in_epoch."""
        return self.iterations_in_epoch

    def __len__(self) -> int:
        """Batches of this rank in the current epoch, or in the coming one before the first."""
        if self._current is not None:
            return len(self._current)
        position = self._look()
        start = self._start_of(position)
        return _iterations(start, position.batches, self._world)

    @property
    def first_batch(self) -> Sample:
        """A sample for ranks that have no batch left, in its own memory.

        The feed's stand-in (the epoch's shortest sentences) if it begins epochs with it
        (``stand_in_first``), else a copy of this rank's first batch of the epoch. Before the first
        epoch it waits for that epoch's first batch; after the last epoch it is that of the last
        epoch.
        """
        if self._current is None or self.end_of_epoch():
            try:
                self._look()
            except FeedEnd:
                if not self._first_sample():
                    raise
        return self._first_sample()

    def state_dict(self) -> dict[str, Any]:
        """The place of all ranks, to be saved with the model; the same on each rank.

        fairseq's own record (version 2, epoch, iterations_in_epoch, shuffle; at the end of an epoch
        the next one and 0), and under "ringfeed" what fairseq forgets: the batch over all ranks,
        the number of ranks, where the chain of epochs began, the current and the coming weights,
        and, after a state of fairseq's, the batch from which it counts updates.
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
        """The weights in effect in an epoch (None if none were set), and the ones to come then."""
        weights = self._weights
        for one in self._coming.values():
            if one.epoch < epoch:
                weights = one.weights
        return weights, {end: one for end, one in self._coming.items() if end >= epoch}

    def _chain_of(self, epoch: int) -> list[int]:
        """Where the chain of an epoch began; it is the current epoch or the next one."""
        if self._current is None and self._start is not None:
            return list(self._chain)
        if self._current is None or any(end < epoch for end in self._coming):
            # Other weights have begun another chain: the next batch says which.
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
        """Continue where a state was saved, by state_dict() or by fairseq, as load_state() does.

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
        updates_from: int | None = self._start.batch
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
        """As the function set_weights(). Every rank must call it, because it changes the epoch's
        length."""
        there = set_weights(
            self.feed, weights, from_batch, timeout_s, attempt=attempt, stage=self._stage
        )
        # It replaces weights that were to come at the same place or later.
        self._coming = {end: one for end, one in self._coming.items() if end < there.epoch}
        self._coming[there.epoch] = _Coming(dict(weights), there.epoch, there.from_batch)
        return there

    # ---- reading

    def _look(self) -> _Position:
        """The position of the next batch, which it claims; the stand-ins before it are kept."""
        while True:
            batch = self.feed._peek()
            position = _position(batch)
            self._note_first(batch, position)
            if position.kind != _FIRST_STAND_IN:
                return position
            del batch
            self.feed.next().release()

    def _reach(self, epoch: int) -> _Position:
        """The position of an epoch's first batch; passes over the rest of the epoch before."""
        position = self._look()
        while position.epoch == epoch - 1:
            self.feed.next().release()
            position = self._look()
        self._check(position)
        # An epoch without a single batch does not come.
        skipped = self._current is not None or bool(self._coming)
        if position.epoch > epoch and not skipped and self._start is not None:
            # That this batch is the first of its epoch was seen when it arrived.
            warnings.warn(
                f"feed {self.feed.name}: nothing was left of epoch {epoch} for {self._world} "
                f"rank(s), and epoch {position.epoch} begins; if epoch {epoch} does have batches, "
                "this attempt to load the state was already made: take another one",
                RuntimeWarning,
                stacklevel=3,
            )
            skipped = True
        if position.epoch < epoch or (position.epoch > epoch and not skipped):
            raise InvalidRequest(
                f"feed {self.feed.name} is in epoch {position.epoch}, and epoch {epoch} was "
                "requested: begin with load_state_dict(), or start the feed anew"
            )
        return position

    def _start_of(self, position: _Position) -> _Start:
        """Where the epoch at this position continues; a state's may have had nothing left."""
        saved = self._start if position.epoch == self._epoch else None
        return saved or _start_at(position, self._rank, self._world)

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
        """Keeps this batch if it is first_batch from now on."""
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
        """The batch before which set weights end an epoch."""
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
    """The place of all ranks if member ``rank`` gets the batch at this position next."""
    batch = position.batch - rank
    if position.kind == _STAND_IN:
        batch = (max(position.batches, 1) - 1) // world * world
    batch = max(batch, 0)
    return _Start(-(-batch // world), batch)


def _iterations(start: _Start, batches: int, world: int) -> int:
    """Batches of each rank in an epoch that is continued, including those done before."""
    return start.iterations + max(0, -(-(batches - start.batch) // world))


class BatchIterator:
    """The samples of one epoch for this rank, from EpochIterator.next_epoch_itr().

    Attributes:
        n: Samples given so far, including those before a state.
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
        """The next batch of the epoch that a rank gets, over all ranks, from 0."""
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
        # No name beyond this, so that a loop holds only what its body holds.
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
            # Weights that somebody else has set have ended it.
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
        """Is there another sample? It does not wait: the epoch's length tells."""
        return self.n < self.total

    def skip(self, count: int) -> BatchIterator:
        """Passes over ``count`` samples, or as many as there are; returns itself."""
        for _ in range(count):
            found = self._advance()
            if found is None:
                break
            found[0].release()
        return self

    def take(self, total: int) -> BatchIterator:
        """Ends the iterator when ``n`` is ``total``, at the latest; returns itself."""
        self._most = total if self._most is None else min(self._most, total)
        return self


class GroupedIterator:
    """Updates: the samples of an iterator in lists of ``chunk_size``; the last may be shorter.

    Both numbers count lists, also those before a state: if the iterator has already given p
    samples, n begins at ⌈p / chunk_size⌉.

    Attributes:
        n: Lists given so far.
        total: Lists of the epoch.
        chunk_size: Samples in a list.
    """

    def __init__(self, itr: BatchIterator, chunk_size: int) -> None:
        """
        Args:
            itr: The result of next_epoch_itr().
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
        # Nothing is left over if a state was saved in the middle of a list.
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
        """Is there another list?"""
        return self._itr.has_next()

    def skip(self, count: int) -> GroupedIterator:
        """Passes over ``count`` lists, or as many as there are; returns itself."""
        for _ in range(count):
            if not self.has_next():
                break
            self._itr.skip(self.chunk_size)
            self.n += 1
        return self

    def take(self, total: int) -> GroupedIterator:
        """Ends this and the inner iterator when ``n`` is ``total``, at the latest; returns
        itself."""
        self._itr.take(self._itr.n + max(0, total - self.n) * self.chunk_size)
        return self
