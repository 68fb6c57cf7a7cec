"""Rows back to a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from transferqueue.errors import NothingToConcat
from transferqueue.view.columns import check_same_names
from transferqueue.view.dataproto import DataProto
from transferqueue.view.objects import rows_of_objects

if TYPE_CHECKING:
    from transferqueue.view.item import DataProtoItem


def collate_fn(x: list[DataProtoItem]) -> DataProto:
    """One batch of rows that have the same columns; without ``meta_info``.

    Tensors are stacked, every other column is an object array. Ours: it stays one-dimensional
    when the cells are lists of one length, and rows without tensors work.
    """
    if not x:
        raise NothingToConcat
    check_same_names([_names(item) for item in x])
    batch = None
    if x[0].batch is not None:
        batch = torch.stack([item.batch for item in x]).contiguous()  # type: ignore[misc]
    arrays = {
        name: rows_of_objects([item.non_tensor_batch[name] for item in x])
        for name in x[0].non_tensor_batch
    }
    return DataProto(batch=batch, non_tensor_batch=arrays)


def _names(item: DataProtoItem) -> list[str]:
    tensors = () if item.batch is None else item.batch.keys()
    return [*tensors, *item.non_tensor_batch]
