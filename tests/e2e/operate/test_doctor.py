"""`ringfeed doctor`: faults are planted, each for real; it finds them, and the command that it prints
mends them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import runs, wait_until
from tests.support.feeds.patient import MOUNTS, STRANGER, Patient, can, found

PROCESSES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc")
USERS = ("unshare", "--user", "--map-root-user")
CAPABILITY = ("setpriv", "--bounding-set=-sys_resource")

MakePatient = Callable[..., Patient]


def _raises_limits(inside: tuple[str, ...]) -> bool:
    return can(*inside, "bash", "-c", "ulimit -n 99 && ulimit -n 199 && exec $0")


@dataclass(frozen=True)
class Fault:
    name: str
    check: str
    severity: str
    what: str  # pattern of the sentence
    plant: str  # commands of a shell
    inside: tuple[str, ...] = ()
    user: int | None = None
    program: str | None = None  # the doctor's own, if not that of the build
    mend: str | None = None  # instead of the printed command, where that cannot be run here
    printed: str = "."  # pattern of the printed command; "": there is none
    words: str = ""
    hard: bool = False  # a hard limit, which takes a capability to be raised
    before: str = ""  # commands that make a machine on which the fault is not there


WRONG, BETTER = "wrong", "could_be_better"
SOCKETS = 'mkdir -m 700 "$RINGFEED_SOCKET_DIR"'


def tmpfs(options: str, at: str) -> str:
    return f"mkdir -p {at} && mount -t tmpfs -o mode=755,{options} tmpfs {at}"


LIMITS = [
    Fault("no_files", "open_files", WRONG, "32 files", "ulimit -n 32", hard=True),
    Fault("few_files", "open_files", BETTER, "512 files", "ulimit -n 512", hard=True),
    Fault(
        "little_address_space", "address_space", BETTER, "RLIMIT_AS", "ulimit -v 4000000", hard=True
    ),
    Fault("soft_address_space", "address_space", BETTER, "RLIMIT_AS", "ulimit -S -v 4000000"),
    Fault("short_files", "file_size", BETTER, "RLIMIT_FSIZE", "ulimit -f 100000", hard=True),
    Fault("small_stack", "stack", BETTER, "1.0 MiB of stack", "ulimit -s 1024", hard=True),
    Fault("few_processes", "processes", WRONG, "0 more", "ulimit -u 1", user=STRANGER, hard=True),
    Fault(
        "some_processes",
        "processes",
        BETTER,
        r"RLIMIT_NPROC is 60",
        "ulimit -u 60",
        user=STRANGER,
        hard=True,
    ),
    Fault(
        "core_dumps_of_all_memory",
        "core_dumps",
        BETTER,
        "with all shared memory",
        "ulimit -c unlimited && echo 0x33 > /proc/$$/coredump_filter",
    ),
]

# Root, but not with all that root has.
LIMITS += [
    Fault(f"no_files_{name}", "open_files", WRONG, "32 files", "ulimit -n 32", inside, hard=True)
    for name, inside in (("for_users", USERS), ("without_capability", CAPABILITY))
]

KERNEL = [
    Fault(
        "no_inotify",
        "inotify",
        BETTER,
        "Too many open files",
        "sysctl -q user.max_inotify_instances=0",
        inside=USERS,
        printed="^sysctl user.max_inotify_instances=",
    ),
    Fault(
        "no_watches",
        "inotify",
        BETTER,
        "No space left",
        "sysctl -q user.max_inotify_watches=0",
        inside=USERS,
        printed="^sysctl user.max_inotify_watches=",
    ),
    Fault(
        "proc_of_processes_alone",
        "proc",
        BETTER,
        "subset=pid",
        "mount -t proc -o subset=pid proc /proc",
        inside=PROCESSES,
    ),
    Fault(
        "proc_of_own_processes_alone",
        "proc",
        BETTER,
        "hidepid=",
        "mount -o remount,hidepid=2 /proc",
        inside=PROCESSES,
        user=STRANGER,
    ),
    Fault("no_proc", "proc", WRONG, "", "umount -l /proc", inside=PROCESSES),
    Fault(
        "no_large_pages",
        "large_pages",
        BETTER,
        "enabled is never",
        "echo 'always madvise [never]' > never && "
        "mount --bind never /sys/kernel/mm/transparent_hugepage/enabled",
        inside=MOUNTS,
    ),
    Fault(
        "slow_clock",
        "clock",
        BETTER,
        "the clock is hpet",
        "d=/sys/devices/system/clocksource/clocksource0 && echo hpet > now && echo 'tsc hpet' > all"
        " && mount --bind now $d/current_clocksource && mount --bind all $d/available_clocksource",
        inside=MOUNTS,
    ),
]

# The processors as two nodes: the first of them alone, and the others.
NODES = (
    "all=$(taskset -cp $$ | sed 's/.*: //') && first=${all%%[-,]*} && mkdir -p nodes/node0 nodes/node1"
    " && echo $first > nodes/node0/cpulist && echo $((first + 1))-${all##*[-,]} > nodes/node1/cpulist"
    " && echo 0-1 > nodes/online && mount --bind nodes /sys/devices/system/node"
)
# Whatever this machine has.
ONE_NODE = (
    "mkdir -p one/node0 && echo 0 > one/online && echo 0-1023 > one/node0/cpulist"
    " && mount --bind one /sys/devices/system/node"
)
KERNEL += [
    Fault(
        "two_nodes",
        "numa",
        BETTER,
        "2 NUMA nodes",
        NODES,
        inside=MOUNTS,
        printed=r"^taskset -cp \S+ \$\$$",
        before=ONE_NODE,
    ),
    Fault(
        "pages_that_move",
        "numa",
        BETTER,
        "numa_balancing",
        f"{NODES} && echo 1 > moves && mount --bind moves /proc/sys/kernel/numa_balancing",
        inside=MOUNTS,
        mend="sysctl -q kernel.numa_balancing=0",  # the nodes stay
        printed="^sysctl kernel.numa_balancing=0$",
        before=ONE_NODE,
    ),
    Fault(
        "little_memory",
        "memory",
        WRONG,
        "100.0 MiB of .* are free",
        "sed 's/^MemAvailable:.*/MemAvailable: 102400 kB/' /proc/meminfo > memory && "
        "mount --bind memory /proc/meminfo",
        inside=MOUNTS,
        mend="umount /proc/meminfo",
        printed="",
    ),
    Fault(
        "little_is_promised",
        "memory",
        WRONG,
        "promises no more than 1.0 MiB more",
        "sed 's/^CommitLimit:.*/CommitLimit: 2048 kB/; s/^Committed_AS:.*/Committed_AS: 1024 kB/' "
        "/proc/meminfo > memory && mount --bind memory /proc/meminfo && "
        "echo 2 > strict && mount --bind strict /proc/sys/vm/overcommit_memory",
        inside=MOUNTS,
        printed="^sysctl vm.overcommit_memory=0$",
    ),
]

# A program that starts another one with less than it should have, as a container's runtime may; as long as
# the file "harmful" is there.
STARTER = """
import ctypes, os, struct, sys
FORBIDS, LARGE_PAGES, NO_PRIVILEGES, SECCOMP, FILTER, EPERM = sys.argv[1], 41, 38, 22, 2, 1
prctl = ctypes.CDLL(None, use_errno=True).prctl
def filtered(number):
    # Loads the number of the call; if it is this one it is refused, else allowed.
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | EPERM), (0x06, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
    return prctl(NO_PRIVILEGES, 1, 0, 0, 0) or prctl(SECCOMP, FILTER, program, 0, 0)
if os.path.exists("harmful"):
    if (prctl(LARGE_PAGES, 1, 0, 0, 0) if FORBIDS == "pages" else filtered(int(FORBIDS))) != 0:
        sys.exit(f"the fault cannot be planted: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[2], sys.argv[2:])
"""


def started_with(forbids: str) -> str:
    return f"python3 starter.py {forbids} $BIN/ringfeed"


PLANT_STARTER = f"cat > starter.py <<'END'\n{STARTER}END\ntouch harmful"
STARTERS = [
    Fault(
        name,
        check,
        severity,
        what,
        PLANT_STARTER,
        program=started_with(forbids),
        mend="rm harmful",
        printed="",
    )
    for name, check, severity, what, forbids in (
        ("no_pidfd_open", "system_calls", WRONG, "^pidfd_open is refused", "434"),
        ("no_futex_waitv", "system_calls", BETTER, "^futex_waitv is refused", "449"),
        ("no_pages_by_prctl", "large_pages", BETTER, "PR_SET_THP_DISABLE", "pages"),
    )
]

PLACES = [
    Fault("others_may_write", "socket_directory", WRONG, "mode 0777", "mkdir -m 777 sockets"),
    Fault(
        "of_another_user",
        "socket_directory",
        WRONG,
        f"belongs to user {STRANGER}",
        f"{SOCKETS} && chown {STRANGER} sockets",
    ),
    Fault(
        "closed",
        "socket_directory",
        WRONG,
        "cannot be written",
        'mkdir -m 755 "$RINGFEED_SOCKET_DIR"',
        user=STRANGER,
        printed="chown",
    ),
    # What others use is not taken from them.
    Fault(
        "closed_and_in_use",
        "socket_directory",
        WRONG,
        "cannot be written",
        'mkdir -m 755 "$RINGFEED_SOCKET_DIR" && touch sockets/used',
        user=STRANGER,
        mend=f"chown {STRANGER} sockets",
        printed="^mkdir -p -m 700 /tmp/ringfeed-",
    ),
    Fault(
        "for_everybody",
        "socket_directory",
        WRONG,
        "mode 1777",
        "mkdir -m 1777 sockets",
        mend="chmod 755 sockets",
        printed="^mkdir -p -m 700 /run/ringfeed",
    ),
    Fault("a_file", "socket_directory", WRONG, "not a directory", "touch sockets"),
    Fault(
        "cannot_be_made",
        "socket_directory",
        WRONG,
        "shut/s is not there and cannot be made",
        "export RINGFEED_SOCKET_DIR=$PWD/shut/s && mkdir -m 700 shut && chmod 755 shut",
        user=STRANGER,
    ),
    Fault(
        "path_too_long",
        "socket_directory",
        WRONG,
        "107 are possible",
        f"{tmpfs('size=1m', '/run')} && export RINGFEED_SOCKET_DIR=$PWD/{'x' * 100}",
        inside=MOUNTS,
    ),
    Fault(
        "path_too_long_for_some",
        "socket_directory",
        BETTER,
        "bytes only",
        f"{tmpfs('size=1m', '/run')} && export RINGFEED_SOCKET_DIR=$PWD/{'x' * 40}",
        inside=MOUNTS,
    ),
    Fault(
        "full",
        "socket_directory",
        WRONG,
        "has .* left",
        f"{tmpfs('size=64k', 'sockets')} && ! cat /dev/zero 2>&- > sockets/all",
        inside=MOUNTS,
    ),
    Fault(
        "no_more_files",
        "socket_directory",
        WRONG,
        "no room for another file",
        tmpfs("nr_inodes=1", "sockets"),
        inside=MOUNTS,
    ),
    Fault(
        "read_only",
        "socket_directory",
        WRONG,
        "Read-only",
        f"{tmpfs('ro', 'sockets')} && {tmpfs('size=1m', '/run')}",
        inside=MOUNTS,
    ),
    Fault("no_tmp", "temporary_directory", BETTER, "No such file", "export TMPDIR=$PWD/none"),
    Fault(
        "full_tmp",
        "temporary_directory",
        BETTER,
        "has .* left",
        f"{tmpfs('size=64k', 'tmp')} && export TMPDIR=$PWD/tmp",
        inside=MOUNTS,
    ),
    Fault(
        "no_place_for_dead_letters",
        "dead_letters",
        BETTER,
        "state cannot be written",
        "mkdir -m 755 state && export XDG_STATE_HOME=$PWD/state",
        user=STRANGER,
    ),
]


def copied(change: str) -> str:
    """The programs, as links but for ringfeed itself, which looks for the others beside it."""
    return (
        "mkdir bin lib && ln -s $BIN/* bin && rm bin/ringfeed && cp $BIN/ringfeed bin && "
        "ln -s $(realpath $BIN/../lib/libringfeed_arrow.so) lib && "
        f"export PATH=${{PATH#*:}} && {change}"
    )


COPY = "bin/ringfeed"
PROGRAMS = [
    Fault(
        "no_worker",
        "workers",
        WRONG,
        "ringfeed-worker",
        copied("rm bin/ringfeed-worker"),
        program=COPY,
        mend="ln -sf $BIN/ringfeed-worker bin",
        printed="",
    ),
    Fault(
        "worker_not_executable",
        "workers",
        WRONG,
        "may not be run",
        copied("cp --remove-destination $BIN/ringfeed-worker bin && chmod a-x bin/ringfeed-worker"),
        program=COPY,
        printed="^chmod a",
    ),
    Fault(
        "broken_worker",
        "workers",
        WRONG,
        "does not work",
        copied("rm bin/ringfeed-worker && cp /bin/false bin/ringfeed-worker"),
        program=COPY,
        mend="ln -sf $BIN/ringfeed-worker bin",
        printed="",
    ),
    Fault(
        "worker_of_another_version",
        "workers",
        WRONG,
        r"is version 0\.0\.9",
        copied(
            "rm bin/ringfeed-worker && sed 's/0[.]1[.]0/0.0.9/g' $BIN/ringfeed-worker "
            "> bin/ringfeed-worker && chmod 755 bin/ringfeed-worker"
        ),
        program=COPY,
        mend="ln -sf $BIN/ringfeed-worker bin",
        printed="",
    ),
    Fault(
        "no_arrow",
        "workers",
        BETTER,
        "what reads Parquet, Arrow and CSV files cannot be loaded",
        "arrow=$(realpath $BIN/../lib/libringfeed_arrow.so) && mount --bind /dev/null $arrow",
        inside=MOUNTS,
        mend="umount $arrow",
        printed="",
    ),
    Fault(
        "no_worker_for_python",
        "workers",
        BETTER,
        "there is no .*ringfeed-worker-python",
        copied("rm bin/ringfeed-worker-python"),
        program=COPY,
        mend="ln -sf $BIN/ringfeed-worker-python bin",
        printed="",
    ),
    Fault(
        "no_interpreter",
        "python",
        WRONG,
        "cannot be started",
        "export PATH=${RINGFEED_PYTHON%/*}:$PATH RINGFEED_PYTHON=/nowhere/python",
        printed="^unset RINGFEED_PYTHON$",
    ),
    Fault(
        "no_python",
        "python",
        WRONG,
        "no Python that works",
        "export RINGFEED_PYTHON=/bin/false",
        mend="unset RINGFEED_PYTHON",
        printed="",
    ),
    Fault(
        "package_of_another_version",
        "python",
        WRONG,
        r"is version 0\.0\.9",
        "mkdir -p fake/ringfeed && echo '__version__ = \"0.0.9\"' > fake/ringfeed/__init__.py && "
        "export PYTHONPATH=$PWD/fake:$PYTHONPATH",
        mend="rm -r fake",
        printed="pip install ringfeed==",
    ),
    Fault(
        "no_package",
        "python",
        BETTER,
        "cannot import ringfeed",
        "mkdir -p fake/ringfeed && echo 'raise ImportError(1)' > fake/ringfeed/__init__.py && "
        "export PYTHONPATH=$PWD/fake:$PYTHONPATH",
        mend="rm -r fake",
        printed="pip install ringfeed==",
    ),
    Fault(
        "no_numpy",
        "python",
        BETTER,
        "cannot import NumPy",
        "mkdir fake && echo 'raise ImportError(1)' > fake/numpy.py && "
        "export PYTHONPATH=$PWD/fake:$PYTHONPATH",
        mend="rm -r fake",
        printed="pip install 'numpy",
    ),
]


@pytest.mark.parametrize(
    "fault", [*LIMITS, *KERNEL, *STARTERS, *PLACES, *PROGRAMS], ids=lambda fault: fault.name
)
def test_a_fault_is_found_and_mended(fault: Fault, make_patient: MakePatient) -> None:
    patient = make_patient(fault.inside)
    patient.user = fault.user
    if fault.before:
        patient.do(fault.before)
    if fault.program is None:
        assert not found(patient.doctor(fault.words), fault.check, fault.what), "not planted yet"
    patient.do(fault.plant)
    patient.program = fault.program or patient.program

    findings = found(patient.doctor(fault.words), fault.check, fault.what)
    assert len(findings) == 1, findings
    (finding,) = findings
    assert finding["severity"] == fault.severity and finding["cost"]
    if fault.hard and not _raises_limits(fault.inside):
        # No command can: a new shell without the limit is what the other tests have.
        assert not finding["mend"] and "limits.conf" in finding["advice"], finding
        return
    if fault.printed:
        assert found([{**finding, "what": finding["mend"]}], fault.check, fault.printed), finding
    else:
        assert not finding["mend"] and finding["advice"]

    patient.mend(finding["mend"] if fault.mend is None else fault.mend)
    after = patient.doctor(fault.words)
    # Nor has another one come in its place.
    assert not found(after, fault.check, fault.what if fault.mend else "."), after


def test_an_interpreter_that_hangs_is_given_up(place: Path, make_patient: MakePatient) -> None:
    """With whatever it has started, and without harm to the other looks."""
    python = place / "python"
    python.write_text(f"#!/bin/sh\nsleep 1000 & echo $! $$ > {place}/pids\nwait\n")
    python.chmod(0o755)
    patient = make_patient(environment={"RINGFEED_PYTHON": str(python)})
    (finding,) = found(patient.doctor("--timeout", "3"), "python", "has not ended within 3 s")
    assert finding["severity"] == "not_known"
    pids = [int(pid) for pid in (place / "pids").read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not any(runs(pid) for pid in pids), "both to be gone")


def test_what_is_shown_to_people(make_patient: MakePatient) -> None:
    patient = make_patient()
    patient.do("mkdir -m 777 sockets")
    status, shown = patient.attempt("ringfeed doctor")
    assert status == 1 and "\x1b" not in shown
    assert "wrong: socket directory\n  what  others may write" in shown
    assert f"\n  mend  chmod go-w {patient.directory}/sockets\n" in shown
    assert "fine  kernel" not in shown
    status, shown = patient.attempt("ringfeed doctor --all")
    assert status == 1 and "fine  kernel" in shown
