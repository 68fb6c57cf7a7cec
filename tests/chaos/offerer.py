"""``python -m tests.chaos.offerer ADDRESS CLIENTS SECONDS MIB TIMEOUT_S``: puts as fast as it may.

Each client is a thread with connections of its own. Prints one JSON line: how long each put took,
and how it ended.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import numpy as np

import transferqueue as tq
from tests.chaos.record import FLOW
from transferqueue.errors import TransferQueueError


class Offers:
    """What all clients of this process have offered."""

    def __init__(
        self, address: str, num_clients: int, seconds: float, mib: int, timeout_s: float
    ) -> None:
        self._address = address
        self._connected = threading.Barrier(num_clients)
        self._seconds = seconds
        self._timeout_s = timeout_s
        self._columns = {"x": np.zeros((mib, 1 << 20), np.uint8), "n": np.arange(mib)}
        self.took_s: list[float] = []
        self.ended: list[str] = []

    def make(self) -> None:
        """From when all of them are connected, which takes a busy machine a while."""
        with tq.connect(self._address) as client:
            self._connected.wait()
            until_s = time.monotonic() + self._seconds
            while time.monotonic() < until_s:
                began_s = time.monotonic()
                ended = self._offer(client)
                self.took_s.append(time.monotonic() - began_s)
                self.ended.append(ended)

    def _offer(self, client: tq.Client) -> str:
        try:
            client.put(self._columns, partition=FLOW, timeout_s=self._timeout_s)
        except TransferQueueError as error:
            return type(error).__name__
        return "put"


def main(address: str, clients: str, seconds: str, mib: str, timeout_s: str) -> None:
    offers = Offers(address, int(clients), float(seconds), int(mib), float(timeout_s))
    threads = [threading.Thread(target=offers.make) for _ in range(int(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"took_s": offers.took_s, "ended": offers.ended}))


if __name__ == "__main__":
    main(*sys.argv[1:])
