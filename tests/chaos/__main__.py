"""``python -m tests.chaos``: a long soak, and what was found."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos.soak import Outcome, soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spill", action="store_true", help="little memory, and a disk")
    parser.add_argument(
        "--replicas", action="store_true", help="two copies, and shards that lose what they had"
    )
    parser.add_argument("--records", type=Path, help="where to keep what the workers wrote down")
    arguments = parser.parse_args()
    folder = arguments.records or Path(tempfile.mkdtemp(prefix="transferqueue-chaos-"))
    folder.mkdir(exist_ok=True)
    outcome = soak(
        arguments.seconds,
        arguments.seed,
        folder,
        spill=arguments.spill,
        replicas=arguments.replicas,
    )
    report(outcome)
    print(f"records: {folder}")
    sys.exit(1 if outcome.broken else 0)


def report(outcome: Outcome) -> None:
    ledger = outcome.ledger
    print(f"two hosts: {'yes' if outcome.had_two_hosts else 'no'}")
    print("trouble:", ", ".join(f"{name} {n}" for name, n in outcome.done.most_common()))
    print(f"restarts: {outcome.num_restarts}; not restarted: {outcome.failures or 'none'}")
    print(f"slabs on the disk, or moved there lately: {outcome.num_spilled:,}")
    rows = sum(map(len, ledger.put.values()))
    print(f"rows put {rows:,}, acked {len(ledger.acked):,}, cleared {len(ledger.cleared):,}")
    print("calls:", ", ".join(f"{name} {n:,}" for name, n in ledger.calls.most_common()))
    print("failed calls:", ", ".join(f"{n} {c}" for n, c in ledger.errors.most_common()) or "none")
    print(
        f"left after clearing: {outcome.used_bytes:,} bytes, {outcome.leases} leases, "
        f"{outcome.puts_under_way} puts, {outcome.descriptors} descriptors"
    )
    print("broken promises:", "; ".join(outcome.broken) or "none")


if __name__ == "__main__":
    main()
