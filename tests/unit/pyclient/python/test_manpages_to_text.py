"""From manual pages to parallel text: what of a page is text, and which pages are aligned."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TESTS.parent / "scripts"))

import manpages_to_text  # noqa: E402

ENGLISH = r""".\" A comment.
.TH OPEN 2 2023-02-05 Linux
.SH NAME
open \- open and possibly create a file
.SH SYNOPSIS
.nf
.B int open(const char *path);
.fi
.SH DESCRIPTION
The
.BR open ()
system call opens the file specified by
.IR pathname .
It returns a \(lqdescriptor\(rq, a small
number.
.PP
.TP
.B O_APPEND
The file is opened in
append mode.
.TP
.BR \-x ", " \-\-exclude
Leaves it out.
.IP \(bu 3
A point of the list.
.SS Errors
.UR http://example.org
A link
.UE .
.P
Never mind.
"""
# As po4a writes it: lines wrapped anew, fonts instead of macros, a section about itself.
GERMAN = r""".TH OPEN 2 "5. Februar 2023" Linux
.SH BEZEICHNUNG
open \- eine Datei öffnen und eventuell erzeugen
.SH ÜBERSICHT
.nf
\fBint open(const char *Pfad);\fP
.fi
.SH BESCHREIBUNG
Der Systemaufruf \fBopen\fP() öffnet die durch
\fIPfadname\fP angegebene Datei. Er gibt einen »Deskriptor« zurück, eine kleine Zahl.
.PP
.TP
\fBO_APPEND\fP
Die Datei wird im Anhängemodus geöffnet.
.TP
\fB\-x\fP, \fB\-\-exclude\fP
Lässt es aus.
.IP \(bu 3
Ein Punkt der Liste.
.SS Fehler
.UR http://example.org
Ein Verweis
.UE .
.P
Wie dem auch sei.
.SH ÜBERSETZUNG
Die deutsche Übersetzung wurde von jemandem erstellt.
"""
PAIRS = [
    ("NAME", "BEZEICHNUNG"),
    ("open - open and possibly create a file", "open - eine Datei öffnen und eventuell erzeugen"),
    ("SYNOPSIS", "ÜBERSICHT"),
    ("DESCRIPTION", "BESCHREIBUNG"),
    (
        "The open() system call opens the file specified by pathname.",
        "Der Systemaufruf open() öffnet die durch Pfadname angegebene Datei.",
    ),
    (
        "It returns a “descriptor”, a small number.",
        "Er gibt einen »Deskriptor« zurück, eine kleine Zahl.",
    ),
    ("The file is opened in append mode.", "Die Datei wird im Anhängemodus geöffnet."),
    ("Leaves it out.", "Lässt es aus."),
    ("A point of the list.", "Ein Punkt der Liste."),
    ("Errors", "Fehler"),
    ("Never mind.", "Wie dem auch sei."),
]


def write_page(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def pairs_of(man_dir: Path, pages: Mapping[str, str]) -> list[tuple[str, str]]:
    """Write pages, and run the program on them."""
    for name, text in pages.items():
        write_page(man_dir / name, text)
    out = man_dir / "out"
    arguments = [str(out), "deu_Latn", "--man-dir", str(man_dir)]
    assert manpages_to_text.main(arguments) == 0
    sides = [(out / f"eng_Latn-deu_Latn.{name}").read_text() for name in ("eng_Latn", "deu_Latn")]
    assert all(side.endswith("\n") for side in sides)
    one, two = (side.split("\n")[:-1] for side in sides)
    assert len(one) == len(two)
    return list(zip(one, two))


def test_a_page_and_its_translation_are_aligned_by_sentence(tmp_path: Path) -> None:
    assert pairs_of(tmp_path, {"man2/open.2.gz": ENGLISH, "de/man2/open.2.gz": GERMAN}) == PAIRS


def test_a_section_that_differs_is_left_out_and_no_other(tmp_path: Path) -> None:
    other = GERMAN.replace(".P\nWie dem auch sei.\n", "")
    assert other != GERMAN
    pages = {"man2/open.2.gz": ENGLISH, "de/man2/open.2.gz": other}
    assert pairs_of(tmp_path, pages) == PAIRS[:3]


def test_pages_with_other_sections_are_left_out(tmp_path: Path) -> None:
    more = GERMAN + ".SH MEHR\nNoch etwas mehr.\n"
    pages = {
        "man2/open.2.gz": ENGLISH,
        "de/man2/open.2.gz": more,
        "man1/x.1.gz": ".SH NAME\nA program.\n",
        "de/man1/x.1.gz": ".SH NAME\nEin Programm.\n",
    }
    assert pairs_of(tmp_path, pages) == [("A program.", "Ein Programm.")]


def test_paragraphs_with_other_numbers_of_sentences_stay_whole(tmp_path: Path) -> None:
    pages = {
        "man1/x.1.gz": ".SH ONE\nThis is so. That is not. Fine.\n",
        "de/man1/x.1.gz": ".SH EINS\nDies ist so, z. B. heute. Jenes nicht.\n",
    }
    assert pairs_of(tmp_path, pages)[1:] == [
        ("This is so. That is not. Fine.", "Dies ist so, z. B. heute. Jenes nicht.")
    ]


def test_pairs_without_use_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ".SH ONE\nA\n.P\nstays\n.P\n{}\n.P\nword\n.P\nword\n"
    pages = {
        "man1/x.1.gz": page.format("much longer than the other side " * 3),
        "de/man1/x.1.gz": page.format("viel kürzer").replace("word", "Wort").replace("A\n", "B\n"),
        "de/man1/only.1.gz": GERMAN,
        "man1/mdoc.1.gz": ".Dd May 1\n.Sh NAME\n",
        "de/man1/mdoc.1.gz": ".SH NAME\nEin Programm.\n",
    }
    assert pairs_of(tmp_path, pages) == [("word", "Wort")]
    assert capsys.readouterr().err == (
        "manpages_to_text: deu_Latn: 1 pages, 1 pages in other macros, 1 pages without an English "
        "one, 1 pairs, 2 pairs not translated, 1 pairs with lengths that differ too much, "
        "1 pairs without words\n"
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (r"\fBbold\fP, \f(CWwide\fR and \f[I]leaning\f[R]", "bold, wide and leaning"),
        (r"a\-b \(em c \[em] d \e \[u00E4] x\~y\ z", "a-b — c — d \\ ä x y z"),
        (r"\s-1small\s+1 \*(lqquoted\*(rq no\%break\|\&", "small “quoted” nobreak"),
        (r"a \[unheard-of] sign", None),
        (r"a number \n(.g", None),
    ],
)
def test_what_is_for_the_typesetter_is_taken_out(source: str, text: str | None) -> None:
    assert manpages_to_text.plain(source) == text


def test_arguments_of_macros_are_taken_apart() -> None:
    assert manpages_to_text.arguments_of(r'a "b c" \ d "e ""f""" g') == [
        "a",
        "b c",
        r"\ d",
        'e "f"',
        "g",
    ]


def test_without_a_pair_it_says_where_it_has_looked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path / "out"), "deu_Latn", "--man-dir", str(tmp_path)]
    assert manpages_to_text.main(arguments) == 1
    assert f"{tmp_path}: no page in deu_Latn" in capsys.readouterr().err


def make_package(path: Path, files: Mapping[str, str]) -> None:
    """Make a Debian package of manual pages, and something else."""
    root = path.parent / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n"
    )
    for name, text in files.items():
        write_page(root / "usr/share/man" / name, text)
    (root / "usr/bin").mkdir()
    (root / "usr/bin/x").write_text("no manual page")
    (root / "usr/share/man/man2/same.2.gz").symlink_to("open.2.gz")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", root, path], check=True)


def test_of_a_package_only_pages_are_unpacked(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    package = tmp_path / "made/x.deb"
    make_package(package, {"man2/open.2.gz": ENGLISH, "de/man2/open.2.gz": GERMAN})
    manpages_to_text.unpack(package, tmp_path / "unpacked")
    found = {str(p.relative_to(tmp_path)) for p in (tmp_path / "unpacked").rglob("*.*")}
    assert found == {
        "unpacked/usr/share/man/man2/open.2.gz",
        "unpacked/usr/share/man/de/man2/open.2.gz",
    }
    page = tmp_path / "unpacked/usr/share/man/de/man2/open.2.gz"
    assert gzip.decompress(page.read_bytes()).decode() == GERMAN


def test_a_damaged_package_is_named(tmp_path: Path) -> None:
    package = tmp_path / "x.deb"
    package.write_text("no package")
    with pytest.raises(manpages_to_text.TextError, match="x.deb"):
        manpages_to_text.unpack(package, tmp_path / "unpacked")
