from __future__ import annotations

import math

import torch

from examples.tiny.addition import Addition
from examples.tiny.evaluation import greedy_accuracy
from examples.tiny.model import TinyConfig, TinyTransformer
from examples.tiny.warmup import WarmupConfig, answer_loss, encode_answers, warm_up

TASK = Addition(digits=1, held_out_share=0.3)


def small_policy() -> TinyTransformer:
    torch.manual_seed(0)
    positions = TASK.max_prompt_tokens + TASK.max_response_tokens
    return TinyTransformer(
        TinyConfig(
            vocab_size=TASK.tokenizer.vocab_size, max_positions=positions, num_layers=1, width=32
        )
    )


def test_answers_end_with_the_end_token_and_padding() -> None:
    responses, mask = encode_answers(TASK, ["7", "12"])

    assert TASK.tokenizer.decode_batch(responses) == ["7", "12"]
    assert responses[0, 1] == TASK.tokenizer.eos_id
    assert mask.tolist() == [[1, 1, 0], [1, 1, 1]]


def test_a_model_that_knows_nothing_has_the_loss_of_guessing() -> None:
    policy = small_policy()
    with torch.no_grad():
        policy.head.weight.zero_()

    loss = answer_loss(policy, TASK, TASK.block(0, 0)[:32])

    assert math.isclose(loss.item(), math.log(TASK.tokenizer.vocab_size), rel_tol=1e-5)


def test_the_warm_up_stops_at_its_target() -> None:
    policy = small_policy()
    config = WarmupConfig(
        target_accuracy=0.05,
        batch_problems=32,
        ramp_steps=5,
        check_every_steps=5,
        check_problems=20,
    )

    result = warm_up(policy, TASK, config, seed=0)

    assert result.accuracy >= 0.05
    assert result.num_steps < config.max_steps
    assert greedy_accuracy(policy, TASK, TASK.held_out(20)) == result.accuracy


def test_the_warm_up_stops_at_its_step_limit() -> None:
    config = WarmupConfig(
        target_accuracy=1.0, batch_problems=8, max_steps=10, check_every_steps=5, check_problems=5
    )

    assert warm_up(small_policy(), TASK, config, seed=0).num_steps == 10
