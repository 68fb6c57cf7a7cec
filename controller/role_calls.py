"""What a driver asks of roles: `workers.role_groups.RoleGroups`, or anything with its methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from controller.dataflow import Stage
    from controller.transports import Transporter
    from workers.roles.fields import MethodFields
    from workers.stage_runner import Batch, StageLoop


class Answer(Protocol):
    """A result to come."""

    def get(self) -> Any: ...


class Roles(Protocol):
    """Roles somewhere else, called by name. ``run`` and the like return at once."""

    def declarations(self) -> Mapping[str, Mapping[str, MethodFields]]: ...
    def run(self, role: str, method_name: str, batch: Batch) -> Answer: ...
    def call(self, role: str, method_name: str, *args: Any) -> Answer: ...
    def publish(self, role: str, name: str, version: int) -> Answer: ...
    def load(self, role: str, name: str, version: int) -> Answer: ...
    def serve(self, role: str, method_name: str, loop: StageLoop) -> None: ...
    def stream(
        self, role: str, loop: StageLoop, weights: str, max_staleness: int | None
    ) -> None: ...
    def check(self) -> None: ...
    def stop(self) -> None: ...
    def dead(self) -> list[str]: ...
    def restart(self, process: str) -> None: ...
    def processes_of(self, role: str) -> list[str]: ...
    def save(self, folder: Path) -> Mapping[str, list[str]]: ...
    def restore(self, folder: Path) -> Mapping[str, list[str]]: ...
    def reports(self, processes: Sequence[str] | None = None) -> Mapping[str, Any]: ...


def run_waves(
    grouped: Sequence[Sequence[Stage]],
    batch: Batch,
    roles: Roles,
    transport: Transporter,
    *,
    meanwhile: Callable[[], object],
) -> tuple[Batch, dict[str, float]]:
    """Run stages over a batch, those of one wave at the same time.

    Returns the batch with what they wrote, and their metrics. What an earlier stage of a wave
    wrote is joined first, so that the outcome does not depend on who is faster. ``meanwhile`` is
    called once, when the first wave is at work, so that it costs the roles no time.
    """
    metrics: dict[str, float] = {}
    for number, wave in enumerate(grouped):
        answers = [roles.run(stage.role, stage.method, transport.sent(batch)) for stage in wave]
        if number == 0:
            meanwhile()
        for stage, answer in zip(wave, answers, strict=True):
            result = answer.get()
            if stage.writes:
                batch = transport.joined(batch, result)
            else:
                metrics |= result
    return batch, metrics
