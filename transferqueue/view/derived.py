"""Columns that others determine, so that they are neither stored nor moved.

A `Derivation` says how one column follows from others, row by row: what it gives for some rows of a
batch is those rows of what it gives for the batch. A lazy view computes such a column when it is
read, and only for the rows that it has by then; row operations commute with it.

    view.derive({"attention_mask": NotValue("input_ids", value=pad_id),
                 "position_ids": Positions("attention_mask"),
                 "response_mask": Tail("attention_mask", like="responses")})
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from transferqueue.errors import BatchInconsistent, InvalidInput
from transferqueue.view import jagged
from transferqueue.view.names import known_names
from transferqueue.view.padded import Side, pad, pad_where, run_mask

if TYPE_CHECKING:
    from torch import Tensor

    from transferqueue.view.dataproto import DataProto

BatchT = TypeVar("BatchT", bound="DataProto")


class Derivation(Protocol):
    """How a column follows from others. A value: equal ones compute the same, and it pickles."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the columns it follows from, as the batch knows them."""
        ...

    def compute(self, *columns: Tensor) -> Tensor:
        """The column, from those of ``needs`` in order. Row by row."""
        ...

    def __hash__(self) -> int: ...


Derivations = Mapping[str, Derivation]
"""Name of the derived column -> how it follows. One may need another that stands before it."""


@dataclass(frozen=True, slots=True)
class _OfOne:
    of: str
    """The column it follows from."""

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of,)


@dataclass(frozen=True, slots=True)
class NotValue(_OfOne):
    """int64, 1 where a padded column is not ``value``: the attention mask of token ids, if the
    padding id occurs nowhere else. Shape as ``of``."""

    value: int = 0

    def compute(self, *columns: Tensor) -> Tensor:
        return (columns[0] != self.value).to(torch.int64)


@dataclass(frozen=True, slots=True)
class Positions(_OfOne):
    """int64 position ids: of a ragged column 0, 1, 2, … in each row, ragged alike; of a mask
    ``[B, L]`` the number of ones before each place, 0 in the padding (as verl counts them)."""

    def compute(self, *columns: Tensor) -> Tensor:
        (column,) = columns
        if jagged.is_jagged(column):
            ragged: Tensor = _ragged_positions(column)
            return ragged
        positions: Tensor = (column.to(torch.int64).cumsum(-1) - 1).clamp(min=0)
        return positions


def _ragged_positions(column: jagged.Jagged) -> jagged.Jagged:
    packed = jagged.packed(column)
    offsets, lengths = packed.offsets(), jagged.row_lengths(packed)
    num_cells = packed.values().shape[jagged.ragged_dim(packed)]
    starts = torch.repeat_interleave(offsets[:-1] - offsets[0], lengths)
    return jagged.build(torch.arange(num_cells, device=offsets.device) - starts, offsets, 0)


@dataclass(frozen=True, slots=True)
class RunMask(_OfOne):
    """int64 ``[B, length]``, 1 where `Padded` of the same settings puts the cells of a ragged
    column: the response mask of responses that are stored ragged."""

    length: int
    side: str = Side.RIGHT

    def compute(self, *columns: Tensor) -> Tensor:
        return run_mask(columns[0], side=self.side, length=self.length).to(torch.int64)


@dataclass(frozen=True, slots=True)
class Padded(_OfOne):
    """A ragged column as a rectangle; see `padded.pad`. The length is fixed, because a batch that
    is cut up must pad each part alike."""

    length: int
    side: str = Side.RIGHT
    value: float = 0

    def compute(self, *columns: Tensor) -> Tensor:
        return pad(columns[0], value=self.value, side=self.side, length=self.length)


@dataclass(frozen=True, slots=True)
class PaddedWhere(_OfOne):
    """A ragged column as a rectangle with its cells where the column ``mask`` is not 0."""

    mask: str
    value: float = 0

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of, self.mask)

    def compute(self, *columns: Tensor) -> Tensor:
        ragged, mask = columns
        return pad_where(ragged, mask, value=self.value)


@dataclass(frozen=True, slots=True)
class Tail(_OfOne):
    """The last columns of ``of``, as many as ``like`` has: the response's part of a mask."""

    like: str

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of, self.like)

    def compute(self, *columns: Tensor) -> Tensor:
        column, like = columns
        width = like.shape[1]
        if width > column.shape[1]:
            raise BatchInconsistent(
                f"{self.like!r} has {width} columns and {self.of!r} {column.shape[1]}: not its tail"
            )
        return column[:, column.shape[1] - width :]


@dataclass(frozen=True, slots=True)
class Cast(_OfOne):
    """A column in another dtype, e.g. int64 ids of int32 ones that are stored."""

    dtype: str
    """torch dtype name."""

    def compute(self, *columns: Tensor) -> Tensor:
        return columns[0].to(torch_dtype(self.dtype))


@dataclass(frozen=True, slots=True)
class Unpacked(_OfOne):
    """A mask ``[B, length]`` of ``dtype`` from bits ``[B, ceil(length / 8)]``; see `pack_bits`."""

    length: int
    dtype: str = "int64"

    def compute(self, *columns: Tensor) -> Tensor:
        return unpack_bits(columns[0], self.length).to(torch_dtype(self.dtype))


def torch_dtype(name: str) -> torch.dtype:
    """``InvalidInput`` for a name that is no torch dtype."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidInput(f"{name!r} is not a torch dtype")
    return dtype


_BIT_VALUES = (1, 2, 4, 8, 16, 32, 64, 128)


def pack_bits(mask: Tensor) -> Tensor:
    """uint8 ``[B, ceil(L / 8)]`` of a bool mask ``[B, L]``; bit 0 of a byte comes first."""
    filled = torch.nn.functional.pad(mask.to(torch.uint8), (0, -mask.shape[1] % 8))
    weights = torch.tensor(_BIT_VALUES, dtype=torch.uint8, device=mask.device)
    packed: Tensor = (filled.unflatten(1, (-1, 8)) * weights).sum(-1, dtype=torch.uint8)
    return packed


def unpack_bits(packed: Tensor, length: int) -> Tensor:
    """bool ``[B, length]``, the inverse of `pack_bits`."""
    weights = torch.tensor(_BIT_VALUES, dtype=torch.uint8, device=packed.device)
    places: Tensor = (packed.unsqueeze(-1) & weights).ne(0).flatten(1)
    return places[:, :length]


def check_derivable(name: str, derivation: Derivation, known: Collection[str]) -> None:
    """``UnknownColumn`` for a need that is missing, ``InvalidInput`` for a name that is taken. A
    column may replace the one of its name that it follows from."""
    known_names(derivation.needs, known, "batch", once=False)
    if name in known and name not in derivation.needs:
        raise InvalidInput(f"derive: column {name!r} is there already; pop() it first")


def derive_now(data: BatchT, columns: Derivations) -> BatchT:
    """Add derived columns to an eager batch, in place; returns it. `LazyDataProto.derive` is the
    same for a view, which computes them when they are read."""
    for name, derivation in columns.items():
        check_derivable(name, derivation, [*data._tensor_names(), *data._array_names()])
        needs = [data.batch.get(need) for need in derivation.needs]
        data.batch.set(name, derivation.compute(*needs))
    return data
