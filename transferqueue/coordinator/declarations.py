"""The coordinator's edge for declarations of partitions, and their ends.

A put goes to its shard straight from the client, and the coordinator hears of it later. So two
things are waited for. Whoever declares what shards have to know, a quota, where fields go or that
rows have one copy, is answered when no shard can miss it any more. And where a declaration depends
on what has been put before, every shard is asked first to tell of that: a put that was acknowledged
before the declaration was sent counts, whatever is still on its way here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from transferqueue.coordinator.policy import PartitionPolicy
from transferqueue.coordinator.shard_notices import ShardNotices
from transferqueue.net.server import Reply
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transferqueue.coordinator.control_plane import ControlPlane
    from transferqueue.coordinator.effects import Effect
    from transferqueue.coordinator.journal import CoordinatorJournal
    from transferqueue.coordinator.shard_links import ShardLinks
    from transferqueue.net.server import Handler, Request, Server


class Declarations:
    """``carry_out`` takes effects of the control plane."""

    def __init__(
        self,
        *,
        plane: ControlPlane,
        links: ShardLinks,
        journal: CoordinatorJournal,
        server: Server,
        carry_out: Callable[[Sequence[Effect]], None],
    ) -> None:
        self._plane = plane
        self._links = links
        self._journal = journal
        self._server = server
        self._carry_out = carry_out
        self._notices = ShardNotices()
        self.handlers: dict[str, Handler] = {
            ops.CREATE_PARTITION: self._create,
            ops.DROP_PARTITION: self._drop,
        }

    def heard(self) -> None:
        """A shard has said what it knows, or is not waited for any more."""
        self._notices.heard(self._links.terms_heard)

    def cancel(self, key: tuple[bytes, int]) -> None:
        """The client gave a request up."""
        self._notices.cancel(key)

    def _create(self, request: Request) -> Reply | None:
        """Body: ``partition``, ``policy``."""
        policy = PartitionPolicy.from_plain(request.body["policy"])
        name = str(request.body["partition"])
        self._links.check_backends(policy.backend.values())
        partition = self._plane.partitions.looked_at(name)
        if not self._links.copies.gives_up_second_copies(policy.replicas, partition):
            return self._declare(request, name, policy)
        self._after_shards(self._links.ask(), request, lambda: self._declare(request, name, policy))
        return None

    def _declare(self, request: Request, name: str, policy: PartitionPolicy) -> Reply | None:
        now_s = time.monotonic()
        self._links.copies.check_replicas(policy.replicas, self._plane.partitions.looked_at(name))
        effects = self._plane.create_partition(name, policy, now_s=now_s)
        reply = Reply(body={})
        self._journal.declared(name, policy, now_s, (request.key, reply))
        self._date_rows(name, now_s)
        self._carry_out(effects)
        number = self._links.declare(self._plane.partitions.terms())
        if not policy.concerns_shards:
            return reply
        self._after_shards(number, request, lambda: reply)
        return None

    def _after_shards(
        self, number: int, request: Request, answer: Callable[[], Reply | None]
    ) -> None:
        """Answer when every shard has heard what has this number, unless ``answer`` parks the
        request once more."""
        self._notices.wait(number, request.key, lambda: self._answer(request, answer))
        self.heard()

    def _answer(self, request: Request, answer: Callable[[], Reply | None]) -> None:
        with self._server.answering(request):
            reply = answer()
            if reply is not None:
                self._server.reply(request, reply)

    def _date_rows(self, name: str, now_s: float) -> None:
        """Rows that were put before their partition was declared: from now on their age counts."""
        made = self._plane.partitions.known(name)
        if made.policy.ttl_s is not None and made.table.num_rows:
            uids = made.table.uids(made.table.live_rows())
            self._journal.tagged(name, uids, {}, rows_put=made.quota.rows_put, now_s=now_s)

    def _drop(self, request: Request) -> Reply:
        """Body: ``partition``."""
        name, now_s = str(request.body["partition"]), time.monotonic()
        table = self._plane.partitions.known(name).table
        uids = table.uids(table.present_rows())
        effects = self._plane.drop_partition(name, now_s=now_s)
        reply = Reply(body={})
        self._journal.dropped(name, uids, now_s, (request.key, reply))
        self._links.declare(self._plane.partitions.terms())
        self._carry_out(effects)
        return reply
