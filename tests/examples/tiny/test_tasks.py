from __future__ import annotations

import itertools

import pytest

from examples.tiny.addition import Addition
from examples.tiny.problems import BLOCK_PROBLEMS, Problem, problems
from examples.tiny.tasks import make_task
from transferqueue.errors import ConfigError


def addends(problem: Problem) -> frozenset[int]:
    return frozenset(int(number) for number in problem.prompt.rstrip("=").split("+"))


def test_problems_are_right_and_fit_the_widths() -> None:
    task = Addition(digits=3)

    for problem in task.block(0, 0):
        assert sum(map(int, problem.prompt.rstrip("=").split("+"))) == int(problem.answer)
        assert len(problem.prompt) <= task.max_prompt_tokens
        assert len(problem.answer) + 1 <= task.max_response_tokens
        task.tokenizer.encode(problem.prompt + problem.answer)


def test_answers_can_be_written_backwards_and_columns_can_line_up() -> None:
    task = Addition(digits=2, reversed_answer=True, zero_padded=True)
    problem = next(p for p in itertools.islice(problems(task, 0), 50_000) if addends(p) == {5, 96})

    assert problem.prompt in ("05+96=", "96+05=")
    assert problem.answer == "101"
    assert all(len(p.answer) == 3 and len(p.prompt) == 6 for p in task.block(0, 0))


def test_a_stream_can_be_resumed_at_any_problem() -> None:
    task = Addition()
    whole = list(itertools.islice(problems(task, 3), 2 * BLOCK_PROBLEMS + 50))

    for start in (0, 1, BLOCK_PROBLEMS - 1, BLOCK_PROBLEMS, BLOCK_PROBLEMS + 7):
        resumed = list(itertools.islice(problems(task, 3, start=start), 40))
        assert resumed == whole[start : start + 40]


def test_seeds_and_blocks_differ() -> None:
    task = Addition()

    assert len({tuple(task.block(seed, index)) for seed in (0, 1) for index in (0, 1)}) == 4


def test_no_held_out_problem_or_its_mirror_is_ever_trained_on() -> None:
    task = Addition(digits=2)
    held_out = task.held_out(600)
    trained = {addends(p) for index in range(20) for p in task.block(0, index)}

    assert len(set(held_out)) == 600
    assert not {addends(p) for p in held_out} & trained


def test_the_held_out_share_is_what_was_asked_for() -> None:
    task = Addition(digits=2, held_out_share=0.25)
    everything = {addends(p) for index in range(60) for p in task.block(0, index)}

    assert len(everything) / 5050 == pytest.approx(0.75, abs=0.02)


def test_more_held_out_problems_than_there_are_is_refused_with_the_number() -> None:
    with pytest.raises(ConfigError, match=r"held_out\(2000\).* holds out about 1\d\d\d problems"):
        Addition(digits=2).held_out(2000)


@pytest.mark.parametrize(
    ("response", "score"), [("122", 1.0), ("123", 0.2), ("12", 0.2), ("1222", 0.225), ("", 0.0)]
)
def test_partial_credit_is_for_digits_in_their_place(response: str, score: float) -> None:
    task = Addition(partial_credit=0.3)

    assert task.verify(answer="122", response=response) == pytest.approx(score)
    assert Addition().verify(answer="122", response=response) == float(score == 1.0)


def test_a_task_is_made_by_name() -> None:
    assert make_task("addition", digits=3) == Addition(digits=3)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("additoin", {}, r"no task 'additoin'; did you mean 'addition'"),
        ("addition", {"digit": 3}, r"no parameter .*'digit'; did you mean 'digits'"),
        ("addition", {"digits": 0}, r"digits=0 must be 1 to 9"),
        ("addition", {"partial_credit": 1.0}, r"partial_credit=1.0"),
        ("addition", {"held_out_share": 0.0}, r"held_out_share=0.0"),
    ],
)
def test_a_wrong_name_or_value_is_named_with_near_ones(
    name: str, parameters: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task(name, **parameters)
