"""The example trainer of docs/examples learns from batches as a feed of parallel text has them."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[3]
EXAMPLE = TESTS.parent / "docs" / "examples" / "fairseq_train.py"
sys.path.insert(0, str(EXAMPLE.parent))

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

import fairseq_train  # noqa: E402
import torch.distributed as dist  # noqa: E402

from tests.support.loaders.ranks import resting_at_exit  # noqa: E402

VOCABULARY = 40
LANGUAGE = 39  # the token before sources and targets
PROGRAM_S = 300.0  # longest that the program may take; a test that needs it has failed

# The ranks of a program share nothing but their arguments: each makes the same batches for itself.
# A translation has the words of its source in their order, each by another number.
BATCHES = f"""
import torch

def batch_of(seed, *, rows=16, kind=0, world=1):
    draws = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 7, (rows,), generator=draws).sort(descending=True).values
    longest = int(lengths[0])
    words = torch.randint(4, 36, (rows, longest), generator=draws)
    language, eos = torch.full((rows, 1), {LANGUAGE}), torch.full((rows, 1), 2)
    source = torch.full((rows, longest + 2), 1)
    target = torch.full((rows, longest + 2), 1)
    for row, length in enumerate(lengths.tolist()):
        source[row, longest - length:] = torch.cat(
            (language[row], words[row, :length], eos[row]))
        target[row, :length + 2] = torch.cat(
            (language[row], (words[row, :length] - 4 + 5) % 32 + 4, eos[row]))
    previous = torch.cat((eos, target[:, :-1].where(target[:, 1:] != 1, 1)), 1)
    return dict(
        id=torch.arange(rows), src_tokens=source, src_lengths=lengths + 2,
        prev_output_tokens=previous, target=target,
        ntokens=(target != 1).sum()[None], nsentences=torch.tensor([rows]),
        position=torch.tensor([1, seed, 999, kind, 0, world]))
"""
exec(BATCHES)
batch_of: Any = globals()["batch_of"]


def small_model() -> Any:
    torch.manual_seed(0)
    return fairseq_train.TranslationModel(VOCABULARY, width=32, layers=1, heads=2)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A world of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rank", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_batches_of_these_tests_are_as_a_feed_has_them() -> None:
    batch = batch_of(3, rows=5)
    eos = torch.full((5, 1), 2)
    for target, previous in zip(batch["target"], batch["prev_output_tokens"]):
        words = target[target != 1]
        assert words[-1] == 2 and words[0] == LANGUAGE
        assert previous[previous != 1].tolist() == [2, *words[:-1].tolist()]
    for source, length in zip(batch["src_tokens"], batch["src_lengths"]):
        assert (source != 1).sum() == length and source[-1] == 2
    assert batch["ntokens"].item() == (batch["target"] != 1).sum() and eos.shape == (5, 1)


def test_the_loss_falls_far(alone: None) -> None:
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    losses = []
    for seed in range(300):
        loss, tokens = fairseq_train.update(model, optimizer, batch_of(seed))
        losses.append(float(loss / tokens))
    first, last = sum(losses[:20]) / 20, sum(losses[-20:]) / 20
    assert last < 0.3 * first, (first, last)


def test_a_stand_in_changes_no_weight(alone: None) -> None:
    model = small_model()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for kind in (1, 2):
        total = fairseq_train.update(model, optimizer, batch_of(1, kind=kind))
        assert total.tolist() == [0.0, 0.0]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    fairseq_train.update(model, optimizer, batch_of(1))
    assert not torch.equal(model.tokens.weight, before["tokens.weight"])


def test_padding_does_not_count() -> None:
    model = small_model().eval()
    batch = batch_of(1, rows=4)
    wider = dict(batch)
    for name, side in (("src_tokens", (3, 0)), ("target", (0, 2)), ("prev_output_tokens", (0, 2))):
        wider[name] = torch.nn.functional.pad(batch[name], side, value=1)
    with torch.no_grad():
        losses = [fairseq_train.loss_of(model, one).item() for one in (batch, wider)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_word_sees_the_source_and_nothing_that_follows_it() -> None:
    model = small_model().eval()
    batch = batch_of(1, rows=1)
    source, previous = batch["src_tokens"], batch["prev_output_tokens"]

    def differing(*changed: Any) -> list[int]:
        with torch.no_grad():
            amounts = (model(source, previous) - model(*changed)).abs().amax(-1)[0]
        return [place for place, amount in enumerate(amounts.tolist()) if amount > 1e-6]

    other = previous.clone()
    other[0, 2] = 5 if previous[0, 2] != 5 else 6
    places = list(range(previous.shape[1]))
    assert differing(source, other) == places[2:]
    other = source.clone()
    other[0, 1] = 5 if source[0, 1] != 5 else 6
    assert differing(other, previous) == places


# In the place of the package, which needs a feed that runs: every eighth batch of rank 1 is a
# stand-in, with nonsense for its content.
PACKAGE = """
from contextlib import nullcontext
from types import SimpleNamespace

from batches import batch_of

def attach(name, group, rank, world):
    assert (name, group) == ("x", "run-a") and 0 <= rank < world == 2
    def batches():
        for number in range(rank, 4000, world):
            stand_in = rank == 1 and number % 16 == 15
            batch = batch_of(number, kind=int(stand_in), world={world})
            if stand_in:
                batch["target"] = batch["target"].where(batch["target"] == 1, 7)
            yield SimpleNamespace(to=lambda device, batch=batch: batch)
    return nullcontext(batches())
"""


def run_ranks(tmp_path: Path, world: int, steps: int) -> subprocess.CompletedProcess[str]:
    """Run the program on two ranks, on a feed for so many."""
    (tmp_path / "batches.py").write_text(BATCHES)
    (tmp_path / "ringfeed.py").write_text(PACKAGE.replace("{world}", str(world)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = ["--feed", "x", "--steps", str(steps), "--vocabulary", str(VOCABULARY)]
    return subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(EXAMPLE), *options],
        cwd=tmp_path,
        env=resting_at_exit(
            {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
        ),
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )


def test_two_ranks_learn_together(tmp_path: Path) -> None:
    done = run_ranks(tmp_path, world=2, steps=151)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"step (\d+): epoch 1, batch (\d+) of 999: loss (\S+)", done.stdout)
    assert [(int(step), int(batch)) for step, batch, _ in found] == [
        (0, 0),
        (50, 100),
        (100, 200),
        (150, 300),
    ]
    assert float(found[-1][2]) < 0.5 * float(found[0][2]), found


def test_a_feed_for_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    done = run_ranks(tmp_path, world=4, steps=1)
    assert done.returncode != 0
    assert "not for 2 ranks: set its world_size" in done.stderr
