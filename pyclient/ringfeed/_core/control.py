"""Requests to a supervisor that are not about batches: a few fields of proto/control.proto.

Written and read by hand, so that Python's protobuf is needed only by those who pass messages.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import FeedDamaged, FeedIOError, FeedRefused
from .messages import (
    ConsumerGroupStatus,
    FeedStatus,
    LaneStatus,
    MetricsReply,
    MetricsRequest,
    Reply,
    Request,
    SnapshotInfo,
    SnapshotPlace,
    SnapshotRequest,
    SnapshotsReply,
    StageControlAnswer,
    StageControlCall,
    StageControlReply,
    StageStatus,
    StatusReply,
    StopRequest,
    TrainerStatus,
)

# A reply that is too long for a packet comes as a descriptor (supervisor/os/packet.h).
_IN_DESCRIPTOR = b"\x78\x01"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(field: int, value: int) -> bytes:
    """A varint field on the wire."""
    return _varint(field << 3) + _varint(value)


def fixed64_field(number: int, value: int) -> bytes:
    """A fixed64 field of a message."""
    return _varint(number << 3 | 1) + value.to_bytes(8, "little")


def double_field(field: int, value: float) -> bytes:
    """A double field on the wire."""
    return fixed64_field(field, int.from_bytes(struct.pack("<d", value), "little"))


def bytes_field(field: int, value: bytes) -> bytes:
    """A length-delimited field (message, string, bytes) on the wire."""
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number, and an int or the bytes.

    Raises:
        FeedDamaged: The bytes are no message.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        result = shift = 0
        while True:
            if at >= len(message) or shift > 63:
                raise FeedDamaged(f"a reply of {len(message)} bytes is damaged at byte {at}")
            byte = message[at]
            at += 1
            result |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return result

    while at < len(message):
        key = varint()
        wire = key & 7
        if wire == 0:
            yield key >> 3, varint()
            continue
        if wire not in (1, 2, 5):
            raise FeedDamaged(f"a reply of {len(message)} bytes is damaged at byte {at}")
        count = varint() if wire == 2 else (8 if wire == 1 else 4)
        if at + count > len(message):
            raise FeedDamaged(f"a reply of {len(message)} bytes is truncated at byte {at}")
        value = message[at : at + count]
        at += count
        yield key >> 3, value if wire == 2 else int.from_bytes(value, "little")


def _receive(connection: socket.socket) -> bytes:
    reply, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 8)
    try:
        if reply != _IN_DESCRIPTOR or len(descriptors) != 1:
            return reply
        return os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


# What would change something: if no answer comes, whoever asked is told what becomes of it.
_CHANGES = (Request.snapshot, Request.stage_control, Request.stop)
_LAST_WORD_S = 1.0


def _give_up(connection: socket.socket) -> bytes:
    """Withdraws a request (supervisor/control/changes.h); the answer, if there is one after all.

    Raises:
        TimeoutError: There is none. The text says whether the request was withdrawn.
    """
    connection.shutdown(socket.SHUT_WR)
    unread = fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))
    if int.from_bytes(unread, sys.byteorder) > 0:
        raise TimeoutError("timed out: the request is withdrawn, and nothing was changed")
    connection.settimeout(_LAST_WORD_S)
    try:
        return _receive(connection)
    except TimeoutError:
        raise TimeoutError(
            "timed out: the supervisor has the request, which is under way"
        ) from None


def _request(
    socket_path: str | os.PathLike[str], field: int, body: bytes, timeout_s: float | None
) -> bytes:
    """Sends one request; the serialized Reply.

    Raises:
        FeedIOError: Nobody is there, or no answer came within timeout_s. What would have changed
            something is withdrawn then, or under way; the text says which.
        FeedRefused: The supervisor says no.
    """
    message = number_field(Request.id, 1) + bytes_field(field, body)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(timeout_s)
            connection.connect(os.fspath(socket_path))
            connection.send(message)
            try:
                reply = _receive(connection)
            except TimeoutError:
                if field not in _CHANGES:
                    raise
                reply = _give_up(connection)
    except OSError as error:
        raise FeedIOError(f"no answer from the supervisor at {socket_path}: {error}") from error
    if not reply:
        raise FeedIOError(f"the supervisor at {socket_path} closed the connection")
    code, text = 0, ""
    for number, value in fields(reply):
        if number == Reply.error and isinstance(value, int):
            code = value
        if number == Reply.text and isinstance(value, bytes):
            text = value.decode(errors="replace")
    if code != 0:
        raise FeedRefused(text or f"the supervisor refused the request (error {code})")
    return reply


def _status(
    socket_path: str | os.PathLike[str], timeout_s: float
) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a StatusReply."""
    for number, body in fields(_request(socket_path, Request.status, b"", timeout_s)):
        if number == Reply.status and isinstance(body, bytes):
            yield from fields(body)


def waits_for(socket_path: str | os.PathLike[str], timeout_s: float = 0.5) -> str:
    """What a feed waits for, in its supervisor's words; "" if for nothing."""
    reason, progress = "", []
    for number, value in _status(socket_path, timeout_s):
        if number == StatusReply.reason and isinstance(value, bytes):
            reason = value.decode(errors="replace")
        if number == StatusReply.progress and isinstance(value, bytes):
            progress.append(value.decode(errors="replace"))
    return reason or "; ".join(progress)


def trainers(socket_path: str | os.PathLike[str], timeout_s: float = 0.5) -> list[tuple[str, int]]:
    """The members of a feed: each one's group and process."""
    return [(one.group, one.pid) for one in standing(socket_path, timeout_s).members]


class Lane(NamedTuple):
    """A lane of a feed."""

    name: str
    pid: int
    incarnation: int
    state: str  # "absent", "running", "starved", "blocked", "ended", "spare"
    records_out: int

    @property
    def sleeps(self) -> bool:
        """Until something comes, or there is room."""
        return self.state in ("starved", "blocked", "spare")


class Member(NamedTuple):
    """A trainer that has attached, and how many batches it has taken and given back."""

    group: str
    pid: int
    taken: int
    done: int


class Standing(NamedTuple):
    """How far a feed is."""

    published: int  # batches, of all outputs
    lanes: tuple[Lane, ...]
    members: tuple[Member, ...]
    waited_ns: tuple[int, ...]  # by each of them, for batches that were not there
    lags: tuple[tuple[str, int], ...]  # of each group: published batches that it has not finished


_LANE_STATES = ("absent", "running", "starved", "blocked", "ended", "spare")


def standing(socket_path: str | os.PathLike[str], timeout_s: float = 0.5) -> Standing:
    """How far a feed is, as its supervisor sees it.

    Raises:
        FeedIOError: Nobody is there, or no answer came within timeout_s.
        FeedRefused: The supervisor says no.
    """
    published, lanes, members, waited_ns, lags = 0, [], [], [], []
    for number, value in _status(socket_path, timeout_s):
        if not isinstance(value, bytes):
            continue
        if number == StatusReply.outputs:
            published += _number(dict(fields(value)), FeedStatus.batches_published)
        elif number == StatusReply.stages:
            of_lanes = [body for at, body in fields(value) if at == StageStatus.lanes]
            lanes += [_lane(dict(fields(body))) for body in of_lanes if isinstance(body, bytes)]
        elif number == StatusReply.trainers:
            one = dict(fields(value))
            at = (TrainerStatus.pid, TrainerStatus.taken, TrainerStatus.done)
            members.append(
                Member(_text(one, TrainerStatus.group), *(_number(one, field) for field in at))
            )
            waited_ns.append(_number(one, TrainerStatus.waited_ns))
        elif number == StatusReply.groups:
            group = dict(fields(value))
            name = _text(group, ConsumerGroupStatus.name)
            lags.append((name, _number(group, ConsumerGroupStatus.lag)))
    return Standing(published, tuple(lanes), tuple(members), tuple(waited_ns), tuple(lags))


def _lane(one: dict[int, int | bytes]) -> Lane:
    state = _number(one, LaneStatus.state)
    return Lane(
        _text(one, LaneStatus.name),
        _number(one, LaneStatus.pid),
        _number(one, LaneStatus.incarnation),
        _LANE_STATES[state] if state < len(_LANE_STATES) else "unknown",
        _number(one, LaneStatus.records_out),
    )


def _number(message: dict[int, int | bytes], field: int) -> int:
    value = message.get(field, 0)
    return value if isinstance(value, int) else 0


def _text(message: dict[int, int | bytes], field: int) -> str:
    value = message.get(field, b"")
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def stop(socket_path: str | os.PathLike[str], *, now: bool, timeout_s: float = 5.0) -> None:
    """Asks a supervisor to drain the feed, or to stop at once."""
    _request(socket_path, Request.stop, number_field(StopRequest.now, int(now)), timeout_s)


def find_socket(feed: str, socket_dir: str | os.PathLike[str] | None) -> Path:
    """The control socket of a feed, by the rule of rf_attach_options.socket_dir."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = (
        socket_dir,
        os.environ.get("RINGFEED_SOCKET_DIR") or None,
        Path(runtime, "ringfeed") if runtime else None,
    )
    directory = next((place for place in places if place is not None), "/run/ringfeed")
    return Path(directory, f"{feed}.sock")


def snapshot(
    socket_path: str | os.PathLike[str], directory: str, timeout_s: float | None
) -> dict[int, int]:
    """Has the feed save itself; the numbers of SnapshotReply by field."""
    body = bytes_field(SnapshotRequest.directory, directory.encode())
    for number, reply in fields(_request(socket_path, Request.snapshot, body, timeout_s)):
        if number == Reply.snapshot and isinstance(reply, bytes):
            return {field: value for field, value in fields(reply) if isinstance(value, int)}
    raise FeedDamaged("the supervisor's answer to a snapshot is not a valid reply")


def snapshots(
    socket_path: str | os.PathLike[str], timeout_s: float = 1.0
) -> tuple[list[dict[str, Any]], str]:
    """The snapshots of this run that are there, the oldest first: ``directory``, ``bytes``,
    ``newest_batch``, and ``places``, (group, output) to the group's next batch. And the feed's
    lineage, which names its batches if it can begin with any of them."""
    found = []
    lineage = ""
    for number, reply in fields(_request(socket_path, Request.snapshots, b"", timeout_s)):
        if number != Reply.snapshots or not isinstance(reply, bytes):
            continue
        for inner, info in fields(reply):
            if inner == SnapshotsReply.snapshots and isinstance(info, bytes):
                found.append(_snapshot_info(info))
            if inner == SnapshotsReply.lineage and isinstance(info, bytes):
                lineage = info.decode(errors="replace")
    return found, lineage


def _snapshot_info(message: bytes) -> dict[str, Any]:
    info: dict[str, Any] = {"directory": "", "bytes": 0, "newest_batch": 0, "places": {}}
    names = {
        SnapshotInfo.directory: "directory",
        SnapshotInfo.bytes: "bytes",
        SnapshotInfo.newest_batch: "newest_batch",
    }
    for number, value in fields(message):
        if number in names:
            info[names[number]] = os.fsdecode(value) if isinstance(value, bytes) else value
        if number == SnapshotInfo.places and isinstance(value, bytes):
            place = dict(fields(value))
            group, output = (
                bytes(place.get(field, b"")).decode()
                for field in (SnapshotPlace.group, SnapshotPlace.output)
            )
            info["places"][group, output] = place.get(SnapshotPlace.next_batch, 0)
    return info


def metrics(
    socket_path: str | os.PathLike[str], timeout_s: float = 5.0, *, describe: bool = False
) -> dict[str, Any]:
    """The supervisor's MetricsReply (proto/metrics.proto), by the names of its fields.

    describe: each stage has its ``counters`` too, with what is a gauge and what its capacity is.
    """
    asked = number_field(MetricsRequest.as_json, 1)
    if describe:
        asked += number_field(MetricsRequest.describe, 1)
    reply = _request(socket_path, Request.metrics, asked, timeout_s)
    for number, body in fields(reply):
        if number != Reply.metrics or not isinstance(body, bytes):
            continue
        for inner, value in fields(body):
            if inner == MetricsReply.json and isinstance(value, bytes):
                answer: dict[str, Any] = json.loads(value)
                return answer
    raise FeedDamaged("the supervisor's answer to a request for metrics is not a valid reply")


def stage_control(
    socket_path: str | os.PathLike[str],
    request: bytes,
    stage: str | None,
    timeout_s: float = 30.0,
    key: int | None = None,
) -> list[tuple[str, bytes]]:
    """Passes a serialized StageControlRequest on; (stage, serialized response) for each answer.

    A supervisor that goes away meanwhile is followed by the next one, which is asked the same: by
    its key the message takes effect once. So does one that several processes send with one key, 1
    to 2**64 - 1: a stage remembers its last 16 answers, and all get the same one. None: a key that
    nobody else has.
    """
    call = b"" if stage is None else bytes_field(StageControlCall.stage, stage.encode())
    call += bytes_field(StageControlCall.request, request)
    call += fixed64_field(StageControlCall.key, secrets.randbits(64) | 1 if key is None else key)
    end = time.monotonic() + timeout_s
    while True:
        try:
            reply = _request(socket_path, Request.stage_control, call, end - time.monotonic())
            break
        except FeedIOError:
            if time.monotonic() > end - 0.1:
                raise
            time.sleep(0.05)
    answers = []
    for number, body in fields(reply):
        if number != Reply.stage_control or not isinstance(body, bytes):
            continue
        for inner, answer in fields(body):
            if inner != StageControlReply.answers or not isinstance(answer, bytes):
                continue
            name, response = "", b""
            for part, value in fields(answer):
                if part == StageControlAnswer.stage and isinstance(value, bytes):
                    name = value.decode(errors="replace")
                if part == StageControlAnswer.response and isinstance(value, bytes):
                    response = value
            answers.append((name, response))
    return answers


def pass_on(
    socket_path: str | os.PathLike[str], message: Any, stage: str | None
) -> list[tuple[str, Any]]:
    """As stage_control(), with a message or with its bytes; the answers are of the same kind."""
    if not hasattr(message, "SerializeToString"):
        return list(stage_control(socket_path, bytes(message), stage))
    answers = stage_control(socket_path, message.SerializeToString(), stage)
    return [(name, _response_to(message, response)) for name, response in answers]


def _response_to(request: Any, data: bytes) -> Any:
    """The StageControlResponse from the file in which the request's class was defined."""
    from google.protobuf import message_factory

    descriptor = request.DESCRIPTOR.file.message_types_by_name["StageControlResponse"]
    if hasattr(message_factory, "GetMessageClass"):
        response = message_factory.GetMessageClass(descriptor)()
    else:
        response = message_factory.MessageFactory().GetPrototype(descriptor)()
    response.ParseFromString(data)
    return response
