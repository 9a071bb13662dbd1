"""What the death or stop of one trainer costs the other three, and how soon a restarted one has its
batch.

    trainers_bench.py [--rounds 10] [--attaches 100] [--json FILE]

Delay: four trainers, 5 ms of work a batch. A round is the second after the blow; its figure is
the longest time between two batches of any of the other three in it. The same is taken from
seconds without a blow, in turn with the others; the delay is the difference. With one group for
each trainer the victim's group has the policy named and the others block; the last case is one
group of four.

Attach: a trainer is killed with a batch in hand and waited for; its successor, a process that has
all imports behind it, attaches and takes its first batch. Timed from the call of attach() to the
batch; and the batch must be the one that the dead trainer had in hand.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # trainers are forked, without NumPy's threads

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import ringfeed  # noqa: E402

from tests.support.feeds.feed_run import FeedRun, wait_until  # noqa: E402
from tests.support.makers import lc0_data  # noqa: E402

PAUSE_S = 0.005
WINDOW_S = 1.0
RECORD = struct.Struct("<dQQd")  # time, number, tries; seconds from attach() to the first batch


@dataclass
class Case:
    name: str
    terms: dict[str, Any] | None  # of the victim's group; None: one group of four
    blow: int


CASES = [
    Case("nobody", {"policy": "skip"}, 0),
    Case("killed, skip", {"policy": "skip"}, signal.SIGKILL),
    Case("killed, detach after 50 ms", {"policy": "detach", "stall_ms": 50}, signal.SIGKILL),
    Case("killed, block, rejoin_ms 0", {"policy": "block", "rejoin_ms": 0}, signal.SIGKILL),
    Case("stopped, skip", {"policy": "skip"}, signal.SIGSTOP),
    Case("stopped, detach after 50 ms", {"policy": "detach", "stall_ms": 50}, signal.SIGSTOP),
    Case("killed, one group of four", None, signal.SIGKILL),
]


def fork_trainer(
    run: FeedRun, group: str, out: Path, pause_s: float, terms: dict[str, Any], most: int = 0
) -> int:
    """Takes batches and notes a record of each, until it is killed."""
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        began = time.monotonic()
        first_s = 0.0
        with out.open("ab", buffering=0) as notes:
            feed = ringfeed.attach(
                run.feed, group, socket_dir=run.sockets, attach_timeout_s=60, max_hold=2, **terms
            )
            taken = 0
            for batch in feed:
                now = time.monotonic()
                first_s = first_s or now - began
                notes.write(RECORD.pack(now, batch.seq, batch.tries, first_s))
                taken += 1
                while most and taken >= most:
                    time.sleep(60)  # with the batch in hand
                time.sleep(pause_s)
    except ringfeed.FeedDetached:
        pass
    finally:
        os._exit(0)


def records(out: Path) -> list[tuple[float, int, int, float]]:
    data = out.read_bytes() if out.exists() else b""
    return list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def one_round(work: Path, data: Path, case: Case, number: int) -> float:
    """The longest time, in ms, that one of the other three waited in the second after the blow."""
    place = work / f"round{number}"
    place.mkdir()
    names = ["a", "b", "c"] if case.terms is not None else ["four"]
    groups = "".join(f'groups {{ name: "{name}" max_hold: 2 }} ' for name in names)
    run = FeedRun(place, data, epochs=0, batch=64, slots=12, groups=groups).start()
    pids: list[int] = []
    try:
        wait_until((run.sockets / f"{run.feed}.sock").exists, "the feed")
        outs = [place / f"{i}.notes" for i in range(4)]
        for i, out in enumerate(outs):
            shared = case.terms is None
            group = "four" if shared else "victim" if i == 3 else names[i]
            terms = dict(case.terms or {}) if i == 3 else {}
            pids.append(fork_trainer(run, group, out, PAUSE_S, terms))
        wait_until(lambda: all(len(records(out)) > 20 for out in outs), "all four to train")
        blow = time.monotonic()
        if case.blow:
            os.kill(pids[3], case.blow)
        time.sleep(WINDOW_S)
        longest = 0.0
        for out in outs[:3]:
            times = [record[0] for record in records(out)]
            before = [t for t in times if t <= blow]
            after = [t for t in times if blow < t <= blow + WINDOW_S]
            marks = [before[-1], *after, blow + WINDOW_S]
            longest = max(longest, max(b - a for a, b in zip(marks, marks[1:])))
        return 1000 * longest
    finally:
        for pid in pids:
            end(pid)
        run.stop(signal.SIGQUIT)
        run.command("clean")
        run.close()
        shutil.rmtree(place, ignore_errors=True)


def delays(work: Path, data: Path, rounds: int) -> list[dict[str, Any]]:
    gaps: dict[str, list[float]] = {case.name: [] for case in CASES}
    number = 0
    for _ in range(rounds):
        for case in CASES:
            number += 1
            gaps[case.name].append(one_round(work, data, case, number))
    still = gaps["nobody"]
    return [
        {
            "case": name,
            "gap_ms_p50": round(quantile(values, 0.5), 1),
            "gap_ms_max": round(max(values), 1),
            "delay_ms_p50": round(quantile(values, 0.5) - quantile(still, 0.5), 1),
            "delay_ms_max": round(max(values) - max(still), 1),
            "ratio_p50": round(quantile(values, 0.5) / quantile(still, 0.5), 2),
        }
        for name, values in gaps.items()
    ]


def attaches(work: Path, data: Path, count: int) -> dict[str, Any]:
    place = work / "attach"
    place.mkdir()
    run = FeedRun(place, data, epochs=0, batch=64, slots=12).start()
    first_ms, wrong = [], 0
    pid = 0
    try:
        wait_until((run.sockets / f"{run.feed}.sock").exists, "the feed")
        out = place / "restarted.notes"
        terms = {"max_tries": 255}
        pid = fork_trainer(run, "restarted", out, 0, terms, most=3)
        for i in range(count):
            wait_until(lambda: len(records(out)) == 3 * (i + 1), "the batch in hand")
            in_hand = records(out)[-1][1]
            end(pid)
            pid = fork_trainer(run, "restarted", out, 0, terms, most=3)
            wait_until(lambda: len(records(out)) > 3 * (i + 1), "the first batch")
            _, number, _, seconds = records(out)[3 * (i + 1)]
            first_ms.append(1000 * seconds)
            # A loop holds the batch of its last round until it has the next one.
            wrong += number not in (in_hand - 1, in_hand)
    finally:
        if pid:
            end(pid)
        run.stop(signal.SIGQUIT)
        run.command("clean")
        run.close()
    return {
        "attaches": count,
        "first_batch_ms_p50": round(quantile(first_ms, 0.5), 2),
        "first_batch_ms_p99": round(quantile(first_ms, 0.99), 2),
        "first_batch_ms_max": round(max(first_ms), 2),
        "at_another_position": wrong,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--attaches", type=int, default=100)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="rf-trainers-"))
    try:
        made = lc0_data.make_dataset(work / "data", games=60, tars=3, seed=3, loose=5)
        data = Path(made.directory)
        found = {
            "load": os.getloadavg(),
            "attach": attaches(work, data, arguments.attaches),
            "delays": delays(work, data, arguments.rounds),
        }
    finally:
        shutil.rmtree(work, ignore_errors=True)
    attach = found["attach"]
    print(
        f"attach to first batch, {attach['attaches']} restarts: "
        f"p50 {attach['first_batch_ms_p50']} ms, p99 {attach['first_batch_ms_p99']} ms, "
        f"max {attach['first_batch_ms_max']} ms; "
        f"{attach['at_another_position']} not where its group had been"
    )
    what = "longest wait of the other three"
    print(f"{what:32}    p50 ms   max ms | delay p50   max | ratio p50")
    for case in found["delays"]:
        print(
            f"{case['case']:32} {case['gap_ms_p50']:9} {case['gap_ms_max']:8} |"
            f" {case['delay_ms_p50']:9} {case['delay_ms_max']:5} | {case['ratio_p50']:9}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
