"""Cutting and joining a batch: our view, our eager batch, and verl's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.report import at_least, at_most
from tests.benchmarks.stage import Tally, labels_of

if TYPE_CHECKING:
    from tests.benchmarks.report import Figure, Row
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.systems import RunningSystem

OPTIONS = {"rows": 4096, "fields": 20, "width": 64, "parts": 32, "times": 5}
LIMITS_MS = {"construction": 0.2, "chunk(32)": 5, "concat of 32": 5, "union": 5, "reorder": 5}
EAGER_SLACK = 0.95
"""An eager batch is to be no slower than verl's; a twentieth is noise."""


class Batches:
    """The eager ones run in verl's own environment, on its tensordict."""

    name = "batches"
    title = "batches of 4,096 rows × 20 fields (17 of 64 float32, 3 of objects)"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        names: dict[str, None] = {}
        with stage.systems(s.VIEW, s.EAGER, s.VERL, readers=0) as systems:

            def step(running: RunningSystem, number: int) -> None:
                answer = running.writer.call("drive", name="batch_operations", **OPTIONS)
                for name, seconds in answer.items():
                    names[name] = None
                    if number > 0:
                        tally.add(name, running.label, *seconds)

            stage.in_rounds(systems, step)
            tally.note_failures(systems)
        labels = labels_of(systems)
        rows = [tally.row(self.name, name, labels) for name in names]
        return [replace(row, figures=_figures(row)) for row in rows]


def _figures(row: Row) -> tuple[Figure, ...]:
    figures = []
    limit_ms, seconds = LIMITS_MS.get(row.what), row.number("ours")
    if limit_ms is not None:
        figures.append(at_most(None if seconds is None else seconds * 1e3, limit_ms, "ms"))
    if row.what != "construction":
        text = "× verl, eager"
        figures.append(at_least(row, EAGER_SLACK, s.VERL.label, of=s.EAGER.label, text=text))
    return tuple(figures)
