"""ringfeed-web over real feeds: what it says, to whom, and what it bears."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.feeds.feed_run import ROOT, WAIT_S, FeedRun, stop, wait_until
from tests.support.feeds.prometheus import PROMETHEUS, prometheus_over
from tests.support.feeds.web import Web

Start = Callable[..., Web]


def samples_of(text: str) -> dict[str, float]:
    """By the name of a sample with its labels."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


# ---- What it says


def test_the_numbers_are_those_of_the_command_line(run: FeedRun, serve: Start) -> None:
    """Whoever reads them."""
    trainer = run.trainer(batches=20, group="eval")
    trainer.result()
    web = serve()
    found = samples_of(web.get("/metrics")[2])
    assert found['ringfeed_feed_up{feed="lc0"}'] == 1
    status = run.status()
    assert status is not None
    [output] = status["outputs"]
    assert 20 <= found['ringfeed_batches_published_total{feed="lc0",output=""}']
    assert found['ringfeed_slots{feed="lc0",output=""}'] == output["slots"]
    lanes = [lane["name"] for stage in status["stages"] for lane in stage["lanes"]]
    for lane in lanes:
        assert any(f'lane="{lane}"' in name for name in found), lane
    answer = web.json("/api/v1/feeds/lc0/status")
    assert [stage["name"] for stage in answer["stages"]] == [
        stage["name"] for stage in status["stages"]
    ]
    assert answer["config_file"] == status["config_file"]
    metrics = web.json("/api/v1/feeds/lc0/metrics")
    assert [window["seconds_wanted"] for window in metrics["windows"]] == [1, 10, 60]
    assert web.json("/api/v1/feeds/lc0/why")["bottlenecks"][0]["sentence"]
    assert web.json("/api/v1/feeds")["feeds"][0]["state"] == "RUNNING"


def test_both_text_formats(serve: Start) -> None:
    """What a collector accepts decides."""
    web = serve()
    _, headers, plain = web.get("/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    _, headers, text = web.get("/metrics", Accept=accept)
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n") and "# EOF" not in plain
    assert "# TYPE ringfeed_restarts counter" in text
    assert "# TYPE ringfeed_restarts_total counter" in plain
    names = [line.split()[2] for line in plain.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "each family once"

    def same() -> bool:
        """The feed may have been asked anew in between, and what limits it have another label."""
        plain, text = web.get("/metrics")[2], web.get("/metrics", Accept=accept)[2]
        return samples_of(plain).keys() == samples_of(text.replace("# EOF\n", "")).keys()

    wait_until(same, "the same samples in both")


@pytest.mark.parametrize("busy", [False, True])
def test_promtool_has_nothing_to_say(run: FeedRun, serve: Start, busy: bool) -> None:
    web = serve()
    if busy:
        trainer = run.trainer_after(2, positions=0, group="eval")
        os.kill(run.workers()["pool"], signal.SIGKILL)
        wait_until(
            lambda: re.search(r"ringfeed_restarts_total{.*} 1", web.get("/metrics")[2]), "it"
        )
        before = trainer.batches()
        wait_until(lambda: trainer.batches() > before, "batches after it")
        assert 'group="eval"' in web.get("/metrics")[2]
    text = web.get("/metrics")[2]
    checked = subprocess.run(
        [str(PROMETHEUS / "promtool"), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_alerts(tmp_path: Path) -> None:
    """Each is raised by what it is for, and by nothing else."""
    rules = ROOT / "share" / "prometheus" / "ringfeed.rules.yml"
    text = Path(__file__).with_name("ringfeed.rules.test.yml").read_text()
    tests = tmp_path / "tests.yml"
    tests.write_text(text.replace("RULES", str(rules)))
    for words in (["check", "rules", str(rules)], ["test", "rules", str(tests)]):
        done = subprocess.run(
            [str(PROMETHEUS / "promtool"), *words], capture_output=True, text=True, timeout=WAIT_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
    raised = {line.split()[-1] for line in rules.read_text().splitlines() if "- alert:" in line}
    assert all(text.count(f"alertname: {name}") for name in raised), "one without a test"


def test_the_alerts_ask_for_what_there_is(run: FeedRun, serve: Start) -> None:
    """No rule names a metric that ringfeed does not have."""
    run.trainer(batches=3).result()
    rules = (ROOT / "share" / "prometheus" / "ringfeed.rules.yml").read_text()
    text = serve().get("/metrics")[2]
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    named = {name.removesuffix("_sum") for name in re.findall(r"ringfeed_[a-z_]+", rules)}
    assert named <= families


def test_prometheus_scrapes_it(run: FeedRun, serve: Start, tmp_path: Path) -> None:
    """It answers questions about the feed."""
    with prometheus_over(serve(), tmp_path) as asked:
        trainer = run.trainer(positions=0)
        wait_until(
            lambda: asked('rate(ringfeed_batches_published_total{feed="lc0"}[5s]) > 0'),
            "a rate of batches",
        )
        trainer.process.kill()
        busy = 'sum by (stage) (ringfeed_stage_busy_seconds_total{stage="pool"}) > 0'
        wait_until(lambda: asked(busy), "what a stage has done")


def test_the_board_of_grafana_is_answered(run: FeedRun, serve: Start, tmp_path: Path) -> None:
    """Each of its queries, with its variables as Grafana fills them in."""
    board = json.loads((ROOT / "share" / "grafana" / "ringfeed.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) > 10
    variables = board["templating"]["list"]
    named = {variable["name"] for variable in variables}
    assert set(re.findall(r"\$(?!__)(\w+)", "".join(queries))) <= named
    of_variables = [one["query"]["query"] for one in variables if one["type"] == "query"]
    assert of_variables
    with prometheus_over(serve(), tmp_path) as asked:
        trainer = run.trainer(positions=0)
        for query in of_variables:
            wait_until(lambda query=query: asked(query) == ["lc0"], f"an answer to {query}")
        for query in queries:
            query = query.replace("$feed", ".+").replace("$__rate_interval", "5s")
            wait_until(lambda query=query: asked(query), f"an answer to {query}")
        trainer.process.kill()


def test_a_feed_is_ready_when_it_has_a_batch(run: FeedRun, serve: Start) -> None:
    """And this process lives as long as it answers."""
    web = serve()
    wait_until(lambda: web.get("/readyz")[0] == 200, "the feed to be ready")
    assert web.get("/healthz")[::2] == (200, "ok\n")
    run.stop(signal.SIGQUIT)
    wait_until(lambda: web.get("/readyz")[0] == 503, "no feed to be there")
    assert web.get("/readyz")[2] == "no feed runs\n"
    assert web.get("/healthz")[0] == 200


@pytest.mark.parametrize("run", [{"groups": 'groups { name: "train" }'}], indirect=True)
def test_a_group_that_has_lost_its_trainers_keeps_a_feed_from_being_ready(
    run: FeedRun, serve: Start
) -> None:
    """One that waits for its first does not: it may be the one who waits for the feed to be ready."""
    web = serve()
    wait_until(
        lambda: "waits for group 'train'" in (run.status() or {}).get("reason", ""), "full slots"
    )
    wait_until(lambda: web.get("/readyz")[0] == 200, "the feed to be ready")
    trainer = run.trainer_after(2, group="train", positions=0, pause_ms=5)
    trainer.process.kill()
    wait_until(lambda: web.get("/readyz")[0] == 503, "its trainer to be missed")
    assert "group 'train' holds it up: it has lost its trainers" in web.get("/readyz")[2]
    run.trainer_after(2, group="train", positions=0)
    wait_until(lambda: web.get("/readyz")[0] == 200, "the next one")


def test_a_supervisor_that_is_stopped_holds_nobody_up(run: FeedRun, serve: Start) -> None:
    """Its feed does not answer, and that is the answer."""
    web = serve()
    assert run.process is not None
    stop(run.process.pid)
    try:
        wait_until(lambda: web.get("/readyz")[0] == 503, "the answer that it does not answer")
        assert "has not answered within 2000 ms" in web.get("/readyz")[2]
        found = samples_of(web.get("/metrics")[2])
        assert found.pop('ringfeed_feed_up{feed="lc0"}') == 0
        [reason] = found
        assert 'ringfeed_feed_reason{feed="lc0",reason="its supervisor has not' in reason
        assert web.get("/api/v1/feeds/lc0/status")[0] == 503
    finally:
        run.process.send_signal(signal.SIGCONT)
    wait_until(lambda: web.get("/readyz")[0] == 200, "the feed to be ready again")


def test_a_supervisor_that_is_killed_has_a_successor(run: FeedRun, serve: Start) -> None:
    """The same server finds it; until then the feed is one without a supervisor."""
    web = serve()
    assert run.process is not None
    before = web.json("/api/v1/feeds")["feeds"][0]["supervisor_pid"]
    run.process.kill()
    run.process.wait()

    def feeds() -> list[Any]:
        found: list[Any] = web.json("/api/v1/feeds")["feeds"]
        return found

    wait_until(lambda: feeds()[0].get("state") == "ORPHANED", "the feed to have none")
    found = samples_of(web.get("/metrics")[2])
    assert found['ringfeed_feed_up{feed="lc0"}'] == 0
    assert found['ringfeed_feed_state{feed="lc0",state="ORPHANED"}'] == 1
    ready, _, why = web.get("/readyz")
    assert ready == 503 and f"(process {before}) is dead" in why, why
    run.start()
    wait_until(lambda: feeds()[0]["up"], "the feed to have one")
    assert feeds()[0]["supervisor_pid"] not in (0, before)


def test_a_feed_without_a_supervisor_goes_with_its_workers(run: FeedRun, serve: Start) -> None:
    web = serve()
    assert run.process is not None
    run.process.kill()
    run.process.wait()
    wait_until(lambda: web.json("/api/v1/feeds")["feeds"][0].get("state"), "no supervisor")
    run.command("stop", run.feed, "--now")
    wait_until(lambda: web.json("/api/v1/feeds")["feeds"] == [], "the feed to be gone")


def test_events_go_on(run: FeedRun, serve: Start) -> None:
    """A status a second, of one feed or of all; the death of a stage is in it."""
    web = serve()
    for path in ("/api/v1/feeds/lc0/events", "/api/v1/events"):
        with urllib.request.urlopen(f"{web.url}{path}", timeout=WAIT_S) as stream:
            assert stream.headers["Content-Type"] == "text/event-stream"
            restarts = []
            for line in stream:
                if not line.startswith(b"data: "):
                    continue
                [view] = json.loads(line[6:])
                lanes = [lane for stage in view["status"]["stages"] for lane in stage["lanes"]]
                restarts.append(sum(lane["restarts"] for lane in lanes))
                if len(restarts) == 1:
                    os.kill(next(iter(run.workers().values())), signal.SIGKILL)
                if restarts[-1] > restarts[0]:
                    break
    assert web.get("/api/v1/feeds/none/events")[0] == 404


# ---- To whom


def test_other_sites_get_nothing(serve: Start) -> None:
    """Neither by a name that leads here (rebinding), nor from a page of theirs."""
    web = serve("--allow-host", "train.example")
    here = f"127.0.0.1:{web.port}"
    for host in (here, "localhost", "train.example:80", "[::1]:9464"):
        assert web.get("/metrics", Host=host)[0] == 200
    for host in ("evil.example", f"evil.example:{web.port}", "", "127.0.0.1.evil.example"):
        for path in ("/metrics", "/", "/healthz", "/api/v1/feeds"):
            status, _, body = web.get(path, Host=host)
            assert status in (400, 421) and "lc0" not in body
    assert web.get("/metrics", Host=here, Origin=f"http://{here}")[0] == 200
    for origin in ("http://evil.example", "null", f"https://{here}"):
        assert web.get("/metrics", Host=here, Origin=origin)[0] == 403
    _, headers, _ = web.get("/metrics")
    assert "Access-Control-Allow-Origin" not in headers


def test_a_token(serve: Start, tmp_path: Path) -> None:
    """Without it nothing of a feed can be read; the page can, and asks for it."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdefXYZ\n")
    web = serve("--token-file", str(token))
    feeds = "/api/v1/feeds"
    ask = [f"{feeds}/lc0/{what}" for what in ("status", "metrics", "why", "graph", "events")]
    data = ("/metrics", "/readyz", "/api/v1/events", feeds, f"{feeds}/nobody/status", *ask)
    wrong = ("", "Bearer", "Bearer ", "Bearer 0123456789abcdefXY", "Bearer 0123456789abcdefXYZZ")
    for path in data:
        for given in (*wrong, "Basic 0123456789abcdefXYZ", "bearer"):
            for method in ("GET", "HEAD"):
                status, headers, body = web.get(path, method, Authorization=given)
                assert status == 401 and headers["WWW-Authenticate"].startswith("Bearer")
                assert "lc0" not in body
    assert web.get("/metrics", Authorization="Bearer 0123456789abcdefXYZ")[0] == 200
    assert web.get("/")[0] == web.get("/healthz")[0] == 200


def test_a_short_token_is_refused(run: FeedRun, tmp_path: Path) -> None:
    """As a wrong address is, and one that is taken."""
    token = tmp_path / "token"
    token.write_text("short\n")
    program = [str(run.program), "web"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        for words, text in (
            (["--token-file", str(token)], "a token of 16 characters and more is wanted"),
            (["--token-file", str(tmp_path / "none")], "the token cannot be read"),
            (["--listen", "train.example:80"], "an address and a port are wanted"),
            (["--listen", "127.0.0.1:70000"], "an address and a port are wanted"),
            (["--listen", at], f"cannot listen at 127.0.0.1 port {taken.getsockname()[1]}"),
        ):
            done = subprocess.run(
                [*program, *words], capture_output=True, text=True, timeout=WAIT_S
            )
            assert done.returncode == 1 and text in done.stderr, done.stderr


# ---- What it bears


def raw(web: Web, request: bytes) -> bytes:
    """All that is answered to these bytes."""
    with web.connect() as link:
        link.sendall(request)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := link.recv(1 << 16):
                answer += data
        return answer


def test_requests_that_are_none(serve: Start) -> None:
    """Each gets an error or the end of its connection; the next one is answered."""
    web = serve()
    host = f"Host: 127.0.0.1:{web.port}\r\n".encode()
    for request, status in (
        (b"\r\n\r\n", b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n" + host + b"\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"400"),
        (b"GET / HTTP/1.1\r\n" + host + b"X: " + b"a" * 20_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + host + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + host + b"Content-Length: 99999999999\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\n" + host + b"Content-Length: x\r\n\r\n", b"400"),
        (
            b"GET / HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
            b"413",
        ),
        (b"POST / HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n", b"405"),
        (b"DELETE /api/v1/feeds HTTP/1.1\r\n" + host + b"\r\n", b"405"),
        (b"CONNECT x:1 HTTP/1.1\r\n" + host + b"\r\n", b"405"),
        (b"GET http://evil.example/ HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n", b"404"),
        (b"GET * HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n", b"404"),
    ):
        answer = raw(web, request)
        assert answer[9:12] == status, (request[:80], answer[:200])
        assert web.get("/healthz")[0] == 200
    for path in (
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/page.css/..",
        "/api/v1/feeds/../../x",
    ):
        assert web.get(path)[0] == 404
    assert web.get("/metrics?" + "x=1&" * 1000)[0] == 200


def test_head_is_an_answer_without_its_body(serve: Start) -> None:
    web = serve()
    status, headers, body = web.get("/", "HEAD")
    assert status == 200 and body == "" and int(headers["Content-Length"]) > 1000
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    tag = web.get("/")[1]["ETag"]
    assert web.get("/", If_None_Match=tag)[::2] == (304, "")


def test_many_that_ask_slowly(run: FeedRun, serve: Start) -> None:
    """Hundreds of them are disconnected in time, and keep nobody out; the feed does not see them."""
    web = serve()
    trainer = run.trainer(positions=0)
    wait_until(lambda: trainer.batches() > 3, "batches")
    with contextlib.ExitStack() as links:
        held = [links.enter_context(web.connect()) for _ in range(500)]
        for number, link in enumerate(held):
            with contextlib.suppress(OSError):
                link.sendall(b"GET / HT" if number % 2 else b"")
        before = trainer.batches()
        assert web.get("/healthz")[0] == 200
        assert web.get("/metrics")[0] == 200
        wait_until(lambda: trainer.batches() > before, "more batches")
        descriptors = len(os.listdir(f"/proc/{web.process.pid}/fd"))
        assert descriptors < 300
        # A byte now and then does not make it longer.
        patient = links.enter_context(web.connect())
        patient.setblocking(False)

        def dropped() -> bool:
            try:
                if not patient.recv(100):
                    return True
            except BlockingIOError:
                pass
            except OSError:
                return True
            with contextlib.suppress(OSError):
                patient.send(b"G")
            return False

        wait_until(dropped, "whoever asks slowly to be disconnected")
    assert web.get("/healthz")[0] == 200


def test_many_streams(run: FeedRun, serve: Start) -> None:
    """There are no more than a few at a time, and room again when these go."""
    web = serve()
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\n\r\n".encode()
    with contextlib.ExitStack() as links:
        answers = []
        for _ in range(60):
            link = links.enter_context(web.connect())
            link.sendall(request)
            answers.append(link)
        first = [link.recv(12) for link in answers]
        assert first.count(b"HTTP/1.1 200") == 32 and first.count(b"HTTP/1.1 503") == 28
        assert web.get("/healthz")[0] == 200
    wait_until(lambda: raw_status(web, request) == b"200", "room for a stream")


def raw_status(web: Web, request: bytes) -> bytes:
    with web.connect() as link:
        link.sendall(request)
        return link.recv(12)[9:12]


def test_few_descriptors(run: FeedRun, serve: Start) -> None:
    """Fewer connections then, and every one is served."""
    import resource

    web = serve(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120)))
    with contextlib.ExitStack() as links:
        for _ in range(200):
            links.enter_context(web.connect())
        assert web.get("/metrics")[0] == 200
    assert web.get("/readyz")[0] == 200
