"""How a client reaches each shard, and why not in a better way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.client.device_side import shard_side
from transferqueue.devices.ladder import Choice, ClientSide, choose

if TYPE_CHECKING:
    from transferqueue.client.device_side import DeviceSide
    from transferqueue.client.session import Session, ShardAddress
    from transferqueue.client.windows import ClientWindows

BEST = "shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way from this process to one shard."""

    slot: int
    way: str
    """``shm`` (mapped memory, the best there is), the name of a transport, ``inproc``, ``ipc`` (a
    Unix socket), ``tcp``."""
    endpoint: str
    """Where requests go; with ``shm`` the bytes of large columns take another way."""
    same_host: bool
    why_not_better: str
    """"" for the best."""
    device: str = ""
    """Where gets land; "": in memory of the host."""
    rung: str = ""
    """How large tensors come there: a `Rung`."""
    beside: str = ""
    """And how those that the shard keeps on devices beside its own memory, one after the other
    where it has several; "": it has none."""


def links_of(
    session: Session, side: DeviceSide | None = None, windows: ClientWindows | None = None
) -> list[Link]:
    """One a shard, by slot. ``side``: the device that gets land on."""
    return [_link(session.shard(slot), side, windows) for slot in sorted(session.slots)]


def _link(shard: ShardAddress, side: DeviceSide | None, windows: ClientWindows | None) -> Link:
    is_mapped = shard.arena is not None
    transport, why_no_transport = None, ""
    if windows is not None and not is_mapped:
        transport, why_no_transport = windows.transport_to(shard), windows.why_not(shard)
    why_not_better = "" if is_mapped else shard.why_not_mapped
    why_not_better = "; ".join(filter(None, [why_not_better, why_no_transport]))
    if side is None:
        device, choice = "", choose(ClientSide(), shard_side(shard, shard.device, {}))
    else:
        device, choice = side.device.name, side.way_to(shard)
        why_not_better = choice.why_not_better
    beside = _beside(shard, side)
    worse = [choice.why_not_better for choice in beside if side is not None and choice.why_not]
    of_devices = [f"on its device: {why}" for why in worse]
    why_not_better = "; ".join(filter(None, [why_not_better, *of_devices]))
    return Link(
        slot=shard.slot,
        way=BEST if is_mapped else transport or shard.endpoint.partition(":")[0],
        endpoint=shard.endpoint,
        same_host=shard.same_host,
        why_not_better=why_not_better,
        device=device,
        rung=choice.rung.value,
        beside=", ".join(choice.rung.value for choice in beside),
    )


def _beside(shard: ShardAddress, side: DeviceSide | None) -> list[Choice]:
    if side is None:
        return [choose(ClientSide(), shard_side(shard, one, {})) for one in shard.beside]
    return [side.way_beside(shard, one) for one in shard.beside]
