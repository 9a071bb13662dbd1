"""ringfeed try, and dead letters under pdb: what a person sees at the terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import ringfeed

from tests.support.fakes.fickle_server import serving
from tests.support.feeds.feed_run import BIN, wait_until
from tests.support.rig.terminal import Terminal

RINGFEED = str(BIN / "ringfeed")
PATIENCE_S = 60.0
INTERRUPTED = 130
NOT_TAKEN = 6

STAGES = """
feed: "tried"
epochs: 1
seed: 7
stages { name: "files" file_path_provider { directory: "data" } }
stages { name: "lines" sample_source { input: "files" } }
stages { name: "mapped" python { input: "lines" object: "own:same" python_path: "." } }
stages { name: "shuffled" sample_shuffler { input: "mapped" size: 4 } }
stages { name: "batches" sample_batcher {
  input: "shuffled" batch_size: 4
  fields { name: "id" dtype: "int64" }
  fields { name: "text" dtype: "text" } } }
"""
SOURCE = """
feed: "tried"
epochs: 1
stages { name: "rows" python_source { object: "own:Rows" python_path: "." } }
stages { name: "mapped" python { input: "rows" object: "own:same" python_path: "." } }
stages { name: "batches" sample_batcher {
  input: "mapped" batch_size: 4 fields { name: "id" dtype: "int64" } } }
"""
MODULE = '''
import ctypes, json, os, random, signal, threading, time
import numpy as np
from ringfeed import stage


def same(sample):
    return sample


def named(sample):
    return {"id": 100 + int(sample["index"])}


def adds(sample):
    if sample["id"] == 0:
        return None
    print("at", sample["id"])
    sample["ramp"] = np.arange(100, dtype=np.float32)
    return sample


def draws(sample, ctx):
    return {"a": random.random(), "b": float(ctx.rng.random())}


def raises(sample):
    wanted = int(sample["id"]) + 40
    if sample["id"] in (1, 3):
        json.loads("{" + sample["text"])
    return sample


def no_sample(sample):
    return {"id": {}}


def asks(sample):
    sample["said"] = input("what? ")
    return sample


def segfault(sample):
    if sample["id"] == 2:
        ctypes.string_at(0)
    return sample


def leaves(sample):
    if sample["id"] == 2:
        os._exit(9)
    return sample


def hangs(sample):
    print("hanging")
    time.sleep(3600)


def hangs_hard(sample):
    """As C code that does not come back: nothing of Python gets through."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    print("hanging", flush=True)
    time.sleep(3600)


def stops(sample):
    here = 5
    breakpoint()
    return sample


class Stays:
    def __init__(self):
        threading.Thread(target=time.sleep, args=(3600,)).start()

    def __call__(self, sample):
        return sample


@stage.flat_map
def words(sample):
    for word in sample["text"].split():
        yield {"word": word}


class Several(stage.MapBatch):
    def __call__(self, samples):
        return [{"together": len(samples)} for _ in samples]


class Broken:
    def __init__(self):
        raise LookupError("there is no model")

    def __call__(self, sample):
        return sample


class Rows(stage.Source):
    def read(self, cursor):
        for i in range(int(cursor or 0), 20):
            if i == 3 and os.path.exists("faulty"):
                raise ValueError("row 3 is gone")
            yield {"id": i}, b"%d" % (i + 1)
'''


class Place:
    """A directory with a configuration, and what a command left of itself in the system."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = uuid.uuid4().hex
        package = str(Path(ringfeed.__file__).parents[1])
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
            "RINGFEED_PYTHON": sys.executable,
            "RINGFEED_SOCKET_DIR": str(directory / "sockets"),
            "XDG_STATE_HOME": str(directory / "state"),
            "RINGFEED_TEST_MARK": self.mark,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        (directory / "data").mkdir()
        rows = [json.dumps({"id": i, "text": "word " * i}) for i in range(20)]
        (directory / "data/lines.jsonl").write_text("\n".join(rows) + "\n")
        (directory / "own.py").write_text(MODULE)
        (directory / "stages.textproto").write_text(STAGES)
        (directory / "source.textproto").write_text(SOURCE)
        self.files = self.all_files()

    def all_files(self) -> set[Path]:
        return set(self.directory.rglob("*")) | set(Path("/dev/shm").glob("ringfeed*"))

    def command(
        self, *words: str, stage: str = "mapped", of: str = "same", config: str = "stages"
    ) -> list[str]:
        given = ["--set", f'stages.mapped.object="own:{of}"']
        return [RINGFEED, "try", f"{config}.textproto", "--stage", stage, *given, *words]

    def tried(
        self, *words: str, stage: str = "mapped", of: str = "same", config: str = "stages"
    ) -> subprocess.CompletedProcess[str]:
        """Whatever comes of it, nothing is left behind."""
        done = self.run(*self.command(*words, stage=stage, of=of, config=config))
        self.expect_nothing_left()
        return done

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def at_terminal(self, *words: str, of: str = "same", config: str = "stages") -> Terminal:
        return Terminal(
            self.command(*words, of=of, config=config), self.directory, self.environment
        )

    def processes(self) -> dict[int, str]:
        """Those that know the mark: of this place, whoever started them; and their words."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                environment = (place / "environ").read_bytes()
                words = (place / "cmdline").read_bytes()
            except OSError:  # it has ended
                continue
            if self.mark.encode() in environment and words:
                found[int(place.name)] = words.replace(b"\0", b" ").decode()
        return found

    def wait_for_prompt(self) -> None:
        """Until the stage's process sleeps at its prompt: what comes as it goes there is not heard
        before the next key.
        """
        (pid,) = (pid for pid, words in self.processes().items() if "--try-fd" in words)

        def switches() -> str:
            status = Path(f"/proc/{pid}/status").read_text()
            return status if "State:\tS" in status else ""

        def sleeps() -> bool:
            before = switches()
            time.sleep(0.05)
            return before != "" and before == switches()

        wait_until(sleeps, "the prompt")

    def expect_nothing_left(self) -> None:
        wait_until(lambda: not self.processes(), "the end of all processes")
        assert self.all_files() == self.files


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path)


def samples_of(text: str) -> dict[int, str]:
    """What was printed of each sample."""
    parts = re.split(r"^sample (\d+)", text, flags=re.M)
    return {int(number): shown for number, shown in zip(parts[1::2], parts[2::2])}


def test_samples_are_shown_as_they_go_in_and_come_out(place: Place) -> None:
    done = place.tried("--samples", "3", of="adds")
    assert done.returncode == 0, done.stderr
    shown = samples_of(done.stdout)
    assert sorted(shown) == [1, 2, 3]
    assert "left out" in shown[1]
    assert re.search(
        r'in +id +int64 +1\n +text +text +"word "\nat 1\n +out +id +int64 +1', shown[2]
    )
    assert re.search(r"ramp +float32\[100\] +0 1 2 3 4 5 6 7 …, min 0, max 99\n", shown[2])
    assert re.search(r"\n +\d+\.\d+ ms\n", shown[2])
    assert "mapped: 3 samples in, 2 out" in done.stdout
    assert done.stderr == ""


def test_a_trial_shows_the_same_again(place: Place) -> None:
    first, second = (
        re.findall(r"[ab] +float64 +(\S+)", place.tried(of="draws").stdout) for _ in range(2)
    )
    assert first == second and len(set(first)) == 10


def test_it_draws_what_the_feed_draws(place: Place) -> None:
    shown = re.findall(r"b +float64 +(\S+)", place.tried("--samples", "20", of="draws").stdout)
    text = STAGES.replace("own:same", "own:draws").replace('feed: "tried"', "")
    text = re.sub(r'stages { name: "shuffled".*', "", text, flags=re.S).replace(
        'python_path: "."', f'python_path: "{place.directory}" processes: 3'
    )
    text = text.replace('"data"', f'"{place.directory}/data"')
    batches = (
        'stages { name: "batches" sample_batcher { input: "mapped" batch_size: 20 '
        'fields { name: "b" dtype: "float64" } } }'
    )
    with ringfeed.DataLoader(text + batches) as loader:
        (drawn,) = (batch[0].tolist() for batch in loader)
    assert shown == [f"{one:.6g}" for one in drawn]


@pytest.mark.parametrize("of", ["words", "Several"])
def test_each_shape_of_a_stage(place: Place, of: str) -> None:
    done = place.tried("--samples", "4", of=of)
    assert done.returncode == 0, done.stderr
    if of == "words":
        assert re.search(r"out1 +word +text +\"word\"\n +out2 +word", samples_of(done.stdout)[3])
        assert "4 samples in, 6 out" in done.stdout
    else:
        assert done.stdout.count("together  int64  4") == 4
        assert "samples 1 to 4 together" in done.stdout
        few = place.tried("--samples", "3", "--set", "stages.mapped.batch=2", of=of)
        assert re.findall(r"together  int64  (\d)", few.stdout) == ["2", "2", "1"]


def test_an_exception_is_shown_with_the_users_traceback(place: Place) -> None:
    done = place.tried("--samples", "5", of="raises")
    assert done.returncode == 1
    shown = samples_of(done.stdout)
    assert "own.py" in shown[2] and "JSONDecodeError" in shown[2]
    assert "ringfeed/worker" not in done.stdout
    assert "raised" not in shown[3] and "JSONDecodeError" in shown[4]
    assert "5 samples in, 3 out, 2 raised" in done.stdout


def test_what_is_no_sample_names_the_field(place: Place) -> None:
    done = place.tried("--samples", "1", of="no_sample")
    assert done.returncode == 1
    assert re.search(r"TypeError: .*'id'.*dict", done.stdout), done.stdout


def test_a_class_that_cannot_be_made(place: Place) -> None:
    done = place.tried(of="Broken")
    assert done.returncode == 1
    assert "own:Broken cannot be made" in done.stdout
    assert "LookupError: there is no model" in done.stdout


@pytest.mark.parametrize(
    ("of", "ending"), [("segfault", r"signal 11 \(Segmentation fault\)"), ("leaves", "status 9")]
)
def test_a_death_names_the_sample_and_the_users_frame(place: Place, of: str, ending: str) -> None:
    done = place.tried(of=of)
    assert done.returncode == 1
    assert re.search(ending + r" on sample 3 \(lineage", done.stderr), done.stderr
    assert re.search(rf'own.py", line \d+ in {of}', done.stderr)


def test_a_source_is_shown(place: Place) -> None:
    done = place.tried("--samples", "30", stage="rows", config="source")
    assert done.returncode == 0, done.stderr
    assert re.search(r"sample 20, cursor b'20'\n +out +id +int64 +19\n", done.stdout)
    assert "the end of its epoch, after 20 samples" in done.stdout


def test_stages_in_python_before_the_stage_run_too(place: Place) -> None:
    done = place.tried("--samples", "2", config="source")
    assert done.returncode == 0, done.stderr
    assert re.search(r"in +id +int64 +1\n +out +id +int64 +1\n", samples_of(done.stdout)[2])


def test_files_of_a_web_server(place: Place, tmp_path: Path) -> None:
    with serving() as server:
        url = server.put("lines.jsonl", (place.directory / "data/lines.jsonl").read_bytes())
        files = f'remote_files {{ url: "{url}" cache: "cache" cache_bytes: 10000000 }}'
        text = STAGES.replace('file_path_provider { directory: "data" }', files)
        (place.directory / "stages.textproto").write_text(text)
        done = place.run(*place.command("--samples", "3"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"out +id +int64 +2\n", samples_of(done.stdout)[3])
    # The cache is everybody's, and stays.
    place.files |= {path for path in place.all_files() if "cache" in path.parts}
    place.expect_nothing_left()


@pytest.mark.parametrize("stage", ["lines", "shuffled", "batches"])
def test_stages_that_are_not_in_python(place: Place, stage: str) -> None:
    done = place.tried("--samples", "6", stage=stage)
    assert done.returncode == 0, done.stderr
    said = {
        "lines": "lines: 6 samples out",
        "shuffled": "shuffled: 6 samples in, 6 out",
        "batches": "batches: 6 samples in, 2 batches with 6 rows out",
    }[stage]
    assert said in done.stdout
    if stage != "batches":
        out = re.findall(r"^out \d+ \(lineage.*\n +id +int64 +(\d+)$", done.stdout, re.M)
        assert sorted(map(int, out)) == list(range(6))


def test_a_stage_of_several_inputs_shows_what_it_gives_first(place: Place) -> None:
    mixer = """
    epochs: 1
    seed: 7
    stages { name: "files" file_path_provider { directory: "DIR/data" } }
    stages { name: "lines" sample_source { input: "files" fields { name: "id" dtype: "int64" } } }
    stages { name: "numbers" index_source { count: 20 } }
    stages { name: "named" python { input: "numbers" object: "own:named" python_path: "DIR" } }
    stages { name: "mixed" sample_mixer { input: "lines" input: "named" weight: 1 weight: 5 } }
    stages { name: "batches" sample_batcher {
      input: "mixed" batch_size: 12 fields { name: "id" dtype: "int64" } } }
    """.replace(
        "DIR", str(place.directory)
    )
    (place.directory / "stages.textproto").write_text('feed: "tried"' + mixer)
    done = place.run(RINGFEED, "try", "stages.textproto", "--stage", "mixed", "--samples", "12")
    assert done.returncode == 0, done.stderr
    place.expect_nothing_left()
    shown = [int(one) for one in re.findall(r"^ +id +int64 +(\d+)$", done.stdout, re.M)]
    with ringfeed.DataLoader(mixer) as loader:
        (first,) = next(iter(loader))
        assert shown == first.tolist()


@pytest.mark.parametrize(
    ("words", "stage", "said"),
    [
        ((), "mappd", "there is no stage 'mappd'; did you mean 'mapped'?"),
        ((), "nothing", "there are files, lines, mapped, shuffled, batches"),
        ((), "files", "neither takes nor gives samples; these do: lines, mapped"),
        (
            ("--pdb",),
            "shuffled",
            "--pdb is for stages in Python that give samples, and stage 'shuffled' is none",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(
    place: Place, words: tuple[str, ...], stage: str, said: str
) -> None:
    done = place.tried(*words, stage=stage)
    assert done.returncode == 1 and said in done.stderr
    assert done.stdout == ""


def test_an_object_that_is_not_there_is_a_mistake_of_the_configuration(place: Place) -> None:
    done = place.tried(of="smae")
    assert done.returncode == 3 and "module own has no smae" in done.stderr


def test_when_no_sample_comes_it_says_what_was_skipped(place: Place) -> None:
    (place.directory / "data/lines.jsonl").write_text("{\n{\n{\n")
    done = place.tried()
    assert done.returncode == 1
    assert "no sample came" in done.stderr
    assert re.search(r"lines: .*skipped_\w+=3", done.stderr), done.stderr


def test_a_death_before_the_stage_names_the_stage_that_died(place: Place) -> None:
    text = STAGES.replace('python_path: "." }', 'python_path: "." }', 1).replace(
        'input: "mapped" size: 4', 'input: "second" size: 4'
    )
    second = (
        'stages { name: "second" python { input: "mapped" object: "own:same" python_path: "." } }'
    )
    (place.directory / "stages.textproto").write_text(text + second)
    done = place.tried(stage="second", of="segfault")
    assert done.returncode == 1
    assert re.search(r"stage group 'mapped.0' ended with signal 11", done.stderr), done.stderr


def test_pdb_opens_where_the_stage_raised(place: Place) -> None:
    with place.at_terminal("--pdb", of="raises") as terminal:
        terminal.expect(r"JSONDecodeError(.|\n)*\(Pdb\) ")
        terminal.type("p wanted\r")
        terminal.expect(r"p wanted\n41\n(.|\n)*\(Pdb\) ")
        terminal.type("c\r")
        terminal.expect(r"sample 4(.|\n)*\(Pdb\) ")
        terminal.type("p wanted\r")
        terminal.expect(r"p wanted\n43\n(.|\n)*\(Pdb\) ")
        terminal.type("q\r")
        assert terminal.end() == 1
        assert "4 samples in, 2 out, 2 raised" in terminal.said
    place.expect_nothing_left()


def test_pdb_of_a_source(place: Place) -> None:
    (place.directory / "faulty").touch()
    place.files = place.all_files()
    words = place.command("--pdb", stage="rows", config="source")
    with Terminal(words, place.directory, place.environment) as terminal:
        terminal.expect(r"row 3 is gone(.|\n)*\(Pdb\) ")
        terminal.type("p i\r")
        terminal.expect(r"p i\n3\n")
        terminal.type("q\r")
        assert terminal.end() == 1
    place.expect_nothing_left()


def test_the_stage_has_the_terminal(place: Place) -> None:
    with place.at_terminal("--samples", "1", of="asks") as terminal:
        terminal.expect(r"what\? ")
        terminal.type("this\r")
        terminal.expect(r'said +text +"this"')
        assert terminal.end() == 0
    place.expect_nothing_left()


@pytest.mark.parametrize("of", ["hangs", "hangs_hard"])
def test_ctrl_c_ends_it(place: Place, of: str) -> None:
    with place.at_terminal(of=of) as terminal:
        terminal.expect("hanging")
        terminal.type("\x03")
        if of == "hangs_hard":
            terminal.expect("Ctrl-C again kills it")
            terminal.type("\x03")
        assert terminal.end() == INTERRUPTED
    place.expect_nothing_left()


def test_a_breakpoint_of_the_user(place: Place) -> None:
    with place.at_terminal("--samples", "1", of="stops") as terminal:
        terminal.expect(r"\(Pdb\) ")
        place.wait_for_prompt()
        terminal.type("\x03")
        terminal.expect(r"KeyboardInterrupt(.|\n)*\(Pdb\) ")
        terminal.type("p here\r")
        terminal.expect(r"p here\n5\n(.|\n)*\(Pdb\) ")
        terminal.type("c\r")
        assert terminal.end() == 0
    place.expect_nothing_left()


def test_a_thread_that_stays_does_not_hold_it_up(place: Place) -> None:
    done = place.tried("--samples", "1", of="Stays")
    assert done.returncode == 0 and "1 samples in, 1 out" in done.stdout


def test_ctrl_c_while_nothing_comes(place: Place) -> None:
    words = ["--set", "epochs=0", "--set", 'stages.files.directory="empty"']
    (place.directory / "empty").mkdir()
    place.files = place.all_files()
    with place.at_terminal(*words) as terminal:
        terminal.expect("was made in")
        terminal.type("\x03")
        assert terminal.end() == INTERRUPTED
        assert "0 samples in" in terminal.said
    place.expect_nothing_left()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_its_death_ends_all_of_it(place: Place, how: signal.Signals) -> None:
    with place.at_terminal("--pdb", of="raises") as terminal:
        terminal.expect(r"\(Pdb\) ")
        os.kill(terminal.pid, how)
        assert terminal.end() == -how
    place.expect_nothing_left()


def set_aside(place: Place, of: str) -> Path:
    """Runs a feed until it has set sample 2 aside; the record."""
    letters = place.directory / "letters"
    loader = ringfeed.DataLoader(
        STAGES.replace('feed: "tried"', "")
        .replace("own:same", f"own:{of}")
        .replace('"."', f'"{place.directory}"')
        .replace('"data"', f'"{place.directory}/data"')
        + f'restart {{ max_attempts: 1 dead_letters: "{letters}" }}'
    )
    with loader:
        for _ in loader:
            pass
    place.files = place.all_files()
    (record,) = letters.glob("*.record")
    return record


def replayed(place: Place, record: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return place.run(RINGFEED, "dead-letters", "--replay", str(record), *words)


@pytest.mark.parametrize("of", ["segfault", "leaves"])
def test_a_replay_shows_the_users_frame(place: Place, of: str) -> None:
    record = set_aside(place, of)
    about = json.loads(record.with_suffix(".json").read_text())
    assert re.search(rf'own.py", line \d+ in {of}', about["cause"])
    done = replayed(place, record)
    assert done.returncode == NOT_TAKEN
    assert re.search(r"id +int64 +2\n", done.stdout)
    assert re.search(rf'own.py", line \d+ in {of}', done.stdout), done.stdout
    place.expect_nothing_left()


def test_dead_letters_show_their_samples(place: Place) -> None:
    record = set_aside(place, "segfault")
    letters = [RINGFEED, "dead-letters", "any", "--directory", str(record.parent)]
    for command in (letters, [RINGFEED, "inspect", str(record)]):
        done = place.run(*command)
        assert done.returncode == 0, done.stderr
        assert re.search(r'id +int64 +2\n +text +text +"word word "\n', done.stdout), done.stdout
    record.write_bytes(b"no sample")
    done = place.run(*letters)
    assert done.returncode == 0 and str(record) in done.stdout and "int64" not in done.stdout


def test_a_replay_under_pdb_stops_at_the_call(place: Place) -> None:
    record = set_aside(place, "segfault")
    words = [RINGFEED, "dead-letters", "--replay", str(record), "--pdb"]
    with Terminal(words, place.directory, place.environment) as terminal:
        terminal.expect(r"segfault\(.*\n(.|\n)*\(Pdb\) ")
        terminal.type("p sample['id']\r")
        terminal.expect(r"\n.*2.*\n(.|\n)*\(Pdb\) ")
        terminal.type("c\r")
        terminal.expect("Fatal Python error: Segmentation fault")
        assert terminal.end() == NOT_TAKEN
        assert "signal 11" in terminal.said
    place.expect_nothing_left()


def test_a_replay_under_pdb_that_is_taken(place: Place) -> None:
    record = set_aside(place, "segfault")
    other = place.directory / "fixed.textproto"
    other.write_text(STAGES)
    place.files = place.all_files()
    words = [RINGFEED, "dead-letters", "--replay", str(record), "--pdb", "--config", str(other)]
    with Terminal(words, place.directory, place.environment) as terminal:
        terminal.expect(r"\(Pdb\) ")
        terminal.type("c\r")
        assert terminal.end() == 0
        assert "1 samples in, 1 out" in terminal.said
    place.expect_nothing_left()


def test_a_replay_under_pdb_is_for_stages_in_python(place: Place) -> None:
    record = set_aside(place, "segfault")
    about = json.loads(record.with_suffix(".json").read_text())
    about["stage"] = "shuffled"
    record.with_suffix(".json").write_text(json.dumps(about))
    done = replayed(place, record, "--pdb")
    assert done.returncode == 1
    assert (
        "--pdb is for stages in Python that give samples, and stage 'shuffled' is none"
        in done.stderr
    )
