"""``python -m tests.chaos.worker ADDRESS KEYS TRANSPORT RECORD FIRST EARLIER``: one client, until
killed.

Puts, reads, clears, claims and acks, as a seed has it, and writes down what it did (`record`).
``KEYS``: the client key file. ``FIRST``: the first number of its rows, and its seed. ``EARLIER``:
the first number of whom it follows, or -1: what that one has kept is this one's from now on.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transferqueue as tq
from tests.chaos.record import FLOW, KEPT
from tests.chaos.rows import FIELDS, WIDTHS, columns_of, scribble, what_is_torn
from transferqueue.errors import TransferQueueError
from transferqueue.net.keys import ClientKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TASK = "update"
LEASE_S = 4.0
TIMEOUT_S = 20.0
MAX_KEPT_ROWS = 40
ROWS_PER_WORKER = 1 << 32
"""A worker that follows a killed one has numbers of its own."""


class Record:
    """Appends one line at a time, whole."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, did: str, rows: Sequence[int] = (), **more: Any) -> None:
        line = json.dumps({"did": did, "rows": list(rows), **more}) + "\n"
        os.write(self._fd, line.encode())


class Worker:
    """What one client does."""

    def __init__(self, client: tq.Client, record: Record, first: int) -> None:
        self._client = client
        self._record = record
        self._dice = random.Random(first)
        self._next = first
        self._kept: list[tuple[tq.BatchHandle, list[int]]] = []

    def inherit(self, first: int) -> None:
        """What a worker that was killed has put to keep, also what it never heard of."""
        number = tq.tag("number")
        theirs = (number >= first) & (number < first + ROWS_PER_WORKER)
        handle = self._client.select(KEPT, where=theirs, min_rows=0)
        for part in handle.split(4) if len(handle) else ():
            numbers = self._client.get_columns(part, fields=["number"])["number"].tolist()
            self._kept.append((part, numbers))

    def step(self) -> None:
        steps: list[Callable[[], None]] = [
            self._put_to_keep,
            self._put_to_flow,
            self._put_to_flow,
            self._read,
            self._claim,
            self._claim,
            self._clear,
        ]
        self.attempt(self._dice.choice(steps))

    def attempt(self, step: Callable[[], None]) -> None:
        """One step; a failure is written down."""
        began_s = time.monotonic()
        try:
            step()
        except TransferQueueError as error:
            name = getattr(step, "__name__", "inherit").strip("_")
            took_s = round(time.monotonic() - began_s, 1)
            said = {"error": type(error).__name__, "text": str(error), "took_s": took_s}
            self._record.write("failed", call=name, **said)

    def _put(self, partition: str) -> tuple[tq.BatchHandle, list[int]]:
        count = self._dice.randint(1, 6)
        numbers = list(range(self._next, self._next + count))
        self._next += count
        columns = columns_of(numbers, self._dice.choice(WIDTHS))
        self._record.write("putting", numbers, partition=partition)
        handle = self._client.put(columns, partition=partition, tags={"number": numbers})
        self._record.write("put", numbers, partition=partition)
        return handle, numbers

    def _put_to_keep(self) -> None:
        self._kept.append(self._put(KEPT))
        while sum(len(numbers) for _, numbers in self._kept) > MAX_KEPT_ROWS:
            self._clear()

    def _put_to_flow(self) -> None:
        self._put(FLOW)

    def _read(self) -> None:
        if self._kept:
            handle, numbers = self._dice.choice(self._kept)
            got = self._client.get_columns(handle)
            self._look(got, numbers)

    def _look(self, got: dict[str, Any], numbers: list[int] | None = None) -> None:
        torn = what_is_torn(got)
        if numbers is not None and got["number"].tolist() != numbers:
            torn = f"rows {got['number'].tolist()} for {numbers}"
        if torn:
            self._record.write("torn", what=torn)
        self._record.write("got", got["number"].tolist())
        scribble(got)

    def _clear(self) -> None:
        if self._kept:
            handle, numbers = self._kept.pop(self._dice.randrange(len(self._kept)))
            self._record.write("clearing", numbers)
            self._client.clear(handle)
            self._record.write("cleared", numbers)

    def _claim(self) -> None:
        claim = self._client.claim(
            task=TASK,
            partition=FLOW,
            fields=FIELDS,
            n=4,
            allow_partial=True,
            timeout_s=1.0,
            lease_s=LEASE_S,
        )
        got = self._client.get_columns(claim.handle)
        numbers = got["number"].tolist()
        self._look(got)
        if self._dice.random() < 0.2:
            claim.give_back()
            return
        self._record.write("acking", numbers)
        claim.ack()
        self._record.write("acked", numbers)


def main(address: str, keys: str, transport: str, path: str, first: str, earlier: str) -> None:
    with tq.connect(
        address, keys=ClientKeys.load(Path(keys)), transport=transport, timeout_s=TIMEOUT_S
    ) as client:
        worker = Worker(client, Record(path), int(first))
        if int(earlier) >= 0:
            worker.attempt(lambda: worker.inherit(int(earlier)))
        while True:
            worker.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
