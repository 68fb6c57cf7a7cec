"""All ranks' rows on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from transferqueue.errors import BatchInconsistent
from transferqueue.view import columns
from transferqueue.view.dataproto import DataProto

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDict


def all_gather_data_proto(data: DataProto, process_group: dist.ProcessGroup | None) -> None:
    """Replace the rows of ``data`` by those of all ranks of the group, in rank order, in place.

    Every rank calls it with the same columns. ``meta_info`` stays each rank's own. Ours: ranks may
    hold different numbers of rows, jagged columns work, and ``batch`` may be ``None``.
    """
    if not isinstance(data, DataProto):
        raise BatchInconsistent(f"data must be a DataProto, got {type(data).__name__}")
    if data.batch is not None:
        data.batch = _gathered_batch(data.batch, process_group)
    parts = _gathered_objects(data.non_tensor_batch, process_group)
    data.non_tensor_batch = {
        name: columns.cat_arrays(name, [part[name] for part in parts])
        for name in data.non_tensor_batch
    }


def _gathered_batch(batch: Any, group: dist.ProcessGroup | None) -> TensorDict:
    row_counts: list[int] = _gathered_objects(columns.num_rows(batch), group)
    dense = sorted(set(batch.keys()) - set(columns.jagged_names(batch)))
    tensors = {name: _gathered_dense(batch.get(name), row_counts, group) for name in dense}
    rest = DataProto(batch.exclude(*dense))
    gathered = DataProto.concat(_gathered_objects(rest, group)).batch
    gathered = gathered.to(batch.device) if batch.device is not None else gathered
    return gathered.update(tensors).select(*batch.keys())


def _gathered_objects(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found


def _gathered_dense(
    column: torch.Tensor, row_counts: Sequence[int], group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Collectives move equal shapes only, so a shorter rank sends rows that are cut off again."""
    longest = max(row_counts)
    sent = column.to(_collective_device(column, group))
    if len(sent) < longest:
        sent = torch.cat([sent, sent.new_zeros(longest - len(sent), *sent.shape[1:])])
    found = [torch.empty_like(sent, memory_format=torch.contiguous_format) for _ in row_counts]
    dist.all_gather(found, sent.contiguous(), group=group)
    parts = [part[:rows] for part, rows in zip(found, row_counts, strict=True)]
    return torch.cat(parts).to(column.device)


def _collective_device(column: torch.Tensor, group: dist.ProcessGroup | None) -> torch.device:
    """Where the group's backend can move it from: NCCL knows GPUs only."""
    if dist.get_backend(group) == "nccl" and column.device.type != "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return column.device
