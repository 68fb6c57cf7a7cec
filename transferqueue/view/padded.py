"""Between ragged and padded columns, both ways exact and by index work alone.

A batch of sequences is *padded* ``[B, ..., L, ...]`` where a model wants a rectangle, and *ragged*
``[B, ..., L_i, ...]`` where bytes are kept and moved: at 25 % fill a quarter of them. ``T`` is the
number of real cells, ``sum(L_i)``. The sequence dimension is counted per sample, from 0.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from transferqueue.errors import InvalidInput, UnsupportedTensor
from transferqueue.view import jagged
from transferqueue.wire.tensors import pick

if TYPE_CHECKING:
    from torch import Tensor

    from transferqueue.view.dataproto import DataProto


class Side(StrEnum):
    """Where the padding is. verl pads prompts on the left and responses on the right."""

    LEFT = "left"
    RIGHT = "right"


def pad(
    ragged: jagged.Jagged,
    *,
    value: float = 0,
    side: str = Side.RIGHT,
    length: int | None = None,
) -> Tensor:
    """A ragged column as a rectangle: ``[B, ..., length, ...]`` of its dtype and device.

    ``value`` fills the rest. ``length``: ``None`` is the longest row's. ``InvalidInput`` when a
    row is longer (nothing is ever cut off), or ``value`` does not fit the dtype.
    """
    lengths = jagged.row_lengths(_checked(ragged))
    width = _width(lengths, length)
    starts = (width - lengths) if Side(side) is Side.LEFT else torch.zeros_like(lengths)
    return _placed(ragged, lengths, starts, width, value)


def pad_where(ragged: jagged.Jagged, mask: Tensor, *, value: float = 0) -> Tensor:
    """A ragged column as a rectangle with its cells where ``mask`` ``[B, L]`` is not 0, in order.

    The inverse of `unpad`. ``InvalidInput`` unless the mask has as many cells a row as the column.
    """
    lengths = jagged.row_lengths(_checked(ragged))
    wanted = _as_mask(mask)
    cells, offsets = _cells_of(wanted)
    if not torch.equal(offsets.diff(), lengths):
        raise InvalidInput("the mask does not have as many cells a row as the ragged column")
    return _filled(ragged, cells, wanted.shape[1], value)


def unpad(padded: Tensor, mask: Tensor, *, dim: int = 0, value: float | None = 0) -> jagged.Jagged:
    """The cells of a padded column where ``mask`` ``[B, L]`` is not 0, as a ragged column.

    The mask may have holes; `pad_where` with the same mask is the exact inverse. ``dim`` is the
    sequence dimension (1 for mRoPE's ``[B, 4, L]``). ``InvalidInput`` when a cell that the mask
    leaves out is not ``value``, so that nothing is lost; ``None`` does not look.
    """
    return unpad_all({"": padded}, mask, dims={"": dim}, values={"": value})[""]


def unpad_all(
    columns: dict[str, Tensor],
    mask: Tensor,
    *,
    dims: dict[str, int] | None = None,
    values: dict[str, float | None] | None = None,
) -> dict[str, jagged.Jagged]:
    """`unpad` of several columns under one mask. The results share their offsets, so that they
    meet in arithmetic. A column without an entry has ``dim`` 0 and ``value`` 0."""
    wanted = _as_mask(mask)
    cells, offsets = _cells_of(wanted)
    result = {}
    for name, column in columns.items():
        dim = (dims or {}).get(name, 0)
        steps = column.movedim(dim + 1, 1)  # [B, L, ...]
        if tuple(steps.shape[:2]) != tuple(wanted.shape):
            raise InvalidInput(
                f"column {name!r} of shape {tuple(column.shape)} has no dimension {dim} for a mask "
                f"of {tuple(wanted.shape)}"
            )
        value = (values or {}).get(name, 0)
        if value is not None:
            _refuse_other_padding(name, steps, wanted, value)
        kept = pick(steps.flatten(0, 1), 0, cells)  # [T, ...]
        result[name] = jagged.build(kept.movedim(0, dim), offsets, dim)
    return result


def padded_column(
    data: DataProto,
    name: str,
    *,
    value: float = 0,
    side: str = Side.RIGHT,
    length: int | None = None,
) -> Tensor:
    """Column ``name`` of a batch as a rectangle; see `pad`. ``UnknownColumn`` (``KeyError``)."""
    picked = data.select(batch_keys=[name], non_tensor_batch_keys=[])
    return pad(picked.batch.get(name), value=value, side=side, length=length)


def run_mask(ragged: jagged.Jagged, *, side: str = Side.RIGHT, length: int | None = None) -> Tensor:
    """bool ``[B, length]``: where `pad` puts the cells of a ragged column."""
    lengths = jagged.row_lengths(_checked(ragged))
    width = _width(lengths, length)
    places = torch.arange(width, device=lengths.device)
    if Side(side) is Side.LEFT:
        return places >= (width - lengths).unsqueeze(1)
    return places < lengths.unsqueeze(1)


def _checked(ragged: jagged.Jagged) -> jagged.Jagged:
    if not jagged.is_jagged(ragged) or ragged.layout != torch.jagged:
        what = f"a {type(ragged).__name__} that is not ragged here"
        raise UnsupportedTensor("?", what, "pad() takes a tensor of layout torch.jagged")
    return ragged


def _width(lengths: Tensor, length: int | None) -> int:
    longest = int(lengths.max()) if len(lengths) else 0
    if length is None:
        return longest
    if length < longest:
        row = int(lengths.argmax())
        raise InvalidInput(f"row {row} has {longest} cells, length={length} would cut it off")
    return length


def _placed(
    ragged: jagged.Jagged, lengths: Tensor, starts: Tensor, width: int, value: float
) -> Tensor:
    """Row ``i`` from cell ``starts[i]`` on."""
    offsets = jagged.offsets_of(lengths)
    first = torch.arange(len(lengths), device=lengths.device) * width + starts - offsets[:-1]
    cells = torch.repeat_interleave(first, lengths)
    cells += torch.arange(len(cells), device=cells.device)
    return _filled(ragged, cells, width, value)


def _filled(ragged: jagged.Jagged, cells: Tensor, width: int, value: float) -> Tensor:
    """``cells``: int64 [T], where each cell goes in the flattened ``[B * width, ...]``."""
    dim = jagged.ragged_dim(ragged)
    steps = jagged.packed(ragged).values().movedim(dim, 0)  # [T, ...]
    num_rows = len(ragged.offsets()) - 1
    rectangle = _full((num_rows * width, *steps.shape[1:]), value, steps)
    _as_integers(rectangle).index_copy_(0, cells, _as_integers(steps))
    padded: Tensor = rectangle.unflatten(0, (num_rows, width)).movedim(1, dim + 1)
    return padded


def _as_integers(steps: Tensor) -> Tensor:
    """The same memory as integers: torch does not move float8 or unsigned cells by index."""
    return steps.view(_INTEGERS.get(steps.dtype.itemsize, steps.dtype))


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _full(shape: tuple[int, ...], value: float, like: Tensor) -> Tensor:
    if not _fits(value, like.dtype):
        raise InvalidInput(f"a padding value of {value} does not fit {like.dtype}")
    filled: Tensor = torch.full(shape, value, dtype=like.dtype, device=like.device)
    return filled


def _fits(value: float, dtype: torch.dtype) -> bool:
    """Of floats any value does, rounded."""
    if dtype.is_floating_point or dtype.is_complex:
        return True
    if dtype == torch.bool:
        return value in (0, 1)
    limits = torch.iinfo(dtype)
    return float(value).is_integer() and bool(limits.min <= value <= limits.max)


def _as_mask(mask: Tensor) -> Tensor:
    if jagged.is_jagged(mask) or mask.dim() != 2:
        raise InvalidInput(f"a mask is [rows, length], got {tuple(mask.shape)}")
    return mask if mask.dtype == torch.bool else mask != 0


def _cells_of(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Where a mask is set in its flattened form, int64 [T], and where each row's begin in that,
    int64 [B + 1]. Searching the sorted places takes no time; a sum over the mask took half of
    ``unpad``."""
    cells = mask.flatten().nonzero().squeeze(1)
    starts = torch.arange(len(mask) + 1, device=mask.device) * mask.shape[1]
    return cells, torch.searchsorted(cells, starts)


def _refuse_other_padding(name: str, steps: Tensor, mask: Tensor, value: float) -> None:
    """One pass over all cells: those of the mask may be anything."""
    is_other = steps != value if value == value else ~steps.isnan()
    if is_other.dim() > 2:
        is_other = is_other.flatten(2).any(-1)
    lost = (is_other & ~mask).any(1)
    if lost.any():
        row = int(lost.nonzero()[0])
        raise InvalidInput(
            f"column {name!r} holds other values than {value} where the mask is 0, first in row "
            f"{row}; they would be lost. Give that padding value, or None to leave them out"
        )
