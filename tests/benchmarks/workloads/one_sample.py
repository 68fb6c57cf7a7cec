"""One sample with three fields of 1,024 float32: what the smallest put and get cost."""

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

SYSTEMS = (
    s.OURS,
    s.OURS_TCP,
    s.ASCEND,
    s.RAY_TENSORS,
    s.REDIS,
    s.RAW_ZMQ,
    s.RAW_SOCKET,
)
SHAPE = {"rows": 1, "length": 1024, "fields": 3}
TIMES = 100


class OneSample:
    """Median and p99 of single calls, one after the other."""

    name = "one-sample"
    title = "one sample, 3 fields of 1,024 float32 (12 KiB)"

    def run(self, stage: Stage) -> list[Row]:
        times = TIMES // 4 if stage.is_quick else TIMES
        tally = Tally()
        with stage.systems(*SYSTEMS) as systems:
            batch = stage.make(systems, "dense", **SHAPE)

            def step(running: RunningSystem, number: int) -> None:
                put = running.writer.call("put", times=times)
                got = running.reader.call("get", tokens=put["tokens"], check=number == 0)
                check_digest(got, batch["digest"])
                running.writer.call("clear", tokens=put["tokens"])
                running.reader.call("forget")
                if number > 0:
                    tally.add("put", running.label, *put["seconds"])
                    tally.add("get", running.label, *got["seconds"])

            stage.in_rounds(systems, step)
            tally.note_failures(systems)
        labels = labels_of(systems)
        rows = []
        for what in ("put", "get"):
            row = tally.row(self.name, what, labels)
            rows.append(replace(row, figures=(at_least(row, 10, "Ascend TQ"),)))
            rows.append(tally.row(self.name, f"{what}, p99", labels, key=what, percentile=99))
        return rows
