"""``state_dict()`` and ``load_state_dict()`` of loaders, and ``StatefulDataLoader``.

    loader = StatefulDataLoader(dataset, batch_size=32, shuffle=True, num_workers=4)
    for step, batch in enumerate(loader):
        ...
        if step % 1000 == 0:
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, path)

    loader.load_state_dict(torch.load(path)["loader"])
    for batch in loader:                     # the rest of that epoch, then whole epochs

The state is that after the last batch that the loop has been given, whatever is under way: the
place of the sampler, the dataset's own states where it has such, and the states of the workers'
generators, so augmentations go on as they would have. What a resume takes doesn't grow with the
place. Only iterable datasets without a state are run forward, and samplers that have none and are
none of PyTorch's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import torch
import torch.utils.data
from torch.utils.data import _utils
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from . import _generators
from ._progress import (
    InProcessProgress,
    Progress,
    Start,
    WorkerPlace,
    WorkersProgress,
    apply_sharding,
)
from ._samplers import RandomSampler, walk


@runtime_checkable
class Stateful(Protocol):
    """What a dataset, iterator or sampler has whose state a loader keeps; the same as torchdata's.

    ``isinstance(thing, Stateful)`` says whether it has both methods; it need not be a subclass.
    """

    def state_dict(self) -> dict[str, Any]:
        """Where it is. It is copied before the thing goes on."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on there."""
        ...


class InProcessIterator(_SingleProcessDataLoaderIter):
    """PyTorch's iterator without workers, that knows where it is."""

    def __init__(self, loader: Any, start: Start | None = None) -> None:
        self.progress = InProcessProgress(loader, start)
        # Not its own constructor: that would begin the dataset before it has its state.
        _BaseDataLoaderIter.__init__(self, self.progress.stand_in())
        self._profile_name = (
            f"enumerate(DataLoader)#{_SingleProcessDataLoaderIter.__name__}.__next__"
        )
        self.progress.attach(self)
        apply_sharding(self)
        self._place = self.progress.place = _place(loader, self._dataset)
        if start is not None and start.place is not None:
            self._place.restore(start.place)
        else:
            self._place.begin()

    @property
    def _dataset_fetcher(self) -> Any:
        return self._place.fetcher

    @property
    def _finished(self) -> bool:
        return self.progress.finished

    def state_dict(self) -> dict[str, Any]:
        """As the loader's."""
        return self.progress.state()

    def _next_data(self) -> Any:
        data = self._place.fetch(self._next_index())
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def __next__(self) -> Any:
        try:
            data = super().__next__()
        except StopIteration:
            self.progress.finished = True
            raise
        self.progress.num_yielded = self._num_yielded
        return data

    def __del__(self) -> None:
        place = getattr(self, "_place", None)
        if place is not None:
            place.release()


def _skip(iterator: Any, batches: int) -> None:
    """Read and throw away. What was raised between them was raised in its time."""
    if batches and isinstance(iterator.progress, WorkersProgress):
        iterator.wait_begun()  # what is raised there would be raised for ever
    skipped = 0
    while skipped < batches:
        raised = iterator.progress.num_raised
        try:
            next(iterator)
        except StopIteration:
            raise ValueError(
                f"the dataset has {skipped} of the {batches} batches that the state has passed: it "
                "has changed since"
            ) from None
        except Exception:
            if iterator.progress.num_raised == raised:
                raise
            continue
        skipped += 1


def _place(loader: Any, dataset: Any) -> WorkerPlace:
    return WorkerPlace(
        loader._dataset_kind,
        dataset,
        loader._auto_collation,
        loader.collate_fn,
        loader.drop_last,
        own_process=False,
        dataset_state=getattr(loader, "dataset_state", "exact"),
    )


class Resumable:
    """What makes a ``torch.utils.data.DataLoader`` one that has a state.

    ``class DataLoader(Resumable, torch.utils.data.DataLoader)`` gives ``_workers_iterator(start)``:
    an iterator over it with an attribute ``progress``, a ``WorkersProgress`` made with ``start``.
    """

    next_iter_state: dict[str, Any] | None = None
    _progress: Progress | None = None

    # torch.utils.data.DataLoader's
    num_workers: int
    persistent_workers: bool
    generator: Any
    dataset: Any
    _index_sampler: Any

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that the latest iterator has given.

        A batch that raised behind that one comes again after a resume.

        After an epoch's end, the state to begin the next one with. After ``load_state_dict()``, and
        before an iterator is asked for, what was loaded. Before any iteration, nothing: ``{}``.

        Returns:
            A dictionary of its own: nothing changes it later. It is JSON where the states of the
            dataset and the sampler are.
        Raises:
            Exception: What ``state_dict()`` of the dataset or the sampler raises.
        """
        if self.next_iter_state is not None:
            return copy.deepcopy(self.next_iter_state)
        return {} if self._progress is None else self._progress.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next iterator go on where the state was taken; ``{}``: from the beginning.

        It is checked when that iterator is made.

        Raises:
            TypeError: It is no dictionary.
        """
        if not isinstance(state_dict, dict):
            raise TypeError(
                f"load_state_dict() takes what state_dict() gave, not {type(state_dict).__name__}"
            )
        self._iterator = None
        self._progress = None
        # Copied: datasets go on changing what they are given.
        self.next_iter_state = copy.deepcopy(state_dict) if state_dict else None

    def _get_iterator(self) -> Any:
        """The next iterator: of the loaded state's rest, or of a whole epoch.

        Raises:
            AssertionError: The state is of a loader with another number of workers, and of an
                iterable dataset or one with a state.
            ValueError: The state is of another sampler or dataset, of a later version, or damaged.
            Exception: What the dataset or the sampler raises.
        """
        start = None
        if self.next_iter_state is not None:
            start = Start(self.next_iter_state, self)
            if start.finished:
                start = self._end_of_epoch(start)
        if self.num_workers == 0:
            iterator: Any = InProcessIterator(self, start)
        else:
            iterator = self._workers_iterator(start)
        # Before the batches are read that torchdata's states count from: they are none of the rest.
        self.next_iter_state = None
        self._progress = iterator.progress
        if start is not None:
            _skip(iterator, start.skip)
        return iterator

    def _end_of_epoch(self, start: Start) -> Start | None:
        """Set all that lives between epochs to where the state was taken."""
        seldom = not hasattr(self, "snapshot_every_n_steps")
        ended = walk(self._index_sampler, start.sampler, seldom)
        start.draw_seeds(self, ended)
        ended.finish()
        if self.generator is not None and start.generator is not None:
            self.generator.set_state(_generators.as_tensor(start.generator))
        if self.num_workers == 0:
            if start.place is not None:
                _place(self, self.dataset).restore(start.place)
            return None
        if not self.persistent_workers:
            return None  # there, each epoch's workers begin with the dataset as it is here
        start.anew()
        return start

    def _workers_iterator(self, start: Start | None) -> Any:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_progress"}


class StatefulMixin(Resumable):
    """What ``StatefulDataLoader`` has beyond ``DataLoader``; its base makes the workers."""

    _iterator: Any
    sampler: Any
    batch_sampler: Any

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        **named: Any,
    ) -> None:
        if named.get("feed") is not None:
            raise ValueError("StatefulDataLoader has no feed: DataLoader(feed=…) has a state, too")
        super().__init__(  # type: ignore[call-arg]
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
            **named,
        )
        self.snapshot_every_n_steps = snapshot_every_n_steps
        if type(self.sampler) is torch.utils.data.RandomSampler and sampler is None:
            own = RandomSampler(dataset, generator=generator)
            object.__setattr__(self, "sampler", own)
            if batch_size is not None and batch_sampler is None:
                self.batch_sampler.sampler = own
        # An iterator that state_dict() has asked for, and that is the next iteration's.
        self._initial_iter_for_state_dict = False

    def __iter__(self) -> Any:
        if self._initial_iter_for_state_dict:
            self._initial_iter_for_state_dict = False
        elif self.persistent_workers and self.num_workers > 0 and self._iterator is not None:
            self._iterator._reset(self)
        else:
            self._iterator = None  # the workers of the one before end first
            self._iterator = self._get_iterator()
        return self._iterator

    def state_dict(self) -> dict[str, Any]:
        """As of ``DataLoader``, but before any iteration it begins one, for the state of its start.

        The next ``iter()`` gives that iteration.
        """
        if self._progress is None and self.next_iter_state is None:
            self._iterator = self._get_iterator()
            self._initial_iter_for_state_dict = True
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._initial_iter_for_state_dict = False
