"""How a client reaches each shard, and why not in a better way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transferqueue.client.session import Session

BEST = "shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way from this process to one shard."""

    slot: int
    way: str
    """``shm`` (mapped memory, the best there is), ``inproc``, ``ipc`` (a Unix socket), ``tcp``."""
    endpoint: str
    """Where requests go; with ``shm`` the bytes of large columns take another way."""
    same_host: bool
    why_not_better: str
    """"" for ``shm``."""


def links_of(session: Session) -> list[Link]:
    """One a shard, by slot."""
    links = []
    for slot in sorted(session.slots):
        shard = session.shard(slot)
        scheme = shard.endpoint.partition(":")[0]
        is_mapped = shard.arena is not None
        links.append(
            Link(
                slot=slot,
                way=BEST if is_mapped else scheme,
                endpoint=shard.endpoint,
                same_host=shard.same_host,
                why_not_better="" if is_mapped else shard.why_not_mapped,
            )
        )
    return links
