"""Bodies of every wrong shape, sent to every operation: refused, counted, and nothing else."""

from __future__ import annotations

import random
import threading
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zmq

from tests.shard_settings import shard_settings
from transferqueue.coordinator.server import CoordinatorServer
from transferqueue.net.calls import Call, raise_first
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.shard.server import ShardServer
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayWriter
from transferqueue.wire.format import ERROR_OP, Message, decode_message, encode_message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUDGET = 1 << 20

GARBAGE: list[Any] = [
    *(None, True, False, 0, -1, 1, 7, 2**63, -(2**63), 2**64 - 1, 1e308, -1.5),
    *(float("nan"), float("inf"), "", "x", "\0", "é" * 300, b"", b"\xff" * 9),
    *([], [[]], [1, 2, 3], [None], ["a", 1], {}, {"a": {"b": []}}, {"array": 0}),
    *([0, "<i8", [1]], [0, "<i8", [2**40]], [9, "<i8", [1]], [0, "|O", [1]], [-1, "<i8", [-1]]),
    *(["float32", [2], None, "tensor"], ["float32", [-1], 0, "tensor"], ["object", [], None, "x"]),
]
FRAMES: list[bytes] = [b"", b"\0" * 8, bytes(1000), np.arange(4).tobytes(), b"\xff" * 24]


def shard_bodies() -> dict[str, dict[str, Any]]:
    """A body for each operation that is right but for what it refers to."""
    column = ["x", ["float32", [2], None, "tensor"], None, 16]
    return {
        ops.PUT: {
            "partition": "p",
            "num_rows": 2,
            "uids": None,
            "columns": [column],
            "tags": {"t": 1},
            "overwrite": False,
            "payload": 0,
            "writer": None,
            "commit": True,
            "timeout_s": 0.0,
        },
        ops.WRITE: {"put_id": 1, "chunk": 0},
        ops.COMMIT: {"put_id": 1},
        ops.ABORT: {"put_id": 1},
        ops.GET: {
            "partition": "p",
            "uids": [0, "<i8", [1]],
            "fields": ["x"],
            "optional": [],
            "reader": None,
            "timeout_s": 0.0,
        },
        ops.READ: {"lease_id": 1, "chunk": 0},
        ops.READ_DONE: {"lease_id": 1},
        ops.RELEASE: {"reader": {"pid": 1}, "lease_ids": [0, "<i8", [1]]},
        ops.CLEAR: {"partition": "other", "uids": [0, "<i8", [1]]},
        ops.STATUS: {},
    }


def coordinator_bodies() -> dict[str, dict[str, Any]]:
    uids = [0, "<i8", [1]]
    claim = {
        "partition": "p",
        "task": "t",
        "fields": ["x"],
        "n": 1,
        "uids": None,
        "sampler": None,
        "where": None,
        "timeout_s": 0.0,
        "lease_s": 1.0,
        "allow_partial": False,
    }
    return {
        ops.HELLO: {},
        ops.REGISTER: {
            "slot": 5,
            "incarnation": "i",
            "endpoints": ["ipc://x"],
            "facts": {},
            "limited": [],
        },
        ops.EVENT: {"slot": 5, "number": 1, "kind": "cleared", "partition": "p", "uids": uids},
        ops.ADMIT: {
            "slot": 5,
            "partition": "p",
            "num_rows": 1,
            "num_bytes": 1,
            "timeout_s": 0.0,
        },
        ops.RETURN_ROOM: {"slot": 5, "partition": "p", "num_rows": 1, "num_bytes": 1},
        ops.CREATE_PARTITION: {"partition": "p", "policy": {}},
        ops.DROP_PARTITION: {"partition": "p"},
        ops.CLAIM: claim,
        ops.ACK: {"claim_id": 1},
        ops.GIVE_BACK: {"claim_id": 1},
        ops.EXTEND: {"claim_id": 1, "lease_s": 1.0},
        ops.WAIT: {"partition": "p", "uids": uids, "fields": ["x"], "timeout_s": 0.0},
        ops.SELECT: {
            "partition": "p",
            "where": None,
            "fields": [],
            "order_by": None,
            "descending": True,
            "n": None,
            "min_rows": 0,
            "timeout_s": 0.0,
        },
        ops.UPDATE_TAGS: {"partition": "p", "uids": uids, "tags": {"t": 1}},
        ops.ADVANCE_POLICY: {"version": 1, "partition": "p"},
        ops.STATUS: {},
        ops.HELD: {"partition": None},
        ops.POLICY: {"partition": "p"},
    }


@contextmanager
def served(server: Any) -> Iterator[Any]:
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
        server.close()


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[ShardServer]:
    server = ShardServer(shard_settings(tmp_path, BUDGET))
    with served(server) as running:
        yield running


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorServer]:
    server = CoordinatorServer(
        service_id="0" * 16,
        endpoints=[f"ipc://{tmp_path}/coordinator.sock"],
        keys=None,
        num_shards=2,
    )
    with served(server) as running:
        yield running


class Vandal:
    """Sends messages that were right once."""

    def __init__(self, endpoint: str, bodies: dict[str, dict[str, Any]], seed: int) -> None:
        self._bodies = bodies
        self._dice = random.Random(seed)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(endpoint)
        self._next_id = 1

    def send(self, count: int) -> None:
        for _ in range(count):
            op = self._dice.choice(list(self._bodies))
            frames = self._dice.choices(FRAMES, k=self._dice.randrange(3))
            self._send(op, self._broken(self._bodies[op]), frames)
        self._send("no such op", {}, [])

    def _broken(self, body: dict[str, Any]) -> dict[str, Any]:
        broken = dict(body)
        for name in self._dice.sample(list(body), k=min(len(body), self._dice.randrange(1, 3))):
            if self._dice.random() < 0.2:
                del broken[name]
            else:
                broken[name] = self._dice.choice(GARBAGE)
        return broken

    def _send(self, op: str, body: dict[str, Any], frames: list[bytes]) -> None:
        message = Message(op=op, request_id=self._next_id, body=body, frames=frames)
        self._next_id += 1
        self._socket.send_multipart(encode_message(message))

    def answers(self, count: int) -> list[Message]:
        found = []
        for _ in range(count):
            assert self._socket.poll(5000), "the server has stopped answering"
            found.append(decode_message(self._socket.recv_multipart()))
        return found

    def close(self) -> None:
        self._context.destroy(linger=0)


def test_a_shard_refuses_garbage_and_serves_the_next(shard: ShardServer) -> None:
    bodies = shard_bodies()
    vandal = Vandal(shard.endpoints[0], bodies, seed=1)
    vandal.send(3000)
    refused = [a for a in vandal.answers(3001) if a.op == ERROR_OP]
    assert len(refused) > 1500
    vandal.close()
    status = ask(shard.endpoints[0], ops.STATUS, {}).body
    assert sum(status["refusals"].values()) >= len(refused)
    assert set(status["requests"]) <= set(bodies)
    ask(shard.endpoints[0], ops.CLEAR, {"partition": "p", "uids": None})
    status = ask(shard.endpoints[0], ops.STATUS, {}).body
    assert status["puts_waiting"] == 0
    assert status["leases"] == 0
    put_and_get(shard.endpoints[0])


def test_a_coordinator_refuses_garbage_and_serves_the_next(
    coordinator: CoordinatorServer,
) -> None:
    vandal = Vandal(coordinator.endpoints[0], coordinator_bodies(), seed=2)
    vandal.send(3000)
    status = ask(coordinator.endpoints[0], ops.STATUS, {}).body
    assert status["refusals"]["BadBody"] + status["refusals"]["Malformed"] > 100
    vandal.close()


def test_garbage_does_not_fill_the_memory_of_a_shard(shard: ShardServer) -> None:
    vandal = Vandal(shard.endpoints[0], shard_bodies(), seed=3)
    vandal.send(1500)
    vandal.answers(1501)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(4):
            vandal.send(1500)
            vandal.answers(1501)
            ask(shard.endpoints[0], ops.CLEAR, {"partition": "p", "uids": None})
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    vandal.close()
    # What grows are the answers kept for one peer, which is bounded, and events that wait for a
    # coordinator that never comes.
    assert grown < 4 << 20


def ask(endpoint: str, op: str, body: dict[str, Any], frames: Any = ()) -> Message:
    pool = SyncChannelPool()
    call = Call(endpoint=endpoint, op=op, body=body, frames=frames)
    try:
        return raise_first(run_blocking(pool.exchange([call], timeout_s=10)))[0]
    finally:
        pool.close()


def put_and_get(endpoint: str) -> None:
    body = shard_bodies()[ops.PUT] | {"partition": "right"}
    made = ask(endpoint, ops.PUT, body, [np.arange(4, dtype=np.float32).tobytes()]).body
    arrays = ArrayWriter()
    uids = arrays.add(np.array([made["first_uid"] + 1, made["first_uid"]]))
    body = shard_bodies()[ops.GET] | {"partition": "right", "uids": uids}
    answer = ask(endpoint, ops.GET, body, arrays.frames)
    assert np.frombuffer(answer.frames[-1], np.float32).tolist() == [2, 3, 0, 1]
