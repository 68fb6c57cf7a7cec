"""What a shard of a service with two copies is told, at its start and by the coordinator."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_IPC = "ipc://"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySettings:
    """The same for all shards of a service."""

    bytes_per_s: float
    """Of copies in the background."""
    silence_s: float
    """After which changes do not wait for a guard any more that lives and says nothing."""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> CopySettings:
        return cls(**plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardAddress:
    """Where the second copy goes, or is."""

    slot: int
    endpoint: str
    """The best from here."""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], *, boot_id: str) -> GuardAddress:
        """``boot_id``: of this host. Raises `LookupError` when the guard listens nowhere that can
        be reached from here."""
        same_host = plain["boot_id"] == boot_id
        endpoint = _way_to(list(plain["endpoints"]), same_host=same_host)
        return cls(slot=int(plain["slot"]), endpoint=endpoint)


def _way_to(endpoints: Sequence[str], *, same_host: bool) -> str:
    for endpoint in endpoints:
        if same_host and endpoint.startswith(_IPC) and Path(endpoint[len(_IPC) :]).exists():
            return endpoint
    for endpoint in endpoints:
        if not endpoint.startswith(_IPC):
            return endpoint
    raise LookupError(f"none of {endpoints} can be reached from here")
