from __future__ import annotations

import math

import pytest
import torch

from tests.workers.roles.table_models import TableModel, chain
from workers.roles import CachedEngine, Generation

PAD, EOS = 0, 1


def generate(
    model: TableModel,
    last_tokens: list[int],
    *,
    temperature: float = 1.0,
    seed: int = 0,
    width: int = 4,
) -> Generation:
    engine = CachedEngine(model, eos_id=EOS, pad_id=PAD, seed=seed)
    prompts = torch.tensor(last_tokens)[:, None]
    return engine.generate(
        prompts, torch.ones_like(prompts), max_new_tokens=width, temperature=temperature
    )


def test_rows_end_on_their_own_and_are_padded_after_their_end_token() -> None:
    model = TableModel(chain(0, 1, 3, 4, 1))  # 2 -> 3 -> 4 -> end

    generation = generate(model, [2, 4])

    assert generation.responses.tolist() == [[3, 4, EOS, PAD], [EOS, PAD, PAD, PAD]]
    assert generation.response_mask.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert torch.equal(generation.log_probs[1, 1:], torch.zeros(3))


def test_generation_stops_when_every_row_has_ended() -> None:
    model = TableModel(chain(0, 1, 1))
    cache_lengths: list[int] = []
    model.decode = lambda token_ids, cache: cache_lengths.append(len(token_ids))  # type: ignore[method-assign,assignment,return-value]

    generate(model, [2, 2], width=64)

    assert cache_lengths == []


def test_a_response_that_does_not_end_is_cut() -> None:
    generation = generate(TableModel(chain(0, 1, 3, 2)), [2])

    assert generation.responses.tolist() == [[3, 2, 3, 2]]
    assert generation.response_mask.tolist() == [[1, 1, 1, 1]]


def test_log_probs_are_those_of_the_tempered_policy() -> None:
    logits = torch.zeros(3, 3)
    logits[2] = torch.tensor([-math.inf, 0.0, 2.0 * math.log(3.0)])

    generation = generate(TableModel(logits), [2] * 64, temperature=2.0, width=1)

    expected = torch.where(generation.responses == 2, math.log(0.75), math.log(0.25))
    assert torch.allclose(generation.log_probs, expected.float())
    assert 0.5 < (generation.responses == 2).float().mean() < 0.95


def test_greedy_takes_the_likeliest_token() -> None:
    model = TableModel(chain(0, 1, 3, 1, sharpness=0.1))

    generation = generate(model, [2] * 8, temperature=0.0)

    assert generation.responses.tolist() == [[3, EOS, PAD, PAD]] * 8


def test_a_seed_fixes_the_draws_and_calls_go_on_in_the_stream() -> None:
    model = TableModel(torch.zeros(4, 4))

    first, again = generate(model, [2] * 8, seed=5), generate(model, [2] * 8, seed=5)
    other = generate(model, [2] * 8, seed=6)

    assert torch.equal(first.responses, again.responses)
    assert not torch.equal(first.responses, other.responses)

    engine = CachedEngine(model, eos_id=EOS, pad_id=PAD, seed=5)
    prompts = torch.full((8, 1), 2)
    one, two = (
        engine.generate(prompts, torch.ones_like(prompts), max_new_tokens=4, temperature=1.0)
        for _ in range(2)
    )
    assert torch.equal(one.responses, first.responses)
    assert not torch.equal(one.responses, two.responses)


def test_new_weights_are_used_from_the_next_call_on() -> None:
    engine = CachedEngine(TableModel(chain(0, 1, 3, 1)), eos_id=EOS, pad_id=PAD)
    engine.load_weights(TableModel(chain(0, 1, 1, 1)).state_dict())
    prompts = torch.full((1, 1), 2)

    generation = engine.generate(
        prompts, torch.ones_like(prompts), max_new_tokens=2, temperature=0.0
    )

    assert generation.responses.tolist() == [[EOS, PAD]]


def test_a_negative_temperature_is_refused() -> None:
    with pytest.raises(ValueError, match=r"temperature=-1"):
        generate(TableModel(torch.zeros(3, 3)), [2], temperature=-1.0)
