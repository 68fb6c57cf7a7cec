"""What workers wrote down of what they did, and what must hold of the service after it.

A worker writes a line *before* it asks for something and a line *after* it was answered, each with
one ``write`` of its own, which a ``kill -9`` does not take back. So of every row it is known
whether it was put for certain, perhaps, or not; the same of clears and acks.

Two partitions. Rows of ``kept`` stay until a worker clears them. Rows of ``flow`` are claimed,
acked and go. Every row has a number of its own, and all of its other columns follow from that.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

KEPT, FLOW = "kept", "flow"


@dataclass(kw_only=True)
class Ledger:
    """The sum of all records. Sets of row numbers."""

    putting: dict[str, set[int]] = field(default_factory=lambda: {KEPT: set(), FLOW: set()})
    """Rows that somebody began to put, by partition."""
    put: dict[str, set[int]] = field(default_factory=lambda: {KEPT: set(), FLOW: set()})
    """Rows whose put was answered."""
    clearing: set[int] = field(default_factory=set)
    cleared: set[int] = field(default_factory=set)
    acking: set[int] = field(default_factory=set)
    acked: Counter[int] = field(default_factory=Counter)
    """How often an ack of the row was answered."""
    torn: list[str] = field(default_factory=list)
    """Reads that came back as something else than was put."""
    errors: Counter[str] = field(default_factory=Counter)
    """Calls that failed, by call and class."""
    calls: Counter[str] = field(default_factory=Counter)

    def take(self, entry: Mapping[str, Any]) -> None:
        """One line of a record."""
        did, rows = entry["did"], entry.get("rows", ())
        if did in ("putting", "put"):
            getattr(self, did)[entry["partition"]].update(rows)
        elif did in ("clearing", "cleared", "acking"):
            getattr(self, did).update(rows)
        elif did == "acked":
            self.acked.update(rows)
        elif did == "torn":
            self.torn.append(entry["what"])
        elif did == "failed":
            self.errors[f"{entry['call']}: {entry['error']}"] += 1
        else:
            assert did == "got", did
        self.calls[did] += 1


def read_records(paths: Iterable[Path]) -> Ledger:
    """A line that the kill of its writer cut off is left out: nothing had come of it."""
    ledger = Ledger()
    for path in paths:
        for line in path.read_bytes().split(b"\n")[:-1]:
            ledger.take(json.loads(line))
    return ledger


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was there when the last worker had ended."""

    kept: Counter[int]
    flow: Counter[int]
    """Rows that nobody had acked: claimed, one last time, until there were none."""


def broken_promises(ledger: Ledger, found: Found) -> list[str]:
    """Everything that should not be so, in words; empty when all is well."""
    kept_for_certain = ledger.put[KEPT] - ledger.clearing
    flow_for_certain = ledger.put[FLOW] - ledger.acking
    checks = {
        "reads were torn": ledger.torn,
        "acknowledged rows of 'kept' are lost": kept_for_certain - set(found.kept),
        "rows of 'kept' are there twice": _twice(found.kept),
        "cleared rows are back": ledger.cleared & set(found.kept),
        "rows of 'kept' that nobody put": set(found.kept) - ledger.putting[KEPT],
        "acknowledged rows of 'flow' were never handed out": flow_for_certain - set(found.flow),
        "rows of 'flow' are there twice": _twice(found.flow),
        "acked rows were handed out again": set(ledger.acked) & set(found.flow),
        "rows were acked twice": _twice(ledger.acked),
        "rows of 'flow' that nobody put": set(found.flow) - ledger.putting[FLOW],
    }
    return [f"{what}: {_some(wrong)}" for what, wrong in checks.items() if wrong]


def _twice(counts: Counter[int]) -> list[int]:
    return [row for row, count in counts.items() if count > 1]


def _some(wrong: Iterable[object]) -> str:
    listed = sorted(wrong, key=str)
    return f"{len(listed)}, e.g. {', '.join(map(str, listed[:5]))}"
