"""Which line of whose code put which rows. A step a commit, not a row, as `lifetimes.Arrivals`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.coordinator.row_set import Rows

MAX_SITES = 1024
"""Of one partition; rows put at any later one count as put at "others"."""
OTHERS = "others"


class Origins:
    """Sites are kept once each; neighbouring commits of one site share a step."""

    def __init__(self) -> None:
        self._first_rows: list[int] = []
        self._codes: list[int] = []
        self._sites: dict[str, int] = {}

    def add(self, first_row: int, site: str) -> None:
        """Rows from this one on were put there."""
        code = self._sites.get(site)
        if code is None:
            site = site if len(self._sites) < MAX_SITES else OTHERS
            code = self._sites.setdefault(site, len(self._sites))
        if not self._codes or self._codes[-1] != code:
            self._first_rows.append(first_row)
            self._codes.append(code)

    def sites(self, rows: Rows) -> list[str]:
        """Where each of a few rows was put; "" where that is not known."""
        names = list(self._sites)
        return [names[code] for code in self._codes_of(rows).tolist()]

    def _codes_of(self, rows: Rows) -> NDArray[np.int64]:
        if not len(rows):
            return np.zeros(0, dtype=np.int64)
        codes = np.asarray(self._codes, dtype=np.int64)
        return codes[np.searchsorted(self._first_rows, rows, side="right") - 1]

    def report(
        self,
        rows: Rows,
        ages_s: NDArray[np.float64],
        row_bytes: NDArray[np.float64] | None = None,
    ) -> dict[str, Any]:
        """Rows by site, and the age of the oldest of each; with ``row_bytes``, bytes too."""
        if not len(rows):
            return {}
        codes = self._codes_of(rows)
        counts = np.bincount(codes, minlength=len(self._sites))
        oldest_s = np.zeros(len(self._sites))
        np.maximum.at(oldest_s, codes, ages_s)
        found: dict[str, dict[str, Any]] = {
            site or "unknown": {"rows": int(counts[code]), "oldest_s": float(oldest_s[code])}
            for site, code in self._sites.items()
            if counts[code]
        }
        if row_bytes is not None:
            num_bytes = np.bincount(codes, weights=row_bytes, minlength=len(self._sites))
            for site, code in self._sites.items():
                if counts[code]:
                    found[site or "unknown"]["bytes"] = round(num_bytes[code])
        return found

    def keep(self, kept: Rows) -> None:
        """Rows were renumbered: the row ``kept[i]`` is now ``i``."""
        first = np.searchsorted(kept, self._first_rows)
        last = np.append(first[1:], len(kept)) > first  # else no row of it is left
        self._first_rows = first[last].tolist()
        self._codes = np.asarray(self._codes, dtype=np.int64)[last].tolist()
