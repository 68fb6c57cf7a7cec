import math

import pytest
import torch

from workers.roles.layout import join_prompts_and_responses, positions_of, response_columns
from workers.roles.logits import entropy, token_log_probs


def test_token_log_probs_pick_the_given_token() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [5.0, 5.0]]])

    got = token_log_probs(logits, torch.tensor([[1, 0]]))

    assert got.exp().tolist() == [pytest.approx([0.75, 0.5])]


def test_entropy_is_in_nats() -> None:
    logits = torch.tensor([[[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, -1e9, -1e9]]])

    assert entropy(logits).tolist() == [pytest.approx([math.log(4), math.log(2)])]


def test_half_precision_logits_give_float32() -> None:
    logits = torch.zeros(1, 2, 3, dtype=torch.bfloat16)

    assert token_log_probs(logits, torch.zeros(1, 2, dtype=torch.int64)).dtype is torch.float32
    assert entropy(logits).dtype is torch.float32


def test_positions_count_from_the_first_real_token() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]])

    assert positions_of(mask).tolist() == [[0, 0, 0, 1, 2, 2], [0, 1, 2, 2, 2, 2]]


def test_whole_sequences_are_the_prompt_then_the_response() -> None:
    joined = join_prompts_and_responses(
        torch.tensor([[0, 7]]),
        torch.tensor([[0, 1]]),
        torch.tensor([[8, 1, 0]]),
        torch.tensor([[1, 1, 0]]),
    )

    assert joined["input_ids"].tolist() == [[0, 7, 8, 1, 0]]
    assert joined["attention_mask"].tolist() == [[0, 1, 1, 1, 0]]
    assert joined["position_ids"].tolist() == [[0, 0, 1, 2, 2]]


def test_outputs_about_the_response_start_one_column_early() -> None:
    per_column = torch.arange(5)[None]

    assert response_columns(per_column, 3).tolist() == [[1, 2, 3]]
