"""Members of a real feed come, go, die, stop and do harm: who notices, and who must not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.feeds.feed_run import ROOT, FeedRun, stop, wait_until

sys.path.insert(0, str(ROOT / "tests" / "crash"))

import ringfeed  # noqa: E402
from storm import Line, Member, read_lines  # noqa: E402

MakeRun = Callable[..., FeedRun]
MakeMember = Callable[..., Member]

OTHERS = ("a", "b", "c")
DECLARED = "".join(f'groups {{ name: "{name}" max_hold: 2 }} ' for name in OTHERS)


@pytest.fixture
def make_member() -> Iterator[MakeMember]:
    """Trainers that note a line for each batch, and end with their test."""
    members: list[Member] = []

    def make(run: FeedRun, name: str, group: str, **options: object) -> Member:
        words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        member = Member(name, [f"--group={group}", *words], run.work / f"{name}.lines")
        member.start(run)
        members.append(member)
        return member

    yield make
    for member in members:
        if member.lives():
            assert member.process is not None
            member.process.kill()
            member.process.wait()


def numbers(member: Member) -> list[int]:
    return [line.number for line in read_lines(member.out)]


def send(member: Member, sig: int) -> None:
    assert member.process is not None
    member.process.send_signal(sig)
    if sig == signal.SIGKILL:
        member.process.wait()


def finish(member: Member) -> list[Line]:
    assert member.process is not None
    assert member.process.wait(60) == 0, member.out.with_suffix(".log").read_text()
    return read_lines(member.out)


def group_status(run: FeedRun, name: str) -> dict[str, Any] | None:
    status = run.status() or {}
    return next((group for group in status.get("groups", []) if group["name"] == name), None)


def assert_every_batch_once(results: list[list[Line]]) -> None:
    """Each of the groups of one member: the same batches, without a gap, none twice."""
    for lines in results:
        assert [line.number for line in lines] == list(range(1, len(lines) + 1))
        assert all(line.tries == 0 for line in lines)
        assert [line.checksum for line in lines] == [line.checksum for line in results[0]]


@pytest.mark.parametrize(
    "terms",
    [
        {"policy": "block", "rejoin_ms": 0},
        {"policy": "skip", "rejoin_ms": 300},
        {"policy": "detach", "stall_ms": 2000, "rejoin_ms": 300},
    ],
    ids=lambda terms: terms["policy"],
)
def test_a_group_whose_only_member_is_killed_costs_the_others_nothing(
    make_run: MakeRun, make_member: MakeMember, terms: dict[str, object]
) -> None:
    run = make_run(batch=64, slots=12, groups=DECLARED).start()
    victim = make_member(run, "victim", "victim", pause_ms=3, **terms)
    wait_until(lambda: group_status(run, "victim"), "the victim to have joined")
    others = [make_member(run, name, name, pause_ms=3) for name in OTHERS]
    wait_until(lambda: all(len(numbers(member)) > 10 for member in (victim, *others)), "all")
    send(victim, signal.SIGKILL)
    assert_every_batch_once([finish(member) for member in others])
    assert run.wait() == 0, run.text()


def test_what_one_of_four_members_held_when_it_was_killed_goes_to_the_others(
    make_run: MakeRun, make_member: MakeMember
) -> None:
    run = make_run(batch=64, slots=12, groups='groups { name: "four" }').start()
    members = [make_member(run, f"four-{i}", "four", pause_ms=5) for i in range(4)]
    wait_until(lambda: all(len(numbers(member)) > 3 for member in members), "all four")
    send(members[2], signal.SIGKILL)
    lines = [line for i in (0, 1, 3) for line in finish(members[i])]
    assert run.wait() == 0, run.text()
    known = numbers(members[2])
    seen = sorted([line.number for line in lines] + known)
    # The last batch that it had noted may have been in its hand still; nothing else comes twice.
    assert sorted(set(seen)) == list(range(1, max(seen) + 1))
    assert len(seen) - len(set(seen)) <= 1
    assert set(known) & {line.number for line in lines} <= {known[-1]}
    assert {line.tries for line in lines} == {0, 1}


def test_a_ranks_batches_wait_for_it_and_come_in_order(
    make_run: MakeRun, make_member: MakeMember
) -> None:
    """Its rank's batches are nobody else's: the first that it gets is the one it had in hand."""
    run = make_run(
        batch=64, slots=12, groups='groups { name: "ranks" kind: RANKED world: 4 }'
    ).start()
    ranks = [make_member(run, f"rank-{i}", "ranks", rank=i, world=4, pause_ms=5) for i in range(4)]
    wait_until(lambda: all(len(numbers(rank)) > 3 for rank in ranks), "all four")
    send(ranks[2], signal.SIGKILL)
    before = numbers(ranks[2])
    ranks[2].start(run)
    results = [finish(rank) for rank in ranks]
    assert run.wait() == 0, run.text()
    after = results[2][len(before) :]
    assert after[0].number in (before[-1], before[-1] + 4)
    assert all(line.tries == 0 for line in after[2:])
    for rank, lines in enumerate(results):
        mine = sorted({line.number for line in lines})
        assert mine == list(range(rank + 1, mine[-1] + 1, 4)), "its share, whole"
        fresh = [line.number for line in lines if line.tries == 0]
        assert fresh == sorted(fresh)


def test_a_stopped_member_of_a_skipping_group_sees_a_gap_as_long_as_the_count_says(
    make_run: MakeRun, make_member: MakeMember
) -> None:
    run = make_run(batch=64, slots=12, groups=DECLARED).start()
    victim = make_member(run, "victim", "victim", policy="skip", pause_ms=3)
    wait_until(lambda: group_status(run, "victim"), "the victim to have joined")
    others = [make_member(run, name, name, pause_ms=3) for name in OTHERS]
    wait_until(lambda: all(len(numbers(member)) > 5 for member in (victim, *others)), "all")
    assert victim.process is not None
    stop(victim.process.pid)
    assert_every_batch_once([finish(member) for member in others])
    last = numbers(others[0])[-1]
    skipped = (group_status(run, "victim") or {})["skipped"]
    send(victim, signal.SIGCONT)
    seen = [line.number for line in finish(victim)]
    assert run.wait() == 0, run.text()
    assert seen == sorted(set(seen)) and seen[-1] == last
    missing = set(range(seen[0], last + 1)) - set(seen)
    assert len(missing) == int(skipped) > 0
    assert missing == set(range(min(missing), max(missing) + 1)), "one gap, of the oldest"


def test_a_stopped_member_of_a_detaching_group_is_told_at_its_next_call(
    make_run: MakeRun, make_member: MakeMember
) -> None:
    run = make_run(batch=64, slots=12, groups=DECLARED).start()
    victim = make_member(run, "victim", "victim", policy="detach", stall_ms=2000, pause_ms=3)
    wait_until(lambda: group_status(run, "victim"), "the victim to have joined")
    others = [make_member(run, name, name, pause_ms=3) for name in OTHERS]
    wait_until(lambda: all(len(numbers(member)) > 5 for member in (victim, *others)), "all")
    assert victim.process is not None
    stop(victim.process.pid)
    assert_every_batch_once([finish(member) for member in others])
    send(victim, signal.SIGCONT)
    assert victim.process is not None
    assert victim.process.wait(60) == 1
    said = victim.out.with_suffix(".log").read_text()
    assert "FeedDetached" in said and "lagged longer than stall_ms" in said
    assert run.wait() == 0, run.text()


@pytest.mark.parametrize("policy", ["skip", "detach"])
def test_a_member_that_is_stopped_for_long_stops_nobody(
    make_run: MakeRun, make_member: MakeMember, policy: str
) -> None:
    """For more batches than the feed has descriptors; what it had in hand is still what it was."""
    run = make_run(epochs=2, batch=16, slots=12, groups=DECLARED).start()
    options: dict[str, Any] = {"socket_dir": run.sockets, "attach_timeout_s": 60, "timeout_s": 60}
    with ringfeed.attach(
        run.feed, "victim", policy=policy, stall_ms=500, rejoin_ms=0, **options
    ) as victim:
        batch = victim.next()  # and then nothing, as if it were stopped
        array, copy = batch["planes"], batch["planes"].copy()
        results = [finish(member) for member in [make_member(run, n, n) for n in OTHERS]]
        assert_every_batch_once(results)
        assert len(results[0]) > 3 * 256
        np.testing.assert_array_equal(array, copy)
        with pytest.raises(ringfeed.FeedDetached):
            victim.next()
        del array, batch
    assert run.wait() == 0, run.text()


def test_a_trainer_that_is_back_within_rejoin_ms_goes_on_where_its_group_was(
    make_run: MakeRun, make_member: MakeMember
) -> None:
    run = make_run(batch=64).start()
    trainer = make_member(run, "back", "back", pause_ms=3, rejoin_ms=60_000)
    first_after = []  # per death: batches noted before it
    for at in (5, 10, 15):
        wait_until(lambda: len(numbers(trainer)) > at, f"batch {at}")
        send(trainer, signal.SIGKILL)
        first_after.append(len(numbers(trainer)))
        trainer.start(run)
    lines = finish(trainer)
    assert run.wait() == 0, run.text()
    for i in first_after:
        # The one it had noted may have been in its hand still.
        assert lines[i].number in (lines[i - 1].number, lines[i - 1].number + 1)
    assert sorted({line.number for line in lines}) == list(range(1, lines[-1].number + 1))
    again = [line for line in lines if line.tries > 0]
    assert len(lines) - lines[-1].number <= len(again) <= 6, "what it had in hand, and no more"


def test_after_rejoin_ms_the_group_is_gone_and_the_others_go_on(
    make_run: MakeRun, make_member: MakeMember
) -> None:
    run = make_run(epochs=0, batch=64, groups='groups { name: "stays" }').start()
    stays = make_member(run, "stays", "stays", pause_ms=3)
    late = make_member(run, "late", "late", pause_ms=3, rejoin_ms=200)
    wait_until(lambda: len(numbers(stays)) > 5 and len(numbers(late)) > 5, "both")
    send(late, signal.SIGKILL)
    wait_until(lambda: group_status(run, "late") is None, "the group to be gone")
    had, at = numbers(late), len(numbers(stays))
    wait_until(lambda: len(numbers(stays)) > at + 60, "the other to go on")
    late.start(run)  # a new group: from the oldest batch that is still held
    wait_until(lambda: len(numbers(late)) > len(had), "the new group's first batch")
    first = read_lines(late.out)[len(had)]
    assert first.number > had[-1] + 10 and first.tries == 0
    assert run.stop() == 0, run.text()


def test_a_slot_is_not_written_while_an_array_on_it_lives(make_run: MakeRun) -> None:
    """Arrays and slices of them are kept for a while from a feed of few slots at full speed."""
    run = make_run(epochs=6, batch=64, slots=8, readers=2, unpackers=2, generators=1).start()
    options: dict[str, Any] = {
        "socket_path": run.sockets / f"{run.feed}.sock",
        "attach_timeout_s": 60,
        "timeout_s": 60,
    }
    dice = random.Random(5)
    with (
        ringfeed.attach(run.feed, "keeps", policy="skip", max_hold=4, **options) as keeps,
        ringfeed.attach(run.feed, "runs", max_hold=2, **options) as runs,
    ):
        newest, oldest_kept = [0], [1]

        def read_on() -> None:
            for batch in runs:
                newest[0] = batch.seq
                # So far that slots are used again and again; who keeps a batch for 256 others
                # has to go.
                while newest[0] > oldest_kept[0] + 150:
                    time.sleep(0.0005)

        reader = threading.Thread(target=read_on, daemon=True)
        reader.start()
        held: list[tuple[int, np.ndarray, np.ndarray]] = []
        kept_for: list[int] = []

        def let_go(which: int) -> None:
            number, array, copy = held.pop(which)
            np.testing.assert_array_equal(array, copy, f"batch {number}")
            kept_for.append(newest[0] - number)

        def keep(batch: ringfeed.Batch) -> None:
            array = batch[dice.choice(["planes", "policy", "values"])]
            if dice.random() < 0.5:
                array = array[dice.randrange(batch.rows) :]
            held.append((batch.seq, array, array.copy()))
            batch.release()  # what keeps the slot now is the array alone

        for batch in keeps:
            keep(batch)
            if not kept_for:  # one at least is kept while its slot's neighbours are used again
                wait_until(lambda: newest[0] > held[0][0] + 20, "the other to run on")
            while len(held) >= 3 or (held and dice.random() < 0.3):
                let_go(dice.randrange(len(held)))
            while held and newest[0] > held[0][0] + 100:
                let_go(0)
            oldest_kept[0] = held[0][0] if held else batch.seq
        oldest_kept[0] = sys.maxsize
        while held:
            let_go(0)
        reader.join()
    assert len(kept_for) > 5
    assert max(kept_for) > 8, "slots were used again while others were kept"
    assert run.wait() == 0, run.text()


@pytest.mark.parametrize("how", ["bytes", "words"])
@pytest.mark.parametrize("policy", ["block", "skip"])
def test_a_member_that_spoils_its_groups_page_harms_nobody_else(
    make_run: MakeRun, make_member: MakeMember, how: str, policy: str
) -> None:
    run = make_run(epochs=0, batch=64, slots=20, groups=DECLARED).start()
    first = ringfeed.attach(
        run.feed,
        "spoiled",
        policy=policy,
        max_hold=2,
        rejoin_ms=300,
        socket_dir=run.sockets,
        attach_timeout_s=60,
    )
    others = [make_member(run, name, name, pause_ms=3) for name in OTHERS]
    wait_until(lambda: all(len(numbers(member)) > 5 for member in others), "the others")
    processes = {run.process.pid if run.process else 0, *run.workers().values()}
    scribbler = subprocess.Popen(
        [
            sys.executable,
            str(ROOT / "tests" / "support" / "fakes" / "scribble.py"),
            run.feed,
            str(run.sockets / f"{run.feed}.sock"),
            "spoiled",
            how,
            "7",
        ],
        env=run.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert scribbler.stdout is not None and scribbler.stdout.readline() == "spoiling\n"
        # An innocent member of that group is told, and not left waiting.
        with pytest.raises((ringfeed.FeedDetached, ringfeed.FeedDamaged)):
            while True:
                try:
                    first.next(0.05)
                except (ringfeed.FeedTimeout, ringfeed.SlotsExhausted):
                    pass
        # It may have seen that itself. Were it the last to leave, nobody else would look.
        wait_until(lambda: "damaged=" in run.text(), "the supervisor to see it")
        first.close()
        at = [len(numbers(member)) for member in others]
        wait_until(
            lambda: all(len(numbers(member)) > n + 60 for member, n in zip(others, at)),
            "sixty batches to each of the others",
        )
        assert processes == {run.process.pid if run.process else 0, *run.workers().values()}
    finally:
        scribbler.kill()
        scribbler.wait()
    wait_until(lambda: group_status(run, "spoiled") is None, "the spoiled group to be gone")
    # Its name is free, and a group of that name reads what the others read.
    with ringfeed.attach(
        run.feed, "spoiled", socket_dir=run.sockets, timeout_s=60, rejoin_ms=0
    ) as again:
        fresh = [again.next() for _ in range(2)]
        assert [batch.tries for batch in fresh] == [0, 0]
        assert fresh[1].seq == fresh[0].seq + 1
        del fresh
    assert run.stop() == 0, run.text()
    assert_every_batch_once([finish(member) for member in others])
    said = run.text()
    assert "group_leaving feed=lc0 group=spoiled" in said and "damaged=" in said
    assert "worker_restarted" not in said and "worker_died" not in said
    assert os.listdir(run.sockets) == []


def test_a_hundred_joins_leaves_and_kills_lose_nothing() -> None:
    """The short form of `scripts/crash --members`."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "crash" / "members.py"), "--members=100"],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
