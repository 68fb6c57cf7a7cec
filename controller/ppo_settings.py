"""One place for the numbers of an algorithm, and the table and role settings that follow from it.

The roles live in processes of their own. Made from the same `PpoSettings`, their configurations
and the driver's table cannot disagree; if they come from elsewhere, `Dataflow.check` says how.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from controller.advantage_stage import AdvantageConfig, Algorithm
from controller.dataflow import Dataflow, Stage
from transferqueue.errors import ConfigError
from workers.roles.actor import ActorConfig
from workers.roles.critic import CriticConfig
from workers.roles.losses import KlEstimator, PolicyClip
from workers.roles.masked import Aggregation

if TYPE_CHECKING:
    from workers.roles.minibatches import MinibatchPlan

SEQUENCE = ("input_ids", "attention_mask", "position_ids")
RESPONSE = ("responses", "response_mask")

GENERATED = (
    "prompts",
    "responses",
    "input_ids",
    "attention_mask",
    "position_ids",
    "response_mask",
    "rollout_log_probs",
    "token_versions",
)


class KlPlace(StrEnum):
    """Where the KL to the reference counts."""

    NOWHERE = "nowhere"
    REWARD = "reward"
    """Taken from the reward of each token (InstructGPT, arXiv:2203.02155)."""
    LOSS = "loss"
    """Added to the policy's loss (GRPO, arXiv:2402.03300)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoSettings:
    """An algorithm and its numbers. ``ConfigError`` for settings that contradict each other."""

    algorithm: Algorithm = Algorithm.GAE
    gamma: float = 1.0
    lam: float = 1.0
    whiten: bool = True
    kl_place: KlPlace = KlPlace.LOSS
    kl_coefficient: float = 0.005
    kl_estimator: KlEstimator = KlEstimator.K3
    entropy_coefficient: float = 0.0
    clip: PolicyClip = field(default_factory=PolicyClip)
    value_clip: float | None = 0.2
    importance_cap: float | None = 2.0
    """Of the weights for tokens that an older policy drew; ``None``: no correction."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    temperature: float = 1.0
    values_stream: bool = True
    """Asynchronous: value samples as they come, by the critic as it is then, which has time for it
    between its updates only: what comes during one is ready after it. ``False``: at the update, by
    the newest, beside the actor's log-probs."""

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, Algorithm):
            raise ConfigError(f"algorithm={self.algorithm!r} is none of {list(Algorithm)}")
        for name in ("gamma", "lam"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be 0 to 1, got {getattr(self, name)}")
        for name in ("kl_coefficient", "entropy_coefficient"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be 0 or more, got {getattr(self, name)}")
        for name in ("temperature", "importance_cap", "value_clip"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise ConfigError(f"{name} must be above 0, got {value}")
        has_place = self.kl_place is not KlPlace.NOWHERE
        if has_place != (self.kl_coefficient > 0.0):
            raise ConfigError(
                f"kl_coefficient={self.kl_coefficient} and kl_place={self.kl_place.value!r}: a "
                f"coefficient above 0 needs a place, and a place a coefficient"
            )

    @property
    def with_critic(self) -> bool:
        return self.algorithm.reads_values

    @property
    def with_reference(self) -> bool:
        return self.kl_place is not KlPlace.NOWHERE

    @property
    def has_greedy_rows(self) -> bool:
        return self.algorithm.has_greedy_rows

    @property
    def least_samples_per_prompt(self) -> int:
        """A response is compared with others of its prompt, or, by ReMax, with a greedy one that
        is drawn besides."""
        return 2 if self.algorithm.reads_groups and not self.has_greedy_rows else 1

    def actor_config(self, plan: MinibatchPlan) -> ActorConfig:
        in_loss = self.kl_place is KlPlace.LOSS
        return ActorConfig(
            plan=plan,
            clip=self.clip,
            aggregation=self.aggregation,
            temperature=self.temperature,
            entropy_coefficient=self.entropy_coefficient,
            kl_coefficient=self.kl_coefficient if in_loss else 0.0,
            kl_estimator=self.kl_estimator,
            importance_cap=self.importance_cap,
        )

    def critic_config(self, plan: MinibatchPlan) -> CriticConfig:
        return CriticConfig(plan=plan, clip_range=self.value_clip, aggregation=self.aggregation)

    def advantage_config(self) -> AdvantageConfig:
        in_reward = self.kl_place is KlPlace.REWARD
        return AdvantageConfig(
            algorithm=self.algorithm,
            gamma=self.gamma,
            lam=self.lam,
            whiten=self.whiten,
            kl_coefficient=self.kl_coefficient if in_reward else 0.0,
            kl_estimator=self.kl_estimator,
        )

    def dataflow(self) -> Dataflow:
        """The table of this algorithm: reward, reference and values stream."""
        stages = [self._rollout(), _REWARD]
        if self.with_reference:
            stages.append(_REFERENCE)
        if self.with_critic:
            stages.append(_values(streams=self.values_stream))
        stages += [_OLD_LOG_PROB, self._advantages()]
        if self.with_critic:
            stages.append(_UPDATE_CRITIC)
        # After the update of the critic, whose process often has them: nobody waits for them.
        stages += [_SCORES, self._update_actor()]
        inputs = ("raw_prompt", "reward_model", "uid")
        return Dataflow(inputs=(*inputs, *self._greedy_flag()), stages=tuple(stages))

    def _greedy_flag(self) -> tuple[str, ...]:
        return ("is_greedy",) if self.has_greedy_rows else ()

    def _rollout(self) -> Stage:
        return Stage(
            name="rollout",
            role="rollout",
            method="generate_sequences",
            reads=("raw_prompt", *self._greedy_flag()),
            writes=GENERATED,
            streams=True,
            generates=True,
        )

    def _advantages(self) -> Stage:
        with_kl = self.kl_place is KlPlace.REWARD
        return Stage(
            name="advantages",
            role="advantages",
            method="compute_advantages",
            reads=(
                "rm_scores",
                "response_mask",
                *(("values",) if self.with_critic else ()),
                *(("uid",) if self.algorithm.reads_groups else ()),
                *self._greedy_flag(),
                *(("old_log_probs", "ref_log_prob") if with_kl else ()),
            ),
            writes=("token_level_rewards", "advantages", "returns"),
        )

    def _update_actor(self) -> Stage:
        return Stage(
            name="update_actor",
            role="actor",
            method="update_actor",
            reads=(
                *SEQUENCE,
                *RESPONSE,
                "old_log_probs",
                "advantages",
                *(("ref_log_prob",) if self.kl_place is KlPlace.LOSS else ()),
                *(("rollout_log_probs",) if self.importance_cap is not None else ()),
            ),
        )


_REWARD = Stage(
    name="reward",
    role="reward",
    method="compute_scores",
    reads=(*RESPONSE, "reward_model"),
    writes=("rm_scores",),
    streams=True,
)
_REFERENCE = Stage(
    name="reference",
    role="reference",
    method="compute_ref_log_prob",
    reads=(*SEQUENCE, "responses"),
    writes=("ref_log_prob",),
    streams=True,
)
_OLD_LOG_PROB = Stage(
    name="old_log_prob",
    role="actor",
    method="compute_log_prob",
    reads=(*SEQUENCE, "responses"),
    writes=("old_log_probs", "entropys"),
)
_SCORES = Stage(
    name="scores", role="scores", method="summary", reads=("rm_scores", "response_mask")
)
_UPDATE_CRITIC = Stage(
    name="update_critic",
    role="critic",
    method="update_critic",
    reads=(*SEQUENCE, *RESPONSE, "values", "returns"),
)


def _values(*, streams: bool) -> Stage:
    return Stage(
        name="values",
        role="critic",
        method="compute_values",
        reads=(*SEQUENCE, "responses"),
        writes=("values",),
        streams=streams,
    )
