"""A trainer that waits while nobody works: it is told so, with what everybody does, and so is a test. The fault is
planted: a request that is lost, an epoch of which the workers do not hear.

Whoever works, starts, is stopped or waits for another trainer is none.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from ringfeed._core import control, native, standstill  # noqa: E402
from ringfeed.errors import FeedFailed, FeedIOError  # noqa: E402
from ringfeed.torch import _plan, _workers  # noqa: E402
from tests.support.feeds.feed_run import wait_until  # noqa: E402
from tests.support.loaders import own_data as data  # noqa: E402
from tests.support.loaders import watchdog  # noqa: E402

LONG = 3600.0


class Waits(torch.utils.data.Dataset[Any]):
    """Its first sample takes until a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            wait_until(self.file.exists, "the end of the test")
        return index


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The sixth request and all behind it come to nobody."""
    ask = native.ask

    def loses(feed: Any, table: int, size: int, number: int, *more: Any) -> None:
        if number < 6:
            ask(feed, table, size, number, *more)

    monkeypatch.setattr(_workers.native, "ask", loses)
    yield


def squares(Ours: Any, **more: Any) -> Any:
    return Ours(data.Squares(40), batch_size=2, num_workers=2, **more)


def socket_of_the_loader() -> Path:
    return next(Path(tempfile.gettempdir()).glob("ringfeed-*/loader.sock"))


def seen() -> control.Standing | None:
    """How far the loader is; None: it has only just begun."""
    with contextlib.suppress(StopIteration, FeedIOError):
        return control.standing(socket_of_the_loader())
    return None


@contextlib.contextmanager
def a_loop_over(iterator: Any) -> Iterator[list[Any]]:
    """In a thread, meanwhile; what comes of it."""
    found: list[Any] = []

    def wait() -> None:
        try:
            found.extend(iterator)
        except Exception as error:
            found.append(data.frameless(error))

    thread = threading.Thread(target=wait)
    thread.start()
    yield found
    thread.join()


def looks(monkeypatch: pytest.MonkeyPatch, begun: Callable[[int, int], bool]) -> str | None:
    """What a trainer would be told in a minute, with looks as if that had passed."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(standstill, "time", SimpleNamespace(monotonic=lambda: clock.now))
    watch = standstill.Standstill(socket_of_the_loader(), 10.0, begun)
    for _ in range(120):
        clock.now += 0.5
        if (said := watch.look()) is not None:
            return said
    return None


def begun(*_: int) -> bool:
    return True


def test_a_lost_request_is_no_hang(Ours: Any, lost: None) -> None:
    """The text says what was asked, what has come, and what each process does."""
    iterator = iter(squares(Ours, stall_timeout=0.5))
    with pytest.raises(FeedFailed) as caught:
        list(iterator)
    data.frameless(caught.value)
    text = str(caught.value)
    assert "the loader stands still (worker 0 has been asked for" in text
    assert "dataset.0 (process" in text and "is starved after" in text
    assert f"process {os.getpid()} (this one) has taken" in text


def test_an_epoch_that_nobody_hears_of(
    Ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(tmp_path / "s"))
    monkeypatch.setattr(_plan.PlanTable, "publish", lambda self: None)
    with pytest.raises(FeedFailed, match="this trainer waits for batch 0 of epoch 0"):
        list(squares(Ours, stall_timeout=0.5, feed="x"))
    gc.collect()  # the frames of the exception
    wait_until(lambda: not list((tmp_path / "s").glob("*.sock")), "the end of the feed")


def test_a_test_that_hangs_is_told_so(Ours: Any, lost: None, tmp_path: Path) -> None:
    """By the watchdog over these tests, whatever the loader itself knows of it."""
    iterator = iter(squares(Ours, stall_timeout=LONG))
    with watchdog.watching(tempfile.gettempdir(), tmp_path / "report", limit_s=1.0):
        with pytest.raises(watchdog.StandsStill, match="a trainer has waited while"):
            list(iterator)


def test_whoever_is_at_a_sample_works(
    Ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes."""
    file = tmp_path / "file"
    iterator = iter(Ours(Waits(file), batch_size=None, num_workers=1, stall_timeout=0))
    with a_loop_over(iterator) as found:
        try:
            wait_until(lambda: (now := seen()) and now.members, "it waits")
            assert looks(monkeypatch, begun) is None
        finally:
            file.touch()
    assert found == [0, 1, 2]


def test_who_is_stopped_or_starts_is_waited_for(
    Ours: Any, lost: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same that is a standstill else."""
    iterator = iter(squares(Ours, stall_timeout=LONG))

    def sleep() -> bool:
        now = seen()
        due = now is not None and now.members and dict(now.lags) == {"default": 0}
        return bool(due) and now is not None and standstill.all_sleep(now.lanes)

    with a_loop_over(iterator) as found:
        try:
            wait_until(sleep, "all that was asked has come")
            assert looks(monkeypatch, lambda *_: False) is None, "a worker that starts"
            now = seen()
            assert now is not None
            worker = now.lanes[1].pid
            os.kill(worker, signal.SIGSTOP)
            try:
                assert looks(monkeypatch, begun) is None
            finally:
                os.kill(worker, signal.SIGCONT)
            wait_until(sleep, "it goes on")
            assert looks(monkeypatch, begun) is not None
        finally:
            iterator._shutdown_workers()
    assert found and isinstance(found[-1], Exception)


@pytest.mark.parametrize(
    "waited_ns, waits",
    [((5, 5), True), ((5, 9), False)],
    ids=["the other one works", "the other one waits as well"],
)
def test_workers_may_wait_for_another_trainer(waited_ns: tuple[int, int], waits: bool) -> None:
    members = tuple(control.Member(f"loader-{n}", n, 9, 7) for n in (1, 2))
    before = control.Standing(9, (), members, (1, 5), (("loader-1", 0), ("loader-2", 2)))
    assert standstill.waits(before._replace(waited_ns=(3, waited_ns[1])), before) is waits
    gone = before._replace(members=members[:1], waited_ns=(9,))
    assert standstill.waits(gone, gone), "who has died may come back to what is due"
