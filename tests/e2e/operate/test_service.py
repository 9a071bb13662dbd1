"""What a service manager hears of a feed: sd_notify's messages, over a socket that stands for
systemd's, and the units."""

from __future__ import annotations

import configparser
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import ROOT, WAIT_S, FeedRun, stop, wait_until

MakeRun = Callable[..., FeedRun]
UNITS = ROOT / "share" / "systemd"


class Manager:
    """The manager's end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.address = address
        self.heard: list[str] = []

    def lines(self) -> list[str]:
        """All that was said so far."""
        while True:
            try:
                self.heard += self.socket.recv(65536).decode().splitlines()
            except BlockingIOError:
                return self.heard

    def forget(self) -> None:
        self.lines()
        self.heard = []

    def ends(self, run: FeedRun) -> None:
        """Reads on until the run is over: a socket takes a few messages, and then no more."""
        wait_until(
            lambda: (self.lines(), run.process and run.process.poll())[1] is not None, "its end"
        )
        assert run.wait() == 0, run.text()

    def wait(self, line: str) -> None:
        wait_until(lambda: any(one.startswith(line) for one in self.lines()), line)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(str(tmp_path / "notify"))
    yield found
    found.socket.close()


def start(run: FeedRun, manager: Manager, **environment: str) -> FeedRun:
    run.environment.update(NOTIFY_SOCKET=manager.address, **environment)
    return run.start()


def test_it_says_when_it_is_ready_what_it_does_and_when_it_ends(
    make_run: MakeRun, manager: Manager
) -> None:
    run = start(make_run(epochs=1), manager)
    run.trainer().result()
    manager.ends(run)
    lines = manager.lines()
    assert lines.count("READY=1") == lines.count("STOPPING=1") == 1
    assert lines.index("READY=1") < lines.index("STOPPING=1")
    status = [line for line in lines if line.startswith("STATUS=")]
    assert status[-1].startswith("STATUS=ENDED, ") and " batches" in status[-1]
    assert not any(line.startswith("WATCHDOG") for line in lines)


def test_an_abstract_address(make_run: MakeRun) -> None:
    manager = Manager(f"@ringfeed-test-{os.getpid()}")
    run = start(make_run(epochs=0), manager)
    manager.wait("READY=1")
    manager.wait("STATUS=RUNNING, ")
    assert run.stop(signal.SIGQUIT) == 0
    manager.wait("STOPPING=1")
    manager.socket.close()


def test_a_drain_asks_for_the_time_that_it_needs(make_run: MakeRun, manager: Manager) -> None:
    """A group that takes nothing holds it up until drain_timeout_s."""
    run = start(make_run(epochs=0, groups='groups { name: "late" }'), manager)
    manager.wait("STATUS=RUNNING")
    run.trainer_after(2, group="early")
    manager.forget()
    assert run.process is not None
    run.process.send_signal(signal.SIGTERM)
    manager.wait("STOPPING=1")
    manager.wait("EXTEND_TIMEOUT_USEC=")
    run.process.send_signal(signal.SIGQUIT)
    assert run.wait() == 0
    assert "READY=1" not in manager.lines()


def test_sighup_is_a_reload(make_run: MakeRun, manager: Manager) -> None:
    run = start(make_run(epochs=0), manager)
    manager.wait("READY=1")
    manager.forget()
    assert run.process is not None
    run.process.send_signal(signal.SIGHUP)
    manager.wait("READY=1")
    # What it does may have changed meanwhile.
    lines = [line for line in manager.lines() if not line.startswith("STATUS=")]
    assert lines[0] == "RELOADING=1" and lines[1].startswith("MONOTONIC_USEC=")
    assert lines.index("READY=1") > 1


def test_the_watchdog_hears_of_it_only_while_it_works(make_run: MakeRun, manager: Manager) -> None:
    """A supervisor that stands still says nothing, though stages and trainers go on."""
    run = start(make_run(epochs=0), manager, WATCHDOG_USEC="200000")
    trainer = run.trainer_after(5)
    manager.wait("READY=1")
    manager.forget()
    wait_until(lambda: manager.lines().count("WATCHDOG=1") >= 5, "signs of life")
    assert run.process is not None
    stop(run.process.pid)
    manager.forget()
    done = trainer.batches()
    wait_until(lambda: trainer.batches() >= done + 50, "batches")
    assert manager.lines() == []
    run.process.send_signal(signal.SIGCONT)
    manager.wait("WATCHDOG=1")


@pytest.mark.parametrize(
    ("environment", "times"),
    [
        ({"WATCHDOG_USEC": str(3600 * 1000 * 1000)}, 1),  # due again in half an hour
        ({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, 0),  # somebody else is watched
        ({"WATCHDOG_USEC": "soon"}, 0),
    ],
)
def test_what_the_watchdog_asks_for(
    make_run: MakeRun, manager: Manager, environment: dict[str, str], times: int
) -> None:
    run = start(make_run(epochs=1), manager, **environment)
    run.trainer().result()
    manager.ends(run)
    assert manager.lines().count("WATCHDOG=1") == times


def test_stages_do_not_hear_of_the_manager(make_run: MakeRun, manager: Manager) -> None:
    """What a user's code says there would be taken for the feed's."""
    run = start(make_run(epochs=0), manager, WATCHDOG_USEC="10000000")
    manager.wait("READY=1")
    for pid in run.workers().values():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"NOTIFY_SOCKET" not in environment and b"WATCHDOG" not in environment


def test_a_manager_that_is_away_is_a_problem_and_no_end(make_run: MakeRun) -> None:
    for address in ("/nowhere/notify", "vsock:2:1"):
        run = make_run(epochs=0)
        run.environment["NOTIFY_SOCKET"] = address
        run.start()
        wait_until(lambda: (run.status() or {}).get("state") == "RUNNING", "the feed")
        status = run.status()
        assert status is not None
        assert any(address in problem for problem in status["problems"])
        assert run.stop(signal.SIGQUIT) == 0


# ---- What `systemctl restart` does: RestartKillSignal to the main process, then a start


def test_a_restart_keeps_the_memory(make_run: MakeRun, manager: Manager) -> None:
    """The same workers, no batch lost: what the trainer gets is what an undisturbed one gets."""
    unit = (UNITS / "ringfeed@.service").read_text()
    assert "RestartKillSignal=SIGKILL" in unit and "KillMode=process" in unit
    undisturbed = make_run(epochs=1).start().trainer().result()
    run = start(make_run(epochs=1), manager)
    trainer = run.trainer_after(5, pause_ms=200)
    manager.wait("READY=1")
    workers = run.all_workers()
    assert run.process is not None
    run.process.kill()
    run.process.wait()
    manager.forget()
    run.start()
    manager.wait("READY=1")
    wait_until(lambda: "feed_adopted" in run.text(), "the feed is adopted")
    assert set(run.all_workers().items()) <= set(workers.items())
    assert (trainer.result()["digests"] == undisturbed["digests"]).all()
    assert run.wait() == 0


# ---- Units


@pytest.mark.parametrize("name", ["ringfeed@.service", "user/ringfeed@.service"])
def test_a_reload_needs_no_program_of_another_package(name: str) -> None:
    """/bin/kill is in procps, which a small system need not have; the shell has its own."""
    told = shlex.split(settings(UNITS / name)["Service"]["ExecReload"])
    assert told[:2] == ["/bin/sh", "-c"], told
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        told = [word.replace("${MAINPID}", str(process.pid)) for word in told]
        subprocess.run(told, env={"PATH": "/nowhere"}, check=True)
        assert process.wait(WAIT_S) == -signal.SIGHUP


def settings(unit: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return {name: dict(parser[name]) for name in parser.sections()}


def test_a_user_s_unit_does_what_the_system_s_does() -> None:
    """But for whose it is, and what only the system can order."""
    system = settings(UNITS / "ringfeed@.service")["Service"]
    user = settings(UNITS / "user" / "ringfeed@.service")["Service"]
    differ = {name for name in system.keys() | user.keys() if system.get(name) != user.get(name)}
    assert differ == {"User", "RuntimeDirectoryMode", "LimitNOFILE"}


@pytest.mark.parametrize("name", ["ringfeed@.service", "ringfeed-web.service"])
def test_systemd_takes_the_units(tmp_path: Path, name: str) -> None:
    """`systemd-analyze verify` has nothing to say, once the programs are where the unit says."""
    text = (UNITS / name).read_text().replace("/usr/bin/ringfeed", "/bin/true")
    unit = tmp_path / name.replace("@.", "@lc0.")
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
