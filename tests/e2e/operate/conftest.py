"""Feeds, servers that show them, and machines with faults."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.feeds.feed_run import FeedRun, wait_until
from tests.support.feeds.patient import Patient, can
from tests.support.feeds.web import Web


@pytest.fixture
def run(make_run: Callable[..., FeedRun], request: pytest.FixtureRequest) -> FeedRun:
    """An endless feed with its first batches; a test may give it settings."""
    run = make_run(epochs=0, **getattr(request, "param", {})).start()
    wait_until(lambda: (run.status() or {}).get("state") == "RUNNING", "the feed to run")
    return run


@pytest.fixture
def serve(run: FeedRun) -> Iterator[Callable[..., Web]]:
    """Starts servers over its directory; they end with the test."""
    found: list[Web] = []

    def start(*words: str, **options: Any) -> Web:
        found.append(Web(run, *words, **options))
        return found[-1]

    yield start
    for web in found:
        web.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others may enter, with a short path."""
    directory = Path(tempfile.mkdtemp(prefix="d"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def make_patient(place: Path) -> Iterator[Callable[..., Patient]]:
    made: list[Patient] = []

    def make(inside: tuple[str, ...] = (), **options: Any) -> Patient:
        if os.geteuid() != 0:
            pytest.fail("this test plants faults of a machine: run it as root")
        if inside and not can(*inside):
            pytest.fail(f"{' '.join(inside)} is not allowed here")
        made.append(Patient(place, inside=inside, **options))
        return made[-1]

    yield make
    for patient in made:
        patient.close()
