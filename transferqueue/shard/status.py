"""What a shard says of itself when it is asked."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.net.server import Reply, Request, Server
from transferqueue.shard.account import holdings

if TYPE_CHECKING:
    from transferqueue.backends.several import SeveralBackends
    from transferqueue.replication.shard_part import ShardPart
    from transferqueue.shard.device_loans import DeviceLoans
    from transferqueue.shard.gets import Gets
    from transferqueue.shard.journal import ShardJournal
    from transferqueue.shard.moved_bytes import MovedBytes
    from transferqueue.shard.peers import MappingPeers
    from transferqueue.shard.puts import Budget, Puts
    from transferqueue.shard.spill import Spill
    from transferqueue.shard.store import Store
    from transferqueue.shard.uplink import Uplink


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatus:
    """Reads counters of the parts of one shard; changes nothing."""

    slot: int
    epoch: int
    budget: Budget
    backend: SeveralBackends
    store: Store
    journal: ShardJournal
    peers: MappingPeers
    puts: Puts
    gets: Gets
    loans: DeviceLoans
    spill: Spill | None
    second: ShardPart | None
    uplink: Uplink
    moved: MovedBytes
    server: Server

    def answer(self, request: Request) -> Reply:
        """The handler of ``status``."""
        del request
        return Reply(
            body={
                "slot": self.slot,
                "host": os.uname().nodename,
                "pid": os.getpid(),
                "epoch": self.epoch,
                "time_s": time.time(),
                "journal_bytes": self.journal.num_bytes,
                "budget_bytes": self.budget.nbytes,
                "used_bytes": self.backend.used_bytes,
                "backend": self.backend.facts(),
                "backends": self.backend.report(),
                "spill": None if self.spill is None else self.spill.report(),
                **holdings(self.store),
                "loans_overdue": self.loans.num_overdue,
                "mapping_processes": len(self.peers),
                **self.puts.report(),
                "bytes_unsent": self.gets.bytes_unsent,
                "events_unsent": self.uplink.num_unsent,
                "moved": self.moved.report(),
                "copies": None if self.second is None else self.second.report(),
                "requests": dict(self.server.requests),
                "latencies": self.server.latencies.report(),
                "refusals": dict(self.server.refusals),
                "keys_refused": self.server.num_keys_refused,
            }
        )
