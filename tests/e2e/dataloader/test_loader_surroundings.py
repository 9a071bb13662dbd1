"""Surroundings in which PyTorch's loader works: streams, descriptors, signals and directories that are not there.

Each test is a program of its own, which writes what it has seen into a file: its streams may be closed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from tests.support.loaders import own_data as data  # noqa: E402

SURROUNDINGS = {
    "sys.stderr is None": "sys.stderr = None",
    "no stream is there": "sys.stdin = sys.stdout = sys.stderr = None",
    "sys.stderr is closed": "sys.stderr.close()",
    "sys.stderr has no descriptor": """
        class Tee:
            def write(self, text):
                return sys.__stderr__.write(text)
            def flush(self):
                sys.__stderr__.flush()
        sys.stdout = sys.stderr = Tee()
    """,
    "sys.stderr is in memory": "import io; sys.stdout, sys.stderr = io.StringIO(), io.StringIO()",
    "0 to 2 are closed": "for fd in (0, 1, 2): os.close(fd)",
    "2 is closed": "os.close(2)",
    "SIGCHLD is ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "a handler waits for all children": """
        def wait_for_all(*_):
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
        signal.signal(signal.SIGCHLD, wait_for_all)
    """,
    "signals are blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.Signals)",
    "signals are ignored": """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
    """,
    "sockets have a timeout": "import socket; socket.setdefaulttimeout(0.5)",
    "nobody may read files": "os.umask(0o777)",
    "its name has spaces": "open('/proc/self/comm', 'w').write('a) R 1 (b')",
    "main has no file": "del sys.modules['__main__'].__file__; sys.argv.clear()",
}
# Where PyTorch's loader works if its workers are forked, and not if they are spawned.
FORKED = {
    "the directory is deleted": """
        os.mkdir("below")
        os.chdir("below")
        os.rmdir("../below")
    """,
    "the interpreter has no name": "sys.executable = None",
}
LOOP = """
    os.chdir(os.path.dirname(sys.argv[1]))
    seen = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    {surrounding}
    loader = DataLoader(data.Squares(12), batch_size=3, num_workers=2, {options})
    for _ in range(2):
        for _, numbers in loader:
            os.write(seen, repr(numbers.tolist()).encode())
"""
DUE = "[0, 1, 2][3, 4, 5][6, 7, 8][9, 10, 11]"


def indented(lines: str, by: int = 4) -> str:
    import textwrap

    return textwrap.indent(textwrap.dedent(lines).strip(), " " * by).strip()


def seen_by(name: str, surrounding: str, options: str, directory: Path) -> str:
    """What the program has seen; it has ended well."""
    body = LOOP.format(surrounding=indented(surrounding), options=options)
    process = data.script(name, body, directory, words=[str(directory / "seen")])
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors and "Exception ignored" not in errors, errors
    return (directory / "seen").read_text()


@pytest.mark.parametrize("surrounding", SURROUNDINGS | FORKED)
def test_forked_workers(loader_name: str, surrounding: str, tmp_path: Path) -> None:
    lines = (SURROUNDINGS | FORKED)[surrounding]
    assert seen_by(loader_name, lines, "multiprocessing_context='fork'", tmp_path) == DUE * 2


@pytest.mark.parametrize("surrounding", SURROUNDINGS)
def test_spawned_workers(surrounding: str, tmp_path: Path) -> None:
    options = "multiprocessing_context='spawn', persistent_workers=True"
    assert seen_by("ringfeed", SURROUNDINGS[surrounding], options, tmp_path) == DUE * 2


@pytest.mark.parametrize("surrounding", SURROUNDINGS | FORKED)
def test_a_shared_feed(surrounding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(tmp_path / "sockets"))
    lines = (SURROUNDINGS | FORKED)[surrounding]
    options = "feed='one', multiprocessing_context='fork'"
    assert seen_by("ringfeed", lines, options, tmp_path) == DUE * 2


# The program begins anew with these descriptors closed.
ANEW = """
    if sys.argv[-1] != "anew":
        for fd in {fds}:
            os.close(fd)
        os.execv(sys.executable, [sys.executable, *sys.argv, "anew"])
"""


@pytest.mark.parametrize("fds", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("options", ["", "persistent_workers=True", "feed='one'"])
def test_a_program_that_starts_with_closed_streams(
    loader_name: str,
    fds: tuple[int, ...],
    options: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if loader_name == "torch" and "feed" in options:
        pytest.skip("its own argument")
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(tmp_path / "sockets"))
    body = ANEW.format(fds=fds) + LOOP.format(surrounding="", options=options)
    process = data.script(loader_name, body, tmp_path, words=[str(tmp_path / "seen")])
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert (tmp_path / "seen").read_text() == DUE * 2


@pytest.mark.parametrize("options", ["", "feed='one'", "multiprocessing_context='spawn'"])
def test_a_file_that_is_descriptor_2_stays_what_it_is(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for the dataset, which reads it in the workers; and one of these dies."""
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(tmp_path / "sockets"))
    fresh = "spawn" in options  # a process in which it is closed
    body = (
        ANEW.format(fds=(2,))
        + f"""
    own = open(sys.argv[1] + ".own", "w+")
    own.write("mine")
    own.flush()
    assert own.fileno() == 2
    def read(index):
        return index, "mine" if {fresh} else os.pread(2, 100, 0).decode()
    def die():
        os.abort()
    def read_or_die(index):
        if index == 7 and acts is not None:
            acts(index)
        return read(index)
    acts = None if {fresh} else data.Acts({{7: die}})
    dataset = data.Squares(12) if {fresh} else data.Made(read_or_die, 12)
    loader = DataLoader(dataset, batch_size=3, num_workers=2, {options})
    seen = [list(batch[1]) for batch in loader]
    assert len(seen) == 4 and ({fresh} or seen == [["mine"] * 3] * 4), seen
    with open(sys.argv[1], "w") as file:
        file.write("well")
    """
    )
    process = data.script("ringfeed", body, tmp_path, words=[str(tmp_path / "seen")])
    process.communicate(timeout=200)
    assert (tmp_path / "seen.own").read_text() == "mine"
    assert process.returncode == 0 and (tmp_path / "seen").read_text() == "well"


@pytest.mark.parametrize("ignored", [True, False])
@pytest.mark.parametrize("whom", ["warm", "supervisor"])
def test_a_death_of_which_nobody_learns_how(whom: str, ignored: bool, tmp_path: Path) -> None:
    """SIGCHLD is ignored, or a handler of the trainer's has taken the status."""
    name = "SIGCHLD is ignored" if ignored else "a handler waits for all children"
    body = (
        indented(SURROUNDINGS[name]).replace("\n    ", "\n")
        + f"""
dataset = data.Flagged(length=40)
seen = []
for batch in DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork"):
    seen += batch["index"].tolist()
    if len(seen) == 8:
        if {whom!r} == "warm":
            pids = {{int(pid) for pid in dataset.parents if pid}}
        else:
            pids = {{pid for pid in data.descendants() if " run " in data.command_of(pid)}}
        assert len(pids) == 1, pids
        os.kill(pids.pop(), signal.SIGKILL)
assert seen == list(range(40)), seen
"""
    )
    process = data.script("ringfeed", body, tmp_path)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors


def test_what_workers_print_without_a_descriptor_comes_out(tmp_path: Path) -> None:
    """Through what stands in the place of sys.stderr, which writes to the one that was there."""
    body = (
        indented(SURROUNDINGS["sys.stderr has no descriptor"]).replace("\n    ", "\n")
        + """
def said(index):
    print(f"sample {index}", file=sys.stderr)
    return index
assert sum(DataLoader(data.Made(said, 6), batch_size=None, num_workers=2)) == 15
"""
    )
    process = data.script("ringfeed", body, tmp_path)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert sorted(errors.splitlines()) == [f"sample {i}" for i in range(6)]


def test_a_worker_prints_where_it_did_when_the_supervisor_has_a_successor(tmp_path: Path) -> None:
    body = """
    dataset = data.Flagged(length=400)
    def said(samples):
        print("batch of", samples[0]["index"], flush=True)
        return torch.tensor([sample["index"] for sample in samples])
    loader = DataLoader(dataset, batch_size=4, num_workers=1, collate_fn=said)
    for number, batch in enumerate(loader):
        if number == 2:
            (pid,) = [pid for pid in data.descendants() if " run " in data.command_of(pid)]
            os.kill(pid, signal.SIGKILL)
    """
    process = data.script("ringfeed", body, tmp_path)
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert out.splitlines() == [f"batch of {first}" for first in range(0, 400, 4)]


def test_descriptors_0_to_2_are_reserved_for_good(Ours: Any) -> None:
    """What is opened later gets none of them, so nothing that is printed reaches it."""

    def act() -> None:
        import os

        for fd in (0, 1, 2):
            os.close(fd)
        iterator = iter(Ours(data.Squares(12), num_workers=1))
        next(iterator)
        assert [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)] == ["/dev/null"] * 3

    assert data.status_of(data.forked(act)) == 0
