"""`ringfeed run --report`: what the page says is what the trainers have had."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ringfeed

from tests.support.feeds import chess_feeds
from tests.support.feeds.fairseq_feeds import in_turn, members
from tests.support.feeds.feed_run import WAIT_S, FeedRun, wait_until
from tests.support.feeds.report_page import ReportPage
from tests.support.makers import chess_data, lc0_data
from tests.support.makers.fairseq_examples import example

MakeRun = Callable[..., FeedRun]

TWO_OUTPUTS = """
feed: "{feed}"
epochs: {epochs}
stages {{ name: "files" file_path_provider {{ directory: "{directory}" pattern: "*.jsonl" }} }}
stages {{ name: "lines" sample_source {{ input: "files" }} }}
stages {{ name: "batches" sample_batcher {{
  input: "lines" batch_size: 8 fields {{ name: "id" dtype: "int64" }} }} }}
stages {{ name: "other_files" file_path_provider {{
  directory: "{directory}" pattern: "*.txt" }} }}
stages {{ name: "other_lines" sample_source {{ input: "other_files" }} }}
stages {{ name: "texts" sample_batcher {{
  input: "other_lines" batch_size: 4 fields {{ name: "text" dtype: "text" }} }} }}
feed_output {{ stage: "batches" alias: "train" }}
feed_output {{ stage: "texts" alias: "valid" }}
{extra}
"""


def ended(run: FeedRun, status: int = 0) -> ReportPage:
    """The report of a run that ends by itself."""
    assert run.wait() == status, run.text()
    return ReportPage(report_of(run))


def report_of(run: FeedRun) -> Path:
    return run.work / "out.html"


def start(run: FeedRun) -> FeedRun:
    return run.start("--report", str(report_of(run)))


def assert_alone(page: ReportPage) -> None:
    """It needs nothing beside it, and runs nothing."""
    assert page.links == [] and "script" not in page.tags
    assert "http:" not in page.source and "https:" not in page.source
    assert "@import" not in page.source and "url(" not in page.source
    assert "default-src 'none'" in page.source


def test_the_numbers_are_those_of_the_trainers(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    """Two groups: each has every batch; the page has what each of them noted, and both epochs."""
    run = start(make_run(epochs=2, groups='groups { name: "a" } groups { name: "b" }'))
    trainers = {group: run.trainer(group=group, positions=0) for group in ("a", "b")}
    results = {group: trainer.result() for group, trainer in trainers.items()}
    page = ended(run)
    assert_alone(page)
    batches = len(results["a"]["numbers"])
    output = page.one(output="", batches="")
    assert output["batches"] == str(batches)
    assert output["rows"] == str(results["a"]["rows"].sum())
    for group, result in results.items():
        row = page.one(group=group, taken="")
        assert row["taken"] == str(len(result["numbers"])) and row["done"] == row["taken"]
        assert row["pid"] == str(trainers[group].process.pid) and row["fate"] == "trainer_left"
    epochs = page.of(epoch="", batches="")
    assert [row["epoch"] for row in epochs] == ["1", "2"]
    assert 0 < int(epochs[0]["batches"]) <= int(epochs[1]["batches"]) <= batches
    assert f"The feed delivered {batches} batches" in page.text.replace(",", "")
    assert "No process of a stage died" in page.text
    # The directory also has what its maker has noted; nothing else was left out.
    files = [path for path in games.directory.rglob("*") if path.is_file()]
    others = [path for path in files if path.suffix not in (".gz", ".tar")]
    left_out = page.of(stage="loader", counter="skipped_extension")
    assert {row["value"] for row in left_out} == {str(len(others))}
    assert not [row for row in page.of(counter="") if row not in left_out and "skip" in str(row)]


@pytest.mark.parametrize("settings", [{"rate": 0.001, "reservoir": 10}], ids=["slow"])
def test_the_waits_are_those_of_the_trainer(make_run: MakeRun, settings: dict[str, Any]) -> None:
    """What the client has measured itself, to the nanosecond. It was the feed that limited."""
    run = start(make_run(epochs=0, **settings))
    with ringfeed.attach(
        run.feed, group="eval", socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
    ) as feed:
        taken = 0
        # What limits is looked at once a second.
        while (stats := feed.stats()).wait_ns < 4e9:
            feed.next().release()
            taken += 1
        listed = run.status()
        assert listed is not None
        assert int(listed["trainers"][0]["waited_ns"]) == stats.wait_ns
        group = next(group for group in listed["groups"] if group["name"] == "eval")
        assert int(group["wait_ns"]) == stats.wait_ns
    run.stop(signal.SIGQUIT)
    page = ReportPage(report_of(run))
    row = page.one(group="eval", taken="")
    assert (row["taken"], row["waited-ns"]) == (str(taken), str(stats.wait_ns))
    row = page.one(group="eval", waits="")
    assert (row["waits"], row["wait-ns"]) == (str(taken), str(stats.wait_ns))
    limits = page.of(stage="", kind="")
    assert limits and limits[0]["kind"] != "TRAINERS", limits
    assert "It was stopped before its end" in page.text


def test_a_stage_dies(make_run: MakeRun) -> None:
    """When, which, by what signal, its last words; the curves have a mark."""
    run = start(make_run(epochs=0))
    run.trainer_after(3, positions=0)
    before = run.workers()
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: set(run.workers()) == set(before)
        and not set(run.workers().values()) & set(before.values()),
        "their successors",
    )
    run.stop(signal.SIGQUIT)
    page = ReportPage(report_of(run))
    deaths = page.of(event="worker_died")
    assert len(deaths) == len(before)
    assert page.text.count("signal=9") >= len(before)
    for group in before:
        # The kernel keeps the first letters of a process's name.
        assert re.search(rf"group={re.escape(group)}\S* signal=9", page.text)
    assert {row["restarts"] for row in page.of(stage="", restarts="")} == {"1"}
    assert 'class="death"' in page.source
    assert f"{len(before)} processes of stages died" in page.text


@pytest.fixture
def bad_games(tmp_path: Path, games: lc0_data.Manifest) -> Path:
    """Good games, two files that are none, one of them with a name that would be markup."""
    directory = tmp_path / "bad"
    shutil.copytree(games.directory, directory)
    (directory / "<img src=x onerror=alert(1)>&.gz").write_bytes(b"")
    (directory / "damaged.gz").write_bytes(b"\x1f\x8b and nothing that can be inflated")
    return directory


def test_what_is_skipped(make_run: MakeRun, bad_games: Path) -> None:
    """By stage and reason, with the sentence that says what is counted, and the file's name."""
    run = start(make_run(bad_games, epochs=1))
    run.trainer(positions=0).result()
    page = ended(run)
    assert_alone(page)
    # Once among what the sources counted, once among what was skipped.
    assert {row["value"] for row in page.of(stage="loader", counter="skipped_empty")} == {"1"}
    assert page.one(stage="pool", counter="skipped_damaged")["value"] == "1"
    files = page.one(stage="provider", counter="files_found")
    assert int(files["value"]) == sum(path.is_file() for path in bad_games.rglob("*"))
    assert "Chunks that could not be decompressed." in page.text
    assert "<img src=x onerror=alert(1)>&.gz" in page.text and "img" not in page.tags


def test_two_outputs(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own numbers; a trainer whose name would be markup has it as text."""
    monkeypatch.setattr(sys, "argv", ['<i onclick="alert(1)">&train'])
    data = tmp_path / "two"
    data.mkdir()
    for name in "ab":
        (data / f"{name}.jsonl").write_text("".join(f'{{"id": {i}}}\n' for i in range(50)))
    (data / "c.txt").write_text("".join(f"line {i}\n" for i in range(30)))
    run = start(make_run(data, feed="two", epochs=2, pipeline=TWO_OUTPUTS))
    got = {}
    aliases = ("train", "valid")
    feeds = [
        ringfeed.attach(
            "two", output=alias, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
        )
        for alias in aliases
    ]
    for alias, feed in zip(aliases, feeds):
        with feed:
            got[alias] = [batch.rows for batch in feed]
    page = ended(run)
    assert_alone(page)
    for alias, rows in got.items():
        row = page.one(output=alias, batches="")
        assert (row["batches"], row["rows"]) == (str(len(rows)), str(sum(rows)))
    assert sum(got["train"]) == 200 and sum(got["valid"]) == 60
    assert "Nothing was skipped" in page.text and "nothing was skipped" in page.text
    for stage, files in (("lines", 2), ("other_lines", 1)):
        assert [row["epoch"] for row in page.of(stage=stage, epoch="")] == ["1", "2"]
        for counter in ("files_begun", "files_handed_out"):
            assert page.one(stage=stage, counter=counter)["value"] == str(2 * files)
    assert '<i onclick="alert(1)">&train' in page.text and "i" not in page.tags


def test_a_feed_of_translations(make_bitext: Callable[..., FeedRun]) -> None:
    """Two ranks; the planner says which epochs have ended."""
    run = start(make_bitext(example("b_nllb"), epochs=2))
    with members(run, 2) as feeds:
        batches = list(in_turn(feeds))
    page = ended(run)
    assert page.one(output="", batches="")["batches"] == str(len(batches))
    assert sum(int(row["taken"]) for row in page.of(group="ranks", taken="")) == len(batches)
    assert [row["epoch"] for row in page.of(stage="plans", epoch="")] == ["1", "2"]


def test_a_feed_of_chess_tokens(tmp_path: Path) -> None:
    data = tmp_path / "games"
    data.mkdir()
    chess_data.write_parquet(chess_data.random_games(20, 1, plies=8), data / "a.parquet")
    run = chess_feeds.chess_run(tmp_path / "run", data, epochs=2)
    try:
        got = chess_feeds.batches_of(start(run))
        page = ended(run)
        assert page.one(output="", batches="")["batches"] == str(len(got))
        assert page.one(stage="rows", counter="files_read")["value"] == "2"
        assert [row["epoch"] for row in page.of(stage="rows", epoch="")] == ["1", "2"]
    finally:
        run.close()


def test_a_run_that_fails(make_run: MakeRun, tmp_path: Path) -> None:
    """It has a report too, with the reason; the exit status is the feed's."""
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "notes.md").write_text("no games\n")
    run = start(make_run(empty, epochs=1))
    page = ended(run, status=1)
    assert "It failed" in page.text and "without a single batch" in page.text
    assert {row["value"] for row in page.of(stage="loader", counter="skipped_extension")} == {"1"}


def test_nobody_takes_a_batch(make_run: MakeRun) -> None:
    """What nobody took was made, and not delivered."""
    run = start(make_run(epochs=0, groups='groups { name: "late" }'))
    made = wait_until(lambda: slots_full(run), "full slots")
    run.stop(signal.SIGQUIT)
    page = ReportPage(report_of(run))
    assert page.one(output="", batches="")["batches"] == str(made)
    assert f"The feed made {made} batches" in page.text and "delivered again" in page.text
    assert f"group “late” did not finish {made} of them" in page.text
    assert "No trainer took part" in page.text and "trainers waited for" not in page.text
    assert page.one(group="late", lag="")["lag"] == str(made)


def slots_full(run: FeedRun) -> int:
    """Batches published, when there is no room for another one; else 0."""
    outputs = (run.status() or {}).get("outputs", [])
    full = [o for o in outputs if int(o.get("slots_used", 0)) == int(o["slots"])]
    # The two are not read at the same moment.
    full = [o for o in full if int(o["batches_published"]) >= int(o["slots"])]
    return int(full[0]["batches_published"]) if full else 0


def test_nothing_is_delivered(make_run: MakeRun, tmp_path: Path) -> None:
    """A feed that waited for files until it was stopped."""
    empty = tmp_path / "empty"
    empty.mkdir()
    run = start(make_run(empty, epochs=0))
    wait_until(lambda: run.status(), "the feed")
    run.stop(signal.SIGQUIT)
    page = ReportPage(report_of(run))
    assert page.one(output="", batches="")["batches"] == "0"
    assert "The feed delivered 0 batches" in page.text and "No trainer took part" in page.text
    assert "No epoch ended" in page.text and "Nothing was skipped" in page.text


def test_a_drained_run(make_run: MakeRun) -> None:
    run = start(make_run(epochs=0))
    trainer = run.trainer_after(3, positions=0)
    assert run.stop() == 0
    page = ReportPage(report_of(run))
    assert "It was drained" in page.text
    assert page.one(group="default", taken="")["taken"] == str(len(trainer.result()["numbers"]))


def test_a_supervisor_takes_over(make_run: MakeRun) -> None:
    """Totals are the feed's; what this supervisor has not seen it does not claim."""
    run = start(make_run(epochs=2))
    trainer = run.trainer_after(3, positions=0, pause_ms=100)
    assert run.process is not None
    run.process.kill()
    run.process.wait(WAIT_S)
    start(run)
    result = trainer.result()
    page = ended(run)
    assert page.one(output="", batches="")["batches"] == str(len(result["numbers"]))
    assert page.one(group="default", taken="")["taken"] == str(len(result["numbers"]))
    assert "took it over" in page.text and "died since then" in page.text
    assert "The curves begin when this supervisor took the feed over" in page.text


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing/out.html", "make its directory first"),
        ("", "that is a directory"),
    ],
)
def test_the_path_is_tried_first(make_run: MakeRun, path: str, says: str) -> None:
    """Nothing has begun when it is refused."""
    run = make_run(epochs=1)
    done = run.command("run", str(run.config), "--report", f"{run.work}/{path}")
    assert done.returncode == 1 and says in done.stderr
    assert not run.sockets.exists() and "feed_started" not in done.stderr


def test_an_empty_path_is_a_usage_error(make_run: MakeRun) -> None:
    run = make_run(epochs=1)
    done = run.command("run", str(run.config), "--report", "")
    assert done.returncode == 2 and "FILE is empty" in done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[FeedRun], FeedRun]]:
    """Starts a run in a mount namespace of its own, in which DIR/disk holds 16 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.fail("this test mounts a small disk: run it as root")

    def start_it(run: FeedRun) -> FeedRun:
        script = (
            f"mount -t tmpfs -o size=16k none {disk} && echo before > {disk}/out.html && "
            f"{run.program} run {run.config} --report {disk}/out.html; echo status $?; "
            f"cat {disk}/out.html; ls {disk}"
        )
        with run.log.open("ab") as log:
            run.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", script],
                env=run.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return run

    yield start_it


def test_a_full_disk(make_run: MakeRun, small_disk: Callable[[FeedRun], FeedRun]) -> None:
    """Said clearly; the feed ended as it ended; the old report is whole, and nothing is left."""
    run = small_disk(make_run(epochs=1))
    run.trainer(positions=0).result()
    run.wait()
    text = run.text()
    assert "report_failed" in text and "No space left on device: make room" in text
    assert "feed_ended" in text
    assert text.endswith("status 0\nbefore\nout.html\n")


def test_in_a_browser(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    """It fits 400 px, in light and dark, and axe-core finds nothing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright")
    from axe_playwright_python.sync_playwright import Axe

    run = start(make_run(epochs=2))
    run.trainer(positions=0, group="a-group-with-a-name-of-sixty-characters-that-is-not-cut")
    assert run.wait() == 0
    with sync_api.sync_playwright() as started:
        # Tests run as root, for whom Chromium has no sandbox.
        browser = started.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"], timeout=120_000
        )
        for width in (400, 1200):
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
                )
                page = context.new_page()
                asked: list[str] = []
                page.on("request", lambda request: asked.append(request.url))
                page.goto(f"file://{report_of(run)}")
                assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
                found = Axe().run(page)
                assert found.violations_count == 0, found.generate_report()
                assert asked == [f"file://{report_of(run)}"]
                context.close()
        browser.close()
