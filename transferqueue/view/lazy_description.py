"""What a view holds, in words, from what is known without fetching."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.fields import FieldKind, FieldSpec
from transferqueue.view.description import describe_array, describe_tensor
from transferqueue.view.lazy_sources import Stored
from transferqueue.view.sizes import columns_nbytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.view.lazy_column import LazyColumn


def describe_columns(columns: Mapping[str, LazyColumn]) -> dict[str, str]:
    """Each column in words, by name."""
    return {name: _describe(column) for name, column in columns.items()}


def _describe(column: LazyColumn) -> str:
    if isinstance(column.value, np.ndarray):
        return describe_array(column.value)
    if column.is_here:
        return describe_tensor(column.value)
    rows = column.num_rows
    shape = _shape(rows, column.source.spec) if isinstance(column.source, Stored) else f"({rows})"
    return f"{shape}, not fetched"


def _shape(num_rows: int, spec: FieldSpec) -> str:
    sizes = [
        "ragged" if dim == spec.ragged_dim else "*" if size < 0 else str(size)
        for dim, size in enumerate(spec.shape)
    ]
    name = f"torch.{spec.dtype}" if spec.kind is FieldKind.TENSOR else spec.dtype
    return f"({', '.join([str(num_rows), *sizes])}) ({name})"


def held_bytes(columns: Mapping[str, LazyColumn]) -> int:
    """Bytes of the values that are here."""
    return columns_nbytes(column.value for column in columns.values() if column.is_here)
