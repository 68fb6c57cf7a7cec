"""``python -m tests.fuzz``: a long attack, and what the service made of it."""

from __future__ import annotations

import argparse
import time

from tests.fuzz.run import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started_s = time.monotonic()
    outcome = run(arguments.messages, arguments.seed)
    took_s = time.monotonic() - started_s
    report = outcome.report
    print(f"{report.sent:,} messages in {took_s:.0f} s, {report.answered:,} answers")
    print("refused:", ", ".join(f"{name} {n:,}" for name, n in report.refused.most_common()))
    print("accepted:", ", ".join(f"{name} {n:,}" for name, n in report.accepted.most_common()))
    print(
        f"restarts: {outcome.num_restarts}; puts that hold space: {outcome.puts_under_way}; "
        f"bytes used after a clear of all: {outcome.used_bytes:,}"
    )
    for name, after in outcome.after.items():
        before = outcome.before[name]
        print(
            f"{name}: {before.rss_bytes / 2**20:.1f} MiB halfway, "
            f"{after.rss_bytes / 2**20:.1f} at the end; "
            f"descriptors {before.num_fds} and {after.num_fds}, "
            f"threads {before.num_threads} and {after.num_threads}"
        )


if __name__ == "__main__":
    main()
