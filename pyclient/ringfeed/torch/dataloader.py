"""PyTorch's DataLoader, whose workers may die."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data import _DatasetKind
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from ._plan import plan_of, shareable
from ._progress import Start, WorkersProgress
from ._reasons import Reasons
from ._shared import Shared, place_in
from ._workers import Context, Workers, process_kind
from ._zygote import starter
from .stateful import Resumable, StatefulMixin

_T_co = TypeVar("_T_co", covariant=True)
# Of PyTorch 2.2 on.
_Noted: Any = getattr(
    torch.autograd.profiler, "_is_profiler_enabled", None
) is not None and getattr(torch._C._profiler, "_RecordFunctionFast", None)
_SETTINGS = ("stall_timeout", "max_attempts", "on_poison", "dataset_state")


class _WithContext:
    """A loader as its iterator sees it, with a context of the iterator's own."""

    def __init__(self, loader: Any, context: Context) -> None:
        self._loader = loader
        self.multiprocessing_context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Tasks(dict[int, Any]):
    """PyTorch's table of tasks, which tells which of them goes to the loop."""

    def __init__(self, tasks: dict[int, Any], passed: Callable[[int], None]) -> None:
        """`passed`: a bound method; its object is not kept."""
        super().__init__(tasks)
        self.given = -1
        self._passed = weakref.WeakMethod(passed)

    def pop(self, task: int, *default: Any) -> Any:
        self.given = task
        return super().pop(task, *default)

    def __delitem__(self, task: int) -> None:
        # In its turn a worker has nothing for it: its dataset has ended.
        super().__delitem__(task)
        if (passed := self._passed()) is not None:
            passed(task)


class _WorkersIterator(_MultiProcessingDataLoaderIter):
    """PyTorch's own iterator, over a feed in place of queues, that knows where it is."""

    def __init__(self, loader: DataLoader[Any], start: Start | None) -> None:
        self._shutdown = True  # for __del__, until there is something to shut down
        self._workers: list[Any] = []
        self.progress = WorkersProgress(loader, start)
        settings = {name: getattr(loader, name) for name in _SETTINGS}
        settings |= {
            "prefetch_factor": loader.prefetch_factor,
            "begin_with": self.progress.begin_with,
            "process_kind": process_kind(loader),
            "snapshots": self.progress.snapshots,
        }
        self._context = Context(
            loader._starter(),
            settings,
            lambda: self.progress.attach(self),
        )
        self._is_iterable = loader._dataset_kind == _DatasetKind.Iterable
        self._marks: dict[int, Any] = {}
        self._mark: Any = None
        self._due: bool | None = None  # an epoch is to begin: is it the first?
        seen: Any = _WithContext(self.progress.stand_in(), self._context)
        super().__init__(seen)
        workers: Any = self._workers
        for worker in workers:
            worker.starting = False
        self.progress.ask_began(self._first_state)

    @property
    def _feed(self) -> Workers:
        assert self._context.workers is not None
        return self._context.workers

    @property
    def reasons(self) -> Reasons:
        """What limits it."""
        return self._feed.reasons

    @property
    def samples_left_out(self) -> int:
        """How many were left out until now because they kill processes (on_poison="skip")."""
        return self._feed.left_out

    def state_dict(self) -> dict[str, Any]:
        """As the loader's."""
        return self.progress.state()

    # ---- epochs

    @property
    def _task_info(self) -> Any:
        return self._tasks

    @_task_info.setter
    def _task_info(self, tasks: dict[int, Any]) -> None:
        self._tasks = _Tasks(tasks, self._passed)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._due = first_iter
        self._marks.clear()
        self._feed.arrived.clear()
        if not first_iter:
            self._feed.began.clear()
        super()._reset(loader, first_iter)

    def _begin_epoch(self, first: bool) -> None:
        self.progress.epoch(self, first)
        for _ in range(self.progress.first_worker):
            next(self._worker_queue_idx_cycle)
        if not first:
            for worker, (state, _) in self._feed.began.items():
                self.progress.began(worker, state)

    def _first_state(self, worker: int) -> bytes | None:
        return self._feed.wait_begun(worker)[0]

    def wait_begun(self) -> None:
        """Waits until all workers have begun; raises what one of them raised."""
        for worker in range(self._num_workers):
            state, error = self._feed.wait_begun(worker)
            if isinstance(error, ExceptionWrapper):
                error.reraise()
            self.progress.began(worker, state)

    # ---- batches

    def _next_index(self) -> Any:
        pending = self.progress.next_pending()
        index = super()._next_index() if pending is None else pending[0]
        self._mark = self.progress.drawn(index)
        self._context.wanted = self._mark.wanted
        return index

    def _try_put_index(self) -> None:
        if self._due is not None:
            first, self._due = self._due, None
            self._begin_epoch(first)
        task = self._send_idx
        super()._try_put_index()
        if self._send_idx != task:
            self._marks[task] = self._mark

    def _process_data(self, data: Any, *worker: Any) -> Any:
        task = self._tasks.given
        mark = self._marks.pop(task)
        number, state, _ = self._feed.arrived.pop(task)
        try:
            data = super()._process_data(data, *worker)
        except BaseException:
            self.progress.raised(mark, number, state)
            raise
        self.progress.yielded(mark, number, state)
        return data

    def _passed(self, task: int) -> None:
        mark = self._marks.pop(task, None)
        arrived = self._feed.arrived.pop(task, None)
        if mark is not None:
            self.progress.dropped(mark)
        if arrived is not None and arrived[2]:
            self.progress.ended(arrived[0], arrived[1])

    def __next__(self) -> Any:
        try:
            if not _Noted or self._is_iterable or torch.autograd.profiler._is_profiler_enabled:
                return super().__next__()
            # The same for who observes in another way, at a tenth of the cost.
            with _Noted(self._profile_name):
                data = self._next_data()
                self._num_yielded += 1
                return data
        except StopIteration:
            self.progress.finish(self)
            self._feed.rest()
            raise


class DataLoader(  # type: ignore[misc, unused-ignore]
    Resumable, torch.utils.data.DataLoader[_T_co]
):
    """`torch.utils.data.DataLoader` with workers that may die and batches that are not copied.

    All arguments and attributes are PyTorch's, and mean the same. With ``num_workers=0`` it is
    PyTorch's. With workers a private feed makes the batches: a worker that is killed, ends itself,
    hangs or runs out of memory has a successor, which makes the same batches.
    """

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[_T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: torch.utils.data.Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: torch.utils.data.Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        stall_timeout: float = 600.0,
        max_attempts: int = 3,
        on_poison: str = "error",
        dataset_state: str = "exact",
        feed: str | None = None,
        trainers: int = 1,
    ) -> None:
        """
        Args:
            dataset to in_order: As for `torch.utils.data.DataLoader`.
            stall_timeout: Seconds that a worker may take for one sample, or to collate a batch,
                before it is ended and has a successor; its stack is in the log. A wait of so long
                in which no worker works is a FeedFailed. 0: no limit.
            max_attempts: Workers that a sample may kill by a fault or a hang. A worker that was
                killed or has exited may have had another reason: it counts half.
            on_poison: What follows then: "error", a RuntimeError in the place of its batch, or
                "skip", a batch without it.
            dataset_state: What `state_dict()` of an iterable dataset is worth: "exact", or
                "run_forward" where it leaves out what the dataset holds back, as in a shuffle
                buffer of its own: then the dataset is read again up to where it was, after the
                death of a worker and at a resume. That Hugging Face's does so is known. "verify"
                where nobody knows: the samples behind an earlier state come once more and are
                compared with those that had come; if they differ the dataset is read again.
            feed: Name of a feed. Processes whose loaders name the same one get the same batches,
                which are made once; the first of them starts it. Under `torch.distributed` each
                rank gets its share. The order is that of `DistributedSampler`, with the seed of
                `generator`, or 0.
            trainers: Of `feed`: how many have to be there before it begins.
        Raises:
            ValueError: As of PyTorch's; or `feed` with a sampler or dataset of which it is not
                known what all trainers get.
        """
        if on_poison not in ("error", "skip"):
            raise ValueError(f"on_poison is {on_poison!r}: it may be 'error' or 'skip'")
        if dataset_state not in ("exact", "run_forward", "verify"):
            raise ValueError(
                f"dataset_state is {dataset_state!r}: it may be 'exact', 'run_forward' or 'verify'"
            )
        if not stall_timeout >= 0:
            raise ValueError(f"stall_timeout is {stall_timeout}: it may be 0 (no limit) or more")
        if not 1 <= max_attempts <= 255:
            raise ValueError(f"max_attempts is {max_attempts}: it may be 1 to 255")
        if trainers < 1:
            raise ValueError(f"trainers is {trainers}: it may be 1 or more")
        if feed is not None and re.fullmatch(r"\w[\w.-]{0,63}", feed, re.A) is None:
            raise ValueError(
                f"feed is {feed!r}: a name has 1 to 64 characters out of A-Za-z0-9_.-, and none of "
                "the last two first"
            )
        if feed is not None and num_workers == 0:
            raise ValueError(
                f"feed={feed!r} needs workers, which make its batches: num_workers > 0"
            )
        self._reasons: Reasons | None = None
        self._shared: Shared | None = None
        self.feed = feed
        self.trainers = trainers
        self._zygote: Any = None  # of spawned workers
        self.stall_timeout = stall_timeout
        self.max_attempts = max_attempts
        self.on_poison = on_poison
        self.dataset_state = dataset_state
        # Versions of PyTorch that do not know an argument have what its default means.
        more: Any = {} if in_order else {"in_order": False}
        if pin_memory_device:
            more["pin_memory_device"] = pin_memory_device
        super().__init__(
            *(dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn),
            *(pin_memory, drop_last, timeout, worker_init_fn, multiprocessing_context, generator),
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            **more,
        )

        if feed is not None:
            shareable(self)

    def __iter__(self) -> Any:
        return super().__iter__() if self.feed is None else self._shared_iteration()

    def __getstate__(self) -> dict[str, Any]:
        # In another process it begins as a new one.
        return {**super().__getstate__(), "_shared": None, "_zygote": None}

    def __len__(self) -> int:
        return super().__len__() if self.feed is None else plan_of(self, None)[0].batches

    def _shared_iteration(self) -> Any:
        sampler: Any = getattr(self.batch_sampler, "sampler", self.sampler)
        epoch = sampler.epoch if isinstance(sampler, DistributedSampler) else None
        first = 0
        if self.next_iter_state is not None:
            epoch, first = place_in(self.next_iter_state)
        if self._shared is None:
            self._shared = Shared(self)
            self._reasons = self._shared.reasons
        iteration = self._shared.begin(epoch, first)
        self.next_iter_state = None
        return iteration

    def state_dict(self) -> dict[str, Any]:
        if self.feed is None or self.next_iter_state is not None:
            return super().state_dict()
        return {} if self._shared is None else self._shared.state_dict()

    def _workers_iterator(self, start: Start | None) -> Any:
        self.check_worker_number_rationality()
        iterator = _WorkersIterator(self, start)
        self._reasons = iterator.reasons
        return iterator

    def _starter(self) -> Any:
        real = self.multiprocessing_context or torch.multiprocessing.get_context()
        found = starter(real, self._zygote)
        self._zygote = None if found is real else found
        return found

    def why(self) -> str:
        """What limits the loader, in a few sentences, of its newest iterator.

        The dataset (with the indices of the slowest samples; in one of eight batches they are
        timed), collate_fn, or the loop itself.
        """
        if self.num_workers == 0:
            return "Without workers the loop makes its batches itself: set num_workers."
        if self._reasons is None:
            return "It is too early to say: there has been no iteration."
        return self._reasons.text()


class StatefulDataLoader(StatefulMixin, DataLoader[_T_co]):
    """torchdata's StatefulDataLoader, by the same arguments, with the workers of ``DataLoader``.

    Beyond torchdata's: a resume of a map-style dataset takes the same time wherever the state was
    taken, and the generators of the workers go on as they were.

    With ``shuffle=True`` the order goes on over epochs from a generator of the sampler's own,
    seeded from PyTorch's global one when the loader is made, or from ``generator``: the same order
    as torchdata's.

    Args:
        dataset: Map-style or iterable. Its ``state_dict()`` and ``load_state_dict()``, and those of
            its iterator, are part of the state where it has them.
        snapshot_every_n_steps: A state is that of the last n-th batch, and a resume reads and drops
            what came behind it. With 1, and with ``in_order=False``, it is that of the last batch.
        batch_size, shuffle, sampler and the others: As of ``DataLoader``.
    Raises:
        ValueError, TypeError: As ``torch.utils.data.DataLoader``.
    """

    def _workers_iterator(self, start: Start | None) -> Any:
        iterator = super()._workers_iterator(start)
        iterator.wait_begun()
        return iterator
