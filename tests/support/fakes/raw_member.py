"""A member of a consumer group without the client library: it holds what the supervisor gives to a
member, and does with it what it likes."""

from __future__ import annotations

import mmap
import os
import re
import socket
import struct
from pathlib import Path

from ringfeed._core import control

PAGE = 4096  # a group's page stands behind the header of its segment
NAMES = ("control", "feed_control", "group", "payload")  # the descriptors, in their order
MEMBERS, WORDS = 0x100, 0x800  # in the page
SKIP = 1  # ConsumerGroupConfig.Policy
GROUP, POLICY, MAX_HOLD, REJOIN_MS = 6, 11, 15, 16  # fields of AttachRequest


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(60)
    connection.connect(str(path))
    return connection


def ask(connection: socket.socket, body: int, message: bytes) -> tuple[bytes, list[int]]:
    """One request and its reply, with the descriptors that came."""
    connection.send(control.number_field(1, 1) + control.bytes_field(body, message))
    reply, fds, _, _ = socket.recv_fds(connection, 1 << 16, 8)
    return reply, fds


def attach_request(abi: int, layout: int, group: str, **numbers: int) -> bytes:
    request = (
        control.number_field(1, abi)
        + control.fixed64_field(3, layout)
        + control.number_field(4, os.getpid())
        + control.bytes_field(5, b"raw")
        + control.bytes_field(GROUP, group.encode())
    )
    fields = {"policy": POLICY, "max_hold": MAX_HOLD, "rejoin_ms": REJOIN_MS}
    for name, value in numbers.items():
        request += control.number_field(fields[name], value)
    return request


def versions(connection: socket.socket) -> tuple[int, int]:
    """ABI and layout of the feed, as it names them to a client of another."""
    reply, _ = ask(connection, 2, attach_request(0, 0, "nobody"))
    found = re.search(rb"has ABI (\d+)\.\d+ with layout (0x[0-9a-f]+),", reply)
    assert found is not None, reply
    return int(found[1]), int(found[2], 16)


class RawMember:
    """This process as a member of the group. `close()` leaves."""

    def __init__(self, path: Path, group: str, **numbers: int) -> None:
        self.path = path
        self.connection = connect(path)
        reply, fds = ask(
            self.connection, 2, attach_request(*versions(self.connection), group, **numbers)
        )
        assert len(fds) == len(NAMES), reply
        attached = next(value for field, value in control.fields(reply) if field == 4)
        assert isinstance(attached, bytes)
        self.place = dict(control.fields(attached))
        self.fds = dict(zip(NAMES, fds))
        self.memory = mmap.mmap(self.fds["group"], 2 * PAGE)
        self.epoch = self.get(16, "<Q")

    def put(self, offset: int, value: bytes) -> None:
        """Writes to the group's page."""
        self.memory[PAGE + offset : PAGE + offset + len(value)] = value

    def get(self, offset: int, form: str) -> int:
        return int(struct.unpack_from(form, self.memory, PAGE + offset)[0])

    def rejoin(self) -> None:
        """Says to the next supervisor who it is."""
        self.connection.close()
        self.connection = connect(self.path)
        feed_id, group, member = (self.place[field] for field in (4, 6, 7))
        assert isinstance(feed_id, bytes) and isinstance(group, int) and isinstance(member, int)
        request = (
            control.bytes_field(1, feed_id)
            + control.number_field(2, group)
            + control.number_field(3, member)
            + control.fixed64_field(4, self.epoch)
        )
        ask(self.connection, 8, request)

    def leave(self) -> None:
        """Says goodbye, and keeps all that it has."""
        ask(self.connection, 3, b"")

    def close(self) -> None:
        self.memory.close()
        for fd in self.fds.values():
            os.close(fd)
        self.connection.close()
