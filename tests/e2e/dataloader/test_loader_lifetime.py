"""Lives of loaders, iterators and batches: epochs, early ends, several at once, copies, exits; what is left is nothing.

That nothing is left is looked at after each test of this folder: conftest.py.
"""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import random
import signal
import struct
import tempfile
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from torch.utils import data as torch_data  # noqa: E402

from tests.support.feeds.feed_run import runs, wait_until  # noqa: E402
from tests.support.loaders import own_data as data  # noqa: E402
from tests.support.loaders.own_data import (  # noqa: E402
    Augmented,
    Reference,
    Squares,
    Whoami,
    descendants,
    forked,
    gone,
    same,
    status_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

# Of Squares(12) with batches of 3.
DUE = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def twelve(L: Any, **options: Any) -> Any:
    return L(Squares(12), **({"batch_size": 3, "num_workers": 2} | options))


def numbers(batches: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


# ---- Epochs and early ends ----


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs(Loader: Any, persistent: bool) -> None:
    loader = twelve(Loader, persistent_workers=persistent)
    for _ in range(5):
        assert numbers(loader) == DUE


def test_workers_of_an_epoch_are_gone_after_it(Loader: Any) -> None:
    before = descendants()
    loader = Loader(Whoami(6), batch_size=None, num_workers=2)
    pids = {sample["pid"] for sample in loader}
    gone(list(pids))
    wait_until(lambda: descendants() == before, "no more processes than before")
    assert len(loader) == 6


def test_persistent_workers_stay_until_the_loader_goes(Loader: Any) -> None:
    loader = Loader(Whoami(6), batch_size=None, num_workers=2, persistent_workers=True)
    pids = sorted({sample["pid"] for sample in loader})
    assert all(map(runs, pids)) and len(pids) == 2
    assert sorted({sample["pid"] for sample in loader}) == pids
    del loader
    gone(pids)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 2, 3, 4])
def test_a_break_in_the_middle(Loader: Any, taken: int, persistent: bool) -> None:
    loader = twelve(Loader, persistent_workers=persistent)
    for _ in range(2):
        assert numbers(itertools.islice(iter(loader), taken)) == DUE[:taken]
    assert numbers(loader) == DUE


def test_breaks_draw_the_same(Loader: Any) -> None:
    def run(L: Any) -> Any:
        data.seed_all()
        loader = L(
            Augmented(20), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True
        )
        seen = [list(itertools.islice(iter(loader), count)) for count in (3, 1, 0, 10, 2)]
        return seen, data.states()

    same(run(Loader), run(Reference))


def test_a_new_iterator_of_persistent_workers_is_the_old_one_begun_anew(Loader: Any) -> None:
    loader = twelve(Loader, persistent_workers=True)
    first = iter(loader)
    next(first), next(first)
    second = iter(loader)
    assert second is first
    assert numbers(second) == DUE


@pytest.mark.parametrize("act", ["break", "raise", "return"])
def test_however_the_loop_is_left_the_workers_go(Loader: Any, act: str) -> None:
    pids: list[int] = []

    def loop() -> None:
        for sample in Loader(Whoami(40), batch_size=None, num_workers=2):
            pids.append(sample["pid"])
            if len(pids) == 3:
                if act == "break":
                    break
                if act == "return":
                    return
                raise LookupError

    if act == "raise":
        assert type(data.raised(loop)) is LookupError
    else:
        loop()
    gone(pids)


# ---- Several at once ----


def test_two_iterators_at_once(Loader: Any) -> None:
    loader = twelve(Loader)
    one, two = iter(loader), iter(loader)
    assert one is not two
    pairs = [(next(one)[1].tolist(), next(two)[1].tolist()) for _ in range(4)]
    assert pairs == [(due, due) for due in DUE]
    assert numbers(one) == numbers(two) == []
    assert [(left[1].tolist(), right[1].tolist()) for left, right in zip(loader, loader)] == pairs


def test_two_iterators_at_once_draw_the_same(Loader: Any) -> None:
    def run(L: Any) -> Any:
        data.seed_all()
        loader = L(Augmented(12), batch_size=2, shuffle=True, num_workers=2)
        return list(zip(loader, loader)), data.states()

    same(run(Loader), run(Reference))


def test_one_iterator_is_left_while_another_goes_on(Loader: Any) -> None:
    loader = twelve(Loader)
    one, two = iter(loader), iter(loader)
    next(one)
    assert next(two)[1].tolist() == DUE[0]
    del one
    gc.collect()
    assert numbers(two) == DUE[1:]


def test_nested_loaders(Loader: Any) -> None:
    outer = Loader(Squares(3), num_workers=1)
    inner = twelve(Loader, persistent_workers=True)
    assert [(batch[1].item(), numbers(inner)) for batch in outer] == [(i, DUE) for i in range(3)]


def test_many_loaders_at_once(Loader: Any) -> None:
    iterators = [iter(twelve(Loader, num_workers=1)) for _ in range(6)]
    assert [numbers(one) for one in zip(*iterators)] == [[due] * 6 for due in DUE]


def test_loaders_in_threads(Loader: Any) -> None:
    seen: dict[int, Any] = {}

    def loop(name: int) -> None:
        loader = twelve(Loader)
        seen[name] = [numbers(loader) for _ in range(3)]

    threads = [threading.Thread(target=loop, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {name: [DUE] * 3 for name in range(3)}


def test_an_iterator_may_wander_to_another_thread(Loader: Any) -> None:
    iterator = iter(twelve(Loader))
    first = next(iterator)[1].tolist()
    rest: list[Any] = []
    thread = threading.Thread(target=lambda: rest.extend(numbers(iterator)))
    thread.start()
    thread.join()
    assert [first, *rest] == DUE
    del iterator, thread


class LoaderInside(torch_data.Dataset):
    """Sample i comes out of a loader in the worker."""

    def __init__(self, loader_class: Any, workers: int) -> None:
        self.loader_class, self.workers = loader_class, workers

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return (
            sum(
                sum(batch) for batch in numbers(twelve(self.loader_class, num_workers=self.workers))
            )
            + index
        )


def test_a_loader_without_workers_inside_of_a_worker(Loader: Any) -> None:
    assert [batch.item() for batch in Loader(LoaderInside(Loader, 0), num_workers=2)] == [
        66,
        67,
        68,
        69,
    ]


def test_a_loader_with_workers_inside_of_a_worker_is_refused_as_there(Loader: Any) -> None:
    error = data.raised(lambda: list(Loader(LoaderInside(Loader, 1), num_workers=1)))
    assert type(error) is AssertionError
    assert "daemonic processes are not allowed to have children" in str(error)


# ---- Garbage collection ----


def test_the_iterator_outlives_the_loader(Loader: Any) -> None:
    for persistent in (False, True):
        iterator = iter(twelve(Loader, persistent_workers=persistent))
        gc.collect()
        assert numbers(iterator) == DUE
        del iterator


def test_loaders_and_iterators_are_not_held(Loader: Any) -> None:
    loader = twelve(Loader)
    iterator = iter(loader)
    next(iterator)
    dataset = weakref.ref(loader.dataset)
    of_loader, of_iterator = weakref.ref(loader), weakref.ref(iterator)
    del iterator
    assert of_iterator() is None, "the iterator is in a cycle"
    del loader
    gc.collect()
    assert of_loader() is None and dataset() is None


def test_an_iterator_that_nobody_asked_goes(Loader: Any) -> None:
    before = descendants()
    iterator = iter(twelve(Loader))
    assert len(descendants()) > len(before)
    del iterator
    wait_until(lambda: descendants() == before, "its processes to be gone")


def test_collections_at_any_moment(Loader: Any) -> None:
    """With garbage collected at every allocation or so, loaders in cycles among it."""
    old = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for i in range(4):
            loader = twelve(Loader)
            iterator = iter(loader)
            ring: list[Any] = [next(iterator), loader if i % 2 else None]
            ring.append(ring)
            del ring, iterator
            assert numbers(loader) == DUE
    finally:
        gc.set_threshold(*old)


# ---- Batches ----


def test_a_list_of_hundreds_of_batches(Loader: Any) -> None:
    batches = list(Loader(Squares(1200), batch_size=3, num_workers=2, shuffle=False))
    assert len(batches) == 400
    for i, (squares, indices) in enumerate(batches):
        assert indices.tolist() == [3 * i, 3 * i + 1, 3 * i + 2]
        assert squares[:, 1].tolist() == [index * index for index in indices.tolist()]


def test_hundreds_of_batches_of_a_megabyte_each(Loader: Any) -> None:
    batches = list(Loader(range(300), batch_size=None, num_workers=2, collate_fn=_megabyte))
    for i in random.Random(1).sample(range(300), 300):
        assert int(batches[i].min()) == int(batches[i].max()) == i % 256
        batches[i] = None


def _megabyte(index: int) -> torch.Tensor:
    return torch.full((1 << 20,), index % 256, dtype=torch.uint8)


def test_batches_outlive_their_loader(Loader: Any) -> None:
    loader = twelve(Loader)
    batches = list(loader)
    del loader
    gc.collect()
    assert numbers(batches) == DUE
    views = [batch[0][1:] for batch in batches]
    arrays = [batch[1].numpy() for batch in batches]
    del batches
    gc.collect()
    assert [view[0, 0].item() for view in views] == [1, 4, 7, 10]
    assert [array.tolist() for array in arrays] == DUE


def test_batches_deleted_in_any_order_while_the_loop_runs(Loader: Any) -> None:
    rng = random.Random(5)
    held: list[Any] = []
    for i, batch in enumerate(Loader(range(400), batch_size=2, num_workers=2, collate_fn=_sized)):
        held.append((i, batch))
        while len(held) > 20:
            held.pop(rng.randrange(len(held)))
        for j, (first, text) in held:
            assert first[0] == 2 * j and text == str(2 * j)
    assert i == 199


def _sized(items: list[int]) -> Any:
    return torch.full((1 + items[0] * 37 % 5000,), items[0]), str(items[0])


def test_a_batch_that_is_held_is_never_written_again(Loader: Any) -> None:
    iterator = iter(Loader(range(200), batch_size=1, num_workers=2))
    held = next(iterator)
    view = held[:]
    for _ in iterator:
        assert held.item() == 0
    held.fill_(9)
    assert view.item() == 9


def test_batches_in_a_fork_of_the_trainer(Loader: Any) -> None:
    loader = twelve(Loader)
    iterator = iter(loader)
    batch = next(iterator)

    def check() -> None:
        assert batch[1].tolist() == DUE[0]
        batch[1].add_(100)
        assert batch[1].tolist() == [100, 101, 102]

    assert status_of(forked(check)) == 0
    assert numbers(iterator) == DUE[1:]


def test_a_fork_of_the_trainer_has_loaders_of_its_own(Loader: Any) -> None:
    """A loop goes on here while the child runs one; the child's end takes nothing away."""
    loader = twelve(Loader)
    iterator = iter(loader)
    assert next(iterator)[1].tolist() == DUE[0]

    def check() -> None:
        assert numbers(twelve(Loader)) == DUE
        assert numbers(loader) == DUE

    assert status_of(forked(check)) == 0
    assert numbers(iterator) == DUE[1:]


def test_an_iterator_dropped_in_a_fork_lives_on_in_the_trainer(Ours: Any) -> None:
    """PyTorch's would join processes that are no children."""
    iterator = iter(twelve(Ours))
    next(iterator)
    holder = [iterator]

    def drop() -> None:
        nonlocal iterator
        holder.clear()
        del iterator
        gc.collect()

    assert status_of(forked(drop)) == 0
    assert numbers(iterator) == DUE[1:]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_go_to_other_processes(Loader: Any, method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    for batch in twelve(Loader, batch_size=6):
        process = context.Process(target=data.put_sum, args=(queue, batch))
        process.start()
        process.join()
        assert queue.get() == int(batch[1].sum())
    queue.close()


def test_batches_are_copied_and_pickled(Loader: Any) -> None:
    batches = list(twelve(Loader))
    copies = [copy.deepcopy(batch) for batch in batches] + pickle.loads(pickle.dumps(batches))
    for batch in batches:
        batch[1].zero_()
    del batches
    gc.collect()
    assert numbers(copies) == DUE * 2


def test_memory_does_not_grow(Loader: Any) -> None:
    """Twenty epochs of 60 MB each leave no more than a few of these."""

    def epoch() -> None:
        for batch in Loader(range(60), batch_size=None, num_workers=2, collate_fn=_megabyte):
            assert batch[0] == batch[-1]

    def used() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return sum(
            int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))
        )

    epoch(), epoch()
    gc.collect()
    before = used()
    for _ in range(10):
        epoch()
    gc.collect()
    assert used() - before < 100_000, "KB"


# ---- Copies of the loader ----


def test_a_loader_is_copied_before_and_after_its_loops(Loader: Any) -> None:
    loader = twelve(Loader, generator=torch.Generator().manual_seed(3), shuffle=True)
    fresh = copy.deepcopy(loader)
    first = numbers(loader)
    again = pickle.loads(pickle.dumps(fresh))
    assert numbers(fresh) == first == numbers(again)
    after = copy.deepcopy(loader)
    assert numbers(after) == numbers(loader) != first
    shallow = copy.copy(loader)
    assert shallow.dataset is loader.dataset and len(numbers(shallow)) == 4


def test_an_iterator_is_not_pickled(Loader: Any) -> None:
    iterator = iter(twelve(Loader))
    error = data.raised(lambda: pickle.dumps(iterator))
    assert type(error) is NotImplementedError and "cannot be pickled" in str(error)
    assert numbers(iterator) == DUE


# ---- Ends of the trainer ----


def _loop_until_told(loader_class: Any, persistent: bool, act: Any) -> None:
    seen = []
    for sample in loader_class(
        Whoami(1000), batch_size=None, num_workers=2, persistent_workers=persistent
    ):
        seen.append(sample["pid"])
        if len(seen) == 5:
            act()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("end", ["exit", "terminate", "kill"])
def test_however_the_trainer_dies_nothing_survives(
    Loader: Any, end: str, persistent: bool, tmp_path: Path
) -> None:
    at = tmp_path / "at"

    def act() -> None:
        aside = tmp_path / "aside"
        aside.write_text(" ".join(map(str, descendants())))
        aside.rename(at)
        if end == "exit":
            os._exit(7)
        signal.pause()

    # As a process of its own would have them, not as pytest does.
    old = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        pid = forked(lambda: _loop_until_told(Loader, persistent, act))
    finally:
        signal.signal(signal.SIGTERM, old)
    wait_until(lambda: at.exists() or not runs(pid), "the trainer to be in its loop")
    below = [int(one) for one in at.read_text().split()]
    assert len(below) >= 2
    if end != "exit":
        os.kill(pid, signal.SIGTERM if end == "terminate" else signal.SIGKILL)
    assert status_of(pid) == {"exit": 7, "terminate": -signal.SIGTERM, "kill": -signal.SIGKILL}[end]
    # PyTorch's workers look at their parent every 5 seconds.
    gone(below)


def test_a_warm_parent_that_starts_when_its_trainer_has_died_ends_the_workers(
    tmp_path: Path,
) -> None:
    """Those of the parent before it: nobody else would, if the supervisor died as well."""
    from ringfeed.torch import _worker
    from ringfeed.torch._batches import Requests

    requests = Requests(1, 16, 4096, 16)
    worker = forked(signal.pause)  # it has the memory
    trainer = forked(lambda: None)
    status_of(trainer)
    struct.pack_into("<Q", requests.memory.map, requests.memory.size - 16, worker)
    (tmp_path / "feed").mkdir()
    job: Any = SimpleNamespace(
        trainer=trainer,
        workers=1,
        requests=requests.memory,
        bulk=requests.memory,
        socket_path=str(tmp_path / "feed" / "parent.sock"),
        environment={},
        shown=str(tmp_path / "link"),
    )
    (tmp_path / "link").symlink_to("feed")
    try:
        assert status_of(forked(lambda: _worker.serve(job))) == 0
        assert not (tmp_path / "feed").exists() and not (tmp_path / "link").is_symlink()
        wait_until(lambda: not runs(worker), "the end of the worker", timeout_s=45)
    finally:
        os.kill(worker, signal.SIGKILL)
        status_of(worker)


ENDS = {
    "the end of the script": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise LookupError('it ends here')", 1),
    "os.abort": ("os.abort()", -signal.SIGABRT),
}


@pytest.mark.parametrize("end", ENDS)
def test_however_a_script_ends_nothing_survives(loader_name: str, end: str, tmp_path: Path) -> None:
    statement, status = ENDS[end]
    body = f"""
    loader = DataLoader(data.Whoami(100), batch_size=None, num_workers=2, persistent_workers=True)
    plain = DataLoader(data.Whoami(100), batch_size=None, num_workers=1)
    print(*[sample["pid"] for sample in loader][:4], flush=True)
    half, other = iter(loader), iter(plain)
    batch = next(half), next(other)
    print(*data.descendants(), flush=True)
    globals().update(locals())
    {statement or "pass"}
    """
    process = data.script(loader_name, body, tmp_path)
    out, errors = process.communicate(timeout=100)
    assert process.returncode == status, errors
    pids = [int(pid) for line in out.splitlines() for pid in line.split()]
    assert len(set(pids)) >= 3
    gone(pids)
    lines = [line for line in errors.splitlines() if line and not line.startswith(" ")]
    if end == "an exception":
        assert lines[-1] == "LookupError: it ends here"
    elif end != "os.abort":
        assert lines == [], "a script that ends says nothing"


def test_threads_that_loop_do_not_hold_the_script_up(loader_name: str, tmp_path: Path) -> None:
    body = """
    import threading, time
    def loop():
        while True:
            for batch in DataLoader(data.Squares(8), num_workers=1):
                begun.set()
    begun = threading.Event()
    threading.Thread(target=loop, daemon=True).start()
    begun.wait()
    print("end", flush=True)
    """
    process = data.script(loader_name, body, tmp_path)
    assert process.stdout is not None and process.stdout.readline() == "end\n"
    below = descendants(process.pid)
    process.communicate(timeout=100)
    gone([process.pid, *below])


@pytest.mark.parametrize("where", ["starting", "ending"])
def test_a_daemon_thread_leaves_no_directory_wherever_it_is_halted(
    where: str, tmp_path: Path
) -> None:
    body = """
    import atexit, threading
    from ringfeed import loader
    begun, over = threading.Event(), threading.Event()
    atexit.register(over.set)  # the last that is registered is the first that is called
    def starting(*words, **more):
        begun.set()
        threading.Event().wait()
    def ending(*words, **more):
        begun.set()
        over.wait()
        return stop(*words, **more)
    if sys.argv[1] == "starting":
        loader.subprocess.Popen = starting
    else:
        stop, loader.control.stop = loader.control.stop, ending
    def once():
        list(DataLoader(data.Squares(8), num_workers=1))
        threading.Event().wait()  # PyTorch aborts if the end meets a thread in its own code
    threading.Thread(target=once, daemon=True).start()
    begun.wait()
    """

    def directories() -> set[Path]:
        return set(Path(tempfile.gettempdir()).glob("ringfeed-*"))

    before = directories()
    process = data.script("ringfeed", body, tmp_path, words=[where])
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0 and errors == ""
    wait_until(lambda: directories() == before, "the directory to be removed")


def test_a_warm_parent_that_dies_as_it_begins_to_listen_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trainer is dead as well: the supervisor removes the socket."""
    # Of the link there, by which `ringfeed ps` finds the loader, the supervisor knows nothing.
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(tmp_path / "sockets"))
    body = """
    from pathlib import Path
    from ringfeed.torch import _worker
    def halt(*words):
        Path(sys.argv[1]).symlink_to(str(os.getpid()))
        signal.pause()
    _worker.Parent.run = halt
    list(DataLoader(data.Squares(8), num_workers=1, multiprocessing_context="fork"))
    """
    at = tmp_path / "at"
    before = set(Path(tempfile.gettempdir()).glob("ringfeed-*"))
    process = data.script("ringfeed", body, tmp_path, words=[str(at)])
    wait_until(at.is_symlink, "the warm parent to have the dataset")
    (made,) = set(Path(tempfile.gettempdir()).glob("ringfeed-*")) - before
    assert (made / "parent.sock").is_socket()
    process.kill()
    wait_until(lambda: not runs(process.pid), "the end of the trainer")
    os.kill(int(os.readlink(at)), signal.SIGKILL)
    process.communicate()  # the warm parent had its ends of these pipes
    wait_until(lambda: not made.exists(), "the directory to be removed")


def test_the_directory_goes_when_nobody_is_left_who_writes_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ringfeed import torch as ours
    from ringfeed._core import places

    before = set(descendants())
    remove = places.remove
    there: list[str] = []

    def look_and_remove(path: Path) -> None:
        there.extend(data.command_of(pid) for pid in set(descendants()) - before if runs(pid))
        remove(path)

    monkeypatch.setattr(places, "remove", look_and_remove)
    # The warm parent has no time to listen, or has long been there.
    for batches in (0, 1):
        iterator = iter(ours.DataLoader(Squares(8), num_workers=1, multiprocessing_context="fork"))
        for _ in range(batches):
            next(iterator)
        del iterator
        assert there == []


def test_what_comes_into_a_directory_that_is_removed_goes_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ringfeed._core import places

    rmdir, late = os.rmdir, []

    def rmdir_of_one_that_is_not_empty(path: Any, **more: Any) -> None:
        if not late:
            late.append(directory / "p.1")
            late[0].touch()
        rmdir(path, **more)

    directory = places.make()
    (directory / "feed.textproto").touch()
    monkeypatch.setattr(os, "rmdir", rmdir_of_one_that_is_not_empty)
    with places.removing(directory):
        pass
    assert late and not directory.exists()


def test_what_a_worker_prints_is_seen_once(loader_name: str, tmp_path: Path) -> None:
    body = """
    import functools
    print("before")
    def said(index):
        print(f"sample {index}", flush=True)
        return index
    print(sum(DataLoader(data.Made(said, 6), batch_size=None, num_workers=2)))
    """
    process = data.script(loader_name, body, tmp_path)
    out, errors = process.communicate(timeout=100)
    assert sorted((out + errors).split("\n")) == sorted(
        ["", "15", "before", *(f"sample {i}" for i in range(6))]
    )
