"""What verbs print with --json, and what ringfeed web answers, fits the schemas of docs/reference.

The tests are scenes: feeds in each of their states, and files of each kind. The last test looks at
what they have seen together, so that no member is described that nothing has any more.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.e2e.feed.test_outputs import TWO
from tests.e2e.operate.test_peek import SAMPLES
from tests.support.feeds.fairseq_feeds import members
from tests.support.feeds.feed_run import BIN, ROOT, WAIT_S, FeedRun, stop, wait_until
from tests.support.feeds.json_schemas import Schemas, objects_of
from tests.support.feeds.scenes import kill_supervisor
from tests.support.feeds.web import Web
from tests.support.makers import chess_data, fairseq_data, lc0_data
from tests.support.makers.fairseq_examples import example
from tests.support.makers.lc0_versions import as_version
from tests.support.oracles import lc0_reference

MakeRun = Callable[..., FeedRun]

# What verbs without --json do instead.
WITHOUT = {
    "run": "it is the feed; its log has a JSON form of its own (log.format)",
    "try": "a stage's own print(), at the terminal",
    "web": "it serves JSON",
    "import-lc0": "it prints a configuration",
    "completion": "it prints a script",
    "manual": "it prints a page",
}
# Members that no scene here has, and where they are tested.
ELSEWHERE = {
    "EpochPlannerControlResponse.epoch_batches": "test_fairseq.py: only_look",
    "EpochPlannerControlResponse.from_batch": "test_fairseq.py: weights",
    "EpochPlannerControlResponse.sentences_left": "test_fairseq.py: weights",
    "RingStatus.back": "requests to an earlier stage: status.cc, in feeds of chess games",
    "dead-letters|1.batches": "test_replay.py: a record of the stage that makes batches",
    "dead-letters|1.rows": "test_replay.py: the same",
    "inspect.sample": "samples/test_python_batcher.py: a sample that was set aside",
}
# Members that depend on which stage of a machine is the slowest, or on what fails around a feed.
BY_CHANCE = {
    "BottleneckProto.batches_per_s_next": "bottleneck_test.cc, test_why.py",
    "BottleneckProto.batches_per_s_useful": "bottleneck_test.cc, test_why.py",
    "BottleneckProto.lanes": "bottleneck_test.cc",
    "BottleneckProto.lanes_max": "bottleneck_test.cc",
    "BottleneckProto.lanes_useful": "bottleneck_test.cc, test_why.py",
    "BottleneckProto.left_out": "bottleneck_test.cc, test_why_python.py",
    "BottleneckProto.next": "bottleneck_test.cc, test_why.py",
    "BottleneckProto.part": "bottleneck_test.cc",
    "BottleneckProto.setting": "bottleneck_test.cc, test_why_python.py",
    "BottleneckProto.setting_now": "bottleneck_test.cc, test_why_python.py",
    "BottleneckProto.setting_useful": "bottleneck_test.cc, test_why_python.py",
    "BottleneckProto.stage": "bottleneck_test.cc, test_why.py",
    "GraphBottleneck.node": "writers_test.cc",
    "GraphNode.progress": "writers_test.cc",
    "ProgressStatus.done": "test_progress.py",
    "ProgressStatus.left_ms": "progress_test.cc",
    "ProgressStatus.name": "test_progress.py",
    "ProgressStatus.text": "test_progress.py",
    "ProgressStatus.total": "test_progress.py",
    "StatusReply.problems": "test_hard_times.py",
}
NOTHING: dict[str, Any] = {"outputs": [{"batches_published": 0}]}
SCHEMAS = Schemas()
PLAYED: set[str] = set()


@pytest.fixture(autouse=True)
def played(request: pytest.FixtureRequest) -> None:
    PLAYED.add(request.node.name.partition("[")[0])


def ringfeed(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "ringfeed"), *map(str, words)], capture_output=True, text=True, timeout=WAIT_S
    )


def verbs() -> list[str]:
    listed = ringfeed("--help").stdout.partition("Subcommands:")[2]
    return re.findall(r"^  (\S+)  ", listed, re.MULTILINE)


def fits(done: subprocess.CompletedProcess[str], *statuses: int) -> list[Any]:
    """What was printed, which fits the schema of its verb."""
    verb = done.args[1]
    assert done.returncode in (statuses or (0,)), (done.args, done.stdout, done.stderr)
    found = list(objects_of(done.stdout))
    assert found, (done.args, done.stderr)
    for one in found:
        SCHEMAS.check(verb, one)
    return found


def says(run: FeedRun, *words: str | Path, status: int = 0) -> Any:
    """One object of a verb."""
    (found,) = fits(run.command(*map(str, words), "--json"), status)
    return found


def there(run: FeedRun, state: str = "RUNNING") -> FeedRun:
    wait_until(lambda: (run.status() or {}).get("state") == state, f"{run.feed} to be {state}")
    return run


# ---- The schemas


def test_each_verb_with_json_has_a_schema() -> None:
    """Also one that is new."""
    with_json = {verb for verb in verbs() if "  --json" in ringfeed(verb, "--help").stdout}
    assert with_json == {name for name in SCHEMAS.all if not name.startswith("web-")}
    assert set(verbs()) - with_json == set(WITHOUT)


@pytest.mark.parametrize("name", sorted(SCHEMAS.all))
def test_a_schema_says_what_each_member_is(name: str) -> None:
    schema = SCHEMAS.all[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema") and schema["$id"].endswith(f":{name}")
    for place, member in SCHEMAS.members().items():
        assert member.get("description", "").endswith((".", "…", ":")), place
        numbers = [member, member.get("items", {})]
        for one in numbers:
            kinds = one.get("type", [])
            if "number" in ([kinds] if isinstance(kinds, str) else kinds):
                assert one.get("x-unit"), f"{place} has no unit"


# ---- Feeds


def test_a_feed_that_runs(make_run: MakeRun, tmp_path: Path) -> None:
    """With trainers, a budget, a page, and a process that was replaced."""
    run = make_run(
        epochs=0,
        unpackers=1,
        unpack="position_sampling_rate: 1 max_threads: 2",
        groups='groups { name: "default" } groups { name: "ranks" kind: RANKED world: 1 }',
        extra='storage { memory_budget_bytes: "4 GiB" } http { listen: "127.0.0.1:0" } '
        "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 }",
    ).start()
    there(run)
    run.trainer(positions=0)
    run.trainer(positions=0, group="ranks", rank=0, world=1)
    for trainer in run.trainers:
        wait_until(lambda trainer=trainer: trainer.batches() > 2, "batches")
    group = next(name for name in run.all_workers() if "unpacker" in name)
    os.kill(run.all_workers()[group], signal.SIGKILL)
    wait_until(lambda: (run.status() or {}).get("restarts"), "another process")
    wait_until(lambda: run.status()["http"], "the page")  # type: ignore[index]

    status = says(run, "status", "lc0")
    assert status["trainers"] and status["restarts"] and status["memory_budget_bytes"]
    metrics = says(run, "metrics", "lc0")
    assert metrics["deaths"] >= 1 and metrics["total"]["stage_metrics"]
    assert [one["feed"] for one in says(run, "ps")["feeds"]] == ["lc0"]
    assert says(run, "why", "lc0")["bottlenecks"]
    assert says(run, "graph", "lc0")["running"]
    fits(run.command("top", "--once", "--json"))
    says(run, "peek", "lc0", "--rows", "2", "--save", tmp_path / "seen")
    assert says(run, "log", "lc0", "debug")["level"] == "debug"
    assert says(run, "scale", "lc0", "unpacker", "2")["lanes"] == 2
    assert says(run, "restart", "lc0", group)["pid"] == run.all_workers()[group]
    saved = says(run, "snapshot", "lc0", tmp_path / "saved")
    assert saved["feed"] == "lc0" and saved["bytes"] > 0
    says(run, "control", "lc0", "chunk_pool_request { reset_chunk_anchor: true }")
    says(run, "inspect", tmp_path / "saved")
    serve(run, of_web)
    assert says(run, "stop", "lc0", "--now")["asked"] == "stop"


def serve(run: FeedRun, look: Callable[[Web], None]) -> None:
    web = Web(run)
    try:
        look(web)
    finally:
        web.close()


def of_web(web: Web) -> None:
    SCHEMAS.check("web-feeds", web.json("/api/v1/feeds"))
    for what, name in (("", "status"), *((f"/{one}", one) for one in ("status", "metrics"))):
        SCHEMAS.check(name, web.json(f"/api/v1/feeds/lc0{what}"))
    for name in ("why", "graph"):
        SCHEMAS.check(name, web.json(f"/api/v1/feeds/lc0/{name}"))
    for path in ("/api/v1/events", "/api/v1/feeds/lc0/events"):
        SCHEMAS.check("web-events", event(web, path))
    for path in ("/api/v1/feeds/nobody", "/api/v1/feeds/lc0/nothing", "/nothing"):
        status, _, body = web.get(path)
        assert status == 404
        SCHEMAS.check("web-error", json.loads(body))


def event(web: Web, path: str) -> Any:
    """The first one of a stream."""
    link = http.client.HTTPConnection("127.0.0.1", web.port, timeout=WAIT_S)
    try:
        link.request("GET", path)
        answer = link.getresponse()
        while not (line := answer.readline()).startswith(b"data: "):
            assert line, path
        return json.loads(line.removeprefix(b"data: "))
    finally:
        link.close()


def test_a_feed_that_waits_for_files(make_run: MakeRun, tmp_path: Path) -> None:
    """It has no batch: what it says meanwhile."""
    (tmp_path / "empty").mkdir()
    run = make_run(tmp_path / "empty", epochs=0).start()
    there(run, "WARMING")
    for verb in ("status", "metrics", "why", "graph"):
        says(run, verb, "lc0")
    status = says(run, "status", "lc0")
    assert status["reason"] or status["progress"]
    fits(run.command("top", "--once", "--json"))
    says(run, "ps")
    assert run.command("peek", "lc0", "--json", "--timeout", "0.1").stdout == ""
    run.stop(signal.SIGQUIT)


def test_a_feed_that_a_stage_limits(make_run: MakeRun) -> None:
    """Nobody takes its batches, and nobody waits: what another lane would bring."""
    run = make_run(
        epochs=0,
        unpack="position_sampling_rate: 0.01 max_threads: 3",
        tensors="overflow_behavior: KEEP_NEWEST",
    ).start()
    there(run)
    kinds = set()

    def is_limited() -> bool:
        for one in says(run, "why", "lc0")["bottlenecks"]:
            kinds.add(one["kind"])
        return "STAGE" in kinds or "MACHINE" in kinds

    wait_until(is_limited, f"a stage that limits, not {kinds}")
    says(run, "graph", "lc0")
    assert says(run, "status", "lc0")["outputs"][0]["keep_newest"]


def test_a_feed_with_two_outputs(make_run: MakeRun, tmp_path: Path) -> None:
    """One is named."""
    groups = 'groups { name: "eval" kind: SHARED policy: BLOCK }'
    cache = f'cache_directory: "{tmp_path / "cache"}"'
    pipeline = TWO.replace('input: "provider" }}', f'input: "provider" {cache} }}}}')
    run = make_run(pipeline=pipeline, groups=groups, batch=64, epochs=0).start()
    wait_until(
        lambda: all(one["batches_published"] for one in (run.status() or NOTHING)["outputs"]),
        "a batch of each",
    )
    for verb in ("status", "metrics", "why", "graph", "peek"):
        says(run, verb, "lc0")
    says(run, "peek", "lc0", "--output", "validation")
    trainer = run.trainer(output="validation", group="eval", positions=0, pause_ms=100)
    wait_until(lambda: trainer.batches(), "a batch")
    assert says(run, "status", "lc0")["trainers"]
    (index, *_) = sorted((tmp_path / "cache").iterdir())
    assert says(run, "inspect", index)["kind"] == "chunk_index"
    run.stop(signal.SIGQUIT)


def test_feeds_that_do_not_answer(make_run: MakeRun) -> None:
    """One whose supervisor is stopped, one without a supervisor, and none."""
    run = there(make_run(epochs=0).start())
    assert run.process is not None
    stop(run.process.pid)
    try:
        assert says(run, "ps")["feeds"][0]["state"] == "NO_ANSWER"

        def of_silent(web: Web) -> None:
            SCHEMAS.check("web-feeds", web.json("/api/v1/feeds"))
            SCHEMAS.check("web-events", event(web, "/api/v1/events"))
            status, _, body = web.get("/api/v1/feeds/lc0/why")
            assert status == 503
            SCHEMAS.check("web-error", json.loads(body))

        serve(run, of_silent)
    finally:
        run.process.send_signal(signal.SIGCONT)
    there(run)
    kill_supervisor(run)
    assert says(run, "status", "lc0", status=5)["state"] == "ORPHANED"
    assert says(run, "ps")["feeds"][0]["state"] == "ORPHANED"
    serve(run, lambda web: SCHEMAS.check("web-feeds", web.json("/api/v1/feeds")))
    assert says(run, "clean")["left"]
    assert says(run, "clean", "--force")["cleaned"]
    assert says(run, "ps")["feeds"] == []
    place = run.work / "file"
    place.write_text("")
    assert says(run, "ps", "--socket-dir", place)["unreadable"]
    for words in (("status",), ("status", "lc0"), ("metrics", "lc0"), ("peek", "lc0")):
        done = run.command(*words, "--json")
        assert done.returncode == 4 and done.stdout == "" and "no feed" in done.stderr


def test_messages_to_a_planner(make_bitext: Callable[..., FeedRun]) -> None:
    config = example("a_concat")
    run = make_bitext(config, epochs=0).start()
    with members(run, config.world_size):
        says(run, "control", "mt", "epoch_planner_request {}")
        refused = 'epoch_planner_request { weights { key: "eng-xyz" weight: 1 } }'
        answer = says(run, "control", "mt", refused, status=1)
        assert answer["plans"]["epoch_planner_response"]["error"]
    says(run, "peek", "mt")


def test_records_that_kill_their_stage(tmp_path: Path, games: lc0_data.Manifest) -> None:
    """A feed that sets them aside, one that gives up; what is shown of a record."""
    programs = tmp_path / "bin"
    programs.mkdir()
    shutil.copy2(BIN / "ringfeed", programs / "ringfeed")
    shutil.copy2(BIN / "poison_worker", programs / "ringfeed-worker")
    letters = tmp_path / "letters"
    run = FeedRun(
        tmp_path,
        Path(games.directory),
        programs=programs,
        slots=100,
        extra=f'restart {{ max_attempts: 1 dead_letters: "{letters}" }}',
    )
    run.environment.update(RINGFEED_POISON="crash", RINGFEED_POISON_EVERY="30")
    try:
        run.start()
        listing = ("dead-letters", "lc0", "--directory", str(letters), "--json")
        wait_until(lambda: run.command(*listing).stdout, "a record that was set aside")
        says(run, "metrics", "lc0")
        listed = fits(run.command(*listing))
        record = listed[0]["file"]
        (inspected,) = fits(ringfeed("inspect", record, "--json"))
        assert inspected["letter"]["holds"]
        replayed = says(run, "dead-letters", "--replay", record, status=6)
        assert replayed["outcome"] == "died"
        good = ("dead-letters", "--replay", record, "--binary", str(BIN / "ringfeed-worker"))
        assert says(run, *good)["outcome"] == "taken"
    finally:
        run.close()


# ---- Files and configurations


def test_files_of_every_kind(games: lc0_data.Manifest, tmp_path: Path) -> None:
    def inspect(*words: str | Path, status: int = 0) -> Any:
        (found,) = fits(ringfeed("inspect", *words, "--json"), status)
        return found

    paths = lc0_reference.game_files(games.directory)
    game = next(path for path in paths if path.suffix == ".gz")
    tar = next(path for path in paths if path.suffix == ".tar")
    inspect(game, "--all")
    (tmp_path / "more.gz").write_bytes(game.read_bytes() + b"more")
    assert inspect(tmp_path / "more.gz", status=0)["chunk"]["trailing_bytes"] == 4
    inspect(tar)
    inspect(tar, "--chunk", "1")
    records = next(iter(lc0_reference.read_games(game))).records
    for version in (3, 4, 5, 6, 7):
        (tmp_path / "game").write_bytes(as_version(records, version))
        inspect(tmp_path / "game", "--all")
    unknown = records.copy()
    unknown["input_format"] = 4
    unknown["probabilities"][0, 0] = np.nan
    (tmp_path / "game").write_bytes(unknown.tobytes())
    inspect(tmp_path / "game", "--all")
    prefix = tmp_path / "train.de-en.de"
    for write in (fairseq_data.write_mapped, fairseq_data.write_megatron):
        write(prefix, [[4, 5, 2], [6, 2]])
        inspect(prefix)
    fairseq_data.write_dictionary(tmp_path / "dict.de.txt", 10)
    assert inspect(prefix)["tokens"]["dictionary"]["symbols"] >= 10
    rows = chess_data.random_games(10, 3, plies=10, missing=False)
    rows[7]["fen"] = "nonsense"
    inspect(chess_data.write_parquet(rows, tmp_path / "games.parquet"))
    rows = chess_data.random_variation_rows(100, 3, faults=True)
    columns = list(chess_data.COLUMN_TYPES)
    inspect(chess_data.write_parquet(rows, tmp_path / "lines.parquet", columns=columns))
    for config in sorted((ROOT / "workers" / "pipelines").glob("*.textproto")):
        assert inspect(config)["stages"]
    (tmp_path / "own.jsonl").write_text('{"id": 1}\nno JSON\n')
    assert inspect(tmp_path / "own.jsonl")["data"]["left_out"] == 1
    (tmp_path / "word").write_text("hello")
    assert inspect(tmp_path / "word", status=1)["problems"]


def test_configurations(make_run: MakeRun, games: lc0_data.Manifest, tmp_path: Path) -> None:
    run = make_run(groups='groups { name: "default" }')
    assert says(run, "check", run.config)["ok"]
    assert not says(run, "check", run.config, "--set", "stages.pool.threads=x", status=3)["ok"]
    assert says(run, "check", tmp_path / "nothing", status=1)["problems"]
    for config in sorted((ROOT / "workers" / "pipelines").glob("*.textproto")):
        assert says(run, "check", config)["warnings"], "its data is not here"
        says(run, "graph", config)
    own = str(BIN / "own_worker")
    says(run, "check", run.config, "--worker", own)
    fits(ringfeed("stages", "--json"))
    fits(ringfeed("stages", "word_filter", "--worker", own, "--json"))
    fits(ringfeed("stages", "python", "--json"))
    fits(run.command("doctor", str(run.config), "--json"), 0, 1)
    fits(ringfeed("version", "--json"))
    file = str(tmp_path / "made.textproto")
    assert says(run, "init", "lc0", games.directory, "--output", file)["file"] == file


def test_samples_of_ones_own(make_run: MakeRun, tmp_path: Path) -> None:
    """Arrays of texts and pictures: what numbers have that these lack."""
    data = tmp_path / "samples"
    data.mkdir()
    with (data / "a.jsonl").open("w") as lines:
        for number in range(64):
            sample = {"id": number, "text": "wörd", "score": number / 2}
            sample["left_image"] = sample["mask"] = None
            lines.write(json.dumps(sample) + "\n")
    run = make_run(data, epochs=0, pipeline=SAMPLES, batch=8, groups="").start()
    assert says(run, "check", run.config)["data"][0]["samples"] == 64
    wait_until(lambda: run.status(), "the feed")
    says(run, "status", "lc0")
    run.stop(signal.SIGQUIT)


# ---- All of it


def test_each_member_of_the_schemas_was_seen() -> None:
    """In the tests above, so that no schema says what nothing has."""
    scenes = {name for name in globals() if name.startswith("test_")}
    if PLAYED != scenes:
        pytest.fail("run it with all tests of this file before it")
    members = set(SCHEMAS.members())
    assert set(SCHEMAS.all) == SCHEMAS.used
    assert {*ELSEWHERE, *BY_CHANCE} <= members, "what the lists name is there"
    unseen = members - SCHEMAS.seen - BY_CHANCE.keys()
    assert unseen == ELSEWHERE.keys(), sorted(unseen ^ ELSEWHERE.keys())
