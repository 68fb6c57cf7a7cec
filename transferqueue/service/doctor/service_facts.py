"""What there is to know of a service from here. Asks it, decides nothing."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transferqueue.client.sync_client import Client

PORT_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a process of the service listens, and whether that can be reached from here."""

    peer: str
    address: str
    is_reached: bool
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How far another process's clock is from ours, at least."""

    peer: str
    skew_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """One reading."""

    address: str
    answer_s: float
    """What the coordinator and all shards took to tell their status."""
    status: dict[str, Any]
    waits: dict[str, Any]
    links: list[dict[str, Any]]
    endpoints: list[Endpoint]
    clocks: list[Clock]


def read_service(client: Client) -> ServiceFacts:
    """Look at everything that the client is connected to."""
    session = client._ops.session
    before_s, start_s = time.time(), time.perf_counter()
    status = client.status()
    answer_s, after_s = time.perf_counter() - start_s, time.time()
    peers = [("coordinator", status), *((f"shard {s['slot']}", s) for s in status["shards"])]
    listening = [("coordinator", session.coordinator)]
    listening += [
        (f"shard {shard['slot']}", str(address))
        for shard in session.directory
        for address in shard["endpoints"]
    ]
    return ServiceFacts(
        address=session.coordinator,
        answer_s=answer_s,
        status=status,
        waits=client.waits(limit=1),
        links=client.links(),
        endpoints=[reach(peer, address) for peer, address in listening],
        clocks=[
            Clock(peer=peer, skew_s=skew_s(float(report["time_s"]), before_s, after_s))
            for peer, report in peers
        ],
    )


def skew_s(theirs_s: float, before_s: float, after_s: float) -> float:
    """How far a clock that was read between two of our readings is off at least; negative: it is
    behind. What the call took is the bound of what can be seen."""
    if theirs_s < before_s:
        return theirs_s - before_s
    return max(0.0, theirs_s - after_s)


def reach(peer: str, address: str, timeout_s: float = PORT_TIMEOUT_S) -> Endpoint:
    """Try an endpoint: a TCP connection, a socket's file."""
    scheme, _, place = address.partition("://")
    if scheme == "ipc":
        is_here = Path(place).exists()
        why = "" if is_here else "the socket is not on this host"
        return Endpoint(peer=peer, address=address, is_reached=is_here, why=why)
    if scheme != "tcp":
        return Endpoint(peer=peer, address=address, is_reached=True)
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s):
            return Endpoint(peer=peer, address=address, is_reached=True)
    except OSError as error:
        return Endpoint(peer=peer, address=address, is_reached=False, why=str(error))
