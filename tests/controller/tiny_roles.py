"""Roles that learn nothing, in threads: small enough to see what a driver does with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from controller.advantage_stage import AdvantageStage
from controller.score_summary import ScoreSummary
from workers import LocalWorkerGroup
from workers.role_groups import RoleGroups
from workers.roles import Rollout, RolloutConfig, stage
from workers.roles.models import Generation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import transferqueue as tq
    from controller.ppo_settings import PpoSettings
    from workers.worker import WorkerSpec

PROMPT, RESPONSE = 2, 4
PAD, EOS = 0, 1


class Letters:
    pad_id, eos_id = PAD, EOS

    def encode_left_padded(self, texts: list[str], width: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.tensor([[PAD] * (width - 1) + [2 + len(text) % 5] for text in texts])
        return ids, (ids != PAD).long()

    def decode_batch(self, ids: torch.Tensor) -> list[str]:
        return ["" for _ in ids]


@dataclass
class FakeEngine:
    """Responses of the weights' number, repeated. ``slow`` is called before each generation."""

    slow: Callable[[], None] = lambda: None
    weight: float = 0.0
    temperatures: list[Any] = field(default_factory=list)

    def load_weights(self, state_dict: Mapping[str, Any]) -> None:
        self.weight = float(state_dict["w"])

    def generate(
        self, prompts: Any, prompt_mask: Any, *, max_new_tokens: int, temperature: Any
    ) -> Generation:
        self.slow()
        self.temperatures.append(temperature)
        shape = (len(prompts), max_new_tokens)
        return Generation(
            responses=torch.full(shape, 2),
            response_mask=torch.ones(shape, dtype=torch.int64),
            log_probs=torch.zeros(shape),
            first_token_s=0.0,
        )


class FakeReward:
    @stage(reads=("responses", "response_mask", "reward_model"), writes=("rm_scores",))
    def compute_scores(self, data: Mapping[str, Any]) -> dict[str, Any]:
        scores = torch.zeros(len(data["responses"]), RESPONSE)
        scores[:, -1] = torch.tensor([float(one["score"]) for one in data["reward_model"]])
        data["response_mask"]
        return {"rm_scores": scores}


class FakeReference:
    @stage(
        reads=("input_ids", "attention_mask", "position_ids", "responses"),
        writes=("ref_log_prob",),
    )
    def compute_ref_log_prob(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"ref_log_prob": torch.zeros(len(data["responses"]), RESPONSE)}


@dataclass
class Trained:
    """What an actor was trained on, kept in the test's process: roles are threads."""

    batches: list[torch.Tensor] = field(default_factory=list)
    """Token versions of each update."""
    uids: list[list[str]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    """What the actor did, in order."""
    before_update: Callable[[], None] = lambda: None


class FakeActor:
    def __init__(self, trained: Trained) -> None:
        self.weight = 0
        self._trained = trained

    def state_dict(self) -> dict[str, Any]:
        self._trained.events.append("publish")
        return {"w": torch.tensor([float(self.weight)])}

    def save_state(self) -> dict[str, Any]:
        self._trained.events.append("save")
        return {"weight": self.weight}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.weight = int(state["weight"])

    @stage(
        reads=("input_ids", "attention_mask", "position_ids", "responses"),
        writes=("old_log_probs", "entropys"),
    )
    def compute_log_prob(self, data: Mapping[str, Any]) -> dict[str, Any]:
        self._trained.events.append("log_prob")
        zeros = torch.zeros(len(data["responses"]), RESPONSE)
        return {"old_log_probs": zeros, "entropys": zeros}

    @stage(
        reads=(
            "input_ids", "attention_mask", "position_ids", "responses", "response_mask",
            "old_log_probs", "advantages", "token_versions", "uid",
        ),
        optional_reads=("ref_log_prob", "rollout_log_probs"),
    )  # fmt: skip
    def update_actor(self, data: Mapping[str, Any]) -> dict[str, float]:
        self._trained.before_update()
        self._trained.events.append("update")
        self.weight += 1
        self._trained.batches.append(torch.as_tensor(data["token_versions"]).clone())
        self._trained.uids.append([str(uid) for uid in data["uid"]])
        return {"actor/weight": float(self.weight)}

    def needs(self, method_name: str) -> tuple[str, ...]:
        return ("ref_log_prob", "rollout_log_probs") if method_name == "update_actor" else ()

    def accuracy(self) -> float:
        return self.weight / 10


def rollout(engine: FakeEngine, *, slots: int = 8, greedy: bool = False) -> Rollout:
    config = RolloutConfig(
        prompt_length=PROMPT,
        response_length=RESPONSE,
        slots=slots,
        segment_tokens=2,
        with_greedy_rows=greedy,
    )
    return Rollout(engine, Letters(), config)


def threads(service: Any) -> Callable[[str, Mapping[str, WorkerSpec]], LocalWorkerGroup]:
    return lambda _, worker: LocalWorkerGroup(worker, 1, service=service)


def role_groups(
    service: Any,
    settings: PpoSettings,
    trained: Trained,
    *,
    engines: list[FakeEngine] | None = None,
) -> RoleGroups:
    engines = engines or [FakeEngine(), FakeEngine()]
    greedy = settings.has_greedy_rows
    factories: dict[str, Any] = {
        f"rollout-{index}": lambda engine=engine: {"rollout": rollout(engine, greedy=greedy)}
        for index, engine in enumerate(engines)
    }
    actor = FakeActor(trained)
    advantages = AdvantageStage(settings.advantage_config())
    factories |= {
        "reward": lambda: {"reward": FakeReward()},
        "reference": lambda: {"reference": FakeReference()},
        "trainer": lambda: {
            "actor": actor,
            "evaluation": actor,
            "advantages": advantages,
            "scores": ScoreSummary(),
        },
    }
    return RoleGroups(factories, threads(service))


def prompt(number: int) -> dict[str, Any]:
    return {"raw_prompt": "x" * (number % 7), "reward_model": {"score": number % 2}}


def num_rows(client: tq.Client, partition: str) -> int:
    """As the coordinator knows; it hears from the shards of what is cleared there."""
    partitions = client.status()["partitions"]
    return int(partitions[partition]["rows"]) if partition in partitions else 0
