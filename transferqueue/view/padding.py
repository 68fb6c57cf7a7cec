"""Padding to a divisor, and back."""

from __future__ import annotations

import logging
from typing import TypeVar

from transferqueue.errors import BatchInconsistent, InvalidInput
from transferqueue.rows import checked_count
from transferqueue.view.dataproto import DataProto

log = logging.getLogger(__name__)

BatchT = TypeVar("BatchT", bound=DataProto)


def pad_dataproto_to_divisor(data: BatchT, size_divisor: int) -> tuple[BatchT, int]:
    """``(padded, rows added)``: rows from row 0 on are appended, around more than once if need be,
    until ``size_divisor`` divides the length.

    A length that divides already gives the same object back. So does an empty batch, with a
    warning. Ours: ``meta_info`` stays as it is (verl collects its ``metrics`` to lists).
    """
    if not isinstance(data, DataProto):
        raise BatchInconsistent(f"data must be a DataProto, got {type(data).__name__}")
    pad_size = -len(data) % checked_count(size_divisor, "size_divisor", low=1)
    if not len(data):
        log.warning("a batch without rows cannot be padded, it is left as it is")
    if not pad_size:
        return data, 0
    rounds, rest = divmod(len(data) + pad_size, len(data))
    parts = [data] * rounds + [data.slice(0, rest)] * bool(rest)
    return data._cat(parts, dict(data.meta_info)), pad_size


def unpad_dataproto(data: BatchT, pad_size: int) -> BatchT:
    """Without the last ``pad_size`` rows; the same object for 0."""
    if pad_size < 0:
        raise InvalidInput(f"pad_size must be >= 0, got {pad_size}")
    return data[:-pad_size] if pad_size else data
