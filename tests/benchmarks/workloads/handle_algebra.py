"""Cutting and joining what names a batch, which a controller does all day."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.report import Unit, at_least, at_most
from tests.benchmarks.stage import Tally, labels_of

if TYPE_CHECKING:
    from tests.benchmarks.report import Row
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.systems import RunningSystem

STEPS = ("chunk", "concat", "union", "reorder")
OPTIONS = {"rows": 4096, "fields": 20, "parts": 32, "times": 3}


class HandleAlgebra:
    """Ours: `BatchHandle`; the peer's: its ``BatchMeta``."""

    name = "handle"
    title = "handles of 4,096 rows × 20 fields: chunk(32), concat of the chunks, union, reorder"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        with stage.systems(s.OURS, s.ASCEND, readers=0) as systems:

            def step(running: RunningSystem, number: int) -> None:
                answer = running.writer.call("drive", name="handle_algebra", **OPTIONS)
                if number == 0:
                    return
                for name in STEPS:
                    tally.add(name, running.label, *answer[name])
                for name in ("bytes", "bytes of random rows"):
                    if name in answer:
                        tally.add(name, running.label, answer[name])

            stage.in_rounds(systems, step, rounds=min(3, stage.rounds))
            tally.note_failures(systems)
        labels = labels_of(systems)
        rows = [tally.row(self.name, name, labels) for name in STEPS]
        rows = [
            replace(
                row,
                figures=(
                    at_most(_milliseconds(row), 5, "ms"),
                    *((at_least(row, 100, "Ascend TQ"),) if row.what == "chunk" else ()),
                ),
            )
            for row in rows
        ]
        for key in ("bytes", "bytes of random rows"):
            what = "1,024-row handle on the wire" + (", random rows" if key != "bytes" else "")
            row = tally.row(self.name, what, labels, key=key, unit=Unit.BYTES)
            number = row.number("ours")
            kib = None if number is None else number / 1024
            rows.append(replace(row, figures=(at_most(kib, 16, "KiB"),)))
        return rows


def _milliseconds(row: Row) -> float | None:
    seconds = row.number("ours")
    return None if seconds is None else seconds * 1e3
