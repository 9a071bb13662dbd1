"""`ringfeed init`: data of every kind becomes a configuration that runs; what cannot become one is said."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ringfeed
import ringfeed.pipeline as rp

from tests.support.feeds.feed_run import BIN, ROOT
from tests.support.makers import chess_data, fairseq_data, lc0_data

SAMPLE = ROOT / "tests" / "data" / "lc0" / "lc0-data-sample.tar"
EMPTY = "there are no files here"


def init(*words: str | Path, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(options.pop("program", BIN / "ringfeed")), "init", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        **options,
    )


def refusal(*words: str | Path, cwd: Path, **options: Any) -> str:
    """What is said, in one sentence, when nothing is written."""
    before = sorted(cwd.iterdir())
    done = init(*words, cwd=cwd, **options)
    assert done.returncode in (1, 2) and done.stdout == "", done
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("ringfeed: "), done.stderr
    assert sorted(cwd.iterdir()) == before
    return done.stderr


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Where configurations are written."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def lc0(tmp_path: Path) -> Path:
    (tmp_path / "lc0").mkdir()
    shutil.copy(SAMPLE, tmp_path / "lc0")
    return tmp_path / "lc0"


@pytest.fixture(scope="module")
def chess(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """games/ and variations/."""
    directory = tmp_path_factory.mktemp("chess")
    chess_data.main([str(directory), *"--games 40 --files 2 --variations 40 --seed 3".split()])
    return directory


@pytest.fixture(scope="module")
def fairseq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """shard9/ and shard10/."""
    directory = tmp_path_factory.mktemp("fairseq")
    for number, shard in enumerate(("shard9", "shard10")):
        (directory / shard).mkdir()
        for lang in ("deu_Latn", "eng_Latn", "fra_Latn"):
            fairseq_data.write_dictionary(directory / shard / f"dict.{lang}.txt", 100)
        for subset, pair in (
            ("train", "eng_Latn-deu_Latn"),
            ("train", "fra_Latn-eng_Latn"),
            ("train_mining", "eng_Latn-deu_Latn"),
            ("valid", "eng_Latn-deu_Latn"),
        ):
            for side in pair.split("-"):
                random = np.random.default_rng(number)
                lengths = random.integers(3, 20, size=50)
                sentences = [[*random.integers(4, 104, size=n).tolist(), 2] for n in lengths]
                fairseq_data.write_mapped(directory / shard / f"{subset}.{pair}.{side}", sentences)
    return directory


def first_batch(config: Path, said: str) -> Iterator[ringfeed.Batch]:
    """Runs the first of the commands that were said, and attaches as the second one does."""
    run = re.search(r"^  ringfeed (run .*)$", said, re.MULTILINE)
    attach = re.search(r'ringfeed\.attach\("(.*)"\)', said)
    assert run and attach and run[1] == f"run {config.name}"
    sockets = config.parent.parent / "s"  # a socket's path may have 107 bytes
    environment = {**os.environ, "RINGFEED_SOCKET_DIR": str(sockets)}
    running = subprocess.Popen(
        [BIN / "ringfeed", *run[1].split()], cwd=config.parent, env=environment
    )
    try:
        with ringfeed.attach(
            attach[1], socket_dir=str(sockets), attach_timeout_s=60, timeout_s=60
        ) as feed:
            yield next(iter(feed))
    finally:
        running.send_signal(signal.SIGQUIT)  # stops at once, and waits for no trainer
        running.wait(60)


def written(config: Path) -> str:
    text = config.read_text()
    checked = subprocess.run(
        [BIN / "ringfeed", "check", config], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0 and checked.stderr == "", checked.stderr
    # Everything that the pipeline says to set has been set.
    assert "Copy it" not in text and '"data/' not in text
    return text


def test_games_of_leela_chess_zero(lc0: Path, here: Path) -> None:
    done = init(lc0, cwd=here)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "lc0: 1 tar, about 320 positions\nWrote lc0.textproto.\n" in done.stdout
    text = written(here / "lc0.textproto")
    assert f'directory: "{lc0}"' in text and "reservoir_size_per_thread: 10000 " in text
    for batch in first_batch(here / "lc0.textproto", done.stdout):
        assert batch["planes"].shape == (1024, 112, 8, 8) and batch["values"].shape == (1024, 6, 3)


def test_programs_are_told_what_was_written(lc0: Path, here: Path) -> None:
    done = init(lc0, "--json", "-o", "mine.textproto", cwd=here)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        **{"kind": "lc0", "found": "1 tar, about 320 positions"},
        **{"feed": "lc0", "file": "mine.textproto"},
    }
    assert written(here / "mine.textproto")
    assert init(lc0, "--json", "-o", "-", cwd=here).returncode == 2


def test_positions_are_estimated(games: lc0_data.Manifest, here: Path) -> None:
    done = init("lc0", games.directory, cwd=here)
    found = re.match(
        r"lc0: 3 tars and 5 \.gz files of one game, about (\d+) positions\n", done.stdout
    )
    assert found and int(found[1]) == pytest.approx(11_000, rel=0.3)
    assert f"reservoir_size_per_thread: {found[1]} " in written(here / "lc0.textproto")


def test_chess_games(chess: Path, here: Path) -> None:
    done = init(chess / "games", "--feed", "mine", "--output", "my games.textproto", cwd=here)
    assert done.returncode == 0, done.stderr
    text = written(here / "my games.textproto")
    assert 'feed: "mine"' in text and 'attach("mine")' in text and "PLAYED_Q_D" not in text
    assert "ringfeed run 'my games.textproto'" in done.stdout
    config = (here / "my games.textproto").rename(here / "mine.textproto")
    said = done.stdout.replace("'my games.textproto'", config.name)
    for batch in first_batch(config, said):
        assert batch["input_ids"].shape == (64, 256) and int(batch["input_ids"].max()) < 1968


def test_chess_games_and_searched_positions(chess: Path, here: Path) -> None:
    done = init("chess", chess, cwd=here)
    assert done.returncode == 0, done.stderr
    text = written(here / "chess_finetune.textproto")
    assert f'directory: "{chess}/games"' in text and f'directory: "{chess}/variations"' in text
    for batch in first_batch(here / "chess_finetune.textproto", done.stdout):
        assert batch["input_ids"].shape == (16, 1024) and "thinking_move_mask" in batch


def test_games_with_the_values_of_the_played_move(tmp_path: Path, here: Path) -> None:
    rows = [
        {
            "game_id": "1",
            "ply": ply,
            "fen": fen,
            "played_move": move,
            "best_move": move,
            "played_q": 0.1,
            "played_d": 0.5,
        }
        for ply, (fen, move) in enumerate(
            [
                ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "e2e4"),
                ("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1", "e7e5"),
            ]
        )
    ]
    chess_data.write_parquet(rows, tmp_path / "a.parquet")
    done = init(tmp_path, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "value_columns: PLAYED_Q_D" in written(here / "chess_pretrain.textproto")
    for batch in first_batch(here / "chess_pretrain.textproto", done.stdout):
        assert np.isclose(batch["wl_targets"][batch["wl_positions"]], 0.1, atol=1e-6).all()


def test_parallel_text(fairseq: Path, here: Path) -> None:
    done = init(fairseq, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "fairseq: 2 pairs of languages in 2 shards, 300 sentences\n" in done.stdout
    text = written(here / "fairseq_nllb.textproto")
    # shard10 comes behind shard9; valid.* is not for training.
    assert re.findall(r'directory: "(.*)"', text) == [f"{fairseq}/shard9", f"{fairseq}/shard10"]
    assert re.findall(r'^ *lang_pairs: "(.*)"', text, re.MULTILINE) == [
        "eng_Latn-deu_Latn",
        "fra_Latn-eng_Latn",
    ]
    assert re.findall(r'# lang_pairs: "(.*)"', text) == ["deu_Latn-eng_Latn", "eng_Latn-fra_Latn"]
    assert re.findall(r'^ *langs: "(.*)"', text, re.MULTILINE) == [
        "deu_Latn",
        "eng_Latn",
        "fra_Latn",
    ]
    assert re.findall(r'subsets: "(.*)"', text) == ["train", "train_mining"]
    for batch in first_batch(here / "fairseq_nllb.textproto", done.stdout):
        assert batch.rows > 0 and "src_tokens" in batch and "target" in batch


def test_the_configuration_may_go_to_standard_output(lc0: Path, here: Path) -> None:
    done = init("lc0", lc0, "-o", "-", cwd=here)
    assert done.returncode == 0 and done.stdout.startswith("# proto-file:")
    assert "Next" in done.stderr and list(here.iterdir()) == []


def test_a_name_may_be_a_kind_or_a_directory(lc0: Path) -> None:
    above = lc0.parent
    assert init("lc0", "-o", "-", cwd=lc0).returncode == 0
    assert init("./lc0", "-o", "-", cwd=above).returncode == 0
    assert init("-o", "-", cwd=lc0).returncode == 0
    said = refusal("lc1", cwd=above)
    assert (
        "lc1: there is no such directory, nor a kind of data of this name (lc0, chess, "
        "fairseq, samples)" in said
    )
    said = refusal("go", lc0, cwd=above)
    assert "there is no kind of data 'go': there are lc0, chess, fairseq, samples" in said


def test_a_file_that_is_there_stays(lc0: Path, here: Path) -> None:
    (here / "lc0.textproto").write_text("mine")
    said = refusal(lc0, cwd=here)
    assert "lc0.textproto already exists" in said and "--force" in said
    assert (here / "lc0.textproto").read_text() == "mine"
    assert init(lc0, "--force", cwd=here).returncode == 0
    written(here / "lc0.textproto")
    assert [path.name for path in here.iterdir()] == ["lc0.textproto"]
    assert "is a directory" in refusal(lc0, "-o", ".", cwd=here)
    assert "is not a valid feed name" in refusal(lc0, "--feed", "a b", cwd=here)


def test_directories_without_such_data(tmp_path: Path, here: Path, lc0: Path) -> None:
    assert EMPTY in refusal(cwd=here)
    assert "lc0-data-sample.tar: this is not a directory" in refusal(lc0 / SAMPLE.name, cwd=here)
    assert "there is no such directory\n" in refusal("lc0", tmp_path / "no", cwd=here)
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.md").write_text("a")
    said = refusal(other, cwd=here)
    assert "none of the files here (1) is such data" in said and ".parquet" in said
    (other / "notes.gz").write_text("a")
    assert "are not games of Leela Chess Zero" in refusal(other, cwd=here)
    (other / "a.parquet").write_text("PAR1 no more than that PAR1")
    said = refusal(other, cwd=here)
    assert "notes.gz" in said and "a.parquet" in said
    assert "notes.gz" not in refusal("chess", other, cwd=here)


def test_two_kinds_of_data(chess: Path, here: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(chess / "games", mixed)
    shutil.copy(SAMPLE, mixed)
    said = refusal(mixed, cwd=here)
    assert (
        "games of Leela Chess Zero" in said
        and "Parquet" in said
        and f"ringfeed init lc0 {mixed}" in said
    )
    assert init("lc0", mixed, cwd=here).returncode == 0
    assert init("chess", mixed, cwd=here).returncode == 0


def test_parquet_files_of_something_else(chess: Path, here: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    chess_data.write_parquet([{"fen": "x", "text": "y"}], other / "a.parquet")
    assert "has neither the columns of games" in refusal("chess", other, cwd=here)
    done = init(other, cwd=here)
    assert done.stdout.startswith("samples: 1 file of samples with fen (text), text (text)\n")
    (here / "samples.textproto").unlink()
    twice = tmp_path / "twice"
    for name in ("a", "b"):
        shutil.copytree(chess / "games", twice / name)
    assert "there are games in several directories" in refusal(twice, cwd=here)
    # Searched positions of games are games, with more columns than are read.
    assert init(chess / "variations", cwd=here).returncode == 0
    row = {"fen": "x", "variations": "[]", "win": 1.0, "draw": 0.0, "loss": 0.0}
    chess_data.write_parquet([row], other / "a.parquet")
    assert "has searched positions but no games" in refusal("chess", other, cwd=here)


def jsonl(directory: Path) -> int:
    for part in range(2):
        rows = [
            {"id": i, "text": f"row {i}", "score": i / 2 if i % 2 else i // 2, "vec": [1.0, 2, 3]}
            | {"tags": ["a"] * (i % 3)}
            | ({"now_and_then": 1} if i % 5 else {})
            for i in range(100)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / f"{part}.jsonl").write_text(text)
    (directory / "README.md").write_text("about")
    (directory / "infos.json").write_text('{"id": 1}')
    return 200


def web_dataset(directory: Path) -> int:
    for shard in range(2):
        with tarfile.open(directory / f"train-{shard:03}.tar", "w") as tar:
            for key in range(20):
                for ending, data in (("jpg", bytes(60_000)), ("cls", b"%d\n" % (key % 3))):
                    info = tarfile.TarInfo(f"{shard}{key:03}.{ending}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return 40


def zips_of_arrays(directory: Path) -> int:
    x = np.zeros((40, 3, 2), np.float32)
    np.savez_compressed(directory / "a.npz", x=x, y=np.arange(40))
    return 40


def texts(directory: Path) -> int:
    (directory / "A.TXT").write_text("one\ntwo\n" * 50)
    return 100


def comma_separated(directory: Path) -> int:
    rows = "".join(f'{i},{i / 4},"text, {i}"\n' for i in range(70))
    (directory / "a.csv").write_text("id,score,text\n" + rows)
    (directory / "b.csv.gz").write_bytes(gzip.compress(b"id,score,text\n1,2,x\n"))
    return 71


def many_columns(directory: Path) -> int:
    """More texts than a batch has, and more arrays."""
    names = [f"t{i}" for i in range(12)] + [f"x{i}" for i in range(300)]
    row = ",".join(["some text"] * 12 + ["0.5"] * 300) + "\n"
    (directory / "a.csv").write_text(",".join(names) + "\n" + 9 * row)
    return 9


def wide_rows(directory: Path) -> int:
    np.save(directory / "a.npy", np.zeros((40, 8, 8, 3)))
    return 40


def tables(directory: Path) -> int:
    table = pa.table({"id": list(range(30)), "vec": [[0.5, 1.0]] * 30, "text": ["x"] * 30})
    pq.write_table(table, directory / "a.parquet")
    return 30


def arrow_streams(directory: Path) -> int:
    table = pa.table({"id": list(range(30)), "text": ["x"] * 30})
    with pa.OSFile(str(directory / "a.arrow"), "wb") as file:
        with pa.ipc.new_stream(file, table.schema) as sink:
            sink.write_table(table, max_chunksize=7)
    return 30


def pictures(directory: Path) -> int:
    for folder in ("cat", "dog"):
        (directory / folder).mkdir()
        for number in range(20):
            (directory / folder / f"{number}.JPG").write_bytes(b"\xff\xd8" + bytes(number))
    (directory / "labels.csv").write_text("name,label\n0.JPG,1\n")
    return 40


@pytest.mark.parametrize(
    "make",
    [
        *(jsonl, web_dataset, zips_of_arrays, texts, comma_separated, tables, arrow_streams),
        *(many_columns, wide_rows, pictures),
    ],
)
def test_data_of_ones_own_becomes_a_feed_that_runs(
    tmp_path: Path, here: Path, make: Callable[[Path], int]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = make(data)
    done = init(data, cwd=here)
    assert done.returncode == 0, done.stderr
    text = written(here / "samples.textproto")
    if make is jsonl:
        assert 'left out: "tags": its shape' in text
        assert 'left out: "now_and_then": 80 of 100 samples have it' in text
    if make is many_columns:
        assert 'left out: "t8": a batch has at most 8 fields of text' in text
        assert 'left out: "x48": a batch has at most 64 arrays' in text
    (here / "once.textproto").write_text("epochs: 1\n" + text)
    folders: list[str] = []
    with rp.load(here / "once.textproto").start(wait_s=60) as loader:
        got = 0
        for batch in loader:
            got += batch.rows
            if make is pictures:
                folders += batch.strings("folder")
    assert got == rows
    assert make is not pictures or sorted(folders) == 20 * ["cat"] + 20 * ["dog"]


def test_token_files_that_lack_something(fairseq: Path, here: Path, tmp_path: Path) -> None:
    shard = tmp_path / "shard"
    shutil.copytree(fairseq / "shard9", shard)
    (shard / "dict.fra_Latn.txt").unlink()
    said = refusal(shard, cwd=here)
    assert "the dictionary" in said and "dict.fra_Latn.txt is missing" in said
    (shard / "dict.eng_Latn.txt").rename(shard / "dict.txt")
    assert init(shard, cwd=here).returncode == 0
    assert f'dictionary: "{shard}/dict.txt"' in written(here / "fairseq_nllb.textproto")
    for path in shard.glob("train*.deu_Latn.bin"):
        path.unlink()
    for path in shard.glob("train*fra_Latn.*"):
        path.unlink()
    shutil.rmtree(here)
    here.mkdir()
    assert "training needs files whose names begin with train" in refusal(shard, cwd=here)


def test_a_directory_of_very_many_files(tmp_path: Path, here: Path) -> None:
    many = tmp_path / "many"
    many.mkdir()
    made = lc0_data.make_dataset(tmp_path / "made", games=0, tars=0, seed=1, loose=1)
    (first,) = Path(made.directory).rglob("*.gz")
    shutil.copy(first, many / "0.gz")
    for number in range(1, 25_000):
        os.link(many / "0.gz", many / f"{number}.gz")
    done = init(many, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "lc0: at least 20000 .gz files" in done.stdout
    assert "reservoir_size_per_thread: 1000000\n" in (here / "lc0.textproto").read_text()


def test_odd_names_of_directories(here: Path, tmp_path: Path) -> None:
    odd = tmp_path / 'a "b"\\ \n\x1b ü'
    odd.mkdir()
    shutil.copy(SAMPLE, odd)
    done = init(odd, "-o", "it's.textproto", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "ringfeed run 'it'\\''s.textproto'" in done.stdout
    written(here / "it's.textproto")
    (here / "it's.textproto").rename(here / "lc0.textproto")
    for batch in first_batch(here / "lc0.textproto", init(odd, "-o", "-", cwd=here).stderr):
        assert batch.rows == 1024


def test_a_full_disk_leaves_nothing(lc0: Path, here: Path) -> None:
    # A limit of the process, in place of a disk: the signal for it is ignored.
    said = refusal(
        lc0,
        cwd=here,
        restore_signals=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert "lc0.textproto cannot be written: File too large" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes somebody else")
def test_without_permission() -> None:
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}
    # Where others may look, as they may not where pytest keeps its directories.
    with tempfile.TemporaryDirectory() as above:
        lc0, here = Path(above) / "lc0", Path(above) / "here"
        for place in (Path(above), lc0, here):
            place.mkdir(exist_ok=True)
            place.chmod(0o755)
        shutil.copy(SAMPLE, lc0)
        try:
            subprocess.run(
                [BIN / "ringfeed", "version"],
                check=True,
                stdout=subprocess.DEVNULL,
                cwd=here,
                **nobody,
            )
        except (PermissionError, subprocess.CalledProcessError):
            pytest.skip("others cannot run the program here")
        assert "lc0.textproto cannot be written: Permission denied" in refusal(
            lc0, cwd=here, **nobody
        )
        lc0.chmod(0o700)
        assert "cannot be read: Permission denied" in refusal(lc0, cwd=here, **nobody)
