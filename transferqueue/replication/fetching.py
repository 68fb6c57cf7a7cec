"""A home that has lost its rows gets them from its guard, before it serves anybody."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transferqueue.errors import Closed, ServiceFailed, ServiceUnreachable, StorageFull
from transferqueue.net.calls import Call, raise_first
from transferqueue.net.listening import is_listening
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.process_id import boot_id
from transferqueue.replication.changes import Kind
from transferqueue.replication.mirror import Mirror, Taken
from transferqueue.replication.settings import GuardAddress
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.net.keys import ServiceKeys
    from transferqueue.shard.store import Store
    from transferqueue.wire.format import Message

ANSWER_S = 2.0
"""After which it is looked whether the guard is there at all."""

FIND_S = 10.0
"""How long a coordinator that is there may take to say where the second copy is."""

ASK_AGAIN_S = 0.1
"""While the coordinator waits for the guard to come."""

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
        """
        mirror = Mirror(store, backend, backend)
        at = 0
        while True:
            if time.monotonic() - self._told_s > STILL_THERE_S:
                self._where()
            asked = {"generation": copy.generation, "epoch": epoch, "at": at}
            answer = self._ask(copy.guard, asked)
            if answer is None or answer.body["kind"] is None:
                if at:
                    why = f"its guard, shard {copy.guard.slot}, ended while rows were fetched there"
                    raise ServiceFailed(f"shard-{self._slot}", why)
                return None
            if answer.body["kind"] == Kind.COPIED:
                return mirror
            if not mirror.take(_taken(answer)):
                raise StorageFull(0, 0, backend.capacity_bytes, 0.0, self._slot)
            if answer.body["kind"] == Kind.HEAD:
                store.choice.declare(mirror.choices)
            at += 1

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
