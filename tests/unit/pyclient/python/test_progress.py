"""What a training loop shows of itself: rate, waiting, epoch, what limits it; and to whom."""

# flake8: noqa: F811

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tests.support.fakes.fake_feed import MakeFeed, make_feed  # noqa: E402, F401

import ringfeed  # noqa: E402


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Why:
    sentence = "stage 'pool' is the bottleneck"


class Loader:
    """As FeedLoader shows itself."""

    epoch = 3

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Any:
        return iter(range(self.batches))

    @property
    def feed(self) -> Loader:
        return self

    def why(self) -> list[Why]:
        return [Why()]


def test_without_a_terminal_it_writes_lines_of_json() -> None:
    out = io.StringIO()
    shown = ringfeed.progress(Loader(5), description="train", every_s=1e-9, file=out)
    assert len(shown) == 5 and list(shown) == [0, 1, 2, 3, 4]
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == 6, "one for each batch, and the last one"
    last = lines[-1]
    assert (last["what"], last["batches"], last["total"], last["epoch"]) == ("train", 5, 5, 3)
    assert last["limit"] == Why.sentence and last["batches_per_s"] > 0
    assert 0 <= last["waiting_share"] <= 1


def test_a_loop_that_is_left_says_how_far_it_came() -> None:
    out = io.StringIO()
    for number in ringfeed.progress(iter(range(9)), file=out):
        if number == 2:
            break
    lines = out.getvalue().splitlines()
    assert len(lines) == 1 and json.loads(lines[0])["batches"] == 3


def test_any_iterable_will_do() -> None:
    out = io.StringIO()
    shown = ringfeed.progress((n for n in "ab"), total=2, file=out)
    assert len(shown) == 2 and list(shown) == ["a", "b"]
    assert "limit" not in json.loads(out.getvalue()) and "epoch" not in json.loads(out.getvalue())
    with pytest.raises(TypeError, match="give total"):
        len(ringfeed.progress(iter([1])))


def test_on_a_terminal_it_is_a_bar_of_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            self.options, self.updates, self.words, self.closed = options, 0, "", False
            made.append(self)

        def update(self) -> None:
            self.updates += 1

        def set_postfix_str(self, words: str) -> None:
            self.words = words

        def close(self) -> None:
            self.closed = True

    tqdm = ModuleType("tqdm")
    tqdm.tqdm = Bar  # type: ignore[attr-defined]
    tqdm.__spec__ = object()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "tqdm", tqdm)
    monkeypatch.setattr("ringfeed.bar._DRAW_S", 0.0)
    out = Terminal()
    list(ringfeed.progress(Loader(4), description="train", file=out))
    (bar,) = made
    assert (bar.options["total"], bar.options["desc"], bar.updates, bar.closed) == (
        4,
        "train",
        4,
        True,
    )
    assert bar.words.startswith("epoch 3, waits ") and bar.words.endswith(Why.sentence)
    assert out.getvalue() == "", "no lines beside the bar"


def test_numbers_go_to_weights_and_biases_and_to_tensorboard() -> None:
    class Run:
        def __init__(self) -> None:
            self.seen: list[tuple[dict[str, Any], int]] = []

        def log(self, values: dict[str, Any], step: int) -> None:
            self.seen.append((values, step))

    class Writer:
        def __init__(self) -> None:
            self.seen: list[tuple[str, Any, int]] = []

        def add_scalar(self, name: str, value: Any, step: int) -> None:
            self.seen.append((name, value, step))

    run, writer = Run(), Writer()
    list(ringfeed.progress(Loader(3), run=run, file=io.StringIO()))
    list(ringfeed.progress(Loader(3), run=writer, file=io.StringIO()))
    ((values, step),) = run.seen
    assert step == 3 and values["feed/batches"] == 3 and "feed/waiting_share" in values
    assert all(not isinstance(value, str) for value in values.values())
    assert ("feed/batches", 3, 3) in writer.seen
    with pytest.raises(ringfeed.InvalidRequest, match="run is a int"):
        ringfeed.progress(Loader(1), run=1)
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ringfeed.InvalidRequest, match="every_s"):
            ringfeed.progress(Loader(1), every_s=wrong)


def test_a_feed_of_which_nobody_says_what_limits_it_is_shown_all_the_same(
    make_feed: MakeFeed,
) -> None:
    fake = make_feed("--slots", "2")
    fake.tell("publish 6")
    fake.tell("close")
    out = io.StringIO()
    with fake.attach() as feed:
        held = []
        for batch in ringfeed.progress(feed, file=out):
            held.append(batch.seq)
            del batch
            assert feed.stats().held == 0, "the wrapper keeps no batch"
    assert held == [1, 2, 3, 4, 5, 6]
    assert json.loads(out.getvalue())["batches"] == 6
