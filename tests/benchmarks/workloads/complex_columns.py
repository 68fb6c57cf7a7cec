"""Dense, ragged and string columns in thirds: the peer's own complex case."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.report import at_least
from tests.benchmarks.stage import Tally, check_digest, labels_of

if TYPE_CHECKING:
    from tests.benchmarks.report import Row
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.systems import RunningSystem

SYSTEMS = (s.OURS, s.ASCEND, s.RAY_TENSORS, s.REDIS, s.MEMCPY)
SHAPE = {"rows": 1024, "length": 8192, "fields": 10}
QUICK_SHAPE = {"rows": 256, "length": 2048, "fields": 10}


class ComplexColumns:
    """Put and get of it."""

    name = "complex"
    title = "4 dense, 4 jagged and 2 string columns of 1,024 × ≤ 8,192 (256 MiB), one host"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        with stage.systems(*SYSTEMS) as systems:
            batch = stage.make(systems, "mixed", **(QUICK_SHAPE if stage.is_quick else SHAPE))

            def step(running: RunningSystem, number: int) -> None:
                put = running.writer.call("put")
                got = running.reader.call("get", tokens=put["tokens"])
                if number == 0 and not running.system.one_process:
                    checked = running.reader.call("get", tokens=put["tokens"], check=True)
                    check_digest(checked, batch["digest"])
                running.writer.call("clear", tokens=put["tokens"])
                running.reader.call("forget")
                if number > 0:
                    tally.add("put", running.label, *put["seconds"])
                    if not running.system.one_process:
                        tally.add("get", running.label, *got["seconds"])

            stage.in_rounds(systems, step)
            tally.note_failures(systems)
        rows = [tally.row(self.name, what, labels_of(systems)) for what in ("put", "get")]
        return [replace(row, figures=(at_least(row, 4, "Ascend TQ"),)) for row in rows]
