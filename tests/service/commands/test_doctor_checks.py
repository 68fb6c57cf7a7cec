"""What the doctor makes of facts."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

from transferqueue.errors import NoService
from transferqueue.service.doctor.check import Check, Health
from transferqueue.service.doctor.host_checks import check_host
from transferqueue.service.doctor.host_facts import HostFacts, read_host
from transferqueue.service.doctor.service_checks import check_service, unreached
from transferqueue.service.doctor.service_facts import (
    Clock,
    Endpoint,
    ServiceFacts,
    reach,
    skew_s,
)

HOST = HostFacts(
    python="3.11.9",
    packages={"torch": "2.9", "tensordict": "0.10", "pyzmq": "27", "msgpack": "1", "numpy": "2"},
    curve=True,
    libzmq="4.3.5",
    arena_dir="/dev/shm",
    arena_is_writable=True,
    arena_file_system="tmpfs",
    arena_size_bytes=8 << 30,
    arena_free_bytes=8 << 30,
    huge_pages=True,
    memory_limit_bytes=None,
    max_open_files=65536,
    num_gpus=0,
    runtime_dir="/tmp/transferqueue-0",
)
SHARD: dict[str, Any] = {"slot": 0, "used_bytes": 1, "budget_bytes": 100, "epoch": 0,
                         "keys_refused": 0, "refusals": {}}  # fmt: skip
LINK = {"slot": 0, "way": "shm", "endpoint": "ipc:///s", "same_host": True, "why_not_better": ""}
SERVICE = ServiceFacts(
    address="ipc:///c",
    answer_s=0.002,
    status={"service_id": "s", "shards": [SHARD], "keys_refused": 0, "refusals": {}},
    waits={"waits": []},
    links=[LINK],
    endpoints=[Endpoint(peer="shard 0", address="ipc:///s", is_reached=True)],
    clocks=[Clock(peer="coordinator", skew_s=0.0)],
)


def bad(checks: list[Check]) -> list[tuple[str, Health]]:
    assert all(check.advice for check in checks if check.health is not Health.OK)
    return [(check.name, check.health) for check in checks if check.health is not Health.OK]


def test_a_sound_host_has_nothing_to_say() -> None:
    assert bad(check_host(HOST)) == []


def test_what_is_wrong_with_a_host_is_said_with_the_way_out() -> None:
    small = check_host(replace(HOST, arena_free_bytes=64 << 20))
    assert bad(small) == [("arena folder", Health.WARN)]
    assert "--shm-size" in next(check.advice for check in small if check.advice)
    for change, expected in (
        ({"arena_is_writable": False}, ("arena folder", Health.FAIL)),
        ({"arena_file_system": "ext4"}, ("arena folder", Health.WARN)),
        ({"curve": False}, ("encryption", Health.FAIL)),
        ({"huge_pages": False}, ("huge pages", Health.WARN)),
        ({"memory_limit_bytes": 1 << 30}, ("memory limit", Health.WARN)),
        ({"max_open_files": 1024}, ("open files", Health.WARN)),
        ({"packages": {**HOST.packages, "torch": ""}}, ("versions", Health.FAIL)),
    ):
        assert bad(check_host(replace(HOST, **change))) == [expected]


def test_this_host_can_be_read() -> None:
    facts = read_host()
    assert facts.arena_size_bytes > 0
    assert facts.arena_file_system
    assert facts.packages["torch"]
    assert facts.max_open_files > 0


def test_a_sound_service_has_nothing_to_say() -> None:
    assert bad(check_service(SERVICE)) == []


def test_what_is_wrong_with_a_service_is_said_with_the_way_out() -> None:
    wait = {"kind": "claim", "task": "actor", "since_s": 90.0, "why": "reward: 0 of 8"}
    tcp = {**LINK, "way": "tcp", "endpoint": "tcp://h:1", "why_not_better": "another pid namespace"}
    closed = Endpoint(peer="shard 0", address="tcp://h:1", is_reached=False, why="refused")
    for change, expected in (
        ({"answer_s": 2.0}, [("service", Health.WARN)]),
        ({"waits": {"waits": [wait]}}, [("waits", Health.WARN)]),
        ({"clocks": [Clock(peer="shard 0", skew_s=-7.0)]}, [("clocks", Health.WARN)]),
        ({"status": {**SERVICE.status, "shards": [{**SHARD, "epoch": 2}]}},
         [("restarts", Health.WARN)]),
        ({"status": {**SERVICE.status, "shards": [{**SHARD, "used_bytes": 99}]}},
         [("space", Health.WARN)]),
        ({"status": {**SERVICE.status, "keys_refused": 3}}, [("strangers", Health.WARN)]),
        ({"status": {**SERVICE.status, "refusals": {"WireError": 3}}},
         [("strangers", Health.WARN)]),
        ({"status": {**SERVICE.status, "refusals": {"HandshakeCut": 3}}}, []),
        ({"links": [tcp]}, [("way to shard 0", Health.WARN)]),
        ({"endpoints": [closed]}, [("ports", Health.WARN)]),
        ({"endpoints": [closed], "links": [{**tcp, "same_host": False}]},
         [("ports", Health.FAIL)]),
    ):  # fmt: skip
        assert bad(check_service(replace(SERVICE, **change))) == expected


def test_no_service_is_a_failure_only_where_one_was_named() -> None:
    assert unreached(NoService([]), was_named=True).health is Health.FAIL
    assert unreached(NoService([]), was_named=False).health is Health.WARN


def test_a_clock_is_off_by_what_the_call_cannot_explain() -> None:
    assert [skew_s(theirs, 10.0, 10.5) for theirs in (10.0, 10.4, 10.5, 13.5, 4.0)] == [
        0, 0, 0, 3, -6,
    ]  # fmt: skip


def test_ports_are_tried(tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        assert reach("shard 0", address).is_reached
    assert not reach("shard 0", address).is_reached
    assert "not on this host" in reach("shard 0", f"ipc://{tmp_path}/none").why
