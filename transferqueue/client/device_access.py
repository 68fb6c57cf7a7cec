"""The device memory of a shard, as the shard describes it to its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from transferqueue.devices.base import MemoryHandle
from transferqueue.errors import Malformed, OwnerLost

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAccess:
    """What `Backend.device_access` says."""

    token: str
    """Of this very memory; another process of the shard has another."""
    name: str
    """Of the device, as `find_device` takes it on the shard's host."""
    uuid: str
    handle: MemoryHandle | None
    why_not_shown: str
    number: int = 0
    """Of the backend whose memory it is: what the addresses there begin with."""
    is_kept: bool = False
    """Whether a shard that was killed finds what was there when it is back."""

    def is_of(self, lost: OwnerLost) -> bool:
        """Whether the owner that was lost is this memory's."""
        return self.handle is not None and lost.args[1] == str(self.handle.owner)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """`Malformed` when it is not that."""
        try:
            handle = plain["handle"]
            return cls(
                token=str(plain["token"]),
                name=str(plain["name"]),
                uuid=str(plain["uuid"]),
                handle=None if handle is None else MemoryHandle.from_plain(handle),
                why_not_shown=str(plain["why_not_shown"]),
                number=int(plain.get("number", 0)),
                is_kept=bool(plain.get("is_kept")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Malformed(f"not a description of device memory: {error!r}") from error
