"""ringfeed.pipeline: what is written, what is read back, what is refused and how.

The supervisor's own reader (`ringfeed check --part`) says what a text means.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import pickle
import random
import shutil
import stat
import string
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT))

import ringfeed.pipeline as rp  # noqa: E402
from ringfeed import InvalidConfiguration  # noqa: E402
from ringfeed.pipeline import _fields, _schema, _text  # noqa: E402

from tests.support.feeds.feed_run import BIN  # noqa: E402

FIELDS = {"id": "int64", "text": "text"}


def ringfeed(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "ringfeed", *words], capture_output=True, text=True, timeout=60)


def meaning(path: Path) -> str:
    """What the supervisor reads."""
    done = ringfeed("check", "--part", path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def typical() -> rp.Feed:
    return (
        rp.files("/data/c4/*.jsonl.zst")
        .jsonl(fields=FIELDS)
        .map("my_data:Tokenize", processes=4, batch=64, options={"vocab": "gpt2.json"})
        .shuffle(100_000)
        .batch(8, fields={"ids": ("int32", 128)})
        .feed("c4", seed=7)
    )


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(rp.InvalidArgument) as error:
        call()
    assert str(error.value).startswith(f"{error.value.method}({error.value.argument}): ")
    return str(error.value)


# ---- what is written


def test_a_feed_is_written_as_a_person_would() -> None:
    assert typical().text() == textwrap.dedent(
        """\
        # proto-file: proto/config.proto
        # proto-message: ringfeed.DataLoaderConfig

        feed: "c4"
        seed: 7

        stages {
          name: "files"
          file_path_provider {
            pattern: "/data/c4/*.jsonl.zst"
          }
        }

        stages {
          name: "lines"
          sample_source {
            input: "files"
            format: JSONL
            fields { name: "id" dtype: "int64" }
            fields { name: "text" dtype: "text" }
          }
        }

        stages {
          name: "tokenize"
          python {
            input: "lines"
            object: "my_data:Tokenize"
            options: "{\\"vocab\\": \\"gpt2.json\\"}"
            processes: 4
            batch: 64
          }
        }

        stages {
          name: "shuffled"
          sample_shuffler {
            input: "tokenize"
            size: 100000
          }
        }

        stages {
          name: "batches"
          sample_batcher {
            input: "shuffled"
            batch_size: 8
            fields { name: "ids" dtype: "int32" shape: 128 }
          }
        }
        """
    )


def test_words_sizes_and_messages_stay_as_they_were_given() -> None:
    feed = (
        rp.indices(10, order="SHUFFLED", queue_bytes="64 KiB", name="items")
        .batch(2, fields=[rp.BatchField("index", "int64", shape=[2, 3])])
        .output(slots=4, groups=[rp.ConsumerGroup("a", kind="RANKED", world=2), "b"])
        .feed("x", epochs=1, restart={"max_restarts": 3}, log=rp.settings.Log(level="WARN"))
    )
    lines = [line.strip() for line in feed.text().splitlines()]
    for line in (
        "order: SHUFFLED",
        'queue_bytes: "64 KiB"',
        'fields { name: "index" dtype: "int64" shape: [2, 3] }',
        "max_restarts: 3",
        "level: WARN",
        "slots: 4",
        "world: 2",
    ):
        assert line in lines


def test_stages_have_names_of_their_own() -> None:
    items = rp.indices(5)
    assert items.shuffle(2).shuffle(3).feed("x").stages == ("indices", "shuffled", "shuffled_2")
    named = items.shuffle(2, name="shuffled_2").shuffle(3).shuffle(4)
    assert named.feed("x").stages == ("indices", "shuffled_2", "shuffled", "shuffled_3")
    twice = items.shuffle(2, name="a").shuffle(3, name="a")
    assert refused(lambda: twice.feed("x")).startswith("shuffle(name): ")


def test_each_reader_of_a_pipeline_has_stages_of_its_own() -> None:
    items = rp.indices(5)
    feed = rp.feed(
        "x",
        items.batch(2, fields={"index": "int64"}).output("a"),
        items.shuffle(9).batch(3, fields={"index": "int64"}).output("b"),
    )
    assert feed.stages == ("indices", "batches", "indices_2", "shuffled", "batches_2")
    assert 'alias: "b"\n  stage: "batches_2"' in feed.text()
    mixed = rp.mix(items, items, end_with=items)
    assert (
        'input: "indices"\n    input: "indices_2"\n    end_with: "indices"'
        in mixed.feed("x").text()
    )


def test_outputs_of_a_stage_are_read_by_their_names(tmp_path: Path) -> None:
    chunks = rp.stage.chunk_source_loader(input=rp.files(directory="/data"))
    parts = rp.stage.chunk_source_splitter(input=chunks, outputs={"train": 9, "test": 1})
    pools = [
        parts[port].then("shuffling_chunk_pool").then("chunk_unpacker", name=port)
        for port in ("train", "test")
    ]
    feed = rp.feed("x", *(one.then("shuffling_frame_sampler").output() for one in pools))
    text = feed.text()
    assert text.count("chunk_source_splitter {") == 1
    name = "chunk_source_splitter"
    assert f'input: "{name}.train"' in text and f'input: "{name}.test"' in text
    feed.save(tmp_path / "x.textproto")
    assert rp.load(tmp_path / "x.textproto") == feed
    alone = parts["test"].feed("y")
    assert 'feed_output {\n  stage: "chunk_source_splitter.test"\n}' in alone.text()
    alone.save(tmp_path / "y.textproto")
    assert rp.load(tmp_path / "y.textproto") == alone


def test_nothing_changes_what_was_made() -> None:
    fields = {"id": "int64"}
    lines = rp.files("a").jsonl(fields=fields)
    before = lines.feed("x").text()
    fields["text"] = "text"
    lines.shuffle(5).batch(3, fields={"id": "int64"})
    assert lines.feed("x").text() == before
    for made in (lines, lines.output(), lines.feed("x"), rp.SampleField("a")):
        with pytest.raises(AttributeError):
            made.name = "b"


def test_what_was_made_can_be_copied() -> None:
    for made in (typical(), lines().output(), lines(), rp.SampleField("a")):
        assert copy.deepcopy(made) == made and pickle.loads(pickle.dumps(made)) == made


def test_a_pipeline_without_end_is_refused(tmp_path: Path) -> None:
    long = rp.indices(3)
    for _ in range(200):
        long = long.shuffle(3)
    assert len(long.feed("x").stages) == 201
    for _ in range(2000):
        long = long.shuffle(3)
    assert "more stages behind each other" in refused(lambda: long.feed("x"))
    wide = rp.indices(3)
    for _ in range(40):
        wide = rp.mix(wide, wide)
    assert "more than 1024 stages" in refused(lambda: wide.feed("x"))
    chain = ['stages { name: "0" index_source {} }']
    chain += [f'stages {{ name: "{i + 1}" python {{ input: "{i}" }} }}' for i in range(1023)]
    (tmp_path / "a.textproto").write_text("\n".join(chain))
    with pytest.raises(InvalidConfiguration, match="behind each other"):
        rp.load(tmp_path / "a.textproto")


def test_equal_pipelines_are_equal() -> None:
    assert typical() == typical() and hash(typical()) == hash(typical())
    assert rp.files("a").text() == rp.stage.sample_source(
        input=rp.files("a"), format="TEXT", name="lines"
    )
    assert rp.files("a").text() != rp.files("b").text() != rp.indices(3)
    assert rp.SampleField("a", as_="b") == rp.SampleField(name="a", as_="b")
    assert len({rp.indices(3), rp.indices(3), rp.indices(4)}) == 2


def test_a_graph_says_who_reads_from_whom() -> None:
    drawn = typical().graph()
    assert drawn.startswith("c4: 5 stages\n")
    assert any(
        line.split()[:4] == ["shuffled", "sample_shuffler", "<-", "tokenize"]
        for line in drawn.splitlines()
    )
    assert drawn.endswith("trainers <= batches\n")


# ---- what is read back


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "c4.textproto"
    for feed in (typical(), rp.mix(rp.indices(3), rp.indices(4), weights=[1, 2.5]).feed("m")):
        feed.save(path)
        again = rp.load(path)
        assert again == feed and again.name == feed.name and again.stages == feed.stages
        first = path.read_bytes()
        again.save(path)
        assert path.read_bytes() == first
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "workers" / "pipelines").glob("*.textproto")), ids=lambda path: path.stem
)
def test_configurations_of_people_are_read(path: Path, tmp_path: Path) -> None:
    feed = rp.load(path)
    saved = tmp_path / path.name
    feed.save(saved)
    assert blocks(meaning(saved)) == blocks(meaning(path))
    assert rp.load(saved) == feed


def blocks(text: str) -> list[str]:
    """Its stages and settings, in any order."""
    found = text.replace("\n}\n", "\n}\n\f").split("\f")
    return sorted(found)


def some_text(rng: random.Random) -> str:
    letters = string.ascii_letters + "\"'\\\n\t\r#{}é日\x01\x7f\u200b\udcff:"
    return "".join(rng.choice(letters) for _ in range(rng.randrange(1, 12)))


def some_value(field: _fields.Field, rng: random.Random, depth: int) -> Any:
    """A value that the schema allows."""
    if field.repeated:
        count = rng.randrange(1, 4)
        return [some_value(field._replace(repeated=False), rng, depth) for _ in range(count)]
    if field.type == "message":
        return some_message(field.of, rng, depth + 1)
    if field.type == "enum":
        return rng.choice(list(_schema.ENUMS[field.of]))
    if field.type == "bool":
        return rng.choice([True, False, np.bool_(True)])
    if field.use == "json":
        return {some_text(rng).replace("\udcff", ""): [1, None, 2.5, "é"]}
    if field.use == "code":
        return "some.module:Some.name"
    if field.type == "text":
        return rng.choice(
            [some_text(rng), Path("/a b") / "c"] if field.use == "path" else [some_text(rng)]
        )
    least = field.least if field.least is not None else field.above or 0
    most = min(field.most if field.most is not None else least + 1000, 2**31 - 1)
    if field.type == "float":
        return rng.choice([most, rng.uniform(least + 1e-9, most), np.float64(most)])
    if field.is_size and least <= 1 << 20 <= (field.most or 1 << 20):
        return rng.choice(["1 MiB", "1.5 MiB", 1 << 20, np.int64(1 << 20)])
    return rng.choice([int(most), rng.randint(int(least), int(most)), np.uint32(int(most))])


def some_message(of: str, rng: random.Random, depth: int = 0) -> dict[str, Any]:
    fields = [one for one in _schema.MESSAGES[of] if one.use not in ("stage", "input")]
    chosen = [
        one for one in fields if rng.random() < 0.6 and not (one.type == "message" and depth > 2)
    ]
    return {one.name: some_value(one, rng, depth) for one in chosen}


@pytest.mark.parametrize("seed", range(40))
def test_any_configuration_is_read_back(seed: int, tmp_path: Path) -> None:
    """Every kind of stage, with any settings, wired anyhow: `ringfeed check` would refuse most."""
    rng = random.Random(seed)
    made: list[rp.Pipeline] = []
    for kind in rng.sample(list(_schema.KINDS), len(_schema.KINDS)):
        settings = some_message(_schema.KINDS[kind], rng)
        wires = {
            one.name: one for one in _schema.MESSAGES[_schema.KINDS[kind]] if one.use == "stage"
        }
        for name, one in wires.items():
            read = [rng.choice(made or [rp.indices(3)]) for _ in range(3 if one.repeated else 1)]
            settings[name] = read if one.repeated else read[0]
        settings = {
            f"{name}_" if name in ("as", "from") else name: one for name, one in settings.items()
        }
        call = getattr(rp.stage, kind)
        for name, parameter in inspect.signature(call).parameters.items():
            if parameter.default is parameter.empty and name not in settings:
                settings[name] = some_value(_fields.fields_of(_schema.KINDS[kind])[name], rng, 0)
        # The one rule that a part of a configuration has.
        for most, number in (("max_threads", "threads"), ("max_processes", "processes")):
            if most in settings:
                settings[most] = max(settings[most], settings.get(number, 1))
        made.append(call(**settings))
        del made[:-4]  # the copies of copies of a long chain would be many
    config = some_message("DataLoaderConfig", rng)
    for name in ("stages", "feed_output", "feed"):
        config.pop(name, None)
    outputs = []
    for one in made[-2:]:
        settings = some_message("FeedOutputConfig", rng)
        settings.pop("stage", None)
        outputs.append(one.output(**settings))
    feed = rp.feed("any", *outputs, **config)
    path = tmp_path / "any.textproto"
    feed.save(path)
    again = rp.load(path)
    assert again == feed
    again.save(tmp_path / "again.textproto")
    assert (tmp_path / "again.textproto").read_bytes() == path.read_bytes()
    # The supervisor reads the same: what it prints, read and written again, is no different to it.
    read = meaning(path)
    (tmp_path / "read.textproto").write_text('feed: "any"\n' + read)
    rp.load(tmp_path / "read.textproto").save(tmp_path / "third.textproto")
    assert blocks(meaning(tmp_path / "third.textproto")) == blocks(read)


def test_json_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    config = {
        "seed": "7",
        "dropRemainder": True,
        "stages": [
            {"name": "p", "filePathProvider": {"directory": "/data", "queueBytes": "1 MiB"}},
            {"name": "l", "sample_source": {"input": "p", "format": "JSONL", "threads": 2.0}},
            {"name": "m", "sample_mixer": {"input": ["l"], "weight": [1], "endWith": "l"}},
        ],
    }
    path.write_text(json.dumps(config))
    feed = rp.load(path)
    assert feed.name == "a" and feed.stages == ("p", "l", "m")
    feed.save(tmp_path / "a.textproto")
    assert meaning(tmp_path / "a.textproto") == meaning(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("feed: 3", ":1:7: feed is 3; give a text in double quotes"),
        (
            'feed: "a"\nsed: 3',
            ":2:1: unknown field 'sed' in DataLoaderConfig; did you mean 'seed'?",
        ),
        ("seed: -1", ":1:7: seed is -1; give a whole number from 0 on"),
        ('seed: "a"', ':1:7: seed is "a"; give a whole number from 0 on'),
        ("seed: 1\nseed: 2", ":2:1: seed is given twice"),
        ("seed 3", ":1:6: ':' is missing after seed"),
        ("stages {", ":1:8: '}' is missing for what begins here"),
        ("stages { } }", ":1:12: the name of a field is expected, not '}'"),
        ("log { level: WRN }", ':1:14: level is "WRN"; give one of DEBUG, INFO, WARN, ERROR; did'),
        ('log { level: "WARN" }', ':1:14: level is "WARN"; write WARN without quotes'),
        ("drop_remainder: 2", ":1:17: drop_remainder is"),
        ('feed: "a', ":1:7: '\"' is no part of a configuration here"),
        ("stages: 3", ":1:9: stages is a message, { ... }, with name"),
        ("seed: [1]", ":1:7: seed is a list; give one value"),
        ("", ": it has no stages"),
        ('feed: "a b" stages {}', ": the name of the feed is 'a b'"),
        ("stages {}", ": stages[0] has no name"),
        ('stages { name: "a" }', ": stage 'a' is nothing; give exactly one kind"),
        (
            'stages { name: "a" python {} sample_mixer {} }',
            ": stage 'a' is sample_mixer and python",
        ),
        (
            'stages { name: "a" python { input: "b" } }',
            "a names 'b', but there is no stage 'b'",
        ),
        ('stages { name: "a" python { input: "a" } }', ": stages read from each other: a <- a"),
        (
            'stages { name: "a" index_source {} } stages { name: "b" python { input: "a" } }'
            'stages { name: "c" python { input: "a" } }',
            ": a.output is read by b and by c: an output feeds one input",
        ),
        (
            'stages { name: "a" index_source {} }'
            'stages { name: "b" sample_mixer { input: "a" end_with: "b" } }',
            ": stages read from each other: b <- b",
        ),
        (
            'stages { name: "a" python { object: "pickle:/not/there" } }',
            "which cannot be read: No such",
        ),
        ('feed: "a\\d"', ":1:7: an unknown escape in a text; write"),
        ('feed: "\\UFFFFFFFF"', ":1:7: an unknown escape in a text; write"),
        ("<" * 50000, ":1:1: the name of a field is expected, not '<'"),
        ("log " + "{ log " * 500, ": more than 100 messages in each other"),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_place(
    text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.textproto"
    path.write_text(text)
    with pytest.raises(InvalidConfiguration) as error:
        rp.load(path)
    assert str(error.value).startswith(str(path)) and says in str(error.value)


def test_damaged_text_is_read_or_refused(tmp_path: Path) -> None:
    rng = random.Random(5)
    text = typical().text()
    path = tmp_path / "a.textproto"
    refusals = 0
    for _ in range(400):
        at = rng.randrange(len(text))
        damaged = (
            text[:at]
            + rng.choice(["", "{", "}", '"', "\\", "0x", "é", "[", ":"])
            + text[at + rng.randrange(4) :]
        )
        path.write_text(damaged)
        try:
            rp.load(path)
        except InvalidConfiguration:
            refusals += 1
    assert 100 < refusals < 400


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"a\"\\\n\t\x41\101\303\251"', 'a"\\\n\tAAé'),
        ("'a' \"b\"", "ab"),
        (r'"\377"', "\udcff"),
        ('"\\u00e9"', "é"),
    ],
)
def test_texts_are_unquoted(text: str, value: str) -> None:
    (entry,) = _text.parse(f"feed: {text}", "a")
    assert entry.value.text == value


# ---- what is refused


def lines() -> rp.Pipeline:
    return rp.files("a").jsonl()


CALLS: list[tuple[Callable[[], object], str]] = [
    (
        lambda: rp.files("a").jsonl(feilds=["a"]),
        "jsonl(feilds): there is no argument 'feilds'; did you mean 'fields'?",
    ),
    (
        lambda: rp.files("a").jsonl(fields=3),
        "jsonl(fields): it is 3; give a list of mappings, each with name, dtype, as",
    ),
    (
        lambda: rp.files("a").jsonl(fields=[{"nme": "a"}]),
        "jsonl(fields[0]): there is no 'nme'; did you mean 'name'?",
    ),
    (
        lambda: rp.files("a").jsonl(fields=[3]),
        "jsonl(fields[0]): it is 3; give a mapping, with name, dtype, as",
    ),
    (
        lambda: rp.files("a").jsonl(threads=0),
        "jsonl(threads): it is 0; give a whole number from 1 to 64",
    ),
    (
        lambda: rp.files("a").jsonl(threads=True),
        "jsonl(threads): it is True; give a whole number from 1 to 64",
    ),
    (
        lambda: rp.files("a").jsonl(threads=1.0),
        "jsonl(threads): it is 1.0; give a whole number from 1 to 64",
    ),
    (
        lambda: rp.files("a").jsonl(block_bytes="1 KiB"),
        'jsonl(block_bytes): it is "1 KiB"; give a size from 64 KiB to 1 GiB: ',
    ),
    (
        lambda: rp.files("a").jsonl(block_bytes="1 Mb"),
        'jsonl(block_bytes): it is "1 Mb"; give a size',
    ),
    (
        lambda: rp.files("a").jsonl(shuffle_files=1),
        "jsonl(shuffle_files): it is 1; give True or False",
    ),
    (lambda: rp.files(3), "files(pattern[0]): it is 3; give a path"),
    (lambda: rp.files("a\0"), "files(pattern[0]): it has a byte of zero in it"),
    (lambda: rp.indices(), "indices(count): it is required"),
    (
        lambda: rp.indices(3, order="SHUFFLE"),
        'indices(order): it is "SHUFFLE"; give one of IN_ORDER, SHUFFLED, ',
    ),
    (lambda: lines().shuffle(3, 4), "shuffle(): too many positional arguments"),
    (lambda: lines().shuffle(3, name="a b"), 'shuffle(name): it is "a b"; give 1 to 64'),
    (
        lambda: lines().then("sample_shufler"),
        "then(kind): there is no kind of stage \"sample_shufler\"; did you mean 'sample_shuffler'?",
    ),
    (
        lambda: lines().then("sample_shuffler", siz=3),
        "then(siz): sample_shuffler has no setting 'siz'; did you mean 'size'?",
    ),
    (
        lambda: lines().then("sample_shuffler", size=0),
        "then(size): it is 0; give a whole number from 1 to 1000000000",
    ),
    (
        lambda: lines().then("index_source", count=3),
        "then(kind): a index_source reads from no stage",
    ),
    (lambda: rp.mix(), "mix(inputs): give at least one pipeline"),
    (lambda: rp.mix("a"), 'mix(inputs[0]): it is "a"; give a pipeline'),
    (lambda: rp.mix(lines(), weights=["a"]), 'mix(weights[0]): it is "a"; give a number'),
    (lambda: rp.mix(lines(), end_with=lines()), "mix(end_with): it is none of the inputs"),
    (lambda: rp.stage.sample_source(), "stage.sample_source(input): it is required"),
    (
        lambda: rp.stage.chess_games(input=lines(), skip_board_probability=1.5),
        "stage.chess_games(skip_board_probability): it is 1.5; give a number from 0 to 1",
    ),
    (
        lambda: rp.stage.chess_games(input=lines(), skip_board_probability=float("nan")),
        "stage.chess_games(skip_board_probability): it is nan",
    ),
    (
        lambda: lines().map("nomodule"),
        'map(object): it is "nomodule"; give "module:name", or something to call',
    ),
    (lambda: lines().map(3), "map(object): it is 3; give"),
    (
        lambda: lines().map("a:b", options={"a": {1}}),
        "map(options): it cannot be written as JSON: ",
    ),
    (lambda: lines().feed("a b"), 'feed(name): it is "a b"; give 1 to 64'),
    (
        lambda: lines().feed("a", sed=3),
        "feed(sed): there is no argument 'sed'; did you mean 'seed'?",
    ),
    (lambda: lines().feed("a", seed=-3), "feed(seed): it is -3; give a whole number from 0 on"),
    (
        lambda: lines().feed("a", restart={"max_restrts": 3}),
        "feed(restart): there is no 'max_restrts'; did you mean 'max_restarts'?",
    ),
    (
        lambda: lines().feed("a", restart={"max_restarts": -3}),
        "feed(restart.max_restarts): it is -3; give a whole number from 0 to 1000000",
    ),
    (
        lambda: lines().output(slots=1000),
        "output(slots): it is 1000; give a whole number from 1 to 256",
    ),
    (
        lambda: lines().output(groups={"a": "RANKD"}),
        "output(groups['a'].kind): it is \"RANKD\"; give one of SHARED, RANKED",
    ),
    (lambda: rp.feed("a"), "feed(outputs): give at least one pipeline"),
    (
        lambda: rp.SampleField("a", dtyp="x"),
        "SampleField(dtyp): there is no argument 'dtyp'; did you mean 'dtype'?",
    ),
    (lambda: lines()["a b"], 'jsonl([]): it is "a b"; give the name of an output'),
]


@pytest.mark.parametrize(("call", "says"), CALLS, ids=[says.partition(":")[0] for _, says in CALLS])
def test_a_wrong_argument_is_named(call: Callable[[], object], says: str) -> None:
    assert refused(call).startswith(says)


def test_numbers_of_other_types_are_taken() -> None:
    assert rp.indices(np.int32(5)) == rp.indices(5)
    assert rp.mix(lines(), weights=[np.float32(2)]) == rp.mix(lines(), weights=2)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64 KiB", 65536),
        ("1.5MiB", 3 << 19),
        ("4096", 4096),
        ("0.1 MiB", None),
        ("MiB", None),
        ("1 mib", None),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    assert _fields.size_in_bytes(text) == size


def test_mistakes_that_the_check_finds_name_the_call(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    source = rp.files(str(tmp_path / "*.jsonl"))
    mixed = rp.mix(source.jsonl(), weights=[-1.0]).shuffle(5).shuffle(6)
    feed = mixed.batch(3, fields={"x": "int4"}).feed("a")
    with pytest.raises(InvalidConfiguration) as error:
        feed.check()
    said = [(one.method, one.argument) for one in error.value.problems]
    assert ("batch", "fields[0].dtype") in said
    assert ("mix", "weights[0]") in said
    with pytest.raises(InvalidConfiguration, match=r"^batch\(fields\): there are no fields"):
        source.jsonl().batch(3).feed("a").check()
    with pytest.raises(
        InvalidConfiguration, match=r"^shuffle\(\): stage 'shuffled': files.output carries files"
    ):
        source.shuffle(4).shuffle(4).batch(3, fields=FIELDS).feed("a").check()
    with pytest.raises(InvalidConfiguration, match=r"^feed\(\): no stage outputs batches"):
        source.jsonl().feed("a").check()


def test_a_check_says_what_a_feed_would_be(tmp_path: Path) -> None:
    report = rp.indices(5).batch(3, fields={"index": "int64"}).output("x").feed("a").check()
    assert report.batches == ("x: up to 3 rows: index int64[rows]",)
    assert report.memory_bytes > 0 and report.warnings == () and report.details["feed"] == "a"
    # Data that is not there is no mistake, but worth a word.
    missing = rp.files(directory=tmp_path / "no").text().batch(3, fields={"text": "text"}).feed("a")
    (warning,) = missing.check().warnings
    assert warning.startswith("files(directory): ") and str(tmp_path / "no") in warning


# ---- what is called


def an_importable_function(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def test_a_name_is_enough_for_what_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    name = f"{an_importable_function.__module__}:an_importable_function"
    assert lines().map(an_importable_function) == lines().map(name)
    assert lines().map(Path) == lines().map(f"{Path.__module__}:Path")
    local = lambda sample: sample  # noqa: E731
    with pytest.raises(rp.InvalidArgument, match="storing it needs the package cloudpickle"):
        lines().map(local)


def test_an_object_is_stored_beside_the_configuration(tmp_path: Path) -> None:
    cloudpickle = pytest.importorskip("cloudpickle", reason="scripts/setup installs cloudpickle")
    factor = 3

    def times(sample: int) -> int:
        return sample * factor

    feed = lines().map(times, processes=2).feed("a")
    factor = 5  # what was stored stays as it was
    path = tmp_path / "sub" / ".." / "a.textproto"
    (tmp_path / "sub").mkdir()
    feed.save(path)
    (stored,) = tmp_path.glob("*.pickle")
    assert stored.name.startswith("a.times.") and stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert f'object: "pickle:{stored}"' in path.read_text()
    assert cloudpickle.loads(stored.read_bytes())(2) == 6
    assert rp.load(path) == feed and rp.load(path).text().count("pickle:times") == 1
    # Another object is another file: a feed that runs keeps what it began with.
    lines().map(lambda sample: None, name="times").feed("a").save(path)
    assert len(list(tmp_path.glob("*.pickle"))) == 2
    stored.unlink()
    feed.save(tmp_path / "b.textproto")
    (tmp_path / f"b.times.{stored.name.split('.')[2]}.pickle").unlink()
    with pytest.raises(InvalidConfiguration, match="which cannot be read: No such file"):
        rp.load(tmp_path / "b.textproto")


def test_an_object_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle", reason="scripts/setup installs cloudpickle")
    file = (tmp_path / "a").open("w")
    with pytest.raises(
        rp.InvalidArgument, match=r"map\(object\): .* cannot be stored: PicklingError: "
    ):
        lines().map(lambda sample: file)
    file.close()


# ---- the modules that are written from the schema


def reference(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, root / "scripts" / "reference", "--builder", *words]
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
    return subprocess.run(script, capture_output=True, text=True, env=environment, timeout=60)


def test_the_modules_are_up_to_date() -> None:
    done = reference(ROOT, "--check")
    assert done.returncode == 0, done.stderr


def test_a_new_setting_is_an_argument(tmp_path: Path) -> None:
    for part in ("proto", "scripts", "pyclient/ringfeed"):
        shutil.copytree(ROOT / part, tmp_path / part)
    proto = tmp_path / "proto" / "stages" / "samples.proto"
    text = proto.read_text()
    place = "message SampleShufflerConfig {\n"
    assert place in text
    new = """\
  // How often to mix. Default 2.
  optional uint32 stirs = 99 [default = 2, (range) = { min: 1 max: 9 }];
"""
    proto.write_text(text.replace(place, place + new))
    done = reference(tmp_path, "--check")
    assert (
        done.returncode == 1
        and "pipeline/_methods.py is out of date: run scripts/reference" in done.stderr
    )
    assert reference(tmp_path).returncode == 0
    methods = (tmp_path / "pyclient/ringfeed/pipeline/_methods.py").read_text()
    assert "        stirs: int | None = None,\n" in methods
    assert "stirs: (1 to 9, default 2) How often to mix." in methods
    program = "import ringfeed.pipeline as rp; print(rp.indices(3).shuffle(stirs=10))"
    environment = dict(os.environ, PYTHONPATH=str(tmp_path / "pyclient"))
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert "shuffle(stirs): it is 10; give a whole number from 1 to 9" in ran.stderr


def test_inputs_are_those_that_the_stages_have() -> None:
    done = ringfeed("stages", "--json")
    assert done.returncode == 0, done.stderr
    for kind in json.loads(done.stdout)["kinds"]:
        fields = _schema.MESSAGES[_schema.KINDS[kind["kind"]]]
        wired = {one.name for one in fields if one.use == "stage"}
        ports = {one["name"] for one in kind["inputs"]}
        # `requests` of a plan go back, and no setting says where to.
        several = any(one.repeated and one.use == "stage" for one in fields)
        assert wired == ports - {"requests"} or (several and kind["more_ports"]), kind["kind"]


PROGRAM = """
import ringfeed.pipeline as rp

feed = (
    rp.files("/data/*.jsonl", queue_bytes="1 MiB")
    .jsonl(fields=["text", rp.SampleField("id", dtype="int64")], threads=2)
    .map("my_data:Tokenize", processes=4, batch=64, options={{"vocab": "gpt2.json"}})
    .shuffle(100_000{wrong})
    .batch(8, fields={{"ids": ("int32", 128)}})
    .output(slots=4, dispatch="RELAXED")
    .feed("c4", seed=7, restart=rp.settings.Restart(max_restarts=3))
)
mixed = rp.mix(rp.indices(3, order="SHUFFLED"), rp.files("a").text(), weights=[1, 2])
games = rp.stage.chess_games(input=rp.stage.parquet_source(directory="/data"), order="EXACT")
text: str = feed.text()
with feed.start(timeout_s=5) as loader:
    for batch in loader:
        print(batch["ids"].shape)
"""


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("", "Success"),
        (", siz=3", 'Unexpected keyword argument "siz"'),
        (", queue_bytes=1.5", 'Argument "queue_bytes"'),
        (', overflow_behavior="BLOK"', 'Argument "overflow_behavior"'),
        (").batch(8).shuffl(3", 'has no attribute "shuffl"'),
    ],
)
def test_types_tell_right_from_wrong(wrong: str, says: str, tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="scripts/setup installs mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(wrong=wrong))
    words = [
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(ROOT / "build" / "lint" / "mypy_programs"),
    ]
    settings = ["--config-file", str(ROOT / "pyclient" / "pyproject.toml")]
    command = [sys.executable, "-m", "mypy", *settings, *words, str(program)]
    environment = dict(os.environ, MYPYPATH=str(ROOT / "pyclient"))
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert says in done.stdout and (done.returncode == 0) == (wrong == ""), (
        done.stdout + done.stderr
    )


def test_what_is_imported_needs_numpy_alone() -> None:
    program = """
import sys
sys.modules.update(dict.fromkeys(["cloudpickle", "google", "torch"]))
import ringfeed.pipeline
"""
    assert subprocess.run([sys.executable, "-c", program], env=dict(os.environ)).returncode == 0
