"""What clients see when shards of a service with two copies are killed and lose what they had."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.recovery.test_kills import Crew, Producer, rows_of
from tests.waiting import wait_until
from transferqueue.errors import ConfigError, InvalidInput, RowsGone, RowsLost, StorageFull

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

MIB = 1 << 20


@pytest.fixture
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=64 * MIB, replicas=2) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address) as client:
        yield client


def arena_files(client: tq.Client, slot: int) -> list[Path]:
    """The arena of a shard, and the journal that lies beside it."""
    (shard,) = (shard for shard in client._ops.session.directory if shard["slot"] == slot)
    arena = shard["arena"]
    stem = f"transferqueue-{arena['service_id']}-{slot}-{arena['token']}"
    return [path for path in Path(arena["directory"]).iterdir() if path.name.startswith(stem)]


def remove_files(client: tq.Client, slot: int) -> None:
    files = arena_files(client, slot)
    assert any("journal" in path.name for path in files)
    for path in files:
        path.unlink()


def lose(service: tq.Service, client: tq.Client, *slots: int) -> None:
    """Kill shards, with nothing of theirs left."""
    client.status()
    pids = {slot: service.pids[f"shard-{slot}"] for slot in slots}
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)  # none of them sees another end
    for slot, pid in pids.items():
        remove_files(client, slot)
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(service.pids[f"shard-{slot}"] != pid for slot, pid in pids.items()), 20)


def is_complete(client: tq.Client) -> bool:
    """Whether every row has two copies, as both say: a home may not have heard yet that its guard
    has ended."""
    copies = {shard["slot"]: shard["copies"] for shard in client.status()["shards"]}
    kept = {
        mirror["slot"]: mirror["is_complete"] for each in copies.values() for mirror in each["kept"]
    }
    return all(each["is_complete"] and kept.get(slot) for slot, each in copies.items())


def wait_for_both(client: tq.Client) -> None:
    wait_until(lambda: is_complete(client), timeout_s=20)


def check_all_there(client: tq.Client, producers: list[Producer]) -> None:
    for producer in producers:
        for handle in producer.handles:
            got = client.get_columns(handle, fields=["number", "pad"])
            assert bool((got["pad"] == got["number"][:, None]).all()), "torn"
    expected = Counter(n for producer in producers for n in producer.numbers)
    wait_until(lambda: rows_of(client) == expected, timeout_s=10)
    tags = client.select("p", where=tq.tag("number") >= 1_000_000)
    assert len(tags) == sum(n >= 1_000_000 for n in expected)


def test_two_shards_lost_one_after_the_other_under_traffic_lose_nothing(
    service: tq.Service, client: tq.Client
) -> None:
    producers = [
        Producer(service.address, first, transport=transport)
        for first, transport in ((0, "auto"), (1_000_000, "ipc"))
    ]
    crew = Crew()
    for producer in producers:
        crew.add(producer)
    with crew.at_work():
        for slot in (0, 1):
            seen = [p.num_puts for p in producers]
            wait_until(
                lambda seen=seen: all(
                    p.num_puts > n + 5 for p, n in zip(producers, seen, strict=True)
                ),
                timeout_s=20,
            )
            wait_for_both(client)
            lose(service, client, slot)
    check_all_there(client, producers)
    wait_for_both(client)


def test_a_guard_and_a_home_that_are_only_killed_lose_nothing_either(
    service: tq.Service, client: tq.Client
) -> None:
    wait_for_both(client)
    handle = client.put({"x": torch.arange(6)}, partition="p")
    for name in ("shard-0", "shard-1"):
        pid = service.pids[name]
        os.kill(pid, signal.SIGKILL)
        handle = client.put({name: torch.arange(6)}, handle=handle)
        wait_until(lambda name=name, pid=pid: service.pids[name] != pid, timeout_s=20)
    wait_for_both(client)
    lose(service, client, 0)
    assert client.get(handle)["shard-1"].tolist() == list(range(6))
    wait_for_both(client)
    lose(service, client, 1)
    assert client.get(handle)["shard-0"].tolist() == list(range(6))


def test_what_was_cleared_or_overwritten_does_not_come_back(
    service: tq.Service, client: tq.Client
) -> None:
    wait_for_both(client)
    handles = [client.put({"x": torch.full((4, 50_000), float(n))}) for n in range(4)]
    for handle in handles:
        client.put({"x": -torch.ones(4, 50_000)}, handle=handle, overwrite=True)
        client.clear(handle[1:3])
    for slot in (0, 1):
        wait_for_both(client)
        lose(service, client, slot)
        for handle in handles:
            assert client.get(handle[[0, 3]])["x"].unique().tolist() == [-1.0]
            with pytest.raises(RowsGone):
                client.get(handle)
    client.clear(partition="default")
    wait_until(lambda: not any(s["used_bytes"] for s in client.status()["shards"]))


def test_gets_go_to_the_guard_while_a_shard_is_away_and_puts_wait_for_it(
    service: tq.Service, client: tq.Client
) -> None:
    wait_for_both(client)
    handles = [client.put({"x": torch.full((4, n), float(n))}) for n in (3, 4, 400_000, 500_000)]
    pid = service.pids["shard-0"]
    with tq.connect(service.address, transport="ipc") as other:
        os.kill(pid, signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            for reader, handle in zip((client, other, other, client), handles, strict=True):
                (n,) = handle.fields["x"].shape
                assert reader.get(handle, timeout_s=20)["x"].unique().tolist() == [float(n)]
            assert time.monotonic() - began_s > 1.0, "none of them lay on the shard that is away"
            with pytest.raises(tq.errors.ServiceUnreachable):
                for handle in handles[:2]:
                    client.put({"y": torch.zeros(4)}, handle=handle, timeout_s=0.5)
        finally:
            os.kill(pid, signal.SIGCONT)
    handle = client.put({"z": torch.zeros(4)}, handle=handles[0])
    assert client.get(handle, fields=["z"])["z"].tolist() == [0.0] * 4


def test_who_must_map_a_shard_that_has_lost_its_memory_connects_when_it_is_back(
    service: tq.Service, client: tq.Client
) -> None:
    wait_for_both(client)
    handle = client.put({"x": torch.zeros(4, 50_000)})
    client.status()
    pid = service.pids["shard-0"]
    os.kill(pid, signal.SIGSTOP)
    remove_files(client, 0)
    os.kill(pid, signal.SIGKILL)
    with tq.connect(service.address, transport="shm", timeout_s=20) as newcomer:
        assert newcomer.get(handle)["x"].shape == (4, 50_000)
        assert newcomer._ops.session.arenas.keys() == {0, 1}


def test_copies_stay_as_they_are_when_the_coordinator_is_restarted(
    service: tq.Service, client: tq.Client
) -> None:
    wait_for_both(client)
    client.put({"x": torch.zeros(4, 50_000)})
    pid = service.pids["coordinator"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: service.pids["coordinator"] != pid, timeout_s=20)
    until_s = time.monotonic() + 1.5  # each shard has told it more than once
    while time.monotonic() < until_s:
        copies = [shard["copies"] for shard in client.status()["shards"]]
        assert all(each["is_complete"] and each["copied_bytes"] == 0 for each in copies)
    handle = client.put({"x": torch.zeros(4, 50_000)})
    assert client.get(handle)["x"].shape == (4, 50_000)


def test_a_partition_whose_rows_can_be_made_again_has_one_copy_of_them(
    service: tq.Service, client: tq.Client
) -> None:
    client.create_partition("scratch", replicas=1)
    with pytest.raises(InvalidInput, match="declared otherwise"):
        client.create_partition("scratch", replicas=2)
    wait_for_both(client)
    once = [client.put({"x": torch.arange(5)}, partition="scratch") for _ in range(4)]
    twice = [client.put({"x": torch.arange(5)}, partition="p") for _ in range(4)]
    # A put is acknowledged by its shard; the coordinator counts the rows when it hears of them.
    wait_until(lambda: client.status()["partitions"].get("p", {}).get("rows") == 20)
    with pytest.raises(InvalidInput, match="before the first put; it has 20 rows"):
        client.create_partition("p", replicas=1)
    client.put({"y": torch.arange(5)}, handle=once[0])
    kept = [mirror["rows"] for s in client.status()["shards"] for mirror in s["copies"]["kept"]]
    assert kept == [10, 10]
    lose(service, client, 0)
    for handle in twice:
        assert client.get(handle)["x"].tolist() == [0, 1, 2, 3, 4]
    for handle in once:
        if int(handle.uids[0]) >> 48:
            assert client.get(handle)["x"].tolist() == [0, 1, 2, 3, 4]
            continue
        with pytest.raises(RowsLost, match="5 of 5 rows"):
            client.get(handle)
    more = [client.put({"x": torch.arange(5)}, partition="scratch") for _ in range(4)]
    assert len({uid for handle in (*once, *twice, *more) for uid in handle.uids.tolist()}) == 60
    with (
        tq.serve(budget_bytes=MIB) as single,
        tq.connect(single.address) as client,
        pytest.raises(InvalidInput, match="start it with replicas=2"),
    ):
        client.create_partition("p", replicas=2)


def test_with_both_copies_gone_rows_are_lost_by_name(
    service: tq.Service, client: tq.Client
) -> None:
    wait_for_both(client)
    handle = client.put({"x": torch.arange(5)})
    lose(service, client, 0, 1)
    with pytest.raises(RowsLost, match="5 of 5 rows"):
        client.get(handle)
    wait_for_both(client)
    handle = client.put({"x": torch.arange(5)})
    assert client.get(handle)["x"].tolist() == list(range(5))


def test_a_put_waits_for_room_for_its_second_copy_and_then_says_where_there_is_none() -> None:
    with (
        tq.serve(shards=2, budget_bytes=8 * MIB, replicas=2) as service,
        tq.connect(service.address) as client,
    ):
        wait_for_both(client)
        handles = []
        with pytest.raises(StorageFull):
            while len(handles) < 17:
                column = torch.zeros(1, MIB // 4)
                handles.append(client.put({"x": column}, timeout_s=0.5))
        assert 6 <= len(handles) <= 8, "of 16 MiB, half for the second copies"
        for handle in handles:
            client.clear(handle)
        assert client.get(client.put({"x": torch.ones(1, MIB // 4)}))["x"].min() == 1
        assert is_complete(client)


def test_a_checkpoint_has_each_row_once(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    wait_for_both(client)
    handles = [client.put({"x": torch.arange(3) + 3 * n}, partition="p") for n in range(4)]
    saved = client.checkpoint(tmp_path / "saved")
    assert saved.num_rows == 12
    with (
        tq.serve(shards=2, budget_bytes=64 * MIB, replicas=2, restore=tmp_path / "saved") as again,
        tq.connect(again.address) as client,
    ):
        wait_for_both(client)
        lose(again, client, 1)
        got = torch.cat([client.get(handle)["x"] for handle in handles])
        assert got.tolist() == list(range(12))


def test_settings_that_cannot_hold_two_copies_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"replicas=2 needs 2 shards.*shards=1"):
        tq.serve(replicas=2)
    with pytest.raises(ConfigError, match="replicas must be 1 or 2, got 3"):
        tq.serve(shards=3, replicas=3)
    with pytest.raises(ConfigError, match="started again"):
        tq.serve(shards=2, replicas=2, restart=False)
    with pytest.raises(ConfigError, match="never move"):
        tq.serve(shards=2, replicas=2, spill_dir="/tmp", spill_bytes=MIB)


def test_what_was_read_is_let_go_by_the_next_request(
    service: tq.Service, client: tq.Client
) -> None:
    handles = [client.put({"x": torch.ones(4, 1 << 16)}) for _ in range(4)]
    wait_for_both(client)
    for _ in range(20):
        for handle in handles:
            assert client.get(handle)["x"].sum() == 4 << 16
    wait_until(lambda: all(shard["leases"] == 0 for shard in client.status()["shards"]), 5)


def test_a_new_service_keeps_both_copies_from_its_first_put_on() -> None:
    with (
        tq.serve(shards=2, budget_bytes=8 << 20, replicas=2) as service,
        tq.connect(service.address) as client,
    ):
        assert all(shard["copies"]["is_complete"] for shard in client.status()["shards"])
