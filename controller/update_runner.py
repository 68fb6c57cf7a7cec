"""One update: its stages over its batch, and what goes on while the trainer is at work on it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from controller.publications import ACTOR
from controller.sources import SourceCounts
from controller.stage_run import StageRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controller.course import Lines
    from controller.dataflow import Dataflow, Stage
    from controller.look_ahead import LookAhead
    from controller.publications import Publications
    from controller.role_calls import Roles
    from controller.sources import BatchSource, ReadyBatch
    from controller.transports import Transporter
    from workers.stage_runner import Batch


class UpdateRunner:
    """Gives the roles their calls ahead, as each process runs its calls one after another: the
    actor publishes right behind its update, whoever else is still at work, and the first stages of
    the next batch follow where that can be taken already."""

    def __init__(
        self,
        dataflow: Dataflow,
        roles: Roles,
        transport: Transporter,
        publications: Publications,
        look_ahead: LookAhead,
        lines: Lines,
    ) -> None:
        self._dataflow = dataflow
        self._roles = roles
        self._transport = transport
        self._publications = publications
        self._look_ahead = look_ahead
        self._lines = lines
        self.counts = SourceCounts()
        """What the source had to tell when the last update had begun."""

    def run(
        self, ready: ReadyBatch, source: BatchSource, *, num_updates: int, version: int
    ) -> dict[str, float]:
        """The metrics. Returns when all stages have ended, and the publishing of the new weights
        has begun. ``num_updates``: done so far; ``version``: of the weights to be."""
        # The actor's weights are there when its update is; another role's, who knows when.
        publishes = any(stage.role == ACTOR and not stage.writes for stage in ready.stages)

        def updating() -> None:
            if publishes:
                self._publications.begin(version)
            self._take_the_next(source, num_updates + 1, version)
            self.counts = source.counts()

        run = ready.run or self._prepared(ready.stages, ready.batch)
        metrics = run.finish(
            trained=~ready.greedy if ready.greedy.any() else None,
            preparing=lambda: source.tend(num_updates),
            updating=updating,
        )
        if not publishes:
            self._publications.begin(version)
        return metrics

    def _take_the_next(self, source: BatchSource, num_updates: int, version: int) -> None:
        is_saved_first = self._look_ahead.is_checkpoint_due(num_updates)
        start = None if is_saved_first else partial(self._prepared, self._dataflow.on_batches)
        source.look_ahead(version, num_updates, start)

    def _prepared(self, stages: Sequence[Stage], batch: Batch) -> StageRun:
        run = StageRun(stages, batch, self._roles, self._transport, self._lines)
        run.prepare()
        return run
