"""Field numbers of messages that Python writes by hand are those of proto/."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def test_numbers_are_up_to_date() -> None:
    script = [sys.executable, ROOT / "scripts" / "reference", "--numbers", "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_numbers_that_are_out_of_date_are_found(tmp_path: Path) -> None:
    for part in ("proto", "scripts", "pyclient/ringfeed/_core/messages.py"):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    script = [sys.executable, tmp_path / "scripts" / "reference", "--numbers"]
    assert subprocess.run([*script, "--check"]).returncode == 0
    control = tmp_path / "proto" / "control.proto"
    control.write_text(
        control.read_text().replace("optional bool now = 1;", "optional bool now = 9;")
    )
    done = subprocess.run([*script, "--check"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "messages.py is out of date: run scripts/reference" in done.stderr
    assert subprocess.run(script).returncode == 0
    assert "    now = 9\n" in (tmp_path / "pyclient/ringfeed/_core/messages.py").read_text()
