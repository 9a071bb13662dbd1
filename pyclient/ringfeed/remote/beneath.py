"""Files below a directory whose names come from outside: nothing leads out of it.

Names are taken step by step, each as an entry of the directory before it: no link is followed, and
".." is refused. (`openat2` with RESOLVE_BENEATH does that in one call, where a kernel has it and a
container lets it through; Python has no function for it.)
"""

from __future__ import annotations

import errno
import os
import stat

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def directory_beneath(top: str, name: str) -> tuple[int, str]:
    """The directory of the file `name` below `top`, made as far as it is not there.

    Args:
        top: The directory; it may be a link.
        name: A relative path.
    Returns:
        A descriptor of the directory, which the caller closes, and the last part of the name.
    Raises:
        NotADirectoryError: A file or a link is in the way.
        OSError: As the system says; EINVAL: no name of a file below `top`.
    """
    *steps, last = name.split("/")
    if {"", ".", ".."} & {*steps, last}:
        raise OSError(errno.EINVAL, "not the name of a file below a directory", name)
    fd = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in steps:
            try:
                inner = os.open(step, _DIRECTORY, dir_fd=fd)
            except FileNotFoundError:
                try:
                    os.mkdir(step, dir_fd=fd)
                except FileExistsError:
                    pass  # somebody else has made it
                inner = os.open(step, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return fd, last


def open_regular(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a regular file that somebody else may have replaced by something that is none.

    Raises:
        OSError: It is a link, a directory, a FIFO or a device; or as the system says.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return fd


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: As open_regular().
    """
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read()
