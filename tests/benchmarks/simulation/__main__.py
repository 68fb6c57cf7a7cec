"""``python -m tests.benchmarks.simulation``: 10,000 workers on one coordinator, in a few minutes.

First a real service tells what messages cost, then `fleet` is run at rising rates. What it found is
in README.md beside this file.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from rich.console import Console
from rich.table import Table

from tests.benchmarks import machine
from tests.benchmarks.__main__ import say
from tests.benchmarks.simulation import costs, fleet
from tests.benchmarks.simulation.yardstick import Yardstick

SIZES = (8, 64, 256)
CYCLES_PER_S = (100, 400, 700, 1000, 1300)
CYCLES = 2000
WARM_SHARE = 0.4
"""Of the workers, how many have to be done once: those that began late are done late."""

SATURATED_S = 1.0
"""A claim of samples that are there, which takes so long, waits in a queue that grows."""


def edge_costs(n: int, yardstick: Yardstick) -> tuple[dict[str, float], dict[str, float]]:
    """What messages cost in all, and beside the control plane."""
    whole = costs.measure(n, yardstick)
    plain = fleet.Fleet(workers=64, work_s=10.0, n=n, edge_s={}, yardstick=yardstick).run(
        warm_cycles=100, cycles=500
    )
    plane = {kind: statistics.mean(seconds) for kind, seconds in plain.plane_s.items()}
    return whole, {kind: max(0.0, s - plane.get(kind, 0.0)) for kind, s in whole.items()}


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def sweep(
    table: Table,
    n: int,
    edge_s: dict[str, float],
    workers: int,
    scale: float,
    yardstick: Yardstick,
) -> None:
    for rate in CYCLES_PER_S:
        work_s = workers / rate
        warm, cycles = int(workers * WARM_SHARE), int(CYCLES * scale)
        seen = fleet.Fleet(
            workers=workers, work_s=work_s, n=n, edge_s=edge_s, yardstick=yardstick
        ).run(warm_cycles=warm, cycles=cycles)
        say(f"{n} samples a claim, {rate} cycles/s: busy {seen.busy_s / seen.span_s:.0%}")
        p50, p99 = (percentile(seen.claim_s, share) for share in (0.5, 0.99))
        table.add_row(
            f"{n}", f"{work_s:.1f} s", f"{rate:,}", f"{rate * n:,}",
            f"{seen.cycles / seen.span_s:,.0f}", f"{100 * seen.busy_s / seen.span_s:.0f} %",
            f"{1e3 * p50:,.1f} ms", f"{1e3 * p99:,.1f} ms" + (" !" if p99 > SATURATED_S else ""),
        )  # fmt: skip
        if p99 > SATURATED_S:
            break


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.simulation")
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="whether it runs at all")
    chosen = parser.parse_args(arguments)
    scale = 0.1 if chosen.quick else 1.0
    console, yardstick = Console(width=110), Yardstick()
    kinds = (costs.CLAIM, costs.ACK, costs.COMMITTED, costs.CLEARED, costs.PROBE)
    measured = Table("samples", *kinds, title="µs a message, of the coordinator's thread")
    table = Table(
        "samples a claim", "work", "cycles/s asked", "samples/s", "cycles/s done", "busy",
        "claim p50", "claim p99", title=f"{chosen.workers:,} workers, one coordinator",
    )  # fmt: skip
    for n in SIZES[: 1 if chosen.quick else None]:
        say(f"{n} samples a claim: what messages cost")
        whole, edge_s = edge_costs(n, yardstick)
        measured.add_row(f"{n}", *(f"{1e6 * whole[kind]:.0f}" for kind in kinds))
        sweep(table, n, edge_s, chosen.workers, scale, yardstick)
    idle_s, put_s, last_s = fleet.wake(workers=chosen.workers, edge_s=edge_s)
    facts = machine.facts()
    console.print(", ".join(f"{value}" for value in facts.values()))
    console.print(measured, table)
    console.print(
        f"all {chosen.workers:,} wait: telling them so takes "
        f"{100 * chosen.workers * whole[costs.PROBE]:.0f} % of the coordinator, a commit that is "
        f"for none of them {1e3 * idle_s:.2f} ms; one put with a sample for each is worked off in "
        f"{put_s:.2f} s of the control plane, and the last has heard after {last_s:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
