"""Which shards a coordinator misses, and when."""

from __future__ import annotations

import time
from typing import Any

from transferqueue.coordinator.copy_links import PAUSED_S, CopyLinks
from transferqueue.coordinator.journal import CoordinatorJournal
from transferqueue.coordinator.second_copies import SecondCopies
from transferqueue.coordinator.shard_link import ShardLink

TAKEOVER_S = 60.0


def shard(slot: int, heard_s: float) -> ShardLink:
    return ShardLink(
        slot=slot,
        peer=b"",
        incarnation=f"{slot}",
        lineage="",
        endpoints=[],
        facts={"node": f"{slot}", "boot_id": "here", "pid": slot},
        heard_s=heard_s,
    )


class Links:
    """Two shards that have no second copies, and what is given up of them."""

    def __init__(self) -> None:
        self.now_s = time.monotonic()
        self.shards = {slot: shard(slot, self.now_s) for slot in (0, 1)}
        self.lost: list[int] = []
        settings: dict[str, Any] = {
            "shards": self.shards,
            "num_shards": 2,
            "slots": lambda: {0, 1} - set(self.lost),
            "uids_of": lambda slot: None,
            "journal": CoordinatorJournal(None, {}),
            "lose": self.lost.append,
            "on_changed": lambda: None,
        }
        self.links = CopyLinks(SecondCopies(1, TAKEOVER_S), **settings)

    def pass_time(self, seconds: float, *heard: int) -> None:
        """In steps of a second, in which these shards are heard."""
        for _ in range(int(seconds)):
            self.now_s += 1.0
            for slot in heard:
                self.shards[slot].heard_s = self.now_s
            self.links.tick(self.now_s)


def test_a_shard_that_is_not_heard_of_for_so_long_is_given_up() -> None:
    service = Links()
    service.pass_time(TAKEOVER_S - 2, 0)
    assert service.lost == []
    service.pass_time(4, 0)
    assert service.lost == [1]


def test_nobody_is_missed_for_the_time_in_which_the_coordinator_stood_still() -> None:
    service = Links()
    service.pass_time(3, 0, 1)
    service.now_s += 10 * TAKEOVER_S
    service.links.tick(service.now_s)
    assert service.lost == [], "what they have said since has not been read yet"
    service.pass_time(TAKEOVER_S - 2, 0)
    assert service.lost == []
    service.pass_time(4, 0)
    assert service.lost == [1]
    assert PAUSED_S < TAKEOVER_S
