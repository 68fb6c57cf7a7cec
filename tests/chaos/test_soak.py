"""A minute of trouble: nothing acknowledged is lost, nothing is there twice, nothing is torn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.record import FLOW, KEPT
from tests.chaos.soak import soak

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.soak import Outcome

SECONDS = 60.0
"""``python -m tests.chaos`` goes on for ten minutes."""

AS_PROMISED = {"NotReady", "LeaseExpired", "UnknownClaim", "StorageFull", "RowsConsumed"}
"""Nothing to claim; too late with an ack, as a worker is that was stopped; no room."""


@pytest.mark.slow
def test_a_minute_of_kills_stops_and_cuts_breaks_no_promise(tmp_path: Path) -> None:
    outcome = soak(SECONDS, seed=1, folder=tmp_path, spill=True)
    _check(outcome)
    assert outcome.num_spilled > 0


@pytest.mark.slow
def test_nor_do_shards_that_lose_all_they_had_where_there_are_two_copies(tmp_path: Path) -> None:
    outcome = soak(SECONDS / 2, seed=2, folder=tmp_path, replicas=True)
    _check(outcome)
    assert outcome.done["lose a shard"] > 0


def _check(outcome: Outcome) -> None:
    assert outcome.broken == []
    assert outcome.failures == []
    assert outcome.num_restarts > 0
    assert min(len(outcome.ledger.put[KEPT]), len(outcome.ledger.acked)) > 20
    assert outcome.ledger.put[FLOW]
    unexpected = {
        call: count
        for call, count in outcome.ledger.errors.items()
        if call.split(": ")[1] not in AS_PROMISED
    }
    # With the link cut, shards stopped and two cores for all of them a deadline may pass.
    assert sum(unexpected.values()) <= outcome.ledger.calls["putting"] // 20, unexpected
    left = (outcome.used_bytes, outcome.leases, outcome.puts_under_way, outcome.descriptors)
    assert left == (0, 0, 0, 0)
