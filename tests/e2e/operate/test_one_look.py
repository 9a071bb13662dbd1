"""The verbs as a set: whatever is added looks, fails and helps like the others."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import BIN, WAIT_S, FeedRun, wait_until
from tests.support.feeds.scenes import kill_supervisor
from tests.support.rig.terminal import Terminal

MakeRun = Callable[..., FeedRun]
ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# What stands for an argument, by its name.
WORDS = {
    "CONFIG|FEED": "FEED",
    "GROUP": "unpacker",
    "LANES": "1",
    "STAGE": "unpacker",
    "MESSAGE": "chunk_pool_request {}",
}


def ringfeed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "ringfeed"), *words], capture_output=True, text=True, timeout=WAIT_S
    )


def all_verbs() -> list[str]:
    listed = ringfeed("--help").stdout.partition("Subcommands:")[2]
    return re.findall(r"^  (\S+)  ", listed, re.MULTILINE)


VERBS = all_verbs()
HELP = {verb: ringfeed(verb, "--help").stdout for verb in VERBS}


def arguments(verb: str) -> list[str]:
    usage = HELP[verb].partition("Usage: ")[2].splitlines()[0]
    return [word.strip("[]") for word in usage.partition("[OPTIONS]")[2].split()]


def of_a_feed() -> list[str]:
    """Verbs that are told the name of a feed."""
    return [verb for verb in VERBS if any("FEED" in word for word in arguments(verb))]


def words_for(verb: str, feed: str, place: Path) -> list[str]:
    words = []
    for name in arguments(verb):
        kind = WORDS.get(name, name)
        words.append({"FEED": feed, "DIR": str(place / "made")}.get(kind, kind))
    if verb == "log":
        words.pop()  # the level: it only asks
    return [verb, *words, *(["--once"] if verb == "top" else [])]


# ---- Help


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_and_fits_a_terminal(verb: str) -> None:
    text = HELP[verb]
    assert re.search(rf"^Examples?: .*\bringfeed {verb}\b", text, re.MULTILINE), text
    assert text.isascii() and ESCAPE not in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("verb", VERBS)
def test_a_line_that_is_wrong_is_told_where_to_read_more(verb: str) -> None:
    done = ringfeed(verb, "--no-such-option")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("ringfeed: ") and f"`ringfeed {verb} --help`" in done.stderr


# ---- A feed that is not there


def test_these_are_told_a_feed() -> None:
    assert {"status", "why", "peek", "stop", "scale", "control", "snapshot"} <= set(of_a_feed())


@pytest.mark.parametrize("verb", of_a_feed())
def test_no_feed_runs(make_run: MakeRun, tmp_path: Path, verb: str) -> None:
    run = make_run()
    run.sockets.mkdir()
    done = run.command(*words_for(verb, "nobody", tmp_path))
    assert (done.returncode, done.stdout) == (4, "")
    assert f"ringfeed: no feed 'nobody' runs in {run.sockets}; no feed is running" in done.stderr
    assert "`ringfeed run CONFIG`" in done.stderr


def test_another_feed_runs(run: FeedRun, tmp_path: Path) -> None:
    for verb in of_a_feed():
        done = run.command(*words_for(verb, "nobody", tmp_path))
        assert (done.returncode, done.stdout) == (4, ""), verb
        assert "ringfeed: no feed 'nobody' runs in " in done.stderr, verb
        assert "; running: lc0\n" in done.stderr, verb


def test_a_feed_without_a_supervisor(run: FeedRun, tmp_path: Path) -> None:
    """Each verb says how it goes on, and that nobody has answered."""
    kill_supervisor(run)
    for verb in of_a_feed():
        if verb == "dead-letters":  # files, which need nobody
            continue
        done = run.command(*words_for(verb, "lc0", tmp_path))
        assert done.returncode == 5, (verb, done.stderr)
        said = done.stdout + done.stderr
        assert "feed lc0: orphaned" in said and "`ringfeed run CONFIG` takes it over" in said, verb
    assert run.command("stop", "lc0", "--now").returncode == 0


def test_a_directory_that_is_none(make_run: MakeRun, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    run = make_run()
    for words in (["status"], ["status", "lc0"], ["top", "--once"], ["stop", "lc0"]):
        done = run.command(*words, "--socket-dir", str(place))
        assert done.returncode == 4 and f"{place}: Not a directory" in done.stderr, words


# ---- What is wrong, and what to do


def test_a_name_that_is_wrong_is_answered_with_those_there_are(
    run: FeedRun, tmp_path: Path
) -> None:
    stages = "provider, loader, pool, unpacker, sampler, tensors"
    for words, names in (
        (["scale", "lc0", "nobody", "2"], stages),
        (["control", "lc0", "chunk_pool_request {}", "--stage", "nobody"], stages),
        (["restart", "lc0", "nobody"], "provider+loader"),
        (["try", str(run.config), "--stage", "nobody"], stages),
        (["stages", "nobody"], "chunk_unpacker"),
        (["manual", "nobody"], "status"),
        (["log", "lc0", "nobody"], "warning"),
        (["completion", "nobody"], "fish"),
        (["peek", "lc0", "--output", "nobody"], "without a name"),
    ):
        done = run.command(*words)
        assert done.returncode in (1, 2) and done.stdout == "", words
        assert done.stderr.startswith("ringfeed: "), done.stderr
        assert "nobody" in done.stderr and names in done.stderr, done.stderr


def test_what_cannot_be_read_or_written_is_told_what_else_to_give(
    run: FeedRun, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere" / "at all"
    for words, remedy in (
        (["check", str(nowhere)], "check the path"),
        (["run", str(nowhere)], "check the path"),
        (["graph", str(nowhere)], "check the path"),
        (["try", str(nowhere), "--stage", "x"], "check the path"),
        (["import-lc0", str(nowhere)], "check the path"),
        (["inspect", str(nowhere)], "check the name"),
        (["init", str(nowhere)], "check the path"),
        (["peek", "lc0", "--save", "/proc/nowhere"], "--save"),
        (["snapshot", "lc0", str(tmp_path)], "give another path"),
        (["dead-letters", "--replay", str(nowhere)], "ringfeed dead-letters"),
        (["web", "--listen", "192.0.2.1:9"], "--listen"),
        (["top"], "--once"),
    ):
        done = run.command(*words)
        assert done.returncode in (1, 2) and done.stdout == "", (words, done.stdout)
        assert done.stderr.startswith("ringfeed: ") and remedy in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and "terminate" not in done.stderr


def test_a_full_disk(run: FeedRun, tmp_path: Path) -> None:
    """Whoever reads a part must not take it for all."""
    for words in (
        *(["ps"], ["status"], ["metrics", "lc0"], ["why", "lc0"], ["graph", "lc0"]),
        *(["top", "--once"], ["peek", "lc0"], ["log", "lc0"], ["stages"], ["version"]),
        *(["check", str(run.config)], ["completion", "bash"], ["manual"], ["doctor"], ["--help"]),
        *(["status", "--json"], ["metrics", "lc0", "--json"], ["inspect", str(run.config)]),
    ):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [str(run.program), *words],
                env=run.environment,
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=WAIT_S,
            )
        assert done.returncode == 1, (words, done.stderr)
        assert b"No space left" in done.stderr or b"cannot be written" in done.stderr, words


# ---- Terminals

SHOWN = (
    *(["ps"], ["status"], ["metrics", "lc0"], ["why", "lc0"], ["graph", "lc0"], ["doctor"]),
    *(["top", "--once"], ["peek", "lc0"], ["log", "lc0"], ["stages"], ["doctor", "--all"]),
)


def test_no_colours_into_a_pipe_and_ascii_where_the_locale_is_c(run: FeedRun) -> None:
    trainer = run.trainer(positions=0)
    wait_until(lambda: trainer.batches() > 2, "batches")
    environment = {**run.environment, "TERM": "xterm-256color", "LC_ALL": "C"}
    for words in (*SHOWN, ["check", str(run.config)], ["inspect", str(run.config)]):
        done = run.command(*words, env=environment)
        assert ESCAPE not in done.stdout + done.stderr, words
        assert (done.stdout + done.stderr).isascii(), (words, done.stdout)


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colours_at_a_terminal(run: FeedRun, variables: dict[str, str], coloured: bool) -> None:
    environment = {**run.environment, "LC_ALL": "C.UTF-8", **variables}
    if "NO_COLOR" not in variables:
        environment.pop("NO_COLOR", None)
    found = set()
    for words in SHOWN:
        with Terminal([str(run.program), *words], run.work, environment) as terminal:
            terminal.end()
            if COLOUR.search(terminal.said):
                found.add(words[0])
            assert coloured or ESCAPE not in terminal.said, words
    assert found == ({"doctor", "top"} if coloured else set())


def test_tables_align_whatever_is_in_them(make_run: MakeRun) -> None:
    """Wide characters take two columns, those that combine none."""
    run = make_run(epochs=0)
    place = run.work / "大きい-größe-e\u0301"
    place.mkdir()
    run.config = run.config.rename(place / run.config.name)
    run.start()
    wait_until(lambda: (run.status() or {}).get("state") == "RUNNING", "the feed to run")
    environment = {**run.environment, "LC_ALL": "C.UTF-8"}
    for words in (["ps"], ["status"], ["metrics", "lc0"], ["why", "lc0"], ["peek", "lc0"]):
        text = run.command(*words, env=environment).stdout
        tables = 0
        for table in re.split(r"\n\n", text):
            rows = [line for line in table.splitlines() if re.search(r"\S {2,}\S", line)]
            if len(rows) > 1 and rows[0][0] != " ":
                assert columns_fit(rows), table
                tables += 1
        assert tables, (words, text)


def columns_fit(rows: list[str]) -> bool:
    """Each cell of the head has a cell below it that begins or ends with it."""
    for head in re.finditer(r"\S+(?: \S+)*", rows[0]):
        begin, end = head.span()
        for row in rows[1:]:
            cells = [cell.span() for cell in re.finditer(r"\S+(?: \S+)*", row)]
            if not any(b == begin or e == end for b, e in cells) and end <= len(row):
                return False
    return True
