"""Opening the backends of a shard: the default one, others beside it, the disk that slabs spill to.

Those of a killed predecessor are taken over together or not at all: what home has lost is of no
use without it, for the journal is there. What another one has lost is lost alone; see
`SeveralBackends.lost`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from transferqueue.backends.away import AwayBackend
from transferqueue.backends.base import Capabilities
from transferqueue.backends.registry import load_backend, open_backend
from transferqueue.backends.several import Member, SeveralBackends
from transferqueue.config import SPILL_NAME, OtherBackend, SpillConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.backends.base import Backend, BackendConfig

WAIT_S = 1.0
"""Most stores that are there are open within it, and nobody hears that they were not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Where a shard's bytes go."""

    backend: str
    """Of the entry points: the default one."""
    config: BackendConfig
    """Of the default one; the others differ by what they say themselves."""
    others: Sequence[OtherBackend] = ()
    spill: SpillConfig | None = None
    wait_s: float = WAIT_S
    """For a store that may be away, before the shard serves without it."""

    @property
    def budget_bytes(self) -> int:
        """Of all that hold what is put."""
        return self.config.budget_bytes + sum(other.budget_bytes for other in self.others)

    def opened(self, *, recover: bool) -> SeveralBackends:
        """All of them, or none where one cannot be: `ConfigError` or `ServiceFailed` of that. When
        the shard is started again, one whose rows ended with its process anyway is no obstacle:
        see `AwayBackend`."""
        wanted = self._wanted()
        recover = recover and any(_outlives_process(backend) for _, backend, _ in wanted)
        found: list[Member] = []
        try:
            for name, backend, config in wanted:
                opened = self._open(name, backend, replace(config, recover=recover))
                member = Member(name=name, backend=opened, budget_bytes=config.budget_bytes)
                found.append(member)
            several = _numbered(found)
            if recover and not several.recovered:
                several.close()
                found = []
                return self.opened(recover=False)
        except BaseException:
            for member in found:
                member.backend.close(keep=member.backend.recovered)
            raise
        return several

    def _open(self, name: str, backend: str, config: BackendConfig) -> Backend:
        if not config.epoch or _outlives_process(backend):
            return open_backend(backend, config)
        away = AwayBackend(
            name,
            config,
            lambda: open_backend(backend, config),
            what_to_do=load_backend(backend).how_to_start(config),
        )
        return away.at_once(self.wait_s)

    def _wanted(self) -> list[tuple[str, str, BackendConfig]]:
        """Name, entry point and settings of each, the default one first."""
        wanted = [(self.backend, self.backend, self.config)]
        for other in self.others:
            wanted.append((other.name, other.backend, self._of_other(other)))
        if self.spill is not None:
            wanted.append((SPILL_NAME, "disk", self._of_spill(self.spill)))
        return wanted

    def _of_other(self, other: OtherBackend) -> BackendConfig:
        return replace(
            self.config,
            service_id=other.files_id(self.config.service_id),
            budget_bytes=other.budget_bytes,
            directory=other.arena_dir,
            directory_setting=f"arena_dir of backends[{other.name!r}]",
            options=other.options,
        )

    def _of_spill(self, spill: SpillConfig) -> BackendConfig:
        return replace(
            self.config,
            service_id=spill.files_id(self.config.service_id),
            budget_bytes=spill.nbytes,
            directory=spill.directory,
            directory_setting="spill_dir",
            options={},
        )


def _outlives_process(backend: str) -> bool:
    """Then what it holds must wait for it. So it must where an instance alone can tell."""
    said = getattr(load_backend(backend), "capabilities", None)
    return not isinstance(said, Capabilities) or said.outlives_process


def _numbered(members: Sequence[Member]) -> SeveralBackends:
    """Home first, the others in the order in which they are given: the same for a successor, which
    is given the same."""
    default = members[0]
    mapped = [member for member in members if member.backend.capabilities.mappable]
    home = mapped[0] if mapped else default
    ordered = [home, *(member for member in members if member is not home)]
    return SeveralBackends(ordered, default=ordered.index(default))
