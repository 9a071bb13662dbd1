"""What a worker writes of a batch, and what a trainer reads: beside what PyTorch's workers pass on.

The other side is PyTorch's own pickler, by which its workers send batches, in this process.
"""

from __future__ import annotations

import copyreg
import pickle
import random
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: scripts/test --with-frameworks has it")

from ringfeed.torch import _batches  # noqa: E402
from ringfeed.torch._bulk import Bulk  # noqa: E402
from tests.support.loaders.own_data import same  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*nested tensors")

BIG = torch.arange(4 << 20, dtype=torch.float32)  # 16 MB
MATRIX = BIG.view(2048, 2048)
DTYPES = sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str)


class Boat:
    """A worker's side and a trainer's, over one slot."""

    def __init__(self) -> None:
        self._bulk = Bulk(1)
        self.writer = _batches.Writer(self._bulk)

    def carry(self, thing: Any, copies: bool = False) -> Any:
        """What arrives. A batch that came before has other data afterwards."""
        self.writer.begin(0, 1)
        places = self.writer.write(thing)
        slot = self._bulk.map(0, self.writer.used)
        if _batches.is_plain(places) and not copies:  # as a trainer does
            return pickle.loads(memoryview(slot)[places[0] : places[0] + places[1]])
        return _batches.read(slot, places[:2], places[2:], copies)


@pytest.fixture
def boat() -> Iterator[Boat]:
    yield Boat()


PLAIN = {
    "texts": ["a text"] * 3,
    "records": [{"tokens": [1, 2], "text": "a"}, {"tokens": [], "text": "a"}],
    "bytes": [bytes(8192), bytearray(8192)],
    "a small array": np.arange(4),
}
NOT_PLAIN = {
    "a tensor": torch.ones(2),
    "an empty tensor": ["a text", torch.empty(0, 3)],
    "an empty storage": [torch.UntypedStorage(0)],
    "an array": np.zeros(2048),
    "what is long": "a" * (2 << 20),
}


@pytest.mark.parametrize("name", [*PLAIN, *NOT_PLAIN])
def test_what_needs_no_memory_beside_its_structure_is_plain(boat: Boat, name: str) -> None:
    thing = {**PLAIN, **NOT_PLAIN}[name]
    boat.writer.begin(0, 1)
    assert _batches.is_plain(boat.writer.write(thing)) is (name in PLAIN)
    same(boat.carry(thing), thing)


class Raises:
    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


def test_a_batch_that_cannot_be_written_leaves_nothing_to_the_next(boat: Boat) -> None:
    text = "a text"
    for _ in range(3):
        with pytest.raises(RuntimeError, match="not this one"):
            boat.carry([text, BIG, np.zeros(2048), pickle.PickleBuffer(bytes(8192)), Raises()])
        got = boat.carry([text, [text, np.ones(2048)]])
        same(got, [text, [text, np.ones(2048)]])


def test_what_has_been_written_is_nobodys_any_more(boat: Boat) -> None:
    class Thing(dict[str, int]):
        pass

    globals()["Thing"] = Thing
    Thing.__qualname__ = "Thing"
    things = [Thing(a=1), Thing(a=2)]
    seen = [weakref.ref(one) for one in things]
    assert boat.carry(things) == things
    del things
    assert [one() for one in seen] == [None, None]


def by_pytorch(thing: Any) -> Any:
    return pickle.loads(bytes(ForkingPickler.dumps(thing)))


class Boxes(torch.Tensor):
    """A tensor that knows its format."""


class Slotted(torch.Tensor):
    __slots__ = ("format",)


class Reduced(torch.Tensor):
    """Has what torch.Tensor reduces to in something of its own."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _called, (super().__reduce_ex__(protocol),)


def _called(reduced: Any) -> Any:
    return reduced[0](*reduced[1])


class Plainly(torch.Tensor):
    """Reduces itself to a plain tensor."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _with_format, (self.as_subclass(torch.Tensor), self.format)


def _with_format(tensor: Any, text: str) -> Any:
    return noted(tensor.as_subclass(Plainly), format=text)


class Wrapper(torch.Tensor):
    """Has another tensor and no memory."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), more: Any = None) -> Any:
        args = [one.inner if isinstance(one, Wrapper) else one for one in args]
        return function(*args, **(more or {}))


def noted(thing: Any, **notes: Any) -> Any:
    for name, value in notes.items():
        setattr(thing, name, value)
    return thing


def row(i: int) -> torch.Tensor:
    return MATRIX[i]


# Of sixteen views of 8 KB, or less, of a tensor of 16 MB.
VIEWS: dict[str, Callable[[int], Any]] = {
    "plain": row,
    "subclass": lambda i: noted(row(i).as_subclass(Boxes), format="XYWH", of=row(i)),
    "subclass with slots": lambda i: noted(row(i).as_subclass(Slotted), format=i, more="x"),
    "subclass with its own": lambda i: row(i).as_subclass(Reduced),
    "subclass made plain": lambda i: noted(row(i).as_subclass(Plainly), format=f"f{i}"),
    "wrapper": lambda i: Wrapper(row(i)),
    "parameter": lambda i: torch.nn.Parameter(row(i)),
    "frozen parameter": lambda i: torch.nn.Parameter(row(i), requires_grad=False),
    "buffer": lambda i: torch.nn.Buffer(row(i)),
    "with gradients": lambda i: row(i).detach().requires_grad_(),
    "subclass with gradients": lambda i: row(i).as_subclass(Boxes).detach().requires_grad_(),
    "no elements": lambda i: MATRIX[i, :0],
    "no elements of a subclass": lambda i: MATRIX[:0, i:].as_subclass(Boxes),
    "unsigned": lambda i: row(i).view(torch.uint16),
    "bytes": lambda i: BIG.view(torch.uint8)[3 * i + 1 : 3 * i + 5000],
    "complex": lambda i: torch.view_as_complex(MATRIX[i].view(-1, 2)),
    "transposed": lambda i: MATRIX[i : i + 1].t(),
    "every third": lambda i: row(i)[::3],
    "expanded": lambda i: row(i).expand(40, -1),
    "overlapping": lambda i: row(i).unfold(0, 16, 1),
    "one element of any stride": lambda i: row(i)[:1].as_strided((1, 1), (99, 7)),
    "sparse": lambda i: MATRIX[i : i + 4, :40].to_sparse(),
    "compressed": lambda i: MATRIX[i : i + 4, :40].to_sparse_csr(),
    "array": lambda i: MATRIX.numpy()[i],
    "read-only array": lambda i: read_only(MATRIX.numpy()[i]),
}


def read_only(array: Any) -> Any:
    view = array[...]
    view.flags.writeable = False
    return view


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("kind", VIEWS)
def test_views_cost_what_they_show_and_arrive_as_in_pytorch(
    boat: Boat, kind: str, copies: bool
) -> None:
    def make() -> list[Any]:
        return [VIEWS[kind](i) for i in range(16)]

    got = boat.carry(make(), copies)
    same(got, by_pytorch(make()))
    assert boat.writer.used < 16 * 17_000, boat.writer.used


@pytest.mark.parametrize("as_subclass", [False, True])
def test_a_column_costs_what_it_shows(boat: Boat, as_subclass: bool) -> None:
    """It spans the whole matrix, and comes without the gaps."""

    def view(tensor: Any) -> Any:
        return noted(tensor.as_subclass(Boxes), format=1) if as_subclass else tensor

    views = [MATRIX[:, i] for i in range(16)]
    views += [MATRIX[::64, ::64], MATRIX[::8, 5:7].t(), MATRIX[:, 3].expand(5, 2048)]
    views += [MATRIX[:, 3]]
    got = boat.carry([view(one) for one in views])
    for one, due in zip(got, views, strict=True):
        assert torch.equal(torch.Tensor(one), due) and type(one) is (
            Boxes if as_subclass else torch.Tensor
        )
    order = [sorted(range(2), key=lambda i: one.stride()[i]) for one in (got[17], views[17])]
    assert order[0] == order[1] and got[18].stride()[0] == 0
    assert got[3].data_ptr() == got[19].data_ptr(), "two of one view are not one"
    assert boat.writer.used < 300_000


def test_one_storage_stays_one(boat: Boat) -> None:
    """Of any kind of tensor and of the storage itself."""
    x = torch.arange(3000.0)
    things = [
        *(x, x[5:], x[10:2000], x.view(torch.int32)[7:], x.view(torch.uint8)[29:]),
        *(x.as_subclass(Boxes)[8:20], torch.nn.Parameter(x), x.untyped_storage()),
        *(x[::2], x.view(3000, 1).t()),
    ]
    for copies in (False, True):
        got = boat.carry(things, copies)
        same(got[:7], by_pytorch(things[:7]))
        got[0].fill_(-1)
        assert got[1][3] == -1 and got[5][2] == -1 and got[6][1] == -1 and got[8][4] == -1
        assert got[3].view(torch.float32)[0] == -1 and got[4][:3].tolist() == [0, 128, 191]
        assert got[7].data_ptr() == got[0].data_ptr() and got[7].nbytes() == 12_000
        assert boat.writer.used < 16_000
    assert things[0][0] == 0


def test_many_views_of_one_storage_are_found_quickly(boat: Boat) -> None:
    """Parts that are not inside of one another, in any order, and then parts of these."""
    draw = random.Random(3)
    begins = list(range(0, 20_000, 10))
    draw.shuffle(begins)
    parts = [BIG[begin : begin + draw.choice((8, 14))] for begin in begins]
    parts += [BIG[begin + 1 : begin + 7] for begin in begins]
    got = boat.carry(parts)
    for one, due in zip(got, parts, strict=True):
        assert torch.equal(one, due)
    assert boat.writer.used < 64 * len(begins) + (200 << 10)


def test_storages_arrive(boat: Boat) -> None:
    for size in (0, 5, 5000):
        typed = torch.arange(size, dtype=torch.int16)._typed_storage()
        untyped, again = boat.carry([typed._untyped_storage, typed])
        assert type(untyped) is torch.UntypedStorage and untyped.nbytes() == 2 * size
        assert type(again) is torch.storage.TypedStorage and again.dtype is torch.int16
        assert again.tolist() == list(range(size)) and untyped.data_ptr() == again.data_ptr()


def test_subclasses_of_dtypes_without_a_class_of_storage_arrive(boat: Boat) -> None:
    """PyTorch's own workers cannot pass them on."""
    for dtype in (torch.uint16, torch.uint32, torch.float8_e4m3fn):
        tensor = noted(row(3).view(dtype).as_subclass(Boxes), format="x")
        for copies in (False, True):
            same(boat.carry(tensor, copies), tensor)
        assert boat.writer.used < 17_000
        with pytest.raises(AttributeError):
            by_pytorch(tensor)


def test_nested_tensors_arrive(boat: Boat) -> None:
    rows = [MATRIX[3, :5].clone(), MATRIX[4, :2000].clone()]
    for layout in (torch.strided, torch.jagged):
        got = boat.carry(torch.nested.nested_tensor(rows, layout=layout))
        assert got.is_nested and got.layout is layout
        for one, due in zip(got.unbind(), rows, strict=True):
            assert torch.equal(one, due)
    assert boat.carry(torch.empty(3, 4, device="meta")).is_meta


@pytest.mark.filterwarnings("ignore:torch.quantize", "ignore:TypedStorage")
def test_quantised_tensors_arrive(boat: Boat) -> None:
    """PyTorch's own workers lose how they are quantised."""
    one = torch.quantize_per_tensor(MATRIX, 0.1, 3, torch.quint8)
    scales = torch.linspace(0.1, 1, 50)
    each = torch.quantize_per_channel(MATRIX[:50], scales, torch.zeros(50).long(), 0, torch.qint8)
    due = [one[3], one[4:6, ::2], one[:, 7], each[:, 5:90]]
    for copies in (False, True):
        got = boat.carry(due, copies)
        for tensor, other in zip(got, due, strict=True):
            assert torch.equal(tensor, other) and tensor.qscheme() == other.qscheme()
    assert boat.writer.used < 40_000


def test_zeros_without_memory_arrive(boat: Boat) -> None:
    assert boat.carry(torch._efficientzerotensor((2000,))).tolist() == [0.0] * 2000


def test_what_is_computed_with_gradients_is_refused(boat: Boat) -> None:
    with pytest.raises(RuntimeError, match="Cowardly refusing"):
        boat.carry([torch.ones(3, requires_grad=True) * 2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_that_torch_has(boat: Boat, dtype: Any) -> None:
    """Its elements are bytes to PyTorch's workers: few operations know all dtypes."""
    for count in (7, 3000):
        size = 4 * count * dtype.itemsize
        raw = (torch.arange(size) % 251).to(torch.uint8)
        if dtype is torch.bool:
            raw %= 2
        views = [
            torch.empty(0, dtype=dtype).set_(raw.untyped_storage(), *place)
            for place in (
                *((0, (4, count), (count, 1)), (count, (count,), (1,))),
                *((count + 2, (3, count - 2), (count, 1)), (3, (4,), (count,))),
                (0, (count, 4), (1, count)),
            )
        ]
        for copies in (False, True):
            for one, due in zip(boat.carry(views, copies), views, strict=True):
                assert one.dtype is dtype and one.shape == due.shape
                assert _elements(one) == _elements(due)


def _elements(tensor: torch.Tensor) -> bytes:
    numbers = torch.empty(0, dtype=_batches._ALIKE[tensor.dtype.itemsize])
    numbers.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return numbers.contiguous().view(torch.uint8).numpy().tobytes()


def test_drawn_views_arrive_as_in_pytorch(boat: Boat) -> None:
    """Of whatever shape, order, steps, dtype and class, many of one storage."""
    draw = random.Random(11)
    dtypes = [torch.float32, torch.int64, torch.uint8, torch.bfloat16, torch.complex64]
    for _ in range(150):
        things: list[Any] = []
        for _ in range(draw.randint(1, 3)):
            # No more than 64 KB, which come with all gaps.
            shape = [draw.randint(1, 8) for _ in range(draw.randint(1, 4))]
            base = torch.arange(torch.Size(shape).numel()).reshape(shape).to(draw.choice(dtypes))
            for _ in range(draw.randint(1, 5)):
                things.append(_drawn(base, draw))
        copies = draw.random() < 0.3
        same(boat.carry(things, copies), by_pytorch(things))


def _drawn(base: torch.Tensor, draw: random.Random) -> Any:
    view = base
    for i, length in enumerate(base.shape):
        begin = draw.randint(0, length - 1)
        # A step of two is no gap yet.
        view = view.narrow(i, begin, draw.randint(0, length - begin))
        if draw.random() < 0.2:
            view = view[(slice(None),) * i + (slice(None, None, 2),)]
    view = view.permute(draw.sample(range(view.dim()), view.dim()))
    how = draw.randrange(6)
    if how == 0:
        return noted(view.as_subclass(Boxes), format=draw.random())
    if how == 1:
        return torch.nn.Parameter(view, requires_grad=view.is_floating_point())
    if how == 2 and view.is_floating_point():
        return view.detach().requires_grad_()
    if how == 3 and view.dtype is not torch.bfloat16:
        return view.numpy().copy("K")  # PyTorch moves what it shares, and it alone
    return view


# ---- Arrays


class Informed(np.ndarray):
    """Loses what it is told on its way, as in any pickle."""

    def __array_finalize__(self, of: Any) -> None:
        self.info = getattr(of, "info", "none")


class Kept(np.ndarray):
    """Takes it along."""

    info = "none"

    def __reduce__(self) -> Any:
        made, arguments, state = super().__reduce__()  # type: ignore[misc]
        return made, arguments, (*state, self.info)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[:-1])
        self.info = state[-1]


FIELDS = [("a", "i4"), ("b", "f8"), ("c", "S3")]
GAPS: Any = {"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [0, 8], "itemsize": 16}
ARRAYS: dict[str, Callable[[int], Any]] = {
    "plain": np.arange,
    "read-only": lambda n: read_only(np.arange(n)),
    "of bytes": lambda n: np.frombuffer(bytes(range(200)) * n, np.uint8),
    "Fortran's": lambda n: np.asfortranarray(np.arange(4.0 * n).reshape(4, n)),
    "Fortran's, read-only": lambda n: read_only(np.arange(4.0 * n).reshape(4, n).T),
    "transposed": lambda n: np.arange(24.0 * n).reshape(2, 3, 4, n).transpose(2, 0, 3, 1),
    "backwards": lambda n: np.arange(n)[::-1],
    "every third": lambda n: np.arange(3 * n)[::3],
    "a column": lambda n: np.arange(30 * n).reshape(n, 30)[:, 4],
    "broadcast": lambda n: np.broadcast_to(np.arange(3.0), (n, 3)),
    "big-endian": lambda n: np.arange(n, dtype=">f4"),
    "dates": lambda n: np.arange(n).astype("M8[us]"),
    "text": lambda n: np.array([f"ab{i}" for i in range(n)]),
    "text of any length": lambda n: np.array(["ab" * i for i in range(n)], np.dtypes.StringDType()),
    "bytes": lambda n: np.array([b"ab%d" % i for i in range(n)]),
    "objects": lambda n: np.array([None, {}] * n, dtype=object),
    "fields": lambda n: np.ones(n, FIELDS),
    "fields of two orders": lambda n: np.ones(n, [("a", "<i4"), ("b", ">f8")]),
    "fields with gaps": lambda n: np.frombuffer(bytes(range(160)) * n, GAPS),
    "records": lambda n: np.ones(n, FIELDS).view(np.recarray),
    "a field of records": lambda n: np.ones(n, FIELDS).view(np.recarray).b,
    "matrix": lambda n: np.matrix(np.arange(2 * n).reshape(2, n)),
    "masked": lambda n: np.ma.masked_array(np.arange(n), np.arange(n) % 3 == 0, fill_value=7),
    "informed": lambda n: noted(np.arange(n).view(Informed), info="lost"),
    "kept": lambda n: noted(np.arange(n).view(Kept), info="kept"),
    "characters": lambda n: np.char.array([f"ab{i}" for i in range(n)]),
    "half": lambda n: np.arange(n).astype(np.float16),
    "long": lambda n: np.arange(n, dtype=np.clongdouble),
    "void": lambda n: np.frombuffer(bytes(range(70)) * n, "V7"),
    "no elements": lambda n: np.zeros((n, 0)),
    "no dimensions": lambda n: np.array(float(n)),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass", "ignore:The chararray")
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_arrive_as_in_pytorch(boat: Boat, kind: str, copies: bool) -> None:
    """Writable too, whatever they were."""
    for length in (3, 5000):
        array = ARRAYS[kind](length)  # one: there may be anything between its numbers
        got, due = boat.carry(array, copies), by_pytorch(array)
        same(got, due)
        same(getattr(got, "info", None), getattr(due, "info", None))
        assert got.flags.writeable and getattr(got, "fill_value", 0) == getattr(
            due, "fill_value", 0
        )


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_rows_of_a_mapped_file_cost_what_they_show(boat: Boat, tmp_path: Path, mode: Any) -> None:
    MATRIX.numpy().tofile(tmp_path / "numbers")
    mapped = np.memmap(tmp_path / "numbers", np.float32, mode, shape=(2048, 2048))
    rows = [mapped[3], mapped[5:7], mapped[:, 8], mapped[9, :4]]
    got, due = boat.carry(rows), by_pytorch(rows)
    same([np.array(one) for one in got], [np.array(one) for one in due])
    for one, other in zip(got, due, strict=True):
        assert type(one) is type(other) is np.memmap and one.flags.writeable
        one[:] = 1
    assert boat.writer.used < 50_000
    assert np.array_equal(mapped[3], MATRIX[3]), "the file has changed"


def test_frames_arrive(boat: Boat) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "number": np.arange(2000),
            "other": np.linspace(0, 1, 2000),
            "text": [f"text {i}" for i in range(2000)],
            "kind": pandas.Categorical(["a", "b"] * 1000),
            "day": pandas.date_range("2026-01-01", periods=2000),
            "maybe": pandas.array([1, None] * 1000, dtype="Int64"),
        }
    )
    for thing in (frame, frame[3:900], frame["number"], frame.index, frame["kind"], frame.T):
        got, due = boat.carry(thing), by_pytorch(thing)
        assert type(got) is type(due) and got.equals(due) and got.equals(thing)
    got = boat.carry(frame)
    got["number"] += 1
    got.loc[3, "other"] = 7.0
    assert got["number"].iloc[-1] == 2000 and frame["number"].iloc[-1] == 1999


# ---- What users have registered


class Told:
    """Pickled by whoever has registered a function for it."""

    def __init__(self, by: str) -> None:
        self.by = by


class Meta(type):
    """Of classes that are pickled by name."""


class Classy(metaclass=Meta):
    pass


def test_functions_that_are_registered_late_count(
    boat: Boat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in PyTorch's workers: in worker_init_fn the writer is there already."""
    monkeypatch.setattr(ForkingPickler, "_extra_reducers", {**ForkingPickler._extra_reducers})
    monkeypatch.setattr(copyreg, "dispatch_table", copyreg.dispatch_table.copy())
    copyreg.pickle(Told, lambda told: (Told, ("copyreg",)))
    assert boat.carry([Told("me"), Classy])[0].by == "copyreg"
    other = Boat()
    ForkingPickler.register(Boxes, lambda boxes: (Told, ("multiprocessing",)))
    assert other.carry(row(1).as_subclass(Boxes)).by == "multiprocessing"
    assert other.carry([Classy, Meta, int]) == [Classy, Meta, int]
