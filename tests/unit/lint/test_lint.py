"""Each check of tests/lint finds what it is there to find, and lets pass what is as it should
be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lint import (
    commits,
    cpp,
    docs,
    kinds,
    lengths,
    mistakes,
    rooms,
    sources,
    style,
    tables,
    tidy,
)
from tests.lint.tree import Problem, Tree

MakeTree = Callable[[dict[str, str]], Tree]
ROOMS = """
[rooms]
"shm" = []
"workers/lc0" = ["shm", "proto/config"]
"workers/chess" = []
"pyclient/ringfeed" = ["pyclient/ringfeed/*"]
"pyclient/ringfeed/_core" = []
"pyclient/ringfeed/torch" = ["pyclient/ringfeed/_core"]
[packages]
"*" = ["numpy"]
"pyclient/ringfeed/torch" = ["torch"]
[[never]]
headers = true
below = ["workers"]
what = ["proto/"]
why = "no protobuf in headers"
[exceptions]
"""
DOMAINS = {
    "workers/lc0/CMakeLists.txt": "ringfeed_domain(\n  lc0\n  STAGES\n  unpacker\n  pool\n  SOURCES\n  tar)\n",
    "proto/stages/lc0.proto": "message UnpackerConfig {\n}\n",
}


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    def make(files: dict[str, str]) -> Tree:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
            if text.startswith("#!"):
                (tmp_path / name).chmod(0o755)
        return Tree(tmp_path, files)

    return make


def said(problems: list[Problem]) -> list[str]:
    return [str(problem) for problem in problems]


def test_code_is_what_is_left_without_comments_and_literals() -> None:
    text = 'f("a // b"); // "c"\ng(\'"\', 10\'000);\nr = R"x(} " )x"; /* {\n */ h();'
    code = cpp.code(text)
    assert [len(line) for line in code.split("\n")] == [len(line) for line in text.split("\n")]
    assert "".join(code.split()) == "f(\"\");g('',10'000);r=R\";h();"
    assert '"a // b"' in cpp.code(text, literals=True)


class TestRooms:
    def test_an_include_against_the_arrows_is_named_with_its_line_and_rule(
        self, make_tree: MakeTree
    ) -> None:
        tree = make_tree(
            {
                rooms.RULES: ROOMS,
                "shm/src/ring.cc": '#include "workers/lc0/tar.h"\n',
                "workers/lc0/tar.h": "\n",
                "workers/lc0/tar.cc": '#include "ringfeed/shm/ring.h"\n#include "proto/config.pb.h"\n',
                "shm/include/ringfeed/shm/ring.h": "\n",
                "workers/chess/fen.cc": '\n#include "proto/config.pb.h"\n',
            }
        )
        assert said(rooms.check(tree)) == [
            "shm/src/ring.cc:1: shm may not include workers/lc0 (workers/lc0/tar.h): its line in"
            " tests/lint/rooms.toml allows nothing",
            "workers/chess/fen.cc:2: workers/chess may not include proto/config (proto/config.pb.h):"
            " its line in tests/lint/rooms.toml allows nothing",
        ]

    def test_headers_without_protobuf_stay_so(self, make_tree: MakeTree) -> None:
        tree = make_tree(
            {rooms.RULES: ROOMS, "workers/lc0/tar.h": '#include "proto/config.pb.h"\n'}
        )
        assert said(rooms.check(tree)) == [
            "workers/lc0/tar.h:1: proto/config.pb.h: no protobuf in headers"
        ]

    def test_an_exception_counts_once_and_not_longer_than_needed(self, make_tree: MakeTree) -> None:
        excepted = '"shm/src/ring.cc -> workers/lc0/*" = "a reason"\n"shm/a.cc -> b" = "gone"\n'
        tree = make_tree(
            {
                rooms.RULES: ROOMS + excepted,
                "shm/src/ring.cc": '#include "workers/lc0/tar.h"\n',
                "workers/lc0/tar.h": "\n",
            }
        )
        assert said(rooms.check(tree)) == [
            'tests/lint/rooms.toml: exception "shm/a.cc -> b" is needed no more: take its line out'
        ]

    def test_a_room_without_a_line_and_an_include_of_nothing_are_errors(
        self, make_tree: MakeTree
    ) -> None:
        tree = make_tree(
            {
                rooms.RULES: ROOMS,
                "workers/new/a.cc": '#include "workers/lc0/tar.h"\n#include "no/such.h"\n',
                "workers/lc0/tar.h": "\n",
            }
        )
        first, second = said(rooms.check(tree))
        assert first.startswith(
            "workers/new/a.cc: no room of tests/lint/rooms.toml holds this file"
        )
        assert second == 'workers/new/a.cc:2: "no/such.h": no file of the tree'

    def test_imports_are_followed_into_functions_and_not_into_type_checking(
        self, make_tree: MakeTree
    ) -> None:
        tree = make_tree(
            {
                rooms.RULES: ROOMS,
                "pyclient/ringfeed/_core/native.py": "from __future__ import annotations\n"
                "if TYPE_CHECKING:\n    from ..feed import Feed\n"
                "def f():\n    from ..feed import Feed\n    import torch\n"
                "import numpy, torch\n",
                "pyclient/ringfeed/feed.py": "from ._core import native\nimport ringfeed.torch\n",
                "pyclient/ringfeed/torch/__init__.py": "import torch\n",
            }
        )
        assert [(one.path, one.line) for one in rooms.check(tree)] == [
            ("pyclient/ringfeed/_core/native.py", 5),
            ("pyclient/ringfeed/_core/native.py", 7),
        ]


class TestKinds:
    def test_a_kind_is_named_in_its_own_domain_alone(self, make_tree: MakeTree) -> None:
        tree = make_tree(
            {
                **DOMAINS,
                "workers/lc0/unpacker.cc": 'auto kind = "unpacker";\n',
                "workers/chess/a.cc": "// as unpacker does\nbool b = c.has_unpacker();\nint unpackers;\n",
                "supervisor/feed/a.cc": 'if (kind == "unpacker") return;\n',
                "workers/kit/a.h": "int f(const UnpackerConfig& config);\n",
                "pyclient/ringfeed/a.py": '"""Of unpacker."""\n# unpacker\nx = "unpacker"\n',
                "supervisor/import/a.cc": 'f("unpacker");\n',
            }
        )
        assert [(one.path, one.line) for one in sorted(kinds.check(tree))] == [
            ("pyclient/ringfeed/a.py", 3),
            ("supervisor/feed/a.cc", 1),
            ("workers/chess/a.cc", 2),
            ("workers/kit/a.h", 1),
        ]

    def test_a_common_word_is_a_kind_only_where_it_must_be(self, make_tree: MakeTree) -> None:
        tree = make_tree(
            {
                "workers/python/CMakeLists.txt": "ringfeed_domain(python STAGES python)\n",
                "workers/chess/a.cc": "python::Random random;\nbool b = c.has_python();\n",
                "pyclient/ringfeed/a.py": 'x = "python"\n',
            }
        )
        assert [(one.path, one.line) for one in kinds.check(tree)] == [("workers/chess/a.cc", 2)]

    def test_the_list_of_known_ones_only_shrinks(self, make_tree: MakeTree) -> None:
        tree = make_tree(
            {
                **DOMAINS,
                kinds.KNOWN: 'kinds = ["workers/kit/a.cc pool", "workers/kit/a.cc unpacker"]\n',
                "workers/kit/a.cc": "bool b = c.has_pool();\n",
            }
        )
        assert said(kinds.check(tree)) == [
            'tests/lint/known.toml: "workers/kit/a.cc unpacker" is mended: take its line out'
        ]


class TestLengths:
    def test_functions_are_found_with_their_lines(self) -> None:
        text = (
            "namespace a {\n"
            "class B : public C {\n public:\n"
            "  B(int x) noexcept : C{x}, d_(x) {\n    f();\n  }\n"
            "  int d_ = 3;\n  std::array<int, 2> e_{1, 2};\n"
            "};\n"
            "template <typename T, int N = 3>\n"
            "T f(T t)\n{\n  if (t) {\n    return [&] { return t; }();\n  }\n}\n"
            "constexpr int kTable[] = {1, 2};\n"
            "bool operator==(A a, A b) { return true; }\n"
            "}\n"
        )
        found = [(one.name, one.first, one.last) for one in lengths.cpp_functions(cpp.code(text))]
        assert found == [("B", 4, 6), ("f", 10, 16), ("operator==", 18, 18)]

    def test_more_than_100_lines_are_too_many(self, make_tree: MakeTree) -> None:
        def function(lines: int) -> str:
            return "void f() {\n" + "  g();\n" * (lines - 2) + "}\n"

        python = "def f():\n" + "    g()\n" * 100
        tree = make_tree(
            {
                "shm/src/a.cc": function(101),
                "shm/src/b.cc": function(100),
                "scripts/c.py": python,
                "shm/src/known.cc": function(105),
                "shm/src/grown.cc": function(106),
                lengths.KNOWN: '[lengths]\n"shm/src/known.cc f" = 105\n"shm/src/grown.cc f" = 105\n'
                '"shm/src/b.cc f" = 104\n',
            }
        )
        assert said(sorted(lengths.check(tree))) == [
            "scripts/c.py:1: f has 101 lines: 100 are allowed",
            "shm/src/a.cc:1: f has 101 lines: 100 are allowed",
            "shm/src/grown.cc:1: f has 106 lines: 105 are allowed",
            'tests/lint/known.toml: "shm/src/b.cc f" is mended: take its line out',
        ]


class TestTables:
    @pytest.mark.parametrize(
        "comment",
        [
            "// name     meaning",
            "// - the first\n// - the second",
            "// 1. the first",
            "// starting --> running",
            "// ----------",
            "// -- name",
        ],
    )
    def test_what_the_formatter_would_break_is_found(
        self, make_tree: MakeTree, comment: str
    ) -> None:
        assert tables.check(make_tree({"shm/src/a.cc": f"{comment}\nint x;\n"}))

    @pytest.mark.parametrize(
        "comment",
        [
            "//   name     meaning",
            "//   - the first",
            "// A sentence.  Another one, of head -> tail.",
            '// Written as "a      b".',
            "// ---- name",
            "// ---- name ----",
            "int x;  // of the second\n        // kind",
        ],
    )
    def test_prose_and_what_is_indented_may_stand(self, make_tree: MakeTree, comment: str) -> None:
        assert tables.check(make_tree({"shm/src/a.cc": f"{comment}\nint x;\n"})) == []

    def test_a_layout_is_what_is_asserted_and_its_columns_are_straight(
        self, make_tree: MakeTree
    ) -> None:
        text = (
            "// Page (64 bytes):\n"
            "//   offset  size  field   written by\n"
            "//        0     8  header  lane\n"
            "//        8     8  of_long_name  lane\n"
            "//       16     8  tail    lane\n"
            "struct Page;\n"
            "static_assert(offsetof(Page, tail_) == 16 && offsetof(Page, header) == 0x8);\n"
            "static_assert(sizeof(Page) == 128);\n"
        )
        assert [one.line for one in tables.check(make_tree({"shm/a.h": text}))] == [4, 7, 8]


class TestSources:
    TREE = {
        "CMakeLists.txt": "add_subdirectory(shm)\nadd_subdirectory(tests)\n",
        "shm/CMakeLists.txt": "ringfeed_library(shm SOURCES src/ring.cc)\n",
        "shm/src/ring.cc": '#include "shm/src/ring.h"\n',
        "shm/src/ring.h": "#pragma once\n",
        "tests/CMakeLists.txt": "add_subdirectory(unit/shm)\n",
        "tests/unit/shm/CMakeLists.txt": "ringfeed_mirror(shm_test)\n",
        "tests/unit/shm/ring_test.cc": "\n",
        "tests/e2e/test_feed.py": "def test_a(): pass\n",
        "scripts/test": "#!/bin/bash\npytest tests/e2e\n",
    }

    def test_a_tree_in_order_passes(self, make_tree: MakeTree) -> None:
        assert sources.check(make_tree(self.TREE)) == []

    @pytest.mark.parametrize(
        ("path", "text"),
        [
            ("stray.txt", "\n"),
            ("shm/src/other.cc", "\n"),
            ("shm/src/other.h", "#pragma once\n"),
            ("shm/src/ring.h", "\n"),
            ("tests/unit/lc0/CMakeLists.txt", "ringfeed_mirror(lc0_test)\n"),
            ("tests/unit/workers/io/tar_test.cc", "\n"),
            ("tests/unit/test_stray.py", "def test_a(): pass\n"),
            ("tests/e2e/feed_check.py", "def test_a(): pass\n"),
            ("tests/e2e/web/test_feed.py", "def test_a(): pass\n"),
            ("tests/e2e/test_feed.py", "import pytest\nfrom conftest import BIN\n"),
            ("docs/a b.md", "\n"),
            ("docs/a.md", "no end"),
            ("docs/a.md", "a space \n"),
            ("docs/a.md", "<<<<<<< HEAD\n=======\n"),
            ("docs/a.md", "\udcff"),
            ("shm/src/ring.cc", '#include "shm/src/ring.h"\n// TODO: later\n'),
            ("scripts/big.py", "x" * 400_001 + "\n"),
        ],
    )
    def test_what_is_out_of_place_is_found(
        self, make_tree: MakeTree, tmp_path: Path, path: str, text: str
    ) -> None:
        tree = make_tree({**self.TREE, path: text.replace("\udcff", "x")})
        if "\udcff" in text:
            (tmp_path / path).write_bytes(b"\xff\xfe\n")
        assert path in {problem.path for problem in sources.check(tree)} | {
            str(Path(problem.path).parent) for problem in sources.check(tree)
        }

    def test_a_script_can_be_run(self, make_tree: MakeTree, tmp_path: Path) -> None:
        tree = make_tree(self.TREE)
        (tmp_path / "scripts/test").chmod(0o644)
        assert said(sources.check(tree)) == ["scripts/test: begins with #! and cannot be executed"]


class TestDocs:
    def check(self, make_tree: MakeTree, page: str, **more: str) -> list[str]:
        files = {
            "docs/page.md": page,
            "docs/other.md": "# A `name` of it\n",
            "shm/src/ring.cc": "\n",
        }
        return said(docs.check(make_tree({**files, **more})))

    def test_links_lead_to_files_and_headings(self, make_tree: MakeTree) -> None:
        good = "# Top\n[a](other.md#a-name-of-it), [b\nc](#top), [d](https://e.f), [g](../shm)\n"
        assert self.check(make_tree, good) == []
        bad = "[a](other.md#gone)\n\n[b](gone.md) [c](#gone)\n"
        assert [one.split(": ")[0] for one in self.check(make_tree, bad)] == [
            "docs/page.md:1",
            "docs/page.md:3",
            "docs/page.md:3",
        ]

    def test_files_that_are_named_exist(self, make_tree: MakeTree) -> None:
        assert self.check(make_tree, "`ring.cc`, `src/ring.cc`, `x.cc`, `a.b`, `f()`\n") == []
        assert self.check(make_tree, "`shm/ring.cc`\n") == [
            "docs/page.md:1: `shm/ring.cc`: there is no such file"
        ]

    def test_prose_is_wrapped_and_tables_need_not_be(self, make_tree: MakeTree) -> None:
        wide = "word " * 30 + "\n"
        assert self.check(make_tree, f"| {wide}\n```\n{wide}```\n{'x' * 130}\n") == []
        assert self.check(make_tree, wide) == [
            "docs/page.md:1: 150 columns: prose is wrapped at 120"
        ]
        known = {docs.KNOWN: '[docs]\nwide = ["docs/page.md", "docs/other.md"]\n'}
        assert self.check(make_tree, wide, **known) == [
            'tests/lint/known.toml: "docs/other.md" is wrapped: take its line out'
        ]

    def test_a_domains_page_has_a_line_for_each_source(self, make_tree: MakeTree) -> None:
        files = {
            "workers/lc0/README.md": "| file | what |\n|---|---|\n| `tar` | tars |\n| `gone` | |\n",
            "workers/lc0/tar.cc": "\n",
            "workers/lc0/new.cc": "\n",
            "workers/lc0/stage.cc": "\n",  # the reference has its page
            "workers/lc0/CMakeLists.txt": "ringfeed_domain(lc0 STAGES stage SOURCES tar new)\n",
            "workers/lc0/domain.h": "\n",
        }
        assert said(docs.check(make_tree(files))) == [
            "workers/lc0/README.md: its table has no line for `new`",
            "workers/lc0/README.md: its table has a line for `gone`, and there is no such file",
        ]


class TestCommits:
    @pytest.mark.parametrize(
        "subject",
        [
            "shm: wake a sleeping consumer late",
            "tests, supervisor: unwinding is loaded while a descriptor is to be had",
        ],
    )
    def test_a_room_and_what_changed(self, subject: str) -> None:
        assert commits.fault(subject) is None

    @pytest.mark.parametrize(
        "subject",
        ["Wake it", "kitchen: wake it", "shm:wake it", "shm: wake it.", "shm: " + "x" * 68],
    )
    def test_anything_else_is_refused(self, subject: str) -> None:
        assert commits.fault(subject) is not None

    def test_new_commits_are_those_since_the_base(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def git(*words: str) -> str:
            command = ["git", "-c", "user.name=a", "-c", "user.email=b", *words]
            return subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=True
            ).stdout.strip()

        def commit(subject: str) -> str:
            git("commit", "-q", "--allow-empty", "-m", subject)
            return git("rev-parse", "HEAD")

        git("init", "-q")
        commit("Old")
        monkeypatch.setattr(commits, "BASE", commit("Old too"))
        commit("shm: alpha")
        commit("Bad")
        assert [subject for _, subject in commits.new_commits(tmp_path)] == ["Bad", "shm: alpha"]
        assert len(commits.check(Tree(tmp_path, []))) == 1
        # A history without the base: the newest commit alone.
        monkeypatch.setattr(commits, "BASE", "0" * 40)
        assert [subject for _, subject in commits.new_commits(tmp_path)] == ["Bad"]
        # A shallow one: all that is there.
        (tmp_path / "shallow").mkdir()
        git("clone", "-q", "--depth", "2", f"file://{tmp_path}", "shallow/clone")
        shallow = commits.new_commits(tmp_path / "shallow/clone")
        assert [subject for _, subject in shallow] == ["Bad", "shm: alpha"]


class TestStyle:
    @pytest.mark.parametrize(
        ("tool", "path", "good", "bad"),
        [
            ("flake8", "tests/a.py", "x = 1\n", "import os\n"),
            ("black", "tests/a.py", "x = 1\n", "x  =  1\n"),
            ("mypy", "pyclient/ringfeed/__init__.py", "x: int = 1\n", "x: int = ''\n"),
        ],
    )
    def test_what_a_tool_finds_is_said_until_it_is_mended(
        self, make_tree: MakeTree, tool: str, path: str, good: str, bad: str
    ) -> None:
        settings = {
            "pyclient/.flake8": "[flake8]\n",
            "pyclient/pyproject.toml": "[tool.black]\nline-length = 100\n[tool.mypy]\n",
        }
        for text, wrong in ((bad, True), (good, False), (good, False), (bad, True)):
            assert bool(style.check(make_tree({**settings, path: text}), tool)) == wrong

    def test_types_have_to_do_without_frameworks_too(self, make_tree: MakeTree) -> None:
        pytest.importorskip("ml_dtypes")
        text = "import ml_dtypes\n\ndef of(one: object) -> str:\n    return ml_dtypes.__version__\n"
        settings = {"pyclient/pyproject.toml": "[tool.mypy]\nstrict = true\n"}
        tree = make_tree({**settings, "pyclient/ringfeed/__init__.py": text})
        problem, _ = style.check(tree, "mypy")  # and how many there are
        assert problem.path == "mypy without frameworks" and "Returning Any" in problem.text


class TestTidy:
    # Finds a word; of several sources as one it says that they do not compile where one says so.
    PROGRAM = """#!/usr/bin/env python3
import pathlib, re, sys
file = pathlib.Path(next(word for word in sys.argv if word.endswith(".cc")))
files = [pathlib.Path(one) for one in re.findall('#include "(/.*)"', file.read_text())] or [file]
text = "".join(one.read_text() for one in files)
if len(files) > 1 and "alone" in text:
    print(f"{file}:1: error: twice [clang-diagnostic-error]")
for one in files:
    if "bad" in one.read_text():
        print(f"{one}:1: error: bad [a-check]")
"""

    @pytest.fixture
    def build(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        build = tmp_path / "build/release"
        unity = build / "unity_0_cxx.cxx"
        files = {
            tmp_path / "bin/clang-tidy": self.PROGRAM,
            tmp_path / "shm/a.cc": "good\n",
            tmp_path / "shm/b.cc": "bad\n",
            tmp_path / "shm/b.h": "\n",
            tmp_path / "shm/inner.h": "\n",
            tmp_path / "tests/c_test.cc": '#include "shm/inner.h"\n',
            unity: f'#include "{tmp_path}/tests/c_test.cc"\n',
        }
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "bin/clang-tidy").chmod(0o755)
        flags = "-DA=1 -Wall -Wno-x -include b/cmake_pch.hxx -O2 -o x.o -c"
        sources = [tmp_path / "shm/a.cc", tmp_path / "shm/b.cc", unity, build / "made.cc"]
        entries = [{"file": str(one), "command": f"c++ {flags} {one}"} for one in sources]
        (build / "compile_commands.json").write_text(json.dumps(entries))
        monkeypatch.setattr(tidy, "ROOT", tmp_path)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        return build

    def test_sources_have_their_flags_without_what_is_gccs(self, build: Path) -> None:
        flags = ("-DA=1", "-Wno-x", "-O2")
        known = tidy.commands(build)
        assert known == {"shm/a.cc": flags, "shm/b.cc": flags, "tests/c_test.cc": flags}
        assert tidy.wanted(["shm/b.h", "shm/inner.h", "README.md"], known) == [
            "shm/b.cc",
            "tests/c_test.cc",
        ]

    @pytest.mark.parametrize("more", ["", "alone"])
    def test_what_is_found_fails(
        self,
        build: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        more: str,
    ) -> None:
        def run(*words: str) -> tuple[int, str]:
            monkeypatch.setattr(sys, "argv", ["tidy", "--build", str(build), *words])
            return tidy.main(), capsys.readouterr().out

        (tidy.ROOT / "shm/a.cc").write_text(more)
        bad = "shm/b.cc:1: error: bad [a-check]\n"
        assert run("--all") == (1, f"{bad}tidy: 0 passed, 1 failed\n")
        assert run("shm") == (1, f"{bad}tidy: 0 passed, 1 failed\n")
        assert run("shm/a.cc", "tests") == (0, "tidy: 1 passed, 0 failed\n"), "tests are left out"
        monkeypatch.setattr(tidy, "changed_files", lambda base: ["shm/a.cc", "shm/b.cc"])
        assert run("--minutes", "0") == (
            0,
            "tidy: 0 minutes are over; not read: shm/a.cc shm/b.cc\ntidy: 0 passed, 0 failed\n",
        )


def test_a_patch_that_does_not_fit_is_named(make_tree: MakeTree) -> None:
    patch = "It counts too early.\n--- a/{0}\n+++ b/{0}\n@@ -1,2 +1,2 @@\n first\n-{1}\n+other\n"
    tree = make_tree(
        {
            "workers/tar.cc": "first\nsecond\n",
            "tests/crash/mistakes/fits.patch": patch.format("workers/tar.cc", "second"),
            "tests/crash/mistakes/old.patch": patch.format("workers/tar.cc", "third"),
            "tests/crash/mistakes/lost.patch": patch.format("workers/zip.cc", "second"),
            "tests/crash/CMakeLists.txt": "planted_mistake(fits workers/tar.cc workers/a.cc)\n",
            "workers/CMakeLists.txt": "ringfeed_library(\n  x\n  ALONE\n  tar.cc)\n",
        }
    )
    problems = said(mistakes.check(tree))
    assert len(problems) == 3
    assert problems[0].startswith(
        "tests/crash/mistakes/lost.patch: does not fit its source any more: "
    )
    assert problems[1] == (
        "tests/crash/mistakes/old.patch: does not fit its source any more: Hunk #1 FAILED at 1."
    )
    assert problems[2] == (
        "tests/crash/CMakeLists.txt: workers/a.cc carries the mistake fits: name it behind ALONE"
    )
    assert tree.text("workers/tar.cc") == (tree.root / "workers/tar.cc").read_text()


def test_the_tree_is_what_git_would_take(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("/build/\n")
    (tmp_path / "build").mkdir()
    (tmp_path / "build/a.cc").write_text("")
    (tmp_path / "new.cc").write_text("")
    assert Tree(tmp_path).files == [".gitignore", "new.cc"]
