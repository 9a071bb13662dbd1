"""Reference of the translation pipeline: what a feed with ``compat: NLLB`` or ``MAIN`` delivers.

Plain Python, one rule after the other, slow and without cleverness: token files, dictionaries, the
choice of shards, sampling, virtual epochs, order, batches, ranks, collation, and the random numbers
behind them. It shares nothing with the C++ stages but the rules.

    config = Config(directory=["data/shard000"], lang_pairs=["eng-tur"], max_tokens=4096,
                    compat="NLLB", world_size=2)
    reference = Reference(config)
    for batch in reference.epoch(1).ranks[0]:     # what rank 0 of 2 reads
        batch["src_tokens"]                       # a list of rows, a row a list of ids
    to_textproto(config)                          # the stages of a feed that must give the same

Numbers of epochs begin at 1, everything else at 0. Where a program that is imitated would stop with
an error, Refused is raised.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

PAD = 1
EOS = 2
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
UNKNOWN = 3

Batch = dict[str, Any]
Row = tuple[int, int]  # number of a direction, number of a sentence in it

# Kinds of batches, as in `position` of a batch.
BATCH = 0
STAND_IN = 1
FIRST_STAND_IN = 2

TENSORS = ("src_tokens", "src_lengths", "prev_output_tokens", "target")


class Refused(Exception):
    """What is asked for has no answer: bad data, or options that exclude each other."""


# --- Random numbers -----------------------------------------------------------------------------


class LegacyRandom:
    """The Mersenne Twister as numpy's RandomState uses it."""

    def __init__(self, seed: int | Sequence[int]) -> None:
        """Seed with an integer, or with an array of words; each from 0, below 2^32."""
        self.state: list[int]
        if isinstance(seed, int):
            self._seed_integer(seed)
        else:
            self._seed_array(list(seed))

    def _seed_integer(self, seed: int) -> None:
        if not 0 <= seed < 1 << 32:
            raise Refused(f"seed {seed} is not between 0 and 2^32 - 1")
        self.state = [seed]
        for i in range(1, 624):
            last = self.state[-1]
            self.state.append((1812433253 * (last ^ (last >> 30)) + i) & 0xFFFFFFFF)
        self.at = 624

    def _seed_array(self, key: list[int]) -> None:
        if not key or not all(0 <= word < 1 << 32 for word in key):
            raise Refused(f"seed {key} is not of words between 0 and 2^32 - 1")
        self._seed_integer(19650218)
        state = self.state
        i, j = 1, 0
        for _ in range(max(624, len(key))):
            mixed = (state[i - 1] ^ (state[i - 1] >> 30)) * 1664525
            state[i] = ((state[i] ^ mixed) + key[j] + j) & 0xFFFFFFFF
            i += 1
            j += 1
            if i == 624:
                state[0] = state[623]
                i = 1
            if j == len(key):
                j = 0
        for _ in range(623):
            mixed = (state[i - 1] ^ (state[i - 1] >> 30)) * 1566083941
            state[i] = ((state[i] ^ mixed) - i) & 0xFFFFFFFF
            i += 1
            if i == 624:
                state[0] = state[623]
                i = 1
        state[0] = 0x80000000

    def _refill(self) -> None:
        state = self.state
        for i in range(624):
            bits = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7FFFFFFF)
            state[i] = state[(i + 397) % 624] ^ (bits >> 1) ^ (0x9908B0DF if bits & 1 else 0)
        self.at = 0

    def u32(self) -> int:
        """Draw a word of 32 bits."""
        if self.at == 624:
            self._refill()
        word = self.state[self.at]
        self.at += 1
        word ^= word >> 11
        word ^= (word << 7) & 0x9D2C5680
        word ^= (word << 15) & 0xEFC60000
        return word ^ (word >> 18)

    def u64(self) -> int:
        """Draw 64 bits: the first word is the high half."""
        high = self.u32()
        return high << 32 | self.u32()

    def double(self) -> float:
        """Draw from [0, 1), with 53 bits."""
        high = self.u32() >> 5
        return (high * 67108864 + (self.u32() >> 6)) / 9007199254740992

    def bounded(self, largest: int) -> int:
        """Draw an integer from 0 to largest; nothing is used up when there is no choice."""
        if largest == 0:
            return 0
        mask = (1 << largest.bit_length()) - 1
        while True:
            value = (self.u32() if largest <= 0xFFFFFFFF else self.u64()) & mask
            if value <= largest:
                return value

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Shuffle in place, from the end."""
        for i in range(len(items) - 1, 0, -1):
            j = self.bounded(i)
            items[i], items[j] = items[j], items[i]

    def permutation(self, count: int) -> list[int]:
        """Shuffle 0 .. count - 1."""
        items = list(range(count))
        self.shuffle(items)
        return items

    def with_replacement(self, count: int, draws: int) -> list[int]:
        """Draw so many numbers from 0 .. count - 1."""
        return [self.bounded(count - 1) for _ in range(draws)]

    def by_probability(self, probabilities: Sequence[float], draws: int) -> list[int]:
        """Draw places of a list, each as likely as its probability says."""
        sums = []
        total = 0.0
        for probability in probabilities:
            total += probability
            sums.append(total)
        sums = [value / total for value in sums]
        return [upper_bound(sums, self.double()) for _ in range(draws)]


def upper_bound(ascending: Sequence[float], value: float) -> int:
    """Count the elements that are not above value."""
    return sum(1 for element in ascending if element <= value)


def pairwise_sum(values: Sequence[float]) -> float:
    """Add as numpy adds a contiguous array of doubles: the order decides the last bits."""
    count = len(values)
    if count < 8:
        total = 0.0
        for value in values:
            total += value
        return total
    if count <= 128:
        whole = count - count % 8
        r = list(values[:8])
        for i in range(8, whole):
            r[i % 8] += values[i]
        total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
        for value in values[whole:]:
            total += value
        return total
    half = count // 2
    half -= half % 8
    return pairwise_sum(values[:half]) + pairwise_sum(values[half:])


# --- Order of rows of equal length --------------------------------------------------------------


def descending_order(keys: Sequence[int]) -> list[int]:
    """Order that std::sort of libstdc++ gives pairs of (key, number) by `a.key > b.key`.

    It decides where rows of equal length stand: up to 16 rows as they came, beyond that not.
    """
    v = [(key, number) for number, key in enumerate(keys)]
    if v:
        _introsort(v, 0, len(v), 2 * (len(v).bit_length() - 1))
        _insertion_sort(v, 0, min(len(v), 16))
        for i in range(16, len(v)):
            _insert(v, i)
    return [number for _, number in v]


Pairs = list[tuple[int, int]]


def _before(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] > b[0]


def _introsort(v: Pairs, first: int, last: int, depth: int) -> None:
    """Partition until parts have at most 16 elements; too deep a part becomes a heap."""
    while last - first > 16:
        if depth == 0:
            _heap_sort(v, first, last)
            return
        depth -= 1
        middle = first + (last - first) // 2
        _median_to(v, first, first + 1, middle, last - 1)
        cut = _partition(v, first + 1, last, first)
        _introsort(v, cut, last, depth)
        last = cut


def _median_to(v: Pairs, to: int, a: int, b: int, c: int) -> None:
    """Swap the median of three with the element at `to`."""
    if _before(v[a], v[b]):
        median = b if _before(v[b], v[c]) else c if _before(v[a], v[c]) else a
    else:
        median = a if _before(v[a], v[c]) else c if _before(v[b], v[c]) else b
    v[to], v[median] = v[median], v[to]


def _partition(v: Pairs, first: int, last: int, pivot: int) -> int:
    while True:
        while _before(v[first], v[pivot]):
            first += 1
        last -= 1
        while _before(v[pivot], v[last]):
            last -= 1
        if first >= last:
            return first
        v[first], v[last] = v[last], v[first]
        first += 1


def _insert(v: Pairs, at: int) -> None:
    """Move an element to the left until none that belongs behind it is before it."""
    value = v[at]
    while _before(value, v[at - 1]):
        v[at] = v[at - 1]
        at -= 1
    v[at] = value


def _insertion_sort(v: Pairs, first: int, last: int) -> None:
    for i in range(first + 1, last):
        if _before(v[i], v[first]):
            v.insert(first, v.pop(i))
        else:
            _insert(v, i)


def _heap_sort(v: Pairs, first: int, last: int) -> None:
    count = last - first
    for parent in range((count - 2) // 2, -1, -1):
        _sift(v, first, parent, count, v[first + parent])
    for end in range(count - 1, 0, -1):
        value = v[first + end]
        v[first + end] = v[first]
        _sift(v, first, 0, end, value)


def _sift(v: Pairs, first: int, hole: int, count: int, value: tuple[int, int]) -> None:
    """Lead the hole down to a leaf, then the value up from there."""
    top = hole
    child = hole
    while child < (count - 1) // 2:
        child = 2 * (child + 1)
        if _before(v[first + child], v[first + child - 1]):
            child -= 1
        v[first + hole] = v[first + child]
        hole = child
    if count % 2 == 0 and child == (count - 2) // 2:
        child = 2 * (child + 1)
        v[first + hole] = v[first + child - 1]
        hole = child - 1
    while hole > top and _before(v[first + (hole - 1) // 2], value):
        v[first + hole] = v[first + (hole - 1) // 2]
        hole = (hole - 1) // 2
    v[first + hole] = value


# --- Token files --------------------------------------------------------------------------------

# Code of an index: how struct names the type of a token.
TOKEN_TYPES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H", 9: "I", 10: "Q"}
MAPPED_MAGIC = b"MMIDIDX\0\0"
LEGACY_MAGIC = b"TNTIDX\0\0"
HUFFMAN_MAGIC = b"HUFFIDX\0"


class TokenFile:
    """PREFIX.bin with PREFIX.idx: sentences of token ids.

    kind is "mapped", "megatron" (the same with an index of documents) or "legacy"; sizes are the
    tokens of each sentence, as the index says.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        if os.path.exists(self.prefix):
            raise Refused(f"{prefix}: raw text")
        index = Path(f"{prefix}.idx").read_bytes()
        self._data = Path(f"{prefix}.bin").read_bytes()
        if index.startswith(MAPPED_MAGIC):
            self._read_mapped(index)
        elif index.startswith(LEGACY_MAGIC):
            self._read_legacy(index)
        else:
            raise Refused(f"{prefix}.idx: not an index that is read here: {index[:8]!r}")

    def _type_of(self, code: int) -> str:
        if code not in TOKEN_TYPES:
            raise Refused(f"{self.prefix}.idx: code {code} is of no integers")
        return TOKEN_TYPES[code]

    def _read_mapped(self, index: bytes) -> None:
        version, self.code, count = struct.unpack_from("<QBQ", index, 9)
        if version != 1:
            raise Refused(f"{self.prefix}.idx: version {version} is not 1")
        self._type = self._type_of(self.code)
        at = 26
        self.documents: list[int] = []
        self.kind = "mapped"
        if len(index) != 26 + 12 * count:
            (documents,) = struct.unpack_from("<Q", index, 26)
            at = 34
            if len(index) != at + 12 * count + 8 * documents:
                raise Refused(f"{self.prefix}.idx: {len(index)} bytes, {count} sentences")
            self.kind = "megatron"
            self.documents = list(struct.unpack_from(f"<{documents}q", index, at + 12 * count))
        self.sizes = list(struct.unpack_from(f"<{count}i", index, at))
        self._offsets = list(struct.unpack_from(f"<{count}q", index, at + 4 * count))
        self._added = 0

    def _read_legacy(self, index: bytes) -> None:
        version, self.code, width, count, dimensions = struct.unpack_from("<5Q", index, 8)
        if version != 1:
            raise Refused(f"{self.prefix}.idx: version {version} is not 1")
        self._type = self._type_of(self.code)
        if width != struct.calcsize(self._type):
            raise Refused(f"{self.prefix}.idx: {width} bytes for code {self.code}")
        longs = struct.unpack_from(f"<{2 * (count + 1) + dimensions}q", index, 48)
        firsts = longs[: count + 1]
        places = longs[count + 1 : 2 * (count + 1)]
        sizes = longs[2 * (count + 1) :]
        self.kind = "legacy"
        self.documents = []
        self.sizes = [sizes[firsts[i]] for i in range(count)]
        self._offsets = [places[i] * width for i in range(count)]
        self._added = 1  # to every id that is stored

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> list[int]:
        size, offset = self.sizes[number], self._offsets[number]
        if size < 0 or offset < 0 or offset + size * struct.calcsize(self._type) > len(self._data):
            raise Refused(f"{self.prefix}: sentence {number} lies outside of the file")
        stored = struct.unpack_from(f"<{size}{self._type}", self._data, offset)
        return [token - self._added for token in stored]


def is_token_file(prefix: str) -> bool:
    """Tell if both files are there."""
    return os.path.exists(prefix + ".bin") and os.path.exists(prefix + ".idx")


# --- Dictionaries -------------------------------------------------------------------------------


class Dictionary:
    """Symbols and their ids: `symbols` has one for every id, `id_of` one id for every symbol."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.symbols = list(SPECIALS)
        self.id_of = {symbol: number for number, symbol in enumerate(SPECIALS)}
        if path is not None:
            with open(path, encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    self._read_line(f"{path}:{number}", line)

    def _read_line(self, where: str, line: str) -> None:
        parts = line.rstrip().rsplit(" ", 1)
        overwrite = parts[-1] == "#fairseq:overwrite"
        if overwrite:
            parts = parts[0].rsplit(" ", 1)
        if len(parts) != 2:
            raise Refused(f"{where}: not a symbol and a count")
        symbol, count = parts
        try:
            int(count)
        except ValueError:
            raise Refused(f"{where}: {count!r} is no count") from None
        if symbol in self.id_of and not overwrite:
            raise Refused(f"{where}: {symbol!r} is there already")
        self._append(symbol)

    def _append(self, symbol: str) -> None:
        self.id_of[symbol] = len(self.symbols)
        self.symbols.append(symbol)

    def add(self, symbol: str) -> int:
        """Add a symbol behind the others; one that is there keeps its id."""
        if symbol not in self.id_of:
            self._append(symbol)
        return self.id_of[symbol]

    def __getitem__(self, symbol: str) -> int:
        return self.id_of.get(symbol, UNKNOWN)

    def __len__(self) -> int:
        return len(self.symbols)


# --- Configuration ------------------------------------------------------------------------------


@dataclass
class LangToks:
    """Tokens of a category; a spec that is None stands for no token."""

    category: str
    source_spec: str | None = None
    target_spec: str | None = None


@dataclass
class ExtraData:
    """Data of another category."""

    category: str
    directory: list[str]
    lang_pairs: list[str]


def _of(stage: str, default: Any = None, enum: bool = False) -> Any:
    """A field of the configuration of a stage; with that default it is left out of the text."""
    metadata = {"stages": stage.split(), "enum": enum}
    if default in ([], {}):
        return field(default_factory=type(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Config:
    """The fields of BitextSourceConfig, EpochPlannerConfig and BitextCollatorConfig.

    Names, meanings and defaults are theirs (proto/stages/bitext.proto); values of enumerations are
    text. sampling_weights maps keys to weights. compat is the source's and the planner's.
    """

    compat: str = _of("source planner", "NONE", enum=True)

    directory: list[str] = _of("source", [])
    lang_pairs: list[str] = _of("source", [])
    langs: list[str] = _of("source", [])
    lang_dict: str | None = _of("source")
    subsets: list[str] = _of("source", [])
    combine: bool = _of("source", False)
    dictionary: str | None = _of("source")
    source_dictionary: str | None = _of("source")
    target_dictionary: str | None = _of("source")
    encoder_langtok: str = _of("source", "NO_LANGTOK", enum=True)
    decoder_langtok: bool = _of("source", False)
    lang_tok_style: str = _of("source", "MULTILINGUAL", enum=True)
    langtoks_specs: list[str] = _of("source", [])
    langtoks: list[LangToks] = _of("source", [])
    add_data_source_prefix_tags: bool = _of("source", False)
    extra_symbols: list[str] = _of("source", [])
    final_symbols: list[str] = _of("source", [])
    upsample_primary: int = _of("source", 1)
    truncate_source: int | None = _of("source")
    lang_tok_replacing_bos_eos: bool = _of("source", False)
    extra_data: list[ExtraData] = _of("source", [])
    ignore_main_data: bool = _of("source", False)
    allow_missing: bool | None = _of("source")
    warm_up: bool = _of("source", False)

    sampling_method: str = _of("planner", "CONCAT", enum=True)
    sampling_temperature: float = _of("planner", 1.5)
    sampling_weights: dict[str, float] = _of("planner", {})
    sampling_weights_file: str | None = _of("planner")
    virtual_data_size: int | None = _of("planner")
    virtual_epoch_size: int | None = _of("planner")
    use_local_shard_size: bool = _of("planner", False)
    max_tokens: int | None = _of("planner")
    batch_size: int | None = _of("planner")
    required_batch_size_multiple: int = _of("planner", 8)
    max_source_positions: int = _of("planner", 1024)
    max_target_positions: int = _of("planner", 1024)
    seed: int | None = _of("planner")
    update_ordered_indices_seed: bool = _of("planner", False)
    one_dataset_per_batch: bool = _of("planner", False)
    curriculum: int = _of("planner", 0)
    world_size: int = _of("planner", 1)
    update_freq: list[int] = _of("planner", [])
    epoch_remainder_batch: bool = _of("planner", False)
    stand_in_first: bool = _of("planner", False)
    start_epoch: int = _of("planner", 1)
    start_batch: int = _of("planner", 0)
    validation: bool = _of("planner", False)
    single_direction: bool = _of("planner", False)

    threads: int = _of("collator", 1)
    left_pad_source: bool = _of("collator", True)
    left_pad_target: bool = _of("collator", False)
    compact: bool = _of("collator", False)
    pad_to_multiple: int = _of("collator", 1)
    pad_to_fixed_length: bool = _of("collator", False)
    fixed_source_length: int | None = _of("collator")
    fixed_target_length: int | None = _of("collator")
    enable_lang_ids: bool = _of("collator", False)
    lineage: bool = _of("collator", False)


def to_textproto(config: Config, source: str = "", planner: str = "", collator: str = "") -> str:
    """Write the three stages of a feed as text, called "bitext", "plans" and "batches".

    Fields that have their defaults are left out; what is given for a stage follows its fields.
    """
    text = {"source": source, "planner": planner, "collator": collator}
    lines = []
    for stage, name, kind, before in (
        ("source", "bitext", "bitext_source", None),
        ("planner", "plans", "epoch_planner", "bitext"),
        ("collator", "batches", "bitext_collator", "plans"),
    ):
        lines += ["stages {", f'  name: "{name}"', f"  {kind} {{"]
        if before is not None:
            lines.append(f'    input: "{before}"')
        for entry in fields(config):
            if stage in entry.metadata["stages"]:
                lines += _field_lines(entry.name, getattr(config, entry.name), entry)
        lines += [f"    {text[stage]}"] if text[stage] else []
        lines += ["  }", "}"]
    return "\n".join(lines) + "\n"


def _field_lines(name: str, value: Any, entry: Any) -> Iterator[str]:
    """Lines of a field; none if it has its default."""
    if value is None or value == entry.default or value in ([], {}):
        return
    if isinstance(value, Mapping):
        for key, weight in value.items():
            yield f"    {name} {{ key: {_scalar(key)} weight: {_scalar(weight)} }}"
        return
    for element in value if isinstance(value, list) else [value]:
        if isinstance(element, (LangToks, ExtraData)):
            inner = []
            for part in fields(element):
                got = getattr(element, part.name)
                for one in got if isinstance(got, list) else [got] if got is not None else []:
                    inner.append(f"{part.name}: {_scalar(one)}")
            yield f"    {name} {{ {' '.join(inner)} }}"
        elif entry.metadata["enum"]:
            yield f"    {name}: {element}"
        else:
            yield f"    {name}: {_scalar(element)}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


# --- What there is to read ----------------------------------------------------------------------

# Tags of folds, in the order in which dictionaries get them.
FOLD_TAGS = {
    "train_mining": "<MINED_DATA>",
    "train_mmt_bt": "<MMT_BT_DATA>",
    "train_smt_bt": "<SMT_BT_DATA>",
}


def languages(config: Config) -> list[str]:
    """List the languages in the order of their tokens."""
    if config.langs:
        return list(config.langs)
    if config.lang_dict is not None:
        lines = Path(config.lang_dict).read_text(encoding="utf-8").splitlines()
        return [line.strip() for line in lines if line.strip()]
    return sorted({language for pair in config.lang_pairs for language in pair.split("-")})


def language_token(language: str, style: str, spec: str) -> str:
    """Spell the token of a language."""
    for ending in ("dae", "lm", "mined"):
        if spec.endswith(ending):
            language = f"{language}_{ending}"
            break
    return f"[{language}]" if style == "MBART" else f"__{language}__"


def load_dictionary(config: Config, path: str | Path) -> Dictionary:
    """Read a dictionary and add the symbols that training adds."""
    dictionary = Dictionary(path)
    for spec in config.langtoks_specs or ["main"]:
        for language in languages(config):
            dictionary.add(language_token(language, config.lang_tok_style, spec))
    if config.lang_tok_style == "MBART":
        dictionary.add("<mask>")
    for symbol in config.extra_symbols:
        dictionary.add(symbol)
    if config.add_data_source_prefix_tags:
        for symbol in FOLD_TAGS.values():
            dictionary.add(symbol)
    for symbol in config.final_symbols:
        dictionary.add(symbol)
    return dictionary


@dataclass
class Part:
    """A pair of token files, as often as it counts."""

    source: TokenFile
    target: TokenFile
    repeat: int = 1
    source_tag: int | None = None

    def __len__(self) -> int:
        return len(self.source) * self.repeat


class Direction:
    """A direction in one of its shards."""

    def __init__(self, key: str, number: int, shards: int, shard: int, parts: list[Part]) -> None:
        self.key = key
        self.number = number
        self.shards = shards
        self.shard = shard
        self.parts = parts
        self.encoder_token: int | None = None
        self.decoder_token: int | None = None
        self.replaces_eos = False
        self.truncate_source: int | None = None
        self.source_lang_id = 0
        self.target_lang_id = 0

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def _find(self, number: int) -> tuple[Part, int]:
        for part in self.parts:
            if number < len(part):
                return part, number % len(part.source)
            number -= len(part)
        raise Refused(f"{self.key}: sentence {number} behind the last")

    def sizes(self, number: int) -> tuple[int, int]:
        """Lengths that decide about order and batches: computed from those of the files."""
        part, place = self._find(number)
        source, target = part.source.sizes[place], part.target.sizes[place]
        if self.truncate_source is not None:
            source = min(source, self.truncate_source - 1) + 1
        source += part.source_tag is not None
        if not self.replaces_eos:
            source += self.encoder_token is not None
            target += self.decoder_token is not None
        return source, target

    def sentence(self, number: int) -> tuple[list[int], list[int]]:
        """Tokens of both sides, with what stands before them."""
        part, place = self._find(number)
        source, target = part.source[place], part.target[place]
        if self.truncate_source is not None:
            source = truncated(source, self.truncate_source)
        if part.source_tag is not None:
            source = [part.source_tag, *source]
        if not self.replaces_eos:
            if self.encoder_token is not None:
                source = [self.encoder_token, *source]
            if self.decoder_token is not None:
                target = [self.decoder_token, *target]
        return source, target


def truncated(tokens: Sequence[int], length: int) -> list[int]:
    """Cut a sentence to a length, `</s>` included."""
    words = list(tokens)
    while words and words[-1] == EOS:
        words.pop()
    while words and words[0] == EOS:
        words.pop(0)
    return [*words[: length - 1], EOS]


def shard_count(directories: Sequence[str], pair: str, folds: Sequence[str], compat: str) -> int:
    """Count the directories with an index of a direction, of any fold."""
    found = 0
    for directory in directories:
        for name in os.listdir(directory):
            parts = name.split(".")
            begins = any(name.startswith(f if compat == "MAIN" else f + ".") for f in folds)
            if begins and name.endswith(".idx") and len(parts) >= 3 and parts[-3] == pair:
                found += 1
                break
    return found


class Corpus:
    """All directions of a configuration: keys, shards, dictionaries; opens them shard by shard."""

    def __init__(self, config: Config) -> None:
        if config.compat not in ("NLLB", "MAIN"):
            raise Refused("compat is neither NLLB nor MAIN")
        self.config = config
        self.subsets = config.subsets or ["train"]
        if config.compat == "MAIN" and len(self.subsets) > 1:
            raise Refused("MAIN has one subset")
        if config.combine and config.compat != "MAIN":
            raise Refused("combine is MAIN's")
        categories = [("main", config.directory, config.lang_pairs)]
        if config.ignore_main_data:
            categories.clear()
        categories += [(e.category, e.directory, e.lang_pairs) for e in config.extra_data]
        # Directions: key, category, source and target language, directories, shards.
        self.directions: list[tuple[str, str, str, str, list[str], int]] = []
        self.sharded = False
        allow_missing = config.allow_missing
        if allow_missing is None:
            allow_missing = config.compat == "NLLB"
        for category, directories, pairs in categories:
            self.sharded = self.sharded or len(directories) > 1
            for pair in pairs:
                source, target = pair.split("-")
                shards = shard_count(directories, pair, self.subsets, config.compat)
                shards = shards or shard_count(
                    directories, f"{target}-{source}", self.subsets, config.compat
                )
                if shards > 0:
                    key = f"{category}:{pair}"
                    self.directions.append((key, category, source, target, directories, shards))
                elif not allow_missing:
                    raise Refused(f"{category}:{pair}: no files")
        if not self.directions:
            raise Refused("no direction has files")
        first = (config.directory or categories[0][1])[0]
        self.dictionaries = self._load_dictionaries(first)
        self._files: dict[str, TokenFile] = {}
        self._open: dict[tuple[int, int], Direction] = {}

    def _load_dictionaries(self, directory: str) -> dict[tuple[str, str], Dictionary]:
        """Dictionaries by side and language."""
        config = self.config
        loaded: dict[str, Dictionary] = {}
        result = {}
        for _, _, source, target, _, _ in self.directions:
            for side, language, given in (
                ("source", source, config.source_dictionary),
                ("target", target, config.target_dictionary),
            ):
                path = given or config.dictionary or f"{directory}/dict.{language}.txt"
                if path not in loaded:
                    loaded[path] = load_dictionary(config, path)
                result[side, language] = loaded[path]
        for side in ("source", "target"):
            of_side = [d.symbols for (which, _), d in result.items() if which == side]
            if any(symbols != of_side[0] for symbols in of_side):
                raise Refused(f"the dictionaries of the {side} languages differ")
        return result

    def _tokens(self, category: str, source: str, target: str) -> tuple[int | None, int | None]:
        """The tokens before the source and before the target."""
        config = self.config
        specs: tuple[str | None, str | None] = (None, None)
        if category == "main":
            encoder = {"NO_LANGTOK": None, "SRC": "src", "TGT": "tgt"}[config.encoder_langtok]
            specs = (encoder, "tgt" if config.decoder_langtok else None)
        for entry in config.langtoks:
            if entry.category == category:
                specs = (entry.source_spec, entry.target_spec)
        encoder_token = decoder_token = None
        if specs[0]:
            language = source if specs[0].startswith("src") else target
            encoder_token = self._token("source", source, language, specs[0])
        if specs[1]:
            decoder_token = self._token("target", target, target, specs[1])
        return encoder_token, decoder_token

    def _token(self, side: str, of: str, language: str, spec: str) -> int:
        symbol = language_token(language, self.config.lang_tok_style, spec)
        number = self.dictionaries[side, of][symbol]
        if number == UNKNOWN:
            raise Refused(f"{symbol} is not in the dictionary of {of}")
        return number

    def folds_of(self, directory: str, source: str, target: str) -> list[tuple[str, str, str]]:
        """Folds that are there: name, and the files of both sides."""
        names = list(self.subsets)
        if self.config.combine:
            names += [f"{names[0]}{number}" for number in range(1, 10000)]
        found = []
        for fold in names:
            for one, other in ((source, target), (target, source)):
                if one != source and self.config.compat == "NLLB" and "bt" in fold.split("_"):
                    continue
                prefix = f"{directory}/{fold}.{one}-{other}."
                if is_token_file(prefix + source):
                    found.append((fold, prefix + source, prefix + target))
                    break
            else:
                if self.config.combine:
                    break
        return found

    def open(self, number: int, shard: int) -> Direction:
        """Open a direction in a shard."""
        if (number, shard) not in self._open:
            self._open[number, shard] = self._make(number, shard)
        return self._open[number, shard]

    def _make(self, number: int, shard: int) -> Direction:
        config = self.config
        key, category, source, target, directories, shards = self.directions[number]
        parts = []
        folds = self.folds_of(directories[shard], source, target)
        if not folds and config.compat == "MAIN":
            raise Refused(f"{key}: no files in {directories[shard]}")
        for fold, one, other in folds:
            for prefix in (one, other):
                if prefix not in self._files:
                    self._files[prefix] = TokenFile(prefix)
            part = Part(self._files[one], self._files[other])
            if len(part.source) != len(part.target):
                raise Refused(f"{one}: {len(part.source)} and {len(part.target)} sentences")
            if config.add_data_source_prefix_tags and fold in FOLD_TAGS:
                part.source_tag = self.dictionaries["source", source][FOLD_TAGS[fold]]
            parts.append(part)
        if len(parts) > 1:
            parts[0].repeat = config.upsample_primary
        direction = Direction(key, number, shards, shard, parts)
        direction.encoder_token, direction.decoder_token = self._tokens(category, source, target)
        direction.replaces_eos = config.lang_tok_replacing_bos_eos
        direction.truncate_source = config.truncate_source
        order = languages(config)
        if config.enable_lang_ids:
            direction.source_lang_id = order.index(source) + 1
            direction.target_lang_id = order.index(target) + 1
        return direction


# --- Sampling -----------------------------------------------------------------------------------

# The last 32 bits of the SHA-1 of the names of the data sets, which seed the draws.
SEED_OF_SET = 1944279108  # SampledMultiDataset
SEED_OF_EPOCH_SET = 2770590817  # SampledMultiEpochDataset


def temperature_ratios(sizes: Sequence[int], temperature: float) -> list[float]:
    """Ratios of directions by their sizes; they don't sum to 1."""
    total = sum(sizes)
    return [math.pow(size / total, 1 / temperature) for size in sizes]


def virtual_size(ratios: Sequence[float] | None, sizes: Sequence[int], given: int | None) -> int:
    """Count the sentences of a pass over the data."""
    if ratios is None:
        return sum(sizes)
    if given is not None:
        return given
    largest = sizes.index(max(sizes))
    if ratios[largest] == 0:
        raise Refused("the largest direction has no weight")
    wanted = 0.0
    for ratio in ratios:
        wanted += ratio / ratios[largest] * sizes[largest]
    limit = 1.5 * sum(sizes)
    return int(wanted) if wanted < limit else int(limit)


def truncated_counts(ratios: Sequence[float], total: int) -> tuple[list[float], list[int]]:
    """Shares of directions, and how many whole sentences of the total each gives."""
    weight = pairwise_sum(ratios)
    if weight == 0:
        raise Refused("all weights are 0")
    shares = [ratio / weight for ratio in ratios]
    return shares, [int(float(total) * share) for share in shares]


def draw_sentences(
    ratios: Sequence[float] | None, sizes: Sequence[int], total: int, random: LegacyRandom
) -> list[list[int]]:
    """Draw the sentences of a pass, direction by direction."""
    if ratios is None:
        return [list(range(size)) for size in sizes]
    shares, counts = truncated_counts(ratios, total)
    for direction in random.by_probability(shares, total - sum(counts)):
        counts[direction] += 1
    drawn = []
    for count, size in zip(counts, sizes, strict=True):
        if count <= size:
            drawn.append(random.permutation(size)[:count])
        elif size == 0:
            raise Refused(f"{count} sentences of a direction that has none")
        else:
            drawn.append(random.with_replacement(size, count))
    return drawn


class VirtualSet:
    """The data set of all directions at their shards, and what has been drawn of it.

    With virtual epochs it is handed out in slices; it then also says when the next shard is due.
    """

    def __init__(
        self,
        config: Config,
        directions: list[Direction],
        ratios: list[float] | None,
        shard_epoch: int | None,
    ) -> None:
        self.directions = directions
        self.ratios = ratios
        self.sizes = [len(direction) for direction in directions]
        self.total = virtual_size(ratios, self.sizes, config.virtual_data_size)
        self.shard_epoch = 1 if shard_epoch is None else shard_epoch
        self.load_next_shard = False
        self.virtual_epoch_size: int | None = None
        self.virtual_epochs = 1
        if config.virtual_epoch_size is not None:
            self.virtual_epoch_size = min(config.virtual_epoch_size, self.total)
            if self.virtual_epoch_size > 0:
                self.virtual_epochs = -(-self.total // self.virtual_epoch_size)
        self.epoch_drawn: int | None = None
        self.drawn: list[list[int]] = []
        self.global_order: list[int] | None = None
        self.start = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw what this epoch draws."""
        if self.virtual_epoch_size is None:
            self._draw(epoch, SEED_OF_SET)
            return
        self.start = (epoch - 1) % self.virtual_epochs * self.virtual_epoch_size
        made_just_now = self.global_order is None
        if made_just_now or self.start == 0:
            self._draw(epoch, SEED_OF_EPOCH_SET)
            self.global_order = LegacyRandom([SEED_OF_EPOCH_SET, 2, epoch]).permutation(self.total)
            if not made_just_now:
                self.shard_epoch += 1
                self.load_next_shard = True

    def _draw(self, epoch: int, seed: int) -> None:
        random = LegacyRandom([seed, 2, epoch])
        self.drawn = draw_sentences(self.ratios, self.sizes, self.total, random)
        self.epoch_drawn = epoch

    def rows(self) -> list[Row]:
        """The sentences of the epoch, in the order of its virtual indices."""
        rows = [(number, index) for number, of in enumerate(self.drawn) for index in of]
        if self.virtual_epoch_size is None:
            return rows
        assert self.global_order is not None
        end = self.start + self.virtual_epoch_size
        return [rows[place] for place in self.global_order[self.start : end]]


# --- Order and batches --------------------------------------------------------------------------


def sort_by_length(order: Sequence[int], sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Sort by source length, then by target length; the order given decides the rest."""
    order = sorted(order, key=lambda x: sizes[x][1])
    return sorted(order, key=lambda x: sizes[x][0])


def batch_lengths(
    costs: Sequence[int], max_tokens: int | None, batch_size: int | None, multiple: int
) -> list[int]:
    """Cut a list of sentences, given by their costs, into batches."""
    if max_tokens is not None and any(cost > max_tokens for cost in costs):
        raise Refused(f"a sentence is longer than {max_tokens} tokens")
    cuts: list[int] = []  # the ends of batches
    start = end = longest = longest_waiting = 0
    for place, cost in enumerate(costs):
        longest_waiting = max(longest_waiting, cost)
        rows = place + 1 - start
        width = max(longest, longest_waiting)
        over = (batch_size is not None and rows > batch_size) or (
            max_tokens is not None and rows * width > max_tokens
        )
        fits = rows < multiple or rows % multiple == 0
        if over:
            cuts.append(end)
            start = end
            if max_tokens is not None and longest_waiting * (place + 1 - end) > max_tokens:
                cuts.append(place)
                start = place
                longest_waiting = cost
            width = longest_waiting
        if over or fits:
            end = place + 1
            longest = width
            longest_waiting = 0
    cuts += [end, len(costs)]
    lengths = []
    last = 0
    for cut in cuts:
        if cut > last:
            lengths.append(cut - last)
            last = cut
    return lengths


def cut_batches(
    config: Config, order: Sequence[int], sizes: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """Cut an order into batches of virtual indices."""
    lengths = batch_lengths(
        [max(sizes[x]) for x in order],
        config.max_tokens,
        config.batch_size,
        config.required_batch_size_multiple,
    )
    batches = []
    at = 0
    for length in lengths:
        batches.append(list(order[at : at + length]))
        at += length
    if config.compat == "MAIN":
        if not batches:
            raise Refused("no sentence is within the limits")
        if len(batches[-1]) % config.required_batch_size_multiple != 0:
            batches.pop()
    return batches


# --- Collation ----------------------------------------------------------------------------------


def _width(config: Config, rows: Iterable[Sequence[int]], positions: int) -> int:
    """Columns of an array with these rows."""
    width = max(len(row) for row in rows)
    if config.pad_to_fixed_length:
        width = max(width, positions)
    return -(-width // config.pad_to_multiple) * config.pad_to_multiple


def _padded(tokens: Sequence[int], width: int, left: bool) -> list[int]:
    padding = [PAD] * (width - len(tokens))
    return [*padding, *tokens] if left else [*tokens, *padding]


def _collate_rows(
    config: Config, directions: Sequence[Direction], rows: Sequence[Row], widths: tuple[int, int]
) -> Batch:
    """Collate rows to the widths given, the longest source first."""
    sentences = [directions[number].sentence(index) for number, index in rows]
    lengths = [sum(token != PAD for token in source) for source, _ in sentences]
    order = descending_order(lengths)
    batch: Batch = {name: [] for name in ("direction", "id", *TENSORS)}
    for place in order:
        source, target = sentences[place]
        shifted = [EOS, *target[:-1]] if target else []
        batch["direction"].append(rows[place][0])
        batch["id"].append(rows[place][1])
        batch["src_tokens"].append(_padded(source, widths[0], config.left_pad_source))
        batch["src_lengths"].append(lengths[place])
        batch["prev_output_tokens"].append(_padded(shifted, widths[1], config.left_pad_target))
        batch["target"].append(_padded(target, widths[1], config.left_pad_target))
    batch["ntokens"] = sum(token != PAD for _, target in sentences for token in target)
    batch["nsentences"] = len(rows)
    return batch


def _replace_eos(config: Config, direction: Direction, batch: Batch) -> None:
    """Put the tokens of a direction in the places of `</s>`."""
    if direction.encoder_token is not None:
        for row, length in zip(batch["src_tokens"], batch["src_lengths"], strict=True):
            last = -1 if config.left_pad_source else length - 1
            if row[last] != EOS:
                raise Refused(f"{direction.key}: a source does not end in </s>")
            row[last] = direction.encoder_token
    if direction.decoder_token is not None:
        if config.left_pad_target:
            raise Refused("left-padded targets and lang_tok_replacing_bos_eos")
        for row in batch["prev_output_tokens"]:
            row[0] = direction.decoder_token


def collate(config: Config, directions: Sequence[Direction], rows: Sequence[Row]) -> Batch:
    """Make a batch of rows, without what says where it stands in the epoch."""
    sentences = [directions[number].sentence(index) for number, index in rows]
    # The task's own limits on positions, whatever the model's are.
    least = (
        config.fixed_source_length or config.max_source_positions,
        config.fixed_target_length or config.max_target_positions,
    )
    widths = (
        _width(config, (source for source, _ in sentences), least[0]),
        _width(config, (target for _, target in sentences), least[1]),
    )
    if config.lang_tok_replacing_bos_eos and config.validation and config.single_direction:
        # A direction's own data set: nothing is put together out of parts, nor sorted again.
        batch = _collate_rows(config, directions, rows, widths)
        _replace_eos(config, directions[0], batch)
        lang_ids = [directions[0]] * len(rows)
    elif not config.lang_tok_replacing_bos_eos:
        batch = _collate_rows(config, directions, rows, widths)
        lang_ids = [directions[0]] * len(rows)
    else:
        parts = []
        for direction in directions:
            of_direction = [row for row in rows if row[0] == direction.number]
            if of_direction:
                part = _collate_rows(config, directions, of_direction, widths)
                _replace_eos(config, direction, part)
                parts.append(part)
        lengths = [length for part in parts for length in part["src_lengths"]]
        order = descending_order(lengths)
        batch = {}
        for name in ("direction", "id", *TENSORS):
            stacked = [row for part in parts for row in part[name]]
            batch[name] = [stacked[place] for place in order]
        batch["ntokens"] = sum(part["ntokens"] for part in parts)
        batch["nsentences"] = len(rows)
        lang_ids = [directions[number] for number in batch["direction"]]
    if config.enable_lang_ids:
        batch["src_lang_id"] = [[direction.source_lang_id] for direction in lang_ids]
        batch["tgt_lang_id"] = [[direction.target_lang_id] for direction in lang_ids]
    return batch


def digest(batch: Mapping[str, Any]) -> str:
    """SHA-256 of the arrays in TENSORS: of each the shape, then the values, as int64."""
    sha = hashlib.sha256()
    for name in TENSORS:
        values = batch[name]
        shape = [len(values)]
        if name != "src_lengths":
            shape.append(len(values[0]) if values else 0)
            values = [token for row in values for token in row]
        sha.update(struct.pack(f"<{len(shape)}q{len(values)}q", *shape, *values))
    return sha.hexdigest()


# --- Epochs -------------------------------------------------------------------------------------


@dataclass
class Epoch:
    """An epoch: what was drawn, how it was cut, and who gets which batch."""

    config: Config
    number: int
    first: int  # batch of a rank that it begins with: above 0 after a resume within it
    directions: list[Direction]
    rows: list[Row]  # by virtual index
    sizes: list[tuple[int, int]]  # by virtual index: of source and target
    order: list[int]  # virtual indices by length
    kept: list[int]  # of these, within the limits
    frozen_batches: list[list[int]]  # of virtual indices, before the shuffle
    shuffled: list[list[int]]
    data: VirtualSet | None  # as it is at this epoch; none for validation
    _collated: dict[tuple[int, ...], Batch] = field(default_factory=dict)

    @property
    def per_rank(self) -> int:
        """Batches of a rank, before any are dropped."""
        return -(-len(self.shuffled) // self.config.world_size)

    @property
    def update_freq(self) -> int:
        """Batches of a rank that make one update."""
        frequencies = self.config.update_freq or [1]
        return frequencies[min(self.number, len(frequencies)) - 1]

    @property
    def taken(self) -> range:
        """The batches of a rank that are used, by their number in the rank's list."""
        config = self.config
        drop = config.compat == "NLLB" and not (config.epoch_remainder_batch or config.validation)
        every = 1 if config.validation else self.update_freq
        last = max(0, self.per_rank - drop)
        if every > 1:
            groups = last // every if drop else -(-last // every)
            groups -= -(-self.first // every)
            last = min(last, self.first + groups * every)
        return range(self.first, max(self.first, last))

    @property
    def groups(self) -> list[range]:
        """The same, cut into updates."""
        taken, every = self.taken, self.update_freq
        return [taken[at : at + every] for at in range(0, len(taken), every)]

    def batch(self, number: int) -> Batch:
        """A batch of the shuffled list; behind its end stands the stand-in."""
        if number >= len(self.shuffled):
            return self._made(self.frozen_batches[0], STAND_IN, len(self.shuffled))
        return self._made(self.shuffled[number], BATCH, number)

    def _made(self, indices: Sequence[int], kind: int, number: int) -> Batch:
        key = tuple(indices)
        if key not in self._collated:
            rows = [self.rows[x] for x in indices]
            self._collated[key] = collate(self.config, self.directions, rows)
        return {**self._collated[key], "epoch": self.number, "batch": number, "kind": kind}

    @property
    def stand_in(self) -> Batch | None:
        """The first batch before the shuffle."""
        if not self.frozen_batches:
            return None
        return self._made(self.frozen_batches[0], STAND_IN, len(self.shuffled))

    @property
    def ranks(self) -> list[list[Batch]]:
        """What each rank gets, in order."""
        ranks = []
        for rank in range(self.config.world_size):
            batches = [self.batch(place * self.config.world_size + rank) for place in self.taken]
            if self.config.stand_in_first and self.stand_in is not None:
                batches.insert(0, {**self.stand_in, "kind": FIRST_STAND_IN})
            ranks.append(batches)
        return ranks

    def rest(self, batch: int, world_size: int | None = None) -> Epoch:
        """The epoch from a batch over all ranks on, as if the run had not been interrupted.

        world_size is that of the ranks from now on; batch is a multiple of it.
        """
        config = replace(self.config, world_size=world_size or self.config.world_size)
        if batch % config.world_size != 0:
            raise Refused("the batch is no multiple of world_size")
        return replace(self, config=config, first=batch // config.world_size)

    def stream(self) -> list[Batch]:
        """The batches of all ranks as a feed numbers them: one of each rank in turn."""
        return [batch for turn in zip(*self.ranks, strict=True) for batch in turn]

    def state_after(self, batches: int) -> dict[str, Any]:
        """What a checkpoint holds after so many batches of a rank."""
        shuffle = self.number > self.config.curriculum
        ended = batches >= len(self.taken)
        return {
            "version": 2,
            "epoch": self.number + ended,
            "iterations_in_epoch": 0 if ended else self.first + batches,
            "shuffle": shuffle,
        }

    @property
    def state_at_end(self) -> dict[str, Any]:
        """What a checkpoint holds at the end of the epoch."""
        return self.state_after(len(self.taken))


class Reference:
    """A training run, or one of validation, from config.start_epoch and config.start_batch on.

    What is drawn in an epoch can depend on those before it in the same run, so a run that begins
    at a later epoch can differ from one that has come there: that is what a resume does.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        of_nllb = config.use_local_shard_size or config.one_dataset_per_batch
        if config.compat == "MAIN" and of_nllb:
            raise Refused("use_local_shard_size and one_dataset_per_batch are NLLB's")
        if config.single_direction and (config.compat == "MAIN" or not config.validation):
            raise Refused("single_direction is of NLLB's validation")
        if config.validation and config.one_dataset_per_batch:
            raise Refused("one_dataset_per_batch is of training")
        if self._cuts_once and config.virtual_epoch_size is not None:
            raise Refused("MAIN's batches by RoundRobin are those of one slice, for all slices")
        if config.start_batch % config.world_size != 0:
            raise Refused("start_batch is no multiple of world_size")
        self.corpus = Corpus(config)
        self.keys = [direction[0] for direction in self.corpus.directions]
        if config.single_direction and len(self.keys) != 1:
            raise Refused("single_direction: several directions")
        self._weights = self._read_weights()
        self._epochs: list[Epoch] = []
        self._data: VirtualSet | None = None
        self._recorded: dict[tuple[int, int], int] = {}  # sizes by direction and shard

    @property
    def seed(self) -> int:
        """The seed of order and shuffle."""
        return 1 if self.config.seed is None else self.config.seed

    @property
    def _cuts_once(self) -> bool:
        """Are batches cut when a data set's iterator is made, and kept as long as the data set?"""
        return self.config.compat == "MAIN" and self.config.sampling_method == "ROUND_ROBIN"

    def resumed(self, epoch: int, iterations_in_epoch: int, **changes: Any) -> Reference:
        """The run that a checkpoint is continued with, as a new process makes it.

        iterations_in_epoch counts the batches of one rank; changes are of the configuration.
        """
        world = changes.get("world_size", self.config.world_size)
        start = {"start_epoch": epoch, "start_batch": iterations_in_epoch * world}
        return Reference(replace(self.config, **start, **changes))

    def epoch(self, number: int) -> Epoch:
        """An epoch of the run."""
        if number < self.config.start_epoch:
            raise Refused(f"epoch {number} is before the start of the run")
        while self.config.start_epoch + len(self._epochs) <= number:
            self._epochs.append(self._next(self.config.start_epoch + len(self._epochs)))
        return self._epochs[number - self.config.start_epoch]

    def epochs(self, count: int) -> list[Epoch]:
        """The first epochs of the run."""
        return [self.epoch(self.config.start_epoch + i) for i in range(count)]

    # --- Data -------------------------------------------------------------------------------

    def _read_weights(self) -> dict[str, float] | None:
        weights: Mapping[str, float] = self.config.sampling_weights
        if self.config.sampling_weights_file is not None:
            weights = json.loads(Path(self.config.sampling_weights_file).read_text())
        if not weights:
            return None
        full = {key if ":" in key else f"main:{key}": weight for key, weight in weights.items()}
        for key in self.keys:
            if key not in full:
                raise Refused(f"{key} has no weight")
        return full

    def _ratios(self, directions: list[Direction], epoch: int) -> list[float] | None:
        """Ratios of the directions when data are loaded at an epoch."""
        config = self.config
        shards = [(epoch - 1) % direction.shards for direction in directions]
        for direction, shard in zip(directions, shards, strict=True):
            self._recorded.setdefault((direction.number, shard), len(direction))
        if self._weights is not None:
            return [float(self._weights[key]) for key in self.keys]
        if config.sampling_method == "UNIFORM":
            return [1.0] * len(directions)
        if config.sampling_method != "TEMPERATURE":
            return None
        sizes = []
        for direction, shard in zip(directions, shards, strict=True):
            known = [self._recorded.get((direction.number, s)) for s in range(direction.shards)]
            if config.use_local_shard_size:
                sizes.append(self._recorded[direction.number, shard])
            else:
                largest = max(size for size in known if size is not None)
                sizes.append(sum(largest if size is None else size for size in known))
        if sum(sizes) == 0:
            raise Refused("no direction has a sentence")
        return temperature_ratios(sizes, config.sampling_temperature)

    def _load(self, epoch: int, shard_epoch: int | None) -> VirtualSet:
        k = epoch if shard_epoch is None else shard_epoch
        shards = [direction[-1] for direction in self.corpus.directions]
        directions = [self.corpus.open(i, (k - 1) % count) for i, count in enumerate(shards)]
        return VirtualSet(self.config, directions, self._ratios(directions, epoch), shard_epoch)

    def _data_of(self, epoch: int) -> VirtualSet:
        """The data set at an epoch; epochs are asked for in order."""
        config = self.config
        virtual = config.virtual_epoch_size
        if self._data is None:
            shard_epoch = None
            if virtual is not None and config.virtual_data_size is not None:
                shard_epoch = (epoch - 1) // -(-config.virtual_data_size // virtual) + 1
            self._data = self._load(epoch, shard_epoch)
        elif self.corpus.sharded and virtual is None:
            self._data = self._load(epoch, epoch)
        elif self.corpus.sharded and self._data.load_next_shard:
            self._data = self._load(epoch, self._data.shard_epoch)
        self._data.set_epoch(epoch)
        return self._data

    # --- Plan -------------------------------------------------------------------------------

    def _next(self, number: int) -> Epoch:
        config = self.config
        data = None
        if config.validation:
            directions = [self.corpus.open(i, 0) for i in range(len(self.keys))]
            rows = [(d.number, index) for d in directions for index in range(len(d))]
        else:
            data = self._data_of(number)
            directions = data.directions
            rows = data.rows()
        sizes = [directions[direction].sizes(index) for direction, index in rows]
        # The epoch in which the iterator was made: with most methods every epoch has its own.
        made_in = 1 if config.validation else number
        if self._cuts_once and not config.validation and not self.corpus.sharded:
            made_in = config.start_epoch
        seed = self.seed
        if config.update_ordered_indices_seed and not config.validation:
            seed += made_in
        orders = self._orders(seed + made_in if self._cuts_once else seed, rows, sizes)
        kept = [[x for x in order if self._fits(sizes[x])] for order in orders]
        frozen = [batch for order in kept for batch in cut_batches(config, order, sizes)]
        shuffled = list(frozen)
        # Whether it shuffles, the iterator keeps.
        if not config.validation and made_in > config.curriculum:
            LegacyRandom(seed + number).shuffle(shuffled)
        epoch = Epoch(
            config=config,
            number=number,
            first=config.start_batch // config.world_size if number == config.start_epoch else 0,
            directions=directions,
            rows=rows,
            sizes=sizes,
            order=[x for order in orders for x in order],
            kept=[x for order in kept for x in order],
            frozen_batches=frozen,
            shuffled=shuffled,
            data=copy.copy(data),  # its lists are replaced when it draws again, not changed
        )
        if epoch.first > 0 and epoch.first >= epoch.per_rank:
            raise Refused(f"epoch {number} has only {epoch.per_rank} batches of a rank")
        return epoch

    def _orders(
        self, seed: int, rows: Sequence[Row], sizes: Sequence[tuple[int, int]]
    ) -> list[list[int]]:
        """Virtual indices by length: one list, or one of each direction."""
        config = self.config
        random = LegacyRandom(seed)
        if config.one_dataset_per_batch:
            orders = []
            for number in range(len(self.keys)):
                order = [x for x, row in enumerate(rows) if row[0] == number]
                random.shuffle(order)
                orders.append(sort_by_length(order, sizes))
            return orders
        # The set of all directions that validation makes keeps the order of their files, also where
        # there is but one; that of a direction by itself does not.
        drawn = not config.validation or config.single_direction
        if not drawn and not config.lang_tok_replacing_bos_eos:
            order = list(range(len(rows)))
        else:
            order = random.permutation(len(rows))
        return [sort_by_length(order, sizes)]

    def _fits(self, sizes: tuple[int, int]) -> bool:
        config = self.config
        limits = (config.max_source_positions, config.max_target_positions)
        if config.max_tokens is not None and not config.validation:
            limits = (min(limits[0], config.max_tokens), min(limits[1], config.max_tokens))
        return sizes[0] <= limits[0] and sizes[1] <= limits[1]
