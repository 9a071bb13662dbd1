"""Finds the extension module ``ringfeed._worker``, which has the worker's runtime."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import MutableMapping
from pathlib import Path
from types import ModuleType

from ..errors import RingfeedError

_NAME = "ringfeed._worker"
_FILE = "_worker.abi3.so"


def _place(given: str | None = None) -> Path:
    """Where the module for this Python is.

    Raises:
        RingfeedError: There is none, or none for this Python.
    """
    given = given or os.environ.get("RINGFEED_WORKER_MODULE")
    places = [Path(given)] if given else []
    places.append(Path(__file__).parents[1] / "lib" / "ringfeed" / _FILE)
    place = next((place for place in places if place.exists()), None)
    if place is None:
        tried = " nor ".join(str(place) for place in places)
        raise RingfeedError(f"the module of stages in Python is not at {tried}: reinstall ringfeed")
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return place
    # One that is built for this interpreter alone lies beside it.
    own = place.with_name("_worker" + importlib.machinery.EXTENSION_SUFFIXES[0])
    if not own.exists():
        raise RingfeedError(
            f"{sys.executable} is a free-threaded Python, and there is no {own}: build ringfeed "
            f"with -D RINGFEED_FREE_THREADED_PYTHON={sys.executable}, or name a Python with the "
            "global lock as the stage's interpreter"
        )
    return own


def load(given: str | None = None) -> ModuleType:
    """The module, from `given` or $RINGFEED_WORKER_MODULE, or from the package.

    Raises:
        RingfeedError: It is in neither, or does not fit this Python.
    """
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    place = _place(given)
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
    # Libraries ask whether it is one, such as PyTorch's default_collate().
    MutableMapping.register(module.Sample)
    return module
