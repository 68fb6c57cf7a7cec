"""Each role on a batch of two rows, in the layout that all of them share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.workers.roles.table_models import TableCritic, TableModel, chain
from workers.roles import (
    Actor,
    ActorConfig,
    CachedEngine,
    Critic,
    CriticConfig,
    Reference,
    Reward,
    Rollout,
    RolloutConfig,
    declared_fields,
)
from workers.roles.layout import join_prompts_and_responses
from workers.roles.minibatches import MinibatchPlan
from workers.roles.reward import scores_at_last_token

PAD, EOS = 0, 1


class LetterTokenizer:
    """``a`` is token 2, ``b`` 3, and so on."""

    pad_id = PAD
    eos_id = EOS

    def encode_left_padded(self, texts: list[str], width: int) -> tuple[Tensor, Tensor]:
        rows = [[ord(letter) - 95 for letter in text] for text in texts]
        ids = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
        return ids, (ids != PAD).long()

    def decode_batch(self, ids: Tensor) -> list[str]:
        return ["".join(chr(token + 95) for token in row.tolist() if token > EOS) for row in ids]


def batch() -> dict[str, Tensor]:
    """Prompts ``a`` and ``ba``; responses ``c``, end and ``ab``, cut."""
    prompts, prompt_mask = LetterTokenizer().encode_left_padded(["a", "ba"], 2)
    responses = torch.tensor([[4, EOS], [2, 3]])
    response_mask = torch.ones_like(responses)
    joined = join_prompts_and_responses(prompts, prompt_mask, responses, response_mask)
    return {"responses": responses, "response_mask": response_mask, **joined}


def sgd(model: torch.nn.Module, learning_rate: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=learning_rate)


def test_the_rollout_writes_the_declared_columns_in_the_shared_layout() -> None:
    model = TableModel(chain(0, 1, 3, 4, 1))  # a -> b -> c -> end
    engine = CachedEngine(model, eos_id=EOS, pad_id=PAD)
    rollout = Rollout(engine, LetterTokenizer(), RolloutConfig(prompt_length=3, response_length=4))

    out = rollout.generate_sequences({"raw_prompt": np.array(["a", "ac"], dtype=object)})

    assert tuple(sorted(out)) == tuple(sorted(declared_fields(rollout.generate_sequences).writes))
    assert out["prompts"].tolist() == [[0, 0, 2], [0, 2, 4]]
    assert out["responses"].tolist() == [[3, 4, 1, 0], [1, 0, 0, 0]]
    assert out["input_ids"].tolist() == [[0, 0, 2, 3, 4, 1, 0], [0, 2, 4, 1, 0, 0, 0]]
    assert out["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0, 0]]
    assert out["position_ids"].tolist() == [[0, 0, 0, 1, 2, 3, 3], [0, 0, 1, 2, 2, 2, 2]]


def test_the_rollout_knows_the_version_of_its_weights() -> None:
    engine = CachedEngine(TableModel(chain(0, 1, 1)), eos_id=EOS, pad_id=PAD)
    rollout = Rollout(engine, LetterTokenizer(), RolloutConfig(prompt_length=1, response_length=2))
    rollout.load_weights(TableModel(chain(0, 1, 2)).state_dict(), version=7)

    assert rollout.version == 7
    out = rollout.generate_sequences({"raw_prompt": ["a"]}, greedy=True)
    assert out["responses"].tolist() == [[2, 2]]


def test_the_rollouts_log_probs_are_those_the_actor_computes_for_the_same_weights() -> None:
    torch.manual_seed(0)
    model = TableModel(torch.randn(6, 6))
    rollout = Rollout(
        CachedEngine(model, eos_id=EOS, pad_id=PAD),
        LetterTokenizer(),
        RolloutConfig(prompt_length=2, response_length=5, temperature=0.7),
    )
    actor = Actor(model, sgd(model), ActorConfig(temperature=0.7))

    out = rollout.generate_sequences({"raw_prompt": ["a", "ab"] * 8})
    old = actor.compute_log_prob(out)["old_log_probs"]

    real = out["response_mask"].bool()
    assert torch.allclose(out["rollout_log_probs"][real], old[real], atol=1e-6)


def test_the_reward_scores_ended_responses_at_their_last_token() -> None:
    seen: list[tuple[str, str]] = []

    def verify(*, answer: str, response: str) -> float:
        seen.append((answer, response))
        return float(answer == response)

    data: dict[str, Any] = batch()
    data["reward_model"] = [{"ground_truth": "c"}, {"ground_truth": "ab"}]

    scores = Reward(verify, LetterTokenizer()).compute_scores(data)["rm_scores"]

    assert seen == [("c", "c")]  # the second has the right letters but was cut
    assert scores.tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_scores_land_on_the_last_real_token_and_on_none_of_an_empty_row() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])

    placed = scores_at_last_token(torch.tensor([2.0, 3.0, 4.0]), mask)

    assert placed.tolist() == [[0.0, 2.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_the_reference_and_the_actor_agree_on_the_same_model() -> None:
    model = TableModel(torch.randn(6, 6))

    ref = Reference(model).compute_ref_log_prob(batch())
    own = Actor(model, sgd(model), ActorConfig()).compute_log_prob(batch())

    assert torch.equal(ref["ref_log_prob"], own["old_log_probs"])
    assert not ref["ref_log_prob"].requires_grad


def test_a_token_is_scored_by_the_column_before_it() -> None:
    table = torch.zeros(6, 6)
    table[2, 4] = math.log(5.0)  # after a: c has 5 of 10 parts
    actor = Actor(TableModel(table), sgd(TableModel(table)), ActorConfig())

    out = actor.compute_log_prob(batch())

    expected = torch.tensor([[1 / 2, 1 / 6], [1 / 10, 1 / 10]])
    assert torch.allclose(out["old_log_probs"].exp(), expected)


def test_an_update_makes_good_tokens_likelier_and_bad_ones_less_likely() -> None:
    model = TableModel(torch.zeros(6, 6))
    actor = Actor(model, sgd(model), ActorConfig())
    data = batch()
    old = actor.compute_log_prob(data)["old_log_probs"]
    data |= {"old_log_probs": old, "advantages": torch.tensor([[1.0, 1.0], [-1.0, -1.0]])}

    metrics = actor.update_actor(data)
    new = actor.compute_log_prob(data)["old_log_probs"]

    assert ((new > old) == (data["advantages"] > 0)).all()
    assert actor.version == 1
    assert metrics["actor/approx_kl"] == 0.0
    assert metrics["actor/entropy"] == pytest.approx(math.log(6))


def test_the_actor_says_which_optional_columns_it_needs() -> None:
    model = TableModel(torch.zeros(6, 6))
    plain = Actor(model, sgd(model), ActorConfig())
    full = Actor(model, sgd(model), ActorConfig(kl_coefficient=0.1, importance_cap=2.0))

    assert plain.needs("update_actor") == ()
    assert full.needs("update_actor") == ("ref_log_prob", "rollout_log_probs")
    assert full.needs("compute_log_prob") == ()
    assert set(full.needs("update_actor")) <= set(declared_fields(full.update_actor).optional_reads)


def test_kl_entropy_and_importance_weights_enter_the_loss() -> None:
    model = TableModel(torch.zeros(6, 6))
    config = ActorConfig(kl_coefficient=0.5, entropy_coefficient=0.25, importance_cap=2.0)
    actor = Actor(model, sgd(model), config)
    uniform = torch.full((2, 2), -math.log(6))
    data = batch() | {
        "old_log_probs": uniform,
        "rollout_log_probs": uniform - math.log(4),  # weight 4, capped at 2
        "ref_log_prob": uniform + math.log(2),  # k3: 2 - 1 - log 2
        "advantages": torch.ones(2, 2),
    }

    metrics = actor.update_actor(data)

    kl = 1 - math.log(2)
    assert metrics["actor/policy_loss"] == pytest.approx(-2.0)
    assert metrics["actor/ref_kl"] == pytest.approx(kl)
    assert metrics["actor/loss"] == pytest.approx(-2.0 + 0.5 * kl - 0.25 * math.log(6))


def test_values_are_of_the_state_before_each_token_and_updates_fit_the_returns() -> None:
    model = TableCritic(torch.arange(6.0)[:, None])
    plan = MinibatchPlan(epochs=200)
    critic = Critic(
        model,
        sgd(model, 0.5),
        CriticConfig(plan=plan, clip_range=None, max_grad_norm=math.inf),
    )
    data = batch()

    values = critic.compute_values(data)["values"]
    assert values.tolist() == [[2.0, 4.0], [2.0, 2.0]]

    returns = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    metrics = critic.update_critic(data | {"values": values, "returns": returns})
    fitted = critic.compute_values(data)["values"]
    assert torch.allclose(fitted, returns, atol=1e-3)
    assert set(metrics) == {
        "critic/loss",
        "critic/clip_fraction",
        "critic/grad_norm",
        "critic/value_mean",
    }
