"""Settings that could never work are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from controller.advantage_stage import Algorithm
from controller.driver_config import DriverConfig, Mode, Transport
from controller.ppo_settings import PpoSettings
from transferqueue.errors import ConfigError

LEAST = {"num_steps": 2, "prompts_per_step": 4}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
        ({"samples_per_prompt": 0}, "samples_per_prompt must be at least 1"),
        ({"max_staleness": -1}, "max_staleness must be 0 or more"),
        ({"lease_s": 0.0}, "lease_s must be above 0"),
        (
            {"mode": "one_step_off", "max_staleness": 0},
            "trains on samples that are 1 version old, which max_staleness=0 rules out",
        ),
        (
            {"updates_ahead": 3, "max_staleness": 2},
            "would be 3 versions old when it is trained on, and max_staleness=2 drops it",
        ),
        ({"mode": "fully_async", "transport": "fat"}, "needs transport 'handles'"),
        ({"mode": "async"}, "no mode 'async'; did you mean 'sync' or 'fully_async'"),
        ({"transport": "handle"}, "did you mean 'handles'"),
        ({"max_stalenes": 1}, "no driver setting 'max_stalenes'; did you mean 'max_staleness'"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DriverConfig.from_mapping({**LEAST, **changes})


def test_plain_settings_become_members() -> None:
    config = DriverConfig.from_mapping({**LEAST, "mode": "sync", "transport": "fat"})
    assert (config.mode, config.transport) == (Mode.SYNC, Transport.FAT)
    assert config.staleness_bound == 0


@pytest.mark.parametrize("algorithm", [Algorithm.GRPO, Algorithm.RLOO])
def test_groups_too_small_for_the_algorithm_are_refused_with_the_arithmetic(
    algorithm: Algorithm,
) -> None:
    config = DriverConfig.from_mapping(LEAST)
    with pytest.raises(ConfigError, match="samples_per_prompt=1 leaves 0 others, it needs at"):
        config.check_groups(PpoSettings(algorithm=algorithm))


@pytest.mark.parametrize("algorithm", [Algorithm.GAE, Algorithm.REMAX])
def test_a_response_alone_is_enough_where_nothing_or_a_greedy_one_is_compared(
    algorithm: Algorithm,
) -> None:
    DriverConfig.from_mapping(LEAST).check_groups(PpoSettings(algorithm=algorithm))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 1.5}, "gamma must be 0 to 1, got 1.5"),
        ({"lam": -0.1}, "lam must be 0 to 1, got -0.1"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"importance_cap": float("nan")}, "importance_cap must be above 0, got nan"),
        ({"value_clip": -0.2}, "value_clip must be above 0, got -0.2"),
        ({"kl_coefficient": -0.1}, "kl_coefficient must be 0 or more, got -0.1"),
        ({"entropy_coefficient": float("inf")}, "entropy_coefficient must be 0 or more, got inf"),
    ],
)
def test_numbers_of_an_algorithm_that_make_no_sense_are_named(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        PpoSettings(**changes)
