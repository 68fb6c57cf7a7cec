"""Evaluations now and later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from examples.tiny import evaluation
from examples.tiny.evaluation import HeldOutEvaluation
from examples.tiny.spelling import Spelling

if TYPE_CHECKING:
    import pytest


def test_kept_weights_are_evaluated_as_they_were_and_then_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy: Any = torch.nn.Linear(1, 1, bias=False)
    monkeypatch.setattr(evaluation, "greedy_accuracy", lambda model, *_: model.weight.item())
    held_out = HeldOutEvaluation(policy, Spelling(), num_problems=8)
    for weight in (0.25, 0.5):
        torch.nn.init.constant_(policy.weight, weight)
        held_out.keep()
    torch.nn.init.constant_(policy.weight, 0.75)

    assert held_out.kept_accuracies() == [0.25, 0.5]
    assert held_out.kept_accuracies() == []
    assert held_out.accuracy() == 0.75, "the policy itself is left alone"
