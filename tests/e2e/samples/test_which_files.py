"""Which files of a directory are data, and documents of JSON beside what Python's json reads."""

from __future__ import annotations

import gzip
import json
import random
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ringfeed

from tests.support.feeds.feed_run import FeedRun
from tests.support.feeds.scenes import kill_a_worker

FEED = """
feed: "which"
seed: 1
epochs: 1
stages {{ name: "files" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "source" sample_source {{ input: "files" {source} }} }}
stages {{ name: "batches" sample_batcher {{
  input: "source" batch_size: 4 fields {{ name: "text" dtype: "text" }} }} }}
feed_output {{ slots: 2 }}
{extra}
"""
OFTEN = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: 255 }"
TEXT = 'fields { name: "text" }'
Read = Callable[..., tuple[list[str], str]]


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """Texts of a directory's samples, and the log."""
    started: list[FeedRun] = []

    def start(directory: Path, kills: int = 0, **settings: Any) -> tuple[list[str], str]:
        work = tmp_path / f"run{len(started)}"
        work.mkdir()
        values = {"source": TEXT, "extra": OFTEN, "pipeline": FEED, "feed": "which"} | settings
        run = FeedRun(work, directory, **values)
        started.append(run)
        run.start()
        rng = random.Random(kills)
        rows: list[str] = []
        with ringfeed.attach(
            "which", socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
        ) as feed:
            for batch in feed:
                rows += texts_of(batch)
                if kills and kill_a_worker(run, rng):
                    kills -= 1
                batch.release()
        assert run.wait() == 0, run.text()
        return rows, run.text()

    yield start
    for run in started:
        run.close()


def texts_of(batch: Any) -> list[str]:
    ends, whole = batch["text_offsets"], batch["text"].tobytes()
    return [whole[ends[i] : ends[i + 1]].decode() for i in range(batch.rows)]


def line(text: str) -> str:
    return json.dumps({"text": text}) + "\n"


def test_only_data_is_read(read: Read, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    for name in ("a.jsonl", "b.JSONL", "c.ndjson", "d.jsonlines", "sub/e.json"):
        (data / name).write_text(2 * line(name))  # one object alone would say something of others
    (data / "f.Txt").write_text("f.Txt\n")
    (data / "g.jsonl.GZ").write_bytes(gzip.compress(line("g.jsonl.GZ").encode()))
    others = ["README.md", "LICENSE", "SHA256SUMS", "_SUCCESS", "x.html", "h.jpg", "i.gz"]
    left = ["a.jsonl~", "#a.jsonl#", "a.jsonl.tmp", "b.jsonl.bak", "c.jsonl.crdownload", "d.part"]
    for name in others + left:
        (data / name).write_text(line("never"))
    (data / ".hidden.jsonl").write_text(line("never"))
    rows, log = read(data)
    twice = ["a.jsonl", "b.JSONL", "c.ndjson", "d.jsonlines", "sub/e.json"]
    assert sorted(rows) == sorted([*twice, *twice, "f.Txt", "g.jsonl.GZ"])
    assert f"files_passed_over={len(others + left)}" in log
    named = re.findall(r"passed_over stage=source count=(\d+) path=\S*/(\S+): (.*)", log)
    assert [int(count) for count, _, _ in named] == [1, 2, 4, 8]
    for _, name, why in named:
        assert ("backup" if name in left else "say with `format` what it holds") in why


def test_what_format_says_is_read(read: Read, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("part-00000", "README.md", "x.html"):
        (data / name).write_text(line(name))
    (data / "part-00000~").write_text(line("never"))
    rows, log = read(data, source=f"format: JSONL {TEXT}")
    assert sorted(rows) == ["README.md", "part-00000", "x.html"]
    assert "files_passed_over=1" in log


def test_bytes_count_and_not_the_name(read: Read, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "1.text").write_text("of a tar")
    with tarfile.open(data / "x.txt", "w") as archive:
        archive.add(tmp_path / "1.text", "1.text")
    (data / "packed.jsonl").write_bytes(gzip.compress(line("packed").encode()))
    (data / "plain.jsonl.gz").write_text(line("plain"))
    rows, _ = read(data, source='fields { name: "text" dtype: "text" }')
    assert sorted(rows) == ["of a tar", "packed", "plain"]


@pytest.mark.parametrize(("more", "reads"), [(0, False), (1, True)])
def test_documents_beside_data_say_something_about_it(
    read: Read, tmp_path: Path, more: int, reads: bool
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text(line("a") + line("b"))
    (data / "b.jsonl").write_text(line("c"))
    (data / "infos.json").write_text(json.dumps({"text": "infos"}, indent=2))
    (data / "stats.json").write_text(json.dumps({"text": "stats"}))
    (data / "lines.json").write_text(line("d") + line("e"))
    (data / "more.jsonl" if not more else data / "more.json").write_text(line("f"))
    (data / "notes.txt").write_text("g\n")
    rows, log = read(data)
    described = ["infos", "stats"] if reads else []
    assert sorted(rows) == sorted([*"abcdefg", *described])
    assert ("files_passed_over=2" in log) == (not reads)
    assert ("it is one object beside data" in log) == (not reads)


def drawn_value(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(8 if depth < 3 else 5)
    if kind == 5:
        return [drawn_value(dice, depth + 1) for _ in range(dice.randrange(4))]
    if kind > 5:
        return {f"k{i}": drawn_value(dice, depth + 1) for i in range(dice.randrange(4))}
    pieces = ['"', "\\", "{", "}", "[", "]", ",", "é", "\n", "x", "😀", ":"]
    text = "".join(dice.choice(pieces) for _ in range(dice.randrange(12)))
    return [dice.randrange(-9, 9), dice.random(), text, True, None][kind]


def drawn_document(dice: random.Random, number: int) -> tuple[bytes, list[str]]:
    """A document, and the texts of its elements that have one."""
    elements: list[Any] = []
    for at in range(dice.choice([0, 1, 2, 40, 300])):
        if dice.random() < 0.1:
            elements.append(dice.choice([1, "text", None, [1], {}, {"text": None}]))
            continue
        one = {f"a{i}": drawn_value(dice) for i in range(dice.randrange(3))}
        one["text"] = f"{number}/{at} " + "".join(dice.choices('"\\{}[],\n', k=5))
        elements.append(one)
    indent = dice.choice([None, None, 1, "\t"])
    document: Any = elements
    if dice.random() < 0.2:
        document = {"other": drawn_value(dice), "text": f"{number} alone"}
        elements = [document]
        indent = 2
    text = json.dumps(document, indent=indent, ensure_ascii=dice.random() < 0.5)
    text = dice.choice(["", "\n ", "\ufeff"]) + text + dice.choice(["", "\n", " \r\n\n"])
    texts = [
        one["text"] for one in elements if isinstance(one, dict) and one.get("text") is not None
    ]
    return text.encode(), texts


@pytest.mark.parametrize("seed", [1, 2])
def test_documents_are_read_as_json_reads_them(read: Read, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    data = tmp_path / "data"
    data.mkdir()
    want: list[str] = []
    left_out = 0
    for number in range(60):
        document, texts = drawn_document(dice, number)
        found = json.loads(document.decode("utf-8-sig"))
        left_out += (len(found) if isinstance(found, list) else 1) - len(texts)
        packed = dice.random() < 0.3
        name = f"{number:03}.json" + (".gz" if packed else "")
        (data / name).write_bytes(gzip.compress(document) if packed else document)
        want += texts
    source = f"block_bytes: 65536 threads: {1 + seed} {TEXT}"
    rows, log = read(data, kills=6 * (seed - 1), source=source)
    assert rows == want
    counted = sum(map(int, re.findall(r"skipped_(?:no_json|missing_field)=(\d+)", log)))
    assert counted == left_out


DAMAGED = {
    b'[{"text": "a"}, {"text": "b"}': ("a", "b"),
    b'[{"text": "a"} {"text": "b"}]': ("a",),
    b'[{"text": "a"}] rubbish': ("a",),
    b'[{"text": "a"}, {"text": "b': ("a",),
    b'[{"text": "a"},]': ("a",),
    b'{\n"text": "a"\n}\n}': ("a",),
    b'{\n"text": "a"': (),
    b"[": (),
}


def test_damaged_documents_give_what_is_whole_and_are_counted(read: Read, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number, document in enumerate(DAMAGED):
        (data / f"{number}.json").write_bytes(document)
    rows, log = read(data)
    assert rows == [text for texts in DAMAGED.values() for text in texts]
    assert f"skipped_damaged={len(DAMAGED)}" in log
