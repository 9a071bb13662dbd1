"""A machine that is ill: a shell, often in namespaces of its own, in which a fault is planted, and
in which `ringfeed doctor` and the commands that it prints are run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.feeds.feed_run import BIN

Finding = dict[str, Any]

# A user who is nobody else, so that processes of others do not count, nor those of tests beside this one.
STRANGER = 61234 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
MOUNTS = ("unshare", "--mount")
_END = "-- patient: "


class Patient:
    """A bash that takes one command after the other, and keeps its limits, mounts and variables."""

    def __init__(
        self,
        directory: Path,
        *,
        inside: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.user: int | None = None  # who runs the doctor, if not root
        self.program = str(BIN / "ringfeed")
        self._shell = subprocess.Popen(
            [*inside, "bash", "--norc", "--noprofile"],
            cwd=directory,
            env={
                **os.environ,
                "PATH": f"{BIN}:{os.environ['PATH']}",
                "BIN": str(BIN),
                "RINGFEED_PYTHON": os.environ.get("RINGFEED_PYTHON", sys.executable),
                "HOME": str(directory),
                "RINGFEED_SOCKET_DIR": str(directory / "sockets"),
                **(environment or {}),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
        )

    def attempt(self, command: str) -> tuple[int, str]:
        """The exit status of a command, and what it says."""
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n{_END}%d\\n' $?\n")
        self._shell.stdin.flush()
        said: list[str] = []
        for line in self._shell.stdout:
            if line.startswith(_END):
                return int(line.removeprefix(_END)), "".join(said)[:-1]
            said.append(line)
        raise AssertionError(f"the shell has ended in: {command}\n{''.join(said)}")

    def do(self, command: str) -> str:
        status, said = self.attempt(command)
        assert status == 0, f"{command}: exit status {status}\n{said}"
        return said

    def mend(self, command: str) -> None:
        """Types in what the doctor has printed. Whoever has sudo is root, and so is this shell."""
        self.do(re.sub(r"\bsudo ", "", command))

    def doctor(self, *words: str) -> list[Finding]:
        who = (
            f"setpriv --reuid {self.user} --regid {self.user} --clear-groups " if self.user else ""
        )
        # A slow machine is no fault that was planted.
        patience = "" if "--timeout" in words else "--timeout 120 "
        status, said = self.attempt(
            f"{who}{self.program} doctor --json {patience}{' '.join(words)}"
        )
        shown = json.loads(said)
        findings: list[Finding] = shown["findings"]
        for severity in ("wrong", "could_be_better", "not_known", "fine"):
            assert shown[severity] == sum(one["severity"] == severity for one in findings)
        assert shown["ok"] == (shown["wrong"] == 0)
        assert status == (0 if shown["ok"] else 1)
        return findings

    def close(self) -> None:
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.close()
        self._shell.wait(20)
        self._shell.stdout.close()


def found(findings: list[Finding], check: str, what: str) -> list[Finding]:
    """Those of a check whose sentence matches, and that are not fine."""
    return [
        one
        for one in findings
        if one["check"] == check and one["severity"] != "fine" and re.search(what, one["what"])
    ]


def can(*words: str) -> bool:
    """Whether a program can be started so: in a namespace, without a capability."""
    return subprocess.run([*words, "true"], capture_output=True).returncode == 0
