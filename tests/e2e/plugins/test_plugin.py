"""Feeds with a stage that ringfeed does not have: of docs/examples/own_stage, as a plug-in."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ringfeed

from tests.support.feeds.feed_run import BIN, FeedRun, wait_until
from tests.support.feeds.scenes import kill_a_worker, kill_supervisor

OWN_WORKER = BIN / "own_worker"
PLUGIN_WORKER = BIN / "plugin_worker"  # dies of a text with "poison" in it
FILTER = """
stages {{ name: "long" plugin {{
  kind: "word_filter" input: "lines" threads: {lanes} max_threads: 4
  options: '{{"min_words": 3, "max_words": 20, "count_field": "words"}}' }} }}
"""
ZIPPED = """
feed: "own"
seed: 7
epochs: 1
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{ input: "provider" }} }}
stages {{ name: "others" file_path_provider {{ directory: "{others}" }} }}
stages {{ name: "other_lines" sample_source {{ input: "others" }} }}
stages {{ name: "both" plugin {{ kind: "zipper" input: "lines" input: "other_lines" }} }}
stages {{ name: "batches" sample_batcher {{
  input: "both" batch_size: 4 fields {{ name: "id" dtype: "int64" }} }} }}
stage_groups {{ name: "in" stages: ["provider", "lines", "others", "other_lines"] }}
stage_groups {{ name: "own" stages: ["both", "batches"] }}
feed_output {{ slots: 2 }}
{extra}
"""
STAGES = """
feed: "own"
seed: 7
epochs: {epochs}
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{ input: "provider" queue_capacity: 256 }} }}
%s
stages {{ name: "shuffled" sample_shuffler {{ input: "long" size: 50 }} }}
stages {{ name: "batches" sample_batcher {{
  input: "shuffled" batch_size: 16
  fields {{ name: "id" dtype: "int64" }}
  fields {{ name: "words" dtype: "int64" }} }} }}
stage_groups {{ name: "in" stages: ["provider", "lines"] }}
stage_groups {{ name: "own" stages: ["long"] }}
stage_groups {{ name: "out" stages: ["shuffled", "batches"] }}
feed_output {{ slots: 4 }}
{extra}
"""
OFTEN = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: 255 }"
Row = tuple[int, int]
MakeOwn = Callable[..., FeedRun]


def write(directory: Path, count: int = 1500, poison: int = -1) -> list[Row]:
    """Lines with 0 to 30 words, and what a filter of 3 to 20 words lets through."""
    directory.mkdir(exist_ok=True)
    rng = random.Random(5)
    kept: list[Row] = []
    with (directory / "a.jsonl").open("w") as lines:
        for i in range(count):
            words = rng.randrange(31)
            text = " ".join("wörd" for _ in range(words))
            if i == poison:
                text += " poison poison poison"
            elif 3 <= words <= 20:
                kept.append((i, words))
            lines.write(json.dumps({"id": i, "text": text}) + "\n")
        lines.write(json.dumps({"id": -1}) + "\n")  # no text
        lines.write(json.dumps({"id": -2, "text": 5}) + "\n")  # no text either
    return kept


@pytest.fixture
def make_own(tmp_path: Path) -> Iterator[MakeOwn]:
    made: list[FeedRun] = []

    def make(pipeline: str = STAGES % FILTER, **settings: Any) -> FeedRun:
        work = tmp_path / f"run{len(made)}"
        work.mkdir()
        values = {"feed": "own", "pipeline": pipeline, "lanes": 1, **settings}
        made.append(FeedRun(work, tmp_path / "data", **values))
        return made[-1]

    yield make
    for run in made:
        run.close()


def program_of(pid: int) -> str:
    """Its path; "" of one that has just ended."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def rows_of(
    run: FeedRun, meanwhile: Callable[[int], None] = lambda batches: None, ends: bool = True
) -> list[Row]:
    got: list[Row] = []
    with ringfeed.attach("own", socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60) as feed:
        for number, batch in enumerate(feed):
            got += zip(batch["id"].tolist(), batch["words"].tolist(), strict=True)
            batch.release()
            meanwhile(number)
    if ends:
        assert run.wait() == 0, run.text()
    return got


def test_a_stage_of_ones_own_in_a_whole_pipeline(make_own: MakeOwn, tmp_path: Path) -> None:
    kept = write(tmp_path / "data")
    run = make_own(epochs=2).start("--worker", str(OWN_WORKER))
    programs: set[str] = set()
    got = rows_of(run, lambda _: programs.update(map(program_of, run.workers().values())))
    assert sorted(got) == sorted(kept * 2)
    assert programs == {str(OWN_WORKER)}
    text = run.text()
    assert "skipped_no_text stage=long" in text
    assert "skipped_no_text=4" in text and "samples_short=" in text and "samples_long=" in text


def test_lanes_and_deaths_change_no_batch(make_own: MakeOwn, tmp_path: Path) -> None:
    write(tmp_path / "data")
    worker = f'worker: "{OWN_WORKER}" {OFTEN}'
    want = rows_of(make_own(epochs=2, extra=worker).start())
    assert rows_of(make_own(epochs=2, lanes=3, extra=worker).start()) == want
    run = make_own(epochs=2, lanes=2, extra=worker).start()
    rng = random.Random(11)
    killed: list[str] = []

    def kill(batch: int) -> None:
        if batch % 4 == 0:
            killed.append(kill_a_worker(run, rng, "own"))

    assert rows_of(run, kill) == want
    # The last one makes batches until the trainer has nearly all of them.
    assert len(killed) > 5 and all(killed[:6]) and "own" in killed
    assert "worker_restarted feed=own group=own" in run.text()


def test_the_next_supervisor_takes_the_feed_over(make_own: MakeOwn, tmp_path: Path) -> None:
    write(tmp_path / "data")
    want = rows_of(make_own(epochs=4).start("--worker", str(OWN_WORKER)))
    moved = tmp_path / "moved_worker"
    shutil.copy2(OWN_WORKER, moved)
    run = make_own(epochs=4).start("--worker", str(OWN_WORKER))
    before: dict[str, int] = {}

    def take_over(batch: int) -> None:
        if batch == 3:
            before.update(run.workers())
            kill_supervisor(run)
            # It may be another program for the same stages; those that run go on.
            run.start("--worker", str(moved))
            wait_until(lambda: "feed_taken_over" in run.text() or run.status(), "the next one")
            assert run.all_workers() == before
            os.kill(before["own"], signal.SIGKILL)
            wait_until(
                lambda: program_of(run.all_workers().get("own", os.getpid())) == str(moved),
                "the other program",
            )

    assert rows_of(run, take_over) == want
    assert before


def test_a_snapshot_goes_on_with_the_plugin(make_own: MakeOwn, tmp_path: Path) -> None:
    write(tmp_path / "data")
    want = rows_of(make_own().start("--worker", str(OWN_WORKER)))
    run = make_own().start("--worker", str(OWN_WORKER))
    got: list[Row] = []
    with ringfeed.attach("own", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        for _ in range(7):
            batch = feed.next()
            got += zip(batch["id"].tolist(), batch["words"].tolist(), strict=True)
            batch.release()
        feed.snapshot(tmp_path / "saved")
    run.command("stop", "own", "--now")
    wait_until(lambda: run.process and run.process.poll() is not None, "the end")
    # The configuration that is saved names the worker; one elsewhere may go on with it.
    moved = tmp_path / "moved_worker"
    shutil.copy2(OWN_WORKER, moved)
    again = make_own().start("--resume", str(tmp_path / "saved"), "--worker", str(moved))
    assert got + rows_of(again) == want


def test_a_newer_program_replaces_the_plugin(make_own: MakeOwn, tmp_path: Path) -> None:
    kept = write(tmp_path / "data")
    run = make_own(epochs=3)
    run.environment["RINGFEED_TEST_STATE_VERSION"] = "2"  # of the program that dies
    run.start("--worker", str(OWN_WORKER))
    newer = tmp_path / "newer_worker"
    shutil.copy2(OWN_WORKER, newer)
    said: list[str] = []

    def restart(batch: int) -> None:
        if batch != 2:
            return
        done = run.command("restart", "own", "own", "--binary", str(newer))
        assert done.returncode == 0, done.stderr
        assert program_of(run.workers()["own"]) == str(newer)
        for program in (PLUGIN_WORKER, BIN / "ringfeed-worker"):
            done = run.command("restart", "own", "own", "--binary", str(program))
            assert done.returncode == 1, program
            said.append(done.stderr)

    assert sorted(rows_of(run, restart)) == sorted(kept * 3)
    assert "lays out the memory of stage 'long' differently" in said[0]
    assert "which this worker" in said[1] or "this worker has none" in said[1]


def test_what_kills_it_is_set_aside_and_replayed(make_own: MakeOwn, tmp_path: Path) -> None:
    kept = write(tmp_path / "data", poison=700)
    letters = tmp_path / "letters"
    run = make_own(
        extra=f'worker: "{PLUGIN_WORKER}" restart {{ max_attempts: 2 dead_letters: "{letters}" }}'
    ).start()
    assert sorted(rows_of(run)) == sorted(kept)
    (letter,) = letters.glob("*.record")
    # The letter names the plug-in that it needs.
    again = run.command("dead-letters", "--replay", str(letter), "--timeout", "50")
    assert again.returncode == 6, again.stdout + again.stderr
    mended = run.command(
        *("dead-letters", "--replay", str(letter), "--timeout", "50", "--binary", str(OWN_WORKER))
    )
    assert mended.returncode == 0, mended.stdout + mended.stderr


def test_a_stage_with_several_inputs(make_own: MakeOwn, tmp_path: Path) -> None:
    for name, first in (("data", 0), ("others", 1000)):
        (tmp_path / name).mkdir()
        lines = [json.dumps({"id": first + i}) for i in range(300)]
        (tmp_path / name / "a.jsonl").write_text("\n".join(lines))
    run = make_own(
        ZIPPED, others=tmp_path / "others", extra=f'worker: "{PLUGIN_WORKER}" {OFTEN}'
    ).start()
    got: list[int] = []
    with ringfeed.attach("own", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        for number, batch in enumerate(feed):
            got += batch["id"].tolist()
            batch.release()
            if number % 20 == 10 and (workers := run.workers()):
                os.kill(workers["own"], signal.SIGKILL)
    assert run.wait() == 0, run.text()
    assert got == [first + i for i in range(300) for first in (0, 1000)]
    assert "worker_restarted feed=own group=own" in run.text()
    one = run.command("check", str(run.config), "--set", 'stages.both.input=["lines"]')
    assert one.returncode == 3 and "give at least two inputs" in one.stderr


STACKED = """
feed: "own"
seed: 7
epochs: 1
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{ input: "provider" }} }}
stages {{ name: "batches" plugin {{
  kind: "stacker" input: "lines" options: '{{"batch_size": 16}}' }} }}
stage_groups {{ name: "in" stages: ["provider", "lines"] }}
stage_groups {{ name: "own" stages: ["batches"] }}
feed_output {{ slots: 3 }}
{extra}
"""


@pytest.mark.parametrize("rest", ["", "drop_remainder: true"])
def test_a_plugin_makes_batches(make_own: MakeOwn, tmp_path: Path, rest: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text("\n".join(json.dumps({"id": i}) for i in range(1000)))
    run = make_own(STACKED, extra=f'worker: "{PLUGIN_WORKER}" {OFTEN} {rest}').start()
    sizes: list[int] = []
    ids: list[int] = []
    with ringfeed.attach("own", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        assert {name: spec.shape for name, spec in feed.schema.items()} == {
            "ids": (-1,),
            "squares": (-1, 2),
        }
        for number, batch in enumerate(feed):
            sizes.append(batch.rows)
            ids += batch["ids"].tolist()
            assert batch["squares"].tolist() == [[i, i * i] for i in batch["ids"].tolist()]
            batch.release()
            if number % 15 == 7 and (workers := run.workers()):
                os.kill(workers["own"], signal.SIGKILL)
    assert run.wait() == 0, run.text()
    full = [16] * 62
    assert sizes == (full if rest else [*full, 8])
    assert ids == list(range(sum(sizes)))
    assert "worker_restarted feed=own group=own" in run.text()


def test_lanes_are_scaled(make_own: MakeOwn, tmp_path: Path) -> None:
    write(tmp_path / "data")
    want = rows_of(make_own(epochs=3).start("--worker", str(OWN_WORKER)))
    run = make_own(epochs=3).start("--worker", str(OWN_WORKER))

    def scale(batch: int) -> None:
        if batch == 2:
            done = run.command("scale", "own", "long", "3")
            assert done.returncode == 0, done.stderr

    assert rows_of(run, scale) == want


def test_metrics_name_the_kind_of_the_plugin(make_own: MakeOwn, tmp_path: Path) -> None:
    write(tmp_path / "data")
    run = make_own(epochs=0).start("--worker", str(OWN_WORKER))
    wait_until(lambda: run.status(), "the feed")
    status = run.status()
    assert status
    kinds = {stage["name"]: stage["kind"] for stage in status["stages"]}
    assert kinds["long"] == "word_filter"
    done = run.command("metrics", "own", "--json")
    stages = json.loads(done.stdout)["total"]["stage_metrics"]
    (counted,) = (stage["word_filter"] for stage in stages if stage["name"] == "long")
    assert set(counted) >= {"samples_short", "samples_long", "skipped_no_text"}
    run.command("stop", "own", "--now")
    run.wait()


# ------------------------------------------------------------------------------------ what is wrong


def said(run: FeedRun, *words: str) -> str:
    done = run.command("check", str(run.config), *words)
    assert done.returncode == 3, done.stdout + done.stderr
    return done.stderr


@pytest.fixture
def run(make_own: MakeOwn, tmp_path: Path) -> FeedRun:
    write(tmp_path / "data", 3)
    return make_own()


def test_a_kind_without_its_plugin_is_refused(run: FeedRun) -> None:
    text = said(run)
    # One mistake, one message: nothing is said of the stages beside it.
    assert text.count("\n") == 1
    assert 'kind is "word_filter", a plug-in\'s stage, and this worker has none' in text
    assert "with --worker PATH, or worker:" in text
    assert ":9:3: stage 'long'" in text
    started = run.start().wait()
    assert started == 3 and "this worker has none" in run.text()


def test_what_is_no_plugin_is_refused_by_name(run: FeedRun, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 0\n")
    silent.chmod(0o755)
    for program, text in (
        (tmp_path / "missing", "does not exist"),
        (tmp_path, "is a directory"),
        (plain, "may not be run by this user"),
        (silent, "is no program of ringfeed's"),
        (Path("/bin/false"), "ended with exit status 1"),
        (Path("/bin/echo"), "are not a plan"),
    ):
        refused = said(run, "--worker", str(program))
        assert str(program) in refused and text in refused, refused
    # In the file it has a place.
    with run.config.open("a") as config:
        config.write(f'\nworker: "{tmp_path}/missing"\n')
    assert f"{run.config}:" in (text := said(run)) and "missing does not exist" in text


def varint(number: int) -> bytes:
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def test_a_plugin_of_another_version_is_refused(run: FeedRun, tmp_path: Path) -> None:
    # A PipelinePlan with worker_version (2) and abi (3).
    plan = tmp_path / "plan"
    plan.write_bytes(b"\x12" + varint(6) + b"0.0.99" + b"\x18" + varint(1))
    old = tmp_path / "old"
    old.write_text(f"#!/bin/sh\nexec cat {plan}\n")
    old.chmod(0o755)
    text = said(run, "--worker", str(old))
    assert f"worker {old} was built with ringfeed 0.0.99 (ABI 1), and this is" in text
    assert "build it again with this one" in text
    # One whose headers are not those of the library that it finds.
    text = said(run, "--worker", str(BIN / "stale_worker"))
    assert "compiled with headers of another version of ringfeed than" in text


def test_a_plugin_without_its_library_says_so(run: FeedRun, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copy2(OWN_WORKER, alone)
    library = b"libringfeed_worker.so."
    content = alone.read_bytes()
    assert library in content
    alone.write_bytes(content.replace(library, b"libringfeed_wanted.so."))
    text = said(run, "--worker", str(alone))
    assert "error while loading shared libraries" in text and "exit status 127" in text


def test_options_are_checked_where_they_are_declared(run: FeedRun) -> None:
    def refused(options: str) -> str:
        return said(run, "--worker", str(OWN_WORKER), "--set", f"stages.long.options={options}")

    assert "gives min_words as -1; give a whole number, from 0" in refused('{"min_words": -1}')
    assert (
        'gives "min_word", which a word_filter does not have; it has field, min_words'
        in refused('{"min_word": 1}')
    )
    # What the stage itself finds.
    assert "nothing would be let through; raise max_words" in refused(
        '{"min_words": 5, "max_words": 2}'
    )
    text = said(run, "--worker", str(OWN_WORKER), "--set", "stages.long.kind=word_flter")
    assert 'kind is "word_flter", which this plug-in does not have; it has word_filter' in text
    text = said(run, "--worker", str(OWN_WORKER), "--set", "stages.long.input=[]")
    assert "input is missing; name the stage that outputs samples: lines" in text


def test_stages_shows_what_a_plugin_has() -> None:
    def stages(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "ringfeed", "stages", *words], capture_output=True, text=True, timeout=60
        )

    plugin = ("--worker", str(OWN_WORKER))
    listed = stages(*plugin).stdout
    assert f"plug-in {OWN_WORKER}\n  word_filter" in listed
    page = stages("word_filter", *plugin).stdout
    assert "Options\n  field  text" in page and "samples_short  Samples with too few words." in page
    (kind,) = (
        kind
        for kind in json.loads(stages("--json", *plugin).stdout)["kinds"]
        if kind["kind"] == "word_filter"
    )
    assert [option["name"] for option in kind["options"]] == [
        *("field", "min_words", "max_words", "count_field"),
    ]
    assert kind["options"][1] == {
        **{"name": "min_words", "type": "whole number", "default": "1", "range": "from 0"},
        "text": "A text with fewer words is left out.",
    }
    assert stages("word_filter").returncode == 2, "without its plug-in there is no such kind"
    assert "does not exist" in stages("--worker", "/nowhere/worker").stderr
