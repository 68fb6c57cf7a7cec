"""Splitting and joining bare TensorDicts, which verl's newer workers pass for a DataProto."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.errors import BatchInconsistent, NotDivisible, NothingToConcat
from transferqueue.view import columns
from transferqueue.view.rows import even_bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDictBase


def chunk_tensordict(batch: TensorDictBase, chunks: int) -> tuple[TensorDictBase, ...]:
    """``chunks`` equal runs of rows, each in memory of its own, because tensordict pickles the
    storage behind a view. ``NotDivisible`` (``AssertionError``) where they do not divide."""
    if len(batch.batch_size) != 1:
        raise BatchInconsistent(f"no rows to chunk in batch_size={tuple(batch.batch_size)}")
    num_rows = columns.num_rows(batch)
    if num_rows % chunks:
        raise NotDivisible("chunk", num_rows, chunks)
    return tuple(run.clone() for run in columns.cut_rows(batch, even_bounds(num_rows, chunks)))


def concat_tensordicts(parts: Sequence[TensorDictBase]) -> TensorDictBase:
    """All rows. Without a batch dimension, where all is metadata, the first part.

    Parts with other columns are a ``ColumnsDiffer`` (``KeyError``, ``AssertionError``).
    """
    if not parts:
        raise NothingToConcat
    if not parts[0].batch_size:
        return parts[0]
    columns.check_same_names([list(part.keys()) for part in parts])
    return columns.cat_rows(parts)
