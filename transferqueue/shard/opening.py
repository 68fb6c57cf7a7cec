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

import numpy as np

from transferqueue.backends.several import ADDRESS_BITS
from transferqueue.checkpoint.restore_plan import SavedRows
from transferqueue.config import SPILL_NAME
from transferqueue.errors import JournalDamaged
from transferqueue.homes import NAMED, UidRange
from transferqueue.journal.file import JournalFile, read_journal
from transferqueue.shard.backend_choice import BackendChoice
from transferqueue.shard.journal import ShardJournal
from transferqueue.shard.recovery import Recovery
from transferqueue.shard.restoring import RowLoader
from transferqueue.shard.snapshot import snapshot
from transferqueue.wire.terms import Terms

if TYPE_CHECKING:
    from transferqueue.backends.opening import StorageConfig
    from transferqueue.backends.several import SeveralBackends
    from transferqueue.replication.fetching import Fetcher

_log = logging.getLogger(__name__)

LOST_UIDS = 1 << 32
"""A process that begins without its predecessor's journal gives uids from its epoch times this
on: more than 2**32 rows of one process would be needed to reach them. In a restored service, whose
shards have fewer uids, it is at most a 64th of them."""


FETCH_WAIT_S = 10.0
"""For a store that may be away, where there are second copies: rows that come back from one need
their place, and until they do gets are served from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A shard that is ready to serve."""

    backend: SeveralBackends
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
    storage: StorageConfig,
    *,
    epoch: int,
    beginning: Beginning | None = None,
    fetch: Fetcher | None = None,
) -> Opened:
    """``epoch``: how many processes of this slot there have been before. Only a shard with a
    guardian, which restarts it, keeps a journal. ``fetch``: gets the rows back that were lost,
    where somebody has a second copy of them; it is told the epoch."""
    slot = storage.config.slot
    if beginning is None:
        beginning = Beginning.of_slot(slot)
    storage = replace(storage, config=replace(storage.config, epoch=epoch))
    if fetch is not None:
        storage = replace(storage, wait_s=FETCH_WAIT_S)
    opened = storage.opened(recover=epoch > 0)
    found = _recovered(opened, slot) if opened.recovered else None
    if found is not None and found.num_lost and fetch is not None and fetch.is_there():
        found = None  # the guard has all that it is to have, those of the lost backend among it
    if found is None and opened.recovered:
        opened.close()
        opened = storage.opened(recover=False)
    names = [name for name in opened.names if name != SPILL_NAME]
    choice = BackendChoice(names, default=opened.default)
    try:
        if found is None:
            found = _begun_anew(opened, choice, storage, beginning, epoch, fetch)
    except BaseException:
        opened.close()
        raise
    found.store.uids_end = beginning.uids.stop
    epoch = max(epoch, found.epoch + 1)
    choice.declare(found.terms.backends)
    found.store.begin(epoch, opened, choice)
    journal = _open_journal(opened, storage, found, epoch)
    return Opened(backend=opened, found=found, journal=journal, epoch=epoch)


def _recovered(backend: SeveralBackends, slot: int) -> Recovery | None:
    path = backend.journal_path
    try:
        records = None if path is None else read_journal(path)
        if records is None:
            raise JournalDamaged(str(path), 0, "there is none")
        found = Recovery(slot, backend.extents_at)
        found.replay(records, str(path))
        _lose(backend, found, slot)
        _adopt(backend, found, str(path))
    except JournalDamaged as error:
        _log.error("shard %d: %s All rows that it held are lost.", slot, error)
        return None
    _log.warning("shard %d: recovered %d rows", slot, found.store.num_rows)
    return found


def _lose(backend: SeveralBackends, found: Recovery, slot: int) -> None:
    """Rows that have bytes in a backend which does not outlive the process, or is not there."""
    lost = backend.lost
    if len(lost):
        num_rows = found.lose(lambda addresses: np.isin(addresses >> ADDRESS_BITS, lost))
        if num_rows:
            names = [backend.names[number] for number in lost.tolist()]
            _log.error("shard %d: %d rows are lost with backends %s", slot, num_rows, names)
    unsealed = backend.without_unsealed
    if len(unsealed):
        found.give_up(lambda addresses: np.isin(addresses >> ADDRESS_BITS, unsealed))


def _adopt(backend: SeveralBackends, found: Recovery, path: str) -> None:
    try:
        backend.adopt(*found.ranges_in_use())
    except ValueError as error:
        raise JournalDamaged(path, 0, f"two records are of the same bytes: {error}") from error


def _begun_anew(
    backend: SeveralBackends,
    choice: BackendChoice,
    storage: StorageConfig,
    beginning: Beginning,
    epoch: int,
    fetch: Fetcher | None,
) -> Recovery:
    """A checkpoint is loaded by the first process only: what came after it is lost to the others
    with their journal, and rows that were cleared since would be there again."""
    found = Recovery(storage.config.slot, backend.extents_at)
    found.epoch = epoch - 1
    uids = beginning.uids
    found.store.next_uid = uids.start + epoch * min(LOST_UIDS, (uids.stop - uids.start) >> 6)
    found.store.lost_below = found.store.next_uid if epoch else 0
    if beginning.saved is not None and epoch == 0:
        loader = RowLoader(found.store, backend, choice, beginning.saved)
        found.terms = Terms(backends=loader.load())
    found.store.choice = choice
    fetched = fetch(found.store, backend, epoch) if fetch is not None and epoch else None
    if fetched is not None:
        found.adopt_copy(fetched.mirror)
        found.terms = Terms(backends=choice.of)
        found.epoch = fetched.epoch - 1
        _log.warning("shard %d: %d rows from its guard", storage.config.slot, found.store.num_rows)
    return found


def _open_journal(
    backend: SeveralBackends, storage: StorageConfig, found: Recovery, epoch: int
) -> ShardJournal:
    path, slot = backend.journal_path, storage.config.slot
    if path is None or storage.config.guardian_pid is None:
        return ShardJournal(None, slot=slot, answers=found.answers)
    records = snapshot(
        found.store,
        epoch=epoch,
        terms=found.terms,
        peers=found.peers,
        puts=found.puts.values(),
        answers=found.answers,
        unsent=found.tagged(),
    )
    return ShardJournal(JournalFile(path, records), slot=slot, answers=found.answers)
