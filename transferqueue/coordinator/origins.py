"""Which line of whose code put which rows, and the bytes they have.

Bytes are of the rows that a line created, in whichever put they came. A commit says how many bytes
a field has over all of its rows, so a row of a site counts with the mean of its field there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.steps import Steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.coordinator.row_set import Rows

MAX_SITES = 1024
"""Of one partition; rows put at any later one count as put at "others"."""
OTHERS = "others"


class Origins:
    """Sites are kept once each, by number."""

    def __init__(self) -> None:
        self._codes = Steps(np.int64)
        self._sites: dict[str, int] = {}
        self._held: dict[str, FieldHeld] = {}

    def add(self, first_row: int, site: str) -> None:
        """Rows from this one on were put there."""
        code = self._sites.get(site)
        if code is None:
            site = site if len(self._sites) < MAX_SITES else OTHERS
            code = self._sites.setdefault(site, len(self._sites))
        self._codes.add(first_row, code)

    def store(self, field: str, rows: Rows, num_bytes: int) -> None:
        """These rows have the field now, with so many bytes together."""
        if len(rows):
            self._held.setdefault(field, FieldHeld()).add(self._codes.of(rows), num_bytes)

    def remove(self, field: str, rows: Rows) -> int:
        """These rows had the field, and it is gone. Returns the bytes that were theirs."""
        held = self._held.get(field)
        return held.remove(self._codes.of(rows)) if held is not None and len(rows) else 0

    def sites(self, rows: Rows) -> list[str]:
        """Where each of a few rows was put; "" where that is not known."""
        names = list(self._sites)
        return [names[code] for code in self._codes.of(rows).tolist()]

    def report(self, rows: Rows, ages_s: NDArray[np.float64]) -> dict[str, Any]:
        """By site its rows, the age of the oldest, and bytes, of rows that are being freed too."""
        num_sites = MAX_SITES + 1
        num_bytes = sum((held.num_bytes for held in self._held.values()), np.zeros(num_sites, int))
        counts, oldest_s = np.zeros(num_sites, dtype=np.int64), np.zeros(num_sites)
        if len(rows):
            codes = self._codes.of(rows)
            counts = np.bincount(codes, minlength=num_sites)
            np.maximum.at(oldest_s, codes, ages_s)
        return {
            site or "unknown": {
                "rows": int(counts[code]),
                "bytes": int(num_bytes[code]),
                "oldest_s": float(oldest_s[code]),
            }
            for site, code in self._sites.items()
            if counts[code] or num_bytes[code]
        }

    def keep(self, kept: Rows) -> None:
        """Rows were renumbered: the row ``kept[i]`` is now ``i``."""
        self._codes.keep(kept)


class FieldHeld:
    """Cells and bytes of one field by site."""

    def __init__(self) -> None:
        self.num_cells = np.zeros(MAX_SITES + 1, dtype=np.int64)
        self.num_bytes = np.zeros(MAX_SITES + 1, dtype=np.int64)

    def add(self, codes: NDArray[np.int64], num_bytes: int) -> None:
        """Cells of these sites have come, with so many bytes together; each counts alike."""
        sites, cells = _counted(codes)
        shares = _shares(num_bytes, cells, len(codes))
        shares[-1] += num_bytes - int(shares.sum())
        self.num_cells[sites] += cells
        self.num_bytes[sites] += shares

    def remove(self, codes: NDArray[np.int64]) -> int:
        """Cells of these sites have gone, each with its share. Returns their bytes."""
        sites, cells = _counted(codes)
        held, had = self.num_bytes[sites], self.num_cells[sites]
        gone = np.where(cells >= had, held, _shares(held, cells, np.maximum(had, 1)))
        self.num_cells[sites] = np.maximum(had - cells, 0)
        self.num_bytes[sites] -= gone
        return int(gone.sum())


def _counted(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each site once, and how often it is there."""
    if bool((codes == codes[0]).all()):  # of one put, most of the time
        return codes[:1], np.array([len(codes)])
    return np.unique(codes, return_counts=True)


def _shares(num_bytes: Any, cells: NDArray[np.int64], of_cells: Any) -> NDArray[np.int64]:
    """Of bytes that so many cells share alike what some of them have; no product overflows."""
    whole, rest = np.divmod(num_bytes, of_cells)
    return np.asarray(whole * cells + rest * cells // of_cells)
