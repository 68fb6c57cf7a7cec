from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from controller.advantage_stage import AdvantageConfig, AdvantageStage, Algorithm
from workers.roles import declared_fields

ALWAYS = {"rm_scores", "response_mask"}


def batch() -> dict[str, Any]:
    """Two prompts with two responses each; one of each is right."""
    return {
        "rm_scores": torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]),
        "response_mask": torch.tensor([[1, 1], [1, 1], [1, 0], [1, 0]]),
        "values": torch.full((4, 2), 0.5),
        "uid": np.array(["p", "p", "q", "q"], dtype=object),
        "is_greedy": torch.tensor([False, True, False, True]),
        "old_log_probs": torch.full((4, 2), -1.0),
        "ref_log_prob": torch.full((4, 2), -1.5),
    }


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("kl_coefficient", [0.0, 0.1])
def test_every_algorithm_reads_what_it_says_and_writes_what_it_declares(
    algorithm: Algorithm, kl_coefficient: float
) -> None:
    stage = AdvantageStage(AdvantageConfig(algorithm=algorithm, kl_coefficient=kl_coefficient))
    needed = ALWAYS | set(stage.needs("compute_advantages"))
    data = {name: column for name, column in batch().items() if name in needed}

    out = stage.compute_advantages(data)

    declared = declared_fields(stage.compute_advantages)
    assert tuple(out) == declared.writes
    assert needed <= {*declared.reads, *declared.optional_reads}
    assert all(column.shape == (4, 2) for column in out.values())
    assert all(column[2:, 1].eq(0).all() for column in out.values())


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_right_responses_have_the_higher_advantage(algorithm: Algorithm) -> None:
    stage = AdvantageStage(AdvantageConfig(algorithm=algorithm))

    first = stage.compute_advantages(batch())["advantages"][:, 0]

    wrong = first[1::2]
    assert first[0] > 0
    assert first[2] > 0
    # By ReMax the wrong ones here are the greedy ones: baselines, which are not trained on.
    assert (wrong == 0).all() if algorithm.has_greedy_rows else (wrong < 0).all()


def test_gae_keeps_the_returns_unwhitened_for_the_critic() -> None:
    out = AdvantageStage(AdvantageConfig()).compute_advantages(batch())

    assert out["returns"].tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    real = out["advantages"][batch()["response_mask"].bool()]
    assert real.mean().item() == pytest.approx(0.0, abs=1e-6)


def test_the_kl_lowers_the_rewards_of_the_tokens() -> None:
    stage = AdvantageStage(AdvantageConfig(kl_coefficient=0.1))

    rewards = stage.compute_advantages(batch())["token_level_rewards"]

    assert rewards.tolist() == [
        pytest.approx(row) for row in ([-0.05, 0.95], [-0.05, -0.05], [0.95, 0.0], [-0.05, 0.0])
    ]
