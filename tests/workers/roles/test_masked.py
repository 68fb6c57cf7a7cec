import pytest
import torch

from workers.roles.masked import Aggregation, aggregate, masked_mean, masked_sum, masked_whiten

VALUES = torch.tensor([[1.0, 2.0, 3.0], [10.0, float("nan"), float("nan")]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Aggregation.TOKEN_MEAN, (1 + 2 + 3 + 10) / 4),
        (Aggregation.SEQ_MEAN_TOKEN_SUM, (6 + 10) / 2),
        (Aggregation.SEQ_MEAN_TOKEN_MEAN, (2 + 10) / 2),
        (Aggregation.SEQ_MEAN_TOKEN_SUM_NORM, (6 + 10) / 2 / 3),
    ],
)
def test_each_aggregation_weighs_tokens_as_its_name_says(how: Aggregation, expected: float) -> None:
    assert aggregate(VALUES, MASK, how).item() == pytest.approx(expected)


@pytest.mark.parametrize("how", list(Aggregation))
def test_a_response_without_tokens_counts_as_no_response(how: Aggregation) -> None:
    values = torch.cat([VALUES, torch.full((1, 3), 7.0)])
    mask = torch.cat([MASK, torch.zeros(1, 3, dtype=torch.int64)])

    assert aggregate(values, mask, how) == aggregate(VALUES, MASK, how)


def test_masked_places_never_matter_not_even_as_gradient() -> None:
    values = VALUES.clone().requires_grad_()
    masked_mean(values, MASK).backward()

    assert values.grad is not None
    assert torch.equal(values.grad, MASK / 4)


def test_sums_and_means_of_rows_and_of_nothing() -> None:
    assert torch.equal(masked_sum(VALUES, MASK, dim=-1), torch.tensor([6.0, 10.0]))
    assert torch.equal(masked_mean(VALUES, MASK, dim=-1), torch.tensor([2.0, 10.0]))
    assert masked_mean(VALUES, torch.zeros_like(MASK)) == 0.0


def test_whitened_tokens_have_mean_0_and_variance_1_and_masked_ones_are_0() -> None:
    whitened = masked_whiten(VALUES, MASK)
    real = whitened[MASK.bool()]

    assert real.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert real.var().item() == pytest.approx(1.0, abs=1e-5)
    assert torch.equal(whitened[~MASK.bool()], torch.zeros(2))


@pytest.mark.parametrize("num_real", [0, 1])
def test_whitening_fewer_than_two_tokens_gives_zeros(num_real: int) -> None:
    mask = torch.zeros(1, 3, dtype=torch.int64)
    mask[0, :num_real] = 1

    assert torch.equal(masked_whiten(torch.full((1, 3), 5.0), mask), torch.zeros(1, 3))
