"""A shell at a terminal of its own: what a person types, and what is on the screen then."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.feeds.feed_run import wait_until
from tests.support.feeds.terminal import Terminal

PROMPT = "ready$ "
COLUMNS = 100
ROWS = 50
WORDS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
# The prompt, and what the script needs.
BEGIN = {
    "bash": f"PS1='{PROMPT}'; bind 'set bell-style none'; bind 'set show-all-if-ambiguous on'; bind 'set page-completions off'",
    "zsh": f"PS1='{PROMPT}'; PS2=; unsetopt beep menu_complete auto_menu; autoload -Uz compinit; compinit -D -u",
    "fish": f"function fish_prompt; printf '{PROMPT}'; end; function fish_greeting; end; "
    "function fish_right_prompt; end; set -g fish_autosuggestion_enabled 0",
}  # fmt: skip


class Shell(Terminal):
    """bash, zsh or fish, with the completion of `program` loaded."""

    def __init__(self, name: str, program: Path, work: Path, environment: dict[str, str]) -> None:
        home = work / "home"
        home.mkdir()
        (home / "bin").mkdir()
        (home / "bin" / "ringfeed").symlink_to(program)
        environment = {**environment, "HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin"}
        super().__init__(home, WORDS[name], environment, COLUMNS, ROWS)
        self.home = home
        wait_until(lambda: self.screen().strip(), f"{name} to start")
        # As files, so that no line is longer than the screen.
        begin = home / "begin"
        script = subprocess.run([program, "completion", name], capture_output=True, check=True)
        begin.write_bytes(BEGIN[name].encode() + b"\n" + script.stdout)
        self.type(f"source {begin}", "Enter")
        wait_until(lambda: self.line() == PROMPT.strip(), f"the prompt of {name}")
        self.type("clear", "Enter")
        wait_until(lambda: self.screen().strip() == PROMPT.strip(), "a clear screen")

    def typed(self) -> str:
        """What stands behind the last prompt."""
        found = [one for one in self.screen().splitlines() if one.startswith(PROMPT.strip())]
        return found[-1].removeprefix(PROMPT.strip()).strip() if found else ""

    def clear(self) -> None:
        # Not by C-c: of a shell that is still drawing it may take what comes behind it.
        self.type("", "C-u")
        self.type("clear", "Enter")
        self.seen(lambda: self.screen().strip() == PROMPT.strip(), "a clear screen")

    def offered(self, text: str, *expected: str) -> str:
        """The screen when, behind this text and a tab, all of these are on it."""

        def shown() -> str:
            screen = self.screen()
            words = screen.replace(text, "", 1).split()
            return screen if all(any(one in word for word in words) for one in expected) else ""

        return str(self.tabbed(text, shown, f"{expected} behind '{text}'"))

    def completed(self, text: str, wanted: str) -> None:
        """A tab makes this line of that text."""
        self.tabbed(text, lambda: self.typed() == wanted, f"'{text}' to become '{wanted}'")

    def tabbed(self, text: str, condition: Callable[[], Any], what: str) -> Any:
        """Types it and a tab, once more where no answer came: nobody waits long for one at a prompt."""
        for patience_s in (10, 20, 40, 80):
            self.type(text, "Tab")
            try:
                found = wait_until(condition, what, patience_s)
            except AssertionError as error:
                last = AssertionError(f"{error}:\n{self.screen()}")
                self.clear()
            else:
                self.clear()
                return found
        raise last

    def seen(self, condition: Callable[[], Any], what: str) -> Any:
        try:
            return wait_until(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.screen()}") from None
