"""What a dispatched method returned: columns to store, values to give back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDictBase

from transferqueue.dispatch.opening import is_of_other_samples, written_columns
from transferqueue.errors import UndeclaredWrite, WriteMissing, WrongRowCount
from transferqueue.view import jagged
from transferqueue.view.dataproto import DataProto
from transferqueue.view.meta_info import METRICS_KEY

if TYPE_CHECKING:
    from transferqueue.dispatch.declaration import Declaration
    from transferqueue.dispatch.split import HandlePart
    from transferqueue.handle import BatchHandle

PADDING_KEY = "num_padding_rows"
"""The ``meta_info`` key that tells a method how many of its last rows are padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """An output, taken apart."""

    columns: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    value: Any = None
    is_batch: bool = False
    """Whether the method returned a batch, maybe of ``meta_info`` alone, rather than a value."""


def take_apart(output: Any, declaration: Declaration, given: HandlePart | None = None) -> Returned:
    """Sort an output by its type. ``given``: the rows that the method was given.

    A view of other rows, new samples that the method put or some of those that it got: their
    handle, as a value. A DataProto, or a TensorDict: its columns and its ``meta_info``. A dict of a
    method that writes: arrays and what is declared are columns, anything else is a metric.
    Everything else is a value, and comes back as it is.
    """
    if output is None:
        return Returned()
    if given is not None and is_of_other_samples(output, given.handle):
        return Returned(value=_without_padding(output.handle, given))
    if isinstance(output, DataProto) or hasattr(output, "non_tensor_batch"):  # or verl's
        return Returned(
            columns=written_columns(output), meta=_plain_meta(output.meta_info), is_batch=True
        )
    if isinstance(output, TensorDictBase):
        return _of_tensordict(output)
    if isinstance(output, Mapping) and (declaration.writes or any(map(is_column, output.values()))):
        return _of_dict(output, declaration)
    if is_column(output):
        # One column under no name; reported as missing or undeclared by `check`.
        return Returned(columns={type(output).__name__: output}, is_batch=True)
    return Returned(value=output)


def _without_padding(rows: BatchHandle, given: HandlePart) -> BatchHandle:
    """Padding rows repeat one sample, last of all. It is in ``rows`` as often as the method was
    given it without them, at most."""
    rows = rows.without_meta(PADDING_KEY) if PADDING_KEY in rows.meta_info else rows
    if not given.num_padding:
        return rows
    padding = given.handle.uids[-1]
    num_own = int(np.count_nonzero(given.own.uids == padding))
    spare = np.flatnonzero(rows.uids == padding)[num_own:]
    return rows[np.delete(np.arange(len(rows)), spare)]


def _of_tensordict(output: TensorDictBase) -> Returned:
    entries = {name: output.get(name) for name in output.keys()}  # noqa: SIM118 - no Mapping
    columns = {n: value for n, value in entries.items() if not isinstance(value, NonTensorData)}
    meta = {n: value.data for n, value in entries.items() if isinstance(value, NonTensorData)}
    return Returned(columns=columns, meta=_plain_meta(meta), is_batch=True)


def _of_dict(output: Mapping[str, Any], declaration: Declaration) -> Returned:
    columns = {
        name: value
        for name, value in output.items()
        if name in declaration.writes or is_column(value) or isinstance(value, list)
    }
    values = {name: value for name, value in output.items() if name not in columns}
    metrics = values.pop(METRICS_KEY, None) or {}
    meta = {METRICS_KEY: {**metrics, **values}} if metrics or values else {}
    return Returned(columns=columns, meta=_plain_meta(meta), is_batch=True)


def is_column(value: object) -> bool:
    """Whether this is a value a row, whatever name it has. Lists are not: metrics may be lists."""
    return isinstance(value, torch.Tensor | np.ndarray) and value.ndim > 0


def check(
    returned: Returned, declaration: Declaration, *, method: str, rank: int, num_rows: int
) -> None:
    """`UndeclaredWrite`, `WriteMissing` or `WrongRowCount` unless the columns are those declared,
    one value for each of ``num_rows`` rows (padding included)."""
    for name in returned.columns:
        if name not in declaration.writes:
            raise UndeclaredWrite(method, rank, name, declaration.writes)
    missing = [name for name in declaration.writes if name not in returned.columns]
    if missing:
        got = [*returned.columns] if returned.is_batch else [type(returned.value).__name__]
        raise WriteMissing(method, rank, missing, got)
    for name, column in returned.columns.items():
        got_rows = _rows_of(column)
        if got_rows != num_rows:
            raise WrongRowCount(method, rank, name, num_rows, got_rows)


def _rows_of(column: Any) -> int:
    """A single value counts as one row; a jagged tensor has no len."""
    if hasattr(column, "shape"):
        return int(column.shape[0]) if len(column.shape) else 1
    return len(column) if hasattr(column, "__len__") else 1


def first_rows(column: Any, num_rows: int) -> Any:
    """The first rows of a column of any kind."""
    if isinstance(column, torch.Tensor) and column.is_nested:
        return jagged.slice_rows(column, slice(0, num_rows, 1), {})
    return column[:num_rows]


def _plain_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {key: plain(value) for key, value in meta.items() if key != PADDING_KEY}


def plain(value: Any) -> Any:
    """Numbers as Python numbers, at any depth: metrics are often 0-d tensors and numpy scalars,
    which a handle does not carry."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
    if isinstance(value, np.generic) or (
        isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0
    ):
        return value.item()
    return value
