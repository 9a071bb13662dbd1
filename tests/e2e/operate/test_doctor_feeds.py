"""`ringfeed doctor` on feeds that live, are stuck or are dead, and on what else lies beside them."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import FeedRun, runs, stop, wait_until
from tests.support.feeds.patient import STRANGER, Finding, Patient, found
from tests.support.feeds.scenes import kill_supervisor

MakeRun = Callable[..., FeedRun]
MakePatient = Callable[..., Patient]


def begun(make_run: MakeRun, **settings: object) -> FeedRun:
    run = make_run(epochs=0, **settings).start()
    wait_until(lambda: (run.status() or {}).get("state") == "RUNNING", "the feed to run")
    return run


def orphaned(make_run: MakeRun, **settings: object) -> tuple[FeedRun, list[int]]:
    run = begun(make_run, **settings)
    workers = list(run.all_workers().values())
    kill_supervisor(run)
    return run, workers


def dead(make_run: MakeRun, **settings: object) -> FeedRun:
    run, workers = orphaned(make_run, **settings)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(runs(pid) for pid in workers), "the workers to end")
    return run


def beside(run: FeedRun, make_patient: MakePatient) -> Patient:
    return make_patient(environment={"RINGFEED_SOCKET_DIR": str(run.sockets)})


def of_feeds(patient: Patient) -> list[str]:
    return [one["what"] for one in patient.doctor() if one["check"] == "feeds"]


def mended(patient: Patient, what: str, severity: str, printed: str) -> Finding:
    """There is such a finding, and none after its command has been run."""
    (finding,) = wait_until(lambda: found(patient.doctor(), "feeds", what), what)
    assert finding["severity"] == severity and finding["cost"]
    assert printed in finding["mend"], finding
    patient.mend(finding["mend"])
    wait_until(lambda: not found(patient.doctor(), "feeds", what), "the finding to be gone")
    return finding


def test_a_feed_that_runs_is_fine(make_run: MakeRun, make_patient: MakePatient) -> None:
    patient = beside(begun(make_run), make_patient)
    wait_until(lambda: of_feeds(patient) == ["feed 'lc0' runs and answers"], "an answer")


def test_a_supervisor_that_is_stopped(make_run: MakeRun, make_patient: MakePatient) -> None:
    run = begun(make_run)
    assert run.process is not None
    stop(run.process.pid)
    try:
        mended(beside(run, make_patient), "is stopped", "wrong", f"kill -CONT {run.process.pid}")
    finally:
        run.process.send_signal(signal.SIGCONT)
    assert run.status(), "it answers again"


def test_a_socket_that_is_open_to_others(make_run: MakeRun, make_patient: MakePatient) -> None:
    run = begun(make_run)
    (run.sockets / "lc0.sock").chmod(0o666)
    mended(beside(run, make_patient), "mode 0666", "could_be_better", "chmod 600")


def test_a_feed_without_a_supervisor(make_run: MakeRun, make_patient: MakePatient) -> None:
    run, workers = orphaned(make_run)
    finding = mended(beside(run, make_patient), "no supervisor", "wrong", "stop lc0 --now")
    assert f"{len(workers)} of its workers" in finding["what"]
    wait_until(lambda: not any(runs(pid) for pid in workers), "the workers to end")


def test_a_dead_feed(make_run: MakeRun, make_patient: MakePatient) -> None:
    run = dead(make_run)
    mended(beside(run, make_patient), "is dead", "could_be_better", "ringfeed clean")
    assert not list(run.sockets.iterdir())


def test_a_dead_feed_that_has_left_its_memory(
    make_run: MakeRun, make_patient: MakePatient, tmp_path: Path
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    run = dead(make_run, extra=f'storage {{ directory: "{memory}" }}')
    assert list(memory.iterdir())
    finding = mended(beside(run, make_patient), "is dead", "could_be_better", "clean --force")
    assert "can still be used" in finding["cost"]
    assert not list(memory.iterdir())


def test_a_socket_that_nobody_listens_to(place: Path, make_patient: MakePatient) -> None:
    (place / "sockets").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as of_nobody:
        of_nobody.bind(str(place / "sockets" / "old.sock"))
    mended(make_patient(), "'old' .* is dead", "could_be_better", "ringfeed clean")


def test_files_of_another_user(place: Path, make_patient: MakePatient) -> None:
    (place / "sockets").mkdir()
    (place / "sockets").chmod(0o1777)
    lock = place / "sockets" / "old.lock"
    lock.touch()
    os.chown(lock, STRANGER, STRANGER)
    mended(make_patient(), f"'old' of user {STRANGER}", "could_be_better", "setpriv --reuid")


@pytest.mark.parametrize("name", ["old.sock", "old.lock"])
@pytest.mark.parametrize("kind", ["mkdir -p", "mkfifo"])
def test_what_is_no_file_of_a_feed(name: str, kind: str, make_patient: MakePatient) -> None:
    patient = make_patient()
    patient.do(f"mkdir -m 700 sockets && {kind} sockets/{name}")
    mended(patient, f"{name} is no ", "wrong", "rm ")


def test_odd_names_are_quoted(place: Path, make_patient: MakePatient) -> None:
    patient = make_patient()
    (place / "sockets").mkdir(mode=0o700)
    (place / "sockets" / "a b'\n\x1b[31m;touch hurt.lock").mkdir()
    (place / "sockets" / os.fsdecode(b"\xff.lock")).mkdir()
    shown = patient.attempt("ringfeed doctor")[1]
    assert "\x1b" not in shown and "\\x1b[31m" in shown
    for finding in found(patient.doctor(), "feeds", "no regular file"):
        patient.mend(finding["mend"])
    assert list((place / "sockets").iterdir()) == [], "and nothing else was removed"
    assert not list(place.glob("hurt*"))


def test_the_link_of_a_loader(make_run: MakeRun, place: Path, make_patient: MakePatient) -> None:
    run = begun(make_run)
    (place / "sockets").mkdir(mode=0o700)
    (place / "sockets" / "loader-1-1.sock").symlink_to(run.sockets / "lc0.sock")
    patient = make_patient()
    wait_until(lambda: of_feeds(patient) == ["feed 'loader-1-1' runs and answers"], "an answer")
    assert run.process is not None
    stop(run.process.pid)
    (stopped,) = found(patient.doctor(), "feeds", "is stopped")
    assert stopped["mend"] == f"kill -CONT {run.process.pid}"
    patient.mend(stopped["mend"])
    run.command("stop", "lc0", "--now")
    run.wait()
    mended(patient, "of a loader that is gone", "could_be_better", "rm ")
