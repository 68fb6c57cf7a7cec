"""Asynchronous PPO by handles: rollouts stream, the trainer takes what is ready.

The driver sees uids, field names and metrics; no column of a batch comes here. One update::

    prompts ─▶ rollouts ─▶ reward, reference          claimed as they become ready
                   ▼
    claim a batch ─▶ old_log_probs ┐
                     values        ┴▶ advantages ─▶ update_critic, update_actor ─▶ publish, ack

Staleness is bounded twice: by `PromptPacing`, which keeps rollouts from running far ahead, and by
the partition's ``max_staleness``, which drops what grew too old all the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from controller.pacing import PromptPacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import transferqueue as tq

PROMPTS = "prompts"
TRAIN = "train"
WEIGHTS = "policy"

SCORED_FIELDS = ("rm_scores",)


class Future(Protocol):
    """A result to come."""

    def result(self) -> Any: ...


class RoleGroup(Protocol):
    """Roles somewhere else, called by name. Calls return at once."""

    def run(self, role: str, method_name: str, handle: tq.BatchHandle) -> Future: ...
    def call(self, role: str, method_name: str) -> Future: ...
    def publish(self, role: str, name: str) -> Future: ...
    def check(self) -> None:
        """Raises what ended a streaming stage, if anything has."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncPpoConfig:
    """What the driver decides."""

    num_steps: int
    batch_rows: int
    """Samples of one update."""
    samples_per_prompt: int = 1
    max_staleness: int = 2
    with_reference: bool = True
    with_critic: bool = True
    evaluate_every: int = 5
    """Updates between two held-out evaluations; the first and the last update are always
    followed by one."""
    claim_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.batch_rows % self.samples_per_prompt:
            raise ValueError(
                f"batch_rows={self.batch_rows} is no multiple of "
                f"samples_per_prompt={self.samples_per_prompt}: a group would be torn apart"
            )

    @property
    def pacing(self) -> PromptPacing:
        return PromptPacing(
            prompts_per_step=self.batch_rows // self.samples_per_prompt,
            samples_per_prompt=self.samples_per_prompt,
            max_staleness=self.max_staleness,
            num_steps=self.num_steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One update, as it is shown and logged."""

    step: int
    version: int
    """Policy version after the update."""
    reward: float
    """Mean score of the samples trained on."""
    held_out_accuracy: float | None
    """``None`` when this update was not followed by an evaluation."""
    staleness_max: int
    staleness_mean: float
    rows: int
    samples_per_s: float
    step_s: float
    wait_s: float
    """Of ``step_s``, how long the trainer waited for samples."""
    stale_rows_dropped: int
    """Since the start."""
    metrics: Mapping[str, float] = field(default_factory=dict)


class AsyncPpoDriver:
    """Feeds prompts, claims batches, calls the roles."""

    def __init__(
        self,
        client: tq.Client,
        roles: RoleGroup,
        prompts: Iterator[Mapping[str, Any]],
        config: AsyncPpoConfig,
    ) -> None:
        self._client = client
        self._roles = roles
        self._prompts = prompts
        self._config = config
        self._pacing = config.pacing
        self._num_fed = 0
        self.version = 0
        self.handle_bytes = 0
        """Bytes of the handles that were passed to roles and came back."""

    def create_partitions(self) -> None:
        """Declare how prompts and samples live: each is freed when its last task has acked it."""
        tasks = ["reward", "update", *(["reference"] if self._config.with_reference else [])]
        self._client.create_partition(PROMPTS, tasks=["rollout"], retention="consumed")
        self._client.create_partition(
            TRAIN,
            tasks=tasks,
            retention="consumed",
            max_staleness=self._config.max_staleness,
            on_stale="drop",
        )

    def run(self) -> Iterator[StepReport]:
        """One report an update."""
        self._roles.publish("actor", WEIGHTS).result()
        self.feed()
        for step in range(1, self._config.num_steps + 1):
            yield self._step(step)

    def evaluate(self) -> float:
        """Held-out accuracy of the policy as it is."""
        return float(self._roles.call("evaluation", "accuracy").result())

    def feed(self) -> None:
        """Hand out the prompts that are due."""
        due = self._pacing.prompts_due(
            version=self.version,
            num_fed=self._num_fed,
            num_samples_dropped=self._rows_dropped(),
        )
        if due:
            self._client.put(_columns([next(self._prompts) for _ in range(due)]), partition=PROMPTS)
            self._num_fed += due

    def _step(self, step: int) -> StepReport:
        started_s = time.monotonic()
        with self._claim() as claim:
            waited_s = time.monotonic() - started_s
            staleness = self.version - np.asarray(claim.tags["policy_version"])
            reward, metrics = self._update(claim.handle)
        self.version = int(self._roles.publish("actor", WEIGHTS).result())
        self._client.advance_policy(self.version, partition=TRAIN)
        self.feed()
        evaluated = step % self._config.evaluate_every == 0 or step == self._config.num_steps
        step_s = time.monotonic() - started_s
        return StepReport(
            step=step,
            version=self.version,
            reward=reward,
            held_out_accuracy=self.evaluate() if evaluated else None,
            staleness_max=int(staleness.max()),
            staleness_mean=float(staleness.mean()),
            rows=len(staleness),
            samples_per_s=len(staleness) / step_s,
            step_s=step_s,
            wait_s=waited_s,
            stale_rows_dropped=self._rows_dropped(),
            metrics=metrics,
        )

    def _claim(self) -> tq.Claim:
        """A batch that every streaming stage has finished with."""
        import transferqueue as tq

        wanted = [*SCORED_FIELDS, *(["ref_log_prob"] if self._config.with_reference else [])]
        groups = self._config.samples_per_prompt
        deadline_s = time.monotonic() + self._config.claim_timeout_s
        while True:
            self._roles.check()
            try:
                return self._client.claim(
                    task="update",
                    partition=TRAIN,
                    fields=wanted,
                    n=self._config.batch_rows,
                    sampler=tq.samplers.Groups(size=groups) if groups > 1 else None,
                    timeout_s=2.0,
                    lease_s=600.0,
                )
            except tq.errors.NotReady:
                if time.monotonic() > deadline_s:
                    raise
                self.feed()  # samples that were dropped meanwhile are made up for

    def _update(self, handle: tq.BatchHandle) -> tuple[float, dict[str, float]]:
        statistics = [self._run("actor", "compute_log_prob", handle)]
        if self._config.with_critic:
            statistics.append(self._run("critic", "compute_values", handle))
        results = [self._received(future.result()) for future in statistics]
        joined = results[0]
        for other in results[1:]:
            joined = joined.union(other)
        joined = self._received(self._run("advantages", "compute_advantages", joined).result())
        updates = [self._run("actor", "update_actor", joined)]
        if self._config.with_critic:
            updates.append(self._run("critic", "update_critic", joined))
        metrics: dict[str, float] = {}
        for update in updates:
            metrics |= update.result()
        scores = self._run("scores", "mean_score", joined).result()
        return float(scores["reward"]), metrics

    def _run(self, role: str, method_name: str, handle: tq.BatchHandle) -> Future:
        self.handle_bytes += len(handle.to_bytes())
        return self._roles.run(role, method_name, handle)

    def _received(self, handle: tq.BatchHandle) -> tq.BatchHandle:
        self.handle_bytes += len(handle.to_bytes())
        return handle

    def _rows_dropped(self) -> int:
        partitions = self._client.status()["partitions"]
        return int(partitions.get(TRAIN, {}).get("stale_rows_dropped", 0))


def _columns(prompts: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns: name -> one object a row."""
    return {name: [prompt[name] for prompt in prompts] for name in prompts[0]}
