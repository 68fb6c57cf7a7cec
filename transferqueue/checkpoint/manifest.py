"""The file that says what a checkpoint consists of, written last. Values; no file, no clock.

JSON, for whoever looks at it at night. ``check`` is the CRC-32 of all the rest, as it is written.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from typing import Any, Final

from transferqueue.checkpoint.placement import Stretch
from transferqueue.errors import CheckpointDamaged, CheckpointFormat

FORMAT: Final = 1

NAME: Final = "manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """One file of a checkpoint."""

    name: str
    nbytes: int
    crc32: int | None
    """``None`` for cells, of which each chunk has a checksum among the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedShard:
    """What one shard wrote."""

    slot: int
    rows: SavedFile
    cells: SavedFile
    num_rows: int
    extent_bytes: int
    """What its cells take in an arena, padding included."""
    stretches: tuple[Stretch, ...]

    @property
    def live_bytes(self) -> int:
        return self.cells.nbytes

    def to_plain(self) -> dict[str, Any]:
        return {
            "slot": self.slot,
            "rows": asdict(self.rows),
            "cells": asdict(self.cells),
            "num_rows": self.num_rows,
            "extent_bytes": self.extent_bytes,
            "stretches": [[s.first_uid, s.nbytes] for s in self.stretches],
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> SavedShard:
        return cls(
            slot=int(plain["slot"]),
            rows=SavedFile(**plain["rows"]),
            cells=SavedFile(**plain["cells"]),
            num_rows=int(plain["num_rows"]),
            extent_bytes=int(plain["extent_bytes"]),
            stretches=tuple(Stretch(first_uid=u, nbytes=n) for u, n in plain["stretches"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All of a checkpoint."""

    folder: str
    """Name of the folder, beside the manifest, that its files are in."""
    service_id: str
    life: int
    """0: the service was started empty; see ``lives.py``."""
    created_unix_s: float
    coordinator: SavedFile
    shards: tuple[SavedShard, ...]

    @property
    def num_rows(self) -> int:
        return sum(shard.num_rows for shard in self.shards)

    @property
    def live_bytes(self) -> int:
        return sum(shard.live_bytes for shard in self.shards)

    @property
    def extent_bytes(self) -> int:
        return sum(shard.extent_bytes for shard in self.shards)

    @property
    def files(self) -> list[SavedFile]:
        return [self.coordinator, *(f for s in self.shards for f in (s.rows, s.cells))]

    def encode(self) -> bytes:
        plain = {
            "format": FORMAT,
            "folder": self.folder,
            "service_id": self.service_id,
            "life": self.life,
            "created_unix_s": self.created_unix_s,
            "coordinator": asdict(self.coordinator),
            "shards": [shard.to_plain() for shard in self.shards],
        }
        return json.dumps({**plain, "check": _check_of(plain)}, indent=1).encode()

    @classmethod
    def decode(cls, text: bytes, path: str) -> Manifest:
        """`CheckpointDamaged`, or `CheckpointFormat` of another version. ``path``: for errors."""
        try:
            plain = json.loads(text)
            check, version = plain.pop("check"), plain["format"]
            if version != FORMAT:
                raise CheckpointFormat(path, int(version), FORMAT)
            if check != _check_of(plain):
                raise CheckpointDamaged(path, NAME, "it does not match its checksum")
            return cls(
                folder=str(plain["folder"]),
                service_id=str(plain["service_id"]),
                life=int(plain["life"]),
                created_unix_s=float(plain["created_unix_s"]),
                coordinator=SavedFile(**plain["coordinator"]),
                shards=tuple(SavedShard.from_plain(shard) for shard in plain["shards"]),
            )
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise CheckpointDamaged(path, NAME, f"it does not parse: {error!r}") from error


def _check_of(plain: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())
