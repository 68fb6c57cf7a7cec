"""What was measured, as values: samples, rows, and the figures to reach."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Unit(StrEnum):
    """What a row's numbers are. ``RATE`` is better when higher, all others when lower."""

    SECONDS = "s"
    BYTES = "bytes"
    RATE = "1/s"
    RATIO = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Measurements of one thing by one system, in the order they were made."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        return min(self.values)

    def percentile(self, percent: float) -> float:
        """The smallest value that at least ``percent`` of them do not exceed."""
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Why there is no number."""

    reason: str


Cell = Samples | Missing


class Sense(StrEnum):
    AT_LEAST = "≥"
    AT_MOST = "≤"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure to reach, and what was reached."""

    text: str
    """What ``got`` is, e.g. ``"x Ascend TQ"``; read after the number."""
    sense: Sense
    target: float
    got: float | None
    """``None``: what it needs was not measured."""

    @property
    def is_reached(self) -> bool | None:
        if self.got is None:
            return None
        return self.got >= self.target if self.sense is Sense.AT_LEAST else self.got <= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload's one number, of every system. ``ours`` is the label of our column in it."""

    workload: str
    what: str
    unit: Unit
    cells: Mapping[str, Cell]
    """By system label, ours first."""
    figures: Sequence[Figure] = ()
    percentile: float | None = None
    """Shown and compared instead of the median."""

    def number(self, label: str) -> float | None:
        """What the row shows for a system."""
        cell = self.cells.get(label)
        if not isinstance(cell, Samples) or not cell.values:
            return None
        return cell.median if self.percentile is None else cell.percentile(self.percentile)

    def speedup(self, over: str, of: str = "ours") -> float | None:
        """How many times better ``of`` is than ``over``; above 1 is better.

        Of medians, the median of the ratios of each round: a virtual machine's memory is at times
        twice as slow for minutes, and what is compared in one round is a few seconds apart.
        """
        ours, theirs = self.number(of), self.number(over)
        if ours is None or theirs is None or not ours or not theirs:
            return None
        ratios = self._ratios(of, over) or [ours / theirs]
        ratio = statistics.median(ratios)
        return ratio if self.unit is Unit.RATE else 1 / ratio

    def _ratios(self, of: str, over: str) -> list[float]:
        """By round; empty when the samples are not of the same ones."""
        ours, theirs = self.cells[of], self.cells[over]
        if self.percentile is not None or not (
            isinstance(ours, Samples) and isinstance(theirs, Samples)
        ):
            return []
        if len(ours.values) != len(theirs.values) or not all(theirs.values):
            return []
        return [mine / other for mine, other in zip(ours.values, theirs.values, strict=True)]

    def to_plain(self) -> dict[str, Any]:
        """For JSON: every sample, not only the medians."""
        return {
            "workload": self.workload,
            "what": self.what,
            "unit": self.unit.value,
            "percentile": self.percentile,
            "systems": {
                label: {
                    "number": self.number(label),
                    **(
                        {"samples": list(cell.values)}
                        if isinstance(cell, Samples)
                        else {"not_run": cell.reason}
                    ),
                }
                for label, cell in self.cells.items()
            },
            "figures": [
                {
                    "text": figure.text,
                    "sense": figure.sense.value,
                    "target": figure.target,
                    "got": figure.got,
                    "is_reached": figure.is_reached,
                }
                for figure in self.figures
            ],
        }


def at_least(row: Row, target: float, over: str, *, of: str = "ours", text: str = "") -> Figure:
    """``of`` is to be ``target`` times as good as ``over`` in the row."""
    return Figure(
        text=text or f"× {over}",
        sense=Sense.AT_LEAST,
        target=target,
        got=row.speedup(over, of),
    )


def at_most(got: float | None, target: float, text: str) -> Figure:
    return Figure(text=text, sense=Sense.AT_MOST, target=target, got=got)


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything of one run."""

    machine: Mapping[str, Any]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        return {
            "machine": dict(self.machine),
            "rows": [row.to_plain() for row in self.rows],
            "notes": self.notes,
        }
