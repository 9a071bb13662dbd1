"""A worker as a process of multiprocessing: it has a name, and its end runs what was left for it.

PyTorch's workers are started by multiprocessing. These are forked by the warm parent, one by one,
so what multiprocessing does at the start and at the end of a process is done here.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import itertools
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from multiprocessing import process, util
from typing import Any

Identity = tuple[int, ...]


class Ends(BaseException):
    """Raised wherever the dataset is: nobody wants its sample any more."""


def identities(parent: Any, workers: int) -> list[Identity]:
    """Who the workers of a warm parent are, whose own number the first of them takes: they are
    counted as PyTorch's."""
    counter: Any = vars(process)["_process_counter"]
    more = [next(counter) for _ in range(workers - 1)]
    first: Identity = parent._identity
    return [first, *((*first[:-1], number) for number in more)]


def begin(identity: Identity, kind: str) -> None:
    """In a worker: from here on it is a process of its own to multiprocessing.

    Args:
        identity: Of identities().
        kind: What its name begins with.
    """
    own: Any = copy.copy(process.current_process())
    own._identity = identity
    own._name = f"{kind}-{':'.join(map(str, identity))}"
    internals: Any = process
    internals._current_process = own
    internals._process_counter = itertools.count(1)
    internals._children = set()
    registry: Any = util
    registry._finalizer_registry.clear()
    registry._run_after_forkers()


def end_when_told(told: int, ending: Callable[[], bool]) -> None:
    """SIGTERM ends a sample, if the warm parent has sent it: then there is something in a pipe.

    From anybody else it means nothing: the supervisor decides what ends.

    Args:
        told: The pipe.
        ending: Is what the worker has left being run? Nothing disturbs that.
    """

    def handle(*_: Any) -> None:
        looks = select.poll()
        looks.register(told, select.POLLIN)
        if not ending() and any(event & select.POLLIN for _, event in looks.poll(0)):
            raise Ends

    signal.signal(signal.SIGTERM, handle)


def leave_signals() -> None:
    """In a process that serves a trainer: handlers of the trainer's are not run here, and a signal
    that is sent to a whole group or job ends nothing. The process sets those that it needs."""
    for number in _NOT_OURS:
        found = signal.getsignal(number)
        if number in _TIMERS and callable(found):
            _handlers[number] = found
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def keep_timers() -> None:
    """In a worker: a dataset that sets a timer finds the handler that the trainer has for it."""

    def restored(function: Callable[..., Any], numbers: Iterable[signal.Signals]) -> Any:
        @functools.wraps(function)
        def call(*words: Any) -> Any:
            for number in numbers:
                if number in _handlers and signal.getsignal(number) in (signal.SIG_IGN, None):
                    signal.signal(number, _handlers[number])
            return function(*words)

        return call

    if _handlers:
        replaced: Any = signal
        replaced.alarm = restored(signal.alarm, (signal.SIGALRM,))
        replaced.setitimer = restored(signal.setitimer, _TIMERS)


_TIMERS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
_NOT_OURS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, *_TIMERS, signal.SIGIO, signal.SIGPWR)
_handlers: dict[int, Any] = {}  # of timers, as the trainer has set them


def end() -> None:
    """What multiprocessing does at the end of a process, and the interpreter at that of a spawned
    one."""
    internals: Any = util
    steps: list[Callable[[], Any]] = [internals._exit_function]
    if getattr(process.current_process(), "_start_method", None) == "spawn":
        steps.append(atexit._run_exitfuncs)
    steps.append(threading._shutdown)  # type: ignore[attr-defined]
    for step in steps:
        try:
            step()
        except BaseException:
            if sys.stderr is not None:
                with contextlib.suppress(Exception):
                    traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
