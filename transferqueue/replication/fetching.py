"""A home that has lost its rows gets them from its guard, before it serves anybody."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import Closed, ServiceFailed, ServiceUnreachable, StorageFull
from transferqueue.net.calls import Call, raise_first
from transferqueue.net.listening import is_listening
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.process_id import boot_id
from transferqueue.replication.changes import Kind
from transferqueue.replication.keeper import AWAY
from transferqueue.replication.mirror import Mirror, Taken
from transferqueue.replication.settings import GuardAddress
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.net.keys import ServiceKeys
    from transferqueue.shard.store import Store
    from transferqueue.wire.format import Message

_log = logging.getLogger(__name__)

ANSWER_S = 2.0
"""After which it is looked whether the guard is there at all."""

FIND_S = 10.0
"""How long a coordinator that is there may take to say where the second copy is."""

ASK_AGAIN_S = 0.1
"""While the coordinator waits for the guard to come."""

STORE_WAIT_S = 10.0
"""For a store in which bytes lie at the guard, and which does not answer. One that stands still has
them when it goes on; one that has ended knows nothing of them when it is started again, and nobody
can tell which of the two it is. So it is waited for, and gets are served by the guard. Then what
lies there is lost: to wait on would keep every other row of this shard from being changed, for the
sake of bytes that a shard with one copy loses with its own process."""

STILL_THERE_S = 2.0
"""How often the coordinator hears that this home is about to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondCopy:
    """The mirror that holds all that was acknowledged."""

    guard: GuardAddress
    generation: str
    epoch: int
    """The number of the process of the home that had it made."""


class Fetching:
    """``lineage``: see `ShardLink`. ``should_stop``: whether the process that asks is about to end.
    Then `Closed` is raised: its guard may be that same process, which answers no more."""

    def __init__(
        self,
        slot: int,
        *,
        lineage: str,
        coordinator: str,
        keys: ServiceKeys | None,
        should_stop: Callable[[], bool],
    ) -> None:
        self._slot = slot
        self._lineage = lineage
        self._coordinator = coordinator
        self._should_stop = should_stop
        self._channel = SyncChannelPool(keys.for_processes() if keys else None)
        self._told_s = 0.0

    def close(self) -> None:
        self._channel.close()

    def find(self) -> SecondCopy | None:
        """Where the rows are, as the coordinator has it on record. ``None``: nowhere. Raises
        `SlotTakenOver` when somebody else serves them. A guard that is away is waited for."""
        while (found := self._where()).get("is_awaited"):
            self._check_not_stopped()
            time.sleep(ASK_AGAIN_S)
        if found["copy"] is None:
            return None
        return SecondCopy(
            guard=GuardAddress.from_plain(found["guard"], boot_id=boot_id()),
            generation=str(found["copy"]),
            epoch=int(found["epoch"]),
        )

    def _check_not_stopped(self) -> None:
        if self._should_stop():
            raise Closed(f"shard {self._slot}")

    def _where(self) -> dict[str, Any]:
        if not is_listening(self._coordinator):  # whoever starts it again may wait for this one
            raise ServiceUnreachable(self._coordinator, ops.WHERE_COPY, 0.0)
        self._told_s = time.monotonic()
        call = Call(
            endpoint=self._coordinator,
            op=ops.WHERE_COPY,
            body={"slot": self._slot, "lineage": self._lineage},
        )
        outcomes = run_blocking(self._channel.exchange([call], timeout_s=FIND_S))
        return dict(raise_first(outcomes)[0].body)

    def fetch(
        self, store: Store, backend: SeveralBackends, *, epoch: int, copy: SecondCopy
    ) -> Mirror | None:
        """Fill an empty store. ``None``, and it is still empty: the guard has no such mirror.

        A mirror lives as long as its guard's process. So when nobody listens there, there is none,
        also when a process is just being started. One that listens and is silent is waited for.
        Rows whose bytes the guard cannot read are lost (`STORE_WAIT_S`).
        """
        mirror = Mirror(store, backend, ThereNow(backend))
        at, patience = 0, Patience(STORE_WAIT_S)
        while True:
            if time.monotonic() - self._told_s > STILL_THERE_S:
                self._where()
            asked = {"generation": copy.generation, "epoch": epoch, "at": at}
            asked["gives_up"] = patience.is_over(time.monotonic())
            answer = self._ask(copy.guard, asked)
            if answer is not None and answer.body["kind"] == AWAY:
                self._wait_for_store(answer.body["why"], patience)
                continue
            if answer is None or answer.body["kind"] is None:
                if at:
                    why = f"its guard, shard {copy.guard.slot}, ended while rows were fetched there"
                    raise ServiceFailed(f"shard-{self._slot}", why)
                return None
            if answer.body["kind"] == Kind.COPIED:
                self._drop_lost(mirror)
                return mirror
            if not mirror.take(_taken(answer)):
                full = StorageFull(0, 0, backend.capacity_bytes, 0.0, self._slot)
                raise backend.absence(backend.default) or full
            if answer.body["kind"] == Kind.HEAD:
                store.choice.declare(mirror.choices)
            at += 1

    def _wait_for_store(self, why: str, patience: Patience) -> None:
        now_s = time.monotonic()
        if patience.begin(now_s):
            _log.warning("shard %d waits for a store: %s", self._slot, why)
        self._check_not_stopped()
        time.sleep(ASK_AGAIN_S)

    def _drop_lost(self, mirror: Mirror) -> None:
        num_rows = mirror.lost.drop_rows()
        if num_rows:
            _log.error(
                "shard %d: %d rows are lost: the store that some of their bytes lay in at its "
                "guard does not have them, or does not answer", self._slot, num_rows,
            )  # fmt: skip

    def _ask(self, guard: GuardAddress, asked: dict[str, object]) -> Message | None:
        """``None``: there is no guard."""
        body = {"slot": self._slot, **asked}
        call = Call(endpoint=guard.endpoint, op=ops.FETCH_COPY, body=body)
        while is_listening(guard.endpoint):
            self._check_not_stopped()
            outcomes = run_blocking(self._channel.exchange([call], timeout_s=ANSWER_S))
            if not isinstance(outcomes[0], ServiceUnreachable):
                return raise_first(outcomes)[0]
        return None


class Patience:
    """How long something is waited for that may not come. No clock."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since_s: float | None = None

    def begin(self, now_s: float) -> bool:
        """It is waited for from now on. False: it was before."""
        is_first = self._since_s is None
        if is_first:
            self._since_s = now_s
        return is_first

    def is_over(self, now_s: float) -> bool:
        return self._since_s is not None and now_s - self._since_s >= self._limit_s


class ThereNow:
    """The space of a home that takes its rows back: what is to go to a backend whose store is away
    here goes to the default one, for the guard does not keep its bytes. ``None`` as well when that
    is away."""

    def __init__(self, backend: SeveralBackends) -> None:
        self._backend = backend

    def reserve(self, nbytes: Sequence[int]) -> np.ndarray | None:
        return self.reserve_in(nbytes, np.full(len(nbytes), self._backend.default))

    def reserve_in(self, nbytes: Sequence[int], numbers: np.ndarray) -> np.ndarray | None:
        away = [n for n in np.unique(numbers).tolist() if self._backend.absence(n) is not None]
        if away and self._backend.absence(self._backend.default) is not None:
            return None
        there = np.where(np.isin(numbers, away), self._backend.default, numbers)
        return self._backend.reserve_in(nbytes, there)

    def extents_at(self, addresses: np.ndarray, nbytes: Sequence[int]) -> np.ndarray:
        return self._backend.extents_at(addresses, nbytes)

    def free(self, addresses: np.ndarray, nbytes: np.ndarray) -> None:
        self._backend.free(addresses, nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Rows that a home has back."""

    mirror: Mirror
    epoch: int
    """The number that the process of the home has, above those of all before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """Fills an empty store from the second copy. See `Fetching`."""

    slot: int
    lineage: str
    coordinator: str
    keys: ServiceKeys | None
    should_stop: Callable[[], bool]

    def __call__(self, store: Store, backend: SeveralBackends, epoch: int) -> Fetched | None:
        """``None``, and the store is still empty, without one. ``epoch``: how many processes of
        the slot there were, so far as is known here."""
        with contextlib.closing(self._fetching()) as fetching:
            copy = fetching.find()
            if copy is None:
                return None
            epoch = max(epoch, copy.epoch + 1)
            mirror = fetching.fetch(store, backend, epoch=epoch, copy=copy)
        return None if mirror is None else Fetched(mirror=mirror, epoch=epoch)

    def is_there(self) -> bool:
        """Whether there is one."""
        with contextlib.closing(self._fetching()) as fetching:
            return fetching.find() is not None

    def _fetching(self) -> Fetching:
        return Fetching(
            self.slot,
            lineage=self.lineage,
            coordinator=self.coordinator,
            keys=self.keys,
            should_stop=self.should_stop,
        )


def _taken(answer: Message) -> Taken:
    first = answer.body["blocks"]
    return Taken(
        kind=Kind(answer.body["kind"]),
        body=dict(answer.body["step"]),
        frames=answer.frames,
        blocks=[] if first is None else answer.frames[first:],
    )
