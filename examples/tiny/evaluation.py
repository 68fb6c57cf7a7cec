"""How often a policy is right on problems it has never seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.roles.generation import CachedEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.tiny.model import TinyTransformer
    from examples.tiny.problems import Problem, Task


def greedy_accuracy(model: TinyTransformer, task: Task, held_out: Sequence[Problem]) -> float:
    """Share of problems whose greedy answer scores 1."""
    tokenizer = task.tokenizer
    engine = CachedEngine(model, eos_id=tokenizer.eos_id, pad_id=tokenizer.pad_id)
    prompts, prompt_mask = tokenizer.encode_left_padded(
        [problem.prompt for problem in held_out], task.max_prompt_tokens
    )
    generation = engine.generate(
        prompts, prompt_mask, max_new_tokens=task.max_response_tokens, temperature=0.0
    )
    texts = tokenizer.decode_batch(generation.responses)
    right = [
        task.verify(answer=problem.answer, response=text) == 1.0
        for problem, text in zip(held_out, texts, strict=True)
    ]
    return sum(right) / len(right)
