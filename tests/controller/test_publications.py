"""Which versions of the weights went out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from controller.publications import Publications
from workers.rollout_stream import VERSIONS_KEPT


@dataclass
class Actor:
    """Publishes a version at the time of its number."""

    published: list[int] = field(default_factory=list)

    def publish(self, role: str, name: str, version: int) -> Any:
        assert (role, name) == ("actor", "policy")
        self.published.append(version)
        return self

    def get(self) -> float:
        return float(self.published[-1])


def publications(num_versions: int) -> Publications:
    made = Publications(Actor())  # type: ignore[arg-type]  # only `publish`
    for version in range(num_versions):
        made.begin(version)
        made.finish()
    return made


def test_weights_of_an_update_that_came_to_nothing_keep_their_number() -> None:
    made = publications(3)
    made.begin(3)
    assert made.newest == 3, "though nobody knows whether it went out"


def test_the_time_to_the_first_token_is_that_of_the_newest_version_that_gave_one() -> None:
    assert publications(3).first_token_s({0: 0.5, 1: 1.25}) == pytest.approx(0.25)
    assert publications(3).first_token_s({1: 0.75}) == 0.0, "the rollout was faster than the answer"
    assert publications(3).first_token_s({}) is None
    assert publications(3).first_token_s({7: 7.5}) is None


def test_times_of_the_newest_versions_are_kept() -> None:
    made = publications(VERSIONS_KEPT + 4)
    assert made.first_token_s({3: 3.5}) is None
    assert made.first_token_s({4: 4.5}) == pytest.approx(0.5)
