"""The datasets of the measurements of loaders, and what must be in their batches."""

from __future__ import annotations

import io
import math
import random
from typing import Any

import numpy as np

READY_BYTES = 600_000
ROW_BYTES = 65_536


class Ready:
    """Gives the same array of 600 KB for each index: nothing to do but to hand it over."""

    batch = 32

    def __init__(self, batches: int) -> None:
        self._length = self.batch * batches
        self.array = np.arange(READY_BYTES, dtype=np.uint32).astype(np.uint8)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self.array

    def check(self, batch: Any, number: int) -> None:
        assert tuple(batch.shape) == (self.batch, READY_BYTES), batch.shape
        assert int(batch[-1][-1]) == self.array[-1] and int(batch[0][1]) == 1


class Jpegs:
    """Photographs of 500 x 375, as training on ImageNet takes them: crop, 224 x 224, mirrored, float32."""

    batch = 32
    size = 224
    pictures = 64

    def __init__(self, batches: int) -> None:
        from PIL import Image

        self._length = self.batch * batches
        rng = np.random.default_rng(1)
        self._files = []
        for _ in range(self.pictures):
            coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
            smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), np.int16)
            grain = rng.integers(-12, 13, smooth.shape, np.int16)
            file = io.BytesIO()
            picture = Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))
            picture.save(file, "JPEG", quality=75)
            self._files.append(file.getvalue())

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        import torch
        from PIL import Image

        label = int(index) % self.pictures
        picture = Image.open(io.BytesIO(self._files[label])).convert("RGB")
        box = self._box(*picture.size)
        picture = picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        if torch.rand(1).item() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
        scaled = image.to(torch.float32).div_(255)
        mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        deviation = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
        return scaled.sub_(mean).div_(deviation), label

    @staticmethod
    def _box(width: int, height: int) -> tuple[int, int, int, int]:
        """A part of 8 to 100 % of the picture, with sides of 3 : 4 to 4 : 3."""
        import torch

        for _ in range(10):
            area = width * height * torch.empty(1).uniform_(0.08, 1).item()
            ratio = math.exp(torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3)).item())
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                left = int(torch.randint(0, width - wide + 1, (1,)).item())
                top = int(torch.randint(0, height - high + 1, (1,)).item())
                return left, top, left + wide, top + high
        return 0, 0, width, height

    def check(self, batch: Any, number: int) -> None:
        images, labels = batch
        assert tuple(images.shape) == (self.batch, 3, self.size, self.size), images.shape
        wanted = [(number * self.batch + i) % self.pictures for i in range(self.batch)]
        assert labels.tolist() == wanted, labels


class Tiny:
    """Gives its index."""

    batch = 256

    def __init__(self, batches: int) -> None:
        self._length = self.batch * batches

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return index

    def check(self, batch: Any, number: int) -> None:
        assert len(batch) == self.batch and int(batch[-1]) == (number + 1) * self.batch - 1, batch


class Ragged:
    """Dictionaries of texts, a list of 10 to 100 numbers, and a number."""

    batch = 64
    texts = 4096

    def __init__(self, batches: int) -> None:
        self._length = self.batch * batches
        rng = random.Random(1)
        self._rows = [
            {
                "text": " ".join(rng.choices(("lorem", "ipsum", "dolor", "sit", "amet"), k=40)),
                "language": rng.choice(("en", "de", "fr")),
                "tokens": [rng.randrange(50_000) for _ in range(rng.randint(10, 100))],
                "number": number,
            }
            for number in range(self.texts)
        ]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._rows[int(index) % self.texts]

    @staticmethod
    def collate(rows: list[Any]) -> dict[str, Any]:
        """Lists stay lists; the numbers become a tensor."""
        import torch

        batch: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
        batch["number"] = torch.tensor(batch["number"])
        return batch

    def check(self, batch: Any, number: int) -> None:
        row = self[(number + 1) * self.batch - 1]
        assert len(batch["text"]) == self.batch
        assert batch["text"][-1] == row["text"] and batch["tokens"][-1] == row["tokens"]
        assert int(batch["number"][-1]) == row["number"]


class Strings:
    """Text and nothing else: a batch is a list of strings, which default_collate leaves as it is."""

    batch = 64
    texts = 1000

    def __init__(self, batches: int) -> None:
        self._length = self.batch * batches
        self._texts = [f"sentence {i}: " + "lorem ipsum " * (i % 20) for i in range(self.texts)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._texts[int(index) % self.texts]

    def check(self, batch: Any, number: int) -> None:
        assert len(batch) == self.batch and batch[-1] == self[(number + 1) * self.batch - 1]


class Records(Ragged):
    """Dictionaries: a batch is a list of them, as tokenizing collate functions take it."""

    @staticmethod
    def collate(rows: list[Any]) -> Any:
        return rows

    def check(self, batch: Any, number: int) -> None:
        assert len(batch) == self.batch and batch[-1] == self[(number + 1) * self.batch - 1]


class Views:
    """Tensors of a subclass, as torchvision's: views of 8 KB of one of 64 MB, in a list."""

    batch = 16
    views = 8192

    def __init__(self, batches: int) -> None:
        import torch

        self._length = self.batch * batches
        self._numbers = torch.arange(2048 * self.views, dtype=torch.float32)
        # Pickles have its name.
        made = type("Boxes", (torch.Tensor,), {"__module__": __name__})
        self._kind = globals().setdefault("Boxes", made)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        begin = 2048 * (int(index) % self.views)
        view = self._numbers[begin : begin + 2048].as_subclass(self._kind)
        view.format = "XYWH"
        return view

    @staticmethod
    def collate(boxes: list[Any]) -> Any:
        return boxes

    def check(self, batch: Any, number: int) -> None:
        last = (number + 1) * self.batch - 1
        assert len(batch) == self.batch and batch[-1].format == "XYWH"
        assert int(batch[-1][-1]) == 2048 * (last % self.views) + 2047


class Special:
    """Parameters, tensors with a gradient, sparse, nested, and of a class around another tensor.

    Of 16 KB each, in a list.
    """

    batch = 16
    kinds = ("parameter", "gradient", "coo", "csr", "nested", "wrapper")

    def __init__(self, batches: int) -> None:
        import torch

        self._length = self.batch * batches
        dense = torch.arange(4096, dtype=torch.float32).view(64, 64)
        # Pickles have its name.
        globals().setdefault("Wrapper", _wrapper())
        self._tensors = {
            "parameter": torch.nn.Parameter(dense.clone()),
            "gradient": dense.clone().requires_grad_(),
            "coo": torch.sparse_coo_tensor(torch.arange(1024)[None], torch.ones(1024), (4096,)),
            "csr": dense.to_sparse_csr(),
            "nested": torch.nested.nested_tensor([dense[:1], dense[1:]], layout=torch.jagged),
            "wrapper": globals()["Wrapper"](dense.clone()),
        }

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._tensors[self.kinds[int(index) % len(self.kinds)]]

    @staticmethod
    def collate(tensors: list[Any]) -> Any:
        return tensors

    def check(self, batch: Any, number: int) -> None:
        import torch

        last = self[(number + 1) * self.batch - 1]
        assert len(batch) == self.batch and type(batch[-1]) is type(last), batch[-1]
        assert batch[-1].layout == last.layout and batch[-1].shape[-1] == last.shape[-1]
        assert all(type(one) is not torch.nn.Parameter or one.requires_grad for one in batch)


def _wrapper() -> Any:
    """A class of tensors without memory of their own, around another one."""
    import torch

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls: Any, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __reduce_ex__(self, protocol: Any) -> Any:
            return type(self), (self.inner,)

        @classmethod
        def __torch_dispatch__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            inner = [one.inner if isinstance(one, cls) else one for one in args]
            return function(*inner, **(kwargs or {}))

    Wrapper.__module__, Wrapper.__qualname__ = __name__, "Wrapper"
    return Wrapper


class Rows:
    """The rows of one large array."""

    batch = 32

    def __init__(self, batches: int) -> None:
        self.array = np.empty((self.batch * batches, ROW_BYTES), np.uint8)
        self.array[:] = np.arange(len(self.array), dtype=np.uint32).astype(np.uint8)[:, None]

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Any:
        return self.array[index]

    def check(self, batch: Any, number: int) -> None:
        assert tuple(batch.shape) == (self.batch, ROW_BYTES), batch.shape


class Large:
    """Gives tensors of 800 KB, each its own: a batch has 51 MB."""

    batch = 64
    row_bytes = 800_000

    def __init__(self, batches: int) -> None:
        self._length = self.batch * batches

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        import torch

        return torch.full((self.row_bytes,), int(index) % 251, dtype=torch.uint8)

    def check(self, batch: Any, number: int) -> None:
        assert tuple(batch.shape) == (self.batch, self.row_bytes), batch.shape
        last = (number + 1) * self.batch - 1
        assert int(batch[-1][-1]) == last % 251 and int(batch[0][0]) == (last - 63) % 251


WORKS: dict[str, Any] = {
    "ready": Ready,
    "jpeg": Jpegs,
    "tiny": Tiny,
    "ragged": Ragged,
    "strings": Strings,
    "records": Records,
    "views": Views,
    "special": Special,
    "rows": Rows,
    "large": Large,
}
