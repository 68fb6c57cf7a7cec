"""A service, and a hand on it: ``python -m tests.chaos.service_program SETTINGS``.

``SETTINGS``: of `tq.serve`, as JSON. Reads one JSON line at a time: ``{"signal": 9, "names":
["shard-0"]}`` sends a signal to processes of the service, ``{}`` only asks. Answers each with its
state.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from itertools import chain

import transferqueue as tq

NUM_SHARDS = 2


def main(settings: str) -> None:
    with tq.serve(shards=NUM_SHARDS, **json.loads(settings)) as service:
        description = json.loads(service.key_file.with_name("service.json").read_text())
        for line in chain([b"{}"], sys.stdin.buffer):
            _answer(service, description["endpoints"], line)


def _answer(service: tq.Service, endpoints: list[str], line: bytes) -> None:
    wanted = json.loads(line)
    for name in wanted.get("names", ()):
        with contextlib.suppress(ProcessLookupError):  # killed a moment ago, and not back yet
            os.kill(service.pids[name], wanted["signal"])
    said = {
        "endpoints": endpoints,
        "keys": str(service.key_file),
        "pids": service.pids,
        "num_restarts": service.num_restarts,
        "failures": [str(failure) for failure in service.failures],
    }
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
