"""Row operations on jagged tensors, which torch does not have.

Symbols: ``B`` rows, ``L_i`` the length of row ``i``, ``T = sum(L_i)``. A jagged tensor
``[B, ..., L_i, ...]`` keeps its rows end to end in ``values``, where the ragged dimension is
``ragged_dim`` (counted per sample, so a 3-D column ``[B, 4, L_i]`` has ragged_dim 1 and values
``[4, T]``), and ``offsets`` [B + 1] says where each row starts. A *narrowed* one has gaps and says
the lengths beside the offsets.

torch 2.13 refuses ``index``, ``slice``, ``cat`` and ``repeat`` along the batch for this layout, and
tensordict 0.15 makes up for some of it by a loop over rows. Here it is index arithmetic: the
cells wanted are named by one int64 index into ``values``.

torch lets two jagged tensors meet in arithmetic only if they hold the *same* offsets object. Every
operation therefore takes a memo: columns that shared offsets before it share them after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from transferqueue.errors import FieldSpecMismatch, UnsupportedTensor
from transferqueue.wire.tensors import pick

if TYPE_CHECKING:
    from collections.abc import Sequence

Jagged: TypeAlias = Any
"""A ``torch.Tensor`` of layout jagged; torch's stubs do not know its ``offsets()``."""

OffsetsMemo: TypeAlias = dict[tuple[int, ...], Any]
"""What one operation made of each offsets object it met, by the ids of those objects."""


def is_jagged(column: object) -> bool:
    """Whether a column is a nested tensor, of either layout."""
    return isinstance(column, torch.Tensor) and column.is_nested


def check_layout(name: str, column: torch.Tensor) -> None:
    """``UnsupportedTensor`` for torch's older nested layout, of which rows cannot be picked."""
    if column.layout != torch.jagged:
        what = f"a nested tensor of layout {column.layout} here"
        raise UnsupportedTensor(name, what, "build it with layout=torch.jagged")


def ragged_dim(column: Jagged) -> int:
    """The per-sample dimension that varies, from 0."""
    # torch has no public name for it; verl sets this attribute by hand, so it is the one to trust.
    return int(column._ragged_idx) - 1


def row_lengths(column: Jagged) -> torch.Tensor:
    """int64 [B]."""
    lengths: torch.Tensor | None = column.lengths()
    offsets: torch.Tensor = column.offsets()
    return offsets.diff() if lengths is None else lengths


def build(values: torch.Tensor, offsets: torch.Tensor, dim: int) -> Jagged:
    """The jagged tensor of these rows. ``dim``: the per-sample ragged dimension."""
    return torch.nested.nested_tensor_from_jagged(values, offsets=offsets, jagged_dim=dim + 1)


def offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    """int64 [B + 1] of lengths [B]."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def _key(*columns: Jagged) -> tuple[int, ...]:
    return tuple(id(part) for column in columns for part in (column.offsets(), column.lengths()))


def take_rows(column: Jagged, rows: torch.Tensor, memo: OffsetsMemo) -> Jagged:
    """Rows by index (int64 [n] on any device), copied and packed end to end."""
    dim = ragged_dim(column)
    if (key := _key(column)) not in memo:
        memo[key] = _cells_of_rows(column, rows.to(column.offsets().device))
    cells, offsets = memo[key]
    return build(pick(column.values(), dim, cells), offsets, dim)


def _cells_of_rows(column: Jagged, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    starts, lengths = column.offsets()[:-1][rows], row_lengths(column)[rows]
    offsets = offsets_of(lengths)
    shift = torch.repeat_interleave(starts - offsets[:-1], lengths)
    return shift + torch.arange(len(shift), device=shift.device), offsets


def slice_rows(column: Jagged, rows: slice, memo: OffsetsMemo) -> Jagged:
    """Rows of a slice with plain bounds: a view when they are consecutive and have no gaps."""
    if rows.step != 1 or column.lengths() is not None:
        return take_rows(column, torch.arange(rows.start, rows.stop, rows.step), memo)
    dim, key = ragged_dim(column), _key(column)
    if key not in memo:
        old = column.offsets()[rows.start : rows.stop + 1]
        memo[key] = int(old[0]), int(old[-1]), old - old[0]
    first, last, offsets = memo[key]
    return build(column.values().narrow(dim, first, last - first), offsets, dim)


def row(column: Jagged, number: int) -> torch.Tensor:
    """One row, a view: ``[..., L_i, ...]``."""
    start, length = int(column.offsets()[number]), int(row_lengths(column)[number])
    values: torch.Tensor = column.values()
    return values.narrow(ragged_dim(column), start, length)


def packed(column: Jagged) -> Jagged:
    """The same rows end to end and nothing else in ``values``; itself when it is so already."""
    offsets, dim = column.offsets(), ragged_dim(column)
    if column.lengths() is None and column.values().shape[dim] == int(offsets[-1] - offsets[0]):
        return column
    return take_rows(column, torch.arange(len(offsets) - 1), {})


def cat_rows(name: str, columns: Sequence[Jagged], memo: OffsetsMemo) -> Jagged:
    """All rows of all ``columns``, in order. They must vary in the same dimension."""
    dims = {ragged_dim(column) for column in columns}
    if len(dims) > 1:
        raise FieldSpecMismatch(name, f"ragged in dimension {min(dims)}", f"in {max(dims)}")
    (dim,) = dims
    if (key := _key(*columns)) not in memo:
        memo[key] = offsets_of(torch.cat([row_lengths(column) for column in columns]))
    values = torch.cat([packed(column).values() for column in columns], dim=dim)
    return build(values, memo[key], dim)


def same_layout(left: Jagged, right: Jagged) -> bool:
    """Whether both have the same rows' lengths in the same dimension."""
    return ragged_dim(left) == ragged_dim(right) and torch.equal(
        row_lengths(left), row_lengths(right).to(left.device)
    )
