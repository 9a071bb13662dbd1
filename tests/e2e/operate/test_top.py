"""ringfeed top at a terminal (tmux), over real feeds: what is on the screen, keys, windows of other
sizes, feeds that die, end and begin meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import BIN, FeedRun, runs, stop, wait_until
from tests.support.feeds.scenes import kill_supervisor
from tests.support.feeds.terminal import Terminal, environment_of_a_person

MakeRun = Callable[..., FeedRun]
Open = Callable[..., Terminal]
STAGES = ["provider", "loader", "pool", "unpacker", "sampler", "tensors"]
# Little of each game is taken, so that reading them is slower than any trainer.
STARVING = pytest.mark.parametrize("run", [{"rate": 0.01}], indirect=True, ids=["starving"])


@pytest.fixture
def show(tmp_path: Path) -> Iterator[Open]:
    """Opens terminals with `ringfeed top` in them, for feeds of this run's directory."""
    made: list[Terminal] = []

    def start(run: FeedRun, *words: str, **options: object) -> Terminal:
        place = tmp_path / f"terminal{len(made)}"
        place.mkdir()
        environment = {**environment_of_a_person(), "RINGFEED_SOCKET_DIR": str(run.sockets)}
        for name in ("NO_COLOR", "COLUMNS"):
            environment.pop(name, None)
        program = [str(BIN / "ringfeed"), "top", *words]
        made.append(Terminal(place, program, environment, **options))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


def order(terminal: Terminal) -> list[str]:
    """The stages as they stand in the table."""
    found = [re.match(r"(?:▲| ) (\w+) +\d+(?:/\d+)? +[\d.,-]", line) for line in terminal.lines()]
    return [one[1] for one in found if one]


def is_whole(terminal: Terminal, columns: int, rows: int) -> bool:
    """Nothing of an earlier picture is left, and nothing is missing."""
    lines = terminal.screen().split("\n")[:rows]
    lines += [""] * (rows - len(lines))
    return (
        lines[0].startswith(" lc0  running for ")
        and lines[-1].startswith("  q quit")
        and [line.startswith(" lc0  ") for line in lines].count(True) == 1
        and [line.startswith("  q quit") for line in lines].count(True) == 1
        and [" stage  " in line and "out/s" in line for line in lines].count(True) == 1
        and re.search(r"\d\d:\d\d:\d\d$", lines[0]) is not None
        and len(lines[0]) == columns - 1
        and all(len(line) <= columns for line in lines)
    )


@contextlib.contextmanager
def running(run: FeedRun, script: Path) -> Iterator[None]:
    """A trainer of its own."""
    process = subprocess.Popen([sys.executable, str(script)], env=run.environment)
    try:
        yield
    finally:
        process.kill()
        process.wait()


# ---- What a person sees


@STARVING
@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=str)
def test_who_waits_and_for_whom(run: FeedRun, show: Open, size: tuple[int, int]) -> None:
    trainer = run.trainer(positions=0)
    terminal = show(run, columns=size[0], rows=size[1])
    screen = terminal.shows("TRAINERS WAIT for", "is the bottleneck", "trainer.py")
    # Above the stages; below what the feed waits for, if it does just then.
    above = screen[: screen.index("busy█")].split("\n")[3:]
    assert any(line.startswith(" ▲ TRAINERS WAIT for") for line in above), screen
    terminal.shows("running for", "batches/s", "1 trainer", "0 deaths", *STAGES)
    terminal.shows(str(trainer.process.pid), "busy█", "starv░", "block▒", "queue", "behind")
    assert is_whole(terminal, *size)
    if size[0] == 200:
        terminal.shows("shuffling_chunk_pool", str(run.config), "the last minute", "counters")
        terminal.shows(*(str(pid) for pid in run.all_workers().values()))


def test_trainers_that_do_not_wait(run: FeedRun, show: Open) -> None:
    terminal = show(run)
    terminal.shows("○ no trainer is attached", "6/6 slots")
    run.trainer_after(1, positions=0, pause_ms=300)
    terminal.shows("● trainers do not wait: batches wait for them", "has come")


def test_why_says_what_the_verb_says(run: FeedRun, show: Open) -> None:
    terminal = show(run)
    terminal.shows("no trainer is attached")
    terminal.type("w")
    terminal.shows("% of", "processors: ", "Esc back", *STAGES)

    def says_the_same() -> bool:
        told = run.command("why", "lc0").stdout.split("\n")[0]
        words = re.split(r" \d", told)[0]  # not the numbers, which change
        return len(words) > 20 and words in " ".join(terminal.screen().split())

    wait_until(says_the_same, "the sentence of ringfeed why")
    terminal.type("w")
    terminal.shows("what has happened")


def test_sorted_by_any_column(run: FeedRun, show: Open) -> None:
    terminal = show(run, columns=200, rows=50)
    terminal.shows(*STAGES)
    names = [
        re.findall(r"^(?:▲| ) (\w+) +\w+_\w+ ", line) for line in terminal.screen().split("\n")
    ]
    assert [one[0] for one in names if one] == STAGES

    def sorted_now() -> list[str]:
        found = [re.match(r"(?:▲| ) (\w+) +\w+_\w+ ", line) for line in terminal.lines()]
        return [one[1] for one in found if one]

    terminal.type(">")
    wait_until(lambda: sorted_now() == sorted(STAGES), "stages by name")
    terminal.type("r")
    wait_until(lambda: sorted_now() == sorted(STAGES, reverse=True), "the order to turn")
    terminal.type("r>")  # by lanes: the pool has one more than the others
    wait_until(lambda: sorted_now()[:1] == ["pool"], "stages by lanes")
    terminal.shows("lanes▾")
    terminal.type(">>")
    terminal.shows("out/s▾")
    terminal.type("<<<<")
    wait_until(lambda: sorted_now() == STAGES, "the order of the pipeline")


def test_a_stage_is_chosen(run: FeedRun, show: Open) -> None:
    terminal = show(run)
    terminal.shows(*STAGES)
    terminal.type("", "Down")
    terminal.shows("stage provider · file_path_provider · 1 lane", "Enter details")
    terminal.type("", "Down", "Down")
    terminal.shows("stage pool · shuffling_chunk_pool · 2 lanes")
    terminal.type("", "Enter")
    terminal.shows("pool.read.0", "counters", "chunks in window", "Esc back")
    terminal.type("", "Escape")
    terminal.shows("stage pool ·", "Enter details")
    terminal.type("", "Escape")
    terminal.shows("what has happened")
    # Keys that mean nothing, and a sequence that no key sends.
    before = run.all_workers()
    terminal.type("kxXyz0%\x1b[99;99~")
    terminal.type("?")
    terminal.shows("keys and columns", "nothing here changes a feed")
    assert run.status() is not None and run.all_workers() == before


def test_more_lanes_than_a_screen_has_rows(make_run: MakeRun, show: Open) -> None:
    run = make_run(epochs=0, loaders=8, readers=16, unpackers=8, generators=8, slots=16).start()
    wait_until(lambda: (run.status() or {}).get("state") == "RUNNING", "the feed to run")
    terminal = show(run)
    terminal.shows(*STAGES)
    terminal.type("", "Down", "Down", "Down", "Enter")
    terminal.shows("stage pool · shuffling_chunk_pool · 17 lanes", "pool.read.0")
    assert "chunks in window" not in terminal.screen()
    terminal.type("", "End")
    terminal.shows("chunks in window")
    assert "stage pool ·" not in terminal.screen()
    terminal.type("", "Home")
    terminal.shows("stage pool ·")


def test_three_feeds(make_run: MakeRun, show: Open) -> None:
    run = make_run(epochs=0).start()
    others = [make_run(epochs=0, feed=name) for name in ("valid", "warm-up")]
    for other in others:
        other.environment = run.environment
        other.start()
    for one in (run, *others):
        wait_until(lambda one=one: (one.status() or {}).get("state") == "RUNNING", "to run")
    terminal = show(run)
    terminal.shows("feeds of this machine", "lc0", "valid", "warm-up", "what limits it")
    terminal.type("", "Down", "Enter")
    terminal.shows(" valid  running", "feed 2 of 3")
    terminal.type("n")
    terminal.shows(" warm-up  running", "feed 3 of 3")
    terminal.type("n")
    terminal.shows(" lc0  running", "feed 1 of 3")
    terminal.type("", "BTab")
    terminal.shows(" warm-up  running")
    terminal.type("f")
    terminal.shows("feeds of this machine")
    assert others[1].stop(signal.SIGQUIT) is not None
    terminal.shows("warm-up   ended")
    done = run.command("top", "--once", "--json")
    feeds = [json.loads(line) for line in done.stdout.splitlines()]
    assert [feed["feed"] for feed in feeds] == ["lc0", "valid"]
    assert feeds[0]["status"]["stages"] and feeds[0]["metrics"]["windows"]


# ---- While it is open


def test_the_window_gets_another_size(run: FeedRun, show: Open) -> None:
    terminal = show(run)
    terminal.shows(*STAGES)
    for columns, rows in ((40, 10), (200, 60), (80, 24), (60, 16), (132, 43), (40, 10), (80, 24)):
        terminal.resize(columns, rows)
        if columns == 40:  # without a clock
            terminal.shows(" lc0  running", "q quit", "out/s")
        else:
            wait_until(
                lambda at=(columns, rows): is_whole(terminal, *at), f"a whole {columns} x {rows}"
            )
    terminal.resize(18, 3)
    terminal.shows("ringfeed top needs")
    chance = random.Random(5)
    for _ in range(40):
        terminal.resize(chance.randint(2, 250), chance.randint(2, 70))
    terminal.resize(80, 24)
    wait_until(lambda: is_whole(terminal, 80, 24), "a whole picture after many sizes")


def test_a_stage_dies(run: FeedRun, show: Open) -> None:
    terminal = show(run)
    terminal.shows("0 deaths")
    before = run.all_workers()
    [group] = [name for name in before if "unpacker" in name]
    os.kill(before[group], signal.SIGKILL)
    terminal.shows("1 death", "has died")
    terminal.shows("running for")


def test_the_feed_ends_and_another_begins(run: FeedRun, show: Open) -> None:
    terminal = show(run, "lc0")
    terminal.shows("running for")
    run.stop(signal.SIGQUIT)
    terminal.shows("lc0  ended", "as it was", "looking for it", "■ the feed is over", *STAGES)
    run.start()
    terminal.shows("running for", "another supervisor serves the feed")


def test_a_supervisor_dies_and_is_replaced(run: FeedRun, show: Open) -> None:
    terminal = show(run)
    terminal.shows("running for")
    kill_supervisor(run)
    terminal.shows("without a supervisor", "its workers go on", "takes it over")
    run.start()
    terminal.shows("running for", "another supervisor serves the feed")


def test_one_that_is_begun_beside_an_orphan(run: FeedRun, show: Open) -> None:
    kill_supervisor(run)
    terminal = show(run)
    terminal.shows("without a supervisor")
    done = run.command("top", "--once")
    assert done.returncode == 5 and "takes it over" in done.stderr and done.stdout == ""


def test_a_supervisor_that_does_not_answer(run: FeedRun, show: Open) -> None:
    terminal = show(run)
    terminal.shows("running for")
    assert run.process is not None
    stop(run.process.pid)
    try:
        terminal.shows("does not answer", "has not answered within 2 s")
        terminal.type("?")
        terminal.shows("keys and columns")
        done = run.command("top", "--once")
        assert done.returncode == 1 and "has not answered" in done.stderr, done
    finally:
        run.process.send_signal(signal.SIGCONT)
    terminal.type("?")
    terminal.shows("running for", "answers again")


# ---- Terminals


def test_names_put_nothing_on_the_screen_but_themselves(
    make_run: MakeRun, games: object, tmp_path: Path, show: Open
) -> None:
    evil = "evil\x1b]0;owned\x07\x1b[2J\u009b31m\u202eabc\n"
    data = tmp_path / f"data{evil}"
    data.symlink_to(games.directory)  # type: ignore[attr-defined]
    written = "".join(f"\\{byte:03o}" for byte in os.fsencode(data))
    run = make_run(directory=written, epochs=0).start()  # type: ignore[arg-type]
    wait_until(lambda: (run.status() or {}).get("state") == "RUNNING", "the feed to run")
    script = tmp_path / f"t{evil}.py"
    script.write_text(
        "import ringfeed\nwith ringfeed.attach('lc0', timeout_s=60) as feed:\n"
        "    for batch in feed: pass\n"
    )
    terminal = show(run, columns=200, rows=60)
    log = tmp_path / "written"
    terminal.tmux("pipe-pane", "-O", f"cat > '{log}'")
    with running(run, script):
        terminal.shows(*STAGES)  # before that there is nothing to choose
        terminal.type("", "Down")
        terminal.shows("\\x1b]0;owned", "stage provider", "tevil\\x1b")
        for key, text in (
            ("Enter", "scroll"),
            ("Escape", "Enter details"),
            ("w", "% of"),
            ("f", "what limits it"),
            ("f", "stage provider"),
        ):
            terminal.type("", key)
            terminal.shows(text)
    assert "owned" not in terminal.asked("pane_title")
    raw = log.read_bytes()
    assert b"\x1b]0;owned" not in raw and "\u009b".encode() not in raw
    assert "\u202e".encode() not in raw and b"\x07" not in raw
    once = run.command("top", "--once", env={**run.environment, "LC_ALL": "C.UTF-8"})
    assert once.returncode == 0 and not re.search(
        r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", once.stdout
    )


@pytest.mark.parametrize("end", ["q", "C-c", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_the_terminal_is_as_it_was(run: FeedRun, shell: Terminal, end: str) -> None:
    before = settings(shell)
    shell.type("echo first words", "Enter")
    shell.type("ringfeed top", "Enter")
    shell.shows("running for")
    assert shell.asked("alternate_on") == "1"
    if end.startswith("SIG"):
        os.kill(shell.children()[0], getattr(signal, end))
    else:
        shell.type("", end)
    shell.shows("first words", "ready$ ringfeed top")
    shell.type("echo status $?", "Enter")
    status = {"SIGTERM": 143, "SIGHUP": 129, "SIGQUIT": 131}.get(end, 0)
    shell.shows(f"status {status}\n")
    assert shell.asked("alternate_on") == "0" and shell.asked("cursor_flag") == "1"
    assert settings(shell) == before


def test_it_is_suspended(run: FeedRun, shell: Terminal) -> None:
    before = settings(shell)
    shell.type("ringfeed top", "Enter")
    shell.shows("running for")
    shell.type("", "C-z")
    shell.shows("Stopped")
    assert settings(shell) == before and shell.asked("alternate_on") == "0"
    shell.type("fg", "Enter")
    shell.shows("running for")
    shell.type("?")
    shell.shows("keys and columns")
    # In the background it sleeps on, and draws nothing.
    shell.type("", "C-z")
    shell.shows("Stopped")
    shell.type("clear; bg; wait -n; echo stopped again", "Enter")
    shell.shows("stopped again\n", "ready$")
    assert shell.asked("alternate_on") == "0" and "keys and columns" not in shell.screen()
    shell.type("fg", "Enter")
    shell.shows("keys and columns")
    # Nobody tells a process of SIGSTOP.
    stop(shell.children()[0])
    shell.shows("Stopped")
    shell.type("fg", "Enter")
    shell.shows("keys and columns", "q quit")


@pytest.mark.parametrize("how", ["C-z", "SIGSTOP"])
def test_it_is_ended_while_it_is_suspended(run: FeedRun, shell: Terminal, how: str) -> None:
    shell.type("ringfeed top", "Enter")
    shell.shows("running for")
    top = shell.children()[0]
    if how == "C-z":
        shell.type("", how)
    else:
        os.kill(top, signal.SIGSTOP)
    wait_until(lambda: state_of(top) == "T", "it to stop")
    shell.type("kill %1", "Enter")
    wait_until(lambda: not runs(top), "its end")
    shell.type("tput rmcup; clear; echo alive", "Enter")
    shell.shows("alive\n")


def test_output_that_is_stopped(run: FeedRun, show: Open) -> None:
    """Ctrl-S means nothing to it: it goes on, and ends when it is told to."""
    terminal = show(run)
    terminal.shows("running for")
    terminal.type("", "C-s")
    terminal.type("?")
    terminal.shows("keys and columns")
    os.kill(terminal.pid(), signal.SIGTERM)
    assert terminal.status() == 143


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"TERM": "dumb"}, "on which nothing can be drawn"),
        ({"TERM": "no-such-terminal"}, "which this system does not know"),
        ({"TERM": ""}, "which says nothing"),
        ({"TERM": "evil\x1b[31m"}, "which this system does not know"),
    ],
    ids=str,
)
def test_terminals_that_cannot_be_drawn_on(
    run: FeedRun, show: Open, variables: dict[str, str], words: str
) -> None:
    terminal = show(run, columns=120, **variables)
    assert terminal.status() == 1
    wait_until(lambda: terminal.line(), "the message")
    screen = " ".join(terminal.screen().split())
    assert words in screen and "set TERM to its type" in screen and "--once" in screen
    assert "\x1b[31m" not in terminal.coloured()


@pytest.mark.parametrize(
    "variables",
    [
        {"TERM": "xterm-nobody-knows"},
        {"TERM": "screen.nobody"},
        {"TERM": "tmux-256color", "TERMINFO_DIRS": "/nowhere", "TERMINFO": "/nowhere"},
        {"TERM": "vt100"},
        {"TERM": "linux", "LANG": "C", "LC_ALL": "C"},
    ],
    ids=lambda variables: variables["TERM"],
)
def test_terminals_that_are_known(run: FeedRun, show: Open, variables: dict[str, str]) -> None:
    """Also where the system has no description of them."""
    terminal = show(run, **variables)
    terminal.shows("running for", *STAGES, "what has happened")
    terminal.type("", "Down")
    terminal.shows("stage provider")
    terminal.type("q")
    assert terminal.status() == 0


@STARVING
def test_ascii_alone(run: FeedRun, show: Open) -> None:
    run.trainer(positions=0)
    terminal = show(run, LC_ALL="C")
    screen = terminal.shows("! TRAINERS WAIT", "busy#", "starv.", "block=")
    assert screen.isascii()


def test_without_colours(run: FeedRun, show: Open) -> None:
    colour = re.compile(r"\x1b\[(?:[\d;]*;)?[34][0-7](?:;[\d;]*)?m")
    with_colours = show(run)
    with_colours.shows("running for")
    assert colour.search(with_colours.coloured())
    without = show(run, NO_COLOR="1")
    without.shows("running for")
    assert not colour.search(without.coloured())


# ---- One frame


def test_once_into_a_pipe(run: FeedRun, show: Open) -> None:
    run.trainer_after(1, positions=0)
    for columns in (None, 60, 132):
        variables = {} if columns is None else {"COLUMNS": str(columns)}
        environment = {**run.environment, "LC_ALL": "C.UTF-8", **variables}
        if columns is None:
            environment.pop("COLUMNS", None)
        done = run.command("top", "--once", env=environment)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        lines = done.stdout.splitlines()
        assert "\x1b" not in done.stdout
        assert max(len(line) for line in lines) <= (columns or 80)
        assert lines[0].startswith(" lc0  running") and all(name in done.stdout for name in STAGES)
        assert not any(line.endswith(" ") for line in lines)
    full = run.command("top", "--once", "--interval", "0.1")
    assert full.returncode == 2 and "0.25" in full.stderr
    nobody = run.command("top", "--once", "nobody")
    assert nobody.returncode == 4 and "running: lc0" in nobody.stderr


def test_once_at_a_terminal(run: FeedRun, show: Open) -> None:
    terminal = show(run, "--once", columns=132, rows=60)
    assert terminal.status() == 0
    wait_until(lambda: all(name in terminal.screen() for name in STAGES), "the frame")
    screen = terminal.screen()
    assert "\x1b[" in terminal.coloured()
    assert any(100 < len(line) <= 132 for line in screen.splitlines()), screen
    plain = show(run, "--once", NO_COLOR="1")
    assert plain.status() == 0
    wait_until(lambda: plain.line(), "the frame")
    assert "\x1b[" not in plain.coloured()


def test_no_terminal(run: FeedRun, tmp_path: Path) -> None:
    done = run.command("top")
    assert done.returncode == 1 and "`ringfeed top --once` prints one frame" in done.stderr
    nobody = run.command("top", "--socket-dir", str(tmp_path))
    assert nobody.returncode == 4 and "no feed runs in" in nobody.stderr


# ---- A shell


PROMPT = "ready$ "


@pytest.fixture
def shell(run: FeedRun, tmp_path: Path) -> Iterator[Terminal]:
    """bash with job control, at a clear screen."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **environment_of_a_person(),
        "RINGFEED_SOCKET_DIR": str(run.sockets),
        "PATH": f"{BIN}:/usr/bin:/bin",
        "PS1": PROMPT,
    }
    terminal = Terminal(home, ["bash", "--norc", "--noprofile", "-i"], environment)
    terminal.shows(PROMPT.strip())
    yield terminal
    terminal.close()


def settings(shell: Terminal) -> str:
    """stty -a, as a program has them that this shell starts."""
    place = Path(shell.socket).parent / "stty"
    place.unlink(missing_ok=True)
    shell.type(f"stty -a > {place}.new; mv {place}.new {place}", "Enter")
    wait_until(place.exists, "stty")
    return place.read_text()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
