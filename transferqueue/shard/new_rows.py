"""The samples that one put has made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """Their uids follow one another."""

    partition: str
    first_uid: int
    num_rows: int

    @property
    def uids(self) -> np.ndarray:
        """int64[rows]"""
        return np.arange(self.first_uid, self.first_uid + self.num_rows, dtype=np.int64)
