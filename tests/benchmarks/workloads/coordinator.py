"""Claims from a partition of a million samples, and how soon a waiting claim hears of a put."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.memory_watch import own_bytes
from tests.benchmarks.report import Figure, Missing, Sense, Unit, at_most
from tests.benchmarks.stage import Tally, alive, labels_of

if TYPE_CHECKING:
    from tests.benchmarks.report import Row
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.systems import RunningSystem

FIELDS = 20
TASKS = 16
FIELDS_OF_A_CLAIM = 5
CLAIM = 256
CLAIMS_A_ROUND = 80
FEW, MANY, QUICK_MANY = 10_000, 1_000_000, 100_000
FILL_BATCH = 10_000
FILL_TIMEOUT_S = 600.0

OURS_FEW = s.OURS.with_settings("ours, 10,000")
OURS_MANY = s.OURS.with_settings("ours")


class Coordinator:
    """Two services side by side, one with 10,000 samples and one with a million, in turns."""

    name = "coordinator"
    title = "1,000,000 samples × 20 fields, 16 tasks: claims of 256 with 5 fields, end to end"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        many = QUICK_MANY if stage.is_quick else MANY
        with stage.systems(OURS_MANY, OURS_FEW, s.ASCEND) as systems:
            for running in alive(systems):
                with running.attempt():
                    self._fill(running, many if running.system is OURS_MANY else FEW, tally)

            def step(running: RunningSystem, number: int) -> None:
                answer = running.reader.call(
                    "drive", name="claims", num_tasks=TASKS, fields=FIELDS,
                    num_fields=FIELDS_OF_A_CLAIM, n=CLAIM, times=CLAIMS_A_ROUND,
                )  # fmt: skip
                if number > 0:
                    tally.add("claim", running.label, *answer["seconds"])
                    tally.add("ack", running.label, *answer.get("ack_seconds", []))

            stage.in_rounds(systems, step, rounds=min(5, stage.rounds))
            tally.note_failures(systems)
        return self._rows(tally, labels_of(systems), many)

    def _fill(self, running: RunningSystem, rows: int, tally: Tally) -> None:
        is_ours = running.system.home is s.Home.OURS
        before = self._coordinator_bytes(running) if is_ours else 0
        answer = running.writer.call(
            "drive", name="fill", rows=rows, fields=FIELDS, batch=min(rows, FILL_BATCH),
            timeout_s=FILL_TIMEOUT_S,
        )  # fmt: skip
        tally.add("fill", running.label, rows / answer["seconds"])
        if is_ours:
            grown = self._coordinator_bytes(running) - before
            tally.add("bytes a sample", running.label, grown / rows)

    def _coordinator_bytes(self, running: RunningSystem) -> int:
        pids = running.writer.call("drive", name="service_memory")["pids"]
        return own_bytes(pids["coordinator"])

    def _rows(self, tally: Tally, labels: list[str], many: int) -> list[Row]:
        def row(what: str, key: str, percentile: float | None = None) -> Row:
            made = tally.row(self.name, what, labels, key=key, percentile=percentile)
            cells = {
                "Ascend TQ, 10,000" if label == "Ascend TQ" else label: cell
                for label, cell in made.cells.items()
            }
            missing = Missing(reason="filled with 10,000 samples only")
            return replace(made, cells={**cells, "Ascend TQ": missing})

        p50, p99 = row("claim of 256, p50", "claim"), row("claim of 256, p99", "claim", 99)
        of_many, of_few = p50.number("ours"), p50.number(OURS_FEW.label)
        growth = of_many / of_few if of_many and of_few else None
        slowest = p99.number("ours")
        memory = tally.row(
            self.name, "coordinator memory a sample", labels, key="bytes a sample", unit=Unit.BYTES
        )
        return [
            replace(p50, figures=(at_most(growth, 2.0, "× the cost at 10,000"),)),
            replace(p99, figures=(at_most(slowest and slowest * 1e3, 10.0, "ms"),)),
            row("ack, p50", "ack"),
            replace(
                tally.row(
                    self.name, "samples a second while filling", labels, key="fill", unit=Unit.RATE
                )
            ),
            replace(
                memory,
                what=f"coordinator memory a sample, {many:,} samples",
                figures=(at_most(memory.number("ours"), 64.0, "bytes"),),
            ),
        ]


WAKES = 150
POLL_PAUSE_S = 0.001


class Wake:
    """A claim waits; a sample is put; the time from the start of the put to the claim's return.
    The peer pushes nothing: there the waiting process asks again after a millisecond."""

    name = "wake"
    title = "put of one sample until a claim that waits for it returns"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        times = WAKES // 5 if stage.is_quick else WAKES
        gaps = random.Random(0)
        polling = s.ASCEND.with_settings(polling_mode=True)
        with stage.systems(s.OURS, polling) as systems:

            def step(running: RunningSystem, number: int) -> None:
                at_s = time.monotonic() + 0.1
                running.reader.send(
                    "drive", name="wait_for_samples", times=times, pause_s=POLL_PAUSE_S
                )
                running.writer.send(
                    "drive", name="put_samples", times=times, at_s=at_s,
                    gaps_s=[gaps.uniform(0.01, 0.02) for _ in range(times)],
                )  # fmt: skip
                put, got = running.writer.receive(), running.reader.receive()
                if number > 0:
                    for begun_s, ended_s, got_s in zip(
                        put["begun_s"], put["ended_s"], got["got_s"], strict=True
                    ):
                        tally.add("from start", running.label, got_s - begun_s)
                        tally.add("from end", running.label, got_s - ended_s)

            stage.in_rounds(systems, step, rounds=min(3, stage.rounds))
            tally.note_failures(systems)
        labels = labels_of(systems)
        p50 = tally.row(self.name, "put to wake, p50", labels, key="from start")
        p99 = tally.row(self.name, "put to wake, p99", labels, key="from start", percentile=99)
        slowest = p99.number("ours")
        figure = Figure(text="ms", sense=Sense.AT_MOST, target=10.0, got=slowest and slowest * 1e3)
        return [p50, replace(p99, figures=(figure,))]
