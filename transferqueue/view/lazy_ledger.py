"""What a view fetched and what of it anybody looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from transferqueue.view.jagged import is_jagged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.view.lazy_sources import Stored


@dataclass(slots=True, kw_only=True)
class FieldFetches:
    """Totals of one field."""

    rows: int = 0
    num_bytes: int = 0
    """Of tensors and arrays as they lie in memory. Objects count no bytes here: what they took on
    the wire is in `Client.stats`."""
    is_declared: bool = False
    is_touched: bool = False


class FetchLedger:
    """Counters by stored field, shared by a view and all views that were made from it."""

    def __init__(self) -> None:
        self.num_requests = 0
        self._fields: dict[str, FieldFetches] = {}

    @property
    def fields(self) -> Mapping[str, FieldFetches]:
        """By stored field, what has come."""
        return self._fields

    def count(self, source: Stored, value: Any, *, is_declared: bool) -> None:
        """A column has come."""
        fetches = self._fields.setdefault(source.field, FieldFetches())
        fetches.rows += source.num_rows
        fetches.num_bytes += _num_bytes(value)
        fetches.is_declared |= is_declared

    def touch(self, field: str) -> None:
        """Somebody looked at a column that has come."""
        fetches = self._fields.get(field)
        if fetches is not None:
            fetches.is_touched = True

    def report(self) -> dict[str, Any]:
        """See `LazyDataProto.report`."""
        fields = dict(sorted(self._fields.items()))
        untouched = {name: one.num_bytes for name, one in fields.items() if not one.is_touched}
        return {
            "requests": self.num_requests,
            "fetched": {
                name: {"rows": one.rows, "bytes": one.num_bytes} for name, one in fields.items()
            },
            "undeclared": [name for name, one in fields.items() if not one.is_declared],
            "untouched": untouched,
            "fetched_bytes": sum([one.num_bytes for one in fields.values()]),
            "untouched_bytes": sum(untouched.values()),
        }


def _num_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return 0 if value.dtype == object else value.nbytes
    if isinstance(value, torch.Tensor):
        cells = value.values() if is_jagged(value) else value
        return cells.numel() * cells.element_size()
    return 0
