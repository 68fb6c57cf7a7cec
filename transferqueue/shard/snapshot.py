"""Everything a shard holds, as journal records: what its journal is rewritten with.

O(live): rows, cells, slabs and leases that are there now. Slabs that only a put under way without
a record of its own uses, or only a reader over a socket holds, are left out: those end with the
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.journal.codes import write_runs, write_sizes
from transferqueue.journal.records import Record
from transferqueue.shard.journal import lease_record
from transferqueue.uids import encode_uids
from transferqueue.wire.arrays import ArrayWriter
from transferqueue.wire.tags import write_tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from transferqueue.shard.rows import RowTable
    from transferqueue.shard.store import Committed, Store
    from transferqueue.wire.terms import Terms

_COLUMNS = (
    "address",
    "extent_bytes",
    "unit_bytes",
    "num_rows",
    "live_rows",
    "live_bytes",
    "put_id",
    "place",
)
"""Of a slab."""

HEAD, SLABS, ROWS, HELD, ANSWERS, TAGGED = "head", "slabs", "rows", "held", "answers", "tagged"
PARTS = "parts"


def snapshot(
    store: Store,
    *,
    epoch: int,
    terms: Terms,
    peers: Mapping[str, Mapping[str, Any]],
    puts: Iterable[Record],
    answers: Mapping[tuple[bytes, int], list[Any]],
    unsent: Iterable[Committed],
) -> Iterator[Record]:
    """``peers``: processes that map this shard. ``puts``: records of those under way.
    ``unsent``: what the coordinator has not acknowledged; it may be the only place of its tags."""
    yield Record(
        kind=HEAD,
        body={
            "epoch": epoch,
            "next_uid": store.next_uid,
            "lost_below": store.lost_below,
            "lost_in": dict(store.lost_in),
            "terms": terms.to_plain(),
        },
    )
    for key, process in peers.items():
        yield Record(kind="peer", body={"peer": key, "process": dict(process)})
    leases = [lease for lease in store.leases.each() if lease[1] in peers]
    number_of = _number_slabs(store, [slabs for _, _, slabs in leases])
    yield _slabs(store, np.flatnonzero(number_of >= 0))
    for name, table in store.partitions.items():
        yield _rows(store, name, table, number_of)
    yield _held(store, [slabs for _, _, slabs in leases], number_of)
    for lease_id, reader, _ in leases:
        yield lease_record(store, lease_id, reader, None)
    yield from puts
    yield Record(kind=ANSWERS, body={"answers": [[*key, *said] for key, said in answers.items()]})
    yield Record(kind=PARTS, body={"ended": store.split_puts.ended_to_plain()})
    for committed in unsent:
        if committed.tags:
            yield tagged(committed)


def tagged(committed: Committed) -> Record:
    """The tags of a put, for a coordinator that may not have heard of them."""
    arrays = ArrayWriter()
    body = {"partition": committed.partition, "tags": write_tags(committed.tags, arrays)}
    body["uids"] = arrays.add(committed.uids)
    return Record(kind=TAGGED, body=body, frames=arrays.frames)


def _number_slabs(store: Store, leased: list[np.ndarray]) -> np.ndarray:
    """int64[slab ids]: the place of each slab in the snapshot, -1 for those that are not in."""
    ids = store.slabs.ids()
    is_in = np.zeros(len(store.slabs.num_rows), dtype=bool)
    is_in[ids[store.slabs.live_rows[ids] > 0]] = True
    for reservation in store.reservations():
        is_in[reservation.slab_ids] = False
    for slabs in leased:
        is_in[slabs] = True
    numbers = np.full(len(is_in), -1, dtype=np.int64)
    numbers[is_in] = np.arange(np.count_nonzero(is_in))
    return numbers


def _slabs(store: Store, ids: np.ndarray) -> Record:
    arrays, slabs = ArrayWriter(), store.slabs
    spec_ids = slabs.spec_id[ids]
    distinct, index = np.unique(spec_ids, return_inverse=True)
    body: dict[str, Any] = {
        "specs": [list(store.specs[spec_id].to_wire()) for spec_id in distinct.tolist()],
        "spec": arrays.add(index.astype(np.int32)),
    }
    for name in _COLUMNS:
        body[name] = arrays.add(getattr(slabs, name)[ids])
    return Record(kind=SLABS, body=body, frames=arrays.frames)


def _rows(store: Store, name: str, table: RowTable, number_of: np.ndarray) -> Record:
    arrays = ArrayWriter()
    fields: dict[str, Any] = {}
    for field, present, cells in table.columns():
        units = store.slabs.unit_bytes[cells.slabs]
        fields[field] = [
            None if bool(present.all()) else arrays.add(np.packbits(present)),
            int(np.count_nonzero(present)),
            write_runs(number_of[cells.slabs], None, arrays),
            write_sizes(cells.lengths, arrays),
            write_runs(cells.starts, cells.lengths * units, arrays),
        ]
    uids = np.frombuffer(encode_uids(table.uids()), np.uint8)
    body = {"partition": name, "uids": arrays.add_bytes(uids), "fields": fields}
    return Record(kind=ROWS, body=body, frames=arrays.frames)


def _held(store: Store, leased: list[np.ndarray], number_of: np.ndarray) -> Record:
    slabs, addresses, nbytes = store.leases.held()
    kept = np.isin(slabs, np.concatenate([np.empty(0, np.int32), *leased]))
    arrays = ArrayWriter()
    body = {
        "slabs": arrays.add(number_of[slabs[kept]]),
        "addresses": arrays.add(addresses[kept]),
        "nbytes": arrays.add(nbytes[kept]),
    }
    return Record(kind=HELD, body=body, frames=arrays.frames)
