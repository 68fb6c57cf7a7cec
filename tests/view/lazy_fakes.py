"""A service in memory, to see what a view asks of it, and batches to keep in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from transferqueue.errors import FieldExists, FieldsMissing
from transferqueue.handle import BatchHandle
from transferqueue.uids import make_uids
from transferqueue.view.dataproto import DataProto
from transferqueue.view.lazy_connection import Connection
from transferqueue.view.lazy_dataproto import LazyDataProto
from transferqueue.wire.columns import decode_column, encode_column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.fields import FieldSpec

SERVICE_ID = "fake-service"


@dataclass
class Cell:
    spec: FieldSpec
    length: int | None
    payload: bytes


@dataclass
class FakeClient:
    """Keeps bytes a cell, as the wire codec makes them, and counts what it is asked for."""

    service_id: str = SERVICE_ID
    gets: list[tuple[int, list[str]]] = field(default_factory=list)
    """Rows and fields of each get."""
    puts: list[list[str]] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    got_bytes: int = 0
    _cells: dict[tuple[int, str], Cell] = field(default_factory=dict)
    _next: int = 0

    def put(
        self,
        columns: Mapping[str, Any],
        *,
        handle: BatchHandle | None = None,
        partition: str = "train",
        meta_info: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> BatchHandle:
        encoded = {name: encode_column(name, value) for name, value in columns.items()}
        if handle is None:
            num_rows = next(iter(encoded.values())).num_rows
            handle = BatchHandle(
                service_id=self.service_id,
                partition=partition,
                uids=make_uids(0, self._next, num_rows),
                meta_info=meta_info,
            )
            self._next += num_rows
        uids = handle.uids.tolist()
        for name in encoded:
            taken = [uid for uid in uids if (uid, name) in self._cells]
            if taken and not overwrite:
                raise FieldExists(name, len(taken), taken)
        self.puts.append(list(encoded))
        for name, column in encoded.items():
            lengths = [None] * len(uids) if column.lengths is None else column.lengths.tolist()
            stop = 0
            for uid, length in zip(uids, lengths, strict=True):
                start = stop
                stop += column.spec.unit_bytes * (1 if length is None else length)
                payload = column.payload[start:stop].tobytes()
                self._cells[uid, name] = Cell(column.spec, length, payload)
        return handle.with_fields({name: column.spec for name, column in encoded.items()})

    def get_columns(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        device: str | None = None,
    ) -> dict[str, Any]:
        """``device``: noted, and no more."""
        if device is not None:
            self.devices.append(device)
        names = list(handle.fields) if fields is None else list(fields)
        self.gets.append((len(handle), names))
        return {name: self._column(handle, name) for name in names}

    def _column(self, handle: BatchHandle, name: str) -> Any:
        stored, uids = handle.stored_name(name), handle.uids.tolist()
        missing = [uid for uid in uids if (uid, stored) not in self._cells]
        if missing:
            raise FieldsMissing({stored: len(missing)}, len(uids), missing)
        cells = [self._cells[uid, stored] for uid in uids]
        spec = handle.fields[name]
        for cell in cells:
            spec = spec.merge(cell.spec, field=name)
        payload = np.frombuffer(b"".join(cell.payload for cell in cells), np.uint8).copy()
        lengths = None
        if spec.has_lengths:
            lengths = np.array([cell.length for cell in cells], dtype=np.int64)
        self.got_bytes += len(payload)
        return decode_column(spec, payload, lengths, len(cells))

    def view(self, handle: BatchHandle, reads: Sequence[str] = ()) -> LazyDataProto:
        client: Any = self
        return LazyDataProto.over(handle, Connection(self.service_id, {}, blocking=client), reads)

    @property
    def fields_got(self) -> list[str]:
        return [name for _, names in self.gets for name in names]


def jagged(*rows: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    if not rows:
        offsets = torch.zeros(1, dtype=torch.int64)
        return torch.nested.nested_tensor_from_jagged(torch.zeros(0, dtype=dtype), offsets=offsets)
    return torch.nested.nested_tensor(list(rows), layout=torch.jagged)


def objects(*values: Any) -> np.ndarray:
    return np.fromiter(values, dtype=object, count=len(values))


def example_columns(num_rows: int = 6) -> dict[str, Any]:
    """Every kind of column. Fresh memory at every call."""
    lengths = [1 + row % 3 for row in range(num_rows)]
    return {
        "ids": torch.arange(num_rows * 4).reshape(num_rows, 4),
        "mask": torch.arange(num_rows * 4).reshape(num_rows, 4) % 3 == 0,
        "log_probs": torch.linspace(-1, 1, num_rows * 2).reshape(num_rows, 2).to(torch.bfloat16),
        "score": torch.linspace(0, 5, num_rows),
        "tokens": jagged(*[torch.arange(length) + 10 for length in lengths], dtype=torch.int64),
        "weights": jagged(
            *[torch.ones(length) / length for length in lengths], dtype=torch.float32
        ),
        "uid": objects(*[f"prompt-{row}" for row in range(num_rows)]),
        "extra": objects(*[{"acc": row} if row % 2 else (row, None) for row in range(num_rows)]),
        "name": np.array(["n" * row for row in range(num_rows)], dtype="<U8"),
        "index": np.arange(num_rows, dtype=np.int32),
    }


def eager(columns: Mapping[str, Any], meta_info: Mapping[str, Any] | None = None) -> DataProto:
    return DataProto.from_single_dict(dict(columns), dict(meta_info or {}))


def frozen(value: Any) -> Any:
    """Any batch, column or cell in a form that compares: bytes, shapes, names, in order."""
    if isinstance(value, DataProto):
        tensors = None if value.batch is None else list(value.batch.items())
        return (
            len(value),
            None if tensors is None else [(name, frozen(column)) for name, column in tensors],
            [(name, frozen(column)) for name, column in value.non_tensor_batch.items()],
            frozen(value.meta_info),
        )
    if isinstance(value, torch.Tensor):
        return _frozen_tensor(value)
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ("objects", value.shape, [frozen(cell) for cell in value.flat])
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, dict):
        return {key: frozen(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return (type(value).__name__, [frozen(one) for one in value])
    return (type(value).__name__, repr(value))


def _frozen_tensor(value: torch.Tensor) -> Any:
    if value.is_nested:
        return ("jagged", str(value.dtype), [frozen(row) for row in value.unbind()])
    cells = value.detach().clone(memory_format=torch.contiguous_format).flatten()
    cells = cells.view(torch.uint8).numpy().tobytes() if cells.numel() else b""
    return (str(value.dtype), tuple(value.shape), cells)
