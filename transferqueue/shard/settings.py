"""With what the server of a shard is made: by its process, on a thread, or by a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from transferqueue.backends.base import BackendConfig
from transferqueue.backends.opening import StorageConfig
from transferqueue.config import OtherBackend, SpillConfig
from transferqueue.net.keys import ServiceKeys
from transferqueue.replication.settings import CopySettings
from transferqueue.shard.opening import Beginning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """Of one process of one slot."""

    service_id: str
    slot: int
    endpoints: Sequence[str]
    """Where it listens."""
    coordinator: str
    """The endpoint of the coordinator."""
    keys: ServiceKeys | None = None
    """``None``: it listens to this host only."""

    backend: str
    """Of the entry points: where bytes go by default."""
    budget_bytes: int
    """Of that."""
    arena_dir: str | None = None
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    others: Sequence[OtherBackend] = ()
    spill: SpillConfig | None = None

    guardian_pid: int | None = None
    """The process that starts this shard again when it dies."""
    epoch: int = 0
    """How often it has done so."""
    lineage: str = ""
    """Of a shard that joined: who owns its slot."""
    draining: bool = False
    """Whether it takes no new samples from the start on, as its predecessor did not."""
    beginning: Beginning | None = None
    """Of a shard of a restored service, or one that joins."""

    transports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of those that clients may move bytes by, by name."""
    copies: CopySettings | None = None
    """Of a service with two of each row."""
    node: str | None = None
    """What is lost at once with this shard, and holds no second copy of its rows if there is
    another; ``None``: this host."""

    @property
    def storage(self) -> StorageConfig:
        """Where its bytes go."""
        config = BackendConfig(
            service_id=self.service_id,
            slot=self.slot,
            budget_bytes=self.budget_bytes,
            directory=self.arena_dir,
            guardian_pid=self.guardian_pid,
            options=self.backend_options,
        )
        return StorageConfig(
            backend=self.backend, config=config, others=self.others, spill=self.spill
        )

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ShardSettings:
        """From what a process is told by whoever starts it, among other things."""
        return cls(
            service_id=plain["service_id"],
            slot=plain["slot"],
            endpoints=plain["endpoints"],
            coordinator=plain["coordinator"],
            keys=ServiceKeys.from_plain(plain["keys"]) if plain.get("keys") else None,
            backend=plain["backend"],
            budget_bytes=plain["budget_bytes"],
            arena_dir=plain["arena_dir"],
            backend_options=plain["backend_options"],
            others=[OtherBackend.from_plain(other) for other in plain["others"]],
            spill=_optional(SpillConfig.from_plain, plain["spill"]),
            guardian_pid=plain.get("guardian_pid"),
            epoch=plain.get("epoch", 0),
            lineage=plain.get("lineage", ""),
            draining=plain.get("draining", False),
            beginning=_optional(Beginning.from_settings, plain if "uids" in plain else None),
            transports=plain.get("transports") or {},
            copies=_optional(CopySettings.from_plain, plain.get("copies")),
            node=plain.get("node"),
        )


def _optional(read: Callable[[Any], T], plain: Mapping[str, Any] | None) -> T | None:
    return None if plain is None else read(plain)
