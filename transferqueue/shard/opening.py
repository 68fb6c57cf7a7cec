"""Starting a shard: anew, or from what its predecessor left.

A predecessor is another process of the same service and slot. Its arena can be taken over only
when its lock is free, so it has ended: it neither writes there nor answers any more. ``epoch``
counts the processes of a slot. It is in the numbers of puts and leases, so that what a client was
given by one process never means something else to the next.

When the arena is there and its journal is not, or is damaged, nothing in the arena can be trusted:
the shard begins anew in another arena, with uids above all that were ever given, and says of older
ones that they are lost. The old files are unlinked, so whoever has them mapped keeps looking at
the old bytes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from transferqueue.backends.disk import DiskBackend
from transferqueue.backends.registry import open_backend
from transferqueue.backends.tiered import TieredBackend, spill_config
from transferqueue.checkpoint.restore_plan import SavedRows
from transferqueue.errors import JournalDamaged
from transferqueue.homes import NAMED, UidRange
from transferqueue.journal.file import JournalFile, read_journal
from transferqueue.shard.journal import ShardJournal
from transferqueue.shard.recovery import Recovery
from transferqueue.shard.restoring import RowLoader
from transferqueue.shard.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.backends.base import Backend, BackendConfig
    from transferqueue.config import SpillConfig
    from transferqueue.replication.mirror import Mirror
    from transferqueue.shard.store import Store

    Fetch = Callable[[Store, Backend], Mirror | None]

_log = logging.getLogger(__name__)

LOST_UIDS = 1 << 32
"""A process that begins without its predecessor's journal gives uids from its epoch times this
on: more than 2**32 rows of one process would be needed to reach them. In a restored service, whose
shards have fewer uids, it is at most a 64th of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A shard that is ready to serve."""

    backend: Backend
    found: Recovery
    journal: ShardJournal
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a shard without a predecessor begins with."""

    uids: UidRange
    """Those that it may give."""
    saved: SavedRows | None = None
    """Of a checkpoint."""

    @classmethod
    def of_slot(cls, slot: int) -> Beginning:
        """Of a service that is started empty."""
        (home,) = NAMED.ranges_of(slot)
        return cls(uids=UidRange(start=home.start + 1, stop=home.stop))

    @classmethod
    def from_settings(cls, plain: dict[str, Any]) -> Beginning:
        """Of a shard of a restored service (`RestorePlan.shard_settings`), or one that joins."""
        start, stop = plain["uids"]
        saved = plain.get("restore")
        return cls(
            uids=UidRange(start=start, stop=stop),
            saved=None if saved is None else SavedRows.from_plain(saved),
        )


def open_shard(
    backend: str,
    config: BackendConfig,
    *,
    epoch: int,
    beginning: Beginning | None = None,
    spill: SpillConfig | None = None,
    fetch: Fetch | None = None,
) -> Opened:
    """``epoch``: how many processes of this slot there have been before. Only a shard with a
    guardian, which restarts it, keeps a journal. ``spill``: the disk that slabs may move to.
    ``fetch``: gets the rows back that were lost, where somebody has a second copy of them."""
    if beginning is None:
        beginning = Beginning.of_slot(config.slot)
    config = replace(config, recover=epoch > 0)
    opened = _open_backend(backend, config, spill)
    found = _recovered(opened, config) if opened.recovered else None
    if found is None and opened.recovered:
        opened.close()
        opened = _open_backend(backend, replace(config, recover=False), spill)
    try:
        if found is None:
            found = _begun_anew(opened, config, beginning, epoch, fetch)
    except BaseException:
        opened.close()
        raise
    found.store.uids_end = beginning.uids.stop
    epoch = max(epoch, found.epoch + 1)
    found.store.begin(epoch, opened)
    journal = _open_journal(opened, config, found, epoch)
    return Opened(backend=opened, found=found, journal=journal, epoch=epoch)


def _open_backend(backend: str, config: BackendConfig, spill: SpillConfig | None) -> Backend:
    """What the disk has is of use only with the memory whose journal tells of it. Where that is
    there and the disk's file is not, gets of what it held find a file that is too short."""
    memory = open_backend(backend, config)
    if spill is None:
        return memory
    try:
        on_disk = spill_config(config, directory=spill.directory, nbytes=spill.nbytes)
        disk = DiskBackend.open(replace(on_disk, recover=memory.recovered))
    except BaseException:
        memory.close(keep=memory.recovered)
        raise
    return TieredBackend(memory, disk)


def _recovered(backend: Backend, config: BackendConfig) -> Recovery | None:
    path = backend.journal_path
    try:
        records = None if path is None else read_journal(path)
        if records is None:
            raise JournalDamaged(str(path), 0, "there is none")
        found = Recovery(config.slot, backend.extents)
        found.replay(records, str(path))
        _adopt(backend, found, str(path))
    except JournalDamaged as error:
        _log.error("shard %d: %s All rows that it held are lost.", config.slot, error)
        return None
    _log.warning("shard %d: recovered %d rows", config.slot, found.store.num_rows)
    return found


def _adopt(backend: Backend, found: Recovery, path: str) -> None:
    try:
        backend.adopt(*found.ranges_in_use())
    except ValueError as error:
        raise JournalDamaged(path, 0, f"two records are of the same bytes: {error}") from error


def _begun_anew(
    backend: Backend,
    config: BackendConfig,
    beginning: Beginning,
    epoch: int,
    fetch: Fetch | None,
) -> Recovery:
    """A checkpoint is loaded by the first process only: what came after it is lost to the others
    with their journal, and rows that were cleared since would be there again."""
    found = Recovery(config.slot, backend.extents)
    found.epoch = epoch - 1
    uids = beginning.uids
    found.store.next_uid = uids.start + epoch * min(LOST_UIDS, (uids.stop - uids.start) >> 6)
    found.store.lost_below = found.store.next_uid if epoch else 0
    if beginning.saved is not None and epoch == 0:
        RowLoader(found.store, backend, beginning.saved, config.budget_bytes).load()
    mirror = fetch(found.store, backend) if fetch is not None and epoch else None
    if mirror is not None:
        found.adopt_copy(mirror)
        _log.warning("shard %d: %d rows from its guard", config.slot, found.store.num_rows)
    return found


def _open_journal(
    backend: Backend, config: BackendConfig, found: Recovery, epoch: int
) -> ShardJournal:
    path = backend.journal_path
    if path is None or config.guardian_pid is None:
        return ShardJournal(None, slot=config.slot, answers=found.answers)
    records = snapshot(
        found.store,
        epoch=epoch,
        limited=found.limited,
        peers=found.peers,
        puts=found.puts.values(),
        answers=found.answers,
        unsent=found.tagged(),
    )
    return ShardJournal(JournalFile(path, records), slot=config.slot, answers=found.answers)
