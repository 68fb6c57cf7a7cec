"""Calls that tell their shards, beside what they ask for, which leases have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from transferqueue.client.lease_returns import this_process
from transferqueue.wire import ops
from transferqueue.wire.format import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.client.lease_returns import LeaseReturns
    from transferqueue.net.calls import Call, Outcome


class EndsAlong:
    """The calls of one exchange, which is to be made in its block and to leave ``outcomes``.

    What no shard has answered to by the end of the block is told again.
    """

    def __init__(self, calls: Sequence[Call], returns: LeaseReturns) -> None:
        self._returns = returns
        self._taken: list[tuple[int, str, list[int]]] = []
        self.calls = [self._telling(number, call) for number, call in enumerate(calls)]
        self.outcomes: list[Outcome] = []
        self._put_number: int | None = None

    def _telling(self, number: int, call: Call) -> Call:
        lease_ids = self._returns.take_along(call.endpoint) if call.op in ops.ENDING_LEASES else []
        if not lease_ids:
            return call
        self._taken.append((number, call.endpoint, lease_ids))
        ended = {"reader": this_process(), "lease_ids": np.array(lease_ids, np.int64).tobytes()}
        return call.with_more(ops.ENDED, ended)

    def __enter__(self) -> Self:
        if ops.PUT in [call.op for call in self.calls]:
            self._put_number = self._returns.put_begins()
        return self

    def __exit__(self, *_: object) -> None:
        if self._put_number is not None:
            self._returns.put_ended(self._put_number)
        for number, endpoint, lease_ids in self._taken:
            # An error may come from before the shard looked: it hears of these leases once more.
            is_told = bool(self.outcomes) and isinstance(self.outcomes[number], Message)
            self._returns.went_along(endpoint, lease_ids, is_told=is_told)
