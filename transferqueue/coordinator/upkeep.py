"""The coordinator's edge towards whoever looks after rows and shards, rather than consumes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from transferqueue.coordinator.answers import answer_message
from transferqueue.coordinator.cell_report import MAX_SAMPLES, check_limit, to_body
from transferqueue.coordinator.picture import MAX_COLUMNS
from transferqueue.coordinator.picture import to_body as to_picture
from transferqueue.coordinator.stages import Stages
from transferqueue.net.server import Handler, Reply, Request
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.tags import write_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transferqueue.coordinator.control_plane import ControlPlane
    from transferqueue.coordinator.effects import Effect
    from transferqueue.coordinator.journal import CoordinatorJournal, Told
    from transferqueue.coordinator.shard_links import ShardLinks

MAX_WAITS = 1000
"""Requests that wait of which one answer tells."""


class Upkeep:
    """``carry_out`` takes effects of the control plane; ``greet`` answers those who wait for all
    shards to be there."""

    def __init__(
        self,
        *,
        plane: ControlPlane,
        links: ShardLinks,
        journal: CoordinatorJournal,
        carry_out: Callable[[Sequence[Effect]], None],
        greet: Callable[[], None],
    ) -> None:
        self._plane = plane
        self._links = links
        self._journal = journal
        self._carry_out = carry_out
        self._greet = greet
        self.handlers: dict[str, Handler] = {
            ops.HELD: self._held,
            ops.WAITS: self._waits,
            ops.DESCRIBE: self._describe,
            ops.PICTURE: self._picture,
            ops.POLICY: self._policy,
            ops.ADVANCE_POLICY: self._advance_policy,
            ops.DEAD_LETTERS: self._dead_letters,
            ops.REDRIVE: self._redrive,
            ops.DISCARD: self._discard,
            ops.LEAVE: self._leave,
            ops.LOSE_SHARD: self._lose_shard,
            ops.JOIN: self._join,
            ops.TELL_STAGES: self._tell_stages,
        }
        self.stages = Stages()

    def _policy(self, request: Request) -> Reply:
        policy = self._plane.policy(str(request.body["partition"]))
        return Reply(body={"policy": policy.to_plain()})

    def _advance_policy(self, request: Request) -> Reply:
        version, partition = request.number("version"), request.body["partition"]
        now_s = time.monotonic()
        effects = self._plane.advance_policy(version, now_s=now_s, partition=partition)
        known = [p.name for p in self._plane.partitions]
        reply = Reply(body={})
        names = known if partition is None else [partition]
        self._journal.advanced(version, names, now_s, (request.key, reply))
        self._carry_out(effects)
        return reply

    def _held(self, request: Request) -> Reply:
        return Reply(
            body={
                "held": self._plane.held(
                    now_s=time.monotonic(), partition=request.body["partition"]
                )
            }
        )

    def _waits(self, request: Request) -> Reply:
        """Body: ``partition`` or nil for all, ``limit``."""
        partition = request.body["partition"]
        waits, num_waits = self._plane.waits(
            now_s=time.monotonic(),
            partition=None if partition is None else str(partition),
            limit=check_limit(request.number("limit"), MAX_WAITS),
        )
        return Reply(body={"waits": waits, "num_waits": num_waits})

    def _describe(self, request: Request) -> Reply:
        """Body: ``partition`` or nil, ``uids`` or nil, not both; ``limit``."""
        partition = request.body["partition"]
        arrays = ArrayWriter()
        described = self._plane.describe(
            now_s=time.monotonic(),
            partition=None if partition is None else str(partition),
            uids=ArrayReader(request.frames).get_optional(request.body["uids"]),
            limit=check_limit(request.number("limit"), MAX_SAMPLES),
        )
        body = to_body(described, arrays.add)
        body["tags"] = write_tags(described.tags, arrays)
        return Reply(body=body, frames=arrays.frames)

    def _picture(self, request: Request) -> Reply:
        """Body: ``partition``, ``columns``."""
        arrays = ArrayWriter()
        made = self._plane.picture(
            str(request.body["partition"]), check_limit(request.number("columns"), MAX_COLUMNS)
        )
        return Reply(body=to_picture(made, arrays.add), frames=arrays.frames)

    def _dead_letters(self, request: Request) -> Reply:
        """Body: ``partition``, ``task``."""
        body = request.body
        return answer_message(self._plane.dead_letters(str(body["partition"]), str(body["task"])))

    def _redrive(self, request: Request) -> Reply:
        """Body: ``partition``, ``task``, ``uids`` or nil for all."""
        partition, task = str(request.body["partition"]), str(request.body["task"])
        uids = ArrayReader(request.frames).get_optional(request.body["uids"])
        now_s = time.monotonic()
        num_rows, effects = self._plane.redrive(partition, task, uids=uids, now_s=now_s)
        reply = Reply(body={"num_rows": num_rows})
        self._journal.redriven(partition, task, uids, now_s, (request.key, reply))
        self._carry_out(effects)
        return reply

    def _discard(self, request: Request) -> Reply:
        """Body: ``partition``, ``uids``."""
        uids = ArrayReader(request.frames).int64s(request.body["uids"])
        partition, now_s = str(request.body["partition"]), time.monotonic()
        num_rows, effects = self._plane.discard(partition, uids, now_s=now_s)
        reply = Reply(body={"num_rows": num_rows})
        self._journal.discarded(partition, uids, now_s, (request.key, reply))
        self._carry_out(effects)
        return reply

    def _tell_stages(self, request: Request) -> Reply:
        """Body: ``rows``, what one process has counted since it told the last time. Not written
        down: counters begin again with a coordinator."""
        self.stages.add(request.body["rows"])
        return Reply(body={})

    def _leave(self, request: Request) -> Reply:
        """Body: ``client``, as its claims name it."""
        client, now_s = str(request.body["client"]), time.monotonic()
        claim_ids = [lease.claim_id for lease in self._plane.leases.of_client(client)]
        effects = self._plane.client_gone(client, now_s=now_s, give_back=True)
        for claim_id in claim_ids:
            self._journal.given_back(claim_id, now_s)
        self._carry_out(effects)
        return Reply(body={})

    def _lose_shard(self, request: Request) -> Reply:
        """Body: ``slot``, ``owner``: the lineage of its processes, or nil for who need not know.
        Whoever restarts shards says that this one will not come back. Its guard takes its place, if
        there is one that has everything; else its rows are lost."""
        slot, owner = request.number("slot"), request.body.get("owner")
        is_others = owner is not None and not self._links.copies.is_of(slot, str(owner))
        if is_others or self._links.copies.hand_over(slot):
            return Reply(body={"is_lost": False})
        reply = Reply(body={"is_lost": True})
        self.lose_shard(slot, (request.key, reply))
        return reply

    def lose_shard(self, slot: int, told: Told | None = None) -> None:
        """The shard is gone for good, and so are its rows. ``told``: who said so, and what it is
        answered."""
        now_s = time.monotonic()
        incarnation = self._links.lose(slot)
        effects = self._plane.slot_lost(slot, now_s=now_s)
        self._journal.lost(slot, incarnation, now_s, told)
        self._carry_out(effects)
        self._greet()

    def _join(self, request: Request) -> Reply:
        """A shard is about to be started; the answer says with which slot and uids."""
        (slot, uids), now_s = self._plane.give_slot(), time.monotonic()
        replicas = self._links.copies.replicas
        body = {"slot": slot, "uids": [uids.start, uids.stop], "replicas": replicas}
        reply = Reply(body=body)
        self._journal.joined(slot, now_s, (request.key, reply))
        return reply
