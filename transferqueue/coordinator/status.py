"""What a coordinator says of itself, for ``status``."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transferqueue.net.server import Reply

if TYPE_CHECKING:
    from transferqueue.coordinator.control_plane import ControlPlane
    from transferqueue.coordinator.gate import Gate
    from transferqueue.coordinator.journal import CoordinatorJournal
    from transferqueue.coordinator.parked import ParkedRequests
    from transferqueue.coordinator.shard_links import ShardLinks
    from transferqueue.coordinator.stages import Stages
    from transferqueue.net.server import Request, Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The parts that it tells of."""

    service_id: str
    plane: ControlPlane
    links: ShardLinks
    parked: ParkedRequests
    gate: Gate
    journal: CoordinatorJournal
    stages: Stages
    server: Server
    started_s: float = field(default_factory=time.monotonic)

    def handle(self, request: Request) -> Reply:
        del request
        now_s = time.monotonic()
        return Reply(
            body={
                "service_id": self.service_id,
                "uptime_s": now_s - self.started_s,
                "time_s": time.time(),
                "shards": self.links.slots,
                "partitions": self.plane.status(now_s=now_s),
                "parked": len(self.parked),
                "waiting_for_shards": len(self.gate),
                "journal_bytes": self.journal.num_bytes,
                "requests": dict(self.server.requests),
                "refusals": dict(self.server.refusals),
                "keys_refused": self.server.num_keys_refused,
                "latencies": self.server.latencies.report(),
                "stages": self.stages.rows(),
                "claims_out": len(self.plane.leases),
                "claims_expired": self.plane.num_expired,
            }
        )
