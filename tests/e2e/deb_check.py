"""The Debian package, dist/ringfeed_*.deb: installed, used and removed in a copy of this system's files, which goes
with the test. As root; run by scripts/deb --check.
"""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "lc0"
POSITIONS = 133 + 89 + 26 + 76
# What apt and dpkg write for any package, and the caches of others.
THEIRS = re.compile(
    r"(var/(lib/(dpkg|apt|systemd|ucf)|cache|log|tmp)|tmp|run|dev|proc|sys|root|"
    r"etc/(passwd|group|g?shadow|subuid|subgid)-?|etc/ld\.so\.cache|etc/\.pwd\.lock|etc/mtab|usr/share/mime)(/|$)"
)
# Mounts what the tests change over this system: what is written lies in $1/upper.
MOUNT = """
set -e
mount -t tmpfs -o size=2g none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"  # of the processes in here
for place in sys dev; do mount --rbind "/$place" "$1/root/$place"; done
for place in run tmp; do mount -t tmpfs none "$1/root/$place"; done
mkdir "$1/root/tmp/package"
mount --bind "$2" "$1/root/tmp/package"
mkdir "$1/root/tmp/sources"
mount --bind "$3" "$1/root/tmp/sources"
echo ready
exec sleep infinity
"""


class System:
    """A copy of this system's files, with processes of its own."""

    def __init__(self, work: Path) -> None:
        self.top = work
        words = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
        ]
        self.holder = subprocess.Popen(
            [*words, "sh", "-c", MOUNT, "sh", str(work), str(ROOT / "dist"), str(ROOT)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout is not None and self.holder.stderr is not None
        if self.holder.stdout.readline() != "ready\n":
            pytest.fail(f"no copy of this system's files: {self.holder.stderr.read()}")
        self.inside = f"/proc/{self.holder.pid}/ns"

    def words(self, command: str) -> list[str]:
        children = (
            Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()
        )
        return [
            "nsenter", f"--mount=/proc/{children[0]}/ns/mnt", f"--pid=/proc/{children[0]}/ns/pid",
            "chroot", f"{self.top}/root", "/bin/bash", "-ec", command,
        ]  # fmt: skip

    def tried(self, command: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
        }
        environment["DEBIAN_FRONTEND"] = "noninteractive"
        return subprocess.run(
            self.words(command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
        )

    def said(self, command: str) -> str:
        done = self.tried(command)
        assert done.returncode == 0, f"{command}:\n{done.stdout}"
        return done.stdout

    def written(self) -> set[str]:
        """Files that differ from this system's, without those of apt and of others' caches."""
        found = self.said(f"true; cd /; echo {self.top}")  # it lives
        assert found
        listing = subprocess.run(
            ["nsenter", *self.words("")[1:3], "find", f"{self.top}/upper", "-mindepth", "1",
             "-not", "-type", "d", "-printf", "%P %y\n"],
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip
        files = {
            line.rpartition(" ")[0] for line in listing.splitlines() if not line.endswith(" c")
        }
        return {file for file in files if not THEIRS.match(file)}

    def close(self) -> None:
        self.holder.kill()  # and with it the processes inside
        self.holder.wait(60)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    assert os.geteuid() == 0, "mounts, and installs: needs root"
    made = System(tmp_path_factory.mktemp("system"))
    # What this machine may have of an earlier installation is none of the package's.
    made.said("apt-get purge -y ringfeed >/dev/null 2>&1 || true")
    yield made
    made.close()


def test_it_installs(system: System) -> None:
    said = system.said("apt-get install -y --no-install-recommends /tmp/package/ringfeed_*.deb")
    assert "error" not in said.lower() and "warning" not in said.lower(), said
    assert re.match(r"ringfeed \d+\.\d+\.\d+", system.said("ringfeed version"))
    assert "/usr/bin/ringfeed\n" in system.said("command -v ringfeed")


def test_no_library_is_looked_for_where_it_was_built(system: System) -> None:
    programs = "/usr/bin/ringfeed* /usr/lib/libringfeed*.so /usr/lib/ringfeed/*.so"
    said = system.said(f"for program in {programs}; do readelf -d $program; done | grep -i path")
    assert {line.split("[")[1] for line in said.splitlines()} == {"$ORIGIN]"}
    for file in (
        "bin/ringfeed",
        "bin/ringfeed-worker",
        "bin/ringfeed-worker-python",
        "lib/ringfeed/libringfeed_arrow.so",
    ):
        assert "not found" not in system.said(f"ldd /usr/{file}")


def test_lintian_finds_no_error(system: System) -> None:
    said = system.tried("lintian --fail-on error --tag-display-limit 0 /tmp/package/ringfeed_*.deb")
    assert said.returncode == 0, said.stdout


def test_manual_pages_and_completion_are_found(system: System) -> None:
    for page in ("ringfeed", "ringfeed-run", "ringfeed-status"):
        assert system.said(f"man -w {page}").startswith("/usr/share/man/man1/")
    offered = system.said(
        "source /usr/share/bash-completion/bash_completion; _completion_loader ringfeed || [ $? = 124 ]; complete -p ringfeed"
    )
    assert "ringfeed" in offered


def test_units_are_right(system: System) -> None:
    for unit in ("ringfeed@lc0.service", "ringfeed-web.service"):
        done = system.tried(
            f"systemd-analyze verify /usr/lib/systemd/system/{unit.replace('@lc0', '@')}"
        )
        assert done.returncode == 0 and "ringfeed" not in done.stdout, done.stdout
    assert system.said("stat -c %U:%a /run/ringfeed") == "ringfeed:750\n"


RUN = """
cd /tmp
cc -Wall -Werror -o trainer sources/docs/examples/own_trainer/trainer.c $(pkg-config --cflags --libs ringfeed)
sed 's/feed_output {/feed_output { groups { name: "c_trainer" }/' /usr/share/ringfeed/pipelines/lc0.textproto >lc0.textproto
chmod 755 . trainer; chmod 644 lc0.textproto
cat >as_ringfeed <<'END'
export RINGFEED_SOCKET_DIR=/run/ringfeed
ringfeed run /tmp/lc0.textproto --set stages.provider.directory=/tmp/sources/tests/data/lc0 --set epochs=1 \
  --set stages.pool.chunk_pool_size=100 --set stages.tensors.batch_size=32 &
feed=$!
until [ -S /run/ringfeed/lc0.sock ]; do kill -0 $feed; sleep 0.1; done
/tmp/trainer lc0 values
wait $feed
END
setpriv --reuid ringfeed --regid ringfeed --init-groups timeout 60 bash -e as_ringfeed
"""


def test_a_feed_of_the_units_user_is_read_through_the_library(system: System) -> None:
    said = system.said(RUN)
    assert re.search(rf"\b{POSITIONS}\b", said), said


def test_parquet_files_are_read_without_pyarrow(system: System) -> None:
    system.said("! /usr/bin/python3 -c 'import pyarrow' 2>/dev/null")
    made = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"number": [1, 2, 3]}), made)
    text = base64.b64encode(made.getvalue()).decode()
    shown = system.said(
        f"echo {text} | base64 -d >/tmp/a.parquet && ringfeed inspect /tmp/a.parquet"
    )
    assert "a Parquet file with 3 rows" in shown


def test_it_is_removed_clean(system: System) -> None:
    system.said("apt-get purge -y ringfeed")
    assert system.written() == set()
    left = system.said(
        "find /usr /etc /run /var/lib -xdev -path '*ringfeed*' -not -path '/var/lib/dpkg/*' "
        "-not -path '/var/lib/containers/*' 2>/dev/null || true"
    )
    assert left == ""


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
