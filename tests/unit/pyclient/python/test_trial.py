"""What the foreground half of `ringfeed try` decides (ringfeed/worker/trial.py)."""

from __future__ import annotations

import bdb
import json
from types import TracebackType

import pytest

from ringfeed.worker import trial


def trace_of(error: BaseException) -> TracebackType:
    assert error.__traceback__ is not None
    return error.__traceback__


def of_library() -> None:
    json.loads("{")


def test_pdb_begins_at_the_last_frame_of_the_users_own_code() -> None:
    with pytest.raises(ValueError) as raised:
        of_library()
    # decode, raw_decode and loads are above it.
    assert trial._to_user(trace_of(raised.value)) == ["up 3"]
    with pytest.raises(ZeroDivisionError) as own:
        print(1 / 0)
    assert trial._to_user(trace_of(own.value)) == []


def test_frames_of_a_library_alone_are_shown_from_the_last() -> None:
    with pytest.raises(ValueError) as raised:
        of_library()
    trace = trace_of(raised.value).tb_next
    assert trace is not None
    assert trial._to_user(trace_of(raised.value)) != []
    inner = trace.tb_next
    assert inner is not None
    assert trial._to_user(inner) == []


def test_frames_of_this_package_are_nobodys() -> None:
    with pytest.raises(RuntimeError) as raised:
        trial._Debugger(trial.Options(step=False)).call(fails)
    first = trial._of_user(trace_of(raised.value))
    # The test's own, then the debugger's call, then `fails`: only what leads is left out.
    assert first is not None and first.tb_frame.f_code.co_name == raised.traceback[0].name


def fails() -> None:
    raise RuntimeError


@pytest.mark.parametrize("error", [KeyboardInterrupt(), bdb.BdbQuit()])
def test_what_a_person_does_is_no_fault_of_the_stage(error: BaseException) -> None:
    with pytest.raises(type(error)):
        trial._Raised.by(error)
    assert trial._Raised.by(SystemExit(3)).error == "SystemExit"


def test_words_of_the_command() -> None:
    assert trial.Options.of(["--samples=7", "--pdb"]) == trial.Options(7, True, False)
    assert trial.Options.of([]) == trial.Options(1, False, False)
