"""ringfeed graph: of configurations and of feeds, in every form, and as ringfeed web gives it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.feeds.feed_run import BIN, ROOT, WAIT_S, FeedRun, runs, wait_until
from tests.support.feeds.scenes import kill_supervisor
from tests.support.feeds.web import Web

MakeRun = Callable[..., FeedRun]
PIPELINES = sorted((ROOT / "workers" / "pipelines").glob("*.textproto"))


def graph(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "ringfeed"), "graph", *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env={**os.environ, "LC_ALL": "C.UTF-8", **variables},
    )


def answer(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def shape(made: dict[str, Any]) -> dict[str, Any]:
    """What a graph has in it, without what counts."""
    return {
        "nodes": [
            {key: node[key] for key in ("name", "stage", "kind", "processes", "lanes", "lanes_max")}
            for node in made["nodes"]
        ],
        "queues": [
            {
                key: queue[key]
                for key in ("from", "port", "to", "to_port", "back", "rings")
                + ("capacity_records", "capacity_bytes")
            }
            for queue in made["queues"]
        ],
        "outputs": [
            {key: output[key] for key in ("alias", "from", "port", "rows_max", "slots")}
            for output in made["outputs"]
        ],
        "processes": [process["name"] for process in made["processes"]],
        "memory_bytes": made["memory_bytes"],
    }


def is_drawn_by_graphviz(dot: str) -> None:
    """It has nothing to say about it, and makes a picture that is XML."""
    done = subprocess.run(
        ["dot", "-Tsvg"], input=dot, capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    xml.etree.ElementTree.fromstring(done.stdout)


# ---- Of a configuration


@pytest.mark.parametrize("config", PIPELINES, ids=lambda path: str(path.stem))
def test_each_pipeline_in_each_form(config: Path) -> None:
    """As `ringfeed check` shows it."""
    checked = json.loads(
        subprocess.run(
            [str(BIN / "ringfeed"), "check", str(config), "--json"], capture_output=True
        ).stdout
    )
    made = json.loads(answer(graph(str(config), "--json")))
    assert made["json_version"] == 1 and made["running"] is False
    assert made["feed"] == checked["feed"] and made["memory"] == checked["memory"]
    assert sum(node["lanes"] for node in made["nodes"]) == sum(
        node["lanes"]
        for group in checked["groups"]
        for stage in group["stages"]
        for node in stage["nodes"]
    )
    assert [one["slots"] for one in made["outputs"]] == [one["slots"] for one in checked["batches"]]
    drawn = answer(graph(str(config)))
    assert all(len(line) <= 80 for line in drawn.splitlines())
    for node in made["nodes"]:
        assert re.search(rf"● (?:│ |  )*{re.escape(node['name'])}  {node['kind']},", drawn)
    is_drawn_by_graphviz(answer(graph(str(config), "--format", "dot")))
    picture = answer(graph(str(config), "--format", "svg"))
    texts = "".join(xml.etree.ElementTree.fromstring(picture).itertext())
    assert all(node["name"] in texts for node in made["nodes"])


def test_from_standard_input_with_settings(make_run: MakeRun) -> None:
    run = make_run()
    words = ["-", "--json", "--set", "stages.unpacker.threads=3"]
    done = run.command("graph", *words, input=run.config.read_text())
    assert done.returncode == 0, done.stderr
    [unpacker] = [node for node in json.loads(done.stdout)["nodes"] if node["name"] == "unpacker"]
    assert unpacker["lanes"] == 3


def test_a_broken_configuration_is_refused(make_run: MakeRun) -> None:
    run = make_run()
    done = run.command("graph", str(run.config), "--set", "stages.unpacker.queue_bytes=1.5")
    assert done.returncode == 3 and "unpacker" in done.stderr and done.stdout == ""
    done = run.command("graph", str(run.work / "nothing.textproto"))
    assert done.returncode == 1 and "cannot read the configuration" in done.stderr


def test_too_little_memory_here_is_a_warning(make_run: MakeRun) -> None:
    run = make_run()
    done = run.command("graph", str(run.config), "--set", "storage.memory_budget_bytes=1MiB")
    assert done.returncode == 0 and "warning: " in done.stderr and "unpacker" in done.stdout


def test_ascii_where_the_locale_has_nothing_else(make_run: MakeRun) -> None:
    run = make_run()
    assert answer(graph(str(run.config), LC_ALL="C")).isascii()
    assert not answer(graph(str(run.config))).isascii()
    # A locale that is not installed is what its name says.
    assert not answer(graph(str(run.config), LC_ALL="xx_XX.UTF-8")).isascii()


def test_without_graphviz_it_says_what_to_install(make_run: MakeRun) -> None:
    run = make_run()
    done = graph(str(run.config), "--format", "svg", PATH="/nonexistent")
    assert done.returncode == 1 and done.stdout == ""
    assert "apt install graphviz" in done.stderr and "--format dot" in done.stderr


# ---- Of a feed


def test_a_feed_is_what_its_configuration_said_and_has_rates(run: FeedRun, serve: Any) -> None:
    """The same from the verb and from the web."""
    run.trainer_after(20, positions=0, group="train")
    planned = json.loads(run.command("graph", str(run.config), "--json").stdout)

    def running() -> Any:
        made = json.loads(run.command("graph", "lc0", "--json").stdout)
        return made if made["outputs"][0].get("batches_per_s", 0) > 0 else None

    made = wait_until(running, "rates")
    assert shape(made) == shape(planned)
    assert made["running"] and made["state"] == "RUNNING" and made["outputs"][0]["batches"] >= 20
    assert made["outputs"][0]["groups"][0]["trainers"][0]["client"]
    assert {process["pid"] for process in made["processes"]} == set(run.all_workers().values())
    for node in made["nodes"]:
        shares = node["busy_share"] + node["starved_share"] + node["blocked_share"]
        assert 0 <= shares <= 1.1, node
    for queue in made["queues"]:
        assert 0 <= queue["fill_share"] <= 1 and "records_per_s" in queue, queue
    why = json.loads(run.command("why", "lc0", "--json").stdout)["bottlenecks"]
    assert [one["output"] for one in made["bottlenecks"]] == [one.get("output", "") for one in why]

    of_web = serve().json("/api/v1/feeds/lc0/graph")
    # With a reason where it waits just then.
    assert of_web.keys() - {"reason"} == made.keys() - {"reason"} and shape(of_web) == shape(made)
    assert of_web["json_version"] == made["json_version"]


def test_a_feed_in_each_form(run: FeedRun) -> None:
    run.trainer_after(20, positions=0)
    drawn = run.command("graph", "lc0", env={**run.environment, "LC_ALL": "C.UTF-8"}).stdout
    assert "feed lc0: running for" in drawn and "batches/s" in drawn and "busy " in drawn
    for pid in run.all_workers().values():
        assert f"pid {pid}" in drawn
    is_drawn_by_graphviz(run.command("graph", "lc0", "--format", "dot").stdout)
    xml.etree.ElementTree.fromstring(run.command("graph", "lc0", "--format", "svg").stdout)


def test_the_bottleneck_is_marked(make_run: MakeRun) -> None:
    """Nobody takes batches, so that trainers are what limits, with the sentence of `why`."""
    run = make_run(epochs=0, groups='groups { name: "train" }').start()

    def limits() -> Any:
        made = json.loads(run.command("graph", "lc0", "--json").stdout or "{}")
        found = made.get("bottlenecks", [])
        return made if found and found[0]["kind"] == "TRAINERS" else None

    made = wait_until(limits, "the trainers to limit")
    assert made["outputs"][0]["limits"] and made["bottlenecks"][0]["sentence"]
    drawn = run.command("graph", "lc0", env={**run.environment, "LC_ALL": "C.UTF-8"}).stdout
    assert re.search(r"◆ batches.*\n?.*◀ bottleneck", drawn), drawn


# ---- Which one is meant


def test_a_feed_that_is_not_there(make_run: MakeRun) -> None:
    run = make_run()
    done = run.command("graph", "nobody", cwd=run.work)
    assert done.returncode == 4 and "there is no file 'nobody' here" in done.stderr
    assert run.command("graph", "--feed", "nobody").returncode == 4


def test_a_feed_without_a_supervisor(make_run: MakeRun) -> None:
    run = make_run(epochs=0).start()
    wait_until(lambda: "first_batch" in run.text(), "the first batch")
    workers = list(run.all_workers().values())
    kill_supervisor(run)
    done = run.command("graph", "lc0")
    assert done.returncode == 5 and "orphaned" in done.stderr and done.stdout == ""
    assert run.command("stop", "lc0", "--now").returncode == 0
    wait_until(lambda: not any(runs(pid) for pid in workers), "the workers to end")


def test_a_file_and_a_feed_of_one_name(run: FeedRun) -> None:
    """It says how to tell them apart; a directory is no configuration."""
    (run.work / "lc0").write_text(run.config.read_text())
    done = run.command("graph", "lc0", cwd=run.work)
    assert done.returncode == 2 and "./lc0" in done.stderr and "--feed lc0" in done.stderr
    of_file = run.command("graph", "./lc0", "--json", cwd=run.work)
    assert json.loads(of_file.stdout)["running"] is False
    of_feed = run.command("graph", "--feed", "lc0", "--json", cwd=run.work)
    assert json.loads(of_feed.stdout)["running"] is True
    (run.work / "lc0").unlink()
    (run.work / "lc0").mkdir()
    assert run.command("graph", "lc0", cwd=run.work).returncode == 0
    done = run.command("graph", "lc0", "--set", "seed=1", cwd=run.work)
    assert done.returncode == 2 and "--set" in done.stderr


def test_of_the_web_what_is_not_there(serve: Callable[..., Web]) -> None:
    assert serve().get("/api/v1/feeds/nobody/graph")[0] == 404
