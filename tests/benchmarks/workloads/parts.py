"""Parts of a big batch: one field of ten, and random rows."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.report import Unit, at_most
from tests.benchmarks.stage import Tally, labels_of
from tests.benchmarks.workloads.same_host import QUICK_SHAPE, SHAPE

if TYPE_CHECKING:
    from tests.benchmarks.report import Row
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.systems import RunningSystem

FIELD = "field_7"


class OneField:
    """What a worker pays that reads one field of ten: bytes on the wire, and time."""

    name = "one-field"
    title = "1 of 10 fields of the 320 MiB batch"
    systems = (
        s.OURS,
        s.OURS_TCP,
        s.ASCEND,
        s.RAY_TENSORS,
        s.RAY_ARRAYS,
        s.REDIS_TCP,
    )

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        with stage.systems(*self.systems) as systems:
            stage.make(systems, "dense", **(QUICK_SHAPE if stage.is_quick else SHAPE))

            def step(running: RunningSystem, number: int) -> None:
                put = running.writer.call("put")
                before = loopback_bytes()
                whole = running.reader.call("get", tokens=put["tokens"])
                between = loopback_bytes()
                one = running.reader.call("get", tokens=put["tokens"], fields=[FIELD])
                after = loopback_bytes()
                running.writer.call("clear", tokens=put["tokens"])
                running.reader.call("forget")
                if number == 0:
                    return
                tally.add("one field", running.label, *one["seconds"])
                tally.add("all fields", running.label, *whole["seconds"])
                if running.system in (s.OURS_TCP, s.ASCEND, s.REDIS_TCP):
                    tally.add("bytes of one", running.label, after - between)
                    tally.add("bytes of all", running.label, between - before)

            stage.in_rounds(systems, step)
            tally.note_failures(systems)
        labels = labels_of(systems)
        one_bytes = tally.row(self.name, "bytes of one", labels, unit=Unit.BYTES)
        all_bytes = tally.row(self.name, "bytes of all", labels, unit=Unit.BYTES)
        one, every = one_bytes.number(s.OURS_TCP.label), all_bytes.number(s.OURS_TCP.label)
        share = one / every if one and every else None
        return [
            tally.row(self.name, "get of one field", labels, key="one field"),
            tally.row(self.name, "get of all fields", labels, key="all fields"),
            replace(
                one_bytes,
                what="bytes through loopback, one field",
                figures=(at_most(share, 0.11, "of the bytes of all, ours, tcp"),),
            ),
            replace(all_bytes, what="bytes through loopback, all fields"),
        ]


class RandomRows:
    """A quarter of the rows, in no order: nothing is contiguous, every system has to gather."""

    name = "rows"
    title = "256 random rows of the 1,024 × 8,192 × 10 float32 batch (80 MiB)"
    systems = (
        s.OURS,
        s.OURS_TCP,
        s.ASCEND,
        s.RAY_TENSORS,
        s.RAY_ARRAYS,
        s.REDIS.with_settings(by_rows=True),
        s.MEMCPY,
    )

    def run(self, stage: Stage) -> list[Row]:
        shape = QUICK_SHAPE if stage.is_quick else SHAPE
        rows = random.Random(0).sample(range(shape["rows"]), shape["rows"] // 4)
        tally = Tally()
        with stage.systems(*self.systems) as systems:
            stage.make(systems, "dense", **shape)

            def step(running: RunningSystem, number: int) -> None:
                put = running.writer.call("put")
                got = running.reader.call("get", tokens=put["tokens"], rows=rows)
                running.writer.call("clear", tokens=put["tokens"])
                running.reader.call("forget")
                if number > 0:
                    tally.add("get of random rows", running.label, *got["seconds"])

            stage.in_rounds(systems, step)
            tally.note_failures(systems)
        return [tally.row(self.name, "get of random rows", labels_of(systems))]


def loopback_bytes() -> int:
    """Bytes that the loopback interface has carried, of everybody on this host."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    return 0
