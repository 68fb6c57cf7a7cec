"""What the control plane promises, through real processes and sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAITING_CLIENT = """
import sys
import transferqueue as tq
client = tq.connect(sys.argv[1])
print("here", flush=True)
client.claim(task="t", fields=["x"], n=2, partition=sys.argv[2], timeout_s=60)
"""


CLAIMING_CLIENT = """
import sys, time
import transferqueue as tq
client = tq.connect(sys.argv[1])
claim = client.claim(task="t", fields=["x"], n=3, partition=sys.argv[2], lease_s=1.0)
print(claim.deliveries.tolist(), flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module", params=["processes", "threads"])
def service(request: pytest.FixtureRequest) -> Iterator[tq.Service]:
    in_process = request.param == "threads"
    with tq.serve(shards=2, budget_bytes=64 << 20, in_process=in_process) as service:
        yield service


of_processes = pytest.mark.parametrize("service", ["processes"], indirect=True, scope="module")


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=15) as client:
        yield client


def rows(count: int, first: int = 0) -> dict[str, torch.Tensor]:
    return {"x": torch.arange(first, first + count)}


def until(condition: Callable[[], object]) -> None:
    wait_until(condition, timeout_s=15.0)


def waiting_claims(client: tq.Client, partition: str) -> int:
    partitions = client.status()["partitions"]
    return partitions[partition]["waiting"]["claims"] if partition in partitions else 0


# -- who waits and is gone ------------------------------------------------------------------------


@of_processes
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_waiting_client_that_is_killed_frees_its_place(
    service: tq.Service, client: tq.Client, signal_number: int
) -> None:
    name = f"killed {signal_number}"
    with subprocess.Popen(
        [sys.executable, "-c", WAITING_CLIENT, service.address, name], stdout=subprocess.PIPE
    ) as waiting:
        until(lambda: waiting_claims(client, name) == 1)
        waiting.send_signal(signal_number)
        waiting.wait()
        until(lambda: waiting_claims(client, name) == 0)
    client.put(rows(2), partition=name)
    with client.claim(task="t", fields=["x"], n=2, partition=name, timeout_s=5) as claim:
        assert claim.deliveries.tolist() == [1, 1]


@of_processes
def test_a_claim_of_a_worker_that_is_killed_is_given_again_after_its_lease(
    service: tq.Service, client: tq.Client
) -> None:
    client.put(rows(3), partition="worked on")
    with subprocess.Popen(
        [sys.executable, "-c", CLAIMING_CLIENT, service.address, "worked on"],
        stdout=subprocess.PIPE,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"[1, 1, 1]\n"
        worker.kill()
        worker.wait()
    claim = client.claim(task="t", fields=["x"], n=3, partition="worked on", timeout_s=10)
    assert claim.deliveries.tolist() == [2, 2, 2]
    claim.ack()


@of_processes
def test_rows_are_not_handed_to_a_client_that_has_just_died(
    service: tq.Service, client: tq.Client
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING_CLIENT, service.address, "just"], stdout=subprocess.PIPE
    ) as waiting:
        until(lambda: waiting_claims(client, "just") == 1)
        waiting.kill()
        waiting.wait()
        time.sleep(0.2)  # the kernel tells the coordinator that the socket has closed
        client.put(rows(2), partition="just")
    with client.claim(task="t", fields=["x"], n=2, partition="just", timeout_s=10) as claim:
        assert len(claim) == 2


@of_processes
def test_a_client_that_is_stopped_for_a_while_keeps_its_place(
    service: tq.Service, client: tq.Client
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING_CLIENT, service.address, "stopped"], stdout=subprocess.PIPE
    ) as waiting:
        until(lambda: waiting_claims(client, "stopped") == 1)
        os.kill(waiting.pid, signal.SIGSTOP)
        time.sleep(3.5)
        assert waiting_claims(client, "stopped") == 1
        os.kill(waiting.pid, signal.SIGCONT)
        client.put(rows(2), partition="stopped")
        assert waiting.wait(10) == 0


async def test_a_cancelled_claim_frees_its_place(service: tq.Service) -> None:
    async with await tq.connect_async(service.address) as client:
        await client.put(rows(1), partition="cancelled")

        async def claim() -> tq.AsyncClaim:
            return await client.claim(task="t", fields=["x"], n=2, partition="cancelled")

        waiting = asyncio.create_task(claim())
        behind = asyncio.create_task(
            _claim_one(client, "cancelled"),
        )
        await asyncio.sleep(0.1)
        assert not behind.done()  # it came later, and nobody passes those that wait
        waiting.cancel()
        assert len(await asyncio.wait_for(behind, 10)) == 1
        status = await client.status()
        assert status["partitions"]["cancelled"]["waiting"]["claims"] == 0


async def _claim_one(client: tq.AsyncClient, partition: str) -> tq.AsyncClaim:
    await asyncio.sleep(0.02)
    return await client.claim(task="t", fields=["x"], n=1, partition=partition)


def test_claims_are_served_in_the_order_they_came(client: tq.Client) -> None:
    got: list[tuple[int, list[int]]] = []

    def claim(number: int) -> None:
        with client.claim(task="t", fields=["x"], n=2, partition="order") as claim:
            got.append((number, claim.get()["x"].tolist()))

    threads = []
    for number in range(3):
        threads.append(threading.Thread(target=claim, args=(number,)))
        threads[-1].start()
        until(lambda number=number: waiting_claims(client, "order") == number + 1)  # type: ignore[misc]
    for first in range(0, 6, 2):
        # Each is known before the next: of two shards either may be heard first.
        client.wait(client.put(rows(2, first), partition="order"))
    for thread in threads:
        thread.join()
    assert sorted(got) == [(0, [0, 1]), (1, [2, 3]), (2, [4, 5])]


# -- how claims end -------------------------------------------------------------------------------


def test_exactly_the_rows_of_a_handle_can_be_claimed(client: tq.Client) -> None:
    handle = client.put(rows(4), partition="uids")
    with client.claim(task="t", fields=["x"], handle=handle[[3, 1]]) as claim:
        assert claim.get()["x"].tolist() == [3, 1]
        with pytest.raises(errors.NotReady, match="0 of 1"):
            client.claim(task="t", fields=["x"], handle=handle[[1]], timeout_s=0.1)
    with pytest.raises(errors.RowsConsumed, match="task 't' is done with 1 of 2 rows"):
        client.claim(task="t", fields=["x"], handle=handle[[0, 1]])


def test_a_claim_that_is_extended_outlives_its_lease(client: tq.Client) -> None:
    client.put(rows(2), partition="extended")
    claim = client.claim(task="t", fields=["x"], n=2, partition="extended", lease_s=1.0)
    assert 29 < claim.extend(30) <= 30
    with pytest.raises(errors.NotReady):
        client.claim(task="t", fields=["x"], n=1, partition="extended", timeout_s=1.5)
    claim.ack()


def test_an_ack_that_is_late_or_second_says_so(client: tq.Client) -> None:
    client.put(rows(2), partition="late")
    claim = client.claim(task="t", fields=["x"], n=2, partition="late", lease_s=0.2)
    until(lambda: client.status()["partitions"]["late"]["tasks"]["t"]["free"] == 2)
    time.sleep(0.3)
    with pytest.raises(errors.LeaseExpired) as caught:
        claim.ack()
    assert caught.value.args[0] == claim.claim_id
    assert 0.25 < caught.value.args[1] < 10
    with pytest.raises(errors.LeaseExpired):
        claim.extend(5)
    second = client.claim(task="t", fields=["x"], n=2, partition="late")
    second.ack()
    with pytest.raises(errors.AlreadyAcked, match=f"claim {second.claim_id} was already acked"):
        second.ack()


def test_dead_letters_can_be_seen_and_tried_again(client: tq.Client) -> None:
    client.create_partition("dead", tasks=["t"], max_deliveries=2)
    handle = client.put(rows(2), partition="dead")
    for _ in range(2):
        client.claim(task="t", fields=["x"], n=2, partition="dead").give_back()
    with pytest.raises(errors.NotReady):
        client.claim(task="t", fields=["x"], n=1, partition="dead", timeout_s=0.1)
    dead = client.dead_letters("t", "dead")
    assert dead.uids.tolist() == handle.uids.tolist()
    assert client.get(dead)["x"].tolist() == [0, 1]
    assert client.redrive("t", handle=dead[:1]) == 1
    with client.claim(task="t", fields=["x"], n=1, partition="dead", timeout_s=5) as claim:
        assert claim.deliveries.tolist() == [1]
    assert client.redrive("t", partition="dead") == 1
    assert len(client.dead_letters("t", "dead")) == 0
    with pytest.raises(errors.UnknownTask):
        client.dead_letters("u", "dead")


def test_more_rows_than_the_quota_lets_in_are_refused_at_once(client: tq.Client) -> None:
    client.create_partition("quota", max_rows=8)
    start_s = time.monotonic()
    with pytest.raises(errors.ClaimTooLarge, match="a claim of 9 rows, but max_rows lets in 8"):
        client.claim(task="t", fields=["x"], n=9, partition="quota", timeout_s=60)
    assert time.monotonic() - start_s < 10


# -- streams --------------------------------------------------------------------------------------


async def test_a_stream_takes_no_more_ahead_than_it_may_and_gives_the_rest_back(
    service: tq.Service,
) -> None:
    async with await tq.connect_async(service.address) as client:
        await client.put(rows(12), partition="ahead")

        async def counts() -> dict[str, int]:
            status = await client.status()
            tasks: dict[str, dict[str, int]] = status["partitions"]["ahead"]["tasks"]
            return tasks["t"]

        seen = []
        stream = client.stream(
            task="t", fields=["x"], n=2, partition="ahead", prefetch=2, lease_s=1.0
        )
        async with contextlib.aclosing(stream) as claims:
            async for claim in claims:
                seen.extend((await claim.get())["x"].tolist())
                if len(seen) == 4:
                    while (await counts())["claimed"] < 6:
                        await asyncio.sleep(0.01)
                    await claim.extend(30)
                    await asyncio.sleep(2.1)  # those ahead outlive their lease twice over
                    assert (await counts()) == {
                        "free": 4, "claimed": 6, "acked": 2, "dead_letter": 0,
                    }  # fmt: skip
                    break
        assert seen == [0, 1, 2, 3]
        assert await counts() == {"free": 10, "claimed": 0, "acked": 2, "dead_letter": 0}


async def test_a_stream_ends_with_what_its_claim_raises_after_all_that_came(
    service: tq.Service,
) -> None:
    async with await tq.connect_async(service.address) as client:
        await client.put(rows(5), partition="ends")
        seen = []
        with pytest.raises(errors.NotReady, match="1 of 2 samples ready"):
            async for claim in client.stream(
                task="t", fields=["x"], n=2, partition="ends", prefetch=3, timeout_s=0.3
            ):
                seen.extend((await claim.get())["x"].tolist())
        assert seen == [0, 1, 2, 3]
        status = await client.status()
        assert status["partitions"]["ends"]["tasks"]["t"]["acked"] == 4


def test_a_blocking_stream_acks_what_is_behind_and_gives_back_where_it_is_left(
    client: tq.Client,
) -> None:
    client.put(rows(6), partition="blocking")
    seen = []
    for claim in client.stream(task="t", fields=["x"], n=2, partition="blocking"):
        seen.extend(claim.get()["x"].tolist())
        if len(seen) == 4:
            break
    counts = client.status()["partitions"]["blocking"]["tasks"]["t"]
    assert counts == {"free": 4, "claimed": 0, "acked": 2, "dead_letter": 0}


# -- what goes ------------------------------------------------------------------------------------


def is_gone(client: tq.Client, handle: tq.BatchHandle) -> bool:
    try:
        client.get(handle)
    except errors.RowsGone:
        return True
    return False


def test_what_was_filtered_out_goes_with_the_last_claim_on_it(client: tq.Client) -> None:
    client.create_partition("filter", tasks=["filter", "log", "actor"], retention="consumed")
    handle = client.put(rows(4), partition="filter")
    logging = client.claim(task="log", fields=["x"], n=4, partition="filter")
    filtering = client.claim(task="filter", fields=["x"], n=4, partition="filter")
    filtering.ack(drop=handle[:3])
    with client.claim(task="actor", fields=["x"], n=1, partition="filter") as claim:
        assert claim.get()["x"].tolist() == [3]
    assert logging.get()["x"].tolist() == [0, 1, 2, 3]
    logging.ack()
    until(lambda: is_gone(client, handle[:3]))


def test_discarded_samples_are_nobodys(client: tq.Client) -> None:
    handle = client.put(rows(4), partition="discard")
    assert client.discard(handle[1:]) == 3
    until(lambda: is_gone(client, handle[1:]))
    assert client.get(handle[:1])["x"].tolist() == [0]


def test_a_field_goes_early_and_its_rows_stay(client: tq.Client) -> None:
    client.create_partition(
        "early",
        tasks=["actor", "critic"],
        retention="consumed",
        release_after={"pixel_values": "actor"},
    )
    pixels = torch.zeros(4, 1 << 18, dtype=torch.uint8)
    handle = client.put({**rows(4), "pixel_values": pixels}, partition="early")
    used = sum(shard["used_bytes"] for shard in client.status()["shards"])
    with client.claim(task="actor", fields=["x", "pixel_values"], n=4, partition="early"):
        pass

    def released() -> bool:
        return sum(shard["used_bytes"] for shard in client.status()["shards"]) <= used - (1 << 20)

    until(released)
    with pytest.raises(errors.FieldsMissing, match="pixel_values"):
        client.get(handle, fields=["pixel_values"])
    with client.claim(task="critic", fields=["x"], n=4, partition="early") as claim:
        assert claim.get()["x"].tolist() == [0, 1, 2, 3]


def test_samples_go_when_their_time_is_up(client: tq.Client) -> None:
    client.create_partition("ttl", retention="ttl", ttl_s=0.3)
    handle = client.put(rows(2), partition="ttl")
    until(lambda: is_gone(client, handle))


def test_a_dropped_partition_frees_all_of_it(client: tq.Client) -> None:
    client.create_partition("dropped", tasks=["t"])
    handle = client.put(rows(4), partition="dropped")
    client.wait(handle)
    client.drop_partition("dropped")
    until(lambda: is_gone(client, handle))
    assert "dropped" not in client.status()["partitions"]
    with pytest.raises(errors.UnknownPartition):
        client.drop_partition("dropped")


def test_samples_per_insert_lets_the_faster_side_wait(client: tq.Client) -> None:
    client.create_partition(
        "rate", samples_per_insert={"ratio": 1.0, "slack_rows": 4.0, "min_rows": 0}
    )
    client.put(rows(4), partition="rate")
    with pytest.raises(errors.QuotaExceeded, match="claims are behind"):
        client.put(rows(2, 4), partition="rate", timeout_s=0.2)
    stored: list[tq.BatchHandle] = []
    putting = threading.Thread(
        target=lambda: stored.append(client.put(rows(2, 4), partition="rate"))
    )
    putting.start()
    until(lambda: client.status()["partitions"]["rate"]["waiting"]["puts"] == 1)
    with client.claim(task="t", fields=["x"], n=3, partition="rate"):
        pass
    putting.join(10)
    assert len(stored[0]) == 2


def test_a_shard_that_is_gone_for_good_fails_what_waits_for_its_rows() -> None:
    with (
        tq.serve(shards=2, budget_bytes=16 << 20) as service,
        tq.connect(service.address, timeout_s=15) as client,
    ):
        handles = [client.put(rows(2)) for _ in range(2)]
        slots = [int(handle.uids[0]) >> 48 for handle in handles]
        assert sorted(slots) == [0, 1]
        for handle in handles:
            client.wait(handle)
        failed: list[Exception] = []

        def wait() -> None:
            try:
                client.wait(handles[0], fields=["y"])
            except errors.TransferQueueError as error:
                failed.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: client.status()["partitions"]["default"]["waiting"]["cells"] == 1)
        client.lose_shard(slots[0])
        waiting.join(10)
        assert isinstance(failed[0], errors.RowsLost)
        with pytest.raises(errors.RowsLost, match="are lost: shard"):
            client.claim(task="t", fields=["x"], handle=handles[0])
        with client.claim(task="t", fields=["x"], n=2) as claim:
            assert claim.handle.uids.tolist() == handles[1].uids.tolist()
        with tq.connect(service.address, timeout_s=15) as another:
            assert another.status()["partitions"]["default"]["rows"] == 2


async def held_by_the_other_face(service: tq.Service) -> dict[str, Any]:
    async with await tq.connect_async(service.address) as client:
        held: dict[str, Any] = (await client.held(partition="held"))["held"]
        return held


def comparable(held: dict[str, Any]) -> dict[str, Any]:
    """Without what is older by now."""
    sites = {site: {**found, "oldest_s": 0} for site, found in held["rows_by_site"].items()}
    return {**held, "oldest_s": 0, "rows_by_site": sites}


def test_held_names_the_lines_that_put_what_is_there(
    service: tq.Service, client: tq.Client
) -> None:
    client.create_partition("held", tasks=["t"])
    line = sys._getframe().f_lineno + 1
    handle = client.put(rows(3), partition="held")
    client.put({"y": torch.zeros(3)}, handle=handle)
    other = client.put(rows(2), partition="held")
    client.wait(other)
    here = "tests/e2e/test_claims.py"
    held = client.held(partition="held")["held"]
    sites = {site: found["rows"] for site, found in held["rows_by_site"].items()}
    assert sites == {f"{here}:{line}": 3, f"{here}:{line + 2}": 2}
    byte_counts = {site: found["bytes"] for site, found in held["rows_by_site"].items()}
    assert byte_counts == {f"{here}:{line}": 3 * 8 + 3 * 4, f"{here}:{line + 2}": 2 * 8}
    assert sum(byte_counts.values()) == held["bytes"]
    assert held["tasks"]["t"]["free"] == 5
    assert sum(held["rows_by_age"].values()) == 5
    assert comparable(asyncio.run(held_by_the_other_face(service))) == comparable(held)
    client.clear(handle)
    until(lambda: len(client.status()["partitions"]["held"]["rows_by_site"]) == 1)
    with client.claim(task="t", fields=["x"], n=2, partition="held") as claim:
        assert not claim.tags
    with pytest.raises(errors.InvalidInput, match="begin with @ are reserved"):
        client.put(rows(1), tags={"@site": "mine"})
