"""What a stage calls: what `import` finds by its name, or an object that is stored beside the
configuration.
"""

from __future__ import annotations

import hashlib
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._fields import Where, shown

# How a configuration says that an object is stored: the path of the file follows.
STORED = "pickle:"
_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Code:
    """An object that cannot be imported, as cloudpickle writes it. Never changed.

    ``label``: what it is called, for the name of its stage.
    """

    def __init__(self, data: bytes, label: str) -> None:
        self.data = data
        self.label = label

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Code) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def __repr__(self) -> str:
        return f"<{self.label}, {len(self.data)} bytes>"


class Importable(str):
    """ "module:name" of an object of this process. Never changed.

    ``place``: the directory in which its module was found, if another interpreter does not look
    there by itself, as beside a script; else "".
    """

    place: str

    def __new__(cls, name: str, place: str) -> Importable:
        made = super().__new__(cls, name)
        made.place = place
        return made


def _place_of(module: Any) -> str:
    file = getattr(module, "__file__", None)
    if not file:
        return ""
    levels = module.__name__.count(".") + hasattr(module, "__path__")
    place = Path(file).resolve().parents[levels]
    known = [*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()]
    known += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    found = {Path(one).resolve() for one in known}
    # What lies in no directory of sys.path was found by other means, which are not known here.
    here = any(Path(one).resolve() == place for one in sys.path)
    return str(place) if here and place not in found else ""


def importable(value: Any) -> Importable | None:
    """ "module:name" of a function or class that another process can import; None: it cannot."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    # Without a file, such as a cell's, a module lives in this process alone.
    if found is None or not (
        getattr(found, "__file__", None) or module in sys.builtin_module_names
    ):
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        return None
    return Importable(f"{module}:{name}", _place_of(sys.modules[module]))


def _label(value: Any) -> str:
    name = getattr(value, "__name__", type(value).__name__)
    return "mapped" if name == "<lambda>" else str(name)


def _shown(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or f"a {type(value).__name__}")


def code_of(value: Any, where: Where) -> str | Code:
    """A name as given, that of an object which can be imported, or the object itself, stored.

    Raises:
        InvalidArgument: It is neither a name nor something to call, or it cannot be stored.
    """
    if isinstance(value, Code):
        return value
    if isinstance(value, str):
        if not _NAME.fullmatch(value) and not value.startswith(STORED):
            raise where.error(f'it is {shown(value)}; give "module:name", or something to call')
        return value
    if not callable(value):
        raise where.error(f'it is {shown(value)}; give "module:name", or something to call')
    name = importable(value)
    if name is not None:
        return name
    try:
        import cloudpickle
    except ImportError as error:
        raise where.error(
            f"{_shown(value)} cannot be imported by another process, and storing it needs the "
            "package cloudpickle: pip install cloudpickle, or move it to a module of its own and "
            'give "module:name"'
        ) from error
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:  # of whatever the object holds
        raise where.error(
            f"{_shown(value)} cannot be stored: {type(error).__name__}: {error}; make what it "
            'needs inside of it, or move it to a module and give "module:name"'
        ) from error
    return Code(data, _label(value))


def label_of(value: str | Code) -> str:
    """What to call a stage that calls this: that of "my_data:TokenizeAll" is "tokenize_all"."""
    if isinstance(value, Code):
        name = value.label
    else:
        name = "mapped" if value.startswith(STORED) else value.rpartition(":")[2].rpartition(".")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def keeper(directory: Path, stem: str) -> Callable[[str, Code], str]:
    """Stores objects in a directory and gives what the configuration says of them.

    A file is named by what it holds, so that a feed which runs keeps what it has begun with.
    """

    def keep(stage: str, code: Code) -> str:
        path = directory.resolve() / f"{stem}.{stage}.{code.digest[:16]}.pickle"
        # Aside, then renamed: nobody sees half of it.
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o600)
                file.write(code.data)
            os.rename(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        return f"{STORED}{path}"

    return keep


def named_by_digest(stage: str, code: Code) -> str:
    """For texts that nobody runs."""
    return f"{STORED}{stage}.{code.digest[:16]}.pickle"
