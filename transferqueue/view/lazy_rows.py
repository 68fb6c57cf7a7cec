"""Row operations on the columns of a view: sources are rewritten, values that are here sliced,
copied or joined. Nothing here fetches."""

from __future__ import annotations

import itertools
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

from transferqueue.errors import FieldSpecMismatch
from transferqueue.view.columns import check_same_names, check_same_shapes
from transferqueue.view.jagged import is_jagged
from transferqueue.view.lazy_column import LazyColumn, RowMemo
from transferqueue.view.lazy_samples import Samples
from transferqueue.view.lazy_sources import Computed, Joined, Stored
from transferqueue.view.lazy_values import cat_columns, cat_values, cut_values, take_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.fields import FieldSpec
    from transferqueue.view.lazy_column import Source

    Columns = Mapping[str, LazyColumn]


def take(columns: Columns, memo: RowMemo, num_rows: int) -> dict[str, LazyColumn]:
    """The columns of the rows of ``memo``, of ``num_rows`` that there are."""
    return _shown(columns, memo, take_values(_values(columns), memo.rows, num_rows))


def cut(
    columns: Columns, bounds: Sequence[int], memos: Sequence[RowMemo]
) -> list[dict[str, LazyColumn]]:
    """The columns of consecutive runs of rows. ``memos``: one a run, of its slice."""
    runs = cut_values(_values(columns), bounds)
    return [_shown(columns, memo, values) for memo, values in zip(memos, runs, strict=True)]


def _shown(columns: Columns, memo: RowMemo, values: Mapping[str, Any]) -> dict[str, LazyColumn]:
    for name, value in values.items():
        memo.give(columns[name], value)
    return {name: memo.column(column) for name, column in columns.items()}


def _values(columns: Columns) -> dict[str, Any]:
    return {name: column.value for name, column in columns.items() if column.value is not None}


class Join:
    """Columns of several batches one after another. ``sizes``: rows of each batch."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._samples: dict[tuple[Samples, ...], Samples] = {}
        self._parts: dict[tuple[LazyColumn, ...], LazyColumn] = {}

    def columns(self, parts: Sequence[Columns]) -> dict[str, LazyColumn]:
        """All rows. ``ColumnsDiffer`` and ``FieldSpecMismatch`` as of an eager concat, but that
        dtypes of columns that are not here meet only when they come."""
        check_same_names(parts)
        by_name = {name: [part[name] for part in parts] for name in parts[0]}
        for name, columns in by_name.items():
            _check_layouts(name, columns)
        here = {n: cols for n, cols in by_name.items() if all(c.value is not None for c in cols)}
        values = cat_columns(
            [{n: cols[i].value for n, cols in here.items()} for i in range(len(parts))],
            self._sizes,
        )
        return {name: self._column(cols, values.get(name)) for name, cols in by_name.items()}

    def _column(self, columns: Sequence[LazyColumn], value: Any) -> LazyColumn:
        first = columns[0]
        if value is not None and any(column.is_local for column in columns):
            return LazyColumn(None, value)
        edited = value is not None and any(column.is_edited for column in columns)
        # A value that is here makes the source a mere memory of where unedited rows came from.
        pieces = columns if value is None else [LazyColumn(c.source) for c in columns]
        joined = LazyColumn(self._source(pieces), value, device=first.device)
        if edited:
            joined.mark_edited()
        return joined

    def _source(self, columns: Sequence[LazyColumn]) -> Source:
        sources = [column.source for column in columns if column.value is None]
        stored = [source for source in sources if isinstance(source, Stored)]
        if len(stored) == len(columns) and (spec := _common_spec(stored)) is not None:
            return Stored(self.samples([s.samples for s in stored]), stored[0].field, spec)
        computed = [source for source in sources if isinstance(source, Computed)]
        if len(computed) == len(columns) and len({c.derivation for c in computed}) == 1:
            parts = zip(*(source.parts for source in computed), strict=True)
            return Computed(computed[0].derivation, [self._part(one) for one in parts])
        return Joined([_piece(column) for column in columns])

    def _part(self, columns: Sequence[LazyColumn]) -> LazyColumn:
        """What a computed column is computed from: one object for all that are computed from it."""
        key = tuple(columns)
        if key not in self._parts:
            here = all(column.value is not None for column in columns)
            value = cat_values([column.value for column in columns]) if here else None
            self._parts[key] = self._column(columns, value)
        return self._parts[key]

    def samples(self, parts: Sequence[Samples]) -> Samples:
        """One object for all columns whose parts are the same objects."""
        key = tuple(parts)
        if key not in self._samples:
            self._samples[key] = Samples.join(parts)
        return self._samples[key]


def _piece(column: LazyColumn) -> LazyColumn:
    """The joined column's own: an edit of the part after this must not show in it."""
    piece = LazyColumn(column.source, device=column.device)
    if column.value is not None:
        piece.settle(cat_values([column.value]))
        if column.is_edited:
            piece.mark_edited()
    return piece


def _common_spec(parts: Sequence[Stored]) -> FieldSpec | None:
    """The spec of rows of all parts, or ``None`` when no one request can give them all."""
    first = parts[0]
    if all(part.spec is first.spec for part in parts):
        spec = first.spec
    else:
        try:
            spec = reduce(lambda a, b: a.merge(b, field=first.field), [p.spec for p in parts])
        except FieldSpecMismatch:
            return None  # two dtypes: they are promoted when the parts are here
    is_one_field = all(part.field == first.field for part in parts)
    is_one_table = Samples.are_of_one_table([part.samples for part in parts])
    return spec if is_one_field and is_one_table and spec.is_concrete else None


def _check_layouts(name: str, columns: Sequence[LazyColumn]) -> None:
    """Refuse here what would fail when the parts come together."""
    if _are_of_one_spec(columns):
        return  # the usual case, chunks of one batch, which need no look at each
    layouts = [_layout(column) for column in columns]
    known = [layout for layout in layouts if layout is not None]
    ragged = [isinstance(layout, int) for layout in known]
    if any(ragged) and not all(ragged):
        raise FieldSpecMismatch(name, "ragged in some parts", "dense in others")
    if any(ragged) and len(set(known)) > 1:
        raise FieldSpecMismatch(name, f"ragged in dimension {known[0]}", f"in {known[-1]}")
    if known and not any(ragged):
        check_same_shapes(name, [layout for layout in known if isinstance(layout, tuple)])


def _are_of_one_spec(columns: Sequence[LazyColumn]) -> bool:
    first = columns[0].source
    return isinstance(first, Stored) and all(
        isinstance(column.source, Stored)
        and column.source.spec is first.spec
        and column.value is None
        for column in columns
    )


def _layout(column: LazyColumn) -> tuple[int, ...] | int | None:
    """Shape of a dense column, ragged dimension of a jagged one; ``None`` where it shows late."""
    value, source = column.value, column.source
    if value is not None:
        if is_jagged(value):
            return int(value._ragged_idx) - 1 if value.layout is torch.jagged else None
        shape = getattr(value, "shape", None)
        return None if shape is None else tuple(shape)
    if isinstance(source, Joined):
        return _layout(source.pieces[0])
    if not isinstance(source, Stored):
        return None
    spec = source.spec
    if spec.ragged_dim is not None:
        return spec.ragged_dim
    return (source.num_rows, *spec.shape) if spec.is_concrete else None


def runs_between(bounds: Sequence[int]) -> list[slice]:
    """The runs between bounds."""
    return [slice(start, stop, 1) for start, stop in itertools.pairwise(bounds)]
