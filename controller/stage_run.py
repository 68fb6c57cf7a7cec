"""Stages over one batch: begun as their inputs come, waited for in the table's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.dataflow import Course

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controller.dataflow import Stage
    from controller.role_calls import Answer, Roles
    from controller.transports import Transporter
    from workers.stage_runner import Batch


class StageRun:
    """Runs stages over a batch, each as soon as what it reads is there.

    `begin` may be called long before `finish`, and in another thread: a process runs its calls one
    after another, so what is begun while it is at other work follows that without a pause.
    """

    def __init__(
        self, stages: Sequence[Stage], batch: Batch, roles: Roles, transport: Transporter
    ) -> None:
        self._course = Course(stages)
        self._batch = batch
        self._roles = roles
        self._transport = transport
        self._answers: dict[str, Answer] = {}

    def begin(self) -> None:
        """Begin what may begin now; does not wait."""
        for stage in self._course.begin():
            self._answers[stage.name] = self._roles.run(
                stage.role, stage.method, self._transport.sent(self._batch)
            )

    def finish(self, *, meanwhile: Callable[[], object]) -> tuple[Batch, dict[str, float]]:
        """Wait for all of them. Returns the batch with what they wrote, and their metrics.

        ``meanwhile`` is called once, when the first of them are at work, so that it costs the
        roles no time.
        """
        self.begin()
        meanwhile()
        metrics: dict[str, float] = {}
        while (stage := self._course.next_to_end()) is not None:
            result = self._answers.pop(stage.name).get()
            if stage.writes:
                self._batch = self._transport.joined(self._batch, result)
            else:
                metrics |= result
            self.begin()
        return self._batch, metrics
