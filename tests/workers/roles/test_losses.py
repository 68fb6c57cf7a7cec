"""Losses against numbers worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from workers.roles.losses import (
    KlEstimator,
    PolicyClip,
    kl_divergence,
    policy_loss,
    truncated_importance_weights,
    value_loss,
)

ONE = torch.ones(1, 1, dtype=torch.int64)


def single(value: float) -> Tensor:
    return torch.tensor([[value]])


def loss_of(ratio: float, advantage: float, clip: PolicyClip) -> tuple[float, float]:
    """``(loss, its gradient in the log-probability)`` of one token with that ratio."""
    log_probs = single(math.log(ratio)).requires_grad_()
    result = policy_loss(log_probs, single(0.0), single(advantage), ONE, clip=clip)
    result.loss.backward()
    assert log_probs.grad is not None
    return result.loss.item(), log_probs.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # on policy: the plain policy gradient
        (1.1, 2.0, -2.2, -2.2),  # inside the clip range
        (1.5, 2.0, -2.4, 0.0),  # a gain above 1 + 0.2 pays no more
        (0.5, 2.0, -1.0, -1.0),  # a loss of a good token is always felt
        (0.5, -2.0, 1.6, 0.0),  # a gain below 1 - 0.2 pays no more
        (1.5, -2.0, 3.0, 3.0),  # a rise of a bad token is always felt
    ],
)
def test_the_clip_stops_gains_and_never_losses(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    got = loss_of(ratio, advantage, PolicyClip(low=0.2, high=0.2))

    assert got == pytest.approx((loss, gradient), rel=1e-5)


@pytest.mark.parametrize(("ratio", "gradient"), [(1.25, -1.25), (1.35, 0.0)])
def test_the_upper_clip_can_be_wider_than_the_lower(ratio: float, gradient: float) -> None:
    _, got = loss_of(ratio, 1.0, PolicyClip(low=0.2, high=0.3))

    assert got == pytest.approx(gradient, rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (5.0, -1.0, 3.0, 0.0),  # a far-off bad token costs 3 at most, and teaches nothing
        (2.0, -1.0, 2.0, 2.0),  # below the ceiling all is as before
        (5.0, 1.0, -1.2, 0.0),  # positive advantages have the ordinary clip alone
    ],
)
def test_the_dual_clip_bounds_the_loss_of_bad_tokens(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    got = loss_of(ratio, advantage, PolicyClip(dual=3.0))

    assert got == pytest.approx((loss, gradient), rel=1e-5)


def test_clip_fractions_count_real_tokens() -> None:
    ratios = torch.tensor([[1.5, 1.0, 5.0, 9.0]])
    advantages = torch.tensor([[1.0, 1.0, -1.0, 1.0]])
    mask = torch.tensor([[1, 1, 1, 0]])

    result = policy_loss(
        ratios.log(), torch.zeros(1, 4), advantages, mask, clip=PolicyClip(dual=3.0)
    )

    assert result.clip_fraction.item() == pytest.approx(1 / 3)
    assert result.dual_clip_fraction.item() == pytest.approx(1 / 3)
    assert result.approx_kl.item() == pytest.approx(-math.log(1.5 * 5.0) / 3)
    assert result.loss.item() == pytest.approx((-1.2 - 1.0 + 3.0) / 3)


def test_importance_weights_scale_token_losses() -> None:
    weights = torch.tensor([[0.5, 2.0]])
    zeros = torch.zeros(1, 2)

    result = policy_loss(
        zeros,
        zeros,
        torch.tensor([[1.0, 3.0]]),
        torch.ones(1, 2),
        clip=PolicyClip(),
        importance_weights=weights,
    )

    assert result.loss.item() == pytest.approx(-(0.5 * 1.0 + 2.0 * 3.0) / 2)


def test_importance_weights_are_cut_at_the_cap_and_carry_no_gradient() -> None:
    old = torch.tensor([[0.5, 3.0]]).log().requires_grad_()

    weights = truncated_importance_weights(old, torch.zeros(1, 2), cap=2.0)

    assert torch.allclose(weights, torch.tensor([[0.5, 2.0]]))
    assert not weights.requires_grad


def test_a_token_that_became_impossible_does_not_overflow() -> None:
    result = policy_loss(single(0.0), single(-1e4), single(-1.0), ONE, clip=PolicyClip())

    assert math.isfinite(result.loss.item())


@pytest.mark.parametrize(
    "settings", [{"low": 0.0}, {"low": 1.0}, {"high": 0.0}, {"dual": 1.0}, {"dual": 0.5}]
)
def test_an_impossible_clip_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        PolicyClip(**settings)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (KlEstimator.K1, math.log(2)),
        (KlEstimator.K2, math.log(2) ** 2 / 2),
        (KlEstimator.K3, 0.5 - 1 + math.log(2)),
    ],
)
def test_kl_estimators_by_hand(estimator: KlEstimator, expected: float) -> None:
    policy, ref = single(math.log(0.8)), single(math.log(0.4))

    assert kl_divergence(policy, ref, estimator).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("estimator", [KlEstimator.K1, KlEstimator.K3])
def test_unbiased_kl_estimators_average_to_the_true_kl(estimator: KlEstimator) -> None:
    policy, ref = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.25, 0.25])
    true_kl = (policy * (policy / ref).log()).sum()

    mean = (policy * kl_divergence(policy.log(), ref.log(), estimator)).sum()

    assert mean.item() == pytest.approx(true_kl.item(), rel=1e-5)


def test_the_gradient_of_k2_is_that_of_the_true_kl() -> None:
    logits = torch.tensor([0.3, -0.2, 0.9], requires_grad=True)
    ref = torch.tensor([0.5, 0.25, 0.25]).log()
    log_probs = logits.log_softmax(-1)
    true_kl = (log_probs.exp() * (log_probs - ref)).sum()
    expected = torch.autograd.grad(true_kl, logits, retain_graph=True)[0]

    k2 = kl_divergence(log_probs, ref, KlEstimator.K2)
    got = torch.autograd.grad((log_probs.detach().exp() * k2).sum(), logits)[0]

    assert torch.allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("value", "clip_range", "loss", "gradient"),
    [
        (1.0, None, 0.5, -1.0),  # half the squared error
        (1.0, 0.5, 1.125, 0.0),  # went further from the old value than allowed: 0.5 counts
        (0.3, 0.5, 1.445, -1.7),  # within the range
        (-1.0, 0.5, 4.5, -3.0),  # away from the return: the worse, plain error counts
    ],
)
def test_value_loss_by_hand(
    value: float, clip_range: float | None, loss: float, gradient: float
) -> None:
    values = single(value).requires_grad_()

    result = value_loss(values, single(0.0), single(2.0), ONE, clip_range=clip_range)
    result.loss.backward()

    assert result.loss.item() == pytest.approx(loss)
    assert values.grad is not None
    assert values.grad.item() == pytest.approx(gradient)
    assert result.clip_fraction.item() == float(gradient == 0.0)
