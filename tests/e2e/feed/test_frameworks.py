"""Each framework's own recipe, with the real package: the batches, their order, the place after a
checkpoint, and a loss that is finite and falls.

A group of the test's own records the order of the feed; a batch is known by the checksum of its
planes. The group `fw` of the framework is declared, so the feed waits for it from batch 1 on.
"""

from __future__ import annotations

import importlib.util
import json
import math
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ringfeed

from tests.support.feeds.feed_run import FeedRun
from tests.support.loaders.ranks import resting_at_exit

MakeRun = Callable[..., FeedRun]
PROGRAM_S = 800.0  # longest that one may take; a test that needs it has failed

# What each program does with a batch: `seen`, `losses`.
STEP = """
import json, os, sys, zlib
import torch

seen, losses = [], []

def loss_of(model, batch):
    seen.append(zlib.crc32(batch["planes"].numpy().tobytes()))
    wanted = batch["values"][..., :2].flatten(1)  # q and d of each row
    known = wanted.isfinite()              # NaN where a game knows no value
    loss = ((model(batch["planes"].flatten(1)) - wanted)[known] ** 2).mean()
    losses.append(loss.item())
    return loss

def tell(rank, **more):
    with open(f"rank{rank}.json", "w") as out:
        json.dump({"rank": rank, "seen": seen, "losses": losses, **more}, out)
"""


class Order:
    """Reads the feed along with the framework: the checksums of its batches, from the first on."""

    def __init__(self, run: FeedRun) -> None:
        self._seen: list[int] = []
        self._more = threading.Condition()
        self._feed = ringfeed.attach(
            "lc0", "order", socket_dir=run.sockets, attach_timeout_s=60, rejoin_ms=0
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for batch in self._feed:
                assert batch.seq == len(self._seen) + 1
                checksum = zlib.crc32(batch["planes"].tobytes())
                with self._more:
                    self._seen.append(checksum)
                    self._more.notify_all()
        except ringfeed.FeedDetached:
            pass

    def first(self, batches: int) -> list[int]:
        with self._more:
            assert self._more.wait_for(lambda: len(self._seen) >= batches, PROGRAM_S)
            return self._seen[:batches]

    def all(self) -> list[int]:
        """Those of a feed that ends."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self._seen

    def close(self) -> None:
        self._feed.close()
        self._thread.join()


@pytest.fixture
def watched(make_run: MakeRun) -> Iterator[Callable[..., tuple[FeedRun, Order]]]:
    """A feed for one framework group, and its order."""
    orders: list[Order] = []

    def make(world: int = 0, **settings: Any) -> tuple[FeedRun, Order]:
        ranked = f" kind: RANKED world: {world}" if world else ""
        values = {"epochs": 0, "batch": 32, "groups": f'groups {{ name: "fw"{ranked} }}'}
        run = make_run(**{**values, **settings}).start()
        orders.append(Order(run))
        return run, orders[-1]

    yield make
    for order in orders:
        order.close()


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: scripts/test --with-frameworks installs it")


def program(
    run: FeedRun, work: Path, text: str, *words: str, launcher: tuple[str, ...] = ()
) -> Any:
    """Runs it to its end; what each rank told, by rank."""
    script = work / "program.py"
    script.write_text(STEP + text)
    environment = {
        **run.environment,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, *launcher, str(script), *words],
        cwd=work,
        env=resting_at_exit(environment),
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{run.text()}"
    told = {}
    for file in work.glob("rank*.json"):
        result = json.loads(file.read_text())
        told[result["rank"]] = result
        file.unlink()
    return told


def torchrun(processes: int) -> tuple[str, ...]:
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")


def assert_learns(losses: list[float]) -> None:
    assert all(math.isfinite(loss) for loss in losses)
    third = max(1, len(losses) // 3)
    assert sum(losses[-third:]) < sum(losses[:third]), losses


LIGHTNING = """
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from ringfeed.torch import FeedLoader

class Values(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(112 * 64, 12)

    def training_step(self, batch, batch_idx):
        return loss_of(self.layer, batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)

if __name__ == "__main__":
    devices, steps, start = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    # Before the Trainer, and so before there are ranks.
    loader = FeedLoader("lc0", group="fw", batches=6, timeout_s=60)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=10,
        max_steps=steps,
        callbacks=[
            ModelCheckpoint(dirpath="saved", filename="{step}", every_n_train_steps=2, save_top_k=-1),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    torch.manual_seed(0)
    trainer.fit(Values(), loader, ckpt_path=start or None)
    tell(trainer.global_rank)
"""


@pytest.mark.parametrize(
    ("devices", "step"),
    [(1, 8), (2, 8), (2, 6)],
    ids=["alone", "two ranks, in an epoch", "two ranks, at the end of one"],
)
def test_lightning(
    watched: Callable[..., tuple[FeedRun, Order]], tmp_path: Path, devices: int, step: int
) -> None:
    """An epoch has six batches."""
    needs("torch", "lightning")
    run, order = watched(world=devices if devices > 1 else 0)
    first = program(run, tmp_path, LIGHTNING, str(devices), str(step), "")
    saved = tmp_path / "saved" / f"step={step}.ckpt"
    again = program(run, tmp_path, LIGHTNING, str(devices), str(step + 6), str(saved))
    for rank in range(devices):
        wanted = order.first((step + 6) * devices)[rank::devices]
        assert first[rank]["seen"] == wanted[:step]
        assert again[rank]["seen"] == wanted[step:]
        assert_learns(first[rank]["losses"])


TRANSFORMERS = """
from ringfeed.torch import FeedDataset
from transformers import Trainer, TrainingArguments

class Values(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(112 * 64, 12)

    def forward(self, planes, policy, values):
        # A batch of the feed is one example of the Trainer: it puts eight of them together.
        assert planes.shape[:2] == (8, 32)
        for one in range(len(planes)):
            seen.append(zlib.crc32(planes[one].numpy().tobytes()))
        wanted = values[..., :2].reshape(-1, 12)
        known = wanted.isfinite()
        out = self.layer(planes.reshape(-1, 112 * 64))
        loss = ((out - wanted)[known] ** 2).mean()
        losses.append(loss.item())
        return {"loss": loss, "logits": out}

if __name__ == "__main__":
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=6,
        learning_rate=0.001,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=Values(), args=arguments, train_dataset=FeedDataset("lc0", group="fw", timeout_s=60)
    )
    trainer.train()
    tell(0)
"""


def test_hugging_face_trainer(
    watched: Callable[..., tuple[FeedRun, Order]], tmp_path: Path
) -> None:
    needs("torch", "transformers", "accelerate")
    run, order = watched()
    told = program(run, tmp_path, TRANSFORMERS)[0]
    assert told["seen"] == order.first(48)
    assert_learns(told["losses"])


ACCELERATE = """
import accelerate
from ringfeed.torch import FeedLoader

if __name__ == "__main__":
    batches, start = int(sys.argv[1]), sys.argv[2]
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(112 * 64, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = FeedLoader("lc0", group="fw", timeout_s=60)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(loader)
    if start:
        accelerator.load_state(start)
    for number, batch in enumerate(loader, 1):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if number == 3 and not start:
            accelerator.save_state("saved")
        if number == batches:
            break
    tell(accelerator.process_index, dropped=loader.dropped, kind=type(loader).__name__)
    accelerator.wait_for_everyone()
    accelerator.end_training()
"""


def test_accelerate_holds_the_place_of_both_ranks(
    watched: Callable[..., tuple[FeedRun, Order]], tmp_path: Path
) -> None:
    needs("torch", "accelerate")
    run, order = watched(world=2)
    first = program(run, tmp_path, ACCELERATE, "4", "", launcher=torchrun(2))
    again = program(run, tmp_path, ACCELERATE, "4", "saved", launcher=torchrun(2))
    for rank in (0, 1):
        assert first[rank]["kind"] == "FeedLoader", "sharding is the feed's"
        assert first[rank]["seen"] == order.first(8)[rank::2]
        assert again[rank]["seen"] == order.first(14)[rank::2][3:]
        assert_learns(first[rank]["losses"] + again[rank]["losses"])


def test_accelerate_ranks_end_evenly(
    watched: Callable[..., tuple[FeedRun, Order]], tmp_path: Path
) -> None:
    needs("torch", "accelerate")
    run, order = watched(world=2, epochs=1, batch=64)
    told = program(run, tmp_path, ACCELERATE, "0", "", launcher=torchrun(2))
    each = {len(told[rank]["seen"]) for rank in (0, 1)}
    assert len(each) == 1 and each.pop() > 3
    assert run.wait() == 0, run.text()
    assert told[0]["dropped"] == len(order.all()) % 2 and told[1]["dropped"] == 0


TORCHDATA = """
from ringfeed.torch import FeedDataset
from torchdata.stateful_dataloader import StatefulDataLoader

def loader_of():
    dataset = FeedDataset("lc0", group="fw", timeout_s=60, rejoin_ms=60_000)
    return StatefulDataLoader(dataset, batch_size=None, num_workers=0)

def take(loader, batches):
    for number, batch in enumerate(loader, 1):
        seen.append(zlib.crc32(batch["planes"].numpy().tobytes()))
        if number == batches:
            return

if __name__ == "__main__":
    loader = loader_of()
    take(loader, 5)
    state = loader.state_dict()
    loader.dataset.feed.close()
    again = loader_of()
    again.load_state_dict(state)
    take(again, 5)
    tell(0)
"""


def test_torchdata_keeps_the_place(
    watched: Callable[..., tuple[FeedRun, Order]], tmp_path: Path
) -> None:
    needs("torch", "torchdata")
    run, order = watched()
    assert program(run, tmp_path, TORCHDATA)[0]["seen"] == order.first(10)


JAX = """
import jax
import jax.numpy as jnp
import numpy as np
import ringfeed
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ringfeed.jax import iterate

if __name__ == "__main__":
    rank, address = int(sys.argv[1]), sys.argv[2]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=2, process_id=rank)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), "rows"), PartitionSpec("rows"))

    @jax.jit
    def step(weights, batch):
        def loss(weights):
            wanted = batch["values"][..., :2].reshape(-1, 12)
            known = jnp.isfinite(wanted)
            out = batch["planes"].reshape(-1, 112 * 64) @ weights
            return jnp.sum(jnp.where(known, out - jnp.nan_to_num(wanted), 0) ** 2) / jnp.sum(known)

        value, gradient = jax.value_and_grad(loss)(weights)
        return weights - 1e-3 * gradient, value

    weights = jnp.zeros((112 * 64, 12))
    place = {"rank": jax.process_index(), "world": jax.process_count()}
    with ringfeed.attach("lc0", group="fw", timeout_s=60, **place) as feed:
        for number, batch in enumerate(iterate(feed, device=sharding), 1):
            (own,) = batch["planes"].addressable_shards
            assert batch["planes"].shape[0] == 2 * own.data.shape[0]
            seen.append(zlib.crc32(np.asarray(own.data).tobytes()))
            weights, value = step(weights, batch)
            losses.append(float(value))
            del own
            if number == 8:
                break
    tell(rank)
"""


def test_jax_in_two_processes(
    watched: Callable[..., tuple[FeedRun, Order]], tmp_path: Path
) -> None:
    needs("torch", "jax")
    run, order = watched(world=2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    told: dict[int, Any] = {}
    works = [tmp_path / str(rank) for rank in (0, 1)]

    def one(rank: int) -> None:
        works[rank].mkdir()
        told.update(program(run, works[rank], JAX, str(rank), address))

    threads = [threading.Thread(target=one, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in (0, 1):
        assert told[rank]["seen"] == order.first(16)[rank::2]
        assert_learns(told[rank]["losses"])
    assert told[0]["losses"] == told[1]["losses"], "one global batch"
