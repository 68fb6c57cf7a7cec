"""Puts into a partition that has a quota, through real processes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from transferqueue import errors

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=["processes", "threads"])
def service(request: pytest.FixtureRequest) -> Iterator[tq.Service]:
    in_process = request.param == "threads"
    with tq.serve(shards=2, budget_bytes=64 << 20, in_process=in_process) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=10) as client:
        yield client


def rows(count: int) -> dict[str, torch.Tensor]:
    return {"x": torch.arange(count)}


def test_a_put_over_the_quota_waits_and_names_who_holds_the_room(client: tq.Client) -> None:
    client.create_partition("rows", max_rows=6)
    client.put(rows(4), partition="rows")
    start_s = time.monotonic()
    with pytest.raises(errors.QuotaExceeded, match=r"'rows': 4 \+ 4 rows over the limit 6"):
        client.put(rows(4), partition="rows", timeout_s=0.3)
    assert 0.25 < time.monotonic() - start_s < 5
    client.put(rows(2), partition="rows", timeout_s=10)


def test_the_clear_that_makes_room_lets_the_waiting_put_in(client: tq.Client) -> None:
    client.create_partition("woken", max_rows=4)
    held = client.put(rows(4), partition="woken")
    stored: list[tq.BatchHandle] = []
    putting = threading.Thread(target=lambda: stored.append(client.put(rows(3), partition="woken")))
    putting.start()
    while not client.status()["partitions"]["woken"]["waiting"]["puts"]:
        time.sleep(0.005)
    client.clear(held)
    putting.join(10)
    assert len(stored[0]) == 3


def test_a_quota_in_bytes_counts_all_fields(client: tq.Client) -> None:
    client.create_partition("bytes", max_bytes=1000)
    client.put({"x": torch.zeros(100, dtype=torch.float32)}, partition="bytes")
    with pytest.raises(errors.QuotaExceeded, match="bytes over the limit 1,000"):
        client.put({"x": torch.zeros(200, dtype=torch.float32)}, partition="bytes", timeout_s=0.2)


def test_consumed_samples_make_room(client: tq.Client) -> None:
    client.create_partition("loop", max_rows=4, tasks=["t"], retention="consumed")
    for step in range(5):
        client.put({"x": torch.full((4,), step)}, partition="loop")
        with client.claim(task="t", fields=["x"], n=4, partition="loop") as claim:
            assert claim.get()["x"].tolist() == [step] * 4


def test_room_of_puts_that_came_to_nothing_is_given_back(client: tq.Client) -> None:
    client.create_partition("given back", max_rows=4)
    held = client.put(rows(4), partition="given back")
    for _ in range(3):
        with pytest.raises(errors.QuotaExceeded):
            client.put(rows(4), partition="given back", timeout_s=0.05)
    big = torch.zeros(1, 80 << 20, dtype=torch.uint8)
    client.clear(held)
    with pytest.raises(errors.StorageFull):
        client.put({"x": big}, partition="given back", timeout_s=0.2)
    client.put(rows(4), partition="given back", timeout_s=10)


def test_further_fields_of_samples_that_are_in_never_wait(client: tq.Client) -> None:
    client.create_partition("fields", max_rows=4)
    handle = client.put(rows(4), partition="fields")
    client.put({"y": torch.zeros(4)}, handle=handle, timeout_s=10)


def test_a_put_that_can_never_fit_is_refused_at_once(client: tq.Client) -> None:
    client.create_partition("small", max_rows=4)
    start_s = time.monotonic()
    with pytest.raises((errors.QuotaExceeded, errors.InvalidInput), match="4"):
        client.put(rows(5), partition="small", timeout_s=30)
    assert time.monotonic() - start_s < 10


def test_a_put_that_waits_long_is_not_let_in_for_that(client: tq.Client) -> None:
    """Whoever waits is told every second that it is being worked on; that is not an answer."""
    client.create_partition("long", max_rows=4)
    client.put(rows(4), partition="long")
    with pytest.raises(errors.QuotaExceeded):
        client.put(rows(1), partition="long", timeout_s=2.5)
    assert client.status()["partitions"]["long"]["rows"] == 4


def test_large_mapped_puts_wait_too_and_their_room_is_used_once(client: tq.Client) -> None:
    client.create_partition("mapped", max_rows=2)
    value = {"x": torch.zeros(1, 1 << 20, dtype=torch.uint8)}
    held = [client.put(value, partition="mapped") for _ in range(2)]
    with pytest.raises(errors.QuotaExceeded):
        client.put(value, partition="mapped", timeout_s=0.2)
    client.clear(held[0])
    client.put(value, partition="mapped", timeout_s=5)
