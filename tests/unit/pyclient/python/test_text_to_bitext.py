"""From text to token files: layout byte by byte, dictionaries, names, shards, what is refused."""

from __future__ import annotations

import gzip
import itertools
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import sentencepiece

TESTS = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TESTS.parent / "scripts"))

import text_to_bitext  # noqa: E402

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
WIDTHS = {8: "H", 9: "I", 5: "q"}

ENGLISH = [
    f"{subject} {verb} {thing}."
    for subject, verb, thing in itertools.product(
        ("The dog", "A cat", "My brother", "The teacher"),
        ("sees", "eats", "wants", "paints", "loses"),
        ("an apple", "the bread", "a house", "his book", "the river", "a stone"),
    )
]
GERMAN = [
    f"{subject} {verb} {thing}."
    for subject, verb, thing in itertools.product(
        ("Der Hund", "Eine Katze", "Mein Bruder", "Die Lehrerin"),
        ("sieht", "isst", "will", "malt", "verliert"),
        ("einen Apfel", "das Brot", "ein Haus", "sein Buch", "den Fluss", "einen Stein"),
    )
]


def write_text(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    """The arguments for 120 pairs of sentences."""
    english = write_text(tmp_path / "text.en", ENGLISH)
    return ["--pair", "eng_Latn-deu_Latn", english, write_text(tmp_path / "text.de", GERMAN)]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of 70 pieces."""
    prefix = tmp_path_factory.mktemp("model") / "small"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH + GERMAN),
        model_prefix=str(prefix),
        vocab_size=70,
        minloglevel=2,
    )
    return f"{prefix}.model"


def run(*arguments: object) -> int:
    return text_to_bitext.main([str(argument) for argument in arguments])


def read(prefix: Path) -> tuple[int, list[list[int]]]:
    """Read token files by their layout alone, and check that nothing is left over."""
    index = prefix.with_name(prefix.name + ".idx").read_bytes()
    tokens = prefix.with_name(prefix.name + ".bin").read_bytes()
    assert index[:9] == bytes.fromhex("4d4d494449445800 00")
    version, code, count = struct.unpack_from("<QBQ", index, 9)
    assert version == 1 and len(index) == 26 + 12 * count
    sizes = struct.unpack_from(f"<{count}i", index, 26)
    offsets = struct.unpack_from(f"<{count}q", index, 26 + 4 * count)
    width = struct.calcsize("<" + WIDTHS[code])
    assert list(offsets) == [0, *itertools.accumulate(width * size for size in sizes)][:count]
    assert sum(sizes) * width == len(tokens)
    return code, [
        list(struct.unpack_from(f"<{size}{WIDTHS[code]}", tokens, offset))
        for size, offset in zip(sizes, offsets)
    ]


def symbols(path: Path) -> list[str]:
    """Give the symbols of a dictionary, in the order of their ids."""
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    assert all(line.rpartition(" ")[2] == "1" for line in lines)
    return [*SPECIALS, *(line.rpartition(" ")[0] for line in lines)]


def text_of(sentence: list[int], names: list[str]) -> str:
    assert sentence[-1] == 2 and 2 not in sentence[:-1]
    return "".join(names[token] for token in sentence[:-1]).replace("▁", " ").strip()


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def both_sides(directory: Path, subset: str) -> list[tuple[str, str]]:
    """Give the sentences of a subset as text, side by side."""
    sides = []
    for language in ("eng_Latn", "deu_Latn"):
        names = symbols(directory / f"dict.{language}.txt")
        _, sentences = read(directory / f"{subset}.eng_Latn-deu_Latn.{language}")
        sides.append([text_of(sentence, names) for sentence in sentences])
    assert len(sides[0]) == len(sides[1])
    return list(zip(*sides))


# --- Files --------------------------------------------------------------------------------------


def test_the_text_comes_back_from_the_files(tmp_path: Path, pair: list[str], model: str) -> None:
    assert run(tmp_path / "out", *pair, "--model", model) == 0
    assert names_in(tmp_path / "out") == {"shard000"}
    assert names_in(tmp_path / "out/shard000") == {
        "dict.deu_Latn.txt",
        "dict.eng_Latn.txt",
        "train.eng_Latn-deu_Latn.deu_Latn.bin",
        "train.eng_Latn-deu_Latn.deu_Latn.idx",
        "train.eng_Latn-deu_Latn.eng_Latn.bin",
        "train.eng_Latn-deu_Latn.eng_Latn.idx",
    }
    assert both_sides(tmp_path / "out/shard000", "train") == list(zip(ENGLISH, GERMAN))


def test_a_file_is_laid_out_byte_by_byte(tmp_path: Path) -> None:
    file = text_to_bitext.TokenFile(tmp_path / "x", vocabulary=1000)
    file.add([[4, 5, 6, 2], [7, 2]])
    file.add([[2], [100, 101, 102, 103, 104, 2]])
    file.close()
    assert (tmp_path / "x.idx").read_bytes() == bytes.fromhex(
        "4d4d4944494458 0000 0100000000000000 08 0400000000000000"
        "04000000 02000000 01000000 06000000"
        "0000000000000000 0800000000000000 0c00000000000000 0e00000000000000"
    )
    assert (tmp_path / "x.bin").read_bytes() == bytes.fromhex(
        "0400050006000200 07000200 0200 640065006600670068000200"
    )
    assert names_in(tmp_path) == {"x.idx", "x.bin"}


@pytest.mark.parametrize(
    ("vocabulary", "code"),
    [(65_499, 8), (65_500, 9), (4_294_967_294, 9), (4_294_967_295, 5)],
)
def test_the_type_follows_from_the_size_of_the_vocabulary(
    tmp_path: Path, vocabulary: int, code: int
) -> None:
    sentences = [[min(vocabulary - 1, 4_000_000_000), 2], [4, 2]]
    file = text_to_bitext.TokenFile(tmp_path / "x", vocabulary)
    file.add(sentences)
    file.close()
    assert read(tmp_path / "x") == (code, sentences)


def test_a_large_dictionary_makes_wide_files(tmp_path: Path, pair: list[str], model: str) -> None:
    """65496 lines and the four special symbols are 65500."""
    assert run(tmp_path / "out", *pair, "--model", model) == 0
    text = (tmp_path / "out/shard000/dict.deu_Latn.txt").read_text()
    filled = text.count("\n")
    for missing, code in ((1, 8), (0, 9)):
        more = "".join(f"filler{i} 1\n" for i in range(65_496 - filled - missing))
        (tmp_path / "dict.txt").write_text(text + more)
        out = tmp_path / f"out{code}"
        options = ["--model", model, "--dictionary", tmp_path / "dict.txt"]
        assert run(out, *pair, *options) == 0
        assert read(out / "shard000/train.eng_Latn-deu_Latn.deu_Latn")[0] == code
        assert both_sides(out / "shard000", "train") == list(zip(ENGLISH, GERMAN))


def test_a_file_under_way_has_no_name_of_a_data_set(tmp_path: Path) -> None:
    file = text_to_bitext.TokenFile(tmp_path / "train.a-b.a", vocabulary=1000)
    file.add([[4, 2]])
    assert all(name.startswith(".") for name in names_in(tmp_path))
    file.abandon()
    assert names_in(tmp_path) == set()


# --- Dictionaries -------------------------------------------------------------------------------


def test_the_dictionary_has_the_pieces_without_the_special_ones(
    tmp_path: Path, pair: list[str], model: str
) -> None:
    assert run(tmp_path / "out", *pair, "--model", model) == 0
    known = sentencepiece.SentencePieceProcessor(model_file=model)
    pieces = [known.id_to_piece(i) for i in range(known.get_piece_size())]
    assert {"<unk>", "<s>", "</s>"} < set(pieces)
    for language in ("eng_Latn", "deu_Latn"):
        found = symbols(tmp_path / f"out/shard000/dict.{language}.txt")
        assert found == [*SPECIALS, *(piece for piece in pieces if piece not in SPECIALS)]


def test_a_model_with_a_pad_symbol_does_not_repeat_it(tmp_path: Path, pair: list[str]) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH + GERMAN),
        model_prefix=str(tmp_path / "padded"),
        vocab_size=70,
        pad_id=3,
        control_symbols=["<x>"],
        user_defined_symbols=["<y>"],
        minloglevel=2,
    )
    assert run(tmp_path / "out", *pair, "--model", tmp_path / "padded.model") == 0
    found = symbols(tmp_path / "out/shard000/dict.eng_Latn.txt")
    assert found.count("<pad>") == 1 and "<x>" not in found and "<y>" in found
    assert both_sides(tmp_path / "out/shard000", "train") == list(zip(ENGLISH, GERMAN))


def test_what_the_dictionary_lacks_is_unknown(tmp_path: Path, model: str) -> None:
    english = write_text(tmp_path / "en", ["The dog 犬"])
    german = write_text(tmp_path / "de", ["Der Hund"])
    assert run(tmp_path / "out", "--pair", "en-de", english, german, "--model", model) == 0
    _, [sentence] = read(tmp_path / "out/shard000/train.en-de.en")
    assert sentence.count(3) == 1 and sentence[-2:] == [3, 2]
    _, [sentence] = read(tmp_path / "out/shard000/train.en-de.de")
    assert 3 not in sentence


def test_a_dictionary_is_read_as_fairseq_reads_it() -> None:
    text = "a 1\nb c 22\r\nb 1 \na 5 #fairseq:overwrite\n"
    assert text_to_bitext.read_dictionary(text, "d") == (
        {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 7, "b c": 5, "b": 6},
        8,
    )


@pytest.mark.parametrize("line", ["a", "", "b x", "a 2", "<pad> 1", "b 1 #fairseq"])
def test_a_line_that_is_none_is_named(line: str) -> None:
    with pytest.raises(text_to_bitext.BitextError, match="d, line 2"):
        text_to_bitext.read_dictionary(f"a 1\n{line}\nz 1\n", "d")


# --- Shards -------------------------------------------------------------------------------------


def test_every_pair_is_in_one_shard_or_in_validation(
    tmp_path: Path, pair: list[str], model: str
) -> None:
    options = ["--model", model, "--shards", 3, "--valid-share", 0.1]
    assert run(tmp_path / "out", *pair, *options) == 0
    assert names_in(tmp_path / "out") == {"shard000", "shard001", "shard002"}
    parts = [both_sides(tmp_path / f"out/shard00{i}", "train") for i in range(3)]
    valid = both_sides(tmp_path / "out/shard000", "valid")
    assert [len(part) for part in parts] == [36, 36, 36] and len(valid) == 12
    assert sorted(itertools.chain(valid, *parts)) == sorted(zip(ENGLISH, GERMAN))
    # At random, but in the order of the text.
    order = list(zip(ENGLISH, GERMAN))
    for part in (valid, *parts):
        places = [order.index(pair) for pair in part]
        assert places == sorted(places) and len({place % 3 for place in places}) == 3
    for shard in ("shard001", "shard002"):
        assert not any(name.startswith("valid") for name in names_in(tmp_path / "out" / shard))
        assert {"dict.deu_Latn.txt", "dict.eng_Latn.txt"} < names_in(tmp_path / "out" / shard)


def test_where_a_line_goes_follows_from_the_seed(
    tmp_path: Path, pair: list[str], model: str
) -> None:
    found = []
    for number, seed in enumerate((5, 5, 6)):
        out = tmp_path / f"out{number}"
        assert run(out, *pair, "--model", model, "--shards", 2, "--seed", seed) == 0
        found.append(both_sides(out / "shard001", "train"))
    assert found[0] == found[1] != found[2]


def test_a_small_pair_has_fewer_shards_the_first_ones(
    tmp_path: Path, pair: list[str], model: str
) -> None:
    english = write_text(tmp_path / "few.en", ENGLISH[:25])
    other = write_text(tmp_path / "few.xx", GERMAN[:25])
    pairs = [*pair, "--pair", "eng_Latn-swe_Latn", english, other]
    options = ["--model", model, "--shards", 4, "--lines-per-shard", 20]
    assert run(tmp_path / "out", *pairs, *options) == 0
    counts = {"deu": [], "swe": []}  # type: dict[str, list[int]]
    for shard in range(4):
        for language, found in counts.items():
            prefix = f"train.eng_Latn-{language}_Latn.eng_Latn"
            if (tmp_path / f"out/shard00{shard}/{prefix}.idx").exists():
                found.append(len(read(tmp_path / f"out/shard00{shard}/{prefix}")[1]))
    assert counts == {"deu": [30, 30, 30, 30], "swe": [13, 12]}


def test_there_are_no_shards_without_a_line(tmp_path: Path, model: str) -> None:
    english = write_text(tmp_path / "en", ENGLISH[:2])
    german = write_text(tmp_path / "de", GERMAN[:2])
    arguments = ["--pair", "en-de", english, german, "--model", model, "--shards", 5]
    assert run(tmp_path / "out", *arguments) == 0
    assert names_in(tmp_path / "out") == {"shard000", "shard001"}


# --- A model of its own -------------------------------------------------------------------------


def test_a_model_is_trained_and_another_subset_uses_it(tmp_path: Path, pair: list[str]) -> None:
    out = tmp_path / "out"
    assert run(out, *pair, "--vocab-size", 70, "--valid-share", 0.05) == 0
    assert len(symbols(out / "shard000/dict.eng_Latn.txt")) == 70 + 1
    expected = both_sides(out / "shard000", "train")
    assert len(expected) == 114
    assert run(out, *pair, "--model", out / "spm.model", "--subset", "train_mining") == 0
    assert both_sides(out / "shard000", "train_mining") == list(zip(ENGLISH, GERMAN))
    assert both_sides(out / "shard000", "train") == expected


def test_the_same_text_and_seed_make_the_same_files(tmp_path: Path, pair: list[str]) -> None:
    for name in ("one", "two"):
        assert run(tmp_path / name, *pair, "--vocab-size", 70, "--valid-share", 0.05) == 0
    files = sorted((tmp_path / "one").rglob("*.*"))
    assert len(files) == 11
    for path in files:
        other = tmp_path / "two" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == other.read_bytes(), path


def test_a_vocabulary_too_large_for_the_text_is_refused(
    tmp_path: Path, pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "out", *pair, "--vocab-size", 5000) == 1
    assert "--vocab-size" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- Text that is not as it should be -----------------------------------------------------------


def test_blank_and_damaged_lines_are_left_out_on_both_sides(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "en").write_bytes(
        b"The dog\n\nA cat\n\xff\xfe\nMy brother\r\n a\rstone \nThe river"
    )
    (tmp_path / "de").write_bytes("Hund\nKatze\n \t\nX\nBruder\nStein\nFluß".encode())
    pair = ["--pair", "eng_Latn-deu_Latn", tmp_path / "en", tmp_path / "de"]
    assert run(tmp_path / "out", *pair, "--model", model) == 0
    assert "left out 3 lines" in capsys.readouterr().err
    _, english = read(tmp_path / "out/shard000/train.eng_Latn-deu_Latn.eng_Latn")
    names = symbols(tmp_path / "out/shard000/dict.eng_Latn.txt")
    assert [text_of(one, names) for one in english[:2]] == ["The dog", "My brother"]
    # A carriage return within a line ends no line.
    assert len(english) == 4
    assert len(read(tmp_path / "out/shard000/train.eng_Latn-deu_Latn.deu_Latn")[1]) == 4


def test_gzipped_text_is_read(tmp_path: Path, model: str) -> None:
    for name, lines in (("en.gz", ENGLISH), ("de.gz", GERMAN)):
        (tmp_path / name).write_bytes(gzip.compress("\n".join(lines).encode()))
    pair = ["--pair", "eng_Latn-deu_Latn", tmp_path / "en.gz", tmp_path / "de.gz"]
    assert run(tmp_path / "out", *pair, "--model", model) == 0
    assert both_sides(tmp_path / "out/shard000", "train") == list(zip(ENGLISH, GERMAN))


@pytest.mark.parametrize(("english", "german"), [(120, 117), (117, 120), (0, 1), (120, 119)])
def test_files_of_different_length_are_refused_with_both(
    tmp_path: Path,
    model: str,
    english: int,
    german: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = write_text(tmp_path / "en", ENGLISH[:english])
    two = write_text(tmp_path / "de", GERMAN[:german])
    assert run(tmp_path / "out", "--pair", "en-de", one, two, "--model", model) == 1
    said = capsys.readouterr().err
    longer, shorter = (one, two) if english > german else (two, one)
    assert f"{longer} has {max(english, german)} lines, {shorter} {min(english, german)}" in said
    assert not (tmp_path / "out").exists()


def test_text_without_a_line_to_use_is_refused(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = write_text(tmp_path / "en", ["", "x"]), write_text(tmp_path / "de", ["y", ""])
    assert run(tmp_path / "out", "--pair", "en-de", one, two, "--model", model) == 1
    assert "have 0 lines to use" in capsys.readouterr().err


def test_what_is_there_already_is_not_overwritten(
    tmp_path: Path, pair: list[str], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "out", *pair, "--model", model) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out/shard000").iterdir()}
    assert run(tmp_path / "out", *pair, "--model", model) == 1
    assert "already exists" in capsys.readouterr().err
    # Another vocabulary would give the ids of the first subset another meaning.
    other = ["--vocab-size", "60", "--subset", "train_mining"]
    assert run(tmp_path / "out", *pair, *other) == 1
    assert "dict.deu_Latn.txt already exists and differs" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "out/shard000").iterdir()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["--pair", "eng_Latn", "a", "b"],
        ["--pair", "a-b-c", "a", "b"],
        ["--pair", "a-b", "a", "b", "--pair", "b-a", "a", "b"],
        ["--pair", "a-b", "a", "b", "--valid-share", "1"],
        ["--pair", "a-b", "a", "b", "--shards", "0"],
        ["--pair", "a-b", "a", "b", "--subset", "train.x"],
        ["--pair", "a-b", "a", "b", "--dictionary", "d"],
    ],
)
def test_arguments_that_cannot_be_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        run(tmp_path / "out", *arguments)
    assert error.value.code == 2


@pytest.mark.parametrize("missing", ["text.en", "model", "dictionary"])
def test_a_file_that_is_missing_is_named(
    tmp_path: Path,
    pair: list[str],
    model: str,
    missing: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nowhere = str(tmp_path / "nowhere")
    options = ["--model", model]
    if missing == "model":
        options = ["--model", nowhere]
    elif missing == "dictionary":
        options += ["--dictionary", nowhere]
    else:
        pair[2] = nowhere
    assert run(tmp_path / "out", *pair, *options) == 1
    assert "nowhere" in capsys.readouterr().err
