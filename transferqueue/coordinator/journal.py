"""What a coordinator writes down so that its successor forgets no claim and no ack.

Rows and fields come back from the shards, so only what no shard knows is here: declared
partitions, tags, claims and how they ended, policy versions. Tags are kept here and not with the
rows because the coordinator has them in columns anyway; a shard keeps those of a put only until
the coordinator has acknowledged it, which it does after they are written here.

A record is written after the control plane has done its part and before anybody hears of it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from transferqueue.coordinator.leases import Ending, Lease
from transferqueue.errors import ServiceFailed
from transferqueue.journal.records import Record
from transferqueue.wire.arrays import ArrayWriter
from transferqueue.wire.tags import write_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from transferqueue.coordinator.claims import Claims
    from transferqueue.coordinator.policy import PartitionPolicy
    from transferqueue.journal.file import JournalFile
    from transferqueue.net.server import Reply
    from transferqueue.wire.format import Buffer

    Key = tuple[bytes, int]
    Told = tuple[Key, Reply]
    """Who asked, and what the answer is."""

_log = logging.getLogger(__name__)

DECLARED, DROPPED, TAGGED, ADVANCED = "declared", "dropped", "tagged", "advanced"
GRANTED, ACKED, GIVEN_BACK, EXTENDED = "granted", "acked", "given back", "extended"
DISCARDED, REDRIVEN, JOINED = "discarded", "redriven", "joined"
LOST, FOUND = "lost", "found"
COPIES = "copies"
ANSWER = "answer"

MAX_ANSWERS = 1024
"""Answers that are remembered for a client that lost one: it asks again within its deadline."""

MIN_BYTES = 1 << 20
"""A journal below this is never rewritten."""

CHECK_EVERY_S = 1.0


class CoordinatorJournal:
    """``file`` ``None``: nothing is written, because nobody starts this coordinator again."""

    def __init__(self, file: JournalFile | None, answers: Mapping[Key, Record]) -> None:
        self._file = file
        self._answers: OrderedDict[Key, Record] = OrderedDict(answers)
        self.requests: dict[int, Key] = {}
        """Claims by the request that each answers."""
        self._next_check_s = 0.0
        self._dump: Callable[[], Iterable[Record]] = tuple

    def begin(self, dump: Callable[[], Iterable[Record]]) -> None:
        """``dump``: everything that matters now, for when the file is written anew."""
        self._dump = dump

    @property
    def num_bytes(self) -> int:
        return 0 if self._file is None else self._file.num_bytes

    # -- partitions and rows --------------------------------------------------------------------

    def declared(self, name: str, policy: PartitionPolicy, now_s: float, told: Told) -> None:
        body = {"partition": name, "policy": policy.to_plain(), "at_s": now_s}
        self._write(DECLARED, body, told=told)

    def dropped(self, name: str, uids: np.ndarray, now_s: float, told: Told) -> None:
        """``uids``: what it held, which shards may hold on to for a while."""
        arrays = ArrayWriter()
        body = {"partition": name, "uids": arrays.add(uids), "at_s": now_s}
        self._write(DROPPED, body, arrays, told=told)

    def tagged(
        self,
        name: str,
        uids: np.ndarray,
        tags: Mapping[str, Any],
        *,
        rows_put: int,
        now_s: float,
        told: Told | None = None,
    ) -> None:
        """Rows were put or tagged. ``rows_put``: the partition's count, these among them."""
        arrays = ArrayWriter()
        body = {"partition": name, "uids": arrays.add(uids), "rows_put": rows_put, "at_s": now_s}
        body["tags"] = write_tags(tags, arrays)
        self._write(TAGGED, body, arrays, told=told)

    def advanced(self, version: int, partitions: Sequence[str], now_s: float, told: Told) -> None:
        """There is a policy of this version for these partitions."""
        body = {"version": version, "partitions": list(partitions), "at_s": now_s}
        self._write(ADVANCED, body, told=told)

    # -- claims ---------------------------------------------------------------------------------

    def granted(self, lease: Lease, claims: Claims, now_s: float, told: Told) -> None:
        """A claim is out."""
        if self._file is None:
            return
        record = granted_record(lease, claims, told[0], now_s, is_new=True)
        self._tell(record, told)
        self.requests[lease.claim_id] = told[0]

    def resume(self, claims: Mapping[int, Key]) -> None:
        """Claims that an earlier coordinator gave, by the request that each answers."""
        self.requests.update(claims)

    def acked(
        self, claim_id: int, now_s: float, told: Told, drop: np.ndarray | None = None
    ) -> None:
        arrays = ArrayWriter()
        body = {"claim": claim_id, "drop": arrays.add_optional(drop), "at_s": now_s}
        self._write(ACKED, body, arrays, told=told)
        self._forget(claim_id)

    def given_back(
        self,
        claim_id: int,
        now_s: float,
        told: Told | None = None,
        *,
        ending: Ending = Ending.RETURNED,
    ) -> None:
        body = {"claim": claim_id, "at_s": now_s, "ending": ending.value}
        self._write(GIVEN_BACK, body, told=told)
        self._forget(claim_id)

    def extended(self, claim_id: int, lease_s: float, now_s: float, told: Told) -> None:
        body = {"claim": claim_id, "lease_s": lease_s, "at_s": now_s}
        self._write(EXTENDED, body, told=told)

    # -- upkeep ---------------------------------------------------------------------------------

    def discarded(self, name: str, uids: np.ndarray, now_s: float, told: Told) -> None:
        """Rows are of no use to anybody."""
        arrays = ArrayWriter()
        body = {"partition": name, "uids": arrays.add(uids), "at_s": now_s}
        self._write(DISCARDED, body, arrays, told=told)

    def redriven(
        self, name: str, task: str, uids: np.ndarray | None, now_s: float, told: Told
    ) -> None:
        """Dead letters of a task, all of them without ``uids``, are to be tried again."""
        arrays = ArrayWriter()
        body = {"partition": name, "task": task, "at_s": now_s}
        body["uids"] = arrays.add_optional(uids)
        self._write(REDRIVEN, body, arrays, told=told)

    def lost(self, slot: int, incarnation: str, now_s: float, told: Told | None) -> None:
        """The shard of this slot is gone for good. ``incarnation``: of its process, which may live
        and come back all the same."""
        self._write(LOST, {"slot": slot, "incarnation": incarnation, "at_s": now_s}, told=told)

    def found(self, slot: int, now_s: float) -> None:
        """A slot that was given up has a shard again."""
        self._write(FOUND, {"slot": slot, "at_s": now_s})

    def joined(self, slot: int, now_s: float, told: Told) -> None:
        """A shard may come with this slot, and no other one ever."""
        self._write(JOINED, {"slot": slot, "at_s": now_s}, told=told)

    def copies(self, slot: int, known: dict[str, Any] | None) -> None:
        """Of the second copy of a slot's rows, or of who serves it; ``None``: the slot is lost."""
        record = copies_record(slot, known)
        self._write(record.kind, dict(record.body))

    # -- answers --------------------------------------------------------------------------------

    def answers(self, is_out: Callable[[int], bool]) -> Iterable[Record]:
        """Those that may be asked for again: a client has the answer to a claim that ended."""
        for claim_id in [claim_id for claim_id in self.requests if not is_out(claim_id)]:
            self._forget(claim_id)
        return list(self._answers.values())

    def _forget(self, claim_id: int) -> None:
        key = self.requests.pop(claim_id, None)
        if key is not None:
            self._answers.pop(key, None)

    # -- the file -------------------------------------------------------------------------------

    def tick(self, now_s: float, live_bytes: Callable[[], int]) -> None:
        """Rewrite the file when most of it is history."""
        if self._file is None or now_s < self._next_check_s or self._file.num_bytes < MIN_BYTES:
            return
        self._next_check_s = now_s + CHECK_EVERY_S
        if self._file.num_bytes > max(MIN_BYTES, 4 * live_bytes()):
            try:
                self._file.rewrite(self._dump())
            except OSError as error:
                _log.warning("the journal could not be rewritten: %s", error)

    def close(self, *, keep: bool) -> None:
        if self._file is not None:
            self._file.close()
            if not keep:
                self._file.remove()

    def _write(
        self,
        kind: str,
        body: dict[str, Any],
        arrays: ArrayWriter | None = None,
        *,
        told: Told | None = None,
    ) -> None:
        if self._file is None:
            return
        record = Record(kind=kind, body=body, frames=() if arrays is None else arrays.frames)
        if told is None:
            self._append(record)
        else:
            self._tell(record, told)

    def _tell(self, record: Record, told: Told) -> None:
        """What happened and what is answered are one record: a request that comes again after a
        kill finds both or neither."""
        key, reply = told
        frames = [bytes(frame) for frame in reply.frames]
        answer = [list(key), dict(reply.body), len(frames)]
        body = {**record.body, "answer": answer}
        self._append(Record(kind=record.kind, body=body, frames=[*record.frames, *frames]))
        self._answers[key] = answer_record(key, reply.body, frames)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    def _append(self, record: Record) -> None:
        """ServiceFailed when there is no room even for a file without history: the request has
        been carried out, but would be forgotten with this process."""
        assert self._file is not None
        try:
            self._file.append(record)
        except OSError:
            try:
                self._file.rewrite(self._dump())  # has what the record says
            except OSError as error:
                raise ServiceFailed("the coordinator", f"no room in its journal: {error}") from None


def answer_record(key: Key, body: Mapping[str, Any], frames: Sequence[Buffer]) -> Record:
    """What a request was answered with."""
    return Record(kind=ANSWER, body={"key": list(key), "body": dict(body)}, frames=frames)


def granted_record(
    lease: Lease, claims: Claims, key: Key | None, now_s: float, *, is_new: bool
) -> Record:
    """A claim that is out. ``is_new``: what it handed out is not counted yet."""
    arrays = ArrayWriter()
    body: dict[str, Any] = {
        "claim": lease.claim_id,
        "client": lease.client_id,
        "partition": lease.partition,
        "task": lease.task,
        "uids": arrays.add(lease.uids),
        "deadline_s": lease.deadline_s,
        "exclusive": lease.exclusive,
        "num_rows": lease.num_rows,
        "is_new": is_new,
        "key": None if key is None else list(key),
        "at_s": now_s,
        "line": None,
    }
    if lease.batch is not None:
        body["line"] = claims.line_to_plain(lease.batch.line)
        body["batch"] = arrays.add(lease.batch.uids)
        body["replica"] = lease.replica
    return Record(kind=GRANTED, body=body, frames=arrays.frames)


def copies_record(slot: int, known: dict[str, Any] | None) -> Record:
    """See `CoordinatorJournal.copies`."""
    return Record(kind=COPIES, body={"slot": slot, "known": known})
