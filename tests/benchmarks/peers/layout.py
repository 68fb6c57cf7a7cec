"""How the raw peers, which move bytes, know what the bytes are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tests.benchmarks.adapter import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.benchmarks.columns import Columns

Layout = list[tuple[str, str, list[int]]]
"""Name, numpy dtype and shape of each column, in order."""


def arrays_of(columns: Columns) -> tuple[Layout, list[np.ndarray]]:
    """Dense columns as layout and arrays; anything else is refused."""
    if not all(isinstance(v, torch.Tensor) and not v.is_nested for v in columns.values()):
        raise Unsupported("moves dense tensors only")
    arrays = [value.numpy() for value in columns.values()]
    layout: Layout = [
        (name, array.dtype.str, list(array.shape))
        for name, array in zip(columns, arrays, strict=True)
    ]
    return layout, arrays


def columns_of(layout: Layout, buffers: Iterable[Any]) -> dict[str, np.ndarray]:
    """Inverse of `arrays_of`, over the bytes as they came."""
    return {
        name: np.frombuffer(buffer, dtype=dtype).reshape(shape)
        for (name, dtype, shape), buffer in zip(layout, buffers, strict=True)
    }


def sizes_of(layout: Layout) -> list[int]:
    """Bytes of each column."""
    return [
        int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64)) for _, dtype, shape in layout
    ]
