"""share/containers: the manifests agree with their schemas, with each other, and with what a real feed says that is run
by their own words. scripts/image --check runs them in containers.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.feeds.feed_run import BIN, ROOT, WAIT_S, wait_until

PLACE = ROOT / "share" / "containers"
DATA = ROOT / "tests" / "data" / "lc0"
PROMETHEUS = Path(sys.prefix) / "prometheus" / "usr" / "bin"  # scripts/setup
UNITS = {"": 1, "k": 10**3, "m": 2**20, "g": 2**30, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
# For the processes themselves, beside what the feed reserves.
HEADROOM = 256 << 20


def size(text: str) -> int:
    """Bytes of a limit, as Compose (m, g: powers of 1024) and Kubernetes write it."""
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", text).groups()  # type: ignore[union-attr]
    return int(number) * UNITS[unit]


class Manifest:
    """What one of the manifests says of the feed and of the trainer."""

    def __init__(self, work: Path) -> None:
        self.words: list[str] = []
        self.config = work / "lc0.textproto"
        self.limit = self.trainer_limit = self.uid = 0
        self.train = ""
        self.mounts: dict[str, bool] = {}  # of the trainer: path to "read only"

    def check(self) -> dict[str, Any]:
        """What `ringfeed check` says of the feed as it is; the data are those of the tests."""
        # A directory for its memory: that of the manifest is a volume.
        places = [
            f"--set=stages.provider.directory={DATA}",
            f"--set=storage.directory={self.config.parent}",
        ]
        done = self.ringfeed("check", *self.words[1:], *places, "--json")
        said: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr
        return said

    @staticmethod
    def ringfeed(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "ringfeed"), *words],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )

    def text(self) -> str:
        """All that decides what the feed does: its words and its configuration."""
        return "\n".join([*self.words, self.config.read_text()])


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((PLACE / name).read_text()))


@functools.cache
def compose() -> dict[str, Any]:
    """As docker-compose takes it: checked by the schema, with values for the variables."""
    done = subprocess.run(
        ["docker-compose", "-f", str(PLACE / "compose.yaml"), "config"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


def pod() -> dict[str, Any]:
    return documents("kubernetes.yaml")[1]


def of_compose(work: Path) -> Manifest:
    found = Manifest(work)
    services = compose()["services"]
    feed, trainer = services["feed"], services["trainer"]
    # The configuration is the user's own, for example this one.
    shutil.copy(ROOT / "workers" / "pipelines" / "lc0.textproto", found.config)
    found.words = [word.replace("/etc/ringfeed/", f"{work}/") for word in feed["command"]]
    found.limit, found.trainer_limit = size(feed["mem_limit"]), size(trainer["mem_limit"])
    found.uid = int(trainer["user"].partition(":")[0])
    found.train = (PLACE / "train.py").read_text()
    for volume in trainer["volumes"]:
        _, path, how = volume.split(":")
        found.mounts[path] = how == "ro"
    return found


def of_kubernetes(work: Path) -> Manifest:
    found = Manifest(work)
    config, training = documents("kubernetes.yaml")
    [feed] = training["spec"]["initContainers"]
    [trainer] = training["spec"]["containers"]
    found.config.write_text(config["data"]["lc0.textproto"])
    found.words = [word.replace("/etc/ringfeed/", f"{work}/") for word in feed["args"]]
    found.limit = size(feed["resources"]["limits"]["memory"])
    found.trainer_limit = size(trainer["resources"]["limits"]["memory"])
    found.uid = training["spec"]["securityContext"]["runAsUser"]
    found.train = config["data"]["train.py"]
    found.mounts = {
        mount["mountPath"]: mount.get("readOnly", False) for mount in trainer["volumeMounts"]
    }
    return found


@pytest.fixture(params=[of_compose, of_kubernetes])
def manifest(request: pytest.FixtureRequest, tmp_path: Path) -> Manifest:
    found: Manifest = request.param(tmp_path)
    return found


class Feed:
    """The feed of a manifest, run here by its own words, but for places, ports and sizes."""

    def __init__(self, manifest: Manifest, work: Path) -> None:
        self.sockets, self.memory = work / "s", work / "memory"
        self.memory.mkdir()
        self.environment = {**os.environ, "RINGFEED_SOCKET_DIR": str(self.sockets)}
        self.log = work / "log"
        small = [
            "sampler.reservoir_size_per_thread=1000",
            "tensors.batch_size=32",
            "pool.chunk_pool_size=4",
        ]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [
                    *(
                        str(BIN / "ringfeed"),
                        *manifest.words,
                        f"--set=stages.provider.directory={DATA}",
                    ),
                    *(f"--set=storage.directory={self.memory}", "--set=http.listen=127.0.0.1:0"),
                    *(f"--set=stages.{one}" for one in small),
                ],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def status(self) -> dict[str, Any]:
        assert self.process.poll() is None, self.log.read_text()
        done = Manifest.ringfeed("status", "lc0", "--json", RINGFEED_SOCKET_DIR=str(self.sockets))
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def address(self) -> str:
        """Of its web server."""
        return str(wait_until(lambda: self.status().get("http"), "its web server")).split("/")[2]

    def get(self, path: str, host: str = "") -> tuple[int, str]:
        link = http.client.HTTPConnection(self.address(), timeout=WAIT_S)
        try:
            link.request("GET", path, headers={"Host": host} if host else {})
            answer = link.getresponse()
            return answer.status, answer.read().decode()
        finally:
            link.close()

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(WAIT_S)
        finally:
            self.process.kill()


@pytest.fixture
def feed(manifest: Manifest, tmp_path: Path) -> Iterator[Feed]:
    found = Feed(manifest, tmp_path)
    yield found
    found.close()


# ---- What the schemas say


def test_compose_takes_the_file() -> None:
    assert set(compose()["services"]) == {"holder", "feed", "trainer", "prometheus"}
    assert set(compose()["volumes"]) == {"run", "state"}


# 1.29 is the first in which a sidecar needs no feature gate.
@pytest.mark.parametrize("version", ["1.29.0", kubernetes_validate.latest_version()])
def test_kubernetes_takes_the_file(version: str) -> None:
    kinds = []
    for document in documents("kubernetes.yaml"):
        kubernetes_validate.validate(document, version, strict=True)
        kinds.append(document["kind"])
    assert kinds == ["ConfigMap", "Pod"]


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    mounted = compose()["services"]["prometheus"]["volumes"]
    text = (PLACE / "prometheus.yml").read_text()
    for volume in mounted:
        source, path, _ = volume.split(":")
        text = text.replace(path, str(Path(source).resolve(strict=True)))
    (tmp_path / "prometheus.yml").write_text(text)
    assert f"{ROOT}/share/prometheus/ringfeed.rules.yml" in text
    done = subprocess.run(
        [str(PROMETHEUS / "promtool"), "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0 and "1 rule files found" in done.stdout, done.stdout + done.stderr


# ---- Limits


def test_limits_agree_with_the_budget(manifest: Manifest, feed: Feed) -> None:
    """What the feed may reserve, and what the processes need beside it, is the container's limit."""
    budget = wait_until(lambda: feed.status().get("memory_budget_bytes"), "the feed's budget")
    assert manifest.limit == int(budget) + HEADROOM
    needed = manifest.check()["memory_bytes"]
    assert needed <= int(budget), "the configuration as it is does not fit"
    # The processes: private memory of all of them, with a reservoir that is small here, but reserved in shared memory.
    workers = [lane["pid"] for stage in feed.status()["stages"] for lane in stage["lanes"]]
    private = sum(private_bytes(pid) for pid in {feed.process.pid, *workers})
    assert 0 < private < HEADROOM / 2


def private_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(kib) for kib in re.findall(r"Private_\w+: *(\d+) kB", text))


def test_the_volume_has_room_for_the_budget(tmp_path: Path) -> None:
    volumes = {volume["name"]: volume for volume in pod()["spec"]["volumes"]}
    room = size(volumes["run"]["emptyDir"]["sizeLimit"])
    assert volumes["run"]["emptyDir"]["medium"] == "Memory"
    kubernetes = of_kubernetes(tmp_path)
    assert kubernetes.limit - HEADROOM <= room <= kubernetes.limit


def test_time_to_drain(feed: Feed) -> None:
    """The engine waits longer than a drain may take, which no manifest changes: 30 s."""
    proto = (ROOT / "proto" / "config.proto").read_text()
    [drain_s] = re.findall(r"drain_timeout_s = 1 \[default = (\d+)", proto)
    assert int(compose()["services"]["feed"]["stop_grace_period"].rstrip("s")) > int(drain_s)
    assert pod()["spec"]["terminationGracePeriodSeconds"] > int(drain_s)
    assert "drain_timeout_s" not in "".join(
        p.read_text() for p in PLACE.iterdir() if p.suffix == ".textproto"
    )


# ---- Probes


def probes() -> Iterator[tuple[str, int]]:
    """Path and port of every look that somebody takes at the feed."""
    [container] = pod()["spec"]["initContainers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        look = container[name]["httpGet"]
        yield look["path"], ports[look["port"]]
    text = (PLACE / "Containerfile").read_text()
    [(port, path)] = re.findall(r"urlopen\('http://127\.0\.0\.1:(\d+)(/\w+)'", text)
    yield path, int(port)


def test_probes_are_answered(manifest: Manifest, feed: Feed) -> None:
    looks = list(probes())
    assert [path for path, _ in looks] == ["/readyz", "/readyz", "/healthz", "/healthz"]
    wait_until(lambda: feed.get("/readyz")[0] == 200, "the feed to be ready without a trainer")
    for path, _ in looks:
        status, body = feed.get(path)
        assert status == 200, f"{path}: {body}"


def test_ports_are_those_of_the_feed(manifest: Manifest) -> None:
    [port] = re.findall(r'listen(?:=|: ")[\d.]+:(\d+)', manifest.text())
    assert {port} == {str(look) for _, look in probes()}
    assert f"EXPOSE {port}\n" in (PLACE / "Containerfile").read_text()
    [published] = compose()["services"]["feed"]["ports"]
    assert published.partition("/")[0] == f"127.0.0.1:{port}:{port}"
    assert pod()["metadata"]["annotations"]["prometheus.io/port"] == port


def test_prometheus_may_call_the_feed_by_its_name(tmp_path: Path) -> None:
    [scrape] = yaml.safe_load((PLACE / "prometheus.yml").read_text())["scrape_configs"]
    [name] = scrape["static_configs"][0]["targets"]
    assert name.partition(":")[0] in compose()["services"]
    feed = Feed(of_compose(tmp_path), tmp_path)
    try:
        wait_until(lambda: feed.get("/readyz")[0] == 200, "the feed to be ready")
        status, body = feed.get("/metrics", name)
        assert status == 200 and 'ringfeed_feed_up{feed="lc0"} 1' in body
        assert feed.get("/metrics", "other:9464")[0] >= 400
    finally:
        feed.close()


# ---- The trainer, and who it is


def test_the_trainer_reads(manifest: Manifest, feed: Feed, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(manifest.train)
    environment = {**feed.environment, "PYTHONUNBUFFERED": "1"}
    words = [sys.executable, str(script)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        try:
            said = [trainer.stdout.readline() for _ in range(2)]
        finally:
            trainer.kill()
    assert said == [f"batch {n}: 32 rows, planes (32, 112, 8, 8)\n" for n in (1, 101)]


def test_it_runs_as_the_user_of_the_feed_and_sees_its_processes(manifest: Manifest) -> None:
    text = (PLACE / "Containerfile").read_text()
    assert re.findall(r"^ARG UID=(\d+)$", text, re.M) == [str(manifest.uid)]
    assert "\nUSER ${UID}:${UID}\n" in text and '\nENTRYPOINT ["ringfeed"]\n' in text
    # It connects to the socket, and can neither remove it nor open the feed's memory for writing.
    assert manifest.mounts["/run/ringfeed"] is True
    services = compose()["services"]
    assert {services[name]["pid"] for name in ("feed", "trainer")} == {"service:holder"}
    assert pod()["spec"]["shareProcessNamespace"] is True


def test_the_pod_keeps_to_the_restricted_profile() -> None:
    spec = pod()["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*spec["initContainers"], *spec["containers"]]:
        least = container["securityContext"]
        assert (
            least["allowPrivilegeEscalation"] is False and least["readOnlyRootFilesystem"] is True
        )
        assert least["capabilities"] == {"drop": ["ALL"]}
    assert spec["initContainers"][0]["restartPolicy"] == "Always"
