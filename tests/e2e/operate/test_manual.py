"""ringfeed manual: a page for the program and each verb, which man, groff and mandoc accept."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import BIN, WAIT_S
from tests.support.feeds.terminal import Terminal, environment_of_a_person


def said(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(words),
        **{"capture_output": True, "text": True, "timeout": WAIT_S, **options},  # type: ignore[call-overload]
    )


def ringfeed(*words: str) -> subprocess.CompletedProcess[str]:
    return said(str(BIN / "ringfeed"), *words)


def verbs() -> list[str]:
    lines = ringfeed("--help").stdout.splitlines()
    found = [re.match(r"  (\S+)", line) for line in lines[lines.index("Subcommands:") + 1 :]]
    return [one[1] for one in found if one]


def page_name(verb: str) -> str:
    return f"ringfeed-{verb}.1" if verb else "ringfeed.1"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pages") / "man" / "man1"
    done = ringfeed("manual", "--directory", str(directory))
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert f"{len(verbs()) + 1} pages in {directory}" in done.stderr
    return directory


def test_every_verb_has_a_page(pages: Path) -> None:
    assert {path.name for path in pages.iterdir()} == {page_name(verb) for verb in ["", *verbs()]}
    for verb in ["", *verbs()]:
        shown = ringfeed("manual", *([verb] if verb else []))
        assert shown.returncode == 0 and shown.stdout == (pages / page_name(verb)).read_text()


@pytest.mark.parametrize("verb", ["", *verbs()])
def test_formatters_have_nothing_to_say(pages: Path, verb: str) -> None:
    page = str(pages / page_name(verb))
    for program, *words in (
        ["groff", "-man", "-ww", "-b", "-z", "-K", "utf8"],
        ["groff", "-man", "-ww", "-z", "-Tutf8", "-rCHECKSTYLE=3"],
    ):
        done = said(program, *words, page)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), program
    # A page without a date, so that two builds of one version are the same.
    found = said("mandoc", "-T", "lint", "-W", "warning", page).stdout.splitlines()
    assert [line.partition(" ")[2].split(": ", 1)[1] for line in found] == [
        'WARNING: missing date, using "": TH'
    ]
    done = said("man", "--warnings", "-E", "UTF-8", "-l", page, env=narrow())
    assert done.returncode == 0 and done.stderr == ""
    # All that help says is in it, and fits.
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines) <= 100
    helped = ringfeed(*([verb] if verb else []), "--help").stdout
    for option in re.findall(r"^  (?:-\w,)?(--[\w-]+)", helped, re.M):
        assert option in done.stdout, option
    last = "SEE ALSO" if verb else "FILES"
    for title in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", last):
        assert title in lines, title


def narrow() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "100", "MAN_KEEP_FORMATTING": ""}


def test_man_finds_them(pages: Path) -> None:
    """By name, in a directory of man's path; apropos would have a line for each."""
    environment = {**narrow(), "MANPATH": str(pages.parent)}
    found = said("man", "ringfeed-top", env=environment)
    assert found.returncode == 0 and "ringfeed top [--once]" in found.stdout, found
    for verb in verbs():
        line = said("lexgrog", str(pages / page_name(verb)))
        assert line.returncode == 0 and f"ringfeed-{verb} - " in line.stdout, line


def test_mistakes(tmp_path: Path) -> None:
    done = ringfeed("manual", "stauts")
    assert done.returncode == 2 and done.stdout == "" and "status" in done.stderr
    hostile = ringfeed("manual", "a\x1b[31m\nb")
    assert hostile.returncode == 2 and "\x1b" not in hostile.stderr
    assert ringfeed("manual", "run", "--directory", str(tmp_path)).returncode == 2
    assert ringfeed("manual", "--directory", "").returncode == 2
    (tmp_path / "file").write_text("")
    refused = ringfeed("manual", "--directory", str(tmp_path / "file"))
    assert refused.returncode == 1 and str(tmp_path / "file") in refused.stderr
    assert (tmp_path / "file").read_text() == ""


def test_man_shows_it_at_a_terminal(tmp_path: Path) -> None:
    program = [str(BIN / "ringfeed"), "manual", "top"]
    terminal = Terminal(tmp_path, program, environment_of_a_person(), TERM="xterm")
    try:
        terminal.shows("RINGFEED-TOP(1)", "SYNOPSIS")
        terminal.type("q")
        assert terminal.status() == 0
    finally:
        terminal.close()
