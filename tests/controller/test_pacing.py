"""How many prompts are handed out ahead."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.pacing import PromptPacing


def pacing(**changes: float) -> PromptPacing:
    settings: dict[str, Any] = {"prompts_per_step": 8, "updates_ahead": 2, "num_steps": 10}
    return PromptPacing(**{**settings, **changes})


def test_at_the_start_prompts_go_out_for_the_first_update_and_the_staleness_allowed() -> None:
    assert pacing().prompts_due(num_updates=0, num_outstanding=0) == 3 * 8


def test_each_update_lets_the_prompts_of_one_more_out() -> None:
    assert pacing().prompts_due(num_updates=1, num_outstanding=16) == 8
    assert pacing().prompts_due(num_updates=1, num_outstanding=24) == 0


def test_no_prompts_go_out_beyond_the_last_update() -> None:
    assert pacing().prompts_due(num_updates=9, num_outstanding=8) == 0
    assert pacing().prompts_due(num_updates=10, num_outstanding=0) == 0


def test_part_of_an_update_may_be_out_ahead() -> None:
    assert pacing(updates_ahead=1.5).prompts_due(num_updates=0, num_outstanding=0) == 20


def test_the_last_prompts_go_out_all_at_once_as_early_as_their_samples_stay_fresh_enough() -> None:
    rule = pacing(updates_ahead=1.5, last_updates_ahead=4)
    assert rule.prompts_due(num_updates=4, num_outstanding=12) == 8
    assert rule.prompts_due(num_updates=5, num_outstanding=12) == 5 * 8 - 12
    assert rule.prompts_due(num_updates=6, num_outstanding=4 * 8) == 0


def test_prompts_that_lost_samples_are_made_up_for() -> None:
    assert pacing().prompts_due(num_updates=0, num_outstanding=22) == 2


@given(staleness=st.integers(0, 4), fresher=st.integers(0, 4), steps=st.integers(1, 20))
def test_a_sample_used_first_in_first_out_is_never_too_old(
    staleness: int, fresher: int, steps: int
) -> None:
    ahead = max(0, staleness - fresher)
    rule = pacing(updates_ahead=ahead, last_updates_ahead=staleness, num_steps=steps)
    fed: list[int] = []  # version at which each prompt went out, at the earliest
    for version in range(steps):
        fed += [version] * rule.prompts_due(
            num_updates=version, num_outstanding=len(fed) - version * 8
        )
        used = fed[version * 8 : (version + 1) * 8]
        assert len(used) == 8, "every update finds a batch"
        assert version - min(used) <= staleness
    assert len(fed) == steps * 8


@pytest.mark.parametrize("name", ["prompts_per_step", "num_steps"])
def test_a_count_below_one_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        pacing(**{name: 0})


@pytest.mark.parametrize("name", ["updates_ahead", "last_updates_ahead"])
def test_a_negative_lead_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be 0 or more, got -1"):
        pacing(**{name: -1})
