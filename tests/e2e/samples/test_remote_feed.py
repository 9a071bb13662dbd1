"""A feed over a cache of remote objects: files go, and come back when they are wished for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import ringfeed

pytest.importorskip("fsspec", reason="no fsspec: scripts/requirements.txt has it")
pytest.importorskip("aiohttp", reason="no aiohttp: scripts/requirements.txt has it")

from ringfeed.remote import RemoteFiles  # noqa: E402

from tests.support.fakes.fickle_server import Cut, Status, serving  # noqa: E402
from tests.support.feeds.feed_run import FeedRun  # noqa: E402
from tests.support.feeds.scenes import kill_a_worker  # noqa: E402

STAGES = """
feed: "{feed}"
seed: {seed}
epochs: {epochs}
stages {{ name: "provider" file_path_provider {{ directory: "{directory}" }} }}
stages {{ name: "lines" sample_source {{
  input: "provider" threads: 2 block_bytes: 65536 shuffle_files: true queue_capacity: 8 }} }}
stages {{ name: "batches" sample_batcher {{
  input: "lines" batch_size: 50 fields {{ name: "id" dtype: "int64" }} }} }}
feed_output {{ slots: {slots} }}
{extra}
"""
FILES, ROWS, EPOCHS = 24, 500, 4
OFTEN = "restart { max_restarts: 1000 backoff_ms_min: 1 backoff_ms_max: 5 max_attempts: 255 }"


def ids_of(run: FeedRun, disturb: random.Random | None, cache: Path) -> list[int]:
    """What a trainer gets; files are taken away and workers killed meanwhile."""
    got: list[int] = []
    with ringfeed.attach(
        "remote", socket_dir=run.sockets, attach_timeout_s=60, timeout_s=60
    ) as feed:
        for batch in feed:
            got += np.array(batch["id"]).tolist()
            batch.release()
            if disturb is None or disturb.random() > 0.05:
                continue
            there = [p for p in (cache / "objects").rglob("*.jsonl") if p.is_file()]
            for path in disturb.sample(there, min(len(there), 4)):
                path.unlink(missing_ok=True)
            if disturb.random() < 0.5:
                kill_a_worker(run, disturb)
    assert run.wait() == 0, run.text()
    return got


def test_every_row_comes_in_the_same_order_though_the_cache_forgets(tmp_path: Path) -> None:
    rng = random.Random(1)
    cache = tmp_path / "cache"
    with serving() as server:
        urls = []
        for i in range(FILES):
            lines = [
                json.dumps({"id": ROWS * i + row, "pad": "x" * rng.randrange(300)}) + "\n"
                for row in range(ROWS)
            ]
            urls.append(server.put(f"d/{i:02}.jsonl", "".join(lines).encode()))
        with RemoteFiles(urls, cache=cache, cache_bytes=64 << 20) as files:
            named = [file["path"] for file, _ in files.read()]
            directory = Path(named[0]).parent
        runs = []
        got = []
        try:
            for disturbed in (False, True):
                work = tmp_path / f"run{disturbed}"
                work.mkdir()
                settings = {"feed": "remote", "pipeline": STAGES, "epochs": EPOCHS, "slots": 2}
                runs.append(FeedRun(work, directory, extra=OFTEN, **settings).start())
                # Room for three files: what is read is fetched again and again.
                cache_bytes = (2 << 20) if disturbed else (64 << 20)
                with RemoteFiles(urls, cache=cache, cache_bytes=cache_bytes, wait=False) as files:
                    named = [file["path"] for file, _ in files.read()]
                    assert len(named) == FILES + 1
                    if disturbed:
                        for i in range(0, FILES, 3):
                            server.faults[f"d/{i:02}.jsonl"] = [Cut(1000), Status(503)]
                    got.append(ids_of(runs[-1], random.Random(2) if disturbed else None, cache))
                    again = files.counts["fetched"]
        finally:
            for run in runs:
                run.close()
    assert sorted(got[0]) == sorted(list(range(FILES * ROWS)) * EPOCHS)
    assert got[1] == got[0]
    assert again > FILES, "the cache has never forgotten anything"
