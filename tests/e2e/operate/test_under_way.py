"""What takes its time says how far it is: at a terminal as a bar, elsewhere as lines now and then."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


from tests.support.feeds.feed_run import FeedRun, stop, wait_until
from tests.support.feeds.starver import Starver, starved_feed
from tests.support.feeds.terminal import Terminal

MakeRun = Callable[..., FeedRun]

# Takes a good while to fill.
WARMS_UP: dict[str, Any] = {"epochs": 0, "rate": 0.01, "reservoir": 30_000}
BAR = re.compile(r"\[█+░+\] (\d+) %")


def under_way(run: FeedRun, name: str) -> dict[str, Any] | None:
    for one in (run.status() or {}).get("under_way", []):
        if one["name"] == name:
            found: dict[str, Any] = one
            return found
    return None


def reservoir(run: FeedRun) -> int:
    return int((under_way(run, "sampler") or {"done": 0})["done"])


def half_warm(run: FeedRun) -> FeedRun:
    """A feed whose reservoir is filled in part, and that stands still."""
    wait_until(lambda: "unpacker+sampler+tensors" in run.all_workers(), "the sampler")
    pid = run.all_workers()["unpacker+sampler+tensors"]

    def some() -> bool:
        stop(pid)
        if reservoir(run) > 2_000:
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until(some, "a part of the reservoir")
    return run


def go_on(run: FeedRun) -> None:
    os.kill(run.all_workers()["unpacker+sampler+tensors"], signal.SIGCONT)


def test_a_feed_that_warms_up_says_how_far_it_is(make_run: MakeRun) -> None:
    run = half_warm(make_run(**WARMS_UP).start())
    told = under_way(run, "sampler")
    assert told is not None and int(told["total"]) == 30_000
    assert 2_000 < int(told["done"]) < 30_000
    assert told["text"] == f"reservoir: {told['done']} of 30000 frames"
    shown = run.command("status", run.feed).stdout
    assert f"  sampler: {told['text']}" in shown
    go_on(run)
    wait_until(lambda: (run.status() or {}).get("state") == "RUNNING", "the first batch")
    assert (run.status() or {})["under_way"] == []


def test_where_nothing_is_a_terminal_lines_are_few(make_run: MakeRun) -> None:
    began = time.monotonic()
    run = half_warm(make_run(**WARMS_UP).start())
    wait_until(lambda: "lc0: sampler: reservoir: " in run.text(), "a line")
    lines = [line for line in run.text().splitlines() if line.startswith("lc0: ")]
    assert "\r" not in run.text() and "█" not in run.text()
    # A line for what each stage begins with, then one in ten seconds.
    assert len(lines) <= 4 + (time.monotonic() - began) / 10, lines


def test_at_a_terminal_a_bar_is_drawn_anew(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(**WARMS_UP)
    terminal = Terminal(
        tmp_path, [str(run.program), "run", str(run.config)], run.environment, columns=100
    )
    try:
        seen: set[str] = set()
        wait_until(lambda: "unpacker+sampler+tensors" in run.all_workers(), "the sampler")
        pid = run.all_workers()["unpacker+sampler+tensors"]

        def several() -> bool:
            # So that it takes its time.
            stop(pid)
            seen.update(BAR.findall(terminal.screen()))
            os.kill(pid, signal.SIGCONT)
            return len(seen) >= 3

        wait_until(several, "a bar that grows")
        # One line, which is drawn anew.
        assert len(BAR.findall(terminal.screen())) <= 1
        for columns in (60, 30, 20):
            terminal.resize(columns, 24)
        assert run.command("stop", run.feed, "--now").returncode == 0
        assert terminal.status() == 0
    finally:
        terminal.close()


def test_whoever_waits_for_a_snapshot_sees_how_far_it_is(make_run: MakeRun, tmp_path: Path) -> None:
    run, starver = starved_feed(make_run, tmp_path, epochs=0)
    run.trainer_after(2, positions=0, pause_ms=20)
    starver.refuse("hung pwrite", 0, 0)
    asked = run.command_later("snapshot", run.feed, str(tmp_path / "saved"))
    wait_until(starver.hangs, "the write")
    told = wait_until(lambda: under_way(run, "snapshot"), "what is under way")
    assert re.fullmatch(r"copied [\d.]+ \w+ of [\d.]+ \w+", told["text"]), told
    assert 0 <= int(told.get("done", 0)) < int(told["total"])
    assert told["text"] in run.command("status", run.feed).stdout
    assert asked.stderr is not None
    line = asked.stderr.readline()  # after two seconds
    assert re.fullmatch(r"lc0: copied [\d.]+ \w+ of [\d.]+ \w+(, about .* left)?\n", line), line
    starver.stop()
    out, err = asked.communicate(timeout=60)
    assert asked.returncode == 0 and "up to batch" in out and err.count("\n") <= 1, err
    assert under_way(run, "snapshot") is None


def test_the_bar_of_a_snapshot_goes_with_it(make_run: MakeRun, tmp_path: Path) -> None:
    run, starver = starved_feed(make_run, tmp_path, epochs=0)
    run.trainer_after(2, positions=0, pause_ms=20)
    starver.refuse("hung pwrite", 0, 0)
    work = tmp_path / "terminal"
    work.mkdir()
    words = [str(run.program), "snapshot", run.feed, str(tmp_path / "saved")]
    terminal = Terminal(work, words, run.environment)
    try:
        terminal.shows("lc0: [", " % copied ", " MiB of ")
        starver.stop()
        assert terminal.status() == 0
        terminal.shows("up to batch")
        assert "copied" not in terminal.screen()
    finally:
        terminal.close()


def test_whoever_stops_a_feed_sees_what_it_waits_for(make_run: MakeRun) -> None:
    run = make_run(epochs=0, groups='groups { name: "eval" }').start()
    wait_until(
        lambda: "waits for group 'eval'" in (run.status() or {}).get("reason", ""), "full slots"
    )
    asked = run.command_later("stop", run.feed)
    assert asked.stderr is not None
    assert "drains" in asked.stderr.readline()
    line = asked.stderr.readline()
    assert re.fullmatch(r"lc0: \d+ records and 6 batches are on their way.*\n", line), line
    told = under_way(run, "drain")
    assert told is not None and int(told["total"]) >= int(told.get("done", 0))
    trainer = run.trainer(group="eval", positions=0)
    asked.communicate(timeout=60)
    assert asked.returncode == 0 and run.wait() == 0
    assert len(trainer.result(60)["numbers"]) >= 6


def test_a_snapshot_that_is_read_says_how_far_it_is(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(epochs=0).start()
    run.trainer_after(2, positions=0)
    assert run.command("snapshot", run.feed, str(tmp_path / "saved")).returncode == 0
    run.stop(signal.SIGQUIT)
    resumed = make_run(epochs=0)
    slow = Starver(tmp_path / "starve")
    own = dict(resumed.environment)
    resumed.environment = {**own, **slow.environment}
    slow.refuse("hung pread", 0, 0)
    resumed.start("--resume", str(tmp_path / "saved"))
    resumed.environment = own
    wait_until(slow.hangs, "the read")
    looks = 0

    def told() -> bool:
        """As on a slow disk: one read after the other."""
        nonlocal looks
        looks += 1
        if looks % 10 == 0:
            slow.let(1)
        return (
            re.search(r"^lc0: resume: read [\d.]+ \w+ of [\d.]+ MiB", resumed.text(), re.M)
            is not None
        )

    wait_until(told, "how far it is")
    assert "feed_resumed" not in resumed.text()
    slow.stop()
    wait_until(lambda: "feed_resumed" in resumed.text(), "the feed")
