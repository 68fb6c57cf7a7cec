"""Where an update gets its batch: generated for it, or the one generated meanwhile.

A source is asked for one batch after another. What it gave counts as used when `commit` is called:
after the update, or, with checkpoints, when a checkpoint holds the update. Until then `give_back`
can undo it. The source of `Mode.FULLY_ASYNC` is in `controller.stream_source`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.dataflow import Dataflow, Stage
    from controller.prompt_queue import PromptQueue
    from controller.prompt_rows import PromptRows, SampleRows
    from controller.role_calls import Answer, Roles
    from controller.stage_run import StageRun
    from controller.transports import Transporter
    from workers.stage_runner import Batch

WEIGHTS = "policy"
"""The name under which the policy's weights are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyBatch:
    """The samples of one update. Arrays have one entry a sample, in the batch's order."""

    batch: Batch
    stages: tuple[Stage, ...]
    """What is still to be run on it."""
    run: StageRun | None = None
    """Of these stages, where those that write were begun ahead."""
    versions: np.ndarray  # int64[samples]: of each sample's oldest token
    prompts: np.ndarray  # int64[samples]: prompt numbers
    greedy: np.ndarray  # bool[samples]: baselines, not to be trained on
    rows_given_again: int = 0
    """Samples that an earlier claim had and did not ack."""
    held: Any = None
    """What `commit` and `give_back` need."""


@dataclass(slots=True, kw_only=True)
class SourceCounts:
    """What a source has to tell of itself, since the start."""

    stale_rows_dropped: int = 0
    generations_resumed: int = 0
    generations_dropped: int = 0
    first_token_at_s: dict[int, float] = field(default_factory=dict)
    """Version -> wall-clock time of the first token that any rollout drew with it."""


class BatchSource(Protocol):
    """Where batches come from."""

    def start(self, version: int) -> None:
        """Before the first batch; the weights of ``version`` are published."""
        ...

    def next(self, version: int, num_updates: int) -> ReadyBatch:
        """The batch of the next update. Waits."""
        ...

    def tend(self, num_updates: int) -> None:
        """The batch of the next update is with the trainer, and so many updates are done: time
        for what would keep the trainer waiting at any other moment."""
        ...

    def look_ahead(
        self, version: int, num_updates: int, start: Callable[[Batch], StageRun] | None
    ) -> None:
        """The update that makes them ``num_updates`` is under way, and ``version`` its weights to
        be: time to take the batch after it. ``start`` begins the stages of that one; ``None``: not
        yet. May be called in another thread, until `next` or `pause`."""
        ...

    def pause(self) -> None:
        """A process has died: no role is called from here until `next`."""
        ...

    def published(self, version: int) -> None:
        """There are weights of this version now."""
        ...

    def commit(self, used: list[ReadyBatch]) -> None:
        """These batches will never be needed again."""
        ...

    def give_back(self, unused: list[ReadyBatch]) -> None:
        """The updates on these batches are void: their samples, or prompts, come again."""
        ...

    def counts(self) -> SourceCounts: ...

    def close(self) -> None: ...


class Lockstep:
    """`Mode.SYNC`: every batch is generated when it is asked for, by the newest policy."""

    def __init__(
        self,
        *,
        dataflow: Dataflow,
        roles: Roles,
        transport: Transporter,
        rows: PromptRows,
        queue: PromptQueue,
        prompts_per_step: int,
        num_steps: int,
    ) -> None:
        self._rollout = dataflow.rollout
        self._rest = tuple(stage for stage in dataflow.stages if not stage.generates)
        self._roles = roles
        self._transport = transport
        self._rows = rows
        self.queue = queue
        self._prompts_per_step = prompts_per_step
        self._num_steps = num_steps

    def start(self, version: int) -> None:
        """Nothing runs by itself."""

    def next(self, version: int, num_updates: int) -> ReadyBatch:
        del num_updates
        return self._begin(version).finish()

    def _begin(self, version: int) -> _Generating:
        """Let the rollouts load the weights and generate; returns at once."""
        numbers = self.queue.take(self._prompts_per_step)
        rows = self._rows.rows(numbers)
        batch = self._transport.make(rows.columns, {})
        role = self._rollout.role
        return _Generating(
            transport=self._transport,
            stages=self._rest,
            rows=rows,
            batch=batch,
            version=version,
            loaded=self._roles.load(role, WEIGHTS, version),
            written=self._roles.run(role, self._rollout.method, self._transport.sent(batch)),
        )

    def tend(self, num_updates: int) -> None:
        """Nothing runs by itself."""

    def look_ahead(
        self, version: int, num_updates: int, start: Callable[[Batch], StageRun] | None
    ) -> None:
        """What is generated ahead is, since the batch before was given."""

    def pause(self) -> None:
        """Nothing runs by itself."""

    def published(self, version: int) -> None:
        """Rollouts load a version when they are to generate with it."""

    def commit(self, used: list[ReadyBatch]) -> None:
        for ready in used:
            self.queue.trained(np.unique(ready.prompts).tolist())
            self._transport.release(ready.batch)

    def give_back(self, unused: list[ReadyBatch]) -> None:
        for ready in reversed(unused):
            self.queue.again(np.unique(ready.prompts).tolist())
            self._transport.release(ready.batch)

    def counts(self) -> SourceCounts:
        return SourceCounts()

    def close(self) -> None:
        """Nothing runs by itself."""


class OneStepAhead(Lockstep):
    """`Mode.ONE_STEP_OFF`: the next batch is generated while this one is trained on."""

    _ahead: _Generating | None = None

    def next(self, version: int, num_updates: int) -> ReadyBatch:
        generating = self._ahead or self._begin(version)
        self._ahead = None
        ready = generating.finish()
        if num_updates + 1 < self._num_steps:
            self._ahead = self._begin(version)
        return ready

    def give_back(self, unused: list[ReadyBatch]) -> None:
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            self.queue.again(np.unique(ahead.rows.prompts).tolist())
            self._transport.release(ahead.batch)
        super().give_back(unused)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generating:
    """A batch whose responses are being drawn."""

    transport: Transporter
    stages: tuple[Stage, ...]
    rows: SampleRows
    batch: Batch
    version: int
    loaded: Answer
    written: Answer

    def finish(self) -> ReadyBatch:
        """Wait for the responses."""
        self.loaded.get()
        return ReadyBatch(
            batch=self.transport.joined(self.batch, self.written.get()),
            stages=self.stages,
            versions=np.full(len(self.rows.prompts), self.version),
            prompts=self.rows.prompts,
            greedy=self.rows.greedy,
        )
