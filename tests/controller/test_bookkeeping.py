"""Prompts on their way, and the samples that belong to them."""

from __future__ import annotations

import numpy as np
import pytest

from controller.errors import DataflowError
from controller.ledger import Ledger
from controller.ppo_settings import PpoSettings
from controller.prompt_queue import PromptQueue
from controller.prompt_rows import PromptRows


def test_prompts_that_were_not_trained_on_come_first_when_the_queue_goes_on() -> None:
    queue = PromptQueue()
    assert queue.take(5) == [0, 1, 2, 3, 4]
    queue.trained([0, 2])
    later = PromptQueue(**queue.state())
    assert later.take(5) == [1, 3, 4, 5, 6]


def test_prompts_given_back_come_again_in_their_order_before_others() -> None:
    queue = PromptQueue()
    queue.take(4)
    queue.again([0, 1])
    assert queue.num_outstanding == 2
    assert queue.take(3) == [0, 1, 4]


def test_prompts_found_in_the_data_plane_are_outstanding_and_do_not_come_again() -> None:
    queue = PromptQueue(next_number=3, first=[1, 2])
    queue.found([2, 7])
    assert queue.outstanding == [2, 7]
    assert queue.take(2) == [1, 8]


def ledger() -> Ledger:
    book = Ledger()
    book.add(np.array([9, 4, 7, 2]), np.array([0, 0, 1, 1]), np.array([False, True, False, True]))
    return book


def test_samples_are_looked_up_in_any_order() -> None:
    prompts, greedy = ledger().rows(np.array([2, 9]))
    assert prompts.tolist() == [1, 0]
    assert greedy.tolist() == [True, False]


def test_a_prompt_that_lost_a_sample_is_torn_and_the_rest_of_it_is_named() -> None:
    book = ledger()
    torn, left = book.tear(np.array([9, 4, 7]))
    assert torn.tolist() == [1]
    assert left.tolist() == [7]
    assert book.uids.tolist() == [9, 4]


def test_removed_samples_are_not_missed() -> None:
    book = ledger()
    book.remove(np.array([7, 2]))
    torn, left = book.tear(np.array([9, 4]))
    assert not len(torn)
    assert not len(left)


def test_each_prompt_is_repeated_and_its_greedy_row_comes_last() -> None:
    rows = PromptRows(
        prompts=lambda number: {"raw_prompt": f"p{number}", "unused": 0},
        inputs=("raw_prompt", "uid", "is_greedy"),
        samples_per_prompt=2,
        with_greedy=True,
    ).rows([5, 8])
    assert rows.columns["raw_prompt"] == ["p5", "p5", "p5", "p8", "p8", "p8"]
    assert rows.columns["uid"][::3] == ["prompt-5", "prompt-8"]
    assert rows.greedy.tolist() == [False, False, True] * 2
    assert "unused" not in rows.columns


def test_a_dataset_without_an_input_of_the_table_is_refused_with_near_names() -> None:
    with pytest.raises(DataflowError, match=r"no 'raw_prompt'.*did you mean 'raw_prompts'"):
        PromptRows.of(
            lambda _: {"raw_prompts": "", "reward_model": {}}, PpoSettings().dataflow(), 1
        )
