"""Stages in Python: what a stage of the kind ``python`` calls.

A plain function is a stage: it gets a sample, and returns a sample, or None to leave it out.

    def tokenize(sample):
        sample["tokens"] = np.frombuffer(sample["text"].encode(), np.uint8)
        return sample

A class is made once in each process, with the stage's ``options`` as keyword arguments, and then
called like a function. A decorator, or a base class of the same meaning, says what else it does:

    @stage.flat_map                       # one sample in, any number out
    def sentences(sample):
        for sentence in sample["text"].split("."):
            yield {"text": sentence}

    class Tokenize(stage.MapBatch):       # many at once, for what is faster on many
        def __init__(self, vocab: str) -> None:
            self.tokenizer = load(vocab)

        def __call__(self, samples):
            texts = [sample["text"] for sample in samples]
            for sample, ids in zip(samples, self.tokenizer(texts)):
                sample["ids"] = ids
            return samples

A sample is a mutable mapping from names to NumPy arrays (numbers are NumPy's scalars), ``bytes``
and ``str``. Arrays are copies, which may be changed in place. What is returned may be the same
sample, or any mapping of arrays, numbers, bytes and text; a value None is a field that is missing.

A function or ``__call__`` with a second parameter named ``ctx`` gets a `Context`: random numbers
that are the same whenever the sample comes again, and where the sample is from.

A source, for the stage kind ``python_source``, gives samples of its own. With each it yields a
cursor, at most 4 KiB, from which it can go on in another process:

    class Rows(stage.Source):
        def __init__(self, path: str) -> None:
            self.path = path

        def read(self, cursor):
            with open(self.path, "rb") as file:
                file.seek(int(cursor or 0))
                while line := file.readline():
                    yield json.loads(line), b"%d" % file.tell()

An iterable with ``state_dict()`` and ``load_state_dict()``, such as a Hugging Face
``IterableDataset`` or a torchdata node, is a source as it is.

A batch, for the stage kind ``python_batcher``, is the last stage: it makes arrays of a list of
samples, as a collate function does. What it is handed as ``out`` lies in the feed's memory:

    @stage.batch
    def collate(samples, out):
        for row, sample in enumerate(samples):
            tokens = sample["tokens"][:512]
            out["tokens"][row, : len(tokens)] = tokens     # zeros before
            out["length"][row] = len(tokens)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    *("Batch", "Context", "FlatMap", "Map", "MapBatch", "Sample", "Source"),
    *("batch", "flat_map", "map", "map_batch"),
]

#: What a stage gets: names of fields, and their values.
Sample = MutableMapping[str, Any]
_Stage = TypeVar("_Stage", bound=Callable[..., Any])

_SHAPE = "__ringfeed_shape__"
_ZERO_COPY = "__ringfeed_zero_copy__"
_START = "__ringfeed_start__"


class Context:
    """What a stage may know beside the sample. One object, which is about the sample at hand.

    What makes batches gets one that is about all samples of the batch; its lineage is that of the
    first.
    """

    def __init__(self, stage: str, lane: int, lanes: int) -> None:
        self.stage = stage
        """Name of the stage."""
        self.lane = lane
        """Number of this process among those of the stage, from 0."""
        self.lanes = lanes
        """How many processes the stage began with."""
        self._sample: Any = None
        self._rng: np.random.Generator | None = None
        self._asked = False

    @property
    def seed(self) -> int:
        """64 bits that follow from the feed's seed, the stage and the sample's lineage."""
        self._asked = True
        return int(self._sample.seed)

    @property
    def lineage(self) -> str:
        """Where the sample comes from, as the log and dead letters name it."""
        self._asked = True
        return str(self._sample.lineage)

    @property
    def rng(self) -> np.random.Generator:
        """A generator for this sample: it draws the same whenever the sample comes again."""
        if self._rng is None:
            import numpy as np

            self._rng = np.random.Generator(np.random.PCG64(self.seed))
        return self._rng

    def _about(self, sample: Any) -> None:
        self._sample = sample
        self._rng = None


class Map:
    """Base class of a stage that makes one sample of each, or None."""

    __ringfeed_shape__ = "map"

    def __call__(self, sample: Sample) -> Mapping[str, Any] | None:
        raise NotImplementedError


class FlatMap:
    """Base class of a stage that makes any number of samples of each."""

    __ringfeed_shape__ = "flat_map"

    def __call__(self, sample: Sample) -> Iterable[Mapping[str, Any]]:
        raise NotImplementedError


class MapBatch:
    """Base class of a stage that gets many samples at once.

    It returns a list as long: for each sample another one, or None. How many come together is not
    certain, so what is made of a sample may not depend on the others. One that draws random numbers
    or asks the context about the sample is called with one sample at a time.
    """

    __ringfeed_shape__ = "map_batch"

    def __call__(self, samples: Sequence[Sample]) -> Sequence[Mapping[str, Any] | None]:
        raise NotImplementedError


class Batch:
    """Base class of a stage that makes a batch of samples: of `python_batcher`."""

    __ringfeed_shape__ = "batch"

    def __call__(self, samples: Sequence[Sample]) -> Mapping[str, Any] | None:
        """The arrays of a batch.

        Args:
            samples: Those of the batch: `batch_size`, or fewer at the end of a finite run, or to
                try a sample by itself after a fault.

        Further parameters, each if it is there:
            out: A dictionary with an array of zeros, ``[len(samples), *shape]``, for each field
                that is no text or bytes. They are the memory of the batch, good until the call
                returns: what is written there is not copied. What else is set in the dictionary
                counts as returned.
            ctx: A `Context`, which is about the batch: its random numbers follow from all samples,
                its lineage is that of the first.

        Returns:
            For each field the array ``[len(samples), *shape]`` of its dtype, or a list with a str
            or bytes for each sample; arrays of ``out`` may be among them. None: ``out``.
        """
        raise NotImplementedError


class Source:
    """Base class of what gives samples. It need not be used: `read` is what counts."""

    def read(self, cursor: bytes | None) -> Iterator[tuple[Mapping[str, Any], bytes]]:
        """Yields samples, each with the cursor behind it, from the cursor on.

        Args:
            cursor: What came with the last sample that was taken; None: from the beginning. The
                samples behind a cursor are the same, whichever process reads them.

        A second parameter named ``epoch`` gets the number of the pass, from 0.
        """
        raise NotImplementedError


def _marked(shape: str, stage: Any, zero_copy: bool, start: str) -> Any:
    if start not in ("fork", "spawn"):
        raise ValueError(f'start is {start!r}; give "fork" or "spawn"')

    def mark(one: Any) -> Any:
        setattr(one, _SHAPE, shape)
        setattr(one, _ZERO_COPY, zero_copy)
        setattr(one, _START, start)
        return one

    return mark if stage is None else mark(stage)


@overload
def map(stage: _Stage) -> _Stage: ...


@overload
def map(*, zero_copy: bool = False, start: str = "fork") -> Callable[[_Stage], _Stage]: ...


def map(stage: Any = None, *, zero_copy: bool = False, start: str = "fork") -> Any:
    """A function or class that makes one sample of each, or None.

    A decorator, with or without arguments.

    Args:
        zero_copy: Arrays are read-only views of the feed's memory, which are good until the call
            returns. Default: copies.
        start: "spawn" for what cannot live with a fork: after a death its process is started anew,
            and imports everything again.
    """
    return _marked("map", stage, zero_copy, start)


@overload
def flat_map(stage: _Stage) -> _Stage: ...


@overload
def flat_map(*, zero_copy: bool = False, start: str = "fork") -> Callable[[_Stage], _Stage]: ...


def flat_map(stage: Any = None, *, zero_copy: bool = False, start: str = "fork") -> Any:
    """A function or class that makes any number of samples of each: an iterable, or None.

    A decorator, with or without arguments, which are those of `map`.
    """
    return _marked("flat_map", stage, zero_copy, start)


@overload
def map_batch(stage: _Stage) -> _Stage: ...


@overload
def map_batch(*, zero_copy: bool = False, start: str = "fork") -> Callable[[_Stage], _Stage]: ...


def map_batch(stage: Any = None, *, zero_copy: bool = False, start: str = "fork") -> Any:
    """A function or class that gets a list of samples and returns one as long (`MapBatch`).

    A decorator, with or without arguments, which are those of `map`.
    """
    return _marked("map_batch", stage, zero_copy, start)


@overload
def batch(stage: _Stage) -> _Stage: ...


@overload
def batch(*, zero_copy: bool = False, start: str = "fork") -> Callable[[_Stage], _Stage]: ...


def batch(stage: Any = None, *, zero_copy: bool = False, start: str = "fork") -> Any:
    """A function or class that makes the arrays of a batch of a list of samples (`Batch`).

    A decorator, with or without arguments, which are those of `map`.
    """
    return _marked("batch", stage, zero_copy, start)


def _shape_of(stage: Any) -> str:
    return str(getattr(stage, _SHAPE, "map"))


def _wants_views(stage: Any) -> bool:
    return bool(getattr(stage, _ZERO_COPY, False))


def _samples_of(made: Any) -> list[Any]:
    """What a flat_map returned, as a list."""
    if made is None:
        return []
    if isinstance(made, Mapping):
        raise TypeError("a flat_map returned one sample; return a list of them, or yield each")
    if not isinstance(made, Iterable):
        raise TypeError(f"a flat_map returned a {type(made).__name__}; return a list of samples")
    return list(made)
