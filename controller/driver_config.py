"""What a training driver decides, checked with its arithmetic before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from controller.look_ahead import LookAhead
from controller.pacing import PromptPacing
from controller.plain_settings import from_plain
from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controller.ppo_settings import PpoSettings


class Mode(StrEnum):
    """How generation and training overlap."""

    SYNC = "sync"
    """Generate a batch, train on it, publish: verl's loop. Staleness 0."""
    ONE_STEP_OFF = "one_step_off"
    """Generate the next batch while training on this one. Staleness 1."""
    FULLY_ASYNC = "fully_async"
    """Rollouts and the stages behind them stream; an update takes the groups that are complete."""


class Transport(StrEnum):
    """What the driver hands to the stages."""

    HANDLES = "handles"
    FAT = "fat"
    """Whole batches, through the driver: to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverConfig:
    """The settings of a run. ``ConfigError`` for what could never work."""

    num_steps: int
    prompts_per_step: int
    samples_per_prompt: int = 1
    mode: Mode = Mode.FULLY_ASYNC
    transport: Transport = Transport.HANDLES
    max_staleness: int = 2
    """Updates between the oldest token of a sample and the update that trains on it. Held by the
    data plane in `Mode.FULLY_ASYNC`; the other modes have 0 and 1 by their construction."""
    updates_ahead: float | None = None
    """`Mode.FULLY_ASYNC`: prompts are out for so many updates after the next. Less than
    ``max_staleness`` keeps samples fresher and leaves time to those that take long; ``None``: as
    many. Towards the end of a run the last prompts go out all at once, ``max_staleness`` before it:
    see `controller.pacing`."""
    evaluate_every: int = 5
    """Updates between two held-out evaluations; the first and the last update are always
    followed by one. 0: never."""
    checkpoint_every: int = 0
    """Updates between two checkpoints; 0: none."""
    stage_rows: int = 256
    """Samples that a streaming stage takes at once, at most."""
    claim_timeout_s: float = 120.0
    """How long an update waits for its samples."""
    lease_s: float = 60.0
    """How long samples are a worker's without a sign of life from it."""
    max_restarts: int = 10
    """Processes of roles that may die, and are made again, in one run."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "prompts_per_step", "samples_per_prompt", "stage_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_staleness", "evaluate_every", "checkpoint_every", "max_restarts"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be 0 or more, got {getattr(self, name)}")
        for name in ("claim_timeout_s", "lease_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(
                    f"{name} must be above 0 and finite, got {getattr(self, name)}: whoever dies "
                    f"is found out by it"
                )
        if self.mode is Mode.ONE_STEP_OFF and self.max_staleness < 1:
            raise ConfigError(
                f"mode 'one_step_off' trains on samples that are 1 version old, which "
                f"max_staleness={self.max_staleness} rules out; allow 1, or use mode 'sync'"
            )
        if self.updates_ahead is not None and not 0 <= self.updates_ahead <= self.max_staleness:
            raise ConfigError(
                f"updates_ahead={self.updates_ahead}: the last of these samples would be "
                f"{self.updates_ahead} versions old when it is trained on, and "
                f"max_staleness={self.max_staleness} drops it; choose 0 to {self.max_staleness}"
            )
        if self.mode is Mode.FULLY_ASYNC and self.transport is Transport.FAT:
            raise ConfigError(
                "mode 'fully_async' needs transport 'handles': samples are claimed from the data "
                "plane as they become ready, and whole batches never lie there"
            )

    def check_groups(self, settings: PpoSettings) -> None:
        """``ConfigError`` when the algorithm needs larger groups, with the arithmetic."""
        least = settings.least_samples_per_prompt
        if self.samples_per_prompt < least:
            raise ConfigError(
                f"algorithm {settings.algorithm.value!r} compares the responses of a prompt: "
                f"samples_per_prompt={self.samples_per_prompt} leaves "
                f"{self.samples_per_prompt - 1} others, it needs at least {least}"
            )

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> DriverConfig:
        """From plain values, such as a file's. ``ConfigError`` names a wrong key and near ones."""
        return from_plain(cls, "driver", settings)

    @property
    def update_rows(self) -> int:
        """Samples that one update trains on."""
        return self.prompts_per_step * self.samples_per_prompt

    @property
    def pacing(self) -> PromptPacing:
        return PromptPacing(
            prompts_per_step=self.prompts_per_step,
            updates_ahead=self.max_staleness if self.updates_ahead is None else self.updates_ahead,
            num_steps=self.num_steps,
            last_updates_ahead=self.max_staleness,
        )

    @property
    def look_ahead(self) -> LookAhead:
        return LookAhead(
            num_steps=self.num_steps,
            max_staleness=self.max_staleness,
            checkpoint_every=self.checkpoint_every,
        )

    @property
    def staleness_bound(self) -> int:
        """The oldest that a sample can be in this mode."""
        return {Mode.SYNC: 0, Mode.ONE_STEP_OFF: 1}.get(self.mode, self.max_staleness)
