"""The container image, run by podman with the words of share/containers/compose.yaml: a feed and trainers in containers of
their own, which are killed. As root; run by scripts/image --check.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load(
    (ROOT / "share" / "containers" / "compose.yaml").read_text()
)
DATA = ROOT / "tests" / "data" / "lc0"
IMAGE = os.environ.get("RINGFEED_CHECK_IMAGE", "localhost/ringfeed-check")
OUTSIDE = Path(os.environ.get("RINGFEED_CHECK_OUTSIDE", "."))  # the wheel, unpacked
BATCHES = 400
SMALL = [
    "--set=stages.pool.chunk_pool_size=4",
    "--set=stages.sampler.reservoir_size_per_thread=200",
    "--set=stages.tensors.batch_size=16",
]
# Notes number, tries and digest of each batch.
TRAINER = (
    """
import hashlib, sys, time
import ringfeed
path, pause = sys.argv[1], float(sys.argv[2])
with open(path, "a") as out, ringfeed.attach("lc0", group="a", timeout_s=60, attach_timeout_s=60) as feed:
    for batch in feed:
        digest = hashlib.md5()
        for name in ("planes", "policy", "values"):
            digest.update(bytes(batch[name]))
        print(batch.seq, digest.hexdigest(), file=out, flush=True)
        time.sleep(pause)
        if batch.seq >= %d:
            break
"""
    % BATCHES
)


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + 60
    while not (value := condition()):
        assert time.monotonic() < end, f"waited 60 s for {what}"
        time.sleep(0.05)
    return value


def podman(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=90)
    assert not check or done.returncode == 0, f"podman {' '.join(words)}: {done.stderr}"
    return done


class Containers:
    """Those of compose.yaml, started one by one. What is ours has names that begin with the prefix."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.prefix = f"ringfeed-check-{os.getpid()}-"
        self.started: list[str] = []
        (work / "train.py").write_text(TRAINER)
        work.chmod(0o755)
        (work / "notes").mkdir()
        (work / "notes").chmod(0o777)
        config = (ROOT / "workers" / "pipelines" / "lc0.textproto").read_text()
        (work / "lc0.textproto").write_text(config)
        for name, volume in COMPOSE["volumes"].items():
            options = (volume or {}).get("driver_opts", {})
            words = [f"--opt={key}={value}" for key, value in options.items()]
            podman("volume", "create", *words, self.prefix + name)
        self.start("holder")

    def words(self, service: str, **changes: Any) -> list[str]:
        """The options of `podman run` that say what compose.yaml says."""
        spec = {**COMPOSE["services"][service], **changes}
        words = [f"--memory={spec['mem_limit']}"]
        words += ["--read-only"] * spec.get("read_only", False)
        words += [f"--cap-drop={one}" for one in spec.get("cap_drop", [])]
        words += [f"--security-opt={one}" for one in spec.get("security_opt", [])]
        words += [f"--tmpfs={one}" for one in spec.get("tmpfs", [])]
        words += [f"--env={name}={value}" for name, value in spec.get("environment", {}).items()]
        words += [f"--user={spec['user']}"] if "user" in spec else []
        words += [f"--restart={spec['restart']}"] if "restart" in spec else []
        if spec.get("pid", "").startswith("service:"):
            words += [f"--pid=container:{self.prefix}{spec['pid'].partition(':')[2]}"]
        places = {
            "${DATA:-./data}": DATA,
            "${CONFIG:-./lc0.textproto}": self.work / "lc0.textproto",
            "${TRAIN:-./train.py}": self.work / "train.py",
        }
        for volume in spec["volumes"]:
            for name in COMPOSE["volumes"]:
                if volume.startswith(f"{name}:"):
                    volume = self.prefix + volume
            for variable, place in places.items():
                volume = volume.replace(variable, str(place))
            words.append(f"--volume={volume}")
        entry = spec.get("entrypoint")
        words += [f"--entrypoint={json.dumps(entry)}"] if entry else []
        return [*words, *spec.get("options", []), IMAGE, *spec.get("command", [])]

    def start(self, service: str, name: str = "", **changes: Any) -> str:
        name = self.prefix + (name or service)
        self.started.append(name)
        podman("run", "--detach", f"--name={name}", *self.words(service, **changes))
        return name

    def feed(self, *words: str, **changes: Any) -> str:
        command = [*COMPOSE["services"]["feed"]["command"], *SMALL, *words]
        return self.start("feed", command=command, **changes)

    def trainer(self, name: str = "trainer", pause_s: float = 0, **changes: Any) -> str:
        """Its notes are in notes/NAME."""
        volumes = [*COMPOSE["services"]["trainer"]["volumes"], f"{self.work}/notes:/notes"]
        command = [f"/notes/{name}", str(pause_s)]
        return self.start("trainer", name, volumes=volumes, command=command, **changes)

    def notes(self, name: str = "trainer") -> list[str]:
        path = self.work / "notes" / name
        return path.read_text().splitlines() if path.exists() else []

    def pid(self, name: str) -> int:
        """0: it does not run."""
        return int(podman("inspect", "--format={{.State.Pid}}", name).stdout)

    def kill(self, name: str) -> int:
        """Not by podman, which would take it for a wish. The process that was killed."""
        pid = int(wait_until(lambda: self.pid(name), f"{name} to run"))
        os.kill(pid, signal.SIGKILL)
        return pid

    def log(self, name: str) -> str:
        done = podman("logs", name)
        return done.stdout + done.stderr

    def ended(self, name: str) -> int:
        """Its exit status."""

        def status() -> list[str]:
            words = podman("inspect", "--format={{.State.Status}} {{.State.ExitCode}}", name).stdout
            return words.split() if words.startswith("exited") else []

        return int(wait_until(status, f"the end of {name}")[1])

    def close(self) -> None:
        for name in reversed(self.started):
            podman("rm", "--force", "--volumes", "--time=1", name, check=False)
        for name in COMPOSE["volumes"]:
            podman("volume", "rm", "--force", self.prefix + name, check=False)


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    found = Containers(tmp_path)
    yield found
    found.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a trainer notes of the same feed without containers."""
    work = tmp_path_factory.mktemp("outside")
    (work / "train.py").write_text(TRAINER)
    environment = {
        **os.environ,
        "RINGFEED_SOCKET_DIR": str(work / "s"),
        "PYTHONPATH": str(OUTSIDE),
    }
    with open(work / "log", "wb") as log:
        feed = subprocess.Popen(
            [
                *(str(OUTSIDE / "ringfeed" / "bin" / "ringfeed"), "run"),
                *(str(ROOT / "workers" / "pipelines" / "lc0.textproto"), *SMALL),
                f"--set=stages.provider.directory={DATA}",
            ],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        subprocess.run(
            [sys.executable, str(work / "train.py"), str(work / "notes"), "0"],
            env=environment,
            timeout=60,
            check=True,
        )
    finally:
        feed.send_signal(signal.SIGQUIT)
        feed.wait(60)
    return (work / "notes").read_text().splitlines()


def test_it_is_small_and_not_root() -> None:
    said = podman("run", "--rm", "--entrypoint=sh", IMAGE, "-c", "id -u; ls /opt/ringfeed/bin")
    assert said.stdout.splitlines()[0] == "64646"
    assert "ringfeed" in said.stdout and "pip" not in said.stdout
    assert podman("run", "--rm", IMAGE, "version").stdout.startswith("ringfeed ")
    sizes = [
        int(podman("image", "inspect", "--format={{.Size}}", image).stdout)
        for image in (IMAGE, "localhost/ringfeed-check-base")
    ]
    assert sizes[0] - sizes[1] < 130e6, "more than programs and NumPy"


def test_batches_are_those_of_a_run_without_containers(
    containers: Containers, undisturbed: list[str]
) -> None:
    feed = containers.feed()
    trainer = containers.trainer()
    assert containers.ended(trainer) == 0, containers.log(trainer)
    assert containers.notes() == undisturbed and len(undisturbed) == BATCHES
    assert podman("healthcheck", "run", feed).returncode == 0
    # The memory is the feed's, whoever reads it.
    [parts] = [
        json.loads(podman("exec", feed, "ringfeed", "status", "lc0", "--json").stdout)["memory"]
    ]
    whole = sum(int(part["bytes"]) for part in parts)
    said = podman("stats", "--no-stream", "--format={{.MemUsage}}", feed).stdout
    assert whole > 0 and "MB" in said, said
    # SIGTERM drains it.
    podman("stop", feed)
    assert containers.ended(feed) == 0, containers.log(feed)


def test_a_feed_that_is_killed_goes_on_in_its_next_container(
    containers: Containers, undisturbed: list[str]
) -> None:
    feed = containers.feed()
    trainer = containers.trainer(pause_s=0.01)
    for after in (100, 200):
        wait_until(lambda: len(containers.notes()) >= after, f"batch {after}")  # noqa: B023
        was = containers.kill(feed)  # what restarts it is its restart policy, or we
        wait_until(
            lambda: containers.pid(feed) != was, "the end of its first process"
        )  # noqa: B023
        if containers.pid(feed) == 0:
            podman("start", feed)
    assert containers.ended(trainer) == 0, containers.log(trainer)
    assert containers.notes() == undisturbed
    assert containers.log(feed).count("feed_adopted") == 2


def test_a_trainer_that_is_killed_goes_on_in_its_next_container(
    containers: Containers, undisturbed: list[str]
) -> None:
    feed = containers.feed()
    trainer = containers.trainer(pause_s=0.01, restart="no")
    wait_until(lambda: len(containers.notes()) >= 100, "batch 100")
    containers.kill(trainer)
    assert containers.ended(trainer) == 128 + signal.SIGKILL
    podman("start", trainer)
    assert containers.ended(trainer) == 0, containers.log(trainer) + containers.log(feed)
    # What it had in hand comes again, and nothing else.
    noted = containers.notes()
    assert sorted(set(noted), key=noted.index) == undisturbed
    assert len(noted) - len(undisturbed) <= 1


def test_a_trainer_in_another_pid_namespace_is_refused(containers: Containers) -> None:
    containers.feed()
    trainer = containers.trainer(pid="", restart="no")
    assert containers.ended(trainer) == 1
    said = containers.log(trainer)
    assert "FeedPermission: feed 'lc0' cannot watch your process (it is in a pid namespace" in said


def test_a_limit_below_what_the_feed_needs_is_refused(containers: Containers) -> None:
    feed = containers.feed(
        "--set=stages.sampler.reservoir_size_per_thread=100000", mem_limit="64m", restart="no"
    )
    assert containers.ended(feed) != 0
    assert "control group" in containers.log(feed), containers.log(feed)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
