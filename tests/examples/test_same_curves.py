"""Runs that must give the same numbers to the last bit do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from controller.advantage_stage import Algorithm
from controller.driver_config import Mode, Transport
from tests.examples.recipe_runs import curves, run, small_recipe

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("algorithm", "samples"), [(Algorithm.GAE, 1), (Algorithm.GRPO, 4), (Algorithm.REMAX, 1)]
)
@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ONE_STEP_OFF])
def test_handles_and_whole_batches_give_the_same_curves(
    tmp_path: Path, algorithm: Algorithm, samples: int, mode: Mode
) -> None:
    recipe = small_recipe(algorithm=algorithm, samples_per_prompt=samples, batch_rows=64)
    by_transport = [
        curves(
            run(recipe, recipe.driver_config(num_steps=3, mode=mode, transport=transport), tmp_path)
        )
        for transport in Transport
    ]
    assert by_transport[0] == by_transport[1]
    learned = [metrics["actor/grad_norm"] for *_, metrics in by_transport[0]]
    assert max(learned) > 0.0, "there was something to learn from"


def test_a_sync_run_that_is_resumed_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    recipe = small_recipe()
    config = recipe.driver_config(num_steps=5, mode=Mode.SYNC, checkpoint_every=2)
    (tmp_path / "whole").mkdir()
    whole = curves(run(recipe, config, tmp_path / "whole"))
    first = curves(run(recipe, config, tmp_path, stop_after=3))
    rest = curves(run(recipe, config, tmp_path, resume=True))
    assert [step for step, *_ in first] == [1, 2, 3]
    assert [step for step, *_ in rest] == [3, 4, 5], (
        "the update that no checkpoint had is done again"
    )
    assert first + rest[1:] == whole
    assert rest[0] == whole[2]
