"""Makes data for the translation pipeline: token files of all kinds, dictionaries, random corpora.

    python tests/support/makers/fairseq_data.py OUT_DIR --seed 1 --directions 6 --shards 3
    --sentences 80

    OUT_DIR/shard000/dict.eng.txt, train.eng-tur.eng.bin, train.eng-tur.eng.idx, ...

What is made depends on the arguments alone. Sentences are random ids that end in `</s>`; lengths of
both sides go together and many are equal. large_corpus() makes one for measurements, which needs
NumPy; all else needs nothing but Python.
"""

from __future__ import annotations

import argparse
import math
import random
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Run as a program it has its own folder as the first place of modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


EOS = 2
FIRST_WORD = 4  # ids below are those of <s>, <pad>, </s>, <unk>

# Code of an index: how Python's array names the type of a token.
TOKEN_TYPES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H", 9: "I", 10: "Q"}

Sentences = Sequence[Sequence[int]]


# --- Files --------------------------------------------------------------------------------------


def _write_tokens(prefix: str | Path, sentences: Sentences, code: int, added: int) -> int:
    """Write PREFIX.bin; return the bytes of a token."""
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    tokens = array(TOKEN_TYPES[code])
    for sentence in sentences:
        tokens.extend([token + added for token in sentence] if added else sentence)
    if sys.byteorder == "big":
        tokens.byteswap()
    Path(f"{prefix}.bin").write_bytes(tokens.tobytes())
    return tokens.itemsize


def _offsets(sentences: Sentences) -> list[int]:
    """Tokens before each sentence, and of all."""
    offsets = [0]
    for sentence in sentences:
        offsets.append(offsets[-1] + len(sentence))
    return offsets


def write_mapped(prefix: str | Path, sentences: Sentences, code: int = 8) -> None:
    """Write PREFIX.bin and PREFIX.idx of the memory-mapped kind; code: of the tokens' type."""
    width = _write_tokens(prefix, sentences, code, 0)
    count = len(sentences)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, code, count)
    index += struct.pack(f"<{count}i", *(len(sentence) for sentence in sentences))
    index += struct.pack(f"<{count}q", *(width * at for at in _offsets(sentences)[:-1]))
    Path(f"{prefix}.idx").write_bytes(index)


def write_megatron(
    prefix: str | Path, sentences: Sentences, code: int = 8, documents: Sequence[int] | None = None
) -> None:
    """Write both files as Megatron does: behind the index the first sentence of each document.

    documents begins with 0 and ends with the number of sentences; default: one document.
    """
    width = _write_tokens(prefix, sentences, code, 0)
    count = len(sentences)
    firsts = [0, count] if documents is None else list(documents)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, count, len(firsts))
    index += struct.pack(f"<{count}i", *(len(sentence) for sentence in sentences))
    index += struct.pack(f"<{count}q", *(width * at for at in _offsets(sentences)[:-1]))
    index += struct.pack(f"<{len(firsts)}q", *firsts)
    Path(f"{prefix}.idx").write_bytes(index)


def write_legacy(prefix: str | Path, sentences: Sentences, code: int = 4) -> None:
    """Write both files of the older kind, whose ids are stored one higher."""
    width = _write_tokens(prefix, sentences, code, 1)
    count = len(sentences)
    index = b"TNTIDX\0\0" + struct.pack("<5Q", 1, code, width, count, count)
    index += struct.pack(f"<{count + 1}q", *range(count + 1))
    index += struct.pack(f"<{count + 1}q", *_offsets(sentences))
    index += struct.pack(f"<{count}q", *(len(sentence) for sentence in sentences))
    Path(f"{prefix}.idx").write_bytes(index)


WRITERS = {"mapped": write_mapped, "megatron": write_megatron, "legacy": write_legacy}


def write_dictionary(path: str | Path, symbols: int | Iterable[str]) -> None:
    """Write a dictionary with these symbols behind the four special ones, or with so many."""
    if isinstance(symbols, int):
        symbols = (f"w{number}" for number in range(symbols))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        for symbol in symbols:
            out.write(f"{symbol} 1\n")


# --- Corpora ------------------------------------------------------------------------------------

_LANGUAGES = ("eng", "tur", "hin", "fra", "zul", "ara", "deu", "jpn")


@dataclass
class RandomCorpus:
    """What random_corpus has made."""

    directories: list[str]  # the shards, in order
    lang_pairs: list[str]  # directions to ask for; some are there in reverse only
    langs: list[str]
    folds: list[str]
    words: int  # entries of the dictionaries
    # Sentences of both sides by (pair as in the files' names, fold, shard).
    sentences: dict[tuple[str, str, int], tuple[list[list[int]], list[list[int]]]] = field(
        default_factory=dict
    )

    def pair_of(self, lang_pair: str) -> str:
        """The pair that the files of a direction are named after."""
        source, target = lang_pair.split("-")
        own = any(pair == lang_pair for pair, _, _ in self.sentences)
        return lang_pair if own else f"{target}-{source}"

    def shards_of(self, lang_pair: str) -> int:
        """Directories that have a direction."""
        pair = self.pair_of(lang_pair)
        return len({shard for p, fold, shard in self.sentences if p == pair and fold in self.folds})


def random_sentences(
    draw: random.Random, count: int, words: int, longest: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Make sentences of two sides: up to `longest` tokens each, `</s>` included."""
    sides: tuple[list[list[int]], list[list[int]]] = ([], [])
    for _ in range(count):
        middle = draw.choice((3, 5, 8, 12, longest))
        length = draw.randint(1, middle)
        for side in sides:
            size = min(longest, max(1, length + draw.randint(-3, 3)))
            ids = [draw.randrange(FIRST_WORD, FIRST_WORD + words) for _ in range(size - 1)]
            side.append([*ids, EOS])
    return sides


def random_corpus(
    directory: str | Path,
    seed: int,
    *,
    directions: int = 5,
    shards: int = 3,
    folds: Sequence[str] = ("train",),
    sentences: int = 60,
    words: int = 100,
    longest: int = 24,
    valid: int = 9,
    kinds: Sequence[str] = ("mapped",),
    reversed_files: bool = True,
    both_ways: bool = True,
    empty_shards: bool = True,
    single_sentence: bool = True,
) -> RandomCorpus:
    """Make directories of shards with directions of different sizes and numbers of shards.

    Args:
        directory: Where shard000, shard001, ... are made.
        seed: Another seed, another corpus.
        directions: From 1 to 13. The first has all shards, of others some have fewer.
        shards: Directories.
        folds: Names that files begin with. All directions have the first, of the others some lack
            some in some shards.
        sentences: Of a direction, a fold and a shard: from none to twice as many.
        words: Entries of the dictionaries, besides the four special ones.
        longest: Tokens of a sentence at most, `</s>` included.
        valid: Sentences of the fold "valid" in every direction and shard; 0: no such fold.
        kinds: Which kinds of files are mixed: "mapped", "megatron", "legacy".
        reversed_files: Every third direction is there under its reversed name only.
        both_ways: The last direction is the first one reversed, without files of its own.
        empty_shards: The last shard of the first direction has no sentence.
        single_sentence: The second direction has one sentence in each of its shards and no fold but
            the first.

    Returns:
        What has been made.
    """
    draw = random.Random(seed)
    languages = _LANGUAGES
    names = [f"{languages[0]}-{language}" for language in languages[1:]]
    names += [f"{languages[i + 1]}-{languages[i]}" for i in range(1, len(languages) - 1)]
    if not 1 <= directions <= len(names) + both_ways:
        raise ValueError(f"{directions} directions: at most {len(names) + both_ways}")
    one_less = both_ways and directions > 1
    named = names[: directions - one_less]
    asked = list(named)
    if reversed_files:
        asked[2::3] = ["-".join(reversed(pair.split("-"))) for pair in asked[2::3]]
    if one_less:
        asked.append("-".join(reversed(named[0].split("-"))))
    corpus = RandomCorpus(
        [f"{directory}/shard{shard:03}" for shard in range(shards)],
        asked,
        sorted({language for pair in asked for language in pair.split("-")}),
        list(folds),
        words,
    )
    codes = [c for c in TOKEN_TYPES if c not in (1, 2) or FIRST_WORD + words < (256, 127)[c - 1]]
    for number, pair in enumerate(named):
        single = single_sentence and number == 1
        of = shards if number == 0 else draw.randint(1, shards)
        valid_there = ["valid"] if valid else []
        for shard in range(shards):
            for fold in [*folds, *valid_there]:
                count = draw.randint(1, 2 * sentences)
                if fold == "valid":
                    count = valid
                elif shard >= of or (fold != folds[0] and (single or draw.random() < 0.4)):
                    continue
                elif single:
                    count = 1
                elif empty_shards and number == 0 and shards > 1 and shard == shards - 1:
                    count = 0
                made = random_sentences(draw, count, words, longest)
                corpus.sentences[pair, fold, shard] = made
                for language, side in zip(pair.split("-"), made, strict=True):
                    prefix = f"{corpus.directories[shard]}/{fold}.{pair}.{language}"
                    WRITERS[draw.choice(kinds)](prefix, side, draw.choice(codes))
    for path in corpus.directories:
        for language in corpus.langs:
            write_dictionary(f"{path}/dict.{language}.txt", words)
    return corpus


@dataclass
class LargeCorpus:
    """What large_corpus has made: one shard, one fold."""

    directory: Path
    lang_pairs: list[str]
    sentences: int  # of all directions

    @property
    def numbered(self) -> Path:
        """Directory with the same token files as 0.src, 0.tgt, 1.src, ..., in order of
        lang_pairs.
        """
        return self.directory / "numbered"


def large_corpus(
    directory: str | Path,
    *,
    directions: int,
    sentences: int,
    mean: int = 30,
    words: int = 60_000,
    text: bool = True,
    seed: int = 1,
) -> LargeCorpus:
    """Make a corpus of millions of sentences; one that is there already is taken as it is.

    Directions alternate between from and to English, and differ in size as those of real corpora
    do (log-normal); so do lengths, of which both sides go together. Tokens take two bytes. All
    languages have the same dictionary.

    Args:
        directory: What is made.
        directions: How many.
        sentences: Of all directions, about.
        mean: Tokens of a sentence.
        words: Entries of the dictionaries, besides the four special ones.
        text: False: the .bin files are of the right length but empty ("sparse"), for measurements
            that look at the indices alone. All their tokens are then 0.
        seed: Another seed, another corpus.
    """
    import numpy as np

    directory = Path(directory)
    languages = ["eng", *(f"l{number:03}" for number in range((directions + 1) // 2))]
    pairs = [f"eng-{language}" for language in languages[1:]]
    pairs = [p for pair in pairs for p in (pair, "-".join(reversed(pair.split("-"))))][:directions]
    about = directory / "sentences"
    if about.exists():
        return LargeCorpus(directory, pairs, int(about.read_text()))
    (directory / "numbered").mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(seed)
    words_random = np.random.RandomState(seed + 1)
    shares = np.exp(random.normal(0, 1.5, directions))
    shares /= shares.sum()
    total = 0
    for number, pair in enumerate(pairs):
        count = max(1, round(sentences * shares[number]))
        total += count
        # Of a log-normal distribution with this sigma and the mean given.
        sources = random.lognormal(math.log(mean) - 0.18, 0.6, count)
        targets = sources * np.exp(random.normal(0, 0.15, count))
        for language, side, lengths in zip(
            pair.split("-"), ("src", "tgt"), (sources, targets), strict=True
        ):
            sizes = np.clip(np.rint(lengths), 2, 600).astype("<i4")
            ends = np.cumsum(sizes, dtype=np.int64)
            prefix = directory / f"train.{pair}.{language}"
            with open(f"{prefix}.idx", "wb") as index:
                index.write(b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, 8, count))
                index.write(sizes.tobytes())
                index.write((2 * (ends - sizes)).astype("<i8").tobytes())
            with open(f"{prefix}.bin", "wb") as out:
                if text:
                    tokens = words_random.randint(
                        FIRST_WORD, FIRST_WORD + words, ends[-1], np.uint16
                    )
                    tokens[ends - 1] = EOS
                    out.write(tokens.astype("<u2").tobytes())
                else:
                    out.truncate(2 * int(ends[-1]))
            for kind in ("idx", "bin"):
                link = directory / "numbered" / f"{number}.{side}.{kind}"
                link.unlink(missing_ok=True)
                link.hardlink_to(f"{prefix}.{kind}")
    write_dictionary(directory / "dict.txt", words)
    for language in languages:
        link = directory / f"dict.{language}.txt"
        link.unlink(missing_ok=True)
        link.symlink_to("dict.txt")
    about.write_text(f"{total}\n")
    return LargeCorpus(directory, pairs, total)


def main() -> None:
    """Make a random corpus and say what a configuration has to name."""
    parser = argparse.ArgumentParser(description="Makes a random corpus for translation.")
    parser.add_argument("directory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directions", type=int, default=5)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--folds", default="train", help="joined by commas")
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--longest", type=int, default=24)
    parser.add_argument("--kinds", default="mapped", help="joined by commas")
    given = vars(parser.parse_args())
    for name in ("folds", "kinds"):
        given[name] = given[name].split(",")
    corpus = random_corpus(**given)
    for name in ("directories", "lang_pairs", "langs"):
        print(f"{name}: {' '.join(getattr(corpus, name))}")


if __name__ == "__main__":
    main()
