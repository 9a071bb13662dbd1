"""`ringfeed metrics` and feed.metrics(): what a feed has counted, whoever was killed meanwhile."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import ringfeed

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.scenes import GROUPS, kill_a_worker, kill_supervisor
from tests.support.makers import lc0_data

MakeRun = Callable[..., FeedRun]

# Everything else in a total only grows.
MAY_FALL = {
    *("lanes", "capacity", "fullness", "chunk_sources", "chunks_current", "chunks_capacity"),
    *("chunks_since_anchor", "positions_current", "bytes_current", "store_bytes", "store_games"),
    *("frames_held", "reservoir_size_per_thread", "store_capacity_bytes"),
}


def asked(run: FeedRun) -> dict[str, Any] | None:
    """The answer of `ringfeed metrics --json`, or None while nobody answers."""
    done = run.command("metrics", "lc0", "--json")
    return json.loads(done.stdout) if done.returncode == 0 and done.stdout else None


def counters(tree: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Place and value of each number that must not fall."""
    if isinstance(tree, dict):
        name = tree.get("name", "")
        for key, value in tree.items():
            if key not in MAY_FALL and key != "name":
                yield from counters(value, f"{place}/{name}.{key}")
    elif isinstance(tree, list):
        for i, value in enumerate(tree):
            yield from counters(value, f"{place}[{i}]")
    elif place.rpartition(".")[2] not in ("anchor", "kind"):
        yield place, float(tree)


def stages(metrics: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {stage["name"]: stage for stage in metrics["stage_metrics"]}


def queue(stage: dict[str, Any], name: str = "output") -> dict[str, Any]:
    (found,) = [q for q in stage["output_queue_metrics"] if q["name"] == name]
    return found


def test_totals_are_what_the_trainer_saw(make_run: MakeRun, games: lc0_data.Manifest) -> None:
    run = make_run(epochs=1, readers=2, unpackers=2, batch=256).start()
    batches = -(-games.positions // 256)
    with ringfeed.attach("lc0", socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60) as feed:
        rows = 0
        for batch in feed:
            rows += batch.rows
            if batch.seq == batches:
                break
        # The last batch is still in hand, so the feed is still there.
        metrics = feed.metrics()
        total = stages(metrics["total"])
        assert rows == games.positions
        tensors = total["tensors"]["tensor_generator"]
        assert (tensors["rows"], tensors["batches"]) == (rows, batches)
        slots = queue(total["tensors"])
        assert (slots["put_count"], slots["capacity"]) == (batches, 6)
        assert (slots["get_count"], slots["fullness"]["latest"]) == (batches - 1, 1)
        assert total["unpacker"]["chunk_unpacker"]["frames"] == games.positions
        for name in ("unpacker", "sampler"):
            through = queue(total[name])
            assert through["put_count"] == through["get_count"] == games.positions, name
        pool = total["pool"]["shuffling_chunk_pool"]
        assert (pool["draws"], pool["dropped"]) == (games.games, 0)
        assert pool["chunks_read"] == games.games
        assert pool["chunks_current"] == pool["chunks_total"] == games.games
        assert pool["anchor"] == "" and pool["chunks_since_anchor"] == games.games
        assert [load["name"] for load in pool["loads"]] == ["load", "read"]
        assert pool["loads"][1]["records_out"] == games.games
        # Lanes have ended: what they did is still counted.
        assert pool["loads"][1]["lanes"] == 0 and pool["loads"][1]["busy_seconds"] > 0
        assert total["loader"]["chunk_source_loader"]["skipped_files"] >= 0
        assert total["provider"]["file_path_provider"]["files_found"] >= len(games.files)
        # It all happened in the last minute.
        window = metrics["windows"][2]
        covered = window["seconds_covered"]
        assert 0 < covered <= 60.5
        recent = queue(stages(window["metrics"])["tensors"])
        assert recent["put_count"] <= batches
        assert abs(recent["put_per_s"] - recent["put_count"] / covered) < 1e-9
        del batch
    assert run.wait() == 0, run.text()


def test_the_json_is_that_of_the_message(make_run: MakeRun) -> None:
    run = make_run(epochs=0, extra=GROUPS).start()
    run.trainer_after(5, batches=1000, positions=0)

    def after_two_seconds() -> dict[str, Any] | None:
        metrics = asked(run)
        return metrics if metrics and metrics["windows"][2]["seconds_covered"] > 2 else None

    metrics = wait_until(after_two_seconds, "two seconds of looks")
    assert set(metrics) == {
        *("feed", "uptime_ms", "total", "windows", "bottlenecks", "sampling_us", "deaths"),
    }
    assert [window["seconds_wanted"] for window in metrics["windows"]] == [1, 10, 60]
    kinds = {
        "provider": "file_path_provider",
        "loader": "chunk_source_loader",
        "pool": "shuffling_chunk_pool",
        "unpacker": "chunk_unpacker",
        "sampler": "shuffling_frame_sampler",
        "tensors": "tensor_generator",
    }
    for part in (metrics["total"], *(window["metrics"] for window in metrics["windows"])):
        assert list(stages(part)) == list(kinds)
        for name, stage in stages(part).items():
            assert set(stage) == {"name", kinds[name], "output_queue_metrics", "other_counters"}
            assert len(stage[kinds[name]]["loads"]) == (2 if name == "pool" else 1)
    # Numbers of 64 bits are numbers too.
    put_count = queue(stages(metrics["total"])["tensors"])["put_count"]
    assert isinstance(put_count, int) and put_count >= 5

    # A step, or a sleep of up to 50 ms, is counted at its end, at either end of the window: one that was long
    # because others had the processors is in the next look's.
    def add_up() -> bool:
        window = (asked(run) or metrics)["windows"][0]["metrics"]
        loads = [
            load for name, stage in stages(window).items() for load in stage[kinds[name]]["loads"]
        ]
        return all(
            0.7 < load["busy_share"] + load["starved_share"] + load["blocked_share"] < 1.3
            and load["cpu_seconds"] <= load["busy_seconds"] + 0.2
            for load in loads
        )

    wait_until(add_up, "shares that add up")
    text = run.command("metrics", "lc0").stdout
    for word in ("pool.read", "tensors.output", "put/s in", "rows=", "busy/starved/blocked %"):
        assert word in text, text
    # A look costs little: at four a second, this is its share of a processor.
    assert metrics["sampling_us"] * 4 / 1e6 < 0.01, metrics["sampling_us"]
    print(f"a look takes {metrics['sampling_us']:.0f} us")


def test_no_counter_ever_falls_whoever_is_killed(make_run: MakeRun) -> None:
    run = make_run(
        epochs=0,
        readers=2,
        unpackers=2,
        extra="restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 }",
    ).start("--set", "stages.unpacker.max_threads=4")
    trainer = run.trainer_after(3, batches=100000, positions=0)
    rng = random.Random(11)
    highest: dict[str, float] = {}
    supervisors = 0
    for round_number in range(24):
        at = trainer.batches()
        if round_number % 6 == 5:
            kill_supervisor(run)
            run.start("--set", "stages.unpacker.max_threads=4")
            supervisors += 1
        elif round_number % 6 == 2:
            run.command("scale", "lc0", "unpacker", str(rng.choice([1, 3, 4])))
        else:
            assert kill_a_worker(run, rng)
        for _ in range(2):
            metrics = wait_until(lambda: asked(run), "an answer")
            for place, value in counters(metrics["total"]):
                assert value >= highest.get(place, 0), f"{place}: {value} after {highest[place]}"
                highest[place] = value
        wait_until(lambda: trainer.batches() > at, "another batch")
    assert supervisors == 4
    moved = [place for place, value in highest.items() if value > 0]
    assert len(moved) > 60, moved
    # What the window of a new supervisor covers is what it has seen.
    kill_supervisor(run)
    run.start("--set", "stages.unpacker.max_threads=4")
    metrics = wait_until(lambda: asked(run), "the next supervisor")
    window = metrics["windows"][2]
    assert window["seconds_covered"] <= int(metrics["uptime_ms"]) / 1000 + 0.3
    rows = int(stages(window["metrics"])["tensors"]["tensor_generator"]["rows"])
    assert rows < int(stages(metrics["total"])["tensors"]["tensor_generator"]["rows"])
    assert "anchor" not in stages(metrics["total"])["pool"]["shuffling_chunk_pool"]


def test_an_anchor_that_was_set_is_shown(make_run: MakeRun) -> None:
    run = make_run(epochs=0).start()
    wait_until(lambda: " window_ready " in run.text(), "the window")
    with ringfeed.attach("lc0", socket_dir=run.sockets, attach_timeout_s=60) as feed:
        run.command("control", "lc0", 'chunk_pool_request { set_chunk_anchor: "somewhere" }')
        pool = stages(feed.metrics()["total"])["pool"]["shuffling_chunk_pool"]
        assert pool["anchor"] == "somewhere"


def test_a_feed_that_is_not_there_or_has_no_supervisor(make_run: MakeRun) -> None:
    run = make_run(epochs=0, extra=GROUPS)
    for verb in ("metrics", "why"):
        nobody = run.command(verb, "lc0")
        assert nobody.returncode == 4 and "no feed 'lc0' runs" in nobody.stderr
    run.start()
    wait_until(lambda: len(run.all_workers()) >= 2 and run.status(), "the workers")
    kill_supervisor(run)
    for verb in ("metrics", "why"):
        orphaned = run.command(verb, "lc0")
        assert orphaned.returncode == 5 and "orphaned" in orphaned.stderr
    assert run.command("stop", "lc0", "--now").returncode == 0
