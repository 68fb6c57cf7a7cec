"""From nothing to the first batch stored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.report import at_most
from tests.benchmarks.stage import Tally, alive

if TYPE_CHECKING:
    from tests.benchmarks.report import Row
    from tests.benchmarks.stage import Stage

SYSTEMS = (s.OURS, s.ASCEND, s.REDIS)


class StartUp:
    """``tq.serve(shards=2)``, connect and one small put, in a process that has imported all it
    needs. For Ascend TQ: ``init`` and one put, on a Ray that runs already."""

    name = "start-up"
    title = "start of 2 shards (or storage units) to the first put done"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        for _ in range(min(3, stage.rounds)):
            for system in SYSTEMS:
                with stage.systems(system, readers=0) as systems:
                    for running in alive(systems):
                        with running.attempt():
                            running.writer.call("make", maker="dense", rows=1, length=64, fields=3)
                            started = running.writer.call("started")
                            put = running.writer.call("put")
                            tally.add(
                                "to first put",
                                running.label,
                                started["seconds"] + put["seconds"][0],
                            )
                    tally.note_failures(systems)
        row = tally.row(
            self.name, "start to first put", [x.label for x in SYSTEMS], key="to first put"
        )
        return [replace(row, figures=(at_most(row.number("ours"), 1.5, "s"),))]
