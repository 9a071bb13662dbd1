"""The page of ringfeed-web in Debian's Chromium, over real feeds."""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.feeds.feed_run import WAIT_S, FeedRun, wait_until
from tests.support.feeds.web import Web
from tests.support.makers import lc0_data

playwright = pytest.importorskip(
    "playwright.sync_api", reason="no playwright: scripts/setup installs it"
)
CHROMIUM = "/usr/bin/chromium"
SEEN_MS = 120_000  # a change of the feed is on the page long before


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        # Tests run as root, for whom Chromium has no sandbox.
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=SEEN_MS
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page; whatever it says in its console but what is expected is a fault."""
    contexts: list[Any] = []
    faults: list[str] = []

    def open_it(url: str, width: int = 1280, height: int = 900, **options: Any) -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SEEN_MS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console",
            lambda said: faults.append(said.text) if "Content Security" in said.text else None,
        )
        page.goto(url)
        return page

    yield open_it
    for number, context in enumerate(contexts):
        for page in context.pages:
            page.screenshot(path=tmp_path / f"page-{number}.png", full_page=True)
        context.close()
    assert faults == []


def text(page: Any, selector: str) -> str:
    return str(page.locator(selector).inner_text())


def until(page: Any, condition: str) -> None:
    """JavaScript that becomes true."""
    wait_until(lambda: page.evaluate(condition), condition, SEEN_MS / 1000)


def fits(page: Any) -> bool:
    """Nothing has to be scrolled to the side."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_opened_cold(
    run: FeedRun, serve: Callable[..., Web], open_page: Callable[..., Any]
) -> None:
    """A person sees what limits the feed, its stages, and that no trainer is there."""
    page = open_page(serve().url)
    page.wait_for_selector("#pipeline .stage")
    assert text(page, "h2#name") == "lc0" and page.title() == "lc0 · ringfeed"
    # Just after its start it may still be the stages.
    until(page, "document.getElementById('why').innerText.includes('no trainer takes batches')")
    status = run.status()
    assert status is not None
    names = [page.locator(".stage h3").nth(i).inner_text() for i in range(len(status["stages"]))]
    assert names == [stage["name"] for stage in status["stages"]]
    assert page.locator("#no-trainers").is_visible() and not page.locator("#gate").is_visible()
    until(page, "document.querySelector('.stage:last-child .queue span').style.width === '100%'")
    assert text(page, "#link") == "live"


def test_a_stage_is_killed_while_it_is_open(
    run: FeedRun, serve: Callable[..., Web], open_page: Callable[..., Any]
) -> None:
    """The page says which, and when; it stays open."""
    page = open_page(serve().url)
    page.wait_for_selector("#pipeline .stage")
    assert page.locator("#no-events").is_visible()
    for pid in run.workers().values():
        os.kill(pid, signal.SIGKILL)
    page.wait_for_selector("#events .bad")
    assert "has died and has a successor" in text(page, "#events")
    assert "restarted 1 ×" in text(page, "#pipeline")


def test_a_file_is_left_out_while_it_is_open(
    make_run: Callable[..., FeedRun],
    games: lc0_data.Manifest,
    tmp_path: Path,
    open_page: Callable[..., Any],
) -> None:
    """The stage, how many and why."""
    data = tmp_path / "data"
    shutil.copytree(games.directory, data)
    run = make_run(data, epochs=0).start()
    wait_until(lambda: (run.status() or {}).get("state") == "RUNNING", "the feed to run")
    web = Web(run)
    try:
        page = open_page(web.url)
        page.wait_for_selector("#pipeline .stage")
        assert page.locator("#no-events").is_visible()
        (tmp_path / "nothing.gz").write_bytes(b"")
        (tmp_path / "nothing.gz").rename(data / "nothing.gz")
        page.wait_for_selector("#events li")
        assert text(page, "#events").endswith("loader has left out 1 (empty)")
        assert page.locator("#events .bad").count() == 0
    finally:
        web.close()


@pytest.mark.parametrize("run", [{"rate": 0.001, "reservoir": 10}], indirect=True, ids=["slow"])
def test_a_starving_trainer(
    run: FeedRun, serve: Callable[..., Web], open_page: Callable[..., Any]
) -> None:
    """It is in the table, with what it has had; the stage that it waits for is marked."""
    trainer = run.trainer(positions=0, group="eval")
    wait_until(lambda: trainer.batches() > 3, "batches")
    page = open_page(serve().url)
    row = page.locator("#trainers tbody tr")
    row.wait_for()
    assert "eval" in row.inner_text() and str(trainer.process.pid) in row.inner_text()
    page.wait_for_selector(".stage.limits")
    assert "limits the feed" in text(page, ".stage.limits")
    until(
        page,
        "[...document.querySelectorAll('#curves path')]"
        ".every((path) => path.getAttribute('d').length > 20)",
    )
    captions = page.locator("#curves figcaption").all_inner_texts()
    titles = ["Batches a second", "Trainers wait", "Slots in use", "Memory of the segments"]
    assert [caption.partition(":")[0] for caption in captions] == titles
    until(
        page, "/^Trainers wait: [1-9]/.test(document.querySelectorAll('figcaption')[1].innerText)"
    )


def shown_bytes(size: int) -> str:
    """As the page writes it."""
    units = ["B", "KiB", "MiB", "GiB"]
    number, unit = float(size), 0
    while number >= 1024:
        number, unit = number / 1024, unit + 1
    # toFixed() rounds a half up.
    return f"{math.floor(10 * number + 0.5) / 10:.1f} {units[unit]}" if unit else f"{size} B"


def test_how_long_trainers_wait_and_where_the_memory_is(
    run: FeedRun, serve: Callable[..., Web], open_page: Callable[..., Any]
) -> None:
    """The parts add up to all of it."""
    run.trainer_after(2, positions=0)
    page = open_page(serve().url)
    until(
        page,
        "/^\\d+\\s%$/.test(document.querySelector('#trainers tbody').rows[0]?.cells[6].innerText)",
    )
    status = run.status()
    assert status is not None
    parts = [(part["name"], int(part["bytes"])) for part in status["memory"]]
    assert sum(size for _, size in parts) == int(status["memory_bytes"])
    rest = [size for _, size in parts[8:]]
    shown = [*parts[:8], (f"{len(rest)} other parts", sum(rest))]
    assert page.locator("#memory li p").all_inner_texts() == [
        f"{name}: {shown_bytes(size)}" for name, size in shown
    ]
    total = int(status["memory_bytes"])
    assert text(page, "#memory-total") == f"{shown_bytes(total)} in all"
    # Each bar is as long as its part is large.
    for bar, (_, size) in zip(page.locator("#memory li .queue").all(), shown, strict=True):
        part = bar.locator("span").evaluate("(one) => one.getBoundingClientRect().width")
        whole = bar.evaluate("(one) => one.clientWidth")
        assert abs(part - whole * size / total) < 2, (part, whole, size)


def test_what_takes_its_time(
    make_run: Callable[..., FeedRun],
    run: FeedRun,
    serve: Callable[..., Web],
    open_page: Callable[..., Any],
) -> None:
    """A feed that warms up has a bar."""
    other = make_run(feed="warm", epochs=0, rate=0.0004, reservoir=20_000)  # takes a minute
    other.environment["RINGFEED_SOCKET_DIR"] = str(run.sockets)
    other.start()
    wait_until(lambda: (other.status() or {}).get("under_way"), "something that is under way")
    page = open_page(f"{serve().url}#warm")
    page.wait_for_selector("#under-way progress")
    assert "sampler: reservoir: " in text(page, "#under-way")
    until(page, "document.querySelector('#under-way progress')?.value > 0")
    until(page, "document.getElementById('under-way').innerText.includes('left')")
    other.stop(signal.SIGQUIT)


@pytest.mark.parametrize(
    "run",
    [{"readers": 12, "unpackers": 14, "generators": 11, "batch": 16, "slots": 16}],
    indirect=True,
    ids=["40"],
)
def test_forty_lanes(
    run: FeedRun, serve: Callable[..., Web], open_page: Callable[..., Any]
) -> None:
    """They are numbers of their stages, and the page stays as long as it was."""
    trainer = run.trainer(positions=0)
    wait_until(lambda: trainer.batches() > 3, "batches")
    page = open_page(serve().url, width=400)
    page.wait_for_selector("#pipeline .stage")
    status = run.status()
    assert status is not None
    assert sum(len(stage["lanes"]) for stage in status["stages"]) >= 40
    assert page.locator("#pipeline .stage").count() == len(status["stages"])
    assert "14 lanes" in text(page, "#pipeline") and "11 lanes" in text(page, "#pipeline")
    assert fits(page)


def test_three_feeds(
    run: FeedRun,
    make_run: Callable[..., FeedRun],
    serve: Callable[..., Web],
    open_page: Callable[..., Any],
) -> None:
    """One is shown, the others are a key away; one that ends is gone."""
    others = [make_run(feed=name, epochs=0) for name in ("second", "third")]
    for other in others:
        other.environment["RINGFEED_SOCKET_DIR"] = str(run.sockets)
        other.start()
    page = open_page(serve().url)
    page.wait_for_selector("nav li:nth-child(3)")
    assert page.locator("nav a").all_inner_texts() == ["lc0", "second", "third"]
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('name').textContent === 'second'")
    assert page.locator("nav a[aria-current]").inner_text() == "second"
    others[1].stop(signal.SIGQUIT)
    page.wait_for_selector("nav li:nth-child(3)", state="detached")
    assert text(page, "#name") == "second"


@pytest.mark.parametrize("width", [320, 400, 800, 2000])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_width_and_scheme(
    run: FeedRun,
    serve: Callable[..., Web],
    open_page: Callable[..., Any],
    width: int,
    scheme: str,
) -> None:
    """It fits, and axe-core finds nothing: contrast, names, order of headings."""
    from axe_playwright_python.sync_playwright import Axe

    trainer = run.trainer(
        positions=0, group="a-group-with-a-name-of-sixty-characters-that-is-not-cut"
    )
    wait_until(lambda: trainer.batches() > 1, "batches")
    page = open_page(serve().url, width=width, color_scheme=scheme)
    page.wait_for_selector("#trainers tbody tr")
    page.wait_for_selector("#curves figure")
    assert page.evaluate("document.getAnimations().length") == 0
    assert fits(page)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_a_token_is_asked_for(
    run: FeedRun, serve: Callable[..., Web], open_page: Callable[..., Any], tmp_path: Path
) -> None:
    """A wrong one is asked for again; the right one is kept for this tab."""
    (tmp_path / "token").write_text("0123456789abcdefXYZ\n")
    page = open_page(serve("--token-file", str(tmp_path / "token")).url)
    page.wait_for_selector("#gate")
    for given in ("wrong", "0123456789abcdefXYZ"):
        page.fill("#token", given)
        page.click("#gate button")
        until(page, "document.getElementById('token').value === ''")
    page.wait_for_selector("#pipeline .stage")
    assert not page.locator("#gate").is_visible()
    page.reload()
    page.wait_for_selector("#pipeline .stage")


def test_a_late_answer_to_the_wrong_token_is_no_answer_to_the_right_one(
    run: FeedRun, serve: Callable[..., Web], open_page: Callable[..., Any], tmp_path: Path
) -> None:
    """The person has corrected it before the server could say no."""
    (tmp_path / "token").write_text("0123456789abcdefXYZ\n")
    page = open_page(serve("--token-file", str(tmp_path / "token")).url)
    page.wait_for_selector("#gate")
    late: list[Any] = []
    over: list[Any] = []
    for event in ("requestfailed", "requestfinished"):  # given up, or answered
        page.on(event, lambda request: over.append(request))

    def hold(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer wrong":
            late.append(route)
        else:
            route.continue_()

    page.route("**/api/v1/events", hold)
    for given in ("wrong", "0123456789abcdefXYZ"):
        page.fill("#token", given)
        page.click("#gate button")
        until(page, "document.getElementById('token').value === ''")
        wait_until(lambda: page.evaluate("1") and late, "the question with the wrong one")
    page.wait_for_selector("#pipeline .stage")
    late[0].fulfill(status=401)
    wait_until(lambda: page.evaluate("1") and late[0].request in over, "the end of that question")
    page.evaluate("fetch('/healthz').then((answer) => answer.text())")
    assert not page.locator("#gate").is_visible()
    page.reload()
    page.wait_for_selector("#pipeline .stage")
    assert not page.locator("#gate").is_visible()


def test_the_server_ends_and_comes_back(
    run: FeedRun, serve: Callable[..., Web], open_page: Callable[..., Any]
) -> None:
    """The page says so, keeps what it knows, and goes on."""
    web = serve()
    page = open_page(web.url)
    page.wait_for_selector("#pipeline .stage")
    web.process.kill()
    web.process.wait(WAIT_S)
    until(page, "document.getElementById('link').className === 'bad'")
    assert page.locator("#pipeline .stage").first.is_visible()
    serve(port=web.port)
    until(page, "document.getElementById('link').textContent === 'live'")
