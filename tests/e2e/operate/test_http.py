"""A feed that has `ringfeed web` started by its supervisor: http { } in its configuration."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import WAIT_S, FeedRun, runs, wait_until

MakeRun = Callable[..., FeedRun]
HTTP = 'http { listen: "127.0.0.1:0" }'


def get(address: str, **headers: str) -> str:
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return str(answer.read().decode())


def address_of(run: FeedRun) -> str:
    """Where it listens, once it does."""
    return str(wait_until(lambda: (run.status() or {}).get("http"), "ringfeed web to listen"))


def web_pid(run: FeedRun) -> int:
    """The one child of the supervisor with that name."""

    assert run.process is not None
    pid = run.process.pid

    def find() -> int:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            try:
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if words[0] == b"ringfeed-web":
                return int(child)
        return 0

    return int(wait_until(find, "the process of ringfeed web"))


def kill_web(run: FeedRun) -> None:
    """Returns when another one has taken its place."""
    pid = web_pid(run)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not runs(pid), "its end")
    wait_until(lambda: web_pid(run) != pid, "another one")


def problem_of(run: FeedRun) -> str:
    found = [text for text in (run.status() or {}).get("problems", []) if "`http`" in text]
    return found[0] if found else ""


def test_it_comes_and_goes_with_the_feed(make_run: MakeRun) -> None:
    run = make_run(epochs=0, extra=HTTP).start()
    address = address_of(run)
    feeds = json.loads(get(address + "api/v1/feeds"))["feeds"]
    assert [feed["feed"] for feed in feeds] == ["lc0"]
    pid = web_pid(run)
    run.stop(signal.SIGQUIT)
    assert not runs(pid)


def test_it_may_die_whenever_it_likes(make_run: MakeRun) -> None:
    """It is started again, and the feed notices nothing."""
    run = make_run(epochs=0, extra=HTTP).start()
    trainer = run.trainer(batches=50, group="eval")
    for _ in range(3):
        address_of(run)
        kill_web(run)
    assert "ringfeed_feed_up" in get(address_of(run) + "metrics")
    trainer.result()
    status = run.status()
    assert status is not None
    assert all(lane["restarts"] == 0 for stage in status["stages"] for lane in stage["lanes"])


def test_it_does_not_outlive_a_supervisor_that_is_killed(make_run: MakeRun) -> None:
    """The next one has its own, at the same port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = make_run(epochs=0, extra=f'http {{ listen: "127.0.0.1:{port}" }}').start()
    assert address_of(run) == f"http://127.0.0.1:{port}/"
    pid = web_pid(run)
    run.stop(signal.SIGKILL)
    wait_until(lambda: not runs(pid), "its end")
    run.start()
    assert address_of(run) == f"http://127.0.0.1:{port}/"
    assert "ringfeed_feed_up" in get(f"http://127.0.0.1:{port}/metrics")


def test_a_port_that_is_taken_is_a_problem_and_no_more(make_run: MakeRun) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = make_run(epochs=0, extra=f'http {{ listen: "127.0.0.1:{port}" }}').start()
        problem = wait_until(lambda: problem_of(run), "the problem")
        assert f"127.0.0.1:{port}" in problem or str(port) in problem
        run.trainer(batches=5, group="eval").result()
    address_of(run)
    wait_until(lambda: not problem_of(run), "the problem to be over")


def test_nothing_is_readable_without_the_token(make_run: MakeRun, tmp_path: Path) -> None:
    token = tmp_path / "token"
    run = make_run(
        epochs=0, extra=f'http {{ listen: "127.0.0.1:0" token_file: "{token}" }}'
    ).start()
    assert str(token) in wait_until(lambda: problem_of(run), "the problem")
    token.write_text("0123456789abcdef\n")
    address = address_of(run) + "metrics"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get(address)
    assert "ringfeed_feed_up" in get(address, Authorization="Bearer 0123456789abcdef")


@pytest.mark.parametrize(
    ("http", "said"),
    [
        ("http { }", "http has no listen"),
        ('http { listen: "train.example:80" }', "an address and a port are wanted"),
        ('http { listen: "0.0.0.0:80" }', "everybody who reaches 0.0.0.0:80 can read"),
    ],
)
def test_check_knows_it(make_run: MakeRun, http: str, said: str) -> None:
    run = make_run(extra=http)
    done = run.command("check", str(run.config))
    assert said in done.stdout + done.stderr
    assert done.returncode == (0 if "0.0.0.0" in http else 3)


def test_waits_and_restarts_are_counted(make_run: MakeRun) -> None:
    """By the trainers, and by the signal."""
    run = make_run(epochs=0, extra=HTTP).start()
    run.trainer(batches=20, group="eval").result()
    address = address_of(run) + "metrics"
    status = run.status()
    assert status is not None
    lane = status["stages"][-1]["lanes"][0]
    os.kill(lane["pid"], signal.SIGKILL)

    def counted() -> str:
        text = get(address)
        return text if 'signal="SIGKILL"} 1' in text else ""

    text = wait_until(counted, "the restart to be counted")
    count = 'ringfeed_trainer_wait_seconds_count{feed="lc0",output="",group="eval"} '
    [line] = [line for line in text.splitlines() if line.startswith(count)]
    assert float(line.removeprefix(count)) == 20
    parts = [line for line in text.splitlines() if line.startswith("ringfeed_memory_part_bytes{")]
    [total] = [line for line in text.splitlines() if line.startswith("ringfeed_memory_bytes{")]
    assert sum(float(line.rpartition(" ")[2]) for line in parts) == float(total.rpartition(" ")[2])
