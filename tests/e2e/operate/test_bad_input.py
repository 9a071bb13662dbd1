"""What bad input gets: a clear message, or it is skipped and counted; everything around it is
delivered.
"""

from __future__ import annotations

import gzip
import io
import os
import signal
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import BIN, ROOT, WAIT_S, FeedRun, wait_until
from tests.support.feeds.scenes import assert_exact
from tests.support.makers import lc0_data
from tests.support.oracles import lc0_reference

MakeRun = Callable[..., FeedRun]


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def first_game(manifest: lc0_data.Manifest) -> bytes:
    """The gzip member of the first game of the first tar."""
    with tarfile.open(manifest.paths[0]) as tar:
        for member in tar:
            if member.name.endswith(".gz"):
                file = tar.extractfile(member)
                assert file is not None
                return file.read()
    raise AssertionError("no game")


def test_damaged_files_are_skipped_by_reason_and_the_rest_is_delivered(
    make_run: MakeRun, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    manifest = lc0_data.make_dataset(data, games=20, tars=1, seed=6, loose=2)
    game = first_game(manifest)
    records = gzip.decompress(game)
    (data / "truncated.gz").write_bytes(game[: len(game) // 2])
    (data / "empty.gz").write_bytes(b"")
    (data / "no-records.gz").write_bytes(gzip.compress(b""))
    (data / "wrong-size.gz").write_bytes(gzip.compress(records[:-5]))
    (data / "wrong-version.gz").write_bytes(
        gzip.compress(
            b"".join(
                struct.pack("<I", 9) + records[i * 8356 + 4 : (i + 1) * 8356] for i in range(3)
            )
        )
    )
    flipped = bytearray(game)
    flipped[len(flipped) // 2] ^= 0xFF
    (data / "flipped.gz").write_bytes(bytes(flipped))
    (data / "readme.txt").write_text("not data")
    os.symlink(data / "nowhere", data / "dangling.gz")
    # A tar with a damaged header in the middle: whole members on both sides are used.
    extra = lc0_data.make_dataset(tmp_path / "extra", games=3, tars=1, seed=60)
    blob = bytearray(Path(extra.paths[0]).read_bytes())
    with tarfile.open(extra.paths[0]) as tar:
        games = [member for member in tar if member.name.endswith(".gz")]
    blob[games[1].offset + 148] ^= 0x7F  # the checksum field
    (data / "damaged.tar").write_bytes(bytes(blob))
    good = lc0_reference.file_hashes([str(extra.paths[0])])
    sizes = extra.game_positions
    kept = list(manifest.record_hashes) + list(good[: sizes[0]]) + list(good[sizes[0] + sizes[1] :])

    run = make_run(data, batch=64).start()
    trainer = run.trainer()
    # The counters are read while the supervisor lives: before the trainer has taken the last batch.
    result = trainer.result()
    assert run.wait() == 0, run.text()
    audit = lc0_reference.audit(result["hashes"], kept)
    assert audit.exact, str(audit) + run.text()
    log = run.text()
    for reason, place in [
        ("skipped_damaged", "truncated.gz"),
        ("skipped_empty", "empty.gz"),
        ("skipped_record", "wrong-"),
        ("skipped_damaged", "flipped.gz"),
        ("skipped_extension", "readme.txt"),
        ("damaged_header", "damaged.tar"),
    ]:
        lines = [line for line in log.splitlines() if f"reason={reason}" in line]
        assert lines, f"{reason} is logged"
        assert any("offset=" in line for line in lines)


def test_a_file_that_vanishes_while_queued_is_skipped(make_run: MakeRun, tmp_path: Path) -> None:
    data = tmp_path / "data"
    manifest = lc0_data.make_dataset(data, games=10, tars=2, seed=8)
    run = make_run(data, epochs=0).start()
    trainer = run.trainer(positions=0)
    wait_until(lambda: trainer.batches() > 3, "batches")
    # Endless run: the tars are drawn from again and again; one goes away and the other serves on.
    Path(manifest.paths[0]).unlink()
    seen = trainer.batches()
    wait_until(lambda: trainer.batches() > seen + 20, "batches from the other tar")
    assert run.stop() == 0, run.text()


FIVE_MISTAKES = """
feed: "broken"
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "providr" } }
stages { name: "pool" shuffling_chunk_pool { input: "loader" chunk_pool_size: 0 } }
stages { name: "unpacker" chunk_unpacker { input: "pool" position_sampling_rate: 2 } }
stages { name: "sampler" shuffling_frame_sampler { input: "pool" } }
stages { name: "tensors" tensor_generator { input: "sampler" batch_sise: 12 } }
"""


def test_five_mistakes_give_five_messages_with_places(tmp_path: Path) -> None:
    config = tmp_path / "broken.textproto"
    config.write_text(FIVE_MISTAKES)
    for verb in ("check", "run"):
        done = subprocess.run(
            [str(BIN / "ringfeed"), verb, str(config)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 3, done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith(f"{config}:")]
        text = "\n".join(lines)
        for line_number, words in [
            (4, "provider"),
            (5, "chunk_pool_size"),
            (6, "position_sampling_rate"),
            (7, "frames"),
            (8, "batch_size"),
        ]:
            assert any(
                line.startswith(f"{config}:{line_number}:") and words in line for line in lines
            ), text


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("position_count=2", "position_sampling_rate and position_count are both given"),
        ("position_sampling.default_weight=2", "give position_count instead"),
    ],
)
def test_frames_of_a_pool_that_contradict_themselves_are_refused(setting: str, says: str) -> None:
    config = ROOT / "workers" / "pipelines" / "lc0.textproto"
    done = subprocess.run(
        [BIN / "ringfeed", "check", config, "--set", f"stages.pool.frames.{setting}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert "stage 'pool': " in done.stderr and says in done.stderr


def test_a_feed_name_in_use_is_refused_with_the_pid(make_run: MakeRun) -> None:
    run = make_run(epochs=0).start()
    wait_until(run.status, "the feed to serve")
    again = run.command("run", str(run.config))
    assert again.returncode == 1
    assert run.process is not None
    assert str(run.process.pid) in again.stderr
    assert run.stop() == 0, run.text()


def test_too_little_memory_is_refused_with_the_sums(make_run: MakeRun) -> None:
    run = make_run(extra="storage { memory_budget_bytes: 30000000 }")
    done = run.command("run", str(run.config))
    assert done.returncode == 1
    for word in ("batches", "arena of sampler", "in total", "memory_budget_bytes"):
        assert word in done.stderr, done.stderr


def test_a_reservoir_larger_than_the_machine_is_refused(make_run: MakeRun) -> None:
    run = make_run(reservoir=4_000_000_000)
    done = run.command("run", str(run.config))
    assert done.returncode == 1, done.stderr
    assert "reservoir_size_per_thread" in done.stderr


def test_a_full_directory_for_segments_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.fail("this test mounts a small tmpfs: run it as root")
    room = tmp_path / "room"
    room.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(room)], check=True)
    try:
        run = make_run(extra=f'storage {{ directory: "{room}" }}')
        done = run.command("run", str(run.config))
        assert done.returncode == 1
        assert str(room) in done.stderr and "in total" in done.stderr, done.stderr
        assert not list(room.iterdir()), "nothing is left behind"
    finally:
        subprocess.run(["umount", str(room)], check=True)


def test_a_feed_in_a_directory_delivers_everything_and_leaves_nothing(
    make_run: MakeRun, games: lc0_data.Manifest, tmp_path: Path
) -> None:
    room = tmp_path / "segments"
    room.mkdir()
    run = make_run(extra=f'storage {{ directory: "{room}" }}').start()
    assert_exact(run.trainer().result()["hashes"], games)
    assert run.wait() == 0, run.text()
    assert not list(room.iterdir())


def test_a_finite_run_without_a_single_batch_fails_with_what_was_counted(
    make_run: MakeRun, tmp_path: Path
) -> None:
    empty = tmp_path / "nothing"
    empty.mkdir()
    run = make_run(empty).start()
    wait_until(lambda: "the run ended without a single batch" in run.text(), "the failure")
    assert run.stop() == 1, "no trainer has to be waited for"
    assert f"provider: {empty}: 0 files" in run.text()

    useless = tmp_path / "useless"
    useless.mkdir()
    (useless / "notes.txt").write_text("not data")
    (useless / "zip.gz").write_bytes(b"PK\x03\x04 this is no gzip file at all")
    run = make_run(useless).start()
    trainer = run.trainer()
    assert run.wait() == 1
    reason = next(line for line in run.text().splitlines() if "feed_failed" in line)
    for count in ("files_found=2", "skipped_extension=1", "skipped_record="):
        assert count in reason
    assert f"path={useless}/zip.gz" in run.text()
    assert "not a gzip file (starts with 50 4b 03 04)" in run.text()
    assert trainer.process.wait(WAIT_S) == 1
    assert "FeedFailed" in trainer.log.read_text()


def test_check_warns_of_data_that_is_not_there_and_of_restarts(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "later", epochs=0, extra="restart { max_restarts: 2 }")
    done = run.command("check", str(run.config))
    assert done.returncode == 0, "warnings are no mistakes"
    assert f"warning: {run.config}:" in done.stderr
    assert f"directory {tmp_path}/later does not exist: the feed will wait for it" in done.stderr
    assert "restart.max_attempts (3) is above restart.max_restarts (2)" in done.stderr


def test_an_empty_directory_is_waited_on_in_an_endless_run(
    make_run: MakeRun, tmp_path: Path
) -> None:
    empty = tmp_path / "later"
    empty.mkdir()
    run = make_run(empty, epochs=0, batch=64).start()
    wait_until(lambda: "waiting for" in str(run.status()), "status to say what is missing")
    trainer = run.trainer(positions=0, batches=3)
    source = lc0_data.make_dataset(tmp_path / "source", games=40, tars=1, seed=9)
    os.rename(source.paths[0], empty / "late.tar")
    trainer.result()
    assert run.stop() == 0, run.text()


def test_an_unknown_feed_is_an_exception_with_a_sentence(tmp_path: Path) -> None:
    code = "import ringfeed; ringfeed.attach('nosuch', attach_timeout_s=0.2)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "RINGFEED_SOCKET_DIR": str(tmp_path), "PYTHONPATH": f"{ROOT}/pyclient"},
        timeout=60,
    )
    assert done.returncode != 0 and "NoSuchFeed" in done.stderr and "nosuch" in done.stderr
    status = subprocess.run(
        [str(BIN / "ringfeed"), "status", "nosuch"],
        capture_output=True,
        text=True,
        env={**os.environ, "RINGFEED_SOCKET_DIR": str(tmp_path)},
        timeout=60,
    )
    assert status.returncode == 4


def test_a_clean_stop_leaves_nothing_behind(make_run: MakeRun) -> None:
    run = make_run(epochs=0).start()
    trainer = run.trainer(positions=0)
    wait_until(lambda: trainer.batches() > 2, "batches")
    workers = list(run.workers().values())
    assert run.stop() == 0, run.text()
    trainer.result()  # the trainer saw the end
    assert not list(run.sockets.glob("*.sock"))
    for pid in workers:
        assert not Path(f"/proc/{pid}").exists()
    assert run.command("clean").returncode == 0


def test_a_second_signal_stops_at_once(make_run: MakeRun) -> None:
    run = make_run(epochs=0).start()
    wait_until(run.status, "the feed to serve")
    assert run.process is not None
    run.process.send_signal(signal.SIGTERM)
    run.process.send_signal(signal.SIGINT)
    run.wait(20)


def test_a_failed_feed_tells_its_trainers(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(
        epochs=0, extra="restart { max_restarts: 2 within_s: 600 backoff_ms_min: 1 }"
    ).start()
    trainer = run.trainer(positions=0, pause_ms=5)
    wait_until(lambda: trainer.batches() > 2, "batches")
    group = sorted(run.workers())[0]
    for _ in range(3):
        pid = wait_until(lambda: run.workers().get(group), f"{group} to be there")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: run.workers().get(group) != pid, f"{group} to be gone")
    assert run.wait() == 1
    assert trainer.process.wait(WAIT_S) != 0
    assert "FeedFailed" in trainer.log.read_text()
    assert group in trainer.log.read_text(), "the reason names the group"


def failed_before_anybody_came(make_run: MakeRun, groups: str = "") -> FeedRun:
    run = make_run(epochs=0, extra="restart { max_restarts: 0 }", groups=groups).start()
    group = sorted(wait_until(run.workers, "workers"))[0]
    os.kill(run.workers()[group], signal.SIGKILL)
    wait_until(lambda: "feed_failed" in run.text() or "has failed" in run.text(), "the failure")
    return run


@pytest.mark.parametrize("groups", ["", 'groups { name: "default" }'])
def test_a_feed_that_fails_before_its_first_trainer_tells_it_why(
    make_run: MakeRun, groups: str
) -> None:
    run = failed_before_anybody_came(make_run, groups)
    wait_until(lambda: not run.workers(), "all workers to be gone")
    assert (run.status() or {}).get("state") == "FAILED"
    trainers = [run.trainer(positions=0), run.trainer(positions=0, group="late")]
    for trainer in trainers:
        assert trainer.process.wait(WAIT_S) != 0
        assert "FeedFailed" in trainer.log.read_text(), trainer.log.read_text()
        assert "has failed: stage group" in trainer.log.read_text()
    assert run.wait() == 1, "it does not wait for ever"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_failed_feed_that_is_told_to_end_waits_for_nobody(
    make_run: MakeRun, end: signal.Signals
) -> None:
    run = failed_before_anybody_came(make_run)
    assert run.process is not None and run.process.poll() is None
    assert run.stop(end) == 1
    assert not list(run.sockets.glob("*.sock"))


@pytest.mark.parametrize("ending", ["lock", "state"])
@pytest.mark.parametrize("what", ["fifo", "directory", "link", "another user's"])
def test_what_somebody_has_put_in_the_place_of_lock_or_record_is_refused(
    make_run: MakeRun, tmp_path: Path, ending: str, what: str
) -> None:
    run = make_run()
    run.sockets.mkdir(exist_ok=True)
    place = run.sockets / f"{run.feed}.{ending}"
    if what == "fifo":
        os.mkfifo(place)
    elif what == "directory":
        place.mkdir()
    elif what == "link":
        (tmp_path / "target").write_text("kept")
        place.symlink_to(tmp_path / "target")
    else:
        if os.geteuid() != 0:
            pytest.fail("this test gives a file away: run it as root")
        place.write_text("record 2\nend\n")
        os.chown(place, 65534, 65534)
    before = place.lstat()
    for words in ([], ["--fresh"]):
        done = run.command("run", str(run.config), *words)
        assert done.returncode == 1
        assert str(place) in done.stderr and (
            "regular file" in done.stderr or "belongs to user 65534" in done.stderr
        )
    assert "cleaned" not in run.command("clean", "--force").stdout
    assert run.command("status").returncode == 4
    after = place.lstat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)


@pytest.mark.parametrize("what", ["fifo", "link"])
def test_the_name_of_a_half_written_record_holds_up_nobody(
    make_run: MakeRun, tmp_path: Path, what: str
) -> None:
    run = make_run()
    run.sockets.mkdir(exist_ok=True)
    partial = run.sockets / f"{run.feed}.state.partial"
    if what == "fifo":
        os.mkfifo(partial)
    else:
        (tmp_path / "target").write_text("kept")
        partial.symlink_to(tmp_path / "target")
    run.start()
    run.trainer().result()
    assert run.wait() == 0, run.text()
    if what == "link":
        assert (tmp_path / "target").read_text() == "kept"


def test_a_directory_in_the_way_of_the_record_is_a_problem_and_no_end(make_run: MakeRun) -> None:
    run = make_run(epochs=0)
    run.sockets.mkdir(exist_ok=True)
    partial = run.sockets / f"{run.feed}.state.partial"
    partial.mkdir()
    run.start()
    wait_until(lambda: "first_batch" in run.text(), "the first batch")
    assert "a directory is in the way" in run.text()
    partial.rmdir()
    wait_until(lambda: "problem_over feed=lc0 of=record" in run.text(), "the record")
    assert run.stop() == 0


def test_a_log_that_is_a_fifo_without_a_reader_is_refused_at_once(
    make_run: MakeRun, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)
    run = make_run(extra=f'log {{ file: "{log}" }}')
    done = run.command("run", str(run.config))
    assert done.returncode == 1
    assert "a FIFO that nobody reads" in done.stderr and "log.file" in done.stderr
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    run.start()
    run.trainer().result()
    assert run.wait() == 0
    assert b"feed_started" in os.read(reader, 1 << 16)
    os.close(reader)


def test_what_is_no_regular_file_is_inspected_by_nobody(make_run: MakeRun, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    done = make_run().command("inspect", str(tmp_path / "fifo"))
    assert done.returncode == 1 and done.stderr


def test_empty_and_foreign_words_of_commands(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(epochs=0).start()
    wait_until(lambda: "first_batch" in run.text(), "the first batch")
    for words in (["snapshot", "lc0", ""], ["run", str(run.config), "--resume", ""]):
        done = run.command(*words)
        assert done.returncode == 2 and "DIR is empty" in done.stderr
    strange = tmp_path / "two\nlines\x1b[31m"
    saved = run.command("snapshot", "lc0", str(strange))
    assert (
        saved.returncode == 0
        and "two\\nlines\\x1b[31m: " in saved.stdout
        and saved.stdout.count("\n") == 1
    )
    assert (strange / "manifest.textproto").exists()
    for words in (
        ["snapshot", "lc0", str(strange / "no" / "place")],
        ["snapshot", "lc0", str(strange / "manifest.textproto")],
        ["scale", "lc0", "a\nb\x1b[31m", "2"],
        ["restart", "lc0", "a\x1b[31m"],
        ["stop", "a\nb\x1b[31m"],
        ["--socket-dir", "a\x1b[31m"],
        ["a\nb\x1b[31m"],
    ):
        done = run.command(*words)
        assert done.returncode != 0 and "\x1b" not in done.stderr + done.stdout
        if "\n" in words[-1] + words[min(2, len(words) - 1)] and len(words) > 1:
            assert done.stderr.count("\n") == 1, done.stderr
    assert run.stop() == 0
