"""Which way bytes go between a process and a shard, and why not a better one.

The problem: a process wants bytes in some memory (a device's, or the host's), a shard has them in
some memory, and between the two there are up to six ways. Which of them work depends on facts of
both sides that neither can change: GPUs that a container shows or hides, drivers that refuse to
export, process ids that cannot be watched, limits on page-locked memory.

The rule: the rungs below, best first; the first whose conditions all hold is taken, and for each
that is better the first condition that fails is kept, as a sentence for an operator. A rung has no
other conditions than those here, so what `status` and `doctor` say is what is done.

=================  =============================================================================
``same-gpu``       the shard's block is opened here; one copy on one device
``peer``           it is opened here, and one device copies from the other
``pinned-shm``     the shard's shared memory is mapped and page-locked: one copy by the device
``shm``            it is mapped: a copy to a ring of chunks, and one by the device
``pinned-stream``  in chunks over a socket, through a ring of page-locked ones
``stream``         in chunks over a socket, to ordinary memory
=================  =============================================================================

Example. A trainer on GPU-a, a shard on GPU-b of the same host, and a container that shows the
trainer GPU-a alone: ``same-gpu`` fails as they are two GPUs, ``peer`` as the trainer does not see
GPU-b, ``pinned-shm`` and ``shm`` as the shard's bytes are on a device: ``pinned-stream``. With both
GPUs shown it is ``peer``.

Rejected: measuring every way at connect and taking the fastest. It costs seconds a pair on a large
host, and what it finds depends on who else copies at the moment; the order of these six does not.

No I/O: `transferqueue.client.device_side` looks for the facts. A put takes the same ways, the other
way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from transferqueue.errors import ConfigError, RungRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Rung(StrEnum):
    """Best first."""

    SAME_GPU = "same-gpu"
    PEER = "peer"
    PINNED_SHM = "pinned-shm"
    SHM = "shm"
    PINNED_STREAM = "pinned-stream"
    STREAM = "stream"

    @property
    def place(self) -> int:
        """0 is the best."""
        return list(Rung).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSide:
    """Where a shard has its bytes."""

    slot: int
    same_host: bool
    why_not_watched: str = ""
    """Why the shard could not tell whether a process of here still looks; "" when it can."""
    device_uuid: str | None = None
    """``None``: in memory of the host."""
    why_not_shown: str = ""
    """Why other processes cannot open its device memory."""
    why_not_mapped: str = ""
    """Why its host memory cannot be mapped here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSide:
    """Where a process wants its bytes, or has them."""

    device_uuid: str | None = None
    """``None``: in memory of the host."""
    visible: frozenset[str] = frozenset()
    """UUIDs of all devices that this process sees."""
    peers: Mapping[str, str] | None = None
    """Of other devices: why its own cannot reach them, "" where it can."""
    why_not_pinned: str = ""
    """Why host memory cannot be page-locked here."""
    why_not_arena_pinned: str = ""
    """Why the shared memory of shards is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The way between a pair."""

    rung: Rung
    why_not: Mapping[Rung, str]
    """One reason for each better rung that makes sense for what is wanted."""

    @property
    def why_not_better(self) -> str:
        """In one line, "" for the best."""
        return "; ".join(f"{rung}: {why}" for rung, why in self.why_not.items())


def choose(client: ClientSide, shard: ShardSide) -> Choice:
    """The best way. There is always one: ``stream`` has no condition."""
    why_not: dict[Rung, str] = {}
    for rung in _candidates(client):
        why = _CONDITIONS[rung](client, shard)
        if not why:
            return Choice(rung=rung, why_not=why_not)
        why_not[rung] = why
    raise AssertionError("the last rung has no condition")


def require(required: Rung, client: ClientSide, shard: ShardSide) -> Choice:
    """As `choose`. `RungRefused` when the best way is worse than the one required; `ConfigError`
    when that is a way to a device and none is asked for."""
    if required not in _candidates(client):
        raise ConfigError(f"required={required.value!r} goes to a device, and device= is not given")
    found = choose(client, shard)
    if found.rung.place > required.place:
        why = found.why_not[required]
        raise RungRefused(required.value, shard.slot, found.rung.value, why)
    return found


def _candidates(client: ClientSide) -> list[Rung]:
    """Bytes for the host are not better off page-locked."""
    return list(Rung) if client.device_uuid is not None else [Rung.SHM, Rung.STREAM]


def _why_not_opened(client: ClientSide, shard: ShardSide) -> str:
    """Why the shard's block of device memory cannot be opened in this process."""
    if shard.device_uuid is None:
        return "the shard keeps its bytes in memory of the host"
    if not shard.same_host:
        return "the shard is on another host"
    if shard.why_not_shown:
        return shard.why_not_shown
    if shard.device_uuid not in client.visible:
        return f"this process does not see {shard.device_uuid}"
    return shard.why_not_watched


def _why_not_same_gpu(client: ClientSide, shard: ShardSide) -> str:
    why = _why_not_opened(client, shard)
    if not why and client.device_uuid != shard.device_uuid:
        return f"the shard is on {shard.device_uuid}, not {client.device_uuid}"
    return why


def _why_not_peer(client: ClientSide, shard: ShardSide) -> str:
    why = _why_not_opened(client, shard)
    if why or shard.device_uuid is None or client.device_uuid == shard.device_uuid:
        return why
    return (client.peers or {}).get(
        shard.device_uuid, f"{client.device_uuid} does not reach {shard.device_uuid}"
    )


def _why_not_shm(client: ClientSide, shard: ShardSide) -> str:
    if not shard.same_host:
        return "the shard is on another host"
    if shard.device_uuid is not None:
        return "the shard keeps its bytes in memory of a device"
    return shard.why_not_mapped


def _why_not_pinned_shm(client: ClientSide, shard: ShardSide) -> str:
    return _why_not_shm(client, shard) or client.why_not_pinned or client.why_not_arena_pinned


_CONDITIONS: Mapping[Rung, Callable[[ClientSide, ShardSide], str]] = {
    Rung.SAME_GPU: _why_not_same_gpu,
    Rung.PEER: _why_not_peer,
    Rung.PINNED_SHM: _why_not_pinned_shm,
    Rung.SHM: _why_not_shm,
    Rung.PINNED_STREAM: lambda client, shard: client.why_not_pinned,
    Rung.STREAM: lambda client, shard: "",
}
