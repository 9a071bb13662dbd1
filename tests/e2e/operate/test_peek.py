"""`ringfeed peek`: what it shows is what trainers get, and they get all of it."""

from __future__ import annotations

import json
import signal
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringfeed

from tests.support.feeds import chess_feeds
from tests.support.feeds.fairseq_feeds import members
from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.makers import chess_data
from tests.support.makers.fairseq_examples import example

MakeRun = Callable[..., FeedRun]

SAMPLES = """
feed: "{feed}"
epochs: {epochs}
stages {{ name: "files" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{ input: "files"
  fields {{ name: "id" }}
  fields {{ name: "text" }}
  fields {{ name: "left_image" dtype: "uint8" }}
  fields {{ name: "mask" dtype: "uint8" }}
  fields {{ name: "score" dtype: "float32" }} }} }}
stages {{ name: "batches" sample_batcher {{ input: "lines" batch_size: {batch}
  fields {{ name: "id" dtype: "int64" }}
  fields {{ name: "text" dtype: "text" }}
  fields {{ name: "left_image" dtype: "uint8" shape: [4, 6, 3] }}
  fields {{ name: "mask" dtype: "uint8" shape: [4, 6] }}
  fields {{ name: "score" dtype: "float32" }} }} }}
feed_output {{ alias: "train" slots: 4 {groups} }}
{extra}
"""


def published(run: FeedRun, batches: int = 1) -> FeedRun:
    def there() -> bool:
        status = run.status() or {}
        return any(int(o.get("batches_published", 0)) >= batches for o in status.get("outputs", []))

    wait_until(there, "batches")
    return run


def peek(run: FeedRun, *words: str) -> dict[str, Any]:
    done = run.command("peek", run.feed, "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_summarised(said: dict[str, Any], array: np.ndarray) -> None:
    """What NumPy says of the array."""
    assert said["dtype"] == array.dtype.name and said["shape"] == list(array.shape)
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    assert said["items"] == array.size
    assert said["zeros"] == int((finite == 0).sum())
    assert said["nan"] == int(np.isnan(numbers).sum())
    assert said["inf"] == int(np.isinf(numbers).sum())
    if finite.size:
        for name, value in (("min", finite.min()), ("max", finite.max()), ("mean", finite.mean())):
            assert said[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
        assert said["std"] == pytest.approx(finite.std(), rel=1e-6, abs=1e-12)


def board_of(planes: np.ndarray) -> list[str]:
    """Rank 8 first, the mover's pieces in upper case."""
    board = np.full((8, 8), ".")
    for piece, letter in enumerate("PNBRQKpnbrqk"):
        board[planes[piece] != 0] = letter
    return [f"{rank + 1} " + " ".join(board[rank]) for rank in reversed(range(8))]


def test_positions_as_boards(make_run: MakeRun, tmp_path: Path) -> None:
    """The saved arrays are the trainer's batch; numbers and boards are those of the arrays."""
    run = published(make_run(epochs=1, slots=6).start(), 6)
    seen = peek(run, "--rows", "3", "--save", str(tmp_path / "seen"))
    assert (seen["batch"], seen["problems"]) == (6, [])
    saved = Path(seen["saved"][0]).parent
    assert saved.name == "lc0-000000006"
    arrays = {name: np.load(saved / f"{name}.npy") for name in ("planes", "policy", "values")}
    with ringfeed.attach("lc0", socket_dir=run.sockets, timeout_s=60) as feed:
        numbers = []
        for batch in feed:
            numbers.append(batch.seq)
            if batch.seq == 6:
                for name, array in arrays.items():
                    np.testing.assert_array_equal(array, batch[name])
    assert numbers == list(range(1, len(numbers) + 1)), "nobody has taken one from the trainer"
    for said in seen["arrays"]:
        assert_summarised(said, arrays[said["name"]])
    for row, shown in enumerate(seen["shown"]):
        lines = shown["text"].splitlines()
        assert lines[:8] == board_of(arrays["planes"][row]), shown["text"]
        result = next(line for line in lines if line.startswith("result"))
        assert float(result.split()[2]) == pytest.approx(arrays["values"][row, 0, 0], abs=1e-3)
    assert json.loads((saved / "batch.json").read_text())["batch"] == 6


@pytest.mark.parametrize("planes", ["PLANES_UINT8", "PLANES_FLOAT16", "PLANES_BITS"])
def test_boards_of_other_types(make_run: MakeRun, tmp_path: Path, planes: str) -> None:
    """The same boards, however planes are stored."""
    shown = []
    for kind in ("PLANES_FLOAT32", planes):
        run = published(make_run(epochs=1, tensors=f"planes: {kind}").start(), 6)
        seen = peek(run, "--rows", "4")
        shown.append([row["text"].splitlines()[:8] for row in seen["shown"]])
        assert seen["problems"] == []
        run.stop(signal.SIGQUIT)
    assert shown[0] == shown[1] and any("K" in line for line in shown[0][0])


def test_sentences_as_text(make_bitext: Callable[..., FeedRun]) -> None:
    """By the dictionary that the configuration names."""
    config = example("a_concat")
    run = published(make_bitext(config, epochs=1).start())
    seen = peek(run, "--rows", "2")
    batch = seen["batch"]
    dictionary = ["<s>", "<pad>", "</s>", "<unk>"]
    path = next(Path(config.directory[0]).glob("dict.*.txt"))
    dictionary += [line.rsplit(" ", 1)[0] for line in path.read_text().splitlines()]
    dictionary += [f"__{language}__" for language in config.langs]
    with members(run, config.world_size) as feeds:
        while True:
            got = feeds[0].next()
            if got.seq + config.world_size > batch:
                break
            got.release()
            feeds[1].next().release()
        wanted = got if got.seq == batch else feeds[1].next()
        while wanted.seq < batch:
            wanted = feeds[1].next()
        assert wanted.seq == batch
        for row, shown in enumerate(seen["shown"]):
            ids = [i for i in wanted["src_tokens"][row].tolist() if i != 1]
            words = [dictionary[i] for i in ids if i < len(dictionary)]
            assert f'source  "{" ".join(words)[:40]}' in shown["text"], shown["text"]
        del got, wanted
        run.command("stop", run.feed, "--now")


def test_chess_tokens(tmp_path: Path) -> None:
    """Tokens by their names, boards drawn."""
    data = tmp_path / "games"
    data.mkdir()
    chess_data.write_parquet(chess_data.random_games(20, 1, plies=8), data / "a.parquet")
    run = chess_feeds.chess_run(tmp_path / "run", data, epochs=1, batch=4)
    try:
        published(run.start())
        text = peek(run)["shown"][0]["text"]
        assert "  a b c d e f g h" in text and "end_pos" in text and "to_move" in text
        assert "[" in text and "/" in text.split("[")[1].split("]")[0]
    finally:
        run.close()


@pytest.fixture
def samples(make_run: MakeRun, tmp_path: Path) -> Callable[..., FeedRun]:
    """A feed of samples with text, pictures and numbers that are none."""

    def make(rows: int = 40, **settings: Any) -> FeedRun:
        data = tmp_path / "samples"
        data.mkdir(exist_ok=True)
        with (data / "a.jsonl").open("w") as lines:
            for i in range(rows):
                line = {
                    "id": i,
                    "text": text_of(i),
                    "left_image": picture_of(i).tolist(),
                    "mask": (picture_of(i)[:, :, 0] // 2).tolist(),
                    "score": i / 4,
                }
                lines.write(json.dumps(line) + "\n")
        return make_run(data, feed="samples", pipeline=SAMPLES, **{"batch": 8, **settings})

    return make


def text_of(i: int) -> str:
    """Plain, with what a terminal obeys, and very long, in turn."""
    return (f"text {i}", f"\x1b[31m{i}\n\u202e", f"long {i} " + "x" * 100_000)[i % 3]


def picture_of(i: int) -> np.ndarray:
    return np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) + np.uint8(i % 256)


def pixels_of(path: Path) -> np.ndarray:
    """A PNG file of eight bits without filters, checked piece by piece."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind = data[at + 4 : at + 8]
        chunks[kind] = data[at + 8 : at + 8 + length]
        (crc,) = struct.unpack_from(">I", data, at + 8 + length)
        assert crc == zlib.crc32(data[at + 4 : at + 8 + length])
        at += 12 + length
    width, height, bits, colours = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    channels = {0: 1, 2: 3, 6: 4}[colours]
    lines = zlib.decompress(chunks[b"IDAT"])
    array = np.frombuffer(lines, np.uint8).reshape(height, 1 + width * channels)
    assert bits == 8 and not array[:, 0].any()
    return array[:, 1:].reshape(height, width, channels)


def test_samples_text_and_pictures(samples: Callable[..., FeedRun], tmp_path: Path) -> None:
    """Text is escaped and cut; what its name calls an image is a picture, and what is asked for."""
    run = published(samples(epochs=1).start())
    seen = peek(run, "--rows", "8", "--save", str(tmp_path / "seen"), "--picture", "mask")
    assert seen["output"] == "train" and seen["problems"] == []
    first = 8 * (seen["batch"] - 1)
    saved = Path(seen["saved"][0]).parent
    assert saved.name == f"samples-train-{seen['batch']:09}"
    for row, shown in enumerate(seen["shown"]):
        i = first + row
        text = shown["text"]
        assert "id " in text and f" {i}\n" in text
        assert "\x1b" not in text and "\u202e" not in text
        expected = ('"text', "\\x1b[31m", '"long')[i % 3]
        assert expected in text and len(text) < 2_000
        assert f"({len(text_of(i).encode())} bytes)" in text
        assert (pixels_of(saved / f"left_image-{row}.png") == picture_of(i)).all()
        assert (pixels_of(saved / f"mask-{row}.png")[:, :, 0] == picture_of(i)[:, :, 0] // 2).all()
    plain = run.command("peek", "samples", "--rows", "8")
    assert plain.returncode == 0 and "\x1b" not in plain.stdout
    assert plain.stdout.startswith(f"feed samples, batch {seen['batch']} of output 'train': 8 of")
    wrong = run.command("peek", "samples", "--picture", "score")
    assert wrong.returncode == 0 and "score is no picture" in wrong.stderr


def test_batches_that_fly_past(samples: Callable[..., FeedRun], tmp_path: Path) -> None:
    """Each copy is of one batch, while slots are written again all the time."""
    run = published(samples(rows=600, epochs=0, groups='groups { name: "a" }').start())
    with ringfeed.attach("samples", group="a", socket_dir=run.sockets, timeout_s=60) as feed:
        looks = [
            run.command_later("peek", "samples", "--json", "--save", str(tmp_path / f"{i}"))
            for i in range(12)
        ]
        while any(look.poll() is None for look in looks):
            feed.next().release()
    for look in looks:
        out, error = look.communicate()
        assert look.returncode == 0, error
        saved = Path(json.loads(out)["saved"][0]).parent
        ids = np.load(saved / "id.npy")
        offsets, text = np.load(saved / "text_offsets.npy"), np.load(saved / "text.npy").tobytes()
        for row, i in enumerate(ids.tolist()):
            assert text[offsets[row] : offsets[row + 1]].decode() == text_of(i)
            assert (np.load(saved / "left_image.npy")[row] == picture_of(i)).all()
            assert np.load(saved / "score.npy")[row] == i / 4


def test_a_view_of_somebodys_own(samples: Callable[..., FeedRun], tmp_path: Path) -> None:
    """A program gets the directory; what it says comes out; the directory does not stay."""
    view = tmp_path / "view"
    view.write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        "facts = json.load(open(sys.argv[1] + '/batch.json'))\n"
        "print('view of', facts['batch'], sorted(os.listdir(sys.argv[1])), sys.argv[1])\n"
    )
    view.chmod(0o755)
    run = published(samples(epochs=1).start())
    done = run.command("peek", "samples", "--view", str(view))
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    assert line.startswith("view of") and "'left_image-0.png', 'left_image.npy'" in line
    assert not Path(line.split()[-1]).exists()
    missing = run.command("peek", "samples", "--view", str(tmp_path / "none"))
    assert missing.returncode == 1 and "cannot be started" in missing.stderr
    both = run.command("peek", "samples", "--view", str(view), "--json")
    assert both.returncode == 2


def test_before_the_first_batch(make_run: MakeRun, tmp_path: Path) -> None:
    """It says so, what the feed does, and waits no longer than it is told."""
    empty = tmp_path / "empty"
    empty.mkdir()
    run = make_run(empty, epochs=0).start()
    wait_until(lambda: run.status(), "the feed")
    done = run.command("peek", "lc0", "--timeout", "0.2")
    assert done.returncode == 1
    assert "has published no batch within 0.2 s" in done.stderr and "--timeout" in done.stderr
    assert done.stdout == ""


def test_feeds_that_cannot_be_seen(make_run: MakeRun) -> None:
    """None of that name, an output that it does not have, one without a supervisor, one that has
    ended.
    """
    run = make_run(epochs=1)
    assert run.command("peek", "lc0").returncode == 4
    published(run.start())
    wrong = run.command("peek", "lc0", "--output", "other")
    assert wrong.returncode == 2 and "has no output 'other'" in wrong.stderr
    assert run.process is not None
    run.process.kill()
    run.process.wait()
    orphaned = run.command("peek", "lc0")
    assert orphaned.returncode == 5 and "its supervisor" in orphaned.stderr
    assert "is dead" in orphaned.stderr and orphaned.stdout == ""
    run.start()
    wait_until(lambda: run.status(), "the next supervisor")
    assert run.command("peek", "lc0").returncode == 0


def test_a_feed_that_has_ended(make_run: MakeRun) -> None:
    """As long as it waits for trainers its last batch can be seen; here the only one, not full."""
    run = make_run(epochs=1, rate=0.1, batch=3000, groups='groups { name: "late" }').start()
    wait_until(lambda: (run.status() or {}).get("state") == "ENDED", "its end")
    seen = peek(run)
    assert seen["batch"] == 1 and 0 < seen["rows"] < seen["rows_max"]
