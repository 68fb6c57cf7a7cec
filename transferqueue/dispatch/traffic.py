"""Bytes that dispatched methods moved, by (role, method, field), and what was moved in vain."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from transferqueue.byte_text import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Key = tuple[str, str, str]
"""Role, method, field."""


@dataclass(slots=True, kw_only=True)
class FieldCounts:
    """Totals of one field in one method."""

    read_bytes: int = 0
    written_bytes: int = 0
    untouched_bytes: int = 0
    """Of ``read_bytes``: of calls that fetched the field and never looked at it, or, of a
    batch that was shipped whole, of fields that the method does not declare."""
    undeclared_bytes: int = 0
    """Of ``read_bytes``: fetched by a request of its own, because the method does not declare the
    field."""
    calls: int = 0

    def add(self, other: FieldCounts) -> None:
        # One by one: by `dataclasses.fields` it was every twentieth frame of a call on a rank.
        self.read_bytes += other.read_bytes
        self.written_bytes += other.written_bytes
        self.untouched_bytes += other.untouched_bytes
        self.undeclared_bytes += other.undeclared_bytes
        self.calls += other.calls


class Traffic:
    """Counters of one worker. Threads may add at once."""

    def __init__(self) -> None:
        self._told: defaultdict[Key, FieldCounts] = defaultdict(FieldCounts)
        self._untold: defaultdict[Key, FieldCounts] = defaultdict(FieldCounts)
        self._again: list[dict[str, Any]] = []
        """Of what counts as told, what nobody has heard."""
        self._not_before_s = 0.0
        self._lock = threading.Lock()

    def add(self, role: str, method: str, by_field: Mapping[str, FieldCounts]) -> None:
        """One call's."""
        with self._lock:
            for field, counts in by_field.items():
                self._untold[role, method, field].add(counts)

    def take_untold(
        self, now_s: float, *, again_after_s: float, at_once: bool = False
    ) -> list[dict[str, Any]]:
        """What was counted since this was asked the last time, to be told to the service. Nothing
        until ``again_after_s`` have passed since then, but ``at_once``."""
        with self._lock:
            if now_s < self._not_before_s and not at_once:
                return []
            self._not_before_s = now_s + again_after_s
            untold, self._untold = self._untold, defaultdict(FieldCounts)
            _add_all(self._told, untold)
            for row in self._again:
                untold[_key(row)].add(_counts_of(row))
            self._again = []
            return _plain(untold)

    def not_told(self, rows: Iterable[Mapping[str, Any]], not_before_s: float) -> None:
        """Nobody has heard of these: they go along the next time, not before then."""
        with self._lock:
            self._not_before_s = not_before_s
            self._again += map(dict, rows)

    def rows(self) -> list[dict[str, Any]]:
        """Plain values, for `TrafficReport.of`."""
        with self._lock:
            counts: defaultdict[Key, FieldCounts] = defaultdict(FieldCounts)
            _add_all(counts, self._told)
            _add_all(counts, self._untold)
            return _plain(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRow:
    """One field of one method, over all ranks and calls."""

    role: str
    method: str
    field: str
    counts: FieldCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficReport:
    """Who moved what. ``print`` it for a table."""

    rows: tuple[TrafficRow, ...]
    """Sorted by role, method and field."""
    is_fat: bool = False
    """Whether batches were shipped whole: then what a rank got counts as read, and what it gave
    back as written."""
    controller_bytes: int = 0
    """Bytes of the handles and batches that the controller sent to workers and got from them."""

    @classmethod
    def of(
        cls,
        workers: Iterable[Iterable[Mapping[str, Any]]],
        *,
        controller_bytes: int = 0,
        is_fat: bool = False,
    ) -> TrafficReport:
        """The sum over workers of what each one's `Traffic.rows` gave."""
        sums: defaultdict[Key, FieldCounts] = defaultdict(FieldCounts)
        for rows in workers:
            for row in rows:
                sums[_key(row)].add(_counts_of(row))
        return cls(
            rows=tuple(
                TrafficRow(role=role, method=method, field=field, counts=counts)
                for (role, method, field), counts in sorted(sums.items())
            ),
            controller_bytes=controller_bytes,
            is_fat=is_fat,
        )

    def of_method(self, method: str, role: str | None = None) -> dict[str, FieldCounts]:
        """Field -> counts of one method."""
        return {
            row.field: row.counts
            for row in self.rows
            if row.method == method and role in (None, row.role)
        }

    @property
    def read_bytes(self) -> int:
        return sum(row.counts.read_bytes for row in self.rows)

    @property
    def written_bytes(self) -> int:
        return sum(row.counts.written_bytes for row in self.rows)

    @property
    def over_fetched(self) -> tuple[TrafficRow, ...]:
        """Fields that were fetched and not looked at, the most bytes first. Take them out of the
        method's ``reads``."""
        idle = [row for row in self.rows if row.counts.untouched_bytes]
        return tuple(sorted(idle, key=lambda row: -row.counts.untouched_bytes))

    @property
    def undeclared(self) -> tuple[TrafficRow, ...]:
        """Fields fetched one by one, because no ``reads`` names them; the most bytes first."""
        late = [row for row in self.rows if row.counts.undeclared_bytes]
        return tuple(sorted(late, key=lambda row: -row.counts.undeclared_bytes))

    def total(self, method: str, role: str | None = None) -> FieldCounts:
        """Of all fields of one method; ``calls``: of the field with the most."""
        sums = FieldCounts()
        for counts in self.of_method(method, role).values():
            sums.add(counts)
            sums.calls = max(sums.calls - counts.calls, counts.calls)
        return sums

    def __str__(self) -> str:
        """A line a field, below one with the sum of its method."""
        got, unused, given = (
            ("shipped", "undeclared", "returned") if self.is_fat else ("read", "unused", "written")
        )
        lines = [f"{'role.method, field':<40}{got:>14}{unused:>14}{given:>14}"]
        for role, method in dict.fromkeys((row.role, row.method) for row in self.rows):
            lines.append(_line(f"{role}.{method}", self.total(method, role)))
            for field, counts in self.of_method(method, role).items():
                late = "  undeclared" if counts.undeclared_bytes else ""
                lines.append(_line(f"  {field}", counts) + late)
        sums = sum(row.counts.untouched_bytes for row in self.rows)
        in_vain = "to methods that do not declare them" if self.is_fat else "never looked at"
        lines.append(
            f"{got} {size(self.read_bytes)}, {size(sums)} of it {in_vain}; {given} "
            f"{size(self.written_bytes)}; through the controller {size(self.controller_bytes)}"
        )
        return "\n".join(lines)


def _line(what: str, counts: FieldCounts) -> str:
    numbers = (counts.read_bytes, counts.untouched_bytes, counts.written_bytes)
    return f"{what:<40}" + "".join(f"{size(number) if number else '-':>14}" for number in numbers)


def _add_all(counts: Mapping[Key, FieldCounts], more: Mapping[Key, FieldCounts]) -> None:
    for key, of in more.items():
        counts[key].add(of)


def _plain(counts: Mapping[Key, FieldCounts]) -> list[dict[str, Any]]:
    return [
        {"role": role, "method": method, "field": field, **asdict(of)}
        for (role, method, field), of in counts.items()
    ]


def _key(row: Mapping[str, Any]) -> Key:
    return row["role"], row["method"], row["field"]


def _counts_of(row: Mapping[str, Any]) -> FieldCounts:
    return FieldCounts(**{one.name: row[one.name] for one in _COUNTS})


_COUNTS = fields(FieldCounts)
