"""The reference decoder against real games: what everything else is compared with must be right.

The four real games and their digests are described in the notes beside the sample. It lies in
tests/data/lc0, or where RINGFEED_LC0_SAMPLE says.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import xxhash

TESTS = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TESTS.parent))

from tests.support.oracles import lc0_reference as reference  # noqa: E402

DIGESTS = {
    "planes": "aab7e3bed1f637b781c3b257dc92a030119409bc952a73a7b58ca13a19066e98",
    "policy": "d13e6fd21a8d2947b7dd2e381da30a8b08bb837fad0dd85f3866dd885388568b",
    "values": "9afdc3df3a3af8b1c7347a8ba30c27eed6d636b7ff2d14d47593d228e8344f2c",
    "plies_left": "c33351fe67a297fe5a36aaf1037e3599a16ab80c4284481caabe64176e1dfcd4",
}


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, dtype="<f4").tobytes()).hexdigest()


@pytest.fixture(scope="module")
def sample() -> Path:
    path = Path(
        os.environ.get("RINGFEED_LC0_SAMPLE", TESTS / "data" / "lc0" / "lc0-data-sample.tar")
    )
    if not path.is_file():
        # Not skipped: without real data nothing here would be proved, and nobody would notice.
        pytest.fail(f"{path} is missing: put the real games there or set RINGFEED_LC0_SAMPLE")
    return path


@pytest.fixture(scope="module")
def games(sample: Path) -> dict[str, np.ndarray]:
    found = {game.source.rsplit("/", 1)[1]: game.records for game in reference.read_games(sample)}
    assert len(found) == 4
    return found


def make_records(count: int = 3, seed: int = 7) -> np.ndarray:
    """Records of random bits with a valid head; every field differs between them."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (count, reference.RECORD_BYTES), dtype=np.uint8)
    records = raw.reshape(-1).view(reference.RECORD_V6)
    records["version"] = 6
    records["input_format"] = 1
    return records


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


# --- Real games ---------------------------------------------------------------------------------


def test_the_sample_holds_four_games_and_neither_apple_members_nor_the_licence(games) -> None:
    assert sorted(len(records) for records in games.values()) == [26, 76, 89, 133]


def test_tensors_of_a_real_game_have_the_published_digests(games) -> None:
    records = games["training.1387357298.gz"]
    planes, policy, values = reference.decode(records)
    assert sha256(planes) == DIGESTS["planes"]
    assert sha256(policy) == DIGESTS["policy"]
    assert sha256(values) == DIGESTS["values"]
    assert sha256(records["plies_left"]) == DIGESTS["plies_left"]


def test_tensors_have_the_shapes_of_a_batch(games) -> None:
    for records in games.values():
        planes, policy, values = reference.decode(records)
        assert planes.shape == (len(records), 112, 8, 8)
        assert policy.shape == (len(records), 1858)
        assert values.shape == (len(records), 6, 3)
        assert {planes.dtype, policy.dtype, values.dtype} == {np.dtype(np.float32)}


def test_start_position_shows_pieces_where_they_stand(games) -> None:
    planes = reference.decode_planes(games["training.1387357298.gz"][:2])
    for position in (0, 1):  # white to move, then black, who sees the board from the other side
        assert np.argwhere(planes[position, 5]).tolist() == [[0, 4]]  # own king on e1
        assert np.argwhere(planes[position, 4]).tolist() == [[0, 3]]  # own queen on d1
        assert planes[position, 0, 1].tolist() == [1.0] * 8  # own pawns on the second rank
        assert planes[position, 111].min() == 1.0
    assert planes[0, 108].max() == 0.0 and planes[1, 108].min() == 1.0


# --- The meaning of each field ------------------------------------------------------------------


def test_each_field_of_a_record_lies_at_its_offset() -> None:
    offsets = {name: reference.RECORD_V6.fields[name][1] for name in reference.RECORD_V6.names}
    assert offsets["probabilities"] == 8
    assert offsets["planes"] == 7440
    assert offsets["castling_us_ooo"] == 8272
    assert offsets["root_q"] == 8280
    assert offsets["plies_left"] == 8304
    assert offsets["visits"] == 8340
    assert offsets["played_idx"] == 8344
    assert offsets["q_st"] == 8352


def test_a_single_bit_appears_at_its_rank_and_file_only() -> None:
    records = np.zeros(64, dtype=reference.RECORD_V6)
    for square in range(64):
        records["planes"][square, 17] = 1 << (square ^ 7)
    planes = reference.decode_planes(records)
    assert np.array_equal(planes[:, 17].reshape(64, 64), np.eye(64, dtype=np.float32))
    assert planes[:, :104].sum() == 64


def test_side_planes_carry_the_bytes_and_rule50_is_scaled() -> None:
    records = np.zeros(1, dtype=reference.RECORD_V6)
    for number, name in enumerate(
        ("castling_us_ooo", "castling_us_oo", "castling_them_ooo", "castling_them_oo")
    ):
        records[name] = number + 1
    records["side_to_move"] = 1
    records["rule50_count"] = 50
    planes = reference.decode_planes(records)[0, 104:]
    expected = [1, 2, 3, 4, 1, np.float32(50) / np.float32(99), 0, 1]
    assert planes[:, 0, 0].tolist() == np.array(expected, dtype=np.float32).tolist()
    assert (planes == planes[:, :1, :1]).all()


def test_value_rows_are_result_best_played_orig_root_and_short_term() -> None:
    records = np.zeros(1, dtype=reference.RECORD_V6)
    wanted = {
        "result_q": (0, 0), "result_d": (0, 1), "plies_left": (0, 2),
        "best_q": (1, 0), "best_d": (1, 1), "best_m": (1, 2),
        "played_q": (2, 0), "played_d": (2, 1), "played_m": (2, 2),
        "orig_q": (3, 0), "orig_d": (3, 1), "orig_m": (3, 2),
        "root_q": (4, 0), "root_d": (4, 1), "root_m": (4, 2),
        "q_st": (5, 0),
    }  # fmt: skip
    for number, name in enumerate(wanted, start=1):
        records[name] = number
    values = reference.decode_values(records)[0]
    for number, place in enumerate(wanted.values(), start=1):
        assert values[place] == number
    assert values[5, 1] == 0.0
    assert values[5, 2:].view(np.uint32)[0] == 0x7FC00000


def test_floats_are_copied_bit_for_bit_nans_included() -> None:
    records = make_records()
    _, policy, values = reference.decode(records)
    assert policy.tobytes() == records["probabilities"].tobytes()
    strange = np.array([0x7FC00001, 0xFFC00000, 0x80000000], dtype="<u4")
    records["orig_d"] = strange.view("<f4")
    assert reference.decode_values(records)[:, 3, 1].view("<u4").tolist() == strange.tolist()
    assert np.isnan(values[:, 5, 2]).all()


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 8355, 8357, 2 * 8356 - 4])
def test_bytes_that_are_no_whole_records_are_refused_with_both_sizes(size: int) -> None:
    with pytest.raises(reference.FormatError, match=rf"game 7: {size} bytes .* 8356-byte"):
        reference.records_from_bytes(b"\x06\0\0\0" * (size // 4) + b"\0" * (size % 4), "game 7")


@pytest.mark.parametrize("field, value", [("version", 5), ("version", 7), ("input_format", 3)])
def test_another_version_or_input_format_is_refused_with_its_place(field: str, value: int) -> None:
    records = make_records(5)
    records[field][3] = value
    with pytest.raises(reference.FormatError, match=rf"record 3 of 5 has {field} {value}"):
        reference.records_from_bytes(records.tobytes())


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "game.zip"
    path.write_bytes(make_records().tobytes())
    with pytest.raises(reference.FormatError, match="neither .gz nor .tar"):
        next(reference.read_games(path))


def test_a_gz_is_one_game_and_a_raw_member_of_a_tar_another(tmp_path: Path) -> None:
    data = make_records().tobytes()
    (tmp_path / "one.gz").write_bytes(gzip.compress(data))
    write_tar(tmp_path / "two.tar", {"a/one": data, "LICENSE": b"text", "a/._x.gz": b"junk"})
    for name in ("one.gz", "two.tar"):
        (game,) = reference.read_games(tmp_path / name)
        assert game.records.tobytes() == data


def test_hidden_files_and_folders_hold_no_games(tmp_path: Path) -> None:
    for name in (".hidden.tar", ".folder/a.gz", "folder/a.gz", "b.tar", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert reference.game_files(tmp_path) == [tmp_path / "b.tar", tmp_path / "folder/a.gz"]


# --- Names of positions -------------------------------------------------------------------------


def test_names_depend_on_content_and_not_on_place() -> None:
    tensors = reference.decode(make_records(8))
    names = reference.position_hashes(*tensors)
    assert len(np.unique(names)) == 8
    order = np.random.default_rng(3).permutation(8)
    shuffled = reference.position_hashes(*(array[order] for array in tensors))
    assert shuffled.tolist() == names[order].tolist()


def test_a_name_is_xxh3_over_the_three_rows() -> None:
    tensors = reference.decode(make_records(2))
    whole = b"".join(array[1].tobytes() for array in tensors)
    assert reference.position_hashes(*tensors)[1] == xxhash.xxh3_64(whole).intdigest()


@pytest.mark.parametrize("tensor", [0, 1, 2])
def test_one_changed_bit_changes_the_name(tensor: int) -> None:
    tensors = reference.decode(make_records(1))
    before = reference.position_hashes(*tensors)[0]
    bits = tensors[tensor].reshape(-1).view(np.uint32)
    for place in (0, bits.size // 2, bits.size - 1):
        bits[place] ^= 1
        assert reference.position_hashes(*tensors)[0] != before
        bits[place] ^= 1
    assert reference.position_hashes(*tensors)[0] == before


def test_arrays_that_are_not_a_batch_get_no_names() -> None:
    planes, policy, values = reference.decode(make_records(2))
    for wrong in (
        (planes.astype(np.float64), policy, values),
        (planes.reshape(2, 112, 64), policy, values),
        (planes, policy[:1], values),
        (planes, policy, values[:, :5]),
    ):
        with pytest.raises(ValueError, match="pass the arrays of one batch"):
            reference.position_hashes(*wrong)


def test_an_audit_finds_what_is_missing_repeated_or_unknown() -> None:
    assert reference.audit([3, 1, 2], [1, 2, 3]).exact
    assert reference.audit([3, 1, 2, 1, 3, 2], [1, 2, 3], times=2).exact
    found = reference.audit([1, 1, 9], [1, 2, 3])
    assert (found.missing, found.repeated, found.unknown) == ([2, 3], [1], [9])
    assert not found.exact
    assert str(found).startswith("2 missing (0000000000000002 0000000000000003), 1 repeated")
    assert reference.audit([1, 2, 2], [1, 2], times=2).missing == [1]
    with pytest.raises(ValueError, match="1 of 2 expected positions are not unique"):
        reference.audit([], [1, 1, 2])


# --- The loader without a feed ------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("games")
    games = [gzip.compress(make_records(5 + seed, seed).tobytes()) for seed in range(6)]
    (folder / "c.gz").write_bytes(games[5])
    write_tar(folder / "a.tar", {f"a/{i}.gz": games[i] for i in range(3)} | {"LICENSE": b"text"})
    write_tar(folder / "b.tar", {f"b/{i}.gz": games[i] for i in range(3, 5)})
    return reference.game_files(folder)


def delivered(loader: reference.NaiveLoader) -> np.ndarray:
    return np.concatenate([reference.position_hashes(*batch) for batch in loader])


@pytest.mark.parametrize("batch_size", [1, 4, 64])
@pytest.mark.parametrize("shuffle_size", [1, 2, 7, 1000])
def test_an_epoch_delivers_each_position_exactly_once(
    small_files: list[Path], batch_size: int, shuffle_size: int
) -> None:
    loader = reference.NaiveLoader(small_files, batch_size, shuffle_size)
    found = reference.audit(delivered(loader), reference.file_hashes(small_files))
    assert found.exact, str(found)


def test_parts_share_an_epoch_without_overlap(small_files: list[Path]) -> None:
    parts = [
        delivered(reference.NaiveLoader(small_files, 4, 7, part=part, part_count=3))
        for part in range(3)
    ]
    expected = reference.file_hashes(small_files)
    assert all(len(part) for part in parts)
    assert reference.audit(np.concatenate(parts), expected).exact


def test_batches_are_full_but_for_the_last_of_an_epoch(small_files: list[Path]) -> None:
    sizes = [len(batch[0]) for batch in reference.NaiveLoader(small_files, 4, 7)]
    assert sizes == [4] * 11 + [1]  # 45 positions


def test_order_depends_on_seed_and_epoch(small_files: list[Path]) -> None:
    first, same, other = (
        delivered(reference.NaiveLoader(small_files, 4, 16, seed=seed, epochs=2)).tolist()
        for seed in (1, 1, 2)
    )
    assert first == same
    assert first != other
    assert first[:45] != first[45:] and sorted(first[:45]) == sorted(first[45:])


def test_a_sampling_rate_below_one_takes_a_part_without_repeats(small_files: list[Path]) -> None:
    loader = reference.NaiveLoader(small_files, 4, 8, sampling_rate=0.5, seed=1)
    found = reference.audit(delivered(loader), reference.file_hashes(small_files))
    assert not found.repeated and not found.unknown
    assert 9 <= len(found.missing) <= 36  # 45 tosses of a fair coin: 22.5 +- 4 sigma


@pytest.mark.parametrize(
    "wrong",
    [
        {"paths": []},
        {"batch_size": 0},
        {"shuffle_size": 0},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.5},
        {"part": 2, "part_count": 2},
    ],
)
def test_settings_that_make_no_sense_are_refused(small_files: list[Path], wrong: dict) -> None:
    with pytest.raises(ValueError, match="NaiveLoader"):
        reference.NaiveLoader(**({"paths": small_files} | wrong))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_torch_peer_delivers_each_position_once_over_its_workers(
    small_files: list[Path], workers: int
) -> None:
    # torch is needed by this benchmark only, so a machine without it is no failure.
    torch = pytest.importorskip("torch")
    sys.path.insert(0, str(TESTS / "bench"))
    import peer_torch

    loader = peer_torch.make_loader(small_files, workers, 4, 16, epochs=1)
    batches = list(loader)
    assert {tensor.dtype for batch in batches for tensor in batch} == {torch.float32}
    names = [reference.position_hashes(*(t.numpy() for t in batch)) for batch in batches]
    found = reference.audit(np.concatenate(names), reference.file_hashes(small_files))
    assert found.exact, str(found)
