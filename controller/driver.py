"""PPO by a table: one loop for every mode, algorithm and transport.

The driver sees names, counts and metrics. One update::

    source.next()        a batch: generated now, generated meanwhile, or claimed from the stream
    stages that write    log-probs, values, advantages, ..., as soon as their inputs are there
    stages that do not   updates
    publish              the rollouts get the new weights

Roles are given calls ahead, as they run them one after another: the actor publishes right after its
update, whoever else is still at work, and where batches are claimed, the next is taken while the
updates run (`controller.look_ahead`) and its first stages follow them.

What the modes do differently is where the batch comes from (`controller.sources`,
`controller.stream_source`). With checkpoints, samples count as used only when a checkpoint has the
update on them; if a role dies, its process is made again, and if it held state, all roles go back
to that checkpoint and the samples of later updates come again.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from controller.checkpoints import CheckpointFolder, DriverState
from controller.claim_ahead import ClaimAhead
from controller.course import Lines
from controller.driver_config import Mode, Transport
from controller.lease_keeper import LeaseKeeper
from controller.prompt_queue import PromptQueue
from controller.prompt_rows import PromptRows
from controller.publications import Publications
from controller.sources import (
    WEIGHTS,
    BatchSource,
    Lockstep,
    OneStepAhead,
    ReadyBatch,
)
from controller.step_report import StepReport
from controller.stream_source import Stream
from controller.transports import TRAIN, FatTransporter, HandleTransporter, Transporter
from controller.update_runner import UpdateRunner
from transferqueue.errors import ConfigError, UnknownPartition
from transferqueue.handle import BatchHandle
from workers.errors import WorkerDied
from workers.role_worker import newest_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

    import transferqueue as tq
    from controller.dataflow import Dataflow
    from controller.driver_config import DriverConfig
    from controller.prompt_rows import Prompts
    from controller.role_calls import Roles

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    """A batch that no checkpoint has the update on yet."""

    step: int
    """Updates done when it is trained on."""
    ready: ReadyBatch


class PpoDriver:
    """One run. A context manager; leaving it ends the streaming stages, the roles stay.

    ``actor`` is the role whose weights are published; ``evaluation`` has ``accuracy()``.
    """

    def __init__(
        self,
        client: tq.Client,
        roles: Roles,
        prompts: Prompts,
        dataflow: Dataflow,
        config: DriverConfig,
        *,
        checkpoints: CheckpointFolder | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:
        """``about``: what a checkpoint remembers of the run, and what a run that goes on from it
        must have the same. ``DataflowError`` when the table does not fit the roles or the
        dataset; nothing has run then."""
        declared = roles.declarations()
        dataflow.check(declared)
        if config.checkpoint_every and checkpoints is None:
            raise ConfigError(f"checkpoint_every={config.checkpoint_every} needs a folder")
        self._client = client
        self._roles = roles
        self._dataflow = dataflow
        self._config = config
        self._checkpoints = checkpoints
        self._about = {"mode": config.mode.value, **(about or {})}
        self._rows = PromptRows.of(prompts, dataflow, config.samples_per_prompt)
        self._transport: Transporter = (
            HandleTransporter(client) if config.transport is Transport.HANDLES else FatTransporter()
        )
        self._stack = ExitStack()
        self._keeper = LeaseKeeper(config.lease_s)
        self._source: BatchSource
        self._queue = PromptQueue()
        self._uncommitted: list[_Used] = []
        self._publications = Publications(roles)
        by_handle = config.transport is Transport.HANDLES
        self._updates = UpdateRunner(
            dataflow,
            roles,
            self._transport,
            self._publications,
            config.look_ahead,
            Lines.of(dataflow, roles.processes_of, declared) if by_handle else Lines(),
        )
        self.step = 0
        """Updates done."""
        self.version = 0
        """Policy version of the weights, which only rises: after a return to a checkpoint it is
        not the number of updates any more."""
        self.num_restarts = 0
        """Processes that died and were made again."""

    # -- the run ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._stack.enter_context(self._keeper)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._stack:
            if exc is None and hasattr(self, "_source"):
                self._source.close()

    def run(self, *, resume: bool = False) -> Iterator[StepReport]:
        """One report an update. ``resume``: go on from the newest checkpoint, if there is one;
        samples that an earlier driver left in the data plane are used, unless they were generated
        in lockstep. A driver that dies once the checkpoint is written and before it yields has
        reported one update less than the checkpoint holds."""
        self._begin(self._restored() if resume else None)
        while self.step < self._config.num_steps:
            try:
                report = self._update()
            except WorkerDied as death:
                self._recover(death)
            else:
                yield report
        self._commit()

    def evaluate(self) -> float:
        """Held-out accuracy of the policy as it is."""
        return float(self._roles.call("evaluation", "accuracy").get())

    def _restored(self) -> DriverState | None:
        """Bring the roles back to the newest checkpoint; ``None`` when there is none."""
        if self._checkpoints is None:
            raise ConfigError("to resume, give the driver the folder of its checkpoints")
        folder = self._checkpoints.newest()
        if folder is None:
            return None
        state = self._checkpoints.read(folder)
        differing = {
            name: (value, self._about[name])
            for name, value in state.about.items()
            if self._about.get(name, value) != value
        }
        if differing:
            name, (then, now) = next(iter(differing.items()))
            raise ConfigError(f"{folder} is of a run with {name}={then!r}, this one has {now!r}")
        self._roles.restore(folder)
        return state

    def _begin(self, state: DriverState | None) -> None:
        if state is not None:
            self.step, self.version = state.step, state.version
            self._queue = PromptQueue(**state.prompts)
            self._forget_trained(state)
        if state is None or self._config.mode is not Mode.FULLY_ASYNC:
            with suppress(UnknownPartition):
                self._client.clear(partition=TRAIN)
        newest = newest_version(self._client, WEIGHTS)
        if newest is not None:  # of weights that are not these, though their number may be
            self.version = max(self.version, newest + 1)
        self._source = self._make_source()
        self._publish()
        self._source.start(self.version)

    def _forget_trained(self, state: DriverState) -> None:
        """The checkpoint has the updates on these, and the driver died before it could ack them."""
        for packed in state.trained:
            handle = BatchHandle.from_bytes(packed)
            if handle.service_id == self._client.service_id:
                self._client.clear(handle)

    def _make_source(self) -> BatchSource:
        common: dict[str, Any] = {
            "dataflow": self._dataflow,
            "roles": self._roles,
            "rows": self._rows,
            "queue": self._queue,
        }
        config = self._config
        if config.mode is Mode.FULLY_ASYNC:
            ahead = self._stack.enter_context(ClaimAhead())
            return Stream(
                client=self._client, config=config, keeper=self._keeper, ahead=ahead, **common
            )
        kind = Lockstep if config.mode is Mode.SYNC else OneStepAhead
        return kind(
            transport=self._transport,
            prompts_per_step=config.prompts_per_step,
            num_steps=config.num_steps,
            **common,
        )

    # -- one update -------------------------------------------------------------------------------

    def _update(self) -> StepReport:
        started_s = time.monotonic()
        bytes_before = self._transport.num_bytes
        ready = self._source.next(self.version, self.step)
        wait_s = time.monotonic() - started_s
        self._uncommitted.append(_Used(step=self.step + 1, ready=ready))
        staleness = self.version - ready.versions
        metrics = self._updates.run(
            ready, self._source, num_updates=self.step, version=self.version + 1
        )
        self.step += 1
        self.version += 1
        self._publications.finish()
        self._source.published(self.version)
        step_s = time.monotonic() - started_s
        checkpoint_s = self._outliving_deaths(self._save_if_due)
        reward = metrics.pop("reward", float("nan"))
        return StepReport(
            step=self.step,
            version=self.version,
            reward=reward,
            held_out_accuracy=self._outliving_deaths(self._accuracy_if_due),
            staleness_max=int(staleness.max()),
            staleness_mean=float(staleness.mean()),
            rows=int((~ready.greedy).sum()),
            samples_per_s=int((~ready.greedy).sum()) / step_s,
            step_s=step_s,
            wait_s=wait_s,
            checkpoint_s=checkpoint_s,
            rows_given_again=ready.rows_given_again,
            batch_bytes=self._transport.num_bytes - bytes_before,
            metrics=metrics,
            **self._source_figures(),
        )

    def _publish(self) -> None:
        self._publications.begin(self.version)
        self._publications.finish()

    def _accuracy_if_due(self) -> float | None:
        every = self._config.evaluate_every
        is_due = every and (self.step % every == 0 or self.step == self._config.num_steps)
        return self.evaluate() if is_due else None

    def _source_figures(self) -> dict[str, Any]:
        counts = self._updates.counts
        return {
            "stale_rows_dropped": counts.stale_rows_dropped,
            "generations_resumed": counts.generations_resumed,
            "generations_dropped": counts.generations_dropped,
            "first_token_s": self._publications.first_token_s(counts.first_token_at_s),
        }

    # -- checkpoints and recovery -----------------------------------------------------------------

    def _save_if_due(self) -> float:
        """Write a checkpoint when it is time; seconds that it took."""
        every = self._config.checkpoint_every
        if not every:
            self._commit()
            return 0.0
        if not self._config.look_ahead.is_checkpoint_due(self.step):
            return 0.0
        started_s = time.monotonic()
        assert self._checkpoints is not None
        self._checkpoints.write(self._state(), self._roles.save)
        self._commit()
        return time.monotonic() - started_s

    def _state(self) -> DriverState:
        batches = [used.ready.batch for used in self._uncommitted]
        return DriverState(
            step=self.step,
            version=self.version,
            prompts=self._prompts_not_trained(),
            trained=tuple(b.to_bytes() for b in batches if isinstance(b, BatchHandle)),
            about=self._about,
        )

    def _prompts_not_trained(self) -> dict[str, Any]:
        """The queue without those whose samples are used up as soon as the checkpoint is there."""
        state = self._queue.state()
        used = {int(n) for done in self._uncommitted for n in np.unique(done.ready.prompts)}
        return {**state, "first": [number for number in state["first"] if number not in used]}

    def _commit(self) -> None:
        self._source.commit([used.ready for used in self._uncommitted])
        self._uncommitted = []

    def _outliving_deaths(self, action: Callable[[], T]) -> T:
        """What comes after an update, and would be lost with its report when the loop began anew.
        ``WorkerDied`` for a process whose state is lost, and the update with it."""
        while True:
            try:
                return action()
            except WorkerDied as death:
                if not self._is_stateless(self._roles.dead()):
                    raise
                self._recover(death)

    def _recover(self, death: WorkerDied) -> None:
        """Make dead processes again; when one of them held state, go back to the checkpoint. One
        that dies meanwhile is as good as one that died before."""
        self._source.pause()
        is_state_lost = False
        while True:
            dead = self._remade(death)
            is_state_lost = is_state_lost or not self._is_stateless(dead)
            if not is_state_lost:
                return
            assert self._checkpoints is not None
            folder = self._checkpoints.newest()
            assert folder is not None
            try:
                self._go_back_to(folder)
            except WorkerDied as another:
                death = another
            else:
                return

    def _remade(self, death: WorkerDied) -> list[str]:
        """Processes that have died, and are there again. ``death`` when there are none, too many,
        or none that could be made as they were."""
        dead = self._roles.dead()
        if not dead or self.num_restarts + len(dead) > self._config.max_restarts:
            raise death
        log.warning("processes %s died and are made again: %s", dead, death)
        folder = None if self._checkpoints is None else self._checkpoints.newest()
        if folder is None and not self._is_stateless(dead):
            death.add_note("it held state, and there is no checkpoint to go back to")
            raise death
        for process in dead:
            self._roles.restart(process)
        self.num_restarts += len(dead)
        return dead

    def _go_back_to(self, folder: Path) -> None:
        """Undo the updates that this checkpoint has not."""
        assert self._checkpoints is not None
        state = self._checkpoints.read(folder)
        self._roles.restore(folder)
        self.step = state.step
        # Other weights than those of any number so far, that of the void update included.
        self.version = self._publications.newest + 1
        self._publish()
        kept = [done for done in self._uncommitted if done.step <= state.step]
        undone = [done.ready for done in self._uncommitted if done.step > state.step]
        self._source.commit([done.ready for done in kept])
        self._source.give_back(undone)
        self._uncommitted = []
        self._source.published(self.version)

    def _is_stateless(self, processes: list[str]) -> bool:
        """Whether these can be made again without a checkpoint: what they do streams."""
        if self._config.mode is not Mode.FULLY_ASYNC:
            return False
        trained = {stage.role for stage in self._dataflow.on_batches}
        holders = {name for role in trained for name in self._roles.processes_of(role)}
        return not holders & {*processes}
