"""Claims are held for as long as their driver lives, and no longer."""

from __future__ import annotations

import threading
from typing import Any

from controller.lease_keeper import LeaseKeeper
from transferqueue.errors import LeaseExpired


class FakeClaim:
    def __init__(self, claim_id: int, *, is_lost: bool = False) -> None:
        self.claim_id = claim_id
        self.extended = threading.Semaphore(0)
        self._is_lost = is_lost

    def __len__(self) -> int:
        return 1

    def extend(self, lease_s: float) -> float:
        self.extended.release()
        if self._is_lost:
            raise LeaseExpired(self.claim_id, 0.0)
        return lease_s


def test_a_claim_is_extended_again_and_again_also_when_another_is_lost() -> None:
    lost: Any = FakeClaim(1, is_lost=True)
    kept: Any = FakeClaim(2)
    with LeaseKeeper(lease_s=0.03) as keeper:
        keeper.hold(lost)
        keeper.hold(kept)
        for _ in range(3):
            assert kept.extended.acquire(timeout=20)
        keeper.let_go(kept)
    assert lost.extended.acquire(timeout=0)


def test_a_claim_that_was_let_go_is_extended_no_more() -> None:
    gone: Any = FakeClaim(1)
    other: Any = FakeClaim(2)
    with LeaseKeeper(lease_s=0.03) as keeper:
        keeper.hold(gone)
        keeper.let_go(gone)
        keeper.hold(other)
        assert other.extended.acquire(timeout=20)
    assert not gone.extended.acquire(timeout=0)
