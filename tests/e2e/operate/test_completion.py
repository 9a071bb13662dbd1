"""Completion: what the hidden verb answers, and bash, zsh and fish at a terminal beside a feed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import BIN, FeedRun, stop, wait_until
from tests.support.feeds.scenes import kill_supervisor
from tests.support.feeds.shell import WORDS, Shell
from tests.support.feeds.terminal import environment_of_a_person

STAGES = ["provider", "loader", "pool", "unpacker", "sampler", "tensors"]


def answer(*words: str, shell: str = "zsh", **environment: str) -> tuple[str, dict[str, str]]:
    """What files are good for, and the words with what they are."""

    def said() -> str:
        done = subprocess.run(
            [BIN / "ringfeed", "__complete", shell, *words],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return done.stdout

    # It gives up after 0.9 s without a word: a machine may be that busy.
    files, *lines = wait_until(said, "an answer").splitlines()
    return files, dict(line.split("\t") for line in lines)


def helped(*words: str) -> list[str]:
    return subprocess.run(
        [BIN / "ringfeed", *words, "--help"], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def verbs() -> list[str]:
    lines = helped()
    found = [re.match(r"  (\S+)", line) for line in lines[lines.index("Subcommands:") + 1 :]]
    return [one[1] for one in found if one]


@pytest.mark.parametrize("verb", verbs())
def test_every_option_of_help_is_offered(verb: str) -> None:
    assert verb in answer("")[1]
    listed = [line for line in helped(verb) if re.match(r"  -", line)]
    names = {name for line in listed for name in re.findall(r"(?:^  |,)(--?[\w-]+)", line)}
    assert "--help" in names
    assert names == set(answer(verb, "-")[1])


def test_names_come_from_the_feed(run: FeedRun, tmp_path: Path) -> None:
    place = {"RINGFEED_SOCKET_DIR": str(run.sockets)}
    for verb in ("status", "stop", "metrics"):
        # A feed has 0.6 s for its answer, so that nobody waits long at a prompt.
        wait_until(lambda: "lc0" in answer(verb, "", **place)[1], "the feed's name")  # noqa: B023
    wait_until(lambda: list(answer("scale", "lc0", "", **place)[1]) == STAGES, "its stages")
    kinds = wait_until(lambda: answer("scale", "lc0", "", **place)[1], "its stages")
    assert kinds["pool"] == "shuffling_chunk_pool"
    groups = wait_until(lambda: answer("restart", "lc0", "", **place)[1], "its groups")
    assert set(groups) == set(run.all_workers())
    # Found where the line says.
    elsewhere = {"RINGFEED_SOCKET_DIR": str(tmp_path / "nowhere")}
    there = ("--socket-dir", str(run.sockets))
    assert answer("status", "", **elsewhere)[1] == {}
    wait_until(lambda: "lc0" in answer("status", *there, "", **elsewhere)[1], "its name")
    wait_until(
        lambda: list(answer("scale", *there, "lc0", "", **elsewhere)[1]) == STAGES, "its stages"
    )
    # bash takes --stage=x apart.
    words = ("control", "lc0", "--stage", "=", "")
    wait_until(lambda: list(answer(*words, shell="bash", **place)[1]) == STAGES, "its stages")


def test_names_come_from_the_configuration(make_run: Callable[..., FeedRun]) -> None:
    run = make_run()
    assert list(answer("try", str(run.config), "--stage", "")[1]) == STAGES
    assert answer("try", "no-such-file", "--stage", "") == ("none", {})
    run.config.write_text('stages { name: "a b;false" } stages { name: "good" } stages {')
    assert answer("try", str(run.config), "--stage", "")[1].keys() <= {"good"}


def test_kinds_of_words() -> None:
    assert answer("completion", "")[1].keys() == {"bash", "zsh", "fish"}
    assert answer("init", "") == (
        "directories",
        {"lc0": "", "chess": "", "fairseq": "", "samples": ""},
    )
    assert answer("run", "")[0] == "configs" and answer("inspect", "")[0] == "files"
    assert answer("run", "--resume", "")[0] == "directories"
    assert answer("scale", "lc0", "pool", "") == ("none", {})
    assert len(answer("stages", "")[1]) > 20
    assert set(answer("manual", "")[1]) == set(verbs())


def has_a_socket(pid: int) -> bool:
    try:
        links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except FileNotFoundError:  # one was closed meanwhile
        return False
    return any(link.startswith("socket:") for link in links)


def test_a_supervisor_that_does_not_answer_holds_nobody_up(run: FeedRun) -> None:
    """There is an answer while it sleeps, and it is not waited for as long as other verbs would."""
    assert run.process is not None
    place = {"RINGFEED_SOCKET_DIR": str(run.sockets)}
    stop(run.process.pid)
    # It starts long before the completion, and waits as long as it may.
    patient = run.command_later("status", "lc0")
    try:
        wait_until(lambda: has_a_socket(patient.pid), "ringfeed status to ask")
        assert "lc0" in answer("status", "", **place)[1]
        assert answer("scale", "lc0", "", **place) == ("none", {})
        assert patient.poll() is None
    finally:
        run.process.send_signal(signal.SIGCONT)
        patient.communicate(timeout=60)


def test_a_feed_without_a_supervisor_is_offered(run: FeedRun) -> None:
    kill_supervisor(run)
    found = answer("stop", "", RINGFEED_SOCKET_DIR=str(run.sockets))[1]
    assert found == {"lc0": "feed without a supervisor"}


def test_a_shell_that_is_not_known_is_a_usage_error() -> None:
    done = subprocess.run(
        [BIN / "ringfeed", "completion", "ksh"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "bash, zsh or fish" in done.stderr and done.stdout == ""


@pytest.fixture(params=list(WORDS))
def shell(request: pytest.FixtureRequest, run: FeedRun, tmp_path: Path) -> Iterator[Shell]:
    environment = {**environment_of_a_person(), "RINGFEED_SOCKET_DIR": str(run.sockets)}
    found = Shell(request.param, BIN / "ringfeed", tmp_path, environment)
    yield found
    found.close()


def test_a_person_completes_words(shell: Shell, run: FeedRun) -> None:
    shell.completed("ringfeed stat", "ringfeed status")
    shell.completed("ringfeed status lc", "ringfeed status lc0")
    shell.offered("ringfeed scale lc0 ", *STAGES)
    shell.offered("ringfeed restart lc0 ", *run.all_workers())
    shell.completed("ringfeed scale lc0 unp", "ringfeed scale lc0 unpacker")
    shell.offered("ringfeed run --", "--set", "--fresh", "--resume", "--socket-dir")
    shell.completed("ringfeed stop lc0 --no", "ringfeed stop lc0 --now")
    shell.completed("ringfeed control lc0 --stage=samp", "ringfeed control lc0 --stage=sampler")
    shell.completed("ringfeed completion z", "ringfeed completion zsh")


def test_a_person_completes_files(shell: Shell) -> None:
    (shell.home / "mine.textproto").write_text("")
    (shell.home / "mine.log").write_text("")
    (shell.home / "taken").mkdir()
    (shell.home / "with space").mkdir()
    (shell.home / "with space" / "a.gz").write_text("")
    shell.completed("ringfeed run mi", "ringfeed run mine.textproto")
    shell.completed("ringfeed inspect mine.l", "ringfeed inspect mine.log")
    shell.completed("ringfeed run --resume ta", "ringfeed run --resume taken/")
    shell.completed("ringfeed run --resume=ta", "ringfeed run --resume=taken/")
    quoted = "ringfeed inspect with\\ space/a.gz"
    shell.completed("ringfeed inspect with\\ space/a", quoted)
    wait_until(lambda: shell.typed() == "", "the line to be empty")
