"""Addresses of slabs that are objects of a store."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.object_store import DictBackend
from tests.replication.pair import BUDGET, Pair
from tests.replication.two_shards import Put
from transferqueue.backends.checked import checked
from transferqueue.backends.several import Member, SeveralBackends
from transferqueue.memory.gather import merge_runs

MIB = 1 << 20


@pytest.mark.parametrize("nbytes", [64, 4096, MIB])
def test_ranges_of_two_slabs_are_not_taken_for_one(nbytes: int) -> None:
    backend = DictBackend(8 * MIB)
    addresses = backend.reserve([nbytes] * 3)
    assert addresses is not None
    starts, _ = merge_runs(addresses, np.full(3, nbytes))
    assert len(starts) == 3
    assert backend.used_bytes == 3 * nbytes


def test_what_was_between_slabs_goes_with_them() -> None:
    backend = DictBackend(8 * MIB)
    for _ in range(4):
        addresses = backend.reserve([64, 0, MIB, 4096])
        assert addresses is not None
        sizes = np.array([64, 0, MIB, 4096])
        backend.free(addresses, backend.extents(sizes.tolist()))
    assert backend.used_bytes == 0
    assert backend._addresses.used_bytes == 0


def test_two_columns_of_a_put_that_lie_in_a_store_have_second_copies() -> None:
    store = checked(DictBackend(BUDGET), "store")
    member = Member(name="store", backend=store, budget_bytes=BUDGET)
    pair = Pair(home_backend=SeveralBackends([member]))
    pair.settle()
    cells = {"x": (b"x" * 4096,), "y": (b"y" * 4096,)}
    pair.change(Put(number=1, partition="p", uids=None, cells=cells))
    pair.exchange()
    assert pair.mirrored() == pair.model.state != {}
