"""Objects of multiprocessing that a dataset holds: the trainer's are the workers', and go with them."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from tests.support.loaders import own_data as data  # noqa: E402

LENGTH = 24
CONTEXTS = ["fork", "spawn", "forkserver"]


def made(kind: str, context: Any) -> Any:
    count = context.Value("i", 0, lock=False)
    return {
        "value": lambda: context.Value("i", 0),
        "array": lambda: context.Array("d", LENGTH),
        "lock": lambda: (context.Lock(), count),
        "rlock": lambda: (context.RLock(), count),
        "semaphore": lambda: (context.Semaphore(1), count),
        "condition": lambda: (context.Condition(), count),
        "event": lambda: (context.Event(), context.Event()),
        "barrier": lambda: context.Barrier(2),
        "queue": context.Queue,
        "joinable queue": context.JoinableQueue,
        "simple queue": context.SimpleQueue,
        "pipe": lambda: context.Pipe(duplex=False),
        "tensor": lambda: torch.zeros(LENGTH).share_memory_(),
    }[kind]()


def used(kind: str, held: Any, index: int) -> int:
    if kind == "value":
        with held.get_lock():
            held.value += 1
    elif kind == "array":
        with held.get_lock():
            held[index] += index
    elif kind in ("lock", "rlock", "semaphore", "condition"):
        with held[0]:
            held[1].value += 1
            if kind == "condition":
                held[0].notify_all()
    elif kind == "event":
        held[0].set()
        assert held[1].wait(60)
    elif kind == "barrier":
        held.wait(60)
    elif kind == "pipe":
        if index == 5:  # one of them alone writes
            held[1].send(index)
    elif kind == "tensor":
        held[index] += index
    else:
        held.put(index)
    return index


def check(kind: str, held: Any) -> None:
    every = list(range(LENGTH))
    if kind == "value":
        assert held.value == LENGTH
    elif kind in ("array", "tensor"):
        assert list(held) == every
    elif kind in ("lock", "rlock", "semaphore", "condition"):
        assert held[1].value == LENGTH
    elif kind == "pipe":
        assert held[0].poll(60) and held[0].recv() == 5
    elif "queue" in kind:
        assert sorted(held.get() for _ in every) == every


KINDS = [
    *("value", "array", "lock", "rlock", "semaphore", "condition", "event", "barrier"),
    *("queue", "joinable queue", "simple queue", "pipe", "tensor"),
]


def used_all(held: dict[str, Any], index: int) -> int:
    for kind in KINDS:
        used(kind, held[kind], index)
    return index


@pytest.mark.parametrize("method", CONTEXTS)
def test_objects_are_those_of_the_trainer(Loader: Any, method: str) -> None:
    held = {kind: made(kind, multiprocessing.get_context(method)) for kind in KINDS}
    dataset = data.Made(functools.partial(used_all, held), LENGTH)
    iterator = iter(Loader(dataset, batch_size=3, num_workers=2, multiprocessing_context=method))
    # From the workers, and to them.
    assert held["event"][0].wait(60)
    held["event"][1].set()
    seen = [index for batch in iterator for index in batch.tolist()]
    assert seen == list(range(LENGTH))
    for kind in KINDS:
        check(kind, held[kind])


def noted(proxies: Any, index: int) -> int:
    known, listed, lock = proxies
    with lock:
        known[index] = os.getpid()
        listed.append(index)
    return index


@pytest.mark.parametrize("method", CONTEXTS)
def test_proxies_of_a_manager(Loader: Any, method: str) -> None:
    with multiprocessing.get_context(method).Manager() as manager:
        proxies = manager.dict(), manager.list(), manager.Lock()
        dataset = data.Made(functools.partial(noted, proxies), LENGTH)
        for _ in Loader(dataset, batch_size=3, num_workers=2, multiprocessing_context=method):
            pass
        assert sorted(proxies[1]) == sorted(proxies[0].keys()) == list(range(LENGTH))
        assert len(set(proxies[0].values())) == 2


def dies_with_it(lock: Any, died: Any, index: int) -> int:
    with lock:
        if index == 7 and not died.value:
            died.value = 1
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_lock_that_a_dead_worker_holds_is_an_error(Ours: Any, method: str) -> None:
    """Nobody gives it back: the others wait until stall_timeout says so, again and again."""
    context = multiprocessing.get_context(method)
    make: Callable[[int], int] = functools.partial(
        dies_with_it, context.Lock(), context.Value("i", 0)
    )
    loader = Ours(
        data.Made(make, LENGTH),
        batch_size=3,
        num_workers=2,
        multiprocessing_context=method,
        stall_timeout=1,
        max_attempts=1,
    )
    with pytest.raises(RuntimeError, match="stall_timeout|has killed its worker"):
        list(loader)


# What a script does with a loader, and its exit status; in all of them workers run at that time.
ENDS = {
    "break": ("for batch in loader: break", 0),
    "an exception": ("for batch in loader: raise LookupError", 1),
    "del": ("it = iter(loader); next(it); del it, loader", 0),
    "a cycle": ("it = iter(loader); next(it); c = [it]; c.append(c); del it, c", 0),
    "sys.exit": ("for batch in loader: sys.exit(3)", 3),
    "os._exit": ("for batch in loader: os._exit(4)", 4),
    "SIGTERM": (
        "for batch in loader: os.kill(os.getpid(), signal.SIGTERM); signal.pause()",
        -signal.SIGTERM,
    ),
    "Ctrl-C": (
        "for batch in loader: os.killpg(0, signal.SIGINT); signal.pause()",
        -signal.SIGINT,
    ),
    "a live iterator": ("data.it = iter(loader); next(data.it)", 0),
    "a generator": ("g = (batch for batch in loader); next(g); del g", 0),
    "a live generator": ("data.g = (batch for batch in loader); next(data.g)", 0),
    "a thread": (
        "import threading; t = threading.Thread(target=lambda: next(iter(loader))); t.start(); t.join()",
        0,
    ),
}


SPAWNED = ("break", "sys.exit", "Ctrl-C", "a live iterator")


@pytest.mark.parametrize(
    "end, method", [*((end, "fork") for end in ENDS), *((end, "spawn") for end in SPAWNED)]
)
def test_nobody_says_anything_at_the_end(
    end: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything left, with a queue, a lock and a manager's dictionary in the dataset."""
    statement, status = ENDS[end]
    directory = tempfile.mkdtemp()  # a manager's socket has a short name
    monkeypatch.setenv("TMPDIR", directory)
    killed = end in (
        "os._exit",
        "SIGTERM",
    )  # by them multiprocessing itself cleans nothing up
    body = f"""
    import functools, multiprocessing
    from tests.e2e.dataloader import test_loader_multiprocessing as own
    m = multiprocessing.get_context({method!r})
    held = [] if {killed} else [m.Queue(), m.Lock(), multiprocessing.Manager().dict()]
    held and held[0].put(1)
    loader = DataLoader(
        data.Made(functools.partial(own.kept, held), 400), batch_size=4, num_workers=2,
        multiprocessing_context={method!r}, persistent_workers={method == "fork"}
    )
    {statement}
    """
    process = data.script("ringfeed", body, tmp_path)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == status, errors
    if end == "an exception":
        assert errors.count("Traceback") == 1 and errors.endswith("\nLookupError\n"), errors
    elif end == "Ctrl-C":
        assert errors.count("Traceback") == 1 and errors.endswith("\nKeyboardInterrupt\n"), errors
    else:
        assert errors == ""
    data.wait_until(lambda: not os.listdir(directory), "its directories to go")
    os.rmdir(directory)


def kept(held: Any, index: int) -> int:
    return index
