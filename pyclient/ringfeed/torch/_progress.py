"""Where an iteration is: in a worker, in the trainer, and as the dictionary of ``state_dict()``.

The dictionary has torchdata's keys where it has the same facts. Of a loader without workers:

    _version                    1
    _index_sampler_state        of a batch sampler or sampler that has state_dict(); else None
    _sampler_iter_state         where the walk over it is (_samplers.py), or its iterator's state
    _sampler_iter_yielded       index batches drawn
    _sampler_iter_behind        those of them that were drawn behind that state
    _num_yielded                batches yielded
    _base_seed                  what the epoch's seed for workers was
    _global_generator           fingerprint of PyTorch's global generator as the state was taken
    _generator                  state of the loader's generator; None: it has none
    _shared_seed, _IterableDataset_len_called
    dataset_state               dataset.state_dict(), or None
    fetcher_state               iterable datasets: {dataset_iter_state, fetcher_ended}; else None
    fetched, samples            batches fetched, and samples asked of an iterable's iterator
    before                      generators before iter(dataset), where it can only be run forward
    behind                      dataset_state="verify": an earlier state, and what came behind it
    epoch                       the dataset's own, where it has a shuffle buffer
    since                       what was fetched after all that, and is fetched once more at a
                                resume: index batches, of an iterable dataset their number
    _iterator_finished          the epoch is over: the next iteration is a new one

Of a loader with workers:

    _version, _iterator_finished
    _steps_since_snapshot       batches yielded since the snapshot: with snapshot_every_n_steps > 1
    _snapshot
        _snapshot_step          batches yielded
        _last_yielded_worker_id
        _main_snapshot          _num_workers and the keys above from _index_sampler_state to
                                _IterableDataset_len_called
        _worker_snapshots       worker_0, worker_1 ...: worker_id, the keys above from dataset_state
                                to before, and generators: all after its last batch yielded
        _pending                in_order=False: index batches drawn and not yielded, oldest first

Bytes are base64 text, so the whole is JSON where the user's own states are.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.utils.data
from torch.utils.data import (
    IterDataPipe,
    MapDataPipe,
    _DatasetKind,
    default_collate,
    default_convert,
)

from . import _compared, _generators
from ._samplers import OwnState, Place, Walk, Walker, count, mapping, stateful
from ..worker.exact import loses_samples

logger = logging.getLogger(__name__)

VERSION = 1
_DRAW_NOTHING = (default_collate, default_convert)


class WorkerPlace:
    """The fetcher of one worker, and where it is. In the worker; without workers, in the trainer.

    Args:
        kind: ``loader._dataset_kind``.
        dataset: The dataset.
        auto_collation, collate_fn, drop_last: As in ``_DatasetKind.create_fetcher``.
        own_process: The generators of this process are this worker's: they are part of its state.
        dataset_state: What the states of an iterable dataset are worth: "exact"; "run_forward",
            they are not to be used; "verify", what comes behind them is compared.
    """

    def __init__(
        self,
        kind: Any,
        dataset: Any,
        auto_collation: bool,
        collate_fn: Callable[[Any], Any],
        drop_last: bool,
        *,
        own_process: bool = True,
        dataset_state: str = "exact",
    ) -> None:
        self.iterable: bool = kind == _DatasetKind.Iterable
        self.dataset = dataset
        self.fetcher: Any = None
        self.fetched = 0
        self._samples = 0
        self._ended = False
        self._before: bytes | None = None
        self._without = False  # its state_dict() is of no use
        self._loses = False  # because it leaves samples out
        self._own_process = own_process
        self._run_forward = dataset_state == "run_forward"
        self._compares = dataset_state == "verify"
        self._watched: _compared.Watched | None = None  # what the fetcher has its samples of
        self._why = ""  # a state was not used
        self._due: int | None = None  # the digest of the samples that are read again
        self._many = auto_collation
        self._drop_last = drop_last
        self.collate_fn = collate_fn  # of the user
        self._make = lambda: _DatasetKind.create_fetcher(
            kind, self.dataset, auto_collation, collate_fn, drop_last
        )

    def begin(self) -> None:
        """Begin an epoch: ``iter(dataset)`` of an iterable one. Raises what that raises."""
        first = None
        compares = self._compares and self.iterable
        if compares and stateful(self.dataset) and not self._without:
            try:
                first = pickle.dumps(self.dataset.state_dict())
            except Exception:  # it is told of when a state is wanted
                compares = False
        self._begin()
        if compares and self.has_state:
            # Before iter(): what is its own iterator may count with that.
            state = None if first is None else pickle.loads(first)
            begin = {"dataset": state, "iterator": None, "fetched": 0, "samples": 0}
            watched = self._watch(state, self._before)
            watched.add({**begin, "generators": _generators.capture()})

    def _begin(self) -> None:
        # For where there is no other way back: who draws in iter() draws the same again.
        self._before = _generators.capture() if self.iterable else None
        self._watched = None
        self.fetcher = self._make()
        if self.iterable and self._is_stateful():
            self._loses = loses_samples(self.dataset)
            if self._loses or self._run_forward:
                self.do_without()
        self.fetched = self._samples = 0
        self._ended = False

    def _watch(self, first: Any, before: bytes | None) -> _compared.Watched:
        watched = _compared.Watched(self.fetcher.dataset_iter, first, before)
        self._watched = self.fetcher.dataset_iter = watched
        return watched

    @property
    def _iterator(self) -> Any:
        """The dataset's own."""
        if self._watched is not None:
            return self._watched.samples
        return getattr(self.fetcher, "dataset_iter", None)

    def begin_again(self, dataset: Any) -> None:
        """As begin(), with what the dataset has become."""
        self.dataset = dataset
        self.begin()

    @property
    def has_ended(self) -> bool:
        """Has the iterable dataset ended?"""
        return self._ended

    def end(self) -> None:
        """Nothing more is asked of the iterable dataset."""
        self._ended = True

    @property
    def has_state(self) -> bool:
        """Has the dataset, or its iterator, a state of its own?"""
        return not self._without and self._is_stateful()

    def _is_stateful(self) -> bool:
        return stateful(self.dataset) or stateful(self._iterator)

    def do_without(self) -> None:
        """From here on as if the dataset had no state of its own: it cannot tell it."""
        self._without = True

    def fetch(self, index: Any) -> Any:
        """The batch of an index, or of a list of them.

        Raises:
            StopIteration: The iterable dataset has ended.
            Exception: Whatever the dataset or collate_fn raises; it counts as fetched.
        """
        self._look()
        self.fetched += 1
        if self.iterable:
            self._samples += len(index) if self.fetcher.auto_collation else 1
            try:
                return self.fetcher.fetch(index)
            except StopIteration:
                self._ended = True
                raise
        return self.fetcher.fetch(index)

    def state(self) -> dict[str, Any]:
        """Plain data: dataset, iterator, ended, fetched, samples, before, behind, generators.

        Dataset and iterator are what their ``state_dict()`` gave, not copied: pickle it before the
        next fetch. Raises what they raise.
        """
        own, behind = {"dataset": None, "iterator": None}, None
        if self._watched is None or self._without:
            own = self._own_state()
        else:
            self._watched.take(self._here, True)
            behind = self._watched.behind()
        return {
            **own,
            "behind": behind,
            "ended": self._ended or bool(getattr(self.fetcher, "ended", False)),
            "fetched": self.fetched,
            "samples": self._samples,
            "before": None if self.has_state else self._before,
            "epoch": (
                getattr(self.dataset, "epoch", None) if self._loses or self._run_forward else None
            ),
            "generators": _generators.capture() if self._own_process else None,
        }

    def _here(self) -> dict[str, Any]:
        at = {"fetched": self.fetched, "samples": self._samples}
        return {**self._own_state(), **at, "generators": _generators.capture()}

    def _look(self) -> None:
        """Between two batches."""
        if self._watched is not None and not self._without:
            with contextlib.suppress(Exception):  # it is told of when a state is wanted
                self._watched.take(self._here, False)

    def _own_state(self) -> dict[str, Any]:
        iterator = self._iterator
        # A dataset that is its own iterator has one state.
        twice = iterator is self.dataset and iterator is not None
        of_dataset = stateful(self.dataset) and not twice and not self._without
        of_iterator = stateful(iterator) and not self._without
        return {
            "dataset": self.dataset.state_dict() if of_dataset else None,
            "iterator": iterator.state_dict() if of_iterator else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where ``state()`` was given, with the generators as they were then.

        First the dataset's state, then ``iter(dataset)``, then the iterator's state; a dataset
        without any is run forward. What was fetched ``since`` is fetched once more. With
        ``finished`` set in the state, a new epoch begins from there.

        Raises:
            ValueError: A dataset that is run forward has fewer samples than it had.
            Exception: What the dataset raises.
        """
        if state.get("anew"):
            self.begin()
        else:
            self._restore_state(state)
        since = state.get("since") or ()
        if isinstance(since, int):  # of a damaged state it may be any
            since = itertools.repeat(state["index"], min(since, sys.maxsize))
        for index in since:
            if self.has_ended:
                break
            self.run_again(index)
        if state.get("finished"):
            self.begin()

    def _restore_state(self, state: dict[str, Any]) -> None:
        if state.get("behind") is not None:
            return self._restore_compared(state, state["behind"])
        if state["before"] is not None:
            self.do_without()
            epoch, here = state.get("epoch"), getattr(self.dataset, "epoch", None)
            if epoch != here and isinstance(epoch, int) and not state.get("finished"):
                raise ValueError(
                    f"the state was taken in epoch {epoch} of the dataset, which is at epoch "
                    f"{here}: call set_epoch({epoch}) before"
                )
        if state["dataset"] is not None and stateful(self.dataset):
            self.dataset.load_state_dict(state["dataset"])
        # In the trainer the generators are the trainer's: they are left as they are now.
        now = None if self._own_process or state["before"] is None else _generators.capture()
        if state["before"] is not None:
            _generators.restore(state["before"])
        try:
            self._begin()
            self.fetched, self._samples = state["fetched"], state["samples"]
            self._ended = state["ended"]
            if self.iterable:
                self._restore_iterator(state)
        finally:
            if now is not None:
                _generators.restore(now)
        if self._own_process and state["generators"] is not None:
            _generators.restore(state["generators"])

    def _restore_compared(self, state: dict[str, Any], behind: dict[str, Any]) -> None:
        """If what comes behind an earlier state is what had come, there; else run forward."""
        now = None if self._own_process else _generators.capture()
        name = type(self.dataset).__name__
        try:
            if self._comes_again(state, behind):
                if self._own_process and state["generators"] is not None:
                    _generators.restore(state["generators"])
                return
            self._why = f"the state of {name} does not give the samples that had come behind it"
        except Exception as error:
            self._why = f"{name} cannot go on from its state ({type(error).__name__}: {error})"
        finally:
            if now is not None:
                _generators.restore(now)
        self._due = behind["whole"]
        if behind["first"] is not None and stateful(self.dataset):
            self.dataset.load_state_dict(behind["first"])
        self._restore_state({**state, "behind": None, "before": behind["before"]})

    def _comes_again(self, state: dict[str, Any], behind: dict[str, Any]) -> bool:
        base = behind["base"]
        if base["dataset"] is not None and stateful(self.dataset):
            self.dataset.load_state_dict(base["dataset"])
        _generators.restore(behind["before"])
        self._begin()
        if not self.has_state:
            return False
        if base["iterator"] is not None and stateful(self._iterator):
            self._iterator.load_state_dict(base["iterator"])
        self._before = behind["before"]
        watched = self._watch(behind["first"], behind["before"])
        watched.add(base)
        watched.is_compared = True
        _generators.restore(base["generators"])
        self.fetched, self._samples = base["fetched"], base["samples"]
        size = state["samples"] // max(1, state["fetched"])
        for _ in range(state["fetched"] - base["fetched"]):
            self.run_again([None] * size if self._many else None)
        watched.is_compared = False
        if watched.bases[0].trail != behind["trail"]:
            return False
        watched.whole = behind["whole"]
        self.fetched, self._samples = state["fetched"], state["samples"]
        self._ended = self.fetcher.ended = state["ended"]
        return True

    def _restore_iterator(self, state: dict[str, Any]) -> None:
        iterator = self.fetcher.dataset_iter
        if self.has_state:
            if state["iterator"] is not None and stateful(iterator):
                iterator.load_state_dict(state["iterator"])
        elif not state.get("finished"):
            if state["fetched"]:
                logger.warning(
                    "%s: it is read again up to where it was, %d batches",
                    self._why
                    or (
                        f"the state of {type(self.dataset).__name__} has not the samples in its "
                        "shuffle buffer"
                        if self._loses
                        else (
                            f"the state of {type(self.dataset).__name__} is not to be used"
                            if self._run_forward and self._is_stateful()
                            else "neither the dataset nor its iterator has state_dict() and "
                            "load_state_dict(), with which it would go on at once"
                        )
                    ),
                    state["fetched"],
                )
            watched = _compared.Watched(iterator, None, None)
            self._pass_over(iterator if self._due is None else watched)
            due, self._due = self._due, None
            if due not in (None, watched.whole):
                logger.error(
                    "%s does not give the same samples when it is read again: some may come twice, "
                    "and some not at all. Let their order follow from a seed",
                    type(self.dataset).__name__,
                )
        self.fetcher.ended = self._ended

    def _pass_over(self, iterator: Any) -> None:
        # Batch by batch: what raises ends a batch, and a collate_fn may draw from the generators
        # that the dataset draws from. PyTorch's own do not.
        size = self._samples // max(1, self.fetched)
        collates = self.collate_fn not in _DRAW_NOTHING
        passed = 0
        for _ in range(self.fetched):
            data: list[Any] = []
            try:
                for _ in range(size):
                    one = next(iterator)
                    passed += 1
                    if collates:
                        data.append(one)
            except StopIteration:
                if not self._ended:
                    raise ValueError(
                        f"the dataset has {passed} of the {self._samples} samples that the state "
                        "has passed: it has changed since"
                    ) from None
                if not data or self._drop_last:
                    return
            except Exception:  # it was the error of its batch
                passed += 1
                continue
            if collates:
                with contextlib.suppress(Exception):
                    self.collate_fn(data if self._many else data[0])

    def run_again(self, index: Any) -> bool:
        """Fetch what has been fetched before, for what it does to the dataset and the generators.

        Returns:
            Whether it was the end of the iterable dataset.
        """
        if self._ended:
            return True
        fetcher = self.fetcher
        collate = fetcher.collate_fn
        fetcher.collate_fn = _drop if self.collate_fn in _DRAW_NOTHING else self.collate_fn
        try:
            WorkerPlace.fetch(self, index)
        except StopIteration:
            return self.iterable
        except Exception:  # it was the error of its batch
            pass
        finally:
            fetcher.collate_fn = collate
        return False

    def release(self) -> None:
        """Nothing more will be fetched: let go of what ``state()`` doesn't need."""
        if self.fetcher is not None and not self.has_state:
            self._ended = self._ended or bool(getattr(self.fetcher, "ended", False))
            self.fetcher = None


def _drop(data: Any) -> None:
    """In place of a collate_fn that draws nothing."""


def worker_state(place: WorkerPlace) -> bytes:
    """A worker's state as the bytes that travel with a batch. Raises what state_dict() raises."""
    return pickle.dumps(place.state(), protocol=pickle.HIGHEST_PROTOCOL)


def restore_worker(place: WorkerPlace, state: bytes | None) -> None:
    """Begin a worker's epoch: from bytes of ``worker_state()``, or from its beginning.

    The worker's generators must be seeded as at its first epoch's start, and its worker_init_fn
    must have run. Raises as ``WorkerPlace.restore()``.
    """
    if state is None:
        place.begin()
    else:
        place.restore(pickle.loads(state))


def _open_worker(worker: int, known: _Known, iterable: bool) -> dict[str, Any]:
    """As it lies in state_dict()."""
    plain = {"anew": True} if known.state is None else pickle.loads(known.state)
    since: Any = len(known.since) if iterable else copy.deepcopy(known.since)
    if "since" in plain:  # of a state that was loaded
        since = plain["since"] + since
    if plain.get("anew"):
        return {
            "worker_id": worker,
            "dataset_state": None,
            "fetcher_state": None,
            "since": since,
        }
    place = _open_place(plain, iterable)
    return {"worker_id": worker, **place, **({"since": since} if since else {})}


def _open_place(plain: dict[str, Any], iterable: bool) -> dict[str, Any]:
    return {
        "dataset_state": plain["dataset"],
        "fetcher_state": (
            {"dataset_iter_state": plain["iterator"], "fetcher_ended": plain["ended"]}
            if iterable
            else None
        ),
        "fetched": plain["fetched"],
        "samples": plain["samples"],
        "before": _generators.text(plain["before"]),
        "generators": _generators.text(plain["generators"]),
        **_compared.opened(plain["behind"]),
        **({"epoch": plain["epoch"]} if plain.get("epoch") is not None else {}),
    }


def _close_place(state: dict[str, Any], index: Any = None) -> dict[str, Any]:
    """From state_dict() back to what WorkerPlace.restore() takes.

    Args:
        index: What each batch of an iterable dataset is asked for with.
    """
    fetcher = mapping(state.get("fetcher_state"), "fetcher_state")
    plain = {
        "dataset": state.get("dataset_state"),
        "iterator": fetcher.get("dataset_iter_state"),
        "ended": bool(fetcher.get("fetcher_ended", False)),
        "fetched": count(state, "fetched", 0),
        "samples": count(state, "samples", 0),
        "before": _generators.untext(state.get("before")),
        "generators": _generators.untext(state.get("generators")),
        "epoch": state.get("epoch"),
        "behind": _compared.closed(state),
    }
    since = state.get("since")
    if since:
        if not isinstance(since, list) and not (isinstance(since, int) and since > 0):
            raise ValueError(f"the state is damaged: since is {since!r:.40}, not what was fetched")
        plain |= {"since": since, "index": index}
    return plain


def _close_worker(state: dict[str, Any], finished: bool, index: Any) -> bytes | None:
    plain = _close_place(state, index)
    if "fetched" not in state and state.get("dataset_state") is None:
        if state.get("fetcher_state") is None:
            if not plain.get("since") and not finished:
                return None
            plain["anew"] = True
    if finished:
        plain["finished"] = True
    return pickle.dumps(plain, protocol=pickle.HIGHEST_PROTOCOL)


def _must_read_again(state: dict[str, Any], dataset: Any) -> bool:
    """Of an iterable dataset without a state, from torchdata: nobody knows how far it was."""
    fetcher = state.get("fetcher_state") or {}
    if "fetched" in state or "since" in state:
        return False
    is_known = state.get("dataset_state") is not None or fetcher.get("dataset_iter_state")
    return not is_known or loses_samples(dataset)


class _Mark(NamedTuple):
    """What is kept with an index batch that has been drawn."""

    number: int
    index: Any
    spot: Any  # where the walk over the sampler was behind it
    generator: Any  # the state of the loader's generator, a tensor
    wanted: bool  # its worker's state is to come with its batch


class _Known:
    """Where a worker is, as far as the trainer has been told."""

    def __init__(self, state: bytes | None = None, since: list[Any] | None = None) -> None:
        self.state = state  # None: as it begins
        self.since = since or []  # what it was asked for behind that

    def go_on(self, index: Any, state: bytes | None) -> None:
        """A batch of it has come."""
        if state is None:
            self.since.append(index)
        else:
            self.state = state
            self.since.clear()


class _Snapshot(NamedTuple):
    """All that a state is made of."""

    num_yielded: int
    last_worker: int
    place: Place
    generator: Any
    workers: list[_Known]


def _check_is_plain(state: dict[str, Any]) -> None:
    if "_num_yielded" not in state:
        raise AssertionError(
            "the state has neither '_snapshot' nor '_num_yielded': it is not of a loader"
        )


def _check_names(workers: dict[str, Any], number: int) -> None:
    # First how many: a damaged number may be any.
    if len(workers) != number or set(workers) != {f"worker_{one}" for one in range(number)}:
        raise AssertionError(
            f"the state is of a loader with num_workers={number}, and has {sorted(workers)}"
        )


class Start:
    """A loaded state, checked against the loader that it is loaded in.

    Raises:
        AssertionError: It is of a loader with another number of workers, and of a dataset of which
            each worker has a state.
        ValueError: It is of a later version, or is damaged.
    """

    def __init__(self, state: dict[str, Any], loader: Any) -> None:
        version = state.get("_version", VERSION)
        if not isinstance(version, int) or version > VERSION:
            raise ValueError(
                f"the state has version {version!r}, this ringfeed reads up to {VERSION}: load it "
                "with the one that made it"
            )
        self.finished = bool(state.get("_iterator_finished", False))
        self.workers: list[bytes | None] = []
        self.place: dict[str, Any] | None = None
        self.base_seed: int | None = None
        self.last_worker = loader.num_workers - 1
        self.pending: list[Any] = []
        self.skip = 0  # batches to be read and thrown away first: torchdata's states have such
        try:
            theirs = 0
            if "_snapshot" in state:
                theirs = count(state["_snapshot"]["_main_snapshot"], "_num_workers")
            if theirs != loader.num_workers:
                self._take_another_number(state, theirs, loader)
            elif theirs == 0:
                self._take_plain(state, loader)
            else:
                self._take_workers(state, loader)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the state is damaged: {error!r}") from error

    def _take_plain(self, state: dict[str, Any], loader: Any) -> None:
        _check_is_plain(state)
        self._take_main(state)
        self.num_yielded = count(state, "_num_yielded")
        self.place = _close_place(state)
        if state["fetcher_state"] is not None and _must_read_again(state, loader.dataset):
            self._read_again()

    def _take_workers(self, state: dict[str, Any], loader: Any) -> None:
        snapshot = state["_snapshot"]
        workers = snapshot["_worker_snapshots"]
        names = [f"worker_{worker}" for worker in range(loader.num_workers)]
        _check_names(workers, loader.num_workers)
        self._take_main(snapshot["_main_snapshot"])
        self.num_yielded = count(snapshot, "_snapshot_step")
        self.last_worker = count(snapshot, "_last_yielded_worker_id")
        if self.last_worker >= loader.num_workers:
            raise ValueError(f"the state is damaged: its last worker is {self.last_worker}")
        iterable = loader._dataset_kind == _DatasetKind.Iterable
        index = [None] * loader.batch_size if iterable and loader._auto_collation else None
        self.workers = [_close_worker(workers[name], self.finished, index) for name in names]
        self.pending = list(snapshot.get("_pending", ()))
        if iterable:
            if any(_must_read_again(worker, loader.dataset) for worker in workers.values()):
                self._read_again()
                self.workers = [None] * loader.num_workers
                self.last_worker = loader.num_workers - 1
        if not self.finished:
            self.skip += count(state, "_steps_since_snapshot", 0)

    def _take_another_number(self, state: dict[str, Any], theirs: int, loader: Any) -> None:
        """Of a map-style dataset all but what its workers had: they begin anew."""
        snapshot = main = state
        places = [state]
        if theirs == 0:
            _check_is_plain(state)
            self.num_yielded = count(state, "_num_yielded")
        else:
            snapshot = state["_snapshot"]
            main = snapshot["_main_snapshot"]
            _check_names(snapshot["_worker_snapshots"], theirs)
            places = list(snapshot["_worker_snapshots"].values())
            self.num_yielded = count(snapshot, "_snapshot_step")
            self.pending = list(snapshot.get("_pending", ()))
        if loader._dataset_kind == _DatasetKind.Iterable:
            why = "an iterable dataset, which each worker reads a part of"
        elif stateful(loader.dataset) or any(one.get("dataset_state") for one in places):
            why = "a dataset that has a state of its own in each worker"
        elif self.pending and loader.num_workers == 0:
            why = "batches that were passed over, with in_order=False"
        else:
            why = ""
        if why:
            raise AssertionError(
                f"the state is of a loader with num_workers={theirs}, this one has "
                f"{loader.num_workers}: that can be resumed but for {why}"
            )
        self._take_main(main)
        if self.base_seed is not None:
            # Else the first worker would draw once more what it has drawn for the first batches.
            self.base_seed = _generators.another_seed(self.base_seed, self.num_yielded)
        self.workers = [None] * loader.num_workers
        if loader.num_workers == 0:
            self.place = _close_place({})
        if not self.finished:
            self.skip = count(state, "_steps_since_snapshot", 0)

    def _read_again(self) -> None:
        if not self.finished:
            self.skip = self.num_yielded
        self.num_yielded = 0
        self.place = None

    def _take_main(self, main: dict[str, Any]) -> None:
        self.sampler: Place | None = Place(
            count(main, "_sampler_iter_yielded"),
            main["_index_sampler_state"],
            main["_sampler_iter_state"],
            count(main, "_sampler_iter_behind", 0),
        )
        self.len_called = main["_IterableDataset_len_called"]
        self.shared_seed = main["_shared_seed"]
        self.base_seed = main.get("_base_seed")
        for number in (self.len_called, self.shared_seed, self.base_seed):
            if number is not None and not isinstance(number, int):
                raise ValueError(f"the state is damaged: {number!r:.40} is no length and no seed")
        self.generator = _generators.untext(main.get("_generator"))
        self._global = main.get("_global_generator")

    def draw_seeds(self, loader: Any, walk: Walk) -> None:
        """Draw what an epoch draws from PyTorch's global generator at its start, for nobody.

        A trainer that seeds itself as in its first run, and goes on from there, has the seeds of
        its first epoch before it: they were used. One that has set the generator back to where it
        was as the state was taken has them behind it: then nothing is drawn.
        """
        if _generators.fingerprint() == self._global:
            return
        walk.draw_seed()
        if loader.generator is None:
            for _ in range(2 if isinstance(loader.dataset, IterDataPipe) else 1):
                torch.empty((), dtype=torch.int64).random_()

    def anew(self) -> None:
        """The epoch is over: only the workers go on from where they were."""
        self.sampler = None
        self.generator = None
        self.num_yielded = 0
        self.len_called = None
        self.last_worker = len(self.workers) - 1
        self.pending = []


class _StandIn:
    """A loader as PyTorch's iterators see it in their constructor.

    Its sampler is a Walker. Of a resumed iteration, the generator is one that nobody has: what the
    constructor draws there has been drawn before, and is no draw of anybody's now.
    """

    def __init__(self, loader: Any, walker: Walker, resumed: bool) -> None:
        self._loader = loader
        self._index_sampler = walker
        if resumed:
            self.generator = torch.Generator()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Progress:
    """Where an iteration is, as the trainer sees it. Outlives the iterator.

    ``_BaseDataLoaderIter.__init__`` is to be given ``stand_in()`` in the loader's place, and then
    the iterator goes to ``attach()``. From then on ``iterator._sampler_iter`` is a walk.
    """

    def __init__(self, loader: Any, start: Start | None = None) -> None:
        self._loader_generator = loader.generator
        self._start = start
        self._walker = Walker(
            loader._index_sampler,
            start.sampler if start else None,
            hold=start is not None,
            seldom=not hasattr(loader, "snapshot_every_n_steps"),
        )
        self._walk: Any = None
        if start is not None:
            if start.sampler is not None:
                start.draw_seeds(loader, iter(self._walker))
            self._restore_generator()
        self._stand_in: _StandIn | None = _StandIn(loader, self._walker, start is not None)
        self.num_yielded = start.num_yielded if start is not None else 0
        self.num_raised = 0  # batches that were an error of the user's code
        self.finished = False
        self._facts: dict[str, Any] = {}

    def _restore_generator(self) -> None:
        assert self._start is not None
        if self._loader_generator is not None and self._start.generator is not None:
            try:
                self._loader_generator.set_state(_generators.as_tensor(self._start.generator))
            except RuntimeError as error:
                raise ValueError(f"damaged state of the loader's generator: {error}") from error

    def stand_in(self) -> Any:
        """What the constructor of PyTorch's iterators is given as the loader; asked for once."""
        stand_in, self._stand_in = self._stand_in, None  # which has the loader, which has this
        return stand_in

    def attach(self, iterator: Any) -> None:
        """Called after the constructor of PyTorch's base class, and after each ``_reset()`` of it.

        Sets ``_base_seed``, ``_shared_seed``, ``_num_yielded``, ``_IterableDataset_len_called`` of
        a resumed iteration, at its first epoch.
        """
        start = self._start
        if start is not None:
            if start.base_seed is not None:
                iterator._base_seed = start.base_seed
            iterator._shared_seed = start.shared_seed
            iterator._num_yielded = start.num_yielded
            if start.len_called is not None:
                iterator._IterableDataset_len_called = start.len_called
            if isinstance(iterator._dataset, IterDataPipe) and start.shared_seed is not None:
                generator = torch.Generator()
                generator.manual_seed(start.shared_seed)
                iterator._dataset = torch.utils.data.graph_settings.apply_random_seed(
                    iterator._dataset, generator
                )
        self._walk = iterator._sampler_iter
        self._facts = {
            "_IterableDataset_len_called": iterator._IterableDataset_len_called,
            "_shared_seed": iterator._shared_seed,
            "_base_seed": iterator._base_seed,
        }

    def _generator_now(self) -> Any:
        return None if self._loader_generator is None else self._loader_generator.get_state()

    def _main(self, place: Place, generator: Any) -> dict[str, Any]:
        iterator = place.iterator
        if isinstance(iterator, OwnState):
            iterator = iterator.plain()
        return {
            "_index_sampler_state": copy.deepcopy(place.sampler),
            "_sampler_iter_state": copy.deepcopy(iterator),
            "_sampler_iter_yielded": place.yielded,
            **({"_sampler_iter_behind": place.behind} if place.behind else {}),
            **self._facts,
            "_generator": _generators.text(generator),
            "_global_generator": _generators.fingerprint(),
        }

    def state(self) -> dict[str, Any]:
        """The dictionary of state_dict(). It shares nothing with the iteration."""
        raise NotImplementedError


class InProcessProgress(Progress):
    """Of a loader without workers: everything is as it is now."""

    def __init__(self, loader: Any, start: Start | None = None) -> None:
        super().__init__(loader, start)
        self.place: Any = None

    def state(self) -> dict[str, Any]:
        place = self._walk.place()
        plain = copy.deepcopy(self.place.state())
        return {
            "_version": VERSION,
            "_num_yielded": self.num_yielded,
            **self._main(place, self._generator_now()),
            **_open_place(plain, self.place.iterable),
            "_iterator_finished": self.finished,
        }


class WorkersProgress(Progress):
    """Of a loader with workers. The engine's iterator calls it so:

    ``__init__(loader, start)``::

        self._progress = WorkersProgress(loader, start)   # raises for a state that doesn't fit
        super().__init__(self._progress.stand_in())       # PyTorch's _BaseDataLoaderIter
        self._progress.attach(self)                       # _base_seed and more, of a resumed one
        # start the workers: worker i calls restore_worker(place, self._progress.begin_with(i))
        self._reset(loader, first_iter=True)

    ``_reset(loader, first_iter=False)``::

        super()._reset(loader, first_iter)
        self._progress.epoch(self, first_iter)
        # tasks go to the workers in turn from self._progress.first_worker on, and
        # self._progress.pending goes out before the sampler's own

    after ``_next_index()`` has given an index batch (in the thread that draws)::

        mark = self._progress.drawn(index)                # kept with the task

    when the batch of a task is handed to the loop, and only then::

        self._progress.yielded(mark, worker, state)       # bytes of worker_state() after that batch

    when in its turn a worker turns out to have ended (iterable datasets)::

        self._progress.ended(worker, state)

    when a worker has begun an epoch, before its first batch is yielded::

        self._progress.began(worker, state)               # bytes of worker_state() at that point

    or, where that comes with the worker's first batch, once before the first epoch::

        self._progress.ask_began(self._first_state)       # (worker) -> bytes; waits; kept weakly

    ``StatefulDataLoader`` wants ``began()`` of all workers before ``iter(loader)`` returns: what
    they raise there (worker_init_fn, iter(dataset)) is raised there. What ``worker_state()`` raises
    in a worker is an error of that batch.

    when the batch of a task raises in the loop::

        self._progress.raised(mark, worker, state)        # bytes of worker_state() behind it

    when a task turns out to have no batch::

        self._progress.dropped(mark)

    when ``__next__`` raises StopIteration::

        self._progress.finish(self)

    States may be None: of a beginning, that worker begins anew after a resume; of a batch, it is
    fetched once more then.

    ``_workers_iterator()`` of the loader calls ``check_worker_number_rationality()`` first, as
    PyTorch's ``_get_iterator()`` does.
    """

    def __init__(self, loader: Any, start: Start | None = None) -> None:
        super().__init__(loader, start)
        self._num_workers: int = loader.num_workers
        self._in_order: bool = loader.in_order
        self._iterable: bool = loader._dataset_kind == _DatasetKind.Iterable
        self._begin_with: list[bytes | None] = (
            list(start.workers) if start is not None else [None] * self._num_workers
        )
        self._ask: Any = None
        # A snapshot is taken behind so many batches; 0: only of the beginning. Where batches have
        # no order, their number doesn't tell which ones come again after a resume.
        every = getattr(loader, "snapshot_every_n_steps", 1) or 0
        self._every: int = every if self._in_order else 1
        self.snapshots: bool = hasattr(loader, "snapshot_every_n_steps")
        self._ahead: int = loader.num_workers * (loader.prefetch_factor or 2)
        self._forget(start)

    def _forget(self, start: Start | None) -> None:
        self._workers = [
            _Known(state) for state in (start.workers if start else [None] * self._num_workers)
        ]
        self._last_worker = start.last_worker if start else self._num_workers - 1
        self.first_worker = (self._last_worker + 1) % self._num_workers
        self.pending: list[Any] = list(start.pending) if start else []
        self._spot: Any = None  # of the last batch yielded
        self._generator: Any = None
        self._outstanding: dict[int, _Mark] = {}
        self._highest = -1  # of those yielded
        # Of batches that raised, by number: index, worker and state. A state that is taken right
        # there lets them come again, one that is taken behind a later batch does not.
        self._raised: dict[int, tuple[Any, int, bytes | None]] = {}
        self._numbers = 0
        self._snapshot: _Snapshot | None = None  # if they are not taken of each batch

    def begin_with(self, worker: int) -> bytes | None:
        """What ``restore_worker()`` is given in a worker, at its start; None begins anew."""
        return self._begin_with[worker]

    def ask_began(self, first_state: Callable[[int], bytes | None]) -> None:
        """Of a bound method: it is asked for the states of workers that nothing is known of yet."""
        self._ask = weakref.WeakMethod(first_state)

    def epoch(self, iterator: Any, first_iter: bool) -> None:
        """An epoch begins; PyTorch's ``_reset()`` has run."""
        self.finished = False
        if not first_iter:
            self._start = None
            self._forget(None)
        self.attach(iterator)
        self.num_yielded = self._first = iterator._num_yielded
        self._at_start = self._generator_now()

    def next_pending(self) -> tuple[Any] | None:
        """The index batch that comes before the sampler's own next one; None: that comes."""
        return (self.pending[self._numbers],) if self._numbers < len(self.pending) else None

    def drawn(self, index: Any) -> _Mark:
        """An index batch has been drawn, or taken from ``pending``: this is kept with its task."""
        mark = _Mark(
            self._numbers, index, self._walk.spot(), self._generator_now(), self._wants_state()
        )
        self._numbers += 1
        if not self._in_order:
            self._outstanding[mark.number] = mark
        return mark

    def _wants_state(self) -> bool:
        """May the next batch that is drawn be the last of its worker before a snapshot?"""
        if not self.snapshots or not self._every:
            return False
        if self._iterable:  # nobody knows which workers have ended until then
            first, margin = self.num_yielded, self._ahead + self._num_workers
        else:
            first, margin = self._first + self._numbers, self._num_workers - 1
        return first % self._every + 1 + margin >= self._every

    def yielded(self, mark: _Mark, worker: int, state: bytes | None) -> None:
        """The batch of that mark goes to the loop."""
        self._note_beginning()
        self._outstanding.pop(mark.number, None)
        self.num_yielded += 1
        if mark.number > self._highest:
            self._highest = mark.number
            self._spot, self._generator = mark.spot, mark.generator
        self._pass(self._highest)
        self._last_worker = worker
        self._workers[worker].go_on(mark.index, state)
        if self._every > 1 and self.num_yielded % self._every == 0:
            self._snapshot = self._now()

    def raised(self, mark: _Mark, worker: int, state: bytes | None) -> None:
        """The batch of that mark has raised."""
        self._note_beginning()
        self.num_raised += 1
        self._outstanding.pop(mark.number, None)
        self._raised[mark.number] = mark.index, worker, state
        self._pass(self._highest)

    def _pass(self, number: int) -> None:
        """Batches that raised, up to that number, will not come again."""
        for one in sorted(self._raised) if self._raised else ():
            if one > number:
                break
            index, self._last_worker, state = self._raised.pop(one)
            self._workers[self._last_worker].go_on(index, state)

    def dropped(self, mark: _Mark) -> None:
        """There is no batch of that mark."""
        self._outstanding.pop(mark.number, None)

    def ended(self, worker: int, state: bytes | None) -> None:
        """A worker's iterable dataset has ended."""
        self._note_beginning()
        self._workers[worker].go_on(None, state)

    def began(self, worker: int, state: bytes | None) -> None:
        """A worker has begun the epoch: its state before its first batch."""
        if state is not None:
            self._workers[worker] = _Known(state)

    def finish(self, iterator: Any) -> None:
        """The epoch is over."""
        self.finished = True
        self._pass(self._numbers)
        walk: Walk = iterator._sampler_iter
        if not self._iterable and not self._outstanding:
            # Nothing is under way: what the sampler did at its end counts too.
            self._spot, self._generator = walk.spot(), self._generator_now()
        if self._every != 1:
            self._snapshot = self._now()

    def _now(self) -> _Snapshot:
        generator = self._generator
        if self._spot is not None:
            place = self._walk.at(self._spot)
        else:
            place = self._walk.origin()
            if self._start is not None and self._start.sampler is not None:
                generator = self._start.generator
            elif self._walk.generator is None or self._walk.generator is not self._loader_generator:
                generator = self._at_start
            # else the walk sets it: it has drawn from it since the start
        first_state = self._ask and self._ask()
        for worker, known in enumerate(self._workers):
            if known.state is None and not known.since and first_state:
                known.state = first_state(worker)
        workers = [_Known(known.state, list(known.since)) for known in self._workers]
        return _Snapshot(self.num_yielded, self._last_worker, place, generator, workers)

    def _note_beginning(self) -> None:
        """Before the first thing that comes: the snapshot that holds until there is another."""
        if self._snapshot is None and self._every != 1:
            self._snapshot = self._now()

    def state(self) -> dict[str, Any]:
        now = self._snapshot or self._now()
        snapshot = {
            "_snapshot_step": now.num_yielded,
            "_last_yielded_worker_id": now.last_worker,
            "_main_snapshot": {
                "_num_workers": self._num_workers,
                **self._main(now.place, now.generator),
            },
            "_worker_snapshots": {
                f"worker_{worker}": _open_worker(worker, known, self._iterable)
                for worker, known in enumerate(now.workers)
            },
        }
        if not self._in_order and not self._iterable:
            snapshot["_pending"] = copy.deepcopy(self._left_behind())
        return {
            "_version": VERSION,
            "_snapshot": snapshot,
            "_steps_since_snapshot": self.num_yielded - now.num_yielded,
            "_iterator_finished": self.finished,
        }

    def _left_behind(self) -> list[Any]:
        """Index batches, not yielded, that the sampler won't give again after a resume."""
        again = len(self.pending)
        sent = [
            mark.index
            for mark in list(self._outstanding.values())
            if mark.number < self._highest or mark.number < again
        ]
        return sent + self.pending[self._numbers :]


def apply_sharding(iterator: Any) -> None:
    """What PyTorch's iterator without workers does to data pipes at its start."""
    if isinstance(iterator._dataset, (IterDataPipe, MapDataPipe)):
        torch.utils.data.graph_settings.apply_sharding(
            iterator._dataset, iterator._world_size, iterator._rank
        )
