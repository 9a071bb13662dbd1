"""The translation reference against worked examples: what all else is compared with must be right.

The examples in tests/data/fairseq are what fairseq itself gave, as SHA-256 of every batch. Random
numbers are compared with numpy's, the order of rows of equal length with std::sort, compiled here.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import shlex
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TESTS.parent))

from tests.support.makers import fairseq_data  # noqa: E402
from tests.support.makers.fairseq_examples import DATA, EXAMPLES, example, flat, load  # noqa: E402
from tests.support.oracles import fairseq_reference as reference  # noqa: E402
from tests.support.oracles.fairseq_reference import (  # noqa: E402
    Config,
    LegacyRandom,
    Reference,
    Refused,
)


def assert_is(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Compare a batch with that of an example: every value that the example has."""
    assert reference.digest(got) == wanted["sha256"]
    shapes = {name: [len(got[name]), len(got[name][0])] for name in ("src_tokens", "target")}
    assert shapes["src_tokens"] == wanted["src_shape"]
    assert shapes["target"] == wanted["tgt_shape"]
    for name in set(wanted) - {"sha256", "src_shape", "tgt_shape"}:
        assert got[name] == wanted[name], name


def files_of(directions: Sequence[reference.Direction]) -> list[Any]:
    """Files of the sources and of the targets of each direction; one alone without a list."""
    files = []
    for direction in directions:
        sides = [
            [part.source for part in direction.parts],
            [part.target for part in direction.parts],
        ]
        names = [[file.prefix.split("data_bin/")[1] for file in side] for side in sides]
        files.append([side[0] if len(side) == 1 else side for side in names])
    return files


# --- Worked examples ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_draws_of_examples(name: str) -> None:
    run = Reference(example(name))
    assert load(f"outputs/{name}.json")["epochs"]
    for wanted in load(f"outputs/{name}.json")["epochs"]:
        epoch = run.epoch(wanted["epoch"])
        data = epoch.data
        assert data is not None
        assert run.keys == wanted["keys"]
        assert len(epoch.rows) == wanted["len"]
        assert data.sizes == wanted["raw_sizes"]
        assert data.ratios == wanted["sample_ratios"]
        assert data.total == wanted["virtual_size"]
        assert [len(of) for of in data.drawn] == wanted["virtual_size_per_dataset"]
        assert [index for of in data.drawn for index in of] == wanted["cur_indices"]
        assert np.cumsum([len(of) for of in data.drawn]).tolist() == wanted["cumulated"]
        if "virtual_epoch_size" in wanted:
            assert data.virtual_epoch_size == wanted["virtual_epoch_size"]
            assert data.virtual_epochs == wanted["num_virtual_epochs"]
            assert data.start == wanted["start"]
            assert data.shard_epoch == wanted["shard_epoch"]
            assert data.load_next_shard == wanted["load_next_shard"]
            assert data.global_order == wanted["global_indices"]
        else:
            assert data.global_order is None
        assert files_of(data.directions) == wanted["files"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_batches_of_examples(name: str) -> None:
    run = Reference(example(name))
    for wanted in load(f"outputs/{name}.json")["epochs"]:
        epoch = run.epoch(wanted["epoch"])
        assert epoch.frozen_batches == wanted["frozen_batches"]
        assert len(epoch.frozen_batches) == wanted["n_frozen"]
        assert epoch.per_rank == wanted["len_epoch_iter"]
        assert epoch.stand_in is not None
        assert_is(epoch.stand_in, wanted["dummy_batch"])
        assert len(epoch.ranks) == len(wanted["ranks"]) == 2
        for got, rank in zip(epoch.ranks, wanted["ranks"], strict=True):
            assert len(epoch.groups) == rank["iter_len"]
            batches = flat(rank["batches"])
            assert len(got) == len(batches)
            for batch, one in zip(got, batches, strict=True):
                assert batch["kind"] == (reference.STAND_IN if one is None else reference.BATCH)
                assert_is(batch, wanted["dummy_batch"] if one is None else one)
            assert epoch.state_at_end == rank["state_at_end"]


def test_examples_have_stand_ins_and_groups() -> None:
    """What the tests above compare is there."""
    batches = {
        name: [
            batch
            for epoch in load(f"outputs/{name}.json")["epochs"]
            for rank in epoch["ranks"]
            for batch in rank["batches"]
        ]
        for name in EXAMPLES
    }
    assert sum(batch is None for batch in batches["d_virtual_epochs"]) == 6
    assert all(len(batch) == 2 for batch in batches["b_nllb"])
    assert sum(len(flat(of)) for of in batches.values()) == 542


@pytest.mark.parametrize("name", EXAMPLES)
def test_dictionaries_of_examples(name: str) -> None:
    wanted = load(f"outputs/{name}.json")
    corpus = reference.Corpus(example(name))
    for dictionary in corpus.dictionaries.values():
        assert len(dictionary) == wanted["dict_len"]
        assert {symbol: dictionary[symbol] for symbol in wanted["symbols_tail"]} == wanted[
            "symbols_tail"
        ]


# --- Token files and dictionaries ---------------------------------------------------------------


TYPES = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32")


@pytest.mark.parametrize("name", TYPES)
def test_types_of_tokens(name: str) -> None:
    tokens = reference.TokenFile(DATA / "inputs" / "dtypes" / name)
    assert [tokens[i] for i in range(len(tokens))] == load("inputs/expected_tokens.json")["tiny"]
    assert tokens.kind == "mapped"


def test_legacy_file() -> None:
    tokens = reference.TokenFile(DATA / "inputs" / "legacy")
    wanted = load("inputs/expected_tokens.json")["legacy"]
    assert [tokens[i] for i in range(len(tokens))] == wanted
    assert tokens.sizes == [len(sentence) for sentence in wanted]
    assert tokens.kind == "legacy"


def test_layout_of_a_mapped_file(tmp_path: Path) -> None:
    """The bytes of four sentences, written out by hand."""
    index = (
        "4d4d49444944580000 0100000000000000 08 0400000000000000"
        "04000000 02000000 01000000 06000000"
        "0000000000000000 0800000000000000 0c00000000000000 0e00000000000000"
    )
    (tmp_path / "x.idx").write_bytes(bytes.fromhex(index))
    (tmp_path / "x.bin").write_bytes(
        bytes.fromhex("0400050006000200 07000200 0200 640065006600670068000200")
    )
    tokens = reference.TokenFile(tmp_path / "x")
    wanted = [[4, 5, 6, 2], [7, 2], [2], [100, 101, 102, 103, 104, 2]]
    assert [tokens[i] for i in range(len(tokens))] == wanted


def test_sentences_need_not_follow_each_other(tmp_path: Path) -> None:
    fairseq_data.write_mapped(tmp_path / "x", [[4, 2], [5, 6, 2]])
    index = bytearray((tmp_path / "x.idx").read_bytes())
    index[-16:] = struct.pack("<2q", 6, 0)
    (tmp_path / "x.idx").write_bytes(index)
    tokens = reference.TokenFile(tmp_path / "x")
    assert tokens[0] == [6, 2]
    assert tokens[1] == [4, 2, 5]
    index[-16:] = struct.pack("<2q", 8, 0)
    (tmp_path / "x.idx").write_bytes(index)
    with pytest.raises(Refused, match="outside"):
        reference.TokenFile(tmp_path / "x")[0]


@pytest.mark.parametrize("code", [0, 6, 7, 11])
def test_types_that_are_refused(tmp_path: Path, code: int) -> None:
    fairseq_data.write_mapped(tmp_path / "x", [[4, 2]])
    index = bytearray((tmp_path / "x.idx").read_bytes())
    index[17] = code
    (tmp_path / "x.idx").write_bytes(index)
    with pytest.raises(Refused, match="code"):
        reference.TokenFile(tmp_path / "x")


def dictionary_of(path: Path, text: str) -> reference.Dictionary:
    path.write_bytes(text.encode())
    return reference.Dictionary(path)


def test_dictionary(tmp_path: Path) -> None:
    read = dictionary_of(tmp_path / "d", "a 1\nb c 7\r\n\u2581d 0  \ra 2 #fairseq:overwrite")
    assert read.symbols == ["<s>", "<pad>", "</s>", "<unk>", "a", "b c", "\u2581d", "a"]
    assert (read["a"], read["b c"], read["nothing"]) == (7, 5, 3)
    assert read.add("b c") == 5
    assert read.add("new") == 8


@pytest.mark.parametrize("line", ["a 1", "<pad> 1", "", "b", "b one"])
def test_dictionary_refuses(tmp_path: Path, line: str) -> None:
    with pytest.raises(Refused, match="d:2"):
        dictionary_of(tmp_path / "d", f"a 1\n{line}\nc 1\n")


def test_symbols_behind_a_dictionary(tmp_path: Path) -> None:
    dictionary_of(tmp_path / "d", "a 1\n__eng__ 1\n")
    config = Config(
        lang_pairs=["tur-eng", "eng-fra"],
        langtoks_specs=["main", "mono_dae"],
        extra_symbols=["<mask>", "__dae__"],
        final_symbols=["__lm__"],
        add_data_source_prefix_tags=True,
    )
    assert reference.load_dictionary(config, tmp_path / "d").symbols[4:] == [
        *("a", "__eng__", "__fra__", "__tur__"),
        *("__eng_dae__", "__fra_dae__", "__tur_dae__", "<mask>", "__dae__"),
        *("<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>", "__lm__"),
    ]
    (tmp_path / "langs").write_text("tur\n\nfra\n")
    config = Config(lang_dict=str(tmp_path / "langs"), lang_tok_style="MBART")
    assert reference.load_dictionary(config, tmp_path / "d").symbols[6:] == [
        *("[tur]", "[fra]", "<mask>")
    ]


# --- Random numbers -----------------------------------------------------------------------------


def test_words_and_doubles() -> None:
    drawn = load("outputs/u_random.json")
    for case in drawn["u32"]:
        generator = LegacyRandom(case["seed"])
        assert [generator.u32() for _ in case["out"]] == case["out"]
    for case in drawn["double"]:
        generator = LegacyRandom(case["seed"])
        assert [generator.double().hex() for _ in case["out"]] == case["out"]
    assert drawn["hash"] == {
        "SampledMultiDataset": reference.SEED_OF_SET,
        "SampledMultiEpochDataset": reference.SEED_OF_EPOCH_SET,
    }


def test_draws() -> None:
    drawn = load("outputs/u_random.json")
    for case in drawn["permutation"]:
        assert LegacyRandom(case["seed"]).permutation(case["n"]) == case["out"]
    for case in drawn["choice_replace"]:
        got = LegacyRandom(case["seed"]).with_replacement(case["n"], case["k"])
        assert got == case["out"]
    for case in drawn["choice_p"]:
        shares = [float.fromhex(share) for share in case["p"]]
        assert LegacyRandom(case["seed"]).by_probability(shares, case["k"]) == case["out"]
    for case in drawn["randint"]:
        generator = LegacyRandom(case["seed"])
        assert [generator.bounded(case["high_inclusive"]) for _ in case["out"]] == case["out"]


SEEDS: list[int | list[int]] = [0, 1, 2**32 - 1, [5], [1944279108, 2, 3], list(range(1000))]


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_draws_are_numpys(seed: int | list[int]) -> None:
    """All kinds of draws in one stream, then the state that they leave."""
    ours, theirs = LegacyRandom(seed), np.random.RandomState(seed)
    for count in (0, 1, 2, 17, 700):
        assert ours.permutation(count) == theirs.permutation(count).tolist()
        lists = [[number] * (number % 3) for number in range(count)]
        shuffled = list(lists)
        ours.shuffle(lists)
        theirs.shuffle(shuffled)
        assert lists == shuffled
        assert ours.double() == theirs.random_sample()
    for largest in (0, 1, 6, 255, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**40 + 3):
        got = [ours.bounded(largest) for _ in range(20)]
        assert got == theirs.randint(0, largest + 1, 20, dtype=np.int64).tolist()
    assert ours.with_replacement(1, 3) == theirs.choice(1, 3).tolist()
    assert ours.with_replacement(300, 50) == theirs.choice(300, 50).tolist()
    assert ours.permutation(90)[:40] == theirs.choice(90, 40, replace=False).tolist()
    shares = [1 / 7, 2 / 7, 0.0, 4 / 7]
    assert ours.by_probability(shares, 60) == theirs.choice(4, 60, p=shares).tolist()
    _, words, place, _, _ = theirs.get_state()
    assert (ours.state, ours.at) == (words.tolist(), place)


@pytest.mark.parametrize("seed", [-1, 2**32, [], [2**32], [1, -1]], ids=str)
def test_seeds_that_are_refused(seed: int | list[int]) -> None:
    with pytest.raises(Refused, match="seed"):
        LegacyRandom(seed)
    with pytest.raises(ValueError):
        np.random.RandomState(seed)


def test_sum_is_numpys() -> None:
    draw = random.Random(3)
    for count in [*range(300), 1000, 1023, 4099]:
        values = [draw.random() ** 9 for _ in range(count)]
        assert reference.pairwise_sum(values) == float(np.sum(np.array(values)))


def test_ratios_and_counts() -> None:
    cases = load("outputs/u_random.json")["ratios"]
    assert len(cases) == 24
    for case in cases:
        ratios = reference.temperature_ratios(case["sizes"], case["temperature"])
        assert [ratio.hex() for ratio in ratios] == case["ratios"]
        total = reference.virtual_size(ratios, case["sizes"], None)
        assert total == case["virtual_size"]
        shares, counts = reference.truncated_counts(ratios, total)
        assert [share.hex() for share in shares] == case["normalized"]
        assert counts == case["truncated_counts"]
        assert total - sum(counts) == case["missing"]


def test_virtual_size_has_a_limit() -> None:
    assert reference.virtual_size([1.0, 1.0], [100, 1], None) == 151
    assert reference.virtual_size([1.0, 1.0], [100, 1], 7) == 7
    assert reference.virtual_size(None, [100, 1], 7) == 101
    with pytest.raises(Refused, match="weight"):
        reference.virtual_size([0.0, 1.0], [100, 1], None)


def test_a_direction_without_a_draw_uses_up_its_permutation() -> None:
    random_of = [LegacyRandom(4), LegacyRandom(4)]
    drawn = reference.draw_sentences([0.0, 1.0], [50, 20], 10, random_of[0])
    random_of[1].permutation(50)
    assert drawn == [[], random_of[1].permutation(20)[:10]]


# --- Order of rows ------------------------------------------------------------------------------

STD_SORT = r"""
#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>

// A line "N key ..." gives the order of the keys; "-N" gives N keys that make std::sort go as deep
// as it can, made while it runs, and then their order.
int main() {
  for (long count; std::cin >> count;) {
    std::vector<long> keys;
    if (count >= 0) {
      keys.resize(count);
      for (long& key : keys) std::cin >> key;
    } else {
      const long open = -count;
      std::vector<long> value(-count, open), order(-count);
      for (long i = 0; i < -count; ++i) order[i] = i;
      long closed = 0, candidate = 0;
      std::sort(order.begin(), order.end(), [&](long a, long b) {
        if (value[a] == open && value[b] == open) value[a == candidate ? a : b] = closed++;
        if (value[a] == open) candidate = a;
        else if (value[b] == open) candidate = b;
        return value[a] < value[b];
      });
      for (long one : value) keys.push_back(-one);
      for (long key : keys) std::cout << key << ' ';
      std::cout << '\n';
    }
    std::vector<std::pair<long, long>> pairs;
    for (long key : keys) pairs.emplace_back(key, static_cast<long>(pairs.size()));
    std::sort(pairs.begin(), pairs.end(),
              [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& pair : pairs) std::cout << pair.second << ' ';
    std::cout << '\n';
  }
}
"""


@pytest.fixture(scope="module")
def std_sort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program around std::sort."""
    work = tmp_path_factory.mktemp("std_sort")
    (work / "sort.cc").write_text(STD_SORT)
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    command = [*compiler, "-std=c++17", "-O1", str(work / "sort.cc"), "-o", str(work / "sort")]
    subprocess.run(command, check=True)
    return work / "sort"


def lines_of(program: Path, lines: Sequence[str]) -> list[list[int]]:
    done = subprocess.run(
        [program], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    return [[int(word) for word in line.split()] for line in done.stdout.split("\n")[:-1]]


def test_equal_keys() -> None:
    assert reference.descending_order([5] * 16) == list(range(16))
    wanted = [8, 16, 15, 14, 13, 12, 11, 10, 9, 0, 7, 6, 5, 4, 3, 2, 1]
    assert reference.descending_order([5] * 17) == wanted
    assert reference.descending_order([]) == []


def test_order_is_that_of_std_sort(std_sort: Path) -> None:
    draw = random.Random(11)
    cases = [[0] * count for count in range(70)]
    for _ in range(2500):
        count = draw.choice((draw.randint(1, 40), draw.randint(1, 300), draw.randint(1, 900)))
        different = draw.choice((1, 2, 3, 5, 20, 1000))
        keys = [draw.randint(1, different) for _ in range(count)]
        shape = draw.randrange(4)
        if shape == 1:
            keys.sort()
        elif shape == 2:
            keys.sort(reverse=True)
        elif shape == 3:
            keys.sort()
            keys = keys[::2] + keys[1::2][::-1]
        cases.append(keys)
    wanted = lines_of(std_sort, [" ".join(map(str, [len(keys), *keys])) for keys in cases])
    assert len(wanted) == len(cases)
    for keys, order in zip(cases, wanted, strict=True):
        assert reference.descending_order(keys) == order
    stable = [sorted(range(len(keys)), key=lambda i: -keys[i]) for keys in cases]  # noqa: B023
    assert sum(order != other for order, other in zip(wanted, stable, strict=True)) > 600


def test_order_where_std_sort_makes_a_heap(std_sort: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heaps: list[int] = []
    heap_sort = reference._heap_sort

    def counted(v: Any, first: int, last: int) -> None:
        heaps.append(last - first)
        heap_sort(v, first, last)

    monkeypatch.setattr(reference, "_heap_sort", counted)
    counts = (100, 257, 500, 1000, 1001, 3000)
    lines = lines_of(std_sort, [str(-count) for count in counts])
    for keys, order in zip(lines[::2], lines[1::2], strict=True):
        assert reference.descending_order(keys) == order
        halves = [key // 2 for key in keys]  # with equal ones among them
        wanted = lines_of(std_sort, [" ".join(map(str, [len(halves), *halves]))])
        assert [reference.descending_order(halves)] == wanted
    assert any(size % 2 == 0 for size in heaps) and any(size % 2 == 1 for size in heaps)


# --- Batches ------------------------------------------------------------------------------------


def test_batch_by_size() -> None:
    for case in load("outputs/u_batch_by_size.json")["cases"]:
        limits: list[Any] = [
            None if case[name] < 0 else case[name] for name in ("max_tokens", "max_sentences")
        ]
        got = reference.batch_lengths(case["num_tokens"], limits[0], limits[1], case["mult"])
        assert got == case["batch_lengths"]


@pytest.mark.parametrize(
    ("costs", "max_tokens", "multiple", "lengths"),
    [
        ("13 3 1 2 2 18 12 15 16 3 20 13 4 3 9 11 19", None, 8, "16 1"),
        (
            "1 2 20 1 2 2 20 20 1 1 1 1 20 2 20 20 1 2 2 2 1 2 20 20 1 2 1 2 1 1",
            20,
            16,
            "2 1 3 1 1 4 1 1 1 1 6 1 1 6",
        ),
        ("", 20, 8, ""),
    ],
)
def test_cuts(costs: str, max_tokens: int | None, multiple: int, lengths: str) -> None:
    got = reference.batch_lengths([int(cost) for cost in costs.split()], max_tokens, None, multiple)
    assert got == [int(length) for length in lengths.split()]


def test_cuts_keep_the_limits() -> None:
    draw = random.Random(5)
    for _ in range(500):
        costs = [draw.randint(1, 20) for _ in range(draw.randint(0, 80))]
        max_tokens = draw.choice((None, 20, 45, 200))
        batch_size = draw.choice((None, 1, 7, 24))
        multiple = draw.choice((1, 4, 8))
        lengths = reference.batch_lengths(costs, max_tokens, batch_size, multiple)
        assert sum(lengths) == len(costs)
        for length in lengths:
            batch, costs = costs[:length], costs[length:]
            assert 0 < length and (length < multiple or length % multiple == 0)
            assert max_tokens is None or length * max(batch) <= max_tokens
            assert batch_size is None or length <= batch_size
    with pytest.raises(Refused, match="longer"):
        reference.batch_lengths([3, 21], 20, None, 8)


# --- Epochs -------------------------------------------------------------------------------------


def content(batches: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    return [(batch["kind"], reference.digest(batch)) for batch in batches]


def shards(run: Reference, epochs: Sequence[int], direction: int = 0) -> list[int]:
    """Shards, from 1, that a direction is read from in these epochs."""
    return [run.epoch(e).directions[direction].shard + 1 for e in epochs]


def test_schedule_of_shards_with_virtual_epochs() -> None:
    run = Reference(example("d_virtual_epochs"))
    assert shards(run, range(1, 11)) == [1, 1, 1, 1, 2, 2, 2, 1, 1, 1]
    assert shards(run, range(1, 8), direction=1) == [1] * 7
    starts = [epoch.data.start for epoch in run.epochs(10) if epoch.data is not None]
    assert starts == [0, 250, 500, 0, 250, 500, 0, 250, 500, 0]
    once = Reference(example("d_virtual_epochs", virtual_data_size=200, virtual_epoch_size=200))
    assert shards(once, range(1, 9)) == [1, 1, 2, 2, 1, 1, 2, 2]


def test_a_single_directory_is_never_loaded_again() -> None:
    config = example("d_virtual_epochs")
    config.directory = config.directory[:1]
    run = Reference(config)
    assert shards(run, range(1, 9)) == [1] * 8
    data = [epoch.data for epoch in run.epochs(8)]
    drawn = [of.epoch_drawn for of in data if of is not None]
    assert drawn == [1, 1, 1, 4, 4, 4, 7, 7]


def test_temperature_by_all_shards_knows_only_what_it_has_loaded() -> None:
    run = Reference(example("b_nllb", use_local_shard_size=False))
    wanted = [
        # Direction 0 has 300 and 220 sentences, 1 has one shard with 180, 2 has 500 and 460.
        reference.temperature_ratios([600, 180, 1000], 1.0),
        reference.temperature_ratios([520, 180, 960], 1.0),
        reference.temperature_ratios([520, 180, 960], 1.0),
    ]
    assert [epoch.data.ratios for epoch in run.epochs(3) if epoch.data is not None] == wanted
    resumed = run.resumed(2, 0).epoch(2).data
    assert resumed is not None
    assert resumed.ratios == reference.temperature_ratios([440, 180, 920], 1.0)


@pytest.mark.parametrize("name", ["a_concat", "b_nllb", "f_weights"])
@pytest.mark.parametrize("position", [0, 2, 14])
def test_resume_goes_on(name: str, position: int) -> None:
    run = Reference(example(name))
    for number in (1, 2):
        resumed = run.resumed(number, position)
        for got, whole in zip(resumed.epoch(number).ranks, run.epoch(number).ranks, strict=True):
            assert content(got) == content(whole[position:])
        assert resumed.epoch(number).state_at_end == run.epoch(number).state_at_end
        for got, whole in zip(resumed.epoch(3).ranks, run.epoch(3).ranks, strict=True):
            assert content(got) == content(whole)


def test_resume_of_virtual_epochs_forgets() -> None:
    run = Reference(example("d_virtual_epochs"))
    assert shards(run, [4]) == [1]
    assert shards(run.resumed(4, 0), [4]) == [2]
    within = run.resumed(2, 0)
    assert shards(within, [2]) == shards(run, [2])
    assert within.epoch(2).data is not None and run.epoch(2).data is not None
    assert within.epoch(2).data.start == run.epoch(2).data.start == 250  # type: ignore[union-attr]
    assert within.epoch(2).rows != run.epoch(2).rows
    unknown = Reference(example("d_virtual_epochs", virtual_data_size=None))
    assert shards(unknown.resumed(2, 0), [2]) == [2]
    assert shards(unknown, [2]) == [1]


def test_resume_with_other_ranks_keeps_the_position_of_a_rank() -> None:
    run = Reference(example("f_weights"))
    whole = run.epoch(1)
    wider = run.resumed(1, 5, world_size=4).epoch(1)
    assert content(wider.stream()[:4]) == content([whole.batch(i) for i in range(20, 24)])
    assert len(wider.ranks[0]) == 15 - 5


def test_resume_behind_the_end_is_refused() -> None:
    run = Reference(example("f_weights"))
    assert len(run.resumed(1, 28).epoch(1).ranks[0]) == 1
    with pytest.raises(Refused, match="only 29"):
        run.resumed(1, 29).epoch(1)
    with pytest.raises(Refused, match="multiple"):
        Reference(example("f_weights", start_batch=3))
    with pytest.raises(Refused, match="before"):
        run.resumed(3, 0).epoch(2)


def test_the_rest_of_an_epoch_for_other_ranks() -> None:
    epoch = Reference(example("d_virtual_epochs")).epoch(4)
    wider = Reference(example("d_virtual_epochs", world_size=4)).epoch(4)
    assert content(epoch.rest(12).stream()) == content(epoch.stream()[12:])
    assert content(epoch.rest(12, 4).stream()) == content(wider.stream()[12:])
    with pytest.raises(Refused, match="multiple"):
        epoch.rest(6, 4)


def test_state_within_an_epoch() -> None:
    epoch = Reference(example("a_concat", curriculum=1)).resumed(1, 4).epoch(1)
    wanted = {"version": 2, "epoch": 1, "iterations_in_epoch": 10, "shuffle": False}
    assert epoch.state_after(6) == wanted


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ({}, 70),  # of 71 batches, 36 of a rank
        ({"epoch_remainder_batch": True}, 72),
        ({"world_size": 1}, 70),
        ({"world_size": 80}, 0),
        ({"update_freq": [4]}, 2 * 32),
        ({"update_freq": [4], "epoch_remainder_batch": True}, 72),
        ({"compat": "MAIN", "update_freq": [4]}, 70),  # the last batch has 3 sentences
        ({"compat": "MAIN", "required_batch_size_multiple": 1}, None),
        ({"world_size": 3, "stand_in_first": True}, 3 * 24),
    ],
    ids=str,
)
def test_what_is_used_of_an_epoch(changes: dict[str, Any], used: int | None) -> None:
    run = Reference(example("a_concat", **changes))
    epoch = run.epoch(1)
    stream = epoch.stream()
    world = run.config.world_size
    assert len(stream) == (-(-len(epoch.shuffled) // world) * world if used is None else used)
    for number, batch in enumerate(stream):
        if run.config.stand_in_first:
            number -= world
        kind = reference.BATCH
        if number >= len(epoch.shuffled):
            kind = reference.STAND_IN
        elif number < 0:
            kind = reference.FIRST_STAND_IN
        assert batch["kind"] == kind
        assert batch["epoch"] == 1
        if kind == reference.BATCH:
            assert batch["batch"] == number
            indices = [epoch.rows[x] for x in epoch.shuffled[number]]
        else:
            assert batch["batch"] == len(epoch.shuffled)
            indices = [epoch.rows[x] for x in epoch.frozen_batches[0]]
        got = zip(batch["direction"], batch["id"], strict=True)
        assert sorted(got) == sorted(indices)


def test_update_frequency_of_each_epoch() -> None:
    run = Reference(example("a_concat", update_freq=[4, 1, 8]))
    assert [epoch.update_freq for epoch in run.epochs(4)] == [4, 1, 8, 8]
    # 36 batches of a rank, then 32, then the first shard again.
    assert [len(epoch.taken) for epoch in run.epochs(3)] == [32, 31, 32]


def test_main_drops_the_longest() -> None:
    """The last batch before the shuffle, if its size is no multiple."""
    nllb = Reference(example("a_concat")).epoch(1)
    main = Reference(example("a_concat", compat="MAIN")).epoch(1)
    assert len(nllb.frozen_batches[-1]) % 8 != 0
    assert main.frozen_batches == nllb.frozen_batches[:-1]
    changes = {"max_tokens": None, "required_batch_size_multiple": 2000}
    nllb = Reference(example("a_concat", **changes)).epoch(1)
    assert [len(batch) for batch in nllb.frozen_batches] == [838]  # two are too long
    main = Reference(example("a_concat", compat="MAIN", **changes)).epoch(1)
    assert main.stand_in is None
    assert main.ranks == [[], []]


def test_nothing_within_the_limits() -> None:
    changes = {"max_source_positions": 1}
    epoch = Reference(example("a_concat", **changes)).epoch(1)
    assert (epoch.kept, epoch.ranks, epoch.stand_in) == ([], [[], []], None)
    with pytest.raises(Refused, match="limits"):
        Reference(example("a_concat", compat="MAIN", **changes)).epoch(1)


def test_limits() -> None:
    epoch = Reference(example("a_concat", max_source_positions=20, max_target_positions=25)).epoch(
        1
    )
    kept = [x for x in epoch.order if epoch.sizes[x][0] <= 20 and epoch.sizes[x][1] <= 25]
    assert epoch.kept == kept
    assert 0 < len(kept) < len(epoch.order)
    epoch = Reference(example("a_concat", max_tokens=20)).epoch(1)
    assert epoch.kept == [x for x in epoch.order if max(epoch.sizes[x]) <= 20]


def test_order() -> None:
    epoch = Reference(example("a_concat")).epoch(1)
    place = {x: i for i, x in enumerate(np.random.RandomState(1).permutation(840).tolist())}
    wanted = sorted(range(840), key=lambda x: (*epoch.sizes[x], place[x]))
    assert epoch.order == wanted
    shuffled = list(epoch.frozen_batches)
    np.random.RandomState(2).shuffle(shuffled)
    assert epoch.shuffled == shuffled


def test_order_with_the_epoch_in_its_seed() -> None:
    changes = {"update_ordered_indices_seed": True, "seed": 5, "curriculum": 1}
    first, second = Reference(example("f_weights", **changes)).epochs(2)
    assert first.shuffled == first.frozen_batches
    place = {x: i for i, x in enumerate(np.random.RandomState(7).permutation(1000).tolist())}
    assert second.order == sorted(range(1000), key=lambda x: (*second.sizes[x], place[x]))
    shuffled = list(second.frozen_batches)
    np.random.RandomState(9).shuffle(shuffled)
    assert second.shuffled == shuffled


@pytest.mark.parametrize("directories, shuffled", [(1, [False, False]), (2, [False, True])])
def test_the_iterator_of_a_data_set_keeps_whether_it_shuffles(
    directories: int, shuffled: list[bool]
) -> None:
    """With RoundRobin MAIN has one for each data set, and made this one within the curriculum."""
    whole = example("a_concat", compat="MAIN", sampling_method="ROUND_ROBIN", curriculum=1)
    config = dataclasses.replace(whole, directory=whole.directory[:directories])
    epochs = Reference(config).epochs(2)
    assert [epoch.shuffled != epoch.frozen_batches for epoch in epochs] == shuffled
    # Whoever resumes in the second epoch makes another one.
    later = Reference(config).resumed(2, 0).epoch(2)
    assert later.shuffled != later.frozen_batches


def test_one_dataset_per_batch() -> None:
    epoch = Reference(example("a_concat", one_dataset_per_batch=True)).epoch(1)
    generator = np.random.RandomState(1)
    wanted = []
    for first, last in ((0, 300), (300, 420), (420, 840)):
        order = np.arange(first, last)
        generator.shuffle(order)
        place = {x: i for i, x in enumerate(order.tolist())}
        wanted += sorted(place, key=lambda x: (*epoch.sizes[x], place[x]))  # noqa: B023
    assert epoch.order == wanted
    numbers = [{epoch.rows[x][0] for x in batch} for batch in epoch.frozen_batches]
    assert all(len(of) == 1 for of in numbers)
    assert sorted(numbers, key=min) == numbers
    with pytest.raises(Refused, match="NLLB"):
        Reference(example("a_concat", one_dataset_per_batch=True, compat="MAIN"))


def test_main_draws_the_same() -> None:
    """Where the variants do not differ: everything up to the last batch."""
    for name in ("a_concat", "d_virtual_epochs", "f_weights"):
        nllb, main = (
            Reference(example(name, compat=compat)).epoch(2) for compat in ("NLLB", "MAIN")
        )
        assert main.rows == nllb.rows
        assert main.kept == nllb.kept
        assert main.frozen_batches[:10] == nllb.frozen_batches[:10]


# --- Validation ---------------------------------------------------------------------------------


def test_validation_of_several_directions() -> None:
    changes = {"validation": True, "subsets": ["valid"], "curriculum": 0}
    run = Reference(example("a_concat", update_ordered_indices_seed=True, **changes))
    first, second = run.epochs(2)
    assert first.rows == [(d, i) for d in range(3) for i in range(len(first.directions[d]))]
    assert first.order == sorted(range(len(first.rows)), key=lambda x: (*first.sizes[x], x))
    assert first.shuffled == first.frozen_batches == second.shuffled
    assert shards(run, [1, 2, 3]) == [1, 1, 1]
    assert len(first.stream()) == len(first.shuffled) + len(first.shuffled) % 2
    assert sum(batch["nsentences"] for batch in first.stream() if batch["kind"] == 0) == 105


def test_validation_of_one_direction() -> None:
    changes = {"validation": True, "subsets": ["valid"], "lang_pairs": ["eng_Latn-tur_Latn"]}
    epoch = Reference(example("a_concat", seed=3, **changes)).epoch(2)
    assert epoch.order == sorted(range(40), key=lambda x: (*epoch.sizes[x], x))
    changes["single_direction"] = True
    epoch = Reference(example("a_concat", seed=3, **changes)).epoch(2)
    place = {x: i for i, x in enumerate(np.random.RandomState(3).permutation(40).tolist())}
    assert epoch.order == sorted(range(40), key=lambda x: (*epoch.sizes[x], place[x]))
    with pytest.raises(Refused, match="longer"):
        Reference(example("a_concat", max_tokens=8, **changes)).epoch(1)


# --- Sentences and batches ----------------------------------------------------------------------


def write_pair(
    directory: Path, pair: str, sides: Sequence[Sequence[Sequence[int]]], fold: str = "train"
) -> None:
    for language, sentences in zip(pair.split("-"), sides, strict=True):
        fairseq_data.write_mapped(directory / f"{fold}.{pair}.{language}", sentences)
        fairseq_data.write_dictionary(directory / f"dict.{language}.txt", 10)


def small(directory: Path, **changes: Any) -> Config:
    """One direction with both tokens: ids 14 (a) and 15 (b)."""
    values: dict[str, Any] = {
        "compat": "NLLB",
        "directory": [str(directory)],
        "lang_pairs": ["a-b"],
        "batch_size": 64,
    }
    values |= {"encoder_langtok": "SRC", "decoder_langtok": True, "epoch_remainder_batch": True}
    return Config(**(values | changes))


def only_batch(config: Config) -> dict[str, Any]:
    (batch,) = Reference(config).epoch(1).stream()
    return batch


SIDES = ([[4, 2], [5, 6, 7, 2], [8, 1, 2]], [[4, 5, 2], [6, 2], [7, 7, 7]])


def test_a_batch(tmp_path: Path) -> None:
    write_pair(tmp_path, "a-b", SIDES)
    batch = only_batch(small(tmp_path))
    assert batch["id"] == [1, 0, 2]
    assert batch["src_tokens"] == [[14, 5, 6, 7, 2], [1, 1, 14, 4, 2], [1, 14, 8, 1, 2]]
    assert batch["src_lengths"] == [5, 3, 3]  # the id of padding counts for nothing
    assert batch["target"] == [[15, 6, 2, 1], [15, 4, 5, 2], [15, 7, 7, 7]]
    assert batch["prev_output_tokens"] == [[2, 15, 6, 1], [2, 15, 4, 5], [2, 15, 7, 7]]
    assert (batch["ntokens"], batch["nsentences"]) == (11, 3)
    assert "src_lang_id" not in batch


def test_padding(tmp_path: Path) -> None:
    write_pair(tmp_path, "a-b", SIDES)
    config = small(tmp_path, left_pad_source=False, left_pad_target=True, pad_to_multiple=3)
    batch = only_batch(config)
    assert batch["src_tokens"][1] == [14, 4, 2, 1, 1, 1]
    assert batch["target"][0] == [1, 1, 1, 15, 6, 2]
    assert batch["prev_output_tokens"][0] == [1, 1, 1, 2, 15, 6]
    sizes = {"max_source_positions": 7, "max_target_positions": 9}
    batch = only_batch(small(tmp_path, pad_to_fixed_length=True, **sizes))
    assert [len(batch[name][0]) for name in ("src_tokens", "target")] == [7, 9]


def test_tokens_of_languages(tmp_path: Path) -> None:
    write_pair(tmp_path, "a-b", ([[4, 2]], [[5, 2]]))
    toks = [reference.LangToks("main", "src", None), reference.LangToks("other", "src", "tgt")]
    for changes, source, target in (
        ({"encoder_langtok": "TGT"}, [15, 4, 2], [15, 5, 2]),
        ({"encoder_langtok": "NO_LANGTOK", "decoder_langtok": False}, [4, 2], [5, 2]),
        ({"langtoks": toks}, [14, 4, 2], [5, 2]),
        ({"langs": ["b", "a"]}, [15, 4, 2], [14, 5, 2]),
    ):
        batch = only_batch(small(tmp_path, **changes))
        assert (batch["src_tokens"], batch["target"]) == ([source], [target])
    with pytest.raises(Refused, match="__b__"):
        only_batch(small(tmp_path, langs=["a"]))


def test_truncation(tmp_path: Path) -> None:
    sources = [[4, 2], [5, 6, 7, 2], [2, 4, 5, 6, 7, 2, 2], [8, 9, 2]]
    write_pair(tmp_path, "a-b", (sources, [[4, 2]] * 4))
    without = {"encoder_langtok": "NO_LANGTOK"}
    run = Reference(small(tmp_path, truncate_source=4, max_source_positions=4, **without))
    direction = run.epoch(1).directions[0]
    cut = [direction.sentence(i)[0] for i in range(4)]
    assert cut == [[4, 2], [5, 6, 7, 2], [4, 5, 6, 2], [8, 9, 2]]
    assert [direction.sizes(i)[0] for i in range(4)] == [3, 4, 4, 4]
    assert len(run.epoch(1).kept) == 4
    # With a token before it what was cut is left out, and what just fits too.
    run = Reference(small(tmp_path, truncate_source=4, max_source_positions=4))
    assert run.epoch(1).kept == [0]


def test_tags_and_folds(tmp_path: Path) -> None:
    write_pair(tmp_path, "a-b", ([[4, 2], [5, 2]], [[4, 2], [4, 2]]))
    write_pair(tmp_path, "b-a", ([[6, 2]], [[7, 2]]), "train_mining")
    write_pair(tmp_path, "b-a", ([[8, 2]], [[8, 2]]), "train_mmt_bt")  # is not turned round
    write_pair(tmp_path, "a-b", ([[9, 2]], [[9, 2]]), "train_smt_bt")
    config = small(
        tmp_path,
        subsets=["train", "train_mining", "train_mmt_bt", "train_smt_bt"],
        add_data_source_prefix_tags=True,
        upsample_primary=2,
    )
    direction = Reference(config).epoch(1).directions[0]
    assert [direction.sentence(i) for i in range(len(direction))] == [
        *([([14, 4, 2], [15, 4, 2]), ([14, 5, 2], [15, 4, 2])] * 2),
        ([14, 16, 7, 2], [15, 6, 2]),
        ([14, 18, 9, 2], [15, 9, 2]),
    ]
    assert direction.sizes(4) == (4, 3)
    alone = Reference(small(tmp_path, upsample_primary=2)).epoch(1).directions[0]
    assert len(alone) == 2
    back = Reference(small(tmp_path, subsets=["train", "train_mining"], lang_pairs=["b-a"]))
    turned = back.epoch(1).directions[0]
    assert [turned.sentence(i)[0][1:] for i in range(3)] == [[4, 2], [4, 2], [6, 2]]


def test_combined_subsets_of_main(tmp_path: Path) -> None:
    for fold, word in (("train", 4), ("train1", 5), ("train2", 6), ("train4", 7)):
        write_pair(tmp_path, "a-b", ([[word, 2]], [[word, 2]]), fold)
    config = small(tmp_path, compat="MAIN", combine=True)
    direction = Reference(config).epoch(1).directions[0]
    assert [direction.sentence(i)[0][1] for i in range(len(direction))] == [4, 5, 6]
    with pytest.raises(Refused, match="MAIN"):
        Reference(small(tmp_path, combine=True))


def test_missing_directions(tmp_path: Path) -> None:
    write_pair(tmp_path, "a-b", ([[4, 2]], [[4, 2]]))
    config = small(tmp_path, lang_pairs=["a-c", "a-b"], langs=["a", "b"])
    assert Reference(config).keys == ["main:a-b"]
    for changes in ({"compat": "MAIN"}, {"allow_missing": False}):
        with pytest.raises(Refused, match="main:a-c"):
            Reference(small(tmp_path, lang_pairs=["a-c", "a-b"], langs=["a", "b"], **changes))


def test_extra_data(tmp_path: Path) -> None:
    write_pair(tmp_path / "x", "a-b", ([[4, 2]], [[4, 2]]))
    write_pair(tmp_path / "y", "b-a", ([[5, 2]], [[6, 2]]))
    config = small(
        tmp_path / "x",
        langtoks_specs=["main", "mined"],
        langtoks=[reference.LangToks("mined", "src_mined", "tgt")],
        extra_data=[
            reference.ExtraData("mined", [str(tmp_path / "y")], ["b-a"]),
            reference.ExtraData("plain", [str(tmp_path / "y")], ["a-b"]),
        ],
    )
    run = Reference(config)
    assert run.keys == ["main:a-b", "mined:b-a", "plain:a-b"]
    sentences = [direction.sentence(0) for direction in run.epoch(1).directions]
    # __a__, __b__, __a_mined__, __b_mined__ are 14 to 17.
    assert sentences == [([14, 4, 2], [15, 4, 2]), ([17, 5, 2], [14, 6, 2]), ([6, 2], [5, 2])]
    config.ignore_main_data = True
    assert Reference(config).keys == ["mined:b-a", "plain:a-b"]


def test_language_ids_are_those_of_the_first_direction(tmp_path: Path) -> None:
    write_pair(tmp_path, "a-b", ([[4, 2]], [[4, 2]]))
    changes = {"lang_pairs": ["b-a", "a-b"], "enable_lang_ids": True}
    batch = only_batch(small(tmp_path, **changes))
    assert (batch["src_lang_id"], batch["tgt_lang_id"]) == ([[2], [2]], [[1], [1]])
    batch = only_batch(small(tmp_path, lang_tok_replacing_bos_eos=True, **changes))
    assert sorted(
        zip(batch["direction"], batch["src_lang_id"], batch["tgt_lang_id"], strict=True)
    ) == [
        (0, [2], [1]),
        (1, [1], [2]),
    ]


def test_tokens_in_the_places_of_eos(tmp_path: Path) -> None:
    write_pair(tmp_path, "a-b", ([[4, 5, 2], [6, 2]], [[7, 2], [8, 9, 10, 2]]))
    config = small(tmp_path, lang_tok_replacing_bos_eos=True, lang_pairs=["b-a", "a-b"])
    run = Reference(config)
    (batch,) = run.epoch(1).stream()
    assert sorted(run.epoch(1).sizes) == [(2, 3), (2, 4), (3, 2), (4, 2)]
    rows = list(zip(batch["direction"], batch["id"], strict=True))
    assert rows == [(0, 1), (1, 0), (0, 0), (1, 1)]
    assert batch["src_lengths"] == [4, 3, 2, 2]
    assert batch["src_tokens"] == [[8, 9, 10, 15], [1, 4, 5, 14], [1, 1, 7, 15], [1, 1, 6, 14]]
    assert batch["prev_output_tokens"] == [
        [14, 6, 1, 1],
        [15, 7, 1, 1],
        [14, 4, 5, 1],
        [15, 8, 9, 10],
    ]
    assert batch["target"] == [[6, 2, 1, 1], [7, 2, 1, 1], [4, 5, 2, 1], [8, 9, 10, 2]]
    assert batch["ntokens"] == 11
    config.left_pad_source = False
    assert only_batch(config)["src_tokens"][2] == [7, 15, 1, 1]


def test_rows_are_ordered_twice_with_tokens_in_the_places_of_eos(tmp_path: Path) -> None:
    """Once among those of their direction, and once all; both times not stably."""
    many = [[4 + i % 10] * (i % 3) + [2] for i in range(40)]
    write_pair(tmp_path, "a-b", (many, [[5, 2]] * 40))
    write_pair(tmp_path, "a-c", (many[:25], [[6, 2]] * 25))
    pairs = {"lang_pairs": ["a-b", "a-c"], "batch_size": 100, "required_batch_size_multiple": 1}
    run = Reference(small(tmp_path, lang_tok_replacing_bos_eos=True, **pairs))
    (batch,) = run.epoch(1).stream()
    rows = [run.epoch(1).rows[x] for x in run.epoch(1).frozen_batches[0]]
    parts = []
    for number in (0, 1):
        part = [row for row in rows if row[0] == number]
        parts += [part[i] for i in reference.descending_order([len(many[i]) for _, i in part])]
    wanted = [parts[i] for i in reference.descending_order([len(many[i]) for _, i in parts])]
    assert list(zip(batch["direction"], batch["id"], strict=True)) == wanted
    assert wanted != sorted(parts, key=lambda row: -len(many[row[1]]))


# --- Random corpora -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_random_corpora_in_a_loop(tmp_path: Path, seed: int) -> None:
    """Every sentence comes once in an epoch of a world of one, with its own words."""
    corpus = fairseq_data.random_corpus(
        tmp_path,
        seed,
        directions=6,
        folds=("train", "train_mining", "train_mmt_bt"),
        kinds=("mapped", "megatron", "legacy"),
    )
    config = Config(
        compat="NLLB",
        directory=corpus.directories,
        lang_pairs=corpus.lang_pairs,
        subsets=corpus.folds,
        max_tokens=100,
        required_batch_size_multiple=4,
        epoch_remainder_batch=True,
    )
    for epoch in Reference(config).epochs(4):
        wanted: Counter[tuple[Any, ...]] = Counter()
        for number, lang_pair in enumerate(corpus.lang_pairs):
            assert epoch.directions[number].shards == corpus.shards_of(lang_pair)
            shard = (epoch.number - 1) % corpus.shards_of(lang_pair)
            pair = corpus.pair_of(lang_pair)
            for fold in corpus.folds:
                sides = corpus.sentences.get((pair, fold, shard), ([], []))
                if pair != lang_pair:
                    sides = ([], []) if fold.endswith("bt") else (sides[1], sides[0])
                for source, target in zip(*sides, strict=True):
                    wanted[number, tuple(source), tuple(target)] += 1
        got = Counter(
            (direction, tuple(source[-length:]), tuple(token for token in target if token != 1))
            for batch in epoch.stream()
            for direction, source, length, target in zip(
                *(batch[name] for name in ("direction", "src_tokens", "src_lengths", "target")),
                strict=True,
            )
        )
        assert got == wanted
        for batch in epoch.stream():
            assert len(batch["id"]) * len(batch["src_tokens"][0]) <= 100
            assert len(batch["id"]) * len(batch["target"][0]) <= 100


def test_random_corpora_have_the_hard_cases(tmp_path: Path) -> None:
    corpus = fairseq_data.random_corpus(tmp_path / "x", 3, directions=8, shards=3)
    assert len({corpus.shards_of(pair) for pair in corpus.lang_pairs}) > 1
    assert [corpus.pair_of(pair) == pair for pair in corpus.lang_pairs].count(False) == 3
    train = {key: made for key, made in corpus.sentences.items() if key[1] == "train"}
    counts = [len(sources) for sources, _ in train.values()]
    assert 0 in counts and 1 in counts and max(counts) > 60
    same = fairseq_data.random_corpus(tmp_path / "y", 3, directions=8, shards=3)
    files = [sorted(p.relative_to(tmp_path / n) for p in (tmp_path / n).rglob("*.*")) for n in "xy"]
    assert files[0] == files[1]
    assert all(
        (tmp_path / "x" / f).read_bytes() == (tmp_path / "y" / f).read_bytes() for f in files[0]
    )
    assert same.sentences == corpus.sentences
    assert fairseq_data.random_corpus(tmp_path / "z", 4).sentences != corpus.sentences


@pytest.mark.parametrize("kind", ["mapped", "megatron", "legacy"])
@pytest.mark.parametrize("code", fairseq_data.TOKEN_TYPES)
def test_written_files_are_read(tmp_path: Path, kind: str, code: int) -> None:
    sentences = [[4, 120, 2], [], [2], [5, 6, 7, 2]]
    fairseq_data.WRITERS[kind](tmp_path / "x", sentences, code)
    tokens = reference.TokenFile(tmp_path / "x")
    assert (tokens.kind, tokens.code) == (kind, code)
    assert [tokens[i] for i in range(len(tokens))] == sentences
    assert tokens.documents == ([0, 4] if kind == "megatron" else [])


# --- Configurations -----------------------------------------------------------------------------


def test_text_of_a_configuration() -> None:
    config = Config(
        compat="NLLB",
        directory=["/x/a b", '/x/"c"'],
        lang_pairs=["a-b"],
        encoder_langtok="SRC",
        langtoks=[reference.LangToks("mined", "src")],
        extra_data=[reference.ExtraData("mined", ["/y", "/z"], ["a-b"])],
        allow_missing=False,
        sampling_weights={"a-b": 0.5},
        seed=0,
        update_freq=[1, 2],
        validation=True,
        left_pad_source=False,
    )
    wanted = r"""
stages {
  name: "bitext"
  bitext_source {
    compat: NLLB
    directory: "/x/a b"
    directory: "/x/\"c\""
    lang_pairs: "a-b"
    encoder_langtok: SRC
    langtoks { category: "mined" source_spec: "src" }
    extra_data { category: "mined" directory: "/y" directory: "/z" lang_pairs: "a-b" }
    allow_missing: false
  }
}
stages {
  name: "plans"
  epoch_planner {
    input: "bitext"
    compat: NLLB
    sampling_weights { key: "a-b" weight: 0.5 }
    seed: 0
    update_freq: 1
    update_freq: 2
    validation: true
    queue_capacity: 4
  }
}
stages {
  name: "batches"
  bitext_collator {
    input: "plans"
    left_pad_source: false
  }
}
"""
    assert reference.to_textproto(config, planner="queue_capacity: 4") == wanted.lstrip()


def test_configuration_has_the_fields_of_the_stages() -> None:
    """Names and defaults are those of proto/stages/bitext.proto; queues are left to the feed."""
    lines = (TESTS.parent / "proto" / "stages" / "bitext.proto").read_text().split("\n")
    left = {"input", "queue_capacity", "queue_bytes", "overflow_behavior", "skip_limit"}
    values = vars(Config())
    for stage, message in (
        ("source", "BitextSourceConfig"),
        ("planner", "EpochPlannerConfig"),
        ("collator", "BitextCollatorConfig"),
    ):
        at = lines.index(f"message {message} {{")
        body = [line[2:] for line in lines[at + 1 : lines.index("}", at)]]
        declared: dict[str, Any] = {}
        for line in body:
            words = line.split() if line[:1].strip() else []  # not those of inner messages
            if words and words[0] == "repeated":
                declared[words[2]] = []
            elif words and words[0] == "optional":
                default = re.search(r"default = ([^],]+)", line)
                declared[words[2]] = None if default is None else default[1]
        own = {
            entry.name for entry in dataclasses.fields(Config) if stage in entry.metadata["stages"]
        }
        assert own == set(declared) - left, message
        for name in own - {"sampling_weights"}:
            wanted = declared[name]
            if wanted in ("true", "false"):
                assert values[name] is (wanted == "true"), name
            elif wanted is None or wanted == []:
                assert values[name] == wanted, name
            else:
                assert str(values[name]) == wanted, name
