"""Stages over one batch: begun as their inputs come, waited for in the table's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.course import Course

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from controller.course import Lines
    from controller.dataflow import Stage
    from controller.role_calls import Answer, Roles
    from controller.transports import Transporter
    from workers.stage_runner import Batch


class StageRun:
    """Runs stages over a batch, each as soon as it may: see `Course`.

    `prepare` may be called long before `finish`, and in another thread: a process runs its calls
    one after another, so what is begun while it is at other work follows that without a pause.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        batch: Batch,
        roles: Roles,
        transport: Transporter,
        lines: Lines,
    ) -> None:
        self._course = Course(stages, lines)
        self._batch = batch
        self._roles = roles
        self._transport = transport
        self._answers: dict[str, Answer] = {}

    def prepare(self) -> None:
        """Begin what may begin now of the stages that write; does not wait."""
        self._run(self._course.begin(updates=False), self._batch)

    def finish(
        self,
        *,
        trained: np.ndarray | None = None,  # bool[rows]
        preparing: Callable[[], object] = lambda: None,
        updating: Callable[[], object] = lambda: None,
    ) -> dict[str, float]:
        """Wait for all; the metrics. ``trained``: the rows that updates get, where not all.

        ``preparing`` is called once when the first are at work, ``updating`` once when all are, so
        that what they do costs the roles no time.
        """
        metrics: dict[str, float] = {}
        self.prepare()
        preparing()
        while True:
            if not self._course.has_all_begun():
                self._begin(trained)
                if self._course.has_all_begun():
                    updating()
            stage = self._course.next_to_end()
            if stage is None:
                return metrics
            result = self._answers.pop(stage.name).get()
            if stage.writes:
                self._batch = self._transport.joined(self._batch, result)
            else:
                metrics |= result

    def _begin(self, trained: np.ndarray | None) -> None:
        ready = self._course.begin()
        self._run([stage for stage in ready if stage.writes], self._batch)
        updates = [stage for stage in ready if not stage.writes]
        if updates:
            self._run(updates, self._batch if trained is None else self._batch[trained])

    def _run(self, stages: Sequence[Stage], batch: Batch) -> None:
        for stage in stages:
            self._answers[stage.name] = self._roles.run(
                stage.role, stage.method, self._transport.sent(batch)
            )
