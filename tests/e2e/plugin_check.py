"""docs/examples/own_stage, built against an installed ringfeed and nothing else, and a feed with it.
Run by scripts/package-check for a tree that `cmake --install` has made, and by scripts/wheel --check
for the wheel.

RINGFEED_CHECK_PREFIX    where ringfeed is installed
RINGFEED_CHECK_EXAMPLE   the folder own_stage
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ringfeed

PREFIX = Path(os.environ["RINGFEED_CHECK_PREFIX"]).resolve()
EXAMPLE = Path(os.environ["RINGFEED_CHECK_EXAMPLE"]).resolve()
RINGFEED = PREFIX / "bin" / "ringfeed"
# Of a C++ program on Linux, beside the one library.
SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6"}


def said(*words: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout}"
    return done.stdout


def built(compiler: str, build: Path) -> Path:
    strict = "-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror"
    said("cmake", "-S", EXAMPLE, "-B", build, f"-Dringfeed_ROOT={PREFIX}",
         f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_FLAGS={strict}")  # fmt: skip
    said("cmake", "--build", build)
    return build / "own_worker"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("c++", tmp_path_factory.mktemp("own_stage"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    lines = [json.dumps({"text": " ".join(["word"] * (i % 7))}) for i in range(500)]
    (data / "a.jsonl").write_text("\n".join(lines))
    return data


def test_its_own_tests_pass(worker: Path) -> None:
    told = said("ctest", "--test-dir", worker.parent, "--output-on-failure")
    assert re.search("100% tests passed.* out of 3", told), told


def test_a_feed_has_what_the_stage_lets_through(worker: Path, texts: Path, tmp_path: Path) -> None:
    words = ["run", EXAMPLE / "own_stage.textproto", "--worker", worker,
             "--set", f"stages.provider.directory={texts}"]  # fmt: skip
    feed = subprocess.Popen(
        [RINGFEED, *words], env={**os.environ, "RINGFEED_SOCKET_DIR": str(tmp_path)}
    )
    got: list[int] = []
    killed = False
    try:
        with ringfeed.attach(
            "own_stage", socket_dir=str(tmp_path), attach_timeout_s=60, timeout_s=60
        ) as batches:
            for batch in batches:
                got += batch["words"].tolist()
                if not killed:
                    (own,) = [
                        int(pid)
                        for pid in os.listdir("/proc")
                        if pid.isdigit() and runs_with(int(pid), feed.pid, "long")
                    ]
                    os.kill(own, signal.SIGKILL)
                    killed = True
                batch.release()
        assert feed.wait(60) == 0
    finally:
        feed.kill()
        feed.wait()
    assert got == [i % 7 for i in range(500) if i % 7 >= 3]


def runs_with(pid: int, parent: int, group: str) -> bool:
    """Is it the process of the stage group that has this stage first, of this supervisor?"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    name, rest = stat[stat.index("(") + 1 :].rsplit(")", 1)
    return int(rest.split()[1]) == parent and name.startswith(f"rf-{group}")


def test_it_needs_one_library(worker: Path) -> None:
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", said("readelf", "-d", worker)))
    (own,) = needed - SYSTEM
    assert re.fullmatch(r"libringfeed_worker\.so\.[0-9.]+", own)
    assert str(PREFIX / "lib" / own) in said("ldd", worker)
    # What the library is linked with stays in it.
    symbols = said("nm", "-DC", "--defined-only", PREFIX / "lib" / own).splitlines()
    names = [line.split(maxsplit=2)[2] for line in symbols if " A " not in line]
    foreign = [name for name in names if not re.match(r"((typeinfo|vtable).* )?ringfeed::", name)]
    assert names and not foreign


def test_another_compiler_builds_it(tmp_path: Path) -> None:
    worker = built("clang++", tmp_path / "build")
    assert "word_filter  (plug-in" in said(RINGFEED, "stages", "word_filter", "--worker", worker)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
