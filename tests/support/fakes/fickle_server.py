"""An HTTP server on loopback that does to its objects what networks and stores do.

It knows ranges, ETags, Last-Modified and If-Match, counts what it is asked, and has a list of faults for each object:
each GET of the object takes the next one (`faults`; `head_faults` for HEAD), and without one all goes well. `always` is
for every request.

  Status(503)         answers with this status
  Cut(100)            sends 100 bytes of what was asked for, then resets the connection; `held`: at release()
  Truncate(100)       announces all of it and ends after 100 bytes, as if that were all
  WrongLength(5)      announces 5 bytes more than the object has, and sends what there is
  Longer(5)           announces and sends 5 bytes more than the object has
  Stall(100)          sends 100 bytes and then nothing until release()
  Change(100, bytes)  sends 100 bytes, puts other bytes in the object's place, and then sends the rest of the old ones
  WrongRange()        sends the range that begins one byte later than asked
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Status:
    status: int
    retry_after_s: float | None = None


@dataclass(frozen=True)
class Cut:
    after: int
    held: bool = False


@dataclass(frozen=True)
class Truncate:
    after: int


@dataclass(frozen=True)
class WrongLength:
    more: int


@dataclass(frozen=True)
class Longer:
    more: int


@dataclass(frozen=True)
class Stall:
    after: int


@dataclass(frozen=True)
class Change:
    after: int
    data: bytes


@dataclass(frozen=True)
class WrongRange:
    pass


Fault = Status | Cut | Truncate | WrongLength | Longer | Stall | Change | WrongRange


@dataclass
class Request:
    method: str
    path: str
    first_byte: int
    headers: dict[str, str]


@dataclass
class Stored:
    data: bytes
    changed_s: int = 1_700_000_000

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'


@dataclass
class FickleServer:
    ranges: bool = True
    etags: bool = True
    lengths: bool = True
    times: bool = True
    objects: dict[str, Stored] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    head_faults: dict[str, list[Fault]] = field(default_factory=dict)
    always: dict[str, Fault] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    sent_bytes: int = 0

    def __post_init__(self) -> None:
        self.mutex = threading.Lock()
        self.released = threading.Event()
        self.stalled = threading.Event()
        fickle = self

        class Handler(_Handler):
            server_of_test = fickle

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def put(self, name: str, data: bytes) -> str:
        """The URL of the object."""
        with self.mutex:
            before = self.objects.get(name)
            self.objects[name] = Stored(data, before.changed_s + 1 if before else 1_700_000_000)
        return f"{self.url}/{name}"

    def release(self) -> None:
        self.released.set()

    def gets(self, name: str) -> list[Request]:
        with self.mutex:
            return [r for r in self.requests if r.method == "GET" and r.path == f"/{name}"]

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_test: FickleServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:  # noqa: N802: the library's name
        self._answer()

    def do_GET(self) -> None:  # noqa: N802
        self._answer()

    def _plain(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _answer(self) -> None:
        here = self.server_of_test
        name = self.path.lstrip("/")
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first = int(asked[1]) if asked else 0
        with here.mutex:
            here.requests.append(Request(self.command, self.path, first, dict(self.headers)))
            stored = here.objects.get(name)
            waiting = (here.faults if self.command == "GET" else here.head_faults).get(name)
            fault = waiting.pop(0) if waiting else here.always.get(name)
        if name == "" or name.endswith("/"):
            links = "".join(f'<a href="/{one}">{one}</a>\n' for one in sorted(here.objects))
            return self._plain(200, {"Content-Type": "text/html"}, links.encode())
        if isinstance(fault, Status):
            extra = {}
            if fault.retry_after_s is not None:
                extra["Retry-After"] = str(fault.retry_after_s)
            return self._plain(fault.status, extra)
        if stored is None:
            return self._plain(404, {})
        wanted = self.headers.get("If-Match")
        if here.etags and wanted and wanted != stored.etag:
            return self._plain(412, {})
        data = stored.data
        begin, end = 0, len(data)
        ranged = here.ranges and asked is not None
        if ranged:
            begin = first + (1 if isinstance(fault, WrongRange) else 0)
            end = min(len(data), int(asked[2]) + 1) if asked and asked[2] else len(data)
            if begin >= len(data):
                return self._plain(416, {"Content-Range": f"bytes */{len(data)}"})
        body = data[begin:end]
        length = len(body)
        if isinstance(fault, Longer):
            body, length = body + bytes(fault.more), length + fault.more
        if isinstance(fault, WrongLength):
            length += fault.more
        self.send_response(206 if ranged else 200)
        if ranged:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        if here.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if here.etags:
            self.send_header("ETag", stored.etag)
        if here.times:
            self.send_header("Last-Modified", email.utils.formatdate(stored.changed_s, usegmt=True))
        if here.lengths:
            self.send_header("Content-Length", str(length))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(OSError):
                self._send(name, body, fault)

    def _send(self, name: str, body: bytes, fault: Fault | None) -> None:
        here = self.server_of_test
        after = getattr(fault, "after", len(body))
        # Before the other side has it, and may look.
        with here.mutex:
            here.sent_bytes += min(after, len(body))
        self.wfile.write(body[:after])
        self.wfile.flush()
        if isinstance(fault, Cut):
            if fault.held:
                here.stalled.set()
                here.released.wait()
            # Closed with bytes to linger for 0 s: the other side gets a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        if isinstance(fault, Truncate):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if isinstance(fault, WrongLength):
            self.close_connection = True
            return
        if isinstance(fault, Stall):
            here.stalled.set()
            here.released.wait()
        if isinstance(fault, Change):
            here.put(name, fault.data)
        self.wfile.write(body[after:])
        with here.mutex:
            here.sent_bytes += len(body[after:])


@contextlib.contextmanager
def serving(**settings: bool) -> Iterator[FickleServer]:
    """A server for the length of a block."""
    server = FickleServer(**settings)
    try:
        yield server
    finally:
        server.close()
