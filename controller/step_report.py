"""One update, as it is shown and logged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One update."""

    step: int
    version: int
    """Policy version after the update."""
    reward: float
    """Mean score of the samples trained on."""
    held_out_accuracy: float | None
    """``None`` when this update was not followed by an evaluation."""
    staleness_max: int
    """By the oldest token of each sample."""
    staleness_mean: float
    rows: int
    """Samples trained on."""
    samples_per_s: float
    step_s: float
    """Evaluation and checkpoint not included."""
    wait_s: float
    """Of ``step_s``, how long the trainer had nothing to train on."""
    checkpoint_s: float = 0.0
    stale_rows_dropped: int = 0
    """Samples that grew too old before they were trained on, since the start."""
    generations_resumed: int = 0
    """Generations that went on under newer weights, since the start."""
    generations_dropped: int = 0
    """Generations that began again because they had grown too old, since the start."""
    rows_given_again: int = 0
    """Of ``rows``: those that an earlier claim had and did not ack."""
    first_token_s: float | None = None
    """From the publishing of the newest weights that any rollout has used, until its first token
    with them; ``None`` where rollouts do not stream."""
    batch_bytes: int = 0
    """Of handles, or of whole batches, that went to roles and came back in this update."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def idle_share(self) -> float:
        """Share of the step in which the trainer had nothing to train on."""
        return self.wait_s / self.step_s if self.step_s else 0.0
