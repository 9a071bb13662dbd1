#!/usr/bin/env python3
"""Makes token files from parallel text, in the form that fairseq and the translation pipeline read.

    scripts/text_to_bitext.py OUT_DIR --pair eng_Latn-deu_Latn text.en text.de --vocab-size 8000
    scripts/text_to_bitext.py OUT_DIR --pair eng_Latn-deu_Latn text.en text.de --model spm.model \\
        --dictionary dict.txt --shards 4 --valid-share 0.01

Each pair is two files of UTF-8 text, possibly gzipped (.gz), in which line i of one is the
translation of line i of the other. It writes:

    OUT_DIR/spm.model                              the SentencePiece model, if it is trained here
    OUT_DIR/shard000/dict.eng_Latn.txt             the dictionary of each language
    OUT_DIR/shard000/train.eng_Latn-deu_Latn.eng_Latn.bin, .idx
    OUT_DIR/shard000/train.eng_Latn-deu_Latn.deu_Latn.bin, .idx
    OUT_DIR/shard000/valid.eng_Latn-deu_Latn...    with --valid-share
    OUT_DIR/shard001/...                           with --shards

The files of a pair serve both directions. Its lines are spread over its shards at random, depending
only on --seed, the pair and the number of its lines. In a file lines keep their order. Pairs in
which a side is blank or not UTF-8 are left out and counted.

Ids: 0 to 3 are <s>, <pad>, </s> and <unk>; the dictionary's lines follow from 4 on, and every
sentence ends in 2. All languages have the same dictionary: the pieces of the model without its
special ones, each with count 1, or that of --dictionary.

    .bin   the ids of all sentences one behind the other, little-endian
    .idx   9 bytes "MMIDIDX\\0\\0", u64 1, u8 type of the ids, u64 sentences,
           i32 tokens of each sentence, i64 offset of each sentence in .bin in bytes

Ids have 2 bytes (type 8) with a vocabulary below 65500, else 4 bytes (type 9).

Needs sentencepiece and NumPy. It holds no text in memory, only some twenty bytes for each line, and
what SentencePiece needs for --train-lines lines.
"""

from __future__ import annotations

import argparse
import gzip
import io
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import sentencepiece

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
EOS, UNKNOWN = 2, 3
_OVERWRITE = "#fairseq:overwrite"

# By the size of the vocabulary: below this, type of the index, type of the ids.
_TYPES = ((65_500, 8, "<u2"), (4_294_967_295, 9, "<u4"), (1 << 63, 5, "<i8"))

_LINES = 10_000  # that are encoded at a time

_NOT_USED, _VALID = -2, -1  # instead of the number of a shard


class BitextError(RuntimeError):
    """Why nothing can be made; the message says what to do."""


# --- Text ---------------------------------------------------------------------------------------


@dataclass
class Pair:
    """Two files of text, and where their lines go.

    Attributes:
        shards: Number of shards that it has.
        places: int32 [lines]: number of the shard, or _VALID, or _NOT_USED.
    """

    languages: tuple[str, str]
    files: tuple[Path, Path]
    shards: int = 0
    places: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def name(self) -> str:
        return "-".join(self.languages)


def lines_of(path: Path) -> Iterator[str | None]:
    """Yield the lines of a file without the space around them, None for what is no UTF-8.

    Raises:
        BitextError: The file cannot be read.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for line in file:
                try:
                    yield line.decode("utf-8").strip()
                except UnicodeDecodeError:
                    yield None
    except (OSError, EOFError, zlib.error) as error:
        raise BitextError(f"{path}: {error}") from error


def place_lines(
    pair: Pair, *, shards: int, lines_per_shard: int | None, valid_share: float, seed: int
) -> int:
    """Decide which line goes where.

    Returns:
        Lines that are not used.
    Raises:
        BitextError: The files are not parallel, or there is nothing to use.
    """
    usable = bytearray()
    files = [iter(lines_of(path)) for path in pair.files]
    while True:
        one, two = (next(lines, 0) for lines in files)
        if one == 0 or two == 0:
            break
        usable.append(bool(one) and bool(two))
    if one != two:
        longer = 1 if one == 0 else 0
        count = len(usable) + 1 + sum(1 for _ in files[longer])
        raise BitextError(
            f"{pair.files[longer]} has {count} lines, {pair.files[1 - longer]} {len(usable)}: "
            f"line i of one must be the translation of line i of the other"
        )
    wanted = np.flatnonzero(np.frombuffer(usable, np.uint8))
    valid = round(valid_share * len(wanted))
    left = len(wanted) - valid
    if left == 0:
        raise BitextError(
            f"{pair.files[0]} and {pair.files[1]} have {len(wanted)} lines to use, of which "
            f"{valid} are for validation: none are left"
        )
    pair.shards = min(shards, left)
    if lines_per_shard is not None:
        pair.shards = min(pair.shards, -(-left // lines_per_shard))
    order = np.random.default_rng([seed, zlib.crc32(pair.name.encode())]).permutation(wanted)
    pair.places = np.full(len(usable), _NOT_USED, np.int32)
    pair.places[order[:valid]] = _VALID
    pair.places[order[valid:]] = np.arange(left, dtype=np.int32) % pair.shards
    return len(usable) - len(wanted)


# --- Vocabulary ---------------------------------------------------------------------------------


def train_model(pairs: Sequence[Pair], path: Path, options: argparse.Namespace) -> None:
    """Train a SentencePiece model on the text of all languages, without what is for validation.

    Raises:
        BitextError: There is too little text for such a vocabulary.
    """

    def text() -> Iterator[str]:
        for pair in pairs:
            for file in pair.files:
                for line, place in zip(lines_of(file), pair.places):
                    if line and place >= 0:
                        yield line

    sentencepiece.set_random_generator_seed(options.seed)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=text(),
            model_writer=model,
            vocab_size=options.vocab_size,
            model_type=options.model_type,
            character_coverage=options.character_coverage,
            input_sentence_size=options.train_lines,
            shuffle_input_sentence=True,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise BitextError(
            f"SentencePiece cannot make {options.vocab_size} pieces of this text: {error}: choose "
            "another --vocab-size"
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.getvalue())


def dictionary_of(model: sentencepiece.SentencePieceProcessor) -> str:
    """Write the pieces of a model, without its special ones, as a dictionary."""
    pieces = []
    for number in range(model.get_piece_size()):
        piece = model.id_to_piece(number)
        special = model.is_control(number) or model.is_unknown(number) or model.is_unused(number)
        if special or piece in SPECIALS:
            continue
        if "\n" in piece or "\r" in piece:
            raise BitextError(
                f"piece {number} of the model, {piece!r}, does not fit into a dictionary"
            )
        pieces.append(f"{piece} 1\n")
    return "".join(pieces)


def read_dictionary(text: str, name: str) -> tuple[dict[str, int], int]:
    """Read a dictionary.

    Returns:
        Id of each symbol, the four special ones included; number of ids.
    Raises:
        BitextError: A line is not SYMBOL COUNT, or repeats a symbol.
    """
    ids = {symbol: number for number, symbol in enumerate(SPECIALS)}
    size = len(SPECIALS)
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        where = f"{name}, line {number}"
        symbol, _, count = line.rstrip().rpartition(" ")
        overwrite = count == _OVERWRITE
        if overwrite:
            symbol, _, count = symbol.rpartition(" ")
        try:
            int(count)
        except ValueError:
            raise BitextError(f"{where}: {line.rstrip()!r} is not SYMBOL COUNT") from None
        if symbol in ids and not overwrite:
            raise BitextError(f"{where}: {symbol!r} already exists: remove the line")
        ids[symbol] = size
        size += 1
    return ids, size


# --- Token files --------------------------------------------------------------------------------


def index_type(vocabulary: int) -> tuple[int, str]:
    """Give the type of the ids by the size of the vocabulary: as a number, and as NumPy says it."""
    for below, code, dtype in _TYPES:
        if vocabulary < below:
            return code, dtype
    raise BitextError(f"a vocabulary of {vocabulary} is too large")


class TokenFile:
    """Writes a pair of token files, which appear when they are complete.

    Args:
        prefix: Their path without .bin and .idx.
        vocabulary: Number of ids.
    """

    def __init__(self, prefix: Path, vocabulary: int) -> None:
        self.token_count = 0
        self._paths = [prefix.with_name(f"{prefix.name}.{suffix}") for suffix in ("bin", "idx")]
        self._code, self._dtype = index_type(vocabulary)
        self._sizes: list[np.ndarray] = []
        prefix.parent.mkdir(parents=True, exist_ok=True)
        self._bin: BinaryIO = open(self._unfinished(self._paths[0]), "wb")

    @property
    def sentence_count(self) -> int:
        return sum(map(len, self._sizes))

    def add(self, sentences: Sequence[Sequence[int]]) -> None:
        """Add sentences, each with its final </s>."""
        sizes = np.fromiter(map(len, sentences), np.int32, len(sentences))
        tokens = np.fromiter((token for one in sentences for token in one), self._dtype)
        self._bin.write(tokens.tobytes())
        self._sizes.append(sizes)
        self.token_count += len(tokens)

    def close(self) -> None:
        """Write the index, and give both files their names."""
        self._bin.close()
        sizes = np.concatenate(self._sizes or [np.empty(0, np.int32)]).astype("<i4")
        offsets = np.zeros(len(sizes), "<i8")
        np.cumsum(sizes[:-1], dtype=np.int64, out=offsets[1:])
        offsets *= np.dtype(self._dtype).itemsize
        with open(self._unfinished(self._paths[1]), "wb") as index:
            index.write(b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, self._code, len(sizes)))
            index.write(sizes.tobytes())
            index.write(offsets.tobytes())
        # The index comes last: by its name readers find the pair.
        for path in self._paths:
            self._unfinished(path).rename(path)

    def abandon(self) -> None:
        """Remove what is not complete."""
        self._bin.close()
        for path in self._paths:
            self._unfinished(path).unlink(missing_ok=True)

    @staticmethod
    def _unfinished(path: Path) -> Path:
        # With a dot in front, so that no loader takes it for a file of the data set.
        return path.with_name(f".{path.name}.unfinished")


@dataclass
class Encoder:
    """Turns text into ids."""

    model: sentencepiece.SentencePieceProcessor
    ids: dict[str, int]
    vocabulary: int
    token_count: int = 0
    unknown_count: int = 0

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Encode lines; each ends in </s>."""
        sentences = []
        for pieces in self.model.encode(lines, out_type=str):
            sentence = [self.ids.get(piece, UNKNOWN) for piece in pieces]
            self.unknown_count += sentence.count(UNKNOWN)
            sentence.append(EOS)
            self.token_count += len(sentence)
            sentences.append(sentence)
        return sentences


def prefixes_of(pair: Pair, side: int, out_dir: Path, subset: str) -> dict[int, Path]:
    """Name the token files of a side, by the place that decides which lines go there."""
    rest = f"{pair.name}.{pair.languages[side]}"
    found = {shard: shard_of(out_dir, shard) / f"{subset}.{rest}" for shard in range(pair.shards)}
    if (pair.places == _VALID).any():
        found[_VALID] = shard_of(out_dir, 0) / f"valid.{rest}"
    return found


def shard_of(out_dir: Path, shard: int) -> Path:
    return out_dir / f"shard{shard:03}"


def write_side(pair: Pair, side: int, out_dir: Path, subset: str, encoder: Encoder) -> None:
    """Write the token files of one side of a pair: all shards, and validation."""
    files: dict[int, TokenFile] = {}
    try:
        for place, prefix in prefixes_of(pair, side, out_dir, subset).items():
            files[place] = TokenFile(prefix, encoder.vocabulary)
        used = (
            (line, int(place))
            for line, place in zip(lines_of(pair.files[side]), pair.places)
            if line and place != _NOT_USED
        )
        while some := list(islice(used, _LINES)):
            sentences = encoder.encode([line for line, _ in some])
            for place, file in files.items():
                file.add([one for one, (_, other) in zip(sentences, some) if other == place])
        for place, file in files.items():
            if file.sentence_count != int((pair.places == place).sum()):
                raise BitextError(f"{pair.files[side]} has changed in the meantime: start again")
        for file in files.values():
            file.close()
    finally:
        for file in files.values():
            file.abandon()


# --- The whole ----------------------------------------------------------------------------------


def refuse_what_is_there(pairs: Sequence[Pair], options: argparse.Namespace) -> None:
    """Raise BitextError if a file that is to be written is there already."""
    for pair in pairs:
        for side in (0, 1):
            for prefix in prefixes_of(pair, side, options.out_dir, options.subset).values():
                if (path := prefix.with_name(prefix.name + ".idx")).exists():
                    raise BitextError(f"{path} already exists: name another OUT_DIR or --subset")


def write_dictionaries(pairs: Sequence[Pair], text: str, out_dir: Path) -> None:
    """Write the dictionary of each language into every shard.

    Raises:
        BitextError: There is another one already.
    """
    languages = sorted({language for pair in pairs for language in pair.languages})
    for shard in range(max(pair.shards for pair in pairs)):
        for language in languages:
            path = shard_of(out_dir, shard) / f"dict.{language}.txt"
            if path.exists() and path.read_text(encoding="utf-8") != text:
                raise BitextError(
                    f"{path} already exists and differs: give the model and the "
                    f"dictionary that it was made with (--model, --dictionary), or another OUT_DIR"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def make(options: argparse.Namespace) -> None:
    """Make all files; what was done goes to stderr.

    Raises:
        BitextError: It cannot go on; files that are complete stay.
    """
    pairs = options.pair
    not_used = 0
    for pair in pairs:
        not_used += place_lines(
            pair,
            shards=options.shards,
            lines_per_shard=options.lines_per_shard,
            valid_share=options.valid_share,
            seed=options.seed,
        )
    refuse_what_is_there(pairs, options)
    model_path = options.model
    if model_path is None:
        model_path = options.out_dir / "spm.model"
        if model_path.exists():
            raise BitextError(f"{model_path} already exists: use it (--model {model_path})")
        train_model(pairs, model_path, options)
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.load(str(model_path))
        dictionary = dictionary_of(model)
        if options.dictionary is not None:
            dictionary = options.dictionary.read_text(encoding="utf-8")
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        raise BitextError(str(error)) from error
    ids, size = read_dictionary(dictionary, str(options.dictionary or model_path))
    write_dictionaries(pairs, dictionary, options.out_dir)
    encoder = Encoder(model, ids, size)
    for pair in pairs:
        for side in (0, 1):
            write_side(pair, side, options.out_dir, options.subset, encoder)
        print(
            f"text_to_bitext: {pair.name}: {int((pair.places >= 0).sum())} sentences in "
            f"{pair.shards} shards, {int((pair.places == _VALID).sum())} for validation",
            file=sys.stderr,
        )
    unknown = 100 * encoder.unknown_count / max(1, encoder.token_count)
    print(
        f"text_to_bitext: {encoder.token_count} tokens, {unknown:.2f} % unknown, vocabulary of "
        f"{size}; left out {not_used} lines that are blank or not UTF-8",
        file=sys.stderr,
    )


class _AddPair(argparse.Action):
    """Takes SRC-TGT and two files."""

    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore
        name, *files = values
        languages = tuple(name.split("-"))
        if len(languages) != 2 or not all(languages) or "." in name or "/" in name:
            parser.error(f"--pair {name}: not SRC-TGT, as in eng_Latn-deu_Latn")
        pairs = getattr(namespace, self.dest)
        if any(set(pair.languages) == set(languages) for pair in pairs):
            parser.error(f"--pair {name}: given twice; one pair of files serves both directions")
        pairs.append(Pair(languages, (Path(files[0]), Path(files[1]))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Make token files of parallel text.")
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path)
    parser.add_argument(
        "--pair",
        nargs=3,
        action=_AddPair,
        required=True,
        metavar=("SRC-TGT", "SRC_TEXT", "TGT_TEXT"),
        default=[],
        help="languages and two files of text; may be given several times",
    )
    parser.add_argument("--model", type=Path, help="SentencePiece model (one is trained)")
    parser.add_argument("--dictionary", type=Path, help="dict.txt (the pieces of the model)")
    parser.add_argument("--vocab-size", type=int, default=8000, help="pieces of a new model (8000)")
    parser.add_argument("--model-type", choices=("unigram", "bpe"), default="unigram")
    parser.add_argument("--character-coverage", type=float, default=0.9995)
    parser.add_argument(
        "--train-lines", type=int, default=1_000_000, help="lines to train a new model on (1000000)"
    )
    parser.add_argument("--subset", default="train", help="prefix of file names (train)")
    parser.add_argument("--shards", type=int, default=1, help="most shards of a pair (1)")
    parser.add_argument(
        "--lines-per-shard",
        type=int,
        help="a pair with few lines has fewer shards (as many as all)",
    )
    parser.add_argument(
        "--valid-share", type=float, default=0, help="share of the lines, 0 to 1 (0)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of shards, validation and model (0)"
    )
    options = parser.parse_args(arguments)
    if not 1 <= options.shards <= 1000 or (options.lines_per_shard or 1) < 1:
        parser.error("--shards must be 1 to 1000, --lines-per-shard at least 1")
    if not 0 <= options.valid_share < 1 or options.seed < 0:
        parser.error("--valid-share must be at least 0 and below 1, --seed at least 0")
    if not options.subset or any(sign in options.subset for sign in "./"):
        parser.error("--subset must not contain a dot or a slash")
    if options.valid_share and options.subset == "valid":
        parser.error("--subset valid with --valid-share: both would have the same names")
    if options.dictionary is not None and options.model is None:
        parser.error("--dictionary needs the --model that it was made from")
    try:
        make(options)
    except BitextError as error:
        print(f"text_to_bitext: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
