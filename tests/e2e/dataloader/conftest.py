"""Each test of this folder runs with PyTorch's loader, which proves what is expected, and with ringfeed's.

Whatever a test does, it leaves no process, descriptor, thread, directory or mapped segment behind. And nobody waits
while nobody works: a watchdog over all feeds of these tests fails the one in which somebody does.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing.resource_tracker
import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing import resource_sharer, util
from pathlib import Path
from typing import Any

import pytest

FAILED = pytest.StashKey[bool]()
MODULES = {"torch": "torch.utils.data", "ringfeed": "ringfeed.torch"}


def _loader_of(name: str) -> Any:
    return importlib.import_module(MODULES[name]).DataLoader


@pytest.fixture(params=list(MODULES))
def loader_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def Loader(loader_name: str) -> Any:
    """The class of the loader under test."""
    return _loader_of(loader_name)


@pytest.fixture(params=["ringfeed"])
def Ours(request: pytest.FixtureRequest) -> Any:
    """ringfeed's loader, for what PyTorch's cannot."""
    return _loader_of(request.param)


@pytest.fixture(scope="package")
def _settled() -> Iterator[None]:
    """Temporary files of these tests lie in a directory of their own: what is left in it is theirs.
    Tests of other folders, which may follow in the same process, have the short paths again.

    And what was imported is not looked at again by each gc.collect(): a tenth of a second for each test.
    """
    import torch

    from ringfeed.torch import _plan, _regions
    from tests.support.loaders import watchdog

    reports = tempfile.mkdtemp(prefix="rfw")
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    # Sockets lie in it, whose paths are short.
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="rf")
    os.chmod(tempfile.tempdir, 0o755)  # other tests of this process may be another user's
    # These two stay by design, whoever starts them first.
    multiprocessing.resource_tracker.ensure_running()
    # And the thread by which PyTorch's loader passes descriptors.
    if resource_sharer._resource_sharer._address is None:  # type: ignore[attr-defined]
        resource_sharer._resource_sharer._start()  # type: ignore[attr-defined]
    # And what a first trainer of a shared feed opens.
    _plan.ring(None)
    _regions._has_changes(0, 1)
    if torch.cuda.is_available():
        torch.zeros(1).pin_memory().cuda()
    gc.collect()
    gc.freeze()
    with watchdog.watching(tempfile.tempdir, Path(reports) / "report"):
        yield
    # The watchdog looks there once more.
    util.Finalize(None, shutil.rmtree, args=(reports, True), exitpriority=-200)
    # After multiprocessing has removed its own in it: that has -100.
    util.Finalize(None, shutil.rmtree, args=(tempfile.tempdir, True), exitpriority=-200)
    tempfile.tempdir = before[0]
    if before[1] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before[1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest, _settled: None) -> Iterator[None]:
    from tests.support.loaders import own_data

    before = own_data.Belongings()
    yield
    # Of the loader under test, where there are others: its name or its class.
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    named = parameters.get("loader_name") == "torch"
    theirs = named or getattr(parameters.get("loader"), "__module__", "").startswith("torch")
    # The report of a test that failed keeps its frames, and so its loaders.
    if not request.node.stash.get(FAILED, True):
        own_data.nothing_left(before, by_pytorch=theirs)
