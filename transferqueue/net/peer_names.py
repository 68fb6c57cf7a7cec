"""How a peer is named to others and in records."""

from __future__ import annotations

from hashlib import blake2b


def peer_name(routing_id: bytes) -> str:
    """A name of its own for each routing id, from which the id does not follow: whoever connects
    with the id of another takes its place, so no answer ever holds one."""
    return blake2b(routing_id, digest_size=8).hexdigest()
