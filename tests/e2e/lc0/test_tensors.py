"""Records of every version and input_format in one feed, and every type that its tensors can
have.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import ringfeed

from tests.support.feeds.feed_run import FeedRun
from tests.support.makers import lc0_versions
from tests.support.oracles import lc0_reference

MakeRun = Callable[..., FeedRun]
KINDS = [
    (v, f) for v in lc0_versions.VERSIONS for f in lc0_versions.INPUT_FORMATS if v >= 5 or f == 1
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, games: object) -> tuple[Path, np.ndarray]:
    """A directory with a game of every kind, and the names of all positions in it."""
    directory = tmp_path_factory.mktemp("mixed")
    rng = np.random.default_rng(5)
    files = lc0_reference.game_files(games.directory)  # type: ignore[attr-defined]
    all_games = (game for file in files for game in lc0_reference.read_games(file))
    names = []
    for version, input_format in KINDS:
        records = next(all_games).records[:40]
        data = lc0_versions.as_version(records, version, input_format, rng)
        (directory / f"v{version}-f{input_format}.gz").write_bytes(gzip.compress(data, 1))
        names.append(lc0_reference.position_hashes(**lc0_versions.decode_any(data)))
    return directory, np.concatenate(names)


def rows(make_run: MakeRun, directory: Path, settings: str = "") -> dict[str, np.ndarray]:
    """All rows of a feed over the directory, name to array, in its order."""
    run = make_run(directory, batch=64, reservoir=100, tensors=settings).start()
    parts: dict[str, list[np.ndarray]] = {}
    with ringfeed.attach(
        "lc0", socket_dir=run.sockets, timeout_s=60.0, attach_timeout_s=60.0
    ) as feed:
        for batch in feed:
            for name in batch:
                parts.setdefault(name, []).append(np.array(batch[name]))
            batch.release()
    assert run.wait() == 0, run.text()
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def test_every_version_and_input_format_in_one_feed(
    make_run: MakeRun, mixed: tuple[Path, np.ndarray]
) -> None:
    directory, expected = mixed
    got = rows(make_run, directory)
    names = lc0_reference.position_hashes(got["planes"], got["policy"], got["values"])
    audit = lc0_reference.audit(names, expected)
    assert audit.exact, str(audit)


def same(left: np.ndarray, right: np.ndarray) -> bool:
    return (
        left.shape == right.shape
        and left.dtype == right.dtype
        and left.tobytes() == right.tobytes()
    )


def test_the_same_rows_in_every_type(make_run: MakeRun, mixed: tuple[Path, np.ndarray]) -> None:
    directory, _ = mixed
    plain = rows(make_run, directory)
    half = rows(make_run, directory, "planes: PLANES_FLOAT16 policy: POLICY_FLOAT16")
    assert same(half["planes"], plain["planes"].astype(np.float16))
    assert same(half["policy"], plain["policy"].astype(np.float16))
    assert same(half["values"], plain["values"])

    brain = rows(make_run, directory, "planes: PLANES_BFLOAT16")["planes"].view(np.uint16)
    wide = (brain.astype(np.uint32) << 16).view(np.float32)
    rounded = np.abs(wide - plain["planes"]) <= np.abs(plain["planes"]) / 256
    assert rounded.all() and same(wide[:, :104], plain["planes"][:, :104])

    small = rows(make_run, directory, "planes: PLANES_UINT8")["planes"]
    others = [plane for plane in range(112) if plane != 109]
    assert same(small[:, others], plain["planes"][:, others].astype(np.uint8))
    assert set(np.unique(small[:, 109])) <= set(range(101))

    compact = rows(make_run, directory, "planes: PLANES_BITS policy: POLICY_SPARSE")
    assert compact["planes"].shape[1:] == (112,) and compact["policy_indices"].shape[1:] == (224,)
    bits, sparse = compact["planes"], [
        compact["policy_" + n] for n in ("indices", "values", "filler")
    ]
    assert (compact["policy_lengths"] == (sparse[0] < 1858).sum(axis=1)).all()
    torch = pytest.importorskip("torch")
    bridge = pytest.importorskip("ringfeed.torch")
    expanded = bridge.expand_planes(torch.from_numpy(bits)).numpy()
    assert same(expanded, plain["planes"])
    halves = bridge.expand_planes(torch.from_numpy(bits), torch.float16).numpy()
    assert same(halves, half["planes"])
    dense = bridge.expand_policy(*[torch.from_numpy(array) for array in sparse]).numpy()
    assert same(np.ascontiguousarray(dense), plain["policy"])


def test_five_arrays(make_run: MakeRun, mixed: tuple[Path, np.ndarray]) -> None:
    directory, _ = mixed
    plain = rows(make_run, directory)
    five = rows(make_run, directory, "layout: FIVE_ARRAYS")
    assert list(five) == ["planes", "probabilities", "winner", "best_q", "plies_left"]
    assert same(five["planes"], plain["planes"]) and same(five["probabilities"], plain["policy"])
    assert same(five["winner"], lc0_versions.shares(plain["values"], 0))
    assert same(five["best_q"], lc0_versions.shares(plain["values"], 1))
    assert same(five["plies_left"], np.ascontiguousarray(plain["values"][:, 0, 2]))


def test_what_is_not_known(make_run: MakeRun, mixed: tuple[Path, np.ndarray]) -> None:
    directory, _ = mixed
    stored = rows(make_run, directory)["values"]
    nan = rows(make_run, directory, "unknown_values: UNKNOWN_NAN")["values"]
    zero = rows(make_run, directory, "unknown_values: UNKNOWN_ZERO")["values"]
    assert not np.isnan(zero).any()
    assert np.isnan(nan[:, 5, 2]).all() and not np.isnan(nan[:, 0, :2]).any()
    known = ~np.isnan(nan)
    assert (nan[known] == stored[known]).all() and (zero[known] == stored[known]).all()
    assert (zero[~known] == 0).all()


def test_bfloat16_is_that_of_pytorch(make_run: MakeRun, mixed: tuple[Path, np.ndarray]) -> None:
    torch = pytest.importorskip("torch")
    directory, _ = mixed
    plain = rows(make_run, directory)["planes"]
    run = make_run(directory, batch=64, reservoir=100, tensors="planes: PLANES_BFLOAT16").start()
    parts = []
    with ringfeed.attach("lc0", socket_dir=run.sockets, timeout_s=60, attach_timeout_s=60) as feed:
        assert "bfloat16" in repr(feed.schema)
        for batch in feed:
            parts.append(batch.torch()["planes"])
            assert torch.equal(batch.to("cpu")["planes"], parts[-1])
            batch.release()
    assert run.wait() == 0, run.text()
    got = torch.cat(parts)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, torch.from_numpy(plain).to(torch.bfloat16))


JAX_TRAINER = """
import sys
import jax
import numpy as np
import ringfeed
from ringfeed.jax import expand_planes, expand_policy, iterate

planes, policy = [], []
with ringfeed.attach("lc0", socket_dir=sys.argv[1], timeout_s=60, attach_timeout_s=60) as feed:
    for batch in iterate(feed):
        assert batch["planes"].dtype == np.uint32 and batch["planes"].shape[1:] == (112, 2)
        planes.append(np.asarray(jax.jit(expand_planes)(batch["planes"])))
        entries = [batch["policy_" + name] for name in ("indices", "values", "filler")]
        policy.append(np.asarray(jax.jit(expand_policy)(*entries)))
np.savez(sys.argv[2], planes=np.concatenate(planes), policy=np.concatenate(policy))
"""


def test_jax_opens_bits_and_entries(make_run: MakeRun, mixed: tuple[Path, np.ndarray]) -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("no JAX: scripts/test --with-frameworks has it")
    directory, _ = mixed
    plain = rows(make_run, directory)
    run = make_run(
        directory, batch=64, reservoir=100, tensors="planes: PLANES_BITS policy: POLICY_SPARSE"
    ).start()
    out = run.work / "jax.npz"
    # In a process of its own: JAX has threads, and other tests of this process fork.
    subprocess.run(
        [sys.executable, "-c", JAX_TRAINER, str(run.sockets), str(out)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=True,
        timeout=240,
    )
    assert run.wait() == 0, run.text()
    got = np.load(out)
    assert same(got["planes"], plain["planes"]) and same(got["policy"], plain["policy"])
