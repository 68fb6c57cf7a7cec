"""A big dense batch between processes of one host."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.report import at_least, at_most
from tests.benchmarks.stage import SETTLE_S, Tally, check_digest, labels_of

if TYPE_CHECKING:
    from tests.benchmarks.report import Row
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.systems import RunningSystem

SYSTEMS = (
    s.OURS,
    s.OURS_SMALL_PAGES,
    s.ASCEND,
    s.RAY_TENSORS,
    s.RAY_ARRAYS,
    s.REDIS,
    s.RAW_ZMQ,
    s.RAW_SOCKET,
    s.MEMCPY,
)
SHAPE = {"rows": 1024, "length": 8192, "fields": 10}
WARM_UPS = 2
"""Puts go to the two shards in turn, and each has to touch its memory once."""
QUICK_SHAPE = {"rows": 256, "length": 2048, "fields": 10}


class SameHost:
    """Put, get, and get + read all, first over new mappings and then over warm ones."""

    name = "same-host"
    title = "1,024 × 8,192 × 10 float32 (320 MiB), one host"

    def run(self, stage: Stage) -> list[Row]:
        shape = QUICK_SHAPE if stage.is_quick else SHAPE
        tally = Tally()
        with stage.systems(*SYSTEMS) as systems:
            batch = stage.make(systems, "dense", **shape)

            def step(running: RunningSystem, number: int) -> None:
                self._round(running, number, tally, batch["digest"])

            stage.in_rounds(systems, step, rounds=stage.rounds + WARM_UPS - 1, limit=s.MEMCPY.label)
            self._get_of_an_eighth(stage, systems, tally, shape)
            tally.note_failures(systems)
        return self._rows(tally, labels_of(systems))

    def _round(self, running: RunningSystem, number: int, tally: Tally, expected: str) -> None:
        label, counts = running.label, number >= WARM_UPS
        put = running.writer.call("put")
        running.reader.call("renew")
        first = running.reader.call("get", tokens=put["tokens"], read=True)
        time.sleep(SETTLE_S)  # what the first get held is given back, on a thread of ours
        warm = running.reader.call("get", tokens=put["tokens"], read=True)
        if number == 0:
            checked = running.reader.call("get", tokens=put["tokens"], check=True)
            check_digest(checked, expected)
        running.writer.call("clear", tokens=put["tokens"])
        running.reader.call("forget")
        if counts:
            tally.add("put", label, *put["seconds"])
            tally.add("put cpu", label, *put["cpu_seconds"])
            tally.add("get", label, *warm["seconds"])
            tally.add("first get", label, *first["seconds"])
            tally.add("first", label, first["seconds"][0] + first["read_seconds"][0])
            tally.add("warm", label, warm["seconds"][0] + warm["read_seconds"][0])

    def _get_of_an_eighth(
        self,
        stage: Stage,
        systems: list[RunningSystem],
        tally: Tally,
        shape: dict[str, int],
    ) -> None:
        ours = systems[:1]
        stage.make(ours, "dense", **{**shape, "rows": shape["rows"] // 8})

        def step(running: RunningSystem, number: int) -> None:
            put = running.writer.call("put")
            running.reader.call("get", tokens=put["tokens"], read=True)
            time.sleep(SETTLE_S)
            got = running.reader.call("get", tokens=put["tokens"], read=True)
            running.writer.call("clear", tokens=put["tokens"])
            running.reader.call("forget")
            if number > 0:
                tally.add("get of 1/8", running.label, *got["seconds"])

        stage.in_rounds(ours, step)

    def _rows(self, tally: Tally, labels: list[str]) -> list[Row]:
        def row(what: str, key: str) -> Row:
            return tally.row(self.name, what, labels, key=key)

        put, get = row("put", "put"), row("get", "get")
        put_cpu = row("put, processor time of the writer", "put cpu")
        first, warm = row("get + read all, first", "first"), row("get + read all, warm", "warm")
        eighth = row("get of 1/8 of the bytes", "get of 1/8")
        # Nothing is copied, so the memory column has no get of its own.
        get = replace(get, cells={k: v for k, v in get.cells.items() if k != "memory"})
        whole_s, eighth_s = get.number("ours"), eighth.number("ours")
        times = whole_s / eighth_s if whole_s and eighth_s else None
        small = s.OURS_SMALL_PAGES.label
        return [
            replace(put, figures=(at_least(put, 0.7, "memory"), at_least(put, 5, "Ascend TQ"))),
            # Of two numbers by the clock that of who waits for nobody suffers least from what else
            # runs on the cores, the peers' services among it; this one tells the two apart.
            replace(put_cpu, figures=(at_least(put_cpu, 0.7, "memory"),)),
            replace(
                get,
                figures=(
                    at_least(get, 30, "Ascend TQ"),
                    at_most(times, 2.0, "× the time of 1/8 of the bytes"),
                ),
            ),
            eighth,
            replace(
                first,
                figures=(
                    at_least(first, 0.5, "memory"),
                    at_least(first, 0.5, "memory", of=small, text="× memory, on 4 KiB pages"),
                    at_least(first, 30, "Ascend TQ"),
                ),
            ),
            replace(
                warm,
                figures=(
                    at_least(warm, 0.8, "memory"),
                    at_least(warm, 0.8, "memory", of=small, text="× memory, on 4 KiB pages"),
                ),
            ),
        ]
