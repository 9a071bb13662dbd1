"""ringfeed's DataLoader beside PyTorch's and other loaders.

    dataloader_bench.py [--venv DIR] [--only PART...] [--peers NAME...] [--rounds 3] [--json FILE]

Parts: ready, jpeg, tiny, ragged, strings, records, views, special, first, start, memory, large,
trainers, resume.
Each figure is taken in a process of its own; the rounds are interleaved, and the table has the
medians with the rounds in brackets. Ratios are taken inside of a round. Processor time is that of
the whole tree, user and system, from the beginning to the end of the second epoch; the workers stay
where a loader can keep them. A loader that cannot is measured in the middle third of one iteration,
so that the start of workers is in no figure but those of start: iterators of loaders that keep no
workers, each from its beginning to its end. All have OMP_NUM_THREADS=1, as torchrun sets it.

The other loaders are installed into an environment of their own, below build/bench or at --venv, by
the lines of dataloader-requirements.txt. What cannot be installed, or fails, is left out by name.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tree_cost

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMITS = HERE / "dataloader-requirements.txt"
PIP_S = 900.0
CELL_S = 600.0
STRAYS_S = 5.0

# What is measured with which loaders: the first of them is the one that ratios are taken to.
LOADERS = ("torch", "torch-0", "stateful", "ringfeed")
# Of each work: batches an epoch.
BATCHES = {
    "ready": 128,
    "jpeg": 24,
    "tiny": 1024,
    "ragged": 512,
    "strings": 1024,
    "records": 512,
    "views": 256,
    "special": 128,
}
LARGE = 64  # batches of an epoch of large ones
PLACES = (1_000, 1_000_000)  # samples at which loaders are resumed


def peers_of(part: str) -> tuple[str, ...]:
    from dataloader_peers import PEERS

    if part == "ready":
        return tuple(PEERS)
    if part in BATCHES:
        return LOADERS
    if part == "resume":
        return ("stateful", "ringfeed")
    return tuple(name for name in LOADERS if name != "torch-0" or part == "first")


PARTS = (*BATCHES, "first", "start", "memory", "large", "trainers", "resume")


# ---- The environment of the peers


def installed(venv: Path, packages: tuple[str, ...]) -> str:
    """Empty, or why it cannot be had."""
    done = subprocess.run(
        [venv / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
        # Nothing is compiled for a measurement.
        + ["--only-binary=:all:", f"--constraint={LIMITS}", *packages],
        capture_output=True,
        text=True,
        timeout=PIP_S,
    )
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (lines or done.stderr.splitlines() or ["pip failed"])[-1]


def prepare(venv: Path, names: list[str]) -> dict[str, str]:
    """Makes the environment; by name of a peer, why it is left out."""
    from dataloader_peers import PEERS, TORCH

    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", str(venv)], check=True)
    stamp = venv / ".installed"
    wanted = sorted({TORCH, *(PEERS[name].packages for name in names if PEERS[name].packages)})
    text = LIMITS.read_text()
    known: dict[str, str] = {}
    if stamp.exists():
        kept = json.loads(stamp.read_text())
        known = kept["packages"] if kept["limits"] == text else {}
    for packages in [TORCH, *wanted]:
        word = " ".join(packages)
        if known.get(word) != "":
            known[word] = installed(venv, packages)
            if known[word]:
                print(f"{word}: not installed: {known[word]}", file=sys.stderr)
    stamp.write_text(json.dumps({"limits": text, "packages": known}))
    left_out = {
        name: known[" ".join(PEERS[name].packages)]
        for name in names
        if PEERS[name].packages and known[" ".join(PEERS[name].packages)]
    }
    if "ringfeed" in names:
        done = subprocess.run(
            [python, "-c", "from ringfeed.torch import DataLoader"],
            env=environment(),
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            left_out["ringfeed"] = done.stderr.strip().splitlines()[-1][:120]
    return left_out


# ---- One figure


def end_strays() -> int:
    """How many processes were still there after a figure; none is afterwards."""
    end = time.monotonic() + STRAYS_S
    while strays := tree_cost.below(os.getpid()):
        for pid in strays:
            if time.monotonic() > end:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return 0
        if time.monotonic() > end:
            return len(strays)
        time.sleep(0.02)
    return 0


def environment() -> dict[str, str]:
    package = os.environ.get("PYTHONPATH", str(ROOT / "pyclient"))
    python_path = os.pathsep.join([str(HERE), package])
    return {**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}


def cell(venv: Path, words: list[str]) -> dict[str, Any]:
    """One figure, or why there is none."""
    child = subprocess.Popen(
        [venv / "bin" / "python", "-W", "ignore", HERE / "dataloader_cell.py", *words],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=CELL_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        end_strays()
        return {"failed": f"nothing after {CELL_S:.0f} s"}
    left = end_strays()
    if child.returncode != 0:
        lines = [line for line in err.splitlines() if line.strip()]
        return {"failed": (lines or [f"exit status {child.returncode}"])[-1][:200]}
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    if left:
        found["left_behind"] = left
    return found


def cells_of(part: str, peer: str, arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The figures of a part for one loader, by what is written behind its name."""
    if part in BATCHES:
        count = max(4, round(BATCHES[part] * arguments.scale))
        return {"": ["cost", peer, part, f"--batches={count}"]}
    if part == "first":
        return {"": ["first", peer]}
    if part == "start":
        from dataloader_cell import CASES

        return {f" {case}": ["start", peer, f"--case={case}"] for case in CASES}
    if part == "memory":
        return {"": ["memory", peer, f"--gigabytes={arguments.gigabytes}"]}
    if part == "large":
        return {"": ["large", peer, f"--batches={max(4, round(LARGE * arguments.scale))}"]}
    if part == "trainers":
        count = max(4, round(BATCHES["jpeg"] * arguments.scale))
        return {"": ["trainers", peer, "jpeg", f"--batches={count}"]}
    return {f" at {place:,}": ["resume", peer, f"--sample={place}"] for place in PLACES}


UNITS = {
    "first": ("first_ms", "ms to the first batch"),
    "start": ("cpu_ms", "CPU ms an iterator"),
    "memory": ("pss_mb", "MB (PSS) of the whole tree"),
    "large": ("pss_mb", "MB (PSS) of the whole tree"),
    "trainers": ("cpu_ms", "CPU ms a batch of all four"),
    "resume": ("more_ms", "ms more than a new one takes"),
}


MORE_UNITS = {
    "start": (
        ("wall_ms", "ms an iterator"),
        ("first_ms", "ms to the first batch"),
        ("leave_ms", "ms to leave it"),
    ),
    "large": (
        ("whole_mb", "MB with all files in memory, mapped or not"),
        ("cpu_ms", "CPU ms a batch"),
        ("wall_ms", "ms a batch"),
    ),
}


def unit_of(part: str) -> tuple[str, str]:
    return UNITS.get(part, ("cpu_ms", "CPU ms a batch"))


def measure(part: str, arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """By loader, the figures of all rounds."""
    from dataloader_peers import PEERS

    names = [name for name in peers_of(part) if not arguments.peers or name in arguments.peers]
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(arguments.rounds):
        for name in names:
            if name in arguments.left_out:
                continue
            for place, words in cells_of(part, name, arguments).items():
                rounds = found.setdefault(name + place, [])
                if rounds and "failed" in rounds[-1]:
                    continue  # it does not work, or not with these arguments
                rounds.append(cell(arguments.venv, words))
                if "failed" in rounds[-1]:
                    shown = PEERS[name].shown
                    print(f"{part}, {shown}{place}: {rounds[-1]['failed']}", file=sys.stderr)
                if rounds[-1].get("left_behind"):
                    print(f"{part}, {name}: processes left behind: {rounds[-1]}", file=sys.stderr)
    return found


# ---- What is shown


def values(rounds: list[dict[str, Any]], unit: str) -> list[float]:
    return [one[unit] for one in rounds if unit in one]


def ratio(
    found: dict[str, Any], part: str, name: str, to: str, unit: str | None = None
) -> list[float]:
    """Inside of each round; of the part's first unit if none is given."""
    unit = unit or unit_of(part)[0]
    pairs = zip(values(found.get(name, []), unit), values(found.get(to, []), unit))
    return [ours / theirs for ours, theirs in pairs]


def brief(figures: list[float], digits: int = 2) -> str:
    if not figures:
        return ""
    rounds = ", ".join(f"{figure:.{digits}f}" for figure in figures)
    return f"{statistics.median(figures):.{digits}f} ({rounds})"


def table(
    part: str,
    found: dict[str, list[dict[str, Any]]],
    left_out: dict[str, str],
    shows: tuple[str, str] | None = None,
) -> None:
    from dataloader_peers import PEERS

    unit, said = shows or unit_of(part)
    beside: tuple[str, ...] = ("torch",)
    if part in ("ready", "resume"):
        beside = ("copy", "torch") if part == "ready" else ()
    print(f"\n{part}: {said}")
    print("| " + " | ".join(["loader", said, *(f"/ {PEERS[to].shown}" for to in beside)]) + " |")
    print("|---" * (2 + len(beside)) + "|")
    for name, rounds in found.items():
        peer, _, place = name.partition(" ")
        shown = PEERS[peer].shown + (f" {place}" if place else "")
        if any("failed" in one for one in rounds):
            cells = [f"left out: {rounds[-1]['failed']}", *("" for _ in beside)]
        else:
            cells = [brief(values(rounds, unit))]
            cells += [
                brief(ratio(found, part, name, f"{to}{name[len(peer) :]}", unit)) for to in beside
            ]
            if not rounds[0].get("keeps_workers", True):
                shown += " *"
            if part in BATCHES and rounds[0]["batches"] < BATCHES[part] / 2:
                shown += f", {rounds[0]['batches']} batches an epoch"
        print("| " + " | ".join([shown, *cells]) + " |")
    for name, why in left_out.items():
        if name in peers_of(part):
            print(f"| {PEERS[name].shown} | left out: {why} |" + " |" * len(beside))


def goals(found: dict[str, dict[str, Any]]) -> list[tuple[str, float, float]]:
    """What is asked of ringfeed: the claim, the figure (lower is better), the limit."""
    asked: list[tuple[str, float, float]] = []

    def at_most(part: str, limit: float, to: str, claim: str) -> None:
        figures = ratio(found.get(part, {}), part, "ringfeed", to)
        if figures:
            asked.append((claim, statistics.median(figures), limit))

    at_most("ready", 2.5, "copy", "a ready array: at most 2.5 x a bare copy")
    at_most("ready", 1 / 9, "torch", "a ready array: at most 1/9 of torch's")
    others = [name for name in found.get("ready", {}) if name not in ("copy", "stack", "ringfeed")]
    for name in others:
        at_most("ready", 1.0, name, f"a ready array: at most {name}'s")
    at_most("jpeg", 1.02, "torch", "JPEG: at most 1.02 x torch's")
    at_most("tiny", 1 / 1.5, "torch", "tiny samples: at most 1/1.5 of torch's")
    at_most("ragged", 1.0, "torch", "texts and ragged lists: at most torch's")
    at_most("strings", 0.9, "torch", "lists of strings: at most 0.9 x torch's")
    at_most("records", 0.9, "torch", "lists of dictionaries: at most 0.9 x torch's")
    at_most("views", 1.0, "torch", "tensors of a subclass that are views: at most torch's")
    at_most("special", 1.0, "torch", "parameters, sparse, nested tensors: at most torch's")
    at_most("memory", 1.1, "torch", "memory of four workers: at most 1.1 x torch's")
    at_most("large", 1.2, "torch", "memory of batches of 51 MB: at most 1.2 x torch's")
    at_most(
        "trainers", 1 / 3.5, "torch", "four trainers on one feed: at most 1/3.5 of four loaders"
    )
    for case, unit, limit in (
        ("epochs", "cpu_ms", 1.0),
        ("epochs-of-one", "cpu_ms", 1.0),
        ("leave-8", "leave_ms", 1.0),
        ("first-1", "first_ms", 1.1),
        ("first-4", "first_ms", 1.1),
    ):
        names = f"ringfeed {case}", f"torch {case}"
        if figures := ratio(found.get("start", {}), "start", *names, unit):
            claim = f"{case}: {unit} at most {limit:g} x torch's"
            asked.append((claim, statistics.median(figures), limit))
    ours = values(found.get("first", {}).get("ringfeed", []), "first_ms")
    theirs = values(found.get("first", {}).get("torch", []), "first_ms")
    more = [one - other for one, other in zip(ours, theirs)]
    if more:
        claim = "first batch: at most 100 ms later than torch's, ms"
        asked.append((claim, statistics.median(more), 100.0))
    for place in PLACES:
        rounds = found.get("resume", {}).get(f"ringfeed at {place:,}", [])
        if figures := values(rounds, "more_ms"):
            claim = f"resume at sample {place:,}: at most 10 ms more than a new one, ms"
            asked.append((claim, statistics.median(figures), 10.0))
    return asked


def main() -> int:
    """Prints the tables; 0, whatever the figures are."""
    from dataloader_peers import PEERS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("RINGFEED_PEERS_VENV", str(ROOT / "build" / "bench" / "peers"))
    parser.add_argument("--venv", type=Path, default=Path(default))
    parser.add_argument("--only", nargs="*", choices=PARTS)
    parser.add_argument("--peers", nargs="*", choices=tuple(PEERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the batches of an epoch")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the array of memory")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    tree_cost.adopt_orphans()
    parts = arguments.only or list(PARTS)
    names = {name for part in parts for name in peers_of(part)}
    names &= set(arguments.peers or names)
    arguments.left_out = prepare(arguments.venv, sorted(names))
    report: dict[str, Any] = {"load": os.getloadavg(), "left_out": arguments.left_out}
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        found[part] = measure(part, arguments)
        table(part, found[part], arguments.left_out)
        for shows in MORE_UNITS.get(part, ()):
            table(part, found[part], arguments.left_out, shows)
        sys.stdout.flush()
    print("\n* not from epoch to epoch: the middle third of one iteration")
    for claim, figure, limit in goals(found):
        print(f"{claim}: {figure:.2f}" + ("" if figure <= limit else " (missed)"))
    report["found"] = found
    report["load_after"] = os.getloadavg()
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
