"""The name of a shared-memory arena: what a client needs to find and map its segments."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import Any, Self

from transferqueue.errors import ConfigError, Malformed
from transferqueue.memory.allocator import PAGE_BYTES
from transferqueue.process_id import boot_id

PREFIX = "transferqueue"
LOCK_SUFFIX = "lock"
_STEM = re.compile(rf"{PREFIX}-(?P<service>[\w.-]+)-(?P<slot>\d+)-(?P<token>[0-9a-f]{{16}})")
_SERVICE_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaAddress:
    """Where an arena is and how it is cut into segments. ``[0, capacity_bytes)`` lies in segment
    files one after the other, each ``segment_bytes`` long but the last."""

    directory: str
    service_id: str
    slot: int
    token: str
    """16 hex digits that nobody can guess; whoever finds this name here sees the same files."""
    segment_bytes: int
    capacity_bytes: int
    boot_id: str

    def __post_init__(self) -> None:
        if not _SERVICE_ID.fullmatch(self.service_id):
            raise ConfigError(
                f"service_id must be 1 to 64 of A-Z a-z 0-9 _ . -, got {self.service_id!r}"
            )
        if self.segment_bytes % PAGE_BYTES or self.segment_bytes < PAGE_BYTES:
            raise ConfigError(
                f"segment_bytes must be a multiple of {PAGE_BYTES}, got {self.segment_bytes}"
            )
        if _STEM.fullmatch(self.stem) is None:
            raise Malformed(f"not the name of an arena: {self.stem!r}")

    @property
    def stem(self) -> str:
        """What the names of all files of the arena begin with."""
        return f"{PREFIX}-{self.service_id}-{self.slot}-{self.token}"

    @property
    def num_segments(self) -> int:
        return -(-self.capacity_bytes // self.segment_bytes)

    @property
    def lock_path(self) -> str:
        return f"{self.directory}/{self.stem}.{LOCK_SUFFIX}"

    def segment_path(self, index: int) -> str:
        return f"{self.directory}/{self.stem}.{index:06d}"

    def segment_size(self, index: int) -> int:
        """Bytes of one segment file."""
        return min(self.segment_bytes, self.capacity_bytes - index * self.segment_bytes)

    def is_here(self) -> bool:
        """Whether this process can map the arena: same kernel, same directory, same user.

        Containers on one host may have the same boot id and different ``/dev/shm``, and a shared
        file system has the same files on different kernels, so both are looked at.
        """
        return self.boot_id == boot_id() and os.access(self.lock_path, os.R_OK | os.W_OK)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """`Malformed` when the values are not an arena's."""
        try:
            address = cls(**plain)
        except (TypeError, ConfigError) as error:
            raise Malformed(f"not an arena's address: {error}") from error
        return address


def parse_stem(stem: str) -> tuple[str, int, str] | None:
    """Service id, slot and token of an arena's file name without its suffix, else ``None``."""
    match = _STEM.fullmatch(stem)
    return (match["service"], int(match["slot"]), match["token"]) if match else None
