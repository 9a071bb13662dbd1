"""The verbs: feeds whose supervisor is dead, misspelt words, paths."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.feeds.feed_run import BIN, FeedRun, runs, wait_until
from tests.support.feeds.scenes import kill_supervisor
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]


def ringfeed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "ringfeed"), *words], capture_output=True, text=True, timeout=60
    )


def orphan(make_run: MakeRun) -> tuple[FeedRun, list[int]]:
    """A feed whose supervisor was killed, and the pids of its workers."""
    run = make_run(epochs=0).start()
    wait_until(lambda: "first_batch" in run.text(), "the first batch")
    workers = list(run.all_workers().values())
    kill_supervisor(run)
    assert workers and all(runs(pid) for pid in workers)
    return run, workers


def test_a_feed_without_a_supervisor_is_shown_and_left_to_the_next_one(make_run: MakeRun) -> None:
    run, workers = orphan(make_run)
    for words in (["status", "lc0"], ["status"]):
        shown = run.command(*words)
        assert shown.returncode == 5
        assert "feed lc0: orphaned" in shown.stdout and "ringfeed run CONFIG" in shown.stdout
        assert all(f"({pid})" in shown.stdout for pid in workers)
    as_json = json.loads(run.command("status", "lc0", "--json").stdout)
    assert as_json["state"] == "ORPHANED"
    assert sorted(worker["pid"] for worker in as_json["workers"]) == sorted(workers)

    stopped = run.command("stop", "lc0")
    assert stopped.returncode == 5 and "ringfeed run CONFIG" in stopped.stderr
    cleaned = run.command("clean")
    assert cleaned.returncode == 0
    assert "feed lc0: orphaned" in cleaned.stderr and "clean --force" in cleaned.stderr
    assert all(runs(pid) for pid in workers), "nobody has ended them"

    run.start()
    wait_until(lambda: "feed_adopted" in run.text() and run.status(), "the feed to be taken over")
    assert sorted(run.all_workers().values()) == sorted(workers)
    assert run.stop() == 0, run.text()


def test_stop_now_ends_a_feed_without_a_supervisor(make_run: MakeRun) -> None:
    run, workers = orphan(make_run)
    assert run.command("stop", "lc0", "--now").returncode == 0
    wait_until(lambda: not any(runs(pid) for pid in workers), "the workers to end")
    assert run.command("status", "lc0").returncode == 4
    assert not list(run.sockets.iterdir())


def test_clean_with_force_ends_a_feed_without_a_supervisor(make_run: MakeRun) -> None:
    run, workers = orphan(make_run)
    assert run.command("clean", "--force").returncode == 0
    wait_until(lambda: not any(runs(pid) for pid in workers), "the workers to end")
    assert not list(run.sockets.iterdir())


def test_clean_removes_what_no_process_holds_any_more(make_run: MakeRun) -> None:
    run, workers = orphan(make_run)
    for pid in workers:
        os.kill(pid, 9)
    wait_until(lambda: not any(runs(pid) for pid in workers), "the workers to end")
    assert run.command("clean").returncode == 0
    assert not list(run.sockets.iterdir())


def test_verbs_answer_programs_as_well(make_run: MakeRun, tmp_path: Path) -> None:
    """With --json, which each of them has that answers at all."""
    run = make_run(epochs=0).start()
    wait_until(lambda: "first_batch" in run.text(), "the first batch")

    def answer(*words: str, of: FeedRun = run) -> dict[str, Any]:
        done = of.command(*words, "--json")
        assert done.returncode == 0, (words, done.stderr)
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    assert set(answer("version")) == {"version", "json_version", "abi", "layout"}
    checked = answer("check", str(run.config), "--socket-dir", str(run.sockets))
    assert checked["ok"] and checked["feed"] == "lc0" and not checked["problems"]
    assert checked["socket"] == str(run.sockets / "lc0.sock")
    assert checked["memory_bytes"] == sum(part["bytes"] for part in checked["memory"])
    group = next(iter(run.all_workers()))
    assert answer("restart", "lc0", group)["pid"] == run.all_workers()[group]
    scaled = answer("scale", "lc0", "unpacker", "1")
    assert scaled["stage"] == "unpacker" and scaled["lanes"] == scaled["before"] == 1
    assert answer("clean") == {"cleaned": [], "left": []}
    assert answer("stop", "lc0", "--now") == {"feed": "lc0", "asked": "stop"}
    assert run.wait() == 0

    run, workers = orphan(make_run)
    (left,) = answer("clean", of=run)["left"]
    assert left["feed"] == "lc0" and all(f"({pid})" in left["why"] for pid in workers)
    (cleaned,) = answer("clean", "--force", of=run)["cleaned"]
    assert cleaned["feed"] == "lc0" and cleaned["directory"] == str(run.sockets)
    wait_until(lambda: not any(runs(pid) for pid in workers), "the workers to end")


def test_check_tells_programs_what_is_wrong(make_run: MakeRun) -> None:
    run = make_run()
    size = "stages.unpacker.queue_bytes="
    done = run.command("check", str(run.config), "--json", "--set", size + "1.5")
    assert done.returncode == 3 and done.stderr == ""
    said = json.loads(done.stdout)
    (problem,) = said["problems"]
    assert not said["ok"] and problem["stage"] == "unpacker" and problem["line"] == 1
    assert "give a size from 64 KiB to 1 TiB: a number of bytes, or with a unit" in problem["text"]
    # Too little memory is found after all else.
    budget = "storage.memory_budget_bytes=1MiB"
    done = run.command("check", str(run.config), "--json", "--set", budget)
    said = json.loads(done.stdout)
    assert done.returncode == 1 and said["ok"] is False and said["memory_bytes"] > 1 << 20
    assert "memory_budget_bytes" in said["problems"][0]["text"]
    done = run.command("check", "nothing.textproto", "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 1 and "cannot read the configuration" in said["problems"][0]["text"]


def test_a_feed_that_shuffles_begins_with_its_first_batch(make_run: MakeRun) -> None:
    run = make_run()
    done = run.command("run", str(run.config), "--from-batch", "9")
    assert done.returncode == 3 and "from_batch is 9, but this feed can begin only" in done.stderr
    assert "the batches of stage 'tensors' are not planned ahead" in done.stderr
    assert "run --resume" in done.stderr


def test_sizes_have_units_on_the_way_in_and_out(make_run: MakeRun) -> None:
    run = make_run(epochs=0)
    size = "stages.unpacker.queue_bytes="
    for given in ("1.5MiB", '"1.5 MiB"', "1572864"):
        done = run.command("check", str(run.config), "--set", size + given)
        assert "ring unpacker>sampler  1.5 MiB" in done.stdout, done.stdout
    run.start()
    wait_until(lambda: "first_batch" in run.text(), "the first batch")
    for verb in ("status", "metrics"):
        shown = run.command(verb, "lc0").stdout
        assert re.search(r" bytes_read=[0-9.]+[KM]iB ", shown), shown
    assert run.command("stop", "lc0", "--now").returncode == 0


def test_a_misspelt_verb_is_answered_with_the_nearest(tmp_path: Path) -> None:
    done = ringfeed("stauts", "lc0")
    assert done.returncode == 2 and "did you mean 'status'" in done.stderr
    done = ringfeed("xyzzy")
    assert done.returncode == 2
    assert all(verb in done.stderr for verb in ("run", "check", "status", "stop", "clean"))


def test_version_is_a_verb_and_an_option() -> None:
    assert ringfeed("--version").stdout == ringfeed("version").stdout != ""
    assert ringfeed("--version").returncode == 0


def test_run_takes_a_socket_directory_like_the_other_verbs(
    make_run: MakeRun, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    run = make_run(epochs=0).start("--socket-dir", str(elsewhere))
    wait_until((elsewhere / "lc0.sock").exists, "the socket")
    assert run.command("status", "lc0").returncode == 4
    assert run.command("status", "lc0", "--socket-dir", str(elsewhere)).returncode == 0
    assert run.command("stop", "lc0", "--now", "--socket-dir", str(elsewhere)).returncode == 0
    assert run.wait() == 0


def test_relative_paths_count_from_where_run_is_started(
    make_run: MakeRun, games: lc0_data.Manifest, tmp_path: Path
) -> None:
    shutil.copytree(games.directory, tmp_path / "here" / "games")
    run = make_run(Path("games"), epochs=0)
    checked = run.command("check", str(run.config), cwd=tmp_path)
    assert f"directory {tmp_path}/games does not exist" in checked.stderr
    checked = run.command("check", str(run.config), cwd=tmp_path / "here")
    assert checked.returncode == 0 and checked.stderr == ""


@pytest.mark.parametrize("kib", [40, 64, 100])
def test_a_small_stack_is_made_larger_or_refused_in_a_sentence(make_run: MakeRun, kib: int) -> None:
    run = make_run()
    soft = ["bash", "-c", f'ulimit -S -s {kib}; exec "$@"', "bash"]
    both = ["bash", "-c", f'ulimit -s {kib}; exec "$@"', "bash"]
    words = [str(run.program), "check", str(run.config)]
    done = subprocess.run([*both, *words], capture_output=True, text=True, env=run.environment)
    assert done.returncode == 1 and "ulimit -s 8192" in done.stderr
    words = [str(run.program), "run", str(run.config)]
    with subprocess.Popen([*soft, *words], env=run.environment) as feed:
        run.trainer().result()
        assert feed.wait(60) == 0
