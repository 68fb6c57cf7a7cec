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
from typing import TYPE_CHECKING

from transferqueue.backends.registry import open_backend
from transferqueue.errors import JournalDamaged
from transferqueue.journal.file import JournalFile, read_journal
from transferqueue.shard.journal import ShardJournal
from transferqueue.shard.recovery import Recovery
from transferqueue.shard.snapshot import snapshot

if TYPE_CHECKING:
    from transferqueue.backends.base import Backend, BackendConfig

_log = logging.getLogger(__name__)

LOST_SEQUENCES = 1 << 32
"""A process that begins without its predecessor's journal gives uids from its epoch times this
on: more than 2**32 rows of one process would be needed to reach them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A shard that is ready to serve."""

    backend: Backend
    found: Recovery
    journal: ShardJournal
    epoch: int


def open_shard(backend: str, config: BackendConfig, *, epoch: int) -> Opened:
    """``epoch``: how many processes of this slot there have been before. Only a shard with a
    guardian, which restarts it, keeps a journal."""
    config = replace(config, recover=epoch > 0)
    opened = open_backend(backend, config)
    found = _recovered(opened, config) if opened.recovered else None
    if found is None and opened.recovered:
        opened.close()
        opened = open_backend(backend, replace(config, recover=False))
    if found is None:
        found = _begun_anew(config.slot, epoch)
    epoch = max(epoch, found.epoch + 1)
    found.store.begin(epoch, opened)
    journal = _open_journal(opened, config, found, epoch)
    return Opened(backend=opened, found=found, journal=journal, epoch=epoch)


def _recovered(backend: Backend, config: BackendConfig) -> Recovery | None:
    path = backend.journal_path
    try:
        records = None if path is None else read_journal(path)
        if records is None:
            raise JournalDamaged(str(path), 0, "there is none")
        found = Recovery(config.slot)
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


def _begun_anew(slot: int, epoch: int) -> Recovery:
    found = Recovery(slot)
    found.epoch = epoch - 1
    first = found.store.next_uid
    found.store.next_uid = first + epoch * LOST_SEQUENCES
    found.store.lost_below = found.store.next_uid if epoch else 0
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
