"""From the records of a journal to what the coordinator knew when it was killed.

Records are replayed in order on the control plane itself, at the times at which they were
written. Rows that they name are entered without any field; the shards then tell which rows there
are and what they have, and rows that no shard names are dropped. Nothing is told to anybody:
frees that a shard has not reported are ordered again when it comes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator import discards, dump, journal
from transferqueue.coordinator.leases import Ending, Lease
from transferqueue.coordinator.policy import PartitionPolicy
from transferqueue.coordinator.replicas import Holding
from transferqueue.coordinator.requests import committed_tags
from transferqueue.coordinator.table import TaskState
from transferqueue.coordinator.tag_values import DTYPES, TagKind, TagValues
from transferqueue.errors import JournalDamaged, TransferQueueError
from transferqueue.wire.arrays import ArrayReader
from transferqueue.wire.tags import read_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transferqueue.coordinator.control_plane import ControlPlane
    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.replicas import SharedBatch
    from transferqueue.coordinator.row_set import Rows
    from transferqueue.coordinator.uid_ranges import Uids
    from transferqueue.journal.records import Record

    Key = tuple[bytes, int]


class Replay:
    """Replays onto a control plane that is empty."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.answers: OrderedDict[Key, Record] = OrderedDict()
        """What was answered to requests that may come again."""
        self.requests: dict[int, Key] = {}
        """Of claims that are out: the request that each answers."""
        self.lost: dict[int, str] = {}
        """Slots that were given up, with the incarnation of the shard that had them."""
        self.copies: dict[int, dict[str, Any]] = {}
        """Of slots, what is on record of their second copies."""
        self._apply: dict[str, Callable[[Record], None]] = {
            dump.HEAD: self._head,
            dump.PARTITION: self._partition,
            dump.ROWS: self._rows,
            dump.FREEING: self._freeing,
            dump.LEFT: self._left,
            dump.LINE: self._line,
            journal.DECLARED: self._declared,
            journal.DROPPED: self._dropped,
            journal.TAGGED: self._tagged,
            journal.ADVANCED: self._advanced,
            journal.GRANTED: self._granted,
            journal.ACKED: self._acked,
            journal.GIVEN_BACK: self._given_back,
            journal.EXTENDED: self._extended,
            journal.DISCARDED: self._discarded,
            journal.REDRIVEN: self._redriven,
            journal.LOST: self._lost,
            journal.FOUND: self._found,
            journal.JOINED: self._joined,
            journal.COPIES: self._copies,
            journal.ANSWER: self._answer,
        }

    def run(self, records: Iterable[Record], where: str = "") -> None:
        """All records of a journal. `JournalDamaged` when they do not go together."""
        for number, record in enumerate(records):
            try:
                at_s = record.body.get("at_s")
                if at_s is not None:
                    self._plane.tick(float(at_s))
                self._apply[record.kind](record)
                self._note_answer(record)
            except (TransferQueueError, LookupError, ValueError, TypeError, AssertionError) as err:
                why = f"record {number} ({record.kind}) cannot follow those before it: {err!r}"
                raise JournalDamaged(where, 0, why) from err

    def _note_answer(self, record: Record) -> None:
        if "answer" in record.body:
            plain, body, num_frames = record.body["answer"]
            frames = record.frames[len(record.frames) - num_frames :]
            self.answers[_key(plain)] = journal.answer_record(_key(plain), body, frames)

    # -- a dump ---------------------------------------------------------------------------------

    def _head(self, record: Record) -> None:
        arrays, body = ArrayReader(record.frames), record.body
        ids, expired_s = arrays.int64s(body["closed"]), arrays.get(body["expired_s"])
        closed = {
            claim_id: None if math.isnan(at_s) else at_s
            for claim_id, at_s in zip(ids.tolist(), expired_s.tolist(), strict=True)
        }
        self._plane.leases.restore(int(body["next_claim_id"]), closed)
        self._plane.next_slot = int(body["next_slot"])

    def _partition(self, record: Record) -> None:
        body = record.body
        name = str(body["partition"])
        if body["policy"] is not None:
            policy = PartitionPolicy.from_plain(body["policy"])
            self._plane.create_partition(name, policy, now_s=float(body["at_s"]))
        made = self._plane.partitions.made(name)
        made.staleness.newest = body["newest"]
        made.quota.rows_put = int(body["rows_put"])
        made.quota.rows_handed_out = int(body["rows_handed_out"])

    def _rows(self, record: Record) -> None:
        arrays, body = ArrayReader(record.frames), record.body
        made = self._plane.partitions.made(str(body["partition"]))
        uids = arrays.int64s(body["uids"])
        came_s = arrays.get(body["came_s"])
        for at in np.split(np.arange(len(uids)), np.flatnonzero(np.diff(came_s)) + 1):
            if len(at):
                _enter(made, uids[at], float(came_s[at[0]]))
        rows = made.table.find(uids)
        for task, states in body["tasks"].items():
            made.table.restore(task, rows, arrays.get(states))
        for name, plain in body["tags"].items():
            made.tags.set(str(name), rows, _tag_values(plain, arrays))

    def _freeing(self, record: Record) -> None:
        uids = ArrayReader(record.frames).int64s(record.body["uids"])
        made = self._plane.partitions.made(str(record.body["partition"]))
        made.table.start_freeing(_enter(made, uids, 0.0))

    def _left(self, record: Record) -> None:
        uids = ArrayReader(record.frames).int64s(record.body["uids"])
        partitions = self._plane.partitions
        for slot, at in partitions.homes.split(uids).items():
            partitions.leave(slot, str(record.body["partition"]), uids[at])

    def _line(self, record: Record) -> None:
        arrays, body = ArrayReader(record.frames), record.body
        line = self._plane.partitions.made(str(body["partition"])).claims.line_of(body["line"])
        for uids, acked in body["batches"]:
            line.append(arrays.int64s(uids)).acked.update(acked)

    # -- what happened since --------------------------------------------------------------------

    def _declared(self, record: Record) -> None:
        body = record.body
        policy = PartitionPolicy.from_plain(body["policy"])
        self._plane.create_partition(str(body["partition"]), policy, now_s=float(body["at_s"]))

    def _dropped(self, record: Record) -> None:
        body = record.body
        name, now_s = str(body["partition"]), float(body["at_s"])
        uids = ArrayReader(record.frames).int64s(body["uids"])
        _enter(self._plane.partitions.made(name), uids, now_s)
        self._plane.drop_partition(name, now_s=now_s)

    def _tagged(self, record: Record) -> None:
        arrays, body = ArrayReader(record.frames), record.body
        made = self._plane.partitions.made(str(body["partition"]))
        uids = arrays.int64s(body["uids"])
        _enter(made, uids, float(body["at_s"]))
        made.quota.rows_put = int(body["rows_put"])
        rows = made.table.find(uids)
        there = np.flatnonzero(rows >= 0)
        tags, _ = committed_tags(read_tags(body["tags"], arrays), np.arange(len(uids)))
        for name, values in tags.items():
            if name not in made.tags or made.tags.column(name).accepts(values.kind):
                made.tags.set(name, rows[there], values.take(there))
        live = rows[there][made.table.is_live(rows[there])]
        made.free_stale(live)

    def _advanced(self, record: Record) -> None:
        version, now_s = int(record.body["version"]), float(record.body["at_s"])
        for name in record.body["partitions"]:
            self._plane.partitions.made(name)
            self._plane.advance_policy(version, now_s=now_s, partition=name)

    def _granted(self, record: Record) -> None:
        arrays, body = ArrayReader(record.frames), record.body
        made = self._plane.partitions.made(str(body["partition"]))
        uids, now_s = arrays.int64s(body["uids"]), float(body["at_s"])
        _enter(made, uids, now_s)
        batch, is_again = None, False
        if body["line"] is not None:
            in_order = arrays.int64s(body["batch"])
            batch, is_again = self._batch(made, body["line"], int(body["replica"]), in_order)
        if body["is_new"] and not is_again:
            self._hand_out(made, body, uids)
        lease = Lease(
            claim_id=int(body["claim"]),
            client_id=body["client"],
            partition=made.name,
            task=str(body["task"]),
            uids=uids,
            num_rows=int(body["num_rows"]),
            deadline_s=float(body["deadline_s"]),
            exclusive=bool(body["exclusive"]),
            batch=batch,
            replica=int(body.get("replica", 0)),
        )
        if batch is not None:
            batch.holding[lease.replica] = Holding(lease.claim_id, lease.client_id)
        self._plane.leases.reopen(lease)
        if body["key"] is not None:
            self.requests[lease.claim_id] = _key(body["key"])

    def _hand_out(self, made: Partition, body: dict[str, Any], uids: Uids) -> None:
        rows, task = made.table.find(uids), str(body["task"])
        rows = rows[rows >= 0]
        made.table.add_task(task)
        made.table.deliver(task, rows)
        made.quota.rows_handed_out += int(body["num_rows"])
        if body["exclusive"]:
            made.table.set_state(task, rows, TaskState.CLAIMED)

    def _batch(
        self, made: Partition, plain: Any, replica: int, uids: Uids
    ) -> tuple[SharedBatch, bool]:
        """The batch of a replica, and whether another one, or itself, was given it before."""
        line = made.claims.line_of(plain)
        same = [b for b in line.batches() if replica not in b.acked and _same(b.uids, uids)]
        if not same:
            return line.append(uids), False
        batch = same[0]
        earlier = batch.holding.pop(replica, None)
        if earlier is not None:
            self._plane.leases.close(earlier.claim_id)
        return batch, True

    def _ended(self, record: Record) -> Lease:
        claim_id = int(record.body["claim"])
        key = self.requests.pop(claim_id, None)
        if key is not None:
            self.answers.pop(key, None)
        return self._plane.leases.close(claim_id)

    def _acked(self, record: Record) -> None:
        drop = ArrayReader(record.frames).get_optional(record.body["drop"])
        lease, now_s = self._ended(record), float(record.body["at_s"])
        partition = self._plane.partitions.get(lease.partition)
        if partition is not None:
            partition.ack(lease, now_s)
            if drop is not None:
                discards.discard(partition, drop, now_s)

    def _given_back(self, record: Record) -> None:
        lease = self._ended(record)
        partition = self._plane.partitions.get(lease.partition)
        if partition is not None:
            ending = Ending(record.body["ending"])
            partition.give_back(lease, float(record.body["at_s"]), ending)

    def _extended(self, record: Record) -> None:
        body = record.body
        self._plane.extend(int(body["claim"]), float(body["lease_s"]), now_s=float(body["at_s"]))

    def _discarded(self, record: Record) -> None:
        uids, now_s = ArrayReader(record.frames).int64s(record.body["uids"]), record.body["at_s"]
        made = self._plane.partitions.made(str(record.body["partition"]))
        _enter(made, uids, float(now_s))
        discards.discard(made, uids, float(now_s))

    def _redriven(self, record: Record) -> None:
        body, arrays = record.body, ArrayReader(record.frames)
        self._plane.redrive(
            str(body["partition"]),
            str(body["task"]),
            uids=arrays.get_optional(body["uids"]),
            now_s=float(body["at_s"]),
        )

    def _lost(self, record: Record) -> None:
        slot = int(record.body["slot"])
        self.lost[slot] = str(record.body["incarnation"])
        self._plane.slot_lost(slot, now_s=float(record.body["at_s"]))

    def _found(self, record: Record) -> None:
        slot = int(record.body["slot"])
        self.lost.pop(slot, None)
        self._plane.slot_joined(slot, now_s=float(record.body["at_s"]))

    def _copies(self, record: Record) -> None:
        slot, known = int(record.body["slot"]), record.body["known"]
        if known is None:
            self.copies.pop(slot, None)
        else:
            self.copies[slot] = dict(known)

    def _joined(self, record: Record) -> None:
        self._plane.next_slot = int(record.body["slot"]) + 1

    def _answer(self, record: Record) -> None:
        self.answers[_key(record.body["key"])] = record


def _same(one: Uids, other: Uids) -> bool:
    return np.array_equal(one, other)


def _key(plain: Any) -> Key:
    peer, request_id = plain
    return bytes(peer), int(request_id)


def _tag_values(plain: Any, arrays: ArrayReader) -> TagValues:
    kind, values, present = TagKind(plain[0]), arrays.get(plain[1]), arrays.get(plain[2])
    if kind is TagKind.STR:
        values = np.array([*plain[3], ""], dtype=object)[values]
    absent = None if bool(present.all()) else ~present
    return TagValues(kind=kind, values=values.astype(DTYPES[kind]), absent=absent)


def _enter(partition: Partition, uids: Uids, now_s: float) -> Rows:
    """Rows that the journal names; a shard will say what they have. Returns those not gone."""
    uids = np.unique(uids)
    _, _, num_new = partition.rows_of(uids, now_s)
    partition.quota.used_rows += num_new
    rows = partition.table.find(uids)
    return rows[rows >= 0]
