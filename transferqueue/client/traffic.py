"""How many bytes each field moved, by direction."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class FieldTraffic:
    """Totals of one field."""

    put_bytes: int = 0
    got_bytes: int = 0
    put_rows: int = 0
    got_rows: int = 0
    brought_bytes: int = 0
    """Of those that were put: of tensors inside objects that were on a device."""


@dataclass(slots=True)
class Traffic:
    """Counters of one client, by field. Threads may add at once."""

    by_field: dict[str, FieldTraffic] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count_put(self, name: str, num_rows: int, num_bytes: int) -> None:
        with self._lock:
            totals = self._totals(name)
            totals.put_bytes += num_bytes
            totals.put_rows += num_rows

    def count_brought(self, name: str, num_bytes: int) -> None:
        with self._lock:
            self._totals(name).brought_bytes += num_bytes

    def count_get(self, name: str, num_rows: int, num_bytes: int) -> None:
        with self._lock:
            totals = self._totals(name)
            totals.got_bytes += num_bytes
            totals.got_rows += num_rows

    def _totals(self, name: str) -> FieldTraffic:
        totals = self.by_field.get(name)
        if totals is None:
            totals = self.by_field[name] = FieldTraffic()
        return totals

    def report(self) -> dict[str, dict[str, int]]:
        """Field -> counters, plain values."""
        with self._lock:
            return {
                name: {
                    "put_bytes": totals.put_bytes,
                    "got_bytes": totals.got_bytes,
                    "put_rows": totals.put_rows,
                    "got_rows": totals.got_rows,
                    "brought_bytes": totals.brought_bytes,
                }
                for name, totals in sorted(self.by_field.items())
            }
