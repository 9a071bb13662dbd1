"""A warm parent: has imported what a stage's processes need, and forks them on request.

It keeps no threads and has none of the feed's memory. Its orders come as packets over a socket:
the word ``fork`` with the descriptors of a new process. It answers with the process's number. The
end of the socket is its own.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Callable
from os import _exit  # as it was: what a stage calls says where (exits.py)
from typing import NoReturn

from . import objects


def serve(fd: int, spec: objects.Spec, run: Callable[[int], int]) -> int:
    """Serves until the supervisor ends. `run` is what a new process does with its setup socket."""
    link = socket.socket(fileno=fd)
    stage = objects.find(spec)
    if getattr(stage, "__ringfeed_start__", "fork") == "spawn":
        link.send(b'cannot fork its object says start = "spawn"')
        return 0
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate()[1:])
        link.send(f"cannot fork importing it has started threads ({names})".encode()[:1000])
        return 0
    gc.collect()
    # Collections in the children then leave the pages of these objects alone, which are shared.
    gc.freeze()
    link.send(b"ready")
    while True:
        try:
            order, fds, _, _ = socket.recv_fds(link, 64, 8)
        except InterruptedError:
            continue
        if not order:
            return 0
        if order != b"fork" or len(fds) < 2:
            link.send(b"error unknown order")
        else:
            try:
                link.send(b"pid %d" % _forked(fds, link, run))
            except OSError as error:
                link.send(f"error {error}".encode())
        for one in fds:
            os.close(one)


def _forked(fds: list[int], link: socket.socket, run: Callable[[int], int]) -> int:
    """Number of a new process, which is nobody's child here: its parent has ended."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        # Its only work: to end, so that the new process goes to the supervisor.
        try:
            child = os.fork()
        except OSError:
            os._exit(1)
        if child == 0:
            _become_worker(fds, link, run)
        os.write(write, b"%d" % child)
        os._exit(0)
    os.close(write)
    try:
        said = os.read(read, 32)
        os.waitpid(between, 0)
    finally:
        os.close(read)
    if not said:
        raise OSError("the system provides no process")
    return int(said)


def _become_worker(fds: list[int], link: socket.socket, run: Callable[[int], int]) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)
        link.close()
        setup, log, *lock = fds
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        # The lock shows that this process lives: it stays open, and is nothing for its children.
        for one in (setup, *lock):
            os.set_inheritable(one, False)
        status = run(setup)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        _exit(status)
