"""``python -m tests.fuzz.attacker ADDRESS MESSAGES SEED``: the attack, in a process of its own.

Memory that a shard lent to a process is its own until it ends: this one's end is part of the test.
"""

from __future__ import annotations

import json
import sys

from tests.fuzz.attack import attack, sockets_of
from tests.fuzz.traffic import record


def main() -> None:
    address, num_messages, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    coordinator, shard = sockets_of(address)
    report = attack(
        coordinator=coordinator,
        shard=shard,
        recorded=record(address),
        num_messages=num_messages,
        seed=seed,
    )
    print(json.dumps(vars(report)))


if __name__ == "__main__":
    main()
