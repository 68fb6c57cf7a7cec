"""Many clients at once: eight processes that put small batches, and 512 connections."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.report import Missing, Unit
from tests.benchmarks.stage import Tally, labels_of

if TYPE_CHECKING:
    from tests.benchmarks.report import Row
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.systems import RunningSystem

CLIENTS = 8
PUTS = 100
START_DELAY_S = 0.2
SHAPE = {"rows": 1, "length": 1024, "fields": 3}

CROWD_PROCESSES = 4
CROWD_CLIENTS = 512


class ManyClients:
    """Puts a second of all eight together. Each peer is measured in turns with ours."""

    name = "clients"
    title = "8 client processes, each 100 puts of one sample (12 KiB)"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        labels = ["ours"]
        puts = PUTS // 4 if stage.is_quick else PUTS
        # By pairs: the clients of all systems at once would not fit into small machines.
        for peer in (s.ASCEND, s.REDIS, s.RAY_TENSORS):
            with stage.systems(s.OURS, peer, readers=CLIENTS) as systems:

                def step(running: RunningSystem, number: int) -> None:
                    rate = self._round(running, puts)
                    if number > 0:
                        tally.add("puts", running.label, rate)

                stage.in_rounds(systems, step)
                tally.note_failures(systems)
                labels.append(peer.label)
        return [
            tally.row(self.name, "puts a second, all together", labels, key="puts", unit=Unit.RATE)
        ]

    def _round(self, running: RunningSystem, puts: int) -> float:
        for reader in running.readers:
            reader.send("make", maker="dense", **SHAPE)
        for reader in running.readers:
            reader.receive()
        at_s = time.monotonic() + START_DELAY_S
        for reader in running.readers:
            reader.send("put", times=puts, at_s=at_s)
        answers = [reader.receive() for reader in running.readers]
        for reader, answer in zip(running.readers, answers, strict=True):
            reader.call("clear", tokens=answer["tokens"])
        took_s = max(a["ended_s"] for a in answers) - min(a["begun_s"] for a in answers)
        return puts * len(answers) / took_s


class Crowd:
    """512 clients at once, each its own sockets: how long a put and a get then take."""

    name = "crowd"
    title = f"{CROWD_CLIENTS} clients at once in {CROWD_PROCESSES} processes, each a put and a get"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        with stage.systems(s.OURS, readers=CROWD_PROCESSES) as systems:

            def step(running: RunningSystem, number: int) -> None:
                for reader in running.readers:
                    reader.send(
                        "drive", name="crowd", clients=CROWD_CLIENTS // CROWD_PROCESSES, times=4
                    )
                answers = [reader.receive() for reader in running.readers]
                if number == 0:
                    return
                for answer in answers:
                    tally.add("put", running.label, *answer["put_seconds"])
                    tally.add("get", running.label, *answer["get_seconds"])
                calls = sum(len(answer["put_seconds"]) for answer in answers)
                took_s = max(answer["seconds"] for answer in answers)
                tally.add("rate", running.label, calls / took_s)

            stage.in_rounds(systems, step, rounds=2)
            tally.note_failures(systems)
        labels = labels_of(systems)
        not_run = {
            "Ascend TQ": Missing(reason="not tried: each of its clients starts 8 I/O threads")
        }
        rows = [
            tally.row(self.name, "put + get pairs a second", labels, key="rate", unit=Unit.RATE),
            tally.row(self.name, "put, median", labels, key="put"),
            tally.row(self.name, "put, p99", labels, key="put", percentile=99),
            tally.row(self.name, "get, p99", labels, key="get", percentile=99),
        ]
        return [replace(row, cells={**row.cells, **not_run}) for row in rows]
