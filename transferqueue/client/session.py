"""Who is at the other end: the service's id and how to reach each of its shards."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transferqueue.backends.arena_address import ArenaAddress
from transferqueue.client.device_access import DeviceAccess
from transferqueue.client.local_memory import why_not_watched, why_out_of_reach
from transferqueue.client.silent_shards import SilentShards
from transferqueue.config import Transport
from transferqueue.errors import (
    ConfigError,
    InvalidInput,
    MemoryOutOfReach,
    NoService,
    RowsLost,
    WrongService,
)
from transferqueue.handle import BatchHandle
from transferqueue.homes import Homes
from transferqueue.process_id import boot_id
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_IPC = "ipc://"
INPROC = "inproc://"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAddress:
    """One shard as a client sees it."""

    slot: int
    endpoint: str
    """The best of its endpoints from here."""
    same_host: bool
    budget_bytes: int
    arena: ArenaAddress | None
    """Its memory, when this process can map it and is allowed to."""
    why_not_mapped: str
    """"" when ``arena`` is there."""
    draining: bool = False
    """Whether it takes no new rows."""
    devices: Mapping[int, DeviceAccess] = field(default_factory=dict)
    """The device memory that it has, by the number that addresses there begin with."""
    why_not_watched: str = ""
    """Why it could not tell whether this process still looks at memory that was lent to it."""
    transports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Ways beside the socket for large bytes: what the shard says of its end of each, by name."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Those of its backends that a process of its host can read itself, by number."""
    guard: int | None = None
    """The slot whose shard has a second copy of its rows, if one does."""

    @property
    def device(self) -> DeviceAccess | None:
        """The device that its bytes are on; ``None``: they are in memory of the host,"""
        return self.devices.get(0)

    @property
    def beside(self) -> list[DeviceAccess]:
        """but for those that belong on one of these."""
        return [self.devices[number] for number in sorted(self.devices) if number != 0]


def choose_endpoint(endpoints: Sequence[str], *, same_host: bool, transport: Transport) -> str:
    """Memory of this process, where the service runs in it; a Unix socket on the same host, when
    it can be seen from here; else TCP."""
    if endpoints and endpoints[0].startswith(INPROC) and transport is not Transport.TCP:
        return endpoints[0]
    for endpoint in endpoints:
        is_here = same_host and transport is not Transport.TCP
        if endpoint.startswith(_IPC) and is_here and Path(endpoint[len(_IPC) :]).exists():
            return endpoint
    for endpoint in endpoints:
        if endpoint.startswith("tcp://"):
            return endpoint
    if same_host and transport is Transport.TCP:
        raise ConfigError(
            "transport='tcp', but the service listens for clients of this host only; start it with "
            "tq.serve(host=...), or connect with transport='auto'"
        )
    raise NoService([f"{endpoint} (not on this host)" for endpoint in endpoints])


def _name_of_this_client() -> str:
    """Unlike any other, and it tells an operator whom to look at."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}/{secrets.token_hex(8)}"


class Session:
    """A connected client's view of its service. Holds no socket; `Channel` does."""

    def __init__(
        self,
        *,
        coordinator: str,
        hello: Mapping[str, Any],
        transport: Transport,
        window: str | None = None,
    ) -> None:
        """``window``: the transport that large bytes must take; then nothing is mapped."""
        self.coordinator = coordinator
        self.service_id = str(hello["service_id"])
        self._transport = transport
        self._window = window
        self._turn = itertools.count()
        self._shards: dict[int, ShardAddress] = {}
        self._slot_at: dict[str, int] = {}
        """Also of endpoints that were those of a shard once: calls may be under way there."""
        self.silent = SilentShards()
        """Shards that are passed over for a while."""
        self.client_id = _name_of_this_client()
        """Names this client in its claims and waits, over whichever of its sockets they go."""
        self.hear(hello)

    def hear(self, hello: Mapping[str, Any]) -> None:
        """How to reach the shards, as the coordinator says it now."""
        before = self._shards
        self._shards = self._addresses(hello["shards"])
        for slot, shard in before.items():
            if slot not in self._shards or self._shards[slot].endpoint != shard.endpoint:
                self.silent.answered(slot)
        self._slot_at |= {shard.endpoint: slot for slot, shard in self._shards.items()}
        self.lost_slots = frozenset(int(slot) for slot in hello.get("lost", ()))
        """Those whose shard was given up, with its rows."""
        self.homes = Homes.from_plain(hello["homes"])
        self.slots = sorted(self._shards, key=lambda slot: (not self._shards[slot].same_host, slot))
        """Slots of all shards, those of this host first."""
        self.directory: list[dict[str, Any]] = [dict(shard) for shard in hello["shards"]]
        """What each shard says of itself, to whoever wants to reach it."""
        self.slots_for_new_rows = [s for s in self.slots if not self._shards[s].draining]
        """Those that take new rows."""
        self.shards_epoch = str(hello.get(ops.SHARDS_EPOCH, ""))
        """Of which list of shards all this is; another one with any answer tells of a change."""

    def _addresses(self, shards: Iterable[Mapping[str, Any]]) -> dict[int, ShardAddress]:
        """`MemoryOutOfReach` where memory must be mapped and is not that of a shard whose memory
        was: that one's process has ended, and the next one has another memory."""
        addresses = {
            int(shard["slot"]): _shard_address(shard, self._transport, self._window)
            for shard in shards
        }
        if self._transport is Transport.SHM:
            for slot, address in addresses.items():
                if address.arena is None and slot not in self._shards:
                    raise MemoryOutOfReach(slot, address.why_not_mapped)
        return addresses

    def heard_of_draining(self, slot: int) -> bool:
        """The shard takes no new rows, whatever was heard before. Whether another one does."""
        self.slots_for_new_rows = [s for s in self.slots_for_new_rows if s != slot]
        return bool(self.slots_for_new_rows)

    def slots_to_fill(self) -> list[int]:
        """Those that new rows go to: not those that were silent when they were asked last, unless
        there are no others."""
        slots = self.slots_for_new_rows or self.slots
        now_s = time.monotonic()
        return [slot for slot in slots if not self.silent.is_passed_over(slot, now_s)] or slots

    def note_silence(self, endpoint: str) -> None:
        """A shard did not answer at this endpoint."""
        for slot, shard in self._shards.items():
            if shard.endpoint == endpoint:
                self.silent.was_silent(slot, time.monotonic())

    def slot_at(self, endpoint: str) -> int:
        """Whose endpoint this is, or was; -1: nobody's."""
        return self._slot_at.get(endpoint, -1)

    def next_turn(self) -> int:
        """A number that rises with every put, to take the shards in turn."""
        return next(self._turn)

    def knows(self, slot: int) -> bool:
        """Whether there was a shard of this slot when this client last looked."""
        return slot in self._shards

    def shard(self, slot: int, *, num_rows: int = 0, of_rows: int = 0) -> ShardAddress:
        """RowsLost for a slot that the service does not have."""
        address = self._shards.get(slot)
        if address is None:
            raise RowsLost(num_rows, of_rows, [slot])
        return address

    def guard_of(self, slot: int) -> int | None:
        """Where the second copy of a slot's rows is, if there is one."""
        address = self._shards.get(slot)
        guard = None if address is None else address.guard
        return guard if guard in self._shards else None

    @property
    def arenas(self) -> dict[int, ArenaAddress]:
        """The shards whose memory can be mapped, by slot."""
        return {slot: shard.arena for slot, shard in self._shards.items() if shard.arena}

    def split_bytes(self, configured: int) -> int:
        """From how many bytes for each shard new rows are spread over several of them.

        Shards of one host write to one memory, so spreading over them gains nothing and costs
        readers a copy to join the parts; it only helps a put that is much of one shard's budget.
        """
        if len(self.arenas) < len(self._shards):
            return configured
        return max(configured, min(s.budget_bytes for s in self._shards.values()) // 4)

    def check(self, handle: BatchHandle) -> None:
        """WrongService for a handle that another service made, InvalidInput for no handle."""
        if not isinstance(handle, BatchHandle):
            raise InvalidInput(
                f"handle takes a BatchHandle, as put() returns it, got a {type(handle).__name__}"
            )
        if handle.service_id != self.service_id:
            raise WrongService(handle.service_id, self.service_id)


def _shard_address(
    shard: Mapping[str, Any], transport: Transport, window: str | None
) -> ShardAddress:
    same_host = shard.get("boot_id") == boot_id()
    may_map = transport in (Transport.AUTO, Transport.SHM) and window is None
    why_not = why_out_of_reach(shard)
    if not why_not and not may_map:
        why_not = f"connected with transport={window or transport.value!r}"
    devices = map(DeviceAccess.from_plain, shard.get("devices", ()))
    arena = None if why_not else ArenaAddress.from_plain(dict(shard["arena"]))
    return ShardAddress(
        slot=int(shard["slot"]),
        endpoint=choose_endpoint(
            list(shard["endpoints"]), same_host=same_host, transport=transport
        ),
        same_host=same_host,
        budget_bytes=int(shard["budget_bytes"]),
        arena=arena,
        why_not_mapped=why_not,
        draining=bool(shard.get("draining")),
        devices={device.number: device for device in devices},
        why_not_watched=why_not_watched(shard),
        transports=shard.get("transports") or {},
        files=shard.get("files") or {},
        guard=shard.get("guard"),
    )
