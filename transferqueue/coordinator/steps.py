"""A number a row that rows which came together share: kept a step a commit, not a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.coordinator.row_set import Rows


class Steps:
    """Rows are in order of arrival; those from ``first_rows[i]`` on have ``values[i]``."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._first_rows = np.zeros(16, dtype=np.int64)
        self._values: NDArray[Any] = np.zeros(16, dtype=dtype)
        self._size = 0

    @property
    def first_rows(self) -> Rows:
        """The first row of each step, ascending."""
        return self._first_rows[: self._size]

    @property
    def values(self) -> NDArray[Any]:
        """The number of each step."""
        return self._values[: self._size]

    def add(self, first_row: int, value: float) -> None:
        """Rows from this one on have this number."""
        if self._size and self._values[self._size - 1] == value:
            return
        if self._size == len(self._values):
            self._first_rows = np.concatenate((self._first_rows, np.zeros_like(self._first_rows)))
            self._values = np.concatenate((self._values, np.zeros_like(self._values)))
        self._first_rows[self._size], self._values[self._size] = first_row, value
        self._size += 1

    def of(self, rows: Rows) -> NDArray[Any]:
        """The number of each of these rows."""
        at = np.searchsorted(self.first_rows, rows, side="right") - 1
        return np.asarray(self.values[at])

    def shift(self, delta: float) -> None:
        """Every number is larger by so much."""
        self._values[: self._size] += delta

    def keep(self, kept: Rows) -> None:
        """Rows were renumbered: the row ``kept[i]`` is now ``i``."""
        first = np.searchsorted(kept, self.first_rows)
        last = np.append(first[1:], len(kept)) > first  # else no row of it is left
        self._first_rows, self._values = first[last], self.values[last]
        self._size = len(self._values)
        if not self._size:
            self._first_rows, self._values = (
                np.zeros(16, np.int64),
                np.zeros(16, self._values.dtype),
            )
