from __future__ import annotations

import pytest
import torch
from torch import Tensor

from examples.tiny.model import TinyConfig, TinyCritic, TinyTransformer
from workers.roles.layout import positions_of

CONFIG = TinyConfig(vocab_size=9, max_positions=12, num_layers=2, num_heads=2, width=16)


@pytest.fixture
def model() -> TinyTransformer:
    torch.manual_seed(0)
    return TinyTransformer(CONFIG)


def left_padded(rows: list[list[int]], width: int) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask, positions_of(mask)


def test_a_token_sees_only_what_came_before_it(model: TinyTransformer) -> None:
    ids, mask, positions = left_padded([[2, 3, 4, 5], [2, 3, 8, 7]], 4)

    logits = model(ids, mask, positions)

    assert torch.allclose(logits[0, :2], logits[1, :2])
    assert not torch.allclose(logits[0, 2:], logits[1, 2:])


def test_padding_changes_nothing(model: TinyTransformer) -> None:
    rows = [[2, 3, 4], [5]]
    narrow, wide = (model(*left_padded(rows, width)) for width in (3, 7))

    assert torch.allclose(narrow[0], wide[0, 4:], atol=1e-6)
    assert torch.allclose(narrow[1, -1], wide[1, -1], atol=1e-6)
    assert wide.isfinite().all()


def test_decoding_by_the_cache_equals_reading_the_whole(model: TinyTransformer) -> None:
    prompts, prompt_mask, positions = left_padded([[2, 3, 4], [5]], 3)
    new_tokens = torch.tensor([[6, 7, 8], [3, 3, 2]])

    logits, cache = model.prefill(prompts, prompt_mask, positions, 4)
    stepwise = [logits]
    for column in range(3):
        stepwise.append(model.decode(new_tokens[:, column], cache))

    mask = torch.cat([prompt_mask, torch.ones_like(new_tokens)], dim=1)
    whole = model(torch.cat([prompts, new_tokens], dim=1), mask, positions_of(mask))
    assert torch.allclose(torch.stack(stepwise, dim=1), whole[:, 2:], atol=1e-5)


def test_the_critic_starts_from_a_copy_of_the_policys_trunk_and_values_0(
    model: TinyTransformer,
) -> None:
    critic = TinyCritic.from_policy(model)
    inputs = left_padded([[2, 3, 4], [5]], 3)

    assert torch.equal(critic(*inputs), torch.zeros(2, 3))
    assert torch.equal(critic.trunk(*inputs), model.trunk(*inputs))
    with torch.no_grad():
        critic.trunk.norm.weight.mul_(2.0)
    assert torch.equal(model.trunk.norm.weight, torch.ones(16))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match=r"width=10 is not a multiple of num_heads=4"):
        TinyConfig(vocab_size=9, max_positions=4, width=10)
