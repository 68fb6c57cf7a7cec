"""One column of a view: where it is stored, and its value once that is here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from transferqueue.view.jagged import is_jagged
from transferqueue.view.lazy_values import take_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.view.devices import Place
    from transferqueue.view.lazy_samples import Samples
    from transferqueue.view.rows import RowIndex

_EDITED = -1
"""The version of a value whose edit was seen already; torch counts from 0."""


class Source(Protocol):
    """Where the value of a column comes from while it is not here."""

    @property
    def num_rows(self) -> int: ...

    @property
    def is_stored(self) -> bool:
        """Whether every row of it is with the service."""
        ...

    def same_as(self, other: Source) -> bool:
        """Whether both are the same stored cells."""
        ...

    def take(self, memo: RowMemo) -> Source:
        """The source of other rows. Moves no bytes."""
        ...

    def needs(self) -> Sequence[LazyColumn]:
        """The columns whose values ``build`` puts together; none when it must be fetched."""
        ...

    def build(self) -> Any:
        """The value, from those of ``needs``."""
        ...

    def release(self) -> None:
        """Let go of what only ``build`` needed. Called when all columns of a fetch are built."""
        ...


class LazyColumn:
    """A column, shared by the batches that share it: a selection or a union with it.

    What one of those fetches or edits in place, all of them see. Other rows are another column; a
    value that was here by then is sliced or copied as an eager batch does, and one that was not
    has no memory to share.
    """

    __slots__ = ("_version", "device", "group", "source", "value")

    def __init__(
        self,
        source: Source | None,
        value: Any = None,
        *,
        device: Place | None = None,
        version: int | None = None,
    ) -> None:
        self.source = source
        """``None``: it is nowhere but here."""
        self.value = value
        self.device = device
        """Where a tensor that is fetched lands; ``None``: where those of its client do."""
        self.group: Group | None = None
        """The columns that were declared together with it and come when it does."""
        self._version = version
        if version is None and value is not None:
            self._version = _version_of(value)

    @property
    def is_here(self) -> bool:
        return self.value is not None or self.source is None

    @property
    def is_local(self) -> bool:
        """Whether some row of it is not with the service."""
        return self.source is None or not self.source.is_stored

    @property
    def is_edited(self) -> bool:
        """Whether a fetched tensor has been edited in place since, as far as torch counts: not
        through ``numpy()`` or ``data``, and not in inference mode. Arrays do not count."""
        return self.value is not None and self._version != _version_of(self.value)

    def is_known_to_equal(self, other: LazyColumn) -> bool:
        """Whether both hold the same, as far as it shows without a fetch or a look at cells."""
        if self is other or (self.value is not None and self.value is other.value):
            return True
        if (self.is_here and other.is_here) or self.is_edited or other.is_edited:
            return False
        source = self.source
        return source is not None and other.source is not None and source.same_as(other.source)

    @property
    def num_rows(self) -> int:
        if self.value is not None:
            return _num_rows(self.value)
        return 0 if self.source is None else self.source.num_rows

    def settle(self, value: Any) -> None:
        """Take the value that was fetched, unless another thread was faster."""
        if self.value is None:
            if isinstance(self.device, torch.device) and isinstance(value, torch.Tensor):
                value = value.to(self.device)  # fetched to there, where that could be
            self._version, self.value = _version_of(value), value
            self.group = None

    def mark_edited(self) -> None:
        """The value is not what is stored, though nothing in it tells."""
        self._version = _EDITED

    def forget(self) -> None:
        """Let go of a fetched value. It comes again at the next touch."""
        if self.source is not None:
            self.value = None

    def become_stored(self, source: Source) -> None:
        """What was here is now there as well."""
        self.source = source
        self._version = _version_of(self.value)

    def on(self, device: Place, regroup: Regroup) -> LazyColumn:
        """The same column on a device."""
        value = self.value
        if value is not None and isinstance(device, torch.device):
            value = value.to(device)
        moved = LazyColumn(self.source, value, device=device, version=self._version_for_copy())
        regroup.join(self, moved)
        return moved

    def apart(self, regroup: Regroup) -> LazyColumn:
        """The same column, to come with those of a new group, where it is to come with others."""
        if self.group is None or self.value is not None:
            return self
        column = LazyColumn(self.source, device=self.device)
        regroup.join(self, column)
        return column

    def with_source(self, source: Source | None, value: Any) -> LazyColumn:
        """A column that is this one's in other rows: ``value`` is its value there, if it is here,
        and edited if this one is."""
        if value is None:
            return LazyColumn(source, device=self.device)
        return LazyColumn(source, value, device=self.device, version=self._version_for_copy())

    def _version_for_copy(self) -> int | None:
        """The version that a copy or slice of the value starts from: an edited one stays so."""
        return _EDITED if self.is_edited else None


class Group:
    """Columns that were declared together: the first touch of one fetches all of them."""

    __slots__ = ("columns",)

    def __init__(self) -> None:
        self.columns: list[LazyColumn] = []

    def add(self, column: LazyColumn) -> None:
        self.columns.append(column)
        column.group = self


class Regroup:
    """The groups of the columns that one operation makes of grouped ones."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[Group, Group] = {}

    def join(self, old: LazyColumn, new: LazyColumn) -> None:
        if old.group is not None and new.value is None:
            self._groups.setdefault(old.group, Group()).add(new)


class RowMemo:
    """Which rows one operation takes, and what it made of each object that columns share.

    It holds the objects, not their ids: the columns of an ordinary TensorDict are made when they
    are asked for, and the id of one that is gone soon belongs to another.
    """

    __slots__ = ("_made", "_regroup", "_samples", "_shown", "_values", "rows")

    def __init__(self, rows: slice | RowIndex) -> None:
        self.rows = rows
        self._regroup = Regroup()
        self._samples: dict[Samples, Samples] = {}
        self._made: dict[LazyColumn, LazyColumn] = {}
        self._shown: set[LazyColumn] = set()
        self._values: dict[LazyColumn, list[Any]] = {}

    def give(self, column: LazyColumn, value: Any) -> None:
        """The rows of a value that is here, taken already: once for each time it is shown."""
        self._values.setdefault(column, []).append(value)

    def column(self, column: LazyColumn) -> LazyColumn:
        """The column of the rows, for a batch to show. A batch that shows one column under two
        names gets two, as an eager one gets two copies."""
        made = self._make(column) if column in self._shown else self.part(column)
        self._shown.add(column)
        return made

    def part(self, column: LazyColumn) -> LazyColumn:
        """The column of the rows, for others to be computed from: the one that is shown, if it
        is."""
        made = self._made.get(column)
        if made is None:
            made = self._made[column] = self._make(column)
        return made

    def _make(self, column: LazyColumn) -> LazyColumn:
        value = column.value
        if value is not None:
            given = self._values.get(column)
            value = given.pop() if given else take_value(value, self.rows)
        source = None if column.source is None else column.source.take(self)
        made = column.with_source(source, value)
        if column.group is not None:
            self._regroup.join(column, made)
        return made

    def samples(self, samples: Samples) -> Samples:
        made = self._samples.get(samples)
        if made is None:
            made = self._samples[samples] = samples.take(self.rows)
        return made

    @property
    def num_rows(self) -> int:
        """Rows taken. A slice has plain bounds within the batch."""
        rows = self.rows
        if isinstance(rows, slice):
            return len(range(rows.start, rows.stop, rows.step or 1))
        return len(rows)


def _num_rows(value: Any) -> int:
    return int(value.shape[0])


def _version_of(value: Any) -> int | None:
    """torch's count of in-place edits; ``None`` where nobody counts."""
    if not isinstance(value, torch.Tensor):
        return None
    counted = value.values() if is_jagged(value) and value.layout is torch.jagged else value
    return None if counted.is_inference() else counted._version
