"""Which dtypes a field may have, by name. Needs neither torch nor a numpy that knows bfloat16."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

TENSOR_ITEMSIZE: Final[dict[str, int]] = {
    "bool": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one element by torch dtype name (``torch.bfloat16`` is ``"bfloat16"``)."""

ARRAY_KINDS: Final = "biufcSUmM"
"""numpy kinds that are plain bytes: bool, int, float, complex, bytes, str, time."""

OBJECT: Final = "object"
"""The dtype name of an object column."""

ITEMSIZE_MAX: Final = 1 << 31
"""numpy's own limit for one element, e.g. of a str array."""


def is_array_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether an array of this dtype is carried as an array: no objects, records or raw void."""
    return dtype.kind in ARRAY_KINDS and dtype.itemsize > 0


def array_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of ``dtype.str``, e.g. ``"<f4"``, ``"<U5"``, ``"<M8[ns]"``.

    Raises ``ValueError`` for a name that is not exactly that of an allowed dtype.
    """
    if not 2 <= len(name) <= 24 or name[0] not in "<>|" or name[1] not in ARRAY_KINDS:
        raise ValueError(f"not an array dtype: {name!r:.40}")
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        raise ValueError(f"not an array dtype: {name!r:.40}") from error
    if dtype.str != name or not is_array_dtype(dtype):
        raise ValueError(f"not an array dtype: {name!r:.40}")
    return dtype


def tensor_itemsize(name: str) -> int:
    """Bytes of one element of a torch dtype. Raises ``ValueError`` for one not on the list."""
    size = TENSOR_ITEMSIZE.get(name)
    if size is None:
        raise ValueError(f"not a tensor dtype: {name!r:.40}")
    return size
