"""In place of a backend whose store was not there when its shard was started again.

The rows that had bytes there ended with the process before, as they would have anyway. All that
lies elsewhere is served: without this a store that takes the shards with it, as Ray does, would
keep the rest from coming back. The store is looked for again, on a thread, until it is there; from
then on this is the backend.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from transferqueue.backends.base import Backend, Capabilities
from transferqueue.backends.looking_again import LookingAgain
from transferqueue.backends.opening_try import OpeningTry
from transferqueue.errors import ServiceFailed, TransferQueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from transferqueue.backends.base import BackendConfig

    Int64s = NDArray[np.int64]

LOOK_S = 0.1
"""How often it is seen whether a try has ended."""

_log = logging.getLogger(__name__)


class AwayBackend(Backend):
    """Holds nothing and takes nothing until it is there: `ServiceFailed` says why. Puts wait for
    the first try, as they would for space.

    Only ``tick`` makes it another one, so that nothing changes while a request is served. Clients
    were told what they may map, open and read themselves when the shard came; so nothing of this.
    """

    def __init__(
        self,
        name: str,
        config: BackendConfig,
        open_it: Callable[[], Backend],
        *,
        what_to_do: str = "",
    ) -> None:
        """The first try begins. ``what_to_do``: who reads that it is away."""
        self._name = name
        self._slot = config.slot
        self._budget_bytes = config.budget_bytes
        self._open_it = open_it
        self._now_s = time.monotonic()  # of the last tick
        self._looking = LookingAgain(self._now_s, what_to_do)
        self._try: OpeningTry | None = OpeningTry(name, open_it)
        self._there: Backend | None = None
        self._capabilities = Capabilities()
        self._since_s = time.time()
        self._has_been_said = False

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        raise NotImplementedError("made where another one is opened")

    def at_once(self, limit_s: float) -> Backend:
        """The backend alone, if it is there within so long; else this one."""
        if self._try is not None:
            self._try.wait(limit_s)
        self.tick(time.monotonic())
        return self if self._there is None else self._there

    # -- looking for it -------------------------------------------------------------------------

    def tick(self, now_s: float) -> float | None:
        if self._there is None:
            self._now_s = now_s
            self._look(now_s)
        return self._next_s() if self._there is None else self._there.tick(now_s)

    def _next_s(self) -> float:
        again_s = self._looking.again_s
        return self._now_s + LOOK_S if again_s is None else again_s

    def _look(self, now_s: float) -> None:
        if self._looking.is_due(now_s):
            self._looking.begun()
            self._try = OpeningTry(self._name, self._open_it)
        outcome = None if self._try is None else self._try.outcome()
        if outcome is not None:
            self._try = None
        if isinstance(outcome, Backend):
            self._is_there(outcome, now_s)
        elif outcome is not None:
            is_ours = isinstance(outcome, TransferQueueError)
            self._looking.failed(str(outcome) if is_ours else repr(outcome), now_s)
        if self._there is None and not self._looking.is_worth_waiting(now_s):
            self._say_away()

    def _is_there(self, backend: Backend, now_s: float) -> None:
        self._there = backend
        self._capabilities = replace(backend.capabilities, mappable=False)
        if self._has_been_said:
            _log.warning(
                "shard %d: backend %r is there again, after %.0f s and %d tries",
                self._slot, self._name, now_s - self._looking.since_s, self._looking.num_failed + 1,
            )  # fmt: skip

    def _say_away(self) -> None:
        """Once."""
        if not self._has_been_said:
            self._has_been_said = True
            why = self._looking.why
            _log.error("shard %d goes on without backend %r: %s", self._slot, self._name, why)

    def absence(self) -> ServiceFailed | None:
        """What those hear who need it; ``None``: it is there."""
        if self._there is not None:
            return None
        looking, again_s = self._looking, self._looking.again_s
        when = "now" if again_s is None else f"in {max(0.0, again_s - self._now_s):.0f} s"
        return ServiceFailed(
            f"backend {self._name!r}",
            f"was not there when this shard was started again, {self._now_s - looking.since_s:.0f} "
            f"s ago; it was looked for {looking.num_failed} times, and is again {when}: "
            f"{looking.why}",
        )

    def _refuse(self) -> NoReturn:
        absence = self.absence()
        assert absence is not None
        raise absence

    @property
    def _it(self) -> Backend:
        return self._refuse() if self._there is None else self._there

    # -- as the backend, when it is there -------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return self._capabilities

    @property
    def capacity_bytes(self) -> int:
        return self._budget_bytes if self._there is None else self._there.capacity_bytes

    @property
    def used_bytes(self) -> int:
        return 0 if self._there is None else self._there.used_bytes

    @property
    def largest_free(self) -> int:
        return self._budget_bytes if self._there is None else self._there.largest_free

    def reserve(self, nbytes: Sequence[int]) -> Int64s | None:
        if self._there is None and self._looking.is_worth_waiting(self._now_s):
            return None
        return self._it.reserve(nbytes)

    def extents(self, nbytes: Sequence[int]) -> Int64s:
        return np.asarray(nbytes, np.int64) if self._there is None else self._there.extents(nbytes)

    def writable(self, address: int, nbytes: int) -> memoryview:
        return self._it.writable(address, nbytes)

    def write(self, address: int, data: memoryview) -> None:
        self._it.write(address, data)

    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._it.seal(addresses, nbytes)

    def read_into(self, address: int, out: memoryview) -> None:
        self._it.read_into(address, out)

    def read_ranges(self, addresses: Int64s, nbytes: Int64s) -> NDArray[np.uint8]:
        return self._it.read_ranges(addresses, nbytes)

    def readable(self, address: int, nbytes: int) -> memoryview:
        return self._it.readable(address, nbytes)

    def lies_in_memory(self, addresses: Int64s) -> bool:
        return self._there is not None and self._there.lies_in_memory(addresses)

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        if self._there is not None:
            self._there.free(addresses, nbytes)
        elif np.any(nbytes):
            raise ValueError(f"backend {self._name!r} is away: none of these bytes are in use")

    def facts(self) -> dict[str, Any]:
        """While it is not there ``away``: why; ``away_since_s``: seconds since 1970;
        ``times_looked``: how often it was looked for in vain."""
        if self._there is not None:
            return self._there.facts()
        return {
            "away": self._looking.why,
            "away_since_s": self._since_s,
            "times_looked": self._looking.num_failed,
        }

    def close(self, *, keep: bool = False) -> None:
        """A try that is under way is left alone."""
        if self._try is not None:
            self._try.give_up()
        if self._there is not None:
            self._there.close(keep=keep)
