"""Generation that takes the time of a larger model's."""

from __future__ import annotations

import torch

from examples.tiny.pace import PacedEngine
from tests.workers.roles.table_models import TableModel, chain
from workers.roles import CachedEngine


def test_a_call_takes_as_long_as_its_longest_row_has_tokens() -> None:
    slept: list[float] = []
    engine = CachedEngine(TableModel(chain(0, 1, 3, 4, 1)), eos_id=1, pad_id=0)
    paced = PacedEngine(engine, 0.5, clock=lambda: 0.0, sleep=slept.append)
    prompts = torch.tensor([[2], [4]])  # a -> b -> c -> end, and c -> end
    generation = paced.generate(
        prompts, torch.ones_like(prompts), max_new_tokens=6, temperature=1.0
    )
    assert generation.response_mask.sum(-1).tolist() == [3, 1]
    assert slept == [1.5]
    assert generation.first_token_s >= 0.5


def test_time_that_was_spent_computing_counts() -> None:
    slept: list[float] = []
    times = iter([0.0, 10.0])
    engine = CachedEngine(TableModel(chain(0, 1, 1)), eos_id=1, pad_id=0)
    paced = PacedEngine(engine, 0.5, clock=lambda: next(times), sleep=slept.append)
    prompts = torch.tensor([[2]])
    paced.generate(prompts, torch.ones_like(prompts), max_new_tokens=6, temperature=1.0)
    assert slept == []
