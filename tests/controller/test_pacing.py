"""How many prompts are handed out ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.pacing import PromptPacing


def pacing(**changes: int) -> PromptPacing:
    settings = {"prompts_per_step": 8, "samples_per_prompt": 4, "max_staleness": 2, "num_steps": 10}
    return PromptPacing(**{**settings, **changes})


def test_at_the_start_prompts_go_out_for_the_first_update_and_the_staleness_allowed() -> None:
    assert pacing().prompts_due(version=0, num_fed=0, num_samples_dropped=0) == 3 * 8


def test_each_update_lets_the_prompts_of_one_more_out() -> None:
    assert pacing().prompts_due(version=1, num_fed=24, num_samples_dropped=0) == 8
    assert pacing().prompts_due(version=1, num_fed=32, num_samples_dropped=0) == 0


def test_no_prompts_go_out_beyond_the_last_update() -> None:
    assert pacing().prompts_due(version=9, num_fed=80, num_samples_dropped=0) == 0


def test_dropped_samples_are_made_up_for_in_whole_prompts() -> None:
    assert pacing().prompts_due(version=0, num_fed=24, num_samples_dropped=5) == 2


def test_without_staleness_an_update_waits_for_the_one_before() -> None:
    rule = pacing(max_staleness=0)
    assert rule.prompts_due(version=0, num_fed=0, num_samples_dropped=0) == 8
    assert rule.prompts_due(version=0, num_fed=8, num_samples_dropped=0) == 0


@given(staleness=st.integers(0, 4), steps=st.integers(1, 20))
def test_a_sample_used_first_in_first_out_is_never_too_old(staleness: int, steps: int) -> None:
    rule = pacing(max_staleness=staleness, num_steps=steps)
    fed: list[int] = []  # version at which each prompt went out, at the earliest
    for version in range(steps):
        due = rule.prompts_due(version=version, num_fed=len(fed), num_samples_dropped=0)
        fed += [version] * due
        used = fed[version * 8 : (version + 1) * 8]
        assert len(used) == 8, "every update finds a batch"
        assert version - min(used) <= staleness
    assert len(fed) == steps * 8


@pytest.mark.parametrize("name", ["prompts_per_step", "samples_per_prompt", "num_steps"])
def test_a_count_below_one_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        pacing(**{name: 0})
