"""Trainers with several ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

REST = Path(__file__).resolve().parent / "rest"


def resting_at_exit(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for trainers that use gloo: see rest/sitecustomize.py."""
    paths = (str(REST), environment.get("PYTHONPATH"))
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
