"""Claims by sampler from a million samples, by 512 clients at once, and by a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.report import Unit, at_most
from tests.benchmarks.stage import Tally, alive, labels_of

if TYPE_CHECKING:
    from tests.benchmarks.report import Row
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.systems import RunningSystem

ROWS, QUICK_ROWS, FILL_BATCH = 1_000_000, 50_000, 10_000
FILL_TIMEOUT_S = 600.0
CLAIM, CLAIMS_A_ROUND = 256, 60
SAMPLERS = (
    "fifo",
    "groups",
    "length_balanced",
    "freshest_first",
    "weighted",
    "weighted_again",
)

CROWD, PROCESSES = 512, 4
CLAIMS_EACH, CROWD_CLAIM = 8, 4

STREAM_ROWS, STREAM_CLAIM, PREFETCH, LENGTH = 16_384, 64, 4, 1024


class Samplers:
    """Each for a task of its own: none finds less than another."""

    name = "samplers"
    title = f"1,000,000 samples ready: claims of {CLAIM} by sampler, end to end"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        rows = QUICK_ROWS if stage.is_quick else ROWS
        with stage.systems(s.OURS) as systems:
            for running in alive(systems):
                with running.attempt():
                    running.writer.call(
                        "drive", name="fill_tagged", rows=rows, batch=FILL_BATCH,
                        timeout_s=FILL_TIMEOUT_S,
                    )  # fmt: skip

            def step(running: RunningSystem, number: int) -> None:
                for sampler in SAMPLERS:
                    answer = running.reader.call(
                        "drive", name="sampled_claims", sampler=sampler, n=CLAIM,
                        times=CLAIMS_A_ROUND,
                    )  # fmt: skip
                    if number == 0:  # the first of all counts the rows of its task
                        tally.add(f"{sampler} first", running.label, answer["seconds"][0])
                    else:
                        tally.add(sampler, running.label, *answer["seconds"])

            stage.in_rounds(systems, step, rounds=min(5, stage.rounds))
            tally.note_failures(systems)
        return [row for sampler in SAMPLERS for row in self._rows(tally, sampler, systems)]

    def _rows(self, tally: Tally, sampler: str, systems: list[RunningSystem]) -> list[Row]:
        labels = labels_of(systems)
        p99 = tally.row(self.name, f"{sampler}, p99", labels, key=sampler, percentile=99)
        slowest = p99.number("ours")
        return [
            tally.row(self.name, f"{sampler}, p50", labels, key=sampler),
            replace(p99, figures=(at_most(slowest and slowest * 1e3, 10.0, "ms"),)),
            tally.row(self.name, f"{sampler}, a task's first", labels, key=f"{sampler} first"),
        ]


class ClaimCrowd:
    """512 connections that claim at once; and 512 that wait, for one put."""

    name = "claim-crowd"
    title = f"{CROWD} clients in {PROCESSES} processes: each {CLAIMS_EACH} claims, then all wait"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        clients = CROWD // PROCESSES
        with stage.systems(s.OURS, readers=PROCESSES) as systems:

            def step(running: RunningSystem, number: int) -> None:
                running.writer.call("drive", name="stock", rows=CROWD * CLAIMS_EACH * CROWD_CLAIM)
                for reader in running.readers:
                    reader.send(
                        "drive", name="claim_crowd", clients=clients, times=CLAIMS_EACH,
                        n=CROWD_CLAIM,
                    )  # fmt: skip
                claims = [reader.receive() for reader in running.readers]
                partition = f"parked {number}"
                for reader in running.readers:
                    reader.send("drive", name="parked_crowd", clients=clients, partition=partition)
                put = running.writer.call(
                    "drive", name="wake_crowd", clients=CROWD, partition=partition
                )
                woken = [reader.receive() for reader in running.readers]
                if number == 0:
                    return
                for answer in claims:
                    tally.add("claim", running.label, *answer["claim_seconds"])
                took_s = max(answer["seconds"] for answer in claims)
                tally.add("rate", running.label, CROWD * CLAIMS_EACH / took_s)
                got_s = sorted(at_s for answer in woken for at_s in answer["got_s"])
                tally.add("first woken", running.label, got_s[0] - put["begun_s"])
                tally.add("last woken", running.label, got_s[-1] - put["begun_s"])

            stage.in_rounds(systems, step, rounds=min(3, stage.rounds))
            tally.note_failures(systems)
        labels = labels_of(systems)
        rows = [("claim + ack pairs a second", "rate", Unit.RATE)]
        rows += [(f"one put until the {w} of {CROWD} has its row", f"{w} woken", Unit.SECONDS)
                 for w in ("first", "last")]  # fmt: skip
        return [
            *(tally.row(self.name, what, labels, key=key, unit=unit) for what, key, unit in rows),
            tally.row(self.name, "claim, p50", labels, key="claim"),
            tally.row(self.name, "claim, p99", labels, key="claim", percentile=99),
        ]


class Streams:
    """Samples a second of one consumer, with prefetch."""

    name = "stream"
    title = f"stream(n={STREAM_CLAIM}, prefetch={PREFETCH}) of {STREAM_ROWS:,} samples of 4 KiB"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        rows = STREAM_ROWS // 8 if stage.is_quick else STREAM_ROWS
        with stage.systems(s.OURS) as systems:

            def step(running: RunningSystem, number: int) -> None:
                for key, gets in (("handles", False), ("data", True)):
                    answer = running.reader.call(
                        "drive", name="stream", rows=rows, n=STREAM_CLAIM, prefetch=PREFETCH,
                        length=LENGTH, gets=gets,
                    )  # fmt: skip
                    if number > 0:
                        tally.add(key, running.label, rows / answer["seconds"])

            stage.in_rounds(systems, step, rounds=min(3, stage.rounds))
            tally.note_failures(systems)
        labels = labels_of(systems)
        return [
            tally.row(self.name, f"samples a second, {key}", labels, key=key, unit=Unit.RATE)
            for key in ("handles", "data")
        ]
