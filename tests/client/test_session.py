"""A client's view of its service, without sockets."""

from __future__ import annotations

import os
import socket

import pytest

from transferqueue.client.links import links_of
from transferqueue.client.session import Session
from transferqueue.config import Transport
from transferqueue.errors import RowsLost
from transferqueue.process_id import boot_id


def shard(slot: int, **facts: object) -> dict[str, object]:
    return {
        "slot": slot,
        "endpoints": [f"tcp://10.0.0.{slot}:7000"],
        "budget_bytes": 1 << 20,
        "boot_id": "another",
        "arena": None,
        **facts,
    }


def session(*shards: dict[str, object], transport: Transport = Transport.AUTO) -> Session:
    hello = {"service_id": "s", "homes": None, "shards": list(shards)}
    return Session(coordinator="tcp://10.0.0.9:7000", hello=hello, transport=transport)


def test_a_client_keeps_its_name_when_it_looks_again() -> None:
    seen = session(shard(0))
    name = seen.client_id
    assert name.startswith(f"{socket.gethostname()[:64]}:{os.getpid()}/")
    assert session(shard(0)).client_id != name
    seen.client_id = "shared"
    seen.hear({"homes": None, "shards": [shard(0), shard(1)]})
    assert seen.client_id == "shared"


def test_shards_come_and_go_as_the_coordinator_says() -> None:
    seen = session(shard(0))
    assert not seen.knows(1)
    with pytest.raises(RowsLost):
        seen.shard(1)
    seen.hear({"homes": None, "shards": [shard(1)]})
    assert seen.knows(1)
    assert not seen.knows(0)
    assert [entry["slot"] for entry in seen.directory] == [1]


def test_a_link_says_why_it_is_not_mapped_memory() -> None:
    (far,) = links_of(session(shard(0)))
    assert (far.way, far.same_host) == ("tcp", False)
    assert far.why_not_better == "the shard is on another host"
    (heap,) = links_of(session(shard(0, boot_id=boot_id())))
    assert heap.same_host
    assert "no memory that can be mapped" in heap.why_not_better
    fenced = shard(0, boot_id=boot_id(), arena={}, pid_namespace="pid:[1]")
    (link,) = links_of(session(fenced))
    assert "another pid namespace" in link.why_not_better
