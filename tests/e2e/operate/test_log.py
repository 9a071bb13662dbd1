"""The log of a real feed: its forms, where it goes, and its level while the feed runs."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.feeds.feed_run import WAIT_S, FeedRun, wait_until

MakeRun = Callable[..., FeedRun]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def is_running(run: FeedRun) -> bool:
    return (run.status() or {}).get("state") == "RUNNING"


def objects(text: str) -> list[dict[str, Any]]:
    """Each line, which is a whole JSON object."""
    found = [json.loads(line) for line in text.splitlines()]
    for one in found:
        assert list(one)[:4] == ["time", "level", "event", "process"], one
        assert TIME.fullmatch(one["time"]), one
        assert one["level"] in ("debug", "info", "warning", "error")
        assert one["feed"] == "lc0"
    return found


def events(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [one for one in found if one["event"] == name]


# ---- JSON


def test_every_line_of_standard_error_is_an_object(make_run: MakeRun) -> None:
    """Events, what stages log and what is said to people: nothing else is on it."""
    # As the lines have it: without a zone, in milliseconds.
    begun = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None, microsecond=0)
    run = make_run(epochs=1, extra="log { format: JSON }").start()
    run.trainer().result()
    assert run.wait() == 0
    found = objects(run.text())
    assert events(found, "feed_started")[0]["pid"] == run.process.pid  # type: ignore[union-attr]
    assert "pool" in {one["group"] for one in events(found, "worker_started")}
    [ready] = events(found, "window_ready")
    assert ready["process"].startswith("worker/") and ready["stage"] == "pool"
    assert isinstance(ready["chunks"], int) and ready["pid"] > 0 and ready["group"]
    [ended] = events(found, "feed_ended")
    assert ended["batches"] > 0 and ended["reason"] == "the run is over"
    assert any("batches in" in one["message"] for one in events(found, "notice"))
    # The time is that of the line, and not when somebody read it.
    times = [datetime.datetime.fromisoformat(one["time"][:-1]) for one in found]
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    assert all(begun <= time <= now for time in times)


def test_names_that_are_no_utf_8(make_run: MakeRun, tmp_path: Path) -> None:
    """A file whose name is bytes of any kind is reported in valid JSON."""
    games = tmp_path / "bad"
    games.mkdir()
    (games / os.fsdecode(b'\xff\xfe"\\ \x1b[31m.tar')).write_bytes(b"no tar")
    run = make_run(games, epochs=1, extra="log { format: JSON }").start()
    assert run.wait() == 1
    # Strictly UTF-8, too.
    found = objects(run.log.read_bytes().decode("utf-8"))
    assert any("\\xff\\xfe" in str(value) for one in found for value in one.values())
    assert not any("\x1b" in value for one in found for value in one.values() if type(value) is str)
    assert events(found, "feed_failed")[0]["level"] == "error"


def test_text_is_for_people_and_json_for_a_file(make_run: MakeRun) -> None:
    """With a file standard error keeps the words for whoever started it."""
    run = make_run(epochs=1, extra='log { format: JSON file: "LOG" }')
    log = run.work / "events.json"
    run.config.write_text(run.config.read_text().replace("LOG", str(log)))
    run.start().trainer().result()
    assert run.wait() == 0
    assert events(objects(log.read_text()), "feed_ended")
    assert "batches in" in run.text() and "{" not in run.text()


# ---- Files


def test_a_file_is_renamed_while_the_feed_runs(make_run: MakeRun) -> None:
    """All lines are in FILE, FILE.1, ... in order; the level debug makes enough of them."""
    run = make_run(
        epochs=0,
        extra='log { format: JSON level: DEBUG file: "LOG" rotate_bytes: 4096 rotate_keep: 500 }',
    )
    log = run.work / "feed.json"
    run.config.write_text(run.config.read_text().replace("LOG", str(log)))
    run.start()
    wait_until(lambda: is_running(run), "the feed")
    wait_until(lambda: run.status() and Path(f"{log}.3").exists(), "three files")
    asked = run.command("log", "lc0", "--json")
    assert json.loads(asked.stdout)["to"] == str(log)
    assert run.stop(signal.SIGQUIT) == 0
    names = sorted(run.work.glob("feed.json.*"), key=lambda path: -int(path.suffix[1:]))
    assert all(path.stat().st_size <= 4096 for path in names)
    found = objects("".join(path.read_text() for path in [*names, log]))
    assert found[0]["event"] == "worker_started", "nothing is lost at the beginning"
    assert found[-1]["event"] == "feed_ended"
    supervisor = [one["time"] for one in found if one["process"] == "supervisor"]
    assert supervisor == sorted(supervisor)


def test_a_file_that_cannot_be_renamed_is_a_problem_and_no_end(make_run: MakeRun) -> None:
    run = make_run(epochs=0, extra='log { level: DEBUG file: "LOG" rotate_bytes: 4096 }')
    log = run.work / "feed.log.d" / "log"
    log.parent.mkdir()
    (log.parent / "log.new").mkdir()  # what is made first
    run.config.write_text(run.config.read_text().replace("LOG", str(log)))
    run.start()
    wait_until(lambda: is_running(run), "the feed")

    def problem() -> str:
        return " ".join((run.status() or {}).get("problems", []))

    wait_until(lambda: "cannot be rotated" in problem(), "the problem")
    assert re.search(r"\(\d+ tr(y|ies)\)", problem())
    (log.parent / "log.new").rmdir()
    wait_until(lambda: "rotated" not in problem(), "its end")
    assert Path(f"{log}.1").exists()
    assert "log_rotation_failed" in Path(f"{log}.1").read_text()


def test_sighup_opens_the_file_anew(make_run: MakeRun) -> None:
    run = make_run(epochs=0, extra='log { file: "LOG" }')
    log = run.work / "log"
    run.config.write_text(run.config.read_text().replace("LOG", str(log)))
    run.start()
    wait_until(lambda: is_running(run), "the feed")
    log.rename(run.work / "moved")
    assert run.process is not None
    run.process.send_signal(signal.SIGHUP)
    wait_until(lambda: log.exists() and "log_reopened" in log.read_text(), "the new file")


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("log { rotate_bytes: 100000 }", "log.file, which is missing"),
        ('log { file: "x" rotate_bytes: 10 }', "at least 4 KiB"),
        ('log { file: "x" rotate_keep: 0 }', "rotate_keep"),
        ("log { format: XML }", "XML"),
    ],
)
def test_what_is_refused(make_run: MakeRun, log: str, words: str) -> None:
    run = make_run(extra=log)
    done = run.command("check", str(run.config))
    assert done.returncode == 3 and words in done.stderr


# ---- Levels


def test_the_level_is_changed_while_it_runs(make_run: MakeRun) -> None:
    """Of the supervisor, whatever workers die meanwhile."""
    run = make_run(epochs=0, extra='log { level: WARN file: "LOG" }')
    log = run.work / "log"
    run.config.write_text(run.config.read_text().replace("LOG", str(log)))
    run.start()
    wait_until(lambda: is_running(run), "the feed")
    assert (run.command("log", "lc0").stdout) == "warning\n"
    assert " info " not in log.read_text()
    done = run.command("log", "lc0", "debug")
    assert done.stdout == "the level of feed 'lc0' is now debug, before warning\n"
    wait_until(lambda: "log_level_changed" in log.read_text(), "the change in the log")
    run.status()
    wait_until(lambda: re.search(r"debug supervisor request .*of=status", log.read_text()), "debug")
    again = json.loads(run.command("log", "lc0", "debug", "--json").stdout)
    assert (again["level"], again["before"], again["format"]) == ("debug", "debug", "text")
    run.command("log", "lc0", "info")
    os.kill(run.workers()[next(name for name in run.workers() if "pool" in name)], signal.SIGKILL)
    wait_until(lambda: "worker_restarted" in log.read_text(), "a restart")
    run.command("log", "lc0", "error")
    wait_until(lambda: "to=error" in log.read_text(), "that change, the last line")
    before = log.read_text()
    run.status()
    assert run.command("log", "lc0").stdout == "error\n"
    assert log.read_text() == before


def test_workers_hear_of_the_level(make_run: MakeRun) -> None:
    """They say at info that they have found the next supervisor, and at error they do not."""
    run = make_run(epochs=0).start()
    wait_until(lambda: is_running(run), "the feed")
    assert run.command("log", "lc0", "error").returncode == 0
    workers = set(run.workers().values())

    def takeover() -> None:
        # Orders are heard in turn: an answer to a later one says that the level was.
        assert run.command("control", "lc0", "chunk_pool_request {}").returncode == 0
        assert run.process is not None
        run.process.kill()
        run.process.wait()
        run.start()
        wait_until(lambda: is_running(run), "the next supervisor")
        run.command("control", "lc0", "chunk_pool_request {}")  # its link is there
        assert set(run.all_workers().values()) == workers

    takeover()
    assert run.command("log", "lc0").stdout == "info\n", "as the configuration says"
    assert not re.search("supervisor_(gone|found).*pool", run.text())
    takeover()
    wait_until(lambda: re.search("supervisor_found.*pool", run.text()), "info")


def test_a_feed_that_is_not_there(make_run: MakeRun) -> None:
    run = make_run()
    assert run.command("log", "lc0").returncode == 4
    done = run.command("log", "lc0", "loud")
    assert done.returncode == 2 and "loud" in done.stderr


# ---- The journal


JOURNALD = """
import os, socket, subprocess, sys
there = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
os.makedirs("/run/systemd/journal", exist_ok=True)
subprocess.run(["mount", "-t", "tmpfs", "journal", "/run/systemd/journal"], check=True)
there.bind("/run/systemd/journal/socket")
stat = os.stat(2)
os.environ["JOURNAL_STREAM"] = f"{stat.st_dev}:{stat.st_ino}"
feed = subprocess.Popen(sys.argv[2:])
there.settimeout(0.2)
with open(sys.argv[1], "wb") as out:
    while True:
        try:
            entry = there.recv(1 << 20)
            out.write(len(entry).to_bytes(4, "big") + entry)
        except TimeoutError:
            if feed.poll() is not None:
                sys.exit(feed.returncode)
"""


def entries(data: bytes) -> list[dict[str, str]]:
    """As journald reads them."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        entry, data = data[4 : 4 + size], data[4 + size :]
        fields = {}
        while entry:
            line, _, entry = entry.partition(b"\n")
            name, sign, value = line.partition(b"=")
            if not sign:
                length = int.from_bytes(entry[:8], "little")
                value, entry = entry[8 : 8 + length], entry[8 + length + 1 :]
            assert re.fullmatch(rb"[A-Z][A-Z0-9_]{0,63}", name), name
            fields[name.decode()] = value.decode()
        found.append(fields)
    return found


def test_the_journal_gets_fields(make_run: MakeRun, tmp_path: Path) -> None:
    """In a mount namespace with a socket that stands for journald's."""
    if subprocess.run(["unshare", "-rm", "true"]).returncode:
        pytest.fail("this test makes a mount namespace: run it as root")
    run = make_run(epochs=1)
    out = tmp_path / "entries"
    with open(run.log, "wb") as log:
        feed = subprocess.Popen(
            [
                *("unshare", "-rm", sys.executable, "-c", JOURNALD, str(out)),
                *(str(run.program), "run", str(run.config)),
            ],
            env=run.environment,
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
    run.process = feed
    run.trainer().result()
    assert feed.wait(WAIT_S) == 0
    assert run.text() == "", "all of it goes to the journal"
    found = entries(out.read_bytes())
    assert all(one["SYSLOG_IDENTIFIER"] == "ringfeed" for one in found)
    assert all(one["RINGFEED_FEED"] == "lc0" for one in found)
    [ended] = [one for one in found if one["RINGFEED_EVENT"] == "feed_ended"]
    assert ended["PRIORITY"] == "6" and int(ended["RINGFEED_BATCHES"]) > 0
    assert ended["MESSAGE"].startswith("feed_ended feed=lc0 batches=")
    [ready] = [one for one in found if one["RINGFEED_EVENT"] == "window_ready"]
    assert ready["RINGFEED_STAGE"] == "pool" and ready["RINGFEED_PROCESS"].startswith("worker/")
    assert any("\n" in one["MESSAGE"] for one in found), "a notice of several lines"


def test_a_redirected_standard_error_is_not_the_journal(make_run: MakeRun) -> None:
    """The variable is inherited by whoever is started further down."""
    run = make_run(epochs=1)
    run.environment["JOURNAL_STREAM"] = "8:12345"
    run.start().trainer().result()
    assert run.wait() == 0
    assert "feed_ended" in run.text()
