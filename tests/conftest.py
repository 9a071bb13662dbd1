"""What every test finds by itself: tests.support, and the package beside these tests where none is
installed.
"""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

sys.path.insert(0, str(ROOT))
from tests.support.rig.careful import be_careful  # noqa: E402

be_careful()
# Models of tests are small: one thread is quicker than two that wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As where neither is installed: what needs them is skipped, and nothing else may import them.
if os.environ.get("RINGFEED_NO_FRAMEWORKS"):
    sys.modules.update(dict.fromkeys(("torch", "jax")))
# Where it is set, print() writes a line and its end apart, and what others print comes between.
os.environ.pop("PYTHONUNBUFFERED", None)
# Of stages in Python: the one that has what the tests need.
os.environ.setdefault("RINGFEED_PYTHON", sys.executable)
if importlib.util.find_spec("ringfeed") is None:
    sys.path.insert(0, str(ROOT / "pyclient"))
    build = Path(os.environ.get("RINGFEED_BUILD_DIR", ROOT / "build" / "release"))
    os.environ.setdefault("RINGFEED_LIBRARY", str(build / "lib" / "libringfeed.so"))
