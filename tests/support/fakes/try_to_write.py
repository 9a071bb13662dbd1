"""A trainer that means harm: tries to write to a feed's memory in every way it has as its user.

    try_to_write.py FEED SOCKET_PATH

Prints one JSON object: each way, and how the kernel answered: "EACCES" and the like, "SIGSEGV",
or "done". Two ways are known to succeed and are here to say so: the page of its own group is a
member's to write, and the feed's own user may open a segment anew through /proc/self/fd (as he
may end the feed's processes). Another user, to whom somebody hands the descriptor, may not; that
is tried when this runs as root, who can become one.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ringfeed
from ringfeed._core import control

ABI_OFFSET, LAYOUT_OFFSET = 8, 16  # of a segment's header

PATIENCE_S = 60.0  # for the whole program; a test that needs it has failed

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.mremap.restype = ctypes.c_void_p


def descriptors(socket_path: str, header: int) -> dict[str, int]:
    """What a supervisor sends to a trainer, by name."""
    abi = ctypes.c_uint32.from_address(header + ABI_OFFSET).value
    layout = ctypes.c_uint64.from_address(header + LAYOUT_OFFSET).value
    request = (
        control.number_field(1, abi)
        + bytes([3 << 3 | 1])
        + layout.to_bytes(8, "little")
        + control.number_field(4, os.getpid())
        + control.bytes_field(5, b"try_to_write")
        + control.bytes_field(6, b"harm")
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(socket_path)
        connection.send(control.number_field(1, 1) + control.bytes_field(2, request))
        reply, fds, _, _ = socket.recv_fds(connection, 1 << 16, 8)
    if len(fds) != 4:
        raise SystemExit(f"no descriptors came: {reply!r}")
    return dict(zip(("control", "feed_control", "group", "payload"), fds))


def answer(way: Callable[[], object]) -> str:
    try:
        way()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def in_child(way: Callable[[], object]) -> str:
    """The same in a child, for what may end the process. It attaches by itself."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        way()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "done" if status == 0 else signal.Signals(-status).name


def reopen(fd: int) -> None:
    os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))


def as_another_user(way: Callable[[], object]) -> str:
    """The same in a child that gives up being root."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        # After setuid its own /proc would be root's.
        libc.prctl(4, 1, 0, 0, 0)
        os.write(writer, answer(way).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        return said.read()


def remap(address: int) -> None:
    """Makes the mapping anew from itself; that keeps what it may be made into."""
    page = address - address % mmap.PAGESIZE
    moved = libc.mremap(page, 0, mmap.PAGESIZE, 1)
    if moved == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mremap")
    mprotect(moved)


def mprotect(address: int) -> None:
    page = address - address % mmap.PAGESIZE
    if libc.mprotect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


def assert_all_refused(name: str, socket_path: Path) -> None:
    """For tests: runs this program against a feed and checks every answer."""
    package = Path(__file__).resolve().parents[3] / "pyclient"
    run = subprocess.run(
        [sys.executable, __file__, name, str(socket_path)],
        env=dict(os.environ, PYTHONPATH=str(package)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    answers: dict[str, str] = json.loads(run.stdout)
    assert answers.pop("store through a pointer") == "SIGSEGV"
    assert answers.pop("mmap of group") == "done", "its own group's page is a member's to write"
    for part in ("control", "feed_control", "payload"):
        assert answers.pop(f"reopening {part} as the feed's user") == "done", "as documented"
    assert len(answers) == (22 if os.geteuid() == 0 else 19)
    refusals = {"EACCES", "EPERM", "EBADF", "EINVAL", "EIO"}
    succeeded = {way: said for way, said in answers.items() if said not in refusals}
    assert succeeded == {}, str(succeeded)


def main() -> None:
    name, socket_path = sys.argv[1:]
    os.environ.pop("RINGFEED_SOCKET_DIR", None)
    answers = {}

    def store() -> None:
        batch = ringfeed.attach(name, "harm", socket_path=socket_path).next(30)
        array = next(iter(batch.values()))
        ctypes.memset(array.ctypes.data, 0xEE, array.nbytes)

    answers["store through a pointer"] = in_child(store)
    with ringfeed.attach(name, "harm", socket_path=socket_path) as feed:
        batch = feed.next(30)
        array = next(iter(batch.values()))
        address, size = feed._handle.payload()
        answers["mprotect of a batch"] = answer(lambda: mprotect(array.ctypes.data))
        answers["mremap and mprotect"] = answer(lambda: remap(array.ctypes.data))
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            answers["/proc/self/mem"] = answer(
                lambda: os.pwrite(memory.fileno(), b"harm", array.ctypes.data)
            )
        received = descriptors(socket_path, address)
        for part in ("control", "feed_control", "payload"):
            fd = received[part]
            length = os.fstat(fd).st_size
            ways: dict[str, Callable[[], object]] = {
                "mmap": lambda: mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_WRITE),
                "pwrite": lambda: os.pwrite(fd, b"harm", length - 4),
                "truncate": lambda: os.ftruncate(fd, 0),
                "grow": lambda: os.ftruncate(fd, 2 * length),
                "allocate": lambda: os.posix_fallocate(fd, 0, length),
            }
            answers[f"reopening {part} as the feed's user"] = answer(lambda: reopen(fd))
            if os.geteuid() == 0:
                answers[f"reopening {part} as another user"] = as_another_user(lambda: reopen(fd))
            for way, attempt in ways.items():
                answers[f"{way} of {part}"] = answer(attempt)
        # To see that refusals are the descriptors' doing, and not that of this program.
        group = received["group"]
        answers["mmap of group"] = answer(
            lambda: mmap.mmap(
                group, os.fstat(group).st_size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
            )
        )
        answers["truncate of group"] = answer(lambda: os.ftruncate(group, 0))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
