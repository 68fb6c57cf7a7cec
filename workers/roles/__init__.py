"""The roles of RL post-training, as plain classes around a model that the user brings.

A role knows nothing of processes, sockets or storage: each method takes the columns it declares
(:mod:`workers.roles.fields`) and returns the columns it writes, or metrics.
"""

from workers.roles.actor import Actor, ActorConfig
from workers.roles.critic import Critic, CriticConfig
from workers.roles.fields import MethodFields, declared_fields, declared_methods, stage
from workers.roles.generation import CachedEngine
from workers.roles.models import (
    CachedModel,
    Generation,
    GenerationEngine,
    PolicyModel,
    Tokenizer,
    ValueModel,
)
from workers.roles.partial_rollout import PartialRollout
from workers.roles.reference import Reference
from workers.roles.reward import Reward, Verifier
from workers.roles.rollout import Rollout, RolloutConfig

__all__ = [
    "Actor",
    "ActorConfig",
    "CachedEngine",
    "CachedModel",
    "Critic",
    "CriticConfig",
    "Generation",
    "GenerationEngine",
    "MethodFields",
    "PartialRollout",
    "PolicyModel",
    "Reference",
    "Reward",
    "Rollout",
    "RolloutConfig",
    "Tokenizer",
    "ValueModel",
    "Verifier",
    "declared_fields",
    "declared_methods",
    "stage",
]
