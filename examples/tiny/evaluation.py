"""How often a policy is right on problems it has never seen."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from workers.roles.generation import CachedEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

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


class HeldOutEvaluation:
    """Greedy accuracy of a policy on the task's held-out problems, now or, so that nobody gets
    ahead while it is evaluated, later."""

    def __init__(self, policy: TinyTransformer, task: Task, num_problems: int) -> None:
        self._policy = policy
        self._task = task
        self._problems = task.held_out(num_problems)
        self._kept: list[dict[str, Tensor]] = []

    def accuracy(self) -> float:
        return greedy_accuracy(self._policy, self._task, self._problems)

    def keep(self) -> None:
        """The weights as they are, for `kept_accuracies`."""
        self._kept.append(deepcopy(self._policy.state_dict()))

    def kept_accuracies(self) -> list[float]:
        """Of all that were kept, in order; they are forgotten."""
        policy = deepcopy(self._policy)
        accuracies = []
        for weights in self._kept:
            policy.load_state_dict(weights)
            accuracies.append(greedy_accuracy(policy, self._task, self._problems))
        self._kept = []
        return accuracies
