"""The peer of the benchmark of parallel text gives what the reference gives: else it would measure
nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TESTS.parent))
sys.path.insert(0, str(TESTS / "bench"))

pytest.importorskip("numpy", reason="no NumPy")
pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

import peer_fairseq as peer  # noqa: E402

from tests.support.makers import fairseq_data  # noqa: E402
from tests.support.oracles import fairseq_reference as reference  # noqa: E402

MAX_TOKENS = 200
POSITIONS = 20  # of the longest sentences are longer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> fairseq_data.RandomCorpus:
    return fairseq_data.random_corpus(
        tmp_path_factory.mktemp("fairseq"),
        seed=5,
        directions=5,
        shards=1,
        sentences=400,
        reversed_files=False,
        both_ways=False,
    )


def epoch_of(
    corpus: fairseq_data.RandomCorpus, temperature: float | None, number: int
) -> reference.Epoch:
    config = reference.Config(
        compat="NLLB",
        directory=corpus.directories,
        lang_pairs=corpus.lang_pairs,
        encoder_langtok="SRC",
        decoder_langtok=True,
        max_tokens=MAX_TOKENS,
        max_source_positions=POSITIONS,
        max_target_positions=POSITIONS,
        sampling_method="CONCAT" if temperature is None else "TEMPERATURE",
        sampling_temperature=temperature or 1.0,
    )
    return reference.Reference(config).epoch(number)


@pytest.mark.parametrize("temperature", [None, 1.5, 5.0])
@pytest.mark.parametrize("number", [1, 3])
def test_plans_are_those_of_the_reference(
    corpus: fairseq_data.RandomCorpus, temperature: float | None, number: int
) -> None:
    epoch = epoch_of(corpus, temperature, number)
    directions = peer.open_directions(corpus.directories[0], corpus.lang_pairs)
    plan = peer.make_plan(directions, temperature, positions=POSITIONS, epoch=number)
    assert plan.rows(range(plan.ends[-1])) == epoch.rows
    assert plan.order.tolist() == epoch.kept
    assert 0 < len(plan.order) < plan.ends[-1]
    cut = [batch.tolist() for batch in peer.cut_batches(plan, MAX_TOKENS)]
    assert cut == epoch.frozen_batches


def test_batches_are_those_of_the_reference(corpus: fairseq_data.RandomCorpus) -> None:
    def rows_of(batch: Any) -> list[tuple[Any, ...]]:
        names = ("id", "src_lengths", "src_tokens", "prev_output_tokens", "target")
        arrays = [getattr(batch[name], "tolist", lambda: batch[name])() for name in names]
        return list(zip(*arrays, strict=True))

    epoch = epoch_of(corpus, 1.5, 1)
    directions = peer.open_directions(corpus.directories[0], corpus.lang_pairs)
    rows = [[epoch.rows[x] for x in batch] for batch in epoch.frozen_batches]
    made = list(peer.loader(directions, rows))
    assert len(made) == len(rows) > 10
    for one, batch in zip(made, rows, strict=True):
        other = reference.collate(epoch.config, epoch.directions, batch)
        assert (one["ntokens"], one["nsentences"]) == (other["ntokens"], other["nsentences"])
        lengths = one["src_lengths"].tolist()
        assert lengths == sorted(lengths, reverse=True)
        # Rows of equal length: in which order, is no rule that would cost time.
        assert sorted(map(str, rows_of(one))) == sorted(map(str, rows_of(other)))


def test_a_large_corpus_has_what_it_says(tmp_path: Path) -> None:
    corpus = fairseq_data.large_corpus(tmp_path / "text", directions=4, sentences=3000, words=500)
    empty = fairseq_data.large_corpus(tmp_path / "empty", directions=4, sentences=3000, text=False)
    assert len(corpus.lang_pairs) == 4 and abs(corpus.sentences - 3000) < 10
    total = 0
    for number, pair in enumerate(corpus.lang_pairs):
        for language, side in zip(pair.split("-"), ("src", "tgt"), strict=True):
            file = reference.TokenFile(corpus.directory / f"train.{pair}.{language}")
            assert all(file[i][-1] == reference.EOS for i in range(len(file)))
            assert all(4 <= token < 504 for i in range(len(file)) for token in file[i][:-1])
            assert reference.TokenFile(corpus.numbered / f"{number}.{side}").sizes == file.sizes
            sparse = reference.TokenFile(empty.directory / f"train.{pair}.{language}")
            assert (
                sparse.sizes == file.sizes and sum(map(sum, map(sparse.__getitem__, range(9)))) == 0
            )
            total += len(file)
    assert total == 2 * corpus.sentences
    tokens = sum(sum(file.sizes) for file in [reference.TokenFile(corpus.numbered / "0.src")])
    assert 25 < tokens / len(reference.TokenFile(corpus.numbered / "0.src")) < 35
    again = fairseq_data.large_corpus(tmp_path / "text", directions=4, sentences=3000, words=500)
    assert again == corpus
    assert peer.lang_pairs_in(corpus.directory) == corpus.lang_pairs


@pytest.mark.parametrize("words", [["plan", "--temperature", "2"], ["batches", "--batches", "9"]])
def test_the_command_line_prints_one_object(tmp_path: Path, words: list[str]) -> None:
    corpus = fairseq_data.large_corpus(tmp_path / "text", directions=3, sentences=4000, words=500)
    program = TESTS / "bench" / "peer_fairseq.py"
    done = subprocess.run(
        [sys.executable, str(program), words[0], str(corpus.directory), *words[1:], "--cut"],
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    assert result["sentences"] > 0 and result["batches"] > 0 and result["seconds"] > 0
