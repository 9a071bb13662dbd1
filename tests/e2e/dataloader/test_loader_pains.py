"""The known pains of PyTorch's workers, each under the conditions that cause it.

Where it is bounded and safe PyTorch's loader runs beside: that the conditions are real is seen there.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")
np = pytest.importorskip("numpy")

from torch.utils import data as torch_data  # noqa: E402

from ringfeed.torch import SharedList  # noqa: E402
from tests.support.feeds.feed_run import ROOT  # noqa: E402
from tests.support.loaders import own_data as data  # noqa: E402
from tests.support.loaders.own_data import Acts, Flagged, Reference, same  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

HEAD = """
import logging, os, resource, sys, threading, time
import torch
{loader}

class Numbers(torch.utils.data.Dataset):
    def __init__(self, length, elements=1):
        self.length, self.elements = length, elements

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((self.elements,), index, dtype=torch.int32)

def firsts(loader):
    return [batch[:, 0].tolist() for batch in loader]

def due(length, size=3):
    return [list(range(i, min(i + size, length))) for i in range(0, length, size)]

def main():
"""


def trained(
    name: str, body: str, directory: Path, *before: str, top: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """What a program of its own came to, with `body` as its main function and `top` above it.

    Args:
        name: "torch" or "ringfeed": whose DataLoader.
        before: The command that runs it.
    """
    path = directory / "train.py"
    text = HEAD.format(loader=data.IMPORTS[name])
    text = text.replace("def main():", textwrap.dedent(top) + "\ndef main():")
    text += textwrap.indent(textwrap.dedent(body), "    ")
    path.write_text(text + '\nif __name__ == "__main__":\n    main()\n')
    paths = [str(ROOT), *(entry for entry in sys.path if "pyclient" in entry)]
    own = {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [*before, sys.executable, str(path)],
        env={**os.environ, **own, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )


def with_disk(place: Path | str, options: str) -> list[str]:
    """A command that runs another one with an empty file system in memory at this place, which nobody else sees."""
    mount = f'mount -t tmpfs -o {options} tmpfs "{place}" && exec "$@"'
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh"]


@pytest.fixture(scope="module")
def mounts() -> None:
    """Mounts of one's own, without which these tests say nothing."""
    tried = subprocess.run(
        [*with_disk("/dev/shm", "size=1m"), "true"], capture_output=True, text=True
    )
    if tried.returncode:
        pytest.fail(f"no private mounts here: run it as root: {tried.stderr.strip()}")


@pytest.fixture
def small() -> Iterator[Path]:
    """A directory with a short path: sockets can lie in it."""
    place = Path(tempfile.mkdtemp(prefix="f"))
    yield place
    place.rmdir()


# ---- A full /dev/shm ----


LARGE = """
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 1 << 20
loader = DataLoader(Numbers(12, 1 << 20), batch_size=3, num_workers=2, multiprocessing_context=METHOD)
for _ in range(2):
    assert firsts(loader) == due(12)
held = [batch[:, -1].tolist() for batch in list(loader)]
assert held == due(12)
assert os.listdir("/dev/shm") == []
print("all there")
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_larger_than_dev_shm(method: str, mounts: None, tmp_path: Path) -> None:
    body = LARGE.replace("METHOD", repr(method))
    run = trained("ringfeed", body, tmp_path, *with_disk("/dev/shm", "size=1m"))
    assert run.returncode == 0 and run.stdout == "all there\n", run.stderr


def test_dev_shm_is_what_pytorch_needs(mounts: None, tmp_path: Path) -> None:
    body = LARGE.replace("METHOD", "'fork'")
    run = trained("torch", body, tmp_path, *with_disk("/dev/shm", "size=1m"))
    assert run.returncode != 0 and re.search("No space left|Bus error", run.stderr), run.stderr


# ---- Too many open files ----

FILES = """
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))

def used():
    return len(os.listdir("/proc/self/fd"))

loader = DataLoader(
    Numbers(1200), batch_size=2, num_workers=2, collate_fn=parts, multiprocessing_context=METHOD
)
for epoch in range(2):
    kept, counts = [], []
    for batch in loader:
        kept.append(batch)
        counts.append(used())
    assert len(kept) == 600
    assert [batch["a"][:, 0].tolist() for batch in kept] == due(1200, 2)
    assert all((part == batch["a"]).all() for batch in kept for part in batch["more"])
    # Those of the loader itself are opened by the tenth batch, but for the warm parent's: that may come late.
    assert max(counts[10:]) <= max(counts[:10]) + 1, counts
print("all there")
"""
PARTS = """
def parts(samples):
    whole = torch.stack(samples)
    return {"a": whole, "more": [whole + 0 for _ in range(5)]}
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_hundreds_of_batches_with_few_open_files(method: str, tmp_path: Path) -> None:
    run = trained("ringfeed", FILES.replace("METHOD", repr(method)), tmp_path, top=PARTS)
    assert run.returncode == 0 and run.stdout == "all there\n", run.stderr


def test_open_files_are_what_pytorch_needs(tmp_path: Path) -> None:
    run = trained("torch", FILES.replace("METHOD", "'fork'"), tmp_path, top=PARTS)
    assert run.returncode != 0 and "Too many open files" in run.stderr, run.stderr


@pytest.mark.parametrize("limit", [12, 16, 20, 24, 32, 48])
def test_too_few_files_for_the_loader_itself(limit: int, tmp_path: Path) -> None:
    body = f"""
    resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
    try:
        print("right" if firsts(DataLoader(Numbers(12), batch_size=3, num_workers=4)) == due(12) else "wrong")
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
    """
    run = trained("ringfeed", body, tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "right\n" or re.search("open files|descriptors", run.stdout), (
        run.stdout,
        run.stderr,
    )


# ---- Memory that grows as workers touch what they share ----


def own_kb() -> int:
    """Memory of this process that it has written itself, or copied because it has."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"^Private_Dirty: +(\d+) kB", text, re.M)[1])  # type: ignore[index]


class Touches(torch_data.Dataset):
    """Sample i: the worker, what its memory was and is, and the sum of all items, which it has read meanwhile."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[int, int, int, int]:
        before = own_kb()
        total = 0
        for i in range(len(self.items)):
            _, number = self.items[i]
            total += number
        return torch_data.get_worker_info().id, before, own_kb(), total


ITEMS = 300_000


def named_items() -> Any:
    return ((f"directory/image-{i:09}.jpg", i + 1000) for i in range(ITEMS))


def growth_of(L: Any, items: Any) -> list[int]:
    """KB by which each of two workers has grown."""
    samples = list(L(Touches(items), batch_size=None, num_workers=2))
    assert [sample[0] for sample in samples] == [0, 1]
    assert {sample[3] for sample in samples} == {sum(range(1000, 1000 + ITEMS))}
    return [sample[2] - sample[1] for sample in samples]


def test_a_shared_list_costs_workers_no_memory(Ours: Any) -> None:
    shared = growth_of(Ours, SharedList(named_items()))
    plain = growth_of(Ours, list(named_items()))
    # 300000 tuples, texts and numbers: some 50 MB.
    assert min(plain) > 30_000 and max(shared) < 5_000, (plain, shared)


class Collects(torch_data.Dataset):
    """Sample i: by how much its worker grows when it collects garbage."""

    def __init__(self) -> None:
        self.items = [[i] for i in range(ITEMS)]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        before = own_kb()
        gc.collect()
        return own_kb() - before


def test_a_collection_in_a_worker_leaves_shared_memory_alone(Loader: Any, loader_name: str) -> None:
    grown = list(Loader(Collects(), batch_size=None, num_workers=2))
    if loader_name == "torch":
        assert min(grown) > 15_000, f"the test shows nothing: {grown} KB"
    else:
        assert max(grown) < 5_000, f"{grown} KB"


# ---- NumPy's generator ----


class Draws(torch_data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return np.random.random(2), np.random.randint(2**31), float(np.random.normal())


@pytest.mark.parametrize("persistent", [False, True])
def test_numpy_draws_differ_and_are_pytorchs(Ours: Any, persistent: bool) -> None:
    def run(L: Any) -> Any:
        data.seed_all()
        loader = L(Draws(), batch_size=2, num_workers=4, persistent_workers=persistent)
        return [list(loader) for _ in range(3)]

    seen = run(Ours)
    same(seen, run(Reference))
    draws = [number for epoch in seen for batch in epoch for number in batch[0].flatten().tolist()]
    assert len(draws) == 3 * 24 * 2 == len(set(draws))


# ---- A fork of a process with threads ----

THREADS = """
LOCK = threading.Lock()

class Locked(Numbers):
    def __getitem__(self, index):
        with LOCK:
            return super().__getitem__(index)

def holds():
    with LOCK:
        held.set()
        time.sleep(1000)

def logs():
    while True:
        logging.getLogger("busy").warning("x" * 100)
        print("y" * 100, flush=True)
        time.sleep(0.0005)

def imports():
    import held_open

def computes():
    one = torch.rand(300, 300)
    while True:
        one = (one @ one).softmax(0)

class Computes(Numbers):
    def __getitem__(self, index):
        one = torch.rand(300, 300)
        assert float((one @ one).sum()) > 0
        logging.getLogger("busy").warning("in a worker")
        print("in a worker")
        return super().__getitem__(index)

class Imports(Numbers):
    def __getitem__(self, index):
        import held_open
        return super().__getitem__(index)

held = threading.Event()
logging.basicConfig()
"""


def test_spawned_workers_have_no_locks_of_the_trainers_threads(tmp_path: Path) -> None:
    body = """
    threading.Thread(target=holds, daemon=True).start()
    held.wait()
    loader = DataLoader(Locked(12), batch_size=3, num_workers=2, multiprocessing_context="spawn")
    for _ in range(2):
        assert firsts(loader) == due(12)
    print("all there", flush=True)
    """
    run = trained("ringfeed", body, tmp_path, top=THREADS)
    assert run.returncode == 0 and run.stdout == "all there\n", run.stderr


@pytest.mark.parametrize("lock", ["of the program", "of an import"])
def test_a_lock_that_is_held_at_the_fork_is_an_error_and_no_hang(lock: str, tmp_path: Path) -> None:
    """Nobody is left in the worker who would open it: it is a hang as any other."""
    (tmp_path / "held_open.py").write_text(
        "import sys, time\nsys.modules['__main__'].held.set()\ntime.sleep(1000)\n"
    )
    target, dataset = ("holds", "Locked") if lock == "of the program" else ("imports", "Imports")
    body = f"""
    threading.Thread(target={target}, daemon=True).start()
    held.wait()
    try:
        firsts(DataLoader({dataset}(6), batch_size=3, num_workers=1, stall_timeout=0.5))
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
    """
    run = trained("ringfeed", body, tmp_path, top=THREADS)
    assert run.returncode == 0, run.stderr
    assert "the sample at index 0 has killed its worker process again and again" in run.stdout


def test_forks_while_threads_log_and_compute(tmp_path: Path) -> None:
    body = """
    for target in (logs, logs, computes):
        threading.Thread(target=target, daemon=True).start()
    loader = DataLoader(Computes(12), batch_size=3, num_workers=2)
    for _ in range(10):
        assert firsts(loader) == due(12)
    print("all there", flush=True)
    os._exit(0)
    """
    run = trained("ringfeed", body, tmp_path, top=THREADS)
    # A thread may print between these words and the end of their line.
    assert run.returncode == 0 and "all there" in run.stdout, run.stderr[-2000:]


STREAMS = """
import fcntl, io, struct, termios

class Awaited(io.RawIOBase):
    # A reader to whom nobody writes; whoever reads has the lock of the buffer above it.

    def __init__(self):
        self.read_end, self.write_end = os.pipe()
        self.entered = threading.Event()

    def readable(self):
        return True

    def readinto(self, place):
        self.entered.set()
        return os.readv(self.read_end, [place])

class Speaks(Numbers):
    def __getitem__(self, index):
        print("printed in a worker", flush=True)
        logging.getLogger("to the pipe").warning("logged in a worker")
        return super().__getitem__(index)

class Taken:
    # A stream whose lock a thread holds at each fork, because it waits for room in the pipe.

    def __init__(self):
        self.read, write = os.pipe()
        self.stream = open(write, "w", buffering=1)
        self.room = threading.Event()
        self.threads = []
        self.text = b""
        os.register_at_fork(before=self.take, after_in_parent=self.room.set)

    def take(self):
        if not self.threads:
            threading.Thread(target=self.drain, daemon=True).start()
            self.threads.append(threading.Thread(target=self.say, daemon=True))
            self.threads[0].start()
            while struct.unpack("i", fcntl.ioctl(self.read, termios.FIONREAD, bytes(4)))[0] < 65536:
                time.sleep(0.001)

    def say(self):
        self.stream.write("x" * 200_000 + "\\n")

    def drain(self):
        self.room.wait()
        while True:
            self.text += os.read(self.read, 65536)
"""


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("which", ["stdout", "stderr", "a handler's", "stdin"])
def test_a_stream_that_a_thread_uses_at_the_fork(which: str, shared: bool, tmp_path: Path) -> None:
    """Whoever held its lock is not there in the worker, which prints, logs, and goes on."""
    body = f"""
    which = {which!r}
    if which == "stdin":
        awaited = Awaited()
        sys.stdin = io.TextIOWrapper(io.BufferedReader(awaited))
        threading.Thread(target=sys.stdin.readline, daemon=True).start()
        awaited.entered.wait()
    else:
        taken = Taken()
        if which == "a handler's":
            logging.basicConfig(stream=taken.stream)
        else:
            setattr(sys, which, taken.stream)
            logging.basicConfig()
    loader = DataLoader(Speaks(12), batch_size=3, num_workers=2, **{{"feed": "x"}} if {shared} else {{}})
    for _ in range(2):
        assert firsts(loader) == due(12)
    if which == "a handler's" and not {shared}:
        while taken.text.count(b"WARNING:to the pipe:logged in a worker") < 24:
            time.sleep(0.01)
    os.write(1, b"all there\\n")
    os._exit(0)
    """
    home = {"RINGFEED_SOCKET_DIR": str(tmp_path / "s")} if shared else {}
    run = trained("ringfeed", body, tmp_path, top=STREAMS, **home)
    assert run.returncode == 0 and run.stdout.endswith("all there\n"), run.stderr[-2000:]


HANGS = """
import mmap
forks = mmap.mmap(-1, 4096)  # of this process and of those that it has forked: how many, which one hangs

def may_hang():
    forks[0] += 1
    while forks[0] == forks[1]:
        time.sleep(1)

os.register_at_fork(after_in_child=may_hang)
"""


@pytest.mark.parametrize(
    ("which", "shared"), [(1, False), (2, False), (3, False), (1, True), (3, True)]
)
def test_a_process_that_never_gets_through_its_fork(
    which: int, shared: bool, tmp_path: Path
) -> None:
    """The warm parent or a worker: another one is forked. That of a shared feed forks once more, without threads."""
    body = f"""
    forks[1] = {which}
    loader = DataLoader(Numbers(12), batch_size=3, num_workers=2, **{{"feed": "x"}} if {shared} else {{}})
    for _ in range(2):
        assert firsts(loader) == due(12)
    assert forks[0] > {which}
    print("all there", flush=True)
    """
    home = {"RINGFEED_SOCKET_DIR": str(tmp_path / "s")} if shared else {}
    run = trained("ringfeed", body, tmp_path, top=HANGS, **home)
    assert run.returncode == 0 and run.stdout == "all there\n", run.stderr[-2000:]


def test_a_fork_of_the_trainers_that_never_gets_through(tmp_path: Path) -> None:
    """It has no copy of the batch that the trainer has; the loop goes on, and the batch stays."""
    body = """
    import signal
    loader = DataLoader(Numbers(60, 1000), batch_size=3, num_workers=2)
    iterator = iter(loader)
    first = next(iterator)
    forks[1] = forks[0] + 1
    child = os.fork()
    assert [batch[:, 0].tolist() for batch in iterator] == due(60)[1:]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (first == torch.tensor([[0], [1], [2]])).all()
    assert firsts(loader) == due(60)
    print("all there", flush=True)
    """
    run = trained("ringfeed", body, tmp_path, top=HANGS)
    assert run.returncode == 0 and run.stdout == "all there\n", run.stderr[-2000:]


def test_what_workers_log_goes_where_the_trainers_log_goes(tmp_path: Path) -> None:
    """To standard error, as it is, and once."""
    body = """
    assert firsts(DataLoader(Speaks(12), batch_size=3, num_workers=2)) == due(12)
    """
    top = "logging.basicConfig()\n" + STREAMS
    run = trained("ringfeed", body, tmp_path, top=top)
    assert run.returncode == 0, run.stderr
    assert run.stderr.splitlines() == ["WARNING:to the pipe:logged in a worker"] * 12


def test_a_fork_in_the_middle_of_another_loaders_start(Ours: Any) -> None:
    """A thread that attaches to a feed has its memory open for a moment, and so has what is forked then."""
    act = Acts({12: _kill, 25: _kill})
    data.seed_all()
    due = list(Reference(Flagged(), batch_size=2, num_workers=2))
    data.seed_all()
    memory = os.memfd_create("loader_control")
    try:
        same(list(Ours(Flagged(act), batch_size=2, num_workers=2)), due)
    finally:
        os.close(memory)
    assert int(act.done.sum()) == 2


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# ---- Little address space, and no disk ----


@pytest.mark.parametrize("more_mb", [1, 16, 64, 256, 1024, 8192])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_little_address_space_is_an_error_that_says_so(
    method: str, more_mb: int, tmp_path: Path
) -> None:
    body = f"""
    [size] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize")]
    limit = (int(size) << 10) + ({more_mb} << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    loader = DataLoader(Numbers(12), batch_size=3, num_workers=2, multiprocessing_context={method!r})
    try:
        print("right" if firsts(loader) == due(12) else "wrong")
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
    """
    run = trained("ringfeed", body, tmp_path)
    assert run.returncode == 0 and "Exception ignored" not in run.stderr, run.stderr
    # Below what a thread or the table of requests takes, the system's own words are all there is.
    words = "ulimit -v" if more_mb > 16 else "ulimit -v|Cannot allocate memory|start new thread"
    assert run.stdout == "right\n" or re.search(words, run.stdout), (run.stdout, run.stderr)


@pytest.mark.parametrize(
    "room", ["nr_inodes=2", "nr_inodes=3", "nr_inodes=4", "nr_inodes=5", "nr_inodes=6", "size=4k"]
)
def test_a_full_disk_is_an_error_that_says_so(
    room: str, mounts: None, small: Path, tmp_path: Path
) -> None:
    body = """
    loader = DataLoader(Numbers(12), batch_size=3, num_workers=2)
    try:
        print("right" if firsts(loader) == due(12) else "wrong")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    from ringfeed.torch import _own_feed
    for feed in _own_feed._idle.all():
        feed.end()
    print(os.listdir(os.environ["TMPDIR"]))
    """
    options = room if "size" in room else f"size=64k,{room}"
    run = trained("ringfeed", body, tmp_path, *with_disk(small, options), TMPDIR=str(small))
    said, left = run.stdout.strip().rsplit("\n", 1)
    assert run.returncode == 0 and left == "[]", (run.stdout, run.stderr)
    if said != "right":
        assert re.search("No space left|disk that is full|see what it wrote", said), said
    if "see what it wrote" in said:
        assert "No space left on device" in run.stderr


def test_a_disk_that_becomes_full_is_an_error_and_the_loop_may_go_on(
    mounts: None, small: Path, tmp_path: Path
) -> None:
    """Requests of more than a megabyte go through a file."""
    body = """
    class Long(torch.utils.data.Sampler):
        def __iter__(self):
            for i in range(8):
                yield [1000 + i] * 400_000 if i == 6 else [i]

        def __len__(self):
            return 8

    first = lambda samples: (len(samples), samples[0].item())
    loader = DataLoader(Numbers(2000), batch_sampler=Long(), num_workers=2, collate_fn=first)
    iterator, seen = iter(loader), []
    filler = os.path.join(os.environ["TMPDIR"], "filler")
    with open(filler, "wb") as file:
        try:
            file.write(bytes(1 << 24))
        except OSError:
            pass
    while True:
        try:
            seen.append(next(iterator))
        except StopIteration:
            break
        except OSError as error:
            seen.append(str(error).partition(":")[0])
            os.truncate(filler, 0)
    print(seen)
    """
    run = trained("ringfeed", body, tmp_path, *with_disk(small, "size=2m"), TMPDIR=str(small))
    assert run.returncode == 0, run.stderr
    assert "[Errno 28] No space left on device" in run.stdout
    # PyTorch's iterator has forgotten the batch that it could not ask for, and the one in its hands.
    assert eval(run.stdout)[:2] == [(1, 0), (1, 1)] and eval(run.stdout)[-1] == (1, 7)


@pytest.mark.parametrize("length", [60, 70, 76, 77, 78, 90, 107, 200])
def test_however_long_the_path_of_temporary_files_is(length: int, tmp_path: Path) -> None:
    """The path of a socket has 107 bytes at most."""
    top = tempfile.mkdtemp(prefix="l")
    try:
        place = Path(top, *["d" * 20] * 9)
        place = Path(str(place)[:length].rstrip("/").ljust(length, "e"))
        place.mkdir(parents=True)
        body = """
        assert len(os.environ["TMPDIR"]) == LENGTH
        for method in ("fork", "spawn"):
            loader = DataLoader(
                Numbers(12), batch_size=3, num_workers=2, multiprocessing_context=method
            )
            assert firsts(loader) == due(12)
        print("all there")
        """
        run = trained("ringfeed", body.replace("LENGTH", str(length)), tmp_path, TMPDIR=str(place))
        assert run.returncode == 0 and run.stdout == "all there\n", run.stderr
        assert list(place.iterdir()) == []
    finally:
        shutil.rmtree(top)
