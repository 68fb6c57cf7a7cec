"""What a driver hands to stages: names of samples, or samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from transferqueue.handle import BatchHandle
from transferqueue.view import DataProto
from transferqueue.view.sizes import columns_nbytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import transferqueue as tq
    from workers.stage_runner import Batch

TRAIN = "train"
"""The partition of the samples."""


class Transporter(Protocol):
    """One way. ``num_bytes``: of what was handed to roles and came back, so far."""

    num_bytes: int

    def make(self, columns: Mapping[str, Any], tags: Mapping[str, Any]) -> Batch:
        """A batch of new samples."""
        ...

    def sent(self, batch: Batch) -> Batch:
        """The batch, counted."""
        ...

    def joined(self, batch: Batch, written: Batch) -> Batch:
        """The batch with what a stage wrote."""
        ...

    def release(self, batch: Batch) -> None:
        """Nobody needs the samples any more."""
        ...


class HandleTransporter:
    """Samples lie in the data plane; their names go round."""

    def __init__(self, client: tq.Client) -> None:
        self._client = client
        self.num_bytes = 0

    def make(self, columns: Mapping[str, Any], tags: Mapping[str, Any]) -> BatchHandle:
        return self._client.put(columns, partition=TRAIN, tags=tags)

    def sent(self, batch: Batch) -> Batch:
        assert isinstance(batch, BatchHandle)
        self.num_bytes += len(batch.to_bytes())
        return batch

    def joined(self, batch: Batch, written: Batch) -> Batch:
        assert isinstance(batch, BatchHandle)
        assert isinstance(written, BatchHandle)
        self.num_bytes += len(written.to_bytes())
        return batch.union(written)

    def release(self, batch: Batch) -> None:
        assert isinstance(batch, BatchHandle)
        self._client.clear(batch)


class FatTransporter:
    """Whole batches go to every stage, and what it wrote comes back."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def make(self, columns: Mapping[str, Any], tags: Mapping[str, Any]) -> DataProto:
        del tags
        tensors = {name: c for name, c in columns.items() if isinstance(c, torch.Tensor)}
        objects = {name: _objects(c) for name, c in columns.items() if name not in tensors}
        return DataProto.from_dict(tensors, objects)

    def sent(self, batch: Batch) -> Batch:
        assert isinstance(batch, DataProto)
        self.num_bytes += _nbytes(batch)
        return batch

    def joined(self, batch: Batch, written: Batch) -> Batch:
        assert isinstance(batch, DataProto)
        assert isinstance(written, DataProto)
        self.num_bytes += _nbytes(written)
        return batch.union(written)

    def release(self, batch: Batch) -> None:
        """Garbage collection does."""


def _objects(column: list[Any]) -> np.ndarray:
    return np.fromiter(column, dtype=object, count=len(column))


def _nbytes(batch: DataProto) -> int:
    tensors = [] if batch.batch is None else list(batch.batch.values())
    return columns_nbytes([*tensors, *batch.non_tensor_batch.values()])
