"""Advantages against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from controller.advantages import (
    discounted_returns,
    generalized_advantages,
    group_normalized,
    leave_one_out,
    less_greedy_baseline,
    on_every_token,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    response_scores,
    rewards_with_kl,
)
from workers.roles.losses import KlEstimator

NAN = float("nan")


def rows(tensor: Tensor) -> list[list[float]]:
    return [pytest.approx(row, rel=1e-5, abs=1e-6) for row in tensor.tolist()]


def test_gae_by_hand() -> None:
    # gamma 0.5, lam 0.5:  delta_1 = 1 - 0.4 = 0.6          A_1 = 0.6
    #                      delta_0 = 0 + 0.5*0.4 - 0.2 = 0  A_0 = 0 + 0.25*0.6 = 0.15
    advantages, returns = generalized_advantages(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[0.2, 0.4]]), torch.ones(1, 2), gamma=0.5, lam=0.5
    )

    assert rows(advantages) == [[0.15, 0.6]]
    assert rows(returns) == [[0.35, 1.0]]


def test_gae_with_lambda_1_is_the_return_less_the_value() -> None:
    rewards, values = torch.rand(3, 5), torch.rand(3, 5)
    mask = torch.ones(3, 5)

    advantages, returns = generalized_advantages(rewards, values, mask, gamma=0.9, lam=1.0)

    assert torch.allclose(returns, discounted_returns(rewards, mask, gamma=0.9))
    assert torch.allclose(advantages, returns - values)


def test_gae_with_lambda_0_is_the_one_step_error() -> None:
    rewards, values = torch.rand(3, 5), torch.rand(3, 5)
    following = torch.cat([values[:, 1:], torch.zeros(3, 1)], dim=1)

    advantages, _ = generalized_advantages(rewards, values, torch.ones(3, 5), gamma=0.9, lam=0.0)

    assert torch.allclose(advantages, rewards + 0.9 * following - values)


def test_padding_does_not_reach_gae_and_comes_out_as_0() -> None:
    short = generalized_advantages(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[0.2, 0.4]]), torch.ones(1, 2), gamma=1.0, lam=0.9
    )
    padded = generalized_advantages(
        torch.tensor([[0.0, 1.0, NAN, 9.0]]),
        torch.tensor([[0.2, 0.4, 7.0, NAN]]),
        torch.tensor([[1, 1, 0, 0]]),
        gamma=1.0,
        lam=0.9,
    )

    for got, expected in zip(padded, short, strict=True):
        assert torch.equal(got[:, :2], expected)
        assert torch.equal(got[:, 2:], torch.zeros(1, 2))


def test_gae_passes_over_masked_tokens_in_the_middle() -> None:
    without = generalized_advantages(
        torch.tensor([[0.1, 1.0]]), torch.tensor([[0.2, 0.4]]), torch.ones(1, 2), gamma=0.9, lam=0.8
    )
    with_tool_output = generalized_advantages(
        torch.tensor([[0.1, 5.0, 1.0]]),
        torch.tensor([[0.2, 5.0, 0.4]]),
        torch.tensor([[1, 0, 1]]),
        gamma=0.9,
        lam=0.8,
    )

    for got, expected in zip(with_tool_output, without, strict=True):
        assert torch.equal(got[:, [0, 2]], expected)


def test_returns_to_go_are_discounted() -> None:
    returns = discounted_returns(
        torch.tensor([[1.0, 0.0, 4.0, 9.0]]), torch.tensor([[1, 1, 1, 0]]), gamma=0.5
    )

    assert rows(returns) == [[2.0, 2.0, 4.0, 0.0]]


def test_the_kl_is_taken_from_the_reward_of_each_real_token() -> None:
    rewards = rewards_with_kl(
        torch.tensor([[0.0, 1.0, 0.0]]),
        torch.tensor([[-1.0, -2.0, NAN]]),
        torch.tensor([[-1.5, -1.0, NAN]]),
        torch.tensor([[1, 1, 0]]),
        coefficient=0.1,
        estimator=KlEstimator.K1,
    )

    assert rows(rewards) == [[-0.05, 1.1, 0.0]]


def test_grpo_by_hand_with_groups_interleaved() -> None:
    scores = torch.tensor([1.0, 5.0, 3.0, 5.0, 2.0])
    groups = np.array(["a", "b", "a", "b", "a"])

    # a: mean 2, std over n - 1 is 1; b: all equal
    assert group_normalized(scores, groups, eps=0.0 + 1e-6).tolist() == pytest.approx(
        [-1.0, 0.0, 1.0, 0.0, 0.0], abs=1e-5
    )


def test_grpo_without_the_division_only_centres() -> None:
    scores = torch.tensor([1.0, 4.0])

    centred = group_normalized(scores, np.array([7, 7]), divide_by_std=False)

    assert centred.tolist() == [-1.5, 1.5]


def test_rloo_is_the_score_less_the_mean_of_the_others() -> None:
    scores = torch.tensor([1.0, 0.0, 2.0, 10.0, 20.0])
    groups = np.array([0, 0, 0, 1, 1])

    assert leave_one_out(scores, groups).tolist() == pytest.approx([0.0, -1.5, 1.5, -10.0, 10.0])


@pytest.mark.parametrize("estimate", [group_normalized, leave_one_out])
def test_object_ids_group_like_any_others(estimate: object) -> None:
    assert callable(estimate)
    scores = torch.tensor([1.0, 0.0, 1.0, 0.0])
    names = np.array(["p", "q", "p", "q"], dtype=object)

    assert torch.equal(estimate(scores, names), torch.zeros(4))


@pytest.mark.parametrize("estimate", [group_normalized, leave_one_out])
def test_a_group_of_one_is_refused_with_its_name(estimate: object) -> None:
    assert callable(estimate)
    with pytest.raises(ValueError, match=r"1 of 2 groups have one response .*'lonely'"):
        estimate(torch.zeros(3), np.array(["pair", "lonely", "pair"], dtype=object))


def test_remax_is_the_score_less_that_of_the_greedy_response_of_the_prompt() -> None:
    scores = torch.tensor([1.0, 0.25, 0.0, 0.5, 3.0])
    groups = np.array([7, 8, 7, 8, 7])
    greedy = torch.tensor([False, True, True, False, False])
    assert less_greedy_baseline(scores, groups, greedy).tolist() == [1.0, 0.0, 0.0, 0.25, 3.0]


@pytest.mark.parametrize("greedy", [[0, 0, 1], [1, 1, 1]])
def test_remax_needs_exactly_one_greedy_response_a_prompt(greedy: list[int]) -> None:
    groups = np.array([7, 7, 8])
    with pytest.raises(ValueError, match=r"1 of 2 groups have not exactly one.*first is .*7"):
        less_greedy_baseline(torch.zeros(3), groups, torch.tensor(greedy))


def test_reinforce_plus_plus_whitens_returns_over_the_batch() -> None:
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    mask = torch.tensor([[1, 1], [1, 0]])

    # returns to go 1, 1, 0: mean 2/3, variance over n - 1 is 1/3
    expected = (1 / 3) / math.sqrt(1 / 3)
    assert rows(reinforce_plus_plus(rewards, mask)) == [
        [expected, expected],
        [-2 * expected, 0.0],
    ]


def test_reinforce_plus_plus_with_baseline_has_one_scale_for_all_groups() -> None:
    scores = torch.tensor([0.0, 2.0, 0.0, 4.0])
    mask = torch.ones(4, 1, dtype=torch.int64)

    # centred -1, 1, -2, 2: variance over n - 1 is 10/3
    scale = math.sqrt(10 / 3)
    assert rows(reinforce_plus_plus_baseline(scores, np.array([0, 0, 1, 1]), mask)) == [
        [value / scale] for value in (-1.0, 1.0, -2.0, 2.0)
    ]


def test_one_number_a_response_lands_on_its_real_tokens() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])

    spread = on_every_token(torch.tensor([2.0, 3.0]), mask)

    assert spread.tolist() == [[2.0, 2.0, 0.0], [3.0, 0.0, 0.0]]
    assert response_scores(spread, mask).tolist() == [4.0, 3.0]
