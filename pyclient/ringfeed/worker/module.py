"""Finds the extension module ``ringfeed._worker``, which has the worker's runtime."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from ..errors import RingfeedError

_NAME = "ringfeed._worker"


def load() -> ModuleType:
    """The module, from $RINGFEED_WORKER_MODULE, or from the package.

    Raises:
        RingfeedError: It is in neither, or does not fit this Python.
    """
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    given = os.environ.get("RINGFEED_WORKER_MODULE")
    places = [Path(given)] if given else []
    places.append(Path(__file__).parents[1] / "lib" / "ringfeed" / "_worker.abi3.so")
    place = next((place for place in places if place.exists()), None)
    if place is None:
        tried = " nor ".join(str(place) for place in places)
        raise RingfeedError(f"the module of stages in Python is not at {tried}: reinstall ringfeed")
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(place))
    spec = importlib.util.spec_from_file_location(_NAME, place, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        version = ".".join(map(str, sys.version_info[:3]))
        raise RingfeedError(f"{place} cannot be loaded by Python {version}: {error}") from error
    sys.modules[_NAME] = module
    return module
