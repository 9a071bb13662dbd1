"""Small and large hosts: memory, processors, address space and file sizes from little to very much.

A host is pretended where programs ask for it. What they then map or make is real.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from tests.support.loaders import own_data as data  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

WAIT_S = 200
GIB = 1 << 30
METHODS = ["fork", "spawn"]
# A dataset whose samples are vectors, as long as they are told to be.
PROGRAM = """
import os, sys
import torch
{loader}

class Vectors(torch.utils.data.Dataset):
    def __init__(self, *elements):
        self.elements = elements

    def __len__(self):
        return len(self.elements)

    def __getitem__(self, index):
        return torch.full((self.elements[index],), index, dtype=torch.int32)

def is_right(batch, index, elements):
    return batch.shape == (1, elements) and bool((batch == index).all())

{top}

def main():
{body}

if __name__ == "__main__":
    main()
"""
HOST = """
real = os.sysconf
os.sysconf = lambda name: (GIB << 30) // 4096 if name == "SC_PHYS_PAGES" else real(name)
os.cpu_count = lambda: PROCESSORS
os.sched_getaffinity = lambda pid: set(range(PROCESSORS))
"""


def said_by(
    name: str,
    body: str,
    directory: Path,
    *,
    top: str = "",
    limits: dict[int, int] | None = None,
) -> str:
    """What a program of its own printed.

    Args:
        name: "torch" or "ringfeed": whose DataLoader.
        body: Its main function.
        top: What is above that, and done by every process that imports the program.
        limits: By resource, which it may not exceed from its start on.
    """
    path = directory / "train.py"
    lines = textwrap.indent(textwrap.dedent(body), "    ")
    path.write_text(PROGRAM.format(loader=data.IMPORTS[name], top=top, body=lines))

    def limit() -> None:
        for what, most in (limits or {}).items():
            resource.setrlimit(what, (most, most))

    paths = [str(data.ROOT), *(entry for entry in sys.path if "pyclient" in entry)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        preexec_fn=limit,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- Memory and processors


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("gib", "processors"), [(1, 1), (16 << 10, 1024)])
def test_any_host(gib: int, processors: int, method: str, tmp_path: Path) -> None:
    """Nothing is reserved because the machine has it."""
    body = f"""
    loader = DataLoader(Vectors(*[1 << 10] * 24), num_workers=8, multiprocessing_context={method!r})
    print(all(is_right(batch, index, 1 << 10) for index, batch in enumerate(loader)))
    """
    top = HOST.replace("GIB", str(gib)).replace("PROCESSORS", str(processors))
    assert said_by("ringfeed", body, tmp_path, top=top) == "True\n"


def test_address_space_is_taken_by_need(tmp_path: Path) -> None:
    """In the trainer, and in its workers: less than twice PyTorch's, and that for all batches."""
    body = """
    import threading
    def mapped(pid):
        with open(f"/proc/{pid}/statm") as statm:
            return int(statm.read().split()[0]) * 4096
    class Says(Vectors):
        def __getitem__(self, index):
            return torch.tensor([mapped("self")])
    before = mapped("self")
    inside = [int(one) for one in DataLoader(Says(*range(40)), batch_size=None, num_workers=2)]
    print(mapped("self") - before < 1 << 30, max(inside) - before < BYTES)
    """
    # A worker has the room into which the state of its dataset may grow.
    body = body.replace("BYTES", str(2 << 40))
    assert said_by("ringfeed", body, tmp_path) == "True True\n"


@pytest.mark.parametrize("name", data.IMPORTS)
def test_batches_that_grow_and_are_kept(name: str, tmp_path: Path) -> None:
    """A region is mapped anew for a larger batch: what is held of it stays as it is, where it is."""
    body = """
    elements = [1 << (5 + index * 13 % 19) for index in range(60)]
    kept = []
    for index, batch in enumerate(DataLoader(Vectors(*elements), num_workers=2)):
        kept.append((batch, batch.data_ptr()))
        if index % 3 == 1:
            kept[index // 2] = None
    print(all(
        is_right(one[0], index, elements[index]) and one[0].data_ptr() == one[1]
        for index, one in enumerate(kept) if one is not None
    ))
    """
    assert said_by(name, body, tmp_path) == "True\n"


def test_a_batch_that_outgrows_its_region_while_it_is_made(tmp_path: Path) -> None:
    """Its first arrays lie where it was mapped first."""
    body = """
    loader = DataLoader(Vectors(*range(8)), batch_size=None, num_workers=2, collate_fn=parts)
    for index, batch in enumerate(loader):
        for place, part in enumerate(batch):
            assert part.shape == (1, 1000 << place) and bool((part == index).all())
    print("right")
    """
    top = """
def parts(sample):
    whole = [torch.full((1000 << place,), len(sample)) for place in range(12)]
    return [torch.utils.data.default_collate([part]) for part in whole]
"""
    assert said_by("ringfeed", body, tmp_path, top=top) == "right\n"


# ---- Limits of a process


@pytest.mark.parametrize("name", data.IMPORTS)
@pytest.mark.parametrize("method", METHODS)
def test_little_address_space(name: str, method: str, tmp_path: Path) -> None:
    """`ulimit -v`: what is enough for PyTorch is enough."""
    body = f"""
    loader = DataLoader(
        Vectors(*[1 << 24] * 12), num_workers=4, multiprocessing_context={method!r}
    )
    print(all(is_right(batch, index, 1 << 24) for index, batch in enumerate(loader)))
    """
    limits = {resource.RLIMIT_AS: 8 * GIB}
    assert said_by(name, body, tmp_path, limits=limits) == "True\n"


@pytest.mark.parametrize("name", data.IMPORTS)
def test_small_files(name: str, tmp_path: Path) -> None:
    """`ulimit -f` is about memory, too."""
    body = """
    loader = DataLoader(Vectors(*[1 << 20] * 12), num_workers=2)
    print(all(is_right(batch, index, 1 << 20) for index, batch in enumerate(loader)))
    """
    assert said_by(name, body, tmp_path, limits={resource.RLIMIT_FSIZE: GIB}) == "True\n"


@pytest.mark.parametrize("kib", [1, 100, 4000])
def test_files_that_are_too_small(kib: int, tmp_path: Path) -> None:
    body = """
    try:
        loader = DataLoader(Vectors(*[1 << 20] * 12), num_workers=2)
        print(all(is_right(batch, index, 1 << 20) for index, batch in enumerate(loader)))
    except Exception as error:
        print(error)
    """
    said = said_by("ringfeed", body, tmp_path, limits={resource.RLIMIT_FSIZE: kib << 10})
    assert "ulimit -f" in said, said
