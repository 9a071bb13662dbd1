"""What a feed leaves out, as its trainers hear of it: through Python's logging, by limits, at the end."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ringfeed
import ringfeed.pipeline as rp
from tests.support.feeds.feed_run import FeedRun, wait_until

MODULE = """
def faulty(sample):
    if sample["id"] % 2:
        return deeper(sample)
    return sample


def deeper(sample):
    raise ValueError(f"{sample['id']} is odd")
"""


def write(path: Path, rows: int, bad: int, spread: bool = False) -> Path:
    """So many lines, of which the first, or some of all, are no JSON.

    Of those that are spread no part of the file has a larger share than the whole.
    """
    with path.open("w") as file:
        for i in range(rows):
            is_bad = (i + 1) * bad // rows > i * bad // rows if spread else i < bad
            file.write("nothing\n" if is_bad else json.dumps({"id": i}) + "\n")
    return path


def pipeline(path: Path, **settings: Any) -> Any:
    return rp.files(str(path)).jsonl(fields={"id": "int64"}, **settings)


def batches(of: Any) -> Any:
    return of.batch(10, fields={"id": "int64"})


def rows_of(feed: Any) -> int:
    with feed.start() as loader:
        return sum(batch.rows for batch in loader)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "ringfeed"]


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "ringfeed"):
        yield


def test_what_is_left_out_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.jsonl", 1000, 500)
    assert rows_of(batches(pipeline(path)).feed("f", epochs=1)) == 500
    first = next(line for line in said(caplog) if "skipped_no_json count=1" in line)
    assert f"path={path} offset=0" in first
    end = next(one for one in caplog.records if "run_over" in one.getMessage())
    assert end.levelno == logging.WARNING
    assert 'rows=500 left_out=500 reasons="lines: 500 no_json"' in end.getMessage()
    assert any("feed_started" in line for line in said(caplog))


def test_the_end_of_a_feed_that_somebody_else_runs_is_said_too(
    make_run: Callable[..., FeedRun], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.jsonl", 100, 30)
    text = batches(pipeline(path)).feed("away", epochs=1).text()
    run = make_run(feed="away", pipeline=text.replace("{", "{{").replace("}", "}}")).start()
    with ringfeed.attach("away", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        assert sum(batch.rows for batch in feed) == 70
    assert said(caplog)[-1] == (
        "feed away: the run is over: 70 rows came, 30 samples were left out: lines: 30 no_json"
    )


def test_an_attached_trainer_hears_of_it_with_its_next_batch(
    make_run: Callable[..., FeedRun], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whose log is somebody else's. An endless run has no end at which it could be said."""
    path = write(tmp_path / "a.jsonl", 2000, 25)
    text = batches(pipeline(path)).feed("away").text()
    run = make_run(feed="away", pipeline=text.replace("{", "{{").replace("}", "}}")).start()

    def attach(group: str) -> ringfeed.Feed:
        return ringfeed.attach(
            "away", group=group, socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
        )

    def is_known() -> bool:
        status = run.status()
        return any("left out" in problem for problem in (status or {}).get("problems", []))

    with attach("early") as early:
        early.next().release()
        wait_until(is_known, "what is left out to be a problem of the feed")
        early.next().release()
        # It may have been told with the first batch, and again when twice as many were left out.
        warning = next(one for one in caplog.records if "left out" in one.getMessage())
        assert warning.levelno == logging.WARNING and warning.name == "ringfeed"
        for words in ("feed away: ", "% of all samples", "no_json", f"{path}, offset 0"):
            assert words in warning.getMessage()
        caplog.clear()
        with attach("late") as late:
            late.next().release()
            assert [one for one in said(caplog) if "% of all samples are left out" in one]


def test_whoever_has_started_the_feed_hears_of_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From the log, which the loader reads; not from the supervisor's message as well."""
    path = write(tmp_path / "a.jsonl", 2000, 25)
    with batches(pipeline(path)).feed("f").start() as loader:
        while not any("samples_left_out" in line for line in said(caplog)):
            loader.next(30)
        loader.next(30)
    lines = [line for line in said(caplog) if "% of all samples" in line]
    assert lines and all("samples_left_out" in line for line in lines)


def test_the_end_of_a_run_without_losses_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.jsonl", 1000, 0)
    assert rows_of(batches(pipeline(path)).feed("f", epochs=1)) == 1000
    end = next(one for one in caplog.records if "run_over" in one.getMessage())
    assert end.levelno == logging.INFO and "rows=1000 left_out=0" in end.getMessage()
    assert all(one.levelno < logging.WARNING for one in caplog.records)


def test_a_configuration_as_text_is_heard_of_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.jsonl", 100, 50)
    config = batches(pipeline(path)).feed("f", epochs=1).text()
    for form in ("", "log { format: JSON }"):
        caplog.clear()
        with ringfeed.DataLoader(config + form) as loader:
            assert sum(len(arrays[0]) for arrays in loader) == 50
        assert any("skipped_no_json" in line for line in said(caplog))
        assert any("run_over" in line and "50 no_json" in line for line in said(caplog))


def test_a_failure_has_the_first_problem_of_each_kind(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", 10, 10)
    with pytest.raises(ringfeed.FeedFailed) as raised:
        rows_of(batches(pipeline(path)).feed("f", epochs=1))
    text = str(raised.value)
    assert f"lines: no_json, the first of 10: {path}, offset 0: " in text
    assert "no JSON" in text  # what the parser says


def test_a_failure_has_the_traceback_of_a_stage_in_python(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", 20, 0)
    (tmp_path / "mine.py").write_text(MODULE.replace("% 2", "> -1"))
    of = pipeline(path).map("mine:faulty", python_path=str(tmp_path))
    with pytest.raises(ringfeed.FeedFailed) as raised:
        rows_of(batches(of).feed("f", epochs=1))
    text = str(raised.value)
    assert "ValueError, the first of 20" in text
    assert "in deeper" in text and "ValueError: 0 is odd" in text


LIMIT = rp.settings.SkipLimit(share=0.01, after=1000)


@pytest.mark.parametrize("where", ["source", "feed"])
def test_too_many_end_the_feed(tmp_path: Path, where: str) -> None:
    def feed(bad: int) -> Any:
        path = write(tmp_path / f"{bad}.jsonl", 5000, bad, spread=True)
        if where == "source":
            return batches(pipeline(path, skip_limit=LIMIT)).feed("f", epochs=1)
        return batches(pipeline(path)).feed("f", epochs=1, skip_limit=LIMIT)

    assert rows_of(feed(50)) == 4950
    with pytest.raises(ringfeed.FeedFailed) as raised:
        rows_of(feed(51))
    text = str(raised.value)
    # As soon as it is seen, or at the end.
    assert re.search(
        r"\d+ of \d+ samples.* were left out, more than skip_limit allows \(1 %\)", text
    )
    assert re.search(rf"lines: no_json, the first of \d+: {tmp_path}/51.jsonl, offset \d+: ", text)


def test_nothing_is_done_before_there_are_enough(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", 999, 500)
    assert rows_of(batches(pipeline(path, skip_limit=LIMIT)).feed("f", epochs=1)) == 499


def test_a_limit_of_the_feed_counts_every_stage(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", 2000, 20)
    (tmp_path / "mine.py").write_text(MODULE)
    of = pipeline(path).map("mine:faulty", python_path=str(tmp_path))
    half = rp.settings.SkipLimit(share=0.5)
    with pytest.raises(ringfeed.FeedFailed, match="1010 of 2000 samples were left out"):
        rows_of(batches(of).feed("f", epochs=1, skip_limit=half))
    most = rp.settings.SkipLimit(share=0.51)
    assert rows_of(batches(of).feed("f", epochs=1, skip_limit=most)) == 990


def test_a_share_of_one_in_a_hundred_is_a_problem_of_the_feed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With where and why; an endless run has no end at which it could be said."""
    path = write(tmp_path / "a.jsonl", 2000, 25)
    with batches(pipeline(path)).feed("f").start() as loader:
        while not any("samples_left_out" in line for line in said(caplog)):
            loader.next(30)
        problem = next(one for one in loader.status()["problems"] if "left out" in one)
    line = next(line for line in said(caplog) if "samples_left_out" in line)
    for text in (problem, line):
        assert "no_json" in text and f"{path}, offset 0" in text and "% of all samples" in text
