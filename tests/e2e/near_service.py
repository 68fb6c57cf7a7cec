"""A service that listens on one interface, for tests that give it a host of its own.

``near_service.py HOST BUDGET_BYTES``: prints its addresses and key file as one JSON line, and ends
when stdin does.
"""

from __future__ import annotations

import json
import sys

import transferqueue as tq


def main(host: str, budget_bytes: str) -> None:
    with tq.serve(shards=1, budget_bytes=int(budget_bytes), host=host) as service:
        description = json.loads(service.key_file.with_name("service.json").read_text())
        here, far = description["endpoints"]
        said = {"here": here, "far": far, "keys": str(service.key_file)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
