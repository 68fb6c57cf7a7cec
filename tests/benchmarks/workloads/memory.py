"""What holding a batch costs: the storage, and the peak of the process that puts or gets it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.memory_watch import MemoryWatch, own_bytes, shared_bytes
from tests.benchmarks.report import Unit, at_most
from tests.benchmarks.stage import Tally, alive
from tests.benchmarks.workloads.same_host import QUICK_SHAPE, SHAPE

if TYPE_CHECKING:
    from tests.benchmarks.report import Row
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.systems import RunningSystem

SYSTEMS = (s.OURS, s.OURS_TCP, s.ASCEND, s.RAY_TENSORS, s.REDIS)


class Memory:
    """All in multiples of the batch's own bytes. One system at a time."""

    name = "memory"
    title = "peak memory over payload, 320 MiB batch"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        shape = QUICK_SHAPE if stage.is_quick else SHAPE
        for system in SYSTEMS:
            with stage.systems(system) as systems:
                for running in alive(systems):
                    with running.attempt():
                        self._measure(running, tally, shape)
                tally.note_failures(systems)
        labels = [system.label for system in SYSTEMS]
        rows = {
            what: tally.row(self.name, what, labels, unit=Unit.RATIO)
            for what in ("storage", "writer's own peak", "reader's own peak")
        }
        limits = {"storage": 1.05, "writer's own peak": 1.1, "reader's own peak": 1.1}
        return [
            replace(
                row,
                figures=tuple(
                    at_most(row.number(label), limits[what], f"× payload, {label}")
                    for label in (s.OURS.label, s.OURS_TCP.label)
                ),
            )
            for what, row in rows.items()
        ]

    def _measure(self, running: RunningSystem, tally: Tally, shape: dict[str, int]) -> None:
        label, writer, reader = running.label, running.writer, running.reader
        self._warm_up(running)
        servers = self._servers(running)
        payload = writer.call("make", maker="dense", **shape)["bytes"]
        before = own_bytes(writer.pid)
        held_before = self._storage_bytes(running, servers)
        with MemoryWatch([writer.pid]) as watch:
            put = writer.call("put")
        # It holds the batch itself; what counts is what a put adds to that.
        grown = watch.peaks[writer.pid] - before
        tally.add("writer's own peak", label, (payload + grown) / payload)
        held = self._storage_bytes(running, servers) - held_before
        tally.add("storage", label, held / payload)
        before = own_bytes(reader.pid)
        with MemoryWatch([reader.pid]) as watch:
            reader.call("get", tokens=put["tokens"], read=True, keep=True)
        tally.add("reader's own peak", label, (watch.peaks[reader.pid] - before) / payload)

    def _warm_up(self, running: RunningSystem) -> None:
        """A small batch through it, so that what is loaded at first use is not counted."""
        running.writer.call("make", maker="dense", rows=4, length=64, fields=2)
        put = running.writer.call("put")
        running.reader.call("get", tokens=put["tokens"])
        running.writer.call("clear", tokens=put["tokens"])
        running.reader.call("forget")
        running.writer.call("drop")

    def _servers(self, running: RunningSystem) -> list[int]:
        """Every process that the system has started beside the writer."""
        return [process.pid for process in running.writer.family()[1:]]

    def _storage_bytes(self, running: RunningSystem, servers: list[int]) -> int:
        """Own memory of the servers, and the shared memory they keep batches in: arena files for
        ours, for others what the process that has touched most of it has touched."""
        own = sum(own_bytes(pid) for pid in servers)
        if running.system.home is s.Home.OURS:
            return own + int(running.writer.call("drive", name="service_memory")["arena_bytes"])
        return own + max(shared_bytes(pid) for pid in (running.writer.pid, *servers))
