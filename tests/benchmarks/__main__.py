"""``python -m tests.benchmarks``: every workload, ours and the peers in the same run, one table."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.benchmarks import machine
from tests.benchmarks.catalogue import WORKLOADS
from tests.benchmarks.environment import Environments
from tests.benchmarks.markdown import markdown
from tests.benchmarks.report import Report
from tests.benchmarks.stage import Stage
from tests.benchmarks.table import print_report

ROUNDS, QUICK_ROUNDS = 5, 2


def options(arguments: list[str]) -> argparse.Namespace:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME",
        help=f"run this workload; may be given several times: {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"measured rounds of each (default {ROUNDS})")
    parser.add_argument(
        "--quick", action="store_true", help="small batches and few rounds: whether it runs at all"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write tables for a page")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the times")
    return parser.parse_args(arguments)


def say(text: str) -> None:
    """Progress; the table has stdout for itself."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    chosen = options(arguments)
    workloads = [w for w in WORKLOADS if not chosen.only or w.name in chosen.only]
    facts = machine.facts()
    report = Report(machine=facts)
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        stage = Stage(
            rounds=chosen.rounds or (QUICK_ROUNDS if chosen.quick else ROUNDS),
            is_quick=chosen.quick,
            environments=Environments(say),
            log_dir=Path(folder),
            say=say,
        )
        for workload in workloads:
            say(f"{workload.name}: {workload.title}; load {machine.load_average()}")
            try:
                report.rows.extend(workload.run(stage))
            except Exception as error:  # noqa: BLE001 - the others are measured all the same
                say(traceback.format_exc())
                failed.append(workload.name)
                report.notes.append(f"{workload.name} failed: {error}")
    facts["load_average_after"] = machine.load_average()
    if chosen.quick:
        report.notes.append("--quick: small batches, so no figure above means anything")
    titles = {workload.name: workload.title for workload in WORKLOADS}
    print_report(report, titles)
    if chosen.json:
        chosen.json.write_text(json.dumps(report.to_plain(), indent=1))
    if chosen.markdown:
        chosen.markdown.write_text(markdown(report, titles))
    if chosen.plot:
        from tests.benchmarks.plot import save_plot

        save_plot(report, chosen.plot)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
