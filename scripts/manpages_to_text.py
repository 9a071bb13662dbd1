#!/usr/bin/env python3
"""Makes small parallel text from Debian's manual pages and their translations.

    scripts/manpages_to_text.py OUT_DIR deu_Latn fra_Latn

Downloads English manual pages and their translations (with apt-get download, which installs nothing
and does not need root). For each language it writes two files in which line i of one is the
translation of line i of the other:

    OUT_DIR/eng_Latn-deu_Latn.eng_Latn
    OUT_DIR/eng_Latn-deu_Latn.deu_Latn

scripts/text_to_bitext.py takes such files. They have some ten thousand pairs of sentences for each
language: enough to see a small model learn, not to translate.

A translated page has the paragraphs of the English one, since both come from one source. So two
pages are aligned by place, but only in sections in which both have the same sequence of headings,
paragraphs and lists. A paragraph is cut into sentences if both sides have equally many. Examples
and tables are left out, and so are sentences left in English, pairs with one side far longer than
the other, and repeated pairs.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Language by its name in the data, and by its names in Debian: of the directory, of the packages.
LANGUAGES = {
    "ces_Latn": ("cs", "cs"),
    "dan_Latn": ("da", "da"),
    "deu_Latn": ("de", "de"),
    "ell_Grek": ("el", "el"),
    "fin_Latn": ("fi", "fi"),
    "fra_Latn": ("fr", "fr"),
    "hun_Latn": ("hu", "hu"),
    "ind_Latn": ("id", "id"),
    "ita_Latn": ("it", "it"),
    "mkd_Cyrl": ("mk", "mk"),
    "nld_Latn": ("nl", "nl"),
    "nob_Latn": ("nb", "nb"),
    "pol_Latn": ("pl", "pl"),
    "por_Latn": ("pt_BR", "pt-br"),
    "ron_Latn": ("ro", "ro"),
    "rus_Cyrl": ("ru", "ru"),
    "spa_Latn": ("es", "es"),
    "srp_Cyrl": ("sr", "sr"),
    "swe_Latn": ("sv", "sv"),
    "ukr_Cyrl": ("uk", "uk"),
    "vie_Latn": ("vi", "vi"),
}
# Of these there is a package with pages for developers too.
_WITH_DEV = set(
    "ces_Latn dan_Latn deu_Latn fra_Latn ita_Latn nld_Latn pol_Latn por_Latn rus_Cyrl spa_Latn "
    "ukr_Cyrl".split()
)
ENGLISH = "eng_Latn"
# English pages of which there are translations in the packages above.
ENGLISH_PACKAGES = (
    "manpages manpages-dev bash bsdutils coreutils diffutils e2fsprogs fdisk findutils grep "
    "grub-common gzip kbd less mount procps psmisc systemd tar util-linux xz-utils".split()
)

_INLINE = {"B", "I", "R", "SB", "SM"}
_ALTERNATING = {"BI", "BR", "IB", "IR", "RB", "RI"}
_BREAKS = {"PP", "P", "LP", "HP", "sp", "RS", "RE", "br"}
_VERBATIM = {"nf": "fi", "EX": "EE", "TS": "TE", "de": ".", "de1": ".", "ig": ".", "EQ": "EN"}
_LINKS = {"UR", "UE", "MT", "ME"}

_CHARACTERS = {
    "aq": "'", "cq": "’", "oq": "‘", "dq": '"', "lq": "“", "rq": "”", "Bq": "„", "bq": "‚",
    "Fo": "«", "Fc": "»", "em": "—", "en": "–", "hy": "-", "bu": "•", "co": "©", "rg": "®",
    "ga": "`", "ha": "^", "ti": "~", "rs": "\\", "bv": "|", "or": "|", "sl": "/", "at": "@",
    "sh": "#", "Do": "$", "lB": "[", "rB": "]", "lC": "{", "rC": "}", "la": "<", "ra": ">",
    "->": "→", "<-": "←", "<=": "≤", ">=": "≥", "mu": "×", "+-": "±", "de": "°", "ss": "ß",
    ":a": "ä", ":o": "ö", ":u": "ü", ":A": "Ä", ":O": "Ö", ":U": "Ü", "'e": "é", "'E": "É",
}  # fmt: skip
_SIMPLE = {
    "-": "-",
    "e": "\\",
    "E": "\\",
    "~": " ",
    " ": " ",
    "0": " ",
    "'": "´",
    "`": "`",
    ".": ".",
}
_NOTHING = set("&|^/,:%)cptdu!?{}")
_ESCAPE = re.compile(
    r"""\\(?: f(?:\[[^\]]*\]|\(..|.)            # a font
          | s(?:\[[^\]]*\]|[+-]?\d)             # a size
          | m\[[^\]]*\]
          | [*]?\((?P<two>..)
          | [*]?\[(?P<long>[^\]]*)\]
          | (?P<one>.) )""",
    re.VERBOSE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^\W\d_])")

LENGTH_MAX = 2000  # characters of a side
RATIO_MAX = 2.0  # of the lengths of the two sides, from 40 characters on


class TextError(RuntimeError):
    """Why no text can be made; the message says what to do."""


# --- Pages --------------------------------------------------------------------------------------


def plain(text: str) -> str | None:
    """Take out what is for the typesetter; None if some of it is not known."""
    unknown = False

    def character(match: re.Match[str]) -> str:
        nonlocal unknown
        if (one := match["one"]) is not None:
            if one in _NOTHING:
                return ""
            if one in _SIMPLE:
                return _SIMPLE[one]
        elif (name := match["two"] or match["long"]) is None:
            return ""
        elif name in _CHARACTERS:
            return _CHARACTERS[name]
        elif re.fullmatch("u[0-9A-F]{4,6}", name):
            return chr(int(name[1:], 16))
        unknown = True
        return ""

    replaced = _ESCAPE.sub(character, text)
    return None if unknown else " ".join(replaced.split())


def arguments_of(text: str) -> list[str]:
    """Take apart the arguments of a macro: at spaces, except between quotes."""
    found = []
    for quoted, bare in re.findall(r'"((?:[^"]|"")*)"?|((?:\\.|[^\s\\])+)', text):
        found.append(quoted.replace('""', '"') if not bare else bare)
    return found


@dataclass
class Section:
    """A section: the sequence of its parts, and the text of each (None: not to be used)."""

    kinds: list[str] = field(default_factory=list)
    texts: list[str | None] = field(default_factory=list)


class PageReader:
    """Cuts the source of a page (man(7) macros) into sections and paragraphs."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self._kind = "P"
        self._lines: list[str] = []
        self._usable = True

    def read(self, source: str) -> list[Section] | None:
        """Give the sections, None for a page that is written in other macros."""
        if re.search(r"^\.(Dd|Sh) ", source, re.M):
            return None
        lines = iter(source.replace("\\\n", "").split("\n"))
        for line in lines:
            line = re.sub(r'\\["#].*', "", line)
            if line.startswith((".", "'")):
                self._request(line, lines)
            elif not line.strip():
                self._flush()
            else:
                self._text(line)
        self._flush()
        return self.sections

    def _request(self, line: str, lines: Iterator[str]) -> None:
        name, _, rest = line[1:].strip().partition(" ")
        if name in _VERBATIM:
            self._flush()
            self._put(name, None)
            for skipped in lines:
                if skipped.rstrip() == "." + _VERBATIM[name]:
                    break
        elif name in _INLINE:
            self._text(" ".join(arguments_of(rest)))
        elif name in _ALTERNATING:
            self._text("".join(arguments_of(rest)))
        elif name in ("SH", "SS"):
            self._flush()
            if name == "SH":
                self.sections.append(Section())
            self._kind = name
            # Without an argument the heading is the next line.
            if heading := " ".join(arguments_of(rest)):
                self._text(heading)
        elif name in ("TP", "TQ"):
            self._flush()
            self._kind = "tag"
        elif name == "IP":
            self._flush()
            given = arguments_of(rest)
            self._put("IP", plain(given[0]) if given else None)
        elif name in _BREAKS:
            self._flush()
            if name in ("RS", "RE"):
                self._put(name, None)
        elif name in _LINKS:
            self._usable = False

    def _text(self, line: str) -> None:
        self._lines.append(line)
        if self._kind in ("tag", "SH", "SS"):
            self._flush()

    def _flush(self) -> None:
        if self._lines:
            self._put(self._kind, plain(" ".join(self._lines)) if self._usable else None)
            self._kind = "P"
        self._lines = []
        self._usable = True

    def _put(self, kind: str, text: str | None) -> None:
        if self.sections:
            self.sections[-1].kinds.append(kind)
            self.sections[-1].texts.append(text)


def read_page(path: Path) -> list[Section] | None:
    """Read a page; None if it cannot be read or is no man(7) page in UTF-8."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return PageReader().read(file.read())
    except (OSError, EOFError, UnicodeDecodeError):
        return None


# --- Pairs --------------------------------------------------------------------------------------


def sentences_of(english: str, other: str) -> list[tuple[str, str]]:
    """Cut a pair of paragraphs into sentences if both have equally many."""
    one, two = (_SENTENCE_END.split(text) for text in (english, other))
    return list(zip(one, two)) if len(one) == len(two) else [(english, other)]


def why_not(english: str, other: str) -> str | None:
    """Say why a pair is of no use, None if it is."""
    if english == other:
        return "not translated"
    if any(sum(map(str.isalpha, text)) < 3 for text in (english, other)):
        return "without words"
    longer, shorter = sorted((len(english), len(other)), reverse=True)
    if longer > LENGTH_MAX or (longer > 40 and longer > RATIO_MAX * shorter):
        return "with lengths that differ too much"
    return None


def align(english: Sequence[Section], other: Sequence[Section]) -> Iterator[tuple[str, str]]:
    """Yield paragraphs and their translations from the sections that agree."""
    # A translated page has one section more, about the translation.
    if len(other) - len(english) not in (0, 1):
        return
    for one, two in zip(english, other):
        if one.kinds == two.kinds:
            for text, translated in zip(one.texts, two.texts):
                if text and translated:
                    yield text, translated


def pairs_of(man_dir: Path, directory: str, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of sentences of all pages of a language, each once, in the order of the pages."""
    seen = set()
    for path in sorted((man_dir / directory).glob("man*/*.gz")):
        original = man_dir / path.parent.name / path.name
        if not original.is_file():
            counts["pages without an English one"] += 1
            continue
        english, other = read_page(original), read_page(path)
        if english is None or other is None:
            counts["pages in other macros"] += 1
            continue
        counts["pages"] += 1
        for paragraphs in align(english, other):
            for pair in sentences_of(*paragraphs):
                if pair not in seen and (why := why_not(*pair)) is None:
                    seen.add(pair)
                    yield pair
                elif pair not in seen:
                    counts[f"pairs {why}"] += 1


def write_text(man_dir: Path, out_dir: Path, language: str) -> Counter[str]:
    """Write the two files of a language.

    Raises:
        TextError: There is not a single pair.
    """
    counts: Counter[str] = Counter()
    pairs = list(pairs_of(man_dir, LANGUAGES[language][0], counts))
    if not pairs:
        raise TextError(
            f"{man_dir}: no page in {language} agrees with an English one: check that both are "
            f"there, for example in man1 and {LANGUAGES[language][0]}/man1, say?"
        )
    counts["pairs"] = len(pairs)
    out_dir.mkdir(parents=True, exist_ok=True)
    for side, name in enumerate((ENGLISH, language)):
        path = out_dir / f"{ENGLISH}-{language}.{name}"
        path.write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return counts


# --- Packages -----------------------------------------------------------------------------------


def download(directory: Path, languages: Sequence[str]) -> Path:
    """Download and unpack the packages; what is there already is used again.

    Returns:
        The directory of manual pages.
    Raises:
        TextError: apt-get cannot get them.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise TextError(
            "apt-get and dpkg-deb are missing here: name a directory of pages with --man-dir"
        )
    wanted = list(ENGLISH_PACKAGES)
    for language in languages:
        package = f"manpages-{LANGUAGES[language][1]}"
        wanted.append(package)
        if language in _WITH_DEV:
            wanted.append(package + "-dev")
    directory.mkdir(parents=True, exist_ok=True)
    there = {path.name.split("_")[0] for path in directory.glob("*.deb")}
    if missing := [package for package in wanted if package not in there]:
        print(f"manpages_to_text: downloading {len(missing)} packages", file=sys.stderr)
        done = subprocess.run(
            ["apt-get", "download", "-qq", *missing],
            cwd=directory,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode != 0:
            raise TextError(
                f"{done.stderr.strip()}\napt-get download failed: run apt-get update as root first"
            )
    unpacked = directory / "unpacked"
    for path in sorted(directory.glob("*.deb")):
        unpack(path, unpacked)
    return unpacked / "usr/share/man"


def unpack(package: Path, directory: Path) -> None:
    """Unpack the manual pages of a package, and nothing else of it.

    Raises:
        TextError: It is no package, or not all of one.
    """
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as dpkg:
        try:
            with tarfile.open(fileobj=dpkg.stdout, mode="r|") as archive:
                for member in archive:
                    parts = Path(member.name).parts
                    # Links to pages are left out: they are the same pages once more.
                    if not member.isfile() or parts[:3] != ("usr", "share", "man"):
                        continue
                    if ".." not in parts and (page := archive.extractfile(member)) is not None:
                        path = directory.joinpath(*parts)
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(page.read())
        except tarfile.TarError as error:
            raise TextError(f"{package}: {error}: remove it to have it downloaded again") from error
    if dpkg.returncode != 0:
        raise TextError(
            f"{package}: dpkg-deb cannot read it: remove it to have it downloaded again"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: what was done goes to stderr."""
    parser = argparse.ArgumentParser(description="Make parallel text from manual pages.")
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path)
    parser.add_argument(
        "languages", metavar="LANGUAGE", nargs="+", choices=sorted(LANGUAGES), help="deu_Latn, ..."
    )
    parser.add_argument(
        "--man-dir", type=Path, help="directory of pages (default: download packages)"
    )
    parser.add_argument(
        "--packages-dir", type=Path, help="where to keep packages (OUT_DIR/packages)"
    )
    options = parser.parse_args(arguments)
    try:
        man_dir = options.man_dir
        if man_dir is None:
            packages_dir = options.packages_dir or options.out_dir / "packages"
            man_dir = download(packages_dir, options.languages)
        for language in options.languages:
            counts = write_text(man_dir, options.out_dir, language)
            said = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
            print(f"manpages_to_text: {language}: {said}", file=sys.stderr)
    except TextError as error:
        print(f"manpages_to_text: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
