"""A /proc that is not there, that is of other processes, or that shows processes alone.

Each test is a program in a mount namespace of its own, so that nobody else misses anything.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from tests.support.loaders import own_data as data  # noqa: E402

COVERED = (("unshare", "--mount", "--map-root-user"), "mount -t tmpfs none /proc")
FOREIGN = (("unshare", "--pid", "--fork", "--map-root-user"), "true")
PROCESSES_ALONE = (
    ("unshare", "--mount", "--pid", "--fork", "--map-root-user"),
    "mount -t proc -o subset=pid none /proc",
)
# The program begins anew where /proc is as the command makes it.
ANEW = """
    if sys.argv[-1] != "anew":
        run = {command!r} + ' && exec "$0" "$@"'
        os.execvp({apart[0]!r}, [*{apart!r}, "sh", "-c", run, sys.executable, *sys.argv, "anew"])
"""
LOOP = """
    loader = DataLoader(data.Squares(12), batch_size=3, num_workers=2, {options})
    for _ in range(2):
        print([numbers.tolist() for _, numbers in loader], flush=True)
"""
DUE = str([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]])


def run(
    name: str, scene: tuple[tuple[str, ...], str], body: str, directory: Path
) -> tuple[int, str, str]:
    """Status, standard output and error of that program."""
    apart, command = scene
    tried = subprocess.run([*apart, "sh", "-c", command], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"no namespaces here: {tried.stderr.strip()}")
    process = data.script(name, ANEW.format(command=command, apart=apart) + body, directory)
    out, errors = process.communicate(timeout=100)
    return process.returncode, out, errors


@pytest.mark.parametrize("scene", [COVERED, FOREIGN], ids=["covered", "foreign"])
@pytest.mark.parametrize("options", ["", "multiprocessing_context='spawn'", "feed='one'"])
def test_a_supervisor_that_would_see_no_process_is_not_started(
    scene: tuple[tuple[str, ...], str],
    options: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would look in vain for its programs and workers, at the latest after a death."""
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(tmp_path / "sockets"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    status, out, errors = run("ringfeed", scene, LOOP.format(options=options), tmp_path)
    assert status == 1 and not out, (out, errors)
    said = errors.splitlines()[-1]
    assert said.startswith("ringfeed.errors.RingfeedError: /proc is "), errors
    assert "mount it" in said
    assert not list(tmp_path.glob("ringfeed*")), "nothing is left"


@pytest.mark.parametrize("options", ["", "multiprocessing_context='spawn'", "feed='one'"])
def test_a_proc_of_processes_alone_is_enough(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(tmp_path / "sockets"))
    status, out, errors = run("ringfeed", PROCESSES_ALONE, LOOP.format(options=options), tmp_path)
    assert status == 0, errors
    assert out.splitlines() == [DUE] * 2


def test_ranks_find_those_of_their_host_without_its_boot(tmp_path: Path) -> None:
    body = """
    import torch.distributed, torch.multiprocessing
    from pathlib import Path
    from ringfeed.torch import _plan
    here = Path(os.path.dirname(sys.argv[0]))
    def act(rank):
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{here}/met", rank=rank, world_size=2
        )
        assert _plan._ranks_here(rank, 2, here) == [0, 1]
    pids = [data.forked(lambda: act(rank)) for rank in range(2)]
    assert [data.status_of(pid) for pid in pids] == [0, 0]
    """
    status, _, errors = run("ringfeed", PROCESSES_ALONE, body, tmp_path)
    assert status == 0, errors
