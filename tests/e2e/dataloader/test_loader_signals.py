"""Signals that a launcher sends to all processes of a job: the trainer's handlers are the trainer's."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from tests.support.loaders import own_data as data  # noqa: E402

NUMBERS = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGALRM")


@pytest.mark.parametrize("options", ["", "persistent_workers=True", "feed='one'"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_handlers_of_the_trainer_run_in_the_trainer_alone(
    method: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFEED_SOCKET_DIR", str(tmp_path / "sockets"))
    body = f"""
    numbers = [getattr(signal, name) for name in {NUMBERS!r}]
    def handle(number, frame):
        with open(sys.argv[1], "a") as file:
            file.write(f"{{os.getpid()}} {{number}}\\n")
    for number in numbers:
        signal.signal(number, handle)
    loader = DataLoader(data.Squares(40), batch_size=2, num_workers=2,
                        multiprocessing_context="{method}", {options})
    seen = []
    for _ in range(2):
        for _, indices in loader:
            seen += indices.tolist()
            if len(seen) == 8:
                for number in numbers:
                    os.kill(os.getpid(), number)
                    for pid in data.descendants():
                        if not any(word in data.command_of(pid) for word in data.LASTING):
                            os.kill(pid, number)
    assert seen == [*range(40)] * 2, seen
    due = sorted(f"{{os.getpid()}} {{int(number)}}" for number in numbers)
    assert sorted(open(sys.argv[1]).read().split("\\n"))[1:] == due
    """
    process = data.script("ringfeed", body, tmp_path, words=[str(tmp_path / "handled")])
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0 and "worker_died" not in errors, errors


def test_a_dataset_sets_a_timer_for_the_trainers_handler(loader_name: str, tmp_path: Path) -> None:
    body = """
    import time
    class TooLong(Exception):
        pass
    def handle(*_):
        raise TooLong
    signal.signal(signal.SIGALRM, handle)
    def made(index):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            if index == 3:
                time.sleep(1000)
            return index
        except TooLong:
            return -1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    loader = DataLoader(data.Made(made, 6), batch_size=None, num_workers=2)
    print(sum(int(one) for one in loader if one == -1))
    """
    process = data.script(loader_name, body, tmp_path)
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert out == "-1\n"
