"""As many Python calls for 100,000 rows as for 1,000, on every path that data takes.

Not one call more a hundred rows would pass here. A handful may differ: which shard's rows come
first, or whether a range of rows is one run, decides about short cuts.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.coordinator.conftest import Driver
from tests.shard_settings import shard_settings
from transferqueue.client import lease_returns
from transferqueue.net.server import Request
from transferqueue.shard.server import ShardServer
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.format import Message, decode_message
from transferqueue.wire.get import GetAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

FEW, MANY = 1_000, 100_000
SLACK = 20

ROW_BYTES = 1_600_000
"""Of each column in all, however many rows it has: the way that bytes take depends on them."""

_UNCOUNTED = (
    *("/transferqueue/net/", "/zmq/", "/enum.py", "/threading.py", "/queue.py", "<string>"),
    *("<frozen importlib", "/_weakrefset.py", "/typing.py"),
    *("/private_views.py", "/mapping.py", "/weakref.py"),
)
"""How often a socket is polled depends on the time, and so does whether the last get's view has
ended when the next is made."""


def calls_of(operation: Callable[[], Any]) -> Counter[str]:
    """Python and C functions that the operation calls in this thread, by name."""
    counted: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event in ("call", "c_call") and not any(part in name for part in _UNCOUNTED):
            counted[f"{event} {Path(name).name}:{frame.f_code.co_name}"] += 1

    for _ in range(2):
        operation()  # caches, imports and mappings of the first time
    sys.setprofile(count)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return counted


def columns(num_rows: int) -> dict[str, torch.Tensor]:
    width = ROW_BYTES // 8 // num_rows
    steps = torch.tensor([1, 2 * width - 1]).repeat(num_rows // 2)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), steps.cumsum(0)])
    values = torch.arange(int(steps.sum()))
    return {
        "dense": torch.arange(num_rows * width).reshape(num_rows, width),
        "ragged": torch.nested.nested_tensor_from_jagged(values, offsets=offsets),
    }


def assert_equal_counts(make: Callable[[int], Callable[[], Any]]) -> None:
    few, many = calls_of(make(FEW)), calls_of(make(MANY))
    more = {name: (few[name], count) for name, count in (many - few).items() if count > SLACK}
    assert not more
    assert abs(many.total() - few.total()) <= 4 * SLACK
    assert many.total() > 5


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=256 << 20) as service:
        yield service


@pytest.fixture(autouse=True)
def _leases_end_on_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether one has ended in time to go along with the next request depends on the time."""
    monkeypatch.setattr(lease_returns, "LARGE_BYTES", -1)


@pytest.fixture(params=["shm", "ipc"])
def client(service: tq.Service, request: pytest.FixtureRequest) -> Iterator[tq.Client]:
    with tq.connect(service.address, transport=request.param) as client:
        yield client
        client.clear(partition="counted")


def put(client: tq.Client, num_rows: int, **options: Any) -> tq.BatchHandle:
    return client.put(columns(num_rows), partition="counted", **options)


def shuffled(num_rows: int) -> np.ndarray:
    """The first and the last row stay: what they are decides about short cuts."""
    order = np.arange(num_rows)
    np.random.default_rng(0).shuffle(order[1:-1])
    return order


def test_putting_new_samples(client: tq.Client) -> None:
    def make(num_rows: int) -> Callable[[], Any]:
        values = columns(num_rows)
        tags = {"policy_version": 3, "group": np.arange(num_rows)}
        return lambda: client.put(values, partition="counted", tags=tags)

    assert_equal_counts(make)


def test_putting_fields_of_shuffled_samples_of_two_shards(client: tq.Client) -> None:
    def make(num_rows: int) -> Callable[[], Any]:
        halves = [put(client, num_rows // 2) for _ in range(2)]
        handle = tq.BatchHandle.concat(halves).reorder(shuffled(num_rows))
        values = {"more": torch.arange(ROW_BYTES // 8).reshape(num_rows, -1)}
        return lambda: client.put(values, handle=handle, overwrite=True)

    assert_equal_counts(make)


@pytest.mark.parametrize("order", ["as put", "shuffled", "repeated"])
def test_getting_samples(client: tq.Client, order: str) -> None:
    def make(num_rows: int) -> Callable[[], Any]:
        halves = [put(client, num_rows // 2) for _ in range(2)]
        handle = tq.BatchHandle.concat(halves)
        if order == "shuffled":
            handle = handle.reorder(shuffled(num_rows))
        if order == "repeated":
            handle = handle.repeat(2)
        return lambda: client.get_columns(handle)

    assert_equal_counts(make)


def test_getting_fields_that_only_some_samples_have(client: tq.Client) -> None:
    def make(num_rows: int) -> Callable[[], Any]:
        handle = put(client, num_rows)
        values = {"some": torch.arange(ROW_BYTES // 16).reshape(num_rows // 2, -1)}
        client.put(values, handle=handle[::2])
        return lambda: client.get_columns(handle, fields=["dense"], optional=["some", "none"])

    assert_equal_counts(make)


def test_clearing_samples(client: tq.Client) -> None:
    def make(num_rows: int) -> Callable[[], Any]:
        parts = [put(client, num_rows).reorder(shuffled(num_rows)) for _ in range(3)]
        return lambda: client.clear(parts.pop())

    assert_equal_counts(make)


def test_claiming_samples_and_acking_them(client: tq.Client) -> None:
    tasks = itertools.count()

    def make(num_rows: int) -> Callable[[], Any]:
        partition = f"claimed {num_rows} {next(tasks)}"
        tags = {"group": np.arange(num_rows) // 4, "policy_version": 3}
        client.wait(client.put(columns(num_rows), partition=partition, tags=tags))

        def claim() -> None:
            with client.claim(
                task=f"task {next(tasks)}",
                partition=partition,
                fields=["dense", "ragged"],
                n=num_rows,
                where=tq.tag("policy_version") >= 3,
                timeout_s=20,
            ) as claimed:
                assert len(claimed.tags["group"]) == num_rows

        return claim

    assert_equal_counts(make)


HANDLE_OPERATIONS: dict[str, Callable[[tq.BatchHandle], Any]] = {
    "chunk": lambda h: h.chunk(32),
    "split": lambda h: h.split(len(h) // 4),
    "concat": lambda h: tq.BatchHandle.concat(h.chunk(8)),
    "reorder": lambda h: h.reorder(np.arange(len(h))[::-1].copy()),
    "repeat": lambda h: h.repeat(3, interleave=True),
    "slice": lambda h: h[5 : len(h) // 2],
    "mask": lambda h: h[np.arange(len(h)) % 3 == 0],
    "union": lambda h: h.select(["dense"]).union(h.select(["ragged"])),
    "select and rename": lambda h: h.select(["dense"]).rename({"dense": "d"}),
    "to bytes and back": lambda h: tq.BatchHandle.from_bytes(h.to_bytes()),
}


@pytest.mark.parametrize("name", HANDLE_OPERATIONS)
def test_the_algebra_of_handles(service: tq.Service, name: str) -> None:
    def make(num_rows: int) -> Callable[[], Any]:
        with tq.connect(service.address) as client:
            handle = put(client, num_rows)
            client.clear(handle)
        return lambda: HANDLE_OPERATIONS[name](handle)

    assert_equal_counts(make)


# -- the other side -------------------------------------------------------------------------------


class LoneShard:
    """A shard without a loop: requests are handed to it, answers are caught."""

    def __init__(self, directory: Path) -> None:
        self._shard = ShardServer(shard_settings(directory, 1 << 30))
        self._answers: list[Message] = []
        self._shard._server._send_frames = self._catch  # type: ignore[method-assign]
        self._next_id = 0

    def _catch(self, peer: bytes, frames: Sequence[Any]) -> None:
        self._answers.append(decode_message(frames))

    def ask(self, op: str, body: dict[str, Any], frames: Sequence[Any]) -> Message:
        self._next_id += 1
        request = Request(
            peer=b"p",
            request_id=self._next_id,
            op=op,
            body=body,
            frames=[memoryview(frame) for frame in frames],
            received_s=0.0,
        )
        self._shard._server._handle(request)
        answer = self._answers.pop()
        assert answer.op == "ok", answer.body
        return answer

    def put(self, num_rows: int) -> np.ndarray:
        """Half a MiB in rows of one dense and one ragged column; returns their uids."""
        arrays = ArrayWriter()
        unit = 500_000 // num_rows
        lengths = np.tile([1, 2 * unit - 1], num_rows // 2)
        nbytes = int(lengths.sum())
        payload = np.zeros(nbytes + unit * num_rows, np.uint8)
        body = {
            "partition": "p",
            "num_rows": num_rows,
            "uids": None,
            "columns": [
                ["dense", ["uint8", [unit], None, "tensor"], None, unit * num_rows],
                ["ragged", ["uint8", [-1], 0, "tensor"], arrays.add(lengths), nbytes],
            ],
            "tags": {},
            "overwrite": False,
            "payload": arrays.add_bytes(payload),
            "writer": None,
            "commit": True,
            "timeout_s": 1.0,
        }
        made = self.ask(ops.PUT, body, arrays.frames).body
        return np.arange(made["first_uid"], made["first_uid"] + num_rows)

    def get(self, uids: np.ndarray) -> GetAnswer:
        arrays = ArrayWriter()
        body = {
            "partition": "p",
            "uids": arrays.add(uids),
            "fields": ["dense", "ragged"],
            "optional": ["none"],
            "reader": None,
            "timeout_s": 1.0,
        }
        answer = self.ask(ops.GET, body, arrays.frames)
        return GetAnswer.read(answer.body, ArrayReader(answer.frames))

    def read(self, answer: GetAnswer) -> None:
        for chunk in range(2):
            self.ask(ops.READ, {"lease_id": answer.lease_id, "chunk": chunk}, [])

    def clear(self, uids: np.ndarray) -> None:
        arrays = ArrayWriter()
        self.ask(ops.CLEAR, {"partition": "p", "uids": arrays.add(uids)}, arrays.frames)

    def close(self) -> None:
        self._shard.close()


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[LoneShard]:
    shard = LoneShard(tmp_path)
    yield shard
    shard.close()


SAMPLERS: dict[str, Any] = {
    "fifo": None,
    "groups": tq.samplers.Groups(size=4),
    "balanced": tq.samplers.LengthBalanced(dp_size=4),
    "freshest": tq.samplers.FreshestFirst("policy_version"),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_coordinator_hands_samples_out(name: str) -> None:
    def make(num_rows: int) -> Callable[[], Any]:
        driver, tasks = Driver(), itertools.count()
        lengths = np.random.default_rng(0).integers(1, 99, num_rows)
        driver.put(
            num_rows,
            ("x", "y"),
            tags={"group": np.arange(num_rows) // 4, "length": lengths, "policy_version": 3},
        )
        driver.clear(driver.put(8))

        def claim() -> None:
            grant = driver.take(
                num_rows, task=f"task {next(tasks)}", fields=("x", "y"), sampler=SAMPLERS[name]
            )
            driver.ack(grant)

        return claim

    assert_equal_counts(make)


def test_a_shard_takes_a_put(shard: LoneShard) -> None:
    assert_equal_counts(lambda num_rows: lambda: shard.put(num_rows))


def test_a_shard_finds_shuffled_rows_and_sends_them_at_once(shard: LoneShard) -> None:
    def make(num_rows: int) -> Callable[[], Any]:
        uids = shard.put(num_rows)[shuffled(num_rows)]
        return lambda: shard.get(uids)

    assert_equal_counts(make)


def test_a_shard_sends_shuffled_rows_in_chunks(shard: LoneShard) -> None:
    def make(num_rows: int) -> Callable[[], Any]:
        uids = np.concatenate([shard.put(num_rows // 2) for _ in range(4)])
        answer = shard.get(uids[shuffled(len(uids))])
        assert answer.lease_id is not None
        return lambda: shard.read(answer)

    assert_equal_counts(make)


def test_a_shard_clears_shuffled_rows(shard: LoneShard) -> None:
    def make(num_rows: int) -> Callable[[], Any]:
        uids = [shard.put(num_rows)[shuffled(num_rows)] for _ in range(3)]
        return lambda: shard.clear(uids.pop())

    assert_equal_counts(make)
