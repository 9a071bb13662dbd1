"""`ringfeed stages`, and the pages that are made of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.feeds.feed_run import BIN

ROOT = Path(__file__).resolve().parents[3]
RINGFEED = BIN / "ringfeed"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RINGFEED, *words], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def kinds() -> list[dict]:
    done = run("stages", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["kinds"]


def test_every_kind_of_the_schema_is_listed_with_a_sentence(kinds: list[dict]) -> None:
    schema = (ROOT / "proto" / "stages.proto").read_text()
    schema = schema[schema.index("message StageConfig {") :].partition("\n}\n")[0]
    named = re.findall(r"optional \w+Config (\w+) = \d+;", schema)
    assert [kind["kind"] for kind in kinds] == named
    listed = run("stages").stdout
    for kind in kinds:
        assert re.search(rf"^  {kind['kind']} +\S", listed, re.MULTILINE), kind["kind"]
        assert 10 < len(kind["summary"]) < 130, kind["summary"]


def test_every_kind_is_described_as_a_whole(kinds: list[dict]) -> None:
    for kind in kinds:
        assert kind["installed"], kind["kind"]
        assert kind["text"] and kind["example"]["text"], kind["kind"]
        assert kind["outputs"] or kind["more_ports"], kind["kind"]
        for setting in kind["settings"] + kind["common_settings"]:
            inner = "." in setting["name"]
            assert setting["text"] or inner or setting.get("values"), (kind["kind"], setting)


def test_settings_have_what_the_schema_says(kinds: list[dict]) -> None:
    unpacker = next(kind for kind in kinds if kind["kind"] == "chunk_unpacker")
    rate = next(s for s in unpacker["settings"] if s["name"] == "position_sampling_rate")
    assert rate["type"] == "double"
    assert rate["default"] == "1"
    assert rate["range"] == "above 0, at most 1"
    threads = next(s for s in unpacker["common_settings"] if s["name"] == "threads")
    # The text of all stages, and its own.
    assert threads["text"] == "Lanes, each a thread. Lanes that unpack."
    assert (threads["default"], threads["range"]) == ("1", "1 to 64")
    tensors = next(kind for kind in kinds if kind["kind"] == "tensor_generator")
    slots = next(s for s in tensors["common_settings"] if s["name"] == "queue_capacity")
    assert slots["range"] == "1 to 256"
    planes = next(s for s in tensors["settings"] if s["name"] == "planes")
    assert {"name": "PLANES_FLOAT32", "text": "28 KiB a row"} in planes["values"]


def test_a_kind_is_printed_for_people() -> None:
    done = run("stages", "chunk_unpacker")
    assert done.returncode == 0
    for part in ("Takes chunks apart", "in:  input (chunks)", "position_count", "Example"):
        assert part in done.stdout, part
    assert max(map(len, done.stdout.splitlines())) <= 110


def test_a_misspelt_kind_is_a_usage_error_with_the_right_name() -> None:
    done = run("stages", "chunk_unpaker")
    assert done.returncode == 2
    assert (
        "there is no stage of the kind 'chunk_unpaker'; did you mean 'chunk_unpacker'?"
        in done.stderr
    )
    assert done.stdout == ""


def test_pages_and_numbers_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "reference", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
