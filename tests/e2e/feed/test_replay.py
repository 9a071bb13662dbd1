"""A record that was set aside goes through its stage once more: dead-letters --replay."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.feeds.feed_run import BIN, FeedRun, runs, wait_until
from tests.support.makers import lc0_data
from tests.support.oracles import lc0_reference

EVERY = 30
NOT_TAKEN = 6
# Longer than any of it takes, so that only a hang uses it up.
PATIENCE = "50"


def poisoned_programs(directory: Path) -> Path:
    """A ringfeed whose worker dies on chunks with such an identity, as RINGFEED_POISON says."""
    programs = directory / "bin"
    programs.mkdir()
    shutil.copy2(BIN / "ringfeed", programs / "ringfeed")
    shutil.copy2(BIN / "poison_worker", programs / "ringfeed-worker")
    return programs


def poisoned_run(work: Path, games: lc0_data.Manifest, letters: Path) -> FeedRun:
    run = FeedRun(
        work,
        Path(games.directory),
        readers=3,
        unpackers=2,
        programs=poisoned_programs(work),
        extra=f'restart {{ max_attempts: 1 dead_letters: "{letters}" }}',
    )
    run.environment.update(RINGFEED_POISON="crash", RINGFEED_POISON_EVERY=str(EVERY))
    return run


@dataclass
class Letters:
    """What a feed has set aside, and the command that replays it."""

    directory: Path
    work: Path
    programs: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def records(self) -> list[Path]:
        return sorted(self.directory.glob("*.record"))

    def command(self, *words: str, poison: str = "none") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.programs / "ringfeed"), "dead-letters", *words],
            env={
                **self.environment,
                "RINGFEED_POISON": poison,
                "RINGFEED_POISON_EVERY": str(EVERY),
            },
            capture_output=True,
            text=True,
            timeout=120,
        )

    def replay(
        self, record: Path, *words: str, poison: str = "none"
    ) -> subprocess.CompletedProcess[str]:
        return self.command("--replay", str(record), "--timeout", PATIENCE, *words, poison=poison)

    def report(self, record: Path, *words: str, poison: str = "none") -> dict[str, Any]:
        done = self.replay(record, "--json", *words, poison=poison)
        assert done.returncode in (0, NOT_TAKEN), done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode == 0) == (report["outcome"] == "taken")
        return report

    def about(self) -> dict[str, Any]:
        about: dict[str, Any] = json.loads(self.records()[0].with_suffix(".json").read_text())
        return about

    def changed(self, tmp_path: Path, **about: Any) -> Path:
        """A copy of the first letter in which these fields are others; None leaves one out."""
        record = tmp_path / "copy.record"
        shutil.copy2(self.records()[0], record)
        fields = self.about()
        fields.update(about)
        fields = {name: value for name, value in fields.items() if value is not None}
        record.with_suffix(".json").write_text(json.dumps(fields))
        return record

    def for_stage(self, tmp_path: Path, stage: str, bytes_: bytes, **about: Any) -> Path:
        """A letter with other bytes, for another stage of the same feed."""
        about = {"lane": 0, "ring": 0, **about}
        record = self.changed(tmp_path, stage=stage, bytes=len(bytes_), xxh3=None, **about)
        record.write_bytes(bytes_)
        return record


@pytest.fixture(scope="module")
def letters(
    tmp_path_factory: pytest.TempPathFactory, games: lc0_data.Manifest
) -> Iterator[Letters]:
    work = tmp_path_factory.mktemp("letters")
    run = poisoned_run(work, games, work / "letters")
    try:
        run.start().trainer().result(300)
        assert run.wait() == 0, run.text()
    finally:
        run.close()
    made = Letters(work / "letters", work, work / "bin")
    assert made.records(), "some chunks of the data are poisoned"
    yield made
    shutil.rmtree(work, ignore_errors=True)


CHUNK_HEAD = 32  # bytes before the frames of a whole chunk (workers/lc0/records.h)


def frames_of(record: Path) -> int:
    return int(np.frombuffer(record.read_bytes()[8:12], "<u4")[0])


def first_frame(record: Path) -> bytes:
    chunk = record.read_bytes()[CHUNK_HEAD:]
    return chunk[: int(np.frombuffer(chunk[:4], "<u4")[0])]


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ("crash", "signal 11 (Segmentation fault)"),
        ("abort", "signal 6 (Aborted)"),
        ("exit", "exit status 9"),
    ],
)
def test_a_record_kills_its_stage_again_as_it_did_in_the_feed(
    letters: Letters, how: str, ending: str
) -> None:
    record = letters.records()[0]
    done = letters.replay(record, poison=how)
    assert done.returncode == NOT_TAKEN, done.stderr
    assert f"died on the record with {ending}" in done.stdout
    assert ("backtrace, newest call first:" in done.stdout) == (how != "exit")
    if how != "exit":
        assert "poison_worker" not in done.stdout and "ringfeed-worker(" in done.stdout


def test_a_record_of_a_lane_that_its_stage_was_scaled_to_is_replayed_there(
    letters: Letters, tmp_path: Path
) -> None:
    about = letters.about()
    assert about["stage"] == "unpacker" and about["config"].count("threads: 2") == 1
    config = about["config"].replace("threads: 2", "threads: 2 max_threads: 4")
    report = letters.report(letters.changed(tmp_path, lane=3, config=config))
    assert report["outcome"] == "taken" and report["ports"][0]["records"] > 0


def test_once_the_stage_is_mended_the_same_command_shows_what_comes_out(letters: Letters) -> None:
    for record in letters.records():
        done = letters.replay(record)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "took the record" in done.stdout
        assert f"output {frames_of(record)} records on port output" in done.stdout
        assert f"counted frames: {frames_of(record)}" in done.stdout


def test_the_mended_worker_may_be_named(letters: Letters) -> None:
    record = letters.records()[0]
    assert letters.report(record, poison="crash")["signal"] == signal.SIGSEGV
    mended = str(BIN / "ringfeed-worker")
    report = letters.report(record, "--binary", mended, poison="crash")
    assert report["outcome"] == "taken" and report["consumed"] and report["finished"]
    assert report["ports"] == [
        {
            "port": "output",
            "records": frames_of(record),
            "bytes": record.stat().st_size - CHUNK_HEAD,
            "dropped": 0,
        }
    ]


def test_a_hang_is_given_up_with_the_place_where_it_hangs(letters: Letters) -> None:
    record = str(letters.records()[0])
    done = letters.command("--replay", record, "--timeout", "3", poison="hang")
    assert done.returncode == NOT_TAKEN, done.stderr
    assert "was still running after 3 s" in done.stdout and "was killed" in done.stdout
    assert "backtrace, newest call first:" in done.stdout
    assert "pause" in done.stdout, "what the stage was doing"


def test_the_stall_limit_of_the_configuration_is_the_default_timeout(
    letters: Letters, tmp_path: Path
) -> None:
    config = letters.about()["config"].replace("restart {", "restart { stall_ms: 2500")
    record = letters.changed(tmp_path, config=config)
    done = letters.command("--replay", str(record), poison="hang")
    assert done.returncode == NOT_TAKEN, done.stderr
    assert "was still running after 2.5 s" in done.stdout


def test_a_record_may_be_named_as_its_feed_knows_it(letters: Letters) -> None:
    name = letters.records()[0].name
    done = letters.command("lc0", "--directory", str(letters.directory), "--replay", name)
    assert done.returncode == 0, done.stderr
    assert letters.replay(letters.records()[0].with_suffix(".json")).returncode == 0
    done = letters.command()
    assert done.returncode == 2 and "FEED (or --replay FILE)" in done.stderr


def test_the_worker_waits_for_a_debugger_before_the_record(letters: Letters) -> None:
    process = subprocess.Popen(
        [
            str(letters.programs / "ringfeed"),
            "dead-letters",
            "--replay",
            str(letters.records()[0]),
            "--wait",
        ],
        env={**letters.environment, "RINGFEED_POISON": "crash", "RINGFEED_POISON_EVERY": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    worker = int(said.split()[1])
    assert f"gdb -p {worker}" in said and runs(worker), "it has not met the record"
    stdout, _ = process.communicate("\n", timeout=60)
    assert process.returncode == NOT_TAKEN and "signal 11" in stdout
    assert not runs(worker)


def test_a_worker_that_hangs_dies_with_the_command(letters: Letters) -> None:
    process = subprocess.Popen(
        [
            str(letters.programs / "ringfeed"),
            "dead-letters",
            "--replay",
            str(letters.records()[0]),
            "--timeout",
            "1000",
        ],
        env={**letters.environment, "RINGFEED_POISON": "hang", "RINGFEED_POISON_EVERY": "1"},
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def hanging() -> list[int]:
        found = []
        for pid in map(int, children.read_text().split()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                name = Path(f"/proc/{pid}/comm").read_text()
                found += [pid] if name.startswith("rf-unpacker") else []
        return found

    worker = wait_until(hanging, "the worker")[0]
    process.kill()
    process.wait()
    wait_until(lambda: not runs(worker), "the worker's end")


def test_stages_that_gather_give_out_what_they_have(letters: Letters, tmp_path: Path) -> None:
    frame = first_frame(letters.records()[0])
    report = letters.report(letters.for_stage(tmp_path, "sampler", frame))
    assert report["outcome"] == "taken" and report["ports"][0]["records"] == 1
    report = letters.report(letters.for_stage(tmp_path, "tensors", frame))
    assert (report["outcome"], report["batches"], report["rows"]) == ("taken", 1, 1)


def test_stages_that_read_files_read_them_again(
    letters: Letters, tmp_path: Path, games: lc0_data.Manifest
) -> None:
    path = next(Path(games.directory).rglob("*.gz"))
    loader = letters.for_stage(tmp_path, "loader", str(path).encode())
    report = letters.report(loader)
    assert report["outcome"] == "taken" and report["counters"]["chunks"] == 1
    assert report["ports"][0]["records"] == 1
    size = path.stat().st_size
    frames = int(np.frombuffer(path.read_bytes()[-4:], "<u4")[0]) // 8356  # bytes of a V6 record
    task = struct.pack("<QQQQIHHIIQ", 0, 5, 0, size, frames, 0, 1, len(str(path)), 0, 0)
    reader = letters.for_stage(
        tmp_path, "pool", task + str(path).encode(), node="read", port="tasks"
    )
    report = letters.report(reader)
    assert report["outcome"] == "taken" and report["lane"] == "pool.read.0", report
    assert {port["port"]: port["records"] for port in report["ports"]} == {
        "output": 1,
        "rejects": 0,
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dispatch: ORDERED", "dispatch: RELAXED"),
        ("chunk_unpacker {", "chunk_unpacker { overflow_behavior: DROP_NEW"),
        ("chunk_unpacker {", "chunk_unpacker { overflow_behavior: KEEP_NEWEST"),
        ("shuffling_chunk_pool {", "shuffling_chunk_pool { overflow_behavior: KEEP_NEWEST"),
        ("queue_capacity: 512", "queue_capacity: 2"),
    ],
)
def test_each_lane_finds_its_record_however_records_are_dealt_out(
    letters: Letters, tmp_path: Path, old: str, new: str
) -> None:
    config = letters.about()["config"]
    assert old in config
    for lane, ring in itertools.product(range(2), range(3)):
        copy = letters.changed(tmp_path, lane=lane, ring=ring, config=config.replace(old, new, 1))
        report = letters.report(copy)
        (port,) = report["ports"]
        assert report["outcome"] == "taken" and report["finished"], report
        assert report["lane"] == f"unpacker.{lane}"
        assert port["records"] + port["dropped"] == frames_of(copy)
        assert port["dropped"] == 0 or "overflow" in new


def test_a_record_that_its_stage_skips_is_taken_and_counted(
    letters: Letters, tmp_path: Path
) -> None:
    report = letters.report(letters.for_stage(tmp_path, "unpacker", b"no chunk"))
    assert report["outcome"] == "taken" and report["counters"] == {"chunks_damaged": 1}
    report = letters.report(letters.for_stage(tmp_path, "tensors", b"no frame"))
    assert (report["outcome"], report["batches"]) == ("taken", 0)
    assert report["counters"] == {"frames_skipped": 1}
    assert any("skipped stage=tensors" in line for line in report["lines"])


def test_a_running_feed_with_the_same_name_and_letters_does_not_notice(
    tmp_path: Path, games: lc0_data.Manifest
) -> None:
    directory = tmp_path / "letters"
    run = poisoned_run(tmp_path, games, directory)
    try:
        run.start()
        wait_until(lambda: list(directory.glob("*.json")), "a record to be set aside")
        # Nobody takes batches yet: when all slots are full, everything stands still.
        before: dict[str, Any] = {}

        def still() -> bool:
            nonlocal before
            last, before = before, feed_facts(run)
            outputs = (run.status() or {}).get("outputs", [])
            # A stage that dies and comes back stands still, too, but not in front of full slots.
            full = [one for one in outputs if one["slots_used"] == one["slots"]]
            return bool(full) and bool(last) and last == before and bool(before["workers"])

        wait_until(still, "the feed to fill")
        kept = sorted(path.name for path in directory.iterdir())
        beside = sorted(path.name for path in run.sockets.iterdir())
        mine = Letters(directory, tmp_path, tmp_path / "bin", run.environment)
        for record in mine.records():
            assert mine.replay(record, poison="crash").returncode == NOT_TAKEN
            assert mine.replay(record).returncode == 0
        assert feed_facts(run) == before
        assert sorted(path.name for path in directory.iterdir()) == kept
        assert sorted(path.name for path in run.sockets.iterdir()) == beside
        result = run.trainer().result()
        assert run.wait() == 0, run.text()
    finally:
        run.close()
    audit = lc0_reference.audit(result["hashes"], games.record_hashes)
    assert not audit.repeated and not audit.unknown, str(audit)
    assert len(audit.missing) == sum(frames_of(record) for record in mine.records())


def feed_facts(run: FeedRun) -> dict[str, Any]:
    """Who works for the feed, and how far it is; nothing that a mere look or time changes."""
    status = run.status()
    if status is None:
        return {}
    counters = [(s["name"], s.get("counters")) for s in status["stages"]]
    return {"workers": run.workers(), "counters": counters, "batches": status.get("batches")}


def test_damaged_letters_are_refused_with_what_is_wrong(letters: Letters, tmp_path: Path) -> None:
    def refused(record: Path, status: int = 1) -> str:
        done = letters.replay(record)
        assert done.returncode == status, done.stdout + done.stderr
        assert done.stdout == "" and "terminate" not in done.stderr
        return done.stderr

    record = letters.changed(tmp_path)
    whole = record.read_bytes()
    record.write_bytes(whole[:-1])
    assert f"it has {len(whole) - 1} bytes, but {len(whole)} were set aside" in refused(record)
    record.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "checksum" in refused(record)
    record.write_bytes(whole)
    record.with_suffix(".json").write_text("{")
    assert "not a JSON object" in refused(record)
    record.with_suffix(".json").write_bytes(b'{"stage": "\xff"}')
    assert "not a JSON object" in refused(record)
    record.with_suffix(".json").unlink()
    assert "cannot be read: No such file" in refused(record)
    assert "cannot be read: No such file" in refused(tmp_path / "nothing.record")
    assert "is not a dead letter" in refused(tmp_path)
    directory = tmp_path / "directory.record"
    directory.mkdir()
    assert "cannot be read" in refused(directory)
    for field_, value in [
        ("stage", 7),
        ("lane", -1),
        ("lane", 1 << 40),
        ("ring", "0"),
        ("lineage", [1]),
        ("lineage", [1, "2"]),
        ("user", 1.5),
        ("bytes", None),
        ("cause", {}),
        ("config", []),
    ]:
        assert f"'{field_}' is missing" in refused(letters.changed(tmp_path, **{field_: value}))


def test_letters_of_other_versions_say_what_is_missing(letters: Letters, tmp_path: Path) -> None:
    about = letters.about()
    config = tmp_path / "config.textproto"
    config.write_text(about["config"])
    record = letters.changed(tmp_path, config=None, seed=None, xxh3=None, version=None)
    done = letters.replay(record)
    assert done.returncode == 1 and "give the configuration with --config FILE" in done.stderr
    assert letters.replay(record, "--config", str(config)).returncode == 0
    listed = letters.command("lc0", "--directory", str(tmp_path))
    assert listed.returncode == 0 and str(record) in listed.stdout, "as before"

    for field_, value, what in [
        ("stage", "unpucker", "no lane unpucker.0"),
        ("lane", 7, "no lane unpacker.7"),
        ("node", "read", "no lane unpacker.read."),
        ("port", "exit", "no input 'exit'"),
        ("ring", 7, "no ring 7 of input 'input'"),
    ]:
        changed = letters.changed(tmp_path, **{"lane": 0, "ring": 0, field_: value})
        done = letters.replay(changed)
        assert done.returncode == 1 and what in done.stderr, done.stderr
    for text, status in [
        (about["config"].replace("chunk_unpacker", "chunk_unraveller"), 3),
        (about["config"].replace("position_sampling_rate", "rate"), 3),
        ("stages {", 3),
        (about["config"].replace('input: "pool"', 'input: "puddle"'), 3),
    ]:
        done = letters.replay(letters.changed(tmp_path, config=text))
        assert done.returncode == status and done.stdout == "", done.stderr
        assert done.stderr


def test_a_program_that_is_no_worker_is_refused(letters: Letters, tmp_path: Path) -> None:
    record = letters.records()[0]
    done = letters.replay(record, "--binary", "/bin/true")
    assert done.returncode == 1 and "the worker's plan contradicts itself" in done.stderr
    done = letters.replay(record, "--binary", "/bin/false")
    assert done.returncode == 1 and "/bin/false" in done.stderr
    note = tmp_path / "note"
    note.write_text("no program")
    done = letters.replay(record, "--binary", str(note))
    assert done.returncode == 1 and "cannot be started" in done.stderr


def test_damaged_letters_do_not_keep_the_others_from_being_listed(
    letters: Letters, tmp_path: Path
) -> None:
    record = letters.changed(tmp_path)
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text('{"bytes": "many"}')
    listed = letters.command("lc0", "--directory", str(tmp_path))
    assert listed.returncode == 0
    assert listed.stdout.splitlines()[0].startswith(f"{record}  ")
    assert len(listed.stdout.splitlines()) == 1
    assert "a.json: is damaged" in listed.stderr and "b.json: is damaged" in listed.stderr
