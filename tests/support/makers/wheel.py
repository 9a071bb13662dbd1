"""Wheels of packages that are here, so that a command with pip can be run without a network."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from tests.support.feeds.feed_run import ROOT


def _make(
    directory: Path, name: str, version: str, files: Iterable[tuple[str, bytes]], needs: str = ""
) -> None:
    about = f"{name}-{version}.dist-info"
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for place, content in files:
            wheel.writestr(place, content)
        for place, text in texts.items():
            wheel.writestr(f"{about}/{place}", text)
        wheel.writestr(f"{about}/RECORD", "".join(f"{one},,\n" for one in wheel.namelist()))


def make_wheel_of_installed(directory: Path, name: str) -> None:
    """Of a package of this interpreter, which another one of the same version can import."""
    package = metadata.distribution(name)
    own = [file for file in package.files or [] if file.parts[0] != ".."]
    files = [
        (str(file), file.read_binary())
        for file in own
        if not file.parts[0].endswith(".dist-info") and "__pycache__" not in file.parts
    ]
    _make(directory, name, package.version, files)


def make_wheel_of_ringfeed(directory: Path, version: str) -> None:
    """Of the package in this tree, without libraries and programs: $RINGFEED_LIBRARY names the one."""
    package = ROOT / "pyclient"
    files = {
        str(file.relative_to(package)): file.read_bytes()
        for file in sorted((package / "ringfeed").rglob("*.py"))
    }
    files["ringfeed/__init__.py"] = re.sub(
        rb"^__version__ = .*",
        b'__version__ = "%s"' % version.encode(),
        files["ringfeed/__init__.py"],
        flags=re.M,
    )
    _make(directory, "ringfeed", version, files.items(), needs="numpy>=2.1")
