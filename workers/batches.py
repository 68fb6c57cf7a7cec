"""Cutting a batch over ranks and joining it again, for the modes that ship the columns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase

from transferqueue.dispatch import HandlePart, StageReply
from transferqueue.errors import InvalidInput
from transferqueue.rows import even_chunks
from transferqueue.view import BatchData, DataProto, pad_dataproto_to_divisor
from transferqueue.view.columns import slice_rows
from workers.pending import PendingBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.calls import Collect


def cut(batch: Any, num_parts: int, *, what: str) -> list[Any]:
    """``num_parts`` runs of rows that differ by one row at most; views, nothing is copied.

    A future is cut where it arrives. ``InvalidInput`` names an argument that is no batch.
    """
    if isinstance(batch, PendingBatch):
        return batch.chunk(num_parts)
    if isinstance(batch, DataProto):
        return [batch[rows] for rows in even_chunks(len(batch), num_parts)]
    if isinstance(batch, TensorDictBase):
        return [
            slice_rows(batch, slice(rows.start, rows.stop, 1))
            for rows in even_chunks(int(batch.batch_size[0]), num_parts)
        ]
    data = BatchData(batch)
    if not data.is_chunkable():
        raise InvalidInput(
            f"{what} is a {type(batch).__name__}; this dispatch mode cuts DataProtos, TensorDicts, "
            f"handles and futures of them. Other values go in meta_info, or by ONE_TO_ALL"
        )
    return list(data.chunk(num_parts))


def padded(batch: Any, num_parts: int) -> tuple[Any, int]:
    """``(batch, rows added)``: filled up to a multiple where auto padding is on for it.

    The caller's batch stays as long as it is.
    """
    if isinstance(batch, DataProto) and len(batch) and batch.is_padding_enabled():
        return pad_dataproto_to_divisor(batch, num_parts)
    return batch, 0


def joined(
    answers: Sequence[Any],
    *,
    method: str,
    ranks: Sequence[int],
    num_rows: int,
    num_padding: int,
    must_join: bool,
) -> Any:
    """The batches of these ranks as one, without the rows that padding made.

    ``num_rows``: with padding. When they are no batches: ``InvalidInput``, or all answers as they
    are unless they ``must_join``.
    """
    parts = [answers[rank] for rank in ranks]
    if not BatchData(parts).is_concatable():
        if not must_join:
            return list(answers)
        kinds = sorted({type(part).__name__ for part in parts})
        raise InvalidInput(
            f"{method} returned {', '.join(kinds)}, which this dispatch mode cannot concatenate; "
            f"return a DataProto, or register it with DP_COMPUTE_METRIC to get a list"
        )
    whole = BatchData(parts).concat()
    if not num_padding:
        return whole
    # A method that answers with several rows for each gives back as many times the padding.
    times, rest = divmod(_num_rows(whole), num_rows)
    return whole if rest or not times else whole[: -num_padding * times]


def _num_rows(batch: Any) -> int:
    return int(batch.batch_size[0]) if isinstance(batch, TensorDictBase) else len(batch)


def joining(
    *,
    method: str,
    ranks: Sequence[int],
    num_rows: int = 0,
    num_padding: int = 0,
    must_join: bool = True,
) -> Collect:
    """`joined` with all but the answers."""
    return partial(
        joined,
        method=method,
        ranks=ranks,
        num_rows=num_rows,
        num_padding=num_padding,
        must_join=must_join,
    )


def payload_bytes(value: Any) -> int:
    """Bytes of a batch or handle that the controller passes on; 0 for what is neither.

    Objects of an object column count as a pointer each: measuring them would take longer than
    sending them.
    """
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, HandlePart):
        return len(value.to_bytes())
    if isinstance(value, StageReply):
        return payload_bytes(value.packed()) if value.value is None else 0
    if isinstance(value, DataProto):
        tensors = 0 if value.batch is None else _tensor_bytes(value.batch)
        return tensors + sum(column.nbytes for column in value.non_tensor_batch.values())
    return _tensor_bytes(value) if isinstance(value, TensorDictBase) else 0


def _tensor_bytes(batch: TensorDictBase) -> int:
    """As `TensorDictBase.bytes`, which leaves all tensors in a cycle of references."""
    leaves = batch.values(include_nested=True, leaves_only=True)
    return sum(_leaf_bytes(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))


def _leaf_bytes(tensor: Any) -> int:
    if not tensor.is_nested:
        return int(tensor.nbytes)
    parts, _ = tensor.__tensor_flatten__()
    return sum(getattr(tensor, part).nbytes for part in parts)
