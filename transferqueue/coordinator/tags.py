"""The tag columns of one partition, by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.tag_values import DTYPES, TagKind, TagValues
from transferqueue.errors import TagTypeMismatch, UnknownTag, near_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from transferqueue.coordinator.row_set import Rows


class TagColumn:
    """One tag: a typed value a row, and whether the row has it. Strings are kept once each."""

    def __init__(self, kind: TagKind, capacity: int) -> None:
        self.kind = kind
        self._present = np.zeros(capacity, dtype=np.bool_)
        dtype = np.dtype(np.int32) if kind is TagKind.STR else DTYPES[kind]
        self._data: NDArray[Any] = np.zeros(capacity, dtype=dtype)
        self._strings: list[str] = []
        self._code_of: dict[str, int] = {}

    @property
    def num_bytes(self) -> int:
        return self._present.nbytes + self._data.nbytes

    def reserve(self, capacity: int) -> None:
        extra = capacity - len(self._data)
        self._present = np.concatenate((self._present, np.zeros(extra, dtype=np.bool_)))
        self._data = np.concatenate((self._data, np.zeros(extra, dtype=self._data.dtype)))

    def keep(self, kept: Rows, capacity: int) -> None:
        """Rows were renumbered: the row ``kept[i]`` is now ``i``."""
        present, data = self._present[kept], self._data[kept]
        if self.kind is TagKind.STR:
            codes, data = np.unique(data, return_inverse=True)
            # Strings of freed rows go here: a group's name is seldom seen again.
            self._strings = [self._strings[code] for code in codes.tolist()]
            self._code_of = {string: code for code, string in enumerate(self._strings)}
        self._present = np.zeros(capacity, dtype=np.bool_)
        self._present[: len(kept)] = present
        self._data = np.zeros(capacity, dtype=self._data.dtype)
        self._data[: len(kept)] = data

    def accepts(self, kind: TagKind) -> bool:
        """Whether values of this kind can go in; an int column turns into a float one."""
        numbers = (TagKind.INT, TagKind.FLOAT)
        return kind is self.kind or (kind in numbers and self.kind in numbers)

    def set(self, rows: Rows, values: TagValues) -> None:
        """Give rows their values; rows that the values say are absent keep what they have."""
        if values.absent is not None:
            there = np.flatnonzero(~values.absent)
            rows, values = rows[there], values.take(there)
        if values.kind is TagKind.FLOAT and self.kind is TagKind.INT:
            self.kind, self._data = TagKind.FLOAT, self._data.astype(np.float64)
        data = self._codes(values.values) if self.kind is TagKind.STR else values.values
        self._data[rows] = data
        self._present[rows] = True

    def _codes(self, strings: NDArray[Any]) -> NDArray[np.int32]:
        # Sorting 1,000,000 strings takes numpy 3.5 s, looking each up in a dict 0.1 s.
        listed = strings.tolist()
        for string in dict.fromkeys(listed):
            if string not in self._code_of:
                self._code_of[string] = len(self._strings)
                self._strings.append(string)
        return np.fromiter(map(self._code_of.__getitem__, listed), np.int32, len(listed))

    def present(self, rows: Rows | slice) -> NDArray[np.bool_]:
        """Which rows have the tag."""
        return self._present[rows]

    def raw(self, rows: Rows | slice) -> NDArray[Any]:
        """The values, or the codes of strings; anything where a row is absent."""
        return self._data[rows]

    def code(self, string: str) -> int:
        """The code of a string, -1 when no row has it."""
        return self._code_of.get(string, -1)

    def string(self, code: int) -> str:
        """Inverse of ``code``."""
        return self._strings[code] if self._strings else ""

    def get(self, rows: Rows) -> TagValues:
        """The values of some rows."""
        present, values = self._present[rows], self._data[rows]
        if self.kind is TagKind.STR:
            # The extra last entry is what rows without the tag show.
            table = np.array([*self._strings, ""], dtype=object)
            values = table[np.where(present, values, len(self._strings))]
        absent = None if bool(present.all()) else ~present
        return TagValues(kind=self.kind, values=values, absent=absent)


class TagTable:
    """Every tag of one partition. A column is made by its first value."""

    def __init__(self, where: str, capacity: int = 0) -> None:
        self._where = where
        self._capacity = capacity
        self.columns: dict[str, TagColumn] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of the columns, strings aside."""
        return sum(column.num_bytes for column in self.columns.values())

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def reserve(self, capacity: int) -> None:
        """Make room for row numbers below ``capacity``."""
        if capacity > self._capacity:
            self._capacity = capacity
            for column in self.columns.values():
                column.reserve(capacity)

    def keep(self, kept: Rows, capacity: int) -> None:
        """Rows were renumbered: the row ``kept[i]`` is now ``i``."""
        self._capacity = capacity
        for column in self.columns.values():
            column.keep(kept, capacity)

    def column(self, name: str) -> TagColumn:
        """The column of a tag; UnknownTag names near ones."""
        column = self.columns.get(name)
        if column is None:
            raise UnknownTag(name, near_names(name, self.columns), self._where)
        return column

    def check_values(self, tags: Mapping[str, TagValues]) -> None:
        """TagTypeMismatch if one of these could not be set."""
        for name, values in tags.items():
            column = self.columns.get(name)
            if column is not None and not column.accepts(values.kind):
                raise TagTypeMismatch(name, column.kind.value, values.kind.value)

    def set(self, name: str, rows: Rows, values: TagValues) -> None:
        """Give rows their values. ``check_values`` has passed."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = TagColumn(values.kind, self._capacity)
        column.set(rows, values)

    def get(self, rows: Rows, names: Iterable[str] | None = None) -> dict[str, TagValues]:
        """The tags of some rows; by default those that at least one of them has."""
        if names is not None:
            return {name: self.column(name).get(rows) for name in names}
        got = ((name, column.get(rows)) for name, column in self.columns.items())
        return {name: values for name, values in got if values.num_absent < max(len(rows), 1)}
