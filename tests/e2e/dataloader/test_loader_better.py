"""What PyTorch's loader cannot: workers are killed, hang and fall over samples, and the batches stay exact.

The undisturbed run beside each is PyTorch's.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

import ringfeed  # noqa: E402
from ringfeed._core import programs  # noqa: E402
from torch.utils import data as torch_data  # noqa: E402

from tests.support.feeds.feed_run import runs, wait_until  # noqa: E402
from tests.support.loaders import own_data as data  # noqa: E402
from tests.support.loaders.own_data import (  # noqa: E402
    Acts,
    Flagged,
    FlaggedStream,
    Reference,
    Squares,
    descendants,
    events,
    forked,
    same,
    status_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    while True:
        time.sleep(0.05)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


DEATHS: dict[str, Callable[[], Any]] = {
    "SIGKILL": kill,
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit 0": lambda: os._exit(0),
    "exit 3": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(4),
}

OPTIONS = {"batch_size": 4, "shuffle": True, "num_workers": 2}


def beside(Ours: Any, act: Any, epochs: int = 1, **options: Any) -> list[list[Any]]:
    """Epochs with the act, compared with PyTorch's without."""
    seen = []
    for L, dataset in ((Reference, Flagged()), (Ours, Flagged(act))):
        data.seed_all()
        own = OPTIONS | options
        if L is Reference:
            own = {
                name: own[name]
                for name in own
                if name not in ("stall_timeout", "max_attempts", "on_poison")
            }
        loader = L(dataset, **own)
        seen.append(([list(loader) for _ in range(epochs)], data.states()))
    same(seen[1][0], seen[0][0])
    assert seen[0][1] == seen[1][1]
    return seen[1][0]


# ---- Deaths ----


@pytest.mark.parametrize("death", DEATHS)
def test_a_worker_that_dies_once_changes_no_batch(Ours: Any, death: str) -> None:
    """In the middle of a batch: what the samples before it drew is drawn again."""
    act = Acts({17: DEATHS[death]})
    beside(Ours, act)
    assert act.done[17] == 1


@pytest.mark.parametrize("workers", [1, 3])
def test_many_deaths_change_no_batch(Ours: Any, workers: int) -> None:
    act = Acts({index: kill for index in range(0, 40, 3)})
    beside(Ours, act, num_workers=workers)
    assert int(act.done.sum()) == 14


def test_two_deaths_at_one_sample(Ours: Any) -> None:
    act = Acts({17: kill}, times=2)
    beside(Ours, act)
    assert act.done[17] == 2


def test_deaths_in_persistent_workers(Ours: Any) -> None:
    act = Acts({3: kill, 30: kill})
    beside(Ours, act, epochs=3, persistent_workers=True)
    assert int(act.done.sum()) == 2


def test_deaths_in_an_epoch_of_the_workers_of_the_next(Ours: Any) -> None:
    beside(Ours, Acts({3: kill, 30: kill}), epochs=2)


def test_deaths_under_spawn(Ours: Any) -> None:
    act = Acts({5: kill})
    beside(Ours, act, multiprocessing_context="spawn", num_workers=1)
    assert act.done[5] == 1


def test_a_death_in_collate(Ours: Any) -> None:
    act = Acts({1: kill})

    def collate(samples: list[Any]) -> Any:
        if any(sample["index"] == 17 for sample in samples):
            torch.rand(3), random.random()
            act(1)
        return torch_data.default_collate(samples), torch.rand(1)

    def plain(samples: list[Any]) -> Any:
        if any(sample["index"] == 17 for sample in samples):
            torch.rand(3), random.random()
        return torch_data.default_collate(samples), torch.rand(1)

    data.seed_all()
    due = list(Reference(Flagged(), **OPTIONS, collate_fn=plain))
    data.seed_all()
    same(list(Ours(Flagged(), **OPTIONS, collate_fn=collate)), due)
    assert act.done[1] == 1


def test_a_death_in_worker_init_fn(Ours: Any) -> None:
    act = Acts({0: kill, 1: kill})
    data.seed_all()
    due = list(Reference(Flagged(), **OPTIONS))
    data.seed_all()
    same(list(Ours(Flagged(), **OPTIONS, worker_init_fn=act)), due)
    assert act.done.tolist() == [1, 1]


def test_the_successor_is_begun_as_the_worker_was(Ours: Any) -> None:
    """worker_init_fn is called for it, and then the generators stand where they stood."""
    calls = torch.zeros(2, dtype=torch.int64).share_memory_()

    def begin(worker: int) -> None:
        calls[worker] += 1
        torch.manual_seed(1000 + worker)

    act = Acts({6: kill})
    data.seed_all()
    due = list(Reference(Flagged(), batch_size=4, num_workers=2, worker_init_fn=begin))
    calls.zero_()
    data.seed_all()
    same(list(Ours(Flagged(act), batch_size=4, num_workers=2, worker_init_fn=begin)), due)
    assert calls.tolist() == [1, 2]


def test_kills_from_outside_at_any_moment(Ours: Any) -> None:
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    data.seed_all()
    due = list(Reference(Flagged(length=300), batch_size=3, num_workers=2))
    data.seed_all()
    dataset = Flagged(length=300)
    kills = 0
    for i, batch in enumerate(Ours(dataset, batch_size=3, num_workers=2)):
        same(batch, due[i], f"seed {seed}: batch {i}")
        if rng.random() < 0.2:
            pid = int(dataset.pids[rng.randrange(2)])
            if pid and runs(pid):
                with contextlib.suppress(ProcessLookupError):  # it was dying of the blow before
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
    assert i == 99 and kills > 0, f"seed {seed}"


def test_batches_that_are_held_survive_the_death_of_their_worker(Ours: Any) -> None:
    act = Acts({index: kill for index in (9, 19, 29, 39)})
    held = list(Ours(Flagged(act), batch_size=2, num_workers=2))
    assert [index for batch in held for index in batch["index"].tolist()] == list(range(40))


def test_out_of_order_deaths_lose_nothing(Ours: Any) -> None:
    act = Acts({index: kill for index in range(0, 40, 7)})
    loader = Ours(Flagged(act), batch_size=2, num_workers=3, in_order=False)
    assert sorted(index for batch in loader for index in batch["index"].tolist()) == list(range(40))


def test_deaths_and_exceptions_keep_their_places(Ours: Any) -> None:
    def fail() -> None:
        raise LookupError("no")

    act = Acts({3: kill, 12: kill, 22: fail, 23: kill})
    data.seed_all()
    due = events(Reference(Flagged(Acts({22: fail})), batch_size=4, num_workers=2))
    data.seed_all()
    seen = events(Ours(Flagged(act), batch_size=4, num_workers=2))
    same(seen, due)
    assert isinstance(seen[5], tuple) and len(seen) == 10


@pytest.mark.parametrize("at", [0, 1, 20, 39])
def test_streams_go_on_where_they_were(Ours: Any, at: int) -> None:
    act = Acts({at: kill})
    data.seed_all()
    due = list(Reference(FlaggedStream(), batch_size=3, num_workers=2))
    data.seed_all()
    same(list(Ours(FlaggedStream(act), batch_size=3, num_workers=2)), due)
    assert act.done[at] == 1


def test_streams_survive_many_deaths(Ours: Any) -> None:
    act = Acts({number: kill for number in range(4, 40, 5)})
    data.seed_all()
    due = list(Reference(FlaggedStream(), batch_size=None, num_workers=3))
    data.seed_all()
    same(list(Ours(FlaggedStream(act), batch_size=None, num_workers=3)), due)


# ---- Samples that kill always ----


def test_a_sample_that_kills_always_is_an_error_with_its_index(Ours: Any) -> None:
    act = Acts({13: kill}, times=None)
    seen = events(Ours(Flagged(act), batch_size=4, num_workers=2))
    assert [isinstance(one, tuple) for one in seen] == [i == 3 for i in range(10)]
    assert seen[3][0] is RuntimeError
    error = data.raised(lambda: list(Ours(Flagged(act), batch_size=4, num_workers=2)))
    assert "13" in str(error) and "killed" in str(error)
    # A kill may have had another cause, so it counts half.
    assert act.done[13] == 12, "six workers of each loader"


@pytest.mark.parametrize("attempts", [1, 5])
def test_max_attempts_says_how_many_workers_a_sample_may_kill(Ours: Any, attempts: int) -> None:
    act = Acts({2: lambda: os._exit(1)}, times=None)
    seen = events(Ours(Flagged(act, 8), batch_size=4, num_workers=2, max_attempts=attempts))
    assert seen[0][0] is RuntimeError and seen[1]["index"].tolist() == [4, 5, 6, 7]
    assert act.done[2] == 2 * attempts, "an exit may have had another cause, so it counts half"


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_fault_counts_as_one(Ours: Any, attempts: int) -> None:
    act = Acts({2: DEATHS["segfault"]}, times=None)
    seen = events(Ours(Flagged(act, 8), batch_size=4, num_workers=2, max_attempts=attempts))
    assert seen[0][0] is RuntimeError and seen[1]["index"].tolist() == [4, 5, 6, 7]
    assert act.done[2] == attempts


def test_samples_that_kill_always_are_left_out(Ours: Any) -> None:
    act = Acts({13: kill, 14: kill, 30: DEATHS["segfault"]}, times=None)
    iterator = iter(Ours(Flagged(act), batch_size=4, num_workers=2, on_poison="skip"))
    assert iterator.samples_left_out == 0
    batches = [batch["index"].tolist() for batch in iterator]
    due = [
        [index for index in range(i, i + 4) if index not in (13, 14, 30)] for i in range(0, 40, 4)
    ]
    assert batches == due
    assert iterator.samples_left_out == 3


def test_a_collate_that_kills_always_is_an_error(Ours: Any) -> None:
    def collate(samples: list[Any]) -> list[int]:
        if samples[0][1] == 4:
            kill()
        return [number for _, number in samples]

    for skips in ("error", "skip"):
        seen = events(
            Ours(Squares(12), batch_size=2, num_workers=2, collate_fn=collate, on_poison=skips)
        )
        assert seen[2][0] is RuntimeError
        assert seen[:2] + seen[3:] == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]


def test_many_items_at_once_that_kill_always_are_an_error(Ours: Any) -> None:
    class Deadly(Squares):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            if 5 in indices:
                kill()
            return [self[index] for index in indices]

    seen = events(Ours(Deadly(12), batch_size=3, num_workers=2))
    assert [isinstance(one, tuple) for one in seen] == [False, True, False, False]
    assert seen[1][0] is RuntimeError


def test_a_worker_init_fn_that_kills_always_is_an_error_and_no_hang(Ours: Any) -> None:
    seen = events(Ours(Squares(6), num_workers=1, worker_init_fn=lambda worker: kill()))
    assert seen and all(
        isinstance(one, tuple) and issubclass(one[-2], RuntimeError) for one in seen
    )


def test_a_stream_that_kills_always_is_an_error_and_no_hang(Ours: Any) -> None:
    act = Acts({6: kill}, times=None)
    seen = events(Ours(FlaggedStream(act, 12), batch_size=2, num_workers=2))
    errors = [one for one in seen if isinstance(one, tuple)]
    assert errors and errors[0][0] is RuntimeError
    numbers = [number for one in seen if isinstance(one, dict) for number in one["index"].tolist()]
    assert {0, 2, 1, 3, 5, 7, 9, 11} <= set(numbers), "the other worker's samples, and those before"


# ---- Workers that hang ----


@pytest.mark.parametrize("act", [hang, stop])
def test_a_worker_that_hangs_is_replaced_and_the_batches_stay(Ours: Any, act: Any) -> None:
    acts = Acts({17: act})
    beside(Ours, acts, stall_timeout=1.0)
    assert acts.done[17] == 1


def test_a_worker_stopped_from_outside(Ours: Any) -> None:
    data.seed_all()
    due = list(Reference(Flagged(), batch_size=2, num_workers=2))
    data.seed_all()
    dataset = Flagged()
    seen = []
    for batch in Ours(dataset, batch_size=2, num_workers=2, stall_timeout=1.0):
        seen.append(batch)
        if len(seen) == 3:
            os.kill(int(dataset.pids[1]), signal.SIGSTOP)
    same(seen, due)


def test_the_stack_of_a_hung_worker_is_in_the_log(
    Ours: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="ringfeed")
    beside(Ours, Acts({17: hang}), stall_timeout=1.0)
    assert "in hang" in caplog.text and "__getitem__" in caplog.text, "Python's stack"
    assert "17" in caplog.text, "the index"


def test_a_sample_that_hangs_always_is_an_error(Ours: Any) -> None:
    seen = events(
        Ours(Flagged(Acts({5: hang}, None), 8), batch_size=4, num_workers=2, stall_timeout=0.5)
    )
    assert seen[0]["index"].tolist() == [0, 1, 2, 3] and seen[1][0] is RuntimeError
    assert len(seen) == 2


# ---- The other processes ----


def parts(dataset: Any) -> dict[str, list[int]]:
    """The processes of the only loader: the warm parent, the workers, the supervisor and what is below it."""
    lanes = [int(pid) for pid in dataset.pids if pid]
    warm = sorted({int(pid) for pid in dataset.parents if pid})
    known = {*lanes, *warm}
    supervisors = [
        pid for pid in descendants() if pid not in known and " run " in data.command_of(pid)
    ]
    return {"lanes": lanes, "warm": warm, "supervisor": supervisors}


@pytest.mark.parametrize("whom", ["warm", "supervisor", "warm and supervisor"])
@pytest.mark.parametrize("at", [1, 5])
def test_whatever_process_is_killed_the_batches_stay(Ours: Any, whom: str, at: int) -> None:
    data.seed_all()
    due = list(Reference(Flagged(), **OPTIONS))
    data.seed_all()
    dataset = Flagged()
    seen = []
    for batch in Ours(dataset, **OPTIONS):
        seen.append(batch)
        if len(seen) == at:
            found = parts(dataset)
            assert len(found["warm"]) == 1 and len(found["supervisor"]) == 1, found
            for name in whom.split(" and "):
                for pid in found[name]:
                    if runs(pid):
                        os.kill(pid, signal.SIGKILL)
    same(seen, due)


def test_all_processes_killed_at_once_is_an_error_and_no_hang(Ours: Any) -> None:
    """Nobody is left who has the feed's memory. If a worker has lived on, the batches stay."""
    data.seed_all()
    due = list(Reference(Flagged(), **OPTIONS))
    data.seed_all()
    dataset = Flagged()
    seen: list[Any] = []
    iterator = iter(Ours(dataset, **OPTIONS))
    try:
        for batch in iterator:
            seen.append(batch)
            if len(seen) == 5:
                for pids in parts(dataset).values():
                    for pid in pids:
                        if runs(pid):
                            os.kill(pid, signal.SIGKILL)
    except ringfeed.FeedFailed as error:
        data.frameless(error)
        assert "gone" in str(error)
        same(seen, due[: len(seen)])
    else:
        same(seen, due)


def test_the_warm_parent_is_killed_between_epochs(Ours: Any) -> None:
    killed: set[int] = set()

    def run(L: Any, disturb: bool) -> Any:
        data.seed_all()
        dataset = Flagged(length=12)
        loader = L(dataset, batch_size=3, num_workers=2, persistent_workers=True)
        epochs = []
        for _ in range(3):
            epochs.append(list(loader))
            if disturb:
                # Workers outlive theirs, and then are another process's, which is none of ours.
                for pid in set(parts(dataset)["warm"]) & set(descendants()) - killed:
                    killed.add(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        return epochs

    same(run(Ours, True), run(Reference, False))
    assert killed


def test_the_workers_parent_is_the_trainers_child(Ours: Any) -> None:
    dataset = Flagged()
    iterator = iter(Ours(dataset, num_workers=2))
    next(iterator), next(iterator)
    wait_until(lambda: int(dataset.pids.count_nonzero()) == 2, "both workers")
    found = parts(dataset)
    assert set(found["lanes"] + found["warm"]) <= set(descendants())
    assert os.getpid() not in found["warm"]


# ---- Pains of the original ----


def test_batches_cost_no_descriptors(Ours: Any) -> None:
    """PyTorch's take one for each tensor that is held."""

    def act() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
        batches = list(Ours(Squares(600), batch_size=2, num_workers=2))
        assert [int(batch[1][0]) for batch in batches] == list(range(0, 600, 2))

    assert status_of(forked(act)) == 0


# ---- Arguments of its own ----


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_poison": "maybe"}, "on_poison is 'maybe'"),
        ({"on_poison": None}, "on_poison"),
        ({"dataset_state": "VERIFY"}, "dataset_state is 'VERIFY'"),
        ({"stall_timeout": -1}, "stall_timeout is -1"),
        ({"stall_timeout": float("nan")}, "stall_timeout"),
        ({"max_attempts": 0}, "max_attempts is 0"),
    ],
    ids=str,
)
def test_wrong_arguments_of_its_own_are_refused(
    Ours: Any, options: dict[str, Any], text: str
) -> None:
    error = data.raised(lambda: Ours(Squares(4), **options))
    assert type(error) is ValueError and text in str(error)


def test_its_own_arguments_change_nothing_without_workers(Ours: Any) -> None:
    loader = Ours(Squares(4), stall_timeout=5, on_poison="skip", max_attempts=2)
    assert [numbers.item() for _, numbers in loader] == [0, 1, 2, 3]


def _ringfeed(*words: str) -> str:
    program = programs.find("ringfeed")
    return subprocess.run(
        [str(program), *words], capture_output=True, text=True, timeout=30, check=True
    ).stdout


def test_ringfeed_status_shows_loaders(
    Ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them among the feeds, with its workers, as long as it is there."""
    directory = tmp_path / "feeds"
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(directory))
    loaders = [Ours(Squares(100), batch_size=10, num_workers=number) for number in (1, 2)]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    names = sorted(link.stem for link in directory.glob("loader-*.sock"))
    assert len(names) == 2 and all(name.startswith(f"loader-{os.getpid()}-") for name in names)
    shown = [_ringfeed("status", name) for name in names]
    assert sorted(text.count("\ndataset.") for text in shown) == [1, 2]
    assert _ringfeed("status").count("ringfeed.torch.DataLoader") == 2
    # One of another process that had the number, and died.
    number = int(max(name.rsplit("-", 1)[1] for name in names)) + 1
    stale = directory / f"loader-{os.getpid()}-{number}.sock"
    stale.symlink_to(tmp_path / "gone")
    assert len(list(Ours(Squares(10), num_workers=1))) == 10
    del iterators, iterator
    gc.collect()
    assert list(directory.glob("loader-*")) == []


def test_without_a_place_to_be_shown(Ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader does without."""
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", "/proc/nobody/may/write/here")
    assert len(list(Ours(Squares(10), num_workers=1))) == 10
