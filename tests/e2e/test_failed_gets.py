"""A get that fails holds nothing, and that without Python's cycle collector: an error refers to the
frames that it went through, and they to what had been got by then."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue.errors import RowsGone

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def num_leases(client: tq.Client) -> int:
    return sum(shard["leases"] for shard in client.status()["shards"])


@pytest.mark.usefixtures("without_collector")
def test_a_get_that_one_shard_refuses_gives_back_what_the_other_lent() -> None:
    with (
        tq.serve(shards=2, budget_bytes=64 << 20) as service,
        tq.connect(service.address) as client,
    ):
        value = {"x": torch.ones(2, 1 << 18)}
        first, second = (client.put(value, partition="p") for _ in range(2))
        both = tq.BatchHandle.concat([first, second])
        assert len({uid >> 48 for uid in both.uids.tolist()}) == 2
        client.clear(first[:1])
        kept = []
        for _ in range(3):
            with pytest.raises(RowsGone) as refused:
                client.get(both)
            kept.append(refused.value)  # as a log or a debugger might
        wait_until(lambda: not num_leases(client))
        assert len(kept) == 3
