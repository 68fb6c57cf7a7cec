"""The task with answers of very different lengths."""

from __future__ import annotations

import numpy as np
import pytest

from examples.tiny.problems import BLOCK_PROBLEMS
from examples.tiny.spelling import Spelling
from transferqueue.errors import ConfigError


def test_a_block_is_a_function_of_the_seed_and_its_number() -> None:
    task = Spelling()
    assert task.block(1, 2) == task.block(1, 2)
    assert task.block(1, 2) != task.block(1, 3)
    assert len(task.block(0, 0)) == BLOCK_PROBLEMS


def test_answers_are_the_letter_as_often_as_asked_and_fit() -> None:
    task = Spelling()
    for problem in task.block(0, 0):
        letter, count = problem.prompt[0], int(problem.prompt[1:-1])
        assert problem.answer == letter * count
        assert len(problem.prompt) <= task.max_prompt_tokens
        assert len(problem.answer) + 1 <= task.max_response_tokens


def test_lengths_have_the_long_tail_of_the_exponential_distribution() -> None:
    task = Spelling(mean_length=8.0, longest=40)
    lengths = np.array([len(p.answer) for block in range(8) for p in task.block(0, block)])
    # Rounded up, so half a letter longer than the distribution's own figures.
    assert np.median(lengths) == pytest.approx(8.0 * np.log(2) + 0.5, abs=0.6)
    assert np.quantile(lengths, 0.95) == pytest.approx(8.0 * np.log(20), abs=2.5)
    assert lengths.max() == 40


@pytest.mark.parametrize(
    ("response", "score"),
    [("aaaa", 1.0), ("aaa", 0.5 * 0.75), ("", 0.0), ("bbbb", 0.0), ("aaab", 0.0), ("a" * 9, 0.0)],
)
def test_the_right_letter_near_the_right_length_gets_part_of_the_score(
    response: str, score: float
) -> None:
    assert Spelling().verify(answer="aaaa", response=response) == pytest.approx(score)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"longest": 100}, "longest=100 must be 1 to 99"),
        ({"mean_length": 50.0}, "mean_length=50.0 must be 1 to longest=40"),
        ({"partial_credit": 1.0}, "partial_credit=1.0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Spelling(**settings)  # type: ignore[arg-type]
