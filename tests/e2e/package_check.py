"""The installed package alone: its binaries, its library, a feed of the four real games. Run by scripts/package-check."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ringfeed

DATA = Path(__file__).resolve().parents[1] / "data" / "lc0"
POSITIONS = 133 + 89 + 26 + 76

CONFIG = f"""
seed: 1
epochs: 1
stages {{ name: "provider" file_path_provider {{ directory: "{DATA}" }} }}
stages {{ name: "loader" chunk_source_loader {{ input: "provider" }} }}
stages {{ name: "pool" shuffling_chunk_pool {{ input: "loader" chunk_pool_size: 100 }} }}
stages {{ name: "unpacker" chunk_unpacker {{ input: "pool" position_sampling_rate: 1 }} }}
stages {{ name: "sampler" shuffling_frame_sampler {{ input: "unpacker" reservoir_size_per_thread: 50 }} }}
stages {{ name: "tensors" tensor_generator {{ input: "sampler" batch_size: 32 }} }}
"""


def test_everything_comes_from_the_package() -> None:
    assert ringfeed.__file__ is not None
    package = Path(ringfeed.__file__).parent
    assert str(package).startswith(sys.prefix)
    for program in ("ringfeed", "ringfeed-worker"):
        assert os.access(package / "bin" / program, os.X_OK)


PARQUET = """
feed: "rows"
epochs: 1
stages { name: "source" parquet_source { directory: "/nowhere" } }
stages { name: "games" chess_games { input: "source" } }
stages { name: "batches" sequence_batcher { input: "games" } }
"""


def test_what_reads_parquet_files_says_what_it_needs(tmp_path: Path) -> None:
    assert ringfeed.__file__ is not None
    config = tmp_path / "rows.textproto"
    config.write_text(PARQUET)
    check = subprocess.run([sys.executable, "-m", "ringfeed", "check", str(config)], capture_output=True, text=True)
    # pyarrow is not installed here; the directory that ringfeed was built with may still be.
    if check.returncode == 0:
        assert (Path(ringfeed.__file__).parent / "bin" / "ringfeed-worker-parquet").exists()
        assert "group source" in check.stdout
    else:
        assert "needs the program ringfeed-worker-parquet" in check.stderr
        assert "install pyarrow" in check.stderr


def test_a_data_loader_delivers_the_real_games() -> None:
    loader = ringfeed.DataLoader(CONFIG)
    loader.start()
    rows = 0
    while True:
        try:
            planes, policy, values = loader.get_next()
        except (ringfeed.FeedEnd, StopIteration):
            break
        assert planes.shape[1:] == (112, 8, 8) and policy.shape[1:] == (1858,) and values.shape[1:] == (6, 3)
        assert np.allclose(np.where(policy >= 0, policy, 0).sum(axis=1), 1, atol=1e-4)
        rows += len(planes)
        del planes, policy, values
    loader.stop()
    assert rows == POSITIONS


def test_the_module_is_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "games.textproto"
    config.write_text(CONFIG)
    environment = {**os.environ, "RINGFEED_SOCKET_DIR": str(tmp_path / "sockets")}
    check = subprocess.run([sys.executable, "-m", "ringfeed", "check", str(config)], capture_output=True, text=True)
    assert check.returncode == 0 and "in sum" in check.stdout
    run = subprocess.Popen([sys.executable, "-m", "ringfeed", "run", str(config)], env=environment)
    try:
        os.environ["RINGFEED_SOCKET_DIR"] = str(tmp_path / "sockets")
        with ringfeed.attach("games", attach_timeout_s=30, timeout_s=30) as feed:
            assert sum(batch.rows for batch in feed) == POSITIONS
        assert run.wait(30) == 0
    finally:
        del os.environ["RINGFEED_SOCKET_DIR"]
        if run.poll() is None:
            run.send_signal(signal.SIGKILL)
            run.wait()


def test_the_package_has_a_command() -> None:
    command = Path(sys.prefix) / "bin" / "ringfeed"
    said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0 and said.stdout.startswith("ringfeed ")
    wrong = subprocess.run([command, "chek"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2 and "did you mean 'check'" in wrong.stderr


def test_the_command_does_not_find_itself_where_the_programs_are_missing(tmp_path: Path) -> None:
    # A package without its programs, whose command is in PATH.
    code = (
        "import sys; from pathlib import Path; from ringfeed import __main__; "
        "from ringfeed._core import programs; "
        "programs.__file__ = str(Path(sys.argv.pop(1)) / '_core' / 'programs.py'); "
        "sys.exit(__main__.main())"
    )
    path = f"{Path(sys.prefix) / 'bin'}:/nowhere"
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "version"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.returncode == 1 and "the program ringfeed is neither in" in said.stderr


def test_the_c_header_is_beside_the_library() -> None:
    assert ringfeed.__file__ is not None
    package = Path(ringfeed.__file__).parent
    assert (package / "include" / "ringfeed.h").exists()
    assert list((package / "lib").glob("libringfeed.so*"))


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
