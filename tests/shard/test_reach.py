"""What of a shard's memory a process has, by the tokens that it shows."""

from __future__ import annotations

import numpy as np
import pytest

from transferqueue.backends.several import ADDRESS_BITS, own_address, own_addresses
from transferqueue.errors import ArenaReplaced
from transferqueue.shard.reach import ARENA, NOTHING, Memories, Reach

BOTH = Memories(slot=3, arena="a1", devices={"d1": 2, "d4": 4})


class TwoKinds:
    """Of backends: number 0 is mapped, numbers 2 and 4 are on devices."""

    def are_in_arena(self, addresses: np.ndarray) -> np.ndarray:
        return addresses >> ADDRESS_BITS == 0

    def are_on_device(self, addresses: np.ndarray) -> np.ndarray:
        return np.isin(addresses >> ADDRESS_BITS, [2, 4])


@pytest.mark.parametrize(
    ("process", "reach"),
    [
        (None, NOTHING),
        ({"pid": 1, "arena": "a1"}, ARENA),
        ({"pid": 1, "devices": ["d1"]}, Reach(arena=False, devices=frozenset({2}))),
        (
            {"pid": 1, "arena": "a1", "devices": ["d1", "d4"]},
            Reach(arena=True, devices=frozenset({2, 4})),
        ),
        ({"pid": 1}, ARENA),
    ],
)
def test_a_process_has_what_it_shows_the_token_of(
    process: dict[str, object] | None, reach: Reach
) -> None:
    assert BOTH.reached_by(process) == reach


@pytest.mark.parametrize("process", [{"arena": "a0", "devices": ["d1"]}, {"devices": ["d4", "d0"]}])
def test_memory_of_an_earlier_process_of_the_shard_is_said_to_be_gone(
    process: dict[str, object],
) -> None:
    with pytest.raises(ArenaReplaced):
        BOTH.reached_by(process)


def test_a_shard_that_shows_nothing_lends_nothing() -> None:
    assert Memories(slot=0).reached_by({"pid": 1}) == NOTHING
    with pytest.raises(ArenaReplaced):
        Memories(slot=0).reached_by({"devices": ["d1"]})


def test_ranges_are_within_reach_by_the_kind_of_memory_that_they_lie_in() -> None:
    addresses = np.array([(number << ADDRESS_BITS) + 5 for number in (0, 1, 2, 4)])
    backend = TwoKinds()
    reached = {
        reach: reach.of(backend, addresses).tolist()  # type: ignore[arg-type]
        for reach in (NOTHING, ARENA, Reach(arena=True, devices=frozenset({2})))
    }
    assert list(reached.values()) == [
        [False, False, False, False],
        [True, False, False, False],
        [True, False, True, False],
    ]
    assert own_addresses(addresses).tolist() == [5, 5, 5, 5]
    assert own_address(int(addresses[2])) == 5
