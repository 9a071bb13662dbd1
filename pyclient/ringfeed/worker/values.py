"""Fields that have no buffer of their own become arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

_ALSO = "give an array, a number, bytes or str"


def coerce(value: Any) -> tuple[str, np.ndarray[Any, Any]]:
    """Name of the dtype, and a C-contiguous array that has a buffer.

    Raises:
        TypeError: It is nothing that a sample can hold.
    """
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            import torch

            return "bfloat16", np.ascontiguousarray(value.view(torch.int16).numpy())
        value = value.numpy()
    if not hasattr(value, "__array__") and not isinstance(
        value, (int, float, complex, list, tuple)
    ):
        raise TypeError(f"it is a {type(value).__name__}; {_ALSO}")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeError(
            f"it is a {type(value).__name__} that is no array ({error}); {_ALSO}"
        ) from None
    if array.dtype == object or array.dtype.kind in "USVmM":
        of = (
            f"an array of {array.dtype}"
            if array is value
            else f"a {type(value).__name__} of {array.dtype}"
        )
        raise TypeError(f"it is {of}; {_ALSO}")
    name = array.dtype.name
    shape = array.shape
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
    array = array.reshape(shape)  # of a number it had become [1]
    if name == "bfloat16":
        array = array.view(np.uint16)
    return name, array
