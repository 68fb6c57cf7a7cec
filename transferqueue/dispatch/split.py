"""How a handle is split over the ranks of a group. Pure.

Splitting is uneven where it must be: 10 rows on 4 ranks are 3, 3, 2, 2. Padding rows are virtual:
they stand at the end of a part so that all ranks see as many rows, are fetched with the row that
they repeat, and nothing of them is stored or given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.samplers.length_balanced import balance
from transferqueue.errors import RowCountMismatch
from transferqueue.rows import checked_count, even_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.handle import BatchHandle


class Padding(Enum):
    """What is done when rows do not divide by the ranks."""

    NONE = "none"
    """Parts differ by a row; with fewer rows than ranks some ranks get none."""
    EQUAL = "equal"
    """Every part is as long as the longest, filled up with virtual rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTokens:
    """A handle to be split so that every rank gets about the same number of tokens."""

    handle: BatchHandle
    lengths: np.ndarray  # [rows], tokens of each row

    def __post_init__(self) -> None:
        if np.ndim(self.lengths) != 1 or len(self.lengths) != len(self.handle):
            raise RowCountMismatch("lengths of ByTokens", len(self.handle), np.size(self.lengths))


def by_tokens(handle: BatchHandle, lengths: Any) -> ByTokens:
    """``handle`` as an argument that is split by token count instead of by row count.

    ``lengths``: tokens of each row, ``[rows]``: a list, array or tensor, such as the ``length``
    tags that a claim gives. ``RowCountMismatch`` when they are not as many.
    """
    return ByTokens(handle=handle, lengths=np.asarray(lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlePart:
    """What one rank gets of a handle."""

    handle: BatchHandle
    """The rows to look at, padding rows last."""
    num_padding: int = 0
    stores: bool = True
    """Whether this rank puts what the method returns: one rank of those that share a part."""

    @property
    def own(self) -> BatchHandle:
        """Without the padding rows."""
        return self.handle[: len(self.handle) - self.num_padding] if self.num_padding else (
            self.handle
        )


def split_handle(
    batch: BatchHandle | ByTokens, num_parts: int, *, padding: Padding = Padding.NONE
) -> list[HandlePart]:
    """``num_parts`` parts that hold every row once.

    By rows they are runs of the handle; by tokens a part's rows keep the order that they have in
    the handle. A handle without rows gives parts without rows, also where padding is asked for.
    """
    handle = batch.handle if isinstance(batch, ByTokens) else batch
    count = checked_count(num_parts, "num_parts", low=1)
    rows: Sequence[slice | np.ndarray]
    if isinstance(batch, ByTokens):
        rows = _balanced_rows(batch.lengths, count)
    else:
        rows = even_chunks(len(handle), count)
    parts = [handle[part] for part in rows]
    if padding is Padding.NONE or len(handle) == 0:
        return [HandlePart(handle=part) for part in parts]
    longest = max(map(len, parts))
    return [_filled_up(part, longest, handle) for part in parts]


def _balanced_rows(lengths: np.ndarray, num_parts: int) -> list[np.ndarray]:
    """Row numbers of each part, rising."""
    # `balance` deals equal counts; rows of no tokens make the count divide and are left out again.
    missing = -len(lengths) % num_parts
    dealt = balance(np.concatenate([lengths, np.zeros(missing)]), num_parts)
    return [np.sort(part[part < len(lengths)]) for part in dealt]


def _filled_up(part: BatchHandle, num_rows: int, whole: BatchHandle) -> HandlePart:
    """Padding repeats the part's own first row, which is fetched anyway; a part without rows
    repeats the first of all."""
    missing = num_rows - len(part)
    if not missing:
        return HandlePart(handle=part)
    source = part if len(part) else whole
    rows = np.concatenate([np.arange(len(part)), np.zeros(missing, dtype=np.intp)])
    return HandlePart(handle=source[rows], num_padding=missing)
