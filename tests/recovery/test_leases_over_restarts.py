"""Leases that outlive their shard pin the slabs that they were given for, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.recovery.shard_in_process import in_process
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 64 << 10  # float32: a row is mapped, and takes whole pages


def rows(*values: float) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([torch.full((LENGTH,), value) for value in values])}


def test_a_lease_on_a_slab_whose_first_rows_have_gone_is_not_taken_for_the_next_slab_there(
    tmp_path: Path,
) -> None:
    with in_process(tmp_path) as running:
        client, store = running.client, running.shard._store
        pair = client.put(rows(1, 2), partition="p")
        client.clear(pair[:1])
        after = client.put(rows(3), partition="p")  # where the cleared row was
        at = store.slabs.address[store.slabs.ids()]
        assert len(at) == 2
        assert at[0] == at[1], "the test needs two slabs that begin at one address"
        held = client.get_columns(pair[1:], fields=["x"])

        running.restart_shard(epoch=1)

        client.clear(pair[1:])
        client.clear(after)
        for value in range(10, 90):  # more than the arena holds at once
            client.clear(client.put(rows(value), partition="p"))
        assert held["x"].unique().tolist() == [2.0]
        del held
        wait_until(lambda: running.shard._backend.used_bytes == 0)


def test_a_lease_ends_for_good_when_its_slab_had_shared_an_address(tmp_path: Path) -> None:
    with in_process(tmp_path) as running:
        client = running.client
        pair = client.put(rows(1, 2), partition="p")
        client.clear(pair[:1])
        after = client.put(rows(3), partition="p")
        held = client.get_columns(pair[1:], fields=["x"])
        client.clear(after)

        running.restart_shard(epoch=1)

        del held
        client.clear(pair[1:])
        wait_until(lambda: running.shard._backend.used_bytes == 0)
        dense = client.put(rows(4, 5), partition="p")
        other = client.put({"y": torch.arange(2 * LENGTH).view(2, -1)}, partition="p")
        assert client.get(dense)["x"][:, 0].tolist() == [4, 5]
        assert client.get(other)["y"][1, 0] == LENGTH
