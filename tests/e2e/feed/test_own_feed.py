"""A feed of one's own, whose process goes away without stop(): nothing of it is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ringfeed._core import programs

from tests.support.feeds.feed_run import ROOT, wait_until
from tests.support.feeds.scenes import LCZERO, small
from tests.support.makers import lc0_data

CONFIG = """
epochs: 0
stages {{ name: "files" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "sources" chunk_source_loader {{ input: "files" }} }}
stages {{ name: "pool" shuffling_chunk_pool {{ input: "sources" }} }}
stages {{ name: "unpacker" chunk_unpacker {{ input: "pool" }} }}
stages {{ name: "tensors" tensor_generator {{ input: "unpacker" batch_size: 32 }} }}
"""

# Each waits for a line before it goes on, and for another one at the end.
PROGRAM = """
import gc, os, sys
from pathlib import Path

def step(what):
    print(what, flush=True)
    sys.stdin.readline()

if sys.argv[1] == "lc0_compat":
    from ringfeed.lc0_compat import DataLoader
    loader = DataLoader(sys.argv[2])
else:
    from ringfeed import DataLoader
    loader = DataLoader(Path(sys.argv[2]).read_text())
step("made")
loader.start()
batch = loader.get_next()
step("running")
child = os.fork()
if child == 0:
    del loader
    gc.collect()
    sys.exit()
os.waitpid(child, 0)
# More than were ready.
for _ in range(100):
    loader.get_next()
step("runs on")
del loader, batch
gc.collect()
step("dropped")
"""


def processes_in(directory: Path) -> dict[int, str]:
    """Those that have it as their TMPDIR; a process's name by its number."""
    found = {}
    wanted = f"TMPDIR={directory}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "comm").read_text().strip()
        except OSError:
            continue  # it has ended, or is not ours
    return found


def shared_memory() -> set[str]:
    """What lies in /dev/shm, but for what PyTorch and multiprocessing leave there, in tests beside."""
    names = os.listdir("/dev/shm")
    return {name for name in names if not name.startswith(("sem.", "torch_"))}


class Trainer:
    def __init__(self, kind: str, config: Path, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.shared = shared_memory()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, kind, str(config)],
            env=dict(os.environ, TMPDIR=str(directory), PYTHONPATH=str(ROOT / "pyclient")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.says() == "made"

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def others(self) -> dict[int, str]:
        """Processes that it has, and theirs."""
        found = processes_in(self.directory)
        found.pop(self.process.pid, None)
        return found

    def nothing_is_left(self) -> None:
        wait_until(
            lambda: not self.others() and not list(self.directory.iterdir()),
            "the end of its processes and files",
        )
        assert shared_memory() <= self.shared

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        for pid in self.others():
            os.kill(pid, 9)


@pytest.fixture(params=["lc0_compat", "ringfeed"])
def trainer(
    request: pytest.FixtureRequest, games: lc0_data.Manifest, tmp_path: Path
) -> Iterator[Trainer]:
    text = CONFIG.format(directory=games.directory)
    if request.param == "lc0_compat":
        text = small((LCZERO / "supervised.textproto").read_text(), str(games.directory))
    config = tmp_path / "config.textproto"
    config.write_text(text)
    # Not below tmp_path: sockets lie in it, and their paths may have 107 bytes.
    with tempfile.TemporaryDirectory() as place:
        made = Trainer(request.param, config, Path(place) / "own")
        try:
            yield made
        finally:
            made.end()


def test_a_loader_that_is_dropped_leaves_nothing(trainer: Trainer) -> None:
    trainer.go_on()
    assert trainer.says() == "running"
    assert "ringfeed" in trainer.others().values() and len(trainer.others()) > 1
    assert list(trainer.directory.iterdir())
    trainer.go_on()
    assert trainer.says() == "runs on", "a child that was forked has dropped its copy"
    trainer.go_on()
    assert trainer.says() == "dropped"
    trainer.nothing_is_left()
    assert trainer.process.poll() is None, "while it lives on"


def test_a_process_that_is_killed_leaves_nothing(trainer: Trainer) -> None:
    trainer.go_on()
    assert trainer.says() == "running"
    trainer.process.kill()
    trainer.nothing_is_left()


def test_a_process_that_is_killed_in_the_midst_of_a_start_leaves_nothing(trainer: Trainer) -> None:
    trainer.go_on()
    wait_until(lambda: "ringfeed" in trainer.others().values(), "a supervisor")
    trainer.process.kill()
    trainer.nothing_is_left()


@pytest.mark.parametrize("descriptor", ["0", "77"])
def test_only_a_process_can_own_a_feed(
    games: lc0_data.Manifest, tmp_path: Path, descriptor: str
) -> None:
    config = tmp_path / "config.textproto"
    config.write_text(CONFIG.format(directory=games.directory))
    run = subprocess.run(
        [str(programs.find("ringfeed")), "run", str(config), "--owner-fd", descriptor],
        env=dict(os.environ, RINGFEED_SOCKET_DIR=str(tmp_path / "sockets")),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert f"--owner-fd {descriptor}: not a pidfd of a process" in run.stderr
    assert config.exists()


def run_linked(config: Path, directory: Path, descriptor: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(programs.find("ringfeed")), "run", str(config), "--set", "feed=linked"]
        + ["--set", f"control.directory={directory}", "--link-fd", str(descriptor)],
        pass_fds=(descriptor,),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("plan", [b"", b"no plan", None], ids=["empty", "damaged", "closed"])
def test_a_program_hears_when_its_feed_can_be_attached_to(
    games: lc0_data.Manifest, tmp_path: Path, plan: bytes | None
) -> None:
    """Without a plan that fits, the worker is asked for one."""
    config = tmp_path / "config.textproto"
    config.write_text(CONFIG.format(directory=games.directory))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, run_linked(config, tmp_path, theirs.fileno()) as supervisor:
        theirs.close()
        if plan is None:
            ours.shutdown(socket.SHUT_WR)
        else:
            ours.send(plan)
        ours.settimeout(60)
        try:
            assert ours.recv(100) == b"listening"
            assert (tmp_path / "linked.sock").is_socket()
            assert ours.recv(100) == b"", "it says nothing more"
        finally:
            supervisor.terminate()
            supervisor.communicate()


def test_a_link_is_a_socket_of_packets(games: lc0_data.Manifest, tmp_path: Path) -> None:
    config = tmp_path / "config.textproto"
    config.write_text(CONFIG.format(directory=games.directory))
    with open(os.devnull) as other, run_linked(config, tmp_path, other.fileno()) as supervisor:
        _, said = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 1
    assert b"not a socket of packets" in said
