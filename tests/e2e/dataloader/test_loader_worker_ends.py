"""What a worker is while it runs, to multiprocessing, and what it still does when it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from tests.support.feeds.feed_run import runs, wait_until  # noqa: E402
from tests.support.loaders import own_data as data  # noqa: E402


def note(path: Path, *words: Any) -> None:
    with path.open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def notes(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines()) if path.exists() else []


class Leaves(torch.utils.data.IterableDataset):
    """Numbers below `length`; it leaves much to be done at the end of its worker."""

    def __init__(self, path: Path, length: int, sleeps_at: int = -1) -> None:
        self.path, self.length, self.sleeps_at = path, length, sleeps_at

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        worker = info.id
        util.Finalize(None, note, args=(self.path, "finalized", worker), exitpriority=1)
        threading.Thread(target=self._wait, args=(worker, threading.main_thread())).start()
        child = subprocess.Popen(["sleep", "1000"])
        try:
            note(self.path, "child", child.pid)
            for number in range(self.length):
                if number == self.sleeps_at:
                    note(self.path, "sleeps", worker)
                    time.sleep(1000)
                yield number
        finally:
            child.kill()
            child.wait()
            note(self.path, "closed", worker)

    def _wait(self, worker: int, main: threading.Thread) -> None:
        main.join()
        note(self.path, "thread", worker)


def left_by(path: Path) -> list[str]:
    return [line for line in notes(path) if not line.startswith("child")]


ALL = sorted(f"{what} {worker}" for what in ("closed", "finalized", "thread") for worker in (0, 1))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("length", [12, 1_000_000])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_worker_has_left_is_done_when_an_iterator_is_left(
    Loader: Any, method: str, length: int, persistent: bool, tmp_path: Path
) -> None:
    path = tmp_path / "notes"
    options = {"multiprocessing_context": method, "persistent_workers": persistent}
    loader = Loader(Leaves(path, length), batch_size=2, num_workers=2, **options)
    seen = []
    for batch in loader:
        seen.append(batch)
        if len(seen) == 6:
            break
    del loader, batch
    wait_until(lambda: left_by(path) == ALL, "all that was left to be done")


def test_a_sample_that_takes_long_is_interrupted(Ours: Any, tmp_path: Path) -> None:
    """PyTorch waits five seconds for each worker, and then ends it as it is."""
    path = tmp_path / "notes"
    iterator = iter(Ours(Leaves(path, 100, sleeps_at=4), batch_size=2, num_workers=2))
    next(iterator), next(iterator)
    wait_until(lambda: {"sleeps 0", "sleeps 1"} <= set(notes(path)), "both to be in that sample")
    del iterator
    assert left_by(path) == sorted([*ALL, "sleeps 0", "sleeps 1"])


def test_a_trainer_that_is_killed_leaves_nothing_undone(Ours: Any, tmp_path: Path) -> None:
    path = tmp_path / "notes"

    def act() -> None:
        iterator = iter(Ours(Leaves(path, 100, sleeps_at=4), batch_size=2, num_workers=2))
        next(iterator), next(iterator)
        signal.pause()

    trainer = data.forked(act)
    wait_until(lambda: {"sleeps 0", "sleeps 1"} <= set(notes(path)), "both to be in that sample")
    os.kill(trainer, signal.SIGKILL)
    data.status_of(trainer)
    wait_until(lambda: set(ALL) <= set(left_by(path)), "all that was left to be done")
    children = [int(line.split()[1]) for line in notes(path) if line.startswith("child")]
    assert len(children) == 2 and not any(map(runs, children))


class WhoIsIt(torch.utils.data.Dataset):
    """Sample i is what multiprocessing knows of the worker that makes it."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        own: Any = multiprocessing.current_process()
        parent = multiprocessing.parent_process()
        assert parent is not None and own.pid == os.getpid()
        known = (own.name, own._identity, own.daemon, parent.pid, parent.name, parent.is_alive())
        return *known, multiprocessing.active_children(), threading.current_thread().name


@pytest.mark.parametrize("method", ["", "fork", "spawn"])
def test_each_worker_is_a_process_of_its_own_as_pytorchs(method: str, tmp_path: Path) -> None:
    body = f"""
    from tests.e2e.dataloader.test_loader_worker_ends import WhoIsIt
    context = {{"multiprocessing_context": "{method}"}} if "{method}" else {{}}
    for _ in range(2):
        for who in DataLoader(WhoIsIt(), batch_size=None, num_workers=2, **context):
            print(who[:3], who[4:])
            assert who[3] == os.getpid()
    """
    said = {}
    for name in ("torch", "ringfeed"):
        process = data.script(name, body, tmp_path)
        said[name], errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert said["ringfeed"] == said["torch"] != ""
