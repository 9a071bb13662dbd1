"""A terminal of its own, in tmux: what is typed into it, and what is on the screen then."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.feeds.feed_run import wait_until


# tmux does not always learn how a program has ended.
NOTE_STATUS = '"$@"; echo $? >"$0.new"; mv "$0.new" "$0"; exec sleep infinity'


def children_of(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in text.split()]


class Terminal:
    """A program in a server of tmux that nobody else uses."""

    def __init__(
        self,
        work: Path,
        words: list[str],
        environment: dict[str, str],
        columns: int = 80,
        rows: int = 24,
        **variables: str,
    ) -> None:
        """`variables` are set for the program alone: tmux would say another TERM."""
        self.socket = work / "tmux"
        self.ended = work / "ended"
        settings = work / "tmux.conf"
        settings.write_text("set -g status off\n")
        environment = {"LC_ALL": "C.UTF-8", **environment, "TERM": "xterm-256color"}
        environment.pop("TMUX", None)
        if variables:
            words = ["env", *(f"{name}={value}" for name, value in variables.items()), *words]
        words = ["sh", "-c", NOTE_STATUS, str(self.ended), *words]
        self.tmux("-f", str(settings), "new-session", "-d", "-x", str(columns), "-y", str(rows),
                  "-c", str(work), *words, env=environment)  # fmt: skip

    def tmux(self, *words: str, env: dict[str, str] | None = None) -> str:
        return subprocess.run(
            ["tmux", "-u", "-S", str(self.socket), *words],
            capture_output=True,
            text=True,
            check=True,
            env=env,
        ).stdout

    def type(self, text: str, *keys: str) -> None:
        """Text as it is, then keys by tmux's names for them."""
        if text:
            self.tmux("send-keys", "-l", text)
        if keys:
            self.tmux("send-keys", *keys)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def coloured(self) -> str:
        """The same with the control sequences that make it look as it does."""
        return self.tmux("capture-pane", "-p", "-e")

    def lines(self) -> list[str]:
        return [line for line in self.screen().splitlines() if line.strip()]

    def line(self) -> str:
        """The last line that is not empty."""
        lines = self.lines()
        return lines[-1].strip() if lines else ""

    def shows(self, *texts: str) -> str:
        """The screen when all of these are on it."""
        last = ""

        def there() -> str:
            nonlocal last
            last = self.screen()
            return last if all(text in last for text in texts) else ""

        try:
            screen: str = wait_until(there, "the screen")
        except AssertionError:
            missing = [text for text in texts if text not in last]
            raise AssertionError(f"{missing} should be on this screen:\n{last}") from None
        return screen

    def resize(self, columns: int, rows: int) -> None:
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def asked(self, what: str) -> str:
        """A variable of tmux's formats."""
        return self.tmux("display-message", "-p", f"#{{{what}}}").strip()

    def status(self) -> int:
        """The exit status of the program when it has ended; of a signal as a shell says it."""
        wait_until(self.ended.exists, "the program to end")
        return int(self.ended.read_text())

    def pid(self) -> int:
        """Of the program."""
        found = wait_until(lambda: children_of(int(self.asked("pane_pid"))), "the program")
        return int(found[0])

    def children(self) -> list[int]:
        """Processes that the program has started."""
        return children_of(self.pid())

    def close(self) -> None:
        subprocess.run(["tmux", "-S", str(self.socket), "kill-server"], capture_output=True)


def environment_of_a_person() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("RINGFEED_")}
