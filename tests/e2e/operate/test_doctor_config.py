"""`ringfeed doctor CONFIG`: configurations that do not fit the machine, and control groups."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.patient import MOUNTS, STRANGER, Finding, Patient, found
from tests.support.makers import lc0_data

MakePatient = Callable[..., Patient]
GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def write(place: Path) -> Callable[..., FeedRun]:
    """Writes the configuration of a feed over a few games that everybody may read."""

    def of(**settings: object) -> FeedRun:
        data = place / "data"
        lc0_data.make_dataset(data, games=4, tars=1, seed=3, loose=4)
        for path in (place, data, *data.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        return FeedRun(place, data, **settings)

    return of


def only(patient: Patient, run: FeedRun, what: str, *words: str) -> Finding:
    (finding,) = found(patient.doctor(str(run.config), *words), "configuration", what)
    assert finding["cost"]
    return finding


def is_gone(patient: Patient, run: FeedRun, what: str, *words: str) -> None:
    assert not found(patient.doctor(str(run.config), *words), "configuration", what)


def test_a_configuration_that_fits(
    write: Callable[..., FeedRun], make_patient: MakePatient
) -> None:
    findings = make_patient().doctor(str(write().config))
    of_it = [one for one in findings if one["check"] == "configuration"]
    assert {one["severity"] for one in of_it} == {"fine"}, of_it
    assert any("there is room for feed 'lc0'" in one["what"] for one in of_it)


@pytest.mark.parametrize(("epochs", "severity"), [(0, "could_be_better"), (1, "wrong")])
def test_data_that_is_not_there(
    epochs: int, severity: str, write: Callable[..., FeedRun], make_patient: MakePatient
) -> None:
    run, patient = write(epochs=epochs), make_patient()
    patient.do("mv data elsewhere")
    assert only(patient, run, "data does not exist")["severity"] == severity
    patient.do("mv elsewhere data")
    is_gone(patient, run, "does not exist")


@pytest.mark.parametrize(
    ("close", "what"),
    [
        ("chmod 700 data", "data may not be read"),
        ("mkdir -m 700 above && mv data above && ln -s above/data data", "cannot be reached"),
        ("chmod 600 data/*.tar", "it lies in the data directory"),
    ],
)
def test_data_that_may_not_be_read(
    close: str, what: str, write: Callable[..., FeedRun], make_patient: MakePatient
) -> None:
    run, patient = write(), make_patient()
    patient.user = STRANGER
    is_gone(patient, run, what)
    patient.do(close)
    finding = only(patient, run, what)
    assert finding["severity"] == "wrong" and "chmod " in finding["mend"], finding
    patient.mend(finding["mend"])
    is_gone(patient, run, what)


def test_a_mistake(write: Callable[..., FeedRun], make_patient: MakePatient) -> None:
    run, patient = write(extra="stages {"), make_patient()
    (finding,) = found(patient.doctor(str(run.config)), "configuration", ".")
    assert finding["severity"] == "wrong" and "ringfeed check" in finding["advice"]


def test_a_budget_that_is_too_small(
    write: Callable[..., FeedRun], make_patient: MakePatient
) -> None:
    run, patient = write(extra="storage { memory_budget_bytes: 2000000 }"), make_patient()
    finding = only(patient, run, "memory_budget_bytes allows")
    assert "lower" in finding["advice"]
    program, verb, config, *words = shlex.split(finding["mend"])
    assert (program, verb, config) == ("ringfeed", "run", str(run.config))
    is_gone(patient, run, "memory_budget_bytes allows", *words)


def test_too_few_files(write: Callable[..., FeedRun], make_patient: MakePatient) -> None:
    run, patient = write(), make_patient()
    patient.do("ulimit -n 90")
    finding = only(patient, run, "90 are possible")
    assert finding["severity"] == "wrong"
    assert finding["mend"].startswith("prlimit") or "limits.conf" in finding["advice"]


def test_a_segment_that_is_too_large_for_a_file(
    write: Callable[..., FeedRun], make_patient: MakePatient
) -> None:
    run, patient = write(), make_patient()
    patient.do("ulimit -S -f 1000")
    patient.mend(only(patient, run, "RLIMIT_FSIZE")["mend"])
    is_gone(patient, run, "RLIMIT_FSIZE")


def test_storage_that_is_not_there_or_too_small(
    write: Callable[..., FeedRun], make_patient: MakePatient, place: Path
) -> None:
    run, patient = write(extra=f'storage {{ directory: "{place}/store" }}'), make_patient(MOUNTS)
    patient.mend(only(patient, run, "store is no directory")["mend"])
    is_gone(patient, run, "store is no directory")
    patient.do("mount -t tmpfs -o size=1m tmpfs store")
    patient.mend(only(patient, run, "store has .* free")["mend"])
    is_gone(patient, run, "store has .* free")


@pytest.mark.parametrize("named", ["configuration", "option"])
def test_a_socket_path_that_is_too_long(
    named: str, write: Callable[..., FeedRun], make_patient: MakePatient, place: Path
) -> None:
    """The printed command starts the feed: neither of them is overruled by a variable."""
    long = f"{place}/{'x' * 100}"
    run = write(epochs=0, extra=f'control {{ directory: "{long}" }}' * (named == "configuration"))
    patient = make_patient(MOUNTS)
    patient.do("mount -t tmpfs -o mode=755 tmpfs /run")
    words = ["--socket-dir", long] if named == "option" else []
    finding = only(patient, run, "107 are possible", *words)
    patient.do(f"{{ {finding['mend']}; }} >feed.log 2>&1 &")
    at = finding["mend"].split()[-1]
    status = f"ringfeed status lc0 --socket-dir {at} --json"
    wait_until(lambda: '"RUNNING"' in patient.attempt(status)[1], "the feed to run")
    is_gone(patient, run, "107 are possible", "--socket-dir", at)
    patient.do(f"ringfeed stop lc0 --now --socket-dir {at} && wait")


def leave(group: Path) -> None:
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group to be empty")
    group.rmdir()


@pytest.fixture
def control_group() -> Iterator[Callable[[str], Path]]:
    """Makes groups of version 1 below the root; a shell enters one by its cgroup.procs."""
    made: list[Path] = []

    def make(controller: str) -> Path:
        if not (GROUPS / controller).is_dir():
            pytest.skip("the kernel has no control groups of version 1")
        group = GROUPS / controller / f"ringfeed-doctor-{os.getpid()}"
        group.mkdir()
        made.append(group)
        return group

    yield make
    for group in made:
        leave(group)


LIMITS = [
    ("memory", "memory.limit_in_bytes", 200 << 20, "memory", r"control group has .* left"),
    ("pids", "pids.max", 60, "processes", "pids.max is 60"),
    ("cpu", "cpu.cfs_quota_us", 50000, "processors", "gives time for 0.5"),
]


@pytest.mark.parametrize(("controller", "file", "value", "check", "what"), LIMITS)
def test_a_control_group_that_is_small(
    controller: str,
    file: str,
    value: int,
    check: str,
    what: str,
    control_group: Callable[[str], Path],
    make_patient: MakePatient,
) -> None:
    group = control_group(controller)
    patient = make_patient()
    assert not found(patient.doctor(), check, what)
    patient.do(f"echo {value} > {group}/{file} && echo $$ > {group}/cgroup.procs")
    (finding,) = found(patient.doctor(), check, what)
    assert str(group / file) in finding["mend"]
    patient.mend(finding["mend"])
    assert not found(patient.doctor(), check, what)
    patient.close()


# The same of version 2, as files over those of the machine.
FILES = [
    ("memory.max", "104857600", "memory", r"control group has 100.0 MiB of 100.0 MiB left"),
    ("memory.high", "104857600", "memory", "memory.high"),
    ("pids.max", "5", "processes", "pids.max is 5"),
    ("cpu.max", "50000 100000", "processors", "gives time for 0.5"),
]


@pytest.mark.parametrize(("file", "text", "check", "what"), FILES)
def test_a_control_group_of_version_2(
    file: str, text: str, check: str, what: str, make_patient: MakePatient
) -> None:
    if "0::" not in Path("/proc/self/cgroup").read_text():
        pytest.skip("the kernel has no control groups of version 2")
    patient = make_patient(MOUNTS)
    patient.do(f"mount -t tmpfs tmpfs {GROUPS} && echo {text} > {GROUPS}/{file}")
    (finding,) = found(patient.doctor(), check, what)
    patient.mend(finding["mend"])
    assert not found(patient.doctor(), check, what)


@pytest.mark.parametrize("target", ["log", "snapshot"])
def test_a_place_for_writing_in_a_directory_of_others(
    target: str, write: Callable[..., FeedRun], make_patient: MakePatient
) -> None:
    """What is to be made there is made; the directory stays theirs."""
    patient = make_patient()
    key = {"log": "file", "snapshot": "every_s: 60 directory"}[target]
    run = write(extra=f'{target} {{ {key}: "{patient.directory}/theirs/ours" }}')
    patient.user = STRANGER
    patient.do("mkdir -m 755 theirs")
    patient.mend(only(patient, run, "theirs/ours cannot be made")["mend"])
    is_gone(patient, run, "theirs/ours")
    assert patient.do("stat -c '%a %u' theirs").strip() == "755 0"


def test_a_feed_that_does_not_fit_its_control_group(
    write: Callable[..., FeedRun], make_patient: MakePatient
) -> None:
    if "0::" not in Path("/proc/self/cgroup").read_text():
        pytest.skip("the kernel has no control groups of version 2")
    run, patient = write(), make_patient(MOUNTS)
    patient.do(f"mount -t tmpfs tmpfs {GROUPS} && echo {50 << 20} > {GROUPS}/memory.max")
    finding = only(patient, run, "needs .* the control group has")
    assert "lower" in finding["advice"]
    patient.mend(finding["mend"])
    is_gone(patient, run, "the control group has")
