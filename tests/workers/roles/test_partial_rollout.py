"""Generations a segment at a time: who goes on, with what, and under which weights."""

from __future__ import annotations

from typing import Any

import torch

from tests.workers.roles.table_models import TableModel, chain
from tests.workers.roles.test_roles import EOS, PAD, LetterTokenizer
from workers.roles import CachedEngine, PartialRollout, Rollout, RolloutConfig

LETTERS = chain(0, 1, 3, 4, 5, 1)  # a -> b -> c -> d -> end


def partial(table: torch.Tensor = LETTERS, **changes: Any) -> PartialRollout:
    settings = {"prompt_length": 2, "response_length": 6, "slots": 3, "segment_tokens": 2}
    config = RolloutConfig(**{**settings, **changes})
    engine = CachedEngine(TableModel(table), eos_id=EOS, pad_id=PAD)
    return PartialRollout(Rollout(engine, LetterTokenizer(), config))


def prompts(*texts: str) -> dict[str, Any]:
    return {"raw_prompt": list(texts)}


def test_rows_leave_as_they_end_and_the_others_go_on() -> None:
    rollout = partial()
    rollout.admit(["long", "short"], prompts("a", "d"))
    first = rollout.advance()
    assert first is not None
    assert first.keys == ["short"]
    assert rollout.keys == ["long"]
    assert rollout.num_free == 2
    assert rollout.counts.finished == 1


def test_segments_make_the_same_response_as_one_call() -> None:
    rollout = partial()
    rollout.admit([1], prompts("a"))
    finished = None
    while finished is None:
        finished = rollout.advance()
    whole = rollout._rollout.generate_sequences(prompts("a"))
    assert finished.columns.keys() == whole.keys()
    for name, column in whole.items():
        assert torch.allclose(finished.columns[name].double(), column.double(), atol=1e-5), name


def test_each_token_keeps_the_version_that_drew_it() -> None:
    rollout = partial()
    rollout.admit([1], prompts("a"))
    rollout.load_weights(TableModel(LETTERS).state_dict(), 3)
    assert rollout.counts.resumed == 0, "it had not begun"
    assert rollout.advance() is None
    rollout.load_weights(TableModel(LETTERS).state_dict(), 5)
    finished = rollout.advance()
    assert finished is not None
    assert finished.columns["token_versions"].tolist() == [[3, 3, 5, 5, -1, -1]]
    assert finished.columns["responses"].tolist() == [[3, 4, 5, EOS, PAD, PAD]]
    assert finished.oldest_versions == [3]
    assert rollout.counts.resumed == 1


def test_a_generation_that_began_too_long_ago_begins_again_and_is_counted() -> None:
    rollout = partial()
    rollout.admit([1], prompts("a"))
    rollout.load_weights(TableModel(LETTERS).state_dict(), 3)
    rollout.advance()
    rollout.load_weights(TableModel(LETTERS).state_dict(), 6)
    assert rollout.drop_older_than(3) == 0
    assert rollout.drop_older_than(4) == 1
    assert rollout.counts.dropped == 1
    rollout.advance()
    finished = rollout.advance()
    assert finished is not None
    assert finished.oldest_versions == [6]


def test_a_response_that_does_not_end_is_cut_at_the_limit() -> None:
    rollout = partial(chain(0, 1, 2, 3), response_length=5, segment_tokens=2)  # a -> a -> ...
    rollout.admit([1, 2], prompts("a", "a"))
    finished = [rollout.advance() for _ in range(3)]
    assert finished[:2] == [None, None]
    assert finished[2] is not None
    assert finished[2].columns["responses"].tolist() == [[2] * 5] * 2
    assert finished[2].columns["response_mask"].tolist() == [[1] * 5] * 2


def test_a_row_near_its_limit_does_not_get_more_than_it_may_have() -> None:
    rollout = partial(chain(0, 1, 2, 3), response_length=5, segment_tokens=4)
    rollout.admit(["early"], prompts("a"))
    rollout.advance()
    rollout.admit(["late"], prompts("a"))
    finished = rollout.advance()
    assert finished is not None
    assert finished.keys == ["early"]
    assert finished.columns["response_mask"].sum().item() == 5


def test_greedy_rows_and_others_are_drawn_together() -> None:
    torch.manual_seed(0)
    even = torch.zeros(6, 6)
    even[:, 4] = 0.1  # c is a little likelier
    rollout = partial(even, with_greedy_rows=True, slots=64, segment_tokens=6)
    flags = torch.arange(40) % 2 == 0
    rollout.admit(list(range(40)), {**prompts(*["a"] * 40), "is_greedy": flags})
    finished = rollout.advance()
    assert finished is not None
    greedy = [key for key in finished.keys if flags[key]]
    rows = dict(zip(finished.keys, finished.columns["responses"].tolist(), strict=True))
    assert len(greedy) == 20
    assert all(rows[key] == [4] * 6 for key in greedy)
    assert any(rows[key] != [4] * 6 for key in rows if key not in greedy)


def test_a_generation_given_up_leaves_its_slot() -> None:
    rollout = partial()
    rollout.admit([1, 2], prompts("a", "a"))
    rollout.discard([1])
    assert rollout.keys == [2]
