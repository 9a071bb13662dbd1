"""The units under a systemd that runs: as the first process of a container over a copy of this system's files, with the
Debian package installed. As root, with podman; run by scripts/deb --check.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BATCHES = 600
# Mounts a copy of this system, into which what is written goes with the container, and starts its systemd.
BOOT = """
mount -t tmpfs -o size=2g none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
for place in run tmp var/log/journal; do
  mkdir -p "$1/root/$place"
  mount -t tmpfs none "$1/root/$place"
done
for pair in package:$3 sources:$4 venv:$5; do
  mkdir -p "$1/root/srv/ringfeed/${pair%%:*}"
  mount --bind "${pair#*:}" "$1/root/srv/ringfeed/${pair%%:*}"
done
exec podman run --rm --name "$2" --systemd=always --rootfs "$1/root" /lib/systemd/systemd --unit=sysinit.target
"""
CONFIG = """
feed: "lc0"
seed: 7
epochs: 0
stages { name: "provider" file_path_provider { directory: "/srv/ringfeed/sources/tests/data/lc0" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages { name: "pool" shuffling_chunk_pool { input: "loader" chunk_pool_size: 4 frames {} } }
stages {
  name: "sampler"
  shuffling_frame_sampler { input: "pool" reservoir_size_per_thread: 100 queue_capacity: 256 }
}
stages { name: "tensors" tensor_generator { input: "sampler" batch_size: 16 } }
"""
# Notes number, tries and digest of each batch.
TRAINER = f"""
import hashlib, sys, time
import ringfeed
with open(sys.argv[1], "w") as out, ringfeed.attach("lc0", group="a", attach_timeout_s=60) as feed:
    for batch in feed:
        digest = hashlib.md5()
        for name in ("planes", "policy", "values"):
            digest.update(bytes(batch[name]))
        print(batch.seq, batch.tries, digest.hexdigest(), file=out, flush=True)
        time.sleep(float(sys.argv[2]))
        if batch.seq == {BATCHES}:
            break
"""
AS_RINGFEED = (
    "env RINGFEED_SOCKET_DIR={} RINGFEED_LIBRARY=/usr/lib/libringfeed.so.1 PYTHONDONTWRITEBYTECODE=1 "
    "PYTHONPATH=/srv/ringfeed/sources/pyclient setpriv --reuid ringfeed --regid ringfeed --init-groups "
)


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + 60
    while not (value := condition()):
        assert time.monotonic() < end, f"waited 60 s for {what}"
        time.sleep(0.1)
    return value


class System:
    """A copy of this system that has been booted."""

    def __init__(self, work: Path) -> None:
        self.name = f"ringfeed-check-{os.getpid()}"
        self.log = work / "boot.log"
        self.first = ""  # the process id of its systemd
        (work / "top").mkdir()
        words = [str(work / "top"), self.name, str(ROOT / "dist"), str(ROOT), sys.prefix]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-ec", BOOT, "sh", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        def booted() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            ask = ["podman", "inspect", "--format={{.State.Pid}}", self.name]
            self.first = subprocess.run(ask, capture_output=True, text=True).stdout.strip()
            if self.first in ("", "0"):
                return False
            said = self.tried("systemctl is-system-running").stdout.strip()
            return said in ("running", "degraded")

        wait_until(booted, "the system to boot")

    def words(self, command: str) -> list[str]:
        # podman exec does not find its way into mounts of another namespace.
        spaces = ["--mount", "--pid", "--cgroup", "--ipc", "--uts"]
        places = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"]
        inside = ["nsenter", f"--target={self.first}", *spaces, "env", "-i", *places]
        return [*inside, "bash", "-ec", command]

    def tried(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.words(command), capture_output=True, text=True, timeout=90)

    def said(self, command: str) -> str:
        done = self.tried(command)
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        subprocess.run(self.words(f"cat >{path}"), input=text, text=True, check=True, timeout=60)

    def show(self, name: str) -> str:
        return self.said(f"systemctl show --value -P {name} ringfeed@lc0").strip()

    def workers(self) -> list[str]:
        """Process ids."""
        return self.tried("pgrep -x -f 'ringfeed-worker --setup-fd.*'").stdout.split()

    def memory(self) -> set[str]:
        """The files that the stages' memory is, by their numbers."""
        listed = self.said(
            "for p in $(pgrep -x -f 'ringfeed-worker --setup-fd.*'); do grep memfd:lc0 /proc/$p/maps; done"
        )
        return {line.split()[4] for line in listed.splitlines()}

    def journal(self, event: str) -> list[dict[str, Any]]:
        said = self.said(f"journalctl -q -o json --no-pager -u ringfeed@lc0 RINGFEED_EVENT={event}")
        return [json.loads(line) for line in said.splitlines()]

    def close(self) -> None:
        if self.first not in ("", "0"):
            os.kill(int(self.first), signal.SIGKILL)  # and with it all that runs inside
        self.process.wait(60)
        subprocess.run(["podman", "rm", "--force", self.name], capture_output=True, timeout=90)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    made = System(tmp_path_factory.mktemp("system"))
    made.tried("apt-get purge -y ringfeed")
    made.said(
        "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /srv/ringfeed/package/ringfeed_*.deb"
    )
    made.write("/tmp/train.py", TRAINER)
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(system: System) -> list[str]:
    """What a trainer notes of the same feed without systemd."""
    system.write("/tmp/lc0.textproto", CONFIG)
    return system.said(
        "install -d -o ringfeed /tmp/apart && cd /tmp/apart\n"
        f"{AS_RINGFEED.format('/tmp/apart')} ringfeed run /tmp/lc0.textproto >log 2>&1 & feed=$!\n"
        f"{AS_RINGFEED.format('/tmp/apart')} /srv/ringfeed/venv/bin/python /tmp/train.py notes 0\n"
        "kill -QUIT $feed; wait $feed || true; cat notes"
    ).splitlines()


@pytest.fixture
def unit(system: System) -> Iterator[System]:
    """A system in which ringfeed@lc0 is started."""
    system.said("mkdir -p /etc/ringfeed /run/systemd/system/ringfeed@.service.d")
    system.write("/etc/ringfeed/lc0.textproto", CONFIG)
    # Five starts a minute are soon used up by tests.
    system.write(
        "/run/systemd/system/ringfeed@.service.d/test.conf",
        "[Unit]\nStartLimitIntervalSec=0\n[Service]\nWatchdogSec=3\n",
    )
    system.said("systemctl daemon-reload; systemctl start ringfeed@lc0")
    yield system
    system.said("systemctl stop ringfeed@lc0; rm -rf /etc/ringfeed/lc0.textproto")


class Reader:
    """A trainer inside, as the units' user."""

    def __init__(self, system: System) -> None:
        self.system = system
        system.said("install -d -o ringfeed /tmp/notes; rm -f /tmp/notes/*")
        self.process = subprocess.Popen(
            system.words(
                f"{AS_RINGFEED.format('/run/ringfeed')} /srv/ringfeed/venv/bin/python /tmp/train.py /tmp/notes/a 0.01"
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def notes(self) -> list[str]:
        return self.system.tried("cat /tmp/notes/a").stdout.splitlines()

    def wait_for(self, batches: int) -> None:
        wait_until(lambda: len(self.notes()) >= batches, f"batch {batches}")

    def all(self) -> list[str]:
        said, _ = self.process.communicate(timeout=90)
        assert self.process.returncode == 0, said
        return self.notes()


def test_it_starts_and_says_what_it_does(unit: System) -> None:
    assert unit.show("ActiveState") == "active"
    assert unit.show("StatusText").startswith(("WARMING, ", "RUNNING, "))
    assert unit.said(f"stat -c %U /proc/{unit.show('MainPID')}").strip() == "ringfeed"
    [started] = unit.journal("feed_started")
    assert started["RINGFEED_FEED"] == "lc0" and started["RINGFEED_PROCESS"] == "supervisor"
    assert started["PRIORITY"] == "6" and started["_SYSTEMD_UNIT"] == "ringfeed@lc0.service"


def test_restarts_lose_and_repeat_nothing(unit: System, undisturbed: list[str]) -> None:
    reader = Reader(unit)
    reader.wait_for(20)
    workers, memory = unit.workers(), unit.memory()
    assert workers and memory
    before = len(unit.journal("feed_adopted"))
    for number in range(1, 4):
        main = unit.show("MainPID")
        unit.said("systemctl restart ringfeed@lc0")
        assert unit.show("MainPID") != main and unit.workers() == workers
        assert len(unit.journal("feed_adopted")) == before + number
        reader.wait_for(20 + 50 * number)
    assert unit.memory() == memory
    assert reader.all() == undisturbed and len(undisturbed) == BATCHES


def test_the_watchdog_replaces_a_supervisor_that_stands_still(
    unit: System, undisturbed: list[str]
) -> None:
    reader = Reader(unit)
    reader.wait_for(20)
    workers, main = unit.workers(), unit.show("MainPID")
    unit.said("systemctl kill --kill-whom=main -s SIGSTOP ringfeed@lc0")
    wait_until(lambda: unit.show("MainPID") not in ("0", main), "another supervisor")
    wait_until(lambda: unit.show("ActiveState") == "active", "it to be ready")
    assert unit.show("NRestarts") == "1" and unit.workers() == workers
    assert "Watchdog timeout" in unit.said("journalctl -q --no-pager -u ringfeed@lc0")
    assert reader.all() == undisturbed


def test_a_reload_opens_the_log_anew(unit: System) -> None:
    unit.said("systemctl stop ringfeed@lc0")
    unit.write("/etc/ringfeed/lc0.textproto", CONFIG + 'log { file: "lc0.log" }\n')
    unit.said("systemctl start ringfeed@lc0")
    unit.said("mv /var/lib/ringfeed/lc0.log /var/lib/ringfeed/lc0.log.old")
    # A small system has no procps, whose program this is.
    unit.tried("mv /bin/kill /bin/kill.away")
    unit.said("systemctl reload ringfeed@lc0")
    unit.tried("mv /bin/kill.away /bin/kill")
    wait_until(lambda: unit.tried("test -f /var/lib/ringfeed/lc0.log").returncode == 0, "its log")
    wait_until(lambda: unit.show("ActiveState") == "active", "the end of the reload")


def test_a_restart_with_another_configuration_is_refused_and_can_be_left(unit: System) -> None:
    workers = unit.workers()
    changed = CONFIG.replace("batch_size: 16", "batch_size: 32")
    for remedy in ("the old one", "another feed"):
        unit.write("/etc/ringfeed/lc0.textproto", changed)
        assert unit.tried("systemctl restart ringfeed@lc0").returncode != 0
        assert unit.show("ExecMainStatus") == "3" and unit.show("ActiveState") == "failed"
        assert unit.workers() == workers
        if remedy == "the old one":
            unit.write("/etc/ringfeed/lc0.textproto", CONFIG)
            unit.said("systemctl start ringfeed@lc0")
            assert unit.workers() == workers
        else:
            unit.said(f"{AS_RINGFEED.format('/run/ringfeed')} ringfeed stop lc0 --now")
            unit.said("systemctl reset-failed ringfeed@lc0; systemctl start ringfeed@lc0")
            assert not set(unit.workers()) & set(workers)


def test_a_stop_leaves_nothing(unit: System) -> None:
    reader = Reader(unit)
    reader.wait_for(20)
    unit.said("systemctl stop ringfeed@lc0")
    assert unit.show("Result") == "success" and unit.workers() == []
    assert unit.said("ls /run/ringfeed") == ""
    reader.process.communicate(timeout=90)


def test_a_feed_of_another_user_leaves_the_others_theirs(unit: System) -> None:
    """The drop-in of docs/systemd.md, for one feed of two."""
    page = (ROOT / "docs" / "systemd.md").read_text()
    [drop_in] = re.findall(r"\n\n((?:    .*\n)*    User=alice\n(?:    .*\n)*)", page)
    unit.said(
        "useradd --system alice; mkdir -p /run/systemd/system/ringfeed@own.service.d /etc/ringfeed"
    )
    unit.write("/run/systemd/system/ringfeed@own.service.d/user.conf", textwrap.dedent(drop_in))
    unit.write("/etc/ringfeed/own.textproto", CONFIG.replace('feed: "lc0"', 'feed: "own"'))
    unit.said("systemctl daemon-reload; systemctl start ringfeed@own")
    main = unit.said("systemctl show --value -P MainPID ringfeed@own").strip()
    owners = unit.said(
        f"stat -c %U /proc/{main} /run/ringfeed-alice/own.sock /var/lib/ringfeed-alice "
        "/run/ringfeed /run/ringfeed/lc0.sock /var/lib/ringfeed"
    ).split()
    assert owners == ["alice"] * 3 + ["ringfeed"] * 3
    assert unit.said(f"readlink /proc/{main}/cwd").strip() == "/var/lib/ringfeed-alice"
    # Nor does a restart of the other one need what is alice's.
    unit.said("systemctl restart ringfeed@lc0; systemctl stop ringfeed@own")
    unit.said("rm -r /run/systemd/system/ringfeed@own.service.d; systemctl daemon-reload")


def test_the_web_unit_shows_it(unit: System) -> None:
    unit.said("systemctl start ringfeed-web")
    page = "python3 -c 'import urllib.request as w; print(w.urlopen(\"http://127.0.0.1:9464/metrics\").read().decode())'"
    assert 'ringfeed_feed_up{feed="lc0"} 1' in wait_until(
        lambda: unit.tried(page).stdout, "an answer"
    )
    unit.said("systemctl stop ringfeed-web")


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
