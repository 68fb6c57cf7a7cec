"""A client that puts, clears, claims and acks, and writes down what it was answered and when.

``python -m tests.recovery.checkpoint_traffic ADDRESS NUMBER RECORD`` until stdin closes. A line of
the record is one step: what it was, when it began and ended (one clock for all processes of the
host), and what it was about.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

import transferqueue as tq
from transferqueue.errors import NotReady

if TYPE_CHECKING:
    from typing import TextIO

WIDE = 700 << 10
"""Bytes of a row of which two go to two shards."""

MAX_LIVE = 8


class Traffic:
    """The steps, one after the other."""

    def __init__(self, client: tq.Client, number: int, record: TextIO) -> None:
        self._client = client
        self._record = record
        self._next = number * 1_000_000
        self._live: list[tuple[int, tq.BatchHandle]] = []

    def step(self, turn: int) -> None:
        self._put(rows=[3, 4, 1][turn % 3], width=[5, WIDE // 4, 100][turn % 3])
        if turn % 2:
            self._fill(*self._live[-1])
        if len(self._live) > MAX_LIVE:
            self._clear(*self._live.pop(0))
        self._work(turn)

    def _put(self, rows: int, width: int) -> None:
        numbers = torch.arange(self._next, self._next + rows)
        self._next += rows
        columns = {"number": numbers, "pad": numbers[:, None].float().expand(rows, width)}
        tags = {"number": numbers.numpy()}
        first, began_s = int(numbers[0]), time.monotonic()
        handle = self._client.put(columns, partition="data", tags=tags)
        self._live.append((first, handle))
        self._note("put", began_s, first=first, rows=rows, handle=handle.to_bytes().hex())

    def _fill(self, first: int, handle: tq.BatchHandle) -> None:
        began_s = time.monotonic()
        more = torch.arange(first, first + len(handle)) * 2
        self._client.put({"double": more}, handle=handle)
        self._note("fill", began_s, first=first)

    def _clear(self, first: int, handle: tq.BatchHandle) -> None:
        began_s = time.monotonic()
        self._client.clear(handle)
        self._note("clear", began_s, first=first)

    def _work(self, turn: int) -> None:
        """Put samples to be consumed, claim some, ack two claims of three."""
        began_s = time.monotonic()
        handle = self._client.put({"job": torch.arange(4)}, partition="work", tags={"turn": turn})
        self._note("job", began_s, uids=handle.uids.tolist())
        began_s = time.monotonic()
        try:
            claim = self._client.claim(
                task="t", partition="work", fields=["job"], n=3, timeout_s=5, lease_s=600
            )
        except NotReady:
            return
        uids = claim.handle.uids.tolist()
        self._note("claim", began_s, uids=uids)
        if turn % 3:
            began_s = time.monotonic()
            claim.ack()
            self._note("ack", began_s, uids=uids)

    def _note(self, what: str, began_s: float, **about: Any) -> None:
        line = {"what": what, "began_s": began_s, "ended_s": time.monotonic(), **about}
        self._record.write(json.dumps(line) + "\n")
        self._record.flush()


def main() -> None:
    address, number, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    import select

    with tq.connect(address, transport="ipc") as client, open(path, "w") as record:
        traffic = Traffic(client, number, record)
        turn = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            traffic.step(turn)
            turn += 1


if __name__ == "__main__":
    main()
