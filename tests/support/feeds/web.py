"""ringfeed-web beside a feed of a test, and HTTP by hand."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.support.feeds.feed_run import WAIT_S, FeedRun


class Web:
    """One `ringfeed web`, at a port of its own."""

    def __init__(self, run: FeedRun, *words: str, port: int = 0, **options: Any) -> None:
        self.log = run.work / "web.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(run.program), "web", "--listen", f"127.0.0.1:{port}", *words],
                env=run.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                **options,
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip().rstrip("/")
        assert self.url, self.log.read_text()
        self.port = int(self.url.rpartition(":")[2])

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, str]:
        """Status, header and body of an answer."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            link.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                link.putheader(name.replace("_", "-"), value)
            link.endheaders()
            answer = link.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            link.close()

    def json(self, path: str, **headers: str) -> Any:
        """A good answer as an object."""
        status, _, body = self.get(path, **headers)
        assert status == 200, body
        return json.loads(body)

    def connect(self) -> socket.socket:
        """A connection that has said nothing."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)

    def cpu_s(self) -> float:
        """Processor time that it has had, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
