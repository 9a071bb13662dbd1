"""Epochs with spawned workers: each has the dataset as it is then, and no new interpreter is started for it.

A loader keeps one spawned process, the zygote, whose forks have the dataset. These tests look at it as the system
shows it: the trainer's child that was spawned.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from torch.utils import data as torch_data  # noqa: E402

from tests.support.feeds.feed_run import runs, wait_until  # noqa: E402
from tests.support.loaders import own_data as data  # noqa: E402
from tests.support.loaders.own_data import (  # noqa: E402
    Acts,
    Augmented,
    Flagged,
    Reference,
    Squares,
    descendants,
    forked,
    gone,
    same,
    status_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

DUE = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def spawned(L: Any, dataset: Any, **options: Any) -> Any:
    return L(
        dataset,
        **({"batch_size": 3, "num_workers": 2, "multiprocessing_context": "spawn"} | options),
    )


def numbers(batches: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


def zygotes() -> list[int]:
    """Children of this process that were spawned."""
    own = [pid for pid in descendants() if _parent_of(pid) == os.getpid()]
    return [pid for pid in own if "spawn_main(" in data.command_of(pid)]


def zygote() -> int:
    [pid] = zygotes()
    return pid


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


class Told(torch_data.Dataset):
    """Sample i is what `tell` says there, as text."""

    def __init__(self, tell: Callable[[], Any], length: int = 2) -> None:
        self.tell, self.length = tell, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> str:
        return repr(self.tell())


def place() -> Any:
    return os.getcwd(), sys.path[-1], os.environ.get("RINGFEED_TEST_EPOCH")


def told(loader: Any) -> str:
    """What all samples of the next epoch say."""
    [one] = {text for batch in loader for text in batch}
    return str(one)


# ---- The same ----


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_epochs_draw_the_same(Ours: Any, context: str) -> None:
    def run(L: Any, context: str) -> Any:
        data.seed_all()
        loader = spawned(L, Augmented(9), shuffle=True, multiprocessing_context=context)
        return [list(loader) for _ in range(3)], data.states()

    try:
        same(run(Ours, context), run(Reference, "fork"))
    finally:
        if context == "forkserver":
            importlib.import_module("multiprocessing.forkserver")._forkserver._stop()


def test_a_dataset_that_was_changed_is_seen_changed(Ours: Any) -> None:
    dataset = Squares(3)
    loader = spawned(Ours, dataset)
    seen = []
    for length in (3, 5, 9):
        dataset.length = length
        seen.append([batch[0].tolist() for batch in loader])
    due = [[[i, i * i] for i in range(length)] for length in (3, 5, 9)]
    # The sampler asks for the length as well; the last index is refused by a dataset of before.
    assert [[one for batch in epoch for one in batch] for epoch in seen] == due
    assert len(zygotes()) == 1


def test_directory_and_path_and_environment_are_those_of_the_epoch(
    Ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = spawned(Ours, Told(place))
    assert told(loader) == repr(place())
    first = zygote()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "packages")])
    assert told(loader) == repr((str(tmp_path), str(tmp_path / "packages"), None))
    assert zygote() == first
    # It may decide what an import does, so another zygote is started.
    monkeypatch.setenv("RINGFEED_TEST_EPOCH", "3")
    assert told(loader) == repr((str(tmp_path), str(tmp_path / "packages"), "3"))
    gone([first])
    assert len(zygotes()) == 1


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module with a dataset; each process that imports it says so in a file: `imports()`."""
    name = f"dataset_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        f"""
import os
import torch

with open({str(tmp_path / "imports")!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")

def imports():
    return [int(line) for line in open({str(tmp_path / "imports")!r})]

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index, os.getppid()
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(name)
    del sys.modules[name]


def test_modules_are_imported_once_for_all_epochs(Ours: Any, module: Any) -> None:
    loader = spawned(Ours, module.Numbers())
    parents = set()
    for _ in range(4):
        batches = list(loader)
        assert [batch[0].tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]
        parents |= {int(pid) for batch in batches for pid in batch[1]}
    assert module.imports() == [os.getpid(), zygote()]
    assert len(parents) == 4, "each epoch has a process of its own, which has the dataset"


def test_a_module_that_is_new_in_the_second_epoch(Ours: Any, module: Any) -> None:
    holder = Squares(6)
    loader = spawned(Ours, holder, collate_fn=_first)
    assert list(loader) == [0, 3]
    holder.more = module.Numbers()
    assert list(loader) == list(loader) == [0, 3]
    assert module.imports() == [os.getpid(), zygote()]


def _first(samples: list[Any]) -> int:
    return int(samples[0][1])


def test_the_program_is_run_once_for_all_epochs(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        f"""
import os
from ringfeed.torch import DataLoader

with open({str(tmp_path / "runs")!r}, "a") as file:
    print(__name__, file=file)

class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

if __name__ == "__main__":
    loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context="spawn")
    for _ in range(3):
        assert [batch.item() for batch in loader] == [0, 1, 2, 3]
"""
    )

    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, str(path)], env=environment, check=True, timeout=100)
    assert (tmp_path / "runs").read_text().split() == ["__main__", "__mp_main__"]


def test_hundreds_of_descriptors(Ours: Any) -> None:
    """Each tensor of a dataset is passed as one."""
    dataset = data.Made(_tensor_of, 6)
    dataset.tensors = [torch.tensor([i]) for i in range(300)]
    dataset.make = dataset.tensors.__getitem__
    loader = spawned(Ours, dataset)
    for _ in range(2):
        assert [batch.flatten().tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


def _tensor_of(index: int) -> torch.Tensor:
    return torch.tensor([index])


# ---- Whoever dies ----


def test_a_zygote_that_is_killed_between_epochs_is_replaced(Ours: Any) -> None:
    loader = spawned(Ours, Squares(12))
    killed = []
    for _ in range(3):
        assert numbers(loader) == DUE
        killed.append(zygote())
        os.kill(killed[-1], signal.SIGKILL)
    assert numbers(loader) == DUE
    assert zygote() not in killed and len(set(killed)) == 3


@pytest.mark.parametrize("persistent", [False, True])
def test_a_zygote_that_is_killed_in_epochs_changes_no_batch(Ours: Any, persistent: bool) -> None:
    def run(L: Any, disturb: bool, **options: Any) -> Any:
        data.seed_all()
        loader = spawned(L, Flagged(length=30), persistent_workers=persistent, **options)
        epochs = []
        for _ in range(3):
            batches: list[Any] = []
            epochs.append(batches)
            for batch in loader:
                batches.append(batch)
                if disturb and len(batches) == 4:
                    for pid in zygotes():
                        os.kill(pid, signal.SIGKILL)
        return epochs

    same(run(Ours, True), run(Reference, False, multiprocessing_context="fork"))


def test_a_zygote_that_is_killed_while_it_starts(Ours: Any) -> None:
    loader = spawned(Ours, Squares(12))
    for _ in range(2):
        iterator = iter(loader)
        wait_until(lambda: len(zygotes()) == 1, "the zygote")
        os.kill(zygote(), signal.SIGKILL)
        assert numbers(iterator) == DUE


def test_zygote_and_warm_parent_are_killed_at_once(Ours: Any) -> None:
    dataset = Flagged(length=30)
    data.seed_all()
    due = list(spawned(Reference, dataset, multiprocessing_context="fork"))
    data.seed_all()
    seen = []
    dataset.parents.zero_()
    for batch in spawned(Ours, dataset):
        seen.append(batch)
        if len(seen) == 3:
            for pid in {zygote(), *(int(pid) for pid in dataset.parents if pid)}:
                os.kill(pid, signal.SIGKILL)
    same(seen, due)


def test_warm_parents_are_killed_and_the_zygote_stays(Ours: Any) -> None:
    dataset = Flagged(length=30)
    data.seed_all()
    due = list(spawned(Reference, dataset, multiprocessing_context="fork"))
    data.seed_all()
    seen: list[Any] = []
    killed: set[int] = set()
    dataset.parents.zero_()
    for batch in spawned(Ours, dataset):
        seen.append(batch)
        # Workers outlive theirs, and then are another process's, which is none of ours.
        found = {int(pid) for pid in dataset.parents if pid} & set(data.descendants()) - killed
        if len(seen) in (2, 5) and found:
            killed |= found
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            first = zygote()
    same(seen, due)
    assert killed and zygotes() in ([], [first])


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_die_in_each_epoch(Ours: Any) -> None:
    acts = Acts({7: _kill, 20: _kill})
    data.seed_all()
    loader = spawned(Reference, Flagged(length=30), multiprocessing_context="fork")
    due = [list(loader) for _ in range(2)]
    data.seed_all()
    loader = spawned(Ours, Flagged(acts, 30))
    seen = []
    for _ in range(2):
        acts.done.zero_()
        seen.append(list(loader))
        assert acts.done[7] == acts.done[20] == 1
    same(seen, due)


class Moody(Squares):
    """Can be pickled always, and be loaded if it likes."""

    likes = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        if not state.get("likes", True):
            raise data.OfTheirOwn("not today")
        self.__dict__.update(state)


def test_a_dataset_that_cannot_be_loaded_in_one_epoch(
    Ours: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = Moody(12)
    loader = spawned(Ours, dataset)
    assert numbers(loader) == DUE
    first = zygote()
    dataset.likes = False
    error = data.raised(lambda: list(loader))
    assert type(error) is RuntimeError and "before it had the dataset" in str(error)
    assert "OfTheirOwn: not today" in capfd.readouterr().err
    dataset.likes = True
    assert numbers(loader) == DUE
    assert zygote() == first


def test_interrupts_are_the_trainers(Ours: Any) -> None:
    loader = spawned(Ours, Squares(12))
    assert numbers(loader) == DUE
    first = zygote()
    os.kill(first, signal.SIGINT)
    assert numbers(loader) == DUE
    assert zygote() == first


# ---- Lives ----


def test_the_zygote_goes_with_its_loader(Ours: Any) -> None:
    loader = spawned(Ours, Squares(12))
    assert numbers(loader) == DUE
    pid = zygote()
    ring: list[Any] = [loader]
    ring.append(ring)
    del loader
    assert runs(pid)
    del ring
    gc.collect()
    gone([pid])


def test_the_zygote_stays_for_the_iterators_of_its_loader(Ours: Any) -> None:
    dataset = Flagged(length=30)
    loader = spawned(Ours, dataset)
    iterator = iter(loader)
    indices = next(iterator)["index"].tolist()
    pid = zygote()
    del loader
    gc.collect()
    assert runs(pid)
    os.kill(int(dataset.parents[0]), signal.SIGKILL)
    os.kill(int(dataset.pids[0]), signal.SIGKILL)
    indices += [index for batch in iterator for index in batch["index"].tolist()]
    assert indices == list(range(30))
    del iterator
    gone([pid])


def test_an_iterator_that_is_dropped_at_once(Ours: Any) -> None:
    loader = spawned(Ours, Squares(12))
    for _ in range(3):
        iterator = iter(loader)
        del iterator
    assert numbers(loader) == DUE
    pid = zygote()
    wait_until(
        lambda: not any(_parent_of(below) == pid for below in descendants()), "no warm parents"
    )


def test_two_iterators_at_once_have_one_zygote(Ours: Any) -> None:
    loader = spawned(Ours, Squares(12))
    pairs = [(left[1].tolist(), right[1].tolist()) for left, right in zip(loader, loader)]
    assert pairs == [(due, due) for due in DUE]
    assert len(zygotes()) == 1


def test_a_fork_of_the_trainer_has_a_zygote_of_its_own(Ours: Any, tmp_path: Path) -> None:
    loader = spawned(Ours, Squares(12), num_workers=1)
    iterator = iter(loader)
    assert next(iterator)[1].tolist() == DUE[0]
    first = zygote()

    def check() -> None:
        assert zygotes() == []
        assert numbers(loader) == numbers(loader) == DUE
        (tmp_path / "own").write_text(str(zygote()))

    assert status_of(forked(check)) == 0
    own = int((tmp_path / "own").read_text())
    assert own != first
    gone([own])
    assert numbers(iterator) == DUE[1:]
    assert zygote() == first


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_however_the_trainer_dies_the_zygote_does_too(Ours: Any, end: str, tmp_path: Path) -> None:
    at = tmp_path / "at"

    def train() -> None:
        loader = spawned(Ours, Squares(12), num_workers=1)
        assert numbers(loader) == DUE
        iterator = iter(loader)
        next(iterator)
        at.write_text("there")
        if end == "exit":
            os._exit(7)
        signal.pause()

    pid = forked(train)
    seen: set[int] = set()

    def is_there() -> bool:
        seen.update(descendants(pid))
        return at.exists() or not runs(pid)

    wait_until(is_there, "the trainer to be in its loop", timeout_s=60)
    if end == "kill":
        os.kill(pid, signal.SIGKILL)
    assert status_of(pid) == {"exit": 7, "kill": -signal.SIGKILL}[end]
    gone(sorted(seen))
