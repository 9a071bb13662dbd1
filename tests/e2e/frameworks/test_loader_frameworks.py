"""Frameworks train on ringfeed.torch.DataLoader as on PyTorch's: the recipe is theirs, the import is ours.

Each program runs with PyTorch's loader first, which proves what is expected; with ringfeed's the
same samples must come in the same order, with the same random noise, so every loss is the same
number. A sample says which process made it: never the trainer's.

    Lightning       takes the loader as it is; with several ranks it makes a new one of the same class
    Trainer         its hook is get_train_dataloader(), or the line of accelerate below
    accelerate      prepare() makes a loader of the class that accelerate.data_loader.DataLoader names,
                    whatever it is given: that name is the hook
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.loaders.ranks import resting_at_exit

PROGRAM_S = 150.0  # longest that one may take; one that needs it hangs
ORACLES = {"ringfeed.torch": "torch.utils.data"}
MODULES = ("torch.utils.data", "ringfeed.torch")

COMMON = """
import importlib, json, os, random, sys
import numpy as np
import torch

module = importlib.import_module(sys.argv[1])
words = sys.argv[2:]
seen, losses, makers = [], [], set()

class Points(torch.utils.data.Dataset):
    # Noise is drawn from each generator that a worker has.
    def __init__(self, length=48):
        generator = torch.Generator().manual_seed(5)
        matrix = torch.randn(16, 2, generator=generator)
        self.points = torch.randn(length, 16, generator=generator)
        self.targets = self.points @ matrix

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        noise = 0.02 * (torch.randn(16) + random.random() + np.random.rand())
        return {
            "points": self.points[index] + noise,
            "targets": self.targets[index],
            "index": index,
            "maker": os.getpid(),
        }

def loss_of(model, batch):
    seen.append(batch["index"].tolist())
    makers.update(batch["maker"].tolist())
    loss = ((model(batch["points"]) - batch["targets"]) ** 2).mean()
    losses.append(loss.item())
    return loss

def model_of():
    torch.manual_seed(0)
    return torch.nn.Linear(16, 2)

def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)

def train(model, optimizer, batches, backward=torch.Tensor.backward):
    for batch in batches:
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()

def tell(rank, **more):
    made_here = os.getpid() in makers
    with open(f"rank{rank}.json", "w") as out:
        json.dump({"seen": seen, "losses": losses, "made_here": made_here, **more}, out)
"""


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: scripts/test --with-frameworks installs it")


def completed(command: list[str], tries: int, **options: Any) -> subprocess.CompletedProcess[str]:
    """How a program and what it has started came to its end; one that hangs is ended, and tried again."""
    pipe = subprocess.PIPE
    for left in reversed(range(tries)):
        with subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **options
        ) as process:
            try:
                out, err = process.communicate(timeout=PROGRAM_S)
                break
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                if left == 0:
                    raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


Told = dict[str, dict[str, Any]]
Run = Callable[..., Told]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program with a loader's module; what each rank told. Once for the same program."""
    known: dict[Any, Told] = {}

    def run(module: str, text: str, *words: str, ranks: int = 0) -> Told:
        key = (module, text, words, ranks)
        if key in known:
            return known[key]
        work = tmp_path_factory.mktemp("program")
        script = work / "program.py"
        script.write_text(COMMON + text)
        launcher: list[str] = []
        if ranks:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = completed(
            [sys.executable, *launcher, str(script), module, *words],
            # PyTorch's loader forks a process in which gloo's threads may be entering Python at
            # that moment. By 3.11 the worker then never gets through its fork.
            tries=1 if module == "ringfeed.torch" else 3,
            cwd=work,
            env=resting_at_exit(
                {
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "CUDA_VISIBLE_DEVICES": "",
                    "HF_HUB_OFFLINE": "1",
                    "HF_HOME": str(work / "hub"),
                    "TOKENIZERS_PARALLELISM": "false",
                    "RINGFEED_SOCKET_DIR": str(work / "s"),
                }
            ),
        )
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
        found = {file.stem: json.loads(file.read_text()) for file in work.glob("rank*.json")}
        assert len(found) == max(1, ranks or int(dict(zip(words, words[1:])).get("devices", 1)))
        known[key] = found
        return found

    return run


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest) -> str:
    needs("torch")
    return str(request.param)


def assert_trained(told: Run, module: str, text: str, *words: str, **more: Any) -> Told:
    """As with PyTorch's loader, number for number; and that one has learnt something."""
    wanted = told(ORACLES.get(module, module), text, *words, **more)
    found = told(module, text, *words, **more)
    for rank, one in found.items():
        assert not one["made_here"], "the trainer's process has made samples"
        assert one["seen"] == wanted[rank]["seen"]
        assert one["losses"] == wanted[rank]["losses"]
        assert all(map(math.isfinite, one["losses"]))
        third = len(one["losses"]) // 3
        assert sum(one["losses"][-third:]) < sum(one["losses"][:third]), one["losses"]
    return found


def indices(told: Told) -> list[int]:
    return sorted(index for one in told.values() for batch in one["seen"] for index in batch)


def assert_each_came(told: Told) -> None:
    """Each of the 48 points, in each of three epochs."""
    assert indices(told) == sorted(3 * list(range(48)))


# ---- Lightning

LIGHTNING_MODEL = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = model_of()

    def training_step(self, batch, batch_idx):
        return loss_of(self.layer, batch)

    def configure_optimizers(self):
        return optimizer_of(self)

def trainer_of(**options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(accelerator="cpu", **quiet, **options)
"""

LIGHTNING = (
    LIGHTNING_MODEL
    + """
from lightning.pytorch.callbacks import Callback

class Validated(Model):
    def validation_step(self, batch, batch_idx):
        self.log("valid", ((self.layer(batch["points"]) - batch["targets"]) ** 2).mean())

class Watch(Callback):
    def on_train_epoch_end(self, trainer, model):
        loader = trainer.train_dataloader
        self.saw = {
            "kind": type(loader).__module__,
            "sampler": type(loader.sampler).__name__,
            "max_attempts": getattr(loader, "max_attempts", None),
            "feed": getattr(loader, "feed", None),
        }

if __name__ == "__main__":
    devices = int(words[words.index("devices") + 1])
    torch.manual_seed(1)
    loader = module.DataLoader(
        Points(),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        persistent_workers="persistent" in words,
        **({"max_attempts": 7} if "ours" in words else {}),
        **({"feed": "points"} if "feed" in words else {}),
    )
    valid = module.DataLoader(Points(8), batch_size=4, num_workers=1)
    watch = Watch()
    trainer = trainer_of(
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=3,
        callbacks=[watch],
        enable_checkpointing=False,
    )
    trainer.fit(Validated(), loader, valid)
    tell(trainer.global_rank, **watch.saw)
"""
)


@pytest.mark.parametrize("words", [(), ("persistent",)], ids=["", "persistent"])
def test_lightning(told: Run, module: str, words: tuple[str, ...]) -> None:
    needs("lightning")
    found = assert_trained(told, module, LIGHTNING, "devices", "1", *words)
    assert_each_came(found)


def test_lightning_gives_each_rank_its_share(told: Run, module: str) -> None:
    """It makes the loader anew with a sampler of its own: of the same class and arguments."""
    needs("lightning")
    found = assert_trained(told, module, LIGHTNING, "devices", "2")
    assert_each_came(found)
    for one in found.values():
        assert one["sampler"] == "DistributedSampler"
        assert one["kind"].split(".")[0] == module.split(".")[0]


def test_lightning_keeps_the_arguments_that_are_ours(told: Run) -> None:
    """It reads the arguments of the new loader off the old one's attributes, by their names."""
    needs("torch", "lightning")
    found = told("ringfeed.torch", LIGHTNING, "devices", "2", "ours")
    assert [one["max_attempts"] for one in found.values()] == [7, 7]


LIGHTNING_RESUMES = (
    LIGHTNING_MODEL
    + """
from lightning.pytorch.callbacks import ModelCheckpoint

def fit(steps, start):
    torch.manual_seed(1)
    loader = module.StatefulDataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)
    if "feed" in words:
        loader = module.DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2, feed="points")
    saving = ModelCheckpoint(dirpath="saved", filename="{step}", every_n_train_steps=5, save_top_k=-1)
    trainer = trainer_of(devices=1, max_epochs=10, max_steps=steps, callbacks=[saving])
    trainer.fit(Model(), loader, ckpt_path=start)

if __name__ == "__main__":
    if "whole" in words:
        fit(24, None)
    else:
        fit(5, None)
        fit(24, "saved/step=5.ckpt")
    tell(0)
"""
)


@pytest.mark.parametrize("stateful", ["torchdata.stateful_dataloader", "ringfeed.torch"])
def test_lightning_resumes_in_the_middle_of_an_epoch(told: Run, stateful: str) -> None:
    """Its checkpoint holds the state of the loader."""
    needs("torch", "torchdata", "lightning")
    wanted = told("torchdata.stateful_dataloader", LIGHTNING_RESUMES)["rank0"]
    found = told(stateful, LIGHTNING_RESUMES)["rank0"]
    assert found["seen"] == wanted["seen"]
    # Behind the checkpoint torchdata's workers draw their noise anew; ours go on.
    assert found["losses"][:5] == wanted["losses"][:5] and len(found["losses"]) == 24
    first = [index for batch in found["seen"][:12] for index in batch]
    assert sorted(first) == list(range(48)), "five batches before, seven behind the checkpoint"
    assert len(found["seen"]) == 24 and not found["made_here"]


def test_lightning_resumes_a_shared_feed(told: Run) -> None:
    """In the middle of an epoch, with the noise of a run that nothing interrupts."""
    needs("torch", "lightning")
    wanted = told("ringfeed.torch", LIGHTNING_RESUMES, "feed", "whole")["rank0"]
    found = told("ringfeed.torch", LIGHTNING_RESUMES, "feed")["rank0"]
    assert found["seen"] == wanted["seen"] and found["losses"] == wanted["losses"]
    assert len(found["seen"]) == 24 and not found["made_here"]
    for epoch in (found["seen"][:12], found["seen"][12:]):
        assert sorted(index for batch in epoch for index in batch) == list(range(48))


def test_lightning_shares_a_feed_among_ranks(told: Run) -> None:
    """The loader that it makes has the feed's name and a DistributedSampler."""
    needs("torch", "lightning")
    found = told("ringfeed.torch", LIGHTNING, "devices", "2", "feed")
    assert_each_came(found)
    assert [one["feed"] for one in found.values()] == ["points", "points"]


# ---- accelerate

NAMED = """
if "named" in words:
    import accelerate.data_loader
    accelerate.data_loader.DataLoader = module.DataLoader
"""

ACCELERATE = (
    NAMED
    + """
import accelerate

if __name__ == "__main__":
    accelerator = accelerate.Accelerator(cpu=True)
    model = model_of()
    optimizer = optimizer_of(model)
    torch.manual_seed(1)
    loader = module.DataLoader(Points(50), batch_size=4, shuffle=True, num_workers=2)
    if "whole" in words:
        loader._is_accelerate_prepared = True
    model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)
    for epoch in range(4):
        batches = prepared
        if epoch == 3:
            batches = accelerator.skip_first_batches(prepared, 2)
        train(model, optimizer, batches, accelerator.backward)
    inner = getattr(prepared, "base_dataloader", prepared)
    skipping = getattr(batches, "base_dataloader", batches)
    kinds = [type(one).__module__.split(".")[0] for one in (inner, skipping)]
    tell(accelerator.process_index, kinds=kinds, same=prepared is loader)
    accelerator.wait_for_everyone()
    accelerator.end_training()
"""
)


@pytest.mark.parametrize("ranks", [0, 2], ids=["alone", "two ranks"])
def test_accelerate(told: Run, module: str, ranks: int) -> None:
    """What is prepared, and what skips batches, is of the class that its module names."""
    needs("accelerate")
    found = assert_trained(told, module, ACCELERATE, "named", ranks=ranks)
    for one in found.values():
        assert one["kinds"] == 2 * [module.split(".")[0]] and not one["same"]
    # 50 samples go up to whole batches of both ranks: those at the beginning come again.
    each = {index: indices(found).count(index) for index in range(50)}
    assert set(each) == set(range(50)) and min(each.values()) >= 3


def test_accelerate_makes_loaders_of_its_own_otherwise(told: Run) -> None:
    """Why the line is needed. If this fails, accelerate has changed, and the page says too much."""
    needs("torch", "accelerate")
    found = told("ringfeed.torch", ACCELERATE)["rank0"]
    assert found["kinds"] == ["torch", "torch"] and not found["same"]


def test_accelerate_leaves_alone_what_says_it_is_prepared(told: Run, module: str) -> None:
    """Then shares and devices are the caller's, and the loader is used as it is."""
    needs("accelerate")
    found = assert_trained(told, module, ACCELERATE, "whole")["rank0"]
    assert found["same"] and found["kinds"][0] == module.split(".")[0]


# ---- Trainer of transformers

TRANSFORMERS = (
    NAMED
    + """
import transformers

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = model_of()

    def forward(self, points, targets, index, maker):
        loss = loss_of(self.layer, {"points": points, "targets": targets, "index": index, "maker": maker})
        return {"loss": loss}

class Trainer(transformers.Trainer):
    def get_train_dataloader(self):
        if "named" in words:
            return super().get_train_dataloader()
        return module.DataLoader(
            self.train_dataset,
            batch_size=self._train_batch_size,
            sampler=self._get_train_sampler(),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            persistent_workers=self.args.dataloader_persistent_workers,
        )

if __name__ == "__main__":
    arguments = transformers.TrainingArguments(
        output_dir="out",
        num_train_epochs=3,
        per_device_train_batch_size=4,
        dataloader_num_workers=2,
        dataloader_persistent_workers="persistent" in words,
        remove_unused_columns=False,
        learning_rate=0.05,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=3,
    )
    trainer = Trainer(
        model=Model(),
        args=arguments,
        train_dataset=Points(),
        data_collator=torch.utils.data.default_collate,
    )
    trainer.train()
    tell(0)
"""
)


@pytest.mark.parametrize("words", [("hook",), ("named",), ("named", "persistent")], ids=" ".join)
def test_hugging_face_trainer(told: Run, module: str, words: tuple[str, ...]) -> None:
    needs("transformers", "accelerate")
    found = assert_trained(told, module, TRANSFORMERS, *words)
    assert_each_came(found)


# ---- A training script as the references of torchvision are written

REFERENCE = """
import torch.distributed as dist

def train_one_epoch(model, optimizer, loader):
    model.train()
    train(model, optimizer, loader)

def evaluate(model, loader):
    model.eval()
    total, count = 0.0, 0
    with torch.inference_mode():
        for batch in loader:
            total += ((model(batch["points"]) - batch["targets"]) ** 2).sum().item()
            count += len(batch["points"])
    figures = torch.tensor([total, count], dtype=torch.float64)
    dist.all_reduce(figures)
    return (figures[0] / figures[1]).item()

def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7 + dist.get_rank())
    data, valid = Points(50), Points(12)
    train_sampler = torch.utils.data.distributed.DistributedSampler(data)
    test_sampler = torch.utils.data.distributed.DistributedSampler(valid, shuffle=False)

    def collate_fn(batch):
        # Two samples of the batch are mixed, as mixup does.
        batch = torch.utils.data.default_collate(batch)
        share = torch.rand(1)
        batch["points"] = share * batch["points"] + (1 - share) * batch["points"].roll(1, 0)
        batch["targets"] = share * batch["targets"] + (1 - share) * batch["targets"].roll(1, 0)
        return batch

    loader = module.DataLoader(
        data, batch_size=4, sampler=train_sampler, num_workers=2, pin_memory=True, collate_fn=collate_fn
    )
    test_loader = module.DataLoader(valid, batch_size=4, sampler=test_sampler, num_workers=2)
    model = torch.nn.parallel.DistributedDataParallel(model_of())
    optimizer = optimizer_of(model)
    valued = []
    for epoch in range(3):
        train_sampler.set_epoch(epoch)
        train_one_epoch(model, optimizer, loader)
        valued.append(evaluate(model, test_loader))
    tell(dist.get_rank(), valued=valued)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


def test_a_reference_script_with_two_ranks(told: Run, module: str) -> None:
    found = assert_trained(told, module, REFERENCE, ranks=2)
    wanted = told(ORACLES.get(module, module), REFERENCE, ranks=2)
    for rank, one in found.items():
        assert one["valued"] == wanted[rank]["valued"] and one["valued"][-1] < one["valued"][0]
    first = [indices({rank: {"seen": one["seen"][:7]}}) for rank, one in found.items()]
    assert set(first[0]) | set(first[1]) == set(range(50)), "an epoch has all"


# ---- datasets

DATASETS = """
import datasets

def noisy(rows):
    # Called with all rows of a batch, in the worker.
    rows = dict(rows)
    rows["points"] = [
        torch.tensor(point) + 0.02 * (torch.randn(16) + random.random() + np.random.rand())
        for point in rows["points"]
    ]
    rows["targets"] = [torch.tensor(target) for target in rows["targets"]]
    rows["maker"] = [os.getpid()] * len(rows["points"])
    return rows

if __name__ == "__main__":
    points = Points()
    rows = datasets.Dataset.from_dict(
        {"points": points.points.tolist(), "targets": points.targets.tolist(), "index": list(range(48))}
    )
    if "transform" in words:
        rows = rows.with_transform(noisy)
    else:
        rows = rows.map(lambda row, i: {"maker": -1}, with_indices=True).with_format("torch")
    model = model_of()
    optimizer = optimizer_of(model)
    torch.manual_seed(1)
    loader = module.DataLoader(rows, batch_size=4, shuffle=True, num_workers=2)
    for epoch in range(3):
        train(model, optimizer, loader)
    tell(0)
"""


@pytest.mark.parametrize("word", ["transform", "format"])
def test_rows_of_datasets(told: Run, module: str, word: str) -> None:
    """Its __getitems__ is asked for all rows of a batch at once."""
    needs("datasets")
    found = assert_trained(told, module, DATASETS, word)
    assert_each_came(found)


STREAM = """
import datasets

def rows_of(shards):
    points = Points()
    for shard in shards:
        for index in range(shard, 48, 4):
            yield {
                "points": points.points[index].tolist(),
                "targets": points.targets[index].tolist(),
                "index": index,
            }

def noisy(row):
    row["points"] = torch.tensor(row["points"]) + 0.02 * (torch.randn(16) + np.random.rand())
    row["targets"] = torch.tensor(row["targets"])
    row["maker"] = os.getpid()
    return row

if __name__ == "__main__":
    rows = datasets.IterableDataset.from_generator(rows_of, gen_kwargs={"shards": [0, 1, 2, 3]})
    rows = rows.shuffle(seed=9, buffer_size=8).map(noisy)
    model = model_of()
    optimizer = optimizer_of(model)
    torch.manual_seed(1)
    loader = module.DataLoader(rows, batch_size=4, num_workers=2)
    for epoch in range(3):
        rows.set_epoch(epoch)
        train(model, optimizer, loader)
    tell(0)
"""


def test_a_stream_of_datasets(told: Run, module: str) -> None:
    """Each worker reads its shards, in an order that changes with the epoch."""
    needs("datasets")
    found = assert_trained(told, module, STREAM)
    assert_each_came(found)
    seen = found["rank0"]["seen"]
    assert seen[:12] != seen[12:24]
