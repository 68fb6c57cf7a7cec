"""A home that has lost its rows gets them from its guard, before it serves anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.errors import ServiceFailed, ServiceUnreachable, StorageFull
from transferqueue.net.calls import Call, raise_first
from transferqueue.net.listening import is_listening
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.replication.changes import Kind
from transferqueue.replication.mirror import Mirror, Taken
from transferqueue.wire import ops

if TYPE_CHECKING:
    from transferqueue.backends.several import SeveralBackends
    from transferqueue.net.keys import ServiceKeys
    from transferqueue.replication.settings import GuardSettings
    from transferqueue.shard.store import Store
    from transferqueue.wire.format import Message

ANSWER_S = 2.0
"""After which it is looked whether the guard is there at all."""


def fetch_rows(
    store: Store,
    backend: SeveralBackends,
    *,
    epoch: int,
    guard: GuardSettings,
    keys: ServiceKeys | None,
) -> Mirror | None:
    """Fill an empty store. ``None``, and it is still empty: the guard has no complete mirror.

    A mirror lives as long as its guard's process. So when nobody listens there, there is none,
    also when a process is just being started. One that listens and is silent is waited for.
    """
    mirror = Mirror(store, backend, backend)
    channel = SyncChannelPool(keys.for_processes() if keys else None)
    try:
        at = 0
        while True:
            answer = _ask(channel, guard, {"slot": store.slot, "epoch": epoch, "at": at})
            if answer is None or answer.body["kind"] is None:
                if at:
                    raise ServiceFailed(f"shard-{store.slot}", _ENDED.format(guard.slot))
                return None
            if answer.body["kind"] == Kind.COPIED:
                return mirror
            if not mirror.take(_taken(answer)):
                raise StorageFull(0, 0, backend.capacity_bytes, 0.0, store.slot)
            at += 1
    finally:
        channel.close()


_ENDED = "its guard, shard {}, ended while the rows of this one were fetched from it"


def _ask(channel: SyncChannelPool, guard: GuardSettings, body: dict[str, int]) -> Message | None:
    """``None``: there is no guard."""
    call = Call(endpoint=guard.endpoint, op=ops.FETCH_COPY, body=body)
    while is_listening(guard.endpoint):
        outcomes = run_blocking(channel.exchange([call], timeout_s=ANSWER_S))
        if not isinstance(outcomes[0], ServiceUnreachable):
            return raise_first(outcomes)[0]
    return None


def _taken(answer: Message) -> Taken:
    first = answer.body["blocks"]
    return Taken(
        kind=Kind(answer.body["kind"]),
        body=dict(answer.body["step"]),
        frames=answer.frames,
        blocks=[] if first is None else answer.frames[first:],
    )
