"""The big dense batch over TCP loopback, as between hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.report import at_least
from tests.benchmarks.stage import Tally, check_digest, labels_of
from tests.benchmarks.workloads.same_host import QUICK_SHAPE, SHAPE

if TYPE_CHECKING:
    from tests.benchmarks.report import Figure, Row
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.systems import RunningSystem

OURS = s.OURS_TCP.with_settings("ours")
"""As between hosts: encrypted, and large bytes over the socket beside that of the requests."""
OURS_PLAIN = OURS.with_settings("ours, unencrypted", encrypt=False)
"""As the peers are."""
OURS_CHUNKS = OURS.with_settings("ours, in chunks", transport="tcp")
"""All over one socket of ZMQ, with CURVE: where no other can be had."""
SYSTEMS = (
    OURS,
    OURS_PLAIN,
    OURS_CHUNKS,
    s.OURS_IPC,
    s.ASCEND,
    s.REDIS_TCP,
    s.RAW_ZMQ_TCP,
    s.RAW_ZMQ_CURVE,
    s.RAW_SOCKET_TCP,
    s.RAW_SOCKET_TCP_WARM,
)


class Loopback:
    """Put and get over TCP; beside it with ``"ipc"``, a Unix socket."""

    name = "tcp"
    title = "1,024 × 8,192 × 10 float32 (320 MiB), TCP over loopback"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        with stage.systems(*SYSTEMS) as systems:
            batch = stage.make(systems, "dense", **(QUICK_SHAPE if stage.is_quick else SHAPE))

            def step(running: RunningSystem, number: int) -> None:
                put = running.writer.call("put")
                got = running.reader.call("get", tokens=put["tokens"], check=number == 0)
                check_digest(got, batch["digest"])
                running.writer.call("clear", tokens=put["tokens"])
                running.reader.call("forget")
                if number > 0:
                    tally.add("put", running.label, *put["seconds"])
                    tally.add("get", running.label, *got["seconds"])

            stage.in_rounds(systems, step, limit=s.RAW_SOCKET_TCP.label)
            tally.note_failures(systems)
        put, get = (tally.row(self.name, what, labels_of(systems)) for what in ("put", "get"))
        return [
            replace(put, figures=_figures(put, over_peer=1.5)),
            replace(get, figures=_figures(get, over_peer=4)),
        ]


def _figures(row: Row, *, over_peer: float) -> tuple[Figure, ...]:
    plain = OURS_PLAIN.label
    return (
        at_least(row, 0.85, "raw socket"),
        at_least(row, 0.85, "ZMQ + CURVE", of=OURS_CHUNKS.label, text="× ZMQ + CURVE, in chunks"),
        at_least(row, 0.85, "raw socket", of=plain, text="× raw socket, unencrypted"),
        at_least(row, over_peer, "Ascend TQ"),
        at_least(row, over_peer, "Ascend TQ", of=plain, text="× Ascend TQ, unencrypted"),
    )
