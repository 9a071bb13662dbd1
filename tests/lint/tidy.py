#!/usr/bin/env python3
"""Runs clang-tidy with .clang-tidy over the C++ that changed, or over all of it.

    tests/lint/tidy.py                      what changed since the base, and what is not committed
    tests/lint/tidy.py --base HEAD~3        since another commit
    tests/lint/tidy.py --all                every source of the product
    tests/lint/tidy.py workers/io shm/src/ring.cc

It reads build/release/compile_commands.json, so build first. Sources of a folder are read several
at a time, as one. What changed and is not read within --minutes is named at the end, and is no
failure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lint.commits import base_of  # noqa: E402

# Tests are read by their compiler alone.
SOURCES = ("shm/", "workers/", "supervisor/", "pyclient/")
BATCH = 10
# As in cmake/options.cmake.
CLANG = ("-fconstexpr-steps=16777216", "-Wno-unknown-warning-option")
# Of a source's command: what clang has no use for, and the precompiled header, which is GCC's.
_WITHOUT = re.compile(r"-W(?!no-)\S*|-include|\S+cmake_pch\.hxx|-o|\S+\.o|-c|-fPI[CE]|-fpch-\S+")


def commands(build: Path) -> dict[str, tuple[str, ...]]:
    """Source below the root to its flags; those compiled as one have the flags of that one."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = Path(entry["file"])
        words = shlex.split(entry["command"])[1:]
        flags = tuple(
            word for word in words if word != entry["file"] and not _WITHOUT.fullmatch(word)
        )
        sources = [str(file)]
        if file.name.startswith("unity_") and file.is_file():
            sources = re.findall(r'#include "([^"]+)"', file.read_text())
        for source in sources:
            if source.startswith(f"{ROOT}/") and not source.startswith(f"{build}/"):
                found.setdefault(source[len(str(ROOT)) + 1 :], flags)
    return found


def wanted(changed: list[str], known: dict[str, tuple[str, ...]]) -> list[str]:
    """The sources to read for these files: a header by that of its name, or by an includer."""
    sources: list[str] = []
    for path in changed:
        if path in known:
            sources.append(path)
        elif path.endswith((".h", ".hpp")):
            stem = Path(path).stem
            beside = [one for one in known if Path(one).stem == stem]
            if not beside:
                needle = f'{Path(path).name}"'
                beside = [one for one in known if needle in (ROOT / one).read_text()]
            sources += beside[:1]
    return list(dict.fromkeys(sources))


def tidy(name: Path, flags: tuple[str, ...], build: Path, more: list[str]) -> str:
    """What clang-tidy says of one file; nothing if it finds nothing."""
    command = ["nice", "clang-tidy", "--quiet", f"--config-file={ROOT / '.clang-tidy'}", *more]
    done = subprocess.run(
        [*command, str(name), "--", *flags, *CLANG],
        cwd=build,
        capture_output=True,
        text=True,
        check=False,
    )
    text = done.stdout.strip() or (done.stderr.strip() if done.returncode else "")
    return text.replace(f"{ROOT}/", "")


def read(files: list[str], flags: tuple[str, ...], build: Path, folder: Path) -> list[str]:
    """What there is to say of these sources. Several are read as one, if they compile so."""
    if len(files) > 1:
        whole = folder / f"{files[0].replace('/', '_')}.cc"
        whole.write_text("".join(f'#include "{ROOT / file}"\n' for file in files))
        found = tidy(whole, flags, build, ["--checks=-bugprone-suspicious-include"])
        if "[clang-diagnostic-error" not in found:
            return [found] if found else []
    answers = (tidy(ROOT / file, flags, build, []) for file in files)
    return [found for found in answers if found]


def main() -> int:
    parser = argparse.ArgumentParser(description="clang-tidy over what changed")
    parser.add_argument("files", nargs="*", help="sources, headers or folders")
    parser.add_argument("--all", action="store_true", help="every source")
    parser.add_argument("--base", help="the commit since which files have changed")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=5, help="for changed files")
    args = parser.parse_args()
    if not (args.build / "compile_commands.json").is_file():
        sys.exit(f"tidy: {args.build} has no compile_commands.json: build first")
    known = {
        path: flags
        for path, flags in commands(args.build).items()
        if path.startswith(SOURCES) and path.endswith(".cc")
    }
    if args.all:
        sources = list(known)
    elif args.files:
        folders = tuple(f"{file.rstrip('/')}/" for file in args.files)
        sources = [path for path in known if path.startswith(folders)]
        sources += wanted([file for file in args.files if (ROOT / file).is_file()], known)
    else:
        sources = wanted(changed_files(args.base), known)
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for path in sorted(set(sources)):
        groups[os.path.dirname(path), known[path]].append(path)
    batches = [
        (ones[at : at + BATCH], flags)
        for (_, flags), ones in groups.items()
        for at in range(0, len(ones), BATCH)
    ]
    end = time.monotonic() + args.minutes * 60
    passed, failed, unread = 0, 0, list[str]()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:

        def run(batch: tuple[list[str], tuple[str, ...]]) -> list[str] | None:
            if not args.all and not args.files and time.monotonic() > end:
                return None
            return read(*batch, args.build, Path(folder))

        for batch, found in zip(batches, pool.map(run, batches), strict=True):
            if found is None:
                unread += batch[0]
            elif found:
                failed += 1
                print("\n".join(found), flush=True)
            else:
                passed += 1
    if unread:
        print(f"tidy: {args.minutes:g} minutes are over; not read: {' '.join(unread)}")
    print(f"tidy: {passed} passed, {failed} failed")
    return 1 if failed else 0


def changed_files(base: str | None) -> list[str]:
    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return [line for line in done.stdout.split("\n") if line and (ROOT / line).is_file()]

    new = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", base or base_of(ROOT)), *new})


if __name__ == "__main__":
    sys.exit(main())
