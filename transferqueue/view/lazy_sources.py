"""The places that a column may come from."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.view.lazy_column import LazyColumn, RowMemo
from transferqueue.view.lazy_values import cat_values, row_of_value, take_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.fields import FieldSpec
    from transferqueue.view.derived import Derivation
    from transferqueue.view.lazy_column import Source
    from transferqueue.view.lazy_samples import Samples
    from transferqueue.view.rows import RowIndex


class Stored:
    """One field of samples."""

    __slots__ = ("field", "samples", "spec")

    is_stored = True

    def __init__(self, samples: Samples, field: str, spec: FieldSpec) -> None:
        self.samples = samples
        self.field = field
        """The name in storage; the view may know it by another."""
        self.spec = spec

    @property
    def num_rows(self) -> int:
        return len(self.samples)

    def same_as(self, other: Source) -> bool:
        if not isinstance(other, Stored) or self.field != other.field:
            return False
        return self.samples.same_as(other.samples)

    def take(self, memo: RowMemo) -> Stored:
        return Stored(memo.samples(self.samples), self.field, self.spec)

    def needs(self) -> Sequence[LazyColumn]:
        return ()

    def build(self) -> Any:
        raise AssertionError("a stored column is fetched, not built")

    def release(self) -> None:
        pass


class Joined:
    """Columns one after another that no one request can name: of several partitions or services,
    some stored and some local, or some fetched already."""

    __slots__ = ("order", "pieces")

    def __init__(self, pieces: Sequence[LazyColumn], order: RowIndex | None = None) -> None:
        self.pieces = pieces
        """This source's own: nobody else edits their values."""
        self.order = order  # int64 [rows] into all rows of the pieces; None: as they come

    @property
    def num_rows(self) -> int:
        if self.order is not None:
            return len(self.order)
        return sum(piece.num_rows for piece in self.pieces)

    @property
    def is_stored(self) -> bool:
        return not any(piece.is_local for piece in self.pieces)

    def same_as(self, other: Source) -> bool:
        return self is other

    def take(self, memo: RowMemo) -> Joined:
        """Only the pieces that the rows are in, and of each only its rows."""
        rows = np.arange(self.num_rows)[memo.rows]
        if self.order is not None:
            rows = self.order[rows]
        bounds = list(accumulate((piece.num_rows for piece in self.pieces), initial=0))
        which = np.searchsorted(bounds[1:], rows, side="right")  # [rows], the piece of each
        order = np.argsort(which, kind="stable")
        pieces = []
        for number in np.unique(which).tolist():
            inside = RowMemo(rows[which == number] - bounds[number])
            pieces.append(inside.column(self.pieces[number]))
        is_ordered = bool((np.diff(which) >= 0).all())
        return Joined(pieces or [self._no_rows()], None if is_ordered else _inverse(order))

    def _no_rows(self) -> LazyColumn:
        """The first piece without its rows: what dtype and shape an empty column has."""
        return RowMemo(slice(0, 0, 1)).column(self.pieces[0])

    def needs(self) -> Sequence[LazyColumn]:
        return self.pieces

    def build(self) -> Any:
        value = cat_values([piece.value for piece in self.pieces])
        return value if self.order is None else take_value(value, self.order)

    def release(self) -> None:
        for piece in self.pieces:
            if not piece.is_edited:
                piece.forget()


def _inverse(order: RowIndex) -> RowIndex:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse


class Computed:
    """A column that others determine row by row: it is computed when it is read."""

    __slots__ = ("derivation", "parts")

    def __init__(self, derivation: Derivation, parts: Sequence[LazyColumn]) -> None:
        self.derivation = derivation
        self.parts = parts
        """Columns of the batch, or ones that it hides, in the order of ``derivation.needs``."""

    @property
    def num_rows(self) -> int:
        return self.parts[0].num_rows

    @property
    def is_stored(self) -> bool:
        return not any(part.is_local for part in self.parts)

    def same_as(self, other: Source) -> bool:
        if not isinstance(other, Computed) or self.derivation != other.derivation:
            return False
        return all(map(LazyColumn.is_known_to_equal, self.parts, other.parts))

    def take(self, memo: RowMemo) -> Computed:
        return Computed(self.derivation, [memo.part(part) for part in self.parts])

    def needs(self) -> Sequence[LazyColumn]:
        return self.parts

    def build(self) -> Any:
        return self.derivation.compute(*(part.value for part in self.parts))

    def release(self) -> None:
        pass  # others may be computed from the parts, or show them


class RowOf:
    """One row of a column. The first touch of one row fetches the whole column, so that a loop
    over rows makes one request a column and not one a row."""

    __slots__ = ("_column", "_number")

    is_stored = True

    def __init__(self, column: LazyColumn, number: int) -> None:
        self._column = column
        self._number = number

    @property
    def num_rows(self) -> int:
        raise AssertionError("a row has no rows")

    def same_as(self, other: Source) -> bool:
        return self is other

    def take(self, memo: RowMemo) -> RowOf:
        raise AssertionError("a row has no rows")

    def needs(self) -> Sequence[LazyColumn]:
        return (self._column,)

    def build(self) -> Any:
        return row_of_value(self._column.value, self._number)

    def release(self) -> None:
        pass  # the column is somebody else's
