"""Messages to the stages of a running feed: from the command line, Python and the loader."""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import ringfeed
from ringfeed._core import control, native

from tests.support.feeds.feed_run import BIN, FeedRun, stop, wait_until
from tests.support.feeds.scenes import kill_supervisor
from tests.support.makers import lc0_data
from tests.support.oracles import lc0_reference

MakeRun = Callable[..., FeedRun]
RESET = "chunk_pool_request { reset_chunk_anchor: true }"
QUERY = "chunk_pool_request {}"


def ask(run: FeedRun, message: str, *words: str) -> dict[str, dict[str, object]]:
    """Answers of `ringfeed control`: stage name to chunk_pool_response."""
    done = run.command("control", run.feed, message, "--json", *words)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return {name: answer["chunk_pool_response"] for name, answer in answers.items()}


def ready(run: FeedRun) -> FeedRun:
    run.start()
    wait_until(lambda: " window_ready " in run.text(), "the window")
    return run


def test_the_anchor_by_the_command_line(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = ready(make_run(epochs=0))
    newest = max(path.name for path in lc0_reference.game_files(games.directory))
    assert ask(run, QUERY) == {"pool": {"chunk_anchor": "", "chunks_since_anchor": 125}}
    assert ask(run, RESET, "--stage", "pool")["pool"] == {
        "chunk_anchor": newest,
        "chunks_since_anchor": 125,
    }
    assert ask(run, QUERY)["pool"] == {"chunk_anchor": newest, "chunks_since_anchor": 0}
    source = lc0_reference.game_files(games.directory)[0]
    shown = run.command("control", "lc0", 'chunk_pool_request { set_chunk_anchor: "somewhere" }')
    assert "pool: chunk_pool_response" in shown.stdout and "somewhere" in shown.stdout
    # It goes with the feed, over the supervisor's death.
    assert run.process is not None
    run.process.kill()
    run.process.wait()
    run.start()
    wait_until(lambda: run.status(), "the next supervisor")
    assert ask(run, QUERY)["pool"]["chunk_anchor"] == "somewhere"
    assert source.exists()


def test_new_games_are_counted(make_run: MakeRun, games: lc0_data.Manifest, tmp_path: Path) -> None:
    directory = tmp_path / "growing"
    directory.mkdir()
    files = [path for path in lc0_reference.game_files(games.directory) if path.suffix == ".gz"]
    shutil.copy(files[0], directory / "000.gz")
    run = ready(make_run(directory, epochs=0, extra="", pool=1000))
    ask(run, RESET)
    for number, file in enumerate(files[1:4], 1):
        shutil.copy(file, directory / ".new")
        os.rename(directory / ".new", directory / f"{number:03}.gz")
    wait_until(lambda: ask(run, QUERY)["pool"]["chunks_since_anchor"] == 3, "three new games")


def test_what_cannot_be_sent_is_refused(make_run: MakeRun) -> None:
    run = ready(make_run(epochs=0))
    wrong = run.command("control", "lc0", "chunk_pool_request { no_such_field: 1 }")
    assert wrong.returncode == 2 and "no_such_field" in wrong.stderr
    unknown = run.command("control", "lc0", QUERY, "--stage", "nobody")
    assert unknown.returncode == 1 and "no stage 'nobody'" in unknown.stderr
    other = run.command("control", "lc0", QUERY, "--stage", "unpacker")
    assert other.returncode == 1
    assert "stage 'unpacker' does not answer chunk_pool_request" in other.stderr
    nobody = run.command("control", "lc0", "epoch_planner_request {}")
    assert (
        nobody.returncode == 1
        and "no stage of feed 'lc0' answers epoch_planner_request" in nobody.stderr
    )
    empty = run.command("control", "lc0", "")
    assert empty.returncode == 1 and "the message is empty" in empty.stderr
    both = run.command("control", "lc0", QUERY + " epoch_planner_request {}", "--json")
    assert list(json.loads(both.stdout)) == ["pool"], "who it is for answers, nobody else"
    assert run.command("control", "nobody", QUERY).returncode == 4


def test_from_python(make_run: MakeRun) -> None:
    run = ready(make_run(epochs=0))
    request = control.bytes_field(1, control.number_field(1, 1))  # reset_chunk_anchor
    with ringfeed.attach("lc0", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        with pytest.raises(ringfeed.FeedRefused, match="does not know, and no stage of feed 'lc0'"):
            feed.control(control.bytes_field(99, b""))
        with pytest.raises(ringfeed.FeedRefused, match="3 bytes that cannot be read"):
            feed.control(b"\xff\xff\xff")
        damaged = control.bytes_field(1, b"\x0a\x7f")  # a pool's request, cut short
        with pytest.raises(ringfeed.FeedRefused, match="bytes that cannot be read"):
            feed.control(damaged, stage="pool")
        ((stage, answer),) = feed.control(request, stage="pool")
        assert stage == "pool" and answer
        with pytest.raises(ringfeed.FeedRefused, match="does not answer chunk_pool_request"):
            feed.control(request, stage="sampler")
        with pytest.raises(ringfeed.FeedRefused, match="no stage 'nobody'"):
            feed.control(request, stage="nobody")
    assert ask(run, QUERY)["pool"]["chunks_since_anchor"] == 0


def test_from_c(make_run: MakeRun) -> None:
    run = ready(make_run(epochs=0))
    library = native._library
    kind = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64
    )
    answers: list[tuple[bytes, bytes]] = []

    @kind
    def note(_user: object, stage: bytes, response: int, size: int) -> None:
        answers.append((stage, ctypes.string_at(response, size)))

    library.rf_control.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int64, kind,
        ctypes.c_void_p,
    ]  # fmt: skip
    reset = control.bytes_field(1, control.number_field(1, 1))
    with ringfeed.attach("lc0", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        raw = feed._handle.raw
        assert library.rf_control(raw, None, reset, len(reset), 30_000, note, None) == 0
        ((stage, response),) = answers
        assert stage == b"pool"
        ((number, answer),) = control.fields(response)
        assert number == 1 and (2, 125) in list(control.fields(answer))
        assert library.rf_control(raw, b"sampler", reset, len(reset), 30_000, note, None) == -4
        assert b"does not answer chunk_pool_request" in library.rf_last_error(raw)
        assert len(answers) == 1
        assert library.rf_control(raw, b"nobody", reset, len(reset), 30_000, note, None) == -4
        assert b"no stage 'nobody'" in library.rf_last_error(raw)
    assert ask(run, QUERY)["pool"]["chunks_since_anchor"] == 0


def test_each_message_takes_effect_once_whoever_is_killed(
    make_run: MakeRun, games: lc0_data.Manifest, tmp_path: Path
) -> None:
    """Each reset answers the count before it: over all of them, every game that came is counted
    once.
    """
    directory = tmp_path / "growing"
    directory.mkdir()
    files = [path for path in lc0_reference.game_files(games.directory) if path.suffix == ".gz"]
    shutil.copy(files[0], directory / "000.gz")
    extra = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 }"
    run = ready(make_run(directory, epochs=0, pool=1000, extra=extra))
    counted = [ask(run, RESET)["pool"]["chunks_since_anchor"]]
    over = threading.Event()

    def kill() -> None:
        rng = random.Random(5)
        since: tuple[int, int] = 0, 0  # answers there were, and rounds since
        while not over.wait(rng.uniform(0.02, 0.15)):
            assert run.process is not None
            if run.process.poll() is not None:
                run.start()
            since = (since[0], since[1] + 1) if since[0] == len(counted) else (len(counted), 0)
            if since[1] > 40:
                continue  # a slow machine: what is killed before it is ready never answers
            victims = [pid for name, pid in run.all_workers().items() if "pool" in name]
            victims += [run.process.pid] if rng.random() < 0.3 else []
            if victims:
                try:
                    os.kill(rng.choice(victims), signal.SIGKILL)
                except ProcessLookupError:
                    pass

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for number in range(1, 41):
            shutil.copy(files[number % len(files)], directory / ".new")
            os.rename(directory / ".new", directory / f"{number:03}.gz")
            done = subprocess.run(
                [str(run.program), "control", "lc0", RESET, "--json"],
                env=run.environment,
                capture_output=True,
                text=True,
                timeout=120,
            )
            if done.returncode in (4, 5):  # no supervisor at this moment: nothing was asked
                continue
            assert done.returncode == 0, done.stderr
            answers = json.loads(done.stdout)
            if "pool" in answers:
                counted.append(answers["pool"]["chunk_pool_response"]["chunks_since_anchor"])
    finally:
        over.set()
        killer.join()

    def is_there() -> bool:
        # One that was killed last may not have died yet.
        if run.process is not None and run.process.poll() is not None:
            run.start()
        return run.status() is not None

    wait_until(is_there, "a supervisor")

    def all_counted() -> bool:
        now = ask(run, QUERY).get("pool", {}).get("chunks_since_anchor", 0)
        return sum(counted) + int(str(now)) == 41

    wait_until(all_counted, f"41 games, each counted once: {counted}")


def test_whoever_has_yet_to_find_the_next_supervisor_is_asked_too(make_run: MakeRun) -> None:
    """A worker is adopted before it has noticed: the question waits for it, and not for its time to be over."""
    run = ready(make_run(epochs=0, extra="log { level: DEBUG }"))
    workers = list(run.workers().values())
    kill_supervisor(run)
    for pid in workers:
        stop(pid)
    asking = None
    try:
        before = run.text().count("of=stage_control")
        run.start()
        wait_until(run.status, "the next supervisor")
        asking = run.command_later("control", run.feed, QUERY, "--json")
        wait_until(lambda: run.text().count("of=stage_control") > before, "the question")
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    out, err = asking.communicate(timeout=60)
    assert asking.returncode == 0, err
    assert json.loads(out)["pool"]["chunk_pool_response"]["chunks_since_anchor"] == 125


def program(path: Path, line: str) -> str:
    path.write_text(f"#!/bin/sh\necho $$ > {path}.pid\n{line}\n")
    path.chmod(0o755)
    return str(path)


def is_asked(binary: str) -> bool:
    pid = Path(f"{binary}.pid")
    return pid.exists() and pid.read_text().endswith("\n")


def test_a_program_that_does_not_answer_holds_up_nobody_else(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = ready(make_run(epochs=0))
    mute = [program(tmp_path / f"mute{i}", "exec sleep 1000") for i in range(4)]
    words = [str(run.program), "restart", run.feed, "pool", "--binary"]
    for _ in range(8):
        workers = run.workers()
        for binary in mute:
            Path(f"{binary}.pid").unlink(missing_ok=True)
        asking = [
            subprocess.Popen(
                [*words, binary], env=run.environment, stderr=subprocess.PIPE, text=True
            )
            for binary in mute
        ]
        for binary in mute:
            wait_until(lambda: is_asked(binary), "the program to be asked")
        refused = run.command("restart", run.feed, "pool", "--binary", mute[0])
        # A stage is replaced, and everybody gets an answer, before the first of them does.
        os.kill(workers["pool"], signal.SIGKILL)
        wait_until(
            lambda: run.workers().get("pool", workers["pool"]) != workers["pool"],
            "the pool's successor",
        )
        if all(process.poll() is None for process in asking):
            break
        # A machine so slow that their five seconds were over: it is tried again.
        for process in asking:
            process.communicate(timeout=60)
    assert all(process.poll() is None for process in asking)
    assert (
        refused.returncode != 0
        and "4 programs are already being asked for their plans" in refused.stderr
    )
    for process, binary in zip(asking, mute, strict=True):
        _, said = process.communicate(timeout=60)
        assert process.returncode != 0 and "has not answered within 5000 ms" in said
        pid = int(Path(f"{binary}.pid").read_text())
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the mute program's end")
    for line, reason in (
        ("exec yes", "answers without an end"),
        ("exit 3", "ended with exit status 3"),
        ("echo hello", "bytes that are not a plan"),
    ):
        other = program(tmp_path / "other", line)
        for _ in range(8):
            done = run.command("restart", run.feed, "pool", "--binary", other)
            if "has not answered within" not in done.stderr:
                break  # else a machine so slow that its five seconds were over
        assert done.returncode != 0 and reason in done.stderr, done.stderr
    assert run.status() is not None


def test_a_program_that_hangs_after_its_plan_is_given_up(make_run: MakeRun, tmp_path: Path) -> None:
    run = ready(make_run(epochs=0))
    pid = run.workers()["pool"]
    worker = BIN / "ringfeed-worker"
    hangs = program(
        tmp_path / "hangs", f'[ "$1" = --plan ] && exec {worker} --plan\nexec sleep 1000'
    )
    for _ in range(8):
        refused = run.command("restart", run.feed, "pool", "--binary", hangs)
        if "has not answered within" not in refused.stderr:
            break  # else a machine so slow that its five seconds were over
    assert refused.returncode != 0 and "before it was ready" in refused.stderr, refused.stderr
    assert "runs stage group 'pool' again" in refused.stderr
    wait_until(lambda: run.workers().get("pool") not in (None, pid), "the program before")
    with ringfeed.attach("lc0", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        next(iter(feed))
    # While it starts it is not replaced.
    wait_until(lambda: run.command("restart", run.feed, "pool").returncode == 0, "one more")


def test_a_feed_that_is_stopped_does_not_wait_for_a_program(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = ready(make_run(epochs=0))
    mute = program(tmp_path / "mute", "exec sleep 1000")
    words = [str(run.program), "restart", run.feed, "pool", "--binary", mute]
    asking = subprocess.Popen(words, env=run.environment, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: is_asked(mute), "the program to be asked")
    assert run.command("stop", run.feed, "--now").returncode == 0
    run.wait()
    assert not Path(f"/proc/{Path(f'{mute}.pid').read_text().strip()}").exists()
    _, said = asking.communicate(timeout=60)
    assert asking.returncode != 0
