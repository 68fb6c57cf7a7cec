"""What the methods of workers read and wrote, as their processes tell of it: an operator sees here
which stage moves how much, and what it fetches in vain. Counters only, nothing depends on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from transferqueue.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COUNTERS: Final = ("read_bytes", "written_bytes", "untouched_bytes", "undeclared_bytes", "calls")
"""The fields of `dispatch.FieldCounts`."""

MAX_ROWS = 2048
"""Of the table. Roles, methods and fields are a job's to name; more than this are no stages."""

MAX_NAME_CHARS = 256


class Stages:
    """Totals by role, method and field. They only rise, and begin again with the coordinator."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str, str], list[int]] = {}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Counts that have come on top. InvalidInput, and no change, for what is none."""
        read = [(_key(row), [_count(row, name) for name in COUNTERS]) for row in rows]
        for key, counts in read:
            totals = self._totals.get(key)
            if totals is not None:
                totals[:] = [old + new for old, new in zip(totals, counts, strict=True)]
            elif len(self._totals) < MAX_ROWS:
                self._totals[key] = counts

    def rows(self) -> list[dict[str, Any]]:
        """Plain values, as `dispatch.TrafficReport.of` takes them."""
        return [
            {"role": role, "method": method, "field": field}
            | dict(zip(COUNTERS, totals, strict=True))
            for (role, method, field), totals in self._totals.items()
        ]


def _key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    role, method, field = (row[name] for name in ("role", "method", "field"))
    for name in (role, method, field):
        if type(name) is not str or len(name) > MAX_NAME_CHARS:
            raise InvalidInput(f"role, method and field are short names, got {name!r:.40}")
    return role, method, field


def _count(row: Mapping[str, Any], name: str) -> int:
    value = row[name]
    if type(value) is not int or value < 0:
        raise InvalidInput(f"{name} must be an int of at least 0, got {value!r:.40}")
    return value
