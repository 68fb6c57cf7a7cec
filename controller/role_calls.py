"""What a driver asks of roles: `workers.role_groups.RoleGroups`, or anything with its methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from controller.dataflow import Course

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


def run_stages(
    stages: Sequence[Stage],
    batch: Batch,
    roles: Roles,
    transport: Transporter,
    *,
    meanwhile: Callable[[], object],
) -> tuple[Batch, dict[str, float]]:
    """Run stages over a batch, each as soon as what it reads is there.

    Returns the batch with what they wrote, and their metrics. ``meanwhile`` is called once, when
    the first of them are at work, so that it costs the roles no time.
    """
    course = Course(stages)
    metrics: dict[str, float] = {}
    answers = _begun(course, batch, roles, transport)
    meanwhile()
    while (stage := course.next_to_end()) is not None:
        result = answers.pop(stage.name).get()
        if stage.writes:
            batch = transport.joined(batch, result)
        else:
            metrics |= result
        answers |= _begun(course, batch, roles, transport)
    return batch, metrics


def _begun(course: Course, batch: Batch, roles: Roles, transport: Transporter) -> dict[str, Answer]:
    """Begin what may begin; the answers to come by the name of the stage."""
    return {
        stage.name: roles.run(stage.role, stage.method, transport.sent(batch))
        for stage in course.begin()
    }
