"""Which backend the fields of a put go to."""

from __future__ import annotations

import pytest

from tests.shard.test_store import plan_of
from transferqueue.errors import UnknownBackend
from transferqueue.fields import FieldSpec
from transferqueue.shard.backend_choice import BackendChoice

DENSE = FieldSpec(dtype="uint8", shape=(5,))


@pytest.fixture
def choice() -> BackendChoice:
    choice = BackendChoice(["shm", "disk", "heap"], default=2)
    choice.declare(
        {
            "images": {"pixels": "disk", "*": "shm"},
            "some": {"pixels": "disk"},
            "typo": {"pixels": "dsik"},
        }
    )
    return choice


def test_a_field_goes_where_its_partition_says_and_others_to_the_star(
    choice: BackendChoice,
) -> None:
    found = choice.numbers("images", ["uid", "pixels", "text"])
    assert found is not None
    assert found.tolist() == [0, 1, 0]


def test_without_a_star_the_rest_goes_to_the_default_one(choice: BackendChoice) -> None:
    found = choice.numbers("some", ["pixels", "text"])
    assert found is not None
    assert found.tolist() == [1, 2]


def test_a_partition_that_says_nothing_costs_nothing(choice: BackendChoice) -> None:
    assert choice.numbers("other", ["pixels"]) is None
    choice.declare({})
    assert choice.numbers("images", ["pixels"]) is None


def test_a_backend_that_is_not_there_is_named_with_those_that_are(choice: BackendChoice) -> None:
    assert choice.numbers("typo", ["text"]).tolist() == [2]
    with pytest.raises(UnknownBackend, match=r"'dsik'; the shards have disk, heap, shm .*'disk'"):
        choice.numbers("typo", ["pixels"])


def test_bytes_are_counted_by_backend(choice: BackendChoice) -> None:
    plan = plan_of("images", 3, {"pixels": (DENSE, []), "a": (DENSE, []), "b": (DENSE, [])})
    assert choice.bytes_of(plan) == {1: 15, 0: 30}
    assert choice.bytes_of(plan_of("images", 0, {})) == {2: 0}
