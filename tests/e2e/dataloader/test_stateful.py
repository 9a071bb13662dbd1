"""``state_dict()`` of loaders: the rest of an epoch, and the epochs after it, as if nobody had stopped.

Most tests run over torchdata's StatefulDataLoader too, where it is installed: what it does is what is
meant. Those of ``Better`` run over ours alone: there torchdata's gives another rest.
"""

from __future__ import annotations

import copy
import gc
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy  # noqa: E402
import torch.utils.data  # noqa: E402
from ringfeed.torch import _generators, _samplers  # noqa: E402
from torch.utils.data import (  # noqa: E402
    BatchSampler,
    Dataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

import ringfeed.torch as ours  # noqa: E402
from tests.support.loaders.own_data import epochs_of, seed_all  # noqa: E402
from tests.support.loaders.resuming import (  # noqa: E402
    Augmented,
    ByIterator,
    BySampler,
    CountsIter,
    DrawsWithState,
    Evens,
    GrowingState,
    IsItsIterator,
    Numbers,
    OverGenerator,
    OverIterator,
    Shuffles,
    Stateless,
    Torchdatas,
    as_they_are,
    assert_goes_on,
    assert_rest_comes,
    beside_torchdata,
    no_warnings,
    resumed,
    same,
    share,
    stopped,
    take,
    through_json,
)

pytestmark = no_warnings

OURS = ours.StatefulDataLoader
both = pytest.mark.parametrize(
    "loader",
    [
        pytest.param(OURS, id="ours"),
        pytest.param(Torchdatas, id="torchdata", marks=beside_torchdata),
    ],
)
workers = pytest.mark.parametrize(
    "workers",
    [{"num_workers": 0}, {"num_workers": 3}, {"num_workers": 3, "persistent_workers": True}],
    ids=["0", "3", "3-persistent"],
)
none_or_two = pytest.mark.parametrize("num_workers", [0, 2])


def drawn_by(workers: dict[str, Any]) -> Numbers:
    """Samples that workers draw; without workers the generators would be the trainer's own."""
    return Augmented() if workers["num_workers"] else Numbers()


def places_of(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a loader's state: that of each worker, or of the loader if it has none."""
    if "_snapshot" not in state:
        return [state]
    return list(state["_snapshot"]["_worker_snapshots"].values())


# ---- the same as torchdata's


@both
@workers
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("stop", [0, 1, 5, None])
@pytest.mark.parametrize("dataset", [OverIterator, OverGenerator, IsItsIterator, Stateless])
def test_iterable(loader, workers, batch_size, stop, dataset):
    if dataset is IsItsIterator and not workers["num_workers"]:
        pytest.skip("without workers the one object goes on by itself")

    def make():
        data = dataset([20, 30, 25])
        return loader(data, batch_size=batch_size, collate_fn=as_they_are, **workers)

    assert_goes_on(make, stop, through=through_json)


@both
@workers
@pytest.mark.parametrize("stop", [0, 1, 9, None])
@pytest.mark.parametrize("shuffle", [False, True])
def test_map_style(loader, workers, stop, shuffle):
    assert_goes_on(lambda: loader(Numbers(), batch_size=4, shuffle=shuffle, **workers), stop)


@both
@workers
@pytest.mark.parametrize("stop", [0, 3, 9])
def test_datasets_own_generator_is_its_state(loader, workers, stop):
    def make():
        return loader(DrawsWithState(), batch_size=4, collate_fn=as_they_are, **workers)

    assert_rest_comes(make, stop)


@both
@workers
@pytest.mark.parametrize("stop", [0, 3, 7, None])
@pytest.mark.parametrize("sampler", [Evens, ByIterator, BySampler])
@pytest.mark.parametrize("batch_size", [2, None])
def test_samplers_of_the_user(loader, workers, stop, sampler, batch_size):
    def make():
        return loader(Numbers(), batch_size=batch_size, sampler=sampler(40), **workers)

    assert_goes_on(make, stop, through=through_json)


@both
@workers
@pytest.mark.parametrize("stop", [0, 2, 5])
def test_batch_sampler_of_the_user(loader, workers, stop):
    class Pairs:
        def __iter__(self):
            return iter([[n, n + 1] for n in range(0, 40, 3)])

        def __len__(self):
            return 14

    assert_goes_on(lambda: loader(Numbers(), batch_sampler=Pairs(), **workers), stop)


@both
@workers
@pytest.mark.parametrize(
    "sampler",
    [
        lambda data, g: RandomSampler(data, generator=g),
        lambda data, g: RandomSampler(data, num_samples=97, generator=g),
        lambda data, g: RandomSampler(data, replacement=True, num_samples=90, generator=g),
        lambda data, g: SubsetRandomSampler(range(5, 40), generator=g),
        lambda data, g: WeightedRandomSampler([1.0] * 40, 60, generator=g),
        lambda data, g: SequentialSampler(data),
        lambda data, g: DistributedSampler(data, 3, 1, seed=4),
    ],
    ids=["random", "more", "replacement", "subset", "weighted", "sequential", "distributed"],
)
def test_samplers_of_pytorch(loader, workers, sampler):
    """Seeded alike before each loader, as torchdata's reads them again."""

    def make():
        data = Numbers()
        order = sampler(data, torch.Generator().manual_seed(5))
        return loader(data, batch_size=3, sampler=order, **workers)

    assert_rest_comes(make, 4)


@both
@none_or_two
@pytest.mark.parametrize("shuffle", [False, True])
def test_end_of_an_epoch_is_before_or_after_the_last_stop(loader, num_workers, shuffle):
    def make():
        return loader(Numbers(), batch_size=4, shuffle=shuffle, num_workers=num_workers)

    made = make()
    for _ in made:
        within = made.state_dict()
    after = made.state_dict()
    again = resumed(make(), within)
    assert list(again) == []
    assert len(list(again)) == 10
    assert len(list(resumed(make(), after))) == 10


@both
@none_or_two
def test_two_epochs_and_two_more_are_four(loader, num_workers):
    def make():
        return loader(Numbers(), batch_size=4, shuffle=True, num_workers=num_workers)

    torch.manual_seed(0)
    first = make()
    batches = [batch for _ in range(2) for batch in first]
    second = resumed(make(), first.state_dict())
    batches += [batch for _ in range(2) for batch in second]
    torch.manual_seed(0)
    whole = make()
    assert same(batches, [batch for _ in range(4) for batch in whole])


@both
@none_or_two
def test_state_in_an_epoch_that_was_resumed(loader, num_workers):
    """Before every worker has given a batch: the states of those others are the loaded ones."""

    def make():
        data = OverIterator([20, 30])
        return loader(data, batch_size=3, num_workers=num_workers, collate_fn=as_they_are)

    made = make()
    state, iterator = stopped(made, 5)
    next(iterator)
    state, _ = stopped(resumed(make(), state), 1)
    assert list(resumed(make(), state)) == list(iterator)


@both
@pytest.mark.parametrize("num_workers", [0, 3])
def test_state_before_the_first_iteration_begins_it(loader, num_workers):
    def make():
        data = DrawsWithState()
        return loader(data, shuffle=True, num_workers=num_workers, collate_fn=as_they_are)

    made = make()
    state = made.state_dict()
    if num_workers:
        assert len(state["_snapshot"]["_worker_snapshots"]) == num_workers
    batches = list(made)
    assert len(batches) == 40
    again = make()
    _, under_way = stopped(again, 3)
    assert list(resumed(again, state)) == batches
    del under_way


@both
@pytest.mark.parametrize("num_workers", [0, 3])
def test_state_after_a_load_is_the_loaded_one(loader, num_workers):
    def make():
        data = DrawsWithState()
        return loader(data, shuffle=True, num_workers=num_workers, collate_fn=as_they_are)

    made = make()
    state, iterator = stopped(made, 7)
    rest = list(iterator)
    again = resumed(make(), state)
    assert same(again.state_dict(), state)
    assert list(again) == rest


@both
@pytest.mark.parametrize(("taken", "given"), [(0, 3), (3, 0), (3, 2)])
@pytest.mark.parametrize("dataset", [DrawsWithState, lambda: OverIterator([9, 9, 9])])
def test_another_number_of_workers_is_refused_at_iter(loader, taken, given, dataset):
    """Where each worker has something of its own."""
    state, _ = stopped(loader(dataset(), num_workers=taken), 0)
    again = resumed(loader(dataset(), num_workers=given), state)
    with pytest.raises(AssertionError):
        iter(again)


@pytest.mark.parametrize(("taken", "given"), [(0, 3), (3, 0), (3, 2), (1, 4)])
@pytest.mark.parametrize("stop", [0, 1, 5, None])
@pytest.mark.parametrize("kind", [OURS, ours.DataLoader])
@pytest.mark.parametrize("every", [1, 4])
def test_better_another_number_of_workers(taken, given, stop, kind, every):
    """The same order, whoever makes the batches."""
    if kind is ours.DataLoader and every != 1:
        pytest.skip("it has no such argument")
    if kind is OURS and stop is None and 0 in (taken, given):
        pytest.skip(
            "a loader with workers begins its first epoch twice, as torchdata's: another order"
        )
    more = {"snapshot_every_n_steps": every} if kind is OURS else {}

    def make(workers):
        torch.manual_seed(8)
        return kind(Numbers(), batch_size=4, shuffle=True, num_workers=workers, **more)

    assert_rest_comes(lambda: make(given), stop, of=lambda: make(taken))


def test_better_another_number_of_workers_draws_no_augmentation_twice():
    def make(workers):
        torch.manual_seed(8)
        return OURS(Augmented(), num_workers=workers, collate_fn=as_they_are)

    first = make(2)
    given = take(iter(first), 20)
    given += list(resumed(make(3), first.state_dict()))
    assert [batch[0][0] for batch in given] == list(range(40))
    for which in (1, 2, 3):
        assert len({batch[0][which] for batch in given}) == 40


@beside_torchdata
@both
@none_or_two
@pytest.mark.parametrize("stop", [1, 4])
@pytest.mark.parametrize(
    "sampler",
    [
        lambda: SubsetRandomSampler(range(3, 40, 2)),
        lambda: WeightedRandomSampler([1.0 + n for n in range(20)], 17),
        lambda: WeightedRandomSampler([1.0 + n for n in range(20)], 15, replacement=False),
        lambda: RandomSampler(range(19)),
    ],
    ids=["subset", "weighted", "without replacement", "random"],
)
def test_epochs_after_a_resume_of_a_trainer_seeded_as_before(loader, num_workers, stop, sampler):
    """What the order is drawn from without a generator is the trainer's, and goes on as it would have."""

    def make():
        torch.manual_seed(5)
        return loader(Numbers(), batch_size=3, sampler=sampler(), num_workers=num_workers)

    def whole(made, epochs):
        return [[batch.tolist() for batch in made] for _ in range(epochs)]

    due = whole(make(), 3)
    made = make()
    take(iter(made), stop)
    state = made.state_dict()
    first, *later = whole(resumed(make(), state), 3)
    assert first == due[0][stop:]
    assert later == due[1:]


@both
@none_or_two
def test_iter_of_the_dataset_is_called_once(loader, num_workers):
    def calls(state):
        return [place["dataset_state"]["calls"] for place in places_of(state)]

    dataset = CountsIter()
    state, _ = stopped(loader(dataset, num_workers=num_workers), 0)
    assert calls(state) == [1] * max(1, num_workers)
    again, _ = stopped(resumed(loader(dataset, num_workers=num_workers), state), 0)
    # Without workers it is the same object; workers have their copies.
    assert calls(again) == ([1, 1] if num_workers else [2])


@both
@none_or_two
def test_dataset_that_is_its_iterator_has_one_state(loader, num_workers):
    data = IsItsIterator([20, 30])
    state, _ = stopped(loader(data, num_workers=num_workers, collate_fn=as_they_are), 3)
    places = places_of(state)
    assert [place["dataset_state"] for place in places] == [None] * len(places)
    at = [place["fetcher_state"]["dataset_iter_state"]["inner"]["at"] for place in places]
    assert at == ([2, 1] if num_workers else [3])


@both
def test_state_stays_what_it_was(loader):
    def make():
        return loader(GrowingState(), num_workers=2, collate_fn=as_they_are)

    made = make()
    state, iterator = stopped(made, 6)
    was = copy.deepcopy(state)
    take(iterator, 4)
    assert same(state, was)
    worker = places_of(made.state_dict())[0]
    assert len(worker["fetcher_state"]["dataset_iter_state"]["seen"]) == 5
    assert take(iter(resumed(make(), state)), 2) == [[3], [3]]


@both
@pytest.mark.parametrize("every", [0, 1, 4, 17])
@pytest.mark.parametrize("stop", [2, 11])
def test_snapshots_now_and_then(loader, every, stop):
    def make():
        return loader(
            OverGenerator([20, 20, 20]),
            batch_size=2,
            num_workers=3,
            snapshot_every_n_steps=every,
            collate_fn=as_they_are,
        )

    assert make().snapshot_every_n_steps == every
    assert_goes_on(make, stop)


@both
def test_worker_init_fn_that_raises_does_so_in_iter(loader):
    def fail(worker):
        raise RuntimeError("no licence")

    with pytest.raises(RuntimeError, match="no licence"):
        iter(loader(Numbers(), num_workers=2, worker_init_fn=fail))


@both
@none_or_two
def test_after_an_exception_the_next_batch_comes(loader, num_workers):
    class Hole(Numbers):
        def __getitem__(self, index):
            if index == 5:
                raise KeyError("no such sample")
            return index

    def make():
        return loader(Hole(12), num_workers=num_workers, collate_fn=as_they_are)

    made = make()
    _, iterator = stopped(made, 5)
    with pytest.raises(KeyError, match="no such sample"):
        next(iterator)
    assert next(iterator) == [6]
    assert list(resumed(make(), made.state_dict())) == [[n] for n in range(7, 12)]


@both
def test_empty_state_begins_anew(loader):
    made = loader(Numbers(8), batch_size=4)
    stopped(made, 1)
    assert len(list(resumed(made, {}))) == 2


@both
@none_or_two
def test_early_break_and_again(loader, num_workers):
    def make():
        return loader(Numbers(), batch_size=4, num_workers=num_workers, collate_fn=as_they_are)

    made = make()
    for _ in made:
        break
    assert len(list(made)) == 10
    for step, _ in enumerate(made):
        if step == 3:
            break
    again = resumed(make(), made.state_dict())
    assert [batch[0] for batch in again] == list(range(16, 40, 4))


@both
@none_or_two
def test_loading_while_an_iteration_is_under_way(loader, num_workers):
    made = loader(Numbers(), batch_size=4, num_workers=num_workers, collate_fn=as_they_are)
    state, iterator = stopped(made, 1)
    next(iterator)
    assert [batch[0] for batch in resumed(made, state)] == list(range(4, 40, 4))


@both
def test_length_that_was_told_is_still_warned_of(loader):
    class Liar(Stateless):
        def __len__(self):
            return 5

    made = loader(Liar([8]), batch_size=None)
    assert len(made) == 5
    state, _ = stopped(made, 5)
    again = resumed(loader(Liar([8]), batch_size=None), state)
    with pytest.warns(UserWarning, match="Length of IterableDataset"):
        list(again)


@beside_torchdata
@none_or_two
@pytest.mark.parametrize("seeded", ["global", "generator"])
@pytest.mark.parametrize("persistent", [False, True])
def test_order_is_torchdatas(num_workers, seeded, persistent):
    """Shuffled, over three epochs: samples and augmentations."""
    if persistent and not num_workers:
        pytest.skip("no workers to persist")

    def epochs(loader):
        seed_all(3)
        made = loader(
            Augmented(),
            batch_size=3,
            shuffle=True,
            num_workers=num_workers,
            persistent_workers=persistent,
            generator=torch.Generator().manual_seed(8) if seeded == "generator" else None,
        )
        return epochs_of(made, 3)

    assert same(epochs(OURS), epochs(Torchdatas))


@beside_torchdata
@none_or_two
@pytest.mark.parametrize("stop", [0, 4, None])
@pytest.mark.parametrize("what", ["shuffled", "sequential", OverIterator, OverGenerator, Stateless])
def test_torchdatas_states_are_read(num_workers, stop, what):
    def make(loader):
        if isinstance(what, str):
            shuffle = what == "shuffled"
            return loader(Numbers(), batch_size=3, shuffle=shuffle, num_workers=num_workers)
        return loader(
            what([20, 30]),
            batch_size=3,
            num_workers=num_workers,
            collate_fn=as_they_are,
            snapshot_every_n_steps=3,
        )

    assert_rest_comes(lambda: make(OURS), stop, of=lambda: make(Torchdatas))


@both
@pytest.mark.parametrize("stop", [0, 3, None])
def test_data_pipes(loader, stop):
    pipes = pytest.importorskip("torch.utils.data.datapipes.iter")

    def make():
        torch.manual_seed(5)
        pipe = pipes.IterableWrapper(range(30)).shuffle().sharding_filter()
        return loader(pipe, batch_size=4, shuffle=True, collate_fn=as_they_are)

    assert_goes_on(make, stop)


# ---- better than torchdata's


@workers
@pytest.mark.parametrize("stop", [0, 1, 4, 7, 10, None])
@pytest.mark.parametrize("shuffle", [False, True])
def test_better_augmentations_go_on(workers, stop, shuffle):
    """Drawn from torch, random and NumPy in the workers, by a dataset that knows of no state."""
    if not workers["num_workers"]:
        pytest.skip("without workers the generators are the trainer's own")
    generator = torch.Generator().manual_seed(3)

    def make():
        return OURS(Augmented(), batch_size=4, shuffle=shuffle, generator=generator, **workers)

    assert_goes_on(make, stop, through=through_json)


@pytest.mark.parametrize("stop", [0, 3, 5])
def test_better_an_iterable_that_draws_is_run_forward_with_its_draws(stop):
    class Drawing(Stateless):
        def __iter__(self):
            samples = list(share(self.sizes))
            random.shuffle(samples)
            for sample in samples:
                yield sample, float(torch.rand(()))

    def make():
        return OURS(
            Drawing([20, 30]),
            batch_size=4,
            num_workers=2,
            persistent_workers=True,
            collate_fn=as_they_are,
        )

    made = make()
    list(made)  # so that the epoch begins with generators that have drawn
    state, iterator = stopped(made, stop)
    rest = list(iterator)
    assert list(resumed(make(), state)) == rest


@pytest.mark.parametrize("dataset", [OverIterator, OverGenerator, IsItsIterator, Stateless])
@pytest.mark.parametrize("stop", range(0, 20, 3))
def test_better_a_worker_that_has_ended_gives_nothing_again(dataset, stop):
    def make():
        return OURS(dataset([0, 40, 9]), batch_size=4, num_workers=3, collate_fn=as_they_are)

    whole = len(list(make()))
    assert_goes_on(make, min(stop, whole))


@none_or_two
def test_better_a_sampler_that_draws_gives_the_same_order(num_workers):
    def make():
        return OURS(Numbers(), batch_size=4, sampler=Shuffles(40), num_workers=num_workers)

    made = make()
    state, iterator = stopped(made, 4)
    state, rest = through_json(state), list(iterator)
    seed_all(99)
    again = resumed(make(), state)
    before = random.getstate(), numpy.random.random()
    numpy.random.seed(99)
    assert same(list(again), rest)
    assert (random.getstate(), numpy.random.random()) == before


@none_or_two
@pytest.mark.parametrize("shuffle", [False, True])
def test_better_a_resume_draws_nothing_from_the_trainer(num_workers, shuffle):
    """What the trainer draws for itself goes on too: nothing is drawn twice."""

    def make():
        return OURS(Numbers(), batch_size=4, shuffle=shuffle, num_workers=num_workers)

    made = make()
    state, _ = stopped(made, 1)
    trainers = torch.get_rng_state()
    again = resumed(make(), state)
    torch.set_rng_state(trainers)  # as a trainer's checkpoint does
    before = _generators.capture()
    list(again)
    assert _generators.capture() == before


@pytest.mark.parametrize("stop", [0, 2, None])
@workers
@pytest.mark.parametrize("loader", [OURS, ours.DataLoader])
def test_better_a_trainer_seeded_as_before_does_not_repeat_an_epoch(loader, workers, stop):
    """The seeds of the epoch that was under way are drawn again, so the next epoch has others."""

    def make():
        torch.manual_seed(4)
        return loader(drawn_by(workers), batch_size=4, shuffle=True, **workers)

    assert_goes_on(make, stop)


@pytest.mark.parametrize("stop", [0, 1, 5, 12])
@pytest.mark.parametrize("then", [0, 1, 3])
def test_better_out_of_order_nothing_is_lost(stop, then):
    """Twice: what was left behind may be more than what the second one sends ahead."""

    def make(ahead: int):
        return OURS(
            Numbers(),
            batch_size=2,
            num_workers=3,
            in_order=False,
            prefetch_factor=ahead,
            collate_fn=as_they_are,
        )

    for _ in range(8):
        first = make(4)
        iterator = iter(first)
        given = take(iterator, stop)
        second = resumed(make(1), through_json(first.state_dict()))
        iterator = iter(second)
        given += take(iterator, then)
        given += list(resumed(make(2), second.state_dict()))
        assert sorted(given) == [[n, n + 1] for n in range(0, 40, 2)]
        if given != sorted(given) or stop + then < 2:
            return  # else a slow machine, where they came in order by chance
    pytest.fail("they always come in order")


def test_better_out_of_order_more_left_behind_than_is_sent_ahead():
    def make():
        return OURS(
            Numbers(), num_workers=2, in_order=False, prefetch_factor=1, collate_fn=as_they_are
        )

    made = make()
    iterator = iter(made)
    given = take(iterator, 6)
    state = made.state_dict()
    left = state["_snapshot"]["_pending"]
    state["_snapshot"]["_pending"] = [*left, *given]  # as if nothing had been given yet
    state, _ = stopped(resumed(make(), state), 0)
    assert sorted(resumed(make(), state)) == [[n] for n in range(40)]


def test_better_a_loaded_state_stays_what_it_was():
    """Though the dataset goes on changing what it was given."""
    made = OURS(GrowingState(), collate_fn=as_they_are)
    state, _ = stopped(made, 3)
    was = copy.deepcopy(state)
    assert len(list(resumed(OURS(GrowingState(), collate_fn=as_they_are), state))) == 47
    assert same(state, was)


def test_better_out_of_order_each_worker_goes_on():
    def make():
        return OURS(Stateless([5, 30]), num_workers=2, in_order=False, collate_fn=as_they_are)

    for stop in range(0, 35, 4):
        made = make()
        iterator = iter(made)
        given = take(iterator, stop)
        given += list(resumed(make(), made.state_dict()))
        assert sorted(given) == [[n] for n in range(35)]


@both
@workers
@pytest.mark.parametrize("shuffle", [False, True])
def test_state_of_a_resumed_epoch_before_its_first_batch(loader, workers, shuffle):
    def make():
        return loader(Numbers(), batch_size=4, shuffle=shuffle, **workers)

    made = make()
    state, iterator = stopped(made, 4)
    state, _ = stopped(resumed(make(), state), 0)
    assert same(list(resumed(make(), state)), list(iterator))


@both
def test_workers_see_the_seed_that_they_had(loader):
    class Seeds(Numbers):
        def __getitem__(self, index):
            return get_worker_info().seed

    assert_rest_comes(lambda: loader(Seeds(), num_workers=2, collate_fn=as_they_are), 1)


def test_better_a_sampler_may_change_the_state_that_it_gave():
    class Live(BySampler):
        def __init__(self, count):
            super().__init__(count)
            self.live = {"at": 0, "epoch": 0}

        def state_dict(self):
            self.live.update(super().state_dict())
            return self.live

    assert_goes_on(lambda: OURS(Numbers(), batch_size=3, sampler=Live(40), num_workers=2), 3)


# ---- constant time: what is asked, not a clock


class Huge(Dataset):
    """More samples than anybody could walk over."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 10**15

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return index


@none_or_two
@pytest.mark.parametrize("batch_size", [None, 32])
def test_constant_in_order(num_workers, batch_size):
    dataset = Huge()

    def make():
        return OURS(dataset, batch_size=batch_size, num_workers=num_workers)

    state, _ = stopped(make(), 1)
    main = state["_snapshot"]["_main_snapshot"] if num_workers else state
    main["_sampler_iter_yielded"] = 10**12
    place = main["_sampler_iter_state"]
    if batch_size:
        place["samples_yielded"] = 10**12 * batch_size
        place = place["sampler_place"]
    place["yielded"] = 10**12 * (batch_size or 1)
    dataset.asked = 0
    first = next(iter(resumed(make(), state)))
    assert (first if batch_size is None else int(first[0])) == 10**12 * (batch_size or 1)
    if num_workers == 0:
        assert dataset.asked == (batch_size or 1)


@pytest.mark.parametrize("at", [0, 1, 1000, 39000])
def test_constant_shuffled(at, monkeypatch):
    """One draw and one window of indices, wherever it is."""
    dataset = Numbers(40000)

    def make():
        return OURS(dataset, shuffle=True, batch_size=10)

    state, iterator = stopped(make(), at // 10)
    rest = list(itertools.islice(iterator, 5))
    drawn = []
    randperm = torch.randperm
    monkeypatch.setattr(torch, "randperm", lambda *a, **k: drawn.append(1) or randperm(*a, **k))
    again = make()
    dataset.asked.clear()
    assert same(take(iter(resumed(again, state)), len(rest)), rest)
    assert len(dataset.asked) == 10 * len(rest)
    assert len(drawn) == 1


def test_constant_for_datasets_with_a_state():
    class Counted(OverGenerator):
        given = 0

        def __iter__(self):
            for sample in super().__iter__():
                Counted.given += 1
                yield sample

    def make():
        return OURS(Counted([100000]), batch_size=100, collate_fn=as_they_are)

    state, _ = stopped(make(), 900)
    again = resumed(make(), state)
    Counted.given = 0
    assert next(iter(again))[0] == (90000, 0)
    assert Counted.given == 100


# ---- walks over samplers: the same as PyTorch's, and from any place on


def samplers(seed: int | None) -> dict[str, Any]:
    """Each with generators seeded, or with PyTorch's global one."""

    def generator() -> Any:
        return None if seed is None else torch.Generator().manual_seed(seed)

    data = range(50)
    weights = [float(n % 7) + 0.1 for n in range(50)]
    return {
        "sequential": lambda: SequentialSampler(data),
        "random": lambda: RandomSampler(data, generator=generator()),
        "fewer": lambda: RandomSampler(data, num_samples=20, generator=generator()),
        "more": lambda: RandomSampler(data, num_samples=150, generator=generator()),
        "more-rest": lambda: RandomSampler(data, num_samples=130, generator=generator()),
        "replacement": lambda: RandomSampler(
            data, replacement=True, num_samples=100, generator=generator()
        ),
        "replacement-64": lambda: RandomSampler(
            data, replacement=True, num_samples=64, generator=generator()
        ),
        "own": lambda: _samplers.RandomSampler(data, generator=generator()),
        "own-more": lambda: _samplers.RandomSampler(data, num_samples=130, generator=generator()),
        "own-replacement": lambda: _samplers.RandomSampler(
            data, replacement=True, num_samples=100, generator=generator()
        ),
        "subset": lambda: SubsetRandomSampler([n * 3 for n in range(30)], generator=generator()),
        "subset-empty": lambda: SubsetRandomSampler([], generator=generator()),
        "weighted": lambda: WeightedRandomSampler(weights, 70, generator=generator()),
        "weighted-once": lambda: WeightedRandomSampler(weights, 40, False, generator=generator()),
        "distributed": lambda: DistributedSampler(data, 4, 3),
        "distributed-plain": lambda: DistributedSampler(data, 4, 3, shuffle=False),
        "distributed-drop": lambda: DistributedSampler(data, 4, 3, drop_last=True),
        "distributed-few": lambda: DistributedSampler(range(3), 8, 7),
        "users": lambda: Evens(50),
        "users-draws": lambda: Shuffles(50),
    }


NAMES = sorted(samplers(1))


def states_of(sampler: Any) -> list[Any]:
    inner = getattr(sampler, "sampler", sampler)
    own = getattr(inner, "generator", None)
    return [torch.get_rng_state(), None if own is None else own.get_state()]


def forms(name: str, seed: int | None) -> list[Any]:
    make = samplers(seed)[name]
    return [
        make,
        lambda: BatchSampler(make(), 7, False),
        lambda: BatchSampler(make(), 10, False),
        lambda: BatchSampler(make(), 7, True),
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [None, 9])
def test_walk_is_what_iter_gives(name, seed):
    """Over two epochs, the generators' states after each too."""
    for make in forms(name, seed):
        seed_all(1)
        theirs = make()
        if name.startswith("own"):
            expected = [(list(theirs), list(theirs))]
        else:
            expected = [(list(theirs), states_of(theirs)) for _ in range(2)]
        seed_all(1)
        ours = make()
        if name.startswith("own"):
            assert [(list(_samplers.walk(ours)), list(_samplers.walk(ours)))] == expected
        else:
            assert same([(list(_samplers.walk(ours)), states_of(ours)) for _ in range(2)], expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [None, 9])
def test_walk_goes_on_from_any_place(name, seed):
    for make in forms(name, seed):
        sampler = make()
        walk = _samplers.walk(sampler)
        places = []
        spots = []
        items = []
        while True:
            # A walk resumed before its first item draws it anew, from its generator as it is then.
            if items:
                places.append((len(items), walk.place()))
                spots.append(walk.spot())
            item = next(walk, None)
            if item is None:
                break
            items.append(item)
        after = states_of(sampler)[1]
        ended = walk.place()
        assert same([walk.at(spot) for spot in spots], [place for _, place in places])
        for count, place in [*places, (len(items), ended)]:
            state = through_json(place.iterator.plain())
            other = make()
            resumed = _samplers.walk(other, place._replace(iterator=state))
            assert resumed.yielded == count
            assert list(resumed) == items[count:]
            assert same(states_of(other)[1], after)


def test_walk_begins_where_it_has_drawn():
    """A state from before the first batch has the order that is under way ahead of it."""
    sampler = RandomSampler(range(30))
    walk = _samplers.walk(sampler)
    items = list(walk)
    assert list(_samplers.walk(sampler, walk.origin())) == items


def test_random_sampler_reads_torchdatas_states():
    sampler = pytest.importorskip("torchdata.stateful_dataloader.sampler")
    for options in ({}, {"num_samples": 130}, {"replacement": True, "num_samples": 100}):
        generator = torch.Generator().manual_seed(2)
        theirs = iter(sampler.RandomSampler(range(50), generator=generator, **options))
        first = list(itertools.islice(theirs, 45))
        state = theirs.state_dict()
        ours = _samplers.RandomSampler(
            range(50), generator=torch.Generator().manual_seed(2), **options
        )
        walk = iter(ours)
        assert list(itertools.islice(walk, 45)) == first
        rest = list(walk)
        assert rest == list(theirs)
        again = iter(_samplers.RandomSampler(range(50), **options))
        again.load_state_dict(state)
        assert list(again) == rest


# ---- plain DataLoader


@workers
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("seeded", [False, True])
def test_plain_loader_gives_pytorchs_batches(workers, shuffle, seeded):
    def epochs(loader):
        seed_all(2)
        made = loader(
            Augmented(),
            batch_size=3,
            shuffle=shuffle,
            generator=torch.Generator().manual_seed(8) if seeded else None,
            **workers,
        )
        return epochs_of(made, 3), torch.get_rng_state()

    assert same(epochs(ours.DataLoader), epochs(torch.utils.data.DataLoader))


@workers
@pytest.mark.parametrize("stop", [0, 1, 9])
def test_plain_loader_goes_on(workers, stop):
    """Augmentations too, where workers draw them."""

    def make():
        return ours.DataLoader(drawn_by(workers), batch_size=4, shuffle=True, **workers)

    made = make()
    assert made.state_dict() == {}
    state, iterator = stopped(made, stop)
    state = through_json(state)
    trainers = torch.get_rng_state()
    rest, following = list(iterator), list(made)
    again = resumed(make(), state)
    torch.set_rng_state(trainers)  # as a trainer's checkpoint does
    assert same(list(again), rest)
    assert same(list(again), following)


def test_plain_loader_keeps_no_iterator_alive():
    closed = []

    class Closes(Stateless):
        def __iter__(self):
            try:
                yield from range(20)
            finally:
                closed.append(True)

    def make():
        return ours.DataLoader(Closes([20]), batch_size=3, collate_fn=as_they_are)

    made = make()
    for _ in made:
        break
    gc.collect()
    assert closed
    assert next(iter(resumed(make(), made.state_dict()))) == [3, 4, 5]


# ---- what is refused


@none_or_two
def test_damaged_states_are_refused(num_workers):
    """Each key left out, and each value replaced by others: an error of ours, or none."""

    def make():
        return OURS(Numbers(12), batch_size=2, shuffle=True, num_workers=num_workers)

    state, _ = stopped(make(), 1)

    def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        if path:
            yield path
        if isinstance(value, dict):
            for key in value:
                yield from paths(value[key], (*path, key))

    refused = 0
    for path in list(paths(state)):
        for other in (None, -7, 10**30, "x", "QUJD", [], {}, 2.5, b"abc", "left out"):
            damaged = copy.deepcopy(state)
            holder = damaged
            for key in path[:-1]:
                holder = holder[key]
            if other == "left out":
                del holder[path[-1]]
            else:
                holder[path[-1]] = other
            again = resumed(make(), damaged)
            try:
                batches = list(again)
            except (AssertionError, ValueError):
                refused += 1
            else:
                assert len(batches) <= 6
    assert refused > 50


def test_state_must_be_a_dictionary():
    with pytest.raises(TypeError, match="state_dict"):
        OURS(Numbers()).load_state_dict([1])


def test_later_version_is_refused():
    state = OURS(Numbers()).state_dict()
    made = resumed(OURS(Numbers()), {**state, "_version": 2})
    with pytest.raises(ValueError, match="version 2"):
        iter(made)


def test_another_length_is_refused_where_the_order_depends_on_it():
    state, _ = stopped(OURS(Numbers(12), shuffle=True), 1)
    again = resumed(OURS(Numbers(13), shuffle=True), state)
    with pytest.raises(ValueError, match="12 samples"):
        iter(again)


@none_or_two
def test_shorter_dataset_is_refused(num_workers):
    state, _ = stopped(OURS(Stateless([20, 20]), num_workers=num_workers), 30)
    again = resumed(OURS(Stateless([5, 5]), num_workers=num_workers), state)
    with pytest.raises(ValueError, match="has changed since"):
        iter(again)


# ---- states of generators


def test_generators_states_are_bytes():
    random.gauss(0, 1)
    numpy.random.standard_normal()
    torch.randn(3)
    states = _generators.capture()

    def draws() -> Any:
        return (
            [random.gauss(0, 1) for _ in range(3)],
            numpy.random.standard_normal(3).tolist(),
            torch.randn(5).tolist(),
        )

    first = draws()
    _generators.restore(states)
    assert draws() == first
    assert _generators.untext(_generators.text(states)) == states


def test_numpys_number_to_spare_is_seen():
    """Normal numbers come in pairs; to take the second one changes nothing else of the state."""
    numpy.random.seed(1)
    states = [_generators.capture()]
    for draw in [numpy.random.standard_normal] * 4 + [numpy.random.random]:
        draw()
        states.append(_generators.capture())
    assert len(set(states)) == len(states)
    for states_now in reversed(states):
        _generators.restore(states_now)
        assert _generators.capture() == states_now


def test_another_generator_of_numpys_is_left_alone():
    own = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(1))
    try:
        states = _generators.capture()
        drawn = numpy.random.random()
        _generators.restore(states)
        assert numpy.random.random() != drawn
    finally:
        numpy.random.set_bit_generator(own)


def test_damaged_generators_states_change_nothing():
    states = _generators.capture()
    for damaged in (b"", b"RFG1", states[:-1], states + b"x", b"XXXX" + states[4:], states[:6000]):
        with pytest.raises(ValueError):
            _generators.restore(damaged)
        assert _generators.capture() == states
