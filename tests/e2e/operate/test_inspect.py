"""`ringfeed inspect` on real files: boards against a second opinion, and how the command ends."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.feeds.feed_run import BIN, ROOT, FeedRun, wait_until
from tests.support.makers import chess_data, lc0_data
from tests.support.makers.lc0_versions import as_version
from tests.support.oracles import lc0_reference

SAMPLE = ROOT / "tests" / "data" / "lc0" / "lc0-data-sample.tar"


def inspect(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "ringfeed"), "inspect", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def as_json(*words: str | Path, status: int = 0) -> dict[str, Any]:
    done = inspect(*words, "--json")
    assert done.returncode == status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_boards_are_those_that_the_moves_lead_to() -> None:
    positions = castlings = captures = 0
    for game in range(4):
        board = chess.Board()
        for record in as_json(SAMPLE, "--chunk", str(game), "--all", "--top", "500")["records"]:
            positions += 1
            assert record["fen"] == board.fen(en_passant="fen")
            assert record["side_to_move"] == ("white" if board.turn else "black")
            top = record["policy"]["top"]
            legal = {board.uci(move, chess960=True) for move in board.legal_moves}
            # The policy has knights' promotions without a letter.
            assert {move["move"] for move in top} == {move.removesuffix("n") for move in legal}
            assert record["policy"]["legal"] == len(legal)
            assert sum(move["probability"] for move in top) == pytest.approx(1, abs=1e-6)
            (best,) = [move for move in top if move["index"] == record["best"]["index"]]
            assert best["probability"] == top[0]["probability"]
            for move in top:
                if move["castling"]:
                    assert board.is_castling(chess.Move.from_uci(move["castling"]))
            played = record["played"]
            castlings += played["castling"] is not None
            move = chess.Move.from_uci(played["castling"] or played["move"])
            captures += board.is_capture(move)
            board.push(move)
    assert positions == 324 and castlings >= 2 and captures > 50


@pytest.mark.parametrize("version", [3, 4, 5, 6, 7])
def test_records_of_every_version(version: int, games: lc0_data.Manifest, tmp_path: Path) -> None:
    (path,) = [file for file in lc0_reference.game_files(games.directory) if file.suffix == ".gz"][
        :1
    ]
    records = next(iter(lc0_reference.read_games(path))).records
    (tmp_path / "game").write_bytes(as_version(records, version))
    found = as_json(tmp_path / "game", "--all")
    assert found["kind"] == "raw_chunk" and found["chunk"]["version"] == version
    assert len(found["records"]) == len(records)
    board = chess.Board()
    for record, original in zip(found["records"], records):
        fields = record["fields"]
        assert record["version"] == version
        assert record["fen"].split()[0] == board.board_fen()
        assert ("best_q" in fields) == (version >= 4)
        if version >= 4:
            assert np.float32(fields["best_q"]) == original["best_q"]
        if version < 6:
            assert fields["result"] == np.sign(original["result_q"])
        move = record["policy"]["top"][0] if version < 6 else record["played"]
        if version < 6:
            break
        board.push(chess.Move.from_uci(move["castling"] or move["move"]))


def test_the_text_explains_itself() -> None:
    done = inspect(SAMPLE, "--chunk", "training.1387366601.gz", "--record", "1", "--top", "3")
    assert done.returncode == 0 and done.stderr == ""
    assert "game 0 (lc0-data-sample/training.1387366601.gz): 26 records of version 6" in done.stdout
    assert "black to move; the board as the side to move sees it" in done.stdout
    assert "    1  R N B K Q B N R" not in done.stdout  # files are not mirrored
    assert "    8  R N B Q K B N R" in done.stdout
    assert done.stdout.count("index ") == 3


def test_damage_is_said_on_standard_error(tmp_path: Path) -> None:
    with tarfile.open(SAMPLE) as tar:
        member = [m for m in tar.getmembers() if m.name.endswith("training.1387366601.gz")][-1]
        packed = tar.extractfile(member).read()  # type: ignore[union-attr]
    (tmp_path / "cut.gz").write_bytes(packed[:3000])
    done = inspect(tmp_path / "cut.gz")
    assert done.returncode == 1
    assert "cut.gz: a gzip file that cannot be inflated" in done.stdout
    assert str(tmp_path / "cut.gz") in done.stderr and "is truncated" in done.stderr
    (tmp_path / "word").write_text("hello")
    assert inspect(tmp_path / "word").returncode == 1
    assert inspect(tmp_path / "nothing").returncode == 1
    assert inspect().returncode == 2
    assert inspect(SAMPLE, "--record", "-1").returncode == 2
    assert inspect(SAMPLE, "--record", "1", "--all").returncode == 2


def test_what_a_feed_leaves(make_run: Callable[..., FeedRun], tmp_path: Path) -> None:
    run = make_run(epochs=0, reservoir=200, batch=64).start()
    wait_until(lambda: "first_batch" in run.text(), "the first batch")
    saved = tmp_path / "saved"
    assert run.command("snapshot", "lc0", str(saved)).returncode == 0
    found = as_json(saved)
    assert found["kind"] == "snapshot" and found["manifest"]["feed"] == "lc0"
    assert [stage["name"] for stage in found["manifest"]["stages"]][0] == "provider"
    assert found["manifest"]["segments"]
    assert run.stop() == 0
    part = saved / found["manifest"]["segments"][0]["file"]
    part.unlink()
    assert str(part) in as_json(saved, status=1)["problems"][0]
    found = as_json(run.config)
    assert found["kind"] == "ringfeed_configuration" and len(found["stages"]) == 6


def test_a_file_of_games_is_described(tmp_path: Path) -> None:
    rows = chess_data.random_games(40, 3, plies=20, missing=False)
    rows[7]["fen"] = "nonsense"
    rows[9]["best_move"] = None
    rows[11]["game_id"] = None
    path = chess_data.write_parquet(rows, tmp_path / "games.parquet", row_group_size=100)
    found = as_json(path)
    assert found["kind"] == "parquet"
    assert found["rows"]["rows"] == len(rows)
    assert found["rows"]["row_groups"] == -(-len(rows) // 100)
    assert {column["name"] for column in found["rows"]["columns"]} == set(rows[0])
    games = found["rows"]["games"]
    assert games["games"] == 40
    assert games["rows_without_game"] == 1
    assert games["skipped"]["fen"]["row"] == 7
    assert games["skipped"]["best_move"]["row"] == 9
    first = [row for row in rows if row["game_id"] == rows[0]["game_id"]]
    assert games["first"]["plies"] == len(first)
    assert games["first"]["fen"] == rows[0]["fen"]
    board = chess.Board(rows[0]["fen"])
    assert "\n".join(" ".join(line) for line in games["first"]["board"]) == str(board)
    assert found["rows"]["missing"] == {"chess_variations": ["variations", "mcts_action"]}
    text = inspect(path).stdout
    assert (
        "for chess_games: 40 games" in text and "may be skipped for fen: 1, first at row 7" in text
    )


def test_a_file_of_searched_positions_is_described(tmp_path: Path) -> None:
    rows = chess_data.random_variation_rows(200, 3, faults=True)
    path = chess_data.write_parquet(
        rows, tmp_path / "searched.parquet", columns=list(chess_data.COLUMN_TYPES)
    )
    variations = as_json(path)["rows"]["variations"]
    skipped = sum(entry["count"] for entry in variations["skipped"].values())
    assert variations["samples"] > 10 and skipped > 5
    assert variations["samples"] + variations["rows_without_variations"] + skipped == 200


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    rows = chess_data.random_games(5, 3)
    path = chess_data.write_parquet(rows, tmp_path / "games.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    done = inspect(path)
    assert done.returncode == 1
    assert str(path) in done.stderr


def test_a_token_file_is_shown_with_its_words() -> None:
    shard = ROOT / "tests" / "data" / "fairseq" / "inputs" / "data_bin" / "shard000"
    prefix = shard / "train.eng_Latn-tur_Latn.tur_Latn"
    ids = np.fromfile(f"{prefix}.bin", dtype="<u2")
    ends = np.flatnonzero(ids == 2) + 1
    for name in (prefix, f"{prefix}.idx", f"{prefix}.bin"):
        found = as_json(name)
        assert found["kind"] == "token_file"
        tokens = found["tokens"]
        assert (tokens["code"], tokens["type"]) == (8, "uint16")
        assert tokens["sentences"] == len(ends) and tokens["tokens"] == len(ids)
        assert tokens["out_of_bounds"] == 0
        assert sum(bar["sentences"] for bar in tokens["lengths"]) == len(ends)
        assert tokens["first"][0]["ids"] == ids[: ends[0]].tolist()
        assert tokens["first"][0]["text"].endswith(" </s>")
        assert tokens["dictionary"]["path"] == str(shard / "dict.tur_Latn.txt")
    (last,) = as_json(prefix, "--record", str(len(ends) - 1))["tokens"]["first"]
    assert last["ids"] == ids[ends[-2] :].tolist()


def test_a_damaged_token_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cut.idx").write_bytes(b"MMIDIDX\0\0" + bytes(9))
    done = inspect(tmp_path / "cut")
    assert done.returncode == 1
    assert f"{tmp_path}/cut.idx: offset" in done.stderr


def test_samples_beside_what_python_reads(tmp_path: Path) -> None:
    """Drawn files of each format, packed or not: as many samples, and of these fields."""
    rng = random.Random(7)
    rows = [{"id": i, "v": [i, i + 1], "t": "é" * rng.randrange(50)} for i in range(500)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    arrays = {"a": np.zeros((40, 2, 3), np.float32), "b": np.arange(40)}
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for key in range(30):
            for ending, content in (("cls", b"1"), ("jpg", b"\xff\xd8" + bytes(key))):
                member = tarfile.TarInfo(f"{key:04}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    plain = {
        "rows.jsonl": (text, 500, {"id": "int64", "v": "int64[2]", "t": "text"}),
        "rows.json": (json.dumps(rows).encode(), 500, {"id": "int64", "v": "int64[2]"}),
        "lines.txt": (b"one\ntwo\n\nthree", 3, {"text": "text"}),
        "a.tar": ((tmp_path / "a.tar").read_bytes(), 30, {"cls": "bytes", "jpg": "bytes"}),
    }
    for name, (content, count, types) in plain.items():
        for ending, pack in (("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)):
            path = tmp_path / (name + ending)
            path.write_bytes(pack(content))
            found = as_json(path)
            assert found["kind"] == "samples" and found["problems"] == [], found
            data = found["data"]
            assert (data["samples"], data["left_out"], data["whole"]) == (count, 0, True)
            assert data["packed"] == bool(ending) and len(data["first"]) == 3
            seen = {field["name"]: field["types"][0]["type"] for field in data["fields"]}
            assert seen.items() >= types.items()
    np.save(tmp_path / "a.npy", arrays["a"])
    np.savez_compressed(tmp_path / "ab.npz", **arrays)
    data = as_json(tmp_path / "a.npy")["data"]
    assert data["samples"] == 40 and data["fields"][0]["types"][0]["type"] == "float32[2,3]"
    data = as_json(tmp_path / "ab.npz")["data"]
    assert data["samples"] == 40 and {field["name"] for field in data["fields"]} == {"a", "b"}


def test_samples_that_would_be_left_out_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    rows = ['{"id": 1}', "[1]", '{"id": ', '{"id": 2.5, "more": null}', "[2]"]
    path.write_bytes(gzip.compress("\n".join(rows).encode()) + b"rubbish")
    done = inspect(path)
    assert done.returncode == 1
    assert "7 bytes behind what it holds are nothing that can be read" in done.stderr
    assert "lines of JSON, packed: 2 samples of 1 field\n" in done.stdout
    assert "  id  int64 in 1, float64 in 1\n" in done.stdout
    assert "  2 left out: it is an array, not an object (first at byte 10)\n" in done.stdout
    path.write_bytes(gzip.compress(b'{"id": 1}\n' * 100_000)[:-200])
    found = as_json(path, status=1)
    assert found["data"]["damaged"] and 0 < found["data"]["samples"] < 100_000
    assert "truncated" in found["problems"][0]
    assert "what follows cannot be read" in inspect(path).stdout
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert (
        "pickled objects are not read" in as_json(tmp_path / "object.npy", status=1)["problems"][0]
    )


def test_a_look_at_samples_is_bounded(tmp_path: Path) -> None:
    """256 MiB of what is in the file, and it says so."""
    with gzip.open(tmp_path / "zeros.txt.gz", "wb", compresslevel=1) as file:
        for _ in range(300):
            file.write((b"x" * 1023 + b"\n") * 1024)
    found = as_json(tmp_path / "zeros.txt.gz")
    assert not found["data"]["whole"] and found["data"]["samples"] == 256 * 1024
    assert found["text"] == "lines of text, packed: at least 262144 samples of 1 field"
    shown = inspect(tmp_path / "zeros.txt.gz", "--record", "1000").stdout
    assert "only its first 268435456 bytes were read" in shown and "sample 1000, byte" in shown


def test_tables_show_their_samples(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3, 4], "name": ["a", None, "c", "d"], "v": [[1.5]] * 4})
    pq.write_table(table, tmp_path / "own.parquet")
    found = as_json(tmp_path / "own.parquet")
    assert found["kind"] == "parquet" and found["rows"]["rows"] == 4
    assert found["data"]["samples"] == 4 and found["data"]["fields"][1]["samples"] == 3
