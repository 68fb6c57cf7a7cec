"""What each process of a restored service starts from: values, and plain forms to pass on."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from transferqueue.checkpoint.folder import begin_life, read_manifest
from transferqueue.checkpoint.lives import Life
from transferqueue.checkpoint.manifest import Manifest, SavedFile, SavedShard
from transferqueue.checkpoint.placement import place
from transferqueue.environment import runtime_root
from transferqueue.errors import CheckpointTooLarge
from transferqueue.homes import END, Homes, UidRange

if TYPE_CHECKING:
    from collections.abc import Iterable

RESTORE_BYTES_PER_S = 32 << 20
"""No disk that is worth restoring from is slower: so much longer than another a start may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlane:
    """What a coordinator goes on from."""

    path: str
    folder: str
    file: SavedFile
    first_claim_id: int
    """Above every claim that was given before."""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> SavedPlane:
        return cls(**{**plain, "file": SavedFile(**plain["file"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRows:
    """What a shard goes on from: some of the rows of some files."""

    path: str
    folder: str
    shards: tuple[SavedShard, ...]
    """Those that wrote rows which are this shard's now."""
    ranges: tuple[UidRange, ...]
    """The uids that it is to take."""

    def to_plain(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "folder": self.folder,
            "shards": [{**shard.to_plain(), "stretches": []} for shard in self.shards],
            "ranges": [[r.start, r.stop] for r in self.ranges],
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> SavedRows:
        return cls(
            path=str(plain["path"]),
            folder=str(plain["folder"]),
            shards=tuple(SavedShard.from_plain(shard) for shard in plain["shards"]),
            ranges=tuple(UidRange(start=start, stop=stop) for start, stop in plain["ranges"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """A checkpoint, and the service that it becomes."""

    path: str
    manifest: Manifest
    life: Life
    homes: Homes

    @property
    def service_id(self) -> str:
        """Of the one that was saved: see the package's text."""
        return self.manifest.service_id

    @property
    def extra_start_s(self) -> float:
        """How much longer than an empty one this service may take to start."""
        return self.manifest.live_bytes / RESTORE_BYTES_PER_S

    def coordinator_settings(self) -> dict[str, Any]:
        plane = SavedPlane(
            path=self.path,
            folder=self._folder,
            file=self.manifest.coordinator,
            first_claim_id=self.life.number << 32,
        )
        return {
            "saved_service_id": self.service_id,
            "life": self.life.number,
            "homes": self.homes.to_plain(),
            "restore": plane.to_plain(),
        }

    def shard_settings(self, slot: int) -> dict[str, Any]:
        """``ConfigError`` for a slot that this life has no uids for."""
        uids = self.life.part(slot)
        ranges = tuple(r for r in self.homes.ranges_of(slot) if r.start < self.life.uids.start)
        shards = tuple(shard for shard in self.manifest.shards if _may_have(shard, ranges))
        rows = SavedRows(path=self.path, folder=self._folder, shards=shards, ranges=ranges)
        return {"uids": [uids.start, uids.stop], "restore": rows.to_plain()}

    @property
    def _folder(self) -> str:
        return os.path.join(self.path, self.manifest.folder)


def plan_restore(path: str, *, num_shards: int, budget_bytes: int) -> RestorePlan:
    """Look at a checkpoint before anything is started. ``budget_bytes``: what each shard can hold,
    on a disk to which it spills too. `CheckpointError`, or `CheckpointTooLarge` when they cannot
    hold it."""
    path = os.path.abspath(path)
    manifest = read_manifest(path)
    if manifest.extent_bytes > num_shards * budget_bytes:
        raise CheckpointTooLarge(path, manifest.extent_bytes, budget_bytes, num_shards)
    here = runtime_root()
    with contextlib.suppress(OSError):  # the service makes it too, and says what is wrong with it
        here.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = begin_life(path, manifest.life, host_folder=str(here))
    life = Life(number=number, num_shards=num_shards)
    stretches = [stretch for shard in manifest.shards for stretch in shard.stretches]
    return RestorePlan(path=path, manifest=manifest, life=life, homes=place(stretches, life))


def _may_have(shard: SavedShard, ranges: Iterable[UidRange]) -> bool:
    starts = [stretch.first_uid for stretch in shard.stretches]
    return any(
        start < mine.stop and mine.start < stop
        for start, stop in pairwise([*starts, END])
        for mine in ranges
    )
